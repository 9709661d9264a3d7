"""Before a run: what silos or tree clients disclose, to whom, and which privacy guarantee holds for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrank import __version__
from fedrank.experiments.runner.folder import FORMAT, Paid
from fedrank.experiments.runner.merge import paid_for_trees
from fedrank.experiments.runner.privacy import TARGETS, BudgetForecast, budget_forecast, noise_needed, planned
from fedrank.experiments.runner.privacy_rule import wasted_budget
from fedrank.experiments.runner.silo import silo_card
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import Grid
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee, noise_for
from fedrank.silo.sketch import SLACK
from fedrank.silo.training import LocalPlus
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import Alone, Bagged, Cyclic, Pooled

OCCURRENCES = (1, 2, 5, 10)  # occurrences of a word in a document whose cost is shown
FOREST = (
    "thresholds, which are means of two feature values; leaf values and document counts; the smallest and "
    "largest value of every feature"
)
NO_NOISE = "without noise, no ε holds"


@dataclass(frozen=True)
class Disclosure:
    """Information that a client discloses."""

    what: str
    to: str
    because: str  # the reason why a guarantee holds or not
    guarantee: Paid | None = None  # None: nothing can be claimed


def leaving(experiment: SiloExperiment | TreesExperiment) -> list[Disclosure]:
    """All disclosures of an experiment; empty if there are none."""
    return _from_silos(experiment) if isinstance(experiment, SiloExperiment) else _from_trees(experiment)


def _from_silos(experiment: SiloExperiment) -> list[Disclosure]:
    method, found = experiment.method, []
    if isinstance(method, LocalPlus):
        guarantee = next(iter(silo_card(_without_budget(experiment)).promises), None)
        if method.counts == "exact":
            what, because = "documents that match queries, with their lengths and exact term counts", NO_NOISE
        elif method.noise_in == "paper":
            what = "documents that match queries, with their lengths and term counts in all rows"
            because = "the same noise is added to all rows of a document, so their differences are exact"
        elif method.noise_in == "lookup":
            assert guarantee is not None
            what = "documents that match queries, with their lengths and noised term counts"
            because = f"{guarantee.because}; every query term of every silo adds to the cost"
        elif guarantee is None:
            what, because = "sketches without noise: a holder of the key can read all counts", NO_NOISE
        else:
            what = "noised sketches of documents and of document frequencies, as copies or in answers to queries"
            because = (
                f"{guarantee.because}; the noise is drawn once, so further queries and queriers do not add to the cost"
            )
        found.append(Disclosure(what, "the other silos", because, guarantee))
        words = "every silo holds the key and can test a dictionary; a silo with a copy of the sketch sends no queries"
        found.append(Disclosure("the words of queries that are sent to other silos", "the silos that answer", words))
        lengths = "they are disclosed without noise"
        found.append(Disclosure("the existence of documents, and their lengths", "the other silos", lengths))
    if method.first(1).ndim == 1:
        found.append(Disclosure("the model after the steps of every silo", "the server and the other silos", NO_NOISE))
    return found


def _without_budget(experiment: SiloExperiment) -> SiloExperiment:
    return replace(experiment, privacy=replace(experiment.privacy, budget=None))


def _from_trees(experiment: TreesExperiment) -> list[Disclosure]:
    merge = experiment.merge
    if merge is None:
        return [Disclosure(f"the forest: {FOREST}", "every recipient of the model", NO_NOISE)]
    if isinstance(merge, Alone):
        return []
    if isinstance(merge, Pooled):
        data = Disclosure(
            "all queries, documents and relevance labels",
            "the organisation that grows the forest",
            "the data are not protected",
        )
        return [data, Disclosure(f"the forest: {FOREST}", "all clients", NO_NOISE)]
    if isinstance(merge, (Bagged, Cyclic)):
        tree = Disclosure(f"every tree: {FOREST}", "all other clients", NO_NOISE)
        return [
            tree,
            Disclosure("nDCG@10 on the client's validation queries after every round", "all other clients", NO_NOISE),
        ]
    if isinstance(merge, Histograms) and merge.private != "no":
        clients = getattr(experiment.split, "clients", 2)  # the minimum, for a split without this setting
        noise = merge.tree_noise(clients)
        assert noise is not None
        releases = experiment.booster.trees * noise.releases
        edges = int(merge.edge_noise(clients) is not None)
        paid = paid_for_trees(merge, Histograms.rules(experiment.booster), releases, clients, edges)
        what = "noised sums of gradients and hessians, from which the whole forest is built"
        return [Disclosure(what, "the server; all clients, as a forest", paid.because, paid)]
    if isinstance(merge, Histograms):
        to = "the server, summed over all clients" if merge.secure else "the server"
        which = f"{2 * merge.vote} elected features" if merge.vote else "every feature"
        counts = Disclosure(f"histograms of gradients, hessians and rows for every leaf and {which}", to, NO_NOISE)
        votes = Disclosure(
            f"the {merge.vote} features with the highest gain on the client's rows, for every leaf", to, NO_NOISE
        )
        quality = Disclosure("nDCG@10 on validation queries after every tree, summed over clients", to, NO_NOISE)
        first = [votes, counts] if merge.vote else [counts]
        return [*first, quality, Disclosure(f"the forest: {FOREST}", "all clients", NO_NOISE)]
    return [Disclosure(f"the forest of every client: {FOREST}", "all other clients", NO_NOISE)]


def cost_of_words(experiment: SiloExperiment) -> dict[int, float]:
    """ε of a word by its number of occurrences in a document; empty without a guarantee."""
    method = experiment.method
    if not isinstance(method, LocalPlus) or method.counts == "exact" or not method.sketcher.noise:
        return {}
    return {often: method.sketcher.privacy(experiment.privacy.delta, often) for often in OCCURRENCES}


def sketch_noise_needed(experiment: SiloExperiment, targets: Sequence[float] = TARGETS) -> list[float]:
    """The sketch noise that achieves each target ε for one occurrence of a word; empty if no noise is used."""
    method = experiment.method
    if not cost_of_words(experiment):
        return []
    assert isinstance(method, LocalPlus)

    def with_noise(noise: float) -> Guarantee:
        multiplier = replace(method, noise=noise).sketcher.multiplier
        assert multiplier is not None
        return Guarantee("silos", GaussianEvent(multiplier), "noised sketches", "once", slack=SLACK)

    return [noise_for(with_noise, 1, experiment.privacy.delta, target) for target in targets]


def budget_line(experiment: SiloExperiment) -> str:
    """A sentence if the budget does not allow a run."""
    try:
        silo_card(experiment)
    except ValueError as problem:
        return f"A run would be refused: {problem}."
    return ""


def as_facts(grid: Grid[Any], targets: Sequence[float] = TARGETS, home: Path = Path("runs")) -> dict[str, Any]:
    """The costs of every variant, as JSON values."""
    return {
        "format": FORMAT,
        "fedrank": __version__,
        "title": grid.title,
        "kind": grid.kind,
        "targets": list(targets),
        "variants": [{"variant": each.name} | _facts(each.experiment, targets, home) for each in grid.variants],
    }


def _facts(experiment: Any, targets: Sequence[float], home: Path) -> dict[str, Any]:
    if isinstance(experiment, FederatedExperiment):
        protected = experiment.mechanism is not None
        people = budget_forecast(experiment, home)
        return {
            "promises": [asdict(price.paid) for price in planned(experiment)] if protected else [],
            "noise_for_targets": {
                against: [_known(noise) for noise in needed]
                for against, needed in noise_needed(experiment, targets).items()
            },
            "population": None if people is None else _numbers(people),
            "advice": wasted_budget(experiment),
        }
    facts: dict[str, Any] = {"leaves": [asdict(each) for each in leaving(experiment)]}
    if isinstance(experiment, SiloExperiment):
        facts["epsilon_by_occurrences"] = {str(often): cost for often, cost in cost_of_words(experiment).items()}
        facts["noise_for_targets"] = [_known(noise) for noise in sketch_noise_needed(experiment, targets)]
    return facts


def _numbers(people: BudgetForecast) -> dict[str, Any]:
    """JSON values: infinity becomes null."""
    costs = {"spent": people.spent, "alone": people.alone, "after": people.after, "left": people.left}
    return asdict(people) | {
        name: {against: _known(cost) for against, cost in each.items()} for name, each in costs.items()
    }


def _known(noise: float) -> float | None:
    return None if math.isinf(noise) else noise

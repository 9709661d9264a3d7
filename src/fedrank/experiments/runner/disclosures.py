"""Before a run: what silos or tree clients disclose, to whom, and which privacy guarantee holds for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrank import __version__
from fedrank.experiments.runner.folder import FORMAT, Paid
from fedrank.experiments.runner.merge import paid_for_trees
from fedrank.experiments.runner.privacy import TARGETS, budget_forecast, noise_needed, planned
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
    guarantee: Paid | None = None  # None: no privacy guarantee


def leaving(experiment: SiloExperiment | TreesExperiment) -> list[Disclosure]:
    """All disclosures of an experiment; empty if there are none."""
    return _from_silos(experiment) if isinstance(experiment, SiloExperiment) else _from_trees(experiment)


def _from_silos(experiment: SiloExperiment) -> list[Disclosure]:
    method, found = experiment.method, []
    if isinstance(method, LocalPlus):
        unlimited = replace(experiment, privacy=replace(experiment.privacy, budget=None))
        guarantee = next(iter(silo_card(unlimited).promises), None)
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


def _from_trees(experiment: TreesExperiment) -> list[Disclosure]:
    merge = experiment.merge
    if merge is None:
        return [Disclosure(f"the forest: {FOREST}", "every recipient of the model", NO_NOISE)]
    if isinstance(merge, Alone):
        return []
    forest = Disclosure(f"the forest: {FOREST}", "all clients", NO_NOISE)
    if isinstance(merge, Pooled):
        what, to = "all queries, documents and relevance labels", "the organisation that grows the forest"
        return [Disclosure(what, to, "the data are not protected"), forest]
    if isinstance(merge, (Bagged, Cyclic)):
        quality = "nDCG@10 on the client's validation queries after every round"
        return [Disclosure(what, "all other clients", NO_NOISE) for what in (f"every tree: {FOREST}", quality)]
    if isinstance(merge, Histograms) and merge.private != "no":
        clients = getattr(experiment.split, "clients", 2)  # the minimum, for a split without this setting
        noise = merge.tree_noise(clients)
        assert noise is not None
        releases = experiment.booster.trees * noise.releases
        paid = paid_for_trees(merge, Histograms.rules(experiment.booster), releases, clients)
        what = "noised sums of gradients and hessians, from which the whole forest is built"
        return [Disclosure(what, "the server; all clients, as a forest", paid.because, paid)]
    if isinstance(merge, Histograms):
        to = "the server, summed over all clients" if merge.secure else "the server"
        which = f"{2 * merge.vote} elected features" if merge.vote else "every feature"
        votes = f"the {merge.vote} features with the highest gain on the client's rows, for every leaf"
        sent = [
            *([votes] if merge.vote else []),
            f"histograms of gradients, hessians and rows for every leaf and {which}",
            "nDCG@10 on validation queries after every tree, summed over clients",
        ]
        return [*(Disclosure(what, to, NO_NOISE) for what in sent), forest]
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
    """The costs of every variant, for `json_text`."""
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
        people = budget_forecast(experiment, home)
        return {
            "promises": [] if experiment.mechanism is None else [price.paid for price in planned(experiment)],
            "noise_for_targets": noise_needed(experiment, targets),
            "population": None if people is None else vars(people) | {"left": people.left},
            "advice": wasted_budget(experiment),
        }
    facts: dict[str, Any] = {"leaves": leaving(experiment)}
    if isinstance(experiment, SiloExperiment):
        facts["epsilon_by_occurrences"] = cost_of_words(experiment)
        facts["noise_for_targets"] = sketch_noise_needed(experiment, targets)
    return facts

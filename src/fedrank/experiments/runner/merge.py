"""One run in which several clients train forests separately and merge them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.cards import (
    GROWN_FOREST,
    GROWN_IN_SUM,
    MERGED_FORESTS,
    NOISED_FOREST,
    NOISED_IN_SUM,
    TREES,
    about_priced_edges,
    forest_card,
)
from fedrank.experiments.runner.folder import Card, Paid
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import private_folder
from fedrank.privacy.guarantees import cost_together, up
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.population import LEDGER
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.ranking.measures import average
from fedrank.seeds import rng_for
from fedrank.trees.boosters import Grower, best_size
from fedrank.trees.forest import make_forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.histograms import Histograms, edges_round
from fedrank.trees.mergers import ENOUGH, Merger, Stacking, WeightedSum
from fedrank.trees.model_files import save_any, with_notes
from fedrank.trees.split_folder import sizes
from fedrank.trees.splits import Portion
from fedrank.trees.training import Merging, measured, merge_grown, train_locally
from fedrank.trees.tuning import Studies

MAX_FEATURES = 10_000  # assumed by the guarantee; more features would slightly increase ε
NOISED_TREES = (
    "which clients participate, and how many there are",
    "a person whose queries are held by several clients counts as several",
    "local models of the clients, which a run trains for comparison; they are not sent",
    "smallest and largest feature values, which a model contains if data are normalised globally",
)
AGREED_EDGES = "bin edges from a file: if they were computed from data, they reveal information about them"
CONVENTIONS = {
    "rounds": "one round: clients train their models and merge them; values are those of the merged models, mean over "
    "clients",
    "final": "the only evaluation",
}


@dataclass(frozen=True)
class ForestDisclosure:
    """What forests that organisations build together disclose, to whom, and what no ε covers."""

    who_sees_what: str
    not_covered: tuple[str, ...]

    @classmethod
    def of(cls, merge: Merger) -> ForestDisclosure:
        if not isinstance(merge, Histograms):
            return cls(MERGED_FORESTS, TREES)
        if merge.private == "no":
            return cls(GROWN_IN_SUM if merge.secure else GROWN_FOREST, TREES)
        return cls(NOISED_IN_SUM if merge.secure else NOISED_FOREST, NOISED_TREES)


def perform_merge(experiment: TreesExperiment, writer: RunWriter, fold: Fold, baseline: BaselineRanking) -> None:
    """Split, train, merge, measure and save."""
    assert experiment.split is not None
    assert experiment.merge is not None
    writer.update_facts(conventions=CONVENTIONS)
    checkpoint = writer.begin()

    def turn(step: str = "") -> None:
        writer.after_round(0, 1, lambda: {"forests": [asdict(grown) for grown in forestry.forests]})

    studies = Studies(
        experiment.tune, writer.folder, lambda done, best: writer.report_progress(0, 1, best.quality), turn
    )
    forestry = ForestCheckpoint(
        experiment.booster,
        studies if experiment.tune else None,
        turn,
        forests=[] if checkpoint is None else [Grown(**grown) for grown in checkpoint["forests"]],
    )
    seed, threads = writer.task.seed, writer.threads
    portions = experiment.split(fold, rng_for(seed, "split"))
    writer.update_facts(portions=_part_sizes(fold, portions), **_too_few(experiment.merge, portions))
    account = TreeAccount(writer.folder / LEDGER)
    forestry.charge = account.charge
    local = train_locally(portions, forestry, seed, threads, turn)
    outcome = merge_grown(fold, portions, local, forestry, experiment.merge, experiment.measures, seed, threads, turn)
    save_merged(outcome, writer, fold)
    tuned = [{"trials": experiment.tune, "trees": best.trees, **best.settings} for best in studies.best] or None
    untuned = sum(best.trees == 0 for best in studies.best)
    notes = [f"{untuned} stacked models use the settings of the spec: no tried setting could split the merge set"]
    card = forest_card(len(outcome.local))
    if isinstance(experiment.merge, Histograms):
        card = account.card(card, experiment.merge, Histograms.rules(experiment.booster), len(portions), fold)
    finish_merge(outcome, writer, fold, baseline, card=card, tuned=tuned, notes=notes if untuned else [])


def _part_sizes(fold: Fold, portions: Sequence[Portion]) -> list[dict[str, Any]]:
    """Numbers of queries, documents and relevant documents of the whole set and of every client."""
    whole = {"train": fold.train, "validation": fold.validation, "test": fold.test}
    parts = [{"client": "all"} | whole]
    parts += [
        {"client": one.name, "train": one.train, "validation": one.validation, "test": one.test, "merge": one.merge}
        for one in portions
    ]
    return [
        {name: sizes(part) if isinstance(part, RankingData) else part for name, part in row.items()} for row in parts
    ]


def _too_few(merge: Merger, portions: Sequence[Portion]) -> dict[str, Any]:
    """Facts of a run whose merge sets are too small to evaluate stacking."""
    smallest = min(portion.merge.queries for portion in portions)
    if not isinstance(merge, Stacking) or smallest >= ENOUGH:
        return {}
    reason = f"a merge set has {smallest} queries; testing stacking needs at least {ENOUGH}"
    return {"not_testable": reason, "notes": [f"not testable: {reason}"]}


class TreeAccount:
    """The ledger of a forest grown with noise: a round is a tree, charged to all clients before it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ledger: Ledger | None = None

    def charge(self, clients: int, round: int) -> None:
        """Charge a tree. A tree that was lost in a crash is charged again, because its sums may have been sent."""
        if self._ledger is None:
            self._ledger = Ledger.open(self.folder, clients)
        self._ledger.reserve({round: np.arange(clients)})
        self._ledger.begun(round)

    def card(self, bare: Card, merge: Histograms, rules: Grower, clients: int, fold: Fold) -> Card:
        """The privacy card of the forest, from the ledger."""
        if self._ledger is None:  # a finished forest whose files are rewritten
            self._ledger = Ledger.open(self.folder, clients) if self.folder.exists() else None
        if self._ledger is None:
            return bare
        charged, edges = self._ledger.rounds(), self._ledger.times(edges_round(rules))
        self._ledger.close()
        noise = merge.tree_noise(clients)
        if noise is None:
            return _with_priced_edges(bare, merge, edges, clients, fold.train.features.shape[1])
        bare = replace(bare, rounds_charged=charged)
        return noised_card(bare, merge, rules, (charged - edges) * noise.releases, clients, edges)


def _with_priced_edges(bare: Card, merge: Histograms, times: int, clients: int, features: int) -> Card:
    """The card of a forest without a guarantee, but with a priced estimate of its bin edges."""
    noise = merge.edge_noise(clients)
    if noise is None:
        return bare
    cost = noise.guarantee(features).epsilon(times, merge.delta)
    text = about_priced_edges(merge.unit, times, cost, merge.delta)
    return replace(bare, rounds_charged=times, summary=bare.summary + text)


def noised_card(bare: Card, merge: Histograms, rules: Grower, releases: int, clients: int, edges: int = 0) -> Card:
    """The card of a forest after a number of noised releases; `edges` counts estimates of bin edges."""
    paid = paid_for_trees(merge, rules, releases, clients, edges)
    releases += edges
    mechanism = {"name": f"trees: {merge.private}", "noise": merge.noise, "unit": merge.unit}
    sees = ForestDisclosure.of(merge).who_sees_what
    cost = "infinite" if paid.epsilon is None else up(paid.epsilon)
    left_open = (*NOISED_TREES, AGREED_EDGES) if merge.edges == "file" else NOISED_TREES
    text = f"{releases:,} releases cost ε = {cost} at δ = {merge.delta:g} for one {merge.unit}; {sees}."
    return replace(
        bare, mechanism=mechanism, who_sees_what=sees, delta=merge.delta, promises=(paid,), not_covered=left_open,
        summary=text,
    )  # fmt: skip


def paid_for_trees(merge: Histograms, rules: Grower, releases: int, clients: int, edges: int = 0) -> Paid:
    """The cost of noised releases of trees, including estimates of bin edges."""
    noise, edge_noise = merge.tree_noise(clients), merge.edge_noise(clients)
    assert noise is not None
    guarantee = noise.priced(MAX_FEATURES, rules.bins, rules.fraction)
    spent = [(guarantee, releases)]
    if edge_noise is not None:
        spent.append((edge_noise.guarantee(MAX_FEATURES), edges))
    total, each = cost_together(spent, merge.delta), guarantee.epsilon(1, merge.delta)
    releases += edges
    return Paid(
        against="server",
        epsilon=None if math.isinf(total) else total,
        epsilon_each_time=None if math.isinf(each) else each,
        times=releases,
        paid_per="round",
        delta=merge.delta,
        unit=merge.unit,
        neighbours="zero-out",
        because=guarantee.because,
    )


def merge_sent(
    experiment: TreesExperiment,
    fold: Fold,
    portions: Sequence[Portion],
    trees: Sequence[Sequence[str]],
    seed: int,
    threads: int = 1,
) -> Merging:
    """Merge the trees of clients, each with its own merge set, as in a simulation."""
    assert experiment.merge is not None
    local = [
        make_forest(sent, portion.train, {"client": portion.name, "queries": portion.train.queries})
        for sent, portion in zip(trees, portions, strict=True)
    ]
    return merge_grown(fold, portions, local, experiment.booster, experiment.merge, experiment.measures, seed, threads)


def merge_organisations(
    experiment: TreesExperiment,
    fold: Fold,
    sent: Mapping[str, tuple[Sequence[str], int]],  # trees and number of queries of each organisation
    seed: int,
    threads: int = 1,
) -> Merging:
    """Merge the trees of organisations with the training data of this fold: they have no merge sets."""
    assert isinstance(experiment.merge, WeightedSum | Stacking)
    queries = {name: count for name, (_, count) in sent.items()}
    local = [
        make_forest(trees, fold.train, {"client": name, "queries": count}, with_ranges=False)
        for name, (trees, count) in sent.items()
    ]
    model = experiment.merge.merge(local, fold.train, seed, threads)
    return measured(queries, local, [model] * len(local), fold, experiment.measures, _no_own_queries(local, fold))


def shared_forest(
    trees: Sequence[str],
    curve: Sequence[float],  # quality on validation queries after each tree
    fold: Fold,
    rows: Mapping[str, int],  # rows of each organisation, if known
    clients: int,
    measures: Sequence[str],
) -> Merging:
    """The forest that organisations grew together from histograms, truncated to its best tree."""
    notes = {"grown by": "histograms", "clients": clients}
    forest = make_forest(trees[: best_size(list(curve))], fold.train, notes, with_ranges=False)
    each = [forest] * len(rows)
    return measured(rows, each, each, fold, measures, _no_own_queries(each, fold))


def _no_own_queries(models: Sequence[Any], fold: Fold) -> NDArray[np.bool_]:
    """[models, queries]: no test query belongs to a client."""
    return np.zeros((len(models), fold.test.queries), np.bool_)


def finish_merge(outcome: Merging, writer: RunWriter, fold: Fold, baseline: BaselineRanking, **facts: Any) -> None:
    """Write the files of a run of merged models, and mark it as finished."""
    per_query = average(np.moveaxis(outcome.after, 1, -1))  # [measures, queries]: mean over clients
    writer.add(1, values=average(per_query).tolist())
    writer.report_progress(1, 1)
    found = (fold.test.query_ids.tolist(), per_query)
    writer.finish(1, queries=found, baseline=baseline, clients=_by_client(outcome), **facts)


def _by_client(outcome: Merging) -> dict[str, Any]:
    columns = {
        "client": list(outcome.queries),
        "queries": list(outcome.queries.values()),
        "interactions": [0] * len(outcome.queries),
    }
    return columns | outcome.by_client()


def save_merged(outcome: Merging, writer: RunWriter, fold: Fold) -> None:
    """Write `model.json` if all clients have the same model; otherwise one folder per client, and every local model."""
    origin = writer.origin(fold.name)
    if len({id(model) for model in outcome.merged}) == 1:
        save_any(with_notes(outcome.merged[0], origin), writer.folder / "model.json")
    for number, (local, merged) in enumerate(zip(outcome.local, outcome.merged, strict=True), start=1):
        for kind, model in (("local", local), ("merged", merged)):
            folder = private_folder(writer.folder / "clients") / str(number) / kind
            folder.mkdir(parents=True, exist_ok=True)
            save_any(with_notes(model, origin), folder / "model.json")

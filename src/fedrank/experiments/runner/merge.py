"""One run in which several clients train forests separately and merge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.data.catalog import Fold
from fedrank.experiments.runner import cards
from fedrank.experiments.runner.data import described, evaluation_queries, load_fold
from fedrank.experiments.runner.folder import Card, Paid
from fedrank.experiments.runner.privacy import Price
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import private_folder
from fedrank.privacy.guarantees import cost_together, up
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.population import LEDGER
from fedrank.ranking.baseline_ranking import BaselineRanking, baseline_order
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Scorer
from fedrank.seeds import rng_for
from fedrank.trees.boosters import MEASURE, Grower, Trainer, best_size
from fedrank.trees.forest import lightgbm, make_forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import ENOUGH, Merger, Stacking, WeightedSum
from fedrank.trees.model_files import save_any, with_notes
from fedrank.trees.split_folder import sizes
from fedrank.trees.splits import Portion
from fedrank.trees.training import Merging, measured, measured_for, train_locally
from fedrank.trees.tuning import Studies

MAX_FEATURES = 10_000  # assumed by the guarantee; more features would slightly increase ε
PERSON_AT_SEVERAL = "a person whose queries are held by several clients counts as several"
NOISED_TREES = (
    "which clients participate, and how many there are",
    PERSON_AT_SEVERAL,
    "local models of the clients, which a run trains for comparison; they are not sent",
    "smallest and largest feature values, which a model contains if data are normalised globally",
)
AGREED_EDGES = "bin edges from a file: if they were computed from data, they reveal information about them"
OF_FORESTS = {
    "rounds": "row r is the forest of the first r trees; the last row is the model, of the size that ranks the "
    "validation queries best",
    "final": "the last evaluation, which is that of the model",
    "stopping": f"by {MEASURE} of the validation queries under fedrank's convention: those without a relevant document "
    "do not count, where LightGBM counts them as 1",
}
CONVENTIONS = {
    "rounds": "one round: clients train their models and merge them; values are those of the merged models, mean over "
    "clients",
    "final": "the only evaluation",
}


def begin_trees(experiment: TreesExperiment, writer: RunWriter) -> tuple[Fold, Evaluator, BaselineRanking]:
    """Describe the data in the run folder; return the data, the evaluator and the baseline ranking."""
    asked = experiment.unscaled
    fold = load_fold(asked, writer.task.fold)
    engine = (
        f"LightGBM {lightgbm().__version__}, objective lambdarank: splits and leaf values by gradients and hessians; "
        "another version or processor may grow slightly different trees"
    )  # figures of other engines are not comparable
    writer.update_facts(
        notes=fold.notes,
        conventions=OF_FORESTS | {"engine": engine},
        data=described(fold.name, fold.train.queries, fold.test.queries, fold.train),
        engine=engine,
        behind_final=1,
    )
    evaluator = Evaluator(evaluation_queries(fold, asked), experiment.measures)
    return fold, evaluator, baseline_order(evaluator, asked.given)


@dataclass(frozen=True)
class ForestDisclosure:
    """What forests that organisations build together disclose, to whom, and what no ε covers."""

    who_sees_what: str
    not_covered: tuple[str, ...]

    @classmethod
    def of(cls, merge: Merger) -> ForestDisclosure:
        if not isinstance(merge, Histograms):
            return cls(cards.MERGED_FORESTS, cards.TREES)
        if merge.private == "no":
            return cls(cards.GROWN_IN_SUM if merge.secure else cards.GROWN_FOREST, cards.TREES)
        return cls(cards.NOISED_IN_SUM if merge.secure else cards.NOISED_FOREST, NOISED_TREES)


@dataclass(frozen=True)
class MergeRun:
    """A run that makes one model from the forests of several clients, in a simulation or between organisations."""

    experiment: TreesExperiment
    writer: RunWriter
    fold: Fold
    baseline: BaselineRanking

    @classmethod
    def begin(cls, experiment: TreesExperiment, writer: RunWriter) -> MergeRun:
        fold, _, baseline = begin_trees(experiment, writer)
        return cls(experiment, writer, fold, baseline)

    def describe(self, more: Mapping[str, str] | None = None) -> None:
        """Write the conventions of merging to the run folder."""
        self.writer.update_facts(conventions=CONVENTIONS | dict(more or {}))

    def merge_sent(self, portions: Sequence[Portion], trees: Sequence[Sequence[str]]) -> Merging:
        """Merge the trees that clients sent, each client by its own merge set, as in a simulation."""
        local = [
            make_forest(sent, portion.train, {"client": portion.name, "queries": portion.train.queries})
            for sent, portion in zip(trees, portions, strict=True)
        ]
        return self.merge_local(portions, local, self.experiment.booster)

    def merge_local(self, portions: Sequence[Portion], local: Sequence[Scorer], booster: Trainer) -> Merging:
        """Merge the forests of clients, each by its own merge set."""
        spec = self.experiment
        assert spec.merge is not None
        merged = spec.merge(portions, local, booster, self.writer.task.seed, self.writer.threads)
        return measured(portions, local, merged, self.fold, spec.measures)

    def merge_organisations(self, sent: Mapping[str, tuple[Sequence[str], int]]) -> Merging:
        """Merge the trees of organisations by the training data of this fold, because they have no merge set.

        `sent` has the trees of each organisation and the number of queries that they were grown on.
        """
        spec, train = self.experiment, self.fold.train
        assert isinstance(spec.merge, WeightedSum | Stacking)
        queries = {name: count for name, (_, count) in sent.items()}
        local = [
            make_forest(trees, train, {"client": name, "queries": count}, with_ranges=False)
            for name, (trees, count) in sent.items()
        ]
        model = spec.merge.merge(local, train, self.writer.task.seed, self.writer.threads)
        return self._measured(queries, local, [model] * len(local))

    def shared_forest(
        self, trees: Sequence[str], curve: Sequence[float], rows: Mapping[str, int], clients: int
    ) -> Merging:
        """The forest that organisations grew from histograms, up to its best tree by the validation `curve`.

        `rows` has the known number of rows of each organisation.
        """
        notes = {"grown by": "histograms", "clients": clients}
        forest = make_forest(trees[: best_size(list(curve))], self.fold.train, notes, with_ranges=False)
        each = [forest] * len(rows)
        return self._measured(rows, each, each)

    def noised_card(self, bare: Card, releases: int, clients: int) -> Card:
        """The privacy card of a forest that was grown from this many releases under noise."""
        merge = self.experiment.merge
        assert isinstance(merge, Histograms)
        return noised_card(bare, merge, Histograms.rules(self.experiment.booster), releases, clients)

    def save(self, outcome: Merging) -> None:
        """`model.json` where all clients have the same model; otherwise one folder for each, and every local model."""
        writer = self.writer
        origin = writer.origin(self.fold.name)
        if len({id(model) for model in outcome.merged}) == 1:
            save_any(with_notes(outcome.merged[0], origin), writer.folder / "model.json")
        for number, (local, merged) in enumerate(zip(outcome.local, outcome.merged, strict=True), start=1):
            for kind, model in (("local", local), ("merged", merged)):
                folder = private_folder(writer.folder / "clients") / str(number) / kind
                folder.mkdir(parents=True, exist_ok=True)
                save_any(with_notes(model, origin), folder / "model.json")

    def finish(self, outcome: Merging, **facts: Any) -> None:
        """Write the values of the merged models, and mark the run as finished."""
        writer = self.writer
        per_query = average(np.moveaxis(outcome.after, 1, -1))  # [measures, queries]: mean over clients
        writer.add(1, values=average(per_query).tolist())
        writer.report_progress(1, 1)
        clients: dict[str, Any] = {
            "client": list(outcome.queries),
            "queries": list(outcome.queries.values()),
            "interactions": [0] * len(outcome.queries),
        }
        found = (self.fold.test.query_ids.tolist(), per_query)
        writer.finish(1, queries=found, baseline=self.baseline, clients=clients | outcome.by_client(), **facts)

    def _measured(self, queries: Mapping[str, int], local: Sequence[Any], merged: Sequence[Any]) -> Merging:
        """Quality of the models of organisations; the test queries belong to none of them."""
        own = np.zeros((len(merged), self.fold.test.queries), np.bool_)
        return measured_for(queries, local, merged, self.fold, self.experiment.measures, own)


def perform_merge(run: MergeRun) -> None:
    """Split, train, merge, measure and save."""
    experiment, writer, fold = run.experiment, run.writer, run.fold
    assert experiment.split is not None
    assert experiment.merge is not None
    run.describe()
    checkpoint = writer.begin()

    def turn() -> None:
        writer.after_round(0, 1, lambda: {"forests": [asdict(grown) for grown in forestry.forests]})

    studies = Studies(
        experiment.tune, writer.folder, lambda done, best: writer.report_progress(0, 1, best.quality), turn
    )
    forestry = ForestCheckpoint(
        experiment.booster,
        studies if experiment.tune else None,
        turn,
        forests=[
            Grown(one["trees"], one["validation"], one["whole"]) for one in (checkpoint or {"forests": ()})["forests"]
        ],
    )
    seed, threads = writer.task.seed, writer.threads
    portions = experiment.split(fold, rng_for(seed, "split"))
    writer.update_facts(portions=_part_sizes(fold, portions), **_too_few(experiment.merge, portions))
    account = TreeAccount(writer.folder / LEDGER)
    forestry.charge = account.charge
    local = train_locally(portions, forestry, seed, threads, turn)
    turn()
    outcome = run.merge_local(portions, local, forestry)
    run.save(outcome)
    tuned = [{"trials": experiment.tune, "trees": best.trees, **best.settings} for best in studies.best] or None
    untuned = sum(best.trees == 0 for best in studies.best)
    notes = [f"{untuned} stacked models use the settings of the spec: no tried setting could split the merge set"]
    card = cards.forest_card(len(outcome.local))
    if isinstance(experiment.merge, Histograms):
        card = account.card(card, experiment.merge, Histograms.rules(experiment.booster), len(portions))
    run.finish(outcome, card=card, tuned=tuned, notes=notes if untuned else [])


def _part_sizes(fold: Fold, portions: Sequence[Portion]) -> list[dict[str, Any]]:
    """Numbers of queries, documents and relevant documents of the whole set and of every client."""
    whole = {"train": fold.train, "validation": fold.validation, "test": fold.test}
    own = ("train", "validation", "test", "merge")
    parts = {"all": whole} | {one.name: {name: getattr(one, name) for name in own} for one in portions}
    return [
        {"client": client} | {name: None if data is None else sizes(data) for name, data in sets.items()}
        for client, sets in parts.items()
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

    def card(self, bare: Card, merge: Histograms, rules: Grower, clients: int) -> Card:
        """The privacy card of the forest, from the ledger."""
        if self._ledger is None:  # a finished forest whose files are rewritten
            self._ledger = Ledger.open(self.folder, clients) if self.folder.exists() else None
        if self._ledger is None:
            return bare
        charged = self._ledger.rounds()
        self._ledger.close()
        noise = merge.tree_noise(clients)
        assert noise is not None
        return noised_card(replace(bare, rounds_charged=charged), merge, rules, charged * noise.releases, clients)


def noised_card(bare: Card, merge: Histograms, rules: Grower, releases: int, clients: int) -> Card:
    """The card of a forest after a number of noised releases."""
    paid = paid_for_trees(merge, rules, releases, clients)
    mechanism = {"name": f"trees: {merge.private}", "noise": merge.noise, "unit": merge.unit}
    sees = ForestDisclosure.of(merge).who_sees_what
    cost = "infinite" if paid.epsilon is None else up(paid.epsilon)
    left_open = (*NOISED_TREES, AGREED_EDGES) if merge.edges == "file" else NOISED_TREES
    text = f"{releases:,} releases cost ε = {cost} at δ = {merge.delta:g} for one {merge.unit}; {sees}."
    return replace(
        bare, mechanism=mechanism, who_sees_what=sees, delta=merge.delta, promises=(paid,), not_covered=left_open,
        summary=text,
    )  # fmt: skip


def paid_for_trees(merge: Histograms, rules: Grower, releases: int, clients: int) -> Paid:
    """The cost of noised releases of trees."""
    noise = merge.tree_noise(clients)
    assert noise is not None
    guarantee = noise.priced(MAX_FEATURES, rules.bins, rules.fraction)
    total, each = cost_together([(guarantee, releases)], merge.delta), guarantee.epsilon(1, merge.delta)
    return Price(guarantee, releases, each, total, merge.delta).paid

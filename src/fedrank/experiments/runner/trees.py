"""One run of kind "trees".

Without a split, one organisation grows one forest: a round is a tree, and row r of `rounds.csv` is the forest of the
first r trees, up to the best size on the validation queries. With a split, every client trains a forest and they are
merged: there is one round. A run can be stopped at any tree; its checkpoint contains all trees so far.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.data.ranking import RankingData
from fedrank.experiments.runner.cards import forest_card
from fedrank.experiments.runner.folder import table
from fedrank.experiments.runner.merge import MergeRun, begin_trees, perform_merge
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.experiment import of_sizes
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.files import write_atomic
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.ranking.measures import Evaluator, average
from fedrank.trees.arrays import Trees
from fedrank.trees.boosters import MEASURE, Booster, BoosterState, Lambdamart, Step, best_size
from fedrank.trees.forest import make_forest, save_forest
from fedrank.trees.selection import Selected
from fedrank.trees.tuning import best_of, tune


def perform_trees(experiment: TreesExperiment, writer: RunWriter) -> None:
    """Grow the remaining trees and evaluate the model."""
    if experiment.split is not None:
        perform_merge(MergeRun.begin(experiment, writer))
    else:
        _perform_forest(experiment, writer, *begin_trees(experiment, writer))


def _perform_forest(
    experiment: TreesExperiment, writer: RunWriter, fold: Fold, evaluator: Evaluator, baseline: BaselineRanking
) -> None:
    seed, threads, last = writer.task.seed, writer.threads, experiment.booster.trees
    booster, tuned = experiment.booster, None
    if experiment.tune:
        if fold.validation is None:
            raise ValueError(f"{fold.name} has no validation queries to tune on; set data.validation to a file")
        booster, trials = tune(
            booster, fold.train, fold.validation, experiment.tune, writer.folder / "study.db", seed, threads,
            lambda done, best: writer.report_progress(0, last, best.quality), writer.stop_if_requested,
        )  # fmt: skip
        tuned = {"trials": len(trials), **best_of(trials).settings}
    forest = _Growing(fold.train, evaluator, experiment.sizes, writer.begin())
    for step in booster.grow(fold.train, fold.validation, seed, threads, forest.past):
        forest.add(step, evaluate=(len(forest.trees) + 1) % experiment.evaluate_every == 0)
        writer.quality = forest.quality
        writer.after_round(len(forest.trees), last, forest.parts)
    size, values = forest.best, np.concatenate([forest.per_query(), *forest.quality_by_size()])
    blank = [float("nan")] * (len(values) - len(experiment.measures))  # only the last row has values for fixed sizes
    measured = {number: [*each, *blank] for number, each in forest.values.items()} | {size: average(values).tolist()}
    for number in range(1, size + 1):
        writer.add(number, values=measured.get(number))
    if experiment.sizes:
        writer.update_facts(conventions=_of_sizes(experiment))
        baseline = replace(baseline, values=np.tile(baseline.values, (1 + len(experiment.sizes), 1)))
    write_atomic(writer.folder / "validation.csv", table(["tree", MEASURE], enumerate(forest.validation, start=1)))
    if forest.selected is not None:
        content = io.BytesIO()
        np.savez_compressed(content, **forest.selected.arrays())  # type: ignore[arg-type]
        write_atomic(writer.folder / "selected.npz", content.getvalue(), private=True)
    origin = writer.origin(fold.name)
    save_forest(make_forest(forest.trees[:size], fold.train, origin), writer.folder / "model.json")
    writer.report_progress(size, last)
    notes = _notes(fold, booster, forest)
    ids = evaluator.data.query_ids.tolist()
    card = forest_card(None)
    writer.finish(size, queries=(ids, values), baseline=baseline, card=card, notes=notes, asked=size, tuned=tuned)


class _Growing:
    """A growing forest, and its quality on the evaluation queries."""

    def __init__(
        self, train: RankingData, evaluator: Evaluator, sizes: Sequence[int], checkpoint: Mapping[str, Any] | None
    ) -> None:
        self.train, self.evaluator, self.sizes = train, evaluator, sizes
        self._quality_by_size: dict[int, NDArray[np.float64]] = {}  # size -> [measures, queries]
        self.trees: list[str] = []
        self.validation: list[float] = []  # [trees]: nDCG@10
        self.values: dict[int, list[float]] = {}  # size of the forest -> measures on the evaluation queries
        self.selected: Selected | None = None
        self._scores = np.zeros(evaluator.data.documents)
        self._best: tuple[float, NDArray[np.float64]] = (-np.inf, self._scores)
        if checkpoint is not None:
            self._resume(checkpoint)

    @property
    def past(self) -> BoosterState:
        return BoosterState(tuple(self.trees), tuple(self.validation))

    @property
    def best(self) -> int:
        """The best size on the validation queries."""
        return best_size(self.validation)

    @property
    def quality(self) -> float:
        """The last value of the first measure."""
        return self.values[max(self.values)][0] if self.values else float("nan")

    def per_query(self) -> NDArray[np.float64]:
        """[measures, queries] of the forest of the best size."""
        return self.evaluator.per_query_of_scores(self._best[1])

    def quality_by_size(self) -> Iterator[NDArray[np.float64]]:
        """[measures, queries] of the forest of each size; NaN if it did not grow that far."""
        unknown = np.full_like(self.per_query(), np.nan)
        return (self._quality_by_size.get(size, unknown) for size in self.sizes)

    def add(self, step: Step, evaluate: bool) -> None:
        """Add one tree."""
        number = len(self.trees) + 1
        if step.kept is not None:
            if self.selected is None:
                self.selected = Selected(np.zeros(self.train.documents, dtype=np.int32))
            self.selected.add(number, step.kept, self.train)
        step.grown.add(self.evaluator.data.features, self._scores)
        self._append(step.tree, step.validation)
        if evaluate:
            self.values[number] = average(self.evaluator.per_query_of_scores(self._scores)).tolist()

    def _append(self, tree: str, quality: float) -> None:
        self.trees.append(tree)
        self.validation.append(quality)
        if np.isnan(quality) or quality > self._best[0]:  # the final model may end here
            self._best = (quality, self._scores.copy())
        if len(self.trees) in self.sizes:
            self._quality_by_size[len(self.trees)] = self.evaluator.per_query_of_scores(self._scores)

    def parts(self) -> dict[str, Any]:
        """The complete state, for a checkpoint."""
        chosen = {} if self.selected is None else self.selected.arrays()
        grown = {"trees": self.trees, "validation": self.validation, "values": self.values}
        return {"grown": grown} | {f"selected.{name}": array for name, array in chosen.items()}

    def _resume(self, checkpoint: Mapping[str, Any]) -> None:
        chosen = {
            name.removeprefix("selected."): part for name, part in checkpoint.items() if name.startswith("selected.")
        }
        self.selected = Selected.of(chosen) if chosen else None
        grown = checkpoint["grown"]
        self.values = {int(size): values for size, values in grown["values"].items()}
        for tree, quality in zip(grown["trees"], grown["validation"], strict=True):
            Trees.read([tree]).add(self.evaluator.data.features, self._scores)
            self._append(tree, quality)


def _notes(fold: Fold, booster: Booster, forest: _Growing) -> list[str]:
    """Notes about the size of a forest."""
    grown, size, notes = len(forest.trees), forest.best, []
    if fold.validation is None:
        notes.append("no validation queries: the model ends at the last tree, not at the best one")
    if grown < booster.trees and not (isinstance(booster, Lambdamart) and booster.is_over(forest.validation)):
        notes.append(
            f"growth ended after {grown:,} of {booster.trees:,} trees, because the remaining documents could "
            "not be split; lower booster.min_data_in_leaf, or keep more documents"
        )
    if missing := [size for size in forest.sizes if size > grown]:
        notes.append(
            f"growth stopped after {grown:,} trees, so {missing[0]:,} trees cannot be evaluated; set "
            "booster.patience = 0"
        )
    if size < grown:
        notes.append(f"{grown:,} trees were grown; the first {size:,} rank the validation queries best")
    return notes


def _of_sizes(experiment: TreesExperiment) -> dict[str, str]:
    return {
        name: f"{measure} of the first {size} trees, whichever size the validation queries would choose"
        for size in experiment.sizes
        for measure, name in zip(experiment.measures, of_sizes(experiment.measures, [size]), strict=True)
    }

"""One run of an experiment of kind "trees": a concrete experiment goes in, a run folder comes out.

Without a split, one organisation grows one forest: a round is a tree, and row r of `rounds.csv` is the forest of the
first r trees, up to the size that the validation queries chose. With one, every client trains its own forest and they
merge: there is one round. A forest can be stopped at any moment; every few seconds `checkpoint.npz` is replaced by one
that holds all trees so far.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.data.ranking import RankingData
from fedrank.experiment.run import (
    SECONDS_BETWEEN_CHECKPOINTS,
    SECONDS_BETWEEN_NEWS,
    News,
    Task,
    load_fold,
    write_facts,
)
from fedrank.experiment.trees_spec import TreesExperiment
from fedrank.files import write_whole
from fedrank.rank.forest import planted, save_forest
from fedrank.rank.measures import Evaluator, average
from fedrank.rank.selection import Selected
from fedrank.rank.trees import MEASURE, Lambdamart, Past, Step, best_size
from fedrank.rank.tuning import tune

CONVENTIONS = {
    "rounds": "row r is the forest of the first r trees; the last row is the model, of the size that ranks the "
    "validation queries best",
    "final": "the last evaluation, which is that of the model",
    "ties": "equal scores are ordered by a fixed shuffle of positions, which favours no order of the file",
    "stopping": f"by {MEASURE} of the validation queries under fedrank's convention: those without a relevant document "
    "do not count, where LightGBM counts them as 1",
}

Tell = Callable[[News], None]
Stop = Callable[[], bool]


def perform_trees(task: Task, facts: dict[str, Any], threads: int, tell: Tell, stop: Stop) -> str:
    """Train, evaluate and save; returns the status: finished or interrupted."""
    asked = task.experiment
    assert isinstance(asked, TreesExperiment)
    # Trees read raw features as well as scaled ones, and raw ones are what a search engine has.
    fold = load_fold(replace(asked.data, normalise=asked.data.normalise or "none"), task.fold)
    facts["conventions"] |= CONVENTIONS | {"engine": _engine()}
    facts |= {"data": _described(fold), "notes": list(fold.notes), "engine": _engine(), "behind_final": 1}
    write_facts(task.folder, facts | {"status": "running"})
    if asked.data.evaluate_on == "validation" and fold.validation is None:
        raise ValueError(f"{fold.name} has no validation queries to tune on; name a file as data.validation")
    if asked.splitting is not None:
        from fedrank.experiment.merge_run import perform_merge

        return perform_merge(task, facts, fold, threads, tell, stop)
    return _perform_forest(task, asked, facts, fold, threads, tell, stop)


def _perform_forest(
    task: Task, asked: TreesExperiment, facts: dict[str, Any], fold: Fold, threads: int, tell: Tell, stop: Stop
) -> str:
    clock = _Clock(tell, asked.built.trees)
    booster = asked.built
    if fold.validation is None:
        facts["notes"].append("no validation queries: it stops at the last tree, not at the best one")
    if asked.tune:
        if not isinstance(booster, Lambdamart):
            raise ValueError("tune: only fedrank's own boosters have settings that Optuna knows; set tune = 0")
        if fold.validation is None:
            raise ValueError(f"{fold.name} has no validation queries to tune on; name a file as data.validation")
        tuned = tune(
            booster, fold.train, fold.validation, asked.tune, task.folder / "study.db", task.seed, threads,
            lambda done, best: clock.say(0, best.quality), stop,
        )  # fmt: skip
        if tuned is None:
            write_facts(task.folder, facts | {"status": "interrupted", "round": 0})
            return "interrupted"
        booster, trials = tuned
        facts["tuned"] = {"trials": len(trials), **max(trials, key=lambda trial: trial.quality).settings}

    judged = fold.test if asked.data.evaluate_on == "test" else fold.validation
    assert judged is not None
    record = Record(task.folder, Evaluator(judged, asked.measures), asked.measures, fold.train)
    record.resume()
    clock.start(len(record.trees))
    for step in booster.grow(fold.train, fold.validation, task.seed, threads, record.past):
        record.add(step, len(record.trees) + 1, asked.evaluate_every)
        if clock.is_time():
            clock.say(len(record.trees), record.quality)
            if stop():
                record.keep()
                write_facts(task.folder, facts | {"status": "interrupted", "round": len(record.trees)})
                return "interrupted"
            record.keep_if_due()
    record.finish(task, fold)
    size = record.best
    if len(record.trees) < booster.trees and not (
        isinstance(booster, Lambdamart) and booster.is_over(record.validation)
    ):
        facts["notes"].append(
            f"it ended after {len(record.trees):,} of {booster.trees:,} trees, because the documents that were left to "
            "it could not be split; lower booster.min_data_in_leaf or keep more of them"
        )
    if size < len(record.trees):
        facts["notes"].append(
            f"{len(record.trees):,} trees were grown; the first {size:,} rank the validation queries best"
        )
    clock.say(size, record.quality)
    write_facts(task.folder, facts | {"status": "finished", "round": size, "rounds": size})
    (task.folder / "checkpoint.npz").unlink(missing_ok=True)
    return "finished"


@dataclass
class Record:
    """What a growing forest leaves on disk, and how it goes on from there."""

    folder: Path
    evaluator: Evaluator
    measures: list[str]
    train: RankingData
    trees: list[str] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)  # [trees]: nDCG@10
    values: dict[int, list[float]] = field(default_factory=dict)  # size of the forest -> measures on the judged queries
    selected: Selected | None = None
    seconds: float = 0.0  # spent by processes before this one
    cpu_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._scores = np.zeros(self.evaluator.data.documents)
        self._best: tuple[float, NDArray[np.float64]] = (-np.inf, self._scores)
        self._kept, self._pause = time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
        self._clock, self._cpu = time.monotonic(), time.process_time()

    @property
    def past(self) -> Past:
        return Past(tuple(self.trees), tuple(self.validation))

    @property
    def best(self) -> int:
        """The size that the validation queries choose."""
        return best_size(self.validation)

    @property
    def quality(self) -> float:
        """The last value of the first measure."""
        return self.values[max(self.values)][0] if self.values else float("nan")

    def resume(self) -> None:
        """Take up what a checkpoint holds."""
        from fedrank.rank.boosting import Tree

        kept = _read_checkpoint(self.folder)
        for name in ("rounds.csv", "validation.csv", "timing.csv", "queries.csv", "model.json", "selected.npz"):
            (self.folder / name).unlink(missing_ok=True)
        if kept is None:
            return
        told = json.loads(str(kept["told"]))
        self.seconds, self.cpu_seconds = told["seconds"], told["cpu_seconds"]
        if "counts" in kept:
            self.selected = Selected.of(kept)
        self.values = {int(size): values for size, values in told["values"].items()}
        for tree, quality in zip(told["trees"], told["validation"], strict=True):
            Tree.read(tree).add(self.evaluator.data, self._scores)
            self._append(tree, quality)

    def add(self, step: Step, number: int, every: int) -> None:
        """One more tree, evaluated if it is its turn or the best so far."""
        if step.kept is not None:
            if self.selected is None:
                self.selected = Selected(np.zeros(self.train.documents, dtype=np.int32))
            self.selected.add(number, step.kept, self.train)
        step.grown.add(self.evaluator.data, self._scores)
        self._append(step.tree, step.validation)
        if number % every == 0:
            self.values[number] = average(self.evaluator.per_query_of_scores(self._scores)).tolist()

    def _append(self, tree: str, quality: float) -> None:
        self.trees.append(tree)
        self.validation.append(quality)
        if np.isnan(quality) or quality > self._best[0]:  # the model may turn out to end here
            self._best = (quality, self._scores.copy())

    def keep_if_due(self) -> None:
        if time.monotonic() - self._kept >= self._pause:
            self.keep()

    def keep(self) -> None:
        """Make everything so far durable."""
        began = time.monotonic()
        told = {
            "trees": self.trees,
            "validation": self.validation,
            "values": self.values,
            "seconds": self.seconds + began - self._clock,
            "cpu_seconds": self.cpu_seconds + time.process_time() - self._cpu,
        }
        content = io.BytesIO()
        arrays = {} if self.selected is None else self.selected.arrays()
        np.savez(content, round=len(self.trees), told=json.dumps(told), **arrays)  # type: ignore[arg-type]
        write_whole(self.folder / "checkpoint.npz", content.getvalue())
        self._kept = time.monotonic()
        self._pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (self._kept - began))

    def finish(self, task: Task, fold: Fold) -> None:
        """Write the model and everything about it."""
        size, (_, scores) = self.best, self._best
        values = self.evaluator.per_query_of_scores(scores)
        self.values = {number: row for number, row in self.values.items() if number < size}
        self.values[size] = average(values).tolist()
        write_whole(self.folder / "rounds.csv", self._rounds(size))
        rows = [(number, "" if np.isnan(one) else repr(one)) for number, one in enumerate(self.validation, start=1)]
        write_whole(self.folder / "validation.csv", table(["tree", MEASURE], rows))
        queries = zip(self.evaluator.data.query_ids, values.T, strict=True)
        write_whole(
            self.folder / "queries.csv",
            table(["query", *self.measures], [(query, *map(cell, column)) for query, column in queries]),
        )
        seconds, cpu = time.monotonic() - self._clock, time.process_time() - self._cpu
        timing = (len(self.trees), f"{self.seconds + seconds:.3f}", f"{self.cpu_seconds + cpu:.3f}")
        write_whole(self.folder / "timing.csv", table(["round", "seconds", "cpu_seconds"], [timing]))
        if self.selected is not None:
            content = io.BytesIO()
            np.savez_compressed(content, **self.selected.arrays())  # type: ignore[arg-type]
            write_whole(self.folder / "selected.npz", content.getvalue())
        save_forest(planted(self.trees[:size], fold.train, origin_of(task, fold)), self.folder / "model.json")

    def _rounds(self, size: int) -> str:
        nothing = [""] * len(self.measures)
        rows = [
            (number, "", 0, 0, 0, *(map(cell, self.values[number]) if number in self.values else nothing))
            for number in range(1, size + 1)
        ]
        return table(["round", "online", "interactions", "bytes_up", "bytes_down", *self.measures], rows)


class _Clock:
    """Tells how far a run has come, but not too often."""

    def __init__(self, tell: Tell, last: int) -> None:
        self.tell, self.last, self.began, self.first, self.told = tell, last, time.monotonic(), 0, 0.0

    def start(self, first: int) -> None:
        self.began, self.first = time.monotonic(), first

    def is_time(self) -> bool:
        return time.monotonic() - self.told >= SECONDS_BETWEEN_NEWS

    def say(self, number: int, quality: float) -> None:
        self.told = time.monotonic()
        passed, done = self.told - self.began, number - self.first
        left = passed / done * (self.last - number) if done > 0 else 0.0
        self.tell(News(number, self.last, quality, 0, passed, left))


def _read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """None where there is none, or one that cannot be read: then the run begins again."""
    try:
        with np.load(folder / "checkpoint.npz", allow_pickle=False) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, BadZipFile):
        return None


def origin_of(task: Task, fold: Fold) -> dict[str, Any]:
    """What a model says of the run that it comes from; by it, `fedrank score` finds the test queries of its fold."""
    return {"experiment": task.name, "variant": task.variant, "fold": task.fold, "seed": task.seed, "data": fold.name}


def _described(fold: Fold) -> dict[str, Any]:
    return {
        "name": fold.name,
        "train_queries": fold.train.queries,
        "test_queries": fold.test.queries,
        "features": fold.train.features.shape[1],
        "normalised": fold.train.normalised,
        "top_grade": fold.train.top_grade,
    }


def _engine() -> str:
    """What grows the trees: figures of other engines are not comparable."""
    from fedrank.rank.forest import lightgbm

    return (
        f"LightGBM {lightgbm().__version__}, objective lambdarank: splits and leaf values by gradients and hessians; "
        "another version or processor may grow slightly different trees"
    )


def cell(value: float) -> str:
    """A number in a CSV file; empty where there is none."""
    return "" if np.isnan(value) else repr(float(value))


def table(header: list[str], rows: Sequence[Sequence[Any]]) -> str:
    """A CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()

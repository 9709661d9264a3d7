"""One run in which several clients train forests apart and merge them: local models go in, merged ones come out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedrank.data.catalog import Fold
from fedrank.experiment.run import News, Task, write_facts
from fedrank.experiment.trees_run import cell, origin_of, table
from fedrank.experiment.trees_spec import TreesExperiment
from fedrank.federate.forests import Merging, train_and_merge
from fedrank.files import write_whole
from fedrank.rank.measures import average
from fedrank.rank.merged import save_any, with_notes
from fedrank.rank.trees import Booster
from fedrank.rank.tuning import Tuned


class _Stopped(Exception):
    """Somebody asked for it between two steps."""


def perform_merge(
    task: Task,
    facts: dict[str, Any],
    fold: Fold,
    threads: int,
    tell: Callable[[News], None],
    stop: Callable[[], bool],
) -> str:
    """Split, train, merge, measure and save; an interrupted run begins again. Returns the status."""
    asked = task.experiment
    assert isinstance(asked, TreesExperiment)
    assert asked.splitting is not None
    assert asked.merging is not None
    began, cpu = time.monotonic(), time.process_time()
    facts["conventions"] |= {
        "rounds": "one round: clients train their models and merge them; values are those of the merged models, mean "
        "over clients",
        "final": "the only evaluation",
    }

    def check() -> bool:
        if stop():
            raise _Stopped
        return False

    def say(quality: float) -> None:
        tell(News(0, 1, quality, 0, time.monotonic() - began, 0.0))

    def between(step: str) -> None:
        check()
        say(float("nan"))

    booster: Booster = asked.built
    if asked.tune:
        booster = Tuned(booster, asked.tune, task.folder, lambda done, best: say(best.quality), check)
    try:
        outcome = train_and_merge(
            fold, asked.splitting, booster, asked.merging, asked.measures, task.seed, threads, between
        )
    except _Stopped:
        write_facts(task.folder, facts | {"status": "interrupted", "round": 0})
        return "interrupted"

    per_query = average(np.moveaxis(outcome.after, 1, -1))  # [measures, queries]: mean over clients
    row = [1, "", 0, 0, 0, *map(cell, average(per_query))]
    write_whole(
        task.folder / "rounds.csv",
        table(["round", "online", "interactions", "bytes_up", "bytes_down", *asked.measures], [row]),
    )
    queries = zip(fold.test.query_ids, per_query.T, strict=True)
    write_whole(
        task.folder / "queries.csv",
        table(["query", *asked.measures], [[query, *map(cell, column)] for query, column in queries]),
    )
    write_whole(task.folder / "clients.csv", _clients(outcome))
    timing = [1, f"{time.monotonic() - began:.3f}", f"{time.process_time() - cpu:.3f}"]
    write_whole(task.folder / "timing.csv", table(["round", "seconds", "cpu_seconds"], [timing]))
    _save(task, fold, outcome)
    tell(News(1, 1, float(average(per_query)[0]), 0, time.monotonic() - began, 0.0))
    if isinstance(booster, Tuned):
        facts["tuned"] = [{"trials": asked.tune, **best.settings} for best in booster.best]
    write_facts(task.folder, facts | {"status": "finished", "round": 1, "rounds": 1})
    return "finished"


def _clients(outcome: Merging) -> str:
    columns = outcome.by_client()
    rows = [
        [share.name, share.train.queries, 0, *(cell(values[client]) for values in columns.values())]
        for client, share in enumerate(outcome.shares)
    ]
    return table(["client", "queries", "interactions", *columns], rows)


def _save(task: Task, fold: Fold, outcome: Merging) -> None:
    """`model.json` where all clients have the same model; otherwise one folder for each, and every local model."""
    origin = origin_of(task, fold)
    if len({id(model) for model in outcome.merged}) == 1:
        save_any(with_notes(outcome.merged[0], origin), task.folder / "model.json")
    for number, (local, merged) in enumerate(zip(outcome.local, outcome.merged, strict=True), start=1):
        for kind, model in (("local", local), ("merged", merged)):
            folder = task.folder / "clients" / str(number) / kind
            folder.mkdir(parents=True, exist_ok=True)
            save_any(with_notes(model, origin), folder / "model.json")

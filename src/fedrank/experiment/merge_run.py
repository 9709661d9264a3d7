"""One run in which several clients train forests apart and merge them: local models go in, merged ones come out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from fedrank.data.catalog import Fold
from fedrank.experiment.run import News, Task, write_facts, write_whole
from fedrank.experiment.trees_run import cell, table
from fedrank.experiment.trees_spec import TreesExperiment
from fedrank.federate.forests import Merging, train_and_merge
from fedrank.rank.measures import average
from fedrank.rank.merged import save_any


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
    judged = (
        fold if asked.data.evaluate_on == "test" or fold.validation is None else replace(fold, test=fold.validation)
    )

    def between(step: str) -> None:
        if stop():
            raise _Stopped
        tell(News(0, 1, float("nan"), 0, time.monotonic() - began, 0.0))

    try:
        outcome = train_and_merge(
            judged, asked.splitting, asked.built, asked.merging, asked.measures, task.seed, threads, between
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
    queries = zip(judged.test.query_ids, per_query.T, strict=True)
    write_whole(
        task.folder / "queries.csv",
        table(["query", *asked.measures], [[query, *map(cell, column)] for query, column in queries]),
    )
    write_whole(task.folder / "clients.csv", _clients(outcome))
    timing = [1, f"{time.monotonic() - began:.3f}", f"{time.process_time() - cpu:.3f}"]
    write_whole(task.folder / "timing.csv", table(["round", "seconds", "cpu_seconds"], [timing]))
    _save(task, outcome)
    tell(News(1, 1, float(average(per_query)[0]), 0, time.monotonic() - began, 0.0))
    write_facts(task.folder, facts | {"status": "finished", "round": 1, "rounds": 1})
    return "finished"


def _clients(outcome: Merging) -> str:
    columns = outcome.by_client()
    rows = [
        [share.name, share.train.queries, 0, *(cell(values[client]) for values in columns.values())]
        for client, share in enumerate(outcome.shares)
    ]
    return table(["client", "queries", "interactions", *columns], rows)


def _save(task: Task, outcome: Merging) -> None:
    """`model.json` where all clients have the same model; otherwise one folder for each, and every local model."""
    if len({id(model) for model in outcome.merged}) == 1:
        save_any(outcome.merged[0], task.folder / "model.json")
    for number, (local, merged) in enumerate(zip(outcome.local, outcome.merged, strict=True), start=1):
        for kind, model in (("local", local), ("merged", merged)):
            folder = task.folder / "clients" / str(number) / kind
            folder.mkdir(parents=True, exist_ok=True)
            save_any(model, folder / "model.json")

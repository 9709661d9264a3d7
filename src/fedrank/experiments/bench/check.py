"""Checks the folder of a submission byte by byte before it counts. Code in it is never executed.

A folder is compared with the task files of this installation: data, seeds, specs and rows. Rows that were invented
consistently can only be found by a rerun, which is what `bench run --verify` is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrank.experiments.bench.run import (
    MANIFEST,
    VERIFIED,
    cell_of,
    measured_runs,
    recorded_files,
    run_folders,
)
from fedrank.experiments.bench.submission import Submission, read_submission
from fedrank.experiments.bench.tasks import (
    GENERATED,
    LEAVING,
    UNLEARNED,
    VERSION,
    cells_of,
    check_data,
    data_of,
    tasks_digest,
)
from fedrank.experiments.report.run_values import VariantRuns, read_run
from fedrank.experiments.runner.folder import read_json
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.spec.experiment import to_tables
from fedrank.experiments.spec.families import build, describe
from fedrank.files import error_message
from fedrank.unlearning.methods import Unlearner
from fedrank.value_checks import checked

Cell = tuple[str, str]  # task, cell
_MANIFEST = {
    "bench": str, "short": bool, "tasks": str, "submission": str,
    "cells": dict[str, tuple[str, ...]], "data": dict[str, str], "files": dict[str, str],
}  # fmt: skip


@dataclass(frozen=True)
class CheckedSubmission:
    """A submission whose folder passed all checks."""

    submission: Submission
    folder: Path
    short: bool
    rows: dict[Cell, VariantRuns]
    nothing: dict[Cell, VariantRuns]  # the same queries without the submission
    epsilon: dict[Cell, float]  # of private cells: the largest ε that was spent
    overfitted: tuple[str, ...] | None  # cells that derived seeds do not confirm; None: not verified

    @property
    def name(self) -> str:
        return self.submission.name

    @property
    def cpu_seconds(self) -> float:
        return sum(run.costs.get("cpu_seconds", 0.0) for row in self.rows.values() for run in row.repeats.values())


def check_folder(folder: Path) -> CheckedSubmission:
    """The submission of a folder; a ValueError names it and what is wrong."""
    try:
        return _checked(folder)
    except Exception as problem:  # a folder may contain anything, and the other submissions must stay
        text = error_message(problem)
        raise ValueError(text if text.startswith(f"{folder.name}: ") else f"{folder.name}: {text}") from None


def _checked(folder: Path) -> CheckedSubmission:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} does not exist; give the folder of results that `fedrank bench run` printed")
    if not (folder / MANIFEST).is_file():
        raise ValueError(
            f"it is not complete ({MANIFEST} is missing); run `fedrank bench run` on the submission to the end"
        )
    content = read_json(folder / MANIFEST)
    manifest = {key: checked(hint, content[key], f"{MANIFEST}: {key}") for key, hint in _MANIFEST.items()}
    if (manifest["bench"], manifest["tasks"]) != (VERSION, tasks_digest()):
        raise ValueError(f"it was run with other tasks (version {manifest['bench']}); this is FOLTR-Bench {VERSION}")
    submission = read_submission(folder)
    if submission.name != folder.name:
        raise ValueError(f"the submission is called {submission.name!r}; its folder must have the same name")
    if submission.digest != manifest["submission"]:
        raise ValueError(f"changed submission: {submission.file} is not the file that was run")
    short = manifest["short"]
    _check_cells(submission, manifest["cells"], short)
    _check_data(submission, manifest["cells"], manifest["data"], short)
    _check_runs(submission, folder, manifest["cells"], short)
    _check_files(folder, submission, manifest["files"])
    return _entry(submission, folder, short)


def _check_cells(submission: Submission, cells: Mapping[str, tuple[str, ...]], short: bool) -> None:
    """All generated cells must be there; those of another data set may be missing in all tasks."""
    if sorted(cells) != sorted(submission.tasks):
        raise ValueError(f"missing rows: it enters {', '.join(submission.tasks)}, but has {', '.join(cells) or 'none'}")
    for task, found in cells.items():
        for cell in cells_of(task, short):
            data = data_of(cell)[0]
            others = [one for some in cells.values() for one in some if data_of(one)[0] == data]
            if cell not in found and (data == GENERATED or others):
                raise ValueError(f"missing rows: {task}/{cell} was not run")
        if unknown := [cell for cell in found if cell not in cells_of(task, short)]:
            raise ValueError(f"{task} has no cell {unknown[0]!r}")


def _check_data(
    submission: Submission, cells: Mapping[str, tuple[str, ...]], digests: Mapping[str, str], short: bool
) -> None:
    check_data(digests)
    for task in submission.tasks:
        for variant in submission.grid(task, list(cells[task]), short, full_check=False).variants:
            data = variant.experiment.data
            if missing := [fold for fold in data.folds if f"{data.name}/{fold}" not in digests]:
                raise ValueError(f"changed data: {MANIFEST} does not record {data.name}, fold {missing[0]}")


def _check_runs(submission: Submission, folder: Path, cells: Mapping[str, tuple[str, ...]], short: bool) -> None:
    expected: dict[str, Any] = {}
    for task in submission.tasks:
        grid = submission.grid(task, list(cells[task]), short, full_check=False)
        for variant in grid.variants:
            for fold, seed in grid.repeats():
                path = f"{task}/{variant.name}/fold-{fold}-seed-{seed}"
                expected[path] = to_tables(variant.experiment.single(fold, seed))
    found = {str(path.relative_to(folder)) for path in run_folders(folder, submission.tasks)}
    trained = {path for path in found if not path.startswith(f"{UNLEARNED}/")}
    if other := sorted(trained - set(expected)):
        raise ValueError(f"other seeds: {other[0]} is not a repeat of the task")
    if missing := sorted(set(expected) - trained):
        raise ValueError(f"missing rows: {missing[0]} was not run")
    for path, tables in expected.items():
        [run] = load_runs(folder / path)
        _check_run(run, path, tables)
    if "unlearning" in submission.tasks:
        repeats = {path.partition("/")[2] for path in expected if path.startswith("unlearning/")}
        runs = list(load_runs(folder / UNLEARNED)) if (folder / UNLEARNED).is_dir() else []
        if lost := sorted(repeats - {f"{cell_of(run)}/{run.path.name}" for run in runs}):
            raise ValueError(f"missing rows: {UNLEARNED}/{lost[0]} was not run")
        for run in runs:
            method = describe(
                build(Unlearner, submission.parts("unlearning", cell_of(run))["unlearner"], "unlearner", False)
            )
            done = run.unlearned or {}
            if run.status != "finished" or done.get("clients") != [LEAVING] or not _same(method, done.get("method")):
                raise ValueError(f"other settings: {run.path.relative_to(folder)} is not what the task asks for")


def _check_run(run: Run, path: str, tables: Mapping[str, Any]) -> None:
    run = run.checked()
    if run.status != "finished":
        raise ValueError(f"missing rows: {path} is {run.status} ({run.reason})")
    recorded = to_tables(run.spec)
    if not _same(tables, recorded):
        keys = [key for key in sorted({*tables, *recorded}) if not _same(tables.get(key), recorded.get(key))]
        raise ValueError(f"other settings: {path} differs from the task in {', '.join(keys)}")
    rounds = run.rounds["round"]
    if len(rounds) != run.round or (run.round != tables["rounds"] and "budget" not in tables.get("privacy", {})):
        raise ValueError(f"missing rows: {path}/rounds.csv has {len(rounds):,} of {tables['rounds']:,} rounds")
    if len(run.queries[0]) != run.data.get("test_queries"):
        raise ValueError(f"missing rows: {path}/queries.csv has {len(run.queries[0]):,} queries")


def _same(expected: Any, recorded: Any) -> bool:
    """Whether two tables are equal; a class of the submission may record more settings than were given."""
    if not (isinstance(expected, dict) and isinstance(recorded, dict)):
        return bool(expected == recorded)
    keys = expected if ":" in str(expected.get("name", "")) else {*expected, *recorded}
    return all(_same(expected.get(key), recorded.get(key)) for key in keys)


def _check_files(folder: Path, submission: Submission, recorded: Mapping[str, str]) -> None:
    now = recorded_files(folder, submission.tasks)
    if changed := sorted(name for name in {*now, *recorded} if now.get(name) != recorded.get(name)):
        raise ValueError(f"changed rows: {changed[0]} is not the file that the run wrote")


def _entry(submission: Submission, folder: Path, short: bool) -> CheckedSubmission:
    rows: dict[Cell, VariantRuns] = {}
    nothing: dict[Cell, VariantRuns] = {}
    epsilon: dict[Cell, float] = {}
    for task in submission.tasks:
        for cell, runs in _by_cell(list(measured_runs(folder, task).finished)).items():
            key = task, cell
            values = {run.repeat: read_run(run, {}) for run in runs}
            rows[key] = VariantRuns(submission.name, submission.name, {}, dict(sorted(values.items())))
            without = {repeat: one.without_model for repeat, one in values.items()}
            if task == "unlearning":  # doing nothing is to keep the model
                parents = load_runs(folder / task / cell)
                without = {run.repeat: read_run(run, {}) for run in parents.finished}
            nothing[key] = VariantRuns("nothing", "do nothing", {}, dict(sorted(without.items())))
            if task == "private":
                epsilon[key] = _spent(runs, float(cell.rpartition("-")[2]), f"{task}/{cell}")
    verified = read_json(folder / VERIFIED) if (folder / VERIFIED).is_file() else {}
    overfitted = None
    if verified.get("submission") == submission.digest:
        overfitted = checked(tuple[str, ...], verified.get("overfitted"), f"{VERIFIED}: overfitted")
    return CheckedSubmission(submission, folder, short, rows, nothing, epsilon, overfitted)


def _by_cell(runs: list[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(cell_of(run), []).append(run)
    return found


def _spent(runs: list[Run], limit: float, where: str) -> float:
    """The largest ε of a person against the server; more than the task permits is refused."""
    spent = 0.0
    for run in runs:
        promises = [] if run.card is None else [row for row in run.card.promises if row.unit == "person"]
        if not promises or any(row.epsilon is None or row.delta > 1e-5 for row in promises):
            raise ValueError(f"{where}: a run does not protect each person against every observer at δ = 1e-5")
        spent = max(spent, *(row.epsilon or 0.0 for row in promises))
    if spent > limit:
        raise ValueError(f"{where}: ε = {spent:.3f} was spent, more than {limit:g}")
    return spent

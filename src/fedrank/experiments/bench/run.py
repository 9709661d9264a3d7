"""Runs a submission: its tasks with public seeds, and its verification with seeds that its author could not choose.

The code of a Python submission runs in a separate process with limits on time and memory, and is imported only there.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedrank.experiments.bench.confine import LONGEST, adopt_orphans, confine, received
from fedrank.experiments.bench.submission import Submission
from fedrank.experiments.bench.tasks import (
    GENERATED,
    LEAVING,
    UNLEARNED,
    VERSION,
    cells_of,
    check_data,
    data_digests,
    data_of,
    task_grid,
    tasks_digest,
)
from fedrank.experiments.report.statistics import t_quantile
from fedrank.experiments.runner.cards import sha256
from fedrank.experiments.runner.folder import read_json
from fedrank.experiments.runner.runs import Run, Runs, load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.spec.families import build
from fedrank.files import error_message, read_bytes, write_atomic
from fedrank.kernels.compile import COMPILED_IN
from fedrank.progress import quiet
from fedrank.unlearning.methods import Unlearner

MANIFEST, VERIFIED, VERIFY = "bench.json", "verified.json", "verify"  # VERIFY: folder of the runs with derived seeds
FILES = ("spec.toml", "rounds.csv", "queries.csv", "nothing.csv", "privacy.json")  # of a run, whose bytes are recorded
RARE = 0.00135  # probability that public seeds are better than derived ones by as much as is refused: 3 standard errors

Told = Callable[[str], None]


class Interrupted(Exception):
    """The user asked to stop; the same command resumes."""


def submission_folder(submission: Submission, out: Path, short: bool) -> Path:
    return out / (f"short-{VERSION}" if short else f"bench-{VERSION}") / submission.name


def run_submission(
    submission: Submission,
    out: Path,
    *,
    short: bool = False,
    verify: bool = False,
    workers: int = 1,
    minutes: float = 60.0,  # limit of a Python submission for each task
    progress: Callable[[], Any] | None = None,  # a context manager that gives a Progress; picklable
    tell: Told = lambda line: None,
) -> Path:
    """Run a submission in the tasks that it enters; returns its folder. Finished runs are skipped."""
    folder = submission_folder(submission, out, short)
    stored = folder / submission.file
    if stored.exists() and read_bytes(stored) != submission.text.encode():
        raise FileExistsError(
            f"{folder} contains another submission with the name {submission.name!r}, which is not overwritten; rename "
            "this one, or delete that folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(stored, submission.text)
    cells = {task: _cells_here(task, short, tell) for task in submission.tasks}
    same = {"bench": VERSION, "short": short, "tasks": tasks_digest(), "submission": submission.digest, "cells": cells}
    if not verify and (folder / MANIFEST).is_file():
        before = read_json(folder / MANIFEST)
        if {key: before.get(key) for key in same} == same:
            return folder
    if verify and not (folder / MANIFEST).is_file():
        raise ValueError(f"{submission.name}: run it with the public seeds first, without --verify")
    digests = data_digests(submission.grid(task, cells[task], short, full_check=False) for task in submission.tasks)
    check_data(digests)
    with TemporaryDirectory(ignore_cleanup_errors=True) as place:
        private, bounded = Path(place).resolve(), submission.suffix == ".py"
        if bounded and Path(COMPILED_IN).is_dir():  # a copy, since code could change what other processes load
            shutil.copytree(COMPILED_IN, private / "compiled")
        for task in submission.tasks:
            tell(f"{submission.name}: {task}: {', '.join(cells[task])}")
            work = (submission, folder, task, cells[task], short, verify, workers, progress)
            if bounded:
                _bounded(work, minutes, private, tell)
            else:
                _work(*work)
    if verify:
        write_atomic(folder / VERIFIED, json.dumps(verification(submission, folder), indent=1) + "\n")
        return folder
    manifest = same | {"data": digests, "files": recorded_files(folder, submission.tasks)}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return folder


def _cells_here(task: str, short: bool, tell: Told) -> list[str]:
    """The cells whose data are available on this machine; generated data always are."""
    found = []
    for cell in cells_of(task, short):
        if data_of(cell)[0] != GENERATED:
            try:
                task_grid(task, {cell: {}}, short).variants[0].experiment.data.require()
            except (OSError, ValueError):
                tell(f"{task}/{cell} is left out: {data_of(cell)[0]} is not below FEDRANK_DATA")
                continue
        found.append(cell)
    return found


def _work(
    submission: Submission,
    folder: Path,
    task: str,
    cells: list[str],
    short: bool,
    verify: bool,
    workers: int,
    progress: Callable[[], Any] | None,
) -> None:
    """Run one task; the code of a submission is imported here."""
    if submission.suffix == ".py":
        sys.path.insert(0, str(folder.resolve()))
    public = submission.grid(task, cells, short)
    grid = submission.grid(task, cells, short, submission.seeds(len(public.base.seeds))) if verify else public
    out = folder / VERIFY if verify else folder
    with progress() if progress else nullcontext(quiet) as show:
        results = run_experiment(grid, task, out, workers=workers, progress=show)
        if results.interrupted:
            raise Interrupted
        if results.failed:
            failed, reason = results.failed[0]
            raise ValueError(
                f"{submission.name}: {task}: {len(results.failed)} runs failed; first {failed.label}: {reason}"
            )
        for cell in cells if task == "unlearning" else ():
            unlearner = build(Unlearner, submission.parts(task, cell)["unlearner"], "unlearner")
            unlearn_runs([out / task / cell], [LEAVING], unlearner, out, UNLEARNED, trust=True, progress=show)


def _bounded(work: tuple[Any, ...], minutes: float, private: Path, tell: Told) -> None:
    """Do the work in a process with limits; it may write in the folder of the submission and in `private` only."""
    submission, folder, task = work[:3]
    context, others = multiprocessing.get_context("spawn"), adopt_orphans()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(theirs, work, [folder.resolve(), private]))
    with _environment(FEDRANK_CACHE=private, NUMBA_CACHE_DIR=private / "compiled", TMPDIR=private):
        process.start()
    theirs.close()
    where = f"{submission.name}: {task}"
    try:
        message = received(process, ours, minutes * 60, where, others)
    except KeyboardInterrupt:
        raise Interrupted from None
    kind, _, text = message.decode(errors="replace").partition(" ")
    if kind == "stopped":
        raise Interrupted
    if kind != "done":
        reason = text if kind == "failed" else "its process sent an invalid message"
        raise ValueError(reason if reason.startswith(f"{submission.name}: ") else f"{where}: {reason}")
    if text:
        tell(f"{where}: {text}")


@contextmanager
def _environment(**changes: Path) -> Iterator[None]:
    """Change environment variables for a process that starts now."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update({name: str(value) for name, value in changes.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _child(pipe: Connection, work: tuple[Any, ...], folders: list[Path]) -> None:
    confined = confine(folders)
    try:
        _work(*work)
        message = "done" + " its writes could not be limited on this system" * (not confined)
    except (Interrupted, KeyboardInterrupt):
        message = "stopped"
    except BaseException as problem:  # code of a submission may raise anything
        message = f"failed {error_message(problem) or type(problem).__name__}"
    pipe.send_bytes(message.encode(errors="replace")[:LONGEST])


def measured_runs(folder: Path, task: str) -> Runs:
    """The runs that count in a task; in "unlearning" those whose client was forgotten."""
    return load_runs(folder / (UNLEARNED if task == "unlearning" else task))


def cell_of(run: Run) -> str:
    """The cell of a run; an unlearned one names its method after it."""
    return run.variant.partition(",")[0]


def run_folders(folder: Path, tasks: Iterable[str]) -> Iterator[Path]:
    """All run folders of the tasks, with those of unlearning."""
    for task in tasks:
        for name in (task, UNLEARNED) if task == "unlearning" else (task,):
            if (folder / name).is_dir():
                yield from sorted(path for path in (folder / name).glob("*/fold-*-seed-*") if path.is_dir())


def recorded_files(folder: Path, tasks: Iterable[str]) -> dict[str, str]:
    """SHA-256 of the files of every run that a result depends on."""
    return {
        str(run.relative_to(folder) / name): sha256(run / name)
        for run in run_folders(folder, tasks)
        for name in FILES
        if (run / name).is_file()
    }


def verification(submission: Submission, folder: Path) -> dict[str, Any]:
    """Public against derived seeds, by cell: means, and their difference in standard errors between seeds."""
    cells: dict[str, Any] = {}
    for task in submission.tasks:
        sides = [measured_runs(place, task).finished for place in (folder, folder / VERIFY)]
        for cell in dict.fromkeys(map(cell_of, sides[1])):
            measure = next(run.measures[0] for run in sides[1] if cell_of(run) == cell)
            values = [{run.repeat: run.final_value(measure) for run in side if cell_of(run) == cell} for side in sides]
            cells[f"{task}/{cell}"] = _against(*values)
    larger = [cell for cell, row in cells.items() if row["difference"] > row["limit"] > 0]
    return {"submission": submission.digest, "cells": cells, "overfitted": larger}


def _against(public: dict[tuple[int, int], float], derived: dict[tuple[int, int], float]) -> dict[str, float]:
    means, errors, freedom = [], [], 0
    for values in (public, derived):
        folds = [[value for (fold, _), value in values.items() if fold == one] for one in {fold for fold, _ in values}]
        means.append(float(np.mean([np.mean(fold) for fold in folds])))
        spread = [float(np.var(fold, ddof=1)) / len(fold) for fold in folds if len(fold) > 1]
        errors.append(sum(spread) / max(1, len(folds)) ** 2)
        freedom += sum(len(fold) - 1 for fold in folds)
    limit = t_quantile(1 - RARE, max(freedom, 1)) * math.sqrt(sum(errors))
    return {"public": means[0], "derived": means[1], "difference": means[0] - means[1], "limit": limit}

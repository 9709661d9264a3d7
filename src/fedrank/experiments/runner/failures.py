"""Failed runs: the record in their folders, and summaries of many that failed for the same reason."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.experiment import Experiment, to_tables
from fedrank.federated.server import RoundError
from fedrank.files import error_message, read_text, write_atomic
from fedrank.kernels.devices import DeviceError

TRACEBACK = "traceback.txt"  # in the folder of a failed run
LAST_LINES = 6  # lines of a traceback that are shown
# Errors that fedrank raises itself, with messages that need no traceback; an application's own ones are `explained`.
EXPLAINED = (ValueError, OSError, ImportError, RoundError, DeviceError)
PLACE = re.compile(r" \((round \d+)?(, )?(client \d+)?\)$")  # the end of the reason of a failure


def note_failure(problem: BaseException, experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Write the traceback of a failure into the run folder; returns its entry for `run.json`."""
    with suppress(OSError):  # the disk may be full; run.json is more important
        write_atomic(folder / TRACEBACK, "".join(traceback.format_exception(problem)))
    message = problem.message if isinstance(problem, RoundError) else error_message(problem)
    where = {name: getattr(problem, name, None) for name in ("round", "client")}
    known = {"message": message or type(problem).__name__} | where
    line = own_line(problem, experiment)
    if line is None and (isinstance(problem, EXPLAINED) or getattr(problem, "explained", False)):
        return known
    *_, cause = _causes(problem)
    text = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    return known | {"message": text if line is None else f"{text}; {line}", "crashed": True}


def own_line(problem: BaseException, experiment: Experiment) -> str | None:
    """The innermost line of an external method in the traceback; None if there is none."""
    outside = _modules_outside(to_tables(experiment))
    found = None
    for each in _causes(problem):
        for frame, line in traceback.walk_tb(each.__traceback__):
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] in outside:
                code = frame.f_code
                found = f"{Path(code.co_filename).name}, line {line}, in {code.co_qualname}"
    return found


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """A problem and its causes."""
    one: BaseException | None = problem
    while one is not None:
        yield one
        one = one.__cause__


def _modules_outside(table: Any) -> set[str]:
    """The packages of external methods in the tables of a spec."""
    if isinstance(table, dict):
        name = table.get("name")
        own = {name.partition(":")[0].partition(".")[0]} if isinstance(name, str) and ":" in name else set()
        return own.union(*map(_modules_outside, table.values()))
    return set()


@dataclass(frozen=True)
class FailureCause:
    """The reason why runs failed."""

    reason: str
    runs: tuple[str, ...]  # labels of the failed runs
    lines: tuple[str, ...] = ()  # the last lines of the first traceback, if it is in an external method
    file: Path | None = None  # the file with that traceback

    @property
    def message(self) -> str:
        """One line: the name of a single run, or the number of runs and the first of them."""
        if len(self.runs) == 1:
            return f"failed {self.runs[0]}: {self.reason}"
        return f"failed {len(self.runs):,} runs, first {self.runs[0]}: {self.reason}"


def causes(failed: Iterable[tuple[Task, str]]) -> list[FailureCause]:
    """Failures by cause, in order of first occurrence."""
    groups: dict[str, list[tuple[Task, str]]] = {}
    for task, reason in failed:
        groups.setdefault(_without_place(reason, task.folder), []).append((task, reason))
    found = []
    for (task, reason), *others in groups.values():
        runs, file = (task.label, *(each.label for each, _ in others)), task.folder / TRACEBACK
        crashed = file.is_file() and (load_runs(task.folder)[0].error or {}).get("crashed")
        more = (_last_lines(read_text(file)), file) if crashed else ()
        found.append(FailureCause(reason, runs, *more))
    return found


def alike(runs: Iterable[Run]) -> list[list[Run]]:
    """Unfinished runs by state and reason, without the round or client in the reason."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.status, _without_place(run.reason, run.path)), []).append(run)
    return list(groups.values())


def _without_place(reason: str, folder: Path) -> str:
    return PLACE.sub("", reason).replace(str(folder), "")


def several(runs: Sequence[Run]) -> str:
    """A short description: the name of a single run, or the number of runs and the first of them."""
    first = f"{runs[0].variant} fold {runs[0].fold} seed {runs[0].seed}"
    return first if len(runs) == 1 else f"{len(runs):,} runs, first {first}"


def _last_lines(text: str) -> tuple[str, ...]:
    """The last lines of the first traceback in a chain."""
    first = text.partition("\nThe above exception was the direct cause")[0].rstrip()
    return tuple(line for line in first.splitlines() if line.strip(" ~^"))[-LAST_LINES:]

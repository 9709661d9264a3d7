"""The current state of runs, read from their folders while other processes write to them."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.run_values import drawn_rows
from fedrank.experiments.runner.folder import STATES
from fedrank.experiments.runner.runs import Run, Runs, load_runs
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.kinds import KINDS
from fedrank.files import opened, read_text
from fedrank.toml import parse_toml

SECONDS_BETWEEN_LOOKS = 1.0  # minimum seconds between two readings, for all tabs
PREVIEW_LINES = 8  # variants drawn in the overview
PREVIEW_SIZE = (120.0, 32.0)  # width and height of a preview in pixels
LINES = 24  # maximum number of runs that are drawn individually; above it, one per variant
MAX_LOG_LENGTH = 40_000  # bytes of a traceback, the last ones


@dataclass(frozen=True)
class WatchedRun:
    """A run and its progress."""

    id: str
    run: Run
    measure: str
    quality: float  # so far; NaN before the first evaluation
    seconds: float  # wall-clock time; NaN before the first checkpoint

    @property
    def seconds_left(self) -> float:
        """Estimated remaining seconds of a running run; NaN if unknown."""
        if self.run.status != "running" or not self.run.round:
            return math.nan
        return self.seconds / self.run.round * (self.run.asked - self.run.round)

    @property
    def total_seconds(self) -> float:
        """Estimated seconds from the first round to the last; NaN if unknown."""
        return self.seconds if self.run.status == "finished" else self.seconds + self.seconds_left


@dataclass(frozen=True)
class WatchedExperiment:
    """All runs of one experiment, including those without a folder."""

    id: str
    name: str
    title: str
    folder: Path
    kind: str
    runs: tuple[WatchedRun, ...]
    asked: int  # planned runs; if the spec is unreadable, the runs found

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs in each state; runs that have not begun are last."""
        found = Counter(one.run.status for one in self.runs)
        counts = {state: found[state] for state in STATES}
        return counts | {"not begun": max(0, self.asked - len(self.runs))}

    @property
    def done(self) -> float:
        """Share of all rounds that are done."""
        shares = [min(1.0, one.run.round / one.run.asked) for one in self.runs if one.run.asked]
        return sum(shares) / max(self.asked, len(self.runs), 1)

    @property
    def seconds_left(self) -> float:
        """Estimated seconds until all runs are finished, with as many in parallel as now; NaN if unknown."""
        running = [one for one in self.runs if one.run.status == "running"]
        known = [one.total_seconds for one in self.runs if not math.isnan(one.total_seconds)]
        if not running or not known:
            return math.nan
        usual = sum(known) / len(known)
        now = sum(usual if math.isnan(one.seconds_left) else one.seconds_left for one in running)
        return (now + usual * self.counts["not begun"]) / len(running)

    @property
    def variants(self) -> dict[str, list[WatchedRun]]:
        found: dict[str, list[WatchedRun]] = {}
        for one in self.runs:
            found.setdefault(one.run.variant, []).append(one)
        return found

    @property
    def best(self) -> tuple[str, str, float]:
        """Main measure, the variant with the highest mean so far, and that mean; NaN before the first evaluation."""
        found = []
        for name, runs in self.variants.items():
            values = [one.quality for one in runs if not math.isnan(one.quality)]
            if values:
                found.append((sum(values) / len(values), name, runs[0].measure))
        if not found:
            return "", "", math.nan
        value, name, measure = max(found, key=lambda entry: entry[0])
        return measure, name, value


@dataclass
class Watched:
    """Folders of runs, read again on request when the last reading is too old."""

    folders: Sequence[Path]
    clock: Callable[[], float] = time.monotonic
    _turn: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _seen: tuple[WatchedExperiment, ...] = ()
    _when: float = -math.inf

    def look(self) -> tuple[WatchedExperiment, ...]:
        """Return all experiments; those with a running run first."""
        with self._turn:
            if self.clock() - self._when >= SECONDS_BETWEEN_LOOKS:
                there = [folder for folder in self.folders if folder.is_dir()]  # one may be deleted meanwhile
                found = [_experiment(group) for group in load_runs(there).group("folder").values()]
                self._seen = tuple(sorted(found, key=lambda one: not one.counts["running"]))
                self._when = self.clock()
            return self._seen

    def experiment(self, id: str) -> WatchedExperiment | None:
        return next((one for one in self.look() if one.id == id), None)

    def run(self, id: str) -> tuple[WatchedExperiment, WatchedRun] | None:
        return next(((one, run) for one in self.look() for run in one.runs if run.id == id), None)


def _experiment(runs: Runs) -> WatchedExperiment:
    first, grid = runs[0], None
    with suppress(OSError, ValueError):  # there may be none, or one of a newer fedrank
        grid = read_tables(parse_toml(read_text(first.folder / "experiment.toml")), full_check=False)
    asked, title, kind, names = len(runs), first.title, "federated", list[str]()
    if grid is not None:
        asked, names = max(asked, len(grid.variants) * len(grid.repeats())), grid.names
        title, kind = grid.title or title, grid.kind
    positions = {name: position for position, name in enumerate(names)}  # variants in the order of the spec
    ordered = sorted(runs, key=lambda run: (positions.get(run.variant, len(names)), run.variant, run.repeat))
    shown = tuple(map(_run, ordered))
    return WatchedExperiment(_id(first.folder), first.experiment, title, first.folder, kind, shown, asked)


def _run(run: Run) -> WatchedRun:
    measure, quality, seconds = "", math.nan, math.nan
    with suppress(OSError, ValueError):  # not written yet, or being written
        measure, quality = run.latest_value
        seconds = run.seconds
    return WatchedRun(_id(run.path), run, measure, quality, seconds)


def _id(folder: Path) -> str:
    """The id of a folder on pages: not its path, which would have to be validated."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def log_of(run: Run) -> str:
    """The end of the traceback of a failed run; empty if there is none."""
    from fedrank.experiments.runner.failures import TRACEBACK

    file = run.path / TRACEBACK
    with suppress(OSError, ValueError):
        if not file.is_symlink():  # an untrusted folder must not show files outside it
            with opened(file) as content:
                content.seek(max(0, os.fstat(content.fileno()).st_size - MAX_LOG_LENGTH))
                return content.read().decode("utf-8", "replace")
    return ""


def charts(experiments: Sequence[WatchedExperiment], only: WatchedRun | None = None) -> list[dict[str, Any]]:
    """Return the learning curves for the script of a page: one chart per measure, and one for online quality."""
    from fedrank.experiments.report.figures import line_look  # matplotlib is slow to import

    drawn: dict[str, list[dict[str, Any]]] = {}
    position = 0
    for experiment in experiments:
        for variant, runs in experiment.variants.items():
            name = f"{experiment.name}: {variant}" if len(experiments) > 1 else variant
            look = {"group": name} | line_look(position)
            position += 1
            many = sum(len(one.runs) for one in experiments) > LINES
            for column, line in _lines(runs if only is None else [one for one in runs if one is only], many):
                drawn.setdefault(column, []).append(look | line | {"name": f"{name}, {line['name']}"})
    axis = KINDS[experiments[0].kind].axis if experiments else "round"
    return [
        {"title": heading(column), "axis": axis, "lines": lines, "levels": []}
        for column, lines in sorted(drawn.items(), key=lambda item: item[0] == "online")
    ]


def preview(experiment: WatchedExperiment) -> list[dict[str, str]]:
    """The curves of the main measure as small SVG polylines: for each variant, the run with the most rounds."""
    from fedrank.experiments.report.figures import line_look

    measure, curves = experiment.best[0], []
    for position, (variant, runs) in enumerate(list(experiment.variants.items())[:PREVIEW_LINES]):
        for column, line in _lines(runs, many=True):
            if column == measure and len(line["rounds"]) > 1:
                curves.append((variant, line_look(position)["colour"], line["rounds"], line["mean"]))
    if not curves:
        return []
    first, last = min(min(rounds) for *_, rounds, _ in curves), max(max(rounds) for *_, rounds, _ in curves)
    low, high = min(min(values) for *_, values in curves), max(max(values) for *_, values in curves)
    (width, height), drawn = PREVIEW_SIZE, []
    across, up = width / max(last - first, 1), (height - 4) / max(high - low, 1e-9)
    for variant, colour, rounds, values in curves:
        places = ((x - first) * across for x in rounds), (height - 2 - (y - low) * up for y in values)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(*places, strict=True))
        drawn.append({"name": variant, "colour": colour, "points": points})
    return drawn


def _lines(runs: Sequence[WatchedRun], many: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the curves of a variant: of each run, or only of the run with the most rounds if there are many."""
    chosen = [max(runs, key=lambda one: one.run.round)] if many and runs else runs
    for one in chosen:
        name = f"fold {one.run.fold}, seed {one.run.seed}"
        with suppress(OSError, ValueError):
            for column, line in _curves(one.run).items():
                yield column, line | {"name": name, "half": None}


def _curves(run: Run) -> dict[str, dict[str, Any]]:
    rounds = run.rounds
    number, interactions, found = rounds["round"], rounds.get("interactions"), {}
    usable = np.isfinite(number) if interactions is None else np.isfinite(number) & np.isfinite(interactions)
    for column, (rows, values) in drawn_rows(rounds, run.measures, usable).items():
        found[column] = {
            "rounds": number[rows].astype(int).tolist(),
            "interactions": None if interactions is None else interactions[rows].tolist(),
            "mean": [round(value, 5) for value in values.tolist()],
        }
    return found

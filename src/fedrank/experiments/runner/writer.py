"""The files of an active run: its facts, rows, checkpoint and times, and at the end all results.

A run can be stopped at any moment, even by `kill -9`. Every few seconds the rows of `rounds.csv` are made durable and
`checkpoint.npz` is replaced by one that records how many bytes of it are valid; a resumed run truncates the rest and
continues. Randomness is keyed by round, so the result is the same as without the interruption.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
import time
import tokenize
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.experiments.runner.cards import issued, versions
from fedrank.experiments.runner.folder import Card, Facts, cell, table
from fedrank.experiments.runner.provenance import known
from fedrank.experiments.spec.experiment import Experiment, to_toml
from fedrank.files import add_path_to_errors, for_owner, is_plain, now, opened, parse_json, write_atomic
from fedrank.privacy.population import FOLDER
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.ranking.measures import MODELS, measure
from fedrank.types import Weights

SECONDS_BETWEEN_CHECKPOINTS = 2.0
SECONDS_BETWEEN_NEWS = 0.1
TIES = "equal scores are ordered by a fixed shuffle of positions, which favours no order of the file"
NOISE = "from the system's secure source: a repeated run gives different numbers"
# Files that a run deletes when it ends; the ledger is kept, because sent updates cannot be recalled.
AT_THE_END = (
    "queries.csv", "nothing.csv", "rewards.csv", "clients.csv", "validation.csv", "selected.npz", "model.json",
    "privacy.json",
)  # fmt: skip


# Errors of ZipFile, NumPy and JSON for invalid files. RuntimeError: an encrypted part, unknown
# compression, or too deep nesting.
UNREADABLE = (
    OSError, ValueError, EOFError, KeyError, TypeError, BadZipFile, RuntimeError, OverflowError, SyntaxError,
    tokenize.TokenError, struct.error, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class Task:
    """One run to execute."""

    folder: Path  # the run folder
    experiment: Experiment  # with one fold and seed
    name: str  # of the whole experiment
    variant: str
    settings: dict[str, Any]  # varied settings of this variant
    fold: int
    seed: int
    device: str = "cpu"  # where clients train; the results are the same

    def __post_init__(self) -> None:
        parts = Path(self.name).parts
        if not parts or not all(map(is_plain, parts)):
            raise ValueError(
                f"name {self.name!r} is not a folder within the folder of results; give a name such as first or "
                "tests/first, and choose the folder of results with --out"
            )
        if parts[0].casefold() == FOLDER:
            raise ValueError(
                f"name {self.name!r}: {FOLDER}/ contains privacy ledgers, and a run in it would be counted as one of "
                "them; choose another name"
            )

    @property
    def home(self) -> Path:
        """The folder that contains experiments."""
        return self.folder.absolute().parents[1 + len(Path(self.name).parts)]

    @property
    def label(self) -> str:
        return f"{self.variant}, fold {self.fold}, seed {self.seed}"


@dataclass(frozen=True)
class News:
    """The progress of a run."""

    round: int
    rounds: int
    quality: float  # last value of the first measure; NaN before the first evaluation
    interactions: int  # since this process started or resumed the run
    seconds: float  # likewise
    seconds_left: float


class Stopped(Exception):
    """A run was asked to stop; its checkpoint is saved."""


@dataclass(frozen=True)
class Totals:
    """Totals over rounds, and over the processes that worked on a run."""

    interactions: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


class RunWriter:
    """The files of a run during its execution. Models are collected and evaluated together, which is faster.

    A run records its facts (`update_facts`), opens its rows (`begin`), adds them one by one (`add`), reports and saves
    itself between them (`after_round`), and ends (`finish`).
    """

    def __init__(
        self,
        task: Task,
        threads: int = 1,
        on_progress: Callable[[News], None] = lambda news: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task, self.folder, self.threads = task, task.folder, threads
        self.on_progress, self.stop = on_progress, stop
        self._damage: ValueError | None = None  # why the checkpoint is unusable
        try:
            self.restored = _read_checkpoint(task.folder)  # the state of an earlier process, if any
        except ValueError as problem:
            self.restored, self._damage = None, problem
        self.round = 0 if self.restored is None else int(self.restored["round"])  # the last saved round
        self.quality, self.totals = math.nan, Totals()
        self.safe: Callable[[int], None] = lambda round: None  # called after every checkpoint
        self.facts = _first_facts(task, self.round)
        if self.restored is not None and "checksum" not in self.restored:
            note = "its checkpoint had no checksum, so damage may have gone undetected"
            self.facts = replace(self.facts, notes=(note,))
        self._file: io.BufferedRandom | None = None
        self._rows: list[str] = []
        self._models: list[Weights] = []  # waiting for evaluation
        self._unmeasured: list[int] = []  # the rows that wait for their values
        self._reported = 0.0
        self._start_clocks()

    def _start_clocks(self) -> None:
        self._began = self._clock = self._saved = time.monotonic()
        self._cpu, self._pause = time.process_time(), SECONDS_BETWEEN_CHECKPOINTS
        self._resumed, self._interactions_before = self.round, self.totals.interactions

    def __enter__(self) -> RunWriter:
        write_atomic(self.folder / "spec.toml", to_toml(self.task.experiment))
        return self

    def __exit__(self, *problem: object) -> None:
        if self._file is not None:
            with add_path_to_errors(self.folder / "rounds.csv"):
                self._file.close()

    def origin(self, data: str) -> dict[str, Any]:
        """The origin in a model file, from which `fedrank model score` finds the test queries of its fold."""
        task = self.task
        run = {"variant": task.variant, "fold": task.fold, "seed": task.seed}
        return {"experiment": task.name, **run, "data": data}

    def check_checkpoint(self) -> None:
        """Raise an error before anything is done if the checkpoint is damaged."""
        if self._damage is not None:
            raise self._damage

    def update_facts(
        self, notes: Iterable[str] = (), conventions: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        """Update run.json; notes and conventions are added to the existing ones."""
        self.facts = replace(
            self.facts,
            notes=(*self.facts.notes, *notes),
            conventions=self.facts.conventions | dict(conventions or {}),
            **facts,
        )
        self.facts.write(self.folder)

    def begin(
        self,
        evaluate: Callable[[Weights], NDArray[np.float64]] | None = None,
        online: bool = True,
        reward: bool = False,
    ) -> Mapping[str, Any] | None:
        """Open the rows at the checkpoint; returns its contents, or None for a new run.

        `evaluate` returns [measures, models] of models [models, parameters]; online quality and rewards are columns if
        there are any.
        """
        self._evaluate, self._online, self._reward = evaluate, online, reward
        path, checkpoint = self.folder / "rounds.csv", self.restored
        if checkpoint is not None and path.exists() and path.stat().st_size >= int(checkpoint["csv_bytes"]):
            self.totals, self.quality = Totals(**checkpoint["tally"]), float(checkpoint["quality"])
            self._file = path.open("r+b")
            self._file.truncate(int(checkpoint["csv_bytes"]))
            self._file.seek(int(checkpoint["csv_bytes"]))
        else:
            checkpoint, self.round = None, 0
            for old in ("timing.csv", "checkpoint.npz", *AT_THE_END):
                (self.folder / old).unlink(missing_ok=True)
            columns = ["round", *["online"] * online, "interactions", "bytes_up", "bytes_down"]
            self._file = open(path, "w+b", opener=for_owner)  # noqa: SIM115
            with add_path_to_errors(path):
                self._file.write((",".join([*columns, *self._measures, *["reward"] * reward]) + "\n").encode())
        self._start_clocks()
        return checkpoint

    @property
    def _measures(self) -> Sequence[str]:
        return self.task.experiment.columns

    def add(
        self,
        round: int,
        *,
        interactions: int = 0,
        bytes_up: int = 0,
        bytes_down: int = 0,
        online: float = math.nan,
        reward: float | None = None,
        model: Weights | None = None,  # to be evaluated; [clients, parameters] for personal models
        values: Sequence[float] | None = None,  # [measures], if already known
    ) -> None:
        """Add one row; amounts are those of this round alone."""
        before = self.totals
        counts = (before.interactions + interactions, before.bytes_up + bytes_up, before.bytes_down + bytes_down)
        self.totals = Totals(*counts, before.seconds, before.cpu_seconds)
        cells = [str(round), *[cell(online)] * self._online, *map(str, counts)]
        if values is not None:
            cells += map(cell, map(float, values))
            self.quality = float(values[0])
        elif model is None:
            cells += [""] * len(self._measures)
        rewards = ["" if reward is None or model is None else repr(reward)] * self._reward
        if model is not None:
            self._unmeasured.append(len(self._rows))
            self._models.append(model)
            cells.append("{values}")
        self._rows.append(",".join([*cells, *rewards]))
        if len(self._models) == MODELS:
            self._measure()

    def _measure(self) -> None:
        """Evaluate waiting models, and fill in their rows."""
        if not self._models:
            return
        assert self._evaluate is not None
        if self._models[0].ndim == 2:  # personal models: their mean quality counts
            values = np.stack([self._evaluate(models).mean(axis=1) for models in self._models], axis=1)
        else:
            values = self._evaluate(np.stack(self._models))
        for row, column in zip(self._unmeasured, values.T, strict=True):
            self._rows[row] = self._rows[row].replace("{values}", ",".join(map(cell, column)))
        self.quality = float(values[0, -1])
        self._models.clear()
        self._unmeasured.clear()

    def report_progress(self, round: int, last: int, quality: float | None = None) -> None:
        """Report the progress of the run."""
        self._reported = time.monotonic()
        passed, done = self._reported - self._began, round - self._resumed
        left = passed / done * (last - round) if done > 0 else 0.0
        interactions = self.totals.interactions - self._interactions_before
        self.on_progress(News(round, last, self.quality if quality is None else quality, interactions, passed, left))

    def stop_if_requested(self) -> None:
        """Raise `Stopped` if the run was asked to stop."""
        if self.stop():
            raise Stopped

    def after_round(self, round: int, last: int, parts: Callable[[], Mapping[str, Any]], ends: bool = False) -> None:
        """Between two rounds: report progress, save a checkpoint every few seconds, stop if requested.

        `parts` returns the state for the next round: arrays and JSON values.
        """
        now = time.monotonic()
        if now - self._reported < SECONDS_BETWEEN_NEWS and not ends:
            return
        self.report_progress(round, last)
        stopping = not ends and self.stop()
        if ends or stopping or now - self._saved >= self._pause:
            self.save_checkpoint(round, parts())
        if stopping:
            raise Stopped

    def save_checkpoint(self, round: int, parts: Mapping[str, Any]) -> None:
        """Make all results so far durable."""
        began = time.monotonic()
        self._write_rows(round)
        assert self._file is not None
        whole = {"round": round, "csv_bytes": self._file.tell(), "quality": self.quality, "tally": asdict(self.totals)}
        content = io.BytesIO()
        packed: dict[str, Any] = {name: _packed(part) for name, part in (whole | dict(parts)).items()}
        np.savez(content, **packed, checksum=_checksum(packed))
        write_atomic(self.folder / "checkpoint.npz", content.getvalue(), private=True)
        self.round = round
        self.safe(round)
        self._saved = time.monotonic()
        self._pause = max(SECONDS_BETWEEN_CHECKPOINTS, 20 * (self._saved - began))  # a large state takes long to save

    def _write_rows(self, round: int) -> None:
        self._measure()
        clock, cpu = time.monotonic(), time.process_time()
        seconds, cpu_seconds = self.totals.seconds + clock - self._clock, self.totals.cpu_seconds + cpu - self._cpu
        self.totals = replace(self.totals, seconds=seconds, cpu_seconds=cpu_seconds)
        self._clock, self._cpu = clock, cpu
        assert self._file is not None
        with add_path_to_errors(self.folder / "rounds.csv"):
            self._file.write("".join(row + "\n" for row in self._rows).encode())
            self._file.flush()
            os.fsync(self._file.fileno())
        self._rows.clear()
        timing = self.folder / "timing.csv"
        with add_path_to_errors(timing), timing.open("a", encoding="utf-8") as file:
            if file.tell() == 0:
                file.write("round,seconds,cpu_seconds\n")
            file.write(f"{round},{seconds:.3f},{cpu_seconds:.3f}\n")

    def finish(
        self,
        round: int,
        *,
        queries: tuple[Sequence[str], NDArray[np.float64]] | None,  # ids, and [measures, queries]; None: not measured
        baseline: BaselineRanking | None,  # the baseline ranking on the same queries
        clients: Mapping[str, Sequence[Any]] | None = None,  # columns of clients.csv
        rewards: tuple[Sequence[str], NDArray[np.float64]] | None = None,  # training queries, and the reward of each
        card: Card | None = None,
        **facts: Any,
    ) -> None:
        """Write the files of a finished run besides its model, and mark it as finished."""
        if self._rows:
            self._write_rows(round)
        given, conventions = None, facts.pop("conventions", {})
        if queries is not None and baseline is not None:
            ids, values = queries
            for name, each in (("queries.csv", values), ("nothing.csv", baseline.values)):
                rows = table(["query", *self._measures], zip(ids, *each, strict=True))
                write_atomic(self.folder / name, rows, private=True)
            about = f"{baseline.name}; {baseline.about}" if baseline.about else baseline.name
            given, conventions = baseline.name, conventions | {"do nothing": f"the baseline ranking: {about}"}
        if rewards is not None:
            write_atomic(
                self.folder / "rewards.csv", table(["query", "reward"], zip(*rewards, strict=True)), private=True
            )
        if clients:
            rows = table(list(clients), zip(*clients.values(), strict=True))
            write_atomic(self.folder / "clients.csv", rows, private=True)
        if card is not None:
            issued(card, self.folder, str(self.facts.data.get("name", ""))).write(self.folder)
        self.update_facts(conventions=conventions, **facts, given=given, status="finished", round=round, ended=now())
        (self.folder / "checkpoint.npz").unlink(missing_ok=True)


def _first_facts(task: Task, round: int) -> Facts:
    conventions = {str(one): one.about for one in map(measure, task.experiment.measures)}
    machine = kernels.compile.compiled_for()
    if not kernels.compile.same_bytes_here():
        conventions["machine"] = (
            f"computed on {machine}: the last digits may differ from those on x86-64 and 64-bit ARM, where all "
            "processors give the same"
        )
    return Facts(
        experiment=task.name,
        title=task.experiment.title,
        variant=task.variant,
        settings=task.settings,
        fold=task.fold,
        seed=task.seed,
        status="running",
        round=round,
        asked=task.experiment.rounds_asked,
        conventions=conventions | {"ties": TIES},
        compiled_for=machine,
        begun=_begun(task.folder, round),
        versions=versions(),
        **known(task.experiment),
        pid=os.getpid(),
    )


def _begun(folder: Path, round: int) -> str:
    """The start time of the run; for a resumed run, of the first start."""
    before = ""
    if round:
        with suppress(OSError, ValueError, KeyError):
            before = str(Facts.values(folder)["begun"])
    return before or now()


def _packed(part: Any) -> NDArray[Any]:
    return np.asarray(part if isinstance(part, (np.ndarray, int, float)) else json.dumps(part))


def _checksum(parts: Mapping[str, NDArray[Any]]) -> str:
    """The checksum of arrays by name, independent of their order."""
    total = hashlib.sha256()
    for name in sorted(parts):
        array = parts[name]
        total.update(f"{name} {array.dtype.str} {array.shape} ".encode() + array.tobytes())
    return f"sha256:{total.hexdigest()}"


def _read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Contents of the checkpoint; None if there is none or it is unreadable: the run then begins again.

    A readable checkpoint with a wrong checksum is an error, because the run would continue from wrong values.
    """
    file = folder / "checkpoint.npz"
    try:
        parts = _arrays_of(file)
        given = parts.pop("checksum", None)
        checkpoint = {
            name: parse_json(str(part)) if part.dtype.kind == "U" and part.ndim == 0 else part
            for name, part in parts.items()
        }
        totals = vars(Totals(**dict(checkpoint["tally"])))
        numbers = [int(checkpoint["round"]), int(checkpoint["csv_bytes"]), *totals.values()]
        if not all(isinstance(one, (int, float)) and one >= 0 for one in numbers) or float(checkpoint["quality"]) < 0:
            return None
    except UNREADABLE:
        return None
    if given is None:
        return checkpoint
    if str(given) != _checksum(parts):
        raise ValueError(f"the checksum of {file} is wrong: the file is damaged; delete it to begin the run again")
    return checkpoint | {"checksum": str(given)}


def _arrays_of(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an `np.savez` file, with declared sizes checked against the size of the file."""
    arrays: dict[str, NDArray[Any]] = {}
    with opened(file) as content, ZipFile(content) as parts:
        size = os.fstat(content.fileno()).st_size
        for part in parts.infolist():
            whole = part.compress_type == ZIP_STORED and part.file_size <= size and part.filename.endswith(".npy")
            if not whole or part.comment or part.extra:  # which could hide later parts
                raise ValueError(f"{part.filename} is not a valid array of a checkpoint")
            array = io.BytesIO(parts.read(part))
            if np.lib.format.read_magic(array) != (1, 0):
                raise ValueError(f"{part.filename} has a header with an unsupported version")
            shape, by_column, kind = np.lib.format.read_array_header_1_0(array)
            rest = array.read()
            if kind.hasobject or math.prod(shape) * kind.itemsize != len(rest):
                raise ValueError(f"{part.filename} does not have its declared size, or contains objects")
            arrays[part.filename.removesuffix(".npy")] = (
                np.frombuffer(rest, kind).reshape(shape, order="F" if by_column else "C").copy()
            )
    return arrays

"""Finished work on disk: finds run folders, reads them, lists them and clears away the unfinished ones."""

from __future__ import annotations

import csv
import functools
import json
import os
import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import is_alive, is_locked, locked
from fedrank.names import nearest

if TYPE_CHECKING:
    from rich.console import Console

Column = NDArray[np.float64]

FORMAT = 1  # of run.json
LAST = 10  # evaluations behind every "final" value
DISCOUNT = 0.9995  # of online quality, per round
LOCK = "lock"  # held while a process works on a run
BOOKKEEPING = ("round", "online", "interactions", "bytes_up", "bytes_down")  # all other columns are measures
STATES = ("finished", "running", "interrupted", "failed", "broken")
OURS = ("run.json", "rounds.csv", "spec.toml")  # a folder without any of these is none of our business
REPEAT = re.compile(r"fold-(\d+)-seed-(\d+)")


@dataclass(frozen=True)
class Run:
    """One variant of an experiment on one fold with one seed, as found on disk. Large files are read when asked for."""

    path: Path
    experiment: str
    variant: str
    fold: int
    seed: int
    status: str  # one of STATES; "broken" where the folder cannot be understood
    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # only what varies: {"aggregator.name": "krum"}
    round: int = 0  # rounds done
    asked: int = 0  # rounds asked for
    data: dict[str, Any] = field(default_factory=dict)
    conventions: dict[str, str] = field(default_factory=dict)  # measure -> how it was computed
    error: dict[str, Any] | None = None  # message, round, client
    notes: tuple[str, ...] = ()
    version: str = ""  # of fedrank
    promotion: float | None = None  # share of the documents that an attack promotes that reach the top ten
    behind_final: int = LAST  # evaluations; 1 where the last model alone is the result

    @property
    def folder(self) -> Path:
        """Folder of the whole experiment, with its experiment.toml."""
        return self.path.parent.parent

    @property
    def repeat(self) -> tuple[int, int]:
        """(fold, seed): what pairs this run with those of other variants."""
        return self.fold, self.seed

    @property
    def label(self) -> str:
        return f"{self.variant}, fold {self.fold}, seed {self.seed}"

    @property
    def rounds(self) -> dict[str, Column]:
        """Columns of rounds.csv; NaN where a round was not evaluated."""
        return _read_rounds(*_version_of(self.path / "rounds.csv"))

    @property
    def queries(self) -> tuple[NDArray[np.str_], dict[str, Column]]:
        """Query ids of the test set, and each measure per query; NaN where the measure skips a query."""
        return _read_queries(*_version_of(self.path / "queries.csv"))

    @property
    def clients(self) -> tuple[NDArray[np.str_], dict[str, Column]]:
        """Client ids, and how well the final model serves each on its own queries; empty where all are alike."""
        file = self.path / "clients.csv"
        return _read_queries(*_version_of(file)) if file.exists() else (np.array([], dtype=np.str_), {})

    @property
    def model(self) -> dict[str, Any] | None:
        """Contents of model.json, or None where there is none."""
        file = self.path / "model.json"
        return _read_json(file) if file.exists() else None

    @property
    def privacy(self) -> dict[str, Any] | None:
        """The privacy card of the model, or None where there is none."""
        file = self.path / "privacy.json"
        return _read_json(file) if file.exists() else None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What unlearning did, where this run is the result of it."""
        file = self.path / "receipt.json"
        return _read_json(file) if file.exists() else None

    @property
    def spec(self) -> dict[str, Any]:
        """The concrete experiment of this run."""
        return read_toml(self.path / "spec.toml")

    @property
    def seconds(self) -> float:
        """Time on the clock up to the last entry of timing.csv; NaN where there is none."""
        return self._time("seconds")

    @property
    def cpu_seconds(self) -> float:
        """Processor time up to the last entry of timing.csv; NaN where there is none."""
        return self._time("cpu_seconds")

    @property
    def measures(self) -> tuple[str, ...]:
        """Offline measures that were recorded, in the order of rounds.csv."""
        return tuple(name for name in self.rounds if name not in BOOKKEEPING)

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Rows of rounds.csv that were evaluated offline; all of them where nothing was measured."""
        rounds = self.rounds
        if not self.measures:
            return np.arange(len(rounds["round"]))
        return np.flatnonzero(np.any([~np.isnan(rounds[name]) for name in self.measures], axis=0))

    def final(self, column: str) -> float:
        """Mean of the last ten evaluations: the noise of single rounds should not decide a comparison.

        Online quality is taken from the same rounds. Where training chose its own end, the last evaluation counts.
        """
        values = self._column(column)[self.evaluated]
        values = values[~np.isnan(values)][-self.behind_final :]
        return float(values.mean()) if len(values) else float("nan")

    def total(self, column: str) -> float:
        """Last value of a cumulative column: interactions, bytes_up or bytes_down."""
        values = self._column(column)
        return float(values[-1]) if len(values) else float("nan")

    def online_sum(self, discount: float = DISCOUNT) -> float:
        """Online quality of the whole run: early rounds count more, because those users were served first."""
        online = self._column("online")
        return float(np.sum(discount ** np.arange(len(online)) * online))

    def checked(self) -> Run:
        """The same run, marked as broken if it is said to be finished and its files turn out to be unreadable."""
        if self.status != "finished":
            return self
        try:
            if "round" not in self.rounds:
                raise ValueError("rounds.csv lacks the column 'round'")
            if (self.path / "queries.csv").exists():
                self.queries  # noqa: B018
            self.model, self.seconds  # noqa: B018
        except (OSError, ValueError) as problem:
            return _broken(self, str(problem))
        return self

    @property
    def reason(self) -> str:
        """Why the run is not finished, in one line; empty if it is."""
        if self.status == "finished":
            return ""
        if self.error is None:
            return f"stopped after round {self.round} of {self.asked}" if self.status != "running" else "still running"
        where = [f"{name} {self.error[name]}" for name in ("round", "client") if self.error.get(name) is not None]
        message = str(self.error.get("message", "unknown"))
        return f"{message} ({', '.join(where)})" if where else message

    def _column(self, name: str) -> Column:
        rounds = self.rounds
        if name not in rounds:
            raise KeyError(f"no column {name!r} in {self.path / 'rounds.csv'}; it has {', '.join(rounds)}")
        return rounds[name]

    def _time(self, column: str) -> float:
        file = self.path / "timing.csv"
        if not file.exists():
            return float("nan")
        values = _read_rounds(*_version_of(file)).get(column)
        return float(values[-1]) if values is not None and len(values) else float("nan")


@dataclass(frozen=True, repr=False)
class Runs:
    """A small table of runs: iterate over it, filter it, group it, or turn it into rows."""

    runs: tuple[Run, ...] = ()

    def __len__(self) -> int:
        return len(self.runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __getitem__(self, index: int) -> Run:
        return self.runs[index]

    def __repr__(self) -> str:
        states = Counter(run.status for run in self)
        tally = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        lines = [f"Runs({len(self)}{': ' + tally if tally else ''})"]
        for (_, name), group in self.group("folder", "experiment").items():
            variants = group.group("variant")
            lines.append(f"  {name}: {len(variants)} variant{'s' if len(variants) != 1 else ''}")
            for (variant,), some in list(variants.items())[:8]:
                done = sum(run.status == "finished" for run in some)
                lines.append(f"    {variant}: {done} of {len(some)} finished")
            if len(variants) > 8:
                lines.append(f"    ... and {len(variants) - 8} more")
        return "\n".join(lines)

    @property
    def finished(self) -> Runs:
        """Those that ran to their last round: the only ones a report counts."""
        return Runs(tuple(run for run in self if run.status == "finished"))

    def filter(self, **wanted: Any) -> Runs:
        """Runs that match every keyword, a field of `Run` or a varied setting; a list, tuple or set means "any of".

        `runs.filter(status="finished", fold=[1, 2], **{"aggregator.name": "krum"})`
        """
        for name in wanted:
            known = {*Run.__dataclass_fields__, *(setting for run in self for setting in run.settings)}
            if len(self) and name not in known:
                raise KeyError(f"no field or setting {name!r} to filter by{nearest(name, sorted(known))}")
        return Runs(tuple(run for run in self if all(_matches(run, name, value) for name, value in wanted.items())))

    def group(self, *fields: str) -> dict[tuple[Any, ...], Runs]:
        """Runs by the values of some fields, in order of appearance."""
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in self:
            groups.setdefault(tuple(getattr(run, name) for name in fields), []).append(run)
        return {key: Runs(tuple(some)) for key, some in groups.items()}

    def table(self) -> list[dict[str, Any]]:
        """One row per run, with final values where it finished."""
        rows = []
        for run in self.checked():
            row = {"experiment": run.experiment, "variant": run.variant, **run.settings}
            row |= {"fold": run.fold, "seed": run.seed, "status": run.status}
            row |= {"round": run.round, "rounds": run.asked}
            if run.status == "finished":
                row |= {name: run.final(name) for name in run.measures}
                if "online" in run.rounds:
                    row |= {"online": run.final("online"), "online_sum": run.online_sum()}
            rows.append(row)
        return rows

    def to_pandas(self) -> Any:
        """The same rows as a data frame."""
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError:
            raise ImportError(
                "to_pandas needs pandas, which is not installed; run `pip install pandas`, or use table(), "
                "which gives the same rows as a list"
            ) from None
        return pandas.DataFrame(self.table())

    def checked(self) -> Runs:
        """The same runs, with finished ones whose files turn out to be unreadable marked as broken."""
        return Runs(tuple(run.checked() for run in self))


def load_runs(folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Runs:
    """Every run at or below one or several folders. A damaged run comes back as "broken" and says why."""
    if isinstance(folders, (str, os.PathLike)):
        folders = [folders]
    paths: dict[Path, None] = {}  # keeps order, drops doubles
    for folder in folders:
        root = Path(folder)
        if not root.is_dir():
            raise FileNotFoundError(f"no folder {root}; give a folder of runs, or one run folder")
        paths.update(dict.fromkeys(_run_folders(root.resolve())))
    runs: list[Run] = []
    seen: dict[tuple[Any, ...], Path] = {}
    for path in paths:
        run = _load(path)
        first = seen.setdefault((run.folder, run.variant, run.repeat), path)
        if first != path and run.status != "broken":
            # Counting a copied folder as another repeat would make a result look surer than it is.
            run = _broken(run, f"same variant, fold and seed as {first}; delete one of them")
        runs.append(run)
    return Runs(tuple(runs))


def clean(runs: Runs, keep: Callable[[Run], bool] | None = None) -> list[Path]:
    """Delete the folders of interrupted, failed and broken runs, except those to keep; returns what was deleted.

    Each folder is looked at again first: a run that was resumed or finished in the meantime stays, and so does
    anything that does not hold a file of ours.
    """
    deleted = []
    for run in runs:
        if run.status not in ("interrupted", "failed", "broken") or (keep is not None and keep(run)):
            continue
        if not _may_delete(run.path):
            continue
        now = _load(run.path)
        # Broken ones may look fine by themselves: copies of another run, or files that only a full reading found bad.
        if now.status == "running" or (now.status == "finished" and run.status != "broken"):
            continue
        shutil.rmtree(run.path)
        deleted.append(run.path)
    return deleted


def show_runs(runs: Runs, console: Console) -> None:
    """Print one line per run: where it stands, what it reached, how long it took."""
    from rich.table import Table
    from rich.text import Text

    if not len(runs):
        console.print("No runs here. Start one with `fedrank run EXPERIMENT.toml`.", markup=False)
        return
    colours = {"finished": "green", "running": "cyan", "interrupted": "yellow", "failed": "red", "broken": "red"}
    for (_, name), group in runs.group("folder", "experiment").items():
        table = Table(
            title=Text(name, style="bold"), title_justify="left", box=None, pad_edge=False, header_style="dim"
        )
        for heading in ("variant", "fold", "seed", "status"):
            table.add_column(heading, overflow="fold")
        for heading in ("round", "quality", "time"):
            table.add_column(heading, justify="right", no_wrap=True)
        for run in group:
            done = f"{run.round:,} / {run.asked:,}" if run.asked else "-"
            status = Text(run.status, style=colours[run.status])
            table.add_row(
                Text(run.variant), str(run.fold), str(run.seed), status, done, _quality_so_far(run), _time_so_far(run)
            )
        console.print(table)
        for run in group:
            if run.status in ("failed", "broken"):
                console.print(Text(f"{run.variant} fold {run.fold} seed {run.seed}: {run.reason}", style="dim"))
        console.print()


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file as a dictionary; an error names the file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read as TOML: {error}") from None


def duration(seconds: float) -> str:
    """Seconds for people: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min.

    >>> duration(185)
    '3 min 05 s'
    """
    if np.isnan(seconds):
        return "-"
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _run_folders(root: Path) -> Iterator[Path]:
    try:
        found, inside = _is_run_folder(root), sorted(root.iterdir(), key=_natural)
    except OSError:  # reported as broken, rather than passed over
        found, inside = True, []
    if found:
        yield root
        return
    for below in inside:
        if below.is_dir() and not below.is_symlink() and not below.name.startswith("."):
            yield from _run_folders(below)


def _is_run_folder(path: Path) -> bool:
    names = {entry.name for entry in path.iterdir()}
    if "run.json" in names:
        return True
    return bool(REPEAT.fullmatch(path.name)) and (not names or any(name in names for name in OURS))


def _may_delete(path: Path) -> bool:
    try:
        if not path.is_dir() or path.is_symlink() or not _is_run_folder(path):
            return False
        file = path / "run.json"
        # What a newer fedrank wrote is only broken to us.
        return not file.exists() or not _read_json(file).get("format", FORMAT) > FORMAT
    except (OSError, TypeError):
        return False
    except ValueError:
        return bool(REPEAT.fullmatch(path.name))  # an unreadable run.json: ours if its folder is named like ours


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path.name)]


def _load(path: Path) -> Run:
    """One run folder, judged by its small files and the last line of rounds.csv."""
    repeat = REPEAT.fullmatch(path.name)
    fold, seed = (int(repeat[1]), int(repeat[2])) if repeat else (0, 0)
    run = Run(path, path.parent.parent.name, path.parent.name, fold, seed, "broken")
    try:
        if not (path / "run.json").exists():
            return _broken(run, "no run.json: stopped before its first round")
        facts = _read_json(path / "run.json")
        if facts.get("format", FORMAT) > FORMAT:
            return _broken(run, f"run.json has format {facts['format']}, newer than this fedrank; update fedrank")
        error = facts.get("error")
        run = replace(
            run,
            experiment=str(facts["experiment"]),
            variant=str(facts["variant"]),
            fold=int(facts["fold"]),
            seed=int(facts["seed"]),
            title=str(facts.get("title") or ""),
            settings=dict(facts.get("settings") or {}),
            round=int(facts.get("round") or 0),
            asked=int(facts.get("rounds") or 0),
            data=dict(facts.get("data") or {}),
            conventions={str(key): str(text) for key, text in (facts.get("conventions") or {}).items()},
            error=error if error is None or isinstance(error, dict) else {"message": str(error)},
            notes=tuple(str(note) for note in facts.get("notes") or ()),
            version=str(facts.get("fedrank") or ""),
            promotion=facts.get("promotion"),
            behind_final=int(facts.get("behind_final") or LAST),
        )
        status = facts["status"]
        if status not in STATES:
            return _broken(run, f"run.json has status {status!r}, which is none of {', '.join(STATES)}")
        if status == "running" and not _worked_on(path, facts.get("pid")):
            status = "interrupted"
        if status == "finished":
            _check_end(path / "rounds.csv", run.round)
    except KeyError as missing:
        return _broken(run, f"run.json lacks {missing}")
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        return _broken(run, str(problem))
    return replace(run, status=status)


def _broken(run: Run, message: str) -> Run:
    return replace(run, status="broken", error={"message": message, "round": None, "client": None})


def _check_end(file: Path, round: int) -> None:
    with file.open("rb") as lines:
        cells = lines.readline().count(b",")
        lines.seek(max(0, file.stat().st_size - 4096))
        last = (lines.read().splitlines() or [b""])[-1]
    if last.count(b",") != cells or last.split(b",")[0] != str(round).encode():
        raise ValueError(
            f"rounds.csv ends with {last[:40].decode(errors='replace')!r}, not with a row of round {round}"
        )


def working_on(folder: Path) -> AbstractContextManager[None]:
    """Mark a run folder as worked on by this process, in a way that ends with it however it ends.

    A number of a process alone would not do: after a restart, another may have it.
    """
    return locked(folder / LOCK, str(folder))


def _worked_on(folder: Path, pid: Any) -> bool:
    held = is_locked(folder / LOCK)
    return isinstance(pid, int) and pid > 0 and is_alive(pid) if held is None else held


def _matches(run: Run, name: str, wanted: Any) -> bool:
    value = run.settings.get(name) if name in run.settings else getattr(run, name, None)
    if isinstance(wanted, (list, tuple, set, frozenset)) and not isinstance(value, (list, tuple)):
        return value in wanted
    return bool(value == wanted)


def _quality_so_far(run: Run) -> str:
    try:
        column = run.measures[0] if run.measures else "online"
        value = run.final(column)
    except (OSError, ValueError, KeyError):
        return "-"
    return "-" if np.isnan(value) else f"{column} {value:.4f}"


def _time_so_far(run: Run) -> str:
    try:
        return duration(run.seconds)
    except (OSError, ValueError):
        return "-"


def _read_json(file: Path) -> dict[str, Any]:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} cannot be read: {error}") from None
    if not isinstance(facts, dict):
        raise ValueError(f"{file.name} holds {type(facts).__name__} where an object was expected")
    return facts


def _version_of(file: Path) -> tuple[Path, int, int]:
    # A running experiment appends to its files: the cached text of an older state must not be used.
    state = file.stat()
    return file, state.st_mtime_ns, state.st_size


# Bounded, because a thousand long runs would not fit into memory together.
@functools.lru_cache(maxsize=64)
def _read_rounds(file: Path, _changed: int, _size: int) -> dict[str, Column]:
    header, _, body = file.read_text(encoding="utf-8").partition("\n")
    names = header.strip().split(",")
    lines = body.splitlines()
    bad = next((i for i, line in enumerate(lines) if line.count(",") != len(names) - 1), None)
    if bad is not None:
        cells = lines[bad].count(",") + 1
        raise ValueError(f"{file.name} line {bad + 2} has {cells} cells where the header has {len(names)}")
    flat = ",".join(lines).split(",") if lines else []
    return {name: _numbers(file, name, flat[i :: len(names)]) for i, name in enumerate(names)}


@functools.lru_cache(maxsize=64)
def _read_queries(file: Path, _changed: int, _size: int) -> tuple[NDArray[np.str_], dict[str, Column]]:
    with file.open(encoding="utf-8", newline="") as lines:
        names, *rows = list(csv.reader(lines)) or [[]]
    if not names or any(len(row) != len(names) for row in rows):
        raise ValueError(f"{file.name} has rows with more or fewer than the {len(names)} cells of its header")
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    ids = np.array(cells[0], dtype=np.str_)
    return ids, {name: _numbers(file, name, column) for name, column in zip(names[1:], cells[1:], strict=True)}


def _numbers(file: Path, name: str, cells: Iterable[str]) -> Column:
    try:
        values = np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
    except ValueError as error:
        raise ValueError(f"{file.name} column {name!r}: {error}") from None
    values.setflags(write=False)
    return values

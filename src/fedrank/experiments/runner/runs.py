"""Runs on disk: reading, filtering and grouping them, and deleting unfinished ones.

Large files are read on demand.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.display import DisplayMixin, as_rows, count_of
from fedrank.experiments.runner.cards import read_card
from fedrank.experiments.runner.folder import FORMAT, STATES, Card, Facts, Receipt, checkpoint_round, read_json
from fedrank.experiments.spec.experiment import Experiment
from fedrank.experiments.spec.families import with_new_names
from fedrank.experiments.spec.grid import read_tables
from fedrank.files import error_message, is_alive, is_locked, locked, opened, read_bytes, read_text
from fedrank.names import did_you_mean
from fedrank.privacy.ledger import CHANGED, PARTICIPANTS
from fedrank.privacy.population import FORGOTTEN, LEDGER
from fedrank.ranking.model import check_content
from fedrank.toml import parse_toml

Column = NDArray[np.float64]
Queries = tuple[NDArray[np.str_], dict[str, Column]]  # ids, measure -> values

DISCOUNT = 0.9995  # of online quality, per round
NOTHING = "nothing.csv"
LOCK = "lock"  # held while a process works on a run
COUNTED, TIMED = ("interactions", "bytes_up", "bytes_down"), ("seconds", "cpu_seconds")  # costs of a run
BOOKKEEPING = ("round", "online", *COUNTED)  # all other columns are measures
OURS = ("run.json", "rounds.csv", "spec.toml")  # a folder without any of these is not a run
REPEAT = re.compile(r"fold-(\d+)-seed-(\d+)")
DIGITS = re.compile(r"(\d+)")
GLANCED = 500  # maximum number of runs whose files are read for a table in a notebook
END = 8192  # bytes that hold the last rows of a table


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(DisplayMixin, Facts):
    """One variant of an experiment with one fold and seed, as found on disk."""

    path: Path

    def _display(self) -> tuple[str, dict[str, str]]:
        facts = {"status": self.status, "rounds": f"{self.round:,} of {self.asked:,}", "reason": self.reason}
        if self.status == "finished":
            with suppress(OSError, ValueError):  # `checked` reports damaged files
                column, value = self.latest_value
                facts[column] = f"{value:.4f}"
        return f"{self.experiment}, {self.label}", facts | {"folder": str(self.path)}

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
        return _read_rounds(*_version_of(self._file("rounds.csv")), self.status == "finished")

    @property
    def queries(self) -> Queries:
        """Query ids of the test set, and each measure per query; NaN where the measure skips a query."""
        return _read_queries(*_version_of(self._file("queries.csv")))

    @property
    def rewards(self) -> Queries:
        """Training queries, and the expected reward of the last model for each; empty where it is not known."""
        file = self._file("rewards.csv")
        return _read_queries(*_version_of(file)) if os.path.exists(file) else (np.array([], dtype=np.str_), {})

    @property
    def nothing(self) -> dict[str, Column]:
        """Each measure per query, in the order of `queries`, for the baseline ranking; empty if it was not measured."""
        file = self._file(NOTHING)
        return _nothing_in(NOTHING, _text(file))[1] if os.path.exists(file) else {}

    @property
    def clients(self) -> Queries:
        """Client ids, and the quality of the final model on each client's queries; empty if all clients are equal."""
        file = self._file("clients.csv")
        return _read_queries(*_version_of(file)) if os.path.exists(file) else (np.array([], dtype=np.str_), {})

    @property
    def model(self) -> dict[str, Any] | None:
        """Contents of model.json, or None if there is none."""
        file = self.path / "model.json"
        if not file.exists():
            return None
        content = read_json(file)
        check_content(content, file.name)
        return content

    @property
    def card(self) -> Card | None:
        """The privacy card of the model, or None if there is none."""
        return read_card(self.path)

    @property
    def receipt(self) -> Receipt | None:
        """The unlearning receipt, if this run is the result of unlearning."""
        return Receipt.read(self.path)

    @property
    def spec(self) -> Experiment:
        """The spec of the run. Its data may be missing by now, and external code is not imported."""
        grid = read_tables(with_new_names(read_toml(self.path / "spec.toml")), full_check=False)
        spec: Experiment = grid.base
        return spec

    @property
    def seconds(self) -> float:
        """Wall time up to the last entry of timing.csv; NaN if there is none."""
        return self._times()["seconds"]

    @property
    def costs(self) -> dict[str, float]:
        """Total interactions and bytes, if counted, and wall and processor seconds."""
        rounds = self.rounds
        counted = {name: rounds[name] for name in COUNTED if name in rounds}
        totals = {name: float(values[-1]) if len(values) else np.nan for name, values in counted.items()}
        return totals | self._times()

    @property
    def measures(self) -> tuple[str, ...]:
        """Recorded offline measures, in the order of rounds.csv."""
        return tuple(name for name in self.rounds if name not in BOOKKEEPING)

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Rows of rounds.csv that were evaluated offline; all of them if nothing was measured."""
        rounds, measures = self.rounds, self.measures
        if not measures:
            return np.arange(len(rounds["round"]))
        return np.flatnonzero(np.any([~np.isnan(rounds[name]) for name in measures], axis=0))

    def final_value(self, column: str) -> float:
        """Mean of the last ten evaluations, which reduces the noise of single rounds.

        Online quality is averaged over the same rounds. If training chose its end, only the last evaluation counts.
        """
        return self._mean_of_last(self._column(column)[self.evaluated])

    @property
    def final_values(self) -> dict[str, float]:
        """The final value of every measure; with users, also of online quality and its discounted sum."""
        rounds, rows = self.rounds, self.evaluated
        columns = (*self.measures, *(["online"] if "online" in rounds else []))
        values = {name: self._mean_of_last(rounds[name][rows]) for name in columns}
        return values | {"online_sum": self.online_sum()} if "online" in rounds else values

    @property
    def latest_value(self) -> tuple[str, float]:
        """The first measure, or online quality if nothing is measured, and its current final value.

        Only the end of rounds.csv is read, unless evaluations are rare.
        """
        file = self._file("rounds.csv")
        for size in (END, None):
            names, lines = _last_lines(file, size)
            column = next((name for name in names if name not in BOOKKEEPING), "online")
            if column not in names:
                return column, float("nan")
            values: list[float] = []
            for line in reversed(lines):
                value = _cell(file, names, line, column)
                if not np.isnan(value):
                    values.append(value)
                if len(values) == self.behind_final:
                    return column, float(np.mean(values[::-1]))
        return column, float(np.mean(values[::-1])) if values else float("nan")

    def online_sum(self) -> float:
        """Discounted online quality of the whole run: earlier rounds have more weight."""
        online = self._column("online")
        return float(np.sum(DISCOUNT ** np.arange(len(online)) * online))

    def checked(self) -> Run:
        """This run, marked as broken if it is finished but its files are unreadable."""
        if self.status != "finished":
            return self
        try:
            self.rounds  # noqa: B018
            if os.path.exists(self._file("queries.csv")):
                self.queries  # noqa: B018
            self.nothing, self.rewards, self.model, self.seconds  # noqa: B018
        except (OSError, ValueError) as problem:
            return self.broken(error_message(problem))
        return self

    def broken(self, reason: str) -> Run:
        """This run, marked as broken for a reason."""
        return replace(self, status="broken", error={"message": reason, "round": None, "client": None})

    @property
    def reason(self) -> str:
        """Why the run is not finished, in one line; empty if it is finished."""
        if self.status == "finished":
            return ""
        if self.error is None:
            return f"stopped after round {self.round} of {self.asked}" if self.status != "running" else "still running"
        where = [f"{name} {self.error[name]}" for name in ("round", "client") if self.error.get(name) is not None]
        message = str(self.error.get("message", "unknown"))
        return f"{message} ({', '.join(where)})" if where else message

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)  # faster than a Path for many runs

    def _mean_of_last(self, values: Column) -> float:
        values = values[~np.isnan(values)][-self.behind_final :]
        return float(values.mean()) if len(values) else float("nan")

    def _column(self, name: str) -> Column:
        rounds = self.rounds
        if name not in rounds:
            raise KeyError(f"column {name!r} does not exist in {self.path / 'rounds.csv'}; it has {', '.join(rounds)}")
        return rounds[name]

    def _times(self) -> dict[str, float]:
        file = self._file("timing.csv")
        try:
            names, lines = _last_lines(file, END)
        except FileNotFoundError:
            names, lines = [], []
        return {name: _cell(file, names, lines[-1], name) if lines and name in names else np.nan for name in TIMED}


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

    @property
    def _tally(self) -> str:
        states = Counter(run.status for run in self)
        return ", ".join(f"{states[state]} {state}" for state in STATES if states[state])

    def __repr__(self) -> str:
        tally = self._tally
        lines = [f"Runs({len(self)}{': ' + tally if tally else ''})"]
        for (_, name), group in self.group("folder", "experiment").items():
            variants = group.group("variant")
            lines.append(f"  {name}: {count_of(len(variants), 'variant')}")
            for (variant,), some in list(variants.items())[:8]:
                done = sum(run.status == "finished" for run in some)
                lines.append(f"    {variant}: {done} of {len(some)} finished")
            if len(variants) > 8:
                lines.append(f"    ... and {len(variants) - 8} more")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """One row per variant; final values are omitted if thousands of files would have to be read."""
        rows: list[dict[str, Any]] = []
        for (_, name, variant), some in self.group("folder", "experiment", "variant").items():
            done = some.finished
            row = {"experiment": name, "variant": variant, "finished": f"{len(done)} of {len(some)}"}
            if len(self) <= GLANCED:
                with suppress(OSError, ValueError):
                    columns = [run.latest_value for run in done]
                    if len({column for column, _ in columns}) == 1:
                        row[columns[0][0]] = f"{np.mean([value for _, value in columns]):.4f}"
            rows.append(row)
        return as_rows(f"{count_of(len(self), 'run')}{': ' * bool(rows)}{self._tally}", rows)

    @property
    def finished(self) -> Runs:
        """Runs that completed their last round: only these count in a report."""
        return Runs(tuple(run for run in self if run.status == "finished"))

    def filter(self, **wanted: Any) -> Runs:
        """Runs that match every keyword, a field of `Run` or a varied setting; a list, tuple or set means "any of".

        `runs.filter(status="finished", fold=[1, 2], **{"aggregator.name": "krum"})`
        """
        for name in wanted:
            known = {*Run.__dataclass_fields__, *(setting for run in self for setting in run.settings)}
            if len(self) and name not in known:
                raise KeyError(f"unknown field or setting {name!r}{did_you_mean(name, sorted(known))}")
        return Runs(tuple(run for run in self if all(_matches(run, name, value) for name, value in wanted.items())))

    def group(self, *fields: str) -> dict[tuple[Any, ...], Runs]:
        """Runs by the values of fields, in order of appearance."""
        groups: dict[tuple[Any, ...], list[Run]] = {}
        for run in self:
            groups.setdefault(tuple(getattr(run, name) for name in fields), []).append(run)
        return {key: Runs(tuple(some)) for key, some in groups.items()}

    def table(self) -> list[dict[str, Any]]:
        """One row per run, with final values of finished runs."""
        rows = []
        for run in self.checked():
            row = _run_keys(run) | {"status": run.status, "round": run.round, "rounds": run.asked}
            if run.status == "finished":
                row |= run.final_values
            rows.append(row)
        return rows

    def final(self) -> Any:
        """The final values of finished runs, one per row: experiment, variant, settings, fold, seed, measure, value.

        The result is a pandas frame if pandas is installed, else a list of records.
        """
        rows = []
        for run in self._counted:
            rows += [_run_keys(run) | {"measure": name, "value": value} for name, value in run.final_values.items()]
        return framed(rows)

    def curves(self) -> Any:
        """The learning curves of finished runs, one value per row: as `final`, with round and interactions.

        Online quality is also given at the evaluated rounds.
        """
        rows = []
        for run in self._counted:
            keys, rounds = _run_keys(run), run.rounds
            columns = [name for name in (*run.measures, "online") if name in rounds]
            counted = rounds.get("interactions", np.full(len(rounds["round"]), np.nan))
            for row in run.evaluated:
                at = {"round": int(rounds["round"][row]), "interactions": int(counted[row])}
                measured = ((name, float(rounds[name][row])) for name in columns)
                rows += [
                    keys | at | {"measure": name, "value": value} for name, value in measured if not np.isnan(value)
                ]
        return framed(rows)

    @property
    def _counted(self) -> Iterator[Run]:
        """Finished runs, each with its files in memory; damaged ones are skipped."""
        return (run for each in self if (run := each.checked()).status == "finished")

    def checked(self) -> Runs:
        """These runs, with finished ones marked as broken if their files are unreadable."""
        return Runs(tuple(run.checked() for run in self))


class Records(list[dict[str, Any]]):
    """Rows as dictionaries, all with the same keys; a notebook shows them as a table."""

    def __repr__(self) -> str:
        keys = ", ".join(self[0]) if self else ""
        return f"<{count_of(len(self), 'record')}{': ' if keys else ''}{keys}>"

    def _repr_html_(self) -> str:
        return as_rows(count_of(len(self), "record"), self)


def framed(rows: list[dict[str, Any]]) -> Any:
    """The rows as a pandas frame if pandas is installed, else as `Records`; missing values are None."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    whole = Records({name: row.get(name) for name in names} for row in rows)
    try:
        import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        return whole
    return pandas.DataFrame(list(whole), columns=names)


def _run_keys(run: Run) -> dict[str, Any]:
    return {"experiment": run.experiment, "variant": run.variant, **run.settings, "fold": run.fold, "seed": run.seed}


def load_runs(folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Runs:
    """Find all runs in one or several folders.

    A damaged run has the status "broken" and a reason. The result can be filtered, grouped and turned into tables.

    >>> import fedrank as fr
    >>> grid = fr.read_spec("quickstart", ["rounds=10", "seeds=[1]", "data.folds=[1]"])
    >>> _ = fr.run_experiment(grid, "first", out="runs")
    >>> for run in fr.load_runs("runs").filter(variant=["federated", "alone"]):
    ...     print(run.variant, run.status, f"{run.final_values['ndcg@10']:.3f}")
    alone finished 0.398
    federated finished 0.474
    """
    if isinstance(folders, (str, os.PathLike)):
        folders = [folders]
    paths: dict[Path, None] = {}  # keeps order, without duplicates
    for folder in folders:
        root = Path(folder)
        if root.is_file():
            raise NotADirectoryError(f"{root} is a file; give a folder of runs, or one run folder")
        if not root.is_dir():
            raise FileNotFoundError(f"folder {root} does not exist; give a folder of runs, or one run folder")
        paths.update(dict.fromkeys(map(Path, _run_folders(str(root.resolve())))))
    runs: list[Run] = []
    seen: dict[tuple[Any, ...], Path] = {}
    for path in paths:
        run = _load(path)
        first = seen.setdefault((run.folder, run.variant, run.repeat), path)
        if first != path and run.status != "broken":
            # Counting a copied folder as another repeat would make a result look more certain than it is.
            run = run.broken(f"same variant, fold and seed as {first}; delete one of them")
        runs.append(run)
    return Runs(tuple(runs))


def run_facts(run: Run) -> dict[str, Any]:
    """All facts of a run without its curves, as JSON values."""
    facts = {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
    facts |= {"reason": run.reason, "finals": run.final_values if run.status == "finished" else {}}
    return facts | {"seconds": run.seconds if (run.path / "timing.csv").exists() else None}


def clean(runs: Runs, keep: Callable[[Run], bool] | None = None) -> list[Path]:
    """Delete the folders of interrupted, failed and broken runs, except those to keep; returns the deleted folders.

    Each folder is checked again first: a run that was resumed or finished in the meantime is kept, and so is a folder
    without files of a run. Ledgers are always kept: deleting a run does not restore the privacy budget.
    """
    deleted = []
    for run in runs:
        if run.status not in ("interrupted", "failed", "broken") or (keep is not None and keep(run)):
            continue
        if not _may_delete(run.path):
            continue
        now = _load(run.path)
        # A broken run may look valid by itself: a copy of another run, or files that only a full read found damaged.
        if now.status == "running" or (now.status == "finished" and run.status != "broken"):
            continue
        _delete_but_ledgers(run.path)
        deleted.append(run.path)
    return deleted


def _delete_but_ledgers(folder: Path) -> None:
    ledgers = ledgers_of_run(folder)
    for ledger in ledgers:
        # Changes of a deleted run must not affect another one. The record of participation is kept.
        (ledger / CHANGED).unlink(missing_ok=True)
    spared = {*ledgers, folder / FORGOTTEN}
    for each in list(folder.iterdir()) if any(map(Path.exists, spared)) else ():
        if each.is_dir() and not each.is_symlink() and each not in spared:
            shutil.rmtree(each)
        elif each not in spared:
            each.unlink()
    if not any(map(Path.exists, spared)):
        shutil.rmtree(folder)


def ledgers_of_run(folder: Path) -> list[Path]:
    """Ledgers of a run, which are kept when it is deleted."""
    return sorted(each for each in folder.glob(f"{LEDGER}*") if (each / PARTICIPANTS).is_file())


def read_toml(file: Path) -> dict[str, Any]:
    """A TOML file as a dictionary; an error names the file."""
    try:
        return parse_toml(read_text(file))
    except ValueError as error:
        raise ValueError(f"{file} cannot be read as TOML: {error}") from None


def _run_folders(root: str) -> Iterator[str]:
    try:
        with os.scandir(root) as entries:
            inside = list(entries)
    except FileNotFoundError:  # deleted in the meantime
        return
    except OSError:  # reported as broken instead of skipped
        yield root
        return
    if _holds_run(root, {entry.name for entry in inside}):
        yield root
        return
    for below in sorted(inside, key=_natural):
        if below.is_dir(follow_symlinks=False) and not below.name.startswith("."):
            yield from _run_folders(below.path)


def _holds_run(path: str, names: set[str]) -> bool:
    if "run.json" in names:
        return True
    return bool(REPEAT.fullmatch(os.path.basename(path))) and (not names or any(name in names for name in OURS))


def _may_delete(path: Path) -> bool:
    try:
        if not path.is_dir() or path.is_symlink() or not _holds_run(str(path), set(os.listdir(path))):
            return False
        file = path / "run.json"
        # A run of a newer fedrank looks broken to this version.
        return not file.exists() or not read_json(file).get("format", FORMAT) > FORMAT
    except (OSError, TypeError):
        return False
    except ValueError:
        return bool(REPEAT.fullmatch(path.name))  # an unreadable run.json: a run if its folder is named like one


def _natural(entry: os.DirEntry[str]) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (0, part) for part in DIGITS.split(entry.name)]


def _load(path: Path) -> Run:
    """One run folder, from its small files and the last line of rounds.csv."""
    repeat = REPEAT.fullmatch(path.name)
    fold, seed = (int(repeat[1]), int(repeat[2])) if repeat else (0, 0)
    run = Run(
        path=path, experiment=path.parent.parent.name, variant=path.parent.name, fold=fold, seed=seed, status="broken"
    )
    try:
        if not (path / "run.json").exists():
            return run.broken("no run.json: stopped before its first round")
        run = Run(path=path, **Facts.values(path))
        if run.status not in STATES:
            return run.broken(f"run.json has status {run.status!r}, which is not one of {', '.join(STATES)}")
        if run.status == "running":
            # run.json was written when the run began, or was resumed.
            held = is_locked(path / LOCK)
            works = run.pid > 0 and is_alive(run.pid) if held is None else held
            status = "running" if works else "interrupted"
            return replace(run, status=status, round=_round_reached(path, run.round))
        if run.status == "finished":
            _check_end(run._file("rounds.csv"), run.round)
    except KeyError as missing:
        return run.broken(f"run.json lacks {missing}")
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        return run.broken(error_message(problem))
    return run


def _round_reached(path: Path, begun: int) -> int:
    """The last saved round of a run; without a checkpoint, the last round with a row."""
    saved = checkpoint_round(path)
    if saved is not None:
        return saved
    try:
        file = os.path.join(path, "rounds.csv")
        names, lines = _last_lines(file, END)
        return int(_cell(file, names, lines[-1], "round")) if lines else begun
    except (OSError, ValueError, OverflowError):  # being written, or not the number of a round
        return begun


def _check_end(file: str, round: int) -> None:
    with opened(file) as lines:
        cells = lines.readline().count(b",")
        lines.seek(max(0, os.fstat(lines.fileno()).st_size - END))
        end = lines.read()
    last = (end.splitlines() or [b""])[-1]
    if last.count(b",") != cells or last.split(b",")[0] != str(round).encode() or not end.endswith(b"\n"):
        raise ValueError(
            f"rounds.csv ends with {last[:40].decode(errors='replace')!r}, not with a complete row of round {round}"
        )


def _last_lines(file: str, size: int | None) -> tuple[list[str], list[str]]:
    """Column names of a table, and its complete rows within the last `size` bytes (None: all)."""
    with opened(file) as table:
        names = table.readline().decode().strip().split(",")
        end = os.fstat(table.fileno()).st_size
        if size is not None and end - table.tell() > size:
            table.seek(end - size)
            table.readline()  # the rest of a row
        return names, table.read().decode().split("\n")[:-1]  # a row after the last newline is being written


def _cell(file: str, names: list[str], line: str, column: str) -> float:
    cells = line.split(",")
    if len(cells) != len(names):
        name = os.path.basename(file)
        raise ValueError(f"{name} has a row of {len(cells)} cells where the header has {len(names)}")
    return float(cells[names.index(column)] or "nan")


def working_on(folder: Path) -> AbstractContextManager[None]:
    """Mark a run folder as in use by this process; the mark ends with the process in any case.

    A process id alone would not suffice: another process may have it after a restart.
    """
    return locked(folder / LOCK, str(folder))


def _matches(run: Run, name: str, wanted: Any) -> bool:
    value = run.settings.get(name) if name in run.settings else getattr(run, name, None)
    if isinstance(wanted, (list, tuple, set, frozenset)) and not isinstance(value, (list, tuple)):
        return value in wanted
    return bool(value == wanted)


def _version_of(file: str) -> tuple[str, int, int, int]:
    # A running experiment appends to its files: the cached text of an older state must not be used.
    # The inode is needed as well: if the clock is set back, a new file may have the time of the old one.
    state = os.stat(file)
    return file, state.st_ino, state.st_mtime_ns, state.st_size


# Bounded, because a thousand long runs do not fit into memory.
@functools.lru_cache(maxsize=64)
def _read_rounds(file: str, _inode: int, _changed: int, _size: int, finished: bool) -> dict[str, Column]:
    text = _text(file)
    whole = len(text) if finished else text.rfind("\n") + 1  # the last row may be incomplete
    names, columns = _columns(file, text[:whole] or text)
    if "round" not in names:
        raise ValueError(f"{os.path.basename(file)} lacks the column 'round'")
    return {name: _numbers(file, name, cells) for name, cells in zip(names, columns, strict=True)}


@functools.lru_cache(maxsize=64)
def _read_queries(file: str, _inode: int, _changed: int, _size: int) -> Queries:
    return _queries_in(file, _text(file))


def _queries_in(file: str, text: str) -> Queries:
    (_, *names), (ids, *columns) = _columns(file, text)
    values = {name: _numbers(file, name, cells) for name, cells in zip(names, columns, strict=True)}
    return np.array(ids, dtype=np.str_), values


# By its text: the baseline is the same in the folders of all variants and seeds.
_nothing_in = functools.lru_cache(maxsize=64)(_queries_in)


def _columns(file: str, text: str) -> tuple[list[str], list[list[str]]]:
    """Column names of a table, and the cells of each column."""
    lines = text.removesuffix("\n").split("\n")
    if '"' not in text and "\r" not in text and max(map(len, lines)) <= csv.field_size_limit():
        # Nearly all tables have no quotes: splitting is several times faster than parsing.
        flat = ",".join(lines).split(",")
        widths = [commas + 1 for commas in map(str.count, lines, itertools.repeat(","))]
    else:
        try:
            rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        except csv.Error as error:
            raise ValueError(f"{os.path.basename(file)} cannot be read as CSV: {error}") from None
        flat, widths = [cell for row in rows for cell in row], [len(row) for row in rows]
    if not any(flat):
        raise ValueError(f"{os.path.basename(file)} is empty")
    width = widths[0]
    if {*widths} != {width}:
        bad = next(i for i, cells in enumerate(widths) if cells != width)
        raise ValueError(
            f"{os.path.basename(file)} line {bad + 1} has {widths[bad]} cells where the header has {width}"
        )
    return flat[:width], [flat[width + i :: width] for i in range(width)]


def _text(file: str) -> str:
    return read_bytes(file).decode("utf-8")  # line ends within quotes stay as they are


# Rounds, interactions and bytes are equal in all repeats of most variants, and more than half of the data.
_last_read: dict[str, tuple[Sequence[str], Column]] = {}


def _numbers(file: str, name: str, cells: Sequence[str]) -> Column:
    before = _last_read.get(name)
    if before is not None and before[0] == cells:
        return before[1]
    try:
        if "" in cells:  # most rounds are not evaluated
            values = np.full(len(cells), np.nan)
            values[[row for row, cell in enumerate(cells) if cell]] = [*map(float, filter(None, cells))]
        else:
            values = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError as error:
        raise ValueError(f"{os.path.basename(file)} column {name!r}: {error}") from None
    values.setflags(write=False)
    if name == "round" or name in COUNTED:
        _last_read[name] = cells, values
    return values

"""Data sets built from search logs: users, times, queries, shown documents and clicks.

A data set is a folder of plain `.npy` and text files that `build_log` or `build_shown` writes and `load_log`
memory-maps. It is complete when it has a `facts.json`, which is written last.
"""

from __future__ import annotations

import math
import os
import time as clock
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.mapped import open_mapped
from fedrank.data.ranking import RankingData
from fedrank.data.values import LATEST, LONGEST_SWAP, MAX_OFFSET
from fedrank.files import add_path_to_errors, parse_json, read_bytes, read_text
from fedrank.types import Features

MAX_NAMES = 32 << 30  # bytes per file of names: enough for a billion documents
FORMAT = 1  # increase when the format of a folder changes
BEGUN = "begun.json"  # exists during a build
FACTS = "facts.json"  # exists in a complete folder
BROWSERS = (
    "persons: a user of the log is a browser, not a person. A person with two browsers counts as two users, so ε per "
    "user is not ε per person, and persons who share a browser count as one user"
)
_ALL = slice(None)


@dataclass(frozen=True)
class SearchLog:
    """A search log with result lists and features; entries are in order of time, arrays are memory-mapped."""

    features: Features  # [pairs, features]: one row for every distinct pair of a query and a document
    lists: NDArray[np.int64]  # [entries, longest]: rows of `features`, in the order shown; padded with -1
    user: NDArray[np.int32]  # [entries]: a row of `users`
    time: NDArray[np.int64]  # [entries]: seconds since 1970
    query: NDArray[np.int32]  # [entries]: a row of `queries`
    document: NDArray[np.int32]  # [pairs]: a row of `documents`; -1 if unknown
    users: tuple[str, ...]  # most active first
    queries: tuple[str, ...]
    documents: tuple[str, ...]  # ids of the collection, as far as it is known
    facts: dict[str, Any]  # settings, seed, counts, and reasons for dropped rows
    folder: Path
    # Synthetic lists around one click, 20 documents each.
    target: NDArray[np.int8] | None = None  # [entries]: index of the clicked document
    # Lists as shown to users, with any number of clicks; an entry is a page of results.
    clicks: NDArray[np.uint8] | None = None  # [entries, longest]: 1 if clicked
    first: NDArray[np.int32] | None = (
        None  # [entries]: positions before the first document; 10 on the second page of ten
    )
    dwell: NDArray[np.float32] | None = None  # [entries, longest]: dwell time in seconds; NaN if unknown
    scores: NDArray[np.float32] | None = None  # [entries, longest]: sampling scores; see `drawn`
    # [entries]: upper position, from 1 on the first page, of the adjacent pair that was drawn for a random swap with
    # probability 1/2; negative: it was swapped; 0: none was drawn
    swap: NDArray[np.int16] | None = None
    held_out: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))  # [entries]: not for training

    def __post_init__(self) -> None:
        if not len(self.held_out):  # a log without a split
            object.__setattr__(self, "held_out", np.zeros(len(self.user), np.bool_))

    def __len__(self) -> int:
        return len(self.user)

    @property
    def is_shown(self) -> bool:
        """Whether lists are those shown to users, not synthetic lists around a click."""
        return self.clicks is not None

    @property
    def drawn(self) -> tuple[float, float] | None:
        """Temperature and keep probability with which lists were sampled from `scores`; None: unknown.

        The best document stays at the top with probability `keep`; others are drawn one after the other, each with a
        probability proportional to exp(score / temperature).
        """
        return None if self.scores is None else (float(self.facts["temperature"]), float(self.facts["keep"]))

    @property
    def unit(self) -> str:
        """What a user is: a "person", or a "browser", which may be one of several or be shared."""
        return str(self.facts.get("unit", "person"))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(self.facts["feature_names"])

    @property
    def given(self) -> str:
        """The baseline ranking: lists are in the order shown; the published lists have no known order."""
        return "" if self.facts.get("settings", {}).get("published") == "AOL4FOLTR" else "file"

    def clicked(self, entries: NDArray[np.integer] | slice = _ALL) -> NDArray[np.int64]:
        """Rows of `features` that were clicked, entry by entry; one in each synthetic list."""
        lists, target = self.lists[entries], self.target
        if self.clicks is not None:
            chosen: NDArray[np.int64] = lists[self.clicks[entries] > 0]
            return chosen
        assert target is not None, "load_log checks this"
        return np.take_along_axis(lists, target[entries][:, None].astype(np.int64), axis=1)[:, 0]

    def check_retention(self, now: float | None = None) -> None:
        """Raise ValueError if entries are older than the retention period of the data set: they must not be used."""
        since = self.oldest_allowed(now)
        if since is not None and (expired := int(np.count_nonzero(np.asarray(self.time) < since))):
            raise ValueError(
                f"{self.folder} contains {expired:,} entries that are older than its retention period of "
                f"{self.facts['settings']['keep_days']:,} days (keep_days), so it is not used; delete them with "
                "`fedrank forget expired`"
            )

    def oldest_allowed(self, now: float | None = None) -> int | None:
        """The time, in seconds since 1970, before which the retention period has ended; None: there is no period."""
        days = self.facts.get("settings", {}).get("keep_days")
        # Full UTC days, as when it was built.
        return int((clock.time() if now is None else now) // 86_400 - days + 1) * 86_400 if days else None

    def training_rows(self) -> NDArray[np.int64]:
        """The entries that are not held out, in order of time."""
        return np.flatnonzero(~self.held_out)

    def rows_of(self, user: int) -> NDArray[np.int64]:
        """The entries of one user, in order of time."""
        return np.flatnonzero(self.user == user)


ARRAYS: dict[str, str] = {  # arrays of a data set, and their types
    "features": "<f4",
    "lists": "<i8",
    "target": "|i1",  # of synthetic lists
    "user": "<i4",
    "time": "<i8",
    "query": "<i4",
    "document": "<i4",
    "clicks": "|u1",  # of shown lists, as are the following
    "first": "<i4",
    "dwell": "<f4",  # optional
    "scores": "<f4",  # optional
    "swap": "<i2",  # optional
    "held_out": "|u1",  # optional
}
OPTIONAL = ("dwell", "scores", "swap")  # arrays of shown lists that a data set may lack
TEXTS = ("users", "queries", "documents")


def load_log(folder: str | os.PathLike[str]) -> SearchLog:
    r"""Open a data set built from a search log; its arrays are memory-mapped.

    >>> from pathlib import Path
    >>> import fedrank as fr
    >>> _ = Path("log.tsv").write_text("user\ttime\tquery\tclicked\nann\t2024-05-01\troof repair\td3")
    >>> documents = ["id\ttitle\ttext", *(f"d{n}\troof\trepair {n}" for n in range(20))]
    >>> _ = Path("documents.tsv").write_text("\n".join(documents))
    >>> _ = fr.build_log("log.tsv", "documents.tsv", out="log-data")
    >>> log = fr.load_log("log-data")
    >>> clicked = log.lists[0, log.target[0]]
    >>> log.users[log.user[0]], log.queries[log.query[0]], log.documents[log.document[clicked]]
    ('ann', 'roof repair', 'd3')
    """
    folder = Path(folder)
    if not (folder / FACTS).is_file():
        if (folder / BEGUN).is_file():
            raise ValueError(f"{folder} is incomplete; run the same command again to continue the build")
        raise FileNotFoundError(
            f"{folder} is not a data set of a search log: it has no {FACTS}; create one with `fedrank data build`"
        )
    facts = parse_json(read_text(folder / FACTS))
    if not isinstance(facts, dict):
        raise ValueError(f"{folder / FACTS} contains no facts; {_DAMAGED}")
    if facts.get("format") != FORMAT:
        raise ValueError(
            f"{folder} has format {facts.get('format')}, but this version of fedrank reads format {FORMAT}; build it "
            "again"
        )
    if not all(isinstance(facts.get(key), dict) for key in ("shapes", "counts")):
        raise ValueError(f"{folder / FACTS} does not match the files in the folder; {_DAMAGED}")
    wanted = ["features", "lists", "user", "time", "query", "document", "target"]
    if "clicks" in facts["shapes"]:
        wanted[-1:] = ["clicks", "first", *(name for name in OPTIONAL if name in facts["shapes"])]
    wanted += [name for name in ("held_out",) if name in facts["shapes"]]
    arrays: dict[str, Any] = {name: _open(folder, name, facts) for name in wanted}
    if "held_out" in arrays:
        arrays["held_out"] = np.asarray(arrays["held_out"]) > 0
    texts: dict[str, Any] = {name: read_names(folder / f"{name}.txt") for name in TEXTS}
    for name in TEXTS:
        if len(texts[name]) != facts["counts"].get(name):
            raise ValueError(f"{folder / name}.txt has {len(texts[name])} lines; {_DAMAGED}")
    log = SearchLog(**arrays, **texts, facts=facts, folder=folder)
    _check_within(log)
    return log


def log_files(folder: str) -> dict[str, Path]:
    """Return the files of a data set by name, without its card, which contains the date."""
    names = [FACTS, *(f"{name}.npy" for name in ARRAYS), *(f"{name}.txt" for name in TEXTS)]
    paths = {f"{folder}/{name}": Path(folder) / name for name in names}
    return {name: path for name, path in paths.items() if path.is_file()}


def _check_within(log: SearchLog) -> None:
    """Check that indices are in range, since compiled loops do not check them."""
    entries, names = len(log.lists), log.facts.get("feature_names")
    each_entry = (log.user, log.time, log.query, log.target if log.clicks is None else log.first, log.swap)
    like_lists = [each for each in (log.clicks, log.dwell, log.scores) if each is not None]
    shapes: list[tuple[NDArray[Any], int, int]] = [
        (log.lists, 2, entries),
        (log.features, 2, len(log.document)),
        (log.document, 1, len(log.document)),
    ]
    shapes += [(each, 1, entries) for each in (*each_entry, log.held_out) if each is not None]
    fits = all(each.ndim == dimensions and len(each) == rows for each, dimensions, rows in shapes)
    fits = fits and all(each.shape == log.lists.shape for each in like_lists)
    if not fits or not isinstance(names, list) or len(names) != log.features.shape[1]:
        raise ValueError(f"the arrays of {log.folder} differ in length; {_DAMAGED}")
    for name, values, low, high in (
        ("lists", log.lists, -1 if log.is_shown else 0, len(log.features)),
        ("target", log.target, 0, log.lists.shape[1]),
        ("user", log.user, 0, len(log.users)),
        ("time", log.time, 1 - LATEST, LATEST),
        ("query", log.query, 0, len(log.queries)),
        ("document", log.document, -1, len(log.documents)),
        ("clicks", log.clicks, 0, 2),
        ("first", log.first, 0, MAX_OFFSET),
        ("swap", log.swap, 1 - LONGEST_SWAP, LONGEST_SWAP),
    ):
        for first in range(0, 0 if values is None else len(values), _SOME):
            some = values[first : first + _SOME]  # type: ignore[index]  # set wherever `first` is
            if some.size and not low <= int(some.min()) <= int(some.max()) < high:
                raise ValueError(f"{log.folder / name}.npy contains values outside {low} to {high - 1}; {_DAMAGED}")
    if np.any(log.time[1:] < log.time[:-1]):  # the temporal split needs sorted entries
        raise ValueError(f"{log.folder / 'time'}.npy is not sorted; {_DAMAGED}")
    if log.is_shown:
        _check_shown(log)


def _check_shown(log: SearchLog) -> None:
    """Check lists for gaps, values of missing documents, and impossible sampling settings."""
    for begin in range(0, len(log), _SOME):
        some = slice(begin, begin + _SOME)
        there = log.lists[some] >= 0
        gaps = not there[:, :1].all() or np.any(there[:, 1:] & ~there[:, :-1])
        late = np.any(log.clicks[some][~there])  # type: ignore[index]  # a shown log has clicks
        dwell = log.dwell is not None and not _are_seconds(log.dwell[some], there)
        scores = log.scores is not None and not np.isfinite(log.scores[some][there]).all()
        for name, wrong, problem in (
            ("lists", gaps, "has an empty list, or -1 within one"),
            ("clicks", late, "has clicks after the end of a list"),
            ("dwell", dwell, "contains times that are infinite, negative or after the end of a list"),
            ("scores", scores, "contains scores that are not finite"),
        ):
            if wrong:
                raise ValueError(f"{log.folder / name}.npy {problem}; {_DAMAGED}")
    if log.scores is not None:
        drawn = [log.facts.get(name) for name in ("temperature", "keep")]
        known = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in drawn)
        if not known or not (0 < drawn[0] < math.inf and 0 <= drawn[1] <= 1):  # type: ignore[operator]
            raise ValueError(
                f"{log.folder / FACTS} contains temperature {drawn[0]!r} and keep {drawn[1]!r} for sampled lists, "
                f"which are invalid; {_DAMAGED}"
            )


def _are_seconds(dwell: NDArray[np.float32], there: NDArray[np.bool_]) -> bool:
    known = ~np.isnan(dwell)
    return bool(np.isfinite(dwell[known]).all() and (dwell[known] >= 0).all() and there[known].all())


def as_ranking(
    log: SearchLog, rows: NDArray[np.integer] | Sequence[int], features: Features | None = None
) -> RankingData:
    """Return some entries as queries; a query's id is its entry. Clicked documents have label 1.

    Documents are in the order of their lists. For shown lists, `position` is the position of each document. `features`
    defaults to those of the log. They stay memory-mapped if they are contiguous, as in published logs; otherwise they
    are copied to memory.
    """
    rows = np.asarray(rows, dtype=np.int64)
    lengths = lengths_of(log, rows)
    if features is None:
        stretch = stretch_of(log, rows)
        features = log.features[pairs_of(log, rows) if stretch is None else stretch]
    about: dict[str, Any] = {}
    if log.clicks is not None and log.first is not None:
        columns = np.arange(log.lists.shape[1])
        there = columns < lengths[:, None]
        grades = log.clicks[rows][there].astype(np.int8)
        about["position"] = (log.first[rows][:, None] + columns)[there].astype(np.int32)
        if log.scores is not None:
            about |= {"drawn": log.scores[rows][there].astype(np.float32), "draw": log.drawn}
    else:
        assert log.target is not None, "load_log checks this"
        grid = np.zeros((len(rows), log.lists.shape[1]), dtype=np.int8)
        grid[np.arange(len(rows)), log.target[rows]] = 1
        grades = grid.ravel()
    return RankingData(
        features=features,
        grades=grades,
        offsets=np.concatenate(([0], np.cumsum(lengths))),
        query_ids=rows.astype(f"<U{len(str(len(log)))}"),
        name=log.folder.name,
        top_grade=1,
        feature_names=log.feature_names,
        given=log.given,
        **about,
    )


def lengths_of(log: SearchLog, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """[rows]: the lengths of the lists of some entries."""
    if not log.is_shown:
        return np.full(len(rows), log.lists.shape[1], dtype=np.int64)
    lengths = [np.count_nonzero(log.lists[rows[i : i + _SOME]] >= 0, axis=1) for i in range(0, len(rows), _SOME)]
    return np.concatenate([np.empty(0, np.int64), *lengths])


def pairs_of(log: SearchLog, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows of `features` of the documents of some entries, list by list."""
    flat: NDArray[np.int64] = log.lists[rows].ravel()
    return flat[flat >= 0] if log.is_shown else flat


def stretch_of(log: SearchLog, rows: NDArray[np.integer]) -> slice | None:
    """The slice of the features of some entries, if contiguous and in the order of their lists."""
    start = end = int(log.lists[rows[0], 0]) if len(rows) else 0
    for first in range(0, len(rows), _SOME):
        some = pairs_of(log, rows[first : first + _SOME])
        if not np.array_equal(some, end + np.arange(len(some))):
            return None
        end += len(some)
    return slice(start, end)


def log_unit(folder: str | os.PathLike[str] | None) -> str:
    """What a user of a log is, "person" or "browser"; empty if the log cannot be read, which loading it reports."""
    try:
        facts = parse_json(read_text(Path(folder) / FACTS)) if folder is not None else {}
    except (OSError, ValueError):
        return ""
    return str(facts.get("unit", "person")) if isinstance(facts, dict) else ""


def not_persons(folder: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """Limits of an ε per user of a log: it does not cover persons if users are browsers."""
    return (BROWSERS,) if log_unit(folder) == "browser" else ()


def read_names(path: Path) -> tuple[str, ...]:
    """Read the lines of a file from `write_names`; only a newline ends a line."""
    text = read_bytes(path, MAX_NAMES).decode("utf-8")
    return tuple(text.split("\n")[:-1])


def write_names(path: Path, names: Sequence[str]) -> None:
    """Write one name per line."""
    with add_path_to_errors(path):
        path.write_bytes("".join(f"{name}\n" for name in names).encode("utf-8"))


_DAMAGED = "the folder is damaged: delete it and build it again"
_SOME = 100_000  # entries with lists in memory at a time


def _open(folder: Path, name: str, facts: dict[str, Any]) -> NDArray[Any]:
    path, kind = folder / f"{name}.npy", ARRAYS[name]
    try:
        found = open_mapped(path)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be opened ({error}); {_DAMAGED}") from None
    if found.dtype.str != kind or list(found.shape) != facts["shapes"].get(name):
        raise ValueError(
            f"{path} has type {found.dtype.str} and shape {list(found.shape)}, not type {kind}; {_DAMAGED}"
        )
    return found

"""Data sets that were built from search logs: who searched when for what, saw which documents and clicked which.

A data set is a folder of plain `.npy` and text files that `build_log`, `build_shown` or `convert_aol4foltr` writes and
`load_log` opens without reading it into memory. It is complete when it has its `facts.json`, which is written last.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.mapped import open_mapped
from fedrank.data.ranking import RankingData
from fedrank.data.values import LATEST, MAX_OFFSET
from fedrank.files import naming, parse_json, read_bytes, read_text
from fedrank.types import Features

MAX_NAMES = 32 << 30  # bytes of a file of names: those of a billion documents
FORMAT = 1  # raise it whenever a folder would be read differently
BEGUN = "begun.json"  # lies in a folder while it is being built
FACTS = "facts.json"  # lies in a complete folder
BROWSERS = (
    "persons: a user of the log is a browser, not a person. Somebody with two browsers counts as two, so that an ε per "
    "user is not one per person, and people who share a browser count as one"
)
_ALL = slice(None)


@dataclass(frozen=True)
class SearchLog:
    """A search log with result lists and features; entries are in order of time, arrays are memory-mapped."""

    features: Features  # [pairs, features]: one row for every distinct pair of a query and a document
    lists: NDArray[np.int64]  # [entries, longest]: rows of `features`, in the order shown; -1 behind a shorter list
    user: NDArray[np.int32]  # [entries]: a row of `users`
    time: NDArray[np.int64]  # [entries]: seconds since 1970
    query: NDArray[np.int32]  # [entries]: a row of `queries`
    document: NDArray[np.int32]  # [pairs]: a row of `documents`; -1 where it is not known
    users: tuple[str, ...]  # most active first
    queries: tuple[str, ...]
    documents: tuple[str, ...]  # ids of the whole collection, or of all that is known of it
    facts: dict[str, Any]  # settings, seed, counts, and what was dropped and why
    folder: Path
    # Lists that were made up around one click, 20 documents each.
    target: NDArray[np.int8] | None = None  # [entries]: which of the 20 was clicked
    # Lists as they were shown, any number of clicks on each; an entry is a page of results.
    clicks: NDArray[np.uint8] | None = None  # [entries, longest]: 1 where it was clicked
    first: NDArray[np.int32] | None = (
        None  # [entries]: positions before the first document; 10 on the second page of ten
    )
    dwell: NDArray[np.float32] | None = None  # [entries, longest]: seconds spent there; NaN where it is not known
    scores: NDArray[np.float32] | None = None  # [entries, longest]: by which the list was drawn; see `drawn`

    def __len__(self) -> int:
        return len(self.user)

    @property
    def is_shown(self) -> bool:
        """Whether lists are those that people saw, not made up around a click."""
        return self.clicks is not None

    @property
    def drawn(self) -> tuple[float, float] | None:
        """Temperature and keep of the draws behind `scores`, so that their probabilities are known; None: they are not.

        The best document stays at the top with probability `keep`; others are drawn one after the other, each with a
        probability proportional to exp(score / temperature).
        """
        return None if self.scores is None else (float(self.facts["temperature"]), float(self.facts["keep"]))

    @property
    def unit(self) -> str:
        """What a user is: a "person"; or a "browser", of which a person may have several and which several may use."""
        return str(self.facts.get("unit", "person"))

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(self.facts["feature_names"])

    @property
    def given(self) -> str:
        """Lists stand in the order in which they count as shown; the published ones in none that is known."""
        return "" if self.facts.get("settings", {}).get("published") == "AOL4FOLTR" else "file"

    def clicked(self, entries: NDArray[np.integer] | slice = _ALL) -> NDArray[np.int64]:
        """Rows of `features` that were clicked in some entries, entry by entry; one in each made-up list."""
        lists, target = self.lists[entries], self.target
        if self.clicks is not None:
            chosen: NDArray[np.int64] = lists[self.clicks[entries] > 0]
            return chosen
        assert target is not None, "load_log has seen to it"
        return np.take_along_axis(lists, target[entries][:, None].astype(np.int64), axis=1)[:, 0]

    def rows_of(self, user: int) -> NDArray[np.int64]:
        """The entries of one user, in order of time."""
        return np.flatnonzero(self.user == user)


ARRAYS: dict[str, str] = {  # files of a data set with made-up lists, and their types
    "features": "<f4",
    "lists": "<i8",
    "target": "|i1",
    "user": "<i4",
    "time": "<i8",
    "query": "<i4",
    "document": "<i4",
}
SHOWN_ARRAYS: dict[str, str] = {  # of one with lists as they were shown
    **{name: kind for name, kind in ARRAYS.items() if name != "target"},
    "clicks": "|u1",
    "first": "<i4",
}
SHOWN_MORE: dict[str, str] = {"dwell": "<f4", "scores": "<f4"}  # which it may have, too
TEXTS = ("users", "queries", "documents")


def load_log(folder: str | os.PathLike[str]) -> SearchLog:
    r"""Open a data set that was built from a search log; its arrays are memory-mapped.

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
            raise ValueError(f"{folder} is half-built; run the same command again, and it continues")
        raise FileNotFoundError(
            f"{folder} is no data set of a search log: it has no {FACTS}; make one with `fedrank logs build`"
        )
    facts = parse_json(read_text(folder / FACTS))
    if not isinstance(facts, dict):
        raise ValueError(f"{folder / FACTS} holds no facts; {_DAMAGED}")
    if facts.get("format") != FORMAT:
        raise ValueError(f"{folder} has format {facts.get('format')}, and this fedrank reads {FORMAT}; build it again")
    if not all(isinstance(facts.get(key), dict) for key in ("shapes", "counts")):
        raise ValueError(f"{folder / FACTS} does not describe the files beside it; {_DAMAGED}")
    wanted = ARRAYS
    if "clicks" in facts["shapes"]:
        wanted = SHOWN_ARRAYS | {name: kind for name, kind in SHOWN_MORE.items() if name in facts["shapes"]}
    arrays: dict[str, Any] = {name: _open(folder, name, kind, facts) for name, kind in wanted.items()}
    texts: dict[str, Any] = {name: read_names(folder / f"{name}.txt") for name in TEXTS}
    for name in TEXTS:
        if len(texts[name]) != facts["counts"].get(name):
            raise ValueError(f"{folder / name}.txt has {len(texts[name])} lines; {_DAMAGED}")
    log = SearchLog(**arrays, **texts, facts=facts, folder=folder)
    _check_within(log)
    return log


def log_files(folder: str) -> dict[str, Path]:
    """The files of a data set that was built from a search log, by name, but for its card, which says when."""
    names = [
        FACTS,
        *(f"{name}.npy" for name in (*ARRAYS, *SHOWN_ARRAYS, *SHOWN_MORE)),
        *(f"{name}.txt" for name in TEXTS),
    ]
    paths = {f"{folder}/{name}": Path(folder) / name for name in dict.fromkeys(names)}
    return {name: path for name, path in paths.items() if path.is_file()}


def _check_within(log: SearchLog) -> None:
    """Refuse rows that are not there: compiled loops would read whatever lies in memory instead."""
    entries, names = len(log.lists), log.facts.get("feature_names")
    each_entry = (log.user, log.time, log.query, log.target if log.clicks is None else log.first)
    like_lists = [each for each in (log.clicks, log.dwell, log.scores) if each is not None]
    shapes: list[tuple[NDArray[Any], int, int]] = [
        (log.lists, 2, entries),
        (log.features, 2, len(log.document)),
        (log.document, 1, len(log.document)),
    ]
    shapes += [(each, 1, entries) for each in each_entry if each is not None]
    fits = all(each.ndim == dimensions and len(each) == rows for each, dimensions, rows in shapes)
    fits = fits and all(each.shape == log.lists.shape for each in like_lists)
    if not fits or not isinstance(names, list) or len(names) != log.features.shape[1]:
        raise ValueError(f"the arrays of {log.folder} are not of the same length; {_DAMAGED}")
    for name, values, low, high in (
        ("lists", log.lists, -1 if log.is_shown else 0, len(log.features)),
        ("target", log.target, 0, log.lists.shape[1]),
        ("user", log.user, 0, len(log.users)),
        ("time", log.time, 1 - LATEST, LATEST),
        ("query", log.query, 0, len(log.queries)),
        ("document", log.document, -1, len(log.documents)),
        ("clicks", log.clicks, 0, 2),
        ("first", log.first, 0, MAX_OFFSET),
    ):
        for first in range(0, 0 if values is None else len(values), _SOME):
            some = values[first : first + _SOME]  # type: ignore[index]  # not None: there would be no `first`
            if some.size and not low <= int(some.min()) <= int(some.max()) < high:
                raise ValueError(f"{log.folder / name}.npy holds rows not from {low} to {high - 1}; {_DAMAGED}")
    if np.any(log.time[1:] < log.time[:-1]):  # the latest entries are for testing
        raise ValueError(f"{log.folder / 'time'}.npy is not in order of time; {_DAMAGED}")
    if log.is_shown:
        _check_shown(log)


def _check_shown(log: SearchLog) -> None:
    """Refuse lists with gaps, values of documents that are not there, and draws that cannot have been."""
    for begin in range(0, len(log), _SOME):
        some = slice(begin, begin + _SOME)
        there = log.lists[some] >= 0
        for name, sound in (
            ("lists", there[:, :1].all() and not np.any(there[:, 1:] & ~there[:, :-1])),
            ("clicks", not np.any(log.clicks[some][~there])),  # type: ignore[index]  # a shown log has them
            ("dwell", log.dwell is None or _are_seconds(log.dwell[some], there)),
            ("scores", log.scores is None or bool(np.isfinite(log.scores[some][there]).all())),
        ):
            if not sound:
                raise ValueError(f"{log.folder / name}.npy {_UNSOUND[name]}; {_DAMAGED}")
    if log.scores is not None:
        drawn = [log.facts.get(name) for name in ("temperature", "keep")]
        known = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in drawn)
        if not known or not (0 < drawn[0] < math.inf and 0 <= drawn[1] <= 1):  # type: ignore[operator]
            raise ValueError(
                f"{log.folder / FACTS} says that lists were drawn with temperature {drawn[0]!r} and keep {drawn[1]!r}, "
                f"which is impossible; {_DAMAGED}"
            )


_UNSOUND = {
    "lists": "has an empty list, or -1 within one",
    "clicks": "has clicks behind the end of a list",
    "dwell": "holds times that are infinite, negative, or behind the end of a list",
    "scores": "holds scores that are not finite",
}


def _are_seconds(dwell: NDArray[np.float32], there: NDArray[np.bool_]) -> bool:
    known = ~np.isnan(dwell)
    return bool(np.isfinite(dwell[known]).all() and (dwell[known] >= 0).all() and there[known].all())


def as_ranking(
    log: SearchLog, rows: NDArray[np.integer] | Sequence[int], features: Features | None = None
) -> RankingData:
    """Some entries as queries; a query's id is its entry. What was clicked has grade 1.

    Documents stand in the order of their lists. Of lists that were shown, `position` is where each of them stood.
    Features are those of the log unless they are given, a row for every document. They stay in their file where they
    lie there one after the other, as those of published logs do; otherwise they are copied to memory.
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
        assert log.target is not None, "load_log has seen to it"
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
    """[rows]: how many documents the lists of some entries hold."""
    if not log.is_shown:
        return np.full(len(rows), log.lists.shape[1], dtype=np.int64)
    lengths = [np.count_nonzero(log.lists[rows[i : i + _SOME]] >= 0, axis=1) for i in range(0, len(rows), _SOME)]
    return np.concatenate([np.empty(0, np.int64), *lengths])


def pairs_of(log: SearchLog, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Rows of `features` of the documents of some entries, list by list."""
    flat: NDArray[np.int64] = log.lists[rows].ravel()
    return flat[flat >= 0] if log.is_shown else flat


def stretch_of(log: SearchLog, rows: NDArray[np.integer]) -> slice | None:
    """Where the features of some entries lie, if they lie one after the other in the order of their lists."""
    start = end = int(log.lists[rows[0], 0]) if len(rows) else 0
    for first in range(0, len(rows), _SOME):
        some = pairs_of(log, rows[first : first + _SOME])
        if not np.array_equal(some, end + np.arange(len(some))):
            return None
        end += len(some)
    return slice(start, end)


def not_persons(folder: str | os.PathLike[str] | None) -> tuple[str, ...]:
    """What no ε per user of a log covers: persons, where users are browsers. Empty where they are persons."""
    try:
        facts = parse_json(read_text(Path(folder) / FACTS)) if folder is not None else {}
    except (OSError, ValueError):  # loading the log reports it
        return ()
    return (BROWSERS,) if isinstance(facts, dict) and facts.get("unit") == "browser" else ()


def read_names(path: Path) -> tuple[str, ...]:
    """The lines of a text file that `write_names` wrote; only its own line ends count as such."""
    text = read_bytes(path, MAX_NAMES).decode("utf-8")
    return tuple(text.split("\n")[:-1])


def write_names(path: Path, names: Sequence[str]) -> None:
    """One name a line."""
    with naming(path):
        path.write_bytes("".join(f"{name}\n" for name in names).encode("utf-8"))


_DAMAGED = "the folder is damaged: delete it and build it again"
_SOME = 100_000  # entries whose lists are in memory at a time


def _open(folder: Path, name: str, kind: str, facts: dict[str, Any]) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    try:
        found = open_mapped(path)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} cannot be opened ({error}); {_DAMAGED}") from None
    if found.dtype.str != kind or list(found.shape) != facts["shapes"].get(name):
        raise ValueError(f"{path} is {found.dtype.str} {list(found.shape)}, not {kind}; {_DAMAGED}")
    return found

"""Search logs: who searched when for what and clicked which document; and the data sets that are built from them.

A data set is a folder of plain `.npy` and text files that `build_log` or `convert_published` writes and `load_log`
opens without reading it into memory. It is complete when it has its `facts.json`, which is written last.
"""

from __future__ import annotations

import csv
import math
import os
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.documents import SHOWN, Documents, as_text, find_columns, is_name, kind_of, text_lines
from fedrank.data.mapped import open_mapped
from fedrank.data.ranking import RankingData
from fedrank.files import naming, parse_json, read_bytes, read_text
from fedrank.types import Features

MOST_NAMES = 32 << 30  # bytes of a file of names: those of a billion documents
LAST_PLACE = 1_000_000  # of a result; nobody turned so many pages
FORMAT = 1  # raise it whenever a folder would be read differently
BEGUN = "begun.json"  # lies in a folder while it is being built
FACTS = "facts.json"  # lies in a complete folder
COLUMNS: dict[str, tuple[str, ...]] = {  # what a column may be called, in any case of letters
    "user": ("user", "user_id", "userid", "anonid"),
    "time": ("time", "timestamp", "datetime", "date", "querytime"),
    "query": ("query", "query_text", "text"),
    "document": ("document", "doc", "doc_id", "docid", "document_id", "clicked", "clickurl"),
}
MATCHES = ("auto", "id", "url")
AOL = {"anonid", "query", "querytime", "itemrank", "clickurl"}  # the columns of the log that AOL released in 2006

BROWSERS = (
    "persons: a user of the log is a browser, not a person. Somebody with two browsers counts as two, so that an ε per "
    "user is not one per person, and people who share a browser count as one"
)
NO_CLICK = "no click"
NO_USER = "no user"
EMPTY_QUERY = "empty query"
BAD_TIME = "unreadable time"
UNKNOWN = "click on an unknown document"
SEVERAL = "click on a url of several documents"
BAD_BYTES = "not UTF-8"
BAD_ROW = "not a row"  # broken JSON, or quotes of CSV that do not close

_SECONDS = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?", re.ASCII)
_LATEST = 10**11  # seconds, in the year 5138; what is larger counts milliseconds

_ALL = slice(None)


@dataclass(frozen=True)
class Clicks:
    """The sound entries of a log in order of time, as columns; and what became of the other rows."""

    user: NDArray[np.int32]  # [entries], a row of `users`
    time: NDArray[np.int64]  # [entries], seconds since 1970
    query: NDArray[np.int32]  # [entries], a row of `queries`
    document: NDArray[np.int32]  # [entries], a row of the collection: what was clicked
    users: list[str]
    queries: list[str]  # normalised
    rows: int  # of the file, sound or not
    left_out: dict[str, LeftOut]  # by reason
    out_of_order: int  # entries that stood behind a later one

    def __len__(self) -> int:
        return len(self.user)


@dataclass(frozen=True)
class LeftOut:
    """How many rows were left out for one reason, and where the first of them stand."""

    count: int
    lines: tuple[int, ...]  # at most SHOWN

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.lines) else ""
        return f"{self.count:,} (line{'s' * (self.count > 1)} {', '.join(map(str, self.lines))}{more})"


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
    first: NDArray[np.int32] | None = None  # [entries]: places before the first document; 10 on the second page of ten
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


def read_clicks(
    path: str | os.PathLike[str],
    documents: Documents,
    columns: Mapping[str, str] | None = None,
    match: str = "auto",
) -> Clicks:
    """Read a log: TSV, CSV or JSON Lines with columns for user, time, query and clicked document, or AOL's own format.

    A path such as `ir_datasets:aol-ia` names a log of that package instead, whose lines are its searches.
    `columns` says what they are called where it is not obvious. A time is a date as in ISO 8601, without a zone in UTC,
    or seconds since 1970. `match` says whether clicks name documents by id or by url; "auto" takes urls for AOL's
    format and ids otherwise. A row that cannot be used is counted with its reason, never guessed at.
    """
    path = Path(path)
    if match not in MATCHES:
        raise ValueError(f"match = {match!r}: clicks name documents by one of {', '.join(MATCHES)}")
    for name in columns or {}:
        if name not in COLUMNS:
            raise ValueError(f"columns: no {name!r} is read; choose among {', '.join(COLUMNS)}")
    left_out: dict[str, tuple[list[int], list[int]]] = {}
    users: dict[str, int] = {}
    queries: dict[str, int] = {}
    user, time, query, document = array("i"), array("q"), array("i"), array("i")
    rows = 0
    known: dict[str, int] | None = None
    for number, cells, aol, trouble in _cells(path, columns or {}):
        rows += 1
        if known is None and cells is not None:
            by_url = match == "url" or (match == "auto" and aol)
            known = _by_url(documents) if by_url else {name: row for row, name in enumerate(documents.ids)}
        reason, seconds, text, place = trouble, 0, "", -1
        if cells is not None and known is not None:
            who, when, asked, clicked = cells
            text = normalised(asked)
            moment = seconds_of(when)
            place = known.get(_plain_url(clicked) if by_url else clicked.strip(), -1)
            reason = (
                NO_CLICK
                if not clicked.strip()
                else NO_USER
                if not is_name(who.strip())
                else EMPTY_QUERY
                if not is_name(text)
                else BAD_TIME
                if moment is None
                else UNKNOWN
                if place == -1
                else SEVERAL
                if place == _SEVERAL
                else ""
            )
            seconds = moment or 0
            if not reason:
                user.append(users.setdefault(who.strip(), len(users)))
                time.append(seconds)
                query.append(queries.setdefault(text, len(queries)))
                document.append(place)
        if reason:
            count, lines = left_out.setdefault(reason, ([0], []))
            count[0] += 1
            if len(lines) < SHOWN:
                lines.append(number)
    when_sorted = np.array(time, dtype=np.int64)
    order = np.argsort(when_sorted, kind="stable")
    latest = np.maximum.accumulate(when_sorted) if len(when_sorted) else when_sorted
    return Clicks(
        user=np.array(user, dtype=np.int32)[order],
        time=when_sorted[order],
        query=np.array(query, dtype=np.int32)[order],
        document=np.array(document, dtype=np.int32)[order],
        users=list(users),
        queries=list(queries),
        rows=rows,
        left_out={reason: LeftOut(count[0], tuple(lines)) for reason, (count, lines) in sorted(left_out.items())},
        out_of_order=int(np.count_nonzero(when_sorted < latest)),
    )


def normalised(query: str) -> str:
    """A query as it is compared with others: small letters, single blanks.

    >>> normalised("  New  York ")
    'new york'
    """
    return " ".join(query.lower().split())


def seconds_of(text: str) -> int | None:
    """Seconds since 1970 of a date or of a number of seconds; None where it is neither.

    >>> seconds_of("1970-01-02 00:00:01"), seconds_of("86401.9"), seconds_of("yesterday")
    (86401, 86401, None)
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        value = float(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
            value = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    return math.floor(value) if abs(value) < _LATEST else None


def load_log(folder: str | os.PathLike[str]) -> SearchLog:
    """Open a data set that was built from a search log."""
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
        raise ValueError(f"{folder / FACTS} does not say what lies beside it; {_DAMAGED}")
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
        ("time", log.time, 1 - _LATEST, _LATEST),
        ("query", log.query, 0, len(log.queries)),
        ("document", log.document, -1, len(log.documents)),
        ("clicks", log.clicks, 0, 2),
        ("first", log.first, 0, LAST_PLACE),
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
    """Refuse lists with gaps, what is said of documents that are not there, and draws that cannot have been."""
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

    Documents stand in the order of their lists. Of lists that were shown, `place` says where each of them stood.
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
        about["place"] = (log.first[rows][:, None] + columns)[there].astype(np.int32)
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
    except (OSError, ValueError):  # whoever needs the log says so
        return ()
    return (BROWSERS,) if isinstance(facts, dict) and facts.get("unit") == "browser" else ()


def read_names(path: Path) -> tuple[str, ...]:
    """The lines of a text file that `write_names` wrote; only its own line ends count as such."""
    text = read_bytes(path, MOST_NAMES).decode("utf-8")
    return tuple(text.split("\n")[:-1])


def write_names(path: Path, names: Sequence[str]) -> None:
    """One name a line."""
    with naming(path):
        path.write_bytes("".join(f"{name}\n" for name in names).encode("utf-8"))


_DAMAGED = "the folder is damaged: delete it and build it again"
_SEVERAL = -2
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


_Cells = tuple[str, str, str, str]  # user, time, query, document


def _cells(path: Path, chosen: Mapping[str, str]) -> Iterator[tuple[int, _Cells | None, bool, str]]:
    """Line number, the four cells or None, whether this is AOL's format, and what is wrong where there are no cells."""
    if from_ir_datasets.is_there(path):
        for number, found in from_ir_datasets.clicks_of(path):
            yield number, found, False, ""
        return
    kind = kind_of(path)
    names: dict[str, str] = {}
    places: list[int] = []
    width, aol = 0, False
    for number, line in text_lines(path):
        try:
            text = line.decode("utf-8-sig" if not names else "utf-8")
        except UnicodeDecodeError:
            if kind != "json" and not names:
                raise ValueError(
                    f"{path}, line {number}: the names of the columns are not UTF-8; convert the file"
                ) from None
            yield number, None, aol, BAD_BYTES
            continue
        if kind == "json":
            row = _object(text)
            if row is None:
                yield number, None, aol, BAD_ROW
                continue
            if not names:
                aol = _is_aol(list(row))
                names = find_columns(list(row), COLUMNS, chosen, COLUMNS, f"{path}, line {number}")
            user, time, query, document = (as_text(row.get(names[name])) for name in COLUMNS)
            yield number, (user, time, query, document), aol, ""
            continue
        cells = text.split("\t") if kind == "tsv" else _comma_separated(text)
        if not names:
            if cells is None:
                raise ValueError(f"{path}, line {number}: quotes in the names of the columns do not close; mend them")
            aol, width = _is_aol(cells), len(cells)
            names = find_columns(cells, COLUMNS, chosen, COLUMNS, f"{path}, line {number}")
            places = [cells.index(names[name]) for name in COLUMNS]
        elif cells is None or len(cells) > width:
            yield number, None, aol, BAD_ROW
        else:
            cells += [""] * (width - len(cells))
            user, time, query, document = (cells[place] for place in places)
            yield number, (user, time, query, document), aol, ""


def _object(text: str) -> dict[str, Any] | None:
    try:
        row = parse_json(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _comma_separated(line: str) -> list[str] | None:
    # Line by line, since no entry spans two: a quote that does not close costs one row, not all that follow.
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        return None


def _is_aol(names: Sequence[str]) -> bool:
    return {name.strip().lower() for name in names} >= AOL


def _by_url(documents: Documents) -> dict[str, int]:
    known: dict[str, int] = {}
    for row, url in enumerate(documents.url):
        if url:
            plain = _plain_url(url)
            known[plain] = _SEVERAL if plain in known else row
    if not known:
        raise ValueError("clicks name documents by url, but no document has one; give documents urls, or match by id")
    return known


def _plain_url(url: str) -> str:
    """A url without what differs between ways to write it: case, scheme, a slash at its end."""
    return re.sub(r"^https?://", "", url.strip().lower()).rstrip("/")

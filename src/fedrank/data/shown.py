"""Lists as they were shown and what was clicked, as a log tells it: read from plain tables, or from UBI (`ubi.py`).

A table (TSV, CSV or JSON Lines) has a row for every page of results that somebody saw: who, when, the query, the
documents in the order shown, those that were clicked, and if it is known the places before the first of them, seconds
spent on each clicked one, and the scores by which the list was drawn.
"""

from __future__ import annotations

import csv
import itertools
import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.documents import Documents, find_columns, is_name, kind_of
from fedrank.data.json_lines import TOO_LONG, Reasons, bounded_lines, json_rows, moment_of, name_of, row_of, values_of
from fedrank.data.logs import (
    BAD_BYTES,
    BAD_ROW,
    BAD_TIME,
    EMPTY_QUERY,
    LAST_PLACE,
    NO_USER,
    LeftOut,
    normalised,
)

COLUMNS: dict[str, tuple[str, ...]] = {  # what a column may be called, in any case of letters
    "user": ("user", "user_id", "userid", "person", "client_id", "client", "browser"),
    "time": ("time", "timestamp", "datetime", "date"),
    "query": ("query", "query_text", "user_query", "text"),
    "shown": ("shown",),
    "clicked": ("clicked", "clicks", "document", "doc_id"),
    "first": ("first", "from", "offset"),
    "dwell": ("dwell",),
    "scores": ("scores",),
}
NEEDED = ("user", "time", "query", "shown", "clicked")
BROWSERS = ("client_id", "client", "browser")  # columns that name one of these, not a person

NO_LIST = "no list: nothing was shown"
UNKNOWN_FIRST = "list that begins with a document that is not in the collection"
TWICE = "list that shows a document twice"
LONG_QUERY = "query of more than 1,000 characters"
NOT_SHOWN = "click on what was not shown"
REPEATED = "click on the same document again"
BAD_FIRST = "first place that is none"
BAD_DWELL = "time on a document that is none"
BAD_SCORES = "scores that do not fit their list"
LONGEST_QUERY = 1000
LONGEST_DWELL = 86_400.0  # seconds; a tab that stays open for longer is not being read


@dataclass(frozen=True)
class ShownRows:
    """Lists in order of time, their documents one after the other; and what became of the other rows."""

    user: NDArray[np.int32]  # [lists], a row of `users`
    time: NDArray[np.int64]  # [lists], seconds since 1970
    query: NDArray[np.int32]  # [lists], a row of `queries`
    first: NDArray[np.int32]  # [lists], places before the list
    offsets: NDArray[np.int64]  # [lists + 1]: list i shows document[offsets[i] : offsets[i + 1]]
    document: NDArray[np.int32]  # a row of the collection
    clicks: NDArray[np.uint8]  # [documents shown]
    users: list[str]
    queries: list[str]  # normalised, as they were typed
    rows: int  # read, sound or not
    left_out: dict[str, LeftOut]  # by reason
    noticed: dict[str, LeftOut] = field(default_factory=dict)  # what is odd, and was used nevertheless
    unit: str = "person"  # or "browser"
    client: NDArray[np.int32] | None = None  # [lists]: which browser, where users are persons
    dwell: NDArray[np.float32] | None = None  # [documents shown]: seconds; NaN where it is not known
    scores: NDArray[np.float32] | None = None  # [documents shown]
    drawn: tuple[float, float] | None = None  # temperature and keep of all lists
    out_of_order: int = 0  # lists that stood behind a later one
    counts: dict[str, int] = field(default_factory=dict)  # of what else was seen
    ids: tuple[str, ...] = ()  # [lists]: of their searches, where a log has them

    def __len__(self) -> int:
        return len(self.user)

    def clicks_of_lists(self) -> NDArray[np.int64]:
        """[lists]: how many documents of each were clicked."""
        return np.add.reduceat(self.clicks, self.offsets[:-1], dtype=np.int64) if len(self) else np.empty(0, np.int64)

    def select(self, kept: NDArray[np.bool_]) -> ShownRows:
        """Some of the lists; users and queries keep their numbers."""
        inner = np.repeat(kept, np.diff(self.offsets))
        about = {
            name: value if value is None else value[inner]
            for name in ("document", "clicks", "dwell", "scores")
            for value in (getattr(self, name),)
        }
        about |= {name: getattr(self, name)[kept] for name in ("user", "time", "query", "first")}
        about["client"] = None if self.client is None else self.client[kept]
        about["offsets"] = np.concatenate(([0], np.cumsum(np.diff(self.offsets)[kept])))
        about["ids"] = tuple(itertools.compress(self.ids, kept))
        return ShownRows(**(self.__dict__ | about))


class ListColumns:
    """Sound lists while they are being read, as columns of numbers."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.users: dict[str, int] = {}
        self.queries: dict[str, int] = {}
        self.ids: list[str] = []  # of searches, where the log has them
        self.user, self.query, self.first = array("i"), array("i"), array("i")
        self.time, self.line = array("d"), array("q")
        self.offsets, self.document = array("q", [0]), array("i")
        self.scores: array[float] | None = None  # as long as `document` once a list has some
        self.drawn: set[tuple[float, float]] = set()
        self.unscored = 0
        self.cut_unknown = self.cut_places = 0

    def __len__(self) -> int:
        return len(self.user)

    def problem(self, user: str, moment: float | None, text: str, rows: Sequence[int]) -> str:
        """Why a list cannot be used; "" where it can. `rows` are those of its documents, negative where not known."""
        if not rows:
            return NO_LIST
        if not user:
            return NO_USER
        if not is_name(text):
            return EMPTY_QUERY
        if len(text) > LONGEST_QUERY:
            return LONG_QUERY
        if moment is None:
            return BAD_TIME
        if rows[0] < 0:
            return UNKNOWN_FIRST
        known = [row for row in rows if row >= 0]
        return TWICE if len(set(known)) < len(known) else ""

    def add(
        self, user: str, moment: float, text: str, rows: Sequence[int], first: int, line: int, drawn: Drawn | None
    ) -> int:
        """A sound list; it ends before a document that is not known, and at the last place that is kept."""
        length = next((place for place, row in enumerate(rows) if row < 0), len(rows))
        self.cut_unknown += length < len(rows)
        self.cut_places += length > self.places
        length = min(length, self.places)
        self.user.append(self.users.setdefault(user, len(self.users)))
        self.query.append(self.queries.setdefault(text, len(self.queries)))
        self.time.append(moment)
        self.first.append(first)
        self.line.append(line)
        if drawn is None:
            self.unscored += 1
        else:
            self.drawn.add((drawn.temperature, drawn.keep))
            if self.scores is None:
                self.scores = array("f", bytes(4 * len(self.document)))
        if self.scores is not None:
            self.scores.extend(drawn.scores[:length] if drawn else [0.0] * length)
        self.document.extend(rows[:length])
        self.offsets.append(len(self.document))
        return len(self.user) - 1

    def place_of(self, one: int, row: int) -> int:
        """Where a list shows a document, among all that were shown; -1 where it does not."""
        start = self.offsets[one]
        try:
            return start + self.document[start : self.offsets[one + 1]].index(row)
        except ValueError:
            return -1

    def finish(
        self, clicks: bytearray, dwell: array[float] | None, client: array[int] | None = None, **others: Any
    ) -> ShownRows:
        """All lists in order of time."""
        time = np.floor(np.array(self.time, dtype=np.float64)).astype(np.int64)
        order = np.argsort(time, kind="stable")
        offsets = np.array(self.offsets, dtype=np.int64)
        lengths = np.diff(offsets)[order]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        inner = np.repeat(offsets[:-1][order] - ends[:-1], lengths) + np.arange(ends[-1])
        certain = self.scores is not None and self.unscored == 0 and len(self.drawn) == 1
        latest = np.maximum.accumulate(time) if len(time) else time
        return ShownRows(
            user=np.array(self.user, dtype=np.int32)[order],
            time=time[order],
            query=np.array(self.query, dtype=np.int32)[order],
            first=np.array(self.first, dtype=np.int32)[order],
            offsets=ends,
            document=np.array(self.document, dtype=np.int32)[inner],
            clicks=np.frombuffer(bytes(clicks), dtype=np.uint8)[inner],
            client=None if client is None else np.array(client, dtype=np.int32)[order],
            dwell=None if dwell is None else np.array(dwell, dtype=np.float32)[inner],
            scores=np.array(self.scores, dtype=np.float32)[inner] if certain else None,
            drawn=next(iter(self.drawn)) if certain else None,
            users=list(self.users),
            queries=list(self.queries),
            out_of_order=int(np.count_nonzero(time < latest)),
            ids=tuple(self.ids[one] for one in order) if self.ids else (),
            **others,
        )


@dataclass(frozen=True)
class Drawn:
    """How a list was drawn."""

    scores: list[float]
    temperature: float
    keep: float


def drawn_of(scores: Any, temperature: Any, keep: Any, length: int) -> Drawn | str | None:
    """What a log says of how a list was drawn; None where it says nothing, and the reason where it makes no sense."""
    if scores is None or scores == "":
        return None
    found = [number_of(one) for one in values_of(scores) or []]
    how = [number_of(temperature), number_of(keep)]
    if None in found or None in how or len(found) != length:
        return BAD_SCORES
    heat, kept = float(how[0] or 0), float(how[1] or 0)
    if heat <= 0 or not 0 <= kept <= 1:
        return BAD_SCORES
    return Drawn([float(one or 0) for one in found], heat, kept)


def number_of(value: Any) -> float | None:
    """A finite number, or a short text of one; None where it is neither."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (type(value) is str and len(value) > 40):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < 3e38 else None  # a float of 32 bits holds it


def first_of(value: Any) -> int | None:
    """Places before a list; 0 where nothing is said, None where it is no such number."""
    if value is None or value == "":
        return 0
    number = number_of(value)
    return int(number) if number is not None and number == int(number) and 0 <= number < LAST_PLACE else None


def is_shown_table(path: str | os.PathLike[str], columns: Mapping[str, str] | None = None) -> bool:
    """Whether a log has a column of lists as they were shown."""
    path = Path(path)
    if "shown" in (columns or {}):
        return True
    if from_ir_datasets.is_there(path):
        return False
    for _, row, names in _table(path, {}, look=True):
        return "shown" in {name.strip().lower() for name in (row or names)}
    return False


def read_shown(
    path: str | os.PathLike[str],
    documents: Documents,
    columns: Mapping[str, str] | None = None,
    places: int = 100,
    drawn: tuple[float, float] | None = None,
) -> ShownRows:
    """Read a table of lists as they were shown; `drawn` are temperature and keep of its scores.

    Lists are of JSON, or ids with blanks between them. A row that cannot be used is counted with its reason.
    """
    path = Path(path)
    for name in columns or {}:
        if name not in COLUMNS:
            raise ValueError(f"columns: no {name!r} is read; choose among {', '.join(COLUMNS)}")
    known = {name: row for row, name in enumerate(documents.ids)}
    left_out, lists = Reasons(), ListColumns(places)
    clicks, dwell = bytearray(), array("f")
    rows, unit = 0, "person"
    for number, row, names in _table(path, columns or {}):
        rows += 1
        if row is None:
            left_out.add(names[0], number)
            continue
        if names and names[0].strip().lower() in BROWSERS:
            unit = "browser"
        text, moment, first = normalised(_text(row["query"])), moment_of(row["time"]), first_of(row.get("first"))
        ids = values_of(row["shown"])
        found = [row_of(one, known) for one in ids or []]
        draws = drawn_of(row.get("scores"), *(drawn or (None, None)), len(found)) if drawn else None
        who = name_of(row["user"])
        reason = BAD_ROW if ids is None else lists.problem(who, moment, text, found)
        reason = reason or (BAD_FIRST if first is None else "") or (draws if isinstance(draws, str) else "")
        if reason or moment is None or first is None or isinstance(draws, str):
            left_out.add(reason, number)
            continue
        one = lists.add(who, moment, text, found, first, number, draws)
        length = lists.offsets[one + 1] - lists.offsets[one]
        clicks.extend(bytes(length))
        dwell.extend([math.nan] * length)
        spent = values_of(row.get("dwell")) or []
        for place, clicked in enumerate(values_of(row.get("clicked")) or []):
            at = lists.place_of(one, row_of(clicked, known))
            if at < 0 or clicks[at]:
                left_out.add(NOT_SHOWN if at < 0 else REPEATED, number)
                continue
            clicks[at] = 1
            if place < len(spent):
                seconds = number_of(spent[place])
                if seconds is None or not 0 <= seconds <= LONGEST_DWELL:
                    left_out.add(BAD_DWELL, number)
                else:
                    dwell[at] = seconds
    has_dwell = any(not math.isnan(one) for one in dwell)
    return lists.finish(
        clicks,
        dwell if has_dwell else None,
        rows=rows,
        left_out=left_out.all(),
        unit=unit,
        counts=cut_lists(lists),
    )


def cut_lists(lists: ListColumns) -> dict[str, int]:
    """How many lists are shorter than they were, and why."""
    return {
        "lists cut before a document that is not in the collection": lists.cut_unknown,
        f"lists cut behind place {lists.places:,}": lists.cut_places,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _table(
    path: Path, chosen: Mapping[str, str], look: bool = False
) -> Iterator[tuple[int, dict[str, Any] | None, list[str]]]:
    """Line number and fields of every row, and the name of the column of users; or None, and what is wrong.

    With `look`, rows are as they stand there, and what names their columns.
    """
    if kind_of(path) == "json":
        names: dict[str, str] = {}
        for number, row, trouble in json_rows(path):
            if row is None or look:
                yield number, row, [trouble]
                continue
            # Rows may leave out what they have nothing to say of; a log whose first row does has other names for it.
            names |= find_columns(
                list(row), COLUMNS, chosen if not names else {}, () if names else NEEDED[:-1], str(path)
            )
            yield number, {name: row.get(column) for name, column in names.items()}, [names["user"]]
        return
    at: dict[str, int] = {}  # which column
    whose, width = "", 0
    for number, line in bounded_lines(path):
        try:
            text = None if line is None else line.decode("utf-8" if at else "utf-8-sig")
        except UnicodeDecodeError:
            if not at:
                raise ValueError(
                    f"{path}, line {number}: the names of the columns are not UTF-8; convert the file"
                ) from None
            yield number, None, [BAD_BYTES]
            continue
        cells = None if text is None else _cells(text, kind_of(path))
        if not at:
            if cells is None:
                raise ValueError(f"{path}, line {number}: the names of the columns cannot be read; mend them")
            if look:
                yield number, None, cells
                return
            found = find_columns(cells, COLUMNS, chosen, NEEDED, f"{path}, line {number}")
            at, width, whose = {name: cells.index(column) for name, column in found.items()}, len(cells), found["user"]
        elif cells is None or len(cells) > width:
            yield number, None, [TOO_LONG if text is None else BAD_ROW]
        else:
            cells += [""] * (width - len(cells))
            yield number, {name: cells[place] for name, place in at.items()}, [whose]


def _cells(text: str, kind: str) -> list[str] | None:
    if kind == "tsv":
        return text.split("\t")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error:
        return None

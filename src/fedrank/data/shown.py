"""Lists as they were shown and what was clicked, as a log has them: read from plain tables, or from UBI (`ubi.py`).

A table (TSV, CSV or JSON Lines) has a row for every page of results that a user saw: user, time, query, the documents
in the order shown, those that were clicked, and if they are known the positions before the first of them, seconds spent
on each clicked one, and the scores by which the list was drawn.
"""

from __future__ import annotations

import itertools
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.click_log import BAD_TIME, EMPTY_QUERY, NO_USER
from fedrank.data.documents import Documents
from fedrank.data.rows import BAD_ROW, Column, LeftOut, Reasons, Row, RowFormat, RowReader, UnusableRow, column_names
from fedrank.data.values import find_id, parse_id, parse_list, parse_number, parse_offset, parse_query, parse_time

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
MAX_QUERY_LENGTH = 1000
MAX_DWELL = 86_400.0  # seconds; a tab that stays open for longer is not being read


def parse_typed_query(value: Any) -> str:
    """A query as it is compared with others, of a text that is not too long."""
    text = parse_query(value) if isinstance(value, str) else None
    if text is None or len(text) > MAX_QUERY_LENGTH:
        raise UnusableRow(EMPTY_QUERY if text is None else LONG_QUERY)
    return text


def parse_user(value: Any) -> str | None:
    """The id of a user; None where there is none."""
    return parse_id(value) or None


def parse_shown(value: Any) -> list[Any]:
    """Ids of the documents that were shown, at least one."""
    ids = parse_list(value)
    if not ids:
        raise UnusableRow(BAD_ROW if ids is None else NO_LIST)
    return ids


def parse_dwell(value: Any) -> float | None:
    """Seconds on a document; None where it is not a time that a person can spend there."""
    seconds = parse_number(value)
    return seconds if seconds is not None and 0 <= seconds <= MAX_DWELL else None


def _parse_some(value: Any) -> list[Any]:
    return parse_list(value) or []


SHOWN_LOG = RowFormat(
    {
        "shown": Column(("shown",), parse_shown),
        "user": Column(("user", "user_id", "userid", "person", *BROWSERS), parse_user, NO_USER),
        "query": Column(("query", "query_text", "user_query", "text"), parse_typed_query),
        "time": Column(("time", "timestamp", "datetime", "date"), parse_time, BAD_TIME),
        "first": Column(("first", "from", "offset"), parse_offset, BAD_FIRST, required=False),
        "clicked": Column(("clicked", "clicks", "document", "doc_id"), _parse_some, omittable=True),
        "dwell": Column(("dwell",), _parse_some, required=False),
        "scores": Column(("scores",), None, required=False),
    }
)


@dataclass(frozen=True)
class ShownRows:
    """Lists in order of time, their documents one after the other; and what became of the other rows."""

    user: NDArray[np.int32]  # [lists], a row of `users`
    time: NDArray[np.int64]  # [lists], seconds since 1970
    query: NDArray[np.int32]  # [lists], a row of `queries`
    first: NDArray[np.int32]  # [lists], positions before the list
    offsets: NDArray[np.int64]  # [lists + 1]: list i shows document[offsets[i] : offsets[i + 1]]
    document: NDArray[np.int32]  # a row of the collection
    clicks: NDArray[np.uint8]  # [documents shown]
    users: list[str]
    queries: list[str]  # normalised, as they were typed
    rows: int  # read, usable or not
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

    def select(self, chosen: NDArray[np.bool_]) -> ShownRows:
        """Some of the lists; numbers of users and queries stay the same."""
        inner = np.repeat(chosen, np.diff(self.offsets))
        about = {
            name: value if value is None else value[inner]
            for name in ("document", "clicks", "dwell", "scores")
            for value in (getattr(self, name),)
        }
        about |= {name: getattr(self, name)[chosen] for name in ("user", "time", "query", "first")}
        about["client"] = None if self.client is None else self.client[chosen]
        about["offsets"] = np.concatenate(([0], np.cumsum(np.diff(self.offsets)[chosen])))
        about["ids"] = tuple(itertools.compress(self.ids, chosen))
        return ShownRows(**(self.__dict__ | about))


class ListColumns:
    """Usable lists while they are being read, as columns of numbers."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.users: dict[str, int] = {}
        self.queries: dict[str, int] = {}
        self.ids: list[str] = []  # of searches, where the log has them
        self.user, self.query, self.first = array("i"), array("i"), array("i")
        self.time, self.line = array("d"), array("q")
        self.offsets, self.document = array("q", [0]), array("i")
        self.scores: array[float] | None = None  # as long as `document` once a list has some
        self.drawn: set[tuple[float, float]] = set()
        self.unscored = 0
        self.clicks = bytearray()  # [documents shown]
        self.dwell = array("f")  # [documents shown], once one is known
        self.cut_unknown = self.cut_positions = 0

    def __len__(self) -> int:
        return len(self.user)

    def add(
        self, user: str, moment: float, text: str, rows: Sequence[int], first: int, line: int, drawn: Drawn | None
    ) -> int:
        """Add a list of documents, of which unknown ones are negative: `check_list` must have passed.

        It ends before a document that is not known, and at the last position that is read.
        """
        length = next((index for index, row in enumerate(rows) if row < 0), len(rows))
        self.cut_unknown += length < len(rows)
        self.cut_positions += length > self.positions
        length = min(length, self.positions)
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
        self.clicks.extend(bytes(length))
        self.offsets.append(len(self.document))
        return len(self.user) - 1

    def position_of(self, one: int, row: int) -> int:
        """Where a list shows a document, among all that were shown; -1 where it does not."""
        start = self.offsets[one]
        try:
            return start + self.document[start : self.offsets[one + 1]].index(row)
        except ValueError:
            return -1

    def set_dwell(self, at: int, seconds: float | None) -> bool:
        """Set the time on a document that was shown; False where it is not known."""
        if seconds is None:
            return False
        self.dwell.extend(itertools.repeat(math.nan, len(self.document) - len(self.dwell)))
        self.dwell[at] = seconds
        return True

    def finish(
        self, left_out: Reasons, client: array[int] | None = None, counts: dict[str, int] | None = None, **others: Any
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
        if self.dwell:
            self.dwell.extend(itertools.repeat(math.nan, len(self.document) - len(self.dwell)))
        cut = {
            "lists cut before a document that is not in the collection": self.cut_unknown,
            f"lists cut behind place {self.positions:,}": self.cut_positions,
        }
        return ShownRows(
            user=np.array(self.user, dtype=np.int32)[order],
            time=time[order],
            query=np.array(self.query, dtype=np.int32)[order],
            first=np.array(self.first, dtype=np.int32)[order],
            offsets=ends,
            document=np.array(self.document, dtype=np.int32)[inner],
            clicks=np.frombuffer(bytes(self.clicks), dtype=np.uint8)[inner],
            client=None if client is None else np.array(client, dtype=np.int32)[order],
            dwell=np.array(self.dwell, dtype=np.float32)[inner] if self.dwell else None,
            scores=np.array(self.scores, dtype=np.float32)[inner] if certain else None,
            drawn=next(iter(self.drawn)) if certain else None,
            users=list(self.users),
            queries=list(self.queries),
            out_of_order=int(np.count_nonzero(time < latest)),
            ids=tuple(self.ids[one] for one in order) if self.ids else (),
            left_out=left_out.all(),
            counts=(counts or {}) | cut,
            **others,
        )


@dataclass(frozen=True)
class Drawn:
    """How a list was drawn."""

    scores: list[float]
    temperature: float
    keep: float


def parse_drawn(stated: tuple[Any, Any, Any], length: int) -> Drawn | None:
    """How a list was drawn, of scores, temperature and keep; None where there are no scores."""
    scores, temperature, keep = stated
    if scores is None or scores == "":
        return None
    values = [parse_number(one) for one in parse_list(scores) or []]
    heat, share = parse_number(temperature), parse_number(keep)
    found = [one for one in values if one is not None]
    if heat is None or share is None or heat <= 0 or not 0 <= share <= 1 or not length == len(found) == len(values):
        raise UnusableRow(BAD_SCORES)
    return Drawn(found, heat, share)


def check_list(rows: Sequence[int]) -> None:
    """Refuse a list whose first document is unknown (negative), or that shows one twice."""
    if rows[0] < 0:
        raise UnusableRow(UNKNOWN_FIRST)
    known = [row for row in rows if row >= 0]
    if len(set(known)) < len(known):
        raise UnusableRow(TWICE)


def is_shown_table(path: str | os.PathLike[str], columns: Mapping[str, str] | None = None) -> bool:
    """Whether a log has a column of lists as they were shown."""
    if "shown" in (columns or {}):
        return True
    return not from_ir_datasets.is_there(Path(path)) and any(
        name.strip().lower() == "shown" for name in column_names(path)
    )


def read_shown(
    path: str | os.PathLike[str],
    documents: Documents,
    columns: Mapping[str, str] | None = None,
    positions: int = 100,
    drawn: tuple[float, float] | None = None,
) -> ShownRows:
    """Read a table of lists as they were shown; `drawn` are temperature and keep of its scores.

    Lists are of JSON, or ids with blanks between them. A row that cannot be used is counted with its reason.
    """
    reader, lists = RowReader(path, SHOWN_LOG, columns), ListColumns(positions)
    known = {name: row for row, name in enumerate(documents.ids)}

    def take(number: int, row: Row) -> None:
        found = [find_id(one, known) for one in row["shown"]]
        check_list(found)
        draws = parse_drawn((row["scores"], *drawn), len(found)) if drawn else None
        one = lists.add(row["user"], row["time"], row["query"], found, row["first"], number, draws)
        for index, clicked in enumerate(row["clicked"]):
            at = lists.position_of(one, find_id(clicked, known))
            if at < 0 or lists.clicks[at]:
                reader.left_out.add(NOT_SHOWN if at < 0 else REPEATED, number)
                continue
            lists.clicks[at] = 1
            if index < len(row["dwell"]) and not lists.set_dwell(at, parse_dwell(row["dwell"][index])):
                reader.left_out.add(BAD_DWELL, number)

    reader.each(take)
    is_browser = reader.names.get("user", "").strip().lower() in BROWSERS
    return lists.finish(reader.left_out, rows=reader.rows, unit="browser" if is_browser else "person")

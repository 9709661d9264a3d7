"""Read logs of shown result lists and clicks from tables; `ubi.py` reads UBI.

A table (TSV, CSV or JSON Lines) has a row for every page of results that a user saw: user, time, query, the documents
in the order shown, the clicked ones, and optionally the offset of the first position, dwell times of clicked documents
in seconds, and the scores with which the list was sampled.
"""

from __future__ import annotations

import itertools
import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.click_log import BAD_TIME, EMPTY_QUERY, NO_USER
from fedrank.data.documents import Documents
from fedrank.data.rows import BAD_ROW, Column, LeftOut, Reasons, Row, RowFormat, RowReader, UnusableRow, column_names
from fedrank.data.values import find_id, parse_id, parse_list, parse_number, parse_offset, parse_query, parse_time

BROWSERS = ("client_id", "client", "browser")  # columns that identify a browser instead of a person
NO_LIST = "empty list"
UNKNOWN_FIRST = "list whose first document is not in the collection"
TWICE = "list that shows a document twice"
LONG_QUERY = "query of more than 1,000 characters"
NOT_SHOWN = "click on a document that was not shown"
REPEATED = "repeated click on the same document"
BAD_FIRST = "invalid first position"
BAD_DWELL = "invalid dwell time"
BAD_SCORES = "scores that do not match their list"
MAX_QUERY_LENGTH = 1000
MAX_DWELL = 86_400.0  # seconds; a tab that is open for longer is not being read


def parse_typed_query(value: Any) -> str:
    """Normalise a query, with a limit on its length."""
    text = parse_query(value) if isinstance(value, str) else None
    if text is None or len(text) > MAX_QUERY_LENGTH:
        raise UnusableRow(EMPTY_QUERY if text is None else LONG_QUERY)
    return text


def parse_user(value: Any) -> str | None:
    """The id of a user; None if missing."""
    return parse_id(value) or None


def parse_shown(value: Any) -> list[Any]:
    """The ids of the shown documents, at least one."""
    ids = parse_list(value)
    if not ids:
        raise UnusableRow(BAD_ROW if ids is None else NO_LIST)
    return ids


def parse_dwell(value: Any) -> float | None:
    """A dwell time in seconds; None if it is not plausible."""
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
    """Lists ordered by time, with concatenated documents; and counts of the other rows."""

    user: NDArray[np.int32]  # [lists], a row of `users`
    time: NDArray[np.int64]  # [lists], seconds since 1970
    query: NDArray[np.int32]  # [lists], a row of `queries`
    first: NDArray[np.int32]  # [lists], offset of the first position
    offsets: NDArray[np.int64]  # [lists + 1]: list i shows document[offsets[i] : offsets[i + 1]]
    document: NDArray[np.int32]  # a row of the collection
    clicks: NDArray[np.uint8]  # [documents shown]
    users: list[str]
    queries: list[str]  # normalised, not redacted
    rows: int  # read, usable or not
    left_out: dict[str, LeftOut]  # by reason
    noticed: dict[str, LeftOut] = field(default_factory=dict)  # unusual rows that were used
    unit: str = "person"  # or "browser"
    client: NDArray[np.int32] | None = None  # [lists]: browser, if users are persons
    dwell: NDArray[np.float32] | None = None  # [documents shown]: seconds; NaN if unknown
    scores: NDArray[np.float32] | None = None  # [documents shown]
    drawn: tuple[float, float] | None = None  # temperature and keep probability of all lists
    out_of_order: int = 0  # lists that follow a later one in the file
    counts: dict[str, int] = field(default_factory=dict)  # of other observations
    ids: tuple[str, ...] = ()  # [lists]: search ids, if the log has them
    swap: NDArray[np.int16] | None = None  # [lists]: see `SearchLog.swap`

    def __len__(self) -> int:
        return len(self.user)

    def clicks_of_lists(self) -> NDArray[np.int64]:
        """[lists]: number of clicked documents."""
        return np.add.reduceat(self.clicks, self.offsets[:-1], dtype=np.int64) if len(self) else np.empty(0, np.int64)

    def select(self, chosen: NDArray[np.bool_]) -> ShownRows:
        """Return some of the lists; indices of users and queries stay the same."""
        inner = np.repeat(chosen, np.diff(self.offsets))
        wanted: dict[str, Any] = dict.fromkeys(("user", "time", "query", "first", "client", "swap"), chosen)
        wanted |= dict.fromkeys(("document", "clicks", "dwell", "scores"), inner)
        arrays = {name: getattr(self, name)[which] for name, which in wanted.items() if getattr(self, name) is not None}
        offsets = np.concatenate(([0], np.cumsum(np.diff(self.offsets)[chosen])))
        return replace(self, offsets=offsets, ids=tuple(itertools.compress(self.ids, chosen)), **arrays)


class ListColumns:
    """Usable lists as numeric columns, filled while a log is read."""

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self.users: dict[str, int] = {}
        self.queries: dict[str, int] = {}
        self.ids: list[str] = []  # search ids, if the log has them
        self.user, self.query, self.first = array("i"), array("i"), array("i")
        self.time, self.line = array("d"), array("q")
        self.offsets, self.document = array("q", [0]), array("i")
        self.scores = array("f")  # as long as `document` if every list has scores
        self.drawn: set[tuple[float, float] | None] = set()  # None: of a list without scores
        self.clicks = bytearray()  # [documents shown]
        self.dwell = array("f")  # [documents shown], once a dwell time is known
        self.swap = array("h")  # [lists], if the log has them
        self.cut_unknown = self.cut_positions = 0

    def __len__(self) -> int:
        return len(self.user)

    def add(
        self, user: str, moment: float, text: str, rows: Sequence[int], first: int, line: int, drawn: Drawn | None
    ) -> int:
        """Add a list of documents, in which unknown ones are negative; `check_list` must have passed.

        The list is truncated before an unknown document and at the position limit.
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
        self.drawn.add(None if drawn is None else (drawn.temperature, drawn.keep))
        self.scores.extend([] if drawn is None else drawn.scores[:length])
        self.document.extend(rows[:length])
        self.clicks.extend(bytes(length))
        self.offsets.append(len(self.document))
        return len(self.user) - 1

    def position_of(self, one: int, row: int) -> int:
        """The index of a document of a list among all shown documents; -1 if the list does not contain it."""
        start = self.offsets[one]
        try:
            return start + self.document[start : self.offsets[one + 1]].index(row)
        except ValueError:
            return -1

    def set_dwell(self, at: int, seconds: float | None) -> bool:
        """Set the dwell time of a shown document; return False if it is unknown."""
        if seconds is None:
            return False
        self.dwell.extend(itertools.repeat(math.nan, len(self.document) - len(self.dwell)))
        self.dwell[at] = seconds
        return True

    def finish(
        self, left_out: Reasons, client: array[int] | None = None, counts: dict[str, int] | None = None, **others: Any
    ) -> ShownRows:
        """Return all lists ordered by time."""
        time = np.floor(np.array(self.time, dtype=np.float64)).astype(np.int64)
        order = np.argsort(time, kind="stable")
        offsets = np.array(self.offsets, dtype=np.int64)
        lengths = np.diff(offsets)[order]
        ends = np.concatenate(([0], np.cumsum(lengths)))
        inner = np.repeat(offsets[:-1][order] - ends[:-1], lengths) + np.arange(ends[-1])
        drawn = next(iter(self.drawn)) if len(self.drawn) == 1 else None
        latest = np.maximum.accumulate(time) if len(time) else time
        if self.dwell:
            self.dwell.extend(itertools.repeat(math.nan, len(self.document) - len(self.dwell)))
        cut = {
            "lists truncated before a document that is not in the collection": self.cut_unknown,
            f"lists truncated after position {self.positions:,}": self.cut_positions,
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
            scores=None if drawn is None else np.array(self.scores, dtype=np.float32)[inner],
            drawn=drawn,
            swap=np.array(self.swap, dtype=np.int16)[order] if any(self.swap) else None,
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
    """How a list was sampled: scores, temperature and keep probability."""

    scores: list[float]
    temperature: float
    keep: float


def parse_drawn(stated: tuple[Any, Any, Any], length: int) -> Drawn | None:
    """Parse scores, temperature and keep probability of a list; None without scores."""
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
    """Raise `UnusableRow` for a list with an unknown (negative) first document or a duplicate."""
    if rows[0] < 0:
        raise UnusableRow(UNKNOWN_FIRST)
    known = [row for row in rows if row >= 0]
    if len(set(known)) < len(known):
        raise UnusableRow(TWICE)


def is_shown_table(path: str | os.PathLike[str], columns: Mapping[str, str] | None = None) -> bool:
    """Whether a log has a column of shown lists."""
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
    """Read a table of shown lists; `drawn` are temperature and keep probability of its scores.

    Lists are JSON, or ids separated by spaces. Unusable rows are counted by reason.
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

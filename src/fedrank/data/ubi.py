"""Read User Behavior Insights 1.3: searches with their results (`ubi_queries`), and user actions (`ubi_events`).

Searches are written by the search engine or the service in front of it; events are written by browsers and can be
forged. Positions are therefore those of the returned list, never those in an event. An event counts for the list of its
query id if the same client searched and the list contains the document. Solr's component does not record clients:
there, the first client that acts on a list is taken as the one that searched.
"""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrank.data.click_log import BAD_TIME, NO_USER, UNKNOWN
from fedrank.data.documents import DOCUMENT_COLUMNS, Documents, document_rows
from fedrank.data.rows import Column, Reasons, Row, RowFormat, RowReader, UnusableRow
from fedrank.data.shown import (
    BAD_DWELL,
    BAD_FIRST,
    NOT_SHOWN,
    REPEATED,
    ListColumns,
    ShownRows,
    check_list,
    parse_drawn,
    parse_dwell,
    parse_shown,
    parse_typed_query,
    parse_user,
)
from fedrank.data.values import LONGEST_SWAP, MAX_OFFSET, find_id, parse_id, parse_number, parse_offset, parse_time
from fedrank.files import parse_json

SEEN = ("impression", "view", "page_exit")  # actions that record viewing, not a click
DWELL = {"dwell": 1.0, "dwell_time": 1.0, "dwell_seconds": 1.0, "dwell_ms": 0.001, "dwell_time_ms": 0.001}
FROM = ("from", "offset", "start")  # in query_attributes: offset of the first position
SIZES = ("size", "rows", "page_size", "per_page", "limit")  # page size, which is needed to use a page number
KINDS = frozenset({".ndjson", ".jsonl", ".json"})  # names of files in a folder; they may be compressed
MAX_LISTS = 200  # maximum number of lists per query id, more pages than a person opens

NO_ID = "query without an id"
IS_EVENT = "an event, not a query"
RELOADED = "repeated page of the same query"
ANONYMOUS = "query without a person: the field is empty"
TOO_SHARED = f"query id that more than {MAX_LISTS} lists share"
NO_QUERY_ID = "event without the id of its query"
NO_QUERY = "event without its query"
NO_OBJECT = "click without an object id"
OTHER_CLIENT = "event of a client other than the one that searched"
FAR_AWAY = "event long before or after its list"
DOUBTFUL = "list with a click at an unrelated or unknown time"
SHARED_ID = "click on an id that several documents have"
FORGED = "clicks with a position that differs from their list"
NAMELESS = "clicks without a client"
OTHER_ACTION = "other action"
OTHER_APPLICATION = "of another application"
NO_FIELD = "(not a name)"
_AMBIGUOUS = -2
_SWAP = ("position", "swapped")  # attributes of a random swap
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True)
class UbiRules:
    """Settings for reading UBI."""

    person: str | None = None  # field with the person's id, such as user_id; None: use client_id, a browser
    actions: tuple[str, ...] = ("click",)  # actions that count as clicks
    object_field: str | None = None  # document column with the object ids; None: the column named in rows, else the id
    application: str | None = None  # only searches of this application; None: all
    positions: int = 100  # maximum number of positions per list
    within_hours: float = 24.0  # maximum time between a list and its events, in both directions: clocks differ

    def __post_init__(self) -> None:
        if not self.actions:
            raise ValueError("actions must name at least one action that counts as a click")
        if self.positions < 1 or not self.within_hours > 0:
            raise ValueError(
                f"positions must be at least 1 (got {self.positions}), within_hours above 0 (got {self.within_hours})"
            )


def read_ubi(
    queries: str | os.PathLike[str],
    events: str | os.PathLike[str],
    documents: Documents,
    collection: str | os.PathLike[str],
    rules: UbiRules | None = None,
) -> ShownRows:
    """Read both files, or folders of files; `collection` is the document file, whose columns may contain object ids.

    All searches are read before the first event, so the files of events may begin later and end later.
    """
    rules = rules or UbiRules()
    names = ObjectNames(documents, Path(collection), rules.object_field)
    log = _UbiLog(rules, names)
    log.read_queries(files_of(Path(queries)))
    log.read_events(files_of(Path(events)))
    return log.finish()


def files_of(path: Path) -> list[Path]:
    """The file, or the files of a folder in the order of their names, such as one for each day."""
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.is_file() and not KINDS.isdisjoint(one.suffixes))
    if not found:
        raise FileNotFoundError(f"{path} contains no file with a name that ends in {', '.join(sorted(KINDS))}")
    return found


class ObjectNames:
    """Indices of documents by id or by another column."""

    def __init__(self, documents: Documents, path: Path, chosen: str | None) -> None:
        self._documents, self._path = documents, path
        self._columns: dict[str, dict[str, int] | None] = {}
        self.ids = {name: row for row, name in enumerate(documents.ids)}
        self.usual = self.ids
        if chosen is not None:
            usual = self._column(chosen)
            if usual is None:
                raise ValueError(
                    f"object_field = {chosen!r}: no document of {path} has this field; name a column of the documents"
                )
            self.usual = usual
        self.forced = chosen is not None
        self.not_found: dict[str, int] = {}  # fields named in rows that documents do not have

    def of(self, field: Any) -> dict[str, int]:
        """Return the index for the field named in a row; if documents lack the field, ids are used."""
        if self.forced or field is None or not (field := parse_id(field)):
            return self.usual
        found = self._column(field)
        if found is None:
            field = field if _FIELD.fullmatch(field) else NO_FIELD  # browsers can write any text, and it is stored
            if field in self.not_found or len(self.not_found) < 20:
                self.not_found[field] = self.not_found.get(field, 0) + 1
            return self.usual
        return found

    def _column(self, field: str) -> dict[str, int] | None:
        if field.lower() in DOCUMENT_COLUMNS["id"].names:
            return self.ids
        if field not in self._columns:
            if len(self._columns) >= 20:  # names come from browsers, so limit how often the file is read
                return None
            self._columns[field] = _values(self._path, field)
        return self._columns[field]


def _values(path: Path, field: str) -> dict[str, int] | None:
    """Indices of documents by the values of a column; None if no document has it."""
    if not path.is_file():  # a set of ir_datasets
        return None
    found: dict[str, int] = {}
    reader = document_rows(path, {"value": Column((field,), parse_id, required=False)}, nested=True)
    for row, (_, one) in enumerate(reader):
        if value := one["value"]:
            found[value] = _AMBIGUOUS if value in found else row
    return found if found and field in (reader.header or (field,)) else None


class _UbiLog:
    """The lists and events read so far."""

    def __init__(self, rules: UbiRules, names: ObjectNames) -> None:
        self.rules, self.names = rules, names
        self.lists, self.left_out, self.noticed = ListColumns(rules.positions), Reasons(), Reasons()
        self.rows = 0
        self.by_id: dict[str, int | list[int]] = {}  # lists by query id; most have one
        self.client: dict[str, int] = {}
        self.client_of = array("i")  # [lists]
        self.explicit = bytearray()  # [lists]: whether the first position is stated, not inferred
        self.length = array("i")  # [lists]: as returned
        self.page: dict[int, tuple[int, int]] = {}  # of lists that state them: page number and page size
        self.first_page = 1
        self.person: list[str] = []  # [lists], if rules use one; "": not stated
        self.persons: dict[int, str | None] = {}  # by client, from events; None: several persons
        self.counts: dict[str, int] = {}
        self.doubts: dict[int, int] = {}  # shown documents with a click that does not count, and their lists

    def read_queries(self, paths: list[Path]) -> None:
        """Read searches with the returned lists."""
        person = {} if self.rules.person is None else {"person": Column((self.rules.person,), parse_id)}
        columns = {"kind": Column((), self._check_query)} | QUERY_COLUMNS | person
        rows = RowFormat(columns, kind="json", nested=True, prepare=_with_attributes)
        self._read(paths, rows, self._query)
        self._find_pages()

    def read_events(self, paths: list[Path]) -> None:
        """Read events and match them to lists."""
        person = {} if self.rules.person is None else {"person": Column((self.rules.person,), parse_id)}
        columns = {"clicked": Column((), self._check_event)} | EVENT_COLUMNS | person
        self._read(paths, RowFormat(columns, kind="json", nested=True), self._event)

    def _read(self, paths: list[Path], rows: RowFormat, take: Callable[[int, Row], None]) -> None:
        for path in paths:
            reader = RowReader(path, rows)
            reader.left_out = self.left_out
            reader.each(take)
            self.rows += reader.rows

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _skip(self, what: str) -> UnusableRow:
        self._count(what)
        return UnusableRow()

    def _check_query(self, row: Row) -> None:
        """Reject events, and skip searches of other applications."""
        if "action_name" in row:
            raise UnusableRow(IS_EVENT)
        if self.rules.application is not None and row.get("application") != self.rules.application:
            raise self._skip(OTHER_APPLICATION)

    def _check_event(self, row: Row) -> bool:
        """Whether the event is a click; events of other applications or actions are skipped."""
        application = self.rules.application
        if application is not None and row.get("application", application) != application:
            raise self._skip(OTHER_APPLICATION)
        action = row.get("action_name")
        clicked = isinstance(action, str) and action in self.rules.actions
        if not clicked and action not in SEEN:
            raise self._skip(OTHER_ACTION if "action_name" in row else "a query, not an event")
        return clicked

    def _query(self, number: int, row: Row) -> None:
        """Add a search."""
        known = self.names.of(row["object_field"])
        found = [find_id(one, known) for one in row["shown"]]
        check_list(found)
        drawn = parse_drawn(row["draw"], len(found))
        client, first, person = row["client"], row["first"], row.get("person", "")
        # Persons and clients may be named only by events; until then, the searcher is unknown.
        user = client or person or _UNKNOWN_USER
        one = self.lists.add(user, row["time"], row["query"], found, max(first, 0), number, drawn)
        self.lists.ids.append(row["query_id"])
        self.lists.swap.append(row["swap"])
        self.client_of.append(self.client.setdefault(client, len(self.client)))
        self.explicit.append(first >= 0)
        self.length.append(len(found))
        if first < 0 and row["page"] is not None:
            self.page[one] = row["page"]
            self.first_page = min(self.first_page, row["page"][0])
        if self.rules.person is not None:
            self.person.append(person)
        before = self.by_id.setdefault(row["query_id"], one)
        if isinstance(before, list):
            before.append(one)
        elif before != one:
            self.by_id[row["query_id"]] = [before, one]

    def _find_pages(self) -> None:
        """Find the positions of lists with the same query id: consecutive pages, or repetitions."""
        lists = self.lists
        for one, (number, size) in self.page.items():  # some count pages from 0
            lists.first[one], self.explicit[one] = (number - self.first_page) * size, True
        for query_id, several in self.by_id.items():
            if isinstance(several, int):
                continue
            if len(several) > MAX_LISTS:  # for example "undefined", if a service does not create ids
                for one in several:
                    self._drop(one, TOO_SHARED)
                self.by_id[query_id] = []
            else:
                self.by_id[query_id] = self._pages_of(sorted(several, key=lambda one: lists.time[one]))

    def _pages_of(self, several: list[int]) -> list[int]:
        """Return which of some lists, ordered by time, are different pages."""
        lists, pages = self.lists, list[int]()
        ends: dict[int, tuple[set[int], int]] = {}  # by client: documents seen, and the next position
        for one in several:
            rows = lists.document[lists.offsets[one] : lists.offsets[one + 1]]
            seen, end = ends.get(self.client_of[one], (set(), 0))
            if not self.explicit[one] and seen.isdisjoint(rows):
                lists.first[one] = min(end, _LAST)
            if any(self._is_again(one, other) for other in pages):
                self._drop(one, RELOADED)
                continue
            pages.append(one)
            ends[self.client_of[one]] = (seen | set(rows), lists.first[one] + self.length[one])
        return pages

    def _drop(self, one: int, reason: str) -> None:
        """Leave out a list that was already read."""
        self.left_out.add(reason, self.lists.line[one])
        self.lists.first[one] = -1

    def _is_again(self, one: int, other: int) -> bool:
        lists = self.lists
        if self.client_of[one] != self.client_of[other]:
            return False
        if self.explicit[one] and lists.first[one] != lists.first[other]:
            return False
        own, its = (slice(lists.offsets[each], lists.offsets[each + 1]) for each in (one, other))
        return lists.document[own] == lists.document[its]

    def _event(self, number: int, row: Row) -> None:
        """Add an event of the client that searched, if the list contains the document."""
        several, moment, clicked = self._lists_of(row), row["time"], row["clicked"]
        if moment is None or not self._is_near(several, moment):
            if clicked:
                self._note_doubt(row, several)
            raise UnusableRow(BAD_TIME if moment is None else FAR_AWAY)
        self._note_searcher(row, several)
        if row["object"] is None and not clicked:
            self._count("events of pages, not of a document")
            return
        document = find_id(row["object"], self.names.of(row["object_field"]))
        if document < 0:
            unknown = UNKNOWN if document != _AMBIGUOUS else SHARED_ID
            raise UnusableRow(unknown if parse_id(row["object"]) else NO_OBJECT)
        at, page = self._position(several, document, moment)
        if at < 0:
            raise UnusableRow(NOT_SHOWN)
        stated = row["dwell"]
        sound = stated is None or self.lists.set_dwell(at, parse_dwell(stated))
        if not clicked:
            self._count("views without a click")
        else:
            self._click(number, row, at, page)
        if not sound:
            raise UnusableRow(BAD_DWELL)

    def _lists_of(self, row: Row) -> list[int]:
        """Lists of an event's query that its client may have seen."""
        shown = self.by_id.get(row["query_id"])
        if shown is None:
            raise UnusableRow(NO_QUERY)
        several = [shown] if isinstance(shown, int) else shown
        if not several:
            raise UnusableRow(TOO_SHARED)
        if row["client"] is not None and row["client"] != "":
            own = (self.client.get(parse_id(row["client"]), -1), self.client.get("", -1))
            several = [one for one in several if self.client_of[one] in own]
        if not several or len({self.client_of[one] for one in several}) > 1:
            raise UnusableRow(OTHER_CLIENT)
        return several

    def _is_near(self, several: list[int], moment: float) -> bool:
        return min(abs(moment - self.lists.time[one]) for one in several) <= self.rules.within_hours * 3600

    def _note_doubt(self, row: Row, several: list[int]) -> None:
        """Record a click that does not count because of its time; its list is not a list without clicks."""
        document = find_id(row["object"], self.names.of(row["object_field"]))
        at, page = self._position(several, document, math.inf) if document >= 0 else (-1, -1)
        if at >= 0:
            self.doubts[at] = page

    def _position(self, several: list[int], document: int, moment: float) -> tuple[int, int]:
        """The position of the document on the latest page before the event that shows it, else on any page."""
        positions = [(one, at) for one in several if (at := self.lists.position_of(one, document)) >= 0]
        if not positions:
            return -1, -1
        before = [(one, at) for one, at in positions if self.lists.time[one] <= moment]
        page, at = before[-1] if before else positions[0]
        return at, page

    def _note_searcher(self, row: Row, several: list[int]) -> None:
        """Take the first acting client as the unknown searcher; any event may name a person."""
        unknown = self.client.get("", -1)
        if unknown >= 0 and self.client_of[several[0]] == unknown and (claims := parse_id(row["client"])):
            for one in several:
                self.client_of[one] = self.client.setdefault(claims, len(self.client))
        if not (person := row.get("person", "")):
            return
        for one in several:
            self.person[one] = self.person[one] or person
        client = self.client_of[several[0]]
        if client != unknown and self.persons.setdefault(client, person) != person:
            self.persons[client] = None

    def _click(self, number: int, row: Row, at: int, page: int) -> None:
        if self.lists.clicks[at]:
            raise UnusableRow(REPEATED)
        self.lists.clicks[at] = 1
        if row["client"] in (None, "") and self.client_of[page] != self.client.get("", -1):
            self.noticed.add(NAMELESS, number)
        if row["ordinal"] is not None and not self._is_position(row["ordinal"], page, at):
            self.noticed.add(FORGED, number)

    def _is_position(self, ordinal: Any, page: int, at: int) -> bool:
        """Whether an event's position matches the list, counted from 0 or 1, within the page or overall."""
        position = at - self.lists.offsets[page]
        stated = {start + position + base for start in (0, self.lists.first[page]) for base in (0, 1)}
        return parse_number(ordinal) in stated

    def finish(self) -> ShownRows:
        """Return all lists of known users without repetitions."""
        if self.rules.person is not None or "" in self.client:
            self._name_users()
        for one in sorted({page for at, page in self.doubts.items() if not self.lists.clicks[at]}):
            if self.lists.first[one] >= 0:
                self._drop(one, DOUBTFUL)
        for field, often in self.names.not_found.items():
            self.counts[f"rows with the field {field!r}, which no document has (matched by id)"] = often
        found = self.lists.finish(
            self.left_out,
            self.client_of if self.rules.person is not None else None,
            self.counts,
            rows=self.rows,
            noticed=self.noticed.all(),
            unit="browser" if self.rules.person is None else "person",
        )
        return found.select(found.first >= 0)

    def _name_users(self) -> None:
        """Name users by the clients and persons of events; lists of unknown users are left out."""
        lists, unknown, names = self.lists, self.client.get("", -1), list(self.client)
        lists.users = {}
        for one in range(len(lists)):
            client = self.client_of[one]
            name = names[client]
            if self.rules.person is not None:
                name = self.person[one] or self.persons.get(client) or ""
            if not name and lists.first[one] >= 0:
                self._drop(one, ANONYMOUS if self.rules.person is not None else NO_USER)
            lists.user[one] = lists.users.setdefault(name, len(lists.users)) if name else -1
            if client == unknown:  # unknown browsers may be different ones
                self.client_of[one] = len(names) + lists.user[one]


_UNKNOWN_USER = "somebody"
_LAST = MAX_OFFSET - 1


def _hits(row: Row) -> list[Any]:
    """Ids of the returned documents; Solr's component writes them as one comma-separated text."""
    if "query_response_hit_ids" in row or not isinstance(row.get("doc_ids"), str):
        return parse_shown(row.get("query_response_hit_ids", row.get("doc_ids")))
    return parse_shown([one.strip() for one in row["doc_ids"].split(",") if one.strip()])


def _client(row: Row) -> str:
    """The browser; "" if missing."""
    stated = row.get("client_id") or _attribute(row, "client_id")
    client = parse_id(stated)
    if stated and not client:
        raise UnusableRow(NO_USER)
    return client


def _with_attributes(row: Row) -> Row:
    """Parse attributes that are JSON text, as Solr's component writes them."""
    attributes = row.get("query_attributes")
    if not isinstance(attributes, str) or not attributes.startswith("{"):
        return row
    try:
        return row | {"query_attributes": parse_json(attributes)}
    except ValueError:  # may be truncated; not required
        return row


def _attribute(row: Row, name: str) -> Any:
    """An attribute of a search; None if missing."""
    attributes = row.get("query_attributes")
    found = attributes.get(name) if isinstance(attributes, dict) else None
    return row.get(f"query_attributes.{name}") if found is None else found


def _first(row: Row) -> int:
    """The stated offset of the first position; -1 if not stated."""
    query = row.get("query")
    if isinstance(query, str) and '"from"' in query:
        try:
            query = json.loads(query)
        except (ValueError, RecursionError):  # truncated, as keyword fields are
            query = None
    stated = query.get("from") if isinstance(query, dict) else None
    for name in FROM:
        if stated is None:
            stated = _attribute(row, name)
    if stated is None:
        return -1
    found = parse_offset(stated)
    if found is None:
        raise UnusableRow(BAD_FIRST)
    return found


def _page(row: Row) -> tuple[int, int] | None:
    """The stated page number and page size; None if not stated."""
    page = _attribute(row, "page")
    sizes = () if page is None else (_attribute(row, name) for name in SIZES)
    size = next((found for found in sizes if found is not None), None)
    if size is None:
        return None
    number, positions = parse_offset(page), parse_offset(size)
    if number is None or not positions or number * positions >= MAX_OFFSET:
        raise UnusableRow(BAD_FIRST)
    return number, positions


def _draw(row: Row) -> tuple[Any, Any, Any]:
    """The stated scores, temperature and keep probability of a sampled list; None if not stated."""
    scores = _attribute(row, "scores")
    return (None, None, None) if scores is None else (scores, _attribute(row, "temperature"), _attribute(row, "keep"))


def _swap(row: Row) -> int:
    """The upper position of the pair that was drawn, from 1, negative if it was swapped; 0 if not stated or invalid."""
    stated = _attribute(row, "swap")
    if isinstance(stated, str):  # where attributes are mapped as keywords, clients send objects as JSON text
        try:
            stated = parse_json(stated)
        except ValueError:
            stated = None
    inner = stated if isinstance(stated, dict) else {name: _attribute(row, f"swap.{name}") for name in _SWAP}
    position, swapped = (inner.get(name) for name in _SWAP)
    if type(position) is not int or not 0 < position < LONGEST_SWAP or not isinstance(swapped, bool):
        return 0
    return -position if swapped else position


def _dwell(row: Row) -> Any:
    """The dwell time in seconds, under any of its names; None if missing, "" if invalid."""
    attributes = row.get("event_attributes")
    stated = None
    if isinstance(attributes, dict):
        for inner in (attributes, attributes.get("object")):
            if stated is None and isinstance(inner, dict) and not inner.keys().isdisjoint(DWELL):
                name = min(DWELL.keys() & inner.keys())
                stated = (inner[name], DWELL[name])
    else:
        stated = next(((row[joined], unit) for joined, unit in _JOINED.items() if joined in row), None)
    if stated is None:
        return None
    seconds = parse_number(stated[0])
    return "" if seconds is None else seconds * stated[1]


_JOINED = {f"event_attributes.{where}{name}": unit for where in ("", "object.") for name, unit in DWELL.items()}

QUERY_COLUMNS: dict[str, Column] = {
    "query_id": Column(("query_id",), parse_user, NO_ID),
    "shown": Column((), _hits),
    "client": Column((), _client),
    "query": Column(("user_query",), parse_typed_query),
    "time": Column(("timestamp",), parse_time, BAD_TIME),
    "first": Column((), _first),
    "page": Column((), _page),
    "object_field": Column(("object_id_field",), None),
    "draw": Column((), _draw),
    "swap": Column((), _swap),
}
EVENT_COLUMNS: dict[str, Column] = {
    "query_id": Column(("query_id",), parse_user, NO_QUERY_ID),
    "client": Column(("client_id",), None),
    "time": Column(("timestamp",), parse_time),
    "object": Column(("event_attributes.object.object_id",), None),
    "object_field": Column(("event_attributes.object.object_id_field",), None),
    "ordinal": Column(("event_attributes.position.ordinal",), None),
    "dwell": Column((), _dwell),
}

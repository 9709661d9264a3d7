"""User Behavior Insights 1.3: searches with what they returned (`ubi_queries`), and what people did (`ubi_events`).

Searches are written by the search engine or the service before it, events by browsers, so that anybody can write
these. Places are therefore those of the list that was returned, never those that an event names. An event counts for
the list of its query id if the client is the one that asked and the list shows the document. Solr's component does not
know clients: there, the first one that acts on a list is the one that asked.
"""

from __future__ import annotations

import json
import math
import os
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrank.data.documents import FIELDS, Documents, as_text, kind_of, text_lines
from fedrank.data.json_lines import Reasons, field_of, json_rows, moment_of, name_of, row_of, values_of
from fedrank.data.logs import BAD_ROW, BAD_TIME, LAST_PLACE, NO_USER, normalised
from fedrank.data.shown import (
    BAD_DWELL,
    BAD_FIRST,
    LONGEST_DWELL,
    NOT_SHOWN,
    REPEATED,
    Drawn,
    ListColumns,
    ShownRows,
    cut_lists,
    drawn_of,
    first_of,
    number_of,
)
from fedrank.files import parse_json

SEEN = ("impression", "view", "page_exit")  # that somebody saw something, or how long; no click
DWELL = {"dwell": 1.0, "dwell_time": 1.0, "dwell_seconds": 1.0, "dwell_ms": 0.001, "dwell_time_ms": 0.001}
FROM = ("from", "offset", "start")  # in query_attributes: places before the list
SIZES = ("size", "rows", "page_size", "per_page", "limit")  # places of a page, without which its number says nothing
MOST_LISTS = 200  # that may share a query id; nobody turns so many pages

NO_ID = "query without an id"
IS_EVENT = "an event, not a query"
RELOADED = "the same page of the same query again"
ANONYMOUS = "query of nobody: the field of the person is empty"
TOO_SHARED = f"query id that more than {MOST_LISTS} lists share"
NO_QUERY_ID = "event without the id of its query"
NO_QUERY = "event without its query"
NO_OBJECT = "click on nothing: no object id"
OTHER_CLIENT = "event of another client than the one that asked"
FAR_AWAY = "event long before or after its list"
DOUBTFUL = "list with a click at another time, or at none"
UNKNOWN_OBJECT = "click on an unknown document"
SHARED_ID = "click on an id that several documents have"
FORGED = "clicks with a position that is not that of their list"
NAMELESS = "clicks that do not say which client made them"
OTHER_ACTION = "other action"
OTHER_APPLICATION = "of another application"
NO_FIELD = "(not a name)"
_SEVERAL = -2
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")


@dataclass(frozen=True)
class UbiRules:
    """How UBI is read."""

    person: str | None = None  # field that names the person, such as user_id; None: client_id, which is a browser
    actions: tuple[str, ...] = ("click",)  # that say a document was wanted
    object_field: str | None = None  # column of documents that ids of objects are in; None: as rows say, else the id
    application: str | None = None  # only searches of this one, not of a field that suggests words; None: of all
    places: int = 100  # of a list that are kept
    within_hours: float = 24.0  # between a list and an event that counts for it

    def __post_init__(self) -> None:
        if not self.actions:
            raise ValueError("actions = (): nothing would count as a click; name one at least")
        if self.places < 1 or not self.within_hours > 0:
            raise ValueError(
                f"places = {self.places} and within_hours = {self.within_hours}: nothing would be kept; use more"
            )


def read_ubi(
    queries: str | os.PathLike[str],
    events: str | os.PathLike[str],
    documents: Documents,
    collection: str | os.PathLike[str],
    rules: UbiRules | None = None,
) -> ShownRows:
    """Read both files; `collection` is the file of the documents, whose other columns may hold the ids of objects."""
    rules = rules or UbiRules()
    names = ObjectNames(documents, Path(collection), rules.object_field)
    log = _UbiLog(rules, names)
    log.read_queries(Path(queries))
    log.read_events(Path(events))
    return log.finish()


class ObjectNames:
    """Rows of documents by their ids, or by another of their columns."""

    def __init__(self, documents: Documents, path: Path, chosen: str | None) -> None:
        self._documents, self._path = documents, path
        self._columns: dict[str, dict[str, int] | None] = {}
        self.ids = {name: row for row, name in enumerate(documents.ids)}
        self.usual = self.ids
        if chosen is not None:
            usual = self._column(chosen)
            if usual is None:
                raise ValueError(
                    f"object_field = {chosen!r}: no document of {path} has such a field, so that no list would be "
                    "known; name a column of the documents"
                )
            self.usual = usual
        self.forced = chosen is not None
        self.not_found: dict[str, int] = {}  # fields that rows name and documents do not have

    def of(self, field: Any) -> dict[str, int]:
        """By the field that a row names; one that documents do not have is a kind of thing, and ids are meant."""
        if self.forced or field is None or not (field := name_of(field)):
            return self.usual
        found = self._column(field)
        if found is None:
            field = field if _FIELD.fullmatch(field) else NO_FIELD  # browsers write anything there, and it is stored
            if field in self.not_found or len(self.not_found) < 20:
                self.not_found[field] = self.not_found.get(field, 0) + 1
            return self.usual
        return found

    def _column(self, field: str) -> dict[str, int] | None:
        if field.lower() in FIELDS["id"]:
            return self.ids
        if field not in self._columns:
            if len(self._columns) >= 20:  # names come from browsers: a file is not read for each
                return None
            self._columns[field] = _values(self._path, field, self.ids)
        return self._columns[field]


def _values(path: Path, field: str, ids: Mapping[str, int]) -> dict[str, int] | None:
    """Rows by the values of a column; None where no document has it."""
    if not path.is_file():  # a set of ir_datasets
        return None
    found: dict[str, int] = {}
    header: list[str] = []
    kind = kind_of(path)
    for row, (_, line) in enumerate(text_lines(path), start=0 if kind == "json" else -1):
        text = line.decode("utf-8", errors="replace").removeprefix("\ufeff")
        if kind == "json":
            try:
                value = name_of(field_of(parse_json(text), field))
            except ValueError:
                value = ""
        elif row < 0:
            header = text.split("\t")
            if field not in header:
                return None
            continue
        else:
            cells = text.split("\t")
            value = name_of(as_text(cells[header.index(field)])) if header.index(field) < len(cells) else ""
        if value:
            found[value] = _SEVERAL if value in found else row
    return found or None


class _UbiLog:
    """What was read so far."""

    def __init__(self, rules: UbiRules, names: ObjectNames) -> None:
        self.rules, self.names = rules, names
        self.lists, self.left_out, self.noticed = ListColumns(rules.places), Reasons(), Reasons()
        self.rows = 0
        self.by_id: dict[str, int | list[int]] = {}  # lists of a query id; nearly all have one
        self.client: dict[str, int] = {}
        self.client_of = array("i")  # [lists]
        self.explicit = bytearray()  # [lists]: whether its first place is said, not concluded
        self.length = array("i")  # [lists]: as it was returned
        self.page: dict[int, tuple[int, int]] = {}  # of lists that say so: number of the page, and places of one
        self.first_page = 1
        self.person: list[str] = []  # [lists], where rules ask for one; "": not said
        self.persons: dict[int, str | None] = {}  # by client, from events; None: several
        self.clicks, self.dwell = bytearray(), array("f")
        self.counts: dict[str, int] = {}
        self.doubts: dict[int, int] = {}  # documents shown with a click that does not count, and their lists

    def read_queries(self, path: Path) -> None:
        for number, row, trouble in json_rows(path):
            self.rows += 1
            reason = trouble if row is None else self._query(row, number)
            if reason:
                self.left_out.add(reason, number)
        self._find_pages()
        self.clicks = bytearray(len(self.lists.document))

    def _query(self, row: dict[str, Any], number: int) -> str:
        """Take a row; returns why it cannot be used."""
        if "action_name" in row:
            return IS_EVENT
        if self.rules.application is not None and row.get("application") != self.rules.application:
            self._count(OTHER_APPLICATION)
            return ""
        row = _with_attributes(row)
        query_id = name_of(row.get("query_id"))
        if not query_id:
            return NO_ID
        known = self.names.of(field_of(row, "object_id_field"))
        hits = _hits(row)
        if hits is None:
            return BAD_ROW
        found = [row_of(one, known) for one in hits]
        stated = row.get("client_id") or field_of(row, "query_attributes.client_id")
        client, text = name_of(stated), row.get("user_query")
        moment = moment_of(row.get("timestamp"))
        asked = normalised(text) if isinstance(text, str) else ""
        person = "" if self.rules.person is None else name_of(field_of(row, self.rules.person))
        if stated and not client:
            return NO_USER
        # Persons and clients may only be named by events; until then, somebody asked.
        if problem := self.lists.problem(client or person or _SOMEBODY, moment, asked, found):
            return problem
        first, page = _first(row), _page(row)
        if first == _NO_PLACE or page == _NO_PAGE:
            return BAD_FIRST
        drawn = _drawn(row, len(found))
        if isinstance(drawn, str):
            return drawn
        assert moment is not None, "problem() has seen to it"
        one = self.lists.add(client or person or _SOMEBODY, moment, asked, found, max(first, 0), number, drawn)
        self.lists.ids.append(query_id)
        self.client_of.append(self.client.setdefault(client, len(self.client)))
        self.explicit.append(first >= 0)
        self.length.append(len(found))
        if first < 0 and page is not None:
            self.page[one] = page
            self.first_page = min(self.first_page, page[0])
        if self.rules.person is not None:
            self.person.append(person)
        before = self.by_id.setdefault(query_id, one)
        if isinstance(before, list):
            before.append(one)
        elif before != one:
            self.by_id[query_id] = [before, one]
        return ""

    def _find_pages(self) -> None:
        """Where lists that share a query id stand: behind one another, or one is another's repetition."""
        lists = self.lists
        for one, (number, size) in self.page.items():  # some count pages from 0
            lists.first[one], self.explicit[one] = (number - self.first_page) * size, True
        for query_id, several in self.by_id.items():
            if isinstance(several, int):
                continue
            if len(several) > MOST_LISTS:  # such as "undefined", if a service forgets to make ids
                for one in several:
                    self.left_out.add(TOO_SHARED, lists.line[one])
                    lists.first[one] = -1
                self.by_id[query_id] = []
                continue
            kept: list[int] = []
            several.sort(key=lambda one: lists.time[one])
            pages: dict[int, tuple[set[int], int]] = {}  # of every client: what it saw, and the place behind it
            for one in several:
                rows = lists.document[lists.offsets[one] : lists.offsets[one + 1]]
                seen, end = pages.get(self.client_of[one], (set(), 0))
                if not self.explicit[one] and seen.isdisjoint(rows):
                    lists.first[one] = min(end, _LAST)
                again = next((other for other in kept if self._is_again(one, other)), None)
                if again is not None:
                    self.left_out.add(RELOADED, lists.line[one])
                    lists.first[one] = -1  # not a list of its own
                    continue
                kept.append(one)
                pages[self.client_of[one]] = (seen | set(rows), lists.first[one] + self.length[one])
            self.by_id[query_id] = kept

    def _is_again(self, one: int, other: int) -> bool:
        lists = self.lists
        same = self.client_of[one] == self.client_of[other] and lists.first[one] == lists.first[other]
        own, its = (slice(lists.offsets[each], lists.offsets[each + 1]) for each in (one, other))
        again = same or not self.explicit[one]
        return bool(
            again and self.client_of[one] == self.client_of[other] and lists.document[own] == lists.document[its]
        )

    def read_events(self, path: Path) -> None:
        wanted = frozenset(self.rules.actions)
        for number, row, trouble in json_rows(path):
            self.rows += 1
            if row is None:
                self.left_out.add(trouble, number)
                continue
            if self.rules.application is not None and row.get("application", self.rules.application) != (
                self.rules.application
            ):
                self._count(OTHER_APPLICATION)
                continue
            action = row.get("action_name")
            clicked = isinstance(action, str) and action in wanted
            if not clicked and action not in SEEN:
                self._count(OTHER_ACTION if "action_name" in row else "a query, not an event")
                continue
            if reason := self._event(row, number, clicked):
                self.left_out.add(reason, number)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _event(self, row: dict[str, Any], number: int, clicked: bool) -> str:
        query_id = name_of(row.get("query_id"))
        if not query_id:
            return NO_QUERY_ID
        asked = self.by_id.get(query_id)
        if asked is None:
            return NO_QUERY
        several = [asked] if isinstance(asked, int) else asked
        if not several:
            return TOO_SHARED
        client = row.get("client_id")
        unknown = self.client.get("", -1)
        if client is not None and client != "":
            own = (self.client.get(name_of(client), -1), unknown)
            several = [one for one in several if self.client_of[one] in own]
        if not several or len({self.client_of[one] for one in several}) > 1:
            return OTHER_CLIENT
        moment = moment_of(row.get("timestamp"))
        if moment is None or not self._is_near(several, moment):
            if clicked:
                self._note_doubt(row, several)
            return BAD_TIME if moment is None else FAR_AWAY
        if unknown >= 0 and self.client_of[several[0]] == unknown and (claims := name_of(client)):
            for one in several:  # whoever acts first is the one that asked
                self.client_of[one] = self.client.setdefault(claims, len(self.client))
        if self.rules.person is not None:
            self._note_person(several, name_of(field_of(row, self.rules.person)))
        about = field_of(row, "event_attributes.object.object_id")
        if about is None and not clicked:
            self._count("of whole pages, not of a document")
            return ""
        document = row_of(about, self.names.of(field_of(row, "event_attributes.object.object_id_field")))
        if document < 0:
            return NO_OBJECT if not name_of(about) else UNKNOWN_OBJECT if document != _SEVERAL else SHARED_ID
        at, page = self._place(several, document, moment)
        if at < 0:
            return NOT_SHOWN
        problem = self._note_dwell(row, at)
        if not clicked:
            self._count("seen, not clicked")
            return problem
        if self.clicks[at]:
            return REPEATED
        self.clicks[at] = 1
        if (client is None or client == "") and self.client_of[page] != unknown:
            self.noticed.add(NAMELESS, number)
        ordinal = field_of(row, "event_attributes.position.ordinal")
        if ordinal is not None and not self._is_place(ordinal, page, at):
            self.noticed.add(FORGED, number)
        return problem

    def _is_near(self, several: list[int], moment: float) -> bool:
        return min(abs(moment - self.lists.time[one]) for one in several) <= self.rules.within_hours * 3600

    def _note_doubt(self, row: dict[str, Any], several: list[int]) -> None:
        """A click that does not count because of its time: its list did not go without one, either."""
        names = self.names.of(field_of(row, "event_attributes.object.object_id_field"))
        document = row_of(field_of(row, "event_attributes.object.object_id"), names)
        at, page = self._place(several, document, math.inf) if document >= 0 else (-1, -1)
        if at >= 0:
            self.doubts[at] = page

    def _place(self, several: list[int], document: int, moment: float) -> tuple[int, int]:
        """Where the document was shown, on the latest page before the event that shows it, else on any."""
        places = [(one, at) for one in several if (at := self.lists.place_of(one, document)) >= 0]
        if not places:
            return -1, -1
        before = [(one, at) for one, at in places if self.lists.time[one] <= moment]
        page, at = before[-1] if before else places[0]
        return at, page

    def _is_place(self, ordinal: Any, page: int, at: int) -> bool:
        """Whether an event names the place of the list: counted from 0 or 1, on its page or over all."""
        number = number_of(ordinal)
        place = at - self.lists.offsets[page]
        return number in {start + place + base for start in (0, self.lists.first[page]) for base in (0, 1)}

    def _note_person(self, several: list[int], person: str) -> None:
        if not person:
            return
        for one in several:
            self.person[one] = self.person[one] or person
        client = self.client_of[several[0]]
        if client != self.client.get("", -1) and self.persons.setdefault(client, person) != person:
            self.persons[client] = None

    def _note_dwell(self, row: dict[str, Any], at: int) -> str:
        """Take the time on a document, if the event has one; returns why it cannot be used."""
        found = _dwell(row)
        if found is None:
            return ""
        seconds = number_of(found[0])
        if seconds is None or not 0 <= seconds * found[1] <= LONGEST_DWELL:
            return BAD_DWELL
        if not self.dwell:
            self.dwell = array("f", [math.nan]) * len(self.lists.document)
        self.dwell[at] = seconds * found[1]
        return ""

    def finish(self) -> ShownRows:
        """All lists that are somebody's, and are not a repetition."""
        lists, nobody = self.lists, self.client.get("", -1)
        if self.rules.person is not None or nobody >= 0:
            lists.users, names = {}, list(self.client)
            for one in range(len(lists)):
                client = self.client_of[one]
                name = names[client]
                if self.rules.person is not None:
                    name = self.person[one] or self.persons.get(client) or ""
                if not name and lists.first[one] >= 0:
                    self.left_out.add(ANONYMOUS if self.rules.person is not None else NO_USER, lists.line[one])
                    lists.first[one] = -1
                lists.user[one] = lists.users.setdefault(name, len(lists.users)) if name else -1
                if client == nobody:  # nobody's browser does not stand for that of everybody
                    self.client_of[one] = len(names) + lists.user[one]
        for one in sorted({page for at, page in self.doubts.items() if not self.clicks[at]}):
            if lists.first[one] >= 0:
                self.left_out.add(DOUBTFUL, lists.line[one])
                lists.first[one] = -1
        for field, often in self.names.not_found.items():
            self.counts[f"rows that name the field {field!r}, which no document has: matched by id"] = often
        found = lists.finish(
            self.clicks,
            self.dwell or None,
            self.client_of if self.rules.person is not None else None,
            rows=self.rows,
            left_out=self.left_out.all(),
            noticed=self.noticed.all(),
            unit="browser" if self.rules.person is None else "person",
            counts=self.counts | cut_lists(lists),
        )
        return found.select(found.first >= 0)


_SOMEBODY = "somebody"
_LAST = LAST_PLACE - 1
_NO_PLACE = -2
_NO_PAGE = (-1, 0)


def _hits(row: dict[str, Any]) -> list[Any] | None:
    """Ids of the documents that were returned; Solr's component has them in one text, with commas between them."""
    if "query_response_hit_ids" in row or not isinstance(row.get("doc_ids"), str):
        return values_of(row.get("query_response_hit_ids", row.get("doc_ids")))
    return [one.strip() for one in row["doc_ids"].split(",") if one.strip()]


def _with_attributes(row: dict[str, Any]) -> dict[str, Any]:
    """With attributes as an object, where they are the text of one, as Solr's component writes them."""
    attributes = row.get("query_attributes")
    if not isinstance(attributes, str) or not attributes.startswith("{"):
        return row
    try:
        return row | {"query_attributes": parse_json(attributes)}
    except ValueError:  # cut off, perhaps; what it said is not needed
        return row


def _first(row: dict[str, Any]) -> int:
    """Places before a list, as the row says; -1 where it says nothing, _NO_PLACE where that makes no sense."""
    asked = row.get("query")
    if isinstance(asked, str) and '"from"' in asked:
        try:
            asked = json.loads(asked)
        except (ValueError, RecursionError):  # cut off, as keyword fields are
            asked = None
    stated = asked.get("from") if isinstance(asked, dict) else None
    for name in FROM:
        if stated is None:
            stated = field_of(row, f"query_attributes.{name}")
    if stated is None:
        return -1
    found = first_of(stated)
    return _NO_PLACE if found is None else found


def _page(row: dict[str, Any]) -> tuple[int, int] | None:
    """Number and size of a page, as the row says; None where it does not, _NO_PAGE where that makes no sense."""
    page = field_of(row, "query_attributes.page")
    size = next((found for name in SIZES if (found := field_of(row, f"query_attributes.{name}")) is not None), None)
    if page is None or size is None:
        return None
    number, places = first_of(page), first_of(size)
    return _NO_PAGE if number is None or not places or number * places >= LAST_PLACE else (number, places)


def _drawn(row: dict[str, Any], length: int) -> Drawn | str | None:
    scores = field_of(row, "query_attributes.scores")
    if scores is None:
        return None
    how = (field_of(row, f"query_attributes.{name}") for name in ("temperature", "keep"))
    return drawn_of(scores, next(how), next(how), length)


def _dwell(row: dict[str, Any]) -> tuple[Any, float] | None:
    """The time on a document and its unit in seconds, under any of its names; None where there is none."""
    attributes = row.get("event_attributes")
    if isinstance(attributes, dict):
        for place in (attributes, attributes.get("object")):
            if isinstance(place, dict) and (named := sorted(DWELL.keys() & place.keys())):
                return place[named[0]], DWELL[named[0]]
        return None
    for joined, unit in _JOINED.items():
        if joined in row:
            return row[joined], unit
    return None


_JOINED = {f"event_attributes.{where}{name}": unit for where in ("", "object.") for name, unit in DWELL.items()}

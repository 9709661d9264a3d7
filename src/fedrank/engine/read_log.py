"""Features that an engine logged, read back and joined with clicks: training data for a model in that engine.

A line of the file is one answer to a search: of OpenSearch or Elasticsearch, whose hits have `fields._ltrlog`, or of
Solr, whose documents have `[features]`. Which search it was says `query_id`, at the top of the object, under `ext.ubi`
or `ubi` where the plugin for UBI puts it, or among Solr's echoed parameters. Whatever cannot be used is left out and
counted with its reason.
"""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import find_columns, kind_of
from fedrank.data.engine_features import NAMES
from fedrank.data.json_lines import TOO_LONG, Reasons, bounded_lines, field_of, json_rows, json_values, name_of
from fedrank.data.letor import letor_lines
from fedrank.data.logs import BAD_BYTES, BAD_ROW, LeftOut
from fedrank.data.ranking import RankingData
from fedrank.files import read_text, writing
from fedrank.types import Features

MOST_HITS = 10_000  # of an answer: engines return no more
MOST_FEATURES = 10_000  # of a set: the plugins take no more
EXTRA = "extra_logging"  # an entry of the plugin's that is no feature
CLICK_COLUMNS: dict[str, tuple[str, ...]] = {  # what a column may be called, in any case of letters
    "query_id": ("query_id", "queryid"),
    "document": ("document", "object_id", "doc", "doc_id", "docid", "document_id", "clicked"),
}

NO_QUERY_ID = "answer without the id of its search"
NO_HITS = "answer without hits"
TOO_MANY = f"answer of more than {MOST_HITS:,} hits"
NO_ID = "hit without an id"
NO_FEATURES = "hit without logged features"
SEVERAL_SETS = "hit with several sets of features, of which none was chosen"
UNKNOWN_FEATURE = "hit with a feature that is not of the set"
TWICE_NAMED = "hit with one feature twice"
BAD_VALUE = "hit with a value that is no finite number"
AGAIN = "hit that was logged before, for the same search"

NO_CLICK_ID = "click without the id of its search"
NO_OBJECT = "click without a document"
OTHER_ACTION = "an event that is no click"
NOT_LOGGED = "click on a search that was not logged"
NOT_AMONG = "click on a document that was not logged for its search"
CLICKED_AGAIN = "click on the same document again"


@dataclass(frozen=True, eq=False)
class LoggedFeatures:
    """Documents with their features, by search; and what became of other rows."""

    names: tuple[str, ...]
    searches: tuple[str, ...]  # ids
    offsets: NDArray[np.int64]  # [searches + 1]
    documents: tuple[str, ...]  # ids, [rows]
    features: Features  # [rows, features]
    lines: int  # read, sound or not
    left_out: dict[str, LeftOut]
    missing: int  # values that were not logged and count as 0
    entry: str = ""  # what the engine calls the set; Solr does not say
    scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [rows]: the engine's; NaN: it has none

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, eq=False)
class JoinedClicks:
    """Which documents were clicked."""

    grades: NDArray[np.int8]  # [rows]: 1 where it was clicked
    lines: int
    left_out: dict[str, LeftOut] = field(default_factory=dict)


def read_logged(
    path: str | os.PathLike[str], names: Sequence[str] = NAMES, entry: str = "", most: int = MOST_HITS
) -> LoggedFeatures:
    """Read answers. `names` are the features in their order, `entry` the logged set where there are several."""
    columns = {name: place for place, name in enumerate(names)}
    if not 0 < len(names) <= MOST_FEATURES or len(columns) < len(names) or not all(names):
        raise ValueError(f"{len(names)} names of features, of which some are empty or one another; give each its own")
    path, gathered = Path(path), _Gathered(columns, entry)
    lines = 0
    for number, answer, trouble in _answers(path):
        lines += 1
        if answer is None:
            gathered.reasons.add(trouble, number)
        else:
            gathered.take(answer, number, most)
    return gathered.finish(tuple(names), lines)


class _Gathered:
    """What was read so far."""

    def __init__(self, columns: Mapping[str, int], entry: str) -> None:
        self.columns, self.entry, self.reasons = columns, entry, Reasons()
        self.rows: dict[str, dict[str, int]] = {}  # of every search: row by document
        self.values, self.scores = array("f"), array("d")
        self.missing = 0
        self.found = entry

    def take(self, answer: dict[str, Any], number: int, most: int) -> None:
        hits = _hits(answer)
        search = _search_id(answer)
        if not search:
            self.reasons.add(NO_QUERY_ID, number)
        elif not hits:
            self.reasons.add(NO_HITS, number)
        elif len(hits) > most:
            self.reasons.add(TOO_MANY, number)
        else:
            known = self.rows.setdefault(search, {})
            for hit in hits:
                if problem := self._hit(known, hit):
                    self.reasons.add(problem, number)
            if not known:
                del self.rows[search]

    def _hit(self, known: dict[str, int], hit: Any) -> str:
        """Take a document; returns why it cannot be used."""
        name = name_of(hit.get("_id", hit.get("id"))) if isinstance(hit, dict) else ""
        if not name:
            return NO_ID
        if name in known:
            return AGAIN
        pairs = _logged(hit, self.entry)
        if isinstance(pairs, str):
            return pairs
        row = [math.nan] * len(self.columns)
        for feature, value in pairs:
            place = self.columns.get(feature)
            if place is None:
                return UNKNOWN_FEATURE
            if not math.isnan(row[place]):
                return TWICE_NAMED
            number = _finite(value)
            if number is None:
                return BAD_VALUE
            row[place] = number
        self.missing += sum(map(math.isnan, row))
        self.found = self.found or next(iter(_sets(hit)), "")
        known[name] = len(self.values) // len(row)
        score = _finite(hit.get("_score", hit.get("score")))
        self.scores.append(math.nan if score is None else score)
        self.values.extend(0.0 if math.isnan(value) else value for value in row)
        return ""

    def finish(self, names: tuple[str, ...], lines: int) -> LoggedFeatures:
        order = np.array([row for known in self.rows.values() for row in known.values()], np.int64)
        features = np.array(self.values, np.float32).reshape(-1, len(names))
        return LoggedFeatures(
            names,
            tuple(self.rows),
            np.cumsum([0, *map(len, self.rows.values())], dtype=np.int64),
            tuple(name for known in self.rows.values() for name in known),
            features[order],
            lines,
            self.reasons.all(),
            self.missing,
            self.found,
            np.array(self.scores, np.float64)[order],
        )


def read_joined_clicks(path: str | os.PathLike[str], logged: LoggedFeatures) -> JoinedClicks:
    """Read clicks and find them among what was logged: JSON Lines (flat, or events of UBI), TSV or CSV."""
    row_of = {
        search: {logged.documents[row]: row for row in range(first, end)}
        for search, first, end in zip(logged.searches, logged.offsets[:-1], logged.offsets[1:], strict=True)
    }
    grades, reasons, lines = np.zeros(len(logged), np.int8), Reasons(), 0
    for number, search, document, trouble in _clicks(Path(path)):
        lines += 1
        reason = trouble
        if not reason:
            row = row_of.get(search, {}).get(document)
            if row is None:
                reason = NOT_AMONG if search in row_of else NOT_LOGGED
            elif grades[row]:
                reason = CLICKED_AGAIN
            else:
                grades[row] = 1
        if reason:
            reasons.add(reason, number)
    return JoinedClicks(grades, lines, reasons.all())


def as_letor(logged: LoggedFeatures, grades: NDArray[np.int8] | None = None) -> RankingData:
    """What was logged as training data: a click is grade 1."""
    if not len(logged):
        reasons = "; ".join(f"{reason}: {left}" for reason, left in logged.left_out.items()) or "it is empty"
        raise ValueError(f"nothing that was logged can be used ({reasons}); check how the engine was asked")
    return RankingData(
        logged.features,
        np.zeros(len(logged), np.int8) if grades is None else grades,
        logged.offsets,
        np.array([str(number) for number in range(1, len(logged.searches) + 1)]),
        top_grade=1,
        feature_names=logged.names,
    )


def write_logged(path: str | os.PathLike[str], logged: LoggedFeatures, grades: NDArray[np.int8] | None = None) -> None:
    """Write LETOR; comments name search and document. It tells what people looked for: only its owner can read it."""
    data = as_letor(logged, grades)
    search = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    with writing(Path(path), private=True) as file:
        for row, line in enumerate(letor_lines(data)):
            file.write(f"{line.rstrip()} # {logged.searches[search[row]]} {logged.documents[row]}\n".encode())


def read_feature_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Names of features, one a line."""
    return tuple(line.strip() for line in read_text(path).splitlines() if line.strip())


def _answers(path: Path) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    for number, row, problem in json_values(path):
        yield number, row if isinstance(row, dict) else None, problem or BAD_ROW


def _search_id(answer: dict[str, Any]) -> str:
    for place in ("query_id", "ext.ubi.query_id", "ubi.query_id", "responseHeader.params.query_id"):
        if found := name_of(field_of(answer, place)):
            return found
    return ""


def _hits(answer: dict[str, Any]) -> list[Any] | None:
    for outer, inner in (("hits", "hits"), ("response", "docs")):
        holder = answer.get(outer)
        if isinstance(holder, dict) and isinstance(holder.get(inner), list):
            return list(holder[inner])
    return None


def _logged(hit: dict[str, Any], entry: str) -> list[tuple[str, Any]] | str:
    """Names and values of a document's features, or why there are none."""
    text = hit.get("[features]")
    if isinstance(text, str):
        return _solr_pairs(text)
    sets = _sets(hit)
    if entry:
        sets = {entry: sets[entry]} if entry in sets else {}
    if len(sets) > 1:
        return SEVERAL_SETS
    values = next(iter(sets.values()), None)
    if not isinstance(values, list) or not values:
        return NO_FEATURES
    pairs: list[tuple[str, Any]] = []
    for one in values:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            return NO_FEATURES
        if one["name"] != EXTRA and "value" in one:
            pairs.append((one["name"], one["value"]))
    return pairs


def _sets(hit: dict[str, Any]) -> dict[str, Any]:
    """What OpenSearch or Elasticsearch logged for a document, by the name of the set."""
    fields = hit.get("fields")
    entries = fields.get("_ltrlog") if isinstance(fields, dict) else None
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}


def _solr_pairs(text: str) -> list[tuple[str, Any]] | str:
    """Dense as `a=1,b=2`, or sparse as `a:1 b:2`."""
    between, equals = (" ", ":") if ":" in text and "=" not in text else (",", "=")
    pairs: list[tuple[str, Any]] = []
    for part in text.split(between):
        name, found, value = part.strip().rpartition(equals)
        if not found or not name:
            return NO_FEATURES
        pairs.append((name, value))
    return pairs


def _finite(value: Any) -> float | None:
    """A number that float32 can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) <= _LARGEST else None  # False for what is no number, too


_LARGEST = float(np.finfo(np.float32).max)


def _clicks(path: Path) -> Iterator[tuple[int, str, str, str]]:
    """Line number, search and document of every click, and what is wrong with it."""
    rows = _of_json(path) if kind_of(path) == "json" else _of_table(path)
    for number, search, document, trouble in rows:
        if trouble:
            yield number, "", "", trouble
        else:
            yield number, search, document, NO_CLICK_ID if not search else NO_OBJECT if not document else ""


def _of_json(path: Path) -> Iterator[tuple[int, str, str, str]]:
    for number, row, trouble in json_rows(path):
        if row is None:
            yield number, "", "", trouble
            continue
        action = row.get("action_name", "click")
        document = field_of(row, "event_attributes.object.object_id")
        for name in CLICK_COLUMNS["document"]:
            document = row.get(name) if document is None else document
        yield number, name_of(row.get("query_id")), name_of(document), "" if action == "click" else OTHER_ACTION


def _of_table(path: Path) -> Iterator[tuple[int, str, str, str]]:
    kind, places = kind_of(path), [-1, -1]
    for number, line in bounded_lines(path):
        if line is None:
            yield number, "", "", TOO_LONG
            continue
        try:
            text = line.decode("utf-8-sig" if places[0] < 0 else "utf-8")
            cells = text.split("\t") if kind == "tsv" else next(csv.reader([text], strict=True))
        except (UnicodeDecodeError, csv.Error) as problem:
            yield number, "", "", BAD_BYTES if isinstance(problem, UnicodeDecodeError) else BAD_ROW
            continue
        if places[0] < 0:
            found = find_columns(cells, CLICK_COLUMNS, {}, CLICK_COLUMNS, f"{path}, line {number}")
            places = [cells.index(found[name]) for name in CLICK_COLUMNS]
        elif max(places) >= len(cells):
            yield number, "", "", BAD_ROW
        else:
            yield number, name_of(cells[places[0]]), name_of(cells[places[1]]), ""

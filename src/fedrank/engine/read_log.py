"""Features that an engine logged, joined with clicks: training data for a model in that engine.

A line of the file is one answer to a search: of OpenSearch or Elasticsearch, whose hits have `fields._ltrlog`, or of
Solr, whose documents have `[features]`. `query_id` identifies the search: at the top of the object, under `ext.ubi` or
`ubi` (the UBI plugin), or among Solr's echoed parameters. Unusable rows are skipped and counted by reason.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.engine_features import ENGINE_1
from fedrank.data.letor import letor_lines
from fedrank.data.ranking import RankingData
from fedrank.data.rows import Column, LeftOut, RowFormat, RowReader, UnusableRow, list_reasons
from fedrank.data.values import nested_value, parse_id, parse_number
from fedrank.files import read_text, writing
from fedrank.types import Features

MAX_HITS = 10_000  # maximum per answer: engines return no more
MAX_FEATURES = 10_000  # maximum per set: the plugins accept no more
EXTRA = "extra_logging"  # an entry of the plugin that is not a feature

NO_QUERY_ID = "answer without a query id"
NO_HITS = "answer without hits"
TOO_MANY = f"answer of more than {MAX_HITS:,} hits"
NO_ID = "hit without an id"
NO_FEATURES = "hit without logged features"
SEVERAL_SETS = "hit with several feature sets, none of which was selected"
UNKNOWN_FEATURE = "hit with a feature that is not in the set"
TWICE_NAMED = "hit with a duplicate feature"
BAD_VALUE = "hit with a value that is not a finite number"
AGAIN = "hit that was already logged for the same search"

NO_CLICK_ID = "click without a query id"
NO_OBJECT = "click without a document"
OTHER_ACTION = "an event that is not a click"
NOT_LOGGED = "click on a search that was not logged"
NOT_AMONG = "click on a document that was not logged for its search"
CLICKED_AGAIN = "repeated click on the same document"


@dataclass(frozen=True, eq=False)
class LoggedFeatures:
    """Documents with their features by search, and counts of skipped rows."""

    names: tuple[str, ...]
    searches: tuple[str, ...]  # ids
    offsets: NDArray[np.int64]  # [searches + 1]
    documents: tuple[str, ...]  # ids, [rows]
    features: Features  # [rows, features]
    lines: int  # number of lines read, including unusable ones
    left_out: dict[str, LeftOut]
    missing: int  # values that were not logged and count as 0
    entry: str = ""  # the engine's name of the set; Solr does not report it
    scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [rows]: the engine's; NaN if missing

    def __len__(self) -> int:
        return len(self.documents)


@dataclass(frozen=True, eq=False)
class JoinedClicks:
    """Which documents were clicked."""

    grades: NDArray[np.int8]  # [rows]: 1 if the document was clicked
    lines: int
    left_out: dict[str, LeftOut] = field(default_factory=dict)


def read_logged(
    path: str | os.PathLike[str], names: Sequence[str] = ENGINE_1.names, entry: str = "", most: int = MAX_HITS
) -> LoggedFeatures:
    """Read answers. `names` are the features in order, `entry` selects one of several logged sets."""
    columns = {name: column for column, name in enumerate(names)}
    if not 0 < len(names) <= MAX_FEATURES or len(columns) < len(names) or not all(names):
        raise ValueError(f"the {len(names)} feature names must be unique, not empty, and at most {MAX_FEATURES:,}")
    logged = _Logged(RowReader(path, ANSWERS), columns, entry, most)
    logged.reader.each(logged.take)
    return logged.finish(tuple(names))


class _Logged:
    """What has been read so far."""

    def __init__(self, reader: RowReader, columns: Mapping[str, int], entry: str, most: int) -> None:
        self.reader, self.columns, self.entry, self.most = reader, columns, entry, most
        self.rows: dict[str, dict[str, int]] = {}  # for every search: row by document
        self.values, self.scores = array("f"), array("d")
        self.missing = 0
        self.found = entry

    def take(self, number: int, answer: dict[str, Any]) -> None:
        if len(answer["hits"]) > self.most:
            raise UnusableRow(TOO_MANY)
        known = self.rows.setdefault(answer["search"], {})
        for hit in answer["hits"]:
            try:
                self._hit(known, hit)
            except UnusableRow as problem:
                self.reader.left_out.add(str(problem), number)
        if not known:
            del self.rows[answer["search"]]

    def _hit(self, known: dict[str, int], hit: Any) -> None:
        """Add a document."""
        name = parse_id(hit.get("_id", hit.get("id"))) if isinstance(hit, dict) else ""
        if not name:
            raise UnusableRow(NO_ID)
        if name in known:
            raise UnusableRow(AGAIN)
        row = [math.nan] * len(self.columns)
        for feature, value in _logged(hit, self.entry):
            column = self.columns.get(feature)
            if column is None:
                raise UnusableRow(UNKNOWN_FEATURE)
            if not math.isnan(row[column]):
                raise UnusableRow(TWICE_NAMED)
            number = parse_number(value)
            if number is None:
                raise UnusableRow(BAD_VALUE)
            row[column] = number
        self.missing += sum(map(math.isnan, row))
        self.found = self.found or next(iter(_sets(hit)), "")
        known[name] = len(self.values) // len(row)
        score = parse_number(hit.get("_score", hit.get("score")))
        self.scores.append(math.nan if score is None else score)
        self.values.extend(0.0 if math.isnan(value) else value for value in row)

    def finish(self, names: tuple[str, ...]) -> LoggedFeatures:
        order = np.array([row for known in self.rows.values() for row in known.values()], np.int64)
        features = np.array(self.values, np.float32).reshape(-1, len(names))
        return LoggedFeatures(
            names,
            tuple(self.rows),
            np.cumsum([0, *map(len, self.rows.values())], dtype=np.int64),
            tuple(name for known in self.rows.values() for name in known),
            features[order],
            self.reader.rows,
            self.reader.left_out.all(),
            self.missing,
            self.found,
            np.array(self.scores, np.float64)[order],
        )


def read_joined_clicks(path: str | os.PathLike[str], logged: LoggedFeatures) -> JoinedClicks:
    """Read clicks and match them with logged searches: JSON Lines (flat, or events of UBI), TSV or CSV."""
    row_of = {
        search: {logged.documents[row]: row for row in range(first, end)}
        for search, first, end in zip(logged.searches, logged.offsets[:-1], logged.offsets[1:], strict=True)
    }
    grades, reader = np.zeros(len(logged), np.int8), RowReader(path, CLICKS)

    def take(number: int, click: dict[str, Any]) -> None:
        row = row_of.get(click["search"], {}).get(click["document"])
        if row is None:
            raise UnusableRow(NOT_AMONG if click["search"] in row_of else NOT_LOGGED)
        if grades[row]:
            raise UnusableRow(CLICKED_AGAIN)
        grades[row] = 1

    reader.each(take)
    return JoinedClicks(grades, reader.rows, reader.left_out.all())


def as_letor(logged: LoggedFeatures, grades: NDArray[np.int8] | None = None) -> RankingData:
    """The logged rows as training data: a click is relevance label 1."""
    if not len(logged):
        reasons = list_reasons(logged.left_out)
        raise ValueError(f"no logged row can be used ({reasons}); check the requests to the engine")
    return RankingData(
        logged.features,
        np.zeros(len(logged), np.int8) if grades is None else grades,
        logged.offsets,
        np.array([str(number) for number in range(1, len(logged.searches) + 1)]),
        top_grade=1,
        feature_names=logged.names,
    )


def write_logged(path: str | os.PathLike[str], logged: LoggedFeatures, grades: NDArray[np.int8] | None = None) -> None:
    """Write LETOR; comments name search and document. Only its owner can read it, because it describes people."""
    data = as_letor(logged, grades)
    search = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    with writing(Path(path), private=True) as file:
        for row, line in enumerate(letor_lines(data)):
            file.write(f"{line.rstrip()} # {logged.searches[search[row]]} {logged.documents[row]}\n".encode())


def read_feature_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Feature names, one per line."""
    return tuple(line.strip() for line in read_text(path).splitlines() if line.strip())


def _search_id(answer: dict[str, Any]) -> str | None:
    paths = ("query_id", "ext.ubi.query_id", "ubi.query_id", "responseHeader.params.query_id")
    return next((found for path in paths if (found := parse_id(nested_value(answer, path)))), None)


def _hits(answer: dict[str, Any]) -> list[Any] | None:
    for outer, inner in (("hits", "hits"), ("response", "docs")):
        holder = answer.get(outer)
        if isinstance(holder, dict) and isinstance(holder.get(inner), list):
            return list(holder[inner]) or None
    return None


def _logged(hit: dict[str, Any], entry: str) -> list[tuple[str, Any]]:
    """Names and values of a document's features."""
    text = hit.get("[features]")
    if isinstance(text, str):
        return _solr_pairs(text)
    sets = _sets(hit)
    if entry:
        sets = {entry: sets[entry]} if entry in sets else {}
    if len(sets) > 1:
        raise UnusableRow(SEVERAL_SETS)
    values = next(iter(sets.values()), None)
    if not isinstance(values, list) or not values:
        raise UnusableRow(NO_FEATURES)
    pairs: list[tuple[str, Any]] = []
    for one in values:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise UnusableRow(NO_FEATURES)
        if one["name"] != EXTRA and "value" in one:
            pairs.append((one["name"], one["value"]))
    return pairs


def _sets(hit: dict[str, Any]) -> dict[str, Any]:
    """Features that OpenSearch or Elasticsearch logged for a document, by the name of the set."""
    fields = hit.get("fields")
    entries = fields.get("_ltrlog") if isinstance(fields, dict) else None
    return entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}


def _solr_pairs(text: str) -> list[tuple[str, Any]]:
    """Dense as `a=1,b=2`, or sparse as `a:1 b:2`."""
    between, equals = (" ", ":") if ":" in text and "=" not in text else (",", "=")
    pairs: list[tuple[str, Any]] = []
    for part in text.split(between):
        name, found, value = part.strip().rpartition(equals)
        if not found or not name:
            raise UnusableRow(NO_FEATURES)
        pairs.append((name, value))
    return pairs


def _check_click(action: Any) -> None:
    if action not in (None, "click"):
        raise UnusableRow(OTHER_ACTION)


def _id(value: Any) -> str | None:
    return parse_id(value) or None


ANSWERS = RowFormat(
    {"search": Column((), _search_id, NO_QUERY_ID), "hits": Column((), _hits, NO_HITS)},
    kind="json",
    nested=True,
    unwrap=False,
)
CLICKS = RowFormat(
    {
        "action": Column(("action_name",), _check_click, required=False),
        "search": Column(("query_id", "queryid"), _id, NO_CLICK_ID),
        "document": Column(
            (
                *("event_attributes.object.object_id", "document", "object_id", "doc", "doc_id", "docid"),
                *("document_id", "clicked"),
            ),
            _id,
            NO_OBJECT,
        ),
    },
    nested=True,
    exact=True,
)

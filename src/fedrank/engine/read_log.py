"""Features that an engine logged, joined with clicks or with UBI: training data for a model in that engine.

A line of the file is one answer to a search: of OpenSearch or Elasticsearch, whose hits have `fields._ltrlog`, or of
Solr, whose documents have `[features]`. `query_id` identifies the search: at the top of the object, under `ext.ubi` or
`ubi` (the UBI plugin), or among Solr's echoed parameters. Unusable rows are skipped and counted by reason.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.build_shown import DescribedRows, write_described
from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, is_engine_set
from fedrank.data.letor import letor_lines
from fedrank.data.logs import SearchLog
from fedrank.data.ranking import RankingData
from fedrank.data.rows import Column, LeftOut, RowFormat, RowReader, UnusableRow, list_reasons
from fedrank.data.shown import ShownRows
from fedrank.data.ubi import UbiRules, read_ubi
from fedrank.data.values import nested_value, parse_id, parse_number
from fedrank.files import read_text, writing
from fedrank.types import Features

MAX_HITS = 10_000  # maximum per answer: engines return no more
MAX_FEATURES = 10_000  # maximum per set: the plugins accept no more
EXTRA = "extra_logging"  # an entry of the plugin that is not a feature
NO_FEATURES = "hit without logged features"
OTHER_FEATURES = "logged"  # name in a dataset for features that are not fedrank's
NOT_LOGGED = "of lists with a document whose features were not logged for the search"


@dataclass(frozen=True, eq=False)
class LoggedFeatures:
    """Documents with their features by search, and counts of skipped rows."""

    names: tuple[str, ...]
    searches: tuple[str, ...]  # ids
    offsets: NDArray[np.int64]  # [searches + 1]
    documents: tuple[str, ...]  # ids, [rows]
    features: Features  # [rows, features]
    left_out: dict[str, LeftOut]
    missing: int  # values that were not logged and count as 0
    entry: str = ""  # the engine's name of the set; Solr does not report it
    scores: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))  # [rows]: the engine's; NaN if missing

    def __len__(self) -> int:
        return len(self.documents)

    def rows_by_search(self) -> dict[str, dict[str, int]]:
        """For every search, the row of each document."""
        return {
            search: {self.documents[row]: row for row in range(first, end)}
            for search, first, end in zip(self.searches, self.offsets[:-1], self.offsets[1:], strict=True)
        }


@dataclass(frozen=True, eq=False)
class JoinedClicks:
    """Which documents were clicked."""

    grades: NDArray[np.int8]  # [rows]: 1 if the document was clicked
    left_out: dict[str, LeftOut] = field(default_factory=dict)


def read_logged(path: str | os.PathLike[str], names: Sequence[str] = ENGINE_1.names, entry: str = "") -> LoggedFeatures:
    """Read answers. `names` are the features in order, `entry` selects one of several logged sets."""
    columns = {name: column for column, name in enumerate(names)}
    if not 0 < len(names) <= MAX_FEATURES or len(columns) < len(names) or not all(names):
        raise ValueError(f"the {len(names)} feature names must be unique, not empty, and at most {MAX_FEATURES:,}")
    logged = _Logged(RowReader(path, ANSWERS), columns, entry)
    logged.reader.each(logged.take)
    return logged.finish(tuple(names))


class _Logged:
    """What has been read so far."""

    def __init__(self, reader: RowReader, columns: Mapping[str, int], entry: str) -> None:
        self.reader, self.columns, self.entry = reader, columns, entry
        self.rows: dict[str, dict[str, int]] = {}  # for every search: row by document
        self.values, self.scores = array("f"), array("d")
        self.missing = 0
        self.found = entry

    def take(self, number: int, answer: dict[str, Any]) -> None:
        if len(answer["hits"]) > MAX_HITS:
            raise UnusableRow(f"answer of more than {MAX_HITS:,} hits")
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
            raise UnusableRow("hit without an id")
        if name in known:
            raise UnusableRow("hit that was already logged for the same search")
        row = [math.nan] * len(self.columns)
        for feature, value in _logged(hit, self.entry):
            column = self.columns.get(feature)
            if column is None:
                raise UnusableRow("hit with a feature that is not in the set")
            if not math.isnan(row[column]):
                raise UnusableRow("hit with a duplicate feature")
            number = parse_number(value)
            if number is None:
                raise UnusableRow("hit with a value that is not a finite number")
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
            self.reader.left_out.all(),
            self.missing,
            self.found,
            np.array(self.scores, np.float64)[order],
        )


def read_joined_clicks(path: str | os.PathLike[str], logged: LoggedFeatures) -> JoinedClicks:
    """Read clicks and match them with logged searches: JSON Lines (flat, or events of UBI), TSV or CSV."""
    row_of = logged.rows_by_search()
    grades, reader = np.zeros(len(logged), np.int8), RowReader(path, CLICKS)

    def take(number: int, click: dict[str, Any]) -> None:
        row = row_of.get(click["search"], {}).get(click["document"])
        if row is None:
            raise UnusableRow(
                "click on a document that was not logged for its search"
                if click["search"] in row_of
                else "click on a search that was not logged"
            )
        if grades[row]:
            raise UnusableRow("repeated click on the same document")
        grades[row] = 1

    reader.each(take)
    return JoinedClicks(grades, reader.left_out.all())


@dataclass(frozen=True, eq=False)
class JoinedLists:
    """Displayed lists whose documents all have features."""

    rows: ShownRows
    features: NDArray[np.int64]  # [displayed documents]: rows of the logged features
    grades: NDArray[np.int8]  # [logged rows]: 1 if the document was clicked
    documents: tuple[str, ...]
    left_out: dict[str, LeftOut]
    not_logged: int  # lists that were dropped


def join_ubi(
    logged: LoggedFeatures,
    queries: str | os.PathLike[str],
    events: str | os.PathLike[str],
    person: str | None = None,
) -> JoinedLists:
    """Match the lists of UBI with the logged searches. A list is cut before a document that was not logged."""
    names = tuple(dict.fromkeys(logged.documents))
    nothing = [""] * len(names)
    # The documents have ids only, so no file can rename them.
    rows = read_ubi(queries, events, Documents(list(names), nothing, nothing, nothing), Path(), UbiRules(person=person))
    row_of, lists = logged.rows_by_search(), [*zip(rows.ids, rows.offsets[:-1], rows.offsets[1:], strict=True)]
    found = np.array(
        [row_of.get(id, {}).get(names[row], -1) for id, first, end in lists for row in rows.document[first:end]],
        np.int64,
    )
    whole = np.array([(found[first:end] >= 0).all() for _, first, end in lists], np.bool_)
    found = found[np.repeat(whole, np.diff(rows.offsets))]
    kept = rows.select(whole)
    grades = np.zeros(len(logged), np.int8)
    grades[found[kept.clicks > 0]] = 1
    return JoinedLists(kept, found, grades, names, rows.left_out, int(np.count_nonzero(~whole)))


def write_joined(out: str | os.PathLike[str], logged: LoggedFeatures, joined: JoinedLists) -> SearchLog:
    """Write a dataset. Interactions per client are limited and queries are redacted, as in `fedrank data build`."""
    # Rows of the logged features stand for documents and stay with their lists.
    rows = replace(joined.rows, document=joined.features.astype(np.int32))
    number = {name: which for which, name in enumerate(joined.documents)}
    described = DescribedRows(
        logged.features, logged.names, [number[name] for name in logged.documents], joined.documents
    )
    return write_described(out, rows, described, set_of(logged), {NOT_LOGGED: joined.not_logged})


def set_of(logged: LoggedFeatures) -> str:
    """The version of these features."""
    if logged.names != ENGINE_1.names:
        return OTHER_FEATURES
    return logged.entry if is_engine_set(logged.entry) else ENGINE_1.version


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
        raise UnusableRow("hit with several feature sets, none of which was selected")
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
        raise UnusableRow("an event that is not a click")


def _id(value: Any) -> str | None:
    return parse_id(value) or None


ANSWERS = RowFormat(
    {"search": Column((), _search_id, "answer without a query id"), "hits": Column((), _hits, "answer without hits")},
    kind="json",
    nested=True,
    unwrap=False,
)
CLICKS = RowFormat(
    {
        "action": Column(("action_name",), _check_click, required=False),
        "search": Column(("query_id", "queryid"), _id, "click without a query id"),
        "document": Column(
            (
                *("event_attributes.object.object_id", "document", "object_id", "doc", "doc_id", "docid"),
                *("document_id", "clicked"),
            ),
            _id,
            "click without a document",
        ),
    },
    nested=True,
    exact=True,
)

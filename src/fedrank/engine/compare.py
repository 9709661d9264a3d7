"""Compare an engine with fedrank: features of the same documents, and scores of the same model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrank.data.documents import Documents
from fedrank.data.engine_features import TOLERANCE, EngineFeatures
from fedrank.data.rows import Column, RowFormat, RowReader
from fedrank.data.values import parse_number, parse_time
from fedrank.engine.read_log import LoggedFeatures
from fedrank.engine.templates import EngineSetup, iso_time
from fedrank.ranking.model import Scorer
from fedrank.trees.export import plain_scores

TOP = 10
QUERIES = RowFormat(
    {
        "query_id": Column(("query_id", "queryid", "id")),
        "query": Column(("query", "user_query", "text")),
        "time": Column(("time", "timestamp"), parse_time, required=False),
    }
)


@dataclass(frozen=True)
class AskedQuery:
    """A query and its time."""

    text: str
    time: float | None = None


@dataclass(frozen=True)
class Compared:
    """Differences of values, relative to their size, or absolute if they are below 1."""

    what: str
    values: int
    worst: float
    beyond: int  # values that differ by more than the tolerance

    @property
    def agrees(self) -> bool:
        return self.values > 0 and not self.beyond


@dataclass(frozen=True)
class ComparedScores:
    """Scores of an engine compared with those of a model, and their top documents."""

    scores: Compared
    lists: int
    same_top: int  # lists with the same ten best documents in the same order, except for ties

    @property
    def agrees(self) -> bool:
        return self.scores.agrees and self.same_top == self.lists


def compare_scores(logged: LoggedFeatures, model: Scorer) -> ComparedScores:
    """Score the logged features with the model, and compare with the scores of the engine."""
    if model.features != len(logged.names):
        raise ValueError(
            f"the model has {model.features} features and the log {len(logged.names)}; name those of the log with "
            "--feature-names"
        )
    known = ~np.isnan(logged.scores)
    if not known.any():
        raise ValueError("no answer has a score of the engine; use the rescore query, which also logs features")
    ours = plain_scores(model, logged.features)
    same = 0
    lists = [slice(*logged.offsets[one : one + 2]) for one in range(len(logged.searches))]
    for one in lists:
        given, own = logged.scores[one], ours[one]
        theirs, mine = (np.argsort(-values, kind="stable")[:TOP] for values in (given, own))
        same += bool(np.all(_apart(own[theirs], own[mine]) <= TOLERANCE))
    return ComparedScores(_compared("scores", logged.scores[known], ours[known]), len(lists), same)


def compare_features(
    logged: LoggedFeatures, documents: Documents, queries: dict[str, AskedQuery], features: EngineFeatures
) -> list[Compared]:
    """Compute engine-1 from documents for the logged searches, and compare each feature."""
    if logged.names != features.names:
        raise ValueError(
            f"the log must have the features {features.version}, because only these are computed from documents"
        )
    index = features.index(documents)
    row_of = {name: row for row, name in enumerate(documents.ids)}
    theirs, ours = [], []
    for number, search in enumerate(logged.searches):
        asked = queries.get(search)
        here = np.arange(*logged.offsets[number : number + 2])
        known = [row for row in here if logged.documents[row] in row_of]
        if asked is not None and known:
            theirs.append(logged.features[known])
            rows = [row_of[logged.documents[row]] for row in known]
            ours.append(index.describe(asked.text, rows, asked.time))
    if not theirs:
        raise ValueError("no logged search matches the queries and documents; check that the files belong together")
    there, here_ = np.concatenate(theirs), np.concatenate(ours)
    return [_compared(name, there[:, i], here_[:, i]) for i, name in enumerate(features.names)]


def read_queries(path: str | os.PathLike[str]) -> dict[str, AskedQuery]:
    """Queries by id, from JSON Lines (also UBI's) or TSV with columns query_id, query and optionally time."""
    found: dict[str, AskedQuery] = {}
    for number, row in RowReader(path, QUERIES, strict=True):
        key = row["query_id"].strip()
        if not key or not row["query"].strip():
            raise ValueError(f"{path}, line {number}: query_id and query are required; write both on every line")
        found[key] = AskedQuery(row["query"], row["time"])
    if not found:
        raise ValueError(f"{path} contains no query; write query_id and query, one query per line")
    return found


def documents_for(setup: EngineSetup, documents: Documents) -> Iterator[str]:
    """Documents in the engine's bulk format: lines of `_bulk`, or Solr's JSON Lines."""
    for row, name in enumerate(documents.ids):
        fields: dict[str, Any] = {setup.title: documents.title[row], setup.body: documents.text[row]}
        moment = parse_time(documents.changed[row]) if setup.changed and documents.changed else None
        if moment is not None:
            fields[setup.changed] = iso_time(moment)
        known = parse_number(documents.popularity[row]) if setup.popularity and documents.popularity else None
        if known is not None:
            fields[setup.popularity] = known
        if setup.to == "solr":
            yield json.dumps({"id": name} | fields, ensure_ascii=False) + "\n"
        else:
            yield json.dumps({"index": {"_index": setup.index, "_id": name}}) + "\n"
            yield json.dumps(fields, ensure_ascii=False) + "\n"


def _apart(one: Any, other: Any) -> Any:
    return np.abs(np.asarray(one, np.float64) - other) / np.maximum(np.abs(np.asarray(other, np.float64)), 1.0)


def _compared(what: str, theirs: Any, ours: Any) -> Compared:
    apart = _apart(theirs, ours)
    return Compared(what, len(apart), float(apart.max(initial=0.0)), int(np.count_nonzero(apart > TOLERANCE)))

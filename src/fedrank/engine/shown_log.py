"""Logged features joined with UBI: who was shown what, what was clicked, and what the engine computed for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.build_shown import ShownBuild, choose
from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, NAMES, is_engine_set
from fedrank.data.logs import LeftOut, SearchLog
from fedrank.data.redaction import replaced
from fedrank.data.shown import ShownRows
from fedrank.data.shown_folder import ShownLists, write_shown
from fedrank.data.ubi import UbiRules, read_ubi
from fedrank.engine.read_log import LoggedFeatures

OTHER_FEATURES = "logged"  # what a data set says of features that are none of fedrank's
NOT_LOGGED = "of lists with a document whose features were not logged for that search"


@dataclass(frozen=True, eq=False)
class JoinedLists:
    """Lists as they were shown, all of whose documents have features."""

    rows: ShownRows
    features: NDArray[np.int64]  # [documents shown]: rows of the logged features
    grades: NDArray[np.int8]  # [logged rows]: 1 where a document was clicked
    documents: tuple[str, ...]
    left_out: dict[str, LeftOut]
    not_logged: int  # lists that were dropped


def join_ubi(
    logged: LoggedFeatures,
    queries: str | os.PathLike[str],
    events: str | os.PathLike[str],
    person: str | None = None,
) -> JoinedLists:
    """Find the lists of UBI among the logged searches. A list ends before a document that was never logged."""
    names = tuple(dict.fromkeys(logged.documents))
    nothing = [""] * len(names)
    # The documents are known by their ids only, so that no file can hold other names for them.
    rows = read_ubi(queries, events, Documents(list(names), nothing, nothing, nothing), Path(), UbiRules(person=person))
    place = {name: number for number, name in enumerate(names)}
    search = np.repeat(np.arange(len(logged.searches)), np.diff(logged.offsets))
    document = np.array([place[name] for name in logged.documents], np.int64)
    codes = search * max(len(names), 1) + document
    order = np.argsort(codes)
    number_of = {name: number for number, name in enumerate(logged.searches)}
    asked = np.array([number_of.get(one, -1) for one in rows.ids], np.int64)
    wanted = np.repeat(asked, np.diff(rows.offsets)) * max(len(names), 1) + rows.document
    at = np.minimum(np.searchsorted(codes[order], wanted), max(len(codes) - 1, 0))
    there = codes[order][at] == wanted if len(codes) else np.zeros(len(wanted), np.bool_)
    whole = np.array(
        [there[first:end].all() for first, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)], np.bool_
    )
    inner = np.repeat(whole, np.diff(rows.offsets))
    kept = rows.select(whole)
    found = order[at[inner]] if len(codes) else np.empty(0, np.int64)
    grades = np.zeros(len(logged), np.int8)
    grades[found[kept.clicks > 0]] = 1
    return JoinedLists(kept, found, grades, names, rows.left_out, int(np.count_nonzero(~whole)))


def write_joined(out: str | os.PathLike[str], logged: LoggedFeatures, joined: JoinedLists) -> SearchLog:
    """Write a data set. What one client may add is limited and queries are redacted, as `fedrank logs build` does."""
    how = ShownBuild()
    numbered = _with_numbers(joined)
    chosen = choose(numbered.rows, how)
    rows = chosen.rows
    lengths = np.diff(rows.offsets)
    grid = np.arange(int(lengths.max())) < lengths[:, None]

    def spread(values: NDArray[Any] | None, empty: float) -> NDArray[Any] | None:
        if values is None:
            return None
        whole = np.full(grid.shape, empty, values.dtype)
        whole[grid] = values
        return whole

    pairs, row = np.unique(rows.document, return_inverse=True)
    number = np.full(len(rows.users), -1, np.int64)
    number[chosen.ranking] = np.arange(len(chosen.ranking))
    asked, query = np.unique(rows.query, return_inverse=True)
    place = {name: which for which, name in enumerate(joined.documents)}
    lists, clicks = spread(row.astype(np.int64), -1), spread(rows.clicks, 0)
    assert lists is not None
    assert clicks is not None
    shown = ShownLists(
        features=logged.features[pairs],
        lists=lists,
        clicks=clicks,
        user=number[rows.user],
        time=rows.time,
        query=query,
        document=np.array([place[logged.documents[one]] for one in pairs], np.int64),
        users=[rows.users[one] for one in chosen.ranking],
        queries=replaced([rows.queries[one] for one in asked], [chosen.reasons[one] for one in asked]),
        documents=joined.documents,
        feature_names=logged.names,
        first=rows.first,
        dwell=spread(rows.dwell, np.nan),
        scores=spread(rows.scores, 0.0),
        temperature=None if rows.drawn is None else rows.drawn[0],
        keep=None if rows.drawn is None else rows.drawn[1],
        unit=rows.unit,
    )
    dropped = {**chosen.dropped, **{rule: cut.lists for rule, cut in chosen.cut.items()}, NOT_LOGGED: joined.not_logged}
    why = [chosen.reasons[one] for one in asked]
    done = {
        "dropped": dropped,
        "capped": {rule: cut._asdict() for rule, cut in chosen.cut.items()},
        "redacted": {reason: why.count(reason) for reason in sorted(set(why)) if reason},
    }
    left_out = {reason: {"rows": one.count, "lines": list(one.lines)} for reason, one in rows.left_out.items()}
    return write_shown(out, shown, {"features": set_of(logged)}, done | {"left_out": left_out})


def set_of(logged: LoggedFeatures) -> str:
    """Which features these are."""
    if logged.names != NAMES:
        return OTHER_FEATURES
    return logged.entry if is_engine_set(logged.entry) else ENGINE_1.version


def _with_numbers(joined: JoinedLists) -> JoinedLists:
    """With rows of the logged features in place of documents, which stay with their lists whatever is chosen."""
    rows = ShownRows(**(joined.rows.__dict__ | {"document": joined.features.astype(np.int32)}))
    return JoinedLists(rows, joined.features, joined.grades, joined.documents, joined.left_out, joined.not_logged)

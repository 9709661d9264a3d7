"""Logged features joined with UBI: displayed lists, clicks, and the features of the engine."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.build_shown import DescribedRows, write_described
from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, is_engine_set
from fedrank.data.logs import SearchLog
from fedrank.data.rows import LeftOut
from fedrank.data.shown import ShownRows
from fedrank.data.ubi import UbiRules, read_ubi
from fedrank.engine.read_log import LoggedFeatures

OTHER_FEATURES = "logged"  # name in a dataset for features that are not fedrank's
NOT_LOGGED = "of lists with a document whose features were not logged for the search"


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
    row = {name: number for number, name in enumerate(names)}
    search = np.repeat(np.arange(len(logged.searches)), np.diff(logged.offsets))
    document = np.array([row[name] for name in logged.documents], np.int64)
    codes = search * max(len(names), 1) + document
    order = np.argsort(codes)
    number_of = {name: number for number, name in enumerate(logged.searches)}
    search_of = np.array([number_of.get(one, -1) for one in rows.ids], np.int64)
    wanted = np.repeat(search_of, np.diff(rows.offsets)) * max(len(names), 1) + rows.document
    at = np.minimum(np.searchsorted(codes[order], wanted), max(len(codes) - 1, 0))
    there = codes[order][at] == wanted if len(codes) else np.zeros(len(wanted), np.bool_)
    whole = np.array(
        [there[first:end].all() for first, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True)], np.bool_
    )
    inner = np.repeat(whole, np.diff(rows.offsets))
    lists = rows.select(whole)
    found = order[at[inner]] if len(codes) else np.empty(0, np.int64)
    grades = np.zeros(len(logged), np.int8)
    grades[found[lists.clicks > 0]] = 1
    return JoinedLists(lists, found, grades, names, rows.left_out, int(np.count_nonzero(~whole)))


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

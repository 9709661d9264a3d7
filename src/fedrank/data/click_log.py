"""Click logs: rows with a user, a time, a query and a clicked document."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data import from_ir_datasets
from fedrank.data.documents import Documents
from fedrank.data.rows import Column, LeftOut, Row, RowFormat, RowReader, UnusableRow
from fedrank.data.values import as_text, parse_name, parse_query, parse_seconds

MATCHES = ("auto", "id", "url")
AOL = {"anonid", "query", "querytime", "itemrank", "clickurl"}  # columns of the AOL log of 2006
NO_CLICK = "no click"
NO_USER = "no user"
EMPTY_QUERY = "empty query"
BAD_TIME = "unreadable time"
UNKNOWN = "click on an unknown document"
AMBIGUOUS_URL = "click on a url of several documents"
_AMBIGUOUS = -2


def _clicked(value: Any) -> str | None:
    return (value if type(value) is str else as_text(value)).strip() or None


CLICK_LOG = RowFormat(
    {
        "document": Column(
            ("document", "doc", "doc_id", "docid", "document_id", "clicked", "clickurl"), _clicked, NO_CLICK
        ),
        "user": Column(("user", "user_id", "userid", "anonid"), parse_name, NO_USER),
        "query": Column(("query", "query_text", "text"), parse_query, EMPTY_QUERY),
        "time": Column(("time", "timestamp", "datetime", "date", "querytime"), parse_seconds, BAD_TIME),
    }
)


@dataclass(frozen=True)
class Clicks:
    """The valid entries of a log as columns, ordered by time, and counts of the other rows."""

    user: NDArray[np.int32]  # [entries], a row of `users`
    time: NDArray[np.int64]  # [entries], seconds since 1970
    query: NDArray[np.int32]  # [entries], a row of `queries`
    document: NDArray[np.int32]  # [entries], the clicked document, a row of the collection
    users: list[str]
    queries: list[str]  # normalised
    rows: int  # rows of the file, valid or not
    left_out: dict[str, LeftOut]  # by reason
    out_of_order: int  # entries that follow a later one in the file

    def __len__(self) -> int:
        return len(self.user)


class ClickColumns:
    """Valid entries as numeric columns, filled while a log is read."""

    def __init__(self) -> None:
        self.users: dict[str, int] = {}
        self.queries: dict[str, int] = {}
        self.user, self.time, self.query, self.document = array("i"), array("q"), array("i"), array("i")

    def add(self, row: Row, document: int) -> None:
        """Append an entry."""
        self.user.append(self.users.setdefault(row["user"], len(self.users)))
        self.time.append(row["time"])
        self.query.append(self.queries.setdefault(row["query"], len(self.queries)))
        self.document.append(document)

    def finish(self, reader: RowReader) -> tuple[Clicks, NDArray[np.int64]]:
        """Return all entries ordered by time, and the index of each in the order of adding."""
        time = np.array(self.time, dtype=np.int64)
        order = np.argsort(time, kind="stable")
        latest = np.maximum.accumulate(time) if len(time) else time
        clicks = Clicks(
            user=np.array(self.user, dtype=np.int32)[order],
            time=time[order],
            query=np.array(self.query, dtype=np.int32)[order],
            document=np.array(self.document, dtype=np.int32)[order],
            users=list(self.users),
            queries=list(self.queries),
            rows=reader.rows,
            left_out=reader.left_out.all(),
            out_of_order=int(np.count_nonzero(time < latest)),
        )
        return clicks, order


def read_clicks(
    path: str | os.PathLike[str], documents: Documents, columns: Mapping[str, str] | None = None, match: str = "auto"
) -> Clicks:
    """Read a log: TSV, CSV or JSON Lines with columns for user, time, query and clicked document, or AOL's format.

    A path such as `ir_datasets:aol-ia` names a log of that package. `columns` maps to non-standard column names. A time
    is an ISO 8601 date (UTC if it has no time zone) or seconds since 1970. `match` is how clicks name documents, by id
    or by url; "auto" uses urls for AOL's format and ids otherwise. Unusable rows are counted by reason.
    """
    path = Path(path)
    if match not in MATCHES:
        raise ValueError(f"match must be one of {', '.join(MATCHES)} (got {match!r})")
    reader, clicks = RowReader(path, CLICK_LOG, columns), ClickColumns()
    rows_by_id: dict[str, int] = {}
    by_url = match == "url"

    def add_row(number: int, row: Row) -> None:
        nonlocal rows_by_id, by_url
        if not rows_by_id:
            by_url |= match == "auto" and {name.strip().lower() for name in reader.header} >= AOL
            rows_by_id = _by_url(documents) if by_url else {name: row for row, name in enumerate(documents.ids)}
        document = rows_by_id.get(_plain_url(row["document"]) if by_url else row["document"], -1)
        if document < 0:
            raise UnusableRow(UNKNOWN if document != _AMBIGUOUS else AMBIGUOUS_URL)
        clicks.add(row, document)

    reader.each(add_row, from_ir_datasets.clicks_of(path) if from_ir_datasets.is_there(path) else None)
    return clicks.finish(reader)[0]


def rank_users(
    counts: NDArray[np.integer], least: int = 1, most: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the selected users, most active first, and the rank of every user (-1: not selected)."""
    ranking = np.argsort(-counts, kind="stable")
    ranking = ranking[counts[ranking] >= least][:most]
    rank = np.full(len(counts), -1, dtype=np.int32)
    rank[ranking] = np.arange(len(ranking))
    return ranking, rank


def _by_url(documents: Documents) -> dict[str, int]:
    rows_by_url: dict[str, int] = {}
    for row, url in enumerate(documents.url):
        if url:
            plain = _plain_url(url)
            rows_by_url[plain] = _AMBIGUOUS if plain in rows_by_url else row
    if not rows_by_url:
        raise ValueError(
            "clicks name documents by url, but no document has a url; add urls to the documents, or match by id"
        )
    return rows_by_url


def _plain_url(url: str) -> str:
    """Normalise a url: no case, no scheme, no trailing slash."""
    return re.sub(r"^https?://", "", url.strip().lower()).rstrip("/")

"""Deletion of searches and documents from the store."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrank.data.live_features import FeatureSet
from fedrank.search.ingest import leave_out
from fedrank.search.queries import parse
from fedrank.search.readers import clean
from fedrank.search.results import ForgottenRows
from fedrank.search.store import Store, in_parts, marks

MAX_QUERY_LENGTH = 2_000  # characters


def forget_searches(store: Store, features: FeatureSet, query: str | None, since: int | None) -> ForgottenRows:
    """Delete the searches with this text, or all searches since a time, and their clicks; also those of agents."""
    which: str
    values: list[Any]
    if query is not None:
        text = " ".join(clean(query[:MAX_QUERY_LENGTH]).split())
        key = features.query(parse(text).words).key
        which, values = "query = ? OR (terms = ? AND terms != x'')", [text, key]
    else:
        which, values = "time >= ?", [since]
    ids = store.rows(f"SELECT id FROM impressions WHERE {which}", *values)
    with store.writing():
        clicks = _delete([id for (id,) in ids], store)
        of_agents = store.db.execute(f"DELETE FROM agent_searches WHERE {which}", values).rowcount
        if since is not None:  # recent clicks in older impressions
            clicks += store.db.execute("DELETE FROM clicks WHERE time >= ?", (since,)).rowcount
    return ForgottenRows(0, len(ids) + of_agents, clicks)


def forget_learned(store: Store) -> ForgottenRows:
    """Delete all searches and clicks, and what was decided by them."""
    searches, clicks = (store.count(f"SELECT count(*) FROM {table}") for table in ("impressions", "clicks"))
    with store.writing():
        for table in ("clicks", "impressions", "agent_searches"):
            store.db.execute(f"DELETE FROM {table}")
        store.db.execute("DELETE FROM settings WHERE name IN ('remember_after', 'engine_after')")
    return ForgottenRows(0, searches, clicks)


def forget_everything(store: Store) -> ForgottenRows:
    """Delete all rows; the change counter continues, since the index depends on it."""
    documents, searches, clicks = (
        store.count(f"SELECT count(*) FROM {table}") for table in ("documents", "impressions", "clicks")
    )
    seq = store.seq
    with store.writing():
        store.empty({"sent", "sqlite_sequence"})  # what earlier versions sent stays on record
        store.set(seq=seq, indexed=seq)
    return ForgottenRows(documents, searches, clicks)


def listed_in(store: Store, document: int) -> list[tuple[int, str]]:
    """The recorded searches that showed a document, with their queries."""
    blob = int(document).to_bytes(8, "little")
    rows = store.rows(
        "SELECT id, query, candidates, shown FROM impressions WHERE instr(candidates, ?) ORDER BY id DESC", blob
    )
    return [
        (id, query)
        for id, query, candidates, shown in rows
        if document in np.frombuffer(candidates, "<i8")[np.frombuffer(shown, "u1")]
    ]


def forget_document(store: Store, document: int, searches: bool = False) -> ForgottenRows:
    """Delete a document and its clicks, and exclude it from later indexing; with `searches`, those that showed it."""
    listed = listed_in(store, document)
    file, root, key, content, part = store.one(
        "SELECT file, roots.path, key, content, part FROM documents JOIN files ON files.id = file JOIN roots ON "
        "roots.id = root WHERE documents.id = ?",
        document,
    )
    blob = int(document).to_bytes(8, "little")
    with store.writing():
        deleted = _delete([id for id, _ in listed], store) if searches else 0
        leave_out(store, root, key, part)
        store.remove([document])
        store.set(has_forgotten=1)
        if not part:  # the document is the whole file, so its name is deleted, too
            if content:  # wherever it is moved
                leave_out(store, b"", content, "")
            store.db.execute("DELETE FROM files WHERE id = ?", (file,))
            store.db.execute("DELETE FROM skipped WHERE file = ?", (file,))
        clicks = store.db.execute("DELETE FROM clicks WHERE document = ?", (document,)).rowcount
        for table, column in (("impressions", "candidates"), ("agent_searches", "documents")):
            for id, listed_ids in store.rows(f"SELECT id, {column} FROM {table} WHERE instr({column}, ?)", blob):
                ids = np.frombuffer(listed_ids, "<i8").copy()
                ids[ids == document] = 0
                store.db.execute(f"UPDATE {table} SET {column} = ? WHERE id = ?", (ids.tobytes(), id))
    if searches:
        return ForgottenRows(1, len(listed), clicks + deleted)
    return ForgottenRows(1, 0, clicks, tuple(dict.fromkeys(query for _, query in listed)))


def _delete(searches: list[int], store: Store) -> int:
    """Delete searches; returns the number of their clicks. Requires a transaction."""
    clicks = 0
    for some in in_parts(searches):
        clicks += store.db.execute(f"DELETE FROM clicks WHERE impression IN ({marks(some)})", some).rowcount
        store.db.execute(f"DELETE FROM impressions WHERE id IN ({marks(some)})", some)
    return clicks

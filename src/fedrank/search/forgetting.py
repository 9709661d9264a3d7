"""Deletion of searches and documents from the store. The model keeps what it learned from them."""

from __future__ import annotations

import numpy as np

from fedrank.data.live_features import FeatureSet
from fedrank.search.ingest import forgotten_name
from fedrank.search.readers import clean
from fedrank.search.results import ForgottenRows
from fedrank.search.store import Store, in_parts, marks

MAX_QUERY_LENGTH = 2_000  # characters


def forget_searches(store: Store, features: FeatureSet, query: str | None, since: int | None) -> ForgottenRows:
    """Delete the searches with this text, or all searches since a time, and their clicks."""
    if query is not None:
        text = " ".join(clean(query[:MAX_QUERY_LENGTH]).split())
        key = features.query(text).key
        ids = store.rows("SELECT id FROM impressions WHERE query = ? OR (terms = ? AND terms != x'')", text, key)
    else:
        ids = store.rows("SELECT id FROM impressions WHERE time >= ?", since)
    clicks = 0
    with store.writing():
        for some in in_parts([id for (id,) in ids]):
            clicks += store.db.execute(f"DELETE FROM clicks WHERE impression IN ({marks(some)})", some).rowcount
            store.db.execute(f"DELETE FROM impressions WHERE id IN ({marks(some)})", some)
        if since is not None:  # recent clicks in older impressions
            clicks += store.db.execute("DELETE FROM clicks WHERE time >= ?", (since,)).rowcount
    return ForgottenRows(0, len(ids), clicks)


def forget_everything(store: Store) -> ForgottenRows:
    """Delete all rows except the record of sent data; the change counter continues, since the index depends on it."""
    counts = [store.count(f"SELECT count(*) FROM {table}") for table in ("documents", "impressions", "clicks")]
    seq, journals = store.seq, store.setting("journals", "{}")
    with store.writing():
        store.empty({"sent", "sqlite_sequence"})
        store.set(seq=seq, indexed=seq, journals=journals)
    return ForgottenRows(*counts)


def forget_document(store: Store, document: int) -> ForgottenRows:
    """Delete a document and its clicks, and exclude it from later indexing."""
    file, root, key, part = store.one(
        "SELECT file, roots.path, key, part FROM documents JOIN files ON files.id = file JOIN roots ON "
        "roots.id = root WHERE documents.id = ?",
        document,
    )
    blob = int(document).to_bytes(8, "little")
    with store.writing():
        store.db.execute("INSERT OR IGNORE INTO left_out VALUES (?)", (forgotten_name(root, key, part),))
        store.remove([document])
        if not part:  # the document is the whole file, so its name is deleted, too
            store.db.execute("DELETE FROM files WHERE id = ?", (file,))
            store.db.execute("DELETE FROM skipped WHERE file = ?", (file,))
        clicks = store.db.execute("DELETE FROM clicks WHERE document = ?", (document,)).rowcount
        for id, candidates in store.rows("SELECT id, candidates FROM impressions WHERE instr(candidates, ?)", blob):
            ids = np.frombuffer(candidates, "<i8").copy()
            ids[ids == document] = 0
            store.db.execute("UPDATE impressions SET candidates = ? WHERE id = ?", (ids.tobytes(), id))
    return ForgottenRows(1, 0, clicks)

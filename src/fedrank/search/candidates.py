"""Candidates of a search: which of them are still in the store, and their features."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet, ForwardRows, QueryTerms, Usage
from fedrank.search.encoder import Encoder
from fedrank.search.forgetting import terms_key
from fedrank.search.index import Candidacy
from fedrank.search.store import Store, marks

DAY = 86_400.0


def still_there(store: Store, found: Candidacy) -> tuple[Candidacy, ForwardRows]:
    """The candidates that are still in the store, with their forward rows; the index may lag behind the store."""
    ids = found.documents.tolist()
    blobs = dict(store.rows(f"SELECT document, words FROM forward WHERE document IN ({marks(ids)})", *ids))
    there = np.array([id in blobs for id in ids], bool)
    rows = ForwardRows.of([zlib.decompress(blobs[id]) for id in ids if id in blobs])
    return Candidacy(found.documents[there], found.scores[there], found.found), rows


def raw_features(
    store: Store,
    features: FeatureSet,
    encoder: Encoder | None,
    terms: QueryTerms,
    query: str,
    found: Candidacy,
    rows: ForwardRows,
    now: float,
) -> NDArray[np.float16]:
    """Features of all candidates, in the precision in which they are recorded."""
    ids = found.documents.tolist()
    query_vector = vectors = None
    if encoder is not None and ids:
        stored = dict(
            store.rows(
                f"SELECT document, vector FROM vectors WHERE encoder = ? AND document IN ({marks(ids)})",
                encoder.digest,
                *ids,
            )
        )
        none = bytes(2 * encoder.dimensions)
        vectors = np.array([np.frombuffer(stored.get(id, none), "<f2") for id in ids], np.float32)
        query_vector = encoder([query])[0]
    past = _past(store, terms, ids, now)
    raw = features.raw(terms, rows, found.scores, store.statistics(), past, query_vector, vectors)
    return raw.astype(np.float16)


def _past(store: Store, terms: QueryTerms, ids: Sequence[int], now: float) -> list[Usage]:
    """Metadata and click history of the candidates."""
    for_query = dict(
        store.rows(
            "SELECT document, count(*) FROM clicks JOIN impressions ON id = impression WHERE terms = ? AND NOT "
            "bounced GROUP BY document",
            terms_key(terms),
        )
    )
    clicks = {
        id: (times, last)
        for id, times, last in store.rows(
            f"SELECT document, count(*), max(time) FROM clicks WHERE document IN ({marks(ids)}) AND NOT bounced "
            "GROUP BY document",
            *ids,
        )
    }
    facts = {
        id: (kind, date, depth, answered)
        for id, kind, date, depth, answered in store.rows(
            "SELECT id, kind, date, depth, sender != '' AND EXISTS (SELECT 1 FROM written_to WHERE address = "
            f"sender) FROM documents WHERE id IN ({marks(ids)})",
            *ids,
        )
    }
    past = []
    for id in ids:  # the first click for a query may be accidental and is not counted
        kind, date, depth, answered = facts[id]
        times, last = clicks.get(id, (0, None))
        past.append(
            Usage(
                max(for_query.get(id, 0) - 1, 0), times, None if last is None else (now - last) / DAY,
                (now - date) / DAY if date else None, "file" if kind == "note" else kind, depth, bool(answered),
            )
        )  # fmt: skip
    return past

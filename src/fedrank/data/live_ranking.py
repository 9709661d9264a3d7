"""Text collections as ranking data with the features `live-1`, or others, for one searcher or several with own parts.

Candidates of a query are the best 100 of BM25 over a searcher's own documents. Word statistics are counted over these
documents, too; no searcher knows the complete collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedrank.data.catalog import Fold
from fedrank.data.collection import Collection, load_collection
from fedrank.data.documents import Documents
from fedrank.data.feature_sets import (
    ENGINE_WORDS,
    Describer,
    default_normalisation,
    describer,
    fixed_ranges,
    forward_rows,
    live_describer,
)
from fedrank.data.lists import bm25, ranked
from fedrank.data.live_features import BUCKETS, ENGINE, NAMES, ForwardRows, WordStatistics
from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.kernels.elementary import log1p_each
from fedrank.seeds import rng_for
from fedrank.types import Features

CANDIDATES = 100
ROUNDS = 20  # iterations of k-means
CROWDED = 1.5  # maximum size of a topic relative to the mean
_FINE = 1 << 10  # resolution of word weights: integer sums are the same on every machine


class NothingToLearn(ValueError):
    """No query has a relevant document among its candidates."""


def live_ranking(
    collection: Collection,
    queries: Sequence[int] | NDArray[np.integer] | None = None,
    part: Sequence[int] | NDArray[np.integer] | None = None,
    describe: Callable[[Documents, NDArray[np.int64]], Describer] | None = None,
) -> RankingData:
    """Return queries with the best 100 of BM25 as candidates, in the engine's order.

    `part` are the searcher's documents (None: all). `describe` returns how to compute features, given these documents
    and their indices in the collection; None: scaled live-1. Queries without a relevant candidate are left out, since
    all orders of their candidates are equally good.
    """
    held = np.arange(len(collection.documents)) if part is None else np.sort(np.asarray(part, np.int64))
    own = _some(collection.documents, held)
    names, features = live_describer(forward_rows(own)) if describe is None else describe(own, held)
    score = bm25(own, ENGINE_WORDS)
    grades_of = np.zeros(len(collection.documents), np.int8)
    found: list[Features] = []
    grades: list[NDArray[np.int8]] = []
    asked: list[str] = []
    for query in range(len(collection.queries)) if queries is None else queries:
        judged, given = collection.judgements(int(query))
        grades_of[judged] = given
        scores = score(collection.queries[query])
        best = ranked(scores, CANDIDATES)
        if grades_of[held[best]].any():
            found.append(features(collection.queries[query], best, scores[best]))
            grades.append(grades_of[held[best]])
            asked.append(collection.query_ids[query])
        grades_of[judged] = 0
    if not asked:
        raise NothingToLearn(
            f"{collection.name}: no query has a relevant document among the best {CANDIDATES} of {len(held)} "
            "documents; use more documents or queries"
        )
    return RankingData(
        np.concatenate(found),
        np.concatenate(grades),
        np.cumsum([0, *map(len, grades)], dtype=np.int64),
        np.array(asked),
        name=collection.name,
        top_grade=collection.top_grade,
        feature_names=names,
        given=NAMES[ENGINE] if NAMES[ENGINE] in names else "file",  # candidates are in the engine's order
    )


def _some(documents: Documents, which: NDArray[np.int64]) -> Documents:
    of = documents.ids, documents.title, documents.text, documents.url
    ids, titles, texts, urls = ([column[d] for d in which] for column in of)
    changed, popularity = ([column[d] for d in which if column] for column in (documents.changed, documents.popularity))
    return Documents(ids, titles, texts, urls, changed=changed, popularity=popularity)


def topics(rows: ForwardRows, count: int, seed: int) -> NDArray[np.int64]:
    """[documents]: a topic for each, from 0; topics have similar documents and at most 1.5 times the mean size.

    Spherical k-means over integers, so every machine finds the same topics.
    """
    vectors = _vectors(rows)
    rng = rng_for(seed, "topics")
    if not 1 <= count <= vectors.shape[0]:
        raise ValueError(f"{count} topics need at least as many documents (got {vectors.shape[0]}); use fewer topics")
    centres = vectors[np.sort(rng.permutation(vectors.shape[0])[:count])].toarray().astype(np.int64)
    of_document = np.full(vectors.shape[0], -1)
    for _ in range(ROUNDS):
        likeness = _likeness(vectors, centres)
        moved = _within_bounds(likeness, int(np.ceil(CROWDED * len(rows) / count)))
        if np.array_equal(moved, of_document):
            break
        of_document = moved
        members = sparse.csr_array(
            (np.ones(len(moved), np.int64), (moved, np.arange(len(moved)))), shape=(count, len(moved))
        )
        centres = (members @ vectors).toarray()
    return of_document


def _vectors(rows: ForwardRows) -> sparse.csr_array:
    """Documents as integer vectors of ln(1 + tf) x idf, normalised; words of only one document are omitted."""
    statistics = WordStatistics.of(rows)
    document = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
    pairs, tf = np.unique(document * BUCKETS + (rows.words & np.int32(BUCKETS - 1)), return_counts=True)
    bucket, document = pairs % BUCKETS, pairs // BUCKETS
    having = statistics.frequencies[bucket].astype(np.float64)
    weight = log1p_each(tf) * log1p_each((len(rows) - having + 0.5) / (having + 0.5))
    weight[having < 2] = 0.0
    fine = np.rint(weight * 16).astype(np.int64)  # lengths become integer sums
    length = np.sqrt(np.maximum(np.bincount(document, fine * fine, len(rows)), 1.0))
    values = np.rint(_FINE * fine / length[document]).astype(np.int64)
    _, column = np.unique(bucket, return_inverse=True)
    return sparse.csr_array((values, (document, column.ravel())), shape=(len(rows), column.max(initial=0) + 1))


def _likeness(vectors: sparse.csr_array, centres: NDArray[np.int64]) -> NDArray[np.float64]:
    """[documents, topics]"""
    lengths = np.sqrt(np.maximum((centres.astype(np.float64) ** 2).sum(axis=1), 1.0))
    likeness: NDArray[np.float64] = np.asarray(vectors @ centres.T, np.float64) / lengths
    return likeness


def _within_bounds(likeness: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Assign each document its best topic with free capacity, clearest documents first."""
    order = np.sort(likeness, axis=1)
    margin = order[:, -1] - order[:, -2] if likeness.shape[1] > 1 else order[:, -1]
    room = np.full(likeness.shape[1], most)
    found = np.empty(len(likeness), np.int64)
    for document in np.argsort(-margin, kind="stable"):
        for topic in np.argsort(-likeness[document], kind="stable"):
            if room[topic]:
                room[topic] -= 1
                found[document] = topic
                break
    return found


def owners(collection: Collection, of_document: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """[queries]: the topic with the most relevant documents; -1 if there are none."""
    found = np.full(len(collection.queries), -1)
    for query in range(len(found)):
        judged, grades = collection.judgements(query)
        gain = np.bincount(of_document[judged], grades, count)
        if gain.any():
            found[query] = int(np.argmax(gain))
    return found


def collection_fold(name: str, parts: int, fold: int, features: str = "live-1", normalised: str | None = None) -> Fold:
    """Divide a collection among `parts` searchers with one topic each; half of each one's queries are for training.

    The other half is for testing. Another fold is another division into topics and halves. Queries record their
    searcher (`who`) and their order as time. A searcher with fewer than two usable queries gets none.
    """
    collection, rows = _with_rows(name)

    def describe(own: Documents, held: NDArray[np.int64]) -> Describer:
        return describer(features, own, lambda: rows.select(held))

    of_document = topics(rows, parts, fold) if parts > 1 else np.zeros(len(rows), np.int64)
    of_query = owners(collection, of_document, parts)
    halves: tuple[list[RankingData], list[RankingData]] = ([], [])
    for part in range(parts):
        asked = np.flatnonzero(of_query == part)
        if len(asked) < 2:
            continue
        try:
            data = live_ranking(collection, asked, np.flatnonzero(of_document == part), describe)
        except NothingToLearn:
            continue
        if data.queries < 2:
            continue
        how = normalised or default_normalisation(features)
        data = normalise(data, how, fixed_ranges(features) if how == "global" else None)
        dealt = rng_for(fold, "halves", part).permutation(data.queries)
        for half, some in zip(halves, (dealt[: len(dealt) // 2], dealt[len(dealt) // 2 :]), strict=True):
            own = data.select(np.sort(some))
            half.append(replace(own, who=np.full(own.queries, part, np.int32), when=np.arange(own.queries)))
    if not halves[0]:
        raise ValueError(f"{name} has too few usable queries for {parts} parts; use fewer parts")
    train, test = (_joined(half) for half in halves)
    sizes = np.bincount(of_document, minlength=parts)
    note = (
        f"{parts} searchers have {sizes.min():,} to {sizes.max():,} documents each; {train.queries:,} training and "
        f"{test.queries:,} test queries; candidates are the best {CANDIDATES} of BM25, and queries without a relevant "
        "candidate are left out"
    )
    return Fold(train, None, test, collection.name, fold, (note,))


def _joined(parts: list[RankingData]) -> RankingData:
    """Concatenate searchers and restore `who`, which `join` drops because parts may be from different logs."""
    whole = RankingData.join(parts)
    return replace(whole, who=np.concatenate([part.who for part in parts]), when=np.arange(whole.queries))


@lru_cache(maxsize=2)
def _with_rows(name: str) -> tuple[Collection, ForwardRows]:
    collection = load_collection(name)
    return collection, forward_rows(collection.documents)

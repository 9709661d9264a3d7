"""Text collections as ranking data with the features `live-1`, or others, for one searcher or several with own parts.

Candidates of a query are the best 100 of BM25 over a searcher's own documents. Word statistics are counted over these
documents, too; no searcher knows the complete collection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedrank.data.catalog import Fold
from fedrank.data.collection import Collection, load_collection
from fedrank.data.documents import Documents
from fedrank.data.engine_features import NAMES as ENGINE_NAMES
from fedrank.data.engine_features import EngineFeatures, EngineIndex, is_engine_set
from fedrank.data.feature_sets import default_normalisation, fixed_ranges, known_features
from fedrank.data.lists import bm25, ranked
from fedrank.data.live_features import (
    BUCKETS,
    ENGINE,
    LIVE_1,
    LOG_103,
    NAMES,
    FeatureSet,
    ForwardRows,
    WordStatistics,
)
from fedrank.data.log_features import FEATURE_NAMES, Statistics, features_of
from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.kernels.elementary import log1p_each
from fedrank.seeds import rng_for
from fedrank.types import Features, Scores

ENGINE_WORDS = Tokeniser("english")  # candidates do not depend on the features
CANDIDATES = 100
ROUNDS = 20  # iterations of k-means
CROWDED = 1.5  # maximum size of a topic relative to the mean
_FINE = 1 << 10  # resolution of word weights: integer sums are the same on every machine


class NothingToLearn(ValueError):
    """No query has a relevant document among its candidates."""


class Described(Protocol):
    """A function that computes features of candidates from a searcher's own documents."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        """Return [candidates, features]; candidates index the searcher's documents, best score first."""


@dataclass(frozen=True, eq=False)
class LiveDescribed:
    """The features live-1."""

    rows: ForwardRows
    features: FeatureSet = LIVE_1
    scaled: bool = True

    names: ClassVar[tuple[str, ...]] = NAMES

    @cached_property
    def statistics(self) -> WordStatistics:
        return WordStatistics.of(self.rows)

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        raw = self.features.raw(self.features.query(query), self.rows.select(candidates), scores, self.statistics)
        return self.features.scaled(raw) if self.scaled else raw


@dataclass(frozen=True, eq=False)
class LogDescribed:
    """The 103 features of AOL4FOLTRand the engine's score, as a comparison to live-1."""

    documents: Documents

    names: ClassVar[tuple[str, ...]] = (*FEATURE_NAMES, NAMES[ENGINE])

    @cached_property
    def statistics(self) -> Statistics:
        return Statistics.of(self.documents)

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        return np.column_stack([features_of(query, candidates, self.statistics), scores])


@dataclass(frozen=True, eq=False)
class EngineDescribed:
    """The features engine-1, unscaled; recency is 0, since judged queries have no time."""

    index: EngineIndex

    names: ClassVar[tuple[str, ...]] = ENGINE_NAMES

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        return self.index.describe(query, candidates)


def forward_rows(documents: Documents, features: FeatureSet = LIVE_1) -> ForwardRows:
    """Return a collection's documents in the form that features are computed from."""
    return ForwardRows.join([features.row(*one) for one in zip(documents.title, documents.text, strict=True)])


def live_ranking(
    collection: Collection,
    queries: Sequence[int] | NDArray[np.integer] | None = None,
    part: Sequence[int] | NDArray[np.integer] | None = None,
    describe: Callable[[Documents, NDArray[np.int64]], Described] | None = None,
) -> RankingData:
    """Return queries with the best 100 of BM25 as candidates, in the engine's order.

    `part` are the searcher's documents (None: all). `describe` returns a function for features, given these documents
    and their indices in the collection; None: scaled live-1. Queries without a relevant candidate are left out, since
    all orders of their candidates are equally good.
    """
    held = np.arange(len(collection.documents)) if part is None else np.sort(np.asarray(part, np.int64))
    own = _some(collection.documents, held)
    described = LiveDescribed(forward_rows(own)) if describe is None else describe(own, held)
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
            found.append(described(collection.queries[query], best, scores[best]))
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
        feature_names=described.names,
        given=NAMES[ENGINE] if NAMES[ENGINE] in described.names else "file",  # candidates are in the engine's order
    )


def _some(documents: Documents, which: NDArray[np.int64]) -> Documents:
    of = documents.ids, documents.title, documents.text, documents.url
    ids, titles, texts, urls = ([column[d] for d in which] for column in of)
    changed, popularity = ([column[d] for d in which if column] for column in (documents.changed, documents.popularity))
    return Documents(ids, titles, texts, urls, changed=changed, popularity=popularity)


def pair_features(
    documents: Documents, depth: int
) -> Callable[[Sequence[str], NDArray[np.int64], NDArray[np.int64]], Features]:
    """Return a function from queries and pairs of query and document to scaled live-1, for search logs.

    A pair is described as one candidate among the best `depth` of BM25, independently of other pairs.
    """
    described, score = LiveDescribed(forward_rows(documents)), bm25(documents, ENGINE_WORDS)

    def features(queries: Sequence[str], query: NDArray[np.int64], rows: NDArray[np.int64]) -> Features:
        out = np.empty((len(rows), len(NAMES)), np.float32)
        for one in np.unique(query):
            here = np.flatnonzero(query == one)
            scores = score(queries[one])
            best = ranked(scores, depth)
            of_best = described(queries[one], best, scores[best])
            place = {int(document): where for where, document in enumerate(best)}
            for pair in here:
                document = int(rows[pair])
                if document in place:
                    out[pair] = of_best[place[document]]
                else:  # a clicked document outside the best is appended, one at a time
                    last = np.append(best, document)
                    out[pair] = described(queries[one], last, scores[last])[-1]
        return out

    return features


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
    of_document = topics(rows, parts, fold) if parts > 1 else np.zeros(len(rows), np.int64)
    of_query = owners(collection, of_document, parts)
    halves: tuple[list[RankingData], list[RankingData]] = ([], [])
    for part in range(parts):
        asked = np.flatnonzero(of_query == part)
        if len(asked) < 2:
            continue
        try:
            data = live_ranking(collection, asked, np.flatnonzero(of_document == part), _describing(features, rows))
        except NothingToLearn:
            continue
        if data.queries < 2:
            continue
        how = normalised or default_normalisation(features)
        data = normalise(data, how, fixed_ranges(features) if how == "global" else None)
        dealt = rng_for(fold, "halves", part).permutation(data.queries)
        for half, some in zip(halves, (dealt[: len(dealt) // 2], dealt[len(dealt) // 2 :]), strict=True):
            half.append(_of_searcher(data.select(np.sort(some)), part))
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


def _describing(features: str, rows: ForwardRows) -> Callable[[Documents, NDArray[np.int64]], Described]:
    """Return `describe` for a feature set; `rows` are the whole collection with the default stemmer, to save time."""
    if known_features(features) == LOG_103:
        return lambda own, held: LogDescribed(own)
    if is_engine_set(features):
        of_engine = EngineFeatures.named(features)
        return lambda own, held: EngineDescribed(of_engine.index(own))
    if features == LIVE_1.version:
        return lambda own, held: LiveDescribed(rows.select(held))
    other = FeatureSet.named(features)
    return lambda own, held: LiveDescribed(forward_rows(own, other), other)


def _of_searcher(data: RankingData, part: int) -> RankingData:
    return replace(data, who=np.full(data.queries, part, np.int32), when=np.arange(data.queries))


def _joined(parts: list[RankingData]) -> RankingData:
    """Concatenate searchers and restore `who`, which `join` drops because parts may be from different logs."""
    whole = RankingData.join(parts)
    return replace(whole, who=np.concatenate([part.who for part in parts]), when=np.arange(whole.queries))


@lru_cache(maxsize=2)
def _with_rows(name: str) -> tuple[Collection, ForwardRows]:
    collection = load_collection(name)
    return collection, forward_rows(collection.documents)

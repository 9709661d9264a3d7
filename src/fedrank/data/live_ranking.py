"""Text collections as ranking data with the features `live-1`, or others, as one searcher or as several with own parts.

Candidates of a query are the best 100 of BM25 over a searcher's own documents, and all that features know of words is
counted over these documents, too: nobody knows the whole collection.
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

ENGINE_WORDS = Tokeniser("english")  # candidates are the same whatever the features
CANDIDATES = 100
ROUNDS = 20  # of moving documents between topics
CROWDED = 1.5  # times the mean size that a topic may have
_FINE = 1 << 10  # steps of a word's weight: sums of whole numbers are the same on every machine


class NothingToLearn(ValueError):
    """No query has a relevant document among its candidates."""


class Described(Protocol):
    """What tells candidates of a query apart, from a searcher's own documents."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        """[candidates, features]; candidates are rows of the searcher's documents, the best score first."""


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
    """The 103 features of AOL4FOLTR, and the engine's score: what live-1 is compared with."""

    documents: Documents

    names: ClassVar[tuple[str, ...]] = (*FEATURE_NAMES, NAMES[ENGINE])

    @cached_property
    def statistics(self) -> Statistics:
        return Statistics.of(self.documents)

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        return np.column_stack([features_of(query, candidates, self.statistics), scores])


@dataclass(frozen=True, eq=False)
class EngineDescribed:
    """The features engine-1, unscaled; nothing is recent, since judged queries have no time."""

    index: EngineIndex

    names: ClassVar[tuple[str, ...]] = ENGINE_NAMES

    def __call__(self, query: str, candidates: NDArray[np.int64], scores: Scores) -> Features:
        return self.index.describe(query, candidates)


def forward_rows(documents: Documents, features: FeatureSet = LIVE_1) -> ForwardRows:
    """A collection's documents as features need them."""
    return ForwardRows.join([features.row(*one) for one in zip(documents.title, documents.text, strict=True)])


def live_ranking(
    collection: Collection,
    queries: Sequence[int] | NDArray[np.integer] | None = None,
    part: Sequence[int] | NDArray[np.integer] | None = None,
    describe: Callable[[Documents, NDArray[np.int64]], Described] | None = None,
) -> RankingData:
    """Queries with the best 100 of BM25 as candidates, in the engine's order.

    `part` are the documents that the searcher has (None: all of them). `describe` makes features from these and from
    where they stand in the collection; None: scaled live-1. A query without a relevant document among its candidates is
    left out: no order of them is better than another.
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
            "documents, so there is nothing to learn; give more documents or queries"
        )
    return RankingData(
        np.concatenate(found),
        np.concatenate(grades),
        np.cumsum([0, *map(len, grades)], dtype=np.int64),
        np.array(asked),
        name=collection.name,
        top_grade=collection.top_grade,
        feature_names=described.names,
        given=NAMES[ENGINE] if NAMES[ENGINE] in described.names else "file",  # candidates stand in the engine's order
    )


def _some(documents: Documents, which: NDArray[np.int64]) -> Documents:
    of = documents.ids, documents.title, documents.text, documents.url
    ids, titles, texts, urls = ([column[d] for d in which] for column in of)
    changed, popularity = ([column[d] for d in which if column] for column in (documents.changed, documents.popularity))
    return Documents(ids, titles, texts, urls, changed=changed, popularity=popularity)


def pair_features(
    documents: Documents, depth: int
) -> Callable[[Sequence[str], NDArray[np.int64], NDArray[np.int64]], Features]:
    """A function from queries and pairs of a query and a document to scaled live-1, as search logs need it.

    A pair is described as one candidate among the best `depth` of BM25, whichever other pairs are asked for.
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
                else:  # what was clicked may be none of the best: it stands behind them, each by itself
                    last = np.append(best, document)
                    out[pair] = described(queries[one], last, scores[last])[-1]
        return out

    return features


def topics(rows: ForwardRows, count: int, seed: int) -> NDArray[np.int64]:
    """[documents]: a topic for each, from 0; topics hold similar documents, and none more than 1.5 times its share.

    Spherical k-means over whole numbers, so that every machine finds the same topics.
    """
    vectors = _vectors(rows)
    rng = rng_for(seed, "topics")
    if not 1 <= count <= vectors.shape[0]:
        raise ValueError(f"{count} topics of {vectors.shape[0]} documents: some would be empty; use fewer")
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
    """Documents as whole numbers of ln(1 + tf) x idf, of about the same length; words in one document only are left."""
    statistics = WordStatistics.of(rows)
    document = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
    pairs, tf = np.unique(document * BUCKETS + (rows.words & np.int32(BUCKETS - 1)), return_counts=True)
    bucket, document = pairs % BUCKETS, pairs // BUCKETS
    having = statistics.frequencies[bucket].astype(np.float64)
    weight = log1p_each(tf) * log1p_each((len(rows) - having + 0.5) / (having + 0.5))
    weight[having < 2] = 0.0
    fine = np.rint(weight * 16).astype(np.int64)  # so that lengths are sums of whole numbers
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
    """The best topic that has room, for the most decided documents first."""
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
    """[queries]: the topic whose documents answer it best; -1 where nothing does."""
    found = np.full(len(collection.queries), -1)
    for query in range(len(found)):
        judged, grades = collection.judgements(query)
        gain = np.bincount(of_document[judged], grades, count)
        if gain.any():
            found[query] = int(np.argmax(gain))
    return found


def collection_fold(name: str, parts: int, fold: int, features: str = "live-1", normalised: str | None = None) -> Fold:
    """A collection among `parts` searchers, each with its own topic: half of each one's queries to learn, half to test.

    Another fold is another division into topics and halves. Queries know whose they are (`who`), and count the order in
    which they are dealt as time. A searcher with fewer than two usable queries has none.
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
        raise ValueError(f"{name} has too few queries for {parts} parts; use fewer parts")
    train, test = (_joined(half) for half in halves)
    sizes = np.bincount(of_document, minlength=parts)
    note = (
        f"{parts} searchers with {sizes.min():,} to {sizes.max():,} documents of their own; {train.queries:,} queries "
        f"to learn from and {test.queries:,} to test on; candidates are the best {CANDIDATES} of BM25, and queries "
        "without a relevant one among them are left out"
    )
    return Fold(train, None, test, collection.name, fold, (note,))


def _describing(features: str, rows: ForwardRows) -> Callable[[Documents, NDArray[np.int64]], Described]:
    """`rows` are those of the whole collection with the usual stemmer, which save time."""
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
    """Searchers one after the other; `join` forgets who they are, since parts might be of different logs."""
    whole = RankingData.join(parts)
    return replace(whole, who=np.concatenate([part.who for part in parts]), when=np.arange(whole.queries))


@lru_cache(maxsize=2)
def _with_rows(name: str) -> tuple[Collection, ForwardRows]:
    collection = load_collection(name)
    return collection, forward_rows(collection.documents)

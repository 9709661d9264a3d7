"""Feature sets for texts: their names, their normalisation, and how they are computed for collections and logs.

A set is `aol-103`, the features of AOL4FOLTR; `live-1`, for a client that searches its own documents; or `engine-1`,
which search engines can compute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, EngineFeatures, is_engine_set
from fedrank.data.lists import bm25, ranked
from fedrank.data.live_features import ENGINE, LIVE_1, LOG_103, NAMES, FeatureSet, ForwardRows, WordStatistics
from fedrank.data.log_features import FEATURE_NAMES, Statistics, features_for, features_of
from fedrank.data.logs import SearchLog
from fedrank.data.normalise import Ranges
from fedrank.data.text import Tokeniser
from fedrank.types import Features, Scores

ENGINE_WORDS = Tokeniser("english")  # candidates do not depend on the features
Rows = NDArray[np.int64]
# Features of a reranker (`search/rerank`), and the signals of its callers: "rerank-1:date,vector".
_RERANK = re.compile(r"rerank-1(?::([a-z0-9_.-]+(?:,[a-z0-9_.-]+)*))?")


def known_features(name: str) -> str:
    """Validate the name of a feature set for texts."""
    if _RERANK.fullmatch(name):
        return name
    if is_engine_set(name):
        EngineFeatures.named(name)
    elif name != LOG_103:
        try:
            FeatureSet.named(name)
        except ValueError as problem:
            raise ValueError(f'{problem}, or "{ENGINE_1.version}" or "{LOG_103}"') from None
    return name


def log_features(log: SearchLog) -> str:
    """Return the feature set that a search log was built with."""
    return str(log.facts.get("settings", {}).get("features", LOG_103))


def default_normalisation(features: str) -> str:
    """live-1 is scaled by its constants and engine-1 by fixed ranges; the 103 log features are normalised per query."""
    if is_engine_set(features):
        return "global"
    return "query" if features == LOG_103 else "none"  # those of a reranker are standardised within their list


class FeatureFacts(NamedTuple):
    """What is known about a feature set without data."""

    names: tuple[str, ...]
    normalised: str  # by default, in data sets of search logs
    ranges: Ranges | None


def feature_facts(features: str) -> FeatureFacts:
    """The names and the default normalisation of a feature set, as a site has them that built a log with it."""
    known_features(features)
    if is_engine_set(features):
        return FeatureFacts(ENGINE_1.names, "global", ENGINE_1.ranges)
    if (rerank := _RERANK.fullmatch(features)) is not None:
        signals = rerank[1].split(",") if rerank[1] else ()
        return FeatureFacts(("rank", "bm25", "centroid", *signals), "none", None)
    return FeatureFacts(FEATURE_NAMES if features == LOG_103 else NAMES, "query", None)


def fixed_ranges(features: str) -> Ranges | None:
    """Return the values that are scaled to 0 and 1 if they are fixed by the feature set; None: use those of the data.

    Clients need not exchange fixed ranges. A model records them, and an engine applies them to its values.
    """
    return ENGINE_1.ranges if is_engine_set(features) else None


# Collections: candidates of a query


class Describer(NamedTuple):
    """Computes features of candidates from a searcher's own documents."""

    names: tuple[str, ...]
    features: Callable[[str, Rows, Scores], Features]  # query; documents, best score first; their scores


def forward_rows(documents: Documents, features: FeatureSet = LIVE_1) -> ForwardRows:
    """Return a collection's documents in the form that features are computed from."""
    return ForwardRows.join([features.row(*one) for one in zip(documents.title, documents.text, strict=True)])


def live_describer(rows: ForwardRows, features: FeatureSet = LIVE_1, scaled: bool = True) -> Describer:
    """Return a describer with the features live-1."""
    statistics = WordStatistics.of(rows)

    def describe(query: str, candidates: Rows, scores: Scores) -> Features:
        raw = features.raw(features.query(query), rows.select(candidates), scores, statistics)
        return features.scaled(raw) if scaled else raw

    return Describer(NAMES, describe)


def describer(features: str, own: Documents, rows: Callable[[], ForwardRows]) -> Describer:
    """Return a describer of any feature set for a searcher's documents; `rows` returns their rows of live-1.

    aol-103 is a comparison to live-1, so the engine's score is added. Recency in engine-1 is 0, since judged queries
    have no time.
    """
    if known_features(features) == LOG_103:
        counted = Statistics.of(own)
        names = (*FEATURE_NAMES, NAMES[ENGINE])
        return Describer(
            names, lambda query, some, scores: np.column_stack([features_of(query, some, counted), scores])
        )
    if is_engine_set(features):
        index = EngineFeatures.named(features).index(own)
        return Describer(ENGINE_1.names, lambda query, some, scores: index.describe(query, some))
    version = FeatureSet.named(features)
    return live_describer(rows() if version is LIVE_1 else forward_rows(own, version), version)


# Logs: pairs of query and document


class Extractor(NamedTuple):
    """Computes features of pairs of query and document."""

    names: tuple[str, ...]
    features: Callable[[Sequence[str], Rows, Rows], Features]  # queries, query, document
    tokens: Callable[[str], list[str]]  # tokenizer, also for BM25
    # The same with [pairs] seconds since 1970, for features that depend on the time of the search.
    timed: Callable[[Sequence[str], Rows, Rows, Rows], Features] | None = None


MakeExtractor = Callable[[Documents], Extractor]


def built_in_features(features: str, stem: str, published: bool, depth: int, threads: int) -> MakeExtractor:
    """Return an extractor of the chosen features; indexes are built on first use.

    `depth` is the number of candidates per query, for features that compare candidates.
    """
    if features == LIVE_1.version:
        return lambda documents: _live_features(documents, depth)
    if is_engine_set(features):
        return lambda documents: _engine_features(documents, EngineFeatures.named(features))
    return lambda documents: _log_features(documents, stem, published, threads)


def _live_features(documents: Documents, depth: int) -> Extractor:
    describe = cache(lambda: pair_features(documents, depth))
    return Extractor(NAMES, lambda queries, query, rows: describe()(queries, query, rows), ENGINE_WORDS)


def pair_features(documents: Documents, depth: int) -> Callable[[Sequence[str], Rows, Rows], Features]:
    """Return a function from queries and pairs of query and document to scaled live-1, for search logs.

    A pair is described as one candidate among the best `depth` of BM25, independently of other pairs.
    """
    describe, score = live_describer(forward_rows(documents)).features, bm25(documents, ENGINE_WORDS)

    def features(queries: Sequence[str], query: Rows, rows: Rows) -> Features:
        out = np.empty((len(rows), len(NAMES)), np.float32)
        for one in np.unique(query):
            here = np.flatnonzero(query == one)
            scores = score(queries[one])
            best = ranked(scores, depth)
            of_best = describe(queries[one], best, scores[best])
            place = {int(document): where for where, document in enumerate(best)}
            for pair in here:
                document = int(rows[pair])
                if document in place:
                    out[pair] = of_best[place[document]]
                else:  # a clicked document outside the best is appended, one at a time
                    last = np.append(best, document)
                    out[pair] = describe(queries[one], last, scores[last])[-1]
        return out

    return features


def _engine_features(documents: Documents, version: EngineFeatures) -> Extractor:
    index = cache(lambda: version.index(documents))

    def timed(queries: Sequence[str], query: Rows, rows: Rows, time: Rows | None) -> Features:
        found = np.empty((len(rows), len(version.names)), np.float32)
        ends = np.searchsorted(query, np.arange(len(queries) + 1))  # pairs are sorted by query
        for one, text in enumerate(queries):
            own = np.arange(ends[one], ends[one + 1])
            moments = np.zeros(len(own), np.int64) if time is None else time[own]
            for moment in np.unique(moments):
                some = own[moments == moment]
                found[some] = index().describe(text, rows[some], None if time is None else float(moment))
        return found

    return Extractor(version.names, partial(timed, time=None), version.words, timed)


def _log_features(documents: Documents, stem: str, published: bool, threads: int) -> Extractor:
    cut = Tokeniser("english" if stem == "english" else "none")

    def stemmed(text: str) -> str:
        """Replace every word by its stem in place, so the slashes of a url remain."""
        return text if cut.stem == "none" else re.sub(r"\w+", lambda word: " ".join(cut(word[0])), text)

    @cache
    def statistics() -> Statistics:
        if cut.stem == "none":
            return Statistics.of(documents)
        # Features count stems; lengths in characters are then those of stems.
        streams = (documents.title, documents.text, documents.url)
        title, text, url = ([stemmed(one) for one in stream] for stream in streams)
        return Statistics.of(replace(documents, title=title, text=text, url=url))

    def features(queries: Sequence[str], query: Rows, rows: Rows) -> Features:
        stems = [stemmed(text) for text in queries]
        return features_for(stems, query, rows, statistics(), threads=threads, published=published)

    return Extractor(FEATURE_NAMES, features, cut)

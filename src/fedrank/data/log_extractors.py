"""Compute features of pairs of query and document for a data set, block by block."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1, EngineFeatures, is_engine_set
from fedrank.data.live_features import LIVE_1, LOG_103, NAMES
from fedrank.data.live_ranking import ENGINE_WORDS, pair_features
from fedrank.data.log_folder import Marks, table
from fedrank.data.logs import ARRAYS
from fedrank.progress import Progress
from fedrank.types import Features

if TYPE_CHECKING:
    from fedrank.data.text import Tokeniser

STEMS = ("none", "english")
PAIR_QUERY = "askers.unfinished.npy"  # [pairs]: a query, or an entry for published features
Rows = NDArray[np.int64]


class Extractor(NamedTuple):
    """Computes features of pairs of query and document."""

    names: tuple[str, ...]
    features: Callable[[Sequence[str], Rows, Rows], Features]  # queries, query, document
    tokens: Callable[[str], list[str]]  # tokenizer, also for BM25
    # The same with [pairs] seconds since 1970, for features that depend on the time of the search.
    timed: Callable[[Sequence[str], Rows, Rows, Rows], Features] | None = None


MakeExtractor = Callable[[Documents], Extractor]


@dataclass(frozen=True)
class FeatureChoice:
    """The choice of features and its settings."""

    features: str = LOG_103  # or "live-1", "engine-1"
    stem: str = "none"  # "english": use stems instead of words
    published: bool = False  # compute features as the published code did
    depth: int = 0  # candidates per query, for features that compare candidates

    def __post_init__(self) -> None:
        if self.stem not in STEMS:
            raise ValueError(f"stem must be {' or '.join(map(repr, STEMS))} (got {self.stem!r})")
        if self.features not in (LOG_103, LIVE_1.version) and not is_engine_set(self.features):
            known = ", ".join(map(repr, (LOG_103, LIVE_1.version, ENGINE_1.version)))
            raise ValueError(f"features must be one of {known} (got {self.features!r})")
        if self.published and self.features != LOG_103:
            raise ValueError(f"published = True is not available for {self.features}; remove one of the two settings")


def built_in_features(how: FeatureChoice, threads: int) -> MakeExtractor:
    """Return an extractor of the chosen features; indexes are built on first use."""
    if how.features == LIVE_1.version:
        return lambda documents: _live_features(documents, how.depth)
    if is_engine_set(how.features):
        return lambda documents: _engine_features(documents, EngineFeatures.named(how.features))
    return lambda documents: _log_features(documents, how, threads)


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


def _log_features(documents: Documents, how: FeatureChoice, threads: int) -> Extractor:
    from fedrank.data.log_features import FEATURE_NAMES, Statistics, features_for
    from fedrank.data.text import Tokeniser

    cut = Tokeniser("english" if how.stem == "english" else "none")
    statistics = cache(lambda: Statistics.of(_stemmed(documents, cut)))

    def features(queries: Sequence[str], query: Rows, rows: Rows) -> Features:
        stems = [_as_stems(text, cut) for text in queries]
        return features_for(stems, query, rows, statistics(), threads=threads, published=how.published)

    return Extractor(tuple(FEATURE_NAMES), features, cut)


def _live_features(documents: Documents, depth: int) -> Extractor:
    describe = cache(lambda: pair_features(documents, depth))
    return Extractor(NAMES, lambda queries, query, rows: describe()(queries, query, rows), ENGINE_WORDS)


def _stemmed(documents: Documents, cut: Tokeniser) -> Documents:
    """Replace words by stems, so features count stems; lengths in characters are then those of stems."""
    if cut.stem == "none":
        return documents
    title, text, url = (
        [_as_stems(one, cut) for one in stream] for stream in (documents.title, documents.text, documents.url)
    )
    return replace(documents, title=title, text=text, url=url)


def _as_stems(text: str, cut: Tokeniser) -> str:
    """Replace every word in place, so the slashes of a url remain."""
    return text if cut.stem == "none" else re.sub(r"\w+", lambda word: " ".join(cut(word[0])), text)


def compute_features(
    out: Path,
    marks: Marks,
    extractor: Extractor,
    queries: Sequence[str],
    size: int,
    report: Progress,
    time: NDArray[np.int64] | None = None,
) -> None:
    """Write the features of all pairs with a mark every `size` pairs; `time` [pairs] is the time of the search."""
    width = len(extractor.names)
    pair_query: NDArray[np.int32] = np.load(out / PAIR_QUERY, mmap_mode="r")
    document: NDArray[np.int32] = np.load(out / "document.npy", mmap_mode="r")
    done = marks.done.get("features", 0)
    rows_on_disk = table(out / "features.npy", (len(pair_query), width), ARRAYS["features"], new=not done)
    for start in range(done, len(pair_query), size):
        report("features", start, len(pair_query))
        rows = slice(start, min(start + size, len(pair_query)))
        query = np.asarray(pair_query[rows], dtype=np.int64)
        first, last = int(query[0]), int(query[-1]) + 1  # pairs are sorted by query
        pairs = queries[first:last], query - first, np.asarray(document[rows], dtype=np.int64)
        timed = None if time is None else extractor.timed
        values = extractor.features(*pairs) if timed is None or time is None else timed(*pairs, time[rows])
        if values.shape != (rows.stop - rows.start, width) or not np.isfinite(values).all():
            raise ValueError(
                f"features {values.shape} of pairs {rows.start:,} .. {rows.stop - 1:,} have the wrong shape or are not "
                "finite; check the extractor"
            )
        rows_on_disk[rows] = values
        rows_on_disk.flush()
        marks.set("features", rows.stop)
    report("features", len(pair_query), len(pair_query))

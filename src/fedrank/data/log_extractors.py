"""Features of pairs of a query and a document, computed for a data set block by block."""

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
PAIR_ASKER = "askers.unfinished.npy"  # [pairs]: a query; or an entry, where features are the published ones
Rows = NDArray[np.int64]


class Extractor(NamedTuple):
    """What turns pairs of a query and a document into features."""

    names: tuple[str, ...]
    features: Callable[[Sequence[str], Rows, Rows], Features]  # queries, query, document
    tokens: Callable[[str], list[str]]  # how texts are cut into words, for BM25 as well
    # The same with [pairs] seconds since 1970, where features depend on the time of the search.
    timed: Callable[[Sequence[str], Rows, Rows, Rows], Features] | None = None


MakeExtractor = Callable[[Documents], Extractor]


@dataclass(frozen=True)
class FeatureChoice:
    """Which features are computed, and from what."""

    features: str = LOG_103  # or "live-1", "engine-1"
    stem: str = "none"  # "english": stems instead of words
    published: bool = False  # the features as the published code computed them
    depth: int = 0  # candidates of a query, for features that compare them

    def __post_init__(self) -> None:
        if self.stem not in STEMS:
            raise ValueError(f"stem = {self.stem!r}; choose {' or '.join(map(repr, STEMS))}")
        if self.features not in (LOG_103, LIVE_1.version) and not is_engine_set(self.features):
            known = ", ".join(map(repr, (LOG_103, LIVE_1.version, ENGINE_1.version)))
            raise ValueError(f"features = {self.features!r}; choose one of {known}")
        if self.published and self.features != LOG_103:
            raise ValueError(f"published = True: {self.features} were never published so; leave one of them out")


def built_in_features(how: FeatureChoice, threads: int) -> MakeExtractor:
    """What computes the chosen features; indexes are made when they are first used."""
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
    """With stems in place of words, so features count them; lengths in characters are then those of stems."""
    if cut.stem == "none":
        return documents
    title, text, url = (
        [_as_stems(one, cut) for one in stream] for stream in (documents.title, documents.text, documents.url)
    )
    return replace(documents, title=title, text=text, url=url)


def _as_stems(text: str, cut: Tokeniser) -> str:
    """Every word replaced in its place, so the slashes of a url stay."""
    return text if cut.stem == "none" else re.sub(r"\w+", lambda word: " ".join(cut(word[0])), text)


def compute_features(
    out: Path,
    marks: Marks,
    tools: Extractor,
    queries: Sequence[str],
    size: int,
    report: Progress,
    time: NDArray[np.int64] | None = None,
) -> None:
    """Write the features of all pairs, `size` between two marks; `time` [pairs] is when each was searched for."""
    width = len(tools.names)
    asker: NDArray[np.int32] = np.load(out / PAIR_ASKER, mmap_mode="r")
    document: NDArray[np.int32] = np.load(out / "document.npy", mmap_mode="r")
    done = marks.done.get("features", 0)
    rows_on_disk = table(out / "features.npy", (len(asker), width), ARRAYS["features"], new=not done)
    for start in range(done, len(asker), size):
        report("features", start, len(asker))
        rows = slice(start, min(start + size, len(asker)))
        query = np.asarray(asker[rows], dtype=np.int64)
        first, last = int(query[0]), int(query[-1]) + 1  # pairs are sorted by asker
        pairs = queries[first:last], query - first, np.asarray(document[rows], dtype=np.int64)
        timed = None if time is None else tools.timed
        values = tools.features(*pairs) if timed is None or time is None else timed(*pairs, time[rows])
        if values.shape != (rows.stop - rows.start, width) or not np.isfinite(values).all():
            raise ValueError(f"features {values.shape} of pairs {rows.start:,} .. {rows.stop - 1:,} are not sound")
        rows_on_disk[rows] = values
        rows_on_disk.flush()
        marks.set("features", rows.stop)
    report("features", len(asker), len(asker))

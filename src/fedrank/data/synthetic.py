"""Synthetic ranking data that can be learned from, in the shape of three well-known sets.

A document has hidden traits: how well its body, anchor texts, title and URL match the query, its length, its authority,
and its depth in the site. Features are noisy observations of the traits, as term and link counts are; relevance labels
depend on the traits in a non-linear way. A linear ranker learns something, a neural one more, a forest the most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.feature_names import LETOR_4, MSLR, STREAMS
from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for

_Real = NDArray[np.float32]


class _Sight(NamedTuple):
    """A feature of a document: a weighted sum of its traits with noise, in one of several forms."""

    form: (
        str  # score, share (0 .. 1), count (heavy tail, 0 in an empty stream), query (one value per query), rare, empty
    )
    match: float = 0.0
    length: float = 0.0
    authority: float = 0.0
    depth: float = 0.0
    noise: float = 1.0  # standard deviation
    middle: float = 0.0  # mean of a score, or logarithm of the median of a count
    spread: float = 1.0  # of a score, or of the logarithm of a count


@dataclass(frozen=True)
class _Shape:
    """Parameters of a synthetic set."""

    queries: int
    shares: tuple[float, ...]  # of relevance labels 0, 1, ...
    length: tuple[float, float, int, int]  # documents per query: median, spread of the logarithm, minimum, maximum
    barren: float  # share of queries that are forced to have no relevant document
    noise: float  # of labels, standard deviation in a query of mean difficulty
    blocks: tuple[_Sight, ...]  # each gives five features, one per stream
    singles: tuple[_Sight, ...]  # features of the whole document or of its site
    scaled: bool  # features are scaled to 0 .. 1 within each query, as published
    names: tuple[str, ...]
    relevant: float = 0.0  # mean number of relevant documents per query of any length; 0: not controlled
    lookalikes: float = 0.0  # share of hard negatives: they match the query but have another flaw
    ordered: int | None = None  # feature by which the first stage ordered documents; None: random order


class _Traits(NamedTuple):
    """Hidden traits of documents, with mean 0 and standard deviation about 1."""

    full: NDArray[np.bool_]  # [streams, documents]: whether the stream is not empty
    match: _Real  # [streams, documents]
    length: _Real  # [documents]
    authority: _Real  # [documents]
    depth: _Real  # [documents]


_TF = _Sight("count", match=0.7, length=0.5, noise=0.8, middle=1.5, spread=0.9)
_IDF = _Sight("query", middle=12.0, spread=4.0)
_LENGTH = _Sight("count", length=1.0, noise=0.2, middle=5.0, spread=0.7)
_BM25 = _Sight("score", match=0.8, noise=0.8, middle=12.0, spread=6.0)
_LMIR = (
    _Sight("score", match=0.6, length=0.5, noise=0.9, middle=-12.0, spread=5.0),
    _Sight("score", match=0.7, length=-0.4, noise=0.9, middle=-14.0, spread=5.0),
    _Sight("score", match=0.7, length=0.2, noise=0.9, middle=-11.0, spread=5.0),
)
_TF_STATISTICS = (
    _TF,
    _Sight("count", match=0.5, length=0.3, noise=1.2, middle=-0.5, spread=1.0),
    _Sight("count", match=0.6, length=0.5, noise=0.9, middle=1.2, spread=1.0),
    _Sight("count", match=0.7, length=0.4, noise=0.8, middle=0.8, spread=1.0),
    _Sight("count", match=0.3, length=0.6, noise=1.2, middle=1.0, spread=2.0),
)
_SLASHES = _Sight("count", depth=1.0, noise=0.3, middle=1.2, spread=0.5)
_URL_LENGTH = _Sight("count", depth=0.8, noise=0.6, middle=3.9, spread=0.4)
_INLINKS = _Sight("count", authority=0.8, noise=0.7, middle=1.5, spread=3.0)
_OUTLINKS = _Sight("count", length=0.4, noise=1.0, middle=1.0, spread=1.5)
_PAGERANK = _Sight("count", authority=0.9, noise=0.5, middle=7.0, spread=1.2)
_MSLR_BLOCKS = (
    _Sight("count", match=0.8, noise=0.6, middle=0.8, spread=0.5),
    _Sight("share", match=0.8, noise=0.6),
    _LENGTH,
    _IDF,
    *_TF_STATISTICS,
    *(sight._replace(form="share", length=-sight.length) for sight in _TF_STATISTICS),
    *(sight._replace(middle=sight.middle + 2.0) for sight in _TF_STATISTICS),
    _Sight("share", match=1.5, noise=1.0),
    _Sight("share", match=0.7, noise=0.8),
    _BM25,
    *_LMIR,
)
_MSLR_SINGLES = (
    _SLASHES,
    _URL_LENGTH,
    _INLINKS,
    _OUTLINKS,
    _PAGERANK,
    _PAGERANK._replace(authority=0.6, noise=0.9),
    _Sight("count", length=0.5, noise=1.0, middle=2.5, spread=1.2),
    _Sight("count", noise=1.0, middle=2.5, spread=1.2),
    _Sight("rare", match=0.6, authority=0.4, noise=0.8, middle=1.0, spread=2.0),
    _Sight("rare", authority=0.6, noise=0.8, middle=2.0, spread=2.0),
    _Sight("rare", noise=1.0, middle=3.0, spread=1.5),
)
_ISTELLA_BLOCKS = (*_MSLR_BLOCKS[:3], *_MSLR_BLOCKS[4:6], _MSLR_BLOCKS[9], _MSLR_BLOCKS[19], _BM25, *_LMIR[:2])

_SHAPES = {
    "mq2007": _Shape(
        queries=600,
        shares=(0.74, 0.20, 0.06),
        length=(37.0, 0.42, 6, 147),
        barren=0.10,
        noise=1.1,
        blocks=(_TF, _IDF, _TF, _LENGTH, _BM25, *_LMIR),
        singles=(_PAGERANK, _INLINKS, _OUTLINKS, _SLASHES, _URL_LENGTH, _Sight("empty")),
        scaled=True,
        names=LETOR_4,
    ),
    "mslr": _Shape(
        queries=500,
        shares=(0.52, 0.32, 0.13, 0.02, 0.01),
        length=(106.0, 0.58, 2, 450),
        barren=0.10,
        noise=1.1,
        blocks=_MSLR_BLOCKS,
        singles=_MSLR_SINGLES,
        scaled=False,
        names=MSLR,
    ),
    # From the description of Istella-X by Lucchese et al. (SIGIR 2018), and fixed before any training. 15 % of its
    # queries have at most 100 documents and 39 % more than 4,900, of at most 5,000: a clipped log-normal with this
    # median and spread. Its mean is 2,578, theirs 2,679. 4.64 documents are relevant, with labels 1 to 4, and documents
    # are in the order of BM25. One of these 60 features stands for four of the 220, with half the noise, so a run takes
    # minutes. Assumptions, since not published: the share of hard negatives and the noise of labels.
    "istella-x": _Shape(
        queries=250,
        shares=(0.9983, 0.0003, 0.0004, 0.0006, 0.0004),
        length=(2145.0, 2.96, 5, 5000),
        barren=0.02,
        noise=0.35,
        blocks=tuple(sight._replace(noise=sight.noise / 2) for sight in _ISTELLA_BLOCKS),
        singles=tuple(sight._replace(noise=sight.noise / 2) for sight in _MSLR_SINGLES[:10]),
        scaled=False,
        names=(),
        relevant=4.64,
        lookalikes=0.04,
        ordered=_ISTELLA_BLOCKS.index(_BM25) * len(STREAMS) + len(STREAMS) - 1,
    ),
}

_FULL = (0.95, 0.35, 0.90, 0.45, 0.97)  # share of documents in which each stream is not empty


def synthetic(shape: str, queries: int | None = None, seed: int = 0) -> RankingData:
    """Generate ranking data with the shape of "mq2007", "mslr" or "istella-x".

    The data have 46 features, scaled within each query, 136 raw features or 60 raw features. "istella-x" has thousands
    of documents per query; few of them are relevant, and some of the others are hard to distinguish from these. The
    same seed gives the same data; a set with fewer queries is not the beginning of a larger one.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mslr", queries=20, seed=1)
    >>> data
    <RankingData synthetic-mslr; queries: 20; documents: 2,091; features: 136; labels: 0 to 4; normalised: none>
    >>> bm25 = data.features[:, data.feature_names.index("BM25 of whole document")]
    >>> fr.evaluate(["ndcg@10"], bm25, data).round(3).tolist()
    [0.231]
    """
    if shape not in _SHAPES:
        raise ValueError(f"unknown synthetic shape {shape!r}; use one of {', '.join(_SHAPES)}")
    plan = _SHAPES[shape]
    queries = plan.queries if queries is None else queries
    if queries < 1:
        raise ValueError(f"queries must be at least 1 (got {queries})")
    rng = rng_for(seed, "synthetic", shape, queries)

    lengths = _lengths(plan, queries, rng)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    query = np.repeat(np.arange(queries), lengths)
    traits = _traits(query, queries, rng)
    if plan.lookalikes:
        traits = _with_lookalikes(plan, traits, rng)
    grades = _grades(plan, traits, query, queries, rng)
    features = _features(plan, traits, query, queries, rng)
    if plan.scaled:
        features = _scaled(features, offsets, query)
    if plan.ordered is not None:
        order = np.lexsort((-features[:, plan.ordered], query))
        features, grades = features[order], grades[order]
    return RankingData(
        features=features,
        grades=grades,
        offsets=offsets,
        query_ids=np.arange(1, queries + 1).astype(str),
        name=f"synthetic-{shape}",
        top_grade=len(plan.shares) - 1,
        feature_names=plan.names,
        given="" if plan.ordered is None else f"feature {plan.ordered + 1} (BM25)",
    )


def _normals(rng: np.random.Generator, *shape: int) -> _Real:
    return kernels.chance.normals(rng, *shape).astype(np.float32)


def _lengths(plan: _Shape, queries: int, rng: np.random.Generator) -> NDArray[np.int64]:
    median, spread, least, most = plan.length
    drawn = np.rint(median * kernels.elementary.exp_each(spread * kernels.chance.normals(rng, queries)))
    lengths = np.clip(drawn, least, most).astype(np.int64)
    lengths[rng.random(queries) < 0.01] = 1  # real sets contain a few queries with one document
    return lengths


def _traits(query: NDArray[np.int64], queries: int, rng: np.random.Generator) -> _Traits:
    documents = len(query)
    topical, length, fame, depth = _normals(rng, 4, documents)
    own = _normals(rng, 4, documents)
    tide = _normals(rng, queries)[query]  # shifts the match of all documents of a query
    body, anchor, title, url = np.float32(0.6) * topical + np.float32(0.8) * own + np.float32(0.3) * tide
    whole = np.float32(0.8) * body + np.float32(0.35) * title + np.float32(0.2) * anchor
    full = rng.random((5, documents), dtype=np.float32) < np.array(_FULL, dtype=np.float32)[:, None]
    match = np.where(full, np.stack((body, anchor, title, url, whole)), np.float32(-1.5))
    authority = np.float32(0.8) * fame - np.float32(0.6) * depth  # home pages have the highest authority
    return _Traits(full, match, length, authority, depth)


def _with_lookalikes(plan: _Shape, traits: _Traits, rng: np.random.Generator) -> _Traits:
    """Add hard negatives: documents that match the query but are far too long or too short."""
    chosen = rng.random(len(traits.length), dtype=np.float32) < plan.lookalikes
    match = traits.match + np.where(traits.full & chosen, np.float32(1.2), np.float32(0))
    far = traits.length + np.copysign(np.float32(1.2), traits.length)
    return traits._replace(match=match, length=np.where(chosen, far, traits.length))


def _appeal(traits: _Traits) -> _Real:
    """Relevance before noise, by which a perfect ranker would sort."""
    body, anchor, title = traits.match[:3]
    best = np.maximum(np.maximum(body, anchor), title)  # one good stream is enough
    # Authority helps documents on topic; it makes off-topic pages worse.
    trusted = np.where(best > 0.4, traits.authority, np.float32(-0.4) * traits.authority)
    odd = np.minimum(np.square(traits.length), 4)  # too short and too long are both bad
    stuffed = (body > 1.4) & (title < 0.2)  # keyword stuffing: many matches in the body, none in the title
    appeal: _Real = (
        np.float32(0.8) * best + np.float32(1.1) * trusted - np.float32(0.9) * odd - np.float32(2.0) * stuffed
    )
    return appeal


def _grades(
    plan: _Shape, traits: _Traits, query: NDArray[np.int64], queries: int, rng: np.random.Generator
) -> NDArray[np.int8]:
    difficulty = kernels.elementary.exp_each(np.float32(0.5) * _normals(rng, queries)).astype(np.float32)
    richness = _normals(rng, queries)
    barren = rng.permutation(queries) < round(plan.barren * queries)
    noise = _normals(rng, len(query))
    judged = _appeal(traits) + richness[query] + np.float32(plan.noise) * difficulty[query] * noise
    if plan.relevant:
        return _few_relevant(plan, judged, query, barren, rng)
    judged[barren[query]] = -np.inf
    limits = np.quantile(judged, np.cumsum(plan.shares)[:-1], method="higher")
    grades: NDArray[np.int8] = np.searchsorted(limits, judged, side="right").astype(np.int8)
    return grades


def _few_relevant(
    plan: _Shape, judged: _Real, query: NDArray[np.int64], barren: NDArray[np.bool_], rng: np.random.Generator
) -> NDArray[np.int8]:
    """A few of each query's best documents are relevant; better documents get higher labels."""
    wanted = np.where(barren, 0, 1 + rng.poisson(plan.relevant / (1 - plan.barren) - 1, len(barren)))
    order = np.lexsort((-judged, query))
    first = np.searchsorted(query, np.arange(len(barren)))
    chosen = order[np.arange(len(query)) - first[query] < wanted[query]]
    shares = np.array(plan.shares[1:])
    drawn = 1 + np.searchsorted(np.cumsum(shares) / shares.sum(), rng.random(len(chosen)), side="right")
    grades = np.zeros(len(query), dtype=np.int8)
    # Within a query, the drawn labels are assigned to documents in their order.
    grades[chosen] = drawn[np.lexsort((-drawn, query[chosen]))]
    return grades


def _features(plan: _Shape, traits: _Traits, query: NDArray[np.int64], queries: int, rng: np.random.Generator) -> _Real:
    streams = range(len(STREAMS))
    everywhere = np.ones(len(query), dtype=np.bool_)
    columns = [(sight, traits.match[s], traits.full[s]) for sight in plan.blocks for s in streams]
    columns += [(sight, traits.match[-1], everywhere) for sight in plan.singles]
    features = np.empty((len(query), len(columns)), dtype=np.float32)
    for column, (sight, match, full) in enumerate(columns):
        if sight.form == "query":
            seen = _normals(rng, queries)[query]
        else:
            seen = np.float32(sight.noise) * _normals(rng, len(query))
        # Term by term instead of as a matrix product, whose last bits depend on the machine.
        weights = (sight.match, sight.length, sight.authority, sight.depth)
        for weight, trait in zip(weights, (match, traits.length, traits.authority, traits.depth), strict=True):
            if weight:
                seen += np.float32(weight) * trait
        features[:, column] = _shown(sight, seen, full, rng)
    return features


def _shown(sight: _Sight, seen: _Real, full: NDArray[np.bool_], rng: np.random.Generator) -> _Real:
    match sight.form:
        case "score" | "query":
            return np.round(np.float32(sight.middle) + np.float32(sight.spread) * seen, 4)
        case "share":
            return np.where(full, np.round(np.float32(0.5) + np.float32(0.5) * seen / (1 + np.abs(seen)), 4), 0)
        case "empty":
            return np.zeros_like(seen)
        case "rare":
            full = rng.random(len(seen), dtype=np.float32) < 0.03
    return np.where(
        full, np.floor(kernels.elementary.exp_each(np.float32(sight.middle) + np.float32(sight.spread) * seen)), 0
    )


def _scaled(features: _Real, offsets: NDArray[np.int64], query: NDArray[np.int64]) -> _Real:
    low = np.minimum.reduceat(features, offsets[:-1])
    width = np.maximum.reduceat(features, offsets[:-1]) - low
    width[width == 0] = 1  # features that are constant within a query become 0
    scaled: _Real = np.round((features - low[query]) / width[query], 6)
    return scaled

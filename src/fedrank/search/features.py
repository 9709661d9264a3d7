"""The features with a weight, in NumPy: `FeatureSet.raw` computes the same values, but a compiler would take longer to
load than a search takes, and more memory than an index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import LIVE_1, ForwardRows, QueryTerms, WordStatistics

WEIGHTED = (
    "engine", "covered", "covered by beginning", "rarest term", "near pairs", "title precision", "feedback",
)  # fmt: skip
HEAD, NEAR, BEST = 50, 8, 5  # words at the beginning of a body, words between neighbours, documents of the feedback
_GAP = NEAR + 1  # between documents: no pair crosses two


def weighted_features(
    query: QueryTerms, rows: ForwardRows, scores: NDArray[np.float64], statistics: WordStatistics
) -> NDArray[np.float32]:
    """[candidates, 34]: the features `WEIGHTED` of candidates in the engine's order; 0 for all others."""
    out = np.zeros((len(rows), len(LIVE_1.names)), np.float32)
    if not len(rows):
        return out
    sizes = np.diff(rows.offsets)
    document = np.repeat(np.arange(len(rows)), sizes)
    values = {
        "engine": np.maximum(scores, 0.0) / scores[0] if scores[0] > 0.0 else np.zeros(len(rows)),
        "feedback": _feedback(document, rows.words, len(rows), statistics),
        **_matches(query, rows, document, statistics),
    }
    for name in WEIGHTED:
        out[:, LIVE_1.names.index(name)] = values[name]
    return out


def _matches(
    query: QueryTerms, rows: ForwardRows, document: NDArray[np.int64], statistics: WordStatistics
) -> dict[str, NDArray[np.float64]]:
    """The features of the places at which the query's words occur."""
    terms, idf = len(query), statistics.idf(query.stems)
    order = np.argsort(query.stems)
    at = np.flatnonzero(np.isin(rows.words, query.stems))
    which = order[np.searchsorted(query.stems[order], rows.words[at])]
    of = document[at]
    place = at - rows.offsets[of]  # in the document, the title first
    body = place - rows.titles[of]
    has = np.zeros((len(rows), terms), bool)
    has[of, which] = True
    head = np.zeros((len(rows), terms), bool)
    beginning = (body >= 0) & (body < HEAD)
    head[of[beginning], which[beginning]] = True
    near = np.zeros((len(rows), max(terms - 1, 1)), bool)
    apart = at + _GAP * of
    for step in range(1, min(NEAR, len(at) - 1) + 1):
        one, other = which[:-step], which[step:]
        pairs = np.flatnonzero((apart[step:] - apart[:-step] <= NEAR) & (np.abs(one - other) == 1))
        near[of[pairs], np.minimum(one, other)[pairs]] = True
    total = idf.sum()
    return {
        "covered": has @ idf / total if total > 0.0 else np.zeros(len(rows)),
        "covered by beginning": head @ idf / total if total > 0.0 else np.zeros(len(rows)),
        "rarest term": has[:, idf.argmax()] if terms else np.zeros(len(rows)),
        "near pairs": near.sum(axis=1) / max(terms - 1, 1),
        "title precision": np.bincount(of[body < 0], minlength=len(rows)) / np.maximum(rows.titles, 1),
    }


def _feedback(
    document: NDArray[np.int64], words: NDArray[np.int32], count: int, statistics: WordStatistics
) -> NDArray[np.float64]:
    """Cosine of each document with the sum of the best other documents, each word weighted ln(1 + tf) x idf."""
    pairs = np.sort(document << 32 | words)
    first = np.flatnonzero(np.diff(pairs, prepend=-1))
    document, words = pairs[first] >> 32, (pairs[first] & 0x7FFF_FFFF).astype(np.int32)
    weight = np.log1p(np.diff(first, append=len(pairs))) * statistics.idf(words)
    length = np.sqrt(np.bincount(document, weight * weight, count))
    unit = weight / np.maximum(length, 1e-300)[document]
    best = min(BEST, count)
    until = int(np.searchsorted(document, best))
    terms, place = np.unique(words[:until], return_inverse=True)
    if not len(terms):
        return np.zeros(count)
    whole = np.append(np.bincount(place, unit[:until]), 0.0)  # the sum of the best; the last is for all other words
    at = np.searchsorted(terms, words)
    at[terms[np.minimum(at, len(terms) - 1)] != words] = len(terms)
    dots = np.bincount(document, unit * whole[at], count)
    own = np.bincount(document[:until], unit[:until] ** 2, count)  # of a document with itself, 0 if it is not best
    norm = whole @ whole + np.where(np.arange(count) < best, own - 2.0 * dots, 0.0)  # squared, of the other best
    found: NDArray[np.float64] = np.zeros(count)
    some = norm > 1e-9
    found[some] = np.clip((dots - own)[some] / np.sqrt(norm[some]), 0.0, 1.0)
    return found

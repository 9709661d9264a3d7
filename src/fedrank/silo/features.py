"""The sixteen features of CS-F-LTR: the match of title and body of a document with a query.

They need three statistics of each query term: its count in the document, its document frequency, and the lengths of
documents. These may be exact or estimated from a sketch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.normalise import normalise, normalise_into
from fedrank.data.ranking import RankingData
from fedrank.types import Features

K1, B = 1.2, 0.75  # of BM25
DISCOUNT = 0.7  # of LMIR.ABS
MU = 2000.0  # of LMIR.DIR, words
LAMBDA = 0.1  # of LMIR.JM: the collection's share

KINDS = ("length", "TF", "IDF", "TF-IDF", "BM25", "LMIR.ABS", "LMIR.DIR", "LMIR.JM")
FIELDS = ("body", "title")
FEATURE_NAMES = tuple(f"{kind} of {field}" for field in FIELDS for kind in KINDS)
# What is scaled to 1 for features from 0 on, and to 0 for those up to 0, in body and title: about where the values of
# usual queries end. They are constants of fedrank, so agreeing on them reveals nothing; values beyond are extrapolated.
_REACH = {
    "length": (500.0, 25.0),
    "TF": (0.25, 0.5),
    "IDF": (50.0, 50.0),
    "TF-IDF": (0.25, 1.0),
    "BM25": (20.0, 10.0),
    **dict.fromkeys(("LMIR.ABS", "LMIR.DIR", "LMIR.JM"), (-100.0, -100.0)),
}
RANGES: NDArray[np.float32] = np.array(  # [2, 16]: what is 0 and what is 1 where ranges are fixed
    [
        [min(_REACH[kind][field], 0.0) for field in range(len(FIELDS)) for kind in KINDS],
        [max(_REACH[kind][field], 0.0) for field in range(len(FIELDS)) for kind in KINDS],
    ],
    dtype=np.float32,
)
RANGES.setflags(write=False)
BM25_OF = {field: FEATURE_NAMES.index(f"BM25 of {field}") for field in FIELDS}

Real = NDArray[np.float64]
Normalisation = Literal["query", "fixed"]  # by list, which search engines cannot do; or by `RANGES`
_RAREST = 0.5  # document frequency of a term that no document was seen to contain


@dataclass(frozen=True)
class Background:
    """Statistics of one field of all documents of a silo, or of the federation.

    A noised document frequency may be negative or larger than the collection; it is clipped.
    """

    documents: int
    words: float  # in all of them together
    frequencies: Real  # [terms of the query]: documents that contain the term

    @property
    def mean_length(self) -> float:
        return self.words / max(self.documents, 1)

    @property
    def idf(self) -> Real:
        """[terms]: log(documents / documents with the term)."""
        most = max(self.documents, 1)
        idf: Real = kernels.elementary.log_each(most / np.clip(self.frequencies, _RAREST, most))
        return idf

    @property
    def chance(self) -> Real:
        """[terms]: probability that a word of the collection is this term.

        The document frequency stands for the number of occurrences, which would have to be published as well.
        """
        most = max(self.documents, 1)
        chance: Real = np.clip(self.frequencies, _RAREST, most) / max(self.words, 1.0)
        return np.minimum(chance, 1.0)


def field_features(counts: Real, lengths: NDArray[Any], background: Background) -> Real:
    """[documents, 8] for one field of the documents of one query: counts [documents, terms], lengths [documents].

    Estimated counts are clipped to 0 .. length first. LMIR values are sums of logarithms. LMIR.ABS treats every word
    of a document as distinct, because the number of distinct words is not published.
    """
    if counts.shape != (len(lengths), len(background.frequencies)):
        raise ValueError(
            f"counts have shape {list(counts.shape)} for {len(lengths)} documents and {len(background.frequencies)} "
            "terms; give one for each pair of document and term"
        )
    length = np.maximum(np.asarray(lengths, np.float64), 0.0)[:, None]
    clipped = np.clip(counts, 0.0, length)
    share = clipped / np.maximum(length, 1.0)
    idf, chance = background.idf, background.chance
    relative = length / max(background.mean_length, 1e-9)
    bm25 = idf * clipped * (K1 + 1) / (clipped + K1 * (1 - B + B * relative))
    discounted = np.maximum(clipped - DISCOUNT, 0.0) / np.maximum(length, 1.0)
    absolute = np.where(length > 0, discounted + DISCOUNT * chance, chance)
    dirichlet = (clipped + MU * chance) / (length + MU)
    mixed = np.where(length > 0, (1 - LAMBDA) * share + LAMBDA * chance, chance)
    return np.column_stack(
        [
            length[:, 0],
            share.sum(axis=1),
            np.full(len(clipped), idf.sum()),
            (share * idf).sum(axis=1),
            bm25.sum(axis=1),
            kernels.elementary.log_each(absolute).sum(axis=1),
            kernels.elementary.log_each(dirichlet).sum(axis=1),
            kernels.elementary.log_each(mixed).sum(axis=1),
        ]
    )


def features(
    counts: Mapping[str, Real], lengths: Mapping[str, NDArray[Any]], backgrounds: Mapping[str, Background]
) -> Features:
    """[documents, 16] for the documents of one query, from the counts, lengths and backgrounds of each field."""
    parts = [field_features(counts[field], lengths[field], backgrounds[field]) for field in FIELDS]
    return np.concatenate(parts, axis=1).astype(np.float32)


def scaled(lists: RankingData, how: Normalisation) -> RankingData:
    """Lists with features that a model can learn from."""
    return normalise(lists, "query") if how == "query" else normalise(lists, "global", RANGES)


def ranges_of(how: Normalisation) -> NDArray[np.float32] | None:
    """The ranges that a model file contains."""
    return RANGES if how == "fixed" else None


def scaled_like(rows: Features, own: Features) -> Features:
    """Rows on the scale on which the own documents of a list range from 0 to 1.

    Values beyond are clipped: lists that are ranked have no such values. A feature that is the same for all own
    documents is 0.
    """
    scaled = np.empty(rows.shape, np.float32)
    ranges = np.stack([own.min(axis=0), own.max(axis=0)]).astype(np.float32)
    normalise_into(scaled, rows, np.array([0, len(rows)], np.int64), "global", ranges)
    return np.clip(scaled, 0.0, 1.0)

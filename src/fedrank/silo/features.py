"""The sixteen features of CS-F-LTR: how well the title and the body of a document fit a query.

They need three things about each term of the query: how often the document holds it, how many documents do, and how
long documents are. Where the numbers come from (counted, or estimated from a sketch) makes no difference here.
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
# What counts as 1 for features from 0 on, and as 0 for those up to 0, in body and title: about where the values of
# usual queries end. Constants of fedrank, so that agreeing on them tells nothing of anybody; values beyond go on along
# the same line.
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
Normalisation = Literal["query", "fixed"]  # each list by itself, which no engine can do; or by `RANGES`
_RAREST = 0.5  # documents that hold a term which no document was seen to hold


@dataclass(frozen=True)
class Background:
    """What is known of one field of all documents: of a silo, or of the federation.

    A noised document frequency may be negative or larger than the collection; it is brought back into range.
    """

    documents: int
    words: float  # in all of them together
    frequencies: Real  # [terms of the query]: documents that hold the term

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
        """[terms]: how likely a word of the collection is this term.

        Documents with the term stand for its occurrences, whose number would be one more thing to publish.
        """
        most = max(self.documents, 1)
        chance: Real = np.clip(self.frequencies, _RAREST, most) / max(self.words, 1.0)
        return np.minimum(chance, 1.0)


def field_features(counts: Real, lengths: NDArray[Any], background: Background) -> Real:
    """[documents, 8] for one field of the documents of one query: counts [documents, terms], lengths [documents].

    Estimated counts are brought into 0 .. length first. LMIR values are sums of logarithms. LMIR.ABS takes every word
    of a document as a different one: how many are is not published.
    """
    if counts.shape != (len(lengths), len(background.frequencies)):
        raise ValueError(
            f"counts are {list(counts.shape)} for {len(lengths)} documents and {len(background.frequencies)} terms; "
            "give one for each pair"
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
    """What a model file says of the ranges."""
    return RANGES if how == "fixed" else None


def scaled_like(rows: Features, own: Features) -> Features:
    """Rows on the scale on which the own documents of a list lie between 0 and 1, as in a list that has no others.

    What lies beyond them is brought to the edge: no list that is ever ranked has such values. A feature that is the
    same for all own documents is 0.
    """
    scaled = np.empty(rows.shape, np.float32)
    ranges = np.stack([own.min(axis=0), own.max(axis=0)]).astype(np.float32)
    normalise_into(scaled, rows, np.array([0, len(rows)], np.int64), "global", ranges)
    return np.clip(scaled, 0.0, 1.0)

"""Normalisation: scale features to the range 0 .. 1, by query or over a whole set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.types import Features, Offsets

NORMALISATIONS = ("none", "query", "global")

Ranges = NDArray[np.float32]  # [2, features]: minimum and maximum


def normalise(data: RankingData, how: str, ranges: Ranges | None = None) -> RankingData:
    """Return the same queries with features scaled to the range 0 .. 1.

    `how` is "query" (within each query), "global" (over the whole set) or "none". A feature that is the same for all
    documents of the query (or of the set) becomes 0. Normalise a test set with the `ranges` of its training set; values
    outside these ranges are then outside 0 .. 1.

    >>> import fedrank as fr
    >>> raw, more = (fr.synthetic("mslr", queries=20, seed=seed) for seed in (1, 2))
    >>> train = fr.normalise(raw, "global")
    >>> test = fr.normalise(more, "global", train.ranges)
    >>> [f"{data.features.max():.2f}" for data in (raw, train, test)]
    ['4871490.00', '1.00', '4.02']
    """
    known_normalisation(how)
    if ranges is not None and how != "global":
        raise ValueError(f"ranges cannot be used with normalise={how!r}; omit them, or use 'global'")
    if data.normalised != how and (how == "none" or data.normalised == "query"):
        raise ValueError(
            f"features are already normalised by {data.normalised!r}, so {how!r} cannot be applied; "
            f"read the files again with normalise={how!r}"
        )
    if how == "none":
        return data
    if how == "global" and ranges is None:
        ranges = feature_ranges(data)
    out = np.empty(data.features.shape, np.float32)
    normalise_into(out, data.features, data.offsets, how, ranges)
    # Ranges of features that were already normalised would not be those of the files.
    known = ranges if data.normalised == "none" else None
    return replace(data, features=out, normalised=how, ranges=known)


def feature_ranges(data: RankingData) -> Ranges:
    """Return the minimum and maximum of every feature, [2, features]."""
    return _ranges(_plain(data.features))


def normalise_into(out: Features, features: Features, offsets: Offsets, how: str, ranges: Ranges | None = None) -> None:
    """Write normalised features to `out`, which may be `features` itself."""
    from fedrank.kernels.normalise import rescale, rescale_queries

    features = _plain(features)
    if how == "query":
        rescale_queries(features, _plain(offsets), out)
    elif how == "global":
        if ranges is None:
            ranges = _ranges(features)
        if ranges.shape != (2, features.shape[1]):
            raise ValueError(
                f"ranges of shape {ranges.shape} do not match {features.shape[1]} features; "
                f"use feature_ranges() of a set with the same features"
            )
        low, high = np.array(ranges, np.float32)
        rescale(features, 0, len(features), low, high, out)


def known_normalisation(how: str) -> None:
    """Raise an error unless `how` is "none", "query" or "global"."""
    if how not in NORMALISATIONS:
        raise ValueError(f"unknown normalisation {how!r}; use 'none', 'query' or 'global'")


def _ranges(features: Features) -> Ranges:
    from fedrank.kernels.normalise import find_ranges

    ranges = np.empty((2, features.shape[1]), np.float32)
    find_ranges(features, 0, len(features), ranges[0], ranges[1])
    return ranges


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    # Kernels are compiled for contiguous, writable arrays; another signature would cost seconds at the first call.
    array = np.ascontiguousarray(array)
    return array if array.flags.writeable else array.copy()

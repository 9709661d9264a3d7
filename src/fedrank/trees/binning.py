"""Feature binning: trees compare bytes instead of numbers, and histograms have one cell per bin.

The edges between bins are the same for all clients that grow trees together. Edges reveal something about the data
from which they were computed, so they are public (features with known bounds), agreed on in a file, or estimated with
noise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.files import read_text, write_atomic
from fedrank.seeds import rng_for
from fedrank.trees.arrays import UNDER_ZERO, ZERO

Reals = NDArray[np.float64]

FORMAT = "fedrank bin edges, version 1"
MAX_BINS = 256  # a bin is a byte
GRID = (-20, 27)  # powers of two between which the universal grid is fine
SAMPLED = 200_000  # documents from which edges are computed, as many as in LightGBM


@dataclass(frozen=True)
class Edges:
    """Bin edges: bin b of a feature contains values up to its edge b, and above the previous one."""

    values: tuple[tuple[float, ...], ...]  # [features][edges], ascending; one less than the number of bins

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("edges must not be empty; give the edges of every feature")
        for feature, edges in enumerate(self.values, start=1):
            if len(edges) >= MAX_BINS:
                raise ValueError(
                    f"feature {feature} has {len(edges)} edges, so {len(edges) + 1} bins; use at most {MAX_BINS} bins"
                )
            if not np.isfinite(edges).all() or np.any(np.diff(edges) <= 0):
                raise ValueError(f"the edges of feature {feature} must be finite and strictly ascending")

    @property
    def features(self) -> int:
        return len(self.values)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[features]: the number of edges of each."""
        return np.array([len(edges) for edges in self.values], dtype=np.int64)

    @property
    def bins(self) -> int:
        """The largest number of bins of any feature."""
        return int(self.counts.max()) + 1

    @cached_property
    def table(self) -> Reals:
        """[features, 256]: the edges, padded with infinity."""
        table = np.full((self.features, MAX_BINS), np.inf)
        for feature, edges in enumerate(self.values):
            table[feature, : len(edges)] = edges
        return table

    @cached_property
    def digest(self) -> bytes:
        """A hash of 16 bytes that identifies the edges."""
        rows = [np.array(edges, dtype="<f8").tobytes() for edges in self.values]
        lengths = np.array([len(edges) for edges in self.values], dtype="<u4").tobytes()
        return hashlib.blake2b(lengths + b"".join(rows), digest_size=16).digest()

    def save(self, path: str | Path) -> None:
        """Write a file that all clients can agree on."""
        write_atomic(Path(path), json.dumps({"format": FORMAT, "edges": self.values}) + "\n")

    @staticmethod
    def load(path: str | Path) -> Edges:
        """Read a file in the format of `save`."""
        try:
            content = json.loads(read_text(Path(path)))
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError(f"its format must be {FORMAT!r}")
            return Edges(tuple(tuple(float(edge) for edge in edges) for edges in content["edges"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{path} has no valid bin edges: {problem}; write it with `Edges.save`") from None


def bounded_edges(features: int, low: float, high: float, bins: int = 255) -> Edges:
    """Equidistant edges between bounds that are known beforehand: they reveal nothing about any data."""
    _check_bins(bins)
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"low must be below high, and both finite (got {low} and {high})")
    edges = clear_of_zero(np.linspace(low, high, bins + 1)[1:-1])
    return Edges((edges,) * features)


def grid_edges(features: int, bins: int = 255) -> Edges:
    """Geometric edges, finer for positive numbers: they fit any unit and reveal nothing about any data.

    >>> len(grid_edges(1, 255).values[0]), len(grid_edges(1, 63).values[0])
    (237, 61)
    """
    _check_bins(bins)
    low, high = GRID
    octaves = high - low
    finer = max(1, 3 * bins // (4 * octaves))  # edges per octave
    positive = 2.0 ** np.linspace(low, high, octaves * finer + 1)
    coarser = max(1, -(-octaves // max(1, bins - 3 - len(positive))))  # octaves per edge
    negative = -(2.0 ** np.arange(high, low - 1, -coarser))
    edges = np.concatenate([negative, [UNDER_ZERO, ZERO], positive])
    if len(edges) > bins - 1:  # few bins: only the middle of the positive ones
        spare = len(positive) - (bins - 2)
        edges = np.concatenate([[ZERO], positive[spare // 2 : len(positive) - (spare - spare // 2)]])
    return Edges((tuple(np.unique(edges).tolist()),) * features)


def quantile_edges(data: RankingData, bins: int = 255, seed: int = 0) -> Edges:
    """Edges with about the same number of documents between them: from the data, so only for the owner of all data."""
    _check_bins(bins)
    rows = np.arange(data.documents)
    if len(rows) > SAMPLED:
        rows = np.sort(rng_for(seed, "bin edges").choice(len(rows), SAMPLED, replace=False, shuffle=False))
    chosen = data.features[rows]
    return Edges(tuple(_quantiles(chosen[:, feature], bins) for feature in range(data.features.shape[1])))


def _quantiles(column: NDArray[np.float32], bins: int) -> tuple[float, ...]:
    """Midpoints between adjacent values. A value as frequent as a bin is wide gets a separate bin."""
    known = np.where(np.isnan(column), np.float32(0), column)
    values, counts = np.unique(known[np.isfinite(known)], return_counts=True)
    values = values.astype(np.float64)
    if len(values) <= bins:
        return clear_of_zero((values[:-1] + values[1:]) / 2)
    return clear_of_zero(halves(values, cut_evenly(counts, bins)))


def cut_evenly(counts: NDArray[np.int64], bins: int) -> list[int]:
    """The last value of each bin but the last one; bins contain about equally many documents."""
    so_far = np.cumsum(counts)
    alone = np.flatnonzero(counts >= so_far[-1] / bins)  # these get a separate bin
    borders = np.unique(np.concatenate([alone, alone - 1]))
    borders = borders[(borders >= 0) & (borders < len(counts) - 1)]
    ends: list[int] = []
    done = 0  # documents in completed bins
    while (free := bins - len(ends)) > 1:
        end = int(np.searchsorted(so_far, done + (so_far[-1] - done) / free))
        border = borders[np.searchsorted(borders, ends[-1] + 1 if ends else 0) :]
        end = min(end, int(border[0])) if len(border) else end
        if end >= len(counts) - 1:
            break
        ends.append(end)
        done = int(so_far[end])
    return ends


def halves(values: Reals, ends: Sequence[int]) -> Reals:
    """Midpoints between the last value of each bin and the next value."""
    last = np.asarray(ends, dtype=np.int64)
    return np.asarray((values[last] + values[last + 1]) / 2)


def clear_of_zero(edges: Reals) -> tuple[float, ...]:
    """Move edges out of the range that LightGBM reads as zero, so no edge separates such values."""
    moved = np.where(np.abs(edges) <= ZERO, np.where(edges >= 0, ZERO, UNDER_ZERO), edges)
    return tuple(np.unique(moved).tolist())


@dataclass(frozen=True)
class Binned:
    """Binned documents, stored twice: by rows to count histograms, and by columns to partition rows."""

    words: NDArray[np.uint64]  # [documents, words]: eight features each
    columns: NDArray[np.uint8]  # [features, documents]

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """[documents, 8 x words]"""
        return self.words.view(np.uint8)


def put_in_bins(data: RankingData, edges: Edges) -> Binned:
    """The features of every document in the bins of these edges."""
    from fedrank.kernels.grow import fill_bins

    width = data.features.shape[1]
    if width != edges.features:
        raise ValueError(
            f"{data.name or 'the data'} have {width} features, but the bin edges are for {edges.features}; use data "
            "and edges of the same features"
        )
    words = np.zeros((data.documents, -(-width // 8)), dtype=np.uint64)
    columns = np.empty((width, data.documents), dtype=np.uint8)
    zero = np.array([np.searchsorted(row, 0.0) for row in edges.values], dtype=np.int64)
    fill_bins(data.features, edges.table, zero, words.view(np.uint8), columns)
    return Binned(words, columns)


def _check_bins(bins: int) -> None:
    if not 2 <= bins <= MAX_BINS:
        raise ValueError(f"bins must be between 2 and {MAX_BINS} (got {bins}); 255 is usual, 63 is smaller to send")

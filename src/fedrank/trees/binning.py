"""Features in bins: a tree compares a byte where it would compare a number, and histograms have a place for each.

Edges between bins are the same for everybody who grows trees together. They tell something of the data that they were
made from, so they are public (features with known bounds), agreed on in a file, or estimated with noise.
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
SAMPLED = 200_000  # documents from which edges are made; LightGBM takes as many


@dataclass(frozen=True)
class Edges:
    """Where bins end: bin b of a feature holds values up to its edge b, and above the one before."""

    values: tuple[tuple[float, ...], ...]  # [features][edges], rising; one less than there are bins

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("edges of no feature: there is nothing to split by; give those of every feature")
        for feature, edges in enumerate(self.values, start=1):
            if len(edges) >= MAX_BINS:
                raise ValueError(
                    f"feature {feature} has {len(edges)} edges and so {len(edges) + 1} bins; use at most {MAX_BINS}"
                )
            if not np.isfinite(edges).all() or np.any(np.diff(edges) <= 0):
                raise ValueError(f"the edges of feature {feature} are not finite and rising; sort them, each once")

    @property
    def features(self) -> int:
        return len(self.values)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """[features]: how many edges each has."""
        return np.array([len(edges) for edges in self.values], dtype=np.int64)

    @property
    def bins(self) -> int:
        """Of the feature that has most."""
        return int(self.counts.max()) + 1

    @cached_property
    def table(self) -> Reals:
        """[features, 256]: infinite beyond the end."""
        table = np.full((self.features, MAX_BINS), np.inf)
        for feature, edges in enumerate(self.values):
            table[feature, : len(edges)] = edges
        return table

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that other edges do not have."""
        rows = [np.array(edges, dtype="<f8").tobytes() for edges in self.values]
        lengths = np.array([len(edges) for edges in self.values], dtype="<u4").tobytes()
        return hashlib.blake2b(lengths + b"".join(rows), digest_size=16).digest()

    def save(self, path: str | Path) -> None:
        """Write a file that all can agree on."""
        write_atomic(Path(path), json.dumps({"format": FORMAT, "edges": self.values}) + "\n")

    @staticmethod
    def load(path: str | Path) -> Edges:
        """Read what `save` wrote, or somebody else in its way."""
        try:
            content = json.loads(read_text(Path(path)))
            if not isinstance(content, dict) or content.get("format") != FORMAT:
                raise ValueError(f"it does not say format = {FORMAT!r}")
            return Edges(tuple(tuple(float(edge) for edge in edges) for edges in content["edges"]))
        except (KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{path} holds no bin edges: {problem}; write it with `Edges.save`") from None


def bounded_edges(features: int, low: float, high: float, bins: int = 255) -> Edges:
    """Edges at equal distances between bounds that are known beforehand: they tell nothing of any data."""
    _check_bins(bins)
    if not (np.isfinite([low, high]).all() and low < high):
        raise ValueError(f"bounds from {low} to {high} hold no values; give the lower one first")
    edges = clear_of_zero(np.linspace(low, high, bins + 1)[1:-1])
    return Edges((edges,) * features)


def grid_edges(features: int, bins: int = 255) -> Edges:
    """Edges at equal ratios, finer for positive numbers: they fit any unit and tell nothing of any data.

    >>> len(grid_edges(1, 255).values[0]), len(grid_edges(1, 63).values[0])
    (237, 61)
    """
    _check_bins(bins)
    low, high = GRID
    octaves = high - low
    finer = max(1, 3 * bins // (4 * octaves))  # edges an octave
    positive = 2.0 ** np.linspace(low, high, octaves * finer + 1)
    coarser = max(1, -(-octaves // max(1, bins - 3 - len(positive))))  # octaves an edge
    negative = -(2.0 ** np.arange(high, low - 1, -coarser))
    edges = np.concatenate([negative, [UNDER_ZERO, ZERO], positive])
    if len(edges) > bins - 1:  # few bins: those in the middle of the positive ones
        spare = len(positive) - (bins - 2)
        edges = np.concatenate([[ZERO], positive[spare // 2 : len(positive) - (spare - spare // 2)]])
    return Edges((tuple(np.unique(edges).tolist()),) * features)


def quantile_edges(data: RankingData, bins: int = 255, seed: int = 0) -> Edges:
    """Edges between which equally many documents lie: from the data themselves, so only for one who holds them all."""
    _check_bins(bins)
    rows = np.arange(data.documents)
    if len(rows) > SAMPLED:
        rows = np.sort(rng_for(seed, "bin edges").choice(len(rows), SAMPLED, replace=False, shuffle=False))
    chosen = data.features[rows]
    return Edges(tuple(_quantiles(chosen[:, feature], bins) for feature in range(data.features.shape[1])))


def _quantiles(column: NDArray[np.float32], bins: int) -> tuple[float, ...]:
    """Halfway between neighbouring values. A value that is as common as a bin is wide gets a bin of its own."""
    known = np.where(np.isnan(column), np.float32(0), column)
    values, counts = np.unique(known[np.isfinite(known)], return_counts=True)
    values = values.astype(np.float64)
    if len(values) <= bins:
        return clear_of_zero((values[:-1] + values[1:]) / 2)
    return clear_of_zero(halves(values, cut_evenly(counts, bins)))


def cut_evenly(counts: NDArray[np.int64], bins: int) -> list[int]:
    """The last value of each bin but the last one, so that bins hold about equally many."""
    so_far = np.cumsum(counts)
    alone = np.flatnonzero(counts >= so_far[-1] / bins)  # in a bin of their own, whatever comes before and after
    borders = np.unique(np.concatenate([alone, alone - 1]))
    borders = borders[(borders >= 0) & (borders < len(counts) - 1)]
    ends: list[int] = []
    done = 0  # documents in bins that have ended
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
    """Halfway between the last value of each bin and the next value."""
    last = np.asarray(ends, dtype=np.int64)
    return np.asarray((values[last] + values[last + 1]) / 2)


def clear_of_zero(edges: Reals) -> tuple[float, ...]:
    """LightGBM reads tiny values as zero, so that no edge may come between them."""
    moved = np.where(np.abs(edges) <= ZERO, np.where(edges >= 0, ZERO, UNDER_ZERO), edges)
    return tuple(np.unique(moved).tolist())


@dataclass(frozen=True)
class Binned:
    """Documents in bins, twice: by rows, where histograms are counted, and by columns, where rows are divided."""

    words: NDArray[np.uint64]  # [documents, words]: eight features each
    columns: NDArray[np.uint8]  # [features, documents]

    @property
    def bytes(self) -> NDArray[np.uint8]:
        """[documents, 8 x words]"""
        return self.words.view(np.uint8)


def put_in_bins(data: RankingData, edges: Edges) -> Binned:
    """Every document's features in the bins of these edges."""
    from fedrank.kernels.grow import fill_bins

    width = data.features.shape[1]
    if width != edges.features:
        raise ValueError(
            f"{data.name or 'the data'} have {width} features and the bin edges are for {edges.features}; use data and "
            "edges of the same features"
        )
    words = np.zeros((data.documents, -(-width // 8)), dtype=np.uint64)
    columns = np.empty((width, data.documents), dtype=np.uint8)
    zero = np.array([np.searchsorted(row, 0.0) for row in edges.values], dtype=np.int64)
    fill_bins(data.features, edges.table, zero, words.view(np.uint8), columns)
    return Binned(words, columns)


def _check_bins(bins: int) -> None:
    if not 2 <= bins <= MAX_BINS:
        raise ValueError(f"bins = {bins}: a feature has 2 to {MAX_BINS} of them; 255 is usual, 63 is smaller to send")

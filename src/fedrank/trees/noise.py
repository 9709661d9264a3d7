"""Noise for trees that clients grow together, in two designs; every client adds it to its own numbers.

`histograms`: splits are chosen by noised histograms, level by level, and leaf values by noised sums. `random-splits`:
splits are random and independent of the data, and only the sums of leaves are noised (Maddock et al., CCS 2022): no
budget is spent on splits, and the noise does not grow with the number of features.

The unit is a query, a person or a client: all of its gradients together are clipped to a bound before they are added
up. It is never a row: λ-gradients are pairwise, so a row changes those of its whole query. Noise is discrete Gaussian,
on the fixed-point grid, from the system's secure source: all of it from every client, or, under secure aggregation,
distributed over the clients, where the noise of the clients that are assumed honest is enough. The number of rows in a
leaf is not released, and neither is the quality on validation queries: early stopping is not possible.

Bin edges can be estimated with noise, too (`EdgeNoise`): every client counts its rows in the cells of a public grid
that follows from the settings and adds noise, and the edges are quantiles of the sum. Each edge is on the grid, and
bins contain about equally many rows. The contribution of a unit is bounded: if it has more rows, each counts less. A
quantile sketch, such as KLL, would store and send raw values of some rows, regardless of later noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.privacy.accounting import ConcentratedEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.mechanisms import event_of_gaussian_shares, gaussian_share
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.trees.binning import MAX_BINS, Edges, Reals, bounded_edges, cut_evenly, grid_edges, put_in_bins
from fedrank.types import Source

Whole = NDArray[np.int64]

ROW = 2**20  # one row, in fixed-point steps
MAX_ROWS = 2**20  # maximum contribution of a unit
CERTAIN = 2.0  # standard deviations of noise below which a cell counts as empty
SESSION = b"fedrank edges, 1"  # of the single secure aggregation
BITS = 62


@dataclass(frozen=True)
class TreeNoise:
    """The amount of noise, and the unit that it protects."""

    design: Literal["histograms", "random-splits"] = "random-splits"
    unit: Literal["query", "person", "client"] = "query"  # what is protected, as a whole
    noise: float = 5.0  # standard deviation of the noise of one release, relative to the sensitivity of one unit
    clip: float = 1.0  # maximum sum of |gradients| of a unit
    clip_hessian: float = 0.5  # maximum sum of hessians of a unit
    depth: int = 3  # of every tree
    shares: int = 1  # clients whose noise together is what is claimed, under secure aggregation; 1: each client's own

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise ValueError(f"shares must be at least 1 (got {self.shares}); without it, no noise would be added")
        for name, value in (("noise", self.noise), ("clip", self.clip), ("clip_hessian", self.clip_hessian)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be finite and above 0 (got {value})")
        if not 1 <= self.depth <= 8:
            raise ValueError(f"depth must be between 1 and 8 for trees with noise (got {self.depth}); 3 is usual")

    @property
    def releases(self) -> int:
        """Number of releases per tree, each of which has the same cost."""
        return 1 if self.design == "random-splits" else self.depth + 1

    def is_last(self, number: int) -> bool:
        """Whether a release of a tree is its last: the sums of its leaves."""
        return number == self.releases - 1

    def leaves(self, number: int) -> int:
        """Number of leaves of a tree at one of its releases."""
        return int(2 ** (self.depth if self.is_last(number) else number))

    def bounds(self, unit: float) -> tuple[int, int]:
        """Bounds on the gradients and hessians of one unit, in fixed-point steps."""
        return max(1, math.floor(self.clip / unit)), max(1, math.floor(self.clip_hessian / unit))

    def deviations(self, cells: int, unit: float) -> tuple[float, float]:
        """Standard deviations of the claimed noise on gradients and hessians, in fixed-point steps.

        A unit is in `cells` sums at once. Relative to its bound, a unit changes the gradients in each of these by at
        most 1, and likewise the hessians, so the L2 norm of the total change is at most the root of 2 x cells.
        """
        wide = self.noise * math.sqrt(2 * cells)
        gradients, hessians = self.bounds(unit)
        return wide * gradients, wide * hessians

    def laws(self, cells: int, unit: float) -> tuple[GridNoise, GridNoise]:
        """The distributions of the noise that one client adds to its gradients and hessians."""
        gradients, hessians = self.deviations(cells, unit)
        return gaussian_share(gradients, self.shares), gaussian_share(hessians, self.shares)

    def spread(self, clients: int) -> float:
        """The factor by which the noise in a sum of this many clients exceeds what is claimed."""
        return math.sqrt(clients / self.shares)

    def guarantee(self, cells: int, sums: int, unit: float) -> Guarantee:
        """The guarantee of one release: cells as above, and the total number of sums."""
        because = "every client adds discrete Gaussian noise to what it sends"
        if self.shares > 1:
            because = (
                "every client adds part of the discrete Gaussian noise before secure aggregation, and the noise of "
                f"{self.shares} clients is all of it: it holds if that many do not collude with the server"
            )
        because += (
            f"; covers everything of one {self.unit}, never a single row: its gradient depends on all rows of its query"
        )
        error = sum(law.log_error for law in self.laws(cells, unit))
        return _guarantee(self, min(self.deviations(cells, unit)), 2 * sums, because, 2 * sums * error)

    def priced(self, features: int, bins: int, fraction: int = 20) -> Guarantee:
        """The guarantee of one release of any tree, as an upper bound on the cost."""
        cells = 1 if self.design == "random-splits" else features
        sums = 2**self.depth * (1 if self.design == "random-splits" else features * bins)
        return self.guarantee(cells, sums, 2.0**-fraction)

    def epsilon(self, trees: int, features: int, bins: int, delta: float, fraction: int = 20) -> float:
        """The ε of this many trees, with all their releases."""
        return self.priced(features, bins, fraction).epsilon(trees * self.releases, delta)


def units_of(data: RankingData, unit: str) -> Whole:
    """[documents]: the index of the unit of each."""
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    if unit == "query":
        return query
    if unit == "client":
        return np.zeros(data.documents, np.int64)
    if not len(data.who):
        raise ValueError(
            f"{data.name or 'the data'} do not record persons, so they cannot be protected; use "
            'unit = "query" or "client"'
        )
    return np.asarray(np.unique(data.who, return_inverse=True)[1][query])


def clip_units(values: Whole, units: Whole, bound: int) -> Whole:
    """Clip the sum of absolute values of every unit to the bound, in integer arithmetic."""
    sizes = np.bincount(units, weights=np.abs(values).astype(np.float64)).astype(np.int64)
    each = np.maximum(sizes, 1)[units]
    sides = np.abs(values)
    if int(sides.max(initial=0)) * bound >= 2**63:  # products that exceed 64 bits
        smaller = (sides.astype(object) * bound // each).astype(np.int64)
    else:
        smaller = sides * np.int64(bound) // each
    return np.where(each > bound, np.sign(values) * smaller, values)


@dataclass(frozen=True)
class EdgeNoise:
    """The grid on which rows are counted, the amount of noise, and the unit that it protects."""

    noise: float = 5.0  # standard deviation, relative to the sensitivity of one unit
    unit: Literal["query", "person", "client"] = "query"
    rows: int = 100  # maximum contribution of a unit, in rows
    bounds: tuple[float, float] | None = None  # of all features; None: a grid that fits all numbers
    shares: int = 1  # clients whose noise together is what is claimed, under secure aggregation; 1: each client's own

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf:
            raise ValueError(f"noise must be finite and above 0 (got {self.noise})")
        if not 1 <= self.rows <= MAX_ROWS:
            raise ValueError(f"rows must be between 1 and {MAX_ROWS:,} (got {self.rows})")
        self.grid(1)  # raises for invalid bounds, before a budget is charged
        if self.shares < 1:
            raise ValueError(f"shares must be at least 1 (got {self.shares}); without it, no noise would be added")

    def grid(self, features: int) -> Edges:
        """The edges of cells, which do not depend on any data."""
        if self.bounds is None:
            return grid_edges(features, MAX_BINS)
        return bounded_edges(features, *self.bounds, MAX_BINS)

    def deviation(self, features: int) -> float:
        """Standard deviation of the claimed noise, in steps: a unit is in every feature, with a bounded row count."""
        return self.noise * self.rows * ROW * math.sqrt(features)

    def guarantee(self, features: int) -> Guarantee:
        """The guarantee of all edges together."""
        because = "every client adds discrete Gaussian noise"
        cells, deviation = features * MAX_BINS, self.deviation(features)
        if self.shares > 1:
            because = f"the noise of {self.shares} clients that do not collude with the server is all of it"
        error = gaussian_share(deviation, self.shares).log_error
        return _guarantee(self, deviation, cells, f"{because}; covers all rows of one {self.unit}", 2 * cells * error)


def _guarantee(noise: TreeNoise | EdgeNoise, deviation: float, sums: int, because: str, error: float) -> Guarantee:
    """The guarantee of this many sums together; the sampling error counts once per noisy client."""
    event = ConcentratedEvent(1 / (2 * noise.noise**2))
    if noise.shares > 1:
        event = event_of_gaussian_shares(deviation, 1 / noise.noise, noise.shares, sums)
    return Guarantee("server", event, because, "round", noise.unit, "zero-out", slack=noise.shares * error)


def counted(data: RankingData, noise: EdgeNoise, grid: Edges) -> Whole:
    """[features, cells]: rows in the cells of a grid, in steps, clipped per unit; no noise yet."""
    each = clip_units(np.full(data.documents, ROW, np.int64), units_of(data, noise.unit), noise.rows * ROW)
    columns = put_in_bins(data, grid).columns
    return np.stack([np.bincount(column, each, MAX_BINS).astype(np.int64) for column in columns])


def noised_counts(data: RankingData, noise: EdgeNoise, grid: Edges, source: Source | None = None) -> Whole:
    """What a client sends: its counts with noise."""
    law = gaussian_share(noise.deviation(grid.features), noise.shares)
    found = counted(data, noise, grid)
    return found + law.draw(found.shape, SecureSource() if source is None else source)


def estimated_edges(train: Sequence[RankingData], noise: EdgeNoise, bins: int, secure: bool = False) -> Edges:
    """Edges for several clients in this process; the caller must charge them before."""
    if noise.shares > (len(train) if secure else 1):
        raise ValueError(
            f"distributed noise of {noise.shares} clients requires secure aggregation of at least as many clients "
            f"(got {len(train)} clients); use shares = 1, or secure = true with more clients"
        )
    grid = noise.grid(train[0].features.shape[1])
    parts = [noised_counts(data, noise, grid) for data in train]
    total = _summed(parts) if secure else np.sum(parts, axis=0)
    wide = noise.deviation(grid.features) * math.sqrt(len(train) / noise.shares)
    return edges_of_counts(total, grid, bins, wide)


def edges_of_counts(counts: Whole, grid: Edges, bins: int, deviation: float = 0.0) -> Edges:
    """Edges on a grid with about equally many rows between them; cells with no more than noise count as empty."""
    return Edges(
        tuple(_on_grid(row, np.array(ends), bins, deviation) for row, ends in zip(counts, grid.values, strict=True))
    )


def _on_grid(counts: Whole, ends: Reals, bins: int, deviation: float) -> tuple[float, ...]:
    counts = counts[: len(ends) + 1]
    known = np.where(counts > CERTAIN * deviation, counts, 0)
    if not known.any():  # only noise: bins of equally many cells
        places = np.unique(np.linspace(0, len(ends), bins + 1)[1:-1].astype(np.int64))
        return tuple(ends[places[places < len(ends)]].tolist())
    filled = np.flatnonzero(known)
    last = np.arange(len(filled) - 1) if len(filled) <= bins else np.array(cut_evenly(known[filled], bins), np.int64)
    return tuple(ends[filled[last]].tolist())


def _summed(parts: Sequence[Whole]) -> Whole:
    """The sum by secure aggregation."""
    from fedrank.privacy.secure_series import SeriesClient, SeriesServer

    clients = [SeriesClient(id, SESSION, len(parts), BITS) for id in range(len(parts))]
    server = SeriesServer(SESSION, range(len(parts)), BITS)
    for client in clients:
        server.receive_advertisement(client.advertise())
    roster = server.roster()
    for client in clients:
        client.meet(roster)
    masked = {client.id: client.masked(0, part.reshape(-1)) for client, part in zip(clients, parts, strict=True)}
    return np.asarray(server.sum(0, parts[0].size, masked).reshape(parts[0].shape))

"""Noise for trees that are grown together, in two designs; every client adds it to its own numbers.

`histograms`: splits are chosen by noised histograms, level by level, and leaves by noised sums. `random-splits`: splits
are random and independent of the data, and only the sums of leaves are noised (Maddock et al., CCS 2022): no budget
goes to splits, and the noise does not grow with the number of features.

The unit is a query, a person or a client: all of its gradients together are clipped to a bound before they are added
up. It is never a row: λ-gradients are pairwise, so a row changes those of its whole query. Noise is discrete Gaussian,
on the grid of fixed point, from the system's secure source: all of it from every client, or, under secure aggregation,
a share from each; the shares of the clients that are assumed honest add up to it. The number of rows in a leaf is not
released, and neither is the quality on validation queries: forests do not stop early.

Bin edges can be estimated under noise, too (`EdgeNoise`): every client counts its rows in the cells of a public grid
that follows from settings and adds noise, and the edges are quantiles of the sum. Each edge lies on the grid, and bins
hold about equally many rows. All rows of a unit count for at most so many: more of them count for less each. A sketch
of quantiles, such as KLL, would keep and send raw values of some rows, however it is noised later.
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

ROW = 2**20  # one row, in steps
MAX_ROWS = 2**20  # that a unit may count for
CERTAIN = 2.0  # deviations of noise below which a cell counts as empty
SESSION = b"fedrank edges, 1"  # of the one secure sum
BITS = 62


@dataclass(frozen=True)
class TreeNoise:
    """How much noise is added, and which unit it protects."""

    design: Literal["histograms", "random-splits"] = "random-splits"
    unit: Literal["query", "person", "client"] = "query"  # what is protected, all of it together
    noise: float = 5.0  # deviation of the noise of one release, in units of what one unit can change
    clip: float = 1.0  # largest sum of |gradients| of a unit
    clip_hessian: float = 0.5  # largest sum of hessians of a unit
    depth: int = 3  # of every tree
    shares: int = 1  # under a secure sum, clients whose noise adds up to what is claimed; 1: every client's own does

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise ValueError(f"shares = {self.shares}: without a share there is no noise; use 1 or more")
        for name, value in (("noise", self.noise), ("clip", self.clip), ("clip_hessian", self.clip_hessian)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} = {value} must be a positive number")
        if not 1 <= self.depth <= 8:
            raise ValueError(f"depth = {self.depth}: trees that are grown under noise have 1 to 8 levels; use about 3")

    @property
    def releases(self) -> int:
        """That a tree makes, each of which costs the same."""
        return 1 if self.design == "random-splits" else self.depth + 1

    def is_last(self, number: int) -> bool:
        """Whether a release of a tree is its last: the sums of its leaves."""
        return number == self.releases - 1

    def leaves(self, number: int) -> int:
        """How many leaves a tree has at one of its releases."""
        return int(2 ** (self.depth if self.is_last(number) else number))

    def bounds(self, unit: float) -> tuple[int, int]:
        """Of the gradients and hessians of one unit, in steps of fixed point."""
        return max(1, math.floor(self.clip / unit)), max(1, math.floor(self.clip_hessian / unit))

    def deviations(self, cells: int, unit: float) -> tuple[float, float]:
        """Of the noise that is claimed, on gradients and hessians, where a unit is in `cells` sums at once.

        They are in steps of fixed point.
        In units of its bound, a client's gradients in one of these change by at most 1, and so do its hessians. So the
        change of all has an L2 norm of at most the root of 2 x cells.
        """
        wide = self.noise * math.sqrt(2 * cells)
        gradients, hessians = self.bounds(unit)
        return wide * gradients, wide * hessians

    def laws(self, cells: int, unit: float) -> tuple[GridNoise, GridNoise]:
        """Of what one client adds to its gradients and hessians."""
        gradients, hessians = self.deviations(cells, unit)
        return gaussian_share(gradients, self.shares), gaussian_share(hessians, self.shares)

    def spread(self, clients: int) -> float:
        """By how much the noise in a sum of so many clients is wider than what is claimed."""
        return math.sqrt(clients / self.shares)

    def guarantee(self, cells: int, sums: int, unit: float) -> Guarantee:
        """What one release costs: cells as above, and how many sums it has in all."""
        because = "every client adds discrete Gaussian noise to what it sends"
        if self.shares > 1:
            because = (
                "every client adds a share of discrete Gaussian noise before a secure sum, and the shares of "
                f"{self.shares} clients are all of it: it holds if so many do not work with the server"
            )
        because += (
            f", for all that one {self.unit} does, never for one row: its gradient depends on all rows of its query"
        )
        error = sum(law.log_error for law in self.laws(cells, unit))
        return _guarantee(self, min(self.deviations(cells, unit)), 2 * sums, because, 2 * sums * error)

    def priced(self, features: int, bins: int, fraction: int = 20) -> Guarantee:
        """What one release of any tree costs, at most."""
        cells = 1 if self.design == "random-splits" else features
        sums = 2**self.depth * (1 if self.design == "random-splits" else features * bins)
        return self.guarantee(cells, sums, 2.0**-fraction)

    def epsilon(self, trees: int, features: int, bins: int, delta: float, fraction: int = 20) -> float:
        """What so many trees cost, with everything that is released."""
        return self.priced(features, bins, fraction).epsilon(trees * self.releases, delta)


def units_of(data: RankingData, unit: str) -> Whole:
    """[documents]: the number of the unit that each belongs to."""
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    if unit == "query":
        return query
    if unit == "client":
        return np.zeros(data.documents, np.int64)
    if not len(data.who):
        raise ValueError(
            f"{data.name or 'the data'} do not say who asked, so persons cannot be protected; use "
            'unit = "query" or "client"'
        )
    return np.asarray(np.unique(data.who, return_inverse=True)[1][query])


def clip_units(values: Whole, units: Whole, bound: int) -> Whole:
    """The same with every unit's sum of sizes at most the bound, by whole numbers alone."""
    sizes = np.bincount(units, weights=np.abs(values).astype(np.float64)).astype(np.int64)
    each = np.maximum(sizes, 1)[units]
    sides = np.abs(values)
    if int(sides.max(initial=0)) * bound >= 2**63:  # products that 64 bits do not hold
        smaller = (sides.astype(object) * bound // each).astype(np.int64)
    else:
        smaller = sides * np.int64(bound) // each
    return np.where(each > bound, np.sign(values) * smaller, values)


@dataclass(frozen=True)
class EdgeNoise:
    """On which grid rows are counted, how much noise is added, and which unit it protects."""

    noise: float = 5.0  # deviation, in units of what one unit can change
    unit: Literal["query", "person", "client"] = "query"
    rows: int = 100  # that all rows of a unit count for, at most
    bounds: tuple[float, float] | None = None  # of all features; None: a grid that fits all numbers
    shares: int = 1  # under a secure sum, clients whose noise adds up to what is claimed; 1: every client's own does

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf:
            raise ValueError(f"noise = {self.noise} must be a positive number")
        if not 1 <= self.rows <= MAX_ROWS:
            raise ValueError(f"rows = {self.rows}: rows of a unit count for 1 to {MAX_ROWS:,} of them")
        self.grid(1)  # refuses bounds that hold nothing, before a budget is charged
        if self.shares < 1:
            raise ValueError(f"shares = {self.shares}: without a share there is no noise; use 1 or more")

    def grid(self, features: int) -> Edges:
        """The ends of cells, which do not depend on any data."""
        if self.bounds is None:
            return grid_edges(features, MAX_BINS)
        return bounded_edges(features, *self.bounds, MAX_BINS)

    def deviation(self, features: int) -> float:
        """Of the noise that is claimed, in steps: a unit is in every feature, with at most so many rows in sum."""
        return self.noise * self.rows * ROW * math.sqrt(features)

    def guarantee(self, features: int) -> Guarantee:
        """What the edges cost, all of them together."""
        because = "every client adds discrete Gaussian noise"
        cells, deviation = features * MAX_BINS, self.deviation(features)
        if self.shares > 1:
            because = f"the shares of noise of {self.shares} clients, which do not work with the server, are all of it"
        error = gaussian_share(deviation, self.shares).log_error
        return _guarantee(self, deviation, cells, f"{because}, for all rows of one {self.unit}", 2 * cells * error)


def _guarantee(noise: TreeNoise | EdgeNoise, deviation: float, sums: int, because: str, error: float) -> Guarantee:
    """What so many sums cost together; sampling noise adds an error for each share."""
    event = ConcentratedEvent(1 / (2 * noise.noise**2))
    if noise.shares > 1:
        event = event_of_gaussian_shares(deviation, 1 / noise.noise, noise.shares, sums)
    return Guarantee("server", event, because, "round", noise.unit, "zero-out", slack=noise.shares * error)


def counted(data: RankingData, noise: EdgeNoise, grid: Edges) -> Whole:
    """[features, cells]: rows in the cells of a grid, in steps, those of every unit cut to its bound; no noise yet."""
    each = clip_units(np.full(data.documents, ROW, np.int64), units_of(data, noise.unit), noise.rows * ROW)
    columns = put_in_bins(data, grid).columns
    return np.stack([np.bincount(column, each, MAX_BINS).astype(np.int64) for column in columns])


def noised_counts(data: RankingData, noise: EdgeNoise, grid: Edges, source: Source | None = None) -> Whole:
    """What a client sends: the same with its noise."""
    law = gaussian_share(noise.deviation(grid.features), noise.shares)
    found = counted(data, noise, grid)
    return found + law.draw(found.shape, SecureSource() if source is None else source)


def estimated_edges(train: Sequence[RankingData], noise: EdgeNoise, bins: int, secure: bool = False) -> Edges:
    """Edges for several clients in this process; the caller charges them before."""
    if noise.shares > (len(train) if secure else 1):
        raise ValueError(
            f"{noise.shares} shares of noise add up only under a secure sum of as many clients, and {len(train)} take "
            "part; use shares = 1, or secure = true"
        )
    grid = noise.grid(train[0].features.shape[1])
    parts = [noised_counts(data, noise, grid) for data in train]
    total = _summed(parts) if secure else np.sum(parts, axis=0)
    wide = noise.deviation(grid.features) * math.sqrt(len(train) / noise.shares)
    return edges_of_counts(total, grid, bins, wide)


def edges_of_counts(counts: Whole, grid: Edges, bins: int, deviation: float = 0.0) -> Edges:
    """Edges on a grid between which about equally many rows lie; cells with no more than noise count as empty."""
    return Edges(
        tuple(_on_grid(row, np.array(ends), bins, deviation) for row, ends in zip(counts, grid.values, strict=True))
    )


def _on_grid(counts: Whole, ends: Reals, bins: int, deviation: float) -> tuple[float, ...]:
    counts = counts[: len(ends) + 1]
    known = np.where(counts > CERTAIN * deviation, counts, 0)
    if not known.any():  # noise alone: bins of equally many cells
        places = np.unique(np.linspace(0, len(ends), bins + 1)[1:-1].astype(np.int64))
        return tuple(ends[places[places < len(ends)]].tolist())
    filled = np.flatnonzero(known)
    last = np.arange(len(filled) - 1) if len(filled) <= bins else np.array(cut_evenly(known[filled], bins), np.int64)
    return tuple(ends[filled[last]].tolist())


def _summed(parts: Sequence[Whole]) -> Whole:
    """The sum by the protocol that hides its parts."""
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

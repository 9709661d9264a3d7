"""Bin edges estimated under noise: counts of rows in the cells of a public grid, and quantiles of what they add up to.

Nobody needs to trust anybody with values. Every client counts its rows in the cells of a grid that follows from
settings, adds noise, and the edges are made of the sum: each lies on the grid, and bins hold about equally many rows.
All rows of a unit, a query, a person or a client, count for at most so many: more of them count for less each.
A sketch of quantiles, such as KLL, would keep and send raw values of some rows, however it is noised later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.privacy.accounting import ConcentratedEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.mechanisms import event_of_gaussian_shares, gaussian_share
from fedrank.privacy.noise import SecureSource
from fedrank.trees.binning import MOST_BINS, Edges, bounded_edges, cut_evenly, grid_edges, put_in_bins
from fedrank.trees.private_growing import Reals, Whole, cut_to, units_of
from fedrank.types import Source

ROW = 2**20  # one row, in steps
MOST_ROWS = 2**20  # that a unit may count for
CERTAIN = 2.0  # deviations of noise below which a cell counts as empty
SESSION = b"fedrank edges, 1"  # of the one secure sum
BITS = 62


@dataclass(frozen=True)
class EdgeNoise:
    """On which grid rows are counted, and how much noise protects whom."""

    noise: float = 5.0  # deviation, in units of what one unit can change
    unit: Literal["query", "person", "client"] = "query"
    rows: int = 100  # that all rows of a unit count for, at most
    bounds: tuple[float, float] | None = None  # of all features; None: a grid that fits all numbers
    shares: int = 1  # under a secure sum, clients whose noise adds up to what is claimed; 1: every client's own does

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf:
            raise ValueError(f"noise = {self.noise} protects nobody or leaves nothing; use a positive number")
        if not 1 <= self.rows <= MOST_ROWS:
            raise ValueError(f"rows = {self.rows}: rows of a unit count for 1 to {MOST_ROWS:,} of them")
        self.grid(1)  # refuses bounds that hold nothing, before anybody pays
        if self.shares < 1:
            raise ValueError(f"shares = {self.shares}: nobody's noise is none; use 1 or more")

    def grid(self, features: int) -> Edges:
        """The ends of cells, which tell nothing of any data."""
        if self.bounds is None:
            return grid_edges(features, MOST_BINS)
        return bounded_edges(features, *self.bounds, MOST_BINS)

    def deviation(self, features: int) -> float:
        """Of the noise that is claimed, in steps: a unit is in every feature, with at most so many rows in sum."""
        return self.noise * self.rows * ROW * math.sqrt(features)

    def promise(self, features: int) -> Guarantee:
        """What the edges cost, all of them together."""
        event, because = ConcentratedEvent(1 / (2 * self.noise**2)), "every client adds discrete Gaussian noise"
        cells, deviation = features * MOST_BINS, self.deviation(features)
        if self.shares > 1:
            event = event_of_gaussian_shares(deviation, 1 / self.noise, self.shares, cells)
            because = f"the shares of noise of {self.shares} clients, which do not work with the server, are all of it"
        error = gaussian_share(deviation, self.shares).log_error
        return Guarantee(
            "server", event, f"{because}, for all rows of one {self.unit}", "round", self.unit, "zero-out",
            slack=2 * cells * self.shares * error,
        )  # fmt: skip


def counted(data: RankingData, noise: EdgeNoise, grid: Edges) -> Whole:
    """[features, cells]: rows in the cells of a grid, in steps, those of every unit cut to its bound; no noise yet."""
    each = cut_to(np.full(data.documents, ROW, np.int64), units_of(data, noise.unit), noise.rows * ROW)
    columns = put_in_bins(data, grid).columns
    return np.stack([np.bincount(column, each, MOST_BINS).astype(np.int64) for column in columns])


def noised_counts(data: RankingData, noise: EdgeNoise, grid: Edges, source: Source | None = None) -> Whole:
    """What a client says: the same with its noise."""
    law = gaussian_share(noise.deviation(grid.features), noise.shares)
    found = counted(data, noise, grid)
    return found + law.draw(found.shape, SecureSource() if source is None else source)


def estimated_edges(train: Sequence[RankingData], noise: EdgeNoise, bins: int, secure: bool = False) -> Edges:
    """Edges for several clients in this process; whoever calls this charges them before."""
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
    held = np.flatnonzero(known)
    last = np.arange(len(held) - 1) if len(held) <= bins else np.array(cut_evenly(known[held], bins), np.int64)
    return tuple(ends[held[last]].tolist())


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

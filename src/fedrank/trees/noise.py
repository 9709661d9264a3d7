"""Noise for trees that clients grow together, in two designs; every client adds it to its own numbers.

`histograms`: splits are chosen by noised histograms, level by level, and leaf values by noised sums. `random-splits`:
splits are random and independent of the data, and only the sums of leaves are noised (Maddock et al., CCS 2022): no
budget is spent on splits, and the noise does not grow with the number of features.

The unit is a query, a person or a client: all of its gradients together are clipped to a bound before they are added
up. It is never a row: λ-gradients are pairwise, so a row changes those of its whole query. Noise is discrete Gaussian,
on the fixed-point grid, from the system's secure source: all of it from every client, or, under secure aggregation,
distributed over the clients, where the noise of the clients that are assumed honest is enough. The number of rows in a
leaf is not released, and neither is the quality on validation queries: early stopping is not possible.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.privacy.accounting import ConcentratedEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.mechanisms import event_of_gaussian_shares, gaussian_share
from fedrank.privacy.noise import GridNoise

Whole = NDArray[np.int64]


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
        event = ConcentratedEvent(1 / (2 * self.noise**2))
        if self.shares > 1:
            event = event_of_gaussian_shares(min(self.deviations(cells, unit)), 1 / self.noise, self.shares, 2 * sums)
        error = 2 * sums * sum(law.log_error for law in self.laws(cells, unit))  # of sampling, per noisy client
        return Guarantee("server", event, because, "round", self.unit, "zero-out", slack=self.shares * error)

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

"""Growing together under differential privacy, in two designs, with noise that every client adds to its own numbers.

`histograms`: splits are chosen by noised histograms, level by level, and leaves by noised sums. `random-splits`: splits
are drawn by chance, without a look at any data, and only the sums of leaves are noised (Maddock et al., CCS 2022): no
budget goes to splits, and the noise does not grow with the number of features.

The unit is a query, a person or a client: all of its gradients together are cut to a bound before they are added up. It
is never a row: λ-gradients are pairwise, so that a row changes those of its whole query. Noise is discrete Gaussian, on
the grid of fixed point, from the system's secure source: all of it from every client, or, under a secure sum, a share
from each of which so many add up to it as are surely honest. How many rows a leaf has is never told, and neither is how
well validation queries are ranked: forests do not stop early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.privacy.accounting import ConcentratedEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.mechanisms import event_of_gaussian_shares, gaussian_share
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.seeds import rng_for
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, put_in_bins
from fedrank.trees.boosters import Grower
from fedrank.trees.cuts import LeafCut, Parted, Sums, text_of
from fedrank.trees.growing_loop import MOST_ATTEMPTS, DroppedOut
from fedrank.types import Source

Whole = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class TreeNoise:
    """How much noise protects whom."""

    design: Literal["histograms", "random-splits"] = "random-splits"
    unit: Literal["query", "person", "client"] = "query"  # what is protected, all of it together
    noise: float = 5.0  # deviation of the noise of one release, in units of what one unit can change
    clip: float = 1.0  # largest sum of |gradients| of a unit
    clip_hessian: float = 0.5  # largest sum of hessians of a unit
    depth: int = 3  # of every tree
    shares: int = 1  # under a secure sum, clients whose noise adds up to what is claimed; 1: every client's own does

    def __post_init__(self) -> None:
        if self.shares < 1:
            raise ValueError(f"shares = {self.shares}: nobody's noise is none; use 1 or more")
        for name, value in (("noise", self.noise), ("clip", self.clip), ("clip_hessian", self.clip_hessian)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} = {value} protects nobody or leaves nothing; use a positive number")
        if not 1 <= self.depth <= 8:
            raise ValueError(f"depth = {self.depth}: trees that are grown under noise have 1 to 8 levels; use about 3")

    @property
    def releases(self) -> int:
        """That a tree makes, each of which costs the same."""
        return 1 if self.design == "random-splits" else self.depth + 1

    def deviations(self, cells: int, unit: float) -> tuple[float, float]:
        """Of the noise that is claimed, on gradients and hessians, where a unit is in `cells` sums at once.

        They are in steps of fixed point.
        In units of its bound, a client's gradients in one of these change by at most 1, and so do its hessians. So the
        change of all has an L2 norm of at most the root of 2 x cells.
        """
        wide = self.noise * math.sqrt(2 * cells)
        return wide * _steps(self.clip, unit), wide * _steps(self.clip_hessian, unit)

    def laws(self, cells: int, unit: float) -> tuple[GridNoise, GridNoise]:
        """Of what one client adds to its gradients and hessians."""
        gradients, hessians = self.deviations(cells, unit)
        return gaussian_share(gradients, self.shares), gaussian_share(hessians, self.shares)

    def spread(self, clients: int) -> float:
        """By how much the noise in a sum of so many clients is wider than what is claimed."""
        return math.sqrt(clients / self.shares)

    def promise(self, cells: int, sums: int, unit: float) -> Guarantee:
        """What one release costs: cells as above, and how many sums it has in all."""
        event = ConcentratedEvent(1 / (2 * self.noise**2))
        because = "every client adds discrete Gaussian noise to what it sends"
        if self.shares > 1:
            event = event_of_gaussian_shares(min(self.deviations(cells, unit)), 1 / self.noise, self.shares, 2 * sums)
            because = (
                "every client adds a share of discrete Gaussian noise before a secure sum, and the shares of "
                f"{self.shares} clients are all of it: it holds if so many do not work with the server"
            )
        return Guarantee(
            "server",
            event,
            f"{because}, for all that one {self.unit} does, never for one row: its gradient depends on all rows of its "
            "query",
            "round",
            self.unit,
            "zero-out",
            slack=2 * sums * self.shares * sum(law.log_error for law in self.laws(cells, unit)),
        )

    def priced(self, features: int, bins: int, fraction: int = 20) -> Guarantee:
        """What one release of any tree costs, at most."""
        cells = 1 if self.design == "random-splits" else features
        sums = 2**self.depth * (1 if self.design == "random-splits" else features * bins)
        return self.promise(cells, sums, 2.0**-fraction)

    def epsilon(self, trees: int, features: int, bins: int, delta: float, fraction: int = 20) -> float:
        """What so many trees cost, all that anybody sees of them."""
        return self.priced(features, bins, fraction).epsilon(trees * self.releases, delta)


def _steps(bound: float, unit: float) -> int:
    return max(1, math.floor(bound / unit))


class PrivateRowStore:
    """Rows on which trees grow under noise: nothing leaves but noised sums."""

    def __init__(
        self, train: RankingData, edges: Edges, rules: Grower, noise: TreeNoise, source: Source | None = None
    ) -> None:
        if rules.fraction > 24:
            raise ValueError(f"fraction = {rules.fraction}: gradients that are cut to a bound fit 24 bits or fewer")
        self.train, self.edges, self.rules, self.noise = train, edges, rules, noise
        self.unit = 2.0**-rules.fraction
        self.source = SecureSource() if source is None else source
        self.binned = put_in_bins(train, edges)
        self.scores = np.zeros(train.documents)
        self.leaf = np.zeros(train.documents, np.int32)
        self._pairs = np.zeros((train.documents, 2), np.int64)
        self._units = units_of(train, noise.unit)
        self._grades = np.ascontiguousarray(train.grades, np.int8)

    def begin(self) -> None:
        """Gradients for one more tree, those of every unit cut to its bound."""
        from fedrank.kernels.grow import lambda_gradients

        gradients, hessians = np.zeros(self.train.documents), np.zeros(self.train.documents)
        lambda_gradients(
            self.scores, self.scores.astype(np.float32).view(np.int32), self._grades, self.train.offsets,
            np.arange(self.train.queries), self.rules.lambda_norm, self.rules.lambda_truncation, gradients, hessians,
        )  # fmt: skip
        for column, values, bound in ((0, gradients, self.noise.clip), (1, hessians, self.noise.clip_hessian)):
            # Trees come from a server, and sums of its leaves may run over: what is then no number would pass the cut.
            whole = np.rint(np.nan_to_num(values, posinf=0.0, neginf=0.0) / self.unit).astype(np.int64)
            self._pairs[:, column] = cut_to(whole, self._units, _steps(bound, self.unit))
        self.leaf[:] = 0

    def histograms(self, leaves: int) -> Whole:
        """[leaves, features, bins, 2]: noised sums of gradients and hessians."""
        from fedrank.kernels.grow import BINS, add_histogram

        features, bins = self.edges.features, self.edges.bins
        found = np.empty((leaves, features, bins, 2), np.int64)
        words = np.arange(self.binned.words.shape[1])
        for leaf in range(leaves):
            packed = np.zeros((len(words), 8 * BINS, 2), np.int64)
            rows = np.flatnonzero(self.leaf == leaf).astype(np.int32)
            add_histogram(self.binned.words, words, rows, self._pairs, packed)
            found[leaf] = packed.reshape(-1, BINS, 2)[:features, :bins]
        return self._noised(found, features)

    def sums(self, leaves: int) -> Whole:
        """[leaves, 2]: noised sums of gradients and hessians."""
        found = np.zeros((leaves, 2), np.int64)
        np.add.at(found, self.leaf, self._pairs)
        return self._noised(found, 1)

    def cut(self, cut: LeafCut) -> None:
        inside = self.leaf == cut.leaf
        self.leaf[inside & (self.binned.columns[cut.feature] > cut.bin)] = cut.new

    def end(self, values: Reals) -> None:
        self.scores += values[self.leaf]

    def add(self, tree: Trees) -> None:
        """A tree that was grown before."""
        tree.add(self.train.features, self.scores)

    def _noised(self, found: Whole, cells: int) -> Whole:
        for column, law in enumerate(self.noise.laws(cells, self.unit)):
            found[..., column] += law.draw(found.shape[:-1], self.source)
        return found


def units_of(data: RankingData, unit: str) -> Whole:
    """[documents]: the number of the unit that each belongs to."""
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    if unit == "query":
        return query
    if unit == "client":
        return np.zeros(data.documents, np.int64)
    if not len(data.who):
        raise ValueError(
            f"{data.name or 'the data'} do not say who asked, so that nobody can be protected as a person; use "
            'unit = "query" or "client"'
        )
    return np.asarray(np.unique(data.who, return_inverse=True)[1][query])


def cut_to(values: Whole, units: Whole, bound: int) -> Whole:
    """The same with every unit's sum of sizes at most the bound, by whole numbers alone."""
    sizes = np.bincount(units, weights=np.abs(values).astype(np.float64)).astype(np.int64)
    each = np.maximum(sizes, 1)[units]
    sides = np.abs(values)
    if int(sides.max(initial=0)) * bound >= 2**63:  # products that 64 bits do not hold
        smaller = (sides.astype(object) * bound // each).astype(np.int64)
    else:
        smaller = sides * np.int64(bound) // each
    return np.where(each > bound, np.sign(values) * smaller, values)


class Noised(Protocol):
    """All who hold rows, as one: what they say is noised where it is held, and added up."""

    @property
    def clients(self) -> int:
        """Whose noise is in a sum."""

    def begin(self, tree: int) -> None:
        """One more tree; called again where it is begun again."""

    def cut(self, cut: LeafCut) -> None: ...

    def histograms(self, leaves: int) -> Whole: ...

    def sums(self, leaves: int) -> Whole: ...

    def end(self, values: Reals) -> None: ...


@dataclass(frozen=True)
class NoisedHere:
    """Holders in this process, whose noised sums are added up in the open."""

    holders: Sequence[PrivateRowStore]
    charge: Callable[[int], None] = lambda tree: None  # called before anything of a tree leaves anybody

    @property
    def clients(self) -> int:
        return len(self.holders)

    def begin(self, tree: int) -> None:
        self.charge(tree)
        for holder in self.holders:
            holder.begin()

    def cut(self, cut: LeafCut) -> None:
        for holder in self.holders:
            holder.cut(cut)

    def histograms(self, leaves: int) -> Whole:
        return np.asarray(np.sum([holder.histograms(leaves) for holder in self.holders], axis=0))

    def sums(self, leaves: int) -> Whole:
        return np.asarray(np.sum([holder.sums(leaves) for holder in self.holders], axis=0))

    def end(self, values: Reals) -> None:
        for holder in self.holders:
            holder.end(values)


def grow_private(
    holders: Sequence[PrivateRowStore],
    rules: Grower,
    edges: Edges,
    noise: TreeNoise,
    seed: int,
    first: int = 0,  # trees that are there already
    charge: Callable[[int], None] = lambda tree: None,  # called before anything of a tree leaves anybody
) -> Iterator[str]:
    """Trees of holders in this process."""
    return grow_noised(NoisedHere(holders, charge), rules, edges, noise, seed, first)


def grow_noised(
    crowd: Noised, rules: Grower, edges: Edges, noise: TreeNoise, seed: int, first: int = 0
) -> Iterator[str]:
    """Trees as they stand in a text model; noise makes every forest another one."""
    for number in range(first, rules.trees):
        yield _at_last(crowd, rules, edges, noise, seed, number)


def _at_last(crowd: Noised, rules: Grower, edges: Edges, noise: TreeNoise, seed: int, number: int) -> str:
    """One tree, begun again where somebody dropped out."""
    for _ in range(MOST_ATTEMPTS):
        try:
            return _grown(crowd, rules, edges, noise, seed, number)
        except DroppedOut:
            continue
    raise ValueError(
        f"tree {number + 1} was begun {MOST_ATTEMPTS} times, and each time somebody dropped out; the forest so far "
        "stays, go on when all are there"
    )


def _grown(crowd: Noised, rules: Grower, edges: Edges, noise: TreeNoise, seed: int, number: int) -> str:
    unit = 2.0**-rules.fraction
    crowd.begin(number)
    if noise.design == "random-splits":
        parted = _random(edges, noise, seed, number)
        for one in parted:
            crowd.cut(one.cut)
    else:
        parted = _by_histograms(crowd, edges, noise, unit)
    sums = crowd.sums(len(parted) + 1)
    values = rules.rate * _newton(sums, noise, crowd.clients, rules.l2, unit)
    crowd.end(values)
    known = [Sums(int(gradient), int(hessian), 0) for gradient, hessian in sums]
    return text_of(parted, known, values, edges, unit)


def _newton(sums: Whole, noise: TreeNoise, clients: int, l2: float, unit: float) -> Reals:
    """Newton's step of noised sums; hessians count for at least twice their noise, so that it is never wild."""
    least = 2 * noise.deviations(1, unit)[1] * noise.spread(clients) * unit
    return np.asarray(-sums[:, 0] * unit / (np.maximum(sums[:, 1] * unit, least) + l2))


def _random(edges: Edges, noise: TreeNoise, seed: int, number: int) -> list[Parted]:
    """A whole tree by chance: features that have edges, and any of their edges."""
    rng = rng_for(seed, "random splits", number)
    usable = np.flatnonzero(edges.counts)
    parted: list[Parted] = []
    for _ in range(noise.depth):
        for leaf in range(len(parted) + 1):
            feature = int(rng.choice(usable))
            cut = LeafCut(leaf, len(parted) + 1, feature, int(rng.integers(edges.counts[feature])))
            parted.append(Parted(cut, 0.0, Sums(0, 0, 0)))
    return parted


def _by_histograms(crowd: Noised, edges: Edges, noise: TreeNoise, unit: float) -> list[Parted]:
    """Level by level, every leaf where its noised histogram gains most."""
    parted: list[Parted] = []
    inner = np.arange(edges.bins)[None, :] < edges.counts[:, None]  # after which bins there is an edge
    wide = noise.spread(crowd.clients) * math.sqrt(edges.bins)
    least = 2 * noise.deviations(edges.features, unit)[1] * wide * unit
    for _ in range(noise.depth):
        leaves = len(parted) + 1
        found = crowd.histograms(leaves) * unit
        for leaf in range(leaves):
            left = np.cumsum(found[leaf], axis=1)
            whole = left[:, -1:, :]
            gain = _fall(left, least) + _fall(whole - left, least) - _fall(whole, least)
            feature, place = np.unravel_index(np.argmax(np.where(inner, gain, -np.inf)), inner.shape)
            cut = LeafCut(leaf, len(parted) + 1, int(feature), int(place))
            parted.append(Parted(cut, float(gain[feature, place]), Sums(0, 0, 0)))
            crowd.cut(cut)
    return parted


def _fall(sums: Reals, least: float) -> Reals:
    return np.asarray(sums[..., 0] ** 2 / np.maximum(sums[..., 1], least))

"""One forest that clients grow together: what they agree on, and the loop that decides its trees.

`grow_forest` uses a `ClientGroup`: row stores in this process (`LocalClients`), or clients that are called over a
network (`TreeServer` of growing_protocol.py). Without noise the forest is the same to the last bit, whichever client
has which queries.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, quantile_edges
from fedrank.trees.boosters import BoosterState, Grower, NothingToSplit, Rows, SelectiveGrower, Step
from fedrank.trees.lightgbm_training import STUMP, check_trainable
from fedrank.trees.noise import TreeNoise, Whole
from fedrank.trees.releases import Layout
from fedrank.trees.row_store import PARTS, PrivateRowStore, RowStore, Voter, Votes, drawn_features, elected
from fedrank.trees.split_finder import Features, GrownTree, LeafSplit, MadeSplit, Packed, Reals, SplitFinder, Sums, Wish
from fedrank.types import Source

VERSION = 2  # of the messages
MAX_ATTEMPTS = 10  # to grow one tree
_RULES = {Grower: "Grower", SelectiveGrower: "SelectiveGrower"}  # hashed into the name of a run: never rename a text


class DroppedOut(Exception):
    """A client that participated in a tree is gone."""


@dataclass(frozen=True)
class GrowPlan:
    """The parameters that all clients of a forest agree on."""

    rules: Grower
    edges: Edges
    seed: int
    clients: tuple[int, ...]
    secure: bool = False  # secure aggregation: the server sees sums over all clients and no client's own numbers
    bits: int = 62  # of a number under secure aggregation
    vote: int = 0  # features per leaf for which each client votes before histograms are sent; 0: all are sent
    noise: TreeNoise | None = None  # None: releases have no noise

    def __post_init__(self) -> None:
        if not self.clients or len(set(self.clients)) != len(self.clients) or min(self.clients) < 0:
            raise ValueError(f"clients must be distinct numbers from 0 (got {self.clients})")
        if self.secure and len(self.clients) < 2:
            raise ValueError("secure aggregation needs at least 2 clients: the sum of one is its own numbers")
        if self.vote < 0:
            raise ValueError(f"vote must be 0 or more (got {self.vote}); 0 sends all features")
        if self.noise is not None:
            self._check_shares(self.noise.shares)

    def _check_shares(self, shares: int) -> None:
        if shares > 1 and not self.secure:
            raise ValueError(
                f"distributed noise of {shares} clients requires secure aggregation: without it the server sees each "
                "client's numbers with too little noise; use shares = 1, or secure = true"
            )
        if shares > len(self.clients):
            raise ValueError(
                f"the noise of {shares} clients is needed, but only {len(self.clients)} participate; use fewer "
                "shares, or more clients"
            )

    @cached_property
    def run(self) -> bytes:
        """16 bytes that identify what was agreed on: messages of another plan are rejected."""
        agreed = asdict(self.rules) | {"rules": _RULES[type(self.rules)], "seed": self.seed, "version": VERSION}
        agreed |= {"clients": self.clients, "secure": self.secure, "bits": self.bits}
        agreed |= {"vote": self.vote, "dropouts": "again"}  # the second one is kept from earlier versions
        content = json.dumps(agreed, sort_keys=True).encode() + self.edges.digest
        name = hashlib.blake2b(content, digest_size=16).digest()
        if self.noise is None:
            return name
        noise = json.dumps(asdict(self.noise), sort_keys=True).encode()
        return hashlib.blake2b(name + noise, digest_size=16).digest()

    @property
    def elects(self) -> bool:
        """Whether clients vote; voting for all features would save nothing."""
        return 0 < self.vote < len(self.features(0))

    def features(self, tree: int) -> Features:
        """The features by which a tree may split."""
        return drawn_features(self.edges.features, self.rules.feature_share, self.seed, tree)

    def layout(self, tree: int, shift: int) -> Layout:
        """The bins of a tree's histograms."""
        return Layout(self.edges, self.features(tree), shift)

    def session(self, tree: int, attempt: int) -> bytes:
        """Identifies one series of secure aggregations."""
        return self.run + tree.to_bytes(8, "little") + attempt.to_bytes(8, "little")

    def store(
        self, train: RankingData, validation: RankingData | None = None, source: Source | None = None
    ) -> RowStore:
        """The rows of one client; with noise, no validation queries are used."""
        if self.noise is None:
            return RowStore(train, self.edges, self.rules, self.seed, validation)
        return PrivateRowStore(train, self.edges, self.rules, self.noise, source)


class ClientGroup(Protocol):
    """All clients as one: their releases are added up."""

    @property
    def plan(self) -> GrowPlan: ...

    @property
    def rows(self) -> int:
        """The number of rows that they announced together; 0 if they do not announce them."""

    @property
    def present(self) -> int:
        """The number of clients that participate in the current tree."""

    def begin(self, tree: int, shift: int) -> None:
        """Start a tree; called again when it is restarted."""

    def split(self, split: LeafSplit) -> None:
        """Split a leaf."""

    def histogram(self, leaf: int) -> Packed:
        """Of the root, or of the leaf that the last split requested."""

    def votes(self, leaves: tuple[int, ...]) -> Votes:
        """For features of the root, or of both parts of the leaf that was split last."""

    def elected(self, wishes: Sequence[Wish]) -> list[Packed]:
        """Histograms of some features of the leaves of the last vote."""

    def noised(self, number: int) -> Whole:
        """A release of a tree with noise: see `PrivateRowStore.released`."""

    def end(self, values: Reals) -> tuple[int, int]:
        """Finish a tree; the sum of nDCG@10 over validation queries as an integer, and the number of queries."""


class LocalClients:
    """Row stores in this process, whose releases are added up without secure aggregation."""

    def __init__(
        self,
        plan: GrowPlan,
        stores: Sequence[RowStore],
        charge: Callable[[int], None] = lambda tree: None,  # called before anything of a tree is released
    ) -> None:
        self.plan, self.stores, self.charge = plan, stores, charge
        self.voters = [Voter(store, plan.vote, len(stores)) for store in stores]
        self.chosen: list[Rows | None] = [None] * len(stores)  # rows on which trees are grown; None: all
        self.rows, self.present = sum(store.train.documents for store in stores), len(stores)

    def begin(self, tree: int, shift: int) -> None:
        self.charge(tree)
        for store, kept in zip(self.stores, self.chosen, strict=True):
            store.begin(tree, shift, kept)

    def split(self, split: LeafSplit) -> None:
        for store in self.stores:
            store.split(split)

    def histogram(self, leaf: int) -> Packed:
        return _added(store.histogram(leaf) for store in self.stores)

    def votes(self, leaves: tuple[int, ...]) -> Votes:
        return np.asarray(np.sum([voter.ballots(leaves) for voter in self.voters], axis=0))

    def elected(self, wishes: Sequence[Wish]) -> list[Packed]:
        return [_added(voter.histogram(leaf).copy() for voter in self.voters) for leaf, _ in wishes]

    def noised(self, number: int) -> Whole:
        return _added(store.released(number) for store in self.stores if isinstance(store, PrivateRowStore))

    def end(self, values: Reals) -> tuple[int, int]:
        for store in self.stores:
            store.end(values)
        found = [store.quality() for store in self.stores]
        return sum(total for total, _ in found), sum(counted for _, counted in found)

    def add(self, trees: Iterable[str]) -> None:
        """Add trees that were grown before."""
        for text in trees:
            tree = Trees.read([text])
            for store in self.stores:
                store.add(tree)


def grow_alone(
    rules: Grower,
    train: RankingData,
    validation: RankingData | None,
    seed: int,
    past: BoosterState,
    edges: Edges | None = None,  # None: from the training data
) -> Iterator[Step]:
    """The forest of one client that has all rows."""
    check_trainable(train)
    rules.check(train)
    if rules.is_over(list(past.validation)):
        return
    plan = GrowPlan(rules, quantile_edges(train, rules.bins) if edges is None else edges, seed, (0,))
    store = plan.store(train, validation)
    clients = LocalClients(plan, [store])
    known = rules.restart(len(past.trees))
    clients.add(past.trees[:known])
    choice = None

    def choose(number: int) -> None:
        nonlocal choice
        choice = rules.choice(number, train, store.scores, seed)
        clients.chosen = clients.chosen if choice is None else [choice]

    for number, (text, quality) in enumerate(grow_forest(clients, past, choose), start=known):
        if number >= len(past.trees):
            yield Step(text, Trees.read([text]), quality, choice)


def grow_forest(
    clients: ClientGroup,
    past: BoosterState = BoosterState(),  # noqa: B008 (frozen); the clients already have its trees
    before: Callable[[int], None] = lambda number: None,  # each tree
) -> Iterator[tuple[str, float]]:
    """Trees in LightGBM's format, each with nDCG@10 on the validation queries; NaN where it is unknown.

    It starts where rows were selected last, which may be before the end of its past.
    """
    rules, edges = clients.plan.rules, clients.plan.edges
    shift = clients.rows.bit_length()  # bits of the number of rows in a histogram
    curve = list(past.validation)
    if rules.is_over(curve):
        return
    for number in range(rules.restart(len(past.trees)), rules.trees):
        before(number)
        tree = _grown(clients, number, shift)
        if not tree.splits:
            if number == 0:
                raise NothingToSplit(
                    "no split improves on the same score for all documents; lower min_data_in_leaf = "
                    f"{rules.min_data_in_leaf} or min_sum_hessian = {rules.min_sum_hessian}, or check whether the "
                    "features separate documents"
                )
            if not rules.is_random():
                return
        total, counted = clients.end(tree.values if tree.splits else np.zeros(1))
        quality = total / PARTS / counted if counted else float("nan")
        if number >= len(past.trees):
            curve.append(quality)
        yield tree.text(edges, 2.0**-rules.fraction) if tree.splits else STUMP, quality
        if rules.is_over(curve) and number >= len(past.trees):
            return


def _grown(clients: ClientGroup, number: int, shift: int) -> GrownTree:
    """One tree, restarted where a client dropped out."""
    noise = clients.plan.noise
    for _ in range(MAX_ATTEMPTS):
        try:
            clients.begin(number, shift)
            if noise is not None:
                return _with_noise(clients, noise, number)
            if clients.plan.elects:
                return _with_votes(clients, number, shift)
            return _leaf_by_leaf(clients, number, shift)
        except DroppedOut:
            continue
    raise ValueError(
        f"tree {number + 1} was started {MAX_ATTEMPTS} times, and each time a client dropped out; the trees so far "
        "are saved; continue when all clients are available"
    )


def _leaf_by_leaf(clients: ClientGroup, number: int, shift: int) -> GrownTree:
    """Best-first growth: always split the leaf with the largest gain."""
    plan = clients.plan
    finder = SplitFinder(plan.rules, plan.edges, plan.features(number), shift, clients.histogram(0))
    while (split := finder.next_split()) is not None:
        clients.split(split)
        if split.wanted >= 0:
            finder.take([(split.wanted, finder.known)], [clients.histogram(split.wanted)])
    return finder.tree()


def _with_votes(clients: ClientGroup, number: int, shift: int) -> GrownTree:
    """The same, with leaves split by the features with the most votes."""
    plan, features = clients.plan, clients.plan.features(number)
    [votes] = clients.votes((0,))
    chosen = elected(votes, features, plan.vote)
    finder = SplitFinder(plan.rules, plan.edges, chosen, shift, clients.elected([(0, chosen)])[0])
    while (split := finder.next_split()) is not None:
        clients.split(split)
        if split.wanted >= 0:
            both = clients.votes((split.leaf, split.new))
            wishes = finder.wishes([elected(votes, features, plan.vote) for votes in both])
            finder.take(wishes, clients.elected(wishes))
    return finder.tree()


def _with_noise(clients: ClientGroup, noise: TreeNoise, number: int) -> GrownTree:
    """Grow level by level, with noised histograms or random splits; leaf values are Newton steps of noised sums."""
    plan = clients.plan
    rules, unit = plan.rules, 2.0**-plan.rules.fraction
    rng = rng_for(plan.seed, "random splits", number)
    splits: list[MadeSplit] = []
    for level in range(noise.depth):
        leaves = len(splits) + 1
        found = clients.noised(level) * unit if noise.design == "histograms" else None
        for leaf in range(leaves):
            if found is None:
                feature, bin, gain = *_random_split(plan.edges, rng), 0.0
            else:
                feature, bin, gain = _noised_split(found[leaf], plan.edges, noise, clients.present, unit)
            split = LeafSplit(leaf, len(splits) + 1, feature, bin)
            splits.append(MadeSplit(split, gain, Sums(0, 0, 0)))
            clients.split(split)
    sums = clients.noised(noise.releases - 1)
    # Hessians count as at least twice their noise, which bounds the step.
    least = 2 * noise.deviations(1, unit)[1] * noise.spread(clients.present) * unit
    values = rules.rate * (-sums[:, 0] * unit / (np.maximum(sums[:, 1] * unit, least) + rules.l2))
    return GrownTree(splits, [Sums(int(gradient), int(hessian), 0) for gradient, hessian in sums], values)


def _random_split(edges: Edges, rng: np.random.Generator) -> tuple[int, int]:
    """A feature that has edges, and one of its edges: independent of all data."""
    feature = int(rng.choice(np.flatnonzero(edges.counts)))
    return feature, int(rng.integers(edges.counts[feature]))


def _noised_split(
    histogram: Reals, edges: Edges, noise: TreeNoise, clients: int, unit: float
) -> tuple[int, int, float]:
    """Feature, bin and gain of the best split of a leaf by its noised histogram [features, bins, 2]."""
    wide = noise.spread(clients) * math.sqrt(edges.bins)
    least = 2 * noise.deviations(edges.features, unit)[1] * wide * unit

    def fall(sums: Reals) -> Reals:
        return np.asarray(sums[..., 0] ** 2 / np.maximum(sums[..., 1], least))

    left = np.cumsum(histogram, axis=1)
    whole = left[:, -1:, :]
    inner = np.arange(edges.bins)[None, :] < edges.counts[:, None]  # bins that are followed by an edge
    gain = fall(left) + fall(whole - left) - fall(whole)
    feature, bin = np.unravel_index(np.argmax(np.where(inner, gain, -np.inf)), inner.shape)
    return int(feature), int(bin), float(gain[feature, bin])


def _added(parts: Iterator[Packed]) -> Packed:
    total = next(parts)
    for part in parts:
        total += part
    return total

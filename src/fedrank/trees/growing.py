"""One forest that clients grow together: what they agree on, and the loop that decides its trees.

`grow_forest` talks to a `ClientGroup`: row stores in this process (`LocalClients`), or clients that are called over a
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
from typing import Literal, Protocol

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.seeds import rng_for
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, quantile_edges
from fedrank.trees.boosters import Grower, NothingToSplit, Past, Rows, SelectiveGrower, Step
from fedrank.trees.lightgbm_training import STUMP, check_trainable
from fedrank.trees.noise import TreeNoise, Whole
from fedrank.trees.releases import Layout
from fedrank.trees.row_store import PARTS, PrivateRowStore, RowStore, Voter, Votes, drawn_features, elected
from fedrank.trees.split_finder import Features, GrownTree, LeafSplit, MadeSplit, Packed, Reals, SplitFinder, Sums, Wish
from fedrank.types import Source

VERSION = 2  # of the messages
MAX_ATTEMPTS = 10  # to grow one tree
_RULES = {Grower: "Grower", SelectiveGrower: "SelectiveGrower"}  # in the name of a run: never rename a text


class DroppedOut(Exception):
    """A client that took part in a tree is gone."""


@dataclass(frozen=True)
class GrowPlan:
    """What all clients of a forest agree on."""

    rules: Grower
    edges: Edges
    seed: int
    clients: tuple[int, ...]
    secure: bool = False  # secure aggregation: the server sees sums over all clients and no client's own numbers
    bits: int = 62  # of a number under secure aggregation
    dropouts: Literal["again", "continue"] = "again"  # what becomes of a tree when a client drops out
    vote: int = 0  # for how many features of a leaf each votes, before histograms of some are sent; 0: all are sent
    noise: TreeNoise | None = None  # None: what is released has no noise

    def __post_init__(self) -> None:
        if not self.clients or len(set(self.clients)) != len(self.clients) or min(self.clients) < 0:
            raise ValueError(f"clients {self.clients}: give each a number of its own, from 0")
        if self.secure and len(self.clients) < 2:
            raise ValueError("one client alone is its own sum: a secure sum hides nothing; use two or more clients")
        if self.secure and self.dropouts != "again":
            raise ValueError('dropouts = "continue" shows under a secure sum what the missing client has; use "again"')
        if self.vote < 0:
            raise ValueError(f"vote = {self.vote} is no number of features; use 1 or more, or 0 to send all features")
        if self.vote and self.dropouts != "again":
            raise ValueError(
                f'vote = {self.vote}, dropouts = "continue": leaves would be counted anew without those who voted; use '
                '"again", or vote = 0'
            )
        if self.noise is not None:
            self._check_shares(self.noise.shares)

    def _check_shares(self, shares: int) -> None:
        if shares > 1 and not self.secure:
            raise ValueError(
                f"{shares} shares of noise add up only under a secure sum, and without one a server sees each with too "
                "little; use shares = 1, or secure = true"
            )
        if shares > len(self.clients):
            raise ValueError(
                f"the noise of {shares} clients is needed and {len(self.clients)} take part, which would be too "
                "little; use fewer shares, or more clients"
            )

    @cached_property
    def run(self) -> bytes:
        """16 bytes that name what was agreed on: messages of another plan are refused."""
        agreed = asdict(self.rules) | {"rules": _RULES[type(self.rules)], "seed": self.seed, "version": VERSION}
        agreed |= {"clients": self.clients, "secure": self.secure, "bits": self.bits, "dropouts": self.dropouts}
        agreed |= {"vote": self.vote}
        content = json.dumps(agreed, sort_keys=True).encode() + self.edges.digest
        name = hashlib.blake2b(content, digest_size=16).digest()
        if self.noise is None:
            return name
        noise = json.dumps(asdict(self.noise), sort_keys=True).encode()
        return hashlib.blake2b(name + noise, digest_size=16).digest()

    @property
    def elects(self) -> bool:
        """Whether clients vote; if each voted for all features, nothing would be saved."""
        return 0 < self.vote < len(self.features(0))

    def features(self, tree: int) -> Features:
        """Those by which a tree may split."""
        return drawn_features(self.edges.features, self.rules.feature_share, self.seed, tree)

    def layout(self, tree: int, shift: int) -> Layout:
        """The bins of a tree's histograms."""
        return Layout(self.edges, self.features(tree), shift)

    def session(self, tree: int, attempt: int) -> bytes:
        """Names one series of secure sums."""
        return self.run + tree.to_bytes(8, "little") + attempt.to_bytes(8, "little")

    def store(
        self, train: RankingData, validation: RankingData | None = None, source: Source | None = None
    ) -> RowStore:
        """The rows of one client; under noise no validation queries are used."""
        if self.noise is None:
            return RowStore(train, self.edges, self.rules, self.seed, validation)
        return PrivateRowStore(train, self.edges, self.rules, self.noise, source)


class ClientGroup(Protocol):
    """All clients as one: what they release is added up."""

    @property
    def plan(self) -> GrowPlan: ...

    @property
    def rows(self) -> int:
        """How many rows they announced together; 0 if they do not announce them."""

    @property
    def present(self) -> int:
        """How many clients take part in the tree that grows."""

    def begin(self, tree: int, shift: int) -> None:
        """Start a tree; called again where it is started again."""

    def split(self, split: LeafSplit) -> None:
        """Divide a leaf."""

    def histogram(self, leaf: int) -> Packed:
        """Of the root, of the leaf that the last split wanted, or of any leaf after a client dropped out."""

    def votes(self, leaves: tuple[int, ...]) -> Votes:
        """For features of the root, or of both parts of the leaf that was split last."""

    def elected(self, wishes: Sequence[Wish]) -> list[Packed]:
        """Histograms of some features of leaves that were voted for last."""

    def noised(self, number: int) -> Whole:
        """A release of a tree under noise: see `PrivateRowStore.released`."""

    def end(self, values: Reals) -> tuple[int, int]:
        """Finish a tree; the sum of nDCG@10 over validation queries in whole parts, and how many count."""


class LocalClients:
    """Row stores in this process, whose releases are added up in the open."""

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
        """Trees that were grown before."""
        for text in trees:
            tree = Trees.read([text])
            for store in self.stores:
                store.add(tree)


def grow_alone(
    rules: Grower,
    train: RankingData,
    validation: RankingData | None,
    seed: int,
    past: Past,
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
    past: Past = Past(),  # noqa: B008 (frozen); the clients have its trees already
    before: Callable[[int], None] = lambda number: None,  # each tree
) -> Iterator[tuple[str, float]]:
    """Trees in LightGBM's format, each with nDCG@10 on the validation queries so far; NaN where it is unknown.

    It begins where rows were chosen last, which may be before the end of its past.
    """
    rules, edges = clients.plan.rules, clients.plan.edges
    shift = clients.rows.bit_length()  # bits that the number of rows takes in a histogram
    curve = list(past.validation)
    if rules.is_over(curve):
        return
    for number in range(rules.restart(len(past.trees)), rules.trees):
        before(number)
        tree = _grown(clients, number, shift)
        if not tree.splits:
            if number == 0:
                raise NothingToSplit(
                    "no split improves on giving all documents the same score; lower min_data_in_leaf = "
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
    """One tree, started again where a client dropped out."""
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
        f"tree {number + 1} was begun {MAX_ATTEMPTS} times, and each time a client dropped out; the forest so far "
        "stays, continue when all are there"
    )


def _leaf_by_leaf(clients: ClientGroup, number: int, shift: int) -> GrownTree:
    """Always the leaf whose split gains most; the rest goes on where a client drops out and the plan says so."""
    plan = clients.plan
    finder = SplitFinder(plan.rules, plan.edges, plan.features(number), shift, clients.histogram(0))
    while (split := finder.next_split()) is not None:
        try:
            clients.split(split)
            if split.wanted >= 0:
                finder.take([(split.wanted, finder.known)], [clients.histogram(split.wanted)])
        except DroppedOut:
            if plan.dropouts == "again":
                raise
            finder.recount([clients.histogram(leaf) for leaf in range(len(finder.leaves))])
    return finder.tree()


def _with_votes(clients: ClientGroup, number: int, shift: int) -> GrownTree:
    """The same, with leaves split by features that have most votes."""
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
    """Leaves level by level, by noised histograms or by chance; their values are Newton's step of noised sums."""
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
    # Hessians count for at least twice their noise, which bounds the step.
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
    """Feature, bin and gain of the split of a leaf that gains most by its noised histogram [features, bins, 2]."""
    wide = noise.spread(clients) * math.sqrt(edges.bins)
    least = 2 * noise.deviations(edges.features, unit)[1] * wide * unit

    def fall(sums: Reals) -> Reals:
        return np.asarray(sums[..., 0] ** 2 / np.maximum(sums[..., 1], least))

    left = np.cumsum(histogram, axis=1)
    whole = left[:, -1:, :]
    inner = np.arange(edges.bins)[None, :] < edges.counts[:, None]  # after which bins there is an edge
    gain = fall(left) + fall(whole - left) - fall(whole)
    feature, bin = np.unravel_index(np.argmax(np.where(inner, gain, -np.inf)), inner.shape)
    return int(feature), int(bin), float(gain[feature, bin])


def _added(parts: Iterator[Packed]) -> Packed:
    total = next(parts)
    for part in parts:
        total += part
    return total

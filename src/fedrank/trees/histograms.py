"""One forest that clients grow together from histograms: the very trees of pooled data, for all of them.

It is not private in its bare form. Histograms of few rows tell grades (`fedrank audit` shows it), and the server sees
those of every client; under a secure sum it sees the sum of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from fedrank.data.ranking import RankingData
from fedrank.rank.model import Scorer
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, bounded_edges, grid_edges, quantile_edges
from fedrank.trees.boosters import Booster, Grower, Lambdamart, Past
from fedrank.trees.forest import planted
from fedrank.trees.forestry import Forestry, Grown
from fedrank.trees.grow_halves import GrowPlan, TreeClient, TreeServer
from fedrank.trees.growth import Here, grow_forest
from fedrank.trees.holder import Holder
from fedrank.trees.private_growth import PrivateHolder, TreeNoise, grow_private
from fedrank.trees.splits import Portion
from fedrank.trees.together import useful
from fedrank.wire import Refused


@dataclass(frozen=True)
class Histograms:
    """All clients grow one forest, the one that pooled data would grow: histograms of gradients travel and add up.

    Bin edges are a grid that fits all numbers and tells nothing of the data; at equal distances between known bounds;
    from a file that everybody agreed on; or, as a ceiling that nobody reaches where data must stay, of pooled data.
    """

    edges: Literal["grid", "bounded", "file", "pooled"] = "grid"  # where bin edges come from
    low: float = 0.0  # bounds of all features, for edges = "bounded"
    high: float = 1.0
    file: str = ""  # of edges that everybody agreed on, for edges = "file"
    vote: int = 0  # each votes for so many features of a leaf, and twice as many are sent; 0: all are sent
    secure: bool = False  # the server sees the sum of histograms and no client's own
    bits: Literal[32, 62] = 62  # of a number under a secure sum; 32 make half the bytes, where sums fit them
    private: Literal["no", "histograms", "random-splits"] = "no"  # what is noised: what splits are chosen by, or leaves
    unit: Literal["query", "person", "client"] = "query"  # what noise protects, all of it together
    noise: float = 5.0  # deviation of the noise of one release, in units of what one unit can change
    clip: float = 1.0  # largest sum of |gradients| of a unit
    clip_hessian: float = 0.5  # largest sum of hessians of a unit
    depth: int = 3  # of trees that are grown under noise
    delta: float = 1e-5  # at which noise is priced

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low = {self.low}, high = {self.high}: bounds hold no values; give the lower one first")
        if (self.edges == "file") != bool(self.file):
            raise ValueError(f'edges = "{self.edges}", file = "{self.file}": a file goes with edges = "file"')
        if self.vote < 0:
            raise ValueError(f"vote = {self.vote} is no number of features; use 1 or more, or 0 to send all features")
        if self.vote and self.private != "no":
            raise ValueError(
                f'vote = {self.vote}: votes have no noise, and would tell what private = "{self.private}" hides; use 0'
            )
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} promises nothing; use a small probability, such as 1e-5")
        if self.private != "no" and self.edges == "pooled":
            raise ValueError('edges = "pooled" are made from the data themselves, which noise later cannot undo')
        if self.private != "no" and self.secure:
            raise ValueError(f'private = "{self.private}": every client adds its own noise already; use secure = false')
        self.tree_noise()

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        forestry = booster if isinstance(booster, Forestry) else Forestry(booster)
        rules = rules_of(forestry.booster)
        edges = self.edges_for([portion.train for portion in portions], rules.bins)
        plan = self.plan(rules, edges, seed, range(len(portions)))
        noise = self.tree_noise()
        grown = forestry.take_up(
            lambda past: (
                _rounds(portions, plan, past) if noise is None else _noised(portions, plan, noise, past, forestry)
            )
        )
        notes = {"clients": [portion.name for portion in portions], "grown by": "histograms"}
        # The ranges of features in the header are those of the first client alone.
        return (planted(grown.best, portions[0].train, notes),) * len(portions)

    def plan(self, rules: Grower, edges: Edges, seed: int, clients: Iterable[int]) -> GrowPlan:
        """What these clients agree on."""
        return GrowPlan(rules, edges, seed, tuple(clients), self.secure, self.bits, vote=self.vote)

    def tree_noise(self) -> TreeNoise | None:
        """How noise is added; None: not at all, and nothing can be claimed."""
        if self.private == "no":
            return None
        return TreeNoise(self.private, self.unit, self.noise, self.clip, self.clip_hessian, self.depth)

    def edges_for(self, train: Sequence[RankingData], bins: int) -> Edges:
        """The edges that all bin their features by."""
        if self.edges == "pooled":
            return quantile_edges(RankingData.join(train), bins)
        if self.edges == "file":
            return Edges.load(self.file)
        return self.public_edges(train[0].features.shape[1], bins)

    def public_edges(self, features: int, bins: int) -> Edges:
        """Edges that follow from the settings alone, without a file or data."""
        if self.edges == "grid":
            return grid_edges(features, bins)
        if self.edges == "bounded":
            return bounded_edges(features, self.low, self.high, bins)
        raise ValueError(f'edges = "{self.edges}" do not follow from a plan; use "grid" or "bounded"')


def rules_of(booster: Booster) -> Grower:
    """The settings of a booster for growing together."""
    if type(booster) is Grower:
        return booster
    if type(booster) is Lambdamart:
        known = {field.name for field in fields(Grower)}
        return Grower(**{f.name: getattr(booster, f.name) for f in fields(booster) if f.name in known})
    raise ValueError(
        f"a shared forest grows on all rows of a client, not as {type(booster).__name__.lower()} chooses them; use "
        'booster = "grower" or "lambdamart"'
    )


def _rounds(portions: Sequence[Portion], plan: GrowPlan, past: Grown) -> Iterator[tuple[list[str], float]]:
    """The trees after those that are past, one a round."""
    behind = Past(past.all, tuple(past.validation))
    if plan.secure:
        clients = {
            number: TreeClient(number, plan, portion.train, useful(portion.validation))
            for number, portion in enumerate(portions)
        }
        trees = TreeServer(plan, AskedHere(clients)).forest(behind)
    else:
        holders = [
            Holder(portion.train, plan.edges, plan.rules, plan.seed, useful(portion.validation)) for portion in portions
        ]
        for holder in holders:
            for text in behind.trees:
                holder.add(Trees.read([text]))
        trees = grow_forest(Here(holders, plan.vote), plan.rules, plan.edges, plan.seed, behind)
    for text, quality in trees:
        yield [text], quality


def _noised(
    portions: Sequence[Portion], plan: GrowPlan, noise: TreeNoise, past: Grown, forestry: Forestry
) -> Iterator[tuple[list[str], float]]:
    """The same under noise; nobody tells how good the forest is."""
    holders = [PrivateHolder(portion.train, plan.edges, plan.rules, noise) for portion in portions]
    for holder in holders:
        for text in past.all:
            holder.add(Trees.read([text]))

    def charge(tree: int) -> None:
        forestry.charge(len(portions), tree + 1)

    for text in grow_private(holders, plan.rules, plan.edges, noise, plan.seed, len(past.all), charge):
        yield [text], float("nan")


class AskedHere:
    """Clients in this process, asked through bytes; who refuses is as one who does not answer."""

    def __init__(self, clients: Mapping[int, TreeClient]) -> None:
        self.clients = clients
        self.refusals: dict[int, str] = {}  # by client

    def __call__(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        answers = {}
        for client, content in requests.items():
            try:
                answers[client] = self.clients[client].answer(content)
            except Refused as problem:
                self.refusals[client] = str(problem)
        return answers

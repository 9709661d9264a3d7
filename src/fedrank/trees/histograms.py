"""One forest that clients grow together from histograms: the very trees of pooled data, for all of them.

It is not private in its bare form. Histograms of few rows reveal grades (`fedrank audit` shows it), and the server sees
those of every client; under a secure sum it sees the sum of all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from fedrank.data.ranking import RankingData
from fedrank.ranking.model import Scorer
from fedrank.trees.binning import Edges, bounded_edges, grid_edges, quantile_edges
from fedrank.trees.boosters import Booster, Grower, Lambdamart, Past
from fedrank.trees.forest import make_forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest
from fedrank.trees.growing_protocol import TreeClient, TreeServer, in_process
from fedrank.trees.noise import EdgeNoise, TreeNoise, estimated_edges
from fedrank.trees.splits import Portion


@dataclass(frozen=True)
class Histograms:
    """All clients grow one forest, the one that pooled data would grow: histograms of gradients travel and add up.

    Bin edges are a grid that fits all numbers and does not depend on the data; at equal distances between known bounds;
    from a file that all clients agreed on; or of pooled data, as a ceiling that cannot be reached where data must stay.
    Or they are estimated, and paid for, by noised counts in the cells of that grid, or between these bounds.
    """

    # Where bin edges come from.
    edges: Literal["grid", "bounded", "file", "pooled", "noised-grid", "noised-bounded"] = "grid"
    edge_rows: int = 100  # that all rows of a unit count for at most, for noised edges
    low: float = 0.0  # bounds of all features, for edges = "bounded" and "noised-bounded"
    high: float = 1.0
    file: str = ""  # of edges that all clients agreed on, for edges = "file"
    vote: int = 0  # each votes for so many features of a leaf, and twice as many are sent; 0: all are sent
    secure: bool = False  # the server sees the sum of histograms and no client's own
    bits: Literal[32, 62] = 62  # of a number under a secure sum; 32 make half the bytes, where sums fit them
    honest: float = 0.5  # share of clients whose noise must be in a secure sum: others may work with the server
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
                f'vote = {self.vote}: votes have no noise and reveal what private = "{self.private}" hides; use 0'
            )
        if self.bits != 62 and self.private != "no":
            raise ValueError(f"bits = {self.bits}: noise may not fit, and would come out wrong; use 62")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} promises nothing; use a small probability, such as 1e-5")
        if self.private != "no" and self.edges == "pooled":
            raise ValueError('edges = "pooled" are made from the data themselves, which noise later cannot undo')
        if not 0 < self.honest <= 1:
            raise ValueError(f"honest = {self.honest} is no share of clients; use more than 0, up to 1")
        self.tree_noise()
        self.edge_noise()

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        checkpoint = booster if isinstance(booster, ForestCheckpoint) else ForestCheckpoint(booster)
        rules = self.rules(checkpoint.booster)

        def rounds(past: Grown) -> Iterator[tuple[list[str], float]]:
            edges = self._edges(portions, rules, past, checkpoint)
            return _rounds(portions, self.plan(rules, edges, seed, range(len(portions))), past, checkpoint)

        grown = checkpoint.take_up(rounds)
        notes = {"clients": [portion.name for portion in portions], "grown by": "histograms"}
        if self.private != "no":  # ranges of features in a header would be values of rows, without noise
            return (make_forest(grown.best, portions[0].train, notes, with_ranges=False),) * len(portions)
        # The ranges of features in the header are those of the first client alone.
        return (make_forest(grown.best, portions[0].train, notes),) * len(portions)

    @staticmethod
    def rules(booster: Booster) -> Grower:
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

    def plan(self, rules: Grower, edges: Edges, seed: int, clients: Iterable[int]) -> GrowPlan:
        """What these clients agree on."""
        numbers = tuple(clients)
        noise = self.tree_noise(len(numbers))
        return GrowPlan(rules, edges, seed, numbers, self.secure, self.bits, vote=self.vote, noise=noise)

    def tree_noise(self, clients: int = 1) -> TreeNoise | None:
        """How noise is added; None: not at all, and nothing can be claimed."""
        if self.private == "no":
            return None
        shared = self._shares(clients)
        return TreeNoise(self.private, self.unit, self.noise, self.clip, self.clip_hessian, self.depth, shared)

    def edge_noise(self, clients: int = 1) -> EdgeNoise | None:
        """How edges are estimated; None: they are not."""
        if not self.edges.startswith("noised"):
            return None
        bounds = (self.low, self.high) if self.edges == "noised-bounded" else None
        return EdgeNoise(self.noise, self.unit, self.edge_rows, bounds, self._shares(clients))

    def _shares(self, clients: int) -> int:
        return max(1, math.ceil(self.honest * clients - 1e-9)) if self.secure else 1

    def _edges(self, portions: Sequence[Portion], rules: Grower, past: Grown, checkpoint: ForestCheckpoint) -> Edges:
        """The edges of a forest; those that noise was spent on are kept with its trees."""
        train = [portion.train for portion in portions]
        if self.edge_noise() is None:
            return self.edges_for(train, rules.bins)
        if past.edges is None:
            checkpoint.charge(len(portions), edges_round(rules))
            past.edges = [list(edges) for edges in self.edges_for(train, rules.bins).values]
        return Edges(tuple(map(tuple, past.edges)))

    def edges_for(self, train: Sequence[RankingData], bins: int) -> Edges:
        """The edges that all bin their features by; those under noise are others each time, and cost each time."""
        if (noise := self.edge_noise(len(train))) is not None:
            return estimated_edges(train, noise, bins, self.secure)
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


def edges_round(rules: Grower) -> int:
    """The number under which a ledger has bin edges: the one after all trees."""
    return rules.trees + 1


def _rounds(
    portions: Sequence[Portion], plan: GrowPlan, past: Grown, checkpoint: ForestCheckpoint
) -> Iterator[tuple[list[str], float]]:
    """The trees after those of the past, one a round."""

    def charge(tree: int) -> None:
        if plan.noise is not None:
            checkpoint.charge(len(portions), tree + 1)

    rows = [(portion.train, portion.validation) for portion in portions]
    if plan.secure:
        clients = {number: TreeClient(number, plan, *one) for number, one in enumerate(rows)}
        trees = TreeServer(plan, in_process(clients), charge=charge).forest(past.all, past.validation)
    else:
        local = LocalClients(plan, [plan.store(*one) for one in rows], charge)
        local.add(past.all)
        trees = grow_forest(local, Past(past.all, tuple(past.validation)))
    for text, quality in trees:
        yield [text], quality

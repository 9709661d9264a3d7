"""One forest that clients grow together from histograms: exactly the trees of pooled data.

Without noise it is not private. Histograms of few rows reveal relevance labels (`fedrank privacy audit` shows it), and
the server sees those of every client; with secure aggregation it sees only their sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from fedrank.data.ranking import RankingData
from fedrank.ranking.model import Scorer
from fedrank.trees.binning import Edges, bounded_edges, grid_edges, quantile_edges
from fedrank.trees.boosters import Booster, BoosterState, Grower, Lambdamart, Trainer
from fedrank.trees.forest import make_forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown, resumable
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest
from fedrank.trees.growing_protocol import TreeClient, TreeServer, in_process
from fedrank.trees.noise import TreeNoise
from fedrank.trees.splits import Portion


@dataclass(frozen=True)
class Histograms:
    """All clients grow one forest, the same as pooled data would give, from sums of gradient histograms.

    Bin edges are a grid that fits all numbers and does not depend on the data; equidistant between known bounds;
    from a file that all clients agreed on; or of pooled data, as an upper bound where data must not be shared.
    """

    edges: Literal["grid", "bounded", "file", "pooled"] = "grid"  # source of bin edges
    low: float = 0.0  # bounds of all features, for edges = "bounded"
    high: float = 1.0
    file: str = ""  # file of edges that all clients agreed on, for edges = "file"
    vote: int = 0  # features per leaf that each client votes for; twice as many are sent; 0: all are sent
    secure: bool = False  # secure aggregation: the server sees the sum of histograms and no client's own
    bits: Literal[32, 62] = 62  # of a number under secure aggregation; 32 halves the bytes, where sums fit
    honest: float = 0.5  # fraction of clients whose noise must be in a sum; the others may collude with the server
    private: Literal["no", "histograms", "random-splits"] = "no"  # noised: histograms and leaves, or leaves only
    unit: Literal["query", "person", "client"] = "query"  # what noise protects, as a whole
    noise: float = 5.0  # standard deviation of the noise of one release, relative to the sensitivity of one unit
    clip: float = 1.0  # maximum sum of |gradients| of a unit
    clip_hessian: float = 0.5  # maximum sum of hessians of a unit
    depth: int = 3  # of trees that are grown with noise
    delta: float = 1e-5  # δ of the guarantee

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be below high (got low = {self.low} and high = {self.high})")
        if (self.edges == "file") != bool(self.file):
            raise ValueError(f'a file requires edges = "file", and vice versa (got "{self.edges}" and "{self.file}")')
        if self.vote < 0:
            raise ValueError(f"vote must be 0 or more (got {self.vote}); 0 sends all features")
        if self.vote and self.private != "no":
            raise ValueError(f'vote must be 0 with private = "{self.private}" (got {self.vote}): votes have no noise')
        if self.bits != 62 and self.private != "no":
            raise ValueError(f'bits must be 62 with private = "{self.private}" (got {self.bits}), so the noise fits')
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be above 0 and below 1 (got {self.delta}); use a value such as 1e-5")
        if self.private != "no" and self.edges == "pooled":
            raise ValueError(
                f'edges = "pooled" are computed from the data without noise, which private = "{self.private}" cannot '
                'undo; use edges = "grid", for example'
            )
        if not 0 < self.honest <= 1:
            raise ValueError(f"honest must be above 0 and at most 1, a fraction of the clients (got {self.honest})")
        self.tree_noise()

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        checkpoint = resumable(booster)
        rules = self.rules(checkpoint.booster)

        def rounds(past: Grown) -> Iterator[tuple[list[str], float]]:
            edges = self.edges_for([portion.train for portion in portions], rules.bins)
            return _rounds(portions, self.plan(rules, edges, seed, range(len(portions))), past, checkpoint)

        grown = checkpoint.take_up(rounds)
        notes = {"clients": [portion.name for portion in portions], "grown by": "histograms"}
        # Ranges of features in the header are values of rows of the first client, without noise.
        forest = make_forest(grown.best, portions[0].train, notes, with_ranges=self.private == "no")
        return (forest,) * len(portions)

    @staticmethod
    def rules(booster: Booster) -> Grower:
        """The settings of a booster for growing together."""
        if type(booster) is Grower:
            return booster
        if type(booster) is Lambdamart:
            known = {field.name for field in fields(Grower)}
            return Grower(**{f.name: getattr(booster, f.name) for f in fields(booster) if f.name in known})
        raise ValueError(
            f"a shared forest grows on all rows of a client, which {type(booster).__name__.lower()} does not; use "
            'booster = "grower" or "lambdamart"'
        )

    def plan(self, rules: Grower, edges: Edges, seed: int, clients: Iterable[int]) -> GrowPlan:
        """The plan of these clients."""
        numbers = tuple(clients)
        noise = self.tree_noise(len(numbers))
        return GrowPlan(rules, edges, seed, numbers, self.secure, self.bits, vote=self.vote, noise=noise)

    def tree_noise(self, clients: int = 1) -> TreeNoise | None:
        """The noise of trees; None: no noise, and no guarantee."""
        if self.private == "no":
            return None
        shared = max(1, math.ceil(self.honest * clients - 1e-9)) if self.secure else 1
        return TreeNoise(self.private, self.unit, self.noise, self.clip, self.clip_hessian, self.depth, shared)

    def edges_for(self, train: Sequence[RankingData], bins: int) -> Edges:
        """The edges of all clients."""
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


def _rounds(
    portions: Sequence[Portion], plan: GrowPlan, past: Grown, checkpoint: ForestCheckpoint
) -> Iterator[tuple[list[str], float]]:
    """The trees after those of the past, one per round."""

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
        trees = grow_forest(local, BoosterState(past.all, tuple(past.validation)))
    for text, quality in trees:
        yield [text], quality

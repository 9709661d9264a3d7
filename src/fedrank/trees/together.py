"""One forest that several clients grow together, tree by tree.

It is simple here: trees travel in the open, and a client sees what others grew. Histograms that add up to the very
trees of pooled data are another method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Scorer
from fedrank.trees.arrays import Trees
from fedrank.trees.boosters import MEASURE, Booster, Lambdamart
from fedrank.trees.forest import Forest, planted
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown
from fedrank.trees.lightgbm_training import Plot
from fedrank.trees.mixtures import damped
from fedrank.trees.splits import Portion

Reals = NDArray[np.float64]
Turns = Callable[[int], Sequence[tuple[int, float]]]  # round, from 0 -> who grows a tree, and how much it counts


@dataclass(frozen=True)
class Bagged:
    """In every round each client adds a tree to one shared forest, damped so that together they count as one.

    The forest has at most as many rounds as the booster has trees, each of as many trees as there are clients.
    """

    weighted: bool = True  # a client's trees count by its number of queries; otherwise all alike

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        sizes = np.array([portion.train.queries if self.weighted else 1 for portion in portions], dtype=np.float64)
        everybody = [(client, float(size / sizes.sum())) for client, size in enumerate(sizes)]
        forest = grown_together(portions, booster, lambda number: everybody, seed, threads)
        return (forest,) * len(portions)


@dataclass(frozen=True)
class Cyclic:
    """Clients take turns in adding trees to one shared forest."""

    turn: int = 1  # trees that a client grows before it is the next one's turn

    def __post_init__(self) -> None:
        if self.turn < 1:
            raise ValueError(f"turn = {self.turn} never lets a client grow a tree; use 1 or more")

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        def turns(number: int) -> list[tuple[int, float]]:
            return [(number // self.turn % len(portions), 1.0)]

        return (grown_together(portions, booster, turns, seed, threads),) * len(portions)


class _Grower:
    """One client that takes part in a shared forest: its data stay here, trees come and go."""

    def __init__(self, portion: Portion, booster: Lambdamart, seed: int, threads: int) -> None:
        self.train, self.threads = portion.train, threads
        self.scores = np.zeros(portion.train.documents)
        self.plot = Plot(portion.train, booster.engine(seed, threads))
        validation = useful(portion.validation)
        self.judge = None if validation is None else Evaluator(validation, [MEASURE])
        self.seen = np.zeros(0 if validation is None else validation.documents)

    def tree(self) -> str | None:
        """The tree that its own data would add to the forest; None where there is nothing to split."""
        return next(self.plot.trees(self.scores))

    def add(self, tree: Trees) -> None:
        tree.add(self.train.features, self.scores, self.threads)
        if self.judge is not None:
            tree.add(self.judge.data.features, self.seen, self.threads)

    def qualities(self) -> Reals:
        """nDCG@10 of its validation queries; NaN where a query is skipped."""
        return np.empty(0) if self.judge is None else self.judge.per_query_of_scores(self.seen)[0]


def grown_together(portions: Sequence[Portion], booster: Booster, turns: Turns, seed: int, threads: int = 1) -> Forest:
    """A forest to which clients add trees.

    It stops as the booster would: by nDCG@10 over all clients' validation queries, of which each reports its own.
    """
    forestry = booster if isinstance(booster, ForestCheckpoint) else ForestCheckpoint(booster)
    plain = forestry.booster
    if type(plain) is not Lambdamart:
        raise ValueError(
            f"a shared forest grows on all rows of a client, not as {type(plain).__name__.lower()} chooses them; "
            'use booster = "lambdamart"'
        )
    grown = forestry.take_up(lambda past: _rounds(portions, plain, turns, seed, threads, past))
    if not grown.all:
        raise ValueError("no client found anything to split; lower min_data_in_leaf, or use more data")
    # The ranges of features in the header are those of the first client alone.
    return planted(grown.best, portions[0].train, {"clients": [portion.name for portion in portions]})


def _rounds(
    portions: Sequence[Portion], booster: Lambdamart, turns: Turns, seed: int, threads: int, past: Grown
) -> Iterator[tuple[list[str], float]]:
    """The trees of every round after those that are past, and nDCG@10 with them."""
    clients = [_Grower(portion, booster, seed, threads) for portion in portions]
    curve, idle = list(past.validation), 0
    for added in past.trees:
        idle = 0 if added else idle + 1
        _hand_out(added, clients)
    for number in range(len(curve), booster.trees):
        if booster.is_over(curve):
            return
        grown = [(clients[client].tree(), factor) for client, factor in turns(number)]
        added = [damped(text, factor) for text, factor in grown if text is not None]
        idle = 0 if added else idle + 1
        if idle == len(clients):
            return
        _hand_out(added, clients)
        curve.append(float(average(np.concatenate([client.qualities() for client in clients]))))
        yield added, curve[-1]


def _hand_out(trees: Sequence[str], clients: Sequence[_Grower]) -> None:
    for text in trees:
        tree = Trees.read([text])
        for client in clients:
            client.add(tree)


def useful(data: RankingData | None) -> RankingData | None:
    """Validation data, unless nothing in them is relevant: then they cannot say when to stop."""
    return data if data is not None and np.any(data.grades > 0) else None

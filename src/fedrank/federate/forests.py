"""Forests of several clients: trained apart and merged, or grown together tree by tree.

Growing together is simple here: trees travel in the open, and a client sees what others grew. Histograms that add up to
the very trees of pooled data are another method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.data.ranking import RankingData
from fedrank.federate.merge import Linear, Stacking
from fedrank.federate.splits import Share, Splitter
from fedrank.rank.boosting import Plot, Tree
from fedrank.rank.forest import Forest, planted
from fedrank.rank.measures import Evaluator, average
from fedrank.rank.merged import damped
from fedrank.rank.model import Scorer
from fedrank.rank.trees import MEASURE, Booster, Lambdamart, best_size
from fedrank.seeds import rng_for

Reals = NDArray[np.float64]


class Merger(Protocol):
    """A way to a model for every client, from what all of them learned."""

    def __call__(
        self, shares: Sequence[Share], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]: ...


@dataclass(frozen=True)
class Alone:
    """Every client keeps the model that it trained on its own data: what merging has to beat."""

    def __call__(
        self, shares: Sequence[Share], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        return tuple(models)


@dataclass(frozen=True)
class Pooled:
    """One model trained on the data of all clients together: a ceiling that nobody may reach where data must stay."""

    def __call__(
        self, shares: Sequence[Share], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        validation = [share.validation for share in shares if share.validation is not None]
        stop_by = useful(RankingData.join(validation) if validation else None)
        model = booster(RankingData.join([share.train for share in shares]), stop_by, seed=seed, threads=threads)
        return (model,) * len(shares)


@dataclass(frozen=True)
class Bagged:
    """In every round each client adds a tree to one shared forest, damped so that together they count as one.

    The forest has at most as many rounds as the booster has trees, each of as many trees as there are clients.
    """

    weighted: bool = True  # a client's trees count by its number of queries; otherwise all alike

    def __call__(
        self, shares: Sequence[Share], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        sizes = np.array([share.train.queries if self.weighted else 1 for share in shares], dtype=np.float64)
        everybody = [(client, float(size / sizes.sum())) for client, size in enumerate(sizes)]
        forest = grown_together(shares, booster, lambda number: everybody, seed, threads)
        return (forest,) * len(shares)


@dataclass(frozen=True)
class Cyclic:
    """Clients take turns in adding trees to one shared forest."""

    turn: int = 1  # trees that a client grows before it is the next one's turn

    def __post_init__(self) -> None:
        if self.turn < 1:
            raise ValueError(f"turn = {self.turn} never lets a client grow a tree; use 1 or more")

    def __call__(
        self, shares: Sequence[Share], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        def turns(number: int) -> list[tuple[int, float]]:
            return [(number // self.turn % len(shares), 1.0)]

        return (grown_together(shares, booster, turns, seed, threads),) * len(shares)


MERGERS: dict[str, type[Merger]] = {
    "alone": Alone,
    "linear": Linear,
    "stacking": Stacking,
    "bagged": Bagged,
    "cyclic": Cyclic,
    "pooled": Pooled,
}


class _Grower:
    """One client that takes part in a shared forest: its data stay here, trees come and go."""

    def __init__(self, share: Share, booster: Lambdamart, seed: int, threads: int) -> None:
        self.train, self.threads = share.train, threads
        self.scores = np.zeros(share.train.documents)
        self.plot = Plot(share.train, booster.engine(seed, threads))
        validation = useful(share.validation)
        self.judge = None if validation is None else Evaluator(validation, [MEASURE])
        self.seen = np.zeros(0 if validation is None else validation.documents)

    def tree(self) -> str | None:
        """The tree that its own data would add to the forest; None where there is nothing to split."""
        return next(self.plot.trees(self.scores))

    def add(self, tree: Tree) -> None:
        tree.add(self.train, self.scores, self.threads)
        if self.judge is not None:
            tree.add(self.judge.data, self.seen, self.threads)

    def qualities(self) -> Reals:
        """nDCG@10 of its validation queries; NaN where a query is skipped."""
        return np.empty(0) if self.judge is None else self.judge.per_query_of_scores(self.seen)[0]


def grown_together(
    shares: Sequence[Share],
    booster: Booster,
    turns: Callable[[int], Sequence[tuple[int, float]]],
    seed: int,
    threads: int = 1,
) -> Forest:
    """A forest to which clients add trees: `turns` says for every round which ones, and how much each tree counts.

    It stops as the booster would: by nDCG@10 over all clients' validation queries, of which each reports its own.
    """
    if type(booster) is not Lambdamart:
        raise ValueError(
            f"a shared forest grows on all rows of a client, not as {type(booster).__name__.lower()} chooses them; "
            'use booster = "lambdamart"'
        )
    clients = [_Grower(share, booster, seed, threads) for share in shares]
    trees: list[str] = []
    sizes, curve, idle = [], [], 0
    for number in range(booster.trees):
        grown = [(clients[client].tree(), factor) for client, factor in turns(number)]
        added = [damped(text, factor) for text, factor in grown if text is not None]
        idle = 0 if added else idle + 1
        if idle == len(shares):
            break
        for text in added:
            tree = Tree.read(text)
            for client in clients:
                client.add(tree)
        trees += added
        sizes.append(len(trees))
        curve.append(float(average(np.concatenate([client.qualities() for client in clients]))))
        if booster.is_over(curve):
            break
    if not trees:
        raise ValueError("no client found anything to split; lower min_data_in_leaf, or use more data")
    # The ranges of features in the header are those of the first client alone.
    return planted(trees[: sizes[best_size(curve) - 1]], shares[0].train, {"clients": [share.name for share in shares]})


def useful(data: RankingData | None) -> RankingData | None:
    """Validation data, unless nothing in them is relevant: then they cannot say when to stop."""
    return data if data is not None and np.any(data.grades > 0) else None


@dataclass(frozen=True)
class Merging:
    """What became of clients that trained apart and merged: their models and how well each ranks the test queries."""

    shares: tuple[Share, ...]
    local: tuple[Scorer, ...]  # [clients]: trained on own data
    merged: tuple[Scorer, ...]  # [clients]
    measures: tuple[str, ...]
    before: Reals  # [measures, clients, test queries]: with the local models; NaN where a measure skips the query
    after: Reals  # [measures, clients, test queries]: with the merged ones
    own: NDArray[np.bool_]  # [clients, test queries]: whether a query is of the client's kind

    def by_client(self) -> dict[str, Reals]:
        """Columns [clients]: each measure on own, on other clients' and on all test queries, before and after."""
        others = self.own.any(axis=0) & ~self.own
        return {
            f"{measure} {where} {when}": average(np.where(chosen, values[m], np.nan))
            for m, measure in enumerate(self.measures)
            for where, chosen in (("own", self.own), ("others", others), ("all", np.ones_like(self.own)))
            for when, values in (("before", self.before), ("after", self.after))
        }


def train_locally(
    shares: Sequence[Share],
    booster: Booster,
    seed: int,
    threads: int = 1,
    tell: Callable[[str], None] = lambda news: None,
) -> tuple[Scorer, ...]:
    """The model of each client, from its own data alone."""
    models = []
    for share in shares:
        tell(f"training the model of {share.name}")
        model = booster(share.train, useful(share.validation), seed=seed, threads=threads)
        models.append(replace(model, notes={"client": share.name, "queries": share.train.queries}))
    return tuple(models)


def train_and_merge(
    fold: Fold,
    split: Splitter,
    booster: Booster,
    merger: Merger,
    measures: Sequence[str],
    seed: int,
    threads: int = 1,
    tell: Callable[[str], None] = lambda news: None,
) -> Merging:
    """Split a fold among clients, train each one's model, merge them, and measure before and after."""
    shares = split(fold, rng_for(seed, "split"))
    local = train_locally(shares, booster, seed, threads, tell)
    tell("merging")
    merged = merger(shares, local, booster, seed, threads)
    tell("measuring")
    evaluator = Evaluator(fold.test, measures)
    before, after = (_measured(models, evaluator) for models in (local, merged))
    ids = [() if share.test is None else share.test.query_ids for share in shares]
    own = np.array([np.isin(fold.test.query_ids, one) for one in ids])
    return Merging(shares, local, merged, tuple(measures), before, after, own)


def _measured(models: Sequence[Scorer], evaluator: Evaluator) -> Reals:
    """[measures, models, queries]; a model that several clients share is scored once."""
    known: dict[int, NDArray[np.float32]] = {}
    for model in models:
        if id(model) not in known:
            known[id(model)] = np.asarray(model.score(evaluator.data), dtype=np.float32)
    return evaluator.per_query_of_scores(np.stack([known[id(model)] for model in models]))

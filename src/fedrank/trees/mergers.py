"""Mergers: ways to a model for every client, from what several clients learned apart from each other.

Models travel, data stay. A client decides by its merge set, judged queries unlike those it learned from, how far to
trust the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator, average, evaluate
from fedrank.ranking.model import Scorer
from fedrank.seeds import rng_for
from fedrank.trees.arrays import Trees
from fedrank.trees.boosters import MEASURE, Booster, Lambdamart, NothingToSplit, usable_validation
from fedrank.trees.forest import Forest, make_forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown, Settings
from fedrank.trees.histograms import Histograms
from fedrank.trees.lightgbm_training import LightGbmTrainer
from fedrank.trees.mixtures import LinearMix, Stacked, damped, on_scale, same_features, scores_of, stacked, units_of
from fedrank.trees.splits import Portion

PASSES = 20  # of the coordinate search, at most; it mostly ends after two or three
AT_ONCE = 8_000_000  # scores in memory at a time
ENOUGH = 150  # queries of a merge set from which on stacking can be judged; the paper's smallest has 135

Reals = NDArray[np.float64]
Turns = Callable[[int], Sequence[tuple[int, float]]]  # round, from 0 -> which clients grow a tree, and its weight


class Merger(Protocol):
    """A way to a model for every client, from what all of them learned."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]: ...


@dataclass(frozen=True)
class Alone:
    """Every client keeps the model that it trained on its own data: what merging has to beat."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        return tuple(models)


@dataclass(frozen=True)
class Pooled:
    """One model trained on the data of all clients together: a ceiling that cannot be reached where data must stay."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        validation = [portion.validation for portion in portions if portion.validation is not None]
        stop_by = usable_validation(RankingData.join(validation) if validation else None)
        model = booster(RankingData.join([portion.train for portion in portions]), stop_by, seed=seed, threads=threads)
        return (model,) * len(portions)


@dataclass(frozen=True)
class WeightedSum:
    """A weighted sum of the models' scores, with the weights that rank the merge set best (Wu et al., 2010)."""

    weights: Literal["search", "uniform"] = "search"  # two models: a grid; more: one weight after the other
    scale: Literal["none", "fixed", "query"] = "none"  # divide by the spread on the merge set, or in every query
    step: float = 0.01  # of the weights that are tried
    measure: str = "ndcg@10"  # by which weights are chosen

    def __post_init__(self) -> None:
        if not 0 < self.step <= 0.5:
            raise ValueError(f"step = {self.step} makes no grid from 0 to 1; use more than 0 and at most 0.5")

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        return tuple(self.merge(models, portion.merge, seed, threads) for portion in portions)

    def merge(self, models: Sequence[Scorer], on: RankingData, seed: int = 1, threads: int = 1) -> Scorer:
        """One model of several, for a client with the merge set `on`."""
        same_features(models)
        _check(on)
        scores = scores_of(models, on)
        units = units_of(scores, on) if self.scale == "fixed" else ()
        scaled = on_scale(scores, on, self.scale, units)
        if self.weights == "uniform":
            weights = np.full(len(models), 1 / len(models))
            value = float(evaluate([self.measure], kernels.sums.weighted_sum(weights, scaled), on)[0])
        else:
            weights, value = best_weights(scaled, Evaluator(on, [self.measure]), self.step)
        chosen = tuple(round(float(weight), 10) for weight in weights)
        return LinearMix(tuple(models), chosen, self.scale, units, _notes("linear", models, on, {self.measure: value}))


@dataclass(frozen=True)
class Stacking:
    """A new model that reads the scores of the others as features, trained on the merge set.

    The last choice of inputs is a control: what the merge set alone can teach, without any other model.
    """

    inputs: Literal["both", "scores", "features"] = "both"  # features and scores, or one of them
    booster: Booster = field(default_factory=lambda: Lambdamart(trees=300, leaves=15, patience=50))
    held_out: float = 0.2  # share of the merge set that does not train but says when to stop

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out = {self.held_out} is no part of a merge set; use a number between 0 and 1")

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        settings = booster.settings if isinstance(booster, ForestCheckpoint) else None
        return tuple(self.merge(models, portion.merge, seed, threads, settings) for portion in portions)

    def merge(
        self,
        models: Sequence[Scorer],
        on: RankingData,
        seed: int = 1,
        threads: int = 1,
        settings: Settings | None = None,  # finds those of the booster, by the held-out part; None: as it has them
    ) -> Scorer:
        """One model of several, for a client with the merge set `on`."""
        same_features(models)
        _check(on)
        seen = stacked(models, on, self.inputs)
        train, validation = self._divided(seen, rng_for(seed, "stacking"))
        grower, notes = self.booster, {}
        if settings is not None:
            try:
                grower = settings(self.booster, train, validation, seed, threads)
            except NothingToSplit:  # the space was made for larger sets
                notes = {"settings": "as given: with none that was tried could the merge set be split"}
        final = grower(train, validation, seed=seed, threads=threads)
        notes |= _notes("stacking", models, on, {"trees": len(final)})
        if self.inputs == "features":
            return replace(final, notes=final.notes | notes)
        return Stacked(tuple(models), final, self.inputs, notes)

    def _divided(self, data: RankingData, rng: np.random.Generator) -> tuple[RankingData, RankingData | None]:
        """Queries with relevant documents go to both parts; one such query is trained on, without a validation."""
        useful = np.flatnonzero(np.maximum.reduceat(data.grades, data.offsets[:-1]) > 0)
        count = min(max(1, round(self.held_out * len(useful))), len(useful) - 1)
        if count < 1:
            return data, None
        out = rng.choice(useful, size=count, replace=False)
        return data.select(np.setdiff1d(np.arange(data.queries), out)), data.select(np.sort(out))


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
        turns = [(client, float(size / sizes.sum())) for client, size in enumerate(sizes)]
        forest = grown_together(portions, booster, lambda number: turns, seed, threads)
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


MERGERS: dict[str, type[Merger]] = {
    "alone": Alone,
    "linear": WeightedSum,
    "stacking": Stacking,
    "bagged": Bagged,
    "cyclic": Cyclic,
    "histograms": Histograms,
    "pooled": Pooled,
}


def _check(on: RankingData) -> None:
    if not np.any(on.grades > 0):
        raise ValueError(
            f"the merge set has no relevant document in {on.queries} queries, so every merged model would be as good; "
            "give judged queries with at least one relevant document"
        )


def _notes(by: str, models: Sequence[Scorer], on: RankingData, found: dict[str, float]) -> dict[str, Any]:
    """The origin of a merged model."""
    return {
        "merged by": by,
        "parts": [model.notes for model in models],
        "merge set": {"queries": on.queries, "documents": on.documents, **found},
    }


def best_weights(scores: Reals, evaluator: Evaluator, step: float = 0.01) -> tuple[Reals, float]:
    """The weights [models] whose sum of scores [models, documents] ranks best by the first measure, and its value.

    Two models: every weight of a grid. More: from the best of equal weights and single models, one weight at a time
    takes every value of the grid while the others keep their proportions, until nothing improves. Of equally good
    weights those nearest to equal ones are taken: they depend least on chance.
    """
    models = len(scores)
    equal = np.full(models, 1 / models)
    if models == 1:
        return equal, _best(equal[None], scores, evaluator)[1]
    if models == 2:
        return _best(_moves(equal, 1, step), scores, evaluator)
    best, value = _best(np.vstack([equal, np.eye(models)]), scores, evaluator)
    for _ in range(PASSES):
        before = value
        for model in range(models):
            moved, reached = _best(_moves(best, model, step), scores, evaluator)
            if reached > value:
                best, value = moved, reached
        if value == before:
            break
    return best, value


def _moves(weights: Reals, model: int, step: float) -> Reals:
    """[grid, models]: the weight of one model takes every value of the grid, the others share the rest as before."""
    grid = np.arange(round(1 / step) + 1) / round(1 / step)
    others = weights.copy()
    others[model] = 0.0
    total = others.sum()
    others = others / total if total > 0 else (np.arange(len(weights)) != model) / (len(weights) - 1)
    moved = np.outer(1.0 - grid, others)
    moved[:, model] = grid
    return moved


def _best(candidates: Reals, scores: Reals, evaluator: Evaluator) -> tuple[Reals, float]:
    portion, by_document = max(1, AT_ONCE // scores.shape[1]), np.ascontiguousarray(scores.T)
    values = np.concatenate(
        [
            average(
                evaluator.per_query_of_scores(kernels.sums.products(candidates[start : start + portion], by_document))[
                    0
                ]
            )
            for start in range(0, len(candidates), portion)
        ]
    )
    # Values are means over queries: what differs by less than rounding is equal.
    winners = candidates[values >= values.max() - 1e-12]
    unequal = np.square(winners - 1 / candidates.shape[1]).sum(axis=1)
    return winners[np.argmin(unequal)], float(values.max())


class _Grower:
    """One client that takes part in a shared forest: its data stay here, trees come and go."""

    def __init__(self, portion: Portion, booster: Lambdamart, seed: int, threads: int) -> None:
        self.train, self.threads = portion.train, threads
        self.scores = np.zeros(portion.train.documents)
        self.trainer = LightGbmTrainer(portion.train, booster.engine(seed, threads))
        validation = usable_validation(portion.validation)
        self.judge = None if validation is None else Evaluator(validation, [MEASURE])
        self.seen = np.zeros(0 if validation is None else validation.documents)

    def tree(self) -> str | None:
        """The tree that its own data would add to the forest; None where there is nothing to split."""
        return next(self.trainer.trees(self.scores))

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
    checkpoint = booster if isinstance(booster, ForestCheckpoint) else ForestCheckpoint(booster)
    plain = checkpoint.booster
    if type(plain) is not Lambdamart:
        raise ValueError(
            f"a shared forest grows on all rows of a client, not as {type(plain).__name__.lower()} chooses them; "
            'use booster = "lambdamart"'
        )
    grown = checkpoint.take_up(lambda past: _rounds(portions, plain, turns, seed, threads, past))
    if not grown.all:
        raise ValueError("no client found anything to split; lower min_data_in_leaf, or use more data")
    # The ranges of features in the header are those of the first client alone.
    return make_forest(grown.best, portions[0].train, {"clients": [portion.name for portion in portions]})


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

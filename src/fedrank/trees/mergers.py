"""Mergers: combine what several clients learned separately into one model per client.

Models are exchanged, data are not. A client uses its merge set, labelled queries unlike its training queries, to
decide how much weight the other models get.
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
from fedrank.trees.boosters import MEASURE, Booster, Lambdamart, NothingToSplit, Trainer, usable_validation
from fedrank.trees.forest import Forest, make_forest
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Grown, Settings, resumable
from fedrank.trees.histograms import Histograms
from fedrank.trees.lightgbm_training import LightGbmTrainer
from fedrank.trees.mixtures import LinearMix, Stacked, damped, on_scale, same_features, scores_of, stacked, units_of
from fedrank.trees.splits import Portion

PASSES = 20  # of the coordinate search, at most; usually two or three are enough
AT_ONCE = 8_000_000  # scores in memory at a time
ENOUGH = 150  # queries of a merge set from which on stacking is reliable; the smallest in the paper has 135

Reals = NDArray[np.float64]
Turns = Callable[[int], Sequence[tuple[int, float]]]  # round, from 0 -> which clients grow a tree, and its weight


class Merger(Protocol):
    """A method that gives every client a model, from what all of them learned."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]: ...


@dataclass(frozen=True)
class Alone:
    """Every client uses the model that it trained on its own data: the baseline for merging."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        return tuple(models)


@dataclass(frozen=True)
class Pooled:
    """One model trained on the data of all clients together: an upper bound where data must not be shared."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        validation = [portion.validation for portion in portions if portion.validation is not None]
        stop_by = usable_validation(RankingData.join(validation) if validation else None)
        model = booster(RankingData.join([portion.train for portion in portions]), stop_by, seed=seed, threads=threads)
        return (model,) * len(portions)


@dataclass(frozen=True)
class WeightedSum:
    """A weighted sum of the models' scores, with the weights that rank the merge set best (Wu et al., 2010)."""

    weights: Literal["search", "uniform"] = "search"  # two models: grid search; more: coordinate search
    scale: Literal["none", "fixed", "query"] = "none"  # divide by the spread on the merge set, or in every query
    step: float = 0.01  # of the weight grid
    measure: str = "ndcg@10"  # for which weights are optimised

    def __post_init__(self) -> None:
        if not 0 < self.step <= 0.5:
            raise ValueError(f"step must be above 0 and at most 0.5 (got {self.step})")

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        return tuple(self.merge(models, portion.merge, seed, threads) for portion in portions)

    def merge(self, models: Sequence[Scorer], on: RankingData, seed: int = 1, threads: int = 1) -> Scorer:
        """Merge models for a client with the merge set `on`."""
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
    """A new model with the scores of the others as features, trained on the merge set.

    With inputs = "features" it is a control: what the merge set alone can teach, without any other model.
    """

    inputs: Literal["both", "scores", "features"] = "both"  # features and scores, or one of them
    booster: Booster = field(default_factory=lambda: Lambdamart(trees=300, leaves=15, patience=50))
    held_out: float = 0.2  # fraction of the merge set for early stopping

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must be between 0 and 1 (got {self.held_out})")

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        settings = booster.settings if isinstance(booster, ForestCheckpoint) else None
        return tuple(self.merge(models, portion.merge, seed, threads, settings) for portion in portions)

    def merge(
        self,
        models: Sequence[Scorer],
        on: RankingData,
        seed: int = 1,
        threads: int = 1,
        settings: Settings | None = None,  # tunes the booster on the held-out part; None: no tuning
    ) -> Scorer:
        """Merge models for a client with the merge set `on`."""
        same_features(models)
        _check(on)
        seen = stacked(models, on, self.inputs)
        train, validation = self._divided(seen, rng_for(seed, "stacking"))
        grower, notes = self.booster, {}
        if settings is not None:
            try:
                grower = settings(self.booster, train, validation, seed, threads)
            except NothingToSplit:  # the search space is for larger sets
                notes = {"settings": "as given: no setting that was tried could split the merge set"}
        final = grower(train, validation, seed=seed, threads=threads)
        notes |= _notes("stacking", models, on, {"trees": len(final)})
        if self.inputs == "features":
            return replace(final, notes=final.notes | notes)
        return Stacked(tuple(models), final, self.inputs, notes)

    def _divided(self, data: RankingData, rng: np.random.Generator) -> tuple[RankingData, RankingData | None]:
        """Queries with relevant documents are in both parts; a single such query is trained on, without validation."""
        useful = np.flatnonzero(np.maximum.reduceat(data.grades, data.offsets[:-1]) > 0)
        count = min(max(1, round(self.held_out * len(useful))), len(useful) - 1)
        if count < 1:
            return data, None
        out = rng.choice(useful, size=count, replace=False)
        return data.select(np.setdiff1d(np.arange(data.queries), out)), data.select(np.sort(out))


@dataclass(frozen=True)
class Bagged:
    """In every round each client adds a tree to one shared forest, scaled so together they count as one.

    The forest has at most as many rounds as the booster has trees, each with one tree per client.
    """

    weighted: bool = True  # whether a client's trees are weighted by its number of queries; otherwise equally

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        sizes = np.array([portion.train.queries if self.weighted else 1 for portion in portions], dtype=np.float64)
        turns = [(client, float(size / sizes.sum())) for client, size in enumerate(sizes)]
        forest = grown_together(portions, booster, lambda number: turns, seed, threads)
        return (forest,) * len(portions)


@dataclass(frozen=True)
class Cyclic:
    """Clients take turns to add trees to one shared forest."""

    turn: int = 1  # trees that a client grows before the next client's turn

    def __post_init__(self) -> None:
        if self.turn < 1:
            raise ValueError(f"turn must be at least 1 (got {self.turn})")

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Trainer, seed: int, threads: int = 1
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
            f"the merge set has no relevant document in {on.queries} queries, so all merged models would be equal; "
            "give labelled queries with at least one relevant document"
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

    Two models: every weight of a grid. More: starting from the best of equal weights and single models, one weight at
    a time takes every value of the grid while the others keep their proportions, until nothing improves. Among equally
    good weights those closest to equal ones are taken: they depend least on random variation.
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
    """[grid, models]: the weight of one model takes every value of the grid, the others keep their proportions."""
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
    some = (candidates[start : start + portion] for start in range(0, len(candidates), portion))
    mixed = (kernels.sums.products(weights, by_document) for weights in some)
    values = np.concatenate([average(evaluator.per_query_of_scores(each)[0]) for each in mixed])
    # Values are means over queries: differences below rounding count as equal.
    winners = candidates[values >= values.max() - 1e-12]
    unequal = np.square(winners - 1 / candidates.shape[1]).sum(axis=1)
    return winners[np.argmin(unequal)], float(values.max())


class _Grower:
    """One client of a shared forest: its data stay local, trees are exchanged."""

    def __init__(self, portion: Portion, booster: Lambdamart, seed: int, threads: int) -> None:
        self.train, self.threads = portion.train, threads
        self.scores = np.zeros(portion.train.documents)
        self.trainer = LightGbmTrainer(portion.train, booster.engine(seed, threads))
        validation = usable_validation(portion.validation)
        self.judge = None if validation is None else Evaluator(validation, [MEASURE])
        self.seen = np.zeros(0 if validation is None else validation.documents)

    def tree(self) -> str | None:
        """The tree that its own data would add to the forest; None where nothing can be split."""
        return next(self.trainer.trees(self.scores))

    def add(self, tree: Trees) -> None:
        tree.add(self.train.features, self.scores, self.threads)
        if self.judge is not None:
            tree.add(self.judge.data.features, self.seen, self.threads)

    def qualities(self) -> Reals:
        """nDCG@10 of its validation queries; NaN where a query is skipped."""
        return np.empty(0) if self.judge is None else self.judge.per_query_of_scores(self.seen)[0]


def grown_together(portions: Sequence[Portion], booster: Trainer, turns: Turns, seed: int, threads: int = 1) -> Forest:
    """A forest to which clients add trees.

    Early stopping is that of the booster, by nDCG@10 over the validation queries of all clients, reported by each.
    """
    checkpoint = resumable(booster)
    plain = checkpoint.booster
    if type(plain) is not Lambdamart:
        raise ValueError(
            f"a shared forest grows on all rows of a client, which {type(plain).__name__.lower()} does not; "
            'use booster = "lambdamart"'
        )
    grown = checkpoint.take_up(lambda past: _rounds(portions, plain, turns, seed, threads, past))
    if not grown.all:
        raise ValueError("no client found a split; lower min_data_in_leaf, or use more data")
    # The ranges of features in the header are those of the first client alone.
    return make_forest(grown.best, portions[0].train, {"clients": [portion.name for portion in portions]})


def _rounds(
    portions: Sequence[Portion], booster: Lambdamart, turns: Turns, seed: int, threads: int, past: Grown
) -> Iterator[tuple[list[str], float]]:
    """The trees of every round after the past ones, and nDCG@10 with them."""
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

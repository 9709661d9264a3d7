"""Mergers: ways to a model for every client, from what several clients learned apart from each other.

Models travel, data stay. A client decides by its merge set, judged queries unlike those it learned from, how far to
trust the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator, evaluate
from fedrank.ranking.model import Scorer
from fedrank.seeds import rng_for
from fedrank.trees.boosters import Booster, Lambdamart, NothingToSplit
from fedrank.trees.forest_checkpoint import ForestCheckpoint, Settings
from fedrank.trees.histograms import Histograms
from fedrank.trees.mixtures import LinearMix, Stacked, on_scale, same_features, scores_of, stacked, units_of
from fedrank.trees.splits import Portion
from fedrank.trees.together import Bagged, Cyclic, useful
from fedrank.trees.weight_search import best_weights

ENOUGH = 150  # queries of a merge set from which on stacking can be judged; the paper's smallest has 135


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
    """One model trained on the data of all clients together: a ceiling that nobody may reach where data must stay."""

    def __call__(
        self, portions: Sequence[Portion], models: Sequence[Scorer], booster: Booster, seed: int, threads: int = 1
    ) -> tuple[Scorer, ...]:
        validation = [portion.validation for portion in portions if portion.validation is not None]
        stop_by = useful(RankingData.join(validation) if validation else None)
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
    """What a merged model says of itself."""
    return {
        "merged by": by,
        "parts": [model.notes for model in models],
        "merge set": {"queries": on.queries, "documents": on.documents, **found},
    }

"""Models made of models: weighted sums of scores, and models with the scores of others as features.

The parts may be of any kind: trees, linear, neural, or mixtures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.ranking.model import Scorer
from fedrank.trees.forest import Forest, fitting, joined

Scale = Literal["none", "fixed", "query"]
Inputs = Literal["both", "scores", "features"]
Reals = NDArray[np.float64]


class _Mixture:
    """What mixtures have in common: they use the features of their parts."""

    parts: tuple[Scorer, ...]

    @property
    def features(self) -> int:
        return self.parts[0].features

    @property
    def normalised(self) -> str:
        return self.parts[0].normalised

    @property
    def feature_names(self) -> tuple[str, ...]:
        return next((part.feature_names for part in self.parts if part.feature_names), ())

    @property
    def ranges(self) -> NDArray[np.float32] | None:
        found: NDArray[np.float32] | None = getattr(self.parts[0], "ranges", None)
        return found


@dataclass(frozen=True)
class LinearMix(_Mixture):
    """A weighted sum of the scores of several models."""

    parts: tuple[Scorer, ...]
    weights: tuple[float, ...]  # [parts]: 0 or more, sum 1
    scale: Scale = "none"  # how scores are scaled before they are added: see `on_scale`
    units: tuple[float, ...] = ()  # [parts], for scale = "fixed": divisors of the scores
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        same_features(self.parts)
        units = len(self.parts) if self.scale == "fixed" else 0
        if len(self.weights) != len(self.parts) or len(self.units) != units:
            raise ValueError(
                f"{len(self.weights)} weights and {len(self.units)} units for {len(self.parts)} models; give one per "
                "model"
            )
        if self.scale not in get_args(Scale):
            raise ValueError(f"scale must be one of {', '.join(get_args(Scale))} (got {self.scale!r})")
        # Written so NaN is rejected, too: no comparison holds for it.
        if not (all(one >= 0 for one in self.weights) and abs(sum(self.weights) - 1) <= 1e-6) or not all(
            0 < unit < np.inf for unit in self.units
        ):
            raise ValueError(f"weights must be 0 or more and sum to 1 (got {self.weights}), units must be above 0")

    def score(self, data: RankingData, client: int | None = None) -> Reals:
        """[documents]: higher is better."""
        scaled = on_scale(scores_of(self.parts, data), data, self.scale, self.units)
        return kernels.sums.weighted_sum(np.array(self.weights), scaled)

    def as_forest(self) -> Forest | None:
        """The same as one forest, which any LightGBM reads; None where it is not a sum of trees."""
        first = self.parts[0]
        if self.scale == "query" or not isinstance(first, Forest):
            return None
        trees: list[str] = []
        for part, weight, unit in zip(self.parts, self.weights, self.units or [1.0] * len(self.parts), strict=True):
            if not isinstance(part, Forest) or "\naverage_output\n" in part.text:
                return None
            trees += [damped(tree, weight / unit) for tree in part.trees]
        return replace(first, text=joined(first.text, trees), feature_names=self.feature_names, notes=self.notes)


@dataclass(frozen=True)
class Stacked(_Mixture):
    """A model with the scores of other models as features, alone or with the original features (stacking)."""

    parts: tuple[Scorer, ...]
    final: Scorer  # uses the output of `stacked`
    inputs: Inputs = "both"
    notes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        same_features(self.parts)
        if self.inputs not in get_args(Inputs):
            raise ValueError(f"inputs must be one of {', '.join(get_args(Inputs))} (got {self.inputs!r})")
        expected = len(self.parts) + (self.features if self.inputs == "both" else 0)
        if self.inputs == "features" or self.final.features != expected:
            raise ValueError(
                f"the final model must use {expected} features, as {len(self.parts)} scores with inputs = "
                f"{self.inputs!r} give (got {self.final.features}); train it on the output of `stacked`"
            )

    def score(self, data: RankingData, client: int | None = None) -> Reals:
        """[documents]: higher is better."""
        return np.asarray(self.final.score(stacked(self.parts, data, self.inputs)), dtype=np.float64)


def damped(tree: str, factor: float) -> str:
    """A tree of a LightGBM text model with its output multiplied by a factor."""
    if factor == 1.0:
        return tree
    lines = []
    for line in tree.splitlines():
        key, mark, values = line.partition("=")
        if key in ("leaf_value", "leaf_const", "leaf_coeff", "internal_value", "shrinkage"):
            values = " ".join(repr(float(value) * factor) for value in values.split())
        lines.append(key + mark + values)
    return "\n".join(lines)


def same_features(parts: Sequence[Scorer]) -> None:
    """Raise ValueError for models with different features, whose scores cannot be added."""
    if not parts:
        raise ValueError("no models to merge; give at least one")
    first = parts[0]
    for number, part in enumerate(parts[1:], start=2):
        if part.features != first.features:
            raise ValueError(
                f"model 1 uses {first.features} features, model {number} uses {part.features}; "
                "merge models that were trained on the same features"
            )
        if part.normalised != first.normalised:
            raise ValueError(
                f"model 1 was trained on features with normalise = {first.normalised!r}, model {number} with "
                f"{part.normalised!r}; train them with the same normalisation"
            )
        one, other = (np.asarray(getattr(each, "ranges", None), dtype=np.float64) for each in (first, part))
        if part.normalised == "global" and not np.array_equal(one, other, equal_nan=True):
            raise ValueError(
                f'models 1 and {number} were trained with normalise = "global" and different ranges, so the same '
                'document has different features; train them with "none"'
            )
        if part.feature_names and first.feature_names and part.feature_names != first.feature_names:
            column = next(
                c
                for c, pair in enumerate(zip(first.feature_names, part.feature_names, strict=True))
                if len(set(pair)) > 1
            )
            raise ValueError(
                f"feature {column + 1} is {first.feature_names[column]!r} for model 1 and "
                f"{part.feature_names[column]!r} for model {number}; merge models with the same features"
            )


def scores_of(parts: Sequence[Scorer], data: RankingData) -> Reals:
    """[parts, documents]."""
    return np.stack([np.asarray(part.score(data), dtype=np.float64) for part in parts])


def on_scale(scores: Reals, data: RankingData, scale: Scale, units: Sequence[float] = ()) -> Reals:
    """Scores [parts, documents] made comparable.

    "none": unchanged. "fixed": divided by each model's unit, see `units_of`. "query": mean 0 and standard deviation 1
    within every query, so a model has the same influence on all queries.
    """
    if scale == "none":
        return scores
    if scale == "fixed":
        return np.asarray(scores / np.array(units)[:, None])
    centred, spread = _centred(scores, data)
    return np.asarray(centred / np.repeat(np.where(spread > 0, spread, 1.0), np.diff(data.offsets), axis=1))


def units_of(scores: Reals, data: RankingData) -> tuple[float, ...]:
    """[parts]: the typical spread of scores within a query; 1 for a model with constant scores."""
    centred, _ = _centred(scores, data)
    spread = np.sqrt(np.mean(np.square(centred), axis=1))
    return tuple(float(one) if one > 0 else 1.0 for one in spread)


def _centred(scores: Reals, data: RankingData) -> tuple[Reals, Reals]:
    """Scores minus their mean within the query, and their standard deviations [parts, queries]."""
    lengths = np.diff(data.offsets)
    means = np.add.reduceat(scores, data.offsets[:-1], axis=1) / lengths
    centred = scores - np.repeat(means, lengths, axis=1)
    return centred, np.sqrt(np.add.reduceat(np.square(centred), data.offsets[:-1], axis=1) / lengths)


def stacked(parts: Sequence[Scorer], data: RankingData, inputs: Inputs) -> RankingData:
    """Data whose columns are the features and the models' scores, or only one of them."""
    if inputs == "features":
        return data
    scores = scores_of(parts, data).T.astype(np.float32)
    names = tuple(f"score of model {number}" for number in range(1, len(parts) + 1))
    if inputs == "scores":
        return replace(data, features=np.ascontiguousarray(scores), feature_names=names, ranges=None)
    features = fitting(data, parts[0].features)
    known = len(data.feature_names) == parts[0].features
    return replace(
        data,
        features=np.hstack([features, scores]),
        feature_names=(*data.feature_names, *names) if known else (),
        ranges=None,
    )

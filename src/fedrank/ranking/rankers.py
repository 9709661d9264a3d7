"""Rankers: functions from features to a score, whose parameters are one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrank import kernels
from fedrank.types import Features, Ranker, Scores, Weights


@dataclass(frozen=True)
class Linear:
    """One weight per feature, no bias."""

    start_norm: float = 0.0  # length of the random first vector; 0 starts from zero (published code: 0.01)

    def __post_init__(self) -> None:
        if self.start_norm < 0:
            raise ValueError(f"start_norm = {self.start_norm} is not a length; use 0 or more")

    @property
    def hidden(self) -> int:
        return 0

    def size(self, features: int) -> int:
        return features

    def first(self, features: int, rng: np.random.Generator) -> Weights:
        if self.start_norm == 0:
            return np.zeros(features)
        direction = kernels.chance.normals(rng, features)
        return self.start_norm * direction / kernels.sums.length(direction)

    def score(self, weights: Weights, features: Features) -> Scores:
        scores: Scores = kernels.sums.products(features, np.atleast_2d(weights).astype(np.float32)).T
        return scores if weights.ndim == 2 else scores[0]


@dataclass(frozen=True)
class Mlp:
    """One hidden layer of sigmoid units with bias, and a linear output without.

    The vector holds the hidden weights feature by feature, then the hidden biases, then the output weights.
    """

    hidden: int = 64  # units

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(f"hidden = {self.hidden} leaves no unit; use 1 or more, or the linear ranker")

    def size(self, features: int) -> int:
        return self.hidden * (features + 2)

    def first(self, features: int, rng: np.random.Generator) -> Weights:
        """Normal with deviation 1 / fan-in, biases too."""
        inner = kernels.chance.normals(rng, self.hidden * (features + 1)) / features
        return np.concatenate([inner, kernels.chance.normals(rng, self.hidden) / self.hidden])

    def score(self, weights: Weights, features: Features) -> Scores:
        return _neural_scores(weights, self.hidden, features)


@dataclass(frozen=True)
class Relu:
    """One hidden layer of rectified units with bias, and a linear output without: the neural ranker of FOLtR-ES.

    The vector is laid out as that of `Mlp`.
    """

    units: int = 10  # hidden units
    start: Literal["zero", "normal"] = "zero"  # zero has no gradient: only evolution leaves it; normal is that of `mlp`

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(f"units = {self.units} leaves no unit; use 1 or more, or the linear ranker")
        if self.start not in ("zero", "normal"):
            raise ValueError(f'no start {self.start!r}; use "zero" or "normal"')

    @property
    def hidden(self) -> int:
        """Negative, by which kernels know rectified units."""
        return -self.units

    def size(self, features: int) -> int:
        return self.units * (features + 2)

    def first(self, features: int, rng: np.random.Generator) -> Weights:
        if self.start == "zero":
            return np.zeros(self.size(features))
        return Mlp(self.units).first(features, rng)

    def score(self, weights: Weights, features: Features) -> Scores:
        return _neural_scores(weights, self.hidden, features)


RANKERS: dict[str, type[Ranker]] = {"linear": Linear, "mlp": Mlp, "relu": Relu}


def _neural_scores(weights: Weights, hidden: int, features: Features) -> Scores:
    from fedrank.kernels.rankers import mlp_scores

    features = np.ascontiguousarray(features)
    models = np.ascontiguousarray(np.atleast_2d(weights), dtype=np.float32)
    scores = np.empty((len(models), len(features)), dtype=np.float32)
    for model, row in zip(models, scores, strict=True):
        mlp_scores(model, hidden, features, 0, len(features), row)
    return scores if weights.ndim == 2 else scores[0]

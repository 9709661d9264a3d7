"""Rankers: functions from features to a score, whose parameters are one flat vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedrank import kernels
from fedrank.types import Features, Ranker, Scores, Weights


@dataclass(frozen=True)
class Linear:
    """A linear ranker: one weight per feature, no bias."""

    start_norm: float = 0.0  # L2 norm of the random initial vector; 0: start from zero (published code: 0.01)

    def __post_init__(self) -> None:
        if self.start_norm < 0:
            raise ValueError(f"start_norm must be at least 0 (got {self.start_norm})")

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
    """A neural ranker: one hidden layer of sigmoid units with bias, and a linear output without bias.

    The vector contains the hidden weights feature by feature, then the hidden biases, then the output weights.
    """

    hidden: int = 64  # number of hidden units

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise ValueError(
                f"hidden must be at least 1 (got {self.hidden}); without hidden units, use the linear ranker"
            )

    def size(self, features: int) -> int:
        return self.hidden * (features + 2)

    def first(self, features: int, rng: np.random.Generator) -> Weights:
        """Return normal weights and biases with standard deviation 1 / fan-in."""
        inner = kernels.chance.normals(rng, self.hidden * (features + 1)) / features
        return np.concatenate([inner, kernels.chance.normals(rng, self.hidden) / self.hidden])

    def score(self, weights: Weights, features: Features) -> Scores:
        return _neural_scores(weights, self.hidden, features)


@dataclass(frozen=True)
class Relu:
    """The neural ranker of FOLtR-ES: one hidden layer of rectified linear units with bias, and a linear output without.

    The vector has the layout of `Mlp`.
    """

    units: int = 10  # number of hidden units
    start: Literal["zero", "normal"] = "zero"  # zero has no gradient and needs evolution; normal is as in `mlp`

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ValueError(
                f"units must be at least 1 (got {self.units}); without hidden units, use the linear ranker"
            )
        if self.start not in ("zero", "normal"):
            raise ValueError(f'start must be "zero" or "normal" (got {self.start!r})')

    @property
    def hidden(self) -> int:
        """Negative, which marks rectified units for kernels."""
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

"""Server steps: how the server moves its model by an aggregated change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.kernels.records import ADAM, ADD, MOMENTUM, CompiledStep
from fedrank.types import Change, ServerOptimizer, Weights


@dataclass(frozen=True)
class Add:
    """Add the change, times a rate (FedAvg uses 1)."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def first(self, size: int) -> NDArray[np.float64]:
        return np.zeros(0)

    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]:
        return weights + self.rate * change, state

    def compiled_step(self) -> CompiledStep:
        return CompiledStep(ADD, float(self.rate), 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Momentum:
    """Momentum: earlier changes continue to act (Polyak, 1964; as in FedAvgM, Hsu et al., 2019)."""

    rate: float = 1.0
    momentum: float = 0.9  # decay of earlier changes, at least 0 and below 1

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_share("momentum", self.momentum)

    def first(self, size: int) -> NDArray[np.float64]:
        return np.zeros(size)

    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]:
        direction = self.momentum * state.reshape(weights.shape) + change
        return weights + self.rate * direction, direction.ravel()

    def compiled_step(self) -> CompiledStep:
        return CompiledStep(MOMENTUM, float(self.rate), float(self.momentum), 0.0, 0.0)


@dataclass(frozen=True)
class Adam:
    """Adaptive steps of about equal length in every parameter (Adam; Kingma and Ba, ICLR 2015).

    The change is the direction of improvement, so the step ascends it.
    """

    rate: float = 0.001  # approximate maximum step of a parameter
    beta1: float = 0.9  # decay of the mean change, at least 0 and below 1
    beta2: float = 0.999  # decay of the mean squared change, at least 0 and below 1
    epsilon: float = 1e-8  # added to the denominator to avoid division by zero

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_share("beta1", self.beta1)
        _check_share("beta2", self.beta2)
        if not 0 < self.epsilon < np.inf:
            raise ValueError(f"epsilon must be positive, such as 1e-8 (got {self.epsilon})")

    def first(self, size: int) -> NDArray[np.float64]:
        """[2 x size + 1]: mean changes, mean squared changes, steps taken."""
        return np.zeros(2 * size + 1)

    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]:
        size = weights.size
        flat = change.ravel()
        after = np.empty_like(state)
        mean, square = after[:size], after[size:-1]
        mean[:] = self.beta1 * state[:size] + (1 - self.beta1) * flat
        square[:] = self.beta2 * state[size:-1] + (1 - self.beta2) * flat**2
        steps = after[-1] = state[-1] + 1
        unbiased_mean = mean / (1 - kernels.elementary.power(self.beta1, steps))
        unbiased_square = square / (1 - kernels.elementary.power(self.beta2, steps))
        step = self.rate * unbiased_mean / (np.sqrt(unbiased_square) + self.epsilon)
        return weights + step.reshape(weights.shape), after

    def compiled_step(self) -> CompiledStep:
        return CompiledStep(ADAM, float(self.rate), float(self.beta1), float(self.beta2), float(self.epsilon))


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {"add": Add, "momentum": Momentum, "adam": Adam}


def _check_rate(rate: float) -> None:
    if not 0 < rate < np.inf:
        raise ValueError(f"rate must be positive (got {rate})")


def _check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"{name} must be at least 0 and less than 1 (got {share})")

"""Server steps: how the server moves its model by a change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Change, ServerStep, Weights


@dataclass(frozen=True)
class Add:
    """Add the change, times a rate (FedAvg uses 1)."""

    rate: float = 1.0

    def first(self, size: int) -> NDArray[np.float64]:
        return np.zeros(0)

    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]:
        return weights + self.rate * change, state


SERVER_STEPS: dict[str, type[ServerStep]] = {"add": Add}

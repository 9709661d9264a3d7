"""Aggregators: how the server combines what arrived into one change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.robust import (
    Bulyan,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    Reputation,
    TrimmedMean,
    Trust,
)
from fedrank.types import Aggregator, Change, Messages, Trait


@dataclass(frozen=True)
class Mean:
    """Average of the updates, each counted by its interactions (FedAvg; McMahan et al., AISTATS 2017)."""

    weighted: bool = True  # by interactions; otherwise, and always with scaffold, every client counts the same

    traits: ClassVar[frozenset[Trait]] = frozenset({"sum"})

    def part(self, messages: Messages) -> NDArray[np.float64]:
        """[parameters + 1]: the weighted sum, and the sum of weights behind it."""
        weights = messages.sizes if self.weighted else np.ones_like(messages.sizes)
        total = np.zeros(messages.updates.shape[1] + 1)
        kernels.sums.add_rows(weights, messages.updates, total[:-1])
        total[-1] = weights.sum()
        return total

    def whole(self, total: NDArray[np.float64]) -> Change:
        if total[-1] == 0:
            return np.zeros(len(total) - 1)
        change: Change = total[:-1] / total[-1]
        return change

    def __call__(self, messages: Messages) -> Change:
        return self.whole(self.part(messages))


@dataclass(frozen=True)
class Apart:
    """No aggregation: every client keeps its own model and learns alone. The baseline that federation must beat."""

    traits: ClassVar[frozenset[Trait]] = frozenset({"apart"})

    def __call__(self, messages: Messages) -> Change:
        """[clients, parameters]: each model moves by its own update."""
        return messages.updates.astype(np.float64)


AGGREGATORS: dict[str, type[Aggregator] | type[Reputation]] = {
    "mean": Mean,
    "none": Apart,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "trimmed-mean": TrimmedMean,
    "median": Median,
    "bulyan": Bulyan,
    "geometric-median": GeometricMedian,
    "norm-bound": NormBound,
    "trust": Trust,
    "reputation": Reputation,
}

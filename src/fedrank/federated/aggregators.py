"""Aggregators: how the server combines updates into one change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.gossip import RankGuardStyle
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
from fedrank.types import Aggregator, Change, Messages, Trait, has_trait


@dataclass(frozen=True)
class Mean:
    """Mean of the updates, weighted by interactions (FedAvg; McMahan et al., AISTATS 2017)."""

    weighted: bool = True  # by interactions; otherwise, and always with scaffold, all clients have equal weight

    traits: ClassVar[frozenset[Trait]] = frozenset({"mean"})

    def client_weights(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes if self.weighted else np.ones_like(sizes)

    def __call__(self, messages: Messages) -> Change:
        return whole_of(self, part_of(self, messages))


@dataclass(frozen=True)
class Apart:
    """No aggregation: every client trains its own model alone. This is the baseline for federated learning."""

    traits: ClassVar[frozenset[Trait]] = frozenset({"apart"})

    def __call__(self, messages: Messages) -> Change:
        """Return [clients, parameters]: the update of each model."""
        return messages.updates.astype(np.float64)


def part_of(rule: Any, messages: Messages) -> NDArray[Any]:
    """Return the contribution of some clients' messages to an aggregator that is a sum.

    For a mean this is [parameters + 1]: the weighted sum of updates, and the sum of weights.
    """
    if not has_trait(rule, "mean"):
        part: NDArray[Any] = rule.part(messages)
        return part
    weights = rule.client_weights(messages.sizes)
    total = np.zeros(messages.updates.shape[1] + 1)
    kernels.sums.add_rows(weights, messages.updates, total[:-1])
    total[-1] = weights.sum()
    return total


def whole_of(rule: Any, total: NDArray[Any]) -> Change:
    """Return the change for the sum of all parts."""
    if not has_trait(rule, "mean"):
        change: Change = rule.whole(total)
        return change
    return total[:-1] / total[-1] if total[-1] else np.zeros(len(total) - 1)


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
    "rankguard-style": RankGuardStyle,
}

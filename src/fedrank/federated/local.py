"""Local methods for heterogeneous clients.

A client's step is its gradient plus the correction of a local method (`fedrank.types.LocalCorrection`): a pull towards
the starting model, a drift, or personal output weights. A client's memory between rounds stays with the client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Learned, LocalCorrection, LocalStep, Memory, Messages, Ranker, Trait, Weights


@dataclass(frozen=True)
class FedProx:
    """Every local step is pulled towards the global model (FedProx; Li et al., MLSys 2020)."""

    strength: float = 0.01  # μ: strength of the pull; one step moves back by rate x strength of the distance

    def __post_init__(self) -> None:
        if not 0 < self.strength < np.inf:
            raise ValueError(f"strength must be greater than 0 (got {self.strength})")

    def first(self, ranker: Ranker, start: Weights, count: int) -> Memory:
        return None

    def correction(self, memory: Memory, common: NDArray[np.float32] | None) -> LocalCorrection:
        return LocalCorrection(pull=self.strength)

    def remember(
        self, memory: Memory, correction: LocalCorrection, learned: Learned, steps: NDArray[np.float64]
    ) -> Memory:
        return None


@dataclass(frozen=True)
class FedPer:
    """Output weights stay at each client, and only the hidden layer is shared (FedPer; Arivazhagan et al., 2019).

    The averaged model, with the mean of all output weights, exists only in simulation: clients do not send theirs.
    """

    strength: float = 0.0  # μ of FedProx for the shared weights; 0: no pull

    traits: ClassVar[frozenset[Trait]] = frozenset({"shared part"})

    def __post_init__(self) -> None:
        if not 0 <= self.strength < np.inf:
            raise ValueError(f"strength must be at least 0 (got {self.strength})")

    def first(self, ranker: Ranker, start: Weights, count: int) -> Memory:
        own = start[..., start.shape[-1] - abs(ranker.hidden) :]
        return np.array(np.broadcast_to(own, (count, abs(ranker.hidden))))

    def correction(self, memory: Memory, common: NDArray[np.float32] | None) -> LocalCorrection:
        return LocalCorrection(pull=self.strength, personal=memory)

    def remember(
        self, memory: Memory, correction: LocalCorrection, learned: Learned, steps: NDArray[np.float64]
    ) -> Memory:
        return learned.personal


@dataclass(frozen=True)
class Scaffold:
    """Every step is corrected by the difference of client and mean gradients (SCAFFOLD; Karimireddy et al., ICML 2020).

    Option II of the paper. A client stores its control, the mean gradient of its last round. The server stores the mean
    of all controls and sends it with the model; it does not need the controls themselves, since a client's control
    moves by update / (steps x rate) - common. As in the paper, all clients have equal weight, regardless of their
    interactions: the aggregator "mean" is not weighted here.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({"plain messages", "common", "alike"})

    def first(self, ranker: Ranker, start: Weights, count: int) -> Memory:
        return np.zeros((count, start.shape[-1]))

    def correction(self, memory: Memory, common: NDArray[np.float32] | None) -> LocalCorrection:
        assert memory is not None
        return LocalCorrection(drifts=(0.0 if common is None else common) - memory)

    def remember(
        self, memory: Memory, correction: LocalCorrection, learned: Learned, steps: NDArray[np.float64]
    ) -> Memory:
        """A client's control becomes its mean gradient of this round; without a step it is unchanged."""
        assert memory is not None
        assert correction.drifts is not None
        mean = learned.updates / np.where(steps > 0, steps, 1.0)[:, None] - correction.drifts
        return np.where(steps[:, None] > 0, mean, memory)

    def first_common(self, parameters: int) -> NDArray[np.float64]:
        """[parameters]: the mean control before round 1."""
        return np.zeros(parameters)

    def common_of(self, memory: NDArray[np.float64]) -> NDArray[np.float64]:
        """[parameters]: the mean of known controls, for example in a simulation without some clients."""
        mean: NDArray[np.float64] = memory.mean(axis=0)
        return mean

    def common_move(
        self, common: NDArray[np.float64], messages: Messages, rate: float, clients: int
    ) -> NDArray[np.float64]:
        """[parameters]: the move of the mean control of all clients that the messages of some of them imply.

        `common` is the one sent in this round.
        """
        steps = messages.sizes * rate
        moved = messages.updates / np.where(steps > 0, steps, 1.0)[:, None] - common.astype(np.float32)
        total: NDArray[np.float64] = np.add.reduce(np.where(steps[:, None] > 0, moved, 0.0), axis=0)
        return total / clients


LOCAL_STEPS: dict[str, type[LocalStep]] = {"fedprox": FedProx, "fedper": FedPer, "scaffold": Scaffold}

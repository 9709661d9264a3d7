"""Local methods: how clients that differ keep their steps together.

A client's step is its gradient, and what a local method adds to it (`fedrank.types.LocalCorrection`): a pull back to
the model it started from, a drift, or output weights of its own. What a client keeps between rounds stays with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Learned, LocalCorrection, LocalStep, Memory, Messages, Ranker, Trait, Weights


@dataclass(frozen=True)
class FedProx:
    """Every local step pulls back to the global model (FedProx; Li et al., MLSys 2020)."""

    strength: float = 0.01  # μ: how strongly; the pull of one step is rate x strength of the way

    def __post_init__(self) -> None:
        if not 0 < self.strength < np.inf:
            raise ValueError(f"strength = {self.strength} would not pull back to the global model; use more than 0")

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
    """The output weights stay with each client, and only the hidden layer is shared (Arivazhagan et al., 2019).

    The averaged model, with the mean of everybody's output weights, exists only in simulation: no client sends its own.
    """

    strength: float = 0.0  # μ of FedProx, for the shared weights; 0: nothing pulls them back

    traits: ClassVar[frozenset[Trait]] = frozenset({"shared part"})

    def __post_init__(self) -> None:
        if not 0 <= self.strength < np.inf:
            raise ValueError(f"strength = {self.strength} would push away from the global model; use 0 or more")

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
    """Every step is corrected by how this client's gradients differ from everybody's (SCAFFOLD, option II).

    Karimireddy et al., ICML 2020. A client keeps its control, the mean gradient of its last round. The server keeps the
    mean of all controls and sends it along with the model; it needs no control of anyone to keep it: a client's moves
    by update / (steps x rate) - common. As in the paper, the server counts all clients alike, however often they
    search: the aggregator "mean" is not weighted here.
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
        """A client's control becomes its mean gradient of this round. Who took no step keeps the old one."""
        assert memory is not None
        assert correction.drifts is not None
        mean = learned.updates / np.where(steps > 0, steps, 1.0)[:, None] - correction.drifts
        return np.where(steps[:, None] > 0, mean, memory)

    def first_common(self, parameters: int) -> NDArray[np.float64]:
        """[parameters]: the mean control before round 1."""
        return np.zeros(parameters)

    def common_of(self, memory: NDArray[np.float64]) -> NDArray[np.float64]:
        """[parameters]: the mean control of clients whose own are known, as in a simulation without some of them."""
        mean: NDArray[np.float64] = memory.mean(axis=0)
        return mean

    def common_move(
        self, common: NDArray[np.float64], messages: Messages, rate: float, clients: int
    ) -> NDArray[np.float64]:
        """[parameters]: how far the mean control of all clients moves by what the messages of some of them imply.

        `common` is the one that was sent in this round.
        """
        steps = messages.sizes * rate
        moved = messages.updates / np.where(steps > 0, steps, 1.0)[:, None] - common.astype(np.float32)
        total: NDArray[np.float64] = np.add.reduce(np.where(steps[:, None] > 0, moved, 0.0), axis=0)
        return total / clients


LOCAL_STEPS: dict[str, type[LocalStep]] = {"fedprox": FedProx, "fedper": FedPer, "scaffold": Scaffold}

"""FOLtR-ES on a GPU: one warp per client with a linear ranker, one group of warps per client with a neural one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.neural import WarpGroups, group_global_bytes, group_shared_bytes, widened
from fedrank.ranking.cuda.pdgd import LANES, SHORT, SHOWN, TASK, PdgdOnDevice, aligned
from fedrank.ranking.evolution import MESSAGE, Evolution, keys_of, messages_of
from fedrank.seeds import Chance
from fedrank.types import Learned, LocalCorrection, Observed, SimulatedClients, Weights

# The layout of `struct EvolutionTask` in kernels/evolution.cu.
EVOLUTION_TASK = np.dtype(
    [
        *TASK.descr,
        *((name, "<u8") for name in ("rewards", "seeds", "means", "desks", "noise_key", "answer_key")),
        *((name, "<i8") for name in ("hidden", "desk", "clicked_dcg")),
        *((name, "<f8") for name in ("deviation", "truth")),
    ]
)


def linear_shared_bytes(features: int, longest: int) -> int:
    """Bytes per warp, in the layout of `furnish_player` in kernels/evolution.cu."""
    at_least = max(longest, SHOWN)
    return aligned(4 * (features + 8), 8 * features, 8 * at_least, 4 * longest, 4 * at_least, 12 * SHOWN)


class EvolutionOnDevice(PdgdOnDevice):
    """The learner with its clients and their data in device memory, laid out as for PDGD."""

    many_rounds = False
    bytes_each = MESSAGE.itemsize

    def __init__(self, device: Device, learner: Evolution, clients: SimulatedClients) -> None:
        learner.check(clients)
        super().__init__(device, learner, clients)
        self.task = widened(self.task, EVOLUTION_TASK)
        self.task["hidden"], self.task["clicked_dcg"] = learner.ranker.hidden, learner.reward == "dcg"
        self.task["deviation"], self.task["truth"] = learner.deviation, learner.truth
        self._outputs: tuple[Any, Any, Any] | None = None  # rewards, seeds, means

    def _shared_bytes(self) -> int:
        return linear_shared_bytes(self.features, int(self.clients.data.longest))

    def _settings(self) -> dict[str, float]:
        return {}

    def _begin(self, chance: Chance, correction: LocalCorrection, count: int) -> None:
        device = self.device
        if self._outputs is None or len(self._outputs[0]) < count:
            self._outputs = (
                device.empty((count,), np.float64),
                device.empty((count,), np.uint64),
                device.empty((count, 2), np.float32),
            )
        for name, array in zip(("rewards", "seeds", "means"), self._outputs, strict=True):
            self.task[name] = device.address(array)
        self.task["key"], self.task["noise_key"], self.task["answer_key"] = keys_of(chance)
        self._loop = "evolution_clients_short" if self.clients.data.longest <= SHORT else "evolution_clients"

    def learned(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, correction: LocalCorrection
    ) -> Learned:
        updates, _ = self.learn(start, chance, present, correction)
        count = len(updates)
        assert self._outputs is not None
        _, seeds, means = (self.device.get(each[:count]) for each in self._outputs)
        return Learned(self.device.get(updates), self._observed(count), sent=messages_of(seeds, means))

    def _observed(self, count: int) -> Observed:
        assert self._outputs is not None
        return Observed(self.device.get(self._online[:count]), self.device.get(self._outputs[0][:count]))


class NeuralEvolutionOnDevice(EvolutionOnDevice):
    """The same for a neural ranker."""

    step = LANES

    def __init__(self, device: Device, learner: Evolution, clients: SimulatedClients) -> None:
        super().__init__(device, learner, clients)
        global_bytes = group_global_bytes(self.width, learner.ranker.hidden, int(clients.data.longest), clipped=False)
        self._groups = WarpGroups(device, self.shared_bytes, global_bytes)
        self._groups.fill(self.task)

    def _shared_bytes(self) -> int:
        return group_shared_bytes(self.features, self.learner.ranker.hidden, int(self.clients.data.longest))

    def _learn(self, first: int, last: int) -> None:
        task = self.task.copy()
        task["first"], task["taking_part"] = first, last
        self._groups.begin("evolution_crews", task, last - first)

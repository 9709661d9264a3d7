"""PDGD for neural rankers on a GPU: a group of four warps per client."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.pdgd import LANES, SHOWN, TASK, PdgdOnDevice, aligned
from fedrank.seeds import Chance
from fedrank.types import LocalCorrection, SimulatedClients

GROUP_THREADS = 128  # CREW in kernels/crew.cu: four warps
TILE = 16  # hidden units, as in kernels/rankers.cu
MAX_RATE = 1e6  # with larger steps, weights may exceed the range of single precision, which half of them use
GROUPS = 4  # per multiprocessor, limited by registers

# The layout of `struct NeuralTask` in kernels/neural_pdgd.cu.
NEURAL_TASK = np.dtype([*TASK.descr, ("desks", "<u8"), ("hidden", "<i8"), ("desk", "<i8")])


def widened(task: Any, kind: np.dtype[Any]) -> Any:
    """Return the task with additional fields."""
    wider = np.zeros((), kind)
    for name in task.dtype.names:
        wider[name] = task[name]
    return wider


def group_shared_bytes(features: int, hidden: int, longest: int) -> int:
    """Bytes of shared memory per group of warps, in the layout of `furnish_crew` in kernels/neural_pdgd.cu."""
    layer, at_least = 4 * (features + 2) * TILE * -(-abs(hidden) // TILE), max(longest, SHOWN)
    small = 8 * (2 * SHOWN * SHOWN + 3 * SHOWN + 1) + 4 * SHOWN + 4
    lists = aligned(8 * longest, 8 * at_least, 4 * longest, 4 * at_least)
    return aligned(layer, max(lists, aligned(8 * SHOWN * features)), small)


def group_global_bytes(parameters: int, hidden: int, longest: int, clipped: bool) -> int:
    """Bytes of global memory per group of warps."""
    units = 4 * abs(hidden) * (-(-longest // LANES) * LANES)
    return aligned(8 * parameters, 8 * parameters * clipped, units)


class WarpGroups:
    """The memory of all groups of warps, and the launch of their kernels."""

    def __init__(self, device: Device, shared_bytes: int, global_bytes: int) -> None:
        self.device, self.shared_bytes, self.global_bytes = device, shared_bytes, global_bytes
        self.most = device.at_once * GROUPS
        self.wide = device.at_once > 1 and shared_bytes > device.fast_memory  # a CPU has only one kind of memory
        self._global_memory = device.empty((self.most, global_bytes), np.uint8)
        self._scratch = device.empty((self.most, shared_bytes), np.uint8) if self.wide else None

    def fill(self, task: Any) -> None:
        task["desks"], task["desk"] = self.device.address(self._global_memory), self.global_bytes
        if self._scratch is not None:
            task["scratch"] = self.device.address(self._scratch)

    def begin(self, loop: str, task: Any, clients: int) -> None:
        if self.wide:
            loop = f"{loop.removesuffix('_plain')}_wide"
        self.device.each_part(loop, task, min(clients, self.most), GROUP_THREADS, 0 if self.wide else self.shared_bytes)


class NeuralOnDevice(PdgdOnDevice):
    """A learner of a neural ranker with its clients and their data in device memory."""

    many_rounds = False
    step = LANES

    def __init__(self, device: Device, learner: Any, clients: SimulatedClients) -> None:
        super().__init__(device, learner, clients)
        hidden = learner.ranker.hidden
        global_bytes = group_global_bytes(self.width, hidden, int(clients.data.longest), learner.clip_gradients > 0)
        self._groups = WarpGroups(device, self.shared_bytes, global_bytes)
        self.task = widened(self.task, NEURAL_TASK)
        self.task["hidden"] = hidden
        self._groups.fill(self.task)

    def _shared_bytes(self) -> int:
        return group_shared_bytes(self.features, self.learner.ranker.hidden, int(self.clients.data.longest))

    def _begin(self, chance: Chance, correction: LocalCorrection, count: int) -> None:
        self.task["pull"] = self.learner.rate * correction.pull
        straight = self.bare and not correction.pull and correction.drifts is None and not self.learner.batch
        self._loop = "neural_clients_plain" if straight and self.learner.rate <= MAX_RATE else "neural_clients"

    def _learn(self, first: int, last: int) -> None:
        task = self.task.copy()
        task["first"], task["taking_part"] = first, last
        self._groups.begin(self._loop, task, last - first)

"""PDGD for neural rankers on a GPU: a crew of four warps per client."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.pdgd import LANES, SHOWN, TASK, PdgdOnDevice
from fedrank.seeds import Chance
from fedrank.types import LocalCorrection, SimulatedClients

CREW = 128  # threads, as in kernels/crew.cu
TILE = 16  # hidden units, as in kernels/rankers.cu
MAX_RATE = 1e6  # with larger steps, weights may exceed the range of single precision, which half of them use
CREWS = 4  # per multiprocessor, limited by registers

# The layout of `struct NeuralTask` in kernels/neural_pdgd.cu.
NEURAL_TASK = np.dtype([*TASK.descr, ("desks", "<u8"), ("hidden", "<i8"), ("desk", "<i8")])


def widened(task: Any, kind: np.dtype[Any]) -> Any:
    """Return the task with additional fields."""
    wider = np.zeros((), kind)
    for name in task.dtype.names:
        wider[name] = task[name]
    return wider


def crew_room(features: int, hidden: int, longest: int) -> int:
    """Bytes of shared memory per crew, in the layout of `furnish_crew` in kernels/neural_pdgd.cu."""
    layer, at_least = 4 * (features + 2) * TILE * -(-abs(hidden) // TILE), max(longest, SHOWN)
    small = 8 * (2 * SHOWN * SHOWN + 3 * SHOWN + 1) + 4 * SHOWN + 4
    papers = sum(map(_rounded, (8 * longest, 8 * at_least, 4 * longest, 4 * at_least)))
    return _rounded(layer) + max(papers, _rounded(8 * SHOWN * features)) + _rounded(small)


def _rounded(size: int) -> int:
    return -(-size // 16) * 16


def crew_desk(parameters: int, hidden: int, longest: int, clipped: bool) -> int:
    """Bytes of global memory per crew."""
    units = 4 * abs(hidden) * (-(-longest // LANES) * LANES)
    return sum(map(_rounded, (8 * parameters, 8 * parameters * clipped, units)))


class Crews:
    """The memory of all crews, and the launch of their kernels."""

    def __init__(self, device: Device, room: int, desk: int) -> None:
        self.device, self.room, self.desk = device, room, desk
        self.most = device.at_once * CREWS
        self.wide = device.at_once > 1 and room > device.fast_memory  # a CPU has only one kind of memory
        self._desks = device.empty((self.most, desk), np.uint8)
        self._rooms = device.empty((self.most, room), np.uint8) if self.wide else None

    def fill(self, task: Any) -> None:
        task["desks"], task["desk"] = self.device.address(self._desks), self.desk
        if self._rooms is not None:
            task["scratch"] = self.device.address(self._rooms)

    def begin(self, loop: str, task: Any, clients: int) -> None:
        if self.wide:
            loop = f"{loop.removesuffix('_plain')}_wide"
        self.device.each_part(loop, task, min(clients, self.most), CREW, 0 if self.wide else self.room)


class NeuralOnDevice(PdgdOnDevice):
    """A learner of a neural ranker with its clients and their data in device memory."""

    many_rounds = False

    tight = False

    def __init__(self, device: Device, learner: Any, clients: SimulatedClients) -> None:
        super().__init__(device, learner, clients)
        hidden = learner.ranker.hidden
        desk = crew_desk(self.width, hidden, int(clients.data.longest), learner.clip_gradients > 0)
        self._crews = Crews(device, self.room, desk)
        self.task = widened(self.task, NEURAL_TASK)
        self.task["hidden"] = hidden
        self._crews.fill(self.task)

    def _room(self) -> int:
        return crew_room(self.features, self.learner.ranker.hidden, int(self.clients.data.longest))

    def _begin(self, chance: Chance, correction: LocalCorrection, count: int) -> None:
        self.task["pull"] = self.learner.rate * correction.pull
        straight = self.bare and not correction.pull and correction.drifts is None and not self.learner.batch
        self._loop = "neural_clients_plain" if straight and self.learner.rate <= MAX_RATE else "neural_clients"

    def _learn(self, first: int, last: int) -> None:
        task = self.task.copy()
        task["first"], task["taking_part"] = first, last
        self._crews.begin(self._loop, task, last - first)

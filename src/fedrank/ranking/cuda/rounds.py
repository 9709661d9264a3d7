"""Run many small rounds in one launch, since launch overhead would dominate single small rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.cuda.pdgd import LANES, SHOWN, TASK, PdgdOnDevice, aligned
from fedrank.types import Weights

TEAM = 8  # warps per client, as in kernels/warp.cu
MAX_CLIENTS = 1024  # per round; with more, single rounds fill a GPU
_SEARCH = 48  # bytes of `struct Search` in kernels/rounds.cu

_BEFORE = "keys present counts bias model server"
_AFTER = "updates online models servers gate done scratch"
# The layout of `struct Rounds` in kernels/rounds.cu.
ROUNDS = np.dtype(
    [("task", TASK)]
    + [(name, "<u8") for name in f"{_BEFORE} {_AFTER}".split()]
    + [(name, "<i8") for name in ["rounds", "taking_part", "weighted", "step", "remembered"]]
    + [(name, "<f8") for name in ["server_rate", "beta1", "beta2", "epsilon"]]
)


class MoveOnDevice(NamedTuple):
    """A server step in the form that kernels take."""

    kind: int  # ADD, MOMENTUM or ADAM
    rate: float
    beta1: float = 0.0  # for momentum: its decay
    beta2: float = 0.0
    epsilon: float = 0.0

    def remembered(self, size: int) -> int:
        """The number of state values of the step; Adam's step count is tracked outside."""
        return (0, size, 2 * size)[self.kind]


class RoundsDone(NamedTuple):
    """The results of consecutive rounds."""

    models: NDArray[np.float64]  # [rounds, parameters]
    servers: NDArray[np.float64]  # [rounds, remembered]
    online: NDArray[np.float64]  # [rounds, taking part]


def team_shared_bytes(features: int, longest: int, remembered: int) -> int:
    """Bytes of a team after those of a warp, in the layout of `furnish_team` in kernels/rounds.cu."""
    lists = 1024 * -(-longest // LANES), 16 * longest, 16 * longest
    return aligned(8 * features, 8 * remembered, *lists, 2 * _SEARCH, 16, 32 * SHOWN, 2 * longest)


class RoundsOnDevice:
    """Rounds of a learner and its clients in device memory, aggregated by the mean."""

    def __init__(self, on_device: PdgdOnDevice, step: MoveOnDevice, weighted: bool) -> None:
        self.on_device, self.step = on_device, step
        self._task = np.zeros((), ROUNDS)
        self._task["task"] = on_device.task
        self._remembered = step.remembered(on_device.features)
        self._shared_bytes = on_device.shared_bytes + team_shared_bytes(
            on_device.features, int(on_device.clients.data.longest), self._remembered
        )
        self._loop = on_device.loop("rounds") + "_plain" * on_device.bare
        settings = {
            "weighted": weighted, "step": step.kind, "remembered": self._remembered, "server_rate": step.rate,
            "beta1": step.beta1, "beta2": step.beta2, "epsilon": step.epsilon,
        }  # fmt: skip
        for name, number in settings.items():
            self._task[name] = number
        self._updates: Any = None

    @property
    def fits(self) -> bool:
        """Whether the lists fit into the shared memory of a team."""
        return self._shared_bytes <= self.on_device.device.fast_memory

    def begin(
        self,
        model: Weights,
        server: NDArray[np.float64],
        keys: NDArray[np.uint64],
        present: NDArray[np.int64] | None,
        counts: NDArray[np.float64],
        bias: NDArray[np.float64],
    ) -> Callable[[], RoundsDone]:
        """Start one round per key; the returned function waits for them.

        `present` [rounds, participants] are rows of the clients, `counts` the sums of their weights, `bias` [rounds, 2]
        Adam's bias corrections. Rounds stop before one in which an update is not finite.
        """
        device, rounds, size = self.on_device.device, len(keys), self.on_device.features
        taking_part = len(self.on_device.clients) if present is None else present.shape[1]
        if self._updates is None or self._updates.shape[1] < taking_part:
            self._updates = device.empty((2, taking_part, size), np.float32)
        # One transfer in each direction: a transfer takes longer than a round.
        letter = {
            "gate": np.zeros(1, np.int64), "keys": keys, "counts": counts, "bias": bias.ravel(), "model": model,
            "server": server[: self._remembered],
            "present": np.zeros(0, np.int64) if present is None else present.ravel(),
        }  # fmt: skip
        answer = {
            "done": 1, "online": rounds * taking_part, "models": rounds * size, "servers": rounds * self._remembered
        }  # fmt: skip
        sent = device.put(np.concatenate([np.ascontiguousarray(part).view(np.uint64) for part in letter.values()]))
        back = device.empty((sum(answer.values()),), np.float64)
        task = self._task.copy()
        for where, sizes in ((sent, {name: len(part) for name, part in letter.items()}), (back, answer)):
            address = device.address(where)
            for name, length in sizes.items():
                task[name] = address
                address += 8 * length
        if present is None:
            task["present"] = 0
        task["updates"], task["rounds"], task["taking_part"] = device.address(self._updates), rounds, taking_part
        device.each_part(self._loop, task, min(taking_part, device.at_once), LANES * TEAM, self._shared_bytes)

        def collect(kept: Any = sent) -> RoundsDone:  # keeps the sent arrays alive
            found = device.get(back)
            parts = dict(zip(answer, np.split(found, np.cumsum(list(answer.values()))[:-1]), strict=True))
            done = int(parts["done"][0])
            return RoundsDone(
                parts["models"].reshape(rounds, size)[:done],
                parts["servers"].reshape(rounds, self._remembered)[:done],
                parts["online"].reshape(rounds, taking_part)[:done],
            )

        return collect

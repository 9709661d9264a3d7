"""Which learners run on a graphics card, and when it pays to use one."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.devices import CudaDevice, Device, DeviceError
from fedrank.names import did_you_mean
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.seeds import Chance
from fedrank.types import Clip, Learned, Learner, LocalCorrection, Observed, SimulatedClients, Weights, fast_path

DEVICES = ("cpu", "cuda", "cuda-float16", "auto")
ENOUGH = 20_000  # interactions of a round: with fewer, a card waits for its orders longer than one core learns
ENOUGH_NEURAL = 1_000  # with neural rankers, with which one core learns ten times as long

_cards: list[CudaDevice] = []  # one for this process, once somebody asked


class DeviceLearner(NamedTuple):
    """A learner and its clients on a GPU: what it learns has the bits that the learner itself would give."""

    on_device: PdgdOnDevice

    @property
    def updates_stay(self) -> bool:
        """Whether updates can stay on the card as they are: not where clients send less than an update."""
        return self.bytes_each is None

    @property
    def bytes_each(self) -> int | None:
        """Of a message, where it is none of updates."""
        message = getattr(self.on_device.learner, "message", None)
        return None if message is None else int(message.itemsize)

    def __call__(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, correction: LocalCorrection
    ) -> Learned:
        """What these clients learn; all of them without `present`."""
        return self.on_device.learned(start, chance, present, correction)

    def stay(self, start: Weights, chance: Chance, present: NDArray[np.int64] | None) -> tuple[Any, Observed]:
        """Their updates, which stay there, and what was seen."""
        return self.on_device.stay(start, chance, present)

    def parts(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, weighted: bool, rows: int
    ) -> tuple[NDArray[np.float64], Observed]:
        """Sums of the updates of so many rows each, which stay there, and what was seen."""
        return self.on_device.parts(start, chance, present, weighted, rows)

    def clipped(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, clip: Clip
    ) -> tuple[NDArray[np.int64], Observed]:
        """The sum of their updates on a grid, each shortened, and what was seen."""
        return self.on_device.clipped(start, chance, present, clip)


def why_not(learner: Learner, clients: SimulatedClients) -> str:
    """Why this learner cannot learn on a card; empty if it can."""
    if fast_path(learner, "on_device") is None:
        return f"{type(learner).__name__} has no version for a graphics card; Pdgd and Evolution have"
    if clients.own_click_models:
        return "click models from outside do not run on a graphics card"
    if clients.people is not None:
        return "people of organisations are not simulated on a graphics card"
    return str(cast(Any, learner).not_on_device)


def check_device(device: str) -> None:
    """Refuse, before anything runs, a device that is none, or a card that is not there."""
    if device not in DEVICES:
        raise ValueError(f"no device {device!r}{did_you_mean(device, DEVICES)}; use one of {', '.join(DEVICES)}")
    if device.startswith("cuda"):
        card()


def choose(device: str | Device, learner: Learner, clients: SimulatedClients) -> Device | None:
    """The device on which these clients learn; None: the processor.

    "cuda" insists on a card, and so does "cuda-float16", with features in two bytes there. "auto" takes one if it is
    there, can do this, and a round is large enough to pay.
    """
    if isinstance(device, str):
        check_device(device)
    if device == "cpu":
        return None
    reason = why_not(learner, clients)
    if device == "auto":
        enough = ENOUGH_NEURAL if learner.ranker.hidden else ENOUGH
        if reason or int(clients.interactions.sum()) < enough:
            return None
        try:
            return card()
        except (ImportError, DeviceError):
            return None
    if reason:
        raise DeviceError(f'{reason}; use device = "cpu", or "auto"')
    return card() if isinstance(device, str) else device


def find_device_learner(device: str | Device, learner: Learner, clients: SimulatedClients) -> DeviceLearner | None:
    """The learner on its device; None: on the processor."""
    chosen = choose(device, learner, clients)
    return None if chosen is None else DeviceLearner(cast(Any, learner).on_device(chosen, clients, features_of(device)))


def features_of(device: str | Device) -> str:
    """As what features lie there: rounded to two bytes only where somebody said so."""
    return "float16" if device == "cuda-float16" else "float32"


def card() -> CudaDevice:
    """This process's card, found once."""
    if not _cards:
        _cards.append(CudaDevice())
    return _cards[0]

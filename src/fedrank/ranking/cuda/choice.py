"""Which learners have a twin on a graphics card, and when it pays to use it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.devices import CudaDevice, Device, DeviceError
from fedrank.names import nearest
from fedrank.ranking.cuda.evolution import CrewsPlay, EvolutionOnDevice
from fedrank.ranking.cuda.neural import NeuralOnDevice
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Chance
from fedrank.types import Clip, Learned, Learner, LocalCorrection, Observed, SimulatedClients, Weights

DEVICES = ("cpu", "cuda", "cuda-float16", "auto")
ENOUGH = 20_000  # interactions of a round: with fewer, a card waits for its orders longer than one core learns
ENOUGH_NEURAL = 1_000  # with neural rankers, with which one core learns ten times as long

_cards: list[CudaDevice] = []  # one for this process, once somebody asked


class DeviceLearner(NamedTuple):
    """A learner and a crowd on a card: what it learns has the bits that the learner itself would give."""

    there: PdgdOnDevice

    @property
    def bytes_each(self) -> int | None:
        """Of a message, where it is none of updates."""
        message = getattr(self.there.learner, "message", None)
        return None if message is None else int(message.itemsize)

    def __call__(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, correction: LocalCorrection
    ) -> Learned:
        """What these rows of the crowd learn; all of them without `present`."""
        return self.there.learned(start, chance, present, correction)

    def stay(self, start: Weights, chance: Chance, present: NDArray[np.int64] | None) -> tuple[Any, Observed]:
        """Their updates, which stay there, and what was seen."""
        return self.there.stay(start, chance, present)

    def parts(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, weighted: bool, rows: int
    ) -> tuple[NDArray[np.float64], Observed]:
        """Sums of the updates of so many rows each, which stay there, and what was seen."""
        return self.there.parts(start, chance, present, weighted, rows)

    def clipped(
        self, start: Weights, chance: Chance, present: NDArray[np.int64] | None, clip: Clip
    ) -> tuple[NDArray[np.int64], Observed]:
        """The sum of their updates on a grid, each shortened, and what was seen."""
        return self.there.clipped(start, chance, present, clip)


def why_not(learner: Learner, crowd: SimulatedClients) -> str:
    """Why this learner cannot learn on a card; empty if it can."""
    if not isinstance(learner, Pdgd | Evolution):
        return f"{type(learner).__name__} has no twin on a graphics card; Pdgd and Evolution have"
    if isinstance(learner, Evolution) and learner.chance == "shared":
        return 'chance = "shared" has no twin on a graphics card; independent chance has'
    if isinstance(learner, Pdgd) and learner.lists == "logged":
        return 'lists = "logged" has no twin on a graphics card; drawn lists have'
    if crowd.people is not None:
        return "people of organisations have no twin on a graphics card"
    return ""


def check_device(device: str) -> None:
    """Refuse, before anything runs, a device that is none, or a card that is not there."""
    if device not in DEVICES:
        raise ValueError(f"no device {device!r}{nearest(device, DEVICES)}; use one of {', '.join(DEVICES)}")
    if device.startswith("cuda"):
        card()


def choose(device: str | Device, learner: Learner, crowd: SimulatedClients) -> Device | None:
    """The machine on which these clients learn; None: the processor.

    "cuda" insists on a card, and so does "cuda-float16", with features in two bytes there. "auto" takes one if it is
    there, can do this, and a round is large enough to pay.
    """
    if isinstance(device, str):
        check_device(device)
    if device == "cpu":
        return None
    reason = why_not(learner, crowd)
    if device == "auto":
        enough = ENOUGH_NEURAL if learner.ranker.hidden else ENOUGH
        if reason or int(crowd.interactions.sum()) < enough:
            return None
        try:
            return card()
        except (ImportError, DeviceError):
            return None
    if reason:
        raise DeviceError(f'{reason}; use device = "cpu", or "auto"')
    return card() if isinstance(device, str) else device


def find_device_learner(device: str | Device, learner: Learner, crowd: SimulatedClients) -> DeviceLearner | None:
    """The twin to learn with; None: on the processor."""
    machine = choose(device, learner, crowd)
    return None if machine is None else DeviceLearner(there(machine, learner, crowd, features_of(device)))


def there(machine: Device, learner: Learner, crowd: SimulatedClients, features: str = "float32") -> PdgdOnDevice:
    """A learner that has a twin, with its crowd, in a machine's memory."""
    if isinstance(learner, Evolution):
        return (CrewsPlay if learner.ranker.hidden else EvolutionOnDevice)(machine, learner, crowd)
    if learner.ranker.hidden:
        return NeuralOnDevice(machine, learner, crowd)
    return PdgdOnDevice(machine, learner, crowd, features)


def features_of(device: str | Device) -> str:
    """As what features lie there: rounded to two bytes only where somebody said so."""
    return "float16" if device == "cuda-float16" else "float32"


def card() -> CudaDevice:
    """This process's card, found once."""
    if not _cards:
        _cards.append(CudaDevice())
    return _cards[0]

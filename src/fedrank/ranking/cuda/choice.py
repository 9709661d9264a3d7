"""Decide which learners run on a GPU, and when that is faster."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from fedrank.kernels.devices import CudaDevice, Device, DeviceError
from fedrank.names import did_you_mean
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.types import Learner, SimulatedClients, fast_path

DEVICES = ("cpu", "cuda", "cuda-float16", "auto")
ENOUGH = 20_000  # interactions per round; with fewer, launch overhead exceeds the time of one CPU core
ENOUGH_NEURAL = 1_000  # for neural rankers, which take ten times as long on a CPU core


def why_not(learner: Learner, clients: SimulatedClients) -> str:
    """Return why this learner cannot run on a GPU; empty if it can."""
    if fast_path(learner, "on_device") is None:
        return f"{type(learner).__name__} has no GPU version; Pdgd and Evolution have one"
    if clients.own_click_models:
        return "user-defined click models do not run on a GPU"
    if clients.people is not None:
        return "persons within organisations are not simulated on a GPU"
    return str(cast(Any, learner).not_on_device)


def check_device(device: str) -> None:
    """Raise an error for an unknown device or a missing GPU, before anything runs."""
    if device not in DEVICES:
        raise ValueError(f"unknown device {device!r}{did_you_mean(device, DEVICES)}; use one of {', '.join(DEVICES)}")
    if device.startswith("cuda"):
        card()


def choose(device: str | Device, learner: Learner, clients: SimulatedClients) -> Device | None:
    """Return the device for these clients; None: the CPU.

    "cuda" requires a GPU, and so does "cuda-float16", which stores features in two bytes. "auto" uses a GPU if there is
    one that can run this learner, and a round is large enough.
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


def find_device_learner(device: str | Device, learner: Learner, clients: SimulatedClients) -> PdgdOnDevice | None:
    """Return the learner and its clients on their device, with the same results bit for bit; None: the CPU."""
    chosen = choose(device, learner, clients)
    if chosen is None:
        return None
    on_device: PdgdOnDevice = cast(Any, learner).on_device(chosen, clients, features_of(device))
    return on_device


def features_of(device: str | Device) -> str:
    """Return the type of features on the device: two bytes only on request."""
    return "float16" if device == "cuda-float16" else "float32"


@cache
def card() -> CudaDevice:
    """Return the GPU of this process."""
    return CudaDevice()

"""The cost of unlearning for clients, for any method: interactions, bytes and time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from fedrank.federated.federation import Federation
from fedrank.seeds import Chance
from fedrank.types import (
    NO_CORRECTION,
    Impressions,
    Learned,
    LocalCorrection,
    OwnChance,
    Ranker,
    SimulatedClients,
    Weights,
    has_trait,
)
from fedrank.unlearning.methods import SERVER, Case, Unlearned, Unlearner, Went


class Point(NamedTuple):
    """An intermediate model, and what clients did and sent since the previous one."""

    round: int
    weights: Weights
    interactions: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True)
class Forgetting:
    """The result of unlearning, and its cost."""

    unlearned: Unlearned
    points: tuple[Point, ...]  # of the curve
    bytes_up: int
    seconds: float  # wall-clock time
    cpu_seconds: float


@dataclass
class Watch:
    """Wall-clock and processor time since it was created."""

    clock: float = field(default_factory=time.monotonic)
    cpu: float = field(default_factory=time.process_time)

    @property
    def passed(self) -> tuple[float, float]:
        return time.monotonic() - self.clock, time.process_time() - self.cpu


def forget(case: Case, unlearner: Unlearner, went: Went = lambda done, rounds: None) -> Forgetting:
    """Unlearn, and measure the cost."""
    counted, watch = _Counted(case.federation), Watch()
    tallies: dict[int, tuple[int, int, int]] = {}

    def note(done: int, rounds: int) -> None:
        tallies[done] = counted.tally
        went(done, rounds)

    unlearned = unlearner(replace(case, federation=replace(case.federation, learner=counted)), note)
    seconds, cpu = watch.passed
    points, before = [], (0, 0, 0)
    for done, weights in unlearned.curve:
        now = tallies[done]
        points.append(Point(done, weights, now[0] - before[0], now[1] - before[1], now[2] - before[2]))
        before = now
    return Forgetting(unlearned, tuple(points), counted.up, seconds, cpu)


@dataclass
class _Counted:
    """A learner that counts the work of clients; otherwise it behaves like the learner of the federation."""

    federation: Federation
    searches: int = 0
    up: int = 0  # bytes
    down: int = 0  # bytes

    @property
    def ranker(self) -> Ranker:
        return self.federation.learner.ranker

    def __getattr__(self, name: str) -> Any:
        if name == "federation":  # during construction
            raise AttributeError(name)
        return getattr(self.federation.learner, name)

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        learned = self.federation.learner(start, clients, chance, correction, threads)
        if len(clients) and clients.ids[0] != SERVER:  # a server that learns from its own queries sends nothing
            model = 4 * self.federation.sent(start.shape[-1])
            self.searches += int(clients.interactions.sum())
            self.up += len(clients) * (model if learned.sent is None else learned.sent.dtype.itemsize)
            self.down += len(clients) * model * (2 if has_trait(self.federation.local, "common") else 1)
        return learned

    def from_impressions(
        self, start: Any, impressions: Impressions, own: OwnChance, correction: LocalCorrection = NO_CORRECTION
    ) -> Learned:
        return self.federation.learner.from_impressions(start, impressions, own, correction)

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.searches, self.up, self.down

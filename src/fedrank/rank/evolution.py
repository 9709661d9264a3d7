"""FOLtR-ES: learning from nothing but how good result lists felt (Kharitonov, WSDM 2019)."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.rank.rankers import Linear
from fedrank.seeds import Chance
from fedrank.types import Arrivals, Clients, Memory, Ranker, Updates, Weights

REWARD_VALUES = 11  # of max-rr: no click, or a first click at one of ten ranks
_LAYOUT = struct.Struct("<Qff")


@dataclass(frozen=True)
class EsMessage:
    """All that a client sends: where its noise comes from, and how well either sign of it did."""

    seed: int  # 64 bits; only the noise is drawn from it, never a query or a click
    plus: float  # mean reported reward with weights + noise, float32
    minus: float  # mean reported reward with weights - noise, float32

    def pack(self) -> bytes:
        """The 16 bytes that travel."""
        return _LAYOUT.pack(self.seed, self.plus, self.minus)

    @classmethod
    def unpack(cls, content: bytes) -> EsMessage:
        if len(content) != _LAYOUT.size:
            raise ValueError(f"{len(content)} bytes are not a message of FOLtR-ES, which has {_LAYOUT.size}")
        return cls(*_LAYOUT.unpack(content))


@dataclass(frozen=True)
class Evolution:
    """Learns from rewards alone: clients try the ranker shifted by noise, both ways (FOLtR-ES; Kharitonov, WSDM 2019).

    Half of a client's searches, rounded up, are ranked with weights + e and the others with weights - e, where e is
    N(0, deviation^2) noise. It sends the seed of e and two mean rewards, from which the server makes the update
    (f+ - f-) e / (2 deviation^2). The mean of updates estimates a gradient: combine it with the server step "adam".

    `truth` below 1 is randomised response: each reward is replaced by another one with probability 1 - truth. Here it
    is simulated from the run's seed; a deployment must draw it from the operating system's secure source.
    """

    ranker: Ranker = field(default_factory=Linear)
    deviation: float = 0.01  # σ of the noise, in units of a weight
    reward: Literal["max-rr", "dcg"] = "max-rr"  # 1 / rank of the first click, or DCG of all clicks; top 10
    truth: float = 1.0  # p: probability that a reward is reported truly; 1: always, no privacy

    def __post_init__(self) -> None:
        if not 0 < self.deviation < np.inf:
            raise ValueError(f"deviation = {self.deviation} explores nothing; use a positive number such as 0.01")
        if self.reward not in ("max-rr", "dcg"):
            raise ValueError(f'no reward {self.reward!r}; use "max-rr" or "dcg"')
        _check_truth(self.truth)
        if self.truth < 1 and self.reward != "max-rr":
            raise ValueError(
                f"truth = {self.truth} chooses among {REWARD_VALUES} rewards, and {self.reward!r} has many more; "
                'use reward = "max-rr", or truth = 1'
            )

    def __call__(
        self, start: Weights, memory: Memory, clients: Clients, chance: Chance, threads: int = 1
    ) -> tuple[Arrivals, Memory]:
        return self._play(start, clients, chance, threads).arrived, memory

    def messages(self, start: Weights, clients: Clients, chance: Chance, threads: int = 1) -> list[EsMessage]:
        """What each client would send; `update_from` turns it into the update that the learner reports."""
        played = self._play(start, clients, chance, threads)
        rows = zip(played.seeds.tolist(), *played.means.T.tolist(), strict=True)
        return [EsMessage(seed, plus, minus) for seed, plus, minus in rows]

    def _play(self, start: Weights, clients: Clients, chance: Chance, threads: int) -> _Played:
        from fedrank.kernels.evolution import evolution_clients
        from fedrank.rank.learners import _all_clients, _as_sent  # at the top it would be a circle

        if len(clients.at):
            raise ValueError(
                "evolution draws its noise once a round, and clients that take their queries in order have none; "
                "use another learner, such as pdgd"
            )
        if (clients.interactions == 1).any():
            client = int(clients.ids[np.argmax(clients.interactions == 1)])
            raise ValueError(
                f"client {client} searches once a round, so only one sign of its noise is ever tried; "
                "give every client 2 interactions or more"
            )
        count, data, starts = len(clients), clients.data, _as_sent(start)
        rewards = np.empty(count)
        seeds = np.empty(count, dtype=np.uint64)
        means = np.empty((count, 2), dtype=np.float32)
        # Separate purposes: who learns the seed of the noise learns nothing about queries, clicks or answers.
        key, noise_key, answer_key = chance.key("learn"), chance.key("noise"), chance.key("answer")

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            evolution_clients(
                starts, key, noise_key, answer_key, self.deviation, self.reward == "dcg", self.truth,
                self.ranker.hidden, data.features, data.offsets, data.longest,
                clients.ids, clients.pool, clients.view, clients.user, clients.interactions,
                clients.queries, clients.pools, clients.grades, clients.ideal,
                clients.click, clients.stop, clients.attention,
                first, last, updates, online, rewards, seeds, means,
            )  # fmt: skip

        arrived = _all_clients(some, start, clients, chance.round, threads)
        return _Played(replace(arrived, reward=rewards, message_bytes=_LAYOUT.size), seeds, means)


class _Played(NamedTuple):
    arrived: Arrivals
    seeds: NDArray[np.uint64]  # [clients]
    means: NDArray[np.float32]  # [clients, 2]: mean reported reward of + and of -


def update_from(message: EsMessage, size: int, deviation: float) -> NDArray[np.float32]:
    """[size]: the update that a message stands for, made from it alone; what the server does with each message."""
    from fedrank.kernels.chance import standard_normals
    from fedrank.kernels.evolution import step_from

    noise = np.empty(size)
    update = np.empty(size, dtype=np.float32)
    standard_normals(np.uint64(message.seed), noise)
    step_from(noise, np.float32(message.plus), np.float32(message.minus), deviation, update)
    return update


def updates_from(messages: Sequence[EsMessage], size: int, deviation: float) -> Updates:
    """[messages, size]: the updates of a round."""
    updates = np.empty((len(messages), size), dtype=np.float32)
    for row, message in zip(updates, messages, strict=True):
        row[:] = update_from(message, size, deviation)
    return updates


def epsilon_per_reward(truth: float) -> float:
    """ε of local differential privacy of one reported reward: log(10 p / (1 - p)).

    Local: it holds against the server, who sees the message. Per reward: it says nothing about a whole message or about
    many rounds; see the two functions below.

    >>> round(epsilon_per_reward(0.5), 1)
    2.3
    """
    _check_truth(truth)
    if truth == 1:
        return math.inf
    return math.log(truth * (REWARD_VALUES - 1) / (1 - truth))


def epsilon_per_message(truth: float, interactions: int) -> float:
    """ε of all rewards behind one message: they add up, since one person made all of the clicks."""
    return interactions * epsilon_per_reward(truth)


def epsilon_in_total(truth: float, interactions: int, rounds: int) -> float:
    """ε of all messages of a client that takes part in so many rounds (pure, δ = 0)."""
    return rounds * epsilon_per_message(truth, interactions)


def _check_truth(truth: float) -> None:
    if not 1 / REWARD_VALUES < truth <= 1:
        raise ValueError(
            f"truth = {truth}: at 1/{REWARD_VALUES} or less, lies outnumber the truth and the ranker learns nothing; "
            "use more, up to 1"
        )

"""FOLtR-ES: learning from nothing but how good result lists felt (Kharitonov, WSDM 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.impressions import learn_one_by_one
from fedrank.ranking.loops import as_sent, by_threads, loops_of
from fedrank.ranking.own_clicks import loop_for
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance
from fedrank.types import (
    NO_CORRECTION,
    Impression,
    Impressions,
    Learned,
    LocalCorrection,
    Observed,
    OwnChance,
    Ranker,
    SimulatedClients,
    Trait,
    Updates,
    Weights,
)

if TYPE_CHECKING:
    from fedrank.kernels.devices import Device
    from fedrank.ranking.cuda.evolution import EvolutionOnDevice

REWARD_VALUES = 11  # of max-rr: no click, or a first click at one of ten ranks
# All that a client sends, 16 bytes: where its noise comes from, and how well either sign of it did. Only the noise is
# drawn from the seed, never a query or a click.
MESSAGE = np.dtype([("seed", "<u8"), ("plus", "<f4"), ("minus", "<f4")])


@dataclass(frozen=True)
class Evolution:
    """Learns from rewards alone: clients try the ranker shifted by noise, both ways (FOLtR-ES; Kharitonov, WSDM 2019).

    Half of a client's searches, rounded up, are ranked with weights + e and the others with weights - e, where e is
    N(0, deviation^2) noise. It sends the seed of e and two mean rewards, from which the server makes the update
    (f+ - f-) e / (2 deviation^2). The mean of updates estimates a gradient: combine it with the server step "adam".

    chance = "shared" repeats a fault of the published code (github.com/facebookresearch/foltr-es): there a client
    reseeds its generator with the seed of its noise, so that queries and clicks are made of the same random bits as the
    noise. Clicks then seem to follow from the noise, the gradient is biased, and who has the seed can compute them.
    It exists for comparison with published rewards, in simulation only.

    `truth` below 1 is randomised response: each reward is replaced by another one with probability 1 - truth. In
    simulation it is drawn from the run's seed; a deployment draws it from the operating system's secure source.
    """

    ranker: Ranker = field(default_factory=Linear)
    deviation: float = 0.01  # σ of the noise, in units of a weight
    reward: Literal["max-rr", "dcg"] = "max-rr"  # 1 / rank of the first click, or DCG of all clicks; top 10
    truth: float = 1.0  # p: probability that a reward is reported truly; 1: always, no privacy
    chance: Literal["independent", "shared"] = (
        "independent"  # noise, queries and clicks: own streams, or one (published)
    )

    traits: ClassVar[frozenset[Trait]] = frozenset({"rewards"})
    message: ClassVar[np.dtype[Any]] = MESSAGE  # what travels

    def __post_init__(self) -> None:
        if not 0 < self.deviation < np.inf:
            raise ValueError(f"deviation = {self.deviation} explores nothing; use a positive number such as 0.01")
        if self.reward not in ("max-rr", "dcg"):
            raise ValueError(f'no reward {self.reward!r}; use "max-rr" or "dcg"')
        if self.chance not in ("independent", "shared"):
            raise ValueError(f'no chance {self.chance!r}; use "independent", or "shared" as in the published code')
        _check_truth(self.truth)
        if self.truth < 1 and self.reward != "max-rr":
            raise ValueError(
                f"truth = {self.truth} chooses among {REWARD_VALUES} rewards, and {self.reward!r} has many more; "
                'use reward = "max-rr", or truth = 1'
            )

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        self.check(clients)
        run: Any = kernels.evolution.evolution_clients
        if clients.own_click_models:
            run = loop_for(run, clients) if self.chance == "independent" else None
            if run is None:
                return learn_one_by_one(self, start, clients, chance)
        count, starts = len(clients), as_sent(start)
        rewards = np.empty(count)
        seeds = np.empty(count, dtype=np.uint64)
        means = np.empty((count, 2), dtype=np.float32)
        keys, loops = keys_of(chance), loops_of(clients)

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            run(
                starts, keys, self.chance == "shared", self.deviation, self.reward == "dcg", self.truth,
                self.ranker.hidden, loops.table, clients.data.longest, loops.held, loops.seen, loops.clicking, first,
                last, updates, online, rewards, seeds, means,
            )  # fmt: skip

        updates, online = by_threads(some, start.shape[-1], clients, threads)
        sent = np.empty(count, dtype=MESSAGE)
        sent["seed"], sent["plus"], sent["minus"] = seeds, means[:, 0], means[:, 1]
        return Learned(updates, Observed(online, rewards), sent=sent)

    def check(self, clients: SimulatedClients) -> None:
        """Refuse clients that cannot try both signs."""
        if len(clients.at):
            raise ValueError(
                "evolution draws its noise once a round, and clients that take their queries in order have none; "
                "use another learner, such as pdgd"
            )
        if (clients.interactions == 1).any():
            raise ValueError(_searches_once(int(clients.ids[np.argmax(clients.interactions == 1)])))

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        if self.chance == "shared":
            raise ValueError(
                'chance = "shared" draws the searches and clicks of a simulation from the seed that is sent, and here '
                'people search; use chance = "independent"'
            )
        count = len(impressions)
        if count == 1:
            raise ValueError(_searches_once(own.id))
        _, noise_key, answer_key = keys_of(own.chance)
        seed = np.uint64(kernels.chance.stream(noise_key, own.id))
        answers = np.uint64(kernels.chance.stream(answer_key, own.id))
        noise, weights = np.empty(len(start)), np.empty_like(start)
        kernels.chance.standard_normals(seed, noise)
        half = (count + 1) // 2
        means, rewards = [], 0.0
        for numbers, sign in ((range(half), self.deviation), (range(half, count), -self.deviation)):
            kernels.evolution.shift(start, noise, sign, weights)
            reported = 0.0
            for number in numbers:
                impression = impressions.best(weights, number)
                reported += self._reported(impression, kernels.chance.stream(answers, number), own)
                rewards += self._reward(impression)
            means.append(reported / max(len(numbers), 1))
        sent, reward = np.array([(seed, *means)], dtype=MESSAGE), np.array([rewards / max(count, 1)])
        return Learned(self.read(sent, len(start)), Observed(np.full(1, np.nan), reward), sent=sent)

    def _reward(self, impression: Impression) -> float:
        clicked, discount = impression.clicked, kernels.elementary.discounts(kernels.show.SHOWN)
        return float(kernels.evolution.reward_of(clicked, len(clicked), discount, self.reward == "dcg"))

    def _reported(self, impression: Impression, chance: Any, own: OwnChance) -> float:
        """The reward of a list as it is reported."""
        evolution, clicked = kernels.evolution, impression.clicked
        if own.source is not None and self.truth < 1:
            chance = own.source.words(1)[0]
        discount = kernels.elementary.discounts(kernels.show.SHOWN)
        return float(
            evolution.reported_reward(
                clicked, len(clicked), discount, self.reward == "dcg", self.truth, np.uint64(chance)
            )
        )

    def on_device(self, device: Device, clients: SimulatedClients, features: str = "float32") -> EvolutionOnDevice:
        """The learner and its clients on a graphics card."""
        from fedrank.ranking.cuda.evolution import CrewsPlay, EvolutionOnDevice

        return (CrewsPlay if self.ranker.hidden else EvolutionOnDevice)(device, self, clients)

    @property
    def not_on_device(self) -> str:
        """Why it cannot run on a graphics card; empty if it can."""
        problem = 'chance = "shared" is not available on a graphics card; chance = "independent" is'
        return problem * (self.chance == "shared")

    def read(self, sent: NDArray[Any], parameters: int) -> Updates:
        """[messages, parameters]: the updates that messages stand for, made from them alone; what a server does."""
        updates = np.empty((len(sent), parameters), dtype=np.float32)
        noise = np.empty(parameters)
        shared, twister = self.chance == "shared", np.empty(kernels.twister.STATE, dtype=np.int64)
        for row, message in zip(updates, sent, strict=True):
            kernels.evolution.noise_from(message["seed"], shared, self.ranker.hidden, twister, noise)
            kernels.evolution.step_from(noise, message["plus"], message["minus"], self.deviation, row)
        return updates


def keys_of(chance: Chance) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Of searches, noise and answers: who learns the seed of the noise learns nothing about the others."""
    return chance.key("learn"), chance.key("noise"), chance.key("answer")


def _searches_once(client: int) -> str:
    return (
        f"client {client} searches once a round, so only one sign of its noise is ever tried; "
        "give every client 2 interactions or more"
    )


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

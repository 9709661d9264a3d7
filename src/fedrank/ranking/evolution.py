"""FOLtR-ES: evolution strategies that learn from the rewards of result lists (Kharitonov, WSDM 2019)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.click_models import SHOWN
from fedrank.ranking.impressions import learn_one_by_one
from fedrank.ranking.loops import as_sent, by_threads, loop_for, loops_of
from fedrank.ranking.measures import ranking
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

REWARD_VALUES = 11  # possible values of max-rr: no click, or a first click at one of ten ranks
# The message of a client, 16 bytes: the seed of its noise, and the mean reward of either sign. Only the noise is
# derived from this seed, never a query or a click.
MESSAGE = np.dtype([("seed", "<u8"), ("plus", "<f4"), ("minus", "<f4")])


@dataclass(frozen=True)
class Evolution:
    """Learns from rewards of rankers perturbed by noise in both directions (FOLtR-ES; Kharitonov, WSDM 2019).

    Half of a client's searches, rounded up, are ranked with weights + e and the others with weights - e, where e is
    N(0, deviation^2) noise. The client sends the seed of e and two mean rewards, from which the server computes the
    update (f+ - f-) e / (2 deviation^2). The mean of updates estimates a gradient; use it with the server step "adam".

    chance = "shared" reproduces a bug of the published code (github.com/facebookresearch/foltr-es), in which a client
    reseeds its generator with the seed of its noise, so queries and clicks use the same random bits as the noise. The
    gradient is then biased, and the server can compute the clicks from the seed. Use it only in simulations, to compare
    with published rewards.

    `truth` below 1 is randomised response: each reward is replaced by another value with probability 1 - truth. In
    simulation it is drawn from the run's seed; a deployment uses the operating system's secure source.
    """

    ranker: Ranker = field(default_factory=Linear)
    deviation: float = 0.01  # σ of the noise, in the unit of weights
    reward: Literal["max-rr", "dcg"] = "max-rr"  # 1 / rank of the first click, or DCG of all clicks, in the top 10
    truth: float = 1.0  # p: probability of reporting the true reward; 1: no privacy
    chance: Literal["independent", "shared"] = "independent"  # one random stream each, or one for all (published code)

    traits: ClassVar[frozenset[Trait]] = frozenset({"rewards"})
    message: ClassVar[np.dtype[Any]] = MESSAGE  # what a client sends

    def __post_init__(self) -> None:
        if not 0 < self.deviation < np.inf:
            raise ValueError(f"deviation must be positive, such as 0.01 (got {self.deviation})")
        if self.reward not in ("max-rr", "dcg"):
            raise ValueError(f'reward must be "max-rr" or "dcg" (got {self.reward!r})')
        if self.chance not in ("independent", "shared"):
            raise ValueError(
                f'chance must be "independent", or "shared" as in the published code (got {self.chance!r})'
            )
        if not 1 / REWARD_VALUES < self.truth <= 1:
            raise ValueError(
                f"truth must be above 1/{REWARD_VALUES}, the probability of a random reward, and at most 1 "
                f"(got {self.truth})"
            )
        if self.truth < 1 and self.reward != "max-rr":
            raise ValueError(
                f"truth = {self.truth} needs a reward with {REWARD_VALUES} values, but {self.reward!r} has more; "
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
        return Learned(updates, Observed(online, rewards), sent=messages_of(seeds, means))

    def check(self, clients: SimulatedClients) -> None:
        """Raise an error for clients that cannot try both signs."""
        if len(clients.at):
            raise ValueError(
                "evolution does not support clients that take their queries in order, because it draws its noise once "
                "per round; use another learner, such as pdgd"
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
                'chance = "shared" is for simulations only, because searches and clicks follow from the sent seed; '
                'use chance = "independent"'
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
        """The reward of a list with randomised response."""
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
        """Return the learner with its clients on a GPU."""
        from fedrank.ranking.cuda.evolution import EvolutionOnDevice, NeuralEvolutionOnDevice

        return (NeuralEvolutionOnDevice if self.ranker.hidden else EvolutionOnDevice)(device, self, clients)

    @property
    def not_on_device(self) -> str:
        """Why it cannot run on a GPU; empty if it can."""
        problem = 'chance = "shared" is not available on a GPU; use chance = "independent"'
        return problem * (self.chance == "shared")

    def read(self, sent: NDArray[Any], parameters: int) -> Updates:
        """Compute the updates [messages, parameters] from messages alone, as a server does."""
        updates = np.empty((len(sent), parameters), dtype=np.float32)
        noise = np.empty(parameters)
        shared, twister = self.chance == "shared", np.empty(kernels.twister.STATE, dtype=np.int64)
        for row, message in zip(updates, sent, strict=True):
            kernels.evolution.noise_from(message["seed"], shared, self.ranker.hidden, twister, noise)
            kernels.evolution.step_from(noise, message["plus"], message["minus"], self.deviation, row)
        return updates


def messages_of(seeds: NDArray[np.uint64], means: NDArray[np.float32]) -> NDArray[Any]:
    """The messages of clients from the seeds of their noise and their mean rewards [clients, 2]."""
    sent = np.empty(len(seeds), dtype=MESSAGE)
    sent["seed"], sent["plus"], sent["minus"] = seeds, means[:, 0], means[:, 1]
    return sent


def expected_rewards(learner: Evolution, weights: Weights, clients: SimulatedClients) -> NDArray[np.float64] | None:
    """[queries]: the mean true reward that clients have with this model for each query that they draw from.

    None unless all clients draw from the same queries and labels, by click models with probabilities.
    """
    data, queries = clients.data, clients.queries
    unequal = len(clients.pools) > 2 or len(clients.grades) > 1 or clients.people is not None
    if weights.ndim == 2 or unequal or clients.own_click_models:
        return None
    order = ranking(learner.ranker.score(weights, data.features), data.offsets)
    sizes = np.minimum(np.diff(data.offsets)[queries], SHOWN)
    rank, row = np.arange(SHOWN), data.offsets[queries][:, None] + np.arange(SHOWN)
    there = rank < sizes[:, None]
    labels = clients.grades[0, order[np.where(there, row, 0)]]  # [queries, ranks]
    discount = kernels.elementary.discounts(SHOWN) if learner.reward == "dcg" else 1 / (rank + 1)
    mixed = clients.click_model < 0  # a client that draws a click model at each interaction
    share = np.bincount(clients.click_model[~mixed], minlength=len(clients.click)) + mixed.sum() / len(clients.click)
    found = np.zeros(len(queries))
    for click, stop, attention, part in zip(clients.click, clients.stop, clients.attention, share, strict=True):
        clicked = np.where(there, click[labels] * attention, 0.0)
        ends = clicked * stop[labels] if learner.reward == "dcg" else clicked  # of what counts: at the first click
        goes_on = np.cumprod(np.column_stack([np.ones(len(queries)), 1 - ends[:, :-1]]), axis=1)
        found += part / len(clients) * (clicked * goes_on * discount).sum(axis=1)
    return found


def keys_of(chance: Chance) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Keys of searches, noise and answers; the seed of the noise reveals nothing about the others."""
    return chance.key("learn"), chance.key("noise"), chance.key("answer")


def _searches_once(client: int) -> str:
    return (
        f"client {client} has one search per round, so only one sign of its noise is ever tried; "
        "give every client at least 2 interactions"
    )

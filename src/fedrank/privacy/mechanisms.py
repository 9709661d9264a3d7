"""Mechanisms: how updates are protected before they leave a client, and the guarantees that follow."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.accounting import ConcentratedEvent, Event, GaussianEvent, LaplaceEvent, PureEvent, ResponseEvent
from fedrank.privacy.clip import contributions, finest_step, total_steps, weights_of
from fedrank.privacy.guarantees import OBSERVERS, Guarantee, Setting, up
from fedrank.privacy.noise import (
    GridNoise,
    SecureSource,
    discrete_gaussian,
    polya_difference,
    rounded_gaussian,
    rounded_laplace,
)
from fedrank.ranking.evolution import REWARD_VALUES
from fedrank.types import Aggregator, Change, Clip, Mechanism, Messages, Source, Trait, has_trait

LARGEST = 1e30  # of a clip, of noise and of ε: far above any useful value, and products of them stay finite
UNLIKELY = 28.0  # negative logarithm of the probability that honest noise is longer than a coordinator accepts
ROUNDING = 2.0  # grid steps: the part of discrete noise that is counted as rounding of continuous noise
MAX_PROTOCOL = 200  # clients: the run time of secure aggregation grows with their square


def _check_range(name: str, value: float, example: float) -> None:
    if not 0 < value <= LARGEST:
        raise ValueError(
            f"{name} must be above 0 and at most {LARGEST:g} (got {value}); use a number such as {example}"
        )


class Placement(Protocol):
    """Where noise is added, and so which parties never see an update without it."""

    @property
    def traits(self) -> frozenset[Trait]: ...
    @property
    def sees(self) -> str:
        """Which party sees what, as a sentence."""

    @property
    def sees_of_people(self) -> str:
        """The same where clients are organisations that sum over their people."""


@dataclass(frozen=True)
class OnClient:
    """Noise on every message before it leaves a client: holds even against the server (local differential privacy)."""

    traits: ClassVar[frozenset[Trait]] = frozenset()
    sees = "the server sees every update, clipped and with noise"
    sees_of_people = "the server sees a sum over the people of each organisation, with noise"


@dataclass(frozen=True)
class SecureAggregation:
    """Distributed noise, and a protocol that reveals only the sum to the server (Bonawitz et al., CCS 2017).

    The distributed discrete noise is that of Kairouz, Liu and Steinke (ICML 2021).
    """

    honest: float = 0.5  # fraction of a round's clients that are honest and stay to the end, at least
    colluding: float = 0.25  # fraction of clients that may collude with the server, at most
    bits: int = 32  # sums are integers modulo 2^bits
    sum: Literal["protocol", "ideal"] = "protocol"  # ideal: only the result of the protocol, for large simulations

    sees = "the server sees the sum of a round's updates, with noise, and which clients participated"
    sees_of_people = "the server sees a sum over the people of all organisations, with noise, and which participated"

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({"adds up", "whole round"} if self.sum == "protocol" else {"adds up"})

    def __post_init__(self) -> None:
        if not 0 < self.honest <= 1:
            raise ValueError(f"honest must be above 0 and at most 1, a fraction of the clients (got {self.honest})")
        if not 0 <= self.colluding < 1 or self.honest + self.colluding > 1 + 1e-9:
            raise ValueError(
                f"colluding must be at least 0, and colluding + honest at most 1 (got {self.colluding} and "
                f"{self.honest}): otherwise no sum would ever be opened; use a smaller fraction for either"
            )
        if not 16 <= self.bits <= 62:
            raise ValueError(f"bits must be between 16 and 62 (got {self.bits})")
        if self.sum not in ("protocol", "ideal"):
            raise ValueError(f'sum must be "protocol" or "ideal" (got {self.sum!r})')

    def check(self, cohort: float) -> None:
        if cohort < 2:
            raise ValueError(
                "secure aggregation of a single client reveals its update; use at least 2 clients per round, or "
                'placement = "client"'
            )
        if self.sum == "protocol" and cohort > MAX_PROTOCOL:
            raise ValueError(
                f"secure aggregation of {cohort:.0f} clients takes time that grows with their square; for more than "
                f"{MAX_PROTOCOL} per round simulate it with "
                'placement = { name = "secure-aggregation", sum = "ideal" }'
            )

    def min_honest(self, cohort: float) -> int:
        """Minimum number of honest clients that stay to the end."""
        return max(1, math.ceil(self.honest * cohort - 1e-9))  # 0.1 x 30 is a little more than 3

    def colluders(self, cohort: float) -> int:
        """Maximum number of clients that may collude with the server."""
        return math.floor(self.colluding * cohort + 1e-9)

    def opened(self, cohort: float) -> int:
        """Number of clients that must have sent their numbers before a sum is opened, so enough of them are honest."""
        return self.min_honest(cohort) + self.colluders(cohort)

    def threshold(self, cohort: float) -> int:
        """Number of clients that together can open a secret: more than may collude."""
        return max(2, self.colluders(cohort) + 1)


@dataclass(frozen=True)
class AtServer:
    """Noise on the sum, added by a server that is trusted with raw updates (central differential privacy)."""

    traits: ClassVar[frozenset[Trait]] = frozenset({"adds up", "hides cohort"})
    sees = "the server sees every update without noise; all others see only models computed from noisy sums"
    sees_of_people = (
        "the server sees a sum over the people of each organisation without noise; all others see only models computed "
        "from noisy sums"
    )


class PricedMechanism(Mechanism, Protocol):
    """A mechanism with stated privacy guarantees."""

    def guarantees(self, setting: Setting) -> list[Guarantee]:
        """The guarantee against each of `OBSERVERS`, or the statement that there is none."""


PLACEMENTS: dict[str, type[Placement]] = {
    "client": OnClient,
    "secure-aggregation": SecureAggregation,
    "server": AtServer,
}


@dataclass(frozen=True)
class _Noise(ABC):
    """What Gaussian and Laplace noise have in common: clip, weight, round to a grid, add noise.

    With unit = "person" clients are organisations. The update of each of their people is clipped, then summed, so no
    person contributes more than clip to a sum.
    """

    clip: float  # S: maximum norm of an update, to which longer ones are clipped
    noise: float  # standard deviation (Gaussian) or scale (Laplace) of the noise, in multiples of clip
    placement: Placement = field(
        default_factory=OnClient
    )  # where noise is added: by each client, distributed over all clients, or by the server
    cap: int = 1  # number of interactions from which on a client has full weight; with fewer, proportionally less
    unit: Literal["client", "interaction", "person"] = "client"  # what is protected; person: each person of a client
    people: int = 1  # for unit "person": maximum number of people per client and round, which divides its sum
    sites: int = 1  # for unit "person": maximum number of clients with the same person; their costs are added up

    norm = 2  # the L1 or L2 norm
    tail = 1.0  # width of the tails, relative to a normal distribution

    def __post_init__(self) -> None:
        _check_range("clip", self.clip, 1)
        _check_range("noise", self.noise, 1)
        if self.cap < 1:
            raise ValueError(f"cap must be at least 1 (got {self.cap})")
        if self.unit == "interaction" and self.cap != 1:
            raise ValueError(
                f'cap must be 1 for unit = "interaction" (got {self.cap}): otherwise a message depends on the number '
                "of interactions, which this unit does not protect"
            )
        for name in ("people", "sites"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} must be at least 1 (got {value})")
            if value > 1 and self.unit != "person":
                raise ValueError(
                    f'{name} = {value} applies only to unit = "person" (unit is "{self.unit}"); leave it out'
                )

    @property
    def traits(self) -> frozenset[Trait]:
        return self.placement.traits | {"people"} if self.unit == "person" else self.placement.traits

    @property
    def sends(self) -> str:
        """The data type of a message: integer grid steps for secure aggregation, four-byte floats otherwise."""
        return "<i8" if isinstance(self.placement, SecureAggregation) else "<f4"

    @property
    def sees(self) -> str:
        return self.placement.sees_of_people if self.unit == "person" else self.placement.sees

    def source(self) -> Source:
        return SecureSource()

    def with_parts(self, cohort: float, parts: int) -> _Noise | None:
        """The same mechanism for an observer to whom only this many parts of the distributed noise are unknown.

        None if the distribution of fewer parts than planned is not known.
        """
        placement = self.placement
        if not isinstance(placement, SecureAggregation) or parts >= placement.min_honest(cohort):
            return self
        return None

    def step(self, cohort: float) -> float:
        """Grid step: the finest that four bytes per parameter, or the modulus of the sum, allow."""
        # A sum over people is exact in four bytes, too; the factor 2 covers rounding up each contribution.
        finest = finest_step(self.clip if self.people == 1 else 2 * self.people * self.clip)
        if not isinstance(self.placement, SecureAggregation):
            return finest
        from fedrank.privacy import secure_aggregation

        self.placement.check(cohort)
        total = self.tail * self.noise * self.clip * math.sqrt(cohort / self.placement.min_honest(cohort))
        return max(
            finest, secure_aggregation.finest_step(int(cohort) * self.people, self.clip, total, self.placement.bits)
        )

    def reach(self, setting: Setting) -> float:
        """The sensitivity: how far the sum moves without one client, person or interaction, after rounding."""
        step = self.step(setting.cohort(self))
        spread = self._spread(setting)
        whole = self.clip + step * spread / 2
        if self.unit == "person":
            # A person at several sites moves one sum several times, or several messages with independent noise.
            return whole * (self.sites ** (1 / self.norm) if isinstance(self.placement, OnClient) else self.sites)
        if self.unit == "client":
            return whole
        learner: Any = setting.learner
        if not getattr(learner, "clip_gradients", 0):
            raise ValueError(
                'unit = "interaction" needs a bound on what one interaction adds to an update; '
                'use the learner "pdgd" with batch = true and clip_gradients, such as 1.0'
            )
        longest: float = learner.rate * learner.clip_gradients
        if self.norm == 1:
            # The L1 norm is up to √parameters times the L2 norm. And clipping two vectors brings them no further
            # apart in L2, but up to twice as far in L1: (1, 0) and (1, x) become (1, 0) and (1, x) / (1 + x).
            longest *= 2 * math.sqrt(setting.parameters)
        # Updates have been rounded to four bytes before they are clipped. And without an interaction an update may
        # point in the opposite direction, so it moves by up to twice its norm.
        return min(2 * whole, longest + step * spread + 4 * self.clip * 2.0**-24)

    def furthest(self, setting: Setting) -> float:
        """How far the sum moves if a client or an interaction is replaced by any other."""
        step = self.step(setting.cohort(self))
        return min(2 * self.clip + step * self._spread(setting), 2 * self.reach(setting))

    def longest_message(self, setting: Setting) -> float:
        """Norm that an honest message exceeds with a probability below 1e-12; infinite if messages are masked."""
        if isinstance(self.placement, SecureAggregation):
            return math.inf
        longest = self.people * (self.clip + self.step(setting.cohort(self)) * self._spread(setting))
        if isinstance(self.placement, OnClient):
            longest = (longest + self.noise * self.clip * self._longest_noise(setting.parameters)) / self.people
        return 1.0001 * longest  # rounding to four bytes

    def _spread(self, setting: Setting) -> float:
        """Norm of the vector (1, 1, ..., 1)."""
        return math.sqrt(setting.parameters) if self.norm == 2 else setting.parameters

    def protect(
        self, messages: Messages, cohort: float, source: Source, counts: NDArray[np.float64] | None = None
    ) -> Messages:
        step = self.step(cohort)
        weights = weights_of(messages.sizes, self.cap)
        if counts is not None:  # a stale update has the weight of one with fewer interactions
            weights = weights_of(counts * np.minimum(messages.sizes, self.cap), self.cap)
        steps = contributions(messages.updates, weights, self.clip, self.norm, step)
        if self.unit == "person":
            messages, steps = self._added_up(messages, steps)
        scale, placement = self.noise * self.clip / step, self.placement
        if isinstance(placement, OnClient):
            steps += self._law(scale).draw(steps.shape, source)
        if isinstance(placement, SecureAggregation):
            from fedrank.privacy.secure_messages import message_bytes

            steps += self._share(scale, placement.min_honest(cohort)).draw(steps.shape, source)
            sent, bytes_each = steps, message_bytes(int(cohort), steps.shape[1], placement.bits)
        else:
            # An organisation that adds all of its noise sends a mean over its people; a server divides the sum by all.
            each = step / self.people if isinstance(placement, OnClient) else step
            sent, bytes_each = (steps * each).astype(np.float32), 4 * steps.shape[1]
        # The number of interactions never leaves a client, except through its weight.
        return replace(messages, updates=sent, sizes=np.ones_like(messages.sizes), bytes_each=bytes_each)

    def clips(self, sizes: NDArray[np.int64], cohort: float) -> Clip | None:
        if not isinstance(self.placement, AtServer) or self.unit == "person":
            return None
        return Clip(float(self.clip), self.norm, self.step(cohort), weights_of(sizes, self.cap))

    def _added_up(self, messages: Messages, steps: NDArray[np.int64]) -> tuple[Messages, NDArray[np.int64]]:
        """Sum the rows of the people of each organisation."""
        ids, first, placement, people = np.unique(
            messages.ids, return_index=True, return_inverse=True, return_counts=True
        )
        if people.max(initial=0) > self.people:
            raise ValueError(
                f"client {ids[np.argmax(people)]} has {people.max()} people, but people = {self.people} is the "
                "maximum; use a larger number (it is public)"
            )
        total = np.zeros((len(ids), steps.shape[1]), dtype=np.int64)
        np.add.at(total, placement, steps)
        return messages.rows(first), total

    def rule(self, cohort: float, source: Source) -> Aggregator:
        step = self.step(cohort)
        if isinstance(self.placement, SecureAggregation):
            kind = _SumOfShares if self.placement.sum == "ideal" else _ProtocolSum
            return kind(self.placement, step / self.people, int(cohort))
        return _NoisySum(step, cohort * self.people, self._law(self.noise * self.clip / step), source)

    def guarantees(self, setting: Setting) -> list[Guarantee]:
        cohort = setting.cohort(self)
        step, reach = self.step(cohort), self.reach(setting)
        scale = self.noise * self.clip
        unit = self._covers()
        paid: Literal["once", "participation", "round"] = "once" if self.unit == "interaction" else "participation"
        if setting.dealt:
            unit += f"; each participates in one of {setting.dealt} rounds, dealt beforehand"
        if isinstance(self.placement, OnClient):
            if self.unit == "person":
                slack = _slack(self._law(scale / step), setting.parameters * self.sites)
                event = self._event(scale / reach)
                why = (
                    f"if a person's own organisation is trusted, which adds noise before its sum leaves; covers {unit}"
                )
                return [Guarantee(each, event, why, paid, self.unit, "zero-out", slack) for each in OBSERVERS]
            slack = _slack(self._law(scale / step), setting.parameters)
            event = self._event(scale / self.furthest(setting))
            why = f"noise is added before a message leaves, so no other party needs to be trusted; covers {unit}"
            return [Guarantee(each, event, why, paid, self.unit, "replace-one", slack) for each in OBSERVERS]
        if isinstance(self.placement, SecureAggregation):
            honest = self.placement.min_honest(cohort)
            share = self._share(scale / step, honest)
            slack = _slack(share, setting.parameters * honest)
            event = self._event_of_shares(scale / step, reach / step, honest, setting.parameters)
            if setting.dealt:
                event, more = self._exact_event_of_shares(scale / step, reach / step, honest, setting.parameters)
                slack += more
            why = (
                f"if at most {self.placement.colluders(cohort)} of {cohort:.0f} clients collude with the server, it "
                f"follows the protocol, and keys are authentic; sums of fewer than {self.placement.opened(cohort)} "
                f"clients are not opened; which clients participate is known; covers {unit}"
            )
            return [Guarantee(each, event, why, paid, self.unit, "zero-out", slack) for each in OBSERVERS]
        slack = _slack(self._law(scale / step), setting.parameters)
        # An observer who knows an interaction knows that its client participated. And an organisation participates with
        # all its people or none: the others, who are known, reveal that it did, so sampling hides no person.
        # A dealt schedule is not a secret, either.
        sampling = setting.participation if self.unit == "client" and not setting.dealt else 1.0
        sampled = sampling < 1
        event = self._event(scale / reach, sampling)
        bare, each = ("sums", "organisation's sum") if self.unit == "person" else ("updates", "update")
        why = f"if the server is trusted with raw {bare}{' and keeps the participants secret' if sampled else ''}"
        charged: Literal["once", "participation", "round"] = (
            "round" if self.unit == "client" and not setting.dealt else paid
        )
        return [
            Guarantee("server", None, f"it sees every {each} without noise, and who participates", unit=self.unit),
            Guarantee("other clients", event, f"{why}; covers {unit}", charged, self.unit, "zero-out", slack),
            Guarantee("public", event, f"{why}; covers {unit}", charged, self.unit, "zero-out", slack),
        ]

    def _covers(self) -> str:
        if self.unit == "client":
            return "everything a client does"
        if self.unit == "interaction":
            return "one interaction, not everything a client does"
        if self.sites == 1:
            return "everything a person does at one organisation, which sees it; over several, the costs add up"
        return f"everything a person does at up to {self.sites} organisations, which see it; their costs are added up"

    @abstractmethod
    def _law(self, scale: float) -> GridNoise:
        """Noise in grid steps, where one party adds all of it."""

    @abstractmethod
    def _share(self, scale: float, shares: int) -> GridNoise:
        """Noise in grid steps, where the sum of `shares` draws has this scale."""

    @abstractmethod
    def _longest_noise(self, parameters: int) -> float:
        """Norm that noise of scale 1 exceeds with probability exp(-UNLIKELY) at most."""

    @abstractmethod
    def _event(self, multiplier: float, sampling: float = 1.0) -> Event: ...

    @abstractmethod
    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event: ...

    def _exact_event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> tuple[Event, float]:
        """The event of one release and its slack; a mechanism may have a tighter one than for many releases."""
        return self._event_of_shares(scale, reach, shares, parameters), 0.0


@dataclass(frozen=True)
class Gaussian(_Noise):
    """Clip updates to an L2 norm, weight them and add Gaussian noise: the usual choice for many parameters."""

    @property
    def traits(self) -> frozenset[Trait]:
        return super().traits | {"dealt"}

    def _law(self, scale: float) -> GridNoise:
        return rounded_gaussian(scale)

    def _share(self, scale: float, shares: int) -> GridNoise:
        return gaussian_share(scale, shares)

    def _longest_noise(self, parameters: int) -> float:
        return math.sqrt(parameters) + math.sqrt(2 * UNLIKELY)

    def _event(self, multiplier: float, sampling: float = 1.0) -> Event:
        return GaussianEvent(multiplier, sampling)

    def with_parts(self, cohort: float, parts: int) -> _Noise | None:
        placement = self.placement
        if (same := super().with_parts(cohort, parts)) is not None:
            return same
        assert isinstance(placement, SecureAggregation)
        noise = self.noise * math.sqrt(parts / placement.min_honest(cohort))  # variances add up
        return replace(self, noise=noise, placement=replace(placement, honest=parts / cohort, colluding=0.0))

    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event:
        return event_of_gaussian_shares(scale, reach / scale, shares, parameters)

    def _exact_event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> tuple[Event, float]:
        return exact_event_of_gaussian_shares(scale, reach, shares, parameters)


@dataclass(frozen=True)
class Laplace(_Noise):
    """Clip updates to an L1 norm, weight them and add Laplace noise: pure ε, for few parameters."""

    norm = 1
    tail = 2.5

    def _law(self, scale: float) -> GridNoise:
        return rounded_laplace(scale)

    def _share(self, scale: float, shares: int) -> GridNoise:
        return polya_difference(_wide_enough(scale, shares), shares)

    def _longest_noise(self, parameters: int) -> float:
        return parameters + math.sqrt(2 * parameters * UNLIKELY) + UNLIKELY  # its L1 norm has a gamma distribution

    def _event(self, multiplier: float, sampling: float = 1.0) -> Event:
        return LaplaceEvent(multiplier, sampling)

    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event:
        return PureEvent(reach / scale)


@dataclass(frozen=True)
class FpdgdPaper:
    """The noise of the FPDGD paper as published (Wang et al., ICTIR 2021); the ε it states is not the ε that holds.

    Every client adds Gamma(1/N, Δ/ε) - Gamma(1/N, Δ/ε) to each weight, so the sum of N messages has Laplace noise, and
    one message almost none. Weights are clipped by the learner (clip_weights). It exists for comparison; for
    protection use "gaussian" or "laplace".
    """

    epsilon: float  # ε as the paper states it
    sensitivity: float = 3.0  # Δ
    variant: Literal["text", "code"] = "text"  # weights are clipped to Δ/2 (the text) or to Δ (the code)
    shares: int | None = None  # N; None: the number of messages per round, which is one in asynchronous runs

    traits: ClassVar[frozenset[Trait]] = frozenset()
    sees = "the server sees every client's weights, almost without noise"

    def __post_init__(self) -> None:
        _check_range("epsilon", self.epsilon, 1.2)
        _check_range("sensitivity", self.sensitivity, 3)
        if self.shares is not None and self.shares < 1:
            raise ValueError(f"shares must be at least 1 (got {self.shares}); or leave it out")

    @property
    def clip_weights(self) -> float:
        """The norm to which the learner must clip the weights."""
        return self.sensitivity / 2 if self.variant == "text" else self.sensitivity

    def source(self) -> Source:
        return SecureSource()

    def protect(
        self, messages: Messages, cohort: float, source: Source, counts: NDArray[np.float64] | None = None
    ) -> Messages:
        rng = np.random.default_rng(source.seed())
        up, down = rng.gamma(
            1 / (self.shares or cohort), self.sensitivity / self.epsilon, size=(2, *messages.updates.shape)
        )
        return replace(messages, updates=(messages.updates + (up - down)).astype(np.float32))

    def guarantees(self, setting: Setting) -> list[Guarantee]:
        if getattr(setting.learner, "clip_weights", 0.0) != self.clip_weights:
            raise ValueError(
                f"the noise of fpdgd-paper is calibrated to weights of norm {self.clip_weights:g} at most "
                f"({self.variant}); set learner.clip_weights = {self.clip_weights:g}"
            )
        nothing = "one message has almost no noise: clicks can be inferred from it"
        rows = [Guarantee("server", None, nothing)]
        if not has_trait(setting.aggregator, "sum"):
            why = "the noise adds up to Laplace noise only in an equally weighted mean"
        elif getattr(setting.aggregator, "weighted", False) and len(set(setting.interactions)) > 1:
            why = "the noise of clients with different weights does not add up to Laplace noise"
        elif self.shares is not None:
            why = "the noise adds up to Laplace noise only where a sum has as many messages as shares"
        else:
            # L2 clipping with noise on every coordinate: only √parameters times the stated ε holds in pure form.
            ratio = self.epsilon * 2 * self.clip_weights / self.sensitivity
            event = ConcentratedEvent(ratio**2 / 2, ratio * math.sqrt(setting.parameters))
            why = (
                "only if the server is trusted, all clients are honest, present and of equal weight, and the rounding "
                "of floating-point noise is not exploited; the paper "
                f"states ε = {self.epsilon:g}; for one round, ε = {up(event.pure)} holds"
            )
            return rows + [Guarantee(each, event, why) for each in OBSERVERS[1:]]
        return rows + [Guarantee(each, None, why) for each in OBSERVERS[1:]]


@dataclass(frozen=True)
class EsRandomisedResponse:
    """The guarantee of FOLtR-ES: its learner flips rewards before it reports them (its setting `truth`).

    The mechanism itself adds nothing. Flips are drawn from the seed of the run, since clients are simulated; a
    deployment must use the secure source.
    """

    traits: ClassVar[frozenset[Trait]] = frozenset({"adds nothing"})
    sees = "the server sees a seed and two mean rewards, of which some are flipped"

    def source(self) -> Source:
        return SecureSource()

    def protect(
        self, messages: Messages, cohort: float, source: Source, counts: NDArray[np.float64] | None = None
    ) -> Messages:
        return messages

    def guarantees(self, setting: Setting) -> list[Guarantee]:
        learner: Any = setting.learner
        if not has_trait(learner, "rewards") or learner.truth == 1:
            raise ValueError(
                'es-randomised-response accounts for flipped rewards; use the learner "evolution" with truth below 1'
            )
        if getattr(learner, "chance", "") == "shared":
            why = 'with chance = "shared" the seed in a message also draws the clicks, so flipped rewards hide nothing'
            return [Guarantee(each, None, why) for each in OBSERVERS]
        if len(set(setting.interactions)) > 1:
            why = "the mean rewards reveal how many interactions a client had, and nothing hides that"
            return [Guarantee(each, None, why) for each in OBSERVERS]
        event = ResponseEvent(learner.truth, REWARD_VALUES, max(setting.interactions))
        why = (
            "rewards are flipped before a message leaves, so no other party needs to be trusted; covers everything a "
            "client does; a simulation draws the flips from the run's seed, with which they can be undone"
        )
        return [Guarantee(each, event, why) for each in OBSERVERS]


MECHANISMS: dict[str, type[PricedMechanism]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "fpdgd-paper": FpdgdPaper,
    "es-randomised-response": EsRandomisedResponse,
}


@dataclass(frozen=True)
class _NoisySum:
    """The sum of contributions on the grid at a trusted server, with noise, divided by a public number."""

    step: float
    cohort: float
    law: GridNoise
    source: Source

    traits: ClassVar[frozenset[Trait]] = frozenset({"sum"})

    def part(self, messages: Messages) -> NDArray[np.int64]:
        return total_steps(messages.updates, self.step)

    def whole(self, total: NDArray[np.int64]) -> Change:
        noised = np.add(total, self.law.draw(total.shape, self.source), dtype=np.float64)
        return noised * (self.step / self.cohort)

    def __call__(self, messages: Messages) -> Change:
        return self.whole(self.part(messages))


@dataclass(frozen=True)
class _SumOfShares:
    """The result that secure aggregation gives the server, computed without the protocol."""

    placement: SecureAggregation
    step: float
    cohort: int

    traits: ClassVar[frozenset[Trait]] = frozenset({"sum"})

    @property
    def min_messages(self) -> int:
        """Minimum number of messages for a sum to be opened: with fewer it would have too little noise."""
        return self.placement.opened(self.cohort)

    def part(self, messages: Messages) -> NDArray[np.int64]:
        from fedrank.privacy.secure_aggregation import ideal_sum

        return ideal_sum(messages.updates, self.placement.bits)

    def whole(self, total: NDArray[np.int64]) -> Change:
        from fedrank.privacy.secure_aggregation import ideal_sum

        return ideal_sum(total[None, :], self.placement.bits).astype(np.float64) * (self.step / self.cohort)

    def __call__(self, messages: Messages) -> Change:
        return self.whole(self.part(messages))


@dataclass(frozen=True)
class _ProtocolSum:
    """The same by the protocol: over all clients at once, because no party may see a partial sum."""

    placement: SecureAggregation
    step: float
    cohort: int

    def __call__(self, messages: Messages) -> Change:
        from fedrank.privacy.secure_aggregation import secure_sum

        threshold, min_survivors = self.placement.threshold(self.cohort), self.placement.opened(self.cohort)
        session = os.urandom(16)
        total = secure_sum(
            messages.updates, self.placement.bits, threshold, min_survivors, session=session, round=messages.round
        )
        return total.astype(np.float64) * (self.step / self.cohort)


def gaussian_share(scale: float, shares: int) -> GridNoise:
    """Discrete Gaussian noise in grid steps, where the sum of `shares` draws has this scale."""
    return discrete_gaussian(_wide_enough(scale / math.sqrt(shares), shares))


def event_of_gaussian_shares(scale: float, ratio: float, shares: int, parameters: int) -> ConcentratedEvent:
    """The privacy event of a sum with distributed Gaussian noise.

    `ratio` is how far all numbers can move, each relative to its noise. A sum of discrete Gaussians is almost a
    discrete Gaussian (Kairouz, Liu and Steinke, ICML 2021, theorem 1). Where numbers have noise of several widths,
    `scale` is the smallest: the theorem holds for each, and their costs add up.
    """
    gap = _gap(scale, shares)
    cost = min(math.sqrt(ratio**2 + gap * parameters / 2), ratio + gap * math.sqrt(parameters))
    return ConcentratedEvent(cost**2 / 2)


def exact_event_of_gaussian_shares(scale: float, reach: float, shares: int, parameters: int) -> tuple[Event, float]:
    """The same as one continuous Gaussian, and its slack in ε: tighter, because Rényi moments are not converted to ε.

    A discrete Gaussian of deviation s is a continuous one of deviation sqrt(s² - r²) that is rounded at random, by a
    discrete Gaussian of deviation r around it (Peikert, CRYPTO 2010): up to the factor by which the sum of
    exp(-(k - y)² / 2r²) over integers k depends on y, which is at most (1 + t) / (1 - t) with t = 2.1 exp(-2 π² r²).
    Rounding commutes with shifts by integers, so it is post-processing.
    """
    if scale <= 2 * ROUNDING:  # almost nothing would remain
        return event_of_gaussian_shares(scale, reach / scale, shares, parameters), 0.0
    t = 2.1 * math.exp(-2 * math.pi**2 * ROUNDING**2)
    each = _gap(scale, shares) + math.log1p(2 * t / (1 - t))
    return GaussianEvent(math.sqrt(scale**2 - ROUNDING**2) / reach), 2 * parameters * each


def _gap(scale: float, shares: int) -> float:
    """How far log-probabilities of a sum of discrete Gaussians differ from those of one, at most, for each number."""
    k = np.arange(1, shares)
    return 10 * float(np.exp(-2 * math.pi**2 * scale**2 / shares * k / (k + 1)).sum())


def _slack(law: GridNoise, draws: int) -> float:
    """The ε that sampling from tables, instead of the accounted distribution, adds each time.

    Every probability, with an update and without it, is exact up to a factor exp(±log_error) for each draw.
    """
    return 2 * draws * law.log_error


def _wide_enough(steps: float, shares: int) -> float:
    if steps < 2:
        raise ValueError(
            f"the noise of one client must be at least 2 grid steps wide (got {steps:.2g}), or the sum of {shares} "
            "would not have the claimed distribution; use more bits, or more noise"
        )
    return steps

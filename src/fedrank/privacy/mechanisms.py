"""Mechanisms: what is done to updates before they leave, and what may honestly be claimed for it."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.accounting import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    ResponseEvent,
)
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

LARGEST = 1e30  # of a clip, of noise and of ε: far beyond any use, and products of them stay finite
MAX_PROTOCOL = 200  # clients: the secure sum takes time that grows with their square


def _check_range(name: str, value: float, example: float) -> None:
    if not 0 < value <= LARGEST:
        raise ValueError(
            f"{name} = {value} is out of range; use a number such as {example}, above 0 and up to {LARGEST:g}"
        )


class Placement(Protocol):
    """Where noise is added, and so who never sees an update without it."""

    @property
    def traits(self) -> frozenset[Trait]: ...
    @property
    def sees(self) -> str:
        """Who sees what, as a sentence."""

    @property
    def sees_of_people(self) -> str:
        """The same where clients are organisations that add up their people."""


@dataclass(frozen=True)
class OnClient:
    """Noise on every message, before it leaves: holds even against the server (local privacy)."""

    traits: ClassVar[frozenset[Trait]] = frozenset()
    sees = "the server sees every update, shortened and with noise"
    sees_of_people = "the server sees a sum over the people of each organisation, with noise"


@dataclass(frozen=True)
class SecureAggregation:
    """Small shares of noise on every message, and a protocol that lets the server learn nothing but the sum.

    After Bonawitz et al. (CCS 2017); shares of discrete noise after Kairouz, Liu and Steinke (ICML 2021).
    """

    honest: float = 0.5  # share of a round's clients whose noise must be in the sum: honest ones that stay to the end
    colluding: float = 0.25  # share that may work with the server; a sum opens only if enough others are surely in it
    bits: int = 32  # sums are whole numbers modulo 2^bits
    sum: Literal["protocol", "ideal"] = "protocol"  # ideal: only what the protocol would compute, for large simulations

    sees = "the server sees the sum of a round's updates, with noise, and who took part"
    sees_of_people = "the server sees a sum over the people of all organisations, with noise, and which took part"

    @property
    def traits(self) -> frozenset[Trait]:
        return frozenset({"adds up", "whole round"} if self.sum == "protocol" else {"adds up"})

    def __post_init__(self) -> None:
        if not 0 < self.honest <= 1:
            raise ValueError(f"honest = {self.honest} is no share of clients; use more than 0, up to 1")
        if not 0 <= self.colluding < 1 or self.honest + self.colluding > 1 + 1e-9:
            raise ValueError(
                f"colluding = {self.colluding} and honest = {self.honest} are more than all clients, so no sum would "
                "ever open; use less of either"
            )
        if not 16 <= self.bits <= 62:
            raise ValueError(f"bits = {self.bits} cannot hold a sum; use 16 to 62")
        if self.sum not in ("protocol", "ideal"):
            raise ValueError(f'no sum {self.sum!r}; use "protocol" or "ideal"')

    def check(self, cohort: float) -> None:
        if cohort < 2:
            raise ValueError(
                'the secure sum of a single client is its update; use at least 2 in a round, or placement = "client"'
            )
        if self.sum == "protocol" and cohort > MAX_PROTOCOL:
            raise ValueError(
                f"the secure sum of {cohort:.0f} clients takes time that grows with their square; for more than "
                f"{MAX_PROTOCOL} in a round simulate it with "
                'placement = { name = "secure-aggregation", sum = "ideal" }'
            )

    def min_honest(self, cohort: float) -> int:
        """Honest clients that stay to the end, at least."""
        return max(1, math.ceil(self.honest * cohort - 1e-9))  # 0.1 x 30 is a little more than 3

    def colluders(self, cohort: float) -> int:
        """Clients that may work with the server, at most."""
        return math.floor(self.colluding * cohort + 1e-9)

    def opened(self, cohort: float) -> int:
        """Clients whose numbers must have come before a sum opens: so many that enough of them are honest."""
        return self.min_honest(cohort) + self.colluders(cohort)

    def threshold(self, cohort: float) -> int:
        """Clients that together can open a secret: more than those who may collude."""
        return max(2, self.colluders(cohort) + 1)


@dataclass(frozen=True)
class AtServer:
    """Noise on the sum, added by a server that everybody trusts with bare updates (central privacy)."""

    traits: ClassVar[frozenset[Trait]] = frozenset({"adds up", "hides cohort"})
    sees = "the server sees every update as it is; everybody else sees models made from noisy sums"
    sees_of_people = (
        "the server sees a sum over the people of each organisation as it is; everybody else sees models made from "
        "noisy sums"
    )


class PricedMechanism(Mechanism, Protocol):
    """A mechanism that says what may be claimed for it."""

    def guarantees(self, setting: Setting) -> list[Guarantee]:
        """What is claimed against each of `OBSERVERS`, or that nothing can be."""


PLACEMENTS: dict[str, type[Placement]] = {
    "client": OnClient,
    "secure-aggregation": SecureAggregation,
    "server": AtServer,
}


@dataclass(frozen=True)
class _Noise(ABC):
    """What Gaussian and Laplace noise have in common: clip, weigh, put on a grid, add.

    With unit = "person" clients are organisations. Their people are clipped one by one, then added up, so that nobody's
    part in a sum is longer than clip, and noise is divided by all of them.
    """

    clip: float  # S: largest length of an update, which is shortened to it; the unit of a weight
    noise: float  # how wide the noise is (deviation, or scale of Laplace noise), in multiples of clip
    placement: Placement = field(
        default_factory=OnClient
    )  # who adds it: each client, all of them in shares, or the server
    cap: int = 1  # interactions from which on a client counts fully; with fewer it counts in proportion
    unit: Literal["client", "interaction", "person"] = "client"  # what is protected; person: each one of a client's
    people: int = 1  # of unit "person": the most people of any client, by which its sum is divided; clients.people
    sites: int = 1  # of unit "person": at how many clients one person may be; what these cost is added up

    norm = 2  # how length is measured
    tail = 1.0  # width of the tails, compared with those of a normal law

    def __post_init__(self) -> None:
        _check_range("clip", self.clip, 1)
        _check_range("noise", self.noise, 1)
        if self.cap < 1:
            raise ValueError(f"cap = {self.cap} would divide by nothing; use 1 or more interactions")
        if self.unit == "interaction" and self.cap != 1:
            raise ValueError(
                f'cap = {self.cap} makes what a client sends depend on how often it searched; unit = "interaction" '
                "does not cover that: use cap = 1"
            )
        for name in ("people", "sites"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name} = {value} leaves nobody to protect; use 1 or more")
            if value > 1 and self.unit != "person":
                raise ValueError(f'{name} = {value} is for unit = "person", this is "{self.unit}"; leave it out')

    @property
    def traits(self) -> frozenset[Trait]:
        return self.placement.traits | {"people"} if self.unit == "person" else self.placement.traits

    @property
    def sends(self) -> str:
        """The type of what a client sends: whole grid steps where they are summed up, four bytes otherwise."""
        return "<i8" if isinstance(self.placement, SecureAggregation) else "<f4"

    @property
    def sees(self) -> str:
        return self.placement.sees_of_people if self.unit == "person" else self.placement.sees

    def source(self) -> Source:
        return SecureSource()

    def step(self, cohort: float) -> float:
        """Width of the grid: the finest that four bytes a parameter, or the modulus of the sum, allow."""
        # A sum of people's contributions is exact in four bytes, too; the factor is for each having been rounded up.
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
        """How far the sum moves without one client, person or interaction: the sensitivity, after rounding."""
        step = self.step(setting.cohort(self))
        spread = self._spread(setting)
        whole = self.clip + step * spread / 2
        if self.unit == "person":
            # Somebody at several sites moves one sum several times, or several messages that carry noise of their own.
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
            # A vector is up to √parameters times as long in L1 as in L2. And shortening two vectors brings them no
            # further apart in L2, but up to twice as far in L1: (1, 0) and (1, x) become (1, 0) and (1, x) / (1 + x).
            longest *= 2 * math.sqrt(setting.parameters)
        # Updates have been rounded to four bytes before they are shortened. And without an interaction an update may
        # point the other way, so that it moves by two whole lengths, not one.
        return min(2 * whole, longest + step * spread + 4 * self.clip * 2.0**-24)

    def furthest(self, setting: Setting) -> float:
        """How far the sum moves if a client, or an interaction, is replaced by any other."""
        step = self.step(setting.cohort(self))
        return min(2 * self.clip + step * self._spread(setting), 2 * self.reach(setting))

    def _spread(self, setting: Setting) -> float:
        """Length of (1, 1, ..., 1)."""
        return math.sqrt(setting.parameters) if self.norm == 2 else setting.parameters

    def protect(
        self, messages: Messages, cohort: float, source: Source, counts: NDArray[np.float64] | None = None
    ) -> Messages:
        step = self.step(cohort)
        weights = weights_of(messages.sizes, self.cap)
        if counts is not None:  # an old update counts like one with fewer interactions behind it
            weights = weights_of(counts * np.minimum(messages.sizes, self.cap), self.cap)
        steps = contributions(messages.updates, weights, self.clip, self.norm, step)
        if self.unit == "person":
            messages, steps = self._added_up(messages, steps)
        scale, placement = self.noise * self.clip / step, self.placement
        if isinstance(placement, OnClient):
            steps += self._law(scale).draw(steps.shape, source)
        if isinstance(placement, SecureAggregation):
            from fedrank.privacy.secure_aggregation import message_bytes

            steps += self._share(scale, placement.min_honest(cohort)).draw(steps.shape, source)
            sent, bytes_each = steps, message_bytes(int(cohort), steps.shape[1], placement.bits)
        else:
            # An organisation whose noise is its own sends a mean over its people; a server divides the sum by all.
            each = step / self.people if isinstance(placement, OnClient) else step
            sent, bytes_each = (steps * each).astype(np.float32), 4 * steps.shape[1]
        # Who searched how often never leaves a client, except through its weight.
        return replace(messages, updates=sent, sizes=np.ones_like(messages.sizes), bytes_each=bytes_each)

    def clips(self, sizes: NDArray[np.int64], cohort: float) -> Clip | None:
        if not isinstance(self.placement, AtServer) or self.unit == "person":
            return None
        return Clip(float(self.clip), self.norm, self.step(cohort), weights_of(sizes, self.cap))

    def _added_up(self, messages: Messages, steps: NDArray[np.int64]) -> tuple[Messages, NDArray[np.int64]]:
        """A row for each organisation, from one for each of its people."""
        ids, first, placement, people = np.unique(
            messages.ids, return_index=True, return_inverse=True, return_counts=True
        )
        if people.max(initial=0) > self.people:
            raise ValueError(
                f"client {ids[np.argmax(people)]} has {people.max()} people, and its sum is made for people = "
                f"{self.people} at most; use a larger number, which is public"
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
            why = f"noise is added before a message leaves, so nobody needs to be trusted; covers {unit}"
            return [Guarantee(each, event, why, paid, self.unit, "replace-one", slack) for each in OBSERVERS]
        if isinstance(self.placement, SecureAggregation):
            fewest = self.placement.min_honest(cohort)
            share = self._share(scale / step, fewest)
            slack = _slack(share, setting.parameters * fewest)
            event = self._event_of_shares(scale / step, reach / step, fewest, setting.parameters)
            why = (
                f"if at most {self.placement.colluders(cohort)} of {cohort:.0f} clients work with the server, it "
                f"follows the protocol, and keys are authentic; sums of fewer than {self.placement.opened(cohort)} are "
                f"not opened; who takes part is known; covers {unit}"
            )
            return [Guarantee(each, event, why, paid, self.unit, "zero-out", slack) for each in OBSERVERS]
        slack = _slack(self._law(scale / step), setting.parameters)
        # Who knows that an interaction took place knows that its client took part. And an organisation takes part with
        # all its people or none: the others, who are known, show that it did, so that nobody hides behind the draw.
        sampling = setting.participation if self.unit == "client" else 1.0
        sampled = sampling < 1
        event = self._event(scale / reach, sampling)
        bare, each = ("sums", "organisation's sum") if self.unit == "person" else ("updates", "update")
        why = f"if the server is trusted with bare {bare}{' and keeps secret who takes part' if sampled else ''}"
        charged: Literal["once", "participation", "round"] = "round" if self.unit == "client" else paid
        return [
            Guarantee("server", None, f"sees every {each} without noise, and who takes part", unit=self.unit),
            Guarantee("other clients", event, f"{why}; covers {unit}", charged, self.unit, "zero-out", slack),
            Guarantee("public", event, f"{why}; covers {unit}", charged, self.unit, "zero-out", slack),
        ]

    def _covers(self) -> str:
        if self.unit == "client":
            return "everything a client does"
        if self.unit == "interaction":
            return "one interaction, not all that a client does,"
        if self.sites == 1:
            return "everything a person does at one organisation, which sees it; at several, what each costs adds up"
        return f"everything a person does at up to {self.sites} organisations, which see it; their costs are added up"

    @abstractmethod
    def _law(self, scale: float) -> GridNoise:
        """Noise in grid steps, for one place that adds all of it."""

    @abstractmethod
    def _share(self, scale: float, shares: int) -> GridNoise:
        """Noise in grid steps of which `shares` add up to the scale."""

    @abstractmethod
    def _event(self, multiplier: float, sampling: float = 1.0) -> Event: ...

    @abstractmethod
    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event: ...


@dataclass(frozen=True)
class Gaussian(_Noise):
    """Updates shortened to a length (L2), weighed, and Gaussian noise: the usual choice for many parameters."""

    def _law(self, scale: float) -> GridNoise:
        return rounded_gaussian(scale)

    def _share(self, scale: float, shares: int) -> GridNoise:
        return gaussian_share(scale, shares)

    def _event(self, multiplier: float, sampling: float = 1.0) -> Event:
        return GaussianEvent(multiplier, sampling)

    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event:
        return event_of_gaussian_shares(scale, reach / scale, shares, parameters)


@dataclass(frozen=True)
class Laplace(_Noise):
    """Updates shortened to a length (L1), weighed, and Laplace noise: pure ε, for few parameters."""

    norm = 1
    tail = 2.5

    def _law(self, scale: float) -> GridNoise:
        return rounded_laplace(scale)

    def _share(self, scale: float, shares: int) -> GridNoise:
        return polya_difference(_wide_enough(scale, shares), shares)

    def _event(self, multiplier: float, sampling: float = 1.0) -> Event:
        return LaplaceEvent(multiplier, sampling)

    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event:
        return PureEvent(reach / scale)


@dataclass(frozen=True)
class FpdgdPaper:
    """The noise of the FPDGD paper, as published: what it calls ε is not the ε that holds (Wang et al., ICTIR 2021).

    Every client adds Gamma(1/N, Δ/ε) - Gamma(1/N, Δ/ε) to each weight, so that N messages together carry Laplace
    noise, and one message almost none. Weights are clipped by the learner (clip_weights). Kept for comparison; for
    protection use "gaussian" or "laplace".
    """

    epsilon: float  # ε as the paper states it
    sensitivity: float = 3.0  # Δ
    variant: Literal["text", "code"] = "text"  # weights are clipped to Δ/2 (the text) or to Δ (the code)
    shares: int | None = None  # N; None: as many as send in a round, which out of step is one

    traits: ClassVar[frozenset[Trait]] = frozenset()
    sees = "the server sees every client's weights, almost without noise"

    def __post_init__(self) -> None:
        _check_range("epsilon", self.epsilon, 1.2)
        _check_range("sensitivity", self.sensitivity, 3)
        if self.shares is not None and self.shares < 1:
            raise ValueError(f"shares = {self.shares} is no number of messages; use 1 or more, or leave it out")

    @property
    def clip_weights(self) -> float:
        """To which length the learner must clip the weights."""
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
                f"the noise of fpdgd-paper is made for weights of length {self.clip_weights:g} at most "
                f"({self.variant}); set learner.clip_weights = {self.clip_weights:g}"
            )
        nothing = "one message carries almost no noise: clicks can be read from it"
        rows = [Guarantee("server", None, nothing)]
        if not has_trait(setting.aggregator, "sum"):
            why = "noise adds up to Laplace noise in an equally weighted mean only"
        elif getattr(setting.aggregator, "weighted", False) and len(set(setting.interactions)) > 1:
            why = "clients of different weight do not add up to Laplace noise"
        elif self.shares is not None:
            why = "noise adds up to Laplace noise only where as many messages as shares are one sum"
        else:
            # L2 clipping with noise on every coordinate: only √parameters times the stated ε holds in pure form.
            ratio = self.epsilon * 2 * self.clip_weights / self.sensitivity
            event = ConcentratedEvent(ratio**2 / 2, ratio * math.sqrt(setting.parameters))
            why = (
                "only if the server is trusted, all clients are honest, present and of equal weight, and nobody looks "
                "at how floating-point noise was rounded; the paper "
                f"states ε = {self.epsilon:g}; {up(event.pure)} is true for one round"
            )
            return rows + [Guarantee(each, event, why) for each in OBSERVERS[1:]]
        return rows + [Guarantee(each, None, why) for each in OBSERVERS[1:]]


@dataclass(frozen=True)
class EsRandomisedResponse:
    """The price of FOLtR-ES: its learner flips rewards before it reports them (its setting `truth`); nothing is added.

    What is flipped is drawn from the run's seed, since clients are simulated; a deployment must use the secure source.
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
                'es-randomised-response prices rewards that are flipped; use the learner "evolution" with truth below 1'
            )
        if getattr(learner, "chance", "") == "shared":
            why = 'with chance = "shared" the seed in a message also draws the clicks, so flipped rewards hide nothing'
            return [Guarantee(each, None, why) for each in OBSERVERS]
        if len(set(setting.interactions)) > 1:
            why = "how often a client searched shows in its mean rewards, and nothing hides that"
            return [Guarantee(each, None, why) for each in OBSERVERS]
        event = ResponseEvent(learner.truth, REWARD_VALUES, max(setting.interactions))
        why = (
            "rewards are flipped before a message leaves, so nobody needs to be trusted; covers all that a client "
            "does; a simulation draws the flips from the run's seed, and whoever has that can undo them"
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
    """A trusted server's sum of contributions on the grid, with noise, divided by a public number."""

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
    """What a secure sum opens to the server, without the protocol."""

    placement: SecureAggregation
    step: float
    cohort: int

    traits: ClassVar[frozenset[Trait]] = frozenset({"sum"})

    @property
    def min_messages(self) -> int:
        """Messages of a round below which its sum is not opened: there would be too little noise in it."""
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
    """The same by the protocol: of all clients at once, because nobody may see a sum of some of them."""

    placement: SecureAggregation
    step: float
    cohort: int

    def __call__(self, messages: Messages) -> Change:
        from fedrank.privacy.secure_aggregation import secure_sum

        threshold, fewest = self.placement.threshold(self.cohort), self.placement.opened(self.cohort)
        session = os.urandom(16)
        total = secure_sum(
            messages.updates, self.placement.bits, threshold, fewest, session=session, round=messages.round
        )
        return total.astype(np.float64) * (self.step / self.cohort)


def gaussian_share(scale: float, shares: int) -> GridNoise:
    """Discrete Gaussian noise in grid steps, of which `shares` add up to the scale."""
    return discrete_gaussian(_wide_enough(scale / math.sqrt(shares), shares))


def event_of_gaussian_shares(scale: float, ratio: float, shares: int, parameters: int) -> ConcentratedEvent:
    """What a sum of shares costs; `ratio` is how far all numbers can move, each in units of its own noise.

    A sum of discrete Gaussians is almost one (Kairouz, Liu and Steinke, ICML 2021, theorem 1). Where numbers have noise
    of several widths, `scale` is the smallest: the theorem holds for each, and what they cost adds up.
    """
    k = np.arange(1, shares)
    gap = 10 * float(np.exp(-2 * math.pi**2 * scale**2 / shares * k / (k + 1)).sum())
    cost = min(math.sqrt(ratio**2 + gap * parameters / 2), ratio + gap * math.sqrt(parameters))
    return ConcentratedEvent(cost**2 / 2)


def _slack(law: GridNoise, draws: int) -> float:
    """What noise from tables, not from the very law that is priced, adds to ε each time.

    Every probability, with an update and without it, is right up to a factor exp(±log_error) for each draw.
    """
    return 2 * draws * law.log_error


def _wide_enough(steps: float, shares: int) -> float:
    if steps < 2:
        raise ValueError(
            f"a share of the noise is only {steps:.2g} grid steps wide, and {shares} of them would not add up to what "
            "is claimed; use more bits, or more noise"
        )
    return steps

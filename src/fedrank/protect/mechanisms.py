"""Mechanisms: what is done to updates before they leave, and what may honestly be claimed for it."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.federate.aggregate import Mean
from fedrank.protect.accounting import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    ResponseEvent,
)
from fedrank.protect.clip import contributions, finest_step, total_steps, weights_of
from fedrank.protect.noise import (
    GridNoise,
    SecureSource,
    discrete_gaussian,
    polya_difference,
    rounded_gaussian,
    rounded_laplace,
)
from fedrank.protect.promises import OBSERVERS, Promise, Setting, up
from fedrank.rank.evolution import REWARD_VALUES, Evolution
from fedrank.rank.learners import Pdgd
from fedrank.types import Aggregator, Arrivals, Change, Mechanism, Source

LARGEST_PROTOCOL = 200  # clients: the secure sum takes time that grows with their square


class Place(Protocol):
    """Where noise is added, and so who never sees an update without it."""

    @property
    def adds_up(self) -> bool: ...
    @property
    def sees(self) -> str:
        """Who sees what, as a sentence."""


@dataclass(frozen=True)
class OnClient:
    """Noise on every message, before it leaves: holds even against the server (local privacy)."""

    adds_up = False
    sees = "the server sees every update, shortened and with noise"


@dataclass(frozen=True)
class SecureSum:
    """Small shares of noise on every message, and a protocol that lets the server learn nothing but the sum.

    After Bonawitz et al. (CCS 2017); shares of discrete noise after Kairouz, Liu and Steinke (ICML 2021).
    """

    honest: float = 0.5  # share of a round's clients whose noise must be in the sum: honest ones that stay to the end
    colluding: float = 0.25  # share that may work with the server; a sum opens only if enough others are surely in it
    bits: int = 32  # sums are whole numbers modulo 2^bits
    sum: Literal["protocol", "ideal"] = "protocol"  # ideal: only what the protocol would compute, for large simulations

    adds_up = True
    sees = "the server sees the sum of a round's updates, with noise, and who took part"

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
                'the secure sum of a single client is its update; use at least 2 in a round, or place = "client"'
            )
        if self.sum == "protocol" and cohort > LARGEST_PROTOCOL:
            raise ValueError(
                f"the secure sum of {cohort:.0f} clients takes time that grows with their square; for more than "
                f'{LARGEST_PROTOCOL} in a round simulate it with place = {{ name = "secure-sum", sum = "ideal" }}'
            )

    def fewest(self, cohort: float) -> int:
        """Honest clients that stay to the end, at least."""
        return max(1, math.ceil(self.honest * cohort - 1e-9))  # 0.1 x 30 is a little more than 3

    def colluders(self, cohort: float) -> int:
        """Clients that may work with the server, at most."""
        return math.floor(self.colluding * cohort + 1e-9)

    def opened(self, cohort: float) -> int:
        """Clients whose numbers must have come before a sum opens: so many that enough of them are honest."""
        return self.fewest(cohort) + self.colluders(cohort)

    def threshold(self, cohort: float) -> int:
        """Clients that together can open a secret: more than those who may collude."""
        return max(2, self.colluders(cohort) + 1)


@dataclass(frozen=True)
class AtServer:
    """Noise on the sum, added by a server that everybody trusts with bare updates (central privacy)."""

    adds_up = True
    sees = "the server sees every update as it is; everybody else sees models made from noisy sums"


class PricedMechanism(Mechanism, Protocol):
    """A mechanism that says what may be claimed for it."""

    def promises(self, setting: Setting) -> list[Promise]:
        """What is claimed against each of `OBSERVERS`, or that nothing can be."""


PLACES: dict[str, type[Place]] = {"client": OnClient, "secure-sum": SecureSum, "server": AtServer}


@dataclass(frozen=True)
class _Noise(ABC):
    """What Gaussian and Laplace noise have in common: clip, weigh, put on a grid, add."""

    clip: float  # S: largest length of an update, which is shortened to it; the unit of a weight
    noise: float  # how wide the noise is (deviation, or scale of Laplace noise), in multiples of clip
    place: Place = field(default_factory=OnClient)  # who adds it: each client, all of them in shares, or the server
    cap: int = 1  # interactions from which on a client counts fully; with fewer it counts in proportion
    unit: Literal["client", "interaction"] = "client"  # what is protected; interaction: far weaker

    norm = 2  # how length is measured
    tail = 1.0  # width of the tails, compared with those of a normal law

    def __post_init__(self) -> None:
        if not 0 < self.clip < math.inf:
            raise ValueError(f"clip = {self.clip} lets nothing through, or everything; use a positive number such as 1")
        if not 0 < self.noise < math.inf:
            raise ValueError(f"noise = {self.noise} protects nobody; use a positive number such as 1")
        if self.cap < 1:
            raise ValueError(f"cap = {self.cap} would divide by nothing; use 1 or more interactions")
        if self.unit == "interaction" and self.cap != 1:
            raise ValueError(
                f'cap = {self.cap} makes what a client sends depend on how often it searched; unit = "interaction" '
                "does not cover that: use cap = 1"
            )

    @property
    def adds_up(self) -> bool:
        return self.place.adds_up

    @property
    def hides_cohort(self) -> bool:
        return isinstance(self.place, AtServer)

    @property
    def sees(self) -> str:
        return self.place.sees

    def source(self) -> Source:
        return SecureSource()

    def step(self, cohort: float) -> float:
        """Width of the grid: the finest that four bytes a parameter, or the modulus of the sum, allow."""
        finest = finest_step(self.clip)
        if not isinstance(self.place, SecureSum):
            return finest
        from fedrank.protect import secure_sum

        self.place.check(cohort)
        total = self.tail * self.noise * self.clip * math.sqrt(cohort / self.place.fewest(cohort))
        return max(finest, secure_sum.finest_step(int(cohort), self.clip, total, self.place.bits))

    def reach(self, setting: Setting) -> float:
        """How far the sum moves if a client, or an interaction, is left out: the sensitivity, after rounding."""
        step = self.step(setting.cohort(self))
        spread = self._spread(setting)
        whole = self.clip + step * spread / 2
        if self.unit == "client":
            return whole
        learner = setting.learner
        if not isinstance(learner, Pdgd) or not learner.clip_gradients:
            raise ValueError(
                'unit = "interaction" needs a bound on what one interaction adds to an update; '
                'use the learner "pdgd" with batch = true and clip_gradients, such as 1.0'
            )
        longest = learner.rate * learner.clip_gradients
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

    def protect(self, arrived: Arrivals, cohort: float, source: Source) -> Arrivals:
        step = self.step(cohort)
        steps = contributions(arrived.updates, weights_of(arrived.sizes, self.cap), self.clip, self.norm, step)
        if isinstance(self.place, OnClient):
            steps += self._law(self.noise * self.clip / step).draw(steps.shape, source)
        updates = (steps * step).astype(np.float32)
        bytes_each = 4 * updates.shape[1]
        if isinstance(self.place, SecureSum):
            from fedrank.protect.secure_sum import message_bytes

            bytes_each = message_bytes(int(cohort), updates.shape[1], self.place.bits)
        # Who searched how often never leaves a client, except through its weight.
        return replace(arrived, updates=updates, sizes=np.ones_like(arrived.sizes), message_bytes=bytes_each)

    def rule(self, cohort: float, source: Source) -> Aggregator:
        step = self.step(cohort)
        scale = self.noise * self.clip / step
        if isinstance(self.place, SecureSum):
            kind = _SumOfShares if self.place.sum == "ideal" else _ProtocolSum
            return kind(self.place, step, int(cohort), self._share(scale, self.place.fewest(cohort)), source)
        return _NoisySum(step, cohort, self._law(scale), source)

    def promises(self, setting: Setting) -> list[Promise]:
        cohort = setting.cohort(self)
        step, reach = self.step(cohort), self.reach(setting)
        scale = self.noise * self.clip
        unit = "everything a client does" if self.unit == "client" else "one interaction, not all that a client does,"
        paid: Literal["once", "participation", "round"] = "once" if self.unit == "interaction" else "participation"
        if isinstance(self.place, OnClient):
            slack = _slack(self._law(scale / step), setting.parameters)
            event = self._event(scale / self.furthest(setting))
            why = f"noise is added before a message leaves, so nobody needs to be trusted; covers {unit}"
            return [Promise(each, event, why, paid, self.unit, "replace-one", slack) for each in OBSERVERS]
        if isinstance(self.place, SecureSum):
            fewest = self.place.fewest(cohort)
            share = self._share(scale / step, fewest)
            slack = _slack(share, setting.parameters * fewest)
            event = self._event_of_shares(scale / step, reach / step, fewest, setting.parameters)
            why = (
                f"if at most {self.place.colluders(cohort)} of {cohort:.0f} clients work with the server, it follows "
                f"the protocol, and keys are authentic; sums of fewer than {self.place.opened(cohort)} are not opened; "
                f"who takes part is known; covers {unit}"
            )
            return [Promise(each, event, why, paid, self.unit, "zero-out", slack) for each in OBSERVERS]
        slack = _slack(self._law(scale / step), setting.parameters)
        # Who knows that an interaction took place knows that its client took part.
        sampling = setting.participation if self.unit == "client" else 1.0
        sampled = sampling < 1
        event = self._event(scale / reach, sampling)
        why = f"if the server is trusted with bare updates{' and keeps secret who takes part' if sampled else ''}"
        charged: Literal["once", "round"] = "once" if paid == "once" else "round"
        return [
            Promise("server", None, "sees every update without noise, and who takes part", unit=self.unit),
            Promise("other clients", event, f"{why}; covers {unit}", charged, self.unit, "zero-out", slack),
            Promise("public", event, f"{why}; covers {unit}", charged, self.unit, "zero-out", slack),
        ]

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
        return discrete_gaussian(_wide_enough(scale / math.sqrt(shares), shares))

    def _event(self, multiplier: float, sampling: float = 1.0) -> Event:
        return GaussianEvent(multiplier, sampling)

    def _event_of_shares(self, scale: float, reach: float, shares: int, parameters: int) -> Event:
        """A sum of discrete Gaussians is almost one (Kairouz, Liu and Steinke, ICML 2021, theorem 1)."""
        k = np.arange(1, shares)
        gap = 10 * float(np.exp(-2 * math.pi**2 * scale**2 / shares * k / (k + 1)).sum())
        ratio = reach / scale
        cost = min(math.sqrt(ratio**2 + gap * parameters / 2), ratio + gap * math.sqrt(parameters))
        return ConcentratedEvent(cost**2 / 2)


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

    adds_up = False
    hides_cohort = False
    sees = "the server sees every client's weights, almost without noise"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon = {self.epsilon} is no amount of noise; use a positive number such as 1.2")
        if not 0 < self.sensitivity < math.inf:
            raise ValueError(f"sensitivity = {self.sensitivity} bounds nothing; use a positive number such as 3")

    @property
    def clip_weights(self) -> float:
        """To which length the learner must clip the weights."""
        return self.sensitivity / 2 if self.variant == "text" else self.sensitivity

    def source(self) -> Source:
        return SecureSource()

    def protect(self, arrived: Arrivals, cohort: float, source: Source) -> Arrivals:
        rng = np.random.default_rng(source.seed())
        up, down = rng.gamma(1 / cohort, self.sensitivity / self.epsilon, size=(2, *arrived.updates.shape))
        return replace(arrived, updates=(arrived.updates + (up - down)).astype(np.float32))

    def promises(self, setting: Setting) -> list[Promise]:
        if getattr(setting.learner, "clip_weights", 0.0) != self.clip_weights:
            raise ValueError(
                f"the noise of fpdgd-paper is made for weights of length {self.clip_weights:g} at most "
                f"({self.variant}); set learner.clip_weights = {self.clip_weights:g}"
            )
        nothing = "one message carries almost no noise: clicks can be read from it"
        rows = [Promise("server", None, nothing)]
        if not isinstance(setting.aggregator, Mean):
            why = "noise adds up to Laplace noise in an equally weighted mean only"
        elif setting.aggregator.weighted and len(set(setting.interactions)) > 1:
            why = "clients of different weight do not add up to Laplace noise"
        else:
            # L2 clipping with noise on every coordinate: only √parameters times the stated ε holds in pure form.
            ratio = self.epsilon * 2 * self.clip_weights / self.sensitivity
            event = ConcentratedEvent(ratio**2 / 2, ratio * math.sqrt(setting.parameters))
            why = (
                "only if the server is trusted, all clients are honest, present and of equal weight, and nobody looks "
                "at how floating-point noise was rounded; the paper "
                f"states ε = {self.epsilon:g}; {up(event.pure)} is true for one round"
            )
            return rows + [Promise(each, event, why) for each in OBSERVERS[1:]]
        return rows + [Promise(each, None, why) for each in OBSERVERS[1:]]


@dataclass(frozen=True)
class EsRandomisedResponse:
    """The price of FOLtR-ES: its learner flips rewards before it reports them (its setting `truth`); nothing is added.

    What is flipped is drawn from the run's seed, since clients are simulated; a deployment must use the secure source.
    """

    adds_up = False
    hides_cohort = False
    sees = "the server sees a seed and two mean rewards, of which some are flipped"

    def source(self) -> Source:
        return SecureSource()

    def protect(self, arrived: Arrivals, cohort: float, source: Source) -> Arrivals:
        return arrived

    def promises(self, setting: Setting) -> list[Promise]:
        learner = setting.learner
        if not isinstance(learner, Evolution) or learner.truth == 1:
            raise ValueError(
                'es-randomised-response prices rewards that are flipped; use the learner "evolution" with truth below 1'
            )
        if len(set(setting.interactions)) > 1:
            why = "how often a client searched shows in its mean rewards, and nothing hides that"
            return [Promise(each, None, why) for each in OBSERVERS]
        event = ResponseEvent(learner.truth, REWARD_VALUES, max(setting.interactions))
        why = (
            "rewards are flipped before a message leaves, so nobody needs to be trusted; covers all that a client "
            "does; a simulation draws the flips from the run's seed, and whoever has that can undo them"
        )
        return [Promise(each, event, why) for each in OBSERVERS]


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

    def part(self, arrived: Arrivals) -> NDArray[np.int64]:
        return total_steps(arrived.updates, self.step)

    def whole(self, total: NDArray[np.int64]) -> Change:
        noised = np.add(total, self.law.draw(total.shape, self.source), dtype=np.float64)
        return noised * (self.step / self.cohort)

    def __call__(self, arrived: Arrivals) -> Change:
        return self.whole(self.part(arrived))


@dataclass(frozen=True)
class _Shares:
    """What contributions with their shares of the noise are added up with."""

    place: SecureSum
    step: float
    cohort: int
    share: GridNoise
    source: Source

    def sent(self, arrived: Arrivals) -> NDArray[np.int64]:
        steps = _steps(arrived, self.step)
        steps += self.share.draw(steps.shape, self.source)
        return steps


@dataclass(frozen=True)
class _SumOfShares(_Shares):
    """What a secure sum opens to the server, without the protocol."""

    def part(self, arrived: Arrivals) -> NDArray[np.int64]:
        from fedrank.protect.secure_sum import ideal_sum

        return ideal_sum(self.sent(arrived), self.place.bits)

    def whole(self, total: NDArray[np.int64]) -> Change:
        from fedrank.protect.secure_sum import ideal_sum

        return ideal_sum(total[None, :], self.place.bits).astype(np.float64) * (self.step / self.cohort)

    def __call__(self, arrived: Arrivals) -> Change:
        return self.whole(self.part(arrived))


@dataclass(frozen=True)
class _ProtocolSum(_Shares):
    """The same by the protocol: of all clients at once, because nobody may see a sum of some of them."""

    def __call__(self, arrived: Arrivals) -> Change:
        from fedrank.protect.secure_sum import secure_sum

        threshold, fewest = self.place.threshold(self.cohort), self.place.opened(self.cohort)
        session = os.urandom(16)
        total = secure_sum(self.sent(arrived), self.place.bits, threshold, fewest, session=session, round=arrived.round)
        return total.astype(np.float64) * (self.step / self.cohort)


def _slack(law: GridNoise, draws: int) -> float:
    """What noise from tables, not from the very law that is priced, adds to ε each time.

    Every probability, with an update and without it, is right up to a factor exp(±log_error) for each draw.
    """
    return 2 * draws * law.log_error


def _steps(arrived: Arrivals, step: float) -> NDArray[np.int64]:
    """[clients, parameters]: contributions as the whole numbers that they are."""
    return np.rint(arrived.updates.astype(np.float64) / step).astype(np.int64)


def _wide_enough(steps: float, shares: int) -> float:
    if steps < 2:
        raise ValueError(
            f"a share of the noise is only {steps:.2g} grid steps wide, and {shares} of them would not add up to what "
            "is claimed; use more bits, or more noise"
        )
    return steps

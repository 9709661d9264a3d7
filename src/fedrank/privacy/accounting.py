"""Privacy accounting: from the privacy event of one round to ε, δ and the trade-off curve of a whole run.

Every result is an upper bound: rounding and truncation always increase the reported loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import exp, expm1, inf, isfinite, log, log1p, log2, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.extras import missing_extra

Floats = NDArray[np.float64]

LOST = 1e-40  # probability that one step of the exact convolution may cut from a tail
CELLS = 2**20  # cells of a composed privacy loss, above which it is stored more coarsely
GRID = 1000  # values of epsilon from which a trade-off curve is built
ORDERS = np.array([*range(2, 65), 128, 256, 512, 1024], dtype=np.float64)  # of Rényi divergences
MAX_NOISE, MAX_LOSS, MAX_ANSWERS = 1e12, 1e100, 1_000_000  # beyond these numbers overflow, or accounting takes too long
MAX_DISTRIBUTIONS = 8  # composed exactly; each takes about a second


@dataclass(frozen=True)
class GaussianEvent:
    """Gaussian noise on a sum, for neighbours that differ by adding or removing one unit."""

    multiplier: float  # standard deviation of the noise / L2 sensitivity, above 0
    sampling: float = 1.0  # probability that a unit is in a round, drawn independently and secretly; 1: always

    def __post_init__(self) -> None:
        _check_noise(self.multiplier, self.sampling)


@dataclass(frozen=True)
class LaplaceEvent:
    """Laplace noise on a sum, for neighbours that differ by adding or removing one unit."""

    multiplier: float  # scale of the noise / L1 sensitivity, above 0
    sampling: float = 1.0  # probability that a unit is in a round, drawn independently and secretly; 1: always

    def __post_init__(self) -> None:
        _check_noise(self.multiplier, self.sampling)


@dataclass(frozen=True)
class ConcentratedEvent:
    """Any release with rho-zCDP (Bun and Steinke, TCC 2016), such as distributed discrete Gaussian noise."""

    rho: float  # 0 or more; inf guarantees nothing
    pure: float = inf  # epsilon of one release at delta = 0, where it is finite

    def __post_init__(self) -> None:
        _check_price("rho", self.rho)
        _check_price("pure", self.pure)


@dataclass(frozen=True)
class PureEvent:
    """Any release that is epsilon-differentially private."""

    epsilon: float  # 0 or more; inf guarantees nothing

    def __post_init__(self) -> None:
        _check_price("epsilon", self.epsilon)


@dataclass(frozen=True)
class ResponseEvent:
    """Randomised response: each answer is true with a fixed probability, otherwise uniform over the other values."""

    truth: float  # probability of the true answer, above 0; 1 guarantees nothing
    values: int = 11  # possible answers
    answers: int = 1  # independent answers of one unit per round; a neighbour may differ in all of them

    def __post_init__(self) -> None:
        if not 0 < self.truth <= 1:
            raise ValueError(f"truth must be above 0 and at most 1 (got {self.truth})")
        if self.truth * MAX_NOISE < 1:
            raise ValueError(f"truth must be at least {1 / MAX_NOISE:g} for the accounting (got {self.truth})")
        if self.values < 2:
            raise ValueError(f"values must be at least 2, the true answer and another one (got {self.values})")
        if self.answers < 1:
            raise ValueError(f"answers must be at least 1 (got {self.answers})")
        if max(self.values, self.answers) > MAX_ANSWERS:
            raise ValueError(
                f"answers and values must be at most {MAX_ANSWERS:,} each (got {self.answers} and {self.values})"
            )


Event = GaussianEvent | LaplaceEvent | ConcentratedEvent | PureEvent | ResponseEvent


def epsilon(event: Event, times: int, delta: float) -> float:
    """The smallest ε that can be claimed at this delta after `times` rounds; inf where none holds."""
    _check_times(times)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1 (got {delta}); use a value such as 1e-5")
    return _epsilon(event, int(times), float(delta))


def composed(events: Mapping[Event, int], delta: float) -> float:
    """The smallest ε that can be claimed after all of these events, each repeated; inf where none holds.

    Different events are composed before the conversion to ε, which gives less than the sum of their ε.
    """
    spent = {event: times for event, times in events.items() if times}
    if len(spent) <= 1:
        return max((epsilon(event, times, delta) for event, times in spent.items()), default=0.0)
    for times in spent.values():
        _check_times(times)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1 (got {delta}); use a value such as 1e-5")
    return _composed(frozenset(spent.items()), float(delta))


@lru_cache(maxsize=4096)
def _composed(spent: frozenset[tuple[Event, int]], delta: float) -> float:
    pure = sum(_pure(event) * times for event, times in spent)
    if delta == 0 or pure == 0:
        return pure
    parts = sum(_epsilon(event, times, delta / len(spent)) for event, times in spent)
    bounds = [pure, parts, *(bound.epsilon(delta) for bound in _bounds_together(dict(spent)))]
    rest = {event: times for event, times in spent if _pure(event) == inf}
    if len(rest) < len(spent):  # pure ε is added to the ε of the rest, which then has all of δ
        on_top = sum(_pure(event) * times for event, times in spent if event not in rest)
        bounds.append(on_top + composed(rest, delta))
    return min(bounds)


def _bounds_together(spent: Mapping[Event, int]) -> Iterator[_Bound]:
    """All available bounds for a composition of different events."""
    yield _Concentrated(sum(times * _rho(event) for event, times in spent.items()))
    gaussian = [(event, times) for event, times in spent.items() if isinstance(event, GaussianEvent)]
    if len(gaussian) == len(spent):  # dropping the sampling gives an upper bound
        yield _Gaussian(sqrt(sum(times / event.multiplier**2 for event, times in gaussian)))
    if any(event.sampling < 1 for event, _ in gaussian):
        yield _Moments(
            ORDERS, sum((_divergences(event, times) for event, times in spent.items()), np.zeros(len(ORDERS)))
        )
    drawn = {event: times for event, times in spent.items() if isinstance(event, (GaussianEvent, LaplaceEvent))}
    if len(drawn) == len(spent) <= MAX_DISTRIBUTIONS and any(
        event.sampling < 1 or isinstance(event, LaplaceEvent) for event in drawn
    ):
        rounds = sum(drawn.values())
        step = max(_loss_step(event, rounds) for event in drawn)
        if step <= 0.5:
            whole = None
            for event, times in drawn.items():
                some = _single(event, step).self_compose(times)
                whole = some if whole is None else whole.compose(some)
            yield _Distribution(whole, 2.0**-50 * (rounds + 100))


def _rho(event: Event) -> float:
    """A ρ for which one release is ρ-zCDP; pure ε is ε²/2 (Bun and Steinke 2016, proposition 1.4)."""
    if isinstance(event, ConcentratedEvent):
        return min(event.rho, event.pure**2 / 2)
    return 1 / (2 * event.multiplier**2) if isinstance(event, GaussianEvent) else _pure(event) ** 2 / 2


def _divergences(event: Event, times: int) -> Floats:
    """[orders]: Rényi divergence of `times` releases."""
    if isinstance(event, GaussianEvent) and event.sampling < 1:
        return _moments(event, times).divergences
    return times * _rho(event) * ORDERS


def delta_of(event: Event, times: int, epsilon: float) -> float:
    """The smallest δ that can be claimed at this epsilon after `times` rounds."""
    _check_times(times)
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be 0 or more (got {epsilon})")
    return float(_deltas(event, times, np.array([float(epsilon)]))[0])


def trade_off(event: Event, times: int, alphas: NDArray[Any] | Iterable[float]) -> Floats:
    """The smallest false negative rate of any test for membership, for each false positive rate in `alphas`.

    Exact for Gaussian noise without sampling (Dong, Roth, Su 2022); otherwise a lower bound that is exact where a
    claim (ε, δ) is tight.
    """
    _check_times(times)
    rates = np.asarray(alphas if isinstance(alphas, np.ndarray) else list(alphas), dtype=np.float64)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise ValueError(f"alphas must be between 0 and 1 (got {rates.min()} to {rates.max()})")
    if times == 0:
        return 1 - rates
    if isinstance(event, GaussianEvent) and event.sampling == 1:
        from scipy.special import ndtr, ndtri

        shifted: Floats = ndtr(-ndtri(rates) - sqrt(times) / event.multiplier)
        return shifted
    # Above 700 e^ε overflows, and such an ε affects only rates below 1e-300.
    top = min(epsilon(event, times, 1e-9), 700.0)
    grid = np.linspace(0, top, GRID)
    missed = 1 - _deltas(event, times, grid)
    steep = missed - np.multiply.outer(rates, np.exp(grid))
    flat = np.exp(-grid) * (missed - rates[..., None])
    curve: Floats = np.maximum(0, np.maximum(steep, flat).max(axis=-1))
    return curve


def _check_noise(multiplier: float, sampling: float) -> None:
    if not (multiplier > 0 and isfinite(multiplier)):
        raise ValueError(f"multiplier must be finite and above 0 (got {multiplier})")
    if not 1 / MAX_NOISE <= multiplier <= MAX_NOISE:
        raise ValueError(f"multiplier must be between {1 / MAX_NOISE:g} and {MAX_NOISE:g} (got {multiplier})")
    if not 0 < sampling <= 1:
        raise ValueError(f"sampling must be above 0 and at most 1 (got {sampling})")


def _check_price(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must be 0 or more, or inf for no guarantee (got {value})")
    if MAX_LOSS < value < inf:
        raise ValueError(f"{name} must be at most {MAX_LOSS:g}, or inf for no guarantee (got {value})")


def _check_times(times: int) -> None:
    if times < 0 or times != int(times):
        raise ValueError(f"times must be an integer of 0 or more (got {times})")


@lru_cache(maxsize=4096)
def _epsilon(event: Event, times: int, delta: float) -> float:
    pure = _pure(event) * times if times else 0.0
    if delta == 0 or pure == 0:
        return pure
    return min(pure, *(bound.epsilon(delta) for bound in _bounds(event, times)))


def _deltas(event: Event, times: int, epsilons: Floats) -> Floats:
    """δ for ascending epsilons."""
    pure = _pure(event) * times if times else 0.0
    deltas = np.ones(len(epsilons))
    inside = (epsilons < pure) & np.isfinite(epsilons)
    if inside.any():
        for bound in _bounds(event, times):
            deltas[inside] = np.minimum(deltas[inside], bound.deltas(epsilons[inside]))
    deltas[epsilons >= pure] = 0.0
    return deltas


def _pure(event: Event) -> float:
    """ε of one round at δ = 0."""
    match event:
        case GaussianEvent():
            return inf
        case LaplaceEvent(multiplier, sampling):
            return _sampled_loss(1 / multiplier, sampling)
        case ConcentratedEvent():
            return event.pure
        case PureEvent():
            return event.epsilon
        case ResponseEvent(truth, values, answers):
            return answers * abs(log(truth * (values - 1) / (1 - truth))) if truth < 1 else inf


def _sampled_loss(loss: float, sampling: float) -> float:
    """log(1 - q + q e^loss): the loss after sampling with probability q."""
    return loss if sampling == 1 else float(np.logaddexp(log1p(-sampling), log(sampling) + loss))


class _Bound(Protocol):
    """An upper bound on the privacy loss of a run: δ for ascending values of ε, and the inverse."""

    def deltas(self, epsilons: Floats) -> Floats: ...

    def epsilon(self, delta: float) -> float: ...


@lru_cache(maxsize=8)
def _bounds(event: Event, times: int) -> tuple[_Bound, ...]:
    """All available bounds for an event; all hold, so the smallest may be claimed."""
    match event:
        case GaussianEvent(multiplier, sampling):
            # Sampling never increases the loss: mixing two distributions brings them closer.
            always = _Gaussian(sqrt(times) / multiplier)
            return (always,) if sampling == 1 else (always, _moments(event, times), *_distribution(event, times))
        case LaplaceEvent():
            return _lattice_of_pure(_pure(event), times), *_distribution(event, times)
        case ConcentratedEvent(rho, pure):
            concentrated = _Concentrated(rho * times)
            return (concentrated,) if pure == inf else (concentrated, _lattice_of_pure(pure, times))
        case PureEvent():
            return (_lattice_of_pure(event.epsilon, times),)
        case ResponseEvent(truth, values, answers):
            if truth == 1:
                return (_lattice_of_pure(inf, times),)
            other = (1 - truth) / (values - 1)
            up, down = max(truth, other), min(truth, other)
            return (_lattice(up, (values - 2) * other, down, log(up / down), times * answers),)


def _solve(bound: _Bound, delta: float, high: float, precision: float = 1e-12) -> float:
    """The smallest ε up to `high` with at most this delta, by bisection; `high` where no smaller one is enough."""
    low = 0.0
    if bound.deltas(np.zeros(1))[0] <= delta:
        return 0.0
    while high - low > precision * high:
        middle = (low + high) / 2
        if bound.deltas(np.array([middle]))[0] <= delta:
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class _Gaussian:
    """Exact loss of Gaussian noise (Balle and Wang, ICML 2018): k rounds equal one with deviation / sqrt(k)."""

    mu: float  # sensitivity / standard deviation, of all rounds together

    def deltas(self, epsilons: Floats) -> Floats:
        from scipy.special import erfcx, log_ndtr, ndtr

        x, y = epsilons / self.mu - self.mu / 2, epsilons / self.mu + self.mu / 2
        # δ = Φ(-x) - e^ε Φ(-y). In the tail both terms share the factor exp(-x²/2); without it nothing cancels.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            tail = np.exp(-x * x / 2) / 2 * (erfcx(x / sqrt(2)) - erfcx(y / sqrt(2)))
            body = ndtr(-x) - np.exp(epsilons + log_ndtr(-y))
        deltas: Floats = np.where(x > 0, tail, body)
        return deltas

    def epsilon(self, delta: float) -> float:
        rho = self.mu**2 / 2
        return _solve(self, delta, rho + 2 * sqrt(rho * -log(delta)))


@dataclass(frozen=True)
class _Concentrated:
    """Loss of zCDP by the conversion of Canonne, Kamath and Steinke (NeurIPS 2020, proposition 12)."""

    rho: float  # of all rounds together

    def deltas(self, epsilons: Floats) -> Floats:
        if self.rho == inf:
            return np.ones(len(epsilons))
        if self.rho == 0:
            return np.zeros(len(epsilons))
        # log δ = (α-1)(αρ-ε) + (α-1) log(α-1) - α log α is convex in α. With a = α - 1 its slope
        # ρ(2a+1) - ε - log(1+1/a) has one zero, below 1 + ε/ρ + 1/sqrt(ρ). Any a gives a valid δ.
        low, high = np.full(len(epsilons), -700.0), np.log(1 + epsilons / self.rho + 1 / sqrt(self.rho))
        for _ in range(60):
            middle = (low + high) / 2
            rising = self.rho * (2 * np.exp(middle) + 1) - epsilons - np.logaddexp(0, -middle) > 0
            low, high = np.where(rising, low, middle), np.where(rising, middle, high)
        a = np.exp(high)
        exponents = a * ((a + 1) * self.rho - epsilons) + a * np.log(a) - (a + 1) * np.log1p(a)
        deltas: Floats = np.exp(np.minimum(exponents, 0))
        return deltas

    def epsilon(self, delta: float) -> float:
        if self.rho in (0, inf):
            return self.rho
        # Along the best orders ε = ρ(2a+1) - log(1+1/a) and log δ = -ρa² - log(1+a): one bisection over a is enough.
        low, high = 0.0, sqrt(-log(delta) / self.rho)
        for _ in range(100):
            middle = (low + high) / 2
            if -self.rho * middle**2 - log1p(middle) <= log(delta):
                high = middle
            else:
                low = middle
        return max(0.0, self.rho * (2 * high + 1) - log1p(1 / high))


@dataclass(frozen=True, eq=False)
class _Lattice:
    """Exact distribution of a privacy loss on multiples of one step."""

    step: float
    first: int  # the loss of the first cell, in steps
    masses: Floats  # [cells]: probability of each loss
    beyond: float  # probability of larger losses that were cut off

    def deltas(self, epsilons: Floats) -> Floats:
        losses = self.step * (self.first + np.arange(len(self.masses)))
        over = np.searchsorted(losses, epsilons, side="right")
        sums = [-np.expm1(e - losses[i:]) @ self.masses[i:] for e, i in zip(epsilons, over, strict=True)]
        return np.minimum(1, self.beyond + np.array(sums))

    def epsilon(self, delta: float) -> float:
        if delta <= self.beyond:
            return inf
        return _solve(self, delta, max(0.0, self.step * (self.first + len(self.masses) - 1)))


@lru_cache(maxsize=16)
def _lattice(up: float, same: float, down: float, step: float, times: int) -> _Lattice:
    """The sum of independent losses that are +step, 0 or -step.

    Direct convolution of positive numbers preserves its relative precision far into the tails, where Fourier
    transforms leave rounding noise; repeated doubling makes it cheap.
    """
    one = np.array([down, same, up])
    first, masses, beyond = -1, one, 0.0
    widest = len(one)
    for bit in f"{times:b}"[1:]:
        first, masses, beyond = 2 * first, np.convolve(masses, masses), 2 * beyond
        if bit == "1":
            first, masses = first - 1, np.convolve(masses, one)
        # Small losses are moved up to the first remaining cell, large ones count as infinite.
        below, above = np.cumsum(masses), np.cumsum(masses[::-1])
        start, stop = int(np.searchsorted(below, LOST)), len(masses) - int(np.searchsorted(above, LOST))
        beyond += float(masses[stop:].sum())
        moved = float(masses[:start].sum())
        first, masses = first + start, masses[start:stop].copy()
        masses[0] += moved
        widest = max(widest, len(masses))
    # A sum of n positive products has at most n rounding errors, and doubling doubles the relative error.
    masses *= 1 + 2.0**-52 * times * (widest + 2)
    return _Lattice(step, first, masses, beyond)


def _lattice_of_pure(loss: float, times: int) -> _Lattice:
    """The tight bound for any ε-private releases (Kairouz, Oh, Viswanath, ICML 2015): none is worse than binary
    randomised response."""
    if loss == inf:
        return _Lattice(1.0, 0, np.zeros(1), 1.0)
    other = exp(-loss) / (1 + exp(-loss))
    return _lattice(1 / (1 + exp(-loss)), 0.0, other, loss, times)


@dataclass(frozen=True, eq=False)
class _Moments:
    """Rényi moments of sampled Gaussian noise (Mironov, Talwar, Zhang 2019): loose, but cheap for any length."""

    orders: Floats  # [orders], integers from 2 upwards
    divergences: Floats  # [orders]: Rényi divergence of all rounds together

    def deltas(self, epsilons: Floats) -> Floats:
        a = self.orders - 1
        exponents = a * (self.divergences - epsilons[:, None]) + a * np.log(a) - self.orders * np.log(self.orders)
        deltas: Floats = np.exp(np.minimum(exponents.min(axis=1), 0))
        return deltas

    def epsilon(self, delta: float) -> float:
        a = self.orders - 1
        epsilons = self.divergences + np.log(a) - (np.log(delta) + self.orders * np.log(self.orders)) / a
        return max(0.0, float(epsilons.min()))


def _moments(event: GaussianEvent, times: int) -> _Moments:
    from scipy.special import gammaln, logsumexp

    q, sigma = event.sampling, event.multiplier
    divergences = np.empty(len(ORDERS))
    for i, order in enumerate(ORDERS):
        k = np.arange(order + 1)
        choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = choose + k * log(q) + (order - k) * log1p(-q) + k * (k - 1) / (2 * sigma**2)
        # The sum is 1 plus a term that may be tiny; add back what rounding can remove.
        divergences[i] = (max(0.0, logsumexp(terms)) + 1e-15 * np.abs(terms).max()) / (order - 1)
    return _Moments(ORDERS, times * divergences)


@dataclass(frozen=True, eq=False)
class _Distribution:
    """The privacy loss distribution, as the package dp-accounting composes it."""

    composed: Any  # PrivacyLossDistribution
    doubt: float  # bound on the rounding error of δ

    def deltas(self, epsilons: Floats) -> Floats:
        # A scalar call never computes e^ε, which overflows; a vector call is a single pass.
        if len(epsilons) == 1:
            found = np.array([self.composed.get_delta_for_epsilon(float(epsilons[0]))])
        else:
            found = self.composed.get_delta_for_epsilon(epsilons)
        deltas: Floats = np.minimum(1, found + self.doubt)
        return deltas

    def epsilon(self, delta: float) -> float:
        # The package's inverse loses precision where e^-ε underflows, near 700.
        high = 1.0
        while self.deltas(np.array([high]))[0] > delta:
            high *= 2
            if high > 2.0**40:
                return inf
        return _solve(self, delta, high, 1e-9)


def _distribution(event: GaussianEvent | LaplaceEvent, times: int) -> tuple[_Distribution, ...]:
    """The privacy loss distribution in both directions, rounded upwards; empty where it would be too coarse to help.

    (Koskela et al. 2020; "connect the dots" of Doroshenko et al. 2022.)
    """
    step = _loss_step(event, times)
    if step > 0.5:
        return ()
    # A Fourier transform has a few rounding errors, which its power multiplies by the number of rounds.
    return (_Distribution(_single(event, step).self_compose(times), 2.0**-50 * (times + 100)),)


@lru_cache(maxsize=4)
def _single(event: GaussianEvent | LaplaceEvent, step: float) -> Any:
    """The privacy loss distribution of one round."""
    try:
        package = import_module("dp_accounting.pld.privacy_loss_distribution")
    except ImportError as error:
        raise missing_extra(
            "accounting of Laplace noise and of sampled Gaussian noise needs the package dp-accounting", "privacy"
        ) from error
    gaussian = isinstance(event, GaussianEvent)
    make = package.from_gaussian_mechanism if gaussian else package.from_laplace_mechanism
    return make(event.multiplier, sampling_prob=event.sampling, value_discretization_interval=step)


def _loss_step(event: GaussianEvent | LaplaceEvent, times: int) -> float:
    """Discretisation step of the loss: much finer than one round's typical loss, unless the sum would not fit.

    Steps are powers of two, so runs of different length share the distribution of one round.
    """
    shift = 1 / event.multiplier
    if isinstance(event, GaussianEvent):
        largest = shift * (10 + shift / 2)  # the loss is cut off at ten standard deviations of the noise
        typical = event.sampling * sqrt(expm1(min(shift**2, 500.0)))
    else:
        largest = shift
        typical = event.sampling * expm1(min(shift, 500.0))
    width = _sampled_loss(largest, event.sampling) - _sampled_loss(-largest, event.sampling)
    typical = min(typical, width / 2)
    spread = max(2 * sqrt(70 * times) * typical, 2 * times * typical**2 / width) + 4 * width
    step = max(min(typical / 20, 0.005), 16 * width / CELLS, 2 * min(spread, times * width) / CELLS)
    return 2.0 ** int(np.floor(log2(step)))

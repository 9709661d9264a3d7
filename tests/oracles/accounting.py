"""Slow, obvious prices of privacy: every outcome is looked at one by one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product
from math import exp, fsum, inf, lgamma, log, pi, sqrt
from statistics import NormalDist


def response_delta(truth: Fraction, values: int, answers: int, ratio: Fraction) -> Fraction:
    """Exact δ of randomised response at ε = log(ratio): all possible lists of answers of two opposite people."""
    other = (1 - truth) / (values - 1)
    delta = Fraction(0)
    for said in product(range(values), repeat=answers):
        mine = theirs = Fraction(1)
        for answer in said:
            mine *= truth if answer == 0 else other
            theirs *= truth if answer == 1 else other
        delta += max(Fraction(0), mine - ratio * theirs)
    return delta


def response_losses(truth: float, values: int, answers: int) -> dict[int, float]:
    """Probability of each total loss, in units of one answer's loss: all counts of answers for and against."""
    other = (1 - truth) / (values - 1)
    neutral = (values - 2) * other
    factorial = [lgamma(n + 1) for n in range(answers + 1)]  # logarithms
    for_up, for_down, for_same = log(truth), log(other), log(neutral) if neutral else -1e300
    chances: dict[int, list[float]] = {}
    for up in range(answers + 1):
        for down in range(answers + 1 - up):
            same = answers - up - down
            ways = factorial[answers] - factorial[up] - factorial[down] - factorial[same]
            chance = ways + up * for_up + down * for_down + same * for_same
            chances.setdefault(up - down, []).append(exp(chance))
    return {loss: fsum(terms) for loss, terms in chances.items()}


def smallest_epsilon(losses: dict[int, float], step: float, delta: float) -> float:
    """The smallest ε at this delta for a loss with known probabilities, by halving an interval."""
    low, high = 0.0, step * max(losses)
    for _ in range(80):
        middle = (low + high) / 2
        left = fsum(p * (1 - exp(middle - step * k)) for k, p in losses.items() if step * k > middle)
        low, high = (low, middle) if left <= delta else (middle, high)
    return high


def hockey_stick(p: Callable[[float], float], q: Callable[[float], float], epsilon: float, reach: float) -> float:
    """∫ max(0, p - e^ε q) from -reach to reach, by adding up 40,000 thin slices."""
    n = 40_000
    width = 2 * reach / n
    points = (-reach + (i + 0.5) * width for i in range(n))
    return fsum(max(0.0, p(x) - exp(epsilon) * q(x)) for x in points) * width


def normal(mean: float, deviation: float) -> Callable[[float], float]:
    """Density of a normal distribution."""
    return lambda x: exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * sqrt(2 * pi))


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The smallest ε of one Gaussian release (Balle and Wang, ICML 2018, theorem 8), by halving an interval."""
    phi, mean = NormalDist().cdf, 1 / multiplier
    low, high = 0.0, mean**2 / 2 + 40 * mean
    for _ in range(80):
        middle = (low + high) / 2
        left = phi(mean / 2 - middle / mean) - exp(middle) * phi(-mean / 2 - middle / mean)
        low, high = (low, middle) if left <= delta else (middle, high)
    return high


def laplace(mean: float, scale: float) -> Callable[[float], float]:
    """Density of a Laplace distribution."""
    return lambda x: exp(-abs(x - mean) / scale) / (2 * scale)


def concentrated_epsilon(rho: float, delta: float) -> float:
    """The conversion of Canonne, Kamath and Steinke (2020), by trying 40,000 orders."""
    best = inf
    for i in range(1, 40_000):
        order = 1 + exp(-12 + 24 * i / 40_000)
        best = min(best, rho * order + (log(1 / delta) - log(order)) / (order - 1) + log(1 - 1 / order))
    return max(0.0, best)

"""Laws of whole numbers with fifty and more correct digits, term by term."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

ONE, TWO, HALF = Decimal(1), Decimal(2), Decimal("0.5")
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


def half_normal(z: Decimal) -> Decimal:
    """P(0 < Z < z) by the power series of the density, integrated; good up to z = 14 with 160 digits."""
    term, total, n = z, z, 0
    while abs(term) > Decimal("1e-80") or 2 * n < z * z:
        n += 1
        term = -term * z * z / (2 * n)
        total += term / (2 * n + 1)
    return total / (TWO * PI).sqrt()


def rounded_gaussian(deviation: float, k: int) -> Decimal:
    with localcontext() as context:
        context.prec = 160
        sigma, k = Decimal(deviation), abs(k)
        return half_normal((k + HALF) / sigma) - half_normal((k - HALF) / sigma)


def rounded_laplace(scale: float, k: int) -> Decimal:
    with localcontext() as context:
        context.prec = 50
        b, k = Decimal(scale), abs(k)
        if k == 0:
            return ONE - (-HALF / b).exp()
        return HALF * ((-(k - HALF) / b).exp() - (-(k + HALF) / b).exp())


def discrete_gaussian(deviation: float, k: int) -> Decimal:
    with localcontext() as context:
        context.prec = 50
        twice = 2 * Decimal(deviation) ** 2
        if deviation < 3:
            everything = sum((-Decimal(j * j) / twice).exp() for j in range(-60, 61))
        else:  # Poisson's formula: the sum is the integral, up to 2 exp(-2 pi^2 deviation^2) < 1e-76
            everything = (PI * twice).sqrt()
        return (-Decimal(k * k) / twice).exp() / everything


def discrete_laplace(scale: float, k: int) -> Decimal:
    with localcontext() as context:
        context.prec = 50
        p = (-ONE / Decimal(scale)).exp()
        return (ONE - p) / (ONE + p) * p ** abs(k)


def polya(scale: float, shares: float, last: int) -> list[Decimal]:
    """P(0) .. P(last) of NB(1 / shares, exp(-1 / scale)), by its recurrence."""
    with localcontext() as context:
        context.prec = 50
        p = (-ONE / Decimal(scale)).exp()
        r = ONE / Decimal(shares)
        found = [(ONE - p) ** r]
        for k in range(last):
            found.append(found[-1] * p * (k + r) / (k + 1))
        return found


def gaussian_delta(multiplier: float, epsilon: float) -> float:
    """The smallest delta of continuous Gaussian noise; multiplier = deviation / shift (Balle and Wang, ICML 2018)."""

    def below(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    return below(0.5 / multiplier - epsilon * multiplier) - math.exp(epsilon) * below(
        -0.5 / multiplier - epsilon * multiplier
    )


def hockey_stick(p: list[float], q: list[float], epsilon: float) -> float:
    return math.fsum(max(0.0, a - math.exp(epsilon) * b) for a, b in zip(p, q, strict=True))

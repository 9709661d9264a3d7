"""Slow, obvious statistics."""

from __future__ import annotations

from itertools import product
from math import sqrt

from scipy.integrate import quad
from scipy.special import gamma


def sign_flip_p(a: list[float], b: list[float]) -> float:
    """Exact two-sided p of the paired sign-flip test: every assignment of signs, counted one by one."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    observed = abs(sum(differences))
    extreme = total = 0
    for signs in product((1, -1), repeat=len(differences)):
        total += 1
        extreme += abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed - 1e-12
    return extreme / total


def paired_t_p(a: list[float], b: list[float]) -> float:
    """Two-tailed p of the paired t-test, by integrating the density of Student's t."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    n = len(differences)
    mean = sum(differences) / n
    variance = sum((d - mean) ** 2 for d in differences) / (n - 1)
    t = mean / sqrt(variance / n)
    free = n - 1
    scale = gamma((free + 1) / 2) / (sqrt(free * 3.141592653589793) * gamma(free / 2))
    inside, _ = quad(lambda x: scale * (1 + x * x / free) ** (-(free + 1) / 2), -abs(t), abs(t))
    return 1 - inside


def holm_rejects(p: list[float], level: float) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: from the smallest p upwards, until one fails."""
    rejected = [False] * len(p)
    for done in range(len(p)):
        smallest = min((i for i in range(len(p)) if not rejected[i]), key=lambda i: p[i])
        if p[smallest] * (len(p) - done) > level:
            break
        rejected[smallest] = True
    return rejected

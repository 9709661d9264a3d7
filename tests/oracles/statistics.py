"""Slow, obvious statistics."""

from __future__ import annotations

from itertools import product


def sign_flip_p(a: list[float], b: list[float]) -> float:
    """Exact two-sided p of the paired sign-flip test: every assignment of signs, counted one by one."""
    differences = [x - y for x, y in zip(a, b, strict=True)]
    observed = abs(sum(differences))
    extreme = total = 0
    for signs in product((1, -1), repeat=len(differences)):
        total += 1
        extreme += abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= observed - 1e-12
    return extreme / total


def holm_rejects(p: list[float], level: float) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: from the smallest p upwards, until one fails."""
    rejected = [False] * len(p)
    for done in range(len(p)):
        smallest = min((i for i in range(len(p)) if not rejected[i]), key=lambda i: p[i])
        if p[smallest] * (len(p) - done) > level:
            break
        rejected[smallest] = True
    return rejected

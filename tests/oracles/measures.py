"""Ranking measures for one query, slowly and by their definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence


def ranking(scores: Sequence[float]) -> list[int]:
    """Positions, best first; equal scores by the documented shuffle."""
    n = len(scores)
    return sorted(range(n), key=lambda i: (-scores[i], (i * 0x4F1BBCDD + n * 0x2545F491) % 2**31))


def dcg(gains: Sequence[float], k: int) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:k], start=1))


def value(
    name: str, cutoff: int | None, scores: Sequence[float], grades: Sequence[int], top_grade: int
) -> float | None:
    """The measure of one query; None without a relevant document."""
    if max(grades) == 0:
        return None
    k = len(grades) if cutoff is None else cutoff
    shown = [grades[i] for i in ranking(scores)]
    best = sorted(grades, reverse=True)
    relevant = [rank for rank, grade in enumerate(shown, start=1) if grade > 0]
    if name == "ndcg":
        return dcg([2**g - 1 for g in shown], k) / dcg([2**g - 1 for g in best], k)
    if name == "ndcg-linear":
        return dcg(shown, k) / dcg(best, k)
    if name == "map":
        return sum(i / rank for i, rank in enumerate(relevant, start=1) if rank <= k) / len(relevant)
    if name == "mrr":
        return 1 / relevant[0] if relevant[0] <= k else 0.0
    if name == "p":
        return sum(rank <= k for rank in relevant) / k
    assert name == "err"
    total, unsatisfied = 0.0, 1.0
    for rank, grade in enumerate(shown[:k], start=1):
        stop = (2**grade - 1) / 2**top_grade
        total += unsatisfied * stop / rank
        unsatisfied *= 1 - stop
    return total

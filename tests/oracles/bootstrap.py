"""The bootstrap over queries, then seeds, one draw at a time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from statistics import fmean, pstdev

Run = tuple[int, int]  # fold, seed


def bootstrap_error(values: Mapping[Run, Mapping[str, float]], draws: int, seed: int) -> tuple[float, float]:
    """Standard error of the mean over runs: in all, and of queries alone.

    `values` has the difference of every query in every run; a run's own value is their mean.
    """
    rng = random.Random(seed)
    queries = sorted({query for each in values.values() for query in each})
    both, by_queries = [], []
    for _ in range(draws):
        drawn = [rng.choice(queries) for _ in range(len(queries) - 1)]
        means = {run: fmean(each[query] for query in drawn if query in each) for run, each in values.items()}
        by_queries.append(fmean(means.values()))
        total = 0.0
        for fold in sorted({fold for fold, _ in values}):
            runs = [run for run in values if run[0] == fold]
            total += len(runs) * fmean(means[rng.choice(runs)] for _ in range(len(runs) - 1))
        both.append(total / len(values))
    return pstdev(both), pstdev(by_queries)

"""Which weights, none negative and all together 1, rank best: a search over weighted sums of scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.ranking.measures import Evaluator, average

PASSES = 20  # of the coordinate search, at most; it mostly ends after two or three
AT_ONCE = 8_000_000  # scores in memory at a time

Reals = NDArray[np.float64]


def best_weights(scores: Reals, evaluator: Evaluator, step: float = 0.01) -> tuple[Reals, float]:
    """The weights [models] whose sum of scores [models, documents] ranks best by the first measure, and its value.

    Two models: every weight of a grid. More: from the best of equal weights and single models, one weight at a time
    takes every value of the grid while the others keep their proportions, until nothing improves. Of equally good
    weights those nearest to equal ones are taken: they depend least on chance.
    """
    models = len(scores)
    equal = np.full(models, 1 / models)
    if models == 1:
        return equal, _best(equal[None], scores, evaluator)[1]
    if models == 2:
        return _best(_moves(equal, 1, step), scores, evaluator)
    best, value = _best(np.vstack([equal, np.eye(models)]), scores, evaluator)
    for _ in range(PASSES):
        before = value
        for model in range(models):
            moved, reached = _best(_moves(best, model, step), scores, evaluator)
            if reached > value:
                best, value = moved, reached
        if value == before:
            break
    return best, value


def _moves(weights: Reals, model: int, step: float) -> Reals:
    """[grid, models]: the weight of one model takes every value of the grid, the others share the rest as before."""
    grid = np.arange(round(1 / step) + 1) / round(1 / step)
    others = weights.copy()
    others[model] = 0.0
    total = others.sum()
    others = others / total if total > 0 else (np.arange(len(weights)) != model) / (len(weights) - 1)
    moved = np.outer(1.0 - grid, others)
    moved[:, model] = grid
    return moved


def _best(candidates: Reals, scores: Reals, evaluator: Evaluator) -> tuple[Reals, float]:
    portion, by_document = max(1, AT_ONCE // scores.shape[1]), np.ascontiguousarray(scores.T)
    values = np.concatenate(
        [
            average(
                evaluator.per_query_of_scores(kernels.sums.products(candidates[start : start + portion], by_document))[
                    0
                ]
            )
            for start in range(0, len(candidates), portion)
        ]
    )
    # Values are means over queries: what differs by less than rounding is equal.
    winners = candidates[values >= values.max() - 1e-12]
    unequal = np.square(winners - 1 / candidates.shape[1]).sum(axis=1)
    return winners[np.argmin(unequal)], float(values.max())

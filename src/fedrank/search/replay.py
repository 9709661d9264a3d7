"""A replay of recorded searches: how often would a new model have been clicked at the top?

The probabilities of the lists that were shown are known, so nothing has to be estimated about them. A replay can only
refuse a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Impression

POSITIONS = 3  # from the top that a replay looks at; weights of longer prefixes vary too much
CLIP = 10.0  # largest weight of a recorded search
FEWEST = 30  # recorded searches below which a replay says nothing
CERTAIN = 1.96  # standard errors on either side of a replay's interval


@dataclass(frozen=True)
class Replayed:
    """A recorded search, and how its list was drawn."""

    impression: Impression
    temperature: float
    keep: float  # probability with which the best document stayed first


@dataclass(frozen=True)
class Replay:
    """How the new model would have done on recorded searches: discounted clicks in the first positions of a list."""

    searches: int
    effective: float  # searches that are worth as much as these, since weights differ
    old: float  # mean of what was clicked
    new: float  # what the new model is estimated to get
    low: float  # interval of new - old
    high: float

    @property
    def refused(self) -> bool:
        """Whether the new model is worse beyond doubt."""
        return self.searches >= FEWEST and self.high < 0


def replay(recorded: Sequence[Replayed], scores: Sequence[NDArray[np.floating]]) -> Replay:
    """Estimate the new model's clicks from searches that another one answered; `scores` are the new model's.

    Clipped and self-normalised: position i counts with the probability of the list down to it under the new model,
    divided by that under the old. Clipping pulls towards what was shown, and so away from refusing.
    """
    if len(recorded) != len(scores):
        raise ValueError(
            f"{len(scores)} lists of scores for {len(recorded)} recorded searches: give the new model's scores for "
            "each search"
        )
    weights = np.zeros((len(recorded), POSITIONS))
    clicks = np.zeros((len(recorded), POSITIONS))
    for row, (one, new) in enumerate(zip(recorded, scores, strict=True)):
        shown, clicked = one.impression.shown[:POSITIONS], one.impression.clicked[:POSITIONS]
        before = prefix_probabilities(one.impression.scores, shown, one.temperature, one.keep)
        after = prefix_probabilities(new, shown, one.temperature, one.keep)
        if before[-1] <= 0:
            continue  # cannot have been drawn in this way: the record is not usable
        weights[row, : len(shown)] = np.minimum(after / before, CLIP)
        clicks[row, : len(shown)] = clicked
    discounts = 1 / np.log2(np.arange(POSITIONS) + 2)
    totals = weights.sum(axis=0)
    there = totals > 0
    estimate = np.divide((weights * clicks).sum(axis=0), totals, out=np.zeros(POSITIONS), where=there)
    mean = np.divide(totals, max(len(recorded), 1), out=np.ones(POSITIONS), where=there)
    new_gain, old_gain = float(estimate @ discounts), float(clicks.mean(axis=0) @ discounts) if len(recorded) else 0.0
    # How much each search moved the difference, to first order.
    moved = (weights / mean * (clicks - estimate)) @ discounts - (clicks @ discounts - old_gain)
    error = float(np.std(moved, ddof=1) / math.sqrt(len(moved))) if len(moved) > 1 else math.inf
    first = weights[:, 0]
    effective = float(first.sum() ** 2 / (first @ first)) if first.any() else 0.0
    difference = new_gain - old_gain
    margin = CERTAIN * error
    return Replay(len(recorded), effective, old_gain, new_gain, difference - margin, difference + margin)


def prefix_probabilities(
    scores: NDArray[np.floating], shown: NDArray[np.integer], temperature: float, keep: float
) -> NDArray[np.float64]:
    """[positions]: probability that a drawn list begins with the first 1, 2, ... of the shown documents.

    The best document stays first with probability `keep`; otherwise, and behind it, documents are drawn one after the
    other with probabilities in proportion to e^(score / temperature).
    """
    scaled = np.asarray(scores, np.float64) / temperature
    best = int(np.argmax(scaled))
    rates = np.exp(scaled - scaled[best])
    left = rates.copy()
    found = np.empty(len(shown))
    so_far = 1.0
    for position, document in enumerate(shown):
        total = left.sum()
        chance = left[document] / total if total > 0 else 0.0
        if position == 0:
            chance = keep * (document == best) + (1 - keep) * chance
        so_far *= chance
        found[position] = so_far
        left[document] = 0.0
    return found

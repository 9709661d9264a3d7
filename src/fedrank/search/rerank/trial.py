"""Comparison of two arms to which requests are assigned at random. It may be evaluated after every request.

The value of a request is the discounted share of its used passages; a request without feedback has value 0, so a model
does not gain if its readers say less. A bet on the difference of two arms starts with wealth 1 and, if the arms are
equally good, ends above 1 / level with probability at most `level`, however often one looks (Ville's inequality).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

STAKES = (0.05, 0.1, 0.2, 0.4)  # an average over bets with different stakes is such a bet, too
LEVEL = 0.05
ENOUGH = 300  # requests of a trial, after which a new model is adopted unless it did worse
MARGIN = 0.02  # a mean difference in value below -MARGIN counts as worse
MOST = 1_200  # requests of a trial, after which a model that did worse is refused
SETTLED = 3_600.0  # seconds after which a request counts, with or without feedback


class ArmOutcome(NamedTuple):
    """The value of one request, from 0 to 1, and whether it was in the first of two arms."""

    value: float
    first: bool


def value_of(shown: Sequence[int], used: Iterable[int]) -> float:
    """DCG of the used passages in the order shown, divided by that of the best order; 0 if none was used."""
    wanted = set(used)
    gains = [1 / math.log2(place + 2) for place, index in enumerate(shown) if index in wanted]
    best = sum(1 / math.log2(place + 2) for place in range(min(len(wanted), len(shown))))
    return sum(gains) / best if best else 0.0


def evidence(outcomes: Sequence[ArmOutcome], share: float = 0.5) -> float:
    """Logarithm of the wealth of a bet that the first arm, with this share of requests, is better.

    The running mean of earlier values is subtracted, which leaves the expectation of a difference unchanged and lowers
    its variance.
    """
    small = min(share, 1 - share)
    total, count = 0.0, 0
    gains = np.empty(len(outcomes))
    for place, (value, first) in enumerate(outcomes):
        centred = value - (total / count if count else 0.5)
        gains[place] = small * (centred / share if first else -centred / (1 - share))  # at least -1
        total, count = total + value, count + 1
    bets = [float(np.log1p(stake * gains).sum()) for stake in STAKES]
    return float(np.logaddexp.reduce(bets)) - math.log(len(STAKES))


def flipped(outcomes: Iterable[ArmOutcome]) -> list[ArmOutcome]:
    """The same with the two arms exchanged."""
    return [ArmOutcome(value, not first) for value, first in outcomes]


def judge(outcomes: Sequence[ArmOutcome]) -> Literal["adopt", "refuse", "continue"]:
    """Decide on a new model (the first arm, half of the requests) that predicts feedback better than the old one.

    It is refused as soon as there is evidence that it is worse, and adopted after ENOUGH requests if it did not do
    worse by more than MARGIN. The trial is a veto, not a proof of a gain: that takes thousands of requests.
    """
    if evidence(flipped(outcomes)) >= -math.log(LEVEL):
        return "refuse"
    found = difference(outcomes)
    if len(outcomes) >= ENOUGH and found is not None and found.difference > -MARGIN:
        return "adopt"
    return "refuse" if len(outcomes) >= MOST else "continue"


@dataclass(frozen=True)
class Difference:
    """Mean value of two arms, and their difference with a 95 % confidence interval (for one look, not for many)."""

    requests: tuple[int, int]
    means: tuple[float, float]
    difference: float
    low: float
    high: float


def difference(outcomes: Sequence[ArmOutcome]) -> Difference | None:
    """Compare the first arm with the second; None with fewer than two requests in either."""
    arms = [np.array([one.value for one in outcomes if one.first == side]) for side in (True, False)]
    if min(map(len, arms)) < 2:
        return None
    means = tuple(float(arm.mean()) for arm in arms)
    error = 1.96 * math.sqrt(sum(float(arm.var(ddof=1)) / len(arm) for arm in arms))
    gap = means[0] - means[1]
    return Difference((len(arms[0]), len(arms[1])), (means[0], means[1]), gap, gap - error, gap + error)

"""Findings of papers put to the test: a claim holds, does not hold, or cannot be told from the repeats there are."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.report.statistics import t_quantile, t_tail

LEVEL = 0.05  # shared by all claims of an experiment (Holm)
SMALL = 0.01  # of a measure between 0 and 1: a difference that nobody would act on
BLOCKS = 3  # folds from which on they, and not single repeats, are what is counted
HOLDS, FAILS, OPEN, UNTESTED = "holds", "does not hold", "cannot be told", "not tested here"


@dataclass(frozen=True)
class Stated:
    """A claim with the values of the two variants that it compares, by repeat: (fold, seed)."""

    says: str
    column: str
    higher: Mapping[Hashable, float]
    lower: Mapping[Hashable, float]
    within: float | None = None  # if given: the two are said to differ by no more than this
    queries: NDArray[np.float64] | None = None  # differences of single test queries, for where there is one repeat


@dataclass(frozen=True)
class Verdict:
    """A claim and what the repeats say about it."""

    says: str
    verdict: str  # HOLDS, FAILS, OPEN or UNTESTED
    column: str = ""
    pairs: int = 0  # repeats that both variants have
    counted: int = 0  # of them, or of their folds, or of test queries
    unit: str = "repeats"  # or "folds" or "queries"
    difference: float = math.nan  # mean of the variant said to be higher minus the other one
    low: float = math.nan  # confidence interval of that mean
    high: float = math.nan
    effect: float = math.nan  # Cohen's d: the difference in standard deviations of what was counted
    why: str = ""


def judge_all(claims: Sequence[Stated]) -> tuple[Verdict, ...]:
    """Judge the claims of one experiment together, the clearest first (Holm's step-down procedure).

    The clearest one must be clear at LEVEL / claims, the next one at LEVEL / (claims - 1), and so on; from the first
    that cannot be told, the others cannot be told either.
    """
    verdicts: dict[int, Verdict] = {}
    clearest = sorted(range(len(claims)), key=lambda i: _decided_at(claims[i]))
    left = sum(_decided_at(claim) < math.inf for claim in claims)
    for i in clearest:
        verdicts[i] = judge(claims[i], LEVEL / max(left, 1))
        left -= verdicts[i].verdict in (HOLDS, FAILS)
    return tuple(verdicts[i] for i in range(len(claims)))


def judge(claim: Stated, level: float = LEVEL) -> Verdict:
    """Judge one claim by the repeats that both variants have.

    From three folds on a fold counts once, with the mean over its seeds: repeats of one fold share their data. Where
    there is one repeat, or several that are the same, test queries are counted: then luck in training is not covered.
    Without `within` a claim holds if the confidence interval of the mean difference lies above 0; it does not if the
    interval lies below 0, or so close around 0 that the difference is less than a hundredth either way. With `within`
    it holds if the interval lies inside ± within, and does not if it lies outside.
    """
    says, column, within = claim.says, claim.column, claim.within
    repeats, differences, unit = _counted(claim)
    n = len(differences)
    if n == 0:
        return Verdict(says, UNTESTED, column, why="no repeat of both variants is finished")
    mean = float(differences.mean())
    if n == 1:
        why = "one repeat has no spread; use several seeds or folds"
        return Verdict(says, OPEN, column, repeats, 1, unit, mean, why=why)
    sd = float(differences.std(ddof=1))
    half = t_quantile(1 - level / 2, n - 1) * sd / math.sqrt(n)
    low, high = mean - half, mean + half
    if within is not None:
        verdict = HOLDS if -within < low and high < within else FAILS if low > within or high < -within else OPEN
    else:
        verdict = HOLDS if low > 0 else FAILS if high < 0 or (low > -SMALL and high < SMALL) else OPEN
    effect = mean / sd if sd > 0 else 0.0
    why = _needed(mean, sd, n, unit, within, level) if verdict == OPEN else ""
    return Verdict(says, verdict, column, repeats, n, unit, mean, low, high, effect, why)


def _counted(claim: Stated) -> tuple[int, NDArray[np.float64], str]:
    """How many repeats both variants have, the differences that are counted, and what these are of."""
    known = {
        repeat: claim.higher[repeat] - claim.lower[repeat]
        for repeat in claim.higher
        if repeat in claim.lower and not math.isnan(claim.higher[repeat] - claim.lower[repeat])
    }
    by_fold: dict[Hashable, list[float]] = {}
    for repeat, difference in known.items():
        by_fold.setdefault(repeat[0] if isinstance(repeat, tuple) else repeat, []).append(difference)
    if len(by_fold) >= BLOCKS:
        return len(known), np.array([np.mean(values) for values in by_fold.values()]), "folds"
    differences = np.array(list(known.values()))
    if len(differences) and np.ptp(differences) <= 1e-12 and differences.any():  # what nothing varies is one repeat
        if claim.queries is not None and len(claim.queries) > 1:
            return len(known), claim.queries, "queries"
        differences = differences[:1]
    return len(known), differences, "repeats"


def _decided_at(claim: Stated) -> float:
    """The smallest level at which the interval would decide the claim: its p; infinite where there is no test."""
    _, differences, _ = _counted(claim)
    n = len(differences)
    if n < 2:
        return math.inf
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / math.sqrt(n)

    def beyond(distance: float) -> float:
        """p of a mean that lies this far on its own side of a limit; negative: on the other side."""
        if error == 0:
            return 0.0 if distance > 0 else 1.0
        return 2 * t_tail(distance / error, n - 1)

    margin = SMALL if claim.within is None else claim.within
    inside = beyond(margin - abs(mean))
    outside = beyond(abs(mean) if claim.within is None else abs(mean) - margin)
    return min(inside, outside)


def _needed(mean: float, sd: float, n: int, unit: str, within: float | None, level: float) -> str:
    """How many would show a difference as large as the one that was seen, four times in five."""
    from scipy.special import ndtri

    distance = abs(mean) if within is None else abs(within - abs(mean))
    if distance < sd / 20:
        return f"{n:,} {unit} differ too much to tell; hundreds more would be needed"
    sure = float(ndtri(1 - level / 2) + ndtri(0.8))
    wanted = max(math.ceil((sure * sd / distance) ** 2) + 2, n + 1)
    more = ", or more seeds in each," if unit == "folds" else ""
    return f"{n:,} {unit} are too few for so small a difference; about {wanted:,}{more} would show it"

"""One rule for every comparison of two variants: the mean difference, its standard error, and the unit of the test.

Seeds measure random variation in training, not other queries. So a difference is tested over the queries of a data set
wherever they are known, plus the variation between seeds; seeds are never counted as data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.report.run_values import Repeat, RunValues, VariantRuns
from fedrank.experiments.report.statistics import LEVEL, power_of, t_quantile, t_tail
from fedrank.seeds import rng_for

DRAWS = 2_000  # of a bootstrap: its standard error is known to 2 %
FEWEST = 3  # folds, splits or data sets: the spread of two is not informative
SHARED = 0.5  # of their training queries, that two folds of five have in common on average: each trains on three parts
# Of the degrees of freedom of five such folds: a fold is a window of three of five parts, whose variance has the
# eigenvalues (1 + 2 cos(2πk/5))² / 9 for k = 1, 2, twice each: (Σλ)² / Σλ² = 2.57 degrees of freedom instead of 4.
FREE = 0.64
ONE_TRAINING = (
    "each variant was trained once, so the method cannot be separated from random variation; use several seeds"
)


@dataclass(frozen=True)
class Contrast:
    """A mean difference between two variants, its standard error, and what was counted."""

    difference: float = math.nan  # ours minus theirs, of final values
    error: float = math.nan  # standard error of it; NaN where the design gives none
    degrees_of_freedom: float = math.nan  # of that error
    unit: str = ""  # what is counted: "queries", "sites", "splits", "folds" or "data sets"
    counted: int = 0
    repeats: int = 0  # runs that both have
    spread: float = math.nan  # standard deviation of what is counted
    floor: float = 0.0  # the limit of the error for many repeats
    reason: str = ""  # why there is no test; empty if there is one
    seed_error: float = math.nan  # without a test: standard error over repeats, for exactly these queries

    @property
    def tested(self) -> bool:
        return not math.isnan(self.error)

    @property
    def effect(self) -> float:
        """Cohen's d: the difference in standard deviations of what is counted."""
        return self.difference / self.spread if self.spread > 0 else math.nan

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Confidence interval of the difference."""
        half = t_quantile(1 - level / 2, self.degrees_of_freedom) * self.error if self.tested else math.nan
        return self.difference - half, self.difference + half

    def beyond(self, distance: float) -> float:
        """Two-sided p of lying this far on the right side of some limit; a negative distance is on the wrong one."""
        if not self.tested:
            return math.nan
        if self.error <= 1e-12:
            return 0.0 if distance > 1e-12 else 1.0
        return min(1.0, 2 * t_tail(distance / self.error, self.degrees_of_freedom))

    @property
    def p(self) -> float:
        """Two-sided p of no difference."""
        return self.beyond(abs(self.difference))

    def power(self, difference: float, level: float = LEVEL) -> float:
        """How likely a test with this error would have shown a difference of that size."""
        return power_of(difference, self.error, self.degrees_of_freedom, level) if self.tested else 0.0

    def power_alike(self, margin: float, level: float = LEVEL) -> float:
        """How likely an interval with this error would have stayed inside the margin, were there no difference."""
        if not self.tested:
            return 0.0
        if self.error <= 1e-12:
            return 1.0
        room = margin / self.error - t_quantile(1 - level / 2, self.degrees_of_freedom)
        return max(0.0, 1 - 2 * t_tail(room, self.degrees_of_freedom)) if room > 0 else 0.0


def contrast(ours: VariantRuns, theirs: VariantRuns, column: str, single: bool = False) -> Contrast:
    """Compare two variants in one column, over the repeats that both have.

    Values by query: a bootstrap over queries, then seeds (Owen 2007: rows and columns of a crossed table are drawn
    independently). Test queries that change with the seed: random splits, by the corrected t-test of Nadeau and Bengio
    (2003). Values by run alone, such as online quality: by folds, corrected for the queries they share. `single` judges
    one trained model by its queries: for the comparison with doing nothing, where the model itself is what users get.
    """
    finals_of: dict[Repeat, float] = {}
    for repeat in (repeat for repeat in ours.repeats if repeat in theirs.repeats):
        one, other = (variant.repeats[repeat].values.get(column, math.nan) for variant in (ours, theirs))
        if not math.isnan(one - other):
            finals_of[repeat] = one - other
    if not finals_of:
        return Contrast(reason="no repeat of both variants is finished")
    finals = np.array([*finals_of.values()])
    pairs = [(ours.repeats[repeat], theirs.repeats[repeat]) for repeat in finals_of]
    folds = np.array([fold for fold, _ in finals_of])
    if any(column not in reading.queries for pair in pairs for reading in pair):
        return by_folds(finals, folds)
    if any(not np.array_equal(one.query_ids, other.query_ids) for one, other in pairs):
        return Contrast(float(finals.mean()), repeats=len(finals), reason="they were tested on different queries")
    if _is_split(folds, [one.query_ids for one, _ in pairs]):
        return by_splits(finals, float(np.mean([one.test_share for one, _ in pairs])))
    found = [_known(one, other, column) for one, other in pairs]
    made = by_queries(finals, folds, [ids for ids, _ in found], [values for _, values in found], single)
    return replace(made, unit="sites") if any(one.by_sites for one, _ in pairs) else made


def _known(one: RunValues, other: RunValues, column: str) -> tuple[NDArray[np.str_], NDArray[np.float64]]:
    """Queries that a measure does not skip, and their differences."""
    differences = one.queries[column] - other.queries[column]
    known = ~np.isnan(differences)
    return one.query_ids[known], differences[known]


def _is_split(folds: NDArray[np.int64], ids: Sequence[NDArray[np.str_]]) -> bool:
    """Whether another seed of the same fold is tested on other queries."""
    first: dict[int, NDArray[np.str_]] = {}
    return any(
        not np.array_equal(each, first.setdefault(fold, each)) for fold, each in zip(folds.tolist(), ids, strict=True)
    )


def by_queries(
    finals: NDArray[np.float64],  # [runs] differences of final values
    folds: NDArray[np.int64],  # [runs]
    ids: Sequence[NDArray[np.str_]],  # of each run: queries
    values: Sequence[NDArray[np.float64]],  # and their differences
    single: bool = False,
) -> Contrast:
    """Bootstrap over queries, then seeds.

    A query is drawn with its values in every run, and n - 1 of n queries or seeds are drawn, so the
    variance of a mean is not underestimated where n is small (McCarthy and Snowden 1985). The error has the degrees of
    freedom of Satterthwaite: a handful of seeds is a handful, however many queries there are. Where a fold has one
    seed, this variation is taken from the spread between runs.
    """
    runs, mean = len(finals), float(finals.mean())
    queries, position = np.unique(np.concatenate(ids), return_inverse=True)
    n = len(queries)
    if n < 2:
        return Contrast(mean, unit="queries", counted=n, repeats=runs, reason="fewer than two queries are measured")
    run = np.repeat(np.arange(runs), [len(each) for each in ids])
    shape = n, runs
    flat, everything = position * runs + run, np.concatenate(values)
    sums = np.bincount(flat, everything, minlength=n * runs).reshape(shape).astype(np.float64)
    counts = np.bincount(flat, minlength=n * runs).reshape(shape).astype(np.float64)
    moved = _resampled(sums, counts)  # [draws, runs]: how far each run's mean moves with the queries drawn
    each = np.bincount(folds)[folds]  # runs in the fold of each run
    spread = float((sums.sum(axis=1) / counts.sum(axis=1)).std(ddof=1))  # of queries, each with its mean over runs
    over_queries = float(moved.mean(axis=1).var())
    if each.min() >= 2:
        weights = _seed_weights(tuple(folds.tolist()))
        error2 = float(((finals + moved) * weights).sum(axis=1).var())
        seed_variance, seed_freedom = float((finals * weights).sum(axis=1).var()), runs - len(np.unique(folds))
    elif runs >= 2 or single:
        between = float(finals.var(ddof=1)) / runs if runs >= 2 else 0.0  # of queries and seeds together
        if between > over_queries:
            return Contrast(mean, math.sqrt(between), runs - 1, "queries", n, runs, spread, math.sqrt(over_queries))
        error2, seed_variance, seed_freedom = over_queries, 0.0, 1
    else:
        return Contrast(mean, unit="queries", counted=n, repeats=runs, spread=spread, reason=ONE_TRAINING)
    parts = over_queries**2 / (n - 1) + seed_variance**2 / seed_freedom
    freedom = error2**2 / parts if parts > 0 else float(n - 1)
    if seed_variance > over_queries:  # Satterthwaite is too hopeful where most of the error rests on a few seeds
        freedom = min(freedom, seed_freedom)
    return Contrast(mean, math.sqrt(error2), freedom, "queries", n, runs, spread, math.sqrt(over_queries))


def _resampled(sums: NDArray[np.float64], counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """[draws, runs] of what a run's mean over drawn queries is more than its mean over all."""
    drawn = _drawn(len(sums))
    means = np.empty((len(drawn), sums.shape[1]))
    step = max(1, 4_000_000 // len(sums))
    for start in range(0, len(drawn), step):
        weights = drawn[start : start + step].astype(np.float64)
        heavy = weights @ counts
        np.divide(weights @ sums, heavy, out=means[start : start + step], where=heavy > 0)
        means[start : start + step][heavy == 0] = np.nan  # a run none of whose few queries was drawn
    whole = sums.sum(axis=0) / counts.sum(axis=0)
    moved: NDArray[np.float64] = np.nan_to_num(means - whole)
    return moved


@lru_cache(maxsize=8)
def _drawn(n: int) -> NDArray[np.uint8]:
    """[draws, n] of how often each of n was drawn; the same for all comparisons."""
    picked = rng_for(0, "bootstrap", n).integers(0, n, (DRAWS, n - 1))
    flat = (picked + n * np.arange(DRAWS)[:, None]).ravel()
    return np.bincount(flat, minlength=DRAWS * n).reshape(DRAWS, n).astype(np.uint8)


@lru_cache(maxsize=64)
def _seed_weights(folds: tuple[int, ...]) -> NDArray[np.float64]:
    """[draws, runs] whose rows sum to one: in each fold all but one of as many seeds are drawn."""
    weights = np.zeros((DRAWS, len(folds)))
    for fold in sorted(set(folds)):
        runs = np.flatnonzero(np.array(folds) == fold)
        n = len(runs)
        picked = rng_for(0, "bootstrap seeds", fold, n).integers(0, n, (DRAWS, n - 1))
        for column in picked.T:
            weights[np.arange(DRAWS), runs[column]] += n / (n - 1) / len(folds)
    return weights


def by_splits(finals: NDArray[np.float64], test_share: float) -> Contrast:
    """Random splits of one data set: the corrected resampled t-test of Nadeau and Bengio (2003).

    Splits share training and test queries, so their variance is raised from s² / J to s² (1 / J + test / train).
    """
    runs, mean = len(finals), float(finals.mean())
    reason = ""
    if runs < FEWEST:
        reason = f"{_few(runs, 'random split')} of the queries: too few for a test; use at least {FEWEST} seeds"
    elif math.isnan(test_share):
        unknown = "the number of training queries is unknown"
        reason = f"{unknown}, so splits cannot be corrected for the queries that they share"
    if reason:
        return Contrast(mean, unit="splits", counted=runs, repeats=runs, reason=reason)
    spread = float(finals.std(ddof=1))
    error = spread * math.sqrt(1 / runs + test_share)
    return Contrast(mean, error, runs - 1, "splits", runs, runs, spread, spread * math.sqrt(test_share))


def by_folds(finals: NDArray[np.float64], folds: NDArray[np.int64]) -> Contrast:
    """Values by run only: tested over folds, each with the mean over its seeds.

    Folds that share a part ρ of their queries vary too little, and not freely: the mean of J of them has a variance of
    s² (1 / J + ρ / (1 - ρ)), as in Nadeau and Bengio (2003), and s² has fewer degrees of freedom than J - 1. What seeds
    of one fold differ by is random variation, which folds do not share.
    """
    names, position = np.unique(folds, return_inverse=True)
    count, runs, mean = len(names), len(finals), float(finals.mean())
    if count < FEWEST:
        few = _few(count, "fold")
        reason = f"values are known per run, not per query, and {few} cannot represent others; use {FEWEST} or more"
        seed_error = float(finals.std(ddof=1)) / math.sqrt(runs) if runs >= 2 else math.nan
        return Contrast(mean, unit="folds", counted=count, repeats=runs, reason=reason, seed_error=seed_error)
    each = np.bincount(position)
    means = np.bincount(position, finals) / each
    variance, common, seed_variance = float(means.var(ddof=1)), SHARED / (1 - SHARED), 0.0
    if each.min() >= 2:
        seed_variance = float(np.mean([finals[position == fold].var(ddof=1) / each[fold] for fold in range(count)]))
    shared = common * max(0.0, variance - seed_variance)
    error, freedom = math.sqrt(variance / count + shared), FREE * (count - 1)
    return Contrast(float(means.mean()), error, freedom, "folds", count, runs, math.sqrt(variance), math.sqrt(shared))


def across(differences: Sequence[float], repeats: int = 0) -> Contrast:
    """The same comparison on several data sets: each counts once, regardless of its size."""
    known = np.array([value for value in differences if not math.isnan(value)])
    count, mean = len(known), float(known.mean()) if len(known) else math.nan
    if count < FEWEST:
        reason = f"{_few(count, 'data set')} cannot represent others; at least {FEWEST} are needed"
        return Contrast(mean, unit="data sets", counted=count, repeats=repeats, reason=reason)
    spread = float(known.std(ddof=1))
    return Contrast(mean, spread / math.sqrt(count), count - 1, "data sets", count, repeats, spread)


def _few(count: int, word: str) -> str:
    return f"{count or 'no'} {word}{'' if count == 1 else 's'}"

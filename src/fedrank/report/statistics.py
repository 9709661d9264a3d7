"""How sure we are: means with their spread, paired tests, and corrections for asking several times."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrank.seeds import rng_for

FEW = 5  # pairs below which a paired t-test is close to blind


@dataclass(frozen=True)
class Summary:
    """Repeats of one number."""

    n: int
    mean: float
    sd: float  # of the sample (n - 1); NaN for one repeat
    low: float  # 95% confidence interval of the mean, by Student's t; NaN for one repeat
    high: float
    smallest: float
    largest: float


@dataclass(frozen=True)
class Paired:
    """A paired comparison of a with b: positive differences mean that a is higher."""

    pairs: int
    difference: float  # mean of a - b
    p: float  # two-tailed; NaN where no test is possible
    effect: float  # Cohen's d of the paired differences
    note: str = ""  # what to keep in mind; empty if nothing


def summarise(values: ArrayLike) -> Summary:
    """Mean, sample standard deviation and 95% confidence interval; missing values are left out.

    >>> summarise([1.0, 2.0, 3.0]).sd
    1.0
    """
    known = _known(values)
    n = len(known)
    if n == 0:
        return Summary(0, *[float("nan")] * 6)
    mean, smallest, largest = float(known.mean()), float(known.min()), float(known.max())
    if n == 1:
        return Summary(1, mean, float("nan"), float("nan"), float("nan"), smallest, largest)
    half = float(half_width(known[:, None])[0])
    return Summary(n, mean, float(known.std(ddof=1)), mean - half, mean + half, smallest, largest)


def half_width(values: NDArray[np.float64], confidence: float = 0.95) -> NDArray[np.float64]:
    """Half the width of the confidence interval of the mean of each column, by Student's t; NaN for one row."""
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], np.nan)
    quantile = t_quantile(0.5 + confidence / 2, n - 1)
    half: NDArray[np.float64] = quantile * values.std(axis=0, ddof=1) / np.sqrt(n)
    return half


def t_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit  # not from scipy.stats, which takes a second to import

    return float(stdtrit(freedom, p))


def t_tail(t: float, freedom: int) -> float:
    """How likely Student's t exceeds a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def pair(a: Mapping[Hashable, float], b: Mapping[Hashable, float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of the keys, such as (fold, seed), that both have and know, in the same order."""
    shared = [key for key in a if key in b and not np.isnan(a[key]) and not np.isnan(b[key])]
    return np.array([a[key] for key in shared]), np.array([b[key] for key in shared])


def paired_t(a: ArrayLike, b: ArrayLike) -> Paired:
    """Two-tailed Student's t-test of paired values: value i of a and of b share fold and seed.

    Defined where the formula is not: no difference at all has p = 1, the same difference in every pair has p = 0, and
    one pair has no p. Nor have repeats that are copies of one: all values of a are equal, and all of b.
    """
    differences = _differences(a, b)
    n = len(differences)
    if n == 0:
        return Paired(0, float("nan"), float("nan"), float("nan"), "no repeat in common: no test")
    mean = float(differences.mean())
    if n == 1:
        return Paired(1, mean, float("nan"), float("nan"), "one pair: no test")
    effect = cohens_d(a, b)
    if not np.any(differences):
        return Paired(n, 0.0, 1.0, 0.0, "all pairs are equal")
    if len(np.unique(a)) == 1 and len(np.unique(b)) == 1:
        return Paired(n, mean, float("nan"), float("nan"), "all repeats are the same: no test")
    if np.isinf(effect):
        return Paired(n, mean, 0.0, effect, "the same difference in every pair")
    p = 2 * t_tail(abs(effect) * np.sqrt(n), n - 1)
    return Paired(n, mean, p, effect, power_note(n))


def cohens_d(a: ArrayLike, b: ArrayLike) -> float:
    """Effect size: mean of the paired differences in units of their standard deviation; 0 without a difference."""
    differences = _differences(a, b)
    if len(differences) < 2:
        return float("nan")
    mean, sd = float(differences.mean()), float(differences.std(ddof=1))
    if sd <= 1e-12 * abs(mean):  # equal up to rounding
        return float(np.copysign(np.inf, mean)) if mean else 0.0
    return mean / sd


def randomisation_test(
    a: ArrayLike, b: ArrayLike, permutations: int = 10_000, rng: np.random.Generator | None = None
) -> NDArray[np.float64]:
    """Two-sided p of paired values, such as queries, by flipping the signs of their differences at random.

    `a` is [queries], or [comparisons, queries] to test several against one `b` with the same flips. Queries that
    either side skips (NaN) are left out. p = (as extreme + 1) / (permutations + 1), so it is never 0; without any query
    it is NaN.
    """
    rng = rng if rng is not None else rng_for(0, "randomisation test")
    differences = np.atleast_2d(np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64))
    empty = np.all(np.isnan(differences), axis=1)
    differences = np.nan_to_num(differences, nan=0.0)  # a zero adds nothing to a sum, whatever its sign
    differences = differences[:, np.any(differences != 0, axis=0)]
    queries = differences.shape[1]
    observed = np.abs(differences.sum(axis=1))
    slack = 1e-9 * np.abs(differences).sum(axis=1)  # sums in another order differ in the last digits
    extreme = np.zeros(len(differences), dtype=np.int64)
    step = max(1, 4_000_000 // max(1, queries))
    for start in range(0, permutations, step):
        rows = min(step, permutations - start)
        bits = np.frombuffer(rng.bytes(rows * -(-queries // 8)), dtype=np.uint8).reshape(rows, -1)
        signs = 1.0 - 2.0 * np.unpackbits(bits, axis=1, count=queries)
        extreme += np.sum(np.abs(signs @ differences.T) >= observed - slack, axis=0)
    p = (extreme + 1) / (permutations + 1)
    p[empty] = np.nan
    return p


def bonferroni(p: Sequence[float]) -> list[float]:
    """Each p times the number of tests, at most 1. Tests that were not possible (NaN) do not count.

    >>> bonferroni([0.25, 0.5])
    [0.5, 1.0]
    """
    tests = sum(not np.isnan(value) for value in p)
    return [value if np.isnan(value) else min(1.0, value * tests) for value in p]


def power_note(pairs: int) -> str:
    """A warning where pairs are so few that "no significant difference" says little; else empty."""
    if pairs >= FEW:
        return ""
    return f"only {pairs} pair{'s' if pairs != 1 else ''}: a real difference can easily be missed"


def _known(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[~np.isnan(array)]


def _differences(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"{first.shape} values cannot be paired with {second.shape}; give the same repeats of both")
    return _known(first - second)

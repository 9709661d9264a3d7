"""Statistics: means with their spread, tests, power, and corrections for multiple comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrank.seeds import rng_for

LEVEL = 0.05  # p below which a difference is called significant, shared by all that are tested together


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


def summarise(values: ArrayLike) -> Summary:
    """Mean, sample standard deviation and 95% confidence interval; missing values are left out.

    >>> summarise([1.0, 2.0, 3.0]).sd
    1.0
    """
    known = np.asarray(values, dtype=np.float64).ravel()
    known = known[~np.isnan(known)]
    n = len(known)
    if n == 0:
        return Summary(0, *[float("nan")] * 6)
    mean, half = float(known.mean()), float(half_width(known[:, None])[0])
    sd = float(known.std(ddof=1)) if n > 1 else float("nan")
    return Summary(n, mean, sd, mean - half, mean + half, float(known.min()), float(known.max()))


def half_width(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half the width of the 95% confidence interval of the mean of each column, by Student's t; NaN for one row."""
    n = len(values)
    if n < 2:
        return np.full(values.shape[1:], np.nan)
    half: NDArray[np.float64] = t_quantile(1 - LEVEL / 2, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)
    return half


def t_quantile(p: float, freedom: float) -> float:
    """Quantile of Student's t."""
    from scipy.special import stdtrit  # not from scipy.stats, which takes a second to import

    return float(stdtrit(freedom, p))


def t_tail(t: float, freedom: float) -> float:
    """How likely Student's t exceeds a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def power_of(difference: float, error: float, freedom: float, level: float = LEVEL) -> float:
    """How likely a two-sided t-test at this level shows a true difference of that size, given its standard error.

    The noncentral t as a mean of normals over what the error may come out as: exact enough, for any freedom.
    """
    from scipy.special import chdtri, ndtr

    if error <= 1e-12:
        return 1.0 if difference else level
    limit, shift = t_quantile(1 - level / 2, freedom), abs(difference) / error
    estimated = limit * np.sqrt(chdtri(freedom, (np.arange(2_000) + 0.5) / 2_000) / freedom)
    return float(np.mean(ndtr(shift - estimated) + ndtr(-shift - estimated)))


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
    differences = np.nan_to_num(differences, nan=0.0)  # a zero adds nothing to a sum, regardless of its sign
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


def holm(p: Sequence[float]) -> list[float]:
    """Each p corrected for the number of tests (Holm 1979): the smallest counts for all, the next for one less.

    Tests that were not possible (NaN) do not count.

    >>> holm([0.02, 0.01])
    [0.02, 0.02]
    """
    tests = sorted((value, i) for i, value in enumerate(p) if not np.isnan(value))
    corrected, highest = list(p), 0.0
    for done, (value, i) in enumerate(tests):
        highest = max(highest, min(1.0, value * (len(tests) - done)))
        corrected[i] = highest
    return corrected

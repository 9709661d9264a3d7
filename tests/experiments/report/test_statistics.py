from __future__ import annotations

from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedrank.experiments.report.statistics import holm, power_of, randomisation_test, summarise
from tests.oracles.statistics import holm_rejects, sign_flip_p

A = [0.41, 0.44, 0.39, 0.47, 0.45, 0.43]
B = [0.40, 0.41, 0.40, 0.44, 0.43, 0.41]


def test_summary_by_hand() -> None:
    found = summarise([0.2, 0.4, 0.6])
    assert found.n == 3
    assert found.mean == pytest.approx((0.2 + 0.4 + 0.6) / 3)
    assert found.sd == pytest.approx(sqrt((0.04 + 0 + 0.04) / 2))
    half = 4.302652729911275 * 0.2 / sqrt(3)  # t with 2 degrees of freedom, 97.5%
    assert (found.low, found.high) == pytest.approx((0.4 - half, 0.4 + half))
    assert (found.smallest, found.largest) == (0.2, 0.6)


def test_summary_of_one_and_of_none() -> None:
    one = summarise([0.3, float("nan")])
    assert (one.n, one.mean) == (1, 0.3)
    assert isnan(one.sd)
    assert isnan(one.low)
    assert summarise([]).n == 0
    assert isnan(summarise([]).mean)


def test_interval_agrees_with_scipy() -> None:
    found = summarise(A)
    low, high = stats.t.interval(0.95, len(A) - 1, np.mean(A), stats.sem(A))
    assert (found.low, found.high) == pytest.approx((low, high))


@pytest.mark.parametrize("freedom", [1.28, 3, 12.5, 400])
@pytest.mark.parametrize("shift", [0.0, 1.0, 2.8])
def test_power_agrees_with_scipy(freedom: float, shift: float) -> None:
    limit = stats.t.isf(0.025, freedom)
    expected = stats.nct.sf(limit, freedom, shift) + stats.nct.cdf(-limit, freedom, shift)
    assert power_of(shift * 0.02, 0.02, freedom) == pytest.approx(expected, abs=1e-4)
    assert power_of(-shift * 0.02, 0.02, freedom) == pytest.approx(expected, abs=1e-4)


def test_power_without_any_spread() -> None:
    assert (power_of(0.1, 0.0, 4), power_of(0.0, 0.0, 4)) == (1.0, 0.05)


def test_randomisation_comes_close_to_counting_everything() -> None:
    p = float(randomisation_test(A, B, rng=np.random.default_rng(1))[0])
    assert p == pytest.approx(sign_flip_p(A, B), abs=0.02)


def test_randomisation_agrees_with_scipy() -> None:
    rng = np.random.default_rng(5)
    a = rng.uniform(size=40)
    b = a - 0.03 + rng.normal(0, 0.1, 40)
    theirs = stats.permutation_test(
        (a, b),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=10_000,
    ).pvalue
    ours = float(randomisation_test(a, b, rng=np.random.default_rng(6))[0])
    assert 0.01 < ours < 0.9  # a p that could not be had by accident
    assert ours == pytest.approx(float(theirs), abs=0.02)


def test_randomisation_edges() -> None:
    assert randomisation_test([0.1, 0.2], [0.1, 0.2]).tolist() == [1.0]
    sure = randomisation_test(np.full(60, 0.5), np.full(60, 0.4), permutations=999)
    assert sure.tolist() == [1 / 1000]
    nan = float("nan")
    skipped = randomisation_test([nan, nan], [0.1, 0.2])
    assert isnan(skipped[0])


def test_skipped_queries_change_nothing() -> None:
    nan = float("nan")
    alone = randomisation_test(A, B)
    assert randomisation_test([*A, nan, 0.9], [*B, 0.1, nan]).tolist() == alone.tolist()


def test_several_comparisons_at_once_and_repeatable() -> None:
    both = randomisation_test([A, B], B)
    assert both[0] == pytest.approx(sign_flip_p(A, B), abs=0.02)
    assert both[1] == 1.0
    assert randomisation_test([A, B], B).tolist() == both.tolist()


def test_many_queries_go_through_in_parts() -> None:
    # With many queries the flips approach the t-test.
    rng = np.random.default_rng(2)
    a = rng.uniform(size=5000)
    b = a - rng.normal(0.002, 0.1, 5000)
    p = float(randomisation_test(a, b, permutations=4000, rng=rng)[0])
    assert p == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=0.04)


def test_corrections_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])  # 3 x .01; 2 x .03; 1 x .04, and not below
    nan = float("nan")
    assert holm([0.3, nan, 0.6]) == pytest.approx([0.6, nan, 0.6], nan_ok=True)
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_corrected_p_decides_as_holm_does(p: list[float]) -> None:
    assert [value <= 0.05 for value in holm(p)] == holm_rejects(p, 0.05)

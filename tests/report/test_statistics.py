from __future__ import annotations

from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrank.report.statistics import (
    bonferroni,
    cohens_d,
    pair,
    paired_t,
    power_note,
    randomisation_test,
    summarise,
)
from tests.oracles.statistics import paired_t_p, sign_flip_p

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


def test_paired_t_agrees_with_scipy_and_with_the_integral() -> None:
    found = paired_t(A, B)
    assert found.p == pytest.approx(stats.ttest_rel(A, B).pvalue)
    assert found.p == pytest.approx(paired_t_p(A, B), abs=1e-9)
    assert found.difference == pytest.approx((0.01 + 0.03 - 0.01 + 0.03 + 0.02 + 0.02) / 6)
    assert found.pairs == 6
    assert found.note == ""


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=8))
def test_paired_t_agrees_with_scipy_everywhere(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)
    differences = np.subtract(a, b)
    assume(differences.std() >= 1e-6)
    assert paired_t(a, b).p == pytest.approx(stats.ttest_rel(a, b).pvalue, abs=1e-9)
    assert paired_t(b, a).p == pytest.approx(paired_t(a, b).p)


def test_degenerate_pairs_are_defined() -> None:
    equal = paired_t([0.4, 0.5], [0.4, 0.5])
    assert (equal.p, equal.difference, equal.effect) == (1.0, 0.0, 0.0)
    constant = paired_t([0.4, 0.5, 0.7], [0.3, 0.4, 0.6])
    assert (constant.p, constant.effect) == (0.0, float("inf"))
    assert "same difference" in constant.note
    copies = paired_t([0.5, 0.5, 0.5], [0.4, 0.4, 0.4])  # of a forest that draws nothing by chance
    assert isnan(copies.p)
    assert "all repeats are the same" in copies.note
    one = paired_t([0.4], [0.3])
    assert isnan(one.p)
    assert one.difference == pytest.approx(0.1)
    assert "one pair" in one.note
    none = paired_t([], [])
    assert isnan(none.p)
    assert "no repeat in common" in none.note


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_t([1.0, 2.0, 3.0], [1.0])


def test_effect_by_hand() -> None:
    # differences 1, 2, 3: mean 2, sd 1
    assert cohens_d([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx(2.0)
    assert cohens_d([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(-2.0)


def test_few_pairs_are_pointed_out() -> None:
    assert "only 4 pairs" in paired_t(A[:4], B[:4]).note
    assert power_note(5) == ""


def test_pairs_share_their_key() -> None:
    nan = float("nan")
    a = {(1, 1): 0.1, (1, 2): 0.2, (2, 1): 0.3, (2, 2): nan}
    b = {(2, 1): 0.6, (1, 1): 0.4, (3, 1): 0.9, (2, 2): 0.5}
    first, second = pair(a, b)
    assert first.tolist() == [0.1, 0.3]
    assert second.tolist() == [0.4, 0.6]


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
    p = [0.01, 0.04, 0.03]
    assert bonferroni(p) == pytest.approx([0.03, 0.12, 0.09])
    nan = float("nan")
    assert bonferroni([0.3, nan, 0.6])[0] == pytest.approx(0.6)
    assert bonferroni([0.3, nan, 0.6])[2] == 1.0

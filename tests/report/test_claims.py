"""Claims of papers: by hand, and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrank.report.claims import FAILS, HOLDS, LEVEL, OPEN, UNTESTED, Stated, judge, judge_all
from tests.oracles.statistics import holm_rejects


def values(*numbers: float) -> dict:
    return {(1, seed): number for seed, number in enumerate(numbers)}


def stated(a: dict, b: dict, within: float | None = None) -> Stated:
    return Stated("a and b", "ndcg@10", a, b, within)


def test_a_claim_holds_if_the_interval_lies_above_zero() -> None:
    a, b = values(0.5, 0.52, 0.54), values(0.4, 0.41, 0.42)
    found = judge(stated(a, b))
    expected = stats.ttest_rel(list(a.values()), list(b.values())).confidence_interval(0.95)
    assert found.verdict == HOLDS
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.difference == pytest.approx((0.10 + 0.11 + 0.12) / 3)
    assert found.effect == pytest.approx(0.11 / 0.01)
    assert judge(stated(b, a)).verdict == FAILS


def test_a_stricter_level_widens_the_interval() -> None:
    a, b = values(0.50, 0.53, 0.51, 0.55), values(0.49, 0.50, 0.49, 0.51)
    alone, strict = (judge(stated(a, b), level) for level in (LEVEL, LEVEL / 10))
    assert alone.verdict == HOLDS
    assert strict.verdict == OPEN
    assert strict.low < alone.low < alone.high < strict.high


def test_no_difference_worth_acting_on_refutes_a_claim_that_something_is_better() -> None:
    a = values(0.500, 0.501, 0.499, 0.500)
    b = values(0.500, 0.499, 0.500, 0.501)
    assert judge(stated(a, b)).verdict == FAILS


def test_alike_means_inside_the_margin() -> None:
    a, b = values(0.500, 0.503, 0.498, 0.501), values(0.499, 0.500, 0.500, 0.500)
    assert judge(stated(a, b, 0.02)).verdict == HOLDS
    far = {key: value + 0.1 for key, value in a.items()}
    assert judge(stated(far, b, 0.02)).verdict == FAILS
    assert judge(stated(b, far, 0.02)).verdict == FAILS
    assert judge(stated(values(0.5, 0.6, 0.4), values(0.5, 0.45, 0.52), 0.02)).verdict == OPEN


def test_from_three_folds_on_a_fold_counts_once() -> None:
    # Fold means of the differences: 0.01, 0.02, 0.06; six repeats, but three folds.
    b = {(fold, seed): 0.5 for fold in (1, 2, 3) for seed in (1, 2)}
    gains = {(1, 1): 0.00, (1, 2): 0.02, (2, 1): 0.01, (2, 2): 0.03, (3, 1): 0.05, (3, 2): 0.07}
    found = judge(stated({key: 0.5 + gain for key, gain in gains.items()}, b))
    expected = stats.ttest_1samp([0.01, 0.02, 0.06], 0).confidence_interval(0.95)
    assert (found.pairs, found.counted, found.unit) == (6, 3, "folds")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    two = {key: value for key, value in gains.items() if key[0] < 3}
    few = judge(stated({key: 0.5 + gain for key, gain in two.items()}, b))
    assert (few.pairs, few.counted, few.unit) == (4, 4, "repeats")
    assert few.low == pytest.approx(stats.ttest_1samp(list(two.values()), 0).confidence_interval(0.95).low)


@given(st.lists(st.tuples(st.floats(-0.1, 0.1), st.floats(0.001, 0.1)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_claims_that_something_is_better_are_decided_as_holm_decides(rows: list[tuple[float, float]]) -> None:
    zero = values(*[0.0] * 4)
    claims = [stated(values(*(mean + sd * z for z in (-1.2, -0.4, 0.3, 1.3))), zero) for mean, sd in rows]
    p = [float(stats.ttest_1samp(list(claim.higher.values()), 0).pvalue) for claim in claims]
    # A difference that is surely too small to matter is decided, too, and leaves more of the level to the others.
    found = judge_all(claims)
    assume(all(claim.verdict != FAILS or claim.high < 0 for claim in found))
    decided, nearly = holm_rejects(p, LEVEL), holm_rejects(p, LEVEL * (1 + 1e-9))
    assume(decided == nearly)
    assert [claim.verdict != OPEN for claim in found] == decided


def test_claims_of_one_experiment_share_the_level() -> None:
    a, b = values(0.50, 0.53, 0.51, 0.545), values(0.49, 0.50, 0.49, 0.51)
    unclear = stated(values(0.5, 0.6, 0.4), values(0.5, 0.45, 0.52))
    clear = stated(values(0.9, 0.91, 0.92), values(0.1, 0.12, 0.11))
    p = float(stats.ttest_rel(list(a.values()), list(b.values())).pvalue)
    assert LEVEL / 3 < p < LEVEL / 2
    assert [one.verdict for one in judge_all([unclear, stated(a, b), clear])] == [OPEN, HOLDS, HOLDS]
    assert [one.verdict for one in judge_all([unclear, stated(a, b), unclear])] == [OPEN, OPEN, OPEN]
    assert judge_all([]) == ()


def test_a_claim_that_nobody_tested_costs_the_others_nothing() -> None:
    a, b = values(0.50, 0.53, 0.51, 0.55), values(0.49, 0.50, 0.49, 0.51)
    verdicts = judge_all([stated(a, b), *[stated({}, b)] * 5])
    assert [one.verdict for one in verdicts] == [HOLDS, *[UNTESTED] * 5]


def test_repeats_that_are_all_the_same_are_one_repeat() -> None:
    higher, lower = values(0.75, 0.5, 0.25), values(0.5, 0.25, 0.0)
    assert judge(stated(higher, lower)).verdict == OPEN
    assert judge_all([stated(higher, lower)])[0].verdict == OPEN
    same = judge(stated(values(0.5, 0.5), values(0.5, 0.5)))
    assert (same.verdict, same.effect) == (FAILS, 0.0)


def test_one_repeat_is_judged_by_its_queries() -> None:
    queries = np.array([0.1, 0.3, 0.2, 0.0, 0.2])
    found = judge(Stated("a beats b", "ndcg@10", values(0.66), values(0.5), queries=queries))
    expected = stats.ttest_1samp(queries, 0).confidence_interval(0.95)
    assert (found.verdict, found.pairs, found.counted, found.unit) == (HOLDS, 1, 5, "queries")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    several = judge(Stated("a beats b", "ndcg@10", values(0.66, 0.64), values(0.5, 0.5), queries=queries))
    assert several.unit == "repeats"


def test_what_cannot_be_told_says_how_many_repeats_would_tell() -> None:
    rng = np.random.default_rng(1)
    a, b = values(*(0.52 + 0.05 * rng.standard_normal(5))), values(*(0.5 + 0.05 * rng.standard_normal(5)))
    found = judge(stated(a, b))
    assert found.verdict == OPEN
    differences = np.array(list(a.values())) - np.array(list(b.values()))
    wanted = np.ceil(((1.959964 + 0.841621) * differences.std(ddof=1) / abs(differences.mean())) ** 2) + 2
    assert f"5 repeats are too few for so small a difference; about {wanted:.0f} would show it" in found.why
    by_fold = judge(
        stated({(seed, 1): value for (_, seed), value in a.items()}, {(s, 1): v for (_, s), v in b.items()})
    )
    assert "5 folds are too few" in by_fold.why
    assert "more seeds in each" in by_fold.why


def test_too_little_to_test() -> None:
    assert judge(stated(values(1.0), {(2, 0): 0.5})).verdict == UNTESTED
    assert judge(stated(values(math.nan), values(0.5))).verdict == UNTESTED
    one = judge(stated(values(1.0), values(0.5)))
    assert one.verdict == OPEN
    assert "several seeds" in one.why


def seen(mean: float, distance: float, p: float) -> dict:
    """Four differences whose mean lies `distance` from some limit, which is clear at p."""
    z = np.array([-1.5, -0.5, 0.5, 1.5])
    error = distance / float(stats.t.isf(p / 2, 3))
    return values(*(mean + 2 * error * z / z.std(ddof=1)))


@pytest.mark.parametrize(
    ("claims", "verdicts"),
    [
        # At 0.025 for the clearest of two, and at 0.05 for the other only if the first is decided.
        ([(0.1, 0.1, 0.03, None), (0.1, 0.1, 0.04, None)], [OPEN, OPEN]),
        ([(0.1, 0.1, 0.04, None), (0.1, 0.1, 0.02, None)], [HOLDS, HOLDS]),
        # Alike is as clear as its limit is far, however small the difference.
        ([(0.1, 0.1, 0.04, None), (0.0, 0.05, 0.001, 0.05)], [HOLDS, HOLDS]),
        ([(0.0, 0.05, 0.04, 0.05), (0.1, 0.1, 0.001, None)], [HOLDS, HOLDS]),
        # Not alike is as clear as the difference is beyond the limit, not beyond 0.
        ([(0.1, 0.04, 0.04, 0.06), (0.1, 0.1, 0.01, None)], [FAILS, HOLDS]),
        # No difference worth acting on: less than a hundredth.
        ([(0.0, 0.01, 0.04, None)], [FAILS]),
        ([(0.0, 0.01, 0.06, None)], [OPEN]),
    ],
)
def test_the_clearest_claim_is_judged_first_whatever_it_says(claims: list, verdicts: list[str]) -> None:
    zero = values(0.0, 0.0, 0.0, 0.0)
    asked = [stated(seen(mean, distance, p), zero, within) for mean, distance, p, within in claims]
    assert [one.verdict for one in judge_all(asked)] == verdicts

"""Claims of papers: by hand, and against scipy."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrank.experiments.report.claims import FAILS, HOLDS, LEVEL, OPEN, UNTESTED, Stated, judge, judge_all
from fedrank.experiments.report.contrast import Contrast
from tests.oracles.statistics import holm_rejects

FREEDOM = 12


def stated(mean: float, error: float, within: float | None = None, **more: float) -> Stated:
    """A claim whose difference was measured over thirteen queries, in two runs."""
    found = Contrast(
        mean, error, FREEDOM, "queries", FREEDOM + 1, 2, error * math.sqrt(FREEDOM + 1), more.pop("floor", 0.0)
    )
    return Stated("a and b", "ndcg@10", found, within, **more)


def clear_at(p: float, distance: float) -> float:
    """The standard error with which a distance from some limit is clear at p."""
    return distance / float(stats.t.isf(p / 2, FREEDOM))


def test_a_claim_holds_if_the_interval_lies_above_zero() -> None:
    found = judge(stated(0.11, 0.02))
    half = float(stats.t.isf(0.025, FREEDOM)) * 0.02
    assert found.verdict == HOLDS
    assert (found.low, found.high) == pytest.approx((0.11 - half, 0.11 + half))
    assert found.contrast.difference == 0.11
    assert judge(stated(-0.11, 0.02)).verdict == FAILS


def test_a_stricter_level_widens_the_interval() -> None:
    claim = stated(0.02, clear_at(0.03, 0.02))
    alone, strict = (judge(claim, level) for level in (LEVEL, LEVEL / 10))
    assert alone.verdict == HOLDS
    assert strict.verdict == OPEN
    assert strict.low < alone.low < alone.high < strict.high
    assert strict.power < alone.power


def test_no_difference_worth_acting_on_refutes_a_claim_that_something_is_better() -> None:
    assert judge(stated(0.001, 0.001)).verdict == FAILS
    # Online sums run to 1,987: 0.005 of that is 9.9, and 0.005 of one is nothing.
    assert judge(stated(0.5, 1.0, scale=1987.0)).verdict == FAILS
    assert judge(stated(0.5, 1.0)).verdict == OPEN


@pytest.mark.parametrize(
    ("low", "high", "column", "reported", "verdict"),
    [
        (-0.0191, 0.0002, "ndcg@10", None, FAILS),  # nearly all below 0
        (-0.0091, 0.0098, "ndcg@10", None, OPEN),  # around 0, but a difference of interest is possible
        (-0.0091, 0.0049, "ndcg@10", None, FAILS),
        (-0.0091, 0.0051, "ndcg@10", None, OPEN),
        (-0.0091, 0.0098, "reward", None, FAILS),
        (-0.0091, 0.0098, "mrr@20", None, FAILS),
        (-0.0091, 0.0049, "ndcg@10", 0.004, OPEN),  # what the paper reports is possible
        (-0.0091, 0.0039, "ndcg@10", 0.004, FAILS),
        (-0.0091, 0.0051, "ndcg@10", 0.04, OPEN),
        (0.0001, 0.0002, "ndcg@10", None, HOLDS),
        (-0.0001, 0.02, "ndcg@10", None, OPEN),
    ],
)
def test_the_bounds_decide_a_claim_with_a_direction(
    low: float, high: float, column: str, reported: float | None, verdict: str
) -> None:
    error = clear_at(LEVEL, (high - low) / 2)
    found = Contrast((low + high) / 2, error, FREEDOM, "queries", FREEDOM + 1, 2, error)
    judged = judge(Stated("a and b", column, found, reported=reported))
    assert (judged.low, judged.high) == pytest.approx((low, high))
    assert judged.verdict == verdict


def test_alike_means_inside_the_margin() -> None:
    assert judge(stated(0.001, 0.002, 0.02)).verdict == HOLDS
    assert judge(stated(0.1, 0.002, 0.02)).verdict == FAILS
    assert judge(stated(-0.1, 0.002, 0.02)).verdict == FAILS
    found = judge(stated(0.0, 0.05, 0.02))
    assert found.verdict == OPEN
    assert found.power == 0.0  # an interval of this width never fits
    assert "power 0.00 to show them alike" in found.reason
    assert found.reason.endswith("would decide it")


@given(st.lists(st.tuples(st.floats(-0.1, 0.1), st.floats(0.001, 0.1)), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_claims_that_something_is_better_are_decided_as_holm_decides(rows: list[tuple[float, float]]) -> None:
    claims = [stated(mean, error) for mean, error in rows]
    # A claim is decided by the clearer of two tests: above 0, or below the smallest difference of interest.
    p = [min(1, 2 * float(stats.t.sf(max(mean, 0.005 - mean) / error, FREEDOM))) for mean, error in rows]
    found = judge_all(claims)
    decided, nearly = holm_rejects(p, LEVEL), holm_rejects(p, LEVEL * (1 + 1e-9))
    assume(decided == nearly)
    assert [claim.verdict != OPEN for claim in found] == decided


def test_claims_of_one_experiment_share_the_level() -> None:
    unclear, clear = stated(0.03, 0.05), stated(0.8, 0.01)
    middle = stated(0.03, clear_at(0.02, 0.03))
    assert [one.verdict for one in judge_all([unclear, middle, clear])] == [OPEN, HOLDS, HOLDS]
    assert [one.verdict for one in judge_all([unclear, middle, unclear])] == [OPEN, OPEN, OPEN]
    assert judge_all([]) == ()


def test_a_claim_that_nobody_tested_costs_the_others_nothing() -> None:
    nobody = Stated("a and b", "ndcg@10", Contrast(reason="no repeat of both variants is finished"))
    verdicts = judge_all([stated(0.03, clear_at(0.04, 0.03)), *[nobody] * 5])
    assert [one.verdict for one in verdicts] == [HOLDS, *[UNTESTED] * 5]
    untold = Stated("a and b", "ndcg@10", Contrast(0.5, repeats=1, reason="one training of each"))
    assert [one.verdict for one in judge_all([stated(0.03, clear_at(0.04, 0.03)), untold])] == [HOLDS, OPEN]


def test_what_cannot_be_told_says_which_power_it_had_and_what_would_tell() -> None:
    found = judge(stated(0.02, 0.02))
    limit = float(stats.t.isf(0.025, FREEDOM))
    power = float(stats.nct.sf(limit, FREEDOM, 0.005 / 0.02) + stats.nct.cdf(-limit, FREEDOM, 0.005 / 0.02))
    assert found.power == pytest.approx(power, abs=1e-4)
    assert f"power {power:.2f} for 0.005, the smallest of interest" in found.reason
    wanted = math.ceil(2 * (0.02 / (0.02 / (1.959964 + 0.841621))) ** 2)
    assert f"too few runs: about {wanted} instead of 2 would decide it" in found.reason
    # Below 0 the upper bound must fall below the smallest difference of interest, 0.005.
    wanted = math.ceil(2 * (0.02 / (0.025 / (1.959964 + 0.841621))) ** 2)
    assert f"too few runs: about {wanted} instead of 2 would decide it" in judge(stated(-0.02, 0.02)).reason
    reported = judge(stated(0.02, 0.02, reported=0.05))
    assert reported.power > found.power
    assert "for 0.05, the paper's difference" in reported.reason
    assert "too few runs: more than 1,000 would be needed, instead of 2" in judge(stated(0.0025, 0.05)).reason


def test_repeats_do_not_help_where_queries_are_too_few() -> None:
    found = judge(stated(0.02, 0.02, floor=0.019))
    times = (0.019 / (0.02 / (1.959964 + 0.841621))) ** 2
    no_use = "no number of runs on these 13 queries would decide it"
    assert found.reason.endswith(
        f"too few queries: {no_use}, about {math.ceil(10 * times) / 10:.1f} times as many queries would"
    )


def test_a_design_that_cannot_tell_says_so() -> None:
    found = judge(Stated("a and b", "online", Contrast(0.5, unit="folds", counted=1, repeats=5, reason="one fold")))
    assert (found.verdict, found.reason, found.power) == (OPEN, "this design cannot decide: one fold", 0.0)
    lucky = Contrast(0.5, unit="folds", counted=1, repeats=5, reason="one fold", seed_error=0.1)
    half = float(stats.t.isf(0.025, 4)) * 0.1
    told = f"on exactly these, 5 repeats put it between {0.5 - half:+.4g} and {0.5 + half:+.4g}"
    assert judge(Stated("a and b", "online", lucky)).reason == f"this design cannot decide: one fold; {told}"


def test_in_general_it_takes_data_sets() -> None:
    over = Contrast(0.02, 0.02, 3, "data sets", 4, 20, 0.04)
    assert (
        "too few data sets: about 32 instead of 4 would decide it" in judge(Stated("a and b", "ndcg@10", over)).reason
    )


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
        # No difference worth acting on: less than 0.005.
        ([(0.0, 0.005, 0.04, None)], [FAILS]),
        ([(0.0, 0.005, 0.06, None)], [OPEN]),
    ],
)
def test_the_clearest_claim_is_judged_first_whatever_it_says(claims: list, verdicts: list[str]) -> None:
    asked = [stated(mean, clear_at(p, distance), within) for mean, distance, p, within in claims]
    assert [one.verdict for one in judge_all(asked)] == verdicts

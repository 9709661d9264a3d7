"""Prices of privacy: against arithmetic, against enumeration, against dp-accounting, and against published numbers."""

from __future__ import annotations

import sys
from fractions import Fraction
from math import exp, expm1, inf, log, log1p, sqrt
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.privacy import accounting
from fedrank.privacy.accounting import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    ResponseEvent,
    delta_of,
    epsilon,
    trade_off,
)
from tests.oracles import accounting as oracle

DELTA = 1e-5
SAMPLED = GaussianEvent(2.05, 0.1)
NEEDS_PACKAGE = [SAMPLED, LaplaceEvent(5.0), LaplaceEvent(2.0, 0.1)]
EVENTS: list[Event] = [
    GaussianEvent(2.05),
    ConcentratedEvent(0.02),
    ConcentratedEvent(0.5, pure=1.0),
    PureEvent(0.1),
    ResponseEvent(0.25, 11, 4),
    *NEEDS_PACKAGE,
]


@pytest.fixture(autouse=True)
def _outside_package(request):
    """Events that only dp-accounting can price are skipped where it is not installed."""
    event = getattr(request.node, "callspec", None)
    if event is not None and event.params.get("event") in NEEDS_PACKAGE:
        pytest.importorskip("dp_accounting")


# By hand.


def test_one_gaussian_release_by_hand():
    phi = NormalDist().cdf
    # Balle and Wang 2018, theorem 8, with sensitivity / deviation = 1/2.
    by_hand = phi(1 / 4 - 1.0 * 2) - exp(1.0) * phi(-1 / 4 - 1.0 * 2)
    assert delta_of(GaussianEvent(2.0), 1, 1.0) == pytest.approx(by_hand, rel=1e-12)
    # Four releases are one with half the noise.
    assert delta_of(GaussianEvent(4.0), 4, 1.0) == pytest.approx(by_hand, rel=1e-12)


def test_gaussian_delta_at_zero_is_the_distance_of_two_bells():
    # Total variation: Φ(μ/2) - Φ(-μ/2).
    phi = NormalDist().cdf
    assert delta_of(GaussianEvent(0.5), 9, 0.0) == pytest.approx(phi(3.0) - phi(-3.0), rel=1e-12)


def test_gaussian_delta_far_in_the_tail_does_not_cancel():
    # Leading term of the tail: φ(x) (1/x - 1/y) with x, y = ε/μ ∓ μ/2, up to a relative 3/x².
    x, y = 30 - 0.5, 30 + 0.5
    first = exp(-(x**2) / 2) / sqrt(2 * np.pi) * (1 / x - 1 / y)
    assert delta_of(GaussianEvent(1.0), 1, 30.0) == pytest.approx(first, rel=2 * 3 / x**2)


def test_two_yes_no_answers_by_hand():
    # ε = log 3: the truth with probability 3/4. Two answers: loss 2 log 3 with probability 9/16.
    # At ε = log 3, δ = 9/16 (1 - 3/9) = 3/8.
    assert delta_of(PureEvent(log(3)), 2, log(3)) == pytest.approx(3 / 8, rel=1e-12)
    assert epsilon(PureEvent(log(3)), 2, 3 / 8) == pytest.approx(log(3), rel=1e-9)
    # Above log 3 only the loss 2 log 3 counts: 9/16 (1 - e^ε/9) = 1/16 at e^ε = 8.
    assert epsilon(PureEvent(log(3)), 2, 1 / 16) == pytest.approx(log(8), rel=1e-9)


def test_one_laplace_release_by_hand():
    pytest.importorskip("dp_accounting")
    # δ = 1 - exp((ε - 1/b) / 2) for ε up to 1/b.
    for e in (0.0, 0.5, 0.9):
        exact = 1 - exp((e - 1.0) / 2)
        assert exact <= delta_of(LaplaceEvent(1.0), 1, e) <= exact + 1e-5


def test_sampling_shrinks_the_pure_price():
    # log(1 + q (e^ε - 1)).
    assert epsilon(LaplaceEvent(0.5, 0.1), 3, 0.0) == pytest.approx(3 * log1p(0.1 * expm1(2.0)), rel=1e-12)
    assert epsilon(LaplaceEvent(0.5), 3, 0.0) == 6.0


@pytest.mark.parametrize(
    ("event", "each"),
    [
        (GaussianEvent(1.0), inf),
        (GaussianEvent(1.0, 0.1), inf),
        (ConcentratedEvent(0.1), inf),
        (ConcentratedEvent(0.1, 0.3), 0.3),
        (PureEvent(0.7), 0.7),
        (ResponseEvent(0.5, 11, 4), 4 * log(10)),
        (ResponseEvent(0.25, 5), log(4 / 3)),
        (ResponseEvent(0.1, 2), log(9)),  # lying mostly tells as much as mostly telling the truth
        (ResponseEvent(1.0), inf),
        (PureEvent(inf), inf),
    ],
)
def test_without_delta_only_pure_prices_count(event, each):
    assert epsilon(event, 5, 0.0) == pytest.approx(5 * each)
    assert epsilon(event, 0, 0.0) == 0.0
    assert epsilon(event, 0, DELTA) == 0.0
    assert delta_of(event, 0, 0.0) == 0.0


@pytest.mark.parametrize("event", [ResponseEvent(1.0), PureEvent(inf), ConcentratedEvent(inf)])
def test_no_promise_stays_no_promise(event):
    assert epsilon(event, 3, DELTA) == inf
    assert delta_of(event, 3, 10.0) == 1.0
    np.testing.assert_array_equal(trade_off(event, 3, [0.0, 0.5, 1.0]), [0, 0, 0])


@pytest.mark.parametrize(
    "event", [ResponseEvent(0.5, 2), ResponseEvent(1 / 11), PureEvent(0.0), ConcentratedEvent(0.0)]
)
def test_answers_that_say_nothing_cost_nothing(event):
    assert epsilon(event, 1000, DELTA) == pytest.approx(0.0, abs=1e-9)
    assert delta_of(event, 1000, 1e-9) == pytest.approx(0.0, abs=1e-9)


# Published numbers.


def test_full_participation_needs_these_multipliers():
    for target, multiplier in ((8, 19), (4, 34), (1, 118)):
        assert epsilon(GaussianEvent(multiplier + 0.5), 1000, DELTA) < target
        assert epsilon(GaussianEvent(multiplier - 0.5), 1000, DELTA) > target


def test_a_server_that_knows_the_cohort_pays_four_times_the_price():
    pytest.importorskip("dp_accounting")
    assert epsilon(SAMPLED, 1000, DELTA) == pytest.approx(8, abs=0.05)
    assert epsilon(GaussianEvent(2.05), 100, DELTA) == pytest.approx(32, abs=0.5)


@pytest.mark.parametrize(("truth", "pure", "at_delta"), [(0.25, 1204, 298.1), (0.5, 2303, 1215.7), (0.9, 4500, 4197.7)])
def test_rewards_of_foltr_es(truth, pure, at_delta):
    event = ResponseEvent(truth, values=11, answers=4)
    assert epsilon(event, 250, 0.0) == pytest.approx(pure, abs=0.5)
    assert epsilon(event, 250, DELTA) == pytest.approx(at_delta, abs=0.1)
    # The judge: every count of answers for and against.
    exact = oracle.smallest_epsilon(oracle.response_losses(truth, 11, 1000), log(truth * 10 / (1 - truth)), DELTA)
    assert epsilon(event, 250, DELTA) == pytest.approx(exact, rel=1e-7)


def test_rounds_of_the_published_fpdgd():
    assert epsilon(ConcentratedEvent(1.2**2 / 2), 1000, DELTA) == pytest.approx(900, rel=0.005)
    assert epsilon(ConcentratedEvent(2 * 1.2**2), 1000, DELTA) == pytest.approx(3240, rel=0.005)
    assert epsilon(PureEvent(1.2), 1000, 0.0) == 1200
    # Of anything that is 1.2-private: the mean loss alone is 1,000 x 1.2 x tanh(0.6) = 644.
    exact = oracle.smallest_epsilon(oracle.response_losses(1 / (1 + exp(-1.2)), 2, 1000), 1.2, DELTA)
    assert epsilon(PureEvent(1.2), 1000, DELTA) == pytest.approx(exact, rel=1e-7) == pytest.approx(776, abs=0.5)


@pytest.mark.long
def test_laplace_noise_is_cheaper_than_its_pure_price_says():
    pytest.importorskip("dp_accounting")
    assert epsilon(LaplaceEvent(1 / 1.2), 1000, DELTA) == pytest.approx(623, abs=0.5)


# Against slow versions and outsiders.


@pytest.mark.parametrize(("truth", "values", "answers"), [("1/4", 4, 4), ("1/2", 3, 5), ("9/10", 2, 7), ("1/10", 3, 4)])
def test_randomised_response_equals_looking_at_every_answer(truth, values, answers):
    event = ResponseEvent(float(Fraction(truth)), values, answers)
    for ratio in ("1", "3/2", "7", "30"):
        exact = float(oracle.response_delta(Fraction(truth), values, answers, Fraction(ratio)))
        assert delta_of(event, 1, log(Fraction(ratio))) == pytest.approx(exact, rel=1e-9, abs=1e-15)


@pytest.mark.long
def test_randomised_response_equals_dp_accounting():
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    # Its parameter is the chance to answer at random, the truth included.
    outside = pld.from_randomized_response(0.5 * 11 / 10, 11, value_discretization_interval=1e-3).self_compose(1000)
    event = ResponseEvent(0.5, 11)
    # It rounds log 10 = 2.302585 up to 2.303 and -log 10 up to -2.302: 1,000 answers seem dearer by about a quarter.
    rounding = 1000 * (0.5 * 0.000415 + 0.05 * 0.000585)
    # (Its inversion is no judge here: beyond ε = 745 it returns the first loss whose tail holds δ, about 2 too much.)
    found = outside.get_delta_for_epsilon(epsilon(event, 1000, DELTA) + rounding)
    assert found == pytest.approx(DELTA, rel=0.01)
    for e in (1000.0, 1100.0, 1200.0):
        assert delta_of(event, 1000, e - rounding) == pytest.approx(outside.get_delta_for_epsilon(e), rel=0.01)


def test_the_exact_convolution_reaches_deltas_that_fourier_transforms_lose():
    event = PureEvent(0.5)
    exact = oracle.response_losses(1 / (1 + exp(-0.5)), 2, 400)
    for delta in (1e-20, 1e-30):
        assert epsilon(event, 400, delta) == pytest.approx(oracle.smallest_epsilon(exact, 0.5, delta), rel=1e-9)


@pytest.mark.parametrize("q", [0.1, 0.6])
def test_one_sampled_release_equals_the_integral_in_the_worse_direction(q):
    pytest.importorskip("dp_accounting")
    for event, out, shifted in (
        (GaussianEvent(0.8, q), oracle.normal(0, 0.8), oracle.normal(1, 0.8)),
        (LaplaceEvent(0.5, q), oracle.laplace(0, 0.5), oracle.laplace(1, 0.5)),
    ):

        def mixed(x, out=out, shifted=shifted):
            return (1 - q) * out(x) + q * shifted(x)

        exact = max(oracle.hockey_stick(mixed, out, 0.3, 12), oracle.hockey_stick(out, mixed, 0.3, 12))
        assert exact * (1 - 1e-5) <= delta_of(event, 1, 0.3) <= exact * 1.001


def test_the_distribution_of_the_loss_beats_moments_and_moments_agree_with_dp_accounting():
    package = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    accountant = rdp.RdpAccountant([*range(2, 65), 128, 256, 512, 1024])
    accountant.compose(package.PoissonSampledDpEvent(0.1, package.GaussianDpEvent(2.05)), 1000)
    ours = accounting._moments(SAMPLED, 1000)
    assert ours.epsilon(DELTA) == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)
    assert ours.deltas(np.array([9.0]))[0] == pytest.approx(accountant.get_delta(9.0), rel=1e-6)
    (distribution,) = accounting._distribution(SAMPLED, 1000)
    assert distribution.epsilon(DELTA) < 0.95 * ours.epsilon(DELTA)


def test_a_delta_below_rounding_errors_still_has_a_price():
    pytest.importorskip("dp_accounting")
    (distribution,) = accounting._distribution(SAMPLED, 100)
    assert distribution.epsilon(1e-16) == inf
    assert epsilon(SAMPLED, 100, 1e-16) == pytest.approx(accounting._moments(SAMPLED, 100).epsilon(1e-16))


def test_a_coarser_loss_never_costs_less(monkeypatch):
    pytest.importorskip("dp_accounting")
    (fine,) = accounting._distribution(SAMPLED, 50)
    step = accounting._loss_step(SAMPLED, 50)
    monkeypatch.setattr(accounting, "_loss_step", lambda event, times: 32 * step)
    (coarse,) = accounting._distribution(SAMPLED, 50)
    assert fine.epsilon(DELTA) < coarse.epsilon(DELTA) < 1.2 * fine.epsilon(DELTA)
    monkeypatch.setattr(accounting, "_loss_step", lambda event, times: 1.0)
    assert accounting._distribution(SAMPLED, 50) == ()


def test_a_very_long_run_is_stored_more_coarsely():
    short, long = (accounting._loss_step(GaussianEvent(0.5, 0.5), times) for times in (10, 10**9))
    assert short < 0.01 < 0.5 < long


@pytest.mark.parametrize("rho", [1e-4, 0.1, 5.0, 720.0])
def test_concentrated_price_equals_the_best_of_many_orders(rho):
    found = epsilon(ConcentratedEvent(rho), 1, DELTA)
    assert found == pytest.approx(oracle.concentrated_epsilon(rho, DELTA), rel=1e-5)
    assert found < rho + 2 * sqrt(rho * log(1 / DELTA))


def test_a_pure_price_caps_the_concentrated_one():
    assert epsilon(ConcentratedEvent(5.0, pure=0.1), 10, DELTA) == pytest.approx(epsilon(PureEvent(0.1), 10, DELTA))
    assert epsilon(ConcentratedEvent(0.001, pure=3.0), 10, DELTA) == epsilon(ConcentratedEvent(0.01), 1, DELTA)


# Properties of every event.


@pytest.mark.parametrize("event", EVENTS, ids=str)
@settings(max_examples=5, deadline=None)
@given(times=st.integers(1, 300), more=st.integers(1, 300), delta=st.floats(1e-9, 0.3))
def test_more_rounds_cost_more_and_a_larger_delta_less(event, times, more, delta):
    price = epsilon(event, times, delta)
    assert 0 <= price <= epsilon(event, times + more, delta) * (1 + 1e-3) + 1e-6
    assert epsilon(event, times, min(0.9, 2 * delta)) <= price


@pytest.mark.parametrize("event", EVENTS, ids=str)
@settings(max_examples=5, deadline=None)
@given(times=st.integers(1, 300), delta=st.floats(1e-9, 0.1))
def test_delta_inverts_epsilon(event, times, delta):
    price = epsilon(event, times, delta)
    assert delta_of(event, times, price) <= delta * (1 + 1e-9)
    if price > 0 and price < epsilon(event, times, 0.0) * (1 - 1e-9):
        assert delta_of(event, times, price * (1 - 1e-6)) > delta * (1 - 1e-9)


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 100), st.floats(1.001, 3), st.integers(1, 10_000))
def test_more_noise_costs_less(multiplier, factor, times):
    assert epsilon(GaussianEvent(multiplier * factor), times, DELTA) <= epsilon(GaussianEvent(multiplier), times, DELTA)


@pytest.mark.long
def test_sampling_less_often_costs_less():
    pytest.importorskip("dp_accounting")
    for kind in (GaussianEvent, LaplaceEvent):
        prices = [epsilon(kind(2.0, q), 30, DELTA) for q in (0.01, 0.1, 0.5, 0.99, 1.0)]
        assert prices == sorted(prices)
        assert prices[0] < prices[1] < prices[2] < prices[4]


# Trade-off curves.

RATES = np.linspace(0, 1, 201)


def test_trade_off_of_gaussian_noise_by_hand():
    bell = NormalDist()
    curve = trade_off(GaussianEvent(4.0), 4, [0.0, 0.05, 0.5, 1.0])
    np.testing.assert_allclose(curve, [1, bell.cdf(bell.inv_cdf(0.95) - 0.5), bell.cdf(-0.5), 0], rtol=1e-12)


def test_trade_off_of_one_pure_release_is_two_lines():
    lines = np.maximum(0, np.maximum(1 - 3 * RATES, (1 - RATES) / 3))
    np.testing.assert_allclose(trade_off(PureEvent(log(3)), 1, RATES), lines, atol=1e-6)


def test_trade_off_of_one_laplace_release_by_hand():
    pytest.importorskip("dp_accounting")
    e = 1.0
    middle = exp(-e) / (4 * np.maximum(RATES, 1e-9))
    exact = np.where(exp(-e) / 2 > RATES, 1 - exp(e) * RATES, np.where(RATES < 0.5, middle, exp(-e) * (1 - RATES)))
    curve = trade_off(LaplaceEvent(1.0), 1, RATES)
    assert np.all(curve <= exact + 1e-12)
    np.testing.assert_allclose(curve, exact, atol=1e-4)


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_trade_off_is_convex_falling_and_no_better_than_guessing(event):
    curve = trade_off(event, 20, RATES)
    assert np.all(curve >= 0)
    assert np.all(curve <= 1 - RATES + 1e-12)
    assert np.all(np.diff(curve) <= 1e-12)
    assert np.all(np.diff(curve, 2) >= -1e-9)
    # Not trivially so: every (ε, δ) is a line that the curve stays above, and one of them touches it.
    for e in (0.1, 1.0):
        assert np.all(curve >= 1 - delta_of(event, 20, e) - exp(e) * RATES - 1e-4)
    assert np.all(trade_off(event, 200, RATES) <= curve + 1e-9)
    assert trade_off(event, 200, [0.3])[0] < trade_off(event, 20, [0.3])[0] < 0.7
    np.testing.assert_array_equal(trade_off(event, 0, RATES), 1 - RATES)


# Mistakes.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GaussianEvent(0.0), "multiplier must be .*got 0.0"),
        (lambda: LaplaceEvent(-1.0), "multiplier must be .*got -1.0"),
        (lambda: GaussianEvent(float("nan")), "multiplier must be .*got nan"),
        (lambda: GaussianEvent(inf), "multiplier must be .*got inf"),
        (lambda: GaussianEvent(1.0, 0.0), "sampling must be .*got 0.0"),
        (lambda: LaplaceEvent(1.0, 1.5), "sampling must be .*got 1.5"),
        (lambda: ConcentratedEvent(-0.1), "rho must be .*got -0.1"),
        (lambda: ConcentratedEvent(0.1, -1), "pure must be .*got -1"),
        (lambda: PureEvent(float("nan")), "epsilon must be .*got nan"),
        (lambda: ResponseEvent(0.0), "truth must be .*got 0.0"),
        (lambda: ResponseEvent(1.1), "truth must be .*got 1.1"),
        (lambda: ResponseEvent(0.5, 1), "values must be .*got 1"),
        (lambda: ResponseEvent(0.5, 11, 0), "answers must be .*got 0"),
        (lambda: epsilon(PureEvent(1.0), -1, DELTA), "times must be .*got -1"),
        (lambda: epsilon(PureEvent(1.0), 1.5, DELTA), "times must be .*got 1.5"),
        (lambda: epsilon(PureEvent(1.0), 1, 1.0), "delta must be .*got 1.0"),
        (lambda: epsilon(PureEvent(1.0), 1, -1e-9), "delta must be .*got -1e-09"),
        (lambda: delta_of(PureEvent(1.0), 1, -0.1), "epsilon must be .*got -0.1"),
        (lambda: trade_off(PureEvent(1.0), 1, [0.5, 1.5]), "got 0.5 to 1.5"),
    ],
)
def test_mistakes_name_the_value(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting.pld.privacy_loss_distribution", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[privacy\]'"):
        epsilon(LaplaceEvent(3.1415), 7, DELTA)
    # What needs no package still works.
    assert epsilon(GaussianEvent(3.1415), 7, DELTA) > 0

"""Promises: what so many payments cost, how many a budget allows, and which noise a target needs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.federated.aggregators import Mean
from fedrank.privacy.accounting import ConcentratedEvent, GaussianEvent, PureEvent, epsilon
from fedrank.privacy.guarantees import Guarantee, Setting, noise_for, up
from fedrank.privacy.mechanisms import AtServer, Gaussian, OnClient, SecureAggregation
from fedrank.ranking.learners import Pdgd

NOTHING = Guarantee("server", None, "sees all")
PURE = Guarantee("public", PureEvent(0.5), "test")


def setting(participation=1.0, clients=1000) -> Setting:
    return Setting(clients, 46, participation, (4,), Pdgd(), Mean())


def public(mechanism, participation=1.0, clients=1000) -> Guarantee:
    return mechanism.guarantees(setting(participation, clients))[-1]


def test_nothing_costs_everything():
    assert NOTHING.epsilon(1, 1e-5) == math.inf
    assert NOTHING.affordable(1e-5, 1e9, 10) == 0


@pytest.mark.parametrize(
    ("paid", "lost", "expected"),
    [
        ("participation", 0, 7),
        ("round", 0, 70),
        ("once", 0, 1),
        ("participation", 3, 7),
        ("round", 3, 70),
        ("once", 3, 4),
    ],
)
def test_how_often_a_client_pays(paid, lost, expected):
    """7 participations in 70 rounds; the last 3 of these repeat rounds that were lost, with the same interactions."""
    assert Guarantee("public", PureEvent(1.0), "test", paid).times(7, 70, lost) == expected


def test_who_never_took_part_pays_only_for_rounds_that_hide_it():
    for paid, expected in (("participation", 0), ("round", 70), ("once", 0)):
        assert Guarantee("public", PureEvent(1.0), "test", paid).times(0, 70, 5) == expected


def test_pure_costs_by_hand():
    assert [PURE.epsilon(times, 0.0) for times in (0, 1, 10)] == [0, 0.5, 5]
    assert [PURE.affordable(0.0, budget, 100) for budget in (0.4, 0.5, 1.4, 5, 1000)] == [0, 1, 2, 10, 100]


def test_slack_is_added():
    """p and q are right up to factors exp(±slack / 2), and so after ten times up to exp(±5 slack)."""
    event = GaussianEvent(3.0)
    slack = Guarantee("public", event, "test", slack=1e-3)
    assert slack.epsilon(10, 1e-5) == pytest.approx(epsilon(event, 10, 1e-5 * math.exp(-5e-3)) + 1e-2, rel=1e-12)
    assert slack.epsilon(10, 1e-5) > Guarantee("public", event, "test").epsilon(10, 1e-5) + 1e-2
    assert Guarantee("public", PureEvent(0.5), "test", slack=1e-3).epsilon(10, 0.0) == pytest.approx(5.01)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.5, 50), st.floats(0.1, 30), st.integers(1, 300), st.sampled_from([0.0, 1e-8]))
def test_a_budget_is_never_exceeded_and_never_left_unused(multiplier, budget, most, slack):
    guarantee = Guarantee("public", ConcentratedEvent(1 / (2 * multiplier**2)), "test", slack=slack)
    times = guarantee.affordable(1e-5, budget, most)
    assert 0 <= times <= most
    assert times == 0 or guarantee.epsilon(times, 1e-5) <= budget
    assert times == most or guarantee.epsilon(times + 1, 1e-5) > budget


# The numbers of the methods page


def test_noise_for_a_thousand_rounds_with_everybody():
    """δ = 1e-5: 19 / 34 / 118 for ε = 8 / 4 / 1 and zero-out neighbours."""
    for target, expected in ((8, 19), (4, 34), (1, 118)):
        found = noise_for(lambda noise: public(Gaussian(1.0, noise, AtServer())), 1000, 1e-5, target)
        assert found == pytest.approx(expected, rel=0.03)
        assert public(Gaussian(1.0, found, AtServer())).epsilon(1000, 1e-5) <= target
        assert public(Gaussian(1.0, 0.998 * found, AtServer())).epsilon(1000, 1e-5) > target


def test_chance_hides_from_the_public_what_the_server_knows():
    """Multiplier 2.05, q = 0.1, 1,000 rounds: ε = 8 for the public, 32 for one who saw 100 participations."""
    central = public(Gaussian(1.0, 2.05, AtServer()), participation=0.1)
    assert central.times(participations=100, rounds=1000) == 1000
    assert central.epsilon(1000, 1e-5) == pytest.approx(8, rel=0.02)
    # Replaced by another, a message moves twice as far. Shares are priced by zCDP, which costs a little.
    for place, noise, total in ((OnClient(), 4.1, 32), (SecureAggregation(), 2.05, 34)):
        known = public(Gaussian(1.0, noise, place), participation=0.1)
        assert known.times(participations=100, rounds=1000) == 100
        assert known.epsilon(100, 1e-5) == pytest.approx(total, rel=0.02)


def test_local_noise_must_be_twice_as_wide():
    """The same ε as central noise of half the width."""
    local, central = public(Gaussian(1.0, 20.0)), public(Gaussian(1.0, 10.0, AtServer()))
    assert local.epsilon(100, 1e-5) == pytest.approx(central.epsilon(100, 1e-5), rel=1e-4)


# Noise for a target


def test_noise_for_a_large_target_is_found_too():
    found = noise_for(lambda noise: Guarantee("public", PureEvent(1 / noise), "test"), 1, 0.0, 500.0)
    assert found == pytest.approx(1 / 500, rel=0.002)
    assert found >= 1 / 500


def test_a_target_that_no_noise_reaches():
    assert noise_for(lambda noise: NOTHING, 1, 1e-5, 1.0) == math.inf


def test_noise_that_a_grid_cannot_hold_does_not_stop_the_search():
    def guarantee(noise: float) -> Guarantee:
        if not 0.3 <= noise <= 2**21:
            raise ValueError("too narrow, or too wide")
        return Guarantee("public", PureEvent(1 / noise), "test")

    assert noise_for(guarantee, 1, 0.0, 100.0) == pytest.approx(0.3, rel=0.002)
    assert noise_for(guarantee, 1, 0.0, 1e-9) == math.inf


@given(st.floats(0, 1e6))
def test_what_is_shown_is_never_less(value):
    text = up(value).replace(",", "")
    assert value - 1e-8 <= float(text) <= value + (0.01 if value < 2 else 0.1 if value < 100 else 1)


def test_shown_by_hand():
    assert [up(value) for value in (0, 1.2041, 1.21, 8.0, 8.01, 99.91, 623.4, 3240.0, 12345.6)] == [
        "0.00", "1.21", "1.21", "8.0", "8.1", "100.0", "624", "3,240", "12,346",
    ]  # fmt: skip

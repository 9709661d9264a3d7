"""A person in an organisation as the unit: how far one person moves a sum, and what is claimed for that."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats

from fedrank.federated.aggregators import Mean
from fedrank.privacy.accounting import GaussianEvent, LaplaceEvent, delta_of
from fedrank.privacy.clip import total_steps
from fedrank.privacy.guarantees import OBSERVERS, Setting
from fedrank.privacy.mechanisms import AtServer, Gaussian, Laplace, OnClient, SecureAggregation
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.ranking.learners import Pdgd
from fedrank.types import Messages, has_trait

IDEAL = SecureAggregation(sum="ideal")
PLACES = [OnClient(), AtServer(), IDEAL]
KINDS = [Gaussian, Laplace]
SITES, PEOPLE = 4, 250


def setting(parameters=46, participation=1.0) -> Setting:
    return Setting(SITES, parameters, participation, (4,), Pdgd(), Mean())


def persons(updates, sites, sizes=None) -> Messages:
    updates = np.asarray(updates, dtype=np.float32)
    sizes = np.ones(len(updates), dtype=np.int64) if sizes is None else np.asarray(sizes)
    return Messages(updates, sizes, np.asarray(sites, dtype=np.int64), np.zeros(updates.shape[1]), round=1)


def source() -> SecureSource:
    return SecureSource(key=bytes(32))


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))


def totals(mechanism, messages, cohort) -> np.ndarray:
    """What noise has to hide, in the unit of updates: the sum of each site that adds noise itself, or of all."""
    sent = mechanism.protect(messages, cohort, source())
    if not has_trait(mechanism, "adds up"):
        return sent.updates.astype(np.float64) * mechanism.people
    return mechanism.rule(cohort, source())(sent)[None] * cohort * mechanism.people


def slowly(updates, sizes, sites, clip, norm, cap):
    """The oracle: one person after the other."""
    found = {site: np.zeros(updates.shape[1]) for site in sorted(set(sites))}
    for update, size, site in zip(updates, sizes, sites, strict=True):
        length = np.linalg.norm(update.astype(np.float64), norm)
        if math.isfinite(length):
            found[site] += update * min(1.0, clip / length if length else 1.0) * min(size / cap, 1.0)
    return np.array(list(found.values()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_everybody_is_clipped_alone_then_added_up(silent, kind, place):
    rng = np.random.default_rng(1)
    updates = (rng.normal(size=(40, 6)) * rng.exponential(size=(40, 1))).astype(np.float32)
    updates[7] = np.inf
    sites, sizes = rng.integers(0, SITES, 40), rng.integers(0, 6, 40)
    mechanism = kind(0.5, 2.0, place, cap=3, unit="person", people=20)
    expected = slowly(updates, sizes, sites.tolist(), 0.5, mechanism.norm, 3)
    if has_trait(mechanism, "adds up"):
        expected = expected.sum(axis=0, keepdims=True)
    assert totals(mechanism, persons(updates, sites, sizes), SITES) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.floats(-6, 6), st.integers(2, 300))
def test_data_that_differ_in_one_person_differ_by_the_sensitivity_at_most(silent, kind, place, seed, size, people):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(people, 5)) * 10**size
    if seed % 3 == 0:
        updates[0] = np.eye(5)[0] * 1e9
    sites = np.sort(rng.integers(0, 3, people))
    mechanism = kind(0.7, 1.0, place, unit="person", people=people)
    with_it = totals(mechanism, persons(updates, sites), 3)
    gone = updates.copy()
    gone[0] = 0
    reach = mechanism.reach(replace(setting(5), clients=3))
    # Four bytes that carry noise are rounded after it, which is no part of what noise hides.
    rounding = people * 0.7 * 2.0**-23 * 5 if place == OnClient() else 1e-12
    moved = np.linalg.norm((with_it - totals(mechanism, persons(gone, sites), 3)).ravel(), mechanism.norm)
    assert moved <= reach + rounding
    assert reach <= 0.7 * (1 + people * 5 * 2.0**-22)


@pytest.mark.parametrize("clip", [0.15, 1.0, 0.3])
def test_a_sum_of_people_is_exact_in_four_bytes(clip):
    """Else the server's noise would be made for a step that a message can exceed."""
    mechanism = Gaussian(clip, 1.0, AtServer(), unit="person", people=PEOPLE)
    rng = np.random.default_rng(3)
    updates = np.tile(rng.normal(size=8), (PEOPLE, 1)) + rng.normal(size=(PEOPLE, 8)) * 1e-3
    step = mechanism.step(SITES)
    sent = mechanism.protect(persons(updates, np.zeros(PEOPLE)), SITES, source())
    alone = mechanism.protect(persons(updates, np.arange(PEOPLE)), SITES, source())
    assert np.array_equal(total_steps(sent.updates, step), total_steps(alone.updates, step))
    assert np.abs(sent.updates / step).max() > 2**20


@pytest.mark.parametrize("kind", KINDS)
def test_an_organisation_adds_noise_once(kind):
    mechanism = kind(0.5, 3.0, unit="person", people=PEOPLE)
    zeros = persons(np.zeros((PEOPLE, 20_000)), np.zeros(PEOPLE))
    sent = mechanism.protect(zeros, SITES, source())
    assert sent.updates.shape == (1, 20_000)
    deviation = 1.5 * (math.sqrt(2) if kind is Laplace else 1.0) / PEOPLE
    assert sent.updates.std() == pytest.approx(deviation, rel=0.03)
    assert sent.sizes.tolist() == [1]


def test_one_message_of_a_secure_sum_is_as_long_as_without_people():
    mechanism = Gaussian(0.5, 3.0, SecureAggregation(), unit="person", people=PEOPLE)
    sent = mechanism.protect(persons(np.ones((2 * PEOPLE, 7)), np.repeat([0, 1], PEOPLE)), 2, source())
    alone = Gaussian(0.5, 3.0, SecureAggregation()).protect(persons(np.ones((2, 7)), [0, 1]), 2, source())
    assert sent.bytes_each == alone.bytes_each
    assert sent.updates.shape == (2, 7)


def test_a_sum_of_people_never_wraps_around(silent):
    mechanism = Gaussian(1.0, 1.0, SecureAggregation(sum="ideal", bits=20), unit="person", people=PEOPLE)
    sites = np.repeat(np.arange(SITES), PEOPLE)
    total = totals(mechanism, persons(np.ones((len(sites), 1)) * 9, sites), SITES)
    assert total[0, 0] == pytest.approx(SITES * PEOPLE, rel=1e-3)


def test_more_people_than_the_sum_is_made_for():
    with pytest.raises(ValueError, match=r"client 3 has 5 people, but people = 4 is the maximum"):
        Gaussian(1.0, 1.0, unit="person", people=4).protect(persons(np.ones((6, 2)), [1, 3, 3, 3, 3, 3]), 2, source())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"people": 0, "unit": "person"}, "people must be at least 1"),
        ({"sites": 0, "unit": "person"}, "sites must be at least 1"),
        ({"people": 9}, 'people = 9 applies only to unit = "person" .unit is "client"'),
        ({"sites": 2, "unit": "interaction"}, 'sites = 2 applies only to unit = "person" .unit is "interaction"'),
    ],
)
def test_settings_that_make_no_sense(changes, problem):
    with pytest.raises(ValueError, match=problem):
        Gaussian(1.0, 1.0, **changes)


# What is claimed


@pytest.mark.parametrize(
    ("kind", "event", "spread"), [(Gaussian, GaussianEvent, math.sqrt(46)), (Laplace, LaplaceEvent, 46)]
)
@pytest.mark.parametrize("place", [OnClient(), AtServer()])
def test_a_promise_is_for_one_person(kind, event, spread, place):
    rows = kind(1.0, 3.0, place, unit="person", people=PEOPLE).guarantees(setting())
    assert [row.against for row in rows] == list(OBSERVERS)
    step = 2.0**-15  # 2 x 250 contributions of 1 are 500 < 2^9
    for row in rows if place == OnClient() else rows[1:]:
        assert row.event == event(3 / (1 + spread * step / 2))
        assert (row.unit, row.neighbours, row.paid) == ("person", "zero-out", "participation")
        assert "organisation" in row.because


def test_a_person_under_a_secure_sum_costs_what_a_client_does():
    """The noise is the same; only that the sum it lies in has 250 times the contributions."""
    place = SecureAggregation(honest=0.75, sum="ideal")
    person = Gaussian(0.15, 9.1, place, unit="person", people=PEOPLE).guarantees(setting())[0]
    client = Gaussian(0.15, 9.1, place).guarantees(setting())[0]
    assert person.unit == "person"
    assert person.epsilon(60, 1e-5) == pytest.approx(client.epsilon(60, 1e-5), rel=1e-3)
    assert person.epsilon(60, 1e-5) <= 4


@pytest.mark.parametrize(
    ("kind", "place", "times"),
    [
        (Gaussian, AtServer(), 3.0),  # one sum moves by three clips
        (Gaussian, IDEAL, 3.0),
        (Gaussian, OnClient(), math.sqrt(3)),  # three messages, each with noise of its own, move by one
        (Laplace, OnClient(), 3.0),
        (Laplace, AtServer(), 3.0),
    ],
)
def test_what_somebody_at_three_organisations_costs_adds_up(kind, place, times):
    once, thrice = (kind(1.0, 9.0, place, unit="person", people=10, sites=sites) for sites in (1, 3))
    assert thrice.reach(setting()) == pytest.approx(times * once.reach(setting()))
    first, second = (each.guarantees(setting())[-1] for each in (once, thrice))
    assert second.epsilon(10, 1e-5) > 1.5 * first.epsilon(10, 1e-5)
    assert "over several, the costs add up" in first.because
    assert "at up to 3 organisations" in second.because
    if place == OnClient() and kind is Gaussian:  # as if there had been three times the rounds
        assert second.epsilon(10, 1e-5) == pytest.approx(first.epsilon(30, 1e-5), rel=1e-3)


def test_nobody_hides_behind_the_draw_of_an_organisation():
    """It takes part with all its people: whoever knows the others sees that it does, so sampling saves nothing.

    With probability q the sum is B + noise or B + clip + noise, B being what the 249 others add: far away from 0.
    """
    q, noise = 0.1, 1.0
    *_, public = Gaussian(1.0, noise, AtServer(), unit="person", people=PEOPLE).guarantees(setting(participation=q))
    assert public.event is not None
    assert (public.event.sampling, public.paid) == (1.0, "participation")
    others, epsilon = 50.0, 0.5
    grid = np.linspace(-12, others + 12, 200_001)
    out = (1 - q) * stats.norm.pdf(grid, 0, noise) + q * stats.norm.pdf(grid, others, noise)
    into = (1 - q) * stats.norm.pdf(grid, 0, noise) + q * stats.norm.pdf(grid, others + 1, noise)
    really = np.maximum(into - math.exp(epsilon) * out, 0).sum() * (grid[1] - grid[0])
    assert really <= delta_of(public.event, 1, epsilon)
    assert really > 5 * delta_of(GaussianEvent(noise, q), 1, epsilon), "what a client that is drawn may claim"

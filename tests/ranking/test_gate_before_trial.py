"""The gate before a trial: by hand, against the slow version, and its error rate."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from fedrank.data.synthetic_shown import Browsing, made_up_queries, simulate_shown
from fedrank.ranking.estimate import MAX_RATIO
from fedrank.ranking.gate import (
    DIRECTIONS,
    MIN_PEOPLE,
    SENSITIVITY,
    GateRules,
    PersonSums,
    _scenarios,
    decide,
    decide_all,
    person_rows,
    person_values,
    width,
)
from fedrank.ranking.propensity import Propensities, ShownResults, given_propensities
from tests.oracles import gate as oracle

HALF = given_propensities([1.0, 0.5])


def exact(values):
    """Differences [people, biases] with exact propensities."""
    return np.hstack([values, np.zeros((len(values), DIRECTIONS * values.shape[1]))])


def summed(nothing, alone=None, sigma=0.0):
    nothing, alone = (one if one is None or one.shape[1] > 2 else exact(one) for one in (nothing, alone))
    return PersonSums.read(person_rows(nothing, alone).sum(axis=0), sigma, 1 if alone is None else 2)


def test_two_people_by_hand():
    # Person 7: her lower document was clicked, and would be first: 1 / .5 x (1 - .5) = +1 in one list, 0 in the other.
    # Person 3: the upper document was clicked, and would be second: .5 - 1 = -.5.
    lists = np.array([[0, 1], [0, 1], [0, 1]])
    shown = ShownResults.of_lists(lists, np.array([[0, 1], [0, 0], [1, 0]]), np.zeros(3, int), np.zeros(3, int))
    turned, kept = np.tile([0.0, 1.0], 3), -shown.position.astype(float)
    found = person_values(shown, np.array([7, 7, 3]), turned, kept, HALF)
    assert found.tolist() == [[-0.5, 0, 0, 0], [0.5, 0, 0, 0]]
    assert not person_values(shown, np.array([7, 7, 3]), kept, kept, HALF).any()
    # With trust, .1 of the clicks in the second position are due to it: fewer clicks of relevance move up.
    trust = given_propensities([1.0, 0.5], [0.0, 0.1])
    both = person_values(shown, np.array([7, 7, 3]), turned, kept, HALF, trust)
    assert both[:, 0].tolist() == [-0.5, 0.5]
    # 7: (1 - .1) + (-.1) in two lists; the clicks by trust in the two positions cancel out. 3: -.5 - .1.
    assert both[:, 1] == pytest.approx([-0.6, (0.9 - 0.1) / 2])
    assert not both[:, 2:].any(), "these propensities are exact"
    with pytest.raises(ValueError, match=r"must have one value per result .6"):
        person_values(shown, np.array([7, 7, 3]), turned, kept[:2], HALF)
    with pytest.raises(ValueError, match="first two positions"):
        person_values(shown, np.array([7, 7, 3]), turned, kept, given_propensities([1.0, math.nan]))


def test_the_error_of_propensities_by_hand():
    # The second position has .5 with a standard error of 10 %: the click there is worth 1 / .5 - 1 = 1 on average, and
    # (1 / (.5 x e^.1) - 1 / (.5 x e^-.1)) / 2 = -.2003 more with one standard error.
    shown = ShownResults.of_lists(np.array([[0, 1]]), np.array([[0, 1]]), np.zeros(1, int), np.zeros(1, int))
    slope, error = np.array([1.0, 0.5]), np.array([0.0, 1.96 * 0.1])
    by = Propensities(slope, np.zeros(2), slope * np.exp(-error), slope * np.exp(error), "test")
    found = person_values(shown, np.zeros(1, int), np.array([0.0, 1.0]), np.array([1.0, 0.0]), by)
    assert found[0] == pytest.approx([1.0, -2 * math.sinh(0.1), 0, 0])
    # A decision includes it: .1 per person, without any spread between people, but with an error of .06.
    values = np.tile([0.1, 0.1, 0.06, 0, 0, 0, 0, 0.06], (100, 1))
    sums = summed(values)
    assert decide(sums.sums[0], sums.squares, sums.count, 0.0).interval.low == pytest.approx(
        0.1 - 1.6449 * 0.06, abs=1e-4
    )
    # It averages out between sites with own propensities, and does not with shared ones.
    alone, shared = (PersonSums.pooled([sums] * 4, one) for one in (False, True))
    assert alone.sums[0, 2] == pytest.approx(2 * sums.sums[0, 2])
    assert shared.sums[0, 2] == pytest.approx(4 * sums.sums[0, 2])


def test_deep_positions_are_between_the_last_known_one_and_a_power_law():
    slopes, extras = _scenarios(given_propensities([1.0, 0.5, math.nan]), 4)[0]
    assert slopes == pytest.approx([1.0, 0.5, 0.5 * (2 / 3) ** 0.5, 0.5 * (2 / 4) ** 0.5])
    assert not extras.any()


@pytest.mark.parametrize("trust", [0.0, 0.3])
def test_values_equal_the_oracle(trust):
    browsing, positions = Browsing(1.5, trust), np.arange(6)
    log = simulate_shown(made_up_queries(30, documents=6), 200, browsing=browsing, people=15)
    shown = ShownResults.of_lists(log.lists, log.clicks, log.first, log.query)
    rng = np.random.default_rng(1)
    scores, against = rng.normal(size=(2, len(shown)))
    slope = browsing.slope(positions) / browsing.slope(0)
    extra = browsing.intercept(positions) - slope * browsing.intercept(0)
    found = person_values(shown, log.user, scores, against, given_propensities(slope, extra))
    expected = oracle.person_values(shown, log.user, scores, against, slope, extra, MAX_RATIO)
    assert found[:, 0] == pytest.approx([expected[person] for person in sorted(expected)])
    assert np.abs(found).max() <= 1


def test_a_person_changes_the_sums_by_a_bounded_amount():
    rng = np.random.default_rng(2)
    nothing, alone = rng.uniform(-1, 1, size=(2, 500, 2 + 2 * DIRECTIONS))
    rows = person_rows(nothing, alone)
    assert np.linalg.norm(rows, axis=1).max() <= SENSITIVITY + 1e-12
    assert rows.shape[1] == width(2, 2)
    assert np.linalg.norm(person_rows(np.ones((1, 8)), np.ones((1, 8)))) <= SENSITIVITY
    one = exact(np.array([[1.0, 0.0]]))
    assert np.linalg.norm(person_rows(one)) == pytest.approx(SENSITIVITY), "it is not too large"
    small = np.full((1, 8), 0.1)
    assert person_rows(small, small)[0, 2:].tolist() == [0.1] * 16, "small values are not clipped"


@pytest.mark.parametrize("sigma", [0.0, 3.0])
def test_intervals_equal_the_oracle(sigma):
    values = np.random.default_rng(3).normal(0.05, 0.2, size=(200, 2)).clip(-0.7, 0.7)
    values[:, 1] = values[:, 0]
    sums = summed(values, sigma=sigma)
    found = decide(sums.sums[0], sums.squares, sums.count, sigma, 0.05, 0.01)
    z = NormalDist().inv_cdf(0.99)
    assert found.interval == pytest.approx(oracle.interval(values[:, 0].tolist(), sigma, 0.5, z))


def test_decisions():
    def of(mean, margin, columns=2):
        values = np.full((100, columns), mean) + 0.01 * np.tile([[1], [-1]], (50, 1))
        sums = summed(values)
        return decide(sums.sums[0], sums.squares, sums.count, 0.0, margin, 0.05)

    assert of(0.1, 0.0).outcome == "pass"
    assert of(-0.03, 0.05).outcome == "pass"
    assert of(-0.03, 0.0).outcome == "veto"
    assert of(-0.1, 0.05).outcome == "veto"
    assert of(0.0, 0.0).outcome == "inconclusive"
    assert of(0.1, 0.0, columns=1).outcome == "inconclusive"
    assert "trust bias was not estimated" in of(0.1, 0.0, columns=1).words
    assert of(-0.1, 0.0, columns=1).outcome == "veto"
    few = summed(np.full((MIN_PEOPLE - 1, 2), 0.1))
    assert decide(few.sums[0], few.squares, few.count, 0.0).outcome == "inconclusive"
    with pytest.raises(ValueError, match=r"alpha between 0 and 0\.5"):
        decide(few.sums[0], 1.0, 100.0, 0.0, 0.0, 0.5)


def test_the_worse_bias_counts():
    values = np.tile([[0.1, -0.1], [0.12, -0.08]], (50, 1))
    sums = summed(values)
    found = decide(sums.sums[0], sums.squares, sums.count, 0.0)
    assert found.outcome == "inconclusive", "a gain or a loss under one bias alone decides nothing"
    assert found.interval.value == pytest.approx(-0.09)
    assert found.interval.low < -0.09
    assert found.interval.high > 0.11
    both = summed(np.minimum(values, -0.05))
    assert decide(both.sums[0], both.squares, both.count, 0.0).outcome == "veto"


def test_noise_is_part_of_the_interval():
    sums = summed(np.full((100, 2), 0.1))
    assert decide(sums.sums[0], sums.squares, sums.count, 0.0).outcome == "pass"
    assert decide(sums.sums[0], sums.squares, sums.count, 10.0).outcome == "inconclusive"


def site(mean, own=0.1, people=200):
    rng = np.random.default_rng(people)
    nothing, alone = (np.repeat(rng.normal(one, 0.1, size=(people, 1)), 2, axis=1) for one in (mean, own))
    return summed(nothing, alone)


def test_all_sites_and_all_people():
    rules = GateRules(margin=0.05)
    assert decide_all([site(0.1), site(0.2), site(0.1)], rules).outcome == "pass"
    lost = decide_all([site(0.1), site(0.2), site(-0.2)], rules, names=["north", "east", "south"])
    assert lost.outcome == "veto"
    assert "south against doing nothing: veto" in lost.words[4]
    assert decide_all([site(0.1), site(0.2), site(0.1, own=-0.2)], rules).outcome == "veto"
    level = decide_all([site(0.0), site(0.0, people=201), site(0.0, people=202)], rules)
    assert level.outcome == "inconclusive"
    assert {one.outcome for both in level.sites for one in both} == {"pass"}, "not inferior, but not better"
    with pytest.raises(ValueError, match="same comparisons"):
        decide_all([site(0.1), summed(np.full((100, 2), 0.1))])


def test_the_error_rate_is_spent_over_the_plans_of_a_year():
    rules = GateRules(alpha=0.05, plans=4)
    assert sum(rules.spend(before) for before in range(4)) == pytest.approx(0.05)
    with pytest.raises(ValueError, match="4 plans were decided in the last year"):
        decide_all([site(0.1)], rules, before=4)
    with pytest.raises(ValueError, match="plans at least 1"):
        GateRules(plans=0)


def test_sums_from_outside_are_checked():
    with pytest.raises(ValueError, match=r"must be 10 or 18 numbers for 2 comparisons .got 3"):
        PersonSums.read(np.zeros(3), 1.0)
    with pytest.raises(ValueError, match="must be finite"):
        PersonSums.read(np.full(10, math.nan), 1.0)


@pytest.mark.parametrize("sigma", [0.0, 5.0])
def test_error_rate_and_power(sigma):
    """People with the mean 0 pass at most with alpha, give or take 3 standard errors; far better ones nearly always."""
    rng = np.random.default_rng(4)
    repeats, alpha = 2000, 0.05
    passed = np.zeros(2)
    for _ in range(repeats):
        for which, mean in enumerate((0.0, 0.2)):
            values = np.repeat(rng.normal(mean, 0.2, size=(150, 1)), 2, axis=1)
            vector = person_rows(exact(values)).sum(axis=0)
            sums = PersonSums.read(vector + sigma * rng.normal(size=len(vector)), sigma, 1)
            passed[which] += decide(sums.sums[0], sums.squares, sums.count, sigma, 0.0, alpha).outcome == "pass"
    assert passed[0] / repeats < alpha + 3 * math.sqrt(alpha / repeats)
    assert passed[1] / repeats > 0.95

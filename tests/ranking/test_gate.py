"""The gate: mixed lists, and the error rates of the bets, computed exactly."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedrank.ranking.gate import Draft, Gate, Team, team_draft


def test_equal_rankings_are_shown_as_they_are_and_nobody_wins():
    order = np.array([3, 1, 2, 0])
    draft = team_draft(order, order, 3, np.random.default_rng(1))
    assert_array_equal(draft.shown, [3, 1, 2])
    assert_array_equal(draft.team, Team.NEITHER)
    assert draft.winner(np.ones(3, bool)) == Team.NEITHER


def test_only_places_where_rankings_differ_belong_to_somebody():
    draft = team_draft(np.array([0, 1, 2, 3]), np.array([0, 2, 1, 3]), 4, np.random.default_rng(1))
    assert draft.shown[0] == 0
    assert draft.team[0] == Team.NEITHER
    assert sorted(draft.team[1:3]) == [Team.OLD, Team.NEW]
    assert draft.team[draft.shown == 1] == Team.OLD
    assert draft.team[draft.shown == 2] == Team.NEW
    assert draft.team[3] == Team.NEITHER


def test_every_document_is_shown_once_and_both_sides_get_as_many():
    rng = np.random.default_rng(5)
    leads = []
    for _ in range(300):
        old, new = rng.permutation(20), rng.permutation(20)
        draft = team_draft(old, new, 10, rng)
        assert len(set(draft.shown)) == 10
        assert abs(int(np.sum(draft.team == Team.NEW)) - int(np.sum(draft.team == Team.OLD))) <= 1
        leads.append(int(draft.team[draft.team != Team.NEITHER][0]))
    assert 100 < sum(leads) < 200  # a coin


def test_exchanged_models_exchange_wins():
    """Random clicks prefer nobody, however unlike the rankings are."""
    rng = np.random.default_rng(9)
    old, new = np.arange(12), np.roll(np.arange(12), 5)
    won = []
    for _ in range(4000):
        draft = team_draft(old, new, 10, rng)
        won.append(draft.winner(rng.random(10) < 1 / np.arange(2, 12)))
    assert np.mean(np.array(won) == Team.NEW) == pytest.approx(np.mean(np.array(won) == Team.OLD), abs=0.03)


def test_short_rankings_give_short_lists():
    draft = team_draft(np.array([1, 0]), np.array([0, 1]), 10, np.random.default_rng(1))
    assert sorted(draft.shown) == [0, 1]


def test_who_wins():
    draft = Draft(np.arange(4), np.array([Team.NEITHER, Team.OLD, Team.NEW, Team.NEW], np.int8))
    assert draft.winner(np.array([1, 0, 1, 0], bool)) == Team.NEW
    assert draft.winner(np.array([0, 1, 1, 0], bool)) == Team.NEITHER
    assert draft.winner(np.array([1, 1, 0, 0], bool)) == Team.OLD
    assert draft.winner(np.array([1, 0, 0, 0], bool)) == Team.NEITHER


def exactly(gate: Gate, share: float) -> tuple[float, float, int]:
    """Over all ways that counts can go: probabilities of adoption and early refusal, median of decided searches."""
    there = {(0, 0): 1.0}
    adopted, early, ended, median = 0.0, 0.0, 0.0, None
    for decided in range(1, gate.most + 1):
        after: dict[tuple[int, int], float] = {}
        for (wins, losses), chance in there.items():
            for counts, p in (((wins + 1, losses), share), ((wins, losses + 1), 1 - share)):
                verdict = gate.verdict(*counts)
                if verdict == "undecided":
                    after[counts] = after.get(counts, 0.0) + p * chance
                else:
                    ended += p * chance
                    adopted += p * chance * (verdict == "adopt")
                    early += p * chance * (verdict == "refuse" and decided < gate.most)
        if median is None and ended >= 0.5:
            median = decided
        there = after
    assert not there
    assert median is not None
    return adopted, early, median


@pytest.mark.parametrize(("share", "least", "most"), [(0.2, 0, 0.001), (0.45, 0, 0.01), (0.5, 0, 0.05), (0.6, 0.8, 1)])
def test_error_rates(share, least, most):
    adopted, _, until = exactly(Gate(), share)
    assert least <= adopted <= most
    if share == 0.2:
        assert until <= 25


def test_a_model_that_is_no_worse_is_hardly_ever_refused_early():
    adopted, early, _ = exactly(Gate(level=1e-9), 0.5)  # nobody is adopted, so that all may be refused
    assert adopted < 1e-6
    assert 0.001 < early <= 0.05


def test_counts_of_clients_add_up():
    gate = Gate()
    assert gate.verdict(30, 10) == "adopt"
    assert gate.verdict(15, 5) == gate.verdict(15, 5) == "undecided"
    some, others, all_of_them = gate.evidence(15, 5), gate.evidence(15, 5), gate.evidence(30, 10)
    assert_allclose(np.add(some, others), all_of_them)


def test_after_so_many_the_old_model_stays():
    assert Gate(most=10).verdict(5, 5) == "refuse"


@pytest.mark.parametrize("wrong", [{"level": 0}, {"stake": 1.0}, {"harm": 2}, {"harm_stake": -1}, {"most": 0}])
def test_settings_that_decide_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Gate(**wrong)

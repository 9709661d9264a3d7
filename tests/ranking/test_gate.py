"""The gate: probabilities of lists, replays, mixed lists, and the error rates of the bets, computed exactly."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedrank.ranking.gate import (
    FEWEST,
    Draft,
    Gate,
    Replayed,
    Team,
    prefix_probabilities,
    replay,
    team_draft,
)
from fedrank.types import Impression

SCORES = np.array([1.0, 0.5, 0.0, -1.0], np.float32)


def recorded(scores, shown, clicked, temperature=0.5, keep=0.5) -> Replayed:
    features = np.zeros((len(scores), 1), np.float32)
    one = Impression(features, np.asarray(scores, np.float32), np.asarray(shown), np.asarray(clicked, bool))
    return Replayed(one, temperature, keep)


def drawn(scores, temperature, keep, rng):
    noisy = np.asarray(scores) / temperature + rng.gumbel(size=len(scores))
    if rng.random() < keep:
        noisy[np.argmax(scores)] = np.inf
    return np.argsort(-noisy)


@pytest.mark.parametrize("keep", [0.0, 0.7, 1.0])
def test_probabilities_of_all_lists_add_up(keep):
    lists = list(permutations(range(4)))
    whole = [prefix_probabilities(SCORES, np.array(one), 0.5, keep)[-1] for one in lists]
    assert sum(whole) == pytest.approx(1)
    first = [prefix_probabilities(SCORES, np.array([d]), 0.5, keep)[0] for d in range(4)]
    assert sum(first) == pytest.approx(1)
    if keep == 1:
        assert first == [1, 0, 0, 0]


def test_probabilities_by_hand():
    found = prefix_probabilities(np.log([3.0, 2.0, 1.0]), np.array([1, 0]), 1.0, 0.5)
    assert_allclose(found, [0.5 * 2 / 6, 0.5 * 2 / 6 * 3 / 4])
    found = prefix_probabilities(np.log([3.0, 2.0, 1.0]), np.array([0]), 1.0, 0.5)
    assert_allclose(found, [0.5 + 0.5 * 3 / 6])


def test_scores_far_apart_are_no_problem():
    found = prefix_probabilities(np.array([1e6, 0.0, -1e6]), np.array([0, 1, 2]), 0.3, 0.5)
    assert found[0] == 1
    assert np.isfinite(found).all()


def test_the_same_model_changes_nothing():
    rng = np.random.default_rng(1)
    seen = [recorded(SCORES, drawn(SCORES, 0.5, 0.5, rng), rng.random(4) < 0.3) for _ in range(50)]
    found = replay(seen, [one.impression.scores for one in seen])
    assert found.new == pytest.approx(found.old)
    assert found.low == pytest.approx(0)
    assert found.effective == pytest.approx(50)
    assert not found.refused


ATTRACT = np.array([0.8, 0.2, 0.1, 0.1])  # of four documents; the first is what people look for
GAINS = np.append(1 / np.log2([2, 3, 4]), 0.0)


def expected_gain(scores) -> float:
    """Over all lists that can be drawn from these scores."""
    return sum(
        prefix_probabilities(np.array(scores), np.array(one), 0.5, 0.5)[-1] * ATTRACT[list(one)] @ GAINS
        for one in permutations(range(4))
    )


def seen_by(scores, searches, rng) -> list[Replayed]:
    lists = [drawn(scores, 0.5, 0.5, rng) for _ in range(searches)]
    return [recorded(scores, shown, rng.random(4) < ATTRACT[shown]) for shown in lists]


@pytest.mark.parametrize(("new", "better"), [((0.7, 0.9, 0.2, -1.0), False), ((1.0, 0.5, -0.4, -1.2), True)])
def test_a_replay_finds_what_the_new_model_would_get(new, better):
    seen = seen_by(SCORES, 8000, np.random.default_rng(7))
    found = replay(seen, [np.array(new)] * len(seen))
    assert found.new == pytest.approx(expected_gain(new), abs=0.02)
    assert found.low < expected_gain(new) - expected_gain(SCORES) < found.high
    assert (found.low > 0) == better
    assert found.refused == (not better)


def test_clipping_pulls_towards_what_was_shown():
    seen = seen_by(SCORES, 4000, np.random.default_rng(7))
    turned = -SCORES
    found = replay(seen, [turned] * len(seen))
    assert expected_gain(turned) < found.new < found.old
    assert found.refused


def test_the_interval_holds_in_19_of_20_cases():
    new = np.array([0.7, 0.9, 0.2, -1.0])
    rng = np.random.default_rng(11)
    truth = expected_gain(new) - expected_gain(SCORES)
    held = 0
    for _ in range(120):
        found = replay(seen_by(SCORES, 100, rng), [new] * 100)
        held += found.low <= truth <= found.high
    assert held >= 106


def test_few_searches_refuse_nobody():
    bad = [recorded(SCORES, [0, 1, 2], [1, 0, 0])] * (FEWEST - 1) + [recorded(SCORES, [3, 1, 2], [0, 0, 0])]
    new = [-SCORES] * len(bad)
    assert replay(bad, new).refused
    assert not replay(bad[1:], new[1:]).refused
    assert not replay([], []).refused


def test_a_list_that_cannot_have_been_drawn_counts_for_nothing():
    """With the first place kept for certain, another document in it is a damaged record."""
    seen = [recorded(SCORES, [3, 1, 2], [1, 1, 1], keep=1.0)] * 40
    assert replay(seen, [SCORES] * 40).effective == 0


def test_replay_wants_scores_for_every_search():
    with pytest.raises(ValueError, match="give the new model's scores"):
        replay([recorded(SCORES, [0], [0])], [])


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


def test_noise_makes_the_gate_more_careful():
    gate = Gate()
    assert gate.verdict(40, 10) == "adopt"
    assert gate.verdict(40, 10, noise=5) == "undecided"
    assert gate.verdict(5, 20) == "refuse"
    assert gate.verdict(5, 20, noise=5) == "undecided"
    assert gate.verdict(900, 300, noise=5) == "adopt"


def test_after_so_many_the_old_model_stays():
    assert Gate(most=10).verdict(5, 5) == "refuse"


@pytest.mark.parametrize("wrong", [{"level": 0}, {"stake": 1.0}, {"harm": 2}, {"harm_stake": -1}, {"most": 0}])
def test_settings_that_decide_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Gate(**wrong)

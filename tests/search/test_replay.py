"""Replays of recorded searches: probabilities of lists, estimates, and their intervals."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedrank.search.trial import FEWEST, Replayed, prefix_probabilities, replay
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

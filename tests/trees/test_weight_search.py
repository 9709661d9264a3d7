"""Weights on the simplex: the search against trying everything, and what it does with ties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.ranking.measures import Evaluator, evaluate
from fedrank.trees.mergers import best_weights
from tests.made_up import made_up_data


def scores_of(data, models: int, seed: int):
    """Models that see the grades through noise, each through its own."""
    rng = np.random.default_rng(seed)
    return np.stack([data.grades + rng.normal(0, 1 + m, data.documents) for m in range(models)])


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_two_models_get_the_best_weights_of_the_grid(seed):
    data = made_up_data(15, seed=seed)
    scores = scores_of(data, 2, seed)
    weights, value = best_weights(scores, Evaluator(data, ["ndcg@10"]), step=0.05)
    every = [evaluate(["ndcg@10"], (1 - a) * scores[0] + a * scores[1], data)[0] for a in np.arange(21) / 20]
    assert value == pytest.approx(max(every))
    assert every[round(weights[1] * 20)] == pytest.approx(max(every))
    assert weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("models", [3, 4])
def test_more_models_come_near_the_best_of_all_weights(models):
    data = made_up_data(40, seed=3)
    scores = scores_of(data, models, 3)
    evaluator = Evaluator(data, ["ndcg@10"])
    weights, value = best_weights(scores, evaluator)
    grid = [w for w in itertools.product(np.arange(11) / 10, repeat=models) if abs(sum(w) - 1) < 1e-9]
    every = evaluate(["ndcg@10"], np.array(grid) @ scores, data)[0]
    alone = evaluate(["ndcg@10"], scores, data)[0]
    assert value > alone.max()
    assert value > every.max() - 0.01  # one weight after the other may end on a lower hill
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1)


def test_a_model_that_is_always_right_gets_enough_weight():
    data = made_up_data(20, seed=1)
    scores = np.stack(
        [np.random.default_rng(0).normal(size=(data.documents)), 10.0 * data.grades, np.zeros(data.documents)]
    )
    weights, value = best_weights(scores, Evaluator(data, ["ndcg@10"]))
    assert value == 1.0
    assert weights[1] > 0


def test_equally_good_weights_end_near_equal_ones():
    data = made_up_data(20, seed=1)
    same = np.tile(data.grades.astype(np.float64), (2, 1))
    assert best_weights(same, Evaluator(data, ["ndcg@10"]))[0].tolist() == [0.5, 0.5]


def test_one_model_has_all_the_weight():
    data = made_up_data(5, seed=1)
    weights, value = best_weights(data.grades[None].astype(np.float64), Evaluator(data, ["ndcg@10"]))
    assert weights.tolist() == [1.0]
    assert value == 1.0

"""Measures in a machine's memory, against those of the processor."""

from __future__ import annotations

import numpy as np
import pytest

import fedrank as fr
from fedrank.ranking.cuda import measures
from fedrank.ranking.cuda.measures import EvaluatorOnDevice, leaves_of, why_not
from fedrank.ranking.measures import Evaluator
from tests.cuda_on_cpu import Processor
from tests.ranking.cuda.test_twins import problem

pytestmark = pytest.mark.build

ALL = ["ndcg@10", "ndcg@5/zero", "ndcg-linear@10", "map@10", "mrr@10/one", "err@10", "p@3", "ndcg@1"]


@pytest.mark.parametrize("shape", [(5, 7), (46, 41), (30, 300)])
@pytest.mark.parametrize("models", [1, 33, 130])
def test_values_are_the_same_bits(machine: Processor, shape: tuple[int, int], models: int) -> None:
    data = problem(models, *shape)
    data.grades[data.offsets[5] : data.offsets[6]] = 0  # nothing is relevant
    weights = np.random.default_rng(models).normal(size=(models, shape[0]))
    weights[0] = 0.0  # all documents tie
    evaluator = Evaluator(data, ALL)
    found = EvaluatorOnDevice(machine, evaluator)(weights, fr.rankers.Linear())
    assert np.array_equal(found, evaluator(weights, fr.rankers.Linear()))
    alone = EvaluatorOnDevice(machine, evaluator)(weights[-1], fr.rankers.Linear())
    assert np.array_equal(alone, found[:, -1])


def test_ties_in_features_are_ordered_by_the_same_rule(machine: Processor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "DOCUMENTS", 100)  # in many parts
    data = problem(4, 3, 60)
    data.features[:] = np.round(data.features)
    weights = np.round(np.random.default_rng(1).normal(size=(40, 3)) * 2)
    evaluator = Evaluator(data, ["ndcg@10", "mrr@10"])
    assert np.array_equal(
        EvaluatorOnDevice(machine, evaluator)(weights, fr.rankers.Linear()), evaluator(weights, fr.rankers.Linear())
    )


@pytest.mark.parametrize("count", [1, 7, 8, 128, 129, 1000, 6123])
def test_leaves_are_those_of_numpy(machine: Processor, count: int) -> None:
    rng = np.random.default_rng(count)
    sizes = rng.integers(1, 4, count)
    data = fr.RankingData(
        rng.normal(size=(int(sizes.sum()), 2)).astype(np.float32),
        rng.integers(0, 3, int(sizes.sum())).astype(np.int8),
        np.concatenate([[0], np.cumsum(sizes)]),
        np.arange(count).astype(str),
    )
    evaluator = Evaluator(data, ["ndcg@10", "err@10/zero"])
    weights = rng.normal(size=(3, 2))
    assert np.array_equal(
        EvaluatorOnDevice(machine, evaluator)(weights, fr.rankers.Linear()),
        evaluator(weights, fr.rankers.Linear()),
        equal_nan=True,
    )
    assert all(size <= 128 for size in np.diff([*leaves_of(count), count]))


def test_a_score_that_is_no_number_is_refused_in_the_same_words(machine: Processor) -> None:
    evaluator = Evaluator(problem(1, 3, 20), ["ndcg@10"])
    weights = np.ones((2, 3))
    weights[1, 1] = np.nan
    with pytest.raises(ValueError, match="model 1 scores a document of query 0 as NaN"):
        EvaluatorOnDevice(machine, evaluator)(weights, fr.rankers.Linear())


def test_what_has_no_twin_is_named() -> None:
    data = problem(1, 3, 20)
    assert why_not(Evaluator(data, ALL), fr.rankers.Linear()) == ""
    assert "map cannot be computed on a GPU" in why_not(Evaluator(data, ["map"]), fr.rankers.Linear())
    assert "ndcg@20 cannot be computed on a GPU" in why_not(
        Evaluator(data, ["ndcg@10", "ndcg@20"]), fr.rankers.Linear()
    )
    assert "Mlp cannot be evaluated on a GPU" in why_not(Evaluator(data, ALL), fr.rankers.Mlp())

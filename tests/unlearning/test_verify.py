"""Distances against outsiders and by hand; a receipt that says what is there."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kendalltau

from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.ranking.rankers import Linear
from fedrank.unlearning import verify as module
from fedrank.unlearning.history import History, HistoryWriter
from fedrank.unlearning.methods import Case, FedEraser, FineTune, Retrain
from fedrank.unlearning.verify import (
    Distance,
    _overlap,
    _shown,
    distance_to_retrained,
    rank_correlations,
    receipt,
    retrain,
    weight_distance,
)
from tests.made_up import made_up_data


def test_weights_by_hand():
    assert weight_distance(np.array([3.0, 4.0]), np.array([3.0, 0.0])) == pytest.approx((4 / 3, 9 / (5 * 3)))
    assert weight_distance(np.array([2.0, 0.0]), np.array([1.0, 0.0])) == pytest.approx((1, 1))
    relative, cosine = weight_distance(np.ones(2), np.zeros(2))
    assert math.isnan(relative)
    assert math.isnan(cosine)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1, 7, 1 << 20]))
def test_rankings_are_compared_as_scipy_does(seed, at_once):
    """With ties, queries of one document, models that rank nothing, and in parts."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 14, size=rng.integers(1, 6))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    scores = rng.integers(0, 4, size=(3, offsets[-1])).astype(np.float32)
    scores[2, : lengths[0]] = 1.0
    expected = np.empty((3, 3))
    for one in range(3):
        for other in range(3):
            values = []
            for begin, end in pairwise(offsets):
                a, b = scores[one, begin:end], scores[other, begin:end]
                if len(set(a)) > 1 and len(set(b)) > 1:
                    values.append(kendalltau(a, b).statistic)
            expected[one, other] = np.mean(values) if values else np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COMPARED_AT_ONCE", at_once)
        np.testing.assert_allclose(rank_correlations(scores, offsets), expected, atol=1e-12)


def test_rankings_by_hand():
    """1 > 2 > 3 against 1 > 3 > 2: two pairs agree, one does not; a reversed query of two; mean of 1/3 and -1."""
    scores = np.array([[3, 2, 1, 5, 6], [3, 1, 2, 6, 5]], dtype=np.float32)
    assert rank_correlations(scores, np.array([0, 3, 5]))[0, 1] == pytest.approx((1 / 3 - 1) / 2)


def test_overlap_by_hand():
    """Of twelve documents one model hides the last two, the other the first one and the last."""
    down = np.arange(12, 0, -1, dtype=np.float32)
    other = down.copy()
    other[0] = 0.5
    offsets = np.array([0, 5, 17])
    short = np.arange(5, dtype=np.float32)  # shown whole by any model: says nothing
    shown = [_shown(np.concatenate(pair), offsets) for pair in ([short, down], [-short, other])]
    assert _overlap(*shown) == 9 / 10
    assert math.isnan(_overlap(*(_shown(scores, np.array([0, 5])) for scores in (short, -short))))


def wide_data():
    return made_up_data(queries=20, features=4, longest=30, seed=3)


def test_unlearned_among_retrained():
    """One of them is one of them; the model before unlearning, which is another, is not."""
    rng = np.random.default_rng(0)
    centre = np.array([5.0, 1.0, -1.0, 0.5])
    seeds = centre + 0.1 * rng.normal(size=(6, 4))
    unlearned, before = centre.copy(), -centre
    got = distance_to_retrained(unlearned, seeds, Linear(), wide_data(), before)
    assert got.retrained == 6
    assert got.unlearned.weights < got.spread.weights < got.before.weights
    assert got.unlearned.cosine > got.spread.cosine > 0.99 > -0.99 > got.before.cosine
    assert got.unlearned.tau > got.spread.tau > 0.9 > -0.9 > got.before.tau
    assert got.unlearned.overlap > got.spread.overlap > got.before.overlap
    assert got.as_far["weights"] == got.as_far["cosine"] == 1.0  # every seed lies farther out than the centre
    assert got.within_spread
    far = distance_to_retrained(before, seeds, Linear(), wide_data())
    assert far.as_far == {"weights": 0.0, "cosine": 0.0, "tau": 0.0, "overlap": 0.0}
    assert far.within_spread is False
    assert far.before is None


def test_distances_by_hand():
    """On a line: the unlearned model at 4, retrained ones at 1, 2 and 5, and at 10 the one that was to forget."""
    retrained = np.array([[1.0], [2.0], [5.0]])
    got = distance_to_retrained(np.array([4.0]), retrained, Linear(), _line(), np.array([10.0]))
    assert got.unlearned.weights == pytest.approx((3 / 1 + 2 / 2 + 1 / 5) / 3)
    assert got.before.weights == pytest.approx((9 / 1 + 8 / 2 + 5 / 5) / 3)
    pairs = [1 / 2, 1 / 1, 4 / 5, 4 / 1, 3 / 5, 3 / 2]  # in both directions
    assert got.spread.weights == pytest.approx(sum(pairs) / 6)
    own = (3 / 1 + 2 / 2 + 1 / 5) / 3
    others = [(1 / 2 + 4 / 5 + 3 / 4) / 3, (1 / 1 + 3 / 5 + 2 / 4) / 3, (4 / 1 + 3 / 2 + 1 / 4) / 3]
    assert got.as_far["weights"] == pytest.approx(sum(other >= own for other in others) / 3)
    assert got.unlearned.tau == got.spread.tau == 1
    assert got.as_far["tau"] == 1
    assert math.isnan(got.unlearned.overlap)
    assert "overlap" not in got.as_far


def _line():
    values = np.array([[0.1], [0.5], [0.9]], dtype=np.float32)
    return RankingData(
        values, np.array([0, 1, 2], np.int8), np.array([0, 3]), np.array(["1"]), name="line", top_grade=2
    )


def test_one_retrained_model_has_no_spread():
    got = distance_to_retrained(np.ones(4), np.array([[1.0, 1.0, 1.0, 2.0]]), Linear(), wide_data())
    assert all(math.isnan(value) for value in got.spread)
    assert got.within_spread is None
    assert got.unlearned.weights == pytest.approx(1 / np.sqrt(7))


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 3\), the unlearned one \(4,\), so they cannot be compared"):
        distance_to_retrained(np.ones(4), np.ones((2, 3)), Linear(), wide_data())


@pytest.fixture
def case(tmp_path):
    rng = np.random.default_rng(0)
    with HistoryWriter(tmp_path / "history", 3, 5, 2) as writer:
        for number in (1, 3):
            writer.add(number, np.arange(3), rng.normal(size=(3, 5)).astype(np.float32), np.zeros(5))
    clients = make_clients(made_up_data(), 3, interactions=2)
    return Case(Federation(), clients, (2,), 1, np.zeros(5), np.ones(5), 4, History.open(tmp_path / "history"))


def test_receipt_says_what_happened(case):
    method = FedEraser(1)
    got = json.loads(json.dumps(receipt(case, method, method(case)), allow_nan=False))
    assert got["removed"] == {"clients": [2], "remaining": 2}
    assert got["method"] == {"name": "fed-eraser", "settings": {"steps": 1}, "exact": False}
    assert got["cost"]["interactions"] == 2 * 2 * 1
    assert got["cost"]["retraining_interactions"] == 4 * 2 * 2
    assert got["cost"]["share_of_retraining"] == 4 / 16
    assert got["verified"]["how"].startswith("not verified")
    assert receipt(case, Retrain(), Retrain()(case))["method"]["exact"]


def test_receipt_with_verification(case):
    method = FineTune(2)
    unlearned, again = method(case), retrain(case, method, lambda seed: case.first)
    assert again.seeds == (1, 2, 3, 4)
    assert np.array_equal(again.models[0], Retrain()(case).weights)
    verification = distance_to_retrained(unlearned.weights, again.models[1:], Linear(), made_up_data(longest=8))
    got = json.loads(json.dumps(receipt(case, method, unlearned, verification), allow_nan=False))
    assert got["verified"]["retrained"] == 3
    assert got["verified"]["unlearned"]["weights"] == verification.unlearned.weights
    assert got["verified"]["unlearned"]["overlap"] is None  # no query is that long, and JSON knows no NaN
    assert set(got["verified"]["spread"]) == set(Distance._fields)
    assert got["verified"]["before"] is None
    assert got["verified"]["within_spread"] in (True, False)


def test_an_exact_method_is_not_compared_with_itself(case):
    assert retrain(case, Retrain(), lambda seed: case.first).seeds == (2, 3, 4)

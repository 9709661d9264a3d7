"""The loss, its training and the noise of a certificate: by hand, against slow Python, and as properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.ranking import RankingData
from fedrank.privacy.accounting import GaussianEvent, delta_of, epsilon
from fedrank.privacy.noise import SecureSource
from fedrank.unlearning import certificate
from fedrank.unlearning.certificate import ListLoss, ReleaseNoise, epsilon_together, minimise
from tests.oracles import list_loss

ASKED = settings(max_examples=25, deadline=None)


def lists_of(features, weights, l2=0.1, queries=None):
    """The loss of lists that are given as nested sequences."""
    offsets = np.concatenate(([0], np.cumsum([len(one) for one in weights])))
    flat = np.concatenate([np.asarray(one, dtype=np.float32) for one in features])
    relevance = np.concatenate([np.asarray(one, dtype=np.float32) for one in weights])
    count = len(weights)
    data = RankingData(flat, np.zeros(len(flat), np.int8), offsets, np.arange(count).astype(str), relevance=relevance)
    return ListLoss(data, np.arange(count) if queries is None else np.array(queries), l2)


def drawn(seed, count=6, size=3, longest=5):
    """Random lists: (features, weights), some without clicks, some weights unknown."""
    rng = np.random.default_rng(seed)
    features, weights = [], []
    for _ in range(count):
        length = int(rng.integers(1, longest + 1))
        features.append(rng.random((length, size)).astype(np.float32))
        clicks = (rng.random(length) < 0.4) * rng.uniform(1, 20, length)
        weights.append(np.where(rng.random(length) < 0.1, np.nan, clicks).astype(np.float32))
    return features, weights


def plain(features, weights):
    return [
        (x.tolist(), [None if math.isnan(w) else float(w) for w in each])
        for x, each in zip(features, weights, strict=True)
    ]


def test_one_list_of_two_documents_by_hand():
    """Features 1 and 0, one click of weight 3 on the first: the loss is 3 log(1 + exp(-t)) + 0.1 t² / 2."""
    loss = lists_of([[[1.0], [0.0]]], [[3.0, 0.0]])
    for t in (-2.0, 0.0, 1.5):
        value, gradient, curve = loss.at(np.array([t]), curvature=True)
        share = 1 / (1 + math.exp(-t))
        assert value == pytest.approx(3 * math.log1p(math.exp(-t)) + 0.05 * t * t)
        assert gradient[0] == pytest.approx(-3 * (1 - share) + 0.1 * t)
        assert curve[0, 0] == pytest.approx(3 * share * (1 - share) + 0.1)
    [found], _ = minimise(loss, np.zeros(1), 1e-10)
    assert found == pytest.approx(30 / (1 + math.exp(found)))  # where the gradient is 0


def test_the_quadratic_by_hand():
    """Without clicks the loss is l2 / 2 t²: a gradient of at most tau means |t| <= tau / l2, on either side."""
    loss, tau = lists_of([[[1.0], [0.5]]], [[0.0, 0.0]], l2=0.25), 1e-3
    ends = [minimise(loss, np.array([side * 0.99 * tau / 0.25]), tau) for side in (-1, 1)]
    assert [passes for _, passes in ends] == [2, 2]  # both are good enough as they are
    apart = abs(ends[1][0][0] - ends[0][0][0])
    assert 1.97 * tau / 0.25 < apart <= 2 * tau / 0.25  # the sensitivity of the theorem, almost reached
    [outside], _ = minimise(loss, np.array([1.01 * tau / 0.25]), tau)
    assert abs(outside) < 1e-12  # one step of Newton's method is exact here


@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradient_against_plain_python(seed):
    features, weights = drawn(seed)
    model = np.random.default_rng(seed + 100).normal(size=3)
    value, gradient, curve = lists_of(features, weights, 0.3).at(model, curvature=True)
    expected = list_loss.loss_and_gradient(plain(features, weights), 0.3, model.tolist())
    assert value == pytest.approx(expected[0], abs=1e-12)
    np.testing.assert_allclose(gradient, expected[1], atol=1e-12)
    for j in range(3):
        move = 1e-5 * np.eye(3)[j]
        pair = (
            list_loss.loss_and_gradient(plain(features, weights), 0.3, (model + s * move).tolist())[1] for s in (1, -1)
        )
        up, down = map(np.array, pair)
        np.testing.assert_allclose(curve[j], (up - down) / 2e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_training_again_in_plain_python_ends_within_the_sensitivity(seed):
    features, weights = drawn(seed)
    l2, tolerance = 0.3, 1e-5
    slow = list_loss.retrained(plain(features, weights), l2, tolerance, 3)
    start = np.random.default_rng(seed).normal(size=3)
    fast, _ = minimise(lists_of(features, weights, l2), start, tolerance)
    assert np.linalg.norm(fast - slow) <= 2 * tolerance / l2


@ASKED
@given(st.integers(0, 10**6), st.floats(1e-4, 1.0), st.floats(-9, -4), st.floats(0, 30))
def test_every_start_ends_within_the_tolerance(seed, l2, exponent, away):
    features, weights = drawn(seed)
    loss, tolerance = lists_of(features, weights, l2), 10**exponent
    start = away * np.random.default_rng(seed).normal(size=3)
    found, passes = minimise(loss, start, tolerance)
    assert passes <= certificate.PASSES
    _, gradient = list_loss.loss_and_gradient(plain(features, weights), l2, found.tolist())
    assert math.hypot(*gradient) <= tolerance
    again, _ = minimise(loss, np.zeros(3), tolerance)
    assert np.linalg.norm(found - again) <= 2 * tolerance / l2


@ASKED
@given(st.integers(0, 10**6), st.floats(0, 100))
def test_rounding_errors_are_within_their_bound(seed, size):
    features, weights = drawn(seed, count=30)
    model = size * np.random.default_rng(seed).normal(size=3)
    loss = lists_of(features, weights, 0.01)
    _, exact = list_loss.loss_and_gradient(plain(features, weights), 0.01, model.tolist())
    error = np.linalg.norm(loss.at(model)[1] - exact)
    assert error <= loss.rounding(model) + 1e-15 * np.linalg.norm(exact)  # the oracle rounds, too


def test_blocks_do_not_matter(monkeypatch):
    features, weights = drawn(3, count=40)
    model = np.array([0.5, -1.0, 2.0])
    whole = lists_of(features, weights).at(model, curvature=True)
    monkeypatch.setattr(certificate, "LISTS", 7)
    for one, other in zip(whole, lists_of(features, weights).at(model, curvature=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_only_the_chosen_lists_count():
    features, weights = drawn(5, count=8)
    some = [0, 3, 6]
    chosen = lists_of(features, weights, queries=some).at(np.ones(3))
    alone = lists_of([features[i] for i in some], [weights[i] for i in some]).at(np.ones(3))
    assert chosen[0] == pytest.approx(alone[0])
    np.testing.assert_allclose(chosen[1], alone[1])


def test_what_no_theorem_covers_is_refused():
    with pytest.raises(ValueError, match="a click weight is negative or infinite, so the loss is not convex"):
        lists_of([[[1.0], [0.0]]], [[2.0, -0.1]])
    with pytest.raises(ValueError, match="a feature is infinite or NaN"):
        lists_of([[[np.nan], [0.0]]], [[2.0, 0.0]])
    with pytest.raises(ValueError, match="no list remains"):
        lists_of([[[1.0]]], [[1.0]], queries=np.zeros(0, np.int64))


def test_a_tolerance_below_the_rounding_error_is_refused():
    loss = lists_of([[[1.0], [0.0]]], [[3.0, 0.0]])
    with pytest.raises(
        ValueError, match=r"1e-20 cannot be verified, because rounding errors .* at least [1-9]e-1[0-9]"
    ):
        minimise(loss, np.zeros(1), 1e-20)
    far = np.array([1e12])  # scores are too large here, also where the gradient is short
    flat = lists_of([[[1.0], [1.0]]], [[3.0, 0.0]], l2=1e-15)
    with pytest.raises(ValueError, match="cannot be verified"):
        minimise(flat, far, 2e-3)


def test_a_start_that_is_not_finite_is_refused():
    with np.errstate(all="ignore"), pytest.raises(ValueError, match="the gradient is nan after 2 passes"):
        minimise(lists_of([[[1.0], [0.0]]], [[3.0, 0.0]]), np.array([np.nan]), 1e-6)


@pytest.mark.parametrize(("claimed", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-9)])
def test_the_noise_is_enough_and_hardly_more(claimed, delta):
    noise = ReleaseNoise(2e-5, 46, claimed, delta)
    assert delta_of(GaussianEvent(noise.multiplier), 1, claimed) <= delta
    assert delta_of(GaussianEvent(0.99 * noise.multiplier), 1, claimed) > delta
    # Rounding moves two models apart by one diagonal of the grid, at most, for which there is noise, too.
    assert noise.deviation >= noise.multiplier * (2e-5 + noise.step * math.sqrt(46))
    assert noise.deviation < 1.01 * noise.multiplier * 2e-5


def test_releases_are_on_the_grid_and_have_the_stated_deviation():
    noise = ReleaseNoise(1e-4, 4000, 1.0, 1e-6)
    model = np.random.default_rng(1).normal(size=4000)
    released = noise.release(model, SecureSource(bytes(32)))
    assert np.array_equal(released / noise.step, np.rint(released / noise.step))
    assert math.log2(noise.step) == math.floor(math.log2(noise.step))
    assert np.std(released - model) == pytest.approx(noise.deviation, rel=0.05)
    assert not np.array_equal(noise.release(model), noise.release(model))


def test_a_model_too_large_for_the_grid_is_refused():
    with pytest.raises(ValueError, match="too large for noise of"):
        ReleaseNoise(1e-12, 2, 1.0, 1e-6).release(np.array([1e6, 0.0]))


def test_releases_together_cost_less_than_their_sum():
    alone = ReleaseNoise(1.0, 1, 0.5, 1e-6).multiplier
    together = epsilon_together([alone] * 4, 1e-6)
    assert together == pytest.approx(epsilon(GaussianEvent(alone / 2), 1, 1e-6), abs=1e-6)
    assert 0.5 < together < 2

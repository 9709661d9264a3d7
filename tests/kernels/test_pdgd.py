"""PDGD's parts against the paper's own formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedrank.kernels import pdgd
from fedrank.kernels.chance import stream
from tests.oracles import pdgd as oracle


def draw_list(scores, number=0, key=1):
    """One Plackett-Luce list from the kernel."""
    scores = np.asarray(scores, dtype=np.float32)
    n = len(scores)
    scratch, exps, draws, early = np.empty(n), np.empty(n), np.empty(n), np.empty(n, np.int64)
    ranks, shown = np.empty(n, np.int64), np.empty(10, np.int64)
    spread = pdgd.rates(scores, n, scratch, exps)
    chance = np.uint64(stream(np.uint64(key), number))
    size = pdgd.plackett_luce(scores, exps, spread, n, chance, draws, np.empty(n), scratch, early, ranks, shown)
    return shown[:size].copy(), chance


def weights_of(scores, shown, clicked, considered):
    """The kernel's scales by position, in both of its ways of computing them."""
    scores = np.asarray(scores, dtype=np.float32)
    n, size = len(scores), len(shown)
    exps, fast, slow = np.empty(n), np.zeros(size), np.zeros(size)
    spread = pdgd.rates(scores, n, np.empty(n), exps)
    shown, clicked = np.asarray(shown, dtype=np.int64), np.asarray(clicked, dtype=np.bool_)
    pdgd.pair_weights(scores, exps, spread, n, shown, size, clicked, considered, fast)
    pdgd.pair_weights_in_logarithms(scores, n, shown, size, clicked, considered, slow)
    return fast[:size], slow[:size]


@pytest.mark.parametrize("scores", [[0.0, 0.0, 0.0, 0.0], [1.0, 0.0, -1.0, 0.5], [4.0, -2.0, 0.0, 1.0]])
def test_lists_follow_plackett_luce(scores):
    draws = 40_000
    seen = dict.fromkeys(itertools.permutations(range(4)), 0)
    for i in range(draws):
        seen[tuple(draw_list(scores, i)[0].tolist())] += 1
    expected = {order: draws * oracle.list_probability(scores, order) for order in seen}
    common = [order for order in seen if expected[order] >= 5]
    observed = [seen[order] for order in common]
    awaited = [expected[order] for order in common]
    observed.append(draws - sum(observed))
    awaited.append(draws - sum(awaited))
    chi2 = sum((o - e) ** 2 / max(e, 1e-9) for o, e in zip(observed, awaited, strict=True) if e > 1e-6)
    assert stats.chi2.sf(chi2, len(common) - 1) > 1e-6


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 5.0, 40.0, 300.0, 2000.0, 1e6])
@pytest.mark.parametrize("documents", [1, 2, 9, 10, 11, 60])
def test_lists_equal_gumbel_sorting(documents, spread):
    rng = np.random.default_rng(documents)
    for number in range(20):
        scores = (spread * rng.standard_normal(documents)).astype(np.float32)
        shown, chance = draw_list(scores, number)
        assert shown.tolist() == oracle.gumbel_list(scores.astype(float), chance)


def test_two_documents_by_hand():
    # One pair, equal scores: rho = 1/2 and slope = 1/2 x 1/2.
    fast, slow = weights_of([0.0, 0.0], [0, 1], [True, False], 2)
    assert fast == pytest.approx([0.5 * 0.25, -0.5 * 0.25])
    assert slow == pytest.approx(fast)


def test_three_documents_by_hand():
    # Scores ln 1, ln 2, ln 4; shown 2, 0; document 0 clicked. P(2, 0) = 4/7 x 1/3, P(0, 2) = 1/7 x 4/6.
    fast, _ = weights_of(np.log([1.0, 2.0, 4.0]), [2, 0], [False, True], 2)
    swapped = (1 / 7 * 4 / 6) / (1 / 7 * 4 / 6 + 4 / 7 * 1 / 3)
    assert fast == pytest.approx([-swapped * 4 / 25, swapped * 4 / 25], rel=1e-6)


@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0, 30.0])
@pytest.mark.parametrize("documents", [2, 5, 10, 25])
def test_pair_weights_equal_brute_force(documents, spread):
    rng = np.random.default_rng(7)
    for _ in range(15):
        scores = (spread * rng.standard_normal(documents)).astype(np.float32)
        shown = rng.permutation(documents)[:10]
        clicked = rng.random(len(shown)) < 0.4
        considered = int(rng.integers(1, len(shown) + 1))
        expected = oracle.position_scales(scores.astype(float), shown, clicked, considered)
        fast, slow = weights_of(scores, shown, clicked, considered)
        assert fast == pytest.approx(expected, rel=1e-8, abs=1e-18)
        assert slow == pytest.approx(expected, rel=1e-8, abs=1e-18)


@pytest.mark.parametrize("spread", [0.0, 2.0, 20.0])
def test_pair_weights_of_a_whole_list_equal_brute_force(spread):
    """A list from a log may be longer than ten, and hold every document that there is."""
    rng = np.random.default_rng(8)
    for documents in (2, 11, 20):
        scores = (spread * rng.standard_normal(documents)).astype(np.float32)
        shown = np.arange(documents)
        clicked = shown == rng.integers(documents)
        expected = oracle.position_scales(scores.astype(float), shown, clicked, documents)
        fast, slow = weights_of(scores, shown, clicked, documents)
        assert fast == pytest.approx(expected, rel=1e-8, abs=1e-18)
        assert slow == pytest.approx(expected, rel=1e-8, abs=1e-18)


@pytest.mark.parametrize("clicked", [[], [0], [3], [11], [2, 12], [0, 19]])
def test_a_logged_list_is_taken_as_it_stands(clicked):
    grades = np.zeros(20, dtype=np.int8)
    grades[clicked] = 1
    shown, marks = np.empty(20, np.int64), np.empty(20, np.bool_)
    considered = pdgd.as_logged(grades, 20, shown, marks)
    assert considered == (min(20, max(clicked) + 2) if clicked else 0)
    assert shown.tolist() == list(range(20))
    assert np.flatnonzero(marks).tolist() == clicked


@pytest.mark.parametrize("spread", [100.0, 499.0, 800.0, 1e5, 1e30])
def test_scores_far_apart_stay_finite(spread):
    scores = np.linspace(-spread / 2, spread / 2, 30)
    for shown in (np.arange(10), np.arange(29, 19, -1), np.arange(0, 30, 3)):
        for weights in weights_of(scores, shown, np.arange(10) % 3 == 0, 10):
            assert np.isfinite(weights).all()
            assert weights.sum() == pytest.approx(0.0, abs=1e-9)


def test_a_hopeless_order_is_fully_corrected():
    # The clicked document stands below one that scores far higher: rho is 0, its own order was all but certain. In the
    # opposite order rho is 1; the slope e^-d / (1 + e^-d)^2 is what is left.
    for distance in (30.0, 600.0):
        fast, slow = weights_of([0.0, distance], [0, 1], [True, False], 2)
        slope = math.exp(-distance)
        assert fast[0] == pytest.approx(slope, rel=1e-6)
        assert slow[0] == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_end_all_the_same(bad):
    scores = np.array([0.5, bad, 1.0] * 8)
    shown, _ = draw_list(scores)
    assert len(shown) == 10
    weights_of(scores, np.arange(10), np.arange(10) % 2 == 0, 10)

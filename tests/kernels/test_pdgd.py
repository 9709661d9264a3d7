"""PDGD's parts against the paper's own formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from fedrank.kernels import pdgd, show
from fedrank.kernels.chance import stream
from fedrank.kernels.records import Candidates, Display, Page, Race
from tests.oracles import pdgd as oracle


def draw_list(scores, number=0, key=1, temperature=1.0, keep=0.0):
    """One list from the kernel, of documents whose only feature is their score."""
    scores = np.asarray(scores, dtype=np.float32)
    n = len(scores)
    page = Page(np.empty(n, np.float32), np.empty(n), np.empty(10, np.int64), np.empty(10, np.bool_))
    race = Race(*(np.empty(n) for _ in range(3)), *(np.empty(n, np.int64) for _ in range(2)))
    chance = np.uint64(stream(np.uint64(key), number))
    table = Candidates(scores.reshape(n, 1), np.array([0, n]))
    display = Display(False, temperature, keep)
    size, _ = show.show(np.ones(1, np.float32), 0, table, 0, display, chance, page, race)
    return page.shown[:size].copy(), chance


def weights_of(scores, shown, clicked, considered, temperature=1.0, keep=0.0):
    """The kernel's scales by position, in both of its ways of computing them."""
    scores = np.asarray(scores, dtype=np.float32)
    n, size = len(scores), len(shown)
    fast, slow = np.zeros(size), np.zeros(size)
    page = Page(scores, np.empty(n), np.asarray(shown, dtype=np.int64), np.asarray(clicked, dtype=np.bool_))
    spread = show.rates(scores, n, temperature, np.empty(n), page.rates)
    display = Display(False, temperature, keep)
    pdgd.pair_weights(page, spread, n, size, considered, display, fast)
    pdgd.pair_weights_in_logarithms(page, n, size, considered, display, page.scores, display.temperature, slow)
    return fast, slow


@pytest.mark.long
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
def test_positions_count_down_to_the_one_after_the_last_click(clicked):
    grades, marks = np.zeros(20, dtype=np.int8), np.empty(20, np.bool_)
    grades[clicked] = 1
    show.click_what_has_a_grade(grades, 20, marks)
    assert np.flatnonzero(marks).tolist() == clicked
    assert pdgd.considered_positions(marks, 20) == (min(20, max(clicked) + 2) if clicked else 0)


SETTINGS = [(0.3, 0.0), (1.0, 0.5), (0.3, 0.7), (2.0, 0.25), (1.0, 1.0), (0.5, 1.0)]


@pytest.mark.long
@pytest.mark.parametrize(("temperature", "keep"), SETTINGS)
def test_lists_follow_the_mixture(temperature, keep):
    scores, draws = [0.4, 0.0, -0.3, 0.6], 30_000
    seen = dict.fromkeys(itertools.permutations(range(4)), 0)
    for i in range(draws):
        seen[tuple(draw_list(scores, i, temperature=temperature, keep=keep)[0].tolist())] += 1
    expected = {order: draws * oracle.list_probability(scores, order, temperature, keep) for order in seen}
    assert sum(expected.values()) == pytest.approx(draws)
    assert all(seen[order] == 0 for order in seen if expected[order] == 0)
    common = [order for order in seen if expected[order] >= 5]
    chi2 = sum((seen[order] - expected[order]) ** 2 / expected[order] for order in common)
    assert stats.chi2.sf(chi2, len(common) - 1) > 1e-6


@pytest.mark.parametrize(("temperature", "keep"), SETTINGS)
@pytest.mark.parametrize("spread", [0.0, 1.0, 20.0, 2000.0])
def test_lists_equal_gumbel_sorting_with_temperature_and_kept_places(temperature, keep, spread):
    rng = np.random.default_rng(3)
    for number in range(30):
        scores = (spread * rng.standard_normal(14)).astype(np.float32)
        shown, chance = draw_list(scores, number, temperature=temperature, keep=keep)
        assert shown.tolist() == oracle.gumbel_list(scores.astype(float), chance, 10, temperature, keep)


@pytest.mark.parametrize(("temperature", "keep"), SETTINGS)
@pytest.mark.parametrize("documents", [2, 5, 12])
def test_pair_weights_of_the_mixture_equal_brute_force(temperature, keep, documents):
    rng = np.random.default_rng(5)
    for _ in range(25):
        scores = rng.standard_normal(documents).astype(np.float32)
        shown = rng.permutation(documents)[:10]
        if keep == 1:  # only such lists are ever shown
            shown = np.concatenate([[scores.argmax()], shown[shown != scores.argmax()]])[:10]
        clicked = rng.random(len(shown)) < 0.4
        considered = int(rng.integers(1, len(shown) + 1))
        expected = oracle.position_scales(
            scores.astype(float).tolist(), shown.tolist(), clicked, considered, temperature, keep
        )
        for weights in weights_of(scores, shown, clicked, considered, temperature, keep):
            assert weights == pytest.approx(expected, rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
@pytest.mark.parametrize("others", [(0.1, -0.4), (0.9, -0.4), (0.9, 0.7)])
def test_neither_of_two_equal_documents_is_preferred_whatever_place_is_kept(keep, temperature, others):
    """Over all lists and clicks: what one of them gains over the other when it was clicked cancels out.

    Clicks depend on documents and on whether places are looked at, and the weights have to undo the latter. With the
    weights of plain PDGD the kept document would win. (That kernels have these weights is tested above.)
    """
    scores = [0.5, 0.5, *others]
    attraction, looks = [0.7, 0.7, 0.3, 0.5], [1.0, 0.6, 0.3, 0.1]
    preferred, naive = 0.0, 0.0
    for shown in itertools.permutations(range(4)):
        chance = oracle.list_probability(scores, shown, temperature, keep)
        first, second = shown.index(0), shown.index(1)
        for a, b, sign in ((first, second, 1), (second, first, -1)):  # a is clicked, b is not
            click = looks[a] * attraction[shown[a]] * (1 - looks[b] * attraction[shown[b]])
            if chance:
                preferred += sign * chance * click * oracle.kept_rho(scores, list(shown), a, b, temperature, keep)
            naive += sign * chance * click * oracle.kept_rho(scores, list(shown), a, b, temperature, 0.0)
    assert preferred == pytest.approx(0.0, abs=1e-12)
    if keep and max(others) < 0.5:  # one of the two is kept
        assert abs(naive) > 1e-3, "the test would hold for any weights"


@pytest.mark.parametrize(("temperature", "keep"), [(1.0, 0.0), *SETTINGS])
@pytest.mark.parametrize("hidden", [0, 4])
@pytest.mark.parametrize("clip", [0.0, 0.02])
def test_learning_from_a_list_that_nobody_drew_equals_the_oracle(temperature, keep, hidden, clip):
    """Any list and any clicks, shown by another model: weights of pairs are its own, gradients those of today's."""
    rng = np.random.default_rng(11)
    learned = 0
    for candidates, places in ((2, 2), (3, 1), (7, 4), (12, 10), (40, 10), (40, 3)):
        features = rng.random((candidates, 5), dtype=np.float32)
        weights = rng.standard_normal(5 if hidden == 0 else hidden * 7).astype(np.float32)
        scores = rng.standard_normal(candidates).astype(np.float32)  # when it was shown
        shown = rng.permutation(candidates)[:places]
        if keep == 1:  # other lists are impossible
            shown = np.concatenate([[scores.argmax()], shown[shown != scores.argmax()]])[:places]
        clicked = rng.random(places) < 0.5
        before = rng.standard_normal(len(weights))
        master, given = before.copy(), (features.copy(), scores.copy(), shown.copy(), clicked.copy())
        display, steps = (False, temperature, keep), (0.3, True, 0.0, clip)
        moved = pdgd.learn_impression(
            master, weights, hidden, features, scores, shown, clicked, display, steps, np.empty(len(weights))
        )
        considered = min(places, max([i + 2 for i in range(places) if clicked[i]], default=0))
        scales = oracle.position_scales(
            scores.astype(float).tolist(), shown.tolist(), clicked, considered, temperature, keep
        )
        documents = [oracle.score_and_gradient(weights.astype(float), hidden, features[d])[1] for d in shown]
        gradient = sum(scale * each for scale, each in zip(scales / temperature, documents, strict=True))
        expected = oracle.clipped(gradient, clip)
        assert master - before == pytest.approx(0.3 * expected, rel=2e-4, abs=1e-7)
        assert moved == (considered >= 2)
        learned += bool(np.abs(expected).max() > 1e-4)
        for array, copy in zip((features, scores, shown, clicked), given, strict=True):
            assert np.array_equal(array, copy), "what was shown stays as it was"
    assert learned >= 3


def test_a_live_list_by_hand():
    # Candidates scored ln 1, ln 2, ln 4 when they were shown; of the two that were shown the second was clicked. The
    # model has changed since: a linear one has the same gradients, whatever its weights are.
    features = np.eye(3, dtype=np.float32)
    master, weights = np.zeros(3), np.array([9.0, -9.0, 1.0], dtype=np.float32)
    scores = np.log(np.array([1.0, 2.0, 4.0])).astype(np.float32)
    shown, clicked = np.array([2, 0]), np.array([False, True])
    pdgd.learn_impression(
        master, weights, 0, features, scores, shown, clicked, (False, 1.0, 0.0), (1.0, False, 0.0, 0.0), np.empty(0)
    )
    weight = (1 / 7 * 4 / 6) / (1 / 7 * 4 / 6 + 4 / 7 * 1 / 3) * 4 / 25
    assert master == pytest.approx([weight, 0.0, -weight], rel=1e-6)


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

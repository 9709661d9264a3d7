"""What people would have clicked: against the slow version, by hand, and against a truth that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.synthetic_shown import (
    STATIC,
    Browsing,
    Relevant,
    Showing,
    made_up_queries,
    simulate_shown,
)
from fedrank.ranking import estimate
from fedrank.ranking.estimate import (
    BIASED,
    DOUBLY_ROBUST,
    IPS,
    MAX_RATIO,
    REPLAY,
    CannotTell,
    engine_order,
    estimate_clicks,
    new_places,
)
from fedrank.ranking.propensity import ShownResults, given_propensities
from tests.oracles import propensity as oracle


def results(log):
    return ShownResults.of_lists(log.lists, log.clicks, log.first, log.query)


def row_of(found, name, bias=""):
    return next(row for row in found.rows if row.name == name and bias in row.bias)


def swapped(truth, searches, seed=1, browsing=None):
    """Lists of one ranker with random swaps of adjacent results, the ranker's own lists, and the logged swaps."""
    browsing = browsing or Browsing()
    log, rng = simulate_shown(truth, searches, seed, browsing=browsing, showing=STATIC), np.random.default_rng(seed)
    lists, rows = log.lists.copy(), np.arange(searches)
    upper, turned = rng.integers(lists.shape[1] - 1, size=searches), rng.random(searches) < 0.5
    some, at = rows[turned], upper[turned]
    lists[some, at], lists[some, at + 1] = log.lists[some, at + 1], log.lists[some, at]
    positions = np.arange(lists.shape[1])
    chance = browsing.slope(positions) * truth.relevance[lists] + browsing.intercept(positions)
    clicks = (rng.random(lists.shape) < chance).astype(np.uint8)
    return replace(log, lists=lists, clicks=clicks), log.lists, np.where(turned, -1, 1) * (upper + 1)


def gained(log, scores, positions):
    """True clicks per list more than with the engine's order."""
    engine = log.truth.features @ log.rankers[0]
    return log.clicks_a_list(scores, positions=positions) - log.clicks_a_list(engine, positions=positions)


def hundred(lists, clicks):
    """The same lists and clicks for each of 100 queries, with documents of their own."""
    lists = np.concatenate([np.array(lists) + 10 * query for query in range(100)])
    clicks = np.tile(np.array(clicks), (100, 1))
    return ShownResults.of_lists(lists, clicks, np.zeros(len(lists), int), np.repeat(np.arange(100), len(lists) // 100))


def test_a_list_turned_around_by_hand():
    # Looked at: 1 and .5. The first document is clicked in one of two lists, the second, below it, in one of two.
    shown = hundred([[0, 1], [0, 1]], [[1, 1], [0, 0]])
    by = given_propensities([1.0, 0.5])
    found = estimate_clicks(shown, np.tile([0.0, 1.0], 200), np.ones((1000, 1), np.float32), by=by)
    # 1/2 x .5 of the one that goes down, 1/2 x 2 of the one that goes up
    for name in (IPS, DOUBLY_ROBUST):
        assert row_of(found, name).model.value == pytest.approx(0.25 + 1.0)
        assert row_of(found, name).logged == pytest.approx(1.0)
        assert row_of(found, name).difference.value == pytest.approx(0.25)
    replayed = row_of(found, REPLAY)
    assert replayed.model.value == pytest.approx(replayed.logged), "both were clicked together"
    assert replayed.note == BIASED
    assert (found.searches, found.queries, found.clicks, found.positions) == (200, 100, 200, 2)
    assert found.moved == 1
    # No document moved, so trust bias is not identifiable, and the model is not called better.
    assert found.verdict.startswith("better than what was shown only if users do not trust high positions: +0.2500")
    assert "not shown to be better" in found.verdict
    assert (found.finding, found.trust) == ("inconclusive", None)
    assert "0 documents that moved do not separate trust bias" in found.no_trust


def test_the_order_that_was_shown_changes_nothing():
    log = simulate_shown(made_up_queries(150), 4000, popularity=0.0)
    shown = results(log)
    found = estimate_clicks(shown, -shown.position.astype(float), log.truth.features)
    assert [row.bias for row in found.rows] == ["position", "position", "trust", "trust", ""]
    for row in found.rows:
        assert row.difference.value == pytest.approx(0)
        assert row.difference.low == pytest.approx(0)
    assert found.moved == 0
    assert found.finding == "inconclusive"


def test_places_are_those_of_the_page():
    lists = np.array([[3, 4, 5], [6, 7, -1]])
    shown = ShownResults.of_lists(lists, np.zeros((2, 3)), np.array([0, 10]), np.array([0, 0]))
    assert new_places(shown, np.array([1.0, 3.0, 3.0, 0.0, 1.0])).tolist() == [2, 0, 1, 11, 10]


@pytest.mark.parametrize("trust", [0.0, 0.3])
def test_equal_to_the_oracle(trust):
    browsing, positions = Browsing(1.5, trust), np.arange(6)
    log = simulate_shown(made_up_queries(100, documents=6), 1000, browsing=browsing, popularity=0.0)
    shown = results(log)
    scores = np.random.default_rng(1).normal(size=len(shown))
    slope = browsing.slope(positions) / browsing.slope(0)
    extra = browsing.intercept(positions) - slope * browsing.intercept(0)
    found = estimate_clicks(shown, scores, log.truth.features, by=given_propensities(slope, extra))
    expected = oracle.clicks_with(shown, scores, slope, extra, MAX_RATIO)
    assert row_of(found, IPS).model.value == pytest.approx(expected)


def sampled(population, rng, queries):
    """Some queries of a population, each by itself even if it is drawn twice."""
    rows = population.candidates[rng.integers(population.queries, size=queries)]
    own = np.arange(rows.size).reshape(rows.shape)
    return Relevant(population.features[rows.ravel()], population.relevance[rows.ravel()], own, population.best), rows


def covered(repeats, seed):
    """How often intervals held the truth, and how the estimates lie around it, in standard errors."""
    population, rng = made_up_queries(1000, documents=6, seed=seed), np.random.default_rng(seed)
    scores = population.features @ (population.best + 0.3 * rng.normal(size=10))
    inside, away = [], []
    for repeat in range(repeats):
        truth, rows = sampled(population, rng, 150)
        log = simulate_shown(truth, 4500, seed=repeat, popularity=0.0)
        shown = results(log)
        try:
            found = estimate_clicks(shown, scores[rows.ravel()][shown.pair], truth.features)
        except CannotTell:
            continue
        true = replace(log, truth=population).clicks_a_list(scores, np.ones(population.queries), found.positions)
        for name in (IPS, DOUBLY_ROBUST):
            one = row_of(found, name, "position").model
            inside.append(one.low <= true <= one.high)
            away.append((one.value - true) / ((one.high - one.low) / 3.92))
    return np.mean(np.reshape(inside, (-1, 2)), axis=0), np.reshape(away, (-1, 2))


@pytest.mark.long
def test_intervals_hold_the_truth_about_as_often_as_they_say():
    """95 % of 200 repeats, give or take 3.3 standard errors; the benchmark has 1,000."""
    inside, away = covered(200, seed=2)
    assert len(away) >= 190, "few logs of this size tell too little"
    assert np.all(inside >= 0.90), inside
    assert np.all(inside <= 0.995), inside
    assert np.all(np.abs(away.mean(axis=0)) < 0.35)


def test_replay_is_biased_and_the_others_are_not():
    """The logging order itself, had it been shown all the time: replay calls it better than the best ranker."""
    log = simulate_shown(made_up_queries(300), 20_000, showing=Showing(skill=0.3), browsing=Browsing(1.5))
    shown = results(log)
    best = (log.truth.features @ log.truth.best)[shown.pair]
    found = estimate_clicks(shown, best, log.truth.features)
    true = log.clicks_a_list(log.truth.features @ log.truth.best, positions=found.positions)
    assert row_of(found, IPS).model.low <= true <= row_of(found, IPS).model.high
    gained = true / row_of(found, IPS).logged
    assert row_of(found, REPLAY).model.value / row_of(found, REPLAY).logged < gained - 0.2


def test_only_some_searches_are_counted():
    log = simulate_shown(made_up_queries(200), 8000)
    shown = results(log)
    scores = (log.truth.features @ log.truth.best)[shown.pair]
    late = shown.search >= 6000
    found = estimate_clicks(shown, scores, log.truth.features, counted=late)
    whole = estimate_clicks(shown, scores, log.truth.features)
    assert found.searches == 2000
    assert found.propensities.slope.tobytes() == whole.propensities.slope.tobytes()
    wide, narrow = (row_of(one, IPS).model for one in (found, whole))
    assert wide.high - wide.low > narrow.high - narrow.low
    with pytest.raises(ValueError, match="no search is counted"):
        estimate_clicks(shown, scores, log.truth.features, counted=np.zeros(len(shown), bool))


def test_what_cannot_be_told_is_not():
    truth = made_up_queries(100)
    log = simulate_shown(truth, 2000, showing=STATIC)
    shown = results(log)
    with pytest.raises(CannotTell, match="cannot be estimated from this log: propensities are not identifiable"):
        estimate_clicks(shown, np.zeros(len(shown)), truth.features)
    few = simulate_shown(made_up_queries(10), 4000)
    shown = results(few)
    with pytest.raises(CannotTell, match="clicks have the weight of 4 queries, but at least 30"):
        estimate_clicks(shown, np.zeros(len(shown)), few.truth.features)
    silent = hundred([[0, 1]], [[0, 0]])
    with pytest.raises(CannotTell, match="nothing was clicked in the first 2 positions"):
        estimate_clicks(silent, np.zeros(200), np.ones((1000, 1), np.float32), by=given_propensities([1.0, 0.5]))
    # The model would show first what was always shown in a position of which nothing is known.
    deep = hundred([[0, 1, 2]], [[1, 0, 0]])
    with pytest.raises(
        CannotTell, match="of what the model would show was never shown in a position with a known propensity"
    ):
        estimate_clicks(
            deep, np.tile([0.0, 1.0, 2.0], 100), np.ones((1000, 1), np.float32), by=given_propensities([1.0, 0.5])
        )


def test_scores_must_fit():
    shown = hundred([[0, 1]], [[1, 0]])
    with pytest.raises(ValueError, match="3 scores for 200 results; give one per result"):
        estimate_clicks(shown, np.zeros(3), np.ones((1000, 1), np.float32))
    with pytest.raises(ValueError, match="scores must be finite"):
        estimate_clicks(shown, np.full(200, np.nan), np.ones((1000, 1), np.float32))


def test_doubly_robust_helps_where_weights_are_cut(monkeypatch):
    log = simulate_shown(made_up_queries(300), 20_000, showing=Showing(skill=-0.5))
    shown, truth = results(log), log.truth
    scores = truth.features @ truth.best
    monkeypatch.setattr(estimate, "MAX_RATIO", 1.5)
    positions = np.arange(10)
    found = estimate_clicks(
        shown, scores[shown.pair], truth.features, by=given_propensities(log.browsing.examined(positions))
    )
    assert found.clipped > 0.3
    true = log.clicks_a_list(scores)
    ips, robust = (abs(row_of(found, name).model.value - true) for name in (IPS, DOUBLY_ROBUST))
    assert robust < 0.75 * ips


def test_a_swap_counts_positions_from_the_first_page():
    """On the second page, positions 11 and 12 were swapped, then 1 and 2, then 13 and 14 of two pages."""
    lists = np.tile(np.arange(3), (3, 1))
    shown = ShownResults.of_lists(lists, np.zeros_like(lists), np.array([10, 10, 10]), np.zeros(3, int))
    found = engine_order(shown, swap=np.array([-11, -1, -13])).position
    assert found.reshape(3, 3).tolist() == [[11, 10, 12], [10, 11, 12], [10, 11, 12]]


def test_the_engines_order_by_hand():
    # Query 0 has documents 0 and 1, shown 0-1 three times and 1-0 once; query 1 has 2 and 3, each order once.
    lists = np.array([[0, 1], [1, 0], [0, 1], [0, 1], [2, 3], [3, 2]])
    shown = ShownResults.of_lists(lists, np.zeros((6, 2)), np.zeros(6, int), np.array([0, 0, 0, 0, 1, 1]))
    found = engine_order(shown)
    assert found.position.reshape(6, 2).tolist() == [[0, 1], [1, 0], [0, 1], [0, 1], [-1, -1], [-1, -1]]
    swaps = engine_order(shown, swap=np.array([1, -1, 0, 1, 1, -1]))
    assert swaps.position.reshape(6, 2).tolist() == [[0, 1], [1, 0], [0, 1], [0, 1], [0, 1], [1, 0]]
    scores = engine_order(shown, scores=np.array([2, 1, 1, 2, 2, 1, 2, 1, 5, 6, 6, 5], float))
    assert scores.position.reshape(6, 2).tolist() == [[0, 1], [1, 0], [0, 1], [0, 1], [1, 0], [0, 1]]


def test_the_most_common_order_is_that_of_the_engine():
    log, engine, swap = swapped(made_up_queries(200), 8000)
    shown = results(log)
    at = {int(pair): position for row in engine for position, pair in enumerate(row)}
    true = np.array([at[int(pair)] for pair in shown.pair])
    assert np.array_equal(engine_order(shown, swap=swap).position, true)
    found = engine_order(shown).position
    known = found >= 0
    assert known.mean() > 0.9
    assert np.mean(found[known] == true[known]) > 0.999
    # Three rankers answer a third of the searches each, and none of them is the engine.
    several = results(simulate_shown(made_up_queries(200), 8000))
    assert np.mean(engine_order(several).position >= 0) < 0.3


def test_the_model_is_compared_with_the_engine_and_not_with_its_randomised_lists():
    """The engine's own order: better than the lists that were sampled from it, but not better than the engine."""
    truth = made_up_queries(300)
    log = simulate_shown(truth, 20_000, showing=Showing(rankers=1, temperature=1.0, skill=0.9))
    shown, own = results(log), truth.features @ log.rankers[0]
    blind = estimate_clicks(shown, own[shown.pair], truth.features)
    assert blind.verdict.startswith("better than what was shown, not shown to be better than the engine: +0.")
    assert blind.finding == "inconclusive"
    found = estimate_clicks(shown, own[shown.pair], truth.features, engine=engine_order(shown, log.scores.ravel()))
    assert found.engine == "sampling scores in the log"
    assert found.difference.value == pytest.approx(0)
    assert "not significantly different from the engine's order" in found.verdict
    best = truth.features @ truth.best
    better = estimate_clicks(shown, best[shown.pair], truth.features, engine=engine_order(shown, log.scores.ravel()))
    assert better.finding == "better"
    assert better.verdict.startswith("the model's order of the shown results would get more clicks than the engine's")
    assert better.difference.low <= gained(log, best, better.positions) <= better.difference.high
    worse = estimate_clicks(shown, -own[shown.pair], truth.features, engine=engine_order(shown, log.scores.ravel()))
    assert worse.finding == "worse"


def test_both_biases_are_estimated_and_the_worse_counts():
    truth = made_up_queries(300)
    log, _, swap = swapped(truth, 20_000, browsing=Browsing(1.0, 0.3))
    shown, scores = results(log), truth.features @ truth.best
    found = estimate_clicks(shown, scores[shown.pair], truth.features, engine=engine_order(shown, swap=swap))
    position, trust = (row_of(found, DOUBLY_ROBUST, bias).difference for bias in ("position", "trust"))
    true = gained(log, scores, found.positions)
    assert position.low > true, "position weights cannot remove trust bias"
    assert trust.low <= true <= trust.high
    assert found.difference == (trust.value, trust.low, position.high)
    slope = log.browsing.slope(np.arange(5)) / log.browsing.slope(0)
    assert found.trust.slope[:5] == pytest.approx(slope, rel=0.35)
    assert found.propensities.slope[1] < 0.8 * slope[1]


def test_an_engine_order_that_is_rarely_known_is_not_used():
    truth = made_up_queries(200)
    shown = results(simulate_shown(truth, 8000))
    scores = (truth.features @ truth.best)[shown.pair]
    found = estimate_clicks(shown, scores, truth.features, engine=engine_order(shown))
    assert found.engine == ""
    assert found.known < 0.3
    assert found.searches == 8000
    assert found.finding == "inconclusive"
    assert "not shown to be better than the engine" in found.verdict


@pytest.mark.long
def test_a_model_below_the_engine_is_never_called_better():
    """120 logs with models from random to good; the benchmark has more."""
    called, below = [], 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        truth = made_up_queries(150, documents=6, seed=seed)
        log, _, _ = swapped(truth, 4500, seed, Browsing(1.0, (0.0, 0.3)[seed % 2]))
        mix, other = rng.random(), rng.normal(size=10)
        scores = truth.features @ (mix * truth.best + (1 - mix) * other / np.linalg.norm(other))
        shown = results(log)
        try:
            found = estimate_clicks(shown, scores[shown.pair], truth.features, engine=engine_order(shown))
        except CannotTell:
            continue
        true = gained(log, scores, found.positions)
        below += true <= 0
        called += [(true, found.verdict)] if found.finding == "better" else []
    assert below >= 20
    assert len(called) >= 10, "the test has something to find"
    assert [verdict for true, verdict in called if true <= 0] == []


def test_places_do_not_depend_on_the_order_of_rows():
    log = simulate_shown(made_up_queries(20), 100)
    shown = results(log)
    scores = np.random.default_rng(1).integers(3, size=len(shown)).astype(float)  # with ties
    rows = np.random.default_rng(2).permutation(len(shown))
    shuffled = ShownResults(*(column[rows] for column in vars(shown).values()))
    assert np.array_equal(new_places(shuffled, scores[rows]), new_places(shown, scores)[rows])

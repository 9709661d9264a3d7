"""Propensities by position against the slow, obvious versions, by hand, and against a truth that is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.synthetic_shown import STATIC, Browsing, Showing, made_up_queries, simulate_shown
from fedrank.ranking import propensity
from fedrank.ranking.propensity import (
    INTERVENTIONS,
    REGRESSION,
    NotIdentifiable,
    Propensities,
    Repeated,
    ShownResults,
    correct,
    drawn_queries,
    explained,
    given_propensities,
    meetings_of,
    offer_swaps,
    propensities_of,
    regression_em,
    repeated_propensities,
    repeated_trust,
    strengths,
)
from tests.oracles import propensity as oracle

POSITIONS = np.arange(10)


def results(log):
    return ShownResults.of_lists(log.lists, log.clicks, log.first, log.query)


def by_hand(*rows):
    """Rows of (pair, query, position, times, clicks)."""
    flat = [(p, q, k, i < c) for p, q, k, n, c in rows for i in range(n)]
    columns = [np.array(column) for column in zip(*flat, strict=True)]
    return ShownResults(*columns, np.arange(len(flat)))


def test_a_document_in_two_places_by_hand():
    shown = by_hand((0, 0, 0, 10, 4), (0, 0, 1, 10, 1), (1, 0, 1, 7, 7))
    clicks = meetings_of(shown).clicks(None)
    assert clicks[0].tolist() == [[0, 2], [0.5, 0]], "the document that never moved says nothing"
    assert np.exp(strengths(clicks)[0]) == pytest.approx([1, 0.25])


def test_places_that_meet_through_others():
    shown = by_hand((0, 0, 0, 10, 8), (0, 0, 1, 10, 4), (1, 1, 1, 20, 10), (1, 1, 3, 20, 2), (2, 1, 2, 5, 5))
    found = np.exp(strengths(meetings_of(shown).clicks(None))[0])
    assert found == pytest.approx([1, 0.5, np.nan, 0.1], nan_ok=True), "nothing in the third position ever moved"


def test_lists_with_pages_and_short_ends():
    lists = np.array([[5, 3, -1], [7, 8, 9]])
    shown = ShownResults.of_lists(lists, np.array([[0, 1, 0], [1, 0, 0]]), np.array([0, 10]), np.array([4, 4]))
    assert shown.pair.tolist() == [5, 3, 7, 8, 9]
    assert shown.position.tolist() == [0, 1, 10, 11, 12]
    assert shown.clicked.tolist() == [False, True, True, False, False]
    assert shown.search.tolist() == [0, 0, 1, 1, 1]
    assert len(shown.select(shown.search == 1)) == 3
    with pytest.raises(ValueError, match="must describe the same searches"):
        ShownResults.of_lists(lists, lists[:1], np.zeros(2), np.zeros(2))


@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_equal_to_the_oracle(eta):
    truth = made_up_queries(40, documents=4)
    shown = results(simulate_shown(truth, 3000, browsing=Browsing(eta), people=5))
    found = np.exp(strengths(meetings_of(shown).clicks(None))[0])
    assert found == pytest.approx(oracle.all_pairs(shown, 4), rel=1e-4)


def test_intervals_hold_the_truth():
    inside, known = 0, 0
    for seed in range(12):
        log = simulate_shown(made_up_queries(300, seed=seed), 8000, seed, browsing=Browsing(1.0))
        found = propensities_of(results(log))
        assert found.how == INTERVENTIONS
        sure = found.known
        sure[0] = False
        truth = 1 / (POSITIONS + 1)
        inside += np.sum((found.low <= truth) & (found.high >= truth) & sure)
        known += sure.sum()
    assert known >= 12 * 5
    assert 0.88 <= inside / known <= 1.0


def test_the_same_log_gives_the_same_bytes():
    log = simulate_shown(made_up_queries(50), 2000)
    one, two = (propensities_of(results(log)) for _ in range(2))
    assert one.slope.tobytes() == two.slope.tobytes()
    assert np.array_equal(one.slope, np.round(one.slope, 6), equal_nan=True)


def test_documents_that_never_move_tell_nothing():
    truth = made_up_queries(50)
    log = simulate_shown(truth, 5000, showing=STATIC)
    with pytest.raises(
        NotIdentifiable, match="no document changed its position for the same query; no clicks are corrected"
    ):
        propensities_of(results(log), truth.features)
    for bias in propensity.BIASES:
        with pytest.raises(NotIdentifiable) as raised:
            propensities_of(results(log), truth.features, bias)
        offer = raised.value.offer
        assert offer.searches > 0
        assert 0 < offer.share_lost < 0.05
        assert "Random swaps of two adjacent results in" in str(raised.value)
    with pytest.raises(NotIdentifiable, match="the log has no clicks"):
        propensities_of(results(replace(log, clicks=np.zeros_like(log.clicks))))
    with pytest.raises(ValueError, match="bias must be one of"):
        propensities_of(results(log), bias="luck")


def test_the_price_of_swaps_by_hand():
    # 100 searches, two positions: clicked in 36 % and in 16 %.
    offer = offer_swaps(by_hand((0, 0, 0, 100, 36), (1, 0, 1, 100, 16)), precision=0.1)
    assert offer.searches == pytest.approx((2 / 0.52 + 1 / 0.16) / 0.01, abs=1)
    assert offer.clicks_lost == pytest.approx(offer.searches / 2 * (0.6 - 0.4) ** 2)
    assert offer.share_lost == pytest.approx(0.5 * 0.04 / 0.52)
    assert offer.positions == 2
    assert offer_swaps(by_hand((0, 0, 0, 10, 0))) is None


def test_swaps_cost_and_tell_what_was_promised():
    """Worse than promised they may not be; the truth is that all relevance is .8 above and .4 below."""
    rng = np.random.default_rng(1)
    looked, relevance = np.array([1.0, 0.5]), np.array([0.8, 0.4])
    static = by_hand((0, 0, 0, 1000, 800), (1, 0, 1, 1000, 200))
    offer = offer_swaps(static, precision=0.2)
    assert offer.searches * (looked @ relevance - looked @ relevance[::-1]) / 2 <= offer.clicks_lost
    found = []
    for _ in range(300):
        swapped = rng.random(offer.searches) < 0.5
        first = np.where(swapped, 1, 0)
        lists = np.stack([first, 1 - first], axis=1)
        clicks = rng.random(lists.shape) < looked * relevance[lists]
        none = np.zeros(len(lists), int)
        meetings = meetings_of(ShownResults.of_lists(lists, clicks.astype(int), none, none))
        found.append(strengths(meetings.clicks(None))[0, 1])
    assert np.std(found) <= offer.precision
    assert np.mean(found) == pytest.approx(np.log(0.5), abs=3 * np.std(found) / np.sqrt(300) + 0.01)


def test_trust_is_told_from_looking():
    browsing = Browsing(1.0, trust=0.3)
    slopes, extras = [], []
    for seed in range(3):
        log = simulate_shown(made_up_queries(400, documents=6, seed=seed), 60_000, seed, browsing=browsing)
        found = propensities_of(results(log), bias="trust")
        slopes.append(found.slope[:4])
        extras.append(found.extra[:4])
        assert not np.any(found.known[1:] & (found.extra[1:] > 0.05))
    positions = POSITIONS[:4]
    true = browsing.slope(positions) / browsing.slope(0)
    assert np.mean(slopes, axis=0) == pytest.approx(true, rel=0.2)
    # Up to what the first position has, which nothing in a log tells from relevance.
    assert np.mean(extras, axis=0) == pytest.approx(
        browsing.intercept(positions) - true * browsing.intercept(0), abs=0.04
    )
    only_places = propensities_of(results(log))
    assert 'which indicates trust bias; position-only propensities are then wrong: use bias = "trust"' in str(
        only_places.notes
    )
    assert only_places.slope[1] < 0.8 * true[1], (
        "without trust, the second position seems to be looked at far less than it is"
    )


def test_without_trust_there_is_no_extra():
    log = simulate_shown(made_up_queries(400, documents=6), 60_000, browsing=Browsing(1.0))
    found = propensities_of(results(log), bias="trust")
    assert np.nanmax(np.abs(found.extra)) < 0.03
    assert propensities_of(results(log)).notes == ()
    assert found.slope[:3] == pytest.approx([1, 1 / 2, 1 / 3], rel=0.15)


def test_trust_needs_more_than_places_do():
    log = simulate_shown(made_up_queries(300), 1100)
    propensities_of(results(log))
    with pytest.raises(
        NotIdentifiable, match="trust bias needs documents that were shown at least twice in each of two"
    ):
        propensities_of(results(log), bias="trust")


def test_corrected_clicks_by_hand():
    by = Propensities(
        np.array([1, 0.5, 0.01, np.nan]), np.array([0, 0.1, 0, np.nan]), *np.zeros((2, 4)), how="", moved=1
    )
    clicked = np.array([True, True, False, True, True, True])
    found = correct(clicked, np.array([0, 1, 1, 2, 3, 7]), by)
    assert found.relevance == pytest.approx([1, 1.8, -0.2, 20, np.nan, np.nan], nan_ok=True)
    assert found.clipped == pytest.approx(1 / 5)
    assert found.unknown == pytest.approx(2 / 5)


def test_corrected_clicks_are_right_on_average():
    browsing = Browsing(1.0, trust=0.2)
    log = simulate_shown(made_up_queries(20, documents=4), 40_000, browsing=browsing)
    positions = np.arange(4)
    by = given_propensities(browsing.slope(positions) / browsing.slope(0), browsing.intercept(positions))
    shown = results(log)
    values = correct(shown.clicked, shown.position, by).relevance.astype(float) / browsing.slope(0)
    times = np.bincount(shown.pair)
    mean = np.bincount(shown.pair, weights=values) / times
    often = times > 1000
    assert mean[often] == pytest.approx(log.truth.relevance[often], abs=0.12)


def test_regression_em_ends_where_the_likelihood_does():
    truth = made_up_queries(200, documents=5)
    log = simulate_shown(truth, 4000, showing=Showing(rankers=2, bent=0.3))
    shown = results(log)
    counted = oracle.cells(shown)
    pair, position = (np.array(column) for column in zip(*counted, strict=True))
    times, clicks = (np.array(column, float) for column in zip(*counted.values(), strict=True))
    table = np.column_stack([np.ones(len(pair)), truth.features[pair]])
    found, rates = regression_em(position, times, clicks, table, np.ones(5))
    again, _ = regression_em(position, times, clicks, table, found)
    assert again == pytest.approx(found, rel=1e-3)
    assert found[:3] == pytest.approx([1, 1 / 2, 1 / 3], rel=0.3)
    slow = oracle.regression_em(position, times, clicks, table, 5, steps=1500)
    assert found == pytest.approx(slow, rel=0.02)
    assert 0.6 < explained(position, times, clicks, rates) < 1.2
    assert abs(explained(position, times, clicks, rates[np.random.default_rng(1).permutation(len(rates))])) < 0.3


@pytest.mark.long
def test_where_little_moved_features_help():
    truth = made_up_queries(2000, documents=6)
    log = simulate_shown(truth, 6000, showing=Showing(rankers=1, noise=0.002), popularity=0.0)
    shown = results(log)
    with pytest.raises(NotIdentifiable, match=r"only \d+ documents changed positions, too few for an interval within"):
        propensities_of(shown)
    found = propensities_of(shown, truth.features)
    assert found.how == REGRESSION
    assert "assume that relevance is a function of the features" in found.notes[0]
    assert found.slope[1:3] == pytest.approx([1 / 2, 1 / 3], rel=0.3)
    never = propensities_of(replace(shown, clicked=shown.clicked & (shown.position < 5)), truth.features)
    assert never.how == REGRESSION
    assert never.known.tolist() == [True] * 5 + [False], "nobody clicked the last position, so nobody knows"


def test_features_that_say_nothing_do_not_help():
    truth = made_up_queries(2000, documents=6)
    log = simulate_shown(truth, 6000, showing=Showing(rankers=1, noise=0.002), popularity=0.0)
    noise = np.random.default_rng(1).random((len(truth.features), 2), dtype=np.float32)
    with pytest.raises(
        NotIdentifiable, match=r"features explain \d+% of the variance between documents of one position, less than 50%"
    ):
        propensities_of(results(log), noise)


def test_propensities_say_what_is_wrong():
    with pytest.raises(ValueError, match="slopes must be positive"):
        given_propensities([1, 0])
    with pytest.raises(ValueError, match="a slope, an extra and an interval for every position"):
        given_propensities([])
    written = given_propensities([1, 0.5, np.nan], [0, 0.1, np.nan]).as_json()
    assert (written["slope"], written["extra"]) == ([1, 0.5, None], [0, 0.1, None])


def test_groups_of_many_queries_vary_as_queries_do(monkeypatch):
    log = simulate_shown(made_up_queries(2000), 20_000, popularity=0.0)
    alone = propensities_of(results(log))
    monkeypatch.setattr(propensity, "MAX_GROUPS", 150)
    grouped = propensities_of(results(log))
    assert np.array_equal(alone.slope, grouped.slope, equal_nan=True)
    widths = [np.log(one.high / one.low)[1:6] for one in (alone, grouped)]
    assert widths[1] == pytest.approx(widths[0], rel=0.35)


def test_trust_by_an_instrument_equals_the_oracle():
    """Two positions: the slope is the ratio of covariances, nearly undisturbed by the prior; users trust the first."""
    truth = made_up_queries(400, documents=2)
    browsing = Browsing(1.0, 0.4)
    log = simulate_shown(truth, 20_000, browsing=browsing, showing=Showing(positions=2, noise=1.0), popularity=0.0)
    shown = results(log)
    position = repeated_propensities(shown)
    found = repeated_trust(shown, position, truth.relevance)
    assert found.found.slope[1] == pytest.approx(oracle.slope_by_instrument(shown, truth.relevance), rel=0.02)
    true = browsing.slope(1) / browsing.slope(0)
    assert found.found.low[1] <= true <= found.found.high[1]
    assert position.found.high[1] < true, "position-only propensities are wrong"
    assert found.found.extra[1] == pytest.approx(browsing.intercept(1) - true * browsing.intercept(0), abs=0.03)


def test_trust_that_documents_do_not_separate_is_refused():
    log = simulate_shown(made_up_queries(30), 300, browsing=Browsing(1.0, 0.4))
    shown = results(log)
    logs = np.log(np.full((201, 10), 0.5))
    logs[:, 0] = 0
    given = replace(given_propensities(np.exp(logs[0])), moved=7)
    rough = Repeated(given, drawn_queries(len(np.unique(shown.query)), 200), np.exp(logs), np.zeros_like(logs))
    with pytest.raises(NotIdentifiable, match="7 documents that moved do not separate trust bias from position bias"):
        repeated_trust(shown, rough, np.zeros(300))

"""Lists, clicks and states of a client."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.search.client import SearchClient
from fedrank.search.impressions import (
    Recorded,
    best_order,
    engine_first,
    pack_features,
    start_weights,
    unpack_features,
)
from fedrank.search.results import Filters, Gone, NotFound
from tests.search.made_up import Clock, close, opened


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A store with documents and nothing else, to be copied."""
    folder = tmp_path_factory.mktemp("indexed")
    with opened(folder):
        pass
    return folder / "store"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(indexed, tmp_path, clock):
    shutil.copytree(indexed, tmp_path / "store")
    with SearchClient(tmp_path / "store", clock=clock) as client:
        yield client


def state(client, impression):
    return client.rows.get(impression).state


def fixed_order(client, query):
    """Documents as they are ordered; nothing is recorded."""
    client.learn_setting("off")
    found = client.search(query)
    client.learn_setting("on")
    return [result.id for result in found.results]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], []),
        ([2], [2]),
        ([1, 3], [3, 3]),
        ([9, 1, 5, 7], [9, 7, 5, 7]),  # a lead stays
        ([1, 2, 8, 7], [8, 8, 8, 7]),
    ],
)
def test_the_engines_first_results_count_at_least_as_much_as_those_below(scores, expected):
    found = engine_first(np.array(scores, np.float32))
    assert found.tolist() == expected
    assert found.dtype == np.float32


def test_what_was_recorded_is_what_was_scored_and_the_engines_two_best_results_stay_first(client):
    found = client.search("orchard apple")
    one = client.rows.get(found.impression)
    for weights in (client.rows.weights(), -client.rows.weights()):
        expected = client.rows.scaled(one.raw).astype(np.float64) @ weights  # sums in double precision
        expected[:2] = expected.max(), expected[1:].max()
        np.testing.assert_allclose(client.rows.scores(weights, one.raw), expected, rtol=1e-5, atol=1e-5)
        assert best_order(expected)[:2].tolist() == [0, 1]
    np.testing.assert_array_equal(client.rows.scores(client.rows.weights(), one.raw), one.scores)
    assert one.raw.shape == (len(one.candidates), 34)
    assert one.raw.min() >= 0
    assert one.raw.max() <= 1


def test_the_start_weights_are_mostly_the_engines_score(client):
    weights = dict(zip(LIVE_1.names, start_weights(LIVE_1).tolist(), strict=True))
    others = {name: weight for name, weight in weights.items() if weight and name != "engine"}
    assert weights["engine"] == 1 > max(others.values()) > min(others.values()) > 0
    np.testing.assert_array_equal(client.rows.weights(), start_weights(LIVE_1))


def test_features_are_packed_without_loss_and_small():
    raw = np.random.default_rng(1).random((100, 34)).round(2).astype(np.float16)
    np.testing.assert_array_equal(unpack_features(pack_features(raw), 100), raw)
    assert unpack_features(pack_features(np.zeros((0, 34), np.float16)), 0).size == 0


def test_an_impression_takes_less_than_five_kilobytes(client):
    found = client.search("orchard water shade apple")
    sizes = client.store.one(
        "SELECT length(candidates) + length(scores) + length(shown) + length(features) + length(query) + length(terms) "
        "FROM impressions WHERE id = ?",
        found.impression,
    )
    assert sizes[0] * 100 / found.candidates < 5_000  # of as many candidates as there may be


def test_asking_again_gives_the_same_list_and_no_second_impression(client):
    found = client.search("orchard")
    assert client.shown(found.impression) == found
    assert client.status().searches == 1


def test_a_click_counts_once_and_a_prefetch_never(client, clock):
    found = client.search("orchard")
    client.open_document(found.impression, 1, click=False)
    assert state(client, found.impression) == "shown"
    first = client.open_document(found.impression, 1)
    clock.wait(1)
    assert client.open_document(found.impression, 1) == first
    assert first.id == found.results[1].id
    (click,) = client.rows.clicks(found.impression)
    assert click.time == clock.now - 1
    assert state(client, found.impression) == "opened"


def test_page_two_continues_with_the_rest_in_the_same_impression(client):
    found = client.search("orchard")
    assert found.pages == 4
    second = client.shown(found.impression, 2)
    assert [result.position for result in second.results] == list(range(10, 20))
    assert not {result.id for result in second.results} & {result.id for result in found.results}
    assert client.shown(found.impression, 2) == second
    last = client.shown(found.impression, 4)
    assert len(client.rows.get(found.impression).shown) == 40
    assert len(last.results) == 10
    assert client.shown(found.impression, 1).results == found.results
    assert client.status().searches == 1
    with pytest.raises(NotFound):
        client.shown(found.impression, 5)


def test_coming_back_at_once_takes_the_click_back(client, clock):
    found = client.search("orchard")
    client.open_document(found.impression, 2)
    clock.wait(3)
    assert not client.shown(found.impression).results[2].clicked
    assert [click.bounced for click in client.rows.clicks(found.impression)] == [True]
    assert state(client, found.impression) == "shown"
    client.open_document(found.impression, 4)
    clock.wait(6)
    assert client.shown(found.impression).results[4].clicked
    assert state(client, found.impression) == "opened"


def test_who_comes_again_after_a_click_taken_back_wants_it_after_all(client, clock):
    found = client.search("orchard")
    client.open_document(found.impression, 2)
    clock.wait(3)
    client.shown(found.impression)
    clock.wait(20)
    client.open_document(found.impression, 2)
    (click,) = client.rows.clicks(found.impression)
    assert (click.bounced, click.time) == (False, clock())
    assert state(client, found.impression) == "opened"
    clock.wait(60)
    client.open_document(found.impression, 2)
    assert client.rows.clicks(found.impression) == [click], "a click that stands is the first one"
    client.search("orchard")
    assert state(client, found.impression) == "closed"


def test_one_accident_changes_nothing(client, clock):
    order = fixed_order(client, "orchard apple")
    found = client.search("orchard apple")
    client.open_document(found.impression, 3)
    clock.wait(2)
    client.shown(found.impression)
    clock.wait(3600)
    client.search("plum")
    assert fixed_order(client, "orchard apple") == order
    assert client.status().bounced == 1
    assert client.status().clicks == 0


def open_wherever_it_is(client, clock, query, document):
    found = client.search(query)
    shown = [result for page in range(1, 5) for result in client.shown(found.impression, page).results]
    client.open_document(found.impression, next(result.position for result in shown if result.id == document))
    clock.wait(120)
    close(client, found.impression)


def test_three_clear_clicks_move_a_document_to_the_top_until_they_are_forgotten(client, clock):
    query = "orchard apple water"
    order = fixed_order(client, query)
    for _ in range(3):
        open_wherever_it_is(client, clock, query, order[4])
    assert fixed_order(client, query)[0] == order[4]
    client.forget(query=query)
    assert fixed_order(client, query) == order


def test_lists_are_sorted_and_clicks_are_remembered(client, clock):
    found = client.search("orchard apple water")
    one = client.rows.get(found.impression)
    assert (one.kind, found.teaches) == ("plain", True)
    np.testing.assert_array_equal(one.shown, best_order(one.scores)[:10])
    client.open_document(found.impression, 5)
    clock.wait(3600)
    again = client.search("apple orchard water")
    assert found.results[5].id in [result.id for result in again.results[:5]]


def test_what_was_opened_is_remembered_over_a_restart(client, clock):
    found = client.search("orchard apple")
    client.open_document(found.impression, 3)
    clock.wait(60)
    close(client, found.impression)
    client.close()
    with SearchClient(client.folder, clock=clock) as again:
        assert again.shown(found.impression).results == tuple(
            replace(result, clicked=result.position == 3) for result in found.results
        )
        lifted = again.search("orchard apple").results
        assert [result.id for result in lifted if result.before] == [found.results[3].id]


def test_states_from_shown_to_closed(client, clock):
    first = client.search("orchard")
    client.open_document(first.impression, 2)
    second = client.search("orchard pear")
    assert state(client, first.impression) == "opened"  # a second ago: the person may come back
    clock.wait(10)
    third = client.search("orchard fig")
    assert state(client, first.impression) == "closed"
    clock.wait(29 * 60)
    client.status()
    assert state(client, second.impression) == "shown"
    clock.wait(120)
    client.status()
    assert [state(client, one.impression) for one in (second, third)] == ["abandoned"] * 2


def test_open_lists_do_not_slow_down_the_next_search(client):
    asked = []
    client.store.db.set_trace_callback(asked.append)
    client.search("orchard")
    client.store.db.set_trace_callback(None)
    late = next(statement for statement in asked if "state = 'shown' AND time" in statement)
    (plan,) = client.store.rows(f"EXPLAIN QUERY PLAN {late}")
    assert "COVERING INDEX impressions_by_state (state=? AND time<?)" in plan[-1]


def test_an_opened_list_is_closed_half_an_hour_later_without_any_search(client, clock):
    found = client.search("orchard")
    client.open_document(found.impression, 2)
    clock.wait(29 * 60)
    assert client.status().impressions == {"opened": 1}
    clock.wait(60)
    assert client.status().impressions == {"closed": 1}


@pytest.mark.parametrize("how", ["kind", "date", "sort", "fixed", "engine"])
def test_filtered_sorted_and_fixed_lists_are_plain(client, clock, how):
    if how in ("fixed", "engine"):
        client.settings.set_order(how)
    filters = {"kind": Filters(kind="file"), "date": Filters(since=1)}.get(how)
    found = client.search("orchard water", filters, "date" if how == "sort" else "rank")
    one = client.rows.get(found.impression)
    assert one.kind == "plain"
    assert found.results
    expected = best_order(one.scores) if how in ("kind", "date", "fixed") else np.arange(len(one.candidates))
    client.shown(found.impression, 2)
    np.testing.assert_array_equal(client.rows.get(found.impression).shown, expected[:20])


def test_more_than_thirty_searches_a_minute_are_fast(client, clock):
    for _ in range(31):
        clock.wait(1)
        client.search("orchard")
    kinds = client.status().kinds_of_lists
    assert kinds == {"plain": 30, "fast": 1}
    clock.wait(61)
    assert client.rows.get(client.search("orchard").impression).kind == "plain"


def test_learning_off_records_nothing(client, clock):
    client.learn_setting("off")
    found = client.search("orchard")
    assert client.shown(found.impression).results == found.results
    second = client.shown(found.impression, 2)
    assert second.results
    assert client.shown(found.impression, 2) == second
    client.open_document(found.impression, 1)
    assert len(client.why(found.impression)) == 20
    status = client.status()
    assert (status.searches, status.clicks, status.learn) == (0, 0, False)
    assert (
        client.store.count("SELECT count(*) FROM impressions") == client.store.count("SELECT count(*) FROM clicks") == 0
    )


def test_a_click_on_an_old_list_after_learning_went_off_is_not_recorded(client):
    found = client.search("orchard")
    client.learn_setting("off")
    client.open_document(found.impression, 1)
    assert client.status().clicks == 0


def test_scores_and_features_of_old_impressions_are_dropped(client, clock, monkeypatch):
    monkeypatch.setattr("fedrank.search.impressions.KEPT", 2)
    ids = []
    for _ in range(4):
        clock.wait(60)
        found = client.search("orchard")
        client.open_document(found.impression, 1)
        ids.append(found.impression)
    clock.wait(3600)
    client.status()
    kept = [client.rows.get(id).raw is not None for id in ids]
    assert kept == [False, False, True, True]
    assert client.shown(ids[0], 2).results
    with pytest.raises(Gone, match="because it is old"):
        client.why(ids[0])


@pytest.mark.parametrize("impression", [0, -1, 999, 10**21, 1 << 62])
def test_a_foreign_impression_is_not_found(client, impression):
    for ask in (client.shown, client.why):
        with pytest.raises(NotFound):
            ask(impression)
    with pytest.raises(NotFound):
        client.open_document(impression, 0)


@pytest.mark.parametrize("place", [-1, 10, 10**21])
def test_a_foreign_place_is_not_found(client, place):
    found = client.search("orchard")
    for ask in (client.open_document, client.bounced):
        with pytest.raises(NotFound):
            ask(found.impression, place)
    with pytest.raises(NotFound):
        client.shown(found.impression, place)
    with pytest.raises(NotFound):
        client.pages.document(place if place < 0 else 10**21)


def test_a_document_that_went_is_gone_and_the_list_stays(client):
    found = client.search("orchard")
    with client.store.writing():
        client.store.remove([found.results[0].id])
    with pytest.raises(Gone):
        client.open_document(found.impression, 0)
    again = client.shown(found.impression)
    assert again.results[0].gone
    assert again.results[1:] == found.results[1:]


def test_why_adds_up_to_the_difference_in_scores(client):
    found = client.search("orchard apple water")
    explained = client.why(found.impression)
    assert [one.result.id for one in explained] == [result.id for result in found.results]
    one, two = explained[0], explained[-1]
    difference = sum(cause.share for cause in one.causes) - sum(cause.share for cause in two.causes)
    assert difference == pytest.approx(one.score - two.score, abs=1e-4)
    assert one.causes[0].feature == "engine"
    assert len(one.causes) == np.count_nonzero(client.rows.weights()) + 2  # features with a weight, and two rules
    recorded: Recorded = client.rows.get(found.impression)
    assert [one.engine_position for one in explained] == recorded.shown.tolist()

"""Lists of results, without an engine and without documents."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.search.lists import MAX_UNRECORDED, UNRECORDED, ResultLists
from fedrank.search.results import Filters, NotFound
from fedrank.search.trial import Trials
from tests.search.made_up import Clock
from tests.search.stored import candidates, query, stored


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lists(tmp_path, clock):
    rows = stored(tmp_path)
    with rows.store.writing():
        rows.store.set(learn_weights=1)
    yield ResultLists(rows, Trials(rows, clock))
    rows.store.close()


def learning(lists, on):
    with lists.store.writing():
        lists.store.set(learn=int(on))


def test_a_list_that_is_drawn_is_recorded_and_drawn_by_its_number(lists, clock):
    found, raw = candidates(30)
    first, second = (lists.add(query("orchard", clock), found, raw) for _ in range(2))
    assert (first.kind, first.number, second.number) == ("pdgd", 0, 1)
    assert len(first.shown) == 10
    assert first.shown.tolist() != second.shown.tolist()
    again = lists.get(first.id)
    assert again.shown.tolist() == first.shown.tolist()
    assert again.raw is not None
    assert again.raw.tolist() == first.raw.tolist()
    assert lists.is_recorded(first)


@pytest.mark.parametrize("more", [{"sort": "date"}, {"filters": Filters(kind="mail")}])
def test_a_list_that_was_limited_is_plain(lists, clock, more):
    assert lists.add(query("orchard", clock, **more), *candidates(5)).kind == "plain"


def test_the_thirty_first_list_of_a_minute_is_fast(lists, clock):
    kinds = [lists.add(query("orchard", clock), *candidates(2)).kind for _ in range(31)]
    assert kinds == ["pdgd"] * 30 + ["fast"]


@pytest.mark.parametrize("order", ["drawn", "fixed", "engine"])
@pytest.mark.parametrize("learns", [True, False])
def test_pages_together_show_every_candidate_once(lists, clock, order, learns):
    lists.settings.set_order(order)
    learning(lists, learns)
    one = lists.add(query("orchard", clock), *candidates(25))
    longer = lists.extend(one, 3)
    assert longer.shown[:10].tolist() == one.shown.tolist()
    assert sorted(longer.shown.tolist()) == list(range(25))
    assert lists.get(one.id).shown.tolist() == longer.shown.tolist()
    if order != "drawn":
        assert longer.shown.tolist() == list(range(25))


def test_without_learning_lists_stay_in_memory_for_a_while(lists, clock):
    learning(lists, False)
    ids = [lists.add(query("orchard", clock), *candidates(2)).id for _ in range(MAX_UNRECORDED + 1)]
    assert min(ids) >= UNRECORDED
    assert lists.store.count("SELECT count(*) FROM impressions") == 0
    with pytest.raises(NotFound):
        lists.get(ids[0])
    assert lists.clicks(lists.get(ids[1])) == []
    lists.forget_unrecorded()
    with pytest.raises(NotFound):
        lists.get(ids[-1])


def test_a_model_on_trial_that_is_past_its_replay_shares_lists(lists, clock):
    lists.trials.begin(np.zeros(len(lists.rows.features.names)), "a friend")
    assert lists.add(query("orchard", clock), *candidates(8)).kind == "pdgd"
    with lists.store.writing():
        lists.store.set(trial_phase="draft")
    one = lists.add(query("orchard", clock), *candidates(8))
    assert one.kind == "interleaved"
    assert one.teams is not None
    assert len(one.teams) == len(one.shown) == 8
    assert one.trial == lists.trials.on_trial().id

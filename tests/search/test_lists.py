"""Lists of results, without an engine and without documents."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.ranking.gate import Team
from fedrank.search.lists import MAX_UNRECORDED, UNRECORDED, ResultLists
from fedrank.search.opponents import ENGINE
from fedrank.search.results import Filters, NotFound
from tests.search.made_up import Clock
from tests.search.stored import candidates, query, stored


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lists(tmp_path, clock):
    rows = stored(tmp_path)
    yield ResultLists(rows)
    rows.store.close()


def learning(lists, on):
    with lists.store.writing():
        lists.store.set(learn=int(on))


def test_a_list_is_sorted_recorded_and_numbered(lists, clock):
    found, raw = candidates(30)
    first, second = (lists.add(query("orchard", clock), found, raw) for _ in range(2))
    assert (first.kind, first.number, second.number) == ("plain", 0, 1)
    assert first.shown.tolist() == second.shown.tolist() == list(range(10))
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
    assert kinds == ["plain"] * 30 + ["fast"]


@pytest.mark.parametrize("order", ["learned", "fixed", "engine"])
@pytest.mark.parametrize("learns", [True, False])
def test_pages_together_show_every_candidate_once(lists, clock, order, learns):
    lists.settings.set_order(order)
    learning(lists, learns)
    one = lists.add(query("orchard", clock), *candidates(25))
    longer = lists.extend(one, 3)
    assert longer.shown[:10].tolist() == one.shown.tolist()
    assert sorted(longer.shown.tolist()) == list(range(25))
    assert lists.get(one.id).shown.tolist() == longer.shown.tolist()
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


def test_a_list_with_an_opponent_says_which_order_chose_each_result(lists, clock, monkeypatch):
    monkeypatch.setattr("fedrank.search.opponents.SHARE", 1.0)
    found, raw = candidates(8)
    raw[:, LIVE_1.names.index("near pairs")] = np.linspace(0, 1, 8)
    one = lists.get(lists.add(query("orchard", clock), found, raw).id)
    assert (one.kind, one.opponent) == ("interleaved", ENGINE)
    assert sorted(one.shown.tolist()) == list(range(8))
    assert len(one.teams) == 8
    assert {Team.NEW, Team.OLD} <= {*one.teams.tolist()}

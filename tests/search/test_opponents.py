"""The engine's order and the order without memory are compared with the order in use, and used if they win."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.ranking.gate import Gate
from fedrank.search import impressions, lists, memory, opponents
from fedrank.search.client import SearchClient
from fedrank.search.learned import what_was_learned
from fedrank.search.opponents import ENGINE, FORGETFUL
from tests.search.made_up import FRUIT, Clock, opened


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(tmp_path, clock, monkeypatch):
    """A client whose weights differ much from the engine's order, without a memory of clicks."""
    monkeypatch.setattr(memory, "LIFT", 0.0)
    with opened(tmp_path, clock) as client:
        weights = client.features.start()
        weights[client.features.names.index("length")] = -8.0
        monkeypatch.setattr(impressions, "start_weights", lambda _: weights)
        monkeypatch.setattr(lists, "weighted_features", client.features.raw)  # also those without a weight
        monkeypatch.setattr(opponents, "SHARE", 0.5)
        yield client


def follow(client, clock, want, times):
    """Open the longest or the shortest document of every list; returns whether the engine's order is used then."""
    for number in range(times):
        found = client.search(f"orchard {FRUIT[number % 10]}")
        chosen = want(found.results, key=lambda result: len(client.pages.document(result.id).text))
        client.open_document(found.impression, chosen.position)
        clock.wait(60)
        client.search("nothing")
        clock.wait(60)
        if client.rows.uses_engine:
            return True
    return False


def test_an_order_that_loses_against_the_engine_is_given_up(client, clock):
    assert follow(client, clock, max, 200)
    np.testing.assert_array_equal(client.rows.weights(), client.features.start())
    assert what_was_learned(client).uses_engine
    learned = what_was_learned(client)
    assert learned.losses >= np.log(1 / Gate().level) / np.log(1 + Gate().stake)
    assert learned.wins == 0
    lists = client.status().kinds_of_lists
    follow(client, clock, max, 5)
    assert client.status().kinds_of_lists["interleaved"] == lists["interleaved"], "the engine has no opponent"
    client.close()
    with SearchClient(client.folder, clock=clock) as again:
        assert again.rows.uses_engine
        again.forget(learned=True)
        assert not again.rows.uses_engine


def test_an_order_that_wins_against_the_engine_stays(client, clock):
    assert not follow(client, clock, min, 60)
    wins, losses = client.lists.opponents.score(ENGINE)
    assert wins == 0 < losses
    assert not client.rows.uses_engine


def test_by_default_a_tenth_of_the_lists_has_the_engine_as_opponent(client, monkeypatch):
    monkeypatch.undo()
    for remembers, expected, low, high in ((False, ENGINE, 60, 140), (True, FORGETFUL, 20, 60)):
        chosen = [client.lists.opponents.choose(number, remembers) for number in range(1_000)]
        assert {*chosen} == {None, expected}
        assert low < chosen.count(expected) < high


def some_clicks(client, clock, place):
    """Search for pairs of fruits, and open the result at a place of the order by score; returns how many lists."""
    for number in range(30):
        found = client.search(f"{FRUIT[number % 10]} {FRUIT[(number + 1 + number // 10) % 10]} orchard")
        recorded = client.rows.get(found.impression)
        wanted = place(recorded)
        client.open_document(found.impression, int(np.flatnonzero(recorded.shown == wanted)[0]))
        clock.wait(60)


@pytest.mark.parametrize("harms", [True, False])
def test_a_memory_that_loses_against_lists_without_it_is_given_up(tmp_path, clock, monkeypatch, harms):
    with opened(tmp_path, clock) as client:
        some_clicks(client, clock, lambda one: int(one.shown[-1]))  # results that nobody wants
        monkeypatch.setattr(opponents, "MEMORY_SHARE", 1.0)
        remembered = what_was_learned(client)
        some_clicks(client, clock, (lambda one: 0) if harms else lambda one: int(one.memory.argmax()))
        clock.wait(3600)
        client.status()
        kinds = client.store.rows("SELECT DISTINCT opponent FROM impressions WHERE kind = 'interleaved'")
        assert (FORGETFUL,) in kinds
        learned, before = what_was_learned(client), client.store.setting("remember_after", 0)
        assert learned.given_up == bool(before) == harms
        assert remembered.pairs > 20
        assert learned.pairs < 20 if harms else learned.pairs >= remembered.pairs
        lifted = client.search(client.rows.get(1).query)
        assert any(one.before for one in lifted.results) != harms
        assert client.store.count("SELECT count(*) FROM clicks") == 60, "clicks stay recorded"
        monkeypatch.setattr(opponents, "MEMORY_SHARE", 0.0)
        again = client.search("orchard shade")
        client.open_document(again.impression, 5)
        clock.wait(60)
        assert any(one.before for one in client.search("orchard shade").results), "new clicks count"
        client.forget(learned=True)
        assert not what_was_learned(client).given_up

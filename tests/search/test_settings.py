"""Settings of a search folder."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.search.client import SearchClient
from fedrank.search.impressions import ImpressionRows, first_weights
from fedrank.search.results import SearchError
from fedrank.search.settings import SearchSettings, begin, features_of
from fedrank.search.store import Store
from tests.search.made_up import Clock, opened


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path)
    yield made
    made.close()


def test_a_folder_learns_and_draws_its_lists_until_told_otherwise(store):
    settings = SearchSettings(store)
    assert (settings.learns, settings.order) == (True, "drawn")
    settings.set_order("engine")
    assert SearchSettings(store).order == "engine"
    with pytest.raises(SearchError, match="must be drawn, fixed or engine"):
        settings.set_order("random")


def test_a_new_folder_begins_once(store):
    rows, clock = ImpressionRows(store, LIVE_1), Clock()
    begin(rows, clock)
    chance = store.setting("chance")
    np.testing.assert_array_equal(rows.model()[1], first_weights(LIVE_1))
    clock.wait(60)
    begin(rows, clock)
    assert store.setting("chance") == chance
    assert store.count("SELECT count(*) FROM models") == 1
    assert store.setting("created") == clock() - 60


def test_a_folder_keeps_its_language(store):
    assert features_of(store, None) is LIVE_1
    assert features_of(store, "german").stemmer == "german"
    begin(ImpressionRows(store, features_of(store, "german")), Clock())
    assert features_of(store, None).stemmer == "german"
    with pytest.raises(SearchError, match=r"created with the language german \(got french\)"):
        features_of(store, "french")


def test_threads_take_turns_at_the_store(store):
    """A thread that reads does not see half a transaction of another one."""
    inside, seen = threading.Event(), []

    def read():
        inside.wait(10)
        seen.append(store.setting("order"))

    reader = threading.Thread(target=read)
    reader.start()
    with store.writing():
        store.set(order="fixed")
        inside.set()
        reader.join(0.05)
        assert seen == []
        store.set(order="engine")
    reader.join(10)
    assert seen == ["engine"]


def test_a_folder_of_format_1_keeps_its_clicks_and_gets_the_start_weights(tmp_path):
    """Its model had learned features of earlier clicks, which are a rule now."""
    clock = Clock()
    with opened(tmp_path, clock) as client:
        found = client.search("orchard apple water")
        client.open_document(found.impression, 5)
        clock.wait(60)
        client.trials.begin(np.ones(34), "a friend")
        with client.store.writing():
            client.store.set(model=client.rows.new_model(0.0, "learned in format 1", np.full(34, 2.0)))
            client.store.db.execute("DROP INDEX impressions_with_features")
            client.store.db.execute("ALTER TABLE impressions DROP COLUMN memory")
            client.store.db.execute("DROP TABLE agent_folders")
            client.store.db.execute("DROP TABLE agent_searches")
            client.store.db.execute("DROP INDEX files_by_content")
            client.store.db.execute("ALTER TABLE files DROP COLUMN content")
            client.store.db.execute("PRAGMA user_version = 1")
        chance = client.store.setting("chance")
    for _ in range(2):  # once and again
        with SearchClient(tmp_path / "store", clock=clock) as client:
            np.testing.assert_array_equal(client.rows.model()[1], first_weights(LIVE_1))
            assert client.store.setting("chance") == chance
            status = client.status()
            assert (status.clicks, status.impressions, status.trial.state) == (1, {"discarded": 1}, "stopped")
            assert client.shown(found.impression).results[5].clicked
            assert client.lists.memory.lifts(LIVE_1.query("orchard apple water"), [found.results[5].id]) == [3]
            assert client.store.count("SELECT count(*) FROM models") == 4
            client.index()
            assert client.store.count("SELECT count(*) FROM files WHERE content IS NULL") == 0

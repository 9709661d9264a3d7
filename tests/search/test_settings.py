"""Settings of a search folder."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.search.client import SearchClient
from fedrank.search.impressions import ImpressionRows, start_weights
from fedrank.search.results import SearchError
from fedrank.search.settings import SearchSettings, begin, features_of
from fedrank.search.store import Store
from tests.search.made_up import Clock, opened


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path)
    yield made
    made.close()


def test_a_folder_learns_and_mixes_its_lists_until_told_otherwise(store):
    settings = SearchSettings(store)
    assert (settings.learns, settings.order) == (True, "learned")
    settings.set_order("engine")
    assert SearchSettings(store).order == "engine"
    with pytest.raises(SearchError, match="must be learned, fixed or engine"):
        settings.set_order("random")


def test_a_new_folder_begins_once(store):
    rows, clock = ImpressionRows(store, LIVE_1), Clock()
    begin(rows, clock)
    chance = store.setting("chance")
    clock.wait(60)
    begin(rows, clock)
    assert store.setting("chance") == chance
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


# What format 3 had and format 4 does not; in format 1 there was no memory and no agent.
BACK_TO_3 = """
    CREATE TABLE vectors (document INTEGER, encoder TEXT, vector BLOB);
    CREATE TABLE written_to (document INTEGER, address TEXT);
    ALTER TABLE documents ADD COLUMN depth INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE models (id INTEGER PRIMARY KEY, origin TEXT);
    CREATE TABLE sent (id INTEGER PRIMARY KEY, what TEXT);
    INSERT INTO sent VALUES (1, 'a message of an earlier version');
    DROP INDEX files_by_content;
    ALTER TABLE files DROP COLUMN content;
    DROP INDEX impressions_by_opponent;
    ALTER TABLE impressions RENAME COLUMN opponent TO trial;
    CREATE INDEX impressions_by_trial ON impressions (trial) WHERE trial IS NOT NULL;
    ALTER TABLE impressions ADD COLUMN model INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE impressions ADD COLUMN temperature REAL NOT NULL DEFAULT 0.15;
    ALTER TABLE impressions ADD COLUMN keep REAL NOT NULL DEFAULT 0.9;
    UPDATE impressions SET kind = 'pdgd', state = 'learned', trial = 7;
    INSERT INTO settings VALUES ('order', 'drawn'), ('model', 1), ('own_model', 7), ('trial_phase', 'replay');
    DROP INDEX impressions_by_state;
    CREATE INDEX impressions_by_state ON impressions (state);
    PRAGMA user_version = 3;
"""
BACK_TO_1 = """
    DROP INDEX impressions_with_features;
    ALTER TABLE impressions DROP COLUMN memory;
    DROP TABLE agent_folders;
    DROP TABLE agent_searches;
    PRAGMA user_version = 1;
"""


@pytest.mark.parametrize("version", [1, 3])
def test_a_folder_of_an_earlier_format_keeps_its_clicks_and_its_record_of_what_was_sent(tmp_path, version):
    clock = Clock()
    with opened(tmp_path, clock) as client:
        found = client.search("orchard apple water")
        client.open_document(found.impression, 5)
        clock.wait(3600)
        client.status()
        client.store.db.executescript(BACK_TO_3 + (BACK_TO_1 if version == 1 else ""))
        chance = client.store.setting("chance")
    shared = tmp_path / "store" / "federation" / "searches"
    shared.mkdir(parents=True)
    (shared / "000000000001").write_bytes(b"recorded for a federation")
    for again in (False, True):
        with SearchClient(tmp_path / "store", clock=clock) as client:
            np.testing.assert_array_equal(client.rows.weights(), start_weights(LIVE_1))
            assert client.store.setting("chance") == chance
            status = client.status()
            assert (status.clicks, status.impressions, status.order) == (1, {"closed": 1}, "learned")
            assert client.rows.get(found.impression).kind == "plain"
            assert client.shown(found.impression).results[5].clicked
            assert client.lists.memory.lifts(LIVE_1.query("orchard apple water"), [found.results[5].id]).values == [3]
            assert client.store.rows("SELECT what FROM sent") == [("a message of an earlier version",)]
            assert not client.store.rows(
                "SELECT 1 FROM sqlite_master WHERE name IN ('vectors', 'written_to', 'models')"
            )
            assert not shared.exists()
            client.settings.set_order("learned")
            assert client.index().unchanged == 40 * again, "files are read again once"
            assert client.store.count("SELECT count(*) FROM files WHERE content IS NULL") == 0

"""The index follows the store."""

from __future__ import annotations

import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.files import Locked
from fedrank.search.index import Engine
from fedrank.search.index_sync import IndexSync
from fedrank.search.results import Filters
from fedrank.search.store import Store
from tests.search.stored import add_documents, stored


def found(sync, word):
    return sorted(sync.engine.candidates_for(LIVE_1.query(word), Filters(), False).documents.tolist())


@pytest.fixture
def sync(tmp_path):
    rows = stored(tmp_path, ["apple tree", "plum tree"])
    yield IndexSync(rows.store, LIVE_1, Engine(tmp_path))
    rows.store.close()


def test_what_is_in_the_store_is_indexed_when_it_is_opened(sync):
    assert (found(sync, "apple"), found(sync, "tree")) == ([1], [1, 2])
    assert sync.store.indexed == sync.store.seq


def test_it_follows_when_told_or_when_it_is_far_behind(sync):
    add_documents(sync.store, ["cherry tree"])
    sync.follow_if_behind(2)
    assert found(sync, "cherry") == []
    sync.follow_if_behind(1)
    assert found(sync, "cherry") == [3]
    with sync.store.writing():
        sync.store.remove([1])
    sync.follow()
    assert found(sync, "tree") == [2, 3]


def test_an_index_with_another_number_of_documents_is_made_anew(sync):
    sync.engine.make_anew()
    sync.engine.fresh = False  # as if it had followed
    assert found(sync, "tree") == []
    sync.follow()
    assert found(sync, "tree") == [1, 2]


def test_one_process_at_a_time_updates_and_another_catches_up(sync, tmp_path):
    store = Store(tmp_path)
    with sync.updating():
        other = IndexSync(store, LIVE_1, Engine(tmp_path))  # which does not wait
        with pytest.raises(Locked, match="the index in"), other.updating():
            pass
        add_documents(sync.store, ["cherry tree"])
        sync.follow()
    assert found(other, "cherry") == []
    other.catch_up()
    assert found(other, "cherry") == [3]
    store.close()


def test_an_empty_index_is_in_step_with_an_empty_store(sync):
    with sync.store.writing():
        sync.store.remove([1, 2])
        sync.store.set(indexed=sync.store.seq)
    sync.begin_anew()
    assert sync.engine.documents == 0
    sync.catch_up()
    sync.follow()
    assert sync.engine.documents == 0

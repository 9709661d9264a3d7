"""The index follows the store."""

from __future__ import annotations

import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.files import Locked
from fedrank.search.index import Engine
from fedrank.search.results import Filters
from fedrank.search.store import Store
from tests.search.stored import add_documents, stored


def found(engine, word):
    return sorted(engine.candidates_for(LIVE_1.engine_terms(word), Filters(), False).documents.tolist())


@pytest.fixture
def engine(tmp_path):
    rows = stored(tmp_path, ["apple tree", "plum tree"])
    yield Engine(rows.store, LIVE_1)
    rows.store.close()


def test_what_is_in_the_store_is_indexed_when_it_is_opened(engine):
    assert (found(engine, "apple"), found(engine, "tree")) == ([1], [1, 2])
    assert engine.store.indexed == engine.store.seq


def test_it_follows_when_told_or_when_it_is_far_behind(engine):
    add_documents(engine.store, ["cherry tree"])
    engine.follow_if_behind(2)
    assert found(engine, "cherry") == []
    engine.follow_if_behind(1)
    assert found(engine, "cherry") == [3]
    with engine.store.writing():
        engine.store.remove([1])
    engine.follow()
    assert found(engine, "tree") == [2, 3]


def test_an_index_with_another_number_of_documents_is_made_anew(engine):
    engine.make_anew()
    engine.fresh = False  # as if it had followed
    assert found(engine, "tree") == []
    engine.follow()
    assert found(engine, "tree") == [1, 2]


def test_one_process_at_a_time_updates_and_another_catches_up(engine, tmp_path):
    store = Store(tmp_path)
    with engine.updating():
        other = Engine(store, LIVE_1)  # which does not wait
        with pytest.raises(Locked, match="the index in"), other.updating():
            pass
        add_documents(engine.store, ["cherry tree"])
        engine.follow()
    assert found(other, "cherry") == []
    other.catch_up()
    assert found(other, "cherry") == [3]
    store.close()


def test_an_empty_index_is_in_step_with_an_empty_store(engine):
    with engine.store.writing():
        engine.store.remove([1, 2])
        engine.store.set(indexed=engine.store.seq)
    engine.begin_anew()
    assert engine.documents == 0
    engine.catch_up()
    engine.follow()
    assert engine.documents == 0


def test_a_repeated_word_counts_and_a_function_word_does_not(engine):
    add_documents(engine.store, ["apple plum", "the plum the the"])
    engine.follow()

    def order(text):
        found = engine.candidates_for(LIVE_1.engine_terms(text), Filters(), False)
        return dict(zip(found.documents.tolist(), found.scores.tolist(), strict=True))

    once, twice = order("apple plum"), order("apple plum plum")
    assert once[2] < once[1] == pytest.approx(twice[1])  # apple is rarer than plum
    assert twice[2] == pytest.approx(2 * once[2])
    assert order("the plum") == order("plum")
    assert order("the") != {}

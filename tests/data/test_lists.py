"""Result lists follow the paper's rules: natural candidates, then a window of the BM25 ranking around the click."""

from __future__ import annotations

import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.documents import Documents
from fedrank.data.lists import NOT_FOUND, TOO_SHORT, ListRules, bm25, lists_for_query, ranked
from fedrank.seeds import rng_for

FALLING = np.arange(12, 0, -1).astype(np.float32)  # scores of 12 documents: document d has rank d
FOUR = ListRules(length=4, depth=10)


def lists_of(rules, target, natural, scores=FALLING, draws=60):
    return [rules.list_for(target, np.array(natural), scores, rng_for(0, "test", draw)) for draw in range(draws)]


def distinct(lists):
    return {tuple(one.tolist()) for one in lists}


def test_a_window_with_the_click_at_every_place():
    # Window of 4 - 1 + 1 = 4 documents around document 5, anywhere within it.
    expected = {(2, 3, 4, 5), (3, 4, 5, 6), (4, 5, 6, 7), (5, 6, 7, 8)}
    assert distinct(lists_of(FOUR, 5, [5])) == expected


def test_places_are_equally_likely():
    counts = Counter(one.tolist().index(5) for one in lists_of(FOUR, 5, [5], draws=2000))
    assert all(abs(counts[place] - 500) < 5 * math.sqrt(2000 * 0.25 * 0.75) for place in range(4))


def test_a_window_is_moved_to_stay_inside():
    # Ranks 0 .. 9 only, as the depth is 10: at either end there is little choice.
    assert distinct(lists_of(FOUR, 0, [0])) == {(0, 1, 2, 3)}
    assert distinct(lists_of(FOUR, 1, [1])) == {(0, 1, 2, 3), (1, 2, 3, 4)}
    assert distinct(lists_of(FOUR, 9, [9])) == {(6, 7, 8, 9)}


def test_natural_candidates_come_first_and_leave_the_ranking():
    # 4 and 7 were clicked as well; the window holds 4 - 3 + 1 = 2 documents of 0 1 2 3 5 6 8 9.
    assert distinct(lists_of(FOUR, 5, [4, 5, 7])) == {(3, 4, 5, 7), (4, 5, 6, 7)}


def test_natural_candidates_need_not_match():
    # Document 11 is beyond the depth. As the clicked one it cannot be found; as another candidate it can.
    assert lists_of(FOUR, 11, [11]) == [NOT_FOUND] * 60
    assert distinct(lists_of(FOUR, 0, [0, 11])) == {(0, 1, 2, 11)}


def test_full_lists_need_no_ranking():
    assert distinct(lists_of(FOUR, 11, [2, 4, 8, 11])) == {(2, 4, 8, 11)}
    nothing = np.zeros(12, dtype=np.float32)
    assert distinct(lists_of(FOUR, 11, [2, 4, 8, 11], nothing)) == {(2, 4, 8, 11)}


def test_too_many_candidates_lose_any_but_the_clicked_one():
    found = distinct(lists_of(FOUR, 11, [1, 3, 5, 7, 11], draws=200))
    assert found == {(1, 3, 5, 11), (1, 3, 7, 11), (1, 5, 7, 11), (3, 5, 7, 11)}


def test_what_does_not_match_is_no_neighbour():
    scores = np.where(np.arange(12) < 3, FALLING, 0).astype(np.float32)
    assert lists_of(FOUR, 1, [1], scores) == [TOO_SHORT] * 60
    filled = lists_of(ListRules(length=4, depth=10, short="fill"), 1, [1], scores, draws=300)
    assert distinct(filled) == {(0, 1, 2, other) for other in range(3, 12)}
    # What was clicked for the query and does not match is in the list already, and is not drawn again.
    assert distinct(lists_of(ListRules(length=5, depth=10, short="fill"), 1, [1, 7], scores, draws=300)) == {
        (0, 1, 2, *sorted((7, other))) for other in range(3, 12) if other != 7
    }


def test_a_collection_that_is_too_small_cannot_fill():
    scores = np.array([2, 1, 0], dtype=np.float32)
    assert lists_of(ListRules(length=4, depth=4, short="fill"), 0, [0], scores) == [TOO_SHORT] * 60


def test_a_shuffled_window_holds_anything_that_matches():
    found = lists_of(ListRules(length=4, depth=10, window="shuffled"), 5, [5], draws=300)
    assert {int(document) for one in found for document in one} == set(range(10))
    assert all(5 in one for one in found)
    assert {one.tolist().index(5) for one in found} == {0, 1, 2, 3}
    assert any(sorted(one) != one.tolist() for one in found)


def test_equal_scores_keep_the_order_of_the_collection():
    scores = np.array([0, 1, 2, 1, 2, 1, 0], dtype=np.float32)
    assert ranked(scores, 10).tolist() == [2, 4, 1, 3, 5]
    assert ranked(scores, 4).tolist() == [2, 4, 1, 3]
    assert ranked(scores, 1).tolist() == [2]


def test_all_entries_of_a_query_share_their_candidates():
    found = lists_for_query(FOUR, [3, 9, 20], np.array([5, 7, 5]), FALLING, seed=1)
    assert [set(one.tolist()) >= {5, 7} for one in found] == [True] * 3
    again = lists_for_query(FOUR, [20], np.array([5]), FALLING, seed=1)
    alone = FOUR.list_for(5, np.array([5]), FALLING, rng_for(1, "lists", 20))
    assert again[0].tolist() == alone.tolist()


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_every_list_has_the_click_once_and_no_document_twice(data):
    length = data.draw(st.integers(2, 20))
    documents = data.draw(st.integers(1, 60))
    rules = ListRules(
        length,
        depth=data.draw(st.integers(length, 70)),
        window=data.draw(st.sampled_from(["ranked", "shuffled"])),
        short=data.draw(st.sampled_from(["drop", "fill"])),
    )
    whole = st.lists(st.integers(0, 3), min_size=documents, max_size=documents)
    scores = np.array(data.draw(whole), dtype=np.float32)
    natural = np.array(sorted(data.draw(st.sets(st.integers(0, documents - 1), min_size=1, max_size=30))))
    target = int(data.draw(st.sampled_from(natural.tolist())))
    seed = data.draw(st.integers(0, 99))
    found = rules.list_for(target, natural, scores, rng_for(seed, "x"))
    again = rules.list_for(target, natural, scores, rng_for(seed, "x"), ranked(scores, rules.depth))
    best = ranked(scores, rules.depth)
    if isinstance(found, str):
        assert found == again
        assert len(natural) < length
        if found == NOT_FOUND:
            assert target not in best
        else:
            # Even all that could stand in a list together is too little.
            unmatched = np.flatnonzero(scores == 0).tolist() if rules.short == "fill" else []
            assert len({*natural.tolist(), *best.tolist(), *unmatched}) < length
        return
    assert found.tolist() == again.tolist()
    assert len(found) == len(set(found.tolist())) == length
    assert target in found
    if len(natural) <= length:
        assert set(natural.tolist()) <= set(found.tolist())
    else:
        assert set(found.tolist()) <= set(natural.tolist())
    if rules.window == "ranked":
        keys = [(-scores[document], document) for document in found]
        assert keys == sorted(keys)
        if rules.short == "drop" and len(natural) <= length:
            # Without the natural candidates the window is one piece of the ranking.
            pruned = [document for document in best.tolist() if document == target or document not in natural]
            window = [document for document in found.tolist() if document == target or document not in natural]
            if len(natural) < length:
                start = pruned.index(window[0])
                assert pruned[start : start + len(window)] == window


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"length": 1}, "length must be from 2 to 127"),
        ({"length": 200, "depth": 300}, "length must be from 2 to 127"),
        ({"depth": 19}, "depth must be at least the list length 20"),
        ({"window": "random"}, "window must be 'ranked' or 'shuffled'"),
        ({"short": "keep"}, "short must be"),
    ],
)
def test_rules_that_make_no_sense(settings_, message):
    with pytest.raises(ValueError, match=message):
        ListRules(**settings_)


def small_collection():
    return Documents(["a", "b", "c"], ["red fox", "", "dog"], ["fox fox runs", "a red dog", ""], ["", "", "x red"])


def test_bm25_over_title_text_and_url_by_hand():
    pytest.importorskip("bm25s")
    score = bm25(small_collection(), str.split)
    # Joined: "red fox fox fox runs" (5 words), "a red dog" (3), "dog x red" (3); mean length 11 / 3.
    lengths, mean = (5, 3, 3), 11 / 3

    def weight(tf, length, documents_with):
        idf = math.log(1 + (3 - documents_with + 0.5) / (documents_with + 0.5))
        return idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * length / mean))

    assert score("fox") == pytest.approx([weight(3, 5, 1), 0, 0], rel=1e-5)
    expected = [weight(1, lengths[0], 3), *(weight(1, n, 3) + weight(1, n, 2) for n in lengths[1:])]
    assert score("red dog") == pytest.approx(expected, rel=1e-5)
    assert score("unheard of").tolist() == [0, 0, 0]
    assert score("").tolist() == [0, 0, 0]


def test_bm25_refuses_a_collection_without_words():
    pytest.importorskip("bm25s")
    with pytest.raises(ValueError, match="no document contains a word"):
        bm25(Documents(["a"], [""], [""], [""]), str.split)


def test_without_bm25s_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[logs\]'"):
        bm25(small_collection(), str.split)

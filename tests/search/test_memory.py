"""The memory of clicks: what was opened for these words, or for similar ones, moves up; nothing else does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.search.lists import ResultLists
from fedrank.search.memory import BEHIND, LEAST, LIFT, ClickMemory, Lifts, likeness
from tests.search.made_up import Clock
from tests.search.stored import candidates, query, stored

TEXTS = ["roof invoice", "roof repair", "train ticket", "train to Lisbon", "sourdough bread", "choir", "choir concert"]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def lists(tmp_path, clock):
    rows = stored(tmp_path, TEXTS)
    yield ResultLists(rows)
    rows.store.close()


@pytest.fixture
def memory(lists):
    return ClickMemory(lists.store)


def click(lists, clock, text, document, times=1):
    for _ in range(times):
        one = lists.add(query(text, clock), *candidates(len(TEXTS)))
        position = int(np.flatnonzero(one.candidates[one.shown] == document)[0])
        lists.rows.click(one.id, position, document, clock())
        clock.wait(60)
    return one


def lifts(memory, text):
    return memory.lifts(LIVE_1.query(text), range(1, len(TEXTS) + 1)).values.tolist()


def test_clicks_for_the_same_words_lift_more_and_more(lists, clock, memory):
    assert not any(lifts(memory, "roof invoice"))
    for times in (1, 2, 3):
        click(lists, clock, "the roof invoice", 2)
        found = lifts(memory, "the roof invoice")
        assert found[1] == pytest.approx(LIFT * times / (times + 1))
        assert sum(found) == found[1]


def test_similar_words_lift_less_and_other_words_not_at_all(lists, clock, memory):
    click(lists, clock, "roof invoice", 1)
    similar = likeness(LIVE_1.query("roof invoice copy"), [LIVE_1.query("roof invoice").key], lists.store.statistics())
    assert similar == pytest.approx(1)  # no document has "copy": it has no weight
    [half] = likeness(LIVE_1.query("roof invoice train"), [LIVE_1.query("roof invoice").key], lists.store.statistics())
    assert LEAST < half < 1
    assert lifts(memory, "roof invoice train")[0] == pytest.approx(LIFT * half / (half + 1))
    [little] = likeness(LIVE_1.query("roof train choir"), [LIVE_1.query("roof").key], lists.store.statistics())
    assert 0 < little < LEAST
    for other in ("choir concert", "roof train choir", "zebra", ""):
        assert not any(lifts(memory, other))


def test_similar_words_do_not_displace_a_first_result_that_has_all_words():
    scores = np.array([3, 2.5, 2, 1], np.float32)
    values = np.array([0, 5, 5, 0.5], np.float32)
    same = np.array([False, False, True, False])
    covered = np.array([1, 1, 0.8, 0.8], np.float16)
    found = Lifts(values, same).limited(scores, covered)
    np.testing.assert_allclose(found, [0, 0.5 - BEHIND, 5, 0.5], atol=1e-6)  # the second stays behind the first
    assert (scores + found).argmax() == 2  # opened for the same words
    several = Lifts(np.array([0, 5, 6, 5.8], np.float32), np.zeros(4, np.bool_)).limited(scores, covered)
    assert np.argsort(-(scores + several)).tolist() == [0, 2, 1, 3]  # in their order, behind the first
    equal = Lifts(values, same).limited(np.array([3, 3, 2, 1], np.float32), covered)
    assert 0 < equal[1] < 1e-20  # opened before, and not moved

    def unchanged(values=values, covered=covered):
        return np.array_equal(Lifts(values, same).limited(scores, np.array(covered, np.float16)), values)

    assert unchanged(covered=[0.9, 0.8, 0.8, 0.8])  # the first result lacks words
    assert unchanged(covered=[0.96, 1, 0.8, 0.8])  # the second has more words
    assert unchanged(values=np.array([0.1, 5, 5, 0.5], np.float32))  # it was opened, too
    assert not len(Lifts(values[:0], same[:0]).limited(scores[:0], covered[:0]))


def test_a_document_that_is_passed_over_is_lifted_less(lists, clock, memory):
    click(lists, clock, "choir", 6)
    assert lifts(memory, "choir")[5] == pytest.approx(LIFT / 2)
    click(lists, clock, "choir", 7)  # below document 6, which is passed over
    [first, second] = memory.reasons(LIVE_1.query("choir"), [6, 7])
    assert (first.document, first.clicks, first.passed_over) == (6, 1, 1)
    assert (second.document, second.clicks, second.passed_over) == (7, 1, 0)
    assert lifts(memory, "choir")[5:] == pytest.approx([LIFT / 3, LIFT / 2])
    click(lists, clock, "choir", 7)  # now above it
    assert memory.reasons(LIVE_1.query("choir"), [6])[0].passed_over == 1
    assert not lifts(memory, "bread")[5]


def expected_lifts(events, asked, idf):
    """The rule from a plain list of events: the words of a query, the shown documents, and which were opened."""

    def weight(words):
        return sum(idf[word] for word in words)

    lifts = []
    for document in range(1, len(TEXTS) + 1):
        clicks = passed_over = 0.0
        for words, shown, opened in events:
            like = weight(words & asked) / weight(words | asked)
            times = sum(document in chosen for other, _, chosen in events if other == words)
            if like < LEAST or not times:
                continue
            clicks += like * (document in opened)
            below = opened & {*shown[shown.index(document) + 1 :]}
            passed_over += like * (document not in opened and bool(below))
        lifts.append(LIFT * clicks / (clicks + passed_over + 1))
    return lifts


def test_lifts_as_an_obvious_program_computes_them(lists, clock, memory):
    chance, words = np.random.default_rng(5), ["roof", "invoice", "train", "choir", "concert", "bread"]
    of_word = {word: int(LIVE_1.query(word).stems[0]) for word in words}
    idf = {word: float(memory.store.statistics().idf(np.array([stem]))[0]) for word, stem in of_word.items()}
    events = []
    for _ in range(60):
        some = [words[i] for i in chance.choice(len(words), chance.integers(1, 4), replace=False)]
        one = lists.add(query(" ".join(some), clock), *candidates(len(TEXTS)))
        shown = one.candidates[one.shown].tolist()
        opened = {document for document in shown if chance.random() < 0.2}
        for document in opened:
            lists.rows.click(one.id, shown.index(document), document, clock())
        clock.wait(60)
        events.append(({*some}, shown, opened))
        asked = [words[i] for i in chance.choice(len(words), chance.integers(1, 4), replace=False)]
        assert lifts(memory, " ".join(asked)) == pytest.approx(expected_lifts(events, {*asked}, idf), abs=1e-5)


def test_a_list_by_date_passes_nothing_over(lists, clock, memory):
    click(lists, clock, "choir", 6)
    one = lists.add(query("choir", clock, sort="date"), *candidates(len(TEXTS)))
    lists.rows.click(one.id, 6, 7, clock())
    assert [each.passed_over for each in memory.reasons(LIVE_1.query("choir"), [6, 7])] == [0, 0]


def test_a_bounced_click_passes_nothing_over(lists, clock, memory):
    click(lists, clock, "choir", 6)
    one = click(lists, clock, "choir", 7)
    lists.rows.bounce(one.id, int(np.flatnonzero(one.candidates[one.shown] == 7)[0]))
    assert memory.reasons(LIVE_1.query("choir"), [6])[0].passed_over == 0


def covered_candidates():
    """Candidates of which the first has all words of the query."""
    found, raw = candidates(len(TEXTS))
    raw[:, LIVE_1.names.index("covered")] = [1, *[0.8] * (len(TEXTS) - 1)]
    return found, raw


def test_a_list_keeps_a_first_result_that_has_all_words(lists, clock):
    click(lists, clock, "roof invoice", 3, times=5)
    found, raw = covered_candidates()

    def order(text, sort="rank"):
        one = lists.add(query(text, clock, sort=sort), found, raw)
        assert one.memory is not None
        return one.candidates[one.shown][:3].tolist(), float(one.memory[2])

    assert order("roof invoice") == ([3, 1, 2], pytest.approx(5))
    shown, lift = order("roof invoice train")
    assert shown == [1, 3, 2]
    assert 0 < lift < 5
    shown, mark = order("roof invoice train", sort="date")
    assert shown == [1, 2, 3]
    assert lift < mark < 5  # not limited, since the first result is not the engine's


def test_only_the_latest_lists_of_a_query_pass_over_and_none_that_no_longer_count(lists, clock, memory, monkeypatch):
    monkeypatch.setattr("fedrank.search.memory.LISTS", 2)
    click(lists, clock, "choir", 6)
    for _ in range(3):
        one = lists.add(query("choir", clock), *candidates(len(TEXTS)))
        lists.rows.click(one.id, 6, int(one.candidates[one.shown][6]), clock())
    for _ in range(3):
        click(lists, clock, "choir concert train", 7)
    [first] = [one for one in memory.reasons(LIVE_1.query("choir"), [1, 6]) if one.document == 6]
    assert first.passed_over == 2
    with lists.store.writing():
        lists.store.set(remember_after=one.id - 1)
    click(lists, clock, "choir", 6)
    [first] = [one for one in memory.reasons(LIVE_1.query("choir"), [6]) if one.document == 6]
    assert (first.clicks, first.passed_over) == (1, 1)


def test_a_list_is_never_shortened_by_a_process_that_read_it_earlier(tmp_path, clock):
    rows = stored(tmp_path, [f"choir {number}" for number in range(30)])
    lists = ResultLists(rows)
    one = lists.add(query("choir", clock), *candidates(30))
    lists.extend(one, 3)
    rows.click(one.id, 25, 26, clock())
    lists.extend(one, 2)  # as it was read before
    assert len(rows.get(one.id).shown) == 30
    assert ClickMemory(rows.store).reasons(LIVE_1.query("choir"), [26, 1])[0].clicks == 1
    rows.store.close()


def test_clicks_for_other_words_say_so(lists, clock, memory):
    click(lists, clock, "roof invoice", 1)
    query = LIVE_1.query("roof invoice train")
    assert not memory.lifts(query, [1]).same.any()
    click(lists, clock, "roof invoice train", 1)
    assert memory.lifts(query, [1, 2]).same.tolist() == [True, False]


def test_likeness_by_hand(lists):
    """Seven documents: roof, train and choir are in two, all others in one."""
    two, one = (np.log1p((7 - n + 0.5) / (n + 0.5)) for n in (2, 1))
    keys = [LIVE_1.query(text).key for text in ("roof invoice", "invoice roof roof", "invoice", "choir", "")]
    found = likeness(LIVE_1.query("roof invoice"), keys, lists.store.statistics())
    np.testing.assert_allclose(found, [1, 1, one / (one + two), 0, 0])


def test_a_bounced_or_forgotten_click_lifts_nothing(lists, clock, memory):
    one = click(lists, clock, "choir concert", 7)
    lists.rows.bounce(one.id, int(np.flatnonzero(one.candidates[one.shown] == 7)[0]))
    assert not any(lifts(memory, "choir concert"))
    click(lists, clock, "choir concert", 7)
    assert any(lifts(memory, "choir concert"))
    with lists.store.writing():
        lists.store.db.execute("DELETE FROM clicks")
    assert not any(lifts(memory, "choir concert"))


def test_the_reasons_name_the_earlier_queries(lists, clock, memory):
    click(lists, clock, "roof invoice", 1, times=2)
    last = click(lists, clock, "Invoice roof train", 1)
    found = memory.reasons(LIVE_1.query("roof invoice"), [1, 2, 3])
    assert [(one.document, one.query, one.clicks) for one in found] == [
        (1, "roof invoice", 2), (1, "Invoice roof train", 1),
    ]  # fmt: skip
    assert found[0].likeness == 1 > found[1].likeness >= LEAST
    assert found[1].time == clock() - 60
    assert memory.reasons(LIVE_1.query("roof invoice"), [1, 2, 3], before=last.id) == (replace(found[0]),)


def test_a_list_shows_what_was_opened_first_and_records_the_lift(lists, clock):
    click(lists, clock, "choir", 6, times=3)
    found, raw = candidates(len(TEXTS))
    one = lists.get(lists.add(query("choir", clock), found, raw).id)
    assert one.candidates[one.shown[0]] == 6
    assert one.memory is not None
    assert one.memory.tolist() == pytest.approx([0, 0, 0, 0, 0, LIFT * 3 / 4, 0])
    other = lists.get(lists.add(query("bread", clock), found, raw).id)
    assert other.memory is None
    np.testing.assert_allclose(one.scores - one.memory, other.scores, rtol=1e-6)

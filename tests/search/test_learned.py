"""Why a list has its order, and what was learned about the user, in words; and that it can be forgotten."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1, NAMES
from fedrank.ranking.gate import Team
from fedrank.search.impressions import start_weights
from fedrank.search.learned import IN_WORDS, MEMORY, sentences, what_was_learned, why_in_words
from fedrank.search.memory import EarlierClicks
from fedrank.search.opponents import ENGINE, FORGETFUL
from fedrank.search.results import Cause, Explained, Gone, NotFound, Result, Snippet
from tests.search.made_up import Clock, opened

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
WEEK = 7 * 86_400.0


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(tmp_path, clock):
    with opened(tmp_path, clock) as one:
        yield one


def open_at(client, clock, query, position):
    found = client.search(query)
    client.open_document(found.impression, position)
    clock.wait(3600)
    client.status()
    return found.results[position].id


def an_explanation(*causes, score=1.0, position=0, engine=0, gone=False):
    result = Result(7, position, "file", "A title", "/a", "", 0, Snippet(""), False, gone)
    return Explained(result, score, position, engine, tuple(Cause(*each) for each in causes))


def test_every_feature_with_a_weight_has_words():
    assert {NAMES[feature] for feature in np.flatnonzero(start_weights(LIVE_1))} == set(IN_WORDS)


def test_what_was_opened_comes_first_with_query_times_and_day(client, clock):
    document = open_at(client, clock, "orchard apple", 4)
    open_at(client, clock, "orchard apple", 0)
    found = client.search("apple orchard")
    why = why_in_words(client, found.impression)
    [(one, said)] = [each for each in why.results if each[0].result.id == document]
    assert one.result.before
    assert said[0].startswith("You opened it ")
    assert "for “orchard apple”, last on 2023-11-1" in said[0]
    assert said[-1] == f"It moved up from position {one.engine_position + 1} in the search engine for that reason."
    others = [said for one, said in why.results if not one.result.before]
    assert others
    assert not any("You opened it" in " ".join(each) for each in others)
    assert why.query == "apple orchard"


def test_a_click_in_the_list_itself_is_not_its_own_reason(client, clock):
    found = client.search("orchard apple")
    client.open_document(found.impression, 2)
    assert not any("You opened" in " ".join(said) for _, said in why_in_words(client, found.impression).results)


def test_clicks_that_were_deleted_since_are_said_to_be(client, clock):
    document = open_at(client, clock, "orchard apple", 4)
    found = client.search("orchard apple")
    client.store.db.execute("DELETE FROM clicks")
    said = {one.result.id: " ".join(said) for one, said in why_in_words(client, found.impression).results}
    assert "those clicks no longer count" in said[document]


def test_sentences_by_hand():
    clicks = [
        EarlierClicks(7, "roof bill", 1_700_000_000.0, 2, 0, 1.0),
        EarlierClicks(7, "the roof", 1_700_000_000.0, 1, 3, 0.6),
        EarlierClicks(7, "x", 1.0, 12, 0, 0.5),
    ]
    there = an_explanation(position=4, engine=4)
    assert sentences(there, clicks) == [
        "You opened it twice for “roof bill”, last on 2023-11-14.",
        "You opened it once for the similar words “the roof”, last on 2023-11-14, and opened a result below it "
        "instead 3 times.",
        "You also opened it for 1 other query.",
        "The search engine has it at this position, too.",
    ]
    assert sentences(an_explanation(gone=True), clicks) == []
    assert sentences(an_explanation(engine=4), []) == ["The search engine alone has it at position 5."], "by date"


def test_a_move_is_explained_by_what_separates_it_from_the_results_that_it_passed():
    up = an_explanation(
        ("engine", 1, 0.2), ("near pairs", 1, 0.9), ("title precision", 1, 0.4), score=3.0, position=0, engine=2
    )
    first = an_explanation(
        ("engine", 1, 0.6), ("near pairs", 1, 0.1), ("title precision", 1, 0.4), score=2.0, position=1
    )
    second = an_explanation(
        ("engine", 1, 0.4), ("near pairs", 1, 0.3), ("title precision", 1, 0.0), score=1.0, position=2, engine=1
    )
    shown = (up, first, second)
    near, title = "how many of your words are near each other", IN_WORDS["title precision"]
    # Gaps: near pairs .9 - .2, title precision .4 - .2, engine .2 - .5.
    assert sentences(up, [], shown) == [
        f"It moved up from position 3 in the search engine because of {near} and {title}."
    ]
    assert sentences(first, [], shown) == [
        f"It moved down from position 1 in the search engine, because others are ahead in {near}."
    ]
    assert sentences(second, [], shown) == [
        f"It moved down from position 2 in the search engine, because others are ahead in {near} and "
        + title.replace("its", "their")
        + "."
    ]
    better = replace(first, score=4.0)  # passed only because the list mixes two orders
    assert sentences(better, [], (up, better)) == ["It moved down from position 1 in the search engine."]


def test_a_move_because_of_earlier_clicks():
    up = an_explanation((MEMORY, 1, 3.0), ("near pairs", 1, 0.9), score=3.0, position=0, engine=1)
    down = an_explanation((MEMORY, 1, -0.1), ("near pairs", 1, 0.1), score=1.0, position=1, engine=0)
    clicks = [EarlierClicks(7, "roof", 1_700_000_000.0, 1, 0, 1.0)]
    assert sentences(up, clicks, (up, down))[-1] == "It moved up from position 2 in the search engine for that reason."
    assert sentences(up, [], (up, down))[-1].endswith("you had opened it before; those clicks no longer count.")
    assert sentences(down, [], (up, down)) == [
        "It moved down from position 1 in the search engine, below results that you opened before."
    ]


def test_how_a_list_was_made_is_said(client, clock):
    def order(**how):
        return why_in_words(client, client.search("orchard apple", **how).impression).order

    assert "what you opened before" in order()
    assert order(sort="date") == "This list is sorted by date."
    client.settings.set_order("engine")
    assert order() == "This list is in the order of the search engine."
    client.settings.set_order("learned")
    assert why_in_words(client, client.search("nothinglikeit").impression).results == ()


def test_what_cannot_be_explained(client):
    with pytest.raises(NotFound):
        why_in_words(client, 77)
    found = client.search("orchard")
    client.store.db.execute("UPDATE impressions SET scores = NULL, features = NULL")
    with pytest.raises(Gone):
        why_in_words(client, found.impression)


def test_what_was_learned_lists_queries_documents_and_days(client, clock):
    assert what_was_learned(client).remembered == ()
    first = open_at(client, clock, "orchard apple", 0)
    open_at(client, clock, "orchard pear", 1)
    open_at(client, clock, "Apple orchard", 0)
    learned = what_was_learned(client)
    assert (learned.searches, learned.clicks) == (3, 3)
    assert learned.pairs == len(learned.remembered)
    assert learned.remembered[0].query in ("orchard apple", "Apple orchard")
    assert {one.document for one in learned.remembered} >= {first}
    assert sum(one.clicks for one in learned.remembered) == 3
    times = [one.time for one in learned.remembered]
    assert times == sorted(times, reverse=True)


def test_bounced_clicks_and_forgotten_documents_are_not_remembered(client, clock):
    document = open_at(client, clock, "orchard apple", 0)
    found = client.search("orchard pear")
    client.open_document(found.impression, 1)
    client.bounced(found.impression, 1)
    assert [one.document for one in what_was_learned(client).remembered] == [document]
    client.forget(document=document)
    assert what_was_learned(client).remembered == ()


def test_the_difference_to_the_engine_by_week_by_hand(client, clock):
    for position, shown, place in ((1, [4, 0, 2], 0), (2, [4, 0, 2], 1), (3, [1, 0], 1)):
        found = client.search("orchard apple")
        client.open_document(found.impression, 0)
        with client.store.writing():
            client.store.db.execute("UPDATE impressions SET shown = ? WHERE id = ?", (bytes(shown), found.impression))
            client.store.db.execute("UPDATE clicks SET place = ? WHERE impression = ?", (place, found.impression))
        clock.wait(WEEK if position == 2 else 3600)
    first, second = what_was_learned(client).weeks
    gains = [1 / math.log2(position + 2) for position in range(5)]
    assert first.opened == 2
    assert first.difference == pytest.approx((gains[0] - gains[4] + gains[1] - gains[0]) / 2)
    assert second.difference == pytest.approx(gains[1] - gains[0])
    assert second.difference < 0 < WEEK - (second.begins - first.begins) + 3700


def test_lists_mixed_with_the_engine_are_counted_for_whom_they_were_won(client, clock, monkeypatch):
    for share in ("SHARE", "MEMORY_SHARE"):
        monkeypatch.setattr(f"fedrank.search.opponents.{share}", 1.0)
    for team in (Team.OLD, Team.OLD, Team.NEW):
        found = client.search("orchard apple")
        teams = client.rows.get(found.impression).teams
        client.open_document(found.impression, int(np.flatnonzero(teams == team)[0]))
        clock.wait(3600)
    learned = what_was_learned(client)
    rows = client.store.rows("SELECT opponent, teams FROM impressions WHERE kind = 'interleaved' AND state = 'closed'")
    assert [opponent for opponent, _ in rows] == [ENGINE, FORGETFUL, FORGETFUL], "then there is a memory to compare"
    assert (learned.wins, learned.losses) == (2, 1)


def test_forgetting_what_was_learned_leaves_documents_and_nothing_else(client, clock):
    for _ in range(3):
        open_at(client, clock, "orchard xylophonist", 3)
    before = client.status()
    gone = client.forget(learned=True)
    assert (gone.documents, gone.impressions, gone.clicks) == (0, before.searches, before.clicks)
    after = client.status()
    assert (after.documents, after.searches, after.clicks) == (before.documents, 0, 0)
    assert what_was_learned(client).remembered == ()
    assert not any(b"xylophonist" in path.read_bytes() for path in client.folder.rglob("*") if path.is_file())
    assert not any(result.before for result in client.search("orchard apple").results)

"""What a person can ask of the client: to forget, to tell what it knows, to hand out; and whatever a query may be."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest

from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
from fedrank.data.log_fold import log_fold
from fedrank.search.client import SearchClient
from fedrank.search.results import Filters, NotFound, SearchError
from tests.engine.schema import problems
from tests.search.kills import check_agreement
from tests.search.made_up import Clock, opened, write_documents


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(tmp_path, clock):
    with opened(tmp_path, clock, count=25) as client:
        yield client


def search_and_click(client, clock, query, place=1):
    found = client.search(query)
    client.open_document(found.impression, place)
    clock.wait(60)
    return found


@pytest.mark.parametrize(
    "query",
    [
        "", " ", "\0", "orchard\0", 'title:(" AND', "orchard OR NOT -", "🍎 orchard", "\ud83c", "orchard " * 8_000, "*",
        "a" * 65_536, "orchard\n\r\tapple", "' OR 1=1; --", "../../etc", "<script>", "[1 TO 2]", "ＯＲＣＨＡＲＤ",
    ],
)  # fmt: skip
def test_any_text_is_a_query(client, query):
    found = client.search(query)
    assert found.query.encode() is not None
    if any(word in query.lower() for word in ("orchard", "ｏｒｃｈａｒｄ")):
        assert len(found.results) == 10
    assert client.shown(found.impression) == found
    assert client.shown(found.impression, 1).pages == max(found.pages, 0)
    for filters in (Filters("file"), Filters(since=0, before=1)):
        client.search(query, filters, "date")


def test_snippets_show_where_the_words_stand(client, tmp_path):
    text = "start " * 300 + "the <b>rare</b> Wombats were here " + "end " * 300
    (tmp_path / "documents" / "long.txt").write_text(text)
    client.index()
    (result,) = client.search("wombat rare").results
    marked = [result.snippet.text[a:b] for a, b in result.snippet.marked]
    assert marked == ["rare", "Wombats"]
    assert "<b>" in result.snippet.text  # as it is: whoever shows it escapes
    assert result.snippet.text.startswith("… start")
    assert result.snippet.text.endswith("end …")
    (tmp_path / "documents" / "short.txt").write_text("(a quokka)\n")
    client.index()
    (result,) = client.search("quokka").results
    assert (result.snippet.text, result.snippet.marked) == ("a quokka", ((2, 8),)), "nothing is cut"
    (tmp_path / "documents" / "endless.txt").write_text("platypus " + "é" * 100_000 + " last")
    client.index()
    for query, shown in (("platypus", "platypus …"), ("é" * 2_000, "platypus …"), ("last", "platypus …")):
        for result in client.search(query).results:
            assert result.snippet.text == shown, "a word without end is no snippet"
    (tmp_path / "documents" / "endless.txt").write_text("é" * 100_000 + " echidna")
    client.index()
    (result,) = client.search("echidna").results
    assert result.snippet.text == "é" * 400 + " …"


def test_markup_and_odd_names_come_through_as_they_are(client, tmp_path):
    name = b"odd \xff<script>.txt"
    path = os.path.join(os.fsencode(tmp_path / "documents"), name)
    with open(path, "w") as file:
        file.write("wombats <img src=x>")
    client.index()
    (result,) = client.search("wombats").results
    assert result.title == "odd \ufffd<script>.txt"
    json.dumps(result.title).encode()
    assert client.pages.document(result.id).original == os.fsdecode(path)


def test_the_file_name_is_searched_but_is_not_part_of_the_text(client, tmp_path):
    text = "# Dinner\n\nWombats eat grass."
    (tmp_path / "documents" / "quokka-recipes.md").write_text(text)
    (tmp_path / "documents" / "echidna-long.md").write_text("# Long\n\n" + "grass " * 5_000)
    client.index()
    (result,) = client.search("quokka").results
    assert (result.title, result.snippet.text) == ("Dinner", "Dinner\n\nWombats eat grass".replace("\n", " "))
    assert client.pages.document(result.id).text == text
    assert [word.heading.marked for word in client.search("dinners").results] == [((0, 6),)]
    assert [result.title for result in client.search("echidna").results] == ["Long"]


def test_a_file_without_bookmarks_is_refused_and_stays_searchable(client, tmp_path):
    recipes = tmp_path / "documents" / "recipes.md"
    recipes.write_text("# Soup\n\nWombats like soup.")
    other = write_documents(tmp_path / "other", 3)
    for path in (recipes, other):
        with pytest.raises(SearchError, match="contains no bookmarks; nothing was indexed"):
            client.index([other], bookmarks=[path])
    assert client.status().roots == (str(tmp_path / "documents"),)
    client.index()
    assert [result.title for result in client.search("wombats").results] == ["Soup"]
    marks = tmp_path / "bookmarks.html"
    marks.write_text('<!DOCTYPE NETSCAPE-Bookmark-file-1>\n<DL><DT><A HREF="http://a.example/">Platypus</A></DL>')
    client.index(bookmarks=[marks])
    assert [result.kind for result in client.search("platypus").results] == ["page"]


def test_a_removed_folder_takes_its_documents_along(client, tmp_path):
    other = write_documents(tmp_path / "other", 3)
    (other / "wombats.txt").write_text("wombats")
    (other / "broken.bin").write_bytes(b"\0")
    (other / "link").symlink_to(other / "wombats.txt")
    assert client.index([other]).documents == 29
    with pytest.raises(SearchError, match="is not one of the indexed folders"):
        client.remove_root(other / "wombats.txt")
    for path in other.iterdir():
        path.unlink()
    other.rmdir()
    assert client.remove_root(other) == 4
    assert not client.search("wombats").results
    status = client.status()
    assert (status.documents, status.skipped, status.roots) == (25, {}, (str(tmp_path / "documents"),))
    assert client.index().documents == 25
    check_agreement(client)


def test_forgetting_a_query_deletes_its_rows_and_no_others(client, clock):
    search_and_click(client, clock, "orchard apple")
    search_and_click(client, clock, "Apple  ORCHARD")
    kept = search_and_click(client, clock, "orchard pear")
    gone = client.forget(query="apple orchard")
    assert (gone.impressions, gone.clicks, gone.documents) == (2, 2, 0)
    assert [id for (id,) in client.store.rows("SELECT id FROM impressions")] == [kept.impression]
    assert [id for (id,) in client.store.rows("SELECT impression FROM clicks")] == [kept.impression]


def test_what_is_forgotten_is_not_in_the_files_any_more(client, clock):
    secret = "orchard xylophonist"
    search_and_click(client, clock, secret)
    client.store.sweep()
    files = [path for path in client.folder.rglob("*") if path.is_file()]
    assert any(b"xylophonist" in path.read_bytes() for path in files)
    client.forget(query=secret)
    assert not any(b"xylophonist" in path.read_bytes() for path in files if path.exists())


def test_forgetting_since_a_moment(client, clock):
    old = search_and_click(client, clock, "orchard apple")
    moment = int(clock())
    search_and_click(client, clock, "orchard pear")
    client.open_document(old.impression, 3)  # a late click in an old list
    gone = client.forget(since=moment)
    assert (gone.impressions, gone.clicks) == (1, 2)
    assert [click.position for click in client.rows.clicks(old.impression)] == [1]


def test_forgetting_a_document_removes_it_everywhere_and_for_good(client, clock, tmp_path):
    found = search_and_click(client, clock, "orchard apple", place=0)
    document = found.results[0].id
    gone = client.forget(document=document)
    assert (gone.documents, gone.clicks) == (1, 1)
    with pytest.raises(NotFound):
        client.pages.document(document)
    assert client.shown(found.impression).results[0].gone
    assert document not in client.rows.get(found.impression).candidates
    assert document not in [result.id for result in client.search("orchard apple").results]
    done = client.index()
    assert done.documents == 24
    os.utime(tmp_path / "documents" / found.results[0].title, (5, 5))  # read again, and left out
    done = client.index()
    assert (done.documents, done.skipped) == (24, {"forgotten": 1})
    with pytest.raises(NotFound):
        client.forget(document=10**21)


def test_searches_that_showed_a_forgotten_document_stay_and_are_named_or_go_with_it(client, clock):
    def searches():
        return [query for (query,) in client.store.rows("SELECT query FROM impressions ORDER BY id")]

    first = search_and_click(client, clock, "orchard apple", place=0)
    search_and_click(client, clock, "orchard")
    client.search("nothing like it")
    one, other = (result.id for result in first.results[:2])
    shown = [each for each in ("orchard apple", "orchard") if one in [r.id for r in client.search(each).results]]
    before = searches()
    gone = client.forget(document=one)
    assert set(gone.kept) == set(shown)
    assert gone.impressions == 0
    assert searches() == before
    listing = client.pages.listed(other)
    assert listing >= 2
    gone = client.forget(document=other, searches=True)
    assert (gone.documents, gone.impressions, gone.kept) == (1, listing, ())
    assert "nothing like it" in searches()
    assert len(searches()) == len(before) - listing
    assert client.store.count("SELECT count(*) FROM clicks WHERE impression NOT IN (SELECT id FROM impressions)") == 0


def test_not_even_the_name_of_a_forgotten_document_is_kept(client, tmp_path):
    (tmp_path / "documents" / "xylophonist.txt").write_text("a wombat")
    box = tmp_path / "documents" / "box.mbox"
    box.write_bytes(b"From a\nSubject: one zebra\n\nx\n\nFrom b\nSubject: two zebras\n\ny\n")
    client.index()
    (document,) = (result.id for result in client.search("wombat").results)
    (mail, _) = (result.id for result in client.search("zebra").results)
    client.forget(query="wombat")
    client.forget(document=document)
    client.forget(document=mail)
    for again in (False, True):
        if again:
            os.utime(box, (5, 5))  # read again
            assert client.index().skipped == {"forgotten": 2}
            client.store.sweep()
        files = [path for path in client.folder.rglob("*") if path.is_file()]
        assert not [path for path in files if b"xylophonist" in path.read_bytes()]
        assert len(client.search("zebra").results) == 1, "the other mail of the box stays"


def test_forgetting_everything_leaves_an_empty_client_that_works(client, clock, tmp_path):
    search_and_click(client, clock, "orchard apple", place=2)
    client.status()
    gone = client.forget(everything=True)
    assert (gone.documents, gone.impressions, gone.clicks) == (25, 1, 1)
    status = client.status()
    assert (status.documents, status.searches, status.clicks) == (0, 0, 0)
    assert status.roots == ()
    assert client.search("orchard").found == 0
    check_agreement(client)
    assert client.index([tmp_path / "documents"]).documents == 25
    assert client.search("orchard").found == 25
    check_agreement(client)  # no word of what was forgotten is counted


def test_forgetting_must_say_what(client):
    for what in ({}, {"query": "x", "since": 1}, {"query": "x", "everything": True}):
        with pytest.raises(SearchError, match="exactly one"):
            client.forget(**what)


def test_status_counts_and_is_json(client, clock):
    search_and_click(client, clock, "orchard apple", place=0)
    search_and_click(client, clock, "orchard pear", place=4)
    found = client.search("orchard plum")
    client.open_document(found.impression, 2)
    client.bounced(found.impression, 2)
    clock.wait(3600)
    status = client.status()
    assert (status.documents, status.searches, status.clicks, status.bounced) == (25, 3, 2, 1)
    assert status.impressions == {"abandoned": 1, "closed": 2}
    (week,) = status.weeks
    assert (week.searches, week.clicked, week.first, week.top_three, week.abandoned) == (3, 2, 1, 1, 1)
    assert week.reciprocal == pytest.approx((1 + 1 / 5) / 3)
    read = json.loads(status.as_json())
    assert (read["searches"], read["order"], read["feature_set"]) == (3, "learned", "live-1")
    assert read["disk_bytes"] > 10_000


def test_another_language_has_its_own_stems_and_stays(tmp_path, clock):
    (tmp_path / "a.txt").write_text("viele Häuser")
    for language, found in (("german", 1), ("english", 0), ("none", 0)):
        with SearchClient(tmp_path / language, clock=clock, language=language) as client:
            client.index([tmp_path / "a.txt"])
            assert client.search("häusern").found == found
    with SearchClient(tmp_path / "german", clock=clock) as client:
        assert client.status().feature_set == "live-1-german"
        assert client.search("häusern").found == 1
    with pytest.raises(SearchError, match="created with the language german"):
        SearchClient(tmp_path / "german", language="french")
    with pytest.raises(SearchError, match="klingon"):
        SearchClient(tmp_path / "new", language="klingon")


def test_settings_are_checked_and_kept(client, clock):
    for wrong in (lambda: client.learn_setting("maybe"), lambda: client.settings.set_order("upside down")):
        with pytest.raises(SearchError):
            wrong()
    client.settings.set_order("engine")
    client.learn_setting("off")
    client.close()
    with SearchClient(client.folder, clock=clock) as again:
        status = again.status()
        assert (status.order, status.learn) == ("engine", False)


def test_clicked_before_is_a_rule_and_no_feature(client, clock):
    found = search_and_click(client, clock, "orchard apple", place=2)
    again = client.search("apple orchard")
    place = [result.id for result in again.results].index(found.results[2].id)
    assert place < 2
    one = client.rows.get(again.impression)
    names = ("clicked for this query", "clicked", "opened lately")
    assert not one.raw[:, [client.features.names.index(name) for name in names]].any()
    (cause,) = (cause for cause in client.why(again.impression)[place].causes if cause.feature == "opened before")
    assert cause.value == 0.5
    assert 2 < cause.share < 3
    assert client.rows.get(client.search("cherry").impression).memory is None


def test_ubi_is_written_in_the_order_shown_without_clicks_taken_back(client, clock, tmp_path):
    found = search_and_click(client, clock, "orchard äpple", place=3)
    client.shown(found.impression, 2)
    client.open_document(found.impression, 5)
    client.bounced(found.impression, 5)
    files = client.export_ubi(tmp_path / "ubi")
    (query,) = map(json.loads, Path(files.queries).read_text(encoding="utf-8").splitlines())
    (event,) = map(json.loads, Path(files.events).read_text(encoding="utf-8").splitlines())
    assert query["user_query"] == "orchard äpple"
    assert query["query_response_hit_ids"][:10] == [str(result.id) for result in found.results]
    assert len(query["query_response_hit_ids"]) == 20
    assert problems("ubi-query", query) == problems("ubi-event", event) == []
    assert event["query_id"] == query["query_id"]
    assert event["action_name"] == "click"
    assert event["event_attributes"]["object"]["object_id"] == str(found.results[3].id)
    assert event["event_attributes"]["position"]["ordinal"] == 4
    assert query["timestamp"].endswith("Z")
    assert (files.searches, files.clicks) == (1, 1)
    assert os.stat(files.queries).st_mode & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "ubi").stat().st_mode) == 0o700


def test_an_export_leaves_a_folder_that_was_there_as_open_as_it_was(client, tmp_path):
    folder = tmp_path / "of everybody"
    folder.mkdir()
    folder.chmod(0o755)
    files = client.export_ubi(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(Path(files.events).stat().st_mode) == 0o600


def test_what_is_exported_becomes_a_data_set(client, clock, tmp_path):
    found = search_and_click(client, clock, "orchard apple", place=3)
    client.shown(found.impression, 2)
    other = client.search("orchard pear")
    files = client.export_ubi(tmp_path / "ubi")
    seen = {result.id for shown in (found, client.shown(found.impression, 2), other) for result in shown.results}
    documents = [client.pages.document(id) for id in sorted(seen)]
    rows = [{"id": str(one.id), "title": one.title, "text": one.text} for one in documents]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = UbiSource(Path(files.queries), Path(files.events))
    log = build_shown(source, tmp_path / "docs.jsonl", tmp_path / "log", ShownBuild(features="live-1"))
    assert log.facts["left_out"] == log.facts["noticed"] == {}
    lists = [[int(log.documents[log.document[pair]]) for pair in one if pair >= 0] for one in log.lists]
    assert lists[0][:10] == [result.id for result in found.results]
    assert len(lists[0]) == 20
    assert lists[1] == [result.id for result in other.results]
    assert np.argwhere(log.clicks).tolist() == [[0, 3]], "the click stands where it was made"
    assert (log.users, log.unit) == (("me",), "browser")
    assert log.queries == ("[redacted 1]", "[redacted 2]"), "asked by fewer than five"
    train = log_fold(log.folder, test_share=0.5).train
    assert train.position.tolist() == list(range(20))
    assert train.grades.tolist() == [int(place == 3) for place in range(20)]


def test_searches_go_on_while_files_are_indexed(client, tmp_path):
    write_documents(tmp_path / "documents", 400)
    problems, done = [], threading.Event()

    def searches():
        try:
            while not done.is_set():
                client.search("orchard apple")
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=searches) for _ in range(2)]
    for thread in threads:
        thread.start()
    client.index()
    done.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert client.search("orchard").found == 400


def test_nothing_is_opened_to_the_outside(client, clock, monkeypatch):
    import socket

    def refuse(*_, **__):
        raise AssertionError("a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    search_and_click(client, clock, "orchard")
    client.index()
    client.status()

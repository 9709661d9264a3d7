"""Histories of browsers and libraries of Zotero, also while they are written, and databases that want to do harm."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from fedrank.search import databases
from fedrank.search.readers import Unreadable
from fedrank.search.sources import walk
from tests.search.made_up import opened
from tests.search.reading import read

FIREFOX = """CREATE TABLE moz_places (id INTEGER PRIMARY KEY, url, title, visit_count, hidden, last_visit_date);
INSERT INTO moz_places VALUES
    (1, 'https://example.org/apple-trees', 'Pruning & more', 3, 0, 1704103200000000),
    (2, 'https://example.org/untitled', NULL, 1, 0, 1704103100000000),
    (3, 'https://example.org/hidden', 'Hidden', 1, 1, 1704103200000000),
    (4, 'https://example.org/never', 'Bookmark only', 0, 0, NULL),
    (5, 'file:///etc/passwd', 'File', 9, 0, 1704103200000000),
    (6, 'https://example.org/odd', x'ff00', 'many', 0, 'soon');"""
CHROME = """CREATE TABLE visits (id); CREATE TABLE urls (id INTEGER PRIMARY KEY, url, title, visit_count, typed_count,
    last_visit_time, hidden);
INSERT INTO urls VALUES (1, 'https://example.org/x?a=1', 'From Chrome', 2, 0, 13348576800000000, 0);"""
ZOTERO = """CREATE TABLE items (itemID INTEGER PRIMARY KEY, key, dateModified);
CREATE TABLE deletedItems (itemID);
CREATE TABLE fields (fieldID, fieldName); CREATE TABLE itemDataValues (valueID, value);
CREATE TABLE itemData (itemID, fieldID, valueID);
CREATE TABLE creators (creatorID, firstName, lastName); CREATE TABLE itemCreators (itemID, creatorID, orderIndex);
CREATE TABLE tags (tagID, name); CREATE TABLE itemTags (itemID, tagID);
CREATE TABLE itemNotes (itemID, parentItemID, note);
CREATE TABLE itemAttachments (itemID, parentItemID, path);
CREATE TABLE itemAnnotations (itemID, parentItemID, text, comment);
INSERT INTO items VALUES (1, 'AAAAAAAA', '2024-01-02 03:04:05'), (2, 'FFFFFFFF', ''), (3, 'NNNNNNNN', ''),
    (4, 'DDDDDDDD', ''), (5, 'SSSSSSSS', '2024-01-01 00:00:00'), (6, '../../xx', '');
INSERT INTO deletedItems VALUES (4);
INSERT INTO fields VALUES (1, 'title'), (2, 'abstractNote'), (3, 'DOI'), (4, 'date');
INSERT INTO itemDataValues VALUES (1, 'On apples'), (2, 'They are round.'), (3, '10.1/x'), (4, '2019-05-00 May'),
    (5, 'Gone');
INSERT INTO itemData VALUES (1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 4, 4), (4, 1, 5);
INSERT INTO creators VALUES (1, 'Ann', 'Boyle'), (2, NULL, 'Orchard Society');
INSERT INTO itemCreators VALUES (1, 2, 1), (1, 1, 0);
INSERT INTO tags VALUES (1, 'fruit'); INSERT INTO itemTags VALUES (1, 1);
INSERT INTO itemNotes VALUES (3, 1, '<p>read <b>again</b></p>'), (5, NULL, '<h1>Alone</h1> a note');
INSERT INTO itemAttachments VALUES (2, 1, 'storage:apples.pdf'), (6, 1, 'storage:evil.pdf');
INSERT INTO itemAnnotations VALUES (9, 2, 'marked text', 'my comment');"""


def database(path, script, journal="delete"):
    path.parent.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode = {journal}")
        db.executescript(script)
    return path


def pieces(path):
    """What is read from a file that was given by itself."""
    return [piece for found in walk(path) for piece in found.pieces()]


def test_the_history_of_firefox_is_addresses_titles_and_times(tmp_path):
    path = database(tmp_path / "places.sqlite", FIREFOX)
    third, first, second = pieces(path)  # a time that is no number comes first
    assert (first.kind, first.title, first.where) == ("page", "Pruning & more", "https://example.org/apple-trees")
    assert (first.text, first.date, first.link) == ("example org apple trees", 1704103200, first.where)
    assert (second.title, second.date) == ("https://example.org/untitled", 1704103100)
    assert (third.title, third.date) == ("https://example.org/odd", 0)


def test_the_history_of_chrome_counts_from_1601(tmp_path):
    (one,) = pieces(database(tmp_path / "History", CHROME))
    assert (one.title, one.date, one.link) == ("From Chrome", 1704103200, "https://example.org/x?a=1")


def test_a_history_is_read_only_where_it_was_asked_for(tmp_path):
    for profile in ("one", "deeper/two"):
        (tmp_path / profile).mkdir(parents=True)
        (tmp_path / profile / "prefs.js").write_text("user_pref('x', 1);")
        (tmp_path / profile / "logins.json").write_text("{}")
        database(tmp_path / profile / "places.sqlite", FIREFOX)
    database(tmp_path / "places.sqlite", FIREFOX)
    documents, reasons = read(tmp_path)
    assert [*documents] == ["one/places.sqlite"]
    assert reasons.pop("places.sqlite") == "not text"
    assert {*reasons.values()} == {"data of a program"}


def test_a_profile_below_an_indexed_folder_can_be_asked_for(tmp_path):
    with opened(tmp_path, count=2) as client:
        profile = tmp_path / "documents" / "settings" / "programs" / "abc.default"
        profile.parent.mkdir(parents=True)
        database(profile / "places.sqlite", FIREFOX)
        (profile / "prefs.js").touch()
        assert client.index().documents == 2
        assert client.index([profile]).documents == 5
        for _ in range(2):
            done = client.index([profile, profile.parent])
            assert (done.added, done.removed, done.documents) == (0, 0, 5)
            assert len(client.status().roots) == 2


def test_the_folder_of_chrome_is_the_histories_of_its_profiles(tmp_path):
    (tmp_path / "Local State").write_text("{}")
    for profile in ("Default", "Profile 2", "Crashpad"):
        database(tmp_path / profile / "History", CHROME)
        (tmp_path / profile / "Preferences").write_text("{}")
    documents, reasons = read(tmp_path)
    assert [*documents] == ["Default/History", "Profile 2/History"]
    assert {*reasons.values()} == {"data of a program"}


def test_a_history_is_read_while_the_browser_writes_it(tmp_path):
    path = database(tmp_path / "places.sqlite", FIREFOX, "wal")
    with contextlib.closing(sqlite3.connect(path)) as db:
        before = next(walk(path))
        db.execute("PRAGMA wal_autocheckpoint = 0")
        db.execute("INSERT INTO moz_places VALUES (7, 'https://example.org/new', 'New', 1, 0, 1704103300000000)")
        db.commit()
        db.execute("BEGIN EXCLUSIVE")
        names = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
        after = next(walk(path))
        assert pieces(path)[1].title == "New"
        assert (after.size, after.modified) != (before.size, before.modified), "a change in the log is noticed"
        assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == names, "nothing is written"


def test_a_change_that_was_interrupted_is_taken_back_in_the_copy(tmp_path):
    path = database(tmp_path / "zotero.sqlite", ZOTERO)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("PRAGMA cache_spill = 1")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("UPDATE itemDataValues SET value = 'half' || value")
        db.execute("CREATE TABLE filler AS WITH n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3000) SELECT "
                   "randomblob(900) FROM n")  # fmt: skip
        assert (tmp_path / "zotero.sqlite-journal").exists()
        assert "On apples" in [one.title for one in pieces(path)]


def test_a_library_is_its_items_with_notes_and_the_text_of_their_files(tmp_path):
    database(tmp_path / "zotero.sqlite", ZOTERO)
    cache = tmp_path / "storage" / "FFFFFFFF" / ".zotero-ft-cache"
    cache.parent.mkdir(parents=True)
    cache.write_text("the whole paper")
    (cache.parent / "apples.pdf").write_bytes(b"%PDF-")
    (tmp_path / "storage" / "AAAAAAAA").symlink_to(tmp_path)
    documents, reasons = read(tmp_path)
    assert reasons == {"storage": "data of a program"}
    item, note = documents["zotero.sqlite"]
    assert (item.part, item.kind, item.title, item.link) == ("AAAAAAAA", "note", "On apples", "https://doi.org/10.1/x")
    assert item.where == "Zotero · Ann Boyle, Orchard Society · 2019"
    assert item.date == 1704164645
    for text in ("They are round.", "fruit", "read again", "marked text my comment", "apples.pdf", "the whole paper"):
        assert text in item.text
    assert (note.part, note.title, note.text) == ("SSSSSSSS", "Alone a note", "Alone\n a note")


def test_a_text_of_an_attached_file_that_is_a_link_is_not_read(tmp_path):
    database(tmp_path / "zotero.sqlite", ZOTERO)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "storage" / "FFFFFFFF").mkdir(parents=True)
    (tmp_path / "storage" / "FFFFFFFF" / ".zotero-ft-cache").symlink_to(tmp_path / "secret")
    documents, _ = read(tmp_path)
    assert "secret" not in documents["zotero.sqlite"][0].text


def test_hostile_databases_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "MAX_VALUE", 1_000_000)
    whole = database(tmp_path / "whole", FIREFOX).read_bytes()
    hostile = {
        "cut": whole[:5_000],
        "zeros": whole[:100] + bytes(len(whole) - 100),
        "header": b"SQLite format 3\0" + b"\xff" * 5_000,
    }
    scripts = {
        "view": "CREATE VIEW moz_places AS WITH n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x url FROM n",
        "columns": "CREATE TABLE moz_places (url)",
        "large": "CREATE TABLE moz_places (url, title, visit_count, hidden, last_visit_date);"
        "INSERT INTO moz_places VALUES ('https://a.org', zeroblob(5000000), 1, 0, 1)",
        "other": "CREATE TABLE notes (text)",
    }
    reasons = {}
    for name, data in hostile.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "places.sqlite").write_bytes(data)
    for name, script in scripts.items():
        database(tmp_path / name / "places.sqlite", script)
    for name in (*hostile, *scripts):
        (reasons[name],) = map(str, pieces(tmp_path / name / "places.sqlite"))
    assert {name for name, reason in reasons.items() if reason == "not text"} == {"view", "other"}
    assert {reason for name, reason in reasons.items() if name not in ("view", "other")} == {"broken database"}


def test_a_database_that_is_too_large_is_not_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "MAX_COPY", 10_000)
    path = database(tmp_path / "places.sqlite", FIREFOX)
    (tmp_path / "places.sqlite-wal").write_bytes(bytes(9_000))
    (reason,) = pieces(path)
    assert isinstance(reason, Unreadable)
    assert str(reason) == "too large"


def test_no_copy_stays(tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "copies"))
    path = database(tmp_path / "profile" / "places.sqlite", FIREFOX)
    for file in walk(path):
        found = file.pieces()
        next(found)
        assert os.listdir(tmp_path / "copies")
        found.close()
    assert not os.listdir(tmp_path / "copies")

"""What an update of the index does with files that changed, moved, came back or could not be read this time."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from fedrank.search import ingest
from fedrank.search.ingest import _wanted_below
from fedrank.search.readers import Unreadable
from fedrank.search.sources import FoundFile, is_wanted, walk, wanted_of
from tests.search.kills import check_agreement
from tests.search.made_up import opened
from tests.search.reading import zipped
from tests.search.test_databases import CHROME, FIREFOX, ZOTERO, database
from tests.search.test_packed import CELLS, SHARED
from tests.search.test_sources import MAIL


@pytest.fixture
def client(tmp_path):
    with opened(tmp_path, count=12) as client:
        yield client


@pytest.fixture
def documents(tmp_path):
    return tmp_path / "documents"


def clicked(client, query="orchard apple"):
    """The id of a document that was opened, and the name of its file."""
    found = client.search(query)
    id = client.open_document(found.impression, 2).id
    (path,) = client.store.one("SELECT path FROM files JOIN documents ON file = files.id WHERE documents.id = ?", id)
    return id, path.decode()


def place_of(client, id):
    found = client.store.one(
        "SELECT files.path FROM files JOIN documents ON file = files.id WHERE documents.id = ?", id
    )
    return found and os.fsdecode(found[0])


def clicks_on(client, id):
    return client.store.count("SELECT count(*) FROM clicks WHERE document = ?", id)


@pytest.mark.parametrize("target", ["a-new-name.txt", "row-new.txt", "inner/deeper/name.txt", "zz.txt"])
def test_a_moved_file_keeps_its_id_and_its_clicks(client, documents, target):
    id, name = clicked(client)
    (documents / target).parent.mkdir(parents=True, exist_ok=True)
    (documents / name).rename(documents / target)
    done = client.index()
    assert (done.moved, done.added, done.changed, done.removed, done.documents) == (1, 0, 1, 0, 12)
    assert place_of(client, id) == target
    assert clicks_on(client, id) == 1
    shown = client.search("orchard apple")
    (before,) = [result for result in shown.results if result.id == id]
    assert before.before
    assert before.where.endswith(target)
    assert client.index().unchanged == 12
    check_agreement(client)


def test_a_moved_folder_keeps_all_its_ids_and_also_one_in_another_root(client, documents, tmp_path):
    ids = [id for (id,) in client.store.rows("SELECT id FROM documents ORDER BY id")]
    inner = documents / "inner"
    inner.mkdir()
    for path in sorted(documents.glob("*.txt")):
        path.rename(inner / path.name)
    assert client.index().moved == 12
    inner.rename(documents / "outer")
    assert client.index().moved == 12
    for name in ("a-first", "z-last"):  # roots are read in the order of their ids
        (tmp_path / name).mkdir()
        client.index([tmp_path / name])
        shutil.move(documents / "outer", tmp_path / name / "outer")
        done = client.index()
        assert (done.moved, done.added, done.removed) == (12, 0, 0)
        shutil.move(tmp_path / name / "outer", documents / "outer")
        assert client.index().moved == 12
    assert [id for (id,) in client.store.rows("SELECT id FROM documents ORDER BY id")] == ids
    check_agreement(client)


def test_a_copy_is_another_document(client, documents):
    id, name = clicked(client)
    shutil.copy(documents / name, documents / "copy.txt")
    done = client.index()
    assert (done.moved, done.added) == (0, 1)
    assert place_of(client, id) == name
    (documents / name).unlink()
    done = client.index()
    assert (done.moved, done.removed) == (0, 1), "it is deleted, and the copy was there before"
    assert place_of(client, id) is None


def test_a_file_on_a_drive_that_is_not_there_stays_there(client, documents, tmp_path):
    id, name = clicked(client)
    shutil.copy(documents / name, tmp_path / "elsewhere.txt")
    documents.rename(tmp_path / "unplugged")
    done = client.index([tmp_path / "elsewhere.txt"])
    assert (done.moved, done.added, done.removed) == (0, 1, 0)
    (tmp_path / "unplugged").rename(documents)
    client.index()
    assert place_of(client, id) == name


def test_two_files_that_exchange_their_places_keep_what_they_are(client, documents):
    """A path that was there before belongs to its document; only what is inside changes."""
    (first, one), (second, other) = clicked(client), clicked(client, "orchard shade")
    if one == other:
        pytest.fail("the example needs two files")
    (documents / one).rename(documents / "x")
    (documents / other).rename(documents / one)
    (documents / "x").rename(documents / other)
    done = client.index()
    assert (done.moved, done.added, done.removed) == (0, 0, 0)
    assert (place_of(client, first), place_of(client, second)) == (one, other)
    check_agreement(client)


def test_a_mailbox_that_is_moved_keeps_its_messages(client, documents):
    box = documents / "box.mbox"
    box.write_bytes(b"".join(b"From x\n" + MAIL.replace(b"plain caf", b"message %d" % n) + b"\n\n" for n in range(3)))
    client.index()
    ids = client.store.rows("SELECT id FROM documents WHERE kind = 'mail' ORDER BY id")
    client.forget(document=ids[1][0])
    box.rename(documents / "renamed")
    assert client.index().moved == 1
    assert client.store.rows("SELECT id FROM documents WHERE kind = 'mail' ORDER BY id") == [ids[0], ids[2]]
    assert client.skipped()[0].reason == "forgotten"
    assert client.index().skipped == {"forgotten": 1}
    check_agreement(client)


def test_a_forgotten_file_stays_forgotten_when_it_moves(client, documents):
    id, name = clicked(client)
    client.forget(document=id)
    (documents / name).rename(documents / "moved.txt")
    for _ in range(2):
        done = client.index()
        assert (done.added, done.documents, done.skipped) == (0, 11, {"forgotten": 1})
    assert client.store.count("SELECT count(*) FROM files WHERE path = ?", b"moved.txt") == 0
    (documents / "moved.txt").write_text("something else about an orchard")
    assert client.index().added == 1, "another text is another document"


def test_only_changed_paths_are_looked_at(client, documents):
    (documents / "inner").mkdir()
    for name in ("new.txt", "inner/new.txt", "unseen.txt"):
        (documents / name).write_text(f"an orchard in {name}")
    (documents / "row000.txt").unlink()
    (documents / "row001.txt").unlink()
    done = client.index(changed=[documents / "new.txt", documents / "inner", documents / "row000.txt"])
    assert (done.files, done.added, done.removed) == (2, 2, 1)
    assert client.index(changed=[]).files == 0
    assert client.index(changed=[documents.parent]).files == 13, "a path above a root is all of it"
    done = client.index()
    assert (done.added, done.removed, done.documents) == (0, 0, 13)
    check_agreement(client)


def test_a_moved_file_is_recognised_among_changed_paths(client, documents):
    id, name = clicked(client)
    (documents / name).rename(documents / "moved.txt")
    done = client.index(changed=[documents / "moved.txt"])
    assert (done.moved, done.removed, place_of(client, id)) == (1, 0, "moved.txt")
    done = client.index(changed=[documents / name])
    assert (done.moved, done.removed, place_of(client, id)) == (0, 0, "moved.txt")


def test_a_changed_flag_of_a_message_is_noticed_by_its_new_name_only(client, documents):
    for folder in ("cur", "new", "tmp"):
        (documents / "Mail" / folder).mkdir(parents=True)
    (documents / "Mail" / "cur" / "1:2,").write_bytes(MAIL)
    client.index()
    (documents / "Mail" / "cur" / "1:2,").rename(documents / "Mail" / "cur" / "1:2,S")
    client.index(changed=[documents / "Mail" / "cur" / "1:2,S"])
    (documents / "Mail" / "cur" / "1:2,S").rename(documents / "Mail" / "cur" / "1:2,RS")
    done = client.index(changed=[documents / "Mail" / "cur" / "1:2,RS"])
    assert (done.added, done.removed) == (0, 0)
    check_agreement(client)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["/r/a"], {"a": None}),
        (["/r/a/b", "/r/a/c"], {"a": {"b": None, "c": None}}),
        (["/r"], None),
        (["/"], None),
        (["/other", "/rest"], {}),
        (["/r/places.sqlite-wal"], {"places.sqlite-wal": None, "places.sqlite": None}),
    ],
)
def test_paths_that_are_looked_at(changed, expected):
    assert _wanted_below(Path("/r"), [*map(Path, changed)]) == expected


def test_a_log_belongs_to_a_database_that_was_given_by_itself():
    assert _wanted_below(Path("/r/History"), [Path("/r/History-journal")]) is None
    assert _wanted_below(Path("/r/History"), [Path("/r/Other")]) == {}


def test_a_walk_of_wanted_paths_is_the_whole_walk_without_the_others(tmp_path):
    for name in ("a/b/c.txt", "a/b/d.txt", "a/e.txt", "f.txt", "g/h.txt", ".hidden/i.txt", "a/.j.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    whole = [found.key.decode() for found in walk(tmp_path)]
    for paths in (["a"], ["a/b/c.txt", "g"], ["a/b", "f.txt", "nowhere/at/all"], [".hidden/i.txt"], [], ["a/.j.txt"]):
        wanted = wanted_of(paths)
        found = [found.key.decode() for found in walk(tmp_path, {}, wanted)]
        above = {path.rpartition("/")[0] for path in paths}
        assert found == [name for name in whole if is_wanted(name, wanted) or name in above]


def test_an_unchanged_message_of_a_mailbox_is_not_counted_again(client, documents, monkeypatch):
    box = documents / "box.mbox"
    box.write_bytes(b"From x\n" + MAIL + b"\n\n")
    client.index()
    with box.open("ab") as file:
        file.write(b"From y\nSubject: two\n\nanother\n")
    made = []
    real = type(client.features).row
    monkeypatch.setattr(type(client.features), "row", lambda *words: made.append(words) or real(*words))
    done = client.index()
    assert (done.added, done.changed) == (1, 0)
    assert [body for _, title, body in made if title.strip() == "two"] == ["another"]
    assert not [title for _, title, _ in made if title.strip() == "Grüße"]


@pytest.mark.parametrize("reason", ["not read in time", "its reader was killed", "cannot be read"])
def test_documents_of_a_file_that_cannot_be_read_this_time_stay(client, documents, monkeypatch, reason):
    id, name = clicked(client)
    (documents / name).write_text("another text about an orchard")
    real = FoundFile.pieces
    monkeypatch.setattr(FoundFile, "pieces", lambda found, format="": iter([Unreadable(reason)]))
    done = client.index()
    assert (done.removed, done.skipped) == (0, {reason: 1})
    monkeypatch.setattr(FoundFile, "pieces", real)
    done = client.index()
    assert (done.changed, done.skipped) == (1, {}), "it is tried again, though it did not change"
    assert place_of(client, id) == name


def test_documents_are_stored_after_some_seconds_even_if_they_are_few(client, documents, monkeypatch):
    monkeypatch.setattr(ingest, "BATCH_SECONDS", 0.0)
    for n in range(5):
        (documents / f"new{n}.txt").write_text(f"orchard {n}")
    real, stored = FoundFile.pieces, []

    def pieces(found, format=""):
        stored.append(client.store.count("SELECT count(*) FROM documents"))
        if len(stored) == 4:
            raise KeyboardInterrupt
        return real(found, format)

    monkeypatch.setattr(FoundFile, "pieces", pieces)
    with pytest.raises(KeyboardInterrupt):
        client.index()
    assert stored == [12, 13, 14, 15], "a stop loses the file that is being read, and no other"
    monkeypatch.setattr(FoundFile, "pieces", real)
    done = client.index()
    assert (done.added, done.unchanged) == (2, 15)
    check_agreement(client)


def test_progress_knows_how_much_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest.time, "monotonic", lambda: time.perf_counter() * 1_000)
    said = []
    with opened(tmp_path, count=40) as client:
        for path in (tmp_path / "documents").iterdir():
            path.write_text(path.read_text() + "more")
        client.index(progress=lambda *words: said.append(words))
    reports = [(done, of, detail) for what, done, of, detail in (words for words in said if len(words) == 4)
               if what.endswith("documents") and of < 1e9]  # fmt: skip
    assert reports
    assert all(done <= of for done, of, _ in reports)
    assert [of for _, of, _ in reports] == pytest.approx([40] * len(reports), abs=2)
    assert sorted(reports) == reports
    assert "files" in reports[-1][2]


def test_many_deleted_files_are_removed_together(client, documents):
    for path in documents.glob("row00*.txt"):
        path.unlink()
    done = client.index()
    assert (done.removed, done.documents) == (10, 2)
    assert not client.store.rows("SELECT 1 FROM files WHERE path LIKE 'row00%'")
    check_agreement(client)


@pytest.mark.parametrize("ahead", [1, 3, 100])
def test_files_are_read_in_their_order_however_many_are_asked_for(tmp_path, monkeypatch, ahead):
    monkeypatch.setattr(ingest, "AHEAD", ahead)
    before = len(os.listdir("/proc/self/fd"))
    with opened(tmp_path, count=12) as client:
        names = [place_of(client, id) for (id,) in client.store.rows("SELECT id FROM documents ORDER BY id")]
    assert names == [f"row{n:03}.txt" for n in range(12)]
    assert len(os.listdir("/proc/self/fd")) == before


def write_sources(folder):
    """A file of every source that says "xylophonist" in one document."""
    from PIL import Image, PngImagePlugin

    folder.mkdir()
    zipped(folder / "a.docx", {"word/document.xml": "<p>xylophonist</p>"})
    zipped(folder / "b.pptx", {"ppt/slides/slide1.xml": "<p>xylophonist</p>"})
    shared = SHARED.replace("Fruit", "xylophonist")
    zipped(folder / "c.xlsx", {"xl/sharedStrings.xml": shared, "xl/worksheets/sheet1.xml": CELLS})
    zipped(folder / "d.odt", {"content.xml": "<o:p xmlns:o='o'>xylophonist</o:p>"})
    zipped(folder / "e.epub", {"x.opf": "<dc:title>A xylophonist</dc:title>", "y.xhtml": "<p>six</p>"})
    (folder / "f.md").write_text("---\ntitle: Notes\n---\n[[a|xylophonist]] #music\n")
    (folder / "g.py").write_text("def the_xylophonist(): pass\n")
    about = PngImagePlugin.PngInfo()
    about.add_text("Description", "xylophonist")
    Image.new("RGB", (8, 8)).save(folder / "h.png", pnginfo=about)
    profile = folder / "thunderbird"
    (profile / "Mail").mkdir(parents=True)
    (profile / "prefs.js").touch()
    (profile / "Mail" / "Inbox").write_bytes(
        b"From a\nSubject: a zebra\n\nx\n\nFrom b\nX-Mozilla-Status: 0000\nSubject: xylophonist\n\ny\n"
    )
    database(folder / "firefox" / "places.sqlite", FIREFOX.replace("Pruning", "xylophonist"))
    (folder / "firefox" / "prefs.js").touch()
    database(folder / "chrome" / "History", CHROME.replace("From Chrome", "xylophonist"))
    (folder / "chrome" / "Preferences").touch()
    database(folder / "zotero" / "zotero.sqlite", ZOTERO.replace("They are round", "xylophonist"))
    return folder


def write_again(folder):
    """Change all files with several documents, as their programs do, but not what they say."""
    box = folder / "thunderbird" / "Mail" / "Inbox"
    box.write_bytes(box.read_bytes().replace(b"Status: 0000", b"Status: 0001"))
    visited = "SET visit_count = visit_count + 1 WHERE visit_count > 0"
    for path, change in (
        ("firefox/places.sqlite", f"UPDATE moz_places {visited}"),
        ("chrome/History", f"UPDATE urls {visited}"),
        ("zotero/zotero.sqlite", "UPDATE tags SET name = name || '!'"),
    ):
        with contextlib.closing(sqlite3.connect(folder / path)) as db, db:
            db.execute(change)
    for path in folder.iterdir():
        os.utime(path, (5, 5))


def test_what_is_forgotten_of_any_source_stays_forgotten(client, tmp_path):
    folder = tmp_path / "sources"
    done = client.index([write_sources(folder)])
    assert {*done.skipped} == {"data of a program"}
    rows = client.store.rows("SELECT id, kind FROM documents")
    said = [(id, kind) for id, kind in rows if "xylophonist" in str(client.pages.document(id))]
    assert sorted(kind for _, kind in said) == [*["file"] * 8, "mail", "note", "page", "page"]
    others = {id for id, _ in rows} - {id for id, _ in said}
    for id, _ in said:
        assert client.forget(document=id).documents == 1
    for number in range(3):
        if number:
            write_again(folder)
            done = client.index()
            assert (done.added, done.skipped["forgotten"]) == (0, 12)
        if number == 2:
            shutil.rmtree(folder / "zotero")
            client.index()
        assert not client.search("xylophonist").results
        client.forget(query="xylophonist")
        client.store.sweep()
        files = [path for path in client.folder.rglob("*") if path.is_file()]
        assert not [path for path in files if b"xylophonist" in path.read_bytes()]
    left = {id for (id,) in client.store.rows("SELECT id FROM documents")}
    assert left < others
    check_agreement(client)
    client.remove_root(folder)
    assert client.store.count("SELECT count(*) FROM documents") == 12
    assert client.store.count("SELECT count(*) FROM files") == 12
    check_agreement(client)

"""The store is the only truth, the index of the engine follows it; both stand whatever happens to process or disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys

import pytest

from fedrank.files import Locked
from fedrank.search import ingest
from fedrank.search.client import SearchClient
from fedrank.search.index import Engine
from fedrank.search.ingest import roots_of
from fedrank.search.results import Filters, SearchError
from fedrank.search.store import FILE, VERSION, Store
from tests import needs
from tests.search.kills import check_agreement
from tests.search.made_up import Clock, opened, write_documents


def titles(client: SearchClient, query: str) -> set[str]:
    return {result.title for result in client.search(query).results}


def test_only_what_changed_is_read_again(tmp_path):
    with opened(tmp_path, count=12) as client:
        folder = tmp_path / "documents"
        (folder / "row000.txt").write_text("a zebra came")
        (folder / "row001.txt").unlink()
        (folder / "new.txt").write_text("a walrus came")
        done = client.index()
        assert (done.files, done.unchanged, done.added, done.changed, done.removed) == (12, 10, 1, 1, 1)
        assert titles(client, "zebra") == {"row000.txt"}
        assert titles(client, "walrus") == {"new.txt"}
        assert done.documents == 12
        check_agreement(client)
        os.utime(folder / "new.txt", (1, 1))  # touched: another date, so that it is another document
        done = client.index([folder])
        assert (done.unchanged, done.added, done.changed) == (11, 0, 1)
        check_agreement(client)


def test_a_mailbox_that_grew_adds_only_what_is_new(tmp_path):
    box = tmp_path / "Inbox"
    box.write_bytes(b"".join(b"From x\nSubject: number %d\n\nhello\n\n" % n for n in range(5)))
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        assert client.index([box]).added == 5
        before = dict(client.store.rows("SELECT part, id FROM documents"))
        with box.open("ab") as file:
            file.write(b"From x\nSubject: the sixth\n\nhello\n")
        os.utime(box, (2_000_000_000, 2_000_000_000))
        client.index()
        after = dict(client.store.rows("SELECT part, id FROM documents"))
        assert len(after) == 6
        assert before.items() <= after.items()
        check_agreement(client)


def test_a_root_that_is_away_keeps_its_documents(tmp_path):
    with opened(tmp_path, count=3) as client:
        (tmp_path / "documents").rename(tmp_path / "elsewhere")
        done = client.index()
        assert (done.documents, done.removed) == (3, 0)
        assert done.skipped == {"root is not there": 1}
        (tmp_path / "documents").symlink_to(tmp_path / "documents")  # a link to itself cannot be read at all
        done = client.index()
        assert (done.documents, done.removed, done.skipped) == (3, 0, {"root cannot be read": 1})


def test_a_folder_in_a_folder_is_read_once(tmp_path):
    outer = write_documents(tmp_path / "outer", 3)
    inner = write_documents(outer / "inner", 2)
    hidden = write_documents(outer / ".hidden", 4)
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        assert client.index([inner]).documents == 2
        ids = {result.id for result in client.search("orchard").results}
        assert client.index([outer]).documents == 5
        assert ids < {result.id for result in client.search("orchard").results}
        assert client.index([outer / "inner", outer / "row000.txt"]).documents == 5
        assert client.index([hidden]).documents == 9
        assert [root.path for root in roots_of(client.store)] == [inner, outer, hidden]
        check_agreement(client)


def test_a_path_that_is_not_there_is_one_line(tmp_path):
    with SearchClient(tmp_path / "store") as client, pytest.raises(SearchError, match="nothing was indexed"):
        client.index([tmp_path / "nowhere"])


def test_skipped_files_are_counted_until_they_can_be_read(tmp_path):
    folder = write_documents(tmp_path / "documents", 2)
    (folder / "picture.png").write_bytes(b"\0\1\2")
    (folder / "link.txt").symlink_to(folder / "row000.txt")
    (folder / "store").mkdir()
    with SearchClient(folder / "store") as client:
        first = client.index([folder])
        assert first.skipped == {"fedrank's own": 1, "link": 1, "not text": 1}
        assert client.index().skipped == first.skipped == client.status().skipped
        (folder / "picture.png").write_text("text now")
        assert client.index().skipped == {"fedrank's own": 1, "link": 1}


def test_nobody_else_may_look_into_the_folder(tmp_path):
    before = os.umask(0)
    try:
        with opened(tmp_path, count=3) as client:
            client.search("orchard")
            paths = [client.folder, *client.folder.rglob("*")]
            assert (client.folder / f"{FILE}-wal").exists()
            for path in paths:
                expected = 0o700 if path.is_dir() else 0o600
                assert stat.S_IMODE(path.stat().st_mode) == expected, path
    finally:
        os.umask(before)


def test_a_folder_of_other_things_is_left_as_it_is(tmp_path):
    (tmp_path / "mine.txt").write_text("of everybody")
    tmp_path.chmod(0o755)
    with pytest.raises(SearchError, match="contains other files; nothing was changed"):
        SearchClient(tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    with opened(tmp_path / "own", count=2) as client:
        folder = client.folder
    (folder / FILE).unlink()  # as who is told that it is damaged does
    SearchClient(folder).close()


@pytest.mark.usefixtures("impatient")
def test_two_cannot_serve_one_folder(tmp_path):
    with SearchClient(tmp_path / "store", serve=True):
        with pytest.raises(Locked, match="is in use by process"):
            SearchClient(tmp_path / "store", serve=True)
        with SearchClient(tmp_path / "store") as other:  # to index meanwhile
            other.index([write_documents(tmp_path / "documents", 2)])


def test_what_another_process_indexed_is_found_at_once(tmp_path):
    with opened(tmp_path, count=3) as client:
        with SearchClient(client.folder, clock=Clock()) as other:
            (tmp_path / "documents" / "zebra.txt").write_text("a zebra")
            other.index()
        assert titles(client, "zebra") == {"zebra.txt"}
        check_agreement(client)


def test_a_newer_database_is_refused_and_left_as_it_is(tmp_path):
    with opened(tmp_path, count=1) as client:
        folder = client.folder
    with sqlite3.connect(folder / FILE) as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    before = (folder / FILE).read_bytes()
    with pytest.raises(SearchError, match="newer fedrank"):
        SearchClient(folder)
    assert (folder / FILE).read_bytes() == before


def test_another_programs_database_is_refused(tmp_path):
    (tmp_path / "store").mkdir()
    with sqlite3.connect(tmp_path / "store" / FILE) as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    with pytest.raises(SearchError, match="another program"):
        Store(tmp_path / "store")


def test_a_damaged_database_is_one_line(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / FILE).write_bytes(b"this is no database at all" * 100)
    with pytest.raises(SearchError, match="damaged"):
        Store(tmp_path / "store")


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(SearchError, match="file"):
        Store(tmp_path / "file" / "store")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "x")

    monkeypatch.setattr("fedrank.search.store.os.open", refuse)  # root may write anywhere
    with pytest.raises(SearchError, match="is not writable"):
        Store(tmp_path / "store")


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path):
    with opened(tmp_path, count=5) as client:
        pages = client.store.one("PRAGMA page_count")[0]
        client.store.db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then says that the disk is full
        write_documents(tmp_path / "documents", 200)
        with pytest.raises(SearchError, match="free disk space"):
            client.index()
        check_agreement(client)
        assert client.status().documents == 5
        client.store.db.execute("PRAGMA max_page_count = 1000000")
        assert client.index().documents == 200
        check_agreement(client)


def test_an_engine_that_cannot_write_is_one_line_and_follows_later(tmp_path, monkeypatch):
    with opened(tmp_path, count=5) as client:
        write_documents(tmp_path / "documents", 8)

        def full(*_):
            raise ValueError("An IO error occurred: 'No space left on device'")

        with monkeypatch.context() as patched:
            patched.setattr(Engine, "_commit_some", full)
            with pytest.raises(SearchError, match="no data was lost"):
                client.index()
        assert client.status().waiting == 3
    with SearchClient(tmp_path / "store") as client:
        check_agreement(client)
        assert client.status().documents == 8


def test_an_engine_that_stumbles_over_what_a_crash_left_is_made_anew(tmp_path, monkeypatch):
    with opened(tmp_path, count=5) as client:
        write_documents(tmp_path / "documents", 8)
        real, times = Engine._commit_some, []

        def stumbles(*arguments):
            times.append(1)
            if len(times) == 1:
                raise ValueError("Failed to open file for write: 'FileAlreadyExists(\"x.1048.del\")'")
            return real(*arguments)

        monkeypatch.setattr(Engine, "_commit_some", stumbles)
        client.index()
        check_agreement(client)
        assert client.search("orchard").found == 8


def test_an_index_made_anew_by_another_process_is_found(tmp_path):
    with opened(tmp_path, count=5) as client:
        with SearchClient(client.folder, clock=Clock()) as other:
            other.engine.make_anew()
            (tmp_path / "documents" / "zebra.txt").write_text("a zebra in the orchard")
            other.index()
            check_agreement(other)
        assert client.search("orchard").found == 6
        check_agreement(client)


@pytest.mark.parametrize("damage", ["deleted", "nonsense", "older", "emptied"])
def test_an_engine_that_was_lost_is_made_again(tmp_path, damage):
    with opened(tmp_path, count=6) as client:
        engine = client.engine.folder
        shutil.copytree(engine, tmp_path / "older")
        write_documents(tmp_path / "documents", 9)
        client.index()
    if damage == "nonsense":
        (engine / "meta.json").write_text("{")
    else:
        shutil.rmtree(engine)
        if damage == "older":
            shutil.copytree(tmp_path / "older", engine)
        elif damage == "emptied":
            engine.mkdir()
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        check_agreement(client)
        assert client.search("orchard").found == 9


def test_a_word_far_into_a_long_document_is_found(tmp_path):
    (tmp_path / "long.txt").write_text("word " * 6_000 + "platypus " + "word " * 6_000)
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        client.index([tmp_path / "long.txt"])
        assert client.search("platypus").found == 1
        check_agreement(client)


def test_common_words_are_left_out_only_where_there_are_rarer_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("fedrank.search.index.COMMON", 8)
    with opened(tmp_path, count=20) as client:
        assert client.search("orchard").found == 20  # in all of them, and the only word
        assert client.search("orchard apple").found == client.search("apple").found < 20


def test_filters_and_dates(tmp_path):
    folder = write_documents(tmp_path / "documents", 6)
    for n, path in enumerate(sorted(folder.iterdir())):
        os.utime(path, (1_000 * (n + 1),) * 2)
    (tmp_path / "a.eml").write_bytes(b"Subject: orchard\nFrom: a@b\nDate: Thu, 01 Jan 1970 00:00:50 +0000\n\nx")
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        client.index([folder, tmp_path / "a.eml"])

        def dates(*filters, **more):
            return [result.date for result in client.search("orchard", Filters(*filters, **more), "date").results]

        assert dates() == [6000, 5000, 4000, 3000, 2000, 1000, 50]
        assert dates(since=3000) == [6000, 5000, 4000, 3000]
        assert dates(before=3000) == [2000, 1000, 50]
        assert dates(since=2000, before=3000) == [2000]
        assert dates("mail") == [50]
        assert dates("page") == []
        assert client.search("orchard", Filters(since=3000)).found == 4


@pytest.mark.process
@needs.fork
def test_killed_at_any_moment_both_stores_agree_and_no_answered_click_is_lost():
    command = [sys.executable, "-m", "tests.search.kills", "--count", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 kills")


def test_a_stop_in_the_middle_of_a_file_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "BATCH", 10)
    lines = "".join(f'{{"id": {n}, "text": "orchard number {n}"}}\n' for n in range(45))
    (tmp_path / "many.jsonl").write_text(lines)
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        real, saved = Store.save, []

        def stops(self, documents, known):
            if len(saved) == 2:
                raise KeyboardInterrupt
            saved.append(len(documents))
            return real(self, documents, known)

        with monkeypatch.context() as patched:
            patched.setattr(Store, "save", stops)
            with pytest.raises(KeyboardInterrupt):
                client.index([tmp_path / "many.jsonl"])
        assert client.store.count("SELECT count(*) FROM documents") == 20
    with SearchClient(tmp_path / "store", clock=Clock()) as client:
        check_agreement(client)
        done = client.index()
        assert (done.added, done.changed, done.documents) == (25, 0, 45)
        check_agreement(client)

"""Files are read in a process with limits: what it answers, and files that would stop everything else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrank.search import reader_process
from fedrank.search.reader_process import ReaderProcess, _checked
from fedrank.search.readers import ParsedDocument, Unreadable
from fedrank.search.results import SearchError
from fedrank.search.sources import Left, walk
from tests.search.hostile import ENDLESS, READABLE, REASONS, write_hostile
from tests.search.reading import read, zipped
from tests.search.test_databases import FIREFOX, ZOTERO, database
from tests.search.test_sources import MAIL

# A child whose readers do harm for files with these names.
HARM = """
import os, sys, time
import fedrank.search.reader_process as own
from fedrank.search import formats
whole = formats._WHOLE["text"]
own.SECONDS = 1
def read(data, name):
    if name == "slow.txt":
        while True: pass
    if name == "large.txt":
        [bytearray(1 << 30), bytearray(1 << 30)]
    if name == "crash.txt":
        os.abort()
    if name == "killed.txt":
        os.kill(os.getpid(), 9)
    if name == "asleep.txt":
        time.sleep(60)
    if name == "noise.txt":
        os.write(0, b"no JSON" + bytes([10]))
    yield from whole(data, name)
formats._WHOLE["text"] = read
try:
    own.main()
except MemoryError:
    os._exit(3)
"""


def everything(reader, root):
    """Documents and reasons by path, as `read` says them; all files are asked for before the first answer."""
    documents, reasons, asked = {}, {}, []
    for found in walk(root):
        name = os.fsdecode(found.key)
        if isinstance(found, Left):
            reasons[name] = found.reason
        else:
            reader.ask(found, "")
            asked.append(name)
    for name in asked:
        for piece in reader.pieces():
            if isinstance(piece, Unreadable):
                reasons[name] = str(piece)
            else:
                documents.setdefault(name, []).append(piece)
    return documents, reasons


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.process
def test_the_process_reads_what_is_read_without_it(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    database(root / "zotero" / "zotero.sqlite", ZOTERO)
    database(root / "firefox" / "places.sqlite", FIREFOX, "wal")
    (root / "firefox" / "prefs.js").touch()
    (root / "a.txt").write_text("one Größe 🍎\n" * 3)
    (root / "b.eml").write_bytes(MAIL)
    (root / "c.mbox").write_bytes(b"From x\n" + MAIL + b"\n\nFrom y\nSubject: two\n\nx\n\nFrom z\n\n\n\n")
    zipped(root / "d.docx", {"word/document.xml": "<p>text</p>"})
    (root / "e.bin").write_bytes(bytes(100))
    (root / os.fsdecode(b"odd-\xff\n.txt")).write_text("its name is not UTF-8")
    (root / "long.txt").write_text("long 🍎 " * 200_000)
    (tmp_path / "store" / "reading" / "copy-left-by-a-kill").mkdir(parents=True)
    expected, before = read(root), descriptors()
    with ReaderProcess(tmp_path / "store") as reader:
        assert everything(reader, root) == expected
        assert not (tmp_path / "store" / "reading" / "copy-left-by-a-kill").exists()
        child = reader._child
        assert everything(reader, root) == expected
        assert reader._child is child, "one process reads many files"
        assert (tmp_path / "store" / "reading").stat().st_mode & 0o777 == 0o700
    assert child.returncode is not None
    assert descriptors() == before
    assert not (tmp_path / "store" / "reading").exists(), "no copy of a database stays"


@pytest.mark.process
def test_no_file_stops_the_others(tmp_path, monkeypatch):
    root = tmp_path / "root"
    root.mkdir()
    for name in ("crash", "killed", "large", "asleep", "noise", "slow"):
        (root / f"{name}.txt").write_text(name)
        (root / f"{name}.txt.next").write_text(f"after {name}")
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **more: real([words[0], "-P", "-c", HARM], **more))
    monkeypatch.setattr(reader_process, "PATIENCE", 5.0)
    with ReaderProcess(tmp_path / "store") as reader:
        documents, reasons = everything(reader, root)
    assert reasons == {
        "crash.txt": "broken", "killed.txt": "its reader was killed", "large.txt": "needs too much memory",
        "asleep.txt": "not read in time", "noise.txt": "broken", "slow.txt": "takes too long to read",
    }  # fmt: skip
    assert [one.text for pieces in documents.values() for one in pieces] == [
        f"after {name}" for name in ("asleep", "crash", "killed", "large", "noise", "slow")
    ]


@pytest.mark.process
def test_hostile_files_are_read_or_refused_in_little_memory(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    write_hostile(root)
    zipped(root / "bomb.docx", {"word/document.xml": b"<a>" + b"<!---->" * (10 << 20) + b"</a>"})
    zipped(root / "bomb.epub", {f"{n}.html": b"<p>" + b" " * (11 << 20) for n in range(6)})
    with ReaderProcess(tmp_path / "store") as reader:
        documents, reasons = everything(reader, root)
        status = Path(f"/proc/{reader._child.pid}/status").read_text()
        (peak,) = (int(line.split()[1]) for line in status.split("\n") if line.startswith("VmHWM"))
    bombs = dict.fromkeys(("bomb.docx", "bomb.epub"), "unpacks to too much")
    ignored = dict.fromkeys(("columns/Preferences", "view/Preferences"), "data of a program")
    assert (documents.keys(), reasons) == (READABLE, REASONS | bombs | ignored)
    assert peak < 400_000, "kB: far below the limit, which would end the process"


@pytest.mark.process
def test_a_database_that_never_ends_is_given_up(tmp_path, monkeypatch):
    """The tables of Zotero that are only joined may be views, which can compute for ever."""
    root = tmp_path / "root"
    root.mkdir()
    endless = f"DROP TABLE tags; CREATE VIEW tags AS {ENDLESS} tagID, 'a' name FROM n WHERE x < 0;"
    database(root / "library" / "zotero.sqlite", ZOTERO + endless)
    (root / "z.txt").write_text("next")
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda words, **more: real([words[0], "-P", "-c", HARM], **more))
    with ReaderProcess(tmp_path / "store") as reader:
        documents, reasons = everything(reader, root)
    assert ({*documents}, reasons) == ({"z.txt"}, {"library/zotero.sqlite": "takes too long to read"})
    assert not (tmp_path / "store" / "reading").exists(), "no copy stays"


@pytest.mark.process
def test_a_process_that_cannot_start_is_an_error_and_no_reason_to_skip_files(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    before = descriptors()
    with ReaderProcess(tmp_path / "store") as reader, pytest.raises(SearchError, match="could not start"):
        everything(reader, tmp_path)
    assert descriptors() == before


@pytest.mark.process
def test_the_process_ends_with_its_parent(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    program = (
        "import sys, os, time\nfrom pathlib import Path\nfrom fedrank.search.reader_process import ReaderProcess\n"
        "from fedrank.search.sources import walk\n"
        "reader = ReaderProcess(Path(sys.argv[1]) / 'store')\n"
        "for found in walk(Path(sys.argv[1])):\n    reader.ask(found, '')\n"
        "print([*reader.pieces()] and reader._child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    for _ in range(400):
        if not is_running(child):
            return
        time.sleep(0.05)
    pytest.fail("the process is still there")


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "answer",
    [[], ["", "file"], ["", "nonsense", "", "", "", "", 0, "", [], ""], ["", "file", "", "", "", "", "x", "", [], ""],
     ["", "file", "", "", "", "", 0, "", 5, ""]],
)  # fmt: skip
def test_answers_are_checked(answer):
    with pytest.raises((ValueError, TypeError)):
        _checked(answer)


def test_answers_have_the_types_that_they_must_have():
    assert _checked(None) is None
    assert str(_checked("x" * 1_000)) == "x" * 200
    one = _checked([5, "file", {"a": 1}, "text", "", "", 7, "", ["a", 1], ""])
    assert one == ParsedDocument("5", "file", "{'a': 1}", "text", "", "", 7, "", ("a", "1"), "")

"""`fedrank search`, as a shell calls it; the page as a process of its own, which speaks to nobody but its browser."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fedrank.cli import main
from fedrank.cli.search import default_folder
from fedrank.files import locked
from fedrank.search.client import SearchClient
from fedrank.search.demo import TOPICS, WISHES, make_demo, write_documents
from fedrank.search.watch import watch
from tests import needs
from tests.search.made_up import close

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
Command = Callable[..., tuple[int, str, str]]
NOW = 1_790_000_000.0


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some notes, and a data folder of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRANK_SEARCH", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    notes = Path("notes")
    notes.mkdir()
    for number in range(4):
        (notes / f"{number}.md").write_text(f"# River {number}\n\nIt runs to the sea, past {number} mills.\n")
    (notes / "picture.bin").write_bytes(b"\0\1\2\3" * 50)


@pytest.fixture
def fedrank(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedrank", "search", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.mark.parametrize(
    "words", [("status",), ("forget", "--query", "x"), ("learn", "off"), ("status", "--ubi", "out")]
)
def test_a_mistyped_folder_is_an_error_and_is_not_made(
    fedrank: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    code, out, err = fedrank(*words, "--folder", "nowhere")
    assert (code, out) == (2, "")
    assert "no folder nowhere" in err
    assert not (tmp_path / "nowhere").exists()


@contextmanager
def process(*words: str, code: str = "from fedrank.cli import main; main()") -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, "-c", code, "search", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.kill()
        started.communicate(timeout=20)


def link_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    for line in started.stdout:
        if found := re.search(r"http://127\.0\.0\.1:\d+/enter/\S+", line):
            return found[0]
    pytest.fail(f"no link: {started.stderr.read() if started.stderr else ''}")


def test_a_folder_can_be_removed_from_the_index(fedrank: Command, tmp_path: Path) -> None:
    assert fedrank("index", "notes")[0] == 0
    code, _, err = fedrank("index", "notes", "--remove", "notes")
    assert (code, "--remove must be used alone" in err) == (2, True)
    code, _, err = fedrank("index", "--remove", "note")
    assert (code, f"the indexed folders ({tmp_path / 'notes'}); nothing was removed" in err) == (2, True)
    assert fedrank("index", "--remove", "notes")[1] == "notes: 4 documents removed from the index\n"
    code, _, err = fedrank("index", "--bookmarks", "notes/1.md")
    assert (code, "contains no bookmarks; nothing was indexed" in err) == (2, True)


def test_what_gave_no_document_is_named(fedrank: Command, tmp_path: Path) -> None:
    Path("empty").mkdir()
    code, out, err = fedrank("index", "empty")
    assert code == 0
    assert f"note: {tmp_path / 'empty'} contains no files\n" in err
    assert "Search:" not in out
    _, out, err = fedrank("index", "notes", "notes/picture.bin")
    assert f"note: {tmp_path / 'notes' / 'picture.bin'} was skipped: not text\n" in err
    assert "Skipped: 1 not text (list them: fedrank search status --skipped" in out
    assert fedrank("status", "--skipped")[1] == f"{tmp_path / 'notes' / 'picture.bin'}: not text\n"
    assert json.loads(fedrank("status", "--skipped", "--json")[1])[0]["reason"] == "not text"
    Path("empty").rmdir()
    _, out, err = fedrank("index")
    assert f"note: 1 folder is missing: {tmp_path / 'empty'}; the documents stay" in err
    assert "root is" not in out
    assert re.search(rf"^Missing +{tmp_path / 'empty'}$", fedrank("status")[1], re.MULTILINE)
    assert "on|off" in fedrank("learn")[2]


@pytest.mark.long
def test_index_status_learn_forget_export(fedrank: Command, tmp_path: Path) -> None:
    code, said, _ = fedrank("index", "notes")
    assert code == 0
    assert "4 documents: 4 new, 0 changed, 0 removed" in said
    assert re.search(r"Skipped: 1 \w+", said)
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700
    Path("notes/0.md").write_text("# Lake\n\nStill water.\n")
    Path("notes/1.md").unlink()
    assert "3 documents: 0 new, 1 changed, 1 removed" in fedrank("index")[1]

    with SearchClient("store") as client:
        for _ in range(3):
            shown = client.search("river mills")
            client.open_document(shown.impression, 0)
            close(client, shown.impression)
    code, said, warned = fedrank("status")
    assert code == 0
    for words in (
        "Documents",
        "3 (3 files)",
        "Clicks",
        "3; 0 more ended within",
        "order: learned",
    ):
        assert words in said
    assert "Data is not encrypted" in warned
    status = json.loads(fedrank("status", "--json")[1])
    assert (status["documents"], status["searches"], status["clicks"]) == (3, 3, 3)

    assert "queries and clicks are not recorded" in fedrank("learn", "off")[1]
    assert json.loads(fedrank("status", "--json")[1])["learn"] is False
    assert fedrank("learn", "on")[0] == 0

    code, said, _ = fedrank("status", "--ubi", "out")
    assert code == 0
    queries = [json.loads(line) for line in Path("out/ubi_queries.jsonl").read_text().splitlines()]
    assert [one["user_query"] for one in queries] == ["river mills"] * 3
    assert "3 queries" in said
    assert "3 clicks" in said

    assert "Deleted 3 searches, 3 clicks and 0 documents" in fedrank("forget", "--query", "river mills")[1]
    assert "0 searches" in fedrank("forget", "--since", "2020-01-31")[1]
    assert "and 1 document\n" in fedrank("forget", "--document", "3")[1]
    assert "2 documents" in fedrank("forget", "--all", "--yes")[1]
    assert json.loads(fedrank("status", "--json")[1])["documents"] == 0


def test_a_name_with_a_direction_override_is_escaped_in_a_terminal_and_data_in_json(fedrank: Command) -> None:
    Path("notes/\u202efdp.exe").write_bytes(bytes(range(256)) * 20)
    fedrank("index", "notes", "--quiet")
    out = fedrank("status", "--skipped")[1]
    assert "\u202e" not in out
    assert "\\u202efdp.exe" in out
    files = json.loads(fedrank("status", "--skipped", "--json")[1])
    assert any(file["path"].endswith("\u202efdp.exe") for file in files)


def test_why_and_what_was_learned_in_a_terminal(fedrank: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    fedrank("index", "notes", "--quiet")
    with SearchClient("store") as client:
        for position in (2, 0):  # it moved up
            found = client.search("river mills\u202e")
            client.open_document(found.impression, position)
        last = client.search("river mills").impression
    out = fedrank("status", "--why", str(last))[1]
    assert out.startswith(f"Search {last}: river mills\n")
    assert "You opened it twice for \u201criver mills\\u202e\u201d, last on 20" in out
    assert "in the search engine, below results that you opened before" in out
    why = json.loads(fedrank("status", "--why", str(last), "--json")[1])
    assert len(why["results"]) == 4
    out = fedrank("status", "--learned")[1]
    assert "From 3 recorded queries and 2 clicks" in out
    assert "you opened River" in out
    assert "  +" in out or "  -" in out
    learned = json.loads(fedrank("status", "--learned", "--json")[1])
    assert learned["remembered"][0]["clicks"] == 2
    monkeypatch.setattr("typer.confirm", refuse)
    assert not learned["given_up"]
    assert fedrank("forget", "--learned")[0] != 0
    assert "Deleted 3 searches, 2 clicks and 0 documents" in fedrank("forget", "--learned", "--yes")[1]
    assert "From 0 recorded queries" in fedrank("status", "--learned")[1]


def test_forgetting_a_document_names_the_queries_that_stay(fedrank: Command) -> None:
    fedrank("index", "notes", "--quiet")
    with SearchClient("store") as client:
        found = client.search("river\u202e mills").results[0].id
    out = fedrank("forget", "--document", str(found))[1]
    assert "Searches that showed it stay" in out
    assert "  river\\u202e mills\n" in out
    with SearchClient("store") as client:
        found = client.search("river mills").results[0].id
    assert "Deleted 2 searches" in fedrank("forget", "--document", str(found), "--queries")[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("forget",), "nothing was deleted: give one of --query"),
        (("forget", "--query", "x", "--queries"), "--queries is for --document"),
        (("forget", "--query", "x", "--all"), "nothing was deleted: give one of --query"),
        (
            ("forget", "--since", "yesterday"),
            "must be a day, such as 2026-01-31 (got 'yesterday'); nothing was deleted",
        ),
        (("status", "--why", "77"), "--why 77: no such search; use the number in the address of its results"),
        (("status", "--why", "1", "--learned"), "give only one of --skipped, --learned, --why and --ubi"),
        (("forget", "--document", "77"), "no such document; nothing was deleted"),
        (("serve", "--demo", "--folder", "store"), "--demo uses the folder search-demo and cannot be combined"),
        (("learn", "maybe"), "must be on or off (got 'maybe'); nothing was changed"),
        (("index", "nowhere"), "nowhere"),
        (("status", "--folder", "notes/0.md"), "notes/0.md"),
        (("index", "notes", "--language", "germn"), "unknown stemmer 'germn'; did you mean \"german\"?; use"),
        (("forget", "--query", "nonsense"), "--query 'nonsense': no search with this text; nothing was deleted"),
        (("learn", "weights"), "must be on or off (got 'weights')"),
        (("status", "--ubi", "notes/0.md"), "notes/0.md is a file; nothing was written; give a folder"),
    ],
)
def test_a_mistake_is_one_line(fedrank: Command, words: tuple[str, ...], told: str) -> None:
    Path("store").mkdir()
    code, _, said = fedrank(*words)
    assert code == 2
    assert told in said
    assert said.startswith("fedrank: ")
    assert len(said.splitlines()) == 1


@pytest.mark.long
def test_a_folder_keeps_its_language(fedrank: Command) -> None:
    assert fedrank("index", "notes", "--language", "german")[0] == 0
    assert json.loads(fedrank("status", "--json")[1])["feature_set"] == "live-1-german"
    code, _, said = fedrank("index", "--language", "english")
    assert code == 2
    assert "created with the language german" in said


@pytest.mark.long
def test_nothing_is_deleted_without_a_yes(fedrank: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    fedrank("index", "notes")
    with monkeypatch.context() as answers:
        answers.setattr("typer.confirm", lambda text, abort: (_ for _ in ()).throw(SystemExit(1)))
        assert fedrank("forget", "--all")[0] == 1
    assert json.loads(fedrank("status", "--json")[1])["documents"] == 4


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_folder() == tmp_path / "data" / "fedrank" / "search"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_folder() == Path.home() / "Library" / "Application Support" / "fedrank" / "search"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert default_folder() == tmp_path / "fedrank" / "search"


@pytest.mark.process
@needs.posix
def test_one_serves_and_ends_in_order(fedrank: Command) -> None:
    fedrank("index", "notes")
    with process("serve", "--no-browser") as started:
        link = link_of(started)
        code, _, said = fedrank("serve", "--no-browser")
        assert code == 2
        assert len(said.splitlines()) == 1
        assert str(started.pid) in said
        port = link.split("/")[2].rpartition(":")[2]
        code, _, said = fedrank("serve", "--no-browser", "--port", port, "--folder", "other")
        assert code == 2
        assert f"port {port} cannot be used" in said
        with httpx.Client(verify=False, trust_env=False, follow_redirects=True) as browser:
            assert "4 documents" in browser.get(link).text
            started.send_signal(signal.SIGTERM)
            out, errors = started.communicate(timeout=30)
    assert (started.returncode, errors) == (0, "")
    assert "Stopped; all answers are stored." in out


SPY = """
import json, socket, sys
events = open({path!r}, "a", buffering=1)
def hear(event, given):
    if event == "socket.sendmsg" and given[0].family == socket.AF_UNIX:
        return  # to the process that reads files
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        print(event, given[1:], file=events)
    if event == "socket.bind":
        print(event, given[1], file=events)
sys.addaudithook(hear)
from fedrank.cli import main
main()
"""


@pytest.mark.process
@needs.linux
def test_nobody_is_asked_and_one_socket_listens(tmp_path: Path) -> None:
    """Sockets of the whole process, those of libraries among them; and every attempt of Python's own to reach one."""
    heard = tmp_path / "heard.txt"
    spy = SPY.format(path=str(heard))
    with process("index", "notes", code=spy) as indexing:
        assert indexing.wait(120) == 0
    assert heard.read_text() == "", "indexing knows no network"
    with process("serve", "--no-browser", code=spy) as serving:
        link = link_of(serving)
        origin = link.partition("/enter/")[0]
        port = int(origin.rpartition(":")[2])
        most = 0
        with httpx.Client(verify=False, trust_env=False, headers={"origin": origin}) as browser:
            browser.get(link)
            for round in range(5):
                where = browser.post(f"{origin}/search", data={"q": "river"}).headers["location"]
                for path in (where, f"{where}/open/{round % 4}", f"{where}/why", "/status"):
                    assert browser.get(origin + path).status_code == 200
                    found = sockets_of(serving.pid)
                    most = max(most, len(found))
                    for local, remote, listens in found:
                        assert local == ("127.0.0.1", port)
                        assert remote[0] == ("0.0.0.0" if listens else "127.0.0.1")
                    assert sum(listens for *_, listens in found) == 1
        assert most >= 2, "the browser's own was seen"
    assert heard.read_text().split("\n") == ["socket.bind ('127.0.0.1', 0)", ""]


def sockets_of(pid: int) -> list[tuple[tuple[str, int], tuple[str, int], bool]]:
    """(local, remote, whether it listens) of every internet socket that a process holds."""
    held = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(handle)):
                held.add(found[1])
        except FileNotFoundError:  # closed meanwhile
            continue
    found_sockets = []
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in held:
                assert kind == "tcp", f"a socket of another kind: {kind}"
                found_sockets.append((address(fields[1]), address(fields[2]), fields[3] == "0A"))
    return found_sockets


def address(text: str) -> tuple[str, int]:
    host, _, port = text.partition(":")
    return ".".join(str(part) for part in reversed(bytes.fromhex(host))), int(port, 16)


def test_changes_are_seen_while_watching(tmp_path: Path) -> None:
    pytest.importorskip("watchdog", reason="pip install 'fedrank[search]'")
    seen, stop = [], threading.Event()
    with SearchClient(tmp_path / "notes" / "store") as client:  # the own folder lies below what is watched
        client.index([tmp_path / "notes"])
        thread = threading.Thread(target=watch, args=(client, seen.append, stop), kwargs={"rest": 0.1})
        thread.start()
        try:
            time.sleep(0.5)
            (tmp_path / "notes" / "new.md").write_text("# Otter\n\nAn otter swims.\n")
            wait_for(lambda: len(seen) == 1)
            assert [result.title for result in client.search("otter").results] == ["Otter"]
            (tmp_path / "notes" / "0.md").unlink()
            wait_for(lambda: len(seen) == 2)
            time.sleep(1.0)
            assert len(seen) == 2, "reading and storing are no changes"
        finally:
            stop.set()
            thread.join(20)
    assert [(done.added, done.removed) for done in seen] == [(1, 0), (0, 1)]


def test_whoever_watches_waits_for_others_who_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("watchdog", reason="pip install 'fedrank[search]'")
    monkeypatch.setattr("fedrank.files.PATIENCE", 0.1)
    seen, stop = [], threading.Event()
    with SearchClient(tmp_path / "store") as client:
        client.index([tmp_path / "notes"])
        thread = threading.Thread(target=watch, args=(client, seen.append, stop), kwargs={"rest": 0.1})
        thread.start()
        try:
            time.sleep(0.5)
            with locked(client.folder / "index.lock", "the index"):
                (tmp_path / "notes" / "new.md").write_text("# Otter\n\nAn otter swims.\n")
                time.sleep(1.0)
                assert seen == []
            wait_for(lambda: len(seen) == 1)
        finally:
            stop.set()
            thread.join(20)


def wait_for(what: Callable[[], bool]) -> None:
    for _ in range(400):
        if what():
            return
        time.sleep(0.05)
    pytest.fail("it did not happen")


@pytest.mark.process
def test_the_demo_opens_by_itself(tmp_path: Path) -> None:
    with process("serve", "--demo", "--no-browser") as started:
        link = link_of(started)
        with httpx.Client(verify=False, trust_env=False, follow_redirects=True) as browser:
            home = browser.get(link).text
    assert "All documents here are synthetic." in home
    assert "208 documents" in home
    assert {path.name for path in (tmp_path / "search-demo").iterdir()} == {"documents", "search"}


@pytest.mark.long
def test_the_demo_is_worth_looking_at(tmp_path: Path) -> None:
    store = make_demo(tmp_path / "demo", NOW)
    with SearchClient(store, clock=lambda: NOW) as client:
        status = client.status()
        assert status.kinds == {"file": 45, "mail": 135, "note": 20, "page": 8}
        assert status.skipped == {}
        assert len(status.weeks) >= 5
        assert status.clicks > 0.8 * status.searches
        late, early = status.weeks[-2:], status.weeks[:2]
        assert share_at_the_top(late) > share_at_the_top(early), "something was learned"
    again = make_demo(tmp_path / "demo", NOW + 86_400)
    with SearchClient(again, clock=lambda: NOW) as client:
        after = client.status()
        assert (after.searches, after.documents, after.waiting) == (status.searches, status.documents, 0), "as it was"
        assert client.index().changed == 0


def share_at_the_top(weeks: tuple[object, ...]) -> float:
    return sum(week.first for week in weeks) / sum(week.searches for week in weeks)  # type: ignore[attr-defined]


@pytest.mark.long
def test_the_demo_is_the_same_for_everybody(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_documents(tmp_path / name, NOW)
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(files) == 48
    for path in files:
        assert (tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes()
    titles = {title for topic in TOPICS for title in topic.titles}
    assert {wanted.removesuffix(": my notes") for _, wanted in WISHES} <= titles


def refuse(question: str, abort: bool = False) -> bool:
    """What `typer.confirm` does when somebody says no."""
    import typer

    raise typer.Abort

"""`fedrank search WORDS` in a terminal, in a script, and beside a page that is served."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from fedrank.cli import main
from fedrank.search.client import SearchClient
from tests import needs
from tests.search.test_cli_search import link_of, process

pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
MAIL = "From: Eve <eve@evil.example>\nTo: me@home.example\nSubject: Harbour\n\nThe harbour is \x1b[31mred.\n"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An index of twelve notes about rivers, one with an odd name, and a mailbox with one mail."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRANK_SEARCH", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    notes = Path("notes")
    notes.mkdir()
    for number in range(12):
        (notes / f"{number:02}.md").write_text(f"# River {number}\n\nIt runs to the sea, past {number} mills.\n")
    (notes / "odd.md").write_text("# lake\u202efdp.exe\n\nA deep lake.\n")
    (notes / "box.mbox").write_text(f"From eve@evil.example Mon Jan  6 10:00:00 2020\n{MAIL}")
    with SearchClient("store") as client:
        client.index([notes])


@pytest.fixture
def fedrank(monkeypatch, capsys):
    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedrank", "search", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def opened(monkeypatch):
    paths = []
    monkeypatch.setattr("fedrank.search.opening.open_original", lambda path: paths.append(path) or "opened")
    return paths


def clicks():
    with SearchClient("store") as client:
        return client.status().clicks


def test_results_as_text_without_colours_in_a_file(fedrank):
    code, out, err = fedrank("river", "mills", "--limit", "3")
    assert (code, err) == (0, "")
    assert out.startswith(" 1  River ")
    assert "It runs to the sea, past" in out
    assert out.endswith("3 of 12 results\n")
    assert "\x1b" not in out
    assert "\n    file · 20" in out


def test_exit_codes(fedrank):
    assert fedrank("lake")[0] == 0
    assert fedrank("zebra") == (1, "Nothing found for 'zebra'\n", "")
    code, out, err = fedrank("mils")
    assert (code, out, err) == (1, "Nothing found for 'mils'\n", "note: did you mean: mills\n")
    assert json.loads(fedrank("mils", "--json")[1])["suggestion"] == "mills"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("find",), "give words to search for, or --open with the number of a result of the last search"),
        (("find", " "), "give words to search for"),
        (("--open", "1"), "no search is recorded; give the words to search for"),
        (("river", "--open", "77"), "--open 77: the search has no result with this number"),
        (("river", "--opne", "1"), "unknown option --opne; the options are --open, --limit, --json and --folder"),
        (("river", "--open", "1", "--json"), "--json cannot be combined with --open"),
        (("river", "--folder", "nowhere"), "no folder nowhere"),
    ],
)
def test_a_mistake_is_one_line(fedrank, words, told):
    code, out, err = fedrank(*words)
    assert (code, out) == (2, "")
    assert told in err
    assert len(err.splitlines()) == 1
    assert clicks() == 0


def test_json_has_the_results_of_several_pages(fedrank, tmp_path):
    code, out, _ = fedrank("river", "title:river", "--json", "--limit", "12")
    found = json.loads(out)
    assert (code, found["found"], found["conditions"]) == (0, 12, ["“river” in the title"])
    assert [one["number"] for one in found["results"]] == [*range(1, 13)]
    assert {one["path"] for one in found["results"]} == {f"{tmp_path}/notes/{n:02}.md" for n in range(12)}
    code, out, _ = fedrank("zebra", "--json")
    assert (code, json.loads(out)["results"]) == (1, [])
    assert json.loads(fedrank("lake", "--json")[1])["results"][0]["title"] == "lake\u202efdp.exe"


def test_what_was_not_understood_is_a_note(fedrank):
    code, out, err = fedrank("river", "after:yesterday", "-title:lake")
    assert code == 0
    assert out.startswith("Only documents with: without “lake” in the title\n\n 1  River")
    assert err.startswith("note: after:yesterday was searched as words: a date has the form")


def test_exclusions_and_words_that_are_commands(fedrank):
    assert "10 of 13 results" in fedrank("-zebra")[1] or "10 of 14 results" in fedrank("-zebra")[1]
    Path("notes/index.md").write_text("# Index funds\n\nA fund follows an index.\n")
    fedrank("index", "--quiet")
    code, out, _ = fedrank("--limit", "1", "--", "index", "funds")
    assert (code, out.splitlines()[0]) == (0, " 1  Index funds")


def test_a_result_is_opened_and_the_click_is_recorded(fedrank, opened, tmp_path):
    code, out, _ = fedrank("deep", "lake", "--open", "1")
    assert (code, out) == (0, f"Opened {tmp_path}/notes/odd.md\n".replace("\u202e", ""))
    assert clicks() == 1
    fedrank("river")
    number = json.loads(fedrank("river", "--json", "--limit", "12")[1])["results"][11]
    assert fedrank("--open", "12")[1] == f"Opened {number['path']}\n", "of the last search, on its second page"
    assert opened == [f"{tmp_path}/notes/odd.md", number["path"]]
    assert clicks() == 2


def test_a_program_is_not_opened_and_a_mail_is_printed(fedrank):
    Path("notes/odd.md").chmod(0o755)
    code, _, err = fedrank("deep", "lake", "--open", "1")
    assert code == (2 if os.name == "posix" else 0)
    assert "This file could run as a program, so it was not opened: " in err or os.name != "posix"
    out = fedrank("harbour", "--open", "1")[1]
    assert out.startswith("Harbour\n")
    assert "The harbour is " in out
    assert "\x1b" not in out


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of sixty columns and twenty lines; what it shows, and what its pager shows."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("LESS", raising=False)
    monkeypatch.delenv("PAGER", raising=False)
    screen, paged = io.StringIO(), []
    made = Console(file=screen, force_terminal=True, color_system="standard", width=60, height=20)
    monkeypatch.setattr("fedrank.cli.find.console", lambda: made)
    monkeypatch.setattr("pydoc.pager", paged.append)
    return screen, paged


def test_colours_and_codes_in_a_terminal(fedrank, terminal):
    screen, paged = terminal
    assert fedrank("deep lake")[0] == 0
    assert "\x1b[33mlake\x1b[0m" in screen.getvalue(), "words of the query are marked"
    assert "\x1b[1;33m" in screen.getvalue(), "titles are bold, not dim as their numbers"
    assert "\u202e" not in screen.getvalue()
    assert "\\u202efdp.exe" in screen.getvalue()
    assert paged == []


def test_a_long_list_is_paged(fedrank, terminal, monkeypatch):
    screen, paged = terminal
    fedrank("river", "--limit", "12")
    assert screen.getvalue() == ""
    assert "12 of 12 results" in paged[0]
    assert "\x1b[" in paged[0], "less shows colours"
    monkeypatch.setenv("PAGER", "more")
    fedrank("river", "--limit", "12")
    assert "\x1b[" not in paged[1]


@pytest.mark.process
@needs.posix
def test_a_shell_completes_recent_queries(fedrank):
    for query in ("river mills", "river $(mills)", '"river mills"', "-river"):
        with SearchClient("store") as client:
            client.search(query)

    def completed(*words):
        line = " ".join(["fedrank", "search", *words])
        asks = {"_FEDRANK_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) + 1)}
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv[0] = 'fedrank'; from fedrank.cli import main; main()"],
            env=os.environ | asks, capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.stdout.split("\n")[:-1]

    assert completed("ri") == ["river mills"]
    assert completed("river", "mi") == ["mills"]
    assert completed("sta") == ["status"]
    assert not Path("nowhere").exists()
    assert completed("--folder", "nowhere", "ri") == [""]
    assert not Path("nowhere").exists()


@pytest.mark.process
@needs.posix
def test_while_a_page_is_served(fedrank):
    with process("serve", "--no-browser") as started:
        link = link_of(started)
        code, out, _ = fedrank("river", "mills", "--json")
        assert code == 0
        number = json.loads(out)["search"]
        with httpx.Client(verify=False, trust_env=False, follow_redirects=True) as browser:
            browser.get(link)
            page = browser.get(f"{link.partition('/enter/')[0]}/results/{number}").text
        assert "River" in page
        assert 'value="river mills"' in page

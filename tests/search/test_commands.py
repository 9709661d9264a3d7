"""Commands of the user that turn files into text, such as OCR; here they are small programs."""

from __future__ import annotations

import sys

import pytest
from PIL import Image

from fedrank.search import commands
from fedrank.search.commands import commands_of, output_of, remember_command
from fedrank.search.readers import MAX_TEXT, Unreadable
from fedrank.search.results import SearchError
from tests.search.made_up import opened


@pytest.fixture
def client(tmp_path):
    with opened(tmp_path, count=2) as client:
        yield client


def program(code: str) -> list[str]:
    return [sys.executable, "-c", code, "{file}"]


@pytest.mark.parametrize(
    "given",
    ["png", "png=tesseract", "=x {file}", "p/ng=x {file}", "png={file}", "png=cat '{file}", "png=no-such-1 {file}"],
)
def test_what_is_no_command_is_refused(client, given):
    with pytest.raises(SearchError, match="nothing was changed"):
        remember_command(client.store, given)
    assert commands_of(client.store) == {}


def test_a_command_is_kept_as_words_and_can_be_removed(client):
    remember_command(client.store, ".PNG=cat -- '{file}' $(reboot) ; reboot")
    assert commands_of(client.store)["png"][1:] == ["--", "{file}", "$(reboot)", ";", "reboot"]
    assert commands_of(client.store)["png"][0].endswith("/cat")
    remember_command(client.store, "png=")
    assert commands_of(client.store) == {}


@pytest.mark.process
def test_pictures_and_files_without_text_get_the_text_of_their_command(client, tmp_path):
    folder = tmp_path / "documents"
    Image.new("RGB", (8, 8)).save(folder / "scan; $(touch evil).png")
    (folder / "talk.mp3").write_bytes(bytes(50) + b"a wombat speaks")
    (folder / "note.txt").write_text("own text")
    client.index()
    assert not client.search("wombat").results
    script = "import sys; d = open(sys.argv[1], 'rb').read(); print('wombat', len(d))"
    for ending in ("png", "mp3", "txt"):
        remember_command(client.store, f'{ending}={sys.executable} -c "{script}" {{file}}')
    done = client.index()
    assert (done.added, done.changed) == (1, 1)
    results = client.search("wombat").results
    assert {result.title for result in results} == {"scan; $(touch evil).png", "talk.mp3"}
    assert not (tmp_path / "evil").exists()
    remember_command(client.store, "mp3=")
    done = client.index()
    assert (done.removed, done.skipped) == (1, {"not text": 1})


@pytest.mark.process
def test_a_command_that_fails_is_counted_and_the_picture_stays(client, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "documents" / "orchard.png")
    remember_command(client.store, "png=false {file}")
    done = client.index()
    assert (done.added, done.skipped) == (1, {"command failed": 1})
    assert client.search("orchard png").results[0].title == "orchard.png"


@pytest.mark.process
def test_commands_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "SECONDS", 1.0)
    with pytest.raises(Unreadable, match="takes too long"):
        output_of(program("import subprocess; subprocess.run(['sleep', '60'])"), "x")
    monkeypatch.setattr(commands, "SECONDS", 60.0)
    assert len(output_of(program("while True: print('endless' * 1000)"), "x")) == MAX_TEXT
    assert output_of(program("import sys; print(sys.argv[1])"), "/a b/'c.png") == "/a b/'c.png"
    with pytest.raises(Unreadable, match="cannot be run"):
        output_of([str(tmp_path / "nothing"), "{file}"], "x")

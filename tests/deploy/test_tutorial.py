"""A stranger follows `docs/how-to-train-between-organisations.md`, word by word, and has a model in the end."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.experiments.runner.runs import load_runs
from tests.test_documents import Block, _blocks

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "how-to-train-between-organisations.md"
HERE, PORT = "/home/you/trial", "8002"  # as the page writes them
FINGERPRINT = re.compile(r"SHA256:\S+")
NUMBER = re.compile(r"\b[0-9a-f]{12}\b|\d(?:[\d,.:T+-]*\d)?")  # noise, sizes and dates are others each time
SHORTER = ("rounds   = 20", "rounds   = 5")  # the same, in less time
CLINICS = ("clinic-a", "clinic-b", "clinic-c")


class Stranger:
    """Does what a page says. `&` is another terminal, a question is answered with yes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: dict[str, str] = {}  # a fingerprint of the page: the one that was printed here
        self.terminals: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = str(free.getsockname()[1])

    def follow(self, *headings: str) -> None:
        lines = PAGE.read_text(encoding="utf-8").splitlines()
        for heading in headings:
            first = lines.index(f"## {heading}") + 1
            last = next((n for n in range(first, len(lines)) if lines[n].startswith("## ")), len(lines))
            for block in _blocks(PAGE):
                if first <= block.line <= last:
                    self.do(block, " ".join(lines[block.line - 3 : block.line - 1]))

    def do(self, block: Block, before: str) -> None:
        if block.kind == "python":
            exec(compile(block.text, str(block), "exec", dont_inherit=True), {"__name__": "document"})
        elif block.kind == "toml":
            [*_, name] = re.findall(r"`([\w/-]+\.toml)`", before)
            text = block.text.replace(PORT, self.port).replace(*SHORTER)
            Path(name).write_text(text, encoding="utf-8")
        elif block.kind == "console":
            for line, *shown in (part.splitlines() for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]):
                self.type(self.here(line), shown)

    def type(self, line: str, shown: list[str]) -> None:
        program, *words = shlex.split(line)
        assert program == "fedrank"
        if words[-1] == "&":
            called = [sys.executable, "-m", "fedrank", *words[:-1]]
            with (self.folder / f"terminal-{len(self.terminals)}.txt").open("wb") as log:
                self.terminals.append(subprocess.Popen(called, stdout=log, stderr=log, start_new_session=True))
            return
        done = CliRunner().invoke(app, words, input="y\n")
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}\n{self.said_elsewhere()}"
        self.told |= dict(zip(FINGERPRINT.findall("\n".join(shown)), FINGERPRINT.findall(done.output), strict=False))
        said = alike(done.output)
        for text in shown:
            assert alike(self.here(text)) in said, f"{line}\n{text}\n{done.output}"

    def here(self, text: str) -> str:
        text = FINGERPRINT.sub(lambda found: self.told.get(found[0], found[0]), text)
        return text.replace(HERE, str(self.folder)).replace(PORT, self.port)

    def said_elsewhere(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("terminal-*.txt")))

    def close(self) -> None:
        for terminal in self.terminals:
            if terminal.poll() is None:
                os.killpg(terminal.pid, signal.SIGINT)
        for terminal in self.terminals:
            terminal.wait(30)


def alike(text: str) -> str:
    """Words, with a mark in the place of each number."""
    return " ".join(NUMBER.sub("#", text.replace("[y/N]: y", "[y/N]:")).split()).replace("[y/N]: y ", "[y/N]: ")


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    someone = Stranger(tmp_path)
    yield someone
    someone.close()


def fill_in(stranger: Stranger) -> None:
    """The blocks of the folder's chapter that write `site.toml`."""
    for block in _blocks(PAGE):
        if "[policy]" in block.text:
            stranger.do(block, "`clinic-a/site.toml`")
        elif block.kind == "python" and "site.toml" in block.text:
            stranger.do(block, "")


def check_models(folder: Path) -> None:
    [run] = load_runs(folder / "coordinator" / "runs" / "first")
    assert run.status == "finished"
    for clinic in CLINICS:
        [model] = (folder / clinic / "models").glob("*/model.json")
        assert model.read_bytes() == (run.path / "model.json").read_bytes()


def test_a_stranger_gets_to_a_model_through_a_folder(stranger: Stranger, tmp_path: Path) -> None:
    stranger.follow("Three clinics and their data", "Through a shared folder")
    check_models(tmp_path)
    stranger.close()  # nobody may serve a folder that is restored
    stranger.follow("Backups")


def test_a_stranger_gets_to_a_model_over_a_network(stranger: Stranger, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="pip install 'fedrank[deploy]'")
    stranger.follow("Three clinics and their data")
    [federation] = [block for block in _blocks(PAGE) if "[[sites]]" in block.text]
    stranger.do(federation, "`federation.toml`")
    for command in ("init", "request"):
        stranger.do(block_with(command), "")
    fill_in(stranger)
    stranger.do(block_with("start"), "")
    check_models(tmp_path)


def block_with(command: str) -> Block:
    [found] = [block for block in _blocks(PAGE) if f"$ fedrank deploy {command} " in block.text]
    return found

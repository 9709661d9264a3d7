"""A reader follows `docs/tutorials/organisations.md` word by word, from click logs to a model in production."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.engine.adoption import read_current
from fedrank.engine.practice import Practice
from fedrank.engine.trial import EngineTrial
from fedrank.experiments.runner.runs import load_runs
from tests.test_documents import Block, _blocks

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "organisations.md"
HERE, PORT = "/home/you/trial", "8002"  # as the page writes them
FINGERPRINT = re.compile(r"SHA256:\S+")
NUMBER = re.compile(r"-?\b[0-9a-f]{10,12}\b|[+-]?\d(?:[\d,.:T+-]*\d)?")  # noise, sizes and dates differ each time
SITES = ("north", "east", "south")
LOGS = ("Each hospital builds a data set from its log", "Agree on a plan")


class Reader:
    """Does what the page says. `&` is another terminal; a question is answered with yes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: dict[str, str] = {}  # fingerprint of the page: the one that was printed here
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
            Path(name).write_text(block.text.replace(PORT, self.port), encoding="utf-8")
        elif block.kind == "console":
            for line, *shown in (part.splitlines() for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]):
                self.type(self.here(line), shown)

    def type(self, line: str, shown: list[str]) -> None:
        program, *words = shlex.split(line)
        if program == "cp":
            [source] = self.folder.glob(words[0])
            shutil.copy(source, words[1])
            return
        assert program == "fedrank"
        if words[-1] == "&":
            called = [sys.executable, "-m", "fedrank", *words[:-1]]
            with (self.folder / f"terminal-{len(self.terminals)}.txt").open("wb") as log:
                self.terminals.append(subprocess.Popen(called, stdout=log, stderr=log, start_new_session=True))
            return
        done = CliRunner().invoke(app, words, input="y\n")
        assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}\n{self.terminal_output()}"
        self.printed |= dict(zip(FINGERPRINT.findall("\n".join(shown)), FINGERPRINT.findall(done.output), strict=False))
        said = alike(done.output)
        for text in shown:
            assert alike(self.here(text.removesuffix("..."))) in said, f"{line}\n{text}\n{done.output}"

    def here(self, text: str) -> str:
        text = FINGERPRINT.sub(lambda found: self.printed.get(found[0], found[0]), text)
        return text.replace(HERE, str(self.folder)).replace(PORT, self.port)

    def terminal_output(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("terminal-*.txt")))

    def close(self) -> None:
        for terminal in self.terminals:
            if terminal.poll() is None:
                os.killpg(terminal.pid, signal.SIGINT)
        for terminal in self.terminals:
            terminal.wait(30)


def alike(text: str) -> str:
    """The words, with a mark in place of each number."""
    return " ".join(NUMBER.sub("#", text.replace("[y/N]: y", "[y/N]:")).split()).replace("[y/N]: y ", "[y/N]: ")


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    someone = Reader(tmp_path)
    yield someone
    someone.close()


def check_models(folder: Path) -> None:
    [run] = load_runs(folder / "coordinator" / "runs" / "first")
    assert run.status == "finished"
    for site in SITES:
        [model] = (folder / site / "models").glob("*/model*.json")
        assert model.read_bytes() == (run.path / "model.json").read_bytes()


def test_a_reader_comes_from_click_logs_to_production_through_a_folder(reader: Reader, tmp_path: Path) -> None:
    """The better model is adopted; the worse one is refused, adopted nevertheless, and rolled back."""
    reader.follow(*LOGS, "Meet in a shared folder", "Look at what would leave, then train")
    check_models(tmp_path)
    better, before = (Practice.begin("north").clicks_a_search(model) for model in ("candidate.json", None))
    assert better > before + 0.2
    reader.follow("Test the model on live traffic, then export it", "Refuse a worse model, and roll back")
    in_use = read_current("trials/current.json").now
    assert in_use is not None
    assert in_use.path == "candidate.json"
    assert [entry.what for entry in EngineTrial("trials/summer").history()] == [
        *("planned", "decided", "adopted", "rolled back"),
    ]
    reader.follow("Refresh")


def test_a_reader_comes_to_a_model_on_one_machine_and_over_a_network(reader: Reader, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="pip install 'fedrank[deploy]'")
    reader.follow(*LOGS, "Try it on one machine")
    network = [block for block in _blocks(PAGE) if block.line > line_of("## Over a network")]
    [federation] = [block for block in network if "[[sites]]" in block.text]
    reader.do(federation, "`federation.toml`")
    init, join, start = (
        next(block for block in network if f"$ fedrank deploy {command} " in block.text)
        for command in ("init", "join", "start")
    )
    reader.do(init, "")
    reader.do(join, "")
    for block in _blocks(PAGE):
        if "[policy]" in block.text:
            reader.do(block, "`north/site.toml`")
        elif block.kind == "python" and "site.toml" in block.text:
            reader.do(block, "")
    reader.do(start, "")
    check_models(tmp_path)


def line_of(heading: str) -> int:
    return PAGE.read_text(encoding="utf-8").splitlines().index(heading) + 1

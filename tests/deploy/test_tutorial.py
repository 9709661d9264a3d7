"""A reader follows `docs/tutorials/organisations.md` word by word, from click logs to a model in production.

Also "Over a network" of `docs/how-to/operate-a-site.md`, and "Your own engine" of `docs/how-to/click-logs.md`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.data.documents import read_documents
from fedrank.data.held_out import read_window
from fedrank.data.ubi import read_ubi
from fedrank.deploy.site_releases import MODEL_FILES
from fedrank.engine.adoption import read_current
from fedrank.engine.practice import Practice
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_record import digest_of
from fedrank.experiments.runner.runs import load_runs
from fedrank.privacy.guarantees import up
from fedrank.privacy.population import RELEASES, Charge, Population
from tests.test_documents import Block, _blocks

pytestmark = pytest.mark.process

DOCS = Path(__file__).parents[2] / "docs"
PAGE, NETWORK = DOCS / "tutorials" / "organisations.md", DOCS / "how-to" / "operate-a-site.md"
OWN_ENGINE = DOCS / "how-to" / "click-logs.md"
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
        self.vetoed = False  # the second model is worse than the first one, by the gate or the estimate
        with socket.socket() as free:
            free.bind(("localhost", 0))
            self.port = str(free.getsockname()[1])

    def follow(self, *headings: str, page: Path = PAGE) -> None:
        lines = page.read_text(encoding="utf-8").splitlines()
        for heading in headings:
            first = lines.index(f"## {heading}") + 1
            last = next((n for n in range(first, len(lines)) if lines[n].startswith("## ")), len(lines))
            for block in _blocks(page):
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
            for terminal in self.terminals:
                if terminal.args == called:  # Ctrl-C before the command is started again
                    os.killpg(terminal.pid, signal.SIGINT)
                    terminal.wait(30)
            with (self.folder / f"terminal-{len(self.terminals)}.txt").open("wb") as log:
                self.terminals.append(subprocess.Popen(called, stdout=log, stderr=log, start_new_session=True))
            return
        done = CliRunner().invoke(app, words, input="y\n")
        self.vetoed = "the gate vetoed" in done.output or (done.exit_code == 1 and "estimate: veto" in done.output)
        if self.vetoed:  # both models are about as good
            return
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


class Today(datetime):
    """The day on which a test began, which names the folders of a refresh, also after midnight."""

    began = datetime.now(UTC)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Today:
        return cls.fromtimestamp(cls.began.timestamp(), tz)


def alike(text: str) -> str:
    """The words, with a mark in place of each number."""
    return " ".join(NUMBER.sub("#", text.replace("[y/N]: y", "[y/N]:")).split()).replace("[y/N]: y ", "[y/N]: ")


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr("fedrank.cli.refresh.datetime", Today)
    someone = Reader(tmp_path)
    yield someone
    someone.close()


def check_models(folder: Path) -> None:
    [run] = load_runs(folder / "coordinator" / "runs" / "first")
    assert run.status == "finished"
    for site in SITES:
        [received] = (folder / site / "models").glob("*/received.json")
        assert received.read_bytes() == (run.path / "model.json").read_bytes()
        [model] = received.parent.glob("model*.json")
        assert model.read_bytes() != received.read_bytes()


def check_gates(folder: Path, plans: int) -> None:
    """The gate decided once per plan, on a model that is truly better, and named the model's file by its decision."""
    for site in SITES:
        gates = {path.parent: json.loads(path.read_text()) for path in (folder / site / "models").glob("*/gate.json")}
        assert len(gates) == plans
        for place, gate in gates.items():
            allowed = ("inconclusive", "veto")[:plans]  # the second model is about as good as the first one
            assert gate["outcome"] in allowed, "swaps do not determine trust bias, so nothing passes"
            assert (place / MODEL_FILES[gate["outcome"]]).exists()
            assert gate["plan"].startswith(place.name)
            assert set(gate["here"]) == {"doing nothing", "the own model alone"}
        charges = [
            {one.key: one.times for one in Charge.read_all(ledger)}
            for ledger in (folder / site / "people").glob(f"*/{RELEASES}")
        ]
        assert charges == [{"propensity": 1, "quality": 1, "gate": 1}] * plans
        spent = Population.read(folder / site / "people").spent().values()
        assert {up(cost) for cost in spent} == {"2.00" if plans == 1 else "3.0"}, "as `deploy show` prints it"


def test_a_reader_comes_from_click_logs_to_production_through_a_folder(reader: Reader, tmp_path: Path) -> None:
    """The better model is adopted, the worse one rolled back; a second plan with the next logs ends in a trial."""
    reader.follow(*LOGS, "Meet in a shared folder", "Look at what would leave, then train")
    check_models(tmp_path)
    check_gates(tmp_path, 1)
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
    check_gates(tmp_path, 2)
    [data] = Path("data").glob("20*")
    [window], [old] = (read_window(folder).uses for folder in (data, "data/north/built"))
    assert window["purpose"] != old["purpose"]
    if not reader.vetoed:
        plan = EngineTrial(f"trials/{data.name}").plan
        assert (plan.old.path, plan.rules.gate.level) == ("candidate.json", 0.0125)
        assert digest_of(plan.new.path) == plan.new.digest
        Practice.begin("north").write_trial(f"trials/{data.name}", "june", searches=400, people=1000)
        reader.type(f"fedrank engine trial read trials/{data.name} june/ubi_queries.ndjson june/ubi_events.ndjson", [])
    assert Practice.begin("north").clicks_a_search(newest_model("north")) > before + 0.2
    reader.follow("Your own engine", page=OWN_ENGINE)
    events, documents = tmp_path / "own-events.ndjson", tmp_path / "own-docs.jsonl"
    events.write_text('{"query_id": "none", "action_name": "click", "client_id": "b", "timestamp": 1}\n')
    documents.write_text("".join(f'{{"id": "d{number}", "title": "t"}}\n' for number in range(100)))
    swap = read_ubi(tmp_path / "own-queries.ndjson", events, read_documents(documents), documents).swap
    assert swap is not None
    assert set(abs(swap)) <= set(range(1, 10))
    assert (swap > 0).any()
    assert (swap < 0).any()


def newest_model(site: str) -> Path:
    return max(Path(site, "models").glob("*/model-trial-only.json"), key=lambda path: path.stat().st_mtime)


def test_a_reader_comes_to_a_model_on_one_machine_and_over_a_network(reader: Reader, tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason="pip install 'fedrank[deploy]'")
    reader.follow(*LOGS, "Try it on one machine")
    for site in SITES:
        shutil.rmtree(tmp_path / "data" / site)
    reader.follow(LOGS[0])  # data sets that no plan has used
    first, last = (line_of(heading, NETWORK) for heading in ("## Over a network", "## The policy and the data"))
    network = [block for block in _blocks(NETWORK) if first < block.line < last]
    [federation] = [block for block in network if "[[sites]]" in block.text]
    reader.do(federation, "`federation.toml`")
    init, join, start = (
        next(block for block in network if f"$ fedrank deploy {command} " in block.text)
        for command in ("init", "join", "start")
    )
    reader.do(init, "")
    reader.do(join, "")
    for block in _blocks(PAGE):
        if block.line > line_of("## Refresh"):
            break
        if "[policy]" in block.text:
            reader.do(block, "`north/site.toml`")
        elif block.kind == "python" and "site.toml" in block.text:
            reader.do(block, "")
    reader.do(start, "")
    check_models(tmp_path)


def line_of(heading: str, page: Path = PAGE) -> int:
    return page.read_text(encoding="utf-8").splitlines().index(heading) + 1

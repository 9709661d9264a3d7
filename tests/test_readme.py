"""The commands of the README and of the documentation's first page, and the README's Python, in an empty folder."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.kernels.compile import same_bytes_here
from tests import needs

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
CHANCE = {r"process \d+": "process #", r"http://127\.0\.0\.1:\d+/enter/[\w-]{43}": "http://#"}  # differs each time
SHORT = ["--set", "rounds=20", "--set", "seeds=[1]", "--set", "data.folds=[1]"]  # the same, in seconds
SPEC = """
rounds = 20
data = { name = "synthetic-mq2007" }
clients = { count = 3 }
learner = { name = "pdgd" }
"""


def commands() -> list[str]:
    """Every `fedrank ...` line: indented blocks, the sessions, and commands in sentences; of the index, its blocks."""
    lines = re.findall(r"^(?:    |\$ )(fedrank [^#\n]*)", README, re.MULTILINE)
    lines += re.findall(r"^    (fedrank [^#\n]*)", INDEX, re.MULTILINE)
    lines += re.findall(r"`(fedrank [^`]*)`", README)
    return [line.strip() for line in dict.fromkeys(lines)]


def test_there_are_commands_to_try():
    assert len(commands()) >= 30
    assert {"fedrank run quickstart", "fedrank search demo"} <= {*commands()}


def test_three_doors_with_a_command_a_session_and_a_picture():
    doors = re.split(r"^## ", README, flags=re.MULTILINE)
    doors = [door for door in doors if door.startswith("Door ")]
    assert len(doors) == 3
    for door in doors:
        assert door.count("<!-- session: ") == 1
        [picture] = re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", door)
        assert (ROOT / picture).stat().st_size < 150_000
    assert len(README.splitlines()) <= 150


def test_commands_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    letor = "".join(f"{d % 3} qid:{q} 1:{0.1 * d:.1f} 46:{d % 2}\n" for q in range(8) for d in range(6))
    Path("train.txt").write_text(letor)
    Path("new.txt").write_text(letor)
    Path("my.toml").write_text(SPEC)
    Path("corpus.jsonl").write_text('{"id": "a", "title": "flu", "text": "what helps against flu"}\n')
    # Runs first: the other commands read what they leave.
    ordered = sorted(commands(), key=lambda line: not line.startswith("fedrank run "))
    for line in ordered:
        words = shlex.split(line)[1:]
        if words[0] in ("audit", "deploy", "watch") or words[:2] in (["papers", "run"], ["search", "demo"]):
            words.append("--help")  # they take minutes, several machines, or stay until they are ended
        if words[0] in ("run", "tune", "clients") and words[1] == "quickstart":
            words += SHORT
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    assert Path("report.html").read_text().lstrip().lower().startswith("<!doctype html")
    assert len(Path("mine.run").read_text().splitlines()) == 48


def test_python_runs_as_written():
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    before, after = map(float, re.findall(r"0\.\d+", said.getvalue()))
    assert after > before
    assert len(code.strip().splitlines()) <= 14


def session(name: str) -> tuple[list[str], list[str], list[str]]:
    """The words of a session's command, and what it says before the first and after the last "..."."""
    text = README.split(f"<!-- session: {name} -->")[1].split("```")[1].strip()
    command, *shown = text.splitlines()
    if "..." not in shown:
        return shlex.split(command)[2:], shown, []
    last = len(shown) - 1 - shown[::-1].index("...")
    return shlex.split(command)[2:], shown[: shown.index("...")], shown[last + 1 :]


def test_the_session_is_what_everybody_gets(tmp_path, monkeypatch):
    """The whole session, to the last digit; only lines of progress are left out of the README."""
    if not same_bytes_here():
        needs.skip("system", f"on {platform.machine()} the last digits may differ")
    monkeypatch.chdir(tmp_path)
    words, head, tail = session("run")
    done = CliRunner().invoke(app, words, env={"COLUMNS": "115"})
    assert done.exit_code == 0, done.output
    said = [line.rstrip() for line in done.output.splitlines()]
    assert said[: len(head) - 1] == head[:-1]  # which run ends first is chance
    assert said[-len(tail) :] == tail
    for variant in ("federated", "alone", "centralised", "skyline"):
        assert any(line.startswith(variant) for line in tail), variant


def test_the_session_between_sites(tmp_path, monkeypatch):
    """All but the processes: runs are simulated here, and tests/deploy compares those of sites with simulated ones."""
    pytest.importorskip("nvflare", reason="pip install 'fedrank[deploy]'")
    if not same_bytes_here():
        needs.skip("system", f"on {platform.machine()} the last digits may differ")
    from fedrank.experiments.runner.perform import perform

    @contextlib.contextmanager
    def local_federation(names, folder, prepare, federation, say, warm_up) -> Iterator[SimpleNamespace]:
        for name in ("hub", *names):
            say(f"{name}: started, process 1")
        yield SimpleNamespace(home=tmp_path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedrank.deploy.local.local_federation", local_federation)
    monkeypatch.setattr(
        "fedrank.deploy.local.run_deployed",
        lambda home, task, plan, tell, stop, say: perform(task, on_progress=tell, stop=stop),
    )
    words, head, tail = session("deploy")
    done = CliRunner().invoke(app, words, env={"COLUMNS": "115"})
    assert done.exit_code == 0, done.output
    said = [without_chance(line.rstrip()) for line in done.output.splitlines()]
    assert said[: len(head)] == [without_chance(line) for line in head]
    assert "federated, fold 1, seed 1: finished" in README.split("<!-- session: deploy -->")[1].split("```")[1]
    assert "federated, fold 1, seed 1: finished" in said
    assert said[-len(tail) :] == tail


def test_the_session_of_the_search_demo(tmp_path):
    pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
    words, shown, _ = session("search")
    command = [sys.executable, "-m", "fedrank", *words, "--no-browser"]
    settings = os.environ | {"COLUMNS": "115"}
    with subprocess.Popen(command, cwd=tmp_path, env=settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline().rstrip() for _ in shown]
        process.terminate()
        process.stdout.read()
    assert [without_chance(line) for line in said] == [without_chance(line) for line in shown]


def without_chance(line: str) -> str:
    for pattern, stand_in in CHANCE.items():
        line = re.sub(pattern, stand_in, line)
    return line


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_make_targets(target):
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)

"""The README's commands and its Python, executed in an empty folder."""

from __future__ import annotations

import contextlib
import io
import platform
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.kernels.compile import same_bytes_here

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SHORT = ["--set", "rounds=20", "--set", "seeds=[1]", "--set", "data.folds=[1]"]  # the same, in seconds
SPEC = """
rounds = 20
data = { name = "synthetic-mq2007" }
clients = { count = 3 }
learner = { name = "pdgd" }
"""


def commands() -> list[str]:
    """Every `fedrank ...` line: indented blocks, the session, and commands in sentences."""
    lines = re.findall(r"^(?:    |\$ )(fedrank [^#\n]*)", README, re.MULTILINE)
    lines += re.findall(r"`(fedrank [^`]*)`", README)
    return [line.strip() for line in dict.fromkeys(lines)]


def test_there_are_commands_to_try():
    assert len(commands()) >= 8
    assert "fedrank run quickstart" in commands()


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
        if words[0] in ("audit", "deploy") or words[:2] in (["papers", "run"], ["search", "demo"]):
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


def test_the_session_is_what_everybody_gets(tmp_path, monkeypatch):
    """The whole session, to the last digit; only lines of progress are left out of the README."""
    if not same_bytes_here():
        pytest.skip(f"on {platform.machine()} the last digits may differ")
    monkeypatch.chdir(tmp_path)
    session = README.split("<!-- session -->")[1].split("```")[1].strip()
    [command], shown = session.splitlines()[:1], session.splitlines()[1:]
    done = CliRunner().invoke(app, shlex.split(command)[2:], env={"COLUMNS": "115"})
    assert done.exit_code == 0, done.output
    head, tail = shown[: shown.index("...")], shown[shown.index("...") + 1 :]
    said = [line.rstrip() for line in done.output.splitlines()]
    assert said[: len(head) - 1] == head[:-1]  # which run ends first is chance
    assert said[-len(tail) :] == tail
    for variant in ("federated", "alone", "centralised", "skyline"):
        assert any(line.startswith(variant) for line in tail), variant


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_make_targets(target):
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)

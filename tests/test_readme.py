"""The README: its commands, its Python and its console sessions; and the sessions of two tutorials."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.experiments.spec.listing import methods
from fedrank.kernels.compile import same_bytes_here
from tests import needs

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SESSIONS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CHANCE = {r"process \d+": "process #", r"http://127\.0\.0\.1:\d+/enter/[\w-]{43}": "http://#"}  # differs each time
SHORT = ["--set", "rounds=20", "--set", "seeds=[1]", "--set", "data.folds=[1]"]  # the same, in seconds


def commands() -> list[str]:
    """Every `fedrank ...` line: the sessions, and commands in sentences."""
    lines = re.findall(r"^(?:    |\$ )(fedrank [^#\n]*)", README, re.MULTILINE)
    lines += re.findall(r"`(fedrank [^`]*)`", README)
    return [line.strip() for line in dict.fromkeys(lines)]


def test_there_are_commands_to_try():
    assert {"fedrank run quickstart", "fedrank search serve --demo"} <= {*commands()}


def test_a_picture_and_four_readers_on_few_lines():
    assert len(README.splitlines()) <= 120
    before_install = README.split("## Install")[0]
    [picture] = re.findall(r"!\[[^\]]{20,}\]\(([^)]+)\)", before_install)
    assert (ROOT / picture).stat().st_size < 150_000
    for reader in ("researcher", "search team", "privacy officer", "individual"):
        assert re.search(rf"^\| an? {reader} \|.*\]\(docs/.*\)", README, re.MULTILINE), reader


def test_it_lists_as_many_methods_as_it_says():
    counts = Counter(row.family for row in methods())
    said = re.findall(r"(\d+) (?:privacy )?(learner|aggregator|attack|mechanism)s", README)
    assert len(said) == 4
    assert {family: counts[family] for _, family in said} == {family: int(count) for count, family in said}


def test_commands_run_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Runs first: the other commands read their results.
    for line in sorted(commands(), key=lambda line: not line.startswith("fedrank run ")):
        words = shlex.split(line)[1:]
        if words[0] in ("deploy", "search"):
            words.append("--help")  # they need several processes, or run until they are stopped
        if words[:2] == ["run", "quickstart"]:
            words += SHORT
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    assert Path("report.html").read_text().lstrip().lower().startswith("<!doctype html")


def test_python_runs_as_written():
    [code] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, {})
    before, after = map(float, re.findall(r"0\.\d+", said.getvalue()))
    assert after > before
    assert len(code.strip().splitlines()) <= 14


def session(name: str) -> tuple[list[str], list[str]]:
    """The words of a session's command, and the lines shown; "..." stands for any number of lines."""
    [page] = [text for path in SESSIONS if f"<!-- session: {name} -->" in (text := path.read_text(encoding="utf-8"))]
    block = page.split(f"<!-- session: {name} -->")[1].split("```")[1]
    command, *shown = block.removeprefix("console").strip().splitlines()
    return shlex.split(command)[2:], shown


def check(shown: list[str], output: str) -> None:
    """Every line that a session shows is in the output, in this order."""
    said = iter([without_chance(line.rstrip()) for line in output.splitlines()])
    for line in shown:
        if line != "...":
            assert without_chance(line) in said, f"{line}\n{output}"


def test_the_session_is_the_same_on_every_machine(tmp_path, monkeypatch):
    """To the last digit."""
    if not same_bytes_here():
        needs.skip("system", f"on {platform.machine()} the last digits may differ")
    monkeypatch.chdir(tmp_path)
    words, shown = session("run")
    done = CliRunner().invoke(app, words, env={"COLUMNS": "115"})
    assert done.exit_code == 0, done.output
    check(shown, done.output)
    for variant in ("federated", "alone", "centralised", "skyline"):
        assert any(line.startswith(variant) for line in shown), variant


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
    words, shown = session("deploy")
    done = CliRunner().invoke(app, words, env={"COLUMNS": "115"})
    assert done.exit_code == 0, done.output
    check(shown, done.output)


def test_the_session_of_the_search_demo(tmp_path):
    pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
    words, shown = session("search")
    command = [sys.executable, "-m", "fedrank", *words, "--no-browser"]
    settings = os.environ | {"COLUMNS": "115"}
    said = []
    with subprocess.Popen(command, cwd=tmp_path, env=settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if without_chance(line.rstrip()) == without_chance(shown[-1]):
                break
        process.terminate()
        process.stdout.read()
    check(shown, "".join(said))
    words, shown = session("find")
    command = [sys.executable, "-m", "fedrank", *words]
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check(shown, done.stdout)


def without_chance(line: str) -> str:
    for pattern, stand_in in CHANCE.items():
        line = re.sub(pattern, stand_in, line)
    return line


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_two_commands_are_make_targets(target):
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert f"make {target}" in README
    assert re.search(rf"^{target}:", makefile, re.MULTILINE)

"""A run folder may come from anybody: whoever only looks at it imports nothing that it names."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from fedrank.cli import main
from fedrank.run.runs import load_runs
from fedrank.run.schedule import run_experiment
from fedrank.spec.families import Elsewhere
from fedrank.spec.source import read_spec

MODULE = '''
from dataclasses import dataclass
from pathlib import Path

from fedrank.federate.aggregate import Mean

Path(__file__).with_name("was-imported").touch()

@dataclass(frozen=True)
class Mine(Mean):
    """What somebody else calls a mean."""
'''
SPEC = """\
title = "From somebody else"
rounds = 4
record_every = 1
data.name = "synthetic-mq2007"
clients.count = 3
learner = "pdgd"
aggregator = "lab_of_others:Mine"
[mechanism]
name = "gaussian"
clip = 1.0
noise = 1.0
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run that used the module, and the module."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "lab_of_others.py").write_text(MODULE, encoding="utf-8")
    (folder / "their.toml").write_text(SPEC.partition("[mechanism]")[0], encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        results = run_experiment(read_spec(folder / "their.toml"), "their", folder / "runs")
    assert results.finished
    sys.modules.pop("lab_of_others")
    return folder


@pytest.fixture
def theirs(made, tmp_path, monkeypatch):
    """The folder beside its module, where Python would find it; nothing has been imported from there."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    shutil.copy(made / "lab_of_others.py", tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("lab_of_others", None)


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedrank", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


RUN = "runs/their/only/fold-1-seed-1"
LOOKING = [
    ("report", "runs", "--out", "report.html"),
    ("report", "runs", "--out", "report.md"),
    ("runs", "runs"),
    ("evaluate", RUN, "synthetic-mq2007"),
    ("score", RUN, "synthetic-mq2007", "--out", "scores.txt"),
    ("export", RUN, "--to", "solr", "--out", "solr.json"),
]


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_who_only_looks_imports_nothing(theirs, monkeypatch, capsys, arguments):
    assert call(monkeypatch, *arguments) == 0, capsys.readouterr().err
    assert not Path("was-imported").exists()
    if arguments[-1] == "report.md":
        assert "lab_of_others:Mine" in Path("report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments",
    [("unlearn", "runs", "--client", "1", "--out", "new"), ("privacy", "spec.toml"), ("privacy", f"{RUN}/spec.toml")],
    ids=" ".join,
)
def test_who_needs_the_code_asks_for_trust(theirs, monkeypatch, capsys, arguments):
    assert call(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert "aggregator.name: 'lab_of_others:Mine' is code from outside fedrank" in err
    assert "say --trust" in err
    assert not Path("was-imported").exists()
    call(monkeypatch, *arguments, "--trust")
    assert Path("was-imported").exists(), capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        'aggregator = { name = "lab_of_others:Mine" }',
        'attack = { name = "fang", aggregator = "lab_of_others:Mine" }',
        '[variants.a]\naggregator = "lab_of_others:Mine"',
        '[vary]\naggregator = ["mean", "lab_of_others:Mine"]',
        '[vary]\n"aggregator.name" = ["mean", "lab_of_others:Mine"]',
    ],
)
def test_wherever_it_is_named(theirs, change):
    text = SPEC.partition("aggregator")[0] + change
    Path("spec.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="say --trust"):
        read_spec("spec.toml", trust=False)
    assert not Path("was-imported").exists()


def test_a_model_without_a_checksum_is_used_with_a_note(theirs, monkeypatch, capsys):
    evaluate = ("evaluate", RUN, "synthetic-mq2007")
    assert call(monkeypatch, *evaluate) == 0
    out, err = capsys.readouterr()
    assert err == ""
    content = json.loads(Path(RUN, "model.json").read_text())
    del content["checksum"]
    Path(RUN, "model.json").write_text(json.dumps(content))
    assert call(monkeypatch, *evaluate) == 0
    assert capsys.readouterr() == (
        out,
        "note: model.json carries no checksum, so that damage to it may go unnoticed\n",
    )


def test_a_report_leaves_out_a_run_whose_model_was_changed(theirs, monkeypatch, capsys):
    content = json.loads(Path(RUN, "model.json").read_text())
    content["weights"][0] += 1
    Path(RUN, "model.json").write_text(json.dumps(content))
    assert load_runs("runs").checked()[0].reason.startswith("the checksum of model.json is wrong")


def test_what_was_run_is_known_without_its_code(theirs):
    [run] = load_runs("runs")
    assert run.spec.aggregator == Elsewhere({"name": "lab_of_others:Mine", "weighted": True})
    assert not Path("was-imported").exists()

"""A run folder may come from anybody: whoever only looks at it imports nothing that it names."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from fedrank.cli import main
from fedrank.experiments.runner.folder import Card, Paid, Receipt
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.families import ExternalMethod
from fedrank.experiments.spec.source import read_spec
from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.population import LedgerTerms, open_ledger

MODULE = '''
from dataclasses import dataclass
from pathlib import Path

from fedrank.federated.aggregators import Mean

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
    ("watch", "runs", "--list"),
    ("model", "evaluate", RUN, "synthetic-mq2007"),
    ("model", "score", RUN, "synthetic-mq2007", "--out", "scores.txt"),
    ("model", "export", RUN, "--to", "solr", "--out", "solr.json"),
]


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_who_only_looks_imports_nothing(theirs, monkeypatch, capsys, arguments):
    assert call(monkeypatch, *arguments) == 0, capsys.readouterr().err
    assert not Path("was-imported").exists()
    if arguments[-1] == "report.md":
        assert "lab_of_others:Mine" in Path("report.md").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ("forget", "client", "runs", "--client", "1", "--out", "new"),
        ("privacy", "show", "spec.toml"),
        ("privacy", "show", f"{RUN}/spec.toml"),
    ],
    ids=" ".join,
)
def test_who_needs_the_code_asks_for_trust(theirs, monkeypatch, capsys, arguments):
    assert call(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert "aggregator.name: 'lab_of_others:Mine' is code from outside fedrank" in err
    assert "add --trust" in err
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
    with pytest.raises(ValueError, match="add --trust"):
        read_spec("spec.toml", trust=False)
    assert not Path("was-imported").exists()


@pytest.mark.long
def test_a_model_without_a_checksum_is_used_with_a_note(theirs, monkeypatch, capsys):
    evaluate = ("model", "evaluate", RUN, "synthetic-mq2007")
    assert call(monkeypatch, *evaluate) == 0
    out, err = capsys.readouterr()
    assert err == ""
    content = json.loads(Path(RUN, "model.json").read_text())
    del content["checksum"]
    Path(RUN, "model.json").write_text(json.dumps(content))
    assert call(monkeypatch, *evaluate) == 0
    assert capsys.readouterr() == (
        out,
        "note: model.json has no checksum, so damage to the file may go unnoticed\n",
    )


def test_a_report_leaves_out_a_run_whose_model_was_changed(theirs, monkeypatch, capsys):
    content = json.loads(Path(RUN, "model.json").read_text())
    content["weights"][0] += 1
    Path(RUN, "model.json").write_text(json.dumps(content))
    assert load_runs("runs").checked()[0].reason.startswith("the checksum of model.json is wrong")


def test_what_was_run_is_known_without_its_code(theirs):
    [run] = load_runs("runs")
    assert run.spec.aggregator == ExternalMethod({"name": "lab_of_others:Mine", "weighted": True})
    assert not Path("was-imported").exists()


def told_in_time(monkeypatch, capsys, *arguments, seconds=30):
    """Exit code and errors of a command that must not wait for ever; an error that is no line is raised."""

    def too_slow(*_):
        raise AssertionError(f"{' '.join(arguments)} waits")

    before = signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(seconds)
    try:
        code = call(monkeypatch, *arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return code, capsys.readouterr().err


def a_ledger(folder):
    with open_ledger(folder, LedgerTerms(3, 1e-5, (Guarantee("server", GaussianEvent(3.0), "a test"),))) as ledger:
        ledger.reserve({1: [0, 1, 2]})


@pytest.mark.parametrize("what", ["pipe", "zeros"])
@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        *(
            (f"{RUN}/{name}", ("report", "runs", "--out", "report.csv"), 2)
            for name in ("run.json", "rounds.csv", "queries.csv", "timing.csv", "model.json", "privacy.json")
        ),
        (f"{RUN}/spec.toml", ("report", "runs", "--out", "report.csv"), 0),
        (f"{RUN}/lock", ("report", "runs", "--out", "report.csv"), 0),
        (f"{RUN}/checkpoint.npz", ("watch", "runs", "--list"), 0),
        ("runs/their/experiment.toml", ("report", "runs", "--out", "report.csv"), 0),
        (f"{RUN}/ledger/terms.json", ("privacy", "ledger", "runs"), 2),
        (f"{RUN}/ledger/participants.log", ("privacy", "ledger", "runs"), 2),
        (f"{RUN}/forgotten.jsonl", ("privacy", "ledger", RUN), 2),
        (f"{RUN}/model.json", ("model", "score", RUN, "synthetic-mq2007", "--out", "scores.txt"), 2),
        (f"{RUN}/history/index.json", ("forget", "client", RUN, "--client", "1", "--out", "new", "--trust"), 2),
        ("spec.toml", ("run", "spec.toml"), 2),
        ("train.txt", ("data", "check", "train.txt"), 2),
    ],
)
def test_what_is_no_file_is_told_in_a_line(theirs, monkeypatch, capsys, what, name, arguments, code):
    a_ledger(Path(RUN) / "ledger")
    Path(name).unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(name)
    else:
        Path(name).symlink_to("/dev/zero")
    found, err = told_in_time(monkeypatch, capsys, *arguments)
    assert (found, "Traceback" in err) == (code, False), err
    if code:
        assert f"{Path(name).name} is a {'pipe' if what == 'pipe' else 'device'}; name a file" in err


PAID = Paid("server", 2.0, 1.0, 4, "participation", 1e-5, "client", "zero-out", "a test")
TOWN = {
    "name": "town",
    "limit": 8.0,
    "runs": 1,
    "delta": 1e-5,
    "epsilon": {"server": 2.0, "public": None},
    "forgotten": [{"forgotten": "2026-01-01", "because": "a test"}],
}
CARD = Card(
    mechanism={"name": "gaussian"}, who_sees_what="", delta=1e-5, budget=None, promises=(PAID,), population=TOWN
)
RECEIPT = Receipt(
    removed={"clients": [1]},
    method={"name": "retrain"},
    cost={"share_of_retraining": None},
    verified={},
    parent="runs/their",
    remains=({"file": "model.json"},),
    quality={"ndcg@10": {"parent": 0.5, "unlearned": 0.25}},
)
ODD = (None, [], {}, "x", True, -1, math.inf, math.nan, 10**400, 1e308, [None], {"a": 1})


def places(table, above=()):
    """Where something stands in a JSON file."""
    yield above
    for key, value in table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ():
        yield from places(value, (*above, key))


@pytest.mark.long
@pytest.mark.parametrize("paper", [CARD, RECEIPT], ids=["card", "receipt"])
def test_a_card_or_receipt_says_what_it_should_or_its_run_is_left_out(theirs, paper):
    from fedrank.experiments.report.analysis import analyse
    from fedrank.experiments.report.tables import privacy_lines, privacy_table, unlearned_table

    paper.write(Path(RUN))
    file = Path(RUN) / paper.FILE
    before, left_out = file.read_text(encoding="utf-8"), 0
    for place in places(json.loads(before)):
        for odd in (*ODD, "delete"):
            content = json.loads(before)
            table = content
            for key in place[:-1]:
                table = table[key]
            if not place:
                content = odd
            elif odd == "delete":
                del table[place[-1]]
            else:
                table[place[-1]] = odd
            file.write_text(json.dumps(content), encoding="utf-8")
            try:
                [found] = analyse(load_runs("runs"))
            except ValueError as problem:
                assert "none of 1 runs is finished" in str(problem)  # noqa: PT017
                left_out += 1
                continue
            for show in (privacy_table, privacy_lines, unlearned_table):
                show(found)
    assert left_out > 100
    file.write_text(before, encoding="utf-8")
    [found] = analyse(load_runs("runs"))
    assert len(found.runs.finished) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": {}}, "lacks 'name'"),
        ({"mechanism": {"name": None}}, "mechanism.name"),
        ({"promises": [{"against": "server"}]}, "lacks 'epsilon'"),
        ({"promises": [1]}, r"promises\[0\]"),
        ({"format": None}, "privacy.json: format"),
        ({"delta": 10**400}, "delta"),
        ({"population": {"name": "town"}}, "lacks"),
    ],
)
def test_a_card_that_makes_no_sense_is_refused(tmp_path, change, message):
    (tmp_path / "privacy.json").write_text(json.dumps(json.loads(CARD.json()) | change), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Card.read(tmp_path)


def test_a_damaged_ledger_is_told_in_a_line(theirs, monkeypatch, capsys):
    a_ledger(Path(RUN) / "ledger")
    (Path(RUN) / "ledger" / "terms.json").write_text('{"people": Infinity}', encoding="utf-8")
    code, err = told_in_time(monkeypatch, capsys, "privacy", "ledger", "runs")
    assert code == 2
    assert err.startswith("fedrank: ")
    assert "terms.json cannot be read" in err


@pytest.mark.parametrize("odd", [1, [], {}, None])
def test_a_convention_that_is_no_sentence_leaves_its_run_out(theirs, monkeypatch, capsys, odd):
    file = Path(RUN) / "run.json"
    facts = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(facts | {"conventions": {"a": odd}}), encoding="utf-8")
    code, err = told_in_time(monkeypatch, capsys, "report", "runs", "--out", "report.md")
    assert code == 2
    assert "run.json: conventions.a" in err

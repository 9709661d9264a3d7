"""A person leaves: which runs used their rows, what their cards claim, and a receipt that names nobody."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.data.forget_user import forget_user
from fedrank.data.logs import FACTS, load_log
from fedrank.engine import team_draft
from fedrank.engine.start_trial import plan_trial
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import TrialRules
from fedrank.experiments.runner import forget_person as forgetting
from fedrank.experiments.runner.cards import read_card, sha256
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.forget_person import (
    LEARNED,
    NOT_KNOWN,
    NOT_USED,
    TESTED,
    forget_person,
    plan_forgetting,
)
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.kernels.compile import cache_folder
from fedrank.privacy.guarantees import up
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.model_remarks import FORGOTTEN, forgotten_people, remarks_on
from fedrank.ranking.rankers import Linear
from tests.made_up import made_up_shown

# Of 40 entries the last eight are for the test: user 3 is only there, user 4 only in the first ones.
CLICK_MODELS = [0, 1, 2, 0, 1, 2, 4, 0] * 4 + [3, 0, 1, 3, 2, 0, 1, 3]

SPEC = """\
title = "Users of a log"
rounds = 3
{more}
[data]
log = "{log}"
[clients]
count = {count}
partition = {{ name = "users" }}
[learner]
name = "pdgd"
"""


@pytest.fixture
def log(tmp_path):
    return made_up_shown(tmp_path / "log", CLICK_MODELS).folder


def run(log, name, count=4, more="", out="runs"):
    text = SPEC.format(log=log, count=count, more=more)
    path = log.parent / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    run_experiment(read_spec(path), name, log.parent / out, workers=1)
    return log.parent / out / name


def by_name(plan):
    return {Path(one.run).parent.parent.name: one for one in plan.runs}


def test_who_learned_from_whom(log):
    run(log, "all")
    run(log, "two", count=2)
    runs = [log.parent / "runs"]
    of_busy = by_name(plan_forgetting("user0", log, runs))
    assert {name: (one.used, one.clients) for name, one in of_busy.items()} == {
        "all": (LEARNED, (0,)),
        "two": (LEARNED, (0,)),
    }
    of_rare = by_name(plan_forgetting("user4", log, runs))
    assert (of_rare["all"].used, of_rare["all"].clients) == (LEARNED, (3,))
    assert of_rare["two"].used == NOT_USED
    assert {one.used for one in plan_forgetting("user3", log, runs).runs} == {TESTED}


def test_runs_on_other_data_are_no_concern(log, tmp_path):
    other = made_up_shown(tmp_path / "other", CLICK_MODELS).folder
    run(other, "elsewhere")
    assert plan_forgetting("user0", log, [tmp_path / "runs"]).runs == ()


def test_a_run_that_cannot_be_understood_is_named(log):
    folder = run(log, "all")
    spec = folder / "only" / "fold-1-seed-1" / "spec.toml"
    spec.write_text(spec.read_text().replace('"pdgd"', '"nonsense"'))
    [found] = plan_forgetting("user0", log, [folder]).runs
    assert found.used == NOT_KNOWN
    assert "nonsense" in found.because
    assert found.holds


def test_the_commands_of_a_plan(log):
    run(log, "recorded", more="record_every = 1")
    [found] = plan_forgetting("user1", log, [log.parent / "runs"]).runs
    assert found.unlearn_command.startswith("fedrank forget client ")
    assert f"--client {found.clients[0]} " in found.unlearn_command
    words = shlex.split(found.retrain_command)
    assert words[:2] == ["fedrank", "run"]
    assert read_spec(words[2]).title == "Users of a log"
    assert any(row["file"] == "history/" for row in found.remains)


PROTECTED = """
[mechanism]
name = "gaussian"
clip = 1.0
noise = 2.0
"""


def test_the_receipt_says_what_is_left_and_under_which_epsilon(log, tmp_path):
    open_run = run(log, "open")
    spec = tmp_path / "closed.toml"
    spec.write_text(SPEC.format(log=log, count=4, more="") + PROTECTED, encoding="utf-8")
    run_experiment(read_spec(spec), "closed", tmp_path / "runs", workers=1)
    receipt, path = forget_person("user1", log, [tmp_path / "runs"], tmp_path / "receipt.json")
    told = json.loads(path.read_text())
    assert path.stat().st_mode & 0o077 == 0
    assert "user1" not in path.read_text()
    assert told["summary"] == receipt.summary
    runs = {Path(one["run"]).parent.parent.name: one for one in told["runs"]}
    assert "claims" not in runs["open"]
    card = read_card(tmp_path / "runs" / "closed" / "only" / "fold-1-seed-1")
    claims = "; ".join(runs["closed"]["claims"])
    for paid in card.promises:
        assert paid.epsilon is not None
        assert f"ε = {up(paid.epsilon)} at δ = 1e-05 for a client" in claims
        assert f"the {paid.against}" in claims
    assert "did not protect data from the person who ran the simulation" in claims
    assert "no privacy guarantee limits that" in told["summary"]
    assert str(open_run / "only" / "fold-1-seed-1") in told["summary"]
    assert told["removed"]["entries"] == CLICK_MODELS.count(1)
    assert len(told["removed"]["first"]) == len("2024-10-04"), "a second would tell whose rows they were"
    assert told["files"] == {FACTS: sha256(log / FACTS)}
    assert (log / f"forgotten-{told['number']}.json").read_text() == path.read_text()
    assert load_log(log).facts["forgotten"] == [
        {"entries": CLICK_MODELS.count(1), "when": told["issued"], "receipt": told["number"]}
    ]
    assert read_card(log).data == "log"
    assert read_card(log).files == {FACTS: sha256(log / FACTS)}


def test_what_an_epsilon_does_not_cover_is_said_with_it(log, tmp_path):
    """Ranges of features come from everybody as they are; and whose searches are at several clients sends more."""
    text = SPEC.format(log=log, count=4, more="").replace('name = "users"', 'name = "iid"') + PROTECTED
    spec = tmp_path / "spread.toml"
    spec.write_text(text.replace("[clients]", 'normalise = "global"\n[clients]'), encoding="utf-8")
    run_experiment(read_spec(spec), "spread", tmp_path / "runs", workers=1)
    (found,) = plan_forgetting("user1", log, [tmp_path / "runs"]).runs
    assert found.used == LEARNED
    assert len(found.clients) > 1
    assert any(one.startswith("ε = ") for one in found.claims)
    assert "not covered: the smallest and largest value of each feature over all clients, which are in model.json" in (
        found.claims
    )
    assert f"it holds for one client, but {len(found.clients)} clients held their searches" in found.claims[-1]


@pytest.mark.process
def test_features_that_were_kept_to_save_time_go_too(log, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    kept = cache_folder() / "logs" / "x.npy"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"features")
    half = kept.with_name(f".{kept.name}.{gone()}.part")  # of a process that was killed while it wrote them
    half.write_bytes(b"featu")
    forget_person("user1", log)
    assert not kept.exists()
    assert not half.exists()


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.process
@pytest.mark.parametrize("whose", ["of a process that was killed", "of a container, whose processes have our number"])
def test_what_a_command_that_was_killed_left_goes_when_it_is_given_again(log, fedrank, tmp_path, monkeypatch, whose):
    """Killed behind the exchange, the old folder lies beside the new one, in which nobody finds the person any more."""
    monkeypatch.setenv("FEDRANK_CACHE", str(tmp_path / "cache"))
    named = log.rename(log.with_name("log [1]"))
    pid = gone() if "killed" in whose else os.getpid()
    shutil.copytree(named, old := named.with_name(f".{named.name}.forgetting.{pid}"))
    forget_user(named.rename(log), "user1")
    log.rename(named)
    kept = cache_folder() / "logs" / "x.npy"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(b"features")
    code, out, err = fedrank("forget", "person", "user1", "--data", named, "--plan")
    assert code == 2
    assert old.exists(), "whoever only looks changes nothing"
    code, out, err = fedrank("forget", "person", "user1", "--data", named, "--yes")
    assert code == 2
    assert "Deleted temporary files beside" in out
    assert "1 users were removed earlier, see forgotten-*.json in the folder" in err
    assert not old.exists()
    assert not kept.exists()


def test_the_next_run_learns_from_what_is_left(log):
    data = read_spec(run(log, "all") / "only" / "fold-1-seed-1" / "spec.toml").base.data
    before = load_fold(data, 1)
    forget_person("user1", log, [log.parent / "runs"])
    after = load_fold(data, 1)
    assert before.train.queries + before.test.queries == len(CLICK_MODELS)
    assert after.train.queries + after.test.queries == len(CLICK_MODELS) - CLICK_MODELS.count(1)


def test_a_receipt_replaces_nothing(log, tmp_path):
    (tmp_path / "receipt.json").write_text("another one")
    with pytest.raises(FileExistsError, match="a receipt never overwrites a file"):
        forget_person("user1", log, out=tmp_path / "receipt.json")
    assert "user1" in load_log(log).users


def test_browsers_are_not_people(tmp_path):
    folder = made_up_shown(tmp_path / "log", CLICK_MODELS, unit="browser").folder
    receipt, _ = forget_person("user1", folder)
    assert "lists of one browser" in receipt.summary
    assert "the log identifies browsers, not people" in receipt.not_covered[0]


@pytest.fixture
def fedrank(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, " ".join(out.split()), err

    return call


def test_rows_in_trials_of_an_engine_are_removed_and_in_the_receipt(log, fedrank, tmp_path):
    """The receipt names the trials and the numbers of rows, not the person."""
    save_model(Model(Linear(), np.array([1.0, 0.5]), 2), tmp_path / "new.json")
    save_model(Model(Linear(), np.array([0.5, 1.0]), 2), tmp_path / "old.json")
    folder = tmp_path / "trials" / "spring"
    plan, _ = plan_trial(tmp_path / "new.json", tmp_path / "old.json", "own", folder, TrialRules(), who="ann")
    lines = []
    for number, client in enumerate(["user1", "user2", "user1"]):
        mixed = team_draft.team_draft(["a", "b"], ["b", "a"], 2, plan.key, f"s{number}")
        lines.append(team_draft.search_line(mixed, ["a", "b"], ["b", "a"], f"s{number}", client, 1.8e9, plan.id))
        lines.append(team_draft.click_line(f"s{number}", client, 1.8e9 + 1, "a"))
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    EngineTrial(folder).read([tmp_path / "events.jsonl"])
    command = ["forget", "person", "user1", "--data", log, "--trials", tmp_path / "trials"]
    code, out, _ = fedrank(*command, "--plan")
    assert code == 0
    assert "2 searches and 2 clicks" in out
    assert EngineTrial(folder).count().searches == 3
    code, out, _ = fedrank(*command, "--out", tmp_path / "receipt.json", "--yes")
    assert code == 0
    assert EngineTrial(folder).count().searches == 1
    receipt = json.loads((tmp_path / "receipt.json").read_text())
    assert receipt["trials"] == [{"trial": str(folder), "searches": 2, "clicks": 2}]
    assert "2 searches and 2 clicks were removed from" in receipt["summary"]
    assert "user1" not in json.dumps(receipt)
    code, _, err = fedrank("forget", "person", "user2", "--data", log, "--trials", tmp_path / "none", "--plan")
    assert code == 2
    assert "give a folder of trials as --trials" in err


@pytest.mark.long
def test_the_command(log, fedrank):
    run(log, "all", more="record_every = 1")
    code, out, _ = fedrank("forget", "person", "user1", "--data", log, "--plan")
    assert code == 0
    assert "fedrank forget client" in out
    assert "Nothing was changed." in out
    assert "user1" in load_log(log).users
    code, out, _ = fedrank("forget", "person", "user1", "--data", log, "--out", "receipt.json", "--yes")
    assert code == 0
    assert "10 lists of one person" in out
    assert "fedrank run" in out
    assert Path("receipt.json").exists()
    assert "user1" not in load_log(log).users
    code, out, err = fedrank("forget", "person", "user1", "--data", log, "--yes")
    assert (code, out) == (2, "")
    assert "has no user" in err
    assert "Traceback" not in err


def called(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["fedrank", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return end.value.code or 0, " ".join((out + err).split())


def test_a_model_that_learned_from_a_forgotten_person_says_so(log, monkeypatch, capsys):
    run(log, "all", more="")
    run(log, "other", more="")
    folder = log.parent / "runs" / "all" / "only" / "fold-1-seed-1"
    forget_person("user3", log, [log.parent / "runs"])
    assert not (folder / FORGOTTEN).exists(), "it was only tested on them"
    before = (folder / "model.json").read_bytes()
    receipt, _ = forget_person("user0", log, [log.parent / "runs" / "all"])
    assert [one.receipt for one in forgotten_people(folder)] == [receipt.number]
    assert "user0" not in (folder / FORGOTTEN).read_text()
    assert (folder / "model.json").read_bytes() == before, "trials know a model by its digest"
    assert not (folder.parents[2] / "other" / "only" / "fold-1-seed-1" / FORGOTTEN).exists(), "it was not searched"
    warning = "learned from a person who was forgotten since"
    arguments = [folder / "model.json", "--against", "engine", "--to", "own", "--out", log.parent / "trial"]
    code, said = called(monkeypatch, capsys, "engine", "trial", "plan", *arguments)
    assert code == 0, said
    assert warning in said
    code, said = called(monkeypatch, capsys, "model", "export", folder, "--to", "solr", "--out", log.parent / "x.json")
    assert warning in said
    forget_person("user1", log, [log.parent / "runs" / "all"])
    assert "learned from 2 people who were forgotten since" in remarks_on(folder)[0]


def test_a_stopped_command_leaves_a_mark_too_many_never_one_too_few(log, monkeypatch):
    run(log, "all")
    folder = log.parent / "runs" / "all" / "only" / "fold-1-seed-1"

    def dies(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(forgetting, "forget_user", dies)
    with pytest.raises(KeyboardInterrupt):
        forget_person("user0", log, [log.parent / "runs"])
    assert forgotten_people(folder)
    assert "user0" in load_log(log).users

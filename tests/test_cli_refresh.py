"""`fedrank engine refresh`: from new log files to a planned trial, step by step, however often it is killed."""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.cli.refresh import refresh
from fedrank.data.build_shown import ShownBuild, build_shown
from fedrank.data.held_out import HoldOut, continued, read_window, use_window
from fedrank.data.logs import load_log
from fedrank.engine.adoption import adopt
from fedrank.engine.practice import Practice
from fedrank.engine.start_trial import plan_trial
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import TrialRules
from fedrank.engine.trial_record import read_plan
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.ranking.stored_estimate import store_estimate
from tests.data.test_build_shown import ALL_TEXTS, documents, table, words_extractor
from tests.data.test_held_out import NOW, rows

SETTINGS = """
[build]
hold_out_days = 2
[train]
spec = "train.toml"
[trial]
to = "own"
"""
TODAY = datetime(2026, 11, 17, tzinfo=UTC)


class Commands:
    """Stand-ins that write what the commands write; each can be killed before or after it wrote."""

    def __init__(self, days=10):
        self.days, self.calls, self.finding, self.weight = days, [], "inconclusive", 1.0
        self.dies = 0  # at this moment, counted from 1

    def moment(self):
        self.dies -= 1
        if self.dies == 0:
            raise KeyboardInterrupt

    def __call__(self, words):
        self.calls.append(" ".join(words[:3]) if words[0] == "engine" else " ".join(words[:2]))
        self.moment()
        option = dict(pairwise(words))
        done = {"data": self.build, "run": self.run, "model": self.estimate, "engine": self.plan}[words[0]](
            option, words
        )
        self.moment()
        return done

    def build(self, option, words):
        source = table(Path(), [row for row in rows(30) if row[1] <= NOW - (20 - self.days) * 86_400 + 99], "log.jsonl")
        hold_out = continued(option["--previous"]) if "--previous" in option else HoldOut(days=2)
        how = ShownBuild(redaction=ALL_TEXTS, hold_out=hold_out)
        build_shown(source, documents(Path()), option["--out"], how, extractor=words_extractor)
        return 0

    def run(self, option, words):
        self.start = [word for word in words if word.startswith("start=")]
        folder = Path(option["--out"], option["--name"])
        folder.mkdir(parents=True, exist_ok=True)
        save_model(Model(Linear(), np.array([self.weight, 2.0, 3.0]), 3), folder / "model.json")
        return 0

    def estimate(self, option, words):
        use_window(option["--log"], words[2])
        path = store_estimate(words[2], Path(option["--log"]).name, "too few")
        path.write_text(path.read_text().replace('"inconclusive"', json.dumps(self.finding)))
        return 1

    def plan(self, option, words):
        rules = TrialRules.for_wins(0.6, float(option["--level"]))
        plan_trial(words[3], option["--against"], option["--to"], option["--out"], rules, who="ann")
        return 0


@pytest.fixture
def home(tmp_path):
    (tmp_path / "refresh.toml").write_text(SETTINGS)
    return tmp_path


def lines_of(home, commands, day=0, **more):
    lines = []
    passed = refresh(home, commands, lines.append, TODAY + timedelta(days=day), **more)
    return passed, lines


def test_one_line_for_each_step_and_a_second_call_changes_nothing(home):
    commands = Commands()
    passed, lines = lines_of(home, commands)
    assert passed
    assert [line.partition(":")[0] for line in lines] == ["build", "train", "estimate", "trial"]
    assert read_plan(home / "trials" / "2026-11-17").rules.gate.level == 0.05 / 4, "a year has four trials"
    count = len(commands.calls)
    assert lines_of(home, commands) == (True, ["trial: trials/2026-11-17 is not decided yet, so nothing is planned"])
    assert len(commands.calls) == count


def close(home, day="2026-11-17"):
    trial = EngineTrial(home / "trials" / day)
    trial.note("decided", "ann", ruling="refuse")
    return trial


def test_the_next_refresh_has_a_later_window_and_starts_from_the_model_in_use(home):
    commands = Commands()
    lines_of(home, commands)
    trial = close(home)
    adopt(trial, "ann", "for the test", anyway=True)
    commands.days, commands.weight = 15, 1.5
    passed, lines = lines_of(home, commands, day=7)
    assert passed
    assert [line.partition(":")[0] for line in lines] == ["build", "drift", "train", "estimate", "trial"]
    old, new = (load_log(home / "data" / day) for day in ("2026-11-17", "2026-11-24"))
    assert new.time[new.held_out].min() > old.time.max()
    assert (home / "reports" / "2026-11-24-drift.png").exists()
    first = home.resolve() / "runs" / "2026-11-17" / "model.json"
    assert commands.start == [f"start={first}"]
    assert read_plan(home / "trials" / "2026-11-24").old.path == str(first)


def test_a_veto_plans_no_trial(home):
    commands = Commands()
    commands.finding = "worse"
    passed, lines = lines_of(home, commands)
    assert not passed
    assert lines[-1].startswith("estimate: veto, worse")
    assert not (home / "trials").exists()
    assert lines_of(home, commands)[1] == ["done: 2026-11-17 was refreshed already"]


def test_nothing_new_is_no_error(home):
    commands = Commands()
    lines_of(home, commands)
    close(home)
    passed, lines = lines_of(home, commands, day=1)
    assert passed
    assert lines[0].startswith("build: nothing new: none of the")
    assert len(lines) == 1
    commands.days, commands.weight = 12, 2.0
    assert lines_of(home, commands, day=2)[1][-1].startswith("trial: trials/2026-11-19 is planned")


@pytest.mark.long
def test_at_most_four_trials_a_year(home):
    commands = Commands()
    for number in range(4):
        commands.days, commands.weight = 5 + 3 * number, number + 1.0
        assert lines_of(home, commands, day=7 * number)[0]
        close(home, (TODAY + timedelta(days=7 * number)).date().isoformat())
    commands.days, commands.weight = 19, 9.0
    with pytest.raises(ValueError, match="4 trials were planned within a year"):
        lines_of(home, commands, day=28)


def test_killed_at_any_moment_it_ends_with_one_trial_and_one_use_of_the_window(home, tmp_path_factory):
    for moment in range(1, 9):
        home = tmp_path_factory.mktemp("home")
        (home / "refresh.toml").write_text(SETTINGS)
        commands = Commands()
        commands.dies = moment
        with pytest.raises(KeyboardInterrupt):
            lines_of(home, commands)
        commands.days = 12  # the log has grown meanwhile, and the call comes on another day
        passed, lines = lines_of(home, commands, day=1)
        assert passed
        assert lines[-1].startswith("trial: trials/2026-11-17 is planned"), moment
        assert [path.name for path in (home / "data").iterdir()] == ["2026-11-17"]
        assert len(read_window(home / "data" / "2026-11-17").uses) == 1
        assert len(list((home / "trials").glob("*/trial.json"))) == 1


def test_the_newest_received_model_is_tried_once(home):
    (home / "refresh.toml").write_text(
        SETTINGS.replace('[train]\nspec = "train.toml"', '[received]\nmodels = "models"')
    )
    commands = Commands()
    assert lines_of(home, commands)[1][-1] == "model: no model that was not tried before"
    (home / "models" / "plan-1").mkdir(parents=True)
    save_model(Model(Linear(), np.ones(3), 3), home / "models" / "plan-1" / "model.json")
    commands.days = 12
    assert lines_of(home, commands, day=1)[1][-1].startswith("trial: trials/2026-11-18 is planned")
    close(home, "2026-11-18")
    commands.days = 14
    assert lines_of(home, commands, day=2)[1][-1] == "model: no model that was not tried before"


RECEIVED = SETTINGS.replace('[train]\nspec = "train.toml"', '[received]\nmodels = "models"')


def receive(home, plan, name, weight):
    (home / "models" / plan).mkdir(parents=True)
    save_model(Model(Linear(), np.full(3, weight), 3), home / "models" / plan / name)


def test_a_model_that_only_a_trial_may_adopt_is_tried_on_the_day_of_the_data_set(home):
    """The gate used the window of that data set for this model, so the estimate may use it again."""
    (home / "refresh.toml").write_text(RECEIVED)
    commands = Commands()
    lines_of(home, commands)
    receive(home, "plan-1", "model-vetoed.json", 2.0)
    vetoed = "done: 2026-11-17 was refreshed already; the gate vetoed models/plan-1/model-vetoed.json"
    assert lines_of(home, commands)[1] == [vetoed]
    receive(home, "plan-0", "model-trial-only.json", 2.0)  # the same model, which another gate vetoed
    assert lines_of(home, commands)[1] == ["done: 2026-11-17 was refreshed already"]
    receive(home, "plan-2", "model-trial-only.json", 1.0)
    lines = lines_of(home, commands)[1]
    assert [line.partition(":")[0] for line in lines] == ["build", "model", "estimate", "trial"]
    assert "models/plan-2/model-trial-only.json" in lines[1]
    close(home)
    receive(home, "plan-3", "model-trial-only.json", 3.0)
    assert lines_of(home, commands)[1] == ["done: 2026-11-17 was refreshed already"], "one trial a day"
    with pytest.raises(ValueError, match="a window is used for one purpose only"):
        lines_of(home, commands, day=1)
    commands.days = 12
    assert lines_of(home, commands, day=2)[1][-1].startswith("trial: trials/2026-11-18 is planned"), "with new lists"


def test_a_model_of_an_earlier_trial_is_not_tried_again(home):
    """Its trial was planned by hand, so the state of the refresh does not have it."""
    (home / "refresh.toml").write_text(RECEIVED)
    receive(home, "plan-1", "model-trial-only.json", 1.0)
    rules = TrialRules.for_wins(0.6, 0.0125)
    with contextlib.chdir(home):
        plan_trial("models/plan-1/model-trial-only.json", "engine", "own", "trials/spring", rules, who="ann")
    close(home, "spring")
    commands = Commands()
    assert lines_of(home, commands)[1][-1] == "model: no model that was not tried before"
    assert commands.calls == ["data build"]


def test_the_first_refresh_continues_the_data_set_of_the_settings(home):
    commands = Commands()
    with contextlib.chdir(home):
        commands.build({"--out": "first"}, [])
        use_window("first", "the model before")
    (home / "refresh.toml").write_text(SETTINGS.replace("hold_out_days = 2", 'hold_out_days = 2\nprevious = "first"'))
    commands.days = 15
    assert [line.partition(":")[0] for line in lines_of(home, commands)[1]][:2] == ["build", "drift"]
    old, new = load_log(home / "first"), load_log(home / "data" / "2026-11-17")
    assert new.time[new.held_out].min() > old.time.max()


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("[build]\n[train]\n", r"section \[trial\] is missing"),
        ("[build]\n[trial]\n", r"give \[train\] with a spec, or \[received\]"),
        ("[build]\n[trial]\n[train]\n[received]\n", r"give \[train\] with a spec, or \[received\]"),
        ("[bulid]\n", "'bulid' is not one of the sections"),
    ],
)
def test_settings_that_cannot_be(home, text, because):
    (home / "refresh.toml").write_text(text)
    with pytest.raises(ValueError, match=because):
        lines_of(home, Commands())


TRAIN = """
title = "Refresh"
rounds = 5
[data]
log = "replaced"
propensities = "shared"
[clients]
count = 20
interactions = 10
partition = { name = "users" }
[learner]
name = "logged-clicks"
rate = 0.01
"""
REAL = """
[build]
ubi_queries = "log/ubi_queries.ndjson"
ubi_events = "log/ubi_events.ndjson"
docs = "log/docs.jsonl"
features = "engine-1"
hold_out_days = 2
hold_out_users = 0.2
[train]
spec = "train.toml"
[trial]
to = "own"
who = "ann"
"""


@pytest.mark.long
def test_with_the_real_commands(tmp_path, monkeypatch, capsys):
    Practice.begin().write_log(tmp_path / "log", searches=8000)
    (tmp_path / "refresh.toml").write_text(REAL)
    (tmp_path / "train.toml").write_text(TRAIN)
    monkeypatch.setattr(sys, "argv", ["fedrank", "engine", "refresh", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert end.value.code in (None, 0, 1), err
    steps = [line.partition(":")[0] for line in out.splitlines()]
    assert steps[:3] == ["build", "train", "estimate"]
    assert (steps[3:] == ["trial"]) == (end.value.code in (None, 0))
    (data,) = (tmp_path / "data").iterdir()
    assert read_window(data).uses

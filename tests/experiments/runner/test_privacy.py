"""What a spec would spend, what a run has spent after whatever happened to it, and the card that says so."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import sys
import tomllib

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from fedrank.cli import main
from fedrank.experiments.report.privacy_output import about_privacy
from fedrank.experiments.report.terminal import show
from fedrank.experiments.runner.federated import FederatedRun
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.privacy import card, enough, guarantees_of, noise_needed, planned, setting_of
from fedrank.experiments.runner.schedule import plan
from fedrank.experiments.runner.writer import RunWriter, Task
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.experiments.spec.sections import DataSpec, PrivacySpec
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.spending import Spending
from fedrank.trees.model_files import load_model
from tests.made_up import made_up_shown

ROUNDS = 30
CENTRAL = {"name": "gaussian", "clip": 1.0, "noise": 3.0, "placement": "server"}
LOCAL = {"name": "gaussian", "clip": 1.0, "noise": 6.0, "placement": "client"}
SUM = {"name": "gaussian", "clip": 1.0, "noise": 3.0, "placement": {"name": "secure-aggregation", "sum": "ideal"}}
PAPER = {"name": "fpdgd-paper", "epsilon": 1.2}


def tables(**changes):
    base = {
        "title": "a test",
        "rounds": ROUNDS,
        "evaluate_every": 10,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 6, "interactions": 2},
        "learner": {"name": "pdgd"},
        "mechanism": CENTRAL,
    }
    found = base | changes
    return {key: value for key, value in found.items() if value is not None}


def experiment(**changes):
    return read_tables(tables(**changes)).base


def one_task(folder, **changes) -> Task:
    [task] = plan(Grid.of(experiment(**changes)), "test", folder)
    return task


def facts(task, name="run.json"):
    return json.loads((task.folder / name).read_text(encoding="utf-8"))


class Killed(BaseException):
    """Nobody catches it, as nobody catches `kill -9`."""


def kill(monkeypatch, task, where, name, dies):
    """A process that dies where `where.name` is called for the first time that `dies` says so."""
    real = getattr(where, name)

    def dying(*arguments, **keywords):
        if dies():
            raise Killed
        return real(*arguments, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, dying)
        with pytest.raises(Killed):
            perform(task)


def kill_after(monkeypatch, rounds, task):
    """Dies after so many more rounds, and one that was kept but not yet written down."""
    calls = iter([False] * rounds + [True])
    kill(monkeypatch, task, RunWriter, "add", lambda: next(calls))


def kill_in_the_first_round(monkeypatch, task):
    """Dies when messages may have been sent, and nothing is kept yet."""
    kill(monkeypatch, task, Spending, "keep", lambda: True)


# Runs


def test_a_run_without_a_mechanism_says_so(tmp_path):
    task = one_task(tmp_path, mechanism=None)
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert (card["mechanism"], card["promises"], card["rounds_charged"]) == (None, [], 0)
    assert "No mechanism: clients send exact updates" in card["summary"]
    assert not (task.folder / "ledger").exists()


@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL, SUM], ids=["server", "client", "sum"])
def test_a_card_says_what_was_spent(tmp_path, mechanism):
    task = one_task(tmp_path, mechanism=mechanism)
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert (card["rounds_charged"], card["participations_charged"]) == (ROUNDS, ROUNDS)
    assert card["mechanism"]["name"] == "gaussian"
    priced = guarantees_of(task.experiment)
    assert [row["against"] for row in card["promises"]] == ["server", "other clients", "public"]
    for row, guarantee in zip(card["promises"], priced, strict=True):
        cost = guarantee.epsilon(ROUNDS, 1e-5)
        assert row["epsilon"] == (None if math.isinf(cost) else pytest.approx(cost))
        assert row["delta"] == 1e-5
    assert (card["promises"][0]["epsilon"] is None) == (mechanism is CENTRAL)
    assert facts(task)["status"] == "finished"


def test_a_run_done_again_in_its_folder_uses_what_was_kept(tmp_path):
    """The ledger outlives everything else: what was sent was sent, and nobody is asked twice."""
    task = one_task(tmp_path)
    assert perform(task) == "finished"
    first = load_model(task.folder).weights
    for name in ("rounds.csv", "run.json", "model.json", "privacy.json"):
        (task.folder / name).unlink()
    assert perform(task) == "finished"
    assert np.array_equal(load_model(task.folder).weights, first)
    assert facts(task, "privacy.json")["rounds_charged"] == ROUNDS


def test_a_card_does_not_outlive_its_model(tmp_path):
    task = one_task(tmp_path)
    assert perform(task) == "finished"
    assert perform(task, stop=lambda: True) in ("finished", "interrupted")
    assert (task.folder / "privacy.json").exists() == (task.folder / "model.json").exists()


@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL, SUM], ids=["server", "client", "sum"])
def test_stopping_and_resuming_costs_nothing(tmp_path, mechanism, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", 0.0)
    task = one_task(tmp_path, mechanism=mechanism)
    stops = iter([False] * 6 + [True] + [False] * 9 + [True] + [False] * 100)
    assert perform(task, stop=lambda: next(stops)) == "interrupted"
    with Ledger.open(task.folder / "ledger", 6) as ledger:
        assert ledger.rounds() == 7
    assert perform(task, stop=lambda: next(stops)) == "interrupted"
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert (card["rounds_charged"], card["participations_charged"]) == (ROUNDS, ROUNDS)


@pytest.mark.parametrize(
    "place", ["server", "client"]
)  # under a secure sum: tests/experiments/runner/test_populations.py
@pytest.mark.parametrize("after", [0, 1, 4, 11])
def test_after_a_kill_everything_that_may_have_been_sent_is_charged(tmp_path, monkeypatch, place, after):
    mechanism = CENTRAL | {"placement": place}
    task = one_task(tmp_path, mechanism=mechanism, clients={"count": 6, "interactions": 2, "participation": 0.5})
    kill_after(monkeypatch, after, task)
    with Ledger.open(task.folder / "ledger", 6) as ledger:
        charged, rounds = ledger.participations(), ledger.rounds()
        kept = [ledger.kept(round) for round in range(1, after + 2)]
    assert rounds >= after + 1
    assert all(kept)  # the round that died had been noised, and is not asked for again
    used, add = [], FederatedRun.add

    def watching(self, outcome, ends):
        used.append(outcome.state.weights.copy())
        add(self, outcome, ends)

    monkeypatch.setattr(FederatedRun, "add", watching)
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert card["rounds_charged"] >= ROUNDS + rounds - (after + 1)
    with Ledger.open(task.folder / "ledger", 6) as ledger:
        assert (ledger.participations() >= charged).all()
    if place == "server":  # who took part how often is the server's secret
        assert "participations_charged" not in card
    else:
        assert card["participations_charged"] >= charged.max()
    # Replayed bit for bit: what the server added in these rounds is what had been kept.
    model = np.zeros(46)
    for weights, old in zip(used, kept, strict=False):
        model = model + old.change
        assert np.array_equal(weights, model)


def test_a_kill_during_a_round_costs_it_twice(tmp_path, monkeypatch):
    """Its messages may have been sent."""
    task = one_task(tmp_path)
    kill_in_the_first_round(monkeypatch, task)
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert (card["rounds_charged"], card["participations_charged"]) == (ROUNDS + 1, ROUNDS + 1)
    guarantee = guarantees_of(task.experiment)[-1]
    assert card["promises"][-1]["epsilon"] == pytest.approx(guarantee.epsilon(ROUNDS + 1, 1e-5))


def test_an_interaction_in_a_round_that_was_lost_pays_twice(tmp_path, monkeypatch):
    """The same clicks again, with other noise."""
    task = one_task(
        tmp_path,
        mechanism=CENTRAL | {"unit": "interaction"},
        learner={"name": "pdgd", "batch": True, "clip_gradients": 1.0},
    )
    kill_in_the_first_round(monkeypatch, task)
    assert perform(task) == "finished"
    row = facts(task, "privacy.json")["promises"][-1]
    assert (row["times"], row["unit"]) == (2, "interaction")
    assert row["epsilon"] == pytest.approx(guarantees_of(task.experiment)[-1].epsilon(2, 1e-5))
    assert "paid 2 times" in facts(task, "privacy.json")["summary"]


@pytest.mark.parametrize("place", ["server", "client"])
def test_a_run_stops_where_its_budget_ends(tmp_path, place):
    mechanism = CENTRAL | {"placement": place}
    guarantee = guarantees_of(experiment(mechanism=mechanism))[-1]
    budget = guarantee.epsilon(12, 1e-5) + 1e-3
    task = one_task(tmp_path, mechanism=mechanism, privacy={"budget": budget})
    assert perform(task) == "finished"
    run = facts(task)
    assert (run["status"], run["round"], run["error"]) == ("finished", 12, None)
    assert any("privacy budget" in note and "round 12 of 30" in note for note in run["notes"])
    card = facts(task, "privacy.json")
    assert card["rounds_charged"] == 12
    assert guarantee.epsilon(12, 1e-5) == pytest.approx(card["promises"][-1]["epsilon"])
    assert card["promises"][-1]["epsilon"] <= budget < guarantee.epsilon(13, 1e-5)
    assert np.isfinite(load_model(task.folder).weights).all()
    rows = list(csv.DictReader((task.folder / "rounds.csv").read_text().splitlines()))
    assert [int(row["round"]) for row in rows] == list(range(1, 13))


def test_the_model_that_a_budget_leaves_is_judged(tmp_path):
    budget = guarantees_of(experiment())[-1].epsilon(12, 1e-5) + 1e-3
    task = one_task(tmp_path, privacy={"budget": budget})
    assert perform(task) == "finished"
    rows = list(csv.DictReader((task.folder / "rounds.csv").read_text().splitlines()))
    assert rows[-1]["ndcg@10"]


def test_a_budget_holds_across_kills(tmp_path, monkeypatch):
    guarantee = guarantees_of(experiment())[-1]
    budget = guarantee.epsilon(12, 1e-5) + 1e-3
    task = one_task(tmp_path, privacy={"budget": budget})
    for after in (2, 3, 1):
        kill_after(monkeypatch, after, task)
    assert perform(task) == "finished"
    card = facts(task, "privacy.json")
    assert 1 <= card["rounds_charged"] <= 12
    assert card["promises"][-1]["epsilon"] <= budget
    assert facts(task)["round"] <= 12


def test_a_budget_spent_in_vain_fails_with_a_reason(tmp_path, monkeypatch):
    guarantee = guarantees_of(experiment())[-1]
    task = one_task(tmp_path, privacy={"budget": guarantee.epsilon(1, 1e-5) + 1e-3})
    kill_in_the_first_round(monkeypatch, task)
    assert perform(task) == "failed"
    assert "no model" in facts(task)["error"]["message"]


def test_a_budget_below_one_round_fails_with_a_reason(tmp_path):
    task = one_task(tmp_path, privacy={"budget": 0.01})
    assert perform(task) == "failed"
    assert "is less than the cost of one round" in facts(task)["error"]["message"]


def test_shared_queries_and_a_start_model_are_named_as_not_covered(tmp_path):
    shared = {"name": "shared", "partition": {"name": "labels"}, "share": 0.1, "warm_up": 0}
    task = one_task(tmp_path, clients={"count": 3, "partition": shared}, rounds=2)
    assert perform(task) == "finished"
    assert any("shares with all clients" in line for line in facts(task, "privacy.json")["not_covered"])
    other = one_task(tmp_path / "other", start=str(task.folder / "model.json"), rounds=2)
    assert perform(other) == "finished"
    lines = facts(other, "privacy.json")["not_covered"]
    assert any("initial model" in line for line in lines)
    assert not any("shares with all clients" in line for line in lines)


# Before a run


def test_planned_by_hand():
    server, *others = planned(
        experiment(mechanism=CENTRAL | {"noise": 2.05}, rounds=1000, clients={"count": 1000, "participation": 0.1})
    )
    assert math.isinf(server.total)
    for row in others:
        assert (row.times, row.delta) == (1000, 1e-5)
        assert row.total == pytest.approx(8, rel=0.02)


@pytest.mark.parametrize(("count", "participation", "share"), [(1000, 0.1, 0.1), (3, 0.1, 1 / 3), (6, 0.25, 1 / 3)])
def test_who_is_known_pays_as_often_as_the_unluckiest_is_likely_to(count, participation, share):
    """One of three clients, whatever smaller share is asked for; 1.5 of six are two."""
    rows = planned(experiment(mechanism=LOCAL, rounds=1000, clients={"count": count, "participation": participation}))
    [often] = {row.times for row in rows}
    assert count * stats.binom.sf(often, 1000, share) <= 1e-3 < count * stats.binom.sf(often - 1, 1000, share)


def test_who_always_takes_part_pays_for_every_round():
    assert {row.times for row in planned(experiment(mechanism=LOCAL, rounds=1000))} == {1000}


@pytest.mark.long
def test_noise_needed_keeps_its_target():
    asked = experiment(rounds=1000, clients={"count": 1000})
    [(whom, values)] = noise_needed(asked, [8.0, 4.0, 1.0]).items()
    assert whom == "other clients, public"
    assert values == pytest.approx([19, 34, 118], rel=0.03)
    for value, target in zip(values, [8.0, 4.0, 1.0], strict=True):
        typed = experiment(rounds=1000, clients={"count": 1000}, mechanism=CENTRAL | {"noise": float(enough(value))})
        assert planned(typed)[-1].total <= target


def test_parameters_are_those_of_the_ranker():
    assert setting_of(experiment()).parameters == 46
    deep = experiment(learner={"name": "pdgd", "ranker": {"name": "mlp", "hidden": 4}})
    assert setting_of(deep).parameters == 46 * 4 + 4 + 4


@pytest.fixture
def fedrank(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments, **changes):
        (tmp_path / "small.toml").write_text(to_toml(experiment(**changes)), encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["fedrank", "privacy", "show", "small.toml", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def line_of(out, begin):
    [line] = [line for line in out.splitlines() if line.strip().startswith(begin)]
    return line.split()


def test_the_command_prints_the_numbers_of_the_paper(fedrank):
    learner = {"name": "pdgd", "clip_weights": 1.5}
    code, out, _ = fedrank(mechanism=PAPER, learner=learner, rounds=1000, clients={"count": 1000, "interactions": 4})
    assert code == 0
    assert line_of(out, "server")[1:] == ["nothing", "none", "none"]
    words = line_of(out, "other clients, public")
    assert words[-1] == "1e-05"
    assert 895 < float(words[-2].replace(",", "")) < 905
    assert words[-4:-2] == ["1,000", "times"]
    assert "for one round, ε = 8.2 holds" in out  # 1.2 x √46 = 8.14


def test_the_command_prints_what_noise_a_target_needs(fedrank):
    code, out, _ = fedrank("--target", 8, "--target", 1, rounds=1000, clients={"count": 1000})
    assert code == 0
    assert "this spec has 3" in out
    # 18.6 and 117.8, say, rounded up: what is typed keeps the target.
    *_, eight, one = [line for line in out.splitlines() if line.startswith("other clients, public")][-1].split()
    assert 18 < float(eight) < 20
    assert 115 < float(one) < 121


def test_the_command_says_when_nothing_protects(fedrank):
    code, out, _ = fedrank(mechanism=None)
    assert code == 0
    assert "No privacy guarantee" in out


def test_foltr_es_by_the_command(fedrank):
    code, out, _ = fedrank(
        mechanism={"name": "es-randomised-response"},
        learner={"name": "evolution", "truth": 0.5},
        server={"name": "adam"},
        rounds=250,
        clients={"count": 2000, "interactions": 4},
    )
    assert code == 0
    words = line_of(out, "every observer")
    assert 1214 < float(words[-2].replace(",", "")) < 1223  # methods: 1,218


def test_a_target_must_be_positive(fedrank):
    code, _, err = fedrank("--target", 0)
    assert code != 0
    assert "positive" in err


# Contradictions


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"aggregator": {"name": "none"}}, "a mechanism has no effect"),
        ({"mechanism": SUM | {"placement": "secure-aggregation"}, "clients": {"count": 201}}, 'sum = "ideal"'),
        ({"mechanism": SUM, "clients": {"count": 1}}, "single client"),
        ({"mechanism": CENTRAL | {"unit": "interaction"}}, "clip_gradients"),
        ({"mechanism": CENTRAL | {"unit": "day"}}, "unit"),
        ({"mechanism": PAPER}, r"learner.clip_weights = 1\.5"),
        ({"mechanism": {"name": "es-randomised-response"}}, "evolution"),
        ({"mechanism": None, "privacy": {"budget": 8.0}}, "needs a mechanism"),
        ({"mechanism": CENTRAL | {"placement": "moon"}}, "moon"),
        ({"mechanism": {"name": "gaussian", "clip": 1.0}}, "noise"),
        ({"mechanism": CENTRAL | {"noise": 0.0}}, "noise must be above 0"),
        ({"privacy": {"budget": -1.0}}, "budget"),
        ({"privacy": {"delta": 1.0}}, "delta"),
        ({"learner": {"name": "pdgd", "control": True}}, "control"),
        (
            {
                "mechanism": PAPER,
                "learner": {"name": "pdgd", "clip_weights": 1.5},
                "clients": {"count": 4, "interactions": [2, 3]},
                "privacy": {"budget": 8.0},
            },
            "has no guarantee",
        ),
    ],
)
def test_contradictions_are_named(changes, problem):
    with pytest.raises(ValueError, match=problem):
        experiment(**changes)


@pytest.mark.parametrize("mechanism", [CENTRAL, LOCAL | {"cap": 3}, SUM, None])
def test_a_spec_survives_a_file(mechanism):
    asked = experiment(mechanism=mechanism, privacy={"delta": 1e-6} | ({"budget": 5.0} if mechanism else {}))
    assert read_tables(tomllib.loads(to_toml(asked))).base == asked


def test_a_budget_that_will_end_a_run_is_announced(tmp_path):
    asked = experiment(mechanism=LOCAL, rounds=100)
    price = guarantees_of(asked)[0].epsilon(7, 1e-5)
    out, quiet = (Console(file=io.StringIO(), width=200) for _ in range(2))
    for console, budget in ((out, price + 1e-6), (quiet, 1e6)):
        limited = dataclasses.replace(asked, privacy=PrivacySpec(budget=budget))
        show(about_privacy(Grid.of(limited), [8.0]), console)
    assert "allows 7 times of 100; the run will then stop." in out.file.getvalue()
    assert "will stop" not in quiet.file.getvalue()


def test_queries_that_the_server_learns_from_itself_are_named_as_not_covered():
    trusted = experiment(mechanism=LOCAL, aggregator={"name": "trust"})
    plain = experiment(mechanism=LOCAL)
    said = [" ".join(card(asked, planned(asked), 1, 1).not_covered) for asked in (trusted, plain)]
    assert ["the server trains itself" in text for text in said] == [True, False]


def test_users_of_a_log_that_are_browsers_are_not_called_persons(tmp_path):
    logs = {unit: str(made_up_shown(tmp_path / unit, [0, 1, 0], unit=unit).folder) for unit in ("browser", "person")}
    asked = experiment(mechanism=LOCAL)
    cards = [
        card(dataclasses.replace(asked, data=DataSpec(log=log)), planned(asked), 1, 1)
        for log in (*logs.values(), str(tmp_path / "nowhere"))
    ]
    assert ["a browser, not a person" in " ".join(one.not_covered) for one in cards] == [True, False, False]

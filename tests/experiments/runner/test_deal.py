"""Runs with a dealt schedule: the deal in the run folder, one charge each, and what is refused before anything runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.privacy import planned
from fedrank.experiments.runner.runs import clean, load_runs
from fedrank.experiments.runner.schedule import plan, run_experiment
from fedrank.experiments.runner.tune import tune
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.grid import Grid, read_tables
from fedrank.federated.deal import Deal
from fedrank.privacy.population import Account
from fedrank.privacy.spending import Spending
from fedrank.unlearning.methods import Retrain
from tests.experiments.runner.test_privacy import facts, kill, kill_after
from tests.oracles.accounting import gaussian_epsilon

ROUNDS, COUNT, NOISE = 3, 8, 4.0
SUM = {"name": "secure-aggregation", "colluding": 0.0}


def tables(clients=None, mechanism=None, placement="server", **changes):
    gaussian = {"name": "gaussian", "clip": 1.0, "noise": NOISE, "placement": placement}
    base = {
        "rounds": ROUNDS,
        "evaluate_every": 1,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": COUNT, "interactions": 2, "schedule": "dealt"} | (clients or {}),
        "learner": {"name": "pdgd"},
        "mechanism": gaussian if mechanism is None else gaussian | mechanism,
    }
    return {key: value for key, value in (base | changes).items() if value is not None}


def one_task(folder, **changes):
    [task] = plan(Grid.of(read_tables(tables(**changes)).base), "test", folder)
    return task


def participations(task):
    return Account.read(task.folder / "ledger").participations


PEOPLE = {"count": 3, "people": 7}
CASES = {
    "server": ({}, {}, "server", COUNT),
    "client": ({}, {"noise": 2 * NOISE}, "client", COUNT),
    "sum": ({}, {}, SUM, COUNT),
    "people, server": (PEOPLE, {"unit": "person"}, "server", 21),
    "people, client": (PEOPLE, {"unit": "person"}, "client", 21),
    "people, sum": (PEOPLE, {"unit": "person"}, SUM, 21),
}


@pytest.mark.parametrize("case", CASES)
def test_each_is_charged_once_at_the_price_of_one_gaussian(tmp_path, case):
    clients, mechanism, placement, units = CASES[case]
    task = one_task(tmp_path, clients=clients, mechanism=mechanism, placement=placement)
    assert perform(task) == "finished", facts(task)
    assert participations(task).tolist() == [1] * units
    groups = json.loads((task.folder / "deal.json").read_text())["round_of_each"]
    assert len(groups) == units
    assert (task.folder / "deal.json").stat().st_mode & 0o077 == 0
    card = facts(task, "privacy.json")
    assert card["participations_charged"] == 1
    spent = [row["epsilon"] for row in card["promises"] if row["epsilon"] is not None]
    assert spent == pytest.approx([gaussian_epsilon(NOISE, 1e-5)] * len(spent), rel=2e-3)
    assert max(row.total for row in planned(task.experiment) if row.guarantee.event) == pytest.approx(max(spent))
    rows = (task.folder / "rounds.csv").read_text().splitlines()
    asked = [int(line.split(",")[rows[0].split(",").index("interactions")]) for line in rows[1:]]
    assert asked == np.cumsum(2 * np.bincount(groups)[1:]).tolist()


def test_without_a_mechanism_the_schedule_is_the_same(tmp_path):
    without = tables()
    del without["mechanism"]
    [task] = plan(Grid.of(read_tables(without).base), "without", tmp_path)
    assert perform(task) == "finished"
    assert (
        json.loads((task.folder / "deal.json").read_text())["round_of_each"]
        == Deal.of(COUNT, ROUNDS, 1).round_of_each.tolist()
    )


def test_a_killed_run_gives_nobody_a_second_turn(tmp_path, monkeypatch):
    task = one_task(tmp_path)
    calls = iter([False, True])
    kill(monkeypatch, task, Spending, "keep", lambda: next(calls))  # of the second round
    assert perform(task) == "finished", facts(task)
    assert participations(task).tolist() == [1] * COUNT
    assert facts(task, "privacy.json")["participations_charged"] == 1


def test_a_kept_change_is_used_after_a_kill(tmp_path, monkeypatch):
    task = one_task(tmp_path)
    kill_after(monkeypatch, 1, task)
    assert perform(task) == "finished", facts(task)
    assert participations(task).tolist() == [1] * COUNT


def test_a_changed_deal_is_refused_and_nothing_is_charged(tmp_path, monkeypatch):
    task = one_task(tmp_path)
    kill_after(monkeypatch, 0, task)
    before = participations(task)
    path = task.folder / "deal.json"
    for change, says in (
        ({"round_of_each": [1] * COUNT}, "it was changed afterwards"),
        ({"round_of_each": [1] * 20}, "it lists 20 participants, but there are 8"),
        ({"rounds": 2}, "2 rounds were dealt, and now there are 3"),
    ):
        content = path.read_text()
        path.write_text(json.dumps(json.loads(content) | change))
        assert perform(task) == "failed"
        assert says in json.dumps(facts(task))
        assert (participations(task) == before).all()
        path.write_text(content)
    assert perform(task) == "finished"
    assert participations(task).tolist() == [1] * COUNT


@pytest.mark.parametrize("changes", [{"clients": {"schedule": "drawn"}}, {"rounds": 4}])
def test_a_resumed_run_with_another_schedule_is_refused(tmp_path, monkeypatch, changes):
    task = one_task(tmp_path)
    kill_after(monkeypatch, 0, task)
    with pytest.raises(FileExistsError, match="contains a run of another spec"):
        run_experiment(read_tables(tables(**changes)), "test", tmp_path)
    assert participations(task).max() == 1


def test_a_deleted_run_gives_nobody_a_second_turn(tmp_path, monkeypatch):
    task = one_task(tmp_path)
    kill(monkeypatch, task, RunWriter, "finish", lambda: True)
    clean(load_runs(tmp_path))
    assert not (task.folder / "run.json").exists()
    assert perform(task) == "failed"
    assert "already taken part in an earlier run with this ledger" in json.dumps(facts(task), ensure_ascii=False)
    assert participations(task).tolist() == [1] * COUNT


def test_unlearning_that_asks_clients_again_is_refused(tmp_path):
    task = one_task(tmp_path, placement="client", record_every=1)
    assert perform(task) == "finished"
    with pytest.raises(ValueError, match="retrain asks clients again, but"):
        unlearn_runs([task.folder], [0], Retrain(), tmp_path / "without")


def test_runs_on_one_population_add_up(tmp_path):
    """Two dealt plans cost two releases, and a third does not fit into the budget."""
    for number in (1, 2, 3):
        changes = {"population": "town", "privacy": {"budget": 1.4}, "seeds": [number]}
        [task] = plan(Grid.of(read_tables(tables(**changes)).base), f"run-{number}", tmp_path)
        status = perform(task)
        assert status == ("finished" if number < 3 else "failed"), facts(task)
        if number < 3:
            spent = facts(task, "privacy.json")["population"]["epsilon"]["public"]
            assert spent == pytest.approx(gaussian_epsilon(NOISE / math.sqrt(number), 1e-5), rel=2e-3)
    assert "1.4" in json.dumps(facts(task))


def test_tuning_on_the_people_of_a_dealt_run_is_charged_and_refused_beyond_the_budget(tmp_path):
    """Each tried setting costs one release, and the run afterwards another one."""
    two, three = (gaussian_epsilon(NOISE / math.sqrt(number), 1e-5) for number in (2, 3))
    asked = read_tables(tables(population="town", privacy={"budget": (two + three) / 2}))
    results, tried, _ = tune(asked, "test", {"learner.rate": [0.1, 0.01]}, tmp_path)
    assert len(results.finished) == len(tried) == 2
    spent = max(facts(task, "privacy.json")["population"]["epsilon"]["public"] for task in results.finished)
    assert spent == pytest.approx(two, rel=2e-3)
    [(task, reason)] = run_experiment(asked, "test", tmp_path).failed
    assert "no round is run" in reason
    assert not (task.folder / "model.json").exists()
    accounts = [Account.read(path) for path in (tmp_path / "populations" / "town").rglob("ledger")]
    assert sum(account.participations for account in accounts if account is not None).tolist() == [2] * COUNT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients": {"participation": 0.5}}, 'clients.schedule: with "dealt", each client participates in one round'),
        ({"rounds": 9}, "clients.schedule: clients.count = 8 cannot be dealt into 9 rounds; use at most 8 rounds"),
        (
            {"clients": PEOPLE, "mechanism": {"unit": "person"}, "rounds": 8},
            "clients.people = 7 cannot be dealt into 8",
        ),
        (
            {"learner": {"name": "evolution"}, "server": {"name": "adam"}, "mechanism": None},
            "learner: Evolution (FOLtR-ES)",
        ),
        ({"local": {"name": "scaffold"}}, "local: Scaffold stores state"),
        (
            {"local": {"name": "fedper"}, "learner": {"name": "pdgd", "ranker": {"name": "mlp", "hidden": 3}}},
            "local: FedPer stores state",
        ),
        ({"mechanism": {"name": "laplace"}}, "mechanism: Laplace is not Gaussian noise"),
        ({"placement": SUM | {"honest": 1.0}}, "rounds have 2 to 3 clients, but a sum of fewer than 3 is not opened"),
        ({"clients": PEOPLE, "mechanism": {"unit": "person", "people": 2}}, "clients.people = 7 dealt into 3 rounds"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(changes, says):
    with pytest.raises(SpecError) as caught:
        read_tables(tables(**changes))
    assert says in str(caught.value)


def test_asynchronous_arrival_is_refused():
    with pytest.raises(SpecError) as caught:
        read_tables(tables(kind="async", arrival={"name": "fedasync"}, placement="client"))
    assert 'clients.schedule: with kind = "async", the log determines when clients participate' in str(caught.value)

"""Experiments of kind "async": specs, runs, stops, prices."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.experiments.runner import federated as run_module
from fedrank.experiments.runner.data import clients_of
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.privacy import planned
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import plan, run_experiment
from fedrank.experiments.spec.families import describe
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_experiment
from tests.made_up import made_up_log

CLICK_MODELS = np.random.default_rng(3).choice(5, size=150, p=[0.4, 0.3, 0.15, 0.1, 0.05]).tolist()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return made_up_log(tmp_path_factory.mktemp("data") / "log", CLICK_MODELS)


def tables(log, **changes):
    base = {
        "kind": "async",
        "rounds": 1000,
        "evaluate_every": 4,
        "measures": ["mrr@20"],
        "data": {"log": str(log)},
        "clients": {"count": 5, "interactions": 3, "partition": {"name": "users"}},
        "learner": {"name": "pdgd"},
    }
    return base | changes


def batches(count=5, interactions=3):
    """Of the training entries, the first 120 of 150."""
    return (np.bincount(CLICK_MODELS[:120], minlength=count) // interactions).tolist()


def sums_of(size=3, interactions=3):
    """What clients that wait for each other send together: of every sum, the updates of each user in it."""
    sums, waiting, searched = [], {}, dict.fromkeys(range(5), 0)
    for user in CLICK_MODELS[:120]:
        searched[user] += 1
        if searched[user] % interactions == 0:
            waiting[user] = waiting.get(user, 0) + 1
        if len(waiting) == size:
            sums.append(waiting)
            waiting = {}
    return sums


def only(asked, folder):
    [task] = plan(asked, "test", folder)
    return task


def content(folder):
    return {name: (folder / name).read_bytes() for name in ("rounds.csv", "queries.csv", "model.json")}


WAITING = {"name": "fedbuff", "size": 3, "wait": True}


@pytest.mark.parametrize(
    "arrival", [None, "sync", {"name": "fedbuff", "size": 4}, {"name": "fedasync", "mixing": 0.5}, WAITING]
)
def test_a_run_that_is_stopped_again_and_again_ends_the_same(log, tmp_path, arrival, monkeypatch):
    asked = read_tables(tables(log, **({} if arrival is None else {"arrival": arrival})))
    whole, parts = only(asked, tmp_path / "whole"), only(asked, tmp_path / "parts")
    assert perform(whole) == "finished"
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", -1.0)  # asked after every round
    stops = 0
    calls = iter(range(10**6))
    while (status := perform(parts, stop=lambda: next(calls) % 3 == 2)) == "interrupted":
        stops += 1
    assert status == "finished"
    assert stops >= 2
    assert content(whole.folder) == content(parts.folder)
    facts = json.loads((whole.folder / "run.json").read_text())
    rounds = max(batches()) if arrival == "sync" else sum(batches())
    searches = 3 * sum(batches())
    if arrival == WAITING:
        sums = sums_of()
        rounds, searches = len(sums), 3 * sum(sum(one.values()) for one in sums)
    assert facts["round"] == facts["rounds"] == rounds
    assert "1,000 rounds: the log has no more complete updates" in facts["notes"][-1]
    last = (whole.folder / "rounds.csv").read_text().splitlines()[-1].split(",")
    assert [int(cell) for cell in (last[0], last[2])] == [rounds, searches]


def test_rounds_end_where_the_spec_says(log, tmp_path):
    task = only(read_tables(tables(log, rounds=10)), tmp_path)
    assert perform(task) == "finished"
    rows = (task.folder / "rounds.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows if row.split(",")[5]] == ["4", "8", "10"]
    facts = json.loads((task.folder / "run.json").read_text())
    assert "a round is the arrival of one update" in facts["conventions"]["rounds"]


def test_a_log_can_be_federated_in_step_by_chance(log, tmp_path):
    asked = read_tables(tables(log, kind="federated", rounds=5))
    assert not run_experiment(asked, "plain", tmp_path).failed


def test_the_figure_of_the_paper_runs(log, tmp_path):
    changes = [f"data.log={log}", "seeds=[1]", "data.users=5", "clients.count=5"]
    # Which they have, and which five would not change.
    changes += [f"variants.released-{how}-IID.clients.count=1" for how in ("sync", "async")]
    asked = read_experiment("aol4foltr/fig-5", changes)
    results = run_experiment(asked, "fig-5", tmp_path)
    assert not results.failed
    runs = load_runs(tmp_path / "fig-5")
    assert [run.status for run in runs] == ["finished"] * 12
    asked_of = {variant.name: variant.experiment for variant in asked.variants}
    pooled = clients_of(asked_of["released-async-IID"], 1, 1)
    assert pooled.queries.tolist() == list(range(120)), "one client, everything in order of time"
    for users, dealt in (("sync-users", "sync-IID"), ("async-users", "async-IID")):
        sizes = [np.diff(clients_of(asked_of[name], 1, 1).pools).tolist() for name in (users, dealt)]
        assert sizes[0] == sizes[1] == sorted(np.bincount(CLICK_MODELS[:120]).tolist(), reverse=True)


def test_what_calms_it_runs(log, tmp_path):
    smaller = 'variants.wait.arrival={ name = "fedbuff", size = 3, wait = true }'
    changes = [f"data.log={log}", "seeds=[1]", "data.users=5", "clients.count=5", "rounds=20", smaller]
    asked = read_experiment("aol4foltr/repairs", changes)
    assert not run_experiment(asked, "repairs", tmp_path).failed
    assert [run.status for run in load_runs(tmp_path / "repairs")] == ["finished"] * 14


def test_a_log_that_is_not_there_is_told_before_anything_runs(tmp_path):
    asked = read_tables(tables(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="nowhere is not a data set of a search log"):
        run_experiment(asked, "lost", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_single_runs_say_which_arrival(log):
    asked = read_tables(tables(log))
    assert describe(asked.base.arrival)["staleness"] == "harmonic"
    in_step = read_tables(tables(log, arrival="sync")).base.single(1, 1)
    assert describe(in_step.arrival) == {"name": "sync", "receive": True}


GAUSSIAN = {"name": "gaussian", "clip": 1.0, "noise": 20.0}
FPDGD = {"name": "fpdgd-paper", "epsilon": 4.5}
LOGGED = {"name": "pdgd", "lists": "logged", "batch": True, "clip_gradients": 1.0}


def test_every_client_pays_by_its_arrivals(log, tmp_path):
    asked = read_tables(tables(log, mechanism=GAUSSIAN))
    task = only(asked, tmp_path)
    assert perform(task) == "finished", (task.folder / "run.json").read_text()
    card = json.loads((task.folder / "privacy.json").read_text())
    assert card["participations_charged"] == max(batches())
    assert card["rounds_charged"] == sum(batches())
    assert card["promises"][0]["epsilon"] == planned(asked.base)[0].total
    assert planned(asked.base)[0].times == max(batches())
    assert any("times are not protected" in line for line in card["not_covered"])
    few = read_tables(tables(log, mechanism=GAUSSIAN, rounds=4))
    assert planned(few.base)[0].times < 5


@pytest.mark.parametrize("how", ["ideal", "protocol"])
def test_in_a_secure_sum_every_client_pays_by_the_sums_it_is_in(log, tmp_path, how):
    if how == "protocol":
        pytest.importorskip("cryptography")
    secure = GAUSSIAN | {"placement": {"name": "secure-aggregation", "sum": how}}
    asked = read_tables(tables(log, mechanism=secure, arrival=WAITING))
    task = only(asked, tmp_path)
    assert perform(task) == "finished", (task.folder / "run.json").read_text()
    card = json.loads((task.folder / "privacy.json").read_text())
    sums = sums_of()
    most = max(sum(user in one for one in sums) for user in range(5))
    assert most < max(batches()), "somebody had several updates in one sum, and paid once"
    assert (card["rounds_charged"], card["participations_charged"]) == (len(sums), most)
    server = card["promises"][0]
    assert server["times"] == planned(asked.base)[0].times == most
    assert server["epsilon"] == planned(asked.base)[0].total
    # Shares of the noise add up to 20 if two of the three clients are honest; one client moves the sum by 1.
    exact = 1.0**2 / (2 * 20.0**2)
    assert planned(asked.base)[0].guarantee.event.rho == pytest.approx(exact, rel=1e-3)
    assert "of 3 clients collude with the server" in server["because"]
    assert any("times are not protected" in line for line in card["not_covered"])


def test_a_budget_ends_a_run_of_secure_sums(log, tmp_path):
    secure = {"mechanism": GAUSSIAN | {"placement": {"name": "secure-aggregation", "sum": "ideal"}}, "arrival": WAITING}
    budget = 0.999 * planned(read_tables(tables(log, **secure)).base)[0].total
    task = only(read_tables(tables(log, **secure, privacy={"budget": budget})), tmp_path)
    assert perform(task) == "finished"
    card = json.loads((task.folder / "privacy.json").read_text())
    assert card["promises"][0]["epsilon"] <= budget
    assert card["rounds_charged"] < len(sums_of())


def test_logged_lists_are_learned_from(log, tmp_path):
    asked = read_tables(tables(log, learner={"name": "pdgd", "lists": "logged"}, seeds=[1, 2]))
    one, two = plan(asked, "test", tmp_path)
    assert perform(one) == perform(two) == "finished"
    first, second = (content(task.folder)["rounds.csv"] for task in (one, two))
    assert first == second, "nothing is drawn, and nothing is noised"


def test_a_budget_ends_a_run(log, tmp_path):
    asked = read_tables(tables(log, mechanism=GAUSSIAN))
    budget = 0.999 * planned(asked.base)[0].total
    task = only(read_tables(tables(log, mechanism=GAUSSIAN, privacy={"budget": budget})), tmp_path)
    assert perform(task) == "finished"
    card = json.loads((task.folder / "privacy.json").read_text())
    assert card["participations_charged"] == max(batches()) - 1
    assert card["promises"][0]["epsilon"] <= budget


def test_noise_that_was_sent_is_used_again(log, tmp_path, monkeypatch):
    """A crash between two checkpoints: rounds that were sent come from the ledger, and are not sent again."""
    task = only(read_tables(tables(log, mechanism=GAUSSIAN)), tmp_path)
    real, seen = run_module.FederatedRun.add, []

    def crash(run, outcome, ends):
        seen.append(outcome.weights.copy())
        if outcome.round == 9:
            raise KeyboardInterrupt
        real(run, outcome, ends)

    monkeypatch.setattr(run_module.FederatedRun, "add", crash)
    with pytest.raises(KeyboardInterrupt):
        perform(task)
    again = []

    def watch(run, outcome, ends):
        again.append(outcome.weights.copy())
        real(run, outcome, ends)

    monkeypatch.setattr(run_module.FederatedRun, "add", watch)
    assert perform(task) == "finished"
    assert np.array_equal(again[:9], seen)
    card = json.loads((task.folder / "privacy.json").read_text())
    # Rounds 10 to 15 had been reserved together with rounds 8 and 9, and a crash gives nothing back.
    assert card["rounds_charged"] == sum(batches()) + 6


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": {"name": "synthetic-mq2007"}}, 'kind: "async" needs the times of a click log'),
        ({"kind": "federated", "arrival": "sync"}, "arrival: has no effect in synchronous rounds"),
        (
            {"kind": "federated", "data": {"name": "synthetic-mq2007"}},
            'clients.partition: "users" requires data with users',
        ),
        ({"aggregator": "median"}, 'aggregator: with kind = "async", arrival takes its place'),
        ({"server": {"name": "add", "rate": 0.5}}, 'server: with kind = "async", arrival takes its place'),
        ({"learner": {"name": "evolution"}, "server": "adam"}, "learner: evolution needs synchronous rounds"),
        ({"local": "scaffold"}, 'local: with kind = "async", clients do not store control variates'),
        (
            {"learner": {"name": "pdgd", "ranker": {"name": "mlp"}}, "local": "fedper"},
            'local: with kind = "async", clients do not store control variates or personal weights',
        ),
        (
            {"clients": {"count": 5, "participation": 0.5, "partition": "users"}},
            'clients.participation: with kind = "async", the log determines',
        ),
        (
            {"clients": {"count": 5}},
            "clients.partition: with this partition, several clients hold the same logged query",
        ),
        (
            {
                "clients": {"count": 5, "malicious": 1, "partition": "users"},
                "attack": {"name": "poisoned-clicks"},
            },
            "attack: asynchronous attacks are not simulated",
        ),
        ({"record_every": 5}, "record_every: asynchronous updates cannot be recorded"),
        (
            {"mechanism": GAUSSIAN | {"placement": {"name": "secure-aggregation"}}},
            "mechanism: updates arrive one at a time",
        ),
        ({"mechanism": GAUSSIAN | {"placement": {"name": "server"}}}, "mechanism: updates arrive one at a time"),
        (
            {"mechanism": FPDGD, "learner": {"name": "pdgd", "clip_weights": 1.5}},
            "only for comparison, use fpdgd-paper with shares",
        ),
        (
            {"mechanism": GAUSSIAN | {"placement": {"name": "server"}}, "arrival": WAITING},
            "mechanism: updates arrive one at a time",
        ),
        (
            {"mechanism": GAUSSIAN | {"placement": {"name": "secure-aggregation"}}, "arrival": {"name": "fedbuff"}},
            'or secure aggregation with arrival = { name = "fedbuff", wait = true }',
        ),
        (
            {"mechanism": GAUSSIAN | {"placement": {"name": "secure-aggregation"}}, "arrival": WAITING | {"size": 1}},
            "mechanism: secure aggregation of a single client reveals its update",
        ),
        (
            {
                "mechanism": GAUSSIAN | {"placement": {"name": "secure-aggregation"}},
                "arrival": WAITING | {"receive": False},
            },
            "arrival.receive: with false, clients continue",
        ),
        (
            {"learner": {"name": "pdgd", "lists": "logged"}, "kind": "federated", "data": {"name": "synthetic-mq2007"}},
            'learner.lists: "logged" learns from the lists in a click log',
        ),
        (
            {
                "learner": {"name": "pdgd", "lists": "logged"},
                "clients": {"count": 5, "partition": "users", "click_model": "navigational"},
            },
            'learner.lists: "logged" takes clicks from the log',
        ),
        (
            {"kind": "federated", "learner": LOGGED, "mechanism": GAUSSIAN | {"unit": "interaction"}},
            'mechanism.unit: "interaction" assumes that each interaction is used once',
        ),
        (
            {"mechanism": GAUSSIAN, "arrival": {"name": "fedasync", "receive": False}},
            "arrival.receive: with false, clients continue",
        ),
        ({"arrival": {"name": "fedasink"}}, "arrival.name: unknown arrival 'fedasink'; did you mean \"fedasync\"?"),
        (
            {"arrival": {"name": "fedasync", "mixing": 2.0}},
            "arrival: mixing must be greater than 0 and at most 1 (got 2.0)",
        ),
        ({"data": {"name": "mq2007", "users": 3}}, "data.users: applies only to a click log"),
    ],
)
def test_what_does_not_go_together(log, changes, said):
    with pytest.raises(ValueError) as problem:
        read_tables(tables(log, **changes))
    assert said in str(problem.value)


def test_published_noise_comes_one_by_one_where_its_shares_are_named_and_promises_nothing(log, tmp_path):
    changes = {"learner": {"name": "pdgd", "clip_weights": 1.5}, "mechanism": FPDGD | {"shares": 5}}
    task = only(read_tables(tables(log, **changes)), tmp_path)
    assert perform(task) == "finished"
    card = json.loads((task.folder / "privacy.json").read_text())
    assert card["promises"]
    assert all(row["epsilon"] is None for row in card["promises"])


def test_a_search_that_is_taken_up_once_is_paid_once(log):
    asked = read_tables(tables(log, learner=LOGGED, mechanism=GAUSSIAN | {"unit": "interaction"}))
    assert {(row.guarantee.paid, row.times) for row in planned(asked.base)} == {("once", 1)}
    every_time = read_tables(tables(log, kind="federated", learner=LOGGED, mechanism=GAUSSIAN))
    assert {(row.guarantee.paid, row.times) for row in planned(every_time.base)} == {("participation", 1000)}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": "mq2007"}, "data: has both a log and a name or files"),
        ({"folds": [2]}, "data.folds: fold 2 does not exist; a log has only fold 1"),
        ({"evaluate_on": "validation"}, "data.evaluate_on: a click log has no validation queries"),
        ({"test_share": 1.0}, "data.test_share: 1.0 cannot be used; give less than 1"),
    ],
)
def test_what_cannot_be_asked_of_a_log(log, more, said):
    with pytest.raises(ValueError) as problem:
        read_tables(tables(log, data={"log": str(log)} | more))
    assert said in str(problem.value)

"""Forgetting: what a new run holds, that parents stay as they are, and what is refused."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.data.catalog import load
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.data import clients_of
from fedrank.experiments.runner.folder import Receipt
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import plan
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.families import build
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_spec
from fedrank.federated.federation import Federation
from fedrank.federated.simulation import simulate
from fedrank.ranking.learners import warm_up
from fedrank.ranking.measures import Evaluator
from fedrank.trees.model_files import load_model
from fedrank.unlearning.history import History
from fedrank.unlearning.methods import UNLEARNERS, Certified, FedEraser, FedRemove, FineTune, GradientAscent, Retrain
from tests.experiments.report.made_up_runs import write_run

ROUNDS = 40
METHODS = [Retrain(), FedEraser(steps=2), FedRemove(), FineTune(rounds=10), GradientAscent(steps=2, rounds=10)]
ATTACKED = {
    "rounds": ROUNDS,
    "evaluate_every": 4,
    "record_every": 2,
    "clients": {"count": 5, "interactions": 4, "malicious": 1},
    "attack": {"name": "opposite"},
}


def tables(**changes) -> dict:
    base = {
        "title": "a test",
        "rounds": 60,
        "evaluate_every": 7,
        "measures": ["ndcg@10", "mrr@10"],
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 4, "interactions": 3, "click_model": "navigational"},
        "learner": {"name": "pdgd"},
    }
    return base | changes


def finished(folder: Path, name: str = "small", **changes) -> Path:
    """A finished run of a small attacked federation; None leaves a key out."""
    asked = {key: value for key, value in tables(**(ATTACKED | changes)).items() if value is not None}
    [task] = plan(read_tables(asked), name, folder)
    assert perform(task) == "finished"
    return task.folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Done once, and only read."""
    return finished(tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize(
    ("kind", "spec"), [("async", "aol4foltr/fig-5"), ("silo", "cs-f-ltr/table-1"), ("trees", "selgb/fig-2")]
)
def test_what_was_not_learned_in_rounds_of_clients_is_not_replayed_as_such(tmp_path, kind, spec):
    run = write_run(tmp_path / "runs", "other")
    (run / "spec.toml").write_text(to_toml(read_spec(spec).base))
    with pytest.raises(ValueError, match=f'of kind "{kind}", but unlearning replays synchronous rounds; remove'):
        unlearn_runs([run], [1], Retrain(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def parent(trained, tmp_path, monkeypatch) -> Path:
    """A copy that a test may spoil, below the folder in which it works."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "small" / "only" / trained.name
    shutil.copytree(trained, path)
    return path


@pytest.fixture
def fedrank(monkeypatch, capsys):
    """Call the command as a shell does: (exit code, standard output, standard error)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def content(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_every_method_leaves_a_run_that_reports_understand(parent, method):
    before = content(parent)
    [done] = unlearn_runs([parent], [0], method)
    assert content(parent) == before
    assert sorted(path.name for path in done.folder.iterdir()) == [
        *("model.json", "nothing.csv", "privacy.json", "queries.csv", "receipt.json", "rounds.csv", "run.json"),
        *("spec.toml", "timing.csv"),
    ]
    [run] = load_runs(done.folder).checked()
    assert (run.status, run.fold, run.seed) == ("finished", 1, 1)
    # The last row is the model in the folder, measured anew, and what it cost.
    model = load_model(done.folder)
    expected = Evaluator(load("synthetic-mq2007").test, ["ndcg@10"])(model.weights, model.ranker)[0]
    assert run.rounds["ndcg@10"][-1] == pytest.approx(expected, abs=1e-9)
    assert done.receipt.quality["ndcg@10"]["unlearned"] == pytest.approx(expected, abs=1e-9)
    assert np.nanmean(run.queries[1]["ndcg@10"]) == pytest.approx(expected)
    assert run.costs["interactions"] == done.receipt.cost["interactions"]
    assert model.notes["unlearned"]["clients"] == [0]
    assert (done.folder / read(done.folder, "run.json")["unlearned"]["parent"]).resolve() == parent.resolve()
    assert (done.folder / read(done.folder, "receipt.json")["parent"]).resolve() == parent.resolve()
    report = write_report(load_runs("runs"), "report.md").read_text(encoding="utf-8")
    quality = done.receipt.quality["ndcg@10"]
    assert f"| {quality['parent']:.4f} | {quality['unlearned']:.4f} |" in report.partition("## Unlearned")[2]
    assert "a test, unlearned" in report
    if method == Retrain():
        assert write_report(load_runs("runs"), "report.html").exists()


def test_what_every_method_costs(parent):
    """Four remaining clients x 4 interactions, or 2 of fed-eraser, which repeats every other round."""
    paid = {}
    for method in METHODS:
        [done] = unlearn_runs([parent], [0], method)
        [run] = load_runs(done.folder)
        paid[type(method)] = run.costs["interactions"], run.costs["bytes_up"] / (4 * 46)
    assert paid == {
        Retrain: (ROUNDS * 4 * 4, ROUNDS * 4),
        FedEraser: (ROUNDS // 2 * 4 * 2, ROUNDS // 2 * 4),
        FedRemove: (0, 0),
        FineTune: (10 * 4 * 4, 10 * 4),
        # One round of those who stay, for the reference, two of the one who leaves, then ten of those who stay.
        GradientAscent: (4 * 4 + 2 * 4 + 10 * 4 * 4, 4 + 2 + 10 * 4),
    }


def test_retraining_is_the_run_that_never_had_the_client(parent):
    [done] = unlearn_runs([parent], [0], Retrain())
    asked = read_tables(tables(**ATTACKED)).base
    clients = clients_of(asked, 1, 1)
    assert clients.malicious.tolist() == [True, False, False, False, False]
    outcomes = list(simulate(Federation(asked.learner), clients.rows(~clients.malicious), ROUNDS, 1))
    assert np.array_equal(load_model(done.folder).weights, outcomes[-1].weights)
    [run] = load_runs(done.folder)
    assert run.rounds["round"].tolist() == list(range(4, ROUNDS + 1, 4))  # as the parent was evaluated
    assert done.receipt.method["exact"]


def test_forgetting_an_attacker_makes_the_model_better(parent):
    [done] = unlearn_runs([parent], [0], FedEraser(steps=3))
    quality = done.receipt.quality["ndcg@10"]
    assert quality["unlearned"] > quality["parent"] + 0.01
    assert done.receipt.cost["share_of_retraining"] == pytest.approx(3 / 4 / 2)


def test_the_same_request_is_skipped_and_another_refused(parent):
    [first] = unlearn_runs([parent], [0], FedEraser(steps=2))
    before = content(first.folder)
    # Below "runs" lies an unlearned run now: it must not be unlearned once more.
    [again] = unlearn_runs(["runs"], [0], FedEraser(steps=2))
    assert (again.folder.resolve(), again.skipped) == (first.folder.resolve(), True)
    assert content(first.folder) == before
    with pytest.raises(FileExistsError, match="contains another run, which is not overwritten"):
        unlearn_runs([parent], [1], FedEraser(steps=2))
    assert content(first.folder) == before
    [other] = unlearn_runs([parent], [1], FedEraser(steps=2), name="other")
    assert other.folder == Path("runs/other/fed-eraser,steps=2") / parent.name


def test_verification_compares_with_several_seeds(parent):
    [plain] = unlearn_runs([parent], [0], FedEraser())
    assert "--verify" in plain.receipt.verified["how"]
    [done] = unlearn_runs([parent], [0], FedEraser(), verify=True)
    assert not done.skipped  # it was there, but not verified
    assert Receipt.read(done.folder) == done.receipt
    found = done.receipt.verified
    assert (found["retrained"], found["seeds"]) == (4, [1, 2, 3, 4])
    assert isinstance(found["within_spread"], bool)
    assert found["unlearned"]["tau"] > found["before"]["tau"]  # nearer to the truth than the attacked model was
    assert found["spread"]["tau"] > found["before"]["tau"]
    assert len(set(done.receipt.quality["ndcg@10"]["retrained"])) == 4
    assert unlearn_runs([parent], [0], FedEraser(), verify=True)[0].skipped
    [exact] = unlearn_runs([parent], [0], Retrain(), verify=True)
    assert exact.receipt.verified["seeds"] == [2, 3, 4]  # not compared with itself
    # The first of the four is what the method retrain gives.
    own = exact.receipt.quality["ndcg@10"]["unlearned"]
    assert done.receipt.quality["ndcg@10"]["retrained"][0] == pytest.approx(own, abs=1e-12)


def test_clients_with_queries_of_their_own_are_looked_at_by_themselves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clients = {"count": 4, "interactions": 3, "partition": {"name": "own"}}
    parent = finished(tmp_path / "runs", rounds=10, clients=clients, attack=None)
    [done] = unlearn_runs([parent], [1], FineTune(rounds=3), verify=True)
    own = done.receipt.quality["ndcg@10 for the leaving"]
    assert len(own["retrained"]) == 4
    assert own["parent"] != done.receipt.quality["ndcg@10"]["parent"]


def test_purging_removes_the_model_and_what_the_client_sent(parent):
    assert History.open(parent / "history").holds(0)
    rounds = (parent / "rounds.csv").read_bytes()
    [done] = unlearn_runs([parent], [0], FedEraser(), purge=True)
    assert not (parent / "model.json").exists()
    history = History.open(parent / "history")
    assert not history.holds(0)
    assert history.holds(1)
    assert (parent / "rounds.csv").read_bytes() == rounds
    kept = read(done.folder, "receipt.json")
    assert kept["purged"] == ["history/: updates of clients 0, and models", "model.json"]
    assert "model.json" not in [row["file"] for row in kept["remains"]]
    [run] = load_runs(parent).checked()
    assert run.status == "finished"
    assert write_report(load_runs("runs"), "report.md").exists()
    assert unlearn_runs([parent], [0], FedEraser())[0].skipped
    with pytest.raises(ValueError, match="its model was purged"):
        unlearn_runs([parent], [0], FedRemove())
    # The next one to leave is forgotten from the new run, with what is left of the history.
    [second] = unlearn_runs([done.folder], [2], FedEraser(), purge=True)
    assert read(second.folder, "run.json")["unlearned"]["gone"] == [0, 2]
    assert not History.open(parent / "history").holds(2)
    assert not (done.folder / "model.json").exists()
    assert load_runs(second.folder)[0].costs["interactions"] == ROUNDS // 2 * 3 * 3


def test_two_requests_leave_what_one_of_both_leaves(parent):
    [first] = unlearn_runs([parent], [0], Retrain(), name="first")
    [second] = unlearn_runs([first.folder], [3], Retrain(), name="second")
    [both] = unlearn_runs([parent], [3, 0, 3], Retrain(), name="both")
    assert np.array_equal(load_model(second.folder).weights, load_model(both.folder).weights)
    assert read(both.folder, "run.json")["unlearned"]["clients"] == [0, 3]
    with pytest.raises(ValueError, match="client 0 is not among the 4"):
        unlearn_runs([first.folder], [0], Retrain(), name="third")


def test_chance_of_an_earlier_fine_tuning_is_not_used_again(parent):
    [first] = unlearn_runs([parent], [0], FineTune(rounds=5), name="first")
    [second] = unlearn_runs([first.folder], [1], FineTune(rounds=5), name="second")
    assert read(first.folder, "run.json")["unlearned"]["last_round"] == ROUNDS + 5
    assert read(second.folder, "run.json")["unlearned"]["last_round"] == ROUNDS + 10


@pytest.mark.parametrize(
    ("changes", "leaving", "method", "message"),
    [
        ({}, [7], Retrain(), "client 7 does not exist in "),
        ({}, [0, 1, 2, 3, 4], Retrain(), "all 5 clients leave"),
        ({}, [], Retrain(), "no client leaves"),
        ({"record_every": 0}, [0], FedEraser(), "this run has none; run it again with record_every = 10"),
        ({"record_every": 0}, [0], FedRemove(), "this run has none"),
        (
            {"aggregator": {"name": "none"}, "record_every": 0, "attack": None, "clients": {"count": 3}},
            [0],
            Retrain(),
            'with the aggregator "none" clients share no model',
        ),
        (
            {
                "learner": {"name": "pdgd", "ranker": {"name": "mlp", "hidden": 3}},
                "local": "fedper",
                "attack": None,
                "clients": {"count": 3},
            },
            [0],
            FineTune(rounds=2),
            "clients have personal weights",
        ),
    ],
    ids=["unknown", "everybody", "nobody", "eraser", "remove", "apart", "personal"],
)
def test_what_is_refused_changes_nothing(tmp_path, changes, leaving, method, message):
    run = finished(tmp_path / "runs", rounds=4, **changes)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=message):
        unlearn_runs([run], leaving, method, tmp_path / "out")
    assert content(tmp_path) == before


def test_protected_runs_are_not_taken_apart(tmp_path):
    pytest.importorskip("dp_accounting")
    noise = {"name": "gaussian", "clip": 1.0, "noise": 1.0}
    for place, message in (
        ("secure-aggregation", "the server never saw single"),
        ("server", "would be unprotected"),
    ):
        changes = {"mechanism": noise | {"placement": {"name": place}}, "attack": None, "clients": {"count": 12}}
        if place == "secure-aggregation":
            changes["record_every"] = 0
        run = finished(tmp_path / place, rounds=2, **changes)
        for method in (Retrain(), FedRemove()):
            with pytest.raises(ValueError, match=message):
                unlearn_runs([run], [0], method, tmp_path / "out")
    run = finished(
        tmp_path / "local",
        rounds=2,
        mechanism=noise | {"placement": {"name": "client"}},
        attack=None,
        clients={"count": 3},
    )
    with pytest.raises(ValueError, match="needs further messages of the remaining clients"):
        unlearn_runs([run], [0], Retrain(), tmp_path / "out")
    [done] = unlearn_runs([run], [0], FedRemove(), tmp_path / "out")
    had, has = read(run, "privacy.json"), read(done.folder, "privacy.json")
    server = next(row["epsilon"] for row in had["promises"] if row["against"] == "server")
    assert [row["epsilon"] for row in has["promises"]] == [server] * 3  # the model tells at most what messages told
    assert "contacted no clients" in has["summary"]
    assert not (tmp_path / "out" / "small-unlearned" / "retrain").exists()


def test_an_unfinished_run_is_refused(parent):
    facts = read(parent, "run.json")
    (parent / "run.json").write_text(json.dumps(facts | {"status": "failed", "error": {"message": "it broke"}}))
    for given in (parent, "runs"):
        with pytest.raises(ValueError, match=r"is failed \(it broke\); only finished runs"):
            unlearn_runs([given], [0], Retrain())
    Path("empty").mkdir()
    with pytest.raises(ValueError, match="no runs were found"):
        unlearn_runs(["empty"], [0], Retrain())


def test_several_variants_and_seeds_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = read_tables(tables(rounds=4, seeds=[1, 2], vary={"learner.rate": [0.1, 0.3]}))
    for task in plan(asked, "small", "runs"):
        perform(task)
    done = unlearn_runs(["runs"], [1], Retrain())
    assert {str(one.folder) for one in done} == {
        f"runs/small-unlearned/learner.rate={rate},retrain/fold-1-seed-{seed}" for rate in (0.1, 0.3) for seed in (1, 2)
    }
    found = load_runs("runs/small-unlearned")
    assert len(found.finished) == 4
    assert found[0].settings == {"learner.rate": 0.1, "method.name": "retrain"}


def test_personal_models_stay_personal(tmp_path):
    learner = {"name": "pdgd", "ranker": {"name": "mlp", "hidden": 3}}
    run = finished(tmp_path, rounds=3, learner=learner, local="fedper", attack=None, clients={"count": 3})
    [done] = unlearn_runs([run], [0], Retrain(), tmp_path)
    weights = load_model(done.folder).weights
    assert weights.shape == (2, load_model(run).weights.shape[1])
    assert not np.array_equal(weights[0], weights[1])


def test_a_warm_up_is_not_done_by_who_leaves(tmp_path):
    """Where training began is part of what a client taught, if its clicks made it."""
    partition = {"name": "shared", "partition": {"name": "own"}, "share": 0.1, "warm_up": 20}
    clients = {"count": 4, "interactions": 3, "click_model": ["perfect", "navigational"], "partition": partition}
    run = finished(tmp_path, rounds=3, attack=None, clients=clients)
    [done] = unlearn_runs([run], [0], Retrain(), tmp_path)
    asked = read_tables(tables(clients=clients)).base
    everybody = clients_of(asked, 1, 1)
    stay = everybody.rows(slice(1, None))
    zero = np.zeros(46)
    start = warm_up(asked.learner, zero, stay, 1, 20)
    assert not np.array_equal(start, warm_up(asked.learner, zero, everybody, 1, 20))
    outcomes = list(simulate(Federation(asked.learner), stay, 3, 1, start=start))
    assert np.array_equal(load_model(done.folder).weights, outcomes[-1].weights)


def test_progress_is_told(parent):
    told = []
    unlearn_runs([parent], [0], FedEraser(), verify=True, progress=lambda *news: told.append(news))
    assert told[0] == ("fed-eraser,steps=3, fold 1, seed 1", 1, 20, "round 1 of 20")
    assert told[-1] == ("fed-eraser,steps=3, fold 1, seed 1, retraining 4 of 4", 40, 40, "round 40 of 40")
    assert len({news[0] for news in told}) == 5


def test_every_unlearner_is_tried_here():
    elsewhere = {Certified}  # test_certificates.py
    assert {type(method) for method in METHODS} | elsewhere == set(UNLEARNERS.values())


def test_methods_are_built_like_all_others():
    from fedrank.unlearning.methods import Unlearner

    assert build(Unlearner, {"name": "fed-eraser", "steps": 2}, "method") == replace(FedEraser(), steps=2)


@pytest.mark.long
def test_the_command(parent, fedrank):
    code, out, err = fedrank("forget", "client", "runs", "--client", 0, "--set", "steps=2", "--verify")
    assert (code, err) == (0, "")
    assert "160 local interactions in 20 rounds, 25.0 % of retraining" in out
    assert "retrained" in out
    assert "New run: runs/small-unlearned/fed-eraser,steps=2/fold-1-seed-1" in out
    assert "fedrank report runs runs/small-unlearned" in out
    code, out, err = fedrank("forget", "client", "runs", "--client", 0, "--set", "steps=2")
    assert (code, err) == (0, "")
    assert "(done before)" in out
    assert (parent / "model.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--client", 9), "client 9 does not exist in "),
        (("--client", 0, "--method", "fed-erasor"), 'did you mean "fed-eraser"?'),
        (("--client", 0, "--set", "stesp=2"), 'no such setting of fed-eraser; did you mean "steps"?'),
        (("--client", 0, "--set", "steps=0"), "steps must be at least 1"),
        (("--client", 0, "--name", "../x"), "does not name a folder below OUT"),
    ],
    ids=["client", "method", "setting", "value", "name"],
)
def test_mistakes_cost_one_line(parent, fedrank, arguments, message):
    before = content(Path())
    code, out, err = fedrank("forget", "client", "runs", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert content(Path()) == before


@pytest.mark.long
def test_purging_asks_first(parent, fedrank, monkeypatch):
    monkeypatch.setattr("typer.confirm", _refuse)
    before = content(Path())
    code, _, _ = fedrank("forget", "client", "runs", "--client", 0, "--purge-parent")
    assert code == 1
    assert content(Path()) == before
    code, out, _ = fedrank("forget", "client", "runs", "--client", 0, "--purge-parent", "--yes")
    assert code == 0
    assert "purged model.json" in out
    assert not (parent / "model.json").exists()


def _refuse(text, abort):
    import typer

    assert abort
    raise typer.Abort

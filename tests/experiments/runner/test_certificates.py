"""Certified unlearning of runs: what is refused by name, what the receipt states, and what a killed command leaves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.data.forget_user import forget_user
from fedrank.data.logs import load_log
from fedrank.data.synthetic_shown import Browsing, made_up_queries, simulate_shown
from fedrank.experiments.runner.data import clear_log_cache, load_fold
from fedrank.experiments.runner.folder import Facts, Receipt
from fedrank.experiments.runner.forget_person import plan_forgetting
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.schedule import plan
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.spec.families import build
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_spec
from fedrank.ranking.model import load_weights
from fedrank.unlearning.certificate import ListLoss, epsilon_together, minimise
from fedrank.unlearning.methods import Certified, Retrain, Unlearner

EXAMINED = [(place + 1) ** -1.5 for place in range(10)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A log of five people; read only."""
    folder = tmp_path_factory.mktemp("data") / "log"
    queries = made_up_queries(80, seed=5)
    simulate_shown(queries, 800, people=5, activity=0.5, browsing=Browsing(1.5)).write(folder)
    return folder


@pytest.fixture
def log(shown, tmp_path, monkeypatch):
    """A copy that a test may change."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shown, tmp_path / "log")
    (tmp_path / "fixed.json").write_text(json.dumps({"slope": EXAMINED}))
    clear_log_cache()
    return tmp_path / "log"


def trained(log: Path, name: str = "my", **changes) -> Path:
    """A finished run; "section.key" changes one setting."""
    tables = {
        "rounds": 4,
        "data": {"log": str(log), "normalise": "none", "propensities": str(log.parent / "fixed.json")},
        "clients": {"count": 5, "interactions": 20, "partition": {"name": "users"}},
        "learner": {"name": "logged-clicks"},
    }
    for key, value in changes.items():
        section, _, setting = key.partition("__")
        if setting:
            tables[section] = tables[section] | {setting: value}
        else:
            tables[section] = value
    [task] = plan(read_tables(tables), name, log.parent / "runs")
    assert perform(task) == "finished"
    return task.folder


def minimum(log: Path, run: Path, queries) -> np.ndarray:
    """The minimum of the loss on some entries of the training data, from zero."""
    train = load_fold(read_spec(run / "spec.toml").base.data, 1).train
    loss = ListLoss(train, queries(train), Certified().l2)
    return minimise(loss, np.zeros(train.features.shape[1]), 1e-10)[0]


def test_a_client_leaves_with_a_certificate(log):
    run = trained(log)
    [done] = unlearn_runs([run], [2], Certified())
    receipt = Receipt.read(done.folder)
    assert receipt == done.receipt
    found = receipt.certificate
    assert (found["epsilon"], found["delta"], found["releases"]) == (0.1, 1e-6, 1)
    assert found["epsilon_of_all_releases"] <= 0.1 + 1e-9
    assert found["settings"] == {"l2": 1e-3, "tolerance": 1e-8, "epsilon": 0.1, "delta": 1e-6}
    assert receipt.summary.startswith(
        "Client 2 is forgotten by this model, with a certificate: the model is (ε = 0.1, "
    )
    assert "Earlier models remain known." in receipt.summary
    assert "fixed.json, SHA-256 " in found["assumes"][1]
    # The released model is the minimum on the lists of the others, with noise.
    expected = minimum(log, run, lambda train: np.flatnonzero(train.who != _user_of(train, 2)))
    away = load_weights(done.folder).weights - expected
    assert 0 < np.linalg.norm(away) < 10 * found["noise"] * np.sqrt(len(away))
    facts = Facts.read(done.folder)
    assert facts.notes[-1].startswith("client 2 was unlearned by ")
    assert "only retrain is exact" not in facts.notes[-1]
    assert unlearn_runs([run], [2], Certified())[0].skipped  # no second draw of the noise


def _user_of(train, client):
    names, sizes = np.unique(train.who, return_counts=True)
    return names[np.argsort(-sizes, kind="stable")[client]]


def test_a_chain_states_the_epsilon_of_all_its_releases(log):
    first = unlearn_runs([trained(log)], [2], Certified(epsilon=0.5))[0]
    second = unlearn_runs([first.folder], [0], Certified(epsilon=0.5), name="second")[0]
    third = unlearn_runs([second.folder], [1], Certified(epsilon=1.0), name="third")[0]
    certificates = [one.receipt.certificate for one in (first, second, third)]
    assert [one["releases"] for one in certificates] == [1, 2, 3]
    multipliers = [one["multiplier"] for one in certificates]
    together = epsilon_together(multipliers, 1e-6)
    assert certificates[2]["epsilon_of_all_releases"] == together
    assert 1.0 < together < 2.0
    assert second.folder.parent.name == first.folder.parent.name  # names do not grow with the chain
    assert Facts.read(third.folder).unlearned["gone"] == [0, 1, 2]


def test_people_who_were_removed_are_forgotten_without_naming_a_client(log):
    run = trained(log)
    with pytest.raises(ValueError, match="no client leaves, and the data set has not changed since this run"):
        unlearn_runs([run], [], Certified())
    [before] = plan_forgetting("u1", log, [log.parent / "runs"]).runs
    assert before.certified_command == f"fedrank forget client {run} --method certified"
    forget_user(log, "u1", {"receipt": "1234"})
    clear_log_cache()
    with pytest.raises(ValueError, match="the data set has changed since this run, so the numbers of its clients may"):
        unlearn_runs([run], [2], Retrain())
    [done] = unlearn_runs([run], [], Certified())
    assert done.receipt.removed == {"clients": [], "people": ["1234"]}
    assert done.receipt.summary.startswith(
        "People who were removed from the data set are forgotten by this model, with"
    )
    expected = minimum(log, run, lambda train: np.arange(train.queries))
    away = load_weights(done.folder).weights - expected
    assert np.linalg.norm(away) < 10 * done.receipt.certificate["noise"] * np.sqrt(len(away))
    # The next person: of the new run, in which there are no clients any more.
    [after] = plan_forgetting("u3", log, [done.folder]).runs
    assert (after.used, after.clients) == ("learned from them", ())
    assert after.certified_command.startswith("fedrank forget client ")
    forget_user(log, "u3", {"receipt": "5678"})
    clear_log_cache()
    [again] = unlearn_runs([done.folder], [], Certified(), name="again")
    assert again.receipt.removed["people"] == ["1234", "5678"]
    assert again.receipt.certificate["releases"] == 2
    assert again.receipt.certificate["lists"] < done.receipt.certificate["lists"]
    # Numbers of clients that left before are not those of the changed data set.
    [mixed] = unlearn_runs([trained(log, "other", clients__count=3)], [0], Certified(), name="mixed")
    forget_user(log, "u2", {"receipt": "9"})
    clear_log_cache()
    with pytest.raises(ValueError, match="clients 0 left this run before"):
        unlearn_runs([mixed.folder], [], Certified(), name="not")


def test_purging_deletes_what_people_left_in_any_client(log):
    run = trained(log, record_every=2)
    forget_user(log, "u1")
    clear_log_cache()
    [done] = unlearn_runs([run], [], Certified(), purge=True)
    assert not (run / "history").exists()
    assert not (run / "model.json").exists()
    assert done.receipt.purged == ("history/: updates of all clients, and models", "model.json")


REFUSED = {
    "pdgd": (
        {"learner": {"name": "pdgd", "lists": "logged"}, "data__propensities": None},
        "the steps of learner 'pdgd' are not those of a convex loss",
    ),
    "neural": (
        {"learner": {"name": "logged-clicks", "ranker": {"name": "mlp", "hidden": 2}}},
        "the loss of the ranker 'mlp' is not convex",
    ),
    "shared": ({"data__propensities": "shared"}, 'data.propensities = "shared" are estimated from the same log'),
    "trust": ({"data__bias": "trust"}, 'data.bias = "trust" gives negative weights'),
    "global": (
        {"data__normalise": "global"},
        'normalisation "global" takes the ranges of features from the data of all',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_theorem_covers_is_refused_by_name(log, name):
    changes, message = REFUSED[name]
    run = trained(log, **changes)
    before = sorted(log.parent.rglob("*"))
    with pytest.raises(ValueError, match=message):
        unlearn_runs([run], [2], Certified())
    assert sorted(log.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"slope": [1.0, 0.5], "extra": [0.0, 0.1]}, "fixed.json has clicks due to trust .* the loss is not convex"),
        ({"slope": [1.0, 0.5], "how": "regression EM"}, "fixed.json was estimated from a log, and if that is this log"),
    ],
    ids=["trust", "estimated"],
)
def test_a_file_that_is_not_fixed_or_not_positive_is_refused(log, content, message):
    (log.parent / "fixed.json").write_text(json.dumps(content))
    run = trained(log)
    with pytest.raises(ValueError, match=message):
        unlearn_runs([run], [2], Certified())


def test_unweighted_clicks_are_covered(log):
    [done] = unlearn_runs([trained(log, data__propensities=None)], [2], Certified())
    assert "weight 1 for every click" in done.receipt.certificate["assumes"][1]


def test_verification_is_refused(log):
    with pytest.raises(
        ValueError, match="--verify compares with repetitions of the run, and certified trains in another"
    ):
        unlearn_runs([trained(log)], [2], Certified(), verify=True)


def test_the_command(log, monkeypatch, capsys):
    run = trained(log)
    monkeypatch.setattr(
        sys, "argv", ["fedrank", "forget", "client", str(run), "--client", "2", "--method", "certified"]
    )
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\d+ passes over \d+ lists; ", out)
    assert "The certificate assumes:" in out
    assert "- earlier models remain known" in out
    monkeypatch.setattr(sys, "argv", ["fedrank", "report", str(run), "runs/my-unlearned", "--out", "report.md"])
    with pytest.raises(SystemExit):
        main()
    assert "| has a certificate |" in Path("report.md").read_text()


KILLED = """
import os, signal, sys
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.unlearning.methods import Certified

rename = os.rename

def killed(source, target):
    if str(target).endswith("fold-1-seed-1"):
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)

os.rename = killed
unlearn_runs([sys.argv[1]], [2], Certified())
"""


@pytest.mark.process
def test_a_kill_between_receipt_and_release_releases_nothing(log):
    """The receipt is written before the model appears; a model that was never released does not stay."""
    run = trained(log)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(run)], cwd=log.parent, check=False)
    assert ended.returncode == -9
    [left] = (log.parent / "runs" / "my-unlearned").glob("*/.*")
    assert Receipt.read(left) is not None
    drawn = load_weights(left).weights
    [done] = unlearn_runs([run], [2], Certified())
    assert not left.exists()
    assert [path.name for path in done.folder.parent.iterdir()] == ["fold-1-seed-1"]
    assert not np.array_equal(load_weights(done.folder).weights, drawn)


def test_the_folder_of_a_running_process_stays(log):
    run = trained(log)
    folder = log.parent / "runs" / "my-unlearned" / "certified,l2=0.001,tolerance=1e-08,epsilon=0.1,delta=1e-06"
    theirs = folder / f".fold-1-seed-1.abc.{os.getppid()}"
    theirs.mkdir(parents=True)
    unlearn_runs([run], [2], Certified())
    assert theirs.exists()


def test_it_is_built_like_all_other_methods(log):
    assert build(Unlearner, {"name": "certified", "l2": 0.01}, "method") == Certified(l2=0.01)
    assert len(load_log(log).users) == 5

"""Trackers: each run arrives once with its curves and cards, can be loaded again, and nothing else leaves."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import fedrank as fr
from fedrank.__main__ import main
from fedrank.experiments.report import trackers
from fedrank.experiments.report.trackers import register, send_runs
from fedrank.experiments.runner.runs import load_runs
from tests.experiments.report.made_up_runs import write_run

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, and of the trackers


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "runs", nothing=0.3, begun="2026-11-01T10:00:00", ended="2026-11-01T11:00:00")
    (folder / "history").mkdir()
    (folder / "history" / "secret.npz").write_text("recorded updates")
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A client of a data base, which takes seconds to make, and what --to gets."""
    mlflow = pytest.importorskip("mlflow", reason="package: mlflow-skinny, of the extra mlflow")
    pytest.importorskip("alembic", reason="package: alembic, which optuna brings")
    folder = tmp_path_factory.mktemp("mlflow")
    uri = f"sqlite:///{folder}/mlflow.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in trackers.ENVIRONMENT.items():
            patch.setenv(name, value)
        yield mlflow.MlflowClient(uri), f"mlflow:{uri}"


@pytest.fixture
def flow(store):
    client, to = store
    for known in client.search_experiments(filter_string="name = 'robust'"):
        for each in client.search_runs([known.experiment_id]):
            client.delete_run(each.info.run_id)
    return client, to


def called(*words):
    """The exit code of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedrank", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    return ended.value.code


def test_curves_and_final_values_by_hand(tmp_path):
    cells = [None, 0.25, None, 0.5]
    online = [0.1, 0.2, 0.3, 0.4]
    path = write_run(
        tmp_path, rounds=4, offline=cells, online=online, measures=["ndcg@10"], behind_final=1, nothing=0.3
    )
    [found] = load_runs(path)
    curves = {}
    for name, round, value in trackers._curves(found):
        curves.setdefault(name, []).append((round, value))
    assert curves["ndcg_at_10"] == [(2, 0.25), (4, 0.5)]
    assert curves["interactions"] == [(1, 50.0), (2, 100.0), (3, 150.0), (4, 200.0)]
    finals = trackers._finals(found)
    assert finals["final/ndcg_at_10"] == 0.5
    assert finals["final/online"] == 0.4
    assert finals["do_nothing/ndcg_at_10"] == pytest.approx(np.nanmean(found.nothing["ndcg@10"]))


def test_an_unknown_tracker_and_no_finished_run_are_named(run, tmp_path, capsys):
    with pytest.raises(ValueError, match=r"--to mlfow: the tracker must be mlflow or wandb; did you mean .mlflow.\?"):
        send_runs(load_runs(run), "mlfow")
    with pytest.raises(ValueError, match="no run is finished"):
        send_runs(load_runs(run).filter(variant="other"), "mlflow")
    assert called("model", "export", run, "--to", "opensearch") == 2
    assert "--to opensearch writes a file; name it with --out" in capsys.readouterr().err


@pytest.mark.long
def test_mlflow_has_each_run_once_and_the_files_of_its_model_alone(run, flow, capsys):
    client, to = flow
    for printed in ("Sent 1 run to {}\n", "Sent 0 runs to {}, which had 1 run already\n"):
        assert called("report", run, "--to", to) == 0
        assert capsys.readouterr().out == printed.format(to.removeprefix("mlflow:"))
    assert not os.path.exists("report.html")
    experiment = client.get_experiment_by_name("robust").experiment_id
    [stored] = client.search_runs([experiment])
    [own] = load_runs(run)
    assert stored.info.status == "FINISHED"
    assert stored.info.end_time - stored.info.start_time == 3_600_000
    assert stored.data.params["seed"] == "1"
    assert stored.data.metrics["final/ndcg_at_10"] == own.final_values["ndcg@10"]
    curve = client.get_metric_history(stored.info.run_id, "ndcg_at_10")
    rows = own.evaluated
    assert [(each.step, each.value) for each in curve] == [
        (int(own.rounds["round"][row]), own.rounds["ndcg@10"][row]) for row in rows
    ]
    sent = {each.path for each in client.list_artifacts(stored.info.run_id, "model")}
    expected = {"MLmodel", "README.md", "model.json", "spec.toml"}
    assert sent == {f"model/{name}" for name in expected | ({"privacy.json"} if own.card else set())}


@pytest.mark.long
def test_a_run_that_was_sent_in_part_is_replaced(run, flow, monkeypatch):
    client, to = flow
    broken = trackers._write_model
    monkeypatch.setattr(trackers, "_write_model", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        send_runs(load_runs(run), to)
    monkeypatch.setattr(trackers, "_write_model", broken)
    assert send_runs(load_runs(run), to).new == 1
    [stored] = client.search_runs([client.get_experiment_by_name("robust").experiment_id])
    assert stored.info.status == "FINISHED"


@pytest.mark.long
def test_a_registered_model_has_its_card_and_gives_the_same_scores(run, flow):
    client, to = flow
    assert called("model", "export", run, "--to", to, "--name", "products", "--anyway") == 0
    assert register(run, to, "products")[:2] == ("products", "1")
    [version] = client.search_model_versions("name = 'products'")
    assert version.description.startswith("# robust")
    assert "TO FILL IN" in version.description
    folder = client.download_artifacts(version.run_id, "model", str(run))
    with open(os.path.join(folder, "MLmodel"), encoding="utf-8") as file:
        loader = json.load(file)["flavors"]["python_function"]["loader_module"]
    features = np.random.default_rng(1).normal(size=(7, 8))
    found = importlib.import_module(loader)._load_pyfunc(folder).predict(features)
    weights = np.array(load_runs(run)[0].model["weights"])
    assert fr.load_model(run).normalised == "query"
    low, high = features.min(0), features.max(0)
    np.testing.assert_allclose(found, (features - low) / (high - low) @ weights, rtol=1e-5)


@pytest.mark.long
def test_a_problem_of_mlflow_is_one_message_without_the_password(run, capsys):
    pytest.importorskip("mlflow", reason="package: mlflow-skinny, of the extra mlflow")
    assert called("report", run, "--to", "mlflow:nonsense://host") == 2
    assert "fedrank: MLflow: " in capsys.readouterr().err
    client = type("Client", (), {"tracking_uri": "http://me:secret@host:5000"})
    assert trackers._Flow(client, None, ValueError).place == "http://host:5000"


@pytest.mark.process
def test_wandb_stores_a_run_offline_and_nothing_of_this_machine(run, tmp_path):
    pytest.importorskip("wandb", reason="package: wandb, of the extra wandb")
    command = (sys.executable, "-m", "fedrank", "report", run, "--to", "wandb:shop")
    environment = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "Sent 1 run to the folder wandb; send it with wandb sync\n"
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = file.read_bytes()
    for word in (b"ndcg_at_10", b"final/mrr_at_10", b"do_nothing/ndcg_at_10", b"README.md", b"shop"):
        assert word in content, word
    for word in (b"secret.npz", b"queries.csv", sys.executable.encode(), b"requirements.txt"):
        assert word not in content, word

"""A smoke of every kind of experiment, by the command alone: what `make lowest` runs with the lowest versions allowed.

Commands run in processes of their own, so that a deprecation within an old package does not count as a failure.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedrank as fr

pytestmark = pytest.mark.smoke
ROOT = Path(__file__).parent.parent

FEDERATED = """\
rounds         = 10
evaluate_every = 5
measures       = ["ndcg@10", "map"]
baseline       = "linear"
data           = { name = "synthetic-mq2007", normalise = "none" }
clients        = { count = 6, interactions = 2 }
learner        = { name = "pdgd" }

[variants.linear]
record_every = 5

[variants.neural]
"learner.ranker" = { name = "mlp" }

[variants.evolution]
learner = { name = "evolution", truth = 0.9 }
server  = { name = "adam", rate = 0.001 }

[variants.skyline]
learner = { name = "lambdarank" }

[variants.gaussian]
mechanism = { name = "gaussian", clip = 0.3, noise = 2.0, placement = "client" }

[variants.secure-aggregation]
mechanism = { name = "gaussian", clip = 0.3, noise = 2.0, placement = { name = "secure-aggregation", honest = 0.7 } }

[variants.attacked]
"clients.malicious" = 1
attack              = { name = "lie" }
aggregator          = { name = "krum", attackers = 0.2 }
"""
ASYNC = """\
kind           = "async"
rounds         = 20
evaluate_every = 10
measures       = ["mrr@20"]
data           = { log = "toy/data", users = 5 }
clients        = { count = 5, interactions = 2, partition = { name = "users" } }
learner        = { name = "pdgd" }

[variants.arriving]

[variants.buffered]
arrival   = { name = "fedbuff", size = 2, wait = true }
mechanism = { name = "gaussian", clip = 1.0, noise = 4.0, placement = { name = "secure-aggregation" } }
"""
SILO = """\
kind     = "silo"
rounds   = 2
measures = ["ndcg@10"]
data     = { name = "synthetic-silos" }
silos    = { count = 3, queries = 5 }
method   = { name = "cross-silo" }

[variants.local]
method = "local"

[variants.cross-silo]
"method.noise" = 1.0
"""
MERGE = """\
kind     = "trees"
measures = ["ndcg@10"]
data     = { name = "synthetic-categories" }
booster  = { name = "lambdamart", trees = 4, leaves = 8 }
split    = { name = "categories", by = "feature:category", categories = ["1"], rule = "exclusive" }
merge    = { name = "alone" }

[vary]
"merge.name" = ["alone", "linear", "stacking"]
"""
CLUSTER = """\
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""
JOBS = """\
import fedrank
from fedrank.experiments.runner.executors import SubmititExecutor
from submitit import LocalExecutor

grid = fedrank.read_experiment("quickstart", ["rounds=3", "data.folds=[1]", "seeds=[1]"])
with SubmititExecutor(LocalExecutor("jobs")) as executor:
    print(fedrank.run_experiment(grid, "jobs", "runs", workers=2, executor=executor))
"""


@pytest.fixture
def fedrank(tmp_path, monkeypatch):
    """Call the command in an empty folder; what it printed. One that fails fails the test."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        command = [sys.executable, "-m", "fedrank", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"fedrank {' '.join(command[3:])}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return call


@pytest.fixture
def run(fedrank):
    """Do the experiment of this text: every variant finishes with a quality, and the report has pictures."""

    def call(name, spec):
        Path(f"{name}.toml").write_text(spec, encoding="utf-8")
        fedrank("run", f"{name}.toml", "--workers", "1")
        assert " failed " not in fedrank("watch", f"runs/{name}", "--list")
        for kind in ("html", "csv"):
            fedrank("report", f"runs/{name}", "--out", f"{name}.{kind}")
        assert "<table" in Path(f"{name}.html").read_text(encoding="utf-8")
        with open(f"{name}.csv", encoding="utf-8", newline="") as lines:
            quality = [float(row["mean"]) for row in csv.DictReader(lines) if row["column"] in ("ndcg@10", "mrr@20")]
        assert len(quality) >= 2
        assert all(0 < value <= 1 for value in quality)

    return call


def test_commands_explain_themselves(fedrank):
    for command in ((), ("run",), ("trees", "grow"), ("data", "build")):
        assert "Usage:" in fedrank(*command, "--help")
    assert "pdgd" in fedrank("methods", "learner")
    assert "synthetic-mq2007" in fedrank("data", "list")


def test_a_built_in_experiment(fedrank):
    fedrank("run", "quickstart", "--set", "rounds=3", "--set", "seeds=[1]", "--set", "data.folds=[1]", "--workers", "1")
    assert fedrank("watch", "runs", "--list").count("finished") == 4


def test_federations(fedrank, run):
    run("federated", FEDERATED)
    assert "secure-aggregation" in fedrank("privacy", "show", "federated.toml")
    fedrank("forget", "client", "runs/federated/linear", "--client", 0, "--method", "fed-eraser")
    assert list(Path("runs/federated-unlearned").rglob("model.json"))
    for variant in ("linear", "neural"):
        model_agrees_with_other_packages(fedrank, f"runs/federated/{variant}/fold-1-seed-1")


def test_trackers(fedrank, run, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a data base needs more than mlflow-skinny
    monkeypatch.setenv("WANDB_MODE", "offline")
    run("quick", FEDERATED.partition("[variants.neural]")[0])
    assert "Sent 1 run" in fedrank("report", "runs/quick", "--to", "mlflow:mlruns")
    assert "which had 1 run already" in fedrank("report", "runs/quick", "--to", "mlflow:mlruns")
    exported = fedrank("model", "export", "runs/quick", "--to", "mlflow:mlruns", "--anyway")
    assert "quick, version 1" in exported
    assert "Sent 1 run" in fedrank("report", "runs/quick", "--to", "wandb")


def model_agrees_with_other_packages(fedrank, model):
    """Scikit-learn reads the file that is scored, onnxruntime scores it, too, and ir_measures judges the ranking."""
    import ir_measures
    import onnxruntime
    from sklearn.datasets import load_svmlight_file

    chance = np.random.default_rng(1)
    with open("judged.txt", "w", encoding="utf-8") as file, open("judged.qrels", "w", encoding="utf-8") as judgements:
        for query, document in np.ndindex(5, 8):
            values = " ".join(f"{i}:{value:.6f}" for i, value in enumerate(chance.random(46), start=1))
            print(f"{document % 3} qid:{query} {values}", file=file)
            print(f"{query} 0 {query}-{document + 1} {document % 3}", file=judgements)

    scores = np.array(fedrank("model", "score", model, "judged.txt").split(), np.float32)
    fedrank("model", "export", model, "--to", "onnx", "--out", "model.onnx", "--anyway")
    features = load_svmlight_file("judged.txt", n_features=46)[0].toarray().astype(np.float32)
    (theirs,) = onnxruntime.InferenceSession("model.onnx").run(None, {"features": features})
    np.testing.assert_allclose(theirs.ravel(), scores, rtol=1e-4)

    fedrank("model", "score", model, "judged.txt", "--trec", "smoke", "--out", "judged.run")
    fedrank("model", "evaluate", model, "judged.txt", "--measure", "map", "--per-query", "values.csv")
    with open("values.csv", encoding="utf-8", newline="") as lines:
        ours = [float(row["map"]) for row in csv.DictReader(lines)]
    ranking, truth = ir_measures.read_trec_run("judged.run"), ir_measures.read_trec_qrels("judged.qrels")
    assert np.mean(ours) == pytest.approx(ir_measures.calc_aggregate([ir_measures.AP], truth, ranking)[ir_measures.AP])


def test_logs_and_updates_that_arrive(fedrank, run):
    fedrank("data", "synth", "--users", 20, "--out", "toy")
    log = ["--log", "toy/log.tsv", "--docs", "toy/corpus.jsonl"]
    fedrank("data", "build", *log, "--stem", "english", "--out", "toy/data")
    fedrank("data", "check", "toy/data", "--out", "log.png")
    run("async", ASYNC)


def test_organisations(fedrank, run):
    run("silo", SILO)
    texts = ["flu and fever " * 3, "fracture of the arm"]
    rows = [json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    Path("corpus.jsonl").write_text("\n".join(rows), encoding="utf-8")
    fedrank("data", "sketch", "--docs", "corpus.jsonl", "--key", "shared.key", "--noise", 1.0, "--out", "a.sketch")
    fedrank("data", "sketch", "--out", "a.sketch", "--remove", "d1")
    assert json.loads(fedrank("data", "check", "a.sketch", "--json"))


def test_trees_and_what_merges_them(fedrank, run):
    run("merge", MERGE)
    Path("forest.toml").write_text(
        'kind = "trees"\ntune = 2\ndata.name = "synthetic-mq2007"\ndata.folds = [1]\nseeds = [1]\n'
        'booster = { name = "selgb", keep = 0.2, trees = 4 }\n'
    )
    fedrank("run", "forest.toml", "--workers", 1)
    fedrank("model", "export", "runs/forest", "--to", "onnx", "--out", "forest.onnx", "--anyway")


def test_engines_on_other_machines(fedrank, tmp_path):
    pytest.importorskip("distributed", reason="pip install 'fedrank[dask]'")
    pytest.importorskip("submitit", reason="pip install 'fedrank[slurm]'")
    (tmp_path / "cluster.py").write_text(CLUSTER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "cluster.py"], **pipes) as cluster:
        address = cluster.stdout.readline().strip().replace("tcp", "dask")
        small = ("--set", "rounds=3", "--set", "data.folds=[1]", "--set", "seeds=[1]")
        said = fedrank("run", "quickstart", *small, "--on", address)
        cluster.communicate("\n")
    assert "1 worker" in said
    assert "finished (4 of 4)" in said
    done = subprocess.run([sys.executable, "-c", JOBS], capture_output=True, text=True, check=False)
    assert "finished: 4" in done.stdout, done.stderr


def test_a_person_searches_their_own_documents(tmp_path):
    from tests.search.served import served

    pytest.importorskip("tantivy", reason="pip install 'fedrank[search]'")
    with served(tmp_path) as page, page.browser() as browser:
        results = page.search(browser, "river")
        shown = browser.get(results)
        assert shown.status_code == 200
        assert "<mark>river</mark>" in shown.text
        assert browser.get(f"{results}/open/1", follow_redirects=True).status_code == 200
        assert page.clicks() == 1


def test_the_site(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()


def test_ir_datasets_offers_what_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path))
    aol = pytest.importorskip("ir_datasets", reason="pip install 'fedrank[ir-datasets]'").load("aol-ia")
    assert {"doc_id", "title", "text", "url"} <= set(aol.docs_cls()._fields)
    assert {"user_id", "time", "query", "items"} <= set(aol.qlogs_cls()._fields)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")  # about its own wrapper of NumPy's generator
@settings(deadline=None, max_examples=20)
@given(arrays(np.float32, (4, 3), elements=st.floats(0, 1, width=32)))
def test_made_up_examples(features):
    """Hypothesis and its arrays, as the property tests use them."""
    assert fr.rankers.Linear().score(np.ones(3), features) == pytest.approx(features.sum(axis=1), rel=1e-5)

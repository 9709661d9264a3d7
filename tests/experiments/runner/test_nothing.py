"""Every kind of run measures what users have without its model, and leaves the rest of its folder as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrank.data.catalog import load
from fedrank.data.collection import load_collection
from fedrank.data.letor import letor_lines
from fedrank.data.log_fold import log_fold
from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import Run, load_runs
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.runner.writer import Task
from fedrank.experiments.spec.grid import read_tables
from fedrank.ranking.measures import per_query
from fedrank.silo.silos import SilosRule, make_silos
from fedrank.silo.training import silo_lists
from fedrank.unlearning.methods import Retrain
from tests.made_up import made_up_data, made_up_log

FEDERATED = {
    "rounds": 3,
    "measures": ["ndcg@10", "mrr@10"],
    "data": {"name": "synthetic-mq2007"},
    "clients": {"count": 3, "interactions": 2},
    "learner": {"name": "pdgd"},
}
FOREST = {"name": "lambdamart", "trees": 3, "leaves": 4, "min_data_in_leaf": 3}


def done(folder: Path, tables: dict[str, Any]) -> Run:
    task = Task(folder / "only" / "fold-1-seed-1", read_tables(tables).base.single(1, 1), "test", "only", {}, 1, 1)
    assert perform(task) == "finished", (task.folder / "run.json").read_text()
    [run] = load_runs(task.folder)
    return run


def same(run: Run, name: str, expected: Any, measure: str = "ndcg@10") -> None:
    assert run.given == name
    assert "do nothing" in run.conventions
    np.testing.assert_array_equal(run.nothing[measure], np.asarray(expected))
    assert len(run.nothing[measure]) == len(run.queries[0])


@pytest.fixture(scope="module")
def letor(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """LETOR files without names of features."""
    folder = tmp_path_factory.mktemp("letor")
    for number, name in enumerate(("train", "validation", "test")):
        (folder / f"{name}.txt").write_text("".join(letor_lines(made_up_data(20, longest=30, seed=number))))
    return {name: str(folder / f"{name}.txt") for name in ("train", "validation", "test")}


def test_a_federation_is_compared_with_bm25(tmp_path: Path) -> None:
    test = load("synthetic-mq2007").test
    column = test.feature_names.index("BM25 of whole document")
    expected = per_query(["ndcg@10"], test.features[:, column], test)[0]
    run = done(tmp_path, FEDERATED)
    same(run, "BM25 of whole document", expected)
    assert list(run.nothing) == ["ndcg@10", "mrr@10"]


def test_a_run_from_a_public_model_is_compared_with_that_model_alone(tmp_path: Path) -> None:
    public = done(tmp_path / "public", FEDERATED)
    noise = {"name": "gaussian", "clip": 0.1, "noise": 5.0, "placement": {"name": "server"}}
    run = done(tmp_path / "run", FEDERATED | {"start": str(public.path), "mechanism": noise})
    origin = "experiment test, variant only, fold 1, seed 1, data synthetic-mq2007"
    same(run, f"start alone ({origin})", public.queries[1]["ndcg@10"])
    [analysis] = analyse(load_runs(run.path))
    assert [row.label for row in analysis.rows] == ["only", "public start alone"]
    assert run.card is not None
    assert f"the cost of the initial model: {origin}; its own privacy card" in run.card.not_covered
    given = done(tmp_path / "given", FEDERATED | {"start": "given"})
    assert given.given == "BM25 of whole document"


def test_an_unlearned_model_is_compared_with_the_same(tmp_path: Path) -> None:
    parent = done(tmp_path / "runs" / "some", FEDERATED)
    [forgotten] = unlearn_runs([parent.path], [0], Retrain(), tmp_path / "runs")
    [run] = load_runs(forgotten.folder)
    same(run, "BM25 of whole document", parent.nothing["ndcg@10"])


def test_a_log_is_compared_with_the_logged_order(tmp_path: Path) -> None:
    log = made_up_log(tmp_path / "log", np.random.default_rng(3).choice(5, size=150).tolist())
    tables = {
        "kind": "async",
        "rounds": 20,
        "measures": ["mrr"],
        "data": {"log": str(log)},
        "clients": {"count": 5, "interactions": 3, "partition": {"name": "users"}},
        "learner": {"name": "pdgd"},
    }
    test = log_fold(log).test
    clicked = test.grades.reshape(test.queries, -1).argmax(axis=1)
    same(done(tmp_path / "runs", tables), "logged order", 1 / (1 + clicked), "mrr")


@pytest.mark.long
@pytest.mark.parametrize("method", ["local", "global", {"name": "cross-silo", "width": 64, "depth": 5, "k": 5}])
def test_silos_are_compared_with_their_own_bm25_whatever_the_method(method: Any, tmp_path: Path) -> None:
    tables = {
        "kind": "silo",
        "rounds": 1,
        "measures": ["ndcg@10"],
        "data": {"name": "synthetic-silos"},
        "silos": {"count": 3, "queries": 5},
        "method": method,
    }
    silos = make_silos(load_collection("synthetic-silos"), SilosRule(3, queries=5), Tokeniser(), seed=1)
    own = [silo_lists(silo, (), 0, 2) for silo in silos]
    test = RankingData.join([lists.test for lists in own])
    expected = per_query(["ndcg@10"], np.concatenate([lists.bm25 for lists in own]), test)[0]
    same(done(tmp_path, tables), "BM25 of title and body", expected)
    assert np.mean(expected) > 0.3


@pytest.mark.parametrize("more", [{}, {"split": {"name": "dealt"}, "merge": "pooled"}], ids=["forest", "merge"])
def test_forests_are_compared_with_what_the_spec_says(more: Any, letor: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    tables = {"kind": "trees", "data": letor, "booster": FOREST, "measures": ["ndcg@10"]} | more
    chance = done(tmp_path / "random", tables)
    assert chance.given == "random"
    assert "100 shuffles" in chance.conventions["do nothing"]
    test = made_up_data(20, longest=30, seed=2)
    first = done(tmp_path / "first", tables | {"data": letor | {"given": "feature 1"}})
    same(first, "feature 1", per_query(["ndcg@10"], test.features[:, 0], test)[0])
    for file in ("rounds.csv", "queries.csv", "model.json"):
        assert (first.path / file).read_bytes() == (chance.path / file).read_bytes(), file


def test_an_order_that_is_not_there_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    data = FEDERATED["data"] | {"given": "BM25 of hole document"}  # type: ignore[operator]
    task = Task(tmp_path / "run", read_tables(FEDERATED | {"data": data}).base.single(1, 1), "t", "only", {}, 1, 1)
    assert perform(task) == "failed"
    error = json.loads((task.folder / "run.json").read_text())["error"]
    assert "BM25 of whole document" in error["message"]
    assert not (task.folder / "rounds.csv").exists()


def test_folders_of_older_runs_are_read_as_before(tmp_path: Path) -> None:
    run = done(tmp_path, FEDERATED)
    (run.path / "nothing.csv").unlink()
    facts = json.loads((run.path / "run.json").read_text())
    del facts["given"], facts["conventions"]["do nothing"]
    (run.path / "run.json").write_text(json.dumps(facts))
    [older] = load_runs(run.path).checked()
    assert older.status == "finished"
    assert older.nothing == {}
    assert older.given is None

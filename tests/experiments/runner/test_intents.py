"""Type 1 from spec to run folder: both models are judged by three sets of labels."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from fedrank.data.catalog import load
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import load_weights

SMALL = [
    "rounds=300",
    "evaluate_every=30",
    "seeds=[1]",
    'vary.learner.ranker.name=["linear"]',
    'vary.clients.click_model=["perfect"]',
    "data.name=synthetic-intents",
]


def test_each_model_is_judged_by_the_intents_the_union_and_the_collection(tmp_path):
    grid = read_spec("thesis/fig-4-3", SMALL)
    run_experiment(grid, "type-1", tmp_path)
    by_variant = {run.variant.partition(",")[0]: run for run in load_runs(tmp_path)}
    data = load("synthetic-intents").test
    for run in by_variant.values():
        assert list(run.measures) == ["ndcg@10 by intents", "ndcg@10 by union", "ndcg@10"]
        assert run.conventions["ndcg@10 by union"].endswith("a document is relevant if it is for any of them")
        weights, ranker = (model := load_weights(run.path)).weights, model.ranker
        with (run.path / "rounds.csv").open(encoding="utf-8") as file:
            *_, last = csv.DictReader(file)
        by_intent = [Evaluator(data, ["ndcg@10"], grades).per_query(weights, ranker)[0] for grades in data.intents]
        assert float(last["ndcg@10 by intents"]) == pytest.approx(np.nanmean(np.nanmean(by_intent, axis=0)))
        union = Evaluator(data, ["ndcg@10"], data.intents.max(axis=0))(weights, ranker)[0]
        assert float(last["ndcg@10 by union"]) == pytest.approx(union)
        assert float(last["ndcg@10"]) == pytest.approx(Evaluator(data, ["ndcg@10"])(weights, ranker)[0])
        with (run.path / "clients.csv").open(encoding="utf-8") as file:
            assert set(next(csv.DictReader(file))) == {"client", "queries", "interactions", "ndcg@10"}

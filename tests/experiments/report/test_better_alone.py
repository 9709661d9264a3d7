"""A report says where noise costs more than federating brings."""

from __future__ import annotations

import pytest

from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import read_tables

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    noise = {"name": "gaussian", "clip": 0.3, "unit": "person"}
    tables = {
        "rounds": 8,
        "seeds": [1, 2, 3, 4],
        "evaluate_every": 1,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 2, "people": 10, "interactions": 5, "partition": {"name": "own"}},
        "learner": {"name": "pdgd"},
        "variants": {
            "together": {},
            "alone": {"aggregator.name": "none"},
            "drowned": {"mechanism": noise | {"noise": 500.0}},
            "hardly": {"mechanism": noise | {"noise": 0.01}},
        },
    }
    run_experiment(read_tables(tables), "test", folder)
    [found] = analyse(load_runs(folder))
    return [note for note in found.notes if "do not federate" in note]


def test_a_model_that_noise_made_worse_than_learning_alone_is_named(notes):
    [note] = notes
    assert note.startswith("drowned: do not federate at this ε. With ndcg@10 of ")
    assert "significantly below alone" in note

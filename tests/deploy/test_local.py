"""Experiments with sites as processes of this machine, without starting them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fedrank.deploy.local import prepare, run_local
from fedrank.deploy.records import last_line, log_line
from fedrank.deploy.settings import TRIAL, read_site
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import read_tables

SPEC: dict[str, Any] = {
    "rounds": 2,
    "seeds": [1],
    "measures": ["ndcg@10"],
    "data": {"name": "synthetic-mq2007", "folds": [1]},
    "clients": {"count": 3},
    "learner": {"name": "pdgd"},
    "aggregator": {"name": "mean"},
}


def test_a_site_can_read_the_settings_that_a_trial_writes(tmp_path):
    sites = {f"site-{number}": tmp_path / f"site-{number}" for number in (1, 2)}
    for folder in sites.values():
        folder.mkdir()
    prepare(SimpleNamespace(sites=sites))  # type: ignore[arg-type]
    for number, (name, folder) in enumerate(sites.items()):
        settings = read_site(folder)
        assert (settings.name, settings.id, settings.simulated) == (name, number, True)
        assert settings.policy == TRIAL


def test_simulated_results_are_not_taken_for_those_of_sites(tmp_path):
    grid = read_tables(SPEC)
    run_experiment(grid, "both", tmp_path)
    with pytest.raises(ValueError, match=r"has the results of a simulation; choose another name with --name"):
        run_local(grid, "both", tmp_path, 3)


def test_the_last_line_of_a_log(tmp_path):
    assert last_line(tmp_path / "site.log") is None
    log_line(tmp_path / "site.log", "first")
    log_line(tmp_path / "site.log", "second")
    found = last_line(tmp_path / "site.log")
    assert found is not None
    assert found.endswith(" second")

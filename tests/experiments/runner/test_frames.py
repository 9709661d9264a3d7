"""Tidy frames of runs: every value once, with who measured it; pandas only where it is installed."""

from __future__ import annotations

import builtins
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from fedrank.experiments.runner.runs import Records, framed, load_runs
from tests.experiments.report.made_up_runs import write_run

WHO = ["experiment", "variant", "aggregator.name", "fold", "seed"]


@pytest.fixture
def without_pandas(monkeypatch):
    real = builtins.__import__
    monkeypatch.delitem(sys.modules, "pandas", raising=False)

    def refuse(name, *rest, **more):
        if name == "pandas":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.fixture
def runs(tmp_path):
    for variant in ("krum", "mean"):
        for seed in (1, 2):
            write_run(tmp_path, variant=variant, seed=seed, settings={"aggregator.name": variant}, rounds=6, every=2)
    write_run(tmp_path, variant="mean", seed=3, status="failed", settings={"aggregator.name": "mean"})
    return load_runs(tmp_path)


def test_final_values_are_those_of_the_runs(runs, without_pandas):
    rows = runs.final()
    assert isinstance(rows, Records)
    assert [*rows[0]] == [*WHO, "measure", "value"]
    for run in runs.finished:
        own = {row["measure"]: row["value"] for row in rows if (row["variant"], row["seed"]) == (run.variant, run.seed)}
        assert own == run.final_values
    assert {row["seed"] for row in rows} == {1, 2}  # what is not finished does not count
    assert len(rows) == sum(len(run.final_values) for run in runs.finished)


def test_curves_hold_every_evaluation_once(runs, without_pandas):
    rows = runs.curves()
    assert [*rows[0]] == [*WHO, "round", "interactions", "measure", "value"]
    assert len(rows) == 4 * 3 * 3  # runs, evaluations, two measures and online quality
    run = runs[0]
    own = [row for row in rows if (row["variant"], row["seed"], row["measure"]) == (run.variant, run.seed, "mrr@10")]
    assert [row["round"] for row in own] == [2, 4, 6]
    assert [row["interactions"] for row in own] == [100, 200, 300]
    assert [row["value"] for row in own] == run.rounds["mrr@10"][[1, 3, 5]].tolist()


def test_a_damaged_run_does_not_count(runs, without_pandas):
    (runs[0].path / "rounds.csv").write_text("ro")
    assert {(row["variant"], row["seed"]) for row in runs.final()} == {("krum", 2), ("mean", 1), ("mean", 2)}
    assert {(row["variant"], row["seed"]) for row in runs.curves()} == {("krum", 2), ("mean", 1), ("mean", 2)}


def test_a_run_without_online_quality_has_none(tmp_path, without_pandas):
    write_run(tmp_path, online=[np.nan] * 6, rounds=6)
    assert {row["measure"] for row in load_runs(tmp_path).curves()} == {"ndcg@10", "mrr@10"}


def test_no_runs_are_no_rows(tmp_path, without_pandas):
    assert load_runs(tmp_path).curves() == []
    assert load_runs(tmp_path).final() == []


def test_what_a_row_lacks_is_none(without_pandas):
    assert framed([{"a": 1}, {"b": 2}]) == [{"a": 1, "b": None}, {"a": None, "b": 2}]


def test_pandas_is_used_where_it_is(runs, monkeypatch):
    made = []
    fake = SimpleNamespace(DataFrame=lambda rows, columns: made.append((rows, columns)) or "a frame")
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert runs.final() == "a frame"
    [(rows, columns)] = made
    assert columns == [*WHO, "measure", "value"]
    assert all([*row] == columns for row in rows)


def test_real_pandas_takes_the_rows(runs):
    pandas = pytest.importorskip("pandas")
    frame = runs.final()
    assert isinstance(frame, pandas.DataFrame)
    wide = frame.pivot_table(index=["variant", "seed"], columns="measure", values="value")
    assert wide.loc[("krum", 1), "ndcg@10"] == runs[0].final_value("ndcg@10")

"""Tuning."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from fedrank.experiments.report.run_output import about_tuning
from fedrank.experiments.report.terminal import show
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.tune import tune, tuning_of
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_experiment

SPEC = {
    "title": "a test",
    "rounds": 12,
    "evaluate_every": 4,
    "data": {"name": "synthetic-mq2007"},
    "clients": {"count": 2, "interactions": 3},
    "learner": {"name": "pdgd"},
}


def test_the_best_on_validation_is_chosen_for_every_variant(tmp_path):
    asked = read_tables(SPEC | {"variants": {"plain": {}, "batch": {"learner.batch": True}}, "seeds": [1, 2]})
    results, tried, path = tune(asked, "test", {"learner.rate": [1e-6, 0.3]}, tmp_path)
    assert len(results.finished) == 2 * 2 * 2
    assert [(row.variant, row.settings["learner.rate"], row.repeats) for row in tried] == [
        ("plain", 1e-6, 2),
        ("plain", 0.3, 2),
        ("batch", 1e-6, 2),
        ("batch", 0.3, 2),
    ]
    runs = load_runs(tmp_path)
    for row in tried:
        name = f"{row.variant},learner.rate={row.settings['learner.rate']}"
        finals = [run.final_value("ndcg@10") for run in runs if run.variant == name]
        assert row.quality == pytest.approx(np.mean(finals))
    for variant in ("plain", "batch"):
        qualities = {row.settings["learner.rate"]: row.quality for row in tried if row.variant == variant}
        assert next(row for row in tried if row.variant == variant and row.chosen).settings["learner.rate"] == max(
            qualities, key=qualities.get
        )
    chosen = {row.variant: row.settings["learner.rate"] for row in tried if row.chosen}
    ready = {variant.name: variant.experiment for variant in read_experiment(path).variants}
    assert {name: one.learner.rate for name, one in ready.items()} == chosen
    assert ready["batch"].learner.batch is True
    assert all(one.data.evaluate_on == "test" for one in ready.values())
    again, _, _ = tune(asked, "test", {"learner.rate": [1e-6, 0.3]}, tmp_path)
    assert len(again.skipped) == 8


def test_validation_and_test_queries_differ(tmp_path):
    asked = read_tables(SPEC)
    tune(asked, "test", {"learner.rate": [0.1]}, tmp_path)
    [run] = load_runs(tmp_path)
    from fedrank.data.catalog import load

    ids, _ = run.queries
    assert ids.tolist() == load("synthetic-mq2007").validation.query_ids.tolist()


def test_a_spec_without_variants_gets_one_setting(tmp_path):
    _, _, path = tune(read_tables(SPEC), "test", {"learner.rate": [0.1, 0.2], "learner.batch": [True]}, tmp_path)
    [variant] = read_experiment(path).variants
    assert variant.experiment.learner.batch is True
    assert variant.experiment.learner.rate in (0.1, 0.2)


def test_what_cannot_be_tuned_is_refused():
    asked = read_tables(SPEC | {"vary": {"learner.rate": [0.1, 0.2]}})
    with pytest.raises(ValueError, match=r"learner\.rate is varied by the spec already"):
        tuning_of(asked, {"learner.rate": [0.3]})
    with pytest.raises(ValueError, match='no such setting of pdgd; did you mean "rate"'):
        tuning_of(read_tables(SPEC), {"learner.rat": [0.3]})


def test_names_that_no_folder_can_have_keep_their_settings(tmp_path):
    asked = read_tables(SPEC | {"variants": {"#1": {"learner.batch": True}, "plain": {}}})
    _, tried, path = tune(asked, "test", {"learner.rate": [0.1]}, tmp_path)
    ready = {variant.name: variant.experiment for variant in read_experiment(path).variants}
    assert sorted(one.learner.batch for one in ready.values()) == [False, True]
    assert len(tried) == 2


def test_a_setting_that_fails_is_never_chosen(tmp_path):
    results, tried, _ = tune(read_tables(SPEC), "test", {"learner.rate": [1e300, 0.1]}, tmp_path)
    assert len(results.failed) == 1
    assert [(row.settings["learner.rate"], row.chosen) for row in tried] == [(1e300, False), (0.1, True)]
    with pytest.raises(ValueError, match="no tried setting of only finished: the update is not finite; reduce"):
        tune(read_tables(SPEC), "other", {"learner.rate": [1e300]}, tmp_path)


def test_repeats_of_an_earlier_tuning_do_not_count(tmp_path):
    tune(read_tables(SPEC | {"seeds": [1, 2, 3]}), "test", {"learner.rate": [0.1]}, tmp_path)
    _, tried, _ = tune(read_tables(SPEC | {"seeds": [2]}), "test", {"learner.rate": [0.1, 0.2]}, tmp_path)
    assert [row.repeats for row in tried] == [1, 1]


def test_a_choice_at_the_end_of_the_grid_is_told_and_spread_is_shown(tmp_path):
    grid = read_tables(SPEC | {"seeds": [1, 2]})
    _, tried, _ = tune(grid, "test", {"learner.rate": [1e-6, 0.1], "learner.batch": [False]}, tmp_path)
    [chosen] = [row for row in tried if row.chosen]
    end = "largest value that was tried, and a larger" if chosen.settings["learner.rate"] == 0.1 else "smallest"
    assert len(chosen.edges) == 1  # one value, or true and false, have no end
    assert end in chosen.edges[0]
    finals = [run.final_value("ndcg@10") for run in load_runs(tmp_path) if run.settings["learner.rate"] == 0.1]
    [row] = [row for row in tried if row.settings["learner.rate"] == 0.1]
    assert row.spread == pytest.approx(np.std(finals, ddof=1))
    to = Console(file=io.StringIO(), width=120)
    show(about_tuning(tried, "ndcg@10"), to)
    assert f"{row.quality:.4f} ± {row.spread:.4f}" in to.file.getvalue()
    assert chosen.edges[0] in " ".join(to.file.getvalue().split())
    _, tried, _ = tune(read_tables(SPEC), "one", {"learner.rate": [0.1]}, tmp_path)
    assert tried[0].edges == ()
    assert np.isnan(tried[0].spread)

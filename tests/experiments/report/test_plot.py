"""Figures for notebooks and papers: they show the numbers of the runs, and nothing is drawn of what is not there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedrank as fr
from fedrank.experiments.report.figures import as_svg
from tests.experiments.report.made_up_runs import NAMES, write_run


@pytest.fixture
def runs(tmp_path):
    for variant, level in (("krum", 0.40), ("mean", 0.45)):
        for seed in (1, 2, 3):
            write_run(tmp_path, variant=variant, seed=seed, level=level, nothing=0.3)
    return fr.load_runs(tmp_path)


def lines(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), float) for line in figure.axes[0].get_lines()]


def test_curves_are_means_over_repeats(runs):
    figure = fr.plot.curves(runs)
    assert isinstance(figure, Figure)
    for variant in ("krum", "mean"):
        mean = np.mean([run.rounds["ndcg@10"][1::2] for run in runs.filter(variant=variant)], axis=0)
        assert any(len(line) == len(mean) and np.allclose(line, mean) for line in lines(figure)), variant
    assert figure.axes[0].get_ylabel() == "ndcg@10"
    assert fr.plot.curves(runs, "online").axes[0].get_ylabel() != "ndcg@10"


def test_a_single_run_can_be_drawn(runs):
    [line] = [line for line in lines(fr.plot.curves(runs[0], "mrr@10")) if len(line) > 2]
    assert np.allclose(line, runs[0].rounds["mrr@10"][1::2])


def test_final_values_are_points_and_means(runs):
    axis = fr.plot.final(runs, "mrr@10").axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["krum", "mean"]
    drawn = [sorted(np.asarray(line.get_xdata(), float)) for line in axis.get_lines()]
    for variant in ("krum", "mean"):
        values = sorted(run.final_value("mrr@10") for run in runs.filter(variant=variant))
        assert any(np.array_equal(line, values) for line in drawn)
        assert any(len(line) == 1 and np.isclose(line[0], np.mean(values)) for line in drawn)


def test_a_dollar_sign_in_a_name_begins_no_formula(tmp_path):
    write_run(tmp_path, variant="$x^2$")
    axis = fr.plot.final(fr.load_runs(tmp_path)).axes[0]
    assert [(text.get_text(), text.get_parse_math()) for text in axis.get_yticklabels()] == [("$x^2$", False)]


def test_weights_of_runs_and_of_a_model(runs):
    model = fr.load_model(runs[0].path)
    named = replace(model, feature_names=tuple(NAMES))
    bars = [bar.get_width() for bar in fr.plot.weights(named, top=3).axes[0].patches]
    assert np.allclose(bars, sorted(model.weights, key=abs, reverse=True)[:3])
    assert (
        fr.plot.weights(named, top=3).axes[0].get_yticklabels()[0].get_text() == NAMES[np.abs(model.weights).argmax()]
    )
    assert len(fr.plot.weights(runs).axes) == 2
    with pytest.raises(ValueError, match="does not have one weight per feature"):
        fr.plot.weights(fr.Model(fr.rankers.Mlp(hidden=2), np.zeros(10), 3))


def test_clients_show_what_they_hold():
    fold = fr.load("synthetic-mq2007")
    clients = fr.make_clients(fold.train, 4, partition=fr.partitions.Own())
    above, below = fr.plot.clients(clients).axes
    assert [bar.get_height() for bar in above.patches] == np.diff(clients.pools).tolist()
    heights = np.array([bar.get_height() for bar in below.patches]).reshape(-1, 4)  # [grades, clients]
    assert np.allclose(heights.sum(axis=0), 1)
    client = clients.data.select(clients.queries[: clients.pools[1]])
    assert np.isclose(heights[0, 0], np.mean(client.grades == 0))


def test_what_cannot_be_drawn_is_said(runs, tmp_path):
    with pytest.raises(ValueError, match=r"no column 'ndgc@10'; did you mean \"ndcg@10\""):
        fr.plot.curves(runs, "ndgc@10")
    write_run(tmp_path, experiment="another", queries=17)
    with pytest.raises(ValueError, match=r"same queries \(another; robust\).*runs.filter\(experiment='another'\)"):
        fr.plot.curves(fr.load_runs(tmp_path))
    with pytest.raises(ValueError, match="no runs to report on"):
        fr.plot.curves(runs.filter(variant="nobody"))
    with pytest.raises(TypeError, match=r"'runs/robust' must be runs \(got str\); pass what fedrank.load_runs"):
        fr.plot.curves("runs/robust")


def test_experiments_on_the_same_queries_share_a_picture(runs, tmp_path):
    for seed in (1, 2, 3):
        write_run(tmp_path, experiment="another", variant="median", seed=seed, nothing=0.3)
    labels = [text.get_text() for text in fr.plot.final(fr.load_runs(tmp_path)).axes[0].get_yticklabels()]
    assert len(labels) == 3
    assert any("median" in label for label in labels)


@pytest.mark.long
def test_a_notebook_and_a_paper_get_the_same_figure(runs, tmp_path):
    figure = fr.plot.curves(runs)
    assert figure._repr_png_().startswith(b"\x89PNG")
    figure.savefig(tmp_path / "curves.pdf")
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert as_svg(figure).startswith("<svg")


@pytest.mark.process
def test_matplotlib_is_imported_when_something_is_drawn():
    code = "import sys; import fedrank as fr; fr.plot.curves; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_prompt_completes_pictures_alone():
    assert dir(fr.plot) == ["clients", "curves", "final", "weights"]


def test_what_is_advised_where_experiments_do_not_belong_together_can_be_drawn(tmp_path):
    for name, queries in (("a", 30), ("b", 30), ("c", 20)):
        write_run(tmp_path, name, queries=queries)
    runs = fr.load_runs(tmp_path)
    with pytest.raises(ValueError, match="not tested on the same queries") as told:
        fr.plot.curves(runs)
    assert "runs.filter(experiment=['a', 'b'])" in str(told.value)
    assert isinstance(fr.plot.curves(runs.filter(experiment=["a", "b"])), Figure)

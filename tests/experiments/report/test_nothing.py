"""Reports compare with what users have without learning, and say aloud where a model is worse."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedrank.cli import main
from fedrank.experiments.report.analysis import Analysis, analyse, worse_than_nothing
from fedrank.experiments.report.compose import brief, whole
from fedrank.experiments.report.tables import final_table, headline, nothing_table
from fedrank.experiments.report.terminal import show
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import read_tables
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.ranking.stored_estimate import store_estimate
from tests.experiments.report.made_up_runs import write_experiment, write_grid, write_run

CLAIM = """
[[claims]]
says   = "Krum is better than doing nothing"
higher = "aggregator.name=krum"
lower  = "nothing"
"""


def findings(folder: Path, **more: object) -> Analysis:
    [found] = analyse(load_runs(folder), **more)  # type: ignore[arg-type]
    return found


def said(folder: Path) -> str:
    """What a terminal shows after a run."""
    console = Console(file=io.StringIO(), width=200)
    show(brief(load_runs(folder)), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Mean reaches .50 and krum .40, where users have .45 without learning."""
    return write_grid(tmp_path, {"aggregator.name": ["mean", "krum"]}, [0.5, 0.4], nothing=0.45, tables=CLAIM)


def test_the_table_has_a_row_for_doing_nothing(two: Path) -> None:
    found = findings(two)
    *learned, last = final_table(found).cells
    assert len(learned) == 2
    assert last[0].text == "do nothing"
    assert last[1].text == "6"
    hardness = [findings(two).nothing[0].values.summary("ndcg@10").mean]
    assert last[2].text.startswith(f"{hardness[0]:.4f}")
    assert last[-1].text == "-"  # nobody was shown a list of it while it learned: it does not
    assert "BM25 of whole document" in " ".join(final_table(found).notes)
    assert "; doing nothing (BM25 of whole document) has 0." in headline(found)


def test_a_model_below_it_is_named_at_the_top_and_on_the_terminal(two: Path) -> None:
    text = said(two)
    words = " ".join(text.split())
    assert "Worse than doing nothing: the ndcg@10 of BM25 of whole document is significantly higher than" in words
    assert "than that of krum by 0.0" in words
    assert "mean by" not in text
    first = whole(findings(two)).parts[1]
    assert getattr(first, "tone", "") == "warn"
    assert first.text.startswith("Worse than doing nothing")  # type: ignore[union-attr]
    verdicts = {row[0].text: row[-1].text for row in nothing_table(findings(two), "ndcg@10").cells}
    assert verdicts == {"mean (baseline)": "better", "krum": "worse"}


def test_one_repeat_is_enough_for_the_warning(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    write_run(tmp_path, level=0.3, nothing=0.45)
    assert "Worse than doing nothing" in said(tmp_path)


def test_replay_of_a_log_is_not_called_worse_than_doing_nothing(tmp_path: Path) -> None:
    """Logged clicks favour the logged order, whatever users would click."""
    write_experiment(tmp_path)
    folder = write_run(tmp_path, level=0.3, nothing=0.45, given="logged order")
    text = " ".join(said(tmp_path).split())
    assert "By replay, the logged order has a significantly higher ndcg@10 than only by 0.1" in text
    assert "run fedrank model estimate" in text
    assert "Worse than" not in text
    [row] = nothing_table(findings(tmp_path), "ndcg@10").cells
    assert (row[-1].text, row[-1].tone) == ("lower by replay", "quiet")
    # The estimate comes first where one exists.
    save_model(Model(Linear(), np.ones(3), 3), folder / "model.json")
    store_estimate(folder, "log", "no document changed its position")
    text = " ".join(said(tmp_path).split())
    first = "Estimated clicks, only, fold 1, seed 1: the clicks cannot be estimated: no document changed its position."
    assert 0 <= text.index(first) < text.index("All other values are replays") < text.index("do nothing")
    assert "run fedrank model estimate" not in text
    assert whole(findings(tmp_path)).parts[0].text == first  # type: ignore[union-attr]
    (folder / "estimate.json").write_text("{}")
    assert "is not a valid estimate" in said(tmp_path)


def test_variants_that_are_judged_by_replay_are_not_called_worse_than_each_other(tmp_path: Path) -> None:
    vary = {"aggregator.name": ["mean", "krum"]}
    found = findings(write_grid(tmp_path, vary, [0.5, 0.4], nothing=0.45, given="logged order"))
    assert headline(found).endswith(" Compared with mean, krum is significantly lower by replay.")


def test_a_model_above_it_has_no_warning(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    write_run(tmp_path, level=0.6, nothing=0.45)
    assert "Worse than" not in said(tmp_path)
    assert "do nothing" in said(tmp_path)


def test_repeats_need_not_share_their_queries(tmp_path: Path) -> None:
    """Silos of another seed are tested on other queries: they are random splits, of which two say nothing."""
    write_experiment(tmp_path)
    for seed, shift in ((1, 0), (2, 10), (3, 20)):
        folder = write_run(tmp_path, seed=seed, level=0.3, nothing=0.45)
        for name in ("queries.csv", "nothing.csv"):
            head, *rows = (folder / name).read_text().splitlines()
            moved = [f"{int(row.split(',')[0]) + shift},{row.partition(',')[2]}" for row in rows]
            (folder / name).write_text("\n".join([head, *moved]) + "\n")
    found = findings(tmp_path).nothing[0].comparisons["ndcg@10"]["only"]
    assert (found.contrast.unit, found.contrast.counted) == ("splits", 3)
    assert found.verdict == "worse"
    assert "Worse than doing nothing" in said(tmp_path)


def test_many_models_below_it_are_counted(tmp_path: Path) -> None:
    write_grid(tmp_path, {"learner.rate": [1, 2, 3, 4, 5, 6, 7]}, [0.3], nothing=0.45)
    assert "and 3 more" in said(tmp_path)


@pytest.mark.long
def test_it_is_a_level_line_in_every_curve(two: Path) -> None:
    page = write_report(load_runs(two), two / "report.html").read_text()
    assert page.count("do nothing: BM25 of whole") >= 2  # one for each measure
    assert "Dotted lines: doing nothing." in page
    assert "Against doing nothing" in page
    markdown = write_report(load_runs(two), two / "report.md").read_text()
    assert "| do nothing |" in markdown


@pytest.mark.long
def test_claims_and_the_baseline_can_speak_of_it(two: Path) -> None:
    [claim] = findings(two).claims
    assert claim.verdict == "does not hold"
    assert claim.contrast.difference == pytest.approx(-0.05, abs=0.03)
    found = findings(two, baseline="nothing")
    assert found.baseline is found.nothing[0].values
    assert set(found.comparisons["ndcg@10"]) == {variant.name for variant in found.variants}
    assert final_table(found).cells[-1][0].text == "do nothing (baseline)"
    assert write_report(load_runs(two), two / "report.html", "nothing").exists()


def test_the_numbers_have_it_too(two: Path) -> None:
    rows = list(csv.DictReader(write_report(load_runs(two), two / "numbers.csv").read_text().splitlines()))
    ours = [row for row in rows if row["variant"] == "nothing" and row["column"] == "ndcg@10"]
    assert len(ours) == 1
    assert float(ours[0]["mean"]) == pytest.approx(findings(two).nothing[0].values.summary("ndcg@10").mean)


def test_variants_with_other_data_have_a_row_each(tmp_path: Path) -> None:
    write_grid(tmp_path, {"data.name": ["mq2008"]}, [0.5], nothing=0.45)
    for seed in (1, 2, 3):
        write_run(tmp_path, variant="data.name=x", seed=seed, settings={"data.name": "x"}, nothing=0.6, level=0.5)
    found = findings(tmp_path)
    assert [each.values.label for each in found.nothing] == ["do nothing (as for mq2008)", "do nothing (as for x)"]
    text = " ".join(said(tmp_path).split())
    assert "higher than that of x by" in text
    assert "that of mq2008 by" not in text


def test_older_folders_are_reported_as_before(tmp_path: Path) -> None:
    write_grid(tmp_path, {"aggregator.name": ["mean", "krum"]}, [0.5, 0.4])
    found = findings(tmp_path)
    assert found.nothing == ()
    assert len(final_table(found).cells) == 2
    assert "nothing" not in said(tmp_path)
    assert "no variant 'nothing'" not in " ".join(findings(tmp_path, baseline="nothing").notes)
    assert "was not measured by these runs" in " ".join(findings(tmp_path, baseline="nothing").notes)


def test_the_line_lies_within_the_picture(two: Path) -> None:
    from fedrank.experiments.report.figures import _heights

    low, high = _heights(findings(two), "ndcg@10")
    level = findings(two).nothing[0].values.summary("ndcg@10").mean
    assert low < level < high
    assert np.isfinite([low, high]).all()


@pytest.mark.long
def test_a_column_that_doing_nothing_does_not_have_is_drawn_without_a_level(tmp_path: Path) -> None:
    """Rewards of evolution strategies: a page with their curves can be written."""
    tables = {
        "rounds": 4,
        "evaluate_every": 2,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 3, "interactions": 2},
        "learner": {"name": "evolution"},
        "server": {"name": "adam"},
    }
    assert not run_experiment(read_tables(tables), "rewards", tmp_path).failed
    page = write_report(load_runs(tmp_path / "rewards"), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "do nothing" in page
    assert "reward" in page


def exported(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> bool:
    """Whether `fedrank model export` writes the model of a run."""
    words = ["fedrank", "model", "export", str(folder), "--to", "solr", "--out", str(folder / "solr.json"), *more]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        main()
    return (folder / "solr.json").exists()


def test_a_model_that_its_run_calls_worse_is_exported_only_anyway(
    two: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = (next(run.path for run in load_runs(two) if name in run.variant) for name in ("mean", "krum"))
    for folder in (good, bad):
        save_model(Model(Linear(), np.ones(2), 2), folder / "model.json")
    assert worse_than_nothing(bad).startswith("Worse than doing nothing: the ndcg@10")
    assert worse_than_nothing(good) == worse_than_nothing(two) == ""
    assert exported(good, monkeypatch)
    assert not exported(bad, monkeypatch)
    assert "model.json: worse than doing nothing: the ndcg@10" in capsys.readouterr().err
    assert exported(bad, monkeypatch, "--anyway")


def test_a_model_that_its_estimate_calls_worse_is_exported_only_anyway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(Model(Linear(), np.ones(2), 2), tmp_path / "model.json")
    path = store_estimate(tmp_path, "log", "too few searches")
    assert exported(tmp_path, monkeypatch)
    assert "is inconclusive: the clicks cannot be estimated: too few searches" in capsys.readouterr().err
    (tmp_path / "solr.json").unlink()
    path.write_text(path.read_text().replace('"inconclusive"', '"worse"'))
    assert not exported(tmp_path, monkeypatch)
    assert "--anyway" in capsys.readouterr().err
    assert exported(tmp_path, monkeypatch, "--anyway")

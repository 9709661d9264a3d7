"""Several experiments in one report: one table, one set of curves, one test over what they share."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.experiments.report.analysis import analyse, join
from fedrank.experiments.report.by_query import by_query, queries_section, tally
from fedrank.experiments.report.formatting import number, signed
from fedrank.experiments.report.sections import Interactive
from fedrank.experiments.report.tables import final_table, settings_rows
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.runs import Runs, load_runs
from tests.experiments.report.made_up_runs import write_experiment, write_run


def two(out: Path, **second: object) -> Path:
    for name, variants, seeds in (
        ("one", {"mean": 0.45, "krum": 0.4}, (1, 2, 3)),
        ("two", {"median": 0.44}, (2, 3, 4)),
    ):
        asked = ", ".join(f'{variant} = {{ "aggregator.name" = "{variant}" }}' for variant in variants)
        write_experiment(out, f"variants = {{ {asked} }}\n", experiment=name)
        for variant, level in variants.items():
            for seed in seeds:
                write_run(out, name, variant, seed=seed, level=level, **(second if name == "two" else {}))  # type: ignore[arg-type]
    return out


def test_one_table_with_all_variants_and_tests_over_shared_repeats(tmp_path: Path) -> None:
    runs = load_runs(two(tmp_path))
    (joined,) = join(analyse(runs))
    assert [variant.name for variant in joined.variants] == ["one/mean", "one/krum", "two/median"]
    assert [variant.label for variant in joined.variants] == ["one: mean", "one: krum", "two: median"]
    table = final_table(joined)
    assert list(table.header[:3]) == ["experiment", "variant", "repeats"]
    assert [[str(cell) for cell in row[:2]] for row in table.cells] == [
        ["one", "mean (baseline)"],
        ["one", "krum"],
        ["two", "median"],
    ]
    comparison = joined.comparisons["ndcg@10"]["two/median"]
    ours = {run.seed: run.final_value("ndcg@10") for run in runs if run.variant == "median"}
    theirs = {run.seed: run.final_value("ndcg@10") for run in runs if run.variant == "mean"}
    expected = np.mean([ours[2] - theirs[2], ours[3] - theirs[3]])
    assert comparison.contrast.repeats == 2
    assert comparison.contrast.difference == pytest.approx(expected)
    assert (comparison.comparisons, comparison.contrast.unit) == (2, "queries")


@pytest.mark.long
def test_the_report_is_one(tmp_path: Path) -> None:
    text = write_report(load_runs(two(tmp_path / "runs")), tmp_path / "report.html").read_text()
    assert text.count("<article") == 1
    assert "one and two, compared" in text
    assert "The experiment one in full" in text
    assert "The experiment two in full" in text
    said = write_report(load_runs(tmp_path / "runs"), tmp_path / "report.md").read_text()
    assert "| two | median | 3 of 6 |" in said
    numbers = write_report(load_runs(tmp_path / "runs"), tmp_path / "all.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(numbers)))
    median = next(row for row in rows if row["variant"] == "median" and row["column"] == "ndcg@10")
    assert (median["experiment"], median["baseline"], median["pairs"]) == ("two", "one/mean", "2")


@pytest.mark.parametrize("name", ["two/median", "median", "two: median"])
def test_the_baseline_may_be_of_any_experiment(tmp_path: Path, name: str) -> None:
    found = analyse(load_runs(two(tmp_path)))
    (joined,) = join(found, name)
    assert joined.baseline is not None
    assert (joined.baseline.name, joined.baseline_reason) == ("two/median", "as requested")


def test_a_baseline_that_nobody_has_is_refused(tmp_path: Path) -> None:
    runs = load_runs(two(tmp_path))
    write_report(runs, tmp_path / "report.md", baseline="two/median")
    with pytest.raises(ValueError, match="no variant 'two/medium'"):
        write_report(runs, tmp_path / "report.md", baseline="two/medium")


def same_name(out: Path) -> Runs:
    """Two experiments of one name, in different folders."""
    for place, level in (("here", 0.4), ("there", 0.45)):
        for variant, more in (("mean", 0.0), ("median", 0.02)):
            for seed in (1, 2, 3):
                write_run(out / place, "mine", variant, seed=seed, level=level + more)
    return load_runs([out / "here", out / "there"])


def test_a_baseline_among_experiments_of_one_name(tmp_path: Path) -> None:
    runs = same_name(tmp_path)
    for given in ("there/mine/median", f"{tmp_path}/there/mine/median", f"{tmp_path}/./there/mine/median"):
        (joined,) = join(analyse(runs, given), given)
        assert joined.baseline is not None
        assert (joined.baseline.name, joined.baseline_reason) == ("there/mine/median", "as requested"), given
    with pytest.raises(
        ValueError, match=r"2 experiments have a variant 'mine/median'; .*/here/mine/median or .*/there/"
    ):
        analyse(runs, "mine/median")
    with pytest.raises(ValueError, match="no variant 'elsewhere/mine/median'"):
        analyse(runs, "elsewhere/mine/median")


@pytest.mark.parametrize("name", ["mine/median", "here/mine/median"])
def test_a_baseline_of_one_experiment_may_be_named_with_its_folder(tmp_path: Path, name: str) -> None:
    same_name(tmp_path)
    (found,) = analyse(load_runs(tmp_path / "here"), name)
    assert found.baseline is not None
    assert (found.baseline.name, found.baseline_reason) == ("median", "as requested")


def test_sums_over_other_numbers_of_rounds_are_not_compared(tmp_path: Path) -> None:
    for name, rounds in (("short", 20), ("long", 40)):
        for seed in (1, 2, 3):
            write_run(tmp_path, name, seed=seed, rounds=rounds, round=rounds)
    (joined,) = join(analyse(load_runs(tmp_path)))
    assert "online" in joined.columns
    assert "online_sum" not in joined.columns
    assert any("differ in their rounds" in note for note in joined.notes)


def test_one_repeat_is_not_said_to_be_tested(tmp_path: Path) -> None:
    write_run(tmp_path, "one", "mean")
    write_run(tmp_path, "one", "median")
    (found,) = analyse(load_runs(tmp_path))
    assert not any("▲" in note for note in final_table(found).notes)
    (why,) = [note for note in found.notes if "Not tested: ndcg@10" in note]
    assert "each variant was trained once, so the method cannot be separated from random variation" in why


@pytest.mark.parametrize(
    "other", [{"queries": 31}, {"measures": ("map",)}, {"data": {"name": "mq2007", "test_queries": 30}}]
)
def test_what_was_tested_on_something_else_stays_apart(tmp_path: Path, other: dict[str, object]) -> None:
    assert len(join(analyse(load_runs(two(tmp_path, **other))))) == 2


def test_other_seeds_stand_in_one_table_without_a_test(tmp_path: Path) -> None:
    for name, seeds in (("one", (1, 2, 3)), ("two", (4, 5, 6))):
        for seed in seeds:
            write_run(tmp_path, name, seed=seed)
    (joined,) = join(analyse(load_runs(tmp_path)))
    assert np.isnan(joined.comparisons["ndcg@10"]["two/only"].p)
    assert any("against the baseline. Reason: no repeat of both variants is finished" in note for note in joined.notes)


@pytest.mark.long
def test_the_command_writes_one_report_and_its_figures(tmp_path: Path) -> None:
    two(tmp_path / "runs")
    folders = [str(tmp_path / "runs" / name) for name in ("one", "two")]
    files = ["--out", str(tmp_path / "both.html"), "--figures", str(tmp_path / "paper")]
    done = CliRunner().invoke(app, ["report", *folders, *files, "--baseline", "two/median"])
    assert done.exit_code == 0, done.output
    assert "two: median (as requested)" in " ".join((tmp_path / "both.html").read_text().split())
    assert (tmp_path / "paper" / "final.tex").exists()


def test_a_measure_that_only_one_has_is_left_out_and_named(tmp_path: Path) -> None:
    (joined,) = join(analyse(load_runs(two(tmp_path, measures=("ndcg@10", "map")))))
    assert joined.measures == ("ndcg@10",)
    assert any("left out: map, mrr@10" in note for note in joined.notes)


def test_experiments_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for place, level in (("monday", 0.4), ("friday", 0.5)):
        for seed in (1, 2, 3):
            write_run(tmp_path / place, "same", seed=seed, level=level)
    (joined,) = join(analyse(load_runs(tmp_path)))
    assert [variant.label for variant in joined.variants] == ["friday/same", "monday/same"]


def test_unfinished_runs_keep_the_name_of_their_experiment(tmp_path: Path) -> None:
    two(tmp_path)
    write_run(tmp_path, "two", "median", seed=9, status="failed", error={"message": "no", "round": 3, "client": None})
    text = write_report(load_runs(tmp_path), tmp_path / "r.md").read_text()
    assert "| two/median | fold 1, seed 9 | failed |" in text
    rows = list(csv.DictReader(io.StringIO(write_report(load_runs(tmp_path), tmp_path / "r.csv").read_text())))
    assert {row["unfinished_runs"] for row in rows if row["variant"] == "median"} == {"1"}


def test_queries_by_hand(tmp_path: Path) -> None:
    for variant, values in (("a", (0.5, 0.25, 0.1)), ("b", (0.1, 0.3, 0.1))):
        for seed in (1, 2):
            folder = write_run(tmp_path, variant=variant, seed=seed, measures=("map",), queries=3)
            lines = [f"{1000 + i},{value + (seed - 1.5) * 0.02}" for i, value in enumerate(values)]
            (folder / "queries.csv").write_text("query,map\n" + "\n".join(lines) + "\n")
    (findings,) = analyse(load_runs(tmp_path))
    table = by_query(findings.variants, "map")
    assert table.names == ("1000", "1001", "1002")
    assert table.values.tolist() == [[0.5, 0.25, 0.1], [0.1, 0.3, 0.1]]
    found = tally(*table.values)
    assert (found.won, found.lost, found.equal) == (1, 1, 1)
    (section,) = queries_section(findings)
    (shown,) = [part for part in section.parts if isinstance(part, Interactive)]
    counted, named = shown.still
    assert [[str(cell) for cell in row] for row in counted.cells] == [["b", "1", "1", "1"]]
    assert [[str(cell) for cell in row] for row in named.cells] == [
        ["1001", "0.3000", "0.2500", "+0.0500"],
        ["1000", "0.1000", "0.5000", "-0.4000"],
    ]
    data = shown.data()
    assert data["values"] == [[[5000, 2500, 1000], [1000, 3000, 1000]]]


def test_one_variant_has_nobody_to_be_compared_with(tmp_path: Path) -> None:
    write_run(tmp_path)
    (findings,) = analyse(load_runs(tmp_path))
    assert queries_section(findings) == []


def test_zero_has_no_sign() -> None:
    assert [signed("map", value) for value in (-0.00004, 0.00004, 0.0, -0.0, -0.00006)] == [
        *["0.0000"] * 4,
        "-0.0001",
    ]
    assert number("map", -0.00001) == "0.0000"
    assert number("online_sum", -0.001) == "0.00"
    assert signed("map", float("nan")) == "-"


def test_settings_that_have_their_default_are_not_listed(tmp_path: Path) -> None:
    two(tmp_path)
    rows = dict(settings_rows(analyse(load_runs(tmp_path))[0]))
    assert rows["clients"] == "count = 10, click_model = informational"  # and not 5 interactions, which is the default
    assert rows["learner"] == "pdgd"
    assert "server" not in rows
    assert "rounds" in rows


@pytest.mark.long
def test_figures_and_tables_for_a_paper(tmp_path: Path) -> None:
    runs = load_runs(two(tmp_path / "runs"))
    write_report(runs, tmp_path / "r.md", figures=tmp_path / "paper")
    names = {file.name for file in (tmp_path / "paper").iterdir()}
    assert {
        "curves-ndcg-10.svg",
        "curves-ndcg-10.pdf",
        "final.tex",
        "against-baseline-ndcg-10.tex",
        "cost.tex",
    } <= names
    assert (tmp_path / "paper" / "curves-ndcg-10.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "paper" / "curves-ndcg-10.svg").read_text()
    text = (tmp_path / "paper" / "final.tex").read_text()
    assert r"\begin{tabular}{llrrrrr}" in text
    assert r" $\pm$ " in text
    assert all(line.endswith(r"\\") for line in text.splitlines() if " & " in line)
    again = tmp_path / "again"
    write_report(runs, tmp_path / "r.md", figures=again)
    assert all((again / name).read_bytes() == (tmp_path / "paper" / name).read_bytes() for name in names)
    with pytest.raises(NotADirectoryError, match=r"r\.md is a file; --figures needs a folder"):
        write_report(runs, tmp_path / "r.md", figures=tmp_path / "r.md")

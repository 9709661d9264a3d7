from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedrank.experiments.report import figures
from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.compose import brief, conventions, draw_curves, whole
from fedrank.experiments.report.formatting import amount
from fedrank.experiments.report.run_values import running_mean
from fedrank.experiments.report.sections import Interactive, Paragraph
from fedrank.experiments.report.statistics import holm
from fedrank.experiments.report.tables import final_table
from fedrank.experiments.report.terminal import show
from fedrank.experiments.report.write import write_report
from fedrank.experiments.runner.runs import Runs, load_runs
from tests.experiments.report.made_up_runs import write_experiment, write_grid, write_run

PUBLISHED = """
[[published]]
measure = "ndcg@10"
value = 0.45
spread = 0.026
source = "a thesis"

[[published]]
measure = "online"
value = 787.09
variant = "krum"
source = "the same thesis"

[[published]]
measure = "ndcg@10"
value = 0.5
variant = "absent"
source = "nobody"
"""


class Outline(HTMLParser):
    """Which tags open, that each is closed, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [f"{tag} {v}" for k, v in attrs if k in ("src", "href", "xlink:href") and not v.startswith("#")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def two_variants(out: Path, **rest: object) -> Runs:
    return load_runs(
        write_grid(out, {"aggregator.name": ["mean", "krum"]}, [0.45, 0.4], tables=PUBLISHED, **rest)  # type: ignore[arg-type]
    )


def test_the_page_stands_alone_and_holds_every_part(tmp_path: Path) -> None:
    file = write_report(two_variants(tmp_path / "runs"), tmp_path / "report.html")
    text = file.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert outline.fetched == []
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    allowed = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert re.findall(r"script-src ([^;\"]+)", text) == [f"'sha256-{one}'" for one in allowed]  # and no other
    assert len(scripts) == 1
    assert "url(http" not in text
    assert "@import" not in text
    parts = [
        "Final quality",
        "Other learning curves",
        "Against the baseline",
        "Published and measured",
        "Query by query",
    ]
    parts += ["Cost", "What the linear model learned", "Settings", "How it was measured", "Provenance"]
    assert re.findall(r"<h2>(.*?)</h2>", text) == parts
    assert outline.tags.count("svg") == 4  # two measures, online, weights
    assert "queries without a relevant document are skipped" in text
    assert "BM25 body" in text
    assert "Smoothed" not in text  # 40 rounds need no running mean
    assert list(tmp_path.glob(".report*")) == []


@pytest.mark.long
def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    runs = two_variants(tmp_path / "runs")
    first = write_report(runs, tmp_path / "a.html").read_bytes()
    assert write_report(runs, tmp_path / "b.html").read_bytes() == first


def test_the_report_opens_with_a_conclusion_and_the_main_chart(tmp_path: Path) -> None:
    (found,) = analyse(two_variants(tmp_path))
    opening = whole(found).parts
    conclusion, chart = opening[0], next(part for part in opening if not isinstance(part, Paragraph))
    best = max(found.variants, key=lambda variant: variant.summary("ndcg@10").mean)
    (other,) = [variant for variant in found.variants if variant is not found.baseline]
    verdict = found.comparisons["ndcg@10"][other.name].verdict
    assert verdict
    assert isinstance(conclusion, Paragraph)
    text = conclusion.text
    assert text.startswith(f"Highest ndcg@10: {best.label}, ")
    assert text.endswith(f" Compared with {found.baseline.label}, {other.label} is significantly {verdict}.")
    assert isinstance(chart, Interactive)
    assert chart.data()["title"] == "ndcg@10"


def test_comparisons_are_of_the_queries_of_shared_repeats(tmp_path: Path) -> None:
    runs = two_variants(tmp_path)
    (found,) = analyse(runs)
    assert found.baseline is not None
    assert found.baseline.label == "mean"
    assert found.best.label == "mean"
    ours = found.comparisons["ndcg@10"]["aggregator.name=krum"]
    repeats = [(fold, seed) for fold in (1, 2) for seed in (1, 2, 3)]
    by = {(run.settings["aggregator.name"], run.repeat): run for run in runs}
    krum = [by["krum", repeat].final_value("ndcg@10") for repeat in repeats]
    mean = [by["mean", repeat].final_value("ndcg@10") for repeat in repeats]
    assert ours.contrast.repeats == 6
    assert ours.contrast.difference == pytest.approx(np.mean(krum) - np.mean(mean))
    assert ours.verdict == "worse"
    assert (ours.contrast.unit, ours.contrast.counted) == (
        "queries",
        29,
    )  # both folds have the same ids; one is skipped
    online = found.comparisons["online"]["aggregator.name=krum"]
    assert not online.contrast.tested
    assert online.verdict == ""
    assert any(
        "Not tested: online nDCG@10, discounted online sum of krum against the baseline. Reason: values are known"
        in note
        for note in found.notes
    )


def test_p_is_corrected_for_the_number_of_comparisons(tmp_path: Path) -> None:
    write_grid(tmp_path, {"clients.count": [1, 2, 3]}, [0.45, 0.446, 0.447])
    (found,) = analyse(load_runs(tmp_path))
    for comparison in found.comparisons["mrr@10"].values():
        assert comparison.comparisons == 2
    raw = [comparison.contrast.p for comparison in found.comparisons["mrr@10"].values()]
    corrected = [comparison.p for comparison in found.comparisons["mrr@10"].values()]
    assert corrected == pytest.approx(holm(raw))
    expected = "2 comparisons in a column (Holm); ndcg@10 and mrr@10 are tested over queries."
    assert expected in " ".join(final_table(found).notes)
    for terminal in (False, True):
        console = Console(force_terminal=terminal, width=200, file=io.StringIO(), color_system="auto")
        show(brief(load_runs(tmp_path)), console)
        assert ("Bold: highest mean" in console.file.getvalue()) == (console.color_system is not None)


def test_training_queries_in_the_test_data_are_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path, "mine")
    [facts] = tmp_path.rglob("run.json")
    note = "1 of 2 test queries have the id of a training query; and so on"
    facts.write_text(facts.read_text("utf-8").replace('"notes": []', f'"notes": ["{note}"]'), encoding="utf-8")
    (found,) = analyse(load_runs(tmp_path))
    assert f"Warning: {note}." in found.notes


def test_only_shared_repeats_are_paired_and_that_is_said(tmp_path: Path) -> None:
    write_grid(tmp_path, {"clients.count": [1, 2]}, [0.45], folds=(1,), seeds=(1, 2, 3))
    write_run(tmp_path, variant="clients.count=2", settings={"clients.count": 2}, seed=4, level=0.9)
    (found,) = analyse(load_runs(tmp_path))
    comparison = found.comparisons["ndcg@10"]["clients.count=2"]
    assert comparison.contrast.repeats == 3
    assert abs(comparison.contrast.difference) < 0.1
    assert any("different numbers of finished repeats" in note for note in found.notes)


def test_published_values_and_their_verdicts(tmp_path: Path) -> None:
    (found,) = analyse(two_variants(tmp_path))
    quality, online = found.published
    assert quality.variant.label == "mean"
    assert quality.verdict == "within"
    assert abs(quality.z) < 2.2
    assert online.column == "online_sum"  # a mean nDCG cannot be 787
    assert online.verdict == "outside"
    assert online.z < -100
    assert any("no counterpart" in note and "absent" in note for note in found.notes)


def test_the_baseline_is_named_or_told(tmp_path: Path) -> None:
    vary = {"aggregator.name": ["mean", "krum", "median"]}
    write_grid(tmp_path, vary, [0.45], folds=(1,), seeds=(1, 2), top='baseline = "aggregator.name=krum"\n')
    runs = load_runs(tmp_path)
    (found,) = analyse(runs)
    assert found.baseline is not None
    assert found.baseline.label == "krum"
    assert [variant.label for variant in found.variants] == ["mean", "krum", "median"]  # as asked, not as sorted
    (chosen,) = analyse(runs, baseline="median")
    assert chosen.baseline is not None
    assert chosen.baseline.label == "median"
    with pytest.raises(ValueError, match="no variant 'kurm'"):
        analyse(runs, baseline="kurm")


def test_unfinished_runs_are_listed_and_not_counted(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    two_variants(out)
    error = {"message": "3 updates are not finite", "round": 12, "client": 4}
    settings = {"aggregator.name": "krum"}
    write_run(out, variant="aggregator.name=krum", seed=9, level=0.99, settings=settings, status="failed", error=error)
    for seed in (1, 2, 3):
        write_run(out, "other", seed=seed, status="failed", error=error | {"round": seed})
    runs = load_runs(out)
    text = write_report(runs, tmp_path / "report.html").read_text()
    assert "Unfinished runs" in text
    assert "3 updates are not finite (round 12, client 4)" in text
    assert "1 of 13 runs is not finished" in text
    assert "without a finished run are not in this report: other, 3 runs, first only fold 1 seed 1: " in text
    (found,) = analyse(runs)
    assert [len(variant.repeats) for variant in found.variants] == [6, 6]


def test_damage_found_late_does_not_stop_a_report(tmp_path: Path) -> None:
    two_variants(tmp_path)
    file = tmp_path / "robust/aggregator.name=krum/fold-1-seed-1/rounds.csv"
    file.write_text(file.read_text().replace("\n7,", "\n7,oops,"))
    (found,) = analyse(load_runs(tmp_path))
    assert [run.status for run in found.unfinished] == ["broken"]
    krum = next(row for row in final_table(found).cells if row[0].text == "krum")
    assert krum[1].text == "5 of 6"


def test_nothing_finished_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path, status="failed", error={"message": "boom", "round": None, "client": None})
    with pytest.raises(ValueError, match=r"none of 1 runs is finished.*boom"):
        write_report(load_runs(tmp_path), tmp_path / "report.html")
    with pytest.raises(ValueError, match="no runs"):
        write_report(Runs(), tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"use \.html, \.md or \.csv"):
        write_report(Runs(), tmp_path / "report.pdf")


@pytest.mark.parametrize("suffix", [".html", ".md"])
def test_text_from_files_stays_text(tmp_path: Path, suffix: str) -> None:
    bad = '<script>alert(1)</script> | $x_1$ & "q"'
    out = tmp_path / "runs"
    for variant in ("_a$b$", "<b>"):
        for seed in (1, 2, 3):
            write_run(out, variant=variant, seed=seed, title=bad, notes=[bad], conventions={"ndcg@10": bad})
    write_run(out, variant="<b>", seed=4, status="failed", error={"message": bad, "round": None, "client": None})
    text = write_report(load_runs(out), tmp_path / f"report{suffix}").read_text()
    assert "<script>alert" not in text
    assert len(re.findall(r"<script>", text)) == (suffix == ".html")  # ours
    assert "<b>" not in text
    assert "alert(1)" in text
    assert "_a$b$" in text


def test_every_convention_is_said_once_and_where_runs_differ(tmp_path: Path) -> None:
    gain, first, second = "gain 2^grade - 1", "MRR@10 of any relevant document", "of grade 2 alone"
    for seed, mrr in ((1, first), (2, first), (3, second)):
        write_run(tmp_path, seed=seed, conventions={"ndcg@10": gain, "mrr@10": mrr})
    [findings] = analyse(load_runs(tmp_path))
    [said] = conventions(findings).parts
    differ = " (Not all runs used this convention: their values are not comparable.)"
    assert said.points[:3] == (f"ndcg@10: {gain}", first + differ, f"mrr@10: {second}{differ}")
    assert len(set(said.points)) == len(said.points)


@pytest.mark.long
def test_one_variant_one_repeat(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", named=False, rounds=1, every=1)
    text = write_report(load_runs(tmp_path / "runs"), tmp_path / "report.html").read_text()
    assert "Against the baseline" not in text
    assert "No bands" in text
    assert "feature 1" in text
    assert not re.search(r"\bnan\b", text, flags=re.IGNORECASE)


def test_runs_without_queries_model_online_or_timing(tmp_path: Path) -> None:
    for variant in ("a", "b"):
        for seed in (1, 2, 3):
            folder = write_run(tmp_path / "runs", variant=variant, seed=seed, online=[float("nan")] * 40)
            for name in ("queries.csv", "model.json", "timing.csv", "spec.toml"):
                (folder / name).unlink()
            rounds = folder / "rounds.csv"
            rounds.write_text(rounds.read_text().replace("nan", ""))
    text = write_report(load_runs(tmp_path / "runs"), tmp_path / "report.html").read_text()
    assert "What the linear model learned" not in text
    assert "There is no experiment.toml" in text
    assert "The attackers of 6 runs are unknown" in text


@pytest.mark.long
def test_experiments_on_different_queries_have_a_section_each(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "first", title="The first question")
    write_run(tmp_path / "runs", "second", title="The second question", queries=20)
    text = write_report(load_runs(tmp_path / "runs"), tmp_path / "report.html").read_text()
    assert text.count("<article") == 2
    assert 'href="#experiment-2">The second question' in text
    assert "they are not compared" in text


def test_csv_holds_the_numbers(tmp_path: Path) -> None:
    runs = two_variants(tmp_path / "runs")
    file = write_report(runs, tmp_path / "report.csv")
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) == 2 * 4
    krum = next(row for row in rows if row["aggregator.name"] == "krum" and row["column"] == "ndcg@10")
    values = [run.final_value("ndcg@10") for run in runs.filter(**{"aggregator.name": "krum"})]
    assert float(krum["mean"]) == pytest.approx(np.mean(values))
    assert float(krum["sd"]) == pytest.approx(np.std(values, ddof=1))
    assert krum["repeats"] == "6"
    assert krum["baseline"] == "aggregator.name=mean"
    assert float(krum["p_holm"]) < 0.05
    assert (krum["unit"], krum["counted"], krum["comparisons"]) == ("queries", "29", "1")
    mean = next(row for row in rows if row["aggregator.name"] == "mean" and row["column"] == "ndcg@10")
    assert (mean["p"], mean["published"]) == ("", "0.45")
    assert float(mean["published_z"]) == pytest.approx(analyse(runs)[0].published[0].z, rel=1e-4)


def test_markdown_has_tables(tmp_path: Path) -> None:
    text = write_report(two_variants(tmp_path / "runs"), tmp_path / "report.md").read_text()
    assert "| aggregator.name | repeats | ndcg@10 | mrr@10 |" in text
    assert "| mean (baseline) | 6 | **0.4" in text
    assert "▼" in text


def test_the_terminal_shows_the_same_table(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=140)
    show(brief(two_variants(tmp_path)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mean (baseline)" in text
    assert "▼" in text
    show(brief(Runs()), console)
    assert "No finished run" in console.file.getvalue()  # type: ignore[attr-defined]


def test_many_variants_are_split_by_a_setting(tmp_path: Path) -> None:
    vary = {"aggregator.name": ["mean", "krum", "median"], "clients.malicious": [0, 1, 2, 3, 4]}
    write_grid(tmp_path, vary, [0.45], folds=(1,), seeds=(1,))
    (found,) = analyse(load_runs(tmp_path))
    panels = figures.split(found)
    assert [title for title, _ in panels] == ["aggregator = mean", "aggregator = krum", "aggregator = median"]
    assert [label for label, _ in panels[1][1]] == [f"clients.malicious = {i}" for i in range(5)]
    assert "aggregator = krum" in draw_curves(found, "ndcg@10")


def test_many_named_variants_are_split_in_order(tmp_path: Path) -> None:
    for i in range(20):
        write_run(tmp_path, variant=f"idea-{i}", queries=2)
    (found,) = analyse(load_runs(tmp_path))
    panels = figures.split(found)
    assert all(len(lines) <= figures.TOGETHER for _, lines in panels)
    assert [variant.name for _, lines in panels for _, variant in lines] == [f"idea-{i}" for i in range(20)]


def test_heaviest_features_by_hand() -> None:
    order, mean, sd = figures.heaviest(np.array([[1.0, -4.0, 0.0], [3.0, -4.0, 1.0]]), top=2)
    assert order.tolist() == [1, 0]
    assert mean.tolist() == [2.0, -4.0, 0.5]
    assert sd.tolist() == pytest.approx([2**0.5, 0.0, 0.5**0.5])


def test_running_mean_looks_back() -> None:
    assert running_mean(np.array([1.0, 2.0, 6.0, 10.0]), 3).tolist() == pytest.approx([1, 1.5, 3, 6])


def test_amounts_for_people() -> None:
    assert amount("bytes_up", 999) == "999 B"
    assert amount("bytes_up", 2_500_000) == "2.5 MB"
    assert amount("interactions", 20_000) == "20,000"
    assert amount("cpu_seconds", 61) == "1 min 01 s"


def test_different_test_queries_are_pointed_out(tmp_path: Path) -> None:
    write_experiment(tmp_path)
    for seed in (1, 2):
        write_run(tmp_path, variant="a", seed=seed, queries=10)
        write_run(tmp_path, variant="b", seed=seed, queries=12)
    (found,) = analyse(load_runs(tmp_path))
    assert any("different queries" in note for note in found.notes)
    assert np.isnan(found.comparisons["ndcg@10"]["b"].p)

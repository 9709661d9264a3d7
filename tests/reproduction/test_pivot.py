"""Large grids are laid out in two directions: what stands where, and when they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrank.experiments.report.analysis import Analysis, analyse
from fedrank.experiments.runner.runs import load_runs
from fedrank_papers.pivot import as_grid, value_tables
from tests.experiments.report.made_up_runs import write_run

ATTACKED = """
rounds = 40
baseline = "mean-0,clients.click_model=perfect"
data = {name = "synthetic-mq2008"}
clients = {count = 10, click_model = "perfect"}
learner = {name = "pdgd"}
attack = {name = "poisoned-clicks"}
seeds = [1, 2, 3]
vary = {"clients.click_model" = ["perfect", "informational"]}
[variants.mean-0]
[variants.mean-2]
"clients.malicious" = 2
[variants.mean-10]
"clients.malicious" = 10
[variants.median-0]
aggregator = {name = "median"}
[variants.median-2]
aggregator = {name = "median"}
"clients.malicious" = 2
"""
LEVELS = {"mean-0": 0.6, "mean-2": 0.4, "mean-10": 0.3, "median-0": 0.6, "median-2": 0.59}


def attacked(folder: Path, missing: str = "") -> Analysis:
    for name, level in LEVELS.items():
        for user in ("perfect", "informational"):
            variant = f"{name},clients.click_model={user}"
            settings = {"variants": name, "clients.click_model": user}
            for seed in (1, 2) if variant == missing else (1, 2, 3):
                write_run(folder, "grid", variant, 1, seed, level=level, settings=settings, nothing=0.5)
    (folder / "grid" / "experiment.toml").write_text(ATTACKED)
    [findings] = analyse(load_runs(folder))
    return findings


def test_numbers_in_names_stand_across_in_their_order_and_the_rest_down(tmp_path: Path) -> None:
    findings = attacked(tmp_path, missing="median-2,clients.click_model=perfect")
    [table] = value_tables(findings, ["ndcg@10"])
    assert list(table.header) == ["ndcg@10: variant", "click_model", "malicious 0", "malicious 2", "malicious 10"]
    rows = {(row[0].text, row[1].text): row[2:] for row in table.cells}
    assert list(rows) == [
        ("mean", "perfect"),
        ("mean", "informational"),
        ("median", "perfect"),
        ("median", "informational"),
        ("do nothing", ""),
    ]
    named = {variant.name: variant.summary("ndcg@10") for variant in findings.variants}
    for (rule, user), cells in rows.items():
        for number, cell in zip(("0", "2", "10"), cells, strict=True):
            summary = named.get(f"{rule}-{number},clients.click_model={user}")
            if rule != "do nothing":
                assert cell.text.startswith("" if summary is None else f"{summary.mean:.4f} ± {summary.sd:.4f}")
                assert bool(cell.text) == (summary is not None)
    assert rows["mean", "perfect"][0].text.endswith("(baseline)")
    assert [cell.mark for cell in rows["mean", "informational"]] == ["", "▼", "▼"]
    assert rows["median", "perfect"][1].text.endswith("(2 of 3)")
    assert len({cell.text for cell in rows["do nothing", ""]}) == 1
    assert any("▲ ▼" in note for note in table.notes)


def test_every_measure_has_a_grid_and_notes_stand_once(tmp_path: Path) -> None:
    tables = value_tables(attacked(tmp_path), ["ndcg@10", "mrr@10"])
    assert [table.header[0] for table in tables] == ["ndcg@10: variant", "mrr@10: variant"]
    assert [bool(table.notes) for table in tables] == [False, True]


@pytest.mark.parametrize(
    ("settings", "across"),
    [
        # few: one below the other
        ([{"a.rate": rate, "b.user": user} for rate in (1, 2) for user in "xyz"], None),
        # one setting has no second direction
        ([{"a.rate": rate} for rate in range(9)], None),
        # numbers before words, whichever are more
        ([{"b.user": user, "a.rate": rate} for rate in (10, 2) for user in "vwxyz"], "a.rate"),
        # of words the most
        ([{"b.user": user, "a.name": name, "c": c} for name in "pq" for user in "xyz" for c in "mn"], "b.user"),
        # what has one value says nothing
        ([{"a.rate": 0.5, "b.user": user, "variants": name} for user in "xy" for name in "mnop"], "b.user"),
        # too wide, and nothing else to put there
        ([{"a.rate": rate, "variants": name} for rate in range(7) for name in "mn"], None),
        # hardly any cell would be filled
        ([{"a": chr(97 + i), "b": f"x{i % 6}", "c": f"y{i}"} for i in range(9)], None),
        # variants that have different settings are no grid
        ([{"a": 1} if i else {"b": 2} for i in range(8)], None),
    ],
)
def test_what_stands_across(settings: list[dict], across: str | None, tmp_path: Path) -> None:
    for i, each in enumerate(settings):
        write_run(tmp_path, "grid", f"v={i}", settings=each, rounds=4)
    [findings] = analyse(load_runs(tmp_path))
    grid = as_grid(findings)
    assert (grid and grid.across) == across
    if grid is not None:
        assert len(grid.cells) == len(settings)
        assert grid.columns == (["2", "10"] if across == "a.rate" else grid.columns)
    else:
        assert len(value_tables(findings, ["ndcg@10"])[0].rows) == len(settings)

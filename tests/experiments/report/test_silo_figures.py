"""Figure 4 of CS-F-LTR: what runs wrote of their sketches, as a table and a picture."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.sections import Drawing, Table
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.source import read_spec
from fedrank_papers.figures import drawings

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    fewer = ["rounds=1", "seeds=[1]", "silos.queries=5"]
    assert not run_experiment(read_spec("cs-f-ltr/fig-4", fewer, quick=True), "fig-4", folder).failed
    return folder / "fig-4"


@pytest.mark.long
def test_costs_of_sketches_are_shown_with_the_experiment(runs: Path) -> None:
    [found] = analyse(load_runs(runs))
    parts = list(drawings("cs-f-ltr/fig-4", found))
    [table] = [part for part in parts if isinstance(part, Table)]
    rows = {row[0].text: [float(cell.text) for cell in row[1:]] for row in table.cells}
    assert {"default", "alpha-1", "w-50", "printed"} <= set(rows)
    assert rows["alpha-1"][4] < rows["default"][4], "fewer documents of a cell, fewer megabytes"
    assert all(0 < row[0] <= 1 for row in rows.values())
    sizes = {name: row[5] for name, row in rows.items()}  # of the sketches of all documents
    assert sizes["default"] == pytest.approx(4 * sizes["w-50"], rel=0.01)
    picture = next(part for part in parts if isinstance(part, Drawing) and "NAIVE" in part.caption).draw()
    words = re.findall(r">([^<>]+)</text>", picture)
    assert {"cover rate", "megabytes", "α", "β", "K", "w", "z"} <= set(words), "a column for each setting"


def test_runs_that_measured_nothing_show_nothing(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "fig-4", ignore=shutil.ignore_patterns("sketches.json"))
    [found] = analyse(load_runs(tmp_path / "fig-4"))
    assert not [part for part in drawings("cs-f-ltr/fig-4", found) if isinstance(part, Table)]

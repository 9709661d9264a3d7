"""The output of commands about runs as sections: their state, what was tuned, and the methods that exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedrank.experiments.report.formatting import duration
from fedrank.experiments.report.sections import Cell, Row, Section, Span, Table, Tone, paragraph
from fedrank.experiments.runner.failures import alike, several
from fedrank.experiments.runner.runs import Run, Runs
from fedrank.experiments.spec.listing import ListedMethod

if TYPE_CHECKING:
    from fedrank.experiments.runner.tune import Tried

STATUS: dict[str, Tone] = {
    "finished": "better",
    "running": "name",
    "interrupted": "warn",
    "failed": "worse",
    "broken": "worse",
}


def about_runs(runs: Runs) -> list[Section]:
    """One line for each run: status, quality and time."""
    if not len(runs):
        return [
            Section("").paragraph("No runs here. Start one with ", Span("fedrank run EXPERIMENT.toml", "code"), ".")
        ]
    sections = []
    for (_, name), group in runs.group("folder", "experiment").items():
        rows: list[Row] = [
            [
                run.variant,
                str(run.fold),
                str(run.seed),
                Cell(run.status, tone=STATUS[run.status]),
                f"{run.round:,} / {run.asked:,}" if run.asked else "-",
                _or_dash(_latest_quality, run),
                _or_dash(lambda run: duration(run.seconds), run),
            ]
            for run in group
        ]
        table = Table(["variant", "fold", "seed", "status", "round", "quality", "time"], rows, 4)
        reasons = [
            paragraph(f"{several(some)}: {some[0].reason}", tone="quiet")
            for some in alike(run for run in group if run.status in ("failed", "broken"))
        ]
        sections.append(Section(name, (table, *reasons)))
    return sections


def _latest_quality(run: Run) -> str:
    column, value = run.latest_value
    return "-" if np.isnan(value) else f"{column} {value:.4f}"


def _or_dash(text: Callable[[Run], str], run: Run) -> str:
    """What a run says, which may have no files yet, or broken ones."""
    try:
        return text(run)
    except (OSError, ValueError, KeyError):
        return "-"


def about_methods(methods: Sequence[ListedMethod]) -> list[Section]:
    """Methods with their settings, by family."""
    sections = []
    for family in dict.fromkeys(method.family for method in methods):
        rows: list[Row] = []
        for method in methods:
            if method.family != family:
                continue
            rows.append([Cell(method.name, tone="name"), method.meaning])
            for setting in method.settings:
                default = f" = {setting.default}" if setting.default else ""
                comment = f"  # {setting.comment}" if setting.comment else ""
                rows.append(["", Cell(f"{setting.name}: {setting.kind}{default}{comment}", tone="quiet")])
        sections.append(Section(family, (Table(["name", "meaning"], rows, 2, unbroken_column=0, bare=True),)))
    return sections


def about_tuning(tried: Sequence[Tried], column: str) -> list[Section]:
    """All that was tried, with what was chosen."""
    rows: list[Row] = []
    for one in tried:
        setting = ", ".join(f"{key} = {value}" for key, value in one.settings.items())
        spread = "" if math.isnan(one.spread) else f" ± {one.spread:.4f}"
        quality = "failed" if one.quality == -math.inf else f"{one.quality:.4f}{spread}"
        chosen = "  <- chosen" if one.chosen else ""
        marked = [Cell(setting + chosen, strong=one.chosen), Cell(quality, strong=one.chosen)]
        rows.append([one.variant, *marked, str(one.repeats)])
    notes = ["±: standard deviation over repeats."] if any(not math.isnan(one.spread) for one in tried) else []
    table = Table(["variant", "setting", f"{column}, validation", "repeats"], rows, 2, notes)
    warnings = [paragraph(f"{one.variant}: {edge}", tone="warn") for one in tried for edge in one.edges]
    return [Section("", (table, *warnings))]

"""Estimated clicks of a model, and propensities by position: tables and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedrank.experiments.report.figures import COLOURS, LOOK, QUIET, save_picture
from fedrank.experiments.report.formatting import signed
from fedrank.experiments.report.sections import Cell, Points, Row, Section, Table, paragraph
from fedrank.ranking.estimate import ClickEstimate, Interval
from fedrank.ranking.propensity import Propensities, ShownResults


def about_estimate(found: ClickEstimate) -> list[Section]:
    """The estimates and their limits."""
    rows: list[Row] = [
        [
            Cell(row.name, tone="warn" if row.note else ""),
            row.unit,
            f"{row.logged:.4f}",
            f"{row.model.value:.4f}",
            _between(row.model),
            signed("", row.difference.value),
            _between(row.difference, "+"),
        ]
        for row in found.rows
    ]
    headings = ["estimate", "unit", "logged order", "model", "95 % interval", "difference", "95 % interval"]
    points = [
        f"{found.searches:,} lists of {found.queries:,} queries, an effective sample size of {found.effective:,.0f} "
        f"queries; {found.clicks:,} clicks in the first {found.positions} positions; intervals are over queries",
        f"propensities from {found.propensities.how}; {found.clipped:.1%} of clicks had their weight clipped, "
        f"{found.unseen:.1%} of the model's top results were never shown at a known position",
        f"the model moves {found.moved:.0%} of all results within their list; it reorders what was shown and retrieves "
        "no other documents",
        *(f"{row.name} is {row.note}" for row in found.rows if row.note),
        *found.notes,
    ]
    verdict = found.verdict
    return [
        Section("", (paragraph(verdict[0].upper() + verdict[1:] + "."), Table(headings, rows), Points(tuple(points))))
    ]


def about_positions(by: Propensities, shown: ShownResults) -> list[Section]:
    """Propensity of each position, relative to the first."""
    lists, clicks = (np.bincount(shown.position, weights=weights) for weights in (None, shown.clicked))
    rows = []
    for position in range(len(by.slope)):
        known = bool(by.known[position])
        cells = [str(position + 1), f"{clicks[position] / max(lists[position], 1):.4f}"]
        cells += [f"{by.slope[position]:.3f}" if known else "not known"]
        cells += [f"{by.low[position]:.3f} to {by.high[position]:.3f}" if known and position else ""]
        cells += [signed("", by.extra[position]) if known else ""] if by.extra[by.known].any() else []
        rows.append([*cells])
    headings = ["position", "click rate", "compared with position 1", "95 % interval"]
    headings += ["clicks by trust"] if by.extra[by.known].any() else []
    note = (
        f"From {by.how}: {by.moved:,} pairs of a query and a document were shown in several positions. The click rate "
        "is that of the documents shown there; the comparison uses the same documents in both positions."
    )
    return [Section("", (Table(headings, rows), paragraph(note), *([Points(by.notes)] if by.notes else [])))]


@mpl.rc_context(LOOK)
def draw_estimate(found: ClickEstimate, path: str | Path) -> None:
    """Differences to the logged order with their intervals, and propensities by position; the suffix is the format."""
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    _draw_differences(left, found)
    _draw_positions(right, found.propensities)
    save_picture(figure, path)


def _draw_differences(axis: Any, found: ClickEstimate) -> None:
    for number, row in enumerate(reversed(found.rows)):
        one = row.difference
        colour = QUIET if row.note else COLOURS[0]
        axis.plot([one.low, one.high], [number, number], color=colour, lw=2)
        axis.plot([one.value], [number], "o", color=colour, ms=5)
    axis.axvline(0, color=COLOURS[1], lw=1)
    axis.set_yticks(
        range(len(found.rows)), [row.name + (" (biased)" if row.note else "") for row in reversed(found.rows)]
    )
    axis.set_ylim(-0.6, len(found.rows) - 0.4)
    axis.set_xlabel("additional clicks per list, compared with the logged order")
    axis.set_title("Estimated clicks, 95 % intervals over queries", loc="left", fontsize=9.5)


def _draw_positions(axis: Any, by: Propensities) -> None:
    positions = np.flatnonzero(by.known)
    axis.fill_between(positions + 1, by.low[positions], by.high[positions], color=COLOURS[0], alpha=0.2, lw=0)
    axis.plot(positions + 1, by.slope[positions], "o-", color=COLOURS[0], ms=3.5, lw=1.2)
    axis.set_ylim(0, None)
    axis.set_xlabel("position")
    axis.set_title("Clicks compared with the first position", loc="left", fontsize=9.5)


def _between(one: Interval, sign: str = "") -> str:
    return f"{one.low:{sign}.4f} to {one.high:{sign}.4f}"

"""Figures like those of the papers: a panel for each click model, and final quality against a varied setting."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.figures import (
    COLOURS,
    INK,
    LOOK,
    QUIET,
    STYLES,
    as_svg,
    draw_line,
    legend,
    plain,
    wrapped,
)
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import Drawing, Part
from fedrank.toml import readable
from fedrank_papers.merge_figures import category_shares, chosen_settings, held, looked_at
from fedrank_papers.silo_figures import sketch_costs
from fedrank_papers.tree_figures import chosen, cut_lists, gain_by_length

PANELS = (
    "clients.click_model",
    "learner.ranker.name",
    "learner.ranker",
)  # settings that have separate panels in papers
LINES = 12  # maximum lines per panel; more are not distinguishable


@dataclass(frozen=True)
class Against:
    """Final quality against a number in the names of variants."""

    pattern: str  # with the group x, and optionally line and panel
    axis: str  # the label of x
    log: bool = False
    column: str = ""  # default: the first measure of the experiment


FIGURES: dict[str, Against] = {
    "cs-f-ltr/fig-6": Against(r"(?P<line>silos|global)-(?P<x>\d)", "organisations"),
    "cs-f-ltr/fig-6a": Against(r"epsilon-(?P<x>[\d.]+)", "ε of the published noise", log=True),
    "cs-f-ltr/fig-6b": Against(r"(?P<line>cross-silo|global|local)-(?P<x>\d)", "participating parties"),
    "noniid-trees/merge-queries": Against(
        r"(?P<line>stacking|features|linear)-(?P<x>\d+)", "queries per merge set", log=True
    ),
    "noniid-trees/merge-queries-mq2007": Against(
        r"(?P<line>stacking|features|linear)-(?P<x>\d+)", "queries per merge set", log=True
    ),
    "selgb/fig-1": Against(r"booster.negatives=(?P<x>\d+)", "negatives per query", log=True),
    "selgb/fig-2": Against(r"booster.keep=(?P<x>[\d.]+)", "fraction of rows", log=True),
    "selgb/fig-3": Against(r"booster.keep=(?P<x>[\d.]+)", "fraction of negatives", log=True),
    "selgb/fig-4": Against(r"booster.keep=(?P<x>[\d.]+)", "fraction of hardest negatives, p", log=True),
    "selgb/fig-5": Against(r"booster.every=(?P<x>\d+)", "trees between selections, n", log=True),
    "thesis/fig-3-2": Against(
        r"(?P<x>\d+)-clients,clients.click_model=(?P<panel>\w+),learner.ranker.name=(?P<line>\w+)", "clients", log=True
    ),
    "thesis/fig-3-8": Against(
        r"(?P<line>with(?:out)?-noise),clients.count=(?P<x>\d+),clients.click_model=(?P<panel>\w+)", "clients", log=True
    ),
    "thesis/fig-3-9": Against(r"B-(?P<x>\d)(?P<line>.*),clients.click_model=(?P<panel>\w+)", "interactions per client"),
    **{
        f"thesis/{name}{ranker}": Against(
            r"(?P<line>.+)-(?P<x>\d),clients.click_model=(?P<panel>\w+)", "malicious clients (of ten)"
        )
        for name in ("fig-5-2", "fig-5-3", "fig-5-5")
        for ranker in ("", "-neural")
    },
    **{
        f"thesis/table-6-2{data}": Against(
            r"(?P<line>9H-1M(?:-\d+)?),clients.click_model=(?P<panel>\w+),fed-eraser,steps=(?P<x>\d)", "local steps n'"
        )
        for data in ("", "-mslr-web10k", "-yahoo", "-istella-s")
    },
}


def drawings(name: str, analysis: Analysis) -> Iterator[Part]:
    """The figures of an experiment, and tables of values other than quality."""
    if name == "cs-f-ltr/fig-4":
        yield from sketch_costs(analysis)
    with suppress(OSError, ValueError):  # the data may be missing by now
        if name == "selgb/fig-6":
            yield from gain_by_length(analysis, "selgb", "lambdamart-500")
        if name == "selgb/fig-7":
            yield from chosen(analysis)
        if name == "selgb/fig-1":
            yield from cut_lists(analysis)
        if name == "noniid-trees/table-1":
            yield from category_shares(analysis)
        if name == "noniid-trees/table-3":
            yield from held(analysis)
        if name == "noniid-trees/table-4":
            yield from chosen_settings(analysis)
        if name in ("noniid-trees/table-5", "noniid-trees/merge-queries", "noniid-trees/merge-queries-mq2007"):
            yield from looked_at(analysis)
    against = FIGURES.get(name)
    if against is not None:
        column = against.column or analysis.main
        drawn = draw_against(analysis, against, column)
        if drawn:
            text = f"Final {heading(column)} against {against.axis}; bars: 95% confidence interval of the mean."
            yield Drawing(lambda: drawn, text)
    for column in (analysis.main, *(["reward"] if "reward" in analysis.measures else [])):
        if any(variant.curve(column) is not None for variant in analysis.variants):
            text = (
                f"{heading(column)} by {analysis.axis}, mean over repeats; bands: 95% confidence interval of the mean."
            )
            yield Drawing(partial(draw_by_panel, analysis, column), text)


@mpl.rc_context(LOOK)
def draw_against(analysis: Analysis, against: Against, column: str) -> str:
    """A line for each rule or method, over the varied number; empty if no variant matches."""
    panels: dict[str, dict[str, list[tuple[float, VariantRuns]]]] = {}
    for variant in analysis.variants:
        fits = re.fullmatch(against.pattern, variant.name)
        if fits and not math.isnan(variant.summary(column).mean):
            groups = fits.groupdict()
            lines = panels.setdefault(groups.get("panel") or "", {})
            lines.setdefault((groups.get("line") or "").strip("-"), []).append((float(groups["x"]), variant))
    if not panels or max(len(points) for lines in panels.values() for points in lines.values()) < 2:
        return ""
    names = list(dict.fromkeys(line for lines in panels.values() for line in lines))
    figure = Figure(figsize=(10.2, 3.6), layout="constrained")
    handles: dict[str, Any] = {}
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (panel, lines) in zip(all_axes, panels.items(), strict=True):
        for line, points in lines.items():
            place = names.index(line)
            points = sorted(points, key=lambda point: point[0])
            summaries = [variant.summary(column) for _, variant in points]
            bars = [0.0 if math.isnan(each.high) else each.high - each.mean for each in summaries]
            handles[line or heading(column)] = axes.errorbar(
                [x for x, _ in points],
                [each.mean for each in summaries],
                yerr=bars,
                color=COLOURS[place % len(COLOURS)],
                linestyle=STYLES[place % len(STYLES)],
                marker="os^Dv"[place // len(COLOURS) % 5],
                markersize=4,
                linewidth=1.5,
                elinewidth=0.8,
            )
        places = sorted({x for points in lines.values() for x, _ in points})
        if against.log:
            axes.set_xscale("log")
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
        axes.set_xlabel(against.axis)
        plain(axes.set_title(panel, loc="left", color=INK))
    plain(all_axes[0].set_ylabel(heading(column)))
    if len(names) > 1:
        legend(figure, handles, 30, loc="outside right center")
    return as_svg(figure)


@mpl.rc_context(LOOK)
def draw_by_panel(analysis: Analysis, column: str) -> str:
    """Learning curves as in the papers: click models side by side, rankers below each other, one line per variant."""
    settings = {key for variant in analysis.variants for key in variant.settings}
    across, down = ([key for key in PANELS if key in settings] + ["", ""])[:2]
    cells: dict[tuple[str, str], list[tuple[str, VariantRuns]]] = {}
    for variant in analysis.variants:
        place = (readable(variant.settings.get(down, "")), readable(variant.settings.get(across, "")))
        rest = {key: value for key, value in variant.settings.items() if key not in (across, down)}
        label = ", ".join(_named(key, value) for key, value in rest.items())
        cells.setdefault(place, []).append((label or variant.label, variant))
    rows, columns = (list(dict.fromkeys(place[i] for place in cells)) for i in (0, 1))
    labels = list(dict.fromkeys(label for lines in cells.values() for label, _ in lines))
    figure = Figure(figsize=(10.2, 2.9 * len(rows) + 0.7), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), sharex=True, sharey=True, squeeze=False)
    handles: dict[str, Any] = {}
    for (row, column_name), lines in cells.items():
        axes = grid[rows.index(row)][columns.index(column_name)]
        for label, variant in lines:
            number = labels.index(label)
            colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) * 4 % len(STYLES)]
            handles |= draw_line(axes, variant, column, label, colour, style, band=len(lines) <= LINES)
        plain(axes.set_title(wrapped(", ".join(text for text in (column_name, row) if text), 44), loc="left"))
    for axes in grid[-1]:
        axes.set_xlabel(analysis.axis)
    for axes in grid[:, 0]:
        plain(axes.set_ylabel(heading(column)))
        axes.tick_params(colors=QUIET, labelcolor=INK)
    if len(labels) > 1:
        legend(figure, handles, 30, loc="outside right center", fontsize=7.5 if len(labels) > LINES else 8.5)
    return as_svg(figure)


def _named(key: str, value: object) -> str:
    """A setting in a legend; names appear without their key."""
    named = key == "variants" or key.endswith(".name")
    return readable(value) if named else f"{key.rsplit('.', 1)[-1]} = {readable(value)}"

"""Figures of `plot`: final values as points, and the data of clients."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.report.analysis import FEWEST, Analysis
from fedrank.experiments.report.figures import COLOURS, INK, LOOK, QUIET, Picture, plain, wrapped

MANY = 60  # clients whose numbers are left out below their bars


@mpl.rc_context(LOOK)
def final_figure(analysis: Analysis, column: str, title: str) -> Picture:
    """A row for each variant: its repeats as points, their mean, and its 95% interval where repeats are enough."""
    variants = analysis.variants
    figure = Picture(figsize=(7.2, 0.42 * len(variants) + 1.1), layout="constrained")
    axis = figure.subplots()
    for position, variant in enumerate(variants):
        values, summary = list(variant.values(column).values()), variant.summary(column)
        colour = COLOURS[position % len(COLOURS)]
        axis.plot(values, [position] * len(values), "o", color=colour, alpha=0.35, ms=4, mew=0)
        if summary.n >= FEWEST:
            axis.plot([summary.low, summary.high], [position, position], color=colour, lw=2.2, solid_capstyle="round")
        axis.plot([summary.mean], [position], "D", color=colour, ms=5.5)
    for nothing in analysis.nothing:
        if column in nothing.comparisons:
            axis.axvline(nothing.values.summary(column).mean, color=INK, ls=(0, (1, 1.5)), lw=1.3)
    axis.set_yticks(range(len(variants)), [wrapped(variant.label, 34) for variant in variants])
    for text in axis.get_yticklabels():
        plain(text)
    axis.set_ylim(len(variants) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    plain(axis.set_xlabel(f"{title} · dotted: without learning" if analysis.nothing else title))
    return figure


@mpl.rc_context(LOOK)
def clients_figure(queries: NDArray[np.int64], shares: NDArray[np.float64]) -> Picture:
    """[clients] queries, and [clients, labels] shares of documents, as two rows of bars."""
    figure = Picture(figsize=(8.2, 4.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    positions = np.arange(len(queries))
    above.bar(positions, queries, color=COLOURS[0], width=0.8)
    above.set_ylabel("queries")
    bottom = np.zeros(len(queries))
    for grade, share in enumerate(shares.T):
        colour = "#e4e7eb" if grade == 0 else COLOURS[(grade - 1) % len(COLOURS)]
        below.bar(positions, share, bottom=bottom, color=colour, width=0.8, label=f"label {grade}")
        bottom += share
    below.set_ylabel("share of documents")
    below.set_xlabel("client")
    if len(queries) <= MANY:
        below.set_xticks(positions, [str(position) for position in positions], fontsize=7, color=QUIET)
    below.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))
    return figure

"""Charts of a search log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.special import zeta

from fedrank.data.describe_log import LogDescription, ShownDescription, date_of
from fedrank.experiments.report.figures import COLOURS, LOOK, plain, save_picture

MAX_REASONS = 10  # that are drawn


@mpl.rc_context(LOOK)
def draw_log(log: LogDescription, path: str | Path) -> None:
    """Draw users by clicks, days of the most active users, and their differences; the suffix of the file is the format.

    Of lists as they were shown, a second row has clicks by position, what was left out, and who clicks most.
    """
    rows = 1 if log.shown is None else 2
    figure = Figure(figsize=(12.5, 3.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, width_ratios=(1, 1.25, 1.05), squeeze=False)
    users, days, differences = panels[0]
    _draw_users(users, log)
    _draw_days(days, log)
    _draw_differences(figure, differences, log)
    if log.shown is not None:
        _draw_positions(panels[1, 0], log.shown)
        _draw_lost(panels[1, 1], log.shown)
        _draw_shares(panels[1, 2], log.shown)
    save_picture(figure, path)


def _draw_users(axis: Any, log: LogDescription) -> None:
    values = np.unique(log.clicks)
    at_least = len(log.clicks) - np.searchsorted(np.sort(log.clicks), values)
    axis.loglog(values, at_least, ".", color=COLOURS[0], ms=4)
    what = _entries(log)
    title = f"Users with at least this many {what}"
    if law := log.power_law:
        tail = values[values >= law.least]
        axis.loglog(
            tail, law.users * zeta(law.exponent, tail) / zeta(law.exponent, law.least), color=COLOURS[1], lw=1.2
        )
        title += f"\npower law, exponent {law.exponent:.2f}"
    axis.set_xlabel(what)
    axis.set_ylabel("users")
    axis.set_title(title, loc="left", fontsize=9.5)


def _entries(log: LogDescription) -> str:
    """What is counted: a generated list has one click, a shown list any number."""
    return "clicks" if log.shown is None else "lists"


def _draw_days(axis: Any, log: LogDescription) -> None:
    rows, columns = np.nonzero(log.days)
    sizes = log.days[rows, columns]
    axis.scatter(columns, rows, s=160 * sizes / max(1, sizes.max()) + 2, color=COLOURS[0], alpha=0.7, lw=0)
    axis.set_yticks(range(len(log.plotted_users)), _positions(log.plotted_users))
    axis.set_ylim(len(log.plotted_users) - 0.5, -0.5)
    axis.set_xlabel(f"days since {date_of(log.first)[:10]}")
    axis.set_title(
        f"Days of the most active users\nlargest dot: {sizes.max():,} {_entries(log)}", loc="left", fontsize=9.5
    )
    _plain_labels(axis)


def _draw_differences(figure: Any, axis: Any, log: LogDescription) -> None:
    image = axis.imshow(log.distances, cmap="Blues", vmin=0)
    names = _positions(log.compared)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    note = "" if len(names) < 2 else f"\nmean {log.mean_distance:.2f}, by chance {log.by_chance:.2f}"
    axis.set_title(f"Differences in clicked features{note}", loc="left", fontsize=9.5)
    figure.colorbar(image, ax=axis, shrink=0.8).outline.set_visible(False)
    _plain_labels(axis)


def _draw_positions(axis: Any, shown: ShownDescription) -> None:
    """Click rate by position; positions with few lists are left out."""
    often = shown.shown_at >= max(1, shown.shown_at.max(initial=0) // 100)
    positions = np.flatnonzero(often)
    axis.plot(
        positions + 1, shown.clicked_at[positions] / shown.shown_at[positions], "o-", color=COLOURS[0], ms=3, lw=1.2
    )
    axis.set_ylim(bottom=0)
    axis.set_xlabel("position")
    axis.set_ylabel("clicks per document shown")
    axis.set_title(f"Clicks by position\n{shown.unclicked:.0%} of the lists have none", loc="left", fontsize=9.5)


def _draw_lost(axis: Any, shown: ShownDescription) -> None:
    """What was left out, cut or odd, most first."""
    lost = [(n, f"{reason} (rows)", COLOURS[0]) for reason, n in shown.left_out.items()]
    lost += [(one["lists"], f"{rule} (lists)", COLOURS[1]) for rule, one in shown.capped.items()]
    lost += [(n, reason, COLOURS[2]) for reason, n in shown.noticed.items()]
    lost = sorted(lost, reverse=True)[:MAX_REASONS]
    axis.barh(range(len(lost)), [n for n, _, _ in lost], color=[colour for _, _, colour in lost], height=0.25)
    axis.set_yticks([])
    for position, (n, reason, _) in enumerate(lost):
        text = axis.annotate(
            f"{n:,} {reason}", (0, position - 0.15), (1, 0), textcoords="offset points", va="bottom", fontsize=7
        )
        plain(text)
    axis.set_ylim(max(len(lost), 5) - 0.5, -0.7)
    axis.set_xlabel("how many")
    axis.set_title("Left out, removed by limits, and unusual", loc="left", fontsize=9.5)


def _draw_shares(axis: Any, shown: ShownDescription) -> None:
    for shares, label, colour in (
        (shown.largest_before, "in the log", COLOURS[1]),
        (shown.largest_after, "after limits", COLOURS[0]),
    ):
        axis.plot(np.arange(1, len(shares) + 1), shares, "o-", color=colour, label=label, ms=4, lw=1.2)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"{shown.unit}s with most clicks")
    axis.set_ylabel("share of all clicks")
    if shown.largest_before:
        axis.legend(frameon=False, fontsize=8)
    axis.set_title("Who clicks most", loc="left", fontsize=9.5)


def _plain_labels(axis: Any) -> None:
    for text in [*axis.get_xticklabels(), *axis.get_yticklabels()]:
        plain(text)


def _positions(users: Sequence[str]) -> list[str]:
    """Users by their position, the most active first: a picture is passed on, and shows no user ids."""
    return [str(position) for position in range(1, len(users) + 1)]

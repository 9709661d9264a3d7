"""What a search log is like, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.special import zeta

from fedrank.data.describe_log import LogDescription, date_of
from fedrank.report.figures import COLOURS, LOOK, plain


def draw_log(log: LogDescription, path: str | Path) -> None:
    """Draw users by clicks, days of the most active users, and their differences; the file's ending is its format."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(12.5, 3.9), layout="constrained")
        FigureCanvasAgg(figure)
        users, days, differences = figure.subplots(1, 3, width_ratios=(1, 1.25, 1.05))
        _draw_users(users, log)
        _draw_days(days, log)
        _draw_differences(figure, differences, log)
        figure.savefig(path, dpi=150)


def _draw_users(axis: Any, log: LogDescription) -> None:
    values = np.unique(log.clicks)
    at_least = len(log.clicks) - np.searchsorted(np.sort(log.clicks), values)
    axis.loglog(values, at_least, ".", color=COLOURS[0], ms=4)
    title = "Users with at least so many clicks"
    if law := log.power_law:
        tail = values[values >= law.least]
        axis.loglog(
            tail, law.users * zeta(law.exponent, tail) / zeta(law.exponent, law.least), color=COLOURS[1], lw=1.2
        )
        title += f"\npower law, exponent {law.exponent:.2f}"
    axis.set_xlabel("clicks")
    axis.set_ylabel("users")
    axis.set_title(title, loc="left", fontsize=9.5)


def _draw_days(axis: Any, log: LogDescription) -> None:
    rows, columns = np.nonzero(log.days)
    sizes = log.days[rows, columns]
    axis.scatter(columns, rows, s=160 * sizes / max(1, sizes.max()) + 2, color=COLOURS[0], alpha=0.7, lw=0)
    axis.set_yticks(range(len(log.drawn)), _places(log.drawn))
    axis.set_ylim(len(log.drawn) - 0.5, -0.5)
    axis.set_xlabel(f"days since {date_of(log.first)[:10]}")
    axis.set_title(f"Days of the most active users\nlargest dot: {sizes.max():,} clicks", loc="left", fontsize=9.5)
    _plain_labels(axis)


def _draw_differences(figure: Any, axis: Any, log: LogDescription) -> None:
    image = axis.imshow(log.distances, cmap="Blues", vmin=0)
    names = _places(log.compared)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    note = "" if len(names) < 2 else f"\nmean {log.mean_distance:.2f}, by chance {log.by_chance:.2f}"
    axis.set_title(f"Differences in clicked features{note}", loc="left", fontsize=9.5)
    figure.colorbar(image, ax=axis, shrink=0.8).outline.set_visible(False)
    _plain_labels(axis)


def _plain_labels(axis: Any) -> None:
    for text in [*axis.get_xticklabels(), *axis.get_yticklabels()]:
        plain(text)


def _places(users: Sequence[str]) -> list[str]:
    """Users by their place, the most active first: a picture is passed on, and shows no user ids."""
    return [str(place) for place in range(1, len(users) + 1)]

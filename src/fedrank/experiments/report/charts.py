"""Charts that commands draw into a file, whose suffix is the format: clients, search logs, estimates and trials."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import zeta

from fedrank.data.describe_log import LogDescription, ShownDescription, date_of
from fedrank.data.drift import THRESHOLD, Drift
from fedrank.experiments.report.figures import COLOURS, INK, LOOK, QUIET, plain, save_picture
from fedrank.experiments.runner.client_summary import ClientSummary, Group
from fedrank.federated.heterogeneity import Differences
from fedrank.ranking.estimate import ClickEstimate
from fedrank.ranking.gate import Gate

CHART = LOOK | {"axes.titlelocation": "left"}
MAX_REASONS = 10  # that are drawn
DEEPEST = 0.01  # evidence below this is cut off: it says no more


@mpl.rc_context(CHART)
def draw_clients(summary: ClientSummary, path: str | Path) -> None:
    """Draw the relevance labels of each client and the differences between clients."""
    heights = [max(1.6, 0.24 * len(group.found.compared)) + 1.0 for group in summary.groups]
    figure = Figure(figsize=(11.0, sum(heights) + 0.6), layout="constrained")
    title = f"Data of each client: {summary.data}, fold {summary.fold}, seed {summary.seed}"
    plain(figure.suptitle(title, x=0.01, ha="left"))
    parts = figure.subfigures(len(summary.groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, group in zip(parts, summary.groups, strict=True):
        _draw_group(part, group)
    save_picture(figure, path)


def _draw_group(part: Any, group: Group) -> None:
    differences, title = group.found, f"{group.title}: {group.how}"
    title = title if len(title) <= 150 else title[:149] + "…"
    plain(part.suptitle(title, x=0.01, ha="left", fontsize=9, fontweight="bold"))
    bars, left, right = part.subplots(1, 3, width_ratios=(1.7, 1, 1))
    _draw_labels(bars, differences)
    judged = differences.judgement_pairs.any()
    table = differences.judgement_pairs if judged else differences.query_pairs
    wanted = "judged differently" if judged else "queries in common"
    grades = "grades, from all"  # prose: ok
    note = f"from all: {_against_chance(differences, grades)}"
    _draw_pairs(left, differences.grade_pairs, differences.compared, f"Difference in relevance labels\n{note}")
    note = f"pairs: {_against_chance(differences, wanted)}"
    image = _draw_pairs(right, table, differences.compared, f"{wanted.capitalize()}\n{note}")
    scale = part.colorbar(image, ax=[left, right], shrink=0.8, aspect=18, pad=0.02, ticks=(0, 0.5, 1))
    scale.outline.set_visible(False)


def _draw_labels(axis: Any, differences: Differences) -> None:
    rows, shares = np.arange(len(differences.compared)), differences.shares[differences.compared]
    levels = shares.shape[1]
    relevant = colormaps["viridis_r"](np.linspace(0.12, 0.95, max(levels - 1, 1)))
    before = np.zeros(len(rows))
    for grade in range(levels):
        colour = "#dde2e8" if grade == 0 else relevant[grade - 1]
        axis.barh(rows, shares[:, grade], left=before, color=colour, height=0.8, label=f"label {grade}", lw=0)
        before += shares[:, grade]
    for row, c in zip(rows, differences.compared.tolist(), strict=True):
        sizes = f"{differences.queries[c]:,} q, {differences.documents[c]:,} d"
        axis.text(1.015, row, sizes, va="center", fontsize=7.5)
    axis.set_xlim(0, 1.34)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks([])
    axis.set_yticks(*_ticks(differences.compared))
    axis.set_ylabel("client")
    _without_frame(axis)
    axis.set_title("Shares of relevance labels; queries (q) and documents (d)", fontsize=8.5)
    below = (0, -0.04 - 0.6 / len(rows))
    spacing = {"handlelength": 1.0, "columnspacing": 1.0, "borderpad": 0}
    axis.legend(loc="upper left", bbox_to_anchor=below, ncols=levels, **spacing)


def _draw_pairs(axis: Any, table: NDArray[np.float64], names: NDArray[np.int64], title: str) -> Any:
    image = axis.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    if len(table) <= 10:
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if value > 0.6 else INK
            label = "1" if value > 0.995 else f"{value:.2f}".lstrip("0") if value >= 0.005 else "0"
            axis.text(column, row, label, ha="center", va="center", fontsize=6.5, color=colour)
    axis.set_xticks(*_ticks(names))
    axis.set_yticks(*_ticks(names))
    _without_frame(axis)
    axis.set_title(title, fontsize=8.5)
    return image


def _ticks(names: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    positions = list(range(0, len(names), max(1, -(-len(names) // 20))))
    return positions, [str(names[position]) for position in positions]


def _against_chance(differences: Differences, name: str) -> str:
    distance = next(one for one in differences.distances if one.name == name)
    return "-" if np.isnan(distance.mean) else f"mean {distance.mean:.2f}, by chance {distance.mean_by_chance:.2f}"


def _without_frame(axis: Any) -> None:
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)


@mpl.rc_context(CHART)
def draw_log(log: LogDescription, path: str | Path) -> None:
    """Draw users by clicks, days of the most active users, and their differences.

    Of lists as they were shown, a second row has clicks by position, what was left out, and who clicks most.
    """
    rows = 1 if log.shown is None else 2
    figure = Figure(figsize=(12.5, 3.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, width_ratios=(1, 1.25, 1.05), squeeze=False)
    entries = "clicks" if log.shown is None else "lists"  # a generated list has one click, a shown list any number
    _draw_users(panels[0, 0], log, entries)
    _draw_days(panels[0, 1], log, entries)
    _draw_differences(figure, panels[0, 2], log)
    if log.shown is not None:
        _draw_positions(panels[1, 0], log.shown)
        _draw_lost(panels[1, 1], log.shown)
        _draw_shares(panels[1, 2], log.shown)
    save_picture(figure, path)


def _draw_users(axis: Any, log: LogDescription, entries: str) -> None:
    values = np.unique(log.clicks)
    at_least = len(log.clicks) - np.searchsorted(np.sort(log.clicks), values)
    axis.loglog(values, at_least, ".", color=COLOURS[0], ms=4)
    title = f"Users with at least this many {entries}"
    if law := log.power_law:
        tail = values[values >= law.least]
        expected = law.users * zeta(law.exponent, tail) / zeta(law.exponent, law.least)
        axis.loglog(tail, expected, color=COLOURS[1], lw=1.2)
        title += f"\npower law, exponent {law.exponent:.2f}"
    axis.set_xlabel(entries)
    axis.set_ylabel("users")
    axis.set_title(title)


def _draw_days(axis: Any, log: LogDescription, entries: str) -> None:
    rows, columns = np.nonzero(log.days)
    sizes = log.days[rows, columns]
    axis.scatter(columns, rows, s=160 * sizes / max(1, sizes.max()) + 2, color=COLOURS[0], alpha=0.7, lw=0)
    users = len(log.plotted_users)
    # Users by their position, the most active first: a picture is passed on, and shows no user ids.
    axis.set_yticks(range(users), map(str, range(1, users + 1)))
    axis.set_ylim(users - 0.5, -0.5)
    axis.set_xlabel(f"days since {date_of(log.first)[:10]}")
    axis.set_title(f"Days of the most active users\nlargest dot: {sizes.max():,} {entries}")


def _draw_differences(figure: Any, axis: Any, log: LogDescription) -> None:
    image, users = axis.imshow(log.distances, cmap="Blues", vmin=0), len(log.compared)
    names = [str(position) for position in range(1, users + 1)]
    axis.set_xticks(range(users), names, rotation=90)
    axis.set_yticks(range(users), names)
    _without_frame(axis)
    note = "" if users < 2 else f"\nmean {log.mean_distance:.2f}, by chance {log.by_chance:.2f}"
    axis.set_title(f"Differences in clicked features{note}")
    figure.colorbar(image, ax=axis, shrink=0.8).outline.set_visible(False)


def _draw_positions(axis: Any, shown: ShownDescription) -> None:
    """Click rate by position; positions with few lists are left out."""
    positions = np.flatnonzero(shown.shown_at >= max(1, shown.shown_at.max(initial=0) // 100))
    rates = shown.clicked_at[positions] / shown.shown_at[positions]
    axis.plot(positions + 1, rates, "o-", color=COLOURS[0], ms=3, lw=1.2)
    axis.set_ylim(bottom=0)
    axis.set_xlabel("position")
    axis.set_ylabel("clicks per document shown")
    axis.set_title(f"Clicks by position\n{shown.unclicked:.0%} of the lists have none")


def _draw_lost(axis: Any, shown: ShownDescription) -> None:
    """What was left out, cut or odd, most first."""
    lost = [(n, f"{reason} (rows)", COLOURS[0]) for reason, n in shown.left_out.items()]
    lost += [(one["lists"], f"{rule} (lists)", COLOURS[1]) for rule, one in shown.capped.items()]
    lost += [(n, reason, COLOURS[2]) for reason, n in shown.noticed.items()]
    lost = sorted(lost, reverse=True)[:MAX_REASONS]
    axis.barh(range(len(lost)), [n for n, _, _ in lost], color=[colour for _, _, colour in lost], height=0.25)
    axis.set_yticks([])
    for position, (n, reason, _) in enumerate(lost):
        above = {"textcoords": "offset points", "va": "bottom", "fontsize": 7}
        plain(axis.annotate(f"{n:,} {reason}", (0, position - 0.15), (1, 0), **above))
    axis.set_ylim(max(len(lost), 5) - 0.5, -0.7)
    axis.set_xlabel("how many")
    axis.set_title("Left out, removed by limits, and unusual")


def _draw_shares(axis: Any, shown: ShownDescription) -> None:
    lines = (shown.largest_before, "in the log", COLOURS[1]), (shown.largest_after, "after limits", COLOURS[0])
    for shares, label, colour in lines:
        axis.plot(np.arange(1, len(shares) + 1), shares, "o-", color=colour, label=label, ms=4, lw=1.2)
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"{shown.unit}s with most clicks")
    axis.set_ylabel("share of all clicks")
    if shown.largest_before:
        axis.legend(frameon=False, fontsize=8)
    axis.set_title("Who clicks most")


@mpl.rc_context(CHART)
def draw_estimate(found: ClickEstimate, path: str | Path) -> None:
    """Draw differences to the engine's order or to the lists shown, and propensities by position."""
    figure = Figure(figsize=(9.5, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.3, 1))
    rows, by = found.rows[::-1], found.propensities
    for number, row in enumerate(rows):
        one, colour = row.difference, QUIET if row.note else COLOURS[0]
        left.plot([one.low, one.high], [number, number], color=colour, lw=2)
        left.plot([one.value], [number], "o", color=colour, ms=5)
    left.axvline(0, color=COLOURS[1], lw=1)
    left.set_yticks(range(len(rows)), [f"{row.name} ({f'{row.bias} bias' if row.bias else 'biased'})" for row in rows])
    left.set_ylim(-0.6, len(rows) - 0.4)
    other = "the engine's order" if found.engine else "the lists shown"
    left.set_xlabel(f"additional clicks per list, compared with {other}")
    left.set_title("Estimated clicks, 95 % intervals over queries")
    positions = np.flatnonzero(by.known)
    right.fill_between(positions + 1, by.low[positions], by.high[positions], color=COLOURS[0], alpha=0.2, lw=0)
    right.plot(positions + 1, by.slope[positions], "o-", color=COLOURS[0], ms=3.5, lw=1.2)
    right.set_ylim(0, None)
    right.set_xlabel("position")
    right.set_title("Clicks compared with the first position")
    save_picture(figure, path)


@mpl.rc_context(CHART)
def draw_drift(found: Drift, path: str | Path) -> None:
    """Draw the stability index of the features that changed most, and click rates by position in both logs."""
    figure = Figure(figsize=(9.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    features = found.features[:12][::-1]
    left.barh(range(len(features)), [psi for _, psi in features], color=COLOURS[0])
    left.axvline(THRESHOLD, color=COLOURS[1], lw=1)
    left.set_yticks(range(len(features)), [name for name, _ in features])
    left.set_xlabel("population stability index")
    left.set_title("Features that changed most")
    for number, (label, values) in enumerate(
        (("earlier", [one.old for one in found.rates]), ("now", [one.new for one in found.rates]))
    ):
        at = [one.position for one in found.rates]
        right.plot(at, values, "o-", color=COLOURS[1 - number], ms=3.5, lw=1.2, label=label)
    right.set_ylim(0, None)
    right.set_xlabel("position")
    right.set_title("Click rate by position")
    if found.rates:
        right.legend()
    save_picture(figure, path)


@mpl.rc_context(CHART)
def draw_trial(evidence: NDArray[np.float64], gate: Gate, title: str, path: str | Path) -> None:
    """Draw both bets over the decided searches, and where each decides.

    `evidence` [searches + 1, 3] holds logarithms: that the new model is better; the same without the client with the
    most wins for it; that it is worse.
    """
    figure = Figure(figsize=(7.6, 3.9), layout="constrained")
    axis = figure.subplots()
    at = np.arange(len(evidence))
    lines = (("better", 0, "-"), ("better, without the client with the most wins", 1, ":"), ("worse", 2, "-"))
    for label, column, style in lines:
        colour = COLOURS[1] if column == 2 else COLOURS[0]
        axis.plot(at, np.exp(np.maximum(evidence[:, column], math.log(DEEPEST))), style, color=colour, label=label)
    levels = {gate.level: "decides"} if gate.level == gate.harm else {gate.level: "adopts", gate.harm: "refuses"}
    for level, word in levels.items():
        axis.axhline(1 / level, color=QUIET, lw=0.9, ls="--")
        where: Any = ("axes fraction", "data")
        axis.annotate(word, (0.01, 1.1 / level), xycoords=where, va="bottom", color=QUIET)
    axis.set_ylim(0.7 * DEEPEST, 4 / min(levels))
    axis.set_yscale("log")
    axis.set_xlim(0, max(len(evidence) - 1, 10))
    axis.set_xlabel("decided searches")
    axis.set_ylabel("e-value (wealth of a bet of 1)")
    axis.set_title(title)
    figure.legend(loc="outside lower center", ncols=3)
    save_picture(figure, path)

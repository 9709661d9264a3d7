"""Charts of the data of each client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrank.experiments.report.figures import LOOK, plain, save_picture
from fedrank.experiments.runner.client_summary import ClientSummary, Group
from fedrank.federated.heterogeneity import Differences


@mpl.rc_context(LOOK)
def draw_clients(summary: ClientSummary, path: str | Path) -> None:
    """Draw the relevance labels of each client and the differences between clients; the suffix is the format."""
    heights = [max(1.6, 0.24 * len(group.found.compared)) + 1.0 for group in summary.groups]
    figure = Figure(figsize=(11.0, sum(heights) + 0.6), layout="constrained")
    plain(
        figure.suptitle(
            f"Data of each client: {summary.data}, fold {summary.fold}, seed {summary.seed}", x=0.01, ha="left"
        )
    )
    parts = figure.subfigures(len(summary.groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, group in zip(parts, summary.groups, strict=True):
        _draw_group(part, group)
    save_picture(figure, path)


def _draw_group(part: Any, group: Group) -> None:
    differences = group.found
    plain(part.suptitle(_cut(f"{group.title}: {group.how}", 150), x=0.01, ha="left", fontsize=9, fontweight="bold"))
    bars, left, right = part.subplots(1, 3, width_ratios=(1.7, 1, 1))
    _bars(bars, differences)
    names = differences.compared
    grades = next(one for one in differences.distances if one.name == "grades, from all")  # prose: ok
    _heat(left, differences.grade_pairs, names, "Difference in relevance labels", f"from all: {_against(grades)}")
    judged = differences.judgement_pairs.any()
    wanted = "judged differently" if judged else "queries in common"
    other = next(one for one in differences.distances if one.name == wanted)
    table = differences.judgement_pairs if judged else differences.query_pairs
    image = _heat(right, table, names, wanted.capitalize(), f"pairs: {_against(other)}")
    part.colorbar(image, ax=[left, right], shrink=0.8, aspect=18, pad=0.02, ticks=(0, 0.5, 1)).outline.set_visible(
        False
    )


def _bars(axis: Any, differences: Differences) -> None:
    rows, shares = np.arange(len(differences.compared)), differences.shares[differences.compared]
    levels = shares.shape[1]
    relevant = colormaps["viridis_r"](np.linspace(0.12, 0.95, max(levels - 1, 1)))
    before = np.zeros(len(rows))
    for grade in range(levels):
        colour = "#dde2e8" if grade == 0 else relevant[grade - 1]
        axis.barh(rows, shares[:, grade], left=before, color=colour, height=0.8, label=f"label {grade}", lw=0)
        before += shares[:, grade]
    for row, c in zip(rows, differences.compared.tolist(), strict=True):
        axis.text(
            1.015, row, f"{differences.queries[c]:,} q, {differences.documents[c]:,} d", va="center", fontsize=7.5
        )
    axis.set_xlim(0, 1.34)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xticks([])
    axis.set_yticks(*_ticks(differences.compared))
    axis.set_ylabel("client")
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_title("Shares of relevance labels; queries (q) and documents (d)", loc="left", fontsize=8.5)
    axis.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.04 - 0.6 / len(rows)),
        ncols=levels,
        handlelength=1.0,
        columnspacing=1.0,
        borderpad=0,
    )


def _heat(axis: Any, table: NDArray[np.float64], names: NDArray[np.int64], title: str, note: str) -> Any:
    image = axis.imshow(table, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    if len(table) <= 10:
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if value > 0.6 else "#1f2933"
            label = "1" if value > 0.995 else f"{value:.2f}".lstrip("0") if value >= 0.005 else "0"
            axis.text(column, row, label, ha="center", va="center", fontsize=6.5, color=colour)
    axis.set_xticks(*_ticks(names))
    axis.set_yticks(*_ticks(names))
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.set_title(f"{title}\n{note}", loc="left", fontsize=8.5)
    return image


def _ticks(names: NDArray[np.int64]) -> tuple[list[int], list[str]]:
    positions = list(range(0, len(names), max(1, -(-len(names) // 20))))
    return positions, [str(names[position]) for position in positions]


def _against(distance: Any) -> str:
    if np.isnan(distance.mean):
        return "-"
    return f"mean {distance.mean:.2f}, by chance {distance.mean_by_chance:.2f}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"

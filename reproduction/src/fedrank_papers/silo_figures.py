"""Figures of what silos disclose, and of recall and costs of queries to their sketches."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from matplotlib.figure import Figure

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.figures import COLOURS, INK, LOOK, QUIET, as_svg, plain, save_picture
from fedrank.experiments.report.sections import Drawing, Part, Table
from fedrank.experiments.runner.silo import SKETCHES
from fedrank_papers.silo_noise import AttackResult, distinguish, make_neighbours

QUESTIONS = (1, 2, 5, 10, 20, 50, 100)
LABELS = {
    "paper": "as published: one draw for all rows, ε = {epsilon:g} per query",
    "lookup": "lookup: noise on every count, ε = {epsilon:g} per query",
    "sketch": "sketch: noise drawn once, σ1 = {sigma:g}",
}
# Columns of sketches.json by title: with reverse top-K cells, and with all sketches.
COSTS = {
    "cover rate": ("cover", "naive_cover"),
    "milliseconds per query": ("milliseconds", "naive_milliseconds"),
    "megabytes": ("megabytes", "naive_megabytes"),
}
# Settings that figure 4 varies, by the prefix of the variant names.
VARIED = {"alpha": "alpha", "beta": "beta", "K": "k", "w": "width", "z": "depth"}

Costs = dict[str, dict[str, float]]  # by variant: means over repeats


def sketch_costs(analysis: Analysis) -> Iterator[Part]:
    """Figure 4 of CS-F-LTR: cover rate, time and memory of a query against each setting of sketches."""
    found: Costs = {}
    usual: dict[str, float] = {}
    for variant in analysis.variants:
        runs = [run for run in analysis.runs.finished if run.variant == variant.name]
        costs = [json.loads((run.path / SKETCHES).read_text()) for run in runs if (run.path / SKETCHES).is_file()]
        if costs:
            found[variant.name] = {key: fmean(one[key] for one in costs) for key in costs[0]}
            if variant.name == "default":
                method = runs[0].spec.method  # type: ignore[attr-defined]
                usual = {name: getattr(method, key) for name, key in VARIED.items()}
    if not found:
        return
    header = ["variant", *(name for title in COSTS for name in (title, f"{title}, NAIVE"))]
    rows = [[name, *(f"{row[key]:.3g}" for keys in COSTS.values() for key in keys)] for name, row in found.items()]
    about = next(iter(found.values()))
    note = (
        f"Means over repeats, for the bodies of one silo ({about['documents']:,.0f} documents) and "
        f"{about['terms']:.0f} terms of the other silos. NAIVE queries the sketches of all documents; times "
        "depend on the machine."
    )
    yield Table(header, rows, 1, [note])
    if usual:
        text = "Cover rate and costs of a query against each setting; dashed: NAIVE."
        yield Drawing(partial(draw_costs, found, usual), text)


@mpl.rc_context(LOOK)
def draw_costs(found: Costs, usual: dict[str, float]) -> str:
    """A column for each varied setting, a row for each cost."""
    columns: dict[str, list[tuple[float, dict[str, float]]]] = {}
    for name, row in found.items():
        fits = re.fullmatch(rf"({'|'.join(VARIED)})-([\d.]+)", name)
        if fits:
            columns.setdefault(fits[1], [(usual[fits[1]], found["default"])]).append((float(fits[2]), row))
    figure = Figure(figsize=(10.2, 6.2), layout="constrained")
    grid = figure.subplots(len(COSTS), len(columns), sharey="row", squeeze=False)
    for position, (setting, points) in enumerate(columns.items()):
        points = sorted(points, key=lambda point: point[0])
        for axes, (title, (ours, naive)) in zip(grid[:, position], COSTS.items(), strict=True):
            x = [value for value, _ in points]
            axes.plot(x, [row[ours] for _, row in points], color=COLOURS[0], marker="o", markersize=4)
            axes.plot(x, [row[naive] for _, row in points], color=QUIET, linestyle="--", linewidth=1)
            if title == "cover rate":
                axes.set_ylim(0, 1.05)
            else:
                axes.set_yscale("log")
            axes.set_xticks(x, [f"{value:g}" for value in x], fontsize=7)
            axes.minorticks_off()
            if position == 0:
                plain(axes.set_ylabel(title, color=INK))
        plain(grid[-1][position].set_xlabel({"alpha": "α", "beta": "β"}.get(setting, setting)))
    return as_svg(figure)


def measure_noise(
    pairs: int = 1000, epsilon: float = 0.5, sigma: float = 1.0, seed: int = 1
) -> dict[str, list[AttackResult]]:
    """How well neighbouring documents are distinguished under the three noises."""
    neighbours = make_neighbours(pairs, seed=seed)
    return {noise: distinguish(neighbours, noise, QUESTIONS, epsilon, sigma) for noise in LABELS}


@mpl.rc_context(LOOK)
def draw_noise(
    measured: dict[str, Sequence[AttackResult]], out: str | os.PathLike[str], epsilon: float = 0.5, sigma: float = 1.0
) -> Path:
    """Draw how well neighbouring documents are distinguished against the number of queries, as .svg or .png."""
    out = Path(out)
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0.5, color=QUIET, linewidth=1, linestyle=":")
    axes.text(1, 0.507, "guessing", color=QUIET, fontsize=8)
    for colour, (noise, rows) in zip(COLOURS, measured.items(), strict=False):
        x = [row.questions for row in rows]
        label = LABELS[noise].format(epsilon=epsilon, sigma=sigma)
        axes.plot(x, [row.right for row in rows], color=colour, marker="o", markersize=4, label=label)
        if noise != "paper":
            axes.plot(x, [row.bound for row in rows], color=colour, linewidth=1, linestyle="--")
    axes.plot([], [], color=QUIET, linewidth=1, linestyle="--", label="maximum allowed by the guarantee")
    axes.set_xscale("log")
    axes.set_xticks(QUESTIONS, [str(many) for many in QUESTIONS])
    axes.minorticks_off()
    axes.set_ylim(0.47, 1.03)
    axes.set_xlabel("queries for one word")
    axes.set_ylabel("neighbouring documents distinguished")
    axes.set_title("The published noise does not protect documents", loc="left", color=INK, fontweight="bold")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    save_picture(figure, out, metadata={"Date": None} if out.suffix == ".svg" else None)
    return out

"""Pictures of what silos give away."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fedrank.attack.dictionary import Told, make_neighbours, tell_apart
from fedrank.report.figures import COLOURS, INK, LOOK, QUIET

QUESTIONS = (1, 2, 5, 10, 20, 50, 100)
LABELS = {
    "paper": "as published: one draw for all rows, ε = {epsilon:g} a question",
    "lookup": "lookup: noise on every count, ε = {epsilon:g} a question",
    "sketch": "sketch: noise drawn once, σ1 = {sigma:g}",
}


def measure_noise(pairs: int = 1000, epsilon: float = 0.5, sigma: float = 1.0, seed: int = 1) -> dict[str, list[Told]]:
    """How well neighbouring documents are told apart under the three noises."""
    neighbours = make_neighbours(pairs, seed=seed)
    return {noise: tell_apart(neighbours, noise, QUESTIONS, epsilon, sigma) for noise in LABELS}


def draw_noise(
    measured: dict[str, Sequence[Told]], out: str | os.PathLike[str], epsilon: float = 0.5, sigma: float = 1.0
) -> Path:
    """The published noise protects nothing: who is told apart against questions asked, as .svg or .png."""
    out = Path(out)
    with mpl.rc_context(LOOK):
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
        axes.plot([], [], color=QUIET, linewidth=1, linestyle="--", label="the most that the promise allows")
        axes.set_xscale("log")
        axes.set_xticks(QUESTIONS, [str(many) for many in QUESTIONS])
        axes.minorticks_off()
        axes.set_ylim(0.47, 1.03)
        axes.set_xlabel("questions asked about one word")
        axes.set_ylabel("neighbouring documents told apart")
        axes.set_title("The published noise protects nothing", loc="left", color=INK, fontweight="bold")
        figure.legend(loc="outside lower center", ncols=2, fontsize=8)
        out.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasAgg(figure)
        figure.savefig(out, dpi=150, metadata={"Date": None} if out.suffix == ".svg" else None)
    return out

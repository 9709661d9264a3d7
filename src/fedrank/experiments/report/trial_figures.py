"""A chart of the evidence of a trial."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrank.experiments.report.figures import COLOURS, LOOK, QUIET, save_picture
from fedrank.ranking.gate import Gate

DEEPEST = 0.01  # evidence below this is cut off: it says no more


@mpl.rc_context(LOOK)
def draw_trial(evidence: NDArray[np.float64], gate: Gate, title: str, path: str | Path) -> None:
    """Draw both bets over the decided searches, and where each decides; the suffix of the file is the format.

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
    axis.set_title(title, loc="left")
    figure.legend(loc="outside lower center", ncols=3)
    save_picture(figure, path)

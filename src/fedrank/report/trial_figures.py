"""How the evidence of a trial grew, as a picture."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrank.rank.gate import Gate
from fedrank.report.figures import COLOURS, LOOK, QUIET

DEEPEST = 0.01  # evidence below this is cut off: it says no more


def draw_trial(evidence: NDArray[np.float64], gate: Gate, title: str, path: str | Path) -> None:
    """Draw both bets over the decided searches, and where each decides; the file's ending is its format.

    `evidence` [searches + 1, 3] holds logarithms: for the new model, the same without its best friends, against it.
    """
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(7.6, 3.9), layout="constrained")
        FigureCanvasAgg(figure)
        axis = figure.subplots()
        at = np.arange(len(evidence))
        lines = (("it is better", 0, "-"), ("the same without its best friend", 1, ":"), ("it does harm", 2, "-"))
        for label, column, style in lines:
            colour = COLOURS[1] if column == 2 else COLOURS[0]
            axis.plot(at, np.exp(np.maximum(evidence[:, column], math.log(DEEPEST))), style, color=colour, label=label)
        for level, colour, name in ((gate.level, COLOURS[0], "adopt"), (gate.harm, COLOURS[1], "refuse")):
            axis.axhline(1 / level, color=colour, lw=0.9, ls="--")
            if name == "adopt" or gate.harm != gate.level:
                axis.annotate(
                    name if gate.harm != gate.level else "decides",
                    (1, 1 / level),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="bottom",
                    color=QUIET,
                )
        axis.set_yscale("log")
        axis.set_xlim(0, max(len(evidence) - 1, 10))
        axis.set_xlabel("decided searches")
        axis.set_ylabel("what a stake of 1 has become")
        axis.set_title(title, loc="left")
        axis.legend(loc="lower left")
        figure.savefig(path, dpi=150)

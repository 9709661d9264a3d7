"""The picture of processes, messages and keys: `python docs/deployment_picture.py` writes docs/deployment.svg."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MACHINE, PROCESS, STORED, SECRET = "#f4f6f8", "#dbe9f6", "#ffffff", "#fdecc8"
INK, QUIET, TELEPHONE = "#1f2933", "#5b6773", "#b35900"
OUT = Path(__file__).with_name("deployment.svg")


def box(axes: Axes, at: tuple[float, float], size: tuple[float, float], text: str, color: str, title: str = "") -> None:
    """A box with text in it, and a title in bold at its top."""
    (left, bottom), (width, height) = at, size
    axes.add_patch(
        FancyBboxPatch(at, width, height, "round,pad=0,rounding_size=0.8", facecolor=color, edgecolor="#9aa5b1", lw=0.9)
    )
    if title:
        axes.text(left + 1.2, bottom + height - 1.2, title, va="top", weight="bold", size=9.5, color=INK)
    middle = bottom + height / 2 - (1.2 if title else 0)
    axes.text(left + 1.2, middle, text, va="center", size=8.5, color=INK, linespacing=1.35)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str = INK, *, both: bool = False
) -> None:
    """An arrow; dashed where people talk."""
    style = "--" if color == TELEPHONE else "-"
    heads = "<|-|>" if both else "-|>"
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle=heads, mutation_scale=11, color=color, lw=1.2, ls=style))


def note(axes: Axes, at: tuple[float, float], text: str, color: str = QUIET, across: str = "center") -> None:
    """Words beside an arrow."""
    axes.text(*at, text, ha=across, va="center", size=8.5, color=color, linespacing=1.35)


def coordinator(axes: Axes) -> None:
    """Left: the machine of the coordinator."""
    box(axes, (1, 10), (37, 74), "", MACHINE)
    axes.text(2.5, 82, "Coordinator", va="top", weight="bold", size=12, color=INK)
    box(
        axes,
        (3, 66),
        (33, 10),
        "submits jobs, watches the run folder;\nmay be killed and called again",
        PROCESS,
        "fedrank deploy run",
    )
    box(
        axes,
        (3, 50),
        (33, 10),
        "the engine's server, and its job:\nHub asks, checks, adds up, writes",
        PROCESS,
        "fedrank deploy start",
    )
    arrow(axes, (19.5, 66), (19.5, 60))
    note(axes, (20.5, 63), "mutual TLS", across="left")
    box(
        axes,
        (3, 35),
        (33, 9),
        "runs/: models, rounds.csv, sites.csv\nrecords.jsonl: who joined, who left",
        STORED,
        "What counts after a crash",
    )
    arrow(axes, (19.5, 50), (19.5, 44))
    box(
        axes,
        (3, 14),
        (33, 15),
        "ca/: makes certificates of all\nkit/: the server's, for TLS\nadmin/: submits jobs, cannot read sites",
        SECRET,
        "Keys, which stay here",
    )


def site(axes: Axes) -> None:
    """Right: the machine of one site, and the edges of others behind it."""
    for back in (2, 1):
        box(axes, (65 + 1.2 * back, 10 + 1.2 * back), (37, 74), "", MACHINE)
    box(axes, (65, 10), (37, 74), "", MACHINE)
    axes.text(66.5, 82, "Site clinic-a", va="top", weight="bold", size=12, color=INK)
    axes.text(100.5, 81.6, "others likewise", va="top", ha="right", size=8.5, color=QUIET)
    box(
        axes,
        (67, 66),
        (33, 10),
        "queries, documents, clicks:\nread by the site's job alone",
        STORED,
        "Data, which never leave",
    )
    box(
        axes,
        (67, 50),
        (33, 10),
        "the engine's client, and its job:\nSite asks the policy, learns, adds noise",
        PROCESS,
        "fedrank deploy start",
    )
    arrow(axes, (83.5, 66), (83.5, 60))
    box(
        axes,
        (67, 35),
        (33, 9),
        "people/: the ledger over all runs\noutbox/: written before it is sent",
        STORED,
        "What counts after a crash",
    )
    arrow(axes, (83.5, 50), (83.5, 44))
    box(
        axes,
        (67, 14),
        (33, 15),
        "kit/: the site's, for TLS\nidentity.key: signs secure aggregation\n"
        "seed: of all its random choices\npartners.json: keys of others, pinned",
        SECRET,
        "Keys, which stay here",
    )


def between(axes: Axes) -> None:
    """The middle: what travels, and what people say."""
    note(axes, (51.5, 72), "mutual TLS, one port at the coordinator:\nsites connect, no connections to sites", INK)
    arrow(axes, (36.4, 58), (66.6, 58))
    note(axes, (51.5, 61.8), "plan, then each round:\nweights, phase of secure aggregation")
    arrow(axes, (66.6, 52), (36.4, 52))
    note(axes, (51.5, 47.2), "clipped update with noise,\nor masked numbers and signatures;\na refusal says why")
    arrow(axes, (36.4, 26), (66.6, 26), TELEPHONE, both=True)
    note(axes, (51.5, 31), "by telephone, once:\nfingerprints of CA and site", TELEPHONE)
    arrow(axes, (83.5, 9.6), (83.5, 3.4), TELEPHONE, both=True)
    note(axes, (82, 5.5), "site with site, for secure aggregation:\nfingerprints of identity keys", TELEPHONE, "right")


def draw() -> Figure:
    """The whole picture."""
    figure = Figure(figsize=(10.6, 8.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 106), ylim=(1, 88))
    axes.axis("off")
    coordinator(axes)
    site(axes)
    between(axes)
    return figure


if __name__ == "__main__":
    with mpl.rc_context({"svg.hashsalt": "fedrank", "font.family": "DejaVu Sans"}):
        draw().savefig(OUT, metadata={"Date": None})

"""The charts of a report, as SVG text that can stand inside a page."""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrank.experiments.report.analysis import FEWEST, Analysis
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.files import write_atomic
from fedrank.toml import readable

# Okabe and Ito's colours without yellow, which vanishes on white; styles keep eight lines apart in grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#333333", "#882255")
STYLES = ("-", "-", "-", "-", "--", "--", "--", "--")
DASHES = ("", "6 3", "2 2", "8 2 2 2")  # of lines that share a colour, as SVG has them
TOGETHER = 8  # lines that one panel can hold
MANY = 60  # clients whose numbers are left out below their bars
INK, QUIET = "#1f2933", "#7b8794"
LOOK: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fedrank",  # the same runs give the same file
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelpad": 7,
    "axes.edgecolor": "#cbd2d9",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e9edf1",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
DOTS = 110  # per inch, on a page that shows points
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


class Picture(Figure):
    """A Matplotlib figure that a notebook displays without pyplot."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that the font lacks
            self.savefig(file, format="png", dpi=DOTS)
        return file.getvalue()


def save_picture(figure: Figure, path: str | Path, **settings: Any) -> None:
    """Write a figure as a whole file, in the format of its suffix; PNG without one."""
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:] or "png", dpi=150, **settings)
    write_atomic(path, content.getvalue())


Panel = tuple[str, list[tuple[str, VariantRuns]]]  # title, lines with their labels


@mpl.rc_context(LOOK)
def curves_figure(analysis: Analysis, column: str, title: str) -> Picture:
    """One column by round or tree: a line per variant with a 95% band, in several panels where variants are many."""
    panels = split(analysis)
    across = min(len(panels), 2 if len(panels) in (2, 4) else 3)
    down = -(-len(panels) // across)
    size = (10.2, 3.7) if len(panels) == 1 else (10.2, 2.8 * down + 0.6)
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
    labels = list(dict.fromkeys(label for _, lines in panels for label, _ in lines))
    together = len(labels) <= TOGETHER  # one legend for all panels
    handles: dict[str, Any] = {}
    protected = any(variant.is_protected for variant in analysis.variants)
    for axis, (name, lines) in zip(axes, panels, strict=False):
        own: dict[str, Any] = {}
        base = analysis.baseline
        if len(panels) > 1 and base is not None and all(variant is not base for _, variant in lines):
            own |= draw_line(axis, base, column, f"baseline: {base.label}", QUIET, ":", band=False)
        for i, (label, variant) in enumerate(lines):
            position = labels.index(label) if together else i
            claim = f" ({variant.card.claim if variant.card else 'no ε'})" if protected else ""
            own |= draw_line(axis, variant, column, label + claim, COLOURS[position], STYLES[position])
        for nothing in analysis.nothing:
            if any(variant.name in nothing.comparisons.get(column, {}) for _, variant in lines):
                level, label = nothing.values.summary(column).mean, f"{nothing.values.label}: {nothing.order}"
                own[label] = axis.axhline(level, color=INK, ls=(0, (1, 1.5)), lw=1.3)
        if name:
            plain(axis.set_title(wrapped(name, 44), loc="left", color=INK))
        if not together:
            legend(axis, own, 26, loc="lower right", fontsize=7.5, labelspacing=0.25)
        handles |= own
    axes[0].set_ylim(*_heights(analysis, column))
    for i, axis in enumerate(axes):
        axis.set_visible(i < len(panels))
        # The last row may be short: the panels above its gaps carry the round numbers then.
        lowest = i + across >= len(panels)
        axis.tick_params(labelbottom=lowest, length=3)
        if lowest:
            axis.set_xlabel(analysis.axis)
        if i % across == 0:
            plain(axis.set_ylabel(title))
    if together and len(handles) > 1:
        if len(panels) > 1 or max(map(len, handles)) > 60:
            legend(figure, handles, 44, loc="outside lower center", ncols=min(len(handles), 3))
        else:
            legend(figure, handles, 30, loc="outside right center")
    return figure


def line_look(position: int) -> dict[str, str]:
    """Colour and dashes of a line on a page that draws it itself."""
    return {"colour": COLOURS[position % len(COLOURS)], "dash": DASHES[position // len(COLOURS) % len(DASHES)]}


@mpl.rc_context(LOOK)
def weights_figure(variants: Sequence[VariantRuns], top: int = 12) -> Picture:
    """The features that weigh most in the linear models of some variants: mean over repeats, with one sd."""
    shown = [(variant, variant.weights()) for variant in variants]
    most = max(min(top, weights.shape[1]) for _, weights in shown if weights is not None)
    figure = Picture(figsize=(5.1 * len(shown) if len(shown) > 1 else 7.0, 0.27 * most + 0.9), layout="constrained")
    for axis, (variant, weights) in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        assert weights is not None
        order, mean, sd = heaviest(weights, top)
        names = next(iter(variant.repeats.values())).feature_names
        positions = np.arange(len(order))[::-1]
        colours = [COLOURS[0] if value >= 0 else COLOURS[1] for value in mean[order]]
        errors = None if np.isnan(sd).any() else sd[order]
        axis.barh(positions, mean[order], xerr=errors, color=colours, height=0.66, ecolor=INK, error_kw={"lw": 0.9})
        axis.axvline(0, color=QUIET, lw=0.8)
        _name_rows(axis, positions, [textwrap.shorten(names[i] or "-", 34, placeholder="…") for i in order])
        axis.set_xlabel("weight")
        plain(axis.set_title(wrapped(variant.label, 40), loc="left"))
    return figure


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
    _name_rows(axis, range(len(variants)), [wrapped(variant.label, 34) for variant in variants])
    axis.set_ylim(len(variants) - 0.5, -0.5)
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


def _name_rows(axis: Any, positions: Any, names: Sequence[str]) -> None:
    axis.set_yticks(positions, [_shown(name) for name in names])
    for text in axis.get_yticklabels():
        plain(text)
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")


def heaviest(
    weights: NDArray[np.float64], top: int
) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
    """Order of the features with the largest absolute mean weight, all means, and all standard deviations."""
    mean = weights.mean(axis=0)
    sd = weights.std(axis=0, ddof=1) if len(weights) > 1 else np.full(len(mean), np.nan)
    return np.argsort(-np.abs(mean), kind="stable")[:top], mean, sd


def split(analysis: Analysis) -> list[Panel]:
    """Variants in panels of at most eight lines: by the value of a varied setting if possible, else in order."""
    variants = list(analysis.variants)
    if len(variants) <= TOGETHER:
        return [("", [(variant.label, variant) for variant in variants])]
    keys = list(variants[0].settings)
    if (
        not analysis.parts
        and len(keys) > 1
        and all(list(variant.settings) == keys and "=" in variant.name for variant in variants)
    ):
        for key in keys:
            groups: dict[str, list[tuple[str, VariantRuns]]] = {}
            for variant in variants:
                rest = {name: value for name, value in variant.settings.items() if name != key}
                label = ", ".join(f"{name.removesuffix('.name')} = {readable(value)}" for name, value in rest.items())
                groups.setdefault(readable(variant.settings[key]), []).append((label, variant))
            largest = max(len(lines) for lines in groups.values())
            if 2 <= largest <= TOGETHER and len({label for lines in groups.values() for label, _ in lines}) <= TOGETHER:
                return [(f"{key.removesuffix('.name')} = {value}", lines) for value, lines in groups.items()]
    parts = -(-len(variants) // (TOGETHER - 2))
    size = -(-len(variants) // parts)
    return [("", [(v.label, v) for v in variants[start : start + size]]) for start in range(0, len(variants), size)]


def draw_line(
    axis: Any, variant: VariantRuns, column: str, label: str, colour: str, style: str, band: bool = True
) -> dict[str, Any]:
    curve = variant.curve(column)
    if curve is None or not len(curve.rounds):
        return {}
    marker = "o" if len(curve.rounds) == 1 else None
    (handle,) = axis.plot(curve.rounds, curve.mean, color=colour, ls=style, lw=1.6, marker=marker, ms=4)
    if band and curve.repeats >= FEWEST:
        low, high = curve.mean - curve.half, curve.mean + curve.half
        axis.fill_between(curve.rounds, low, high, color=colour, alpha=0.14, lw=0)
    return {label: handle}


def _heights(analysis: Analysis, column: str) -> tuple[float, float]:
    """Limits that show every line and every band whole."""
    drawn = [curve for variant in analysis.variants if (curve := variant.curve(column)) is not None and len(curve.mean)]
    # A column such as rewards, of which doing nothing has none, has no level either.
    levels = [nothing.values.summary(column).mean for nothing in analysis.nothing if column in nothing.comparisons]
    halves = [curve.half if curve.repeats >= FEWEST else np.zeros(1) for curve in drawn]
    low = min([*levels, *(float((curve.mean - half).min()) for curve, half in zip(drawn, halves, strict=True))])
    high = max([*levels, *(float((curve.mean + half).max()) for curve, half in zip(drawn, halves, strict=True))])
    edge = max(0.03 * (high - low), 0.0005)
    return low - edge, high + edge


def legend(owner: Any, handles: dict[str, Any], width: int, **look: Any) -> None:
    names = [_shown(wrapped(label, width)) for label in handles]
    for text in owner.legend(list(handles.values()), names, handlelength=2.2, **look).get_texts():
        plain(text)


def plain(text: Any) -> None:
    text.set_parse_math(False)  # names come from files, and a "$" there is only a "$"


def _shown(label: str) -> str:
    return "\u200b" + label if label.startswith("_") else label  # legends leave out what starts with "_"


def wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width)) or text


@mpl.rc_context(LOOK)
def as_svg(figure: Figure) -> str:
    """The figure as SVG text; several of them can stand on one page."""
    FigureCanvasSVG(figure)
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the measuring font lacks; the reader's browser has them
        # Laid out by us, once: savefig would draw all of it twice to have it laid out.
        if layout := figure.get_layout_engine():
            figure.set_dpi(72)  # that of every SVG
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="(?![pm][0-9a-f]{10}")[^"]*"', "", text)  # "axes_1" of several charts would clash on one page
    text = re.sub(r"font-family: [^;\"]+", f"font-family: {FONTS}", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]+", rf"font: \1 {FONTS}", text)
    # The viewBox keeps the shape; the width is for the page to decide, and below a readable one it is moved sideways.
    text = re.sub(r'(<svg [^>]*?) height="[\d.]+pt"', r"\1", text, count=1)
    return re.sub(
        r'(<svg [^>]*?)width="([\d.]+)pt"',
        r'\1width="100%" style="max-width: \2pt; min-width: min(\2pt, 40rem)"',
        text,
        count=1,
    )

"""Figures and tables of a report as files of their own, for a paper: SVG, PDF and LaTeX."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.compose import curve_drawings
from fedrank.experiments.report.latex import latex
from fedrank.experiments.report.sections import Table
from fedrank.experiments.report.tables import (
    comparison_table,
    cost_table,
    final_table,
    heading,
    nothing_table,
    privacy_table,
)
from fedrank.files import write_whole

FORMATS = {  # without a date, so that the same runs give the same files
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


def write_figures(reported: Sequence[Analysis], folder: Path) -> list[Path]:
    """Write every chart as SVG and PDF, and the tables as LaTeX; the files."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file, and figures and tables need a folder; name another one")
    written: list[Path] = []
    for i, findings in enumerate(reported, 1):
        before = "" if len(reported) == 1 else f"{i}-{_plain(findings.name)}-"
        for column in curve_drawings(findings):
            written += _draw(findings, column, folder / f"{before}curves-{_plain(column)}")
        for name, caption, table in _tables(findings):
            file = folder / f"{before}{name}.tex"
            write_whole(file, latex(table, caption, f"{before}{name}"))
            written.append(file)
    return written


def _draw(findings: Analysis, column: str, stem: Path) -> Iterator[Path]:
    import matplotlib as mpl

    from fedrank.experiments.report.figures import LOOK, curves_figure

    figure = curves_figure(findings, column, heading(column))
    for kind, metadata in FORMATS.items():
        content = BytesIO()
        with mpl.rc_context(LOOK | {"svg.fonttype": "path", "pdf.fonttype": 42}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that the font lacks
            figure.savefig(content, format=kind, metadata=metadata, bbox_inches="tight")
        file = stem.with_name(f"{stem.name}.{kind}")
        write_whole(file, content.getvalue())
        yield file


def _tables(findings: Analysis) -> Iterator[tuple[str, str, Table]]:
    yield "final", f"Final quality: {findings.title}", final_table(findings)
    if findings.baseline is not None:
        for column in findings.columns:
            caption = f"Differences from {findings.baseline.label} in {heading(column)}"
            yield f"against-baseline-{_plain(column)}", caption, comparison_table(findings, column)
    if findings.nothing:
        caption = f"Differences from doing nothing in {heading(findings.main)}"
        yield "against-nothing", caption, nothing_table(findings, findings.main)
    yield "cost", "What a run cost", cost_table(findings)
    if (privacy := privacy_table(findings)) is not None:
        yield "privacy", "What was spent", privacy


def _plain(text: str) -> str:
    """A name as part of the name of a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "unnamed"

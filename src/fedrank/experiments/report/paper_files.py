"""Figures and tables of a report as separate files for a paper: SVG, PDF and LaTeX."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.compose import curve_drawings
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.sections import Cell, Table
from fedrank.experiments.report.tables import comparison_table, cost_table, final_table, nothing_table, privacy_table
from fedrank.files import write_atomic

FORMATS = {  # without a date: the same runs give the same files
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}
ESCAPED = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "[": "{[}",  # after the end of a row, a bracket would be its argument
    "*": "{*}",  # and so would a star
    "±": r"$\pm$",
    "×": r"$\times$",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "▲": r"$^{\uparrow}$",
    "▼": r"$^{\downarrow}$",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
    "·": r"$\cdot$",
    "–": "--",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "√": r"$\surd$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
    "Δ": r"$\Delta$",
}
SIGNS = str.maketrans(ESCAPED)


def write_figures(reported: Sequence[Analysis], folder: Path) -> list[Path]:
    """Write every chart as SVG and PDF, and the tables as LaTeX; the files."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; --figures needs a folder")
    written: list[Path] = []
    for i, analysis in enumerate(reported, 1):
        before = "" if len(reported) == 1 else f"{i}-{_plain(analysis.name)}-"
        for column in curve_drawings(analysis):
            written += _draw(analysis, column, folder / f"{before}curves-{_plain(column)}")
        for name, caption, table in _tables(analysis):
            file = folder / f"{before}{name}.tex"
            write_atomic(file, latex(table, caption, f"{before}{name}"))
            written.append(file)
    return written


def _draw(analysis: Analysis, column: str, stem: Path) -> Iterator[Path]:
    import matplotlib as mpl

    from fedrank.experiments.report.figures import LOOK, curves_figure

    figure = curves_figure(analysis, column, heading(column))
    for kind, metadata in FORMATS.items():
        content = BytesIO()
        with mpl.rc_context(LOOK | {"svg.fonttype": "path", "pdf.fonttype": 42}), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # letters that the font lacks
            figure.savefig(content, format=kind, metadata=metadata, bbox_inches="tight")
        file = stem.with_name(f"{stem.name}.{kind}")
        write_atomic(file, content.getvalue())
        yield file


def _tables(analysis: Analysis) -> Iterator[tuple[str, str, Table]]:
    yield "final", f"Final quality: {analysis.title}", final_table(analysis)
    if analysis.baseline is not None:
        for column in analysis.columns:
            caption = f"Differences from {analysis.baseline.label} in {heading(column)}"
            yield f"against-baseline-{_plain(column)}", caption, comparison_table(analysis, column)
    if analysis.nothing:
        caption = f"Differences from doing nothing in {heading(analysis.main)}"
        yield "against-nothing", caption, nothing_table(analysis, analysis.main)
    yield "cost", "What a run cost", cost_table(analysis)
    if (privacy := privacy_table(analysis)) is not None:
        yield "privacy", "What was spent", privacy


def _plain(text: str) -> str:
    """A name as part of the name of a file."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.")[:60] or "unnamed"


def latex(table: Table, caption: str, label: str) -> str:
    """A floating table with its caption; what is said below a table in a report stands in a comment."""
    columns = "".join("l" if table.is_text(i) else "r" for i in range(len(table.header)))
    lines = [*(f"% {' '.join(note.split())}" for note in table.notes)]
    lines += [r"\begin{table}", r"  \centering", rf"  \caption{{{escaped(caption)}}}", rf"  \label{{tab:{label}}}"]
    lines += [
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_row([escaped(name) for name in table.header])}",
    ]
    lines += [r"    \midrule", *(f"    {_row([_cell(cell) for cell in row])}" for row in table.cells)]
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(escaped("50 % of a_b"))
    50 \\% of a\\_b
    """
    return " ".join(text.split()).translate(SIGNS)


def _cell(cell: Cell) -> str:
    shown = escaped(cell.text)
    if shown.startswith("-") and shown[1:2].isdigit():
        shown = f"${shown[0]}${shown[1:]}"  # a minus, and no hyphen
    shown = rf"\textbf{{{shown}}}" if cell.strong else shown
    return shown + escaped(cell.mark or "")


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"

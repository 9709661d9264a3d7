"""Reports on runs, as files: a web page, Markdown, a table of numbers; for a paper, figures and LaTeX tables.

The tables need the LaTeX package booktabs and nothing else.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from fedrank.display import json_text
from fedrank.experiments.report.analysis import Analysis, analyse, join
from fedrank.experiments.report.compose import curve_drawings, left_out, whole
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.html import page
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.sections import Cell, Paragraph, Section, Table, paragraph
from fedrank.experiments.report.tables import comparison_table, cost_table, final_table, nothing_table, privacy_table
from fedrank.experiments.runner.folder import table
from fedrank.experiments.runner.runs import Runs
from fedrank.files import write_atomic
from fedrank.toml import readable

NUMBERS = (
    *("repeats", "mean", "sd", "low95", "high95", "lowest", "highest", "baseline", "pairs", "difference"),
    *("difference_low95", "difference_high95", "unit", "counted", "p", "p_holm", "comparisons", "cohens_d"),
    *("published", "published_spread", "published_z", "published_verdict", "unfinished_runs"),
)
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
MINUS = re.compile(r"(?<![\w.)])-(?=\.?\d)")  # a hyphen before a number that follows nothing is a minus


def write_report(
    runs: Runs,
    out: str | os.PathLike[str],
    baseline: str | None = None,
    figures: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a report on the finished runs: a web page (.html), Markdown (.md) or a table of numbers (.csv).

    Experiments that were tested on the same queries are compared in one table. `baseline` is the variant that others
    are compared with; without it, the one that the experiment names, or its first variant. `figures` is a folder for
    charts (SVG, PDF) and tables (LaTeX). Unfinished runs are listed, but not counted; if no run is finished, a
    ValueError is raised.

    >>> import fedrank as fr
    >>> grid = fr.read_spec("quickstart", ["rounds=10", "seeds=[1]", "data.folds=[1]"])
    >>> _ = fr.run_experiment(grid, "first", out="runs")
    >>> report = fr.write_report(fr.load_runs("runs"), "report.md")
    >>> report.read_text(encoding="utf-8").splitlines()[0]
    '# What does federation cost, and what does it bring?'
    """
    file = Path(out)
    if file.suffix not in (".html", ".md", ".csv"):
        raise ValueError(f"{file} ends in {file.suffix!r}, which is not a report format; use .html, .md or .csv")
    found = analyse(runs, baseline)
    reported = join(found, baseline)
    if figures is not None:
        write_figures(reported, Path(figures))
    if file.suffix == ".csv":
        write_atomic(file, numbers(reported))
        return file
    title, sections, last = _composed(runs, found, reported)
    write_atomic(file, page(title, sections, last) if file.suffix == ".html" else markdown([*sections, *last]))
    return file


def report_page(runs: Runs) -> str:
    """The report as a web page; ValueError if no run is finished."""
    found = analyse(runs)
    return page(*_composed(runs, found, join(found)))


def _composed(
    runs: Runs, found: Sequence[Analysis], reported: Sequence[Analysis]
) -> tuple[str, list[Section], list[Paragraph]]:
    """Title, sections, and what stands below them."""
    sections = [whole(analysis, f"experiment-{i}") for i, analysis in enumerate(reported, 1)]
    missing = left_out(runs, found)
    title = sections[0].heading if len(sections) == 1 else f"{len(sections)} experiments"
    last = [paragraph(missing, tone="warn")] if missing else []
    if len(sections) > 1:
        apart = "These experiments were not tested on the same queries with the same measure, so they are not compared."
        last.append(paragraph(apart, tone="note"))
    return title, sections, last


def answer_files(out: Path | None, name: str) -> list[Path]:
    """Where an answer is to be written: a file of numbers (.json) or of what is printed (.md); in a folder, both."""
    if out is None:
        return []
    if out.suffix not in ("", ".json", ".md"):
        raise ValueError(f"--out {out} ends in {out.suffix!r}; use .json, .md, or a folder for both")
    return [out] if out.suffix else [out / f"{name}.json", out / f"{name}.md"]


def write_answer(files: Sequence[Path], sections: Sequence[Section], facts: Callable[[], Mapping[str, Any]]) -> None:
    """Write the output of a command to each of the `answer_files`; `facts` gives all numbers."""
    for file in files:
        if file.suffix == ".md":
            write_atomic(file, markdown(sections))
        else:
            write_atomic(file, json_text(facts()) + "\n")


def numbers(reported: Sequence[Analysis]) -> str:
    """One row for each variant and column, in full precision, as CSV. Missing numbers are empty."""
    settings = list(dict.fromkeys(key for analysis in reported for v in analysis.variants for key in v.settings))
    rows: list[list[object]] = []
    for analysis in reported:
        for variant in analysis.rows:
            unfinished = len(analysis.unfinished.filter(variant=variant.name))
            for column in analysis.columns:
                summary = variant.summary(column)
                values: list[object] = [summary.n, summary.mean, summary.sd, summary.low, summary.high]
                values += [summary.smallest, summary.largest, analysis.baseline.name if analysis.baseline else ""]
                comparison = analysis.comparisons.get(column, {}).get(variant.name)
                if comparison is None:
                    values += [""] * 10
                else:
                    found = comparison.contrast
                    values += [found.repeats, found.difference, *found.interval(), found.unit, found.counted, found.p]
                    values += [comparison.p, comparison.comparisons, found.effect]
                own_column = (entry for entry in analysis.published if entry.column == column)
                published = [entry for entry in own_column if entry.variant is variant]
                values += [
                    ";".join(str(entry.value) for entry in published),
                    ";".join("" if entry.spread is None else str(entry.spread) for entry in published),
                    ";".join("" if math.isnan(entry.z) else f"{entry.z:.6g}" for entry in published),
                    ";".join(entry.verdict for entry in published),
                ]
                own = [readable(variant.settings[key]) if key in variant.settings else "" for key in settings]
                of, name = variant.experiment or analysis.name, variant.name.removeprefix(f"{variant.experiment}/")
                rows.append([of, name, *own, column, *values, unfinished])
    return table(["experiment", "variant", *settings, "column", *NUMBERS], rows)


def write_figures(reported: Sequence[Analysis], folder: Path) -> list[Path]:
    """Write every chart as SVG and PDF, and the tables as LaTeX; the files."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; --figures needs a folder")
    written: list[Path] = []
    for i, analysis in enumerate(reported, 1):
        before = "" if len(reported) == 1 else f"{i}-{_plain(analysis.name)}-"
        for column in curve_drawings(analysis):
            written += _draw(analysis, column, folder / f"{before}curves-{_plain(column)}")
        for name, caption, shown in _tables(analysis):
            file = folder / f"{before}{name}.tex"
            write_atomic(file, latex(shown, caption, f"{before}{name}"))
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
    """A floating table with its caption, and its notes below: they explain marks and bold numbers."""
    columns = "".join("l" if table.is_text(i) else "r" for i in range(len(table.header)))
    lines = [r"\begin{table}", r"  \centering", rf"  \caption{{{escaped(caption)}}}", rf"  \label{{tab:{label}}}"]
    lines += [
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_row([escaped(name) for name in table.header])}",
    ]
    lines += [r"    \midrule", *(f"    {_row([_cell(cell) for cell in row])}" for row in table.cells)]
    notes = [rf"  {{\footnotesize {escaped(note)}\par}}" for note in table.notes]
    lines += [r"    \bottomrule", r"  \end{tabular}", *([r"  \par\smallskip", *notes] if notes else []), r"\end{table}"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(escaped("50 % of a_b"))
    50 \\% of a\\_b
    >>> print(escaped("-0.0234 to -0.0058, rate-0.5"))
    $-$0.0234 to $-$0.0058, rate-0.5
    """
    return MINUS.sub("−", " ".join(text.split())).translate(SIGNS)


def _cell(cell: Cell) -> str:
    shown = escaped(cell.text)
    shown = rf"\textbf{{{shown}}}" if cell.strong else shown
    return shown + escaped(cell.mark or "")


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"

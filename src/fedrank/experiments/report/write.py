"""Reports on runs, as files: a web page, Markdown, or a table of numbers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrank.experiments.report.analysis import Analysis, analyse
from fedrank.experiments.report.compose import left_out, whole
from fedrank.experiments.report.html import page
from fedrank.experiments.report.join import join
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.sections import Paragraph, Section, paragraph
from fedrank.experiments.runner.folder import table
from fedrank.experiments.runner.runs import Runs
from fedrank.files import write_atomic
from fedrank.toml import readable

NUMBERS = (
    *("repeats", "mean", "sd", "low95", "high95", "lowest", "highest", "baseline", "pairs", "difference"),
    *("difference_low95", "difference_high95", "unit", "counted", "p", "p_holm", "comparisons", "cohens_d"),
    *("published", "published_spread", "published_z", "published_verdict", "unfinished_runs"),
)


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
        from fedrank.experiments.report.paper_files import write_figures

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
            write_atomic(file, json.dumps(facts(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


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

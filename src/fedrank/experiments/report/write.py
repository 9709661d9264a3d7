"""Reports on runs, as files: a web page, Markdown, or a table of numbers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrank.experiments.report.analysis import Analysis, find
from fedrank.experiments.report.compose import left_out, whole
from fedrank.experiments.report.html import page
from fedrank.experiments.report.join import join
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.sections import Paragraph, Section, say
from fedrank.experiments.runner.folder import table
from fedrank.experiments.runner.runs import Runs
from fedrank.experiments.spec.toml import readable
from fedrank.files import write_whole

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

    Experiments that were tested on the same queries are compared in one table; `figures` names a folder for charts
    (SVG, PDF) and tables (LaTeX) that a paper can use.

    Runs that are not finished are listed and not counted; ValueError if none is. Without a name, the baseline is the
    one that the experiment names, or its first variant.
    """
    file = Path(out)
    if file.suffix not in (".html", ".md", ".csv"):
        raise ValueError(f"{file} ends in {file.suffix!r}, which is no kind of report; use .html, .md or .csv")
    found = find(runs, baseline)
    reported = join(found, baseline)
    if figures is not None:
        from fedrank.experiments.report.paper_files import write_figures

        write_figures(reported, Path(figures))
    if file.suffix == ".csv":
        write_whole(file, numbers(reported))
        return file
    title, sections, last = _composed(runs, found, reported)
    write_whole(file, page(title, sections, last) if file.suffix == ".html" else markdown([*sections, *last]))
    return file


def report_page(runs: Runs) -> str:
    """The report as a web page; ValueError if no run is finished."""
    found = find(runs)
    return page(*_composed(runs, found, join(found)))


def _composed(
    runs: Runs, found: Sequence[Analysis], reported: Sequence[Analysis]
) -> tuple[str, list[Section], list[Paragraph]]:
    """Title, sections, and what stands below them."""
    sections = [whole(findings, f"experiment-{i}") for i, findings in enumerate(reported, 1)]
    missing = left_out(runs, found)
    title = sections[0].heading if len(sections) == 1 else f"{len(sections)} experiments"
    last = [say(missing, tone="warn")] if missing else []
    if len(sections) > 1:
        last.append(
            say("These were not tested on the same queries by the same measure: they are not compared.", tone="note")
        )
    return title, sections, last


def answer_files(out: Path | None, name: str) -> list[Path]:
    """Where an answer is to be written: a file of numbers (.json) or of what is printed (.md); in a folder, both."""
    if out is None:
        return []
    if out.suffix not in ("", ".json", ".md"):
        raise ValueError(f"--out {out} ends in {out.suffix!r}; use .json, .md, or a folder for both")
    return [out] if out.suffix else [out / f"{name}.json", out / f"{name}.md"]


def write_answer(files: Sequence[Path], sections: Sequence[Section], facts: Callable[[], Mapping[str, Any]]) -> None:
    """Write what a command answers to each of the `answer_files`; `facts` gives all numbers."""
    for file in files:
        if file.suffix == ".md":
            write_whole(file, markdown(sections))
        else:
            write_whole(file, json.dumps(facts(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def numbers(reported: Sequence[Analysis]) -> str:
    """One row for each variant and column, in full precision, as CSV. Missing numbers are empty."""
    settings = list(dict.fromkeys(key for findings in reported for v in findings.variants for key in v.settings))
    rows: list[list[object]] = []
    for findings in reported:
        for variant in findings.rows:
            unfinished = len(findings.unfinished.filter(variant=variant.name))
            for column in findings.columns:
                summary = variant.summary(column)
                values: list[object] = [summary.n, summary.mean, summary.sd, summary.low, summary.high]
                values += [summary.smallest, summary.largest, findings.baseline.name if findings.baseline else ""]
                comparison = findings.comparisons.get(column, {}).get(variant.name)
                if comparison is None:
                    values += [""] * 10
                else:
                    found = comparison.contrast
                    values += [found.repeats, found.difference, *found.interval(), found.unit, found.counted, found.p]
                    values += [comparison.p, comparison.comparisons, found.effect]
                published = [
                    entry for entry in findings.published if entry.variant is variant and entry.column == column
                ]
                for value in (
                    [";".join(str(entry.value) for entry in published)],
                    [";".join("" if entry.spread is None else str(entry.spread) for entry in published)],
                    [";".join("" if math.isnan(entry.z) else f"{entry.z:.6g}" for entry in published)],
                    [";".join(entry.verdict for entry in published)],
                ):
                    values += value
                own = [readable(variant.settings[key]) if key in variant.settings else "" for key in settings]
                of, name = variant.experiment or findings.name, variant.name.removeprefix(f"{variant.experiment}/")
                rows.append([of, name, *own, column, *values, unfinished])
    return table(["experiment", "variant", *settings, "column", *NUMBERS], rows)

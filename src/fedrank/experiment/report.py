"""Reports on runs: a web page, Markdown, CSV, or a table in the terminal."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrank.experiment.findings import Findings, find, show, what_final_means
from fedrank.experiment.store import Runs
from fedrank.experiment.tables import (
    Table,
    asked_rows,
    claims_table,
    clients_table,
    comparison_table,
    cost_table,
    final_table,
    heading,
    headline,
    privacy_lines,
    privacy_table,
    promotion_table,
    published_table,
    robustness_table,
    unfinished_table,
    unlearned_table,
)
from fedrank.files import write_whole

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid


NUMBERS = (
    *("repeats", "mean", "sd", "low95", "high95", "lowest", "highest", "baseline", "pairs", "difference", "p_t"),
    *("p_t_bonferroni", "queries", "p_queries", "p_queries_bonferroni", "cohens_d"),
    *("published", "published_spread", "published_verdict", "unfinished_runs"),
)


def write_report(runs: Runs, out: str | os.PathLike[str], baseline: str | None = None) -> Path:
    """Write a report on the finished runs: a web page (.html), Markdown (.md) or a table of numbers (.csv).

    Runs that are not finished are listed and not counted; ValueError if none is. Without a name, the baseline is the
    one that the experiment names, or its first variant.
    """
    file = Path(out)
    if file.suffix not in (".html", ".md", ".csv"):
        raise ValueError(f"{file} ends in {file.suffix!r}, which is no kind of report; use .html, .md or .csv")
    sections = find(runs, baseline)
    left_out = _left_out(runs, sections)
    if file.suffix == ".html":
        from fedrank.experiment.page import page

        text = page(sections, left_out)
    elif file.suffix == ".md":
        text = markdown(sections, left_out)
    else:
        text = numbers(sections)
    write_whole(file, text)
    return file


def show_table(runs: Runs, console: Console, baseline: str | None = None) -> None:
    """Print the final table of each experiment."""
    from rich.text import Text

    if not len(runs.finished):
        console.print(f"No finished run among {len(runs)}.", markup=False)
        return
    for found in find(runs, baseline, by_query=False):
        table = final_table(found)
        console.print(_grid(table, found.title))
        for note in (*table.notes, *found.notes):
            console.print(Text(note, style="dim"))
        if found.claims:
            console.print(_grid(claims_table(found), "Does it hold?"))
        under_attack = robustness_table(found)
        if under_attack is not None:
            console.print(_grid(under_attack, "Under attack"))
            for note in under_attack.notes:
                console.print(Text(note, style="dim"))
        promoted = promotion_table(found)
        if promoted is not None:
            console.print(_grid(promoted, "Promoted"))
        for line in privacy_lines(found):
            console.print(Text(line), soft_wrap=True)
        if len(found.unfinished):
            console.print(Text(f"{len(found.unfinished)} of {len(found.runs)} runs are not finished and not counted:"))
            for run in found.unfinished:
                line = f"  {run.variant} fold {run.fold} seed {run.seed}: {run.status}, {run.reason}"
                console.print(Text(line, style="yellow"))
        console.print()


def _grid(table: Table, title: str) -> Grid:
    """A table for the terminal."""
    from rich.table import Table as Grid
    from rich.text import Text

    tones = {"better": "green", "worse": "red", "quiet": "dim", "": ""}
    grid = Grid(title=Text(title, style="bold"), title_justify="left", box=None, pad_edge=False)
    for i, name in enumerate(table.header):
        grid.add_column(Text(name, style="dim"), justify="left" if i < table.words else "right", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(str(cell), style="bold" if cell.strong else tones[cell.tone]) for cell in row))
    return grid


def markdown(sections: Sequence[Findings], left_out: str = "") -> str:
    """The report without its charts, for a repository or a notebook."""
    parts = []
    for found in sections:
        parts += [f"# {_plain(found.title)}", _plain(headline(found))]
        parts += [f"> {_plain(note)}" for note in found.notes]
        parts.append("## What was asked")
        parts.append("\n".join(f"- {_plain(key)}: {_plain(text)}" for key, text in asked_rows(found)))
        parts += ["## Final quality", _markdown(final_table(found))]
        if found.baseline is not None:
            parts.append(f"## Against the baseline, {_plain(found.baseline.label)}")
            parts.append("Both p-values are Bonferroni-corrected; differences are the variant minus the baseline.")
            for column in found.columns:
                parts += [f"### {heading(column)}", _markdown(comparison_table(found, column))]
        if found.claims:
            parts += ["## Does it hold?", _markdown(claims_table(found))]
        if found.published:
            parts += ["## Published and measured", _markdown(published_table(found))]
        served = clients_table(found)
        if served is not None:
            parts += ["## Whom it serves", _markdown(served)]
        under_attack = robustness_table(found)
        if under_attack is not None:
            parts += ["## Under attack", _markdown(under_attack)]
        forgotten = unlearned_table(found)
        if forgotten is not None:
            parts += ["## Unlearned", _markdown(forgotten)]
        promoted = promotion_table(found)
        if promoted is not None:
            parts += ["## Promoted", _markdown(promoted)]
        protected = privacy_table(found)
        if protected is not None:
            parts += ["## Privacy", _markdown(protected)]
        parts += ["## Cost", _markdown(cost_table(found)), "## How it was measured"]
        told = dict.fromkeys(text for run in found.runs.finished for text in run.conventions.values())
        notes = dict.fromkeys(note for run in found.runs.finished for note in run.notes)
        parts.append("\n".join(f"- {_plain(text)}" for text in (*told, *what_final_means(found), *notes)))
        if len(found.unfinished):
            parts += [
                "## Unfinished runs",
                "Left out of every table above.",
                _markdown(unfinished_table(found.unfinished)),
            ]
        versions = ", ".join(sorted({run.version for run in found.runs.finished if run.version})) or "unknown"
        parts.append(f"## Provenance\n\nfedrank {versions}")
        if found.asked_text:
            parts.append("````toml\n" + found.asked_text.strip() + "\n````")
    if left_out:
        parts.append(f"> {_plain(left_out)}")
    return "\n\n".join(parts) + "\n"


def numbers(sections: Sequence[Findings]) -> str:
    """One row for each variant and column, in full precision, as CSV. Missing numbers are empty."""
    settings = list(dict.fromkeys(key for found in sections for v in found.variants for key in v.settings))
    file = io.StringIO()
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(["experiment", "variant", *settings, "column", *NUMBERS])
    for found in sections:
        for variant in found.variants:
            unfinished = len(found.unfinished.filter(variant=variant.name))
            for column in found.columns:
                summary = variant.summary(column)
                values: list[object] = [summary.n, summary.mean, summary.sd, summary.low, summary.high]
                values += [summary.smallest, summary.largest, found.baseline.name if found.baseline else ""]
                comparison = found.comparisons.get(column, {}).get(variant.name)
                if comparison is None:
                    values += [""] * 8
                else:
                    paired = comparison.paired
                    values += [paired.pairs, paired.difference, paired.p, comparison.p, comparison.queries]
                    values += [comparison.p_queries, comparison.p_queries_corrected, paired.effect]
                told = [entry for entry in found.published if entry.variant is variant and entry.column == column]
                for value in (
                    [";".join(str(entry.value) for entry in told)],
                    [";".join("" if entry.spread is None else str(entry.spread) for entry in told)],
                    [";".join(entry.verdict for entry in told)],
                ):
                    values += value
                own = [show(variant.settings[key]) if key in variant.settings else "" for key in settings]
                cells = ["" if isinstance(v, float) and math.isnan(v) else v for v in values]
                rows.writerow([found.name, variant.name, *own, column, *cells, unfinished])
    return file.getvalue()


def _left_out(runs: Runs, sections: Sequence[Findings]) -> str:
    """Experiments without a single finished run have no section, but are not passed over in silence."""
    told = {found.folder for found in sections}
    missing = [run for run in runs if run.folder not in told]
    if not missing:
        return ""
    reasons = "; ".join(f"{run.experiment}, {run.variant}: {run.status}, {run.reason}" for run in missing[:20])
    more = f"; and {len(missing) - 20} more" if len(missing) > 20 else ""
    return f"Experiments without a finished run are not reported on: {reasons}{more}."


def _markdown(table: Table) -> str:
    lines = [table.header, [":---" if i < table.words else "---:" for i in range(len(table.header))]]
    lines += [[f"**{_cell(str(cell))}**" if cell.strong else _cell(str(cell)) for cell in row] for row in table.rows]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return "\n\n".join([text, *(_plain(note) for note in table.notes)])


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("<", "&lt;").replace("*", "\\*").replace("`", "\\`")

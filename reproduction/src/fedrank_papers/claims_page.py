"""One page with all claims: verdicts from the runs in a folder, and the commands to repeat them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.claims import SMALLEST, Verdict
from fedrank.experiments.report.formatting import duration, effect_size, heading
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.published_values import WITHIN
from fedrank.experiments.report.sections import Cell, Listing, Part, Section, Table, paragraph
from fedrank.experiments.report.tables import power, tested_over, with_interval
from fedrank.experiments.runner.runs import load_runs
from fedrank.files import write_atomic
from fedrank_papers.entries import Entry, entries
from fedrank_papers.items import Paper, papers
from fedrank_papers.notebook import notebook
from fedrank_papers.page import VERDICTS, Done, Footnotes, general, match, summary, values_table

TITLE = "Claims of the papers, and their verdicts"


def write_claims(folder: Path, out: Path, details: Path) -> str:
    """Write the page of claims and the notebook behind it as Markdown; returns a summary sentence."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"folder {folder} does not exist, so {out} was not written; give the folder of the results with --runs"
        )
    runs = load_runs(folder)
    found = analyse(runs) if len(runs.finished) else []
    known = papers()
    done = match(known, found)
    by_paper = entries(known, done, found, folder)
    everything = [one for some in done.values() for one in some]
    write_atomic(out, markdown([claims_page(known, by_paper, everything, out, details)]))
    write_atomic(details, markdown([notebook(known, by_paper, details, out)]))
    return summary(everything)


def claims_page(
    known: Sequence[Paper], by_paper: Mapping[str, Sequence[Entry]], done: Sequence[Done], here: Path, details: Path
) -> Section:
    """All claims and published values, paper by paper; `here` is the path of the page."""
    parts: list[Part] = [
        paragraph(summary(done), tone="lead"),
        paragraph(
            "This page is generated from run folders by “fedrank papers report --out claims.md --details "
            "notebook.md”. A verdict applies to the named data set; a separate section has verdicts over several "
            "data sets. “How to compare two methods honestly” explains the tests; the notebook has the results of "
            "each experiment, and “What reappeared, and what did not” has further observations."
        ),
        paragraph(_cost([entry for some in by_paper.values() for entry in some])),
        _counts(by_paper),
        paragraph(
            "Below, the difference is that between the variant that is claimed to be better and the other, with an "
            "interval at the level that the claims of the experiment share (Holm); d is that difference in standard "
            "deviations over the tested units; power is the probability that the design detects the difference that "
            f"the paper reports, or {SMALLEST:g} of a measure with maximum 1."
        ),
    ]
    authors = {paper.title: f"{paper.authors}, {paper.year}" for paper in known}
    for title, some in by_paper.items():
        sections = tuple(_section(entry, here, details) for entry in some if entry.analysis.claims)
        if sections:
            parts.append(Section(title, sections, authors.get(title, "")))
    if any(one.analysis.claims for one in done):
        parts.append(Section("Findings over several data sets", tuple(general(done))))
    if compared := [one for one in done if one.analysis.published]:
        parts.append(Section("Published and measured", (values_table(compared),)))
    return Section(TITLE, tuple(parts))


def _cost(everything: Sequence[Entry]) -> str:
    """The total processor time, and the processors."""
    finished = [run for entry in everything for run in entry.analysis.runs.finished]
    where = "; ".join(dict.fromkeys(run.processor for run in finished if run.processor)) or "an unknown processor"
    total = duration(sum(entry.seconds for entry in everything))
    return f"{len(finished):,} runs of {len(everything)} experiments took {total} of processor time on {where}."


def _counts(by_paper: Mapping[str, Sequence[Entry]]) -> Table:
    """The number of claims by paper and verdict."""
    rows = []
    for title, some in by_paper.items():
        verdicts = Counter(claim.verdict for entry in some for claim in entry.analysis.claims)
        values = [value for entry in some for value in entry.analysis.published]
        met = f"{sum(value.verdict == WITHIN for value in values)} of {len(values)}" if values else "-"
        runs = sum(len(entry.analysis.runs.finished) for entry in some)
        time = duration(sum(entry.seconds for entry in some))
        counts = (*(verdicts[verdict] for verdict in VERDICTS), met, len(some), f"{runs:,}", time)
        rows.append([Cell(title), *(Cell(str(count)) for count in counts)])
    header = ["paper", *VERDICTS, "published values met", "experiments", "runs", "processor time"]
    return Table(header, rows, 1)


def _section(entry: Entry, here: Path, details: Path) -> Section:
    """The claims of one experiment."""
    about = f"Data: {entry.data}{f'; form: {entry.form}' if entry.form else ''}. "
    parts: list[Part] = [
        paragraph(about, entry.link("Results", details, here), "."),
        Listing(entry.command, "bash"),
    ]
    return Section(entry.name, (*parts, _claims(entry.analysis.claims)), entry.caption)


def _claims(claims: Sequence[Verdict]) -> Table:
    """Claims with short verdicts, and the reasons below the table."""
    reasons = Footnotes()
    measures = list(dict.fromkeys(claim.column for claim in claims))
    rows = []
    for claim in claims:
        counted = tested_over(claim)
        known = claim.contrast.repeats == claim.contrast.counted or not claim.contrast.repeats
        over = (
            counted if known else f"{counted}, {claim.contrast.repeats} run{'' if claim.contrast.repeats == 1 else 's'}"
        )
        numbers = (with_interval(claim), effect_size(claim.contrast.effect), over, power(claim))
        measure = [Cell(heading(claim.column))] if len(measures) > 1 else []
        verdict = Cell(reasons.short(claim), strong=not claim.reason)
        rows.append([Cell(claim.says), verdict, *measure, *map(Cell, numbers)])
    several = ["measure", "difference"] if len(measures) > 1 else [f"difference in {heading(measures[0])}"]
    header = ["claim", "verdict", *several, "d", "tested over", "power"]
    return Table(header, rows, len(header) - 4, reasons.notes)

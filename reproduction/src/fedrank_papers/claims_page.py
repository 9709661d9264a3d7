"""One page with all claims, a table for each paper: verdicts, and the numbers from which a reader gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedrank.experiments.report.analysis import analyse
from fedrank.experiments.report.claims import ENOUGH, SMALLEST, SMALLEST_RECIPROCAL, Verdict
from fedrank.experiments.report.formatting import duration, effect_size, heading, interval, signed
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.published_values import WITHIN
from fedrank.experiments.report.sections import Cell, Part, Points, Section, Table, paragraph
from fedrank.experiments.report.statistics import LEVEL, t_quantile
from fedrank.experiments.report.tables import power, tested_over
from fedrank.experiments.runner.runs import load_runs
from fedrank.files import read_text, write_atomic
from fedrank_papers.entries import OUR_OWN, entries
from fedrank_papers.evidence import Record, merged, read_evidence, records, write_evidence
from fedrank_papers.items import Paper, papers
from fedrank_papers.notebook import kept, notebook
from fedrank_papers.page import VERDICT, VERDICTS, Footnotes, general, match, summary, values_table

TITLE = "Claims of the papers, and their verdicts"
NOTED = "†"  # marks experiments whose numbers need a note


def write_claims(folder: Path, out: Path, details: Path) -> str:
    """Write the page of claims, its numbers and the notebook behind it; returns a summary sentence.

    Experiments that are not in the folder of runs stay as they are in the files: a rerun of one replaces that one.
    """
    if not folder.is_dir():
        raise FileNotFoundError(
            f"folder {folder} does not exist, so {out} was not written; give the folder of the results with --runs"
        )
    runs = load_runs(folder)
    found = analyse(runs) if len(runs.finished) else []
    known = papers()
    by_paper = entries(known, match(known, found), found, folder)
    evidence = out.with_suffix(".json")
    everything = merged(read_evidence(evidence), records(by_paper))
    before = read_text(details) if details.exists() else ""
    write_evidence(evidence, everything)
    write_atomic(out, markdown([claims_page(known, everything, evidence.name)]))
    write_atomic(details, kept(before, markdown([notebook(known, by_paper, details, out)])))
    return summary([record for record in everything if record.paper])


def claims_page(known: Sequence[Paper], everything: Sequence[Record], evidence: str) -> Section:
    """All claims and published values, paper by paper; `evidence` is the name of the file of numbers."""
    of_papers = [record for record in everything if record.paper]
    notes = dict.fromkeys(f"{NOTED} {record.note}" for record in everything if record.note)
    parts: list[Part] = [
        paragraph(summary(of_papers), tone="lead"),
        paragraph(
            f"This page and {evidence} are generated from run folders by “fedrank papers report --out claims.md "
            "--details notebook.md”. A verdict applies to the named data set; a separate section has verdicts over "
            "several data sets. The notebook has the command and the results of each experiment, and “What "
            "reappeared, and what did not” has further observations."
        ),
        paragraph(_cost(everything)),
        _counts(known, everything),
        Section("How to read and recompute a row", (*map(paragraph, _RULES), Points(_SYMBOLS), *map(paragraph, notes))),
    ]
    for title, over, some in _by_paper(known, everything):
        if any(record.claims for record in some):
            parts.append(Section(title, (_claims(some),), over))
    if any(record.claims for record in of_papers):
        parts.append(Section("Findings over several data sets", tuple(general(of_papers))))
    if values := [row for record in of_papers for row in record.values]:
        parts.append(Section("Published and measured", (values_table(values),)))
    if left := _not_run(known, everything):
        parts.append(Section("Not run", (left,)))
    return Section(TITLE, tuple(parts))


def _not_run(known: Sequence[Paper], everything: Sequence[Record]) -> Table | None:
    """Experiments with claims of which no run is finished, and why."""
    ran = {record.item for record in everything}
    left = [item for paper in known for item in paper.items if item.name not in ran and item.grid.about.claims]
    rows = [
        [item.name, item.data, str(len(item.grid.about.claims)), "data not at hand" if item.missing else "runs"]
        for item in left
    ]
    return Table(["experiment", "data", "claims", "missing"], rows, 2) if rows else None


_RULES = (
    "The difference is that between the variant that is claimed to be better and the other. A claim with a direction "
    "holds if the lower bound of the interval is above 0, and does not hold if the upper bound is below the smallest "
    f"difference of interest: {SMALLEST:g} of a measure that ends at 1, {SMALLEST_RECIPROCAL:g} of a reciprocal rank "
    "(mrr, reward), or the paper's difference if that is smaller. A claim that two are alike holds if the interval is "
    "inside its margin (the number after “power ... for”), and does not hold if it is outside. Everything else is "
    "undecided.",
    "The interval is difference ± t × SE. The last column has the numbers from which it follows:",
)
_SYMBOLS = (
    "n and its unit, at the beginning: what was counted. Queries if values are known by query (every offline measure, "
    "and rewards by training query), random splits if another seed has other test queries, folds if values are known "
    "by run only (online quality), and data sets in the section over several of them.",
    "s: standard deviation of the n differences; over folds, each is the mean over its seeds.",
    "c: the part of SE that more runs do not reduce, because runs share queries. Over queries: the part of the queries "
    "alone. Over splits: c² = s² × test queries / training queries (Nadeau and Bengio 2003). Over folds: c² = s² minus "
    "the variance of a fold's mean over its seeds, since two folds of five share half of their training queries.",
    "SE: standard error. Over splits, folds and data sets, SE² = s² / n + c². Over queries, that of a bootstrap over "
    "queries and seeds (2,000 fixed draws).",
    "df: degrees of freedom. n - 1 over splits and data sets; 0.64 (n - 1) over folds, which are windows of three of "
    "five parts; by Satterthwaite over queries.",
    f"k: the claim is judged at the level {LEVEL:g} / k, its share in Holm's procedure: of the tested claims of an "
    "experiment the clearest is judged with k = their number, the next one with one less.",
    f"t: the quantile 1 - {LEVEL:g} / (2 k) of Student's distribution with df degrees of freedom.",
    "d: the difference divided by s.",
    "Power: the probability that the design detects the difference that the paper reports, or else the smallest one of "
    "interest.",
    f"Would decide it: how many queries (times as many as here) or runs would give a verdict with a probability of "
    f"{ENOUGH:.0%}, if the difference is the one that was measured. “Times the queries” means that no number of runs "
    "on these queries is enough. “At least” is what any test needs, without a promise of a verdict.",
)


def _by_paper(known: Sequence[Paper], everything: Sequence[Record]) -> list[tuple[str, str, list[Record]]]:
    """Title, authors and experiments of each paper; experiments without a paper come last."""
    rows = [(paper.title, f"{paper.authors}, {paper.year}", paper.title) for paper in known]
    found = [
        (head, over, [one for one in everything if one.paper == of]) for head, over, of in [*rows, (OUR_OWN, "", "")]
    ]
    return [row for row in found if row[2]]


def _cost(everything: Sequence[Record]) -> str:
    """The total processor time, and the processors."""
    where = "; ".join(dict.fromkeys(name for one in everything for name in one.processors)) or "an unknown processor"
    total, runs = duration(sum(one.seconds for one in everything)), sum(one.runs for one in everything)
    return f"{runs:,} runs of {len(everything)} experiments took {total} of processor time on {where}."


def _counts(known: Sequence[Paper], everything: Sequence[Record]) -> Table:
    """The number of claims by paper and verdict."""
    rows = []
    for title, _, some in _by_paper(known, everything):
        verdicts = Counter(claim.verdict for one in some for claim in one.claims)
        values = [row for one in some for row in one.values]
        met = f"{sum(row[VERDICT] == WITHIN for row in values)} of {len(values)}" if values else "-"
        time = duration(sum(one.seconds for one in some))
        counts = (
            *(verdicts[verdict] for verdict in VERDICTS),
            met,
            len(some),
            f"{sum(one.runs for one in some):,}",
            time,
        )
        rows.append([Cell(title), *(Cell(str(count)) for count in counts)])
    header = ["paper", *VERDICTS, "published values met", "experiments", "runs", "processor time"]
    return Table(header, rows, 1)


def _claims(some: Sequence[Record]) -> Table:
    """Every claim of a paper with its verdict and its numbers; the reasons are below the table."""
    reasons = Footnotes()
    rows = []
    for record in some:
        for claim in record.claims:
            found, column = claim.contrast, claim.column
            verdict = Cell(claim.verdict if claim.outlook else reasons.short(claim), strong=not claim.reason)
            shown = (signed(column, found.difference), interval(column, claim.low, claim.high), power(claim))
            where = f"{record.name}{f' {NOTED}' if record.note else ''}, {heading(column)}"
            rows.append([Cell(claim.says), Cell(where), verdict, *map(Cell, (*shown, claim.needed, _numbers(claim)))])
    header = ["claim", "experiment, measure", "verdict", "difference", "interval", "power", "would decide it"]
    return Table([*header, "computed from"], rows, 3, reasons.notes)


def _numbers(claim: Verdict) -> str:
    """The numbers from which a reader gets the same interval."""
    found = claim.contrast
    runs = f", {found.repeats} run{'' if found.repeats == 1 else 's'}" if found.repeats != found.counted else ""
    over = f"{tested_over(claim)}{runs}" if found.repeats or found.counted else "-"
    if not found.tested:
        return over
    digits = 5 if claim.scale == 1 else 2
    errors = {"s": found.spread, "c": found.floor, "SE": found.error}
    parts = [f"{name} {value:.{digits}f}" for name, value in errors.items()]
    parts += [f"df {found.degrees_of_freedom:.2f}".removesuffix(".00"), f"k {round(LEVEL / claim.level)}"]
    parts += [f"t {t_quantile(1 - claim.level / 2, found.degrees_of_freedom):.2f}", f"d {effect_size(found.effect)}"]
    return f"{over}: {', '.join(parts)}"

"""The report on the papers: published next to measured, and a verdict for every finding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedrank.files import write_whole
from fedrank.papers.figures import drawings
from fedrank.papers.items import ON, QUICK, UNLEARNED, Item, Paper, changed, papers
from fedrank.report.claims import FAILS, HOLDS, OPEN, UNTESTED
from fedrank.report.compose import conventions, warnings
from fedrank.report.findings import Findings, Reproduced, find, what_final_means
from fedrank.report.html import page
from fedrank.report.sections import Cell, Part, Section, Span, Table, say
from fedrank.report.tables import claims_table, final_table, heading, number, published_table, signed
from fedrank.run.runs import Runs, load_runs

TITLE = "The papers, measured"
VERDICTS = (HOLDS, FAILS, OPEN, UNTESTED)
IN_WORDS = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    OPEN: ("cannot be told from the repeats there are", "cannot be told from the repeats there are"),
    UNTESTED: ("was not tested", "were not tested"),
}
NOTHING: Mapping[str, Runs] = {}
TONES = {HOLDS: "better", FAILS: "worse", OPEN: "quiet", UNTESTED: "quiet"}


@dataclass(frozen=True)
class Done:
    """Finished runs of a table or figure."""

    item: Item
    form: str  # "whole" or "quick", ", unlearned", and which settings were changed
    findings: Findings  # without published values of other data or settings
    published: tuple[Reproduced, ...]  # all of them

    @property
    def data(self) -> str:
        return str(self.findings.runs.finished[0].data.get("name", ""))

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w-]+", "-", f"{self.findings.folder.parent.name}-{self.findings.folder.name}")

    @property
    def repeats(self) -> str:
        counts = sorted({len(variant.repeats) for variant in self.findings.variants})
        return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def write_papers_report(folder: Path, out: Path) -> str:
    """Write the overview, and a page on each paper beside it; returns what they say in one sentence."""
    runs = load_runs(folder) if folder.is_dir() else Runs()
    known = papers()
    done = match(known, find(runs, by_query=False) if len(runs.finished) else [])
    tried = unfinished(known, runs)
    for paper in known:
        write_whole(_beside(out, paper), paper_page(paper, done[paper.key], out.name, tried))
    everything = [one for some in done.values() for one in some]
    write_whole(out, overview_page(known, done, out, tried))
    return summary(everything)


def unfinished(known: Sequence[Paper], runs: Runs) -> dict[str, Runs]:
    """Runs of tables and figures that are not finished, by the name of their experiment, whatever its form."""
    left: dict[str, Runs] = {}
    for item in (item for paper in known for item in paper.items):
        ours = _ours(item)
        some = tuple(run for run in runs if run.status != "finished" and ours.fullmatch(_called(run.folder)))
        if some:
            left[item.name] = Runs(some)
    return left


def _ours(item: Item) -> re.Pattern[str]:
    """Which folders hold runs of a table or figure."""
    return re.compile(rf"{re.escape(item.name)}({QUICK})?({ON}.+?)?({UNLEARNED})?")


def _called(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def match(known: Sequence[Paper], reported: Sequence[Findings]) -> dict[str, list[Done]]:
    """Which runs are those of which table or figure, paper by paper; runs of anything else are left out."""
    done: dict[str, list[Done]] = {}
    for paper in known:
        done[paper.key] = []
        for item in paper.items:
            ours = _ours(item)
            for findings in reported:
                fits = ours.fullmatch(_called(findings.folder))
                if fits:
                    quick, elsewhere, unlearned = fits.groups()
                    form = ("quick" if quick else "whole") + (", unlearned" if unlearned else "")
                    other = [] if findings.grid is None else changed(item.name, findings.grid, bool(quick))
                    form += f", changed: {', '.join(other)}" if other else ""
                    own = not (elsewhere or paper.other_data or other)
                    shown = findings if own else replace(findings, published=())
                    done[paper.key].append(Done(item, form, shown, findings.published))
    return done


def summary(done: Sequence[Done]) -> str:
    """How many claims were tested, and what became of them."""
    verdicts = Counter(claim.verdict for one in done for claim in one.findings.claims)
    if not verdicts:
        return "Nothing has been tested yet: `fedrank papers run` does the experiments."
    counts = ", ".join(f"{n} {IN_WORDS[verdict][n > 1]}" for verdict in VERDICTS if (n := verdicts[verdict]))
    values = [entry for one in done for entry in one.findings.published]
    met = sum(entry.verdict.startswith("within") for entry in values)
    published = f" Of {len(values)} published values {met} lie within the spread of our repeats." if values else ""
    experiments = "1 experiment" if len(done) == 1 else f"{len(done)} experiments"
    return f"{sum(verdicts.values())} tests of claims in {experiments}: {counts}.{published}"


def overview_page(
    known: Sequence[Paper], done: dict[str, list[Done]], out: Path, tried: Mapping[str, Runs] = NOTHING
) -> str:
    """The page that says what became of every table and figure."""
    everything = [one for some in done.values() for one in some]
    parts: list[Part] = [say(summary(everything), tone="lead")]
    for paper in sorted(known, key=lambda paper: not done[paper.key]):  # what was run stands first
        authors, link = f"{paper.authors}, {paper.year}", _beside(out, paper).name
        parts.append(Section(paper.title, (overview(paper, done[paper.key], tried),), authors, link=link))
    return page(TITLE, [Section(TITLE, (*parts, say(_NOTE, tone="note")))])


def paper_page(paper: Paper, done: Sequence[Done], back: str, tried: Mapping[str, Runs] = NOTHING) -> str:
    """All on one paper: what contradicts it, its findings, its values, its figures."""
    parts: list[Part] = [say(Span(TITLE, link=back), tone="note"), say(summary(done), tone="lead")]
    if paper.remarks:
        rows = [[Cell(row.says), Cell(row.evidence)] for row in paper.remarks]
        table = Table(["what we saw", "where to see it"], rows, 2)
        parts.append(Section("What contradicts the paper, or what it does not say", (table,)))
    if any(one.findings.claims for one in done):
        parts.append(Section("Findings", (findings_table(done),)))
    if any(one.published for one in done):
        parts.append(Section("Published and measured", (values_table(done),)))
    others = [[Cell(row.item), Cell(row.command)] for row in paper.other]
    also = [Table(["also", "command"], others, 2)] if others else []
    parts.append(Section("Tables and figures", (overview(paper, done, tried), *also)))
    parts += map(_section, done)
    parts.append(say(_NOTE, tone="note"))
    return page(paper.title, [Section(paper.title, tuple(parts), f"{paper.authors}, {paper.year}")])


def overview(paper: Paper, done: Sequence[Done], tried: Mapping[str, Runs] = NOTHING) -> Table:
    """One row for each table or figure and each form of it that ran. What failed is told from what was not run."""
    rows = []
    ran = [one.item.name for one in done]
    for item in sorted(paper.items, key=lambda item: (item.name not in ran, item.name not in tried)):
        ours = [one for one in done if one.item is item]
        if not ours:
            why, tone, hint = _why_not(item, tried.get(item.name, Runs()))
            verdict = Cell(f"{why}; not tested here" if item.grid.about.claims else why, tone=tone, hint=hint)
            rows.append([*map(Cell, (item.label, item.name, "-", item.data, "0", "-")), verdict])
        for one in ours:
            values = one.findings.published
            met = sum(entry.verdict.startswith("within") for entry in values)
            verdicts = Counter(claim.verdict for claim in one.findings.claims)
            text = "; ".join(f"{verdict}: {verdicts[verdict]}" for verdict in VERDICTS if verdicts[verdict])
            tone = "worse" if verdicts[FAILS] else "better" if verdicts[HOLDS] else "quiet"
            texts = (item.label, item.name, one.form, one.data, one.repeats)
            rows.append(
                [
                    *map(Cell, texts),
                    Cell(f"{met} of {len(values)}" if values else "-"),
                    Cell(text or "none stated", tone=tone if text else "quiet"),
                ]
            )
    return Table(["item", "experiment", "form", "data", "repeats", "published values met", "verdict"], rows, 4)


def _runs(number: int) -> str:
    return "1 run" if number == 1 else f"{number:,} runs"


def _why_not(item: Item, left: Runs) -> tuple[str, str, str]:
    """Why nothing was measured, its tone, and more about it."""
    failed = [run for run in left if run.status in ("failed", "broken")]
    if failed:
        reasons = " ".join(dict.fromkeys(f"{run.reason}." for run in failed))
        return f"failed: {_runs(len(failed))}, {failed[0].reason}", "worse", reasons
    if len(left):
        under_way = any(run.status == "running" for run in left)
        return ("running" if under_way else f"interrupted: {_runs(len(left))}"), "warn", ""
    return ("not run: its data are not here" if item.missing else "not run"), "quiet", item.missing


def findings_table(done: Sequence[Done]) -> Table:
    """Every claim with its verdict, in the order of the paper."""
    rows = []
    for one in done:
        for claim in one.findings.claims:
            difference = signed(claim.column, claim.difference)
            where = f"{one.item.label}, {one.form}, {one.data}"
            cells = (claim.says, where, heading(claim.column), difference, str(claim.pairs))
            rows.append([*map(Cell, cells), Cell(claim.verdict, tone=TONES[claim.verdict], hint=claim.why)])
    return Table(["finding", "tested in", "measure", "difference", "repeats", "verdict"], rows, 3)


def values_table(done: Sequence[Done]) -> Table:
    """Every published value next to ours, with the convention that ours follow."""
    conventions: dict[str, str] = {}
    rows = []
    for one in done:
        for entry in one.published:
            runs = one.findings.runs.finished
            meaning = next((run.conventions[entry.column] for run in runs if entry.column in run.conventions), "")
            sentence = " ".join([meaning or heading(entry.column), what_final_means(one.findings)[0]])
            mark = conventions.setdefault(sentence, f"({chr(ord('a') + len(conventions))})")
            ours = entry.measured
            verdict = (
                entry.verdict if one.findings.published else "other data or settings: only the order can be compared"
            )
            tone = {"within": "better", "outside": "worse"}.get(verdict.split()[0], "quiet")
            published = number(entry.column, entry.value)
            published += "" if entry.spread is None else f" ± {number(entry.column, entry.spread)}"
            texts = (f"{entry.source}: {entry.variant.label}", heading(entry.column), mark, published)
            measured = (number(entry.column, ours.mean), number(entry.column, ours.sd), str(ours.n))
            rows.append([*map(Cell, (*texts, *measured)), Cell(verdict, tone=tone)])
    header = ["what", "measure", "convention", "published", "measured", "spread", "repeats", "verdict"]
    notes = [f"{mark} {sentence}" for sentence, mark in conventions.items()]
    rule = published_table(done[0].findings).notes if done else []
    return Table(header, rows, 3, [*notes, "Spread: standard deviation over our repeats (folds x seeds).", *rule])


def _section(one: Done) -> Section:
    """A table or figure: its picture, its claims, and behind a click its values and how they were measured."""
    findings = one.findings
    parts: list[Part] = [*drawings(one.item.name, findings)]
    if findings.claims:
        parts.append(claims_table(findings))
    measured: tuple[Part, ...] = (*warnings(findings), final_table(findings), conventions(findings))
    parts.append(Section("Final quality, and how it was measured", measured, folded=True))
    parts.append(say(f"All else: fedrank report {findings.folder}", tone="note"))
    over = f"{one.item.name} · {one.form}, {one.data}"
    return Section(f"{one.item.label}: {findings.title}", tuple(parts), over, one.anchor)


def _beside(out: Path, paper: Paper) -> Path:
    return out.with_name(f"{out.stem}-{paper.key}{out.suffix}")


_NOTE = (
    "A published value is met if it lies within the spread of our repeats. Quick forms are far shorter than the "
    "published experiments, mostly on made-up data: they show that an experiment works, and what does not hold there "
    "may hold in full."
)

"""The report on the papers: published and measured values, and a verdict on every claim."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from fedrank.experiments.report.analysis import Analysis, analyse, what_final_means
from fedrank.experiments.report.claims import CANNOT, FAILS, HOLDS, OPEN, UNTESTED, Stated, Verdict, judge_all
from fedrank.experiments.report.compose import conventions, warnings
from fedrank.experiments.report.contrast import across
from fedrank.experiments.report.formatting import heading
from fedrank.experiments.report.html import page
from fedrank.experiments.report.published_values import WITHIN, PublishedComparison
from fedrank.experiments.report.sections import Cell, Part, Section, Span, Table, paragraph
from fedrank.experiments.report.tables import (
    PUBLISHED,
    PUBLISHED_RULE,
    TONES,
    claims_table,
    final_table,
    power,
    published_cells,
    published_tone,
    tested_over,
    with_interval,
)
from fedrank.experiments.runner.runs import Runs, load_runs
from fedrank.files import write_atomic
from fedrank_papers.figures import drawings
from fedrank_papers.items import ON, QUICK, UNLEARNED, Item, Paper, changed, other_folds, papers

TITLE = "The papers, measured"
VERDICTS = (HOLDS, FAILS, OPEN, UNTESTED)
IN_WORDS = {
    HOLDS: ("holds", "hold"),
    FAILS: ("does not hold", "do not hold"),
    OPEN: ("is undecided", "are undecided"),
    UNTESTED: ("was not tested", "were not tested"),
}
NOTHING: Mapping[str, Runs] = {}


class Footnotes:
    """Short verdicts of a table, and below it why they are not clearer: each reason once."""

    def __init__(self) -> None:
        self._marks: dict[str, str] = {}

    def short(self, claim: Verdict) -> str:
        """A verdict with the mark of its reason; the power of the design has a separate column."""
        if not claim.reason:
            return claim.verdict
        reason = (claim.outlook or claim.reason).removeprefix(f"{CANNOT}: ")
        mark = self._marks.setdefault(reason, f"({len(self._marks) + 1})")
        return f"{CANNOT if claim.reason.startswith(CANNOT) else claim.verdict} {mark}"

    @property
    def notes(self) -> list[str]:
        return [f"{mark} {reason[0].upper()}{reason[1:]}." for reason, mark in self._marks.items()]


class Tested(Protocol):
    """An experiment with verdicts: from run folders, or from a file of evidence."""

    @property
    def label(self) -> str: ...
    @property
    def form(self) -> str: ...
    @property
    def data(self) -> str: ...
    @property
    def claims(self) -> tuple[Verdict, ...]: ...
    @property
    def values(self) -> Sequence[tuple[str, ...]]: ...


@dataclass(frozen=True)
class Done:
    """Finished runs of a table or figure."""

    item: Item
    form: str  # "whole" or "quick", ", unlearned", and changed settings
    analysis: Analysis  # without published values of other data or settings
    published: tuple[PublishedComparison, ...]  # all published values

    @property
    def label(self) -> str:
        return self.item.label

    @property
    def claims(self) -> tuple[Verdict, ...]:
        return self.analysis.claims

    @property
    def values(self) -> list[tuple[str, ...]]:
        return value_rows(self.analysis, self.analysis.published)

    @property
    def data(self) -> str:
        return str(self.analysis.runs.finished[0].data.get("name", ""))

    @property
    def anchor(self) -> str:
        return re.sub(r"[^\w-]+", "-", f"{self.analysis.folder.parent.name}-{self.analysis.folder.name}")

    @property
    def repeats(self) -> str:
        counts = sorted({len(variant.repeats) for variant in self.analysis.variants})
        return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def write_papers_report(folder: Path, out: Path) -> str:
    """Write the overview, and one page per paper next to it; returns a summary sentence."""
    runs = load_runs(folder) if folder.is_dir() else Runs()
    known = papers()
    done = match(known, analyse(runs) if len(runs.finished) else [])
    tried = unfinished(known, runs)
    for paper in known:
        write_atomic(_beside(out, paper), paper_page(paper, done[paper.key], out.name, tried))
    everything = [one for some in done.values() for one in some]
    write_atomic(out, overview_page(known, done, out, tried))
    return summary(everything)


def unfinished(known: Sequence[Paper], runs: Runs) -> dict[str, Runs]:
    """Unfinished runs of tables and figures, by the name of their experiment, in all forms."""
    left: dict[str, Runs] = {}
    for item in (item for paper in known for item in paper.items):
        ours = _ours(item)
        some = tuple(run for run in runs if run.status != "finished" and ours.fullmatch(_called(run.folder)))
        if some:
            left[item.name] = Runs(some)
    return left


def _ours(item: Item) -> re.Pattern[str]:
    """The names of folders with runs of a table or figure."""
    return re.compile(rf"{re.escape(item.name)}({QUICK})?({ON}.+?)?({UNLEARNED})?")


def _called(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def match(known: Sequence[Paper], reported: Sequence[Analysis]) -> dict[str, list[Done]]:
    """Finished runs of tables and figures by paper; other runs are left out."""
    done: dict[str, list[Done]] = {}
    for paper in known:
        done[paper.key] = []
        for item in paper.items:
            ours = _ours(item)
            for analysis in reported:
                fits = ours.fullmatch(_called(analysis.folder))
                if fits:
                    quick, elsewhere, unlearned = fits.groups()
                    form = ("quick" if quick else "whole") + (", unlearned" if unlearned else "")
                    other = [] if analysis.grid is None else changed(item.name, analysis.grid, bool(quick))
                    form += f", changed: {', '.join(other)}" if other else ""
                    folds = analysis.grid is not None and other_folds(item.name, analysis.grid, bool(quick))
                    own = not (elsewhere or paper.other_data or other or folds)
                    shown = analysis if own else replace(analysis, published=())
                    done[paper.key].append(Done(item, form, shown, analysis.published))
    return done


def summary(done: Sequence[Tested]) -> str:
    """The number of tested claims by verdict, in one sentence."""
    verdicts = Counter(claim.verdict for one in done for claim in one.claims)
    if not verdicts:
        return "No claim has been tested yet; `fedrank papers run` runs the experiments."
    counts = ", ".join(f"{n} {IN_WORDS[verdict][n > 1]}" for verdict in VERDICTS if (n := verdicts[verdict]))
    values = [row for one in done for row in one.values]
    met = sum(row[VERDICT] == WITHIN for row in values)
    published = (
        f" Of {len(values)} published values {met} are within the 95% confidence interval of ours." if values else ""
    )
    experiments = "1 experiment" if len(done) == 1 else f"{len(done)} experiments"
    return f"{sum(verdicts.values())} tests of claims in {experiments}: {counts}.{published}"


def overview_page(
    known: Sequence[Paper], done: dict[str, list[Done]], out: Path, tried: Mapping[str, Runs] = NOTHING
) -> str:
    """The page with the results of every table and figure."""
    everything = [one for some in done.values() for one in some]
    parts: list[Part] = [paragraph(summary(everything), tone="lead")]
    for paper in sorted(known, key=lambda paper: not done[paper.key]):  # papers with results first
        authors, link = f"{paper.authors}, {paper.year}", _beside(out, paper).name
        parts.append(Section(paper.title, (overview(paper, done[paper.key], tried),), authors, link=link))
    return page(TITLE, [Section(TITLE, (*parts, paragraph(_NOTE, tone="note")))])


def paper_page(paper: Paper, done: Sequence[Done], back: str, tried: Mapping[str, Runs] = NOTHING) -> str:
    """The page on one paper: contradictions, findings, values and figures."""
    parts: list[Part] = [paragraph(Span(TITLE, link=back), tone="note"), paragraph(summary(done), tone="lead")]
    if seen := remarks(paper, done):
        parts.append(Section("Observations that contradict the paper, or that it does not mention", tuple(seen)))
    if any(one.analysis.claims for one in done):
        parts.append(Section("Findings, one data set each", (findings_table(done),)))
        parts.append(Section("Findings over several data sets", tuple(general(done))))
    if any(one.published for one in done):
        rows = [row for one in done for row in value_rows(one.analysis, one.published)]
        parts.append(Section("Published and measured", (values_table(rows),)))
    others = [[Cell(row.item), Cell(row.command)] for row in paper.other]
    also = [Table(["also", "command"], others, 2)] if others else []
    parts.append(Section("Tables and figures", (overview(paper, done, tried), *also)))
    parts += map(_section, done)
    parts.append(paragraph(_NOTE, tone="note"))
    return page(paper.title, [Section(paper.title, tuple(parts), f"{paper.authors}, {paper.year}")])


def overview(paper: Paper, done: Sequence[Done], tried: Mapping[str, Runs] = NOTHING) -> Table:
    """One row for each table or figure and each form of it that ran; failed items are marked."""
    rows = []
    ran = [one.item.name for one in done]
    for item in sorted(paper.items, key=lambda item: (item.name not in ran, item.name not in tried)):
        ours = [one for one in done if one.item is item]
        if not ours:
            why, tone, hint = _why_not(item, tried.get(item.name, Runs()))
            verdict = Cell(f"{why}; not tested here" if item.grid.about.claims else why, tone=tone, hint=hint)
            rows.append([*map(Cell, (item.label, item.name, "-", item.data, "0", "-")), verdict])
        for one in ours:
            values = one.analysis.published
            met = sum(entry.verdict == WITHIN for entry in values)
            verdicts = Counter(claim.verdict for claim in one.analysis.claims)
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
    """Why nothing was measured, its tone, and details."""
    failed = [run for run in left if run.status in ("failed", "broken")]
    if failed:
        reasons = " ".join(dict.fromkeys(f"{run.reason}." for run in failed))
        return f"failed: {_runs(len(failed))}, {failed[0].reason}", "worse", reasons
    if len(left):
        under_way = any(run.status == "running" for run in left)
        return ("running" if under_way else f"interrupted: {_runs(len(left))}"), "warn", ""
    return ("not run: its data are missing" if item.missing else "not run"), "quiet", item.missing


def remarks(paper: Paper, done: Sequence[Done]) -> list[Part]:
    """Our observations, with the runs that show them; those without runs are only counted."""
    here = {one.item.name for one in done}
    shown = [row for row in paper.remarks if done and (not row.experiments or here & {*row.experiments})]
    parts: list[Part] = []
    if shown:
        rows = [[Cell(row.says), Cell(row.evidence)] for row in shown]
        parts.append(Table(["observation", "evidence"], rows, 2))
    if left := len(paper.remarks) - len(shown):
        verb = "1 more remark rests" if left == 1 else f"{left} more remarks rest"
        parts.append(paragraph(f"{verb} on experiments that were not run here.", tone="note"))
    return parts


def findings_table(done: Sequence[Done]) -> Table:
    """Every claim with its verdict, in the order of the paper."""
    rows = []
    for one in done:
        for claim in one.analysis.claims:
            where = f"{one.item.label}, {one.form}, {one.data}"
            verdict = Cell(claim.verdict, tone=TONES[claim.verdict], hint=claim.reason)
            rows.append([Cell(claim.says), Cell(where), Cell(heading(claim.column)), verdict, *claim_cells(claim)])
    return Table(["finding", "tested in", "measure", "verdict", *CLAIM], rows, 4)


CLAIM = ("difference", "tested over", "repeats", "power")


def claim_cells(claim: Verdict) -> list[Cell]:
    """Cells under the headings of CLAIM."""
    return [
        Cell(text) for text in (with_interval(claim), tested_over(claim), str(claim.contrast.repeats), power(claim))
    ]


def in_general(done: Sequence[Tested]) -> dict[tuple[str, str, str], Verdict]:
    """Verdicts on claims over all data sets on which they were tested, by label, form and text."""
    groups: dict[tuple[str, str], dict[str, dict[str, Verdict]]] = {}
    for one in done:
        same = groups.setdefault((one.label, one.form), {})
        for claim in one.claims:
            same.setdefault(claim.says, {})[one.data] = claim
    found = {}
    for (label, form), claims in groups.items():
        stated = []
        for each in claims.values():
            tested = [claim for claim in each.values() if claim.contrast.repeats]
            first, found_in = next(iter(each.values())), [claim.contrast for claim in tested]
            over = across([one.difference for one in found_in], sum(one.repeats for one in found_in))
            stated.append(Stated(first.says, first.column, over, first.within, first.reported, first.scale))
        for verdict in judge_all(stated):
            found[label, form, verdict.says] = verdict
    return found


def general(done: Sequence[Tested]) -> list[Part]:
    """Every claim over several data sets: a finding on one data set may not hold on another."""
    rows = []
    found, reasons = in_general(done), Footnotes()
    for (label, form, says), claim in found.items():
        if claim.contrast.counted < 2:
            continue
        verdict = Cell(reasons.short(claim), tone=TONES[claim.verdict])
        rows.append([Cell(says), Cell(f"{label}, {form}"), Cell(heading(claim.column)), verdict, *claim_cells(claim)])
    parts: list[Part] = []
    if rows:
        note = "Each data set counts once, with its mean difference; t-test over data sets."
        parts.append(Table(["finding", "tested in", "measure", "verdict", *CLAIM], rows, 4, [*reasons.notes, note]))
    if alone := len(found) - len(rows):
        claims = "1 claim was" if alone == 1 else f"{alone} claims were"
        parts.append(paragraph(f"{claims} tested on one data set; for other data sets, {CANNOT}."))
    return parts


VERDICT = -2  # the cell of a row of published values that has the verdict


def value_rows(analysis: Analysis, published: Sequence[PublishedComparison]) -> list[tuple[str, ...]]:
    """Published values next to measured ones: what, measure, cells of PUBLISHED, verdict, convention."""
    rows = []
    for entry in published:
        runs = analysis.runs.finished
        meaning = next((run.conventions[entry.column] for run in runs if entry.column in run.conventions), "")
        sentence = " ".join([meaning or heading(entry.column), what_final_means(analysis)[0]])
        first, measured, *rest = published_cells(entry)
        verdict = entry.verdict
        if not analysis.published:
            rest = ["-", rest[1], *["-"] * (len(rest) - 2)]
            verdict = "other data or settings: only the order is comparable"
        what = f"{entry.source}: {entry.variant.label}"
        rows.append((what, heading(entry.column), first, measured, *rest, verdict, sentence))
    return rows


def values_table(found: Sequence[tuple[str, ...]]) -> Table:
    """Every published value next to the measured one, with its convention."""
    conventions: dict[str, str] = {}
    rows = []
    for what, measure, *cells, verdict, sentence in found:
        mark = conventions.setdefault(sentence, f"({chr(ord('a') + len(conventions))})")
        rows.append([*map(Cell, (what, measure, mark, *cells)), Cell(verdict, tone=published_tone(verdict))])
    header = ["what", "measure", "convention", *PUBLISHED, "verdict"]
    notes = [f"{mark} {sentence}" for sentence, mark in conventions.items()]
    return Table(header, rows, 3, [*notes, PUBLISHED_RULE])


def _section(one: Done) -> Section:
    """A table or figure: its picture and claims, and folded its values and conventions."""
    analysis = one.analysis
    parts: list[Part] = [*drawings(one.item.name, analysis)]
    if analysis.claims:
        parts.append(claims_table(analysis))
    measured: tuple[Part, ...] = (*warnings(analysis), final_table(analysis), conventions(analysis))
    parts.append(Section("Final quality, and how it was measured", measured, folded=True))
    parts.append(paragraph(f"Full report: fedrank report {analysis.folder}", tone="note"))
    over = f"{one.item.name} · {one.form}, {one.data}"
    return Section(f"{one.item.label}: {analysis.title}", tuple(parts), over, one.anchor)


def _beside(out: Path, paper: Paper) -> Path:
    return out.with_name(f"{out.stem}-{paper.key}{out.suffix}")


_NOTE = (
    "A published value is met if it is within the 95% confidence interval of ours. Quick forms are much shorter than "
    "the published experiments, mostly on synthetic data: they show that an experiment works, and a claim that fails "
    "there may hold in the full experiment."
)

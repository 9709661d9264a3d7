"""The notebook behind all claims: the results of every experiment, generated from run folders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedrank.experiments.report.analysis import Analysis, untested, what_final_means
from fedrank.experiments.report.formatting import duration, heading
from fedrank.experiments.report.sections import Listing, Pairs, Part, Points, Section, paragraph
from fedrank.experiments.report.tables import data_facts, settings_rows
from fedrank_papers.entries import OUR_OWN, Entry, page_link
from fedrank_papers.items import Paper
from fedrank_papers.pivot import value_tables

TITLE = "Notebook: the results of every experiment"
CONVENTIONS = "Conventions"


def notebook(known: Sequence[Paper], by_paper: Mapping[str, Sequence[Entry]], here: Path, claims: Path) -> Section:
    """A section for each experiment with runs, paper by paper; `here` is the path of the page."""
    everything = [entry for some in by_paper.values() for entry in some]
    parts: list[Part] = [
        paragraph(
            "This page is generated from run folders, together with the page of claims: final values of every "
            "variant next to the baseline without learning, in the first measure of its experiment and in those of "
            "its claims, or in all measures for an experiment without claims. ± is the standard deviation over "
            "repeats (folds x seeds), and is not a test; ▲ and ▼ mark significant differences, by the same tests as "
            "for claims. “What reappeared, and what did not” has further observations."
        )
    ]
    papers = {paper.title: paper for paper in known}
    for title, some in by_paper.items():
        paper = papers.get(title)
        shown: set[str] = set()
        sections = [_section(entry, paper, shown, here, claims) for entry in some]
        rest = [] if paper is None else [row.says for row in paper.remarks if not row.experiments]
        first = [Points(tuple(rest))] if rest else []
        over = "" if paper is None else f"{paper.authors}, {paper.year}"
        parts.append(Section(title if paper else OUR_OWN, (*first, *sections), over))
    if everything:
        parts.append(Section(CONVENTIONS, (Points(tuple(_meanings(everything))),)))
    return Section(TITLE, tuple(parts))


def kept(before: str, after: str) -> str:
    """The page `after` with those experiments of the page `before` that it does not have."""
    old, new = _chapters(before), _chapters(after)
    last = f"## {CONVENTIONS}"
    order = [chapter for chapter in dict.fromkeys([*old, *new]) if chapter != last]
    texts = [text for each in order for text in (old.get(each, {}) | new.get(each, {})).values()]
    meanings = "".join([*old.get(last, {}).values(), *new.get(last, {}).values()]).splitlines()
    points = dict.fromkeys(line for line in meanings if line.startswith("- "))
    return "\n\n".join([*texts, *([last, "\n".join(points)] if points else [])]) + "\n"


def _chapters(page: str) -> dict[str, dict[str, str]]:
    """The text of a page by heading of the second and third level, with what stands before the first."""
    found: dict[str, dict[str, str]] = {}
    chapter = ""
    for text in re.split(r"^(?=###? )", page, flags=re.MULTILINE):
        name = text.partition("\n")[0] if text.startswith("##") else ""
        chapter = name if name.startswith("## ") else chapter
        found.setdefault(chapter, {})[name] = text.rstrip()
    return {name: some for name, some in found.items() if any(some.values())}


def _section(entry: Entry, paper: Paper | None, shown: set[str], here: Path, claims: Path) -> Section:
    """The description and results of one experiment; a remark appears at the first experiment that shows it."""
    analysis, columns = entry.analysis, _columns(entry.analysis)
    parts: list[Part] = []
    if analysis.claims:
        parts.append(paragraph("Claims: ", page_link("verdicts", claims, here, paper.title if paper else OUR_OWN), "."))
    parts += [Listing(entry.command, "bash"), Pairs(tuple(_facts(entry))), *value_tables(analysis, columns)]
    parts += [paragraph(note, tone="warn") for note in _warnings(analysis, columns)]
    item = "" if entry.item is None else entry.item.name
    seen = [] if paper is None else [row.says for row in paper.remarks if item in row.experiments]
    if fresh := [text for text in seen if text not in shown]:
        shown.update(fresh)
        parts += [paragraph("Observations:"), Points(tuple(fresh))]
    return Section(entry.name, tuple(parts), entry.caption)


def _facts(entry: Entry) -> list[tuple[str, str]]:
    """The data, the number of runs, and the processor time."""
    analysis = entry.analysis
    runs = f"{len(analysis.runs.finished):,}, {duration(entry.seconds)} of processor time"
    facts = [("data", "; ".join([entry.data, *data_facts(analysis.runs.finished[0].data)]))]
    facts += [(name, text) for name, text in settings_rows(analysis) if name == "repeats"]
    facts += [("form", entry.form)] if entry.form else []
    facts.append(("runs", f"{runs}, the last on {entry.ended}" if entry.ended else runs))
    return [*facts, ("final", what_final_means(analysis)[0])]


def _columns(analysis: Analysis) -> list[str]:
    """The first measure, and those of claims or published values; all if there are none."""
    asked = [claim.column for claim in analysis.claims] + [value.column for value in analysis.published]
    wanted = dict.fromkeys([analysis.main, *(asked or analysis.measures)])
    return [column for column in wanted if column in analysis.columns]


def _warnings(analysis: Analysis, columns: Sequence[str]) -> list[str]:
    """Warnings about the shown values."""
    shown = {column: found for column, found in analysis.comparisons.items() if column in columns}
    hidden = {*untested(analysis, analysis.comparisons)} - {*(tests := untested(analysis, shown))}
    remaining = [note for note in analysis.notes if note not in hidden]
    return [*remaining, *(note for note in tests if note not in remaining)]


def _meanings(everything: Sequence[Entry]) -> list[str]:
    """The meanings of the shown values, each once."""
    meanings: dict[str, None] = {}
    for entry in everything:
        for column in _columns(entry.analysis):
            for run in entry.analysis.runs.finished:
                if column in run.conventions:
                    meanings[f"{heading(column)}: {run.conventions[column]}"] = None
    sentences = (sentence for entry in everything for sentence in what_final_means(entry.analysis)[1:])
    return [*meanings, *dict.fromkeys(sentences)]

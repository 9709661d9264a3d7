"""Every experiment that was run, as the pages of claims and of details name it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.markdown import anchor
from fedrank.experiments.report.sections import Span
from fedrank.papers.items import Item, Paper, captioned, command
from fedrank.papers.page import Done

OUR_OWN = "Experiments that belong to no paper"


@dataclass(frozen=True)
class Entry:
    """One experiment with finished runs."""

    name: str  # its folder below all runs: the heading of its sections
    caption: str  # what it is
    form: str  # "whole", "quick", and which settings were changed; empty for one of our own
    data: str
    command: str  # that asks for its runs
    findings: Analysis
    item: Item | None = None  # of a paper

    @property
    def seconds(self) -> float:
        """Processor time of all its runs."""
        readings = (reading for variant in self.findings.variants for reading in variant.repeats.values())
        spent = [reading.costs.get("cpu_seconds", math.nan) for reading in readings]
        return sum(seconds for seconds in spent if not math.isnan(seconds))

    @property
    def ended(self) -> str:
        """The day of its last run."""
        return max((run.ended for run in self.findings.runs.finished if run.ended), default="")[:10]

    def link(self, text: str, page: Path, where: Path) -> Span:
        """Words that lead from one page to the section about this on another."""
        return Span(text, link=f"{Path(os.path.relpath(page, where.parent)).as_posix()}#{anchor(self.name)}")


def entries(
    known: Sequence[Paper], done: Mapping[str, Sequence[Done]], found: Sequence[Analysis], folder: Path
) -> dict[str, list[Entry]]:
    """By the titles of papers, in their order; what belongs to none comes last."""
    told: dict[str, list[Entry]] = {}
    for paper in known:
        told[paper.title] = [_of_paper(one, folder) for one in done[paper.key]]
    ours = {one.findings.folder for some in done.values() for one in some}
    told[OUR_OWN] = [_of_our_own(findings, folder) for findings in found if findings.folder not in ours]
    return {title: some for title, some in told.items() if some}


def _of_paper(one: Done, folder: Path) -> Entry:
    grid, item = one.findings.grid, one.item
    asked = "" if grid is None else command(item.name, grid, one.form.startswith("quick"))
    return Entry(
        _below(folder, one.findings),
        captioned(item.label, one.findings.title),
        one.form,
        one.data,
        asked,
        one.findings,
        item,
    )


def _of_our_own(findings: Analysis, folder: Path) -> Entry:
    name = _below(folder, findings)
    data = str(findings.runs.finished[0].data.get("name", ""))
    return Entry(name, findings.title, "", data, f"fedrank run {name}/experiment.toml", findings)


def _below(folder: Path, findings: Analysis) -> str:
    place = findings.folder
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else findings.name

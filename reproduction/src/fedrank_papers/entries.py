"""Every experiment with finished runs, as the pages of claims and details name it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.sections import Span
from fedrank_papers.items import Item, Paper, captioned, command
from fedrank_papers.page import Done

OUR_OWN = "Experiments without a paper"


def anchor(heading: str) -> str:
    """By what a link finds a heading, on code hosts as on the site.

    >>> anchor("thesis/fig-4-8, in short")
    'thesisfig-4-8-in-short'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@dataclass(frozen=True)
class Entry:
    """One experiment with finished runs."""

    name: str  # its folder within all runs: the heading of its sections
    caption: str  # title
    form: str  # "whole", "quick", and changed settings; empty without a paper
    data: str
    command: str  # the command that executes its runs
    analysis: Analysis
    item: Item | None = None  # of a paper

    @property
    def seconds(self) -> float:
        """Processor time of all its runs."""
        readings = (reading for variant in self.analysis.variants for reading in variant.repeats.values())
        spent = [reading.costs.get("cpu_seconds", math.nan) for reading in readings]
        return sum(seconds for seconds in spent if not math.isnan(seconds))

    @property
    def ended(self) -> str:
        """The day of its last run."""
        return max((run.ended for run in self.analysis.runs.finished if run.ended), default="")[:10]


def page_link(text: str, page: Path, where: Path, heading: str) -> Span:
    """Text with a link from one page to a heading of another."""
    return Span(text, link=f"{Path(os.path.relpath(page, where.parent)).as_posix()}#{anchor(heading)}")


def entries(
    known: Sequence[Paper], done: Mapping[str, Sequence[Done]], found: Sequence[Analysis], folder: Path
) -> dict[str, list[Entry]]:
    """Experiments by the titles of papers, in their order; those without a paper come last."""
    by_paper: dict[str, list[Entry]] = {}
    for paper in known:
        by_paper[paper.title] = [_of_paper(one, folder) for one in done[paper.key]]
    ours = {one.analysis.folder for some in done.values() for one in some}
    by_paper[OUR_OWN] = [_of_our_own(analysis, folder) for analysis in found if analysis.folder not in ours]
    return {title: some for title, some in by_paper.items() if some}


def _of_paper(one: Done, folder: Path) -> Entry:
    grid, item = one.analysis.grid, one.item
    asked = "" if grid is None else command(item.name, grid, one.form.startswith("quick"))
    return Entry(
        _below(folder, one.analysis),
        captioned(item.label, one.analysis.title),
        one.form,
        one.data,
        asked,
        one.analysis,
        item,
    )


def _of_our_own(analysis: Analysis, folder: Path) -> Entry:
    name = _below(folder, analysis)
    data = str(analysis.runs.finished[0].data.get("name", ""))
    return Entry(name, analysis.title, "", data, f"fedrank run {name}/experiment.toml", analysis)


def _below(folder: Path, analysis: Analysis) -> str:
    place = analysis.folder
    return place.relative_to(folder).as_posix() if place.is_relative_to(folder) else analysis.name

"""One page of all claims: what the runs in a folder say about each, and how it can be done again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedrank.files import write_whole
from fedrank.papers.items import command, papers
from fedrank.papers.page import CLAIM, Done, claim_cells, general, match, summary, values_table
from fedrank.report.findings import Findings, find
from fedrank.report.markdown import markdown
from fedrank.report.sections import Cell, Part, Section, Table, say
from fedrank.report.tables import duration, effect_size, heading, told_verdict
from fedrank.run.runs import Runs, load_runs

TITLE = "Every claim, and what the runs say"


def write_claims(folder: Path, out: Path) -> str:
    """Write the page as Markdown; returns what it says in one sentence."""
    runs = load_runs(folder) if folder.is_dir() else Runs()
    found = find(runs) if len(runs.finished) else []
    done = [one for some in match(papers(), found).values() for one in some]
    write_whole(out, markdown([claims_page(done, found, folder)]))
    return summary(done)


def claims_page(done: Sequence[Done], found: Sequence[Findings], folder: Path) -> Section:
    """All claims, published values and runs; `found` may hold experiments that belong to no paper's item."""
    ours = {one.findings.folder for one in done}
    others = [findings for findings in found if findings.folder not in ours and findings.claims]
    parts: list[Part] = [
        say(summary(done), tone="lead"),
        say(
            "Written from run folders by “fedrank papers report --out claims.md”, and not by hand. A verdict is about "
            "the data set that is named; what is so in general stands in a section of its own. How it is judged is "
            "told in “How to compare two methods honestly”; details, and what was seen besides, in “What reappeared, "
            "and what did not”."
        ),
        say(_cost([findings for findings in found if findings.folder in ours or findings in others])),
        Section("Claims, each on one data set", (_claims(done, others, folder),)),
    ]
    if any(one.findings.claims for one in done):
        parts.append(Section("The same in general", tuple(general(done))))
    if compared := [one for one in done if one.findings.published]:
        parts.append(Section("Published and measured", (values_table(compared),)))
    parts.append(Section("Runs", (_runs(done, others, folder),)))
    return Section(TITLE, tuple(parts))


def _claims(done: Sequence[Done], others: Sequence[Findings], folder: Path) -> Table:
    rows = []
    for where, data, asked, findings in _each(done, others, folder):
        for claim in findings.claims:
            effect = Cell(effect_size(claim.contrast.effect))
            cells = [Cell(claim.says), Cell(told_verdict(claim), strong=not claim.why), Cell(heading(claim.column))]
            rows.append([Cell(where), *cells, *claim_cells(claim), effect, Cell(data), Cell(asked)])
    header = ["experiment", "claim", "verdict", "measure", *CLAIM, "effect (d)", "data", "command"]
    return Table(header, rows, 4)


def _each(done: Sequence[Done], others: Sequence[Findings], folder: Path) -> list[tuple[str, str, str, Findings]]:
    """Where claims were tested, on which data, by which command."""
    rows = []
    for one in done:
        grid = one.findings.grid
        asked = "" if grid is None else command(one.item.name, grid, one.form.startswith("quick"))
        rows.append((f"{one.item.name}, {one.form}", one.data, asked, one.findings))
    for findings in others:
        name = (
            findings.folder.relative_to(folder).as_posix() if findings.folder.is_relative_to(folder) else findings.name
        )
        data = str(findings.runs.finished[0].data.get("name", ""))
        rows.append((f"{name}, our own", data, f"fedrank run {name}/experiment.toml", findings))
    return rows


def _runs(done: Sequence[Done], others: Sequence[Findings], folder: Path) -> Table:
    """What was run, and what it took."""
    rows = []
    for where, data, _, findings in _each(done, others, folder):
        finished = findings.runs.finished
        verdicts = Counter(claim.verdict for claim in findings.claims)
        told = ", ".join(f"{verdict}: {n}" for verdict, n in verdicts.items()) or "no claim"
        ended = max((run.ended for run in finished if run.ended), default="")[:10]
        cells = (where, data, told, ended, str(len(finished)), duration(_seconds(findings)))
        rows.append([Cell(text) for text in cells])
    return Table(["experiment", "data", "verdicts", "ended", "runs", "processor time"], rows, 4)


def _seconds(findings: Findings) -> float:
    spent = [run.costs.get("cpu_seconds", math.nan) for run in findings.runs.finished]
    return sum(seconds for seconds in spent if not math.isnan(seconds))


def _cost(found: Sequence[Findings]) -> str:
    """Total time, and where."""
    finished = [run for findings in found for run in findings.runs.finished]
    where = (
        "; ".join(dict.fromkeys(run.processor for run in finished if run.processor)) or "a machine that is not known"
    )
    total = duration(sum(map(_seconds, found)))
    return f"{len(finished):,} runs of {len(found)} experiments took {total} of processor time on {where}."

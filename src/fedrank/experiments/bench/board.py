"""Comparisons, cards and the leaderboard of checked submissions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrank.experiments.bench.check import Cell, CheckedSubmission, check_folder
from fedrank.experiments.bench.submission import NOTHING
from fedrank.experiments.bench.tasks import SETTINGS, SKYLINE, TRIED, VERSION, cells_of, data_of, frozen
from fedrank.experiments.report.contrast import Contrast, contrast
from fedrank.experiments.report.formatting import duration, interval, number, probability, signed, spread
from fedrank.experiments.report.html import page
from fedrank.experiments.report.markdown import markdown
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import Cell as Shown
from fedrank.experiments.report.sections import Listing, Section
from fedrank.experiments.report.statistics import LEVEL, holm, power_of
from fedrank.files import write_atomic

MEASURE = "ndcg@10"
POWER = 0.8
RULES = (
    f"Every submission may try {TRIED} settings before it is frozen, on validation queries; “tried” is what its author "
    "states.",
    "Do nothing is the order that users have without learning; in unlearning, the model that was not changed.",
    "Skyline: the true relevance labels of all queries on one server; in unlearning, training again without the "
    "client; in silos, one model on the lists of all silos with three times the passes.",
    f"Smallest difference: what a two-sided test at {LEVEL:.0%} shows with a probability of {POWER:.0%} in this cell.",
    "Rows are checked for their bytes (data, seeds, specs, files). Only “fedrank bench run SUBMISSION --verify” finds "
    "rows that were invented, or settings that fit the public seeds.",
)
WORSE = (
    f"▼: significantly worse than doing nothing (p < {LEVEL:g}, over queries, corrected for the rows of the column)."
)


def smallest_difference(found: Contrast) -> float:
    """The smallest true difference that a test with this standard error shows with a probability of 80 %."""
    if not found.tested or found.error <= 1e-12:
        return math.nan
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        shown = power_of(middle, found.error, found.degrees_of_freedom) >= POWER
        low, high = (low, middle) if shown else (middle, high)
    return high


def read_entries(folders: Sequence[Path]) -> tuple[list[CheckedSubmission], list[str]]:
    """The valid submissions of folders, and why others are refused; the skyline beside them comes first, if any."""
    beside = [folder.parent / SKYLINE for folder in folders]
    entries: dict[str, CheckedSubmission] = {}
    refused = []
    for folder in dict.fromkeys(map(Path.resolve, (*(one for one in beside if one.is_dir()), *folders))):
        try:
            entry = check_folder(folder)
            if entry.name in entries:
                raise ValueError(f"{entry.name}: there is another submission with this name")
            if entries and entry.short != next(iter(entries.values())).short:
                raise ValueError(f"{entry.name}: short and whole runs cannot be compared")
            entries[entry.name] = entry
        except ValueError as problem:
            refused.append(str(problem))
    return list(entries.values()), refused


def skyline_row(entries: Sequence[CheckedSubmission], key: Cell) -> VariantRuns | None:
    """The row of the skyline in a cell: one for all tasks with clients."""
    task, cell = key
    wanted = (SKYLINE, data_of(cell)[0]) if "learner" in SETTINGS[task] else key
    return next((entry.rows.get(wanted) for entry in entries if entry.submission.is_skyline), None)


def leaderboard(entries: Sequence[CheckedSubmission], refused: Sequence[str]) -> list[Section]:
    """One table for each task: do nothing first, then the skyline, then submissions by their first cell."""
    short = bool(entries) and entries[0].short
    page = Section(f"FOLTR-Bench {VERSION}{', short form' * short}").paragraph(
        f"{MEASURE}, mean ± standard deviation over repeats. Higher is better. “fedrank bench compare” wrote this page "
        "from run folders; “How to submit to FOLTR-Bench” in the documentation describes the tasks and their cells."
    )
    page = page.points(RULES)
    if short:
        page = page.paragraph("The short form shows that a submission works. Its numbers are not results.")
    for task in SETTINGS:
        members = [entry for entry in entries if task in entry.submission.tasks and not entry.submission.is_skyline]
        if members:
            page = page.add(_task_table(task, members, entries, short))
    times = [(entry.name, entry.cpu_seconds) for entry in sorted(entries, key=lambda one: -one.cpu_seconds)]
    times = [("together", sum(seconds for _, seconds in times)), *times]
    page = page.add(Section("Processor time").pairs((name, duration(seconds)) for name, seconds in times))
    return [page.add(Section("Refused").points(refused)) if refused else page]


def _task_table(
    task: str, members: Sequence[CheckedSubmission], entries: Sequence[CheckedSubmission], short: bool
) -> Section:
    cells = [cell for cell in cells_of(task, short) if any((task, cell) in entry.rows for entry in members)]
    worse = {cell: _worse_than_nothing(members, (task, cell)) for cell in cells}

    def mean(entry: CheckedSubmission) -> float:
        row = entry.rows.get((task, cells[0]))
        return -math.inf if row is None else row.summary(MEASURE).mean

    def shown(rows: Sequence[VariantRuns | None], name: str = "") -> list[Shown]:
        return [
            Shown("-" if row is None else spread(MEASURE, row.summary(MEASURE)), mark="▼" * (name in worse[cell]))
            for cell, row in zip(cells, rows, strict=True)
        ]

    nothing = [next(entry.nothing[task, cell] for entry in members if (task, cell) in entry.rows) for cell in cells]
    sky = [skyline_row(entries, (task, cell)) for cell in cells]
    lines = [[NOTHING, *shown(nothing), "", ""], [SKYLINE, *shown(sky), "", ""]]
    for entry in sorted(members, key=lambda entry: -mean(entry)):
        rows = [entry.rows.get((task, cell)) for cell in cells]
        lines.append([entry.name, *shown(rows, entry.name), str(entry.submission.tried), _verified(entry)])
    power = [number(MEASURE, frozen().smallest.get(f"{task}/{cell}", math.nan)) for cell in cells]
    if not short:
        lines.append(["smallest difference", *power, "", ""])
    header, notes = ["", *cells, "tried", "verified"], [WORSE] if any(worse.values()) else []
    section = Section(task).table(header, lines, notes=notes)
    if task == "unlearning":
        section = section.pairs((entry.name, _cost(entry)) for entry in members)
    return section


def _worse_than_nothing(members: Sequence[CheckedSubmission], key: Cell) -> set[str]:
    """Names of the submissions that are significantly worse than doing nothing in a cell."""
    here = [entry for entry in members if key in entry.rows]
    found = [contrast(entry.rows[key], entry.nothing[key], MEASURE, single=True) for entry in here]
    adjusted = holm([one.p for one in found])
    return {e.name for e, one, p in zip(here, found, adjusted, strict=True) if p < LEVEL and one.difference < 0}


def _cost(entry: CheckedSubmission) -> str:
    shares = [
        value
        for (task, _), row in entry.rows.items()
        for one in row.repeats.values()
        if task == "unlearning" and one.receipt is not None
        if (value := one.receipt.cost.get("share_of_retraining")) is not None
    ]
    return f"{np.mean(shares):.0%} of the cost of training again" if shares else "cost unknown"


def _verified(entry: CheckedSubmission) -> str:
    if entry.overfitted is None:
        return "not yet"
    return f"no: {', '.join(entry.overfitted)}" if entry.overfitted else "yes"


def comparison(
    first: CheckedSubmission, second: CheckedSubmission, entries: Sequence[CheckedSubmission]
) -> list[Section]:
    """Two submissions in all cells that both have, tested with Holm's correction over the cells."""
    keys = [key for key in first.rows if key in second.rows]
    if not keys:
        raise ValueError(f"{first.name} and {second.name} have no task in common")
    found = [contrast(first.rows[key], second.rows[key], MEASURE) for key in keys]
    lines = []
    for key, one, p in zip(keys, found, holm([one.p for one in found]), strict=True):
        better = p < LEVEL and ("better" if one.difference > 0 else "worse")
        lines.append([
            "/".join(key),
            *_means([first.nothing[key], skyline_row(entries, key), first.rows[key], second.rows[key]]),
            Shown(signed(MEASURE, one.difference), tone=better or ""),
            interval(MEASURE, *one.interval()),
            probability(p),
            number(MEASURE, smallest_difference(one)),
        ])  # fmt: skip
    header = ["cell", NOTHING, SKYLINE, first.name, second.name, "difference", "95 % interval", "p (Holm)", "smallest"]
    notes = [f"{MEASURE}. {RULES[3]}", *sorted({f"Not tested: {one.reason}." for one in found if one.reason})]
    return [Section(f"{first.name} against {second.name}").table(header, lines, notes=notes)]


def card(entry: CheckedSubmission, entries: Sequence[CheckedSubmission]) -> list[Section]:
    """The card of one submission: what it is, its numbers with their power, and what they do not show."""
    submission = entry.submission
    facts = [
        ("task set", f"FOLTR-Bench {VERSION}{', short form: its numbers are not results' * entry.short}"),
        ("submission", f"{submission.file}, SHA-256 {submission.digest}"),
        ("settings tried", f"{submission.tried} of {TRIED} permitted, as its author states"),
        ("verified on derived seeds", _verified(entry)),
        ("processor time", duration(entry.cpu_seconds)),
        ("tasks entered", ", ".join(submission.tasks)),
        *((f"ε in {'/'.join(key)}", f"{value:.2f} per person, δ = 1e-5") for key, value in entry.epsilon.items()),
    ]
    if "unlearning" in submission.tasks:
        facts.append(("unlearning", _cost(entry)))
    lines = []
    for key, row in entry.rows.items():
        one = contrast(row, entry.nothing[key], MEASURE, single=True)
        stated = math.nan if entry.short else frozen().smallest.get("/".join(key), math.nan)
        means = _means([entry.nothing[key], None if key[0] == SKYLINE else skyline_row(entries, key)])
        lines.append([
            "/".join(key), *means, spread(MEASURE, row.summary(MEASURE)), str(len(row.repeats)),
            interval(MEASURE, *one.interval()), number(MEASURE, stated),
        ])  # fmt: skip
    header = ["cell", NOTHING, SKYLINE, submission.name, "repeats", "against do nothing, 95 %", "smallest"]
    made = Section(f"Card: {submission.name}").paragraph(str(submission.settings.get("title", "")) or submission.name)
    made = made.pairs(facts).table(header, lines, notes=[f"{MEASURE}. {RULES[3]}"]).points(RULES)
    language = "python" if submission.suffix == ".py" else "toml"
    return [made, Section("The submission").add(Listing(submission.text, language))]


def _means(rows: Sequence[VariantRuns | None]) -> list[str]:
    return ["-" if row is None else number(MEASURE, row.summary(MEASURE).mean) for row in rows]


def write_page(title: str, sections: Sequence[Section], out: Path) -> None:
    """Write sections as a page; the file is replaced only when the new one is complete."""
    if out.suffix not in (".html", ".md"):
        raise ValueError(f"the page must end in .html or .md (got {out})")
    write_atomic(out, page(title, sections) if out.suffix == ".html" else markdown(sections))

"""The output of `fedrank data` as sections: data sets, clients, click logs and sketches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrank.experiments.report.formatting import signed
from fedrank.experiments.report.sections import Cell, Part, Points, Section, Span, Table, paragraph
from fedrank.ranking.propensity import Propensities, ShownResults

if TYPE_CHECKING:
    from fedrank.data.catalog import DataSet
    from fedrank.data.check import FileCheck
    from fedrank.data.describe_log import LogDescription, ShownDescription
    from fedrank.data.drift import Drift
    from fedrank.experiments.runner.client_summary import ClientSummary, Group

MAX_ROWS = 20  # clients in a table


def about_catalog(
    available: Sequence[tuple[DataSet, Any]], collections: Sequence[tuple[str, Path | None]] = ()
) -> list[Section]:
    """The catalog of data sets, where each is stored or available, and local text collections."""
    rows, positions = [], []
    for entry, folder in available:
        counts = (f"{count:,}" if count else "" for count in (entry.queries, entry.documents))
        built_in = entry.layout == "built-in"
        here = "built in" if built_in else "no" if folder is None else "yes"
        rows.append([entry.name, *counts, str(entry.features), f"0-{entry.grades - 1}", str(entry.folds), here])
        if not built_in:
            position = "; ".join(filter(None, (entry.publisher, entry.licence))) if folder is None else str(folder)
            # An address stays whole, so it can be copied.
            positions.append(paragraph(Span(entry.name, "strong"), ": ", Span(position, "code")))
    table = Table(["name", "queries", "documents", "features", "grades", "folds", "here"], rows, unbroken_column=0)
    where = paragraph("Location, or where to get them:", tone="quiet")
    named = [
        paragraph(Span(name, "strong"), ": ", "built in" if folder is None else Span(str(folder), "code"))
        for name, folder in collections
    ]
    over = 'for data.collection, and for kind = "silo"'
    of_texts = [Section("Text collections", tuple(named), over)] if named else []
    return [Section("", (table,)), *of_texts, Section("", (where, *positions))]


def about_checks(checks: Sequence[FileCheck]) -> list[Section]:
    """Counts of sound files, what is odd about them, and what is wrong with the others."""
    from fedrank.data.check import short_names

    names = short_names([check.path for check in checks])
    rows = []
    for check in (check for check in checks if check.sound):
        sizes = (f"{check.queries:,}", f"{check.documents:,}", f"{check.features:,}")
        lengths = f"{check.fewest} / {check.median:g} / {check.most}"
        grades = "  ".join(f"{count:,}" for count in check.grades)
        values = "0 .. 1" if check.looks_normalised else "raw"
        rows.append([names[check.path], *sizes, lengths, grades, f"{check.zeros:.0%}", values])
    header = ["file", "queries", "documents", "features", "docs per query", "documents by label 0, 1 ...", "zeros"]
    parts: list[Part] = []
    if rows:
        parts.append(Table([*header, "values"], rows, notes=["docs per query: fewest / median / most"]))
    for check in checks:
        if check.error:
            parts.append(paragraph(Span("unsound ", "strong"), Span(check.error, "code"), tone="worse"))
        elif check.oddities:
            parts.append(Section(names[check.path], tuple(paragraph(f"  - {oddity}") for oddity in check.oddities)))
    return [Section("", tuple(parts))]


def about_clients(summary: ClientSummary) -> list[Section]:
    """The data of clients, and how much clients differ."""
    from fedrank.experiments.runner.client_summary import MEANINGS

    meanings = [f"{name}: {meaning}" for name, meaning in MEANINGS.items()]
    meanings.append("by chance: the same if each client's data were drawn at random from all data")
    last: list[Part] = [paragraph(line, tone="quiet") for line in meanings]
    if summary.left_out:
        more = f"{summary.left_out} more kinds of clients are not shown; use --set to describe one of them"
        last.append(paragraph(more, tone="warn"))
    first = Section("", (paragraph(f"{summary.data}, fold {summary.fold}, seed {summary.seed}"),))
    return [first, *map(_group, summary.groups), Section("", tuple(last))]


def _group(group: Group) -> Section:
    differences = group.found
    alike = len(set(differences.users)) == 1  # then one word says it, and the table fits a narrow terminal
    grades = [f"label {grade}" for grade in range(differences.grades.shape[1])]
    header = ["client", "queries", "no relevant", "documents", *grades, "searches", "from all", *["user"] * (not alike)]
    rows, before = [], -1
    for c in _first_and_last(len(differences.queries)):
        if c > before + 1:
            rows.append(["…", *[""] * (len(header) - 1)])
        held = (differences.queries[c], differences.without[c], differences.documents[c], *differences.grades[c])
        texts = [str(c), *(f"{count:,}" for count in (*held, differences.interactions[c]))]
        rows.append([*texts, f"{differences.from_all[c]:.3f}", *([] if alike else [differences.users[c]])])
        before = c
    apart = []
    for one in differences.distances:
        values = (one.mean, one.most, one.mean_by_chance, one.most_by_chance)
        apart.append([one.name, *("-" if np.isnan(value) else f"{value:.3f}" for value in values)])
    how = f"{group.how}, user {differences.users[0]}" if alike else group.how
    different = Table(["how different", "mean", "most", "by chance", "most by chance"], apart)
    return Section(group.title, (paragraph(how, tone="quiet"), Table(header, rows), Section("", (different,))))


def _first_and_last(count: int) -> Sequence[int]:
    return range(count) if count <= MAX_ROWS else (*range(MAX_ROWS - 1), count - 1)


def about_log(log: LogDescription) -> list[Section]:
    """Statistics of a search log."""
    return [Section(log.name, tuple(map(paragraph, log.notes))), Section("", (_named(_log_rows(log)),))]


def _log_rows(log: LogDescription) -> list[tuple[str, str]]:
    from fedrank.data.describe_log import MIN_ENTRIES, date_of

    span = (log.last - log.first) / 86_400
    rows = [
        ("entries", f"{log.entries:,} of {log.users:,} users"),
        ("queries", f"{log.queries:,} different; {log.documents:,} different documents clicked"),
        ("time", f"{date_of(log.first)} to {date_of(log.last)}, {span:,.1f} days"),
        ("entries per user", f"most {log.clicks[0]:,}, median {np.median(log.clicks):,.0f}"),
        ("half of the entries", f"come from {log.half:,} users ({log.half / log.users:.1%})"),
    ]
    if law := log.power_law:
        tail = f"{law.users:,} users, distance {law.distance:.3f}"
        rows.append(("power law", f"exponent {law.exponent:.2f} from {law.least:,} entries on ({tail})"))
    bursts = log.burstiness[~np.isnan(log.burstiness)]
    if len(bursts):
        low, middle, high = np.quantile(bursts, (0.25, 0.5, 0.75))
        text = (
            f"median {middle:.2f}, half of the users {low:.2f} .. {high:.2f} (-1 like a clock, 0 at random, 1 in "
            f"bursts; {len(bursts):,} users with {MIN_ENTRIES} entries or more)"
        )
        rows.append(("burstiness", text))
    if len(log.compared) > 1:
        text = (
            f"{log.mean_distance:.3f} standard deviations (Wasserstein) between the {len(log.compared)} most active "
            f"users; {log.by_chance:.3f} by chance"
        )
        rows.append(("difference in clicks", text))
        rows.append(("differ most in", "; ".join(f"{name} ({value:.2f})" for name, value in log.features[:5])))
    return rows + (_shown_rows(log.shown) if log.shown else [])


def _shown_rows(shown: ShownDescription) -> list[tuple[str, str]]:
    """Statistics of lists that were shown to users."""
    low, middle, high = shown.lengths
    positions = [
        f"{clicked / often:.1%}" for clicked, often in zip(shown.clicked_at, shown.shown_at, strict=True) if often
    ]
    rows = [
        ("lists as shown", f"{low:,} to {high:,} documents, median {middle:,}; {shown.later_pages:,} of later pages"),
        ("without a click", f"{shown.unclicked:.1%} of the lists"),
        ("clicked by position", ", ".join(positions[:10]) + (", ..." if len(positions) > 10 else "")),
    ]
    if not np.isnan(shown.dwell):
        rows.append(("time on a document", f"median {shown.dwell:,.0f} s where it is known"))
    if shown.has_propensities:
        rows.append(("draws", "known: probabilities of these lists can be computed"))
    if shown.largest_before:
        after = f", {shown.largest_after[0]:.1%} after limits" if shown.largest_after else ""
        rows.append((f"busiest {shown.unit}", f"{shown.largest_before[0]:.1%} of all clicks{after}"))
    for rule, one in shown.capped.items():
        rows.append(("cut", f"{one['lists']:,} lists with {one['clicks']:,} clicks of {one['clients']:,}: {rule}"))
    rows += [("odd", f"{n:,} {reason}") for reason, n in shown.noticed.items()]
    return rows


def about_drift(found: Drift) -> list[Section]:
    """Whether a log has changed, and what changed most."""
    from fedrank.data.describe_log import date_of
    from fedrank.data.drift import CERTAIN, CHANGED, THRESHOLD

    which = "all lists" if found.since is None else f"lists after {date_of(found.since)}"
    changed = found.drifted
    text = f"Drift: {', '.join(changed[:4])}" if changed else "No drift"
    more = f", and {len(changed) - 4} more" if len(changed) > 4 else ""
    section = Section("Comparison").paragraph(
        f"{text}{more} ({found.lists:,} of {which} compared).", tone="warn" if changed else ""
    )
    section = section.table(
        ("feature", "PSI"),
        [(name, f"{psi:.3f}") for name, psi in found.features[:10]],
        notes=(f"Population stability index over ten bins; above {THRESHOLD} is drift.",),
    )
    if found.rates:
        rows = [(str(one.position), f"{one.old:.4f}", f"{one.new:.4f}", f"{one.errors:+.1f}") for one in found.rates]
        note = f"Drift is a relative change above {CHANGED:.0%} and above {CERTAIN:g} standard errors."
        section = section.table(("position", "click rate before", "now", "standard errors"), rows, notes=(note,))
    return [section]


def about_positions(by: Propensities, shown: ShownResults) -> list[Section]:
    """Propensity of each position, relative to the first."""
    lists, clicks = (np.bincount(shown.position, weights=weights) for weights in (None, shown.clicked))
    trust = bool(by.extra[by.known].any())
    rows = []
    for position in range(len(by.slope)):
        known = bool(by.known[position])
        cells = [str(position + 1), f"{clicks[position] / max(lists[position], 1):.4f}"]
        cells.append(f"{by.slope[position]:.3f}" if known else "not known")
        cells.append(f"{by.low[position]:.3f} to {by.high[position]:.3f}" if known and position else "")
        rows.append([*cells, *[signed("", by.extra[position]) if known else ""] * trust])
    headings = ["position", "click rate", "compared with position 1", "95 % interval", *["clicks by trust"] * trust]
    note = (
        f"From {by.how}: {by.moved:,} pairs of a query and a document were shown in several positions. The click rate "
        "is that of the documents shown there; the comparison uses the same documents in both positions."
    )
    return [Section("", (Table(headings, rows), paragraph(note), *([Points(by.notes)] if by.notes else [])))]


def about_sketch(description: Mapping[str, str]) -> list[Section]:
    """The properties of a sketch; what is not protected is highlighted."""
    return [Section("", (_named(description.items(), lambda text: text.startswith(("none", "SECRET"))),))]


def _named(rows: Iterable[tuple[str, str]], is_bad: Callable[[str], bool] = lambda text: False) -> Table:
    """Names, and what each is."""
    cells = [[Cell(name, tone="name"), Cell(text, tone="worse" if is_bad(text) else "")] for name, text in rows]
    return Table(["what", "meaning"], cells, 2, unbroken_column=0, bare=True)

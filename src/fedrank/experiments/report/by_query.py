"""Which queries one variant serves better than another, by name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.formatting import heading, number, signed
from fedrank.experiments.report.run_values import Repeat, VariantRuns
from fedrank.experiments.report.sections import Cell, Interactive, Part, Section, Table, paragraph

STEPS = 10_000  # values are compared as they are shown, with four digits
NAMED = 5  # queries at either end
MOST = 400_000  # numbers in a page; more would slow a browser down


@dataclass(frozen=True)
class QueryTable:
    """Every query's value with every variant: the last models, mean over repeats."""

    names: tuple[str, ...]  # of queries, with their fold where there are several
    values: NDArray[np.float64]  # [variants, queries], rounded; NaN where a measure skips a query


@dataclass(frozen=True)
class QueryTally:
    """How often one variant is better than another, and where most."""

    won: int
    lost: int
    equal: int
    order: NDArray[np.intp]  # queries that differ, the largest gain first
    difference: NDArray[np.float64]  # of each query


def by_query(rows: Sequence[VariantRuns], column: str) -> QueryTable:
    """The table of one measure, over the repeats that all of these variants have."""
    use = _shared(rows, column)
    names: list[str] = []
    parts: list[NDArray[np.float64]] = []
    folds = sorted({fold for fold, _ in use})
    for fold in folds:
        readings = [(i, row.repeats[repeat]) for i, row in enumerate(rows) for repeat in use if repeat[0] == fold]
        ids = np.unique(np.concatenate([reading.query_ids for _, reading in readings]))
        sums, counts = np.zeros((len(rows), len(ids))), np.zeros((len(rows), len(ids)))
        for i, reading in readings:
            values, positions = reading.queries[column], np.searchsorted(ids, reading.query_ids)
            known = ~np.isnan(values)
            sums[i, positions[known]] += values[known]
            counts[i, positions[known]] += 1
        means = np.full(sums.shape, np.nan)
        np.divide(sums, counts, out=means, where=counts > 0)
        names += [f"{id} (fold {fold})" if len(folds) > 1 else str(id) for id in ids]
        parts.append(np.round(means * STEPS) / STEPS)
    return QueryTable(tuple(names), np.concatenate(parts, axis=1) if parts else np.empty((len(rows), 0)))


def _shared(rows: Sequence[VariantRuns], column: str) -> list[Repeat]:
    """Repeats in which all were measured by query: a query is not compared with itself on another day."""
    each = [{repeat for repeat, reading in row.repeats.items() if column in reading.queries} for row in rows]
    return sorted(set.intersection(*each)) if each else []


def tally(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> QueryTally:
    """Compare two rows of a table, query by query.

    >>> found = tally(np.array([0.5, 0.2, 0.1, np.nan]), np.array([0.1, 0.3, 0.1, 0.4]))
    >>> found.won, found.lost, found.equal, found.order.tolist()
    (1, 1, 1, [0, 1])
    """
    difference = np.round((ours - theirs) * STEPS) / STEPS
    known = ~np.isnan(difference)
    order = np.argsort(-difference, kind="stable")
    order = order[known[order] & (difference[order] != 0)]
    won, lost, equal = (int(np.sum(np.sign(difference[known]) == sign)) for sign in (1, -1, 0))
    return QueryTally(won, lost, equal, order, difference)


def queries_section(analysis: Analysis) -> list[Section]:
    """Won and lost queries of every variant, and which they are; none where there are not two to compare."""
    rows, column = _compared(analysis), analysis.main
    if len(rows) < 2 or column not in analysis.measures:
        return []
    table = by_query(rows, column)
    if not len(table.names):
        return []
    base = next((i for i, row in enumerate(rows) if row is analysis.baseline), None)
    second = len(rows) - 1 if base is None else base
    means = [math.nan if i == second else row.summary(column).mean for i, row in enumerate(rows)]
    first = int(np.nanargmax(means)) if not np.isnan(means).all() else 0
    if any(reading.by_sites for row in rows for reading in row.repeats.values()):
        text = f"{heading(column)} of the final model on held-out lists, as each site released it."
        return [Section("Site by site", (paragraph(text), _named_table(rows, table, column, first, second, "site")))]
    about = paragraph(
        f"{heading(column)} of the last models, mean over the repeats that all have, to four digits. Queries that a "
        "measure skips are left out. Single queries also differ by random variation: use the list to find queries to "
        "inspect, not as a finding."
    )
    still: tuple[Part, ...] = (_tally_table(rows, table, second), _named_table(rows, table, column, first, second))
    shown = Interactive("queries", lambda: _data(analysis, rows, first, second), still)
    return [Section("Query by query", (about, shown))]


def _compared(analysis: Analysis) -> list[VariantRuns]:
    """Variants that were measured by query, and doing nothing where it is one for all."""
    column = analysis.main
    rows = [row for row in analysis.rows if any(column in reading.queries for reading in row.repeats.values())]
    return rows if _shared(rows, column) else [row for row in rows if row in analysis.variants]


def _tally_table(rows: Sequence[VariantRuns], table: QueryTable, against: int) -> Table:
    lines = []
    for i, row in enumerate(rows):
        if i == against:
            continue
        found = tally(table.values[i], table.values[against])
        lines.append([row.label, *(f"{count:,}" for count in (found.won, found.lost, found.equal))])
    return Table([f"against {rows[against].label}", "queries won", "lost", "equal"], lines)


def _named_table(
    rows: Sequence[VariantRuns], table: QueryTable, column: str, first: int, second: int, unit: str = "query"
) -> Table:
    found = tally(table.values[first], table.values[second])
    won = [query for query in found.order[:NAMED] if found.difference[query] > 0]
    lost = [query for query in found.order[-NAMED:] if found.difference[query] < 0]
    lines = [
        [
            table.names[query],
            *(number(column, float(table.values[i, query])) for i in (first, second)),
            Cell(signed(column, float(found.difference[query])), tone="better" if query in won else "worse"),
        ]
        for query in (*won, *lost)
    ]
    notes = [f"The {NAMED} queries at either end of {rows[first].label} against {rows[second].label}."]
    header = [unit, rows[first].label, rows[second].label, "difference"]
    return Table(header, lines, 1, notes if unit == "query" else [])


def _data(analysis: Analysis, rows: Sequence[VariantRuns], first: int, second: int) -> Mapping[str, Any]:
    """The data of the interactive table, as integers in units of 1/10,000; fewer measures on large pages."""
    measures: list[str] = []
    values: list[list[list[int | None]]] = []
    names: tuple[str, ...] = ()
    size = 0
    for column in analysis.measures:
        table = by_query(rows, column)
        names = names or table.names
        size += table.values.size
        if table.names != names or (size > MOST and measures):
            continue
        if size > MOST:  # only the two in the table
            rows, first, second = [rows[first], rows[second]], 0, 1
            table = by_query(rows, column)
        measures.append(heading(column))
        values.append([[None if math.isnan(v) else round(v * STEPS) for v in row] for row in table.values.tolist()])
    return {
        "names": [row.label for row in rows],
        "measures": measures,
        "queries": list(names),
        "values": values,
        "steps": STEPS,
        "first": first,
        "second": second,
    }

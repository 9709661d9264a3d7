"""A large grid of variants as a readable table: one of its settings as columns, the others as rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.formatting import heading, spread
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import Cell, Row, Table
from fedrank.experiments.report.tables import final_notes, final_table, mark_of
from fedrank.toml import flat, readable

FEWEST = 8  # minimum number of variants for a pivot table
MAX_ACROSS = 6  # columns of numbers
VARIANT = "variants"  # the key of a variant's name among its settings
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+(?:\.\d+)?)")
ENOUGH = 1 / 3  # minimum fraction of filled cells


@dataclass(frozen=True)
class Pivot:
    """The position of each variant."""

    down: tuple[str, ...]  # keys of the leading columns
    across: str  # the key whose values are the columns
    cells: Mapping[tuple[tuple[str, ...], str], VariantRuns]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> list[str]:
        values = list(dict.fromkeys(column for _, column in self.cells))
        return sorted(values, key=_number) if all(map(_is_number, values)) else values


def value_tables(analysis: Analysis, columns: Sequence[str]) -> list[Table]:
    """Final values: for many variants a pivot table per measure, else one table."""
    grid = as_grid(analysis)
    if grid is None:
        return [final_table(analysis, columns)]
    tables = []
    for column in columns:
        notes = final_notes(analysis) if column == columns[-1] else []
        tables.append(_grid_table(analysis, grid, column, notes))
    return tables


def as_grid(analysis: Analysis) -> Pivot | None:
    """The best layout of variants; None for a plain list."""
    variants = analysis.variants
    if len(variants) < FEWEST or analysis.parts:
        return None
    rows = _settings_of(analysis)
    keys = list(rows[0])
    if any(list(settings) != keys for settings in rows):
        return None
    values = {key: list(dict.fromkeys(settings[key] for settings in rows)) for key in keys}
    varied = [key for key in keys if len(values[key]) > 1]
    fit = [key for key in varied if len(values[key]) <= MAX_ACROSS and key != VARIANT]
    if len(varied) < 2 or not fit:
        return None
    across = max(fit, key=lambda key: (all(map(_is_number, values[key])), len(values[key])))
    down = tuple(key for key in varied if key != across)
    found = {
        (tuple(settings[key] for key in down), settings[across]): variant
        for settings, variant in zip(rows, variants, strict=True)
    }
    grid = Pivot(down, across, found)
    full = len(found) >= ENOUGH * len(grid.rows) * len(grid.columns)
    return grid if full and len(found) == len(variants) else None


def _settings_of(analysis: Analysis) -> list[dict[str, str]]:
    """The settings of each variant; a number at the end of a name counts as a setting."""
    settings: list[dict[str, Any]] = [
        dict(variant.settings) or {VARIANT: variant.name} for variant in analysis.variants
    ]
    names = [str(each.get(VARIANT, "")) for each in settings]
    fits = [NUMBERED.fullmatch(name) for name in names]
    shown = [{key: readable(value) for key, value in each.items()} for each in settings]
    stems = [found["stem"] for found in fits if found]
    if len(stems) < len(names) or len(set(stems)) == len(set(names)):
        return shown
    key = _numbers_are(analysis, names)
    return [
        each | {VARIANT: found["stem"], key: found["number"]} for each, found in zip(shown, fits, strict=True) if found
    ]


def _numbers_are(analysis: Analysis, names: Sequence[str]) -> str:
    """The setting whose values are the numbers in names."""
    for name in dict.fromkeys(names):
        for key, value in flat(analysis.about.variants.get(name, {})).items():
            if str(value) == name.rpartition("-")[2]:
                return key
    return "number"


def _grid_table(analysis: Analysis, grid: Pivot, column: str, notes: Sequence[str]) -> Table:
    """The final values of one measure, which the first heading names."""
    rows: list[Row] = []
    for row in grid.rows:
        found = [grid.cells.get((row, value)) for value in grid.columns]
        rows.append([*row, *("" if each is None else _cell(analysis, each, column) for each in found)])
    if analysis.nothing and any(column in each.comparisons for each in analysis.nothing):
        first = ["do nothing", *[""] * (len(grid.down) - 1)]
        rows.append([*first, *(Cell(_nothing(analysis, grid, value, column), tone="quiet") for value in grid.columns)])
    short = [_short(key) for key in grid.down]
    across = [_titled(grid.across, value) for value in grid.columns]
    short[0] = f"{heading(column)}: {short[0]}"
    return Table([*short, *across], rows, len(short), notes)


def _cell(analysis: Analysis, variant: VariantRuns, column: str) -> Cell:
    n, expected = len(variant.repeats), analysis.expected
    few = f" ({n} of {expected})" if expected is not None and n < expected else ""
    base = " (baseline)" if variant is analysis.baseline else ""
    return Cell(f"{spread(column, variant.summary(column))}{few}{base}", mark=mark_of(analysis, variant, column))


def _nothing(analysis: Analysis, grid: Pivot, value: str, column: str) -> str:
    """The value of the baseline ranking, if it is the same for a whole column."""
    beside = [
        analysis.nothing_for(variant) for (_, column_value), variant in grid.cells.items() if column_value == value
    ]
    if beside[0] is None or any(each is not beside[0] for each in beside):
        return ""
    return spread(column, beside[0].values.summary(column)) if column in beside[0].comparisons else ""


def _short(key: str) -> str:
    """The last part of a dotted key; for `name`, the part before it."""
    return "variant" if key == VARIANT else key.removesuffix(".name").rpartition(".")[2]


def _titled(key: str, value: str) -> str:
    return value if key.endswith(".name") else f"{_short(key)} {value}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d,]+(\.\d+)?", text) is not None


def _number(text: str) -> float:
    return float(text.replace(",", ""))

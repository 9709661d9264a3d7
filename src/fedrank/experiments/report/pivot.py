"""A large grid of variants as a table that can be read: one of its settings across, the others down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.run_values import VariantRuns
from fedrank.experiments.report.sections import Cell, Table
from fedrank.experiments.report.tables import final_notes, final_table, heading, mark_of, spread
from fedrank.experiments.spec.toml import flat, readable

FEWEST = 8  # variants; fewer can be read one below the other
MOST_ACROSS = 6  # columns of numbers
VARIANT = "variants"  # the key under which a variant's given name stands among its settings
NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d+(?:\.\d+)?)")
ENOUGH = 1 / 3  # of the cells of a grid must be there


@dataclass(frozen=True)
class Pivot:
    """Where each variant stands."""

    down: tuple[str, ...]  # keys of the leading columns
    across: str  # the key whose values have a column each
    places: Mapping[tuple[tuple[str, ...], str], VariantRuns]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(dict.fromkeys(row for row, _ in self.places))

    @property
    def columns(self) -> list[str]:
        values = list(dict.fromkeys(column for _, column in self.places))
        return sorted(values, key=_number) if all(map(_is_number, values)) else values


def value_tables(findings: Analysis, columns: Sequence[str]) -> list[Table]:
    """Final values: a grid for each column where there are many variants, else one table."""
    grid = as_grid(findings)
    if grid is None:
        return [final_table(findings, columns)]
    tables = []
    for column in columns:
        notes = final_notes(findings) if column == columns[-1] else []
        tables.append(_grid_table(findings, grid, column, notes))
    return tables


def as_grid(findings: Analysis) -> Pivot | None:
    """How variants are best laid out; None where that is one below the other."""
    variants = findings.variants
    if len(variants) < FEWEST or findings.parts:
        return None
    places = _places(findings)
    keys = list(places[0])
    if any(list(place) != keys for place in places):
        return None
    values = {key: list(dict.fromkeys(place[key] for place in places)) for key in keys}
    varied = [key for key in keys if len(values[key]) > 1]
    fit = [key for key in varied if len(values[key]) <= MOST_ACROSS and key != VARIANT]
    if len(varied) < 2 or not fit:
        return None
    across = max(fit, key=lambda key: (all(map(_is_number, values[key])), len(values[key])))
    down = tuple(key for key in varied if key != across)
    found = {
        (tuple(place[key] for key in down), place[across]): variant
        for place, variant in zip(places, variants, strict=True)
    }
    grid = Pivot(down, across, found)
    full = len(found) >= ENOUGH * len(grid.rows) * len(grid.columns)
    return grid if full and len(found) == len(variants) else None


def _places(findings: Analysis) -> list[dict[str, str]]:
    """The settings of each variant; a number at the end of a name is one of its own."""
    settings: list[dict[str, Any]] = [
        dict(variant.settings) or {VARIANT: variant.name} for variant in findings.variants
    ]
    names = [str(each.get(VARIANT, "")) for each in settings]
    fits = [NUMBERED.fullmatch(name) for name in names]
    shown = [{key: readable(value) for key, value in each.items()} for each in settings]
    stems = [found["stem"] for found in fits if found]
    if len(stems) < len(names) or len(set(stems)) == len(set(names)):
        return shown
    key = _numbers_are(findings, names)
    return [
        each | {VARIANT: found["stem"], key: found["number"]} for each, found in zip(shown, fits, strict=True) if found
    ]


def _numbers_are(findings: Analysis, names: Sequence[str]) -> str:
    """The setting that the numbers in names are the values of."""
    for name in dict.fromkeys(names):
        for key, value in flat(findings.about.variants.get(name, {})).items():
            if str(value) == name.rpartition("-")[2]:
                return key
    return "number"


def _grid_table(findings: Analysis, grid: Pivot, column: str, notes: Sequence[str]) -> Table:
    """The final values of one column, which the first heading names."""
    rows = []
    for row in grid.rows:
        cells = [Cell(text) for text in row]
        for value in grid.columns:
            variant = grid.places.get((row, value))
            cells.append(Cell("") if variant is None else _cell(findings, variant, column))
        rows.append(cells)
    if findings.nothing and any(column in each.comparisons for each in findings.nothing):
        cells = [Cell("do nothing"), *[Cell("")] * (len(grid.down) - 1)]
        rows.append([*cells, *(Cell(_nothing(findings, grid, value, column), tone="quiet") for value in grid.columns)])
    short = [_short(key) for key in grid.down]
    across = [_titled(grid.across, value) for value in grid.columns]
    short[0] = f"{heading(column)}: {short[0]}"
    return Table([*short, *across], rows, len(short), notes)


def _cell(findings: Analysis, variant: VariantRuns, column: str) -> Cell:
    n, expected = len(variant.repeats), findings.expected
    few = f" ({n} of {expected})" if expected is not None and n < expected else ""
    base = " (baseline)" if variant is findings.baseline else ""
    return Cell(f"{spread(column, variant.summary(column))}{few}{base}", mark=mark_of(findings, variant, column))


def _nothing(findings: Analysis, grid: Pivot, value: str, column: str) -> str:
    """What users have without learning, where that is one thing for a whole column."""
    beside = [findings.nothing_for(variant) for (_, there), variant in grid.places.items() if there == value]
    if beside[0] is None or any(each is not beside[0] for each in beside):
        return ""
    return spread(column, beside[0].values.summary(column)) if column in beside[0].comparisons else ""


def _short(key: str) -> str:
    """The end of a dotted key says enough; of a name, what it is the name of."""
    return "variant" if key == VARIANT else key.removesuffix(".name").rpartition(".")[2]


def _titled(key: str, value: str) -> str:
    return value if key.endswith(".name") else f"{_short(key)} {value}"


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d,]+(\.\d+)?", text) is not None


def _number(text: str) -> float:
    return float(text.replace(",", ""))

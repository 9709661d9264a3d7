"""Read rows from external files: JSON Lines, JSON arrays, exports of search engines, CSV and TSV.

A `RowFormat` lists the columns of a format: their possible names, the conversion of values, and the reason for leaving
out a row without a usable value. `RowReader` reads a file by it and counts the rows that are left out, by reason.

Exports may be plain objects, hits with `_source` as elasticdump writes them, responses of `_search` and scroll, lists
of objects, files for `_bulk`, whose action lines are skipped, and responses of Solr, whose fields may be lists of one
value.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any

from fedrank.data.lines import MAX_LINE_LENGTH, bounded_lines, file_kind
from fedrank.data.values import as_text, nested_value
from fedrank.files import parse_json

SHOWN = 5  # maximum number of reported line numbers
BAD_BYTES = "not UTF-8"
BAD_ROW = "not a row"  # invalid JSON, unclosed CSV quotes, or more cells than columns
_BULK = ({"index"}, {"create"})  # keys of action lines
_WRAPPERS = ("_source", "hits", "response")
_MAX_LAYOUTS = 64  # cached sets of keys


@dataclass(frozen=True)
class LeftOut:
    """The number of rows left out for one reason, and their first line numbers."""

    count: int
    lines: tuple[int, ...]  # at most SHOWN

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.lines) else ""
        return f"{self.count:,} (line{'s' * (self.count > 1)} {', '.join(map(str, self.lines))}{more})"


class Reasons:
    """Counts and first lines of rows left out, by reason. `found` is the stored form."""

    def __init__(self, found: dict[str, dict[str, Any]] | None = None) -> None:
        self.found = found or {}

    def add(self, reason: str, line: int) -> None:
        """Count a row."""
        one = self.found.setdefault(reason, {"rows": 0, "lines": []})
        one["rows"] += 1
        if len(one["lines"]) < SHOWN:
            one["lines"].append(line)

    def all(self) -> dict[str, LeftOut]:
        """Return the counts by reason, in alphabetical order."""
        return {reason: LeftOut(one["rows"], tuple(one["lines"])) for reason, one in sorted(self.found.items())}


def stored_reasons(left_out: Mapping[str, LeftOut]) -> dict[str, dict[str, Any]]:
    """Convert reasons to the form stored in `facts.json`."""
    return {reason: {"rows": one.count, "lines": list(one.lines)} for reason, one in left_out.items()}


def list_reasons(left_out: Mapping[str, LeftOut]) -> str:
    """Format reasons in one line, for messages."""
    return "; ".join(f"{reason}: {one}" for reason, one in left_out.items()) or "the file is empty"


class UnusableRow(ValueError):
    """The reason why a row is left out; an empty one skips the row without counting it."""


@dataclass(frozen=True)
class Column:
    """A field of a row."""

    names: tuple[str, ...] = ()  # possible column names, case-insensitive, in order of preference; (): the whole row
    parse: Callable[[Any], Any] | None = as_text  # converts a value; None or `UnusableRow`: not usable
    unusable: str = ""  # reason for leaving out a row without a value; "": use the row, with None
    required: bool = True  # the file must have this column
    omittable: bool = False  # JSON objects may omit it


@dataclass(frozen=True)
class RowFormat:
    """The columns of a file in the order of checking, and the format of its rows."""

    columns: Mapping[str, Column]
    kind: str = ""  # "json", "csv" or "tsv"; "": by the name of the file
    nested: bool = False  # column names are dotted paths in JSON objects; the first with a value counts
    unwrap: bool = True  # extract rows from exports of search engines
    exact: bool = False  # rows must have as many cells as the header; otherwise trailing ones may be missing
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # applied to an object before values are read
    longest: int = MAX_LINE_LENGTH  # maximum bytes per line


Row = dict[str, Any]
_Getter = Callable[[Any], Any]
_Field = tuple[str, _Getter | None, _Getter | None, str]  # name, getter, parse, unusable


class RowReader:
    """The usable rows of a file, with their line numbers.

    `chosen` maps fields to non-standard column names. If `strict`, a malformed row is an error, and bytes that are
    not UTF-8 are replaced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        layout: RowFormat,
        chosen: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> None:
        self.path, self.layout, self.chosen, self.strict = Path(path), layout, chosen or {}, strict
        self.rows = 0  # usable or not
        self.left_out = Reasons()
        self.header: tuple[str, ...] = ()  # names of all columns; for objects, of the first row
        self.names: dict[str, str] = {}  # names of the columns that are read
        self.replaced: list[int] = []  # indices of rows with bytes that are not UTF-8
        for name in self.chosen:
            if name not in layout.columns:
                raise ValueError(f"columns: unknown field {name!r}; use {', '.join(layout.columns)}")

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        kind = self.layout.kind or file_kind(self.path)
        return self._parsed(self._objects(self._json()) if kind == "json" else self._cells(kind))

    def of_objects(self, objects: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
        """Yield the usable rows of numbered objects that are not from the file."""
        return self._parsed(self._objects(objects))

    def each(self, take: Callable[[int, Row], None], objects: Iterable[tuple[int, Row]] | None = None) -> None:
        """Call `take` with line number and fields of each usable row; rows that raise `UnusableRow` are counted."""
        for number, row in self if objects is None else self.of_objects(objects):
            try:
                take(number, row)
            except UnusableRow as problem:
                self.left_out.add(str(problem), number)

    def _parsed(self, rows: Iterable[tuple[int, Any, list[_Field]]]) -> Iterator[tuple[int, Row]]:
        """Convert values and count unusable rows."""
        for number, values, fields in rows:
            row: Row = {}
            for name, get, parse, unusable in fields:
                try:
                    value = values if get is None else get(values)
                    if parse is not None:
                        value = parse(value)
                except UnusableRow as problem:
                    if reason := str(problem):
                        self.left_out.add(reason, number)
                    break
                if value is None and unusable:
                    self.left_out.add(unusable, number)
                    break
                row[name] = value
            else:
                yield number, row

    def _objects(self, objects: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, Row, list[_Field]]]:
        """Yield objects with the getters of their fields."""
        nested = self._fields({name: _path_getter(one.names) for name, one in self.layout.columns.items()})
        layouts: dict[tuple[str, ...], list[_Field]] = {}
        for number, row in objects:
            self.rows += 1
            if self.layout.nested:
                yield number, row, nested
                continue
            keys = tuple(row)
            if keys not in layouts:
                found = self._find_columns(keys, number, omit=True)
                if len(layouts) == _MAX_LAYOUTS:
                    layouts.clear()
                layouts[keys] = self._fields({name: itemgetter(key) for name, key in found.items()})
            yield number, row, layouts[keys]

    def _json(self) -> Iterator[tuple[int, Row]]:
        """Yield the objects of JSON Lines."""
        unwrap, prepare = self.layout.unwrap, self.layout.prepare
        for number, text in self._texts():
            try:
                value = parse_json(text)
            except ValueError:
                value = None
            for row in _unwrapped(value) if unwrap else (value if isinstance(value, dict) else None,):
                if row is None:
                    self._malformed(number, f"not a JSON object: {text[:40]!r}; write one object per line")
                else:
                    yield number, row if prepare is None else prepare(row)

    def _cells(self, kind: str) -> Iterator[tuple[int, list[str], list[_Field]]]:
        """Yield the cells of a table with the getters of their fields; the first line is the header."""
        fields: list[_Field] = []
        for number, text in self._texts(table=True):
            try:
                # Line by line, since entries do not span lines: an unclosed quote affects only one row.
                cells = text.split("\t") if kind == "tsv" else next(csv.reader([text], strict=True))
            except csv.Error:
                if not self.header:
                    raise self._bad_header(number, "unclosed quotes; close them") from None
                self._malformed(number, "unclosed quotes; close them")
                continue
            if not self.header:
                found = self._find_columns(cells, number)
                fields = self._fields({name: itemgetter(cells.index(column)) for name, column in found.items()})
                continue
            missing = len(self.header) - len(cells)
            if missing < 0 or (missing and self.layout.exact):
                self._malformed(
                    number,
                    f"{len(cells)} columns, but the header has {len(self.header)}; replace tabs within texts by spaces",
                )
            else:
                self.rows += 1
                yield number, cells + [""] * missing if missing else cells, fields

    def _texts(self, table: bool = False) -> Iterator[tuple[int, str]]:
        """Yield lines as text."""
        first = True
        for number, line in bounded_lines(self.path, self.layout.longest):
            try:
                text = line.decode() if line is not None else self._too_long(number, table and first)
            except UnicodeDecodeError:
                text = self._replaced(number, line or b"", table and first)
            if first and text:
                text, first = text.removeprefix("\ufeff"), False
            if text:
                yield number, text

    def _too_long(self, number: int, header: bool) -> str:
        """Leave out a line that is too long."""
        reason = f"a line longer than {self.layout.longest >> 20} MiB"
        if header:
            raise self._bad_header(number, reason)
        self._malformed(number, f"{reason}; shorten it", reason)
        return ""

    def _replaced(self, number: int, line: bytes, header: bool) -> str:
        """Leave out a line that is not UTF-8, or replace the invalid bytes."""
        if self.strict:
            if not header:
                self.replaced.append(self.rows)
            return line.decode(errors="replace")
        if header:
            raise self._bad_header(number, f"{BAD_BYTES}; convert the file")
        self._malformed(number, BAD_BYTES, BAD_BYTES)
        return ""

    def _fields(self, getters: Mapping[str, _Getter | None]) -> list[_Field]:
        """Return how each field of a row is read."""
        return [
            (name, getters.get(name, _nothing), one.parse, one.unusable) for name, one in self.layout.columns.items()
        ]

    def _find_columns(self, names: Sequence[str], number: int, omit: bool = False) -> dict[str, str]:
        """Map fields to columns: the chosen column, otherwise the first with one of the field's names.

        The first row must have all required columns; later objects only if the reader is strict.
        """
        known = {name.strip().lower(): name for name in reversed(names)}
        found = {}
        for name, column in self.layout.columns.items():
            wanted = (self.chosen[name],) if name in self.chosen else column.names
            match = next((known[alias] for alias in (each.strip().lower() for each in wanted) if alias in known), None)
            if match is not None:
                found[name] = match
            elif (name in self.chosen or (column.required and not (omit and column.omittable))) and (
                self.strict or not self.header
            ):
                raise ValueError(
                    f"{self.path}, line {number}: no column {' or '.join(map(repr, wanted))} for the {name}; the "
                    f"columns are {', '.join(map(repr, names)) or 'missing'}; name the columns in the first line"
                )
        if not self.header:
            self.header, self.names = tuple(names), found
        return found

    def _malformed(self, number: int, problem: str, reason: str = BAD_ROW) -> None:
        if self.strict:
            raise ValueError(f"{self.path}, line {number}: {problem}")
        self.rows += 1
        self.left_out.add(reason, number)

    def _bad_header(self, number: int, problem: str) -> ValueError:
        return ValueError(f"{self.path}, line {number}: the column names cannot be read: {problem}")


def column_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the column names of a file, or of its first object; empty without rows."""
    reader = RowReader(path, RowFormat({}))
    next(iter(reader), None)
    return reader.header


def _nothing(row: Any) -> None:
    return None


def _path_getter(paths: tuple[str, ...]) -> _Getter | None:
    """Return a getter of the first value at any of the paths; None for no paths, which means the whole row."""
    if len(paths) > 1:
        return lambda row: next((found for path in paths if (found := nested_value(row, path)) is not None), None)
    if not paths:
        return None
    path = paths[0]
    if "." not in path:
        return methodcaller("get", path)
    *outer, last = path.split(".")

    def get(row: Row) -> Any:
        inner: Any = row
        for name in outer:  # most objects are nested
            inner = inner.get(name)
            if type(inner) is not dict:
                return nested_value(row, path)
        value = inner.get(last)
        return nested_value(row, path) if value is None else value

    return get


def _unwrapped(row: Any) -> Iterable[dict[str, Any] | None]:
    """The objects within a response, a hit or a list; None for anything else."""
    if isinstance(row, dict) and len(row) > 1 and row.keys().isdisjoint(_WRAPPERS):
        return (row,)  # the common case
    return _inner_objects(row)


def _inner_objects(row: Any) -> Iterator[dict[str, Any] | None]:
    if isinstance(row, list):
        for one in row:
            yield from _inner_objects(one) if isinstance(one, dict) else (None,)
    elif not isinstance(row, dict):
        yield None
    elif isinstance(row.get("hits"), dict):
        found = row["hits"].get("hits")
        yield from _inner_objects(found) if isinstance(found, list) else (None,)
    elif isinstance(row.get("response"), dict):
        found = row["response"].get("docs")
        for one in found if isinstance(found, list) else [None]:
            single = {} if not isinstance(one, dict) else one
            yield {key: value[0] if type(value) is list and len(value) == 1 else value for key, value in single.items()}
    elif "_source" in row:
        yield row["_source"] if isinstance(row["_source"], dict) else None
    elif row.keys() not in _BULK or not isinstance(next(iter(row.values())), dict):
        yield row

"""Rows of JSON that come from anybody: lines of bounded length, exports unwrapped, fields at any depth.

An export is read however it was made: plain objects, hits with their `_source` as elasticdump writes them, whole
answers of `_search` and scroll, lists of objects, and files for `_bulk`, whose lines between documents are skipped; and
answers of Solr, whose fields may be lists of one value.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedrank.data.documents import SHOWN, is_name, unpacked
from fedrank.data.logs import BAD_BYTES, BAD_ROW, LeftOut, seconds_of
from fedrank.files import opened, parse_json

LONGEST_LINE = 16 << 20  # bytes: ten thousand hits, the most that an engine returns at once
LONGEST_NAME = 256  # characters of an id; those of UBI have at most 100, of its objects 256
TOO_LONG = f"a line of more than {LONGEST_LINE >> 20} MiB"
_BULK = ({"index"}, {"create"})  # keys of a line that says where the next one goes


class Reasons:
    """Why rows were left out: how often, and where for the first times."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[list[int], list[int]]] = {}

    def add(self, reason: str, line: int) -> None:
        """Count one row."""
        count, lines = self._found.setdefault(reason, ([0], []))
        count[0] += 1
        if len(lines) < SHOWN:
            lines.append(line)

    def all(self) -> dict[str, LeftOut]:
        """By reason, in alphabetical order."""
        return {reason: LeftOut(count[0], tuple(lines)) for reason, (count, lines) in sorted(self._found.items())}


def bounded_lines(path: Path, most: int = LONGEST_LINE) -> Iterator[tuple[int, bytes | None]]:
    """Lines of a plain, `.gz` or `.xz` file with their numbers from 1; None for one that is longer than `most` bytes.

    Empty lines are left out. A line without an end does not fill the memory.
    """
    with opened(path) as file:
        try:
            yield from _lines(unpacked(file, path.suffix), most)
        except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path}: the archive is damaged or cut short ({error}), so lines would be missing; copy or download "
                "it again"
            ) from error


def _lines(file: BinaryIO, most: int) -> Iterator[tuple[int, bytes | None]]:
    number = 0
    while line := file.readline(most + 1):
        number += 1
        if len(line) > most and not line.endswith(b"\n"):
            while (more := file.readline(most)) and not more.endswith(b"\n"):
                pass
            yield number, None
        elif line.strip():
            yield number, line.rstrip(b"\r\n")


def json_values(path: Path) -> Iterator[tuple[int, Any, str]]:
    """Line number and value of every line, or None and what is wrong with it."""
    for number, line in bounded_lines(path):
        if line is None:
            yield number, None, TOO_LONG
            continue
        try:
            value = parse_json(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield number, None, BAD_BYTES
        except ValueError:
            yield number, None, BAD_ROW
        else:
            yield number, value, ""


def json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | None, str]]:
    """Line number and object of every row, or None and what is wrong with it; an export's wrapping is taken off."""
    for number, row, problem in json_values(path):
        if problem:
            yield number, None, problem
        elif (
            isinstance(row, dict)
            and "_source" not in row
            and "hits" not in row
            and "response" not in row
            and row.keys() not in _BULK
        ):
            yield number, row, ""  # what nearly all lines are
        else:
            for one in _unwrapped(row):
                yield number, one, "" if one is not None else BAD_ROW


def _unwrapped(row: Any) -> Iterator[dict[str, Any] | None]:
    """The objects within an answer, a hit or a list; None for what is none."""
    if isinstance(row, list):
        for one in row:
            yield from _unwrapped(one) if isinstance(one, dict) else (None,)
    elif not isinstance(row, dict):
        yield None
    elif isinstance(row.get("hits"), dict):
        found = row["hits"].get("hits")
        yield from _unwrapped(found) if isinstance(found, list) else (None,)
    elif isinstance(row.get("response"), dict):
        found = row["response"].get("docs")
        for one in found if isinstance(found, list) else [None]:
            single = {} if not isinstance(one, dict) else one
            yield {key: value[0] if type(value) is list and len(value) == 1 else value for key, value in single.items()}
    elif "_source" in row:
        yield row["_source"] if isinstance(row["_source"], dict) else None
    elif row.keys() not in _BULK or not isinstance(next(iter(row.values())), dict):
        yield row


def field_of(row: dict[str, Any], name: str) -> Any:
    """The value under a dotted name, whether objects are nested or their names are joined; None where there is none.

    >>> [field_of(row, "a.b.c") for row in ({"a": {"b": {"c": 1}}}, {"a.b.c": 1}, {"a": {"b.c": 1}}, {"a": 1})]
    [1, 1, 1, None]
    """
    if name in row:
        return row[name]
    cut = name.find(".")
    while cut > 0:
        inner = row.get(name[:cut])
        if isinstance(inner, dict) and (found := field_of(inner, name[cut + 1 :])) is not None:
            return found
        cut = name.find(".", cut + 1)
    return None


def name_of(value: Any) -> str:
    """An id as text: of a short text or a whole number; "" for what names nothing."""
    if type(value) is str and len(value) <= LONGEST_NAME and value.isascii() and value.isprintable():
        return value.strip()  # what nearly all ids are
    if type(value) is int:
        value = str(value) if abs(value) < 1 << 64 else ""
    if not isinstance(value, str):
        return ""
    value = value.strip()
    return value if len(value) <= LONGEST_NAME and is_name(value) and not _CONTROL.search(value) else ""


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # would do something to whoever's terminal shows it


def row_of(value: Any, known: Mapping[str, int]) -> int:
    """The row that an id names; -1 where it names none."""
    row = known.get(value) if type(value) is str else None
    return known.get(name_of(value), -1) if row is None else row


def moment_of(value: Any) -> float | None:
    """Seconds since 1970 of a date, of seconds, or of milliseconds, which are larger; None where it is none of these.

    >>> moment_of("1970-01-02T00:00:01.500Z"), moment_of(86401), moment_of(1_700_000_000_123), moment_of("soon")
    (86401.0, 86401.0, 1700000000.123, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        value = value.strip()
        if len(value) > 64:
            return None
        if (found := seconds_of(value)) is not None:
            return float(found)
        if not value.isascii() or not value.isdigit():
            return None
    number = float(value) if abs(value := int(value) if isinstance(value, str) else value) < 1e18 else math.inf
    if not math.isfinite(number):
        return None
    number = number if abs(number) < _MILLISECONDS else number / 1000
    return number if abs(number) < _MILLISECONDS else None


_MILLISECONDS = 1e11  # what is larger counts these; as seconds it would be the year 5138


def values_of(value: Any) -> list[Any] | None:
    """A list, whether it is one of JSON, the text of one, or names with blanks between them; None where it is none."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str):
        return None if value is not None else []
    text = value.strip()
    if not text.startswith("["):
        return text.split()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None

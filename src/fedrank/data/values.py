"""Parse values of external rows: texts, ids, times, numbers and lists."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

MAX_ID_LENGTH = 256  # characters; UBI allows 100 for ids and 256 for object ids
MAX_OFFSET = 1_000_000  # offset of the first position: more pages than a person opens
LONGEST_SWAP = 1000  # upper bound of the position of a random swap
LATEST = 10**11  # seconds, in the year 5138; larger values are milliseconds
LARGEST = 3.4028234663852886e38  # maximum of float32
_SECONDS = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # control characters, which could manipulate a terminal


def as_text(value: Any) -> str:
    """Convert a JSON value to text; null is empty, and lists are joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return " ".join(map(as_text, value))
    return "" if value is None else str(value)


def is_name(text: str) -> bool:
    """Whether a text can be stored as one line: not empty, no line break, no unpaired surrogate."""
    if not text or "\n" in text or "\r" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON can contain unpaired surrogates
        return False
    return True


def parse_name(value: Any) -> str | None:
    """A stripped single-line text; None if there is none."""
    text = (value if type(value) is str else as_text(value)).strip()
    return text if is_name(text) else None


def parse_id(value: Any) -> str:
    """An id as text, from a short text or an integer; "" for anything else."""
    if type(value) is str and len(value) <= MAX_ID_LENGTH and value.isascii() and value.isprintable():
        return value.strip()  # the common case
    if type(value) is int:
        value = str(value) if abs(value) < 1 << 64 else ""
    if not isinstance(value, str):
        return ""
    value = value.strip()
    return value if len(value) <= MAX_ID_LENGTH and is_name(value) and not _CONTROL.search(value) else ""


def find_id(value: Any, rows: Mapping[str, int]) -> int:
    """The index of an id; -1 if unknown."""
    row = rows.get(value) if type(value) is str else None
    return rows.get(parse_id(value), -1) if row is None else row


def parse_query(value: Any) -> str | None:
    """A query in lower case with single spaces; None if it is empty or not a single line of text.

    >>> parse_query("  New  York ")
    'new york'
    """
    text = " ".join((value if type(value) is str else as_text(value)).lower().split())
    return text if is_name(text) else None


def parse_seconds(value: Any) -> int | None:
    """Seconds since 1970 of an ISO 8601 date (UTC if it has no zone) or a number of seconds; None otherwise.

    >>> parse_seconds("1970-01-02 00:00:01"), parse_seconds("86401.9"), parse_seconds("yesterday")
    (86401, 86401, None)
    """
    text = (value if type(value) is str else as_text(value)).strip()
    if _SECONDS.fullmatch(text):
        seconds = float(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            return None
    return math.floor(seconds) if abs(seconds) < LATEST else None


def parse_time(value: Any) -> float | None:
    """Seconds since 1970 of a date, of seconds, or of milliseconds (by size); None for anything else.

    >>> parse_time("1970-01-02T00:00:01.500Z"), parse_time(86401), parse_time(1_700_000_000_123), parse_time("soon")
    (86401.0, 86401.0, 1700000000.123, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, str):
        value = value.strip()
        if len(value) > 64:
            return None
        if (found := parse_seconds(value)) is not None:
            return float(found)
        if not value.isascii() or not value.isdigit():
            return None
        value = int(value)
    number = float(value) if abs(value) < 1e18 else math.inf
    if not math.isfinite(number):
        return None
    number = number if abs(number) < LATEST else number / 1000
    return number if abs(number) < LATEST else None


def parse_number(value: Any) -> float | None:
    """A finite number, possibly as short text; None for anything else."""
    if type(value) is float:
        return value if abs(value) <= LARGEST else None  # the comparison is false for NaN
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (type(value) is str and len(value) > 40):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def parse_offset(value: Any) -> int | None:
    """The offset of the first position; 0 if not stated, None if invalid."""
    if value is None or value == "":
        return 0
    number = parse_number(value)
    return int(number) if number is not None and number == int(number) and 0 <= number < MAX_OFFSET else None


def parse_whole_number(value: str | bytes) -> int | None:
    """Parse an integer that fits into int64; None for anything else."""
    try:
        number = int(value)
    except ValueError:
        return None
    return number if abs(number) < 2**62 else None


def parse_list(value: Any) -> list[Any] | None:
    """A list from JSON, JSON text or space-separated words; None for anything else."""
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


def nested_value(row: dict[str, Any], path: str) -> Any:
    """The value at a dotted path, in nested objects or with joined names; None if missing.

    >>> [nested_value(row, "a.b.c") for row in ({"a": {"b": {"c": 1}}}, {"a.b.c": 1}, {"a": {"b.c": 1}}, {"a": 1})]
    [1, 1, 1, None]
    """
    if path in row:
        return row[path]
    cut = path.find(".")
    while cut > 0:
        inner = row.get(path[:cut])
        if isinstance(inner, dict) and (found := nested_value(inner, path[cut + 1 :])) is not None:
            return found
        cut = path.find(".", cut + 1)
    return None

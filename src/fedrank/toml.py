"""Write tables as TOML, and access them by dotted key.

A key such as `learner.ranker.name` names one setting in nested tables.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from datetime import date, time
from typing import Any

TomlTable = dict[str, Any]
DEEPEST = 50  # levels of nested tables and lists; a spec has four or five
LONGEST = 1_000_000  # characters of a spec; built-in ones have at most a hundredth
_KEY_OR_VALUE = re.compile(r"[^={},\n]+")


def parse_toml(text: str) -> TomlTable:
    """Parse a TOML text; ValueError if it is invalid or nested too deeply."""
    too_deep = ValueError(f"tables or lists are nested more than {DEEPEST} levels deep; flatten the specification")
    if len(text) > LONGEST:
        raise ValueError(f"the specification has {len(text):,} characters, but at most {LONGEST:,} are allowed")
    # The time of Python's parser is quadratic in the length of a dotted key.
    if any(found.group().count(".") > 2 * DEEPEST for found in _KEY_OR_VALUE.finditer(text)):
        raise too_deep
    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise too_deep from None
    except tomllib.TOMLDecodeError as problem:
        problem.args = (f"{problem}{_line_of(problem, text)}",)
        raise
    inside: list[Any] = [tables]
    for _ in range(DEEPEST):
        values = (value for one in inside for value in (one.values() if isinstance(one, dict) else one))
        inside = [value for value in values if isinstance(value, (dict, list))]
        if not inside:
            return tables
    raise too_deep


def _line_of(problem: tomllib.TOMLDecodeError, text: str) -> str:
    """The line that a message of the parser refers to."""
    found = re.search(r"\(at line (\d+), column \d+\)", str(problem))
    line = text.split("\n")[int(found[1]) - 1].strip() if found else ""
    return f": {line[:80]}" if line else ""


def write_toml(tables: Mapping[str, Any]) -> str:
    """Write tables as TOML: settings first, then a [section] per table, with inner tables on one line.

    >>> print(write_toml({"rounds": 5, "learner": {"name": "pdgd", "ranker": {"name": "linear"}}}))
    rounds = 5
    <BLANKLINE>
    [learner]
    name = "pdgd"
    ranker = { name = "linear" }
    <BLANKLINE>
    """
    settings = {key: value for key, value in tables.items() if not isinstance(value, Mapping) and not _tabular(value)}
    parts = [_lines(settings)] if settings else []
    for key, value in tables.items():
        if key in settings:
            continue
        if _tabular(value):
            parts += [f"[[{_key(key)}]]\n{_lines(row)}" for row in value]
        elif value and all(isinstance(inner, Mapping) for inner in value.values()):
            parts += [f"[{_key(key)}.{_key(inner)}]\n{_lines(table)}" for inner, table in value.items()]
        else:
            parts.append(f"[{_key(key)}]\n{_lines(value)}")
    return "\n".join(parts)


def write_value(value: Any) -> str:
    """Write a value as TOML, on one line.

    >>> write_value({"name": "krum", "shares": [0.1, 1e-5]})
    '{ name = "krum", shares = [0.1, 1e-05] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    elif isinstance(value, str):
        # JSON and TOML have the same escapes, except for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    elif isinstance(value, int):
        return str(int(value))
    elif isinstance(value, float):
        return repr(float(value))
    elif isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write_value, value))}]"
    elif isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {write_value(v)}' for k, v in value.items())} }}" if value else "{}"
    elif isinstance(value, (date, time)):  # valid TOML, although no setting uses it
        return str(value)
    raise TypeError(f"{value!r} cannot be written as TOML; use text, numbers, true or false, lists and tables")


def shown(value: Any) -> str:
    """Format a value for messages, as TOML if possible."""
    try:
        return write_value(value)
    except TypeError:
        return repr(value)


def readable(value: Any) -> str:
    """Format a setting for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    if isinstance(value, dict):
        rest = ", ".join(f"{key} = {readable(each)}" for key, each in value.items() if key != "name")
        return f"{value['name']} ({rest})" if "name" in value and rest else str(value.get("name", rest))
    if isinstance(value, (list, tuple)):
        return ", ".join(readable(each) for each in value)
    return str(value)


def flat(tables: Mapping[str, Any], whole: Callable[[str, TomlTable], bool] = lambda key, table: False) -> TomlTable:
    """Flatten nested tables to dotted keys; a table for which `whole(key, table)` is true stays a value.

    >>> flat({"learner": {"ranker": {"name": "mlp"}, "rate": 0.1}})
    {'learner.ranker.name': 'mlp', 'learner.rate': 0.1}
    """
    found: TomlTable = {}

    def add(key: str, value: Any) -> None:
        if isinstance(value, dict) and not whole(key, value):
            for inner, below in value.items():
                add(f"{key}.{inner}", below)
        elif key in found:
            raise ValueError(f"{key}: is set twice; remove one of them")
        else:
            found[key] = value

    for key, value in tables.items():
        add(key, value)
    return found


def put(tables: TomlTable, path: list[str], value: Any) -> None:
    """Set a value in nested tables; a method given by its name alone becomes a table."""
    for depth, key in enumerate(path[:-1], start=1):
        inner = tables.get(key, {})
        if isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            place = ".".join(path[:depth])
            raise ValueError(f"{place}: {shown(inner)} has no settings, so {'.'.join(path)} cannot be set")
        tables[key] = inner
        tables = inner
    tables[path[-1]] = value


def parse_override(text: str) -> tuple[list[str], Any]:
    """Parse `key=value` into path and value; a value that is not TOML is a string.

    >>> parse_override("aggregator.name=krum"), parse_override("seeds=[1, 2]")
    ((['aggregator', 'name'], 'krum'), (['seeds'], [1, 2]))
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} is not a setting; write key=value, such as rounds=100")
    wrong = ValueError(f"{key!r} is not a key; write key=value, such as aggregator.name=mean")
    try:
        inner = parse_toml(f"{key} = 0")
    except ValueError:
        raise wrong from None
    path = []
    while isinstance(inner, dict):
        if len(inner) != 1:
            raise wrong
        [step] = inner
        path.append(step)
        inner = inner[step]
    try:
        parsed = parse_toml(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return path, value.strip()
    return path, parsed["value"] if len(parsed) == 1 else value.strip()


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {write_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else write_value(key)


def _tabular(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(row, Mapping) for row in value)

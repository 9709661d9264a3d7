"""Tables: writing them as TOML, and reaching into them by dotted key.

A key such as `learner.ranker.name` names one setting in a nest of tables.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

Table = dict[str, Any]


def write_toml(tables: Mapping[str, Any]) -> str:
    """Tables as TOML: settings first, then a [section] for every table, with smaller tables inside it on one line.

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
    """One value as TOML, on one line.

    >>> write_value({"name": "krum", "shares": [0.1, 1e-5]})
    '{ name = "krum", shares = [0.1, 1e-05] }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    elif isinstance(value, str):
        # JSON and TOML escape alike, but for one control character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    elif isinstance(value, int):
        return str(int(value))
    elif isinstance(value, float):
        return repr(float(value))
    elif isinstance(value, (list, tuple)):
        return f"[{', '.join(map(write_value, value))}]"
    elif isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {write_value(v)}' for k, v in value.items())} }}" if value else "{}"
    return str(value)  # dates and times, which TOML can hold and no setting asks for


def flat(tables: Mapping[str, Any], whole: frozenset[str] = frozenset()) -> Table:
    """Nested tables as one table of dotted keys; tables named in `whole` are values and stay together.

    >>> flat({"learner": {"ranker": {"name": "mlp"}, "rate": 0.1}})
    {'learner.ranker.name': 'mlp', 'learner.rate': 0.1}
    """
    found: Table = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and key not in whole:
            inner = flat(value, frozenset(k.removeprefix(f"{key}.") for k in whole if k.startswith(f"{key}.")))
            rows = {f"{key}.{k}": v for k, v in inner.items()}
        else:
            rows = {key: value}
        twice = found.keys() & rows.keys()
        if twice:
            raise ValueError(f"{min(twice)} is set twice; keep one of them")
        found |= rows
    return found


def put(tables: Table, path: list[str], value: Any) -> None:
    """Set one value deep in a nest of tables; a method given by its name alone becomes a table."""
    for depth, key in enumerate(path[:-1], start=1):
        inner = tables.get(key, {})
        if isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise ValueError(f"{'.'.join(path[:depth])} is {write_value(inner)} and has no settings")
        tables[key] = inner
        tables = inner
    tables[path[-1]] = value


def parse_override(text: str) -> tuple[list[str], Any]:
    """Path and value of `key=value`; a value that is not TOML is taken as a string.

    >>> parse_override("aggregator.name=krum"), parse_override("seeds=[1, 2]")
    ((['aggregator', 'name'], 'krum'), (['seeds'], [1, 2]))
    """
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"{text!r} sets nothing; write it as key=value, such as rounds=100")
    try:
        inner = tomllib.loads(f"{key} = 0")
    except tomllib.TOMLDecodeError:
        raise ValueError(f"{key!r} is not a key; write it as key=value, such as aggregator.name=krum") from None
    path = []
    while isinstance(inner, dict):
        (step,) = inner
        path.append(step)
        inner = inner[step]
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return path, value.strip()
    return path, parsed["value"] if len(parsed) == 1 else value.strip()


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {write_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else write_value(key)


def _tabular(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(row, Mapping) for row in value)

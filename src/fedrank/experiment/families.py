"""Methods by name: building them from tables, describing them, listing them.

A method is a frozen dataclass; its fields are its settings. `"krum"` and `{ name = "krum", attackers = 0.2 }` both name one,
and `{ name = "my_lab.ideas:Mine" }` names one outside the package.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedrank.federate.aggregate import AGGREGATORS
from fedrank.federate.partition import PARTITIONS, Partition
from fedrank.federate.server import SERVER_STEPS
from fedrank.rank.learners import LEARNERS
from fedrank.rank.measures import MEASURES
from fedrank.rank.rankers import RANKERS
from fedrank.rank.users import USER_MEANINGS
from fedrank.types import Aggregator, Learner, Ranker, ServerStep

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Family:
    """Methods that can stand in for each other."""

    name: str
    methods: Mapping[str, type]


# One line makes a family known: to specs, to `fedrank methods`, and to the contract tests.
FAMILIES: dict[Any, Family] = {
    Learner: Family("learner", LEARNERS),
    Ranker: Family("ranker", RANKERS),
    Aggregator: Family("aggregator", AGGREGATORS),
    ServerStep: Family("server", SERVER_STEPS),
    Partition: Family("partition", PARTITIONS),
}
LISTS = {"user": USER_MEANINGS, "measure": MEASURES}  # names with a meaning, without settings


def build(protocol: Any, given: str | Mapping[str, Any], place: str) -> Any:
    """The method that a name, or a table with a name and settings, asks for. Mistakes name their place."""
    family = FAMILIES[protocol]
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise ValueError(f'{place}: {given!r} is not a method; write {place} = {{ name = "..." }}')
    if not isinstance(table.get("name"), str):
        raise ValueError(f"{place}.name: is missing; write one of {_listed(family.methods)}")
    kind = _class_for(family, table["name"], place)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = _hints(kind)
    settings: dict[str, Any] = {}
    problems = []
    for key, value in table.items():
        if key == "name":
            continue
        if key not in fields:
            problems.append(f"{place}.{key}: no such setting of {table['name']}{nearest(key, fields)}")
            continue
        try:
            settings[key] = (
                build(hints[key], value, f"{place}.{key}")
                if hints[key] in FAMILIES
                else checked(hints[key], value, f"{place}.{key}")
            )
        except ValueError as problem:
            problems.append(str(problem))
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and name not in table
    ]
    problems += [f"{place}.{name}: is missing; {table['name']} cannot do without it" for name in required]
    if problems:
        raise ValueError("\n".join(problems))
    try:
        return kind(**settings)
    except ValueError as problem:
        raise ValueError(f"{place}: {problem}") from None


def describe(method: Any) -> dict[str, Any]:
    """The table that builds this method again: its name and all its settings."""
    table: dict[str, Any] = {"name": name_of(method)}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if dataclasses.is_dataclass(value):
            value = describe(value)
        if value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def name_of(method: Any) -> str:
    """How a spec calls this method."""
    for family in FAMILIES.values():
        for name, kind in family.methods.items():
            if kind is type(method):
                return name
    return f"{type(method).__module__}:{type(method).__qualname__}"


def checked(hint: Any, value: Any, place: str) -> Any:
    """The value, if it is of the kind that is asked for: no text for a number, no number for yes or no."""
    if isinstance(value, list) and get_origin(hint) is tuple:
        value = tuple(value)
    try:
        return TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as problem:
        reason = problem.errors()[0]["msg"].removeprefix("Value error, ").replace("Input should", "it should")
        raise ValueError(f"{place}: {value!r} cannot be used; {reason}") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean "krum"?`, or what there is if nothing is near.

    >>> nearest("kurm", ["mean", "krum"])
    '; did you mean "krum"?'
    """
    known = list(known)
    near = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.5)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there is {_listed(known)}" if known else "; there is none"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _class_for(family: Family, name: str, place: str) -> type:
    if name in family.methods:
        return family.methods[name]
    if ":" not in name:
        raise ValueError(f"{place}.name: no {name!r}{nearest(name, family.methods)}")
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as problem:
        raise ValueError(f"{place}.name: {name!r} cannot be imported ({problem}); write module:Class") from None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and callable(kind)):
        raise ValueError(f"{place}.name: {name!r} is not a dataclass with a call; see CONTRIBUTING")
    return kind


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


@dataclass(frozen=True)
class Setting:
    """One setting of a method, as documentation."""

    name: str
    kind: str
    default: str
    comment: str


@dataclass(frozen=True)
class Listed:
    """One method, as documentation."""

    family: str
    name: str
    meaning: str
    settings: tuple[Setting, ...] = ()


def methods() -> list[Listed]:
    """Everything that a spec can name."""
    rows = [
        Listed(family.name, name, _first_sentence(kind), _settings(kind))
        for family in FAMILIES.values()
        for name, kind in family.methods.items()
    ]
    return rows + [Listed(kind, name, meaning) for kind, names in LISTS.items() for name, meaning in names.items()]


def show_methods(console: Console, family: str | None = None, name: str | None = None) -> None:
    """Print methods by family; a single one with all its settings."""
    from rich.table import Table
    from rich.text import Text

    rows = methods()
    families = list(dict.fromkeys(row.family for row in rows))
    if family is not None:
        if family not in families:
            raise ValueError(f"no family {family!r}{nearest(family, families)}")
        rows = [row for row in rows if row.family == family]
    if name is not None:
        if name not in {row.name for row in rows}:
            raise ValueError(f"no {family} {name!r}{nearest(name, [row.name for row in rows])}")
        rows = [row for row in rows if row.name == name]
    for each in dict.fromkeys(row.family for row in rows):
        table = Table(title=Text(each, style="bold"), title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column()
        for row in rows:
            if row.family != each:
                continue
            table.add_row(row.name, Text(row.meaning))
            for setting in row.settings:
                default = f" = {setting.default}" if setting.default else ""
                comment = f"  # {setting.comment}" if setting.comment else ""
                table.add_row("", Text(f"{setting.name}: {setting.kind}{default}{comment}", style="dim"))
        console.print(table)
        console.print()


def _first_sentence(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _settings(kind: type) -> tuple[Setting, ...]:
    comments = _comments(kind)
    rows = []
    for field in dataclasses.fields(kind):
        hint = _hints(kind)[field.name]
        if hint in FAMILIES:
            made = field.default_factory() if callable(field.default_factory) else field.default
            rows.append(Setting(field.name, FAMILIES[hint].name, name_of(made), comments.get(field.name, "")))
        else:
            default = "" if field.default is dataclasses.MISSING else repr(field.default)
            rows.append(Setting(field.name, str(field.type), default, comments.get(field.name, "")))
    return tuple(rows)


def _comments(kind: type) -> dict[str, str]:
    """Comments behind the fields of a class: the settings' documentation is written there and only there."""
    try:
        lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    except (OSError, TypeError):
        return {}
    body = ast.parse("\n".join(lines)).body[0]
    fields = [node for node in getattr(body, "body", []) if isinstance(node, ast.AnnAssign)]
    found = {}
    for node in fields:
        _, mark, comment = lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :].partition("#")
        if mark:
            found[getattr(node.target, "id", "")] = comment.strip()
    return found

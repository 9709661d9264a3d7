"""Methods by name: building them from tables, describing them, listing them.

A method is a frozen dataclass; its fields are its settings. `"mean"` and `{ name = "mean", weighted = false }` both
name one, and `{ name = "my_lab.ideas:Mine" }` names one outside the package.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import operator
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from fedrank.attack.poison import ATTACKS
from fedrank.experiment.toml import shown
from fedrank.federate.aggregate import AGGREGATORS
from fedrank.federate.asynchronous import ARRIVALS, ArrivalRule
from fedrank.federate.forests import MERGERS, Merger
from fedrank.federate.partition import PARTITIONS, Partition
from fedrank.federate.server import SERVER_STEPS
from fedrank.federate.splits import SPLITS, Splitter
from fedrank.names import nearest
from fedrank.protect.mechanisms import MECHANISMS, PLACES, Place, PricedMechanism
from fedrank.rank.learners import LEARNERS
from fedrank.rank.measures import MEASURES
from fedrank.rank.rankers import RANKERS
from fedrank.rank.trees import BOOSTERS, Booster
from fedrank.rank.users import USER_MEANINGS
from fedrank.silo.training import SILO_METHODS, SiloMethod
from fedrank.types import Aggregator, Attack, Learner, Ranker, ServerStep
from fedrank.unlearn.methods import UNLEARNERS, Unlearner

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
    ArrivalRule: Family("arrival", ARRIVALS),
    Attack: Family("attack", ATTACKS),
    PricedMechanism: Family("mechanism", MECHANISMS),
    Place: Family("place", PLACES),
    Partition: Family("partition", PARTITIONS),
    Unlearner: Family("unlearner", UNLEARNERS),
    SiloMethod: Family("silo-method", SILO_METHODS),
    Booster: Family("booster", BOOSTERS),
    Splitter: Family("split", SPLITS),
    Merger: Family("merger", MERGERS),
}
LISTS = {"user": USER_MEANINGS, "measure": MEASURES}  # names with a meaning, without settings


def build(protocol: Any, given: Any, place: str) -> Any:
    """The method that a name, or a table with a name and settings, asks for. Mistakes name their place, one a line."""
    family = FAMILIES[protocol]
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        example = next(iter(family.methods))
        raise ValueError(f'{place}: {shown(given)} is not a method; write a table such as {{ name = "{example}" }}')
    if not isinstance(table.get("name"), str):
        raise ValueError(_no_name(family, table, place))
    kind = _class_for(protocol, table["name"], place)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    settings: dict[str, Any] = {}
    problems = []
    for key, value in table.items():
        if key == "name":
            continue
        if key not in fields:
            known = nearest(key, fields) if fields else "; it has none"
            problems.append(f"{place}.{key}: no such setting of {table['name']}{known}")
            continue
        hint = _hints(kind)[key]
        try:
            settings[key] = (build if hint in FAMILIES else checked)(hint, value, f"{place}.{key}")
        except ValueError as problem:
            problems.append(str(problem))
    problems += [
        f"{place}.{name}: is missing; {table['name']} cannot do without it"
        for name, field in fields.items()
        if is_required(field) and name not in table
    ]
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


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def checked(hint: Any, value: Any, place: str) -> Any:
    """The value, if it is of the kind that is asked for: no text for a number, no number for yes or no."""
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if isinstance(value, list) and get_origin(plain) is tuple:  # TOML has lists only
        value = tuple(value)
    try:
        return _adapter(hint).validate_python(value, strict=True)
    except ValidationError as problem:
        found = problem.errors()
    # A list with one bad entry fails as a number, too, where either is allowed: the entry is what is wrong.
    for error in found:
        for step in error["loc"]:
            if isinstance(step, int):
                raise ValueError(f"{place}[{step}]: {shown(error['input'])} cannot be used; {_remedy(error)}")
    remedies = " or ".join(dict.fromkeys(map(_remedy, found)))
    raise ValueError(f"{place}: {shown(value)} cannot be used; {remedies}")


_REMEDIES = {
    "int_type": "give a whole number",
    "float_type": "give a number",
    "bool_type": "give true or false",
    "string_type": "give text in quotes",
    "list_type": "give a list in brackets",
    "tuple_type": "give a list in brackets",
    "dict_type": "give a table",
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give less than {lt}",
    "less_than_equal": "give {le} or less",
    "literal_error": "give {expected}",
    "too_short": "list at least {min_length}",
}


def _remedy(error: Any) -> str:
    plain = _REMEDIES.get(error["type"])
    return str(error["msg"]) if plain is None else plain.format(**error.get("ctx", {}))


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _no_name(family: Family, table: Mapping[str, Any], place: str) -> str:
    """What to say of a table without a name; its settings tell which method was meant."""
    if "name" in table:
        return f"{place}.name: {shown(table['name'])} is not a name; write one of {_listed(family.methods)}"
    fitting = [name for name, kind in family.methods.items() if table and set(table) <= set(_hints(kind))]
    if fitting:
        return f"{place}.name: is missing; {', '.join(table)} can be set for {_listed(fitting)}"
    return f"{place}.name: is missing; write one of {_listed(family.methods)}"


def _class_for(protocol: Any, name: str, place: str) -> type:
    family = FAMILIES[protocol]
    if name in family.methods:
        return family.methods[name]
    if ":" not in name:
        raise ValueError(f"{place}.name: no {name!r}{nearest(name, family.methods)}")
    module, _, attribute = name.partition(":")
    try:
        kind: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as problem:  # whatever the code of others may raise while it is imported
        lost = isinstance(problem, ModuleNotFoundError) and problem.name == module.partition(".")[0]
        remedy = "put its folder on PYTHONPATH, such as PYTHONPATH=. fedrank ..." if lost else "write module:Class"
        raise ValueError(f"{place}.name: {name!r} cannot be imported ({problem}); {remedy}") from None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"{place}.name: {name!r} is not a dataclass, whose fields would be its settings")
    has = {field.name for field in dataclasses.fields(kind)}.union(*(vars(base) for base in kind.__mro__))
    lacks = [part for part in vars(protocol) if (part == "__call__" or part[0] != "_") and part not in has]
    if lacks:
        raise ValueError(f"{place}.name: {name!r} is no {family.name}, it lacks {', '.join(lacks)}")
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
    """Print methods by family; only those of one family, or of one name, if asked."""
    from rich.table import Table
    from rich.text import Text

    rows = methods()
    families = list(dict.fromkeys(row.family for row in rows))
    if family is not None and family not in families and name is None and family in {row.name for row in rows}:
        rows = [row for row in rows if row.name == family]
    elif family is not None:
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
        value = None if is_required(field) else default_of(field)
        if hint in FAMILIES:
            what, default = FAMILIES[hint].name, "" if value is None else name_of(value)
        else:
            what, default = str(field.type), "" if value is None else shown(value)
        rows.append(Setting(field.name, what, default, comments.get(field.name, "")))
    return tuple(rows)


def _comments(kind: type) -> dict[str, str]:
    """Comments behind the fields of a class: the settings' documentation is written there and only there."""
    found: dict[str, str] = {}
    for base in kind.__mro__[-2::-1]:  # from the most general one on, without `object`
        found |= _own_comments(base)
    return found


@cache
def _own_comments(kind: type) -> dict[str, str]:
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

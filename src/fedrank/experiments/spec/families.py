"""Reads methods and sections from tables, and writes them as tables.

A method is a frozen dataclass; its fields are its settings. `"mean"` and `{ name = "mean", weighted = false }` both
name one, and `{ name = "my_lab.ideas:Mine" }` names one outside the package. A section, such as [data], has its own
class and needs no name. The type hint of a field defines its valid values.
"""

from __future__ import annotations

import dataclasses
import importlib
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from fedrank import plugins
from fedrank.attacks.poison import ATTACKS
from fedrank.federated.aggregators import AGGREGATORS
from fedrank.federated.asynchronous import ARRIVALS, ArrivalRule
from fedrank.federated.local import LOCAL_STEPS
from fedrank.federated.partition import PARTITIONS, Partition
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS
from fedrank.names import did_you_mean
from fedrank.privacy.mechanisms import MECHANISMS, PLACEMENTS, Placement, PricedMechanism
from fedrank.ranking.click_models import OwnClickModel
from fedrank.ranking.learners import LEARNERS
from fedrank.ranking.rankers import RANKERS
from fedrank.silo.training import SILO_METHODS, SiloMethod
from fedrank.toml import TomlTable, shown
from fedrank.trees.boosters import BOOSTERS, Booster
from fedrank.trees.mergers import MERGERS, Merger
from fedrank.trees.splits import SPLITS, Splitter
from fedrank.types import Aggregator, Attack, Learner, LocalStep, Ranker, ServerOptimizer
from fedrank.unlearning.methods import UNLEARNERS, Unlearner
from fedrank.value_checks import checked, noting


@dataclass(frozen=True)
class Family:
    """Methods that are interchangeable in a spec."""

    name: str
    methods: Mapping[str, type]


# An entry here makes a family available in specs, `fedrank methods` and the contract tests.
FAMILIES: dict[Any, Family] = {
    Learner: Family("learner", LEARNERS),
    Ranker: Family("ranker", RANKERS),
    LocalStep: Family("local", LOCAL_STEPS),
    Aggregator: Family("aggregator", AGGREGATORS),
    ServerOptimizer: Family("server", SERVER_OPTIMIZERS),
    ArrivalRule: Family("arrival", ARRIVALS),
    Attack: Family("attack", ATTACKS),
    PricedMechanism: Family("mechanism", MECHANISMS),
    Placement: Family("placement", PLACEMENTS),
    Partition: Family("partition", PARTITIONS),
    Unlearner: Family("unlearner", UNLEARNERS),
    SiloMethod: Family("silo-method", SILO_METHODS),
    Booster: Family("booster", BOOSTERS),
    Splitter: Family("split", SPLITS),
    Merger: Family("merger", MERGERS),
}


OTHER_FAMILIES = {OwnClickModel: Family("click model", {})}  # families without built-in methods
OPTIONAL = {"from_impressions"}  # a learner without it runs only in simulations


# Keys of version 0.1 and their new names: an error in a new spec, translated in the spec of a finished run.
RENAMED: dict[str, str] = {
    "attack.user": "click_model",
    "booster.least": "min_negatives",
    "clients.user": "click_model",
    "clients.user_per": "click_model_per",
    "mechanism.place": "placement",
    "policy.fewest_sites": "min_sites",
    "policy.places": "placements",
}
RENAMED_METHODS = {"secure-sum": "secure-aggregation"}
# Settings of earlier versions and what replaces them.
MOVED = {
    "learner.prox": 'local = { name = "fedprox", strength = 0.01 }',
    "learner.personal": 'local = "fedper"',
    "learner.control": 'local = "scaffold"',
    "merge.edge_rows": 'edges = "grid" or "bounded"',
}


def with_new_names(tables: TomlTable) -> TomlTable:
    """The spec of a finished run, with the key names of this version."""
    updated = {key: dict(value) if isinstance(value, dict) else value for key, value in tables.items()}
    for key, new in RENAMED.items():
        section, _, old = key.partition(".")
        table = updated.get(section)
        if isinstance(table, dict) and old in table and new not in table:
            table[new] = table.pop(old)
    mechanism = updated.get("mechanism")
    placement = mechanism.get("placement") if isinstance(mechanism, dict) else None
    if isinstance(placement, dict) and isinstance(name := placement.get("name"), str):
        updated["mechanism"]["placement"] = {**placement, "name": RENAMED_METHODS.get(name, name)}
    return updated


class SpecSection:
    """A table of settings that is not a method. Subclasses are frozen dataclasses."""

    def problems(self) -> list[str]:
        """Conflicts between values of the right type; each line names its key."""
        return []

    def code_from_outside(self, location: str) -> list[str]:
        """External code that is named by other values than methods; each line names its key."""
        return []


@dataclass(frozen=True)
class ExternalMethod:
    """An external method, or one with an external setting, that was not imported. A report needs only its table."""

    table: TomlTable
    needs: tuple[str, ...] = ()  # external methods among its settings, each with its key; empty: it is external itself


def build(protocol: Any, given: Any, location: str, full_check: bool = True) -> Any:
    """Build the method that a name, or a table with a name and settings, describes. Each problem is one line.

    With `full_check=False`, external code is not imported: the spec comes from a finished run, whose folder may have
    been written on another machine and is not trusted.
    """
    family = FAMILIES.get(protocol) or OTHER_FAMILIES[protocol]
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        example = next(iter(family.methods))
        raise ValueError(f'{location}: {shown(given)} is not a method; write a table such as {{ name = "{example}" }}')
    if not isinstance(table.get("name"), str):
        raise ValueError(_no_name(family, table, location))
    if ":" not in table["name"] and table["name"] not in family.methods:  # it may be from a plug-in
        table = {**table, "name": plugins.methods().get(f"{family.name}.{table['name']}", table["name"])}
    if not full_check and ":" in table["name"]:
        return ExternalMethod(dict(table))
    kind = _class_for(protocol, table["name"], location)
    problems: list[str] = []
    settings = {key: value for key, value in table.items() if key != "name"}
    values = read_fields(kind, settings, location, problems, of=table["name"], full_check=full_check)
    if problems:
        raise ValueError("\n".join(problems))
    if any(isinstance(value, ExternalMethod) for value in values.values()):
        return ExternalMethod(dict(table), tuple(code_from_outside(values, location)))
    try:
        return kind(**values)
    except ValueError as problem:
        raise ValueError(f"{location}: {problem}") from None


def read_fields(
    kind: type,
    table: Any,
    location: str,
    problems: list[str],
    *,
    of: str = "",  # the name of the method; empty for a section
    known: Iterable[str] = (),  # other valid keys, for suggestions
    full_check: bool = True,
) -> TomlTable:
    """The valid values of a table by field name; problems with the others are appended to `problems`."""
    if not isinstance(table, Mapping):
        problems.append(f"{location}: {shown(table)} is not a table; write [{location}]")
        return {}
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    values: TomlTable = {}
    for key, value in table.items():
        at = f"{location}.{key}" if location else key
        if key not in fields:
            names = [*fields, *known]
            if at in RENAMED:
                problems.append(f"{at}: is called {RENAMED[at]} since version 0.2; rename it")
                continue
            if at in MOVED:
                problems.append(f"{at}: is no longer a setting; remove it, and write {MOVED[at]} if it was on")
                continue
            what = f"no such setting of {of}" if of else "no such key"
            problems.append(f"{at}: {what}{did_you_mean(key, names) if names else '; it has no settings'}")
            continue
        with noting(problems):
            read = _read(hints_of(kind)[key], value, at, problems, full_check)
            if read is not None:
                values[key] = read
    for name, field in fields.items():
        if name not in table and is_required(field):
            remedy = f"{of} requires it" if of else f"write {field.metadata['example']}"
            problems.append(f"{location}.{name}: is missing; {remedy}" if location else f"{name}: is missing; {remedy}")
    return values


def _read(hint: Any, value: Any, location: str, problems: list[str], full_check: bool) -> Any:
    """Read the value of a field: a method, a section, a list of sections, or a plain value."""
    [only, *more] = [each for each in get_args(hint) if each is not NoneType] or [hint]
    plain = only if NoneType in get_args(hint) and not more else hint
    if plain in FAMILIES:
        return build(plain, value, location, full_check)
    if isinstance(plain, type) and issubclass(plain, SpecSection):
        return _read_section(plain, value, location, problems, full_check)
    if get_origin(plain) is tuple and isinstance(only, type) and issubclass(only, SpecSection):
        if not isinstance(value, list):
            raise ValueError(f"{location}: {shown(value)} is not a list of tables; write [[{location}]]")
        return tuple(_read_section(only, row, f"{location}[{i}]", problems, full_check) for i, row in enumerate(value))
    return checked(hint, value, location)


def _read_section(
    kind: type[SpecSection], table: Any, location: str, problems: list[str], full_check: bool
) -> SpecSection | None:
    before = len(problems)
    values = read_fields(kind, table, location, problems, full_check=full_check)
    if len(problems) > before:
        return None
    section = kind(**values)
    problems += section.problems() if full_check else []
    return section if len(problems) == before else None


def describe(method: Any) -> TomlTable:
    """A table with the name and all settings of a method, from which it can be built again."""
    if isinstance(method, ExternalMethod):
        return dict(method.table)
    return {"name": name_of(method)} | settings_of(method)


def code_from_outside(one: Any, location: str = "") -> Iterator[str]:
    """External methods that were not imported, each with its key."""
    if isinstance(one, ExternalMethod):
        yield from one.needs or [f"{location}.name: {one.table['name']!r}"]
    elif isinstance(one, dict):
        for key, value in one.items():
            yield from code_from_outside(value, f"{location}.{key}")
    elif dataclasses.is_dataclass(one):
        if isinstance(one, SpecSection):
            yield from one.code_from_outside(location)
        for field in dataclasses.fields(one):
            yield from code_from_outside(
                getattr(one, field.name), f"{location}.{field.name}" if location else field.name
            )


def settings_of(one: Any) -> TomlTable:
    """The fields of a method or section as a table, without None and empty values."""
    table: TomlTable = {}
    for field in dataclasses.fields(one):
        value = getattr(one, field.name)
        if dataclasses.is_dataclass(value):
            value = settings_of(value) if isinstance(value, SpecSection) else describe(value)
        if value is not None:
            table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def name_of(method: Any) -> str:
    """The name of this method in a spec."""
    for family in FAMILIES.values():
        for name, kind in family.methods.items():
            if kind is type(method):
                return name
    return f"{type(method).__module__}:{type(method).__qualname__}"


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a setting; None if it is required."""
    if is_required(field):
        return None
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@cache
def hints_of(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _no_name(family: Family, table: Mapping[str, Any], location: str) -> str:
    """The message for a table without a name; its settings may indicate which method was meant."""
    if "name" in table:
        return f"{location}.name: {shown(table['name'])} is not a name; write one of {_listed(family.methods)}"
    fitting = [name for name, kind in family.methods.items() if table and set(table) <= set(hints_of(kind))]
    if fitting:
        return f"{location}.name: is missing; {', '.join(table)} can be set for {_listed(fitting)}"
    return f"{location}.name: is missing; write one of {_listed(family.methods)}"


def _class_for(protocol: Any, name: str, location: str) -> type:
    family = FAMILIES.get(protocol) or OTHER_FAMILIES[protocol]
    if name in family.methods:
        return family.methods[name]
    if ":" not in name:
        if name in RENAMED_METHODS:
            raise ValueError(
                f'{location}.name: "{name}" is called "{RENAMED_METHODS[name]}" since version 0.2; rename it'
            )
        if "." in name:
            module, _, attribute = name.rpartition(".")
            raise ValueError(
                f"{location}.name: unknown {family.name} {name!r}; for your own class, write {module}:{attribute}"
            )
        others = (found.partition(".")[2] for found in plugins.methods() if found.startswith(f"{family.name}."))
        raise ValueError(
            f"{location}.name: unknown {family.name} {name!r}{did_you_mean(name, [*family.methods, *others])}"
        )
    module, _, attribute = name.partition(":")
    try:
        kind: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as problem:  # external code may raise anything while it is imported
        lost = isinstance(problem, ModuleNotFoundError) and problem.name == module.partition(".")[0]
        remedy = "put the file next to the spec, or add its folder to PYTHONPATH" if lost else "write module:Class"
        raise ValueError(f"{location}.name: {name!r} cannot be imported ({problem}); {remedy}") from None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"{location}.name: {name!r} is not a dataclass; its fields would be the method's settings")
    has = {field.name for field in dataclasses.fields(kind)}.union(*(vars(base) for base in kind.__mro__))
    lacks = [part for part in vars(protocol) if (part == "__call__" or part[0] != "_") and part not in has | OPTIONAL]
    if lacks:
        raise ValueError(f"{location}.name: {name!r} is not a valid {family.name}; it lacks {', '.join(lacks)}")
    return kind

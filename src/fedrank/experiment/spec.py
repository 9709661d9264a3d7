"""The spec: an experiment as a TOML file, checked as a whole before anything runs."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field

from fedrank.data.catalog import describe as describe_data
from fedrank.data.normalise import NORMALISATIONS
from fedrank.experiment.families import build, checked, describe, nearest
from fedrank.experiment.toml import flat, parse_override, put, write_toml
from fedrank.federate.partition import Partition
from fedrank.rank.measures import measure
from fedrank.rank.users import USERS, User
from fedrank.types import Aggregator, Learner, ServerStep

Table = dict[str, Any]
Positive = Annotated[int, Field(ge=1)]


class SpecError(ValueError):
    """Everything that is wrong with a spec, one line each."""

    def __init__(self, problems: Iterable[str], source: str = ""):
        self.problems = list(dict.fromkeys(line for problem in problems for line in str(problem).splitlines()))
        self.source = source
        super().__init__("\n".join(f"{source}: {line}" if source else line for line in self.problems))


@dataclass(frozen=True)
class DataSpec:
    """Which data: a name of the catalog, or files."""

    name: str | None = None
    train: str | None = None  # LETOR file
    test: str | None = None
    validation: str | None = None
    folds: tuple[Positive, ...] = (1,)
    normalise: str | None = None  # "query", "global" or "none"; None: as the catalog says, or "none" for files


@dataclass(frozen=True)
class ClientsSpec:
    """Who takes part."""

    count: Positive
    partition: str | Table = field(default_factory=lambda: {"name": "iid"})
    user: str | list[str] | Table = "perfect"  # a name; a list, client c gets entry c, counted around; or own tables
    interactions: Positive | list[Positive] = 5  # searches a round; a list is counted around
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of clients in a round
    malicious: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class Published:
    """A value from a paper, shown next to ours."""

    measure: str  # "ndcg@10", "online" or "reward"
    value: float
    source: str
    spread: float | None = None
    variant: str | None = None


@dataclass(frozen=True)
class Methods:
    """What the tables of a spec build."""

    learner: Learner
    aggregator: Aggregator
    server: ServerStep
    partition: Partition
    users: list[str | User]


@dataclass(frozen=True)
class Variant:
    """One of the settings that an experiment compares."""

    name: str  # also its folder
    settings: Table  # what is varied, by dotted key
    experiment: Experiment  # concrete: varies nothing


@dataclass(frozen=True)
class Experiment:
    """A question, as it stands in its TOML file."""

    rounds: Positive
    data: DataSpec
    clients: ClientsSpec
    learner: str | Table
    kind: Literal["federated"] = "federated"
    title: str = ""
    evaluate_every: Positive = 10  # rounds
    measures: list[str] = field(default_factory=lambda: ["ndcg@10"])
    seeds: tuple[int, ...] = (1,)
    aggregator: str | Table = field(default_factory=lambda: {"name": "mean"})
    server: str | Table = field(default_factory=lambda: {"name": "add"})
    start: str | None = None  # a model to go on from
    baseline: str | None = None  # variant that others are compared with
    vary: dict[str, list[Any]] = field(default_factory=dict)  # dotted key -> values; every combination is a variant
    variants: dict[str, Table] = field(default_factory=dict)  # name -> changes
    published: tuple[Published, ...] = ()

    @cached_property
    def methods(self) -> Methods:
        users = [self.clients.user] if isinstance(self.clients.user, (str, dict)) else self.clients.user
        return Methods(
            build(Learner, self.learner, "learner"),
            build(Aggregator, self.aggregator, "aggregator"),
            build(ServerStep, self.server, "server"),
            build(Partition, self.clients.partition, "clients.partition"),
            [_user(one) for one in users],
        )

    def repeats(self) -> list[tuple[int, int]]:
        """(fold, seed) of every repeat."""
        return list(itertools.product(self.data.folds, self.seeds))

    def expand(self) -> list[Variant]:
        """Every variant as a concrete experiment: named ones times all combinations of [vary]."""
        named = self.variants or {"": {}}
        rows = []
        for (name, changes), values in itertools.product(named.items(), itertools.product(*self.vary.values())):
            settings = dict(zip(self.vary, values, strict=True))
            rows.append((name, settings, flat(changes, _WHOLE) | settings))
        names = _folder_names([(name, settings) for name, settings, _ in rows])
        base = to_tables(self)
        for key in ("vary", "variants", "baseline", "published"):
            base.pop(key, None)
        found, problems = [], []
        for (name, settings, changes), folder in zip(rows, names, strict=True):
            tables = copy.deepcopy(base)
            try:
                for key, value in changes.items():
                    _change(tables, key, value)
                found.append(Variant(folder, settings, from_tables(tables)))
            except ValueError as problem:
                what = f"variants.{name}" if name else "vary"
                problems += [f"{what}: {line}" for line in str(problem).splitlines()]
        if problems:
            raise SpecError(problems)
        return found

    def single(self, fold: int, seed: int) -> Experiment:
        """The same on one fold with one seed, and with every setting written out, so that it can be read in years."""
        return dataclasses.replace(
            self,
            data=dataclasses.replace(self.data, folds=(fold,)),
            clients=dataclasses.replace(self.clients, partition=describe(self.methods.partition)),
            learner=describe(self.methods.learner),
            aggregator=describe(self.methods.aggregator),
            server=describe(self.methods.server),
            seeds=(seed,),
        )


def read_experiment(source: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """A TOML file, or a built-in experiment by its name; `overrides` such as "rounds=100" change single keys."""
    path = Path(source)
    if path.is_file():
        text, folder = path.read_text(encoding="utf-8"), path.parent
    elif str(source) in builtin_names():
        text, folder = _builtin_folder().joinpath(f"{source}.toml").read_text(encoding="utf-8"), Path()
    elif path.suffix == ".toml" or path.is_dir():
        raise FileNotFoundError(f"no spec at {path}; give a TOML file, or one of {', '.join(builtin_names())}")
    else:
        raise FileNotFoundError(f"no file and no built-in experiment '{source}'{nearest(str(source), builtin_names())}")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise SpecError([f"not TOML: {problem}"], str(source)) from None
    try:
        for override in overrides:
            keys, value = parse_override(override)
            put(tables, keys, value)
        _resolve(tables, folder)
        experiment = from_tables(tables)
        names = [variant.name for variant in experiment.expand()]
    except ValueError as problem:
        raise SpecError(getattr(problem, "problems", [str(problem)]), str(source)) from None
    if experiment.baseline is not None and experiment.baseline not in names:
        problem = f"baseline: no variant {experiment.baseline!r}{nearest(experiment.baseline, names)}"
        raise SpecError([problem], str(source))
    return experiment


def builtin_names() -> list[str]:
    """Names of the experiments that come with fedrank."""

    def below(folder: Any, prefix: str) -> Iterable[str]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from below(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".toml"):
                yield prefix + entry.name.removesuffix(".toml")

    return sorted(below(_builtin_folder(), ""))


def from_tables(tables: Mapping[str, Any]) -> Experiment:
    """An experiment from the tables of its TOML; all mistakes are reported together."""
    problems: list[str] = []
    top = dict(tables)
    if isinstance(top.get("vary"), Mapping):
        top["vary"] = flat(top["vary"])  # keys may be quoted or not
    sections: Table = {}
    for name, section in _SECTIONS.items():
        if name in top:
            sections[name] = _section(section, top.pop(name), name, problems)
    rows = _rows(top.pop("published", []), "published", problems)
    published = tuple(_section(Published, row, "published", problems) for row in rows)
    for name in ("data", "clients", "learner", "rounds"):
        if name not in tables:
            problems.append(f"{name}: is missing; see `fedrank run quickstart` and its file for an example")
    experiment = None
    if not problems:
        experiment = _section(Experiment, top | sections | {"published": published}, "", problems)
    else:
        _section(Experiment, top | {"data": None, "clients": None}, "", problems)
    if experiment is not None:
        problems += _problems(experiment)
    if problems:
        raise SpecError([line for line in problems if not re.match(r"(data|clients): None ", line)])
    assert experiment is not None
    return experiment


def to_tables(experiment: Experiment) -> Table:
    """The tables of an experiment; what is absent or empty is left out."""
    tables: Table = {}
    for each in dataclasses.fields(experiment):
        value = getattr(experiment, each.name)
        if each.name == "published":
            value = [_without_none(row) for row in value]
        elif dataclasses.is_dataclass(value):
            value = _without_none(value)
        if value is not None and value not in ({}, [], "", ()):
            tables[each.name] = list(value) if isinstance(value, tuple) else copy.deepcopy(value)
    first = ("kind", "title", "rounds", "evaluate_every", "measures", "seeds", "baseline", "start")
    return {key: tables[key] for key in (*first, *tables) if key in tables}


def to_toml(experiment: Experiment) -> str:
    """The experiment as TOML; `from_tables(tomllib.loads(...))` gives it back."""
    return write_toml(to_tables(experiment))


def _section(kind: type, table: Any, place: str, problems: list[str]) -> Any:
    """A dataclass from its table, or None after noting what is wrong with it."""
    at = f"{place}." if place else ""
    if not isinstance(table, Mapping):
        problems.append(f"{place}: {table!r} is not a table; write [{place}]")
        return None
    fields = {each.name: each for each in dataclasses.fields(kind)}
    hints = get_type_hints(kind, include_extras=True)
    before = len(problems)
    values = {}
    for key, value in table.items():
        if key not in fields:
            problems.append(f"{at}{key}: no such key{nearest(key, fields)}")
            continue
        if dataclasses.is_dataclass(hints[key]) or key == "published":
            values[key] = value
            continue
        try:
            values[key] = checked(hints[key], value, f"{at}{key}")
        except ValueError as problem:
            problems.append(str(problem))
    for name, each in fields.items():
        missing = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
        if missing and name not in table and place:
            problems.append(f"{at}{name}: is missing")
    return kind(**values) if len(problems) == before else None


def _problems(asked: Experiment) -> list[str]:
    """What is wrong with values that are each of the right kind."""
    found = []
    for text in asked.measures:
        found += _said(f"measures: {text!r}", lambda text=text: measure(text))
    if not asked.measures:
        found.append('measures: is empty; name at least one, such as "ndcg@10"')
    for place, values in (("seeds", asked.seeds), ("data.folds", asked.data.folds)):
        if not values or len(set(values)) < len(values):
            found.append(f"{place}: {list(values)} repeats or lacks values; list each once")
    found += _data_problems(asked.data)
    if asked.clients.malicious > asked.clients.count:
        found.append(f"clients.malicious: {asked.clients.malicious} of {asked.clients.count} clients; use fewer")
    elif asked.clients.malicious:
        found.append(f"clients.malicious: {asked.clients.malicious} clients would do no harm, no attack is set; use 0")
    for row in asked.published:
        if row.measure not in ("online", "reward"):
            found += _said(f"published.measure: {row.measure!r}", lambda row=row: measure(row.measure))
    for key, values in asked.vary.items():
        if not values:
            found.append(f"vary.{key}: is empty; list the values to compare")
    for name, family in _FAMILIES.items():
        found += _said("", lambda name=name, family=family: build(family, getattr(asked, name), name))
    found += _said("", lambda: build(Partition, asked.clients.partition, "clients.partition"))
    user = asked.clients.user
    for one in [user] if isinstance(user, (str, dict)) else user:
        found += _said("", lambda one=one: _user(one))
    return found


def _said(place: str, act: Any) -> list[str]:
    try:
        act()
    except ValueError as problem:
        return [f"{place}: {problem}" if place else str(problem)]
    return []


def _data_problems(data: DataSpec) -> list[str]:
    if data.normalise is not None and data.normalise not in NORMALISATIONS:
        return [f"data.normalise: no {data.normalise!r}{nearest(data.normalise, NORMALISATIONS)}"]
    files = (data.train, data.test, data.validation)
    if data.name is not None:
        if any(files):
            return ["data: has both a name and files; keep one of them"]
        try:
            entry = describe_data(data.name)
        except ValueError as problem:
            return [f"data.name: {problem}"]
        wrong = [fold for fold in data.folds if fold > entry.folds]
        return [f"data.folds: {data.name} has {entry.folds} folds, not {wrong[0]}"] if wrong else []
    if data.train is None or data.test is None:
        return ["data: give a name of the catalog (`fedrank data list`), or files: train and test"]
    if tuple(data.folds) != (1,):
        return [f"data.folds: {list(data.folds)}, but files have only fold 1"]
    return [f"data: no file {file}" for file in files if file is not None and not Path(file).exists()]


def _user(given: Any) -> str | User:
    if isinstance(given, str):
        if given not in USERS:
            raise ValueError(f"clients.user: no {given!r}{nearest(given, USERS)}")
        return given
    unknown = set(given) - {each.name for each in dataclasses.fields(User)}
    if unknown or not {"click", "stop"} <= set(given):
        raise ValueError("clients.user: own tables are { click = [...], stop = [...], attention_decay = 0.0 }")
    hints = get_type_hints(User)
    values = {key: checked(hints[key], value, f"clients.user.{key}") for key, value in given.items()}
    try:
        return User(**values)
    except ValueError as problem:
        raise ValueError(f"clients.user: {problem}") from None


def _change(tables: Table, key: str, value: Any) -> None:
    """One change of a variant; a misspelt section is caught here, a misspelt setting when the result is checked."""
    if key.split(".")[0] in ("vary", "variants", "published", "baseline", "seeds") or key == "data.folds":
        raise ValueError(f"{key}: is the same for all variants; set it at the top")
    put(tables, key.split("."), copy.deepcopy(value))


def _folder_names(rows: Sequence[tuple[str, Table]]) -> list[str]:
    """Readable, safe and different names for variants."""
    names: list[str] = []
    for name, settings in rows:
        parts = [name] if name else []
        parts += [f"{key}={value if isinstance(value, str) else _short(value)}" for key, value in settings.items()]
        plain = ",".join(parts) or "only"
        safe = re.sub(r"[^\w.=,+-]+", "-", plain).strip("-.") or "variant"
        if len(safe) > 120 or safe in names:
            safe = f"{safe[:100]}-{hashlib.blake2b(plain.encode(), digest_size=4).hexdigest()}"
        names.append(safe)
    return names


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{key}-{_short(inner)}" if key != "name" else str(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return "+".join(map(_short, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _rows(value: Any, place: str, problems: list[str]) -> list[Any]:
    if isinstance(value, list):
        return value
    problems.append(f"{place}: write [[{place}]]")
    return []


def _without_none(row: Any) -> Table:
    values = {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    return {key: list(v) if isinstance(v, tuple) else copy.deepcopy(v) for key, v in values.items() if v is not None}


def _resolve(tables: Table, folder: Path) -> None:
    """Files named in a spec lie where the spec lies."""
    data = tables.get("data")
    places = [(data, key) for key in ("train", "test", "validation")] if isinstance(data, dict) else []
    for table, key in [*places, (tables, "start")]:
        if isinstance(table.get(key), str):
            table[key] = str(folder / table[key])


def _builtin_folder() -> Any:
    return resources.files("fedrank").joinpath("papers")


_WHOLE = frozenset({"learner", "aggregator", "server"})
_SECTIONS: dict[str, type] = {"data": DataSpec, "clients": ClientsSpec}
_FAMILIES = {"learner": Learner, "aggregator": Aggregator, "server": ServerStep}

"""The spec: an experiment as a TOML file, checked as a whole before anything runs."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_type_hints

from pydantic import Field

from fedrank.attack.poison import ATTACKS
from fedrank.data.catalog import describe as describe_data
from fedrank.data.catalog import require
from fedrank.data.logs import load_log
from fedrank.data.normalise import NORMALISATIONS
from fedrank.experiment.families import build, checked, describe, is_required, nearest
from fedrank.experiment.toml import flat, parse_override, put, shown, write_toml, write_value
from fedrank.federate.aggregate import Apart, Mean
from fedrank.federate.asynchronous import ArrivalRule
from fedrank.federate.partition import Iid, Intents, Partition, Shared, Users
from fedrank.federate.round import Federation
from fedrank.federate.server import Add
from fedrank.protect.mechanisms import OnClient, PricedMechanism, SecureSum
from fedrank.protect.promises import Setting
from fedrank.rank.evolution import Evolution
from fedrank.rank.measures import measure
from fedrank.rank.rankers import RANKERS
from fedrank.rank.users import USERS, User
from fedrank.types import Aggregator, Attack, Learner, ServerStep

Table = dict[str, Any]
T = TypeVar("T")
Positive = Annotated[int, Field(ge=1)]
AtLeastOne = Field(min_length=1)
Filled = Annotated[list[T], AtLeastOne]


class SpecError(ValueError):
    """Everything that is wrong with a spec, one line each."""

    def __init__(self, problems: Iterable[str], source: str = ""):
        self.problems = list(dict.fromkeys(line for problem in problems for line in str(problem).splitlines()))
        self.source = source
        super().__init__(self.problems, source)  # as given, so that it survives a trip between processes

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {line}" if self.source else line for line in self.problems)


@dataclass(frozen=True)
class DataSpec:
    """Which data: a name of the catalog, files, or a search log."""

    name: str | None = None
    train: str | None = None  # LETOR file
    test: str | None = None
    validation: str | None = None
    folds: Annotated[tuple[Positive, ...], AtLeastOne] = (1,)
    log: str | None = None  # a folder that `fedrank logs build` made
    users: Positive | None = None  # of a log: only so many, those with most entries; None: all
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None  # of a log: the latest entries; None: 0.2
    normalise: str | None = None  # "query", "global" or "none"; None: as the catalog says, "none" for files, or "query"
    evaluate_on: Literal["test", "validation"] = "test"  # validation: for choosing settings


@dataclass(frozen=True)
class ClientsSpec:
    """Who takes part."""

    count: Positive = field(metadata={"example": "count = 10"})
    partition: str | Table = field(default_factory=lambda: {"name": "iid"})
    user: str | Filled[str] | Table = "perfect"  # a name; a list, client c gets entry c, counted around; or own tables
    interactions: Positive | Filled[Positive] = 5  # searches a round; a list is counted around
    user_per: Literal["client", "interaction"] = "client"  # interaction: each draws one of the users in the list
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of clients in a round
    malicious: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True)
class PrivacySpec:
    """How privacy is counted, and where it ends."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5  # δ: probability with which ε may fail; well below 1 / clients
    budget: Annotated[float, Field(gt=0)] | None = None  # ε at which a run stops by itself


@dataclass(frozen=True)
class Published:
    """A value from a paper, shown next to ours."""

    measure: str = field(metadata={"example": 'measure = "ndcg@10"'})  # or "online" or "reward"
    value: float = field(metadata={"example": "value = 0.5"})
    source: str = field(metadata={"example": 'source = "the paper, its table"'})
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
    mechanism: PricedMechanism | None = None
    attack: Attack | None = None
    arrival: ArrivalRule | None = None  # of kind "async"


Q = TypeVar("Q", bound="Question")


@dataclass(frozen=True)
class Variant(Generic[Q]):
    """One of the settings that an experiment compares."""

    name: str  # also its folder
    settings: Table  # what is varied, by dotted key
    experiment: Q  # concrete: varies nothing
    given: str = ""  # its name in [variants]; empty where there are none


@dataclass(frozen=True, kw_only=True)
class Question:
    """What every experiment has, whatever its kind."""

    title: str = ""
    measures: Filled[str] = field(default_factory=lambda: ["ndcg@10"])
    seeds: Annotated[tuple[int, ...], AtLeastOne] = (1,)
    baseline: str | None = None  # variant that others are compared with
    vary: dict[str, list[Any]] = field(default_factory=dict)  # dotted key -> values; every combination is a variant
    variants: dict[str, Table] = field(default_factory=dict)  # name -> changes
    published: tuple[Published, ...] = ()

    readers: ClassVar[Mapping[str, Reader]]  # what reads the value of a key that is no plain value
    sections: ClassVar[tuple[str, ...]]  # tables of settings, of which variants change single ones
    if TYPE_CHECKING:  # fields of every kind, each with its own type
        kind: str
        data: Any  # a section with `name` and `folds`

    @property
    def extent(self) -> str:
        """How long a run takes, in its own unit."""
        raise NotImplementedError

    @property
    def rounds_asked(self) -> int:
        """Rows that rounds.csv can have."""
        raise NotImplementedError

    @classmethod
    def problems(cls, values: Table) -> list[str]:
        """What is wrong with values that are each of the right kind, beyond what is wrong in any experiment."""
        raise NotImplementedError

    def require_data(self) -> None:
        """Refuse an experiment whose data are not here, before any of its runs begins."""
        raise NotImplementedError

    def repeats(self) -> list[tuple[int, int]]:
        """(fold, seed) of every repeat."""
        return list(itertools.product(self.data.folds, self.seeds))

    def expand(self: Q) -> list[Variant[Q]]:
        """Every variant as a concrete experiment: named ones times all combinations of [vary]."""
        variants, problems = _expand(to_tables(self), _rows(self.vary, self.variants))
        if problems:
            raise SpecError(problems)
        return variants

    def single(self: Q, fold: int, seed: int) -> Q:
        """The same on one fold with one seed, and with every setting written out, so that it can be read in years."""
        return dataclasses.replace(
            self, data=dataclasses.replace(self.data, folds=(fold,)), seeds=(seed,), **self.written_out()
        )

    def written_out(self) -> Table:
        """The methods of a concrete experiment with all their settings, by key."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Experiment(Question):
    """A question to a federation of clients, as it stands in its TOML file."""

    rounds: Positive = field(metadata={"example": "rounds = 1000"})
    data: DataSpec = field(metadata={"example": '[data] with name = "synthetic-mq2007"'})
    clients: ClientsSpec = field(metadata={"example": "[clients] with count = 10"})
    learner: str | Table = field(metadata={"example": '[learner] with name = "pdgd"'})
    kind: Literal["federated", "async"] = "federated"
    evaluate_every: Positive = 10  # rounds
    aggregator: str | Table = field(default_factory=lambda: {"name": "mean"})
    server: str | Table = field(default_factory=lambda: {"name": "add"})
    arrival: str | Table | None = None  # of kind "async": what the server does with each update; None: "fedasync"
    attack: str | Table | None = None  # what malicious clients do
    mechanism: str | Table | None = None  # what protects updates; None: nothing does
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    start: str | None = None  # a model to go on from
    record_every: Annotated[int, Field(ge=0)] = 0  # rounds between recordings of all updates, to unlearn from; 0: none
    fine_tune: Annotated[int, Field(ge=0)] = 0  # interactions with which every client adapts the final model to itself

    sections = ("data", "clients", "privacy")

    @property
    def extent(self) -> str:
        return f"{self.rounds:,} rounds"

    @property
    def rounds_asked(self) -> int:
        return self.rounds

    @cached_property
    def methods(self) -> Methods:
        users = [self.clients.user] if isinstance(self.clients.user, (str, dict)) else self.clients.user
        return Methods(
            build(Learner, self.learner, "learner"),
            build(Aggregator, self.aggregator, "aggregator"),
            build(ServerStep, self.server, "server"),
            build(Partition, self.clients.partition, "clients.partition"),
            [_user(one) for one in users],
            None if self.mechanism is None else build(PricedMechanism, self.mechanism, "mechanism"),
            _attack({"attack": self.attack, "aggregator": self.aggregator, "learner": self.learner}),
            None if self.kind != "async" else build(ArrivalRule, self.arrival or "fedasync", "arrival"),
        )

    def require_data(self) -> None:
        require_data(self.data)

    def written_out(self) -> Table:
        def described(method: Any) -> Table | None:
            return None if method is None else describe(method)

        methods = self.methods
        return {
            "clients": dataclasses.replace(self.clients, partition=describe(methods.partition)),
            "learner": describe(methods.learner),
            "aggregator": describe(methods.aggregator),
            "server": describe(methods.server),
            "arrival": described(methods.arrival),
            "attack": described(methods.attack),
            "mechanism": described(methods.mechanism),
        }

    @classmethod
    def problems(cls, values: Table) -> list[str]:
        return _federated_problems(values)


def read_experiment(source: str | Path, overrides: Sequence[str] = ()) -> Experiment:
    """A TOML file, or a built-in experiment by its name, about a federation of clients."""
    found = read_question(source, overrides)
    if not isinstance(found, Experiment):
        raise SpecError(
            [f'kind: "{found.kind}" has no federation of clients to look at; `fedrank run` does it'], str(source)
        )
    return found


def read_question(source: str | Path, overrides: Sequence[str] = ()) -> Question:
    """An experiment of any kind from its TOML; `overrides` such as "rounds=100" change single keys."""
    text, folder = _text(source)
    changes = [parse_override(override) for override in overrides]
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise SpecError([f"is not TOML: {problem}"], str(source)) from None
    if not tables:
        raise SpecError(["is empty; `fedrank run quickstart` leaves an example in its results"], str(source))
    try:
        _resolve(tables, folder)
        for keys, value in changes:
            key = ".".join(keys)
            if isinstance(tables.get("vary"), dict) and key in flat(tables["vary"]):
                raise ValueError(f"{key}: is varied, so setting it would change nothing; set vary.{key}=[...] instead")
            varied = keys[0] == "vary" and len(keys) > 1  # in [vary], dotted keys are single keys
            put(tables, ["vary", ".".join(keys[1:])] if varied else keys, value)
        _resolve(tables, Path())
        return from_tables(tables)
    except ValueError as problem:
        set_ = {".".join(keys): value for keys, value in changes}
        raise SpecError([_advised(line, set_) for line in str(problem).splitlines()], str(source)) from None


def _text(source: str | Path) -> tuple[str, Path]:
    """A spec, and the folder from which its files are named."""
    path = Path(source)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8-sig"), path.parent
        except UnicodeDecodeError:
            raise SpecError(["is not text in UTF-8; a spec is a TOML file"], str(source)) from None
    names = builtin_names()
    if str(source) in names:
        return _builtin_folder().joinpath(f"{source}.toml").read_text(encoding="utf-8"), Path()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a TOML file, or one of {', '.join(names)}")
    if path.suffix == ".toml":
        raise FileNotFoundError(f"no spec at {path}; give a TOML file, or one of {', '.join(names)}")
    raise FileNotFoundError(f"no file and no built-in experiment '{source}'{nearest(str(source), names)}")


def builtin_names() -> list[str]:
    """Names of the experiments that come with fedrank."""

    def below(folder: Any, prefix: str) -> Iterable[str]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from below(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".toml"):
                yield prefix + entry.name.removesuffix(".toml")

    return sorted(below(_builtin_folder(), ""))


def kinds() -> dict[str, type[Question]]:
    """What an experiment can be about."""
    from fedrank.experiment.silo_spec import SiloExperiment  # builds on this module

    return {"federated": Experiment, "async": Experiment, "silo": SiloExperiment}


def from_tables(tables: Mapping[str, Any]) -> Question:
    """An experiment from the tables of its TOML; all mistakes are reported together."""
    problems: list[str] = []
    kind = tables.get("kind", "federated")
    if not isinstance(kind, str) or kind not in kinds():
        raise SpecError([f"kind: {shown(kind)} cannot be used{nearest(str(kind), kinds())}"])
    asked = kinds()[kind]
    values = _read(asked, tables, "", problems, asked.readers)
    problems += _problems(values) + asked.problems(values)
    rows = _rows(values.get("vary", {}), values.get("variants", {}))
    if values.get("vary") or values.get("variants"):
        # A mistake that all variants inherit has been noted already.
        problems += [line for line in _expand(tables, rows)[1] if line.partition(": ")[2] not in problems]
    baseline, names = values.get("baseline"), [row.folder for row in rows]
    if baseline is not None and baseline not in names:
        problems.append(f"baseline: no variant {baseline!r}{nearest(baseline, names)}")
    if problems:
        raise SpecError(problems)
    return asked(**values)


def to_tables(experiment: Question) -> Table:
    """The tables of an experiment; what is absent or empty is left out."""
    tables: Table = {}
    for each in dataclasses.fields(experiment):
        value = getattr(experiment, each.name)
        if each.name == "published":
            value = [_without_none(row) for row in value]
        elif value == PrivacySpec():
            continue
        elif dataclasses.is_dataclass(value):
            value = _without_none(value)
        if value is not None and value not in ({}, [], "", ()):
            tables[each.name] = list(value) if isinstance(value, tuple) else copy.deepcopy(value)
    first = ("kind", "title", "rounds", "evaluate_every", "measures", "seeds", "baseline", "start")
    return {key: tables[key] for key in (*first, *tables) if key in tables}


def to_toml(experiment: Question) -> str:
    """The experiment as TOML; `from_tables(tomllib.loads(...))` gives it back."""
    return write_toml(to_tables(experiment))


def _read(kind: type, table: Any, place: str, problems: list[str], readers: Mapping[str, Reader]) -> Table:
    """Those values of a table that can be used, by field; what is wrong with the others is noted."""
    if not isinstance(table, Mapping):
        problems.append(f"{place}: {shown(table)} is not a table; write [{place}]")
        return {}
    fields = {each.name: each for each in dataclasses.fields(kind)}
    hints = get_type_hints(kind, include_extras=True)
    values: Table = {}
    for key, value in table.items():
        at = f"{place}.{key}" if place else key
        if key not in fields:
            problems.append(f"{at}: no such key{nearest(key, fields)}")
            continue
        with _noting(problems):
            values[key] = readers[at](value, at, problems) if at in readers else checked(hints[key], value, at)
    for name, each in fields.items():
        if name not in table and is_required(each):
            at = f"{place}.{name}" if place else name
            problems.append(f"{at}: is missing; write {each.metadata['example']}")
    return values


@contextmanager
def _noting(problems: list[str], place: str = "") -> Iterator[None]:
    try:
        yield
    except ValueError as problem:
        problems += [f"{place}: {line}" if place else line for line in str(problem).splitlines()]


def read_section(kind: type, readers: Mapping[str, Reader] | None = None) -> Reader:
    """What reads a table of settings; `readers` are for its values that are no plain ones, by dotted key."""

    def read(table: Any, place: str, problems: list[str]) -> Any:
        before = len(problems)
        values = _read(kind, table, place, problems, readers or {})
        return kind(**values) if len(problems) == before else None

    return read


def read_method(protocol: Any) -> Reader:
    """What reads the name, or the table, of a method."""

    def read(given: Any, place: str, problems: list[str]) -> Any:
        build(protocol, given, place)
        return given

    return read


def _read_attack(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, (str, dict)):
        build(Attack, given, place)
    return given  # built with the rule and the ranker that it attacks, once these are known


def _read_user(given: Any, place: str, problems: list[str]) -> Any:
    user = checked(get_type_hints(ClientsSpec, include_extras=True)["user"], given, place)
    for one in user if isinstance(user, list) else [user]:
        with _noting(problems):
            _user(one)
    return user


def _read_published(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, list):
        raise ValueError(f"{place}: {shown(given)} is not a list of tables; write [[{place}]]")
    read = read_section(Published)
    return tuple(read(row, f"{place}[{i}]", problems) for i, row in enumerate(given))


def _read_vary(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, dict):
        raise ValueError(f"{place}: {shown(given)} is not a table; write [{place}]")
    found = {}
    for key, values in flat(given).items():  # keys may be quoted or not
        if not isinstance(values, list) or not values:
            problems.append(f"{place}.{key}: {shown(values)} cannot be used; list the values to compare in brackets")
        elif twice := _twice(values):
            problems.append(f"{place}.{key}: {shown(twice[0])} stands there twice; list each value once")
        else:
            found[key] = values
    for key in found:
        if inside := [other for other in found if other.startswith(f"{key}.")]:
            problems.append(f"{place}.{inside[0]}: {key} is varied as a whole already; keep one of them")
    return found


def _read_variants(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, dict):
        raise ValueError(f"{place}: {shown(given)} is not a table; write [{place}.NAME]")
    for name, changes in given.items():
        if not name or not isinstance(changes, dict):
            wanted = f"{place}.{name or 'NAME'}"
            problems.append(f"{place}.{name}: {shown(changes)} is not a table with a name; write [{wanted}]")
    return {name: changes for name, changes in given.items() if name and isinstance(changes, dict)}


def _twice(values: Iterable[Any]) -> list[Any]:
    values = list(values)
    return [value for i, value in enumerate(values) if value in values[:i]]


def _problems(values: Table) -> list[str]:
    """What is wrong with values that are each of the right kind."""
    found: list[str] = []
    names = []
    for i, text in enumerate(values.get("measures", ())):
        with _noting(found, f"measures[{i}]"):
            names.append(str(measure(text)))
    data = values.get("data")
    for place, listed in (("measures", names), ("seeds", values.get("seeds", ())), ("data.folds", data and data.folds)):
        if twice := _twice(listed or ()):
            found.append(f"{place}: {shown(twice[0])} stands there twice; list each once")
    for i, row in enumerate(values.get("published", ())):
        if row is not None and row.measure not in ("online", "reward"):
            with _noting(found, f"published[{i}].measure"):
                measure(row.measure)
    return found


def _federated_problems(values: Table) -> list[str]:
    """What is wrong with a federation of clients, or with updates that arrive out of step."""
    found: list[str] = []
    data, clients = values.get("data"), values.get("clients")
    if data is not None:
        found += data_problems(data)
    if clients is not None and 2 * clients.malicious >= clients.count and clients.malicious:
        found.append(
            f"clients.malicious: {clients.malicious} of {clients.count} clients decide as they like; use less than half"
        )
    elif clients is not None and clients.malicious and values.get("attack") is None:
        found.append(
            f"clients.malicious: {clients.malicious} would do no harm, no attack is set; use 0, or an attack such as "
            '{ name = "poisoned-clicks" }'
        )
    if not found and "learner" in values and clients is not None:
        found += _contradictions({"aggregator": "mean", "server": "add"} | values)
    start = values.get("start")
    if start is not None and not (Path(start).is_file() or Path(start, "model.json").is_file()):
        found.append(f"start: no model at {start}; give a model.json, or the folder of a finished run")
    return found


def _contradictions(values: Table) -> list[str]:
    """Methods that are each right and do not go together."""
    found: list[str] = []
    with _noting(found):
        learner = build(Learner, values["learner"], "learner")
        server = build(ServerStep, values["server"], "server")
        aggregator = build(Aggregator, values["aggregator"], "aggregator")
        mechanism = None
        if values.get("mechanism") is not None:
            mechanism = build(PricedMechanism, values["mechanism"], "mechanism")
        attack = _attack(values)
        Federation(learner, aggregator, server, attack=attack, mechanism=mechanism)
        if attack is not None and values["clients"].user_per == "interaction" and hasattr(attack, "user"):
            found.append(
                'clients.user_per: "interaction" would let honest clients click as malicious ones; use "client"'
            )
        if values.get("record_every") and isinstance(getattr(mechanism, "place", None), SecureSum):
            found.append("record_every: nobody can record single updates under a secure sum; use 0, or another place")
        if values.get("record_every") and isinstance(aggregator, Apart):
            found.append('record_every: with the aggregator "none" no update leaves a client; use 0')
        found += _privacy_problems(mechanism, learner, aggregator, values["clients"], values.get("privacy"))
        found += _arrival_problems(values, learner, aggregator, server, mechanism)
        if type(learner.ranker) not in RANKERS.values():
            found.append("learner.ranker.name: a ranker from outside cannot be written to model.json; use a known one")
        if isinstance(learner, Evolution):
            searches = values["clients"].interactions
            if min(searches if isinstance(searches, list) else [searches]) < 2:
                found.append(f"clients.interactions: {shown(searches)} is too few for evolution; use 2 or more")
            if values.get("fine_tune"):
                found.append("fine_tune: evolution needs many clients, one alone cannot go on with it; use 0, or pdgd")
            if server == Add():
                found.append('server: evolution takes far too long steps with "add" at rate 1; use { name = "adam" }')
    return found


def _arrival_problems(
    values: Table, learner: Learner, aggregator: Aggregator, server: ServerStep, mechanism: PricedMechanism | None
) -> list[str]:
    """What does not go together with kind = "async", or only with it."""
    data, clients = values.get("data"), values["clients"]
    partition = build(Partition, clients.partition, "clients.partition")
    found = []
    if isinstance(partition, Users) and data is not None and data.log is None:
        found.append('clients.partition: "users" needs to know who asked what; set data.log to the folder of a log')
    if getattr(learner, "lists", "drawn") == "logged":
        if data is not None and data.log is None:
            found.append('learner.lists: "logged" learns from what a search log says was shown; set data.log')
        if clients.user != "perfect" or hasattr(_attack(values), "user"):
            found.append(
                'learner.lists: "logged" takes clicks from the log, so that nobody clicks in another way; use the user '
                '"perfect" and no attack by clicks, or "drawn"'
            )
    if values.get("kind") != "async":
        if values.get("arrival") is not None:
            found.append('arrival: would do nothing in a federation in step; set kind = "async", or leave it out')
        return found
    if data is not None and data.log is None:
        found.append("kind: async lets updates arrive when they did, which only a search log says; set data.log")
    if isinstance(partition, (Iid, Intents, Shared)):
        found.append(
            "clients.partition: here several clients hold the same query, which was asked once; "
            'use { name = "users" }, or another one that deals queries out'
        )
    rule = build(ArrivalRule, values.get("arrival") or "fedasync", "arrival")
    if aggregator != Mean() or server != Add():
        name = "aggregator" if aggregator != Mean() else "server"
        found.append(f"{name}: arrival takes its place when kind is async; leave it out")
    if isinstance(learner, Evolution) or getattr(learner, "control", False):
        found.append('learner: evolution and control = true need rounds of many clients; use pdgd with kind = "async"')
    if getattr(learner, "personal", "none") != "none":
        found.append('learner.personal: weights that stay with clients have no mean in kind = "async"; use "none"')
    if clients.participation < 1:
        found.append("clients.participation: the log says who takes part when kind is async; use 1.0")
    if clients.malicious or values.get("attack") is not None:
        found.append("attack: clients that attack out of step are not simulated in this version; leave it out")
    if values.get("record_every"):
        found.append("record_every: updates that arrive out of step are not recorded in this version; use 0")
    place = getattr(mechanism, "place", None)
    if mechanism is not None and isinstance(place, SecureSum) and rule.gathers:
        with _noting(found, "mechanism"):
            mechanism.promises(Setting(rule.gathers, 100, 1.0, (1,), learner, aggregator))
    elif mechanism is not None and not isinstance(place, OnClient):
        found.append(
            "mechanism: there is no round whose sum could be protected when updates arrive one by one; use gaussian or "
            'laplace noise with place = { name = "client" }, or a secure sum with arrival = { name = "fedbuff", wait = '
            "true }"
        )
    if mechanism is not None and not rule.receive:
        found.append(
            "arrival.receive: false lets clients go on from models without noise, so what they send later tells what "
            "noise had hidden; use true with a mechanism"
        )
    return found


def _attack(values: Mapping[str, Any]) -> Attack | None:
    """The attack, which knows the rule and the ranker that it attacks unless the spec says otherwise."""
    given = values.get("attack")
    if given is None:
        return None
    table = {"name": given} if isinstance(given, str) else dict(given)
    kind = ATTACKS.get(str(table.get("name")))
    known = {each.name for each in dataclasses.fields(kind)} if kind is not None else set()  # type: ignore[arg-type]
    learner = values["learner"]
    beside = {
        "aggregator": values["aggregator"],
        "ranker": learner.get("ranker") if isinstance(learner, dict) else None,
    }
    for name, other in beside.items():
        if name in known and name not in table and other is not None:
            table[name] = other
    attack: Attack = build(Attack, table, "attack")
    return attack


def _privacy_problems(
    mechanism: PricedMechanism | None,
    learner: Learner,
    aggregator: Aggregator,
    clients: ClientsSpec,
    privacy: PrivacySpec | None,
) -> list[str]:
    """What a mechanism cannot do together with the rest, and a budget that nothing keeps."""
    budget = None if privacy is None else privacy.budget
    if mechanism is None:
        return [] if budget is None else [f"privacy.budget: {budget:g} cannot be kept without a mechanism; set one"]
    found: list[str] = []
    with _noting(found, "mechanism"):
        searches = clients.interactions if isinstance(clients.interactions, list) else [clients.interactions]
        # How many parameters there are changes what a promise costs, not whether it can be made.
        setting = Setting(clients.count, 100, clients.participation, tuple(searches), learner, aggregator)
        promises = mechanism.promises(setting)
        if budget is not None and all(promise.event is None for promise in promises):
            found.append(f"privacy.budget: {budget:g} cannot be kept; nothing can be claimed for this mechanism here")
    return found


def require_data(data: DataSpec) -> None:
    """Refuse data that are not here; files were looked for when the spec was read."""
    if data.name is not None:
        require(data.name)
    if data.log is not None:
        load_log(data.log)


def data_problems(data: DataSpec) -> list[str]:
    found = []
    if data.normalise is not None and data.normalise not in NORMALISATIONS:
        found.append(f"data.normalise: no {data.normalise!r}{nearest(data.normalise, NORMALISATIONS)}")
    if data.log is not None:
        return found + _log_problems(data)
    for name in ("users", "test_share"):
        if getattr(data, name) is not None:
            found.append(f"data.{name}: is a setting of a search log, and there is none; set data.log, or leave it out")
    named = {"train": data.train, "test": data.test, "validation": data.validation}
    files = {place: file for place, file in named.items() if file is not None}
    if data.name is not None and files:
        found.append(f"data: has both a name and files; leave out name, or {' and '.join(files)}")
    elif data.name is not None:
        with _noting(found, "data.name"):
            folds = describe_data(data.name).folds
            has = "only fold 1" if folds == 1 else f"folds 1 to {folds}"
            found += [f"data.folds: no fold {fold}; {data.name} has {has}" for fold in data.folds if fold > folds]
    elif data.train is None or data.test is None:
        found.append("data: give a name of the catalog (`fedrank data list`), files: train and test, or a log")
    else:
        found += [f"data.{place}: no file {file}" for place, file in files.items() if not Path(file).is_file()]
        found += [f"data.folds: no fold {fold}; files are fold 1" for fold in data.folds if fold != 1]
    return found


def _log_problems(data: DataSpec) -> list[str]:
    found = []
    if any(value is not None for value in (data.name, data.train, data.test, data.validation)):
        found.append("data: has a log and something else; leave out log, or name and files")
    if data.evaluate_on == "validation":
        found.append("data.evaluate_on: a log has no validation queries; use test")
    return found + [f"data.folds: no fold {fold}; a log is fold 1" for fold in data.folds if fold != 1]


def _user(given: str | Table) -> str | User:
    if isinstance(given, str):
        if given not in USERS:
            raise ValueError(f"clients.user: no {given!r}{nearest(given, USERS)}")
        return given
    known = {each.name for each in dataclasses.fields(User)}
    if not {"click", "stop"} <= set(given) <= known:
        raise ValueError(
            f"clients.user: {shown(given)} is no user; write {{ click = [...], stop = [...] }}, a probability for each "
            "grade, and perhaps attention_decay = 1.0"
        )
    hints = get_type_hints(User)
    values = {key: checked(hints[key], value, f"clients.user.{key}") for key, value in given.items()}
    try:
        return User(**values)
    except ValueError as problem:
        raise ValueError(f"clients.user: {problem}") from None


@dataclass(frozen=True)
class _Row:
    """A variant before it is built."""

    name: str  # as in [variants]; empty where there are none
    settings: Table  # its values of [vary]
    changes: Table  # all that differs from the base, by dotted key
    folder: str


def _rows(vary: dict[str, list[Any]], variants: dict[str, Table]) -> list[_Row]:
    found = [
        (name, dict(zip(vary, values, strict=True)), changes)
        for name, changes in (variants or {"": {}}).items()
        for values in itertools.product(*vary.values())
    ]
    folders = _folder_names([(name, settings) for name, settings, _ in found])
    return [_Row(*row, folder) for row, folder in zip(found, folders, strict=True)]


def _expand(tables: Mapping[str, Any], rows: Sequence[_Row]) -> tuple[list[Variant[Any]], list[str]]:
    """Variants of the experiment in `tables`, and what is wrong with them."""
    base = {key: value for key, value in tables.items() if key not in _ONLY_WHOLE}
    found: list[Variant[Any]] = []
    problems: list[str] = []
    for row in rows:
        changed = copy.deepcopy(base)
        changes: Table = {}
        try:
            changes = flat(row.changes, partial(_is_value, kinds()[base.get("kind", "federated")].sections))
            for key, value in (changes | row.settings).items():
                if key in row.settings and key in changes:
                    raise ValueError(f"{key}: is set here and in [vary]; keep one of them")
                if key.partition(".")[0] in (*_ONLY_WHOLE, "seeds") or key == "data.folds":
                    raise ValueError(f"{key}: is the same for all variants; set it at the top")
                put(changed, key.split("."), copy.deepcopy(value))
            named = {"variants": row.name} if row.name and row.settings else {}
            found.append(Variant(row.folder, named | row.settings, from_tables(changed), row.name))
        except ValueError as problem:
            for line in str(problem).splitlines():
                varied = not row.name or (line.startswith(tuple(row.settings)) and not line.startswith(tuple(changes)))
                place = "vary" if varied else f"variants.{row.name}"
                problems.append(f"{place}: {_advised(line, changes | row.settings)}")
    return found, list(dict.fromkeys(problems))


def _advised(line: str, changes: Table) -> str:
    """Where a new name meets the settings of another method, say how to leave them behind."""
    for key, value in changes.items():
        table = key.removesuffix(".name")
        if table != key and line.startswith(f"{table}.") and "no such setting" in line:
            example = write_value({table: {"name": value}})[2:-2]
            return f"{line}; to leave the settings of another method behind, replace the whole table: {example}"
    return line


def _is_value(sections: Sequence[str], key: str, table: Table) -> bool:
    """Whether a change replaces this table as a whole: methods and users, not sections."""
    return key == "clients.user" or (key not in sections and "name" in table)


def _folder_names(rows: Sequence[tuple[str, Table]]) -> list[str]:
    """Readable, safe and different names for variants; different also where case does not count."""
    plain = []
    for name, settings in rows:
        parts = [name] if name else []
        parts += [f"{key}={_short(value)}" for key, value in settings.items()]
        plain.append(",".join(parts) or "only")
    safe = [re.sub(r"[^\w.=,+-]+", "-", text).strip("-.") or "variant" for text in plain]
    often = Counter(text.casefold() for text in safe)
    names = []
    for text, name in zip(plain, safe, strict=True):
        if often[name.casefold()] > 1 or len(name.encode()) > 120:
            start = name.encode()[:100].decode(errors="ignore")
            name = f"{start}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        names.append(name)
    return names


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{key}-{_short(inner)}" if key != "name" else str(inner) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return "+".join(map(_short, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_none(row: Any) -> Table:
    values = {each.name: getattr(row, each.name) for each in dataclasses.fields(row)}
    return {key: list(v) if isinstance(v, tuple) else copy.deepcopy(v) for key, v in values.items() if v is not None}


def _resolve(tables: Table, folder: Path) -> None:
    """Name files in full: those of a spec lie where the spec lies, those of overrides where the user is."""

    def full(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: full(f"{key}.{inner}", below) for inner, below in value.items()}
        return os.path.abspath(folder / value) if _FILES.fullmatch(key) and _is_path(key, value) else value

    for table in (tables, *_tables_in(tables.get("variants"))):
        for key, value in table.items():
            if key not in _ONLY_WHOLE:
                table[key] = full(key, value)
    if isinstance(tables.get("vary"), dict):
        varied = flat(tables["vary"])
        tables["vary"] = {
            key: [full(key, value) for value in values] if isinstance(values, list) else values
            for key, values in varied.items()
        }


def _is_path(key: str, value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not (key.endswith(".over") and value == "grade")


def _tables_in(tables: Any) -> list[Table]:
    return [table for table in tables.values() if isinstance(table, dict)] if isinstance(tables, dict) else []


def _builtin_folder() -> Any:
    return resources.files("fedrank").joinpath("papers")


# Keys that name files.
_FILES = re.compile(r"start|data\.(train|test|validation|log|folder)|clients(\.partition)+\.(file|over)|split\.file")
_ONLY_WHOLE = ("vary", "variants", "baseline", "published")  # keys of the whole experiment, not of a variant
Reader = Callable[[Any, str, list[str]], Any]  # (value, its place, problems) -> value; ValueError is noted, too
COMMON_READERS: dict[str, Reader] = {"vary": _read_vary, "variants": _read_variants, "published": _read_published}
Experiment.readers = COMMON_READERS | {
    "data": read_section(DataSpec),
    "clients": read_section(ClientsSpec, {"clients.partition": read_method(Partition), "clients.user": _read_user}),
    "learner": read_method(Learner),
    "aggregator": read_method(Aggregator),
    "server": read_method(ServerStep),
    "arrival": read_method(ArrivalRule),
    "attack": _read_attack,
    "mechanism": read_method(PricedMechanism),
    "privacy": read_section(PrivacySpec),
}

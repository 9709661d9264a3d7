"""`Experiment`: a question as a TOML file, checked before anything runs.

An experiment keeps the tables of its methods as they were given, so that it can be compared and written again; it
builds them once to check them, and again whenever a run asks for them.
"""

from __future__ import annotations

import copy
import hashlib
import importlib.resources
import itertools
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator
from pydantic import Field as Limit

from fedrank.experiment.families import OneOrMany, SpecError, build, describe, make, settings_of, settle, suggestion
from fedrank.experiment.toml import Table, flat, parse_override, put, write_toml, write_value
from fedrank.federate.partition import Partition
from fedrank.rank.users import USERS, User
from fedrank.types import Aggregator, Learner, ServerStep

KINDS = ("federated",)
FILES = ("data.train", "data.test", "data.validation", "start")  # settings that name a file
ABOUT_VARIANTS = ("baseline", "vary", "variants", "published")  # what one variant alone does not have
LONGEST_NAME = 100  # characters of a variant's folder


def _known_kind(kind: str) -> str:
    if kind not in KINDS:
        raise ValueError(f"no {kind!r}; {suggestion(kind, KINDS)}")
    return kind


def _known_measure(text: str) -> str:
    from fedrank.rank.measures import measure

    return str(measure(text))


def _known_user(name: str) -> str:
    if name not in USERS:
        raise ValueError(f"no {name!r}; {suggestion(name, USERS)}")
    return name


def _known_data(name: str) -> str:
    from fedrank.data.catalog import CATALOG

    if name not in CATALOG:
        raise ValueError(f"no {name!r}; {suggestion(name, CATALOG)}")
    return name


def _no_repeats(values: tuple[Any, ...]) -> tuple[Any, ...]:
    twice = [value for value, times in Counter(values).items() if times > 1]
    if twice:
        raise ValueError(f"{write_value(values)} has {write_value(twice[0])} twice; keep one of them")
    return values


@dataclass(frozen=True)
class DataSpec:
    """What is ranked: a data set of the catalog, or files of one's own."""

    name: Annotated[str, AfterValidator(_known_data)] | None = None  # in the catalog
    train: str | None = None  # file in LETOR format
    test: str | None = None  # file
    validation: str | None = None  # file
    folds: Annotated[tuple[Annotated[int, Limit(ge=1)], ...], Limit(min_length=1), AfterValidator(_no_repeats)] = (1,)
    normalise: Literal["query", "global", "none"] | None = None  # None: as the catalog says; own files stay as they are

    def __post_init__(self) -> None:
        _settle_fields(self)
        own = {key: value for key in ("train", "test", "validation") if (value := getattr(self, key)) is not None}
        mistakes = []
        if self.name is not None and own:
            mistakes.append(f"{min(own)}: {write_value(min(own.values()))}, but name is given too; keep one of them")
        elif self.name is not None:
            mistakes += self._missing_folds(self.name)
        elif not own:
            mistakes.append('name: missing; give a name such as "mq2008", or train and test files')
        else:
            mistakes += [
                f"{key}: missing; files of one's own need train and test" for key in ("train", "test") if key not in own
            ]
            if self.folds != (1,):
                mistakes.append(f"folds: {write_value(self.folds)}, but files of one's own are a single fold; use [1]")
        if mistakes:
            raise SpecError(mistakes)

    def _missing_folds(self, name: str) -> list[str]:
        from fedrank.data.catalog import CATALOG

        last = CATALOG[name].folds
        has = "only fold 1" if last == 1 else f"folds 1 to {last}"
        return [f"folds: no fold {fold} of {name}; it has {has}" for fold in self.folds if fold > last]


@dataclass(frozen=True)
class ClientsSpec:
    """Who takes part. Of a list of users or interactions, client c gets entry c, counted around."""

    count: Annotated[int, Limit(ge=1)]
    partition: Annotated[Table, Partition] = field(default_factory=lambda: {"name": "iid"})
    user: Annotated[tuple[Annotated[str, AfterValidator(_known_user)] | User, ...], OneOrMany] = ("perfect",)
    interactions: Annotated[tuple[Annotated[int, Limit(ge=1)], ...], OneOrMany] = (5,)  # searches a round
    participation: Annotated[float, Limit(gt=0, le=1)] = 1.0  # share of clients in a round
    malicious: Annotated[int, Limit(ge=0)] = 0  # how many clients

    def __post_init__(self) -> None:
        _settle_fields(self)
        if self.malicious > self.count:
            raise SpecError([f"malicious: {self.malicious} of {self.count} clients; use {self.count} or less"])


@dataclass(frozen=True)
class Published:
    """A number that somebody published, to be shown beside ours."""

    measure: Annotated[str, Limit(min_length=1)]  # as in `measures`, or another that reports know
    value: float
    source: str  # where it is printed: "Wang et al. 2021, table 2"
    spread: Annotated[float, Limit(ge=0)] | None = None  # standard deviation, in the units of the value
    variant: str | None = None  # None: all of them


@dataclass(frozen=True)
class Methods:
    """The methods of an experiment, ready to run."""

    learner: Learner
    aggregator: Aggregator
    server: ServerStep
    partition: Partition


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A question put to fedrank; equals its TOML."""

    kind: Annotated[str, AfterValidator(_known_kind)] = "federated"
    title: str = ""
    rounds: Annotated[int, Limit(ge=1)]
    evaluate_every: Annotated[int, Limit(ge=1)] = 10  # rounds between two offline evaluations
    measures: Annotated[
        tuple[Annotated[str, AfterValidator(_known_measure)], ...], Limit(min_length=1), AfterValidator(_no_repeats)
    ] = ("ndcg@10",)
    seeds: Annotated[tuple[Annotated[int, Limit(ge=0)], ...], Limit(min_length=1), AfterValidator(_no_repeats)] = (1,)
    start: str | None = None  # file of a model to start from; None: the ranker's own first weights
    baseline: str | None = None  # variant that the others are compared with
    data: DataSpec
    clients: ClientsSpec
    learner: Annotated[Table, Learner]
    aggregator: Annotated[Table, Aggregator] = field(default_factory=lambda: {"name": "mean"})
    server: Annotated[Table, ServerStep] = field(default_factory=lambda: {"name": "add"})
    vary: dict[str, Any] = field(default_factory=dict)  # dotted key -> list of values
    named_variants: dict[str, Any] = field(default_factory=dict, metadata={"key": "variants"})  # name -> key -> value
    published: tuple[Published, ...] = ()

    def __post_init__(self) -> None:
        _settle_fields(self)
        if self.clients.malicious > 0:
            raise SpecError([f"clients.malicious: {self.clients.malicious}, but no attack is set; use 0"])
        object.__setattr__(self, "vary", _flat_vary(self.vary))
        object.__setattr__(self, "named_variants", _flat_variants(self.named_variants))
        mistakes = [*_conflicts(self.vary, self.named_variants)]
        if not mistakes and (self.vary or self.named_variants):
            mistakes += self._mistakes_in_variants()
        names = [name for name, _ in self._combinations()]
        if self.baseline is not None and self.baseline not in names:
            mistakes.append(f"baseline: no variant {self.baseline!r}; {suggestion(self.baseline, names)}")
        for i, row in enumerate(self.published):
            if row.variant is not None and row.variant not in names:
                mistakes.append(f"published[{i}].variant: no variant {row.variant!r}; {suggestion(row.variant, names)}")
        if mistakes:
            raise SpecError(mistakes)

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Experiment:
        """An experiment from what its TOML holds; all mistakes are raised together."""
        experiment: Experiment = make(cls, _completed(tables), called="an experiment")
        return experiment

    def to_tables(self) -> Table:
        """What its TOML holds: every setting, also those that were left at their defaults."""
        tables = settings_of(self)
        for key in ("user", "interactions"):
            if len(tables["clients"][key]) == 1:
                (tables["clients"][key],) = tables["clients"][key]
        return {key: value for key, value in tables.items() if value or key not in ABOUT_VARIANTS}

    def build(self) -> Methods:
        """The methods, made from their tables."""
        return Methods(
            learner=build(Learner, self.learner),
            aggregator=build(Aggregator, self.aggregator),
            server=build(ServerStep, self.server),
            partition=build(Partition, self.clients.partition, "clients.partition"),
        )

    def repeats(self) -> list[tuple[int, int]]:
        """(fold, seed) of every repeat. A variant may have folds and seeds of its own: ask its experiment."""
        return list(itertools.product(self.data.folds, self.seeds))

    def variants(self) -> list[Variant]:
        """Every named variant with every combination of what varies; "only" where nothing does."""
        return [Variant(name, settings, self._with(settings)) for name, settings in self._combinations()]

    def _with(self, settings: Table) -> Experiment:
        tables = {key: value for key, value in self.to_tables().items() if key not in ABOUT_VARIANTS}
        for key, value in settings.items():
            try:
                put(tables, key.split("."), copy.deepcopy(value))
            except ValueError as error:
                raise SpecError([f"{key}: {error}"]) from None
        return Experiment.from_tables(tables)

    def _combinations(self) -> list[tuple[str, Table]]:
        """Name and settings of every variant."""
        labels, settings = [], []
        for name, chosen in self.named_variants.items() or [("", {})]:
            for values in itertools.product(*self.vary.values()):
                varied = dict(zip(self.vary, values, strict=True))
                labels.append([name] * bool(name) + [f"{key}={_text(value)}" for key, value in varied.items()])
                settings.append(chosen | varied)
        return list(zip(_folder_names(labels, settings), settings, strict=True))

    def _mistakes_in_variants(self) -> Iterator[str]:
        seen = set()
        for name, settings in self._combinations():
            try:
                self._with(settings)
            except SpecError as error:
                yield from (f"{mistake} (in variant {name})" for mistake in error.mistakes if mistake not in seen)
                seen.update(error.mistakes)


@dataclass(frozen=True)
class Variant:
    """One of the answers that an experiment compares."""

    name: str  # safe as the name of a folder
    settings: Table  # what makes it this variant: dotted key -> value
    experiment: Experiment  # with these settings, and without others to compare with


def single(variant: Variant, fold: int, seed: int) -> Experiment:
    """The experiment of one run: one fold, one seed, and every setting of every method written out."""
    experiment = variant.experiment
    methods = experiment.build()
    return replace(
        experiment,
        seeds=(seed,),
        data=replace(experiment.data, folds=(fold,)),
        clients=replace(experiment.clients, partition=describe(methods.partition)),
        learner=describe(methods.learner),
        aggregator=describe(methods.aggregator),
        server=describe(methods.server),
    )


# --- files ---


def read_experiment(path_or_name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Experiment:
    """The experiment of a TOML file or of a built-in spec, after `key=value` overrides.

    Files named in a spec are sought from its folder, those in overrides from the current one.
    """
    text, file, folder = _find(path_or_name)
    tables = _anchored(_parsed(text, file), folder)
    mistakes = []
    for override in overrides:
        try:
            _override(tables, override)
        except ValueError as error:
            mistakes.append(f"--set {error}")
    if mistakes:
        raise SpecError(mistakes, file)
    try:
        return Experiment.from_tables(tables)
    except SpecError as error:
        raise SpecError(error.mistakes, file) from None


def from_toml(text: str, file: str = "") -> Experiment:
    """The experiment of a TOML text; `file` is named in errors."""
    try:
        return Experiment.from_tables(_parsed(text, file))
    except SpecError as error:
        raise SpecError(error.mistakes, file) from None


def to_toml(experiment: Experiment) -> str:
    """An experiment as TOML, every setting included; `from_toml` reads it back."""
    return write_toml(experiment.to_tables())


def builtin_names() -> list[str]:
    """Specs that come with fedrank, by name."""
    return sorted(_builtin())


def _builtin() -> dict[str, Traversable]:
    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".toml"):
                yield prefix + entry.name.removesuffix(".toml"), entry

    papers = importlib.resources.files("fedrank") / "papers"
    return dict(walk(papers, "")) if papers.is_dir() else {}


def _find(path_or_name: str | os.PathLike[str]) -> tuple[str, str, Path]:
    """Text of a spec, what to call it, and the folder that it names files from."""
    name = os.fspath(path_or_name)
    path = Path(name)
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), name, path.resolve().parent
        except UnicodeDecodeError as error:
            raise SpecError([f"not a text file in UTF-8 ({error.reason} at byte {error.start})"], name) from None
    if path.suffix == ".toml" or path.exists():
        problem = "a folder, not a TOML file" if path.exists() else "no such file"
        raise SpecError([f"{problem}; give a TOML file, or the name of a built-in experiment"], name)
    specs = _builtin()
    if name not in specs:
        raise SpecError([f"no experiment {name!r}; {suggestion(name, specs)} Or give the path of a .toml file"])
    return specs[name].read_text(encoding="utf-8"), name, Path.cwd()


def _parsed(text: str, file: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([f"not TOML: {error}"], file) from None


def _anchored(tables: Table, folder: Path) -> Table:
    """The same tables with every file sought from `folder`."""

    def anchor(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: anchor(f"{key}.{inner}" if key else inner, entry) for inner, entry in value.items()}
        return str(folder / value) if key in FILES and isinstance(value, str) else value

    def anchor_list(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: anchor_list(f"{key}.{inner}" if key else inner, entry) for inner, entry in value.items()}
        return [anchor(key, entry) for entry in value] if isinstance(value, list) else value

    anchored: Table = anchor("", tables)
    if isinstance(tables.get("vary"), dict):
        anchored["vary"] = anchor_list("", tables["vary"])
    if isinstance(tables.get("variants"), dict):
        anchored["variants"] = {name: anchor("", chosen) for name, chosen in tables["variants"].items()}
    return anchored


def _override(tables: Table, text: str) -> None:
    path, value = parse_override(text)
    key = ".".join(path)
    vary = tables.get("vary")
    if isinstance(vary, dict):
        vary = tables["vary"] = flat(vary)
        for varied in vary:
            if _overlap(key, varied):
                raise ValueError(f"{text}: {varied} varies, so this changes nothing; use --set vary.{varied}=[...]")
    if path[0] == "vary" and len(path) > 1:
        path = ["vary", ".".join(path[1:])]
    nested: Table = {}
    put(nested, path, value)
    (nested,) = [_anchored(nested, Path.cwd())]
    for step in path:
        nested = nested[step]
    put(tables, path, nested)


# --- variants ---


def _settle_fields(spec: Any) -> None:
    """Check every field of a spec, and give it the form that its type asks for."""
    mistakes = []
    for one in fields(spec):
        try:
            object.__setattr__(spec, one.name, settle(type(spec), one, getattr(spec, one.name)))
        except SpecError as error:
            mistakes += error.mistakes
    if mistakes:
        raise SpecError(mistakes)


def _completed(tables: Mapping[str, Any]) -> Table:
    """Tables where a key that every combination sets, and that is missing, has the first value: it stands for all."""
    completed = copy.deepcopy(dict(tables))
    try:
        vary = _flat_vary(completed.get("vary", {}))
    except (SpecError, AttributeError):
        return completed
    present = flat(completed)
    for key, values in vary.items():
        if not any(_overlap(key, other) for other in present):
            put(completed, key.split("."), copy.deepcopy(values[0]))
    return completed


def _flat_vary(vary: Mapping[str, Any]) -> Table:
    """Dotted key -> list of values."""
    try:
        varied = flat(vary)
    except ValueError as error:
        raise SpecError([f"vary: {error}"]) from None
    mistakes = []
    for key, values in varied.items():
        if not isinstance(values, (list, tuple)):
            mistakes.append(f"vary.{key}: {write_value(values)} should be a list of values, one a variant")
        elif not values:
            mistakes.append(f"vary.{key}: [] leaves no variant; give values, or take the line away")
        else:
            twice = [value for i, value in enumerate(values) if value in values[:i]]
            mistakes += [f"vary.{key}: {write_value(value)} is there twice; keep one of them" for value in twice[:1]]
    if mistakes:
        raise SpecError(mistakes)
    return {key: list(values) for key, values in varied.items()}


def _flat_variants(variants: Mapping[str, Any]) -> dict[str, Table]:
    """Name -> dotted key -> value."""
    mistakes, chosen = [], {}
    for name, table in variants.items():
        if not isinstance(table, Mapping):
            mistakes.append(f"variants.{name}: {write_value(table)} should be a table of settings")
            continue
        try:
            chosen[name] = flat(table, whole=frozenset({"clients.user"}))
        except ValueError as error:
            mistakes.append(f"variants.{name}: {error}")
    if mistakes:
        raise SpecError(mistakes)
    return chosen


def _conflicts(vary: Table, variants: Mapping[str, Table]) -> Iterator[str]:
    """Keys that cannot vary, and those whose value would depend on who speaks last."""
    groups = {"vary": vary, **{f"variants.{name}": table for name, table in variants.items()}}
    for place, table in groups.items():
        yield from (f"{place}.{key}: this cannot vary" for key in table if key.split(".")[0] in ABOUT_VARIANTS)
        for one, other in itertools.combinations(table, 2):
            if _overlap(one, other):
                yield f"{place}.{one}: {other} sets the same; keep one of them"
        if place != "vary":
            for one, other in itertools.product(table, vary):
                if _overlap(one, other):
                    yield f"{place}.{one}: vary.{other} sets the same; keep one of them"


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _text(value: Any) -> str:
    """A value as part of a name."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "+".join(_text(inner) if key == "name" else f"{key}={_text(inner)}" for key, inner in value.items())
    return "+".join(map(_text, value)) if isinstance(value, list) else write_value(value)


def _folder_names(labels: Sequence[Sequence[str]], settings: Sequence[Table]) -> list[str]:
    """Unique names of folders, also where capitals do not count."""
    names = [re.sub(r"[^A-Za-z0-9._=,+-]+", "-", ",".join(parts)).strip(".-") for parts in labels]
    times = Counter(name.lower() for name in names)
    for i, name in enumerate(names):
        if not labels[i]:
            names[i] = "only"
        elif not name or len(name) > LONGEST_NAME or times[name.lower()] > 1:
            mark = hashlib.blake2b(write_value([*labels[i], settings[i]]).encode(), digest_size=4).hexdigest()
            names[i] = f"{name[: LONGEST_NAME - 9]}-{mark}".lstrip("-")
    return names

"""The spec: an experiment as a TOML file, checked as a whole before anything runs."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, TypeVar, get_type_hints

from pydantic import Field

from fedrank.experiment.families import build, checked, is_required
from fedrank.experiment.sections import AtLeastOne, Filled, PrivacySpec, Table
from fedrank.experiment.toml import flat, parse_override, put, shown, write_toml, write_value
from fedrank.names import nearest
from fedrank.rank.measures import measure


class SpecError(ValueError):
    """Everything that is wrong with a spec, one line each."""

    def __init__(self, problems: Iterable[str], source: str = ""):
        self.problems = list(dict.fromkeys(line for problem in problems for line in str(problem).splitlines()))
        self.source = source
        super().__init__(self.problems, source)  # as given, so that it survives a trip between processes

    def __str__(self) -> str:
        return "\n".join(f"{self.source}: {line}" if self.source else line for line in self.problems)


@dataclass(frozen=True)
class Published:
    """A value from a paper, shown next to ours."""

    measure: str = field(metadata={"example": 'measure = "ndcg@10"'})  # or "online" or "reward"
    value: float = field(metadata={"example": "value = 0.5"})
    source: str = field(metadata={"example": 'source = "the paper, its table"'})
    spread: float | None = None
    variant: str | None = None


@dataclass(frozen=True)
class Claim:
    """A finding of a paper, as a comparison of two variants that the repeats can confirm or refute."""

    says: str = field(metadata={"example": 'says = "Krum costs quality when nobody attacks"'})
    higher: str = field(metadata={"example": 'higher = "mean"'})  # the variant that is said to be better
    lower: str = field(metadata={"example": 'lower = "krum"'})
    measure: str | None = None  # None: the first of the experiment's
    within: Annotated[float, Field(gt=0)] | None = None  # if given: the two are said to differ by no more than this


@dataclass(frozen=True)
class Paper:
    """Which table or figure an experiment reproduces, and at what price."""

    item: str = field(metadata={"example": 'item = "Figure 5.2"'})
    minutes: Annotated[float, Field(gt=0)] | None = None  # the whole of it, on two cores
    quick_minutes: Annotated[float, Field(gt=0)] | None = None  # its [quick] form


Reader = Callable[[Any, str, list[str]], Any]  # (value, its place, problems) -> value; ValueError is noted, too
Q = TypeVar("Q", bound="Question")


@dataclass(frozen=True)
class Variant(Generic[Q]):
    """One of the settings that an experiment compares."""

    name: str  # also its folder
    settings: Table  # what is varied, by dotted key
    experiment: Q  # concrete: varies nothing
    given: str = ""  # its name in [variants]; empty where there are none


@dataclass(frozen=True, kw_only=True)
class Question(ABC):
    """What every experiment has, whatever its kind."""

    title: str = ""
    measures: Filled[str] = field(default_factory=lambda: ["ndcg@10"])
    seeds: Annotated[tuple[int, ...], AtLeastOne] = (1,)
    baseline: str | None = None  # variant that others are compared with
    vary: dict[str, list[Any]] = field(default_factory=dict)  # dotted key -> values; every combination is a variant
    variants: dict[str, Table] = field(default_factory=dict)  # name -> changes
    published: tuple[Published, ...] = ()
    paper: Paper | None = None
    claims: tuple[Claim, ...] = ()  # what the paper found, to be tested
    quick: dict[str, Any] = field(default_factory=dict)  # dotted key -> value of a small form that takes minutes

    readers: ClassVar[Mapping[str, Reader]]  # what reads the value of a key that is no plain value
    unit: ClassVar[str] = "round"  # what a row of rounds.csv is
    sections: ClassVar[tuple[str, ...]]  # tables of settings, of which variants change single ones
    if TYPE_CHECKING:  # fields of every kind, each with its own type
        kind: str
        data: Any  # a section with `name` and `folds`

    @property
    @abstractmethod
    def extent(self) -> str:
        """How long a run takes, in its own unit."""

    @property
    @abstractmethod
    def rounds_asked(self) -> int:
        """Rows that rounds.csv can have."""

    @classmethod
    @abstractmethod
    def problems(cls, values: Table) -> list[str]:
        """What is wrong with values that are each of the right kind, beyond what is wrong in any experiment."""

    @abstractmethod
    def require_data(self) -> None:
        """Refuse an experiment whose data are not here, before any of its runs begins."""

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

    @abstractmethod
    def written_out(self) -> Table:
        """The methods of a concrete experiment with all their settings, by key."""


def read_question(source: str | Path, overrides: Sequence[str] = (), quick: bool = False) -> Question:
    """An experiment of any kind from its TOML; `overrides` such as "rounds=100" change single keys.

    `quick` asks for its small form, which takes minutes.
    """
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
        if quick:
            tables = _quick_form(tables)
        for keys, value in changes:
            key = ".".join(keys)
            if isinstance(tables.get("vary"), dict) and key in flat(tables["vary"]):
                raise ValueError(f"{key}: is varied, so setting it would change nothing; set vary.{key}=[...] instead")
            varied = keys[0] == "vary" and len(keys) > 1  # in [vary], dotted keys are single keys
            put(tables, ["vary", ".".join(keys[1:])] if varied else keys, value)
        if any(keys[0] in ("vary", "measures") and isinstance(value, list) for keys, value in changes):
            _leave_out(tables)
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
            elif entry.name.endswith(".toml") and entry.name != "paper.toml":
                yield prefix + entry.name.removesuffix(".toml")

    return sorted(below(_builtin_folder(), ""))


def kinds() -> dict[str, type[Question]]:
    """What an experiment can be about."""
    from fedrank.experiment.federated_spec import Experiment  # these three build on this module
    from fedrank.experiment.silo_spec import SiloExperiment
    from fedrank.experiment.trees_spec import TreesExperiment

    return {"federated": Experiment, "async": Experiment, "silo": SiloExperiment, "trees": TreesExperiment}


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
    for i, claim in enumerate(values.get("claims", ())):
        for role in ("higher", "lower"):
            told = claim and getattr(claim, role)
            if told and told not in names:
                problems.append(f"claims[{i}].{role}: no variant {told!r}{nearest(told, names)}")
    if problems:
        raise SpecError(problems)
    return asked(**values)


def _quick_form(tables: Table) -> Table:
    """The small form of an experiment: its [quick] values in place of its own.

    `variants` lists the named variants that stay. Claims about others are left out, and so are published values: they
    belong to runs that are far longer.
    """
    quick = tables.pop("quick", None)
    if quick is not None and not isinstance(quick, dict):
        raise ValueError(f"quick: {shown(quick)} is not a table; write [quick]")
    if not quick:
        raise ValueError("quick: this experiment has no quick form; run it as it is, or give it a [quick] table")
    for key, value in flat(quick, lambda key, table: "name" in table).items():
        section, _, rest = key.partition(".")
        if key == "variants":
            known = tables.get("variants", {})
            if not isinstance(value, list):
                raise ValueError(f"quick.variants: {shown(value)} is no list; name the variants that stay, in brackets")
            if unknown := [name for name in value if name not in known]:
                raise ValueError(f"quick.variants: no {unknown[0]!r}{nearest(unknown[0], known)}")
            tables["variants"] = {name: known[name] for name in value}
        else:
            put(tables, [section, rest] if section == "vary" else key.split("."), value)
    _leave_out(tables)
    tables.pop("published", None)
    tables["title"] = f"{tables.get('title', '')} (quick form)".strip()
    return tables


def _leave_out(tables: Table) -> None:
    """Leave out claims about variants or measures that are not asked for, and a baseline that is none of them."""
    vary, variants, claims = tables.get("vary", {}), tables.get("variants", {}), tables.get("claims", [])
    lists = claims, tables.get("measures", [])
    if not isinstance(vary, dict) or not isinstance(variants, dict) or not all(isinstance(one, list) for one in lists):
        return  # which is told when they are read, as is a claim that is no table
    names = {row.folder for row in _rows(flat(vary), variants)}
    measured = [*_measured(tables), None]
    tables["claims"] = [
        row
        for row in claims
        if not isinstance(row, dict)
        or ({row.get("higher"), row.get("lower")} <= names and row.get("measure") in measured)
    ]
    if tables.get("baseline") not in names:
        tables.pop("baseline", None)


def to_tables(experiment: Question) -> Table:
    """The tables of an experiment; what is absent or empty is left out."""
    tables: Table = {}
    for each in dataclasses.fields(experiment):
        value = getattr(experiment, each.name)
        if each.name in ("published", "claims"):
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
        with noting(problems):
            values[key] = readers[at](value, at, problems) if at in readers else checked(hints[key], value, at)
    for name, each in fields.items():
        if name not in table and is_required(each):
            at = f"{place}.{name}" if place else name
            problems.append(f"{at}: is missing; write {each.metadata['example']}")
    return values


@contextmanager
def noting(problems: list[str], place: str = "") -> Iterator[None]:
    """Note what is wrong within, and go on."""
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


def _read_rows(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, list):
        raise ValueError(f"{place}: {shown(given)} is not a list of tables; write [[{place}]]")
    read = read_section(Claim if place == "claims" else Published)
    return tuple(read(row, f"{place}[{i}]", problems) for i, row in enumerate(given))


def _read_quick(given: Any, place: str, problems: list[str]) -> Any:
    if not isinstance(given, dict):
        raise ValueError(f"{place}: {shown(given)} is not a table; write [{place}]")
    return flat(given, lambda key, table: "name" in table)


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
        with noting(found, f"measures[{i}]"):
            names.append(str(measure(text)))
    data = values.get("data")
    for place, listed in (("measures", names), ("seeds", values.get("seeds", ())), ("data.folds", data and data.folds)):
        if twice := _twice(listed or ()):
            found.append(f"{place}: {shown(twice[0])} stands there twice; list each once")
    for i, row in enumerate(values.get("published", ())):
        if row is not None and row.measure not in ("online", "reward"):
            with noting(found, f"published[{i}].measure"):
                measure(row.measure)
    measured = _measured(values)
    for i, claim in enumerate(values.get("claims", ())):
        if claim is not None and claim.measure is not None and claim.measure not in measured:
            found.append(f"claims[{i}].measure: no {claim.measure!r} in measures{nearest(claim.measure, measured)}")
    return found


def _measured(values: Table) -> list[str]:
    """What a claim can be about: the measures, and what is known of lists that were shown."""
    return [*values.get("measures", ["ndcg@10"]), "online", "online_sum", "reward"]


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
_ONLY_WHOLE = (
    "vary",
    "variants",
    "baseline",
    "published",
    "paper",
    "claims",
    "quick",
)  # keys of the whole experiment, not of a variant
COMMON_READERS: dict[str, Reader] = {
    "vary": _read_vary,
    "variants": _read_variants,
    "published": _read_rows,
    "claims": _read_rows,
    "quick": _read_quick,
    "paper": read_section(Paper),
}

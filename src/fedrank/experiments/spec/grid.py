"""A grid: a spec, read once and expanded into the experiments that it compares."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Generic

from fedrank.display import DisplayMixin, listed
from fedrank.experiments.spec.experiment import E, Experiment, SpecError, of_sizes, to_tables
from fedrank.experiments.spec.families import SpecSection, code_from_outside, read_fields
from fedrank.experiments.spec.kinds import KINDS
from fedrank.names import did_you_mean
from fedrank.ranking.measures import measure
from fedrank.toml import TomlTable, flat, put, shown, write_toml, write_value
from fedrank.value_checks import more_than, noting, twice

MAX_VARIANTS = 10_000  # per spec
NOTHING = "nothing"  # named like a variant: the baseline ranking, without learning


@dataclass(frozen=True)
class Published(SpecSection):
    """A value from a paper, shown next to the measured one."""

    measure: str = field(metadata={"example": 'measure = "ndcg@10"'})  # or "online" or "reward"
    value: float = field(metadata={"example": "value = 0.5"})
    source: str = field(metadata={"example": 'source = "Wang et al. 2021, Table 3"'})
    spread: float | None = None
    variant: str | None = None
    folds: tuple[float, ...] = ()  # the values of the folds, if published
    repeats: int | None = None  # number of runs behind the value; None: one per fold


@dataclass(frozen=True)
class Claim(SpecSection):
    """A finding of a paper as a comparison of two variants, which the repeats confirm or refute."""

    says: str = field(metadata={"example": 'says = "Krum reduces quality without an attack"'})
    higher: str = field(metadata={"example": 'higher = "mean"'})  # the variant that is claimed to be better
    lower: str = field(metadata={"example": 'lower = "krum"'})
    measure: str | None = None  # None: the first measure of the experiment
    within: Annotated[float, more_than(0)] | None = None  # maximum difference, for a claim of equivalence
    difference: float | None = None  # reported by the paper; None: from its published values, or 0.01


@dataclass(frozen=True)
class PaperItem(SpecSection):
    """The table or figure of a paper that an experiment reproduces, and its running time."""

    item: str = field(metadata={"example": 'item = "Figure 5.2"'})
    minutes: Annotated[float, more_than(0)] | None = None  # running time on two cores
    quick_minutes: Annotated[float, more_than(0)] | None = None  # running time of its [quick] form


@dataclass(frozen=True)
class Variant(Generic[E]):
    """One of the experiments that a grid compares."""

    name: str  # also the name of its folder
    settings: TomlTable  # varied settings by dotted key
    experiment: E
    given: str = ""  # its name in [variants]; empty without [variants]


@dataclass(frozen=True, kw_only=True)
class About:
    """Keys of a spec that apply to all of its experiments together."""

    baseline: str | None = None  # variant that others are compared with; "nothing": the baseline ranking
    vary: TomlTable = field(default_factory=dict)  # dotted key -> values; every combination is a variant
    variants: TomlTable = field(default_factory=dict)  # name -> changes
    published: tuple[Published, ...] = ()
    paper: PaperItem | None = None
    claims: tuple[Claim, ...] = ()  # findings of the paper, to be tested
    quick: TomlTable = field(default_factory=dict)  # dotted key -> value, for a small form that takes minutes


ABOUT = tuple(About.__dataclass_fields__)


@dataclass(frozen=True, repr=False)
class Grid(DisplayMixin, Generic[E]):
    """One experiment, or several that differ in some settings, with published values and claims about them."""

    tables: TomlTable  # as read
    base: E  # the settings that all variants have in common
    variants: tuple[Variant[E], ...]  # at least one
    about: About = About()

    @classmethod
    def of(cls, experiment: E) -> Grid[E]:
        """The grid of one experiment."""
        return cls(to_tables(experiment), experiment, (Variant("only", {}, experiment),))

    def _display(self) -> tuple[str, dict[str, str]]:
        repeats = self.repeats()
        return self.title, {
            "kind": self.kind,
            "variants": listed(self.names, 8),
            "repeats": f"{len(repeats):,} (fold, seed)",
            "runs": f"{len(repeats) * len(self.variants):,} of {self.base.extent}",
            "measures": ", ".join(self.measures),
        }

    @property
    def kind(self) -> str:
        return self.base.kind

    @property
    def title(self) -> str:
        return self.base.title

    @property
    def measures(self) -> tuple[str, ...]:
        return self.base.measures

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]

    def only(self, names: Sequence[str]) -> Grid[E]:
        """The grid of the named variants; without names, of all."""
        for name in names:
            if name not in self.names:
                raise ValueError(f"unknown variant {name!r}{did_you_mean(name, self.names)}")
        return replace(self, variants=tuple(each for each in self.variants if each.name in names)) if names else self

    def repeats(self) -> list[tuple[int, int]]:
        """The (fold, seed) pair of every repeat; all variants have the same."""
        return self.base.repeats()

    def toml(self) -> str:
        return write_toml(self.tables)


def read_tables(tables: TomlTable, full_check: bool = True) -> Grid[Any]:
    """Build a grid from the tables of its TOML; all problems are reported together.

    `full_check=False` is for the spec of a finished run: its files may be missing, its code is not imported, and its
    claims may be about variants that were added by a report.
    """
    problems: list[str] = []
    own = {key: value for key, value in tables.items() if key not in ABOUT}
    base = _spec_of(own).read(own, problems, ABOUT, full_check)
    about = _read_about({key: value for key, value in tables.items() if key in ABOUT}, problems, full_check)
    rows = rows_of(about.vary, about.variants)
    variants: list[Variant[Any]] = [Variant("only", {}, base)]  # type: ignore[type-var]
    if about.vary or about.variants:
        variants, wrong = _expand(own, rows, full_check)
        # A problem that all variants inherit is reported once.
        problems += [line for line in wrong if line.partition(": ")[2] not in problems]
    if full_check:
        problems += _unknown(about, [row.folder for row in rows], measured(own))
    if problems or base is None:
        raise SpecError(problems)
    return Grid(tables, base, tuple(variants), about)


def refuse_code_from_outside(tables: TomlTable) -> None:
    """Raise an error before a spec imports code from outside fedrank."""
    grid = read_tables(tables, full_check=False)
    named = [line for one in (grid.base, *(v.experiment for v in grid.variants)) for line in code_from_outside(one)]
    if named:
        raise SpecError(
            f"{line} is code from outside fedrank, which can do anything on this machine; review it, then add --trust"
            for line in named
        )


def _spec_of(tables: TomlTable) -> type[Experiment]:
    kind = tables.get("kind", "federated")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpecError([f"kind: {shown(kind)} cannot be used{did_you_mean(str(kind), KINDS)}"])
    return KINDS[kind].spec


def _read_about(tables: TomlTable, problems: list[str], full_check: bool) -> About:
    """The keys about all experiments together, without invalid ones."""
    plain = {key: value for key, value in tables.items() if key not in _TABLES}
    values = read_fields(About, plain, "", problems, full_check=full_check)
    for key, (read, example) in _TABLES.items():
        given = tables.get(key, {})
        with noting(problems):
            if not isinstance(given, dict):
                raise ValueError(f"{key}: {shown(given)} is not a table; write {example}")
            values[key] = read(given, problems)
    return About(**values)


def _read_vary(given: TomlTable, problems: list[str]) -> TomlTable:
    found: TomlTable = {}
    for key, values in flat(given).items():  # keys may be quoted
        if not isinstance(values, list) or not values:
            problems.append(f"vary.{key}: {shown(values)} cannot be used; list the values to compare in brackets")
        elif again := twice(values):
            problems.append(f"vary.{key}: {shown(again[0])} is listed twice; list each value once")
        else:
            found[key] = values
    for key in found:
        if inside := [other for other in found if other.startswith(f"{key}.")]:
            problems.append(f"vary.{inside[0]}: {key} is varied as a whole already; keep one of them")
    return found


def _read_variants(given: TomlTable, problems: list[str]) -> TomlTable:
    for name, changes in given.items():
        if not name or not isinstance(changes, dict):
            wanted = f"variants.{name or 'NAME'}"
            problems.append(f"variants.{name}: {shown(changes)} is not a table with a name; write [{wanted}]")
    return {name: changes for name, changes in given.items() if name and isinstance(changes, dict)}


_TABLES = {
    "vary": (_read_vary, "[vary]"),
    "variants": (_read_variants, "[variants.NAME]"),
    "quick": (lambda given, problems: flat(given, lambda key, table: "name" in table), "[quick]"),
}


def _unknown(about: About, names: Sequence[str], measures: Sequence[str]) -> list[str]:
    """References to variants and measures that do not exist."""
    found: list[str] = []
    spoken = [("baseline", about.baseline)]
    for i, claim in enumerate(about.claims):
        if claim is None:
            continue
        spoken += [(f"claims[{i}].higher", claim.higher), (f"claims[{i}].lower", claim.lower)]
        if claim.measure is not None and claim.measure not in measures:
            found.append(
                f"claims[{i}].measure: {claim.measure!r} is not in measures{did_you_mean(claim.measure, measures)}"
            )
    for location, name in spoken:
        if name is not None and name not in (NOTHING, *names):
            found.append(f"{location}: unknown variant {name!r}{did_you_mean(name, names)}")
    for i, row in enumerate(about.published):
        if row is not None and row.measure not in ("online", "reward", *measures):
            with noting(found, f"published[{i}].measure"):
                measure(row.measure)
    return found


def measured(tables: Mapping[str, Any]) -> list[str]:
    """Valid measures of a claim: the measures of the spec, and those of shown lists."""
    lists = [tables.get("measures", ["ndcg@10"]), tables.get("sizes", [])]
    measures, sizes = ([] if not isinstance(given, list) else given for given in lists)
    return [*measures, *of_sizes(measures, sizes), "online", "online_sum", "reward"]


@dataclass(frozen=True)
class Row:
    """A variant before it is built."""

    name: str  # as in [variants]; empty without [variants]
    settings: TomlTable  # its values from [vary]
    changes: TomlTable  # all differences from the base
    folder: str


def rows_of(vary: TomlTable, variants: TomlTable) -> list[Row]:
    """Named variants times all combinations of [vary]."""
    count = math.prod(map(len, (variants or "1", *vary.values())))
    if count > MAX_VARIANTS:
        raise SpecError([f"vary: there are {count:,} variants (maximum {MAX_VARIANTS:,}); vary fewer values"])
    found = [
        (name, dict(zip(vary, values, strict=True)), changes)
        for name, changes in (variants or {"": {}}).items()
        for values in itertools.product(*vary.values())
    ]
    folders = _folder_names([(name, settings) for name, settings, _ in found])
    return [Row(*row, folder) for row, folder in zip(found, folders, strict=True)]


def _expand(base: TomlTable, rows: Sequence[Row], full_check: bool) -> tuple[list[Variant[Any]], list[str]]:
    """The variants of an experiment, and the problems with them."""
    found: list[Variant[Any]] = []
    problems: list[str] = []
    for row in rows:
        changed, changes = copy.deepcopy(base), TomlTable()
        wrong: list[str] = []
        with noting(wrong):
            changes = flat(row.changes, partial(_is_value, _spec_of(base).sections))
            for key, value in (changes | row.settings).items():
                if key in row.settings and key in changes:
                    raise ValueError(f"{key}: is set here and in [vary]; keep one of them")
                if key.partition(".")[0] in (*ABOUT, "seeds") or key == "data.folds":
                    raise ValueError(f"{key}: must be the same for all variants; set it at the top level")
                put(changed, key.split("."), copy.deepcopy(value))
            experiment = _spec_of(changed).read(changed, wrong, full_check=full_check)
            named = {"variants": row.name} if row.name and row.settings else {}
            found.append(Variant(row.folder, named | row.settings, experiment, row.name))
        for line in wrong:
            varied = not row.name or (line.startswith(tuple(row.settings)) and not line.startswith(tuple(changes)))
            location = "vary" if varied else f"variants.{row.name}"
            problems.append(f"{location}: {advised(line, changes | row.settings)}")
    return found, list(dict.fromkeys(problems))


def hidden_by(tables: TomlTable, key: str) -> list[tuple[str, str]]:
    """The (variant, key) pairs where a variant sets this key, or replaces a table around it."""
    variants = tables.get("variants")
    if not isinstance(variants, dict) or key.partition(".")[0] in ABOUT:
        return []
    own = {
        name: flat(changes, partial(_is_value, _spec_of(tables).sections))
        for name, changes in variants.items()
        if isinstance(changes, dict)
    }
    return [(name, other) for name in own for other in own[name] if f"{key}.".startswith(f"{other}.")]


def advised(line: str, changes: TomlTable) -> str:
    """Add advice where a change of the method name leaves settings of the previous method in place."""
    for key, value in changes.items():
        table = key.removesuffix(".name")
        if table != key and line.startswith(f"{table}.") and "no such setting" in line:
            example = write_value({table: {"name": value}})[2:-2]
            return f"{line}; to discard the settings of the previous method, replace the whole table: {example}"
    return line


def _is_value(sections: Sequence[str], key: str, table: TomlTable) -> bool:
    """Whether a change replaces this table as a whole: methods and click models, but not sections."""
    return key == "clients.click_model" or (key not in sections and "name" in table)


def _folder_names(rows: Sequence[tuple[str, TomlTable]]) -> list[str]:
    """Readable, safe and unique names for variants, also on case-insensitive file systems."""
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

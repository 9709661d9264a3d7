"""Where a spec comes from: a TOML file or a built-in one, its quick form, and single keys that somebody sets."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from fedrank import plugins
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.families import with_new_names
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.experiments.spec.grid import (
    ABOUT,
    NOTHING,
    Grid,
    advised,
    hidden_by,
    measured,
    read_tables,
    refuse_code_from_outside,
    rows_of,
)
from fedrank.files import read_text
from fedrank.names import did_you_mean
from fedrank.ranking.baseline_ranking import GIVEN
from fedrank.ranking.propensity import OWN, SHARED
from fedrank.toml import TomlTable, flat, parse_override, parse_toml, put, readable, shown

QUICK_FORM = "quick form"  # how the title of a small form ends
# Keys that a paper's experiment leaves open: they change which runs there are, and no run.
LEFT_OPEN = re.compile(r"title|measures|seeds|baseline|published|claims|(paper|quick|vary)(\..*)?")
# Keys that name files.
_FILES = re.compile(
    r"start|data\.(train|test|validation|log|folder|propensities)|clients(\.partition)+\.(file|over)|split\.file"
)


def read_spec(source: str | Path, overrides: Sequence[str] = (), quick: bool = False, trust: bool = True) -> Grid[Any]:
    """Read the specification of an experiment of any kind from a TOML file, or a built-in one by its name.

    `overrides` such as "rounds=100" change single keys. `quick` selects the small form of the experiment, which takes
    minutes. A method of your own, such as "my_methods:Mine", may be in a file beside the specification. With
    trust=False, a specification that names code outside the package is refused instead of imported.

    >>> import fedrank as fr
    >>> grid = fr.read_spec("quickstart", ["rounds=20", "seeds=[1]"])
    >>> grid.title, grid.names, grid.base.rounds
    ('What does federation cost, and what does it bring?', ['federated', 'alone', 'centralised', 'skyline'], 20)
    """
    text, folder = _text(source)
    changes = [parse_override(override) for override in overrides]
    try:
        tables = parse_toml(text)
    except ValueError as problem:
        raise SpecError([f"is not TOML: {problem}"], str(source)) from None
    if not tables:
        raise SpecError(["is empty; `fedrank run quickstart` leaves an example in its results"], str(source))
    if (folder / "run.json").is_file():  # a run of an earlier version, perhaps
        tables = with_new_names(tables)
    elif trust and Path(source).is_file() and str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))  # `module:Class` may be a file beside the specification
    try:
        _resolve(tables, folder)
        if quick:
            tables = _quick_form(tables)
        before = flat(tables)
        for keys, value in changes:
            key = ".".join(keys)
            for other in flat(tables["vary"]) if isinstance(tables.get("vary"), dict) else ():
                if f"{key}.".startswith(f"{other}."):
                    is_varied = "is varied" if other == key else f"{other} is varied as a whole"
                    remedy = f"set vary.{other}=[...] instead"
                    raise ValueError(f"{key}: {is_varied}, so setting it would change nothing; {remedy}")
            put(tables, _as_written(tables, keys), value)
        _mark_changed(tables, before, changes)
        if any(keys[0] in ("vary", "measures") and isinstance(value, list) for keys, value in changes):
            _leave_out(tables)
        _check_reach(tables, changes)
        _resolve(tables, Path())
        if not trust:
            refuse_code_from_outside(tables)
        return read_tables(tables)
    except ValueError as problem:
        set_ = {".".join(keys): value for keys, value in changes}
        raise SpecError([advised(line, set_) for line in str(problem).splitlines()], str(source)) from None


def _mark_changed(tables: TomlTable, before: TomlTable, changes: Sequence[tuple[list[str], Any]]) -> None:
    """Where a key is set that a paper fixed, nothing is compared with what it published, and the title says so."""
    keys = {".".join(key): value for key, value in changes}
    now = flat(tables)
    touched = {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)}
    other = {
        key: value
        for key, value in keys.items()
        if not LEFT_OPEN.fullmatch(key) and any(f"{one}.".startswith(f"{key}.") for one in touched)
    }
    if "paper" not in tables or not other:
        return
    tables.pop("published", None)
    told = ", ".join(f"{key}={_briefly(value)}" for key, value in other.items() if key != "data.folds")
    if told and "title" not in keys:  # which folds there are is no part of a run, and more may be added to those there
        tables["title"] = f"{tables.get('title', '')} (changed: {told})".strip()


def _briefly(value: Any) -> str:
    """A value in a title; of a file, its name."""
    return Path(value).name if isinstance(value, str) and "/" in value else readable(value)


def _as_written(tables: TomlTable, keys: list[str]) -> list[str]:
    """Where a key stands: in [vary], and often in variants, dotted keys are single keys."""
    if keys[0] == "vary" and len(keys) > 1:
        return ["vary", ".".join(keys[1:])]
    variants = tables.get("variants")
    variant = variants.get(keys[1]) if keys[0] == "variants" and isinstance(variants, dict) and len(keys) > 2 else None
    if isinstance(variant, dict) and ".".join(keys[2:]) in variant:
        return [*keys[:2], ".".join(keys[2:])]
    return keys


def read_experiment(source: str | Path, overrides: Sequence[str] = (), trust: bool = True) -> Grid[FederatedExperiment]:
    """Read the specification of a federated experiment from a TOML file, or a built-in one by its name.

    It is `read_spec` for experiments with federated clients; other kinds raise a SpecError.

    >>> import fedrank as fr
    >>> grid = fr.read_experiment("quickstart", ["rounds=20"])
    >>> {variant.name: variant.experiment.clients.count for variant in grid.variants}
    {'federated': 10, 'alone': 10, 'centralised': 1, 'skyline': 1}
    """
    grid = read_spec(source, overrides, trust=trust)
    if not all(isinstance(variant.experiment, FederatedExperiment) for variant in grid.variants):
        raise SpecError(
            [f'kind: "{grid.kind}" has no federation of clients to look at; `fedrank run` does it'], str(source)
        )
    return grid


@cache
def builtin_specs() -> dict[str, Traversable]:
    """Experiments that come with fedrank and with installed packages, by name."""

    def below(folder: Traversable, prefix: str) -> Iterable[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from below(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".toml") and entry.name != "paper.toml":
                yield prefix + entry.name.removesuffix(".toml"), entry

    own = resources.files("fedrank").joinpath("experiments", "builtin")
    found = dict(pair for folder in (*plugins.spec_folders(), own) for pair in below(folder, ""))  # the own ones count
    return {name: found[name] for name in sorted(found)}


def _text(source: str | Path) -> tuple[str, Path]:
    """A spec, and the folder from which its files are named."""
    path = Path(source)
    if path.exists() and not path.is_dir():
        try:
            return read_text(path, "utf-8-sig"), path.parent
        except UnicodeDecodeError:
            raise SpecError(["is not text in UTF-8; a spec is a TOML file"], str(source)) from None
    names = builtin_specs()
    if str(source) in names:
        return names[str(source)].read_text(encoding="utf-8"), Path()
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a TOML file, or a built-in experiment such as quickstart")
    near = difflib.get_close_matches(str(source).removesuffix(".toml"), names, n=3, cutoff=0.55)
    meant = " or ".join(f'"{name}"' for name in near)
    if path.suffix == ".toml":
        remedy = f"did you mean {meant}?" if near else f"write one with `fedrank new {path}`"
        raise FileNotFoundError(f"no spec at {path}; {remedy}")
    remedy = f"did you mean {meant}?" if near else "give a TOML file, or the name of an experiment such as quickstart"
    raise FileNotFoundError(f"no file and no built-in experiment {str(source)!r}; {remedy}")


def _check_reach(tables: TomlTable, changes: Sequence[tuple[list[str], Any]]) -> None:
    """Refuse to set what a variant sets as well: nobody would be told that it is not used there."""
    said = [".".join(keys) for keys, _ in changes]
    for key in said:
        for name, other in hidden_by(tables, key):
            there = f"variants.{name}.{key}"
            if not any(f"{there}.".startswith(f"{one}.") for one in said):
                sets = f"sets {other}" if other == key else f"replaces {other} as a whole"
                raise ValueError(f"{key}: variants.{name} {sets}, so that this would be lost there; also set {there}")


def _quick_form(tables: TomlTable) -> TomlTable:
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
            given = tables.get("variants", {})
            known = given if isinstance(given, dict) else {}
            if not isinstance(value, list):
                raise ValueError(f"quick.variants: {shown(value)} is no list; name the variants that stay, in brackets")
            if unknown := [name for name in value if not isinstance(name, str) or name not in known]:
                raise ValueError(f"quick.variants: no {unknown[0]!r}{did_you_mean(str(unknown[0]), known)}")
            tables["variants"] = {name: known[name] for name in value}
        else:
            put(tables, [section, rest] if section == "vary" else key.split("."), value)
    _leave_out(tables)
    tables.pop("published", None)
    tables["title"] = f"{tables.get('title', '')} ({QUICK_FORM})".strip()
    return tables


def _leave_out(tables: TomlTable) -> None:
    """Leave out claims about variants or measures that are not asked for, and a baseline that is none of them."""
    vary, variants, claims = tables.get("vary", {}), tables.get("variants", {}), tables.get("claims", [])
    lists = claims, tables.get("measures", [])
    if not isinstance(vary, dict) or not isinstance(variants, dict) or not all(isinstance(one, list) for one in lists):
        return  # which is told when they are read, as is a claim that is no table
    if not all(isinstance(values, list) for values in flat(vary).values()):
        return
    names = [NOTHING, *(row.folder for row in rows_of(flat(vary), variants))]
    measures = [*measured(tables), None]
    tables["claims"] = [
        row
        for row in claims
        if not isinstance(row, dict)
        or not all(isinstance(row.get(side), str) for side in ("higher", "lower"))
        or (row.get("higher") in names and row.get("lower") in names and row.get("measure") in measures)
    ]
    if isinstance(tables.get("baseline"), str) and tables["baseline"] not in names:
        tables.pop("baseline", None)


def _resolve(tables: TomlTable, folder: Path) -> None:
    """Name files in full: those of a spec lie where the spec lies, those of overrides where the user is."""

    def full(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: full(f"{key}.{inner}", below) for inner, below in value.items()}
        return os.path.abspath(folder / value) if _FILES.fullmatch(key) and _is_path(key, value) else value

    for table in (tables, *_tables_in(tables.get("variants"))):
        for key, value in table.items():
            if key not in ABOUT:
                table[key] = full(key, value)
    if isinstance(tables.get("vary"), dict):
        varied = flat(tables["vary"])
        tables["vary"] = {
            key: [full(key, value) for value in values] if isinstance(values, list) else values
            for key, values in varied.items()
        }


def _is_path(key: str, value: Any) -> bool:
    words = {"start": (GIVEN,), "over": ("grade",), "propensities": (SHARED, OWN)}  # which name no file
    return isinstance(value, str) and bool(value) and value not in words.get(key.rpartition(".")[2], ())


def _tables_in(tables: Any) -> list[TomlTable]:
    return [table for table in tables.values() if isinstance(table, dict)] if isinstance(tables, dict) else []

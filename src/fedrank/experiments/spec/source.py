"""Reads a spec from a TOML file or a built-in one, with its quick form and overridden keys."""

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
from fedrank.ranking.propensity import OWN, SHARED, SWAPS
from fedrank.toml import TomlTable, flat, parse_override, parse_toml, put, readable, shown

QUICK_FORM = "quick form"  # the suffix of the title of a small form
# Keys that may differ from a paper's experiment: they select runs, but do not change them.
LEFT_OPEN = re.compile(r"title|measures|seeds|baseline|published|claims|(paper|quick|vary)(\..*)?")
# Keys that name files.
_FILES = re.compile(
    r"start|data\.(train|test|validation|log|folder|propensities)|clients(\.partition)+\.(file|over)|split\.file"
)


def read_spec(source: str | Path, overrides: Sequence[str] = (), quick: bool = False, trust: bool = True) -> Grid[Any]:
    """Read the specification of an experiment of any kind from a TOML file, or a built-in one by its name.

    `overrides` such as "rounds=100" change single keys. `quick` selects the small form of the experiment, which takes
    minutes. An external method, such as "my_methods:Mine", may be in a file next to the specification. With
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
        raise SpecError(["is empty; create one with `fedrank new FILE`"], str(source))
    if (folder / "run.json").is_file():  # possibly a run of an earlier version
        tables = with_new_names(tables)
    elif trust and Path(source).is_file() and str(folder.resolve()) not in sys.path:
        sys.path.append(str(folder.resolve()))  # `module:Class` may be a file next to the spec
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
                    raise ValueError(f"{key}: {is_varied}, so setting it has no effect; {remedy}")
            put(tables, _as_written(tables, keys), value)
        _mark_changed(tables, before, changes)
        if any(keys[0] in ("vary", "measures") and isinstance(value, list) for keys, value in changes):
            _leave_out(tables)
        _resolve(tables, Path())
        if not trust:
            refuse_code_from_outside(tables)
        grid = read_tables(tables)
        _check_reach(tables, changes)  # after names and values: a misspelt one is the first thing to correct
        return grid
    except ValueError as problem:
        set_ = {".".join(keys): value for keys, value in changes}
        raise SpecError([advised(line, set_) for line in str(problem).splitlines()], str(source)) from None


def _mark_changed(tables: TomlTable, before: TomlTable, changes: Sequence[tuple[list[str], Any]]) -> None:
    """Remove published values where a key differs from the paper's, and mark the title."""
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
    files = {key: Path(value).name for key, value in other.items() if isinstance(value, str) and "/" in value}
    texts = {key: files.get(key) or readable(value) for key, value in other.items() if key != "data.folds"}
    changed = ", ".join(f"{key}={text}" for key, text in texts.items())
    if changed and "title" not in keys:  # folds are only a selection of runs
        tables["title"] = f"{tables.get('title', '')} (changed: {changed})".strip()


def _as_written(tables: TomlTable, keys: list[str]) -> list[str]:
    """The path of a key: in [vary], and often in variants, a dotted key is a single key."""
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
            [f'kind: "{grid.kind}" has no federated clients; use fr.read_spec or `fedrank run`'], str(source)
        )
    return grid


@cache
def builtin_specs() -> dict[str, Traversable]:
    """Experiments that are included in fedrank and in installed packages, by name."""

    def below(folder: Traversable, prefix: str) -> Iterable[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from below(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".toml") and entry.name != "paper.toml":
                yield prefix + entry.name.removesuffix(".toml"), entry

    own = resources.files("fedrank").joinpath("experiments", "builtin")
    # The last definition counts: fedrank's own take precedence.
    found = dict(pair for folder in (*plugins.spec_folders(), own) for pair in below(folder, ""))
    return {name: found[name] for name in sorted(found)}


def _text(source: str | Path) -> tuple[str, Path]:
    """The text of a spec, and the folder to which its file names are relative."""
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
        raise FileNotFoundError(f"spec {path} does not exist; {remedy}")
    remedy = f"did you mean {meant}?" if near else "give a TOML file, or the name of an experiment such as quickstart"
    raise FileNotFoundError(f"{str(source)!r} is not a file or a built-in experiment; {remedy}")


def _check_reach(tables: TomlTable, changes: Sequence[tuple[list[str], Any]]) -> None:
    """Refuse to set a key that a variant overrides: the setting would silently have no effect there."""
    overridden = [".".join(keys) for keys, _ in changes]
    for key in overridden:
        for name, other in hidden_by(tables, key):
            path = f"variants.{name}.{key}"
            if not any(f"{path}.".startswith(f"{one}.") for one in overridden):
                sets = f"sets {other}" if other == key else f"replaces {other} as a whole"
                raise ValueError(f"{key}: variants.{name} {sets}, so this has no effect there; also set {path}")


def _quick_form(tables: TomlTable) -> TomlTable:
    """The small form of an experiment: values of [quick] replace those of the spec.

    `variants` lists the named variants to keep. Claims about others are removed, and so are published values, which
    come from much longer runs.
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
                raise ValueError(
                    f"quick.variants: {shown(value)} is not a list; write the names of variants in brackets"
                )
            if unknown := [name for name in value if not isinstance(name, str) or name not in known]:
                raise ValueError(
                    f"quick.variants: unknown variant {unknown[0]!r}{did_you_mean(str(unknown[0]), known)}"
                )
            tables["variants"] = {name: known[name] for name in value}
        else:
            put(tables, [section, rest] if section == "vary" else key.split("."), value)
    _leave_out(tables)
    tables.pop("published", None)
    tables["title"] = f"{tables.get('title', '')} ({QUICK_FORM})".strip()
    return tables


def _leave_out(tables: TomlTable) -> None:
    """Remove claims about variants or measures that are left out, and a baseline that is left out."""
    vary, variants, claims = tables.get("vary", {}), tables.get("variants", {}), tables.get("claims", [])
    lists = claims, tables.get("measures", [])
    if not isinstance(vary, dict) or not isinstance(variants, dict) or not all(isinstance(one, list) for one in lists):
        return  # reported when they are read, like a claim that is not a table
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
    """Make file names absolute: relative to the spec, or to the working directory for overrides."""

    def full(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: full(f"{key}.{inner}", below) for inner, below in value.items()}
        return os.path.abspath(folder / value) if _FILES.fullmatch(key) and _is_path(key, value) else value

    variants = tables.get("variants")
    changes = variants.values() if isinstance(variants, dict) else ()
    for table in (tables, *(table for table in changes if isinstance(table, dict))):
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
    words = {"start": (GIVEN,), "over": ("grade",), "propensities": (SHARED, OWN, SWAPS)}  # values that are not files
    return isinstance(value, str) and bool(value) and value not in words.get(key.rpartition(".")[2], ())

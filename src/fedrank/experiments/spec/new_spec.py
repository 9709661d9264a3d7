"""What `fedrank new` writes: a commented template of a spec, and a JSON schema with which editors complete keys.

The template has required settings, and all others behind # with their default and meaning. The schema is generated from
the same type hints by which specs are read.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fedrank.experiments.spec.families import FAMILIES, Family, SpecSection, is_required, name_of
from fedrank.experiments.spec.grid import About
from fedrank.experiments.spec.kinds import KINDS
from fedrank.experiments.spec.listing import settings_in, summary_of
from fedrank.names import did_you_mean
from fedrank.toml import shown
from fedrank.value_checks import Limit

SCHEMA = "fedrank-spec.schema.json"  # written next to a new spec
# Values of a template where a setting has no default or another value is more useful.
BEGINNINGS: dict[str, dict[str, Any]] = {
    "federated": {
        "title": "What I want to know",
        "rounds": 200,
        "evaluate_every": 10,
        "data.name": "synthetic-mq2007",
        "clients.count": 10,
        "clients.click_model": "navigational",
        "learner": "pdgd",
        "aggregator": "mean",
    },
    "async": {
        "title": "What I want to know",
        "rounds": 1000,
        "evaluate_every": 100,
        "data.log": "LOG",
        "clients.count": 20,
        "clients.partition": "users",
        "learner": "pdgd",
        "arrival": "fedasync",
    },
    "silo": {
        "title": "What I want to know",
        "rounds": 20,
        "data.name": "synthetic-silos",
        "silos.count": 4,
        "method": "cross-silo",
        "method.normalise": "fixed",  # required for exporting the model
        "method.width": 100,  # six times narrower would be as accurate under noise
        "method.depth": 10,
    },
    "trees": {"title": "What I want to know", "data.name": "synthetic-istella-x", "booster": "lambdamart"},
}

# What the user must do before the template runs.
NEEDED = {"async": 'replace "LOG" by the folder of your click log (create it with fedrank data build)'}

VARIED = {
    "federated": '"learner.rate" = [0.03, 0.1]',
    "async": '"learner.rate" = [0.03, 0.1]',
    "silo": '"silos.count" = [2, 4]',
    "trees": '"booster.rate" = [0.05, 0.1]',
}
Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"  # the draft that most editors support
NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}
OUTSIDE = {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "module:Class of an external method"}


def blank_spec(kind: str, schema: str = "") -> str:
    """A commented template of this kind. `schema` is the path of a JSON schema, for editors that support it."""
    if kind not in BEGINNINGS:
        raise ValueError(f"unknown kind {kind!r} of experiment{did_you_mean(kind, BEGINNINGS)}")
    return "\n".join([*_head(kind, schema), *_body(kind), ""])


def _head(kind: str, schema: str) -> Iterator[str]:
    if schema:
        yield f"#:schema {schema}"
    yield "# A fedrank experiment. Lines that start with # show defaults: remove the # to change a setting."
    yield "# `fedrank run FILE` runs it, `fedrank methods` lists the methods, docs/reference/spec.md is the reference."
    yield ""
    yield f'kind = "{kind}"'


def _body(kind: str) -> Iterator[str]:
    lines, tables = _settings(KINDS[kind].spec, "", BEGINNINGS[kind])
    yield from (*lines, *tables)
    yield ""
    yield "# Values to compare: every combination is a variant."
    yield "# [vary]"
    yield f"# {VARIED[kind]}"


def _settings(kind: type, location: str, begin: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The lines of plain settings, and below them the tables of methods and sections."""
    lines: list[str] = []
    tables: list[str] = []
    for field, hint, default, comment in settings_in(kind):
        at, what = f"{location}.{field.name}".lstrip("."), _plain_hint(hint)
        if what in FAMILIES:
            name = begin.get(at) or (None if default is None else name_of(default))
            tables += ["", *_method(at, FAMILIES[what], name, comment, begin)]
        elif isinstance(what, type) and issubclass(what, SpecSection):
            inner, below = _settings(what, at, begin)
            off = "# " if default is None and type(None) in get_args(hint) else ""  # optional sections
            marked = [line if line.startswith("#") or not off else f"# {line}" for line in (*inner, *below)]
            tables += ["", f"# {summary_of(what)}", f"{off}[{at}]", *marked]
        elif at != "kind":
            lines.append(_line(field.name, default, comment, begin.get(at)))
    return lines, tables


def _method(location: str, family: Family, name: str | None, comment: str, begin: Mapping[str, Any]) -> Iterator[str]:
    """A method with its settings; one that is not selected is commented out."""
    off = "# " if name is None else ""
    yield f"# {location}: {_in_words(comment)}" if comment else f"# {location}"
    yield f"# One of {', '.join(family.methods)}"
    yield f"{off}[{location}]"
    if name is None:
        yield f'# name = "{next(iter(family.methods))}"'
        return
    kind = family.methods[name]
    yield f'name = "{name}"  # {summary_of(kind)}'
    for field, hint, default, about in settings_in(kind):
        if _plain_hint(hint) not in FAMILIES:
            yield _line(field.name, default, about, begin.get(f"{location}.{field.name}"))


def _line(name: str, default: Any, comment: str, value: Any) -> str:
    """One setting: with the value of the template, or commented out at its default."""
    behind = f"  # {_in_words(comment)}" if comment else ""
    if value is not None:
        return f"{name} = {shown(value)}{behind}"
    text = "..." if default is None else shown(list(default) if isinstance(default, tuple) else default)
    return f"# {name} = {text}{behind}"


def _in_words(comment: str) -> str:
    """TOML has no None: such a setting is left out."""
    return comment.replace("None:", "left out:")


def _plain_hint(hint: Any) -> Any:
    """The type of a setting without None."""
    inner = [one for one in get_args(hint) if one is not type(None)]
    return inner[0] if type(None) in get_args(hint) and len(inner) == 1 else hint


def spec_schema() -> Schema:
    """The schema of specs of all kinds."""
    by_class: dict[type, list[str]] = {}
    for name, kind in KINDS.items():
        by_class.setdefault(kind.spec, []).append(name)
    about = _properties(About)
    kinds = []
    for spec, names in by_class.items():
        table = _table(spec)
        table["properties"] = table["properties"] | about | {"kind": {"enum": names}}
        if "federated" not in names:  # the kind of a spec that names none
            table["required"] = ["kind", *table["required"]]
        kinds.append({"title": f"kind = {' or '.join(names)}"} | table)
    families: dict[str, Schema] = {}
    for family in FAMILIES.values():
        own = [_method_schema(name, kind) for name, kind in family.methods.items()]
        outside = {"type": "object", "properties": {"name": OUTSIDE}, "required": ["name"]}
        by_name = {"anyOf": [{"enum": list(family.methods)}, OUTSIDE]}
        families[family.name] = {"anyOf": [by_name, *own, outside]}
    return {"$schema": DRAFT, "title": "A fedrank experiment", "anyOf": kinds, "definitions": families}


def schema_text() -> str:
    """The schema as the text of a file."""
    return json.dumps(spec_schema(), indent=1, ensure_ascii=False) + "\n"


def _method_schema(name: str, kind: type) -> Schema:
    table = _table(kind)
    named = {"name": {"const": name, "description": summary_of(kind)}}
    return table | {"properties": named | table["properties"], "required": ["name", *table["required"]]}


def _table(kind: type) -> Schema:
    return {
        "type": "object",
        "properties": _properties(kind),
        "required": [field.name for field, *_ in settings_in(kind) if is_required(field)],
        "additionalProperties": False,
    }


def _properties(kind: type) -> dict[str, Schema]:
    found = {}
    for field, hint, default, comment in settings_in(kind):
        one = _of(hint)
        if comment:
            one = {"description": comment} | (one if "$ref" not in one else {"allOf": [one]})
        if isinstance(default, (bool, int, float, str)):
            one["default"] = default
        elif default is not None and hint in FAMILIES:
            one["default"] = name_of(default)
        found[field.name] = one
    return found


def _of(hint: Any) -> Schema:
    """The schema of a type hint."""
    if hint in FAMILIES:
        return {"$ref": f"#/definitions/{FAMILIES[hint].name}"}
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        limits = [limit.keyword for limit in inner[1:] if isinstance(limit, Limit) and limit.keyword]
        return _of(inner[0]) | dict(limits)
    if kind in (Union, types.UnionType):
        some = [_of(one) for one in inner if one is not type(None)]
        return some[0] if len(some) == 1 else {"anyOf": some}
    if kind is Literal:
        return {"enum": list(inner)}
    if kind in (list, tuple) or getattr(kind, "__name__", "") == "Sequence":
        return {"type": "array"} | ({"items": _of(inner[0])} if inner else {})
    if isinstance(kind, type) and issubclass(kind, SpecSection):
        return _table(kind)
    return {"type": NAMES[kind]} if kind in NAMES else {}

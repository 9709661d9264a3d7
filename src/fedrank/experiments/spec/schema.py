"""A JSON schema of specs, which lets editors complete keys and mark errors.

It is generated from the same type hints by which specs are read.
"""

from __future__ import annotations

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from fedrank.experiments.spec.families import FAMILIES, SpecSection, is_required, name_of
from fedrank.experiments.spec.grid import About
from fedrank.experiments.spec.kinds import KINDS
from fedrank.experiments.spec.listing import settings_in, summary_of
from fedrank.value_checks import Limit

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"  # the draft that most editors support
NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}
OUTSIDE = {"type": "string", "pattern": "^[^:]+:[^:]+$", "description": "module:Class of an external method"}


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
    families = {
        family.name: {"anyOf": [_name(family.methods), *(_method(name, one) for name, one in family.methods.items())]}
        for family in FAMILIES.values()
    }
    for one in families.values():
        one["anyOf"].append({"type": "object", "properties": {"name": OUTSIDE}, "required": ["name"]})
    return {"$schema": DRAFT, "title": "A fedrank experiment", "anyOf": kinds, "definitions": families}


def schema_text() -> str:
    """The schema as the text of a file."""
    return json.dumps(spec_schema(), indent=1, ensure_ascii=False) + "\n"


def _name(methods: Any) -> Schema:
    return {"anyOf": [{"enum": list(methods)}, OUTSIDE]}


def _method(name: str, kind: type) -> Schema:
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

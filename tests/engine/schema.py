"""As much of JSON Schema as the schemas beside this file use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent / "schemas"
KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "number": (int, float), "integer": int}
KNOWN = {
    *("$comment", "type", "required", "additionalProperties", "properties", "items", "enum", "const", "pattern"),
    *("anyOf", "$ref", "definitions", "minItems", "maxItems", "minProperties", "maxProperties", "minimum", "maximum"),
}


def problems(name: str, value: Any) -> list[str]:
    """What of a value does not fit a schema; empty where all of it does."""
    whole = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return list(_problems(whole, value, whole, "$"))


def _problems(schema: Any, value: Any, whole: Any, at: str):
    assert set(schema) <= KNOWN, f"the schema uses {set(schema) - KNOWN}"
    if "$ref" in schema:
        yield from _problems(whole["definitions"][schema["$ref"].rpartition("/")[2]], value, whole, at)
        return
    if "anyOf" in schema:
        each = [list(_problems(one, value, whole, at)) for one in schema["anyOf"]]
        if all(each):
            yield f"{at} fits none of {len(each)}: {min(each, key=len)}"
    kind = schema.get("type")
    if kind == "boolean":
        if not isinstance(value, bool):
            yield f"{at} is no boolean"
    elif kind is not None and (not isinstance(value, KINDS[kind]) or isinstance(value, bool)):
        yield f"{at} is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r}"
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value!r}, not {schema['const']!r}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{at} is {value!r}"
    if (
        not schema.get("minimum", value) <= value <= schema.get("maximum", value)
        if kind in ("number", "integer")
        else False
    ):
        yield f"{at} is {value!r}"
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{at} has {len(value)} items"
        for place, one in enumerate(value):
            yield from _problems(schema.get("items", {}), one, whole, f"{at}[{place}]")
    if isinstance(value, dict):
        if not schema.get("minProperties", 0) <= len(value) <= schema.get("maxProperties", len(value)):
            yield f"{at} has {len(value)} properties"
        yield from (f"{at} lacks {name}" for name in schema.get("required", ()) if name not in value)
        others = schema.get("additionalProperties", True)
        for name, one in value.items():
            inner = schema.get("properties", {}).get(name, others)
            if inner is False:
                yield f"{at} has {name}"
            elif isinstance(inner, dict):
                yield from _problems(inner, one, whole, f"{at}.{name}")

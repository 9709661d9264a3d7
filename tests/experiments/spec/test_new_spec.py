"""Specs to begin with, and the schema by which editors complete them."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from fedrank.data.synthetic_shown import made_up_queries, simulate_shown
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.kinds import KINDS
from fedrank.experiments.spec.new_spec import BEGINNINGS, NEEDED, SCHEMA, blank_spec, schema_text
from fedrank.experiments.spec.source import builtin_specs

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
BOUNDS = {
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "minItems": lambda value, bound: len(value) >= bound,
}
KNOWN = {
    *("$schema", "$ref", "title", "description", "default", "definitions", "anyOf", "allOf", "enum", "const", "type"),
    *("properties", "required", "additionalProperties", "items", "pattern", *BOUNDS),
}
WHOLE = json.loads(schema_text())


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is as a schema says: the few keywords that ours has, as the draft defines them."""
    assert set(schema) <= KNOWN, schema.keys() - KNOWN
    if "$ref" in schema:
        return fits(value, WHOLE["definitions"][schema["$ref"].rpartition("/")[2]])
    if not all(fits(value, one) for one in schema.get("allOf", ())):
        return False
    if "anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "const" in schema and value != schema["const"]:
        return False
    kind = schema.get("type")
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if (kind == "integer" and not (number and isinstance(value, int))) or (kind == "number" and not number):
        return False
    if kind in TYPES and not isinstance(value, TYPES[kind]):
        return False
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return False
    if not all(BOUNDS[key](value, schema[key]) for key in BOUNDS if key in schema):
        return False
    if isinstance(value, list) and not all(fits(one, schema.get("items", {})) for one in value):
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if not set(schema.get("required", ())) <= set(value):
            return False
        if schema.get("additionalProperties") is False and not set(value) <= set(properties):
            return False
        return all(fits(one, properties.get(key, {})) for key, one in value.items())
    return True


def ready(kind: str, tmp_path) -> str:
    """A new spec as it is, except that a log is named that is there."""
    if kind == "async" and not (tmp_path / "log").exists():
        simulate_shown(made_up_queries(50, seed=5), 200, people=20).write(tmp_path / "log")
    return blank_spec(kind, SCHEMA).replace('"LOG"', f'"{tmp_path / "log"}"')


def test_every_kind_has_a_beginning():
    assert set(BEGINNINGS) == set(KINDS)
    with pytest.raises(ValueError, match="unknown kind 'tree' of experiment; did you mean \"trees\""):
        blank_spec("tree")


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_a_new_spec_can_be_read_and_fits_the_schema(kind, tmp_path):
    text = ready(kind, tmp_path)
    assert text.startswith(f"#:schema {SCHEMA}\n")
    assert max(map(len, text.splitlines())) <= 250
    tables = tomllib.loads(text)
    assert read_tables(tables).kind == kind
    assert fits(tables, WHOLE)


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_what_is_needed_first_is_said_where_a_new_spec_names_nothing_that_is_here(kind):
    """What comes with fedrank can be run at once."""
    assert (kind in NEEDED) == ("data.name" not in BEGINNINGS[kind])
    assert all(value in NEEDED[kind] for key, value in BEGINNINGS[kind].items() if key == "data.log")


@pytest.mark.parametrize("kind", BEGINNINGS)
def test_what_stands_behind_a_mark_is_the_default(kind, tmp_path):
    """Taking the # away from a setting with a value changes nothing."""
    text = ready(kind, tmp_path)
    opened = re.sub(r"^# (\w+ = (?!\.\.\.))", r"\1", _without_what_is_off(text), flags=re.MULTILINE)
    assert opened.count("\n# ") < text.count("\n# ")
    assert read_tables(tomllib.loads(opened)).base == read_tables(tomllib.loads(text)).base


def _without_what_is_off(text: str) -> str:
    """Without methods that are not asked for, and without what varies."""
    return re.sub(r"^# \[.*\]\n(# .*\n)*", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", builtin_specs())
def test_specs_that_come_with_fedrank_fit_the_schema(name):
    assert fits(tomllib.loads(builtin_specs()[name].read_text(encoding="utf-8")), WHOLE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"rounds": "many"},
        {"ruonds": 5},
        {"learner": "pdg"},
        {"learner": {"name": "pdgd", "rat": 0.1}},
        {"aggregator": {"name": "mean", "weighted": "yes"}},
        {"clients": {"participation": 2.0}},
        {"seeds": []},
        {"data": {"evaluate_on": "train"}},
    ],
    ids=str,
)
def test_the_schema_marks_mistakes(wrong):
    right = {"rounds": 5, "data": {"name": "synthetic-mq2007"}, "clients": {"count": 3}, "learner": "pdgd"}
    assert fits(right, WHOLE)
    assert fits(right | {"aggregator": {"name": "my_lab.ideas:Mine", "strength": 2}}, WHOLE)
    assert not fits(right | wrong, WHOLE)

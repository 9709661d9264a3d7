"""A commented template of a spec: required settings, and all others behind # with their default and meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from fedrank.experiments.spec.families import FAMILIES, Family, SpecSection, default_of, hints_of, is_required, name_of
from fedrank.experiments.spec.kinds import KINDS
from fedrank.experiments.spec.listing import comments_of, summary_of
from fedrank.names import did_you_mean
from fedrank.toml import shown

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
    begin, spec = BEGINNINGS[kind], KINDS[kind].spec
    tables: list[str] = []
    for field in dataclasses.fields(spec):
        if field.name == "kind":
            continue
        what = _plain_hint(hints_of(spec)[field.name])
        if what in FAMILIES:
            default = None if is_required(field) else default_of(field)
            name = begin.get(field.name) or (None if default is None else name_of(default))
            tables += ["", *_method(field.name, FAMILIES[what], name, comments_of(spec).get(field.name, ""), begin)]
        elif isinstance(what, type) and issubclass(what, SpecSection):
            tables += ["", *_section(field.name, what, begin)]
        else:
            yield _line(field, comments_of(spec).get(field.name, ""), begin.get(field.name))
    yield from tables
    yield ""
    yield "# Values to compare: every combination is a variant."
    yield "# [vary]"
    yield f"# {VARIED[kind]}"


def _section(name: str, kind: type, begin: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {summary_of(kind)}"
    yield f"[{name}]"
    later: list[str] = []
    for field in dataclasses.fields(kind):
        hint = _plain_hint(hints_of(kind)[field.name])
        comment = comments_of(kind).get(field.name, "")
        if hint in FAMILIES:
            default = None if is_required(field) else default_of(field)
            chosen = begin.get(f"{name}.{field.name}") or (None if default is None else name_of(default))
            later += ["", *_method(f"{name}.{field.name}", FAMILIES[hint], chosen, comment, begin)]
        else:
            yield _line(field, comment, begin.get(f"{name}.{field.name}"))
    yield from later


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
    for field in dataclasses.fields(kind):
        if field.init and _plain_hint(hints_of(kind)[field.name]) not in FAMILIES:
            yield _line(field, comments_of(kind).get(field.name, ""), begin.get(f"{location}.{field.name}"))


def _line(field: dataclasses.Field[Any], comment: str, value: Any = None) -> str:
    """One setting: with the value of the template, or commented out at its default."""
    behind = f"  # {_in_words(comment)}" if comment else ""
    if value is not None:
        return f"{field.name} = {shown(value)}{behind}"
    default = None if is_required(field) else default_of(field)
    if default is None:
        return f"# {field.name} = ...{behind}"
    return f"# {field.name} = {shown(list(default) if isinstance(default, tuple) else default)}{behind}"


def _in_words(comment: str) -> str:
    """TOML has no None: such a setting is left out."""
    return comment.replace("None:", "left out:")


def _plain_hint(hint: Any) -> Any:
    """The type of a setting without None."""
    inner = [one for one in get_args(hint) if one is not type(None)]
    return inner[0] if type(None) in get_args(hint) and len(inner) == 1 else hint

"""Tables as TOML, and reaching into them."""

from __future__ import annotations

import doctest
import math
import tomllib
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank import toml
from fedrank.experiments.spec.source import read_spec
from fedrank.toml import flat, parse_override, parse_toml, put, shown, write_toml, write_value

FEW = settings(max_examples=30, deadline=None)
text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=8)
scalars = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), text)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=5,
)


def test_examples_in_docstrings():
    assert doctest.testmod(toml).failed == 0


@FEW
@given(st.dictionaries(text, values, max_size=4))
def test_what_is_written_is_read_back(tables):
    assert tomllib.loads(write_toml(tables)) == tables


def test_sections_lists_of_tables_and_empty_tables():
    tables = {"published": [{"value": 1.0}, {"value": 2.0}], "variants": {"a b": {}, "c": {"x.y": 1}}, "title": "t"}
    written = write_toml(tables)
    assert written == (
        'title = "t"\n\n[[published]]\nvalue = 1.0\n\n[[published]]\nvalue = 2.0\n\n'
        '[variants."a b"]\n\n[variants.c]\n"x.y" = 1\n'
    )
    assert tomllib.loads(written) == tables


def test_odd_values():
    assert write_value([True, math.inf, -1e-300, '"\\\n\x7f']) == '[true, inf, -1e-300, "\\"\\\\\\n\\u007f"]'
    assert math.isnan(tomllib.loads(f"x = {write_value(math.nan)}")["x"])
    assert tomllib.loads(f"x = {write_value(date(2026, 1, 2))}")["x"] == date(2026, 1, 2)


def test_nothing_that_toml_cannot_hold_is_written():
    with pytest.raises(TypeError, match="None cannot be written as TOML"):
        write_toml({"start": None})
    assert (shown(None), shown("a")) == ("None", '"a"')


def test_flat_keeps_tables_that_are_values():
    changes = {"learner": {"name": "pdgd", "rate": 1.0}, "clients": {"count": 1, "partition": {"name": "own"}}}
    assert flat(changes, lambda key, table: "name" in table) == {
        "learner": {"name": "pdgd", "rate": 1.0},
        "clients.count": 1,
        "clients.partition": {"name": "own"},
    }


def test_flat_refuses_a_key_in_two_spellings():
    with pytest.raises(ValueError, match=r"^learner\.rate: is set twice; remove one of them$"):
        flat({"learner": {"rate": 0.1}, "learner.rate": 0.2})


def test_put_makes_tables_of_names_and_of_nothing():
    tables = {"learner": "pdgd"}
    put(tables, ["learner", "rate"], 0.1)
    put(tables, ["aggregator", "name"], "mean")
    assert tables == {"learner": {"name": "pdgd", "rate": 0.1}, "aggregator": {"name": "mean"}}


def test_put_refuses_settings_of_a_number():
    with pytest.raises(ValueError, match=r"^rounds: 3 has no settings, so rounds\.x cannot be set$"):
        put({"rounds": 3}, ["rounds", "x"], 1)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("rounds=100", (["rounds"], 100)),
        ("rounds = 1_000", (["rounds"], 1000)),
        ("learner.rate=3", (["learner", "rate"], 3)),
        ("learner.batch=true", (["learner", "batch"], True)),
        ("title=a = b", (["title"], "a = b")),
        ("title=", (["title"], "")),
        ("title=1\nrounds = 2", (["title"], "1\nrounds = 2")),
        ('title="5"', (["title"], "5")),
        ('vary."learner.rate"=[0.1]', (["vary", "learner.rate"], [0.1])),
        ('learner={name="pdgd"}', (["learner"], {"name": "pdgd"})),
        ("data.train=C:\\x.txt", (["data", "train"], "C:\\x.txt")),
    ],
)
def test_overrides(given, expected):
    assert parse_override(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("rounds", "'rounds' is not a setting; write key=value, such as rounds=100"),
        ("=3", "'' is not a key; write key=value, such as aggregator.name=mean"),
        ("a b=3", "'a b' is not a key; write key=value, such as aggregator.name=mean"),
        ("#a=3", "'#a' is not a key; write key=value, such as aggregator.name=mean"),
    ],
)
def test_bad_overrides(given, message):
    with pytest.raises(ValueError) as caught:
        parse_override(given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 5000 + "]" * 5000, "a = " + "{b = " * 5000 + "1" + "}" * 5000, ".".join(["a"] * 5000) + " = 1"],
    ids=["lists", "tables", "dotted"],
)
def test_what_is_nested_too_deeply_is_refused_in_a_line(text, tmp_path):
    with pytest.raises(ValueError, match="tables or lists are nested more than 50 levels deep"):
        parse_toml(text)
    (tmp_path / "deep.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"deep.toml: is not TOML: .*nested more than 50"):
        read_spec(tmp_path / "deep.toml")


def test_long_keys_and_long_texts_are_refused_before_they_are_parsed():
    for text in ("a." * 300_000 + "a = 1", "x = { " + "a." * 300_000 + "a = 1 }", "[" + "a." * 300_000 + "a]"):
        with pytest.raises(ValueError, match="nested more than 50"):
            parse_toml(text)
    with pytest.raises(ValueError, match="has 1,000,005 characters, but at most 1,000,000 are allowed"):
        parse_toml('a = "' + "x" * 1_000_000)
    assert parse_toml('title = "One. Two ... three."') == {"title": "One. Two ... three."}


@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, "{b=" * 60 + "1" + "}" * 60])
def test_an_override_that_is_nested_too_deeply_is_refused(value):
    with pytest.raises(ValueError, match="nested more than 50"):
        parse_override(f"vary={value}")

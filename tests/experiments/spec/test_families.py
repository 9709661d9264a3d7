"""Methods by name: what every family promises, and what is said about mistakes."""

from __future__ import annotations

import contextlib
import dataclasses
import doctest
import io
import sys
import tomllib
import typing

import pytest
from rich.console import Console

from fedrank.experiments.report.run_output import about_methods
from fedrank.experiments.report.terminal import show
from fedrank.experiments.spec import families
from fedrank.experiments.spec.families import FAMILIES, build, describe, name_of
from fedrank.experiments.spec.listing import LISTS, methods, search
from fedrank.federated.aggregators import Mean
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import RANKERS, Linear, Mlp
from fedrank.toml import write_toml
from fedrank.types import Aggregator, Learner, Ranker
from fedrank.value_checks import checked

RANKER_NAMES = ", ".join(f'"{name}"' for name in RANKERS)
ENTRIES = [
    pytest.param(protocol, name, kind, id=f"{family.name}-{name}")
    for protocol, family in FAMILIES.items()
    for name, kind in family.methods.items()
]


def refusal(protocol, given, place="place"):
    with pytest.raises(ValueError) as caught:
        build(protocol, given, place)
    return str(caught.value)


def through_toml(method):
    return tomllib.loads(write_toml({"method": describe(method)}))["method"]


PERSON = {"unit": "person"}
NEEDS = {"clip_gradients": {"batch": True}, "people": PERSON, "sites": PERSON}  # settings that go only with another one


def other_values(value):
    """Values of the same kind, other than the default; none for what this test knows nothing about."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value + 10, max(value - 1, 0)]
    return [value + 0.25, value * 0.75, value * 4] if isinstance(value, float) else []


def changed(method, setting):
    """The method with another value of one setting; None where this test knows none."""
    default = getattr(method, setting)
    hint = typing.get_type_hints(type(method))[setting]
    numbers = isinstance(default, int) and typing.get_origin(hint) is typing.Literal
    values = [value for value in (typing.get_args(hint) if numbers else other_values(default)) if value != default]
    for value in values:
        with contextlib.suppress(ValueError):
            return dataclasses.replace(method, **NEEDS.get(setting, {}), **{setting: value})
    assert not values, f"{setting} is a setting that nothing can be set to"
    return None


def needs(kind):
    """Settings without a default: amounts of noise that nobody should get unasked."""
    return {field.name: 1.5 for field in dataclasses.fields(kind) if families.is_required(field)}


def test_examples_in_docstrings():
    assert doctest.testmod(families).failed == 0


@pytest.mark.parametrize(("protocol", "name", "kind"), ENTRIES)
class TestEveryMethod:
    def test_is_built_by_its_name_and_what_it_cannot_do_without(self, protocol, name, kind):
        needed = needs(kind)
        method = build(protocol, {"name": name} | needed if needed else name, "place")
        assert type(method) is kind
        assert name_of(method) == name
        for setting in needed:
            fewer = {"name": name} | {key: value for key, value in needed.items() if key != setting}
            assert refusal(protocol, fewer) == f"place.{setting}: is missing; {name} requires it"

    def test_settings_survive_toml_and_back(self, protocol, name, kind):
        default = build(protocol, {"name": name} | needs(kind), "place")
        assert build(protocol, through_toml(default), "place") == default
        for field in dataclasses.fields(kind):
            method = changed(default, field.name)
            if method is not None:
                assert method != default
                assert build(protocol, through_toml(method), "place") == method

    def test_is_frozen_and_no_setting_is_called_name(self, protocol, name, kind):
        assert kind.__dataclass_params__.frozen
        assert "name" not in {field.name for field in dataclasses.fields(kind)}

    def test_refuses_unknown_settings(self, protocol, name, kind):
        assert refusal(protocol, {"name": name, "zzz": 1}).startswith(f"place.zzz: no such setting of {name}; ")

    def test_refuses_text_for_numbers(self, protocol, name, kind):
        default = build(protocol, {"name": name} | needs(kind), "place")
        for field in dataclasses.fields(kind):
            if isinstance(getattr(default, field.name), (bool, int, float)):
                message = refusal(protocol, {"name": name} | needs(kind) | {field.name: "x"})
                assert message.startswith(f'place.{field.name}: "x" cannot be used; give ')

    def test_has_a_sentence_and_lists_its_settings(self, protocol, name, kind):
        [row] = [row for row in methods() if (row.family, row.name) == (FAMILIES[protocol].name, name)]
        assert row.meaning[:1].isupper()
        assert row.meaning.endswith((".", ")", "!", "?"))
        assert [setting.name for setting in row.settings] == [field.name for field in dataclasses.fields(kind)]


def test_names_without_settings_have_a_meaning():
    assert all(meaning for names in LISTS.values() for meaning in names.values())


@pytest.mark.parametrize(
    ("protocol", "given", "message"),
    [
        (Ranker, "miner", "x.name: unknown ranker 'miner'; did you mean \"linear\"?"),
        (Ranker, "zzz", f"x.name: unknown ranker 'zzz'; there is {RANKER_NAMES}"),
        (Ranker, {}, f"x.name: is missing; write one of {RANKER_NAMES}"),
        (Ranker, {"start_norm": 3}, 'x.name: is missing; start_norm can be set for "linear"'),
        (Ranker, {"hiden": 3}, f"x.name: is missing; write one of {RANKER_NAMES}"),
        (Ranker, {"name": 3}, f"x.name: 3 is not a name; write one of {RANKER_NAMES}"),
        (Ranker, 3, 'x: 3 is not a method; write a table such as { name = "linear" }'),
        (Ranker, {"name": "mlp", "hiden": 3}, 'x.hiden: no such setting of mlp; did you mean "hidden"?'),
        (Ranker, {"name": "mlp", "hidden": 2.5}, "x.hidden: 2.5 cannot be used; give an integer"),
        (Ranker, {"name": "mlp", "hidden": True}, "x.hidden: true cannot be used; give an integer"),
        (Aggregator, {"name": "mean", "weighted": 1}, "x.weighted: 1 cannot be used; give true or false"),
        (Aggregator, {"name": "none", "weighted": True}, "x.weighted: no such setting of none; it has no settings"),
        (Learner, {"name": "pdgd", "rate": True}, "x.rate: true cannot be used; give a number"),
        (Learner, {"name": "pdgd", "rate": 0}, "x: rate must be positive, such as 0.1 (got 0.0)"),
        (
            Learner,
            {"name": "pdgd", "rat": 1, "batch": "no", "ranker": {"name": "lin", "x": 1}},
            'x.rat: no such setting of pdgd; did you mean "rate"?\n'
            'x.batch: "no" cannot be used; give true or false\n'
            "x.ranker.name: unknown ranker 'lin'; did you mean \"linear\"?",
        ),
    ],
)
def test_mistakes_name_place_value_and_remedy(protocol, given, message):
    assert refusal(protocol, given, "x") == message


def test_whole_numbers_are_numbers():
    assert build(Learner, {"name": "pdgd", "rate": 3}, "x") == Pdgd(rate=3.0)
    assert build(Learner, {"name": "pdgd", "ranker": "mlp"}, "x") == Pdgd(ranker=Mlp())


def test_describe_names_every_setting():
    table = describe(Pdgd(ranker=Linear(start_norm=0.5), rate=0.2))
    assert table == {
        "name": "pdgd",
        "ranker": {"name": "linear", "start_norm": 0.5},
        "rate": 0.2,
        "batch": False,
        "lists": "drawn",
        "temperature": 1.0,
        "keep": 0.0,
        "clip_weights": 0.0,
        "clip_gradients": 0.0,
    }


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int | list[int], ["a"], 'x[0]: "a" cannot be used; give an integer'),
        (int | list[int], "a", 'x: "a" cannot be used; give an integer or give a list in brackets'),
        (tuple[float, ...], [1.0, "a"], 'x[1]: "a" cannot be used; give a number'),
    ],
)
def test_lists_with_a_bad_entry(hint, value, message):
    with pytest.raises(ValueError) as caught:
        checked(hint, value, "x")
    assert str(caught.value) == message


OUTSIDE = '''
from __future__ import annotations
from dataclasses import dataclass
from fedrank.types import Aggregator

@dataclass(frozen=True)
class Half:
    """Half of another rule's change."""

    inner: Aggregator
    share: float = 0.5  # of the change

    def __call__(self, arrived):
        return self.share * self.inner(arrived)

@dataclass(frozen=True)
class NoCall:
    """Nothing to call."""

class Plain:
    def __call__(self, arrived):
        return 0

class Outer:
    @dataclass(frozen=True)
    class Within:
        def __call__(self, arrived):
            return 0
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    (tmp_path / "outside_lab.py").write_text(OUTSIDE, encoding="utf-8")
    (tmp_path / "broken_lab.py").write_text("raise RuntimeError('half written')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("outside_lab", None)


@pytest.mark.usefixtures("outside")
class TestCodeOutsideThePackage:
    def test_needs_no_registration_and_survives_toml(self):
        method = build(Aggregator, {"name": "outside_lab:Half", "inner": "mean"}, "aggregator")
        assert (method.inner, method.share) == (Mean(), 0.5)
        assert name_of(method) == "outside_lab:Half"
        assert build(Aggregator, through_toml(method), "aggregator") == method

    def test_may_lie_in_another_class(self):
        method = build(Aggregator, "outside_lab:Outer.Within", "aggregator")
        assert build(Aggregator, through_toml(method), "aggregator") == method

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("outside_lab:Half", "a.inner: is missing; outside_lab:Half requires it"),
            ("outside_lab:NoCall", "a.name: 'outside_lab:NoCall' is not a valid aggregator; it lacks __call__"),
            (
                "outside_lab:Plain",
                "a.name: 'outside_lab:Plain' is not a dataclass; its fields would be the method's settings",
            ),
            (
                "outside_lab:Haf",
                "a.name: 'outside_lab:Haf' cannot be imported (module 'outside_lab' has no attribute 'Haf'); "
                "write module:Class",
            ),
            ("broken_lab:X", "a.name: 'broken_lab:X' cannot be imported (half written); write module:Class"),
            (":X", "a.name: ':X' cannot be imported (Empty module name); write module:Class"),
            (
                "no_lab.ideas:X",
                "a.name: 'no_lab.ideas:X' cannot be imported (No module named 'no_lab'); put the file next to the "
                "spec, or add its folder to PYTHONPATH",
            ),
            (
                "outside_lab.no:X",
                "a.name: 'outside_lab.no:X' cannot be imported (No module named 'outside_lab.no'; 'outside_lab' is not "
                "a package); write module:Class",
            ),
        ],
    )
    def test_mistakes(self, name, message):
        assert refusal(Aggregator, name, "a") == message

    def test_must_fit_the_family(self):
        message = refusal(Ranker, "outside_lab:Outer.Within", "r")
        expected = "is not a valid ranker; it lacks hidden, size, first, score"
        assert message == f"r.name: 'outside_lab:Outer.Within' {expected}"


def shown_methods(*asked):
    out = io.StringIO()
    show(about_methods(search(*asked)), Console(file=out, width=100))
    return out.getvalue()


def test_a_listing_names_everything():
    listing = shown_methods()
    for row in methods():
        assert row.name in listing
    assert "rate: float = 0.1  # learning rate η, constant" in listing
    assert "weighted: bool = true  # by interactions" in listing


def test_a_listing_of_one_family_or_one_method():
    rankers = shown_methods("ranker")
    assert "linear" in rankers
    assert "pdgd" not in rankers
    assert shown_methods("ranker", "mlp").split()[:2] == ["ranker", "mlp"]
    assert shown_methods("mlp") == shown_methods("ranker", "mlp")


def test_a_listing_of_something_unknown():
    with pytest.raises(ValueError, match=r"^no family or method is called 'rankr' .* did you mean \"ranker\"\?$"):
        shown_methods("rankr")
    with pytest.raises(ValueError, match=r"^unknown ranker 'mpl'; did you mean \"mlp\"\?$"):
        shown_methods("ranker", "mpl")


@pytest.mark.parametrize(
    ("word", "family", "name"),
    [
        ("fedavg", "aggregator", "mean"),
        ("fltrust", "aggregator", "trust"),
        ("fldetector", "aggregator", "reputation"),
        ("scaffold", "local", "scaffold"),
        ("fedprox", "local", "fedprox"),
        ("fedper", "local", "fedper"),
    ],
)
def test_a_method_is_found_by_what_its_paper_calls_it(word, family, name):
    assert (family, name) in [(row.family, row.name) for row in search(word)]
    assert name in shown_methods(word)
    assert len(search(word)) < 5

"""Mutated files are refused in a line, or say what they said: no crash, no hang, no silent change."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest

from fedrank.experiments.spec.source import read_spec
from tests.fuzz import child, specs
from tests.fuzz.__main__ import fuzz
from tests.fuzz.mutations import CHANGES, mutated
from tests.fuzz.readers import READERS, Reader

pytestmark = pytest.mark.process

pytest.importorskip("lightgbm")
pytest.importorskip("cryptography")


def test_no_reader_crashes_hangs_or_lies():
    found = fuzz(300)
    assert {name: one.wrong for name, one in found.items()} == {name: [] for name in READERS}
    for name, one in found.items():
        assert one.right.total() == 300, name
        assert one.right["refused"] >= 20, name  # so that it was tried at all


def forever(folder):
    while True:
        pass


CALLS = itertools.count()


def falls(folder):
    raise KeyError("weights")


def refuses(folder):
    raise ValueError("no")


@pytest.mark.parametrize(
    ("read", "sealed", "expected"),
    [
        (lambda folder: [1], True, "same"),
        (lambda folder: [2], True, "silent: it says something else, and nobody is told"),
        (lambda folder: [2], False, "other"),
        (lambda folder: [next(CALLS)], False, "silent: read twice, it says two things"),
        (lambda folder: None, True, "refused"),
        (refuses, True, "refused"),
        (falls, True, "crash: KeyError: 'weights' (test_fuzz.py:"),
        (forever, True, "hang"),
    ],
)
def test_what_goes_wrong_is_seen(tmp_path, monkeypatch, read, sealed, expected):
    def too_slow(*_):
        raise child.TooSlow

    monkeypatch.setattr(child, "SECONDS", 0.2)
    before = signal.signal(signal.SIGALRM, too_slow)
    try:
        assert child.outcome(Reader(lambda folder: None, read, sealed), tmp_path, child.digest([1])).startswith(
            expected
        )
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("content", [b"", b"a", b'{"weights": [1.0, 2.0]}\n' * 3])
def test_mutations_are_many_and_the_same_for_the_same_seed(content):
    some, same = ([mutated(content, np.random.default_rng(n)) for n in range(200)] for _ in range(2))
    assert some == same
    assert len(set(some)) > (100 if len(content) > 1 else 10)
    for change in CHANGES:
        assert isinstance(change(content, np.random.default_rng(1)), bytes)


@pytest.mark.long
def test_specs_with_wrong_values_are_refused_by_an_error_that_names_the_key():
    assert specs.faults(specs.drawn(0.00015)) == []


@pytest.mark.parametrize(
    ("spec", "key", "value"),
    [
        ("cs-f-ltr/fig-6b", "vary.x", {"name": 1}),
        ("quickstart", "baseline", ["x"]),
        ("quickstart", "rounds", 99999999999999999999),
        ("quickstart", "clients.count", 10**12),
        ("quickstart", "seeds", [99999999999999999999]),
        ("live/cranfield", "start", "ß" * 300),
        ("demo-privacy", "variants.published-noise.mechanism.epsilon", 1e308),
        ("hospitals", "variants.secure-aggregation.mechanism.clip", 1e308),
        ("hospitals", "variants.secure-aggregation.mechanism.noise", 1e308),
    ],
)
@pytest.mark.parametrize("by", ["file", "set"])
def test_a_spec_that_once_crashed_or_was_accepted(tmp_path, spec, key, value, by):
    assert specs.outcome(specs.Mutation(spec, key, value, by), tmp_path) == "refused"


@pytest.mark.parametrize(
    ("key", "value"),
    [("vary.x", 1), ("variants", [["x"]]), ("variants", [1]), ("baseline", ["x"]), ("claims", [{"higher": ["x"]}])],
)
def test_a_quick_form_with_wrong_values_is_refused(tmp_path, key, value):
    mutation = specs.Mutation("cs-f-ltr/fig-6b", f"quick.{key}", value, "file")
    assert specs.outcome(mutation, tmp_path) == "refused"


def test_a_number_beyond_all_floats_is_refused(tmp_path):
    assert specs.outcome(specs.Mutation("hospitals", "clients.count", 10**400, "file"), tmp_path) == "refused"


def test_a_spec_has_a_bounded_number_of_variants(tmp_path):
    values = list(range(1, 101))
    text = specs.spec_text("quickstart").split("[variants")[0].split("[[")[0].replace("baseline", "# baseline")
    text += f'\n[vary]\n"learner.rate" = {values}\nevaluate_every = {values}\n"clients.interactions" = {values}\n'
    (tmp_path / "many.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"vary: there are 1,000,000 variants \(maximum 10,000\)"):
        read_spec(tmp_path / "many.toml")

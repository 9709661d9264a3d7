"""Mutated files are refused in a line, or say what they said: no crash, no hang, no silent change."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest

from tests.fuzz import child
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

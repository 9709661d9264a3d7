"""The number parser and the line reader, compiled and as plain Python."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedrank.kernels import letor as kernel


def parse(text: str, reader=kernel.read_number) -> tuple[float, bool, int]:
    return reader(np.frombuffer(text.encode() + b"\n", np.uint8), 0)


digits = st.text("0123456789", max_size=30)
numbers = st.builds(
    lambda sign, whole, fraction, exponent: sign + whole + fraction + exponent,
    st.sampled_from(["", "-", "+"]),
    digits.filter(bool),
    st.one_of(st.just(""), digits.map(lambda text: "." + text)),
    st.one_of(st.just(""), st.integers(-400, 400).map(lambda power: f"e{power}")),
)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(numbers)
@example("1.00000005960464477539")  # half-way between two float32
@example("1.0000000596046448")
@example("0.1")
@example("9007199254740993")
@example("1e-45")
@example("7.0064923216240853e-46")  # half of the smallest float32
@example("340282356779733661637539395458142568447")
@example("1" + "0" * 400 + "e-400")
@example("0." + "0" * 100 + "1e101")
def test_a_number_is_exact_or_known_to_be_near_or_hard(text: str) -> None:
    value, exact, after = parse(text)
    truth = float(text)
    assert after == len(text)
    with np.errstate(over="ignore", under="ignore"):
        if exact:
            assert np.float32(value) == np.float32(truth)
        else:
            assert value == pytest.approx(truth, rel=9e-16, abs=0)
            assert kernel.needs_exact_rounding(value) or np.float32(value) == np.float32(truth)


def test_half_way_values_are_hard_and_others_are_not() -> None:
    # The next float32 after 1 is 1 + 2**-23: half-way lies 1 + 2**-24.
    assert kernel.needs_exact_rounding(1 + 2**-24)
    assert not kernel.needs_exact_rounding(1 + 2**-24 + 2**-40)
    assert not kernel.needs_exact_rounding(0.1)
    assert not kernel.needs_exact_rounding(1e39)


@pytest.mark.parametrize("text", ["", "-", "+", ".", "e5", "1e", "1e+", "-.e1", "x", "nan", "inf", "--1"])
def test_no_number(text: str) -> None:
    assert parse(text)[2] == -1


@pytest.mark.parametrize("text", ["0", "-1.5", "6.93128", "1e-05", "1.10895e+07", "12345678901234567890.5", ".5", "5."])
def test_uncompiled_number(text: str) -> None:
    assert parse(text, kernel.read_number.py_func) == parse(text)
    assert np.float32(parse(text)[0]) == np.float32(float(text))


def test_any_float32_comes_back_from_its_shortest_text() -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 3000, dtype=np.uint32)
    for value in bits.view(np.float32)[np.isfinite(bits.view(np.float32))]:
        parsed = parse(str(value))[0]
        assert struct.pack("f", parsed) == struct.pack("f", value) or kernel.needs_exact_rounding(parsed)


def test_uncompiled_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"# head\n2 qid:7 1:0.5 3:1e-05 # x\n\n0 qid:7 2:1\n1 qid:8\n"
    results = []
    for plain in (False, True):
        if plain:
            for name in (
                "is_space",
                "careful_digits",
                "read_number",
                "is_missing",
                "needs_exact_rounding",
                "same_bytes",
                "read_pairs",
            ):
                monkeypatch.setattr(kernel, name, getattr(kernel, name).py_func)
        reader = kernel.read_lines.py_func if plain else kernel.read_lines
        state = np.zeros(kernel.STATES, np.int64)
        state[kernel.LINE], state[kernel.FEWEST] = 1, 1000
        features, grades = np.zeros((4, 3), np.float32), np.zeros(4, np.int8)
        queries, hard = np.zeros((5, 4), np.int64), np.zeros((10, 5), np.int64)
        text, seen = np.frombuffer(bytearray(lines), np.uint8), np.zeros(4, np.int64)
        status = reader(text, len(lines), features, grades, seen, queries, hard, state, np.nan, 1000)
        assert status == kernel.DONE
        results.append((features.tolist(), grades.tolist(), queries.tolist(), state.tolist()))
    assert results[0] == results[1]
    features, grades, queries, state = results[0]
    assert features == [[0.5, 0, float(np.float32(1e-05))], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert grades == [2, 0, 1, 0]
    assert [query[:2] for query in queries[:2]] == [[0, 2], [2, 5]]
    assert state[kernel.ROW] == 3
    assert (state[kernel.HIGHEST], state[kernel.FEWEST], state[kernel.LINE]) == (3, 0, 6)

"""Elementary functions against NumPy in extended precision, and by hand where their values are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrank.kernels import elementary
from fedrank.kernels.elementary import exponentials, logarithms, sigmoids, turns

RNG = np.random.default_rng(1)
SPREAD = np.concatenate([RNG.random(20_000), 1 - 1e-6 * RNG.random(5_000), 10.0 ** RNG.uniform(-300, 300, 5_000)])


def test_exponentials_equal_the_library():
    x = np.concatenate([np.linspace(-700, 700, 20_001), np.linspace(-1, 1, 2001), [0.0]])
    out = np.empty_like(x)
    exponentials(x.copy(), len(x), out)
    assert np.abs(out / np.exp(x.astype(np.longdouble)) - 1).max() < 6e-16
    assert out[-1] == 1.0


def test_exponentials_stay_finite_beyond_their_range():
    out = np.empty(4)
    exponentials(np.array([-1e300, -800.0, 800.0, 1e300]), 4, out)
    assert np.isfinite(out).all()
    assert (out[:2] > 0).all()


def test_logarithms_equal_the_library_to_two_units_of_the_last_place():
    out = np.empty_like(SPREAD)
    logarithms(SPREAD.copy(), len(SPREAD), out)
    true = np.log(SPREAD.astype(np.longdouble))
    assert (np.abs(out - true) <= 2 * np.spacing(np.abs(true).astype(float))).all()
    assert np.array_equal(out, elementary.log_each(SPREAD))


def test_single_functions_agree_with_the_library():
    x = np.concatenate([RNG.uniform(-740, 709, 5_000), RNG.uniform(-1, 1, 2_000)])
    assert elementary.exp_each(x) == pytest.approx(np.exp(x), rel=6e-16, abs=5e-324)
    small = 10.0 ** RNG.uniform(-20, 10, 5_000)
    assert elementary.log1p_each(small) == pytest.approx(np.log1p(small), rel=1e-15)
    assert [elementary.log2(x) for x in (3.0, 5.5, 1e300)] == pytest.approx([math.log2(x) for x in (3.0, 5.5, 1e300)])
    powers = [(2.5, 3.0), (7.0, -2.0), (3.0, 0.5), (3.0, -1.5), (1.7, 0.3), (0.999, 5000.0)]
    assert [elementary.power(*each) for each in powers] == pytest.approx([a**b for a, b in powers], rel=1e-13)


def test_where_values_are_exact_they_are():
    assert [elementary.log2(float(x)) for x in (1, 2, 4, 1024)] == [0, 1, 2, 10]
    assert [elementary.exp(x) for x in (0.0, -800.0, 800.0, -np.inf)] == [1.0, 0.0, np.inf, 0.0]
    assert [elementary.log(x) for x in (1.0, 0.0, np.inf)] == [0.0, -np.inf, np.inf]
    assert [elementary.power(4.0, x) for x in (0.5, -0.5, 3.0, 0.0)] == [2.0, 0.5, 64.0, 1.0]
    assert elementary.discounts(4)[[0, 2]].tolist() == [1.0, 0.5]
    assert elementary.log1p(1e-20) == 1e-20


@pytest.mark.parametrize("function", [elementary.exp, elementary.log, elementary.log1p])
def test_no_number_stays_no_number(function):
    assert math.isnan(function(np.nan))


def test_turns_go_round_the_circle():
    x = np.concatenate([RNG.random(20_000), [0.0, 0.125, 0.25, 0.5, 0.75, 0.875]])
    cosines, sines = np.empty_like(x), np.empty_like(x)
    turns(x.copy(), len(x), cosines, sines)
    angle = 2 * np.longdouble("3.14159265358979323846264338327950288") * x
    assert np.abs(cosines - np.cos(angle)).max() < 2.5e-16
    assert np.abs(sines - np.sin(angle)).max() < 2.5e-16
    assert cosines[[-6, -4, -3, -2]].tolist() == [1, 0, -1, 0]
    assert sines[[-6, -4, -3, -2]].tolist() == [0, 1, 0, -1]


def test_sigmoids_equal_the_formula():
    x = np.concatenate([np.linspace(-80, 80, 4001), [0.0, -1e30, 1e30]]).astype(np.float32)
    out = np.empty_like(x)
    sigmoids(x.copy(), len(x), out)
    expected = 1 / (1 + np.exp(-np.clip(x.astype(float), -80, 80)))
    assert np.abs(out / expected - 1).max() < 4e-7
    assert out[4001] == 0.5


def test_functions_of_arrays_take_any_order_of_elements():
    table = np.asfortranarray(RNG.random((3, 4)) + 0.5)
    assert elementary.exp_each(table) == pytest.approx(np.exp(table), rel=1e-15)
    assert elementary.power_each(table, -0.7) == pytest.approx(table**-0.7, rel=1e-15)
    assert elementary.power_each([4.0, 9.0], -0.5).tolist() == [1 / 2, 1 / 3]

"""Clipping: no contribution is longer than what the noise is made for, whatever a client sends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedrank.privacy.clip import contributions, finest_step, weights_of

ANY_FLOAT32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
CLIPS = st.floats(1e-6, 1e6)


def length(steps: np.ndarray, norm: int) -> np.ndarray:
    return np.linalg.norm(steps.astype(np.float64), ord=norm, axis=1)


def test_by_hand():
    updates = np.array([[3, 4], [0.3, 0.4], [np.nan, 1], [np.inf, 0], [3, 4]], dtype=np.float32)
    weights = np.array([1, 1, 1, 1, 0.5])
    # Lengths 5 and 0.5: to 1 in steps of 1/100; then half of the first.
    steps = contributions(updates, weights, clip=1.0, norm=2, step=0.01)
    assert steps.tolist() == [[60, 80], [30, 40], [0, 0], [0, 0], [30, 40]]
    # In L1 the lengths are 7 and 0.7.
    steps = contributions(updates, weights, clip=1.0, norm=1, step=0.01)
    assert steps.tolist() == [
        [round(300 / 7), round(400 / 7)],
        [30, 40],
        [0, 0],
        [0, 0],
        [round(150 / 7), round(200 / 7)],
    ]
    assert steps.dtype == np.int64


def test_minus_infinity_and_numbers_whose_squares_overflow_float32():
    large = np.float32(3e38)
    updates = np.array([[-np.inf, 1], [large, large], [large, -large]], dtype=np.float32)
    steps = contributions(updates, np.ones(3), clip=1.0, norm=2, step=2.0**-24)
    expected = round(2**24 / math.sqrt(2))
    assert steps.tolist() == [[0, 0], [expected, expected], [expected, -expected]]


@settings(deadline=None, max_examples=100)
@given(
    arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=6), elements=ANY_FLOAT32),
    CLIPS,
    st.sampled_from([1, 2]),
    st.floats(0, 1),
    st.sampled_from([1.0, 2.0**8, 2.0**16]),
)
def test_no_contribution_is_longer_than_is_claimed(updates, clip, norm, weight, coarser):
    """Weight x clip, and at most half a step in every coordinate."""
    step = finest_step(clip) * coarser
    steps = contributions(updates, np.full(len(updates), weight), clip, norm, step)
    spread = math.sqrt(updates.shape[1]) if norm == 2 else updates.shape[1]
    assert (length(steps, norm) <= (weight * clip / step + spread / 2) * (1 + 1e-12)).all()
    broken = ~np.isfinite(updates).all(axis=1)
    assert not steps[broken].any()
    # Whole numbers of steps survive four bytes a parameter.
    sent = (steps * step).astype(np.float32)
    assert np.array_equal(np.rint(sent.astype(np.float64) / step).astype(np.int64), steps)


@settings(deadline=None, max_examples=50)
@given(
    arrays(np.float32, (3, 4), elements=st.floats(-0.25, 0.25, width=32)), st.sampled_from([1, 2]), st.floats(1, 1e3)
)
def test_short_updates_are_only_rounded(updates, norm, clip):
    step = finest_step(clip)
    steps = contributions(updates, np.ones(3), clip, norm, step)
    assert np.abs(steps * step - updates).max() <= step / 2 * (1 + 1e-9)


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, (2, 5), elements=st.floats(-10, 10, width=32)), st.floats(0.1, 10))
def test_shortening_brings_nobody_further_apart(updates, clip):
    """In L2: what one interaction changes stays bounded; half a step for each of the two and every coordinate."""
    step = finest_step(clip)
    one, other = contributions(updates, np.ones(2), clip, 2, step) * step
    before = np.linalg.norm(updates[0].astype(np.float64) - updates[1])
    assert np.linalg.norm(one - other) <= before + step * math.sqrt(5)


@settings(deadline=None, max_examples=50)
@given(arrays(np.float32, (2, 3), elements=st.floats(-10, 10, width=32)), st.floats(0.1, 10))
def test_shortening_in_l1_brings_nobody_more_than_twice_as_far_apart(updates, clip):
    step = finest_step(clip)
    one, other = contributions(updates, np.ones(2), clip, 1, step) * step
    before = np.abs(updates[0].astype(np.float64) - updates[1]).sum()
    assert np.abs(one - other).sum() <= 2 * before + step * 3


def test_in_l1_it_really_can_be_twice_as_far():
    """(1, 0) and (1, x) become (1, 0) and (1, x) / (1 + x): apart by 2x / (1 + x)."""
    x = 1 / 64
    one, other = contributions(np.array([[1, 0], [1, x]], dtype=np.float32), np.ones(2), 1.0, 1, 2.0**-24) * 2.0**-24
    assert np.abs(one - other).sum() == pytest.approx(2 * x / (1 + x), rel=1e-5)


@pytest.mark.parametrize("clip", [1.0, 0.75, 3.0, 1e-3, float(np.nextafter(1024, 2000)), float(np.nextafter(1, 0))])
def test_the_finest_step_is_a_power_of_two_that_fits_four_bytes(clip):
    step = finest_step(clip)
    assert math.frexp(step)[0] == 0.5
    assert 2**23 < clip / step <= 2**24 * (1 + 2**-50)


def test_weights_by_hand():
    sizes = np.array([0, 1, 3, 4, 5, 1000])
    assert weights_of(sizes, 4).tolist() == [0, 1 / 4, 3 / 4, 1, 1, 1]
    assert weights_of(sizes, 1).tolist() == [0, 1, 1, 1, 1, 1]

"""Compiled clipping against the same in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.kernels.clip import add_steps, clip_to_grid


def in_numpy(updates, weights, clip, norm, step):
    wide = updates.astype(np.float64)
    lengths = np.linalg.norm(wide, ord=norm, axis=1)
    wide[~np.isfinite(lengths)] = 0.0
    lengths[~np.isfinite(lengths)] = 0.0
    return wide * (np.minimum(1.0, clip / np.maximum(lengths, 1e-300)) * weights)[:, None] / step


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("compiled", [True, False])
def test_rows_are_shortened_weighed_and_rounded(norm, compiled):
    rng = np.random.default_rng(3)
    updates = (rng.normal(size=(40, 7)) * rng.choice([1e-6, 0.1, 1.0, 1e30], size=(40, 1))).astype(np.float32)
    updates[3, 2], updates[4, 0], updates[5] = np.nan, -np.inf, 0.0
    weights = rng.random(40)
    out = np.full((40, 7), 99, dtype=np.int64)
    (clip_to_grid if compiled else clip_to_grid.py_func)(updates, weights, 0.5, norm, 2.0**-20, out)
    wanted = in_numpy(updates, weights, 0.5, norm, 2.0**-20)
    assert np.abs(out - wanted).max() <= 0.5 + 1e-6
    assert not out[3:6].any()
    assert np.linalg.norm(out * 2.0**-20, ord=norm, axis=1).max() <= 0.5 + 2.0**-20 * 7 / 2


@pytest.mark.parametrize("compiled", [True, False])
def test_steps_add_up_exactly(compiled):
    steps = np.array([[2**24, -1, 3], [2**24, 5, -(2**24)]], dtype=np.int64)
    total = np.array([1, 0, 0], dtype=np.int64)
    (add_steps if compiled else add_steps.py_func)((steps * 0.25).astype(np.float32), 0.25, total)
    assert total.tolist() == [2**25 + 1, 4, 3 - 2**24]

from __future__ import annotations

import numpy as np

from fedrank.kernels.exponential import exponential, sigmoids


def test_exponential_equals_the_library():
    x = np.concatenate([np.linspace(-700, 700, 20_001), np.linspace(-1, 1, 2001), [0.0]])
    out = np.empty_like(x)
    exponential(x.copy(), len(x), out)
    assert np.abs(out / np.exp(x) - 1).max() < 2e-14
    assert out[-1] == 1.0


def test_exponential_stays_finite_beyond_its_range():
    out = np.empty(4)
    exponential(np.array([-1e300, -800.0, 800.0, 1e300]), 4, out)
    assert np.isfinite(out).all()
    assert (out[:2] > 0).all()


def test_sigmoids_equal_the_formula():
    x = np.concatenate([np.linspace(-80, 80, 4001), [0.0, -1e30, 1e30]]).astype(np.float32)
    out = np.empty_like(x)
    sigmoids(x.copy(), len(x), out)
    expected = 1 / (1 + np.exp(-np.clip(x.astype(float), -80, 80)))
    assert np.abs(out / expected - 1).max() < 4e-7
    assert out[4001] == 0.5

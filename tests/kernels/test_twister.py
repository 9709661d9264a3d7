"""The generator of published code against NumPy's own `RandomState`, draw by draw."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.kernels import twister

SEEDS = [0, 1, 7, 123_456_789, 2**32 - 1]


def state_of(seed):
    state = np.empty(twister.STATE, dtype=np.int64)
    twister.reseed(state, seed)
    return state


@pytest.mark.parametrize("seed", SEEDS)
def test_queries_and_uniforms_are_those_of_numpy(seed):
    numpy, state = np.random.RandomState(seed), state_of(seed)
    for i in range(1500):  # more than one block of 624 words
        count = [1, 2, 470, 512, 1000, 7][i % 6]
        assert twister.next_below(state, count) == numpy.randint(0, count)
        assert twister.next_uniform(state) == numpy.uniform()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [46, 701])
def test_normals_are_those_of_numpy(seed, size):
    drawn = np.empty(size)
    twister.next_normals(state_of(seed), drawn)
    assert drawn == pytest.approx(np.random.RandomState(seed).normal(size=size), rel=1e-14)

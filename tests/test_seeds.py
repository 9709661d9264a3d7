from __future__ import annotations

import numpy as np
from scipy import stats

from fedrank.kernels.chance import stream, uniform
from fedrank.seeds import Chance, key_for, rng_for


def test_names_decide():
    assert key_for(1, "learn", 2) == key_for(1, "learn", 2) == Chance(1, 2).key("learn")
    keys = {int(key_for(seed, purpose, r)) for seed in range(5) for purpose in ("learn", "split") for r in range(50)}
    assert len(keys) == 5 * 2 * 50
    assert rng_for(1, "a").integers(10**9) == rng_for(1, "a").integers(10**9) != rng_for(1, "b").integers(10**9)


def test_key_is_the_same_on_every_machine():
    assert int(key_for(1, "learn", 7)) == 0xC4BBA631880D97D6


def test_draws_are_uniform_within_and_across_streams():
    within = [uniform(np.uint64(stream(np.uint64(5), 3)), i) for i in range(20_000)]
    across = [uniform(np.uint64(stream(np.uint64(5), client)), 0) for client in range(20_000)]
    for draws in (within, across):
        assert min(draws) > 0
        assert max(draws) < 1
        assert stats.kstest(draws, "uniform").pvalue > 1e-6
    pairs = np.corrcoef(within[:-1], within[1:])[0, 1]
    assert abs(pairs) < 0.04

"""Loops behind the robust aggregators, against slow versions and on extreme inputs."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.kernels.robust import (
    best_split,
    curvature,
    curvature_product,
    distances_from_products,
    distances_of_few,
    geometric_median,
    means_around_medians,
    sort_few,
)
from tests.oracles import robust as oracle


def random(*shape, seed=1, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def by_products(updates, squared=False):
    wide = updates.astype(np.float64)
    out = np.empty((len(updates), len(updates)))
    distances_from_products(updates, wide @ wide.T, squared, out)
    return out


def one_by_one(updates, squared=False):
    out = np.empty((len(updates), len(updates)))
    distances_of_few(updates, squared, out)
    return out


INPUTS = {
    "random": random(20, 7),
    "identical": np.tile(random(1, 7, scale=1e3), (20, 1)),
    "nearly identical": random(1, 7, scale=1e3) + random(20, 7, scale=1e-3),
    "far from zero": np.float32(1e6) + random(20, 7),
    "one large column": np.concatenate([np.full((20, 1), 1e6, dtype=np.float32), random(20, 6, scale=1e-3)], axis=1),
    "huge outliers": np.concatenate([random(15, 7), random(5, 7, scale=1e30)]),
    "huge and alike": np.tile(random(1, 7, scale=1e38), (20, 1)) * np.linspace(0.99, 1, 20, dtype=np.float32)[:, None],
    "tiny": random(20, 7, scale=1e-38),
    "zero": np.zeros((20, 7), dtype=np.float32),
}


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("way", [one_by_one, by_products])
def test_distances_are_exact_symmetric_and_finite(way, name, squared):
    updates = INPUTS[name]
    found = way(updates, squared)
    rows = updates.tolist()
    for i, j in np.ndindex(found.shape):
        expected = oracle.squared_distance(rows[i], rows[j])
        if i == j:
            assert found[i, j] == np.inf
        elif expected == 0:
            assert found[i, j] == 0
        else:
            assert found[i, j] == pytest.approx(expected if squared else math.sqrt(expected), rel=1e-9, abs=0)
    assert np.array_equal(found, found.T)


def test_distances_may_replace_the_products():
    updates = random(30, 5)
    wide = updates.astype(np.float64)
    products = wide @ wide.T
    expected = by_products(updates)
    distances_from_products(updates, products, False, products)
    assert np.array_equal(products, expected)


@given(st.lists(st.floats(-1e30, 1e30), min_size=0, max_size=40))
@settings(max_examples=30, deadline=None)
def test_sorting_a_few(values):
    array = np.array(values, dtype=np.float64)
    sort_few(array)
    assert array.tolist() == sorted(values)


def test_around_the_median_by_hand():
    columns = np.array([[0, 1, 4, 5, 6], [1, 1, 1, 1, 9], [0, 2, 4, 6, 8]], dtype=np.float32)
    out = np.empty(3)
    means_around_medians(columns, 3, out)
    assert out.tolist() == [(4 + 5 + 6) / 3, 1, (2 + 4 + 6) / 3]
    means_around_medians(columns, 2, out)
    assert out.tolist() == [(4 + 5) / 2, 1, (2 + 4) / 2]  # 2 and 6 are as near to 4: the lower one


@given(st.integers(1, 12), st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_around_the_median_takes_the_nearest(count, seed):
    rng = np.random.default_rng(seed)
    columns = np.sort(rng.integers(-5, 6, size=(4, 12)).astype(np.float32), axis=1)
    out = np.empty(4)
    means_around_medians(columns, count, out)
    for row, value in zip(columns.tolist(), out, strict=True):
        middle = oracle.median_of(row)
        nearest = sorted(row, key=lambda x: (abs(x - middle), x))[:count]
        assert value == pytest.approx(sum(nearest) / count)


def settle(updates, tolerance=1e-10, iterations=5000):
    point = np.median(updates, axis=0).astype(np.float64)
    geometric_median(updates, tolerance, iterations, point)
    return point


def test_geometric_median_of_three_by_hand():
    # The Fermat point of an equilateral triangle is its centre; with an angle above 120 degrees it is that corner.
    triangle = np.array([[0, 0], [1, 0], [0.5, math.sqrt(0.75)]], dtype=np.float32)
    assert settle(triangle) == pytest.approx([0.5, math.sqrt(0.75) / 3], rel=1e-6)
    flat = np.array([[0, 0], [2, 0], [1, 0.1]], dtype=np.float32)
    assert settle(flat) == pytest.approx([1, 0.1], abs=1e-4)
    line = np.array([[1], [2], [4], [1000], [-7]], dtype=np.float32)
    assert settle(line).tolist() == [2.0]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_near_the_geometric_median_is_better(seed):
    updates = random(9, 4, seed=seed)
    updates[0] *= 50
    point = settle(updates)
    rows = updates.tolist()
    best = oracle.sum_of_distances(rows, point.tolist())
    rng = np.random.default_rng(seed)
    for length in (1e-3, 1e-1, 10):
        for _ in range(20):
            other = point + length * rng.standard_normal(4)
            assert oracle.sum_of_distances(rows, other.tolist()) > best


def test_geometric_median_leaves_an_update_that_is_not_the_answer():
    updates = np.array([[0, 0], [10, 1], [10, -1], [11, 0]], dtype=np.float32)
    point = np.zeros(2)
    steps = geometric_median(updates, 1e-10, 5000, point)
    assert steps > 1
    assert point == pytest.approx([10, 0], abs=1e-4)  # where the lines between opposite corners cross


def test_a_step_away_from_an_update_by_hand():
    # One update here, three at distance 1: they pull with 3, it holds with 1, so the step is a third shorter.
    point = np.zeros(1)
    geometric_median(np.array([[0], [1], [1], [1]], dtype=np.float32), 1e-10, 1, point)
    assert point.tolist() == [pytest.approx((1 - 1 / 3) * 1)]


def matrix_of(steps, bends, first=0, flattest=0.01):
    up, down = np.empty_like(steps), np.empty_like(steps)
    scale, used = curvature(steps, bends, first, flattest, up, down)
    size = steps.shape[1]
    columns = np.empty((size, size))
    for p in range(size):
        curvature_product(np.eye(size)[p], scale, up, down, used, columns[p])
    return columns.T, used


@pytest.mark.parametrize("seed", range(4))
def test_curvature_is_the_dense_update(seed):
    rng = np.random.default_rng(seed)
    steps = rng.standard_normal((6, 4))
    bends = -steps @ np.diag([0.2, 1.0, 2.0, 5.0]) + 0.1 * rng.standard_normal((6, 4))
    bends[2] *= -1  # no curvature of a hill: left out
    found, used = matrix_of(steps, bends, first=1)
    expected = oracle.bfgs(
        [(s, [-x for x in y]) for s, y in zip(steps.tolist(), bends.tolist(), strict=True)][1:], 0.01
    )
    assert used == 4
    assert found == pytest.approx(np.array(expected), rel=1e-8, abs=1e-10)
    newest = bends[-1]
    assert found @ steps[-1] == pytest.approx(-newest)  # the secant equation


def test_curvature_of_nothing_is_none():
    found, used = matrix_of(np.zeros((3, 4)), np.zeros((3, 4)))
    assert used == 0
    assert not found.any()


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=12), st.sampled_from([0.0, 1e6]))
@settings(max_examples=40, deadline=None)
def test_best_split_tries_every_cut(values, shift):
    array = np.sort(np.array(values, dtype=np.float64)) / 8 + shift
    cut, one, two = best_split(array)
    upper, expected_one, expected_two = oracle.best_two_clusters(array.tolist())
    assert one == pytest.approx(expected_one, abs=1e-9)
    assert two == pytest.approx(expected_two, abs=1e-9)
    if len(set(values)) == 2:
        assert len(values) - cut == upper == sum(value == max(values) for value in values)


UNCOMPILED = """
import sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from fedrank.federated.aggregators import AGGREGATORS
from fedrank.types import Messages

rng = np.random.default_rng(1)
out = {}
for n in (9, 50):
    updates = rng.standard_normal((n, 3)).astype(np.float32)
    updates[0] *= 1e30
    arrived = Messages(updates, np.ones(n, int), np.arange(n), np.zeros(3), np.zeros(n), root=updates[1])
    for name in sorted(set(AGGREGATORS) - {"none", "rankguard-style", "reputation"}):  # the second needs clicks
        out[f"{name}-{n}"] = AGGREGATORS[name]()(arrived)
rule = AGGREGATORS["reputation"](window=2)
state = rule.first(9, 3)
for _ in range(5):
    updates = rng.standard_normal((9, 3)).astype(np.float32)
    arrived = Messages(updates, np.ones(9, int), np.arange(9), rng.random(3), None)
    out["reputation"], state = rule(arrived, state)
np.savez(sys.argv[1], **out, **state)
"""


@pytest.mark.process
def test_uncompiled_equals_compiled(tmp_path):
    results = []
    for disable in ("0", "1"):
        file = tmp_path / f"{disable}.npz"
        environment = os.environ | {"NUMBA_DISABLE_JIT": disable}
        subprocess.run([sys.executable, "-c", UNCOMPILED, str(file)], env=environment, check=True)
        results.append(np.load(file))
    compiled, plain = results
    for name in plain.files:
        assert compiled[name] == pytest.approx(plain[name], rel=1e-9, abs=1e-12, nan_ok=True), name

"""Sums in a fixed order: to the bit what their plain description says, and near what exact arithmetic gives."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

from fedrank import kernels
from fedrank.kernels.compile import compiled
from fedrank.kernels.lanes import dot, squared_distance, sum_of, wide_dot


def lanes_by_hand(terms):
    """Lane j adds every eighth term from j on; lanes are folded in halves; the rest follows one by one."""
    whole = len(terms) // 8 * 8
    lanes = [terms.dtype.type(0)] * 8
    for i in range(whole):
        lanes[i % 8] += terms[i]
    while len(lanes) > 1:
        lanes = [a + b for a, b in zip(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :], strict=True)]
    total = lanes[0]
    for i in range(whole, len(terms)):
        total += terms[i]
    return total


@compiled()
def dot_of(a, b):
    return dot(a, b)


@compiled()
def sum_of_all(a):
    return sum_of(a)


@compiled()
def distance_of(a, b):
    return squared_distance(a, b)


@compiled()
def wide_dot_of(a, b):
    return wide_dot(a, b)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 46, 136])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_sums_in_lanes_to_the_bit(size, kind):
    rng = np.random.default_rng(size)
    a, b = rng.standard_normal((2, size)).astype(kind)
    assert dot_of(a, b) == lanes_by_hand(a * b)
    assert sum_of_all(a) == lanes_by_hand(a)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    assert wide_dot_of(a, b) == lanes_by_hand(wide_a * wide_b)
    assert wide_dot_of(a, wide_b) == lanes_by_hand(wide_a * wide_b)
    assert distance_of(a, b) == lanes_by_hand((wide_a - wide_b) ** 2)


def test_the_order_of_a_sum_shows():
    """Otherwise the test above would hold for any order."""
    terms = np.float32([1e8, 1, 1, 1, 1, 1, 1, 1, -1e8, 1, 1, 1, 1, 1, 1, 1])
    in_order = np.float32(0)
    for term in terms:
        in_order += term
    assert lanes_by_hand(terms) == 14 != in_order
    assert dot_of(terms, np.ones_like(terms)) == lanes_by_hand(terms)


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("others", [1, 16, 17, 40])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_products_add_up_in_order(rows, others, kind):
    rng = np.random.default_rng(rows + others)
    a, b = rng.standard_normal((rows, 13)).astype(kind), rng.standard_normal((others, 13)).astype(kind)
    expected = np.zeros((rows, others), dtype=kind)
    for k in range(13):
        expected += a[:, k, None] * b[:, k]
    found = kernels.sums.products(a, b)
    assert found.dtype == kind
    np.testing.assert_array_equal(found, expected)
    lower = np.tril_indices(rows, m=others)
    np.testing.assert_array_equal(kernels.sums.products(a, b, lower=True)[lower], expected[lower])


def test_products_read_what_may_not_be_written_and_lies_apart():
    a = np.arange(24.0).reshape(4, 6)
    a.flags.writeable = False
    assert np.array_equal(kernels.sums.products(a[:, ::2], np.eye(3)), a[:, ::2])


def test_lengths_and_weighted_sums():
    rows = np.array([[3, 4], [0, 0], [5, 12]], np.float32)
    assert kernels.sums.lengths(rows).tolist() == [5, 0, 13]
    assert kernels.sums.length(rows[2]) == 13
    assert kernels.sums.inner(rows[0], rows[2]) == 63
    assert kernels.sums.weighted_sum(np.array([2, 9, 1]), rows).tolist() == [11, 20]


def test_arrays_that_are_not_contiguous_are_refused():
    """Their elements would be looked for in the wrong places."""
    if numba.config.DISABLE_JIT:
        return  # plain Python reads them as they are
    apart = np.arange(32.0)[::2]
    with pytest.raises(TypingError, match="is not contiguous"):
        kernels.sums.length(apart)
    assert kernels.sums.length(np.ascontiguousarray(apart)) == np.sqrt(float((apart**2).sum()))

"""Products of vectors and matrices in a fixed order, with the same bits on every CPU, unlike those of libraries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.compile import compiled
from fedrank.kernels.lanes import COLUMNS, ROWS, strip, tile, wide_dot


@compiled()
def inner(a, b) -> float:
    """Sum of a[i] x b[i] in double precision."""
    return wide_dot(a, b)


@compiled()
def length(vector) -> float:
    """Euclidean norm, in double precision."""
    return math.sqrt(wide_dot(vector, vector))


@compiled()
def lengths(rows) -> NDArray[np.float64]:
    """Euclidean norm of each row."""
    out = np.empty(len(rows))
    for i in range(len(rows)):
        out[i] = math.sqrt(wide_dot(rows[i], rows[i]))
    return out


@compiled()
def add_rows(weights, rows, out):
    """out[p] += the sum of weights[i] x rows[i, p], row by row, in double precision."""
    for i in range(len(rows)):
        weight, row = np.float64(weights[i]), rows[i]
        for p in range(len(row)):
            out[p] += weight * np.float64(row[p])


@compiled()
def fill_products(a, b, lower, out):
    """out[i, j] = a[i] . b[j], summed in the order of their elements; `b` has a multiple of 16 rows.

    With `lower`, values above the diagonal are unspecified.
    """
    packed = np.empty((a.shape[1], COLUMNS), dtype=a.dtype)
    whole = len(a) - len(a) % ROWS
    for column in range(0, len(b), COLUMNS):
        for j in range(COLUMNS):
            for k in range(a.shape[1]):
                packed[k, j] = b[column + j, k]
        first = column if lower else 0
        for row in range(first, whole, ROWS):
            tile(a, packed, row, out, column)
        for row in range(max(first, whole), len(a)):
            strip(a, packed, row, out, column)


def weighted_sum(weights: NDArray[Any], rows: NDArray[Any]) -> NDArray[np.float64]:
    """weights [n] x rows [n, parameters] -> [parameters]."""
    total = np.zeros(rows.shape[1])
    add_rows(weights, rows, total)
    return total


def products(a: NDArray[Any], b: NDArray[Any], lower: bool = False) -> NDArray[Any]:
    """a [n, k] x b [m, k] -> [n, m], as a @ b.T, both of one floating type; with `lower` only its lower half."""
    rows = -(-len(b) // COLUMNS) * COLUMNS
    padded = np.zeros((rows, b.shape[1]), dtype=b.dtype)
    padded[: len(b)] = b
    out = np.empty((len(a), rows), dtype=a.dtype)
    fill_products(np.ascontiguousarray(a), padded, lower, out)
    return out[:, : len(b)]

"""Sums in eight lanes: as fast as a compiler's reordering, and with the same bits on every CPU.

A compiler may reorder a sum to fit its vectors, and the last bits then depend on the vector width. Here the order is
fixed: lane j adds every eighth term from j on, the lanes are folded in halves, and the remainder is added one by one. A
CPU with wider or narrower vectors does the same additions. Products are rounded before they are added: there are no
fused multiply-adds, which not every CPU has.

Each function has a plain Python version, which runs uncompiled; `_vectors` writes the same as vector instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.errors import TypingError
from numba.extending import intrinsic

LANES = 8
ROWS = 4  # of a tile: their sums fit into the registers of most CPUs
COLUMNS = 16  # of a tile, in two vectors
_INTEGER = ir.IntType(64)
_config: Any = numba.config


def _vectors(write: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the decorated function, or the instructions of `write` if kernels are compiled."""

    def decorate(plain: Callable[..., Any]) -> Callable[..., Any]:
        return plain if _config.DISABLE_JIT else intrinsic(write)

    return decorate


class _Array:
    """A contiguous array inside a compiled function."""

    def __init__(self, context: Any, builder: Any, kind: Any, value: Any):
        if kind.layout != "C":  # addresses are computed from shapes only
            raise TypingError(f"{kind} is not contiguous; pass np.ascontiguousarray(...)")
        self.builder, self.real = builder, context.get_value_type(kind.dtype)
        self.vector = ir.VectorType(self.real, LANES)
        made = context.make_array(kind)(context, builder, value)
        self.data, self.shape = made.data, cgutils.unpack_tuple(builder, made.shape)

    def at(self, *place: Any) -> Any:
        """Address of an element."""
        flat = place[0]
        for index, size in zip(place[1:], self.shape[1:], strict=True):
            flat = self.builder.add(self.builder.mul(flat, size), index)
        return self.builder.gep(self.data, [flat])

    def one(self, *place: Any) -> Any:
        return self.builder.load(self.at(*place))

    def eight(self, *place: Any) -> Any:
        """Eight elements from an index on."""
        loaded = self.builder.load(self.builder.bitcast(self.at(*place), self.vector.as_pointer()))
        loaded.align = 1
        return loaded


def _widened(builder: Any, value: Any) -> Any:
    """A float32, or a vector of them, in double precision."""
    kind = value.type
    if isinstance(kind, ir.VectorType):
        return value if kind.element == ir.DoubleType() else builder.fpext(value, ir.VectorType(ir.DoubleType(), LANES))
    return value if kind == ir.DoubleType() else builder.fpext(value, ir.DoubleType())


def _sum(builder: Any, count: Any, real: Any, eight: Callable[[Any], Any], one: Callable[[Any], Any]) -> Any:
    """The sum of `count` terms in the order of this module; `eight` and `one` return terms from an index on."""
    vector = ir.VectorType(real, LANES)
    lanes = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * LANES))
    whole = builder.and_(count, _INTEGER(-LANES))
    with cgutils.for_range_slice(builder, _INTEGER(0), whole, _INTEGER(LANES)) as (place, _):
        builder.store(builder.fadd(builder.load(lanes), eight(place)), lanes)
    folded, width = builder.load(lanes), LANES
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(folded, folded, ir.Constant(ir.VectorType(ir.IntType(32), width), list(half)))
            for half in (range(width), range(width, 2 * width))
        ]
        folded = builder.fadd(*halves)
    total = cgutils.alloca_once_value(builder, builder.extract_element(folded, ir.IntType(32)(0)))
    with cgutils.for_range_slice(builder, whole, count, _INTEGER(1)) as (place, _):
        builder.store(builder.fadd(builder.load(total), one(place)), total)
    return builder.load(total)


def _in_lanes(terms: Any) -> Any:
    """Like `_sum`, in plain Python."""
    whole = len(terms) - len(terms) % LANES
    lanes = np.zeros(LANES, dtype=terms.dtype)
    for place in range(0, whole, LANES):
        lanes += terms[place : place + LANES]
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    total = lanes[0]
    for term in terms[whole:]:
        total += term
    return total


def _reduction(term: Callable[[Any, Any, Any], Any], wide: bool = False) -> Callable[..., Any]:
    """A sum of `term` over the elements of two arrays, with `wide` in double precision."""

    def typed(context: Any, a: Any, b: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            one, two = (_Array(context, builder, *each) for each in zip(signature.args, values, strict=True))

            def of(x: Any, y: Any) -> Any:
                return term(builder, *((_widened(builder, each) if wide else each) for each in (x, y)))

            real = ir.DoubleType() if wide else one.real
            return _sum(
                builder,
                one.shape[0],
                real,
                lambda i: of(one.eight(i), two.eight(i)),
                lambda i: of(one.one(i), two.one(i)),
            )

        return (types.float64 if wide else a.dtype)(a, b), write

    return typed


def _product(builder: Any, x: Any, y: Any) -> Any:
    return builder.fmul(x, y)


def _square(builder: Any, x: Any, y: Any) -> Any:
    away = builder.fsub(x, y)
    return builder.fmul(away, away)


def _write_sum_of(context: Any, values: Any) -> Any:
    def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = _Array(context, builder, signature.args[0], arguments[0])
        return _sum(builder, array.shape[0], array.real, array.eight, array.one)

    return values.dtype(values), write


@_vectors(_write_sum_of)
def sum_of(values):
    """Sum of all values."""
    return _in_lanes(values)


@_vectors(_reduction(_product))
def dot(a, b):
    """Sum of a[i] x b[i]; both of one type."""
    return _in_lanes(a * b)


@_vectors(_reduction(_product, wide=True))
def wide_dot(a, b):
    """Sum of a[i] x b[i] in double precision."""
    return _in_lanes(a.astype(np.float64) * b.astype(np.float64))


@_vectors(_reduction(_square, wide=True))
def squared_distance(a, b):
    """Sum of (a[i] - b[i])^2 in double precision."""
    return _in_lanes((a.astype(np.float64) - b.astype(np.float64)) ** 2)


def _write_tile(rows: int) -> Callable[..., Any]:
    def typed(context: Any, a: Any, packed: Any, row: Any, out: Any, column: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            table, columns, result = (_Array(context, builder, signature.args[i], values[i]) for i in (0, 1, 3))
            first, column = values[2], values[4]
            zero = ir.Constant(table.vector, [0.0] * LANES)
            places = [builder.add(first, _INTEGER(i)) for i in range(rows)]
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in range(2)] for _ in range(rows)]
            with cgutils.for_range(builder, table.shape[1]) as loop:
                halves = [columns.eight(loop.index, _INTEGER(half * LANES)) for half in range(2)]
                for place, own in zip(places, sums, strict=True):
                    value = builder.insert_element(zero, table.one(place, loop.index), ir.IntType(32)(0))
                    spread = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
                    same = builder.shuffle_vector(value, value, spread)
                    for total, half in zip(own, halves, strict=True):
                        builder.store(builder.fadd(builder.load(total), builder.fmul(same, half)), total)
            for place, own in zip(places, sums, strict=True):
                for half, total in enumerate(own):
                    target = result.at(place, builder.add(column, _INTEGER(half * LANES)))
                    stored = builder.store(builder.load(total), builder.bitcast(target, result.vector.as_pointer()))
                    stored.align = 1
            return context.get_dummy_value()

        return types.void(a, packed, types.int64, out, types.int64), write

    return typed


@_vectors(_write_tile(ROWS))
def tile(a, packed, row, out, column):
    """out[row + i, column + j] = sum of a[row + i, k] x packed[k, j], k by k, for four rows and 16 columns."""
    out[row : row + ROWS, column : column + COLUMNS] = 0
    for k in range(a.shape[1]):
        out[row : row + ROWS, column : column + COLUMNS] += a[row : row + ROWS, k, None] * packed[k]


@_vectors(_write_tile(1))
def strip(a, packed, row, out, column):
    """Like `tile`, for one row."""
    out[row, column : column + COLUMNS] = 0
    for k in range(a.shape[1]):
        out[row, column : column + COLUMNS] += a[row, k] * packed[k]

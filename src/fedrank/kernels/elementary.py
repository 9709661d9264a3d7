"""Exponentials, logarithms and trigonometric functions with the same bits on every CPU and system library.

Library functions use other instructions on other CPUs, and differ in their last bits. These use only sums, products,
quotients and square roots in double precision, and are accurate to about the last digit. Functions with plural names
fill arrays, several numbers at a time; those that end in _each return an array for an array of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrank.kernels.compile import compiled

_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # ln 2 in two parts, so n x ln 2 is exact
_LN2_LOW = 1.9082149292705877e-10
_TWO_PI = 6.283185307179586
_SQRT_HALF = 0.7071067811865476
_SQRT_HALF_BITS = np.int64(np.float64(_SQRT_HALF).view(np.int64))
_ROUND = 1.5 * 2.0**52  # adding it rounds to an integer, in the lowest bits
_ROUND_BITS = np.int64(np.float64(_ROUND).view(np.int64))
_LIMIT = 700.0
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11, _C12, _C13, _C14, _C15, _C16, _C17 = (
    1.0 / math.factorial(i) for i in range(2, 18)
)


@compiled()
def exp_of_rest(r):
    """e^r for |r| <= ln 2 / 2, by its Taylor series."""
    high = _C6 + r * (_C7 + r * (_C8 + r * (_C9 + r * (_C10 + r * (_C11 + r * (_C12 + r * _C13))))))
    return 1.0 + r * (1.0 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * high)))))


@compiled()
def log_from(m, n):
    """ln(m x 2^n) for m from the root of 1/2 to that of 2: ln m = 2 artanh s with s = (m - 1) / (m + 1)."""
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    high = 1 / 13 + z * (1 / 15 + z * (1 / 17 + z * (1 / 19 + z * (1 / 21))))
    rest = z * (1 / 3 + z * (1 / 5 + z * (1 / 7 + z * (1 / 9 + z * (1 / 11 + z * high)))))
    return n * _LN2_HIGH + (2.0 * s + (2.0 * s * rest + n * _LN2_LOW))


@compiled()
def exp(x):
    """e^x; infinite or 0 on overflow or underflow."""
    if not x < 709.0:
        return np.inf if x >= 709.0 else np.nan
    if x < -740.0:
        return 0.0
    n = np.rint(x * _LOG2_E)
    return math.ldexp(exp_of_rest((x - n * _LN2_HIGH) - n * _LN2_LOW), int(n))


@compiled()
def log(x):
    """Natural logarithm; minus infinity for 0."""
    if not 0.0 < x < np.inf:
        return -np.inf if x == 0.0 else (x if x == np.inf else np.nan)
    m, n = math.frexp(x)
    if m < _SQRT_HALF:
        m, n = 2.0 * m, n - 1
    return log_from(m, np.float64(n))


@compiled()
def log1p(x):
    """ln(1 + x), accurate for small x."""
    more = 1.0 + x
    return x if more == 1.0 or more == np.inf else log(more) * (x / (more - 1.0))


@compiled()
def log2(x):
    """Logarithm to base 2 of a positive number; exact for powers of two."""
    m, n = math.frexp(x)
    if m < _SQRT_HALF:
        m, n = 2.0 * m, n - 1
    return n + log_from(m, 0.0) * _LOG2_E


@compiled()
def power(base, exponent):
    """base^exponent of a positive number; integer and half-integer exponents by multiplications and a square root."""
    twice = 2.0 * abs(exponent)
    if twice != np.floor(twice) or twice > 1e6:
        return exp(exponent * log(base))
    result, square, left = 1.0, np.float64(base), np.int64(twice) // 2
    while left > 0:
        if left & 1:
            result *= square
        square *= square
        left >>= 1
    if np.int64(twice) & 1:
        result *= math.sqrt(base)
    return result if exponent >= 0 else 1.0 / result


@compiled()
def discounts(ranks):
    """1 / log2(rank + 1) for ranks from 1: float64 [ranks]."""
    table = np.empty(ranks)
    for rank in range(ranks):
        table[rank] = 1.0 / log2(rank + 2.0)
    return table


@compiled()
def exponentials(values, count, out):
    """out[i] = e^values[i], for |value| <= 700 (larger ones count as 700). `values` is used as scratch.

    x = n ln 2 + r with |r| <= ln 2 / 2; 2^n by adding n to the exponent's bits.
    """
    value_bits = values.view(np.int64)
    out_bits = out.view(np.int64)
    for i in range(count):
        x = min(max(values[i], -_LIMIT), _LIMIT)
        shifted = x * _LOG2_E + _ROUND
        n = shifted - _ROUND
        out[i] = exp_of_rest((x - n * _LN2_HIGH) - n * _LN2_LOW)
        values[i] = shifted
    for i in range(count):
        out_bits[i] += value_bits[i] << 52


@compiled()
def logarithms(values, count, out):
    """out[i] = ln values[i], for positive normal numbers. `values` is used as scratch."""
    value_bits = values.view(np.int64)
    out_bits = out.view(np.int64)
    for i in range(count):
        n = (value_bits[i] - _SQRT_HALF_BITS) >> 52
        out_bits[i] = value_bits[i] - (n << 52)
        value_bits[i] = n + _ROUND_BITS
    for i in range(count):
        out[i] = log_from(out[i], values[i] - _ROUND)


@compiled()
def turns(values, count, cosines, sines):
    """Cosine and sine of fractions of a full circle, from 0 to 1. `values` is used as scratch."""
    value_bits = values.view(np.int64)
    for i in range(count):
        shifted = 4.0 * values[i] + _ROUND
        a = (values[i] - 0.25 * (shifted - _ROUND)) * _TWO_PI  # distance from the nearest quarter, at most an eighth
        z = a * a
        high = _C11 - z * (_C13 - z * (_C15 - z * _C17))
        sines[i] = a - a * z * (_C3 - z * (_C5 - z * (_C7 - z * (_C9 - z * high))))
        high = _C10 - z * (_C12 - z * (_C14 - z * _C16))
        cosines[i] = 1.0 - z * (_C2 - z * (_C4 - z * (_C6 - z * (_C8 - z * high))))
        values[i] = shifted
    for i in range(count):
        quarter = value_bits[i] & 3
        cosine, sine = cosines[i], sines[i]
        if quarter & 1:
            cosine, sine = -sine, cosine
        if quarter & 2:
            cosine, sine = -cosine, -sine
        cosines[i] = cosine
        sines[i] = sine


_ROUND32 = np.float32(1.5 * 2.0**23)
_LIMIT32 = np.float32(80.0)
_LOG2_E32 = np.float32(_LOG2_E)
_LN2_HIGH32 = np.float32(0.693359375)
_LN2_LOW32 = np.float32(-0.00021219444005469057)
_ONE = np.float32(1.0)
_D2, _D3, _D4, _D5, _D6, _D7 = (np.float32(1.0 / math.factorial(i)) for i in range(2, 8))


@compiled()
def sigmoids(values, count, out):
    """out[i] = 1 / (1 + e^-values[i]) in single precision, eight at a time. `values` is used as scratch."""
    value_bits = values.view(np.int32)
    out_bits = out.view(np.int32)
    for i in range(count):
        x = min(max(-values[i], -_LIMIT32), _LIMIT32)
        shifted = x * _LOG2_E32 + _ROUND32
        n = shifted - _ROUND32
        r = (x - n * _LN2_HIGH32) - n * _LN2_LOW32
        out[i] = _ONE + r * (_ONE + r * (_D2 + r * (_D3 + r * (_D4 + r * (_D5 + r * (_D6 + r * _D7))))))
        values[i] = shifted
    for i in range(count):
        out_bits[i] += value_bits[i] << 23
    for i in range(count):
        out[i] = _ONE / (_ONE + out[i])


@compiled()
def apply_exp(values, out):
    for i in range(len(values)):
        out[i] = exp(values[i])


@compiled()
def apply_log(values, out):
    for i in range(len(values)):
        out[i] = log(values[i])


@compiled()
def apply_log1p(values, out):
    for i in range(len(values)):
        out[i] = log1p(values[i])


@compiled()
def apply_power(values, exponent, out):
    for i in range(len(values)):
        out[i] = power(values[i], exponent)


def _each(apply: Callable[..., None], values: ArrayLike, *others: float) -> NDArray[np.float64]:
    given = np.array(values, dtype=np.float64, order="C")  # contiguous, so reshape returns views
    out = np.empty_like(given)
    apply(given.reshape(-1), *others, out.reshape(-1))
    return out


def exp_each(values: ArrayLike) -> NDArray[np.float64]:
    return _each(apply_exp, values)


def log_each(values: ArrayLike) -> NDArray[np.float64]:
    return _each(apply_log, values)


def log1p_each(values: ArrayLike) -> NDArray[np.float64]:
    return _each(apply_log1p, values)


def power_each(values: ArrayLike, exponent: float) -> NDArray[np.float64]:
    """base^exponent of positive numbers."""
    return _each(apply_power, values, float(exponent))

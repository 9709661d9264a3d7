"""e^x for whole arrays: the same bits on every system library, and four at a time."""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.compile import compiled

_LOG2_E = 1.0 / math.log(2.0)
_LN2_HIGH = 0.6931471803691238  # ln 2 in two parts, so that n x ln 2 loses nothing
_LN2_LOW = 1.9082149292705877e-10
_ROUND = 1.5 * 2.0**52  # adding it rounds to an integer, which then stands in the lowest bits
_LIMIT = 700.0
_C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = (1.0 / math.factorial(i) for i in range(2, 12))


@compiled()
def exponential(values, count, out):
    """out[i] = e^values[i] to 14 digits, for |value| <= 700 (larger ones count as 700). `values` is used as scratch.

    x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series; 2^n by adding n to the exponent's bits.
    """
    value_bits = values.view(np.int64)
    out_bits = out.view(np.int64)
    for i in range(count):
        x = min(max(values[i], -_LIMIT), _LIMIT)
        shifted = x * _LOG2_E + _ROUND
        n = shifted - _ROUND
        r = (x - n * _LN2_HIGH) - n * _LN2_LOW
        high = _C6 + r * (_C7 + r * (_C8 + r * (_C9 + r * (_C10 + r * _C11))))
        out[i] = 1.0 + r * (1.0 + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * high)))))
        values[i] = shifted
    for i in range(count):
        out_bits[i] += value_bits[i] << 52


_ROUND32 = np.float32(1.5 * 2.0**23)
_LIMIT32 = np.float32(80.0)
_LOG2_E32 = np.float32(_LOG2_E)
_LN2_HIGH32 = np.float32(0.693359375)
_LN2_LOW32 = np.float32(math.log(2.0) - 0.693359375)
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

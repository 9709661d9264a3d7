"""Random numbers for compiled loops: draw i of a stream is a function of (stream, i), so nothing is carried along."""

from __future__ import annotations

import numpy as np

from fedrank.kernels.compile import compiled

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S12 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(12)
_UNIT = 2.0**-52


@compiled()
def mix(x):
    """A bijection of 64-bit numbers that leaves no visible trace of its argument (the finaliser of SplitMix64)."""
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@compiled()
def stream(key, number):
    """The stream with this number under a key: one per client, and below it one per interaction."""
    return mix(mix(key) + (np.uint64(number) + np.uint64(1)) * _STEP)


@compiled()
def uniform(stream, i):
    """Draw number i: uniform on the open interval (0, 1), never 0 and never 1."""
    bits = mix(stream + (np.uint64(i) + np.uint64(1)) * _STEP) >> _S12
    return (np.float64(bits) + 0.5) * _UNIT

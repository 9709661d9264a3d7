"""Random numbers for compiled loops: draw i of a stream is a function of (stream, i), without state."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import logarithms, turns

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S12 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(12)
_UNIT = 2.0**-52


@compiled()
def mix(x):
    """The finaliser of SplitMix64, a bijection of 64-bit integers."""
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@compiled()
def stream(key, number):
    """Return the stream with this number under a key: one per client, and within it one per interaction."""
    return mix(mix(key) + (np.uint64(number) + np.uint64(1)) * _STEP)


@compiled()
def uniform(stream, i):
    """Return draw number i, uniform on the open interval (0, 1)."""
    bits = mix(stream + (np.uint64(i) + np.uint64(1)) * _STEP) >> _S12
    return (np.float64(bits) + 0.5) * _UNIT


def earlier(stream: np.uint64, draws: int) -> np.uint64:
    """Return the stream whose draw `draws + i` is draw i of this one."""
    return np.uint64((int(stream) - draws * int(_STEP)) % 2**64)


@compiled()
def standard_normals(seed, out):
    """Fill `out` with independent N(0, 1) draws that depend only on the 64-bit seed (Box and Muller, 1958)."""
    half = (len(out) + 1) // 2
    draws, logs, cosines, sines = np.empty(half), np.empty(half), np.empty(half), np.empty(half)
    for i in range(half):
        draws[i] = uniform(seed, 2 * i)
    logarithms(draws, half, logs)
    for i in range(half):
        draws[i] = uniform(seed, 2 * i + 1)
    turns(draws, half, cosines, sines)
    for i in range(half):
        radius = math.sqrt(-2.0 * logs[i])
        out[2 * i] = radius * cosines[i]
        if 2 * i + 1 < len(out):
            out[2 * i + 1] = radius * sines[i]


def normals(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Return independent N(0, 1) draws; those of NumPy differ in the last bits between system libraries."""
    out = np.empty(shape)
    standard_normals(rng.integers(2**64, dtype=np.uint64), out.reshape(-1))
    return out

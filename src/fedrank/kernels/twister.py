"""The generator of NumPy's `RandomState`, which published code used.

Needed only if a published result depends on shared random bits. Everything else uses `chance`. The state is an array of
625 integers: 624 words of the Mersenne Twister (Matsumoto and Nishimura, 1998), and the index of the next one.
"""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import log

WORDS = 624
STATE = WORDS + 1
SEEDS = 1 << 32  # upper bound of seeds
_LOW32 = (1 << 32) - 1
_UPPER, _LOWER = 1 << 31, (1 << 31) - 1
_FAR = 397  # a word depends on those 0, 1 and 397 positions ahead


@compiled()
def reseed(state, seed):
    """Initialise the state like `RandomState(seed)`."""
    word = np.int64(seed)
    for i in range(WORDS):
        state[i] = word
        word = (1812433253 * (word ^ (word >> 30)) + i + 1) & _LOW32
    state[WORDS] = WORDS


@compiled(inline=True)
def twisted(word, following):
    """Mix the first bit of a word with the other bits of the next."""
    both = (word & _UPPER) | (following & _LOWER)
    return (both >> 1) ^ (0x9908B0DF * (both & 1))


@compiled()
def next_word(state):
    """32 random bits."""
    if state[WORDS] == WORDS:
        for i in range(WORDS - _FAR):
            state[i] = state[i + _FAR] ^ twisted(state[i], state[i + 1])
        for i in range(WORDS - _FAR, WORDS - 1):
            state[i] = state[i + _FAR - WORDS] ^ twisted(state[i], state[i + 1])
        state[WORDS - 1] = state[_FAR - 1] ^ twisted(state[WORDS - 1], state[0])
        state[WORDS] = 0
    word = state[state[WORDS]]
    state[WORDS] += 1
    word ^= word >> 11
    word ^= (word << 7) & 0x9D2C5680
    word ^= (word << 15) & 0xEFC60000
    return word ^ (word >> 18)


@compiled()
def next_uniform(state):
    """`uniform()`: two words, of which the first has the leading bits."""
    high = next_word(state) >> 5
    low = next_word(state) >> 6
    return (high * 67108864.0 + low) / 9007199254740992.0


@compiled()
def next_below(state, count):
    """`randint(0, count)`: the last bits of a word, drawn again if they are too large; no draw if count is 1."""
    if count == 1:
        return np.int64(0)
    mask = count - 1
    for shift in (1, 2, 4, 8, 16):
        mask |= mask >> shift
    drawn = next_word(state) & mask
    while drawn >= count:
        drawn = next_word(state) & mask
    return drawn


@compiled()
def next_normals(state, out):
    """`normal(size=len(out))`: the polar method of Marsaglia, with the second of each pair first."""
    for i in range(0, len(out), 2):
        square = 0.0
        x = y = 0.0
        while square >= 1.0 or square == 0.0:
            x = 2.0 * next_uniform(state) - 1.0
            y = 2.0 * next_uniform(state) - 1.0
            square = x * x + y * y
        scale = math.sqrt(-2.0 * log(square) / square)
        out[i] = scale * y
        if i + 1 < len(out):
            out[i + 1] = scale * x

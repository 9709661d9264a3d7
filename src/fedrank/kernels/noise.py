"""Draw integers from a tabulated distribution with secure random words."""

from __future__ import annotations

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import exp

_ONE, _S11, _S64 = np.uint64(1), np.uint64(11), np.uint64(64)
_UNIT = 2.0**-53


@compiled()
def find_cell(place, guide, shift, top):
    """The first cell whose upper threshold is above `place`; `guide` brackets it by the leading bits."""
    lead = np.int64(place >> shift)
    low, high = guide[lead], guide[lead + 1]
    while low < high:
        middle = (low + high) >> 1
        if place < top[middle]:
            high = middle
        else:
            low = middle + 1
    return low


@compiled()
def draw_noise(words, out, guide, shift, top, rest, start, bits, floor, slope, signed):
    """Fill `out` as far as the words reach; returns (finished values, words used, sign of a tail value or 0).

    The last cell is the tail: its value is not drawn here; the caller completes it before the next call.

    The values depend only on the stream of words: an incomplete value uses none, and must be drawn again from the same
    words followed by new ones. Drawing it from new words alone would favour values that need few words.
    """
    finished = 0
    used = 0
    at = 0
    while finished < out.size and at < words.size:
        word = words[at]
        at += 1
        place = word >> _ONE
        cell = find_cell(place, guide, shift, top)
        if cell > 0 and top[cell - 1] == place:
            # The word alone does not decide on which side of a threshold it is: 64 more bits do.
            if at == words.size:
                return finished, used, 0
            more = words[at]
            at += 1
            while cell > 0 and top[cell - 1] == place and more < rest[cell - 1]:
                cell -= 1
        if cell == start.size - 1:
            return finished, at, -1 if signed and word & _ONE else 1
        value = start[cell]
        wide = np.uint64(bits[cell])
        if wide > 0:
            taken = False
            while not taken:
                if at == words.size:
                    return finished, used, 0
                second = words[at]
                at += 1
                inside = second >> (_S64 - wide)
                # The remainder of the offset are the leading bits of the deciding uniform number; mostly they suffice.
                chance = second << wide
                taken = chance < floor[cell]
                if not taken:
                    if at == words.size:
                        return finished, used, 0
                    chance |= words[at] >> (_S64 - wide)
                    at += 1
                    part = np.float64(inside) / np.float64(_ONE << wide)
                    ratio = exp(part * (slope[cell, 0] + part * (slope[cell, 1] + part * slope[cell, 2])))
                    taken = bool(np.float64(chance >> _S11) * _UNIT < ratio)
            value += np.int64(inside)
        if signed and word & _ONE:
            value = -value
        out[finished] = value
        finished += 1
        used = at
    return finished, used, 0

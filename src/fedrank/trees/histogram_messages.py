"""Histograms as bytes, and back: only bins that hold rows travel, and what cannot be a histogram is refused.

    widths, a bit for every bin, then of every bin that holds rows: gradient, hessian, rows

All are whole numbers in the fewest bytes that hold them, so there is nothing that is not a number. A receiver knows the
bins and how many rows there can be. Of a single client it sees that every feature has the same rows, gradients and
hessians in sum; whether they are true it cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.binning import Edges
from fedrank.trees.split_finder import Packed
from fedrank.wire import Refused

Integers = NDArray[np.int64]
WIDTHS = ("<i1", "<i2", "<i4", "<i8")
GRADIENT, HESSIAN, ROWS = range(3)
NAMES = ("gradients", "hessians", "rows")


@dataclass(frozen=True)
class Layout:
    """Which bins a histogram has, one after the other."""

    edges: Edges
    features: NDArray[np.int64]  # those by which a tree may split
    shift: int  # bits of the number of rows, in a histogram as it is counted

    @cached_property
    def places(self) -> Integers:
        """[bins]: where each stands in a histogram as it is counted."""
        from fedrank.kernels.grow import BINS

        places = [feature * BINS + np.arange(self.edges.counts[feature] + 1) for feature in self.features]
        return np.concatenate([np.empty(0, np.int64), *places])

    @cached_property
    def starts(self) -> Integers:
        """[features]: the first bin of each."""
        sizes = self.edges.counts[self.features] + 1
        return np.asarray(np.cumsum(sizes) - sizes)

    @property
    def bins(self) -> int:
        return len(self.places)

    @property
    def most_bytes(self) -> int:
        """Of an encoded histogram."""
        return 1 + -(-self.bins // 8) + 24 * self.bins

    def of(self, features: NDArray[np.int64]) -> Layout:
        """The same with some of the features."""
        return replace(self, features=features)

    def spread(self, packed: Packed) -> Integers:
        """[3, bins]: gradients, hessians, rows."""
        pairs = packed.reshape(-1, 2)[self.places]
        below = (1 << self.shift) - 1
        return np.stack([pairs[:, 0], pairs[:, 1] >> self.shift, pairs[:, 1] & below])

    def pack(self, values: Integers) -> Packed:
        """What `spread` takes apart."""
        from fedrank.kernels.grow import BINS

        words = -(-self.edges.features // 8)
        packed = np.zeros((words * 8 * BINS, 2), np.int64)
        packed[self.places, 0] = values[GRADIENT]
        packed[self.places, 1] = (values[HESSIAN] << self.shift) + values[ROWS]
        return packed.reshape(words, 8 * BINS, 2)


def encode(packed: Packed, layout: Layout) -> bytes:
    """A histogram in few bytes."""
    values = layout.spread(packed)
    held = values[ROWS] > 0
    columns = [_narrow(column[held]) for column in values]
    widths = sum(WIDTHS.index(column.dtype.str.replace("|", "<")) << 2 * i for i, column in enumerate(columns))
    return bytes([widths]) + np.packbits(held).tobytes() + b"".join(column.tobytes() for column in columns)


def decode(content: bytes, layout: Layout, rows: int) -> Packed:
    """The histogram of a leaf in which one client says it has so many rows; refused where it cannot be one."""
    start = 1 + -(-layout.bins // 8)
    if len(content) < start or content[0] >> 6:
        raise Refused(f"a histogram of {layout.bins} bins takes more than {len(content)} bytes; it was cut short")
    held = np.unpackbits(np.frombuffer(content[1:start], np.uint8)).astype(np.bool_)
    if held[layout.bins :].any():
        raise Refused(f"a histogram has more than the {layout.bins} bins that were agreed on")
    held = held[: layout.bins]
    values, at = np.zeros((3, layout.bins), np.int64), start
    for i in range(3):
        kind = np.dtype(WIDTHS[content[0] >> 2 * i & 3])
        size = int(held.sum()) * kind.itemsize
        if len(content) < at + size:
            raise Refused(f"a histogram ends within its {NAMES[i]}; it was cut short")
        values[i, held] = np.frombuffer(content[at : at + size], kind)
        at += size
    if at != len(content):
        raise Refused(f"{len(content) - at} bytes follow a histogram of {layout.bins} bins")
    check_histogram(values, layout, rows, held)
    return layout.pack(values)


def check_histogram(values: Integers, layout: Layout, rows: int, held: NDArray[np.bool_] | None = None) -> None:
    """Refuse what cannot be the histogram of so many rows."""
    if np.any(values[ROWS] < 0) or (held is not None and np.any(values[ROWS, held] < 1)):
        raise Refused("a histogram has bins with a negative number of rows, or bins without rows among those with some")
    if np.any(values[HESSIAN] < 0):
        raise Refused("a histogram has negative hessians, which no row has")
    # Sums of numbers below 2^61 / bins cannot run over.
    limit = 2**61 // max(layout.bins, 1)
    # The least number of 64 bits is its own size, and below every limit.
    wild = (values[GRADIENT] >= limit) | (values[GRADIENT] <= -limit)
    if np.any(wild) or np.any(values[HESSIAN] >= limit >> layout.shift):
        raise Refused("a histogram has gradients or hessians that no rows add up to")
    sums = np.add.reduceat(values, layout.starts, axis=1)
    if np.any(sums[ROWS] != rows):
        found = int(sums[ROWS][np.argmax(sums[ROWS] != rows)])
        raise Refused(f"a histogram has {found:,} rows where {rows:,} were announced")
    if np.any(sums != sums[:, :1]):
        raise Refused("a histogram has other sums in one feature than in another; all count the same rows")


def _narrow(values: Integers) -> NDArray[np.signedinteger]:
    """The same in the fewest bytes that hold each."""
    largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
    return values.astype(next(kind for kind in WIDTHS if largest <= np.iinfo(kind).max))

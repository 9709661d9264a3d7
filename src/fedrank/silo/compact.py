"""A smaller encoding of the best documents of every cell; decoding gives exactly the same arrays.

A document of a small collection is among the best at both ends of most cells, with the same value. So each cell lists
its documents once, in the order of rows, with one value each; the order by value comes back by sorting. Which documents
an end holds follows from their number; only where some documents of equal value are in and others are not, a bit says
which.

The remaining noise cannot be compressed: about 5.5 bits per document and cell for σ1 = 1 and depth = 30.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.silo.rtk import ReverseTopK, Rows, TopKRule

PARTS = ("held", "gaps", "counts", "ties")  # instead of `documents` and `values`; `sizes` and `lost` stay
SORTED = ("ends", "largest")  # rules whose order follows from values alone
LARGEST = 1 << 30  # of a value, and of a row
CELLS = 256  # that are packed at a time

Part = NDArray[Any]
Mask = NDArray[np.bool_]


def compact(top: ReverseTopK) -> dict[str, Part] | None:
    """`documents` and `values` as `PARTS`; None where decoding would not be exact."""
    ends, cells = top.rule.ends, top.depth * top.width
    if top.rule.keep not in SORTED or not _small(top.documents) or not _small(top.values):
        return None
    documents, values = (each.reshape(ends, cells, -1) for each in (top.documents, top.values))
    sizes = top.sizes.reshape(ends, cells)
    held: list[Part] = []
    gaps: list[Part] = []
    counts: list[Part] = []
    ties: list[list[Part]] = [[] for _ in range(ends)]
    for some in _blocks(cells):
        here = np.concatenate(list(documents[:, some]), axis=1).astype(np.int64)
        order = _order(np.where(here < 0, here.max(initial=0) + 1, here))  # the first end of a document comes first
        row = np.take_along_axis(here, order, axis=1)
        value = np.take_along_axis(np.concatenate(list(values[:, some]), axis=1), order, axis=1)
        again = np.zeros(row.shape, np.bool_)
        again[:, 1:] = (row[:, 1:] == row[:, :-1]) & (row[:, 1:] >= 0)
        if np.any(value[:, 1:][again[:, 1:]] != value[:, :-1][again[:, 1:]]):
            return None
        kept = (row >= 0) & ~again
        held.append(np.count_nonzero(kept, axis=1))
        gaps.append(_steps(row[kept], held[-1]))
        counts.append(value[kept])
        both = np.zeros(row.shape, np.bool_)
        both[:, :-1] = again[:, 1:]
        second = order >= documents.shape[2]
        for end, inside in enumerate((~second, second | both)[:ends]):
            last = values[end, some][np.arange(len(row)), sizes[end, some] - 1] if documents.shape[2] else held[-1]
            better = kept & ((value < last[:, None]) if end else (value > last[:, None]))
            tied = kept & (value == last[:, None]) & (sizes[end, some] > 0)[:, None]
            crowded = np.count_nonzero(better | tied, axis=1) > sizes[end, some]
            ties[end].append(inside[tied & crowded[:, None]])
    made = {
        "held": np.concatenate(held).reshape(top.depth, top.width),
        "gaps": np.concatenate(gaps),
        "counts": np.concatenate(counts),
        "ties": np.packbits(np.concatenate([bits for each in ties for bits in each])),
    }
    try:
        back = expand(made, top.sizes, top.rule, top.documents.nbytes + top.values.nbytes)
    except ValueError:
        return None
    same = all(np.array_equal(one, other) for one, other in zip(back, (top.documents, top.values), strict=True))
    return made if same else None


def expand(parts: Mapping[str, Part], sizes: NDArray[np.int32], rule: TopKRule, most: int) -> tuple[Rows, Rows]:
    """`documents` and `values` of an untrusted file: at most `most` bytes of both."""
    held, gaps, counts = (parts[name] for name in PARTS[:3])
    ends, depth, width = sizes.shape
    if rule.keep not in SORTED or ends != rule.ends or held.shape != (depth, width):
        raise ValueError("its packed cells do not match its settings")
    held, in_ends = held.reshape(-1).astype(np.int64), sizes.reshape(ends, -1)
    if held.min(initial=0) < 0 or not gaps.shape == counts.shape == (held.sum(),):
        raise ValueError("its packed cells do not hold the declared number of documents")
    if in_ends.min(initial=0) < 0 or np.any(in_ends > held):
        raise ValueError("a cell has more documents at an end than it holds")
    if np.any(held > in_ends.sum(axis=0, dtype=np.int64)):  # a full cell needs space in all cells that are read with it
        raise ValueError("a cell holds documents that are at none of its ends")
    slots = int(in_ends.max(initial=0))
    if 8 * in_ends.size * slots > most:
        raise ValueError(f"its packed cells have {8 * in_ends.size * slots:,} bytes, too many for a file of this size")
    if gaps.min(initial=1) < 1 or not _small(counts):
        raise ValueError("its packed cells contain a document twice, or a count that is too large")
    bits, used = np.unpackbits(parts["ties"]).astype(np.bool_), 0
    starts = np.concatenate([[0], np.cumsum(held)])
    documents = np.full((*in_ends.shape, slots), -1, dtype=np.int32)
    values = np.zeros((*in_ends.shape, slots), dtype=np.int32)
    for end in range(ends):
        for some in _blocks(len(held)):
            flat = slice(starts[some.start], starts[some.stop])
            many, size = held[some][:, None], in_ends[end, some][:, None]
            filled = np.arange(many.max(initial=0)) < many
            best = counts[flat].astype(np.int64) * (1 if end else -1)  # ascending, then
            rows, value = np.zeros(filled.shape, np.int64), np.full(filled.shape, best.max(initial=0) + 1)
            rows[filled], value[filled] = gaps[flat], best
            rows = np.cumsum(rows, axis=1) - 1
            if rows.max(initial=0) >= LARGEST:
                raise ValueError("a cell names documents that do not exist")
            order = _order(value)  # stable: equal values stay in the order of rows
            value, rows = np.take_along_axis(value, order, axis=1), np.take_along_axis(rows, order, axis=1)
            better, tied = _edge(value, size)
            asked = int(np.count_nonzero(tied))
            if used + asked > len(bits):
                raise ValueError("it has too few bits for equal values")
            inside = better
            inside[tied] = bits[used : used + asked]
            used += asked
            if np.any(np.count_nonzero(inside, axis=1) != size[:, 0]):
                raise ValueError("its bits for equal values do not match the number of documents")
            taken = np.arange(slots) < size
            documents[end, some][taken] = rows[inside]
            values[end, some][taken] = value[inside] if end else -value[inside]
    shape = (ends, depth, width, slots)
    return documents.reshape(shape), values.reshape(shape)


def _edge(value: Part, size: Part) -> tuple[Mask, Mask]:
    """Of ascending values: those that are certainly among the first `size`, and those that need a bit."""
    if not value.shape[1]:
        return np.zeros(value.shape, np.bool_), np.zeros(value.shape, np.bool_)
    last = np.take_along_axis(value, np.maximum(size - 1, 0), axis=1)
    tied = (value == last) & (size > 0)
    better = (value < last) & (size > 0)
    crowded = np.count_nonzero(better | tied, axis=1)[:, None] > size
    return better | (tied & ~crowded), tied & crowded


def _blocks(cells: int) -> Iterator[slice]:
    for first in range(0, cells, CELLS):
        yield slice(first, min(first + CELLS, cells))


def _order(keys: Part) -> Part:
    """[cells, ...]: a stable order of each row; small numbers are sorted by radix, which is thirty times as fast."""
    keys = keys - keys.min(initial=0)
    if keys.max(initial=0) < 1 << 16:
        keys = keys.astype(np.uint16)
    return np.argsort(keys, axis=1, kind="stable")


def _small(values: Part) -> bool:
    return bool(values.min(initial=0) > -LARGEST and values.max(initial=0) < LARGEST)


def _steps(rows: Part, held: Part) -> Part:
    """Differences of ascending rows in each cell; the first row is compared with -1."""
    before = np.empty_like(rows)
    before[1:] = rows[:-1]
    before[(np.cumsum(held) - held)[held > 0]] = -1
    return rows - before

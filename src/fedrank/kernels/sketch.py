"""Hashes of terms, sketches of documents, and the best documents of every cell."""

from __future__ import annotations

import numpy as np

from fedrank.kernels.compile import compiled

_P = np.uint64((1 << 61) - 1)
_M30, _M31 = np.uint64((1 << 30) - 1), np.uint64((1 << 31) - 1)
_S1, _S30, _S31, _S61 = np.uint64(1), np.uint64(30), np.uint64(31), np.uint64(61)
_NONE = np.int32(-(1 << 31))
_ROW = np.int64(1 << 32)


@compiled()
def line(slope, x, start):
    """(slope x + start) mod 2^61 - 1, for arguments below it; products of halves stay below 2^63."""
    high, low = slope >> _S31, slope & _M31
    other_high, other_low = x >> _S31, x & _M31
    middle = low * other_high + high * other_low
    total = ((high * other_high) << _S1) + (middle >> _S30) + ((middle & _M30) << _S31) + low * other_low
    total = (total >> _S61) + (total & _P) + start
    total = (total >> _S61) + (total & _P)
    return total - _P if total >= _P else total


@compiled()
def hash_terms(prints, lines, width, cells, signs):
    """Cells and signs [terms, z] of numbers below 2^61 - 1, by lines [z, 4]."""
    for t in range(prints.size):
        for row in range(lines.shape[0]):
            cells[t, row] = np.int32(line(lines[row, 0], prints[t], lines[row, 1]) % width)
            odd = line(lines[row, 2], prints[t], lines[row, 3]) & _S1
            signs[t, row] = np.int8(1) if odd else np.int8(-1)


@compiled()
def add_counts(offsets, terms, counts, cells, signs, out):
    """Add the counts of documents to their sketches [documents, z, w]."""
    for d in range(out.shape[0]):
        sketch = out[d]
        for entry in range(offsets[d], offsets[d + 1]):
            t = terms[entry]
            for row in range(cells.shape[1]):
                sketch[row, cells[t, row]] += signs[t, row] * counts[entry]


@compiled()
def rank_of(value, side):
    """Greater is better: the value itself, its negative, or its magnitude."""
    key = np.int64(value)
    if side == 1 or (side == 2 and key < 0):
        return -key
    return key


@compiled()
def merge_block(sketches, first, keep, documents, values, sizes, lost):
    """Merge sketches [new, z, w] into the sorted ends of all cells; `keep`: 0 both ends, 1 largest, 2 magnitudes."""
    new = sketches.shape[0]
    ends, depth, width, slots = documents.shape
    order = np.empty(new, dtype=np.int64)
    for row in range(depth):
        for column in range(width):
            for end in range(ends):
                side = end if keep == 0 else (0 if keep == 1 else 2)
                docs, vals = documents[end, row, column], values[end, row, column]
                size = np.int64(sizes[end, row, column])
                shut = lost[end, row, column]
                worst = np.int64(-(1 << 40))  # a new document must be better than this
                if shut != _NONE:
                    worst = rank_of(shut, side)
                if size == slots:
                    worst = max(worst, rank_of(vals[size - 1], side))
                many = 0
                best_out = np.int64(-(1 << 40))
                value_out = np.int32(0)
                for d in range(new):
                    value = sketches[d, row, column]
                    key = rank_of(value, side)
                    if key > worst:
                        order[many] = -key * _ROW + d
                        many += 1
                    elif key > best_out:
                        best_out = key
                        value_out = value
                if many:
                    chosen = order[:many]
                    chosen.sort()
                    # From the back: the worst of both are removed first, old ones before new ones in a tie.
                    i, j = size - 1, many - 1
                    while j >= 0:
                        take_new = i < 0 or -(chosen[j] // _ROW) <= rank_of(vals[i], side)
                        place = i + j + 1
                        if take_new:
                            d = chosen[j] % _ROW
                            document, value = np.int32(first + d), sketches[d, row, column]
                            j -= 1
                        else:
                            document, value = docs[i], vals[i]
                            i -= 1
                        if place < slots:
                            docs[place], vals[place] = document, value
                        elif rank_of(value, side) > best_out:
                            best_out = rank_of(value, side)
                            value_out = value
                    sizes[end, row, column] = min(size + many, slots)
                if best_out > -(1 << 40) and (shut == _NONE or best_out > rank_of(shut, side)):
                    lost[end, row, column] = value_out


@compiled()
def remove_rows(documents, values, sizes, present):
    """Remove documents that no longer exist, and invalid row numbers."""
    ends, depth, width, slots = documents.shape
    for end in range(ends):
        for row in range(depth):
            for column in range(width):
                docs, vals = documents[end, row, column], values[end, row, column]
                left, size = 0, min(np.int64(sizes[end, row, column]), slots)
                for i in range(size):
                    if 0 <= docs[i] < present.size and present[docs[i]]:
                        docs[left], vals[left] = docs[i], vals[i]
                        left += 1
                for i in range(left, size):
                    docs[i], vals[i] = -1, 0
                sizes[end, row, column] = left


@compiled()
def twice_median(values, n):
    """Sum of the two middle values of values[:n], which is sorted in place; n >= 1."""
    for i in range(1, n):
        value = values[i]
        j = i
        while j > 0 and values[j - 1] > value:
            values[j] = values[j - 1]
            j -= 1
        values[j] = value
    return np.int64(values[(n - 1) // 2]) + np.int64(values[n // 2])


@compiled()
def twice_estimate(values, n, smallest, bar):
    """Twice the median or the minimum of values[:n], or `bar` if it is not above; values may be reordered."""
    if smallest:
        least = values[0]
        for i in range(1, n):
            least = min(least, values[i])
        return max(2 * np.int64(least), bar)
    half = bar // 2  # a median above the bar needs half of its values above half the bar: most fail without sorting
    above = 0
    for i in range(n):
        above += values[i] > half
    if 2 * above < n:
        return bar
    return max(twice_median(values, n), bar)


@compiled()
def keep_best(keys, k):
    """Cut a full array of keys to the k best; returns their number and the value that a later document must exceed.

    A key is -(twice the estimate) in the upper half and the document in the lower, so small keys are best.
    """
    keys.sort()
    return k, -(keys[k - 1] // _ROW)


@compiled()
def best_first(keys, found, k):
    """Documents and estimates of the k best keys."""
    chosen = keys[:found].copy()
    chosen.sort()
    chosen = chosen[:k]
    documents = np.empty(chosen.size, dtype=np.int32)
    estimates = np.empty(chosen.size)
    for i in range(chosen.size):
        documents[i] = chosen[i] % _ROW
        estimates[i] = -(chosen[i] // _ROW) / 2
    return documents, estimates


@compiled()
def query_top(documents, values, sizes, signs, fill, rows, fewest, k, absent, smallest):
    """The k best documents by their entries in the cells of a term [z, slots]; see `ReverseTopK.query`.

    Row numbers may come from other parties: invalid ones are left out.
    """
    depth = documents.shape[0]
    slots = np.zeros(rows, dtype=np.int32)
    for row in range(depth):
        for i in range(min(sizes[row], documents.shape[1])):
            d = documents[row, i]
            if 0 <= d < rows:
                slots[d] += 1
    many = 0
    who = np.empty(rows, dtype=np.int32)
    for d in range(rows):
        if slots[d] >= fewest:
            who[many] = d
            many += 1
            slots[d] = many
        else:
            slots[d] = 0
    held = np.empty((many, depth), dtype=np.int32)
    counts = np.zeros(many, dtype=np.int32)
    if not absent:
        for c in range(many):
            held[c] = fill
            counts[c] = depth
    for row in range(depth):
        for i in range(min(sizes[row], documents.shape[1])):
            d = documents[row, i]
            if 0 <= d < rows and slots[d]:
                c = slots[d] - 1
                value = signs[row] * values[row, i]
                if not absent:
                    held[c, row] = value
                elif counts[c] < depth:
                    held[c, counts[c]] = value
                    counts[c] += 1
    keys = np.empty(4 * k, dtype=np.int64)
    found, bar = 0, np.int64(0)
    for c in range(many):
        twice = twice_estimate(held[c], counts[c], smallest, bar)
        if twice > bar:
            keys[found] = -twice * _ROW + who[c]
            found += 1
            if found == keys.size:
                found, bar = keep_best(keys, k)
    return best_first(keys, found, k)


@compiled()
def naive_top(sketches, cells, signs, k, smallest):
    """The k best of all documents [documents, z, w] by their estimates."""
    depth = sketches.shape[1]
    values = np.empty(depth, dtype=np.int32)
    keys = np.empty(4 * k, dtype=np.int64)
    found, bar = 0, np.int64(0)
    for d in range(sketches.shape[0]):
        for row in range(depth):
            values[row] = signs[row] * sketches[d, row, cells[row]]
        twice = twice_estimate(values, depth, smallest, bar)
        if twice > bar:
            keys[found] = -twice * _ROW + d
            found += 1
            if found == keys.size:
                found, bar = keep_best(keys, k)
    return best_first(keys, found, k)

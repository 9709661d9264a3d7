"""Ranking measures over queries of different lengths: from scores to the best documents, and from labels to values.

Many models are evaluated at once. Their scores are stored as [documents, models], so one vector instruction compares
the same document under several models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts

NDCG, NDCG_LINEAR, MAP, MRR, ERR, PRECISION = range(6)

GAIN = 2.0 ** np.arange(128) - 1.0  # [label]: exponential gain

# Equal scores are ordered by (position x STEP + documents x TURN) modulo 2^31, smallest first. STEP is odd, so the map
# is injective and UNDO inverts it; it is near the golden ratio, so any part of a list is spread evenly.
# TURN lets lists of different lengths begin at different positions, so no position is always first.
STEP = 0x4F1BBCDD
UNDO = pow(STEP, -1, 2**31)
TURN = 0x2545F491
LOW = 2**31 - 1

# Parts of a float32 as int32: with wider integers, only half as many would fit into a vector.
MAGNITUDE = np.int32(2**31 - 1)  # all bits except the sign
SIGN = np.int32(31)  # index of the sign bit
INFINITY = np.int32(0x7F800000)  # larger values are NaN
LOWEST = np.int32(-(2**31))  # below the integer of every score

FEW = 64  # up to this number, counting is faster than sorting


@compiled()
def best_dcg(grades, offsets, gain, k) -> NDArray[np.float64]:
    """DCG@k of the best list of every query: labels int8 [views, documents], gain float64 [128] -> [views, queries]."""
    views, queries = len(grades), len(offsets) - 1
    best = np.zeros((views, queries))
    discount = discounts(min(k, len(grades[0])))
    count = np.zeros(128, np.int64)
    for view in range(views):
        for query in range(queries):
            for row in range(offsets[query], offsets[query + 1]):
                count[max(grades[view, row], 0)] += 1
            rank = 0
            for grade in range(127, -1, -1):
                for _ in range(count[grade]):
                    if rank < k:
                        best[view, query] += gain[grade] * discount[rank]
                    rank += 1
                count[grade] = 0
    return best


@compiled()
def ideal_dcg(grades, offsets, k=10) -> NDArray[np.float64]:
    """DCG@k of the best possible list of every query, with gain 2^label - 1, for several views of the labels.

    labels int8 [views, documents], offsets int64 [queries + 1] -> float64 [views, queries]; 0 if nothing is relevant.
    """
    return best_dcg(grades, offsets, GAIN, k)


@compiled()
def as_integers(bits, order):
    """Convert the bits of float32 scores to integers with the same order; returns the number of NaN.

    A float is a sign and a magnitude: 0.0 and -0.0 become the same integer, infinities the extremes.
    """
    bad = 0
    for i in range(len(bits)):
        size = bits[i] & MAGNITUDE
        sign = bits[i] >> SIGN  # 0 or -1
        order[i] = (size ^ sign) - sign
        bad += size > INFINITY
    return bad


@compiled()
def key_of(order, position, documents):
    """A sort key that is smaller for a better document: by score, then by the tie rule."""
    return (~np.int64(order) << 32) | ((position * STEP + documents * TURN) & LOW)


@compiled()
def position_of(key, documents):
    """The position in its query that is encoded in the key."""
    return ((((key & LOW) - documents * TURN) & LOW) * UNDO) & LOW


@compiled()
def lower_bounds(order, begin, end, k, best, second):
    """For each model a score that at least k of the documents begin .. end - 1 reach; the result is second[: models].

    Documents are divided into k / 2 groups. The two best of each group are k documents, so the worst of these second
    best is a bound; usually fewer than 2 k documents pass it. Buffers: int32 [groups * models].
    """
    models = order.shape[1]
    groups = (k + 1) // 2
    width = groups * models
    best[:width] = LOWEST
    second[:width] = LOWEST
    flat = order.reshape(order.size)[begin * models : end * models]
    for start in range(0, len(flat), width):
        hand = flat[start : start + width]
        for i in range(len(hand)):
            score, first = hand[i], best[i]
            best[i] = max(first, score)
            second[i] = max(second[i], min(first, score))
    for group in range(1, groups):
        for model in range(models):
            second[model] = min(second[model], second[group * models + model])


@compiled()
def keys_above(order, begin, end, model, bound, keys):
    """Keys of the documents begin .. end - 1 whose score reaches the bound; returns their number."""
    count = 0
    for row in range(begin, end):
        # Always written, sometimes advanced: no branch that the CPU could mispredict.
        keys[count] = row
        count += order[row, model] >= bound
    for i in range(count):
        row = keys[i]
        keys[i] = key_of(order[row, model], row - begin, end - begin)
    return count


@compiled()
def sort_keys(keys, count, ordered):
    """The first `count` keys, smallest first, into `ordered`."""
    if count <= FEW:
        for i in range(count):
            better = 0
            for j in range(count):
                better += keys[j] < keys[i]
            ordered[better] = keys[i]
        return
    # Shell sort: nearly as fast as np.sort, which alone would take five seconds to compile.
    for i in range(count):
        ordered[i] = keys[i]
    gap = count
    while gap > 1:
        gap = max(gap * 5 // 11, 1)
        for i in range(gap, count):
            key, j = ordered[i], i
            while j >= gap and ordered[j - gap] > key:
                ordered[j] = ordered[j - gap]
                j -= gap
            ordered[j] = key


@compiled()
def ranked_rows(bits, offsets) -> NDArray[np.int64]:
    """Document rows of every query, best first: bits of float32 scores, int32 [documents, 1] -> int64 [documents]."""
    rows = np.empty(len(bits), np.int64)
    order = np.empty_like(bits)
    as_integers(bits.reshape(bits.size), order.reshape(bits.size))
    keys, ordered = np.empty(len(bits) + 1, np.int64), np.empty(len(bits), np.int64)
    for query in range(len(offsets) - 1):
        begin, end = offsets[query], offsets[query + 1]
        count = keys_above(order, begin, end, 0, LOWEST, keys)
        sort_keys(keys, count, ordered)
        for rank in range(count):
            rows[begin + rank] = begin + position_of(ordered[rank], end - begin)
    return rows


@compiled()
def value_of_list(kind, seen, shown, discount, top_grade):
    """One measure, before it is scaled, of a list whose first `shown` documents have the labels `seen`."""
    total = 0.0
    if kind == NDCG:
        for rank in range(shown):
            total += GAIN[seen[rank]] * discount[rank]
    elif kind == NDCG_LINEAR:
        for rank in range(shown):
            total += seen[rank] * discount[rank]
    elif kind == MAP:
        relevant = 0
        for rank in range(shown):
            if seen[rank] >= 1:
                relevant += 1
                total += relevant / (rank + 1.0)
    elif kind == MRR:
        for rank in range(shown):
            if seen[rank] >= 1:
                return 1.0 / (rank + 1.0)
    elif kind == ERR:
        reading = 1.0
        for rank in range(shown):
            satisfied = GAIN[seen[rank]] / (GAIN[top_grade] + 1.0)
            total += reading * satisfied / (rank + 1.0)
            reading *= 1.0 - satisfied
    else:
        for rank in range(shown):
            total += seen[rank] >= 1
    return total


@compiled()
def measure_lists(bits, offsets, first, last, grades, kinds, cutoffs, scales, top_grade, shift, values) -> int:
    """All measures of queries first .. last - 1 under all models; returns the number of NaN scores.

    bits of float32 scores, int32 [documents of these queries, models]; offsets and labels are those of the whole set;
    kinds and cutoffs int64 [measures]; scales [measures, queries]; results go to values[measure, shift + model, query].
    """
    order = np.empty_like(bits)
    bad = as_integers(bits.reshape(bits.size), order.reshape(bits.size))
    if bad > 0:
        return bad
    longest = 0
    for query in range(first, last):
        longest = max(longest, offsets[query + 1] - offsets[query])
    depth = min(cutoffs.max(), longest)
    discount = discounts(depth)
    best = np.empty((depth + 1) // 2 * bits.shape[1], np.int32)
    bounds = np.empty_like(best)
    keys, ordered = np.empty(longest + 1, np.int64), np.empty(longest, np.int64)
    seen = np.empty(depth, np.int64)
    for query in range(first, last):
        begin, end = offsets[query] - offsets[first], offsets[query + 1] - offsets[first]
        shown = min(depth, end - begin)
        bounds[:] = LOWEST
        if shown < end - begin:
            lower_bounds(order, begin, end, shown, best, bounds)
        for model in range(bits.shape[1]):
            count = keys_above(order, begin, end, model, bounds[model], keys)
            sort_keys(keys, count, ordered)
            for rank in range(shown):
                seen[rank] = grades[offsets[query] + position_of(ordered[rank], end - begin)]
            for m in range(len(kinds)):
                value = value_of_list(kinds[m], seen, min(shown, cutoffs[m]), discount, top_grade)
                values[m, shift + model, query] = min(value / scales[m, query], 1.0)
    return bad

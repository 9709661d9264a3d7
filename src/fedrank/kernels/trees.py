"""Evaluate regression trees on many documents, and select the best-scored irrelevant documents."""

from __future__ import annotations

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.measures import as_integers, key_of

BLOCK = 256  # documents that traverse a tree together, to overlap memory accesses
ZERO = float(np.float32(1e-35))  # values from -ZERO to ZERO are zero to LightGBM
ZERO_IS_MISSING = 2  # a kind of splits, as in trees/arrays.py


@compiled()
def add_trees(
    features, first, last, scores, zero_is_value, roots, feature, threshold, missing_left, kind, child, value
):  # fmt: skip
    """Add the predictions of trees for documents first .. last - 1 to their scores, tree after tree.

    The arrays are those of `trees/arrays.py: Trees`, which has checked them. A split sends a document to
    child[split, 0] if its value is at most the threshold, otherwise to child[split, 1]; a child below 0 is the leaf
    ~child. NaN goes to the left if `missing_left` is set, and so does zero in splits for which it is missing; with
    `zero_is_value` there are none.
    """
    node = np.empty(BLOCK, np.int32)
    for begin in range(first, last, BLOCK):
        count = min(BLOCK, last - begin)
        for root in roots:
            node[:] = root
            walking = count if root >= 0 else 0
            while walking > 0:
                walking = 0
                for i in range(count):
                    at = node[i]
                    if at >= 0:
                        seen = features[begin + i, feature[at]]
                        right = seen > threshold[at]
                        if seen != seen or (
                            not zero_is_value and kind[at] == ZERO_IS_MISSING and -ZERO <= seen <= ZERO
                        ):
                            right = not missing_left[at]
                        node[i] = child[at, int(right)]
                        walking += node[i] >= 0
            for i in range(count):
                scores[begin + i] += value[~node[i]]


@compiled()
def kth_smallest(keys, count, k):
    """The k-th smallest (from 1) of the first `count` keys, which are reordered (Hoare's selection)."""
    low, high, wanted = 0, count - 1, k - 1
    while low < high:
        pivot = keys[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while keys[i] < pivot:
                i += 1
            while keys[j] > pivot:
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                i += 1
                j -= 1
        if wanted <= j:
            high = j
        elif wanted >= i:
            low = i
        else:
            break
    return keys[wanted]


@compiled()
def best_negatives(bits, grades, offsets, share, least, kept):
    """Mark all relevant documents, and of each query the best-scored share of the others, at least `least`.

    bits of float32 scores, int32 [documents]; the result goes to kept, bool [documents]. Returns the number of kept
    irrelevant documents. Equal scores are ordered as in every measure.
    """
    order = np.empty_like(bits)
    as_integers(bits, order)
    longest = 0
    for query in range(len(offsets) - 1):
        longest = max(longest, offsets[query + 1] - offsets[query])
    keys, selected = np.empty(longest, np.int64), np.empty(longest, np.int64)
    total = 0
    for query in range(len(offsets) - 1):
        begin, end = offsets[query], offsets[query + 1]
        count = 0
        for row in range(begin, end):
            keys[count] = key_of(order[row], row - begin, end - begin)
            count += grades[row] < 1
        wanted = min(max(int(np.floor(share * count + 0.5)), least), count)
        limit = np.int64(-(2**63))
        if wanted > 0:
            selected[:count] = keys[:count]
            limit = kth_smallest(selected, count, wanted)
        count = 0
        for row in range(begin, end):
            kept[row] = grades[row] >= 1
            if grades[row] < 1:
                kept[row] = keys[count] <= limit
                count += 1
        total += wanted
    return total

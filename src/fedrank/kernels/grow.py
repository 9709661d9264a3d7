"""Grow regression trees on binned rows: λ-gradients, integer histograms, the best split, and the division of rows.

A row is its bins, one byte per feature, eight features per word. What a row adds to a histogram is a pair of integers:
its gradient, and its hessian with a one for the row itself in the low bits (`pack_pairs`). Integer sums do not depend
on the order, so a histogram does not depend on how rows are distributed.
"""

from __future__ import annotations

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts, exponentials, log2
from fedrank.kernels.measures import GAIN, best_dcg

BINS = 256  # size of a feature's histogram, used or not
TILE = 1024  # rows per tile, whose bins stay in the cache while features are counted
DIGIT = 11  # bits per pass of the radix sort
DIGITS = 2**DIGIT
BYTE = np.uint64(255)
HIGHEST = np.int32(2**31 - 1)


@compiled()
def order_by_score(bits, begin, end, order, spare, starts):
    """Positions begin .. end - 1, best score first, stable: a radix sort of float32 scores.

    bits are those of the scores, int32. The result is order[: end - begin], counted from 0.
    """
    count = end - begin
    for i in range(count):
        order[i] = i
    for turn in range(3):
        low = np.int32(turn * DIGIT)
        starts[:] = 0
        for i in range(count):
            starts[_digit(bits[begin + i], low) + 1] += 1
        for digit in range(DIGITS):
            starts[digit + 1] += starts[digit]
        for i in range(count):
            digit = _digit(bits[begin + order[i]], low)
            spare[starts[digit]] = order[i]
            starts[digit] += 1
        for i in range(count):
            order[i] = spare[i]


@compiled(inline=True)
def _digit(score, low):
    """Some bits of a sort key that is smaller for a better score."""
    size = score & HIGHEST
    sign = score >> np.int32(31)
    # 0.0 and -0.0 become equal; the rest is ordered as floats, then inverted and made positive.
    falling = ~((size ^ sign) - sign) ^ np.int32(-(2**31))
    return (np.uint32(falling) >> np.uint32(low)) & np.uint32(DIGITS - 1)


@compiled()
def lambda_gradients(scores, bits, grades, offsets, queries, norm, truncation, gradients, hessians):
    """Gradients and hessians of the rows of some queries, as LightGBM's lambdarank has them (sigmoid 1).

    scores float64 and the bits of the same as float32 [rows], labels int8 [rows], offsets int64 [queries + 1]; results
    float64 [rows]. A pair of documents with different labels counts if the higher ranked one is among the first
    `truncation`. With `norm`, pairs count less if their scores are further apart, and so do queries with many pairs.
    """
    longest = 0
    for query in range(len(offsets) - 1):
        longest = max(longest, offsets[query + 1] - offsets[query])
    discount = discounts(longest)
    order, spare, starts = np.empty(longest, np.int32), np.empty(longest, np.int32), np.empty(DIGITS + 1, np.int64)
    sorted_scores, sorted_grades = np.empty(longest), np.empty(longest, np.int8)
    pull, weight = np.empty(longest), np.empty(longest)
    others, swaps = np.empty(longest, np.int32), np.empty(longest)
    differences, exps = np.empty(longest), np.empty(longest)
    best = best_dcg(grades.reshape(1, len(grades)), offsets, GAIN, truncation)[0]
    for query in queries:
        begin, end = offsets[query], offsets[query + 1]
        count = end - begin
        for row in range(begin, end):
            gradients[row] = 0.0
            hessians[row] = 0.0
        if best[query] <= 0.0:
            continue
        order_by_score(bits, begin, end, order, spare, starts)
        for i in range(count):
            sorted_scores[i] = scores[begin + order[i]]
            sorted_grades[i] = grades[begin + order[i]]
            pull[i] = 0.0
            weight[i] = 0.0
        apart = norm and sorted_scores[0] != sorted_scores[count - 1]
        total = 0.0
        for i in range(min(truncation, count - 1)):
            grade, score = sorted_grades[i], sorted_scores[i]
            pairs = 0
            for j in range(i + 1, count):
                others[pairs] = j
                pairs += sorted_grades[j] != grade
            for p in range(pairs):
                j = others[p]
                gap = GAIN[grade] - GAIN[sorted_grades[j]]
                # From here on, the sign determines which of the two is better.
                difference = score - sorted_scores[j] if gap > 0 else sorted_scores[j] - score
                swap = gap * (discount[i] - discount[j]) / best[query]
                swaps[p] = swap / (0.01 + abs(difference)) if apart else swap
                differences[p] = min(max(difference, -500.0), 500.0)
            exponentials(differences, pairs, exps)
            mine, my_weight = 0.0, 0.0
            for p in range(pairs):
                chance = 1.0 / (1.0 + exps[p])
                force = chance * swaps[p]
                curve = abs(force) * (1.0 - chance)
                mine -= force
                my_weight += curve
                pull[others[p]] += force
                weight[others[p]] += curve
                total += 2.0 * abs(force)
            pull[i] += mine
            weight[i] += my_weight
        scale = log2(1.0 + total) / total if norm and total > 0.0 else 1.0
        for i in range(count):
            gradients[begin + order[i]] = pull[i] * scale
            hessians[begin + order[i]] = weight[i] * scale


@compiled()
def pack_pairs(gradients, hessians, rows, scale, shift, pairs):
    """Compute what rows add to a histogram, as integers; returns the sums of |gradients| and of hessians.

    A pair is the gradient in units of 1 / scale, and the hessian in the same unit, `shift` bits up, above a one.
    """
    size, weight = np.int64(0), np.int64(0)
    for row in rows:
        gradient = np.int64(np.rint(gradients[row] * scale))
        hessian = np.int64(np.rint(hessians[row] * scale))
        pairs[row, 0] = gradient
        pairs[row, 1] = (hessian << shift) + 1
        size += abs(gradient)
        weight += hessian
    return size, weight


@compiled()
def fill_bins(features, edges, zero, words, columns):
    """Bins of float32 features [rows, features]: words uint8 [rows, 8 x words], columns uint8 [features, rows].

    edges float64 [features, BINS], infinite beyond their end. Bin b contains values up to edges[feature, b] and above
    the edge before. NaN counts as zero.
    """
    rows, width = features.shape
    for begin in range(0, rows, TILE):
        for column in range(width):
            line = edges[column]
            for row in range(begin, min(begin + TILE, rows)):
                value = np.float64(features[row, column])
                place = np.uint64(0)
                # Binary search without branches, which lets the processor work on many rows at once.
                for half in (128, 64, 32, 16, 8, 4, 2, 1):
                    place += np.uint64(half) * np.uint64(line[place + np.uint64(half - 1)] < value)
                if value != value:
                    place = np.uint64(zero[column])
                words[row, column] = place
                columns[column, row] = place


@compiled()
def add_histogram(words, chosen, rows, pairs, out):
    """Add rows to the histogram of the chosen words: words uint64 [all rows, words], out int64 [words, 8 x BINS, 2].

    Tiles of rows and eight features at a time, so both stay in the cache.
    """
    local = np.empty((TILE, 2), np.int64)
    for begin in range(0, len(rows), TILE):
        count = min(TILE, len(rows) - begin)
        some = rows[begin : begin + count]
        for i in range(count):
            local[i, 0] = pairs[some[i], 0]
            local[i, 1] = pairs[some[i], 1]
        for word in chosen:
            block = out[word]
            for i in range(count):
                bins = words[some[i], word]
                gradient, rest = local[i, 0], local[i, 1]
                for k in range(8):
                    place = np.uint64(k * BINS) + ((bins >> np.uint64(8 * k)) & BYTE)
                    block[place, 0] += gradient
                    block[place, 1] += rest


@compiled()
def divide_rows(column, rows, limit, spare):
    """Put rows whose bin is at most `limit` before the others, both in their order; returns their number."""
    left, right = 0, 0
    for i in range(len(rows)):
        row = rows[i]
        goes_left = column[row] <= limit
        # Written to both, advanced in one: no branch that the CPU could mispredict.
        rows[left] = row
        spare[right] = row
        left += goes_left
        right += not goes_left
    for i in range(right):
        rows[left + i] = spare[i]
    return left


@compiled()
def totals_of(packed, shift, feature):
    """Sums of a leaf: gradient, hessian, rows; every feature has the same."""
    gradient, rest = np.int64(0), np.int64(0)
    block, first = packed[feature // 8], (feature % 8) * BINS
    for b in range(BINS):
        gradient += block[first + b, 0]
        rest += block[first + b, 1]
    return gradient, rest >> shift, rest & ((np.int64(1) << shift) - 1)


@compiled()
def best_split(packed, shift, used, edge_count, unit, least_rows, least_hessian, l2):
    """The best split of a leaf: its gain, feature and bin, and gradient, hessian and rows to the left.

    `used` are the features that may split, in order; a unit is the value of a one in the histogram. In a tie, the first
    feature and bin win. The gain is twice the decrease of the loss; 0 without a split.
    """
    below = (np.int64(1) << shift) - 1
    all_gradient, all_hessian, all_rows = totals_of(packed, shift, used[0])
    before = fall(all_gradient, all_hessian, unit, l2)
    gain, best_feature, best_bin = 0.0, -1, -1
    left_gradient, left_hessian, left_rows = np.int64(0), np.int64(0), np.int64(0)
    for feature in used:
        block, first = packed[feature // 8], (feature % 8) * BINS
        gradient, rest = np.int64(0), np.int64(0)
        for b in range(edge_count[feature]):
            more = block[first + b, 1]
            if more == 0:  # no rows
                continue
            gradient += block[first + b, 0]
            rest += more
            hessian, rows = rest >> shift, rest & below
            if rows < least_rows or hessian * unit < least_hessian or hessian <= 0:
                continue
            other = all_hessian - hessian
            if all_rows - rows < least_rows or other * unit < least_hessian or other <= 0:
                break
            found = fall(gradient, hessian, unit, l2) + fall(all_gradient - gradient, other, unit, l2) - before
            if found > gain:
                gain, best_feature, best_bin = found, feature, b
                left_gradient, left_hessian, left_rows = gradient, hessian, rows
    return gain, best_feature, best_bin, left_gradient, left_hessian, left_rows


@compiled()
def split_gains(packed, shift, used, edge_count, unit, least_rows, least_hessian, l2):
    """[used]: the gain of the best split by each of these features."""
    gains = np.zeros(len(used))
    for i in range(len(used)):
        gains[i] = best_split(packed, shift, used[i : i + 1], edge_count, unit, least_rows, least_hessian, l2)[0]
    return gains


@compiled(inline=True)
def fall(gradient, hessian, unit, l2):
    """Twice the decrease of the loss by a separate leaf."""
    slope = gradient * unit
    curve = hessian * unit + l2
    return slope * slope / curve if curve > 0.0 else 0.0


@compiled()
def add_leaves(rows, starts, counts, values, scores):
    """Add the values of leaves to the scores of their rows, which are ordered by leaf in `rows`."""
    for leaf in range(len(values)):
        for i in range(starts[leaf], starts[leaf] + counts[leaf]):
            scores[rows[i]] += values[leaf]


@compiled()
def add_by_bins(words, feature, limit, child, values, scores):
    """Add the values of one tree to all rows [rows, 8 x words], by their bins: those up to the limit go left."""
    splits = len(feature)
    for row in range(len(words)):
        node = 0 if splits > 0 else -1
        while node >= 0:
            node = child[node, int(words[row, feature[node]] > limit[node])]
        scores[row] += values[~node]

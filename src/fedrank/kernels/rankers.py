"""Scores and steps of rankers on flat parameter vectors, whose layout is given by `hidden`.

0 is a linear ranker, n > 0 a layer of n sigmoid units, and n < 0 a layer of -n ReLU units.
"""

from __future__ import annotations

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import sigmoids
from fedrank.kernels.lanes import dot


@compiled()
def add_scaled(target, scale, source):
    """target += scale x source."""
    for i in range(len(source)):
        target[i] += scale * source[i]


@compiled()
def linear_scores(weights, features, first, last, out):
    """out[i] = weights . features[first + i]; this loop takes half of the time."""
    for row in range(first, last):
        out[row - first] = dot(features[row], weights)


@compiled()
def add_hidden_sums(matrix, features, row, other, sums):
    """sums[:hidden] += features[row] . matrix, sums[hidden:] += features[other] . matrix.

    Two documents share each load of a weight, and four features each load of a sum, which makes it as fast as a
    library's matrix product, with the same bits on any number of threads.
    """
    width, hidden = matrix.shape
    one, two = sums[:hidden], sums[hidden:]
    whole = width - width % 4
    for f in range(0, whole, 4):
        a0, a1, a2, a3 = features[row, f], features[row, f + 1], features[row, f + 2], features[row, f + 3]
        b0, b1, b2, b3 = features[other, f], features[other, f + 1], features[other, f + 2], features[other, f + 3]
        row0, row1, row2, row3 = matrix[f], matrix[f + 1], matrix[f + 2], matrix[f + 3]
        for j in range(hidden):
            w0, w1, w2, w3 = row0[j], row1[j], row2[j], row3[j]
            one[j] += (a0 * w0 + a1 * w1) + (a2 * w2 + a3 * w3)
            two[j] += (b0 * w0 + b1 * w1) + (b2 * w2 + b3 * w3)
    for f in range(whole, width):
        a0, b0, row0 = features[row, f], features[other, f], matrix[f]
        for j in range(hidden):
            one[j] += a0 * row0[j]
            two[j] += b0 * row0[j]


@compiled()
def hidden_units(weights, hidden, features, row, other, sums, units):
    """The two halves of `units` = outputs of the hidden units for two documents. `sums` and `units` [2 x |hidden|]."""
    count = abs(hidden)
    inner = count * features.shape[1]
    for j in range(count):
        sums[j] = weights[inner + j]
        sums[count + j] = weights[inner + j]
    add_hidden_sums(weights[:inner].reshape((features.shape[1], count)), features, row, other, sums)
    if hidden > 0:
        sigmoids(sums, 2 * count, units)
    else:
        for j in range(2 * count):
            units[j] = max(sums[j], np.float32(0.0))


@compiled()
def mlp_scores(weights, hidden, features, first, last, out):
    """out[i] = output weights . hidden units of document first + i."""
    count = abs(hidden)
    sums = np.empty(2 * count, dtype=np.float32)
    units = np.empty(2 * count, dtype=np.float32)
    outputs = weights[count * (features.shape[1] + 1) :]
    for row in range(first, last, 2):
        other = min(row + 1, last - 1)
        hidden_units(weights, hidden, features, row, other, sums, units)
        out[row - first] = dot(units[:count], outputs)
        out[other - first] = dot(units[count:], outputs)


@compiled()
def score(weights, hidden, features, first, last, out):
    """Scores of documents first .. last - 1."""
    if hidden == 0:
        linear_scores(weights, features, first, last, out)
    else:
        mlp_scores(weights, hidden, features, first, last, out)


@compiled()
def add_gradients(master, weights, hidden, features, rows, scales, count):
    """master += sum of scales[i] x gradient of the score of document rows[i], all taken at `weights`."""
    if hidden == 0:
        for i in range(count):
            if scales[i] != 0.0:
                add_scaled(master, scales[i], features[rows[i]])
        return
    add_mlp_gradients(master, weights, hidden, features, rows, scales, count)


@compiled()
def add_mlp_gradients(master, weights, hidden, features, rows, scales, count):
    """Like `add_gradients` for neural rankers, two documents at a time."""
    width, layer = features.shape[1], abs(hidden)
    biases = layer * width
    outputs = biases + layer
    sums = np.empty(2 * layer, dtype=np.float32)
    units = np.empty(2 * layer, dtype=np.float32)
    back = np.empty(2 * layer)  # gradient at the hidden sums, times scale
    for i in range(0, count, 2):
        pair = min(i + 1, count - 1)
        second = scales[pair] if pair > i else 0.0
        hidden_units(weights, hidden, features, rows[i], rows[pair], sums, units)
        for j in range(layer):
            one = np.float64(units[j])
            two = np.float64(units[layer + j])
            if hidden > 0:
                back[j] = scales[i] * weights[outputs + j] * one * (1.0 - one)
                back[layer + j] = second * weights[outputs + j] * two * (1.0 - two)
            else:
                back[j] = scales[i] * weights[outputs + j] * (one > 0.0)
                back[layer + j] = second * weights[outputs + j] * (two > 0.0)
            master[biases + j] += back[j] + back[layer + j]
            master[outputs + j] += scales[i] * one + second * two
        for f in range(width):
            own = master[f * layer : (f + 1) * layer]
            add_two_scaled(own, features[rows[i], f], back[:layer], features[rows[pair], f], back[layer:])


@compiled()
def add_two_scaled(target, a, one, b, two):
    """target += a x one + b x two."""
    for j in range(len(target)):
        target[j] += a * one[j] + b * two[j]


@compiled()
def copy_as_float32(source, target):
    for p in range(len(source)):
        target[p] = source[p]

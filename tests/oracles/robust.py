"""Robust aggregators in plain Python, written from the papers: lists of numbers, loops, no shortcuts."""

from __future__ import annotations

import itertools
import math


def squared_distance(a, b):
    return math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def mean(rows):
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def krum_scores(updates, m, squared):
    """Blanchard et al. (2017), section 4; thesis, section 5.3.1: without the square."""
    n = len(updates)
    scores = []
    for i in range(n):
        distances = [squared_distance(updates[i], updates[j]) for j in range(n) if j != i]
        if not squared:
            distances = [math.sqrt(distance) for distance in distances]
        scores.append(math.fsum(sorted(distances)[: n - m - 2]))
    return scores


def krum(updates, m, squared=False):
    scores = krum_scores(updates, m, squared)
    return list(updates[scores.index(min(scores))])


def multi_krum(updates, m, squared=False):
    scores = krum_scores(updates, m, squared)
    order = sorted(range(len(updates)), key=lambda i: (scores[i], i))
    return mean([updates[i] for i in order[: len(updates) - m]])


def trimmed_mean(updates, m):
    n = len(updates)
    return [math.fsum(sorted(column)[m : n - m]) / (n - 2 * m) for column in zip(*updates, strict=True)]


def median_of(values):
    values, n = sorted(values), len(values)
    return values[n // 2] if n % 2 else (values[n // 2 - 1] + values[n // 2]) / 2


def median(updates):
    return [median_of(column) for column in zip(*updates, strict=True)]


def bulyan(updates, m, squared=False):
    """El Mhamdi et al. (2018), section 4: choose with Krum, then average around the median."""
    n = len(updates)
    remaining, chosen = list(range(n)), []
    while len(chosen) < n - 2 * m:
        best = None
        for i in remaining:
            distances = [squared_distance(updates[i], updates[j]) for j in remaining if j != i]
            if not squared:
                distances = [math.sqrt(distance) for distance in distances]
            distances.sort()
            score = math.fsum(distances[: max(1, len(remaining) - m - 2)])
            # Two that are each other's nearest have equal scores if one distance counts: then all distances decide.
            if best is None or (score, distances) < best[:2]:
                best = (score, distances, i)
        chosen.append(best[2])
        remaining.remove(best[2])
    out = []
    for column in zip(*(updates[i] for i in chosen), strict=True):
        middle = median_of(column)
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))[: n - 4 * m]
        out.append(math.fsum(nearest) / len(nearest))
    return out


def sum_of_distances(updates, point):
    """What the geometric median makes as small as possible."""
    return math.fsum(math.sqrt(squared_distance(update, point)) for update in updates)


def norm_bound(updates, bound=None):
    lengths = [math.sqrt(math.fsum(x * x for x in update)) for update in updates]
    if bound is None:
        bound = median_of(lengths)
    shortened = []
    for update, length in zip(updates, lengths, strict=True):
        factor = bound / length if length > bound else 1.0
        shortened.append([factor * x for x in update])
    return mean(shortened)


def trust(updates, root):
    """Cao et al. (2021), algorithm 2: ReLU-clipped cosines as weights, updates at the length of the server's."""
    long = math.sqrt(math.fsum(x * x for x in root))
    total, change = 0.0, [0.0] * len(root)
    for update in updates:
        length = math.sqrt(math.fsum(x * x for x in update))
        if length == 0 or long == 0:
            continue
        score = max(0.0, math.fsum(x * y for x, y in zip(update, root, strict=True)) / (length * long))
        total += score
        change = [c + score * long / length * x for c, x in zip(change, update, strict=True)]
    return [c / total for c in change] if total else [0.0] * len(root)


def bfgs(pairs, flattest):
    """The whole matrix, by the update formula of Broyden, Fletcher, Goldfarb and Shanno; None without a usable pair.

    A pair is (move of the model, change of the gradient); unlike the paper, pairs without clear positive curvature are
    left out.
    """

    def dot(a, b):
        return math.fsum(x * y for x, y in zip(a, b, strict=True))

    usable = [(s, y) for s, y in pairs if dot(s, y) > flattest * math.sqrt(dot(s, s)) * math.sqrt(dot(y, y))]
    if not usable:
        return None
    s, y = usable[-1]
    size, scale = len(s), dot(s, y) / dot(s, s)
    matrix = [[scale * (i == j) for j in range(size)] for i in range(size)]
    for s, y in usable:
        image = [dot(row, s) for row in matrix]
        ys, sbs = dot(y, s), dot(s, image)
        for i, j in itertools.product(range(size), repeat=2):
            matrix[i][j] += y[i] * y[j] / ys - image[i] * image[j] / sbs
    return matrix


def forecast_distances(rounds, window, flattest):
    """Zhang et al. (2022), equations 2 and 4, for the last of some rounds in which everybody took part.

    A round is (weights, updates). Updates point uphill, so the gradient is an update with its sign turned.
    """
    moves = []
    for (w0, u0), (w1, u1) in itertools.pairwise(rounds[:-1]):
        g0, g1 = mean(u0), mean(u1)
        moves.append(([b - a for a, b in zip(w0, w1, strict=True)], [a - b for a, b in zip(g0, g1, strict=True)]))
    matrix = bfgs(moves[-window:], flattest)
    (before, last), (weights, updates) = rounds[-2:]
    step = [b - a for a, b in zip(before, weights, strict=True)]
    correction = [0.0] * len(step)
    if matrix is not None:
        correction = [math.fsum(x * y for x, y in zip(row, step, strict=True)) for row in matrix]
    out = []
    for old, new in zip(last, updates, strict=True):
        forecast = [x - b for x, b in zip(old, correction, strict=True)]
        out.append(math.sqrt(squared_distance(forecast, new)))
    return out


def best_two_clusters(values):
    """(members of the upper cluster, spread of one cluster, of two), by trying every cut of the ascending values."""

    def spread(some):
        centre = math.fsum(some) / len(some)
        return math.fsum((value - centre) ** 2 for value in some)

    values = sorted(values)
    two, cut = min((spread(values[:i]) + spread(values[i:]), i) for i in range(1, len(values)))
    return len(values) - cut, spread(values), two

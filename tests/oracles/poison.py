"""Slow, obvious versions of attacks on updates, as their papers print them; updates are lists of rows."""

from __future__ import annotations

import math
from itertools import pairwise

from scipy import stats


def lie_z(n, m):
    """Baruch et al., algorithm 3: the largest z that leaves enough honest clients farther out."""
    s = math.floor(n / 2 + 1) - m
    return float(stats.norm.ppf((n - m - s) / (n - m)))


def lie(rows, z):
    """Mean minus z deviations, parameter by parameter."""
    crafted = []
    for column in zip(*rows, strict=True):
        mean = sum(column) / len(column)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in column) / len(column))
        crafted.append(mean - z * deviation)
    return crafted


def krum_scores(rows, neighbours, power=1):
    scores = []
    for i, row in enumerate(rows):
        distances = sorted(math.dist(row, other) ** power for j, other in enumerate(rows) if j != i)
        scores.append(sum(distances[:neighbours]))
    return scores


def fang_step(others, signs, neighbours, counts, wins, power=1):
    """Fang et al., section 4.2: halve from the bound of theorem 1 until Krum picks the crafted update.

    `counts` are the numbers of copies to try in turn; `wins(crafted, rival)` compares two scores.
    """
    root = math.sqrt(sum(sign * sign for sign in signs))
    origin = [0.0] * len(signs)
    for count in counts:
        rival = min(krum_scores(others, neighbours, power))
        farthest = max(math.dist(row, origin) for row in others)
        step = ((rival / max(neighbours - (count - 1), 1)) ** (1 / power) + farthest) / root
        for _ in range(20):
            crafted = [-step * sign for sign in signs]
            scores = krum_scores([crafted] * count + others, neighbours, power)
            if wins(min(scores[:count]), min(scores[count:])):
                return step
            step /= 2
    return 2 * step


def fang_interval(mean, values):
    """Fang et al., section 4.3, with b = 2: where the attackers' values of one parameter are drawn from."""
    if mean < 0:
        largest = max(values)
        return (largest, 2 * largest) if largest > 0 else (largest, largest / 2)
    smallest = min(values)
    return (smallest / 2, smallest) if smallest > 0 else (2 * smallest, smallest)


def fang_guess(values):
    """Fang et al., section 4.3, partial knowledge: where one parameter is drawn from, by the attackers' own values."""
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    if mean < 0:
        return mean + 3 * deviation, mean + 4 * deviation
    return mean - 4 * deviation, mean - 3 * deviation


def push(rows, perturbation):
    columns = list(zip(*rows, strict=True))
    mean = [sum(column) / len(column) for column in columns]
    if perturbation == "unit":
        length = math.sqrt(sum(value * value for value in mean))
        return mean, [-value / length for value in mean]
    if perturbation == "sign":
        return mean, [-math.copysign(1, value) if value else 0.0 for value in mean]
    return mean, [
        -math.sqrt(sum((value - centre) ** 2 for value in column) / (len(column) - 1))
        for column, centre in zip(columns, mean, strict=True)
    ]


def is_within_max(rows, crafted):
    largest = max(math.dist(one, other) for one in rows for other in rows)
    return max(math.dist(crafted, row) for row in rows) <= largest


def is_within_sum(rows, crafted):
    smallest = min(sum(math.dist(one, other) ** 2 for other in rows) for one in rows)
    return sum(math.dist(crafted, row) ** 2 for row in rows) <= smallest


def halving(rows, perturbation, allowed, first=10.0, precision=1e-6):
    """Shejwalkar and Houmansadr, algorithm 1: the crafted update with the largest gamma that is allowed."""
    mean, direction = push(rows, perturbation)
    gamma, step, best = first, first, 0.0
    while abs(best - gamma) > precision:
        crafted = [centre + gamma * part for centre, part in zip(mean, direction, strict=True)]
        if allowed(rows, crafted):
            best = gamma
            gamma += step / 2
        else:
            gamma -= step / 2
        step /= 2
    return [centre + best * part for centre, part in zip(mean, direction, strict=True)]


def promotion(scores, marks, offsets, top, share):
    """Mean over queries of the share of their most marked documents that are in the top; no ties."""
    found = []
    for begin, end in pairwise(offsets):
        documents = range(begin, end)
        if end - begin <= top:
            continue
        count = max(1, math.floor(share * (end - begin) + 0.5))
        targets = sorted(documents, key=lambda row: -marks[row])[:count]
        shown = sorted(documents, key=lambda row: -scores[row])[:top]
        found.append(sum(row in shown for row in targets) / count)
    return sum(found) / len(found)

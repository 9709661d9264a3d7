"""Propensities as the papers write them: dictionaries, sums over pairs of positions, general optimisers."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from scipy.optimize import minimize


def cells(shown):
    """(pair, position) -> [times shown, times clicked]."""
    found: dict[tuple[int, int], list[int]] = {}
    for pair, position, clicked in zip(shown.pair, shown.position, shown.clicked, strict=True):
        one = found.setdefault((int(pair), int(position)), [0, 0])
        one[0] += 1
        one[1] += int(clicked)
    return found


def interventions(shown):
    """(a, b), a < b -> weighted click rates in a and in b of the documents that were in both."""
    by_pair: dict[int, dict[int, list[int]]] = {}
    for (pair, position), counts in cells(shown).items():
        by_pair.setdefault(pair, {})[position] = counts
    sets: dict[tuple[int, int], list[float]] = {}
    for positions in by_pair.values():
        for a, b in combinations(sorted(positions), 2):
            (n, c), (m, d) = positions[a], positions[b]
            weight = n * m / (n + m)
            one = sets.setdefault((a, b), [0.0, 0.0, 0.0])
            one[0] += weight
            one[1] += weight * c / n
            one[2] += weight * d / m
    return sets


def all_pairs(shown, positions):
    """Propensities that make the clicks of all pairs of positions likeliest; clicks are counts with a rate p x r."""
    sets = interventions(shown)

    def cost(free):
        logs = np.concatenate([[0.0], free])
        total = 0.0
        for (a, b), (_, one, two) in sets.items():
            highest = max(logs[a], logs[b])
            both = highest + math.log(math.exp(logs[a] - highest) + math.exp(logs[b] - highest))
            total -= one * (logs[a] - both) + two * (logs[b] - both)
        return total

    return np.concatenate([[1.0], np.exp(minimize(cost, np.zeros(positions - 1), tol=1e-12).x)])


def regression_em(position, times, clicks, table, positions, steps):
    """Regression EM (Wang et al., 2018) as it is written, the first position always looked at; relevance by Newton."""
    looked, weights = np.ones(positions) * 0.5, np.zeros(table.shape[1])
    looked[0] = 1.0
    for _ in range(steps):
        relevant = 1 / (1 + np.exp(-table @ weights))
        here = looked[position]
        # What was not clicked: looked at and not relevant; relevant and not looked at.
        examined = clicks + (times - clicks) * here * (1 - relevant) / (1 - here * relevant)
        good = clicks + (times - clicks) * relevant * (1 - here) / (1 - here * relevant)
        for k in range(1, positions):
            looked[k] = examined[position == k].sum() / times[position == k].sum()
        curve = (table * (times * relevant * (1 - relevant))[:, None]).T @ table + np.eye(table.shape[1])
        weights = weights + np.linalg.solve(curve, table.T @ (good - times * relevant) - weights)
    return looked


def softmax_update(weights, features, relevance, rate):
    """One step of the softmax loss, document by document."""
    known = [d for d in range(len(relevance)) if not math.isnan(relevance[d])]
    scores = {d: float(features[d] @ weights) for d in known}
    mass = sum(math.exp(score) for score in scores.values())
    total = sum(float(relevance[d]) for d in known)
    if all(relevance[d] == 0 for d in known):
        return np.zeros(len(weights))
    step = np.zeros(len(weights))
    for d in known:
        step += rate * (float(relevance[d]) - total * math.exp(scores[d]) / mass) * features[d].astype(float)
    return step


def hinge_update(weights, features, relevance, rate):
    """One step of the hinge loss, pair by pair; documents with unknown relevance take no part."""
    step = [0.0] * len(weights)
    scores = [float(sum(w * float(x) for w, x in zip(weights, row, strict=True))) for row in features]
    for d, one in enumerate(relevance):
        for e, other in enumerate(relevance):
            if d == e or math.isnan(one) or math.isnan(other) or scores[d] - scores[e] >= 1:
                continue
            for i in range(len(step)):
                step[i] += float(one) * (float(features[d][i]) - float(features[e][i]))
    return [rate * one for one in step]


def clicks_with(shown, scores, looked, extra, most):
    """Clicks a list if scores ordered every list, document by document; weights are `most` at most."""
    by_search: dict[int, list[int]] = {}
    for row, search in enumerate(shown.search):
        by_search.setdefault(int(search), []).append(row)
    there = {}
    for rows in by_search.values():
        positions = sorted(int(shown.position[row]) for row in rows)
        ranked = sorted(rows, key=lambda row: (-scores[row], shown.position[row]))
        there |= dict(zip(ranked, positions, strict=True))
    found = stands_for = would_in_all = unread = 0.0
    for pair in set(shown.pair.tolist()):
        rows = [row for row in range(len(shown.pair)) if shown.pair[row] == pair]
        seen = sum(looked[shown.position[row]] for row in rows)
        would = sum(looked[there[row]] for row in rows)
        clicks = sum(int(shown.clicked[row]) - extra[shown.position[row]] for row in rows)
        found += min(would / seen, most) * clicks
        stands_for += min(would / seen, most) * seen
        would_in_all += would
        unread += sum(extra[there[row]] for row in rows)
    return (found / stands_for * would_in_all + unread) / len(by_search)


def slope_by_instrument(shown, predicted):
    """Slope of the second position: ratio of the covariances of click rates with predictions, over moved documents."""
    by_pair: dict[int, dict[int, list[int]]] = {}
    for (pair, position), counts in cells(shown).items():
        by_pair.setdefault(pair, {})[position] = counts
    rows = []
    for pair, at in by_pair.items():
        if {0, 1} <= set(at):
            (n, c), (m, d) = at[0], at[1]
            rows.append((n * m / (n + m), c / n, d / m, predicted[pair]))
    weight, x, y, z = (np.array(column) for column in zip(*rows, strict=True))
    x, y, z = (values - np.average(values, weights=weight) for values in (x, y, z))
    return np.sum(weight * y * z) / np.sum(weight * x * z)

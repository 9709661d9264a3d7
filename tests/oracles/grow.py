"""LambdaMART on histograms, slowly: every pair, every row and every split looked at one after the other."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np


def lambdas(scores, grades, norm, truncation):
    """Gradients and hessians of one query, pair by pair."""
    count = len(scores)
    # Equal scores stay in the order in which they stand; scores are compared as every measure sees them.
    order = sorted(range(count), key=lambda d: (-np.float32(scores[d]), d))
    rank = {document: place for place, document in enumerate(order)}
    best = sum((2.0**g - 1) / math.log2(p + 2) for p, g in enumerate(sorted(grades, reverse=True)[:truncation]))
    gradient, hessian, total = np.zeros(count), np.zeros(count), 0.0
    if best == 0:
        return gradient, hessian
    apart = scores[order[0]] != scores[order[-1]]
    for high in range(count):
        for low in range(count):
            if grades[high] <= grades[low] or min(rank[high], rank[low]) >= truncation:
                continue
            swap = (2.0 ** grades[high] - 2.0 ** grades[low]) / best
            swap *= abs(1 / math.log2(rank[high] + 2) - 1 / math.log2(rank[low] + 2))
            difference = scores[high] - scores[low]
            if norm and apart:
                swap /= 0.01 + abs(difference)
            chance = 1 / (1 + math.exp(difference))
            gradient[high] -= swap * chance
            gradient[low] += swap * chance
            hessian[high] += swap * chance * (1 - chance)
            hessian[low] += swap * chance * (1 - chance)
            total += 2 * swap * chance
    scale = math.log2(1 + total) / total if norm and total > 0 else 1.0
    return gradient * scale, hessian * scale


def all_lambdas(scores, data, norm=True, truncation=30):
    """Of every query, one after the other."""
    parts = [lambdas(scores[a:b], data.grades[a:b].tolist(), norm, truncation) for a, b in pairwise(data.offsets)]
    return np.concatenate([g for g, _ in parts]), np.concatenate([h for _, h in parts])


def grow_tree(data, edges, gradient, hessian, rules):
    """One tree leaf-wise: cuts (leaf, new, feature, bin), and the rows and values of its leaves.

    Gradients are given as they are to be added up: whole numbers, or floats.
    """
    unit = 2.0**-rules.fraction

    def fall(rows):
        curve = hessian[rows].sum() * unit + rules.l2
        return (gradient[rows].sum() * unit) ** 2 / curve if curve > 0 else 0.0

    def fits(rows):
        weight = hessian[rows].sum()
        return len(rows) >= rules.min_data_in_leaf and weight > 0 and weight * unit >= rules.min_sum_hessian

    def best(rows, depth):
        found = (0.0, None)
        if rules.depth and depth >= rules.depth:
            return found
        for feature in range(edges.features):
            values = data.features[rows, feature]
            for b, edge in enumerate(edges.values[feature]):
                left, right = rows[values <= edge], rows[values > edge]
                if fits(left) and fits(right):
                    gain = fall(left) + fall(right) - fall(rows)
                    if gain > found[0]:
                        found = (gain, (feature, b, left, right))
        return found

    everybody = np.arange(data.documents)
    leaves, depths, cuts = [everybody], [0], []
    splits = [best(everybody, 0)]
    while len(leaves) < rules.leaves and max(gain for gain, _ in splits) > 0:
        leaf = max(range(len(leaves)), key=lambda one: (splits[one][0], -one))
        feature, b, left, right = splits[leaf][1]
        cuts.append((leaf, len(leaves), feature, b))
        depths[leaf] += 1
        leaves[leaf], splits[leaf] = left, best(left, depths[leaf])
        leaves.append(right)
        depths.append(depths[leaf])
        splits.append(best(right, depths[leaf]))
    values = [rules.rate * (-gradient[rows].sum() * unit) / (hessian[rows].sum() * unit + rules.l2) for rows in leaves]
    return cuts, leaves, values


def grow(data, edges, rules, rounded=True):
    """A forest: for every tree its cuts and values; and the scores of all rows after it."""
    scores, trees, scale = np.zeros(data.documents), [], 2.0**rules.fraction
    for _ in range(rules.trees):
        gradient, hessian = (
            part * scale for part in all_lambdas(scores, data, rules.lambda_norm, rules.lambda_truncation)
        )
        if rounded:
            gradient, hessian = np.rint(gradient).astype(np.int64), np.rint(hessian).astype(np.int64)
        cuts, leaves, values = grow_tree(data, edges, gradient, hessian, rules)
        for rows, value in zip(leaves, values, strict=True):
            scores[rows] += value
        trees.append((cuts, values))
    return trees, scores


def grow_with_votes(parts, edges, rules, vote):
    """The same where each of some clients votes for features of every leaf: for every tree its cuts and values."""
    scores, trees, scale = [np.zeros(part.documents) for part in parts], [], 2.0**rules.fraction
    for _ in range(rules.trees):
        sums = []
        for part, own in zip(parts, scores, strict=True):
            found = all_lambdas(own, part, rules.lambda_norm, rules.lambda_truncation)
            sums.append([np.rint(values * scale).astype(np.int64) for values in found])
        cuts, leaves, values = grow_elected_tree(parts, sums, edges, rules, vote)
        for leaf, value in zip(leaves, values, strict=True):
            for client, rows in enumerate(leaf):
                scores[client][rows] += value
        trees.append((cuts, values))
    return trees


def grow_elected_tree(parts, sums, edges, rules, vote):
    """One tree; a leaf are the rows of every client in it. sums: gradients and hessians of each client's rows."""
    unit, features, everybody = 2.0**-rules.fraction, range(edges.features), range(len(parts))

    def totals(leaf, clients):
        gradient, hessian = (sum(int(sums[c][i][leaf[c]].sum()) for c in clients) for i in range(2))
        return sum(len(leaf[c]) for c in clients), gradient, hessian

    def divided(leaf, feature, b):
        goes = [parts[c].features[leaf[c], feature] <= edges.values[feature][b] for c in everybody]
        return [[leaf[c][goes[c] == left] for c in everybody] for left in (True, False)]

    def gains(leaf, clients, least, least_hessian):
        """By feature and bin, of these clients' rows in a leaf together."""
        found = {}
        for feature in features:
            for b in range(len(edges.values[feature])):
                sides = [totals(side, clients) for side in divided(leaf, feature, b)]
                if all(rows >= least and h > 0 and h * unit >= least_hessian for rows, _, h in sides):
                    falls = [(g * unit) ** 2 / (h * unit + rules.l2) for _, g, h in [*sides, totals(leaf, clients)]]
                    found[feature, b] = falls[0] + falls[1] - falls[2]
        return found

    def elected(leaf):
        if not may_split(leaf):
            return set()
        votes, many = [0] * edges.features, len(parts)
        for client in everybody:
            own = gains(leaf, [client], max(1, rules.min_data_in_leaf // many), rules.min_sum_hessian / many)
            best = [max([own[key] for key in own if key[0] == feature], default=0.0) for feature in features]
            for feature in sorted(features, key=lambda f, best=best: (-best[f], f))[:vote]:
                votes[feature] += best[feature] > 0
        return set(sorted(features, key=lambda f: (-votes[f], f))[: 2 * vote])

    def best(leaf, known):
        found = gains(leaf, everybody, rules.min_data_in_leaf, rules.min_sum_hessian)
        allowed = [(gain, -f, -b) for (f, b), gain in found.items() if f in known and gain > 0 and may_split(leaf)]
        return max(allowed, default=(0.0, 0, 0))

    def may_split(leaf):
        return totals(leaf, everybody)[0] >= 2 * rules.min_data_in_leaf

    root = [np.arange(part.documents) for part in parts]
    leaves, known, cuts = [root], [elected(root)], []
    splits = [best(root, known[0])]
    while len(leaves) < rules.leaves and max(splits)[0] > 0:
        at = max(range(len(leaves)), key=lambda one: (splits[one][0], -one))
        feature, b = -splits[at][1], -splits[at][2]
        cuts.append((at, len(leaves), feature, b))
        new = divided(leaves[at], feature, b)
        one, other = map(elected, new)
        # What is known of the leaf before and of one part is known of the other part, too.
        both = [one | (other & known[at]), other | (one & known[at])]
        leaves[at], known[at], splits[at] = new[0], both[0], best(new[0], both[0])
        leaves.append(new[1])
        known.append(both[1])
        splits.append(best(new[1], both[1]))
    found = [totals(leaf, everybody) for leaf in leaves]
    return cuts, leaves, [rules.rate * (-g * unit) / (h * unit + rules.l2) for _, g, h in found]

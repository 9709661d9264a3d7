"""LambdaRank (Burges, 2010) on true relevance labels, as an upper bound.

Number of draws within an interaction's stream: 0 query.
"""

from __future__ import annotations

import numpy as np

from fedrank.kernels.chance import stream, uniform
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts, exponentials
from fedrank.kernels.rankers import add_gradients, copy_as_float32, score
from fedrank.kernels.records import Candidates, ClientArrays, ClientLabels
from fedrank.kernels.show import SHOWN, insert


@compiled()
def lambdas(scores, grades, count, ranks, ideal, discount, scales):
    """scales[d] = sum over better-worse pairs of sigmoid(-difference) x change in nDCG@10 if the two were swapped."""
    swaps, differences, exps = np.empty(count), np.empty(count), np.empty(count)
    others = np.empty(count, dtype=np.int64)
    for d in range(count):
        scales[d] = 0.0
        discount_d = discount[ranks[d]] if ranks[d] < SHOWN else 0.0
        pairs = 0
        for e in range(d):
            if grades[d] == grades[e] or (ranks[d] >= SHOWN and ranks[e] >= SHOWN):
                continue
            discount_e = discount[ranks[e]] if ranks[e] < SHOWN else 0.0
            better = 1.0 if grades[d] > grades[e] else -1.0
            # The sign determines which of the two is better.
            swaps[pairs] = better * abs(2.0 ** grades[d] - 2.0 ** grades[e]) * abs(discount_d - discount_e) / ideal
            difference = better * (np.float64(scores[d]) - np.float64(scores[e]))
            differences[pairs] = min(max(difference, -500.0), 500.0)
            others[pairs] = e
            pairs += 1
        exponentials(differences, pairs, exps)
        for i in range(pairs):
            pull = swaps[i] / (1.0 + exps[i])
            scales[d] += pull
            scales[others[i]] -= pull


@compiled()
def learn_grades(master, weights, hidden, features, begin, count, grades, ideal, rate, discount, scores):
    """Add the gradient of one query's labels to `master`. The query's documents are features[begin : begin + count]."""
    ranks, rows, scales = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count)
    keys, shown = np.empty(SHOWN), np.empty(SHOWN, np.int64)
    score(weights, hidden, features, begin, begin + count, scores)
    size = min(SHOWN, count)
    filled = 0
    for d in range(count):
        ranks[d] = SHOWN
        rows[d] = begin + d
        if filled < size or -scores[d] < keys[size - 1]:
            filled = insert(keys[:size], shown, filled, -np.float64(scores[d]), d)
    for i in range(size):
        ranks[shown[i]] = i
    lambdas(scores, grades, count, ranks, ideal, discount, scales)
    for d in range(count):
        scales[d] *= rate
    add_gradients(master, weights, hidden, features, rows, scales, count)


@compiled()
def lambdarank_clients(starts, key, rate, hidden, documents, longest, client_arrays, views, first, last, updates):
    """Train clients first .. last - 1 on the labels of the queries that they draw, one step per query."""
    table, held, seen = Candidates(*documents), ClientArrays(*client_arrays), ClientLabels(*views)
    parameters = starts.shape[1]
    weights = np.empty(parameters, dtype=np.float32)
    master = np.empty(parameters)
    scores = np.empty(longest, dtype=np.float32)
    discount = discounts(SHOWN)

    for c in range(first, last):
        start = starts[c if len(starts) > 1 else 0]
        for p in range(parameters):
            weights[p] = start[p]
            master[p] = start[p]
        client = stream(key, held.ids[c])
        pool_start = held.pools[held.pool[c]]
        pool_size = held.pools[held.pool[c] + 1] - pool_start
        grades = seen.grades[seen.views[c]]
        for interaction in range(held.interactions[c]):
            place = held.at[c] + interaction if len(held.at) > 0 else interaction
            chance = stream(client, place)
            query = held.queries[pool_start + (place if len(held.at) > 0 else np.int64(uniform(chance, 0) * pool_size))]
            begin, end = table.offsets[query], table.offsets[query + 1]
            best = seen.ideal[seen.views[c], query]
            if best > 0.0:
                learn_grades(
                    master, weights, hidden, table.features, begin, end - begin, grades[begin:end], best, rate,
                    discount, scores,
                )  # fmt: skip
                copy_as_float32(master, weights)
        for p in range(parameters):
            updates[c, p] = master[p] - start[p]

"""Learn from logged lists with weighted clicks: the softmax or hinge loss with inverse propensity weights.

Number of draws within an interaction's stream: 0 query.
"""

from __future__ import annotations

import numpy as np

from fedrank.kernels.chance import stream, uniform
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import exponentials
from fedrank.kernels.pdgd import add_clipped_gradients, pull_back, shorten
from fedrank.kernels.rankers import add_gradients, add_scaled, copy_as_float32, score
from fedrank.kernels.records import Candidates, ClientArrays, Corrections, Steps


@compiled()
def softmax_pulls(scores, relevance, count, scales):
    """scales[d] = relevance of d - (total relevance) x softmax of d; returns whether there is anything to learn.

    This is the gradient of the sum of relevance[d] x log softmax(d). It is linear in relevance, so relevance that is
    unbiased gives an unbiased gradient. Documents with NaN relevance are ignored.
    """
    total = 0.0
    highest = -np.inf
    some = False
    for d in range(count):
        scales[d] = 0.0
        if not np.isnan(relevance[d]):
            total += relevance[d]
            highest = max(highest, np.float64(scores[d]))
            some = some or relevance[d] != 0.0
    if not some:
        return False
    away, exps = np.empty(count), np.empty(count)
    for d in range(count):
        away[d] = max(np.float64(scores[d]) - highest, -700.0)
    exponentials(away, count, exps)
    mass = 0.0
    for d in range(count):
        if not np.isnan(relevance[d]):
            mass += exps[d]
    for d in range(count):
        if not np.isnan(relevance[d]):
            scales[d] = relevance[d] - total * exps[d] / mass
    return True


@compiled()
def hinge_pulls(scores, relevance, count, scales):
    """`softmax_pulls` for the sum of relevance[d] x max(0, 1 - (score of d - score of e)), over d and all others e."""
    for d in range(count):
        scales[d] = 0.0
    some = False
    for d in range(count):
        if np.isnan(relevance[d]) or relevance[d] == 0.0:
            continue
        some = True
        for e in range(count):
            if e != d and not np.isnan(relevance[e]) and np.float64(scores[d]) - np.float64(scores[e]) < 1.0:
                scales[d] += relevance[d]
                scales[e] -= relevance[d]
    return some


@compiled()
def learn_clicks(master, weights, hidden, features, begin, count, relevance, hinge, steps, scores, scales, rows, own):
    """Add the gradient of one list to `master`; returns whether there was anything to learn.

    The list is features[begin : begin + count]. The last four are scratch.
    """
    score(weights, hidden, features, begin, begin + count, scores)
    some = hinge_pulls(scores, relevance, count, scales) if hinge else softmax_pulls(scores, relevance, count, scales)
    if not some:
        return False
    for d in range(count):
        rows[d] = begin + d
    if steps.clip_gradients > 0.0:
        add_clipped_gradients(
            master, weights, hidden, features, rows, scales, count, steps.rate, steps.clip_gradients, own
        )
        return True
    for d in range(count):
        scales[d] *= steps.rate
    add_gradients(master, weights, hidden, features, rows, scales, count)
    return True


@compiled()
def learn_list(master, weights, hidden, features, relevance, hinge, how_stepped, own):
    """`learn_clicks` for a single list."""
    count = len(relevance)
    return learn_clicks(
        master, weights, hidden, features, 0, count, relevance, hinge, Steps(*how_stepped),
        np.empty(count, np.float32), np.empty(count), np.empty(count, np.int64), own,
    )  # fmt: skip


@compiled()
def logged_clients(
    starts,
    key,
    hinge,
    how_stepped,
    how_bent,
    hidden,
    documents,
    relevance,
    longest,
    client_arrays,
    first,
    last,
    updates,
):
    """Train clients first .. last - 1 on their lists; fills their rows of `updates` and personal weights."""
    steps, corrections, table, held = (
        Steps(*how_stepped),
        Corrections(*how_bent),
        Candidates(*documents),
        ClientArrays(*client_arrays),
    )
    parameters = starts.shape[1]
    shared = parameters - corrections.personal.shape[1] if len(corrections.personal) > 0 else parameters
    # Also with clipping: a model that is not clipped would reveal a lack of clicks.
    bent = corrections.pull != 0.0 or len(corrections.drifts) > 0 or steps.clip_weights > 0.0
    weights = np.empty(parameters, dtype=np.float32)
    master = np.empty(parameters)
    scores = np.empty(longest, dtype=np.float32)
    scales = np.empty(longest)
    rows = np.empty(longest, dtype=np.int64)
    gradient = np.empty(parameters if steps.clip_gradients > 0.0 else 0)

    for c in range(first, last):
        start = starts[c if len(starts) > 1 else 0]
        for p in range(parameters):
            weights[p] = start[p]
            master[p] = start[p]
        for p in range(shared, parameters):
            weights[p] = corrections.personal[c, p - shared]
            master[p] = corrections.personal[c, p - shared]
        client = stream(key, held.ids[c])
        pool_start = held.pools[held.pool[c]]
        pool_size = held.pools[held.pool[c] + 1] - pool_start
        for interaction in range(held.interactions[c]):
            place = held.at[c] + interaction if len(held.at) > 0 else interaction
            chance = stream(client, place)
            query = held.queries[pool_start + (place if len(held.at) > 0 else np.int64(uniform(chance, 0) * pool_size))]
            begin, end = table.offsets[query], table.offsets[query + 1]
            if corrections.pull != 0.0:
                pull_back(master, start, shared, corrections.pull)
            if len(corrections.drifts) > 0:
                add_scaled(master, steps.rate, corrections.drifts[c])
            moved = learn_clicks(
                master, weights, hidden, table.features, begin, end - begin, relevance[begin:end], hinge, steps,
                scores, scales, rows, gradient,
            )  # fmt: skip
            if (moved or bent) and not steps.batch:
                if steps.clip_weights > 0.0:
                    shorten(master, steps.clip_weights)
                copy_as_float32(master, weights)
        if steps.clip_weights > 0.0 and steps.batch and held.interactions[c] > 0:
            shorten(master, steps.clip_weights)
        for p in range(shared):
            updates[c, p] = master[p] - start[p]
        for p in range(shared, parameters):
            updates[c, p] = 0.0
            corrections.personal[c, p - shared] = master[p]

"""Pairwise Differentiable Gradient Descent (Oosterhuis and de Rijke, CIKM 2018), for all clients of a round.

Numbers of draws within an interaction's stream: 0 query, 1 user, 2 .. 21 clicks and stops, 22 + d document d.
"""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.chance import stream, uniform
from fedrank.kernels.clicks import read_and_click
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts, exp, exponentials, log, log1p, logarithms
from fedrank.kernels.rankers import add_gradients, add_scaled, copy_as_float32, score

SHOWN = 10
FIRST_CLICK_DRAW = 2
FIRST_DOCUMENT_DRAW = 22
FAR_APART = 500.0  # beyond this spread of scores, e^(score - highest) comes near underflow: logarithms from then on


@compiled()
def rates(scores, count, scratch, out):
    """out[d] = e^(score - highest score); returns the spread of the scores."""
    highest = scores[0]
    lowest = scores[0]
    for d in range(1, count):
        highest = max(highest, scores[d])
        lowest = min(lowest, scores[d])
    for d in range(count):
        scratch[d] = np.float64(scores[d]) - np.float64(highest)
    exponentials(scratch, count, out)
    return np.float64(highest) - np.float64(lowest)


@compiled()
def insert(keys, shown, filled, key, document):
    """Insert into the ascending list of the len(keys) smallest; returns how many it holds now."""
    at = filled if filled < len(keys) else len(keys) - 1
    while at > 0 and keys[at - 1] > key:
        keys[at] = keys[at - 1]
        shown[at] = shown[at - 1]
        at -= 1
    keys[at] = key
    shown[at] = document
    return min(filled + 1, len(keys))


@compiled()
def plackett_luce(scores, exps, spread, count, stream, draws, chosen, times, early, ranks, shown):
    """Draw the top of a Plackett-Luce ranking: documents race, and arrive at exponential times of rate e^score.

    Exact: the same as sorting scores with Gumbel noise. Only documents that can arrive before a deadline need their
    time, -log(u) / rate; since that is at least (1 - u) / rate, one multiplication rules the others out. The deadline
    moves until enough have arrived. All arrays from `draws` to `ranks` are scratch of at least `count`. Returns the
    length of the list, with the documents in `shown`.
    """
    size = min(SHOWN, count)
    for d in range(count):
        draws[d] = uniform(stream, FIRST_DOCUMENT_DRAW + d)
    total = 0.0
    for d in range(count):
        total += exps[d]
    if not spread < FAR_APART or not total > 0.0:  # far apart, or no longer numbers
        filled = 0
        for d in range(count):
            log_time = log(-log(draws[d])) - scores[d]
            if filled < size or log_time < times[size - 1]:
                filled = insert(times[:size], shown, filled, log_time, d)
        return size

    deadline = 1.8 * SHOWN / total  # if rates were alike, about 1.8 times as many as needed would arrive by then
    while True:
        candidates = 0
        for d in range(count):
            early[candidates] = d
            candidates += 1.0 - draws[d] < deadline * exps[d]
        for i in range(candidates):
            chosen[i] = draws[early[i]]
        logarithms(chosen, candidates, times)
        arrived = 0
        for i in range(candidates):
            times[i] = -times[i] / exps[early[i]]
            arrived += times[i] < deadline
        if arrived >= size or candidates == count:
            break
        deadline *= 2.5
    for i in range(candidates):  # a candidate's rank is the number of those that came before it
        rank = np.int64(0)
        for j in range(i):
            before = np.int64(times[j] <= times[i])
            rank += before
            ranks[j] += 1 - before
        ranks[i] = rank
    for i in range(candidates):
        if ranks[i] < size:
            shown[ranks[i]] = early[i]
    return size


@compiled()
def log_add(a, b):
    high = max(a, b)
    if high == -np.inf:
        return high
    return high + log1p(exp(min(a, b) - high))


@compiled()
def pair_weights(scores, exps, spread, count, shown, size, clicked, considered, scales):
    """scales[i] = sum over the pairs of position i of +-(rho x slope): how much its score should rise or fall.

    With Z_i = sum of e^score over documents not shown before position i, swapping positions a < b changes the list's
    probability by the product over i = a+1 .. b of Z_i / (Z_i + e_a - e_b). Z_i and Z_i - e_b are built from the end
    by adding positive terms: subtraction would cancel when scores are far apart.
    """
    for i in range(size):
        scales[i] = 0.0
    if not spread < FAR_APART:  # also where scores are no longer numbers
        pair_weights_in_logarithms(scores, count, shown, size, clicked, considered, scales)
        return
    top = np.empty(size)  # e^score by position
    tail = np.empty(size + 1)  # Z by position
    for i in range(size):
        top[i] = exps[shown[i]]
        exps[shown[i]] = 0.0
    rest = 0.0
    for d in range(count):
        rest += exps[d]
    for i in range(size):
        exps[shown[i]] = top[i]
    tail[size] = rest
    for i in range(size - 1, -1, -1):
        tail[i] = tail[i + 1] + top[i]
    without = np.empty(size)  # Z_i - e_b for i = a+1 .. b
    for b in range(1, considered):
        without[b] = tail[b + 1]
        for i in range(b - 1, 0, -1):
            without[i] = without[i + 1] + top[i]
        for a in range(b):
            if clicked[a] == clicked[b]:
                continue
            inverse = 1.0  # P(list) / P(swapped list)
            for i in range(a + 1, b + 1):
                inverse *= (without[i] + top[a]) / tail[i]
            odds = min(top[a], top[b]) / max(top[a], top[b])
            weight = odds / ((1.0 + odds) * (1.0 + odds)) / (1.0 + inverse)
            sign = 1.0 if clicked[a] else -1.0
            scales[a] += sign * weight
            scales[b] -= sign * weight


@compiled()
def pair_weights_in_logarithms(scores, count, shown, size, clicked, considered, scales):
    """The same with every sum as a logarithm: slower, and safe whatever the scores."""
    is_shown = np.zeros(count, dtype=np.bool_)
    for i in range(size):
        is_shown[shown[i]] = True
    rest = -np.inf
    for d in range(count):
        if not is_shown[d]:
            rest = log_add(rest, np.float64(scores[d]))
    tail = np.empty(size + 1)
    tail[size] = rest
    for i in range(size - 1, -1, -1):
        tail[i] = log_add(tail[i + 1], np.float64(scores[shown[i]]))
    without = np.empty(size)
    for b in range(1, considered):
        without[b] = tail[b + 1]
        for i in range(b - 1, 0, -1):
            without[i] = log_add(without[i + 1], np.float64(scores[shown[i]]))
        for a in range(b):
            if clicked[a] == clicked[b]:
                continue
            score_a = np.float64(scores[shown[a]])
            log_inverse = 0.0
            for i in range(a + 1, b + 1):
                log_inverse += log_add(without[i], score_a) - tail[i]
            odds = exp(-abs(score_a - np.float64(scores[shown[b]])))
            rho = 1.0 / (1.0 + exp(log_inverse)) if log_inverse < 700.0 else 0.0
            weight = odds / ((1.0 + odds) * (1.0 + odds)) * rho
            sign = 1.0 if clicked[a] else -1.0
            scales[a] += sign * weight
            scales[b] -= sign * weight


@compiled()
def shown_ndcg(grades, shown, size, ideal, discount):
    """nDCG@10 of a shown list; 0 for a query without a relevant document."""
    if ideal == 0.0:
        return 0.0
    gain = 0.0
    for i in range(min(size, SHOWN)):
        gain += (2.0 ** grades[shown[i]] - 1.0) * discount[i]
    return gain / ideal


@compiled()
def as_logged(grades, count, shown, clicked):
    """All documents as they stand, with clicks on those that have a grade; returns how many positions count.

    These are the same as after `read_and_click`: all down to the one after the last click.
    """
    considered = 0
    for d in range(count):
        shown[d] = d
        clicked[d] = grades[d] > 0
        if clicked[d]:
            considered = d + 2
    return min(considered, count)


@compiled()
def pull_back(master, start, shared, strength):
    """FedProx: move the first `shared` parameters a share of the way back to where the client started."""
    for p in range(shared):
        master[p] -= strength * (master[p] - start[p])


@compiled()
def norm(vector):
    total = 0.0
    for i in range(len(vector)):
        total += vector[i] * vector[i]
    return math.sqrt(total)


@compiled()
def shorten(vector, longest):
    """Scale a vector down to the norm `longest` if it is longer."""
    length = norm(vector)
    if length > longest:
        for i in range(len(vector)):
            vector[i] *= longest / length


@compiled()
def add_clipped_gradients(master, weights, hidden, features, rows, scales, count, rate, longest, own):
    """master += rate x gradient of one interaction, of norm `longest` at most. `own` is scratch.

    A gradient that is no number adds nothing, since no bound holds for it.
    """
    own[:] = 0.0
    add_gradients(own, weights, hidden, features, rows, scales, count)
    shorten(own, longest)
    if norm(own) < np.inf:
        add_scaled(master, rate, own)


@compiled()
def pdgd_clients(
    starts, key, rate, batch, logged, prox, clip_weights, clip_gradients, drifts, hidden, features, offsets, longest,
    ids, pool, view, user, interactions, queries, pools, at, grades, ideal, click, stop, attention,
    first, last, updates, online, personal,
):  # fmt: skip
    """Clients first .. last - 1 search, click and learn; rows of `updates`, `online` and `personal` are theirs.

    `starts` [1 or clients, parameters] float32. With `batch` all gradients of a client are taken at its start and
    summed into one step; otherwise it steps after every interaction. With `logged` the list of a query is all its
    documents in their order, and what has a grade was clicked: nothing is drawn. `prox` pulls a client back to its
    start, and its row of `drifts` [clients or 0, parameters] is added to every gradient; both also act where no pair
    was found. `clip_weights` is the largest norm of the model after every step, and `clip_gradients` (with `batch`)
    that of the gradient of one interaction; 0: any. `personal` [clients or 0, units] are output weights that stay with
    their client: it learns them in place, and their part of the update is 0. `at` [clients or 0]: the place in its pool
    from which a client takes its queries in order; chance is then keyed by that place, however interactions are
    batched.
    """
    parameters = starts.shape[1]
    shared = parameters - personal.shape[1] if len(personal) > 0 else parameters
    # There is a step without a gradient. With clips too: a model left too long would tell that nobody clicked.
    corrected = prox != 0.0 or len(drifts) > 0 or clip_weights > 0.0
    weights = np.empty(parameters, dtype=np.float32)  # what scores are computed with
    master = np.empty(parameters)  # the same in double precision, so that small steps are not lost
    scores = np.empty(longest, dtype=np.float32)
    exps = np.empty(longest)
    scratch = np.empty(longest)
    draws = np.empty(longest)
    chosen = np.empty(longest)
    early = np.empty(longest, dtype=np.int64)
    ranks = np.empty(longest, dtype=np.int64)
    most = longest if logged else SHOWN
    shown = np.empty(most, dtype=np.int64)
    rows = np.empty(most, dtype=np.int64)
    clicked = np.empty(most, dtype=np.bool_)
    scales = np.empty(most)
    gradient = np.empty(parameters if clip_gradients > 0.0 else 0)
    discount = discounts(SHOWN)

    for c in range(first, last):
        start = starts[c if len(starts) > 1 else 0]
        for p in range(parameters):
            weights[p] = start[p]
            master[p] = start[p]
        for p in range(shared, parameters):
            weights[p] = personal[c, p - shared]
            master[p] = personal[c, p - shared]
        client = stream(key, ids[c])
        pool_start = pools[pool[c]]
        pool_size = pools[pool[c] + 1] - pool_start
        seen = grades[view[c]]
        quality = 0.0
        for interaction in range(interactions[c]):
            place = at[c] + interaction if len(at) > 0 else interaction
            chance = stream(client, place)
            query = queries[pool_start + (place if len(at) > 0 else np.int64(uniform(chance, 0) * pool_size))]
            who = user[c] if user[c] >= 0 else np.int64(uniform(chance, 1) * len(click))
            begin = offsets[query]
            count = offsets[query + 1] - begin

            score(weights, hidden, features, begin, begin + count, scores)
            spread = rates(scores, count, scratch, exps)
            own = seen[begin : begin + count]
            if logged:
                size = count
                considered = as_logged(own, count, shown, clicked)
            else:
                size = plackett_luce(scores, exps, spread, count, chance, draws, chosen, scratch, early, ranks, shown)
                considered = read_and_click(
                    own, shown, size, click[who], stop[who], attention[who], chance, FIRST_CLICK_DRAW, clicked
                )
            quality += shown_ndcg(own, shown, size, ideal[view[c], query], discount)
            if considered < 2 and not corrected:
                continue  # no click, or nothing to compare it with: no pair, no step
            if prox != 0.0:  # before the gradient moves the weights at which both are taken
                pull_back(master, start, shared, rate * prox)
            if len(drifts) > 0:
                add_scaled(master, rate, drifts[c])
            if considered >= 2:
                pair_weights(scores, exps, spread, count, shown, size, clicked, considered, scales)
                for i in range(considered):
                    rows[i] = begin + shown[i]
                    if clip_gradients == 0.0:
                        scales[i] *= rate
                if clip_gradients == 0.0:
                    add_gradients(master, weights, hidden, features, rows, scales, considered)
                else:
                    add_clipped_gradients(
                        master, weights, hidden, features, rows, scales, considered, rate, clip_gradients, gradient
                    )
            if not batch:
                if clip_weights > 0.0:
                    shorten(master, clip_weights)
                copy_as_float32(master, weights)
        if clip_weights > 0.0 and batch and interactions[c] > 0:
            shorten(master, clip_weights)
        online[c] = quality / interactions[c] if interactions[c] > 0 else 0.0
        for p in range(shared):
            updates[c, p] = master[p] - start[p]
        for p in range(shared, parameters):
            updates[c, p] = 0.0
            personal[c, p - shared] = master[p]

"""Evolution strategies for all clients of a round (FOLtR-ES; Kharitonov, WSDM 2019).

Numbers of draws within an interaction's stream: 0 query, 1 user, 2 .. 21 clicks and stops.
"""

from __future__ import annotations

import numpy as np

from fedrank.kernels.chance import standard_normals, stream, uniform
from fedrank.kernels.clicks import read_and_click
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts
from fedrank.kernels.measures import LOWEST, as_integers, keys_above, lower_bounds, position_of, sort_keys
from fedrank.kernels.pdgd import FIRST_CLICK_DRAW, SHOWN, shown_ndcg
from fedrank.kernels.rankers import score


@compiled()
def step_from(noise, plus, minus, deviation, update):
    """update = (plus - minus) x e / (2 deviation^2), where e = deviation x noise."""
    slope = (np.float64(plus) - np.float64(minus)) / (2.0 * deviation)
    for p in range(len(noise)):
        update[p] = slope * noise[p]


@compiled()
def best_first(bits, count, order, best, bounds, keys, ordered, shown):
    """The first 10 of `count` documents by score, ties as in evaluation.

    `bits` [longest, 1] are those of float32 scores. Returns the list's length with the documents in `shown`, or -1 if a
    score is not a number. The rest is scratch.
    """
    if as_integers(bits[:count].reshape(count), order[:count].reshape(count)) > 0:
        return -1
    size = min(SHOWN, count)
    bounds[0] = LOWEST
    if size < count:
        lower_bounds(order, 0, count, size, best, bounds)
    candidates = keys_above(order, 0, count, 0, bounds[0], keys)
    sort_keys(keys, candidates, ordered)
    for i in range(size):
        shown[i] = position_of(ordered[i], count)
    return size


@compiled()
def first_click(clicked, size):
    """Rank of the first click from 1; 0 without a click."""
    for i in range(size):
        if clicked[i]:
            return i + 1
    return 0


@compiled()
def answer(rank, truth, chance):
    """Randomised response over the 11 values 0 .. 10: the true one with probability `truth`, else any other."""
    if uniform(chance, 0) < truth:
        return rank
    other = np.int64(uniform(chance, 1) * SHOWN)
    return other + (other >= rank)


@compiled()
def evolution_clients(
    starts, key, noise_key, answer_key, deviation, clicked_dcg, truth, hidden, features, offsets, longest,
    ids, pool, view, user, interactions, queries, pools, grades, ideal, click, stop, attention,
    first, last, updates, online, rewards, seeds, means,
):  # fmt: skip
    """Clients first .. last - 1 play both signs of their noise; their rows of the last five arrays are filled.

    The first half of a client's interactions, rounded up, is played with start + e and the others with start - e. The
    message is seeds[c] and means[c] = (mean reported reward of +, of -) as float32; `updates` follow from it. `rewards`
    are true ones, before any randomised answer. `clicked_dcg` chooses the reward: sum of discounts of clicked ranks, or
    reciprocal rank of the first click.
    """
    parameters = starts.shape[1]
    noise = np.empty(parameters)
    weights = np.empty(parameters, dtype=np.float32)
    scores = np.empty(longest, dtype=np.float32)
    bits = scores.view(np.int32).reshape((longest, 1))
    order = np.empty_like(bits)
    best = np.empty(SHOWN, dtype=np.int32)
    bounds = np.empty(SHOWN, dtype=np.int32)
    keys = np.empty(longest + 1, dtype=np.int64)
    ordered = np.empty(longest, dtype=np.int64)
    shown = np.empty(SHOWN, dtype=np.int64)
    clicked = np.empty(SHOWN, dtype=np.bool_)
    discount = discounts(SHOWN)

    for c in range(first, last):
        start = starts[c if len(starts) > 1 else 0]
        client = stream(key, ids[c])
        answers = stream(answer_key, ids[c])
        seeds[c] = stream(noise_key, ids[c])
        standard_normals(seeds[c], noise)
        pool_start = pools[pool[c]]
        pool_size = pools[pool[c] + 1] - pool_start
        seen = grades[view[c]]
        quality = 0.0
        rewards[c] = 0.0
        half = (interactions[c] + 1) // 2
        for side in range(2):
            sign = deviation if side == 0 else -deviation
            begin_at, end_at = (0, half) if side == 0 else (half, interactions[c])
            for p in range(parameters):
                weights[p] = start[p] + sign * noise[p]
            reported = 0.0
            for interaction in range(begin_at, end_at):
                chance = stream(client, interaction)
                query = queries[pool_start + np.int64(uniform(chance, 0) * pool_size)]
                who = user[c] if user[c] >= 0 else np.int64(uniform(chance, 1) * len(click))
                begin = offsets[query]
                count = offsets[query + 1] - begin

                score(weights, hidden, features, begin, begin + count, scores)
                size = best_first(bits, count, order, best, bounds, keys, ordered, shown)
                if size < 0:
                    reported = np.nan  # the round will say which client's update is not finite
                    continue
                own = seen[begin : begin + count]
                quality += shown_ndcg(own, shown, size, ideal[view[c], query], discount)
                read_and_click(
                    own, shown, size, click[who], stop[who], attention[who], chance, FIRST_CLICK_DRAW, clicked
                )
                if clicked_dcg:
                    reward = 0.0
                    for i in range(size):
                        reward += discount[i] * clicked[i]
                    rewards[c] += reward
                    reported += reward
                else:
                    rank = first_click(clicked, size)
                    told = answer(rank, truth, stream(answers, interaction)) if truth < 1.0 else rank
                    rewards[c] += 1.0 / rank if rank > 0 else 0.0
                    reported += 1.0 / told if told > 0 else 0.0
            means[c, side] = reported / max(end_at - begin_at, 1)
        step_from(noise, means[c, 0], means[c, 1], deviation, updates[c])
        online[c] = quality / max(interactions[c], 1)
        rewards[c] /= max(interactions[c], 1)

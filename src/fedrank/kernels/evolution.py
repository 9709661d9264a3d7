"""Evolution strategies for all clients of a round (FOLtR-ES; Kharitonov, WSDM 2019)."""

from __future__ import annotations

import numpy as np

from fedrank.kernels.chance import standard_normals, stream, uniform
from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import discounts
from fedrank.kernels.rankers import score
from fedrank.kernels.records import Candidates, ClickModelArrays, ClientArrays, ClientLabels
from fedrank.kernels.show import SHOWN, best_first, read_and_click, shown_ndcg
from fedrank.kernels.twister import SEEDS, STATE, next_below, next_normals, next_uniform, reseed

_SEED_BITS = np.uint64(SEEDS - 1)


@compiled()
def noise_from(seed, shared, hidden, twister, noise):
    """Fill `noise` with N(0, 1) draws that depend only on the seed; with `shared` as `RandomState(seed)` draws them.

    The published code has a row of weights per hidden unit; here there is one per feature.
    """
    if not shared:
        standard_normals(seed, noise)
        return
    reseed(twister, seed)
    next_normals(twister, noise)
    units = abs(hidden)
    if units > 0:
        features = len(noise) // units - 2
        drawn = noise[: units * features].copy()
        for u in range(units):
            for f in range(features):
                noise[f * units + u] = drawn[u * features + f]


@compiled()
def read_and_click_in_turn(grades, shown, count, click, stop, attention, twister, clicked):
    """`read_and_click` with the next draws of a generator: one per examined document, and one after each click."""
    left = False
    for i in range(count):
        clicked[i] = False
        if left:
            continue
        grade = grades[shown[i]]
        if next_uniform(twister) < click[grade] * attention[i]:
            clicked[i] = True
            left = next_uniform(twister) < stop[grade]


@compiled()
def step_from(noise, plus, minus, deviation, update):
    """update = (plus - minus) x e / (2 deviation^2), where e = deviation x noise."""
    slope = (np.float64(plus) - np.float64(minus)) / (2.0 * deviation)
    for p in range(len(noise)):
        update[p] = slope * noise[p]


@compiled()
def first_click(clicked, size):
    """Rank of the first click from 1; 0 without a click."""
    for i in range(size):
        if clicked[i]:
            return i + 1
    return 0


@compiled()
def answer(rank, truth, chance):
    """Randomised response over the 11 values 0 .. 10: the true one with probability `truth`, otherwise any other."""
    if uniform(chance, 0) < truth:
        return rank
    other = np.int64(uniform(chance, 1) * SHOWN)
    return other + (other >= rank)


@compiled()
def shift(start, noise, deviation, weights):
    """weights = start + deviation x noise."""
    for p in range(len(noise)):
        weights[p] = start[p] + deviation * noise[p]


@compiled()
def reward_of(clicked, size, discount, clicked_dcg):
    """Sum of the discounts of clicked ranks, or reciprocal rank of the first click."""
    if clicked_dcg:
        total = 0.0
        for i in range(size):
            total += discount[i] * clicked[i]
        return total
    rank = first_click(clicked, size)
    return 1.0 / rank if rank > 0 else 0.0


@compiled()
def reported_reward(clicked, size, discount, clicked_dcg, truth, chance):
    """The reported reward: the true one, or with randomised response possibly another."""
    if clicked_dcg or truth >= 1.0:
        return reward_of(clicked, size, discount, clicked_dcg)
    told = answer(first_click(clicked, size), truth, chance)
    return 1.0 / told if told > 0 else 0.0


@compiled()
def evolution_clients(
    starts, keys, shared, deviation, clicked_dcg, truth, hidden, documents, longest, client_arrays, views, people,
    first, last, updates, online, rewards, seeds, means,
):  # fmt: skip
    """Train clients first .. last - 1 with both signs of their noise; fills their rows of the last five arrays.

    The first half of a client's interactions, rounded up, uses start + e and the others start - e. The message is
    seeds[c] and means[c] = (mean reported reward of +, of -) as float32; `updates` follow from it. `rewards` are the
    true ones, before randomised response. `keys` are those of searches, of noise and of answers. `clicked_dcg` selects
    the reward. With `shared`, a client's noise, and then its queries and clicks, are drawn from one stream, that of its
    seed.
    """
    table, held, seen, clicking = (
        Candidates(*documents),
        ClientArrays(*client_arrays),
        ClientLabels(*views),
        ClickModelArrays(*people),
    )
    parameters = starts.shape[1]
    noise = np.empty(parameters)
    weights = np.empty(parameters, dtype=np.float32)
    scores = np.empty(longest, dtype=np.float32)
    bits = scores.view(np.int32).reshape((longest, 1))
    order = np.empty_like(bits)
    best = np.empty(SHOWN, dtype=np.int32)
    bounds = np.empty(SHOWN, dtype=np.int32)
    ranked = np.empty(longest + 1, dtype=np.int64)
    ordered = np.empty(longest, dtype=np.int64)
    shown = np.empty(SHOWN, dtype=np.int64)
    clicked = np.empty(SHOWN, dtype=np.bool_)
    discount = discounts(SHOWN)
    twister = np.empty(STATE, dtype=np.int64)

    for c in range(first, last):
        start = starts[c if len(starts) > 1 else 0]
        client = stream(keys[0], held.ids[c])
        answers = stream(keys[2], held.ids[c])
        seeds[c] = stream(keys[1], held.ids[c])
        if shared:
            seeds[c] &= _SEED_BITS
        noise_from(seeds[c], shared, hidden, twister, noise)
        if shared:
            reseed(twister, seeds[c])
        pool_start = held.pools[held.pool[c]]
        pool_size = held.pools[held.pool[c] + 1] - pool_start
        grades = seen.grades[seen.views[c]]
        quality = 0.0
        rewards[c] = 0.0
        half = (held.interactions[c] + 1) // 2
        for side in range(2):
            begin_at, end_at = (0, half) if side == 0 else (half, held.interactions[c])
            shift(start, noise, deviation if side == 0 else -deviation, weights)
            reported = 0.0
            for interaction in range(begin_at, end_at):
                chance = stream(client, interaction)
                place = next_below(twister, pool_size) if shared else np.int64(uniform(chance, 0) * pool_size)
                query = held.queries[pool_start + place]
                who = (
                    clicking.click_model[c]
                    if clicking.click_model[c] >= 0
                    else np.int64(uniform(chance, 1) * len(clicking.click))
                )
                begin, end = table.offsets[query], table.offsets[query + 1]

                score(weights, hidden, table.features, begin, end, scores)
                size = best_first(bits, end - begin, order, best, bounds, ranked, ordered, shown)
                if size < 0:
                    reported = np.nan  # the round reports the client whose update is not finite
                    continue
                own = grades[begin:end]
                quality += shown_ndcg(own, shown, size, seen.ideal[seen.views[c], query], discount)
                click, stop, attention = clicking.click[who], clicking.stop[who], clicking.attention[who]
                if shared:
                    read_and_click_in_turn(own, shown, size, click, stop, attention, twister, clicked)
                else:
                    read_and_click(own, shown, size, click, stop, attention, chance, clicked)
                rewards[c] += reward_of(clicked, size, discount, clicked_dcg)
                reported += reported_reward(clicked, size, discount, clicked_dcg, truth, stream(answers, interaction))
            means[c, side] = reported / max(end_at - begin_at, 1)
        step_from(noise, means[c, 0], means[c, 1], deviation, updates[c])
        online[c] = quality / max(held.interactions[c], 1)
        rewards[c] /= max(held.interactions[c], 1)

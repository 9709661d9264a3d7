"""FOLtR-ES as the paper writes it: one client, one search at a time. Slow and obvious."""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.chance import stream, uniform
from tests.oracles.measures import ranking
from tests.oracles.pdgd import clicks


def noise_from(seed, size):
    """N(0, 1) draws: Box and Muller's pairs."""
    out = []
    for i in range(0, size + 1, 2):
        u, v = uniform(seed, i), uniform(seed, i + 1)
        out += [f(2 * math.pi * v) * math.sqrt(-2 * math.log(u)) for f in (math.cos, math.sin)]
    return np.array(out[:size])


def score_of(weights, hidden, x):
    """Linear, or a layer of -hidden rectified units."""
    if hidden == 0:
        return weights @ x
    n = -hidden
    matrix, bias, output = weights[: n * len(x)].reshape(len(x), n), weights[n * len(x) : -n], weights[-n:]
    return output @ np.maximum(x @ matrix + bias, 0)


def reward_of(clicked, kind):
    ranks = [rank for rank, one in enumerate(clicked, start=1) if one]
    if kind == "dcg":
        return sum(1 / math.log2(rank + 1) for rank in ranks)
    return 1 / ranks[0] if ranks else 0.0


def told(reward, truth, chance):
    """Randomised response over 0, 1/1 .. 1/10."""
    values = [0.0, *(1 / rank for rank in range(1, 11))]
    if uniform(chance, 0) < truth:
        return reward
    others = [value for value in values if value != reward]
    return others[int(uniform(chance, 1) * 10)]


def client_round(start, hidden, deviation, kind, truth, data, clients, c, keys):
    """(seed, mean told reward of +, of -), mean true reward, mean nDCG@10 of what was shown."""
    key, noise_key, answer_key = keys
    own = np.uint64(stream(key, clients.ids[c]))
    seed = np.uint64(stream(noise_key, clients.ids[c]))
    answers = np.uint64(stream(answer_key, clients.ids[c]))
    noise = deviation * noise_from(seed, len(start))
    pool = clients.queries[clients.pools[clients.pool[c]] : clients.pools[clients.pool[c] + 1]]
    half = math.ceil(clients.interactions[c] / 2)
    sides, true, online = ([], []), [], []
    for interaction in range(clients.interactions[c]):
        side = 0 if interaction < half else 1
        weights = (start + (noise, -noise)[side]).astype(np.float32).astype(float)
        chance = np.uint64(stream(own, interaction))
        query = pool[int(uniform(chance, 0) * len(pool))]
        click_model = (
            clients.click_model[c] if clients.click_model[c] >= 0 else int(uniform(chance, 1) * len(clients.click))
        )
        rows = np.arange(data.offsets[query], data.offsets[query + 1])
        grades = clients.grades[clients.view[c], rows]
        scores = [score_of(weights, hidden, data.features[row].astype(float)) for row in rows]
        shown = ranking(scores)[:10]
        tables = clients.click[click_model], clients.stop[click_model], clients.attention[click_model]
        clicked, _ = clicks(grades, shown, *tables, chance)
        reward = reward_of(clicked, kind)
        true.append(reward)
        sides[side].append(reward if truth == 1 else told(reward, truth, np.uint64(stream(answers, interaction))))
        gains = [(2.0**g - 1) for g in grades]
        discount = [1 / math.log2(rank + 1) for rank in range(1, 11)]
        best = sum(g * d for g, d in zip(sorted(gains, reverse=True), discount, strict=False))
        got = sum(gains[d] * discount[i] for i, d in enumerate(shown))
        online.append(got / best if best else 0.0)
    plus, minus = np.mean(sides[0]), np.mean(sides[1])
    return (int(seed), plus, minus), np.mean(true), np.mean(online)


def gradient(messages, size, deviation):
    """1 / (2 σ² N) Σ (f+ - f-) e."""
    total = sum((plus - minus) * deviation * noise_from(np.uint64(seed), size) for seed, plus, minus in messages)
    return total / (2 * deviation**2 * len(messages))


def shared_client_round(start, hidden, deviation, data, clients, c, noise_key):
    """(seed, mean reward of +, of -), noise, mean true reward: as facebookresearch/foltr-es draws it, by NumPy itself.

    The generator of queries and clicks is reseeded with the very seed from which the noise comes.
    """
    seed = int(stream(noise_key, clients.ids[c])) % 2**32
    drawn = np.random.RandomState(seed).normal(size=len(start))
    if hidden:  # first layer [units, features], its bias, output
        inner = len(start) - 2 * abs(hidden)
        drawn[:inner] = drawn[:inner].reshape(abs(hidden), -1).T.ravel()
    random_state = np.random.RandomState(seed)
    pool = clients.queries[clients.pools[clients.pool[c]] : clients.pools[clients.pool[c] + 1]]
    click, stop = clients.click[clients.click_model[c]], clients.stop[clients.click_model[c]]
    half = math.ceil(clients.interactions[c] / 2)
    sides = ([], [])
    for interaction in range(clients.interactions[c]):
        side = 0 if interaction < half else 1
        weights = (start + (1, -1)[side] * deviation * drawn).astype(np.float32).astype(float)
        query = pool[random_state.randint(0, len(pool))]
        rows = np.arange(data.offsets[query], data.offsets[query + 1])
        grades = clients.grades[clients.view[c], rows]
        shown = ranking([score_of(weights, hidden, data.features[row].astype(float)) for row in rows])[:10]
        clicked = []
        for document in shown:
            clicked.append(random_state.uniform() < click[grades[document]])
            if clicked[-1] and random_state.uniform() < stop[grades[document]]:
                break
        sides[side].append(reward_of(clicked, "max-rr"))
    return (seed, np.mean(sides[0]), np.mean(sides[1])), drawn, np.mean(sides[0] + sides[1])

"""PDGD as the paper writes it: whole probabilities of whole lists, one pair at a time. Slow and obvious."""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.chance import stream, uniform

CLICK_DRAW, DOCUMENT_DRAW, KEEP_DRAW = 2, 22, 1 << 40


def log_list_probability(scores, shown) -> float:
    """log P(shown | documents) under Plackett-Luce."""
    left = list(range(len(scores)))
    total = 0.0
    for document in shown:
        highest = max(scores[d] for d in left)
        total += scores[document] - highest - math.log(sum(math.exp(scores[d] - highest) for d in left))
        left.remove(document)
    return total


def list_probability(scores, shown, temperature=1.0, keep=0.0) -> float:
    """P(shown), where the best document is put first with probability `keep` and everything else is drawn."""
    scores = [score / temperature for score in scores]
    drawn = math.exp(log_list_probability(scores, shown))
    if not keep:
        return drawn
    best = scores.index(max(scores))
    others = [d for d in range(len(scores)) if d != best]
    kept = 0.0
    if shown[0] == best:
        kept = math.exp(log_list_probability([scores[d] for d in others], [others.index(d) for d in shown[1:]]))
    return keep * kept + (1 - keep) * drawn


def rho(scores, shown, a, b) -> float:
    """P(R*) / (P(R) + P(R*)), R* with positions a and b exchanged."""
    swapped = list(shown)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    return 1 / (1 + math.exp(log_list_probability(scores, shown) - log_list_probability(scores, swapped)))


def kept_rho(scores, shown, a, b, temperature, keep) -> float:
    """The same for the exact mixture."""
    swapped = list(shown)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    other = list_probability(scores, swapped, temperature, keep)
    return other / (list_probability(scores, shown, temperature, keep) + other)


def position_scales(scores, shown, clicked, considered, temperature=1.0, keep=0.0):
    """How much the score of each shown document should rise, by its temperature: the sum over its pairs."""
    scales = np.zeros(len(shown))
    for d in range(considered):
        for e in range(considered):
            if clicked[d] and not clicked[e]:
                # e^d e^e / (e^d + e^e)^2 without cancelling
                odds = math.exp(-abs(scores[shown[d]] - scores[shown[e]]) / temperature)
                swap = rho(scores, shown, d, e) if keep == 0 and temperature == 1 else None
                if swap is None:
                    swap = kept_rho(list(scores), list(shown), d, e, temperature, keep)
                weight = swap * odds / (1 + odds) ** 2
                scales[d] += weight
                scales[e] -= weight
    return scales


def gumbel_list(scores, chance, k=10, temperature=1.0, keep=0.0):
    """The k best of score + Gumbel noise; now and then the best document stays first."""
    noisy = [
        score / temperature - math.log(-math.log(uniform(chance, DOCUMENT_DRAW + d))) for d, score in enumerate(scores)
    ]
    if keep and uniform(chance, KEEP_DRAW) < keep:
        noisy[list(scores).index(max(scores))] = math.inf
    return sorted(range(len(scores)), key=lambda d: -noisy[d])[:k]


def clicks(grades, shown, click, stop, attention, chance):
    """Clicked or not for every position, and how many positions count."""
    clicked = [False] * len(shown)
    for i, document in enumerate(shown):
        if uniform(chance, CLICK_DRAW + 2 * i) < click[grades[document]] * attention[i]:
            clicked[i] = True
            if uniform(chance, CLICK_DRAW + 2 * i + 1) < stop[grades[document]]:
                break
    last = max((i for i, c in enumerate(clicked) if c), default=-2)
    return clicked, min(last + 2, len(shown))


def score_and_gradient(weights, hidden, document):
    """Score of one document and its gradient, in double precision."""
    x = document.astype(float)
    if hidden == 0:
        return weights @ x, x
    matrix = weights[: hidden * len(x)].reshape(len(x), hidden)
    bias, output = weights[hidden * len(x) : -hidden], weights[-hidden:]
    units = 1 / (1 + np.exp(-(x @ matrix + bias)))
    back = output * units * (1 - units)
    return output @ units, np.concatenate([np.outer(x, back).ravel(), back, units])


def clipped(vector, clip):
    """The vector, or the one of that length in its direction if it is longer; 0: any length."""
    length = math.sqrt(sum(x * x for x in vector))
    return vector * (clip / length) if clip and length > clip else vector


def client_update(
    start, hidden, rate, batch, data, clients, c, key,
    prox=0.0, control=0.0, common=0.0, clip_weights=0.0, clip_gradients=0.0, logged=False, temperature=1.0, keep=0.0,
):  # fmt: skip
    """What client c sends; with FedProx's pull (a number, or one per parameter), SCAFFOLD's two controls, or clips.

    `logged`: the list and its clicks are given.
    """
    weights = start.astype(np.float64).copy()
    total = np.zeros_like(weights)
    own = np.uint64(stream(key, clients.ids[c]))
    pool = clients.queries[clients.pools[clients.pool[c]] : clients.pools[clients.pool[c] + 1]]
    for interaction in range(clients.interactions[c]):
        place = clients.at[c] + interaction if len(clients.at) else interaction
        chance = np.uint64(stream(own, place))
        query = pool[place] if len(clients.at) else pool[int(uniform(chance, 0) * len(pool))]
        click_model = (
            clients.click_model[c] if clients.click_model[c] >= 0 else int(uniform(chance, 1) * len(clients.click))
        )
        rows = np.arange(data.offsets[query], data.offsets[query + 1])
        scored = [score_and_gradient(weights, hidden, data.features[row]) for row in rows]
        scores = [s for s, _ in scored]
        shown = list(range(len(rows))) if logged else gumbel_list(scores, chance, 10, temperature, keep)
        grades = clients.grades[clients.view[c], rows]
        if logged:
            clicked = [bool(grade > 0) for grade in grades]
            considered = min(len(rows), max([i + 2 for i in shown if clicked[i]], default=0))
        else:
            clicked, considered = clicks(
                grades,
                shown,
                clients.click[click_model],
                clients.stop[click_model],
                clients.attention[click_model],
                chance,
            )
        scales = position_scales(scores, shown, clicked, considered, temperature, keep) / temperature
        gradient = sum(scale * scored[d][1] for scale, d in zip(scales, shown, strict=True))
        gradient = clipped(gradient, clip_gradients)
        gradient = gradient - prox * (weights - start) - control + common
        if batch:
            total += rate * gradient
        else:
            weights = clipped(weights + rate * gradient, clip_weights)
    if batch and clients.interactions[c]:
        weights = clipped(weights + total, clip_weights)
    return weights - start

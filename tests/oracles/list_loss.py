"""The regularised loss of logged clicks in plain Python: lists of numbers, loops, exact sums; and slow training."""

from __future__ import annotations

import math


def loss_and_gradient(lists, l2, model):
    """`lists`: (features, weights) of each list; a weight of None is unknown, and its document is ignored."""
    losses, terms = [], [[] for _ in model]
    for features, weights in lists:
        known = [(x, w) for x, w in zip(features, weights, strict=True) if w is not None]
        if not known:
            continue
        scores = [math.fsum(a * b for a, b in zip(x, model, strict=True)) for x, _ in known]
        top = max(scores)
        mass = math.fsum(math.exp(s - top) for s in scores)
        total = math.fsum(w for _, w in known)
        for (x, w), s in zip(known, scores, strict=True):
            losses.append(w * (top + math.log(mass) - s))
            pull = total * math.exp(s - top) / mass - w
            for j, value in enumerate(x):
                terms[j].append(pull * value)
    count = len(lists)
    gradient = [math.fsum(column) / count + l2 * m for column, m in zip(terms, model, strict=True)]
    return math.fsum(losses) / count + l2 / 2 * math.fsum(m * m for m in model), gradient


def retrained(lists, l2, tolerance, size, rate=0.5):
    """Gradient descent from zero, with halved steps where the loss rises."""
    model = [0.0] * size
    loss, gradient = loss_and_gradient(lists, l2, model)
    while math.hypot(*gradient) > tolerance:
        new = [m - rate * g for m, g in zip(model, gradient, strict=True)]
        new_loss, new_gradient = loss_and_gradient(lists, l2, new)
        if new_loss <= loss:
            model, loss, gradient = new, new_loss, new_gradient
        else:
            rate /= 2
    return model

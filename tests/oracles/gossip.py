"""A round without a server, one model and one click at a time. Slow and obvious."""

from __future__ import annotations

import math


def explained(scores, shown, clicked, eta):
    """How well a model with these scores explains the clicks on a list: clicked results should be ranked high."""
    order = sorted(range(shown), key=lambda place: -scores[place])  # in a tie, the upper result is first
    return sum((place + 1) ** eta / math.log2(2 + order.index(place)) for place in range(shown) if clicked[place])


def accepted(own, other, lists, eta, errors):
    """Whether a linear model explains the clicks on lists of (features, shown, clicked) better than one's own."""

    def scores(model, features):
        return [sum(float(x) * w for x, w in zip(row, model, strict=True)) for row in features]

    better = []
    for features, shown, clicked in lists:
        values = [explained(scores(model, features), shown, clicked, eta) for model in (own, other)]
        better.append(values[1] - values[0])
    mean = sum(better) / len(better)
    variance = sum((one - mean) ** 2 for one in better) / (len(better) - 1)
    return mean > errors * math.sqrt(variance / len(better))


def senders(client, clients, round, neighbours):
    """The next clients in a ring, and in the next round those after them."""
    ring = [(client + step) % clients for step in range(1, clients)]
    first = (round - 1) * neighbours
    return [ring[(first + number) % len(ring)] for number in range(neighbours)]


def gossip(own, sent, histories, round, neighbours, eta, errors):
    """The model of each client after a round: the mean of its own and of those that it accepts.

    A model that is farther away than the (lower) median of all received is accepted at that distance.
    """
    after = []
    for client, model in enumerate(own):
        received = [sent[sender] for sender in senders(client, len(own), round, neighbours)]
        limit = sorted(math.dist(model, other) for other in received)[(len(received) - 1) // 2]
        chosen = [model]
        for other in received:
            if accepted(model, other, histories[client], eta, errors):
                share = min(1.0, limit / math.dist(model, other))
                chosen.append([a + share * (b - a) for a, b in zip(model, other, strict=True)])
        after.append([sum(column) / len(chosen) for column in zip(*chosen, strict=True)])
    return after

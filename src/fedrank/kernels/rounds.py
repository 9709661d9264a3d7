"""Many rounds in one call, since Python's overhead between rounds is a third of the time of a small round."""

from __future__ import annotations

import math

import numpy as np

from fedrank.kernels.compile import compiled
from fedrank.kernels.elementary import power
from fedrank.kernels.pdgd import pdgd_clients
from fedrank.kernels.records import ADD, MOMENTUM, ClickModelArrays, ClientArrays, ClientLabels, CompiledStep
from fedrank.kernels.sums import add_rows


@compiled()
def step(moves, weights, change, memory, after, memory_after):
    """Compute the model `after` a change, and the new state of the server step.

    The operations equal those of `fedrank.federated.server_optimizers`.
    """
    size = len(weights)
    if moves.kind == ADD:
        for p in range(size):
            after[p] = weights[p] + moves.rate * change[p]
    elif moves.kind == MOMENTUM:
        for p in range(size):
            memory_after[p] = moves.first * memory[p] + change[p]
            after[p] = weights[p] + moves.rate * memory_after[p]
    else:
        steps = memory[2 * size] + 1.0
        memory_after[2 * size] = steps
        mean_share, square_share = 1.0 - power(moves.first, steps), 1.0 - power(moves.second, steps)
        for p in range(size):
            mean = moves.first * memory[p] + (1.0 - moves.first) * change[p]
            square = moves.second * memory[size + p] + (1.0 - moves.second) * (change[p] * change[p])
            memory_after[p], memory_after[size + p] = mean, square
            length = np.sqrt(square / square_share) + moves.epsilon
            after[p] = weights[p] + moves.rate * (mean / mean_share) / length


@compiled()
def average(client_weights, updates, change):
    """`change` = the mean of updates with these weights; returns whether all of them are finite."""
    for p in range(len(change)):
        change[p] = 0.0
    add_rows(client_weights, updates, change)
    total = 0.0
    for i in range(len(client_weights)):
        total += client_weights[i]
    finite = True
    for p in range(len(change)):
        # Updates are float32, so a sum of finite ones cannot overflow float64.
        finite &= math.isfinite(change[p])
        change[p] = change[p] / total if total > 0 else 0.0
    return finite


@compiled()
def choose(rows, held, seen, clicking, own, views, users):
    """Select rows of the clients; fills the last three arrays."""
    for i in range(len(rows)):
        c = rows[i]
        own.ids[i], own.pool[i], own.interactions[i] = held.ids[c], held.pool[c], held.interactions[c]
        views[i], users[i] = seen.views[c], clicking.click_model[c]
        if len(held.at) > 0:
            own.at[i] = held.at[c]


@compiled()
def pdgd_rounds(
    keys, cohorts, how_stepped, how_shown, how_bent, hidden, documents, longest, client_arrays, views, people, draws,
    client_weights, how_moved, weights, memory, models, memories, online,
):  # fmt: skip
    """Clients learn by PDGD, their updates are averaged, and the server steps: one round per key in `keys`.

    `cohorts` [rounds or 1, present] are the rows of participants, and `client_weights` [clients] weights their updates
    in the mean. Fills models [rounds, parameters], memories [rounds, state of the server step] and online [rounds,
    present]. Returns the number of completed rounds: it stops before a round in which an update is not finite.
    """
    held, seen, clicking, moves = (
        ClientArrays(*client_arrays),
        ClientLabels(*views),
        ClickModelArrays(*people),
        CompiledStep(*how_moved),
    )
    present, parameters = cohorts.shape[1], len(weights)
    sizes = np.empty(present, np.int64)
    own = ClientArrays(
        np.empty(present, np.int64),
        np.empty(present, np.int32),
        sizes,
        held.queries,
        held.pools,
        np.empty(present if len(held.at) > 0 else 0, np.int64),
    )
    own_views, own_users = np.empty(present, np.int32), np.empty(present, np.int32)
    own_holdings = (own.ids, own.pool, own.interactions, own.queries, own.pools, own.at)
    own_seen = (own_views, seen.grades, seen.ideal)
    own_people = (own_users, clicking.click, clicking.stop, clicking.attention)
    own_weights = np.empty(present)
    updates = np.empty((present, parameters), np.float32)
    starts = np.empty((1, parameters), np.float32)
    change = np.empty(parameters)
    for number in range(len(keys)):
        if number == 0 or len(cohorts) > 1:
            choose(cohorts[number], held, seen, clicking, own, own_views, own_users)
            for i in range(present):
                own_weights[i] = client_weights[cohorts[number, i]]
        for p in range(parameters):
            starts[0, p] = weights[p]
        pdgd_clients(
            starts, keys[number], how_stepped, how_shown, how_bent, hidden, documents, longest, own_holdings, own_seen,
            own_people, draws, np.int64(0), present, updates, online[number],
        )  # fmt: skip
        if not average(own_weights, updates, change):
            return number
        step(moves, weights, change, memory, models[number], memories[number])
        weights, memory = models[number], memories[number]
    return len(keys)

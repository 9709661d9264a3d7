"""A dealt schedule: clients, or the persons of organisations, are dealt into rounds once, and take part in one each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.federation import Federation
from fedrank.seeds import rng_for
from fedrank.types import SimulatedClients


def deal(count: int, rounds: int, seed: int, *name: int) -> NDArray[np.int64]:
    """[count]: the round, from 1, in which each participates; the sizes of two rounds differ by at most 1.

    >>> deal(5, 2, seed=1).tolist()
    [1, 1, 2, 2, 1]
    """
    return dealt(rng_for(seed, "deal", *name).permutation(count), rounds)


def dealt(order: NDArray[np.int64], rounds: int) -> NDArray[np.int64]:
    """[count]: the round of each, if they are dealt in this order."""
    groups = np.empty(len(order), np.int64)
    groups[order] = np.arange(len(order)) % rounds + 1
    return groups


def deals_persons(federation: Federation, clients: SimulatedClients) -> bool:
    """Whether persons are dealt, not the organisations that are the clients."""
    return clients.people is not None and getattr(federation.mechanism, "unit", "person") == "person"


def deal_clients(federation: Federation, clients: SimulatedClients, seed: int) -> NDArray[np.int64]:
    """[clients or persons]: the round of each; every organisation deals its own persons."""
    rounds = federation.dealt
    if not deals_persons(federation, clients):
        _check_enough(len(clients), rounds, "clients")
        return deal(len(clients), rounds, seed)
    assert clients.people is not None
    groups = np.empty(len(clients.people), np.int64)
    for id in clients.ids:
        own = np.flatnonzero(clients.people.client == id)
        _check_enough(len(own), rounds, f"persons of client {id}")
        groups[own] = deal(len(own), rounds, seed, int(id))
    return groups


def _check_enough(count: int, rounds: int, which: str) -> None:
    if count < rounds:
        raise ValueError(
            f"{count} {which} cannot be dealt into {rounds} rounds, because each takes part in one of them; use at "
            f"most {count} rounds"
        )

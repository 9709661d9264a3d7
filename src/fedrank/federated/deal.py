"""A dealt schedule: clients, or the persons of organisations, are dealt into rounds once, and take part in one each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.federation import Federation
from fedrank.files import parse_json, read_bytes, write_atomic
from fedrank.seeds import Name, rng_for
from fedrank.types import SimulatedClients

DEAL = "deal.json"


def deal(count: int, rounds: int, seed: int, *name: Name) -> NDArray[np.int64]:
    """[count]: the round, from 1, in which each participates; the sizes of two rounds differ by at most 1.

    >>> deal(5, 2, seed=1).tolist()
    [1, 1, 2, 2, 1]
    """
    groups = np.empty(count, np.int64)
    groups[rng_for(seed, "deal", *name).permutation(count)] = np.arange(count) % rounds + 1
    return groups


def size_of_group(count: int, rounds: int, round: int) -> int:
    """The number of participants of a round, which does not depend on chance."""
    return (count - round) // rounds + 1


def keep_deal(path: Path, groups: NDArray[np.int64], rounds: int, data: str = "") -> None:
    """Write who participates in which round, before anything is learned; refuse another list than the written one.

    `data` is a digest of the data of those who were dealt.
    """
    content = {"format": 1, "rounds": rounds, "data": data, "round_of_each": groups.tolist()}
    if not path.exists():
        write_atomic(path, json.dumps(content) + "\n", private=True)
        return
    try:
        before = parse_json(read_bytes(path))
    except ValueError:
        before = None
    if before == content:
        return
    listed = before.get("round_of_each") if isinstance(before, dict) else None
    why = "it was changed afterwards; restore it from a backup"
    if isinstance(before, dict) and isinstance(listed, list):
        if before.get("rounds") != rounds:
            why = f"{before.get('rounds')} rounds were dealt, and now there are {rounds}; use the earlier number"
        elif len(listed) != len(groups):
            why = (
                f"it lists {len(listed):,} participants, but there are {len(groups):,}; newcomers wait for another run"
            )
        elif before.get("data") != data:
            why = "the data have changed since then; restore the earlier data, newcomers wait for another run"
    raise ValueError(
        f"{path} lists who participates in which round, and {why}; nothing was sent, and nothing is charged"
    )


def deals_persons(federation: Federation, clients: SimulatedClients) -> bool:
    """Whether persons are dealt, not the organisations that are the clients."""
    return clients.people is not None and getattr(federation.mechanism, "unit", "person") == "person"


def deal_clients(federation: Federation, clients: SimulatedClients, seed: int) -> NDArray[np.int64]:
    """[clients or persons]: the round of each; every organisation deals its own persons."""
    rounds = federation.dealt
    if not deals_persons(federation, clients):
        check_enough(len(clients), rounds, "clients")
        return deal(len(clients), rounds, seed)
    assert clients.people is not None
    groups = np.empty(len(clients.people), np.int64)
    for id in clients.ids:
        own = np.flatnonzero(clients.people.client == id)
        check_enough(len(own), rounds, f"persons of client {id}")
        groups[own] = deal(len(own), rounds, seed, int(id))
    return groups


def check_enough(count: int, rounds: int, which: str) -> None:
    if count < rounds:
        raise ValueError(
            f"{count} {which} cannot be dealt into {rounds} rounds, because each takes part in one of them; use at "
            f"most {count} rounds"
        )

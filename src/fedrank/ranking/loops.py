"""Simulated clients in the form that compiled loops take, and the division of loops among threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.types import LocalCorrection, SimulatedClients, Updates, Weights

MIN_SHARE = 500  # interactions; with less work, a thread costs more than it saves
_NOTHING = np.empty((0, 0))


def as_sent(start: Weights) -> NDArray[np.float32]:
    """[1 or clients, parameters]: the model as clients receive it, four bytes per parameter."""
    return np.ascontiguousarray(np.atleast_2d(start), dtype=np.float32)


class Loops(NamedTuple):
    """Clients as plain tuples, which are passed to compiled loops in a third of the time."""

    table: tuple[Any, ...]
    held: tuple[Any, ...]
    seen: tuple[Any, ...]
    clicking: tuple[Any, ...]


def loops_of(clients: SimulatedClients) -> Loops:
    """Return the loop arguments of these clients, cached with them."""
    made = clients.__dict__.get("_loops")
    if made is None:
        made = Loops(
            (clients.data.features, clients.data.offsets),
            (clients.ids, clients.pool, clients.interactions, clients.queries, clients.pools, clients.at),
            (clients.view, clients.grades, clients.ideal),
            (clients.click_model, clients.click, clients.stop, clients.attention),
        )
        clients.__dict__["_loops"] = made
    return made


def corrections_of(correction: LocalCorrection, rate: float) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """Return `kernels.records.Corrections`; `personal` is copied, since it is updated in place."""
    drifts = _NOTHING if correction.drifts is None else correction.drifts
    return rate * correction.pull, drifts, _NOTHING if correction.personal is None else correction.personal.copy()


def by_threads(
    some: Callable[[int, int, Updates, NDArray[np.float64]], None],
    parameters: int,
    clients: SimulatedClients,
    threads: int,
) -> tuple[Updates, NDArray[np.float64]]:
    """Let a compiled loop fill its rows of (updates, online) for ranges of clients, in threads if that is faster.

    Rows are independent, so the result does not depend on the division.
    """
    count, sizes = len(clients), clients.interactions
    updates = np.empty((count, parameters), dtype=np.float32)
    online = np.empty(count)
    shares = 1
    if threads > 1:
        shares = int(max(1, min(threads, count, sizes.sum() // MIN_SHARE)))
    if shares == 1:
        some(0, count, updates, online)
    else:
        cuts = np.searchsorted(np.cumsum(sizes), np.linspace(0, sizes.sum(), shares + 1)[1:-1])
        edges = [0, *cuts.tolist(), count]
        with ThreadPoolExecutor(shares) as pool:
            jobs = [pool.submit(some, first, last, updates, online) for first, last in pairwise(edges)]
            for job in jobs:
                job.result()
    return updates, online

"""Compiled loops: their arguments, their division among threads, and loops that call a user-defined click model."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.types import LocalCorrection, SimulatedClients, Updates, Weights

MIN_SHARE = 500  # interactions; with less work, a thread costs more than it saves
IN_TABLE = -1.0  # marks rows of the click table that have a user-defined click model
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


def compiled_function(model: Any) -> Any:
    """Return the Numba function of a click model: itself or the result of `compiled`; else None."""
    from numba.core.dispatcher import Dispatcher

    found = model.compiled() if hasattr(model, "compiled") else model
    return found if isinstance(found, Dispatcher) else None


def loop_for(loop: Any, clients: SimulatedClients) -> Any:
    """Return a compiled loop that calls the click model of these clients; None if it must be called from Python.

    Clients may have one compiled user-defined model in addition to tables.
    """
    outside = {id(model): model for model in clients.own_click_models if model is not None}
    [model, *more] = outside.values()
    if more or not hasattr(loop, "py_func") or not isinstance(model, Hashable):
        return None
    return _with_clicks(loop, model)


@cache
def _with_clicks(loop: Any, model: Any) -> Any:
    """Compile the source of a loop again with another click function."""
    import numba

    from fedrank.kernels.chance import uniform
    from fedrank.kernels.show import FIRST_CLICK_DRAW, read_and_click

    function = compiled_function(model)
    if function is None:
        return None

    @numba.njit(nogil=True, error_model="numpy")
    def read_and_click_outside(grades, shown, count, click, stop, attention, stream, clicked):  # type: ignore[no-untyped-def]
        if click[0] != IN_TABLE:
            read_and_click(grades, shown, count, click, stop, attention, stream, clicked)
            return
        labels, draws = np.empty(count, np.int8), np.empty(2 * count)
        for i in range(count):
            labels[i] = grades[shown[i]]
            draws[2 * i] = uniform(stream, FIRST_CLICK_DRAW + 2 * i)
            draws[2 * i + 1] = uniform(stream, FIRST_CLICK_DRAW + 2 * i + 1)
        found = function(labels, draws)
        if len(found) != count:
            raise ValueError("the click model must return a Boolean for each result")
        for i in range(count):
            clicked[i] = found[i]

    source = loop.py_func
    names = {**source.__globals__, "read_and_click": read_and_click_outside}
    copied = FunctionType(source.__code__, names, source.__name__, source.__defaults__, source.__closure__)
    return numba.njit(nogil=True, error_model="numpy")(copied)

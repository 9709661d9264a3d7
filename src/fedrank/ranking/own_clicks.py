"""Compiled loops that call a user-defined click model, if it is compiled with Numba."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from types import FunctionType
from typing import Any

from fedrank.types import SimulatedClients

IN_TABLE = -1.0  # marks rows of the click table that have a user-defined click model


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
    import numpy as np

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

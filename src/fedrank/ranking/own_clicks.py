"""Compiled loops that call a click model from outside, if that is compiled with Numba, too."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from types import FunctionType
from typing import Any

from fedrank.types import SimulatedClients

IN_TABLE = -1.0  # stands in the table of click probabilities for each row whose click model is from outside


def compiled_function(model: Any) -> Any:
    """The Numba function of a click model: the model itself, or what its method `compiled` returns; else None."""
    from numba.core.dispatcher import Dispatcher

    found = model.compiled() if hasattr(model, "compiled") else model
    return found if isinstance(found, Dispatcher) else None


def loop_for(loop: Any, clients: SimulatedClients) -> Any:
    """A compiled loop that calls the click model of these clients; None where it must be called from Python.

    Clients may have one compiled model from outside, beside others that are tables.
    """
    outside = {id(model): model for model in clients.own_click_models if model is not None}
    [model, *more] = outside.values()
    if more or not hasattr(loop, "py_func") or not isinstance(model, Hashable):
        return None
    return _with_clicks(loop, model)


@cache
def _with_clicks(loop: Any, model: Any) -> Any:
    """The source of a loop, compiled again with another function for clicks."""
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
            raise ValueError("the click model must return a truth value for each result")
        for i in range(count):
            clicked[i] = found[i]

    source = loop.py_func
    names = {**source.__globals__, "read_and_click": read_and_click_outside}
    copied = FunctionType(source.__code__, names, source.__name__, source.__defaults__, source.__closure__)
    return numba.njit(nogil=True, error_model="numpy")(copied)

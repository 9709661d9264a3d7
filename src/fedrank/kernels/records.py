"""Arrays that belong together, as compiled loops take them: each is a tuple with names.

They stand in a module of their own, so that compiled code that was cached finds them again.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Candidates(NamedTuple):
    """Documents by query."""

    features: Any  # float32 [documents, features]
    offsets: Any  # int64 [queries + 1]


class ClientArrays(NamedTuple):
    """What clients hold: row c is client c."""

    ids: Any  # int64 [clients]
    pool: Any  # int32 [clients]
    interactions: Any  # int64 [clients]
    queries: Any  # int32: all pools, one after the other
    pools: Any  # int64 [pools + 1]
    at: Any  # int64 [clients or 0]: the place in its pool from which a client takes its queries in order


class ClientLabels(NamedTuple):
    """How clients judge what they are shown."""

    views: Any  # int32 [clients]: which row of grades a client sees
    grades: Any  # int8 [views, documents]
    ideal: Any  # float64 [views, queries]


class ClickModelArrays(NamedTuple):
    """How clients click."""

    click_model: Any  # int32 [clients]; -1 draws a row at every interaction
    click: Any  # float64 [users, grades]
    stop: Any  # float64 [users, grades]
    attention: Any  # float64 [users, 10]


class Corrections(NamedTuple):
    """What bends the steps of clients besides their gradients."""

    pull: Any  # float: share of the way back to the start, times the rate
    drifts: Any  # float64 [clients or 0, parameters]: added to every gradient
    personal: Any  # float64 [clients or 0, units]: last parameters that stay with their client, learned in place


class Steps(NamedTuple):
    """How PDGD steps."""

    rate: Any  # float
    batch: Any  # bool: all gradients of a client are taken at its start and summed into one step
    clip_weights: Any  # float: largest norm of the model after every step; 0: any
    clip_gradients: Any  # float, with batch: largest norm of the gradient of one interaction; 0: any


ADD, MOMENTUM, ADAM = 0, 1, 2  # kinds of server steps


class CompiledStep(NamedTuple):
    """How the server moves its model."""

    kind: Any  # int: ADD, MOMENTUM or ADAM
    rate: Any  # float
    first: Any  # float: share that is kept of the direction, or of mean changes
    second: Any  # float: of mean squared changes
    epsilon: Any  # float: keeps from dividing by zero


class Display(NamedTuple):
    """How a list is made of scores."""

    logged: Any  # bool: all documents as they stand, clicked where they have a grade
    temperature: Any  # float: scores are divided by it before a list is drawn
    keep: Any  # float: probability that the best document stays in the first place


class Draws(NamedTuple):
    """How the lists of a log were drawn, where it says so."""

    scores: Any  # float32 [documents or 0]: by which; all other documents of a list had one, too
    temperature: Any  # float
    keep: Any  # float


class Page(NamedTuple):
    """Room for one list: what was computed to show it, and what was clicked. All arrays are at least as long."""

    scores: Any  # float32 [documents]
    rates: Any  # float64 [documents]: e^((score - highest) / temperature)
    shown: Any  # int64 [list]: documents, counted within the query
    clicked: Any  # bool [list]


class Race(NamedTuple):
    """Scratch for drawing a list."""

    draws: Any  # float64 [documents]
    chosen: Any  # float64 [documents]
    times: Any  # float64 [documents]
    early: Any  # int64 [documents]
    ranks: Any  # int64 [documents]

"""Records of arrays that compiled loops take, as named tuples.

They are in a separate module, so cached compiled code finds them again.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Candidates(NamedTuple):
    """Documents by query."""

    features: Any  # float32 [documents, features]
    offsets: Any  # int64 [queries + 1]


class ClientArrays(NamedTuple):
    """The data of clients: row c is client c."""

    ids: Any  # int64 [clients]
    pool: Any  # int32 [clients]
    interactions: Any  # int64 [clients]
    queries: Any  # int32: all pools, concatenated
    pools: Any  # int64 [pools + 1]
    at: Any  # int64 [clients or 0]: index in its pool from which a client takes its queries in order


class ClientLabels(NamedTuple):
    """The relevance labels of clients."""

    views: Any  # int32 [clients]: index of a client's view of the labels
    grades: Any  # int8 [views, documents]
    ideal: Any  # float64 [views, queries]


class ClickModelArrays(NamedTuple):
    """The click models of clients."""

    click_model: Any  # int32 [clients]; -1 draws a row at each interaction
    click: Any  # float64 [users, labels]
    stop: Any  # float64 [users, labels]
    attention: Any  # float64 [users, 10]


class Corrections(NamedTuple):
    """Corrections of the steps of clients in addition to gradients."""

    pull: Any  # float: share of the distance back to the start, times the rate
    drifts: Any  # float64 [clients or 0, parameters]: added to every gradient
    personal: Any  # float64 [clients or 0, units]: personal last parameters, updated in place


class Steps(NamedTuple):
    """The steps of PDGD."""

    rate: Any  # float
    batch: Any  # bool: all gradients of a client are taken at its start and summed into one step
    clip_weights: Any  # float: maximum norm of the model after every step; 0: no limit
    clip_gradients: Any  # float, with batch: maximum norm of the gradient of one interaction; 0: no limit


ADD, MOMENTUM, ADAM = 0, 1, 2  # kinds of server steps


class CompiledStep(NamedTuple):
    """The step of the server."""

    kind: Any  # int: ADD, MOMENTUM or ADAM
    rate: Any  # float
    first: Any  # float: decay of the direction, or of mean changes
    second: Any  # float: decay of mean squared changes
    epsilon: Any  # float: avoids division by zero


class Display(NamedTuple):
    """How a list is made from scores."""

    logged: Any  # bool: all documents in their order, clicked if their label is not 0
    temperature: Any  # float: scores are divided by it before sampling
    keep: Any  # float: probability that the best document stays first


class Draws(NamedTuple):
    """How the lists of a log were sampled, if known."""

    scores: Any  # float32 [documents or 0]: scores used for sampling
    temperature: Any  # float
    keep: Any  # float


class Page(NamedTuple):
    """Buffers for one list: intermediate values, and clicks. All arrays are at least as long."""

    scores: Any  # float32 [documents]
    rates: Any  # float64 [documents]: e^((score - highest) / temperature)
    shown: Any  # int64 [list]: documents, counted within the query
    clicked: Any  # bool [list]


class Race(NamedTuple):
    """Scratch memory for sampling a list."""

    draws: Any  # float64 [documents]
    chosen: Any  # float64 [documents]
    times: Any  # float64 [documents]
    early: Any  # int64 [documents]
    ranks: Any  # int64 [documents]

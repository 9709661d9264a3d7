"""Check that user-defined methods behave as their traits and fast paths declare.

Backends rely on them: a sum is combined in chunks, a mean and a compiled server step run many rounds per call. Before
the first round of a simulation without noise, the result of a fast path is compared with the method itself on a few
clients. Differences above `TOLERANCE` of the largest value are errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.aggregators import part_of, whole_of
from fedrank.federated.round import Learn, RoundContext, client_messages
from fedrank.federated.server import State, method_name
from fedrank.types import Aggregator, Change, Memory, Messages, ServerOptimizer, Weights, fast_path, has_trait

TOLERANCE = 1e-6  # relative to the largest value
MAX_CLIENTS = 100  # maximum number of compared clients


class TraitError(ValueError):
    """A user-defined method declares a trait that does not hold."""


def from_outside(method: object) -> bool:
    return method is not None and not type(method).__module__.startswith("fedrank.")


def check_traits(context: RoundContext, learn: Learn, state: State, memory: Memory, chunks: bool) -> None:
    """Raise an error for user-defined methods whose fast path differs for the first clients of a round.

    A learner is checked if clients learn in `chunks`.
    """
    federation = context.federation
    learner = chunks and from_outside(federation.learner)
    aggregator = has_trait(federation.aggregator, "sum") and from_outside(federation.aggregator)
    server = fast_path(federation.server, "compiled_step") is not None and from_outside(federation.server)
    if context.noise is not None or context.clients.people is not None or not (learner or aggregator or server):
        return
    rows = context.draw(state.round + 1)[:MAX_CLIENTS]
    messages, _ = client_messages(context, learn, state, memory, rows)
    if not np.isfinite(messages.updates).all():
        return  # invalid updates are left out, or end the round with a separate message
    if learner and len(rows) > 1:
        half, _ = client_messages(context, learn, state, memory, rows[: len(rows) // 2])
        check_rows(federation.learner, messages.updates[: len(half.updates)], half.updates)
    if aggregator:
        check_sum(federation.aggregator, messages)
    if server and state.weights.ndim == 1:
        change = messages.updates.mean(axis=0, dtype=np.float64)
        check_step(federation.server, state.weights, change, state.server)


def check_rows(learner: object, together: NDArray[Any], alone: NDArray[Any]) -> None:
    """Check that a client's update does not depend on the other clients of a call."""
    _compare(
        f"the learner {method_name(learner)} returns a different update if other clients learn in the same call",
        together,
        alone,
        "draw from the stream of each client (chance and its id), and use no data of other clients",
    )


def check_sum(rule: Aggregator, messages: Messages) -> None:
    """Check that an aggregator with the trait "sum" or "mean" is the sum of its parts."""
    trait = "mean" if has_trait(rule, "mean") else "sum"
    half = len(messages.updates) // 2
    parts = [part_of(rule, messages.rows(rows)) for rows in (slice(None, half), slice(half, None))]
    remedy = (
        "client_weights must be the weights of the mean"
        if trait == "mean"
        else "whole(part(a) + part(b)) must equal the result"
    )
    _compare(
        f'the aggregator {method_name(rule)} declares the trait "{trait}", but its result is not that {trait}',
        rule(messages),
        whole_of(rule, parts[0] + parts[1]),
        f"{remedy}; or remove the trait, so updates are combined all at once",
    )


def check_step(server: ServerOptimizer, weights: Weights, change: Change, memory: NDArray[np.float64]) -> None:
    """Check that a server optimizer's `compiled_step` moves the model like calling it."""
    step = fast_path(server, "compiled_step")
    expected, expected_memory = server(weights, change, memory)
    found, found_memory = np.empty_like(weights), np.empty_like(memory)
    kernels.rounds.step(kernels.records.CompiledStep(*step()), weights, change, memory, found, found_memory)
    for one, other in ((expected, found), (expected_memory, found_memory)):
        _compare(
            f"compiled_step of the server optimizer {method_name(server)} and calling it move the model differently",
            one,
            other,
            "return an equal step, or remove compiled_step",
        )


def _compare(problem: str, expected: Any, found: Any, remedy: str) -> None:
    one, other = np.asarray(expected, dtype=np.float64), np.asarray(found, dtype=np.float64)
    if one.shape != other.shape:
        raise TraitError(f"{problem}: its shape is {one.shape} instead of {other.shape}; {remedy}")
    difference = float(np.abs(one - other).max(initial=0.0))
    if difference > TOLERANCE * float(np.abs(one).max(initial=0.0)):
        raise TraitError(f"{problem} (largest difference {difference:.3g}); {remedy}")

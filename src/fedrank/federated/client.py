"""The client half of a round, which runs on a device without a server."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.compatibility import people_clashes
from fedrank.federated.messages import Call, Message, payload_of
from fedrank.seeds import rng_for
from fedrank.types import (
    NO_CORRECTION,
    Impressions,
    Learned,
    Learner,
    LocalStep,
    Mechanism,
    Memory,
    Messages,
    Observed,
    OwnChance,
    SimulatedClients,
    has_trait,
)


@dataclass(frozen=True)
class ClientTask:
    """The methods that a client applies to every call."""

    learner: Learner
    local: LocalStep | None = None
    mechanism: Mechanism | None = None


def first_memory(task: ClientTask, features: int, seed: int) -> Memory:
    """Return a client's memory before its first call; `seed` is the seed of the run's first model."""
    ranker = task.learner.ranker
    return None if task.local is None else task.local.first(ranker, ranker.first(features, rng_for(seed, "first")), 1)


def answer(
    task: ClientTask, call: Call, impressions: Impressions, memory: Memory, own: OwnChance
) -> tuple[Message, Memory]:
    """Learn from impressions and protect the update: return the message that leaves, and the client's memory.

    `memory` is that of the last call, at first `first_memory`. Noise comes from own.source, or else from the system's
    secure source.
    """
    start = call.weights
    if has_trait(task.local, "shared part"):  # the personal part is in the client's memory
        start = np.concatenate([start, np.zeros(abs(task.learner.ranker.hidden), dtype=np.float32)])
    correction = NO_CORRECTION if task.local is None else task.local.correction(memory, call.common)
    learned = task.learner.from_impressions(start, impressions, own, correction)
    sizes = np.array([len(impressions)], dtype=np.int64)
    if task.local is not None:
        memory = task.local.remember(memory, correction, learned, steps_of(task.learner, sizes))
    return _message(task, learned, sizes, call, own), memory


class ClientAnswer(NamedTuple):
    """The result of a call at a client."""

    message: Message  # is sent
    memory: Memory  # stays with the client
    observed: Observed  # only in a simulation


def answer_from_holdings(
    task: ClientTask, call: Call, one: SimulatedClients, memory: Memory, own: OwnChance
) -> ClientAnswer:
    """Like `answer`, from a client's data with the compiled loop of simulations; `one` contains only this client.

    In an organisation, each person learns only from their own searches, and one sum is sent.
    """
    weights = call.weights.astype(np.float64)
    correction = NO_CORRECTION if task.local is None else task.local.correction(memory, call.common)
    if one.people is not None:
        if found := people_clashes(task.learner, task.local, None, task.mechanism):
            raise ValueError("\n".join(found))
        people = one.people
        learned = task.learner(weights, people, own.chance, correction)
        messages = Messages(learned.updates, people.interactions, people.client, weights, call.round)
        sent = _leaving(task, messages if has_trait(task.mechanism, "people") else of_clients(messages), call, own)
        message = Message(call.run, call.round, own.id, sent.updates[0], int(sent.sizes[0]), call.attempt)
        online = np.bincount(np.zeros(len(people), dtype=np.int64), learned.observed.online, 1) / len(people)
        return ClientAnswer(message, memory, Observed(online))
    if has_trait(task.local, "shared part"):
        weights = np.concatenate([weights, np.zeros(abs(task.learner.ranker.hidden))])
    learned = task.learner(weights, one, own.chance, correction)
    if task.local is not None:
        memory = task.local.remember(memory, correction, learned, steps_of(task.learner, one.interactions))
    sizes = one.interactions if learned.sizes is None else learned.sizes
    return ClientAnswer(_message(task, learned, sizes, call, own), memory, learned.observed)


def _message(task: ClientTask, learned: Learned, sizes: NDArray[np.int64], call: Call, own: OwnChance) -> Message:
    kind, _ = payload_of(task.learner, task.mechanism, len(call.weights))
    if isinstance(kind, np.dtype):
        assert learned.sent is not None
        return Message(call.run, call.round, own.id, learned.sent, int(sizes[0]), call.attempt)
    sent = leaving(task, learned, sizes, np.array([own.id]), call, own)
    return Message(call.run, call.round, own.id, sent.updates[0], int(sent.sizes[0]), call.attempt)


def of_clients(messages: Messages) -> Messages:
    """One row per organisation: the mean of its persons' updates, weighted by their searches."""
    ids, first, place = np.unique(messages.ids, return_index=True, return_inverse=True)
    sizes = np.bincount(place, messages.sizes, minlength=len(ids)).astype(np.int64)
    total = np.zeros((len(ids), messages.updates.shape[1]))
    np.add.at(total, place, messages.sizes[:, None] * messages.updates.astype(np.float64))
    updates = (total / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    weights = messages.weights if messages.weights.ndim == 1 else messages.weights[first]
    return replace(messages, updates=updates, sizes=sizes, ids=ids, weights=weights)


def leaving(
    task: ClientTask, learned: Learned, sizes: NDArray[np.int64], ids: NDArray[np.int64], call: Call, own: OwnChance
) -> Messages:
    """The part of an update that is sent."""
    updates = learned.updates[:, : len(call.weights)]
    return _leaving(task, Messages(updates, sizes, ids, call.weights.astype(np.float64), call.round), call, own)


def _leaving(task: ClientTask, messages: Messages, call: Call, own: OwnChance) -> Messages:
    if task.mechanism is None:
        return messages
    source = task.mechanism.source() if own.source is None else own.source
    counts = None if call.count == 1 else np.array([call.count])
    return task.mechanism.protect(messages, call.cohort, source, counts)


def steps_of(learner: Learner, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n]: number of steps of clients, times the rate."""
    return sizes.astype(np.float64) * float(getattr(learner, "rate", 1.0))

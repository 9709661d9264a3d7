"""The round: learn -> (attack) -> (protect) -> aggregate -> server step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.federate.aggregate import Apart, Mean
from fedrank.federate.server import Add
from fedrank.rank.learners import Pdgd
from fedrank.seeds import Chance, rng_for
from fedrank.types import (
    Aggregator,
    Arrivals,
    Attack,
    Change,
    Clients,
    Learner,
    Mechanism,
    Memory,
    ServerStep,
    StreamingAggregator,
    Weights,
)

CHUNK_BYTES = 64 << 20  # updates held at once when the aggregator can take them in parts
LARGEST_ROUND = 8 << 30  # bytes of updates that a rule may ask to hold together


class RoundError(RuntimeError):
    """A round that cannot be completed, with the place where it broke."""

    def __init__(self, message: str, round: int, client: int | None = None):
        where = f"round {round}" if client is None else f"round {round}, client {client}"
        super().__init__(f"{where}: {message}")
        self.message, self.round, self.client = message, round, client


@dataclass(frozen=True)
class Federation:
    """Who does what."""

    learner: Learner = field(default_factory=Pdgd)
    aggregator: Aggregator = field(default_factory=Mean)
    server: ServerStep = field(default_factory=Add)
    attack: Attack | None = None
    mechanism: Mechanism | None = None
    participation: float = 1.0  # share of clients that take part in a round, drawn anew each time


@dataclass(frozen=True)
class State:
    """All that the next round needs."""

    round: int  # rounds done
    weights: Weights  # the global model, or one row per client where nobody aggregates
    memory: Memory = None
    server: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Outcome:
    """What a round left behind: its end state, and what was measured on the way."""

    state: State
    online: float  # mean over clients of the nDCG@10 of the lists they were shown
    interactions: int
    bytes_up: int
    bytes_down: int
    reward: float | None = None  # mean over clients, where the learner has one

    @property
    def round(self) -> int:
        return self.state.round

    @property
    def weights(self) -> Weights:
        return self.state.weights


def first_state(federation: Federation, clients: Clients, seed: int, start: Weights | None = None) -> State:
    """The state before round 1, from the ranker's own first weights or from a model that exists."""
    features = clients.data.features.shape[1]
    ranker = federation.learner.ranker
    weights = ranker.first(features, rng_for(seed, "first")) if start is None else np.array(start, dtype=np.float64)
    if weights.shape != (ranker.size(features),):
        raise ValueError(
            f"the start model has {weights.size} parameters; {type(ranker).__name__} on {features} features "
            f"has {ranker.size(features)}. Use the ranker and the features it was trained with"
        )
    if isinstance(federation.aggregator, Apart):
        weights = np.tile(weights, (len(clients), 1))
    return State(0, weights, None, federation.server.first(weights.size))


def federated_round(federation: Federation, state: State, clients: Clients, seed: int, threads: int = 1) -> Outcome:
    """One round of federated learning."""
    number = state.round + 1
    present = taking_part(clients, federation.participation, seed, number)
    change, memory, seen = _learn_and_aggregate(federation, state, clients, present, seed, threads)
    apart = state.weights.ndim == 2
    if apart:
        every = np.zeros_like(state.weights)
        every[present] = change
        change = every
    weights, server = federation.server(state.weights, change, state.server)
    model_bytes = 4 * state.weights.shape[-1]
    return Outcome(
        State(number, weights, memory, server),
        online=_mean(seen.online),
        interactions=int(clients.interactions[present].sum()),
        bytes_up=0 if apart else len(present) * (seen.message_bytes or model_bytes),
        bytes_down=0 if apart else len(present) * model_bytes,
        reward=None if seen.reward is None else _mean(seen.reward),
    )


def simulate(
    federation: Federation,
    clients: Clients,
    rounds: int,
    seed: int = 1,
    *,
    start: Weights | None = None,
    state: State | None = None,
    threads: int = 1,
) -> Iterator[Outcome]:
    """Round after round, each as it ends. Continue from a `state`, or begin (from the weights `start`, if given)."""
    if state is None:
        state = first_state(federation, clients, seed, start)
    while state.round < rounds:
        outcome = federated_round(federation, state, clients, seed, threads)
        state = outcome.state
        yield outcome


def taking_part(clients: Clients, participation: float, seed: int, round: int) -> NDArray[np.int64]:
    """Rows of the clients that take part in a round, in ascending order; at least one."""
    if participation >= 1:
        return np.arange(len(clients))
    count = max(1, round_half_up(participation * len(clients)))
    return np.sort(Chance(seed, round).rng("participate").choice(len(clients), size=count, replace=False))


def round_half_up(x: float) -> int:
    return int(np.floor(x + 0.5))


class Seen(NamedTuple):
    """What remains of arrivals once their updates are aggregated."""

    online: NDArray[np.float64]
    reward: NDArray[np.float64] | None
    message_bytes: int | None


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.add.reduce(values)) / len(values)  # ndarray.mean takes longer than the rest of a small round


def _learn_and_aggregate(
    federation: Federation,
    state: State,
    clients: Clients,
    present: NDArray[np.int64],
    seed: int,
    threads: int,
) -> tuple[Change, Memory, Seen]:
    """All present clients at once; or in chunks, where the aggregator's parts add up and nobody looks across them."""
    bytes_each = 4 * state.weights.shape[-1]
    streams = hasattr(federation.aggregator, "part") and federation.attack is None and federation.mechanism is None
    if not streams or bytes_each * len(present) <= CHUNK_BYTES:
        needed = bytes_each * len(present)
        if needed > LARGEST_ROUND:
            raise RoundError(
                f"{type(federation.aggregator).__name__} needs all {len(present)} updates together, "
                f"{needed / 2**30:.1f} GiB; use fewer clients, a smaller participation, or the mean",
                state.round + 1,
            )
        arrived, memory = _arrive(federation, state, clients, present, seed, threads)
        change = federation.aggregator(arrived)
        if federation.mechanism is not None:
            change = federation.mechanism.release(change, arrived)
        return change, memory, Seen(arrived.online, arrived.reward, arrived.message_bytes)
    streaming = cast(StreamingAggregator, federation.aggregator)
    rows = max(1, CHUNK_BYTES // bytes_each)
    total = np.zeros(())  # becomes the first part
    chunks = []
    memory = state.memory
    for begin in range(0, len(present), rows):
        arrived, memory = _arrive(federation, state, clients, present[begin : begin + rows], seed, threads)
        part = streaming.part(arrived)
        total = total + part
        chunks.append(Seen(arrived.online, arrived.reward, arrived.message_bytes))
    rewards = [chunk.reward for chunk in chunks if chunk.reward is not None]
    seen = Seen(
        np.concatenate([chunk.online for chunk in chunks]),
        np.concatenate(rewards) if rewards else None,
        chunks[0].message_bytes,
    )
    return streaming.whole(total), memory, seen


def _arrive(
    federation: Federation,
    state: State,
    clients: Clients,
    present: NDArray[np.int64],
    seed: int,
    threads: int,
) -> tuple[Arrivals, Memory]:
    """What these clients learn, and what of it reaches the server."""
    number = state.round + 1
    some = clients if len(present) == len(clients) else clients.rows(present)
    start = state.weights if state.weights.ndim == 1 else state.weights[present]
    chance = Chance(seed, number)
    arrived, memory = federation.learner(start, state.memory, some, chance, threads)
    if not math.isfinite(np.add.reduce(arrived.updates, axis=None, dtype=np.float64)):
        client = int(arrived.ids[np.argmin(np.isfinite(arrived.updates).all(axis=1))])
        problem = "the update is not finite; take smaller steps (learner.rate), or normalise the features"
        raise RoundError(problem, number, client)
    if federation.attack is not None:
        arrived = federation.attack(arrived, some.malicious, chance.rng("attack"))
    if federation.mechanism is not None:
        arrived = federation.mechanism.protect(arrived)
    return arrived, memory

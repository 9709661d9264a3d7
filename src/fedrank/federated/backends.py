"""The CPU backends: `Compiled`, the default, and `Reference`, a slow and simple version."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.round import (
    ClientResults,
    Learn,
    LocalWork,
    Outcome,
    RoundContext,
    Watch,
    client_messages,
    mean_over,
    root_update,
    run_rounds,
)
from fedrank.federated.server import Combined, RoundError, State, combine
from fedrank.federated.small_rounds import ENOUGH_ROUNDS, small_rounds
from fedrank.federated.traits import check_traits
from fedrank.ranking.impressions import learn_one_by_one
from fedrank.types import Learned, Memory, Messages, has_trait

CHUNK_BYTES = 64 << 20  # bytes of updates in memory, if the aggregator is a sum of parts
MAX_ROUND = 8 << 30  # maximum bytes of updates of an aggregator that needs all together


class Compiled:
    """Compiled loops over all clients, in chunks if the aggregator is a sum, with many small rounds per call."""

    def __init__(self, context: RoundContext) -> None:
        self._learner, self._threads = context.federation.learner, context.threads

    def rounds(self, context: RoundContext, state: State, memory: Memory, last: int) -> Iterator[Outcome]:
        """Yield outcomes up to round `last`."""
        chunks = takes_chunks(context) and _bytes_each(context, state) * len(context.clients) > CHUNK_BYTES
        if state.round < last:
            check_traits(context, self.learn, state, memory, chunks)
        if last - state.round >= ENOUGH_ROUNDS:
            for outcome in _small_rounds(context, state, last):
                state = outcome.state
                yield outcome
        yield from run_rounds(context, self, state, memory, last)

    def learn(self, work: LocalWork) -> Learned:
        return self._learner(work.start, work.clients, work.chance, work.correction, self._threads)

    def combine(
        self, context: RoundContext, state: State, memory: Memory, cohort: NDArray[np.int64], watch: Watch | None
    ) -> tuple[Combined, list[ClientResults]]:
        return combine_messages(context, self.learn, state, memory, cohort, watch)


class Reference:
    """Runs each client with the function that a deployed client uses; slow, the oracle of the other backends."""

    def __init__(self, context: RoundContext) -> None:
        if context.clients.people is not None:
            raise ValueError('device = "reference" does not support persons within organisations; use device = "cpu"')
        self._learner = context.federation.learner

    def rounds(self, context: RoundContext, state: State, memory: Memory, last: int) -> Iterator[Outcome]:
        return run_rounds(context, self, state, memory, last)

    def learn(self, work: LocalWork) -> Learned:
        return learn_one_by_one(self._learner, work.start, work.clients, work.chance, work.correction)

    def combine(
        self, context: RoundContext, state: State, memory: Memory, cohort: NDArray[np.int64], watch: Watch | None
    ) -> tuple[Combined, list[ClientResults]]:
        messages, results = _all_messages(context, self.learn, state, memory, cohort, watch)
        combined = combine(context.task, state, [(messages, cohort)], len(cohort), context.noise, streaming=False)
        return combined, [results]


def combine_messages(
    context: RoundContext, learn: Learn, state: State, memory: Memory, cohort: NDArray[np.int64], watch: Watch | None
) -> tuple[Combined, list[ClientResults]]:
    """Let a cohort learn and combine its messages, all at once or in chunks if no method needs all of them."""
    bytes_each = _bytes_each(context, state)
    if bytes_each * len(cohort) <= CHUNK_BYTES or not takes_chunks(context):
        if bytes_each * len(cohort) > MAX_ROUND:
            raise RoundError(
                f"{type(context.federation.aggregator).__name__} needs all {len(cohort)} updates in memory, "
                f"{bytes_each * len(cohort) / 2**30:.1f} GiB; use fewer clients, a smaller participation, or the mean",
                state.round + 1,
            )
        messages, result = _all_messages(context, learn, state, memory, cohort, watch)
        return combine(context.task, state, [(messages, cohort)], len(cohort), context.noise), [result]
    results: list[ClientResults] = []

    def chunks() -> Iterator[tuple[Messages, NDArray[np.int64]]]:
        rows = max(1, CHUNK_BYTES // bytes_each)
        for begin in range(0, len(cohort), rows):
            chunk = cohort[begin : begin + rows]
            messages, result = client_messages(context, learn, state, memory, chunk)
            results.append(result)
            yield messages, chunk

    return combine(context.task, state, chunks(), len(cohort), context.noise), results


def _bytes_each(context: RoundContext, state: State) -> int:
    """Bytes of the updates of a client and its persons."""
    people = context.clients.people
    return 4 * int(state.weights.shape[-1]) * (1 if people is None else math.ceil(len(people) / len(context.clients)))


def takes_chunks(context: RoundContext) -> bool:
    """Whether messages may be combined in parts: the aggregator is a sum, and no other method needs all of them."""
    federation = context.federation
    return (
        has_trait(federation.aggregator, "sum")
        and not has_trait(federation.mechanism, "whole round")
        and federation.attack is None
        and context.watch is None
    )


def _all_messages(
    context: RoundContext, learn: Learn, state: State, memory: Memory, cohort: NDArray[np.int64], watch: Watch | None
) -> tuple[Messages, ClientResults]:
    """The messages of a whole cohort, and the server's own update if needed."""
    messages, result = client_messages(context, learn, state, memory, cohort)
    if watch is not None:
        watch(messages.rows(np.isfinite(messages.updates).all(axis=1)))
    if has_trait(context.federation.aggregator, "trusted queries"):
        root = root_update(context.federation, state, context.clients, context.seed)
        messages = replace(messages, root=root)
    return messages, result


def _small_rounds(context: RoundContext, state: State, last: int) -> Iterator[Outcome]:
    """Yield rounds, many per call, until the last or until an update is not finite."""
    if context.journal is not None or context.watch is not None:
        return
    small = small_rounds(context.federation, context.clients, context.seed, state, context.draw)
    if small is None:
        return
    for states, cohorts, online in small.after(state, last):
        sizes = context.clients.interactions[cohorts]
        interactions = np.add.reduce(sizes, axis=1).tolist()
        bytes_sent = 4 * state.weights.size * cohorts.shape[1]
        for after, quality, count in zip(states, _means_over(online, sizes), cycle(interactions), strict=False):
            yield Outcome(after, None, after.weights, quality, count, bytes_sent, bytes_sent)


def _means_over(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> list[float]:
    """`mean_over` each row; `sizes` [rows or 1, clients]."""
    if sizes.all():
        means: list[float] = (np.add.reduce(values, axis=1) / values.shape[1]).tolist()
        return means
    return [mean_over(row, own) for row, own in zip(values, np.broadcast_to(sizes, values.shape), strict=True)]

"""Many small rounds in one compiled call, if every part of a round is compiled and nothing happens in between.

For a round of ten clients, Python's overhead is half the time of learning. The results equal those of single rounds
bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.federation import Federation, cohort_size
from fedrank.federated.server import State
from fedrank.ranking.loops import MIN_SHARE
from fedrank.seeds import keys_for
from fedrank.types import MeanAggregator, SimulatedClients, fast_path, has_trait

SMALL = 2 * MIN_SHARE  # interactions; a round with fewer is not divided among threads
ENOUGH_ROUNDS = 2_000  # with fewer, compilation takes longer than it saves
SECONDS_AT_ONCE = 0.05  # target duration of a call, since a run can stop only between calls
BYTES_AT_ONCE = 4 << 20  # of updates, and of models and server state


class ManyRounds(NamedTuple):
    """The results of the rounds of one call."""

    states: list[State]  # after each round
    cohorts: NDArray[np.int64]  # [rounds or 1, present]: rows of the participants
    online: NDArray[np.float64]  # [rounds, present]


class SmallRounds:
    """Runs many rounds per call. `drawn` returns the participants of a round."""

    def __init__(
        self, federation: Federation, clients: SimulatedClients, seed: int, drawn: Callable[[int], NDArray[np.int64]]
    ) -> None:
        self.seed, self.drawn = seed, drawn
        self.settings = fast_path(federation.learner, "compiled_settings")(clients)
        aggregator = cast(MeanAggregator, federation.aggregator)
        self.client_weights = np.asarray(aggregator.client_weights(clients.interactions), dtype=np.float64)
        self.server_step = tuple(fast_path(federation.server, "compiled_step")())
        self.everybody = np.arange(len(clients))[None] if federation.participation >= 1 else None

    def after(self, state: State, last: int) -> Iterator[ManyRounds]:
        """Yield rounds until the last, or until before one with an update that is not finite."""
        count, most = 1, max(1, BYTES_AT_ONCE // (8 * (state.weights.size + state.server.size)))
        while state.round < last:
            count, began = min(count, last - state.round), time.perf_counter()
            done = self._call(state, count)
            seconds = time.perf_counter() - began
            yield done
            if len(done.states) < count:
                return
            state = done.states[-1]
            if seconds > SECONDS_AT_ONCE:
                count = max(1, count // 2)
            elif seconds < SECONDS_AT_ONCE / 2:
                count = min(2 * count, most)

    def _call(self, state: State, count: int) -> ManyRounds:
        numbers = range(state.round + 1, state.round + 1 + count)
        cohorts = np.stack([self.drawn(number) for number in numbers]) if self.everybody is None else self.everybody
        models, memories = np.empty((count, state.weights.size)), np.empty((count, state.server.size))
        online = np.empty((count, cohorts.shape[1]))
        run: Any = kernels.rounds.pdgd_rounds
        done = run(
            keys_for(self.seed, "learn", numbers), cohorts, *self.settings, self.client_weights, self.server_step,
            np.ascontiguousarray(state.weights, dtype=np.float64), np.ascontiguousarray(state.server), models, memories,
            online,
        )  # fmt: skip
        # Copies: a reference to one model must not keep all models of its call in memory.
        states = [
            State(number, model.copy(), None, memory.copy(), state.rule)
            for number, model, memory in zip(numbers[:done], models, memories, strict=False)
        ]
        return ManyRounds(states, cohorts, online[:done])


def small_rounds(
    federation: Federation,
    clients: SimulatedClients,
    seed: int,
    state: State,
    drawn: Callable[[int], NDArray[np.int64]],
) -> SmallRounds | None:
    """Return how to run many rounds per call; None if a part of a round is not compiled, or a round is large."""
    learner, server = federation.learner, federation.server
    between = (federation.local, federation.attack, federation.mechanism, clients.people, state.common)
    if clients.own_click_models or federation.dealt:  # groups may differ in size
        return None
    compiled = fast_path(learner, "compiled_settings"), fast_path(server, "compiled_step")
    if None in compiled or not has_trait(federation.aggregator, "mean"):
        return None
    if any(part is not None for part in between):
        return None
    parameters = learner.ranker.size(clients.data.features.shape[1])
    present = cohort_size(len(clients), federation.participation)
    if state.weights.shape != (parameters,) or state.server.shape != server.first(parameters).shape:
        return None
    if present * int(clients.interactions.max()) >= SMALL or 4 * present * parameters > BYTES_AT_ONCE:
        return None
    return SmallRounds(federation, clients, seed, drawn)

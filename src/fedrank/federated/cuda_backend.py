"""The GPU backend: clients learn on the GPU, and updates stay there if possible."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.federated import backends
from fedrank.federated.aggregators import whole_of
from fedrank.federated.multi_round import MultiRound
from fedrank.federated.round import ClientResults, LocalWork, Outcome, RoundContext, Watch, outcome_of, run_round
from fedrank.federated.server import Combined, RoundError, State
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.ranking.cuda.robust import RobustOnDevice, most_clients
from fedrank.seeds import Chance
from fedrank.types import (
    Aggregator,
    ClippingMechanism,
    Learned,
    Memory,
    Observed,
    SimulatedClients,
    fast_path,
    has_trait,
)

CHUNKS_ON_DEVICE = 12  # chunks of updates in GPU memory
DEVICE_BYTES = 1 << 30  # bytes of updates on a GPU


class Cuda:
    """Clients learn on a GPU, which also computes means, clipped sums and robust aggregators."""

    def __init__(self, context: RoundContext, learner: PdgdOnDevice) -> None:
        federation, clients, mechanism = context.federation, context.clients, context.federation.mechanism
        self._learner, self._threads = learner, context.threads
        self._host = backends.Compiled(context)
        stay = context.journal is None and context.watch is None and federation.local is None
        plain = stay and mechanism is None and federation.attack is None
        # How the GPU weights updates in their mean: by interactions (True), equally (False), or not applicable (None)
        self._weighted = weighted_by_sizes(federation.aggregator, clients.interactions) if plain else None
        size = math.ceil(federation.cohort(len(clients)))
        self._rule = robust_rule(federation.aggregator, learner, size) if plain else None
        # A trusted server may clip and add up updates on the GPU; it adds noise on the host.
        self._clips = (
            stay
            and backends.takes_chunks(context)
            and isinstance(mechanism, ClippingMechanism)
            and mechanism.clips(clients.interactions[:0], context.cohort) is not None
        )
        # Many small rounds are done per launch, since launch overhead exceeds the time of a small round.
        self._many = None
        if self._weighted is not None:
            self._many = MultiRound.of(learner, federation, clients, context.seed, self._weighted)

    def rounds(self, context: RoundContext, state: State, memory: Memory, last: int) -> Iterator[Outcome]:
        while state.round < last:
            for outcome in self._next(context, state, memory, last):
                state, memory = outcome.state, outcome.memory
                yield outcome

    def _next(self, context: RoundContext, state: State, memory: Memory, last: int) -> Iterator[Outcome]:
        done = [] if self._many is None else self._many(state, last, context.draw)
        for after, cohort, online in done:
            yield outcome_of(context, after, memory, cohort, [ClientResults(Observed(online), None, None)])
        if not done:
            yield run_round(context, self, state, memory)

    def learn(self, work: LocalWork) -> Learned:
        if work.correction.personal is not None:
            return self._host.learn(work)
        return self._learner.learned(work.start, work.chance, work.rows, work.correction)

    def combine(
        self, context: RoundContext, state: State, memory: Memory, cohort: NDArray[np.int64], watch: Watch | None
    ) -> tuple[Combined, list[ClientResults]]:
        found = None
        if self._weighted is not None:
            found = self._mean(context, state, cohort, self._weighted)
        elif self._rule is not None:
            found = self._robust(context, state, cohort, self._rule)
        elif self._clips and len(cohort):
            found = self._clipped_sum(context, state, cohort)
        if found is not None:
            return found
        return backends.combine_messages(context, self.learn, state, memory, cohort, watch)

    def _mean(
        self, context: RoundContext, state: State, cohort: NDArray[np.int64], weighted: bool
    ) -> tuple[Combined, list[ClientResults]] | None:
        """The mean of updates, summed on the GPU in the same chunks as on the CPU; None if one is not finite."""
        clients, chance = context.clients, Chance(context.seed, state.round + 1)
        sizes = _sizes(clients, cohort)
        rows = max(1, backends.CHUNK_BYTES // (4 * state.weights.shape[-1]))
        results, total = [], np.zeros(0)
        for begin in range(0, len(cohort), rows * CHUNKS_ON_DEVICE):
            some = cohort[begin : begin + rows * CHUNKS_ON_DEVICE]
            sums, observed = self._learner.parts(state.weights, chance, _which(clients, some), weighted, rows)
            for number, part in enumerate(sums):
                own = sizes[begin + number * rows : begin + (number + 1) * rows][: len(some) - number * rows]
                part = np.append(part, own.sum() if weighted else len(own))
                total = part if begin == number == 0 else total + part
            results.append(ClientResults(observed, self._learner.bytes_each, None))
        if not np.isfinite(total).all():
            return None
        change = whole_of(context.federation.aggregator, total)
        return Combined(change, cohort, None, sizes, state.rule, state.common), results

    def _clipped_sum(
        self, context: RoundContext, state: State, cohort: NDArray[np.int64]
    ) -> tuple[Combined, list[ClientResults]]:
        """The sum of clipped updates in integer grid steps, which does not depend on the chunks."""
        mechanism, clients, size = context.federation.mechanism, context.clients, state.weights.size
        assert context.noise is not None
        assert isinstance(mechanism, ClippingMechanism)
        chance, rows = Chance(context.seed, state.round + 1), max(1, DEVICE_BYTES // (4 * size))
        results, total = [], np.zeros(size, dtype=np.int64)
        for begin in range(0, len(cohort), rows):
            some = cohort[begin : begin + rows]
            clip = mechanism.clips(clients.interactions[some], context.cohort)
            assert clip is not None
            part, observed = self._learner.clipped(state.weights, chance, _which(clients, some), clip)
            total += part
            results.append(ClientResults(observed, 4 * size, None))
        change = cast(Any, mechanism).rule(context.cohort, context.noise).whole(total)
        counts = np.ones(len(cohort), np.int64)
        return Combined(change, cohort, None, counts, state.rule, state.common), results

    def _robust(
        self, context: RoundContext, state: State, cohort: NDArray[np.int64], rule: Any
    ) -> tuple[Combined, list[ClientResults]] | None:
        """The result of a robust aggregator on the GPU; None if an update is not finite."""
        chance = Chance(context.seed, state.round + 1)
        updates, observed = self._learner.stay(state.weights, chance, _which(context.clients, cohort))
        on_device = RobustOnDevice(self._learner.device, updates)
        if not on_device.sound():
            return None
        try:
            change = rule(on_device)
        except ValueError as problem:  # for example, too few clients for this aggregator
            raise RoundError(str(problem), state.round + 1) from problem
        result = ClientResults(observed, self._learner.bytes_each, None)
        return Combined(change, cohort, None, _sizes(context.clients, cohort), state.rule, state.common), [result]


def weighted_by_sizes(aggregator: Aggregator, sizes: NDArray[np.int64]) -> bool | None:
    """Whether a mean weights clients by their interactions (True) or equally (False); None for other aggregators."""
    if not has_trait(aggregator, "mean"):
        return None
    weights = cast(Any, aggregator).client_weights(sizes)
    if np.array_equal(weights, sizes):
        return True
    return False if np.array_equal(weights, np.ones(len(sizes))) else None


def robust_rule(aggregator: Aggregator, learner: PdgdOnDevice, clients: int) -> Any:
    """Return the GPU version of a robust aggregator; None if there is none, or clients do not fit."""
    rule = fast_path(aggregator, "on_device")
    if rule is None or learner.bytes_each is not None:
        return None
    return rule if clients <= most_clients(learner.device, cast(Any, aggregator).device_bytes) else None


def _sizes(clients: SimulatedClients, cohort: NDArray[np.int64]) -> NDArray[np.int64]:
    return clients.interactions if len(cohort) == len(clients) else clients.interactions[cohort]


def _which(clients: SimulatedClients, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
    return None if len(rows) == len(clients) else rows

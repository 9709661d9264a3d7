"""Many small rounds in one GPU launch, if every part of a round runs on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.federation import Federation, cohort_size
from fedrank.federated.server import State
from fedrank.kernels.records import ADAM
from fedrank.ranking.cuda.pdgd import PdgdOnDevice
from fedrank.ranking.cuda.rounds import MAX_CLIENTS, MoveOnDevice, RoundsDone, RoundsOnDevice
from fedrank.seeds import Chance
from fedrank.types import SimulatedClients, fast_path

SEARCHES = 25_000  # approximate number per launch, since a run can stop only between launches
MAX_ROUNDS = 512  # per launch


class _Begun(NamedTuple):
    """Rounds in progress on the GPU."""

    state: State  # before them
    last: int
    numbers: range
    cohorts: list[NDArray[np.int64]]
    collect: Callable[[], RoundsDone]


class MultiRound:
    """Rounds of a federation with the mean as aggregator, many per launch."""

    def __init__(
        self, rounds: RoundsOnDevice, federation: Federation, clients: SimulatedClients, seed: int, weighted: bool
    ) -> None:
        self.rounds, self.federation, self.clients, self.seed, self.weighted = (
            rounds,
            federation,
            clients,
            seed,
            weighted,
        )
        self.taking_part = cohort_size(len(clients), federation.participation)
        searches = int(clients.interactions.sum()) * self.taking_part // max(len(clients), 1)
        self._begun: _Begun | None = None
        self.most = max(1, min(MAX_ROUNDS, SEARCHES // max(searches, 1)))

    @classmethod
    def of(
        cls,
        on_device: PdgdOnDevice | None,
        federation: Federation,
        clients: SimulatedClients,
        seed: int,
        weighted: bool,
    ) -> MultiRound | None:
        """Return None if a part does not run on the GPU, or a single round is large enough to fill it."""
        step = fast_path(federation.server, "compiled_step")
        if (
            on_device is None
            or federation.dealt  # groups may differ in size
            or not on_device.many_rounds
            or step is None
            or cohort_size(len(clients), federation.participation) > MAX_CLIENTS
        ):
            return None
        rounds = RoundsOnDevice(on_device, MoveOnDevice(*step()), weighted)
        return cls(rounds, federation, clients, seed, weighted) if rounds.fits else None

    def __call__(
        self, state: State, last: int, drawn: Callable[[int], NDArray[np.int64]]
    ) -> list[tuple[State, NDArray[np.int64], NDArray[np.float64]]]:
        """Return (state, rows of participating clients, their online quality) of the next rounds up to `last`.

        Empty if the next round must run separately because an update in it is not finite. The following rounds are
        started at once, so the GPU continues while these are processed.
        """
        begun = self._begun
        if begun is None or begun.state is not state or begun.last != last:
            begun = self._begin(state, last, drawn)
        self._begun = None
        found = begun.collect()
        servers = self._servers(state, found.servers)
        outcomes = [
            (State(number, model, state.common, server, state.rule), cohort, online)
            for number, model, server, cohort, online in zip(
                begun.numbers, found.models, servers, begun.cohorts, found.online, strict=False
            )
        ]
        if len(outcomes) == len(begun.numbers) and outcomes[-1][0].round < last:
            self._begun = self._begin(outcomes[-1][0], last, drawn)
        return outcomes

    def _begin(self, state: State, last: int, drawn: Callable[[int], NDArray[np.int64]]) -> _Begun:
        numbers = range(state.round + 1, min(last, state.round + self.most) + 1)
        cohorts = [drawn(number) for number in numbers]
        everybody = self.taking_part == len(self.clients)
        sizes = self.clients.interactions
        if not self.weighted:
            counts = np.full(len(numbers), float(self.taking_part))
        elif everybody:
            counts = np.full(len(numbers), float(sizes.sum()))
        else:
            counts = np.array([float(sizes[cohort].sum()) for cohort in cohorts])
        keys = np.array([Chance(self.seed, number).key("learn") for number in numbers], dtype=np.uint64)
        collect = self.rounds.begin(
            state.weights,
            state.server,
            keys,
            None if everybody else np.stack(cohorts).astype(np.int64),
            counts,
            self._bias(state, len(numbers)),
        )
        return _Begun(state, last, numbers, cohorts, collect)

    def _bias(self, state: State, rounds: int) -> NDArray[np.float64]:
        """[rounds, 2]: Adam's bias corrections."""
        step = self.rounds.step
        if step.kind != ADAM:
            return np.zeros((0, 2))
        from fedrank.kernels.elementary import power

        steps = state.server[-1] + np.arange(1, rounds + 1)
        return np.array([[1 - power(beta, count) for beta in (step.beta1, step.beta2)] for count in steps])

    def _servers(self, state: State, kept: NDArray[np.float64]) -> NDArray[np.float64]:
        """[rounds, state of the server step]."""
        if self.rounds.step.kind != ADAM:
            return kept
        return np.column_stack([kept, state.server[-1] + np.arange(1, len(kept) + 1)])

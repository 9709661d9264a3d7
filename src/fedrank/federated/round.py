"""Rounds in simulation: both halves for all clients at once, with what only a simulation sees.

A round is learn -> (attack) -> protect on the clients, and combine -> step on the server. Clients are rows of a table,
so that one compiled loop lets all of them learn; where the rule is a sum, a million never lie in memory together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.display import as_pairs, one_line
from fedrank.federated.aggregators import Mean
from fedrank.federated.asynchronous import SINCE, ArrivalRule, Schedule, schedule
from fedrank.federated.client import of_clients, steps_of
from fedrank.federated.compatibility import people_clashes
from fedrank.federated.federation import Federation, cohort_size
from fedrank.federated.multi_round import MultiRound
from fedrank.federated.robust_on_device import change_on_device, has_twin
from fedrank.federated.server import Combined, RoundError, ServerTask, State, advance, combine
from fedrank.federated.small_rounds import ENOUGH_ROUNDS, small_rounds
from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.choice import find_device_learner
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Chance, rng_for
from fedrank.types import (
    NO_CORRECTION,
    Change,
    ClippingMechanism,
    Learned,
    LocalCorrection,
    Memory,
    Messages,
    Observed,
    Ranker,
    SimulatedClients,
    Source,
    Weights,
    has_trait,
)

CHUNK_BYTES = 64 << 20  # updates held at once when the aggregator can take them in parts
CHUNKS_ON_DEVICE = 12  # of them that a card holds at once
LARGEST_ROUND = 8 << 30  # bytes of updates that a rule may ask to hold together
DEVICE_BYTES = 1 << 30  # of updates on a graphics card
LONGEST_WINDOW = 4096  # arrivals that are learned in one call
WINDOW_BYTES = 64 << 20  # of updates, likewise


class JournalEntry(Protocol):
    """What a round left in the journal before a crash: it is used again, so that nobody is asked twice."""

    @property
    def cohort(self) -> NDArray[np.int64]: ...
    @property
    def change(self) -> Change: ...


class Journal(Protocol):
    """Durable record of who took part and what came out of it; `fedrank.privacy.spending` keeps one."""

    def kept(self, round: int) -> JournalEntry | None: ...
    def cohort(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Rows of the clients that take part, noted before any of them is asked; `draw` gives those of any round."""

    def keep(self, round: int, change: Change) -> None:
        """Note the change before anything uses it."""


class Outcome(NamedTuple):
    """What a round left behind: its end state, what clients keep, and what was measured on the way."""

    state: State
    memory: Memory
    weights: Weights  # the model that is evaluated; with a personal part, the mean of everybody's
    online: float  # mean over clients of the nDCG@10 of the lists they were shown
    interactions: int
    bytes_up: int
    bytes_down: int
    reward: float | None = None  # mean over clients, where the learner has one
    excluded: tuple[int, ...] = ()  # ids of clients whose update was of no use, and not used

    @property
    def round(self) -> int:
        return self.state.round

    def _display(self) -> tuple[str, dict[str, str]]:
        return f"of round {self.round:,}", {
            "online nDCG@10": "" if math.isnan(self.online) else f"{self.online:.4f}",
            "reward": "" if self.reward is None else f"{self.reward:.4f}",
            "interactions": f"{self.interactions:,}",
            "bytes up": f"{self.bytes_up:,}",
            "bytes down": f"{self.bytes_down:,}",
            "left out": ", ".join(map(str, self.excluded)),
        }

    def __repr__(self) -> str:
        return one_line("Outcome", *self._display())

    def _repr_html_(self) -> str:
        return as_pairs("Outcome", *self._display())


def first_weights(ranker: Ranker, crowd: SimulatedClients, seed: int) -> Weights:
    """The ranker's own first weights, which are the same for all who use this seed."""
    return ranker.first(crowd.data.features.shape[1], rng_for(seed, "first"))


def first_state(
    federation: Federation,
    crowd: SimulatedClients,
    seed: int,
    start: Weights | None = None,
    arrival: ArrivalRule | None = None,
) -> tuple[State, Memory]:
    """The server's state before round 1 and what clients keep, from the ranker's first weights or an existing model."""
    features, ranker = crowd.data.features.shape[1], federation.learner.ranker
    weights = first_weights(ranker, crowd, seed) if start is None else np.array(start, dtype=np.float64)
    if weights.shape != (ranker.size(features),):
        raise ValueError(
            f"the start model has {weights.size} parameters; {type(ranker).__name__} on {features} features "
            f"has {ranker.size(features)}. Use the ranker and the features it was trained with"
        )
    memory = None if federation.local is None else federation.local.first(ranker, weights, len(crowd))
    weights = weights[: federation.sent(len(weights))]
    if has_trait(federation.aggregator, "apart"):
        weights = np.tile(weights, (len(crowd), 1))
    return ServerTask(federation, len(crowd), arrival).first(weights), memory


def _check_fits(state: State, federation: Federation, crowd: SimulatedClients) -> None:
    """Refuse a state of other parameters, which compiled loops would read beyond."""
    features, ranker = crowd.data.features.shape[1], federation.learner.ranker
    needed = federation.sent(ranker.size(features))
    shape = (len(crowd), needed) if has_trait(federation.aggregator, "apart") else (needed,)
    if state.weights.shape != shape:
        raise ValueError(
            f"the state has weights of shape {state.weights.shape}; {type(ranker).__name__} on {features} features "
            f"needs {shape}. Go on with the federation and the clients that it was made with"
        )


def federated_round(
    federation: Federation,
    state: State,
    crowd: SimulatedClients,
    seed: int,
    memory: Memory = None,
    threads: int = 1,
    *,
    noise: Source | None = None,
    journal: Journal | None = None,
    watch: Callable[[Messages], None] | None = None,
) -> Outcome:
    """One round of federated learning. `noise` is for tests: a mechanism draws from the system's secure source.

    `watch` is shown what reached the server.
    """
    _check_fits(state, federation, crowd)
    return _Simulation(federation, crowd, seed, threads, noise, journal, watch).round(state, memory)


def simulate(
    federation: Federation,
    crowd: SimulatedClients,
    rounds: int,
    seed: int = 1,
    *,
    start: Weights | None = None,
    state: State | None = None,
    memory: Memory = None,
    threads: int = 1,
    noise: Source | None = None,
    journal: Journal | None = None,
    watch: Callable[[Messages], None] | None = None,
    device: str | Device = "cpu",
) -> Iterator[Outcome]:
    """Round after round, each as it ends. Go on from a `state` and a `memory`, or begin (from `start`, if given).

    With device = "cuda" clients learn on a graphics card, and the results have the same bits; "auto" does so where it
    pays. With "cuda-float16" they are those of features that were rounded to two bytes.
    """
    if state is None:
        state, memory = first_state(federation, crowd, seed, start)
    else:
        _check_fits(state, federation, crowd)
    simulation = _Simulation(federation, crowd, seed, threads, noise, journal, watch, device)
    if rounds - state.round >= ENOUGH_ROUNDS:
        for outcome in simulation.many_rounds(state, rounds):
            state, memory = outcome.state, outcome.memory
            yield outcome
    while state.round < rounds:
        for outcome in simulation.rounds(state, memory, rounds):
            state, memory = outcome.state, outcome.memory
            yield outcome


def personal_models(federation: Federation, state: State, memory: Memory, crowd: SimulatedClients) -> Weights:
    """[clients, parameters]: what every client ranks with; the global model, except where clients keep a part of it."""
    models = np.array(np.broadcast_to(state.weights, (len(crowd), state.weights.shape[-1])))
    if memory is None or not has_trait(federation.local, "shared part"):
        return models
    return np.concatenate([models, memory], axis=1)


def taking_part(clients: int, participation: float, seed: int, round: int) -> NDArray[np.int64]:
    """Rows of the clients that take part in a round, in ascending order; at least one."""
    if participation >= 1:
        return np.arange(clients)
    count = cohort_size(clients, participation)
    return np.sort(Chance(seed, round).rng("participate").choice(clients, size=count, replace=False))


def root_update(federation: Federation, state: State, crowd: SimulatedClients, seed: int) -> NDArray[np.float32]:
    """[parameters]: what the server learns from a few queries of its own, which it clicks on itself."""
    honest = int(np.argmin(crowd.malicious))
    count = crowd.data.queries
    queries = min(federation.aggregator.queries, count)  # type: ignore[attr-defined]
    own = rng_for(seed, "trusted").choice(count, size=queries, replace=False).astype(np.int32)
    server = replace(
        crowd.rows(slice(honest, honest + 1)),
        ids=np.array([-1], dtype=np.int64),
        pool=np.zeros(1, dtype=np.int32),
        queries=own,
        pools=np.array([0, len(own)], dtype=np.int64),
    )
    update: NDArray[np.float32] = federation.learner(state.weights, server, Chance(seed, state.round + 1)).updates[0]
    return update


class _Seen(NamedTuple):
    """What remains of a part of a round once its messages are combined."""

    observed: Observed
    bytes_each: int | None
    memory: Memory


class _Simulation:
    """Both halves of a round for all clients at once. What does not change from round to round is looked up once."""

    def __init__(
        self,
        federation: Federation,
        crowd: SimulatedClients,
        seed: int,
        threads: int,
        noise: Source | None,
        journal: Journal | None,
        watch: Callable[[Messages], None] | None,
        device: str | Device = "cpu",
    ) -> None:
        mechanism = federation.mechanism
        if crowd.people is not None and (
            found := people_clashes(federation.learner, federation.local, federation.attack, mechanism)
        ):
            raise ValueError("\n".join(found))
        self.federation, self.crowd, self.seed, self.threads = federation, crowd, seed, threads
        self.noise = mechanism.source() if noise is None and mechanism is not None else noise
        self.journal, self.watch = journal, watch
        self.task = ServerTask(federation, len(crowd))
        self.cohort = self.task.cohort(len(crowd))
        self.trusts = has_trait(federation.aggregator, "trusted queries")
        self.keeps_a_part = has_trait(federation.local, "shared part")
        self.in_chunks = (
            has_trait(federation.aggregator, "sum")
            and not has_trait(mechanism, "whole round")
            and federation.attack is None
            and watch is None
        )
        self.twin = find_device_learner(device, federation.learner, crowd)
        # Where nothing else needs updates, they stay on the card, and what a rule makes of them comes back.
        stay = (
            self.twin is not None
            and mechanism is None
            and federation.attack is None
            and federation.local is None
            and journal is None
            and watch is None
        )
        self.sums_on_device = stay and type(federation.aggregator) is Mean
        self.rule_on_device = (
            stay
            and self.twin is not None
            and isinstance(federation.learner, Pdgd)
            and has_twin(
                self.twin.there.machine, federation.aggregator, cohort_size(len(crowd), federation.participation)
            )
        )
        # A server that everybody trusts with updates may shorten and add them up there, and adds noise here.
        self.clips_on_device = (
            self.twin is not None
            and self.in_chunks
            and federation.local is None
            and journal is None
            and isinstance(mechanism, ClippingMechanism)
            and mechanism.clips(crowd.interactions[:0], self.cohort) is not None
        )
        # Small rounds are done many at a time: a card waits for its orders longer than clients learn.
        self.ahead = None
        if self.sums_on_device:
            assert self.twin is not None
            rule = cast(Mean, federation.aggregator)
            self.ahead = MultiRound.of(self.twin.there, federation, crowd, seed, rule.weighted)

    def rounds(self, state: State, memory: Memory, last: int) -> Iterable[Outcome]:
        """The next rounds: one, or as many up to `last` as are done in one call."""
        found = [] if self.ahead is None else self.ahead(state, last, self.drawn)
        if not found:
            return [self.round(state, memory)]
        return (
            self._outcome(after, memory, present, [_Seen(Observed(online), None, None)])
            for after, present, online in found
        )

    def round(self, state: State, memory: Memory) -> Outcome:
        task, number, journal = self.task, state.round + 1, self.journal
        kept = journal.kept(number) if journal is not None else None
        if kept is not None:
            present = kept.cohort
        else:
            present = journal.cohort(number, self.drawn) if journal is not None else self.drawn(number)
        watch = self.watch
        if (
            kept is not None
            and self.federation.mechanism is not None
            and not has_trait(self.federation.mechanism, "adds up")
        ):
            # What was sent then is lost. The same updates with new noise would tell more than clients have paid for.
            watch = _without_messages(watch)
        seen: list[_Seen] = []
        if self.sums_on_device and (summed := self._sum_on_device(state, present, seen)) is not None:
            return self._outcome(advance(task, state, summed, present), memory, present, seen)
        if self.rule_on_device and (chosen := self._rule_on_device(state, present, seen)) is not None:
            return self._outcome(advance(task, state, chosen, present), memory, present, seen)
        if self.clips_on_device and len(present):
            summed = self._sum_clipped_on_device(state, present, seen)
            return self._outcome(advance(task, state, summed, present), memory, present, seen)
        combined = combine(task, state, self._parts(state, memory, present, watch, seen), len(present), self.noise)
        if kept is not None:
            combined = combined._replace(change=kept.change, rule=state.rule)
        elif journal is not None:
            assert combined.change is not None
            journal.keep(number, combined.change)
        return self._outcome(advance(task, state, combined, present), memory, present, seen, combined.excluded)

    def many_rounds(self, state: State, last: int) -> Iterator[Outcome]:
        """The same many at a time, where that can be: until the last, or until one has an update that is of no use."""
        if self.twin is not None or self.journal is not None or self.watch is not None:
            return
        small = small_rounds(self.federation, self.crowd, self.seed, state, self.drawn)
        if small is None:
            return
        for states, cohorts, online in small.after(state, last):
            sizes = self.crowd.interactions[cohorts]
            searches = np.add.reduce(sizes, axis=1).tolist()
            travels = 4 * state.weights.size * cohorts.shape[1]
            for state, quality, done in zip(states, _means_over(online, sizes), cycle(searches), strict=False):
                yield Outcome(state, None, state.weights, quality, done, travels, travels)

    def _sum_on_device(self, state: State, present: NDArray[np.int64], seen: list[_Seen]) -> Combined | None:
        """What `combine` makes of all updates, added up on the card in the same parts; None if one is of no use."""
        assert self.twin is not None
        rule, chance = cast(Mean, self.federation.aggregator), Chance(self.seed, state.round + 1)
        sizes = self.crowd.interactions if len(present) == len(self.crowd) else self.crowd.interactions[present]
        rows = max(1, CHUNK_BYTES // (4 * state.weights.shape[-1]))
        several = rows * CHUNKS_ON_DEVICE
        total = np.zeros(0)
        for begin in range(0, len(present), several):
            some = present[begin : begin + several]
            which = None if len(some) == len(self.crowd) else some
            sums, observed = self.twin.parts(state.weights, chance, which, rule.weighted, rows)
            for number, part in enumerate(sums):
                own = sizes[begin + number * rows : begin + (number + 1) * rows][: len(some) - number * rows]
                part = np.append(part, own.sum() if rule.weighted else len(own))
                total = part if begin == number == 0 else total + part
            seen.append(_Seen(observed, self.twin.bytes_each, None))
        if not np.isfinite(total).all():
            seen.clear()
            return None
        return Combined(rule.whole(total), present, None, sizes, state.rule, state.common)

    def _sum_clipped_on_device(self, state: State, present: NDArray[np.int64], seen: list[_Seen]) -> Combined:
        """What `combine` makes of updates that a server shortens and adds up, in whole numbers: parts do not matter."""
        assert self.twin is not None
        assert self.noise is not None
        mechanism, chance = self.federation.mechanism, Chance(self.seed, state.round + 1)
        assert isinstance(mechanism, ClippingMechanism)
        rows, bytes_each = max(1, DEVICE_BYTES // (4 * state.weights.size)), 4 * state.weights.size
        total = np.zeros(state.weights.size, dtype=np.int64)
        for begin in range(0, len(present), rows):
            some = present[begin : begin + rows]
            clip = mechanism.clips(self.crowd.interactions[some], self.cohort)
            assert clip is not None
            part, observed = self.twin.clipped(
                state.weights, chance, None if len(some) == len(self.crowd) else some, clip
            )
            total += part
            seen.append(_Seen(observed, bytes_each, None))
        change = cast(Any, mechanism).rule(self.cohort, self.noise).whole(total)
        return Combined(change, present, None, np.ones(len(present), np.int64), state.rule, state.common)

    def _rule_on_device(self, state: State, present: NDArray[np.int64], seen: list[_Seen]) -> Combined | None:
        """What a robust rule makes of all updates on the card; None if one is of no use."""
        assert self.twin is not None
        everybody = len(present) == len(self.crowd)
        chance = Chance(self.seed, state.round + 1)
        updates, observed = self.twin.stay(state.weights, chance, None if everybody else present)
        try:
            change = change_on_device(self.twin.there.machine, self.federation.aggregator, updates)
        except ValueError as problem:  # such as too few clients for this rule
            raise RoundError(str(problem), state.round + 1) from problem
        if change is None:
            return None
        seen.append(_Seen(observed, self.twin.bytes_each, None))
        sizes = self.crowd.interactions if everybody else self.crowd.interactions[present]
        return Combined(change, present, None, sizes, state.rule, state.common)

    def drawn(self, round: int) -> NDArray[np.int64]:
        """Rows of the clients that take part in a round."""
        federation = self.federation
        if self.noise is not None and has_trait(federation.mechanism, "hides cohort"):
            # Each client by itself: nobody may take part, and how many do is secret, too.
            return np.flatnonzero(self.noise.bernoulli(federation.participation, len(self.crowd)))
        return taking_part(len(self.crowd), federation.participation, self.seed, round)

    def _parts(
        self,
        state: State,
        memory: Memory,
        present: NDArray[np.int64],
        watch: Callable[[Messages], None] | None,
        seen: list[_Seen],
    ) -> Iterable[tuple[Messages, NDArray[np.int64]]]:
        """The messages of all present clients at once, or in chunks where the rule is a sum and nobody looks across."""
        people = 1 if self.crowd.people is None else math.ceil(len(self.crowd.people) / len(self.crowd))
        bytes_each = 4 * state.weights.shape[-1] * people
        needed = bytes_each * len(present)
        if self.in_chunks and needed > CHUNK_BYTES:
            rows = max(1, CHUNK_BYTES // bytes_each)
            chunks = (present[begin : begin + rows] for begin in range(0, len(present), rows))
            return ((self._send(state, memory, chunk, seen), chunk) for chunk in chunks)
        if needed > LARGEST_ROUND:
            raise RoundError(
                f"{type(self.federation.aggregator).__name__} needs all {len(present)} updates together, "
                f"{needed / 2**30:.1f} GiB; use fewer clients, a smaller participation, or the mean",
                state.round + 1,
            )
        messages = self._send(state, memory, present, seen)
        if watch is not None:
            watch(messages.rows(np.isfinite(messages.updates).all(axis=1)))
        if self.trusts:
            messages = replace(messages, root=root_update(self.federation, state, self.crowd, self.seed))
        return ((messages, present),)

    def _send(self, state: State, memory: Memory, present: NDArray[np.int64], seen: list[_Seen]) -> Messages:
        """What these clients learn, and what of it reaches the server."""
        federation, number = self.federation, state.round + 1
        chance, local = Chance(self.seed, number), federation.local
        everybody = len(present) == len(self.crowd)
        some = self.crowd if everybody else self.crowd.rows(present)
        start = state.weights if state.weights.ndim == 1 else state.weights[present]
        correction = NO_CORRECTION
        if local is not None:
            memory = memory if everybody or memory is None else memory[present]
            correction = local.correction(memory, None if state.common is None else state.common.astype(np.float32))
        if some.people is not None:
            return self._send_of_people(start, some, correction, number, seen)
        if self.twin is not None and correction.personal is None:
            learned = self.twin(start, chance, None if everybody else present, correction)
        else:
            learned = federation.learner(self._whole(start), some, chance, correction, self.threads)
        updates = learned.updates
        if self.keeps_a_part:
            updates = np.ascontiguousarray(updates[:, : start.shape[-1]])
        sizes = some.interactions if learned.sizes is None else learned.sizes
        bytes_each = None if learned.sent is None else learned.sent.dtype.itemsize
        messages = Messages(updates, sizes, some.ids, start, number, bytes_each)
        if local is not None:
            memory = local.remember(memory, correction, learned, steps_of(federation.learner, some.interactions))
        if federation.attack is not None:
            messages = federation.attack(messages, some.malicious, chance.rng("attack"))
        if messages.updates.shape != (len(present), state.weights.shape[-1]):
            raise RoundError(
                f"updates of shape {messages.updates.shape} came from {len(present)} clients; one row each is needed, "
                f"of {state.weights.shape[-1]} parameters",
                number,
            )
        if federation.mechanism is not None:
            assert self.noise is not None
            messages = federation.mechanism.protect(messages, self.cohort, self.noise)
        seen.append(_Seen(learned.observed, messages.bytes_each, memory if local is not None else None))
        return messages

    def _send_of_people(
        self, start: Weights, some: SimulatedClients, correction: LocalCorrection, number: int, seen: list[_Seen]
    ) -> Messages:
        """The same where clients are organisations: each of their people learns from own searches alone."""
        federation, people = self.federation, some.people
        assert people is not None
        row = np.searchsorted(some.ids, people.client)
        starts = start if start.ndim == 1 else start[row]
        learned = federation.learner(starts, people, Chance(self.seed, number), correction, self.threads)
        messages = Messages(learned.updates, people.interactions, people.client, starts, number)
        if not has_trait(federation.mechanism, "people"):
            messages = of_clients(messages)
        if federation.mechanism is not None:
            assert self.noise is not None
            messages = federation.mechanism.protect(messages, self.cohort, self.noise)
        online = np.bincount(row, learned.observed.online, len(some)) / np.bincount(row, minlength=len(some))
        seen.append(_Seen(Observed(online), messages.bytes_each, None))
        return messages

    def _whole(self, start: Weights) -> Weights:
        """The model as learners read it: `LocalCorrection.personal` puts in what clients keep themselves."""
        if not self.keeps_a_part:
            return start
        return np.concatenate([start, np.zeros(abs(self.federation.learner.ranker.hidden))])

    def _remembered(self, before: Memory, present: NDArray[np.int64], seen: list[_Seen]) -> Memory:
        """Everybody's memory after the round: new rows of those who took part, all others as they were."""
        if seen[0].memory is None:
            return None
        rows = seen[0].memory if len(seen) == 1 else np.concatenate([cast(Any, part.memory) for part in seen])
        if len(rows) == len(self.crowd):
            return rows
        if before is None:
            raise RoundError("clients keep a memory, and those who are absent have none yet; begin with first_state", 1)
        memory = before.copy()
        memory[present] = rows
        return memory

    def _outcome(
        self,
        state: State,
        before: Memory,
        present: NDArray[np.int64],
        seen: list[_Seen],
        excluded: tuple[int, ...] = (),
    ) -> Outcome:
        crowd, memory, observed = self.crowd, self._remembered(before, present, seen), _observed(seen)
        searches = crowd.interactions if len(present) == len(crowd) else crowd.interactions[present]
        travels = 0 if state.weights.ndim == 2 else 4 * state.weights.shape[-1]  # bytes of a model
        return Outcome(
            state,
            memory,
            evaluated(self.federation, state, memory, crowd) if self.keeps_a_part else state.weights,
            mean_over(observed.online, searches),
            int(np.add.reduce(searches)),
            len(present) * (seen[0].bytes_each or travels),
            len(present) * travels * (1 if state.common is None else 2),
            None if observed.reward is None else mean_over(observed.reward, searches),
            excluded,
        )


def _observed(seen: list[_Seen]) -> Observed:
    if len(seen) == 1:
        return seen[0].observed
    rewards = [part.observed.reward for part in seen if part.observed.reward is not None]
    online = np.concatenate([part.observed.online for part in seen])
    return Observed(online, np.concatenate(rewards) if rewards else None)


def _without_messages(watch: Callable[[Messages], None] | None) -> Callable[[Messages], None] | None:
    return None if watch is None else lambda messages: watch(messages.rows(slice(0)))


def evaluated(federation: Federation, state: State, memory: Memory, crowd: SimulatedClients) -> Weights:
    """The model that is evaluated: the server's, with the mean of what clients keep where they keep a part."""
    if memory is None or not has_trait(federation.local, "shared part"):
        return state.weights
    sizes = crowd.interactions
    own = kernels.sums.weighted_sum(sizes, memory) / sizes.sum() if sizes.sum() else memory.mean(axis=0)
    return np.concatenate([state.weights, own])


def mean_over(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> float:
    """Over the clients that did anything; NaN if nobody did."""
    if len(values) and sizes.all():
        return float(np.add.reduce(values)) / len(values)  # ndarray.mean takes longer than the rest of a small round
    return float(values[sizes > 0].mean()) if sizes.any() else math.nan


def _means_over(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> list[float]:
    """`mean_over` each row; `sizes` [rows or 1, clients]."""
    if sizes.all():
        means: list[float] = (np.add.reduce(values, axis=1) / values.shape[1]).tolist()
        return means
    return [mean_over(row, own) for row, own in zip(values, np.broadcast_to(sizes, values.shape), strict=True)]


def simulate_arrivals(
    federation: Federation,
    rule: ArrivalRule,
    crowd: SimulatedClients,
    rounds: int,
    seed: int = 1,
    *,
    start: Weights | None = None,
    state: State | None = None,
    threads: int = 1,
    noise: Source | None = None,
    journal: Journal | None = None,
    window: int = LONGEST_WINDOW,
) -> Iterator[Outcome]:
    """Out of step: round after round, each as it ends, until `rounds` or until nobody has a batch left.

    Batches of different clients are learned together as long as nobody sends twice: no model that one of them starts
    from can change in between. A state's arrays are used again by the next round, or with a journal by the one after
    it; copy what is to be kept.
    """
    if crowd.people is not None:
        raise ValueError("people of organisations do not arrive one by one in this version; use clients without people")
    plan, task = schedule(crowd, rule), ServerTask(federation, len(crowd), rule)
    if has_trait(federation.local, "common") or has_trait(federation.local, "shared part"):
        raise ValueError(
            "local: clients that arrive one by one keep no controls or weights of their own; leave it out, or use "
            "FedProx"
        )
    if state is None:
        state, _ = first_state(federation, crowd, seed, start, rule)
    correction = NO_CORRECTION if federation.local is None else federation.local.correction(None, None)
    if noise is None and federation.mechanism is not None:
        noise = federation.mechanism.source()
    last = min(rounds, plan.rounds)
    window = max(1, min(window, WINDOW_BYTES // (4 * state.weights.size)))
    everything = replace(crowd.rows(plan.rows), at=plan.at, interactions=plan.searches)  # a row for every batch
    # Who keeps a journal may look at a state when the next round is done, so that two take turns. Copying all that
    # clients hold would take longer than the round.
    spare = None if journal is None else _copy(state)
    changed = plan.rows[:0]  # rows in which the spare is behind, but for those that a round in step writes anyway
    while state.round < last:
        first = int(plan.edges[state.round])
        # In step, everybody who sends in a round has sent in the one before, so that this is a single round.
        most = min(first + window, int(plan.until[first]))
        end = min(last, max(state.round + 1, int(np.searchsorted(plan.edges, most, side="right")) - 1))
        stop = int(plan.edges[end])
        assert state.held is not None
        # Chance is keyed by the client and the place in its pool alone: it is the same however windows fall.
        some = everything.rows(slice(first, stop))
        learned = federation.learner(state.held[plan.rows[first:stop]], some, Chance(seed, 0), correction, threads)
        for number in range(state.round + 1, end + 1):
            own = slice(int(plan.edges[number - 1]), int(plan.edges[number]))
            place = slice(own.start - first, own.stop - first)
            target = state
            if spare is not None:
                _catch_up(spare, state, changed)
                target = replace(spare, round=state.round, weights=state.weights)
                spare, changed = state, plan.rows[own]
            outcome = _arrive(task, target, learned, some, place, plan, noise, journal)
            state = outcome.state
            yield outcome


def _arrive(
    task: ServerTask,
    state: State,
    learned: Learned,
    some: SimulatedClients,
    place: slice,
    plan: Schedule,
    noise: Source | None,
    journal: Journal | None,
) -> Outcome:
    """One round out of step: what these clients learned reaches the server, and they may get its model back."""
    number, mechanism, rule = state.round + 1, task.federation.mechanism, task.arrival
    assert state.held is not None
    assert rule is not None
    rows, sizes, ids = plan.cohort(number), some.interactions[place], some.ids[place]
    messages = Messages(learned.updates[place], sizes, ids, state.held[rows], number)
    kept = journal.kept(number) if journal is not None else None
    if journal is not None and kept is None:
        journal.cohort(number, plan.cohort)
    if mechanism is not None and kept is None:
        assert noise is not None
        # Nobody could weigh single updates of a sum later, so that clients do it themselves.
        messages = mechanism.protect(messages, len(rows), noise, task.counts(rows, state))
    if kept is None:
        combined = combine(task, state, [(messages, rows)], len(rows), noise)
        if journal is not None and combined.change is not None:
            journal.keep(number, combined.change)
    else:
        combined = Combined(kept.change, rows, messages.updates, sizes, state.rule, None)
    if not rule.receive:  # clients go on with what they learned, not with what noise made of it
        combined = combined._replace(updates=learned.updates[place][np.isin(rows, combined.rows)])
    model_bytes = 4 * state.weights.size
    after = advance(task, state, combined, rows)
    return Outcome(
        after,
        None,
        after.weights,
        online=float(np.add.reduce(learned.observed.online[place])) / len(rows),
        interactions=int(np.add.reduce(sizes)),
        bytes_up=len(rows) * (messages.bytes_each or model_bytes),
        bytes_down=len(rows) * model_bytes * rule.receive,
        excluded=combined.excluded,
    )


def _copy(state: State) -> State:
    assert state.held is not None
    return replace(state, held=state.held.copy(), rule={name: array.copy() for name, array in state.rule.items()})


def _catch_up(behind: State, ahead: State, rows: NDArray[np.int64]) -> None:
    """Bring the arrays of a state up to those of the next one, which differ in these clients."""
    assert behind.held is not None
    assert ahead.held is not None
    behind.held[rows] = ahead.held[rows]
    for name, array in ahead.rule.items():
        some = rows if name == SINCE else slice(None)
        behind.rule[name][some] = array[some]

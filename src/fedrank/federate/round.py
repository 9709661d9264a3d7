"""The round: learn -> (attack) -> (protect) -> aggregate -> server step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedrank.federate.aggregate import Apart, Mean
from fedrank.federate.server import Add
from fedrank.rank.learners import Pdgd
from fedrank.seeds import Chance, rng_for
from fedrank.types import (
    AddingMechanism,
    Aggregator,
    Arrivals,
    Attack,
    Change,
    Clients,
    Learner,
    Mechanism,
    Memory,
    Ranker,
    ServerStep,
    Source,
    StreamingAggregator,
    Weights,
)

CHUNK_BYTES = 64 << 20  # updates held at once when the aggregator can take them in parts
LARGEST_ROUND = 8 << 30  # bytes of updates that a rule may ask to hold together


class RememberingLearner(Learner, Protocol):
    """A learner whose clients may keep something between rounds; its own words are in `Pdgd`."""

    def __call__(
        self,
        start: Weights,
        memory: Memory,
        clients: Clients,
        chance: Chance,
        threads: int = 1,
        common: NDArray[np.float64] | None = None,
    ) -> tuple[Arrivals, Memory]:
        """`memory` has the rows of the clients given here, and so has what comes back."""

    def first_memory(self, start: Weights, count: int) -> Memory: ...
    def common(self, memory: Memory) -> NDArray[np.float64] | None: ...
    def averaged(self, weights: Weights, memory: Memory, sizes: NDArray[np.int64]) -> Weights: ...
    def personal_models(self, weights: Weights, memory: Memory, count: int) -> Weights: ...
    def bytes_down(self, parameters: int) -> int: ...


class Kept(Protocol):
    """What a round left in the journal before a crash: it is used again, so that nobody is asked twice."""

    @property
    def cohort(self) -> NDArray[np.int64]: ...
    @property
    def change(self) -> Change: ...


class Journal(Protocol):
    """Durable record of who took part and what came out of it; `fedrank.protect.spending` keeps one."""

    def kept(self, round: int) -> Kept | None: ...
    def cohort(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Rows of the clients that take part, noted before any of them is asked; `draw` gives those of any round."""

    def keep(self, round: int, change: Change) -> None:
        """Note the change before anything uses it."""


class RememberingAggregator(Protocol):
    """A rule that looks at more than one round; `remembers` is true."""

    def first(self, clients: int, parameters: int) -> dict[str, NDArray[Any]]: ...
    def __call__(self, arrived: Arrivals, state: dict[str, NDArray[Any]]) -> tuple[Change, dict[str, NDArray[Any]]]: ...


def remembers(rule: Any) -> bool:
    return bool(getattr(rule, "remembers", False))


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

    def __post_init__(self) -> None:
        if isinstance(self.aggregator, Apart) and not isinstance(self.server, Add):
            raise ValueError(
                'server steps other than "add" move a model that clients share, and the aggregator "none" has none; '
                'use server = { name = "add" }'
            )
        control = getattr(self.learner, "control", False)
        if isinstance(self.aggregator, Apart) and (control or getattr(self.learner, "personal", "none") != "none"):
            raise ValueError(
                'personal weights and control need a model that clients share, and the aggregator "none" has none; '
                'use the aggregator "mean", or a learner without them'
            )
        if control and (self.attack is not None or self.mechanism is not None):
            raise ValueError(
                "control = true reads every client's gradient from its message, so it must arrive as it was sent; "
                "use control = false with an attack or a mechanism"
            )
        if self.attack is not None and isinstance(self.aggregator, Apart):
            raise ValueError('with the aggregator "none" nobody listens to malicious clients; use another one')
        if self.mechanism is None:
            return
        if isinstance(self.aggregator, Apart):
            raise ValueError('nothing leaves a client with the aggregator "none", so a mechanism protects nothing')
        if getattr(self.learner, "personal", "none") != "none":
            raise ValueError(
                "personal weights never leave their client, but the averaged model that is evaluated holds their mean, "
                'which no mechanism protects; use personal = "none" with a mechanism'
            )
        if self.mechanism.adds_up and not isinstance(self.aggregator, Mean):
            raise ValueError(
                f"{type(self.aggregator).__name__} must see single updates, and this mechanism protects nothing but "
                'their sum; use the aggregator "mean", or noise with place = "client"'
            )


@dataclass(frozen=True)
class State:
    """All that the next round needs."""

    round: int  # rounds done
    weights: Weights  # the global model, or one row per client where nobody aggregates
    memory: Memory = None
    server: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    rule: dict[str, NDArray[Any]] = field(default_factory=dict)  # what the aggregator remembers, where it does


@dataclass(frozen=True)
class Outcome:
    """What a round left behind: its end state, and what was measured on the way."""

    state: State
    online: float  # mean over clients of the nDCG@10 of the lists they were shown
    interactions: int
    bytes_up: int
    bytes_down: int
    reward: float | None = None  # mean over clients, where the learner has one
    excluded: tuple[int, ...] = ()  # ids of clients whose update was of no use, and not used

    @property
    def round(self) -> int:
        return self.state.round

    @property
    def weights(self) -> Weights:
        return self.state.weights


def first_weights(ranker: Ranker, clients: Clients, seed: int) -> Weights:
    """The ranker's own first weights, which are the same for all who use this seed."""
    return ranker.first(clients.data.features.shape[1], rng_for(seed, "first"))


def first_state(federation: Federation, clients: Clients, seed: int, start: Weights | None = None) -> State:
    """The state before round 1, from the ranker's own first weights or from a model that exists."""
    features = clients.data.features.shape[1]
    ranker = federation.learner.ranker
    weights = first_weights(ranker, clients, seed) if start is None else np.array(start, dtype=np.float64)
    if weights.shape != (ranker.size(features),):
        raise ValueError(
            f"the start model has {weights.size} parameters; {type(ranker).__name__} on {features} features "
            f"has {ranker.size(features)}. Use the ranker and the features it was trained with"
        )
    if isinstance(federation.aggregator, Apart):
        weights = np.tile(weights, (len(clients), 1))
    memory = _first_memory(federation.learner, weights, len(clients))
    rule = {}
    if remembers(federation.aggregator):
        rule = cast(RememberingAggregator, federation.aggregator).first(len(clients), weights.size)
    return State(0, weights, memory, federation.server.first(weights.size), rule)


def federated_round(
    federation: Federation,
    state: State,
    clients: Clients,
    seed: int,
    threads: int = 1,
    *,
    noise: Source | None = None,
    journal: Journal | None = None,
    watch: Callable[[Arrivals], None] | None = None,
) -> Outcome:
    """One round of federated learning. `noise` is for tests: a mechanism draws from the system's secure source.

    `watch` is shown what reached the server.
    """
    number = state.round + 1
    if noise is None and federation.mechanism is not None:
        noise = federation.mechanism.source()

    def draw(round: int) -> NDArray[np.int64]:
        if noise is not None and federation.mechanism is not None and federation.mechanism.hides_cohort:
            # Each client by itself: nobody may take part, and how many do is secret, too.
            return np.flatnonzero(noise.bernoulli(federation.participation, len(clients)))
        return taking_part(clients, federation.participation, seed, round)

    kept = journal.kept(number) if journal is not None else None
    if kept is not None:
        present = kept.cohort
    else:
        present = journal.cohort(number, draw) if journal is not None else draw(number)
    if kept is not None and watch is not None and federation.mechanism is not None and not federation.mechanism.adds_up:
        # What was sent then is lost. The same updates with new noise would tell more than clients have paid for.
        watch = _without_messages(watch)
    change, rows, seen = _learn_and_aggregate(federation, state, clients, present, seed, threads, noise, watch)
    rule = seen.rule or {}
    if kept is not None:
        change, rule = kept.change, state.rule
    elif journal is not None:
        journal.keep(number, change)
    memory = _remembered(state, rows, present, len(clients))
    apart = state.weights.ndim == 2
    if apart:
        every = np.zeros_like(state.weights)
        every[present] = change
        change = every
    weights, server = federation.server(state.weights, change, state.server)
    model_bytes = received_bytes = 4 * state.weights.shape[-1]
    if remembering := _remembering(federation.learner, memory):
        weights = remembering.averaged(weights, memory, clients.interactions)
        received_bytes = remembering.bytes_down(state.weights.shape[-1])
    searches = clients.interactions if len(present) == len(clients) else clients.interactions[present]
    return Outcome(
        State(number, weights, memory, server, rule),
        online=_mean(seen.online, searches),
        interactions=int(np.add.reduce(searches)),
        bytes_up=0 if apart else len(present) * (seen.message_bytes or model_bytes),
        bytes_down=0 if apart else len(present) * received_bytes,
        reward=None if seen.reward is None else _mean(seen.reward, searches),
        excluded=seen.excluded,
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
    noise: Source | None = None,
    journal: Journal | None = None,
    watch: Callable[[Arrivals], None] | None = None,
) -> Iterator[Outcome]:
    """Round after round, each as it ends. Continue from a `state`, or begin (from the weights `start`, if given)."""
    if state is None:
        state = first_state(federation, clients, seed, start)
    if noise is None and federation.mechanism is not None:
        noise = federation.mechanism.source()
    while state.round < rounds:
        outcome = federated_round(federation, state, clients, seed, threads, noise=noise, journal=journal, watch=watch)
        state = outcome.state
        yield outcome


def personal_models(learner: Learner, state: State, clients: Clients) -> Weights:
    """[clients, parameters]: what every client ranks with; the global model, except where clients keep a part of it."""
    if remembering := _remembering(learner, state.memory):
        return remembering.personal_models(state.weights, state.memory, len(clients))
    return np.array(np.broadcast_to(state.weights, (len(clients), state.weights.shape[-1])))


def taking_part(clients: Clients, participation: float, seed: int, round: int) -> NDArray[np.int64]:
    """Rows of the clients that take part in a round, in ascending order; at least one."""
    if participation >= 1:
        return np.arange(len(clients))
    count = cohort_size(len(clients), participation)
    return np.sort(Chance(seed, round).rng("participate").choice(len(clients), size=count, replace=False))


def cohort_size(clients: int, participation: float) -> int:
    """How many clients take part in every round."""
    return max(1, int(np.floor(participation * clients + 0.5)))


def expected_cohort(clients: int, participation: float, mechanism: Mechanism | None) -> float:
    """How many clients a round has, or has on average where each draws by itself: a public number."""
    if mechanism is not None and mechanism.hides_cohort:
        return participation * clients
    return cohort_size(clients, participation)


class Seen(NamedTuple):
    """What remains of arrivals once their updates are aggregated."""

    online: NDArray[np.float64]
    reward: NDArray[np.float64] | None
    message_bytes: int | None
    excluded: tuple[int, ...] = ()
    rule: dict[str, NDArray[Any]] | None = None


def _without_messages(watch: Callable[[Arrivals], None]) -> Callable[[Arrivals], None]:
    def see(arrived: Arrivals) -> None:
        watch(replace(arrived, updates=arrived.updates[:0], sizes=arrived.sizes[:0], ids=arrived.ids[:0]))

    return see


def _mean(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> float:
    """Over the clients that did anything; NaN if nobody did."""
    if len(values) and sizes.all():
        return float(np.add.reduce(values)) / len(values)  # ndarray.mean takes longer than the rest of a small round
    return float(values[sizes > 0].mean()) if sizes.any() else math.nan


def _learn_and_aggregate(
    federation: Federation,
    state: State,
    clients: Clients,
    present: NDArray[np.int64],
    seed: int,
    threads: int,
    noise: Source | None,
    watch: Callable[[Arrivals], None] | None,
) -> tuple[Change, Memory, Seen]:
    """All present clients at once; or in chunks, where the aggregator's parts add up and nobody looks across them.

    The memory that comes back has the rows of the present clients.
    """
    remembering = _remembering(federation.learner, state.memory)
    common = remembering.common(state.memory) if remembering else None
    bytes_each = 4 * state.weights.shape[-1]
    rule, mechanism = federation.aggregator, federation.mechanism
    cohort = expected_cohort(len(clients), federation.participation, mechanism)
    if mechanism is not None and mechanism.adds_up:
        assert noise is not None
        rule = cast(AddingMechanism, mechanism).rule(cohort, noise)

    def arrive(some: NDArray[np.int64]) -> tuple[Arrivals, Memory]:
        return _arrive(federation, state, clients, some, common, seed, threads, cohort, noise)

    streams = hasattr(rule, "part") and federation.attack is None and watch is None
    if not streams or bytes_each * len(present) <= CHUNK_BYTES:
        needed = bytes_each * len(present)
        if needed > LARGEST_ROUND:
            raise RoundError(
                f"{type(rule).__name__} needs all {len(present)} updates together, "
                f"{needed / 2**30:.1f} GiB; use fewer clients, a smaller participation, or the mean",
                state.round + 1,
            )
        arrived, memory = arrive(present)
        used, excluded = _of_use(arrived)
        _check_somebody_is_left(excluded, len(present), rule, state.round + 1)
        if watch is not None:
            watch(used)
        if hasattr(rule, "queries"):
            used = replace(used, root=_trusted_update(federation, state, clients, rule.queries, seed))
        kept = state.rule
        try:
            if remembers(rule):
                # It remembers rows; ids may have gaps, where clients were selected.
                places = present[np.isin(clients.ids[present], used.ids)]
                change, kept = cast(RememberingAggregator, rule)(replace(used, ids=places), state.rule)
            else:
                change = rule(used)
        except ValueError as problem:  # such as too few clients for this rule
            raise RoundError(str(problem), state.round + 1) from problem
        return change, memory, Seen(arrived.online, arrived.reward, arrived.message_bytes, excluded, kept)
    streaming = cast(StreamingAggregator, rule)
    rows = max(1, CHUNK_BYTES // bytes_each)
    total = np.zeros((), dtype=np.int64)  # becomes the first part, whole numbers or not
    chunks, memories = [], []
    for begin in range(0, len(present), rows):
        arrived, memory = arrive(present[begin : begin + rows])
        if memory is not None:
            memories.append(memory)
        used, excluded = _of_use(arrived)
        if len(used.updates):
            total = total + streaming.part(used)
        chunks.append(Seen(arrived.online, arrived.reward, arrived.message_bytes, excluded))
    rewards = [chunk.reward for chunk in chunks if chunk.reward is not None]
    seen = Seen(
        np.concatenate([chunk.online for chunk in chunks]),
        np.concatenate(rewards) if rewards else None,
        chunks[0].message_bytes,
        tuple(client for chunk in chunks for client in chunk.excluded),
    )
    _check_somebody_is_left(seen.excluded, len(present), rule, state.round + 1)
    return streaming.whole(total), np.concatenate(memories) if memories else None, seen


def _arrive(
    federation: Federation,
    state: State,
    clients: Clients,
    present: NDArray[np.int64],
    common: NDArray[np.float64] | None,
    seed: int,
    threads: int,
    cohort: float,
    noise: Source | None,
) -> tuple[Arrivals, Memory]:
    """What these clients learn, and what of it reaches the server."""
    number = state.round + 1
    everybody = len(present) == len(clients)
    some = clients if everybody else clients.rows(present)
    start = state.weights if state.weights.ndim == 1 else state.weights[present]
    memory = state.memory if everybody or state.memory is None else state.memory[present]
    chance = Chance(seed, number)
    if remembering := _remembering(federation.learner, memory):
        arrived, memory = remembering(start, memory, some, chance, threads, common)
    else:
        arrived, memory = federation.learner(start, memory, some, chance, threads)
    if federation.attack is not None:
        arrived = federation.attack(arrived, some.malicious, chance.rng("attack"))
    if arrived.updates.shape != (len(present), state.weights.shape[-1]):
        raise RoundError(
            f"updates of shape {arrived.updates.shape} came from {len(present)} clients; one row each is needed, of "
            f"{state.weights.shape[-1]} parameters",
            number,
        )
    if federation.mechanism is not None:
        assert noise is not None
        arrived = federation.mechanism.protect(arrived, cohort, noise)
    return arrived, memory


def _of_use(arrived: Arrivals) -> tuple[Arrivals, tuple[int, ...]]:
    """What can be aggregated, and whose update is not finite: those are left out."""
    with np.errstate(invalid="ignore"):  # infinities of both signs
        total = np.add.reduce(arrived.updates, axis=None, dtype=np.float64)
    if math.isfinite(total):
        return arrived, ()
    sound = np.isfinite(arrived.updates).all(axis=1)
    if sound.all():  # only their sum is beyond all bounds
        return arrived, ()
    some = replace(arrived, updates=arrived.updates[sound], sizes=arrived.sizes[sound], ids=arrived.ids[sound])
    return some, tuple(arrived.ids[~sound].tolist())


def _check_somebody_is_left(excluded: tuple[int, ...], present: int, rule: Aggregator, round: int) -> None:
    """Others go on without them, unless there are none, or every client has a model of its own."""
    if excluded and (len(excluded) == present or isinstance(rule, Apart)):
        problem = "the update is not finite; take smaller steps (learner.rate), or normalise the features"
        raise RoundError(problem, round, excluded[0])


def _trusted_update(
    federation: Federation, state: State, clients: Clients, queries: int, seed: int
) -> NDArray[np.float32]:
    """[parameters]: what the server learns in this round from a few queries of its own, which it clicks on itself."""
    honest = int(np.argmin(clients.malicious))
    count = clients.data.offsets.size - 1
    own = rng_for(seed, "trusted").choice(count, size=min(queries, count), replace=False).astype(np.int32)
    server = replace(
        clients.rows(slice(honest, honest + 1)),
        ids=np.array([-1], dtype=np.int64),
        pool=np.zeros(1, dtype=np.int32),
        queries=own,
        pools=np.array([0, len(own)], dtype=np.int64),
    )
    arrived, _ = federation.learner(state.weights, None, server, Chance(seed, state.round + 1))
    update: NDArray[np.float32] = arrived.updates[0]
    return update


def _first_memory(learner: Learner, weights: Weights, count: int) -> Memory:
    return cast(RememberingLearner, learner).first_memory(weights, count) if hasattr(learner, "first_memory") else None


def _remembering(learner: Learner, memory: Memory) -> RememberingLearner | None:
    """The learner, if its clients keep something: nobody else needs to be asked about it."""
    return cast(RememberingLearner, learner) if memory is not None and hasattr(learner, "common") else None


def _remembered(state: State, rows: Memory, present: NDArray[np.int64], count: int) -> Memory:
    """Everybody's memory after the round: new rows of those who took part, all others as they were."""
    if rows is None or len(rows) == count:
        return rows
    if state.memory is None:
        raise RoundError("clients keep a memory, and those who are absent have none yet; begin with first_state", 1)
    memory = state.memory.copy()
    memory[present] = rows
    return memory

"""One round of federated learning in simulation, and its outcome.

`run_round` is the algorithm. A backend executes it (`fedrank.federated.backends`): it decides where clients learn, how
many updates are in memory, and how many rounds one call runs. All backends give the same results bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.display import as_pairs, one_line
from fedrank.federated.asynchronous import ArrivalRule
from fedrank.federated.client import of_clients, steps_of
from fedrank.federated.compatibility import people_clashes
from fedrank.federated.deal import Deal
from fedrank.federated.federation import Federation, cohort_size
from fedrank.federated.gossip import RankGuardStyle, attacked, peers_of
from fedrank.federated.server import Combined, RoundError, ServerTask, State, advance
from fedrank.seeds import Chance, rng_for
from fedrank.types import (
    NO_CORRECTION,
    Change,
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

Watch = Callable[[Messages], None]  # is called with the messages that reached the server


class JournalEntry(Protocol):
    """A round's entry in the journal before a crash; it is reused, so no client is asked twice."""

    @property
    def cohort(self) -> NDArray[np.int64]: ...
    @property
    def change(self) -> Change: ...


class Journal(Protocol):
    """A durable record of participants and changes; see `fedrank.privacy.spending`."""

    def kept(self, round: int) -> JournalEntry | None: ...
    def cohort(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the rows of participants, recorded before any of them is asked; `draw` returns those of a round.

        With a dealt schedule it returns none if a crash lost the round after they were recorded.
        """

    def keep(self, round: int, change: Change) -> None:
        """Record the change before it is used."""


class Outcome(NamedTuple):
    """The outcome of a round: its final state, the clients' memory, and measurements."""

    state: State
    memory: Memory
    weights: Weights  # the model that is evaluated; a personal part is averaged over clients
    online: float  # mean over clients of the nDCG@10 of the lists shown
    interactions: int
    bytes_up: int
    bytes_down: int
    reward: float | None = None  # mean over clients, if the learner has rewards
    excluded: tuple[int, ...] = ()  # ids of clients whose update was invalid and not used

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


@dataclass
class RoundContext:
    """What all rounds of a simulation share, for any backend."""

    federation: Federation
    clients: SimulatedClients
    seed: int
    threads: int = 1
    noise: Source | None = None  # for tests; by default a mechanism uses the secure source of the system
    journal: Journal | None = None
    watch: Watch | None = None
    task: ServerTask = field(init=False)
    cohort: float = field(init=False)  # number of clients of a round, or its expected value; public
    deal: Deal | None = field(init=False, default=None)  # of clients or persons into rounds, if the schedule is dealt
    persons: bool = field(init=False, default=False)  # whether persons are dealt, so all clients are in every round

    def __post_init__(self) -> None:
        federation, mechanism = self.federation, self.federation.mechanism
        if self.clients.people is not None and (
            found := people_clashes(
                federation.learner, federation.local, federation.attack, mechanism, federation.aggregator
            )
        ):
            raise ValueError("\n".join(found))
        if self.noise is None and mechanism is not None:
            self.noise = mechanism.source()
        self.task = ServerTask(federation, len(self.clients))
        self.cohort = self.task.cohort(len(self.clients))
        if federation.dealt:
            self.deal = federation.deal(self.clients, self.seed)
            self.persons = federation.deals_persons(self.clients)

    def draw(self, round: int) -> NDArray[np.int64]:
        """Return the rows of the participants of a round: of clients, or of persons where these are dealt."""
        if self.deal is not None:
            return self.deal.rows(round)
        if self.noise is not None and has_trait(self.federation.mechanism, "hides cohort"):
            # Each client is drawn independently: a round may be empty, and the number of participants is secret.
            return np.flatnonzero(self.noise.bernoulli(self.federation.participation, len(self.clients)))
        return taking_part(len(self.clients), self.federation.participation, self.seed, round)


class LocalWork(NamedTuple):
    """The local work of some clients in a round."""

    start: Weights  # one model, or one per client
    clients: SimulatedClients
    rows: NDArray[np.int64] | None  # rows of these clients; None: all
    chance: Chance
    correction: LocalCorrection


Learn = Callable[[LocalWork], Learned]  # how a backend lets clients learn


class ClientResults(NamedTuple):
    """The results of some clients after their messages are combined."""

    observed: Observed
    bytes_each: int | None
    memory: Memory


class Backend(Protocol):
    """Executes rounds."""

    def rounds(self, context: RoundContext, state: State, memory: Memory, last: int) -> Iterator[Outcome]:
        """Yield outcomes up to round `last`."""

    def combine(
        self, context: RoundContext, state: State, memory: Memory, cohort: NDArray[np.int64], watch: Watch | None
    ) -> tuple[Combined, list[ClientResults]]:
        """Let a cohort learn, and combine its messages, which `watch` receives."""


def run_rounds(context: RoundContext, backend: Backend, state: State, memory: Memory, last: int) -> Iterator[Outcome]:
    """Yield rounds one by one."""
    while state.round < last:
        outcome = run_round(context, backend, state, memory)
        state, memory = outcome.state, outcome.memory
        yield outcome


def run_round(context: RoundContext, backend: Backend, state: State, memory: Memory) -> Outcome:
    """One round: draw a cohort, let it learn and protect its updates, combine them, and move the model.

    The journal records the cohort before any client learns, and the change before it is used. After a crash, the
    recorded change is used again.
    """
    journal, watch, number = context.journal, context.watch, state.round + 1
    recorded = None if journal is None else journal.kept(number)
    if recorded is not None:
        cohort = recorded.cohort
        if context.federation.mechanism is not None and not has_trait(context.federation.mechanism, "adds up"):
            # The messages of that round are lost. New noise on the same updates would cost additional privacy.
            watch = _without_messages(watch)
    elif journal is not None:
        cohort = journal.cohort(number, context.draw)
    else:
        cohort = context.draw(number)
    if context.deal is not None and not len(cohort):  # a crash lost what they sent, and they have no second turn
        return Outcome(replace(state, round=number), memory, state.weights, math.nan, 0, 0, 0)
    if context.persons:
        cohort = np.arange(len(context.clients))
    combined, results = backend.combine(context, state, memory, cohort, watch)
    if recorded is not None:
        combined = combined._replace(change=recorded.change, rule=state.rule)
    elif journal is not None:
        assert combined.change is not None
        journal.keep(number, combined.change)
    after = advance(context.task, state, combined, cohort)
    return outcome_of(context, after, memory, cohort, results, combined.excluded)


def client_messages(
    context: RoundContext, learn: Learn, state: State, memory: Memory, rows: NDArray[np.int64]
) -> tuple[Messages, ClientResults]:
    """The client half: what these clients learn, and the messages that reach the server."""
    federation, clients, number = context.federation, context.clients, state.round + 1
    chance, local = Chance(context.seed, number), federation.local
    everybody = len(rows) == len(clients)
    some = clients if everybody else clients.rows(rows)
    start = state.weights if state.weights.ndim == 1 else state.weights[rows]
    correction = NO_CORRECTION
    if local is not None:
        memory = memory if everybody or memory is None else memory[rows]
        correction = local.correction(memory, None if state.common is None else state.common.astype(np.float32))
    if some.people is not None:
        return _messages_of_people(context, start, some, correction, number)
    model = _whole_model(federation, start)
    learned = learn(LocalWork(model, some, None if everybody else rows, chance, correction))
    updates = learned.updates
    if has_trait(local, "shared part"):
        updates = np.ascontiguousarray(updates[:, : start.shape[-1]])
    sizes = some.interactions if learned.sizes is None else learned.sizes
    bytes_each = None if learned.sent is None else learned.sent.dtype.itemsize
    messages = Messages(updates, sizes, some.ids, start, number, bytes_each)
    if local is not None:
        memory = local.remember(memory, correction, learned, steps_of(federation.learner, some.interactions))
    if has_trait(federation.aggregator, "gossip"):
        rule = cast(RankGuardStyle, federation.aggregator)
        messages = replace(messages, peers=peers_of(rule, federation.learner, messages, some, context.seed))
    if federation.attack is not None:
        attack = federation.attack if messages.peers is None else partial(attacked, federation.attack)
        messages = attack(messages, some.malicious, chance.rng("attack"))
    if messages.updates.shape != (len(rows), state.weights.shape[-1]):
        raise RoundError(
            f"{len(rows)} clients sent updates of shape {messages.updates.shape}; one row per client is needed, "
            f"with {state.weights.shape[-1]} parameters",
            number,
        )
    messages = _protected(context, messages)
    return messages, ClientResults(learned.observed, messages.bytes_each, memory if local is not None else None)


def _messages_of_people(
    context: RoundContext, start: Weights, some: SimulatedClients, correction: LocalCorrection, number: int
) -> tuple[Messages, ClientResults]:
    """The client half of organisations: each person learns only from their own searches."""
    federation, people = context.federation, some.people
    assert people is not None
    if context.persons:
        assert context.clients.people is not None
        turn = context.clients.people.ids[context.draw(number)]
        people = people.rows(np.isin(people.ids, turn))
    row = np.searchsorted(some.ids, people.client)
    starts = start if start.ndim == 1 else start[row]
    learned = federation.learner(starts, people, Chance(context.seed, number), correction, context.threads)
    messages = Messages(learned.updates, people.interactions, people.client, starts, number)
    if not has_trait(federation.mechanism, "people"):
        messages = of_clients(messages)
    messages = _protected(context, messages)
    online = np.bincount(row, learned.observed.online, len(some)) / np.bincount(row, minlength=len(some))
    return messages, ClientResults(Observed(online), messages.bytes_each, None)


def _protected(context: RoundContext, messages: Messages) -> Messages:
    if context.federation.mechanism is None:
        return messages
    assert context.noise is not None
    return context.federation.mechanism.protect(messages, context.cohort, context.noise)


def _whole_model(federation: Federation, start: Weights) -> Weights:
    """The model as learners read it; `LocalCorrection.personal` supplies the personal weights."""
    if not has_trait(federation.local, "shared part"):
        return start
    return np.concatenate([start, np.zeros(abs(federation.learner.ranker.hidden))])


def outcome_of(
    context: RoundContext,
    state: State,
    before: Memory,
    cohort: NDArray[np.int64],
    results: list[ClientResults],
    excluded: tuple[int, ...] = (),
) -> Outcome:
    """The outcome of a round; `before` is the memory of all clients before it."""
    federation, clients = context.federation, context.clients
    memory, observed = _memory_after(clients, before, cohort, results), _observed(results)
    sizes = clients.interactions if len(cohort) == len(clients) else clients.interactions[cohort]
    if context.persons:
        assert clients.people is not None
        own = clients.people.rows(context.draw(state.round))
        sizes = np.bincount(np.searchsorted(clients.ids, own.client), own.interactions, len(clients)).astype(np.int64)
    model_bytes = 0 if state.weights.ndim == 2 else 4 * state.weights.shape[-1]
    if has_trait(federation.aggregator, "gossip"):
        model_bytes = 4 * state.weights.shape[-1] * cast(RankGuardStyle, federation.aggregator).links(len(cohort))
    return Outcome(
        state,
        memory,
        evaluated(federation, state, memory, clients),
        mean_over(observed.online, sizes),
        int(np.add.reduce(sizes)),
        len(cohort) * (results[0].bytes_each or model_bytes),
        len(cohort) * model_bytes * (1 if state.common is None else 2),
        None if observed.reward is None else mean_over(observed.reward, sizes),
        excluded,
    )


def _memory_after(
    clients: SimulatedClients, before: Memory, cohort: NDArray[np.int64], results: list[ClientResults]
) -> Memory:
    """The memory of all clients after a round: new rows for the cohort."""
    if results[0].memory is None:
        return None
    rows = results[0].memory if len(results) == 1 else np.concatenate([cast(Any, part.memory) for part in results])
    if len(rows) == len(clients):
        return rows
    if before is None:
        raise RoundError("absent clients have no memory yet; start with first_state", 1)
    memory = before.copy()
    memory[cohort] = rows
    return memory


def _observed(results: list[ClientResults]) -> Observed:
    if len(results) == 1:
        return results[0].observed
    rewards = [part.observed.reward for part in results if part.observed.reward is not None]
    online = np.concatenate([part.observed.online for part in results])
    return Observed(online, np.concatenate(rewards) if rewards else None)


def _without_messages(watch: Watch | None) -> Watch | None:
    return None if watch is None else lambda messages: watch(messages.rows(slice(0)))


def first_weights(ranker: Ranker, clients: SimulatedClients, seed: int) -> Weights:
    """Return the ranker's first weights, which depend only on the seed."""
    return ranker.first(clients.data.features.shape[1], rng_for(seed, "first"))


def first_state(
    federation: Federation,
    clients: SimulatedClients,
    seed: int,
    start: Weights | None = None,
    arrival: ArrivalRule | None = None,
) -> tuple[State, Memory]:
    """Return server state and client memory before round 1, from the ranker's first weights or an existing model."""
    features, ranker = clients.data.features.shape[1], federation.learner.ranker
    weights = first_weights(ranker, clients, seed) if start is None else np.array(start, dtype=np.float64)
    if weights.shape != (ranker.size(features),):
        raise ValueError(
            f"the start model has {weights.size} parameters, but {type(ranker).__name__} on {features} features "
            f"has {ranker.size(features)}; use the ranker and the features that it was trained with"
        )
    memory = None if federation.local is None else federation.local.first(ranker, weights, len(clients))
    weights = weights[: federation.sent(len(weights))]
    if has_trait(federation.aggregator, "apart"):
        weights = np.tile(weights, (len(clients), 1))
    return ServerTask(federation, len(clients), arrival).first(weights), memory


def check_fits(state: State, federation: Federation, clients: SimulatedClients) -> None:
    """Check the number of parameters of a state, since compiled loops do not check bounds."""
    features, ranker = clients.data.features.shape[1], federation.learner.ranker
    needed = federation.sent(ranker.size(features))
    shape = (len(clients), needed) if has_trait(federation.aggregator, "apart") else (needed,)
    if state.weights.shape != shape:
        raise ValueError(
            f"the state has weights of shape {state.weights.shape}, but {type(ranker).__name__} on {features} features "
            f"needs {shape}; continue with the federation and the clients that it was made with"
        )


def personal_models(federation: Federation, state: State, memory: Memory, clients: SimulatedClients) -> Weights:
    """Return the model that each client ranks with, as [clients, parameters].

    It is the global model, unless clients have a personal part, as with `local_steps.FedPer`. `state` and `memory` are
    those of an outcome of `simulate`.

    >>> import fedrank as fr
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=20), count=4, partition=fr.partitions.Own())
    >>> federation = fr.Federation(fr.learners.Pdgd(fr.rankers.Mlp(hidden=3)), local=fr.local_steps.FedPer())
    >>> *_, last = fr.simulate(federation, clients, rounds=5)
    >>> models = fr.personal_models(federation, last.state, last.memory, clients)
    >>> models.shape, int((models[0] != models[1]).sum())  # the weights of 3 hidden units are personal
    ((4, 144), 3)
    """
    models = np.array(np.broadcast_to(state.weights, (len(clients), state.weights.shape[-1])))
    if memory is None or not has_trait(federation.local, "shared part"):
        return models
    return np.concatenate([models, memory], axis=1)


def evaluated(federation: Federation, state: State, memory: Memory, clients: SimulatedClients) -> Weights:
    """Return the model that is evaluated: the server's, with the mean of personal parts; or those of honest clients."""
    if has_trait(federation.aggregator, "gossip") and not clients.malicious.all():
        return state.weights[~clients.malicious]
    if memory is None or not has_trait(federation.local, "shared part"):
        return state.weights
    sizes = clients.interactions
    own = kernels.sums.weighted_sum(sizes, memory) / sizes.sum() if sizes.sum() else memory.mean(axis=0)
    return np.concatenate([state.weights, own])


def taking_part(clients: int, participation: float, seed: int, round: int) -> NDArray[np.int64]:
    """Return the rows of the participants of a round, in ascending order; at least one."""
    if participation >= 1:
        return np.arange(clients)
    count = cohort_size(clients, participation)
    return np.sort(Chance(seed, round).rng("participate").choice(clients, size=count, replace=False))


def root_update(federation: Federation, state: State, clients: SimulatedClients, seed: int) -> NDArray[np.float32]:
    """[parameters]: the server's update from its trusted queries."""
    honest = int(np.argmin(clients.malicious))
    count = clients.data.queries
    queries = min(federation.aggregator.queries, count)  # type: ignore[attr-defined]
    own = rng_for(seed, "trusted").choice(count, size=queries, replace=False).astype(np.int32)
    server = replace(
        clients.rows(slice(honest, honest + 1)),
        ids=np.array([-1], dtype=np.int64),
        pool=np.zeros(1, dtype=np.int32),
        queries=own,
        pools=np.array([0, len(own)], dtype=np.int64),
    )
    update: NDArray[np.float32] = federation.learner(state.weights, server, Chance(seed, state.round + 1)).updates[0]
    return update


def mean_over(values: NDArray[np.float64], sizes: NDArray[np.int64]) -> float:
    """Mean over the active clients; NaN if there are none."""
    if len(values) and sizes.all():
        return float(np.add.reduce(values)) / len(values)  # ndarray.mean is slower than the rest of a small round
    return float(values[sizes > 0].mean()) if sizes.any() else math.nan

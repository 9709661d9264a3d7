"""Asynchronous rounds in simulation: updates arrive one by one or in small groups, in the order of a search log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.asynchronous import SINCE, ArrivalRule, Schedule, schedule
from fedrank.federated.federation import Federation
from fedrank.federated.round import Journal, Outcome, first_state
from fedrank.federated.server import Combined, ServerTask, State, advance, combine
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION, Learned, Messages, SimulatedClients, Source, Weights, has_trait

MAX_WINDOW = 4096  # arrivals computed per call
WINDOW_BYTES = 64 << 20  # bytes of updates per call


def simulate_arrivals(
    federation: Federation,
    rule: ArrivalRule,
    clients: SimulatedClients,
    rounds: int,
    seed: int = 1,
    *,
    start: Weights | None = None,
    state: State | None = None,
    threads: int = 1,
    noise: Source | None = None,
    journal: Journal | None = None,
    window: int = MAX_WINDOW,
) -> Iterator[Outcome]:
    """Simulate asynchronous training on a search log, and yield an outcome after each round.

    `rule` defines how the server processes each update. Training ends after `rounds`, or when no client has another
    update. The data must have users and times. The arrays of a state are reused by the next round, or with a journal by
    the one after it; copy what you want to keep. Up to `window` updates of different clients are computed together.

    >>> from dataclasses import replace
    >>> import numpy as np
    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> log = replace(data, who=np.arange(40, dtype=np.int32) % 4, when=np.arange(40))
    >>> clients = fr.make_clients(log, count=4, partition=fr.partitions.Users(), interactions=2)
    >>> *_, last = fr.simulate_arrivals(fr.Federation(), fr.arrivals.FedAsync(), clients, rounds=100)
    >>> last.round  # 4 clients with 10 queries each sent 5 updates each
    20
    """
    if clients.people is not None:
        raise ValueError(
            "asynchronous arrivals do not support persons within organisations; use clients without people"
        )
    if federation.dealt:
        raise ValueError("asynchronous arrivals follow the log, so clients cannot be dealt into rounds; use dealt = 0")
    plan, task = schedule(clients, rule), ServerTask(federation, len(clients), rule)
    if has_trait(federation.local, "common") or has_trait(federation.local, "shared part"):
        raise ValueError(
            "local: asynchronous clients cannot have their own controls or weights; remove the local method, or use "
            "FedProx"
        )
    if state is None:
        state, _ = first_state(federation, clients, seed, start, rule)
    correction = NO_CORRECTION if federation.local is None else federation.local.correction(None, None)
    if noise is None and federation.mechanism is not None:
        noise = federation.mechanism.source()
    last = min(rounds, plan.rounds)
    window = max(1, min(window, WINDOW_BYTES // (4 * state.weights.size)))
    everything = replace(clients.rows(plan.rows), at=plan.at, interactions=plan.searches)  # one row per batch
    # A journal may read a state when the next round is done, so two states take turns. Copying the memory of all
    # clients would take longer than the round.
    spare = None if journal is None else _copy(state)
    changed = plan.rows[:0]  # rows in which the spare state is outdated, except those that a synchronous round writes
    while state.round < last:
        first = int(plan.edges[state.round])
        # In a synchronous round, every sender has sent in the round before, so this is a single round.
        most = min(first + window, int(plan.until[first]))
        end = min(last, max(state.round + 1, int(np.searchsorted(plan.edges, most, side="right")) - 1))
        stop = int(plan.edges[end])
        assert state.held is not None
        # Random keys depend only on the client and the index in its pool, not on the windows.
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
    """One asynchronous round: the server receives these updates, and clients may receive its model."""
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
        # Updates cannot be weighted within a sum, so clients apply the weights.
        messages = mechanism.protect(messages, len(rows), noise, task.counts(rows, state))
    if kept is None:
        combined = combine(task, state, [(messages, rows)], len(rows), noise)
        if journal is not None and combined.change is not None:
            journal.keep(number, combined.change)
    else:
        combined = Combined(kept.change, rows, messages.updates, sizes, state.rule, None)
    if not rule.receive:  # clients continue with their own model, without the noise
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
    """Copy the arrays of the next state for these clients, which are the only ones that differ."""
    assert behind.held is not None
    assert ahead.held is not None
    behind.held[rows] = ahead.held[rows]
    for name, array in ahead.rule.items():
        some = rows if name == SINCE else slice(None)
        behind.rule[name][some] = array[some]

"""The client half of a round: what a device does. There is no server in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.federated.compatibility import people_clashes
from fedrank.federated.messages import Call, Message, payload_of
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import rng_for
from fedrank.types import (
    NO_CORRECTION,
    Impression,
    Impressions,
    Judged,
    Learned,
    Learner,
    LocalStep,
    Logged,
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
    """What a client is to do with every call."""

    learner: Learner
    local: LocalStep | None = None
    mechanism: Mechanism | None = None


def first_memory(task: ClientTask, features: int, seed: int) -> Memory:
    """What a client keeps before its first call; `seed` is the one that the first model of the run is made with."""
    ranker = task.learner.ranker
    return None if task.local is None else task.local.first(ranker, ranker.first(features, rng_for(seed, "first")), 1)


def answer(
    task: ClientTask, call: Call, impressions: Impressions, memory: Memory, own: OwnChance
) -> tuple[Message, Memory]:
    """Learn from what was shown, then protect: the message that leaves, and what this client keeps.

    `memory` is what it kept of the last call, at first `first_memory`. Noise comes from own.source, or else from the
    system's secure source.
    """
    start = call.weights
    if has_trait(task.local, "shared part"):  # the rest is in the client's memory
        start = np.concatenate([start, np.zeros(abs(task.learner.ranker.hidden), dtype=np.float32)])
    correction = NO_CORRECTION if task.local is None else task.local.correction(memory, call.common)
    learned = task.learner.from_impressions(start, impressions, own, correction)
    sizes = np.array([len(impressions)], dtype=np.int64)
    if task.local is not None:
        memory = task.local.remember(memory, correction, learned, steps_of(task.learner, sizes))
    return _message(task, learned, sizes, call, own), memory


class ClientAnswer(NamedTuple):
    """What a client did with a call."""

    message: Message  # leaves
    memory: Memory  # stays
    observed: Observed  # by a simulation alone


def answer_from_holdings(
    task: ClientTask, call: Call, one: SimulatedClients, memory: Memory, own: OwnChance
) -> ClientAnswer:
    """The same from what a client holds, and by the loop of simulations: `one` is a crowd of this client alone.

    Where the client is an organisation, each of its people learns from own searches alone, as in `answer_of_people`.
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


def answer_of_people(
    task: ClientTask, call: Call, people: Sequence[tuple[Impressions, OwnChance]], own: OwnChance
) -> Message:
    """The same for an organisation: each of its people learns from own searches alone, and one sum leaves.

    All start from the weights of the call. With a mechanism for people each is clipped by itself before they are added
    up, and noise is added to the sum; `own` is the organisation's, with its id and its source of noise. Where nobody
    searched a sum of nothing is sent, since its absence would tell.
    """
    if found := people_clashes(task.learner, task.local, None, task.mechanism):
        raise ValueError("\n".join(found))
    correction = NO_CORRECTION if task.local is None else task.local.correction(None, None)
    learned = [task.learner.from_impressions(call.weights, shown, chance, correction) for shown, chance in people]
    updates = np.zeros((1, len(call.weights)), dtype=np.float32)
    if people:
        updates = np.concatenate([one.updates for one in learned])
    sizes = np.array([len(shown) for shown, _ in people] or [0], dtype=np.int64)
    ids = np.full(len(sizes), own.id, dtype=np.int64)
    messages = Messages(updates, sizes, ids, call.weights.astype(np.float64), call.round)
    sent = _leaving(task, messages if has_trait(task.mechanism, "people") else of_clients(messages), call, own)
    return Message(call.run, call.round, own.id, sent.updates[0], int(sent.sizes[0]), call.attempt)


def of_clients(messages: Messages) -> Messages:
    """A row for each organisation: the mean of its people's updates, weighted by their searches."""
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
    """What leaves a client of what it learned."""
    updates = learned.updates[:, : len(call.weights)]
    return _leaving(task, Messages(updates, sizes, ids, call.weights.astype(np.float64), call.round), call, own)


def _leaving(task: ClientTask, messages: Messages, call: Call, own: OwnChance) -> Messages:
    if task.mechanism is None:
        return messages
    source = task.mechanism.source() if own.source is None else own.source
    counts = None if call.count == 1 else np.array([call.count])
    return task.mechanism.protect(messages, call.cohort, source, counts)


def steps_of(learner: Learner, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """[n]: how many steps clients took, times the rate."""
    return sizes.astype(np.float64) * float(getattr(learner, "rate", 1.0))


@dataclass(frozen=True)
class Simulated:
    """The impressions of one simulated client, drawn as the compiled loop of a simulation draws them."""

    crowd: SimulatedClients  # of one client
    own: OwnChance
    learner: Learner

    def __len__(self) -> int:
        return int(self.crowd.interactions[0])

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        crowd, (query, chance) = self.crowd, self._stream(number)
        features, grades = self._documents(query)
        records, show, count = kernels.records, kernels.show, len(grades)
        display = records.Display(*(self.learner.display if isinstance(self.learner, Pdgd) else (False, 1.0, 0.0)))
        page = records.Page(
            np.empty(count, np.float32), np.empty(count), np.empty(max(count, show.SHOWN), np.int64), np.empty(0, bool)
        )
        race = records.Race(*(np.empty(count) for _ in range(3)), *(np.empty(count, np.int64) for _ in range(2)))
        table = records.Candidates(crowd.data.features, crowd.data.offsets)
        size, _ = show.show(weights, self.learner.ranker.hidden, table, query, display, chance, page, race)
        shown, clicked = page.shown[:size].copy(), np.empty(size, dtype=np.bool_)
        if display.logged:
            show.click_what_has_a_grade(grades, size, clicked)
        else:
            self._click(grades, shown, chance, clicked)
        return Impression(features, page.scores, shown, clicked)

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        query, chance = self._stream(number)
        features, grades = self._documents(query)
        show, count = kernels.show, len(grades)
        scores = np.empty(count, dtype=np.float32)
        kernels.rankers.score(weights, self.learner.ranker.hidden, features, 0, count, scores)
        shown = np.empty(show.SHOWN, dtype=np.int64)
        bits = scores.view(np.int32).reshape(count, 1)
        best, bounds = np.empty(show.SHOWN, np.int32), np.empty(show.SHOWN, np.int32)
        keys, ordered = np.empty(count + 1, np.int64), np.empty(count, np.int64)
        size = show.best_first(bits, count, np.empty_like(bits), best, bounds, keys, ordered, shown)
        shown, clicked = shown[: max(size, 0)], np.empty(max(size, 0), dtype=np.bool_)
        self._click(grades, shown, chance, clicked)
        return Impression(features, scores, shown, clicked)

    def judged(self, number: int) -> Judged:
        return Judged(*self._documents(self._stream(number)[0]))

    def logged(self, number: int) -> Logged:
        query, _ = self._stream(number)
        data = self.crowd.data
        rows = slice(data.offsets[query], data.offsets[query + 1])
        drawn = None if data.draw is None else (data.drawn[rows], *data.draw)
        return Logged(data.features[rows], data.labels[rows], drawn)

    def search(self, number: int) -> tuple[int, int]:
        """The query of search number `number`, and the user who asks it (a row of the click tables)."""
        query, stream = self._stream(number)
        return query, self._user(stream)

    def _stream(self, number: int) -> tuple[int, np.uint64]:
        """The query of search number `number`, and its stream."""
        crowd, chance = self.crowd, kernels.chance
        place = int(crowd.at[0]) + number if len(crowd.at) else number
        own = np.uint64(chance.stream(self.own.chance.key("learn"), self.own.id))
        stream = np.uint64(chance.stream(own, place))
        first, last = crowd.pools[crowd.pool[0]], crowd.pools[crowd.pool[0] + 1]
        at = place if len(crowd.at) else int(chance.uniform(stream, 0) * (last - first))
        return int(crowd.queries[first + at]), stream

    def _documents(self, query: int) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        begin, end = self.crowd.data.offsets[query], self.crowd.data.offsets[query + 1]
        return self.crowd.data.features[begin:end], self.crowd.grades[self.crowd.view[0]][begin:end]

    def _click(
        self, grades: NDArray[np.int8], shown: NDArray[np.int64], stream: np.uint64, clicked: NDArray[np.bool_]
    ) -> None:
        crowd, user = self.crowd, self._user(stream)
        kernels.show.read_and_click(
            grades, shown, len(shown), crowd.click[user], crowd.stop[user], crowd.attention[user], stream, clicked
        )

    def _user(self, stream: np.uint64) -> int:
        user = int(self.crowd.user[0])
        return user if user >= 0 else int(kernels.chance.uniform(stream, 1) * len(self.crowd.click))

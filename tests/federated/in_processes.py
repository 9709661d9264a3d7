"""A federation taken apart: clients with their own data, and a server without any, as processes with pipes between.

Through the pipes between server and clients go packed bytes alone. What a test hands to a process before a case, and
what it asks for afterwards, goes another way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

import numpy as np

from fedrank.federated.client import ClientTask, answer, first_memory
from fedrank.federated.messages import Call, ExpectedCall, Message
from fedrank.federated.server import ServerTask, receive, settle
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.seeds import Chance, rng_for
from fedrank.types import Mechanism, Messages, OwnChance, SimulatedClients, has_trait

RUN = b"taken apart, 16B"
SERVER_KEY = bytes(range(32))
COORDINATOR = -1  # a client of the server's own, with the queries that it trusts


@dataclass(frozen=True)
class ClientCase:
    """What a client has before it is called for the first time."""

    task: ClientTask
    clients: SimulatedClients  # of this client alone, with nothing but its own queries
    parameters: int  # that travel
    seed: int
    rounds: dict[int, tuple[int, int]]  # when it is called; out of step, from which place on it searches how often
    in_step: bool = True
    keyed: bool = False  # whether its noise comes from a source that a test can repeat


@dataclass(frozen=True)
class ServerCase:
    """What a server has before the first round."""

    task: ServerTask
    features: int
    seed: int
    asked: list[list[int]]  # by round


@dataclass(frozen=True)
class Keyed:
    """A mechanism whose noise comes from sources keyed by round and client, however many are protected at once."""

    inner: Mechanism

    @property
    def traits(self):
        return self.inner.traits

    @property
    def sees(self):
        return self.inner.sees

    @property
    def sends(self):
        return self.inner.sends

    def source(self):
        raise AssertionError("noise that no test could repeat")

    def rule(self, cohort, source):
        return self.inner.rule(cohort, source)

    def protect(self, messages, cohort, source, counts=None) -> Messages:
        sent = []
        for c, client in enumerate(messages.ids.tolist()):
            own = None if counts is None else counts[c : c + 1]
            sent.append(self.inner.protect(messages.rows(slice(c, c + 1)), cohort, keyed(messages.round, client), own))
        columns = {name: np.concatenate([getattr(one, name) for one in sent]) for name in ("updates", "sizes", "ids")}
        return replace(sent[0], **columns)


def keyed(round: int, client: int) -> SecureSource:
    return SecureSource(key=hashlib.blake2b(f"{round} {client}".encode(), digest_size=32).digest())


def only(clients: SimulatedClients, row: int) -> SimulatedClients:
    """One client with nothing but the queries of its own pool, numbered anew."""
    one = clients.rows(slice(row, row + 1))
    pool = clients.queries[clients.pools[one.pool[0]] : clients.pools[one.pool[0] + 1]]
    queries, numbers = np.unique(pool, return_inverse=True)
    documents = np.concatenate([np.arange(*clients.data.offsets[query : query + 2]) for query in queries])
    return replace(
        one,
        data=clients.data.select(queries),
        pool=np.zeros(1, dtype=np.int32),
        queries=numbers.astype(np.int32),
        pools=np.array([0, len(numbers)]),
        grades=np.ascontiguousarray(clients.grades[:, documents]),
        ideal=np.ascontiguousarray(clients.ideal[:, queries]),
        shared=np.empty(0, dtype=np.int32),
    )


def client(test: Connection, server: Connection) -> None:
    """Answers calls until the case ends, then tells the test what it keeps."""
    while True:
        case: ClientCase | None = test.recv()
        if case is None:
            return
        features = case.clients.data.features.shape[1]
        memory = first_memory(case.task, features, case.seed)
        left = sorted(case.rounds)
        while test not in wait([test, server]):
            number = left.pop(0)
            expected = ExpectedCall(RUN, number, case.parameters, has_trait(case.task.local, "common"))
            call = Call.unpack(server.recv_bytes(), expected)
            at, searches = case.rounds[number]
            clients, chance = case.clients, Chance(case.seed, number)
            if not case.in_step:
                clients = replace(clients, at=np.array([at]), interactions=np.array([searches]))
                chance = Chance(case.seed, 0)
            identity = int(clients.ids[0])
            own = OwnChance(chance, identity, keyed(number, identity) if case.keyed else None)
            message, memory = answer(
                case.task, call, SimulatedImpressions(clients, own, case.task.learner), memory, own
            )
            server.send_bytes(message.pack())
        assert test.recv() == "end"
        test.send(memory)


def server(test: Connection, clients: Sequence[Connection], coordinator: Connection) -> None:
    """Calls clients, settles what they answer, and tells the test the model after every round."""
    while True:
        case: ServerCase | None = test.recv()
        if case is None:
            return
        task, federation = case.task, case.task.federation
        first = federation.learner.ranker.first(case.features, rng_for(case.seed, "first"))
        state = task.first(first[: federation.sent(len(first))])
        trusts, source = has_trait(federation.aggregator, "trusted queries"), SecureSource(key=SERVER_KEY)
        models = []
        for asked in case.asked:
            expected = task.expected(state, RUN, asked)
            for row in asked:
                clients[row].send_bytes(task.call(state, RUN, row, len(asked)).pack())
            root = None
            if trusts:
                coordinator.send_bytes(task.call(state, RUN, 0, len(asked)).pack())
                root = Message.unpack(coordinator.recv_bytes(), replace(expected, senders=(COORDINATOR,)))
            received = receive(expected, [clients[row].recv_bytes() for row in reversed(asked)])
            assert received.notes == ()
            messages = task.gathered(state, received.messages, root)
            state = settle(task, state, messages, source=source)
            models.append(state.weights.copy())
        test.send(models)

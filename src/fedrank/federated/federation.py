"""A federation: the methods of clients and server, and the resulting tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from fedrank.federated.aggregators import Mean
from fedrank.federated.compatibility import clashes
from fedrank.federated.deal import Deal
from fedrank.federated.server_optimizers import Add
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Name
from fedrank.types import (
    Aggregator,
    Attack,
    Learner,
    LocalStep,
    Mechanism,
    ServerOptimizer,
    SimulatedClients,
    has_trait,
)


@dataclass(frozen=True)
class Federation:
    """The methods that clients and server use in every round.

    Clients learn with `learner`, and `local` corrects their steps. Malicious clients apply `attack`, and `mechanism`
    protects what leaves a client. The server combines updates with `aggregator` and moves its model with `server`.
    Methods that cannot work together raise a ValueError.

    >>> import fedrank as fr
    >>> federation = fr.Federation(
    ...     learner=fr.learners.Pdgd(rate=0.1), aggregator=fr.aggregators.Median(), participation=0.5
    ... )
    >>> clients = fr.make_clients(fr.synthetic("mq2007", queries=20), count=8, interactions=5)
    >>> [outcome] = fr.simulate(federation, clients, rounds=1)
    >>> outcome.interactions  # of 4 clients that took part
    20
    """

    learner: Learner = field(default_factory=Pdgd)
    aggregator: Aggregator = field(default_factory=Mean)
    server: ServerOptimizer = field(default_factory=Add)
    local: LocalStep | None = None  # correction of local steps of heterogeneous clients
    attack: Attack | None = None  # behaviour of malicious clients, only in simulation
    mechanism: Mechanism | None = None  # protection of messages
    participation: float = 1.0  # share of clients that participate in a round, drawn every round
    dealt: int = 0  # number of rounds into which clients are dealt once, to participate in one; 0: drawn every round

    def __post_init__(self) -> None:
        if has_trait(self.local, "alike"):
            object.__setattr__(self, "aggregator", unweighted(self.aggregator))
        if self.dealt < 0:
            raise ValueError(f"dealt must be a number of rounds, or 0 to draw clients every round (got {self.dealt})")
        if found := clashes(self):
            raise ValueError("\n".join(found))

    def cohort(self, clients: int) -> float:
        """The number of clients per round, or its expected value if participation is random; public."""
        return planned_cohort(self.mechanism, clients, self.participation, self.dealt)

    def deals_persons(self, clients: SimulatedClients) -> bool:
        """Whether a dealt schedule deals persons, not the organisations that are the clients."""
        return bool(self.dealt) and clients.people is not None and getattr(self.mechanism, "unit", "person") == "person"

    def deal(self, clients: SimulatedClients | int, seed: int, *name: Name) -> Deal:
        """Deal clients, or their persons, into rounds; the deal is keyed by the seed and the name."""
        if isinstance(clients, int):
            return Deal.of(clients, self.dealt, seed, *name)
        if self.deals_persons(clients):
            return Deal.of_persons(clients, self.dealt, seed)
        return Deal.of(len(clients), self.dealt, seed)

    def sent(self, parameters: int) -> int:
        """The number of parameters that are sent."""
        return parameters - (abs(self.learner.ranker.hidden) if has_trait(self.local, "shared part") else 0)


def unweighted(aggregator: Aggregator) -> Aggregator:
    """The same aggregator, or the unweighted mean for the weighted one."""
    return replace(aggregator, weighted=False) if isinstance(aggregator, Mean) else aggregator


def planned_cohort(mechanism: Mechanism | None, clients: int, participation: float, dealt: int) -> float:
    """The number of clients of a round by which its sum is divided, or its expected value."""
    if dealt:  # organisations that deal their persons participate in every round
        return clients if has_trait(mechanism, "people") else planned_size(clients, dealt)
    if has_trait(mechanism, "hides cohort"):
        return participation * clients
    return cohort_size(clients, participation)


def planned_size(count: int, rounds: int) -> int:
    """The largest number of participants of a round, if they are dealt into rounds; public."""
    return math.ceil(count / rounds)


def cohort_size(clients: int, participation: float) -> int:
    """The number of clients that participate in every round."""
    return max(1, int(np.floor(participation * clients + 0.5)))

"""Asynchronous federated learning: the updates of a search log's users arrive at the logged times.

A client takes its queries in the order of its pool. Each time it has made `ClientData.interactions` searches, it has an
update; the order of arrivals follows from the times of the log. A remainder at the end of a pool is not sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.types import Arrays, Change, ClientData, Messages, Weights

SINCE = "since"  # the only array of a rule's state with an entry per client


class Arrival(NamedTuple):
    """What the server received in one round."""

    round: int
    rows: NDArray[np.int64]  # clients that sent an update
    change: Change  # mean of their updates, weighted by interactions, relative to their starting models
    model: Weights  # mean of their models: starting models plus updates


class ArrivalRule(Protocol):
    """How the server processes arriving updates, and when clients receive the model."""

    @property
    def receive(self) -> bool:
        """Whether clients receive the global model; otherwise, each continues with its own."""

    @property
    def together(self) -> bool:
        """Whether a round uses the next update of every client."""

    @property
    def gathers(self) -> int:
        """The number of different clients per round; 0: a round is one arrival, unless `together`."""

    def first(self, clients: int, parameters: int) -> Arrays:
        """Return the state of the rule before round 1, which is changed in place.

        `SINCE` has an entry per client, which changes only when that client sends. All other arrays are small.
        """

    def __call__(self, weights: Weights, arrival: Arrival, state: Arrays) -> Weights:
        """Return the new global model, and mark these clients as synchronised in `state`."""


class GatheringRule(ArrivalRule, Protocol):
    """A rule that `gathers`."""

    def counts(self, rows: NDArray[np.int64], state: Arrays) -> NDArray[np.float64]:
        """[rows], 0 .. 1: weight of each update by its age, which is public and applied by clients."""


@dataclass(frozen=True)
class Sync:
    """Synchronous: round t averages the t-th update of every client that still has one, regardless of its time.

    A client that does not receive the global model continues with its own; the global model is then the mean of the
    models that arrive (AOL4FOLTR, equation 1), without clients that have no updates left.
    """

    receive: bool = True  # whether clients receive the global model after every round (AOL4FOLTR's code: never)

    together = True
    gathers = 0

    def first(self, clients: int, parameters: int) -> Arrays:
        return {}

    def __call__(self, weights: Weights, arrival: Arrival, state: Arrays) -> Weights:
        return weights + arrival.change if self.receive else arrival.model


@dataclass(frozen=True)
class FedAsync:
    """Every update moves the model at once to (1 - s) x global + s x client's model (FedAsync; Xie et al., 2019).

    r is the number of arrivals since the client last synchronised, 1 if no other client came between. s is `mixing`
    times 1 / (1 + r) (harmonic; AOL4FOLTR), 1 (constant), r^-exponent (polynomial), or
    1 if r - 1 <= patience and 1 / (slope (r - 1 - patience) + 1) otherwise (hinge).
    """

    staleness: Literal["harmonic", "constant", "polynomial", "hinge"] = "harmonic"
    mixing: float = 1.0  # α, greater than 0 and at most 1; Xie et al. use 0.6
    exponent: float = 0.5  # a of polynomial
    slope: float = 10.0  # a of hinge
    patience: float = 4.0  # b of hinge, in arrivals
    receive: bool = True  # whether a client receives the global model when it sends (AOL4FOLTR's released code: never)

    together = False
    gathers = 0

    def __post_init__(self) -> None:
        if self.staleness not in ("harmonic", "constant", "polynomial", "hinge"):
            raise ValueError(
                f'staleness must be "harmonic", "constant", "polynomial" or "hinge" (got {self.staleness!r})'
            )
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing must be greater than 0 and at most 1 (got {self.mixing})")
        for name in ("exponent", "slope", "patience"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least 0 (got {getattr(self, name)})")

    def share(self, r: int) -> float:
        """s: weight of the model of a client that synchronised r arrivals ago.

        >>> FedAsync().share(1), FedAsync("polynomial", 0.6).share(4), FedAsync("hinge").share(6)
        (0.5, 0.3, 0.09090909090909091)
        """
        if self.staleness == "harmonic":
            return self.mixing / (1 + r)
        if self.staleness == "polynomial":
            return float(self.mixing * kernels.elementary.power(float(r), -float(self.exponent)))
        if self.staleness == "hinge" and r - 1 > self.patience:
            return self.mixing / (self.slope * (r - 1 - self.patience) + 1)
        return self.mixing

    def first(self, clients: int, parameters: int) -> Arrays:
        return {SINCE: np.zeros(clients, dtype=np.int64)}

    def __call__(self, weights: Weights, arrival: Arrival, state: Arrays) -> Weights:
        share = self.share(arrival.round - int(state[SINCE][arrival.rows[0]]))
        state[SINCE][arrival.rows] = arrival.round
        return (1 - share) * weights + share * arrival.model


@dataclass(frozen=True)
class FedBuff:
    """The server collects `size` updates, then moves its model by their mean (FedBuff; Nguyen et al., AISTATS 2022).

    An update has the weight (1 + t)^-exponent, where t is the number of model changes since its client synchronised. An
    incomplete buffer at the end of a run is not used.

    With `wait`, clients send nothing until `size` different ones have an update, and then each sends once, with all
    that it has learned until then; a round is one such sum. Secure aggregation needs this, because no sum may contain
    a client twice.
    """

    size: int = 10  # K: number of updates in the buffer
    rate: float = 1.0  # server learning rate
    exponent: float = 0.5  # decay of the weight of old updates; 0: none
    receive: bool = True  # whether a client receives the current global model when it sends
    wait: bool = False  # clients hold their updates until the buffer is full, and send together

    together = False

    @property
    def gathers(self) -> int:
        return self.size if self.wait else 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1 (got {self.size})")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be a finite positive number, such as 1 (got {self.rate})")
        if not 0 <= self.exponent < math.inf:
            raise ValueError(f"exponent must be at least 0 (got {self.exponent})")

    def first(self, clients: int, parameters: int) -> Arrays:
        kept = {
            SINCE: np.zeros(clients, dtype=np.int64),  # number of model changes when each client synchronised
            "moves": np.zeros(1, dtype=np.int64),
        }
        return kept if self.wait else kept | {"waiting": np.zeros(1, dtype=np.int64), "sum": np.zeros(parameters)}

    def counts(self, rows: NDArray[np.int64], state: Arrays) -> NDArray[np.float64]:
        return np.array([self._count(int(age)) for age in state["moves"][0] - state[SINCE][rows]])

    def _count(self, age: int) -> float:
        return float(kernels.elementary.power(1.0 + age, -float(self.exponent)))

    def __call__(self, weights: Weights, arrival: Arrival, state: Arrays) -> Weights:
        if self.wait:
            state["moves"] += 1
            state[SINCE][arrival.rows] = state["moves"][0]
            return weights + self.rate * arrival.change
        age = int(state["moves"][0] - state[SINCE][arrival.rows[0]])
        state["sum"] += self._count(age) * arrival.change
        state["waiting"] += 1
        if state["waiting"][0] == self.size:
            weights = weights + self.rate / self.size * state["sum"]
            state["sum"][:] = 0.0
            state["waiting"][:] = 0
            state["moves"] += 1
        state[SINCE][arrival.rows] = state["moves"][0]
        return weights


ARRIVALS: dict[str, type[ArrivalRule]] = {"sync": Sync, "fedasync": FedAsync, "fedbuff": FedBuff}


@dataclass(frozen=True)
class Schedule:
    """Which client sends which batch in which round; everything is sorted by round."""

    rows: NDArray[np.int64]  # [batches]: client
    at: NDArray[np.int64]  # [batches]: index of the batch's first query in the client's pool
    searches: NDArray[np.int64]  # [batches]: number of queries of the batch
    edges: NDArray[np.int64]  # [rounds + 1]: round t + 1 has batches edges[t] .. edges[t + 1] - 1
    until: NDArray[np.int64]  # [batches]: end of the longest range from this batch in which no client sends twice

    @property
    def rounds(self) -> int:
        return len(self.edges) - 1

    def cohort(self, round: int) -> NDArray[np.int64]:
        """Return the clients that send in a round, counted from 1."""
        return self.rows[self.edges[round - 1] : self.edges[round]]

    def participations(self, rounds: int, clients: int) -> NDArray[np.int64]:
        """[clients]: number of updates of each in the first rounds."""
        return np.bincount(self.rows[: self.edges[min(rounds, self.rounds)]], minlength=clients)


def schedule(clients: ClientData, rule: ArrivalRule) -> Schedule:
    """Return all complete batches, ordered by the time of their last query, or by their number within clients.

    Batches that end in the same second arrive in the order of their clients. If the rule gathers, a client's batches in
    one round are merged, and an incomplete last round is omitted.
    """
    sizes, searches = np.diff(clients.pools)[clients.pool], clients.interactions
    batches = np.where(searches > 0, sizes // np.maximum(searches, 1), 0)
    if not batches.any():
        raise ValueError(f"no client has the {int(searches.max())} queries of one update; reduce clients.interactions")
    rows = np.repeat(np.arange(len(clients)), batches)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(batches) - batches, batches)
    at = number * searches[rows]
    if rule.together:
        order = np.lexsort((rows, number))
        edges = np.searchsorted(number[order], np.arange(number.max() + 2))
    else:
        if not len(clients.data.when):
            raise ValueError(
                f"{clients.data.name or 'this data set'} has no times of queries, so the order of arrivals is unknown; "
                'use data.log, or arrival = { name = "sync" }'
            )
        last = clients.queries[clients.pools[clients.pool[rows]] + at + searches[rows] - 1]
        order = np.lexsort((number, rows, clients.data.when[last]))
        edges = np.arange(len(rows) + 1)
    rows, at = rows[order], at[order]
    searches = searches[rows]
    if rule.gathers:
        rows, at, searches, edges = _gathered(rows, at, searches, rule.gathers)
    later = np.full(len(rows), len(rows))  # the same client's next batch
    by_client = np.argsort(rows, kind="stable")
    again = rows[by_client[1:]] == rows[by_client[:-1]]
    later[by_client[:-1][again]] = by_client[1:][again]
    return Schedule(rows, at, searches, edges.astype(np.int64), np.minimum.accumulate(later[::-1])[::-1])


def _gathered(
    rows: NDArray[np.int64], at: NDArray[np.int64], searches: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Combine arrivals into rounds of `size` different clients: (rows, at, searches, edges)."""
    sent: list[tuple[int, int, int]] = []
    waiting: dict[int, tuple[int, int]] = {}  # client -> its first index and its number of queries
    for client, place, count in zip(rows.tolist(), at.tolist(), searches.tolist(), strict=True):
        begin, before = waiting.get(client, (place, 0))
        waiting[client] = begin, before + count
        if len(waiting) == size:
            sent += [(one, *waiting[one]) for one in sorted(waiting)]
            waiting = {}
    if not sent:
        raise ValueError(
            f"only {len(waiting)} clients ever have an update, so a buffer of {size} is never full; use a smaller "
            "arrival.size, or more clients"
        )
    table = np.array(sent, dtype=np.int64)
    return table[:, 0], table[:, 1], table[:, 2], np.arange(0, len(table) + 1, size)


def mean_of(values: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean of rows, weighted by interactions; exact for a single row."""
    if len(values) == 1:
        return np.array(values[0], dtype=np.float64)
    mean: NDArray[np.float64] = kernels.sums.weighted_sum(sizes, values) / sizes.sum()
    return mean


@dataclass(frozen=True)
class Arrived:
    """Combines the updates of one asynchronous round into one change."""

    rule: ArrivalRule
    state: Arrays
    present: int  # number of clients in the round

    def __call__(self, messages: Messages) -> Change:
        if not self.rule.gathers:
            return mean_of(messages.updates, messages.sizes)
        counts = cast(GatheringRule, self.rule).counts(messages.ids, self.state)
        change: Change = kernels.sums.weighted_sum(counts, messages.updates) / self.present
        return change

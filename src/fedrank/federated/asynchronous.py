"""Federation out of step: the updates of a search log's users arrive when they did.

A client takes its queries in the order of its pool. Whenever it has searched as often as `ClientData.interactions`
says, it has an update, and what arrives in which order follows from the times of the log. What is left over at the
end of a pool is never sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.types import Arrays, Change, ClientData, Messages, Weights

SINCE = "since"  # the only array of a rule's state that has an entry for each client


class Arrival(NamedTuple):
    """What the server has in its hands in one round."""

    round: int
    rows: NDArray[np.int64]  # clients that sent
    change: Change  # mean of their updates, by interactions, relative to what each started from
    model: Weights  # the mean of their models: where they started, plus their updates


class ArrivalRule(Protocol):
    """What the server does with updates that arrive, and when clients learn of it."""

    @property
    def receive(self) -> bool:
        """Whether clients get the global model back; if not, each goes on with its own."""

    @property
    def together(self) -> bool:
        """Whether a round takes the next update of every client."""

    @property
    def gathers(self) -> int:
        """How many different clients send together in a round; 0: a round is one arrival, unless `together`."""

    def first(self, clients: int, parameters: int) -> Arrays:
        """What the rule remembers before round 1; it is changed in place.

        `SINCE` has an entry for each client, which changes only when that one sends. All other arrays are small.
        """

    def __call__(self, weights: Weights, arrival: Arrival, state: Arrays) -> Weights:
        """The new global model; notes in `state` that these clients are up to date from now on."""


class GatheringRule(ArrivalRule, Protocol):
    """A rule that `gathers`."""

    def counts(self, rows: NDArray[np.int64], state: Arrays) -> NDArray[np.float64]:
        """[rows], 0 .. 1: how much each update counts by its age, which is public: clients apply it themselves."""


@dataclass(frozen=True)
class Sync:
    """In step: round t averages the t-th update of every client that still has one, whenever it was made.

    Who never receives the global model goes on with its own; the global one is then the mean of the models that come
    (AOL4FOLTR, equation 1), in which those have no part that have run out of updates.
    """

    receive: bool = True  # whether clients get the global model after every round (AOL4FOLTR's released code: never)

    together = True
    gathers = 0

    def first(self, clients: int, parameters: int) -> Arrays:
        return {}

    def __call__(self, weights: Weights, arrival: Arrival, state: Arrays) -> Weights:
        return weights + arrival.change if self.receive else arrival.model


@dataclass(frozen=True)
class FedAsync:
    """Every update moves the model at once, the less the older it is: (1 - s) x global + s x client's model.

    FedAsync (Xie et al., 2019). r is the number of arrivals since the client last synchronised, 1 when nobody else
    came between. s is `mixing` times 1 / (1 + r) (harmonic; AOL4FOLTR), 1 (constant), r^-exponent (polynomial), or
    1 as long as r - 1 <= patience and 1 / (slope (r - 1 - patience) + 1) from then on (hinge).
    """

    staleness: Literal["harmonic", "constant", "polynomial", "hinge"] = "harmonic"
    mixing: float = 1.0  # α, above 0 and up to 1; Xie et al. use 0.6
    exponent: float = 0.5  # a of polynomial
    slope: float = 10.0  # a of hinge
    patience: float = 4.0  # b of hinge, in arrivals
    receive: bool = True  # whether a client gets the global model when it sends (AOL4FOLTR's released code: never)

    together = False
    gathers = 0

    def __post_init__(self) -> None:
        if self.staleness not in ("harmonic", "constant", "polynomial", "hinge"):
            raise ValueError(f'no staleness {self.staleness!r}; use "harmonic", "constant", "polynomial" or "hinge"')
        if not 0 < self.mixing <= 1:
            raise ValueError(f"mixing = {self.mixing} is no share of a model; use more than 0, up to 1")
        for name in ("exponent", "slope", "patience"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} = {getattr(self, name)} cannot weigh updates by age; use 0 or more")

    def share(self, r: int) -> float:
        """s: how far the model moves towards one whose client synchronised r arrivals ago.

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
    """The server waits for `size` updates, and then moves its model by their mean (FedBuff; Nguyen et al., 2022).

    An update counts (1 + t)^-exponent, where t is how often the model has moved since its client synchronised. What
    waits at the end of a run is not used.

    With `wait` nothing leaves a client before `size` different ones have an update, and then each sends once, with all
    that it has learned until then; a round is one such sum. A secure sum needs that: no sum holds anybody twice.
    """

    size: int = 10  # K: updates that are gathered
    rate: float = 1.0  # how far the model moves along their mean
    exponent: float = 0.5  # how fast old updates lose weight; 0: not at all
    receive: bool = True  # whether a client gets the global model, as it is then, when it sends
    wait: bool = False  # clients keep their updates until the buffer is full, and send together

    together = False

    @property
    def gathers(self) -> int:
        return self.size if self.wait else 0

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size = {self.size} gathers nothing; use 1 or more updates")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate = {self.rate} moves nothing, or everything; use a positive number such as 1")
        if not 0 <= self.exponent < math.inf:
            raise ValueError(f"exponent = {self.exponent} would let old updates count more; use 0 or more")

    def first(self, clients: int, parameters: int) -> Arrays:
        kept = {
            SINCE: np.zeros(clients, dtype=np.int64),  # moves of the model when each client synchronised
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
    """Who sends what in which round; everything is sorted by round."""

    rows: NDArray[np.int64]  # [batches]: client
    at: NDArray[np.int64]  # [batches]: place in the client's pool of the batch's first query
    searches: NDArray[np.int64]  # [batches]: queries of the batch
    edges: NDArray[np.int64]  # [rounds + 1]: round t + 1 has batches edges[t] .. edges[t + 1] - 1
    until: NDArray[np.int64]  # [batches]: from this batch on up to that one, without it, no client sends twice

    @property
    def rounds(self) -> int:
        return len(self.edges) - 1

    def cohort(self, round: int) -> NDArray[np.int64]:
        """Clients that send in a round, counted from 1."""
        return self.rows[self.edges[round - 1] : self.edges[round]]

    def participations(self, rounds: int, clients: int) -> NDArray[np.int64]:
        """[clients]: how often each sends in the first rounds."""
        return np.bincount(self.rows[: self.edges[min(rounds, self.rounds)]], minlength=clients)


def schedule(clients: ClientData, rule: ArrivalRule) -> Schedule:
    """All complete batches: by the time of their last query, or all first ones, all second ones, and so on.

    Batches that end in the same second arrive in order of their clients. Where a rule gathers, batches of a client that
    fall into one round are one batch, and what does not fill a last round is left out.
    """
    sizes, searches = np.diff(clients.pools)[clients.pool], clients.interactions
    batches = np.where(searches > 0, sizes // np.maximum(searches, 1), 0)
    if not batches.any():
        raise ValueError(
            f"no client has the {int(searches.max())} queries of one update; use fewer clients.interactions"
        )
    rows = np.repeat(np.arange(len(clients)), batches)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(batches) - batches, batches)
    at = number * searches[rows]
    if rule.together:
        order = np.lexsort((rows, number))
        edges = np.searchsorted(number[order], np.arange(number.max() + 2))
    else:
        if not len(clients.data.when):
            raise ValueError(
                f"{clients.data.name or 'this data set'} does not say when a query was asked, so nothing arrives in "
                'order; use data.log, or arrival = { name = "sync" }'
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
    """Arrivals as rounds of so many different clients: (rows, at, searches, edges)."""
    sent: list[tuple[int, int, int]] = []
    waiting: dict[int, tuple[int, int]] = {}  # client -> its first place, and how many queries from there on
    for client, place, count in zip(rows.tolist(), at.tolist(), searches.tolist(), strict=True):
        begin, before = waiting.get(client, (place, 0))
        waiting[client] = begin, before + count
        if len(waiting) == size:
            sent += [(one, *waiting[one]) for one in sorted(waiting)]
            waiting = {}
    if not sent:
        raise ValueError(
            f"only {len(waiting)} clients ever have an update, so that a buffer of {size} is never full; use a smaller "
            "arrival.size, or more clients"
        )
    table = np.array(sent, dtype=np.int64)
    return table[:, 0], table[:, 1], table[:, 2], np.arange(0, len(table) + 1, size)


def mean_of(values: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of rows, by interactions; that of a single row is the row itself, to the last bit."""
    if len(values) == 1:
        return np.array(values[0], dtype=np.float64)
    mean: NDArray[np.float64] = kernels.sums.weighted_sum(sizes, values) / sizes.sum()
    return mean


@dataclass(frozen=True)
class Arrived:
    """How the updates of one round out of step become one change."""

    rule: ArrivalRule
    state: Arrays
    present: int  # clients of the round

    def __call__(self, messages: Messages) -> Change:
        if not self.rule.gathers:
            return mean_of(messages.updates, messages.sizes)
        counts = cast(GatheringRule, self.rule).counts(messages.ids, self.state)
        change: Change = kernels.sums.weighted_sum(counts, messages.updates) / self.present
        return change

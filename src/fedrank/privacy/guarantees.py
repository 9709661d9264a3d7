"""Promises: what a mechanism may claim, against whom, under which assumption, and what that costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from fedrank.federated.federation import cohort_size
from fedrank.privacy.accounting import Event, composed, epsilon
from fedrank.types import Aggregator, Learner, Mechanism, has_trait

OBSERVERS = ("server", "other clients", "public")


@dataclass(frozen=True)
class Setting:
    """All that a promise depends on besides the mechanism itself."""

    clients: int
    parameters: int
    participation: float
    interactions: tuple[int, ...]  # searches a round, of each kind of client
    learner: Learner
    aggregator: Aggregator

    def cohort(self, mechanism: Mechanism) -> float:
        """How many clients a round has, or has on average where each draws by itself: a public number."""
        if has_trait(mechanism, "hides cohort"):
            return self.participation * self.clients
        return cohort_size(self.clients, self.participation)


@dataclass(frozen=True)
class Guarantee:
    """What is claimed against one kind of observer."""

    against: str  # one of OBSERVERS
    event: Event | None  # what is spent each time; None: nothing can be claimed
    because: str  # under which assumption it holds, or why nothing does
    paid: Literal["participation", "round", "once"] = "participation"  # how often a client pays
    # What is protected: all that one of them does, or one word of a document.
    unit: Literal["client", "interaction", "person", "query", "occurrence"] = "client"
    neighbours: Literal["zero-out", "replace-one"] = "replace-one"
    slack: float = 0.0  # added to ε each time, since a sampler is not exactly the law that is priced

    def times(self, participations: int, rounds: int, lost: int = 0) -> int:
        """How often a client that took part so often in so many rounds has paid.

        `lost` of these rounds were lost in a crash and done again, with the same interactions and other noise.
        """
        if self.paid == "once":
            return min(1 + lost, participations)
        return rounds if self.paid == "round" else participations

    def epsilon(self, times: int, delta: float) -> float:
        """What so many times cost at this δ; infinite where nothing can be claimed."""
        if self.event is None:
            return math.inf
        # With p and q right up to factors exp(±slack / 2), p - e^ε q is at most exp(slack / 2) (p - e^(ε - slack) q).
        extra = times * self.slack
        return epsilon(self.event, times, delta * math.exp(-extra / 2)) + extra

    def affordable(self, delta: float, budget: float, most: int) -> int:
        """How often a client can pay without exceeding ε = budget, at most `most` times."""
        if self.epsilon(most, delta) <= budget:
            return most
        low, high = 0, most  # affordable, and not
        while high - low > 1:
            middle = (low + high) // 2
            if self.epsilon(middle, delta) <= budget:
                low = middle
            else:
                high = middle
        return low


def cost_together(spent: Iterable[tuple[Guarantee, int]], delta: float) -> float:
    """What several promises cost somebody who paid each so often; infinite where one claims nothing."""
    paid = [(guarantee, times) for guarantee, times in spent if times]
    if any(guarantee.event is None for guarantee, _ in paid):
        return math.inf
    events: Counter[Event] = Counter()
    for guarantee, times in paid:
        assert guarantee.event is not None
        events[guarantee.event] += times
    extra = sum(times * guarantee.slack for guarantee, times in paid)  # as in `Promise.epsilon`
    return composed(events, delta * math.exp(-extra / 2)) + extra


def noise_for(guarantee: Callable[[float], Guarantee], times: int, delta: float, target: float) -> float:
    """The least noise, within 0.1 %, whose promise costs at most ε = target after so many times; inf if none does."""

    def enough(noise: float) -> bool:
        try:
            return guarantee(noise).epsilon(times, delta) <= target
        except ValueError:  # too little or too much for a grid
            return False

    low, high = 0.0, 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > 2**30:
            return math.inf
    while high - low > 0.001 * high and high > 2**-30:
        middle = (low + high) / 2
        if enough(middle):
            high = middle
        else:
            low = middle
    return high


def up(epsilon: float) -> str:
    """ε, rounded up: what is printed must hold.

    >>> up(1.2041), up(8.0), up(623.4)
    ('1.21', '8.0', '624')
    """
    if math.isinf(epsilon):
        return "∞"
    digits = 2 if epsilon < 2 else 1 if epsilon < 100 else 0
    return f"{math.ceil(epsilon * 10**digits - 1e-9) / 10**digits:,.{digits}f}"


def down(epsilon: float) -> str:
    """ε that is left, rounded down: what is printed may be spent.

    >>> down(0.129), down(2.0)
    ('0.12', '2.00')
    """
    return f"{math.floor(epsilon * 100 + 1e-9) / 100:,.2f}"

"""Guarantees: what a mechanism may claim, against whom, under which assumption, and the privacy loss."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedrank.federated.federation import planned_cohort
from fedrank.privacy.accounting import Event, composed, epsilon
from fedrank.types import Aggregator, Learner, Mechanism

OBSERVERS = ("server", "other clients", "public")


@dataclass(frozen=True)
class Setting:
    """Everything a guarantee depends on besides the mechanism itself."""

    clients: int
    parameters: int
    participation: float
    interactions: tuple[int, ...]  # interactions per round, of each kind of client
    learner: Learner
    aggregator: Aggregator
    dealt: int = 0  # number of rounds into which clients are dealt; 0: drawn every round

    def cohort(self, mechanism: Mechanism) -> float:
        """Number of clients per round, or its expectation where each client draws independently: a public number."""
        return planned_cohort(mechanism, self.clients, self.participation, self.dealt)


@dataclass(frozen=True)
class Guarantee:
    """The guarantee against one kind of observer."""

    against: str  # one of OBSERVERS
    event: Event | None  # the privacy event of each payment; None: no privacy guarantee
    because: str  # the assumption under which it holds, or why there is no guarantee
    paid: Literal["participation", "round", "once"] = "participation"  # how often a client pays
    # What is protected: everything one client or person does, one interaction or query, or one word of a document.
    unit: Literal["client", "interaction", "person", "browser", "query", "occurrence"] = "client"
    neighbours: Literal["zero-out", "replace-one"] = "replace-one"
    slack: float = 0.0  # added to ε each time, because the sampler only approximates the accounted distribution

    def times(self, participations: int, rounds: int, lost: int = 0) -> int:
        """How often a client has paid after this many participations and rounds.

        `lost` of these rounds were lost in a crash and repeated, with the same interactions and new noise.
        """
        if self.paid == "once":
            return min(1 + lost, participations)
        return rounds if self.paid == "round" else participations

    def epsilon(self, times: int, delta: float) -> float:
        """The ε of this many payments at this δ; infinite where there is no guarantee."""
        if self.event is None:
            return math.inf
        # If p and q are exact up to factors exp(±slack / 2), p - e^ε q is at most exp(slack / 2) (p - e^(ε - slack) q).
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
    """The ε of several guarantees for a client that paid each this often; infinite where one of them claims nothing."""
    paid = [(guarantee, times) for guarantee, times in spent if times]
    if any(guarantee.event is None for guarantee, _ in paid):
        return math.inf
    events: Counter[Event] = Counter()
    for guarantee, times in paid:
        assert guarantee.event is not None
        events[guarantee.event] += times
    extra = sum(times * guarantee.slack for guarantee, times in paid)  # as in `Guarantee.epsilon`
    return composed(events, delta * math.exp(-extra / 2)) + extra


def noise_for(
    guarantee: Callable[[float], Guarantee],
    times: int,
    delta: float,
    target: float,
    others: Sequence[tuple[Guarantee, int]] = (),
) -> float:
    """The least noise, within 0.1 %, with a loss of at most ε = target after this many payments; inf if none has it.

    `others` are paid in addition, with noise that does not change.
    """
    if others and cost_together(others, delta) > target:
        return math.inf

    def enough(noise: float) -> bool:
        try:
            found = guarantee(noise)
            cost = cost_together([(found, times), *others], delta) if others else found.epsilon(times, delta)
            return cost <= target
        except ValueError:  # too little or too much noise for the grid
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
    """ε rounded up: the printed value must hold.

    >>> up(1.2041), up(8.0), up(623.4)
    ('1.21', '8.0', '624')
    """
    if math.isinf(epsilon):
        return "∞"
    digits = 2 if epsilon < 2 else 1 if epsilon < 100 else 0
    return f"{math.ceil(epsilon * 10**digits - 1e-9) / 10**digits:,.{digits}f}"


def down(epsilon: float) -> str:
    """Remaining ε rounded down: the printed value may be spent.

    >>> down(0.129), down(2.0)
    ('0.12', '2.00')
    """
    return f"{math.floor(epsilon * 100 + 1e-9) / 100:,.2f}"

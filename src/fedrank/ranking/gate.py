"""The adoption gate: it rejects a new model that is worse and admits one that is better.

First, recorded searches that neither model was trained on are replayed to estimate clicks at the top positions. The
probabilities of the lists shown are known. The replay can only reject. Then lists of both models are interleaved (team
draft), and clicks decide. The test is valid after every search (anytime-valid), stops early if the new model does
harm, and needs only two counts.

Counts of several users could be pooled and protected by noise, but fedrank does not do so: `benchmarks/live_gate.py`
finds that it takes hundreds of users, and the party that adds up could report any result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.types import Impression

Ruling = Literal["adopt", "refuse", "undecided"]

POSITIONS = 3  # top positions in a replay; weights of longer prefixes vary too much
CLIP = 10.0  # largest weight of a recorded search
FEWEST = 30  # minimum number of recorded searches for a replay
CERTAIN = 1.96  # standard errors on either side of a replay's confidence interval
SURE_OF_NOISE = 3.0  # standard deviations of the worst case of noisy counts


class Team(IntEnum):
    """Which model chose a position of an interleaved list."""

    NEITHER = -1
    OLD = 0
    NEW = 1


@dataclass(frozen=True)
class Replayed:
    """A recorded search, and how its list was sampled."""

    impression: Impression
    temperature: float
    keep: float  # probability that the best document stayed first


@dataclass(frozen=True)
class Replay:
    """The estimated quality of the new model on recorded searches: discounted clicks at the top positions."""

    searches: int
    effective: float  # effective number of searches
    old: float  # mean of the logged clicks
    new: float  # estimate for the new model
    low: float  # confidence interval of new - old
    high: float

    @property
    def refused(self) -> bool:
        """Whether the new model is significantly worse."""
        return self.searches >= FEWEST and self.high < 0


def replay(recorded: Sequence[Replayed], scores: Sequence[NDArray[np.floating]]) -> Replay:
    """Estimate the new model's clicks from searches that another model answered; `scores` are the new model's.

    Clipped and self-normalised: position i has the weight of the probability of the list down to i under the new model,
    divided by that under the old. Clipping biases the estimate towards the logged clicks, and so against rejection.
    """
    if len(recorded) != len(scores):
        raise ValueError(
            f"{len(scores)} lists of scores for {len(recorded)} recorded searches; give the new model's scores for "
            "each search"
        )
    weights = np.zeros((len(recorded), POSITIONS))
    clicks = np.zeros((len(recorded), POSITIONS))
    for row, (one, new) in enumerate(zip(recorded, scores, strict=True)):
        shown, clicked = one.impression.shown[:POSITIONS], one.impression.clicked[:POSITIONS]
        before = prefix_probabilities(one.impression.scores, shown, one.temperature, one.keep)
        after = prefix_probabilities(new, shown, one.temperature, one.keep)
        if before[-1] <= 0:
            continue  # an impossible sample: the record is not usable
        weights[row, : len(shown)] = np.minimum(after / before, CLIP)
        clicks[row, : len(shown)] = clicked
    discounts = 1 / np.log2(np.arange(POSITIONS) + 2)
    totals = weights.sum(axis=0)
    there = totals > 0
    estimate = np.divide((weights * clicks).sum(axis=0), totals, out=np.zeros(POSITIONS), where=there)
    mean = np.divide(totals, max(len(recorded), 1), out=np.ones(POSITIONS), where=there)
    new_gain, old_gain = float(estimate @ discounts), float(clicks.mean(axis=0) @ discounts) if len(recorded) else 0.0
    # The first-order influence of each search on the difference.
    moved = (weights / mean * (clicks - estimate)) @ discounts - (clicks @ discounts - old_gain)
    error = float(np.std(moved, ddof=1) / math.sqrt(len(moved))) if len(moved) > 1 else math.inf
    first = weights[:, 0]
    effective = float(first.sum() ** 2 / (first @ first)) if first.any() else 0.0
    difference = new_gain - old_gain
    margin = CERTAIN * error
    return Replay(len(recorded), effective, old_gain, new_gain, difference - margin, difference + margin)


def prefix_probabilities(
    scores: NDArray[np.floating], shown: NDArray[np.integer], temperature: float, keep: float
) -> NDArray[np.float64]:
    """[positions]: probability that a sampled list begins with the first 1, 2, ... of the shown documents.

    The best document stays first with probability `keep`; otherwise, and after it, documents are drawn one after the
    other with probabilities proportional to e^(score / temperature).
    """
    scaled = np.asarray(scores, np.float64) / temperature
    best = int(np.argmax(scaled))
    rates = np.exp(scaled - scaled[best])
    left = rates.copy()
    found = np.empty(len(shown))
    so_far = 1.0
    for position, document in enumerate(shown):
        total = left.sum()
        chance = left[document] / total if total > 0 else 0.0
        if position == 0:
            chance = keep * (document == best) + (1 - keep) * chance
        so_far *= chance
        found[position] = so_far
        left[document] = 0.0
    return found


@dataclass(frozen=True, eq=False)
class Draft:
    """An interleaved list, and which model chose each position."""

    shown: NDArray[np.int64]
    team: NDArray[np.int8]  # [positions] of Team; NEITHER if both chose the same

    def winner(self, clicked: NDArray[np.bool_]) -> int:
        """The model whose documents got more clicks; NEITHER for a tie."""
        new, old = (int(np.sum(clicked & (self.team == team))) for team in (Team.NEW, Team.OLD))
        return Team.NEITHER if new == old else Team.NEW if new > old else Team.OLD


def team_draft(old: NDArray[np.integer], new: NDArray[np.integer], positions: int, rng: np.random.Generator) -> Draft:
    """Interleave two rankings of the same documents (team draft): they choose in turn, and a coin decides who is first.

    A document that both would choose belongs to neither, and clicks on it do not count. Two equal rankings give that
    ranking.
    """
    orders = (list(map(int, old)), list(map(int, new)))
    shown: list[int] = []
    team: list[int] = []
    taken: set[int] = set()
    at = [0, 0]

    def choice(side: int) -> int | None:
        order = orders[side]
        while at[side] < len(order) and order[at[side]] in taken:
            at[side] += 1
        return order[at[side]] if at[side] < len(order) else None

    def place(document: int, side: int) -> None:
        taken.add(document)
        shown.append(document)
        team.append(side)

    while len(shown) < positions:
        wishes = choice(Team.OLD), choice(Team.NEW)
        if wishes[Team.OLD] is None and wishes[Team.NEW] is None:
            break
        if wishes[Team.OLD] == wishes[Team.NEW]:
            place(wishes[Team.OLD], Team.NEITHER)  # type: ignore[arg-type]
            continue
        leads = int(rng.integers(2))
        for side in (leads, 1 - leads):
            wish = choice(side)
            if wish is not None and len(shown) < positions:
                place(wish, side)
    return Draft(np.array(shown, np.int64), np.array(team, np.int8))


@dataclass(frozen=True)
class Gate:
    """Decides when a new model has won or lost often enough. Counts are of searches that one of the two won.

    Two bets: that the new model wins more than half of these searches, and that it wins less. At any number of
    interim analyses, a model that is not better wins the first bet with probability at most `level`, and a model that
    is not worse wins the second with probability at most `harm`. Stakes are constant, so only the counts matter, and
    counts of several clients can be added up.
    """

    level: float = 0.05  # maximum probability of adopting a model that is not better
    stake: float = 0.2  # stake of the bet that it wins more than half; nearly optimal if it wins 60 %
    harm: float = 0.05  # maximum probability of rejecting early a model that is not worse
    harm_stake: float = 0.4  # stake of the other bet; large, to reject broken models soon
    most: int = 400  # decided searches of one client after which the model is rejected

    def __post_init__(self) -> None:
        for name in ("level", "stake", "harm", "harm_stake"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1 (got {getattr(self, name)})")
        if self.most < 1:
            raise ValueError(f"most must be at least 1 (got {self.most})")

    def evidence(self, wins: float, losses: float) -> tuple[float, float]:
        """Evidence (for the new model, against it): logarithms of the wealth of each bet, starting at 1."""
        return (
            wins * math.log1p(self.stake) + losses * math.log1p(-self.stake),
            losses * math.log1p(self.harm_stake) + wins * math.log1p(-self.harm_stake),
        )

    def verdict(self, wins: float, losses: float, noise: float = 0.0) -> Ruling:
        """Decide by the counts so far; call it after every decided search, or after every round of a federation.

        `noise` is the standard deviation of the noise on each of two pooled counts, which then count at their
        worst.
        """
        slack = SURE_OF_NOISE * noise
        gained, _ = self.evidence(max(wins - slack, 0.0), losses + slack)
        _, against = self.evidence(wins + slack, max(losses - slack, 0.0))
        if against >= -math.log(self.harm):
            return "refuse"
        if gained >= -math.log(self.level):
            return "adopt"
        return "refuse" if wins + losses >= self.most else "undecided"

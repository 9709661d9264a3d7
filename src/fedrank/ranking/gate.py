"""The gate between a new model and the person: it keeps a worse one out, and lets a better one in.

Lists of both models are mixed (team draft), and clicks decide. The test may be looked at after every search, stops
early where the new model does harm, and needs no more than two counts.

Counts of several people add up, and noise could protect them. Nobody does that: `benchmarks/live_gate.py` finds that it
takes hundreds of people, and whoever adds up could say what he likes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ruling = Literal["adopt", "refuse", "undecided"]

SURE_OF_NOISE = 3.0  # standard deviations by which protected counts are taken at their worst


class Team(IntEnum):
    """Whose choice a position of a mixed list is."""

    NEITHER = -1
    OLD = 0
    NEW = 1


@dataclass(frozen=True, eq=False)
class Draft:
    """A list of two models' documents, and whose choice each position was."""

    shown: NDArray[np.int64]
    team: NDArray[np.int8]  # [positions] of Team; NEITHER where both chose the same

    def winner(self, clicked: NDArray[np.bool_]) -> int:
        """Whose documents got more clicks; NEITHER if nobody's did."""
        new, old = (int(np.sum(clicked & (self.team == team))) for team in (Team.NEW, Team.OLD))
        return Team.NEITHER if new == old else Team.NEW if new > old else Team.OLD


def team_draft(old: NDArray[np.integer], new: NDArray[np.integer], positions: int, rng: np.random.Generator) -> Draft:
    """Mix two rankings of the same documents: they choose in turn, and a coin says who goes first in each turn.

    Where both would choose the same document it is nobody's, and a click on it says nothing. Two equal rankings give
    that ranking.
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
    """When a new model has won often enough, or lost too often. Counts are of searches that one of the two won.

    Two bets on these: one that the new model wins more than half, one that it wins less. Whatever happens, and however
    often somebody looks, a model that is not better wins the first bet with probability `level` at most, and one that
    is not worse the second with probability `harm` at most. Stakes do not change, so that nothing but the counts
    matters, and counts of several clients may be added up.
    """

    level: float = 0.05  # largest probability that a model is adopted that is no better
    stake: float = 0.2  # of the bet that it wins more than half: nearly the best one where it wins 60 %
    harm: float = 0.05  # largest probability that a model is refused early that is no worse
    harm_stake: float = 0.4  # of the other bet: a broken model is to go soon
    most: int = 400  # decided searches of one client after which it is refused; more where counts are added up

    def __post_init__(self) -> None:
        for name in ("level", "stake", "harm", "harm_stake"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} decides nothing; use a number between 0 and 1")
        if self.most < 1:
            raise ValueError(f"most = {self.most} refuses everything unseen; use 1 or more")

    def evidence(self, wins: float, losses: float) -> tuple[float, float]:
        """(for the new model, against it), as logarithms of what a stake of 1 has become in each bet."""
        return (
            wins * math.log1p(self.stake) + losses * math.log1p(-self.stake),
            losses * math.log1p(self.harm_stake) + wins * math.log1p(-self.harm_stake),
        )

    def verdict(self, wins: float, losses: float, noise: float = 0.0) -> Ruling:
        """What the counts say so far; to be asked after every decided search, or after every round of a federation.

        `noise` is the standard deviation of what protects each of two pooled counts, which are then taken at their
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

"""The adoption gate: it rejects a new model that is worse and admits one that is better.

Lists of both models are interleaved (team draft), and clicks decide. The test may be checked after every search, stops
early if the new model does harm, and needs only two counts.

Counts of several users could be pooled and protected by noise, but fedrank does not do so: it takes hundreds of users,
and the party that adds up could report any result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Ruling = Literal["adopt", "refuse", "undecided"]


class Team(IntEnum):
    """Which model chose a position of an interleaved list."""

    NEITHER = -1
    OLD = 0
    NEW = 1


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

    def wish(side: int) -> int | None:
        return next((document for document in orders[side] if document not in shown), None)

    while len(shown) < positions:
        one, other = wish(Team.OLD), wish(Team.NEW)
        if one is None and other is None:
            break
        if one is not None and one == other:
            shown.append(one)
            team.append(Team.NEITHER)
            continue
        leads = int(rng.integers(2))
        for side in (leads, 1 - leads):
            document = wish(side)
            if document is not None and len(shown) < positions:
                shown.append(document)
                team.append(side)
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

    def verdict(self, wins: float, losses: float) -> Ruling:
        """Decide by the counts so far; call it after every decided search, or after every round of a federation."""
        gained, against = self.evidence(wins, losses)
        if against >= -math.log(self.harm):
            return "refuse"
        if gained >= -math.log(self.level):
            return "adopt"
        return "refuse" if wins + losses >= self.most else "undecided"

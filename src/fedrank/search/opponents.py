"""The permanent opponents of the order that is shown: the engine's order, and the same order without memory.

One list in ten mixes the order in use with the engine's. Where the memory of clicks moves results, one list in 25 mixes
it with the same order without memory instead; these cost more. If an opponent wins beyond doubt, the engine's order is
used, or earlier clicks no longer count. Decisions use only counts. They are computed from the database each time, so
they are correct after a crash or a deletion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedrank.ranking.gate import Draft, Gate, Team, team_draft
from fedrank.search.impressions import ImpressionRows, best_order
from fedrank.search.results import PAGE_SIZE
from fedrank.search.store import Store, marks
from fedrank.seeds import rng_for
from fedrank.types import Scores

GATE = Gate()
SHARE = 0.1  # of searches whose lists are mixed with the engine's order
MEMORY_SHARE = 0.04  # of searches in which memory moves results, mixed with the order without it
ENGINE, FORGETFUL = -1, -2  # opponents, as they are stored
GIVEN_UP = {ENGINE: "engine_after", FORGETFUL: "remember_after"}  # settings: the last search before an opponent won


class Opponents:
    """The comparisons in a store."""

    def __init__(self, rows: ImpressionRows) -> None:
        self.rows, self.store = rows, rows.store

    def choose(self, number: int, remembers: bool) -> int | None:
        """The opponent with which search `number` is mixed, if any; `remembers`: memory moves results of this search.

        The engine's order has no opponent.
        """
        if rng_for(self._chance, "opponent", number).random() >= (MEMORY_SHARE if remembers else SHARE):
            return None
        return FORGETFUL if remembers else None if self.rows.uses_engine else ENGINE

    def mixed(self, scores: Scores, others: Scores, number: int) -> Draft:
        """A list that mixes the orders by these scores, fairly."""
        rng = rng_for(self._chance, "draft", number)
        return team_draft(best_order(scores), best_order(others), PAGE_SIZE, rng)

    @property
    def _chance(self) -> int:
        return int(self.store.setting("chance"))

    def judge(self, closed: Sequence[int]) -> None:
        """Use what won beyond doubt from now on; `closed` are the impressions that were closed since the last call."""
        for (opponent,) in self.store.rows(
            f"SELECT DISTINCT opponent FROM impressions WHERE opponent < 0 AND id IN ({marks(closed)})", *closed
        ):
            if GATE.verdict(*self.score(opponent)) == "adopt":
                with self.store.writing():
                    last = self.store.count("SELECT max(id) FROM impressions")
                    self.store.set(**{GIVEN_UP[opponent]: last})

    def score(self, opponent: int) -> tuple[int, int]:
        """(wins, losses) of an opponent since it won for the last time."""
        since = self.store.setting(GIVEN_UP[opponent], 0)
        counts = winners(self.store, "opponent = ? AND id > ? AND state = 'closed'", opponent, since)
        return counts[Team.NEW], counts[Team.OLD]


def winners(store: Store, which: str, *values: Any) -> Counter[int]:
    """How often each team won an interleaved list, among those with a counted click; `which` is an SQL condition."""
    counts: Counter[int] = Counter()
    for teams, positions in store.rows(
        "SELECT teams, (SELECT group_concat(place) FROM clicks WHERE impression = id AND NOT bounced) FROM impressions "
        f"WHERE kind = 'interleaved' AND teams IS NOT NULL AND {which}",
        *values,
    ):
        team = np.frombuffer(teams, np.int8)
        clicked = np.isin(
            np.arange(len(team)), [int(position) for position in (positions or "").split(",") if position]
        )
        if (team[clicked] != Team.NEITHER).any():
            counts[Draft(np.arange(len(team)), team).winner(clicked)] += 1
    return counts

"""What a trial's searches say: an anytime-valid decision that no single browser can push in.

Searches count one after the other, in the order in which they came in. Each client counts a bounded number of decided
searches, and at no time more than a tenth of all. Adoption must hold without the clients who did most for the new
model, so that one who lies, however cleverly, gains nothing: without that one the bet is an ordinary one. Refusing
early needs no such care. A liar can waste a trial, and cannot harm people.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.gate import Gate, Ruling
from fedrank.seeds import rng_for

LONGEST = 16.0  # decided searches of a trial, in units of 1 / (2 wins - 1)^2: enough for nine in ten that win so often
SIMULATED = 1000  # trials from which it is told how long one takes
MAX_SHARE = 0.1  # of the searches counted so far that one client may have, so that early on nobody delays a stop
USUAL = (0.2, 0.45, 0.5, 0.55, 0.6, 0.7)  # shares of wins for which that is told


@dataclass(frozen=True)
class TrialRules:
    """The gate's settings, and what bounds the weight of one client."""

    gate: Gate = field(default_factory=Gate)
    per_client: int = 5  # decided searches that one client counts
    liars: int = 1  # clients without whom adoption must hold
    wait: float = 1800.0  # seconds for which clicks on a list are waited for

    def cap(self, counted: int) -> int:
        """Decided searches that one client may count when so many are counted in all."""
        return min(self.per_client, max(1, int(MAX_SHARE * counted)))

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise ValueError(f"per_client = {self.per_client}: nobody counts; use 1 or more")
        if self.liars < 0:
            raise ValueError(f"liars = {self.liars}: fewer than nobody; use 0 or more")
        if not 0 <= self.wait < 30 * 86_400:
            raise ValueError(f"wait = {self.wait} seconds; use 0 to 30 days")

    @classmethod
    def for_wins(cls, wins: float, level: float = 0.05, **more: float) -> TrialRules:
        """Rules that find a model soon that wins this share of decided searches.

        The best stake of a bet on it is 2 wins - 1: a smaller one waits too long, a larger one loses too much.
        """
        if not 0.5 < wins < 0.95:
            raise ValueError(f"wins = {wins}: a model worth having wins more than half; use 0.51 to 0.94, such as 0.6")
        stake = 2 * wins - 1
        gate = Gate(level=level, stake=round(stake, 6), most=math.ceil(LONGEST / stake**2 - 1e-6))
        return cls(gate, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class DecidedSearch:
    """A search that one of the two models won."""

    client: str
    won: bool  # by the new model


@dataclass(frozen=True)
class Judgement:
    """What the searches say, and how the evidence grew."""

    ruling: Ruling
    wins: int
    losses: int
    evidence: NDArray[np.float64]  # [counted + 1, 3]: for the new model, the same without liars, against it
    beyond: int  # decided searches beyond what one client may count
    after: int  # decided searches that came in after the ruling
    clients: int  # that counted
    capped: int  # clients that had more to say
    harmful: bool  # whether it was refused because it does harm

    @property
    def counted(self) -> int:
        return self.wins + self.losses

    @property
    def because(self) -> str:
        """Why, in a few words."""
        if self.ruling == "adopt":
            return f"it won {self.wins} of {self.counted} decided searches"
        if self.ruling == "undecided":
            return f"it won {self.wins} of {self.counted} decided searches, which is not enough yet"
        if self.harmful:
            return f"it does harm: it won {self.wins} of {self.counted} decided searches"
        return f"it won {self.wins} of {self.counted} decided searches: not enough to tell that it is better"


def judge(searches: Iterable[DecidedSearch], rules: TrialRules) -> Judgement:
    """Look after every decided search, in their order, and stop at the first ruling."""
    gate = rules.gate
    of_client: dict[str, tuple[int, int]] = {}
    alike: Counter[tuple[int, int]] = Counter()  # clients by (wins, losses)
    evidence = [(0.0, 0.0, 0.0)]
    wins = losses = beyond = after = 0
    capped: set[str] = set()
    ruling: Ruling = "undecided"
    for search in searches:
        if ruling != "undecided":
            after += 1
            continue
        before = of_client.get(search.client, (0, 0))
        if sum(before) >= rules.cap(wins + losses):
            beyond += 1
            capped.add(search.client)
            continue
        now = (before[0] + search.won, before[1] + (not search.won))
        of_client[search.client] = now
        alike[before] -= 1
        alike[now] += 1
        wins, losses = wins + search.won, losses + (not search.won)
        gained, against = gate.evidence(wins, losses)
        most_wins, their_losses = _favourable(alike, gate, rules.liars)
        without, _ = gate.evidence(wins - most_wins, losses - their_losses)
        evidence.append((gained, without, against))
        ruling = gate.verdict(wins, losses)
        if ruling == "adopt" and without < -math.log(gate.level):
            ruling = "refuse" if wins + losses >= gate.most else "undecided"
    harmful = evidence[-1][2] >= -math.log(gate.harm)
    table = np.array(evidence)
    return Judgement(ruling, wins, losses, table, beyond, after, len(of_client), len(capped), harmful)


def _favourable(alike: Counter[tuple[int, int]], gate: Gate, clients: int) -> tuple[int, int]:
    """(wins, losses) of the clients without whom the evidence for the new model is smallest."""
    wins = losses = 0
    there = sorted((gate.evidence(*counts)[0], counts, times) for counts, times in alike.items() if times > 0)
    for gained, counts, times in reversed(there):
        taken = min(clients, times)
        if taken <= 0 or gained <= 0:
            break
        wins, losses, clients = wins + taken * counts[0], losses + taken * counts[1], clients - taken
    return wins, losses


@dataclass(frozen=True)
class Needed:
    """How trials end with models that win so often."""

    wins: float
    adopted: float  # share of trials
    median: float  # decided searches until a ruling
    low: float  # of these 5 %
    high: float  # 95 %


def needed(rules: TrialRules, wins: Iterable[float] = USUAL, trials: int = SIMULATED, seed: int = 1) -> list[Needed]:
    """Simulate trials in which every client decides one search: how often, and how soon, is there a ruling?"""
    found = []
    for share in wins:
        rng = rng_for(seed, "trial", round(share * 10_000))
        won = np.cumsum(rng.random((trials, rules.gate.most)) < share, axis=1)
        total = np.arange(1, rules.gate.most + 1)
        gained, against = (
            won * for_win + (total - won) * for_loss
            for for_win, for_loss in zip(rules.gate.evidence(1, 0), rules.gate.evidence(0, 1), strict=True)
        )
        gained = gained - np.minimum(rules.liars, won) * rules.gate.evidence(1, 0)[0]
        adopts, harms = gained >= -math.log(rules.gate.level), against >= -math.log(rules.gate.harm)
        last = rules.gate.most
        first_adopt = np.where(adopts.any(axis=1), adopts.argmax(axis=1) + 1, last + 1)
        first_harm = np.where(harms.any(axis=1), harms.argmax(axis=1) + 1, last + 1)
        lengths = np.minimum(np.minimum(first_adopt, first_harm), last)
        low, median, high = np.quantile(lengths, (0.05, 0.5, 0.95))
        found.append(Needed(share, float(np.mean(first_adopt < first_harm)), median, low, high))
    return found

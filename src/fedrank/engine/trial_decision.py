"""The decision of a trial: anytime-valid, and robust against a single malicious browser.

Searches count one after the other, in the order in which they arrived. Each client counts one decided search by
default: searches of a client with fixed tastes depend on each other (`benchmarks/trial_level.py` has the rates of false
adoptions). A client never counts more than a tenth of all.

Adoption must hold without the clients that contributed most to the new model: at least one, and 5 % of all. Malicious
clients up to that number gain nothing: without them, the bet is an ordinary one. Where the log names clients from
before the trial, only those count, so ids that were invented for the trial do not. Early refusal needs no such
protection: malicious clients can waste a trial but not harm users.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.ranking.gate import Gate, Ruling
from fedrank.seeds import rng_for

LONGEST = 16.0  # maximum number of decided searches in units of 1 / (2 wins - 1)^2: enough for nine in ten such models
SIMULATED = 1000  # simulated trials for the expected duration
MAX_SHARE = 0.1  # maximum share of one client among the searches counted so far, so early on no client delays a stop
USUAL = (0.2, 0.45, 0.5, 0.55, 0.6, 0.7)  # shares of wins for which the duration is shown


@dataclass(frozen=True)
class TrialRules:
    """The settings of the decision, and the limits of one client's weight."""

    gate: Gate = field(default_factory=Gate)
    per_client: int = 1  # maximum number of decided searches per client; more are valid if they are independent
    liars: int = 1  # minimum number of clients without whom adoption must hold; 0: all clients are trusted
    wait: float = 1800.0  # seconds to wait for clicks on a list
    liar_share: float = 0.05  # the same as a share of the clients that counted
    window: float = 604_800.0  # seconds: searches and clicks may be read in any order within it

    def cap(self, counted: int) -> int:
        """Maximum number of decided searches of one client after this many in total."""
        return min(self.per_client, max(1, int(MAX_SHARE * counted)))

    def assumed_liars(self, clients: int) -> int:
        """Number of clients without whom adoption must hold, after this many have counted.

        >>> [TrialRules().assumed_liars(clients) for clients in (10, 20, 200)], TrialRules(liars=0).assumed_liars(200)
        ([1, 1, 10], 0)
        """
        return max(self.liars, math.ceil(self.liar_share * clients - 1e-9)) if self.liars else 0

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise ValueError(f"per_client must be at least 1 (got {self.per_client})")
        if self.liars < 0:
            raise ValueError(f"liars must be at least 0 (got {self.liars})")
        if not 0 <= self.liar_share < 0.5:
            raise ValueError(f"liar_share must be at least 0 and below 0.5 (got {self.liar_share})")
        if not 0 <= self.wait < 30 * 86_400:
            raise ValueError(f"wait must be between 0 seconds and 30 days (got {self.wait} seconds)")
        if not self.wait <= self.window < 366 * 86_400:
            raise ValueError(f"window must be between wait and a year (got {self.window} seconds)")

    @classmethod
    def for_wins(cls, wins: float, level: float = 0.05, **more: float) -> TrialRules:
        """Rules that quickly detect a model with this share of wins among decided searches.

        The optimal stake of a bet on it is 2 wins - 1: a smaller one takes longer, a larger one loses more. The share
        of wins is the one that remains without the clients that may be malicious.
        """
        if not 0.5 < wins < 0.95:
            raise ValueError(f"wins must be between 0.51 and 0.94, such as 0.6 (got {wins})")
        rules = cls(**more)  # type: ignore[arg-type]
        malicious = rules.liar_share if rules.liars else 0.0
        remaining = (wins - malicious) / (1 - malicious)
        if remaining < 0.51:
            raise ValueError(
                f"wins must be at least {0.51 + 0.49 * malicious:.2f} where {malicious:.0%} of the clients may be "
                f"malicious (got {wins}); use a larger share, or trust all clients with liars = 0"
            )
        stake = 2 * remaining - 1
        gate = Gate(level=level, stake=round(stake, 6), most=math.ceil(LONGEST / stake**2 - 1e-6))
        return replace(rules, gate=gate)


@dataclass(frozen=True)
class DecidedSearch:
    """A search that one of the two models won."""

    client: str
    won: bool  # by the new model


@dataclass(frozen=True)
class Judgement:
    """The result of the searches, and the evidence over time."""

    ruling: Ruling
    wins: int
    losses: int
    evidence: NDArray[np.float64]  # [counted + 1, 3]: for the new model, the same without malicious clients, against it
    beyond: int  # decided searches beyond the limit of one client
    after: int  # decided searches after the decision
    clients: int  # number of clients that counted
    capped: int  # clients that reached the limit
    harmful: bool  # whether it was refused as harmful
    survives: int = 0  # adoption holds without any group of this many clients
    unknown: int = 0  # decided searches of clients that were not seen before the trial
    provisional: bool = False  # whether it would be adopted if no more files of the same days were read

    @property
    def counted(self) -> int:
        return self.wins + self.losses

    @property
    def because(self) -> str:
        """The reason in a few words."""
        if self.ruling == "adopt":
            lost = "1 client" if self.survives == 1 else f"{self.survives:,} clients"
            return (
                f"it won {self.wins} of {self.counted} decided searches, and that holds without any {lost} of "
                f"{self.clients:,}"
            )
        if self.provisional:
            return (
                f"it won {self.wins} of {self.counted} decided searches, which would be enough, but files of these "
                "days may still be read"
            )
        if self.ruling == "undecided":
            return f"it won {self.wins} of {self.counted} decided searches, which is not enough for a decision yet"
        if self.harmful:
            return f"it is worse: it won {self.wins} of {self.counted} decided searches"
        return f"it won {self.wins} of {self.counted} decided searches, so it is not significantly better"


def judge(searches: Iterable[DecidedSearch], rules: TrialRules, earlier: Collection[str] | None = None) -> Judgement:
    """Check after every decided search, in order, and stop at the first decision.

    Only clients in `earlier`, which were seen before the trial, count; None: that is not known, and all count.
    """
    gate = rules.gate
    of_client: dict[str, tuple[int, int]] = {}
    alike: Counter[tuple[int, int]] = Counter()  # clients by (wins, losses)
    evidence = [(0.0, 0.0, 0.0)]
    wins = losses = beyond = after = unknown = 0
    capped: set[str] = set()
    ruling: Ruling = "undecided"
    for search in searches:
        if ruling != "undecided":
            after += 1
            continue
        if earlier is not None and search.client not in earlier:
            unknown += 1
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
        most_wins, their_losses = _favourable(alike, gate, rules.assumed_liars(len(of_client)))
        without, _ = gate.evidence(wins - most_wins, losses - their_losses)
        evidence.append((gained, without, against))
        ruling = gate.verdict(wins, losses)
        if ruling == "adopt" and without < -math.log(gate.level):
            ruling = "refuse" if wins + losses >= gate.most else "undecided"
    harmful = evidence[-1][2] >= -math.log(gate.harm)
    table = np.array(evidence)
    survives = _survives(alike, gate, (wins, losses), len(of_client)) if ruling == "adopt" else 0
    clients = len(of_client)
    return Judgement(ruling, wins, losses, table, beyond, after, clients, len(capped), harmful, survives, unknown)


def _survives(alike: Counter[tuple[int, int]], gate: Gate, counts: tuple[int, int], clients: int) -> int:
    """The largest number of clients, whichever they are, without whom the evidence is still enough."""
    low, high = 0, clients  # enough, and too many
    while high - low > 1:
        middle = (low + high) // 2
        wins, losses = _favourable(alike, gate, middle)
        enough = gate.evidence(counts[0] - wins, counts[1] - losses)[0] >= -math.log(gate.level)
        low, high = (middle, high) if enough else (low, middle)
    return low


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
    """The outcome of trials with models with a given share of wins."""

    wins: float
    adopted: float  # share of trials
    median: float  # decided searches until a decision
    low: float  # 5 % quantile
    high: float  # 95 % quantile


def needed(rules: TrialRules, wins: Iterable[float] = USUAL, trials: int = SIMULATED, seed: int = 1) -> list[Needed]:
    """Simulate trials in which every client decides one search: how often, and how soon, do they end?"""
    found = []
    for share in wins:
        rng = rng_for(seed, "trial", round(share * 10_000))
        won = np.cumsum(rng.random((trials, rules.gate.most)) < share, axis=1)
        total = np.arange(1, rules.gate.most + 1)
        gained, against = (
            won * for_win + (total - won) * for_loss
            for for_win, for_loss in zip(rules.gate.evidence(1, 0), rules.gate.evidence(0, 1), strict=True)
        )
        liars = np.array([rules.assumed_liars(int(count)) for count in total])
        gained = gained - np.minimum(liars, won) * rules.gate.evidence(1, 0)[0]
        adopts, harms = gained >= -math.log(rules.gate.level), against >= -math.log(rules.gate.harm)
        last = rules.gate.most
        first_adopt = np.where(adopts.any(axis=1), adopts.argmax(axis=1) + 1, last + 1)
        first_harm = np.where(harms.any(axis=1), harms.argmax(axis=1) + 1, last + 1)
        lengths = np.minimum(np.minimum(first_adopt, first_harm), last)
        low, median, high = np.quantile(lengths, (0.05, 0.5, 0.95))
        found.append(Needed(share, float(np.mean(first_adopt < first_harm)), median, low, high))
    return found

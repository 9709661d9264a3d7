"""Spending: charge the rounds of a run to the ledger before they begin, and stop at the end of the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.guarantees import Guarantee, up
from fedrank.privacy.ledger import KeptRound, Ledger
from fedrank.privacy.population import Account, BudgetSpentError, LedgerTerms, Population
from fedrank.types import Change

MAX_AHEAD = 64  # rounds reserved at once: one disk sync for all, and a crash wastes the charges of at most this many


class Spending:
    """The journal of a round (see `fedrank.federated.round`): a ledger with a limit for every guarantee."""

    def __init__(
        self,
        ledger: Ledger,
        promises: Sequence[Guarantee],
        rounds: int,
        delta: float,
        budget: float | None,
        dealt: bool = False,
    ):
        # With a dealt schedule, a reserved round that a crash loses is over, so rounds are reserved one at a time.
        self.ledger, self._last, self._ahead, self._most_ahead = ledger, rounds, 1, 1 if dealt else MAX_AHEAD
        self._dealt = dealt
        self._counts = ledger.participations()
        self._rounds = ledger.rounds()
        # Rounds lost in a crash were charged, too, so a client may pay more often than there are rounds.
        most = rounds + max(self._rounds, int(self._counts.max(initial=0)))
        self._limits: list[tuple[Guarantee, int]] = []
        for guarantee in promises:
            if budget is None or guarantee.event is None:
                continue
            self._limits.append((guarantee, guarantee.affordable(delta, budget, most)))
            if self._limits[-1][1] == 0:
                cost = up(guarantee.epsilon(1, delta))
                raise ValueError(
                    f"the privacy budget ε = {budget:g} is less than the cost of one round, ε = {cost} "
                    f"against the {guarantee.against}; use more noise, or a larger budget"
                )

    def kept(self, round: int) -> KeptRound | None:
        return self.ledger.kept(round)

    def keep(self, round: int, change: Change) -> None:
        self.ledger.keep(round, change)

    def cohort(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        reserved = self.ledger.reserved(round)
        if reserved is None and self._dealt and self.ledger.times(round):
            if round == 1 and all(self.ledger.times(each) for each in range(1, self._last + 1)):
                raise ValueError(
                    "all clients have already taken part in an earlier run with this ledger, and a dealt schedule "
                    "gives each one turn; use another --name, and for the same people a population, whose costs add up"
                )
            return np.empty(0, np.int64)
        if reserved is None:
            reserved = self._reserve(round, draw)
        self.ledger.begun(round)  # clients are contacted from here on, so the reservation can no longer be returned
        return reserved

    def _reserve(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        lost = self._rounds - (round - 1)
        block: dict[int, NDArray[np.int64]] = {}
        for each in range(round, min(round + self._ahead, self._last + 1)):
            cohort = draw(each)
            self._check_first_turn(each, cohort)
            if not self._can_pay(cohort, lost):
                break
            block[each] = cohort
            self._counts[cohort] += 1
            self._rounds += 1
        if not block and round == 1:
            raise ValueError(
                "the privacy budget was spent on rounds that a crash lost before the first one was saved, so no "
                "model exists; use a larger budget, or other clients"
            )
        if not block:
            raise BudgetSpentError
        self.ledger.reserve(block)
        self._ahead = min(2 * self._ahead, self._most_ahead)
        return block[round]

    def _check_first_turn(self, round: int, cohort: NDArray[np.int64]) -> None:
        if self._dealt and (again := int(np.count_nonzero(self._counts[cohort]))):
            raise ValueError(
                f"{again:,} participants of round {round} have already taken part in this run, and a dealt schedule "
                "gives each one turn; restore the files of the run, or start another run, whose cost is added"
            )

    def _can_pay(self, cohort: NDArray[np.int64], lost: int) -> bool:
        most = int(self._counts[cohort].max(initial=0)) + 1
        return all(guarantee.times(most, self._rounds + 1, lost) <= limit for guarantee, limit in self._limits)


class SharedSpending(Spending):
    """The same for people who take part in several runs: their limit is for all runs together."""

    def __init__(
        self, ledger: Ledger, terms: LedgerTerms, rounds: int, population: Population, own: Path, dealt: bool = False
    ):
        super().__init__(ledger, terms.promises, rounds, terms.delta, None, dealt)
        self._terms, self._population, self._own = terms, population, own

    def check(self, rounds: Mapping[int, NDArray[np.int64]]) -> None:
        """Raise ValueError if these people cannot pay for all of these rounds, before any client is contacted."""
        if rounds:
            with self._population.deciding():
                refusal = self._refusal(self._population.accounts(self._own), rounds, min(rounds))
            if refusal is not None:
                raise ValueError(
                    f"{refusal}; no client was contacted, and nothing is charged; request "
                    "fewer rounds, or use a method that contacts no clients, such as fed-remove"
                )

    def _reserve(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        block = {each: draw(each) for each in range(round, min(round + self._ahead, self._last + 1))}
        for each, cohort in block.items():
            self._check_first_turn(each, cohort)
        with self._population.deciding():
            others = self._population.accounts(self._own)
            while (refusal := self._refusal(others, block, round)) is not None and len(block) > 1:
                block = dict(list(block.items())[: len(block) // 2])
            if refusal is not None and round == 1:
                raise ValueError(f"{refusal}; no round is run. Use other people, or a mechanism that costs less")
            if refusal is not None:
                raise BudgetSpentError
            self.ledger.reserve(block)
        for cohort in block.values():
            self._counts[cohort] += 1
        self._rounds += len(block)
        self._ahead = min(2 * self._ahead, self._most_ahead)
        return block[round]

    def _refusal(self, others: list[Account], block: Mapping[int, NDArray[np.int64]], round: int) -> str | None:
        """Why these rounds, and all before them, must not be charged; None where they may be."""
        counts = self._counts.copy()
        for cohort in block.values():
            counts[cohort] += 1
        account = Account(self._terms, counts, self._rounds + len(block), self._rounds - (round - 1))
        return self._population.refused(account, others)

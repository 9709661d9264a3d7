"""A site's privacy ledger over all runs: what its people have spent, and whether another charge is allowed.

The people of a site remain the same when runs and data change, so their charges accumulate in one population (see
`fedrank.privacy.population`): events are composed first, then converted to ε. A message is written to disk before its
charge, and the charge before the message is sent: after a crash in between, the stored message is charged once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.guarantees import Guarantee
from fedrank.privacy.population import Account, LedgerTerms, Population, open_ledger
from fedrank.wire import Refused

UNLIMITED = 1e6  # ε of a site without a limit; its charges are recorded anyway


def check_promised(folder: Path, delta: float, limit: float) -> None:
    """Refuse a policy that weakens an earlier promise to the people of this site."""
    known = Population.find(folder)
    if known is None:
        return
    if limit > known.limit:
        now = "no limit" if limit == UNLIMITED else f"{limit:g}"
        raise Refused(
            f"policy.largest_epsilon: this site promised its people a limit of ε = {known.limit:g}, and site.toml now "
            f"has {now}; use {known.limit:g} or less"
        )
    if delta != known.delta:
        raise Refused(
            f"policy.delta: earlier charges at this site were computed with δ = {known.delta:g}, and site.toml now has "
            f"{delta:g}, so they cannot be added; use {known.delta:g}"
        )


class Charging:
    """The charges of one run to the people of a site."""

    def __init__(self, folder: Path, run: str, people: int, promises: Sequence[Guarantee], delta: float, limit: float):
        check_promised(Path(folder), delta, limit)
        self.population = Population.open(folder, people, delta, limit)
        self.terms = LedgerTerms(people, delta, tuple(promises), run)
        self.place = self.population.ledger(run)
        self._held = ExitStack()
        with self.population.deciding():
            self.ledger = self._held.enter_context(open_ledger(self.place, self.terms))
        self._others: tuple[Any, ...] = ()
        self._accounts: list[Account] = []
        self._checked = 0  # number of charges of this run that respect the limit while no other run charges

    def close(self) -> None:
        self._held.close()

    def charged(self, round: int) -> bool:
        """Whether a round has been charged."""
        return self.ledger.times(round) > 0

    def charge(self, round: int, rows: NDArray[np.int64], first: Callable[[], None] = lambda: None) -> None:
        """Charge a round once more; raise Refused if that exceeds the limit.

        `first` writes the message to disk before the charge. A charged round therefore always has a message to send,
        and a message found without a charge is charged before it is sent.
        """
        with self.population.deciding():
            if (refusal := self._refusal()) is not None:
                raise Refused(f"{refusal}; this site no longer participates")
            first()
            self.ledger.reserve({round: rows})
            self.ledger.begun(round)

    def released(self, key: str) -> bool:
        """Whether a release besides rounds has been charged."""
        return key in self.population.released(self.terms.spec)

    def release(
        self, key: str, promises: Sequence[Guarantee], times: int = 1, first: Callable[[], None] = lambda: None
    ) -> None:
        """Charge a release besides rounds, once under its key; raise Refused if that exceeds the limit."""
        refusal = self.population.release(self.terms.spec, key, promises, times, first)
        if refusal is not None:
            raise Refused(f"{refusal}; this site does not release it")

    def spent(self) -> dict[str, float]:
        """Total ε spent by all runs so far, against each observer."""
        return self.population.spent()

    def _refusal(self) -> str | None:
        """Return why another charge is not allowed.

        Accounting takes longer than a round. The limit is therefore checked several rounds ahead, and again when those
        rounds are used up or another run has added charges.
        """
        counts = self.ledger.participations()
        most = self.ledger.rounds() + 1
        others = self.population.ledger_sizes(but=self.place)
        if others != self._others:
            self._others, self._checked = others, 0
            self._accounts = self.population.accounts(self.place)
        if most <= self._checked:
            return None
        ahead = max(1, most // 2)
        while True:
            account = Account(self.terms, counts + ahead, self.ledger.rounds() + ahead, 0)
            refusal = self.population.refused(account, self._accounts)
            if refusal is None:
                self._checked = self.ledger.rounds() + ahead
                return None
            if ahead == 1:
                return refusal
            ahead //= 2

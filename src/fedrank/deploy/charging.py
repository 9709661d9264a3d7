"""A site's ledger over all runs: what its people have paid, and whether they may pay once more.

The people of a site stay the same when runs and data change, so their charges add up in one population (see
`fedrank.privacy.population`): events are composed, then priced. A charge is on the disk before anything leaves, and
what leaves is on the disk before the charge: whoever is killed in between charges what lies there, once.
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

UNLIMITED = 1e6  # ε of a site that sets no limit: charges are kept all the same


def _check_promised(folder: Path, delta: float, limit: float) -> None:
    """Refuse a policy that takes back what people were promised before."""
    known = Population.find(folder)
    if known is None:
        return
    if limit > known.limit:
        now = "no limit" if limit == UNLIMITED else f"{limit:g}"
        raise Refused(
            f"policy.largest_epsilon: people here were promised that nobody spends more than ε = {known.limit:g}, and "
            f"site.toml now has {now}; use {known.limit:g} or less"
        )
    if delta != known.delta:
        raise Refused(
            f"policy.delta: what people here have spent was counted at δ = {known.delta:g}, and site.toml now has "
            f"{delta:g}, at which it could not be added up; use {known.delta:g}"
        )


class Charging:
    """The charges of one run, on the people of a site."""

    def __init__(self, folder: Path, run: str, people: int, promises: Sequence[Guarantee], delta: float, limit: float):
        _check_promised(Path(folder), delta, limit)
        self.population = Population.open(folder, people, delta, limit)
        self.terms = LedgerTerms(people, delta, tuple(promises), run)
        self.place = self.population.ledger(run)
        self._held = ExitStack()
        with self.population.deciding():
            self.ledger = self._held.enter_context(open_ledger(self.place, self.terms))
        self._others: tuple[Any, ...] = ()
        self._accounts: list[Account] = []
        self._checked = 0  # charges of this run, up to which the limit holds while others charge nothing

    def close(self) -> None:
        self._held.close()

    def charged(self, round: int) -> bool:
        """Whether people have paid for a round."""
        return self.ledger.times(round) > 0

    def charge(self, round: int, rows: NDArray[np.int64], first: Callable[[], None] = lambda: None) -> None:
        """Charge a round once more; beyond the limit it is refused.

        What `first` writes is on the disk before. So of a round that is charged something is there to be sent, and
        whoever finds it, and no charge, charges it before it leaves.
        """
        with self.population.deciding():
            if (refusal := self._refusal()) is not None:
                raise Refused(f"{refusal}; this site takes no further part")
            first()
            self.ledger.reserve({round: rows})
            self.ledger.begun(round)

    def spent(self) -> dict[str, float]:
        """ε that all runs have spent by now, against each observer."""
        return self.population.spent()

    def _refusal(self) -> str | None:
        """Why people must not pay once more.

        Pricing takes longer than a round, so that the limit is looked for some rounds ahead, and looked at again when
        that is reached or another run charged anybody.
        """
        counts = self.ledger.participations()
        most = self.ledger.rounds() + 1
        others = self.population.ledger_sizes(but=self.place)
        if others != self._others:
            self._others, self._checked = others, 0
            self._accounts = self.population.accounts(but=self.place)
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

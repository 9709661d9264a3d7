"""Charges a named population for the updates that unlearning requests, in advance, or refuses the request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.experiments.runner.folder import Paid
from fedrank.experiments.runner.privacy import Price, setting_of
from fedrank.experiments.runner.recorded_charges import below, check_recorded
from fedrank.experiments.spec.experiment import to_toml
from fedrank.experiments.spec.federated import FederatedExperiment
from fedrank.privacy.ledger import KeptRound, Ledger
from fedrank.privacy.population import (
    FOLDER,
    LEDGER,
    PEOPLE,
    Account,
    BudgetSpentError,
    LedgerTerms,
    Population,
    delete_ledger,
    ledgers_below,
    open_ledger,
    spent_together,
)
from fedrank.privacy.spending import SharedSpending
from fedrank.types import Change, SimulatedClients


def population_of(spec: FederatedExperiment, trained: Path) -> tuple[Population, Path]:
    """The population of a trained run, and the folder that contains its ledgers."""
    home = next((above for above in trained.parents if (above / FOLDER / spec.population / PEOPLE).exists()), None)
    if home is None:
        raise ValueError(
            f"its clients are population {spec.population!r}, but no folder above {trained} contains {FOLDER}/"
            f"{spec.population}, so their spent privacy budget is unknown; restore that folder next to the runs"
        )
    privacy = spec.privacy
    assert privacy.budget is not None
    folder = home / FOLDER / spec.population
    return Population.open(folder, spec.clients.count, privacy.delta, privacy.budget), home


class UnlearningCharges:
    """The ledger of one unlearning request, and of the runs that it is based on."""

    def __init__(self, ledger: Ledger, terms: LedgerTerms, population: Population, folders: Sequence[Path]) -> None:
        self.population = population
        self._ledger, self._terms, self._folders = ledger, terms, folders
        self._rounds = 0  # rounds

    @classmethod
    @contextmanager
    def open(
        cls,
        spec: FederatedExperiment,
        staying: SimulatedClients,
        parents: Sequence[Path],
        folder: Path,
        request: dict[str, Any],
    ) -> Iterator[UnlearningCharges]:
        """`parents`: the run to unlearn from, and so on to the trained one; `folder`: the new run.

        `request` identifies it: a repeated request continues with its stored rounds without another charge.
        """
        assert spec.mechanism is not None
        population, home = population_of(spec, parents[-1])
        setting = replace(setting_of(spec, staying.data.features.shape[1]), clients=len(staying))
        known = hashlib.sha256((to_toml(spec) + json.dumps(request, sort_keys=True)).encode()).hexdigest()
        terms = LedgerTerms(population.people, population.delta, tuple(spec.mechanism.guarantees(setting)), known)
        folders = [population.folder / below(home, path) for path in (folder.resolve(), *parents)]
        ledger_path = folders[0] / LEDGER
        new = not ledger_path.exists()
        try:
            with ExitStack() as opened:
                with population.deciding():
                    check_recorded(home, population.name)
                    ledger = opened.enter_context(open_ledger(ledger_path, terms, hashed=True))
                try:
                    charges = cls(ledger, terms, population, folders)
                    yield charges
                    ledger.forget(charges._rounds)
                except (Exception, KeyboardInterrupt):
                    ledger.give_back()
                    raise
        except BudgetSpentError:
            raise ValueError(
                f"population {population.name!r} was charged by other runs in the meantime, so its limit no longer "
                "allows the remaining rounds; no run was written. Completed rounds stay charged, and are stored for "
                "another attempt"
            ) from None
        finally:
            if new:
                _remove_unused(ledger_path, population)

    def journal_for(self, staying: SimulatedClients) -> Callable[[Sequence[int]], _Journal]:
        """The journal for a `Case`; `staying` are the remaining clients, whose ids are rows of the population."""

        def journal(rounds: Sequence[int]) -> _Journal:
            self._rounds = len(rounds)
            spending = SharedSpending(
                self._ledger, self._terms, len(rounds), self.population, self._folders[0] / LEDGER
            )
            return _Journal(spending, rounds, staying.ids)

        return journal

    @property
    def rounds(self) -> int:
        """Charged rounds, including those of earlier runs."""
        return sum(account.rounds for account in self._accounts())

    @property
    def participations(self) -> int:
        """The participations of the client that participated most often."""
        return int(np.max(sum(account.participations for account in self._accounts())))

    def paid(self) -> tuple[Paid, ...]:
        """The composed cost of this request and earlier runs."""
        accounts, delta = self._accounts(), self._terms.delta
        # The cost of the training is unknown if its ledger was forgotten.
        spent = spent_together(accounts, delta) if ledgers_below(self._folders[-1]) else {}
        rows = []
        for guarantee in self._terms.promises:
            same = [(each, one) for each in accounts for one in each.terms.promises if one.against == guarantee.against]
            times = int(np.max(sum(each.times(one) for each, one in same)))
            total = spent.get(guarantee.against, np.inf)
            rows.append(Price(guarantee, times, guarantee.epsilon(1, delta), total, delta).paid)
        return tuple(rows)

    def _accounts(self) -> list[Account]:
        found = [Account.read(ledger) for ledger_path in self._folders for ledger in ledgers_below(ledger_path)]
        return [account for account in found if account is not None]


class _Journal:
    """Rounds of the remaining clients in the ledger of the population: numbered from 1, with clients by row."""

    def __init__(self, spending: SharedSpending, rounds: Sequence[int], ids: NDArray[np.int64]) -> None:
        self._spending, self._rounds, self._ids = spending, rounds, ids
        self._number = {round: number for number, round in enumerate(rounds, 1)}
        self._checked = False

    def kept(self, round: int) -> KeptRound | None:
        kept = self._spending.kept(self._number[round])
        return None if kept is None else kept._replace(cohort=np.searchsorted(self._ids, kept.cohort))

    def cohort(self, round: int, draw: Callable[[int], NDArray[np.int64]]) -> NDArray[np.int64]:
        def people(number: int) -> NDArray[np.int64]:
            return self._ids[draw(self._rounds[number - 1])]

        number = self._number[round]
        if not self._checked:  # checks all rounds in advance: a client must be able to pay for the last one
            self._spending.check({each: people(each) for each in range(number, len(self._rounds) + 1)})
            self._checked = True
        return np.searchsorted(self._ids, self._spending.cohort(number, people))

    def keep(self, round: int, change: Change) -> None:
        self._spending.keep(self._number[round], change)


def _remove_unused(ledger: Path, population: Population) -> None:
    """Delete a ledger without charges, and the folders that were created for it."""
    with population.deciding():
        account = Account.read(ledger)
        if account is None or account.rounds:
            return
        delete_ledger(ledger)
        for folder in ledger.parents:
            if folder == population.folder or any(folder.iterdir()):
                break
            folder.rmdir()

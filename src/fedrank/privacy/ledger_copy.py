"""A copy of a ledger that comes back from a backup: no ledger ever says less than before.

Of two that differ, the one that says more stays; where each says something that the other does not, both count.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath

from fedrank.files import private_parents, sync, write_atomic
from fedrank.privacy.ledger import CHANGED, PARTICIPANTS, Charges, LedgerError
from fedrank.privacy.population import LEDGER, TERMS, LedgerTerms

_NAME = re.compile(rf"{LEDGER}(-[0-9]{{1,6}})?")


@dataclass(frozen=True)
class LedgerCopy:
    """The folder of a copy."""

    path: Path

    @staticmethod
    def holds(file: PurePath) -> bool:
        """Whether a file is one of those that a ledger consists of, by its name and that of its folder."""
        return file.name in (PARTICIPANTS, CHANGED, TERMS) and _NAME.fullmatch(file.parent.name) is not None

    def is_whole(self) -> bool:
        """Whether it says what was charged, and what that costs."""
        return _is_whole(self.path)

    def bring_back(self, target: Path) -> str:
        """Let a ledger say at least what this copy says; what was done, or "" where nothing had to be.

        The copy may be moved to where the ledger is.
        """
        if not target.exists():
            self._put(target)
            return "was missing, and came back"
        log, copied = target / PARTICIPANTS, self.path / PARTICIPANTS
        done = ""
        if not _has_terms(target):
            write_atomic(target / TERMS, (self.path / TERMS).read_bytes(), private=True)
            done = "had lost what a charge costs, which came back"
        if not _is_whole(target):
            os.replace(target, _free(target.with_name(f"damaged-{target.name}")))
            self._put(target)
            return "was damaged; its copy came back, and what was charged since is only known to the coordinator"
        mine = log.read_bytes() if log.exists() else b""
        its = copied.read_bytes() if copied.exists() else b""
        same = _same_price(self.path, target)
        if same and mine.startswith(its):
            return done
        if same and its.startswith(mine):
            os.replace(copied, log)
            sync(target)
            return "said less than its copy, which came back"
        for aside in target.parent.glob(f"{LEDGER}-*"):
            there = aside / PARTICIPANTS
            if there.exists() and there.read_bytes() == its and _same_price(self.path, aside):
                return done  # by a restore before
        aside = _free(target.with_name(LEDGER))
        (self.path / CHANGED).unlink(missing_ok=True)
        self._put(aside)
        return f"and its copy say different things; both count from now on, the copy as {aside.name}"

    def _put(self, target: Path) -> None:
        """A whole ledger at once: charges without their price would count for nothing."""
        private_parents(target)
        os.replace(self.path, target)
        sync(target.parent)


def _is_whole(ledger: Path) -> bool:
    try:
        terms = LedgerTerms.read(ledger)
        if terms is None:
            return False
        Charges.read(ledger, terms.people)
    except (LedgerError, MemoryError, OverflowError, ValueError):
        return False
    return True


def _has_terms(ledger: Path) -> bool:
    try:
        return LedgerTerms.read(ledger) is not None
    except LedgerError:
        return False


def _same_price(one: Path, other: Path) -> bool:
    first, second = LedgerTerms.read(one), LedgerTerms.read(other)
    return first is not None and second is not None and first.costs_like(second)


def _free(path: Path) -> Path:
    """The first name that nothing has, with a number behind."""
    number = 1
    while (found := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found

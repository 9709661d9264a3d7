"""Restore a ledger from a backup: a restored ledger never records less than before.

Of two ledgers that differ, the one that records more stays; where each has records that the other lacks, both count.
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
    """A copy of a ledger in a folder."""

    path: Path

    @staticmethod
    def holds(file: PurePath) -> bool:
        """Whether a file is part of a ledger, by its name and that of its folder."""
        return file.name in (PARTICIPANTS, CHANGED, TERMS) and _NAME.fullmatch(file.parent.name) is not None

    def is_whole(self) -> bool:
        """Whether it holds both what was charged and what each charge costs."""
        return _is_whole(self.path)

    def restore_into(self, target: Path) -> str:
        """Make a ledger record at least what this copy records; returns what was done, or "" for nothing.

        The copy may be moved to the place of the ledger.
        """
        if not target.exists():
            self._put(target)
            return "was missing and was restored"
        log, copied = target / PARTICIPANTS, self.path / PARTICIPANTS
        done = ""
        if not _has_terms(target):
            write_atomic(target / TERMS, (self.path / TERMS).read_bytes(), private=True)
            done = "had lost the cost of its charges, which was restored"
        if not _is_whole(target):
            os.replace(target, _free(target.with_name(f"damaged-{target.name}")))
            self._put(target)
            return "was damaged; its copy was restored, and charges made since are known only to the coordinator"
        current = log.read_bytes() if log.exists() else b""
        copy = copied.read_bytes() if copied.exists() else b""
        same = _same_price(self.path, target)
        if same and current.startswith(copy):
            return done
        if same and copy.startswith(current):
            os.replace(copied, log)
            sync(target)
            return "recorded less than its copy, which was restored"
        for aside in target.parent.glob(f"{LEDGER}-*"):
            restored = aside / PARTICIPANTS
            if restored.exists() and restored.read_bytes() == copy and _same_price(self.path, aside):
                return done  # by an earlier restore
        aside = _free(target.with_name(LEDGER))
        (self.path / CHANGED).unlink(missing_ok=True)
        self._put(aside)
        return f"and its copy differ; both count from now on, the copy as {aside.name}"

    def _put(self, target: Path) -> None:
        """Move a complete ledger at once: charges without their cost would not be counted."""
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
    """The first unused path with a numeric suffix."""
    number = 1
    while (found := path.with_name(f"{path.name}-{number}")).exists():
        number += 1
    return found

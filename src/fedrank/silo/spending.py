"""Spending of a silo: what its answers have told about its documents, and the refusal of the one that tells too much.

The unit is one occurrence of one term in one field of one document; documents are disjoint, so the largest cost over
documents counts. Noise that is added when a document is sketched is paid then, once for all answers to everybody; a
changed document draws new noise and pays again, if it keeps its id: only by that are two sketchings known to be of one
document, and only within one ledger. Noise that is added to answers is paid per answered term, by the pair
of owner and querier and by the owner towards all queriers together, who may put their answers into one pot.

The ledger is that of a population (`fedrank.privacy.population`) whose people are documents, known by their ids. Its
folder, beside the sketch, holds `limits.json` and the charges; a charge is on the disk before anything is answered.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

from fedrank.files import opened, parse_json, private_folder, write_atomic
from fedrank.privacy.accounting import GaussianEvent
from fedrank.privacy.guarantees import Guarantee, up
from fedrank.privacy.ledger import LedgerError, is_charged
from fedrank.privacy.population import (
    ANYBODY,
    LEDGER,
    Account,
    Charge,
    LedgerTerms,
    begin_ledger,
    deciding,
    ledger_folders,
    spent_against,
)
from fedrank.silo.sketch import SLACK

SUFFIX = ".spending"  # of the ledger that lies beside a sketch
LIMITS = "limits.json"
MAX_BUDGET = 1e9  # ε
TOGETHER = "all queriers together"
QUERIER = "querier "  # and its name


@dataclass(frozen=True)
class Limits:
    """What an owner is ready to spend on one occurrence of one term; None: no limit."""

    querier: float | None = None  # ε towards one querier
    total: float | None = None  # ε towards all queriers together
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in (("querier", self.querier), ("total", self.total)):
            if value is not None and not value > 0:
                raise ValueError(f"a budget of ε = {value} ({name}) allows no answer at all; use a number above 0")
            if value is not None and value > MAX_BUDGET:
                raise ValueError(
                    f"a budget of ε = {value} ({name}) limits nothing; use at most {MAX_BUDGET:g}, or none"
                )
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} is no chance of failure; use a small number, such as 1e-5")


class SiloLedger:
    """The ledger of one owner; safe to use from several processes."""

    def __init__(self, path: str | os.PathLike[str], owner: str = "", limits: Limits | None = None) -> None:
        """Open a ledger, or begin one; `limits` replace those that it has."""
        self.path = Path(path)
        self.owner, self.limits = owner, Limits()
        self._charges: list[Charge] = []
        if self.path.is_file():
            raise LedgerError(
                f"{self.path} is the ledger of an older fedrank, which kept it in one file, and cannot be read here; "
                "use that fedrank, or make the sketch anew under another name, with budgets that are smaller by what "
                "its `silo describe` says was spent"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private_folder(self.path)
        with deciding(self.path, str(self.path)):
            if (self.path / LIMITS).exists():
                self._read_limits()
                if not ledger_folders(self.path):
                    raise LedgerError(
                        f"{self._ledger} is missing, and with it what was spent; restore it from a copy, and answer "
                        "nothing until then"
                    )
            elif is_charged(self._ledger):
                raise LedgerError(f"{self.path / LIMITS} is gone, and nobody knows the limits; restore it from a copy")
            if owner and self.owner and owner != self.owner:
                raise LedgerError(
                    f"{self.path} is the ledger of {self.owner!r}, not of {owner!r}: two owners in one would pay for "
                    "each other; give each its own"
                )
            self.limits = self.limits if limits is None else limits
            self._write_limits()
            self._catch_up()

    def charge_sketches(self, ids: Sequence[str], multiplier: float | None) -> None:
        """Pay for documents that are about to be sketched with this noise (deviation / sensitivity; None: without).

        Sketches without noise stay with their owner and cost nothing, as long as they do.
        """
        if multiplier is None:
            return
        if not multiplier > 0:
            raise ValueError(f"multiplier = {multiplier} is no noise; use a number above 0, or None for none")
        promises = [
            Guarantee(each, GaussianEvent(multiplier), "", unit="occurrence", slack=SLACK)
            for each in (ANYBODY, TOGETHER)
        ]
        with deciding(self.path, str(self.path)):
            self._catch_up()
            charge = Charge(f"sketching {len(self._charges) + 1}", tuple(promises), tuple(ids))
            if refusal := self._refusal(charge, [ANYBODY, *map(_against, self._queriers)]):
                raise ValueError(f"sketching these documents {refusal}")
            self._write(charge)

    def spent(self, querier: str | None = None) -> float:
        """ε towards one querier, or towards all together; inf: nothing can be claimed."""
        return self._price(TOGETHER if querier is None else _against(querier), self._charges)

    @classmethod
    def spent_at(cls, path: Path) -> float:
        """ε that the ledger at a path has spent in total; 0 if there is no ledger."""
        return cls(path).spent() if is_ledger(path) else 0.0

    def left(self, querier: str | None = None) -> float | None:
        """ε that may still be spent towards one querier, or towards all together; None: no limit."""
        total = None if self.limits.total is None else max(0.0, self.limits.total - self.spent())
        if querier is None:
            return total
        own = None if self.limits.querier is None else max(0.0, self.limits.querier - self.spent(querier))
        return min((value for value in (own, total) if value is not None), default=None)

    def totals(self) -> list[dict[str, str | int]]:
        """Rows for a report: every querier, then all together; "none" where nothing can be claimed."""

        def row(name: str, against: str, limit: float | None) -> dict[str, str | int]:
            spent = self._price(against, self._charges)
            answers = [each for each in self._charges if each.who is None]
            return {
                "querier": name,
                "terms answered": sum(each.times for each in answers if against in {p.against for p in each.promises}),
                "epsilon": "none" if spent == inf else up(spent),
                "budget": "no limit" if limit is None else f"{limit:g}",
            }

        rows = [row(name, _against(name), self.limits.querier) for name in sorted(self._queriers)]
        return [*rows, row("all together", TOGETHER, self.limits.total)]

    @property
    def _ledger(self) -> Path:
        return self.path / LEDGER

    @property
    def _queriers(self) -> list[str]:
        named = dict.fromkeys(one.against for each in self._charges for one in each.promises)
        return [against.removeprefix(QUERIER) for against in named if against.startswith(QUERIER)]

    def _price(self, against: str, charges: Sequence[Charge]) -> float:
        account = Account.of(charges, LedgerTerms(0, self.limits.delta, ()), [against])
        return spent_against([account], against, self.limits.delta)

    def _refusal(self, charge: Charge, observers: Sequence[str]) -> str | None:
        """Why a charge is refused, towards some and towards all together; None where it may be made."""
        limits = [(against, self.limits.querier) for against in observers] + [(TOGETHER, self.limits.total)]
        for against, limit in limits:
            if limit is None:
                continue
            after = self._price(against, [*self._charges, charge])
            if after > limit * (1 + 1e-12):  # ten times 0.1 is 1
                cost = "nothing could be claimed any more" if after == inf else f"ε would come to {up(after)}"
                whom = "one querier" if against == ANYBODY else against
                if against.startswith(QUERIER):
                    whom = f"querier {against.removeprefix(QUERIER)!r}"
                return f"is refused: towards {whom} {cost}, and the budget is ε = {limit:g}"
        return None

    def _write(self, charge: Charge) -> None:
        charge.write(self._ledger)
        self._charges.append(charge)

    def _catch_up(self) -> None:
        """Read what others have charged."""
        found = Charge.read_all(self._ledger)
        if len(found) < len(self._charges):
            raise LedgerError(f"{self.path} is shorter than it was: charges are missing; restore it from a copy")
        self._charges = found

    def _read_limits(self) -> None:
        path = self.path / LIMITS
        try:
            with opened(path) as file:
                found = parse_json(file.read())
            self.owner = str(found.pop("owner"))
            self.limits = Limits(**found)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise LedgerError(
                f"{path} cannot be read ({problem!r}), so that nobody knows what may be spent; restore it from a copy, "
                "and answer nothing until then"
            ) from None

    def _write_limits(self) -> None:
        begin_ledger(self._ledger, 0, self.limits.delta)  # first: where limits are, the ledger has been
        text = json.dumps({"owner": self.owner} | asdict(self.limits), ensure_ascii=False) + "\n"
        path = self.path / LIMITS
        if not path.exists() or path.read_bytes() != text.encode():
            write_atomic(path, text, private=True)


def is_ledger(path: Path) -> bool:
    """Whether a ledger, also one of an older fedrank, lies here."""
    return path.is_file() or (path / LIMITS).exists() or bool(ledger_folders(path))


def _against(querier: str) -> str:
    return QUERIER + querier

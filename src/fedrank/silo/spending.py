"""The privacy ledger of a silo's sketches.

The unit is one occurrence of one term in one field of one document; documents are disjoint, so the largest cost over
documents counts. A document is charged when it is sketched, once for all answers to all queriers. A changed document
draws new noise and is charged again; it is recognised by its id, within one ledger. Ledgers of version 0.1 may also
have charges per answered term, towards one querier and towards all queriers together.

The ledger is that of a population (`fedrank.privacy.population`) whose members are documents, identified by their ids.
Its folder, beside the sketch, contains `limits.json` and the charges; a charge is on disk before a sketch is made.
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

SUFFIX = ".spending"  # of the ledger beside a sketch
LIMITS = "limits.json"
MAX_BUDGET = 1e9  # ε
TOGETHER = "all queriers together"
QUERIER = "querier "  # and its name


@dataclass(frozen=True)
class Limits:
    """Maximum privacy cost of one occurrence of one term; None: no limit."""

    querier: float | None = None  # ε towards one querier
    total: float | None = None  # ε towards all queriers together
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name, value in (("querier", self.querier), ("total", self.total)):
            if value is not None and not value > 0:
                raise ValueError(f"the budget {name} must be above 0 (got ε = {value})")
            if value is not None and value > MAX_BUDGET:
                raise ValueError(
                    f"the budget {name} must be at most {MAX_BUDGET:g} (got ε = {value}); leave it out for no limit"
                )
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be between 0 and 1 (got {self.delta}), such as 1e-5")


class SiloLedger:
    """The ledger of one owner; safe to use from several processes."""

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        """Open or create a ledger; `limits` replace those that it has."""
        self.path = Path(path)
        self.owner, self.limits = "", Limits()  # ledgers of earlier versions may name an owner
        self._charges: list[Charge] = []
        if self.path.is_file():
            raise LedgerError(
                f"{self.path} is a ledger of an older version, which cannot be read; use that version, or sketch the "
                "documents again under another name, with budgets reduced by what its description says was spent"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private_folder(self.path)
        with deciding(self.path, str(self.path)):
            if (self.path / LIMITS).exists():
                self._read_limits()
                if not ledger_folders(self.path):
                    raise LedgerError(
                        f"{self._ledger} is missing, so the spent budget is unknown; restore it from a copy"
                    )
            elif is_charged(self._ledger):
                raise LedgerError(f"{self.path / LIMITS} is missing, so the limits are unknown; restore it from a copy")
            self.limits = self.limits if limits is None else limits
            self._write_limits()
            self._catch_up()

    def charge_sketches(self, ids: Sequence[str], multiplier: float | None) -> None:
        """Charge documents before they are sketched with this noise multiplier; None: no noise.

        Sketches without noise cost nothing as long as they stay with their owner.
        """
        if multiplier is None:
            return
        if not multiplier > 0:
            raise ValueError(f"multiplier must be above 0 (got {multiplier}), or None for no noise")
        promises = [
            Guarantee(each, GaussianEvent(multiplier), "", unit="occurrence", slack=SLACK)
            for each in (ANYBODY, TOGETHER)
        ]
        with deciding(self.path, str(self.path)):
            self._catch_up()
            charge = Charge(f"sketching {len(self._charges) + 1}", tuple(promises), tuple(ids))
            if refusal := self._refusal(charge, [ANYBODY, *map(_against, self._queriers)]):
                raise ValueError(f"sketching these documents {refusal}")
            charge.write(self._ledger)
            self._charges.append(charge)

    def spent(self, querier: str | None = None) -> float:
        """ε towards one querier, or towards all together; inf: no guarantee."""
        return self._price(TOGETHER if querier is None else _against(querier), self._charges)

    @classmethod
    def spent_at(cls, path: Path) -> float:
        """ε that the ledger at a path has spent in total; 0 without a ledger."""
        return cls(path).spent() if is_ledger(path) else 0.0

    def left(self, querier: str | None = None) -> float | None:
        """ε that may still be spent towards one querier, or towards all together; None: no limit."""
        total = None if self.limits.total is None else max(0.0, self.limits.total - self.spent())
        if querier is None:
            return total
        own = None if self.limits.querier is None else max(0.0, self.limits.querier - self.spent(querier))
        return min((value for value in (own, total) if value is not None), default=None)

    def totals(self) -> list[dict[str, str | int]]:
        """Rows for a report: every querier, then all together; "none" where nothing is guaranteed."""

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
            if after > limit * (1 + 1e-12):  # tolerance for rounding: ten times 0.1 is 1
                cost = "nothing would be guaranteed" if after == inf else f"ε would come to {up(after)}"
                whom = "one querier" if against == ANYBODY else against
                if against.startswith(QUERIER):
                    whom = f"querier {against.removeprefix(QUERIER)!r}"
                return f"is refused: towards {whom} {cost}, and the budget is ε = {limit:g}"
        return None

    def _catch_up(self) -> None:
        """Read what other processes have charged."""
        found = Charge.read_all(self._ledger)
        if len(found) < len(self._charges):
            raise LedgerError(f"{self.path} has fewer charges than before; restore it from a copy")
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
                f"{path} cannot be read ({problem!r}), so the limits are unknown; restore it from a copy"
            ) from None

    def _write_limits(self) -> None:
        begin_ledger(self._ledger, 0, self.limits.delta)  # first: where limits exist, the ledger existed
        text = json.dumps({"owner": self.owner} | asdict(self.limits), ensure_ascii=False) + "\n"
        path = self.path / LIMITS
        if not path.exists() or path.read_bytes() != text.encode():
            write_atomic(path, text, private=True)


def is_ledger(path: Path) -> bool:
    """Whether there is a ledger at a path, including one of an older version."""
    return path.is_file() or (path / LIMITS).exists() or bool(ledger_folders(path))


def _against(querier: str) -> str:
    return QUERIER + querier

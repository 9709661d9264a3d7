"""Spending of a silo: what its answers have told about its documents, and the refusal of the one that tells too much.

The unit is one occurrence of one term in one field of one document; documents are disjoint, so the largest cost over
documents counts. Noise that is added when a document is sketched is paid then, once for all answers to everybody; a
changed document draws new noise and pays again, if it keeps its id: only by that are two sketchings known to be of one
document, and only within one ledger. Noise that is added to answers is paid per answered term, by the pair
of owner and querier and by the owner towards all queriers together, who may put their answers into one pot.

The ledger is a file of JSON, one line for every charge, only ever appended to; a charge is on the disk before anything
is answered. Its lines:

    {"fedrank": "silo spending", "version": 1, "owner": ...}       the first
    {"budget": ..., "total": ..., "delta": ...}                    limits from here on; null: none
    {"sketched": [ids], "multiplier": ...}                         deviation of the noise / sensitivity
    {"querier": ..., "terms": ..., "epsilon": ..., "question": ...}   epsilon of one term in a field; null: no claim
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from pathlib import Path
from typing import Any, BinaryIO

from fedrank.files import check_is_file, parse_json, sync
from fedrank.silo.sketch import SLACK

VERSION = 2  # 1 knew silos by fingerprints of 64 bits
SUFFIX = ".spending"  # of the ledger that lies beside a sketch


class SketchLedgerError(ValueError):
    """The ledger cannot be trusted."""


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
        if not 0 < self.delta < 1:
            raise ValueError(f"delta = {self.delta} is no chance of failure; use a small number, such as 1e-5")


@dataclass
class _Account:
    """What was paid so far towards one querier, or towards all."""

    terms: int = 0
    pure: float = 0.0  # ε of all answered terms, the same in every field
    claimed: bool = True  # whether anything can be claimed

    def epsilon(self) -> float:
        return self.pure if self.claimed else inf


class SiloLedger:
    """The ledger of one owner; safe to use from several processes."""

    def __init__(self, path: str | os.PathLike[str], owner: str = "", limits: Limits | None = None) -> None:
        """Open a ledger, or begin one; `limits` replace those that it has."""
        self.path = Path(path)
        self.owner, self.limits = owner, Limits()
        self._accounts: dict[str, _Account] = {}
        self._everybody = _Account()
        self._shifts: dict[str, float] = {}  # by document: sum of (sensitivity / deviation)^2 over its sketchings
        self._questions: set[str] = set()
        self._read_to = 0
        with self._locked() as file:
            if self._read_to == 0:
                sync(self.path.parent)  # a new file can be lost with its name
                self._append(file, {"fedrank": "silo spending", "version": VERSION, "owner": owner})
            if owner and self.owner and owner != self.owner:
                raise SketchLedgerError(
                    f"{self.path} is the ledger of {self.owner!r}, not of {owner!r}: two owners in one would pay for "
                    "each other; give each its own"
                )
            if limits is not None and limits != self.limits:
                line = {"budget": limits.querier, "total": limits.total, "delta": limits.delta}
                self._append(file, line)

    def charge_sketches(self, ids: Sequence[str], multiplier: float | None) -> None:
        """Pay for documents that are about to be sketched with this noise (deviation / sensitivity; None: without).

        Sketches without noise stay with their owner and cost nothing, as long as they do.
        """
        if multiplier is None:
            return
        if not multiplier > 0:
            raise ValueError(f"multiplier = {multiplier} is no noise; use a number above 0, or None for none")
        with self._locked() as file:
            shift = max((self._shifts.get(name, 0.0) for name in ids), default=0.0) + multiplier**-2
            shift = max(shift, max(self._shifts.values(), default=0.0))
            cost = _gaussian(shift, self.limits.delta)
            most = max((account.epsilon() for account in self._accounts.values()), default=0.0)
            for name, limit, spent in (
                ("one querier", self.limits.querier, most),
                ("all queriers together", self.limits.total, self._everybody.epsilon()),
            ):
                if limit is not None and cost + spent > limit:
                    raise ValueError(f"sketching these documents {_over(cost + spent, limit, name)}")
            self._append(file, {"sketched": list(ids), "multiplier": multiplier})

    def charge_terms(self, querier: str, terms: int, epsilon: float | None, question: str = "") -> str | None:
        """Pay for an answer before it is given: ε for each of its terms (None: nothing can be claimed).

        Returns None when it is paid, else why the owner refuses.
        """
        if terms < 0 or (epsilon is not None and not epsilon > 0):
            raise ValueError(
                f"{terms} terms at ε = {epsilon} cannot be charged; use numbers above 0, or None: no claim"
            )
        with self._locked() as file:
            if question and question in self._questions:
                return "this question was answered before, and a second answer would tell more; ask it as a new one"
            cost = inf if epsilon is None else terms * epsilon
            sketched = self.sketched()
            for name, limit, account in (
                (f"querier {querier!r}", self.limits.querier, self._accounts.get(querier, _Account())),
                ("all queriers together", self.limits.total, self._everybody),
            ):
                after = account.epsilon() + cost + sketched
                if limit is not None and after > limit * (1 + 1e-12):  # ten times 0.1 is 1
                    return f"the answer {_over(after, limit, name)}"
            line = {"querier": querier, "terms": terms, "epsilon": epsilon, "question": question}
            self._append(file, line)
        return None

    def sketched(self) -> float:
        """ε of all sketchings of the document that was sketched most, at the ledger's delta."""
        return _gaussian(max(self._shifts.values(), default=0.0), self.limits.delta)

    def spent(self, querier: str | None = None) -> float:
        """ε towards one querier, or towards all together; inf: nothing can be claimed."""
        account = self._everybody if querier is None else self._accounts.get(querier, _Account())
        return account.epsilon() + self.sketched()

    def left(self, querier: str | None = None) -> float | None:
        """ε that may still be spent towards one querier, or towards all together; None: no limit."""
        total = None if self.limits.total is None else max(0.0, self.limits.total - self.spent())
        if querier is None:
            return total
        own = None if self.limits.querier is None else max(0.0, self.limits.querier - self.spent(querier))
        return min((value for value in (own, total) if value is not None), default=None)

    def totals(self) -> list[dict[str, str | int]]:
        """Rows for a report: every querier, then all together; "none" where nothing can be claimed."""
        from fedrank.protect.promises import up

        def row(name: str, account: _Account, limit: float | None) -> dict[str, str | int]:
            spent = account.epsilon() + self.sketched()
            return {
                "querier": name,
                "terms answered": account.terms,
                "epsilon": "none" if spent == inf else up(spent),
                "budget": "no limit" if limit is None else f"{limit:g}",
            }

        rows = [row(name, account, self.limits.querier) for name, account in sorted(self._accounts.items())]
        return [*rows, row("all together", self._everybody, self.limits.total)]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file, to oneself, with everything read that others have written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        check_is_file(handle, self.path)
        with open(handle, "r+b") as file:
            if os.name == "posix":
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)  # ends with the file
            self._catch_up(file)
            yield file

    def _catch_up(self, file: BinaryIO) -> None:
        if file.seek(0, os.SEEK_END) < self._read_to:
            raise SketchLedgerError(f"{self.path} is shorter than it was: charges are missing; restore it from a copy")
        file.seek(self._read_to)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                self._take(parse_json(line))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise SketchLedgerError(
                    f"{self.path}: entry {number} behind byte {self._read_to} cannot be read ({error}), so that more "
                    "may have been spent than we know; restore the file from a copy, and answer nothing until then"
                ) from None
        self._read_to += whole
        if whole < len(content):  # a charge whose writing was cut short was never followed by an answer
            file.truncate(self._read_to)

    def _append(self, file: BinaryIO, line: dict[str, Any]) -> None:
        file.seek(self._read_to)
        content = json.dumps(line).encode() + b"\n"
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        self._read_to += len(content)
        self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        if "fedrank" in line:
            if line["version"] != VERSION:
                raise ValueError(f"version {line['version']}, and this fedrank reads version {VERSION}")
            self.owner = str(line["owner"])
        elif "budget" in line:
            self.limits = Limits(line["budget"], line["total"], line["delta"])
        elif "sketched" in line:
            if not line["multiplier"] > 0:
                raise ValueError(f"noise of {line['multiplier']}, which nobody charges for")
            for name in line["sketched"]:
                self._shifts[name] = self._shifts.get(name, 0.0) + line["multiplier"] ** -2
        else:
            for account in (self._accounts.setdefault(line["querier"], _Account()), self._everybody):
                account.terms += line["terms"]
                if line["epsilon"] is None:
                    account.claimed = False
                else:
                    account.pure += line["terms"] * line["epsilon"]
            if line["question"]:
                self._questions.add(line["question"])


def _gaussian(shift: float, delta: float) -> float:
    """ε of Gaussian noise, where several draws add their squared ratios of sensitivity and deviation."""
    from fedrank.protect.accounting import GaussianEvent, epsilon

    return epsilon(GaussianEvent(1 / sqrt(shift)), 1, delta) + SLACK if shift else 0.0


def _over(cost: float, limit: float, whom: str) -> str:
    from fedrank.protect.promises import up

    after = "nothing could be claimed any more" if cost == inf else f"ε would come to {up(cost)}"
    return f"is refused: towards {whom} {after}, and the budget is ε = {limit:g}"

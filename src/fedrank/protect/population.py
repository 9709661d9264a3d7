"""People, and what all runs on them have spent together.

A ledger belongs to people, not to a run: whoever takes part in ten runs has paid ten times. The folder of a population
holds `people.json` (how many there are, and the ε at some δ that nobody shall exceed) and the ledger of every run on
it, `RUN/ledger`; who these people are, one person each or whole sites, it need not know. Next to the logs of a ledger
lies `terms.json`: what each of its charges costs. What differs between runs is composed first, and priced then.

Whoever wants to charge people takes the lock of the population, reads what the others charged, and reserves. So runs
side by side cannot spend the same rest twice.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.files import Locked, is_locked, locked, private_folder, write_whole
from fedrank.protect.accounting import (
    ConcentratedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    ResponseEvent,
)
from fedrank.protect.ledger import CHANGED, Charges, Ledger, LedgerError
from fedrank.protect.promises import OBSERVERS, Promise, cost_together, up

SIMULATED = "simulated"  # the population of nobody: each run is priced alone
FOLDER = "populations"  # beside the runs
LEDGER = "ledger"  # a folder below a run, or below a run's name in a population
PEOPLE, TERMS, FORGOTTEN, LOCK = "people.json", "terms.json", "forgotten.jsonl", "lock"
MOST_KINDS_OF_PEOPLE = 64  # priced one by one; more are priced as somebody who paid the most of everything
PATIENCE = 600.0  # seconds to wait while others decide
_EVENTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (GaussianEvent, LaplaceEvent, ConcentratedEvent, PureEvent, ResponseEvent)
}


@dataclass(frozen=True)
class LedgerTerms:
    """Whom a ledger charges, and what one charge costs."""

    people: int
    delta: float
    promises: tuple[Promise, ...]
    spec: str = ""  # by what it is known whether changes that were kept are those of the same run

    def write(self, folder: Path) -> None:
        promises = [
            asdict(one) | {"event": None if one.event is None else _described(one.event)} for one in self.promises
        ]
        content = {"format": 1, "people": self.people, "delta": self.delta, "spec": self.spec, "promises": promises}
        write_whole(folder / TERMS, json.dumps(content, indent=1, ensure_ascii=False) + "\n", private=True)

    @classmethod
    def read(cls, folder: Path) -> LedgerTerms | None:
        """What a ledger's charges cost; None where it does not say."""
        try:
            found = json.loads((folder / TERMS).read_text(encoding="utf-8"))
            promises = [Promise(**one | {"event": _built(one["event"])}) for one in found["promises"]]
            return cls(int(found["people"]), float(found["delta"]), tuple(promises), str(found["spec"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as problem:
            raise LedgerError(
                f"{folder / TERMS} cannot be read ({problem!r}), so that nobody knows what its charges cost; restore "
                "it from a copy, or treat the privacy of its people as spent"
            ) from None

    def costs_like(self, other: LedgerTerms) -> bool:
        """Whether a charge costs the same, to as many people."""
        return (self.people, _priced(self)) == (other.people, _priced(other))


def _priced(terms: LedgerTerms) -> list[tuple[Any, ...]]:
    return [(one.against, one.event, one.paid, one.unit, one.slack) for one in terms.promises]


def _described(event: Event) -> dict[str, Any]:
    return {"name": type(event).__name__} | asdict(event)


def _built(described: Mapping[str, Any] | None) -> Event | None:
    if described is None:
        return None
    settings = {key: value for key, value in described.items() if key != "name"}
    built: Event = _EVENTS[described["name"]](**settings)
    return built


@dataclass(frozen=True)
class Account:
    """What one run has charged people."""

    terms: LedgerTerms
    participations: NDArray[np.int64]  # [people]
    rounds: int
    lost: int

    @classmethod
    def read(cls, folder: Path) -> Account | None:
        """Of a ledger that somebody else may be writing to; None where nothing says what its charges cost."""
        terms = LedgerTerms.read(folder)
        if terms is None:
            return None
        charges = Charges.read(folder, terms.people)
        return cls(terms, charges.participations, charges.rounds, charges.lost)

    def times(self, promise: Promise) -> NDArray[np.int64]:
        """[people]: how often each has paid."""
        if promise.paid == "round":
            return np.full(len(self.participations), self.rounds)
        if promise.paid == "once":
            return np.minimum(1 + self.lost, self.participations)
        return self.participations


def spent_together(accounts: Iterable[Account], delta: float) -> dict[str, float]:
    """ε of whoever paid most, against each observer, after all of these runs on the same people; inf: no claim.

    An observer is left out where no run ever promised anything.
    """
    used = [account for account in accounts if account.rounds]
    found = {}
    for against in OBSERVERS:
        rows = [(account, promise) for account in used for promise in account.terms.promises]
        rows = [(account, promise) for account, promise in rows if promise.against == against]
        if any(promise.event is not None for _, promise in rows):
            found[against] = _most_spent(rows, delta)
    return found


def _most_spent(rows: Sequence[tuple[Account, Promise]], delta: float) -> float:
    times: dict[tuple[Event | None, float], NDArray[np.int64]] = {}
    kinds: dict[tuple[Event | None, float], Promise] = {}
    for account, promise in rows:
        kind = (promise.event, promise.slack)
        kinds[kind] = promise
        times[kind] = times.get(kind, np.zeros(len(account.participations), np.int64)) + account.times(promise)
    if any(event is None and often.any() for (event, _), often in times.items()):
        return float("inf")
    columns = np.unique(np.stack(list(times.values())), axis=1).T
    # Whoever paid at least as often for everything pays at least as much.
    columns = np.array([one for one in columns if not ((columns >= one).all(1) & (columns > one).any(1)).any()])
    if len(columns) > MOST_KINDS_OF_PEOPLE:
        columns = columns.max(axis=0, keepdims=True)
    return max(cost_together(zip(kinds.values(), map(int, column), strict=True), delta) for column in columns)


@dataclass(frozen=True)
class Population:
    """Named people on whom several runs are made."""

    folder: Path
    people: int
    delta: float
    limit: float  # ε that nobody shall exceed, over all runs

    @property
    def name(self) -> str:
        return self.folder.name

    @classmethod
    def open(cls, folder: Path, people: int, delta: float, limit: float) -> Population:
        """A population, or a new one; what was promised to people is not changed by a later spec."""
        folder = Path(folder)
        private_folder(folder.parent)
        private_folder(folder)
        asked = cls(folder, people, delta, limit)
        with asked.deciding():
            if not (folder / PEOPLE).exists():
                content = {"format": 1, "people": people, "delta": delta, "limit": limit}
                write_whole(folder / PEOPLE, json.dumps(content, indent=1) + "\n", private=True)
        known = cls.read(folder)
        for name, was, now in (("clients.count", known.people, people), ("privacy.delta", known.delta, delta)):
            if was != now:
                raise ValueError(
                    f"population {folder.name!r} was begun with {name} = {was:g}, and the spec has {now:g}: what was "
                    f"spent could not be added up; use {was:g}, or another population if these are other people"
                )
        if limit > known.limit:
            raise ValueError(
                f"population {folder.name!r} was promised that nobody spends more than ε = {known.limit:g}, and the "
                f"spec has privacy.budget = {limit:g}; use {known.limit:g} or less"
            )
        return asked

    @classmethod
    def read(cls, folder: Path) -> Population:
        try:
            found = json.loads((Path(folder) / PEOPLE).read_text(encoding="utf-8"))
            return cls(Path(folder), int(found["people"]), float(found["delta"]), float(found["limit"]))
        except (ValueError, KeyError, TypeError) as problem:
            raise LedgerError(
                f"{Path(folder) / PEOPLE} cannot be read ({problem!r}), so that nobody knows what these people were "
                "promised; restore it from a copy"
            ) from None

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Nobody else charges these people meanwhile. Pricing takes its time, so that others wait for it."""
        deadline = time.monotonic() + PATIENCE
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(locked(self.folder / LOCK, f"population {self.name!r}"))
                    break
                except Locked:
                    if time.monotonic() > deadline:
                        raise
            yield

    def accounts(self, but: Path | None = None) -> list[Account]:
        """What every run, but one, has charged."""
        found = (Account.read(ledger) for ledger in ledgers_below(self.folder) if ledger != but)
        return [account for account in found if account is not None]

    def refusal(self, spent: Mapping[str, float]) -> str | None:
        """Why that much must not be spent; None where it may."""
        for against, cost in spent.items():
            if cost > self.limit:
                after = "nothing could be claimed any more" if cost == float("inf") else f"ε would come to {up(cost)}"
                return (
                    f"population {self.name!r}: against the {against} {after} over all runs on these people, and the "
                    f"limit is ε = {self.limit:g}"
                )
        return None


def ledgers_below(folder: Path) -> list[Path]:
    """Every ledger at or below a folder."""
    return sorted(file.parent for file in Path(folder).rglob(f"{LEDGER}*/{TERMS}"))


@contextmanager
def open_ledger(folder: Path, terms: LedgerTerms) -> Iterator[Ledger]:
    """The ledger of a run, to oneself.

    One whose charges cost something else is set aside, where it goes on counting. Changes that another run kept, of
    the same name and price, are dropped; its charges stay.
    """
    folder = Path(folder).absolute()
    if not folder.parent.exists():
        private_folder(folder.parent)  # of a run's own, in a population
    private_folder(folder)
    before = LedgerTerms.read(folder)
    if before is not None and not before.costs_like(terms):
        number = 1
        while (aside := folder.with_name(f"{LEDGER}-{number}")).exists():
            number += 1
        os.rename(folder, aside)
        folder.mkdir(mode=0o700)
    with locked(folder / LOCK, str(folder)):
        if before is not None and before.spec != terms.spec:
            (folder / CHANGED).unlink(missing_ok=True)
        if LedgerTerms.read(folder) != terms:
            terms.write(folder)
        with Ledger.open(folder, terms.people) as ledger:
            yield ledger


def forget_ledgers(folder: Path, because: str) -> dict[str, Any]:
    """Delete every ledger at or below a folder. What they said in all, when and why they went stays in a file."""
    folder = Path(folder)
    if not because.strip():
        raise ValueError("a ledger is not forgotten without a reason; say why, as those who are asked later need to")
    found = ledgers_below(folder)
    if not found:
        raise FileNotFoundError(f"no ledger at or below {folder}; give a run folder, or the folder of a population")
    for ledger in found:
        if is_locked(ledger / LOCK):
            raise FileExistsError(f"{ledger} is being written to by a run; wait for it, or stop it")
    accounts = [account for account in map(Account.read, found) if account is not None]
    record = {
        "forgotten": now(),
        "because": because.strip(),
        "ledgers": [str(ledger.relative_to(folder)) for ledger in found],
        **totals(accounts),
    }
    line = json.dumps(record, ensure_ascii=False) + "\n"
    old = (folder / FORGOTTEN).read_text(encoding="utf-8") if (folder / FORGOTTEN).exists() else ""
    write_whole(folder / FORGOTTEN, old + line, private=True)  # before anything goes
    for ledger in found:
        shutil.rmtree(ledger)
    return record


def totals(accounts: Sequence[Account]) -> dict[str, Any]:
    """How much some ledgers say in all."""
    delta = min((account.terms.delta for account in accounts), default=0.0)
    same = len({account.terms.people for account in accounts}) == 1
    spent = spent_together(accounts, delta) if same else {}
    return {
        "people": max((account.terms.people for account in accounts), default=0),
        "rounds": sum(account.rounds for account in accounts),
        "participations": int(sum(account.participations.sum() for account in accounts)),
        "delta": delta,
        "epsilon": {against: None if cost == float("inf") else cost for against, cost in spent.items()},
    }


def forgotten(folder: Path) -> list[dict[str, Any]]:
    """What was deleted of the ledgers of a folder, and why."""
    file = Path(folder) / FORGOTTEN
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

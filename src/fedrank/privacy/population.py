"""Populations: people, and the privacy that all runs on them have spent together.

A ledger belongs to people, not to a run: a person who participates in ten runs has paid ten times. The folder of a
population has `people.json` (the number of people, and the limit of ε at a given δ for each of them) and the ledger of
every run on them, `RUN/ledger`. It does not record who these people are: single persons, or whole sites. Each ledger
also has `terms.json`: the cost of each of its charges. Different runs are composed before the conversion to ε.
Beside the ledger of a simulated run, `ledger.hash` has its length and digest, so a truncated copy is noticed.

A release that is not a round of a run, such as the sketches of a silo, is a `Charge` with a key: such charges are in
`ledger/charges.log`, each with its cost, and count like all others.

To charge people, a process takes the lock of the population, reads what the others charged, and reserves. Concurrent
runs can therefore not spend the same remaining budget twice.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedrank.files import (
    UNFINISHED,
    Locked,
    is_locked,
    locked,
    now,
    parse_json,
    private_folder,
    read_bytes,
    read_text,
    write_atomic,
)
from fedrank.privacy.accounting import ConcentratedEvent, Event, GaussianEvent, LaplaceEvent, PureEvent, ResponseEvent
from fedrank.privacy.guarantees import OBSERVERS, Guarantee, cost_together, up
from fedrank.privacy.ledger import (
    CHANGED,
    CHARGED,
    PARTICIPANTS,
    Charges,
    Ledger,
    LedgerError,
    add_charge,
    begin_charges,
    is_charged,
    read_charges,
)

T = TypeVar("T", str, int, float)

SIMULATED = "simulated"  # the population of simulated clients: each run is accounted separately
FOLDER = "populations"  # beside the runs
LEDGER = "ledger"  # a folder below a run, or below a run's name in a population
PEOPLE, TERMS, FORGOTTEN, LOCK = "people.json", "terms.json", "forgotten.jsonl", "lock"
RELEASES = f"{LEDGER}-releases"  # the same for releases besides the rounds of a run
HASH = ".hash"  # suffix of the file beside a ledger with its length and digest
MAX_PEOPLE = 10**8  # per ledger: each person has a counter in memory
MAX_KINDS_OF_PEOPLE = 64  # accounted one by one; beyond that, by the maximum over all people of each kind of charge
PATIENCE = 600.0  # seconds to wait while other processes decide
_NOT_OURS = (ValueError, KeyError, TypeError, AttributeError, OverflowError)  # raised by content from other writers
ANYBODY = "anybody"  # the observer of a public release
# Keys of `terms.json`: never rename them, even if the classes are renamed.
_EVENTS: dict[str, type[Any]] = {
    "GaussianEvent": GaussianEvent,
    "LaplaceEvent": LaplaceEvent,
    "ConcentratedEvent": ConcentratedEvent,
    "PureEvent": PureEvent,
    "ResponseEvent": ResponseEvent,
}
_EVENT_NAMES = {kind: name for name, kind in _EVENTS.items()}


class BudgetSpentError(Exception):
    """The next step would exceed the privacy limit of at least one person."""


@dataclass(frozen=True)
class LedgerTerms:
    """The people that a ledger charges, and the cost of one charge."""

    people: int  # 0: as many as its charges name
    delta: float
    promises: tuple[Guarantee, ...]
    spec: str = ""  # identifies the run to which stored changes belong

    def __post_init__(self) -> None:
        _check_people(self.people, self.delta)

    def write(self, folder: Path) -> None:
        promises = list(map(_written, self.promises))
        content = {"format": 1, "people": self.people, "delta": self.delta, "spec": self.spec, "promises": promises}
        write_atomic(folder / TERMS, json.dumps(content, indent=1, ensure_ascii=False) + "\n", private=True)

    @classmethod
    def read(cls, folder: Path) -> LedgerTerms | None:
        """The cost of a ledger's charges; None where nothing has been charged and the file does not exist."""
        try:
            found = parse_json(read_text(folder / TERMS))
            promises = tuple(_guarantee(dict(one)) for one in found["promises"])
            return cls(found["people"], found["delta"], promises, _of(str, found["spec"]))
        except FileNotFoundError:
            if not is_charged(folder):
                return None
            raise LedgerError(
                f"{folder / TERMS} is missing, so the cost of the charges in this folder is unknown; restore it from a "
                "copy, or treat the privacy of its people as spent"
            ) from None
        except _NOT_OURS as problem:
            raise LedgerError(
                f"{folder / TERMS} cannot be read ({_why(problem)}), so the cost of its charges is unknown; "
                "restore it from a copy, or treat the privacy of its people as spent"
            ) from None

    def costs_like(self, other: LedgerTerms) -> bool:
        """Whether a charge costs the same for the same number of people."""
        return (self.people, _priced(self)) == (other.people, _priced(other))


def _priced(terms: LedgerTerms) -> list[tuple[Any, ...]]:
    return [(one.against, one.event, one.paid, one.unit, one.slack) for one in terms.promises]


@lru_cache(maxsize=1024)
def _promises(text: str) -> tuple[Guarantee, ...]:
    return tuple(_guarantee(dict(one)) for one in parse_json(text))


def _written(guarantee: Guarantee) -> dict[str, Any]:
    event = guarantee.event
    return asdict(guarantee) | {"event": None if event is None else {"name": _EVENT_NAMES[type(event)]} | asdict(event)}


def _guarantee(described: dict[str, Any]) -> Guarantee:
    """A guarantee as `LedgerTerms.write` describes it; the input is not trusted."""
    made = Guarantee(**described | {"event": _built(described["event"])})
    hints = get_type_hints(Guarantee)
    choices = {name: get_args(hints[name]) for name in ("paid", "unit", "neighbours")}
    for name, known in choices.items():
        if getattr(made, name) not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)} (got {getattr(made, name)!r})")
    _of(str, made.against)
    _of(str, made.because)
    if not 0 <= _of(float, made.slack) < math.inf:
        raise ValueError(f"slack must be finite and 0 or more (got {made.slack})")
    return made


def _built(described: Mapping[str, Any] | None) -> Event | None:
    if described is None:
        return None
    settings = {key: value for key, value in dict(described).items() if key != "name"}
    kind = _EVENTS[described["name"]]
    for each in fields(kind):
        _of(int if each.type == "int" else float, settings.get(each.name, each.default))
    built: Event = kind(**settings)
    return built


def _of(kind: type[T], value: Any) -> T:
    """The value, if it is of this type; an int is accepted as a float, a bool is never accepted."""
    if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool):
        raise TypeError(f"{str(value)[:40]!r} must be of type {kind.__name__}")
    return kind(value)  # type: ignore[call-arg]


def _check_people(people: int, delta: float) -> None:
    """Check both values; 0 people means as many as the charges name."""
    if not 0 <= _of(int, people) <= MAX_PEOPLE:
        raise ValueError(f"people must be between 0 and {MAX_PEOPLE:,} (got {people})")
    if not 0 <= _of(float, delta) < 1:
        raise ValueError(f"delta must be at least 0 and below 1 (got {delta})")


def _why(problem: Exception) -> str:
    return f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)


@dataclass(frozen=True)
class Charge:
    """One release, with a key under which it is charged only once."""

    key: str
    promises: tuple[Guarantee, ...]  # its cost against each observer
    who: tuple[int | str, ...] | None = None  # rows of people, or their names where these are known; None: all people
    times: int = 1

    def write(self, folder: Path) -> None:
        """Append it to a ledger; it is on disk when this returns."""
        # The reasons are not repeated in each charge. Serialised as one text, so equal guarantees are parsed once.
        promises = json.dumps([_written(replace(one, because="")) for one in self.promises])
        content = {"key": self.key, "who": self.who, "times": self.times, "promises": promises}
        with locked(folder / LOCK, str(folder)):
            add_charge(folder, json.dumps(content, ensure_ascii=False).encode())

    @classmethod
    def read_all(cls, folder: Path) -> list[Charge]:
        """All charges of a ledger, which another process may be writing to; none where it was not begun."""
        if LedgerTerms.read(folder) is None:
            return []
        if not (folder / CHARGED).exists():
            raise LedgerError(
                f"{folder / CHARGED} is missing, and it records what was spent; restore it from a copy, and release "
                "nothing until then"
            )
        texts = read_charges(folder)
        try:
            return [cls._built(parse_json(text)) for text in texts]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as problem:
            raise LedgerError(
                f"{folder / CHARGED} cannot be read ({problem!r}), so more privacy may have been spent than is "
                "recorded; restore it from a copy, and release nothing until then"
            ) from None

    @classmethod
    def _built(cls, found: Mapping[str, Any]) -> Charge:
        promises = _promises(found["promises"])
        who, times = found["who"], int(found["times"])
        if times < 0:
            raise ValueError(f"times must be 0 or more (got {times})")
        return cls(str(found["key"]), promises, None if who is None else tuple(who), times)


@dataclass(frozen=True)
class Account:
    """What one run, or one series of keyed charges, has charged people."""

    terms: LedgerTerms
    participations: NDArray[np.int64]  # [people]
    rounds: int
    lost: int
    paid: Mapping[Guarantee, NDArray[np.int64]] = field(default_factory=dict)  # [people], where charges differ

    @classmethod
    def read(cls, folder: Path) -> Account | None:
        """Read a ledger, which another process may be writing to; None where nothing has been charged yet."""
        terms = LedgerTerms.read(folder)
        if terms is None:
            return None
        check_hash(folder)
        if not terms.promises:
            return cls.of(Charge.read_all(folder), terms)
        charges = Charges.read(folder, terms.people)
        return cls(terms, charges.participations, charges.rounds, charges.lost)

    @classmethod
    def of(cls, charges: Sequence[Charge], terms: LedgerTerms, against: Iterable[str] = ()) -> Account:
        """Of single charges. Each is paid as often as it is made, by all people where sampling hides the participants.

        A charge of a public release counts against every observer named in the charges or in `against`.
        """
        named = () if terms.people else dict.fromkeys(name for charge in charges for name in charge.who or ())
        rows = {name: row for row, name in enumerate(named)}
        people = terms.people or max(1, len(rows))
        counts = np.zeros(people, np.int64)
        alike: dict[int, tuple[tuple[Guarantee, ...], NDArray[np.int64], list[int]]] = {}  # times of each, and of all
        for charge in charges:
            whom: Any = slice(None)
            if charge.who is not None:
                whom = np.array(charge.who if terms.people else [rows[name] for name in charge.who], np.int64)
                if len(whom) and not 0 <= whom.min() <= whom.max() < people:
                    raise LedgerError(
                        f"a charge names a person outside the {people} of this ledger; restore the ledger from a copy"
                    )
            counts[whom] += 1
            _, each, every = alike.setdefault(id(charge.promises), (charge.promises, np.zeros(people, np.int64), [0]))
            each[whom] += charge.times
            every[0] += charge.times
        observers = dict.fromkeys((ANYBODY, *against, *(one.against for group in alike.values() for one in group[0])))
        paid: dict[Guarantee, NDArray[np.int64]] = {}
        for promises, each, [all_times] in alike.values():
            own = {one.against for one in promises}
            for one in promises:
                also = [seen for seen in observers if seen not in own] if one.against == ANYBODY else []
                times = np.full(people, all_times) if one.paid == "round" else each
                for guarantee in (one, *(replace(one, against=seen) for seen in also)):
                    paid[guarantee] = paid.get(guarantee, 0) + times
        return cls(replace(terms, people=people, promises=tuple(paid)), counts, len(charges), 0, paid)

    def times(self, guarantee: Guarantee) -> NDArray[np.int64]:
        """[people]: how often each person has paid."""
        if guarantee in self.paid:
            return self.paid[guarantee]
        if guarantee.paid == "round":
            return np.full(len(self.participations), self.rounds)
        if guarantee.paid == "once":
            return np.minimum(1 + self.lost, self.participations)
        return self.participations


def spent_together(accounts: Iterable[Account], delta: float) -> dict[str, float]:
    """The largest ε of any person, against each observer, after all of these runs on the same people; inf: no claim.

    Observers against whom no run gives a guarantee are left out.
    """
    used = [account for account in accounts if account.rounds]
    named = dict.fromkeys((*OBSERVERS, *(one.against for each in used for one in each.terms.promises)))
    found = {}
    for against in named:
        promised = [one for each in used for one in each.terms.promises if one.against == against]
        if any(one.event is not None for one in promised):
            found[against] = spent_against(used, against, delta)
    return found


def spent_against(accounts: Iterable[Account], against: str, delta: float) -> float:
    """The largest ε of any person against one observer; inf: no claim."""
    rows = [(each, one) for each in accounts for one in each.terms.promises if one.against == against]
    return _most_spent(rows, delta) if rows else 0.0


def _most_spent(rows: Sequence[tuple[Account, Guarantee]], delta: float) -> float:
    times: dict[tuple[Event | None, float], NDArray[np.int64]] = {}
    kinds: dict[tuple[Event | None, float], Guarantee] = {}
    for account, guarantee in rows:
        kind = (guarantee.event, guarantee.slack)
        kinds[kind] = guarantee
        times[kind] = times.get(kind, np.zeros(len(account.participations), np.int64)) + account.times(guarantee)
    if any(event is None and often.any() for (event, _), often in times.items()):
        return float("inf")
    columns = np.unique(np.stack(list(times.values())), axis=1).T
    # A person who paid at least as often for every kind has at least the same ε.
    columns = np.array([one for one in columns if not ((columns >= one).all(1) & (columns > one).any(1)).any()])
    if len(columns) > MAX_KINDS_OF_PEOPLE:
        columns = columns.max(axis=0, keepdims=True)
    return max(cost_together(zip(kinds.values(), map(int, column), strict=True), delta) for column in columns)


@dataclass(frozen=True)
class Population:
    """People on whom several runs are made, under a name."""

    folder: Path
    people: int
    delta: float
    limit: float  # ε that no person may exceed, over all runs

    @property
    def name(self) -> str:
        return self.folder.name

    @classmethod
    def open(cls, folder: Path, people: int, delta: float, limit: float) -> Population:
        """Load or create a population; a later spec cannot weaken the guarantee given to its people."""
        folder = Path(folder)
        private_folder(folder.parent)
        private_folder(folder)
        asked = cls(folder, people, delta, limit)
        with asked.deciding():
            if cls.find(folder) is None:
                content = {"format": 1, "people": people, "delta": delta, "limit": limit}
                write_atomic(folder / PEOPLE, json.dumps(content, indent=1) + "\n", private=True)
        known = cls.read(folder)
        for name, was, new in (("clients.count", known.people, people), ("privacy.delta", known.delta, delta)):
            if was != new:
                raise ValueError(
                    f"population {folder.name!r} was created with {name} = {was:g}, but the spec has {new:g}, so the "
                    f"spending could not be added up; use {was:g}, or another population if these are other people"
                )
        if limit > known.limit:
            raise ValueError(
                f"population {folder.name!r} has a limit of ε = {known.limit:g} per person, but the "
                f"spec has privacy.budget = {limit:g}; use {known.limit:g} or less"
            )
        return asked

    @classmethod
    def find(cls, folder: Path) -> Population | None:
        """The population of a folder; None where nothing was charged. Ledgers without `people.json` are an error."""
        folder = Path(folder)
        if (folder / PEOPLE).exists():
            return cls.read(folder)
        if ledger_folders(folder) or (folder / FORGOTTEN).exists():
            raise LedgerError(
                f"{folder / PEOPLE} is missing, but its people were charged, so their limit of ε is unknown; "
                "restore the file from a copy. Without one, treat their privacy as spent, and use another population "
                "for other people"
            )
        return None

    @classmethod
    def read(cls, folder: Path) -> Population:
        try:
            found = parse_json(read_text(Path(folder) / PEOPLE))
            _check_people(found["people"], found["delta"])
            if not _of(float, found["limit"]) >= 0:
                raise ValueError(f"limit must be an ε of 0 or more (got {found['limit']})")
            return cls(Path(folder), found["people"], found["delta"], found["limit"])
        except _NOT_OURS as problem:
            raise LedgerError(
                f"{Path(folder) / PEOPLE} cannot be read ({_why(problem)}), so the limit of its people is unknown; "
                "restore it from a copy"
            ) from None

    @staticmethod
    def charges_by_run(folder: Path) -> dict[str, float]:
        """The number of charges in the ledgers of each run; infinite if they were deleted with a record.

        The terms in each ledger must name its run: those of another run may cost less.
        """
        found: dict[str, float] = {}
        for ledger in ledger_folders(folder):
            run, account = ledger.relative_to(folder).parts[0], Account.read(ledger)
            if account is not None and account.terms.spec not in ("", run):
                raise LedgerError(
                    f"{ledger / TERMS} belongs to run {account.terms.spec[:12]}, not to run {run[:12]}, so the cost of "
                    "its charges is unknown; restore both from a copy, or treat the privacy of these people as spent"
                )
            found[run] = found.get(run, 0) + (0 if account is None else account.rounds)
        gone = {name.split("/")[0] for record in forgotten(folder) for name in record["ledgers"]}
        return found | dict.fromkeys(gone, math.inf)

    def deciding(self) -> AbstractContextManager[None]:
        """Hold the lock of these people; other processes wait, because accounting takes time."""
        return deciding(self.folder, f"population {self.name!r}")

    def ledger(self, run: str) -> Path:
        """The folder of the ledger of one run."""
        return (self.folder / run / LEDGER).absolute()

    def released(self, run: str) -> dict[str, int]:
        """By key: how often each release of a run besides its rounds was charged."""
        return {one.key: one.times for one in Charge.read_all(self.ledger(run).with_name(RELEASES))}

    def release(
        self, run: str, key: str, promises: Sequence[Guarantee], times: int, first: Callable[[], None]
    ) -> str | None:
        """Charge all people for a release of a run besides its rounds, once under its key; or return why not.

        `first` writes the release to disk before the charge.
        """
        folder, charge = self.ledger(run).with_name(RELEASES), Charge(key, tuple(promises), times=times)
        with self.deciding():
            if not folder.parent.exists():
                private_folder(folder.parent)
            begin_ledger(folder, self.people, self.delta)
            made = Charge.read_all(folder)
            new = all(one.key != key for one in made)
            account = Account.of([*made, charge], LedgerTerms(self.people, self.delta, ()))
            if new and (refusal := self.refused(account, self.accounts(folder))) is not None:
                return refusal
            first()
            if new:
                charge.write(folder)
        return None

    def others(self, run: str) -> list[Account]:
        """The accounts of all runs except one."""
        rounds = self.ledger(run)
        return self.accounts(rounds, rounds.with_name(RELEASES))

    def account_of_releases(self, charges: Mapping[str, Sequence[Guarantee]]) -> list[Account]:
        """The account of releases that are charged once each; empty if there are none."""
        made = [Charge(key, tuple(promises)) for key, promises in charges.items()]
        return [Account.of(made, LedgerTerms(self.people, self.delta, ()))] if made else []

    def ledger_sizes(self, but: Path) -> tuple[tuple[str, int | None], ...]:
        """Size of the log of every ledger except one; it changes with every charge."""
        logs = [one / name for one in ledger_folders(self.folder) if one != but for name in (PARTICIPANTS, CHARGED)]
        return tuple((str(log), log.stat().st_size if log.exists() else None) for log in logs)

    def spent(self) -> dict[str, float]:
        """ε that all runs have spent by now, against each observer."""
        return spent_together(self.accounts(), self.delta)

    def accounts(self, *but: Path) -> list[Account]:
        """The accounts of all ledgers except some."""
        for path in self.folder.rglob(f"{LEDGER}*{HASH}"):
            check_hash(path.with_name(path.name.removesuffix(HASH)))
        found = (Account.read(ledger) for ledger in ledger_folders(self.folder) if ledger not in but)
        return [account for account in found if account is not None]

    @property
    def runs(self) -> int:
        """The number of runs that have a ledger."""
        return len({ledger.parent for ledger in ledger_folders(self.folder)})

    def refusal(self, spent: Mapping[str, float]) -> str | None:
        """Why this much must not be spent; None where it may be."""
        for against, cost in spent.items():
            if cost > self.limit:
                after = "no guarantee would hold any more" if cost == float("inf") else f"ε would become {up(cost)}"
                return (
                    f"population {self.name!r}: {after} against the {against}, over all runs on these people, but the "
                    f"limit is ε = {self.limit:g}"
                )
        return None

    def refused(self, account: Account, others: Sequence[Account]) -> str | None:
        """Why an account must not reach this state, given all others; None where it may."""
        unit = account.terms.promises[0].unit
        units = {one.unit for each in (*others, account) if each.rounds for one in each.terms.promises} - {unit}
        if units:
            return (
                f"population {self.name!r}: other runs protect each {', '.join(sorted(units))}, this one each {unit}, "
                "so their ε cannot be added up"
            )
        return self.refusal(spent_together([*others, account], self.delta))


@contextmanager
def deciding(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of the people that are charged in this folder; other processes wait, as accounting takes time."""
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(folder / LOCK, what))
                break
            except Locked:
                if time.monotonic() > deadline:
                    raise
        yield


def begin_ledger(folder: Path, people: int, delta: float) -> None:
    """Create a ledger for charges of different cost, if it does not exist."""
    terms = LedgerTerms(people, delta, ())
    private_folder(folder)
    if not (folder / TERMS).exists():
        begin_charges(folder)
    if LedgerTerms.read(folder) != terms:
        terms.write(folder)


def ledger_folders(folder: Path) -> list[Path]:
    """Every folder at or below this one that has a file of a ledger, even if other files of it are missing."""
    files = {TERMS, PARTICIPANTS, CHANGED, CHARGED}
    return sorted({file.parent for file in Path(folder).rglob(f"{LEDGER}*/*") if file.name in files})


def ledgers_below(folder: Path) -> list[Path]:
    """Every ledger at or below a folder that has, or should have, a cost per charge.

    A run of trees has its ledger in the run folder without `terms.json`: its cost is on its privacy card alone.
    """
    return [one for one in ledger_folders(folder) if (one / TERMS).exists() or home_of(one) is not None]


def home_of(ledger: Path) -> Path | None:
    """The folder of the population that a ledger belongs to; None where it belongs to a run alone."""
    ledger = Path(ledger).absolute()
    for above in ledger.parents:
        if (above / PEOPLE).exists() or (above.parent.name == FOLDER and not (ledger.parent / "run.json").exists()):
            return above
    return None


@contextmanager
def open_ledger(folder: Path, terms: LedgerTerms, hashed: bool = False) -> Iterator[Ledger]:
    """Open the ledger of a run exclusively. `hashed`: write its length and digest beside it at the end.

    A ledger whose charges have another cost is renamed, and continues to count. Changes stored by another run
    with the same name and cost are dropped; its charges stay.
    """
    folder = Path(folder).absolute()
    if not folder.parent.exists():
        private_folder(folder.parent)  # the folder of a run, in a population
    private_folder(folder)
    before = LedgerTerms.read(folder)
    if before is not None:
        Account.read(folder)  # raises if a file is missing or was truncated
    if before is not None and not before.costs_like(terms):
        number = 1
        while (aside := folder.with_name(f"{LEDGER}-{number}")).exists():
            number += 1
        _hash_of(folder).unlink(missing_ok=True)
        os.rename(folder, aside)
        folder.mkdir(mode=0o700)
        if hashed:
            _write_hash(aside)
    with locked(folder / LOCK, str(folder)):
        if before is not None and before.spec != terms.spec:
            (folder / CHANGED).unlink(missing_ok=True)
        with Ledger.open(folder, terms.people) as ledger:
            # Written last: where this file exists, the logs have existed.
            if LedgerTerms.read(folder) != terms:
                terms.write(folder)
            yield ledger
            if hashed:  # after an error the log may end with an incomplete record, and the earlier hash stays valid
                _write_hash(folder)


def check_hash(ledger: Path) -> None:
    """Raise an error if a ledger is missing, or shorter or different than when its last run ended."""
    path, log = _hash_of(ledger), Path(ledger) / PARTICIPANTS
    if not path.exists():
        return
    try:
        size, digest = read_text(path).split()
        content = read_bytes(log)[: int(size)] if log.exists() else b""
        fits = len(content) == int(size) and hashlib.sha256(content).hexdigest() == digest
    except ValueError:
        fits = False
    if not fits:
        raise LedgerError(
            f"{log} is missing, or was truncated or replaced since its last run ended ({path.name} beside the ledger "
            "differs); restore both from a copy. Without one, treat the privacy budget of these people as spent"
        )


def _hash_of(ledger: Path) -> Path:
    return Path(ledger).with_name(Path(ledger).name + HASH)


def _write_hash(ledger: Path) -> None:
    content = read_bytes(ledger / PARTICIPANTS)
    write_atomic(_hash_of(ledger), f"{len(content)} {hashlib.sha256(content).hexdigest()}\n", private=True)


def forget_ledgers(folder: Path, because: str) -> dict[str, Any]:
    """Delete every ledger at or below a folder. Their totals, the date and the reason are recorded in a file.

    The record is in that folder, and also in the folder of the population to which the ledgers belonged.
    """
    folder = Path(folder).resolve()
    if not because.strip():
        raise ValueError("deleting a ledger needs a reason; state it, as it is recorded for later questions")
    found = ledgers_below(folder)
    if not found:
        raise FileNotFoundError(f"no ledger at or below {folder}; give a run folder, or the folder of a population")
    for ledger in found:
        if is_locked(ledger / LOCK):
            raise FileExistsError(f"a run is writing to {ledger}; wait for it to finish, or stop it")
    populations = {above for ledger in found for above in ledger.parents if (above / PEOPLE).exists()}
    records = {}
    for place in sorted({folder, *populations}):
        own = [ledger for ledger in found if place in ledger.parents]
        records[place] = {
            "forgotten": now(),
            "because": because.strip(),
            "ledgers": [str(ledger.relative_to(place)) for ledger in own],
            **totals([account for account in map(Account.read, own) if account is not None]),
        }
    for place, record in records.items():  # before anything is deleted
        line = json.dumps(record, ensure_ascii=False) + "\n"
        old = read_text(place / FORGOTTEN) if (place / FORGOTTEN).exists() else ""
        write_atomic(place / FORGOTTEN, old + line, private=True)
    for ledger in found:
        delete_ledger(ledger)
    return records[folder]


def delete_ledger(ledger: Path) -> None:
    """Delete a ledger at once: an incomplete ledger is an error for every process that adds up charges."""
    _hash_of(ledger).unlink(missing_ok=True)
    gone = ledger.with_name(f".{ledger.name}.{os.getpid()}{UNFINISHED}")
    os.rename(ledger, gone)
    shutil.rmtree(gone)


def totals(accounts: Sequence[Account]) -> dict[str, Any]:
    """The totals of some ledgers."""
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
    """The records of deleted ledgers of a folder, with the reasons."""
    file = Path(folder) / FORGOTTEN
    if not file.exists():
        return []
    records: list[dict[str, Any]] = []
    for number, line in enumerate(read_text(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = dict(parse_json(line))
            said = {key: _of(str, record[key]) for key in ("forgotten", "because")}
            records.append(record | said | {"ledgers": [_of(str, one) for one in record.get("ledgers", [])]})
        except _NOT_OURS as problem:
            raise LedgerError(
                f"{file}: line {number} cannot be read ({_why(problem)}), so the record of deleted ledgers is "
                "incomplete; restore it from a copy"
            ) from None
    return records

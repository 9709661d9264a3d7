"""The sequence before a site sends anything, the same for every kind of contribution.

    check against plan and policy -> compute -> outbox -> charge -> journal -> answer

The answer is in the outbox, its charge in the ledger and its entry in the journal before it is returned. A request that
comes again is answered from the outbox and costs nothing; a charge or entry that is missing because the site was killed
in between is made first. A message that has an entry and is no longer in the outbox is not computed again.

A new kind of contribution is one class: a `Contribution` that a `SiteRun` lists in its `handlers`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.charging import UNLIMITED, Charging
from fedrank.deploy.heads import SiteJournal, digest_of_sent
from fedrank.deploy.identity import IdentityKey, read_identity
from fedrank.deploy.outbox import OUTBOX, Outbox, Sent
from fedrank.deploy.plan import Plan
from fedrank.deploy.records import log_line
from fedrank.deploy.settings import SiteSettings, site_guarantees
from fedrank.experiments.runner.folder import Card, Receipt
from fedrank.files import private_folder, sync, write_atomic
from fedrank.ranking.model import load_weights
from fedrank.wire import Label, Part, Refused

SEED, LOG, PEOPLE, MODELS = "seed", "site.log", "people", "models"
R = TypeVar("R", bound="SiteRun")


class SiteHome:
    """The folder of a site: settings, keys, seed, log, ledgers, outboxes and results."""

    def __init__(self, folder: Path, settings: SiteSettings) -> None:
        self.folder, self.settings = folder, settings

    @cached_property
    def identity(self) -> IdentityKey:
        return read_identity(self.folder)

    @cached_property
    def journal(self) -> SiteJournal | None:
        """The journal of sent messages; None in a trial, whose people are simulated."""
        return None if self.settings.simulated else SiteJournal(self.folder, self.settings, self.identity)

    @property
    def seed(self) -> int:
        """A 63-bit secret: with it, every random draw of this site can be repeated."""
        path = self.folder / SEED
        if not path.exists():
            write_atomic(path, f"{secrets.randbits(63)}\n", private=True)
        try:
            return int(path.read_text(encoding="ascii"))
        except ValueError:
            raise ValueError(f"{path} does not contain a number; restore it from a backup") from None

    def log(self, line: str) -> None:
        """Write a line for the site's administrator; it is never sent."""
        with suppress(OSError):  # a full disk must not prevent the site from reporting it
            log_line(self.folder / LOG, line)

    def outbox(self, plan: Plan, data: bytes) -> Outbox:
        """The outbox of a run; refused if the digest of the site's data has changed since the run started."""
        outbox = Outbox(private_folder(self.folder / OUTBOX) / plan.digest[:32], plan.run)
        if (last := outbox.get(outbox.last)) is not None and last.data != data:
            raise Refused(
                "the data of this site have changed since it started to participate in this run; restore the earlier "
                "data, or start another run"
            )
        return outbox

    def charging(self, plan: Plan, people: int) -> Charging | None:
        """The charges of a run to the people of this site; None if the plan gives no guarantee."""
        guarantees, policy = site_guarantees(plan), self.settings.policy
        if not guarantees:
            return None
        limit = UNLIMITED if policy.largest_epsilon is None else policy.largest_epsilon
        return Charging(self.folder / PEOPLE, plan.digest[:32], people, guarantees, policy.delta, limit)

    def models(self, plan: Plan) -> Path:
        """The folder with the result of a run."""
        return private_folder(private_folder(self.folder / MODELS) / plan.digest[:16])


@dataclass
class SiteRun:
    """An open run at a site. Its kinds of requests are in `handlers`."""

    site: SiteHome
    plan: Plan
    outbox: Outbox
    facts: dict[str, Any]  # for the coordinator: must be the same at all sites
    data: bytes  # digest of the site's data; empty if people are simulated
    charging: Charging | None = None

    handlers: ClassVar[tuple[type[Handler[Any]], ...]] = ()
    does: ClassVar[str] = "does nothing"  # completes "this run ..."

    def __post_init__(self) -> None:
        self._opened: dict[type[Handler[Any]], Handler[Any]] = {}

    @property
    def steps(self) -> int:
        """The number of rounds that `fedrank deploy status` shows."""
        return self.plan.rounds

    @property
    def measures(self) -> list[str]:
        """Measures that this site reports without noise."""
        return []

    @property
    def noised(self) -> list[str]:
        """Measures that this site releases with noise."""
        return []

    def answer(self, label: Label, content: bytes) -> bytes:
        """The answer to a request of this run."""
        handlers: tuple[type[Handler[Any]], ...] = (*self.handlers, WitnessRequest)
        handler = next((one for one in handlers if label.kind in one.kinds), None)
        if handler is None:
            raise Refused(f"this run {self.does} and does not support requests of kind {label.kind!r}")
        if handler not in self._opened:
            self._opened[handler] = handler(self)
        return self._opened[handler].answer(label, content)

    def note_rounds_over(self, over: int) -> None:
        """Called with the number of completed rounds, which a site restored from a backup needs."""

    def complete(self, folder: Path) -> dict[str, str]:
        """Add the site's own part to a received model in a folder; return files that it adds or renames."""
        return {}

    def close(self) -> None:
        if self.charging is not None:
            self.charging.close()

    def charge(self, number: int, rows: NDArray[np.int64] | None, first: Callable[[], None]) -> None:
        """Write a message before it is sent (`first`), and charge it to rows of the ledger (None: no cost)."""
        if self.charging is None or rows is None:
            first()
        else:
            self.charging.charge(number, rows, first=first)

    def charge_once(self, number: int, rows: NDArray[np.int64] | None) -> None:
        """Charge a round that is not charged yet."""
        if self.charging is not None and rows is not None and not self.charging.charged(number):
            self.charging.charge(number, rows)

    def note(self, kind: str, number: int, sent: Sent, charged: bool) -> None:
        """Write the entry of a message to the journal, unless it is there."""
        if (journal := self.site.journal) is not None:
            charges = int(charged and self.charging is not None)
            journal.note(self.plan.run, kind, number, sent.attempt, digest_of_sent(sent), charges)


class Handler(ABC, Generic[R]):
    """Answers the requests of some kinds in an open run."""

    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, run: R) -> None:
        self.run = run

    @abstractmethod
    def answer(self, label: Label, content: bytes) -> bytes:
        """The answer, or `Refused`."""

    def reply(self, kind: str, label: Label, **parts: bytes) -> bytes:
        return protocol.reply(kind, label, self.run.site.settings.id, **parts)


@dataclass(frozen=True)
class CheckedRequest:
    """A request that was read and checked."""

    label: Label
    digest: bytes  # of the received bytes
    number: int  # in the outbox and the ledger
    name: str  # in messages, such as "round 3"
    rows: NDArray[np.int64] | None = None  # ledger rows that are charged; None: no cost
    attempt: int = 0
    content: Any = None  # what the contribution needs


@dataclass(frozen=True)
class Computed:
    """The result of a contribution: the answer, and what the outbox stores with it."""

    answer: bytes
    values: bytes = b""
    memory: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    repeatable: bool = True  # False: the answer is not stored and never sent again


class Contribution(Handler[R]):
    """One kind of contribution: its requests and their cost (`read`), and the answers (`compute`)."""

    attempts: ClassVar[bool] = False  # whether another request with the same number may follow as a new attempt
    record: ClassVar[str] = "sent"  # kind of the entries in the journal; other kinds have one message per run

    @abstractmethod
    def read(self, label: Label, content: bytes) -> CheckedRequest:
        """Check a request against the plan; raise `Refused` if it does not match."""

    @abstractmethod
    def compute(self, request: CheckedRequest) -> Computed:
        """The answer to a request that was never answered before. Nothing has been sent yet."""

    def check_new(self, request: CheckedRequest, before: Sent | None) -> None:
        """Refuse an answer that may have been sent earlier with other noise; `before` is an earlier attempt."""

    def sent(self, request: CheckedRequest) -> Sent | None:
        """The stored message with this number."""
        return self.run.outbox.get(request.number)

    def store(self, sent: Sent) -> None:
        """Write a message before it is sent."""
        self.run.outbox.put(sent)

    def charge(self, request: CheckedRequest, first: Callable[[], None]) -> None:
        """Write a message before it is sent (`first`), and charge it."""
        self.run.charge(request.number, request.rows, first)

    def charge_once(self, request: CheckedRequest) -> None:
        """Charge a stored message that is not charged yet."""
        self.run.charge_once(request.number, request.rows)

    def answer(self, label: Label, content: bytes) -> bytes:
        return self.contribute(self.read(label, content))

    def may_repeat(self, request: CheckedRequest) -> bool:
        """Whether a restored site may answer a request again whose message is lost; it is charged again."""
        return False

    def contribute(self, request: CheckedRequest) -> bytes:
        """The sequence for a checked request."""
        run, before = self.run, self.sent(request)
        number = request.number if self.record == "sent" else 0
        self._check_recorded(request, number, before)
        if before is not None and before.call == request.digest and before.answer:
            self.charge_once(request)
            # A restored site may have charged this round as one that was over; the journal counts that charge once.
            over = run.site.journal is not None and run.site.journal.find(run.plan.run, "over", number) is not None
            run.note(self.record, number, before, request.rows is not None and not over)
            return before.answer
        if before is not None and not (self.attempts and request.attempt > before.attempt):
            raise Refused(f"{request.name} was already answered for a different request and is not answered twice")
        self.check_new(request, before)
        made = self.compute(request)
        answer = made.answer if made.repeatable else b""
        sent = Sent(request.number, request.attempt, request.digest, answer, made.values, made.memory, run.data)
        self.charge(request, lambda: self.store(sent))
        run.note(self.record, number, sent, request.rows is not None)
        return made.answer

    def _check_recorded(self, request: CheckedRequest, number: int, before: Sent | None) -> None:
        """Refuse if the journal has an entry for this message, but the stored message is lost or was replaced."""
        journal = self.run.site.journal
        entry = None if journal is None else journal.find(self.run.plan.run, self.record, number)
        if entry is None or (self.attempts and request.attempt > entry.attempt):
            return
        repeated = before is not None and before.call == request.digest and bool(before.answer)
        lost = before is None and not self.may_repeat(request)
        older = before is not None and before.attempt < entry.attempt
        if lost or older or (repeated and before is not None and digest_of_sent(before) != entry.digest):
            raise Refused(
                f"{request.name} was answered, and the stored message is lost or was replaced; restore the outbox from "
                "a backup, or continue with the next round"
            )


class WitnessRequest(Handler[SiteRun]):
    """Answers a request for statements about other sites, which follow every answer of a site."""

    kinds = ("witness",)

    def answer(self, label: Label, content: bytes) -> bytes:
        wire.unpack(content, Label("witness", label.run, label.round), {})
        return self.reply("letters", label, letters=b"")


class ReceivedModel(Handler[SiteRun]):
    """Receives the model, its card, and the receipt of a site that left."""

    kinds = ("result",)

    def answer(self, label: Label, content: bytes) -> bytes:
        parts = {name: Part("|S", protocol.MAX_MODEL) for name in ("model", "card", "receipt")}
        _, found = wire.unpack(content, Label("result", label.run, label.round), parts)
        names = {"model": "model.json", "card": Card.FILE, "receipt": Receipt.FILE}
        files = {name: found[part] for part, name in names.items() if found[part]}

        def check(folder: Path) -> None:
            if "model.json" in files:
                load_weights(folder / "model.json")
            for kind in (Card, Receipt):
                if kind.FILE in files:
                    kind.read(folder)

        save_result(self.run, files, check)
        return self.reply("facts", label, facts=protocol.facts({"kept": True}))


def save_result(run: SiteRun, files: Mapping[str, bytes], check: Callable[[Path], None]) -> None:
    """Save received files in this order, after they were checked (`check`) in a separate folder."""
    folder = run.site.models(run.plan)
    with tempfile.TemporaryDirectory(dir=folder) as apart:
        for name, content in files.items():
            write_atomic(Path(apart) / name, content, private=True)
        try:
            check(Path(apart))
        except Refused:
            raise
        except (ValueError, KeyError, TypeError, OSError) as problem:
            raise Refused(f"the result cannot be read: {problem}") from None
        saved = {name: name for name in files}
        if "model.json" in files:
            saved |= run.complete(Path(apart))
        for name, under in saved.items():
            os.replace(Path(apart) / name, folder / under)
    sync(folder)


def digest_of(content: bytes) -> bytes:
    """The digest that identifies a request in the outbox."""
    return hashlib.sha256(content).digest()

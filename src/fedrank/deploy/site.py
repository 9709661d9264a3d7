"""A site: answers requests of the coordinator within its policy.

It is independent of the transport: it receives and returns bytes. Refusals contain only reasons from this code; errors
that may name data stay in `site.log`. `site_runtime` defines the sequence before anything is sent.
"""

from __future__ import annotations

import errno
import json
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fedrank import __version__, wire
from fedrank.deploy import consent, heads, protocol
from fedrank.deploy.backup import HEADS
from fedrank.deploy.budget import Budget, charged_prices
from fedrank.deploy.data_sources import about_data
from fedrank.deploy.folder_members import MEMBERSHIP
from fedrank.deploy.forests import ForestRun
from fedrank.deploy.outbox import OUTBOX, OutboxError
from fedrank.deploy.plan import LARGEST, PROTOCOL, OtherVersion, Plan
from fedrank.deploy.records import printable
from fedrank.deploy.settings import SiteSettings, read_site
from fedrank.deploy.silos import SiloRun
from fedrank.deploy.site_releases import gate_objections
from fedrank.deploy.site_runtime import SiteHome, SiteRun
from fedrank.deploy.site_updates import UpdateRun
from fedrank.files import FULL, locked, write_atomic
from fedrank.privacy.ledger import LedgerError
from fedrank.wire import Label, Part, Refused

STATUS, LOCK = "status.json", "lock"
SECONDS_BETWEEN_STATUS = 2.0
UNCONFIRMED = ("witness", "partners", "result", "merged")  # requests whose answers contain nothing of the site's data
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Site(SiteHome):
    """A running site. One process at a time: it holds the lock of its folder."""

    def __init__(self, folder: Path, settings: SiteSettings) -> None:
        super().__init__(folder, settings)
        self._turn = threading.Lock()  # transports call from several threads
        self._locks = ExitStack()
        self._runs: dict[bytes, SiteRun] = {}
        self._status_at = 0.0
        self._witness = heads.Witness(folder / HEADS)

    @classmethod
    def open(cls, folder: str | Path) -> Site:
        """Open the site of a folder; close it afterwards."""
        folder = Path(folder)
        site = cls(folder, read_site(folder))
        site._locks.enter_context(locked(folder / LOCK, f"site {site.settings.name!r}"))
        return site

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        with self._turn:
            self._close_runs()
            self._locks.close()

    def _close_runs(self) -> None:
        for run in self._runs.values():
            run.close()
        self._runs.clear()

    def answer(self, content: bytes) -> bytes:
        """The answer to a request, or a refusal with its reason."""
        with self._turn:
            return self._answered(content)

    def hear(self, content: bytes) -> None:
        """Process a request without returning an answer."""
        with self._turn:
            self._answered(content)

    def _answered(self, content: bytes) -> bytes:
        label = Label("nothing", bytes(16), 0)
        try:
            request, seen = heads.split(content)
            label = wire.read_label(request)
            if self.journal is not None:
                self.journal.check(seen)
            found = self._hello(label, request) if label.kind == "hello" else self._answer_run(label, request, seen)
            found = self._with_heads(label, found, seen)
        except Exception as problem:
            self.log(f"{label.kind}, round {label.round}: {type(problem).__name__}: {problem}")
            self._write_status(label, refused=str(problem))
            if isinstance(problem, (OSError, LedgerError, heads.RolledBack)):
                self.__dict__.pop("journal", None)  # read again for the next request
            if isinstance(problem, (OSError, LedgerError)) and label.run in self._runs:
                self._runs.pop(label.run).close()  # the state on disk is unknown until the run is opened again
            return protocol.refusal(label, self.settings.id, _public_reason(problem))
        self._write_status(label)
        return found

    def _with_heads(self, label: Label, answer: bytes, seen: heads.Seen | None) -> bytes:
        """An answer with the head of this site and those that it has seen of the others."""
        run = self._runs.get(label.run)
        if self.journal is None or seen is None or run is None:
            return answer
        keys = self._keys_of_others(run.plan)
        self._witness.keep(seen.heads, keys)
        self._witness.write()
        return self.journal.answer(answer, seen, self._witness.of(keys.values()))

    def _hello(self, label: Label, content: bytes) -> bytes:
        """Check a plan; the round of the message is the last completed one."""
        _, found = wire.unpack(content, Label("hello", label.run, label.round), {"plan": Part("|S", LARGEST)})
        facts: dict[str, Any] = {"version": __version__, "protocol": PROTOCOL}
        try:
            plan = Plan.load(found["plan"])
        except OtherVersion as problem:
            self.log(str(problem))
            return protocol.reply("facts", label, self.settings.id, facts=protocol.facts(facts))
        if plan.run != label.run:
            raise Refused("the message and its plan name different runs")
        if label.round > plan.last_number:
            raise Refused(f"round {label.round} is reported as complete, but the plan has {plan.last_number}")
        if objections := self.settings.objections(plan):
            raise Refused(f"{protocol.REFUSED[1]}: {'; '.join(objections)}")
        self._check_consent(plan)
        self._check_identity(plan)
        if plan.run not in self._runs:
            self._close_runs()
            if self.journal is not None:
                self.journal.check_files()
            self._check_start(plan)
            kind = ForestRun if plan.forests is not None else SiloRun if plan.silos is not None else UpdateRun
            self._runs[plan.run] = kind.open(self, plan)
        run = self._runs[plan.run]
        run.note_rounds_over(label.round)
        facts |= {"last": run.outbox.last, "measures": run.measures, "noised": run.noised, **run.facts}
        if not plan.simulated:
            facts["data"] = about_data(self.settings.data)
        return protocol.reply("facts", label, self.settings.id, facts=protocol.facts(facts))

    def _answer_run(self, label: Label, content: bytes, seen: heads.Seen | None) -> bytes:
        if label.run not in self._runs:
            raise Refused(protocol.SAY_HELLO)
        run = self._runs[label.run]
        self._check_consent(run.plan)  # it may have been withdrawn
        if label.kind not in UNCONFIRMED:
            self._check_confirmed(run, seen)
        return run.answer(label, content)

    def _check_confirmed(self, run: SiteRun, seen: heads.Seen | None) -> None:
        """Refuse unless another site confirms the journal; sites that share a folder are not online together."""
        keys = {id: key for id, key in self._keys_of_others(run.plan).items() if key}
        if self.journal is not None and keys and not (self.folder / MEMBERSHIP).exists():
            self.journal.check_confirmed(() if seen is None else seen.statements, keys)

    def _keys_of_others(self, plan: Plan) -> dict[int, str]:
        return {party.clients[0]: party.identity for party in plan.sites if party.name != self.settings.name}

    def _check_identity(self, plan: Plan) -> None:
        """Refuse a plan with another key for this site: witnesses would not recognise its heads."""
        known = "" if plan.simulated else plan.party(self.settings.name).identity
        if known and known != self.identity.public:
            raise Refused("the key of this site in the plan is not its own; ask the coordinator for a new plan")

    def _check_start(self, plan: Plan) -> None:
        """Refuse to start a run that budget or gate would not let end; a started one continues while it can."""
        if (self.folder / OUTBOX / plan.digest[:32]).is_dir():
            return
        policy = self.settings.policy
        prices = charged_prices(plan, policy.delta, policy.released_measures)
        found = Budget.of(self.folder, policy, plan, prices).objections()
        if found := found + gate_objections(self.folder, self.settings, plan):
            raise Refused(f"{protocol.REFUSED[1]}: {'; '.join(found)}")

    def _check_consent(self, plan: Plan) -> None:
        if (why := consent.objection(self.folder, plan, self.settings.policy)) is not None:
            raise Refused(why)

    def _write_status(self, label: Label, refused: str = "") -> None:
        """Write the status for `fedrank deploy status`; not for every answer, because writing to disk is slow."""
        now = time.monotonic()
        if not refused and now - self._status_at < SECONDS_BETWEEN_STATUS:
            return
        self._status_at = now
        run = self._runs.get(label.run)
        found = {
            "at": time.time(),
            "run": "" if run is None else run.plan.name,
            "digest": "" if run is None else run.plan.digest,
            "asked": label.kind,
            "round": label.round,
            "rounds": 0 if run is None else run.steps,
            "refused": printable(refused),
        }
        with suppress(OSError):  # the answer is more important than the status
            write_atomic(self.folder / STATUS, json.dumps(found, ensure_ascii=False) + "\n", private=True)


def _public_reason(problem: Exception) -> str:
    """The reason that the coordinator receives. Messages that may name data stay here."""
    if isinstance(problem, Refused):
        return str(problem)
    if isinstance(problem, LedgerError):
        return "the ledger of this site is damaged, so it sends nothing; the reason is in its log"
    if isinstance(problem, OutboxError):
        return "the outbox of this site cannot be read, so it sends nothing; its log names the file"
    if isinstance(problem, OSError) and problem.errno in FULL:
        return "the disk of this site is full, so it sends nothing"
    if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
        return "this site cannot write to its own folder, so it sends nothing; its log or terminal shows the path"
    return f"{protocol.SITE_FAILS[0]} ({type(problem).__name__}), so it sends nothing; the reason is in its log"

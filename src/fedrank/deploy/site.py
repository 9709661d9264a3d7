"""A site: it answers requests, keeps what it owes its people, and lets nothing leave that is not on its disk.

    policy and budget -> learn and protect -> outbox -> charge -> answer

It knows no engine: bytes come in, bytes go out. Whatever does not fit is refused with its reason, and nothing of the
site's own words leaves but reasons that are written here: a problem that speaks of data stays in `site.log`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank import __version__, wire
from fedrank.deploy import consent, protocol
from fedrank.deploy.backup import Restored, hear_last_round
from fedrank.deploy.charging import UNLIMITED, Charging
from fedrank.deploy.forests import ForestRun, keep_merged
from fedrank.deploy.identity import IdentityKey, member_key, read_identity
from fedrank.deploy.outbox import OUTBOX, Outbox, OutboxError, Sent
from fedrank.deploy.plan import LARGEST, PROTOCOL, OtherVersion, Plan, PlannedSite
from fedrank.deploy.protocol import ASKED, OBSERVED, Answers
from fedrank.deploy.sent_log import SentLog
from fedrank.deploy.settings import SiteSettings, read_site, site_promises
from fedrank.deploy.silos import STEPS, SiloRun
from fedrank.deploy.site_data import ClientSiteData, NotYet, RecordedSiteData, facts_of, open_site_data
from fedrank.experiments.runner.folder import Card, Receipt
from fedrank.federated.client import ClientAnswer, ClientTask, answer, answer_from_holdings, first_memory
from fedrank.federated.messages import Call, ExpectedCall
from fedrank.files import FULL, locked, parse_json, private_folder, sync, write_whole
from fedrank.privacy.ledger import LedgerError
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import load_weights, save_model
from fedrank.seeds import Chance
from fedrank.trees.histograms import Histograms
from fedrank.types import Memory, Observed, OwnChance, SimulatedClients, has_trait
from fedrank.wire import Label, Part, Refused

SEED, LOG, STATUS, LOCK = "seed", "site.log", "status.json", "lock"
PEOPLE, MODELS, MEASURED = "people", "models", "measured.json"
LONGEST_LOG = 4 << 20  # bytes, before the log begins anew; the old one is kept once
SECONDS_BETWEEN_STATUS = 2.0
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Site:
    """A site at work. One process at a time: it holds the lock of its folder."""

    def __init__(self, folder: Path, settings: SiteSettings) -> None:
        self.folder, self.settings = folder, settings
        self._turn = threading.Lock()  # engines call from several threads
        self._held = ExitStack()
        self._runs: dict[bytes, _Run | ForestRun | SiloRun] = {}
        self._growing: Any = None  # the halves of a forest that grows, of the run that is open
        self._told = 0.0
        self._identity: IdentityKey | None = None
        self._journal = None if settings.data.impressions is None else SentLog(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Site:
        """The site of a folder, until it is closed."""
        folder = Path(folder)
        site = cls(folder, read_site(folder))
        site._held.enter_context(locked(folder / LOCK, f"site {site.settings.name!r}"))
        return site

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def close(self) -> None:
        with self._turn:
            for run in self._runs.values():
                run.close()
            self._runs.clear()
            self._held.close()

    @property
    def identity(self) -> IdentityKey:
        if self._identity is None:
            self._identity = read_identity(self.folder)
        return self._identity

    @property
    def seed(self) -> int:
        """64 bits that nobody else knows: whoever knows them knows every draw of this site."""
        path = self.folder / SEED
        if not path.exists():
            write_whole(path, f"{secrets.randbits(63)}\n", private=True)
        return int(path.read_text(encoding="ascii"))

    def answer(self, content: bytes) -> bytes:
        """The answer to whatever came; a request that is not met is answered with the reason.

        Where the site is one person, it stands in the journal of what left before it is returned.
        """
        with self._turn:
            label, found = self._answered(content)
            if self._journal is not None:
                self._journal.note(label, wire.label_of(found).kind, len(found))
            return found

    def hear(self, content: bytes) -> None:
        """Do what is asked, where nobody waits for an answer and none leaves."""
        with self._turn:
            self._answered(content)

    def _answered(self, content: bytes) -> tuple[Label, bytes]:
        """What was asked, as far as it can be read, and the answer."""
        label = Label("nothing", bytes(16), 0)
        try:
            label = wire.label_of(content)
            kind = _ANSWERS.get(label.kind)
            if kind is None:
                raise Refused(f"a site does not answer what is of kind {label.kind!r}")
            found = kind(self, label, content)
        except Exception as problem:
            self.log(f"{label.kind}, round {label.round}: {type(problem).__name__}: {problem}")
            self._tell(label, refused=str(problem))
            if isinstance(problem, (OSError, LedgerError)) and label.run in self._runs:
                self._runs.pop(label.run).close()  # nobody knows what is on the disk, until it is opened again
            return label, protocol.refusal(label, self.settings.id, _leaving(problem))
        self._tell(label)
        return label, found

    def log(self, line: str) -> None:
        """A line for whoever looks after the site; it never leaves."""
        path = self.folder / LOG
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):  # a full disk must not keep a site from saying so
            if path.exists() and path.stat().st_size > LONGEST_LOG:
                os.replace(path, path.with_suffix(".log.1"))
            with open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "a", encoding="utf-8") as file:
                file.write(f"{stamp} {protocol.printable(line)}\n")

    def _tell(self, label: Label, refused: str = "") -> None:
        """What `fedrank deploy status` shows here; not before every answer, since a disk takes its time."""
        now = time.monotonic()
        if not refused and now - self._told < SECONDS_BETWEEN_STATUS:
            return
        self._told = now
        run = self._runs.get(label.run)
        found = {
            "at": time.time(),
            "run": "" if run is None else run.plan.name,
            "digest": "" if run is None else run.plan.digest,
            "asked": label.kind,
            "round": label.round,
            "rounds": 0 if run is None else run.steps if isinstance(run, SiloRun) else run.plan.rounds,
            "refused": protocol.printable(refused),
        }
        with suppress(OSError):  # what was to be said was said; that it cannot be shown here is no reason to stop
            write_whole(self.folder / STATUS, json.dumps(found, ensure_ascii=False) + "\n", private=True)

    # What is asked

    def _hello(self, label: Label, content: bytes) -> bytes:
        """Whether a plan fits; the round of the message is the last that is over."""
        _, found = wire.unpack(content, Label("hello", label.run, label.round), {"plan": Part("|S", LARGEST)})
        mine: dict[str, Any] = {"version": __version__, "protocol": PROTOCOL}
        try:
            plan = Plan.load(found["plan"])
        except OtherVersion as problem:
            self.log(str(problem))
            return protocol.reply("facts", label, self.settings.id, facts=protocol.facts(mine))
        if plan.run != label.run:
            raise Refused("the message names another run than its plan")
        if label.round > plan.last_number:
            raise Refused(f"round {label.round} is said to be over, and the plan has {plan.last_number}")
        self._check(plan)
        run = self._runs.get(plan.run)
        if run is None:
            for old in list(self._runs):
                self._runs.pop(old).close()
            run = self._runs[plan.run] = self._opened(plan)
        run.hear(label.round)
        facts = mine | {"last": run.outbox.last, "measures": run.reported, **run.facts}
        if run.place is not None:
            facts["identities"] = {str(id): run.key(id).public for id in run.party.clients}
        return protocol.reply("facts", label, self.settings.id, facts=protocol.facts(facts))

    def _check(self, plan: Plan) -> None:
        settings = self.settings
        if found := settings.objections(plan):
            raise Refused("; ".join(found))
        if (why := consent.objection(self.folder, plan, settings.policy)) is not None:
            raise Refused(why)

    def _opened(self, plan: Plan) -> _Run | ForestRun | SiloRun:
        if plan.forests is None and plan.silos is None:
            return _Run.open(self, plan)
        outbox = Outbox(private_folder(self.folder / OUTBOX) / plan.digest[:32], plan.run)
        if plan.silos is not None:
            return SiloRun.open(self.folder, self.settings, plan, outbox, self.identity, self.log)
        people = len(plan.party(self.settings.name).clients) if plan.simulated else 1
        return ForestRun.open(self.folder, self.settings, plan, outbox, self.charging(plan, people))

    def charging(self, plan: Plan, people: int) -> Charging | None:
        """The charges of a run on the people of this site; None where nothing is promised."""
        promises, policy = site_promises(plan), self.settings.policy
        if not promises:
            return None
        limit = UNLIMITED if policy.largest_epsilon is None else policy.largest_epsilon
        return Charging(self.folder / PEOPLE, plan.digest[:32], people, promises, policy.delta, limit)

    def _run(self, label: Label) -> _Run:
        run = self._known(label)
        if not isinstance(run, _Run):
            what = "merges forests" if isinstance(run, ForestRun) else "trains through sketches"
            raise Refused(f"this run {what}, and there is nothing of kind {label.kind!r} in it")
        return run

    def _forest_run(self, label: Label) -> ForestRun:
        run = self._known(label)
        if not isinstance(run, ForestRun):
            raise Refused(f"this run merges no forests, and there is nothing of kind {label.kind!r} in it")
        return run

    def _known(self, label: Label) -> _Run | ForestRun | SiloRun:
        run = self._runs.get(label.run)
        if run is None:
            raise Refused(protocol.SAY_HELLO)
        if (why := consent.objection(self.folder, run.plan, self.settings.policy)) is not None:
            raise Refused(why)  # somebody here may have refused it since
        return run

    def _partners(self, label: Label, content: bytes) -> bytes:
        """Everybody's public keys, where sites simulate clients."""
        run = self._run(label)
        _, found = wire.unpack(content, Label("partners", label.run, 0), {"keys": Part("|S", protocol.LARGEST_FACTS)})
        run.meet(_read_keys(found["keys"]))
        return protocol.reply("letters", label, self.settings.id, letters=b"")

    def _round(self, label: Label, content: bytes) -> bytes:
        run = self._run(label)
        if run.place is not None:
            raise Refused("what this run adds up leaves the site under the masks of a secure sum only")
        before, asked = run.outbox.get(label.round), hashlib.sha256(content).digest()
        if before is not None and before.call != asked:
            raise Refused(f"round {label.round} was answered here for another call, and is not answered twice")
        call, whom = run.read_call(label, content)
        rows = run.rows(whom["client"].tolist())
        if before is not None:
            run.pay_once(label.round, rows)  # unless that was done before it was killed
            return before.answer
        run.check_unanswered(label.round)
        used = run.searches(label.round)
        done = run.answered(call, whom, used)
        answers = Answers(tuple(one.message.pack() for one in done), run.observed(done), run.personal(done))
        sent = answers.pack(Label("answers", label.run, label.round, label.attempt, self.settings.id))
        run.send(Sent(label.round, label.attempt, asked, sent, b"", run.kept(done), run.data, used), rows)
        return sent

    # A secure sum, phase by phase. Its secrets are in memory alone: whoever is killed in between begins a new attempt.

    def _advertise(self, label: Label, content: bytes) -> bytes:
        run = self._run(label)
        if run.place is None:
            raise Refused("this run has no secure sum")
        before = run.outbox.get(label.round)
        if before is not None and label.attempt <= before.attempt:
            raise Refused(f"attempt {label.attempt} of round {label.round} has been, and masks are never used twice")
        call, whom = run.read_call(label, content)
        if before is None:
            run.check_unanswered(label.round)
        used = run.searches(label.round)
        done = run.answered(call, whom, used)
        asked = hashlib.sha256(content).digest()
        run.sum = _Sum(label, asked, done, [run.sum_client(label, one) for one in done], used)
        answers = Answers(tuple(one.advertise() for one in run.sum.clients), run.observed(done), run.personal(done))
        return answers.pack(Label("answers", label.run, label.round, label.attempt, self.settings.id))

    def _phase(self, label: Label, content: bytes) -> bytes:
        run = self._run(label)
        total = run.sum
        if total is None or (total.label.round, total.label.attempt) != (label.round, label.attempt):
            raise Refused(f"no secure sum of round {label.round}, attempt {label.attempt} is under way here")
        largest = run.largest_letter
        parts: dict[str, Part] = {
            "share": {"roster": Part("|S", largest)},
            "mask": {"posts": Part("|S", len(total.clients) * (largest + 4))},
            "sign": {"request": Part("|S", largest)},
            "open": {"request": Part("|S", largest), "consent": Part("|S", largest)},
        }[label.kind]
        _, found = wire.unpack(content, Label(label.kind, label.run, label.round, label.attempt), parts)
        try:
            sent = total.step(run, self, label, found)
        except Refused:
            raise
        except ValueError as problem:
            raise Refused(f"secure sum: {problem}") from None  # it speaks of keys and shares, never of data
        return protocol.reply("letters", label, self.settings.id, letters=protocol.bundle(sent))

    # Afterwards

    def _measure(self, label: Label, content: bytes) -> bytes:
        """Sums of measures of one model: they carry no noise, so that whoever may ask often could read single queries.

        A run has one, and the first that is asked about is it.
        """
        run = self._run(label)
        names = run.reported
        if not names:
            raise Refused("this site reports no measures of its own queries")
        parts = {"weights": Part("<f4", run.plan.sent)}
        _, found = wire.unpack(content, Label("measure", label.run, label.round), parts)
        asked, path = hashlib.sha256(content).hexdigest(), self._models(run.plan) / MEASURED
        if path.exists():
            before = parse_json(path.read_bytes())
            if before["asked"] != asked:
                raise Refused("measures of one model were reported in this run, and none of another are")
            return protocol.reply(
                "facts", label, self.settings.id, facts=protocol.facts({"measures": before["measures"]})
            )
        table = run.measures(found["weights"].astype(np.float64), names)
        write_whole(path, json.dumps({"asked": asked, "measures": table}) + "\n", private=True)
        return protocol.reply("facts", label, self.settings.id, facts=protocol.facts({"measures": table}))

    def _models(self, plan: Plan) -> Path:
        """Where the result of a run lies."""
        return private_folder(private_folder(self.folder / MODELS) / plan.digest[:16])

    def _result(self, label: Label, content: bytes) -> bytes:
        """The model and its card; both are checked before they lie where somebody may use them."""
        run = self._known(label)
        if isinstance(run, ForestRun):
            raise Refused("this run merges forests, and there is nothing of kind 'result' in it")
        parts = {name: Part("|S", protocol.LARGEST_MODEL) for name in ("model", "card", "receipt")}
        _, found = wire.unpack(content, Label("result", label.run, label.round), parts)
        folder = self._models(run.plan)
        files = {"model.json": found["model"], "privacy.json": found["card"], "receipt.json": found["receipt"]}
        files = {name: content for name, content in files.items() if content}
        with tempfile.TemporaryDirectory(dir=folder) as apart:
            for name, content in files.items():
                write_whole(Path(apart) / name, content, private=True)
            _check_result(Path(apart), files)
            if "model.json" in files:
                run.complete(Path(apart) / "model.json")
            for name in files:
                os.replace(Path(apart) / name, folder / name)
        sync(folder)
        return protocol.reply("facts", label, self.settings.id, facts=protocol.facts({"kept": True}))

    # Documents

    def _silo(self, label: Label, content: bytes) -> bytes:
        run = self._known(label)
        if not isinstance(run, SiloRun):
            raise Refused(f"this run sketches no documents, and there is nothing of kind {label.kind!r} in it")
        return run.answer(label, content)

    # Forests

    def _forest(self, label: Label, content: bytes) -> bytes:
        return self._forest_run(label).answer(label, content)

    def _grow(self, label: Label, content: bytes) -> bytes:
        """Histograms of own rows, where all sites grow one forest."""
        from fedrank.deploy.joint_forest import GrowingRun

        run = self._forest_run(label)
        if not isinstance(run.experiment.merge, Histograms):
            raise Refused("this run merges forests, and there is nothing of kind 'grow' in it")
        if self._growing is None or self._growing.run is not run:
            self._growing = GrowingRun.open(run, self.identity)
        return bytes(self._growing.answer(label, content))

    def _merged(self, label: Label, content: bytes) -> bytes:
        keep_merged(self._forest_run(label), self.folder / MODELS, label, content)
        return protocol.reply("facts", label, self.settings.id, facts=protocol.facts({"kept": True}))


_ANSWERS: dict[str, Callable[[Site, Label, bytes], bytes]] = {
    "hello": Site._hello,
    "partners": Site._partners,
    "round": Site._round,
    "advertise": Site._advertise,
    "share": Site._phase,
    "mask": Site._phase,
    "sign": Site._phase,
    "open": Site._phase,
    "measure": Site._measure,
    "result": Site._result,
    "forest": Site._forest,
    "grow": Site._grow,
    "merged": Site._merged,
    **dict.fromkeys([*STEPS, "silo-turn"], Site._silo),
}


def _leaving(problem: Exception) -> str:
    """What the coordinator is told of a problem. Words that may speak of data stay here."""
    if isinstance(problem, NotYet):
        return problem.leaving
    if isinstance(problem, Refused):
        return str(problem)
    if isinstance(problem, LedgerError):
        return "the ledger of this site cannot be trusted, so that nothing is sent; its log says why"
    if isinstance(problem, OutboxError):
        return "what this site sent before cannot be read, so that nothing is sent; its log says which file"
    if isinstance(problem, OSError) and problem.errno in FULL:
        return "the disk of this site is full, so that nothing is sent"
    if isinstance(problem, OSError) and problem.errno in UNWRITABLE:
        return "this site cannot write to its own folder, so that nothing is sent; its log or its screen says where"
    return f"something is wrong at this site ({type(problem).__name__}), so that nothing is sent; its log says what"


def _read_keys(content: bytes) -> Any:
    try:
        return parse_json(content)
    except ValueError as problem:
        raise Refused(f"its keys cannot be read: {problem}") from None


def _check_result(folder: Path, files: Mapping[str, bytes]) -> None:
    """Refuse a model, a card or a receipt that cannot be read."""
    try:
        if "model.json" in files:
            load_weights(folder / "model.json")
        for kind in (Card, Receipt):
            if kind.FILE in files:
                kind.read(folder)
    except (ValueError, KeyError, TypeError) as problem:
        raise Refused(f"what was made together cannot be read: {problem}") from None


@dataclass
class _Sum:
    """A secure sum under way: the site's clients in it, and the numbers that they will mask."""

    label: Label
    asked: bytes
    done: list[ClientAnswer]
    clients: list[Any]
    used: tuple[int, ...]  # recorded searches behind them

    def step(self, run: _Run, site: Site, label: Label, found: dict[str, Any]) -> list[bytes]:
        if label.kind == "share":
            return [client.share(found["roster"]) for client in self.clients]
        if label.kind == "mask":
            posts = protocol.unbundle(found["posts"], len(self.clients), run.largest_letter)
            if len(posts) != len(self.clients):
                raise Refused(f"{len(posts)} posts came for {len(self.clients)} clients of this site")
            masked = [
                client.mask(one.message.payload, post)
                for client, one, post in zip(self.clients, self.done, posts, strict=True)
            ]
            # Numbers under masks have noise of their own, drawn for this attempt: each attempt is paid for.
            values = b"".join(one.message.payload.astype("<i8").tobytes() for one in self.done)
            kept = run.kept(self.done)
            sent = Sent(label.round, label.attempt, self.asked, b"", values, kept, run.data, self.used)
            run.send(sent, run.rows([one.message.sender for one in self.done]))
            return masked
        if label.kind == "sign":
            return [client.sign(found["request"]) for client in self.clients]
        return [client.unmask(found["request"], found["consent"]) for client in self.clients]


@dataclass
class _Run:
    """What a site has open of one run."""

    site: Site
    plan: Plan
    party: PlannedSite
    task: ClientTask
    outbox: Outbox
    facts: dict[str, Any]
    held: ClientSiteData | RecordedSiteData | None  # None: the site's data do not fit the plan
    charging: Charging | None
    place: SecureAggregation | None  # where a secure sum is run by its protocol
    data: bytes  # digest of them; empty where people are simulated
    publics: dict[int, bytes] = field(default_factory=dict)  # of everybody in a secure sum
    sum: _Sum | None = None

    @classmethod
    def open(cls, site: Site, plan: Plan) -> _Run:
        experiment, settings = plan.experiment, site.settings
        mechanism: Any = experiment.mechanism
        task = ClientTask(experiment.learner, experiment.local, mechanism)
        outbox = Outbox(private_folder(site.folder / OUTBOX) / plan.digest[:32], plan.run)
        facts, data = facts_of(settings, plan)
        if (last := outbox.get(outbox.last)) is not None and last.data != data:
            raise Refused(
                "the data of this site have changed since it took part in this run; bring back those of before, or "
                "begin another run"
            )
        fits = facts == {"features": plan.features, "feature_names": plan.feature_names, "normalised": plan.normalised}
        held = open_site_data(site.folder, settings, plan) if fits else None
        charging = None if held is None else site.charging(plan, held.people)
        place = getattr(mechanism, "place", None)
        secure = place if isinstance(place, SecureAggregation) and place.sum == "protocol" else None
        run = cls(site, plan, plan.party(settings.name), task, outbox, facts, held, charging, secure, data)
        if secure is not None and not plan.simulated:
            run.meet_sites()
        return run

    def close(self) -> None:
        if self.charging is not None:
            self.charging.close()

    def hear(self, over: int) -> None:
        """Take note, where this site came back from a backup, of which rounds are over: they count as charged."""
        run = self.plan.run.hex()
        mark = hear_last_round(self.site.folder, run, over)
        if mark is None or self.charging is None or self.held is None or not self.plan.in_step:
            return
        everybody = np.unique(self.held.ledger_rows)
        for round in range(1, min(mark.told[run] + 1, self.plan.last_number) + 1):
            self.pay_once(round, everybody)

    def check_unanswered(self, round: int) -> None:
        """Refuse a round of which something may have left that is not here any more: its noise would be another."""
        run, mark = self.plan.run.hex(), Restored.read(self.site.folder)
        if mark is not None:
            if (why := mark.objection(run, round, self.plan.in_step)) is not None:
                raise Refused(why)
            if mark.repeats(run, round):
                return
        if self.place is None and self.charging is not None and self.charging.charged(round):
            raise Refused(
                f"people here have paid for round {round}, and what was sent for it is gone; bring back the outbox "
                "from a backup, or go on with the next round"
            )

    def pay_once(self, round: int, rows: NDArray[np.int64]) -> None:
        """Charge a round that is not charged yet."""
        if self.charging is not None and not self.charging.charged(round):
            self.charging.charge(round, rows)

    def send(self, sent: Sent, rows: NDArray[np.int64]) -> None:
        """Write what is about to leave, and charge it."""
        if self.charging is None:
            self._put(sent)
        else:
            self.charging.charge(sent.round, rows, first=lambda: self._put(sent))

    def _put(self, sent: Sent) -> None:
        self.outbox.put(sent)
        if isinstance(self.held, RecordedSiteData):
            self.held.used.update(sent.used)

    @property
    def reported(self) -> list[str]:
        """Measures of its own queries that this site tells."""
        if self.held is None or self.held.test is None:
            return []
        return [name for name in self.plan.experiment.measures if name in self.site.settings.policy.measures]

    def measures(self, weights: NDArray[np.float64], names: list[str]) -> dict[str, list[float]]:
        """Sums over own queries: of a model with this site's own part, of what users had, and of how many."""
        assert self.held is not None
        assert self.held.test is not None
        evaluator = Evaluator(self.held.test, names)
        values = evaluator.per_query(self.own_model(weights), self.task.learner.ranker)
        given = baseline_order(evaluator, self.site.settings.data.given).values
        return {
            name: [float(np.nansum(values[m])), float(np.nansum(given[m])), int(np.isfinite(values[m]).sum())]
            for m, name in enumerate(names)
        }

    def complete(self, path: Path) -> None:
        """Put this site's own part into a model, where it keeps one."""
        if has_trait(self.task.local, "shared part") and not self.plan.simulated:
            model = load_weights(path)
            save_model(replace(model, weights=self.own_model(model.weights[: self.plan.sent])), path)
            os.chmod(path, 0o600)

    def own_model(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """What this site ranks with: what is shared, and what it keeps for itself."""
        if not has_trait(self.task.local, "shared part"):
            return weights
        sent = self.outbox.get(self.outbox.last)
        kept = self._memory_of(self.party.clients[0], None if sent is None else sent.memory)
        return np.concatenate([weights, np.asarray(kept).ravel()])

    def rows(self, ids: list[int]) -> NDArray[np.int64]:
        """Rows of the ledger: of these clients, or of all people that they have."""
        assert self.held is not None
        return self.held.rows(ids)

    def read_call(self, label: Label, content: bytes) -> tuple[Call, NDArray[Any]]:
        """What is asked, and of whom; checked against the plan."""
        plan = self.plan
        if self.held is None:
            raise Refused("the data of this site do not fit the plan; the answer to hello says in what")
        if not 1 <= label.round <= plan.last_number:
            raise Refused(f"it is of round {label.round}, and the plan has {plan.last_number}")
        if len(self.outbox) >= plan.experiment.rounds and self.outbox.get(label.round) is None:
            raise Refused(f"the plan has {plan.experiment.rounds} rounds, and all of them were answered")
        parts = {
            "call": Part("|S", 8 * plan.sent + protocol.OVERHEAD),
            "asked": Part("|S", ASKED.itemsize * len(self.party.clients)),
        }
        _, found = wire.unpack(content, Label(label.kind, label.run, label.round, label.attempt), parts)
        common = has_trait(self.task.local, "common")
        call = Call.unpack(found["call"], ExpectedCall(label.run, label.round, plan.sent, common, label.attempt))
        self._check_numbers(call)
        if len(found["asked"]) % ASKED.itemsize:
            raise Refused("whom it asks are no whole numbers of records")
        asked = np.frombuffer(found["asked"], ASKED)
        ids = asked["client"].tolist()
        if not ids or len(set(ids)) != len(ids) or not set(ids) <= set(self.party.clients):
            raise Refused(f"it asks clients {ids}, and this site answers for {list(self.party.clients)}")
        if not plan.simulated and (asked["at"] != -1).any():
            raise Refused("it says what to search for, and only simulated people are told that")
        return call, asked

    def searches(self, round: int) -> tuple[int, ...]:
        """Numbers of the recorded searches of a round; none where the site has queries."""
        if not isinstance(self.held, RecordedSiteData):
            return ()
        before = self.outbox.get(round)
        return self.held.next(() if before is None else before.used)

    def answered(self, call: Call, asked: NDArray[Any], searches: Sequence[int]) -> list[ClientAnswer]:
        """Learn and protect, for every client of the site that is asked; nothing has left yet."""
        memory = self.outbox.memory_before(call.round)
        if isinstance(self.held, RecordedSiteData):
            return [self._answer_from_recorded(call, self.held, searches, memory)]
        seed = self.plan.seed if self.plan.simulated else self.site.seed
        if not self.plan.simulated and has_trait(self.task.learner, "rewards"):
            seed = secrets.randbits(256)  # its answers are flipped by chance, which nobody may ever know
        return [self._answer(call, row, memory, seed) for row in asked]

    def _answer_from_recorded(
        self, call: Call, held: RecordedSiteData, searches: Sequence[int], memory: NDArray[np.float64] | None
    ) -> ClientAnswer:
        [id] = self.party.clients
        own = OwnChance(Chance(self.site.seed, call.round), id, None)
        message, kept = answer(self.task, call, held.impressions(searches), self._memory_of(id, memory), own)
        return ClientAnswer(message, kept, Observed(np.full(1, np.nan)))

    def _answer(self, call: Call, asked: Any, memory: NDArray[np.float64] | None, seed: int) -> ClientAnswer:
        assert isinstance(self.held, ClientSiteData)
        id, at = int(asked["client"]), int(asked["at"])
        one: SimulatedClients = self.held.client(id)
        chance = Chance(seed, call.round)
        if at >= 0:
            one = replace(one, at=np.array([at]), interactions=np.array([int(asked["searches"])]))
            chance = Chance(seed, 0)
        own = OwnChance(chance, id, None)
        return answer_from_holdings(self.task, call, one, self._memory_of(id, memory), own)

    def _check_numbers(self, call: Call) -> None:
        """A share of noise is made for as many as there are; a coordinator that says more would get less noise."""
        expected = self.plan.cohort
        if self.plan.simulated and not self.plan.in_step and not has_trait(self.task.mechanism, "adds up"):
            expected = call.cohort  # of a log: as many as it has arrivals at a time, and no noise depends on it
        if call.cohort != expected:
            raise Refused(f"it names a cohort of {call.cohort:g}, and the plan makes it {expected:g}")
        if call.count != 1 and not self.plan.simulated:
            raise Refused(f"it counts an update by {call.count:g}, and between sites each counts fully")

    # What clients keep between rounds: a row for each client of the site, in the order of their ids

    def _first_memory(self) -> Memory:
        return first_memory(self.task, self.plan.features, self.plan.seed)

    def _memory_of(self, id: int, memory: NDArray[np.float64] | None) -> Memory:
        if memory is None or not memory.size:
            return self._first_memory()
        place = self.party.clients.index(id)
        return memory.reshape(len(self.party.clients), -1)[place : place + 1]

    def kept(self, done: list[ClientAnswer]) -> NDArray[np.float64]:
        """What all clients of the site keep after these answers."""
        if not done or done[0].memory is None:
            return np.empty(0)
        memory = self.outbox.memory_before(done[0].message.round)
        rows = [self._memory_of(id, memory) for id in self.party.clients]
        for one in done:
            rows[self.party.clients.index(one.message.sender)] = one.memory
        return np.concatenate([row for row in rows if row is not None]).ravel()

    def personal(self, done: list[ClientAnswer]) -> NDArray[np.float64]:
        """What simulated clients keep, by which their models can be judged; real ones tell nobody."""
        if not self.plan.simulated or not has_trait(self.task.local, "shared part"):
            return np.empty(0)
        return np.concatenate([np.asarray(one.memory).ravel() for one in done])

    def observed(self, done: list[ClientAnswer]) -> NDArray[Any]:
        """What only a simulation sees."""
        seen = np.zeros(len(done) if self.plan.simulated else 0, OBSERVED)
        for row, one in zip(seen, done, strict=False):
            reward = one.observed.reward
            row["online"], row["reward"] = one.observed.online[0], np.nan if reward is None else reward[0]
        return seen

    # Secure sums

    @property
    def largest_letter(self) -> int:
        """Bytes of the longest letter of a secure sum."""
        return protocol.OVERHEAD + 512 * len(self.plan.clients) + 16 * self.plan.sent

    def key(self, id: int) -> IdentityKey:
        """With which a client signs: the site's own, or in a trial one made of it for each client it simulates."""
        return member_key(self.site.identity, id) if self.plan.simulated else self.site.identity

    def meet_sites(self) -> None:
        """Take the public keys of the plan, which somebody here has compared."""
        keys = {party.clients[0]: party.identity for party in self.plan.sites}
        if unknown := [party.name for party in self.plan.sites if not party.identity]:
            raise Refused(f"the plan has no key of {', '.join(unknown)}, and a secure sum needs everybody's")
        if len(set(keys.values())) != len(keys):
            raise Refused("two sites of the plan have one key, so that one pretends to be two")
        if keys[self.site.settings.id] != self.site.identity.public:
            raise Refused("the plan has another key for this site than its own")
        self.publics = {id: bytes.fromhex(key) for id, key in keys.items()}

    def meet(self, keys: Any) -> None:
        """Take over the public keys of all clients of a trial; those of real sites stand in the plan."""
        expected = {str(id) for id in self.plan.clients}
        if not self.plan.simulated:
            raise Refused("the plan that was accepted here says everybody's keys, and no others are taken")
        if not isinstance(keys, dict) or set(keys) != expected:
            raise Refused("it does not bring one key for each client of the plan")
        publics = {}
        for id, key in keys.items():
            try:
                publics[int(id)] = bytes.fromhex(key)
            except (TypeError, ValueError):
                raise Refused(f"the key of client {id} is none") from None
        if any(publics[id].hex() != self.key(id).public for id in self.party.clients):
            raise Refused("it brings another key than this site's own")
        self.publics = publics

    def sum_client(self, label: Label, one: ClientAnswer) -> Any:
        from fedrank.privacy.secure_aggregation import Identity, SumClient

        assert self.place is not None
        if not self.publics:
            raise Refused(protocol.SAY_HELLO)  # keys come after it
        terms = sum_terms(self.plan, self.place, label)
        id = one.message.sender
        return SumClient(id, identity=Identity(self.key(id).secret, self.publics), **terms)


def sum_terms(plan: Plan, place: SecureAggregation, label: Label) -> dict[str, Any]:
    """What all parties of a secure sum agree on; the threshold is that against a coordinator that breaks the rules."""
    from fedrank.privacy.secure_aggregation import threshold_for

    cohort = plan.cohort
    threshold = threshold_for(int(cohort), place.colluders(cohort), active=True)
    return {
        "session": label.run + label.attempt.to_bytes(4, "little"),
        "round": label.round,
        "threshold": threshold,
        "fewest": max(threshold, place.opened(cohort)),
        "size": plan.sent,
        "bits": place.bits,
    }

"""A run in which a site sends model updates: in plain form or masked for secure aggregation.

A run that unlearns sites is also of this kind, with rounds of another plan.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank import wire
from fedrank.data.logs import SearchLog, load_log
from fedrank.deploy import protocol
from fedrank.deploy.backup import RestoreMark, record_completed_round
from fedrank.deploy.identity import IdentityKey, member_key
from fedrank.deploy.outbox import Sent
from fedrank.deploy.plan import Plan, PlannedSite, data_problems, key_problems
from fedrank.deploy.protocol import ASKED, OBSERVED, Answers
from fedrank.deploy.releases import GATE, QUALITY, PersonReleases, release_of, releases_of
from fedrank.deploy.site_data import ClientSiteData, facts_of, open_site_data
from fedrank.deploy.site_releases import (
    PROPENSITIES,
    WAITING,
    GateSums,
    PropensitySums,
    QualitySums,
    ReceivedPropensities,
    read_sums,
    request_of_gate,
    write_decision,
)
from fedrank.deploy.site_runtime import (
    CheckedRequest,
    Computed,
    Contribution,
    Handler,
    ReceivedModel,
    SiteHome,
    SiteRun,
    digest_of,
)
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.position_bias import corrected_clients
from fedrank.federated.client import ClientAnswer, ClientTask, first_memory
from fedrank.federated.messages import Call, ExpectedCall
from fedrank.files import parse_json, private_folder, write_atomic
from fedrank.privacy.secure_aggregation import SumClient
from fedrank.privacy.secure_messages import Identity
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import load_weights, save_model
from fedrank.types import Memory, SimulatedClients, has_trait
from fedrank.wire import Label, Part, Refused

MEASURED, DEALS = "measured.json", "deals"


class Update(Contribution["UpdateRun"]):
    """What plain and masked updates have in common: the call of a round, and training."""

    def check_new(self, request: CheckedRequest, before: Sent | None) -> None:
        """Refuse a round whose earlier message may be lost: a new message would have different noise."""
        if before is None:
            self.check_unanswered(request.number)

    def may_repeat(self, request: CheckedRequest) -> bool:
        if self.run.plan.federated.dealt:
            return False
        mark = RestoreMark.read(self.run.site.folder)
        return mark is not None and mark.repeats(self.run.plan.run.hex(), request.number)

    def check_unanswered(self, round: int) -> None:
        run, mark = self.run.plan.run.hex(), RestoreMark.read(self.run.site.folder)
        if mark is not None:
            if (why := mark.objection(run, round, self.run.plan.synchronous)) is not None:
                raise Refused(why)
            if mark.repeats(run, round):
                self.check_first_message(round)
                return
        charged = self.run.charging is not None and self.run.charging.charged(round)
        if charged:
            self.check_first_message(round)
        if not self.attempts and charged:
            raise Refused(
                f"round {round} has been charged, but its message is lost; restore the outbox from a backup, or "
                "continue with the next round"
            )

    def _check_recorded(self, request: CheckedRequest, number: int, before: Sent | None) -> None:
        try:
            super()._check_recorded(request, number, before)
        except Refused:
            self.check_first_message(number)
            raise

    def check_first_message(self, round: int) -> None:
        """Refuse a new message in place of one that left or may have left, if each participates in one round."""
        if self.run.plan.federated.dealt:
            raise Refused(
                f"{protocol.PARTICIPATED}, round {round}: what it sent left before, or may have left, and the dealt "
                "schedule of the plan gives its people no second participation"
            )

    def read_call(self, label: Label, content: bytes) -> tuple[Call, NDArray[Any]]:
        """Read the call of a round and its clients, checked against the plan."""
        run, plan, own = self.run, self.run.plan, self.run.party.clients
        if run.clients is None:
            raise Refused("the data of this site do not match the plan; see the answer to hello for the differences")
        if plan.experiment.data.from_swaps and run.estimate is None:
            raise Refused(WAITING)
        if not 1 <= label.round <= plan.last_number:
            raise Refused(f"the round must be between 1 and {plan.last_number} (got {label.round})")
        if len(run.outbox) >= plan.experiment.rounds and run.outbox.get(label.round) is None:
            raise Refused(f"all {plan.experiment.rounds} rounds of the plan have been answered")
        parts = {
            "call": Part("|S", 8 * plan.sent + protocol.OVERHEAD),
            "asked": Part("|S", ASKED.itemsize * len(own)),
        }
        _, found = wire.unpack(content, Label(label.kind, label.run, label.round, label.attempt), parts)
        common = has_trait(run.task.local, "common")
        call = Call.unpack(found["call"], ExpectedCall(label.run, label.round, plan.sent, common, label.attempt))
        self._check_numbers(call)
        if len(found["asked"]) % ASKED.itemsize:
            raise Refused("its list of clients does not consist of whole records")
        asked = np.frombuffer(found["asked"], ASKED)
        ids = asked["client"].tolist()
        if not ids or len(set(ids)) != len(ids) or not set(ids) <= set(own):
            raise Refused(f"it is for clients {ids}, but this site has {list(own)}")
        late = [] if plan.turns is None else [id for id in ids if plan.turns[plan.row_of[id]] != label.round]
        if late:
            turn = plan.turns[plan.row_of[late[0]]] if plan.turns is not None else 0
            raise Refused(
                f"client {late[0]} was dealt into round {turn}, and participates in no other (got {label.round})"
            )
        if not plan.simulated and (asked["at"] != -1).any():
            raise Refused("it names interactions, which is valid only for simulated people")
        return call, asked

    def _check_numbers(self, call: Call) -> None:
        """Refuse another cohort than the plan's: a larger one would reduce the noise."""
        plan, task = self.run.plan, self.run.task
        expected = plan.cohort
        if plan.simulated and not plan.synchronous and not has_trait(task.mechanism, "adds up"):
            expected = call.cohort  # a log determines the number of simultaneous arrivals, and no noise depends on it
        if call.cohort != expected:
            raise Refused(f"it has a cohort of {call.cohort:g}, but the plan has {expected:g}")
        if call.count != 1 and not plan.simulated:
            raise Refused(f"it gives an update the weight {call.count:g}, which must be 1 between sites")

    def learn(self, call: Call, asked: NDArray[Any]) -> list[ClientAnswer]:
        """Train and protect, for every requested client of the site. Nothing has been sent yet."""
        run = self.run
        assert run.clients is not None
        memory = run.outbox.memory_before(call.round)
        seed = run.plan.seed if run.plan.simulated else run.site.seed
        if not run.plan.simulated and has_trait(run.task.learner, "rewards"):
            seed = secrets.randbits(256)  # its answers are randomised, so the draws must stay secret
        return [
            run.clients.answer(run.task, call, row, run.memory_of(int(row["client"]), memory), seed) for row in asked
        ]

    def memory_after(self, done: list[ClientAnswer]) -> NDArray[np.float64]:
        """The state of all clients of the site after these answers."""
        if not done or done[0].memory is None:
            return np.empty(0)
        run = self.run
        memory = run.outbox.memory_before(done[0].message.round)
        rows = [run.memory_of(id, memory) for id in run.party.clients]
        for one in done:
            rows[run.party.clients.index(one.message.sender)] = one.memory
        return np.concatenate([row for row in rows if row is not None]).ravel()

    def pack(self, label: Label, messages: list[bytes], done: list[ClientAnswer]) -> bytes:
        """The answer to the call of a round, with the observations of a simulation."""
        run, personal = self.run, np.empty(0)
        seen = np.zeros(len(done) if run.plan.simulated else 0, OBSERVED)
        for row, one in zip(seen, done, strict=False):
            reward = one.observed.reward
            row["online"], row["reward"] = one.observed.online[0], np.nan if reward is None else reward[0]
        if run.plan.simulated and has_trait(run.task.local, "shared part"):
            personal = np.concatenate([np.asarray(one.memory).ravel() for one in done])
        answered = Label("answers", label.run, label.round, label.attempt, run.site.settings.id)
        return Answers(tuple(messages), seen, personal).pack(answered)


class OpenUpdate(Update):
    """An update that the coordinator sees, possibly with noise of this site."""

    kinds = ("round",)

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        if self.run.plan.secure_sum is not None:
            raise Refused("updates of this run are sent only with secure aggregation")
        call, asked = self.read_call(label, content)
        assert self.run.clients is not None
        rows = self.run.clients.rows(asked["client"].tolist(), label.round)
        name = f"round {label.round}"
        return CheckedRequest(label, digest_of(content), label.round, name, rows, label.attempt, (call, asked))

    def compute(self, request: CheckedRequest) -> Computed:
        call, asked = request.content
        done = self.learn(call, asked)
        answer = self.pack(request.label, [one.message.pack() for one in done], done)
        return Computed(answer, memory=self.memory_after(done))


@dataclass
class _Sum:
    """An open secure aggregation: the site's clients, and the values that they will mask."""

    label: Label
    digest: bytes  # of the call
    done: list[ClientAnswer]
    clients: list[SumClient]


class SecureUpdate(Update):
    """An update with secure aggregation, phase by phase; only masked values are sent.

    The secrets exist only in memory: after a restart, a site participates in a new attempt. Masked values contain noise
    drawn for this attempt, so each attempt is charged, and none is sent again.
    """

    kinds = ("partners", *protocol.PHASES)
    attempts = True
    sum: _Sum | None = None

    def answer(self, label: Label, content: bytes) -> bytes:
        if label.kind == "partners":
            return self._take_keys(label, content)
        if self.run.plan.secure_sum is None:
            raise Refused("this run does not use secure aggregation")
        if label.kind == "advertise":
            return self._advertise(label, content)
        try:
            if label.kind == "mask":
                return super().answer(label, content)
            return self._phase(label, content)
        except Refused:
            raise
        except ValueError as problem:
            raise Refused(f"secure aggregation: {problem}") from None  # it names keys and shares, never data

    def _take_keys(self, label: Label, content: bytes) -> bytes:
        """Public keys of all clients of a trial; those of real sites are in the plan."""
        run = self.run
        _, found = wire.unpack(content, Label("partners", label.run, 0), {"keys": Part("|S", protocol.MAX_FACTS)})
        try:
            keys = parse_json(found["keys"])
        except ValueError as problem:
            raise Refused(f"its keys cannot be read: {problem}") from None
        if not run.plan.simulated:
            raise Refused("the accepted plan contains the keys of all sites, and other keys are not used")
        if not isinstance(keys, dict) or set(keys) != {str(id) for id in run.plan.clients}:
            raise Refused("it must have one key per client of the plan")
        publics = {}
        for id, key in keys.items():
            try:
                publics[int(id)] = bytes.fromhex(key)
            except (TypeError, ValueError):
                raise Refused(f"the key of client {id} is not valid") from None
        if any(publics[id].hex() != run.key(id).public for id in run.party.clients):
            raise Refused("its key for this site is not the site's own")
        run.public_keys = publics
        return self.reply("letters", label, letters=b"")

    def _advertise(self, label: Label, content: bytes) -> bytes:
        before = self.run.outbox.get(label.round)
        if before is not None:
            self.check_first_message(label.round)
        if before is not None and label.attempt <= before.attempt:
            raise Refused(f"attempt {label.attempt} of round {label.round} is complete, and masks are never used twice")
        call, asked = self.read_call(label, content)
        if before is None:
            self.check_unanswered(label.round)
        done = self.learn(call, asked)
        clients = [self._client(call, one) for one in done]
        self.sum = _Sum(label, digest_of(content), done, clients)
        return self.pack(label, [client.advertise() for client in clients], done)

    def _client(self, call: Call, one: ClientAnswer) -> SumClient:
        run, id = self.run, one.message.sender
        if not run.public_keys:
            raise Refused(protocol.SAY_HELLO)  # keys are sent after hello
        return SumClient(id, identity=Identity(run.key(id).secret, run.public_keys), **run.plan.sum_terms(call))

    def _open(self, label: Label, content: bytes, **sizes: int) -> tuple[_Sum, dict[str, bytes]]:
        """The aggregation that a request belongs to, and its parts with limited sizes."""
        total = self.sum
        if total is None or (total.label.round, total.label.attempt) != (label.round, label.attempt):
            raise Refused(
                f"no secure aggregation of round {label.round}, attempt {label.attempt} is active at this site"
            )
        parts = {name: Part("|S", size) for name, size in sizes.items()}
        return total, wire.unpack(content, Label(label.kind, label.run, label.round, label.attempt), parts)[1]

    def _phase(self, label: Label, content: bytes) -> bytes:
        longest = self.run.plan.longest_letter
        if label.kind == "share":
            total, found = self._open(label, content, roster=longest)
            sent = [client.share(found["roster"]) for client in total.clients]
        elif label.kind == "sign":
            total, found = self._open(label, content, request=longest)
            sent = [client.sign(found["request"]) for client in total.clients]
        else:
            total, found = self._open(label, content, request=longest, consent=longest)
            sent = [client.unmask(found["request"], found["consent"]) for client in total.clients]
        return self.reply("letters", label, letters=protocol.bundle(sent))

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        count, longest = 0 if self.sum is None else len(self.sum.clients), self.run.plan.longest_letter
        total, found = self._open(label, content, posts=count * (longest + 4))
        posts = protocol.unbundle(found["posts"], count, longest)
        if len(posts) != count:
            raise Refused(f"expected one message per client (got {len(posts)} for {count} clients)")
        assert self.run.clients is not None
        rows = self.run.clients.rows([one.message.sender for one in total.done], label.round)
        name = f"attempt {label.attempt} of round {label.round}"
        return CheckedRequest(label, total.digest, label.round, name, rows, label.attempt, (total, posts))

    def compute(self, request: CheckedRequest) -> Computed:
        total, posts = request.content
        masked = [
            client.mask(one.message.payload, post)
            for client, one, post in zip(total.clients, total.done, posts, strict=True)
        ]
        answer = self.reply("letters", request.label, letters=protocol.bundle(masked))
        values = b"".join(one.message.payload.astype("<i8").tobytes() for one in total.done)
        return Computed(answer, values, self.memory_after(total.done), repeatable=False)


def planned_keys(site: SiteHome, plan: Plan) -> dict[int, bytes]:
    """Public keys of all sites, from the plan, compared by users of this site."""
    if found := key_problems(plan, site.settings.name, site.identity.public):
        raise Refused("; ".join(found))
    return {party.clients[0]: bytes.fromhex(party.identity) for party in plan.sites}


def _with_deal(site: SiteHome, plan: Plan, clients: ClientSiteData, data: bytes) -> ClientSiteData:
    """Deal the people of this site into the rounds of a plan, by its secret seed, and keep the list.

    The seed and the plan determine the list: a folder restored from a backup deals the same one.
    """
    assert clients.clients.people is not None
    try:
        deal = plan.federated.deal(len(clients.clients.people), site.seed, plan.digest)
        deal.keep(private_folder(site.folder / DEALS) / f"{plan.digest[:32]}.json", data.hex())
    except ValueError as problem:
        site.log(str(problem))
        raise Refused("the people of this site cannot be dealt into the rounds of this plan; see its log") from None
    return replace(clients, groups=deal.round_of_each)


class MeasureSums(Contribution["UpdateRun"]):
    """Sums of measures of one model on own queries.

    They have no noise, and differences between many models could reveal single queries: only the first requested model
    of a run is measured.
    """

    kinds = ("measure",)
    record = "measure"

    @property
    def _path(self) -> Path:
        return self.run.site.models(self.run.plan) / MEASURED

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        if not self.run.measures:
            raise Refused("this site does not report measures without noise")
        parts = {"weights": Part("<f4", self.run.plan.sent)}
        _, found = wire.unpack(content, Label("measure", label.run, label.round), parts)
        return CheckedRequest(label, digest_of(content), label.round, "the model of this run", content=found["weights"])

    def sent(self, request: CheckedRequest) -> Sent | None:
        if not self._path.exists():
            return None
        before = parse_json(self._path.read_bytes())
        answer = self._answer(request.label, before["measures"])
        return Sent(request.number, 0, bytes.fromhex(before["asked"]), answer, b"", np.empty(0))

    def store(self, sent: Sent) -> None:
        content = {"asked": sent.call.hex(), "measures": parse_json(sent.values)}
        write_atomic(self._path, json.dumps(content) + "\n", private=True)

    def compute(self, request: CheckedRequest) -> Computed:
        """Sums for the model with this site's own part, for the current ranking, and the number of queries."""
        run, names = self.run, self.run.measures
        assert run.clients is not None
        assert run.clients.test is not None
        evaluator = Evaluator(run.clients.test, names)
        values = evaluator.per_query(run.own_model(request.content.astype(np.float64)), run.task.learner.ranker)
        now = baseline_order(evaluator, run.site.settings.data.given).values
        table = {
            name: [float(np.nansum(values[m])), float(np.nansum(now[m])), int(np.isfinite(values[m]).sum())]
            for m, name in enumerate(names)
        }
        return Computed(self._answer(request.label, table), json.dumps(table).encode())

    def _answer(self, label: Label, table: Any) -> bytes:
        return self.reply("facts", label, facts=protocol.facts({"measures": table}))


@dataclass
class UpdateRun(SiteRun):
    """A run with rounds at a site."""

    task: ClientTask = field(kw_only=True)
    clients: ClientSiteData | None = field(kw_only=True)  # None: the data do not match the plan
    public_keys: dict[int, bytes] = field(
        kw_only=True
    )  # of all clients in secure aggregation; in a trial they are sent later

    estimate: Any = None  # propensities from the swaps of all sites
    uncorrected: SimulatedClients | None = None  # the clients before these corrected their clicks

    does: ClassVar[str] = "sends model updates"
    handlers: ClassVar[tuple[type[Handler[Any]], ...]] = (
        OpenUpdate, SecureUpdate, MeasureSums, ReceivedModel, PropensitySums, ReceivedPropensities, QualitySums,
        GateSums,
    )  # fmt: skip

    @classmethod
    def open(cls, site: SiteHome, plan: Plan) -> UpdateRun:
        experiment, settings = plan.experiment, site.settings
        if not plan.simulated and (found := data_problems(plan, settings.data)):
            raise Refused("; ".join(found))
        facts, data = facts_of(settings, plan)
        outbox = site.outbox(plan, data)
        fits = facts == {"features": plan.features, "feature_names": plan.feature_names, "normalised": plan.normalised}
        clients = open_site_data(settings, plan) if fits else None
        if clients is not None and experiment.deals_persons and not plan.simulated:
            clients = _with_deal(site, plan, clients, data)
        keys = {} if plan.secure_sum is None or plan.simulated else planned_keys(site, plan)
        charging = None if clients is None else site.charging(plan, clients.people)
        task = ClientTask(experiment.learner, experiment.local, experiment.mechanism)
        run = cls(site, plan, outbox, facts, data, charging, task=task, clients=clients, public_keys=keys)
        if plan.secure_sum is not None:
            facts["identities"] = {str(id): run.key(id).public for id in run.party.clients}
        run.use_propensities()
        return run

    @property
    def site_data(self) -> ClientSiteData:
        """The queries of this site."""
        if self.clients is None:
            raise Refused("this site has no queries that match the plan")
        return self.clients

    @property
    def releases(self) -> PersonReleases:
        """What this site releases besides updates."""
        found = releases_of(self.plan, self.site.settings.policy.released_measures)
        if found is None:
            raise Refused("this run has no sums over people")
        return found

    @cached_property
    def log(self) -> SearchLog:
        """The search log of this site."""
        folder = self.site.settings.data.log
        if folder is None:
            raise Refused("this site has no search log, which this request needs; set data.log in site.toml")
        return load_log(folder)

    @property
    def held_out(self) -> Any:
        """The held-out lists of this site."""
        data = self.site_data
        if data.test is None or not len(data.test_whose):
            raise Refused("this site has no held-out lists of people; set data.person and data.test_share in site.toml")
        return self.releases.held_out(self.log, data.test, data.test_whose)

    def use_propensities(self) -> None:
        """Correct clicks by the released swaps of all sites, if this site has received them."""
        path = self.site.models(self.plan) / PROPENSITIES
        if self.plan.simulated or self.estimate is not None or not path.exists():
            return
        data = self.site_data
        self.estimate = self.releases.estimate(read_sums(path.read_bytes(), self.plan), self.site.settings.name)
        self.uncorrected = data.clients
        self.clients = replace(data, clients=self.releases.corrected(data.clients, self.estimate))
        for note in self.estimate.propensities.notes:
            self.site.log(note)

    @property
    def own_clients(self) -> SimulatedClients:
        """The data of this site for its own model, corrected by propensities from its own clicks without noise.

        Those of the plan have the noise of all sites, which a model that stays here does not need.
        """
        if self.uncorrected is None:
            return self.site_data.clients
        try:
            return corrected_clients(self.uncorrected, self.log, "position")
        except ValueError as problem:  # its clicks do not determine them
            self.site.log(f"own model: {problem}")
            return self.site_data.clients

    @cached_property
    def biases(self) -> Any:
        """Propensities under position bias and under trust bias."""
        if self.plan.experiment.data.from_swaps and self.estimate is None:
            raise Refused(WAITING)
        return self.releases.biases(self.log, self.site_data.clients.data, self.estimate)

    @property
    def party(self) -> PlannedSite:
        return self.plan.party(self.site.settings.name)

    def note_rounds_over(self, over: int) -> None:
        """Charge completed rounds at a site that was restored from a backup and may lack their charges."""
        run = self.plan.run.hex()
        mark = record_completed_round(self.site.folder, run, over)
        if mark is None or self.charging is None or self.clients is None or not self.plan.synchronous:
            return
        everybody = np.unique(self.clients.ledger_rows)
        last, journal = min(mark.completed_rounds[run] + 1, self.plan.last_number), self.site.journal
        turns = self.plan.turns
        for round in range(1, last + 1):
            if turns is not None and turns[self.plan.row_of[self.party.clients[0]]] != round:
                continue
            if not self.charging.charged(round):
                self.charging.charge(round, everybody)
                if journal is not None:
                    journal.note(self.plan.run, "over", round, charges=1)
        while journal is not None and journal.missing_charges(self.plan.run):  # attempts that were charged separately
            self.charging.charge(last, everybody)
            journal.note(self.plan.run, "over", last, charges=1)

    @property
    def measures(self) -> list[str]:
        if self.clients is None or self.clients.test is None:
            return []
        policy = self.site.settings.policy
        plain = policy.measures if policy.plain_measures else ()
        return [name for name in self.plan.experiment.measures if name in plain]

    @property
    def noised(self) -> list[str]:
        measures = self.site.settings.policy.released_measures
        if self.clients is None or self.clients.test is None or release_of(self.plan, QUALITY, measures) is None:
            return []
        return [name for name in self.plan.experiment.measures if name in measures]

    def complete(self, folder: Path) -> dict[str, str]:
        """Add the part of the model that this site does not share, and the decision of the gate."""
        model = folder / "model.json"
        asked = request_of_gate(self.plan, model)  # as it was received
        if has_trait(self.task.local, "shared part") and not self.plan.simulated:
            found = load_weights(model)
            save_model(replace(found, weights=self.own_model(found.weights[: self.plan.sent])), model)
            os.chmod(model, 0o600)
        if release_of(self.plan, GATE) is None:
            return {}
        return write_decision(self, folder, Card.read(folder), asked)

    def own_model(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The model that this site ranks with: the shared part and its own."""
        if not has_trait(self.task.local, "shared part"):
            return weights
        sent = self.outbox.get(self.outbox.last)
        own = self.memory_of(self.party.clients[0], None if sent is None else sent.memory)
        return np.concatenate([weights, np.asarray(own).ravel()])

    def memory_of(self, id: int, memory: NDArray[np.float64] | None) -> Memory:
        """The state of a client after earlier rounds; `memory` has one row per client of the site."""
        if memory is None or not memory.size:
            return first_memory(self.task, self.plan.features, self.plan.seed)
        row = self.party.clients.index(id)
        return memory.reshape(len(self.party.clients), -1)[row : row + 1]

    def key(self, id: int) -> IdentityKey:
        """The signing key of a client: the site's own, or in a trial one derived for each simulated client."""
        return member_key(self.site.identity, id) if self.plan.simulated else self.site.identity

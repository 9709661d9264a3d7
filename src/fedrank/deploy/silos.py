"""Organisations with documents: sketches in sealed letters, and a model that passes from one site to the next.

    keys -> shared key -> sketch, charged -> questions -> answers -> turns

The coordinator forwards letters that it cannot read: sites seal them with keys of this run, each signed with the
identity in the plan that users have compared. Each step is answered once: a letter is in the outbox before it is sent,
and a repeated request gets the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fedrank import wire
from fedrank.data.collection import read_collection
from fedrank.deploy import protocol
from fedrank.deploy.identity import verify
from fedrank.deploy.outbox import Sent
from fedrank.deploy.plan import Plan, data_problems, key_problems
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
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.silo.member import SiloMember, turn_order
from fedrank.silo.spending import Limits
from fedrank.silo.training import CrossSilo
from fedrank.wire import Label, Part, Refused

STEPS = {"silo-key": 1, "silo-meet": 2, "silo-open": 3, "silo-ask": 4, "silo-answer": 5, "silo-hear": 6}
FIRST_TURN = 7  # one more for each further turn
SIGNED_KEY = 32 + 64  # bytes: a public key and its signature
MAX_LETTERS = 4096  # maximum number of letters in a message
SILO = "silo"  # folder with keys and the sketch, for all runs


def checked_keys(plan: Plan, pieces: Sequence[bytes]) -> list[bytes]:
    """The public keys of all sites in order, each signed by the identity in the plan."""
    if len(pieces) != len(plan.sites):
        raise Refused(f"expected {len(plan.sites)} keys, one per site (got {len(pieces)})")
    for site, piece in zip(plan.sites, pieces, strict=True):
        if len(piece) != SIGNED_KEY or not verify(site.identity, _signed(plan, piece[:32]), piece[32:]):
            raise Refused(f"the letter key of {site.name} is not signed by its identity in the plan")
    keys = [piece[:32] for piece in pieces]
    if len(set(keys)) != len(keys):
        raise Refused("two sites have the same letter key, so one site could impersonate the other")
    return keys


def _signed(plan: Plan, public: bytes) -> bytes:
    return b"fedrank key for letters of a run\n" + plan.run + public


class SiloStep(Contribution["SiloRun"]):
    """One step of a run: receives sealed letters and returns others. Each step is answered once.

    Sketches were charged in a separate ledger when they were created.
    """

    kinds = (*STEPS, "silo-turn")

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        number = STEPS.get(label.kind, label.round)
        if label.round != number or (label.kind == "silo-turn") != (number >= FIRST_TURN):
            raise Refused(f"{label.kind} does not belong to step {label.round}")
        parts = {"letters": Part("|S", protocol.MAX_MODEL), "top": Part("<i8", 1)}
        _, found = wire.unpack(content, Label(label.kind, label.run, number), parts)
        return CheckedRequest(label, digest_of(content), number, f"step {number}", content=found)

    def compute(self, request: CheckedRequest) -> Computed:
        kind, found = request.label.kind, request.content
        came = protocol.unbundle(found["letters"], MAX_LETTERS, protocol.MAX_MODEL)
        try:
            sent = self._step(kind, came, request.number - FIRST_TURN, int(found["top"][0]))
        except Refused:
            raise
        except ValueError as problem:
            self.run.site.log(f"{kind}: {problem}")
            raise Refused(f"{kind} failed at this site; the reason is in its log") from None
        answer = self.reply("letters", request.label, letters=protocol.bundle(sent))
        return Computed(answer, found["letters"] if kind in ("silo-meet", "silo-hear") else b"")

    def store(self, sent: Sent) -> None:
        super().store(sent)
        if self.run.site.journal is not None:
            self.run.site.journal.note_sketches(self.run.plan.run)

    def _step(self, kind: str, came: list[bytes], turn: int, top: int) -> list[bytes]:
        """The letters to send; `turn` is the number of the turn, `top` the highest relevance label of all sites."""
        run, member = self.run, self.run.member
        if kind == "silo-key":
            public = member.own_public()
            return [public + run.site.identity.sign(_signed(run.plan, public))]
        if kind == "silo-meet":  # the first site wraps the key of all sketches for the others
            return member.wrapped_keys(checked_keys(run.plan, came))
        keys = self._keys()
        if kind == "silo-open":
            if member.index != 0:  # the first site created the key
                member.open_shared(came, keys)
            return []
        if kind == "silo-ask":
            return member.questions(keys)
        if kind == "silo-answer":
            return member.answers(came, keys)
        if kind == "silo-hear":
            member.check_answers(self._questions(), came, keys)
            return []
        turns = member.check_turn(turn, came, run.experiment.rounds, keys)
        heard = self._before("silo-hear", "the answers of partners have not been received yet").values
        answers = protocol.unbundle(heard, MAX_LETTERS, protocol.MAX_MODEL)
        questions, seed = self._questions(), run.plan.seed
        return [member.take_turn(turn, turns, came, questions, answers, keys, seed=seed, top_grade=top)]

    def _before(self, kind: str, missing: str) -> Sent:
        """The outbox entry of an earlier step."""
        if (found := self.run.outbox.get(STEPS[kind])) is None:
            raise Refused(missing)
        return found

    def _keys(self) -> list[bytes]:
        """Public keys of all sites, in the order of the plan."""
        met = self._before("silo-meet", "the keys of partners have not been received yet").values
        return [piece[:32] for piece in protocol.unbundle(met, len(self.run.plan.sites), SIGNED_KEY)]

    def _questions(self) -> list[bytes]:
        answer = self._before("silo-ask", "this site has not sent its questions yet").answer
        label = Label("letters", self.run.plan.run, STEPS["silo-ask"], 0, self.run.site.settings.id)
        sent = protocol.read(answer, label, {"letters": Part("|S", protocol.MAX_MODEL)})["letters"]
        return protocol.unbundle(sent, MAX_LETTERS, protocol.MAX_MODEL)


@dataclass
class SiloRun(SiteRun):
    """A run across document collections at a site."""

    member: SiloMember = field(kw_only=True)

    does: ClassVar[str] = "trains with sketches"
    handlers: ClassVar[tuple[type[Handler[Any]], ...]] = (SiloStep, ReceivedModel)

    @classmethod
    def open(cls, site: SiteHome, plan: Plan) -> SiloRun:
        experiment, settings = plan.silos, site.settings
        assert experiment is not None
        found = data_problems(plan, settings.data) or key_problems(plan, settings.name, site.identity.public)
        if found:
            raise Refused("; ".join(found))
        assert settings.data.documents is not None
        documents = Path(settings.data.documents).parent
        data = _digest(documents)
        outbox = site.outbox(plan, data)
        assert isinstance(experiment.method, CrossSilo)
        limits = Limits(total=settings.policy.largest_epsilon, delta=settings.policy.delta)
        row, sketches = [party.name for party in plan.sites].index(settings.name), site.folder / SILO
        collection = read_collection(documents)
        if site.journal is not None:
            site.journal.check_sketches()
        member = SiloMember(collection, data, experiment.method, limits, sketches, outbox.folder, row, site.log)
        # fedrank computes the features, so they are the same at all sites.
        facts = {"features": plan.features, "feature_names": plan.feature_names, "normalised": plan.normalised}
        facts |= {"top_grade": max(collection.top_grade, 1)}
        return cls(site, plan, outbox, facts, data, member=member)

    @property
    def experiment(self) -> SiloExperiment:
        assert self.plan.silos is not None
        return self.plan.silos

    @property
    def steps(self) -> int:
        return FIRST_TURN - 1 + len(turn_order([site.name for site in self.plan.sites], self.experiment.rounds))


def _digest(folder: Path) -> bytes:
    """The digest of the files with documents, queries and judgements."""
    made = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name.startswith(("corpus.jsonl", "queries.jsonl", "qrels")):
            with path.open("rb") as file:
                made.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return made.digest()

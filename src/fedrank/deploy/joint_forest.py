"""A forest that sites grow together from histograms: the two halves of `trees/growing_protocol.py` between sites.

    grow -> grown      a message of the half that decides, to clients of a site; what each of them answers

The plan says all that both halves agree on: rules, seed, clients, and bin edges that tell nothing of anybody's data.

Without noise a site keeps the digest of its rows and nothing else. What it says follows from these rows, the trees so
far and the cuts that it is asked for, in whole numbers: grown again, it is the same bytes, and other rows are refused.
Under a secure sum keys are new after every start, and so are masks.

Noise cannot be made again. It is in the outbox, and people have paid for it, before it leaves; asked the same again, a
site sends what lies there and nobody pays. Another question of the same number is refused, unless it is a new attempt,
for which people pay once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.catalog import Fold
from fedrank.deploy import protocol
from fedrank.deploy.backup import Restored
from fedrank.deploy.coordinate import Books
from fedrank.deploy.forest_hub import ForestHub, result_files, site_card
from fedrank.deploy.forests import ROUND, ForestRun
from fedrank.deploy.hub import Differs
from fedrank.deploy.identity import IdentityKey
from fedrank.deploy.outbox import Sent
from fedrank.deploy.plan import Plan
from fedrank.deploy.site_calls import Send
from fedrank.experiments.runner.cards import GROWN_FOREST, GROWN_IN_SUM, TREES, issued
from fedrank.experiments.runner.folder import Card
from fedrank.experiments.runner.merge import NOISED_TREES, finish_merge, noised_card, save_merged
from fedrank.experiments.runner.writer import RunWriter
from fedrank.experiments.spec.trees import TreesExperiment
from fedrank.privacy.secure_aggregation import Identity
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.trees.boosters import Past, best_size
from fedrank.trees.forest import transplanted
from fedrank.trees.growing_protocol import GrowPlan, TreeClient, TreeServer
from fedrank.trees.histograms import Histograms, rules_of
from fedrank.trees.private_protocol import AskedRelease, NoisedClient, NoisedPlan, NoisedServer, asked_in
from fedrank.trees.together import useful
from fedrank.trees.training import measured
from fedrank.wire import Label, Part, Refused

LARGEST = 1 << 28  # bytes of one message of growing
GROWN = {
    "rounds": "one round: all sites grow one forest together; values are those of that forest",
    "before": "sites have no forests of their own here, so that before and after are the same",
}


def agreed(plan: Plan) -> GrowPlan:
    """What both halves agree on, by the plan that everybody has accepted."""
    experiment = plan.forests
    assert experiment is not None
    assert isinstance(experiment.merge, Histograms)
    rules = rules_of(experiment.booster)
    edges = experiment.merge.public_edges(plan.features, rules.bins)
    return experiment.merge.plan(rules, edges, plan.seed, plan.clients)


def identities_of(plan: Plan) -> dict[int, bytes] | None:
    """Public keys of all sites, which their people have compared; None in a trial, whose clients have none."""
    if plan.simulated:
        return None
    if unknown := [site.name for site in plan.sites if not site.identity]:
        raise Refused(f"the plan has no key of {', '.join(unknown)}, and a secure sum needs everybody's")
    return {site.clients[0]: bytes.fromhex(site.identity) for site in plan.sites}


@dataclass
class GrowingRun:
    """What a site has open of one forest that grows between sites."""

    run: ForestRun
    plan: GrowPlan
    clients: Mapping[int, TreeClient | NoisedClient]

    @classmethod
    def open(cls, run: ForestRun, key: IdentityKey) -> GrowingRun:
        plan = agreed(run.plan)
        publics = identities_of(run.plan) if plan.secure else None
        identity = None if publics is None else Identity(key.secret, publics)
        ids = run.plan.party(run.settings.name).clients
        if not isinstance(plan, NoisedPlan):
            held = zip(ids, run.held, strict=True)
            return cls(run, plan, {id: TreeClient(id, plan, own, useful(check), identity) for id, (own, check) in held})

        def attempts(tree: int) -> int:
            before = run.outbox.get(ROUND + plan.release(tree, 0))
            return -1 if before is None else before.attempt

        try:
            return cls(
                run,
                plan,
                {
                    id: NoisedClient(id, plan, train, identity, attempts)
                    for id, (train, _) in zip(ids, run.held, strict=True)
                },
            )
        except ValueError as problem:  # it speaks of settings: persons that nobody names, too many bits
            raise Refused(str(problem)) from None

    def answer(self, label: Label, content: bytes) -> bytes:
        """What clients of this site say to one message; refused where it does not fit any of them."""
        parts = {"whom": Part("|S", 8 * len(self.clients)), "message": Part("|S", LARGEST)}
        _, found = wire.unpack(content, Label("grow", label.run, label.round), parts)
        if len(found["whom"]) % 8:
            raise Refused("whom it is for are no whole numbers")
        whom = np.frombuffer(found["whom"], "<i8").tolist()
        if not whom or set(whom) - set(self.clients) or len(set(whom)) != len(whom):
            raise Refused(f"it is for clients {whom}, and this site has {sorted(self.clients)}")

        def made() -> bytes:
            answers = [self.clients[id].answer(found["message"]) for id in whom]
            return protocol.reply("grown", label, self.run.settings.id, answers=protocol.bundle(answers))

        asked = asked_in(self.plan, found["message"]) if isinstance(self.plan, NoisedPlan) else None
        if asked is not None:
            if sorted(whom) != sorted(self.clients):
                raise Refused(f"noise is asked of clients {whom} alone, and this site answers for all of its own")
            return self._once(asked, hashlib.sha256(content).digest(), made)
        if not isinstance(self.plan, NoisedPlan) and self.run.outbox.get(ROUND) is None:
            # From here on other rows are refused.
            asked_for = hashlib.sha256(content).digest()
            self.run.outbox.put(Sent(ROUND, 0, asked_for, b"", b"", np.empty(0), self.run.data))
        return made()

    def _once(self, asked: AskedRelease, question: bytes, made: Callable[[], bytes]) -> bytes:
        """A release that lies on the disk and is paid for."""
        run, number = self.run, ROUND + asked.release
        assert run.charging is not None
        people = np.arange(run.charging.terms.people)
        before = run.outbox.get(number)
        if before is not None and before.call == question:
            if not run.charging.charged(number):  # it was killed between the two
                run.charging.charge(number, people)
            return before.answer
        if before is not None and asked.attempt <= before.attempt:
            raise Refused(
                f"release {asked.number} of tree {asked.tree} was answered here for another question, and is not "
                "answered twice with other noise; begin a new attempt"
            )
        self._check_restored()
        answer = made()
        sent = Sent(number, asked.attempt, question, answer, b"", np.empty(0), run.data)
        run.charging.charge(number, people, first=lambda: run.outbox.put(sent))
        return answer

    def _check_restored(self) -> None:
        """Refuse new noise where some may have left that neither outbox nor ledger know of."""
        mark = Restored.read(self.run.folder)
        if mark is None:
            return
        run = self.run.plan.run.hex()
        if (why := mark.objection(run, ROUND + 1)) is not None:
            raise Refused(why)
        if mark.told[run] >= ROUND:
            raise Refused(
                f"this site was restored from a backup of {mark.backup}, and nobody can tell what it sent since in "
                "this run; it takes part in another one"
            )


@dataclass
class GrowingHub(ForestHub):
    """A coordinator that asks sites for histograms."""

    reasons: dict[str, str] = field(default_factory=dict)  # by site: why it did not answer, the last time

    def begun(self) -> None:
        """Say from now on that something may have left sites, to those who came back from a backup."""
        self._over = ROUND

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Carry messages to clients, each through its site; whoever does not answer is not among what comes back."""
        whom: dict[str, list[int]] = {}
        for site in self.sites():
            own = [id for id in site.clients if id in requests]
            if own:
                whom[site.name] = own
        contents = {
            name: protocol.request(
                "grow", self.plan.run, 1, whom=np.array(ids, "<i8").tobytes(), message=requests[ids[0]]
            )
            for name, ids in whom.items()
        }

        def read(content: bytes, label: Label) -> list[bytes]:
            found = protocol.read(content, label, {"answers": Part("|S", LARGEST)})
            name = next(site.name for site in self.plan.sites if site.clients[0] == label.sender)
            pieces = protocol.unbundle(found["answers"], len(whom[name]), LARGEST)
            if len(pieces) != len(whom[name]):
                raise Refused(f"{len(pieces)} answers came of {len(whom[name])} clients")
            return pieces

        found, why = self._ask(contents, 1, read, "grown")
        self.reasons |= why
        if strangers := [site for site in self.sites() if why.get(site.name) == protocol.SAY_HELLO]:
            self._greet_again(strangers)
        return {id: piece for name, pieces in found.items() for id, piece in zip(whom[name], pieces, strict=True)}


def perform_grown(
    experiment: TreesExperiment, writer: RunWriter, plan: Plan, send: Send, patience: float, books: Books, fold: Fold,
    nothing: BaselineRanking,
) -> None:  # fmt: skip
    """Grow one forest with all sites, and give it to everybody; a stopped run goes on after its last tree."""
    assert isinstance(experiment.merge, Histograms)
    writer.know(conventions=GROWN)
    kept = writer.begin()
    state = _Grown() if kept is None else _Grown.read(kept["grown"])
    hub = GrowingHub(
        plan, send, patience, note=books.note, waiting=books.waiting, stop=writer.stop, left_out=books.left_out()
    )
    hub.hello(0 if kept is None else ROUND)
    books.progress(plan, 0, 1)
    growing = agreed(plan)
    identities = identities_of(plan) if growing.secure else None
    server: TreeServer | NoisedServer
    if isinstance(growing, NoisedPlan):
        server = NoisedServer(growing, hub.ask, identities)
        if kept is not None:
            state.releases += growing.noise.releases  # a tree that a crash took may be paid for again
        writer.keep(0, state.parts())  # before anything leaves a site
        hub.begun()
    else:
        server = TreeServer(growing, hub.ask, identities)
    try:
        _grow(server, state, writer)
    except ValueError as problem:
        why = "; ".join(
            [f"client {client}: {reason}" for client, reason in server.refused.items()]
            + [f"{name}: {reason}" for name, reason in hub.reasons.items()]
        )
        raise Differs(f"{problem}{f' ({why})' if why else ''}") from None
    books.keep_left_out(hub.left_out)
    notes_of = {"grown by": "histograms", "clients": len(plan.clients)}
    forest = transplanted(state.trees[: best_size(state.curve)], fold.train, notes_of)
    names = [site.name for site in plan.sites]
    nobodys = np.zeros((len(names), fold.test.queries), np.bool_)
    announced = server.announced if isinstance(server, TreeServer) else {}  # under noise nobody tells it
    rows = {site.name: sum(announced.get(id, 0) for id in site.clients) for site in plan.sites}
    outcome = measured(rows, [forest] * len(names), [forest] * len(names), fold, experiment.measures, nobodys)
    save_merged(outcome, writer, fold)
    card = site_card(plan, list(plan.clients), GROWN_IN_SUM if growing.secure else GROWN_FOREST)
    if isinstance(growing, NoisedPlan):
        card = _priced(card, experiment.merge, growing, state.releases)
    issued(card, writer.folder, fold.name).write(writer.folder)
    why_not = hub.give_merged(result_files(writer, plan, list(plan.clients)))
    notes = [f"{name} has not been given the result: {reason}" for name, reason in why_not.items()]
    notes += [f"client {client} was refused: {reason}" for client, reason in server.refused.items()]
    finish_merge(outcome, writer, fold, nothing, notes=notes, tuned=None)
    books.progress(plan, 1, 1)


@dataclass
class _Grown:
    """A forest so far, as a stopped coordinator finds it again."""

    trees: list[str] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)
    releases: int = 0  # that sites were asked for under noise

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> _Grown:
        curve = [float("nan") if one is None else float(one) for one in kept["validation"]]
        return cls(list(kept["trees"]), curve, int(kept.get("releases", 0)))

    def parts(self) -> dict[str, Any]:
        known = [None if one != one else one for one in self.curve]
        return {"grown": {"trees": self.trees, "validation": known, "releases": self.releases}}


def _grow(server: TreeServer | NoisedServer, state: _Grown, writer: RunWriter) -> None:
    if isinstance(server, TreeServer):
        for text, quality in server.forest(Past(tuple(state.trees), tuple(state.curve))):
            state.trees.append(text)
            state.curve.append(quality)
            writer.turn(0, 1, state.parts)
        return
    before = state.releases
    for text in server.forest(state.trees):
        state.trees.append(text)
        state.curve.append(float("nan"))
        state.releases = before + server.releases
        writer.keep(0, state.parts())  # every one: what is asked for again may cost again
        writer.turn(0, 1, state.parts)


def _priced(card: Card, merge: Histograms, growing: NoisedPlan, releases: int) -> Card:
    """What may be claimed for a forest that grew under noise; what a site has paid in all its runs its ledger says."""
    noised = noised_card(card, merge, growing.rules, releases, len(growing.clients))
    return replace(noised, not_covered=(*NOISED_TREES[:2], *card.not_covered[len(TREES) :]))

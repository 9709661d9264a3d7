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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.backup import Restored
from fedrank.deploy.coordinate import Coordination, deployed, site_notes
from fedrank.deploy.forest_hub import give_merged, result_files, site_card
from fedrank.deploy.forests import ROUND, ForestRun
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.outbox import Sent
from fedrank.deploy.plan import Plan
from fedrank.deploy.site_calls import SiteCalls
from fedrank.deploy.site_runtime import CheckedRequest, Computed, Contribution, digest_of
from fedrank.experiments.runner.merge import ForestDisclosure, MergeRun
from fedrank.experiments.runner.writer import RunWriter
from fedrank.privacy.secure_aggregation import Identity
from fedrank.trees.growing import GrowPlan
from fedrank.trees.growing_protocol import ReleaseRequest, TreeClient, TreeServer
from fedrank.trees.histograms import Histograms
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
    rules = Histograms.rules(experiment.booster)
    edges = experiment.merge.public_edges(plan.features, rules.bins)
    return experiment.merge.plan(rules, edges, plan.seed, plan.clients)


def identities_of(plan: Plan) -> dict[int, bytes] | None:
    """Public keys of all sites, which their people have compared; None in a trial, whose clients have none."""
    if plan.simulated:
        return None
    if unknown := [site.name for site in plan.sites if not site.identity]:
        raise Refused(f"the plan has no key of {', '.join(unknown)}, and a secure sum needs everybody's")
    return {site.clients[0]: bytes.fromhex(site.identity) for site in plan.sites}


class TreeMessages(Contribution[ForestRun]):
    """What the clients of a site answer to a message of the half that decides."""

    kinds = ("grow",)
    attempts = True

    def __init__(self, run: ForestRun) -> None:
        super().__init__(run)
        self.plan = agreed(run.plan)
        publics = identities_of(run.plan) if self.plan.secure else None
        identity = None if publics is None else Identity(run.site.identity.secret, publics)
        held = zip(run.plan.party(run.site.settings.name).clients, run.held, strict=True)

        def attempts(release: int) -> int:
            before = run.outbox.get(ROUND + release)
            return -1 if before is None else before.attempt

        try:
            self.clients = {id: TreeClient(id, self.plan, own, check, identity, attempts) for id, (own, check) in held}
        except ValueError as problem:  # it names settings: persons that nobody names, too many bits
            raise Refused(str(problem)) from None

    def answer(self, label: Label, content: bytes) -> bytes:
        """What clients of this site say to one message; refused where it does not fit any of them."""
        request = self.read(label, content)
        if request.rows is not None:
            return self.contribute(request)
        if self.plan.noise is None and self.run.outbox.get(ROUND) is None:
            # From here on other rows are refused.
            self.run.outbox.put(Sent(ROUND, 0, request.digest, b"", b"", np.empty(0), self.run.data))
        return self.compute(request).answer

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        """A message to clients; one that asks for noise is a release, which people pay for."""
        parts = {"whom": Part("|S", 8 * len(self.clients)), "message": Part("|S", LARGEST)}
        _, found = wire.unpack(content, Label("grow", label.run, label.round), parts)
        if len(found["whom"]) % 8:
            raise Refused("whom it is for are no whole numbers")
        whom = np.frombuffer(found["whom"], "<i8").tolist()
        if not whom or set(whom) - set(self.clients) or len(set(whom)) != len(whom):
            raise Refused(f"it is for clients {whom}, and this site has {sorted(self.clients)}")
        asked = ReleaseRequest.read(self.plan, found["message"])
        request = CheckedRequest(label, digest_of(content), ROUND, "a message", content=(whom, found["message"]))
        if asked is None:
            return request
        if sorted(whom) != sorted(self.clients):
            raise Refused(f"noise is asked of clients {whom} alone, and this site answers for all of its own")
        assert self.run.charging is not None
        people = np.arange(self.run.charging.terms.people)
        name = f"release {asked.number} of tree {asked.tree}"
        return replace(request, number=ROUND + asked.release, name=name, rows=people, attempt=asked.attempt)

    def compute(self, request: CheckedRequest) -> Computed:
        whom, message = request.content
        answers = [self.clients[id].answer(message) for id in whom]
        return Computed(self.reply("grown", request.label, answers=protocol.bundle(answers)))

    def check_new(self, request: CheckedRequest, before: Sent | None) -> None:
        """Refuse new noise where some may have left that neither outbox nor ledger know of."""
        mark = Restored.read(self.run.site.folder)
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
class GrowingHub:
    """A coordinator that asks sites for histograms."""

    calls: SiteCalls
    reasons: dict[str, str] = field(default_factory=dict)  # by site: why it did not answer, the last time

    def __post_init__(self) -> None:
        self.plan, self.handshake = self.calls.plan, Handshake(self.calls)

    def begun(self) -> None:
        """Say from now on that something may have left sites, to those who came back from a backup."""
        self.handshake.over = ROUND

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Carry messages to clients, each through its site; whoever does not answer is not among what comes back."""
        whom: dict[str, list[int]] = {}
        for site in self.calls.sites():
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
            name = self.plan.site_of[label.sender].name
            pieces = protocol.unbundle(found["answers"], len(whom[name]), LARGEST)
            if len(pieces) != len(whom[name]):
                raise Refused(f"{len(pieces)} answers came of {len(whom[name])} clients")
            return pieces

        found, why = self.calls.ask(contents, 1, read, "grown")
        self.reasons |= why
        self.handshake.greet_strangers(why)
        return {id: piece for name, pieces in found.items() for id, piece in zip(whom[name], pieces, strict=True)}


def perform_grown(merging: MergeRun, run: Coordination) -> None:
    """Grow one forest with all sites, and give it to everybody; a stopped run goes on after its last tree."""
    experiment = merging.experiment
    assert isinstance(experiment.merge, Histograms)
    writer, plan, books = run.writer, run.plan, run.books
    writer.update_facts(conventions=GROWN)
    kept = writer.begin()
    state = _Grown() if kept is None else _Grown.read(kept["grown"])
    hub = GrowingHub(run.calls)
    hub.handshake.hello(0 if kept is None else ROUND)
    books.progress(plan, 0, 1)
    growing = agreed(plan)
    identities = identities_of(plan) if growing.secure else None
    server = TreeServer(growing, hub.ask, identities)
    if growing.noise is not None:
        if kept is not None:
            state.releases += growing.noise.releases  # a tree that a crash took may be paid for again
        writer.save_checkpoint(0, state.parts())  # before anything leaves a site
        hub.begun()
    try:
        _grow(server, state, writer)
    except ValueError as problem:
        why = "; ".join(
            [f"client {client}: {reason}" for client, reason in server.refused.items()]
            + [f"{name}: {reason}" for name, reason in hub.reasons.items()]
        )
        raise Differs(f"{problem}{f' ({why})' if why else ''}") from None
    books.keep_left_out(hub.calls.left_out)
    # Under noise sites announce no rows.
    rows = {site.name: sum(server.announced.get(id, 0) for id in site.clients) for site in plan.sites}
    outcome = merging.shared_forest(state.trees, state.curve, rows, len(plan.clients))
    merging.save(outcome)
    card = site_card(plan, list(plan.clients), ForestDisclosure.of(experiment.merge).who_sees_what)
    if growing.noise is not None:
        noised = merging.noised_card(card, state.releases, len(growing.clients))
        left_open = ForestDisclosure.of(experiment.merge).not_covered[:2]  # sites train nothing beside the forest
        card = deployed(replace(noised, not_covered=left_open), plan)
    run.issue(card, merging.fold.name)
    why_not = give_merged(hub.calls, result_files(writer, plan, list(plan.clients)))
    notes = site_notes({}, why_not)
    notes += [f"client {client} was refused: {reason}" for client, reason in server.refused.items()]
    merging.finish(outcome, notes=notes, tuned=None)
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


def _grow(server: TreeServer, state: _Grown, writer: RunWriter) -> None:
    before = state.releases
    for text, quality in server.forest(state.trees, state.curve):
        state.trees.append(text)
        state.curve.append(quality)
        state.releases = before + server.releases
        if server.plan.noise is not None:
            writer.save_checkpoint(0, state.parts())  # every one: what is asked for again may cost again
        writer.after_round(0, 1, state.parts)

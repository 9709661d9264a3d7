"""One forest that sites train together from histograms: `trees/growing_protocol.py` between sites.

    grow -> grown      a message of the server half to clients of a site; their answers

The plan contains everything that both halves agree on: rules, seed, clients, and bin edges that do not depend on data.

Without noise a site stores only the digest of its rows. Its answers follow from these rows, the trees so far and the
requested splits, in integer arithmetic: computed again, they have the same bytes, and other rows are refused. With
secure aggregation, keys and masks are new after every start.

Noise cannot be reproduced. It is written to the outbox, and charged, before it is sent; for the same request a site
sends the stored message without a charge. A different request with the same number is refused unless it is a new
attempt, which is charged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.backup import RestoreMark
from fedrank.deploy.coordinate import Coordination, deployed, site_notes
from fedrank.deploy.forest_hub import give_merged, result_files, site_card
from fedrank.deploy.forests import ROUND, ForestRun
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.outbox import Sent
from fedrank.deploy.plan import Plan, key_problems
from fedrank.deploy.site_calls import SiteCalls
from fedrank.deploy.site_runtime import CheckedRequest, Computed, Contribution, digest_of
from fedrank.experiments.runner.merge import ForestDisclosure, MergeRun
from fedrank.experiments.runner.writer import RunWriter
from fedrank.privacy.secure_messages import Identity
from fedrank.trees.growing import GrowPlan
from fedrank.trees.growing_protocol import ReleaseRequest, TreeClient, TreeServer
from fedrank.trees.histograms import Histograms
from fedrank.wire import Label, Part, Refused

LARGEST = 1 << 28  # maximum size of a message in bytes
GROWN = {
    "rounds": "one round: all sites train one forest together; values are those of that forest",
    "before": "sites have no own forests, so before and after are equal",
}


def agreed(plan: Plan) -> GrowPlan:
    """What both halves agree on, from the accepted plan."""
    experiment = plan.forests
    assert experiment is not None
    assert isinstance(experiment.merge, Histograms)
    rules = Histograms.rules(experiment.booster)
    edges = experiment.merge.public_edges(plan.features, rules.bins)
    return experiment.merge.plan(rules, edges, plan.seed, plan.clients)


def identities_of(plan: Plan) -> dict[int, bytes] | None:
    """Public keys of all sites, compared by their users; None in a trial."""
    if plan.simulated:
        return None
    if found := key_problems(plan):
        raise Refused("; ".join(found))
    return {site.clients[0]: bytes.fromhex(site.identity) for site in plan.sites}


class TreeMessages(Contribution[ForestRun]):
    """Answers of a site's clients to a message of the server half."""

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
            self.clients = {
                id: TreeClient(id, self.plan, *own, identity, attempts, agreed=bytes.fromhex(run.plan.digest))
                for id, own in held
            }
        except ValueError as problem:  # an error in the settings: queries without a person, too many bits
            raise Refused(str(problem)) from None

    def answer(self, label: Label, content: bytes) -> bytes:
        """The answers of this site's clients to one message; refused if it does not match a client."""
        request = self.read(label, content)
        if request.rows is not None:
            return self.contribute(request)
        if self.plan.noise is None and self.run.outbox.get(ROUND) is None:
            # From here on, other rows are refused.
            self.run.outbox.put(Sent(ROUND, 0, request.digest, b"", b"", np.empty(0), self.run.data))
        return self.compute(request).answer

    def read(self, label: Label, content: bytes) -> CheckedRequest:
        """Read a message to clients; a request for noise is a release, which is charged."""
        parts = {"whom": Part("|S", 8 * len(self.clients)), "message": Part("|S", LARGEST)}
        _, found = wire.unpack(content, Label("grow", label.run, label.round), parts)
        if len(found["whom"]) % 8:
            raise Refused("the ids of its clients are not integers")
        whom = np.frombuffer(found["whom"], "<i8").tolist()
        if not whom or set(whom) - set(self.clients) or len(set(whom)) != len(whom):
            raise Refused(f"it is for clients {whom}, but this site has {sorted(self.clients)}")
        asked = ReleaseRequest.read(self.plan, found["message"])
        request = CheckedRequest(label, digest_of(content), ROUND, "a message", content=(whom, found["message"]))
        if asked is None:
            return request
        if sorted(whom) != sorted(self.clients):
            raise Refused(f"noise is requested from clients {whom} only, but this site adds it for all its clients")
        assert self.run.charging is not None
        people = np.arange(self.run.charging.terms.people)
        name = f"release {asked.number} of tree {asked.tree}"
        return replace(request, number=ROUND + asked.release, name=name, rows=people, attempt=asked.attempt)

    def compute(self, request: CheckedRequest) -> Computed:
        whom, message = request.content
        answers = [self.clients[id].answer(message) for id in whom]
        return Computed(self.reply("grown", request.label, answers=protocol.bundle(answers)))

    def check_new(self, request: CheckedRequest, before: Sent | None) -> None:
        """Refuse new noise if earlier noise may have been sent without a record in outbox or ledger."""
        mark = RestoreMark.read(self.run.site.folder)
        if mark is None:
            return
        run = self.run.plan.run.hex()
        if (why := mark.objection(run, ROUND + 1)) is not None:
            raise Refused(why)
        if mark.completed_rounds[run] >= ROUND:
            raise Refused(
                f"this site was restored from a backup of {mark.backup} and cannot determine what it sent since then "
                "in this run; it participates in the next run"
            )


@dataclass
class GrowingHub:
    """A coordinator that requests histograms from sites."""

    calls: SiteCalls
    reasons: dict[str, str] = field(default_factory=dict)  # by site: reason of the last missing answer

    def __post_init__(self) -> None:
        self.plan, self.handshake = self.calls.plan, Handshake(self.calls)

    def begun(self) -> None:
        """Report from now on, to sites restored from a backup, that messages may have been sent."""
        self.handshake.over = ROUND

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send messages to clients through their sites; return the answers that arrived."""
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
                raise Refused(f"received {len(pieces)} answers from {len(whom[name])} clients")
            return pieces

        found, why = self.calls.ask(contents, 1, read, "grown")
        self.reasons |= why
        self.handshake.greet_strangers(why)
        return {id: piece for name, pieces in found.items() for id, piece in zip(whom[name], pieces, strict=True)}


def perform_grown(merging: MergeRun, run: Coordination) -> None:
    """Train one forest with all sites and send it to them; a stopped run continues after its last tree."""
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
            state.releases += growing.noise.releases  # a tree lost in a crash may be charged again
        writer.save_checkpoint(0, state.parts())  # before a site sends anything
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
    # With noise, sites do not announce rows.
    rows = {site.name: sum(server.announced.get(id, 0) for id in site.clients) for site in plan.sites}
    outcome = merging.shared_forest(state.trees, state.curve, rows, len(plan.clients))
    merging.save(outcome)
    card = site_card(plan, list(plan.clients), ForestDisclosure.of(experiment.merge).who_sees_what)
    if growing.noise is not None:
        noised = merging.noised_card(card, state.releases, len(growing.clients))
        card = deployed(noised, plan)
    run.issue(card, merging.fold.name)
    why_not = give_merged(hub.calls, result_files(writer, plan, list(plan.clients)))
    notes = site_notes({}, why_not)
    notes += [f"client {client} was refused: {reason}" for client, reason in server.refused.items()]
    merging.finish(outcome, notes=notes, tuned=None)
    books.progress(plan, 1, 1)


@dataclass
class _Grown:
    """A partial forest, as a restarted coordinator reads it."""

    trees: list[str] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)
    releases: int = 0  # releases requested with noise

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
            writer.save_checkpoint(0, state.parts())  # every time: a repeated request may be charged again
        writer.after_round(0, 1, state.parts)

"""A forest that sites grow together from histograms: the two halves of `trees/grow_halves.py`, carried by Site and Hub.

    grow -> grown      a message of the half that decides, to clients of a site; what each of them answers

The plan says all that both halves agree on: rules, seed, clients, and bin edges that tell nothing of anybody's data.
Nothing is kept at a site: a forest is grown again from its trees, which the coordinator keeps, so that asked again a
site says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.catalog import Fold
from fedrank.deploy import letters
from fedrank.deploy.coordinate import Books
from fedrank.deploy.forest_hub import ForestHub, result_files, site_card
from fedrank.deploy.forests import ForestRun
from fedrank.deploy.hub import Differs, Send
from fedrank.deploy.identity import IdentityKey
from fedrank.deploy.plan import Plan
from fedrank.protect.secure_sum import Identity
from fedrank.rank.given import Given
from fedrank.run.cards import GROWN_FOREST, GROWN_IN_SUM, issued
from fedrank.run.merge import finish_merge, save_merged
from fedrank.run.writer import RunWriter
from fedrank.spec.trees import TreesExperiment
from fedrank.trees.boosters import Past, best_size
from fedrank.trees.forest import transplanted
from fedrank.trees.grow_halves import GrowPlan, TreeClient, TreeServer
from fedrank.trees.histograms import Histograms, rules_of
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
    clients: dict[int, TreeClient]

    @classmethod
    def open(cls, run: ForestRun, key: IdentityKey) -> GrowingRun:
        plan = agreed(run.plan)
        publics = identities_of(run.plan) if plan.secure else None
        identity = None if publics is None else Identity(key.secret, publics)
        ids = run.plan.party(run.settings.name).clients
        return cls(
            run,
            {
                id: TreeClient(id, plan, train, useful(validation), identity)
                for id, (train, validation) in zip(ids, run.held, strict=True)
            },
        )

    def answer(self, label: Label, content: bytes) -> bytes:
        """What clients of this site say to one message; refused where it does not fit any of them."""
        parts = {"whom": Part("|S", 8 * len(self.clients)), "message": Part("|S", LARGEST)}
        _, found = wire.unpack(content, Label("grow", label.run, label.round), parts)
        if len(found["whom"]) % 8:
            raise Refused("whom it is for are no whole numbers")
        whom = np.frombuffer(found["whom"], "<i8").tolist()
        if not whom or set(whom) - set(self.clients) or len(set(whom)) != len(whom):
            raise Refused(f"it is for clients {whom}, and this site has {sorted(self.clients)}")
        answers = [self.clients[id].answer(found["message"]) for id in whom]
        return letters.reply("grown", label, self.run.settings.id, answers=letters.bundle(answers))


@dataclass
class GrowingHub(ForestHub):
    """A coordinator that asks sites for histograms."""

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes]:
        """Carry messages to clients, each through its site; whoever does not answer is not among what comes back."""
        whom: dict[str, list[int]] = {}
        for site in self.sites():
            own = [id for id in site.clients if id in requests]
            if own:
                whom[site.name] = own
        contents = {
            name: letters.request(
                "grow", self.plan.run, 1, whom=np.array(ids, "<i8").tobytes(), message=requests[ids[0]]
            )
            for name, ids in whom.items()
        }

        def read(content: bytes, label: Label) -> list[bytes]:
            found = letters.read(content, label, {"answers": Part("|S", LARGEST)})
            name = next(site.name for site in self.plan.sites if site.clients[0] == label.sender)
            pieces = letters.unbundle(found["answers"], len(whom[name]), LARGEST)
            if len(pieces) != len(whom[name]):
                raise Refused(f"{len(pieces)} answers came of {len(whom[name])} clients")
            return pieces

        found, why = self._ask(contents, 1, read, "grown")
        if strangers := [site for site in self.sites() if why.get(site.name) == letters.SAY_HELLO]:
            self._greet_again(strangers)
        return {id: piece for name, pieces in found.items() for id, piece in zip(whom[name], pieces, strict=True)}


def perform_grown(
    experiment: TreesExperiment, writer: RunWriter, plan: Plan, send: Send, patience: float, books: Books, fold: Fold,
    nothing: Given,
) -> None:  # fmt: skip
    """Grow one forest with all sites, and give it to everybody; a stopped run goes on after its last tree."""
    assert isinstance(experiment.merge, Histograms)
    writer.know(conventions=GROWN)
    kept = writer.begin()
    trees: list[str] = [] if kept is None else list(kept["grown"]["trees"])
    curve = [] if kept is None else [float("nan") if one is None else one for one in kept["grown"]["validation"]]
    hub = GrowingHub(
        plan, send, patience, note=books.note, waiting=books.waiting, stop=writer.stop, left_out=books.left_out()
    )
    hub.hello()
    books.progress(plan, 0, 1)
    growing = agreed(plan)
    server = TreeServer(growing, hub.ask, identities_of(plan) if growing.secure else None)

    def parts() -> dict[str, Any]:
        known = [None if one != one else one for one in curve]
        return {"grown": {"trees": trees, "validation": known}}

    try:
        for text, quality in server.forest(Past(tuple(trees), tuple(curve))):
            trees.append(text)
            curve.append(quality)
            writer.turn(0, 1, parts)
    except ValueError as problem:
        why = "; ".join(f"client {client}: {reason}" for client, reason in server.refused.items())
        raise Differs(f"{problem}{f' ({why})' if why else ''}") from None
    books.keep_left_out(hub.left_out)
    notes_of = {"grown by": "histograms", "clients": len(plan.clients)}
    forest = transplanted(trees[: best_size(curve)], fold.train, notes_of)
    names = [site.name for site in plan.sites]
    nobodys = np.zeros((len(names), fold.test.queries), np.bool_)
    rows = {site.name: sum(server.announced[id] for id in site.clients) for site in plan.sites}
    outcome = measured(rows, [forest] * len(names), [forest] * len(names), fold, experiment.measures, nobodys)
    save_merged(outcome, writer, fold)
    sees = GROWN_IN_SUM if growing.secure else GROWN_FOREST
    issued(site_card(plan, list(plan.clients), sees), writer.folder, fold.name).write(writer.folder)
    why_not = hub.give_merged(result_files(writer, plan, list(plan.clients)))
    notes = [f"{name} has not been given the result: {reason}" for name, reason in why_not.items()]
    notes += [f"client {client} was refused: {reason}" for client, reason in server.refused.items()]
    finish_merge(outcome, writer, fold, nothing, notes=notes, tuned=None)
    books.progress(plan, 1, 1)

"""The coordinator of organisations with documents: it forwards sealed letters and schedules turns.

It sees senders, recipients and sizes, and the model after the last turn, which it evaluates on its own collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.deploy import protocol
from fedrank.deploy.coordinate import Coordination, deployed, site_notes
from fedrank.deploy.handshake import Differs, Facts, Handshake
from fedrank.deploy.silos import FIRST_TURN, MAX_LETTERS, STEPS, checked_keys
from fedrank.deploy.site_calls import SiteCalls
from fedrank.experiments.runner.silo import SiloEvaluation
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.ranking.model import Model
from fedrank.silo.letters import LetterCarrier
from fedrank.silo.member import read_final_model, turn_order
from fedrank.wire import Label, Part, Refused

TOP_GRADE = 127  # the highest relevance label that a site may have
BETWEEN_SITES = {
    "rounds": "row r is after pass r of every site; the model is opened only after the last one and evaluated then",
    "quality": "on the test queries of the coordinator's own collection",
    "interactions": "not reported",
}
Check = Callable[[list[bytes], str], Any]


@dataclass
class SiloHub:
    """A coordinator that forwards sealed letters."""

    calls: SiteCalls
    top: int = 1  # the highest relevance label of all sites
    passed: Callable[[int], None] = lambda passes: None  # receives the number of completed passes of all sites
    passes: int = 0  # completed passes

    def __post_init__(self) -> None:
        self.plan, self.handshake = self.calls.plan, Handshake(self.calls, check=self._meet)
        assert self.plan.silos is not None
        self.question = self.plan.silos
        self._sites = [site.name for site in self.plan.sites]

    def _meet(self, name: str, facts: Facts) -> None:
        grade = facts.get("top_grade")
        if type(grade) is not int or not 1 <= grade <= TOP_GRADE:
            raise Differs(f"{name} does not report its highest relevance label")
        self.top = max(self.top, grade)

    def model(self) -> Model:
        """The model after all turns."""
        nothing: dict[str, list[bytes]] = {name: [] for name in self._sites}
        keys = self._everybody("silo-key", nothing, self._one_key)
        pieces = [keys[name][0] for name in self._sites]
        carrier = LetterCarrier(dict(zip(self._sites, checked_keys(self.plan, pieces), strict=True)))
        wrapped = self._everybody("silo-meet", dict.fromkeys(self._sites, pieces))[self._sites[0]]
        if len(wrapped) != len(self._sites) - 1:
            raise Differs(f"{self._sites[0]} sent {len(wrapped)} wrapped keys (expected {len(self._sites) - 1})")
        self._everybody("silo-open", dict(zip(self._sites, [[], *([key] for key in wrapped)], strict=True)))
        questions = self._everybody("silo-ask", nothing, partial(carrier.check, "question"))
        answers = self._everybody("silo-answer", carrier.deliver(questions), partial(carrier.check, "answer"))
        self._everybody("silo-hear", carrier.deliver(answers))
        return self._turns(carrier)

    def _turns(self, carrier: LetterCarrier) -> Model:
        names = carrier.name_of
        turns = turn_order(sorted(names), self.question.rounds)
        carried: list[bytes] = []

        def check_final(sent: list[bytes], name: str) -> None:
            if len(sent) != 1:
                raise Refused(f"{len(sent)} models arrived (expected one)")
            read_final_model(sent[0], turns, self.plan.normalised)

        for number, turn in enumerate(turns):
            last = number + 1 == len(turns)
            check = check_final if last else partial(carrier.check, "model")
            at = FIRST_TURN + number
            carried = self._everybody("silo-turn", {names[turn.party]: carried}, check, at)[names[turn.party]]
            self.passes = sum(one.passes for one in turns[: number + 1]) // len(names)
            self.passed(self.passes)
        return read_final_model(carried[0], turns, self.plan.normalised)

    def _everybody(
        self,
        kind: str,
        came: Mapping[str, list[bytes]],
        check: Check = lambda sent, name: None,
        step: int | None = None,
    ) -> dict[str, list[bytes]]:
        """The messages of all sites in a step. Every site is required and waited for."""
        number = STEPS[kind] if step is None else step
        found: dict[str, list[bytes]] = {}
        top = np.array([self.top])

        def read(content: bytes, label: Label) -> list[bytes]:
            parts = {"letters": Part("|S", protocol.MAX_MODEL)}
            sent = protocol.read(content, label, parts)["letters"]
            pieces = protocol.unbundle(sent, MAX_LETTERS, protocol.MAX_MODEL)
            check(pieces, self.plan.site_of[label.sender].name)
            return pieces

        while True:
            requests = {
                name: wire.pack(Label(kind, self.plan.run, number), {"letters": protocol.bundle(pieces), "top": top})
                for name, pieces in came.items()
                if name not in found
            }
            more, why = self.handshake.ask_and_greet(requests, number, read, "letters")
            found |= more
            if not why:
                return found
            if self.calls.left_out:
                raise Differs(
                    f"every site is required, but some are excluded: {'; '.join(self.calls.left_out.values())}"
                )
            if set(why.values()) != {protocol.SAY_HELLO}:
                self.calls.pause(number, why)

    def _one_key(self, sent: list[bytes], name: str) -> None:
        if len(sent) != 1:
            raise Refused(f"expected one key (got {len(sent)})")


def perform_silos(experiment: SiloExperiment, run: Coordination) -> None:
    """Let organisations ask each other and train in turn; evaluate the model on the coordinator's collection."""
    plan, books, last = run.plan, run.books, experiment.rounds
    judging = SiloEvaluation(experiment, run.writer)
    judging.begin(BETWEEN_SITES)
    hub = SiloHub(run.calls)
    hub.passed = lambda passes: books.progress(plan, passes, last)
    hub.handshake.hello()
    hub.passed(0)
    try:
        model = hub.model()
    finally:
        books.keep_left_out(run.calls.left_out)
        hub.passed(hub.passes)
    judging.add(model)
    run.issue(deployed(judging.card, plan), judging.collection.name)
    why = run.give_result(last, hub.handshake)
    judging.finish(site_notes({}, why))
    books.progress(plan, last, last)

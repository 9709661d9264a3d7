"""The coordinator of organisations with documents: it forwards sealed letters and schedules turns.

It sees senders, recipients and sizes, and the model after the last turn, which it evaluates on its own collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.collection import load_collection
from fedrank.deploy import protocol
from fedrank.deploy.coordinate import Coordination, deployed, site_notes
from fedrank.deploy.handshake import Differs, Facts, Handshake
from fedrank.deploy.silos import FIRST_TURN, MAX_LETTERS, STEPS, checked_keys
from fedrank.deploy.site_calls import SiteCalls
from fedrank.experiments.runner.data import described
from fedrank.experiments.runner.federated import per_query
from fedrank.experiments.runner.silo import CONVENTIONS, silo_card
from fedrank.experiments.runner.writer import NOISE
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Model, load_weights, save_model
from fedrank.ranking.rankers import Linear
from fedrank.silo.carrier import LetterCarrier
from fedrank.silo.features import FEATURE_NAMES
from fedrank.silo.member import turn_order
from fedrank.silo.training import CrossSilo, own_lists
from fedrank.silo.turns import Turn, read_open_turn
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
        for number, turn in enumerate(turns):
            last = number + 1 == len(turns)
            check = self._open_model(turns) if last else partial(carrier.check, "model")
            at = FIRST_TURN + number
            carried = self._everybody("silo-turn", {names[turn.party]: carried}, check, at)[names[turn.party]]
            self.passes = sum(one.passes for one in turns[: number + 1]) // len(names)
            self.passed(self.passes)
        with TemporaryDirectory() as apart:
            return _read(carried[0], Path(apart))

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

    def _open_model(self, turns: list[Turn]) -> Check:
        def check(sent: list[bytes], name: str) -> None:
            if len(sent) != 1:
                raise Refused(f"expected one model (got {len(sent)})")
            with TemporaryDirectory() as apart:
                try:
                    _read(sent[0], Path(apart))
                    found = read_open_turn(Path(apart) / "model.json")
                except (ValueError, KeyError, TypeError) as problem:
                    raise Refused(f"the model cannot be read: {problem}") from None
            if list(found.turns) != turns:
                raise Refused("the turns of the model differ from the plan")
            if ("query" if found.agreement.normalise == "query" else "global") != self.plan.normalised:
                raise Refused(f"the model has normalisation {found.agreement.normalise!r}, which differs from the plan")

        return check


def perform_silos(experiment: SiloExperiment, run: Coordination) -> None:
    """Let organisations ask each other and train in turn; evaluate the model on the coordinator's collection."""
    writer, plan, books, last = run.writer, run.plan, run.books, experiment.rounds
    collection = load_collection(experiment.data.source)
    method = experiment.method
    assert isinstance(method, CrossSilo)
    lists = own_lists(collection, plan.seed, max(collection.top_grade, 1), method.normalise)
    evaluator, ranker = Evaluator(lists.test, experiment.measures), Linear()
    writer.update_facts(
        conventions=CONVENTIONS | BETWEEN_SITES | {"noise": NOISE},
        data=described(collection.name, 0, lists.test.queries, lists.test),
        behind_final=1,
    )
    writer.begin(online=False)
    hub = SiloHub(run.calls)
    hub.passed = lambda passes: books.progress(plan, passes, last)
    hub.handshake.hello()
    hub.passed(0)
    try:
        model = hub.model()
    finally:
        books.keep_left_out(run.calls.left_out)
        hub.passed(hub.passes)
    values = per_query(evaluator, model.weights, ranker)
    for number in range(1, last + 1):
        writer.add(number, values=average(values).tolist() if number == last else None)
    notes = model.notes | writer.origin(collection.name)
    shape = len(FEATURE_NAMES), lists.test.normalised, FEATURE_NAMES, notes, lists.test.ranges
    save_model(Model(ranker, model.weights, *shape), writer.folder / "model.json")
    run.issue(deployed(silo_card(experiment), plan), collection.name)
    why = run.give_result(last)
    writer.report_progress(last, last)
    writer.finish(
        last,
        queries=(lists.test.query_ids.tolist(), values),
        baseline=BaselineRanking("BM25 of title and body", evaluator.per_query_of_scores(lists.bm25)),
        notes=site_notes({}, why),
    )
    books.progress(plan, last, last)


def _read(content: bytes, folder: Path) -> Model:
    path = folder / "model.json"
    path.write_bytes(content)
    return load_weights(path)

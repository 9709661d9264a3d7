"""The coordinator of organisations with documents: it carries letters that it cannot open, and whose turn it is.

It sees who writes to whom and how much, and the model after the last turn, which it judges on its own collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedrank import wire
from fedrank.data.collection import load_collection
from fedrank.data.text import Tokeniser
from fedrank.deploy import protocol
from fedrank.deploy.coordinate import Books, give_result
from fedrank.deploy.hub import Differs, Hub
from fedrank.deploy.plan import Plan
from fedrank.deploy.silos import FIRST_TURN, MOST_LETTERS, STEPS, checked_keys, turns_of
from fedrank.deploy.site_calls import Exchange, Send
from fedrank.experiments.runner.cards import issued
from fedrank.experiments.runner.data import described
from fedrank.experiments.runner.federated import per_query
from fedrank.experiments.runner.folder import DEPLOYED_RUN
from fedrank.experiments.runner.silo import CONVENTIONS, silo_card
from fedrank.experiments.runner.writer import NOISE, RunWriter
from fedrank.experiments.spec.silo import SiloExperiment
from fedrank.ranking.baseline_ranking import BaselineRanking
from fedrank.ranking.measures import Evaluator, average
from fedrank.ranking.model import Model, load_weights, save_model
from fedrank.ranking.rankers import Linear
from fedrank.silo.features import FEATURE_NAMES
from fedrank.silo.keys import fingerprint
from fedrank.silo.letters import read_address
from fedrank.silo.silos import SilosRule, make_silos
from fedrank.silo.training import CrossSilo, silo_lists
from fedrank.silo.turns import Turn, read_open_turn
from fedrank.wire import Label, Part, Refused

TOP_GRADE = 127  # the highest that anybody may have
BETWEEN_SITES = {
    "rounds": "row r is after pass r of every site; the model is open after the last one only, and measured then",
    "quality": "on the test queries of the coordinator's own collection",
    "interactions": "not told",
}
Check = Callable[[list[bytes], str], Any]


@dataclass
class SiloHub(Hub):
    """A coordinator that carries letters."""

    top: int = 1  # the highest grade that anybody gives
    publics: dict[str, bytes] = field(default_factory=dict)  # of sites: their keys for letters
    passed: Callable[[int], None] = lambda passes: None  # told how many passes of all sites are over
    passes: int = 0  # that are

    def __post_init__(self) -> None:
        assert self.plan.silos is not None
        self.place, self.question = None, self.plan.silos
        self._sites = [site.name for site in self.plan.sites]

    def _compare(self, found: Mapping[str, Mapping[str, Any]]) -> None:
        super()._compare(found)
        for name, facts in found.items():
            grade = facts.get("top_grade")
            if type(grade) is not int or not 1 <= grade <= TOP_GRADE:
                raise Differs(f"{name} does not say its highest grade")
            self.top = max(self.top, grade)

    def model(self) -> Model:
        """The model after all turns."""
        nothing: dict[str, list[bytes]] = {name: [] for name in self._sites}
        keys = self._everybody("silo-key", nothing, self._one_key)
        pieces = [keys[name][0] for name in self._sites]
        self.publics = dict(zip(self._sites, checked_keys(self.plan, pieces), strict=True))
        wrapped = self._everybody("silo-meet", dict.fromkeys(self._sites, pieces))[self._sites[0]]
        if len(wrapped) != len(self._sites) - 1:
            raise Differs(f"{self._sites[0]} wrapped {len(wrapped)} keys for {len(self._sites) - 1} sites")
        self._everybody("silo-open", dict(zip(self._sites, [[], *([key] for key in wrapped)], strict=True)))
        questions = self._everybody("silo-ask", nothing, self._addressed("question"))
        answers = self._everybody("silo-answer", self._delivered(questions), self._addressed("answer"))
        self._everybody("silo-hear", self._delivered(answers))
        return self._turns()

    def _turns(self) -> Model:
        names = {fingerprint(key): name for name, key in self.publics.items()}
        turns = turns_of(sorted(names), self.question.rounds)
        carried: list[bytes] = []
        for number, turn in enumerate(turns):
            last = number + 1 == len(turns)
            check = self._open_model(turns) if last else self._addressed("model")
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
        """What sites sent in a step. Nobody can be done without, so that everybody is waited for."""
        number = STEPS[kind] if step is None else step
        found: dict[str, list[bytes]] = {}
        top = np.array([self.top])

        def read(content: bytes, label: Label) -> list[bytes]:
            parts = {"letters": Part("|S", protocol.LARGEST_MODEL)}
            sent = protocol.read(content, label, parts)["letters"]
            pieces = protocol.unbundle(sent, MOST_LETTERS, protocol.LARGEST_MODEL)
            check(pieces, next(site.name for site in self.plan.sites if site.clients[0] == label.sender))
            return pieces

        while True:
            requests = {
                name: wire.pack(Label(kind, self.plan.run, number), {"letters": protocol.bundle(pieces), "top": top})
                for name, pieces in came.items()
                if name not in found
            }
            traffic: list[Exchange] = []
            more, why = self._ask(requests, number, read, "letters", traffic=traffic)
            for one in traffic:
                self.note(number, one)
            found |= more
            if not why:
                return found
            if self.left_out:
                raise Differs(f"nobody can be done without: {'; '.join(self.left_out.values())}")
            if strangers := [site for site in self.plan.sites if why.get(site.name) == protocol.SAY_HELLO]:
                why |= self._greet_again(strangers)
            if set(why.values()) != {protocol.SAY_HELLO}:
                self._wait(number, why)

    def _one_key(self, sent: list[bytes], name: str) -> None:
        if len(sent) != 1:
            raise Refused(f"{len(sent)} keys came, and one was expected")

    def _addressed(self, kind: str) -> Check:
        """A check that letters come from whom they say, and go to somebody else who takes part."""

        def check(sent: list[bytes], name: str) -> None:
            parties = {fingerprint(key) for key in self.publics.values()}
            me = fingerprint(self.publics[name])
            for letter in sent:
                address = read_address(letter)
                if address.kind != kind or address.sender != me or address.addressee not in parties - {me}:
                    raise Refused(f"a letter of kind {address.kind} from or to somebody else")
            if kind == "model" and len(sent) != 1:
                raise Refused(f"{len(sent)} models came, and one was expected")

        return check

    def _open_model(self, turns: list[Turn]) -> Check:
        def check(sent: list[bytes], name: str) -> None:
            if len(sent) != 1:
                raise Refused(f"{len(sent)} models came, and one was expected")
            with TemporaryDirectory() as apart:
                try:
                    _read(sent[0], Path(apart))
                    found = read_open_turn(Path(apart) / "model.json")
                except (ValueError, KeyError, TypeError) as problem:
                    raise Refused(f"the model cannot be read: {problem}") from None
            if list(found.turns) != turns:
                raise Refused("the model has other turns behind it than those of the plan")
            if ("query" if found.agreement.normalise == "query" else "global") != self.plan.normalised:
                raise Refused(f"the model has features normalised by {found.agreement.normalise!r}, unlike the plan")

        return check

    def _delivered(self, sent: Mapping[str, list[bytes]]) -> dict[str, list[bytes]]:
        """Letters by whom they are for, in the order of senders."""
        names = {fingerprint(key): name for name, key in self.publics.items()}
        boxes: dict[str, list[bytes]] = {name: [] for name in self._sites}
        for name in self._sites:
            for letter in sent[name]:
                boxes[names[read_address(letter).addressee]].append(letter)
        return boxes


def perform_silos(
    experiment: SiloExperiment, writer: RunWriter, plan: Plan, send: Send, patience: float, say: Callable[[str], None]
) -> None:
    """Let organisations ask each other and take turns, and judge what comes out on the coordinator's collection."""
    books, last = Books(writer.folder, say), experiment.rounds
    collection = load_collection(experiment.data.source)
    (own,) = make_silos(collection, SilosRule(1), Tokeniser(), plan.seed)
    method = experiment.method
    assert isinstance(method, CrossSilo)
    lists = silo_lists(own, (), 0, max(collection.top_grade, 1), how=method.normalise)
    evaluator, ranker = Evaluator(lists.test, experiment.measures), Linear()
    writer.know(
        conventions=CONVENTIONS | BETWEEN_SITES | {"noise": NOISE},
        data=described(collection.name, 0, lists.test.queries, lists.test),
        behind_final=1,
    )
    writer.begin(online=False)
    hub = SiloHub(
        plan, send, patience, note=books.note, waiting=books.waiting, stop=writer.stop, left_out=books.left_out()
    )
    hub.passed = lambda passes: books.progress(plan, passes, last)
    hub.hello()
    hub.passed(0)
    try:
        model = hub.model()
    finally:
        books.keep_left_out(hub.left_out)
        hub.passed(hub.passes)
    values = per_query(evaluator, model.weights, ranker)
    for number in range(1, last + 1):
        writer.add(number, values=average(values).tolist() if number == last else None)
    notes = model.notes | writer.origin(collection.name)
    shape = len(FEATURE_NAMES), lists.test.normalised, FEATURE_NAMES, notes, lists.test.ranges
    save_model(Model(ranker, model.weights, *shape), writer.folder / "model.json")
    sites = ", ".join(site.name for site in plan.sites)
    card = silo_card(experiment)
    card = replace(card, what=DEPLOYED_RUN, not_covered=(*card.not_covered, f"which sites took part: {sites}"))
    issued(card, writer.folder, collection.name).write(writer.folder)
    why = give_result(hub, writer.folder, last)
    writer.say(last, last)
    writer.finish(
        last,
        queries=(lists.test.query_ids.tolist(), values),
        nothing=BaselineRanking("BM25 of title and body", evaluator.per_query_of_scores(lists.bm25)),
        notes=[f"{name} has not been given the result: {reason}" for name, reason in why.items()],
    )
    books.progress(plan, last, last)


def _read(content: bytes, folder: Path) -> Model:
    path = folder / "model.json"
    path.write_bytes(content)
    return load_weights(path)

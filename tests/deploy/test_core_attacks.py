"""Bad messages to a site and to a coordinator: none is accepted, each is named, and nothing changes by it."""

from __future__ import annotations

import csv
import hashlib
import json
import struct
import time
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import protocol, site_calls
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.plan import PROTOCOL, Plan
from fedrank.deploy.protocol import ASKED, Answers
from fedrank.deploy.site import Site
from fedrank.deploy.site_calls import SiteCalls
from fedrank.deploy.site_measures import ask_measures
from fedrank.experiments.runner.writer import Stopped
from fedrank.federated.messages import Call, Message
from fedrank.wire import Label, Part
from tests.deploy.real_trial import LINEAR, NOISE, RealTrial
from tests.deploy.test_core_kills import fresh

pytestmark = pytest.mark.usefixtures("unconfirmed")

HEAD = wire._HEAD


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A run whose requests to one site are known; the site has forgotten it."""
    made = RealTrial(tmp_path_factory.mktemp("attacks"), LINEAR + NOISE, rounds=3)
    made.asked = []

    def listen(name, request, answer):
        if name == "clinic-a" and wire.read_label(request).kind == "round":
            made.asked.append(request)
        return answer()

    assert made.run(listen) == "finished"
    fresh(made.folders["clinic-a"])
    return made


@pytest.fixture
def site(trial):
    fresh(trial.folders["clinic-a"])
    with Site.open(trial.folders["clinic-a"]) as opened:
        assert wire.read_label(opened.answer(trial.hello())).kind == "facts"
        yield opened


def sealed(body: bytes) -> bytes:
    """With a checksum that fits, as an attacker would make it."""
    return body + hashlib.blake2b(body, digest_size=16).digest()


def relabelled(content: bytes, **changes) -> bytes:
    """The same message under another head."""
    names = ("magic", "version", "kind", "run", "round", "attempt", "sender", "count")
    values = dict(zip(names, HEAD.unpack_from(content), strict=True)) | changes
    return sealed(HEAD.pack(*values.values()) + content[HEAD.size : -16])


class Round:
    """The request for round 1, with something changed."""

    def __init__(self, trial: RealTrial) -> None:
        self.plan, self.content = trial.plan, trial.asked[0]
        parts = {"call": Part("|S", 10_000), "asked": Part("|S", 10_000)}
        self.parts = wire.unpack(self.content, Label("round", trial.plan.run, 1), parts)[1]
        size = trial.plan.sent
        numbers = {"weights": Part("<f4", size), "numbers": Part("<f8", 2)}
        found = wire.unpack(self.parts["call"], Label("call", trial.plan.run, 1), numbers)[1]
        self.call = Call(trial.plan.run, 1, found["weights"], 3.0)

    def __call__(self, **parts: bytes) -> bytes:
        return protocol.request("round", self.plan.run, 1, **(self.parts | parts))

    def calling(self, **changes) -> bytes:
        return self(call=replace(self.call, **changes).pack())

    def weighing(self, *values: float) -> bytes:
        weights = self.call.weights.copy()
        weights[: len(values)] = values
        return self.calling(weights=weights)

    def asking(self, *rows: tuple[int, int, int]) -> bytes:
        return self(asked=np.array(list(rows), ASKED).tobytes())


def bad_requests(trial: RealTrial) -> dict[str, tuple[object, str]]:
    """Kinds of bad requests, and a word of the refusal."""
    ask, plan = Round(trial), trial.plan
    good, other = ask.content, b"\7" * 16
    many = json.loads(plan.dump())

    def hello(content: bytes, **label) -> bytes:
        return protocol.request("hello", plan.run, plan=content, **label)

    def planned(**changes) -> bytes:
        return hello(json.dumps(many | changes).encode())

    def result(**parts: bytes) -> bytes:
        whole = {"model": b"", "card": b"", "receipt": b""} | parts
        return protocol.request("result", plan.run, 3, **whole)

    return {
        "nothing": (b"", "too short"),
        "junk": (b"\x00" * 500, "not a message of fedrank"),
        "a text": ("round 1, please", "too short"),
        "cut short": (good[:60], "too short"),
        "another magic": (relabelled(good, magic=b"frnc"), "not a message of fedrank"),
        "another version": (relabelled(good, version=9), "another version"),
        "a foreign kind": (relabelled(good, kind=b"shell"), "does not support requests of kind"),
        "an answer": (relabelled(good, kind=b"answers"), "does not support requests of kind"),
        "a kind of strange letters": (relabelled(good, kind=b"\xff\x1b[2J"), "does not support requests of kind"),
        "another run": (relabelled(good, run=other), "say hello first"),
        "round 0": (relabelled(good, round=0), "between 1 and 3"),
        "a round beyond": (relabelled(good, round=4), "between 1 and 3"),
        "a round far beyond": (relabelled(good, round=2**64 - 1), "between 1 and 3"),
        "a call of another round": (relabelled(good, round=2), "round 1, but round 2 was expected"),
        "a call of another attempt": (relabelled(good, attempt=7), "attempt 0, but attempt 7 was expected"),
        "from another site": (relabelled(good, sender=20), "which was not asked"),
        "one byte less": (good[:-1], "checksum"),
        "one bit flipped": (good[:-40] + bytes([good[-40] ^ 1]) + good[-39:], "checksum"),
        "more bytes": (sealed(good[:-16] + bytes(8)), "bytes follow"),
        "a part less": (protocol.request("round", plan.run, 1, call=ask.parts["call"]), "1 parts, but 2 were expected"),
        "a part more": (ask(more=b"1"), "3 parts, but 2 were expected"),
        "parts swapped": (protocol.request("round", plan.run, 1, asked=b"", call=b""), "where call was expected"),
        "255 parts": (relabelled(good, count=255), "255 parts"),
        "a part without end": (
            sealed(good[: HEAD.size] + struct.pack("<16s4sQ", b"call", b"|S", 2**64 - 1) + bytes(50)), "bytes of type",
        ),
        "too long": (ask(call=bytes(2 << 20)), "too many"),
        "300 MB": (ask(call=bytes(300 << 20)), "too many"),
        "no call": (ask(call=b"call me"), "too few"),
        "fewer weights": (ask.calling(weights=ask.call.weights[:-1]), "values of type"),
        "more weights": (ask.calling(weights=np.zeros(plan.sent + 1, np.float32)), "too many"),
        "weights of eight bytes": (ask.calling(weights=ask.call.weights.astype(np.float64)), "too many"),
        "a weight that is none": (ask.weighing(np.nan), "not finite"),
        "a weight beyond bounds": (ask.weighing(0, -np.inf), "not finite"),
        "controls that nobody asked for": (ask.calling(common=ask.call.weights), "too many"),
        "a cohort of millions": (ask.calling(cohort=1e9), "cohort of 1e+09"),
        "a cohort of one": (ask.calling(cohort=1.0), "cohort of 1"),
        "a cohort of none": (ask.calling(cohort=0.0), "invalid cohort"),
        "a cohort that is no number": (ask.calling(cohort=np.nan), "not finite"),
        "an update that counts half": (ask.calling(count=0.5), "must be 1 between sites"),
        "an update that counts twice": (ask.calling(count=2.0), "invalid cohort"),
        "a call of another run": (ask.calling(run=other), "run 0707"),
        "somebody else's client": (ask.asking((20, -1, 0)), "but this site has [10]"),
        "a client that cannot be": (ask.asking((-(2**63), -1, 0)), "but this site has [10]"),
        "nobody": (ask.asking(), "but this site has [10]"),
        "the same client twice": (protocol.request(
            "round", plan.run, 1, call=ask.parts["call"], asked=np.array([(10, -1, 0)] * 2, ASKED).tobytes()
        ), "at most 24"),
        "what to search for": (ask.asking((10, 0, 5)), "only for simulated people"),
        "half a record": (ask(asked=bytes(20)), "whole records"),
        "a sum where there is none": (protocol.request("advertise", plan.run, 1, **ask.parts), "does not use secure"),
        "shares where there is no sum": (protocol.request("share", plan.run, 1, roster=b""), "does not use secure"),
        "openings where there is no sum": (
            protocol.request("open", plan.run, 1, request=b"", consent=b""), "does not use secure aggregation"
        ),
        "keys of others": (protocol.request("partners", plan.run, keys=b"{}"), "other keys are not used"),
        "keys that are deep": (protocol.request("partners", plan.run, keys=b"[" * 100_000), "cannot be read"),
        "measures": (wire.pack(Label("measure", plan.run, 3), {"weights": ask.call.weights}), "does not report"),
        "a plan that is none": (hello(b"{}"), "not a plan of this version"),
        "a plan that is a list": (hello(b"[1, 2]"), "not a plan of this version"),
        "a plan of junk": (hello(b"\xff\xfe{"), "not a plan"),
        "a plan that is deep": (hello(b"[" * 200_000), "nested too deeply"),
        "a plan that is long": (hello(bytes((1 << 20) + 1)), "too many"),
        "a plan of another run": (planned(name="second"), "name different runs"),
        "a plan with more keys": (planned(code="x"), "keys differ"),
        "a plan with a text for a number": (planned(min_sites="1"), "its min_sites must be of type int (got str)"),
        "a plan of another federation's site": (planned(sites=[]), "min_sites must be between"),
        "a plan that says that later rounds are over": (trial.hello(9), "the plan has 3"),
        "a model that is none": (result(model=b"{}"), "cannot be read"),
        "a model that is deep": (result(model=b"[" * 100_000), "cannot be read"),
        "a card that is none": (result(card=b'{"what": 1}'), "cannot be read"),
    }  # fmt: skip


@pytest.mark.long
def test_no_bad_request_is_met(trial, site):
    requests = bad_requests(trial)
    assert len(requests) >= 40
    unnamed = {}
    for name, (request, word) in requests.items():
        answer = site.answer(request)
        assert wire.read_label(answer).kind == "refused", name
        reason = wire.unpack(
            answer, replace(wire.read_label(answer), kind="refused"), {"reason": Part("|S", protocol.MAX_REASON_LENGTH)}
        )[1]["reason"].decode()
        if word not in reason or "something is wrong" in reason:
            unnamed[name] = reason
    assert not unnamed
    assert len(trial.outbox("clinic-a")) == 0
    assert trial.paid("clinic-a") == 0
    assert not (trial.folders["clinic-a"] / "models").exists() or not list(
        (trial.folders["clinic-a"] / "models").rglob("*.json")
    )
    for number, request in enumerate(trial.asked, start=1):
        assert wire.read_label(site.answer(request)).kind == "answers"
        assert trial.paid("clinic-a") == number


def test_an_answered_round_is_not_answered_for_another_call(trial, site):
    ask = Round(trial)
    first = site.answer(ask.content)
    attempt = protocol.request(
        "round", trial.plan.run, 1, 1, call=replace(ask.call, attempt=1).pack(), asked=ask.parts["asked"]
    )
    for other in (ask.weighing(1.0), attempt):
        assert b"already answered for a different request" in site.answer(other)
    assert site.answer(ask.content) == first
    assert trial.paid("clinic-a") == 1


@pytest.mark.long
def test_requests_at_random_crash_nothing_and_change_nothing(trial, site):
    answers = {request: site.answer(request) for request in trial.asked}
    rng = np.random.default_rng(5)
    sources = [*trial.asked, trial.hello()]
    for number in range(400):
        content = bytearray(sources[number % len(sources)])
        for _ in range(rng.integers(1, 5)):
            what = rng.integers(4)
            place = int(rng.integers(len(content) - 16))
            if what == 0:
                content[place] = rng.integers(256)
            elif what == 1:
                del content[place : place + int(rng.integers(1, 30))]
            elif what == 2:
                content[place:place] = rng.bytes(int(rng.integers(1, 30)))
            else:
                content[place : place + 8] = struct.pack("<Q", (0, 1, 2**31, 2**63, 2**64 - 1)[rng.integers(5)])
        request = sealed(bytes(content[:-16])) if number % 3 else bytes(content)
        answer = site.answer(request)
        kind = wire.read_label(answer).kind
        assert kind in ("refused", "facts") or answer == answers.get(request), number
    for request, answer in answers.items():
        if wire.read_label(site.answer(request)).kind == "refused":  # another plan was looked at meanwhile
            site.answer(trial.hello())
        assert site.answer(request) == answer
    assert trial.paid("clinic-a") == 3
    assert (trial.folders["clinic-a"] / "site.log").stat().st_size < 5 << 20


# What a site sends


class Lies:
    """Answers of a site, with something changed."""

    def __init__(self, trial: RealTrial, earlier: dict) -> None:
        self.trial, self.earlier = trial, earlier

    def parts(self, answer: bytes) -> tuple[Label, Answers, Message]:
        label = wire.read_label(answer)
        found = Answers.unpack(answer, label, 1, 10_000, False)
        [message] = found.messages
        size = self.trial.plan.sent
        values = wire.unpack(
            message,
            Label("message", label.run, label.round, 0, 20),
            {"payload": Part("<f4", size), "size": Part("<i8", 1)},
        )[1]
        return label, found, Message(label.run, label.round, 20, values["payload"], int(values["size"][0]))

    def with_message(self, answer: bytes, **changes) -> bytes:
        label, found, message = self.parts(answer)
        return replace(found, messages=(replace(message, **changes).pack(),)).pack(label)

    def all(self) -> dict[str, tuple[object, str]]:
        def bundled(*lengths):
            def made(answer):
                label, _, message = self.parts(answer)
                parts = {"messages": b"".join(struct.pack("<I", n) + message.pack() for n in lengths)}
                return wire.pack(label, parts | {"observed": b"", "personal": b""})

            return made

        def payload(values):
            return lambda answer: self.with_message(answer, payload=values(self.parts(answer)[2].payload.copy()))

        def spoiled(value):
            def made(weights):
                weights[0] = value
                return weights

            return payload(made)

        def observed(**more):
            return lambda answer: wire.pack(
                wire.read_label(answer),
                {"messages": protocol.bundle(self.parts(answer)[1].messages), "observed": b"", "personal": b""} | more,
            )

        return {
            "nothing": (lambda answer: b"", "too short"),
            "a text": (lambda answer: "text", "too short"),
            "none": (lambda answer: None, "NoneType"),
            "junk": (lambda answer: bytes(1000), "not a message of fedrank"),
            "one byte less": (lambda answer: answer[:-1], "checksum"),
            "half": (lambda answer: answer[: len(answer) // 2], "checksum"),
            "one bit flipped": (lambda answer: answer[:-30] + bytes([answer[-30] ^ 1]) + answer[-29:], "checksum"),
            "another run": (lambda answer: relabelled(answer, run=b"\1" * 16), "run 0101"),
            "another round": (lambda answer: relabelled(answer, round=999), "round 999"),
            "another attempt": (lambda answer: relabelled(answer, attempt=3), "attempt 3"),
            "another sender": (lambda answer: relabelled(answer, sender=10), "comes from 10"),
            "another kind": (lambda answer: relabelled(answer, kind=b"facts"), "kind facts"),
            "a replay": (lambda answer: self.earlier["clinic-b", 1], "round 1"),
            "the answer of another site": (
                lambda answer: self.earlier["clinic-a", wire.read_label(answer).round], "comes from 10"
            ),
            "oversized": (lambda answer: answer + bytes(100 << 20), "too many"),
            "no message": (bundled(), "no valid message"),
            "a message that is longer than it is": (bundled(2**31), "too long"),
            "two messages": (lambda answer: replace(
                self.parts(answer)[1], messages=self.parts(answer)[1].messages * 2
            ).pack(wire.read_label(answer)), "more than 1 pieces"),
            "a message of another site": (lambda answer: self.with_message(answer, sender=10), "was not asked"),
            "a message of another round": (lambda answer: self.with_message(answer, round=1), "round 1"),
            "a message of another run": (lambda answer: self.with_message(answer, run=b"\1" * 16), "run 0101"),
            "a message of another attempt": (lambda answer: self.with_message(answer, attempt=1), "attempt 1"),
            "nan": (spoiled(np.nan), "not finite"),
            "inf": (spoiled(np.inf), "not finite"),
            "fewer numbers": (payload(lambda weights: weights[:-1]), "values of type"),
            "more numbers": (payload(lambda weights: np.append(weights, np.float32(0))), "too many"),
            "numbers of eight bytes": (payload(lambda weights: weights.astype(np.float64)), "too many"),
            "more searches than were asked for": (lambda answer: self.with_message(answer, size=10**9), "but 3 were"),
            "fewer than none": (lambda answer: self.with_message(answer, size=-1), "invalid number of interactions"),
            "what only a simulation sees": (observed(observed=bytes(16)), "at most 0"),
            "what only a simulation keeps": (observed(personal=bytes(8)), "at most 0"),
            "a part more": (observed(more=b""), "4 parts"),
            "a refusal without end": (
                lambda answer: protocol.reply("refused", wire.read_label(answer), 20, reason=b"x" * 10_000), "too many"
            ),
            "a refusal of another round": (
                lambda answer: protocol.refusal(replace(wire.read_label(answer), round=1), 20, "no"), "round 1"
            ),
        }  # fmt: skip


@pytest.mark.long
def test_no_lie_of_a_site_changes_anything(tmp_path, monkeypatch):
    """A lie every other round; the model is the one that comes of silence in these rounds."""
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)
    made = RealTrial(tmp_path, LINEAR, rounds=80)
    earlier: dict = {}
    lies = list(Lies(made, earlier).all().items())
    assert len(lies) > 30

    def lying(name, request, answer):
        label = wire.read_label(request)
        found = answer()
        if label.kind != "round":
            return found
        if name != "clinic-b":
            earlier[name, label.round] = found
            return found
        while ("clinic-a", label.round) not in earlier:
            time.sleep(0.001)
        earlier[name, label.round] = found
        if label.round % 2 or label.round // 2 > len(lies):
            return found
        return lies[label.round // 2 - 1][1][0](found)

    assert made.run(lying) == "finished", (made.task.folder / "run.json").read_text()
    with (made.task.folder / "sites.csv").open() as file:
        refused = {int(row["round"]): row for row in csv.DictReader(file) if row["refused"]}
    unnamed = {}
    for number, (name, (_, word)) in enumerate(lies, start=1):
        assert refused[2 * number]["site"] == "clinic-b", name
        if word not in refused[2 * number]["refused"]:
            unnamed[name] = refused[2 * number]["refused"]
    assert not unnamed
    assert len(refused) == len(lies)
    weights = json.loads((made.task.folder / "model.json").read_text())["weights"]

    def silent(name, request, answer):
        label = wire.read_label(request)
        if name == "clinic-b" and label.kind == "round" and not label.round % 2 and label.round // 2 <= len(lies):
            raise TimeoutError("nobody is there")
        return answer()

    for folder in made.folders.values():
        fresh(folder)
    made.task.folder.rename(tmp_path / "lied")
    assert made.run(silent) == "finished"
    assert json.loads((made.task.folder / "model.json").read_text())["weights"] == weights


def test_a_site_longer_than_the_clip_is_refused_where_the_server_adds_the_noise(tmp_path):
    made = RealTrial(tmp_path, LINEAR + NOISE + 'placement = { name = "server" }\n', rounds=2)
    lies = Lies(made, {})

    def long(name, request, answer):
        found = answer()
        if name == "clinic-b" and wire.read_label(request).kind == "round":
            return lies.with_message(found, payload=np.full(made.plan.sent, 5.0, np.float32))
        return found

    assert made.run(long) == "finished"
    assert (made.task.folder / "sites.csv").read_text().count("an honest one has at most") == 2


def canned(answers) -> site_calls.Send:
    def send(name, content, wait):
        found: Future[bytes] = Future()
        found.set_result(answers(name, content))
        return found

    return send


GOOD = {"protocol": PROTOCOL, "last": 0, "feature_names": "", "normalised": "none", "measures": ["ndcg@10"]}


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        (b"{", "cannot be read"), (b"[]", "JSON object"), (b"[" * 100_000, "nested too deeply"), (b"\xff", "cannot be"),
        (b"x" * (2 << 20), "too many"),
    ],
)  # fmt: skip
def test_facts_that_are_none_are_refused(trial, facts, word):
    told = {}
    calls = SiteCalls(trial.plan, canned(lambda name, content: protocol.reply(
        "facts", wire.read_label(content), trial.plan.party(name).clients[0], facts=facts
    )), waiting=lambda round, why: told.update(why), stop=lambda: bool(told))  # fmt: skip
    with pytest.raises(Stopped):
        Handshake(calls).hello()
    assert word in told["clinic-a"]


def test_who_is_slow_is_named_while_the_hub_still_waits(trial, monkeypatch):
    monkeypatch.setattr(site_calls, "SLOW", 0.01)
    told = {}
    calls = SiteCalls(
        trial.plan,
        lambda name, content, patience: Future(),
        waiting=lambda round, why: told.update(why),
        stop=lambda: bool(told),
    )
    with pytest.raises(Stopped):
        Handshake(calls).hello()
    assert told == dict.fromkeys([site.name for site in trial.plan.sites], "no answer for 0 s")


@pytest.mark.parametrize(
    "changes", [{"features": "5"}, {"features": 10**400}, {"version": None}, {"normalised": []}, {}]
)
def test_facts_that_lie_stop_before_the_first_round(trial, changes):
    facts = GOOD | {"version": trial.plan.version, "features": trial.plan.features} | changes
    if not changes:
        del facts["features"]
    calls = SiteCalls(trial.plan, canned(lambda name, content: protocol.reply(
        "facts", wire.read_label(content), trial.plan.party(name).clients[0], facts=json.dumps(facts).encode()
    )))  # fmt: skip
    with pytest.raises(Differs, match="clinic-a"):
        Handshake(calls).hello()


@pytest.mark.parametrize(
    "table",
    [None, [], {"ndcg@10": 1}, {"ndcg@10": [1, 2]}, {"ndcg@10": [float("nan"), 0, 1]}, {"ndcg@10": [0, 0, -1]},
     {"ndcg@10": [0, 0, 10**400]}, {"ndcg@10": [10**400, 0, 1]}, {"ndcg@10": ["1", 0, 1]}, {"evil": [0, 0, 1]}],
)  # fmt: skip
def test_measures_that_cannot_be_are_left_out(trial, table):
    def answers(name, content):
        label, id = wire.read_label(content), trial.plan.party(name).clients[0]
        facts = GOOD | {"version": trial.plan.version, "features": trial.plan.features}
        if label.kind == "measure":
            facts = {"measures": table if name == "clinic-a" else {"ndcg@10": [1.5, 1.0, 2]}}
        return protocol.reply("facts", label, id, facts=json.dumps(facts).encode())

    handshake = Handshake(SiteCalls(trial.plan, canned(answers)))
    handshake.hello()
    found = ask_measures(handshake, np.zeros(trial.plan.sent), 3)
    assert found == {name: {"ndcg@10": (1.5, 1.0, 2)} for name in ("clinic-b", "clinic-c")}


def test_a_plan_that_would_fill_the_memory_is_refused(trial):
    content = json.loads(trial.plan.dump())
    large = content["spec"].replace('name = "linear", start_norm = 0.0', 'name = "mlp", hidden = 999999999')
    assert large != content["spec"]
    for changes, word in (
        ({"spec": large}, "too large"),
        ({"features": 1 << 40}, "features must be between"),
        ({"spec": content["spec"].replace("count = 3", "count = 300")}, "300 clients, but 3 participate"),
        ({"min_sites": 1, "sites": [content["sites"][0] | {"clients": [10, 11, 12]}]}, "several clients"),
        ({"sites": [*content["sites"][:2], content["sites"][0]]}, "the same name or id"),
        (
            {"sites": [*content["sites"][:2], content["sites"][2] | {"identity": "zz"}]},
            "key of 'clinic-c' is not valid",
        ),
    ):
        with pytest.raises(wire.Refused, match=word):
            Plan.load(json.dumps(content | changes).encode())

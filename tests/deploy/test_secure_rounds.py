"""Secure sums between sites by themselves: every site is one `SumClient` with known numbers."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedrank.deploy import protocol
from fedrank.deploy.handshake import Handshake
from fedrank.deploy.protocol import OBSERVED, Answers
from fedrank.deploy.round_answers import AnswerReader
from fedrank.deploy.secure_rounds import SecureRounds
from fedrank.federated.messages import Call
from fedrank.federated.server import ServerTask
from fedrank.privacy.secure_aggregation import BadDealing, SumClient
from fedrank.privacy.secure_messages import Identity
from fedrank.wire import Label, Part, unpack
from tests.deploy.fake_sites import calls_to
from tests.deploy.plans import NOISE, SUM, made_plan

PARTS = {
    "share": {"roster": Part("|S", 1 << 20)},
    "mask": {"posts": Part("|S", 1 << 20)},
    "sign": {"request": Part("|S", 1 << 20)},
    "open": {"request": Part("|S", 1 << 20), "consent": Part("|S", 1 << 20)},
}


class Sites:
    """Four sites, the r-th of which adds r + 1; `away` says who does not answer from which phase on."""

    def __init__(self, away=(), weights=()) -> None:
        self.weights = dict(weights)  # of the model that a site received, if it is not that of the others
        secrets = [Ed25519PrivateKey.generate() for _ in range(4)]
        publics = {id: key.public_key().public_bytes_raw() for id, key in enumerate(secrets)}
        self.plan = made_plan(4, mechanism=SUM, identities=[key.hex() for key in publics.values()])
        self.secrets, self.publics, self.away = secrets, publics, dict(away)
        self.clients, self.asked = {}, []
        self.calls = calls_to(self.plan, self.answer)
        task = ServerTask(self.plan.federated, 4, None)
        self.rounds = SecureRounds(Handshake(self.calls, True), AnswerReader(self.plan, task, secure=True))

    def try_sum(self, attempt=1):
        requests = {
            site.name: protocol.request("advertise", self.plan.run, 1, attempt)
            for site in self.calls.sites()
        }  # fmt: skip
        self.traffic = []
        return self.rounds.try_sum(self.call(attempt), requests, range(4), self.traffic)

    def call(self, attempt, weight=0.0):
        return Call(self.plan.run, 1, np.full(self.plan.sent, weight, np.float32), 4.0, attempt)

    def answer(self, name, content, label):
        id = self.plan.party(name).clients[0]
        self.asked.append((label.kind, name))
        if self.away.get(name) == label.kind:
            return None
        if label.kind == "advertise":
            terms = self.plan.sum_terms(self.call(label.attempt, self.weights.get(name, 0.0)))
            identity = Identity(self.secrets[id].private_bytes_raw(), self.publics)
            self.clients[id] = SumClient(id, identity=identity, **terms)
            own = Answers((self.clients[id].advertise(),), np.zeros(0, OBSERVED), np.zeros(0))
            return own.pack(Label("answers", label.run, label.round, label.attempt, id))
        client, found = self.clients[id], unpack(content, label, PARTS[label.kind])[1]
        if label.kind == "share":
            letter = client.share(found["roster"])
        elif label.kind == "mask":
            [post] = protocol.unbundle(found["posts"], 1, 1 << 20)
            letter = client.mask(np.full(self.plan.sent, id + 1), post)
        elif label.kind == "sign":
            letter = client.sign(found["request"])
        else:
            letter = client.unmask(found["request"], found["consent"])
        return protocol.reply("letters", label, id, letters=protocol.bundle([letter]))


def test_the_sum_is_that_of_all_and_every_request_is_counted():
    sites = Sites()
    one = sites.try_sum()
    assert one.total is not None
    assert one.total.tolist() == [10] * sites.plan.sent
    assert one.server.survivors() == [0, 1, 2, 3]
    assert one.why == {}
    assert len(sites.traffic) == 5 * 4
    mechanism = sites.plan.experiment.mechanism
    np.testing.assert_allclose(sites.rounds.change(one, 4), 10 * mechanism.step(4) / 4)


@pytest.mark.parametrize(("phase", "total"), [("advertise", 9), ("share", 9), ("mask", 9), ("sign", 10), ("open", 10)])
def test_a_site_that_drops_out_is_asked_nothing_more(phase, total):
    sites = Sites({"clinic-a": phase})
    one = sites.try_sum()
    assert one.total is not None
    assert set(one.total.tolist()) == {total}
    assert one.why == {"clinic-a": "is away"}
    assert [kind for kind, name in sites.asked if name == "clinic-a"][-1] == phase


def test_a_site_that_received_another_model_is_not_in_the_sum():
    sites = Sites(weights={"clinic-b": 1.0})
    one = sites.try_sum()
    assert one.total is not None
    assert set(one.total.tolist()) == {1 + 3 + 4}
    assert "received another request" in one.why["clinic-b"]
    assert [kind for kind, name in sites.asked if name == "clinic-b"] == ["advertise"]


def test_of_too_few_nothing_is_opened():
    sites = Sites({"clinic-a": "mask", "clinic-b": "mask"})
    one = sites.try_sum()
    assert one.total is None
    assert set(one.why) == {"clinic-a", "clinic-b"}
    assert "open" not in {kind for kind, _ in sites.asked}


def test_an_attempt_has_its_own_session():
    sites = Sites()
    first, second = sites.try_sum(1), sites.try_sum(2)
    assert first.server.terms.session != second.server.terms.session
    assert first.total is not None
    assert second.total is not None
    assert first.total.tolist() == second.total.tolist()


def test_a_site_that_spoils_three_sums_is_left_out(monkeypatch):
    sites = Sites()

    def spoiled(*_):
        raise BadDealing(2, "shares do not fit")

    monkeypatch.setattr(sites.rounds, "_phases", spoiled)
    for number in range(1, 4):
        assert not sites.calls.left_out
        one = sites.try_sum(number)
        assert one.total is None
        assert one.why == {"clinic-c": "shares do not fit; no sum is computed"}
    assert "excluded after spoiling 3 sums" in sites.calls.left_out["clinic-c"]


def test_only_the_protocol_of_secure_sums_is_one():
    assert made_plan(mechanism=NOISE).secure_sum is None
    assert made_plan(mechanism=None).secure_sum is None
    assert made_plan(mechanism=SUM).secure_sum is not None

"""Rounds of sites that answer when they are ready, by themselves."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from fedrank import wire
from fedrank.deploy import protocol, site_calls
from fedrank.deploy.asynchronous_rounds import AsynchronousRounds
from fedrank.deploy.handshake import Differs, Handshake
from fedrank.deploy.protocol import OBSERVED, Answers
from fedrank.deploy.round_answers import AnswerReader
from fedrank.deploy.site_calls import SiteCalls
from fedrank.federated.messages import Message
from fedrank.federated.server import ServerTask
from fedrank.wire import Label
from tests.deploy.fake_sites import calls_to, facts, stranger
from tests.deploy.plans import made_plan
from tests.made_up import made_up_log


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(site_calls, "PAUSE", 0.01)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    log = made_up_log(tmp_path_factory.mktemp("async") / "log", [0, 1, 2] * 20)
    return made_plan(
        kind="async", mechanism=None, data={"log": str(log)}, arrival={"name": "fedbuff", "size": 2, "wait": True},
        clients={"count": 3, "interactions": 4, "partition": {"name": "users"}},
    )  # fmt: skip


def update(plan, name, label, size=1) -> bytes:
    id = plan.party(name).clients[0]
    message = Message(plan.run, label.round, id, np.full(plan.sent, id + 1.0, np.float32), size)
    answer = Answers((message.pack(),), np.zeros(0, OBSERVED), np.zeros(0))
    return answer.pack(Label("answers", plan.run, label.round, 0, id))


def rounds_of(plan, calls):
    task = ServerTask(plan.federated, len(plan.clients), plan.experiment.arrival)
    made = AsynchronousRounds(Handshake(calls), AnswerReader(plan, task), task)
    return made, task.first(np.zeros(plan.sent))


def test_a_site_that_never_answers_blocks_nobody(plan):
    def send(name, content, patience):
        future = Future()
        if name != "clinic-b":
            future.set_result(update(plan, name, wire.read_label(content)))
        return future

    notes = []
    calls = SiteCalls(plan, send, note=lambda round, one: notes.append((round, one.site, one.reason)))
    made, state = rounds_of(plan, calls)
    found = list(made.rounds(state, 3))
    assert [one.state.round for one in found] == [1, 2, 3]
    assert [sorted(one.rows.tolist()) for one in found] == [[0, 2]] * 3
    assert found[-1].state.rule["heard"].tolist() == [3, 0, 3]
    assert [sum(one.bytes_up for one in each.traffic) > 0 for each in found] == [True] * 3
    assert sorted(notes) == [(round, name, "") for round in (1, 2, 3) for name in ("clinic-a", "clinic-c")]


def test_a_request_is_numbered_by_the_round_in_which_its_site_was_heard(plan):
    asked = []

    def answer(name, content, label):
        asked.append((name, label.round))
        return update(plan, name, label)

    made, state = rounds_of(plan, calls_to(plan, answer))
    state.rule["heard"] = np.array([4, 0, 2])
    next(iter(made.rounds(state, 1)))
    assert asked[:3] == [("clinic-a", 4 * 3 + 1), ("clinic-b", 2), ("clinic-c", 2 * 3 + 3)]


def test_a_site_that_was_restarted_is_greeted_and_asked_again(plan):
    greeted = {"clinic-a"}

    def answer(name, content, label):
        if label.kind == "hello":
            greeted.add(name)
            return facts(plan, name, label)
        if name == "clinic-c":
            return None
        return update(plan, name, label) if name in greeted else stranger(plan, name, label)

    why = {}
    made, state = rounds_of(plan, calls_to(plan, answer, waiting=lambda round, told: why.update(told)))
    [one] = made.rounds(state, 1)
    assert sorted(one.rows.tolist()) == [0, 1]
    assert greeted == {"clinic-a", "clinic-b"}
    assert why == {"clinic-b": protocol.SAY_HELLO, "clinic-c": "is away"}


def test_sites_that_send_what_cannot_be_are_left_out_until_nobody_is_left(plan):
    calls = calls_to(plan, lambda name, content, label: update(plan, name, label, size=1000))
    made, state = rounds_of(plan, calls)
    with pytest.raises(Differs, match="no site is left to ask: excluded after 3 consecutive invalid answers"):
        list(made.rounds(state, 1))
    assert set(calls.left_out) == {"clinic-a", "clinic-b", "clinic-c"}

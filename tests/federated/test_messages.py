"""Calls and messages: what does not fit is refused by name, and the round goes on without it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fedrank import wire
from fedrank.federated.aggregators import Mean
from fedrank.federated.asynchronous import FedAsync, FedBuff
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, Scaffold
from fedrank.federated.messages import MAX_SIZE, Call, ExpectedCall, ExpectedMessage, Message
from fedrank.federated.robust import Krum, Reputation
from fedrank.federated.server import RoundError, ServerTask, receive, settle
from fedrank.federated.server_optimizers import Momentum
from fedrank.privacy.mechanisms import AtServer, EsRandomisedResponse, Gaussian, SecureAggregation
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.evolution import MESSAGE, Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.types import Messages
from fedrank.wire import Label, Refused
from tests.test_wire import mutated

RUN, OTHER_RUN = b"the run, 16 byte", b"another run, 16B"
CALL = Call(RUN, 3, np.array([0.5, -1.0, 2.0], dtype=np.float32), 10.0)
EXPECTED_CALL = ExpectedCall(RUN, 3, 3)
EXPECTED = ExpectedMessage(RUN, 3, (0, 1, 2, 3), "<f4", 3)


def message(sender=0, payload=(1.0, 2.0, 3.0), size=4, kind="<f4", run=RUN, round=3, attempt=0) -> Message:
    return Message(run, round, sender, np.array(payload, dtype=kind), size, attempt)


def same_call(one, other) -> bool:
    rest = replace(one, weights=None, common=None) == replace(other, weights=None, common=None)
    arrays = ((one.weights, other.weights), (one.common, other.common))
    return rest and all((a is b) or (a is not None and b is not None and a.tobytes() == b.tobytes()) for a, b in arrays)


def same_message(one, other) -> bool:
    return (
        replace(one, payload=None) == replace(other, payload=None) and one.payload.tobytes() == other.payload.tobytes()
    )


@pytest.mark.parametrize("call", [CALL, replace(CALL, attempt=2, common=CALL.weights / 3, count=0.25)])
def test_a_call_arrives_as_it_was_sent(call):
    expected = replace(EXPECTED_CALL, attempt=call.attempt, common=call.common is not None)
    assert same_call(Call.unpack(call.pack(), expected), call)


@pytest.mark.parametrize(
    ("payload", "kind"), [((1.5, -2.0, 0.0), "<f4"), ((2**60, -7, 0), "<i8"), (((2**64 - 1, 0.5, 0.25),), MESSAGE)]
)
def test_a_message_arrives_as_it_was_sent(payload, kind):
    sent = Message(RUN, 3, 2, np.array(list(payload), dtype=kind), 17, 1)
    expected = replace(EXPECTED, type=kind, values=len(payload), attempt=1)
    got = Message.unpack(sent.pack(), expected)
    assert same_message(got, sent)
    assert got.payload.dtype == np.dtype(kind)


@pytest.mark.parametrize(
    ("expected", "named"),
    [
        ({"run": OTHER_RUN}, "of run"),
        ({"round": 4}, "of round 3, but round 4 was expected"),
        ({"attempt": 1}, "of attempt 0, but attempt 1 was expected"),
        ({"parameters": 4}, "weights has 3 values of type <f4, but 4"),
        ({"parameters": 2}, "159 bytes are too many for a message of kind call: at most 155"),
        ({"common": True}, "2 parts, but 3 were expected"),
    ],
)
def test_another_call_is_refused_by_name(expected, named):
    with pytest.raises(Refused, match=named):
        Call.unpack(CALL.pack(), replace(EXPECTED_CALL, **expected))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"weights": np.array([1.0, np.nan, 0.0], np.float32)}, "weights has values that are not finite"),
        ({"weights": np.array([1.0, np.inf, 0.0], np.float32)}, "weights has values that are not finite"),
        ({"weights": np.array([1.0, 2.0, 3.0])}, "171 bytes are too many"),
        ({"weights": np.array([1, 2, 3], dtype=np.int32)}, "of type <i4, but 3 of <f4 were expected"),
        ({"cohort": 0.0}, "invalid cohort 0.0"),
        ({"cohort": np.nan}, "numbers has values that are not finite"),
        ({"count": 1.5}, "count 1.5"),
        ({"count": -0.1}, "count -0.1"),
    ],
)
def test_a_call_that_cannot_be_is_refused_by_name(changes, named):
    with pytest.raises(Refused, match=named):
        Call.unpack(replace(CALL, **changes).pack(), EXPECTED_CALL)


BAD = {
    "kind": (CALL.pack(), "of kind call, but kind message was expected"),
    "run": (message(run=OTHER_RUN).pack(), "of run"),
    "round": (message(round=2).pack(), "of round 2, but round 3 was expected"),
    "attempt": (message(attempt=1).pack(), "of attempt 1, but attempt 0 was expected"),
    "model": (message(payload=(1.0, 2.0)).pack(), "payload has 2 values of type <f4, but 3"),
    "type": (message(kind="<f8").pack(), "too many|of type <f8"),
    "whole steps": (message(kind="<i4").pack(), "payload has 3 values of type <i4, but 3 of <f4 were expected"),
    "not a number": (message(payload=(1.0, np.nan, 3.0)).pack(), "payload has values that are not finite"),
    "infinite": (message(payload=(1.0, np.inf, 3.0)).pack(), "payload has values that are not finite"),
    "minus infinite": (message(payload=(1.0, -np.inf, 3.0)).pack(), "payload has values that are not finite"),
    "negative size": (message(size=-1).pack(), "invalid number of interactions, -1"),
    "huge size": (message(size=MAX_SIZE + 1).pack(), "invalid number of interactions"),
    "checksum": (message().pack()[:-1] + b"?", "checksum is wrong"),
    "cut off": (message().pack()[:-20], "checksum is wrong"),
    "longer": (message().pack() + b"more", "too many"),
    "empty": (b"", "0 bytes are too few"),
    "stranger": (message(sender=9).pack(), "comes from 9, which was not asked"),
    "server": (message(sender=wire.SERVER).pack(), "comes from -1, which was not asked"),
    "something else": (b"{" + b"}" * 120, "not a message of fedrank"),
    "parts": (
        wire.pack(Label("message", RUN, 3, 0, 0), {"payload": np.zeros(3, np.float32)}),
        "1 parts, but 2 were expected",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_another_message_is_refused_by_name(name):
    content, named = BAD[name]
    with pytest.raises(Refused, match=named):
        Message.unpack(content, EXPECTED)


def test_another_version_is_refused_by_name(monkeypatch):
    contents = [message().pack(), CALL.pack()]
    monkeypatch.setattr(wire, "VERSION", 9)
    with pytest.raises(Refused, match="of version 1, but version 9 was expected"):
        Message.unpack(contents[0], EXPECTED)
    with pytest.raises(Refused, match="of version 1, but version 9 was expected"):
        Call.unpack(contents[1], EXPECTED_CALL)


@pytest.mark.parametrize("name", BAD)
def test_a_round_goes_on_without_what_is_refused_and_says_who_was_left_out(name):
    content, named = BAD[name]
    received = receive(EXPECTED, [message(3).pack(), content, message(1).pack(), message(2).pack()])
    assert [one.sender for one in received.messages] == [3, 1, 2]
    assert received.left_out == (0,)
    refused, left_out = received.notes
    assert re.search(f"^round 3: message 2 was refused: .*({named})", refused)
    assert left_out == "round 3: no valid message from 0"


def test_a_message_that_comes_twice_counts_once():
    first, other = message(1, size=4), message(1, (9.0, 9.0, 9.0), size=100)
    received = receive(EXPECTED, [one.pack() for one in (message(0), first, other, first, message(2), message(3))])
    assert [one.sender for one in received.messages] == [0, 1, 2, 3]
    assert same_message(received.messages[1], first)
    assert received.left_out == ()
    assert received.notes == tuple(
        f"round 3: message {number} was refused: it is the second message of client 1" for number in (3, 4)
    )


def test_nothing_to_note_where_everything_fits():
    received = receive(EXPECTED, [message(sender).pack() for sender in (2, 0, 3, 1)])
    assert (received.left_out, received.notes) == ((), ())


def server(federation=None, clients=4, arrival=None, parameters=3):
    task = ServerTask(federation or Federation(), clients, arrival)
    return task, task.first(np.zeros(parameters))


def contents(task, state, senders, **more):
    return [
        Message(RUN, state.round + 1, sender, np.full(3, 1.0 + sender, dtype=np.float32), 2, **more).pack()
        for sender in senders
    ]


def test_the_rest_of_a_round_is_settled():
    task, state = server()
    received = receive(
        task.expected(state, RUN, range(4)), [*contents(task, state, (3, 0)), b"noise", message(1).pack()]
    )
    assert received.left_out == (1, 2)
    after = settle(task, state, task.gathered(state, received.messages))
    assert (after.round, after.weights.tolist()) == (1, [(1 + 4) / 2] * 3)


def test_a_round_without_any_message_says_so():
    task, state = server()
    received = receive(task.expected(state, RUN, range(4)), [b"noise"])
    assert received.left_out == (0, 1, 2, 3)
    with pytest.raises(RoundError, match="round 1: no valid message arrived"):
        task.gathered(state, received.messages)


def test_a_rule_that_needs_more_messages_than_came_says_so():
    task, state = server(Federation(aggregator=Krum(0.25)))
    received = receive(task.expected(state, RUN, range(4)), contents(task, state, (0, 1)))
    with pytest.raises(RoundError, match=r"round 1: attackers = 0\.25 means 1 of 2 clients"):
        settle(task, state, task.gathered(state, received.messages))


def test_a_secure_sum_of_too_few_is_not_opened():
    """Half of ten must be honest and a quarter may collude: seven messages have noise enough, six have not."""
    mechanism = Gaussian(1.0, 1.0, SecureAggregation(sum="ideal"))
    task, state = server(Federation(mechanism=mechanism), clients=10)
    came = [Message(RUN, 1, sender, np.full(3, 1000 * sender), 1).pack() for sender in range(7)]
    for count, opens in ((7, True), (6, False)):
        received = receive(task.expected(state, RUN, range(10)), came[:count])
        messages = task.gathered(state, received.messages)
        if opens:
            expected = 1000 * 21 * mechanism.step(10) / 10
            assert settle(task, state, messages).weights == pytest.approx([expected] * 3, rel=1e-12)
        else:
            with pytest.raises(RoundError, match="only 6 messages are valid, but secure aggregation needs at least 7"):
                settle(task, state, messages)


def test_who_does_not_answer_out_of_step_starts_from_the_new_model_all_the_same():
    """A buffer is divided by how many were asked, as in the simulation, where an update may be of no use."""
    task, state = server(arrival=FedBuff(3, exponent=0.0, wait=True))
    received = receive(task.expected(state, RUN, (0, 1, 3)), contents(task, state, (3, 0)))
    messages = task.gathered(state, received.messages)
    after = settle(task, state, messages, asked=np.array([0, 1, 3]))
    assert after.weights.tolist() == [(1 + 4) / 3] * 3
    assert (after.held[[0, 1, 3]] == after.weights).all()
    assert (after.held[2] == 0).all()


def test_messages_are_gathered_by_ids_however_they_come():
    task, state = server()
    received = receive(task.expected(state, RUN, range(4)), contents(task, state, (2, 3, 0, 1)))
    gathered = task.gathered(state, received.messages)
    assert gathered.ids.tolist() == [0, 1, 2, 3]
    assert gathered.updates[:, 0].tolist() == [1, 2, 3, 4]
    assert gathered.sizes.tolist() == [2] * 4
    assert gathered.root is None
    assert task.gathered(state, received.messages, message(-1)).root.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("federation", "kind", "values"),
    [
        (Federation(), "<f4", 3),
        (Federation(mechanism=Gaussian(1.0, 1.0)), "<f4", 3),
        (Federation(mechanism=Gaussian(1.0, 1.0, AtServer())), "<f4", 3),
        (Federation(mechanism=Gaussian(1.0, 1.0, SecureAggregation())), "<i8", 3),
        (Federation(Evolution()), MESSAGE, 1),
        (Federation(Evolution(truth=0.5), mechanism=EsRandomisedResponse()), MESSAGE, 1),
        (Federation(Evolution(), mechanism=Gaussian(1.0, 1.0)), "<f4", 3),
        (Federation(Evolution(), mechanism=Gaussian(1.0, 1.0, SecureAggregation())), "<i8", 3),
    ],
    ids=str,
)
def test_what_a_server_expects(federation, kind, values):
    task, state = server(federation)
    expected = task.expected(state, RUN, [2, 0], attempt=5)
    assert expected == ExpectedMessage(RUN, 1, (2, 0), kind, values, 5)


def test_what_a_server_sends():
    task, state = server(Federation(local=Scaffold()))
    call = task.call(state, RUN, 2, 4, attempt=1)
    assert (call.round, call.attempt, call.cohort, call.count) == (1, 1, 4, 1.0)
    assert call.weights.dtype == call.common.dtype == np.float32
    task, state = server(Federation(Pdgd(Mlp(hidden=1)), local=FedPer()))
    assert task.call(state, RUN, 0, 4).common is None


def test_only_within_a_sum_do_clients_weigh_by_age_themselves():
    rule = FedBuff(2, wait=True)
    for mechanism, counted in (
        (None, False),
        (Gaussian(1.0, 1.0), False),
        (Gaussian(1.0, 1.0, SecureAggregation()), True),
    ):
        task, state = server(Federation(mechanism=mechanism), arrival=rule)
        state.rule["moves"][0] = 3
        assert (task.call(state, RUN, 0, 2).count < 1) == counted
    task, state = server(arrival=FedAsync())
    assert task.call(state, RUN, 0, 1).count == 1


def test_settling_needs_neither_learner_nor_data():
    """Whoever has a task and messages has all that a server needs."""

    class NoLearner:
        ranker = Linear()

        def __call__(self, *_, **__):
            raise AssertionError("a server runs no learner")

        from_impressions = __call__

    for mechanism in (None, Gaussian(1.0, 1.0, AtServer())):
        task, state = server(Federation(NoLearner(), Mean(), Momentum(), mechanism=mechanism))
        for _ in range(2):
            received = receive(task.expected(state, RUN, range(4)), contents(task, state, range(4)))
            state = settle(task, state, task.gathered(state, received.messages), source=SecureSource(key=bytes(32)))
        assert state.round == 2
        assert np.isfinite(state.weights).all()


@pytest.mark.parametrize("reseal", [False, True])
def test_mutated_messages_are_refused_or_the_same(reseal):
    """Damage is always found. Somebody who repairs the checksum may send another update, as any client may."""
    rng = np.random.default_rng(3)
    for original in (message(2), Message(RUN, 3, 2, np.array([(7, 0.5, 0.25)], dtype=MESSAGE), 4)):
        expected = replace(
            EXPECTED, type=original.payload.dtype.str if original.payload.dtype.names is None else MESSAGE
        )
        expected = replace(expected, values=len(original.payload))
        content = original.pack()
        for _ in range(1000):
            try:
                got = Message.unpack(mutated(content, rng, reseal), expected)
            except Refused:
                continue
            assert reseal or same_message(got, original)
            assert got.payload.shape == original.payload.shape
            assert got.payload.dtype == original.payload.dtype
            assert got.sender in EXPECTED.senders
            assert 0 <= got.size <= MAX_SIZE


@pytest.mark.parametrize("reseal", [False, True])
def test_mutated_calls_are_refused_or_the_same(reseal):
    rng, call = np.random.default_rng(4), replace(CALL, common=CALL.weights / 3)
    expected, content = replace(EXPECTED_CALL, common=True), call.pack()
    for _ in range(2000):
        try:
            got = Call.unpack(mutated(content, rng, reseal), expected)
        except Refused:
            continue
        assert reseal or same_call(got, call)
        assert got.weights.shape == got.common.shape == (3,)
        assert np.isfinite(got.weights).all()
        assert got.cohort > 0
        assert 0 <= got.count <= 1


def test_a_mutated_round_never_ends_otherwise_than_refused():
    rng, task = np.random.default_rng(5), ServerTask(Federation(), 4)
    state = task.first(np.zeros(3))
    honest = contents(task, state, range(4))
    for _ in range(300):
        which = rng.integers(4)
        received = receive(
            task.expected(state, RUN, range(4)),
            [mutated(one, rng, reseal=False) if number == which else one for number, one in enumerate(honest)],
        )
        assert set(range(4)) - {which} <= {one.sender for one in received.messages}
        assert received.left_out in ((), (which,))
        settle(task, state, task.gathered(state, received.messages))


def test_a_rule_that_remembers_knows_clients_by_their_rows_where_ids_have_gaps():
    task = ServerTask(Federation(aggregator=Reputation()), clients=4)
    state = task.first(np.zeros(3))
    updates = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    messages = Messages(updates, np.ones(4, dtype=np.int64), np.array([0, 3, 7, 9]), state.weights, 1)
    assert settle(task, state, messages, np.arange(4)).round == 1

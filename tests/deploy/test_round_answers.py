"""What a coordinator accepts of an answer."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.deploy.protocol import OBSERVED, Answers
from fedrank.deploy.round_answers import AnswerReader, RoundAnswers, longest_update
from fedrank.federated.messages import Message
from fedrank.federated.server import ServerTask
from fedrank.types import Messages
from fedrank.wire import Label, Refused
from tests.deploy.plans import NOISE, made_plan

AT_SERVER = NOISE | {"placement": "server"}


def reader_of(plan, **more) -> AnswerReader:
    return AnswerReader(plan, ServerTask(plan.federated, len(plan.clients), None), **more)


def message(plan, sender=1, size=4, value=0.1, round=1) -> Message:
    return Message(plan.run, round, sender, np.full(plan.sent, value, np.float32), size)


def answers(*messages: Message, observed=0, personal=0) -> Answers:
    return Answers(tuple(one.pack() for one in messages), np.zeros(observed, OBSERVED), np.zeros(personal))


@pytest.fixture(scope="module")
def plan():
    return made_plan(mechanism=None)


@pytest.fixture
def state(plan):
    return reader_of(plan).task.first(np.zeros(plan.sent))


def test_messages_come_in_the_order_in_which_clients_were_asked(plan, state):
    found = answers(message(plan, 2), message(plan, 0), message(plan, 1))
    assert [one.sender for one in reader_of(plan).messages(found, state, [1, 0, 2])] == [1, 0, 2]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"size": 5}, "reports 5 interactions, but 4 were requested"),
        ({"sender": 2}, "comes from 2, which was not asked"),
        ({"round": 2}, "it is of round 2, but round 1 was expected"),
        ({"value": np.nan}, "not finite"),
    ],
)
def test_what_no_honest_client_sends_is_refused(plan, state, changes, word):
    with pytest.raises(Refused, match=word):
        reader_of(plan).messages(answers(message(plan, **changes)), state, [1])


def test_an_update_longer_than_noise_is_made_for_is_refused():
    plan = made_plan(mechanism=AT_SERVER)
    longest = longest_update(plan)
    assert 1.0 <= longest < 2.0  # the clip, and what rounding adds
    reader = reader_of(plan, longest_update=longest)
    unit = np.eye(plan.sent, dtype=np.float32)[0]
    reader.check_message(Message(plan.run, 1, 0, unit * np.float32(0.99), 1))
    with pytest.raises(Refused, match="an honest one has at most"):
        reader.check_message(Message(plan.run, 1, 0, unit * np.float32(longest + 0.01), 1))


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
@pytest.mark.parametrize("placement", ["client", "server"])
@pytest.mark.parametrize("people", [1, 50])
def test_no_honest_update_is_too_long_and_a_huge_one_is(name, placement, people):
    changes = {"mechanism": NOISE | {"name": name, "placement": placement}}
    if people > 1:
        changes["mechanism"] |= {"unit": "person"}
        changes["clients"] = {"count": 3, "interactions": 4, "people": people}
    plan = made_plan(**changes)
    mechanism, longest = plan.experiment.mechanism, longest_update(plan)
    assert mechanism.people == people
    for _ in range(20):
        # All people of a client send the longest update in the same direction.
        updates, ones = np.full((people, plan.sent), 1e6, np.float32), np.ones(people, np.int64)
        sent = mechanism.protect(Messages(updates, ones, 0 * ones, np.zeros(plan.sent), 1), 3.0, mechanism.source())
        reader_of(plan, longest_update=longest).check_message(Message(plan.run, 1, 1, sent.updates[0], 1))
    with pytest.raises(Refused, match="an honest one has at most"):
        reader_of(plan, longest_update=longest).check_message(message(plan, value=1e6))


def test_only_a_clip_limits_the_length(plan):
    secure = made_plan(mechanism=NOISE | {"placement": "secure-aggregation"})
    assert longest_update(plan) == longest_update(secure) == np.inf


def test_a_trial_observes_every_client_that_was_asked():
    plan = made_plan(mechanism=None, simulated=True)
    reader = reader_of(plan)
    reader.check_observed(answers(observed=2), 2)
    for wrong in (answers(observed=1), answers(observed=2, personal=3)):
        with pytest.raises(Refused, match="expected 2 and 0"):
            reader.check_observed(wrong, 2)
    reader_of(made_plan(mechanism=None)).check_observed(answers(), 2)  # real sites observe nothing


def test_answers_survive_the_wire_up_to_the_size_of_a_message(plan):
    reader, label = reader_of(plan), Label("answers", plan.run, 1, 0, 1)
    assert reader.unpack(answers(message(plan)).pack(label), label, 1).messages == (message(plan).pack(),)
    large = Answers((b"x" * (8 * plan.sent + 5000),), np.zeros(0, OBSERVED), np.zeros(0))
    with pytest.raises(Refused):
        reader.unpack(large.pack(label), label, 1)
    assert len(reader_of(plan, secure=True).unpack(large.pack(label), label, 1).messages[0]) > 5000


def test_what_is_observed_is_noted_by_client():
    seen = np.array([(0.5, 1.0), (0.25, 2.0)], OBSERVED)
    found = RoundAnswers()
    found.observe(Answers((), seen, np.arange(4.0)), [7, 3])
    assert (found.online, found.reward) == ({7: 0.5, 3: 0.25}, {7: 1.0, 3: 2.0})
    assert {id: kept.tolist() for id, kept in found.personal.items()} == {7: [0, 1], 3: [2, 3]}
    found.observe(Answers((), seen[:0], np.zeros(0)), [9])
    assert 9 not in found.online

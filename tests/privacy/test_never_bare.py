"""What leaves a client is never without its noise: looked at from outside, for everything that can leave."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from fedrank.federated.client import ClientTask, answer
from fedrank.federated.clients import make_clients
from fedrank.federated.messages import Call
from fedrank.privacy.mechanisms import (
    MECHANISMS,
    AtServer,
    EsRandomisedResponse,
    FpdgdPaper,
    Gaussian,
    Laplace,
    OnClient,
    SecureAggregation,
)
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.impressions import SimulatedImpressions
from fedrank.ranking.learners import LambdaRank, LoggedClicks, Pdgd
from fedrank.ranking.rankers import Mlp
from fedrank.seeds import Chance
from fedrank.types import Messages, OwnChance
from tests.made_up import made_up_data

COHORT = 10
PLACES = [
    OnClient(),
    SecureAggregation(sum="ideal"),
    SecureAggregation(sum="protocol"),
    SecureAggregation(honest=1.0, colluding=0.0),
]
NOISY = [
    *(kind(2.0, 1.5, place, cap=4) for kind in (Gaussian, Laplace) for place in PLACES),
    Gaussian(2.0, 1.5, unit="interaction"),
]
WHOLE = pytest.mark.parametrize("mechanism", NOISY, ids=str)


def messages(updates, sizes=4) -> Messages:
    updates = np.asarray(updates, dtype=np.float32)
    count = len(updates)
    return Messages(updates, np.full(count, sizes), np.arange(count), np.zeros(updates.shape[1]), round=1)


def spread(mechanism) -> float:
    """Deviation of the noise on one message, in units of an update."""
    one = mechanism.clip * mechanism.noise * (math.sqrt(2) if isinstance(mechanism, Laplace) else 1.0)
    place = mechanism.placement
    return one / math.sqrt(place.min_honest(COHORT)) if isinstance(place, SecureAggregation) else one


def in_units(mechanism, sent) -> np.ndarray:
    whole = sent.updates.dtype.kind == "i"
    return sent.updates.astype(np.float64) * (mechanism.step(COHORT) if whole else 1.0)


def test_every_mechanism_that_adds_noise_is_looked_at():
    kinds = {type(mechanism) for mechanism in NOISY} | {FpdgdPaper, EsRandomisedResponse}
    assert set(MECHANISMS.values()) == kinds


@WHOLE
@pytest.mark.parametrize("value", [0.0, 0.01, 1e6, np.nan])
@pytest.mark.parametrize("sizes", [0, 1, 9])
@pytest.mark.parametrize("counts", [None, 0.0, 0.3])
def test_every_message_carries_all_the_noise_of_its_place(mechanism, value, sizes, counts):
    """However short, long or broken the update is, however old, and however little the client did."""
    counts = None if counts is None else np.array([counts])
    sent = mechanism.protect(messages(np.full((1, 3000), value), sizes), COHORT, SecureSource(key=bytes(32)), counts)
    noise = in_units(mechanism, sent)[0]
    expected = spread(mechanism)
    assert noise.std() == pytest.approx(expected, rel=0.25 if isinstance(mechanism, Laplace) else 0.1)
    assert np.abs(noise.mean()) < 0.05 * expected + mechanism.clip / math.sqrt(3000) * 1.1
    assert np.count_nonzero(noise) > 0.5 * len(noise)
    assert sent.sizes.tolist() == [1], "how often a client searched stays with it"


@WHOLE
def test_noise_of_clients_and_of_calls_is_never_the_same(mechanism):
    twice = [mechanism.protect(messages(np.zeros((3, 2000))), COHORT, mechanism.source()) for _ in range(2)]
    rows = np.concatenate([in_units(mechanism, sent) for sent in twice])
    assert np.abs(np.triu(np.corrcoef(rows), 1)).max() < 0.15


class Forbidden:
    """A source that nobody may ask."""

    def _asked(self, *_):
        raise AssertionError("noise is drawn where a deployed client could not have added it")

    words = bernoulli = seed = _asked


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_a_secure_sum_adds_no_noise_of_its_own(kind):
    mechanism = kind(2.0, 1.5, SecureAggregation(sum="ideal"))
    sent = mechanism.protect(messages(np.zeros((COHORT, 2000))), COHORT, SecureSource())
    change = mechanism.rule(COHORT, Forbidden())(sent)
    assert np.array_equal(change, sent.updates.sum(axis=0) * (mechanism.step(COHORT) / COHORT))
    assert change.std() * COHORT >= 2.0 * 1.5


def test_only_a_trusted_server_sees_what_has_no_noise():
    mechanism = Gaussian(2.0, 1.5, AtServer())
    sent = mechanism.protect(messages(np.full((2, 4), 0.25)), COHORT, Forbidden())
    assert sent.updates.tolist() == [[0.25] * 4] * 2
    assert "the server sees every update without noise" in mechanism.sees
    assert mechanism.rule(COHORT, SecureSource())(sent).std() > 0


def test_fpdgd_adds_what_the_paper_says():
    one, two = (FpdgdPaper(1.2).protect(messages(np.zeros((1, 400))), 2, SecureSource()).updates for _ in range(2))
    assert np.count_nonzero(one) > 350
    assert not np.array_equal(one, two)


LEARNERS = [
    Pdgd(), Pdgd(batch=True), Pdgd(Mlp(hidden=3)), LambdaRank(), LoggedClicks(), Evolution(), Evolution(truth=0.5),
]  # fmt: skip
ONE = make_clients(made_up_data(), 1, interactions=4)


def sent_by(learner, mechanism, own):
    start = learner.ranker.first(5, np.random.default_rng(1)).astype(np.float32)
    call = Call(bytes(16), 1, start, float(COHORT))
    message, _ = answer(ClientTask(learner, None, mechanism), call, SimulatedImpressions(ONE, own, learner), None, own)
    return message


@pytest.mark.parametrize("learner", LEARNERS, ids=str)
@pytest.mark.parametrize(
    "mechanism", [Gaussian(2.0, 1.5), Gaussian(2.0, 1.5, SecureAggregation()), Laplace(2.0, 1.5)], ids=str
)
def test_no_answer_of_a_client_is_bare(learner, mechanism, monkeypatch):
    """Also where a learner would rather send something shorter than an update."""
    own = OwnChance(Chance(1, 1), 0)
    one, two = (sent_by(learner, mechanism, own) for _ in range(2))
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))
    bare = sent_by(learner, mechanism, own)
    for message in (one, two):
        assert message.payload.dtype == np.dtype(mechanism.sends)
        assert message.payload.shape == bare.payload.shape == (learner.ranker.size(5),)
        assert (message.payload != bare.payload).all()
        assert message.size == 1
    assert (one.payload != two.payload).all()


def test_rewards_are_flipped_by_the_clients_own_source():
    learner, mechanism = Evolution(truth=0.2), EsRandomisedResponse()
    clients = replace(ONE, interactions=np.array([60]))
    own = OwnChance(Chance(1, 1), 0)
    call = Call(bytes(16), 1, np.zeros(5, dtype=np.float32), 10.0)

    def told(learner, own):
        message, _ = answer(
            ClientTask(learner, None, mechanism), call, SimulatedImpressions(clients, own, learner), None, own
        )
        return message.payload[["plus", "minus"]].tolist()

    true = told(Evolution(), own)
    assert told(learner, own) != true
    assert told(learner, own._replace(source=SecureSource())) != told(learner, own._replace(source=SecureSource()))

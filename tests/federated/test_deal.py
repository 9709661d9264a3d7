"""A dealt schedule: each client or person in one round, planned sizes, one exact price, no second turn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrank.federated import backends
from fedrank.federated.asynchronous import FedAsync
from fedrank.federated.asynchronous_simulation import simulate_arrivals
from fedrank.federated.clients import make_clients
from fedrank.federated.deal import Deal
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, FedProx, Scaffold
from fedrank.federated.partition import Own
from fedrank.federated.round import RoundContext, first_state
from fedrank.federated.simulation import simulate
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.mechanisms import AtServer, Gaussian, Laplace, OnClient, SecureAggregation
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.privacy.spending import Spending
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Mlp
from tests.made_up import made_up_data

DATA = made_up_data(queries=40, longest=14)
COUNT, ROUNDS, SEED = 11, 3, 5
IDEAL = SecureAggregation(sum="ideal")
PLACEMENTS = [OnClient(), AtServer(), IDEAL, SecureAggregation()]


def clients(people=1, count=COUNT):
    return make_clients(DATA, count, partition=Own(), click_model="navigational", interactions=3, people=people, seed=2)


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))


def participants(federation, some, rounds=ROUNDS, **more):
    """The ids of the senders of each round, and all outcomes."""
    seen: list[list[int]] = []
    outcomes = list(
        simulate(federation, some, rounds, SEED, watch=lambda messages: seen.append(messages.ids.tolist()), **more)
    )
    return seen, outcomes


def test_each_participates_once_and_sizes_differ_by_at_most_one():
    groups = Deal.of(1003, 4, SEED).round_of_each
    assert sorted(np.bincount(groups)[1:]) == [250, 251, 251, 251]
    assert (Deal.of(1003, 4, SEED).round_of_each == groups).all()
    assert (Deal.of(1003, 4, SEED + 1).round_of_each != groups).any()
    assert (Deal.of(1003, 4, SEED, 7).round_of_each != groups).any()


@pytest.mark.parametrize("mechanism", [None, *(Gaussian(1.0, 1.0, each) for each in PLACEMENTS)], ids=str)
def test_every_client_is_in_one_round(mechanism):
    seen, outcomes = participants(Federation(mechanism=mechanism, dealt=ROUNDS), clients())
    assert len(outcomes) == len(seen) == ROUNDS
    assert sorted(id for each in seen for id in each) == list(range(COUNT))
    assert [len(each) for each in seen] == np.bincount(Deal.of(COUNT, ROUNDS, SEED).round_of_each)[1:].tolist()


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_backends_give_the_same_bits(backend):
    federation = Federation(mechanism=Gaussian(1.0, 1.0, OnClient()), dealt=ROUNDS)
    found = [
        outcome.state.weights.tobytes()
        for outcome in simulate(federation, clients(), ROUNDS, SEED, noise=SecureSource(bytes(32)), device=backend)
    ]
    expected = [
        outcome.state.weights.tobytes()
        for outcome in simulate(federation, clients(), ROUNDS, SEED, noise=SecureSource(bytes(32)), threads=2)
    ]
    assert found == expected


def test_many_rounds_in_one_call_are_those_one_by_one(monkeypatch):
    """Groups may differ in size, so a long schedule is run round by round."""
    some = make_clients(DATA, 33, interactions=2, click_model="navigational")
    federation = Federation(dealt=32)
    plain = list(simulate(federation, some, 32, SEED))
    monkeypatch.setattr(backends, "ENOUGH_ROUNDS", 1)
    many = list(simulate(federation, some, 32, SEED))
    assert sorted(one.interactions for one in many) == [2] * 31 + [4]
    assert [one.weights.tobytes() for one in plain] == [one.weights.tobytes() for one in many]


def test_chunks_give_the_same_bits(monkeypatch):
    federation = Federation(mechanism=Gaussian(1.0, 1.0, AtServer()), dealt=ROUNDS)
    runs = []
    for size in (64 << 20, 50):
        monkeypatch.setattr(backends, "CHUNK_BYTES", size)
        runs.append(
            [
                one.weights.tobytes()
                for one in simulate(federation, clients(), ROUNDS, SEED, noise=SecureSource(bytes(32)))
            ]
        )
    assert runs[0] == runs[1]


def test_the_sum_is_divided_by_the_planned_size(silent):
    some = clients()
    messages = []
    federation = Federation(mechanism=Gaussian(100.0, 1.0, AtServer()), dealt=ROUNDS)
    first, _ = first_state(federation, some, SEED)
    outcomes = list(simulate(federation, some, ROUNDS, SEED, watch=messages.append))
    assert federation.cohort(COUNT) == 4
    sizes = [len(each.ids) for each in messages]
    assert sorted(sizes) == [3, 4, 4]
    weights = first.weights
    for outcome, each in zip(outcomes, messages, strict=True):
        change = each.updates.sum(axis=0, dtype=np.float64) / 4
        np.testing.assert_allclose(outcome.state.weights - weights, change, atol=1e-4)
        weights = outcome.state.weights


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_persons_are_dealt_by_their_organisation(placement, silent):
    some, people = clients(people=7, count=3), 7
    mechanism = Gaussian(1.0, 1.0, placement, unit="person", people=math.ceil(people / ROUNDS))
    federation = Federation(mechanism=mechanism, dealt=ROUNDS)
    context = RoundContext(federation, some, SEED)
    rows = [context.draw(number) for number in range(1, ROUNDS + 1)]
    assert sorted(np.concatenate(rows)) == list(range(3 * people))
    for each in rows:
        assert set(np.bincount(some.people.client[each])) <= {2, 3}
    seen, _ = participants(federation, some)
    assert seen == [[0, 1, 2]] * ROUNDS
    assert federation.cohort(3) == 3


def test_persons_learn_only_in_their_round(monkeypatch):
    some, learned = clients(people=5, count=3), []
    plain = Pdgd.__call__

    def note(self, start, own, *more):
        learned.append(own.ids.tolist())
        return plain(self, start, own, *more)

    monkeypatch.setattr(Pdgd, "__call__", note)
    mechanism = Gaussian(1.0, 1.0, unit="person", people=2)
    list(simulate(Federation(mechanism=mechanism, dealt=ROUNDS), some, ROUNDS, SEED))
    assert len(learned) == ROUNDS
    assert sorted(id for each in learned for id in each) == some.people.ids.tolist()


# Refused


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"participation": 0.5}, "remove clients.participation"),
        ({"learner": Evolution()}, "Evolution .FOLtR-ES. sends rewards"),
        ({"local": Scaffold()}, "Scaffold stores state at a client"),
        ({"local": FedPer(), "learner": Pdgd(Mlp(hidden=3))}, "FedPer stores state at a client"),
        ({"mechanism": Laplace(1.0, 1.0)}, "Laplace is not Gaussian noise"),
        ({"dealt": -1}, "dealt must be a number of rounds"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings, says):
    with pytest.raises(ValueError, match=says):
        Federation(**{"dealt": ROUNDS} | settings)
    Federation(local=FedProx(), dealt=ROUNDS)


def test_asynchronous_arrivals_are_refused():
    with pytest.raises(ValueError, match="clients cannot be dealt into rounds"):
        next(simulate_arrivals(Federation(dealt=ROUNDS), FedAsync(), clients(), 3))


def test_more_rounds_than_were_dealt_are_refused():
    with pytest.raises(ValueError, match=r"rounds must be at most 3, into which clients are dealt \(got 4\)"):
        next(simulate(Federation(dealt=ROUNDS), clients(), 4))
    with pytest.raises(ValueError, match="11 clients cannot be dealt into 12 rounds"):
        next(simulate(Federation(dealt=12), clients(), 12))
    with pytest.raises(ValueError, match="2 persons of client 0 cannot be dealt into 3 rounds"):
        next(simulate(Federation(dealt=ROUNDS), clients(people=2, count=3), 3))


# The journal


def spending(ledger, rounds=ROUNDS):
    return Spending(ledger, [], rounds, 1e-5, None, dealt=True)


def test_a_round_that_a_crash_lost_is_not_repeated(tmp_path):
    federation, some = Federation(mechanism=Gaussian(1.0, 1.0), dealt=ROUNDS), clients()
    with Ledger.open(tmp_path, COUNT) as ledger:
        journal = spending(ledger)
        one = next(simulate(federation, some, ROUNDS, SEED, journal=journal))
        journal.cohort(2, RoundContext(federation, some, SEED).draw)  # and the process ends before the change is kept
    with Ledger.open(tmp_path, COUNT) as ledger:
        seen, outcomes = participants(federation, some, state=one.state, journal=spending(ledger))
        assert ledger.participations().tolist() == [1] * COUNT
    assert [outcome.round for outcome in outcomes] == [2, 3]
    assert (outcomes[0].weights == one.weights).all()
    assert outcomes[0].interactions == 0
    assert len(seen) == 1


def test_a_kept_round_is_used_again_without_a_second_charge(tmp_path):
    federation, some = Federation(mechanism=Gaussian(1.0, 1.0), dealt=ROUNDS), clients()
    with Ledger.open(tmp_path, COUNT) as ledger:
        before = list(simulate(federation, some, ROUNDS, SEED, journal=spending(ledger)))
    with Ledger.open(tmp_path, COUNT) as ledger:
        after = list(simulate(federation, some, ROUNDS, SEED, journal=spending(ledger)))
        assert ledger.participations().tolist() == [1] * COUNT
    assert [one.weights.tobytes() for one in before] == [one.weights.tobytes() for one in after]


def test_a_second_turn_is_refused(tmp_path):
    federation, some = Federation(mechanism=Gaussian(1.0, 1.0), dealt=ROUNDS), clients()
    with Ledger.open(tmp_path, COUNT) as ledger:
        journal = spending(ledger)
        rounds = simulate(federation, some, ROUNDS, SEED, journal=journal)
        one = next(rounds)
        with pytest.raises(ValueError, match="have already taken part in this run"):
            list(simulate(federation, some, ROUNDS, SEED + 1, state=one.state, journal=journal))


def test_the_ledger_counts_persons(tmp_path):
    some = clients(people=6, count=3)
    mechanism = Gaussian(1.0, 1.0, AtServer(), unit="person", people=2)
    with Ledger.open(tmp_path, 18) as ledger:
        list(simulate(Federation(mechanism=mechanism, dealt=ROUNDS), some, ROUNDS, SEED, journal=spending(ledger)))
        assert ledger.participations().tolist() == [1] * 18
        assert ledger.rounds() == ROUNDS

"""Clients that are organisations: their people learn apart, and one message leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.federated.aggregators import Apart
from fedrank.federated.asynchronous import FedAsync
from fedrank.federated.asynchronous_simulation import simulate_arrivals
from fedrank.federated.client import ClientTask, answer_from_holdings
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, FedProx, Scaffold
from fedrank.federated.messages import Call, ExpectedCall
from fedrank.federated.partition import Iid, Own, Users
from fedrank.federated.round import first_state
from fedrank.federated.server import ServerTask, receive, settle
from fedrank.federated.server_optimizers import Adam
from fedrank.federated.simulation import federated_round, simulate
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.mechanisms import AtServer, Gaussian, OnClient, SecureAggregation
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.privacy.spending import Spending
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Mlp
from fedrank.seeds import Chance
from fedrank.types import OwnChance
from tests.made_up import made_up_data

DATA = made_up_data(queries=40, longest=14)
SITES, PEOPLE, SEED = 4, 6, 7
IDEAL = SecureAggregation(sum="ideal")
RUN = b"sixteen bytes..."


def sites(people=PEOPLE, interactions=3, partition=None, data=DATA):
    partition = Own() if partition is None else partition
    return make_clients(
        data, SITES, partition=partition, click_model="navigational", interactions=interactions, people=people, seed=2
    )


def pools(clients):
    return [clients.queries[clients.pools[pool] : clients.pools[pool + 1]].tolist() for pool in clients.pool]


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))


# The table


def test_an_organisations_queries_are_dealt_out_to_its_people():
    clients = sites()
    assert len(clients) == SITES
    assert len(clients.people) == SITES * PEOPLE
    assert clients.interactions.tolist() == [3 * PEOPLE] * SITES
    assert clients.people.interactions.tolist() == [3] * SITES * PEOPLE
    own = pools(clients.people)
    for site, whole in enumerate(pools(clients)):
        shares = own[site * PEOPLE : (site + 1) * PEOPLE]
        assert sorted(np.concatenate(shares)) == sorted(whole)
        assert all(shares)
        assert clients.people.client[site * PEOPLE : (site + 1) * PEOPLE].tolist() == [site] * PEOPLE
    assert len(np.unique(clients.people.ids)) == SITES * PEOPLE, "everybody has chance of one's own"


def test_where_there_are_fewer_queries_several_people_ask_the_same():
    clients = sites(people=25)
    own = pools(clients.people)
    assert {len(pool) for pool in own} == {1}
    for site, whole in enumerate(pools(clients)):
        assert {pool[0] for pool in own[site * 25 : (site + 1) * 25]} == set(whole)


def test_users_of_a_log_stay_whole():
    who = np.array([f"u{query % 9}" for query in range(40)])
    clients = sites(people=3, partition=Iid(), data=replace(DATA, who=who, when=np.arange(40)))
    for person in range(3):
        mine = {who[query] for query in pools(clients.people)[person]}
        others = {who[query] for other in range(3) if other != person for query in pools(clients.people)[other]}
        assert len(mine) == 3
        assert not mine & others


def test_selected_organisations_bring_their_people():
    clients = sites().rows(np.array([1, 3]))
    assert clients.people.client.tolist() == [1] * PEOPLE + [3] * PEOPLE
    assert sites(people=1).rows(np.array([1])).people is None


def test_one_person_each_is_a_client_as_ever():
    plain = make_clients(DATA, SITES, partition=Own(), click_model="navigational", interactions=3, seed=2)
    same = sites(people=1)
    assert same.people is None
    for name in ("ids", "pool", "queries", "pools", "interactions", "click_model"):
        assert np.array_equal(getattr(plain, name), getattr(same, name))


def test_nobody_is_refused():
    with pytest.raises(ValueError, match="people must be at least 1"):
        sites(people=0)


# Rounds


def test_an_organisation_sends_the_mean_of_what_its_people_learn_from_own_searches():
    clients, federation = sites(), Federation()
    state, _ = first_state(federation, clients, SEED)
    after = federated_round(federation, state, clients, SEED)
    each = [
        Pdgd()(state.weights, clients.people.rows(slice(row, row + 1)), Chance(SEED, 1)).updates[0]
        for row in range(SITES * PEOPLE)
    ]
    assert after.weights == pytest.approx(np.mean(each, axis=0), abs=1e-7)
    assert after.interactions == SITES * PEOPLE * 3
    assert after.bytes_up == SITES * 4 * 5


@pytest.mark.parametrize("place", [OnClient(), AtServer(), IDEAL, SecureAggregation()])
def test_without_noise_and_with_a_wide_clip_only_rounding_is_left(silent, place):
    clients = sites()
    plain = federated_round(Federation(), first_state(Federation(), clients, 1)[0], clients, 1)
    federation = Federation(mechanism=Gaussian(64.0, 1.0, place, unit="person", people=PEOPLE))
    noised = federated_round(federation, first_state(federation, clients, 1)[0], clients, 1)
    assert noised.weights == pytest.approx(plain.weights, abs=64 * PEOPLE * 2.0**-22)
    assert np.abs(plain.weights).max() > 0.01
    assert (noised.online, noised.interactions) == (plain.online, plain.interactions)


@pytest.mark.parametrize("mechanism", [None, Gaussian(0.1, 1.0, IDEAL, unit="person", people=PEOPLE)])
def test_parts_add_up_to_the_same(silent, monkeypatch, mechanism):
    clients, federation = sites(), Federation(mechanism=mechanism)
    state, _ = first_state(federation, clients, 1)
    whole = federated_round(federation, state, clients, 1)
    monkeypatch.setattr("fedrank.federated.backends.CHUNK_BYTES", 2 * PEOPLE * 4 * 5)
    assert federated_round(federation, state, clients, 1).weights == pytest.approx(whole.weights, abs=1e-15)


def test_alone_an_organisation_learns_from_its_people():
    clients, federation = sites(), Federation(aggregator=Apart())
    *_, last = simulate(federation, clients, 3, SEED)
    third = clients.rows(np.array([2]))
    *_, alone = simulate(federation, third, 3, SEED)
    assert last.state.weights[2].tobytes() == alone.state.weights[0].tobytes()


def test_a_person_is_charged_when_the_organisation_takes_part(tmp_path):
    clients = sites()
    mechanism = Gaussian(0.1, 5.0, unit="person", people=PEOPLE)
    federation = Federation(mechanism=mechanism, participation=0.5)
    with Ledger.open(tmp_path / "ledger", SITES) as ledger:
        journal = Spending(ledger, [], 6, 1e-5, None)
        outcomes = list(simulate(federation, clients, 6, SEED, journal=journal))
        assert ledger.participations().sum() == 6 * 2
    assert {outcome.interactions for outcome in outcomes} == {2 * PEOPLE * 3}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"learner": Evolution(), "server": Adam()}, "learner: evolution sends rewards"),
        ({"local": Scaffold()}, "local: Scaffold stores state at a client"),
        ({"local": FedPer(), "learner": Pdgd(Mlp(hidden=2))}, "local: FedPer stores state at a client"),
        ({"mechanism": Gaussian(1.0, 1.0, unit="interaction")}, 'mechanism.unit: "interaction" bounds'),
    ],
)
def test_what_people_cannot_do(changes, problem):
    federation, clients = Federation(**changes), sites()
    state, memory = first_state(federation, clients, 1)
    with pytest.raises(ValueError, match=problem):
        federated_round(federation, state, clients, 1, memory)


def test_people_do_not_arrive_one_by_one():
    data = replace(DATA, who=np.array([f"u{q % 4}" for q in range(40)]), when=np.arange(40))
    clients = sites(partition=Users(), data=data)
    with pytest.raises(ValueError, match="asynchronous arrivals do not support persons"):
        next(iter(simulate_arrivals(Federation(), FedAsync(), clients, 2)))


# Both halves


def answered(task, clients, content, number):
    """One organisation, with nothing but its own people."""
    call = Call.unpack(content, ExpectedCall(RUN, number, 5))
    own = OwnChance(Chance(SEED, number), int(clients.ids[0]), SecureSource(key=bytes(32)))
    return answer_from_holdings(task, call, clients, None, own).message.pack()


@pytest.mark.parametrize(
    "federation",
    [
        Federation(),
        Federation(local=FedProx(0.5)),
        Federation(mechanism=Gaussian(0.1, 1.0)),  # the unit is the organisation
        *(
            Federation(mechanism=Gaussian(0.1, 1.0, place, cap=2, unit="person", people=PEOPLE + 1))
            for place in (OnClient(), AtServer(), IDEAL)
        ),
    ],
    ids=["bare", "fedprox", "organisations", "noise by the organisation", "noise by the server", "shares of noise"],
)
def test_organisations_taken_apart_come_to_what_the_simulation_comes_to(silent, federation):
    clients, rounds = sites(), 3
    expected = list(simulate(federation, clients, rounds, SEED))
    task, server = ClientTask(federation.learner, federation.local, federation.mechanism), ServerTask(federation, SITES)
    state, _ = first_state(federation, clients, SEED)
    for number in range(1, rounds + 1):
        calls = [server.call(state, RUN, row, SITES).pack() for row in range(SITES)]
        sent = [answered(task, clients.rows(slice(row, row + 1)), calls[row], number) for row in range(SITES)]
        received = receive(server.expected(state, RUN, range(SITES)), sent)
        assert received.notes == ()
        state = settle(server, state, server.gathered(state, received.messages))
        assert state.weights.tobytes() == expected[number - 1].weights.tobytes()
    assert np.abs(state.weights).max() > 0


def test_an_organisation_refuses_what_its_people_cannot_do():
    with pytest.raises(ValueError, match="local: Scaffold stores state"):
        answer_from_holdings(
            ClientTask(Pdgd(), Scaffold()),
            Call(RUN, 1, np.zeros(5, np.float32), 4, common=np.zeros(5, np.float32)),
            sites().rows(slice(1)),
            np.zeros((1, 5), np.float32),
            OwnChance(Chance(1, 1), 0),
        )

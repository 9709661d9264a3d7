"""What clients keep between rounds: FedPer's own weights, SCAFFOLD's controls."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedrank.federated.backends as backends
from fedrank.federated.aggregators import Apart, Mean, Median
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, FedProx, Scaffold
from fedrank.federated.partition import Own
from fedrank.federated.round import first_state, personal_models, taking_part
from fedrank.federated.server import RoundError, State
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS
from fedrank.federated.simulation import federated_round, simulate
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Mlp
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION
from tests.made_up import made_up_data

FEDPER = Federation(Pdgd(ranker=Mlp(hidden=3)), local=FedPer())
SCAFFOLD = Federation(local=Scaffold())
BOTH = pytest.mark.parametrize("federation", [FEDPER, SCAFFOLD], ids=["fedper", "scaffold"])


def few(count=6, interactions=(1, 4, 2), **more):
    return make_clients(made_up_data(queries=30), count, partition=Own(), interactions=interactions, **more)


def last_of(federation, clients, rounds, **more):
    return list(simulate(federation, clients, rounds, **more))[-1]


def test_first_memory():
    clients = few()
    state, memory = first_state(FEDPER, clients, 1)
    first = FEDPER.learner.ranker.first(5, np.random.default_rng(0))
    assert state.weights.shape == (len(first) - 3,), "output weights stay with clients"
    assert memory.shape == (6, 3)
    warm, memory = first_state(FEDPER, clients, 1, start=np.arange(21.0))
    assert np.array_equal(warm.weights, np.arange(18.0))
    assert np.array_equal(memory, np.tile([18.0, 19.0, 20.0], (6, 1)))
    state, memory = first_state(SCAFFOLD, clients, 1)
    assert np.array_equal(memory, np.zeros((6, 5)))
    assert np.array_equal(state.common, np.zeros(5))
    for federation in (Federation(), Federation(local=FedProx(1.0))):
        state, memory = first_state(federation, clients, 1)
        assert memory is None
        assert state.common is None


@BOTH
def test_those_who_are_absent_keep_what_they_had(federation):
    clients = few(count=10, interactions=4)
    _, memory = first_state(federation, clients, 1)
    changed = np.zeros(10, dtype=bool)
    for outcome in simulate(replace(federation, participation=0.3), clients, 6):
        present = np.isin(np.arange(10), taking_part(len(clients), 0.3, 1, outcome.round))
        assert outcome.memory is not memory
        assert np.array_equal(outcome.memory[~present], memory[~present])
        changed |= (outcome.memory != memory).any(axis=1)
        memory = outcome.memory
    assert changed.sum() > 5


@BOTH
def test_a_round_never_writes_into_what_it_was_given(federation):
    clients = few()
    last = last_of(federation, clients, 2)
    state, memory = last.state, last.memory
    weights, kept = state.weights.copy(), memory.copy()
    common = None if state.common is None else state.common.copy()
    for share in (1.0, 0.5):
        federated_round(replace(federation, participation=share), state, clients, 1, memory)
    assert np.array_equal(state.weights, weights)
    assert np.array_equal(memory, kept)
    assert common is None or np.array_equal(state.common, common)


@BOTH
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_threads_chunks_and_resumption_change_nothing(federation, participation, monkeypatch):
    clients = make_clients(made_up_data(queries=40), 300, interactions=[5, 3])
    federation = replace(federation, participation=participation)
    whole = list(simulate(federation, clients, 5, seed=3))
    threaded = last_of(federation, clients, 5, seed=3, threads=3)
    resumed = last_of(federation, clients, 5, seed=3, state=whole[1].state, memory=whole[1].memory)
    for other in (threaded, resumed):
        assert np.array_equal(whole[-1].weights, other.weights)
        assert np.array_equal(whole[-1].memory, other.memory)
    monkeypatch.setattr(backends, "CHUNK_BYTES", 4 * len(whole[-1].weights) * 7)
    chunked = last_of(federation, clients, 5, seed=3)
    assert chunked.weights == pytest.approx(whole[-1].weights, rel=1e-6, abs=1e-9)
    assert chunked.memory == pytest.approx(whole[-1].memory, rel=1e-4, abs=1e-6)
    assert chunked.bytes_up == whole[-1].bytes_up


def test_what_fedper_sends_and_shows():
    clients = few()
    outcome = last_of(FEDPER, clients, 4)
    shared = 4 * 3 * (5 + 1)
    assert outcome.bytes_up == outcome.bytes_down == 6 * shared
    assert outcome.state.weights.shape == (3 * (5 + 1),), "all that the server knows"
    models = personal_models(FEDPER, outcome.state, outcome.memory, clients)
    assert (models[:, :-3] == outcome.weights[:-3]).all()
    assert np.array_equal(models[:, -3:], outcome.memory)
    assert len({tuple(row) for row in models}) == 6
    sizes = np.array([1, 4, 2, 1, 4, 2])
    assert outcome.weights[-3:] == pytest.approx((sizes[:, None] * outcome.memory).sum(axis=0) / 14)


def test_one_round_of_fedper_averages_like_fpdgd():
    # All begin with the same output weights, so round 1 is that of FPDGD; from round 2 on the two part.
    clients = few()
    plain = list(simulate(Federation(learner=Pdgd(ranker=Mlp(hidden=3))), clients, 2))
    fedper = list(simulate(FEDPER, clients, 2))
    assert fedper[0].weights == pytest.approx(plain[0].weights, rel=1e-5, abs=1e-6)
    assert np.abs(fedper[1].weights - plain[1].weights).max() > 1e-5


@pytest.mark.parametrize("server", sorted(SERVER_OPTIMIZERS))
def test_the_server_step_leaves_personal_weights_alone(server):
    clients = few()
    last = last_of(FEDPER, clients, 3)
    one = federated_round(FEDPER, last.state, clients, 1, last.memory)
    step = SERVER_OPTIMIZERS[server]()
    state = replace(last.state, server=step.first(len(last.state.weights)))
    other = federated_round(replace(FEDPER, server=step), state, clients, 1, last.memory)
    assert np.array_equal(one.memory, other.memory)
    assert np.array_equal(one.weights[-3:], other.weights[-3:])


def test_without_personal_weights_everybody_has_the_global_model():
    clients = few()
    for federation in (Federation(), Federation(local=FedProx(0.1)), SCAFFOLD):
        last = last_of(federation, clients, 2)
        models = personal_models(federation, last.state, last.memory, clients)
        assert np.array_equal(models, np.tile(last.weights, (6, 1)))
    apart = Federation(aggregator=Apart())
    last = last_of(apart, clients, 2)
    assert np.array_equal(personal_models(apart, last.state, None, clients), last.weights)


def test_scaffold_round_by_round():
    """The server follows the mean of all controls from messages alone, and sends four bytes a parameter of it."""
    clients = few(count=8, interactions=3)
    federation = replace(SCAFFOLD, participation=0.5)
    state, memory = first_state(federation, clients, 1)
    for outcome in simulate(federation, clients, 8):
        present = taking_part(len(clients), 0.5, 1, outcome.round)
        correction = Scaffold().correction(memory[present], state.common.astype(np.float32))
        learned = Pdgd()(state.weights, clients.rows(present), Chance(1, outcome.round), correction)
        controls = Scaffold().remember(memory[present], correction, learned, np.full(4, 3 * 0.1))
        assert np.array_equal(outcome.memory[present], controls)
        assert outcome.weights == pytest.approx(state.weights + learned.updates.mean(axis=0), abs=1e-6)
        assert outcome.state.common == pytest.approx(outcome.memory.mean(axis=0), abs=1e-6)
        state, memory = outcome.state, outcome.memory
    assert np.abs(state.common).max() > 0.01
    assert outcome.bytes_down == 2 * outcome.bytes_up == 4 * 5 * 8


def test_the_server_of_scaffold_counts_all_clients_alike():
    clients = make_clients(made_up_data(), 3, interactions=[1, 2, 9])
    state, memory = first_state(SCAFFOLD, clients, 1)
    updates = Pdgd()(state.weights, clients, Chance(1, 1)).updates
    moved = federated_round(SCAFFOLD, state, clients, 1, memory).weights - state.weights
    assert moved == pytest.approx(updates.astype(float).mean(axis=0), abs=1e-7)
    assert replace(SCAFFOLD, aggregator=Mean(weighted=True)).aggregator == Mean(weighted=False)
    assert replace(SCAFFOLD, aggregator=Median()).aggregator == Median()


def test_scaffold_corrections_cancel_when_all_take_as_many_steps():
    clients = few(count=6, interactions=3, click_model="informational")
    last = last_of(SCAFFOLD, clients, 3)
    drifts = last.state.common - last.memory
    assert np.abs(drifts).max() > 1e-3
    assert drifts.sum(axis=0) == pytest.approx(np.zeros(5), abs=1e-6)
    zeros = federated_round(SCAFFOLD, replace(last.state, common=np.zeros(5)), clients, 1, np.zeros((6, 5)))
    plain = federated_round(Federation(), replace(last.state, common=None), clients, 1)
    corrected = federated_round(SCAFFOLD, last.state, clients, 1, last.memory)
    assert np.array_equal(zeros.weights, plain.weights)
    assert not np.array_equal(corrected.weights, plain.weights)


@BOTH
def test_clients_without_interactions_keep_their_memory(federation):
    one, two = (outcome.memory for outcome in simulate(federation, few(interactions=[0, 3]), 2))
    assert np.array_equal(one[::2], two[::2])
    assert (one[1::2] != two[1::2]).any(axis=1).all()


@dataclass(frozen=True)
class Counts:
    """Somebody else's local method: clients count their rounds."""

    begin: float = 100.0

    def first(self, ranker, start, count):
        return np.full((count, 1), self.begin)

    def correction(self, memory, common):
        return NO_CORRECTION

    def remember(self, memory, correction, learned, steps):
        return np.ones((len(learned.updates), 1)) if memory is None else memory + 1


def test_local_methods_from_outside_may_remember_too(monkeypatch):
    clients = few(count=8)
    assert last_of(Federation(local=Counts(0.0)), clients, 3).memory.tolist() == [[3.0]] * 8
    half = Federation(local=Counts(), participation=0.5)
    last = last_of(half, clients, 6)
    assert last.memory.sum() == 8 * 100 + 6 * 4
    monkeypatch.setattr(backends, "CHUNK_BYTES", 40)
    assert np.array_equal(last_of(half, clients, 6).memory, last.memory)
    with pytest.raises(RoundError, match="first_state"):
        federated_round(half, State(0, np.zeros(5)), clients, 1)

"""What clients keep between rounds: FedPer's own weights, SCAFFOLD's controls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import fedrank.federate.round as round_module
from fedrank.federate.aggregate import Apart, Mean
from fedrank.federate.clients import make_clients
from fedrank.federate.partition import Own
from fedrank.federate.round import (
    Federation,
    RoundError,
    State,
    federated_round,
    first_state,
    personal_models,
    simulate,
    taking_part,
)
from fedrank.federate.server import SERVER_STEPS, Adam
from fedrank.rank.learners import Pdgd
from fedrank.rank.rankers import Linear, Mlp
from fedrank.seeds import Chance
from tests.made_up import made_up_data

FEDPER = Pdgd(ranker=Mlp(hidden=3), personal="output")
SCAFFOLD = Pdgd(control=True)
BOTH = pytest.mark.parametrize("learner", [FEDPER, SCAFFOLD], ids=["fedper", "scaffold"])


def few(count=6, interactions=(1, 4, 2), **more):
    return make_clients(made_up_data(queries=30), count, partition=Own(), interactions=interactions, **more)


def test_first_memory():
    clients = few()
    fedper = first_state(Federation(learner=FEDPER), clients, 1)
    assert np.array_equal(fedper.memory, np.tile(fedper.weights[-3:], (6, 1)))
    warm = first_state(Federation(learner=FEDPER), clients, 1, start=np.arange(21.0))
    assert np.array_equal(warm.memory, np.tile([18.0, 19.0, 20.0], (6, 1)))
    assert np.array_equal(first_state(Federation(learner=SCAFFOLD), clients, 1).memory, np.zeros((6, 5)))
    assert first_state(Federation(), clients, 1).memory is None
    assert first_state(Federation(learner=Pdgd(prox=1.0)), clients, 1).memory is None


@BOTH
def test_those_who_are_absent_keep_what_they_had(learner):
    clients = few(count=10, interactions=4)
    state = first_state(Federation(learner=learner), clients, 1)
    changed = np.zeros(10, dtype=bool)
    for outcome in simulate(Federation(learner=learner, participation=0.3), clients, 6):
        present = np.isin(np.arange(10), taking_part(clients, 0.3, 1, outcome.round))
        before = state.memory.copy()
        assert outcome.state.memory is not state.memory
        assert np.array_equal(outcome.state.memory[~present], state.memory[~present])
        changed |= (outcome.state.memory != before).any(axis=1)
        assert not (outcome.state.memory != before).any(axis=1)[~present].any()
        state = outcome.state
    assert changed.sum() > 5


@BOTH
def test_a_round_never_writes_into_the_state_it_was_given(learner):
    clients = few()
    state = list(simulate(Federation(learner=learner), clients, 2))[-1].state
    weights, memory = state.weights.copy(), state.memory.copy()
    for share in (1.0, 0.5):
        federated_round(Federation(learner=learner, participation=share), state, clients, 1)
    assert np.array_equal(state.weights, weights)
    assert np.array_equal(state.memory, memory)


@BOTH
@pytest.mark.parametrize("participation", [1.0, 0.4])
def test_threads_chunks_and_resumption_change_nothing(learner, participation, monkeypatch):
    clients = make_clients(made_up_data(queries=40), 300, interactions=[5, 3])
    federation = Federation(learner=learner, participation=participation)
    whole = list(simulate(federation, clients, 5, seed=3))
    threaded = list(simulate(federation, clients, 5, seed=3, threads=3))[-1].state
    resumed = list(simulate(federation, clients, 5, seed=3, state=whole[1].state))[-1].state
    for other in (threaded, resumed):
        assert np.array_equal(whole[-1].state.weights, other.weights)
        assert np.array_equal(whole[-1].state.memory, other.memory)
    monkeypatch.setattr(round_module, "CHUNK_BYTES", 4 * len(whole[-1].weights) * 7)
    chunked = list(simulate(federation, clients, 5, seed=3))
    assert chunked[-1].weights == pytest.approx(whole[-1].weights, rel=1e-6, abs=1e-9)
    assert chunked[-1].state.memory == pytest.approx(whole[-1].state.memory, rel=1e-4, abs=1e-6)
    assert chunked[-1].bytes_up == whole[-1].bytes_up


def test_what_fedper_sends_and_shows():
    clients = few()
    outcome = list(simulate(Federation(learner=FEDPER), clients, 4))[-1]
    shared = 4 * 3 * (5 + 1)
    assert outcome.bytes_up == outcome.bytes_down == 6 * shared
    models = personal_models(FEDPER, outcome.state, clients)
    assert (models[:, :-3] == outcome.weights[:-3]).all()
    assert np.array_equal(models[:, -3:], outcome.state.memory)
    assert len({tuple(row) for row in models}) == 6
    sizes = np.array([1, 4, 2, 1, 4, 2])
    assert outcome.weights[-3:] == pytest.approx((sizes[:, None] * outcome.state.memory).sum(axis=0) / 14)


def test_one_round_of_fedper_averages_like_fpdgd():
    # All begin with the same output weights, so round 1 is that of FPDGD; from round 2 on the two part.
    clients = few()
    plain = list(simulate(Federation(learner=Pdgd(ranker=Mlp(hidden=3))), clients, 2))
    fedper = list(simulate(Federation(learner=FEDPER), clients, 2))
    assert fedper[0].weights == pytest.approx(plain[0].weights, rel=1e-5, abs=1e-6)
    assert np.abs(fedper[1].weights - plain[1].weights).max() > 1e-5


@pytest.mark.parametrize("server", sorted(SERVER_STEPS))
def test_the_server_step_leaves_personal_weights_alone(server):
    clients = few()
    state = list(simulate(Federation(learner=FEDPER), clients, 3))[-1].state
    one = federated_round(Federation(learner=FEDPER), state, clients, 1)
    step = SERVER_STEPS[server]()
    other = federated_round(
        Federation(learner=FEDPER, server=step), replace(state, server=step.first(len(state.weights))), clients, 1
    )
    assert np.array_equal(one.state.memory, other.state.memory)
    assert np.array_equal(one.weights[-3:], other.weights[-3:])


def test_without_personal_weights_everybody_has_the_global_model():
    clients = few()
    for learner in (Pdgd(), Pdgd(prox=0.1), SCAFFOLD):
        state = list(simulate(Federation(learner=learner), clients, 2))[-1].state
        assert np.array_equal(personal_models(learner, state, clients), np.tile(state.weights, (6, 1)))
    apart = list(simulate(Federation(aggregator=Apart()), clients, 2))[-1].state
    assert np.array_equal(personal_models(Pdgd(), apart, clients), apart.weights)


def test_scaffold_round_by_round():
    """The common control is the mean of all, and the server can follow it from messages alone."""
    clients = few(count=8, interactions=3)
    federation = Federation(learner=SCAFFOLD, participation=0.5)
    state, common = first_state(federation, clients, 1), np.zeros(5)
    for outcome in simulate(federation, clients, 8):
        present = taking_part(clients, 0.5, 1, outcome.round)
        arrived, controls = SCAFFOLD(
            state.weights, state.memory[present], clients.rows(present), Chance(1, outcome.round), common=common
        )
        assert np.array_equal(outcome.state.memory[present], controls)
        assert outcome.weights == pytest.approx(state.weights + arrived.updates.mean(axis=0), abs=1e-6)
        common = common + (arrived.updates.astype(float) / (3 * 0.1) - common).sum(axis=0) / 8
        assert outcome.state.memory.mean(axis=0) == pytest.approx(common, abs=1e-9)
        common = outcome.state.memory.mean(axis=0)  # the same but for the last bits, which must not add up here
        state = outcome.state
    assert np.abs(common).max() > 0
    assert outcome.bytes_down == 2 * outcome.bytes_up == 4 * 5 * 8


def test_scaffold_corrections_cancel_when_all_take_as_many_steps():
    clients = few(count=6, interactions=3, user="informational")
    state = list(simulate(Federation(learner=SCAFFOLD), clients, 3))[-1].state
    drifts = state.memory.mean(axis=0) - state.memory
    assert np.abs(drifts).max() > 1e-3
    assert drifts.sum(axis=0) == pytest.approx(np.zeros(5), abs=1e-12)
    zeros = federated_round(Federation(learner=SCAFFOLD), replace(state, memory=np.zeros((6, 5))), clients, 1)
    plain = federated_round(Federation(), replace(state, memory=None), clients, 1)
    corrected = federated_round(Federation(learner=SCAFFOLD), state, clients, 1)
    assert np.array_equal(zeros.weights, plain.weights)
    assert not np.array_equal(corrected.weights, plain.weights)


def test_clients_without_interactions_keep_their_memory():
    clients = few(interactions=[0, 3])
    for learner in (FEDPER, SCAFFOLD):
        one, two = (outcome.state.memory for outcome in simulate(Federation(learner=learner), clients, 2))
        assert np.array_equal(one[::2], two[::2])
        assert (one[1::2] != two[1::2]).any(axis=1).all()


def test_what_cannot_go_together_is_refused():
    for learner in (FEDPER, SCAFFOLD):
        with pytest.raises(ValueError, match='aggregator "mean"'):
            Federation(learner=learner, aggregator=Apart())
    with pytest.raises(ValueError, match="control = false"):
        Federation(learner=SCAFFOLD, attack=lambda arrived, malicious, rng: arrived)
    assert Federation(learner=FEDPER, attack=lambda arrived, malicious, rng: arrived)
    assert Federation(learner=Pdgd(prox=0.1), aggregator=Apart())
    assert Federation(learner=SCAFFOLD, aggregator=Mean(), server=Adam())


@dataclass(frozen=True)
class Counts:
    """Somebody else's learner: clients count their rounds."""

    ranker: Linear = field(default_factory=Linear)

    def __call__(self, start, memory, clients, chance, threads=1):
        arrived, _ = Pdgd(ranker=self.ranker)(start, None, clients, chance, threads)
        before = np.zeros((len(clients), 1)) if memory is None else memory
        return arrived, before + 1


@dataclass(frozen=True)
class CountsFrom(Counts):
    def first_memory(self, start, count):
        return np.full((count, 1), 100.0)


def test_learners_from_outside_may_remember_too(monkeypatch):
    clients = few(count=8)
    everybody = list(simulate(Federation(learner=Counts()), clients, 3))[-1].state
    assert everybody.memory.tolist() == [[3.0]] * 8
    last = list(simulate(Federation(learner=CountsFrom(), participation=0.5), clients, 6))[-1].state
    assert last.memory.sum() == 8 * 100 + 6 * 4
    monkeypatch.setattr(round_module, "CHUNK_BYTES", 40)
    chunked = list(simulate(Federation(learner=CountsFrom(), participation=0.5), clients, 6))[-1].state
    assert np.array_equal(chunked.memory, last.memory)
    with pytest.raises(RoundError, match="first_state"):
        federated_round(Federation(learner=Counts(), participation=0.5), State(0, np.zeros(5)), clients, 1)

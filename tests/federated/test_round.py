"""The round and the simulation around it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedrank.federated.backends as backends
from fedrank.federated.aggregators import AGGREGATORS, Apart, Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.partition import Own
from fedrank.federated.round import first_state, taking_part
from fedrank.federated.server import RoundError
from fedrank.federated.simulation import federated_round, simulate
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.types import NO_CORRECTION, Messages, has_trait
from tests.made_up import made_up_data


def arrivals(updates, sizes):
    updates = np.asarray(updates, dtype=np.float32)
    n = len(updates)
    return Messages(updates, np.asarray(sizes), np.arange(n), np.zeros(updates.shape[1]))


def test_mean_by_hand():
    arrived = arrivals([[1.0, 0.0], [4.0, 8.0]], [3, 1])
    assert Mean()(arrived).tolist() == [(3 * 1 + 1 * 4) / 4, (3 * 0 + 1 * 8) / 4]
    assert Mean(weighted=False)(arrived).tolist() == [2.5, 4.0]


def test_mean_of_nobody_is_no_change():
    assert Mean()(arrivals([[1.0], [2.0]], [0, 0])).tolist() == [0.0]


# Rules that remember, or ask for a trusted update, have tests of their own.
OTHERS = ("apart", "remembers", "trusted queries")


@pytest.mark.parametrize(
    "name", [name for name, kind in AGGREGATORS.items() if not any(has_trait(kind, o) for o in OTHERS)]
)
def test_aggregators_ignore_the_order_of_clients_and_believe_agreement(name):
    rule = AGGREGATORS[name]()
    rng = np.random.default_rng(1)
    updates, sizes = rng.standard_normal((11, 4)), rng.integers(1, 9, 11)  # as few as Bulyan can do with
    order = rng.permutation(11)
    assert rule(arrivals(updates[order], sizes[order])) == pytest.approx(rule(arrivals(updates, sizes)))
    agreed = np.tile(updates[:1], (11, 1))
    assert rule(arrivals(agreed, sizes)) == pytest.approx(updates[0], rel=1e-6)


def test_a_round_is_what_the_paper_says():
    data = made_up_data()
    clients = make_clients(data, 3, interactions=[1, 2, 5])
    federation = Federation()
    state = replace(first_state(federation, clients, 1)[0], weights=np.full(5, 0.25))
    outcome = federated_round(federation, state, clients, seed=1)
    from fedrank.seeds import Chance

    arrived = Pdgd()(state.weights, clients, Chance(1, 1))
    models = state.weights + arrived.updates
    assert outcome.weights == pytest.approx((1 * models[0] + 2 * models[1] + 5 * models[2]) / 8)
    assert outcome.interactions == 8
    assert outcome.bytes_up == outcome.bytes_down == 3 * 5 * 4
    assert outcome.online == pytest.approx(arrived.observed.online.mean())


def test_simulation_is_the_same_for_any_threads_chunks_and_resumption(monkeypatch):
    data = made_up_data(queries=40)
    clients = make_clients(data, 600, interactions=3)
    federation = Federation(participation=0.5)
    whole = list(simulate(federation, clients, 6, seed=3))
    threaded = list(simulate(federation, clients, 6, seed=3, threads=3))
    resumed = list(simulate(federation, clients, 6, seed=3, state=whole[2].state))
    assert np.array_equal(whole[-1].weights, threaded[-1].weights)
    assert np.array_equal(whole[-1].weights, resumed[-1].weights)
    assert [one.online for one in whole] == [one.online for one in threaded]
    monkeypatch.setattr(backends, "CHUNK_BYTES", 40 * 20)
    chunked = list(simulate(federation, clients, 6, seed=3))
    assert chunked[-1].weights == pytest.approx(whole[-1].weights, rel=1e-12)
    assert [one.online for one in chunked] == pytest.approx([one.online for one in whole])


def test_another_seed_gives_another_run():
    data = made_up_data()
    clients = make_clients(data, 5)
    one = list(simulate(Federation(), clients, 3, seed=1))[-1].weights
    two = list(simulate(Federation(), clients, 3, seed=2))[-1].weights
    assert not np.allclose(one, two)


def test_participation_draws_a_share_anew_each_round():
    data = made_up_data()
    clients = make_clients(data, 10)
    rounds = [tuple(taking_part(len(clients), 0.3, 1, r)) for r in range(1, 200)]
    assert {len(present) for present in rounds} == {3}
    counts = np.bincount(np.concatenate(rounds), minlength=10)
    assert counts.min() > 0.6 * counts.mean()
    assert counts.max() < 1.4 * counts.mean()
    assert len(taking_part(len(clients), 0.001, 1, 1)) == 1
    assert len(taking_part(len(clients), 1.0, 1, 1)) == 10


def test_apart_keeps_one_model_per_client():
    data = made_up_data(queries=20)
    clients = make_clients(data, 4, partition=Own())
    last = list(simulate(Federation(aggregator=Apart()), clients, 5))[-1]
    assert last.weights.shape == (4, 5)
    assert len({tuple(row) for row in last.weights}) == 4
    assert last.bytes_up == 0


def test_one_client_without_federation_is_pdgd():
    data = made_up_data()
    one = make_clients(data, 1, interactions=7)
    together = list(simulate(Federation(), one, 4, seed=2))[-1].weights
    apart = list(simulate(Federation(aggregator=Apart()), one, 4, seed=2))[-1].weights
    assert together == pytest.approx(apart[0], abs=1e-6)


def test_warm_start_goes_on_from_a_model():
    data = made_up_data()
    clients = make_clients(data, 2)
    start = np.arange(5.0)
    first = next(simulate(Federation(), clients, 1, start=start))
    assert np.abs(first.weights - start).max() < 1.0
    with pytest.raises(ValueError, match="4 parameters"):
        next(simulate(Federation(), clients, 1, start=np.zeros(4)))


@pytest.mark.parametrize("ranker", [Linear(), Mlp(hidden=3)])
def test_an_update_that_is_not_finite_names_round_and_client(ranker):
    @dataclass(frozen=True)
    class Diverges:
        ranker: object

        def __call__(self, start, simulated, chance, correction=NO_CORRECTION, threads=1):
            learned = Pdgd(ranker=self.ranker)(start, simulated, chance, correction, threads)
            if chance.round == 2:
                learned.updates[simulated.ids == 1, 0] = np.nan
            return learned

    data = made_up_data()
    clients = make_clients(data, 3)
    outcomes = list(simulate(Federation(learner=Diverges(ranker)), clients, 3))
    assert [outcome.excluded for outcome in outcomes] == [(), (1,), ()]
    assert np.isfinite(outcomes[-1].weights).all()
    # The others go on as if it had not been there.
    [without] = simulate(Federation(learner=Pdgd(ranker=ranker)), clients.rows([0, 2]), 2, state=outcomes[0].state)
    np.testing.assert_array_equal(outcomes[1].weights, without.weights)
    with pytest.raises(RoundError, match="round 2, client 1: the update is not finite") as caught:
        list(simulate(Federation(learner=Diverges(ranker)), clients.rows([1]), 5))
    assert (caught.value.round, caught.value.client) == (2, 1)


def test_a_rule_that_needs_too_much_memory_says_so_first(monkeypatch):
    monkeypatch.setattr(backends, "MAX_ROUND", 100)

    @dataclass(frozen=True)
    class Median:
        def __call__(self, arrived):
            return np.median(arrived.updates, axis=0)

    data = made_up_data()
    with pytest.raises(RoundError, match="needs all 50 updates in memory"):
        next(simulate(Federation(aggregator=Median()), make_clients(data, 50), 1))


def test_clients_that_do_not_search_do_not_count():
    data = made_up_data()
    busy = make_clients(data, 4, interactions=[5, 0, 0, 0])
    alone = make_clients(data, 1, interactions=5)
    assert next(simulate(Federation(), busy, 1)).online == next(simulate(Federation(), alone, 1)).online


def test_apart_refuses_servers_that_would_move_absent_clients():
    from fedrank.federated.server_optimizers import Momentum

    with pytest.raises(ValueError, match='only the server step "add"'):
        Federation(aggregator=Apart(), server=Momentum())


@pytest.mark.parametrize("shape", [(4,), (6,), (2, 5)])
def test_a_state_of_other_weights_is_refused(shape):
    some = make_clients(made_up_data(features=5), count=2)
    state, _ = first_state(Federation(), some, 1)
    other = replace(state, weights=np.zeros(shape))
    with pytest.raises(ValueError, match=r"the state has weights of shape .*, but Linear on 5 features needs \(5,\)"):
        federated_round(Federation(), other, some, 1)
    with pytest.raises(ValueError, match=r"needs \(5,\)"):
        next(simulate(Federation(), some, 3, state=other))

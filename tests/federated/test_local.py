"""Local methods against the slow, obvious versions: FedProx, FedPer, SCAFFOLD."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedrank.federated.client import steps_of
from fedrank.federated.clients import make_clients
from fedrank.federated.local import LOCAL_STEPS, FedPer, FedProx, Scaffold
from fedrank.federated.partition import Own
from fedrank.kernels.chance import stream, uniform
from fedrank.ranking.click_models import ClickModel
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear, Mlp, Relu
from fedrank.seeds import Chance
from fedrank.types import LocalCorrection, Messages
from tests.made_up import made_up_data
from tests.oracles import pdgd as oracle

SILENT = ClickModel((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
KEY = Chance(5, 9).key("learn")


def few_clients(interactions=(1, 6, 0, 3), features=7):
    data = made_up_data(features=features)
    users = ["perfect", "informational"]
    return data, make_clients(data, 4, click_model=users, interactions=interactions, partition=Own(), seed=3)


def as_sent(weights):
    return weights.astype(np.float32).astype(float)


def bent(local, learner, start, memory, clients, chance, common=None, threads=1):
    """(what was learned, what clients keep)."""
    correction = local.correction(memory, common)
    learned = learner(start, clients, chance, correction, threads)
    return learned, local.remember(memory, correction, learned, steps_of(learner, clients.interactions))


@pytest.mark.parametrize("strength", [0.001, 1.0, 10.0])
@pytest.mark.parametrize("ranker", [Linear(start_norm=0.5), Mlp(hidden=6)])
def test_fedprox_equals_the_oracle(ranker, strength):
    data, clients = few_clients()
    start, local, learner = as_sent(ranker.first(7, np.random.default_rng(2))), FedProx(strength), Pdgd(ranker=ranker)
    plain = learner(start, clients, Chance(5, 9))
    learned, memory = bent(local, learner, start, local.first(ranker, start, 4), clients, Chance(5, 9))
    for c in range(4):
        expected = oracle.client_update(start, ranker.hidden, 0.1, False, data, clients, c, KEY, prox=strength)
        assert learned.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
    assert memory is None
    assert not np.array_equal(learned.updates[1], plain.updates[1])
    assert np.array_equal(learned.updates[0], plain.updates[0]), "the first step begins at the global model"


def test_the_strongest_pull_undoes_all_earlier_steps():
    # rate x strength = 1. A query with one document has no pair: after such a step the client is where it started.
    data = made_up_data()
    pool, client = make_clients(data, 1).queries, np.uint64(stream(Chance(1, 1).key("learn"), 0))
    back = []
    for steps in range(1, 12):
        query = pool[int(uniform(np.uint64(stream(client, steps - 1)), 0) * len(pool))]
        clients = make_clients(data, 1, interactions=steps)
        learned = Pdgd(rate=0.5)(np.ones(5), clients, Chance(1, 1), FedProx(2.0).correction(None, None))
        if data.offsets[query + 1] - data.offsets[query] == 1:
            back.append(steps)
            assert not learned.updates.any()
    assert max(back, default=0) > 1, "no such query was drawn; choose another round"
    assert learned.updates.any()


def test_a_stronger_pull_keeps_clients_closer():
    _, clients = few_clients(interactions=200)
    lengths = [
        np.linalg.norm(Pdgd()(np.zeros(7), clients, Chance(1, 1), LocalCorrection(pull)).updates, axis=1)
        for pull in (0.0, 1.0, 10.0)
    ]
    for weaker, stronger in itertools.pairwise(lengths):
        assert (stronger < weaker).all()
    assert (lengths[-1] < 0.1 * lengths[0]).all()


@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan"), float("inf")])
def test_a_pull_that_cannot_be_is_refused(strength):
    for kind in (FedProx, FedPer) if strength else (FedProx,):
        with pytest.raises(ValueError, match=rf"strength must be .*\(got {strength}\)"):
            kind(strength)


@pytest.mark.parametrize("ranker", [Mlp(hidden=6), Relu(units=6, start="normal")])
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_fedper_keeps_the_output_weights_with_the_client(ranker, strength):
    data, clients = few_clients()
    rng = np.random.default_rng(2)
    start = as_sent(ranker.first(7, rng))
    memory = rng.standard_normal((4, 6))
    before = memory.copy(), start.copy()
    learned, kept = bent(FedPer(strength), Pdgd(ranker=ranker, rate=0.3), start, memory, clients, Chance(5, 9))
    assert np.array_equal(memory, before[0])
    assert np.array_equal(start, before[1])
    assert not learned.updates[:, -6:].any(), "they do not travel"
    assert np.array_equal(kept[2], memory[2]), "client 2 did not search"
    if ranker.hidden > 0:
        pull = np.repeat([strength, 0.0], [6 * 8, 6])  # personal weights have no global model to return to
        for c in range(4):
            own = np.concatenate([start[:-6], memory[c]])
            expected = oracle.client_update(own, 6, 0.3, False, data, clients, c, KEY, prox=pull)
            assert learned.updates[c, :-6] == pytest.approx(expected[:-6], rel=2e-4, abs=1e-6)
            assert kept[c] - memory[c] == pytest.approx(expected[-6:], rel=2e-4, abs=1e-6)


def test_fedper_begins_with_the_output_weights_of_the_first_model():
    start = np.arange(36.0)
    first = FedPer().first(Mlp(hidden=4), start, 3)
    assert np.array_equal(first, np.tile(start[-4:], (3, 1)))
    assert not np.shares_memory(first, start)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ranker", [Linear(), Mlp(hidden=6)])
def test_scaffold_equals_the_oracle(ranker, batch):
    data, clients = few_clients()
    rng = np.random.default_rng(2)
    start = as_sent(ranker.first(7, rng))
    controls = 0.05 * rng.standard_normal((4, len(start)))
    common = (0.05 * rng.standard_normal(len(start))).astype(np.float32)
    learner = Pdgd(ranker=ranker, rate=0.3, batch=batch)
    learned, after = bent(Scaffold(), learner, start, controls, clients, Chance(5, 9), common)
    for c, steps in enumerate([1, 6, 0, 3]):
        update = oracle.client_update(
            start, ranker.hidden, 0.3, batch, data, clients, c, KEY, control=controls[c], common=common
        )
        assert learned.updates[c] == pytest.approx(update, rel=2e-4, abs=1e-6)
        expected = controls[c] - common + update / (steps * 0.3) if steps else controls[c]
        assert after[c] == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_server_knows_how_controls_move_from_messages_alone():
    _, clients = few_clients()
    rng = np.random.default_rng(2)
    controls = 0.05 * rng.standard_normal((4, 7))
    common = controls.mean(axis=0)
    learner, start = Pdgd(rate=0.3), np.zeros(7)
    learned, after = bent(Scaffold(), learner, start, controls, clients, Chance(5, 9), common.astype(np.float32))
    messages = Messages(learned.updates, clients.interactions, clients.ids, start, 1)
    move = Scaffold().common_move(common, messages, learner.rate, 4)
    assert common + move == pytest.approx(after.mean(axis=0), abs=1e-7)
    assert np.abs(move).max() > 1e-3
    nobody = Scaffold().common_move(common, messages.rows(slice(2, 3)), learner.rate, 4)
    assert not nobody.any(), "client 2 did not search"


def test_scaffold_by_hand_where_nobody_clicks():
    clients = make_clients(made_up_data(features=1), 2, click_model=SILENT, interactions=[2, 3])
    controls, common = np.array([[1.0], [5.0]]), np.array([3.0], dtype=np.float32)
    learned, after = bent(Scaffold(), Pdgd(rate=0.5), np.zeros(1), controls, clients, Chance(1, 1), common)
    # Steps of rate x (0 - control + mean control), and all gradients were 0.
    assert learned.updates.tolist() == [[2 * 0.5 * (3 - 1)], [3 * 0.5 * (3 - 5)]]
    assert after.tolist() == [[0.0], [0.0]]


def test_without_controls_yet_scaffold_is_plain_pdgd():
    _, clients = few_clients(interactions=(1, 6, 3, 3))
    start, local = np.zeros(7), Scaffold()
    plain = Pdgd()(start, clients, Chance(1, 1))
    common = local.first_common(7).astype(np.float32)
    first, controls = bent(local, Pdgd(), start, local.first(Linear(), start, 4), clients, Chance(1, 1), common)
    assert np.array_equal(plain.updates, first.updates)
    for c, steps in enumerate([1, 6, 3, 3]):
        assert controls[c] == pytest.approx(plain.updates[c] / (steps * 0.1))


@pytest.mark.parametrize("local", [kind() for kind in LOCAL_STEPS.values()], ids=str)
def test_threads_and_selection_change_nothing_that_is_remembered(local):
    learner = Pdgd(ranker=Mlp(hidden=3))
    clients = make_clients(made_up_data(queries=30), 400, interactions=[3, 7])
    start = learner.ranker.first(5, np.random.default_rng(1))
    memory = local.first(learner.ranker, start, 400)
    if memory is not None:
        memory += np.random.default_rng(2).normal(0, 0.1, memory.shape)
    common = np.full(len(start), 0.01, dtype=np.float32)
    one, kept = bent(local, learner, start, memory, clients, Chance(1, 1), common)
    three, also = bent(local, learner, start, memory, clients, Chance(1, 1), common, threads=3)
    chosen = np.array([7, 100])
    rows = None if memory is None else memory[chosen]
    some, few = bent(local, learner, start, rows, clients.rows(chosen), Chance(1, 1), common)
    assert np.array_equal(one.updates, three.updates)
    assert np.array_equal(one.updates[chosen], some.updates)
    assert one.updates.any()
    if memory is not None:
        assert np.array_equal(kept, also)
        assert np.array_equal(kept[chosen], few)
        assert not np.array_equal(kept, memory)

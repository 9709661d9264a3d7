"""Learners against the slow, obvious versions."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.federate.clients import make_clients
from fedrank.federate.partition import Own
from fedrank.kernels import clicks as click_kernel
from fedrank.kernels.chance import stream
from fedrank.rank.learners import LambdaRank, Pdgd
from fedrank.rank.rankers import Linear, Mlp
from fedrank.rank.users import USERS
from fedrank.seeds import Chance
from tests.made_up import made_up_data
from tests.oracles import pdgd as oracle


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("ranker", [Linear(), Linear(start_norm=0.5), Mlp(hidden=6)])
@pytest.mark.parametrize("user", ["perfect", "informational", "position-1"])
def test_updates_equal_the_oracle(ranker, batch, user):
    data = made_up_data(features=7)
    clients = make_clients(data, 4, user=[user, "navigational"], interactions=[1, 6], partition=Own(), seed=3)
    learner = Pdgd(ranker=ranker, rate=0.3, batch=batch)
    start = ranker.first(7, np.random.default_rng(2)).astype(np.float32).astype(float)
    chance = Chance(5, 9)
    arrived, _ = learner(start, None, clients, chance)
    for c in range(len(clients)):
        expected = oracle.client_update(start, ranker.hidden, 0.3, batch, data, clients, c, chance.key("learn"))
        assert arrived.updates[c] == pytest.approx(expected, rel=2e-4, abs=1e-6)
    assert arrived.sizes.tolist() == [1, 6, 1, 6]
    assert np.abs(arrived.updates).max() > 0


def test_a_client_may_have_its_own_start():
    data = made_up_data()
    clients = make_clients(data, 3, interactions=4)
    starts = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32).astype(float)
    together, _ = Pdgd()(starts, None, clients, Chance(1, 1))
    for c in range(3):
        alone, _ = Pdgd()(starts[c], None, clients.rows(slice(c, c + 1)), Chance(1, 1))
        assert np.array_equal(together.updates[c], alone.updates[0])


def test_threads_and_selection_change_nothing():
    data = made_up_data(queries=30)
    clients = make_clients(data, 400, interactions=5)
    one, _ = Pdgd()(np.zeros(5), None, clients, Chance(1, 1), threads=1)
    three, _ = Pdgd()(np.zeros(5), None, clients, Chance(1, 1), threads=3)
    some, _ = Pdgd()(np.zeros(5), None, clients.rows(np.array([7, 100])), Chance(1, 1))
    assert np.array_equal(one.updates, three.updates)
    assert np.array_equal(one.online, three.online)
    assert np.array_equal(one.updates[[7, 100]], some.updates)


def test_a_user_drawn_at_every_interaction():
    data = made_up_data()
    clients = make_clients(data, 1, user=["perfect", "poison"], interactions=200)
    mixed = clients.rows(slice(None))
    mixed.user[:] = -1
    arrived, _ = Pdgd(batch=True)(np.zeros(5), None, mixed, Chance(1, 1))
    expected = oracle.client_update(np.zeros(5), 0, 0.1, True, data, mixed, 0, Chance(1, 1).key("learn"))
    assert arrived.updates[0] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_no_click_no_update():
    data = made_up_data()
    silent = [level * 0.0 for level in range(3)]
    from fedrank.rank.users import User

    clients = make_clients(data, 2, user=User(tuple(silent), tuple(silent)), interactions=50)
    arrived, _ = Pdgd()(np.zeros(5), None, clients, Chance(1, 1))
    assert not arrived.updates.any()


@pytest.mark.parametrize("levels", [2, 3, 5])
@pytest.mark.parametrize("name", sorted(USERS))
def test_click_frequencies_follow_the_tables(name, levels):
    user = USERS[name][levels]
    attention = user.attention
    grades = (np.arange(10) % levels).astype(np.int8)
    shown = np.arange(10)
    click, stop = np.array(user.click), np.array(user.stop)
    runs, counts = 20_000, np.zeros(10)
    clicked = np.empty(10, dtype=np.bool_)
    for i in range(runs):
        click_kernel.read_and_click(
            grades, shown, 10, click, stop, attention, np.uint64(stream(np.uint64(1), i)), 2, clicked
        )
        counts += clicked
    reading, expected = 1.0, []
    for i in range(10):
        p = click[grades[i]] * attention[i]
        expected.append(reading * p)
        reading *= 1 - p * stop[grades[i]]
    error = np.sqrt(np.array(expected) * (1 - np.array(expected)) / runs)
    assert (np.abs(counts / runs - expected) <= 5.5 * error + 1e-12).all()


def test_considered_positions_end_after_the_last_click():
    clicked = np.empty(10, dtype=np.bool_)
    always, never = np.ones(10), np.zeros(3)
    click = np.array([0.0, 0.0, 1.0])  # only grade 2 is clicked, surely
    for grades, expected in (([0, 0, 2, 0, 0], 4), ([2, 2, 2], 3), ([0, 0], 0), ([0, 2], 2), ([2], 1)):
        shown = np.arange(len(grades))
        considered = click_kernel.read_and_click(
            np.array(grades, dtype=np.int8), shown, len(shown), click, never, always, np.uint64(3), 2, clicked
        )
        assert considered == expected


@pytest.mark.parametrize("learner", [Pdgd(), Pdgd(ranker=Mlp(hidden=8)), LambdaRank()])
def test_learning_beats_the_start(learner):
    data = made_up_data(queries=60, seed=4)
    clients = make_clients(data, 1, interactions=3000)
    start = learner.ranker.first(5, np.random.default_rng(1))
    arrived, _ = learner(start, None, clients, Chance(1, 1))
    grades = data.grades.astype(float)
    before = np.corrcoef(learner.ranker.score(start + 1e-9, data.features) + 1e-9 * np.arange(data.documents), grades)[
        0, 1
    ]
    after = np.corrcoef(learner.ranker.score(start + arrived.updates[0], data.features), grades)[0, 1]
    assert after > 0.7
    assert after > before + 0.1


def test_a_million_perfect_updates_stay_sound():
    data = made_up_data(queries=20, seed=2)
    clients = make_clients(data, 1, interactions=1_000_000)
    arrived, _ = Pdgd(rate=5.0)(np.zeros(5), None, clients, Chance(1, 1))
    assert np.isfinite(arrived.updates).all()
    scores = Linear().score(arrived.updates[0].astype(float), data.features)
    assert np.corrcoef(scores, data.grades)[0, 1] > 0.7


def test_lambdas_by_hand():
    from fedrank.kernels.lambdarank import lambdas

    # Two documents, the relevant one second: lambda = sigmoid(-(0 - 1)) x (1 - 1/log2 3) x (2^1 - 2^0) / ideal 1.
    scales = np.empty(2)
    lambdas(np.array([1.0, 0.0], np.float32), np.array([0, 1], np.int8), 2, np.array([0, 1]), 1.0, scales)
    pull = (1 - 1 / np.log2(3)) / (1 + np.exp(-1.0))
    assert scales == pytest.approx([-pull, pull])


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_a_useless_rate_is_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        Pdgd(rate=rate)

"""Rounds without a server: against a slow version, by hand, and what such a round promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.attacks.poison import Adaptive, Lie, PoisonedClicks, SignFlip
from fedrank.federated.aggregators import Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.gossip import RankGuardStyle, attacked, peers_of
from fedrank.federated.partition import Own
from fedrank.federated.round import first_state
from fedrank.federated.simulation import federated_round, simulate
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.types import Messages, Peers
from tests.made_up import made_up_data
from tests.oracles import gossip as oracle

DATA = made_up_data(queries=40, features=5, longest=14)
PLAIN = RankGuardStyle(searches=0)


def clients(count=6, malicious=0, **rest):
    return make_clients(DATA, count, interactions=4, malicious=malicious, **rest)


def some_messages(n=6, lists=8, positions=10, features=3, seed=1, round=1):
    rng = np.random.default_rng(seed)
    updates, own = rng.standard_normal((2, n, features)).astype(np.float32)
    shown = rng.integers(1, positions + 1, (n, lists))
    there = np.arange(positions) < shown[..., None]
    clicked = (rng.random((n, lists, positions)) < 0.4) & there
    table = np.where(there[..., None], rng.integers(-2, 3, (n, lists, positions, features)), 0).astype(np.float32)
    peers = Peers(own, table, shown, clicked, Linear())
    return Messages(updates, np.ones(n, np.int64), np.arange(n), np.zeros((n, features)), round, peers=peers)


@pytest.mark.parametrize("neighbours", [0, 1, 3])
@pytest.mark.parametrize(("errors", "eta"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.0)])
def test_a_round_equals_the_slow_version(neighbours, errors, eta):
    for seed in range(4):
        messages = some_messages(seed=seed, round=seed + 1)
        messages = replace(messages, weights=np.random.default_rng(seed).standard_normal(messages.weights.shape))
        peers = messages.peers
        histories = [
            list(zip(*one, strict=True)) for one in zip(peers.features, peers.shown, peers.clicked, strict=True)
        ]
        own, sent = messages.weights + peers.own, messages.weights + messages.updates
        expected = oracle.gossip(own, sent, histories, seed + 1, neighbours or 5, eta, errors)
        rule = RankGuardStyle(8, errors, eta, neighbours)
        found = messages.weights + rule(messages)
        assert found == pytest.approx(np.array(expected), abs=1e-12)
        # The same models, relative to another start for all.
        moved = replace(
            messages,
            updates=sent.astype(np.float32),
            weights=np.zeros(3),
            peers=peers._replace(own=own.astype(np.float32)),
        )
        assert rule(moved) == pytest.approx(np.array(expected), abs=1e-5)


def test_a_model_that_ranks_clicked_results_higher_is_accepted_by_hand():
    """Two results with features 1 and 0, of which the lower one was clicked, on each of two lists."""
    table = np.array([[[[1.0], [0.0]]] * 2] * 2, dtype=np.float32)
    clicked = np.array([[[False, True]] * 2] * 2)
    peers = Peers(np.array([[1.0], [-3.0]], np.float32), table, np.full((2, 2), 2), clicked, Linear())
    messages = Messages(
        np.array([[1.0], [-3.0]], np.float32), np.ones(2), np.arange(2), np.zeros((2, 1)), 1, peers=peers
    )
    rule = RankGuardStyle(searches=2)
    # Client 0 ranks the clicked result second, client 1 first: 2 / log2(3) against 2; 2 is the weight of its position.
    values = rule.explained(np.array([[1.0], [-3.0]]), peers.rows(slice(0, 1)))
    assert values == pytest.approx(np.array([[2 / np.log2(3)] * 2, [2.0] * 2]))
    assert rule(messages).tolist() == [[(1 - 3) / 2], [-3.0]]
    # A tie keeps the order of the list, and equal models explain clicks equally well, which is not better.
    assert rule.explained(np.array([[0.0]]), peers.rows(slice(0, 1)))[0] == pytest.approx([2 / np.log2(3)] * 2)
    same = replace(messages, updates=np.full((2, 1), 0.5, np.float32), peers=peers._replace(own=peers.own))
    assert rule(replace(same, peers=peers._replace(own=same.updates))).tolist() == [[0.5], [0.5]]


def test_plain_gossip_with_all_others_is_the_mean():
    """Without checks and with equal numbers of interactions, all clients have the model of a federation."""
    some = clients(click_model="navigational")
    for one, other in zip(
        simulate(Federation(aggregator=PLAIN), some, 5),
        simulate(Federation(aggregator=Mean()), some, 5),
        strict=True,
    ):
        assert one.state.weights == pytest.approx(np.tile(other.weights, (6, 1)), abs=1e-6)
        assert (one.online, one.interactions) == (pytest.approx(other.online), other.interactions)
        assert one.bytes_up == one.bytes_down == 6 * 5 * 4 * 5


def test_in_a_ring_every_client_receives_so_many_and_in_time_from_all():
    rule = RankGuardStyle(neighbours=2)
    seen = {row: set() for row in range(6)}
    for round in range(1, 6):
        heard = []
        for row in range(6):
            senders = rule._senders(row, 6, round).tolist()
            assert len(set(senders)) == 2
            assert row not in senders
            assert sorted(senders) == sorted(oracle.senders(row, 6, round, 2))
            seen[row] |= set(senders)
            heard += senders
        assert sorted(heard) == sorted(2 * list(range(6))), "every client is heard equally often"
    assert all(len(others) == 5 for others in seen.values())
    assert rule._senders(0, 6, 1).tolist() == [1, 2]
    assert rule._senders(0, 6, 2).tolist() == [3, 4]
    assert rule._senders(0, 1, 1).tolist() == []


def test_histories_are_keyed_by_seed_round_and_client_and_nothing_else():
    some, rule, start = (
        clients(partition=Own(), click_model="navigational"),
        RankGuardStyle(searches=4),
        np.zeros((6, 5)),
    )

    def peers(which=slice(None), seed=1, round=1):
        here = some.rows(which)
        updates = np.zeros((len(here), 5), np.float32)
        return peers_of(
            rule, Pdgd(), Messages(updates, here.interactions, here.ids, start[: len(here)], round), here, seed
        )

    whole = peers()
    for name in ("features", "shown", "clicked"):
        column = getattr(whole, name)
        assert np.array_equal(column, getattr(peers(), name))
        assert np.array_equal(column[2:4], getattr(peers(slice(2, 4)), name))
    for other in (peers(seed=2), peers(round=2)):
        assert not np.array_equal(whole.features, other.features)
    # Results are those of queries of the client, and only results that were shown have features or clicks.
    for row, pool in enumerate(some.pool):
        mine = some.queries[some.pools[pool] : some.pools[pool + 1]]
        documents = np.concatenate([DATA.features[DATA.offsets[q] : DATA.offsets[q + 1]] for q in mine])
        rows = {one.tobytes() for one in documents}
        for number, shown in enumerate(whole.shown[row]):
            assert {one.tobytes() for one in whole.features[row, number, :shown]} <= rows
            assert not whole.features[row, number, shown:].any()
            assert not whole.clicked[row, number, shown:].any()
    assert whole.clicked.any()


@pytest.mark.parametrize("attack", [SignFlip(5.0), Lie(z=1.0), PoisonedClicks()], ids=str)
def test_an_attack_changes_what_is_sent_and_not_the_attackers_own_model(attack):
    messages = some_messages()
    messages = replace(messages, weights=np.random.default_rng(3).standard_normal((6, 3)))
    messages = replace(messages, peers=messages.peers._replace(own=messages.updates))
    before = messages.updates.copy()
    malicious = np.arange(6) < 2
    after = attacked(attack, messages, malicious, np.random.default_rng(1))
    assert np.array_equal(after.updates[2:], before[2:])
    assert np.array_equal(after.peers.own, before)
    assert np.array_equal(messages.updates, before)
    if isinstance(attack, SignFlip):  # relative to the mean of all models before the round
        middle = messages.weights.mean(axis=0)
        sent = (messages.weights + after.updates)[:2]
        assert sent == pytest.approx(middle - 5 * ((messages.weights + before)[:2] - middle), abs=1e-5)
    if isinstance(attack, PoisonedClicks):
        assert after.updates == pytest.approx(before, abs=1e-6)


def test_the_adaptive_attack_runs_the_rule_with_the_clicks_of_all_clients():
    """All click what the mean of honest models ranks first, so a reversed mean is never accepted."""
    messages = some_messages(8, lists=20)
    messages = replace(messages, weights=np.zeros((8, 3)), peers=messages.peers._replace(own=messages.updates))
    mean = messages.updates[2:].mean(axis=0)
    scores = np.where(np.arange(10) < messages.peers.shown[..., None], messages.peers.features @ mean, -np.inf)
    clicked = scores.argmax(axis=2)[..., None] == np.arange(10)
    messages = replace(messages, peers=messages.peers._replace(clicked=clicked))
    found = {}
    for rule in (RankGuardStyle(searches=20), PLAIN):
        sent = attacked(Adaptive(rule), messages, np.arange(8) < 2, np.random.default_rng(1)).updates[0]
        found[rule] = float(sent @ mean / (mean @ mean))
        assert sent == pytest.approx(found[rule] * mean, abs=1e-5)
    assert found[PLAIN] == pytest.approx(-9), "without checks, the longest perturbation does most harm"
    assert 0 < found[RankGuardStyle(searches=20)] < 1


def test_honest_clients_keep_their_models_and_only_these_are_evaluated():
    data = made_up_data(queries=60, features=5, longest=14, seed=3)
    some = make_clients(data, 10, interactions=4, malicious=3, partition=Own())
    quality = {}
    for name, rule, attack in (
        ("peaceful", RankGuardStyle(), None),
        ("checked", RankGuardStyle(), SignFlip(20.0)),
        ("plain", PLAIN, SignFlip(20.0)),
    ):
        *_, last = simulate(Federation(aggregator=rule, attack=attack), some, 30)
        assert last.weights.shape == (7, 5)
        assert np.array_equal(last.weights, last.state.weights[3:])
        quality[name] = Evaluator(data, ["ndcg@10"])(last.weights, Linear()).mean()
    assert quality["checked"] > quality["plain"] + 0.1
    assert quality["checked"] > quality["peaceful"] - 0.05


def test_a_model_with_a_good_order_is_not_believed_to_any_length():
    """An order does not show how long a linear model is: without a bound, one long model would be the mean."""
    rng = np.random.default_rng(2)
    messages = some_messages(8, lists=20)
    own = (1 + 0.1 * rng.standard_normal((8, 3))).astype(np.float32)
    scores = np.where(np.arange(10) < messages.peers.shown[..., None], messages.peers.features.sum(axis=3), -np.inf)
    peers = messages.peers._replace(own=own, clicked=scores.argmax(axis=2)[..., None] == np.arange(10))
    sent = own.copy()
    sent[0] = 1e6  # the order that all click, a million times as long
    found = RankGuardStyle(searches=20, errors=0.0)(
        replace(messages, updates=sent, weights=np.zeros((8, 3)), peers=peers)
    )
    assert np.abs(found[1:] - own[1:]).max() < 0.5
    assert (found[1:] != own[1:]).any()
    plain = PLAIN(replace(messages, updates=sent, weights=np.zeros((8, 3)), peers=peers))
    assert plain[1:].min() > 1e5


def test_absent_clients_keep_their_models():
    some, federation = clients(), Federation(aggregator=RankGuardStyle(), participation=0.5)
    state, _ = first_state(federation, some, 1)
    after = federated_round(federation, state, some, 1)
    moved = (after.state.weights != 0).any(axis=1)
    assert moved.sum() == 3
    assert after.bytes_up == 3 * 2 * 4 * 5


def test_a_model_that_is_not_finite_is_ignored():
    some = clients(malicious=1)
    federation = Federation(aggregator=RankGuardStyle(), attack=SignFlip(3e38))
    state = replace(first_state(federation, some, 1)[0], weights=np.full((6, 5), 1e30))
    with np.errstate(over="ignore"):
        after = federated_round(federation, state, some, 1)
    assert after.excluded == (0,)
    assert np.isfinite(after.state.weights).all()


@pytest.mark.parametrize("learner", [Pdgd(), Pdgd(Mlp(hidden=3))], ids=str)
def test_a_run_is_the_same_for_any_threads_and_after_a_resumption(learner):
    some, federation = clients(partition=Own()), Federation(learner, RankGuardStyle(searches=3, neighbours=2))
    whole = list(simulate(federation, some, 4, 3))
    threaded = list(simulate(federation, some, 4, 3, threads=2))
    resumed = list(simulate(federation, some, 4, 3, state=whole[1].state))
    for other in (threaded, resumed):
        assert np.array_equal(whole[-1].state.weights, other[-1].state.weights)


def test_what_is_missing_or_impossible_is_said():
    with pytest.raises(ValueError, match="no clicks of clients, which rankguard-style needs"):
        RankGuardStyle()(replace(some_messages(), peers=None))
    organisations = make_clients(DATA, 2, interactions=4, people=2)
    with pytest.raises(ValueError, match="an organisation has no single click history"):
        next(iter(simulate(Federation(aggregator=RankGuardStyle()), organisations, 1)))
    with pytest.raises(ValueError, match="errors must be a finite number of at least 0"):
        RankGuardStyle(errors=-1.0)
    with pytest.raises(ValueError, match="searches must be at least 2"):
        RankGuardStyle(searches=1)

"""FOLtR-ES against its slow version, its law, and its promises."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from fedrank.data.ranking import RankingData
from fedrank.federated.aggregators import Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.partition import Own
from fedrank.federated.round import first_state
from fedrank.federated.server import RoundError
from fedrank.federated.server_optimizers import Adam
from fedrank.federated.simulation import federated_round, simulate
from fedrank.kernels.chance import standard_normals, stream
from fedrank.kernels.evolution import answer
from fedrank.kernels.show import best_first
from fedrank.privacy.accounting import ResponseEvent, epsilon
from fedrank.ranking.click_models import ClickModel
from fedrank.ranking.evolution import MESSAGE, Evolution, expected_rewards
from fedrank.ranking.measures import ranking
from fedrank.ranking.rankers import Linear, Relu
from fedrank.seeds import Chance
from fedrank.types import Messages, OwnChance
from tests import needs
from tests.made_up import made_up_data
from tests.oracles import evolution as oracle

CASES = [
    (Linear(), "max-rr", 1.0),
    (Linear(), "max-rr", 0.4),
    (Linear(), "dcg", 1.0),
    (Relu(units=4), "max-rr", 0.9),
]


@pytest.mark.parametrize(("ranker", "reward", "truth"), CASES)
def test_messages_updates_and_measures_equal_the_oracle(ranker, reward, truth):
    data = made_up_data(features=7)
    clients = make_clients(
        data,
        6,
        click_model=["perfect", "navigational", "informational"],
        interactions=[2, 5, 4],
        partition=Own(),
        seed=3,
    )
    learner = Evolution(ranker=ranker, deviation=0.3, reward=reward, truth=truth)
    start = np.random.default_rng(2).standard_normal(ranker.size(7)).astype(np.float32).astype(float)
    chance = Chance(5, 9)
    keys = chance.key("learn"), chance.key("noise"), chance.key("answer")
    arrived = learner(start, clients, chance)
    sent = []
    for c, message in enumerate(arrived.sent):
        (seed, plus, minus), true, online = oracle.client_round(
            start, ranker.hidden, 0.3, reward, truth, data, clients, c, keys
        )
        sent.append((seed, plus, minus))
        assert message["seed"] == seed
        assert (message["plus"], message["minus"]) == pytest.approx((plus, minus), rel=1e-6)
        assert arrived.observed.reward[c] == pytest.approx(true)
        assert arrived.observed.online[c] == pytest.approx(online)
    sizes = clients.interactions
    messages = Messages(arrived.updates, sizes, clients.ids, start)
    assert Mean(weighted=False)(messages) == pytest.approx(oracle.gradient(sent, len(start), 0.3), rel=1e-5, abs=1e-6)
    assert arrived.sent.dtype.itemsize == 8 + 4 + 4
    assert len(set(arrived.sent["plus"].tolist())) > 1


@pytest.mark.parametrize("ranker", [Linear(), Relu(units=4)])
def test_shared_chance_equals_the_published_way_of_drawing(ranker):
    data = made_up_data(queries=70, features=7)
    clients = make_clients(
        data,
        60,
        click_model=["perfect", "navigational", "informational"],
        interactions=[2, 5, 4],
        partition=Own(),
        seed=3,
    )
    learner = Evolution(ranker=ranker, deviation=0.3, chance="shared")
    start = np.random.default_rng(2).standard_normal(ranker.size(7)).astype(np.float32).astype(float)
    arrived = learner(start, clients, Chance(5, 9))
    for c, message in enumerate(arrived.sent):
        (seed, plus, minus), noise, true = oracle.shared_client_round(
            start, ranker.hidden, 0.3, data, clients, c, Chance(5, 9).key("noise")
        )
        assert message["seed"] == seed
        assert (message["plus"], message["minus"]) == pytest.approx((plus, minus), rel=1e-6)
        assert arrived.observed.reward[c] == pytest.approx(true)
        assert arrived.updates[c] == pytest.approx((plus - minus) * noise / (2 * 0.3), rel=1e-5, abs=1e-6)
    assert len(set(arrived.sent["plus"].tolist())) > 1
    assert np.array_equal(learner.read(arrived.sent, len(start)), arrived.updates)


def test_shared_chance_lets_noise_and_clicks_hang_together_and_independent_does_not():
    """Every list has one document, so nothing can be learned: a mean update that is not 0 comes from chance alone."""
    data = RankingData(
        np.zeros((32, 6), np.float32), np.zeros(32, np.int8), np.arange(33), np.arange(32).astype(str), top_grade=2
    )
    clients = make_clients(data, 20_000, click_model="informational", interactions=4)

    def farthest(chance):
        updates = Evolution(deviation=1.0, chance=chance)(np.zeros(6), clients, Chance(1, 1)).updates
        return np.abs(updates.mean(axis=0) / updates.std(axis=0) * math.sqrt(len(updates))).max()

    assert farthest("independent") < 4
    assert farthest("shared") > 10


def test_shared_chance_is_for_simulations_only():
    own = OwnChance(Chance(1, 1), 0)
    with pytest.raises(ValueError, match=r'is for simulations only, .*; use chance = "independent"'):
        Evolution(chance="shared").from_impressions(np.zeros(5, np.float32), [], own)


def test_a_user_drawn_at_every_interaction():
    data = made_up_data()
    clients = make_clients(data, 1, click_model=["perfect", "poison"], interactions=60)
    clients.click_model[:] = -1
    chance = Chance(1, 1)
    keys = chance.key("learn"), chance.key("noise"), chance.key("answer")
    arrived = Evolution()(np.zeros(5), clients, chance)
    _, true, _ = oracle.client_round(np.zeros(5), 0, 0.01, "max-rr", 1.0, data, clients, 0, keys)
    assert arrived.observed.reward[0] == pytest.approx(true)


@pytest.mark.parametrize("truth", [1.0, 0.5])
def test_messages_alone_rebuild_the_step_of_the_server(truth):
    data = made_up_data(queries=40)
    clients = make_clients(data, 200, interactions=4, click_model="informational")
    learner = Evolution(ranker=Relu(units=3), truth=truth)
    federation = Federation(learner=learner, server=Adam())
    state, _ = first_state(federation, clients, 1)
    outcome = federated_round(federation, state, clients, 1)
    arrived = learner(state.weights, clients, Chance(1, 1))
    updates = learner.read(np.frombuffer(arrived.sent.tobytes(), dtype=MESSAGE), state.weights.size)
    assert np.array_equal(updates, arrived.updates)
    change = np.dot(np.full(200, 4.0), updates.astype(np.float64)) / 800
    weights, _ = federation.server(state.weights, change, state.server)
    assert np.array_equal(weights, outcome.weights)
    assert outcome.bytes_up == 200 * 16
    assert outcome.reward == pytest.approx(arrived.observed.reward.mean())


def test_an_update_by_hand():
    noise = np.empty(3)
    standard_normals(np.uint64(77), noise)
    # (f+ - f-) e / (2 σ²) with e = σ z
    updates = Evolution(deviation=0.01).read(np.array([(77, 0.75, 0.25), (77, 0.5, 0.5)], dtype=MESSAGE), 3)
    assert updates[0] == pytest.approx((0.75 - 0.25) * (0.01 * noise) / (2 * 0.01**2), rel=1e-6)
    assert not updates[1].any()


@pytest.mark.parametrize("size", [100_000, 99_999])
def test_noise_is_standard_normal_and_independent(size):
    noise = np.empty(size)
    standard_normals(np.uint64(stream(np.uint64(1), size)), noise)
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    assert abs(stats.pearsonr(noise[:-1], noise[1:]).statistic) < 4 / math.sqrt(size)
    assert abs(stats.pearsonr(noise[:-1] ** 2, noise[1:] ** 2).statistic) < 4 / math.sqrt(size)
    assert abs(stats.kurtosis(noise)) < 5 * math.sqrt(24 / size)


def test_noise_of_different_clients_is_independent():
    clients = [np.empty(1) for _ in range(20_000)]
    for c, own in enumerate(clients):
        standard_normals(np.uint64(stream(np.uint64(9), c)), own)
    assert stats.kstest(np.concatenate(clients), "norm").pvalue > 1e-3


def test_randomised_answers_follow_their_law():
    draws, truth = 40_000, 0.4
    for rank in (0, 4, 10):
        counts = np.zeros(11)
        for i in range(draws):
            counts[answer(rank, truth, np.uint64(stream(np.uint64(rank), i)))] += 1
        expected = np.full(11, (1 - truth) / 10)
        expected[rank] = truth
        assert stats.chisquare(counts, draws * expected).pvalue > 1e-4


def test_lists_are_ranked_as_evaluation_ranks_them():
    rng = np.random.default_rng(1)
    for count in (1, 2, 9, 10, 11, 12, 41, 150):
        for levels in (1, 3, 1000):
            scores = rng.integers(levels, size=count).astype(np.float32) - 1  # many ties, and negative ones
            bits = scores.view(np.int32).reshape(-1, 1)
            shown = np.empty(10, dtype=np.int64)
            size = best_first(
                bits, count, np.empty_like(bits), np.empty(10, np.int32), np.empty(10, np.int32),
                np.empty(count + 1, np.int64), np.empty(count, np.int64), shown,
            )  # fmt: skip
            assert size == min(10, count)
            assert shown[:size].tolist() == ranking(scores, np.array([0, count]))[:size].tolist()


def test_reward_by_hand():
    # One query; the user clicks grade 1 surely and nothing else. Feature = -position, so the list is the file.
    def reward_with(grades, reward):
        data = RankingData(
            -np.arange(len(grades), dtype=np.float32)[:, None] - 1,
            np.array(grades, dtype=np.int8),
            np.array([0, len(grades)]),
            np.array(["q"]),
            top_grade=1,
        )
        clients = make_clients(data, 1, click_model=ClickModel((0.0, 1.0), (0.0, 0.0)), interactions=2)
        arrived = Evolution(deviation=1e-6, reward=reward)(np.array([1.0]), clients, Chance(1, 1))
        return arrived.observed.reward[0]

    assert reward_with([0, 0, 1, 1], "max-rr") == pytest.approx(1 / 3)
    assert reward_with([0, 0, 1, 1], "dcg") == pytest.approx(1 / math.log2(4) + 1 / math.log2(5))
    assert reward_with([0] * 10 + [1], "max-rr") == 0.0  # rank 11 is never shown
    assert reward_with([0] * 9 + [1], "max-rr") == pytest.approx(1 / 10)


def test_expected_reward_by_hand():
    # The list is the file: labels 0, 1, 1. P(click | label) = .2, .5; half of the clicks on label 1 are the last ones.
    data = RankingData(
        -np.arange(3, dtype=np.float32)[:, None] - 1, np.array([0, 1, 1], np.int8), np.array([0, 3]), np.array(["q"])
    )
    clients = make_clients(data, 2, click_model=ClickModel((0.2, 0.5, 0.0), (0.0, 0.5, 0.0)))
    first_click = 0.2 * 1 + 0.8 * 0.5 / 2 + 0.8 * 0.5 * 0.5 / 3
    assert expected_rewards(Evolution(), np.array([1.0]), clients) == pytest.approx([first_click])
    dcg = 0.2 + 0.5 / math.log2(3) + (1 - 0.5 * 0.5) * 0.5 / math.log2(4)
    assert expected_rewards(Evolution(reward="dcg"), np.array([1.0]), clients) == pytest.approx([dcg])


@pytest.mark.parametrize("reward", ["max-rr", "dcg"])
def test_expected_rewards_are_the_mean_of_simulated_ones(reward):
    data = made_up_data(queries=6, features=3, seed=4)
    models = ["navigational", ClickModel((0.1, 0.6, 0.9), (0.3, 0.2, 0.5), attention_decay=0.7)]
    weights = np.array([0.5, -1.0, 0.25])
    learner = Evolution(reward=reward, deviation=1e-9)
    for per, count in (("client", 2), ("interaction", 1)):
        clients = make_clients(data, count, click_model=models, click_model_per=per, interactions=60_000)
        expected = expected_rewards(learner, weights, clients)
        measured = learner(weights, clients, Chance(1, 1)).observed.reward.mean()
        assert expected.mean() == pytest.approx(measured, abs=0.006)  # about four standard errors
    apart = make_clients(data, 2, partition=Own(), interactions=2)
    assert expected_rewards(learner, weights, apart) is None


def test_threads_selection_and_own_starts_change_nothing():
    data = made_up_data(queries=30)
    clients = make_clients(data, 400, interactions=5)
    learner = Evolution(truth=0.5)
    starts = np.random.default_rng(1).standard_normal((400, 5)).astype(np.float32).astype(float)
    one = learner(starts, clients, Chance(1, 1), threads=1)
    three = learner(starts, clients, Chance(1, 1), threads=3)
    some = learner(starts[[7, 100]], clients.rows(np.array([7, 100])), Chance(1, 1))
    alone = learner(starts[7], clients.rows(np.array([7])), Chance(1, 1))
    parts = ([each.updates, *each.observed] for each in (one, three, some, alone))
    for whole, threaded, chosen, own in zip(*parts, strict=True):
        assert np.array_equal(whole, threaded)
        assert np.array_equal(whole[[7, 100]], chosen)
        assert np.array_equal(whole[7], own[0])


def test_the_seed_sent_tells_nothing_about_queries_and_clicks():
    """Another noise key changes seeds and updates' direction, and no query: with equal scores, no click either."""
    data = made_up_data(queries=30)
    data = RankingData(np.zeros_like(data.features), data.grades, data.offsets, data.query_ids, top_grade=2)
    clients = make_clients(data, 50, interactions=4)

    class OtherNoise(Chance):
        def key(self, purpose):
            return super().key("other" if purpose == "noise" else purpose)

    learner = Evolution()
    as_is, other = Chance(1, 1), OtherNoise(1, 1)
    one = learner(np.zeros(5), clients, as_is)
    two = learner(np.zeros(5), clients, other)
    assert np.array_equal(one.observed.reward, two.observed.reward)
    assert np.array_equal(one.observed.online, two.observed.online)
    assert not set(one.sent["seed"].tolist()) & set(two.sent["seed"].tolist())


def test_the_true_reward_is_recorded_however_it_is_reported():
    clients = make_clients(made_up_data(), 30, interactions=4)
    honest = Evolution()(np.zeros(5), clients, Chance(1, 1))
    private = Evolution(truth=0.2)(np.zeros(5), clients, Chance(1, 1))
    assert np.array_equal(honest.observed.reward, private.observed.reward)
    assert not np.array_equal(honest.updates, private.updates)


def test_an_odd_interaction_goes_to_the_plus_side():
    data = made_up_data()
    sure = ClickModel((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))  # every first result is clicked: reward 1
    never = ClickModel((0.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    clients = make_clients(data, 1, click_model=sure, interactions=3)
    assert Evolution()(np.zeros(5), clients, Chance(1, 1)).sent["plus"] == 1.0
    clients = make_clients(data, 2, click_model=[sure, never], interactions=3)
    sent = Evolution()(np.zeros(5), clients, Chance(1, 1)).sent
    assert sent[["plus", "minus"]].tolist() == [(1.0, 1.0), (0.0, 0.0)]
    # Sides told apart: with randomised answers the means are sums over 2 and over 1 of the eleven values.
    values = [0.0, *(1 / rank for rank in range(1, 11))]
    told = Evolution(truth=0.1)(np.zeros(5), make_clients(data, 40, interactions=3), Chance(1, 1)).sent
    assert all(min(abs(minus - v) for v in values) < 1e-6 for minus in told["minus"])
    assert any(min(abs(plus - v) for v in values) > 1e-3 for plus in told["plus"])


def test_one_search_is_refused_and_none_sends_nothing():
    data = made_up_data()
    with pytest.raises(ValueError, match="client 1 has one search per round"):
        Evolution()(np.zeros(5), make_clients(data, 2, interactions=[2, 1]), Chance(1, 1))
    arrived = Evolution()(np.zeros(5), make_clients(data, 2, interactions=[2, 0]), Chance(1, 1))
    assert not arrived.updates[1].any()
    assert (arrived.observed.reward[1], arrived.observed.online[1]) == (0.0, 0.0)


def test_scores_that_are_not_numbers_name_round_and_client():
    clients = make_clients(made_up_data(), 2, interactions=2)
    with pytest.raises(RoundError, match="round 1, client 0: the update is not finite"):
        next(simulate(Federation(learner=Evolution()), clients, 1, start=np.full(5, np.nan)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deviation": 0.0}, "deviation must be positive"),
        ({"deviation": float("nan")}, "deviation must be positive"),
        ({"truth": 1 / 11}, "truth must be above 1/11"),
        ({"truth": 1.1}, "truth must be above 1/11"),
        ({"truth": 0.5, "reward": "dcg"}, "needs a reward with 11 values"),
        ({"reward": "ndcg"}, "reward must be"),
        ({"chance": "one"}, "chance must be"),
    ],
)
def test_useless_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Evolution(**settings)


@pytest.mark.parametrize("ranker", [Linear(), Relu(units=4)])
def test_it_learns(ranker):
    data = made_up_data(queries=80, seed=4)
    clients = make_clients(data, 1000, interactions=4)
    federation = Federation(learner=Evolution(ranker=ranker), server=Adam(rate=0.01))
    rounds = list(simulate(federation, clients, 60))
    assert rounds[-1].reward > rounds[0].reward + 0.1
    scores = ranker.score(rounds[-1].weights, data.features)
    assert np.corrcoef(scores, data.grades)[0, 1] > 0.6


def test_the_price_is_the_largest_ratio_between_two_truths():
    truth, draws = 0.5, 60_000
    told = [np.bincount([answer(r, truth, np.uint64(stream(np.uint64(r), i))) for i in range(draws)], minlength=11)
            for r in (0, 5)]  # fmt: skip
    largest = np.abs(np.log(told[0] / told[1])).max()
    assert largest == pytest.approx(epsilon(ResponseEvent(truth), 1, 0.0), abs=0.15)


@needs.data
def test_the_published_curve_begins_where_ours_does():
    """MQ2008, navigational, 2,000 clients x 4: published mean batch MaxRR of the first step .336, rising."""
    from fedrank.data.catalog import load

    rewards = []
    for fold in (1, 2, 3, 4, 5):
        clients = make_clients(load("mq2008", fold).train, 2000, click_model="navigational", interactions=4)
        rounds = list(simulate(Federation(learner=Evolution(), server=Adam()), clients, 12))
        rewards.append((rounds[0].reward, rounds[-1].reward))
    first, later = np.mean(rewards, axis=0)
    assert first == pytest.approx(0.336, abs=0.01)
    assert later > first + 0.03


UNCOMPILED = """
import sys
import numpy as np
from fedrank.federated.clients import make_clients
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.rankers import Linear, Relu
from fedrank.seeds import Chance
from fedrank.types import Messages
from tests.made_up import made_up_data

data = made_up_data(queries=6, features=6, longest=14)
clients = make_clients(data, 3, click_model=["perfect", "informational"], interactions=[2, 3])
with np.errstate(over="ignore"):  # 64-bit counters wrap on purpose
    learners = Evolution(truth=0.5), Evolution(ranker=Relu(units=3), reward="dcg"), Evolution(chance="shared")
    for learner in learners:
        size = learner.ranker.size(6)
        arrived = learner(np.linspace(-1, 1, size), clients, Chance(1, 1))
        for values in (arrived.updates, arrived.observed.reward, arrived.observed.online):
            print(*np.round(values.ravel().astype(float), 3))
"""


@pytest.mark.process
def test_uncompiled_equals_compiled():
    printed = [
        subprocess.run(
            [sys.executable, "-c", UNCOMPILED],
            env=os.environ | {"NUMBA_DISABLE_JIT": disable},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for disable in "01"
    ]
    first, second = (np.array(text.split(), dtype=float) for text in printed)
    assert first == pytest.approx(second, rel=1e-4, abs=2e-3)
    assert np.abs(first).max() > 0

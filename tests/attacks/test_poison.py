"""Poisoned updates: by hand, against slow versions from the papers, and what every attack promises."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.attacks import poison
from fedrank.attacks.poison import (
    ATTACKS,
    Adaptive,
    Fang,
    InnerProduct,
    Lie,
    MinMax,
    MinSum,
    Noise,
    Opposite,
    PoisonedClicks,
    Promote,
    SignFlip,
    lie_z,
    promotion,
)
from fedrank.data.ranking import RankingData
from fedrank.federated.aggregators import Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.robust import (
    Bulyan,
    GeometricMedian,
    Krum,
    Median,
    MultiKrum,
    NormBound,
    Reputation,
    TrimmedMean,
    Trust,
)
from fedrank.federated.simulation import simulate
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear, Mlp, Relu
from fedrank.types import Messages
from tests.made_up import made_up_data
from tests.oracles import poison as oracle

KRUM = Krum(attackers=0.3)
WITH_KNOWLEDGE = [
    Lie(),
    Lie(z=1.5),
    Fang(KRUM),
    Fang(MultiKrum(attackers=0.3)),
    Fang(TrimmedMean()),
    Fang(Median(), stretch="update"),
    Fang(Median(), partial="original"),
    Fang(),
    InnerProduct(),
    MinMax(),
    MinMax("sign"),
    MinMax("std"),
    MinSum(),
    MinSum("sign"),
    MinSum("std"),
]
ALONE = [SignFlip(), Noise(), Promote((2, 3)), Opposite()]
KNOWING = [Adaptive(KRUM), Adaptive(Median(), "sign"), Adaptive(), Adaptive(Trust(), "std"), Adaptive(Reputation())]
FULL = [replace(attack, knowledge="full") for attack in WITH_KNOWLEDGE]
EVERY = WITH_KNOWLEDGE + FULL + ALONE + KNOWING


def arrive(updates, weights=None):
    updates = np.array(updates, dtype=np.float32)
    n, parameters = updates.shape
    return Messages(
        updates,
        sizes=np.arange(1, n + 1),
        ids=np.arange(n),
        weights=np.zeros(parameters) if weights is None else np.array(weights, dtype=np.float64),
        round=7,
    )


def some(n=10, parameters=6, seed=1, weights=True):
    rng = np.random.default_rng(seed)
    updates = 0.3 + rng.standard_normal((n, parameters))
    return arrive(updates, rng.standard_normal(parameters) if weights else None)


def first(m, n=10):
    """The first m of n are malicious, as in the thesis."""
    return np.arange(n) < m


def rng(seed=5):
    return np.random.default_rng(seed)


def sent(attack, updates, malicious, weights=None):
    """What the malicious clients send."""
    arrived = arrive(updates, weights)
    malicious = np.array(malicious, dtype=bool)
    return attack(arrived, malicious, rng()).updates[malicious].astype(np.float64)


class Constant:
    """A generator that always draws the same."""

    def __init__(self, value):
        self.value = value

    def random(self, shape):
        return np.full(shape, self.value)


def test_examples_in_docstrings():
    assert doctest.testmod(poison).failed == 0


@pytest.mark.parametrize("attack", EVERY, ids=str)
class TestEveryAttack:
    def test_replaces_the_updates_of_malicious_clients_and_nothing_else(self, attack):
        arrived = some()
        before = arrived.updates.copy()
        malicious = np.array([False, True, False, False, True, True, False, False, True, False])
        after = attack(arrived, malicious, rng())
        assert np.array_equal(arrived.updates, before), "what arrived was written to"
        assert np.array_equal(after.updates[~malicious], before[~malicious])
        assert not (after.updates[malicious] == before[malicious]).all(axis=1).any()
        assert after.updates.dtype == np.float32
        assert after.updates.shape == before.shape
        assert np.isfinite(after.updates).all()
        assert replace(after, updates=arrived.updates) == arrived

    def test_is_deterministic(self, attack):
        one, two = (attack(some(), first(3), rng()).updates for _ in range(2))
        assert np.array_equal(one, two)

    def test_nobody_malicious_changes_nothing(self, attack):
        arrived = some()
        assert attack(arrived, first(0), rng()) is arrived

    @pytest.mark.parametrize("m", [1, 2, 5, 9, 10])
    def test_any_number_of_attackers_sends_numbers(self, attack, m):
        after = attack(some(), first(m), rng())
        assert np.isfinite(after.updates).all()
        assert np.array_equal(after.updates[m:], some().updates[m:])

    def test_zero_updates_are_no_trouble(self, attack):
        after = attack(arrive(np.zeros((10, 6))), first(3), rng())
        assert not after.updates.any()

    def test_models_of_their_own_are_no_trouble(self, attack):
        """The same model for all, once as one vector and once as a row each."""
        arrived = some()
        rows = replace(arrived, weights=np.tile(arrived.weights, (10, 1)))
        one, two = (attack(which, first(3), rng()).updates for which in (arrived, rows))
        assert np.allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("attack", WITH_KNOWLEDGE + ALONE, ids=str)
def test_partial_knowledge_does_not_see_honest_updates(attack):
    arrived = some()
    other = arrived.updates.copy()
    other[3:] = rng(9).standard_normal((7, 6))
    one, two = (attack(each, first(3), rng()).updates[:3] for each in (arrived, replace(arrived, updates=other)))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("attack", FULL, ids=str)
def test_full_knowledge_sees_honest_updates(attack):
    arrived = some()
    other = arrived.updates.copy()
    other[3:] = 5 * rng(9).standard_normal((7, 6))
    one, two = (attack(each, first(3), rng()).updates[:3] for each in (arrived, replace(arrived, updates=other)))
    assert not np.allclose(one, two)


@pytest.mark.parametrize("attack", FULL, ids=str)
def test_full_knowledge_of_nobody_honest_is_that_of_the_attackers(attack):
    everybody = first(10)
    one, two = (each(some(), everybody, rng()).updates for each in (attack, replace(attack, knowledge="partial")))
    assert np.array_equal(one, two)


# LIE


def test_z_of_the_thesis():
    assert [round(lie_z(10, m), 2) for m in (2, 3, 4)] == [0.0, 0.18, 0.43]
    assert lie_z(50, 24) == pytest.approx(NormalDist().inv_cdf(24 / 26))


def test_z_is_the_formula_for_every_minority():
    for n in range(3, 40):
        for m in range(1, (n + 1) // 2):
            assert lie_z(n, m) == pytest.approx(oracle.lie_z(n, m), abs=1e-9)


def test_z_is_a_number_where_the_formula_has_none():
    assert lie_z(2, 1) == NormalDist().inv_cdf(1 / 4)
    assert lie_z(10, 9) == lie_z(10, 10) == NormalDist().inv_cdf(19 / 20)


def test_lie_by_hand():
    updates = [[1, 0], [2, 0], [3, 6], *[[9, -9]] * 7]
    # mean 2, 2; squared deviations (1 + 0 + 1) / 3 and (4 + 4 + 16) / 3
    z = NormalDist().inv_cdf(4 / 7)
    crafted = sent(Lie(), updates, first(3))
    assert crafted == pytest.approx(np.tile([2 - z * math.sqrt(2 / 3), 2 - z * math.sqrt(8)], (3, 1)), rel=1e-6)
    crafted = sent(Lie(z=2.0), updates, first(3))
    assert crafted == pytest.approx(np.tile([2 - 2 * math.sqrt(2 / 3), 2 - 2 * math.sqrt(8)], (3, 1)), rel=1e-6)


def test_lie_with_full_knowledge_is_that_of_everybody():
    arrived = some()
    crafted = Lie("full")(arrived, first(4), rng()).updates[:4]
    expected = oracle.lie(arrived.updates.tolist(), oracle.lie_z(10, 4))
    assert crafted == pytest.approx(np.tile(expected, (4, 1)), rel=1e-5)


def test_one_or_two_of_ten_do_not_attack_by_lie():
    arrived = some()
    assert np.array_equal(Lie()(arrived, first(1), rng()).updates, arrived.updates)
    mean = arrived.updates[:2].mean(axis=0)
    assert Lie()(arrived, first(2), rng()).updates[:2] == pytest.approx(np.stack([mean, mean]), rel=1e-6)


# Fang


SIGNS = [[5, -5, 5, -5], [1, -1, 3, -4], [2, -2, -1, 1]]  # the first is malicious


@pytest.mark.parametrize("rule", [TrimmedMean(), Median(), Mean()], ids=str)
def test_fang_beyond_the_outermost_values_by_hand(rule):
    # Where the mean is positive, below the smallest; where it is negative, above the largest.
    for draw, expected in [(0.0, [1, -1, -1, 1]), (1.0, [1 / 2, -1 / 2, -1 * 2, 1 * 2])]:
        arrived = Fang(rule, "full")(arrive(SIGNS), np.array([True, False, False]), Constant(draw))
        assert arrived.updates[0].tolist() == expected


def test_fang_doubles_weights_or_updates():
    malicious = np.array([True, False, False])
    arrived = arrive(SIGNS, weights=[10, 10, -10, 0])
    crafted = Fang(TrimmedMean(), "full")(arrived, malicious, Constant(1.0)).updates[0]
    # 10 + 1 halves, 10 - 1 doubles, -10 - 1 doubles, 0 + 1 doubles
    assert crafted.tolist() == [11 / 2 - 10, 9 * 2 - 10, -11 * 2 + 10, 1 * 2]
    crafted = Fang(TrimmedMean(), "full", stretch="update")(arrived, malicious, Constant(1.0)).updates[0]
    assert crafted.tolist() == [1 / 2, -1 / 2, -1 * 2, 1 * 2]


@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_fang_draws_from_the_intervals_of_the_paper(knowledge):
    arrived = some(n=12, parameters=30, weights=False)
    crafted = Fang(Median(), knowledge)(arrived, first(4, 12), rng()).updates[:4]
    known = arrived.updates if knowledge == "full" else arrived.updates[:4]
    seen = arrived.updates[4:] if knowledge == "full" else arrived.updates[:4]
    for j in range(30):
        low, high = oracle.fang_interval(float(known[:, j].mean()), seen[:, j].tolist())
        assert (crafted[:, j] >= low).all()
        assert (crafted[:, j] <= high).all()
        assert len(set(crafted[:, j].tolist())) == 4


@pytest.mark.parametrize("rule", [TrimmedMean(), Median(), Mean()], ids=str)
def test_fang_guesses_as_the_original_does(rule):
    arrived = some(n=12, parameters=30, weights=True)
    crafted = Fang(rule, "partial", partial="original")(arrived, first(4, 12), rng()).updates[:4]
    for j in range(30):
        low, high = oracle.fang_guess(arrived.updates[:4, j].astype(float).tolist())
        assert (crafted[:, j] >= low - 1e-6).all()
        assert (crafted[:, j] <= high + 1e-6).all()
        assert len(set(crafted[:, j].tolist())) == 4
    for draw, expected in [(0.0, [1 - 3 * 1, -4 + 3 * 2]), (1.0, [1 - 4 * 1, -4 + 4 * 2])]:
        rows = [[0, -6], [2, -2], [7, 7]]  # means 1 and -4, deviations 1 and 2
        after = Fang(rule, partial="original")(arrive(rows), np.array([True, True, False]), Constant(draw))
        assert after.updates.tolist() == [expected, expected, [7, 7]]


def test_fang_with_all_knowledge_need_not_guess():
    arrived = some(n=12, parameters=5)
    one, other = (Fang(Median(), "full", partial=by)(arrived, first(4, 12), rng()) for by in ("thesis", "original"))
    assert np.array_equal(one.updates, other.updates)
    alone = Fang(Median(), partial="original")(arrived, first(1, 12), rng())
    assert np.array_equal(alone.updates, arrived.updates), "one attacker sees no deviation"


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_fang_takes_the_step_of_the_paper(knowledge, m, power):
    distance = "squared" if power == 2 else "euclidean"
    arrived = some(parameters=12, seed=m, weights=False)
    attack = Fang(Krum(attackers=m / 10, distance=distance), knowledge, spread=0.0)
    crafted = attack(arrived, first(m), rng()).updates[:m]
    rows = arrived.updates.tolist()
    if knowledge == "full":
        signs = np.sign(arrived.updates.mean(axis=0)).tolist()
        step = oracle.fang_step(rows[m:], signs, 10 - m - 2, [m], lambda one, rival: one < rival, power)
    else:
        signs = np.sign(arrived.updates[:m].mean(axis=0)).tolist()
        step = oracle.fang_step(rows[:m], signs, max(m - 2, 1), range(1, m + 1), lambda one, rival: one <= rival, power)
    assert crafted == pytest.approx(np.tile(-step * np.array(signs), (m, 1)), rel=1e-5)


@pytest.mark.parametrize("rule", [KRUM, Krum(attackers=0.3, distance="squared")], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_fang_is_what_krum_picks(rule, seed):
    arrived = some(parameters=20, seed=seed)
    malicious = np.isin(np.arange(10), [2, 6, 7])
    after = Fang(rule, "full")(arrived, malicious, rng())
    picked = rule(after)
    assert any(np.array_equal(picked, row) for row in after.updates[malicious])
    assert picked @ arrived.updates.mean(axis=0) < 0
    # Twice the step was tried before, or is beyond what can win.
    longer = after.updates.copy()
    longer[malicious] *= 2
    assert not any(np.array_equal(rule(replace(after, updates=longer)), row) for row in longer[malicious])


def test_fang_gets_into_multi_krum():
    rule = MultiKrum(attackers=0.3)
    arrived = some(parameters=20)
    after = Fang(rule, "full")(arrived, first(3), rng())
    without = replace(after, updates=np.where(first(3)[:, None], 1e6, after.updates).astype(np.float32))
    assert not np.allclose(rule(after), rule(without)), "crafted updates were left out"


def test_other_attackers_send_near_copies():
    crafted = Fang(KRUM, "full", spread=0.01)(some(parameters=20), first(3), rng()).updates[:3].astype(np.float64)
    length = np.linalg.norm(crafted[0])
    assert len(np.unique(np.abs(crafted[0]))) == 1, "a multiple of signs"
    assert np.linalg.norm(crafted[1:] - crafted[0], axis=1) == pytest.approx([0.01 * length] * 2, rel=1e-4)
    assert not np.allclose(crafted[1], crafted[2], atol=1e-3 * length)


def test_fang_says_which_aggregators_it_knows():
    with pytest.raises(ValueError, match="no formula against GeometricMedian; use krum, multi-krum, trimmed-mean"):
        Fang(GeometricMedian())


# Min-Max and Min-Sum


def test_min_max_by_hand():
    # The largest distance is 2, the mean (2, 0). Across: gamma² + 1 = 2². Along: 1 + gamma = 2.
    updates, malicious = [[9, 9], [2, 1], [2, -1]], [True, False, False]
    assert sent(MinMax("unit", "full"), updates, malicious) == pytest.approx(np.array([[2 - math.sqrt(3), 0]]))
    assert sent(MinMax("sign", "full"), updates, malicious) == pytest.approx(np.array([[2 - math.sqrt(3), 0]]))
    assert sent(MinMax("std", "full"), updates, malicious) == pytest.approx(np.array([[2, 0 - 1]]))


def test_min_sum_by_hand():
    # An honest update has 0 + 2² = 4; across: 2 (gamma² + 1) = 4, along: (1 + gamma)² + (1 - gamma)² = 4.
    updates, malicious = [[9, 9], [2, 1], [2, -1]], [True, False, False]
    assert sent(MinSum("unit", "full"), updates, malicious) == pytest.approx(np.array([[2 - 1, 0]]))
    assert sent(MinSum("std", "full"), updates, malicious) == pytest.approx(np.array([[2, 0 - 1]]))


@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@pytest.mark.parametrize(("kind", "allowed"), [(MinMax, oracle.is_within_max), (MinSum, oracle.is_within_sum)])
@pytest.mark.parametrize("knowledge", ["full", "partial"])
def test_the_push_is_as_long_as_the_halving_of_the_paper_finds(kind, allowed, perturbation, knowledge):
    arrived = some()
    rows = (arrived.updates[3:] if knowledge == "full" else arrived.updates[:3]).tolist()
    expected = oracle.halving(rows, perturbation, allowed)
    crafted = kind(perturbation, knowledge)(arrived, first(3), rng()).updates[:3]
    assert crafted == pytest.approx(np.tile(expected, (3, 1)), abs=2e-5)
    assert not np.allclose(crafted[0], np.mean(rows, axis=0), atol=1e-2)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    n=st.integers(3, 9),
    perturbation=st.sampled_from(["unit", "sign", "std"]),
)
def test_pushed_updates_keep_their_distance(seed, size, n, perturbation):
    updates = size * np.random.default_rng(seed).standard_normal((n, 4))
    for kind, allowed in [(MinMax, oracle.is_within_max), (MinSum, oracle.is_within_sum)]:
        arrived = kind(perturbation, "full")(arrive(updates), first(1, n), rng())
        honest = arrived.updates[1:].astype(np.float64)
        mean = honest.mean(axis=0)
        pushed = arrived.updates[0] - mean
        assert allowed(honest.tolist(), (mean + 0.9999 * pushed).tolist())
        if np.linalg.norm(pushed) > 1e-6 * size:
            assert not allowed(honest.tolist(), (mean + 1.0001 * pushed).tolist())


# The plain ones


# The adaptive attack

RULES = [
    Mean(False), KRUM, MultiKrum(0.3), TrimmedMean(0.3), Median(), Bulyan(0.1), GeometricMedian(), NormBound(), Trust(),
]  # fmt: skip


def moved(rule, updates, honest):
    """How far a rule moves the model along the mean honest update; the server's own update is that mean, too."""
    mean = honest.mean(axis=0)
    arrived = replace(arrive(updates), root=mean.astype(np.float32))
    return math.fsum(rule(arrived) * mean)


@pytest.mark.parametrize("perturbation", ["unit", "sign", "std"])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_adaptive_finds_the_worst_of_its_factors(rule, perturbation):
    m = 1 if isinstance(rule, Bulyan) else 3
    updates = 0.3 + rng(4).standard_normal((10, 6))
    honest = np.array(updates[m:], dtype=np.float32).astype(float)
    mean = honest.mean(axis=0)
    push = {"unit": -mean, "sign": -np.sign(mean), "std": -honest.std(axis=0)}[perturbation]
    push *= math.hypot(*mean) / math.hypot(*push)
    tried = []
    for step in range(16):
        crafted = np.vstack([np.tile(mean + 10 / math.sqrt(2) ** step * push, (m, 1)), honest])
        tried.append((moved(rule, crafted, honest), crafted[0]))
    found = sent(Adaptive(rule, perturbation), updates, first(m))
    assert (found == found[0]).all()
    worst = min(moment for moment, _ in tried)
    assert moved(rule, np.vstack([found, honest]), honest) == pytest.approx(worst, rel=1e-4, abs=1e-6)
    assert any(np.allclose(found[0], row, rtol=1e-5) for _, row in tried)


def test_adaptive_by_hand():
    # The mean has no limit: the longest perturbation does most harm. Multi-Krum has one, and the attackers stay below.
    updates = [[0.0, 0.0], [1.0, 0.1], [1.0, -0.1], [1.2, 0.0], [0.8, 0.0]]
    malicious = [True, False, False, False, False]
    [[x, y]] = sent(Adaptive(Mean()), updates, malicious)
    assert (x, y) == (pytest.approx(1 - 10), pytest.approx(0, abs=1e-6))
    [[x, y]] = sent(Adaptive(MultiKrum(0.2)), updates, malicious)
    assert 0.6 < x < 1
    assert moved(MultiKrum(0.2), [[x, y], *updates[1:]], np.array(updates[1:])) < 1


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_adaptive_harms_about_as_much_as_attacks_that_do_not_know_the_rule(rule):
    """They may use a factor between two of the adaptive attack, which differ by 1.41."""
    m, loss = 1 if isinstance(rule, Bulyan) else 3, {"adaptive": 0.0, "others": 0.0}
    for seed in range(20):
        updates = 0.3 + rng(seed).standard_normal((10, 6)).astype(np.float32)
        honest = updates[m:].astype(float)
        harms = []
        for attack in (Adaptive(rule), MinMax(knowledge="full"), MinSum(knowledge="full"), InnerProduct(1.0, "full")):
            crafted = np.vstack([sent(attack, updates, first(m)), honest])
            harms.append(moved(rule, honest, honest) - moved(rule, crafted, honest))
        loss["adaptive"] += harms[0]
        loss["others"] += max(harms[1:])
    assert loss["adaptive"] > loss["others"] / 1.41


def test_plain_attacks_by_hand():
    updates, malicious = [[1, -2], [3, 0], [5, 8], [7, 10]], [True, True, False, False]
    assert sent(SignFlip(), updates, malicious).tolist() == [[-1, 2], [-3, 0]]
    assert sent(SignFlip(scale=3.0), updates, malicious).tolist() == [[-3, 6], [-9, 0]]
    crafted = sent(InnerProduct(scale=0.5), updates, malicious)
    assert crafted.tolist() == [[-0.5 * (1 + 3) / 2, -0.5 * (-2 + 0) / 2]] * 2
    crafted = sent(InnerProduct(0.5, "full"), updates, malicious)
    assert crafted.tolist() == [[-0.5 * (5 + 7) / 2, -0.5 * (8 + 10) / 2]] * 2


def test_the_opposite_model_by_hand():
    updates, weights = np.array([[1, -2], [3, 4]]), np.array([10, 20])
    crafted = sent(Opposite(), updates, [False, True], weights)
    assert (weights + crafted[0]).tolist() == [-2 * (10 + 3), -2 * (20 + 4)]


def test_noise_is_as_long_as_typical_updates():
    updates = np.zeros((5, 4000))
    updates[:, 7] = [3, 4, 50, 900, 1000]  # the last two are honest
    noise = sent(Noise(scale=2.0), updates, [True, True, True, False, False])
    assert np.linalg.norm(noise, axis=1) == pytest.approx([2 * 4] * 3, rel=0.05)
    assert np.abs(noise @ noise.T - np.diag(np.diag(noise @ noise.T))).max() < 0.1 * 64, "one noise for several clients"
    assert np.abs(noise.mean(axis=1)).max() < 5 * 8 / 4000


# Promotion


def test_promote_by_hand():
    updates = [[3, 0, 0], [0, 4, 0], [0, 0, 50], [900, 0, 0]]
    crafted = sent(Promote((1, 3), scale=2.0), updates, [True, True, True, False])
    side = 2 * 4 / math.sqrt(2)
    assert crafted == pytest.approx(np.tile([side, 0, side], (3, 1)))


@pytest.mark.parametrize("ranker", [Mlp(hidden=2), Relu(units=2, start="normal")], ids=str)
def test_promote_lifts_with_a_neural_ranker(ranker):
    weights = ranker.first(3, rng())
    weights[-4:] = 1, 1, 3, -4  # biases that wake both units, and output weights
    updates = np.zeros((3, ranker.size(3)))
    updates[0, 0] = 5
    crafted = sent(Promote((2,), ranker=ranker), updates, [True, False, False], weights)[0]
    expected = np.zeros(10)
    expected[2:4] = 3, -4  # the two weights of feature 2; as long as the update, 5
    assert crafted == pytest.approx(expected)
    documents = np.array([[0.5, 0, 0.5], [0.5, 1, 0.5]], dtype=np.float32)
    before, after = (np.diff(ranker.score(w, documents))[0] for w in (weights, weights + 0.1 * crafted))
    assert after > before


def test_promote_refuses_what_is_not_there():
    with pytest.raises(ValueError, match="features must not be empty"):
        Promote(())
    with pytest.raises(ValueError, match=r"numbers from 1 \(got 0"):
        Promote((0,))
    with pytest.raises(ValueError, match=r"numbers from 1 to 6 \(got 7"):
        Promote((1, 7))(some(), first(2), rng())
    with pytest.raises(
        ValueError, match="6 parameters, which does not fit Mlp with 4 units; give the attack the ranker of"
    ):
        Promote((1,), ranker=Mlp(hidden=4))(some(), first(2), rng())


def one_feature_each(*queries):
    """Feature 1 marks documents, feature 2 is what the ranker goes by."""
    features = np.concatenate([np.array(query, dtype=np.float32) for query in queries])
    offsets = np.cumsum([0, *map(len, queries)])
    return RankingData(features, np.zeros(len(features), np.int8), offsets, np.arange(len(queries)).astype(str))


def test_promotion_by_hand():
    def query(place, documents=12):
        """One marked document at this place."""
        return [[rank == place, -rank] for rank in range(1, documents + 1)]

    by_second = np.array([0.0, 1.0])
    for place, expected in [(1, 1.0), (10, 1.0), (11, 0.0), (12, 0.0)]:
        assert promotion(by_second, Linear(), one_feature_each(query(place)), [1]) == expected
    data = one_feature_each(query(10), query(11), query(12), query(99, documents=50), query(3, documents=10))
    # All alike, or all shown: the last two queries tell nothing.
    assert promotion(by_second, Linear(), data, [1]) == (1 + 0 + 0) / 3
    assert promotion(by_second, Linear(), data, [1], top=11) == (1 + 1 + 0) / 3
    assert promotion(np.array([9.0, 1.0]), Linear(), data, [1]) == 1.0
    assert math.isnan(promotion(by_second, Linear(), one_feature_each(query(3, documents=10)), [1]))
    # Two targets of 40 documents, and of 50 three, since 2.5 is rounded up.
    marked = [[10 * (rank in (5, 35)) + 3 * (rank == 7), -rank] for rank in range(1, 41)]
    assert promotion(by_second, Linear(), one_feature_each(marked), [1]) == 1 / 2
    longer = one_feature_each(marked + [[-1, -rank] for rank in range(41, 51)])
    assert promotion(by_second, Linear(), longer, [1]) == 2 / 3
    # The mean of both features marks the first documents, feature by feature.
    assert promotion(by_second, Linear(), one_feature_each(query(12)), [1, 2]) == 1.0


def test_promotion_is_that_of_the_slow_version():
    data = made_up_data(queries=30, features=5, longest=60, seed=4)
    weights = rng().standard_normal(5)
    scores = Linear().score(weights, data.features)
    marks = data.features[:, [1, 4]].astype(np.float64).mean(axis=1)
    for top, share in [(10, 0.05), (5, 0.3)]:
        expected = oracle.promotion(scores.tolist(), marks.tolist(), data.offsets.tolist(), top, share)
        assert promotion(weights, Linear(), data, (2, 5), top, share) == pytest.approx(expected)
        assert 0 < expected < 1


def test_promotion_refuses_what_is_not_there():
    data = made_up_data()
    with pytest.raises(ValueError, match=r"numbers from 1 to 5 \(got 6"):
        promotion(np.zeros(5), Linear(), data, [6])
    with pytest.raises(ValueError, match="share = 0"):
        promotion(np.zeros(5), Linear(), data, [1], share=0)


@pytest.mark.long
@pytest.mark.parametrize("ranker", [Linear(), Mlp(hidden=4)], ids=str)
def test_a_few_attackers_lift_documents_in_a_federation(ranker):
    data = made_up_data(queries=60, features=5, longest=60, seed=2)
    clients = replace(make_clients(data, 10, interactions=3), malicious=first(2))
    lifted = []
    for attack in (None, Promote((4,), scale=4.0, ranker=ranker)):
        *_, last = simulate(Federation(Pdgd(ranker=ranker), attack=attack), clients, 60)
        lifted.append(promotion(last.weights, ranker, data, [4]))
    assert lifted[1] > lifted[0] + 0.3


# Bad settings


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lie("some"), 'knowledge must be "full" or "partial" (got \'some\')'),
        (lambda: MinMax("unit", "some"), 'knowledge must be "full" or "partial" (got \'some\')'),
        (lambda: MinSum("length"), 'perturbation must be "unit" or "sign" or "std" (got \'length\')'),
        (lambda: Fang(stretch="twice"), 'stretch must be "model" or "update" (got \'twice\')'),
        (lambda: Fang(partial="paper"), 'partial must be "thesis" or "original" (got \'paper\')'),
        (lambda: Fang(spread=1.0), "spread must be at least 0 and below 1 (got 1.0)"),
        (lambda: SignFlip(0.0), "scale must be finite and above 0 (got 0.0)"),
        (lambda: Noise(math.inf), "scale must be finite and above 0 (got inf)"),
        (lambda: InnerProduct(math.nan), "scale must be finite and above 0 (got nan)"),
        (lambda: Adaptive(perturbation="length"), 'perturbation must be "unit" or "sign" or "std" (got \'length\')'),
        (lambda: Adaptive(largest=0.0), "largest must be finite and above 0 (got 0.0)"),
        (lambda: Opposite(-1.0), "scale must be finite and above 0 (got -1.0)"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError) as caught:
        make()
    assert message in str(caught.value)


def test_every_attack_has_its_name():
    assert {type(attack) for attack in EVERY} | {PoisonedClicks} == set(ATTACKS.values())


def test_poisoned_clicks_change_no_update_and_know_their_user():
    arrived, malicious = some(), np.arange(10) < 3
    assert PoisonedClicks()(arrived, malicious, np.random.default_rng(1)) is arrived
    assert PoisonedClicks().click_model == "poison"
    with pytest.raises(ValueError, match="unknown click model 'posion'"):
        PoisonedClicks("posion")

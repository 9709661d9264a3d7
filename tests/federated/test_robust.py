"""Robust aggregators: against slow versions, by hand, and what all of them promise."""

from __future__ import annotations

import doctest
import math
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest

from fedrank.experiments.spec.families import build, describe
from fedrank.federated import robust
from fedrank.federated.aggregators import AGGREGATORS, Mean
from fedrank.federated.cuda_backend import robust_rule
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
    assumed_attackers,
)
from fedrank.toml import write_toml
from fedrank.types import Aggregator, Messages, has_trait
from tests.oracles import robust as oracle

ROBUST = sorted(name for name, kind in AGGREGATORS.items() if has_trait(kind, "robust"))
PROMISE = ["krum", "multi-krum", "trimmed-mean", "median", "bulyan", "geometric-median", "norm-bound", "trust"]
COUNTING = [name for name in ROBUST if "attackers" in AGGREGATORS[name].__dataclass_fields__]
SIZES = [11, 60]  # one compiled loop for few clients, libraries for many


def arrivals(updates, root=None, weights=None, ids=None, sizes=None):
    updates = np.asarray(updates, dtype=np.float32)
    n, parameters = updates.shape
    return Messages(
        updates,
        np.ones(n, dtype=np.int64) if sizes is None else sizes,
        np.arange(n) if ids is None else ids,
        np.zeros(parameters) if weights is None else weights,
        root=root,
    )


def outcome(name, updates, **settings):
    """The change by a rule of any kind; the server's own update points where the honest ones of `near` do."""
    rule = AGGREGATORS[name](**(settings if name in COUNTING else {}))
    arrived = arrivals(updates, root=np.full(np.shape(updates)[1], 0.5, dtype=np.float32))
    if name == "reputation":
        return rule(arrived, rule.first(*arrived.updates.shape))[0]
    return rule(arrived)


def near(n, parameters=6, seed=1):
    """Updates that mostly agree."""
    return (0.5 + 0.1 * np.random.default_rng(seed).standard_normal((n, parameters))).astype(np.float32)


def inputs(n):
    """Random and adversarial updates, m of 11 malicious where some are."""
    rng = np.random.default_rng(n)
    plain = rng.standard_normal((n, 6)).astype(np.float32)
    m = n // 5
    outliers, colluding, copies, extreme, mixed = (plain.copy() for _ in range(5))
    outliers[:m] *= np.float32(1e30)
    colluding[-m:] = 3 + 1e-4 * colluding[-m:]
    copies[n // 2 :] = copies[0]
    extreme[::2] = np.float32(3e38) * np.sign(extreme[::2])
    mixed[:m] = -50 * plain.mean(axis=0)
    return {
        "random": plain,
        "far from zero": plain + np.float32(1000),
        "outliers": outliers,
        "colluding": colluding,
        "copies": copies,
        "extreme": extreme,
        "mixed": mixed,
        "whole numbers": rng.integers(-2, 3, (n, 6)).astype(np.float32),
        "zero": np.zeros((n, 6), dtype=np.float32),
    }


KINDS = list(inputs(11))


class TestAgainstTheOracle:
    """Bulyan and Krum pick rows: where rounding decides between equal scores, any row with that score is right."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("n", SIZES)
    @pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
    @pytest.mark.parametrize("distance", ["euclidean", "squared"])
    def test_krum(self, kind, n, share, distance):
        updates = inputs(n)[kind]
        m = assumed_attackers(share, n)
        scores = oracle.krum_scores(updates.tolist(), m, distance == "squared")
        found = Krum(share, distance)(arrivals(updates))
        [first, *_] = [i for i in range(n) if np.array_equal(updates[i], found.astype(np.float32))]
        assert scores[first] <= min(scores) * (1 + 1e-9)
        if kind in ("random", "outliers", "mixed", "far from zero"):
            assert found.tolist() == oracle.krum(updates.tolist(), m, distance == "squared")

    @pytest.mark.parametrize("kind", ["random", "far from zero", "outliers", "mixed", "zero"])
    @pytest.mark.parametrize("n", SIZES)
    @pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
    def test_multi_krum(self, kind, n, share):
        updates = inputs(n)[kind]
        m = assumed_attackers(share, n)
        for distance in ("euclidean", "squared"):
            expected = oracle.multi_krum(updates.tolist(), m, distance == "squared")
            assert MultiKrum(share, distance)(arrivals(updates)) == pytest.approx(expected, rel=1e-12, abs=1e-12)

    @pytest.mark.parametrize("rule", [Krum(), Krum(distance="squared"), MultiKrum()], ids=str)
    def test_updates_however_small_are_told_apart(self, rule):
        updates, scale = inputs(11)["mixed"], np.float32(2.0**-60)
        assert np.array_equal(rule(arrivals(scale * updates)), scale * rule(arrivals(updates)))

    @pytest.mark.long
    @pytest.mark.parametrize("kind", ["random", "outliers"])
    def test_krum_of_many(self, kind):
        """So many that a partial sort is not a whole one."""
        updates = inputs(400)[kind]
        rows = updates.tolist()
        assert Krum()(arrivals(updates)).tolist() == oracle.krum(rows, 80)
        assert MultiKrum()(arrivals(updates)) == pytest.approx(oracle.multi_krum(rows, 80), rel=1e-12)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("n", [1, 2, 10, *SIZES])
    def test_trimmed_mean_and_median(self, kind, n):
        updates = inputs(max(n, 5))[kind][:n]
        for share in (0.0, 0.2, 0.4):
            m = assumed_attackers(share, n)
            if 2 * m < n:
                found = TrimmedMean(share)(arrivals(updates))
                expected = oracle.trimmed_mean(updates.tolist(), m)
                assert found == pytest.approx(expected, rel=1e-12, abs=1e-12 * float(np.abs(updates).max()))
        assert Median()(arrivals(updates)).tolist() == oracle.median(updates.tolist())

    @pytest.mark.parametrize(
        ("kind", "n"),
        [*((kind, 11) for kind in ("random", "far from zero", "outliers", "mixed", "zero")), ("mixed", 60)],
    )
    @pytest.mark.parametrize("share", [0.0, 0.1, 0.18])
    def test_bulyan(self, kind, n, share):
        updates = inputs(n)[kind]
        m = assumed_attackers(share, n)
        for distance in ("euclidean", "squared"):
            expected = oracle.bulyan(updates.tolist(), m, distance == "squared")
            assert Bulyan(share, distance)(arrivals(updates)) == pytest.approx(expected, rel=1e-9, abs=1e-9)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("n", [1, 2, 10, 11])
    def test_norm_bound_and_trust(self, kind, n):
        updates = inputs(max(n, 5))[kind][:n]
        rows = updates.tolist()
        largest = float(np.abs(updates).max())
        assert NormBound()(arrivals(updates)) == pytest.approx(oracle.norm_bound(rows), rel=1e-9, abs=1e-9 * largest)
        assert NormBound(bound=0.5)(arrivals(updates)) == pytest.approx(oracle.norm_bound(rows, 0.5), abs=1e-12)
        root = np.linspace(-1, 2, 6).astype(np.float32)
        assert Trust()(arrivals(updates, root)) == pytest.approx(oracle.trust(rows, root.tolist()), abs=1e-9)

    @pytest.mark.parametrize("seed", range(3))
    def test_forecasts(self, seed):
        rng = np.random.default_rng(seed)
        n, parameters, window = 5, 4, 3
        rule = Reputation(window=window)
        state = rule.first(n, parameters)
        rounds, weights = [], rng.standard_normal(parameters)
        for number in range(1, 8):
            updates = (0.3 * (1 - weights) * [0.1, 0.5, 1, 2] + 0.1 * rng.standard_normal((n, parameters))).astype(
                np.float32
            )
            rounds.append((weights.tolist(), updates.tolist()))
            change, state = rule(arrivals(updates, weights=weights), state)
            assert change == pytest.approx(oracle.mean(updates.tolist()))
            if number > 1:
                distances = np.array(oracle.forecast_distances(rounds, window, robust.FLATTEST))
                assert state["surprises"][:, -1] == pytest.approx(distances / distances.mean(), rel=1e-6)
            weights = weights + change


def test_examples_in_docstrings():
    assert doctest.testmod(robust).failed == 0


class TestByHand:
    def test_attackers_are_rounded_halves_up(self):
        assert [assumed_attackers(share, 10) for share in (0, 0.04, 0.05, 0.2, 0.25, 0.44)] == [0, 0, 1, 2, 3, 4]

    def test_krum_sums_the_nearest_but_m_and_two(self):
        # n - m - 2 = 5 - 1 - 2 = 2 nearest: scores 1 + 2, 1 + 1, 1 + 2, 97 + 98, 199 + 198
        updates = [[0.0], [1.0], [2.0], [99.0], [-199.0]]
        assert Krum()(arrivals(updates)).tolist() == [1.0]
        assert MultiKrum()(arrivals(updates)).tolist() == [(0 + 1 + 2 + 99) / 4]

    def test_krum_depends_on_the_square(self):
        # Two nearest: 0 has 3 and 3, 8 has 0.5 and 5. As sums 6 > 5.5, as sums of squares 18 < 25.25.
        updates = [[0.0], [3.0], [-3.0], [8.0], [8.5]]
        assert Krum(distance="euclidean")(arrivals(updates)).tolist() == [8]
        assert Krum(distance="squared")(arrivals(updates)).tolist() == [0]

    def test_of_equal_scores_the_lowest_row_wins(self):
        for n in SIZES:
            updates = np.repeat(np.arange(n, dtype=np.float32)[:, None] % 2, 2, axis=1)
            if n % 2:
                updates = updates[:-1]
            assert Krum()(arrivals(updates)).tolist() == [0, 0]
            assert Krum()(arrivals(1 - updates)).tolist() == [1, 1]

    def test_trimmed_mean_and_median(self):
        updates = [[1.0, -1e30], [2.0, 4.0], [6.0, 5.0], [7.0, 9.0], [1e30, 9.0]]
        assert TrimmedMean(0.2)(arrivals(updates)).tolist() == [(2 + 6 + 7) / 3, (4 + 5 + 9) / 3]
        assert Median()(arrivals(updates)).tolist() == [6, 5]
        assert Median()(arrivals(updates[:4])).tolist() == [(2 + 6) / 2, (4 + 5) / 2]

    def test_bulyan_averages_the_middle_of_the_chosen(self):
        # m = 1 of 7: Krum chooses five (not -50, nor 40 at the end), of which the three around the median 2 count.
        updates = [[-50.0], [0.0], [1.0], [2.0], [3.5], [4.25], [40.0]]
        assert Bulyan(0.15)(arrivals(updates)).tolist() == [(1 + 2 + 3.5) / 3]

    def test_norm_bound(self):
        updates = [[3.0, 4.0], [0.0, 1.0], [0.0, 2.0]]
        assert NormBound(bound=2.0)(arrivals(updates)) == pytest.approx([3 * 2 / 5 / 3, (4 * 2 / 5 + 1 + 2) / 3])
        assert NormBound()(arrivals(updates)) == pytest.approx([3 * 2 / 5 / 3, (4 * 2 / 5 + 1 + 2) / 3])

    def test_trust(self):
        # Cosines with (2, 0): 1, 0.6, -1 (not believed), 0; all at length 2.
        updates = [[5.0, 0.0], [0.3, 0.4], [-1.0, 0.0], [0.0, 1.0]]
        root = np.array([2.0, 0.0], dtype=np.float32)
        expected = [(1 * 2 + 0.6 * 2 * 0.6) / 1.6, 0.6 * 2 * 0.8 / 1.6]
        assert Trust()(arrivals(updates, root)) == pytest.approx(expected)

    def test_nobody_to_trust_is_no_change(self):
        root = np.array([1.0, 0.0], dtype=np.float32)
        assert Trust()(arrivals([[-1.0, 0.0], [0.0, 0.0]], root)).tolist() == [0, 0]
        assert Trust()(arrivals([[1.0, 0.0]], 0 * root)).tolist() == [0, 0]
        with pytest.raises(ValueError, match=r"no update of the server, .* give Messages a root"):
            Trust()(arrivals([[1.0, 0.0]]))


@pytest.mark.parametrize("name", ROBUST)
class TestEveryRule:
    @pytest.mark.parametrize("n", SIZES)
    def test_the_order_of_clients_does_not_matter(self, name, n):
        updates = near(n)
        updates[0] *= 100
        rng = np.random.default_rng(1)
        for _ in range(3):
            order = rng.permutation(n)
            assert outcome(name, updates[order]) == pytest.approx(outcome(name, updates), rel=1e-9)

    @pytest.mark.parametrize("n", SIZES)
    def test_agreeing_clients_are_believed(self, name, n):
        agreed = np.full((n, 6), 0.5, dtype=np.float32)  # as the server's own
        assert outcome(name, agreed) == pytest.approx(agreed[0], rel=1e-9)

    @pytest.mark.parametrize("scale", [1e30, 3e38, 1e-30, 1e-44, 0])
    def test_stays_finite_at_extremes(self, name, scale):
        for n in SIZES:
            updates = (np.float64(scale) * np.random.default_rng(n).uniform(-1, 1, (n, 6))).astype(np.float32)
            change = outcome(name, updates)
            assert change.dtype == np.float64
            assert np.isfinite(change).all()
            assert name == "trust" or np.abs(change).max() <= np.abs(updates).max() * (1 + 1e-9)

    def test_sizes_do_not_count(self, name):
        rule = AGGREGATORS[name]()
        updates, root = near(11), near(1)[0]
        changes = []
        for sizes in (np.ones(11, dtype=np.int64), np.arange(11) ** 5):
            arrived = arrivals(updates, root, sizes=sizes)
            changes.append(rule(arrived, rule.first(11, 6))[0] if name == "reputation" else rule(arrived))
        assert np.array_equal(*changes)

    def test_updates_stay_as_they_came(self, name):
        for updates in (near(11), near(60), near(11, 1), near(60, 1), near(1)):
            before = updates.copy()
            if len(updates) > 1 or name not in ("krum", "multi-krum"):
                outcome(name, updates)
            assert np.array_equal(updates, before)

    def test_nobody_is_no_change(self, name):
        assert outcome(name, np.empty((0, 3), dtype=np.float32)).tolist() == [0, 0, 0]

    def test_settings_survive_toml_and_back(self, name):
        rule = AGGREGATORS[name](**({"attackers": 0.125} if name in COUNTING else {}))
        table = tomllib.loads(write_toml({"rule": describe(rule)}))["rule"]
        assert table["name"] == name
        assert build(Aggregator, table, "place") == rule


@pytest.mark.parametrize("name", COUNTING)
class TestAssumptions:
    @pytest.mark.parametrize("share", [-0.1, 0.5, 0.9, math.nan])
    def test_half_or_more_attackers_are_refused(self, name, share):
        with pytest.raises(ValueError, match=r"at least 0 and less than 0\.5"):
            AGGREGATORS[name](attackers=share)

    def test_half_of_those_present_are_refused(self, name):
        with pytest.raises(ValueError, match=r"attackers = 0.45 means 5 of 10 clients, .* or more clients"):
            outcome(name, near(10), attackers=0.45)


@pytest.mark.parametrize("name", PROMISE)
@pytest.mark.parametrize("size", [2.0, 1e3, 1e30, -1e30])
@pytest.mark.parametrize("n", SIZES)
def test_a_minority_moves_the_result_by_no_more_than_honest_clients_differ(name, size, n):
    share = 0.15  # 2 of 11, 9 of 60
    m = assumed_attackers(share, n)
    updates = near(n)
    honest = updates[m:].astype(np.float64)
    updates[:m] = np.float32(size)
    change = outcome(name, updates, attackers=share)
    widest = max(np.linalg.norm(a - b) for a in honest for b in honest)
    if name == "norm-bound":  # promises a length only
        widest = 2 * m / n * np.linalg.norm(honest, axis=1).max()
    assert np.linalg.norm(change - honest.mean(axis=0)) <= widest
    if abs(size) > 1e3:
        assert not np.linalg.norm(Mean()(arrivals(updates)) - honest.mean(axis=0)) <= widest


@pytest.mark.parametrize("name", ["krum", "multi-krum", "trimmed-mean", "median", "bulyan", "geometric-median"])
def test_too_many_attackers_break_the_promise(name):
    """What happens where `attackers` is too small: otherwise the test above would show nothing."""
    updates = near(11)
    updates[:6] = np.float32(1e6)
    assert np.abs(outcome(name, updates, attackers=0.1)).max() > 1e3


class TestRefusals:
    def test_krum_needs_a_neighbour(self):
        with pytest.raises(ValueError, match=r"1 of 3 clients, so Krum has no neighbours .* = 0\).* 4 clients"):
            Krum()(arrivals(near(3)))
        with pytest.raises(ValueError, match="0 of 2 clients"):
            MultiKrum()(arrivals(near(2)))

    def test_krum_and_bulyan_warn_where_they_promise_nothing(self):
        robust._warn.cache_clear()
        with pytest.warns(UserWarning, match="Krum has no guarantee if 4 of 10 .* at least 11 clients"):
            change = Krum(0.4)(arrivals(near(10)))
        assert np.isfinite(change).all()
        with pytest.warns(UserWarning, match="Bulyan has no guarantee if 2 of 10 .* at least 11 clients"):
            Bulyan()(arrivals(near(10)))
        Krum(0.4)(arrivals(near(10)))  # once is enough

    def test_bulyan_needs_four_times_as_many(self):
        with pytest.raises(
            ValueError, match=r"means 3 of 10 clients, but Bulyan drops four per attacker; .* than 12 clients"
        ):
            Bulyan(0.3)(arrivals(near(10)))

    @pytest.mark.parametrize(
        ("kind", "settings", "message"),
        [
            (NormBound, {"bound": 0.0}, "bound must be a finite positive number"),
            (NormBound, {"bound": math.inf}, "bound must be a finite positive number"),
            (Trust, {"queries": 0}, "queries must be at least 1"),
            (GeometricMedian, {"tolerance": 0.0}, "tolerance must be greater than 0"),
            (GeometricMedian, {"iterations": 0}, "iterations must be at least 1"),
            (Reputation, {"window": 0}, "window must be at least 1"),
            (Reputation, {"errors": -1.0}, "errors must be a finite number"),
        ],
    )
    def test_settings_that_make_no_sense(self, kind, settings, message):
        with pytest.raises(ValueError, match=message):
            kind(**settings)

    def test_a_bound_is_a_number_or_the_median(self):
        assert build(Aggregator, {"name": "norm-bound", "bound": 2}, "x") == NormBound(bound=2.0)
        with pytest.raises(ValueError, match=r"x\.bound: .mean. cannot be used; give a number or give .median."):
            build(Aggregator, {"name": "norm-bound", "bound": "mean"}, "x")


class Hill:
    """Clients that climb towards a goal, each with its own noise; `liars` send the opposite, or worse."""

    def __init__(self, seed, clients=10, parameters=20, noise=0.01):
        self.rng = np.random.default_rng(seed)
        self.slope = 0.3 * self.rng.uniform(0.1, 1, parameters)
        self.goal = 3 * self.rng.standard_normal(parameters)
        self.clients, self.noise = clients, noise
        self.weights = np.zeros(parameters)

    def run(self, rule, rounds, liars=(), factor=-1, participation=1.0, state=None):
        """Yields the state after each round."""
        n, parameters = self.clients, len(self.goal)
        state = rule.first(n, parameters) if state is None else state
        for _ in range(rounds):
            updates = self.slope * (self.goal - self.weights) + self.noise * self.rng.standard_normal((n, parameters))
            updates[list(liars)] *= factor
            here = np.sort(self.rng.permutation(n)[: round(participation * n)])
            change, state = rule(arrivals(updates[here], weights=self.weights, ids=here), state)
            self.weights = self.weights + change
            yield state


class TestReputation:
    @pytest.mark.parametrize("seed", range(5))
    def test_liars_are_excluded_for_good_and_the_others_arrive(self, seed):
        hill = Hill(seed)
        states = list(hill.run(Reputation(), 150, liars=[3, 7]))
        assert not states[8]["excluded"].any()  # the window of ten scores begins in round 2
        assert [np.flatnonzero(state["excluded"]).tolist() for state in states[30:]] == [[3, 7]] * 120
        assert np.linalg.norm(hill.weights - hill.goal) < 0.1 * np.linalg.norm(hill.goal)

    def test_liars_who_come_to_a_part_of_all_rounds(self):
        for seed in range(3):
            *_, last = Hill(seed, noise=0.3).run(Reputation(), 60, liars=[3, 7], factor=-3, participation=0.7)
            assert np.flatnonzero(last["excluded"]).tolist() == [3, 7]

    @pytest.mark.parametrize("noise", [0.05, 0.3])
    def test_nobody_is_excluded_in_a_hundred_honest_rounds(self, noise):
        alarms = 0
        for seed in range(20):
            *_, last = Hill(seed, noise=noise).run(Reputation(), 100)
            alarms += last["excluded"].any()
        assert alarms == 0

    def test_the_published_threshold_raises_false_alarms(self):
        alarms = 0
        for seed in range(20):
            *_, last = Hill(seed, noise=0.3).run(Reputation(errors=1.0), 100)
            alarms += last["excluded"].any()
        assert 1 <= alarms <= 19

    def test_a_group_larger_than_attackers_can_be_is_let_be(self):
        *_, last = Hill(1).run(Reputation(attackers=0.1), 60, liars=[3, 7])
        assert not last["excluded"].any()

    def test_a_run_that_was_interrupted_goes_on_as_if_not(self):
        hill, again = Hill(2), Hill(2)
        rule = Reputation(window=4)
        *_, whole = hill.run(rule, 20, liars=[0])
        *_, half = again.run(rule, 10, liars=[0])
        *_, rest = again.run(rule, 10, liars=[0], state={name: array.copy() for name, array in half.items()})
        assert all(np.array_equal(whole[name], rest[name], equal_nan=True) for name in whole)

    def test_the_state_given_is_left_as_it_is(self):
        rule = Reputation()
        state = rule.first(11, 6)
        before = {name: array.copy() for name, array in state.items()}
        change, after = rule(arrivals(near(11)), state)
        assert all(np.array_equal(state[name], before[name], equal_nan=True) for name in state)
        change += 1
        assert not np.array_equal(after["change"], change)

    def test_excluded_clients_do_not_count_and_need_not_leave_anybody(self):
        rule = Reputation()
        state = rule.first(5, 2)
        state["excluded"][[0, 1]] = True
        updates = [[9.0, 9.0], [7.0, 7.0], [1.0, 2.0], [2.0, 4.0], [3.0, 3.0]]
        assert rule(arrivals(updates), state)[0].tolist() == [(1 + 2 + 3) / 3, (2 + 4 + 3) / 3]
        assert rule(arrivals(updates[:2]), state)[0].tolist() == [0, 0]

    def test_clients_and_parameters_that_are_not_remembered_are_refused(self):
        rule = Reputation()
        for ids in ([0, 5], [-1, 0]):
            with pytest.raises(ValueError, match=r"are not rows of the 5 clients in the state; number"):
                rule(arrivals(near(2), ids=np.array(ids)), rule.first(5, 6))
        with pytest.raises(ValueError, match=r"updates of 6 parameters .* the state with 7 .* with first\(2, 6\)"):
            rule(arrivals(near(2)), rule.first(2, 7))
        with pytest.raises(ValueError, match=r"for a model of shape \(2, 6\) do not match"):
            rule(arrivals(near(2), weights=np.zeros((2, 6))), rule.first(2, 6))

    def test_equal_scores_are_one_cluster(self):
        rule = Reputation(errors=0.0)
        state = rule.first(10, 3)
        for _ in range(30):
            _, state = rule(arrivals(np.ones((10, 3))), state)
        assert not state["excluded"].any()
        assert (state["surprises"] == 1).all()


def test_robust_aggregators_run_on_a_card_if_their_clients_fit():
    """Of 160 KiB, less what threads add up, 2^14 distances of 8 bytes fit, and 2^15 values of 4 bytes."""
    device = SimpleNamespace(fast_memory=160 << 10)
    learner = SimpleNamespace(bytes_each=None, device=device)
    for rule in (Krum(), MultiKrum()):
        assert robust_rule(rule, learner, 16384) == rule.on_device
        assert robust_rule(rule, learner, 16385) is None
    for rule in (TrimmedMean(), Median()):
        assert robust_rule(rule, learner, 32768) == rule.on_device
        assert robust_rule(rule, learner, 32769) is None
    assert robust_rule(Bulyan(), learner, 10) is None
    assert robust_rule(Mean(), learner, 10) is None
    learner.bytes_each = 16
    assert robust_rule(Krum(), learner, 10) is None

"""How different clients are."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from fedrank.data.ranking import RankingData
from fedrank.federated import heterogeneity as module
from fedrank.federated.clients import make_clients
from fedrank.federated.heterogeneity import differences
from fedrank.federated.partition import Dirichlet, Iid, Labels, Own, Shared, Split
from tests.made_up import made_up_data
from tests.oracles.partition import total_variation

# Three queries, six documents.
SIX = RankingData(
    np.array([[0, 5], [1, 5], [2, 5], [3, 5], [4, 5], [5, 5]], dtype=np.float32),
    np.array([0, 1, 2, 0, 0, 0], dtype=np.int8),
    np.array([0, 3, 4, 6]),
    np.array(["a", "b", "c"]),
    top_grade=2,
)


def fixed(*pools, views=None):
    """A partition that gives clients these queries."""

    def partition(data, count, rng):
        grades = None if views is None else np.array(views, np.int8)
        view = None if views is None else np.arange(count, dtype=np.int32)
        own = np.arange(count, dtype=np.int32)
        return Split(tuple(np.array(pool, np.int32) for pool in pools), own, grades=grades, view=view)

    return partition


def named(found, name):
    (one,) = [distance for distance in found.distances if distance.name == name]
    return one


def test_counts_by_hand():
    clients = make_clients(
        SIX, 2, partition=fixed([0, 1], [1, 2]), click_model=["perfect", "poison"], interactions=[3, 7]
    )
    found = differences(clients)
    assert found.queries.tolist() == [2, 2]
    assert found.documents.tolist() == [3 + 1, 1 + 2]
    assert found.grades.tolist() == [[2, 1, 1], [3, 0, 0]]
    assert found.without.tolist() == [1, 2]
    assert found.interactions.tolist() == [3, 7]
    assert found.users == ("perfect", "poison")
    # All together hold 5 documents of grade 0 and one each of 1 and 2.
    expected = [(abs(2 / 4 - 5 / 7) + 2 * abs(1 / 4 - 1 / 7)) / 2, (abs(1 - 5 / 7) + 2 / 7) / 2]
    assert found.from_all == pytest.approx(expected)
    grades = named(found, "grades, from all")
    assert (grades.mean, grades.most) == pytest.approx((sum(expected) / 2, max(expected)))
    assert found.grade_pairs[0, 1] == found.grade_pairs[1, 0] == pytest.approx((abs(2 / 4 - 1) + 1 / 4 + 1 / 4) / 2)
    assert found.query_pairs[0, 1] == pytest.approx(1 / 3)
    assert found.query_pairs[0, 0] == 1


def test_drawn_users_are_named():
    clients = make_clients(SIX, 1, click_model=["perfect", "poison"], click_model_per="interaction")
    assert differences(clients).users == ("perfect / poison",)


def test_features_by_hand():
    clients = make_clients(SIX, 2, partition=fixed([0], [1, 2]))
    # The first feature is 0 .. 5, for the two clients 0 .. 2 and 3 .. 5; the second never varies and is left out.
    deviation = np.std(np.arange(6))
    expected = wasserstein_distance([0, 1, 2], np.arange(6)) / deviation
    found = named(differences(clients), "features, from all")
    assert expected == pytest.approx(1.5 / deviation)
    assert (found.mean, found.most) == pytest.approx((expected, expected))


def test_what_more_clients_hold_counts_more():
    def partition(data, count, rng):
        return Split((np.array([0], np.int32), np.array([1, 2], np.int32)), np.array([0, 1, 1], np.int32))

    found = differences(make_clients(SIX, 3, partition=partition))
    # All together hold documents 0, 1 and 2 once and 3, 4 and 5 twice: of nine, one each of grades 1 and 2.
    lonely, others = (abs(1 / 3 - 7 / 9) + 2 * abs(1 / 3 - 1 / 9)) / 2, (abs(1 - 7 / 9) + 2 / 9) / 2
    assert found.from_all == pytest.approx([lonely, others, others])
    everything = np.array([0, 1, 2, 3, 4, 5, 3, 4, 5])
    apart = [wasserstein_distance(one, everything) / everything.std() for one in ([0, 1, 2], [3, 4, 5], [3, 4, 5])]
    features = named(found, "features, from all")
    assert (features.mean, features.most) == pytest.approx((np.mean(apart), apart[0]))


def test_features_of_clients_with_the_same_queries():
    clients = make_clients(SIX, 3, partition=fixed([1], [2], [2]))
    # The first client holds 3; all together hold 3 once, and 4 and 5 twice each.
    everything = np.array([3, 4, 5, 4, 5])
    found = named(differences(clients), "features, from all")
    apart = wasserstein_distance([3], everything) / everything.std(), wasserstein_distance([4, 5], everything)
    assert apart[0] == pytest.approx((0 + 1 + 2 + 1 + 2) / 5 / everything.std())
    assert found.most == pytest.approx(apart[0])
    assert found.mean == pytest.approx((apart[0] + 2 * apart[1] / everything.std()) / 3)


def test_features_of_many_documents_are_sampled(monkeypatch):
    clients = make_clients(made_up_data(queries=300, seed=4), 3, partition=Labels())
    whole = named(differences(clients), "features, from all").mean
    monkeypatch.setattr(module, "SAMPLE", 400)
    sample = named(differences(clients), "features, from all").mean
    assert sample != whole
    assert sample == pytest.approx(whole, rel=0.25)


@pytest.mark.parametrize("partition", [Iid(), Own(), Labels(), Labels(each=2, overlap=True), Shared(Labels())])
def test_distance_of_grades_as_the_oracle(partition):
    clients = make_clients(made_up_data(queries=30, seed=2), 3, partition=partition)
    mine = []
    for c in range(3):
        queries = clients.queries[clients.pools[clients.pool[c]] : clients.pools[clients.pool[c] + 1]]
        mine.append(clients.data.select(queries).grades.tolist())
    everything = [grade for one in mine for grade in one]
    found = differences(clients)
    assert found.from_all == pytest.approx([total_variation(one, everything) for one in mine])
    assert found.grade_pairs[0] == pytest.approx([total_variation(mine[0], one) for one in mine])


def test_the_same_for_all_is_no_difference():
    found = differences(make_clients(made_up_data(queries=300), 5))
    for name in ("grades, from all", "features, from all", "judged differently"):
        assert dataclasses.astuple(named(found, name))[1:] == (0, 0, 0, 0)
    assert dataclasses.astuple(named(found, "queries in common"))[1:] == (1, 1, 1, 1)


def test_random_shares_are_as_different_as_chance():
    data = made_up_data(queries=300, seed=5)
    own = [named(differences(make_clients(data, 6, partition=Own(), seed=s)), "grades, from all") for s in range(8)]
    assert np.mean([one.mean for one in own]) == pytest.approx(np.mean([one.mean_by_chance for one in own]), rel=0.2)
    assert np.mean([one.most for one in own]) == pytest.approx(np.mean([one.most_by_chance for one in own]), rel=0.2)


@pytest.mark.parametrize("partition", [Labels(), Dirichlet(0.1)])
def test_skew_is_far_more_than_chance(partition):
    data = made_up_data(queries=300, seed=5)
    grades = named(differences(make_clients(data, 3, partition=partition, seed=2)), "grades, from all")
    assert grades.mean > 2 * grades.mean_by_chance
    assert grades.most > 2 * grades.most_by_chance


def test_chance_deals_single_documents_where_queries_were_divided():
    clients = make_clients(made_up_data(queries=60, longest=8, seed=6), 3, partition=Labels())
    counts = np.bincount(clients.data.grades)
    rng = np.random.default_rng(1)
    simulated = []
    for _ in range(200):
        dealt = np.split(rng.permutation(clients.data.grades), np.cumsum(counts)[:-1])
        shares = np.array([np.bincount(one, minlength=3) / len(one) for one in dealt])
        simulated.append((np.abs(shares - counts / counts.sum()).sum(axis=1) / 2).mean())
    grades = named(differences(clients), "grades, from all")
    assert grades.mean_by_chance == pytest.approx(np.mean(simulated), rel=0.25)


def test_divided_queries_are_still_the_same_queries():
    found = differences(make_clients(SIX, 3, partition=Labels()))
    # Grade 0 is in queries a, b and c; grades 1 and 2 are in a alone.
    assert found.query_pairs.tolist() == [[1, 1 / 3, 1 / 3], [1 / 3, 1, 1], [1 / 3, 1, 1]]
    assert found.grade_pairs.tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]


def test_judgements_by_hand():
    views = [[0, 1, 1, 0, 0, 1], [1, 1, 0, 0, 0, 0]]
    clients = make_clients(SIX, 2, partition=fixed([0, 1, 2], [0, 1], views=views))
    found = differences(clients)
    # Both hold documents 0 .. 3; one finds 1 and 2 relevant, the other 0 and 1: of three, two are graded differently.
    assert found.judgement_pairs.tolist() == [[0, 2 / 3], [2 / 3, 0]]
    assert named(found, "judged differently").mean == pytest.approx(2 / 3)
    assert found.grades.tolist() == [[3, 3, 0], [2, 2, 0]]


def test_one_client_has_nobody_to_compare_with():
    found = differences(make_clients(SIX, 1))
    assert np.isnan(named(found, "queries in common").mean)
    assert found.from_all.tolist() == [0]


def test_order_of_clients_does_not_matter():
    clients = make_clients(made_up_data(queries=30), 6, partition=Dirichlet(2.0))
    one, other = differences(clients), differences(clients.rows(np.arange(6)[::-1]))
    assert np.array_equal(one.grades, other.grades[::-1])
    assert np.array_equal(one.grade_pairs, other.grade_pairs[::-1, ::-1])
    for mine, theirs in zip(one.distances, other.distances, strict=True):
        assert dataclasses.astuple(mine)[1:] == pytest.approx(dataclasses.astuple(theirs)[1:])


def test_many_clients_are_measured_by_their_pools(monkeypatch):
    clients = make_clients(made_up_data(), 100_000)
    measured, queries = [], module._Holdings.queries
    monkeypatch.setattr(module._Holdings, "queries", lambda self, one: measured.append(one) or queries(self, one))
    found = differences(clients)
    assert len(measured) < 1_000, "clients were measured one by one"
    assert found.documents.shape == (100_000,)
    assert len(found.compared) == module.PAIRS_OF
    assert found.compared[[0, -1]].tolist() == [0, 99_999]

"""Partitions: who gets what."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data import catalog
from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.partition import (
    PARTITIONS,
    Attribute,
    Dirichlet,
    Iid,
    Intents,
    Labels,
    Own,
    Shared,
    main_grades,
    shuffle_intents,
)
from fedrank.federated.simulation import simulate
from fedrank.seeds import Chance
from tests import needs
from tests.made_up import made_up_data
from tests.oracles.partition import is_shuffle_of_intents, labels_overlapping, main_grade

# Two queries, six documents; the first feature numbers the documents.
SIX = RankingData(
    np.arange(6, dtype=np.float32)[:, None].repeat(2, axis=1),
    np.array([0, 1, 2, 0, 0, 1], dtype=np.int8),
    np.array([0, 4, 6]),
    np.array(["a", "b"]),
    top_grade=2,
)


def numbered(queries=15, levels=3, seed=0):
    """Data with equally frequent grades, whose first feature is the document's number."""
    data = made_up_data(queries=queries, top_grade=levels - 1, seed=seed)
    data.grades[:] = np.random.default_rng(seed).permutation(np.arange(data.documents) % levels)
    data.features[:, 0] = np.arange(data.documents)
    return data


def held(split, data):
    """For each client, the list of (query id, numbers of its documents)."""
    used = data if split.data is None else split.data
    found = []
    for pool in split.pool:
        queries = [int(q) for q in split.pools[pool]]
        rows = [used.features[used.offsets[q] : used.offsets[q + 1], 0].astype(int).tolist() for q in queries]
        found.append([(str(used.query_ids[q]), one) for q, one in zip(queries, rows, strict=True)])
    return found


def rng(seed=0):
    return np.random.default_rng(seed)


class TestLabels:
    def test_one_grade_by_hand(self):
        split = Labels()(SIX, 3, rng())
        assert held(split, SIX) == [[("a", [0, 3]), ("b", [4])], [("a", [1]), ("b", [5])], [("a", [2])]]
        assert split.data.grades.tolist() == [0, 0, 0, 1, 1, 2]
        assert split.data.top_grade == 2

    def test_two_grades_with_overlap_by_hand(self):
        split = Labels(each=2, overlap=True)(SIX, 3, rng())
        assert held(split, SIX) == [
            [("a", [0, 1, 3]), ("b", [4, 5])],
            [("a", [0, 2, 3]), ("b", [4])],
            [("a", [1, 2]), ("b", [5])],
        ]

    @pytest.mark.long
    @settings(deadline=None, max_examples=25)
    @given(levels=st.sampled_from([2, 3, 5]), each=st.integers(1, 2), times=st.integers(1, 2), seed=st.integers(0, 99))
    def test_every_document_is_handed_out_once_and_evenly(self, levels, each, times, seed):
        data = numbered(40, levels, seed)
        count = times * comb(levels, each)
        split = Labels(each=each)(data, count, rng(seed))
        rows = split.data.features[:, 0].astype(int)
        assert sorted(rows.tolist()) == list(range(data.documents))
        assert np.array_equal(split.data.grades, data.grades[rows])
        clients = held(split, data)
        mine = [[row for _, rows in one for row in rows] for one in clients]
        for grade in range(levels):
            sizes = [size for one in mine if (size := int(np.sum(data.grades[one] == grade)))]
            assert max(sizes) - min(sizes) <= 1, "owners of a grade have equally many of its documents"
            assert len(sizes) == times * comb(levels - 1, each - 1)
        for one in clients:
            assert len({name for name, _ in one}) == len(one), "a query is one list, not several"
            for name, rows in one:
                assert all(
                    str(data.query_ids[np.searchsorted(data.offsets, r, side="right") - 1]) == name for r in rows
                )

    def test_a_query_is_divided_evenly_between_two_owners(self):
        data = RankingData(
            np.arange(12, dtype=np.float32)[:, None],
            np.array([0, 0, 0, 0, 1, 1] * 2, np.int8),
            np.array([0, 6, 12]),
            np.array(["a", "b"]),
        )
        clients = held(Labels()(data, 4, rng()), data)
        assert [[len(rows) for _, rows in one] for one in clients] == [[2, 2], [1, 1], [2, 2], [1, 1]]

    @pytest.mark.parametrize(("levels", "each", "count"), [(3, 1, 6), (3, 2, 3), (5, 2, 10), (5, 3, 10)])
    def test_overlap_as_the_oracle(self, levels, each, count):
        data = numbered(20, levels, 3)
        expected = labels_overlapping(data.grades.tolist(), data.offsets.tolist(), levels, each, count)
        named = [[(str(data.query_ids[q]), rows) for q, rows in one] for one in expected]
        assert held(Labels(each=each, overlap=True)(data, count, rng()), data) == named

    def test_one_grade_each_needs_no_chance(self):
        data = numbered(20, 3, 3)
        assert held(Labels()(data, 3, rng(1)), data) == held(Labels(overlap=True)(data, 3, rng(2)), data)

    def test_normalise_after_is_within_what_a_client_holds(self):
        data = normalise(made_up_data(queries=20, top_grade=2), "query")
        before, after = Labels()(data, 3, rng()), Labels(normalise_after=True)(data, 3, rng())
        assert np.array_equal(normalise(before.data, "query").features, after.data.features)
        assert not np.array_equal(before.data.features, after.data.features)

    def test_single_grade_clients_are_always_perfect_or_empty(self):
        data = made_up_data(queries=30, top_grade=4)
        clients = make_clients(data, 5, partition=Labels(), click_model="informational", interactions=3)
        for outcome in simulate(Federation(), clients, rounds=8):
            # The client of grade 0 has nothing relevant; the lists of the others cannot be better.
            assert outcome.online == pytest.approx((0 + 1 + 1 + 1 + 1) / 5, abs=1e-12)
        published = sum(0.8 * 0.9995**r for r in range(10_000))
        assert published == pytest.approx(0.8 * (1 - 0.9995**10_000) / (1 - 0.9995))
        assert round(published, 2) == 1589.23

    @pytest.mark.parametrize(
        ("method", "count", "message"),
        [
            (
                Labels(),
                4,
                "4 clients do not match the 3 combinations of 1 of 3 relevance labels.*clients.count = 3 or a multiple",
            ),
            (Labels(each=2), 5, "3 combinations of 2 of 3 relevance labels.*clients.count = 3"),
            (Labels(each=4), 3, "each must be at most the number of relevance labels of the data, 3"),
            (Labels(), 9, "client . of 9 gets no document with label"),
        ],
    )
    def test_bad_counts_are_refused(self, method, count, message):
        with pytest.raises(ValueError, match=message):
            method(SIX, count, rng())

    def test_a_grade_that_does_not_occur_is_refused(self):
        data = RankingData(SIX.features, np.zeros(6, np.int8), SIX.offsets, SIX.query_ids, top_grade=2)
        with pytest.raises(ValueError, match="label 1 does not occur among 6 documents"):
            Labels()(data, 3, rng())

    def test_no_grade_at_all_is_refused(self):
        with pytest.raises(ValueError, match="each must be at least 1"):
            Labels(each=0)


class TestIntents:
    JUDGED = np.array([[0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 1, 0], [0, 0, 1, 0, 1, 1], [0, 0, 0, 1, 0, 0]], np.int8)

    @settings(deadline=None, max_examples=20)
    @given(seed=st.integers(0, 1000))
    def test_shuffle_keeps_every_query_whole(self, seed):
        judged = rng(seed).integers(0, 2, size=(4, 40)).astype(np.int8)
        offsets = np.array([0, 7, 20, 21, 40])
        views = shuffle_intents(judged, offsets, rng(seed))
        assert is_shuffle_of_intents(views, judged, offsets)

    def test_every_client_gets_every_intent_alike(self):
        judged = np.arange(4, dtype=np.int8)[:, None].repeat(4000, axis=1)
        views = shuffle_intents(judged, np.arange(4001), rng())
        for view in views:
            assert np.bincount(view) / 4000 == pytest.approx([0.25] * 4, abs=0.03)

    @pytest.fixture
    def judged_data(self):
        union = self.JUDGED.max(axis=0)
        return RankingData(SIX.features, union, SIX.offsets, SIX.query_ids, top_grade=1, intents=self.JUDGED)

    def test_clients_see_their_intent(self, judged_data):
        clients = make_clients(judged_data, 4, partition=Intents(), seed=5)
        assert clients.data is judged_data
        assert clients.view.tolist() == [0, 1, 2, 3]
        assert is_shuffle_of_intents(clients.grades, self.JUDGED, SIX.offsets)
        for view, ideal in zip(clients.grades, clients.ideal, strict=True):
            relevant = [view[:4].sum(), view[4:].sum()]
            best = [sum(1 / np.log2(rank + 1) for rank in range(1, n + 1)) for n in relevant]
            assert ideal == pytest.approx(best), "the best list by what this client finds relevant"

    def test_mixed_is_the_union(self, judged_data):
        clients = make_clients(judged_data, 3, partition=Intents(mixed=True))
        assert clients.grades.tolist() == [[1, 1, 1, 1, 1, 1]]
        assert clients.view.tolist() == [0, 0, 0]

    def test_wrong_counts_and_data_are_refused(self, judged_data):
        with pytest.raises(ValueError, match=r"3 clients are too few for 4 intents.*clients.count = 4 or more"):
            Intents()(judged_data, 3, rng())
        with pytest.raises(ValueError, match="labels by intent of 6 documents, but there are 5"):
            replace(
                judged_data,
                features=SIX.features[:5], grades=SIX.grades[:5], offsets=np.array([0, 5]), query_ids=SIX.query_ids[:1],
            )  # fmt: skip
        with pytest.raises(ValueError, match=r'made up has no judgements by intent.*"synthetic-intents"'):
            Intents()(made_up_data(), 4, rng())

    def test_more_clients_than_intents_get_a_shuffle_of_their_own(self, judged_data):
        five, four = (Intents()(judged_data, count, rng(5)) for count in (5, 4))
        assert five.view.tolist() == [0, 1, 2, 3, 4]
        assert np.array_equal(five.grades[:4], four.grades)
        rows = [self.JUDGED[:, q] for q in (slice(0, 4), slice(4, 6))]
        for q, part in zip((slice(0, 4), slice(4, 6)), rows, strict=True):
            assert five.grades[4, q].tolist() in part.tolist(), "one of the query's intents"
        mixed = Intents(mixed=True)(judged_data, 5, rng(5))
        assert np.array_equal(mixed.grades[:5], five.grades)
        assert mixed.view.tolist() == [5] * 5
        assert mixed.judged.tolist() == [0, 1, 2, 3, 4]

    def test_intents_stay_with_their_documents(self, judged_data):
        second = judged_data.select([1])
        assert second.intents.tolist() == self.JUDGED[:, 4:].tolist()
        joined = RankingData.join([second, judged_data])
        assert joined.intents.tolist() == np.concatenate([self.JUDGED[:, 4:], self.JUDGED], axis=1).tolist()
        assert not len(RankingData.join([second, replace(SIX, top_grade=1)]).intents), "not all have them"

    @pytest.mark.long
    @needs.data
    def test_real_topics(self):
        data = catalog.load("clueweb09-intents").train
        clients = make_clients(data, 4, partition=Intents())
        assert (data.queries, clients.grades.shape) == (61, (4, 26_646))
        judged = catalog.intent_grades("clueweb09-intents")[1:]
        assert is_shuffle_of_intents(clients.grades, judged, data.offsets)
        assert not np.array_equal(clients.grades, judged)
        mixed = make_clients(data, 4, partition=Intents(mixed=True))
        assert np.array_equal(mixed.grades[mixed.view[0]], clients.grades.max(axis=0)), "in any order, the same union"


class TestAttribute:
    @pytest.fixture
    def data(self):
        return made_up_data(queries=6)

    def write(self, tmp_path, text):
        (tmp_path / "of.tsv").write_text(text, encoding="utf-8")
        return Attribute(str(tmp_path / "of.tsv"))

    LINES = "0\tnorth\n1\tsouth\n2\tnorth\n3\twest\n4\tsouth\n5\tsouth\nunknown\teast\n"

    def test_one_client_per_value(self, data, tmp_path):
        split = self.write(tmp_path, self.LINES)(data, 3, rng())
        assert [pool.tolist() for pool in split.pools] == [[0, 2], [1, 4, 5], [3]]

    def test_values_are_dealt_in_turn_largest_first(self, data, tmp_path):
        split = self.write(tmp_path, "0\ta\n" + "".join(f"{q}\tb\n" for q in (1, 2)) + "3\tc\n4\tc\n5\tc\n")(
            data, 2, rng()
        )
        assert [pool.tolist() for pool in split.pools] == [[0, 3, 4, 5], [1, 2]], "c and a; b"
        pair = self.write(tmp_path, "0\tb\n1\ta\n2\ta\n3\tc\n4\tc\n5\td\n")(data, 3, rng())
        assert [pool.tolist() for pool in pair.pools] == [[1, 2, 5], [3, 4], [0]], "a and d; c; b"

    @pytest.mark.parametrize(
        ("text", "count", "message"),
        [
            (LINES.replace("3\twest\n", ""), 2, "no value for 1 of 6 queries, such as 3"),
            (LINES, 4, "4 clients, but the queries have 3 values.*at most 3 clients"),
            (LINES + "0\twest\n", 3, "line 8: query 0 has values 'north' and 'west'"),
            ("0 north\n", 3, "line 1: '0 north' is not valid"),
        ],
    )
    def test_bad_files_are_refused(self, data, tmp_path, text, count, message):
        with pytest.raises(ValueError, match=message):
            self.write(tmp_path, text)(data, count, rng())

    def test_a_file_is_needed(self, data):
        with pytest.raises(ValueError, match='"attribute" needs a file'):
            Attribute()(data, 2, rng())


class TestDirichlet:
    @settings(deadline=None, max_examples=20)
    @given(count=st.integers(1, 6), concentration=st.floats(0.3, 100), seed=st.integers(0, 99))
    def test_every_query_is_dealt_out_once(self, count, concentration, seed):
        data = made_up_data(queries=60, seed=1)
        split = Dirichlet(concentration)(data, count, rng(seed))
        assert sorted(np.concatenate(split.pools).tolist()) == list(range(60))
        assert all(len(pool) for pool in split.pools)

    def test_small_concentration_divides_classes_unevenly(self):
        data = made_up_data(queries=600, seed=2)
        kind = main_grades(data)

        def largest_share(concentration):
            split = Dirichlet(concentration)(data, 4, rng(3))
            shares = [np.bincount(kind[pool], minlength=3) / np.bincount(kind, minlength=3) for pool in split.pools]
            return np.max(shares, axis=0)[1]

        assert largest_share(0.1) > 0.6
        assert largest_share(1000.0) == pytest.approx(0.25, abs=0.03)

    def test_classes_are_main_grades(self):
        data = made_up_data(queries=50, top_grade=4, seed=4)
        parts = zip(data.offsets[:-1], data.offsets[1:], strict=True)
        assert main_grades(data).tolist() == [main_grade(data.grades[a:b].tolist()) for a, b in parts]

    def test_topics_from_a_file(self, tmp_path):
        data = made_up_data(queries=40)
        file = tmp_path / "topics.tsv"
        file.write_text("".join(f"{q}\t{'even' if q % 2 == 0 else 'odd'}\n" for q in range(40)), encoding="utf-8")
        split = Dirichlet(0.05, over=str(file))(data, 2, rng(1))
        even = [int(np.sum(pool % 2 == 0)) for pool in split.pools]
        odd = [int(np.sum(pool % 2 == 1)) for pool in split.pools]
        assert sum(even) == sum(odd) == 20
        assert max(even) >= 18, "nearly all of a topic go to one client"
        assert max(odd) >= 18

    def test_large_concentration_divides_evenly(self, tmp_path):
        file = tmp_path / "topics.tsv"
        file.write_text("".join(f"{q}\tall\n" for q in range(40)), encoding="utf-8")
        split = Dirichlet(1e9, over=str(file))(made_up_data(queries=40), 4, rng(1))
        assert [len(pool) for pool in split.pools] == [10, 10, 10, 10]

    def test_impossible_settings_are_refused(self):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="concentration must be greater than 0"):
                Dirichlet(value)
        with pytest.raises(ValueError, match="left one of 12 clients without a query 100 times"):
            Dirichlet(0.01)(made_up_data(), 12, rng())
        with pytest.raises(ValueError, match="13 clients need at least as many queries"):
            Dirichlet()(made_up_data(), 13, rng())


class TestShared:
    def test_pools_of_queries_grow_by_the_same_queries(self):
        data = made_up_data(queries=20)
        alone, split = Own()(data, 4, rng(7)), Shared(Own(), 0.2)(data, 4, rng(7))
        assert len(split.shared) == round(0.2 * 20)
        for before, after in zip(alone.pools, split.pools, strict=True):
            assert after.tolist() == sorted({*before.tolist(), *split.shared.tolist()})

    def test_whole_queries_take_the_place_of_parts(self):
        data = numbered(20)
        split = Shared(Labels(), 0.2)(data, 3, rng(7))
        whole = {str(split.data.query_ids[q]) for q in split.shared}
        assert len(whole) == 4
        alone = held(Labels()(data, 3, rng(7)), data)
        every = {str(data.query_ids[q]): list(range(data.offsets[q], data.offsets[q + 1])) for q in range(20)}
        for before, after in zip(alone, held(split, data), strict=True):
            expected = [(name, rows) for name, rows in before if name not in whole]
            assert after == expected + [(name, every[name]) for name in every if name in whole]
        clients = make_clients(data, 3, partition=Shared(Labels(), 0.2))
        assert clients.data.documents == clients.grades.shape[1] > data.documents

    def test_shared_queries_show_their_own_grades_to_everybody(self):
        judged, intents = (SIX.grades > 0).astype(np.int8), TestIntents.JUDGED
        data = RankingData(SIX.features, judged, SIX.offsets, SIX.query_ids, top_grade=1, intents=intents)
        split = Shared(Intents(), 0.5)(data, 4, rng())
        (query,) = split.shared
        rows = slice(split.data.offsets[query], split.data.offsets[query + 1])
        assert (split.grades[:, rows] == split.data.grades[rows]).all()
        assert split.grades.shape == (4, split.data.documents)
        assert len(split.pools[0]) == 2, "the other query, and the shared one"

    def test_normalised_like_what_it_joins(self):
        split = Shared(Labels(normalise_after=True), 0.2)(made_up_data(queries=20), 3, rng())
        assert split.data.normalised == "query"

    @pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 1.5])
    def test_a_share_is_a_part(self, share):
        with pytest.raises(ValueError, match="share must be between 0 and 1"):
            Shared(Iid(), share)


SMALL = {"iid": Iid(), "own": Own(), "labels": Labels(), "dirichlet": Dirichlet(5.0), "shared": Shared(Labels())}


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides(name):
    data = numbered(40, 3, 1)
    first = held(SMALL[name](data, 6, rng(3)), data)
    assert first == held(SMALL[name](data, 6, rng(3)), data)
    if name != "iid":
        assert first != held(SMALL[name](data, 6, rng(4)), data)


def test_all_partitions_are_listed():
    assert set(PARTITIONS) == {*SMALL, "attribute", "intents", "users"}


@pytest.mark.parametrize("name", SMALL)
def test_order_of_clients_does_not_matter(name):
    clients = make_clients(numbered(40, 3, 1), 6, partition=SMALL[name], seed=2)
    turned = clients.rows(np.arange(6)[::-1])
    learner = Federation().learner
    weights = np.zeros(5)
    one = learner(weights, clients, Chance(1, 1))
    other = learner(weights, turned, Chance(1, 1))
    assert np.array_equal(one.updates, other.updates[::-1])
    assert np.array_equal(one.observed.online, other.observed.online[::-1])


@needs.data
def test_label_skew_on_real_grades():
    data = catalog.load("mslr-sample").train
    clients = make_clients(data, 5, partition=Labels(), click_model="navigational", interactions=2)
    assert np.bincount(clients.data.grades).tolist() == np.bincount(data.grades).tolist()
    for c in range(5):
        pool = clients.queries[clients.pools[c] : clients.pools[c + 1]]
        assert all(set(clients.data.select([q]).grades.tolist()) == {c} for q in pool)
    for outcome in simulate(Federation(), clients, rounds=3):
        assert outcome.online == pytest.approx(0.8, abs=1e-12)


def test_a_warm_up_learns_from_the_shared_queries_alone():
    from fedrank.federated.clients import make_clients
    from fedrank.federated.partition import Own, Shared
    from fedrank.ranking.learners import Pdgd, warm_up

    data = made_up_data(queries=30)
    clients = make_clients(data, 3, partition=Shared(partition=Own(), share=0.2), interactions=4)
    assert len(clients.shared) == 6
    warm = warm_up(Pdgd(), np.zeros(5), clients, seed=1, interactions=50)
    # Other queries may hold anything: it makes no difference.
    features = data.features.copy()
    others = np.setdiff1d(np.arange(30), clients.shared)
    for query in others:
        features[data.offsets[query] : data.offsets[query + 1]] = 7.0
    elsewhere = replace(clients, data=replace(data, features=features))
    assert np.array_equal(warm, warm_up(Pdgd(), np.zeros(5), elsewhere, seed=1, interactions=50))
    assert np.abs(warm).max() > 0
    with pytest.raises(ValueError, match="a warm-up needs shared queries"):
        warm_up(Pdgd(), np.zeros(5), make_clients(data, 3), seed=1, interactions=50)

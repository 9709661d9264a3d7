"""Splits: which category a query has, who gets which queries, and by which queries models are merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.catalog import Fold
from fedrank.data.ranking import RankingData
from fedrank.federated.heterogeneity import differences
from fedrank.seeds import rng_for
from fedrank.trees.categories import Tally, query_categories, tallies
from fedrank.trees.splits import SPLITS, Categories, Dealt, Topics, as_clients, k_means
from tests.made_up import made_up_data

RULES = ("tie-breaking", "no-ties", "exclusive")


def judged(queries: dict[str, list[tuple[int, int]]], name: str = "hand-made") -> RankingData:
    """Queries of documents (category, grade); the category is feature 2."""
    documents = [pair for pairs in queries.values() for pair in pairs]
    features = np.array([[0.5, category] for category, _ in documents], dtype=np.float32)
    grades = np.array([grade for _, grade in documents], dtype=np.int8)
    offsets = np.cumsum([0, *map(len, queries.values())])
    return RankingData(features, grades, offsets, np.array(list(queries)), name, feature_names=("one", "category"))


BY_HAND = judged(
    {
        "clear": [(11, 1), (11, 2), (14, 1), (14, 0)],  # two of 11, one of 14
        "sum": [(11, 1), (14, 2), (14, 0)],  # one each; grades 1 and 2
        "highest": [(11, 2), (11, 2), (14, 1), (14, 3)],  # two each; sums 4 and 4; highest 2 and 3
        "alone": [(11, 1), (14, 0)],  # all relevant documents are of 11
        "nothing": [(11, 0), (14, 0)],
        "other": [(14, 1), (14, 1), (3, 0)],  # no document of 11
        "unseen": [(14, 1), (11, 0)],  # a document of 11, which is not relevant
    }
)


def categories_by_hand(rule: str) -> dict[str, str]:
    count = tallies("feature:category", 0, [BY_HAND])
    found = query_categories(count(BY_HAND), rule, np.random.default_rng(0))
    return {query: count.names[c] if c >= 0 else "" for query, c in zip(BY_HAND.query_ids, found, strict=True)}


def test_most_relevant_documents_decide_then_sums_then_the_highest_grade():
    assert categories_by_hand("tie-breaking") == {
        "clear": "11", "sum": "14", "highest": "14", "alone": "11", "nothing": "", "other": "14", "unseen": "14",
    }  # fmt: skip


def test_without_tie_breaking_a_tie_has_no_category():
    expected = categories_by_hand("tie-breaking") | {"sum": "", "highest": ""}
    assert categories_by_hand("no-ties") == expected


def test_exclusive_means_every_relevant_document():
    expected = categories_by_hand("tie-breaking") | {"clear": "", "sum": "", "highest": ""}
    assert categories_by_hand("exclusive") == expected


def test_what_grades_cannot_decide_is_decided_by_chance():
    data = judged({str(q): [(1, 2), (2, 2)] for q in range(400)})
    found = query_categories(tallies("feature:2", 0, [data])(data), "tie-breaking", np.random.default_rng(1))
    assert 150 < np.sum(found == 0) < 250


def fold_of(train: RankingData, validation: RankingData | None = None, test: RankingData | None = None) -> Fold:
    return Fold(train, validation, test if test is not None else train, "hand-made", 1)


def ids(data: RankingData | None) -> set[str]:
    return set() if data is None else set(data.query_ids.tolist())


@pytest.mark.parametrize(
    ("rest", "last"),
    [
        ("all", {"clear", "sum", "highest", "nothing", "other", "unseen"}),
        ("no-relevant", {"nothing", "other", "unseen"}),
        ("no-document", {"other"}),
    ],
)
def test_the_last_client_gets_the_others_or_those_without_the_category(rest, last):
    asked = Categories("feature:2", ("11",), rule="exclusive", rest=rest, merge="validation")
    portions = asked(fold_of(BY_HAND, BY_HAND), np.random.default_rng(0))
    assert [portion.name for portion in portions] == ["11", "rest"]
    assert ids(portions[0].train) == {"alone"}
    assert ids(portions[1].train) == last
    assert ids(portions[0].test) == {"alone"}
    assert ids(portions[1].validation) == last


def test_the_filtered_rest_is_the_same_under_all_rules():
    rests = []
    for rule in RULES:
        portions = Categories("feature:2", ("11",), rule=rule, merge="validation")(
            fold_of(BY_HAND, BY_HAND), np.random.default_rng(0)
        )
        rests.append(ids(portions[1].train))
    assert rests[0] == rests[1] == rests[2]


def test_merge_sets_are_the_remaining_queries_least_like_the_own():
    queries = {f"own {i}": [(11, 1)] * 4 for i in range(4)}
    queries |= {f"rest {i}": [(14, 1)] for i in range(6)}
    queries |= {f"mixed {i}": [(11, 1)] * i + [(14, 1)] for i in range(1, 9)}  # i relevant ones of 11
    portions = Categories("feature:2", ("11",), rule="exclusive")(fold_of(judged(queries)), np.random.default_rng(0))
    assert [portion.train.queries for portion in portions] == [4, 6]
    assert ids(portions[0].merge) == {"mixed 1", "mixed 2"}  # 4 / 2, with the fewest relevant documents of 11
    assert ids(portions[1].merge) == {"mixed 6", "mixed 7", "mixed 8"}  # 6 / 2, with the most


def test_merge_sets_from_validation_hold_queries_of_others_only():
    train = judged({f"{c} {i}": [(c, 1), (c, 0)] for c in (1, 2, 3) for i in range(4)})
    validation = judged({f"v{c} {i}": [(c, 1), (c, 0)] for c in (1, 2, 3) for i in range(5)})
    asked = Categories("feature:2", clients=3, rest="none", merge="validation")
    portions = asked(fold_of(train, validation), np.random.default_rng(0))
    assert [portion.name for portion in portions] == ["1", "2", "3"]
    for portion in portions:
        assert {query.split()[0] for query in ids(portion.train)} == {portion.name}
        assert portion.merge.queries == 2  # 4 / 2
        assert not any(query.startswith(f"v{portion.name}") for query in ids(portion.merge))


@pytest.mark.parametrize("split", [Topics(apart=0.5, merge_queries=7), Dealt(apart=0.5, merge_queries=7)])
def test_merge_sets_from_queries_set_apart_hold_what_nobody_learns_from(split):
    train = made_up_data(queries=60, seed=3)
    fold = fold_of(train, made_up_data(queries=20, seed=4))
    portions = split(fold, np.random.default_rng(0))
    learned = [query for portion in portions for query in ids(portion.train)]
    assert len(learned) == len(set(learned)) == 30
    assert [portion.merge.queries for portion in portions] == [7, 7]
    for portion in portions:
        assert not set(ids(portion.merge)) & set(learned)
        assert set(ids(portion.merge)) <= set(train.query_ids.tolist())
    # They are of the others' kind, so that no two clients share one.
    assert not set(ids(portions[0].merge)) & set(ids(portions[1].merge))
    more = replace(split, merge_queries=9)(fold, np.random.default_rng(0))
    for few, many in zip(portions, more, strict=True):
        assert set(ids(few.merge)) < set(ids(many.merge))  # a curve over sizes adds queries to those there were
        assert ids(few.train) == ids(many.train)


def test_a_merge_set_has_no_more_queries_than_asked():
    train = judged({f"{c} {i}": [(c, 1), (c, 0)] for c in (1, 2) for i in range(8)})
    validation = judged({f"v{c} {i}": [(c, 1), (c, 0)] for c in (1, 2) for i in range(5)})
    asked = Categories("feature:2", rest="none", clients=2, merge="validation", merge_queries=3)
    assert [one.merge.queries for one in asked(fold_of(train, validation), np.random.default_rng(0))] == [3, 3]
    asked = replace(asked, merge_queries=100)
    assert [one.merge.queries for one in asked(fold_of(train, validation), np.random.default_rng(0))] == [5, 5]


def test_categories_come_from_a_file_of_queries_or_of_documents(tmp_path):
    by_query, by_document = tmp_path / "queries.tsv", tmp_path / "documents.tsv"
    by_query.write_text("".join(f"{query}\t{'news' if query == 'other' else 'life'}\n" for query in BY_HAND.query_ids))
    of_document = {11: "life", 14: "news", 3: "games"}
    lines = [
        f"{query}\t{number}\t{of_document[int(BY_HAND.features[row, 1])]}\n"
        for q, query in enumerate(BY_HAND.query_ids)
        for number, row in enumerate(range(BY_HAND.offsets[q], BY_HAND.offsets[q + 1]), start=1)
    ]
    by_document.write_text("".join(lines))
    whole = Categories(str(by_query), ("news",), merge="validation")(
        fold_of(BY_HAND, BY_HAND), np.random.default_rng(0)
    )
    assert ids(whole[0].train) == {"other"}
    for rule in RULES:
        one = Categories(str(by_document), ("life",), rule=rule, merge="validation")
        other = Categories("feature:2", ("11",), rule=rule, merge="validation")
        fold = fold_of(BY_HAND, BY_HAND)
        assert [ids(portion.train) for portion in one(fold, np.random.default_rng(0))] == [
            ids(portion.train) for portion in other(fold, np.random.default_rng(0))
        ]


def test_bins_make_categories_of_measurements():
    data = judged({str(q): [(q, 1), (q, 0)] for q in range(100)})
    count = tallies("feature:2", 4, [data])
    assert count.names == ("lowest", "from 25", "from 50", "from 75")
    found = query_categories(count(data), "exclusive", np.random.default_rng(0))
    assert found.tolist() == [0] * 25 + [1] * 25 + [2] * 25 + [3] * 25


def test_k_means_finds_what_lies_apart():
    rng = np.random.default_rng(2)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([centre + rng.normal(size=(n, 2)) for centre, n in zip(centres, (50, 30, 20), strict=True)])
    found = k_means(points, 3, rng)
    assert np.abs(found - centres).max() < 1.0  # the largest first


def test_k_means_agrees_with_scikit_learn():
    cluster = pytest.importorskip("sklearn.cluster")
    points = np.random.default_rng(5).normal(size=(300, 4))
    ours = k_means(points, 3, np.random.default_rng(0))
    cost = np.square(points[:, None] - ours).sum(axis=2).min(axis=1).sum()
    theirs = cluster.KMeans(3, n_init=10, random_state=0).fit(points).inertia_
    assert cost < 1.01 * theirs


def test_topics_are_found_and_applied_to_other_queries():
    def two_kinds(seed: int) -> RankingData:
        data = made_up_data(queries=40, seed=seed)
        features = data.features.copy()
        odd = np.repeat(np.arange(40) % 2 == 1, np.diff(data.offsets))
        features[odd] += 3.0
        return replace(data, features=features)

    fold = Fold(two_kinds(1), two_kinds(2), two_kinds(3), "made up", 1)
    portions = Topics(2)(fold, np.random.default_rng(0))
    for part in ("train", "validation", "test"):
        kinds = [{int(query) % 2 for query in ids(getattr(portion, part))} for portion in portions]
        assert sorted(map(sorted, kinds)) == [[0], [1]]
    assert {int(query) % 2 for query in ids(portions[0].merge)} == {int(query) % 2 for query in ids(portions[1].train)}


def test_topics_of_relevant_documents_leave_out_queries_without_any():
    data = made_up_data(queries=40, seed=4)
    grades = data.grades.copy()
    grades[data.offsets[3] : data.offsets[4]] = 0
    portions = Topics(2, of="relevant")(fold_of(replace(data, grades=grades), data), np.random.default_rng(0))
    assert all("3" not in ids(portion.train) for portion in portions)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), name=st.sampled_from(["topics", "dealt"]), clients=st.integers(2, 4))
def test_every_query_has_one_owner(seed, name, clients):
    fold = Fold(made_up_data(80, seed=seed), made_up_data(80, seed=seed + 1), made_up_data(80, seed=seed + 2), "x", 1)
    portions = SPLITS[name](clients=clients)(fold, np.random.default_rng(seed))
    owned = sorted(query for portion in portions for query in ids(portion.train))
    assert owned == sorted(ids(fold.train))
    for portion in portions:
        assert 1 <= portion.merge.queries <= max(1, portion.train.queries // 2)
        assert not ids(portion.merge) & ids(portion.validation)
        assert np.all(np.maximum.reduceat(portion.merge.grades, portion.merge.offsets[:-1]) > 0)


def test_differences_of_a_split_can_be_measured():
    train = judged({f"{c} {i}": [(c, c), (c, 0)] for c in (1, 2) for i in range(4)})
    asked = Categories("feature:2", clients=2, rest="none", merge="validation")
    portions = asked(fold_of(train, train), np.random.default_rng(0))
    found = differences(as_clients(portions))
    assert found.queries.tolist() == [4, 4]
    assert found.grades.tolist() == [[4, 4, 0], [4, 0, 4]]
    assert found.from_all.tolist() == [0.25, 0.25]  # shares .5 .5 0 and .5 0 .5, of all .5 .25 .25


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            Categories("feature:2", ("12",)),
            r"""unknown category .12. in feature:2; there is "3", "11", "14" """.strip(),
        ),
        (Categories("feature:2", ("3",), rule="exclusive"), r"client 1 \(3\) would get none of 7 training queries"),
        (Categories("feature:2", ("11",), rest="all"), 'client 1 .11.; use a stricter rule or merge = "validation"'),
        (Categories("feature:9"), "unknown feature '9'; use a number from 1 to 2"),
        (Categories("feature:2", clients=5), "2 categories have queries under rule = 'tie-breaking', too few for 5"),
        (Categories("feature:2", ("11",), merge="validation"), "has no validation queries"),
        (Categories(""), "by must not be empty"),
        (Categories("categories.tsv", bins=3), "bins = 3 applies only to features"),
        (Topics(8), "7 queries with documents are too few for 8 topics"),
        (Dealt(9), "would get none of 7"),
    ],
)
def test_what_cannot_be_split_is_named_with_the_remedy(asked, message):
    with pytest.raises(ValueError, match=message):
        asked(fold_of(BY_HAND), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clear\t\n", "line 1: .* has no category"),
        ("clear\t1\tx\nsum\ty\n", "line 2: .* has no category"),
        ("clear\tx\nclear\ty\n", "line 2: clear has two categories, 'x' and 'y'"),
        ("clear\tx\n", "no category for 6 of 7 queries, such as sum"),
        ("clear\t1\tx\n", "no category for 12 relevant documents, such as document 2 of query clear"),
        ("\n", "is empty"),
    ],
)
def test_a_faulty_file_of_categories_is_refused(tmp_path, text, message):
    file = tmp_path / "categories.tsv"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        Categories(str(file), ("x",))(fold_of(BY_HAND), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("split", "wrong", "message"),
    [
        (Categories, {"clients": 1}, "clients must be at least 2 with rest = .no-relevant. .got 1"),
        (Categories, {"clients": 0, "rest": "none"}, "clients must be at least 1 with rest = .none. .got 0"),
        (Categories, {"bins": 1}, "bins must be at least 2"),
        (Categories, {"categories": ("a", "a")}, "categories must be distinct"),
        (Topics, {"clients": 1}, "clients must be at least 2"),
        (Dealt, {"clients": 1}, "clients must be at least 2"),
        (Dealt, {"apart": 1.0}, "apart must be at least 0 and below 1"),
        (Topics, {"merge_queries": -1}, "merge_queries must be 0 or more"),
    ],
)
def test_settings_that_make_no_split_are_refused(split, wrong, message):
    with pytest.raises(ValueError, match=message):
        split(**wrong)


def test_the_sum_of_grades_decides_before_the_highest_grade():
    relevant, grades, top = (np.array([row]) for row in ([2, 2], [1 + 4, 3 + 3], [4, 3]))
    assert query_categories(Tally(relevant, grades, top, relevant), "tie-breaking", rng_for(1, "ties")).tolist() == [1]
    level = np.array([[1 + 4, 2 + 3]])  # equal sums: the highest grade decides
    assert query_categories(Tally(relevant, level, top, relevant), "tie-breaking", rng_for(1, "ties")).tolist() == [0]

"""Text collections and search logs with the features live-1."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from fedrank.data.build_log import LogBuild, build_log
from fedrank.data.collection import Collection
from fedrank.data.documents import Documents
from fedrank.data.engine_features import ENGINE_1
from fedrank.data.feature_sets import describer, forward_rows, live_describer, pair_features
from fedrank.data.lists import ListRules
from fedrank.data.live_features import ENGINE, LIVE_1, LOG_103, NAMES, WordStatistics
from fedrank.data.live_ranking import CANDIDATES, NothingToLearn, collection_fold, live_ranking, owners, topics
from fedrank.data.log_features import FEATURE_NAMES
from fedrank.ranking.baseline_ranking import baseline_order, baseline_weights
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")

SYNTHETIC = "synthetic-silos"
TEXTS = ["running shoes", "a shoe for runs", "red car", "red cars race", "runs of a race car"]


def small() -> Collection:
    documents = Documents([f"d{i}" for i in range(5)], ["", "", "Car", "", "Race"], TEXTS, [""] * 5)
    return Collection.of(
        "small", documents, ["q1", "q2", "q3"], ["run", "race cars", "zebra"], [{1: 1}, {3: 2, 4: 1}, {0: 1}]
    )


def test_candidates_stand_in_the_engines_order_with_their_grades():
    data = live_ranking(small())
    assert data.query_ids.tolist() == ["q1", "q2"], "nobody finds a zebra"
    assert np.diff(data.offsets).tolist() == [3, 3]
    assert data.top_grade == 2
    engine = data.features[:, ENGINE]
    assert (np.diff(engine[:3]) <= 0).all()
    assert sorted(data.grades[3:]) == [0, 1, 2]
    assert data.feature_names == NAMES


def test_features_are_those_of_the_same_candidates():
    collection = small()
    raw = live_ranking(collection, [1], describe=lambda own, _: live_describer(forward_rows(own), scaled=False))
    assert raw.features.min() >= 0
    assert raw.features.max() <= 1
    scaled = live_ranking(collection, [1])
    assert_array_equal(scaled.features, LIVE_1.scaled(raw.features))


def test_a_searcher_counts_only_its_own_documents():
    collection = small()
    seen = []

    def describe(own, held):
        seen.append((own.ids, held.tolist()))
        return live_describer(forward_rows(own))

    data = live_ranking(collection, None, [4, 2, 3], describe)
    assert seen == [(["d2", "d3", "d4"], [2, 3, 4])]
    assert data.query_ids.tolist() == ["q2"], "what answers q1 belongs to somebody else"
    whole = live_ranking(collection, [1])
    assert not np.array_equal(data.features, whole.features), "words are rarer or more common elsewhere"


def test_nothing_to_learn_is_said():
    with pytest.raises(NothingToLearn, match="use more documents or queries"):
        live_ranking(small(), [2])


def test_topics_bring_like_documents_together_and_none_is_crowded():
    like = [f"{kind} {kind}s {word}" for kind in ("apple", "engine", "violin") for word in "abcdefgh"]
    rows = forward_rows(Documents([str(i) for i in range(24)], [""] * 24, like, [""] * 24))
    found = topics(rows, 3, 2)
    assert [len(set(found[i : i + 8])) for i in (0, 8, 16)] == [1, 1, 1]
    assert len(set(found)) == 3
    same = forward_rows(Documents([str(i) for i in range(20)], [""] * 20, ["alike"] * 20, [""] * 20))
    assert np.bincount(topics(same, 4, 1)).max() <= 8
    with pytest.raises(ValueError, match="use fewer"):
        topics(rows, 25, 1)


def test_a_query_belongs_to_whom_it_is_answered_by():
    found = owners(small(), np.array([0, 0, 1, 1, 2]), 3)
    assert found.tolist() == [0, 1, 0]


@pytest.mark.long
def test_halves_of_every_searcher():
    fold = collection_fold(SYNTHETIC, 4, 1)
    assert not set(fold.train.query_ids) & set(fold.test.query_ids)
    assert set(fold.train.who) == set(fold.test.who)
    for who in set(fold.train.who):
        assert abs(int((fold.train.who == who).sum()) - int((fold.test.who == who).sum())) <= 1
    assert np.diff(fold.train.offsets).max() <= CANDIDATES
    assert fold.train.normalised == "none"
    again, other = collection_fold(SYNTHETIC, 4, 1), collection_fold(SYNTHETIC, 4, 2)
    assert_array_equal(fold.test.features, again.test.features)
    assert fold.test.query_ids.tolist() != other.test.query_ids.tolist()
    assert "4 searchers" in fold.notes[0]


@pytest.mark.long
def test_doing_nothing_is_the_engines_order():
    test = collection_fold(SYNTHETIC, 2, 1).test
    evaluator = Evaluator(test, ["ndcg@10"])
    given = baseline_order(evaluator)
    assert given.name == "engine"
    assert_array_equal(given.values, evaluator.per_query(baseline_weights(test), Linear()))
    assert_array_equal(baseline_weights(test), LIVE_1.start())
    with pytest.raises(ValueError, match="which is not the order of a feature"):
        baseline_weights(test, "random")


@pytest.mark.long
def test_the_103_have_the_same_candidates():
    live, other = (collection_fold(SYNTHETIC, 2, 1, features).test for features in ("live-1", LOG_103))
    assert other.feature_names == (*FEATURE_NAMES, "engine")
    assert other.normalised == "query"
    assert_array_equal(live.grades, other.grades)
    assert_array_equal(live.query_ids, other.query_ids)


@pytest.mark.long
def test_engine_features_have_the_same_candidates_and_fixed_ranges():
    live, other = (collection_fold(SYNTHETIC, 2, 1, features) for features in ("live-1", "engine-1"))
    assert_array_equal(live.test.grades, other.test.grades)
    assert other.test.feature_names == ENGINE_1.names
    for data in (other.train, other.test):
        assert data.normalised == "global"
        assert_array_equal(data.ranges, ENGINE_1.ranges)
        assert data.given == "file"
    assert 0.1 < other.test.features[:, ENGINE_1.names.index("all_match")].max() < 2


def test_engine_features_of_a_collection_are_those_of_its_index():
    documents = small().documents
    raw = live_ranking(small(), [1], describe=lambda own, held: describer("engine-1", own, lambda: forward_rows(own)))
    expected = ENGINE_1.index(documents).describe("race cars", range(len(documents)))
    assert {tuple(row) for row in raw.features} <= {tuple(row) for row in expected}


@pytest.mark.long
def test_another_stemmer_is_another_set():
    live, other = (collection_fold(SYNTHETIC, 2, 1, features).test for features in ("live-1", "live-1-none"))
    assert live.feature_names == other.feature_names
    with pytest.raises(ValueError, match=r'unknown feature set \'live-2\'; use "live-1".* or "aol-103"'):
        collection_fold(SYNTHETIC, 2, 1, "live-2")


def test_pairs_do_not_depend_on_what_else_is_asked():
    documents = small().documents
    features = pair_features(documents, 3)
    queries = ["race car", "run"]
    asked, rows = np.array([0, 0, 0, 1, 1]), np.array([4, 0, 3, 1, 2])
    whole = features(queries, asked, rows)
    for one in range(5):
        assert_array_equal(features(queries, asked[one : one + 1], rows[one : one + 1])[0], whole[one])
    # Document 0 holds nothing of "race car" and stands behind the best.
    assert whole[1, ENGINE] < whole[0, ENGINE]


def test_statistics_are_not_counted_anew_for_every_query(monkeypatch):
    calls = []
    of = WordStatistics.of
    monkeypatch.setattr(WordStatistics, "of", lambda rows: calls.append(len(rows)) or of(rows))
    live_ranking(small())
    assert calls == [5]


@pytest.fixture
def files(tmp_path):
    corpus, log = tmp_path / "corpus.jsonl", tmp_path / "log.tsv"
    corpus.write_text("".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS)))
    entries = [
        f"{user}\t{time}\t{query}\t{document}\n"
        for time, (user, query, document) in enumerate(
            [
                ("ann", "run", "d1"),
                ("bob", "race cars", "d3"),
                ("ann", "car", "d2"),
                ("bob", "run", "d0"),
                ("ann", "car", "d4"),
            ]
        )
    ]
    log.write_text("user\ttime\tquery\tdocument\n" + "".join(entries))
    return log, corpus


def test_a_log_with_live_features(files, tmp_path):
    how = LogBuild(ListRules(length=3, depth=5), features="live-1")
    log = build_log(*files, tmp_path / "live", how)
    assert log.feature_names == NAMES
    assert log.facts["settings"]["features"] == "live-1"
    shown = log.features[log.lists[0]]
    assert (np.diff(shown[:, ENGINE]) <= 0).all(), "the list stands in the engine's order"
    with pytest.raises(FileExistsError, match="different settings"):
        build_log(*files, tmp_path / "live", LogBuild(ListRules(length=3, depth=5), stem="english"))
    for wrong, said in (
        ({"features": "live-9"}, "must be one of"),
        ({"features": "live-1", "published": True}, "is not available"),
    ):
        with pytest.raises(ValueError, match=said):
            LogBuild(**wrong)


def test_a_log_of_the_103_says_nothing_new(files, tmp_path):
    """A folder that was built before there was a choice is still complete."""
    how = LogBuild(ListRules(length=3, depth=5), stem="english")
    log = build_log(*files, tmp_path / "old", how)
    assert "features" not in log.facts["settings"]

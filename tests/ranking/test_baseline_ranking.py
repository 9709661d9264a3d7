"""The order that users have without learning: which it is, and how good."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from fedrank.data.feature_names import LETOR_4
from fedrank.data.ranking import RankingData
from fedrank.ranking import baseline_ranking
from fedrank.ranking.baseline_ranking import baseline_order
from fedrank.ranking.measures import Evaluator, per_query

MEASURES = ("ndcg@10", "err", "mrr/zero")


def some_data(names: tuple[str, ...] = (), **more: object) -> RankingData:
    rng = np.random.default_rng(1)
    lengths = np.array([4, 1, 6])
    width = len(names) or 3
    return RankingData(
        features=rng.random((11, width), dtype=np.float32),
        grades=np.array([0, 1, 2, 0, 0, 1, 0, 0, 0, 2, 0], np.int8),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        query_ids=np.array(["a", "b", "c"]),
        feature_names=names,
        name="made-up",
        **more,  # type: ignore[arg-type]
    )


def measured(data: RankingData, asked: str | None = None) -> baseline_ranking.BaselineRanking:
    return baseline_order(Evaluator(data, MEASURES), asked)


def test_bm25_is_found_by_name_and_the_whole_document_goes_first() -> None:
    for names, best in ((LETOR_4, "BM25 of whole document"), (("TF", "BM25 of title", "BM25 of body"), "BM25 of body")):
        data = some_data(names)
        found = measured(data)
        assert found.name == best
        np.testing.assert_array_equal(found.values, per_query(MEASURES, data.features[:, names.index(best)], data))


def test_chance_is_close_to_the_mean_over_all_orders() -> None:
    data = replace(some_data(), grades=np.array([0, 1, 2, 0, 1, 1, 0, 0, 0, 2, 0], np.int8))
    found = measured(data)
    assert found.name == "random"
    assert "100 shuffles" in found.about
    orders = np.array(list(permutations(range(4))), np.float32)
    scores = np.zeros((len(orders), 11), np.float32)
    scores[:, :4] = orders
    exact = per_query(MEASURES, scores, data)[:, :, 0].mean(axis=1)
    np.testing.assert_allclose(found.values[:, 0], exact, atol=0.1)
    np.testing.assert_array_equal(found.values, measured(data).values)  # always the same
    assert found.values[0, 1] == 1  # one document has one order


def test_many_documents_need_fewer_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_ranking, "MAX_SCORES", 30)
    assert "2 shuffles" in measured(some_data()).about


def test_lists_of_a_log_stand_as_they_were_shown() -> None:
    when = {"who": np.zeros(3, np.int32), "when": np.arange(3)}
    data = some_data(LETOR_4, given="file", **when)
    found = measured(data)
    assert found.name == "logged order"
    places = np.concatenate([np.arange(4), np.arange(1), np.arange(6)])
    np.testing.assert_array_equal(found.values, per_query(MEASURES, -places.astype(np.float32), data))
    assert measured(some_data(LETOR_4), "file").name == "order of the file"


def test_what_is_asked_for_goes_before_what_is_known() -> None:
    data = some_data(given="feature 1 (BM25)")
    assert measured(data).name == "feature 1 (BM25)"
    asked = measured(data, "feature 3")
    assert asked.name == "feature 3"
    np.testing.assert_array_equal(asked.values, per_query(MEASURES, data.features[:, 2], data))
    assert measured(some_data(LETOR_4), "feature 41").name == "PageRank"
    assert measured(some_data(LETOR_4), "random").name == "random"


@pytest.mark.parametrize("asked", ["feature 0", "feature 47", "BM25 of hole document", "feature"])
def test_an_order_that_is_not_there_is_refused_with_what_to_do(asked: str) -> None:
    with pytest.raises(ValueError, match=r"data.given: (unknown order|no feature)") as problem:
        measured(some_data(LETOR_4), asked)
    if "hole" in asked:
        assert "BM25 of whole document" in str(problem.value)

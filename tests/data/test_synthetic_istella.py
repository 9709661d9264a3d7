"""The synthetic set in the manner of Istella-X: long lists, few relevant documents, others hard to tell from them."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.catalog import CATALOG, load
from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic

BM25 = 7 * 5 + 4  # of the whole document: block 7, stream 4
LENGTHS = slice(10, 15)  # of the five streams: block 2


@pytest.fixture(scope="module")
def data() -> RankingData:
    return synthetic("istella-x", 120)


@pytest.mark.long
def test_lists_are_as_long_as_published(data: RankingData) -> None:
    """Lucchese et al. (2018): 2,679 documents on average; at most 100 in 15 %, more than 4,900 in 39 % of queries."""
    lengths = np.diff(data.offsets)
    error = np.sqrt(0.25 / data.queries)  # of a share, at most
    assert data.features.shape == (data.documents, 60)
    assert np.isfinite(data.features).all()
    assert np.mean(lengths) == pytest.approx(2679, abs=3 * 2100 / np.sqrt(data.queries))
    assert np.mean(lengths <= 100) == pytest.approx(0.15, abs=3 * error)
    assert np.mean(lengths > 4900) == pytest.approx(0.39, abs=3 * error)
    assert lengths.max() == 5000


def test_almost_all_documents_are_negative(data: RankingData) -> None:
    """4.64 are relevant on average, with grades from 1 to 4; a few queries have none."""
    lengths = np.diff(data.offsets)
    relevant = np.add.reduceat(data.grades > 0, data.offsets[:-1], dtype=np.int64)
    assert 3.9 < relevant.mean() < 5.3
    assert (relevant <= lengths).all()
    assert (relevant == 0).sum() == round(0.02 * 120)
    assert set(data.grades.tolist()) == {0, 1, 2, 3, 4}
    assert data.top_grade == 4


def test_every_feature_tells_documents_of_a_query_apart(data: RankingData) -> None:
    query = int(np.diff(data.offsets).argmax())
    rows = data.features[data.offsets[query] : data.offsets[query + 1]]
    assert (np.ptp(rows, axis=0) > 0).all()


def test_documents_come_in_the_order_of_the_first_stage(data: RankingData) -> None:
    inside = np.ones(data.documents - 1, dtype=np.bool_)
    inside[data.offsets[1:-1] - 1] = False
    assert (np.diff(data.features[:, BM25])[inside] <= 0).all()
    # Grades and features moved together: if not, relevant documents would be anywhere.
    place = (np.arange(data.documents) - np.repeat(data.offsets[:-1], np.diff(data.offsets))) / np.repeat(
        np.diff(data.offsets), np.diff(data.offsets)
    )
    assert np.median(place[data.grades > 0]) < 0.35


def test_the_first_stage_finds_many_that_are_not_relevant(data: RankingData) -> None:
    """Lookalikes: among the ten best of BM25 in a long list hardly any is relevant."""
    first = np.repeat(data.offsets[:-1], np.diff(data.offsets))
    long = np.repeat(np.diff(data.offsets) > 500, np.diff(data.offsets))
    top = long & (np.arange(data.documents) - first < 10)
    assert 0 < np.mean(data.grades[top] > 0) < 0.15


def test_what_ranks_high_but_is_not_relevant_is_of_odd_length(data: RankingData) -> None:
    first = np.repeat(data.offsets[:-1], np.diff(data.offsets))
    top = np.arange(data.documents) - first < 10
    length = np.log1p(data.features[:, LENGTHS].max(axis=1))
    odd = np.abs(length - np.median(length))
    assert odd[top & (data.grades == 0)].mean() > 1.5 * odd[data.grades > 0].mean()


def test_higher_grades_match_better(data: RankingData) -> None:
    score = [data.features[data.grades == grade][:, BM25].mean() for grade in (0, 1, 4)]
    assert score[0] < score[1] < score[2]


def test_a_seed_repeats_itself_and_differs_from_others() -> None:
    one, again, other = (synthetic("istella-x", 3, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.grades, again.grades)
    assert one.offsets.tolist() != other.offsets.tolist()


def test_the_catalog_has_it() -> None:
    entry = CATALOG["synthetic-istella-x"]
    assert (entry.features, entry.grades, entry.queries) == (60, 5, 250)


def test_the_large_one_is_the_same_shape(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("fedrank.data.synthetic.synthetic", lambda *given: asked.append(given) or synthetic("mslr", 10))
    load("synthetic-istella-xl")
    load("synthetic-mq2007-large")
    assert asked == [("istella-x", 1_750), ("mq2007", 10_000)]

"""The synthetic set in the manner of Istella-X: long lists, few relevant documents, others hard to tell from them."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.catalog import CATALOG
from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic

BM25 = 21 * 5 + 4  # of the whole document: block 21, stream 4


@pytest.fixture(scope="module")
def data() -> RankingData:
    return synthetic("istella-x", 60)


def test_lists_are_long_and_almost_all_negative(data: RankingData) -> None:
    lengths = np.diff(data.offsets)
    assert data.features.shape == (data.documents, 220)
    assert np.isfinite(data.features).all()
    assert 300 < np.median(lengths) < 600
    assert 1500 < lengths.max() <= 3000
    relevant = np.add.reduceat(data.grades > 0, data.offsets[:-1], dtype=np.int64)
    assert 3.5 < relevant.mean() < 5.5
    assert (relevant <= lengths).all()
    assert (relevant == 0).sum() == round(0.02 * 60)
    assert set(data.grades.tolist()) == {0, 1, 2, 3, 4}
    assert data.top_grade == 4


def test_every_feature_but_those_of_the_query_tells_documents_apart(data: RankingData) -> None:
    first = data.features[: data.offsets[1]] if data.offsets[1] > 100 else data.features[data.offsets[1] :][:100]
    constant = np.flatnonzero(np.ptp(first, axis=0) == 0)
    # Inverse document frequencies, in block 3 of the first 25 and again of the 17 noisier ones.
    assert constant.tolist() == [15, 16, 17, 18, 19, 140, 141, 142, 143, 144]


def test_the_first_stage_finds_many_that_are_not_relevant(data: RankingData) -> None:
    """Lookalikes: among the ten best of BM25 hardly any is relevant, though relevant documents have high values."""
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    place = np.empty(data.documents, dtype=np.int64)
    order = np.lexsort((-data.features[:, BM25], query))
    place[order] = np.arange(data.documents) - data.offsets[:-1][query]
    share = place / np.diff(data.offsets)[query]
    assert np.median(share[data.grades > 0]) < 0.35  # 0.5 would be chance
    assert np.mean(data.grades[place < 10] > 0) < 0.15


def test_better_documents_of_a_query_have_higher_grades(data: RankingData) -> None:
    # A perfect document is one of the few best of its query, a fair one only one of the good.
    high, low = (data.features[data.grades == grade][:, BM25].mean() for grade in (4, 1))
    none = data.features[data.grades == 0][:, BM25].mean()
    assert high > none
    assert low > none


def test_a_seed_repeats_itself_and_differs_from_others() -> None:
    one, again, other = (synthetic("istella-x", 3, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.grades, again.grades)
    assert one.offsets.tolist() != other.offsets.tolist()


def test_the_catalog_has_it() -> None:
    entry = CATALOG["synthetic-istella-x"]
    assert (entry.features, entry.grades, entry.queries) == (220, 5, 300)

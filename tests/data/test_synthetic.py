"""Synthetic sets have the promised shape, repeat themselves, and are worth learning from."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic

SHARES = {"mq2007": (0.74, 0.20, 0.06), "mslr": (0.52, 0.32, 0.13, 0.02, 0.01)}


@pytest.fixture(scope="module")
def like_mq2007() -> RankingData:
    return synthetic("mq2007")


@pytest.fixture(scope="module")
def like_mslr() -> RankingData:
    return synthetic("mslr")


@pytest.fixture(params=["mq2007", "mslr"])
def data(request: pytest.FixtureRequest) -> RankingData:
    made: RankingData = request.getfixturevalue(f"like_{request.param}")
    return made


def relevant(data: RankingData) -> NDArray[np.int64]:
    return np.add.reduceat((data.grades > 0).astype(np.int64), data.offsets[:-1])


def test_grades_have_the_shares_of_the_real_set(data: RankingData) -> None:
    shares = SHARES[data.name.removeprefix("synthetic-")]
    np.testing.assert_allclose(np.bincount(data.grades) / data.documents, shares, atol=1e-3)
    assert data.top_grade == len(shares) - 1


def test_some_queries_have_no_relevant_document(data: RankingData) -> None:
    assert 0.10 <= np.mean(relevant(data) == 0) <= 0.17


def test_query_lengths(like_mq2007: RankingData, like_mslr: RankingData) -> None:
    for data, mean, most, longest in ((like_mq2007, 41, 147, 90), (like_mslr, 120, 450, 300)):
        lengths = np.diff(data.offsets)
        assert abs(lengths.mean() - mean) < 0.1 * mean
        assert lengths.min() == 1
        assert longest < lengths.max() <= most


def test_ids_count_from_one(data: RankingData) -> None:
    assert data.query_ids.tolist() == [str(n + 1) for n in range(data.queries)]
    assert data.features.shape == (data.documents, len(data.feature_names))
    assert np.isfinite(data.features).all()


def test_like_mq2007_comes_scaled_within_each_query(like_mq2007: RankingData) -> None:
    low = np.minimum.reduceat(like_mq2007.features, like_mq2007.offsets[:-1])
    high = np.maximum.reduceat(like_mq2007.features, like_mq2007.offsets[:-1])
    assert not low.any()
    assert set(np.unique(high)) == {0, 1}
    names = like_mq2007.feature_names
    useless = {names[column] for column in np.flatnonzero(~like_mq2007.features.any(axis=0))}
    assert useless == {"number of child pages"} | {name for name in names if name.startswith("IDF")}


def test_like_mslr_is_raw(like_mslr: RankingData) -> None:
    features, names = like_mslr.features, like_mslr.feature_names
    inlinks = features[:, names.index("number of inlinks")]
    assert inlinks.max() > 1000 * np.median(inlinks)
    assert features[:, names.index("LMIR.ABS of body")].min() < 0
    clicks = features[:, names.index("clicks on query and URL")]
    assert 0.9 < np.mean(clicks == 0) < 1
    idf = features[:, names.index("IDF of title")]
    np.testing.assert_array_equal(idf, np.repeat(idf[like_mslr.offsets[:-1]], np.diff(like_mslr.offsets)))


def test_features_of_a_stream_are_correlated(like_mslr: RankingData) -> None:
    names = like_mslr.feature_names
    bm25, model = (like_mslr.features[:, names.index(f"{kind} of body")] for kind in ("BM25", "LMIR.JM"))
    assert np.corrcoef(bm25, model)[0, 1] > 0.3


@pytest.mark.parametrize("shape", ["mq2007", "mslr"])
def test_a_seed_repeats_itself_and_differs_from_others(shape: str) -> None:
    one, again, other = (synthetic(shape, 30, seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.grades, again.grades)
    np.testing.assert_array_equal(one.offsets, again.offsets)
    assert one.offsets.tolist() != other.offsets.tolist()


def test_one_query_is_possible() -> None:
    assert synthetic("mq2007", 1).queries == 1


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="unknown synthetic shape 'mq2009'; use one of mq2007, mslr"):
        synthetic("mq2009")
    with pytest.raises(ValueError, match="queries must be at least 1"):
        synthetic("mslr", 0)


def ndcg(data: RankingData, scores: NDArray[np.floating]) -> float:
    """Mean nDCG@10 over queries with a relevant document, slowly."""
    values = []
    for start, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        gains = 2.0 ** data.grades[start:end] - 1
        if gains.any():
            discounts = 1 / np.log2(np.arange(2, 2 + min(10, end - start)))
            shown = gains[np.argsort(-scores[start:end], kind="stable")][:10]
            values.append((shown @ discounts) / (np.sort(gains)[::-1][:10] @ discounts))
    return float(np.mean(values))


def scaled(data: RankingData) -> NDArray[np.float32]:
    low = np.minimum.reduceat(data.features, data.offsets[:-1])
    width = np.maximum.reduceat(data.features, data.offsets[:-1]) - low
    width[width == 0] = 1
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    result: NDArray[np.float32] = (data.features - low[query]) / width[query]
    return result


@pytest.mark.long
@pytest.mark.parametrize(("shape", "queries"), [("mq2007", 900), ("mslr", 300)])
def test_worth_learning_from(shape: str, queries: int) -> None:
    data = synthetic(shape, queries)
    train = data.select(np.flatnonzero(np.arange(queries) % 3 > 0))
    test = data.select(np.flatnonzero(np.arange(queries) % 3 == 0))
    x, unseen = scaled(train), scaled(test)

    with threadpool_limits(1):  # waiting threads cost more than they bring where tests run side by side
        weights = np.linalg.lstsq(x - x.mean(axis=0), train.grades - train.grades.mean(), rcond=None)[0]
        trees = HistGradientBoostingRegressor(learning_rate=0.2, max_iter=40, random_state=0).fit(x, train.grades)
        forest = ndcg(test, trees.predict(unseen))
    random = ndcg(test, np.random.default_rng(0).random(test.documents))
    # The better direction of every feature, chosen on the test set: even so one feature is not enough.
    single = max(ndcg(test, sign * unseen[:, column]) for column in range(x.shape[1]) for sign in (1, -1))
    linear = ndcg(test, unseen @ weights)

    assert 0.18 < random < 0.35
    assert random + 0.10 < single < linear - 0.05
    assert 0.45 < linear < 0.62
    assert linear + 0.02 < forest < 0.8

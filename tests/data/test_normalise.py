"""Min-max normalisation by query and over a whole set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedrank.data.normalise import feature_ranges, normalise
from fedrank.data.ranking import RankingData
from fedrank.kernels import normalise as kernel
from tests.oracles.letor import normalise_rows


def make(features: object, lengths: list[int]) -> RankingData:
    rows = np.array(features, np.float32)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    ids = np.array([f"q{i}" for i in range(len(lengths))])
    return RankingData(rows, np.zeros(len(rows), np.int8), offsets, ids, name="made up")


BY_HAND = make([[1, 7, -2], [3, 7, 2], [2, 7, 0], [9, 1, 1]], [3, 1])


def test_by_query() -> None:
    data = normalise(BY_HAND, "query")
    expected = [
        [0, 0, 0],
        [1, 0, 1],
        [(2 - 1) / (3 - 1), 0, (0 + 2) / (2 + 2)],
        [0, 0, 0],  # a query of one document has no range
    ]
    assert_array_equal(data.features, np.array(expected, np.float32))
    assert (data.normalised, data.name) == ("query", "made up")
    assert BY_HAND.features[0].tolist() == [1, 7, -2]


def test_over_the_whole_set() -> None:
    data = normalise(BY_HAND, "global")
    expected = [[0, 1, 0], [(3 - 1) / (9 - 1), 1, 1], [(2 - 1) / (9 - 1), 1, 0.5], [1, 0, 0.75]]
    assert_array_equal(data.features, np.array(expected, np.float32))
    assert data.normalised == "global"
    assert not normalise(make([[5], [5]], [2]), "global").features.any()


def test_a_test_set_uses_the_ranges_of_its_training_set() -> None:
    train, test = make([[0, 1], [10, 1]], [2]), make([[5, 1], [20, 3]], [1, 1])
    ranges = feature_ranges(train)
    assert ranges.tolist() == [[0, 1], [10, 1]]
    assert normalise(test, "global", ranges=ranges).features.tolist() == [[0.5, 0], [2, 0]]
    with pytest.raises(ValueError, match="do not match 3 features"):
        normalise(BY_HAND, "global", ranges=ranges)
    with pytest.raises(ValueError, match="ranges cannot be used"):
        normalise(test, "query", ranges=ranges)


def test_none_changes_nothing() -> None:
    assert normalise(BY_HAND, "none") is BY_HAND


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown normalisation 'minmax'; use 'none', 'query' or 'global'"):
        normalise(BY_HAND, "minmax")


def test_what_cannot_be_undone_is_refused() -> None:
    by_query = normalise(BY_HAND, "query")
    for how in ("none", "global"):
        with pytest.raises(ValueError, match="already normalised by 'query'"):
            normalise(by_query, how)
    assert_array_equal(normalise(by_query, "query").features, by_query.features)
    assert_allclose(normalise(normalise(BY_HAND, "global"), "query").features, by_query.features, atol=1e-6)


def test_ranges_wider_than_float32() -> None:
    large = np.finfo(np.float32).max
    data = normalise(make([[-large], [large], [0]], [3]), "query")
    assert data.features.ravel().tolist() == [0, 1, 0.5]
    tiny = np.float32(1e-45)
    assert normalise(make([[0], [tiny]], [2]), "query").features.ravel().tolist() == [0, 1]


def test_read_only_and_strided_features() -> None:
    rows = np.asfortranarray(BY_HAND.features)
    rows.setflags(write=False)
    offsets = BY_HAND.offsets.copy()
    offsets.setflags(write=False)
    data = RankingData(rows, BY_HAND.grades, offsets, BY_HAND.query_ids)
    assert_array_equal(normalise(data, "query").features, normalise(BY_HAND, "query").features)
    assert_array_equal(feature_ranges(data), feature_ranges(BY_HAND))
    assert len(kernel.rescale_queries.signatures) == 1


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.tuples(finite, finite), min_size=1, max_size=5), min_size=1, max_size=4))
def test_like_the_oracle(queries: list[list[tuple[float, float]]]) -> None:
    data = make([row for rows in queries for row in rows], [len(rows) for rows in queries])
    by_query = normalise(data, "query")
    assert by_query.features.min() >= 0
    assert by_query.features.max() <= 1
    expected = [normalise_rows(np.array(rows, np.float32)) for rows in queries]
    assert_allclose(by_query.features, np.concatenate(expected), rtol=1e-6, atol=1e-45)
    assert_allclose(normalise(data, "global").features, normalise_rows(data.features), rtol=1e-6, atol=1e-45)


def test_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("find_ranges", "rescale"):
        monkeypatch.setattr(kernel, name, getattr(kernel, name).py_func)
    out = np.empty_like(BY_HAND.features)
    kernel.rescale_queries.py_func(BY_HAND.features, BY_HAND.offsets, out)
    assert_array_equal(out, normalise(BY_HAND, "query").features)

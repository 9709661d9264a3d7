"""Synthetic data of several categories: repeatable, in shape, and with something to learn that is not shared."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.synthetic_categories import IDLE, OWN, SHARED, SHARES, synthetic_categories


def of_category(data, category: int):
    return data.features[:, -1] == category


def test_the_same_seed_gives_the_same_set():
    one, same, other = (synthetic_categories(40, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(one.features, same.features)
    assert np.array_equal(one.grades, same.grades)
    assert one.features.shape != other.features.shape or not np.array_equal(one.features, other.features)


def test_shape_grades_and_names():
    data = synthetic_categories(300, categories=3)
    assert data.queries == 300
    assert data.features.shape[1] == len(data.feature_names) == SHARED + 3 * OWN + IDLE + 1
    assert np.bincount(data.grades) / data.documents == pytest.approx(SHARES, abs=0.001)
    assert set(np.unique(data.features[:, -1])) == {1, 2, 3}


def test_earlier_categories_are_more_frequent_and_many_queries_have_one_alone():
    data = synthetic_categories(1_000)
    counts = np.bincount(data.features[:, -1].astype(int))[1:]
    assert np.all(np.diff(counts) < 0)
    low = np.minimum.reduceat(data.features[:, -1], data.offsets[:-1])
    high = np.maximum.reduceat(data.features[:, -1], data.offsets[:-1])
    assert 0.35 < np.mean(low == high) < 0.5  # a mixed query may have one by chance


def test_what_helps_in_one_category_harms_in_another():
    data = synthetic_categories(1_000, categories=2)
    for category in (1, 2):
        rows = of_category(data, category)
        for signals in (1, 2):
            first = SHARED + OWN * (signals - 1)
            seen = data.features[rows, first : first + OWN].sum(axis=1)
            correlation = np.corrcoef(seen, data.grades[rows])[0, 1]
            assert correlation > 0.3 if signals == category else correlation < -0.05


def test_nothing_to_tell_apart_is_refused():
    with pytest.raises(ValueError, match="categories at least 2"):
        synthetic_categories(10, categories=1)

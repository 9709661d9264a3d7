from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from fedrank.kernels import measures as kernels
from tests.oracles import measures as oracle

OFFSETS = np.array([0, 1, 4])


def test_ideal_dcg_by_hand() -> None:
    grades = np.array([[0, 1, 0, 2], [1, 0, 0, 0]], np.int8)
    np.testing.assert_allclose(kernels.ideal_dcg(grades, OFFSETS), [[0, 3 + 1 / math.log2(3)], [1, 0]])
    np.testing.assert_allclose(kernels.ideal_dcg(grades, OFFSETS, 1), [[0, 3], [1, 0]])


def test_ideal_dcg_stops_at_ten() -> None:
    grades = np.full((1, 15), 3, np.int8)
    expected = sum(7 / math.log2(rank + 1) for rank in range(1, 11))
    np.testing.assert_allclose(kernels.ideal_dcg(grades, np.array([0, 15])), [[expected]])


def test_ideal_dcg_of_huge_grades() -> None:
    grades = np.array([[31, 127]], np.int8)
    np.testing.assert_allclose(kernels.ideal_dcg(grades, np.array([0, 1, 2])), [[2.0**31 - 1, 2.0**127]], rtol=1e-15)


def test_keys_lead_back_to_positions() -> None:
    for documents in (1, 2, 120, 100_000):
        for position in {0, documents // 2, documents - 1}:
            for order in (-(2**31) + 1, -1, 0, 0x7F800000):
                key = kernels.key_of(np.int32(order), position, documents)
                assert kernels.position_of(key, documents) == position


@pytest.mark.parametrize("models", [1, 3, 16])
@pytest.mark.parametrize("documents", [11, 12, 30, 121])
def test_bounds_never_lose_one_of_the_best(documents: int, models: int) -> None:
    order = np.random.default_rng(documents).integers(-50, 50, (documents, models)).astype(np.int32)
    for k in (1, 2, 7, 10):
        best, second = np.empty((2, (k + 1) // 2 * models), np.int32)
        kernels.lower_bounds(order, 0, documents, k, best, second)
        assert np.all(second[:models] <= np.sort(order, axis=0)[-k])
        assert documents < 100 or np.all(second[:models] > np.median(order, axis=0))


@pytest.mark.parametrize("count", [0, 1, 64, 65, 1000])
def test_sort(count: int) -> None:
    keys = np.random.default_rng(count).permutation(count) - count // 2
    ordered = np.empty(count, np.int64)
    kernels.sort_keys(keys, count, ordered)
    np.testing.assert_array_equal(ordered, np.sort(keys))


def test_uncompiled_code_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    offsets = np.array([0, 1, 13, 85])
    grades = rng.integers(0, 4, 85).astype(np.int8)
    bits = rng.integers(-20, 20, (85, 3)).astype(np.float32).view(np.int32)
    kinds, cutoffs = np.arange(6), np.array([10, 3, 5, 10, 7, 2])
    scales = rng.random((6, 3)) + 20

    def run() -> list[np.ndarray]:
        values = np.empty((6, 4, 3))
        values[:, 0] = 0
        missing = kernels.measure_lists(bits, offsets, 0, 3, grades, kinds, cutoffs, scales, 3, 1, values)
        assert missing == 0
        rows = kernels.ranked_rows(bits[:, :1].copy(), offsets)
        return [values, rows, kernels.ideal_dcg(grades[None], offsets, 10)]

    compiled = run()
    for name, kernel in vars(kernels).copy().items():
        if hasattr(kernel, "py_func"):
            monkeypatch.setattr(kernels, name, kernel.py_func)
    for fast, slow in zip(compiled, run(), strict=True):
        np.testing.assert_allclose(fast, slow, rtol=1e-15)
    column = bits.view(np.float32)[:, 0]
    expected = [a + i for a, b in pairwise(offsets) for i in oracle.ranking(column[a:b].tolist())]
    assert compiled[1].tolist() == expected


def test_nan_is_counted() -> None:
    scores = np.array([0.0, np.nan, -np.nan, np.inf, -np.inf], np.float32)
    order = np.empty(5, np.int32)
    assert kernels.as_integers(scores.view(np.int32), order) == 2
    assert order[4] < order[0] < order[3]

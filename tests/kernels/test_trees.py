"""Kernels of trees are plain Python: run uncompiled, they give what they give compiled."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.kernels.trees import BLOCK, add_tree, best_negatives, smallest


@pytest.mark.parametrize("documents", [1, BLOCK, BLOCK + 3])
def test_a_tree_by_hand(documents):
    # x0 <= 0.5 ? (x1 <= 0 ? 1 : 2) : 4, where a missing x0 goes right and a missing x1 left.
    tree = (
        np.array([0, 1], dtype=np.int32),
        np.array([0.5, 0.0]),
        np.array([False, True]),
        np.array([[1, ~2], [~0, ~1]], dtype=np.int32),
        np.array([1.0, 2.0, 4.0]),
    )
    rows = [(0.5, 0.0), (0.5, 0.1), (0.6, 9.0), (np.nan, 0.0), (0.0, np.nan)]
    expected = [1.0, 2.0, 4.0, 4.0, 1.0]
    features = np.array([rows[i % 5] for i in range(documents)], dtype=np.float32)
    for function in (add_tree, add_tree.py_func):
        scores = np.full(documents, 10.0)
        function(features, 0, documents, *tree, scores)
        assert scores.tolist() == [10 + expected[i % 5] for i in range(documents)]


def test_a_part_of_the_documents():
    nothing = (np.empty(0, np.int32), np.empty(0), np.empty(0, np.bool_), np.empty((0, 2), np.int32), np.array([3.0]))
    scores = np.zeros(4)
    add_tree(np.zeros((4, 1), np.float32), 1, 3, *nothing, scores)
    assert scores.tolist() == [0, 3, 3, 0]


@pytest.mark.parametrize("function", [smallest, smallest.py_func])
def test_the_kth_smallest(function):
    rng = np.random.default_rng(1)
    for count in (1, 2, 7, 50):
        keys = rng.integers(-(2**62), 2**62, size=60)
        for k in range(1, count + 1):
            assert function(keys.copy(), count, k) == np.sort(keys[:count])[k - 1]


def test_uncompiled_choice_equals_the_compiled_one():
    rng = np.random.default_rng(2)
    scores = rng.integers(5, size=60).astype(np.float32)
    grades = rng.binomial(1, 0.2, size=60).astype(np.int8)
    offsets = np.array([0, 1, 20, 60])
    compiled, plain = np.zeros(60, dtype=bool), np.zeros(60, dtype=bool)
    count = best_negatives(scores.view(np.int32), grades, offsets, 0.3, 2, compiled)
    assert best_negatives.py_func(scores.view(np.int32), grades, offsets, 0.3, 2, plain) == count
    assert compiled.tolist() == plain.tolist()
    assert compiled[grades == 1].all()
    assert 0 < count < 60

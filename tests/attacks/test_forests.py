"""Grades are read from root histograms of small clients, and hardly from those of large ones."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from fedrank.attacks.forests import read_root
from fedrank.trees.binning import bounded_edges, grid_edges
from fedrank.trees.boosters import Grower
from tests.made_up import made_up_data

DATA = made_up_data(queries=200, features=10, top_grade=1)


def test_small_clients_give_their_relevant_documents_away():
    small, large = (read_root(DATA.select(np.arange(n)), bounded_edges(10, 0, 1), Grower()) for n in (5, 200))
    assert small.right == small.named > 0.7 * small.relevant
    assert small.alone > 0.9 * small.documents
    assert large.alone < 0.1 * large.documents


def test_fewer_bins_tell_less():
    few = DATA.select(np.arange(5))
    fine, coarse = (read_root(few, bounded_edges(10, 0, 1, bins), Grower(bins=bins)) for bins in (255, 15))
    assert coarse.right < fine.right
    assert read_root(few, grid_edges(10), Grower()).named > 0


def test_histograms_of_elected_features_tell_less_and_still_nothing_wrong():
    few = DATA.select(np.arange(20))
    edges = bounded_edges(10, 0, 1)
    every, some = (read_root(few, edges, Grower(), features) for features in (None, np.array([2, 7])))
    assert some.right == some.named < every.named
    assert 0 < some.alone < every.alone

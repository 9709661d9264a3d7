"""Importance of features: the gains of all splits, as LightGBM counts them."""

from __future__ import annotations

import numpy as np
import pytest

lightgbm = pytest.importorskip("lightgbm")

from fedrank.trees.boosters import Lambdamart  # noqa: E402
from fedrank.trees.forest import make_forest  # noqa: E402
from fedrank.trees.lightgbm_training import STUMP  # noqa: E402
from fedrank_papers.merge_figures import importance  # noqa: E402
from tests.made_up import made_up_data  # noqa: E402

DATA = made_up_data(queries=40, longest=30)


def test_it_is_lightgbms_own():
    forest = Lambdamart(trees=6, leaves=5, min_data_in_leaf=3)(DATA, seed=1)
    theirs = lightgbm.Booster(model_str=forest.text).feature_importance("gain")
    np.testing.assert_allclose(importance(forest), theirs, rtol=1e-6)
    assert importance(forest).max() > 0


def test_a_tree_without_a_split_gains_nothing():
    assert not importance(make_forest([STUMP], DATA)).any()

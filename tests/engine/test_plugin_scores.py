"""Exports and features compared with an engine's own code, where the developer has it."""

from __future__ import annotations

import os
import shlex
import shutil

import numpy as np
import pytest

from fedrank.data.engine_features import TOLERANCE
from tests import needs
from tests.engine.plugin_scores import LUCENE, SCORER, agreement, compare_features, compare_models


@pytest.mark.build
def test_the_plugin_scores_exported_models_as_fedrank(tmp_path):
    if not os.environ.get(SCORER):
        needs.skip("engine", f"{SCORER} is not set")
    for found in compare_models(shlex.split(os.environ[SCORER]), tmp_path):
        assert found.worst < 1e-6, found
        assert found.reordered == 0, found


@pytest.mark.build
def test_lucene_computes_the_text_features_as_fedrank(tmp_path):
    if not os.environ.get(LUCENE):
        needs.skip("engine", f"{LUCENE} is not set")
    if shutil.which("javac") is None:
        needs.skip("engine", "a Java compiler was not found")
    for found in compare_features(os.environ[LUCENE], tmp_path):
        assert found.worst < TOLERANCE, found


def test_a_difference_and_another_order_are_noticed():
    ours = np.linspace(5.0, 1.0, 40)
    theirs = ours.copy()
    assert agreement("equal", theirs, ours).reordered == 0
    theirs[[20, 21]] = theirs[[21, 20]]
    found = agreement("swapped", theirs, ours)
    assert (found.reordered, found.lists) == (1, 2)
    assert found.worst == pytest.approx((ours[20] - ours[21]) / ours[21])
    with pytest.raises(ValueError, match="printed 39 scores for 40 documents"):
        agreement("short", ours[:-1], ours)

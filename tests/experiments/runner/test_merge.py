"""Forests of organisations: merged from trees that were sent, and what they disclose."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fedrank.data.catalog import Fold
from fedrank.experiments.runner.merge import ForestDisclosure, MergeRun
from fedrank.trees.arrays import checked_trees
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import WeightedSum
from fedrank.wire import Refused
from tests.made_up import made_up_data
from tests.trees.test_training import SMALL, parts

MEASURES = ("ndcg@10",)


@pytest.fixture(scope="module")
def fold():
    return Fold(made_up_data(60, seed=1), made_up_data(40, seed=2), made_up_data(20, seed=3), "made up", 1)


@pytest.fixture(scope="module")
def trees():
    """Of two clients."""
    return [SMALL(portion.train, None, seed=1).trees for portion in parts()]


@pytest.fixture
def run(fold):
    experiment = SimpleNamespace(merge=WeightedSum(), booster=SMALL, measures=MEASURES)
    return MergeRun(experiment, SimpleNamespace(task=SimpleNamespace(seed=1), threads=1), fold, None)


def test_trees_that_clients_sent_are_merged_as_those_that_they_trained(fold, trees, run):
    found = run.merge_sent(parts(), trees)
    assert found.queries == {"half 0": 30, "half 1": 30}
    assert [model.trees for model in found.local] == trees
    assert found.after.shape == (1, 2, fold.test.queries)


def test_organisations_share_the_model_that_is_merged_on_other_queries(fold, trees, run):
    sent = {"clinic-a": (trees[0], 30), "clinic-b": (trees[1], 31)}
    found = run.merge_organisations(sent)
    assert found.queries == {"clinic-a": 30, "clinic-b": 31}
    assert found.merged[0] is found.merged[1]
    assert not found.own.any()


def test_a_forest_that_all_grew_ends_with_its_best_tree(trees, run):
    curve = [0.3, 0.5, 0.4, *[0.1] * (len(trees[0]) - 3)]
    found = run.shared_forest(trees[0], curve, {"clinic-a": 10, "clinic-b": 0}, 2)
    assert found.merged[0].trees == trees[0][:2]
    assert found.merged[0].notes == {"grown by": "histograms", "clients": 2}
    np.testing.assert_array_equal(found.before, found.after)


def test_who_sees_what_follows_from_how_forests_are_made():
    told = [
        ForestDisclosure.of(merge)
        for merge in (
            WeightedSum(), Histograms(), Histograms(secure=True), Histograms(private="histograms"),
            Histograms(private="histograms", secure=True),
        )
    ]  # fmt: skip
    assert len({one.who_sees_what for one in told}) == 5
    assert [("noised sums" in one.who_sees_what) for one in told] == [False, False, False, True, True]
    assert told[0].not_covered == told[1].not_covered == told[2].not_covered != told[3].not_covered
    assert told[3].not_covered == told[4].not_covered


def test_trees_from_elsewhere_are_checked(trees):
    pieces = [text.encode() for text in trees[0]]
    assert checked_trees(pieces, 100, 4) == trees[0]
    for some, features, leaves, word in (
        ([], 100, 4, "no tree"),
        (pieces, 0, 4, "uses feature"),
        (pieces, 100, 1, "the maximum is 1"),
        ([b"\xff"], 100, 4, "tree 1 of its forest cannot be read"),
        ([pieces[0] + b"\n#!"], 100, 4, "not a name with numbers"),
    ):
        with pytest.raises(Refused, match=word):
            checked_trees(some, features, leaves)

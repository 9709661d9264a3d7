"""The compiled grower: what the slow one grows, what LightGBM grows but for rounding, and no loss by fixed point."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

lightgbm = pytest.importorskip("lightgbm")

from fedrank.data.synthetic import synthetic  # noqa: E402
from fedrank.kernels.grow import lambda_gradients, order_by_score  # noqa: E402
from fedrank.ranking.measures import evaluate  # noqa: E402
from fedrank.trees.arrays import Trees  # noqa: E402
from fedrank.trees.binning import Edges, bounded_edges, cut_evenly, put_in_bins, quantile_edges  # noqa: E402
from fedrank.trees.boosters import BoosterState, Grower, Lambdamart, NothingToSplit, SelectiveGrower, Selgb  # noqa: E402
from fedrank.trees.forest import Forest  # noqa: E402
from fedrank.trees.growing import grow_alone  # noqa: E402
from fedrank.trees.row_store import drawn_features, drawn_queries, numbers_of  # noqa: E402
from tests.made_up import made_up_data  # noqa: E402
from tests.oracles import grow as slow  # noqa: E402

SMALL = Grower(trees=4, leaves=6, min_data_in_leaf=3, rate=0.3)


def few_values(levels=20, **settings):
    """Features of few values, so that bins hold one each."""
    data = made_up_data(**settings)
    return replace(data, features=np.round(data.features * levels))


@given(
    seed=st.integers(0, 10**6),
    queries=st.integers(2, 8),
    norm=st.booleans(),
    truncation=st.integers(1, 40),
    levels=st.integers(1, 6),  # few levels of scores: many ties
)
@settings(max_examples=60, deadline=None)
def test_gradients_are_those_of_all_pairs(seed, queries, norm, truncation, levels):
    data = made_up_data(queries=queries, seed=seed, top_grade=4)
    scores = np.random.default_rng(seed).integers(0, levels, data.documents) / 2
    gradient, hessian = np.full((2, data.documents), np.nan)
    lambda_gradients(
        scores, scores.astype(np.float32).view(np.int32), data.grades, data.offsets, np.arange(queries), norm,
        truncation, gradient, hessian,
    )  # fmt: skip
    wanted = slow.all_lambdas(scores, data, norm, truncation)
    np.testing.assert_allclose([gradient, hessian], wanted, rtol=1e-9, atol=1e-12)


@given(scores=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=80))
@settings(max_examples=60, deadline=None)
def test_rows_are_ordered_by_score_and_then_as_they_stand(scores):
    values = np.array([0.0, *scores, -0.0], dtype=np.float32)
    order, spare, starts = np.empty(len(values), np.int32), np.empty(len(values), np.int32), np.empty(2049, np.int64)
    order_by_score(values.view(np.int32), 1, len(values), order, spare, starts)
    np.testing.assert_array_equal(order[: len(values) - 1], np.argsort(-values[1:], kind="stable"))


@given(
    seed=st.integers(0, 10**6),
    leaves=st.integers(2, 9),
    depth=st.integers(0, 3),
    least=st.integers(1, 8),
    hessian=st.sampled_from([0.0, 0.1, 1.0]),
    l2=st.sampled_from([0.0, 0.5]),
    features=st.sampled_from([1, 7, 8, 9]),
)
@settings(max_examples=25, deadline=None)
def test_trees_are_those_of_the_slow_grower(seed, leaves, depth, least, hessian, l2, features):
    rules = replace(
        SMALL, trees=2, leaves=leaves, depth=depth, min_data_in_leaf=least, min_sum_hessian=hessian, l2=l2, bins=9
    )
    data = made_up_data(queries=6, seed=seed, features=features)
    edges = quantile_edges(data, rules.bins)
    grown: list[Trees] = []
    with contextlib.suppress(NothingToSplit):
        grown += [step.grown for step in rules.grow(data, None, 1)]
    if len(grown) < 2:  # there the slow one finds nothing to split either
        assert slow.grow(data, edges, replace(rules, trees=len(grown) + 1))[0][-1][0] == []
    wanted, _ = slow.grow(data, edges, replace(rules, trees=len(grown)))
    for tree, (cuts, values) in zip(grown, wanted, strict=True):
        assert tree.feature.tolist() == [feature for _, _, feature, _ in cuts]
        assert tree.threshold.tolist() == [edges.values[feature][b] for _, _, feature, b in cuts]
        np.testing.assert_allclose(tree.value, values, rtol=1e-12)


@pytest.mark.parametrize(
    ("norm", "truncation", "trees"), [(True, 30, 15), (False, 30, 15), (True, 10, 1), (False, 10, 1)]
)
def test_scores_are_lightgbms_but_for_rounding(norm, truncation, trees):
    """With a bin for every value and no minimum of rows, which LightGBM guesses from hessians.

    A document that is in no pair has no gradient: of two splits that differ by it alone either will do, and later trees
    are others then. So only the first tree is compared where many documents are in no pair.
    """
    data = few_values(40, queries=60, longest=60, features=6)
    rules = Grower(
        trees=trees, leaves=12, min_data_in_leaf=1, min_sum_hessian=0.5, rate=0.1, lambda_norm=norm,
        lambda_truncation=truncation,
    )  # fmt: skip
    theirs = rules.engine(1, 1) | {
        "min_data_in_bin": 1, "lambdarank_norm": norm, "lambdarank_truncation_level": truncation
    }  # fmt: skip
    rows = lightgbm.Dataset(data.features, data.grades.astype(float), group=np.diff(data.offsets), params=theirs)
    booster = lightgbm.train(theirs, rows, trees)
    ours = rules(data).score(data)
    apart = np.abs(ours - booster.predict(data.features, raw_score=True)) > 1e-4
    assert apart.mean() < 0.005


@pytest.mark.long
def test_quality_is_that_of_lightgbm():
    data = synthetic("istella-x", 30)
    train, test = data.select(np.arange(20)), data.select(np.arange(20, 30))
    rules = {"trees": 20, "leaves": 16, "rate": 0.1}
    ours, theirs = (evaluate(["ndcg@10"], make(**rules)(train).score(test), test)[0] for make in (Grower, Lambdamart))
    assert abs(ours - theirs) < 0.02
    assert ours > 0.4


def test_fixed_point_is_close_to_floats():
    data = made_up_data(queries=10)
    rules = replace(SMALL, bins=9)
    edges = quantile_edges(data, 9)
    _, floats = slow.grow(data, edges, rules, rounded=False)
    distance = {
        fraction: np.abs(replace(rules, fraction=fraction)(data).score(data) - floats).max() for fraction in (12, 20)
    }
    assert distance[20] < 1e-5
    assert distance[20] < distance[12] < 0.01


def test_it_stops_by_the_validation_queries_and_is_a_forest_like_any_other(tmp_path):
    train, validation = made_up_data(queries=40), made_up_data(queries=20, seed=1)
    rules = replace(SMALL, trees=60, patience=5)
    steps = list(rules.grow(train, validation, 1))
    curve = [step.validation for step in steps]
    assert len(steps) < 60
    assert len(steps) - (int(np.argmax(curve)) + 1) == 5
    forest = rules(train, validation, seed=1)
    assert len(forest) == len(steps) - 5
    quality = evaluate(["ndcg@10"], forest.score(validation), validation)[0]
    assert quality == pytest.approx(max(curve), abs=1e-8)
    theirs = lightgbm.Booster(model_str=forest.text)
    np.testing.assert_array_equal(theirs.predict(train.features, raw_score=True), forest.score(train))


def test_a_share_of_features_and_queries():
    data = made_up_data(queries=40, features=20)
    rules = replace(SMALL, trees=6, feature_share=0.1, query_share=0.3)
    for number, step in enumerate(rules.grow(data, None, 3)):
        features = drawn_features(20, 0.1, 3, number)
        assert set(step.grown.feature) <= set(features)
        queries = drawn_queries(numbers_of(data.query_ids), 0.3, 3, number)
        assert 0 < queries.sum() < 25
        counts = next(line for line in step.tree.split("\n") if line.startswith("leaf_count="))
        assert sum(map(int, counts.removeprefix("leaf_count=").split())) == np.diff(data.offsets)[queries].sum()


def test_selgb_keeps_what_lightgbms_selgb_keeps_and_copies_nothing():
    data = few_values(12, queries=40, longest=60, top_grade=1)
    settings = {"trees": 5, "leaves": 6, "min_data_in_leaf": 1, "min_sum_hessian": 0.5, "keep": 0.3, "rate": 0.2}
    ours, theirs = (list(make(**settings).grow(data, None, 1)) for make in (SelectiveGrower, Selgb))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.kept is None) == (other.kept is None)
        if mine.kept is not None:
            np.testing.assert_array_equal(mine.kept, other.kept)
        np.testing.assert_allclose(np.sort(mine.grown.value), np.sort(other.grown.value), atol=1e-4)


def test_selgb_on_a_share_of_the_queries():
    data = made_up_data(queries=40, longest=60, top_grade=1)
    rules = SelectiveGrower(trees=4, leaves=4, min_data_in_leaf=1, keep=0.3, query_share=0.5)
    for number, step in enumerate(rules.grow(data, None, 3)):
        drawn = np.repeat(drawn_queries(numbers_of(data.query_ids), 0.5, 3, number), np.diff(data.offsets))
        rows = drawn if step.kept is None else drawn & step.kept
        counts = next(line for line in step.tree.split("\n") if line.startswith("leaf_count="))
        assert sum(map(int, counts.removeprefix("leaf_count=").split())) == rows.sum() > 0


@pytest.mark.parametrize("rules", [SMALL, SelectiveGrower(trees=7, leaves=5, min_data_in_leaf=2, keep=0.5, every=3)])
@pytest.mark.parametrize("stopped", [1, 3])
def test_a_resumed_forest_is_the_same_to_the_last_bit(rules, stopped):
    train, validation = made_up_data(queries=30), made_up_data(queries=9, seed=2)
    whole = [(step.tree, step.validation) for step in rules.grow(train, validation, 5)]
    past = BoosterState(*zip(*whole[:stopped], strict=True))
    rest = [(step.tree, step.validation) for step in rules.grow(train, validation, 5, past=past)]
    assert whole[:stopped] + rest == whole


def test_missing_values_count_as_zero_in_training_and_scoring():
    data = made_up_data(queries=30)
    holes = data.features.copy()
    holes[::3, 0] = np.nan
    rules = replace(SMALL, trees=3)
    with_holes, with_zeros = (replace(data, features=table) for table in (holes, np.nan_to_num(holes)))
    assert rules(with_holes).trees == rules(with_zeros).trees
    np.testing.assert_array_equal(rules(with_holes).score(with_holes), rules(with_zeros).score(with_zeros))


@given(
    st.lists(st.floats(-100, 100, width=32) | st.sampled_from([0.0, -0.0, 1e-40, np.inf]), min_size=1, max_size=60),
    st.integers(2, 12),
)
@settings(max_examples=60, deadline=None)
def test_bins_are_where_thresholds_send_documents(values, bins):
    data = made_up_data(queries=1, features=1, longest=1)
    column = np.array(values, dtype=np.float32)[:, None]
    data = replace(
        data, features=column, grades=np.zeros(len(column), np.int8), offsets=np.array([0, len(column)]),
    )  # fmt: skip
    edges = quantile_edges(data, bins)
    assert edges.bins <= bins
    found = put_in_bins(data, edges).columns[0]
    np.testing.assert_array_equal(found, np.searchsorted(np.array(edges.values[0]), column[:, 0].astype(float)))


def test_bins_hold_about_equally_many():
    counts = np.ones(1000, np.int64)
    counts[500] = 300  # gets a bin of its own
    ends = cut_evenly(counts, 10)
    parts = [part.sum() for part in np.split(counts, np.array(ends) + 1)]
    assert len(parts) <= 10
    assert 300 in parts
    assert max(parts) == 300


def test_edges_in_a_file(tmp_path):
    edges = quantile_edges(made_up_data())
    edges.save(tmp_path / "edges.json")
    assert Edges.load(tmp_path / "edges.json") == edges
    assert Edges.load(tmp_path / "edges.json").digest == edges.digest
    assert bounded_edges(5, 0, 1).digest != edges.digest
    (tmp_path / "other.json").write_text('{"edges": [[1]]}')
    with pytest.raises(ValueError, match="its format must be"):
        Edges.load(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((), "must not be empty"),
        (((1.0, 1.0),), "feature 1 must be finite and strictly ascending"),
        (((np.nan,),), "must be finite"),
    ],
)
def test_edges_that_are_none(edges, message):
    with pytest.raises(ValueError, match=message):
        Edges(edges)
    with pytest.raises(ValueError, match="257 bins"):
        Edges((tuple(range(256)),))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": 1}, "bins must be .*got 1"),
        ({"depth": -1}, "depth and l2 must be .*got -1"),
        ({"feature_share": 0}, "feature_share must be .*got 0"),
        ({"query_share": 1.1}, "query_share must be .*got 1.1"),
        ({"fraction": 60}, "fraction must be .*got 60"),
        ({"lambda_truncation": 0}, "lambda_truncation must be .*got 0"),
    ],
)
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(ValueError, match=message):
        Grower(**settings)


def test_rows_with_other_features_than_the_edges():
    with pytest.raises(ValueError, match="5 features, but the bin edges are for 4"):
        list(grow_alone(SMALL, made_up_data(), None, 1, BoosterState(), bounded_edges(4, 0, 1)))


def test_a_forest_reads_back():
    data = made_up_data(queries=20)
    forest = SMALL(data)
    assert isinstance(forest, Forest)
    scores = np.zeros(data.documents)
    Trees.read(forest.trees).add(data.features, scores)
    np.testing.assert_array_equal(scores, forest.score(data))

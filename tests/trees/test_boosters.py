"""Boosters grow what LightGBM would grow on the rows they choose, stop when they should, and can be resumed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

lightgbm = pytest.importorskip("lightgbm")

from fedrank.data.ranking import RankingData  # noqa: E402
from fedrank.data.synthetic import synthetic  # noqa: E402
from fedrank.kernels.trees import best_negatives  # noqa: E402
from fedrank.ranking.measures import evaluate, ranking  # noqa: E402
from fedrank.trees.arrays import Trees  # noqa: E402
from fedrank.trees.boosters import (  # noqa: E402
    BOOSTERS,
    Bagging,
    BoosterState,
    Goss,
    Grower,
    Lambdamart,
    Negsgb,
    NothingToSplit,
    SelectiveGrower,
    Selgb,
    Sgb,
    Shortlist,
    best_size,
)
from fedrank.trees.forest import Forest  # noqa: E402
from fedrank.trees.lightgbm_training import FEW, STUMP  # noqa: E402
from tests.made_up import made_up_data  # noqa: E402

TRAIN = made_up_data(queries=40, longest=30)
VALIDATION = made_up_data(queries=15, longest=30, seed=1)
SMALL = {"trees": 9, "leaves": 5, "min_data_in_leaf": 3, "rate": 0.3}
EACH = {
    "lambdamart": Lambdamart(**SMALL),
    "selgb": Selgb(**SMALL, keep=0.3),
    "selgb every 4": Selgb(**SMALL, keep=0.3, every=4),
    "sgb": Sgb(**SMALL, keep=0.5),
    "negsgb": Negsgb(**SMALL, keep=0.3, every=2),
    "goss": Goss(**SMALL, top=0.3, other=0.2),
    "bagging": Bagging(**SMALL, keep=0.5),
    "shortlist": Shortlist(**SMALL, negatives=3),
    "grower": Grower(**SMALL),
    "grower-selgb": SelectiveGrower(**SMALL, keep=0.3, every=2),
}
each = pytest.mark.parametrize("booster", EACH.values(), ids=EACH)


def test_every_booster_is_tried_here():
    assert {type(booster) for booster in EACH.values()} == set(BOOSTERS.values())


def test_lambdamart_is_lightgbms_own():
    booster = EACH["lambdamart"]
    rows = lightgbm.Dataset(TRAIN.features, TRAIN.grades.astype(float), group=np.diff(TRAIN.offsets))
    theirs = lightgbm.train(booster.engine(1, 1), rows, 9)
    np.testing.assert_array_equal(booster(TRAIN, seed=1).score(TRAIN), theirs.predict(TRAIN.features))


def lambdas(grades, scores, norm, truncation):
    """Gradients and hessians of one query, pair by pair: as Burges (2010) has them, or as LightGBM normalises them."""
    order = np.argsort(-scores, kind="stable")
    discount = 1 / np.log2(np.arange(len(grades)) + 2)
    ideal = np.sum(np.sort(2.0**grades - 1)[::-1][:truncation] * discount[:truncation])
    gradient, hessian, total = np.zeros(len(grades)), np.zeros(len(grades)), 0.0
    for first in range(min(truncation, len(grades))):
        for second in range(first + 1, len(grades)):
            pair = sorted(order[[first, second]], key=lambda document: -grades[document])
            gain = 2.0 ** grades[pair[0]] - 2.0 ** grades[pair[1]]
            weight = gain * abs(discount[first] - discount[second]) / ideal
            apart = scores[pair[0]] - scores[pair[1]]
            if norm and scores.max() != scores.min():
                weight /= 0.01 + abs(apart)
            wrong = 1 / (1 + np.exp(apart))
            gradient[pair] += np.array([-1, 1]) * weight * wrong
            hessian[pair] += weight * wrong * (1 - wrong)
            total += 2 * weight * wrong
    scale = np.log2(1 + total) / total if norm and total > 0 else 1.0
    return gradient * scale, hessian * scale


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("truncation", [1, 3, 30])
def test_pairs_weigh_as_the_settings_say(norm, truncation):
    rng = np.random.default_rng(3)
    grades, scores = rng.integers(0, 4, size=(5, 6)), rng.normal(size=(5, 6))
    features = np.tile(np.arange(6.0), 5)[:, None]  # the first documents of all queries look alike, and so on
    booster = Lambdamart(
        trees=1, min_data_in_leaf=1, min_sum_hessian=0.0, rate=1.0, lambda_norm=norm, lambda_truncation=truncation
    )
    settings = booster.engine(1, 1)
    rows = lightgbm.Dataset(
        features, grades.ravel().astype(float), group=[6] * 5, init_score=scores.ravel(), params=settings
    )
    grown = lightgbm.Booster(settings, rows)
    grown.update()
    gradients, hessians = np.array(
        [lambdas(*each, norm, truncation) for each in zip(grades, scores, strict=True)]
    ).transpose(1, 0, 2)
    leaf = grown.predict(features, pred_leaf=True).ravel()
    assert len(set(leaf)) > 2
    for one in set(leaf):
        inside = leaf == one
        expected = -gradients.ravel()[inside].sum() / hessians.ravel()[inside].sum()
        # LightGBM looks the logistic function up in a table.
        np.testing.assert_allclose(grown.predict(features[inside]), expected, rtol=1e-3)


def test_truncation_must_leave_pairs():
    with pytest.raises(ValueError, match="lambda_truncation must be at least 1"):
        Lambdamart(lambda_truncation=0)


def test_a_shortlist_may_stop_by_short_lists():
    whole, short = Shortlist(**SMALL, negatives=3), Shortlist(**SMALL, negatives=3, cut_validation=True)
    lists = short.stops_by(VALIDATION)
    for query, (begin, end) in enumerate(pairwise(VALIDATION.offsets)):
        grades = VALIDATION.grades[begin:end]
        seen = np.cumsum(grades < 1)
        kept = (grades > 0) | (seen <= 3)
        mine = slice(lists.offsets[query], lists.offsets[query + 1])
        np.testing.assert_array_equal(lists.features[mine], VALIDATION.features[begin:end][kept])
        np.testing.assert_array_equal(lists.grades[mine], grades[kept])
    assert whole.stops_by(VALIDATION) is VALIDATION
    model, curve = short(TRAIN, None, 1), [step.validation for step in short.grow(TRAIN, VALIDATION, 1)]
    assert [step.validation for step in whole.grow(TRAIN, VALIDATION, 1)] != curve
    assert evaluate(["ndcg@10"], model.score(lists), lists)[0] == pytest.approx(curve[-1])


@pytest.mark.parametrize(("keep", "every", "least"), [(0.3, 1, 1), (0.3, 4, 1), (0.01, 2, 3)])
def test_selgb_is_lightgbm_on_the_hardest_negatives_slowly(keep, every, least):
    booster = Selgb(**SMALL, keep=keep, every=every, min_negatives=least)
    whole = lightgbm.Dataset(TRAIN.features, TRAIN.grades.astype(float), params=booster.engine(1, 1))
    scores, trees, rows = np.zeros(TRAIN.documents), 0, np.arange(TRAIN.documents)
    while trees < 9:
        if trees:
            rows = hardest(TRAIN, scores, keep, least)
        part = whole.subset(rows).construct()  # set before, its scores would be lost
        query = np.repeat(np.arange(TRAIN.queries), np.diff(TRAIN.offsets))[rows]
        part.set_group(np.unique(query, return_counts=True)[1])
        part.set_init_score(scores[rows])
        grown = lightgbm.Booster(booster.engine(1, 1), part)
        for _ in range(min(every, 9 - trees)):
            grown.update()
        scores = scores + grown.predict(TRAIN.features, raw_score=True)
        trees += every
    np.testing.assert_allclose(booster(TRAIN, seed=1).score(TRAIN), scores, rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_a_tree_on_few_rows_is_that_of_lightgbm_on_them():
    """LightGBM goes by columns there, which changes nothing but the time."""
    data, booster = synthetic("istella-x", 12), Selgb(trees=2, leaves=8)
    first, second = booster.grow(data, None, 1)
    rows, scores, added = np.flatnonzero(second.kept), np.zeros(data.documents), np.zeros(data.documents)
    assert len(rows) < FEW * data.documents
    first.grown.add(data.features, scores)
    part = lightgbm.Dataset(data.features, data.grades.astype(float), params=booster.engine(1, 1)).subset(rows)
    part.construct()
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))[rows]
    part.set_group(np.unique(query, return_counts=True)[1])
    part.set_init_score(scores[rows])
    theirs = lightgbm.Booster(booster.engine(1, 1), part)
    theirs.update()
    second.grown.add(data.features, added)
    np.testing.assert_array_equal(added, theirs.predict(data.features, raw_score=True))


def hardest(data: RankingData, scores, keep, least):
    """Rows of the relevant documents and of each query's best-ranked others, obviously."""
    chosen = []
    order = ranking(scores, data.offsets)
    for begin, end in pairwise(data.offsets):
        irrelevant = [row for row in order[begin:end] if data.grades[row] == 0]
        wanted = max(int(keep * len(irrelevant) + 0.5), least)
        chosen += [row for row in range(begin, end) if data.grades[row] > 0] + irrelevant[:wanted]
    return np.sort(np.array(chosen))


@given(
    seed=st.integers(0, 10**6),
    levels=st.integers(1, 5),  # few levels of scores: many ties
    keep=st.floats(0.001, 1.0),
    least=st.integers(0, 4),
)
@settings(max_examples=40, deadline=None)
def test_the_hardest_are_those_that_a_sorted_list_begins_with(seed, levels, keep, least):
    data = made_up_data(queries=6, longest=20, seed=seed)
    scores = np.random.default_rng(seed).integers(levels, size=data.documents).astype(np.float32)
    kept = np.zeros(data.documents, dtype=bool)
    count = best_negatives(scores.view(np.int32), data.grades, data.offsets, keep, least, kept)
    expected = hardest(data, scores, keep, least)
    assert np.flatnonzero(kept).tolist() == expected.tolist()
    assert count == (data.grades[expected] == 0).sum()


def test_the_hardest_by_hand():
    grades = np.array([0, 2, 0, 0, 0, 0, 1, 0], dtype=np.int8)
    scores = np.array([0.1, 0.0, 0.4, 0.3, 0.2, 0.9, 0.5, 0.8], dtype=np.float32)
    kept = np.zeros(8, dtype=bool)
    # The first query keeps round(0.5 * 4) = 2 of 0.1, 0.4, 0.3, 0.2; the second round(0.5 * 2) = 1 of 0.9, 0.8.
    best_negatives(scores.view(np.int32), grades, np.array([0, 5, 8]), 0.5, 1, kept)
    assert kept.tolist() == [False, True, True, True, False, True, True, False]


@each
def test_threads_change_nothing(booster):
    booster = replace(booster, trees=4)
    assert booster(TRAIN, VALIDATION, seed=2, threads=1).text == booster(TRAIN, VALIDATION, seed=2, threads=2).text


@each
@pytest.mark.parametrize("after", [1, 6])
def test_a_resumed_forest_is_the_same(booster, after):
    steps = list(booster.grow(TRAIN, VALIDATION, 3))
    past = BoosterState(tuple(step.tree for step in steps[:after]), tuple(step.validation for step in steps[:after]))
    rest = list(booster.grow(TRAIN, VALIDATION, 3, past=past))
    assert [step.tree for step in rest] == [step.tree for step in steps[after:]]
    assert [step.validation for step in rest] == [step.validation for step in steps[after:]]


@each
def test_validation_is_our_ndcg_of_the_first_trees(booster):
    steps = list(booster.grow(TRAIN, VALIDATION, 4))
    forest = replace(booster, patience=0)(TRAIN, seed=4)
    for size in (1, len(steps)):
        expected = evaluate(["ndcg@10"], forest.truncated(size).score(VALIDATION), VALIDATION)[0]
        assert steps[size - 1].validation == pytest.approx(expected, abs=1e-12)
    barren = replace(VALIDATION, grades=np.where(np.arange(VALIDATION.documents) < 60, 0, VALIDATION.grades))
    assert (np.maximum.reduceat(barren.grades, barren.offsets[:-1]) == 0).sum() > 1
    ours = next(iter(booster.grow(TRAIN, barren, 4))).validation
    scores = forest.truncated(1).score(barren)
    assert ours == pytest.approx(evaluate(["ndcg@10/skip"], scores, barren)[0], abs=1e-12)
    assert ours < evaluate(["ndcg@10/one"], scores, barren)[0]  # LightGBM's convention


@each
def test_seeds_matter_where_there_is_chance(booster):
    one, other = (booster(TRAIN, seed=seed).text for seed in (1, 2))
    # GOSS samples nothing in its first 1 / rate trees; here these are 3 of 9.
    assert (one != other) == (type(booster) in (Sgb, Negsgb, Bagging, Goss))


@pytest.mark.parametrize(
    ("booster", "chosen"),
    [
        (EACH["lambdamart"], []),
        (EACH["selgb"], [1, 2, 3, 4, 5, 6, 7, 8]),
        (EACH["selgb every 4"], [4, 8]),
        (EACH["negsgb"], [2, 4, 6, 8]),
    ],
)
def test_rows_are_chosen_when_they_should_be(booster, chosen):
    steps = list(booster.grow(TRAIN, None, 1))
    assert [number for number, step in enumerate(steps) if step.kept is not None] == chosen
    for step in steps:
        if step.kept is not None:
            assert step.kept[TRAIN.grades > 0].all()
            assert 0.25 < step.kept[TRAIN.grades == 0].mean() < 0.45


def test_how_much_is_drawn():
    sgb, bagging = (list(EACH[name].grow(TRAIN, None, 1))[1].kept for name in ("sgb", "bagging"))
    assert sgb.sum() == round(0.5 * TRAIN.documents)
    of_query = np.add.reduceat(bagging, TRAIN.offsets[:-1], dtype=int) / np.diff(TRAIN.offsets)
    assert set(of_query) == {0.0, 1.0}
    assert of_query.sum() == round(0.5 * TRAIN.queries)


@pytest.mark.parametrize("by", [0, 2])
def test_a_shortlist_is_training_on_less_data(by):
    shown = -np.arange(TRAIN.documents) if by == 0 else TRAIN.features[:, by - 1]
    rows = hardest(TRAIN, shown, 0.0, 3)
    query = np.repeat(np.arange(TRAIN.queries), np.diff(TRAIN.offsets))[rows]
    offsets = np.concatenate([[0], np.cumsum(np.unique(query, return_counts=True)[1])])
    booster = Shortlist(**SMALL, negatives=3, by=by)
    whole = lightgbm.Dataset(TRAIN.features, TRAIN.grades.astype(float), params=booster.engine(1, 1))
    part = whole.subset(rows).construct()  # the bins are those of all documents
    part.set_group(np.diff(offsets))
    theirs = lightgbm.train(booster.engine(1, 1), part, 9)
    np.testing.assert_array_equal(booster(TRAIN, seed=1).score(TRAIN), theirs.predict(TRAIN.features))
    with pytest.raises(ValueError, match="by must be at most 5"):
        Shortlist(by=6)(TRAIN)


def test_it_stops_when_nothing_gets_better_and_goes_back_to_the_best():
    booster = Lambdamart(**SMALL | {"trees": 200, "patience": 4})
    curve = [step.validation for step in booster.grow(TRAIN, VALIDATION, 1)]
    size = best_size(curve)
    assert len(curve) == size + 4 < 200
    assert curve[size - 1] == max(curve) > max(curve[: size - 1])
    assert len(booster(TRAIN, VALIDATION, seed=1)) == size
    assert list(booster.grow(TRAIN, VALIDATION, 1, past=BoosterState(("",) * len(curve), tuple(curve)))) == []
    assert len(booster(TRAIN, seed=1)) == 200  # without validation queries, nothing stops it


def test_a_tree_says_what_lightgbm_says():
    features = np.random.default_rng(0).random((500, 4), dtype=np.float32)
    features[::7, 0] = np.nan
    target = np.where(np.isnan(features[:, 0]), 3, features[:, 0] + features[:, 1] * features[:, 2])
    grown = lightgbm.train({"verbose": -1, "num_leaves": 20}, lightgbm.Dataset(features, target), 1)
    tree = Forest(grown.model_to_string()).arrays
    unseen = np.random.default_rng(1).random((500, 4), dtype=np.float32)
    unseen[::5, 0], unseen[::3, 1] = np.nan, np.nan  # the second feature was never missing in training
    scores = np.ones(500)
    tree.add(unseen, scores)
    np.testing.assert_array_equal(scores, 1 + grown.predict(unseen))


def test_a_stump_says_nothing_and_lightgbm_reads_it():
    scores = np.arange(5.0)
    Trees.read([STUMP]).add(np.ones((5, 1), np.float32), scores)
    assert scores.tolist() == [0, 1, 2, 3, 4]
    # One row in a hundred leaves nothing to split, and the next choice may be better.
    forest = Sgb(**SMALL | {"min_data_in_leaf": 5}, keep=0.02)(TRAIN, seed=1)
    assert STUMP in forest.trees
    assert lightgbm.Booster(model_str=forest.text).num_trees() == 9


@pytest.mark.parametrize(
    ("booster", "train", "validation", "message"),
    [
        (
            Lambdamart(),
            replace(TRAIN, grades=np.zeros_like(TRAIN.grades)),
            None,
            "documents with different relevance labels",
        ),
        (
            Lambdamart(),
            replace(TRAIN, grades=np.full_like(TRAIN.grades, 31)),
            None,
            "from 0 to 30, for which LightGBM has gains",
        ),
        (Lambdamart(), TRAIN, replace(VALIDATION, grades=np.zeros_like(VALIDATION.grades)), "no relevant document"),
        (Selgb(keep=0.01, min_negatives=0), TRAIN, None, "keep = 0.01 of at most .* keeps none; use min_negatives = 1"),
        (Negsgb(keep=0.01, min_negatives=0), TRAIN, None, "keeps none"),
    ],
)
def test_data_that_teach_nothing_are_refused(booster, train, validation, message):
    with pytest.raises(ValueError, match=message):
        next(booster.grow(train, validation, 1))


def test_settings_that_allow_no_split_are_named():
    with pytest.raises(NothingToSplit, match="lower min_data_in_leaf = 5000"):
        Lambdamart(min_data_in_leaf=5000)(TRAIN)


def test_a_query_too_long_for_lightgbm_is_named():
    long = RankingData(np.zeros((10_001, 1), np.float32), np.arange(10_001) % 2, np.array([0, 10_001]), np.array(["q"]))
    with pytest.raises(ValueError, match="query q of the training set has 10,001 documents"):
        Lambdamart()(long)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Lambdamart, {"trees": 0}),
        (Lambdamart, {"leaves": 1}),
        (Lambdamart, {"rate": 0.0}),
        (Lambdamart, {"patience": -1}),
        (Lambdamart, {"min_data_in_leaf": 0}),
        (Selgb, {"keep": 0.0}),
        (Selgb, {"keep": 1.1}),
        (Selgb, {"every": 0}),
        (Selgb, {"min_negatives": -1}),
        (Sgb, {"keep": -0.1}),
        (Goss, {"top": 0.8, "other": 0.3}),
        (Shortlist, {"negatives": 0}),
    ],
)
def test_wrong_settings_are_refused(kind, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} (must|and)|and {next(iter(wrong))} "):
        kind(**wrong)

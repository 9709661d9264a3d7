"""Forests of several clients: what is shared, what is damped, and who gains by merging."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.catalog import Fold, load
from fedrank.data.ranking import RankingData
from fedrank.ranking.model import Model
from fedrank.ranking.rankers import Linear
from fedrank.trees.export import export, plain_scores
from fedrank.trees.export.engine_rules import engine_scores
from fedrank.trees.mergers import MERGERS, Alone, Bagged, Cyclic, Pooled, Stacking, WeightedSum, grown_together
from fedrank.trees.mixtures import LinearMix, damped
from fedrank.trees.model_files import load_model, save_any
from fedrank.trees.splits import Categories, Dealt, Portion
from fedrank.trees.training import Merging, train_and_merge, train_locally
from tests.made_up import made_up_data

lightgbm = pytest.importorskip("lightgbm")

from fedrank.trees.arrays import Trees  # noqa: E402
from fedrank.trees.boosters import Lambdamart, Selgb, usable_validation  # noqa: E402

SMALL = Lambdamart(trees=8, leaves=4, rate=0.2, min_data_in_leaf=5, patience=0)


def parts(seed: int = 0) -> tuple[Portion, ...]:
    data = made_up_data(60, seed=seed)
    halves = [data.select(np.arange(start, 60, 2)) for start in (0, 1)]
    return tuple(Portion(f"half {i}", half, made_up_data(20, seed=9 + i), None, half) for i, half in enumerate(halves))


def test_one_client_alone_in_a_shared_forest_grows_its_own_forest():
    portion = parts()[0]
    own = SMALL(portion.train, None, seed=1)
    for merger in (Bagged(), Cyclic()):
        shared = merger((replace(portion, validation=None),), (), SMALL, 1)[0]
        assert shared.trees == own.trees


def test_two_clients_with_the_same_data_grow_the_trees_of_one():
    portion = replace(parts()[0], validation=None)
    own = SMALL(portion.train, None, seed=1)
    together = Bagged()((portion, portion), (), SMALL, 1)[0]
    assert len(together) == 2 * len(own)
    assert together.score(portion.train) == pytest.approx(own.score(portion.train))
    in_turn = Cyclic(turn=2)((portion, portion), (), SMALL, 1)[0]
    assert in_turn.trees == own.trees


def test_clients_take_turns():
    portions = tuple(replace(portion, validation=None) for portion in parts())
    forest = Cyclic(turn=1)(portions, (), SMALL, 1)[0]
    first = SMALL(portions[0].train, None, seed=1)
    assert forest.trees[0] == first.trees[0]
    # The second tree is what the second client finds left to do after the first.
    alone = SMALL(portions[1].train, None, seed=1)
    assert forest.trees[1] != alone.trees[0]
    assert len(forest) == SMALL.trees


def test_trees_count_by_queries_or_all_alike():
    portions = tuple(replace(portion, validation=None) for portion in parts())
    few = replace(portions[1], train=portions[1].train.select(np.arange(10)))  # 30 and 10 queries
    by_size, alike = (Bagged(weighted)((portions[0], few), (), SMALL, 1)[0] for weighted in (True, False))
    raw = SMALL(portions[0].train, None, seed=1).trees[0]
    assert by_size.trees[0] == damped(raw, 0.75)
    assert alike.trees[0] == damped(raw, 0.5)


def test_a_damped_tree_says_less_of_the_same():
    text = SMALL(parts()[0].train, None, seed=1).trees[0]
    data = made_up_data(10, seed=5)
    whole, less = np.zeros(data.documents), np.zeros(data.documents)
    Trees.read([text]).add(data.features, whole)
    Trees.read([damped(text, 0.3)]).add(data.features, less)
    assert np.any(whole != 0)
    assert less == pytest.approx(0.3 * whole)
    assert damped(text, 1.0) == text


def test_lightgbm_reads_a_shared_forest_as_we_do():
    portions = parts()
    forest = Bagged()(portions, (), SMALL, 1)[0]
    data = made_up_data(10, seed=5)
    ours = np.zeros(data.documents)
    for tree in forest.trees:
        Trees.read([tree]).add(data.features, ours)
    theirs = lightgbm.Booster(model_str=forest.text).predict(data.features, raw_score=True)
    assert theirs == pytest.approx(ours, abs=1e-12)


@pytest.mark.parametrize(("scale", "units"), [("none", ()), ("fixed", (2.0, 0.5))])
def test_a_sum_of_forests_is_a_forest_for_lightgbm(tmp_path, scale, units):
    mix = LinearMix(train_locally(parts(), SMALL, 1), (0.3, 0.7), scale, units)
    save_any(mix, tmp_path / "model.json")
    data = made_up_data(10, seed=5)
    theirs = lightgbm.Booster(model_file=tmp_path / "model.txt").predict(data.features, raw_score=True)
    assert theirs == pytest.approx(mix.score(data), abs=1e-12)
    assert load_model(tmp_path).score(data) == pytest.approx(theirs, abs=1e-12)


def test_what_is_no_sum_of_trees_is_no_forest():
    local = train_locally(parts(), SMALL, 1)
    assert LinearMix(local, (0.5, 0.5), "query").as_forest() is None
    averaged = replace(local[0], text=local[0].text.replace("\nfeature_names=", "\naverage_output\nfeature_names="))
    assert LinearMix((local[1], averaged), (0.5, 0.5)).as_forest() is None


@pytest.mark.long
def test_a_shared_forest_stops_by_all_validation_queries():
    portions = parts()
    patient = replace(SMALL, trees=25, patience=3)
    forest = Bagged()(portions, (), patient, 1)[0]
    longer = Bagged()(tuple(replace(portion, validation=None) for portion in portions), (), patient, 1)[0]
    assert len(forest) < len(longer) == 2 * 25
    assert forest.trees == longer.trees[: len(forest)]


def test_boosters_that_choose_rows_cannot_grow_together():
    with pytest.raises(ValueError, match='which selgb does not; use booster = "lambdamart"'):
        Cyclic()(parts(), (), Selgb(), 1)


def test_pooled_is_the_forest_of_all_queries():
    portions = tuple(replace(portion, validation=None) for portion in parts())
    pooled = Pooled()(portions, (), SMALL, 1)
    assert pooled[0] is pooled[1]
    assert pooled[0].trees == SMALL(RankingData.join([portion.train for portion in portions]), None, seed=1).trees
    own = train_locally(portions, SMALL, 1)
    assert Alone()(portions, own, SMALL, 1) == own
    assert own[0].notes == {"client": "half 0", "queries": 30}


def test_validation_without_relevant_documents_does_not_stop_anybody():
    data = made_up_data(4)
    assert usable_validation(replace(data, grades=np.zeros_like(data.grades))) is None
    assert usable_validation(None) is None
    assert usable_validation(data) is data


@pytest.mark.parametrize("name", MERGERS)
def test_every_merger_gives_every_client_a_model(name):
    fold = Fold(made_up_data(60, seed=1), made_up_data(40, seed=2), made_up_data(20, seed=3), "made up", 1)
    done = train_and_merge(fold, Dealt(3), SMALL, MERGERS[name](), ["ndcg@10", "map"], 1)
    assert len(done.local) == len(done.merged) == 3
    assert done.before.shape == done.after.shape == (2, 3, 20)
    assert done.own.sum(axis=0).tolist() == [1] * 20  # every query is of one client's kind
    again = train_and_merge(fold, Dealt(3), SMALL, MERGERS[name](), ["ndcg@10", "map"], 1)
    assert np.array_equal(done.after, again.after, equal_nan=True)


def test_quality_by_client_is_the_mean_over_its_own_queries():
    fold = Fold(made_up_data(60, seed=1), made_up_data(40, seed=2), made_up_data(20, seed=3), "made up", 1)
    done = train_and_merge(fold, Dealt(2), SMALL, WeightedSum(), ["map"], 1)
    found = done.by_client()
    for client in range(2):
        mine = done.own[client]
        assert found["map own after"][client] == pytest.approx(np.nanmean(done.after[0, client, mine]))
        assert found["map others before"][client] == pytest.approx(np.nanmean(done.before[0, client, ~mine]))
        assert found["map all before"][client] == pytest.approx(np.nanmean(done.before[0, client]))


@pytest.mark.long
def test_merging_helps_where_clients_know_different_things():
    fold = load("synthetic-categories")
    booster = Lambdamart(trees=30, leaves=8, rate=0.2, patience=0)
    split = Categories("feature:category", ("1",), rule="exclusive")
    found = train_and_merge(fold, split, booster, Stacking(booster=booster), ["ndcg@10"], 1).by_client()
    assert np.all(found["ndcg@10 own before"] > found["ndcg@10 others before"] + 0.1)
    assert np.all(found["ndcg@10 all after"] > found["ndcg@10 all before"] + 0.1)


def test_nothing_to_split_is_named():
    data = made_up_data(10)
    blank = replace(data, features=np.zeros_like(data.features))
    portion = Portion("blank", blank, None, None, blank)
    with pytest.raises(ValueError, match="no client found a split"):
        grown_together((portion, portion), SMALL, lambda number: [(0, 1.0)], 1)


def test_a_sum_of_forests_goes_to_an_engine(tmp_path):
    mix = LinearMix(train_locally(parts(), SMALL, 1), (0.3, 0.7))
    save_any(mix, tmp_path / "model.json")
    export(tmp_path, "solr", tmp_path / "solr.json")
    names = tuple(f"f{i + 1}" for i in range(mix.features))
    features = made_up_data(10, seed=5).features
    theirs = engine_scores("solr", (tmp_path / "solr.json").read_bytes(), features, names)
    assert theirs == pytest.approx(plain_scores(mix, features), abs=1e-5)


def test_a_mix_of_models_with_ranges_knows_them():
    ranges = np.array([[0.0, 0.0], [1.0, 2.0]], dtype=np.float32)
    one, other, third = (Model(Linear(), np.ones(2), 2, "global", ranges=r) for r in (ranges, ranges, 2 * ranges))
    assert LinearMix((one, other), (0.5, 0.5)).ranges is ranges
    with pytest.raises(ValueError, match="and different ranges"):
        LinearMix((one, third), (0.5, 0.5))


def test_queries_of_nobody_are_no_other_clients_queries():
    values = np.array([[[0.1, 0.2, 0.9], [0.3, 0.4, 0.8]]])  # one measure, two clients, three queries
    own = np.array([[True, False, False], [False, True, False]])
    columns = Merging((), (), (), ("ndcg@10",), values, values, own).by_client()
    assert columns["ndcg@10 others before"].tolist() == [0.2, 0.3]
    assert columns["ndcg@10 all after"] == pytest.approx([(0.1 + 0.2 + 0.9) / 3, (0.3 + 0.4 + 0.8) / 3])

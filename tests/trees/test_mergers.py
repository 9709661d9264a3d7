"""Merging: weights that rank best, stacked models, and what cannot be merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.ranking.measures import evaluate
from fedrank.ranking.model import Model
from fedrank.ranking.rankers import Linear
from fedrank.trees.boosters import Lambdamart, NothingToSplit
from fedrank.trees.forest_checkpoint import ForestCheckpoint
from fedrank.trees.mergers import Stacking, WeightedSum
from fedrank.trees.mixtures import LinearMix, Stacked, scores_of, stacked
from fedrank.trees.model_files import load_model
from fedrank.trees.splits import Portion
from tests.made_up import made_up_data

DATA = made_up_data(60, features=5, seed=7)


def model(*weights: float) -> Model:
    return Model(Linear(), np.array(weights), len(weights), notes={"weights": list(weights)})


GOOD, BAD, NOISE = model(1, 0, 0, 0, 0), model(-1, 0, 0, 0, 0), model(0, 1, 0, 0, 0)


def test_the_better_model_gets_the_weight():
    merged = WeightedSum().merge([BAD, GOOD], DATA)
    assert isinstance(merged, LinearMix)
    assert merged.weights[1] > 0.5
    assert evaluate(["ndcg@10"], merged.score(DATA), DATA) == pytest.approx(
        evaluate(["ndcg@10"], GOOD.score(DATA), DATA)
    )


def test_a_merged_model_is_no_worse_on_its_merge_set_than_any_part():
    parts = [GOOD, NOISE, model(0, 0, 1, 0, 0)]
    value = evaluate(["ndcg@10"], WeightedSum().merge(parts, DATA).score(DATA), DATA)[0]
    assert value >= evaluate(["ndcg@10"], scores_of(parts, DATA), DATA)[0].max()


def test_uniform_weights_search_nothing():
    merged = WeightedSum(weights="uniform").merge([GOOD, BAD, NOISE], DATA)
    assert merged.weights == pytest.approx((1 / 3, 1 / 3, 1 / 3))


@pytest.mark.parametrize("scale", ["fixed", "query"])
def test_on_a_common_scale_loudness_does_not_matter(scale):
    quiet = [model(1, 0, 0, 0, 0), model(0, 1, 0, 0, 0)]
    loud = [quiet[0], model(0, 10_000, 0, 0, 0)]
    one, other = (WeightedSum(weights="uniform", scale=scale).merge(parts, DATA).score(DATA) for parts in (quiet, loud))
    assert one == pytest.approx(other, rel=1e-4, abs=1e-4)
    plain = WeightedSum(weights="uniform").merge(loud, DATA).score(DATA)
    assert evaluate(["ndcg@10"], plain, DATA) == pytest.approx(evaluate(["ndcg@10"], loud[1].score(DATA), DATA))


def test_merged_models_say_what_they_are_made_of():
    notes = WeightedSum().merge([GOOD, NOISE], DATA).notes
    assert notes["merged by"] == "linear"
    assert notes["parts"] == [GOOD.notes, NOISE.notes]
    assert notes["merge set"]["queries"] == 60
    assert 0 < notes["merge set"]["ndcg@10"] <= 1


@pytest.mark.parametrize("merger", [WeightedSum(), WeightedSum(scale="query"), Stacking()])
def test_a_merge_set_without_relevant_documents_is_refused(merger):
    barren = replace(DATA, grades=np.zeros_like(DATA.grades))
    with pytest.raises(
        ValueError, match=r"the merge set has no relevant document in 60 queries.*give labelled queries"
    ):
        merger.merge([GOOD, NOISE], barren)


@pytest.mark.parametrize("merger", [WeightedSum(), Stacking()])
def test_models_with_other_features_are_refused(merger):
    with pytest.raises(ValueError, match="model 1 uses 5 features, model 2 uses 3"):
        merger.merge([GOOD, model(1, 2, 3)], DATA)


def test_a_merge_set_with_other_features_is_refused():
    wide = replace(DATA, features=np.hstack([DATA.features, DATA.features]))
    with pytest.raises(ValueError, match="has 5 features, but the data have 10"):
        WeightedSum().merge([GOOD, NOISE], wide)


@pytest.mark.parametrize(
    "wrong", [lambda: WeightedSum(step=0.0), lambda: WeightedSum(step=0.7), lambda: Stacking(held_out=1.0)]
)
def test_settings_that_search_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        wrong()


class TestStacking:
    @pytest.fixture(autouse=True)
    def needs_lightgbm(self):
        pytest.importorskip("lightgbm")

    def merger(self, inputs: str) -> Stacking:
        from fedrank.trees.boosters import Lambdamart

        return Stacking(inputs, Lambdamart(trees=20, leaves=4, patience=10, min_data_in_leaf=5))

    def test_trees_read_features_and_scores(self):
        merged = self.merger("both").merge([GOOD, NOISE], DATA, seed=3)
        assert isinstance(merged, Stacked)
        assert merged.final.features == 5 + 2
        assert merged.final.feature_names == ()  # the data have none
        assert np.array_equal(merged.score(DATA), merged.final.score(stacked([GOOD, NOISE], DATA, "both")))

    def test_scores_only_cannot_see_the_features(self):
        merged = self.merger("scores").merge([NOISE, model(0, 0, 1, 0, 0)], DATA)
        changed = replace(DATA, features=np.column_stack([1 - DATA.features[:, 0], DATA.features[:, 1:]]))
        assert merged.final.features == 2
        assert np.array_equal(merged.score(DATA), merged.score(changed))

    def test_features_only_do_not_depend_on_the_models(self):
        one = self.merger("features").merge([GOOD, NOISE], DATA)
        other = self.merger("features").merge([BAD, NOISE], DATA)
        assert one.text == other.text
        assert one.features == 5

    def test_queries_held_out_are_not_trained_on(self):
        merger = self.merger("both")
        train, validation = merger._divided(DATA, np.random.default_rng(0))
        assert not set(train.query_ids) & set(validation.query_ids)
        assert train.queries + validation.queries == DATA.queries
        with_relevant = np.sum(np.maximum.reduceat(DATA.grades, DATA.offsets[:-1]) > 0)
        assert validation.queries == round(0.2 * with_relevant)

    def test_one_useful_query_trains_without_validation(self):
        train, validation = self.merger("both")._divided(DATA.select([5]), np.random.default_rng(0))
        assert validation is None
        assert train.queries == 1

    def test_a_stacked_model_comes_back_from_its_files(self, tmp_path):
        from fedrank.trees.model_files import save_any

        merged = self.merger("both").merge([GOOD, NOISE], DATA)
        save_any(merged, tmp_path / "model.json")
        assert np.array_equal(load_model(tmp_path).score(DATA), merged.score(DATA))
        text = tmp_path / "model-final.txt"
        text.write_text(text.read_text()[:-200])
        with pytest.raises(ValueError, match=r"model-final.*(truncated|damaged)"):
            load_model(tmp_path)


def test_a_stacked_model_is_grown_with_settings_that_are_found_on_the_part_held_out():
    asked = []

    def settings(booster, train, validation, seed, threads):
        asked.append((train.queries, validation.queries, train.features.shape[1], seed))
        return replace(booster, trees=3, rate=0.5)

    portions = [Portion("one", DATA, None, None, DATA)] * 2
    merger = Stacking(booster=Lambdamart(trees=9, leaves=4, min_data_in_leaf=3))
    one, _ = merger(portions, [GOOD, NOISE], ForestCheckpoint(Lambdamart(), settings), seed=4)
    assert len(asked) == 2  # for every client's own
    [(train, held_out, features, seed)] = set(asked)
    assert (train + held_out, features, seed) == (DATA.queries, 5 + 2, 4)
    assert held_out == round(0.2 * np.sum(np.maximum.reduceat(DATA.grades, DATA.offsets[:-1]) > 0))
    assert "shrinkage=0.5" in one.final.text
    assert len(one.final) <= 3
    plain, _ = merger(portions, [GOOD, NOISE], Lambdamart(), seed=4)
    assert "shrinkage=0.05" in plain.final.text


def test_where_no_setting_can_split_the_merge_set_the_own_ones_stay():
    def settings(booster, train, validation, seed, threads):
        raise NothingToSplit("none of them")

    merger = Stacking(booster=Lambdamart(trees=9, leaves=4, min_data_in_leaf=3))
    portions = [Portion("one", DATA, None, None, DATA)]
    (one,) = merger(portions, [GOOD, NOISE], ForestCheckpoint(Lambdamart(), settings), seed=4)
    (plain,) = merger(portions, [GOOD, NOISE], Lambdamart(), seed=4)
    assert one.final.text == plain.final.text
    assert one.notes["settings"].startswith("as given")
    assert "settings" not in plain.notes

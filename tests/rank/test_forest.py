"""A forest is an ordinary LightGBM model: any LightGBM reads it, and it survives files, cuts and damage."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

lightgbm = pytest.importorskip("lightgbm")

from fedrank.rank.forest import Forest, joined, load_forest, planted, save_forest  # noqa: E402
from fedrank.rank.model import Model, load_model, load_weights, save_model  # noqa: E402
from fedrank.rank.rankers import Linear  # noqa: E402
from fedrank.rank.trees import Selgb  # noqa: E402
from tests.made_up import made_up_data  # noqa: E402

DATA = made_up_data(queries=30, longest=40)


@pytest.fixture(scope="module")
def outsider():
    """A model that LightGBM trained and wrote without us."""
    train = lightgbm.Dataset(DATA.features, DATA.grades.astype(float), group=np.diff(DATA.offsets))
    settings = {"objective": "lambdarank", "num_leaves": 6, "min_data_in_leaf": 3, "num_threads": 1, "verbose": -1}
    return lightgbm.train(settings, train, 5)


@pytest.fixture(scope="module")
def forest():
    """Trees of six boosters, each on rows of its own."""
    grown = Selgb(trees=6, leaves=5, min_data_in_leaf=2, keep=0.3)(DATA, seed=1)
    return replace(grown, feature_names=("a", "b b", "c", "d", "e"), notes={"fold": 2})


def test_a_model_of_lightgbm_is_taken_as_it_is(outsider):
    ours = Forest(outsider.model_to_string())
    assert (len(ours), ours.features) == (5, 5)
    np.testing.assert_array_equal(ours.score(DATA), outsider.predict(DATA.features))


@pytest.mark.parametrize("trees", [0, 1, 3, 5])
def test_the_first_trees_are_what_lightgbm_uses_as_such(outsider, trees):
    cut = Forest(outsider.model_to_string()).truncated(trees)
    assert len(cut) == trees
    expected = outsider.predict(DATA.features, num_iteration=trees) if trees else np.zeros(DATA.documents)
    np.testing.assert_array_equal(cut.score(DATA), expected)


def test_joining_numbers_the_trees_and_keeps_their_sizes(outsider):
    text = outsider.model_to_string()
    trees = Forest(text).trees
    again = joined(text, trees)
    assert again[: again.index("end of trees")] == text[: text.index("end of trees")]
    turned = Forest(joined(text, trees[::-1]))
    assert turned.trees == trees[::-1]
    np.testing.assert_allclose(turned.score(DATA), outsider.predict(DATA.features), rtol=1e-12)


def test_a_fresh_lightgbm_gives_the_same_scores(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    np.save(tmp_path / "features.npy", DATA.features)
    code = (
        "import lightgbm, numpy, sys; booster = lightgbm.Booster(model_file='model.txt'); "
        "rows = numpy.load('features.npy'); assert booster.num_trees() == 6; "
        "numpy.save('all.npy', booster.predict(rows)); "
        "numpy.save('four.npy', booster.predict(rows, num_iteration=4)); "
        "assert 'fedrank' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "all.npy"), forest.score(DATA))
    np.testing.assert_array_equal(np.load(tmp_path / "four.npy"), forest.truncated(4).score(DATA))


def test_a_file_gives_back_what_was_saved(forest, tmp_path):
    ranges = np.stack([np.zeros(5, np.float32), np.ones(5, np.float32)])
    scaled = replace(forest, normalised="global", ranges=ranges)
    save_forest(scaled, tmp_path / "model.json")
    for path in (tmp_path, tmp_path / "model.json"):
        back = load_model(path)
        assert isinstance(back, Forest)
        assert (back.text, back.feature_names, back.notes) == (forest.text, forest.feature_names, {"fold": 2})
        assert back.normalised == "global"
        np.testing.assert_array_equal(back.ranges, ranges)
    assert load_model(tmp_path / "model.txt").text == forest.text


def test_sparse_data_may_lack_their_last_features(forest):
    narrow = replace(DATA, features=np.ascontiguousarray(DATA.features[:, :4]))
    with_zeros = DATA.features.copy()
    with_zeros[:, 4] = 0
    np.testing.assert_array_equal(forest.score(narrow), forest.raw(with_zeros))


def test_data_with_other_features_are_refused(forest):
    with pytest.raises(ValueError, match="reads 5 features, the data have 6"):
        forest.score(made_up_data(features=6))
    with pytest.raises(ValueError, match="reads the feature 'b b' where the data have 'x'"):
        forest.score(replace(DATA, feature_names=("a", "x", "c", "d", "e")))
    with pytest.raises(ValueError, match="2 feature names for a forest that reads 5"):
        replace(forest, feature_names=("a", "b"))
    with pytest.raises(ValueError, match="cannot keep the first 7 trees of 6"):
        forest.truncated(7)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "cut short"),
        (lambda text: text.replace("leaf_value=", "leaf_value=1", 1), "the file is damaged"),
        (lambda text: text.replace("Tree=2", "", 1), "promises 6 trees"),
        (lambda text: "{}", "does not begin with the line 'tree'"),
        (lambda text: text.replace("max_feature_idx", "other"), "no line max_feature_idx="),
        (lambda text: text.replace("num_tree_per_iteration=1", "num_tree_per_iteration=3"), "several classes"),
    ],
)
def test_damaged_files_are_refused(forest, tmp_path, damage, message):
    save_forest(forest, tmp_path / "model.json")
    (tmp_path / "model.txt").write_text(damage(forest.text))
    for path in (tmp_path / "model.txt", tmp_path):
        with pytest.raises(ValueError, match=message) as told:
            load_model(path)
        assert "cannot be read as a model" in str(told.value)


def test_a_model_without_its_trees_is_refused(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    (tmp_path / "model.txt").write_text(forest.truncated(2).text)
    with pytest.raises(ValueError, match=r"model.txt holds 2 trees on 5 features, model.json speaks of 6 on 5"):
        load_model(tmp_path)
    (tmp_path / "model.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"no model.txt in .*lie beside it"):
        load_model(tmp_path)


def test_who_needs_weights_is_told_what_else_it_is(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    with pytest.raises(ValueError, match="holds no weights but a forest"):
        load_weights(tmp_path)
    save_model(Model(Linear(), np.zeros(5), 5), tmp_path / "model.json")
    assert load_weights(tmp_path).weights.shape == (5,)


def test_a_constant_feature_and_one_without_values_have_no_range():
    features = DATA.features.copy()
    features[:, 1], features[:, 2] = 7, np.nan
    text = planted([], replace(DATA, features=features)).text
    infos = text[text.index("feature_infos=") :].splitlines()[0].split()
    assert infos[1:3] == ["none", "none"]
    assert infos[0] == f"feature_infos=[{float(features[:, 0].min())!r}:{float(features[:, 0].max())!r}]"
    assert lightgbm.Booster(model_str=text).num_trees() == 0


def test_the_file_says_what_it_is(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["format"] == "fedrank-model"
    assert content["ranker"] == {"name": "forest", "file": "model.txt", "trees": 6}
    assert load_forest(tmp_path / "model.json").features == content["features"] == 5


def test_without_lightgbm_it_says_what_to_install(forest, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[trees\]'"):
        replace(forest).score(DATA)

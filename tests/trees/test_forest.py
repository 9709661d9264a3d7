"""A forest is an ordinary LightGBM model: any LightGBM reads it, and it survives files, cuts and damage."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

lightgbm = pytest.importorskip("lightgbm")

from fedrank.ranking.model import Model, load_weights, read_for, save_model  # noqa: E402
from fedrank.ranking.rankers import Linear  # noqa: E402
from fedrank.trees.boosters import Selgb  # noqa: E402
from fedrank.trees.forest import Forest, joined, make_forest, save_forest  # noqa: E402
from fedrank.trees.model_files import load_model  # noqa: E402
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


@pytest.mark.process
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


def test_sparse_files_may_lack_their_last_features(forest, tmp_path):
    (tmp_path / "sparse.txt").write_text("1 qid:1 1:0.5 3:1\n0 qid:1 2:3\n")
    read = read_for(tmp_path / "sparse.txt", forest.features, "none")
    expected = np.array([[0.5, 0, 1, 0, 0], [0, 3, 0, 0, 0]], dtype=np.float32)
    np.testing.assert_array_equal(forest.score(read), forest.raw(expected))
    (tmp_path / "dense.txt").write_text("1 qid:1 1:0.5 2:1\n0 qid:1 1:1 2:3\n")
    with pytest.raises(ValueError, match="the model has 5 features, but the data have 2"):
        read_for(tmp_path / "dense.txt", forest.features, "none")
    with pytest.raises(ValueError, match="the model has 5 features, but the data have 4"):
        forest.score(replace(DATA, features=np.ascontiguousarray(DATA.features[:, :4])))


def test_data_with_other_features_are_refused(forest):
    with pytest.raises(ValueError, match="has 5 features, but the data have 6"):
        forest.score(made_up_data(features=6))
    with pytest.raises(ValueError, match="needs the feature 'b b' where the data have 'x'"):
        forest.score(replace(DATA, feature_names=("a", "x", "c", "d", "e")))
    with pytest.raises(ValueError, match="must have 5 names, one per feature"):
        replace(forest, feature_names=("a", "b"))
    with pytest.raises(ValueError, match="trees must be between 0 and 6"):
        forest.truncated(7)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "truncated"),
        (lambda text: text.replace("leaf_value=", "leaf_value=1", 1), "the file is damaged"),
        (lambda text: text.replace("Tree=2", "", 1), "lists 6 trees"),
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
        assert "is not a valid model" in str(told.value)


def test_a_model_without_its_trees_is_refused(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    (tmp_path / "model.txt").write_text(forest.truncated(2).text)
    with pytest.raises(ValueError, match=r"model.txt has 2 trees on 5 features, but model.json describes 6 on 5"):
        load_model(tmp_path)
    (tmp_path / "model.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"model.txt is missing in"):
        load_model(tmp_path)


def test_who_needs_weights_is_told_what_else_it_is(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    with pytest.raises(ValueError, match="contains a forest, not weights"):
        load_weights(tmp_path)
    save_model(Model(Linear(), np.zeros(5), 5), tmp_path / "model.json")
    assert load_weights(tmp_path).weights.shape == (5,)


def test_a_constant_feature_and_one_without_values_have_no_range():
    features = DATA.features.copy()
    features[:, 1], features[:, 2] = 7, np.nan
    text = make_forest([], replace(DATA, features=features)).text
    infos = text[text.index("feature_infos=") :].splitlines()[0].split()
    assert infos[1:3] == ["none", "none"]
    assert infos[0] == f"feature_infos=[{float(features[:, 0].min())!r}:{float(features[:, 0].max())!r}]"
    assert lightgbm.Booster(model_str=text).num_trees() == 0


def test_the_file_says_what_it_is(forest, tmp_path):
    save_forest(forest, tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["format"] == "fedrank-model"
    checksum = f"sha256:{hashlib.sha256(forest.text.encode()).hexdigest()}"
    assert content["ranker"] == {"name": "forest", "file": "model.txt", "trees": 6, "checksum": checksum}
    assert load_model(tmp_path / "model.json").features == content["features"] == 5


def test_forests_are_read_and_scored_without_lightgbm(forest, tmp_path, monkeypatch):
    save_forest(forest, tmp_path / "model.json")
    expected = lightgbm.Booster(model_str=forest.text).predict(DATA.features, raw_score=True)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    np.testing.assert_array_equal(load_model(tmp_path).score(DATA), expected)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[trees\]'"):
        Selgb(trees=2)(DATA, seed=1)


KINDS = {
    "plain": {},
    "zero as missing": {"zero_as_missing": True},
    "nothing missing": {"use_missing": False},
    "random forest": {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.6},
    "stumps": {"min_data_in_leaf": 1000},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tree_scores_as_lightgbm_does_to_the_last_bit(kind):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((900, 4)).astype(np.float32)
    rows[:, 2], rows[:, 3] = rng.integers(0, 70, 900), rng.integers(0, 5, 900)
    target = np.sin(3 * rows[:, 0]) + rows[:, 1] * (rows[:, 2] % 3) + (rows[:, 3] == 2)
    rows[rng.random(rows.shape) < 0.1], rows[rng.random(rows.shape) < 0.1] = np.nan, 0
    settings = {"objective": "regression", "num_leaves": 12, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1}
    settings |= KINDS[kind]
    booster = lightgbm.train(settings, lightgbm.Dataset(rows, target, params=settings), 8)
    unseen = rng.standard_normal((3000, 4)).astype(np.float32) * np.float32(3)
    unseen[:, 2:] = rng.integers(-2, 90, (3000, 2))
    for odd in (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-36, -1e-36, 1e-35, 3e38, -0.5, 2.5):
        unseen[rng.random(unseen.shape) < 0.02] = odd
    ours = Forest(booster.model_to_string())
    np.testing.assert_array_equal(ours.raw(unseen), booster.predict(unseen, raw_score=True))
    whole = unseen.astype(np.float64) / 3
    np.testing.assert_array_equal(ours.raw(whole), booster.predict(whole, raw_score=True))


def resized(text):
    """The header says again how long trees are."""
    forest = text[: text.index("\nend of trees")]
    return joined(text, [part.split("\n", 1)[1].strip("\n") for part in forest.split("\nTree=")[1:]])


@pytest.mark.parametrize(
    ("line", "values", "message"),
    [
        ("split_feature", "999999 0 0 0", "uses feature 999999 of 5"),
        ("split_feature", "-1 0 0 0", "only integers from 0"),
        ("split_feature", "0 0 0", "3 values of split_feature, expected 4"),
        ("threshold", "nan 0 0 0", "only numbers"),
        ("threshold", "1e999 0 0 0", "only finite numbers"),
        ("leaf_value", "1 2 3 4 inf", "only numbers"),
        ("leaf_value", "1 2 3 4 1_0", "only numbers"),
        ("num_leaves", "3000000", "expected 2999999"),
        ("left_child", "0 0 0 0", "every split and every leaf exactly once"),
        ("left_child", "99 0 0 0", "only integers from -5 to 3"),
        ("left_child", "-9 0 0 0", "only integers from -5 to 3"),
        ("decision_type", "255 2 2 2", "only integers from 0 to 11"),
        ("decision_type", "1 2 2 2", "splits by categories, which are not supported"),
        ("num_cat", "1", "splits by categories, which are not supported"),
        ("is_linear", "1", "leaves are linear models, which are not supported"),
        ("leaf_count", "1 2", "2 values of leaf_count, expected 5"),
        ("split_gains", "1", "is not a line of a tree"),
    ],
)
def test_a_tree_that_does_not_fit_together_is_refused(forest, tmp_path, line, values, message):
    text = re.sub(rf"^{line}=.*$", f"{line}={values}", forest.text, count=1, flags=re.MULTILINE)
    if text == forest.text:
        text = text.replace("num_cat=0", f"num_cat=0\n{line}={values}", 1)
    (tmp_path / "model.txt").write_text(resized(text))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "model.txt")


def test_a_walk_that_turns_is_refused(forest):
    # Splits 1 and 2 are each other's children, and every node is a child once.
    text = forest.text
    for line, values in (("left_child", "-1 2 1 -4"), ("right_child", "3 -2 -3 -5")):
        text = re.sub(rf"^{line}=.*$", f"{line}={values}", text, count=1, flags=re.MULTILINE)
    with pytest.raises(ValueError, match="comes before its parent"):
        Forest(resized(text))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("max_feature_idx=4", "max_feature_idx=2000000000", "must be an integer"),
        ("max_feature_idx=4", "max_feature_idx=999999999", "but 5 feature_names"),
        ("version=v4", "version=v9", "got 'v9'"),
        ("Tree=1", "Tree=7", "tree 1 has another number"),
    ],
)
def test_a_header_that_promises_too_much_is_refused(forest, old, new, message):
    with pytest.raises(ValueError, match=message):
        Forest(forest.text.replace(old, new, 1))


def test_a_changed_forest_is_an_error_and_an_unsealed_one_a_note(forest, outsider, tmp_path):
    heard = []
    save_forest(forest, tmp_path / "model.json")
    for path in (tmp_path, tmp_path / "model.txt"):
        load_model(path, heard.append)
    assert heard == []
    changed = (tmp_path / "model.txt").read_text().replace("leaf_value=0.", "leaf_value=1.", 1)
    changed = changed.replace("leaf_value=-0.", "leaf_value=-1.", 1)
    (tmp_path / "model.txt").write_text(changed)
    for path in (tmp_path, tmp_path / "model.txt"):
        with pytest.raises(ValueError, match=r"the checksum of model.txt is wrong, so the file is damaged"):
            load_model(path)
    (tmp_path / "other.txt").write_text(outsider.model_to_string())
    load_model(tmp_path / "other.txt", heard.append)
    assert heard == ["other.txt has no checksum, so damage to the file may go unnoticed"]


@pytest.mark.parametrize("name", ["..", ".", "../model.txt", "/model.txt", "", None, 1])
def test_trees_elsewhere_are_refused(forest, tmp_path, name):
    save_forest(forest, tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    content.pop("checksum", None)
    content["ranker"]["file"] = name
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"its tree file .* must be in the same folder"):
        load_model(tmp_path)


@pytest.mark.filterwarnings("error")
def test_a_number_beyond_all_numbers_is_refused_without_a_warning(forest):
    text = re.sub(r"^num_leaves=.*$", f"num_leaves={'9' * 5000}", forest.text, count=1, flags=re.MULTILINE)
    with pytest.raises(ValueError, match="num_leaves must contain only finite numbers"):
        Forest(resized(text))


def test_a_forest_at_a_glance(forest):
    line = f"<Forest; trees: {len(forest)}; features: {forest.features}; normalised: {forest.normalised}"
    assert repr(forest).startswith(line)
    assert f'<td style="text-align: left; vertical-align: top">{len(forest)}</td>' in forest._repr_html_()

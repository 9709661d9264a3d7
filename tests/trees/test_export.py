"""Exports score as their models do, under the rules of each engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedrank.data.normalise import feature_ranges, normalise
from fedrank.data.ranking import RankingData
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear, Mlp, Relu
from fedrank.trees.arrays import ZERO
from fedrank.trees.export import check, export, plain_scores, take_apart
from fedrank.trees.export.engine_files import Parts, engine_file, solr_thresholds
from fedrank.trees.export.engine_rules import SLACK, engine_scores
from fedrank.trees.export.lightgbm_text import Branch, Scale, cuts, read_trees
from fedrank.trees.forest import Forest, save_forest
from fedrank.trees.model_files import load_model

SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LARGEST = float(np.finfo(np.float32).max)
BETWEEN = (1.0 + float(np.nextafter(np.float32(1), np.float32(2)))) / 2  # no float32
THRESHOLDS = (
    *(0.0, -0.0, SMALLEST, -SMALLEST, 1e-46, -1e-46, 1e-40, ZERO, -ZERO, 2e-35, -2e-35, 1e-7, -1e-7, 5e-7, 1e-6, -1e-6),
    *(0.1, -0.1, 0.5, -0.5, BETWEEN, -BETWEEN, -0.9999999, 3.25, -1e6, 1e20, LARGEST, 1e300, -1e300),
)
NARROW = tuple(value for value in THRESHOLDS if abs(value) <= ZERO or 1e-8 < abs(value) < 1e7)  # fit for Solr
VALUES = tuple(np.float32(value) for value in THRESHOLDS if abs(value) < LARGEST)
NONE, AS_ZERO, NAN = 0, 1, 2  # LightGBM's kinds of missing values


def tree_text(features: Sequence[int], limits: Sequence[float], kinds: Sequence[int], rng: np.random.Generator) -> str:
    """A random LightGBM tree with these splits."""
    left, right, leaves = [], [], 1
    places: list[tuple[list[int], int] | None] = [None]  # where each leaf hangs
    for number in range(len(features)):
        chosen = int(rng.integers(leaves))
        hangs = places[chosen]
        if hangs is not None:
            hangs[0][hangs[1]] = number
        left.append(~chosen)
        right.append(~leaves)
        places[chosen] = (left, number)
        places.append((right, number))
        leaves += 1
    values = rng.standard_normal(leaves)
    rows: dict[str, Any] = {
        "num_leaves": [leaves],
        "num_cat": [0],
        "split_feature": features,
        "split_gain": [1] * len(features),
        "threshold": [repr(float(limit)) for limit in limits],
        "decision_type": kinds,
        "left_child": left,
        "right_child": right,
        "leaf_value": [repr(float(value)) for value in values],
        "is_linear": [0],
        "shrinkage": [1],
    }
    return "\n".join(f"{key}={' '.join(map(str, row))}" for key, row in rows.items() if len(row))


def forest_of(trees: Sequence[str], features: int, **settings: Any) -> Forest:
    blocks = [f"Tree={number}\n{tree}\n\n\n" for number, tree in enumerate(trees)]
    head = {
        "version": "v4",
        "num_class": 1,
        "num_tree_per_iteration": 1,
        "label_index": 0,
        "max_feature_idx": features - 1,
        "objective": "lambdarank",
        "feature_names": " ".join(f"Column_{i}" for i in range(features)),
        "feature_infos": " ".join(["[-1:1]"] * features),
        "tree_sizes": " ".join(str(len(block)) for block in blocks),
    }
    lines = "\n".join(f"{key}={value}" for key, value in head.items())
    return Forest(f"tree\n{lines}\n\n{''.join(blocks)}end of trees\n", **settings)


def random_forest(rng: np.random.Generator, thresholds: Sequence[float] = THRESHOLDS, features: int = 3) -> Forest:
    trees = []
    for _ in range(3):
        splits = int(rng.integers(0, 8))
        kinds = [int(rng.choice([NONE, AS_ZERO, NAN])) << 2 | 2 * int(rng.integers(2)) for _ in range(splits)]
        limits = rng.choice(thresholds, splits) * rng.choice([1.0, 1.0, 1 + 1e-9], splits)
        trees.append(tree_text(rng.integers(0, features, splits).tolist(), limits.tolist(), kinds, rng))
    return forest_of(trees, features)


def documents(rng: np.random.Generator, features: int = 3, count: int = 300) -> NDArray[np.float32]:
    """Values on thresholds, right beside them, and elsewhere."""
    values = rng.choice(np.array(VALUES), (count, features))
    side = np.where(rng.random(values.shape) < 0.5, np.float32(-LARGEST), np.float32(LARGEST))
    values = np.where(rng.random(values.shape) < 0.6, np.nextafter(values, side), values)
    return np.where(rng.random(values.shape) < 0.2, rng.standard_normal(values.shape), values).astype(np.float32)


def content_of(forest_or_model: Any, to: str) -> tuple[bytes, Parts]:
    names = tuple(f"f{i + 1}" for i in range(forest_or_model.features))
    parts = take_apart(forest_or_model, names)
    return engine_file(parts, to, "m")[0], parts


def data_of(features: NDArray[np.float32]) -> RankingData:
    count = len(features)
    return RankingData(features, np.zeros(count, np.int8), np.array([0, count]), np.array(["1"]))


# By hand.


def test_largest_float32_that_does_not_exceed_a_threshold():
    after_one = np.nextafter(np.float32(1), np.float32(2))
    limits = np.array([0.5, BETWEEN, 0.1, float(after_one), 1e300, -1e300])
    found = cuts(limits, np.zeros(6), np.ones(6))
    below_tenth = np.nextafter(np.float32(0.1), np.float32(0))  # float32(0.1) exceeds 0.1
    assert found.tolist() == [0.5, 1.0, float(below_tenth), float(after_one), LARGEST, -np.inf]


def test_a_threshold_moves_back_through_normalisation():
    # 0.25 of the range 10 .. 18 is 10 + 0.25 x 8; a feature without a range is always 0, left of 0.25, right of -0.25
    found = cuts(np.array([0.25, 0.25, -0.25]), np.array([10.0, 3.0, 3.0]), np.array([8.0, 0.0, 0.0]))
    after = np.float32(np.nextafter(found[0], np.float32(20)))
    assert np.float32((float(found[0]) - 10) / 8) <= 0.25 < np.float32((float(after) - 10) / 8)
    assert found[0] == pytest.approx(12.0, rel=1e-6)
    assert found[1:].tolist() == [LARGEST, -np.inf]


def test_opensearch_gets_the_next_float32_for_it_compares_strictly():
    rng = np.random.default_rng(1)
    content, _ = content_of(
        forest_of([tree_text([0], [0.5], [0], rng), tree_text([1], [0.1], [0], rng)], 2), "opensearch"
    )
    first, second = json.loads(json.loads(content)["model"]["model"]["definition"])
    assert first["split_condition"] == float(np.nextafter(np.float32(0.5), np.float32(1)))
    assert second["split_condition"] == float(np.float32(0.1))
    assert (first["split"], second["split"]) == ("f1", "f2")
    assert first["missing"] == first["yes"]  # 0 is at most 0.5


def test_tiny_thresholds_are_zero_as_lightgbm_reads_tiny_values_as_zero():
    rng = np.random.default_rng(1)
    trees = [tree_text([0], [limit], [0], rng) for limit in (0.0, 1e-40, -1e-40)]
    roots = read_trees(forest_of(trees, 1).trees, Scale.of(None, 1))
    thresholds = [root.threshold for root in roots if isinstance(root, Branch)]
    assert thresholds == [np.float32(ZERO)] * 2 + [np.nextafter(np.float32(-ZERO), np.float32(-1))]


def test_solr_takes_its_slack_off_thresholds():
    unit, (written,) = solr_thresholds(np.float32([0.5]))
    assert unit == 1
    assert written < 0.5
    assert written + SLACK == np.float32(0.5)


def test_solr_scales_a_feature_whose_thresholds_the_slack_would_blur():
    at = np.float32([-0.9999999, 1e-9, 3.25])
    unit, written = solr_thresholds(at)
    assert np.frexp(unit)[0] == 0.5  # a power of two, by which division is exact
    assert unit < 1
    assert (written + SLACK).tolist() == (at / unit).tolist()


def test_solr_does_not_blur_what_it_cannot_tell_apart(tmp_path: Path):
    assert solr_thresholds(np.float32([-3e-20, 1e30]))[1] is None
    rng = np.random.default_rng(1)
    forest = forest_of([tree_text([0, 0], [-3e-20, 1e30], [0, 0], rng)], 1)
    (tmp_path / "model.txt").write_text(forest.text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"'f1' range from -3e-20 to 1e\+30, too wide for Solr"):
        export(tmp_path / "model.txt", "solr", tmp_path / "never.json")


# Engines score as the model.


@pytest.mark.parametrize("to", ["opensearch", "solr", "onnx"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_forests_reach_the_same_leaves(to: str, seed: int):
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(seed)
    forest = random_forest(rng, NARROW if to == "solr" else THRESHOLDS)
    features = documents(rng, count=300 if to != "onnx" else 40)
    if to == "solr":  # which cannot tell smaller values from zero, and knows no missing ones
        features[np.abs(features) < 3e-35] = 0
    else:
        features[rng.random(features.shape) < 0.1] = np.nan
    content, parts = content_of(forest, to)
    theirs = engine_scores(to, content, features, parts.names, np.float64)
    # Leaves are rounded to float32, by 2^-24 of their size at most; there are three trees.
    np.testing.assert_allclose(theirs, forest.raw(features), rtol=0, atol=3 * 4 * 2.0**-23)


@given(seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=10)
def test_forests_on_normalised_features_read_raw_ones(seed: int):
    pytest.importorskip("lightgbm")
    rng = np.random.default_rng(seed)
    splits = 12
    limits = rng.choice([*rng.uniform(-0.1, 1.1, 6), 0.0, 1.0, 0.5, 1 / 3], splits)
    ranges = np.array([[-3, 1e-3, 7], [1e5, 2e-3, 7]], np.float32)
    trees = [tree_text(rng.integers(0, 3, splits).tolist(), limits, [0] * splits, rng)]
    forest = forest_of(trees, 3, normalised="global", ranges=ranges)
    low, high = ranges.astype(np.float64)
    spots = rng.choice(limits, (300, 3))  # where the bisection has to be right
    features = (low + spots * (high - low)).astype(np.float32)
    features = np.nextafter(features, rng.choice(np.float32([-LARGEST, LARGEST]), features.shape))
    expected = forest.raw(normalise(data_of(features), "global", ranges).features)
    for to in ("opensearch", "solr"):
        content, parts = content_of(forest, to)
        check(content, to, parts, forest)
        theirs = engine_scores(to, content, features, parts.names, np.float64)
        np.testing.assert_allclose(theirs, expected, rtol=0, atol=4 * 2.0**-23)


@pytest.mark.parametrize("to", ["opensearch", "elasticsearch", "solr", "onnx"])
@pytest.mark.parametrize("ranged", [False, True])
def test_linear_models_rank_alike(to: str, ranged: bool):
    rng = np.random.default_rng(5)
    features = (1000 + 5 * rng.standard_normal((200, 6))).astype(np.float32) if ranged else documents_of(rng, 6)
    features[:, 4] = 3.0  # no range
    ranges = feature_ranges(data_of(features)) if ranged else None
    model = Model(Linear(), rng.standard_normal(6), 6, "global" if ranged else "none", ranges=ranges)
    content, parts = content_of(model, to)
    unseen = features.copy()
    unseen[:, 4] += rng.standard_normal(200).astype(np.float32)
    theirs = engine_scores(to, content, unseen, parts.names)
    ours = plain_scores(model, unseen)
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5)
    far = np.abs(ours[:, None] - ours) > 2e-5
    assert np.array_equal((theirs[:, None] < theirs)[far], (ours[:, None] < ours)[far])
    check(content, to, parts, model)


@pytest.mark.parametrize("to", ["solr", "onnx"])
@pytest.mark.parametrize("ranker", [Mlp(4), Relu(4)])
@pytest.mark.parametrize("ranged", [False, True])
def test_neural_models_score_alike(to: str, ranker: Mlp | Relu, ranged: bool):
    rng = np.random.default_rng(6)
    features = documents_of(rng, 5)
    features[:, 1] = 3.0
    ranges = feature_ranges(data_of(features)) if ranged else None
    weights = rng.standard_normal(ranker.size(5))
    model = Model(ranker, weights, 5, "global" if ranged else "none", ranges=ranges)
    content, parts = content_of(model, to)
    theirs = engine_scores(to, content, features, parts.names)
    np.testing.assert_allclose(theirs, plain_scores(model, features), rtol=0, atol=2e-5)
    check(content, to, parts, model)


def documents_of(rng: np.random.Generator, features: int) -> NDArray[np.float32]:
    return rng.standard_normal((200, features)).astype(np.float32)


# Outsiders.


@pytest.mark.parametrize("kind", ["linear", "mlp", "relu", "forest"])
def test_onnxruntime_scores_as_the_model(kind: str):
    runtime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(7)
    ranges = np.float32([[-1, 0, 2], [1, 5, 2]])
    model: Model | Forest
    if kind == "forest":
        pytest.importorskip("lightgbm")
        model = random_forest(rng)
        features = documents(rng)
        features[::7, 1] = np.nan
        expected = model.raw(features)
    else:
        ranker: Linear | Mlp | Relu = {"linear": Linear(), "mlp": Mlp(4), "relu": Relu(4)}[kind]
        model = Model(ranker, rng.standard_normal(ranker.size(3)), 3, "global", ranges=ranges)
        features = documents_of(rng, 3)
        expected = plain_scores(model, features)
    content, _ = content_of(model, "onnx")
    (theirs,) = runtime.InferenceSession(content).run(None, {"features": features})
    assert theirs.shape == (len(features),)
    np.testing.assert_allclose(theirs, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "settings", [{}, {"zero_as_missing": True}, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.5}]
)
def test_forests_that_lightgbm_grew(settings: dict[str, Any], tmp_path: Path):
    engine = pytest.importorskip("lightgbm")
    rng = np.random.default_rng(8)
    features = rng.standard_normal((600, 4)).astype(np.float32)
    features[:, 1] = np.where(features[:, 1] < 0, 0, np.round(features[:, 1], 1))
    features[:, 2] = np.round(10 * features[:, 2])
    grades = (features[:, 0] + features[:, 1] - 0.1 * features[:, 2] > 0.5).astype(int)
    told = {
        "objective": "lambdarank",
        "num_leaves": 15,
        "min_data_in_leaf": 5,
        "verbose": -1,
        "num_threads": 1,
    } | settings
    booster = engine.train(told, engine.Dataset(features, grades, group=[20] * 30), 20)
    (tmp_path / "model.txt").write_text(booster.model_to_string(), encoding="utf-8")
    model = load_model(tmp_path / "model.txt")
    for to in ("opensearch", "solr", "onnx"):
        done = export(tmp_path / "model.txt", to, tmp_path / f"{to}.out")
        names = [f"f{i + 1}" for i in range(4)]
        rows = features if to != "onnx" else features[:50]
        theirs = engine_scores(to, done.path.read_bytes(), rows, names)
        ours = booster.predict(rows, raw_score=True)
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=20 * 2.0**-23 * np.abs(ours).max() * 4)
        assert np.array_equal(ours, plain_scores(model, rows))


# Files, names, refusals.


def linear(folder: Path, **settings: Any) -> Path:
    told: dict[str, Any] = {"ranker": Linear(), "weights": np.array([1.5, -2.0]), "features": 2} | settings
    save_model(Model(**told), folder / "model.json")
    return folder / "model.json"


def test_opensearch_file_by_hand(tmp_path: Path):
    path = linear(tmp_path, feature_names=("title", "body"), normalised="global", ranges=np.float32([[0, 4], [10, 4]]))
    done = export(path, "opensearch", tmp_path / "ranker.json")
    assert json.loads(done.path.read_text()) == {
        "model": {
            "name": "ranker",
            "model": {
                "type": "model/linear",
                "definition": '{"title": 1.5, "body": 0.0}',  # body never varied in training: always 0
                "feature_normalizers": {"title": {"min_max": {"minimum": 0.0, "maximum": 10.0}}},
            },
        }
    }
    assert done.what == "model/linear for OpenSearch of 2 features"
    assert "_ltr/_featureset/FEATURE_SET/_createmodel" in done.next
    assert f"@{done.path}" in done.next


def test_opensearch_refuses_min_max_below_zero_and_gets_standard(tmp_path: Path):
    ranges = np.float32([[-3, 0], [5, 4]])
    path = linear(tmp_path, feature_names=("title", "body"), normalised="global", ranges=ranges)
    done = export(path, "opensearch", tmp_path / "ranker.json")
    norms = json.loads(done.path.read_bytes())["model"]["model"]["feature_normalizers"]
    assert norms == {
        "title": {"standard": {"mean": -3.0, "standard_deviation": 8.0}},
        "body": {"min_max": {"minimum": 0.0, "maximum": 4.0}},
    }
    # 1.5 (1 + 3) / 8 - 2 (2 / 4)
    assert engine_scores("opensearch", done.path.read_bytes(), np.float32([[1, 2]]), ["title", "body"]) == [-0.25]


def test_solr_file_by_hand(tmp_path: Path):
    path = linear(tmp_path, normalised="global", ranges=np.float32([[0, 2], [10, 6]]))
    (tmp_path / "names.txt").write_text("title\nbody\n\n", encoding="utf-8")
    done = export(path, "solr", tmp_path / "x.json", feature_names=tmp_path / "names.txt", name="mine")
    norm = {"class": "org.apache.solr.ltr.norm.MinMaxNormalizer"}
    assert json.loads(done.path.read_text()) == {
        "class": "org.apache.solr.ltr.model.LinearModel",
        "name": "mine",
        "features": [
            {"name": "title", "norm": norm | {"params": {"min": "0.0", "max": "10.0"}}},
            {"name": "body", "norm": norm | {"params": {"min": "2.0", "max": "6.0"}}},
        ],
        "params": {"weights": {"title": 1.5, "body": -2.0}},
    }
    assert "/schema/model-store" in done.next


def test_solr_keeps_features_in_stores(tmp_path: Path):
    save_model(Model(Linear(), np.ones(2), 2), tmp_path / "model.json")
    export(tmp_path / "model.json", "solr", tmp_path / "out.json", store="engine-1")
    assert json.loads((tmp_path / "out.json").read_text())["store"] == "engine-1"
    with pytest.raises(ValueError, match="applies only to Solr"):
        export(tmp_path / "model.json", "opensearch", tmp_path / "other.json", store="engine-1")


def test_a_forest_with_names_travels(tmp_path: Path):
    pytest.importorskip("lightgbm")
    trees = [tree_text([0], [0.5], [0], np.random.default_rng(1))]
    save_forest(forest_of(trees, 2, feature_names=("title", "body")), tmp_path / "model.json")
    done = export(tmp_path, "solr", tmp_path / "out" / "s.json")
    root = json.loads(done.path.read_text())["params"]["trees"][0]["root"]
    assert root["feature"] == "title"
    assert np.float32(root["threshold"]) + SLACK == np.float32(0.5)


def test_a_text_model_keeps_the_names_that_lightgbm_wrote(tmp_path: Path):
    rng = np.random.default_rng(4)
    text = random_forest(rng).text
    (tmp_path / "model.txt").write_text(text)
    assert b"f1" in export_bytes(tmp_path), "numbers of columns are not names"
    named = text.replace("Column_0 Column_1 Column_2", "title_bm25 price age")
    (tmp_path / "model.txt").write_text(named)
    content = export_bytes(tmp_path)
    assert b"title_bm25" in content or b"price" in content or b"age" in content
    assert b"f1" not in content


def export_bytes(folder: Path) -> bytes:
    export(folder / "model.txt", "solr", folder / "out.json")
    return (folder / "out.json").read_bytes()


def test_ranges_travel_with_data_and_model(tmp_path: Path):
    data = data_of(np.float32([[1, 5], [3, 5]]))
    there = normalise(data, "global")
    assert there.ranges is not None
    assert there.ranges.tolist() == [[1, 5], [3, 5]]
    assert normalise(there, "global").ranges is None  # ranges of what was normalised before say nothing of the file
    assert normalise(there, "query").ranges is None
    assert normalise(data, "query").ranges is None
    path = linear(tmp_path, normalised="global", ranges=there.ranges)
    read = load_model(path)
    assert isinstance(read, Model)
    assert read.ranges is not None
    assert read.ranges.tolist() == [[1, 5], [3, 5]]


def test_models_that_no_engine_can_express_are_refused(tmp_path: Path):
    def refused(message: str, path: Path, to: str = "opensearch", **settings: Any) -> None:
        with pytest.raises(ValueError, match=message):
            export(path, to, tmp_path / "never.json", **settings)

    refused('train with data.normalise = "global" or "none"', linear(tmp_path, normalised="query"))
    refused("does not record their ranges", linear(tmp_path, normalised="global"))
    refused("export it to solr or onnx", linear(tmp_path, ranker=Mlp(1), weights=np.ones(4)))
    refused("unknown engine 'vespa'; use one of opensearch", linear(tmp_path), to="vespa")
    refused("choose a client from 0 to 1", linear(tmp_path, weights=np.ones((2, 2))))
    (tmp_path / "names.txt").write_text("a\na\n", encoding="utf-8")
    refused("'a' occurs twice", linear(tmp_path), feature_names=tmp_path / "names.txt")
    (tmp_path / "names.txt").write_text("a\n", encoding="utf-8")
    refused("1 names for 2 features", linear(tmp_path), feature_names=tmp_path / "names.txt")
    rng = np.random.default_rng(1)
    sets = tree_text([0], [0.0], [1], rng).replace("num_cat=0", "num_cat=1\ncat_boundaries=0 1\ncat_threshold=3")
    with pytest.raises(
        ValueError, match="tree 0: it splits by categories, which are not supported; train with numeric"
    ):
        forest_of([sets], 1)
    leaves = tree_text([0], [0.0], [0], rng).replace(
        "is_linear=0", "is_linear=1\nleaf_const=0 0\nnum_features=1 0\nleaf_features=0\nleaf_coeff=1"
    )
    with pytest.raises(ValueError, match="tree 0: its leaves are linear models, which are not supported"):
        forest_of([leaves], 1)
    assert not (tmp_path / "never.json").exists()


def test_trees_that_are_too_deep_for_readers_are_refused(tmp_path: Path):
    splits = 301
    chain = forest_of([chain_text(splits)], 1)
    (tmp_path / "model.txt").write_text(chain.text, encoding="utf-8")
    for to in ("opensearch", "solr", "onnx"):
        with pytest.raises(ValueError, match="more than 300 splits deep"):
            export(tmp_path / "model.txt", to, tmp_path / "never.json")
    (tmp_path / "model.txt").write_text(forest_of([chain_text(splits - 1)], 1).text, encoding="utf-8")
    for to in ("opensearch", "solr", "onnx"):
        export(tmp_path / "model.txt", to, tmp_path / f"deepest.{to}")


def chain_text(splits: int) -> str:
    """A tree that asks one question after the other."""
    rows = {
        "num_leaves": [splits + 1],
        "num_cat": [0],
        "split_feature": [0] * splits,
        "split_gain": [1] * splits,
        "threshold": range(splits),
        "decision_type": [0] * splits,
        "left_child": [~i for i in range(splits)],
        "right_child": [*range(1, splits), ~splits],
        "leaf_value": range(splits + 1),
        "is_linear": [0],
        "shrinkage": [1],
    }
    return "\n".join(f"{key}={' '.join(map(str, row))}" for key, row in rows.items())


def test_the_model_itself_is_not_overwritten(tmp_path: Path):
    path = linear(tmp_path)
    for source in (path, tmp_path):
        with pytest.raises(ValueError, match="is the model itself"):
            export(source, "solr", path)


def test_a_client_of_one_model_for_all_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="leave out client = 0"):
        export(linear(tmp_path), "solr", tmp_path / "x.json", client=0)


def test_one_client_of_many(tmp_path: Path):
    path = linear(tmp_path, weights=np.array([[1.0, 2.0], [3.0, 4.0]]))
    done = export(path, "solr", tmp_path / "x.json", client=1)
    assert json.loads(done.path.read_text())["params"]["weights"] == {"f1": 3.0, "f2": 4.0}


def test_an_export_that_differs_is_not_handed_over():
    pytest.importorskip("lightgbm")
    forest = forest_of([tree_text([0], [0.5], [0], np.random.default_rng(1))], 1)
    for to in ("opensearch", "solr"):
        content, parts = content_of(forest, to)
        check(content, to, parts, forest)
        written = json.loads(content)
        if to == "opensearch":
            tree = json.loads(written["model"]["model"]["definition"])
            tree[0]["split_condition"] = 0.5  # as if the engine compared with <=
            written["model"]["model"]["definition"] = json.dumps(tree)
        else:
            written["params"]["trees"][0]["root"]["threshold"] = "0.5"  # as if Solr added nothing
        with pytest.raises(ValueError, match="nothing was written"):
            check(json.dumps(written).encode(), to, parts, forest)

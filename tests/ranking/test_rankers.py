"""Rankers and model files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import RANKERS, Linear, Mlp, Relu
from fedrank.trees.model_files import load_model
from tests.made_up import made_up_data
from tests.oracles.evolution import score_of
from tests.oracles.pdgd import score_and_gradient


@pytest.mark.parametrize("features", [1, 3, 8, 46])
@pytest.mark.parametrize("ranker", [Linear(), Linear(start_norm=1.0), Mlp(hidden=1), Mlp(hidden=5), Mlp()])
def test_scores_equal_the_formula(ranker, features):
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((3, ranker.size(features)))
    table = rng.random((7, features), dtype=np.float32)
    scores = ranker.score(weights, table)
    expected = [[score_and_gradient(w, ranker.hidden, row)[0] for row in table] for w in weights]
    assert scores == pytest.approx(np.array(expected), rel=1e-4, abs=1e-5)
    assert ranker.score(weights[1], table) == pytest.approx(scores[1], rel=1e-5)


@pytest.mark.parametrize("features", [1, 3, 8, 46])
@pytest.mark.parametrize("units", [1, 5, 10])
def test_rectified_scores_and_gradients_equal_the_formula(units, features):
    from fedrank.kernels.rankers import add_gradients

    rng = np.random.default_rng(3)
    ranker = Relu(units=units)
    weights = rng.standard_normal((3, ranker.size(features))).astype(np.float32).astype(float)
    table = rng.standard_normal((5, features)).astype(np.float32)
    exact = table.astype(float)
    expected = [[score_of(w, -units, row) for row in exact] for w in weights]
    assert ranker.score(weights, table) == pytest.approx(np.array(expected), rel=1e-4, abs=1e-5)
    assert ranker.score(weights[1], table) == pytest.approx(ranker.score(weights, table)[1], rel=1e-5)

    rows, scales = np.array([4, 0, 2]), np.array([0.5, -1.0, 2.0])
    gradient = np.zeros(weights.shape[1])
    add_gradients(gradient, weights[0].astype(np.float32), ranker.hidden, table, rows, scales, 3)
    step = 1e-7
    for p in range(len(gradient)):
        near = weights[0].copy()
        near[p] += step
        rise = sum(
            scale * (score_of(near, -units, exact[row]) - score_of(weights[0], -units, exact[row])) / step
            for row, scale in zip(rows, scales, strict=True)
        )
        assert gradient[p] == pytest.approx(rise, rel=1e-4, abs=1e-5)


def test_rectified_units_start_from_zero_or_as_mlp():
    assert not Relu().first(46, np.random.default_rng(1)).any()
    assert len(Relu().first(46, np.random.default_rng(1))) == 10 * 46 + 10 + 10
    normal = Relu(units=7, start="normal").first(5, np.random.default_rng(1))
    assert np.array_equal(normal, Mlp(hidden=7).first(5, np.random.default_rng(1)))
    with pytest.raises(ValueError, match="units must be at least 1"):
        Relu(units=0)
    with pytest.raises(ValueError, match="start must be"):
        Relu(start="one")


def test_first_weights():
    rng = np.random.default_rng(1)
    assert not Linear().first(9, rng).any()
    assert np.linalg.norm(Linear(start_norm=0.01).first(9, rng)) == pytest.approx(0.01)
    first = Mlp(hidden=64).first(136, rng)
    assert len(first) == 64 * 138
    assert first[: 64 * 136].std() == pytest.approx(1 / 136, rel=0.05)
    assert first[-64:].std() == pytest.approx(1 / 64, rel=0.3)


@pytest.mark.parametrize("name", sorted(RANKERS))
def test_models_survive_their_file(name, tmp_path):
    data = made_up_data()
    ranker = RANKERS[name]()
    weights = np.random.default_rng(1).standard_normal(ranker.size(5))
    model = Model(ranker, weights, 5, "query", ("a", "b", "c", "d", "e"), {"seed": 1})
    save_model(model, tmp_path / "model.json")
    back = load_model(tmp_path)
    assert back.ranker == ranker
    assert np.array_equal(back.weights, weights)
    assert np.array_equal(back.score(data), model.score(data))
    assert (back.normalised, back.feature_names, back.notes) == ("query", ("a", "b", "c", "d", "e"), {"seed": 1})


def test_a_model_per_client_asks_whose(tmp_path):
    data = made_up_data()
    model = Model(Linear(), np.arange(10.0).reshape(2, 5), 5)
    with pytest.raises(ValueError, match="choose a client from 0 to 1"):
        model.score(data)
    assert np.array_equal(model.score(data, client=1), Linear().score(np.arange(5.0, 10.0), data.features))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "not a model file of fedrank"),
        ({"version": 99}, "update fedrank"),
        ({"ranker": {"name": "oracle"}}, "is not a valid model"),
        ({"weights": [1.0]}, "the file is damaged"),
        ({"weights": [float("nan")] * 5}, "some that are not finite, .*; the file is damaged"),
        ({"weights": 7.0}, "must be a list of numbers"),
        ({"weights": [[[0.0] * 5]]}, "must be a list of numbers"),
        ({"weights": [10**400] * 5}, "is not a valid model"),
        ({"weights": [[0.0] * 5, [0.0]]}, "is not a valid model"),
        ({"notes": ["fold"]}, "its notes has the wrong type"),
        ({"features": "5"}, "its features has the wrong type"),
        ({"features": True}, "its features has the wrong type"),
        ({"feature_names": [1, 2, 3, 4, 5]}, "its feature_names has the wrong type"),
        ({"normalised": "twice"}, "its normalised has the wrong type"),
        ({"normalised": 3}, "its normalised has the wrong type"),
        ({"ranker": {"name": ["linear"]}}, "its ranker.name has the wrong type"),
        ({"ranker": {"name": "mlp", "hidden": 2.5}}, "hidden = 2.5"),
        ({"ranges": [1.0, 2.0]}, "its ranges have shape"),
        ({"colour": "red"}, "an unknown key 'colour'"),
    ],
)
def test_damaged_models_are_refused(tmp_path, change, message):
    save_model(Model(Linear(), np.zeros(5), 5), tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text()) | change
    del content["checksum"]  # it would be wrong, too
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path / "model.json")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "3", "[]", "null", ""])
def test_what_is_no_model_is_refused_in_a_line(tmp_path, text):
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a valid model"):
        load_model(tmp_path)


def test_a_key_that_hides_another_is_refused(tmp_path):
    save_model(Model(Linear(), np.zeros(5), 5), tmp_path / "model.json")
    text = (tmp_path / "model.json").read_text()
    (tmp_path / "model.json").write_text(text.replace('"checksum"', '"normalised"'))
    with pytest.raises(ValueError, match="it has a duplicate key"):
        load_model(tmp_path)


def test_a_changed_weight_is_an_error_and_a_missing_checksum_a_note(tmp_path):
    path, heard = tmp_path / "model.json", []
    save_model(Model(Linear(), np.array([0.1, 1.0, 1e300, -0.0, 5e-324]), 5, notes={"rounds": {"a": 1}}), path)
    load_model(path, heard.append)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content, indent=4, sort_keys=True))  # laid out otherwise, it says the same
    load_model(path, heard.append)
    assert heard == []
    path.write_text(json.dumps(content | {"weights": [0.1, 1.0, 1e300, 0.0, 1e-323]}))
    with pytest.raises(ValueError, match=r"the checksum of model.json is wrong, so the file is damaged"):
        load_model(path)
    del content["checksum"]
    path.write_text(json.dumps(content))
    load_model(path, heard.append)
    assert heard == ["model.json has no checksum, so damage to the file may go unnoticed"]


def test_no_model_and_wrong_features(tmp_path):
    with pytest.raises(FileNotFoundError, match="contains no model"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="the model has 4 features, but the data have 5"):
        Model(Linear(), np.zeros(4), 4).score(made_up_data())
    with pytest.raises(ValueError, match="the model has 6 features, but the data have 5"):
        Model(Linear(), np.ones(6), 6).score(made_up_data())

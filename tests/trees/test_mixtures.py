"""Models made of models: what they score, what they refuse, and that files say the same."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.ranking import RankingData
from fedrank.ranking.model import Model
from fedrank.ranking.rankers import Linear
from fedrank.trees.mixtures import LinearMix, Stacked, on_scale, stacked, units_of
from fedrank.trees.model_files import load_model, save_any

DATA = RankingData(
    features=np.array([[1, 0], [0, 1], [2, 2], [3, 1]], dtype=np.float32),
    grades=np.array([0, 1, 0, 1], dtype=np.int8),
    offsets=np.array([0, 2, 4]),
    query_ids=np.array(["a", "b"]),
)


def linear(*weights: float, **more) -> Model:
    return Model(Linear(), np.array(weights), len(weights), **more)


def test_a_mix_adds_scores_by_weight():
    mix = LinearMix((linear(1, 0), linear(0, 1)), (0.25, 0.75))
    assert mix.score(DATA).tolist() == [0.25 * 1, 0.75 * 1, 0.25 * 2 + 0.75 * 2, 0.25 * 3 + 0.75 * 1]
    assert mix.features == 2


def test_scores_are_standardised_within_the_query():
    scores = np.array([[1.0, 0.0, 2.0, 3.0], [7.0, 7.0, 0.0, 10.0]])
    assert on_scale(scores, DATA, "query").tolist() == [[1, -1, -1, 1], [0, 0, -1, 1]]


def test_units_are_what_scores_of_a_query_lie_apart():
    scores = np.array([[1.0, 0.0, 2.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    assert units_of(scores, DATA) == (0.5, 1.0)  # half of 1 from the mean everywhere; nothing lies apart
    assert on_scale(scores, DATA, "fixed", (0.5, 1.0))[0].tolist() == [2, 0, 4, 6]


def test_a_louder_model_does_not_outvote_others_on_a_common_scale():
    parts = (linear(1, 0), linear(0, -1000))
    plain, common = LinearMix(parts, (0.7, 0.3)), LinearMix(parts, (0.7, 0.3), "query")
    assert plain.score(DATA).tolist() == pytest.approx([0.7, -300.0, 1.4 - 600.0, 2.1 - 300.0])
    # Query a: 1, -1 and 1, -1; query b: -1, 1 and -1, 1.
    assert common.score(DATA).tolist() == pytest.approx([1, -1, -1, 1])


def test_stacking_reads_scores_behind_the_features():
    parts = (linear(1, 0), linear(0, 1))
    both = Stacked(parts, linear(1, 0, 0, 10))
    assert both.score(DATA).tolist() == [1, 10, 2 + 20, 3 + 10]
    alone = Stacked(parts, linear(1, 100), "scores")
    assert alone.score(DATA).tolist() == [1, 100, 202, 103]


def test_stacked_data_name_their_columns():
    named = replace(DATA, feature_names=("length", "age"))
    parts = (linear(1, 0), linear(0, 1))
    seen = stacked(parts, named, "both")
    assert seen.feature_names == ("length", "age", "score of model 1", "score of model 2")
    assert seen.features.tolist() == [[1, 0, 1, 0], [0, 1, 0, 1], [2, 2, 2, 2], [3, 1, 3, 1]]
    assert stacked(parts, named, "scores").features.tolist() == DATA.features.tolist()
    assert stacked(parts, named, "features") is named


@pytest.mark.parametrize("scale", ["none", "fixed", "query"])
def test_a_mix_comes_back_from_its_files(tmp_path, scale):
    units = (2.0, 3.0) if scale == "fixed" else ()
    mix = LinearMix((linear(1, 0.5), linear(0.25, 1)), (0.4, 0.6), scale, units, {"merged by": "hand"})
    save_any(mix, tmp_path / "model.json")
    back = load_model(tmp_path)
    assert back == replace(mix, parts=back.parts)
    assert np.array_equal(back.score(DATA), mix.score(DATA))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model-1.json", "model-2.json", "model.json"]


def test_mixtures_of_mixtures_come_back_from_their_files(tmp_path):
    inner = LinearMix((linear(1, 0.5), linear(0.25, 1)), (0.4, 0.6))
    outer = Stacked((inner, linear(3, 4)), linear(1, 2, 3, 4))
    save_any(outer, tmp_path / "merged.json")
    assert np.array_equal(load_model(tmp_path / "merged.json").score(DATA), outer.score(DATA))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((linear(1, 0), linear(1, 0, 0)), "model 1 uses 2 features, model 2 uses 3; merge models"),
        ((linear(1, 0), linear(1, 0, normalised="query")), "normalise = 'none', model 2 with 'query'"),
        (
            (linear(1, 0, feature_names=("a", "b")), linear(1, 0, feature_names=("a", "c"))),
            "feature 2 is 'b' for model 1 and 'c' for model 2",
        ),
        ((), "no models to merge"),
    ],
)
def test_models_that_read_other_features_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        LinearMix(parts, (0.5,) * len(parts))


@pytest.mark.parametrize("weights", [(1.0,), (0.5, 0.6), (-0.5, 1.5)])
def test_weights_off_the_simplex_are_refused(weights):
    with pytest.raises(ValueError, match="weights"):
        LinearMix((linear(1, 0), linear(0, 1)), weights)


def test_a_last_model_that_reads_something_else_is_refused():
    with pytest.raises(ValueError, match="must use 4 features, as 2 scores with inputs = 'both' give"):
        Stacked((linear(1, 0), linear(0, 1)), linear(1, 1, 1))


def test_a_missing_or_truncated_part_is_named(tmp_path):
    save_any(LinearMix((linear(1, 0), linear(0, 1)), (0.5, 0.5)), tmp_path / "model.json")
    part = tmp_path / "model-2.json"
    part.write_text(part.read_text()[:40])
    with pytest.raises(ValueError, match=r"model-2\.json is not a valid model"):
        load_model(tmp_path)
    part.unlink()
    with pytest.raises(ValueError, match=r"part model-2\.json is missing in the same folder; copy all files"):
        load_model(tmp_path)
    unsealed(tmp_path / "model.json", lambda ranker: ranker["parts"].__setitem__(1, "../other.json"))
    with pytest.raises(ValueError, match=r"\.\./other\.json"):
        load_model(tmp_path)


def unsealed(path, change):
    """Change the ranker of a file that carries no checksum any more."""
    content = json.loads(path.read_text())
    change(content["ranker"])
    del content["checksum"]
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": ["model-1.json", "model.json"]}, "a part of it twice, or of itself"),
        *(
            ({"parts": ["model-1.json", name]}, "must be in the same folder")
            for name in ("..", ".", "../a.json", 1, None)
        ),
        ({"parts": ["model-1.json", "model-1.json"]}, "a part of it twice, or of itself"),
        ({"parts": []}, "not enough values"),
        ({"parts": [["model-1.json"], 7]}, "is not a valid model"),
        ({"weights": [float("nan"), 1.0]}, "must be 0 or more"),
        ({"weights": 1}, "is not a valid model"),
        ({"scale": "loud"}, "scale must be one of none, fixed, query"),
        ({"name": "stacked", "final": "model-2.json", "inputs": "both"}, "model-2.json is a part of it twice"),
        ({"checksums": {"model-1.json": "sha256:0"}}, "the checksum of model-1.json is wrong"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(tmp_path, change, message):
    save_any(LinearMix((linear(1, 0), linear(0, 1)), (0.5, 0.5)), tmp_path / "model.json")
    unsealed(tmp_path / "model.json", lambda ranker: ranker.update(change))
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


def test_mixtures_within_mixtures_have_an_end(tmp_path):
    for number in range(40):
        save_any(LinearMix((linear(1, 0),), (1.0,)), tmp_path / f"a{number}.json")
        change = {"parts": [f"a{number + 1}.json"], "checksums": {}}
        unsealed(tmp_path / f"a{number}.json", lambda ranker, change=change: ranker.update(change))
    with pytest.raises(ValueError, match="nested in more than 16 mixtures"):
        load_model(tmp_path / "a0.json")


def test_a_part_of_another_mixture_is_refused(tmp_path):
    for number, weight in enumerate((1, 2)):
        save_any(LinearMix((linear(weight, 0), linear(0, 1)), (0.5, 0.5)), tmp_path / str(number) / "model.json")
    (tmp_path / "0" / "model-1.json").write_bytes((tmp_path / "1" / "model-1.json").read_bytes())
    with pytest.raises(ValueError, match="not the part that was merged"):
        load_model(tmp_path / "0")

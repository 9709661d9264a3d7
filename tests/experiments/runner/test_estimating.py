"""`fedrank model estimate` and `fedrank data propensities`: from files to an answer, or to why there is none."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.data.held_out import HoldOut, begin_window, read_window
from fedrank.data.logs import load_log
from fedrank.data.synthetic_shown import STATIC, Showing, made_up_queries, simulate_shown
from fedrank.experiments.runner.position_bias import read_propensities
from fedrank.experiments.runner.scoring import estimate_model
from fedrank.ranking.estimate import CannotTell
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.ranking.stored_estimate import estimate_file, stored_estimate
from tests.made_up import made_up_log

TRUTH = made_up_queries(300, seed=4)
NAMES = tuple(f"feature {number + 1}" for number in range(10))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimate")
    simulate_shown(TRUTH, 8000, popularity=0.2).write(folder / "log")
    simulate_shown(TRUTH, 1000, showing=STATIC).write(folder / "static")
    save_model(Model(Linear(), TRUTH.best, 10, feature_names=NAMES), folder / "model.json")
    save_model(Model(Linear(), TRUTH.best, 10, "none", NAMES, {"data": "log"}), folder / "learned.json")
    return folder


def run(*arguments):
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.mark.long
def test_an_answer_with_a_picture(files, tmp_path):
    done = run("model", "estimate", files / "model.json", "--log", files / "log", "--out", tmp_path / "estimate.png")
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "Better than what was shown, not shown to be better than the engine: +0." in said
    assert "the log does not reveal the engine's order" in said
    assert "a model that chooses among more candidates shows other documents" in said
    assert "8,000 lists of 300 queries" in said
    assert "plain replay is biased: clicks follow the order shown" in said
    assert (tmp_path / "estimate.png").read_bytes().startswith(b"\x89PNG")


def test_all_numbers_as_json(files):
    done = run("model", "estimate", files / "model.json", "--log", files / "log", "--json")
    found = json.loads(done.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    truth = simulate_shown(TRUTH, 8000, popularity=0.2)
    true = truth.clicks_a_list(TRUTH.features @ TRUTH.best, positions=found["positions"])
    for row in found["rows"][:4]:
        assert row["model"]["low"] <= true <= row["model"]["high"]
    assert rows["doubly robust"]["bias"] == "trust"
    assert found["propensities"]["slope"][0] == found["trust"]["slope"][0] == 1
    same = estimate_model(files / "model.json", files / "log")
    assert rows["doubly robust"]["model"]["value"] == same.rows[3].model.value
    assert same.searches == 8000  # it learned from none of them
    assert (found["finding"], found["engine"]) == ("inconclusive", "")
    stored = stored_estimate(files / "model.json")
    assert stored == ("inconclusive", found["verdict"], "log")
    assert json.loads((files / "estimate.json").read_text())["difference"] == found["difference"]
    weights = (files / "model.json").read_bytes()
    save_model(Model(Linear(), -TRUTH.best, 10, feature_names=NAMES), files / "model.json")
    assert stored_estimate(files / "model.json") is None, "another model is in the file now"
    (files / "model.json").write_bytes(weights)
    assert stored_estimate(files / "model.json") == stored


def test_the_engine_is_known_where_lists_were_sampled(tmp_path):
    log = simulate_shown(TRUTH, 8000, popularity=0.2, showing=Showing(rankers=1, temperature=0.5))
    log.write(tmp_path / "log")
    for name, weights, finding in (("good", TRUTH.best, "better"), ("bad", -TRUTH.best, "worse")):
        save_model(Model(Linear(), weights, 10, feature_names=NAMES), tmp_path / f"{name}.json")
        done = run("model", "estimate", tmp_path / f"{name}.json", "--log", tmp_path / "log")
        said = " ".join(done.output.split())
        assert "the engine's order is known from the sampling scores in the log for 100% of the searches" in said
        stored = stored_estimate(tmp_path / f"{name}.json")
        assert stored is not None
        assert stored.finding == finding
        assert f"{stored.verdict[1:]}." in said
    assert estimate_file(tmp_path / "bad.json") == tmp_path / "bad.estimate.json"
    (tmp_path / "bad.estimate.json").write_text('{"format": 1}')
    with pytest.raises(ValueError, match=r"not a valid estimate .*run fedrank model estimate again"):
        stored_estimate(tmp_path / "bad.json")


@pytest.mark.long
def test_entries_that_a_model_learned_from_do_not_count(files):
    told = []
    found = estimate_model(files / "learned.json", files / "log", tell=told.append)
    assert found.searches == 1600
    assert told == ["the model was trained on this log; only the last 20% of its entries are used"]
    told.clear()
    estimate_model(files / "learned.json", files / "log", latest=1.0, tell=told.append)
    assert "too optimistic; use --latest 0.2" in told[0]
    with pytest.raises(ValueError, match=r"latest must be greater than 0 and at most 1 .got 2"):
        estimate_model(files / "model.json", files / "log", latest=2.0)


@pytest.mark.long
def test_why_it_cannot_be_told(files, tmp_path):
    done = run("model", "estimate", files / "model.json", "--log", files / "static")
    assert done.exit_code == 1
    said = " ".join(done.output.split())
    assert "The clicks cannot be estimated from this log: propensities are not identifiable" in said
    assert "Random swaps of two adjacent results in" in said
    stored = stored_estimate(files / "model.json")
    assert stored is not None
    assert stored.finding == "inconclusive"
    assert "cannot be estimated: propensities are not identifiable" in stored.verdict
    done = run("model", "estimate", files / "model.json", "--log", files / "static", "--json")
    assert (done.exit_code, list(json.loads(done.stdout))) == (1, ["cannot"])
    save_model(Model(Linear(), np.ones(3), 3), tmp_path / "three.json")
    with pytest.raises(CannotTell, match="features differ: the model uses 3 features, the log has 10"):
        estimate_model(tmp_path / "three.json", files / "log")
    save_model(Model(Linear(), np.ones(10), 10, feature_names=(*NAMES[:9], "age")), tmp_path / "other.json")
    with pytest.raises(CannotTell, match="feature 10 is 'age' in the model, but 'feature 10' in the log"):
        estimate_model(tmp_path / "other.json", files / "log")
    save_model(Model(Linear(), np.ones(10), 10, "global"), tmp_path / "global.json")
    with pytest.raises(CannotTell, match="but no feature ranges"):
        estimate_model(tmp_path / "global.json", files / "log")
    with pytest.raises(ValueError, match="synthetic lists around one click each"):
        estimate_model(files / "model.json", made_up_log(tmp_path / "log", [0, 1, 0]))
    with pytest.raises(ValueError, match="holds one model for all clients; remove client = 1"):
        estimate_model(files / "model.json", files / "log", client=1)
    assert isinstance(run("data", "propensities", files / "log", "--bias", "x").exception, ValueError)


@pytest.mark.long
def test_places_and_their_file(files, tmp_path):
    done = run("data", "propensities", files / "log", "--out", tmp_path / "positions.json")
    assert done.exit_code == 0, done.output
    assert "compared with position 1" in " ".join(done.output.split())
    by = read_propensities(tmp_path / "positions.json")
    assert by.slope[1] == pytest.approx(0.5, rel=0.2)
    given = estimate_model(files / "model.json", files / "log", propensities=tmp_path / "positions.json")
    assert given.propensities.how == "given"
    done = run("data", "propensities", files / "static")
    assert done.exit_code == 1
    assert "Propensities are not identifiable: no document changed its position" in " ".join(done.output.split())
    done = run("data", "propensities", files / "log", "--bias", "trust")
    assert "clicks by trust" in " ".join(done.output.split()) or done.exit_code == 1


@pytest.fixture
def split(files, tmp_path):
    """The log with its latest quarter held out."""
    folder = tmp_path / "log"
    shutil.copytree(files / "log", folder)
    log = load_log(folder)
    np.save(folder / "held_out.npy", (np.arange(len(log)) >= 6000).astype(np.uint8))
    facts = log.facts | {"shapes": log.facts["shapes"] | {"held_out": [len(log)]}}
    (folder / "facts.json").write_text(json.dumps(facts))
    begin_window(folder, HoldOut(days=1, key="k"), int(log.time[-1]))
    return folder


def test_exactly_held_out_entries_count_and_for_one_model(files, split, tmp_path):
    with pytest.raises(ValueError, match="holds entries out, and exactly these count"):
        estimate_model(files / "model.json", split, latest=0.2)
    assert not read_window(split).uses
    found = estimate_model(files / "model.json", split)
    assert found.searches == 2000
    assert found.as_json() == estimate_model(files / "model.json", files / "log", latest=0.25).as_json()
    (use,) = read_window(split).uses
    assert use["purpose"].startswith("the model with SHA-256 ")
    assert estimate_model(files / "model.json", split).as_json() == found.as_json(), "the same model may be repeated"
    save_model(Model(Linear(), -TRUTH.best, 10, feature_names=NAMES), tmp_path / "other.json")
    done = run("model", "estimate", tmp_path / "other.json", "--log", split)
    assert done.exit_code != 0
    assert not estimate_file(tmp_path / "other.json").exists()

"""Experiments on text collections and logs with the features live-1, from the spec to the run folder."""

from __future__ import annotations

import json

import pytest

from fedrank.data.build_log import LogBuild, build_log
from fedrank.data.lists import ListRules
from fedrank.data.synthetic_log import CORPUS, LOG, synthetic_log
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.source import read_spec

pytest.importorskip("bm25s")
pytest.importorskip("Stemmer")

SPEC = """
rounds = 2
evaluate_every = 1
start = "given"

[data]
collection = "synthetic-silos"
parts = 3

[clients]
count = 3
interactions = 5
click_model = "navigational"
partition = { name = "users" }

[learner]
name = "pdgd"
rate = 0.03
temperature = 0.3
keep = 0.9
"""


def asked(tmp_path, *changes: str):
    (tmp_path / "my.toml").write_text(SPEC)
    return read_spec(tmp_path / "my.toml", changes)


def problems(tmp_path, *changes: str) -> str:
    with pytest.raises(SpecError) as said:
        asked(tmp_path, *changes)
    return str(said.value)


def test_from_the_spec_to_the_run_folder(tmp_path):
    spec = asked(tmp_path)
    assert load_fold(spec.base.data, 1).train.feature_names[3] == "engine"
    run_experiment(spec, "live", tmp_path)
    [run] = load_runs(tmp_path / "live").checked() and [next((tmp_path / "live").rglob("run.json"))]
    facts = json.loads(run.read_text())
    assert facts["data"]["features"] == 34
    assert facts["data"]["name"] == "synthetic-silos"
    model = json.loads((run.parent / "model.json").read_text())
    assert model["feature_names"][3] == "engine"


def test_no_step_leaves_the_order_that_users_have(tmp_path):
    run_experiment(asked(tmp_path, "learner.rate=1e-12", "data.folds=[2]"), "still", tmp_path)
    folder = next((tmp_path / "still").rglob("run.json")).parent
    queries, nothing = ((folder / name).read_text().splitlines() for name in ("queries.csv", "nothing.csv"))
    assert [line.split(",")[1] for line in queries[1:]] == [line.split(",")[1] for line in nothing[1:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.features=live-2", "data.features: unknown feature set 'live-2'"),
        ("data.features=46", 'data.features: a number applies only to files; give a feature set such as "live-1"'),
        ("data.evaluate_on=validation", "data.evaluate_on: a collection has no validation queries"),
        ("data.normalise=global", "data.normalise: users do not know the feature ranges of others"),
        ("data.users=3", "data.users: applies only to a click log"),
        ("data.name=synthetic-mq2007", "data: has both a collection and a name or files"),
        ("data.log=nowhere", "data: has both a log and a collection"),
        ("learner.ranker=mlp", 'start: "given" ranks by a single feature'),
    ],
)
def test_contradictions(tmp_path, change, said):
    assert said in problems(tmp_path, change)


def test_settings_of_a_collection_need_one(tmp_path):
    (tmp_path / "other.toml").write_text(SPEC.replace('collection = "synthetic-silos"', 'name = "synthetic-mq2007"'))
    with pytest.raises(SpecError, match=r"data.parts: applies only to a text collection"):
        read_spec(tmp_path / "other.toml")
    (tmp_path / "other.toml").write_text(
        SPEC.replace('collection = "synthetic-silos"', 'name = "synthetic-mq2007"').replace(
            "parts = 3", 'features = "live-1"'
        )
    )
    with pytest.raises(SpecError, match=r"data.features: 'live-1' is the name of a feature set"):
        read_spec(tmp_path / "other.toml")


def test_a_collection_that_is_not_there_is_missed_before_anything_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="no text collection 'nowhere'"):
        asked(tmp_path, "data.collection=nowhere").base.data.require()


@pytest.mark.long
def test_a_log_must_have_the_features_that_are_asked_for(tmp_path):
    synthetic_log(tmp_path / "files", users=8, least=5)
    files = tmp_path / "files" / LOG, tmp_path / "files" / CORPUS
    build_log(*files, tmp_path / "live", LogBuild(ListRules(), features="live-1"))
    build_log(*files, tmp_path / "other", LogBuild(ListRules()))
    (tmp_path / "log.toml").write_text(
        SPEC.replace('collection = "synthetic-silos"\nparts = 3', 'log = "live"\nfeatures = "live-1"\ngiven = "engine"')
    )
    fold = load_fold(read_spec(tmp_path / "log.toml").base.data, 1)
    assert fold.train.normalised == "none"
    assert fold.train.features.shape[1] == 34
    with pytest.raises(ValueError, match=r"has the features aol-103, not live-1; rebuild it with `fedrank data build"):
        load_fold(read_spec(tmp_path / "log.toml", [f"data.log={tmp_path / 'other'}"]).base.data, 1)
    fold = load_fold(
        read_spec(tmp_path / "log.toml", [f"data.log={tmp_path / 'other'}", "data.features=aol-103"]).base.data, 1
    )
    assert fold.train.normalised == "query"

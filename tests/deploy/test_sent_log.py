"""A site leaves: the model forgets it with the sites that stay, and all of them get a receipt or a model."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from fedrank.deploy.coordinate import coordinate
from fedrank.deploy.unlearning import named, remove
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.unlearning.methods import UNLEARNERS
from tests.deploy.trial import Trial, rows, spec_of, weights, write_data

LINEAR = '[learner]\nname = "pdgd"\n'


@pytest.fixture
def trial(tmp_path):
    """Four clients at four sites, all updates recorded, and the run is done."""
    write_data(tmp_path)
    spec = spec_of(tmp_path, "record_every = 1\n" + LINEAR, rounds=5, clients="count = 4\ninteractions = 3")
    trial = Trial(tmp_path, spec, sites=4)
    assert trial.run() == "finished"
    return trial


def forget(trial, method, **settings):
    """(folder, what became of it) by rounds with those who stay."""
    asked = named(trial.task.folder, ["site-3"], UNLEARNERS[method](**settings))
    task, plan = asked.planned(trial.folder / "without")
    with trial.sites() as sites, ThreadPoolExecutor(4) as pool:
        status = coordinate(
            task, plan, lambda name, content, wait: pool.submit(sites[name].answer, content), departure=asked
        )
    assert status == "finished", (task.folder / "run.json").read_text()
    return task.folder


def simulated(trial, method, **settings):
    [done] = unlearn_runs([trial.simulated()], [3], UNLEARNERS[method](**settings), trial.folder / "again")
    return done.folder


@pytest.mark.parametrize("method", ["retrain", "fed-remove"])
def test_the_model_is_the_one_of_a_simulation(trial, method):
    if method == "fed-remove":
        folder = remove(named(trial.task.folder, ["site-3"], UNLEARNERS[method]()), trial.folder / "without")
    else:
        folder = forget(trial, method)
    assert weights(folder) == weights(simulated(trial, method))
    paper = json.loads((folder / "receipt.json").read_text())
    assert paper["removed"]["clients"] == [3]
    assert paper["method"]["exact"] == (method == "retrain")


@pytest.mark.parametrize(("method", "settings"), [("fed-eraser", {"steps": 2}), ("fine-tune", {"rounds": 2})])
def test_rounds_with_those_who_stay(trial, method, settings):
    folder = forget(trial, method, **settings)
    assert len(rows(folder)) == (5 if method == "fed-eraser" else 2)
    assert "NOT shown to be forgotten" in json.loads((folder / "receipt.json").read_text())["summary"]
    for name, where in trial.folders.items():
        found = sorted(path.name for path in where.rglob("models/*/*"))
        assert "receipt.json" in found, name
        assert found.count("model.json") == (1 if name == "site-3" else 2)


def test_lengths_are_those_of_back_then(trial):
    """FedEraser with as many steps repeats what retraining does, stretched to the recorded lengths."""
    folder = forget(trial, "fed-eraser", steps=3)
    retrained = forget(trial, "retrain")
    assert weights(folder) != weights(retrained)


def test_what_cannot_be_done_is_refused_before_anybody_is_asked(trial):
    with pytest.raises(ValueError, match="does not participate"):
        named(trial.task.folder, ["site-9"], UNLEARNERS["retrain"]())
    with pytest.raises(ValueError, match="needs the leaving site to participate"):
        named(trial.task.folder, ["site-3"], UNLEARNERS["gradient-ascent"]())
    with pytest.raises(ValueError, match="certified is not available between organisations, because sites would see"):
        named(trial.task.folder, ["site-3"], UNLEARNERS["certified"]())
    with pytest.raises(ValueError, match="at least 2 are needed"):
        named(trial.task.folder, ["site-1", "site-2", "site-3"], UNLEARNERS["retrain"]())
    (trial.task.folder / "plan.json").unlink()
    with pytest.raises(ValueError, match="is not a run between sites"):
        named(trial.task.folder, ["site-3"], UNLEARNERS["retrain"]())


def test_under_a_secure_sum_only_retraining_is_left(tmp_path):
    write_data(tmp_path)
    noise = '[mechanism]\nname = "gaussian"\nclip = 0.5\nnoise = 1.0\nplacement = { name = "secure-aggregation" }\n'
    trial = Trial(tmp_path, spec_of(tmp_path, LINEAR + noise, rounds=2, clients="count = 4"), sites=4)
    assert trial.run() == "finished"
    with pytest.raises(ValueError, match="secure aggregation does not reveal; use --method retrain"):
        named(trial.task.folder, ["site-3"], UNLEARNERS["fed-remove"]())
    folder = forget(trial, "retrain")
    assert json.loads((folder / "receipt.json").read_text())["method"]["exact"]


def test_a_run_folder_belongs_to_one_plan(trial):
    other = replace(trial.plan, seed=99)
    with trial.sites() as sites, ThreadPoolExecutor(4) as pool:
        (trial.task.folder / "run.json").unlink()
        status = coordinate(trial.task, other, lambda name, content, wait: pool.submit(sites[name].answer, content))
    assert status == "failed"
    assert "started with another plan: its seed is 1, but now it is 99" in (trial.task.folder / "run.json").read_text()

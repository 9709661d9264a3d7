"""Runs on clicks that are corrected for their positions: specs, clients, sites, bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from fedrank.data.logs import load_log
from fedrank.data.synthetic_shown import STATIC, Browsing, made_up_queries, simulate_shown
from fedrank.deploy.data_sources import differences, load_share, open_data_source
from fedrank.deploy.plan import only_simulated
from fedrank.deploy.settings import SiteData
from fedrank.experiments.report.privacy_output import about_privacy
from fedrank.experiments.runner.data import clients_of, load_fold
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.position_bias import (
    corrected_clients,
    positions_of_log,
    read_propensities,
    shown_results,
)
from fedrank.experiments.runner.privacy import card, planned
from fedrank.experiments.runner.schedule import plan, run_experiment
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_experiment
from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Iid, Users
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.model import load_weights
from fedrank.ranking.propensity import NotIdentifiable, correct
from tests.deploy.plans import OPEN, made_plan, site_settings
from tests.made_up import made_up_log

TRUTH = made_up_queries(400, seed=5)
LEARN, JUDGED = TRUTH.some(slice(250)), TRUTH.some(slice(250, None)).judged()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "log"
    simulate_shown(LEARN, 12_000, people=8, activity=0.5, browsing=Browsing(1.5)).write(folder)
    return folder


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "static"
    simulate_shown(LEARN, 1000, people=8, showing=STATIC).write(folder)
    return folder


def tables(log, data=None, **changes):
    base = {
        "rounds": 10,
        "evaluate_every": 5,
        "data": {"log": str(log), "normalise": "none"} | (data or {}),
        "clients": {"count": 4, "interactions": 60, "partition": {"name": "users"}},
        "learner": {"name": "logged-clicks"},
    }
    return base | changes


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in ("rounds.csv", "model.json")
    }


def test_corrected_beats_naive_beats_nothing(log, tmp_path):
    variants = {"naive": {}, "shared": {"data.propensities": "shared"}}
    grid = read_tables(tables(log, variants=variants, rounds=80))
    done = run_experiment(grid, "x", tmp_path)
    assert not done.failed
    quality = {
        path.parts[-3]: Evaluator(JUDGED, ["ndcg@10"])(*reversed((model.ranker, model.weights)))[0]
        for path in tmp_path.rglob("model.json")
        for model in [load_weights(path)]
    }
    assert quality["shared"] > quality["naive"] + 0.01
    shared = next(tmp_path.rglob("shared/*/run.json"))
    told = " ".join(json.loads(shared.read_text())["notes"])
    assert "clicks are corrected by propensities (documents that changed positions): clicks relative" in told
    assert "no mechanism and no ε covers them" in told
    assert "which favour the shown order" in told
    assert json.loads(shared.read_text())["conventions"]["do nothing"] == "the baseline ranking: logged order"


@pytest.mark.parametrize("kind", ["federated", "async"])
def test_bytes_do_not_depend_on_threads_or_stops(log, tmp_path, kind, monkeypatch):
    monkeypatch.setattr("fedrank.experiments.runner.writer.SECONDS_BETWEEN_NEWS", -1.0)  # asked after every round
    asked = read_tables(tables(log, {"propensities": "shared"}, kind=kind))
    run_experiment(asked, "x", tmp_path / "one")
    run_experiment(asked, "x", tmp_path / "two", threads=2)
    [task] = plan(asked, "x", tmp_path / "three")
    stops, calls = 0, count()
    while perform(task, stop=lambda: next(calls) % 3 == 2) == "interrupted":
        stops += 1
    assert stops >= 2
    one = files_of(tmp_path / "one")
    assert one == files_of(tmp_path / "two") == files_of(tmp_path / "three")
    assert len(one) == 2


@pytest.mark.long
def test_own_propensities_are_those_of_each_client(log):
    asked = read_tables(tables(log, {"propensities": "own"})).base
    clients = clients_of(asked, 1, 1)
    data, whole = clients.data, load_log(log)
    queries = clients.queries[clients.pools[2] : clients.pools[3]]
    by = positions_of_log(whole, "position", data.query_ids[queries].astype(np.int64))
    rows = slice(data.offsets[queries[7]], data.offsets[queries[7] + 1])
    expected = correct(data.grades[rows] > 0, data.position[rows], by).relevance
    assert np.array_equal(data.relevance[rows], expected, equal_nan=True)
    shared = load_fold(replace(asked.data, propensities="shared"), 1).train
    assert not np.array_equal(shared.relevance[rows], data.relevance[rows], equal_nan=True)
    assert not len(load_fold(asked.data, 1).train.relevance)


def test_people_of_an_organisation_learn_from_corrected_clicks_too(log):
    base = read_tables(tables(log)).base
    train = load_fold(base.data, 1).train
    clients = corrected_clients(make_clients(train, 2, partition=Users(), people=3), load_log(log), "position")
    assert len(clients.people.data.relevance) == train.documents


def test_clients_that_share_queries_or_know_too_little_are_told(log):
    train = load_fold(read_tables(tables(log)).base.data, 1).train
    with pytest.raises(ValueError, match='"own" requires that each query belongs to one client'):
        corrected_clients(make_clients(train, 2, partition=Iid()), load_log(log), "position")
    few = make_clients(train.select(np.arange(60)), 1, partition=Users())
    with pytest.raises(
        NotIdentifiable, match=r'client 0 has \d+ lists, and .* with "shared", the lists of all clients are used'
    ):
        corrected_clients(few, load_log(log), "position")


def test_where_nothing_moved_no_model_is_made(static, tmp_path):
    with pytest.raises(
        ValueError, match="no document changed its position for the same query; no clicks are corrected"
    ):
        run_experiment(read_tables(tables(static, {"propensities": "shared"})), "x", tmp_path)
    assert not list(tmp_path.rglob("model.json"))


def test_propensities_of_a_file(log, tmp_path):
    (tmp_path / "positions.json").write_text('{"slope": [1, 0.5, 0.25, null], "extra": [0, 0.01, 0, null]}')
    text = (
        f'rounds = 3\n[data]\nlog = "{log}"\nnormalise = "none"\npropensities = "positions.json"\n[clients]\ncount = '
        '2\npartition = { name = "users" }\n[learner]\nname = "logged-clicks"\n'
    )
    (tmp_path / "spec.toml").write_text(text)
    asked = read_experiment(tmp_path / "spec.toml").base
    train = load_fold(asked.data, 1).train
    clicked = (train.grades > 0) & (train.position == 1)
    assert train.relevance[clicked] == pytest.approx(0.99 / 0.5)
    assert np.isnan(train.relevance[train.position >= 3]).all()
    for wrong, says in (
        ("[]", 'the list "slope" is missing'),
        ('{"slope": [1, "x"]}', "'x' is not a number"),
        ('{"slope": [1, 0.5], "extra": [0]}', '"slope" has 2 positions, "extra" 1'),
        ('{"slope": [1, -1]}', "slopes must be positive"),
        ("{", "cannot be read as propensities"),
    ):
        (tmp_path / "wrong.json").write_text(wrong)
        with pytest.raises(ValueError, match=says):
            read_propensities(tmp_path / "wrong.json")


def test_made_up_lists_have_no_places(tmp_path):
    log = load_log(made_up_log(tmp_path / "log", [0, 1, 0]))
    with pytest.raises(ValueError, match="synthetic lists around one click each"):
        shown_results(log)


@pytest.mark.parametrize(
    ("data", "changes", "says"),
    [
        ({"propensities": "shared"}, {"learner": {"name": "pdgd", "lists": "logged"}}, "this learner does not weight"),
        ({"propensities": "nowhere.json"}, {}, "file 'nowhere.json' does not exist; use"),
        ({"bias": "trust"}, {}, "data.bias: 'trust' has no effect without propensities"),
        (
            {},
            {"clients": {"count": 2, "click_model": "navigational"}},
            "learner: this learner takes clicks from the log",
        ),
    ],
)
def test_what_does_not_go_together_is_told(log, data, changes, says):
    with pytest.raises(SpecError, match=says):
        read_tables(tables(log, data, **changes))


def test_without_a_log_there_is_nothing_to_correct(log):
    elsewhere = {"name": "synthetic-mq2007"}
    with pytest.raises(SpecError, match=r"learner: this learner learns from the lists in a click log; set data\.log"):
        read_tables(tables(log) | {"data": elsewhere, "clients": {"count": 2}})
    with pytest.raises(SpecError, match=r"data\.propensities: applies only to a click log"):
        read_tables(tables(log) | {"data": elsewhere | {"propensities": "shared"}, "clients": {"count": 2}})


def test_a_site_corrects_by_its_own_log(log, static, tmp_path):
    data = SiteData(log=str(log), normalise="none")
    names = [f"feature {number + 1}" for number in range(10)]
    policy = replace(OPEN, learners=("logged-clicks",))
    plan = made_plan(
        features=10,
        names=names,
        learner={"name": "logged-clicks"},
        data={"log": str(static), "normalise": "none", "propensities": "own"},
    )
    assert str(static) not in plan.spec
    clients = open_data_source(site_settings(policy, data), plan).clients
    assert len(clients.data.relevance) == clients.data.documents
    with pytest.raises(NotIdentifiable, match="no document changed its position"):
        open_data_source(site_settings(policy, SiteData(log=str(static), normalise="none")), plan)
    made_up = load_share(SiteData(log=str(made_up_log(tmp_path / "log", [0, 1, 0]))))
    assert any("the lists of this site's log are synthetic" in line for line in differences(made_up, plan))
    shared = read_tables(tables(log, {"propensities": "shared"}, clients={"count": 2})).base
    assert any("no party sees the clicks of all sites" in line for line in only_simulated(shared))


def test_trust_is_corrected_where_it_is_asked_for(tmp_path):
    simulate_shown(LEARN, 30_000, people=4, browsing=Browsing(1.0, 0.4)).write(tmp_path / "log")
    asked = read_tables(tables(tmp_path / "log", {"propensities": "shared", "bias": "trust"})).base
    train = load_fold(asked.data, 1).train
    unclicked = train.relevance[(train.grades == 0) & (train.position == 1)]
    assert np.all(unclicked > 0.05), "of what is not trusted, a click less says less"


@pytest.mark.long
def test_shared_propensities_are_named_as_not_covered(log):
    noise = {"name": "gaussian", "clip": 1.0, "noise": 5.0}
    shared, own = (read_tables(tables(log, {"propensities": source}, mechanism=noise)) for source in ("shared", "own"))
    said = [" ".join(card(grid.base, planned(grid.base), 1, 1).not_covered) for grid in (shared, own)]
    assert ["shared propensities are estimated from the raw clicks of all clients" in text for text in said] == [
        True,
        False,
    ]
    told = [str(about_privacy(grid)) for grid in (shared, own)]
    assert ["Not covered: shared propensities" in text for text in told] == [True, False]

"""People in organisations, from a spec to the privacy card."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from fedrank.experiments.runner.audit import audit_experiment
from fedrank.experiments.runner.client_summary import describe_clients
from fedrank.experiments.runner.privacy import planned
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.spec.experiment import SpecError
from fedrank.experiments.spec.grid import read_tables
from fedrank.experiments.spec.source import read_experiment, read_spec
from fedrank.privacy.noise import SecureSource
from fedrank.unlearning.methods import Retrain

PERSON = {"name": "gaussian", "clip": 0.15, "noise": 8.5, "unit": "person"}
SUM = PERSON | {"placement": {"name": "secure-aggregation", "honest": 0.75}}


def tables(**changes):
    return {
        "rounds": 4,
        "evaluate_every": 2,
        "data": {"name": "synthetic-mq2007"},
        "clients": {"count": 4, "people": 20, "interactions": 2, "partition": {"name": "own"}},
        "learner": {"name": "pdgd"},
    } | changes


def test_a_mechanism_knows_how_many_people_there_are():
    grid = read_tables(tables(mechanism=PERSON))
    assert grid.base.mechanism.people == 20
    assert read_tables(tables(mechanism=PERSON | {"people": 50})).base.mechanism.people == 50


@pytest.mark.parametrize("mechanism", [PERSON, SUM], ids=["noise by the organisation", "secure sum"])
def test_a_card_says_that_it_is_for_each_person(tmp_path, mechanism):
    run_experiment(read_tables(tables(mechanism=mechanism)), "test", tmp_path)
    [folder] = {path.parent for path in tmp_path.glob("**/rounds.csv")}
    card = json.loads((folder / "privacy.json").read_text(encoding="utf-8"))
    assert "over the people of" in card["who_sees_what"]
    with pytest.raises(ValueError, match="clients have 20 people each"):
        unlearn_runs([folder], [1], Retrain(), tmp_path / "unlearned")
    for row in card["promises"]:
        assert (row["unit"], row["times"], row["neighbours"]) == ("person", 4, "zero-out")
        assert "over several, the costs add up" in row["because"]
    rows = list(csv.DictReader((folder / "rounds.csv").read_text(encoding="utf-8").splitlines()))
    assert int(rows[-1]["interactions"]) == 4 * 4 * 20 * 2
    again = read_spec(folder / "spec.toml").base
    assert (again.clients.people, again.mechanism.people, again.mechanism.unit) == (20, 20, "person")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"clients": {"count": 4}, "mechanism": PERSON},
            'mechanism.unit: "person" requires clients with several people',
        ),
        ({"mechanism": PERSON | {"people": 7}}, "mechanism.people: 7 is less than clients.people = 20"),
        (
            {"mechanism": {"name": "gaussian", "clip": 1.0, "noise": 1.0, "people": 20}},
            'people = 20 applies only to unit = "person"',
        ),
        ({"local": {"name": "scaffold"}}, "local: Scaffold stores state at a client"),
        (
            {"clients": tables()["clients"] | {"malicious": 1}, "attack": {"name": "sign-flip"}},
            "attack: malicious persons within an organisation",
        ),
        ({"kind": "async"}, 'clients.people: kind = "async" does not simulate organisations'),
    ],
)
def test_what_a_spec_cannot_ask_for(changes, problem):
    with pytest.raises(SpecError, match=problem):
        read_tables(tables(**changes))


def test_three_runs_of_the_hospitals_on_the_same_people_cost_no_more_than_4():
    grid = read_experiment("hospitals")
    asked = {variant.name: variant.experiment for variant in grid.variants if variant.experiment.mechanism is not None}
    assert {name: one.mechanism.unit for name, one in asked.items()} == {
        "noise-by-hospital": "person",
        "secure-aggregation": "person",
        "trusted-server": "person",
        "whole-hospitals": "client",
    }
    for one in asked.values():
        *_, public = planned(replace(one, rounds=3 * one.rounds))
        assert 3.9 < public.total <= 4


@pytest.mark.long
def test_an_audit_looks_for_one_person():
    found = audit_experiment(
        read_tables(tables(mechanism=PERSON | {"noise": 0.7})),
        source=SecureSource(bytes(32)),
        messages=5,
        repeats=20_000,
        runs=400,
    )
    verdicts = {each.attacked: each.verdict for each in found}
    assert verdicts.pop("clicks, from one message") == "SKIPPED"
    assert verdicts["membership, mechanism alone"] == "NOT SHOWN"
    assert "VIOLATED" not in verdicts.values()


def test_who_holds_what_counts_people():
    assert describe_clients(read_tables(tables())).groups[0].how.startswith("4 clients of 20 people each, ")


def test_settings_survive_a_file(tmp_path):
    grid = read_tables(tables(mechanism=SUM | {"sites": 2}))
    path = tmp_path / "spec.toml"
    path.write_text(grid.toml(), encoding="utf-8")
    assert read_spec(path).base.mechanism == grid.base.mechanism

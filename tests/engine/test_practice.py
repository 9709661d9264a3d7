"""The made-up organisation: the same for the same seed, and its trials are read without a complaint."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.data.engine_features import ENGINE_1, NAMES
from fedrank.engine.practice import DOCUMENTS, EVENTS, QUERIES, SITES, WANTED, Practice
from fedrank.engine.start_trial import plan_trial
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import TrialRules
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear


@pytest.mark.long
def test_an_organisation_and_its_trial(tmp_path):
    made = Practice.begin(queries=40)
    for name in ("a", "b"):
        Practice.begin(queries=40).write_log(tmp_path / name, searches=300)
    for file in (DOCUMENTS, QUERIES, EVENTS):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    rows = [json.loads(line) for line in (tmp_path / "a" / QUERIES).read_text().splitlines()]
    assert {row["query_attributes"]["site"] for row in rows} == set(SITES)
    made.write_log(tmp_path / "east", searches=300, site="east")
    own = [json.loads(line) for line in (tmp_path / "east" / QUERIES).read_text().splitlines()]
    assert own == [row for row in rows if row["query_attributes"]["site"] == "east"]
    weights = np.zeros(len(NAMES))
    for name, weight in WANTED.items():
        weights[NAMES.index(name)] = weight * 3 if name == "popularity" else weight
    save_model(Model(Linear(), weights, len(NAMES), "global", NAMES, ranges=ENGINE_1.ranges), tmp_path / "good.json")
    assert made.clicks_a_search(tmp_path / "good.json") > made.clicks_a_search() + 0.05
    plan, _ = plan_trial(tmp_path / "good.json", "engine", "own", tmp_path / "t", TrialRules(wait=0), key="k")
    for first in (0, 200):
        made.write_trial(tmp_path / "t", tmp_path / f"days-{first}", 200, first)
        days = tmp_path / f"days-{first}"
        brought = EngineTrial(tmp_path / "t").read([days / QUERIES, days / EVENTS])
        assert (brought.searches, brought.dropped, brought.known) == (200, {}, 0)
    assert plan.key == "k"
    assert EngineTrial(tmp_path / "t").judged().wins > EngineTrial(tmp_path / "t").judged().losses

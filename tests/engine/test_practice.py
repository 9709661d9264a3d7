"""The synthetic hospitals: the same for the same seed, a log with the faults of real ones, and a known truth."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedrank.cli import app
from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
from fedrank.data.engine_features import ENGINE_1, NAMES
from fedrank.data.logs import SearchLog
from fedrank.data.ranking import RankingData
from fedrank.data.ubi import UbiRules
from fedrank.engine.practice import DOCUMENTS, EVENTS, EXAMINED, FOUND, LOST, PLACES, QUERIES, WANTED, Practice
from fedrank.engine.start_trial import plan_trial
from fedrank.engine.trial import EngineTrial
from fedrank.engine.trial_decision import TrialRules
from fedrank.experiments.runner.position_bias import positions_of_log
from fedrank.ranking.measures import per_query
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.propensity import NotIdentifiable
from fedrank.ranking.rankers import Linear


@pytest.fixture(scope="module")
def made() -> Practice:
    return Practice.begin(queries=40)


@pytest.fixture(scope="module")
def good(made) -> Model:
    weights = np.zeros(len(NAMES))
    for name, weight in WANTED.items():
        column = NAMES.index(name)
        weights[column] = weight * ENGINE_1.ranges[1][column] / made.features[:, :, column].std(axis=1).mean()
    return Model(Linear(), weights, len(NAMES), "global", NAMES, ranges=ENGINE_1.ranges)


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines() if not line.startswith("{cut")]


def built(folder: Path) -> SearchLog:
    source = UbiSource(folder / QUERIES, folder / EVENTS)
    settings = ShownBuild(features="engine-1", ubi=UbiRules(person="user_id"))
    return build_shown(source, folder / DOCUMENTS, folder / "built", settings)


def test_the_same_seed_gives_the_same_log_and_sites_differ(made, tmp_path):
    made.write_log(tmp_path / "a", 300)
    Practice.begin(queries=40).write_log(tmp_path / "b", 300)
    Practice.begin("east", queries=40).write_log(tmp_path / "c", 300)
    for file in (DOCUMENTS, QUERIES, EVENTS):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() != (tmp_path / "c" / file).read_bytes()
    made.write_log(tmp_path / "later", 300, first=300)
    times = [[row["timestamp"] for row in rows(tmp_path / name / QUERIES)] for name in ("a", "later")]
    assert max(times[0]) < min(times[1])
    with pytest.raises(ValueError, match="site must be one of north, east, south"):
        Practice.begin("west")


def test_swaps_are_logged_as_they_were_made(made, tmp_path):
    made.write_log(tmp_path, 2000)
    made.write_log(tmp_path / "fixed", 300, swaps=False)
    asked = [row for row in rows(tmp_path / QUERIES) if row["client_id"] != "robot"]
    places = {query: [made._name(made.queries.index(query), row) for row in range(PLACES)] for query in made.queries}
    counts = np.zeros((PLACES, 2))
    for row in asked:
        at, swapped = row["query_attributes"]["swap"].values()
        own = list(places[row["user_query"]])
        if swapped:
            own[at - 1], own[at] = own[at], own[at - 1]
        assert row["query_response_hit_ids"] == own
        counts[at, int(swapped)] += 1
    assert counts[0].sum() == 0
    assert counts[1:].min() > 60  # 109 are expected
    assert 2000 * (1 - 2 * LOST) < len(asked) < 2000
    for row in rows(tmp_path / "fixed" / QUERIES):
        assert row["query_response_hit_ids"] == places[row["user_query"]]
        assert row["query_attributes"] == {}


def test_the_log_is_cleaned_and_tells_the_propensities(made, tmp_path):
    made.write_log(tmp_path, 6000)
    log = built(tmp_path)
    assert "robot" not in log.users
    assert len(log.users) == 250
    assert log.unit == "person"
    reasons = " ".join(log.facts["left_out"])
    for fault in ("repeated click", "without its query", "long before or after", "not a row", "unknown document"):
        assert fault in reasons
    found = positions_of_log(log)
    true = np.array(EXAMINED["north"])
    known = found.known
    known[0] = False
    assert known[1:5].all()
    assert np.mean((found.low <= true)[known] & (true <= found.high)[known]) >= 0.7


def test_a_log_without_randomisation_is_refused(made, good, tmp_path):
    made.write_log(tmp_path, 1000, swaps=False)
    log = built(tmp_path)
    with pytest.raises(NotIdentifiable, match="no document changed its position"):
        positions_of_log(log)
    save_model(good, tmp_path / "good.json")
    for command in (["data", "propensities"], ["model", "estimate", str(tmp_path / "good.json"), "--log"]):
        done = CliRunner().invoke(app, [*command, str(log.folder)])
        assert done.exit_code == 1, done.output


def test_truth(made, good):
    """Expected clicks agree with a simulation, nDCG with the measure of the library, and swaps cost a little."""
    assert made.clicks_a_search(good) > made.clicks_a_search() + 0.05
    assert made.ndcg(good) > made.ndcg() + 0.05
    for trust in (0.0, 0.6):
        one = Practice.begin(queries=40, trust=trust)
        rng = np.random.default_rng(1)
        lists = np.arange(PLACES)
        drawn = [len(one._click_lines("q", "x-1", 0.0, 3, lists, rng)) for _ in range(4000)]
        assert np.mean(drawn) == pytest.approx(one.truth().clicks[3], abs=0.1)
        assert made.ndcg(shown=True) < made.ndcg() < made.ndcg(shown=True) + 0.02
        assert made.clicks_a_search(shown=True) == pytest.approx(made.clicks_a_search(), abs=0.02)
    count = len(made.queries)
    data = RankingData(
        made.features.reshape(count * FOUND, -1),
        np.rint(4 * made.relevance).astype(np.int8).ravel(),
        np.arange(count + 1) * FOUND,
        np.arange(count).astype(str),
    )
    [expected] = per_query(["ndcg@10"], np.tile(-np.arange(FOUND), count), data)
    np.testing.assert_allclose(made.truth().ndcg, expected)


def test_a_trial_is_read(made, good, tmp_path):
    save_model(good, tmp_path / "good.json")
    plan, _ = plan_trial(tmp_path / "good.json", "engine", "own", tmp_path / "t", TrialRules(wait=0), key="k")
    for first in (0, 200):
        days = tmp_path / f"days-{first}"
        made.write_trial(tmp_path / "t", days, 200, first)
        brought = EngineTrial(tmp_path / "t").read([days / QUERIES, days / EVENTS])
        assert (brought.searches, brought.known) == (200, 0)
    assert plan.key == "k"
    assert EngineTrial(tmp_path / "t").judged().wins > EngineTrial(tmp_path / "t").judged().losses

"""The numbers of a log against arithmetic by hand, and against logs whose character is known."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from fedrank.data.describe_log import (
    burstiness,
    describe_log,
    description_as_json,
    feature_distances,
    power_law,
)
from fedrank.data.log_folder import ShownLists, write_shown
from fedrank.data.logs import SearchLog
from fedrank.experiments.report import charts
from fedrank.experiments.report.charts import draw_log
from fedrank.experiments.report.data_output import about_log
from fedrank.experiments.report.terminal import show
from tests.made_up import made_up_shown

DAY = 86_400


def made_up_log(tmp_path, counts=(40, 20, 4), features=None):
    """Users with so many entries, each clicking the second of two documents; user u's entries are u + 1 hours apart."""
    user = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    time = np.concatenate([np.arange(n) * 3600 * (u + 1) for u, n in enumerate(counts)])
    order = np.argsort(time, kind="stable")
    entries = len(user)
    if features is None:
        features = np.random.default_rng(1).random((2 * entries, 3))
    return SearchLog(
        features=features.astype(np.float32),
        lists=np.arange(2 * entries).reshape(-1, 2),
        target=np.ones(entries, dtype=np.int8),
        user=user[order],
        time=time[order],
        query=np.zeros(entries, dtype=np.int32),
        document=np.tile([0, 1], entries).astype(np.int32),
        users=tuple(f"u${u}" for u in range(len(counts))),
        queries=("x",),
        documents=("a", "b"),
        facts={
            "counts": {"rows": 64, "sound": 64, "entries": 64, "users": 3, "queries": 1},
            "left_out": {},
            "dropped": {},
            "out_of_order": 0,
            "broken_documents": 0,
            "heavy_user": {"user": "u$0", "entries": 40, "share": 0.625, "next": 20},
            "feature_names": ["f", "g", "h"],
        },
        folder=tmp_path / "toy",
    )


@pytest.mark.long
def test_lists_as_they_were_shown(tmp_path):
    facts = {
        "left_out": {"event without its query": {"rows": 7, "lines": [1]}},
        "noticed": {"clicks with a position that differs from their list": {"rows": 3, "lines": [2]}},
        "capped": {"above the hourly limit of a client": {"lists": 5, "clicks": 9, "clients": 2}},
        "largest": {"before": [0.5, 0.25], "after": [0.1, 0.1]},
        "redacted": {"asked by too few": 4},
    }
    shown = ShownLists(
        features=np.arange(12.0, dtype=np.float32).reshape(6, 2),
        lists=np.array([[0, 1, 2], [3, 4, -1], [5, -1, -1], [1, 0, -1]]),
        clicks=np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 0, 0]]),
        first=np.array([0, 0, 2, 0]),
        user=np.array([0, 1, 2, 0]),
        time=np.array([10, 20, 30, 40]),
        query=np.array([0, 1, 1, 0]),
        document=np.arange(6),
        users=["a", "b", "c"],
        queries=["x", "y"],
        documents=list("012345"),
        feature_names=["f", "g"],
        dwell=np.array([[30, np.nan, 10], *([[np.nan] * 3] * 3)]),
        unit="browser",
    )
    found = describe_log(write_shown(tmp_path / "log", shown, {"features": "own"}, facts))
    assert found.shown.shown_at.tolist() == [3, 3, 2]
    assert found.shown.clicked_at.tolist() == [2, 1, 1]
    assert (found.shown.lengths, found.shown.later_pages, found.shown.unclicked) == ((1, 2, 3), 1, 0.25)
    assert found.shown.dwell == 20
    assert found.compared == ("a", "b"), "nobody else clicked"
    told = json.loads(description_as_json(found))["shown"]
    assert told["capped"] == facts["capped"]
    assert told["left_out"] == {"event without its query": 7}
    out = io.StringIO()
    show(about_log(found), Console(file=out, width=200))
    said = " ".join(out.getvalue().split())
    for text in (
        "clicked by position 66.7%, 33.3%, 50.0%",
        "busiest browser 50.0% of all clicks, 10.0% after limits",
        "cut 5 lists with 9 clicks of 2: above the hourly limit of a client",
        "odd 3 clicks with a position that differs from their list",
        "time on a document median 20 s",
    ):
        assert text in said
    draw_log(found, tmp_path / "log.svg")
    assert "event without its query" in (tmp_path / "log.svg").read_text()


def test_clicks_are_drawn_by_place_where_enough_lists_reach():
    """Of 400 lists, four have a document at the third place and three at the fourth."""
    axis = Figure().subplots()
    shown = SimpleNamespace(shown_at=np.array([400, 200, 4, 3]), clicked_at=np.array([100, 20, 3, 3]), unclicked=0.695)
    with mpl.rc_context(charts.CHART):
        charts._draw_positions(axis, shown)
    [line] = axis.lines
    assert line.get_xydata().tolist() == [[1, 0.25], [2, 0.1], [3, 0.75]]
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("position", "clicks per document shown")
    assert axis.get_title("left") == "Clicks by position\n70% of the lists have none"


@pytest.mark.parametrize(
    "facts", [{"left_out": {"x": {}}}, {"capped": {"x": {"lists": 1}}}, {"noticed": [1]}, {"redacted": {"x": "many"}}]
)
def test_facts_that_say_nothing_are_refused_in_a_line(tmp_path, facts):
    log = made_up_shown(tmp_path / "log", [0, 1, 0])
    with pytest.raises(ValueError, match=r"does not describe the processing|Cannot specify|invalid literal"):
        describe_log(replace(log, facts=log.facts | facts))


@pytest.mark.long
def test_a_log_without_a_click(tmp_path):
    log = made_up_shown(tmp_path / "log", [0, 1, 0], clicks=np.zeros((3, 10)))
    found = describe_log(log)
    assert found.compared == ()
    assert math.isnan(found.mean_distance)
    draw_log(found, tmp_path / "log.svg")


def test_burstiness_by_hand():
    assert burstiness(np.array([0, 7, 14, 21])) == -1.0  # like a clock
    # Gaps 1 and 3: mean 2, deviation 1; (1 - 2) / (1 + 2)
    assert burstiness(np.array([4, 0, 1])) == pytest.approx(-1 / 3)
    assert math.isnan(burstiness(np.array([1, 2])))
    assert math.isnan(burstiness(np.array([5, 5, 5])))


def test_burstiness_of_known_processes():
    rng = np.random.default_rng(1)
    at_random = np.cumsum(rng.exponential(1e6, size=20_000)).astype(np.int64)
    assert burstiness(at_random) == pytest.approx(0, abs=0.02)
    bursts = np.concatenate([start + np.arange(50) for start in range(0, 10**9, 10**7)])
    assert burstiness(bursts) > 0.7


@pytest.mark.parametrize("exponent", [1.8, 2.5])
def test_the_exponent_of_a_power_law_is_found(exponent):
    counts = np.random.default_rng(1).zipf(exponent, size=4000)
    law = power_law(np.minimum(counts, 10**6))
    assert law is not None
    assert law.exponent == pytest.approx(exponent, abs=0.1)
    assert law.least <= 10
    assert law.distance < 0.03


def test_a_power_law_may_begin_late():
    rng = np.random.default_rng(2)
    tail = np.floor(20 * rng.random(4000) ** (-1 / 1.5))  # exponent 2.5 from 20 on
    law = power_law(np.concatenate([rng.integers(1, 20, size=4000), tail]).astype(np.int64))
    assert law is not None
    assert 15 <= law.least <= 30
    assert law.exponent == pytest.approx(2.5, abs=0.15)


def test_equal_users_follow_no_power_law():
    assert power_law(np.full(100, 7)) is None
    assert power_law(np.arange(1, 6)) is None


def test_distances_by_hand():
    # Feature 0: all of user 0 at 0, all of user 1 at 2; together the deviation is 1. Feature 1 never varies.
    one = np.array([[0.0, 5.0], [0.0, 5.0]])
    other = np.array([[2.0, 5.0], [2.0, 5.0]])
    distances, features = feature_distances([one, other])
    assert distances.tolist() == [[0, 2], [2, 0]]
    assert features.tolist() == [2, 0]


def test_distances_do_not_depend_on_units():
    rng = np.random.default_rng(1)
    tables = [rng.normal(size=(30, 3)), rng.normal(size=(20, 3)) + 1]
    scaled = [table * [1, 1e6, 1e-6] + [0, 7, 0] for table in tables]
    assert feature_distances(scaled)[0] == pytest.approx(feature_distances(tables)[0])


def test_a_description_by_hand(tmp_path):
    found = describe_log(made_up_log(tmp_path))
    assert (found.entries, found.users, found.queries, found.documents) == (64, 3, 1, 1)
    assert found.clicks.tolist() == [40, 20, 4]
    assert found.half == 1  # 40 of 64
    assert found.first == 0
    assert found.last == 39 * 3600
    # Hourly entries 0 .. 39: 24 on the first day, 16 on the second; every other hour: 12 and 8.
    assert found.days.tolist() == [[24, 16], [12, 8], [4, 0]]
    assert found.burstiness[:2].tolist() == [-1, -1]
    assert np.isnan(found.burstiness[2])  # four entries tell nothing
    assert found.compared == ("u$0", "u$1", "u$2")
    assert found.power_law is None


def test_only_clicked_documents_are_compared(tmp_path):
    # What was not clicked is 9 for user 0 only; what was clicked is alike.
    log = made_up_log(tmp_path, counts=(30, 30))
    features = np.zeros((120, 3))
    features[0::2][log.user == 0] = 9
    for user in (0, 1):
        features[1::2, 0][log.user == user] = np.arange(30)
    found = describe_log(SearchLog(**{**log.__dict__, "features": features.astype(np.float32)}))
    assert found.mean_distance == 0
    features[1::2][log.user == 0] += 9
    found = describe_log(SearchLog(**{**log.__dict__, "features": features.astype(np.float32)}))
    assert found.mean_distance > 1
    assert found.by_chance < 0.5
    assert {name for name, _ in found.features} == {"f", "g", "h"}


@pytest.mark.long
def test_one_user_is_compared_with_nobody(tmp_path):
    found = describe_log(made_up_log(tmp_path, counts=(12,)))
    assert found.distances.tolist() == [[0]]
    assert math.isnan(found.mean_distance)
    assert json.loads(description_as_json(found))["by_chance"] is None
    draw_log(found, tmp_path / "one.png")


@pytest.mark.long
def test_it_is_shown_and_drawn(tmp_path):
    found = describe_log(made_up_log(tmp_path, counts=(40, 20, *[9, 8, 7, 6, 5, 4, 3, 2, 1] * 3)))
    text = io.StringIO()
    show(about_log(found), Console(file=text, width=200))
    shown = text.getvalue()
    assert "195 of 29 users" in shown  # 40 + 20 + 3 x 45
    assert "--exclude u$0" in shown
    assert "power law" in shown
    assert "1970-01-01 00:00 to" in shown
    for ending in ("png", "svg"):
        draw_log(found, tmp_path / f"log.{ending}")
    assert (tmp_path / "log.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "log.svg").read_bytes()
    assert b"<svg" in svg
    assert json.loads(description_as_json(found))["clicks"][:2] == [40, 20]

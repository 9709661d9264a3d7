"""Nobody adds more to a log than a person could."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.click_caps import EVERYWHERE, HOURLY, ROBOT, SHARE, ClickCaps, Cut, apply_caps, fair_share

NONE = {"robot": None, "clicks_list": None, "lists_hour": None, "clicks_hour": None, "share": None}


def cut_by(client, time, clicks, lengths=100, **limits):
    lists = np.broadcast_to(lengths, len(client))
    return apply_caps(ClickCaps(**NONE | limits), np.array(client), np.array(time), np.array(clicks), lists)


def test_without_limits_all_is_kept():
    kept, cut = cut_by([0] * 9, range(9), [50] * 9)
    assert kept.all()
    assert cut == {}
    kept, cut = apply_caps(ClickCaps(), *[np.empty(0, int)] * 4)
    assert len(kept) == 0
    assert cut == {}


def test_usual_people_are_within_the_usual_limits():
    rng = np.random.default_rng(1)
    client = rng.integers(50, size=2000)
    time, clicks = np.sort(rng.integers(30 * 86_400, size=2000)), rng.poisson(1, 2000)
    kept, cut = apply_caps(ClickCaps(), client, time, clicks, np.full(2000, 10))
    assert kept.all()
    assert cut == {}


def test_a_robot_is_left_out_with_all_its_lists():
    time = [*range(0, 40, 10), *range(100_000, 100_000 + 4 * 1300, 1300)]
    client = [1] * 4 + [0] * 4
    kept, cut = cut_by(client, time, [1] * 8, robot=3)
    assert kept.tolist() == [False] * 4 + [True] * 4, "four in forty seconds, and four in more than an hour"
    assert cut == {ROBOT: Cut(4, 4, 1)}
    kept, _ = cut_by([1] * 8, time, [1] * 8, robot=3)
    assert not kept.any(), "nothing else of it counts"


def test_a_list_that_was_clicked_everywhere():
    kept, cut = cut_by([0, 0, 1], [0, 1, 2], [10, 11, 50], clicks_list=10)
    assert kept.tolist() == [True, False, False]
    assert cut == {EVERYWHERE: Cut(2, 61, 2)}
    kept, cut = cut_by([0, 1, 2], [0, 1, 2], [3, 6, 6], lengths=[3, 6, 7], clicks_list=10)
    assert kept.tolist() == [True, False, True], "somebody opens all of three, but not of six"
    assert cut_by([1], [1], [6], lengths=[6])[0].all(), "without the rule"


def test_hours_of_a_client():
    client, time = [0, 0, 0, 1, 0], [0, 10, 20, 30, 3600]
    kept, cut = cut_by(client, time, [0] * 5, lists_hour=2)
    assert kept.tolist() == [True, True, False, True, True]
    assert cut == {HOURLY: Cut(1, 0, 1)}
    kept, cut = cut_by(client, time, [2, 2, 0, 5, 1], clicks_hour=3)
    assert kept.tolist() == [True, False, False, False, True], "lists behind the limit do not count, clicked or not"
    assert cut == {HOURLY: Cut(3, 7, 2)}


def test_one_client_with_half_of_all_clicks():
    client = np.tile([0, *range(1, 21)] + [0] * 19, 100)
    kept, cut = cut_by(client, np.arange(len(client)) * 7200, np.ones(len(client), int), share=0.1, least=5)
    own = np.bincount(client[kept])
    assert own[1:].tolist() == [100] * 20
    assert own[0] / own.sum() == pytest.approx(0.1, abs=0.001)
    assert cut == {SHARE: Cut(2000 - own[0], 2000 - own[0], 1)}
    assert kept[:21].all(), "the first ones count"


def test_small_logs_keep_what_they_have():
    kept, _ = cut_by([0] * 99 + [1], range(100), [1] * 100, share=0.1)
    assert kept.all(), "with fewer than ten clients, everybody has a larger share"
    assert fair_share(np.array([50.0, 2.0]), 0.1, least=10) == 10
    assert fair_share(np.empty(0), 0.1, least=10) == 10


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_ever_beyond_a_limit(seed):
    rng = np.random.default_rng(seed)
    lists = 3000
    client = rng.zipf(1.4, lists) % 40
    time = np.sort(rng.integers(0, 3600 * rng.integers(5, 100), lists))
    lengths = rng.integers(1, 12, lists)
    clicks = rng.binomial(lengths, rng.random(lists) ** 3)
    caps = ClickCaps(robot=None, clicks_list=6, lists_hour=9, clicks_hour=12, share=0.1, least=20)
    kept, cut = apply_caps(caps, client, time, clicks, lengths)
    assert sum(one.lists for one in cut.values()) == np.count_nonzero(~kept)
    assert sum(one.clicks for one in cut.values()) == clicks[~kept].sum()
    assert clicks[kept].max() <= 6
    hours = client[kept] * 1000 + time[kept] // 3600
    assert np.bincount(hours).max() <= 9
    assert np.bincount(hours, clicks[kept]).max() <= 12
    own = np.bincount(client[kept], clicks[kept])
    assert own.max() <= max(0.1 * own.sum(), 20) + 6, "but for the list with which the limit is reached"


def test_rules_count_what_earlier_ones_left():
    kept, cut = cut_by([0] * 5, [0, 1, 2, 3, 4], [99, 1, 1, 1, 1], clicks_list=10, lists_hour=3, clicks_hour=3)
    assert kept.tolist() == [False, True, True, True, False]
    assert {rule: one.lists for rule, one in cut.items()} == {EVERYWHERE: 1, HOURLY: 1}


@pytest.mark.parametrize("wrong", [{"robot": 0}, {"clicks_hour": -1}, {"share": 0}, {"share": 1.5}, {"least": 0}])
def test_limits_that_leave_nothing(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be "):
        ClickCaps(**wrong)

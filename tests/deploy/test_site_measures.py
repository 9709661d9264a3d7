"""Measures that sites report."""

from __future__ import annotations

import math

from fedrank.deploy.site_measures import as_columns
from tests.deploy.plans import made_plan


def test_means_stand_next_to_those_of_what_users_had():
    plan = made_plan(measures=["ndcg@10", "mrr"])
    found = as_columns({"clinic-a": {"ndcg@10": (3.0, 2.0, 4)}, "clinic-c": {"mrr": (0.0, 0.0, 0)}}, plan)
    assert found is not None
    assert found["client"] == [0, 2]
    assert found["queries"] == [4, 0]
    assert found["ndcg@10"][0] == 0.75
    assert found["ndcg@10 given"][0] == 0.5
    assert all(math.isnan(value) for value in (found["ndcg@10"][1], *found["mrr"], *found["mrr given"]))


def test_where_nobody_reports_there_is_no_table():
    assert as_columns({}, made_plan()) is None

"""Quality by client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Own
from fedrank.federated.quality import alike, quality_by_client
from fedrank.ranking.measures import per_query
from fedrank.ranking.rankers import Linear
from tests.made_up import made_up_data

DATA = made_up_data(queries=20, longest=20)


def test_one_model_on_everybodys_own_queries():
    clients = make_clients(DATA, 4, partition=Own(), seed=2)
    weights = np.arange(5.0)
    found = quality_by_client(["ndcg@10", "map"], weights, Linear(), clients)
    each = per_query(["ndcg@10", "map"], Linear().score(weights, DATA.features), DATA)
    for c in range(4):
        own = [
            q
            for q in clients.queries[clients.pools[c] : clients.pools[c + 1]]
            if len(set(DATA.grades[DATA.offsets[q] : DATA.offsets[q + 1]])) > 1
        ]
        assert found[:, c] == pytest.approx(np.nanmean(each[:, own], axis=1))
    assert not alike(clients)


def test_a_model_and_a_view_per_client():
    views = np.stack([DATA.grades, DATA.grades[::-1]])
    clients = replace(make_clients(DATA, 2), grades=views, judged=np.array([1, 0], dtype=np.int32))
    models = np.random.default_rng(1).standard_normal((2, 5))
    found = quality_by_client(["ndcg@10"], models, Linear(), clients)
    for c, view in enumerate((1, 0)):
        scores = Linear().score(models[c], DATA.features)
        values = per_query(["ndcg@10"], scores, DATA, grades=views[view])[0]
        ranked = [len(set(views[view, a:b])) > 1 for a, b in zip(DATA.offsets[:-1], DATA.offsets[1:], strict=True)]
        assert found[0, c] == pytest.approx(np.nanmean(values[ranked]))
    assert not alike(clients)


def test_clients_that_share_everything_are_alike():
    assert alike(make_clients(DATA, 5))
    assert alike(make_clients(DATA, 1, partition=Own()))


def test_one_grade_alone_says_nothing():
    from fedrank.federated.partition import Labels

    clients = make_clients(DATA, 3, partition=Labels())
    assert np.isnan(quality_by_client(["ndcg@10"], np.arange(5.0), Linear(), clients)).all()

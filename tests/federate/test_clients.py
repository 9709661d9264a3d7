"""The table of clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.federate.clients import make_clients
from fedrank.federate.partition import PARTITIONS, Own
from fedrank.rank.users import USERS, User
from tests.made_up import made_up_data

DATA = made_up_data(queries=23)


@settings(deadline=None, max_examples=30)
@given(count=st.integers(1, 23), seed=st.integers(0, 100))
def test_own_queries_are_dealt_out_once(count, seed):
    split = Own()(DATA, count, np.random.default_rng(seed))
    dealt = np.concatenate(split.pools)
    assert sorted(dealt.tolist()) == list(range(23))
    sizes = [len(pool) for pool in split.pools]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_every_client_has_queries(name):
    clients = make_clients(DATA, 7, partition=PARTITIONS[name](), seed=4)
    for c in range(7):
        assert clients.pools[clients.pool[c] + 1] > clients.pools[clients.pool[c]]


def test_more_clients_than_queries_is_refused():
    with pytest.raises(ValueError, match="24 clients cannot each own one of 23 queries"):
        make_clients(DATA, 24, partition=Own())


def test_lists_are_counted_around():
    clients = make_clients(DATA, 5, user=["perfect", "poison"], interactions=[1, 2, 3])
    assert clients.user.tolist() == [0, 1, 0, 1, 0]
    assert clients.interactions.tolist() == [1, 2, 3, 1, 2]
    assert clients.click.tolist() == [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]


def test_a_million_clients_share_one_pool():
    clients = make_clients(DATA, 1_000_000)
    assert len(clients.queries) == 23
    assert sum(column.nbytes for column in (clients.ids, clients.pool, clients.view, clients.user)) < 32e6


def test_rows_keep_ids():
    some = make_clients(DATA, 6).rows(np.array([4, 1]))
    assert some.ids.tolist() == [4, 1]
    assert len(some) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "0 clients"),
        ({"count": 2, "interactions": 0}, "nobody would search"),
        ({"count": 2, "interactions": [3, -1]}, "nobody would search"),
        ({"count": 2, "user": "nobody"}, "no user 'nobody'"),
        ({"count": 2, "user": User((0.0, 1.0), (0.0, 0.0))}, "for 2 grades, the data have 3"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_clients(DATA, **settings)


def test_a_scale_without_tables_says_what_to_do():
    data = made_up_data(top_grade=3)
    with pytest.raises(ValueError, match="the data have 4; give `click` and `stop`"):
        make_clients(data, 2)
    own = User((0.0, 0.3, 0.6, 1.0), (0.0,) * 4)
    assert make_clients(data, 2, user=own).click.shape == (1, 4)


def test_user_tables_are_those_of_the_papers():
    assert USERS["navigational"][3] == User((0.05, 0.5, 0.95), (0.2, 0.5, 0.9))
    assert USERS["poison"][5].click == (1.0, 0.8, 0.4, 0.2, 0.0)
    assert USERS["position-2"][3].attention.tolist() == [(1 / i) ** 2 for i in range(1, 11)]
    for tables in USERS.values():
        for levels, user in tables.items():
            assert len(user.click) == len(user.stop) == levels


@pytest.mark.parametrize(
    "user", [((0.5,), (0.5, 0.5), 0), ((1.5, 0), (0, 0), 0), ((0, 0), (0, -1), 0), ((0, 1), (0, 0), -1)]
)
def test_impossible_tables_are_refused(user):
    with pytest.raises(ValueError):
        User(*user)

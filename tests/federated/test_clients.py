"""The table of clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Dirichlet, Iid, Labels, Own, Shared, Split
from fedrank.ranking.click_models import CLICK_MODELS, ClickModel
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Chance
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


@pytest.mark.parametrize("partition", [Iid(), Own(), Labels(), Dirichlet(5.0), Shared(Own())])
def test_every_client_has_queries(partition):
    clients = make_clients(DATA, 6, partition=partition, seed=4)
    for c in range(6):
        assert clients.pools[clients.pool[c] + 1] > clients.pools[clients.pool[c]]


def test_more_clients_than_queries_is_refused():
    with pytest.raises(ValueError, match="24 clients need at least as many queries"):
        make_clients(DATA, 24, partition=Own())


def test_lists_are_counted_around():
    clients = make_clients(DATA, 5, click_model=["perfect", "poison"], interactions=[1, 2, 3])
    assert clients.click_model.tolist() == [0, 1, 0, 1, 0]
    assert clients.interactions.tolist() == [1, 2, 3, 1, 2]
    assert clients.click.tolist() == [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]


def test_every_interaction_draws_a_user():
    clients = make_clients(DATA, 3, click_model=["perfect", "poison"], click_model_per="interaction")
    assert clients.click_model.tolist() == [-1, -1, -1]
    assert clients.click.tolist() == [[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]


def test_drawn_users_are_a_mixture():
    # Whoever never clicks teaches nothing: of 400 single interactions, half must leave no update.
    silent, eager = ClickModel((0.0,) * 3, (0.0,) * 3), ClickModel((0.3, 0.3, 0.3), (0.0,) * 3)
    data = made_up_data(queries=8, longest=30, seed=3).select([7])
    fixed = make_clients(data, 400, click_model=eager, interactions=1)
    mixed = make_clients(data, 400, click_model=[silent, eager], interactions=1, click_model_per="interaction")

    def learning(clients):
        arrived = Pdgd()(np.zeros(5), clients, Chance(1, 1))
        return np.mean(arrived.updates.any(axis=1))

    assert learning(mixed) == pytest.approx(learning(fixed) / 2, abs=0.06)


def test_what_a_partition_rearranged_is_used():
    def reverse(data, count, rng):
        turned = data.select(np.arange(data.queries)[::-1])
        views = np.stack([turned.grades, np.zeros_like(turned.grades)])
        pools = (np.arange(2, dtype=np.int32), np.arange(2, 5, dtype=np.int32))
        return Split(pools, np.array([1, 0], np.int32), turned, views, np.array([0, 1], np.int32))

    clients = make_clients(DATA, 2, partition=reverse)
    assert clients.data.query_ids[0] == DATA.query_ids[-1]
    assert clients.pools.tolist() == [0, 2, 5]
    assert clients.pool.tolist() == [1, 0]
    assert clients.view.tolist() == [0, 1]
    assert clients.ideal.shape == (2, 23)
    assert clients.ideal[0].any()
    assert not clients.ideal[1].any()


def test_a_partition_without_queries_for_somebody_is_refused():
    def careless(data, count, rng):
        pools = (np.arange(3, dtype=np.int32), np.arange(0, dtype=np.int32))
        return Split(pools, np.array([0, 1][:count], np.int32))

    with pytest.raises(ValueError, match="client 1 of 2 has no queries"):
        make_clients(DATA, 2, partition=careless)
    with pytest.raises(ValueError, match="returned 2 clients instead of 3"):
        make_clients(DATA, 3, partition=careless)


def test_a_million_clients_share_one_pool():
    clients = make_clients(DATA, 1_000_000)
    assert len(clients.queries) == 23
    assert sum(column.nbytes for column in (clients.ids, clients.pool, clients.view, clients.click_model)) < 32e6


def test_rows_keep_ids():
    some = make_clients(DATA, 6).rows(np.array([4, 1]))
    assert some.ids.tolist() == [4, 1]
    assert len(some) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"count": 2, "interactions": 0}, "interactions must be at least 1"),
        ({"count": 2, "interactions": [3, -1]}, "interactions must be at least 1"),
        ({"count": 2, "click_model": "nobody"}, "unknown click model 'nobody'"),
        ({"count": 2, "click_model_per": "round"}, "click_model_per must be"),
        (
            {"count": 2, "click_model": ClickModel((0.0, 1.0), (0.0, 0.0))},
            "for 2 relevance labels, but the data have 3",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_clients(DATA, **settings)


def test_a_scale_without_tables_says_what_to_do():
    data = made_up_data(top_grade=3)
    with pytest.raises(ValueError, match="the data have 4; give `click` and `stop`"):
        make_clients(data, 2)
    own = ClickModel((0.0, 0.3, 0.6, 1.0), (0.0,) * 4)
    assert make_clients(data, 2, click_model=own).click.shape == (1, 4)


def test_user_tables_are_those_of_the_papers():
    assert CLICK_MODELS["navigational"][3] == ClickModel((0.05, 0.5, 0.95), (0.2, 0.5, 0.9))
    assert CLICK_MODELS["poison"][5].click == (1.0, 0.8, 0.4, 0.2, 0.0)
    assert CLICK_MODELS["position-2"][3].attention.tolist() == [(1 / i) ** 2 for i in range(1, 11)]
    for tables in CLICK_MODELS.values():
        for levels, click_model in tables.items():
            assert len(click_model.click) == len(click_model.stop) == levels


@pytest.mark.parametrize(
    "click_model", [((0.5,), (0.5, 0.5), 0), ((1.5, 0), (0, 0), 0), ((0, 0), (0, -1), 0), ((0, 1), (0, 0), -1)]
)
def test_impossible_tables_are_refused(click_model):
    with pytest.raises(ValueError):
        ClickModel(*click_model)

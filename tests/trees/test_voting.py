"""Votes for features: the forest of the slow oracle, nothing lost where all are elected, bad messages refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedrank.data.ranking import RankingData
from fedrank.trees.binning import bounded_edges
from fedrank.trees.boosters import Grower
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest
from fedrank.trees.growing_protocol import TreeClient, TreeServer
from fedrank.trees.histograms import Histograms
from fedrank.trees.releases import check_votes, decode_named, encode_named
from fedrank.trees.row_store import Voter, elected
from fedrank.wire import Label, Refused, pack, read_label
from tests.made_up import made_up_data
from tests.oracles import grow as slow
from tests.trees.test_growing_protocol import Unreliable, answering, parts_of

FEATURES = 9
RULES = Grower(trees=3, leaves=6, min_data_in_leaf=4, rate=0.3)
EDGES = bounded_edges(FEATURES, 0.0, 1.0, 17)
TRAIN = parts_of(made_up_data(queries=30, features=FEATURES), 3)
CHECKS = parts_of(made_up_data(queries=12, features=FEATURES, seed=1), 3)


def forest(vote: int, rules: Grower = RULES) -> list[tuple[str, float]]:
    """Grown by row stores in this process."""
    plan = plan_for(vote, rules)
    stores = [plan.store(part, check) for part, check in zip(TRAIN, CHECKS, strict=True)]
    return list(grow_forest(LocalClients(plan, stores)))


def plan_for(vote: int, rules: Grower = RULES, **settings) -> GrowPlan:
    return GrowPlan(rules, EDGES, 7, (0, 1, 2), vote=vote, **settings)


def clients_of(plan: GrowPlan) -> dict[int, TreeClient]:
    return {client: TreeClient(client, plan, TRAIN[client], CHECKS[client]) for client in plan.clients}


def told(tree: str, key: str) -> list[float]:
    return [float(word) for word in next(x for x in tree.split("\n") if x.startswith(f"{key}=")).split("=")[1].split()]


@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 3), st.sampled_from([1, 4]), st.booleans())
@settings(max_examples=8, deadline=None)
def test_forests_are_those_of_the_slow_oracle(seed, vote, clients, least, skewed):
    data = made_up_data(queries=6, features=5, longest=10, seed=seed)
    table = np.floor(data.features * 4) / 4 + 0.1  # few values
    data = RankingData(table.astype(np.float32), data.grades, data.offsets, data.query_ids)
    dealt = np.array_split(np.arange(6), [1, 3][: clients - 1] if skewed else clients)
    parts = [data.select(queries) for queries in dealt]
    edges = bounded_edges(5, 0.0, 1.0, 4)
    rules = Grower(trees=2, leaves=4, min_data_in_leaf=least, rate=0.3, min_sum_hessian=0.01, l2=0.1)
    plan = GrowPlan(rules, edges, 7, tuple(range(clients)), vote=vote)
    grown = [tree for tree, _ in grow_forest(LocalClients(plan, [plan.store(part) for part in parts]))]
    for tree, (cuts, values) in zip(grown, slow.grow_with_votes(parts, edges, rules, vote), strict=True):
        assert told(tree, "split_feature") == [feature for _, _, feature, _ in cuts]
        assert told(tree, "threshold") == [edges.values[feature][b] for _, _, feature, b in cuts]
        np.testing.assert_allclose(told(tree, "leaf_value"), values, rtol=1e-12)


def test_an_election_by_hand():
    # Each of two clients has one query of four documents, two of them relevant. The first feature tells the grade at
    # the first client, the second one at the other; the third tells it at neither.
    edges = bounded_edges(3, 0.0, 1.0, 2)  # one edge, at .5
    grades = np.array([1, 1, 0, 0], np.int8)
    tells, mute = grades.astype(np.float32), np.array([1, 0, 1, 0], np.float32)
    columns = [(tells, mute, mute), (mute, tells, mute)]
    rules = Grower(trees=1, leaves=2, min_data_in_leaf=2)
    plan, stores = GrowPlan(rules, edges, 1, (0, 1), vote=1), []
    for columns_of_one in columns:
        data = RankingData(np.stack(columns_of_one, axis=1), grades, np.array([0, 4]), np.array(["q"]))
        stores.append(plan.store(data))
        stores[-1].begin(0, 4)
    ballots = [Voter(store, 1, 2).ballots((0,))[0] for store in stores]
    assert [ballot.tolist() for ballot in ballots] == [[True, False, False], [False, True, False]]
    assert elected(np.sum(ballots, axis=0), np.arange(3), 1).tolist() == [0, 1]
    # Both alone gain the same, so that of the equal features the first is split by.
    [(tree, _)] = list(grow_forest(LocalClients(plan, stores)))
    assert told(tree, "split_feature") == [0]


@pytest.mark.parametrize(
    ("votes", "vote", "chosen"),
    [
        ([0, 0, 0, 0, 0], 1, [0, 1]),  # of equals the first
        ([1, 2, 0, 2, 1], 1, [1, 3]),
        ([0, 1, 0, 1, 1], 2, [0, 1, 3, 4]),  # also those for whom nobody votes, where there is room
        ([3, 0, 0, 0, 1], 4, [0, 1, 2, 3, 4]),
    ],
)
def test_who_is_elected(votes, vote, chosen):
    assert elected(np.array(votes), np.arange(5), vote).tolist() == chosen


@pytest.mark.parametrize("rules", [RULES, replace(RULES, feature_share=0.7, query_share=0.7), replace(RULES, depth=2)])
@pytest.mark.parametrize("vote", [1, 2])
def test_holders_messages_and_secure_sums_give_the_same_forest(rules, vote):
    here = forest(vote, rules)
    assert [tree for tree, _ in here] != [tree for tree, _ in forest(0, rules)]
    for secure, bits in ((False, 62), (True, 62), (True, 32)):
        plan = plan_for(vote, rules, secure=secure, bits=bits)
        server = TreeServer(plan, answering(clients_of(plan)))
        assert list(server.forest()) == here
        assert not server.refused


@pytest.mark.parametrize("vote", [5, 8, 9, 50])
@pytest.mark.parametrize("secure", [False, True])
def test_where_all_features_are_elected_nothing_is_lost(vote, secure):
    plan = plan_for(vote, secure=secure)
    assert list(TreeServer(plan, answering(clients_of(plan))).forest()) == forest(0) == forest(vote)


def test_fewer_bytes_go_up():
    sent = {}
    for vote in (0, 1, 50):
        plan = plan_for(vote)
        server = TreeServer(plan, answering(clients_of(plan)))
        list(server.forest())
        sent[vote] = server.bytes_up
    assert sent[1] < 0.7 * sent[0]
    assert sent[50] == sent[0]  # nobody is asked for a vote


@pytest.mark.parametrize("secure", [False, True])
def test_a_killed_server_and_a_client_that_drops_out_change_nothing(secure):
    plan, whole = plan_for(2, secure=secure), forest(2)
    clients = clients_of(plan)
    before = list(islice(TreeServer(plan, answering(clients)).forest(), 1))
    rest = TreeServer(plan, answering(clients, Unreliable(1, 2, 1))).forest(*zip(*before, strict=True))
    assert before + list(rest) == whole


def meddling(kind: str, how):
    """Client 1 answers something else to the first message of a kind."""
    done = []

    def meddle(client, asked, answer):
        if client == 1 and read_label(answer).kind == kind and not done:
            done.append(client)
            return how(read_label(answer), answer)
        return answer

    return meddle


def sent(**parts):
    return lambda label, answer: pack(label, {"number": np.array([0]), **parts})


@pytest.mark.parametrize(
    ("kind", "how", "message"),
    [
        ("grow-votes", sent(votes=b"\xff\x80"), "9 features are named, at most 2 are allowed"),
        ("grow-votes", sent(votes=b"\x00\x01"), "beyond the 9 of the tree is named"),
        ("grow-votes", sent(votes=b"\x80"), "need 2 bytes .got 1"),
        ("grow-votes", sent(votes=b"\x80\x00\x00"), "at most 2 were expected|too many"),
        (
            "grow-votes",
            lambda label, answer: pack(label, {"number": np.array([4]), "votes": b"\x80\x00"}),
            "was sent, expected 0",
        ),
        ("grow-votes", lambda label, answer: pack(replace(label, kind="grow-counts"), {}), "of kind grow-counts"),
        (
            "grow-counts",
            lambda label, answer: pack(label, {"number": np.array([1]), "rows": np.array([-1]), "counts 0": b""}),
            r"\[-1\] rows in leaves \[0\]",
        ),
        (
            "grow-counts",
            lambda label, answer: pack(label, {"number": np.array([1]), "rows": np.array([3]), "counts 0": b"\0" * 5}),
            "truncated",
        ),
    ],
)
def test_answers_that_do_not_fit_are_refused_by_name(kind, how, message):
    plan = plan_for(2)
    server = TreeServer(plan, answering(clients_of(plan), meddling(kind, how)))
    assert len(list(server.forest())) == 3
    assert list(server.refused) == [1]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(server.refused[1])


def test_parts_of_a_leaf_that_do_not_add_up_are_refused():
    plan = plan_for(2)
    clients = clients_of(plan)
    real = clients[1].store.rows_in
    clients[1].store.rows_in = lambda leaf: real(leaf) + (leaf > 0)
    server = TreeServer(plan, answering(clients))
    next(server.forest())
    assert "where it announced" in server.refused[1]


def test_votes_that_cannot_add_up_stop_a_secure_sum():
    plan = plan_for(2, secure=True)
    clients = clients_of(plan)
    clients[1]._voter._ballot = lambda leaf: np.ones(FEATURES, np.bool_)
    with pytest.raises(
        ValueError, match=r"have no valid sum: .*3 clients with 2 votes per leaf.*not reveal which client is at fault"
    ):
        list(TreeServer(plan, answering(clients)).forest())


def test_a_client_shows_what_was_elected_once_and_no_more():
    plan = plan_for(2)
    client = clients_of(plan)[0]
    begin = Label("grow-begin", plan.run, 0, 1)

    def show(features: bytes, number: int) -> bytes:
        return pack(replace(begin, kind="grow-show"), {"number": np.array([number]), "features": features})

    with pytest.raises(Refused, match="before a vote; request votes first"):
        client.answer(show(b"\x80\x00", 0))
    client.answer(pack(begin, {"shift": np.array([20]), "roster": b""}))
    with pytest.raises(Refused, match="5 features are named, at most 4 are allowed"):
        client.answer(show(b"\xf8\x00", 1))
    with pytest.raises(Refused, match="replayed, or too early"):
        client.answer(show(b"\xf0\x00", 2))
    answer = client.answer(show(b"\xf0\x00", 1))
    assert client.answer(show(b"\xf0\x00", 1)) == answer
    with pytest.raises(Refused, match="before a vote"):
        client.answer(show(b"\x0f\x00", 2))


@given(st.integers(1, 3), st.integers(1, 40), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_names_come_back_as_they_were(leaves, features, seed):
    named = np.random.default_rng(seed).random((leaves, features)) < 0.4
    np.testing.assert_array_equal(decode_named(encode_named(named), leaves, features, named.sum()), named)


def test_votes_are_counted_within_bounds():
    check_votes(np.array([[2, 1, 0], [0, 0, 3]]), 1, 3)
    for wrong in ([[-1, 1, 0]], [[4, 0, 0]], [[2, 2, 0]]):
        with pytest.raises(Refused, match="3 clients with 1 votes per leaf"):
            check_votes(np.array(wrong), 1, 3)


def test_settings_that_do_not_go_together():
    with pytest.raises(ValueError, match="vote must be 0 or more"):
        plan_for(-1)
    with pytest.raises(ValueError, match="vote must be 0 or more"):
        Histograms(vote=-1)
    with pytest.raises(ValueError, match="bits must be 62 with private"):
        Histograms(secure=True, bits=32, private="histograms")
    with pytest.raises(ValueError, match="votes have no noise"):
        Histograms(vote=3, private="histograms")
    assert plan_for(2).run != plan_for(3).run


def test_numbers_that_do_not_fit_32_bits_are_refused():
    plan = plan_for(0, replace(RULES, fraction=30), secure=True, bits=32)
    with pytest.raises(ValueError, match="exceeds its part of 32 bits"):
        list(TreeServer(plan, answering(clients_of(plan))).forest())

"""Growing between machines: the same forest to the last bit, pooled, federated and under a secure sum; bad input."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedrank.data.ranking import RankingData
from fedrank.privacy.secure_aggregation import new_identities
from fedrank.privacy.secure_series import SeriesClient, SeriesServer
from fedrank.trees.binning import bounded_edges
from fedrank.trees.boosters import BoosterState, Grower
from fedrank.trees.growing import GrowPlan, LocalClients, grow_alone, grow_forest
from fedrank.trees.growing_protocol import TreeClient, TreeServer, forest_from
from fedrank.trees.releases import Layout, check_histogram, decode, encode
from fedrank.trees.row_store import RowStore
from fedrank.wire import Label, Part, Refused, pack, read_label, unpack
from tests.made_up import made_up_data

RULES = Grower(trees=4, leaves=6, min_data_in_leaf=3, rate=0.3)
EDGES = bounded_edges(5, 0.0, 1.0, 33)
POOL = made_up_data(queries=40)
JUDGED = made_up_data(queries=12, seed=1)


def parts_of(data: RankingData, count: int) -> list[RankingData]:
    return [data.select(np.arange(first, data.queries, count)) for first in range(count)]


TRAIN, VALIDATION = parts_of(POOL, 3), parts_of(JUDGED, 3)


def plan_for(rules=RULES, **settings) -> GrowPlan:
    return GrowPlan(rules, EDGES, 7, (0, 1, 2), **settings)


def clients_of(plan: GrowPlan, identities=None) -> dict[int, TreeClient]:
    return {
        client: TreeClient(client, plan, TRAIN[client], VALIDATION[client], (identities or {}).get(client))
        for client in plan.clients
    }


def answering(clients, meddle=lambda client, asked, answer: answer):
    """Clients in this process; `meddle` may change an answer, or lose it (None)."""

    def ask(requests):
        answers = {}
        for client, content in requests.items():
            try:
                answer = meddle(client, content, clients[client].answer(content))
            except Refused:
                continue
            if answer is not None:
                answers[client] = answer
        return answers

    return ask


def pooled(rules=RULES):
    return [(step.tree, step.validation) for step in grow_alone(rules, POOL, JUDGED, 7, BoosterState(), EDGES)]


@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        replace(RULES, query_share=0.6, feature_share=0.7, lambda_norm=False),
        replace(RULES, depth=2, min_sum_hessian=0.4, l2=0.1),
        replace(RULES, trees=12, patience=2),
    ],
    ids=["plain", "shares", "depth", "patience"],
)
def test_pooled_federated_and_secure_forests_are_equal_to_the_last_bit(rules):
    alone = pooled(rules)
    plan = plan_for(rules)
    stores = [plan.store(train, validation) for train, validation in zip(TRAIN, VALIDATION, strict=True)]
    assert list(grow_forest(LocalClients(plan, stores))) == alone
    for secure in (False, True):
        plan = plan_for(rules, secure=secure)
        assert list(TreeServer(plan, answering(clients_of(plan))).forest()) == alone


def test_with_identity_keys_the_same():
    plan = plan_for(secure=True)
    identities = new_identities(plan.clients)
    server = TreeServer(plan, answering(clients_of(plan, identities)), identities[0].publics)
    assert list(server.forest()) == pooled()


def other_past(content, label):
    """The first tree with another value of a leaf."""
    if label.kind != "grow-past":
        return content
    text = unpack(content, label, {"trees": Part("|S", 2**20)})[1]["trees"]
    return pack(label, {"trees": re.sub(rb"(leaf_value=-?\d+\.)", rb"\g<1>9", text)})


def other_cut(content, label):
    if label.kind != "grow-cut":
        return content
    found = unpack(content, label, {"number": Part("<i8", 1), "cut": Part("<i4", 5)})[1]
    cut = found["cut"].copy()
    cut[3] = cut[3] - 1 if cut[3] else cut[3] + 1  # the bin
    return pack(label, {"number": found["number"], "cut": cut})


def other_shift(content, label):
    if label.kind != "grow-begin":
        return content
    found = unpack(content, label, {"shift": Part("<i8", 1), "roster": Part("|S", 2**20)})[1]
    return pack(label, {"shift": found["shift"] + 1, "roster": found["roster"]})


@pytest.mark.parametrize("change", [other_past, other_cut, other_shift])
def test_a_server_that_asks_clients_for_different_histograms_gets_random_numbers(change, monkeypatch):
    plan = plan_for(secure=True)
    clients, sums, add = clients_of(plan), [], SeriesServer.sum

    def ask(requests):
        asked = {client: change(one, read_label(one)) if client == 1 else one for client, one in requests.items()}
        return {client: clients[client].answer(content) for client, content in asked.items()}

    def total(self, number, size, messages):
        sums.append(add(self, number, size, messages))
        return sums[-1]

    monkeypatch.setattr(SeriesServer, "sum", total)
    with pytest.raises(ValueError, match="have no valid sum"):
        list(TreeServer(plan, ask).forest(*zip(*pooled()[:1], strict=True)))
    last = sums[-1].astype(np.uint64)
    ones = (last[:, None] >> np.arange(plan.bits, dtype=np.uint64) & np.uint64(1)).mean(axis=0)
    assert len(last) > 100
    assert np.all(np.abs(ones - 0.5) < 6 * 0.5 / len(last) ** 0.5)


def test_it_does_not_matter_who_holds_which_queries():
    one, other = plan_for(), plan_for()
    swapped = {client: TreeClient(client, other, TRAIN[2 - client], VALIDATION[2 - client]) for client in other.clients}
    assert list(TreeServer(one, answering(clients_of(one))).forest()) == list(
        TreeServer(other, answering(swapped)).forest()
    )


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("stopped", [1, 3])
def test_a_killed_server_goes_on_with_the_trees_it_has(secure, stopped):
    plan = plan_for(secure=secure)
    clients = clients_of(plan)
    before = list(islice(TreeServer(plan, answering(clients)).forest(), stopped))
    # The first client was killed as well, the others stand in the middle of a tree.
    clients[0] = clients_of(plan)[0]
    lost = TreeServer(plan, answering(clients, lambda client, asked, answer: _fail_at(asked, b"grow-cut", answer)))
    with pytest.raises(KeyboardInterrupt):
        list(lost.forest(*zip(*before, strict=True)))
    rest = list(TreeServer(plan, answering(clients)).forest(*zip(*before, strict=True)))
    assert before + rest == pooled()


def _fail_at(asked: bytes, kind: bytes, answer: bytes) -> bytes:
    if read_label(asked).kind == kind.decode():
        raise KeyboardInterrupt
    return answer


class Unreliable:
    """Loses the answers of one client from its n-th histogram on, so many times."""

    def __init__(self, client: int, after: int, times: int) -> None:
        self.client, self.after, self.times = client, after, times

    def __call__(self, client: int, asked: bytes, answer: bytes) -> bytes | None:
        if client != self.client or read_label(answer).kind != "grow-counts":
            return answer
        self.after -= 1
        if self.after < 0 and self.times > 0:
            self.times -= 1
            return None
        return answer


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_that_drops_out_and_comes_back_changes_nothing(secure):
    plan = plan_for(secure=secure)
    server = TreeServer(plan, answering(clients_of(plan), Unreliable(1, 3, 1)))
    assert list(server.forest()) == pooled()


def test_a_client_that_stays_away_is_left_out_from_the_tree_on_that_it_left():
    plan = plan_for()
    clients = clients_of(plan)
    away: list[int] = []

    def meddle(client, asked, answer):
        if client == 1 and read_label(asked).kind == "grow-cut" and read_label(asked).round == 2:
            away.append(1)
        return None if client == 1 and away else answer

    grown = list(TreeServer(plan, answering(clients, meddle)).forest())
    assert [tree for tree, _ in grown[:2]] == [tree for tree, _ in pooled()[:2]]
    # The third tree is what the others grow from there on.
    rest = LocalClients(plan, [plan.store(TRAIN[client]) for client in (0, 2)])
    rest.add(tree for tree, _ in grown[:2])
    again = list(grow_forest(rest, BoosterState(tuple(tree for tree, _ in grown[:2]), (0.5, 0.5))))
    assert [tree for tree, _ in again] == [tree for tree, _ in grown[2:]]


def test_under_a_secure_sum_all_must_come_back():
    plan = plan_for(secure=True)
    server = TreeServer(plan, answering(clients_of(plan), Unreliable(1, 1, 10**6)))
    with pytest.raises(ValueError, match="each time a client dropped out; the trees so far are saved"):
        list(server.forest())


def cheating(how):
    """Client 1 sends something else for the first histogram of the second tree."""

    def meddle(client, asked, answer):
        label = read_label(answer)
        if client == 1 and label.kind == "grow-counts" and label.round == 1 and read_label(asked).kind == "grow-begin":
            return how(label, answer)
        return answer

    return meddle


LAYOUT = Layout(EDGES, np.arange(5), POOL.documents.bit_length())


def histogram_of(change) -> bytes:
    """Of client 1's rows at the root, after a change [3, bins]."""
    store = RowStore(TRAIN[1], EDGES, RULES, 7)
    store.begin(0, LAYOUT.shift)
    values = LAYOUT.spread(store.histogram(0))
    change(values)
    held = (values != 0).any(axis=0)
    body = b"".join(column[held].astype("<i8").tobytes() for column in values)
    return bytes([0b111111]) + np.packbits(held).tobytes() + body


def _set(channel, value):
    def change(values):
        values[channel, np.argmax(values[2] > 0)] = value

    return change


def _shifted(values):
    first, second = np.flatnonzero(values[2, :33] > 0)[:2]
    values[0, first] += 5
    assert second > first


def sent(counts: bytes, rows: int | None = None):
    rows = TRAIN[1].documents if rows is None else rows
    return lambda label, answer: pack(label, {"number": np.array([0]), "rows": np.array([rows]), "counts": counts})


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (sent(histogram_of(_set(2, -1))), "negative number of rows"),
        (sent(histogram_of(_set(1, -1))), "negative hessians"),
        (sent(histogram_of(_set(2, 10**9))), r"rows, but \d+ were announced"),
        (sent(histogram_of(_set(0, 2**62))), "exceed any possible sum"),
        (sent(histogram_of(_shifted)), "different sums in different features"),
        (sent(histogram_of(lambda values: None), rows=10**7), "where it announced"),
        (sent(histogram_of(lambda values: None), rows=-1), "where it announced"),
        (sent(b"\0" * 5), "truncated"),
        (sent(histogram_of(lambda values: None) + b"x"), "1 extra bytes follow"),
        (lambda label, answer: answer[:-3], "checksum"),
        (lambda label, answer: pack(replace(label, sender=0), {}), "comes from 0"),
        (lambda label, answer: pack(replace(label, round=0), {}), "round 0, but round 1 was expected"),
        (lambda label, answer: pack(replace(label, attempt=9), {}), "attempt 9"),
        (lambda label, answer: pack(replace(label, run=bytes(16)), {}), "but run"),
        (
            lambda label, answer: pack(
                label, {"number": np.array([3]), "rows": np.array([1]), "counts": histogram_of(lambda values: None)}
            ),
            "message 3 of a tree was sent, expected 0",
        ),
        (lambda label, answer: pack(label, {"number": np.array([np.nan])}), "parts, but"),
        (
            lambda label, answer: pack(label, {"number": np.array([np.nan]), "rows": np.array([1]), "counts": b""}),
            "values of type <f8",
        ),
    ],
)
def test_what_is_no_histogram_is_refused_by_name_and_the_tree_grows_without_it(how, message):
    plan = plan_for()
    server = TreeServer(plan, answering(clients_of(plan), cheating(how)))
    grown = list(server.forest())
    assert len(grown) == 4
    assert grown[0] == pooled()[0]
    assert list(server.refused) == [1]
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(server.refused[1])


def test_a_secure_sum_that_is_no_histogram_stops_the_forest():
    plan = plan_for(secure=True)
    clients = clients_of(plan)
    real = clients[1].store.histogram

    def lying(leaf):
        packed = real(leaf)
        if clients[1].trees == 1:
            packed[0, 0, 1] -= 10**6
        return packed

    clients[1].store.histogram = lying
    grown = []
    with pytest.raises(ValueError, match=r"have no valid sum: .*not reveal which client is at fault"):
        grown.extend(TreeServer(plan, answering(clients)).forest())


def test_other_edges_or_features_are_refused():
    other = GrowPlan(RULES, bounded_edges(5, 0.0, 2.0, 33), 7, (0, 1, 2))
    clients = {client: TreeClient(client, other, TRAIN[client]) for client in other.clients}
    plan = plan_for()
    with pytest.raises(ValueError, match="not all clients of the plan joined: client 0: no answer"):
        list(TreeServer(plan, answering(clients)).forest())
    message = pack(Label("grow-plan", other.run, 0), {"features": np.array([4]), "edges": plan.edges.digest})
    with pytest.raises(Refused, match="client 1 have different bin edges"):
        clients[1].answer(message)
    with pytest.raises(ValueError, match="5 features, but the bin edges are for 4"):
        TreeClient(0, GrowPlan(RULES, bounded_edges(4, 0, 1), 7, (0, 1)), TRAIN[0])


def recorded(plan):
    """Everything that client 0 was asked, in order, and a fresh client."""
    asked = []

    def meddle(client, content, answer):
        if client == 0:
            asked.append(content)
        return answer

    list(TreeServer(plan, answering(clients_of(plan), meddle)).forest())
    return asked


@pytest.mark.parametrize("secure", [False, True])
def test_a_client_refuses_replays_and_what_is_out_of_order(secure):
    plan = plan_for(secure=secure)
    asked = recorded(plan)
    kinds = [read_label(content).kind for content in asked]
    if not secure:  # there, rosters hold the keys of those who were asked then
        client = clients_of(plan)[0]
        for content in asked[: kinds.index("grow-end")]:
            answer = client.answer(content)
            assert client.answer(content) == answer  # asked again, it is the same message
        with pytest.raises(Refused, match="replayed"):
            client.answer(asked[kinds.index("grow-begin")])
        with pytest.raises(Refused, match="replayed, or too early"):
            client.answer(asked[kinds.index("grow-cut")])
    client = clients_of(plan)[0]
    with pytest.raises(Refused, match="is not the current one"):
        client.answer(asked[kinds.index("grow-cut")])
    later = next(content for content in asked if read_label(content).round == 2)
    with pytest.raises(Refused, match="send it the forest so far"):
        client.answer(later)
    with pytest.raises(Refused, match="unknown kind of message"):
        client.answer(pack(Label("hello", plan.run, 0), {}))
    with pytest.raises(Refused, match="run"):
        client.answer(recorded(replace(plan, seed=8))[0])


@pytest.mark.parametrize(
    "cut",
    [(0, 1, 9, 1, -1), (0, 1, 0, 99, -1), (3, 1, 0, 1, -1), (0, 2, 0, 1, -1), (0, 1, 0, 1, 5), (-1, 1, 0, 1, -1)],
)
def test_a_client_refuses_cuts_that_cut_nothing(cut):
    plan = plan_for()
    client = clients_of(plan)[0]
    begin = Label("grow-begin", plan.run, 0, 1)
    client.answer(pack(begin, {"shift": np.array([20]), "roster": b""}))
    content = pack(replace(begin, kind="grow-cut"), {"number": np.array([1]), "cut": np.array(cut, dtype=np.int32)})
    with pytest.raises(Refused, match="is not a valid split"):
        client.answer(content)


def test_one_client_under_a_secure_sum_is_refused():
    with pytest.raises(ValueError, match="the sum of one is its own numbers"):
        GrowPlan(RULES, EDGES, 7, (0,), secure=True)
    with pytest.raises(ValueError, match="the sum of one"):
        SeriesClient(0, b"s", 1, 32)
    with pytest.raises(ValueError, match="the sum of one"):
        SeriesServer(b"s", [0], 32)


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 20), st.integers(0, 10**6), st.sampled_from([32, 62]))
@settings(max_examples=20, deadline=None)
def test_a_series_adds_up_and_its_messages_look_like_chance(count, messages, size, seed, bits):
    rng = np.random.default_rng(seed)
    server = SeriesServer(b"session", range(count), bits)
    clients = [SeriesClient(client, b"session", count, bits) for client in range(count)]
    for client in clients:
        server.receive_advertisement(client.advertise())
    roster = server.roster()
    for client in clients:
        client.meet(roster)
    seen = set()
    for number in range(messages):
        values = rng.integers(-(2**20), 2**20, (count, size))
        masked = {client.id: client.masked(number, values[client.id]) for client in clients}
        np.testing.assert_array_equal(server.sum(number, size, masked), values.sum(axis=0))
        assert not seen & set(masked.values())
        seen |= set(masked.values())
        with pytest.raises(ValueError, match="its next message is"):
            clients[0].masked(number, values[0])
        with pytest.raises(ValueError, match="nothing is opened"):
            server.sum(number, size, {0: masked[0]})
    same = [clients[0].masked(messages + i, np.zeros(200, np.int64)) for i in range(2)]
    assert same[0][-800:] != same[1][-800:]


def test_bytes_of_a_tree_are_fewer_than_eight_a_bin():
    plan, up, down = plan_for(), [], []

    def count(client, asked, answer):
        up.append(len(answer))
        down.append(len(asked))
        return answer

    server = TreeServer(plan, answering(clients_of(plan), count))
    list(server.forest())
    assert (server.bytes_up, server.bytes_down) == (sum(up), sum(down))
    bins = EDGES.features * EDGES.bins
    assert server.bytes_up < 4 * 3 * RULES.leaves * (8 * bins + 300)


@given(st.integers(0, 10**6), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_histograms_come_back_as_they_were(seed, features):
    data = made_up_data(queries=3, features=features, seed=seed)
    edges = bounded_edges(features, 0, 1, 11)
    store = RowStore(data, edges, RULES, 1)
    layout = Layout(edges, np.arange(features), 20)
    store.begin(0, 20)
    packed = store.histogram(0)
    again = decode(encode(packed, layout), layout, data.documents)
    np.testing.assert_array_equal(layout.spread(again), layout.spread(packed))
    np.testing.assert_array_equal(again.reshape(-1, 256, 2)[:features], packed.reshape(-1, 256, 2)[:features])


def test_a_forest_for_everybody():
    plan = plan_for()
    texts = [text for text, _ in TreeServer(plan, answering(clients_of(plan))).forest()]
    forest = forest_from(texts, POOL, plan)
    assert len(forest) == 4
    assert np.ptp(forest.score(POOL)) > 0


def test_many_features_do_not_make_large_sums_wrong():
    """Each feature counts the same rows: what bounds a sum are its own bins, however many features there are."""
    layout = Layout(bounded_edges(220, 0, 1, 64), np.arange(220), 19)
    values = np.zeros((3, layout.bins), np.int64)
    values[:, layout.starts] = np.array([[2**40], [2**30], [400_000]])
    check_histogram(values, layout, 400_000)


@pytest.mark.parametrize("gradient", [-(2**63), 2**63 - 1, -(2**60), 2**60])
def test_gradients_that_would_run_over_are_refused(gradient):
    layout = Layout(bounded_edges(2, 0, 1, 4), np.arange(2), 4)
    values = np.zeros((3, layout.bins), np.int64)
    values[0, layout.starts], values[2, layout.starts] = gradient, 3  # the same in both features
    with pytest.raises(Refused, match="exceed any possible sum"):
        check_histogram(values, layout, 3)

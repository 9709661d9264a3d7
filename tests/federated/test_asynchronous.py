"""Updates that arrive when they did: order, mixing, windows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.ranking import RankingData
from fedrank.federated.asynchronous import FedAsync, FedBuff, Sync, schedule
from fedrank.federated.asynchronous_simulation import simulate_arrivals
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import Scaffold
from fedrank.federated.partition import Own, Users
from fedrank.federated.server import RoundError
from fedrank.privacy.mechanisms import Gaussian, SecureAggregation
from fedrank.privacy.noise import GridNoise
from fedrank.privacy.secure_messages import message_bytes
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION, Learned, Observed


def log_data(who, when=None, features=1, length=3, seed=0) -> RankingData:
    """Queries of a log; the first document is the clicked one."""
    table = np.random.default_rng(seed).random((len(who) * length, features), dtype=np.float32)
    when = np.arange(len(who)) if when is None else when
    return RankingData(
        table,
        np.tile(np.eye(1, length, dtype=np.int8)[0], len(who)),
        np.arange(len(who) + 1) * length,
        np.arange(len(who)).astype(str),
        who=np.array(who, dtype=np.int32),
        when=np.array(when, dtype=np.int64),
    )


def users_of(data, interactions=2, shuffled=False, seed=1):
    count = len(np.unique(data.who))
    return make_clients(data, count, partition=Users(shuffled), interactions=interactions, seed=seed)


@dataclass(frozen=True)
class Steps:
    """Client 0 always moves by 1, client 1 by 3."""

    ranker: Linear = field(default_factory=Linear)
    broken: int = -1  # whose updates are no numbers

    def __call__(self, start, clients, chance, correction=NO_CORRECTION, threads=1):
        moves = np.where(clients.ids == self.broken, np.nan, np.where(clients.ids == 0, 1.0, 3.0))
        return Learned(moves.astype(np.float32)[:, None], Observed(moves))


# Batches of two end at entries 1 (client 0), 4 (client 1), 5 (client 0) and 8 (client 1); entry 6 is left over.
FOUR = users_of(log_data([0, 0, 1, 0, 1, 0, 0, 1, 1]))


def models(rule, learner=None, clients=FOUR, rounds=100):
    federation = Federation(learner or Steps())
    return [float(outcome.weights[0]) for outcome in simulate_arrivals(federation, rule, clients, rounds)]


def test_batches_arrive_when_their_last_query_was_asked():
    plan = schedule(FOUR, FedAsync())
    assert plan.rows.tolist() == [0, 1, 0, 1]
    assert plan.at.tolist() == [0, 0, 2, 2]
    assert plan.until.tolist() == [2, 3, 4, 4]
    assert plan.participations(3, 2).tolist() == [2, 1]
    in_step = schedule(FOUR, Sync())
    assert [in_step.cohort(round).tolist() for round in (1, 2)] == [[0, 1], [0, 1]]


def test_in_step_those_who_have_no_batch_left_are_skipped():
    clients = users_of(log_data([0, 0, 0, 0, 1, 1, 0, 0]))
    plan = schedule(clients, Sync())
    assert [plan.cohort(round).tolist() for round in (1, 2, 3)] == [[0, 1], [0], [0]]
    assert models(Sync(), clients=clients) == [(1 + 3) / 2, 2 + 1, 3 + 1]
    # Who never receives goes on from its own model, and the mean is of the models that come.
    assert models(Sync(receive=False), clients=clients) == [(1 + 3) / 2, 1 + 1, 2 + 1]


def test_ties_in_time_go_by_client():
    clients = users_of(log_data([0, 1, 1, 0], when=[5, 5, 5, 5]))
    assert schedule(clients, FedAsync()).rows.tolist() == [0, 1]


def test_the_paper_by_hand():
    first = (1 - 1 / 2) * 0 + 1 / 2 * 1  # r = 1
    second = (1 - 1 / 3) * first + 1 / 3 * 3  # r = 2: client 1 still has the model of the beginning
    third = (1 - 1 / 3) * second + 1 / 3 * (first + 1)  # r = 3 - 1: client 0 has the model it got when it sent
    fourth = (1 - 1 / 3) * third + 1 / 3 * (second + 3)  # r = 4 - 2
    assert models(FedAsync()) == pytest.approx([first, second, third, fourth], rel=1e-12)


def test_clients_that_never_receive_by_hand():
    first = 1 / 2 * 1
    second = 2 / 3 * first + 1 / 3 * 3
    third = 2 / 3 * second + 1 / 3 * (1 + 1)  # client 0 goes on from its own model
    fourth = 2 / 3 * third + 1 / 3 * (3 + 3)
    assert models(FedAsync(receive=False)) == pytest.approx([first, second, third, fourth], rel=1e-12)
    assert models(Sync(receive=False)) == [2, 4]
    [*_, last] = simulate_arrivals(Federation(Steps()), FedAsync(receive=False), FOUR, 100)
    assert last.bytes_down == 0
    assert last.state.held[:, 0].tolist() == [2, 6]


@pytest.mark.parametrize(
    ("rule", "shares"),
    [
        (FedAsync("constant", 0.6), [0.6, 0.6, 0.6, 0.6]),
        (FedAsync("polynomial", 0.6, exponent=0.5), [0.6, 0.6 / 2**0.5, 0.6 / 3**0.5, 0.3]),
        (FedAsync("hinge", 0.6, slope=10, patience=1), [0.6, 0.6, 0.6 / 11, 0.6 / 21]),
        (FedAsync(mixing=0.5), [0.25, 0.5 / 3, 0.125, 0.1]),
    ],
)
def test_shares_by_age(rule, shares):
    assert [rule.share(r) for r in (1, 2, 3, 4)] == pytest.approx(shares)


def test_a_buffer_by_hand():
    # Client 0 synchronised before the model moved for the first time, client 1 after it.
    moved = (1 + 3) / 2
    again = moved + 0.5 * (1 / (1 + 1) + 3) / 2
    assert models(FedBuff(2, exponent=1.0)) == pytest.approx([0, moved, moved, moved + (again - moved) / 0.5])
    assert models(FedBuff(2, rate=0.5, exponent=1.0)) == pytest.approx([0, moved / 2, moved / 2, moved / 2 + again - 2])
    assert models(FedBuff(3, exponent=0.0)) == pytest.approx([0, 0, (1 + 3 + 1) / 3, 5 / 3])


def test_what_is_counted():
    one, two, *_ = simulate_arrivals(Federation(Steps()), FedAsync(), FOUR, 100)
    assert (one.round, one.interactions, one.bytes_up, one.bytes_down, one.online) == (1, 2, 4, 4, 1.0)
    assert (two.round, two.online) == (2, 3.0)
    [together, _] = simulate_arrivals(Federation(Steps()), Sync(), FOUR, 100)
    assert (together.interactions, together.bytes_up, together.online) == (4, 8, 2.0)


def test_an_update_that_is_no_number_is_left_out():
    outcomes = list(simulate_arrivals(Federation(Steps(broken=1)), FedAsync(), FOUR, 100))
    assert [outcome.excluded for outcome in outcomes] == [(), (1,), (), (1,)]
    assert np.isfinite(outcomes[-1].weights).all()
    assert [outcome.excluded for outcome in simulate_arrivals(Federation(Steps(broken=1)), Sync(), FOUR, 1)] == [(1,)]
    alone = users_of(log_data([0, 0]))
    with pytest.raises(RoundError, match="not finite"):
        list(simulate_arrivals(Federation(Steps(broken=0)), Sync(), alone, 1))


# Clients that wait for each other, two by two: 0 and 1, 0 and 1 again, then 2 and 0.
IN_TWOS = users_of(log_data([0, 1, 0, 1, 2, 0]), interactions=1)


def test_a_buffer_that_clients_wait_for_by_hand():
    # Client 2 still has the model of the beginning, which has moved twice since.
    expected = [(1 + 3) / 2, 2 * (1 + 3) / 2, 4 + (1 / (1 + 2) * 3 + 1) / 2]
    assert models(FedBuff(2, exponent=1.0, wait=True), clients=IN_TWOS) == pytest.approx(expected)
    half = models(FedBuff(2, rate=0.5, exponent=1.0, wait=True), clients=IN_TWOS)
    assert half == pytest.approx([value / 2 for value in expected])


def test_who_waits_goes_on_and_sends_once():
    # Updates of client 0 end at entries 1 and 3, before client 1 has its first; entry 10 is left over.
    clients = users_of(log_data([0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0]))
    plan = schedule(clients, FedBuff(2, wait=True))
    assert [plan.cohort(round).tolist() for round in (1, 2)] == [[0, 1], [0, 1]]
    assert plan.at.tolist() == [0, 0, 4, 2]
    assert plan.searches.tolist() == [4, 2, 2, 2]
    assert plan.participations(10, 2).tolist() == [2, 2]
    one, two = simulate_arrivals(Federation(Steps()), FedBuff(2, wait=True), clients, 100)
    assert (one.interactions, two.interactions) == (6, 4)
    with pytest.raises(ValueError, match="only 2 clients ever have an update, so a buffer of 3 is never full"):
        schedule(clients, FedBuff(3, wait=True))


def test_an_update_that_is_no_number_is_left_out_of_a_buffer():
    [one, *_] = simulate_arrivals(Federation(Steps(broken=1)), FedBuff(2, wait=True), IN_TWOS, 100)
    assert (one.excluded, one.weights.tolist()) == ((1,), [1 / 2])


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))


@pytest.mark.parametrize("how", ["ideal", "protocol"])
@pytest.mark.parametrize("cap", [1, 4])
def test_a_secure_sum_by_hand(silent, how, cap):
    if how == "protocol":
        pytest.importorskip("cryptography")
    # A move of 3 is shortened to 2 first, and counts less by its age then; a client with 1 search of 4 counts a fourth.
    mechanism = Gaussian(2.0, 1.0, SecureAggregation(sum=how), cap=cap)
    rule = FedBuff(2, exponent=1.0, wait=True)
    outcomes = []
    for outcome in simulate_arrivals(Federation(Steps(), mechanism=mechanism), rule, IN_TWOS, 100):
        outcomes.append((float(outcome.weights[0]), float(outcome.state.held[2, 0]), outcome.bytes_up))
    expected = np.cumsum([(1 + 2) / 2, (1 + 2) / 2, (1 / 3 * 2 + 1) / 2]) / cap
    weights, held, sent = map(list, zip(*outcomes, strict=True))
    assert weights == pytest.approx(expected.tolist(), abs=1e-6)
    assert held == [0, 0, weights[-1]], "client 2 receives the model when it sends"
    assert sent == [2 * message_bytes(2, 1, 32)] * 3


def test_noise_is_in_the_secure_sum():
    mechanism = Gaussian(2.0, 1.0, SecureAggregation(sum="ideal"))
    rule = FedBuff(2, wait=True)
    federation = Federation(Steps(), mechanism=mechanism)
    draws = [next(simulate_arrivals(federation, rule, IN_TWOS, 1)).weights[0] for _ in range(300)]
    # At least a half of two clients must be honest: each adds the whole noise, 2, and the sum is divided by 2.
    assert np.std(draws) == pytest.approx(2 * 2**0.5 / 2, rel=0.25)
    assert np.mean(draws) == pytest.approx((1 + 2) / 2, abs=0.5)


class Journal:
    """Notes nothing; but who has one looks at a state when the next is made."""

    def kept(self, round):
        return None

    def cohort(self, round, draw):
        return draw(round)

    def keep(self, round, change):
        pass


RULES = [
    Sync(), Sync(receive=False), FedAsync(), FedAsync("hinge", 0.5, receive=False), FedBuff(3),
    FedBuff(2, receive=False), FedBuff(2, wait=True), FedBuff(2, wait=True, receive=False),
]  # fmt: skip
# Two users have an update at least.
logs = st.lists(st.integers(0, 3), min_size=12, max_size=40).filter(
    lambda who: sorted(np.bincount(who, minlength=4))[2] >= 2
)


def everything(outcome):
    state = outcome.state
    return [outcome.weights.copy(), state.held.copy(), *(array.copy() for array in state.rule.values())]


@settings(deadline=None, max_examples=25)
@given(who=logs, rule=st.sampled_from(RULES), cut=st.integers(1, 8), width=st.integers(1, 5))
def test_windows_and_stops_change_nothing(who, rule, cut, width):
    clients = users_of(log_data(who, features=3, length=6))
    one_by_one = [everything(each) for each in simulate_arrivals(Federation(), rule, clients, 100, window=1)]
    in_windows = [everything(each) for each in simulate_arrivals(Federation(), rule, clients, 100, window=width)]
    for before, after in zip(one_by_one, in_windows, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))
    state = None
    for outcome in simulate_arrivals(Federation(), rule, clients, cut):
        state = outcome.state
    resumed = [everything(each) for each in simulate_arrivals(Federation(), rule, clients, 100, state=state)]
    for before, after in zip(one_by_one[cut:], resumed, strict=True):
        assert all(np.array_equal(*pair) for pair in zip(before, after, strict=True))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_with_a_journal_a_state_outlives_the_next_round(rule):
    clients = users_of(log_data([0, 1, 0, 2, 2, 0, 1, 1, 0, 0, 1, 2, 2, 0, 1, 0, 0, 1, 1], features=3, length=6))
    expected = [everything(each) for each in simulate_arrivals(Federation(), rule, clients, 100)]
    outcomes = []
    for outcome in simulate_arrivals(Federation(), rule, clients, 100, journal=Journal()):
        outcomes.append(outcome)
        for late, seen in zip(expected[: len(outcomes)][-2:], outcomes[-2:], strict=True):
            assert all(np.array_equal(*pair) for pair in zip(late, everything(seen), strict=True))
    assert len(outcomes) == len(expected) >= 3
    for before, after in zip(outcomes, outcomes[2:], strict=False):
        assert np.shares_memory(before.state.held, after.state.held), "nothing is copied as a whole"


@settings(deadline=None, max_examples=15)
@given(who=logs, receive=st.booleans())
def test_waiting_as_a_slow_loop(who, receive):
    clients = users_of(log_data(who, features=3, length=6))
    events = []
    for c in range(len(clients)):
        pool = clients.queries[clients.pools[c] : clients.pools[c + 1]].tolist()
        events += [(pool[2 * batch + 1], c, 2 * batch) for batch in range(len(pool) // 2)]
    model, moves = np.zeros(3), 0
    held, since, waiting = {}, {}, {}
    for _, c, at in sorted(events):
        waiting.setdefault(c, []).append(at)
        if len(waiting) < 2:
            continue
        total, own = np.zeros(3), {}
        for one, places in waiting.items():
            start = held.get(one, np.zeros(3))
            row = clients.rows(slice(one, one + 1))
            row = dataclasses.replace(row, at=np.array(places[:1]), interactions=np.array([2 * len(places)]))
            update = Pdgd()(start, row, Chance(1, 0)).updates[0].astype(float)
            own[one] = start + update
            total += (1 + moves - since.get(one, 0)) ** -0.5 * update
        model, moves = model + total / 2, moves + 1
        for one in waiting:
            held[one], since[one] = (model if receive else own[one]), moves
        waiting = {}
    *_, last = simulate_arrivals(Federation(), FedBuff(2, receive=receive, wait=True), clients, 1000)
    assert last.round == moves
    assert last.weights == pytest.approx(model, rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(who=logs, receive=st.booleans(), shuffled=st.booleans())
def test_the_paper_as_a_slow_loop(who, receive, shuffled):
    data = log_data(who, when=np.arange(len(who)) // 2, features=3, length=6)
    clients = users_of(data, shuffled=shuffled)
    events = []
    for c in range(len(clients)):
        pool = clients.queries[clients.pools[c] : clients.pools[c + 1]].tolist()
        for batch in range(len(pool) // 2):
            events.append((data.when[pool[2 * batch + 1]], c, 2 * batch))
    model = np.zeros(3)
    held, since = {}, {}
    for number, (_, c, at) in enumerate(sorted(events), start=1):
        start = held.get(c, np.zeros(3))
        one = dataclasses.replace(clients.rows(slice(c, c + 1)), at=np.array([at]))
        own = start + Pdgd()(start, one, Chance(1, 0)).updates[0].astype(float)
        share = 1 / (1 + number - since.get(c, 0))
        model = (1 - share) * model + share * own
        held[c], since[c] = (model if receive else own), number
    *_, last = simulate_arrivals(Federation(), FedAsync(receive=receive), clients, 1000)
    assert last.round == len(events)
    assert last.weights == pytest.approx(model, rel=1e-9, abs=1e-12)


def test_windows_are_as_long_as_nobody_sends_twice():
    calls = []

    @dataclass(frozen=True)
    class Counted(Steps):
        def __call__(self, start, clients, chance, correction=NO_CORRECTION, threads=1):
            calls.append(clients.ids.tolist())
            return super().__call__(start, clients, chance, correction, threads)

    models(FedAsync(), Counted(), users_of(log_data([0, 1, 2, 2, 0, 0, 1]), interactions=1))
    assert calls == [[0, 1, 2], [2, 0], [0, 1]]  # clients are numbered by how much they searched: as they are here


def test_users_become_clients_by_how_much_they_searched():
    split = Users()(log_data([5, 5, 7, 9, 9, 9]), 2, np.random.default_rng(0))
    assert [pool.tolist() for pool in split.pools] == [[3, 4, 5], [0, 1]]
    with pytest.raises(ValueError, match="4 clients, but the training queries are of 3 users"):
        Users()(log_data([5, 5, 7, 9, 9, 9]), 4, np.random.default_rng(0))


def test_shuffled_users_keep_their_number_of_queries():
    data = log_data([0] * 30 + [1] * 20 + [2] * 10)
    split = Users(shuffled=True)(data, 2, np.random.default_rng(0))
    assert [len(pool) for pool in split.pools] == [30, 20]
    assert sorted(np.concatenate(split.pools).tolist()) == list(range(50)), "nothing of user 2"
    for pool in split.pools:
        assert np.all(np.diff(pool) > 0), "in order of time"
        assert 3 < np.sum(data.who[pool] == 0) < 27


def test_what_cannot_be():
    plain = dataclasses.replace(FOUR.data, who=FOUR.data.who[:0], when=FOUR.data.when[:0])
    with pytest.raises(ValueError, match="has no users of queries"):
        make_clients(plain, 2, partition=Users())
    clients = make_clients(plain, 2, partition=Own(), interactions=2)
    with pytest.raises(ValueError, match="has no times of queries"):
        schedule(clients, FedAsync())
    assert schedule(clients, Sync()).rounds == 2
    with pytest.raises(ValueError, match="no client has the 50 queries of one update"):
        schedule(users_of(FOUR.data, interactions=50), FedAsync())
    with pytest.raises(ValueError, match="local: asynchronous clients cannot have their own controls or weights"):
        list(simulate_arrivals(Federation(local=Scaffold()), FedAsync(), FOUR, 1))
    with pytest.raises(ValueError, match="users and 9 times for 9 queries"):
        dataclasses.replace(FOUR.data, who=FOUR.data.who[:3])


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (FedAsync, {"mixing": 0.0}, "mixing must be greater than 0"),
        (FedAsync, {"staleness": "old"}, "staleness must be"),
        (FedAsync, {"slope": -1.0}, "slope must be at least 0"),
        (FedBuff, {"size": 0}, "size must be at least 1"),
        (FedBuff, {"rate": 0.0}, "rate must be a finite positive number"),
        (FedBuff, {"exponent": -1.0}, "exponent must be at least 0"),
    ],
)
def test_settings_that_make_no_sense(kind, wrong, said):
    with pytest.raises(ValueError, match=said):
        kind(**wrong)

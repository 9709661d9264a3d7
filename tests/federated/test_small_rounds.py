"""Many rounds in one call are, bit for bit, what one round after the other gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest

import fedrank.federated.backends as backends
import fedrank.federated.round as round_module
import fedrank.federated.small_rounds as small_module
from fedrank import kernels
from fedrank.attacks.poison import SignFlip
from fedrank.federated.aggregators import Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedProx
from fedrank.federated.partition import Own
from fedrank.federated.robust import Median
from fedrank.federated.round import first_state, taking_part
from fedrank.federated.server import RoundError, State
from fedrank.federated.server_optimizers import Adam, Add, Momentum
from fedrank.federated.simulation import federated_round, simulate
from fedrank.federated.small_rounds import SMALL, SmallRounds, small_rounds
from fedrank.privacy.mechanisms import Gaussian
from fedrank.ranking.learners import LambdaRank, Pdgd
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.seeds import Chance, key_for, keys_for
from tests.made_up import made_up_data

DATA = made_up_data(queries=40)


@pytest.fixture(autouse=True)
def few_are_enough(monkeypatch):
    monkeypatch.setattr(backends, "ENOUGH_ROUNDS", 1)


def at_once(federation, clients, rounds, seed=1, **more):
    """All rounds, and how many of them were done one by one."""
    single = []
    alone = round_module.run_round

    def counted(context, backend, state, memory):
        single.append(state.round + 1)
        return alone(context, backend, state, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(round_module, "run_round", counted)
        return list(simulate(federation, clients, rounds, seed, **more)), single


def one_by_one(federation, clients, rounds, seed=1, state=None):
    state = first_state(federation, clients, seed)[0] if state is None else state
    outcomes = []
    while state.round < rounds:
        outcomes.append(federated_round(federation, state, clients, seed))
        state = outcomes[-1].state
    return outcomes


def bits(outcome):
    state = outcome.state
    numbers = (state.round, outcome.online.hex(), outcome.interactions, outcome.bytes_up, outcome.bytes_down)
    arrays = (state.weights.tobytes(), state.server.tobytes(), outcome.weights.tobytes())
    return numbers, arrays, (outcome.excluded, outcome.reward, outcome.memory, state.common, state.rule, state.held)


def same(some, others):
    assert [bits(one) for one in some] == [bits(other) for other in others]


def random_question(number):
    """A federation, clients and a seed; all kinds of settings come up."""
    rng = np.random.default_rng(number)
    clients = int(rng.integers(1, 12)) if number % 4 else 150  # 150: means over more values than one loop adds up
    interactions = rng.integers(0, 6, clients)
    interactions[0] = 3
    batch = bool(rng.random() < 0.3)
    learner = Pdgd(
        ranker=Mlp(hidden=3) if number % 3 == 2 else Linear(),
        rate=float(rng.choice([0.05, 0.3])),
        batch=batch,
        temperature=float(rng.choice([1.0, 0.4])),
        keep=float(rng.choice([0.0, 0.5])),
        clip_weights=float(rng.choice([0.0, 0.2])),
        clip_gradients=0.1 if batch else 0.0,
    )
    steps = (Add(), Add(0.5), Momentum(0.7, 0.6), Adam(0.01))
    simulated = make_clients(
        DATA,
        clients,
        partition=Own() if clients < 20 and number % 2 else None,
        click_model=["perfect", "navigational", "informational"][: 1 + number % 3],
        click_model_per="interaction" if number % 5 == 0 else "client",
        interactions=interactions.tolist(),
        seed=number,
    )
    aggregator = Mean(weighted=bool(rng.random() < 0.5))
    participation = float(rng.choice([1.0, 0.4]))
    return Federation(learner, aggregator, steps[number % 4], participation=participation), simulated, 1000 + number


@pytest.mark.parametrize("number", range(16))
def test_random_federations_have_the_same_bits(number):
    federation, clients, seed = random_question(number)
    expected = one_by_one(federation, clients, 12, seed)
    found, alone = at_once(federation, clients, 12, seed)
    assert alone == []
    same(found, expected)
    assert np.abs(found[-1].weights - found[0].weights).max() > 0  # they did learn
    for threads, state in ((1, found[4].state), (3, expected[4].state)):
        rest, alone = at_once(federation, clients, 12, seed, state=state, threads=threads)
        assert alone == []
        same(rest, expected[5:])


@pytest.mark.parametrize("draw", [None, (0.5, 0.25)])
def test_lists_of_a_log_and_queries_in_order_have_the_same_bits(draw):
    drawn = np.random.default_rng(2).random(DATA.documents if draw else 0, dtype=np.float32)
    times = np.arange(DATA.queries)
    log = replace(DATA, who=times.astype(np.int32) % 5, when=times, drawn=drawn, draw=draw)
    clients = make_clients(log, 4, partition=Own(), interactions=2)
    clients = replace(clients, at=np.arange(4))
    for learner in (Pdgd(lists="logged"), Pdgd()):
        for participation in (1.0, 0.5):
            federation = Federation(learner, participation=participation)
            found, alone = at_once(federation, clients, 6)
            assert alone == []
            same(found, one_by_one(federation, clients, 6))


def test_one_round_by_hand():
    clients = make_clients(DATA, 2, interactions=[1, 3])
    federation = Federation(Pdgd(), server=Momentum(rate=0.5, momentum=0.25))
    before = State(6, np.linspace(0, 1, 5), server=np.full(5, 0.5))
    [found], alone = at_once(federation, clients, 7, 3, state=before)
    assert alone == []
    one, other = Pdgd()(before.weights, clients, Chance(3, 7)).updates.astype(np.float64)
    direction = 0.25 * 0.5 + (1 * one + 3 * other) / 4
    assert found.state.server == pytest.approx(direction, rel=1e-12)
    assert found.weights == pytest.approx(before.weights + 0.5 * direction, rel=1e-12)
    assert (found.interactions, found.bytes_up, found.bytes_down) == (4, 2 * 5 * 4, 2 * 5 * 4)


@pytest.mark.parametrize("server", [Add(0.3), Momentum(0.1, 0.9), Adam(), Adam(0.1, 0.0, 0.5, 0.25)])
def test_compiled_server_steps_have_the_bits_of_those_in_numpy(server):
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(40)
    memory = server.first(40)
    for change in rng.standard_normal((60, 40)) * 10.0 ** rng.integers(-9, 4, (60, 1)):
        after, kept = np.empty_like(weights), np.empty_like(memory)
        kernels.rounds.step(server.compiled_step(), weights, change, memory, after, kept)
        weights, memory = server(weights, change, memory)
        assert after.tobytes() == weights.tobytes()
        assert kept.tobytes() == memory.tobytes()


def test_keys_of_many_rounds():
    assert keys_for(5, "learn", range(9, 12)).tolist() == [int(key_for(5, "learn", round)) for round in (9, 10, 11)]


def broken(last_feature):
    """Two clients, of whom the second has a list that makes its update too large for four bytes."""
    table = DATA.features.copy()
    mine = DATA.offsets[20:]
    table[mine[0] : mine[-1] : 2, -1] = last_feature
    clients = make_clients(replace(DATA, features=table), 2, interactions=2)
    halves = np.arange(40, dtype=np.int32)
    return replace(clients, pool=np.array([0, 1], np.int32), queries=halves, pools=np.array([0, 20, 40]))


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
def test_an_update_of_no_use_ends_a_call_and_rounds_go_on_one_by_one():
    clients, federation = broken(3e38), Federation(Pdgd(rate=1000.0))
    expected = one_by_one(federation, clients, 10)
    found, alone = at_once(federation, clients, 10)
    assert any(outcome.excluded == (1,) for outcome in expected)
    first = next(outcome.round for outcome in expected if outcome.excluded)
    assert alone == list(range(first, 11))
    same(found, expected)
    with pytest.raises(RoundError, match="client 1: the update is not finite") as caught:
        at_once(federation, clients.rows([1]), 10)
    assert caught.value.round == first


def test_calls_grow_until_they_take_long_enough(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(small_module.time, "perf_counter", lambda: clock[0])
    done, call = [], SmallRounds._call

    def timed(self, state, count):
        done.append(count)
        clock[0] += 0.004 * count if state.round < 40 else 0.02 * count
        return call(self, state, count)

    monkeypatch.setattr(SmallRounds, "_call", timed)
    clients = make_clients(DATA, 2, interactions=1)
    outcomes = simulate(Federation(), clients, 70)
    assert next(outcomes).round == 1
    assert done == [1]  # nobody waits for rounds that were not asked for
    assert len(list(outcomes)) == 69
    assert done == [1, 2, 4, *[8] * 6, 4, 2, 2, 2, 2, 2, 1]
    monkeypatch.setattr(small_module, "BYTES_AT_ONCE", 3 * 8 * 5)
    done.clear()
    assert len(list(simulate(Federation(), clients, 9))) == 9
    assert done == [1, 2, 3, 3]


def test_a_model_does_not_hold_those_of_other_rounds():
    for outcome in simulate(Federation(server=Momentum()), make_clients(DATA, 2), 9):
        assert outcome.state.weights.base is None
        assert outcome.state.server.base is None


@dataclass(frozen=True)
class OwnPdgd(Pdgd):
    """Calls another function than the compiled loop."""

    def __call__(self, *arguments, **options):
        return super().__call__(*arguments, **options)


@dataclass(frozen=True)
class OwnStep(Add):
    """Likewise."""

    def __call__(self, *arguments):
        return super().__call__(*arguments)


@dataclass(frozen=True)
class SlowPdgd(Pdgd):
    """Another default only: the compiled loop does the same."""

    rate: float = 0.01


@dataclass(frozen=True)
class SquareRoots:
    """A mean from outside that counts clients by the square root of their interactions."""

    traits = frozenset({"mean"})

    def client_weights(self, sizes):
        return np.sqrt(sizes)

    def __call__(self, messages):
        weights = self.client_weights(messages.sizes)
        return weights @ messages.updates.astype(np.float64) / weights.sum()


@pytest.mark.parametrize("federation", [Federation(SlowPdgd()), Federation(aggregator=SquareRoots())], ids=str)
def test_methods_from_outside_are_compiled_like_ours(federation):
    clients = make_clients(DATA, 4, interactions=[1, 2, 4, 9])
    found, alone = at_once(federation, clients, 6)
    assert alone == []
    for one, other in zip(found, one_by_one(federation, clients, 6), strict=True):
        assert np.allclose(one.weights, other.weights, rtol=1e-12, atol=0)


class Notes:
    """A journal that keeps nothing."""

    def kept(self, round):
        return None

    def cohort(self, round, draw):
        return draw(round)

    def keep(self, round, change):
        pass


@pytest.mark.parametrize(
    "federation",
    [
        Federation(OwnPdgd()),
        Federation(LambdaRank()),
        Federation(aggregator=Median()),
        Federation(server=OwnStep()),
        Federation(local=FedProx(0.1)),
        Federation(attack=SignFlip(1.0)),
        Federation(mechanism=Gaussian(1.0, 1.0)),
    ],
)
def test_what_is_not_compiled_goes_one_by_one(federation):
    clients = make_clients(DATA, 4, malicious=1)
    state, _ = first_state(federation, clients, 1)
    assert small_rounds(federation, clients, 1, state, lambda round: np.arange(4)) is None


def test_who_looks_in_between_or_has_much_to_do_goes_one_by_one():
    federation, clients = Federation(), make_clients(DATA, 4)
    assert at_once(federation, clients, 3)[1] == []
    assert at_once(federation, clients, 3, watch=lambda messages: None)[1] == [1, 2, 3]
    assert at_once(federation, clients, 3, journal=Notes())[1] == [1, 2, 3]
    assert at_once(federation, make_clients(DATA, 4, people=3), 2)[1] == [1, 2]
    assert at_once(federation, make_clients(DATA, 4, interactions=SMALL // 4), 1)[1] == [1]
    assert at_once(federation, make_clients(DATA, 4, interactions=SMALL // 4 - 1), 1)[1] == []


def test_short_runs_do_not_wait_for_the_compiler(monkeypatch):
    monkeypatch.setattr(backends, "ENOUGH_ROUNDS", 4)
    federation, clients = Federation(), make_clients(DATA, 2)
    assert at_once(federation, clients, 3)[1] == [1, 2, 3]
    assert at_once(federation, clients, 4)[1] == []


def test_a_state_of_another_federation_goes_one_by_one():
    clients, federation = make_clients(DATA, 2), Federation(server=Momentum())
    for state, fits in (
        (State(0, np.zeros(5), server=np.zeros(5)), True),
        (State(0, np.zeros(4), server=np.zeros(4)), False),
        (State(0, np.zeros(5), server=np.zeros(11)), False),
        (State(0, np.zeros(5), np.zeros(5), server=np.zeros(5)), False),
    ):
        assert (small_rounds(federation, clients, 1, state, lambda round: np.arange(2)) is not None) == fits


def test_lists_of_no_log_are_refused():
    with pytest.raises(ValueError, match="made up is not one"):
        list(simulate(Federation(Pdgd(lists="logged")), make_clients(DATA, 2), 5))


def test_clients_that_do_not_search_do_not_count():
    clients = make_clients(DATA, 3, interactions=[1, 0, 0])
    federation = Federation(participation=0.3)
    found, _ = at_once(federation, clients, 20)
    nobody = [bool(taking_part(3, 0.3, 1, round)[0]) for round in range(1, 21)]
    assert [math.isnan(outcome.online) for outcome in found] == nobody
    assert [outcome.interactions for outcome in found] == [int(not idle) for idle in nobody]
    assert len(set(nobody)) == 2

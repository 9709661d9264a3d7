"""Who leaves is forgotten, the others keep their chance, and the cost is counted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fedrank.data.synthetic import synthetic
from fedrank.federated.aggregators import AGGREGATORS, Apart, Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import Scaffold
from fedrank.federated.partition import Own
from fedrank.federated.round import first_state
from fedrank.federated.server import State
from fedrank.federated.server_optimizers import Adam, Add, Momentum
from fedrank.federated.simulation import simulate
from fedrank.privacy.mechanisms import MECHANISMS
from fedrank.ranking.learners import LoggedClicks, Pdgd
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION, Learned, Observed
from fedrank.unlearning.certificate import ListLoss, minimise
from fedrank.unlearning.history import History, HistoryWriter
from fedrank.unlearning.methods import (
    UNLEARNERS,
    Case,
    Certified,
    FedEraser,
    FedRemove,
    FineTune,
    GradientAscent,
    Retrain,
    rescaled,
    retraining_interactions,
)
from tests.made_up import made_up_data


def noting(writer):
    """Writes down what reaches the server."""

    def watch(arrived):
        if writer.wants(arrived.round):
            writer.add(arrived.round, arrived.ids, arrived.updates, arrived.weights)

    return watch


@dataclass(frozen=True)
class Opposite:
    """Malicious clients send -z times their local model (thesis, equation 6.3)."""

    z: float = 2.0

    def __call__(self, arrived, malicious, rng):
        assert malicious.any(), "an attack without attackers"
        updates = arrived.updates.copy()
        updates[malicious] = -self.z * updates[malicious] - (self.z + 1) * arrived.weights
        return replace(arrived, updates=updates)


@dataclass(frozen=True)
class AttackResult:
    """A learner that sends what it is told to, and notes who was asked for how much."""

    updates: dict  # {client: update}
    asked: list = field(default_factory=list)
    ranker: Linear = field(default_factory=Linear)

    def __call__(self, start, clients, chance, correction=NO_CORRECTION, threads=1):
        self.asked.append(
            (chance, start.copy(), dict(zip(clients.ids.tolist(), clients.interactions.tolist(), strict=True)))
        )
        updates = np.array([self.updates[client] for client in clients.ids.tolist()], dtype=np.float32)
        return Learned(updates, Observed(np.zeros(len(clients))))


def recorded(folder, federation, clients, rounds, every, seed=1):
    """(case in which nobody leaves yet, models after every round) of a run with history."""
    parameters = clients.data.features.shape[1]
    first = np.random.default_rng(5).normal(size=parameters)
    with HistoryWriter(folder, len(clients), parameters, every) as writer:
        run = simulate(federation, clients, rounds, seed, start=first, watch=noting(writer))
        models = [one.state for one in run]
    return Case(federation, clients, (), seed, first, models[-1], rounds, History.open(folder)), models


def table(count, features=3, interactions=4):
    return make_clients(made_up_data(features=features), count, click_model="navigational", interactions=interactions)


def written(folder, rounds, clients=3, parameters=2, every=1):
    """A history of given updates: {round: {client: update}}."""
    with HistoryWriter(folder, clients, parameters, every) as writer:
        for number, updates in rounds.items():
            rows = np.array(list(updates.values()), dtype=np.float32).reshape(len(updates), parameters)
            writer.add(number, np.array(list(updates), dtype=np.int64), rows, np.zeros(parameters))
    return History.open(folder)


def test_fed_eraser_by_hand(tmp_path):
    """Client 2 leaves; 0 has four interactions a round and 1 has two; n' = 3."""
    history = written(
        tmp_path, {1: {0: [3, 4], 1: [0, -2], 2: [9, 9]}, 2: {2: [9, 9]}, 3: {1: [6, 8], 0: [0, 0], 2: [9, 9]}}
    )
    learner = AttackResult({0: [0, 0.5], 1: [3, 4]})
    clients = table(3, features=2, interactions=[4, 2, 1])
    case = Case(Federation(learner), clients, (2,), 1, np.array([1.0, 1.0]), np.zeros(2), 3, history)
    got = FedEraser(steps=3)(case)
    after_1 = [1 + (4 * 0 + 2 * 2 * 3 / 5) / 6, 1 + (4 * 5 + 2 * 2 * 4 / 5) / 6]
    after_3 = [after_1[0] + 2 * 6 / 6, after_1[1] + 2 * 8 / 6]  # client 0 had sent nothing: it sends nothing
    np.testing.assert_allclose(learner.asked[1][1], after_1, rtol=1e-6)
    np.testing.assert_allclose(got.weights, after_3, rtol=1e-6)
    assert [asked[2] for asked in learner.asked] == [{0: 3, 1: 2}, {0: 3, 1: 2}]  # nobody was left in round 2
    assert [asked[0].round for asked in learner.asked] == [1, 3]
    assert got.interactions == 2 * (3 + 2)
    assert got.rounds == got.state.round == 3


def test_zero_updates_stay_zero():
    updates = np.array([[0, 0], [3, 4], [0, 1e-30], [3e30, 4e30]], dtype=np.float32)
    got = rescaled(updates, np.array([2.0, 0.0, 5.0, 0.5]))
    np.testing.assert_allclose(got, [[0, 0], [0, 0], [0, 5], [0.3, 0.4]], rtol=1e-6)
    assert got.dtype == np.float32


def test_fed_remove_by_hand(tmp_path):
    """Every second round was stored: the first stands for two, the last for one."""
    history = written(tmp_path, {1: {0: [1, 0], 1: [0, 6], 2: [9, 9]}, 3: {0: [3, 3], 2: [9, 9]}}, every=2)
    learner = AttackResult({})
    clients = table(3, features=2, interactions=[2, 1, 1])
    case = Case(Federation(learner, server=Add(0.5)), clients, (2,), 1, np.array([1.0, 1.0]), np.zeros(2), 3, history)
    got = FedRemove()(case)
    expected = [1 + 0.5 * (2 * 2 * 1 / 3 + 3), 1 + 0.5 * (2 * 1 * 6 / 3 + 3)]
    np.testing.assert_allclose(got.weights, expected, rtol=1e-6)
    assert not learner.asked
    assert got.interactions == 0
    assert got.rounds == 3


@pytest.mark.parametrize("server", [Add(), Momentum(0.5, 0.9), Adam(0.01)])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_adding_up_everybodys_updates_is_the_run_itself(tmp_path, server, participation):
    clients = replace(table(5, interactions=[1, 2, 3]), malicious=np.arange(5) == 3)
    federation = Federation(server=server, participation=participation)
    case, models = recorded(tmp_path, federation, clients, 30, every=1)
    got = FedRemove()(replace(case, points=30))
    assert got.weights.tobytes() == models[-1].weights.tobytes()
    assert got.server.tobytes() == models[-1].server.tobytes()
    assert [number for number, _ in got.curve] == list(range(1, 31))
    for (_, weights), state in zip(got.curve, models, strict=True):
        assert weights.tobytes() == state.weights.tobytes()


@pytest.mark.parametrize("name", ["krum", "median", "trust"])
def test_adding_up_by_robust_rules_is_the_run_itself(tmp_path, name):
    """Trust asks the server for an update of its own, which nobody recorded: it is made again."""
    federation = Federation(aggregator=AGGREGATORS[name]())
    case, models = recorded(tmp_path, federation, table(8), 12, every=1)
    assert FedRemove()(case).weights.tobytes() == models[-1].weights.tobytes()


def test_trust_judges_by_as_much_work_as_in_the_run(tmp_path):
    """It gives every update the length of the server's own, which n' therefore must not shorten."""
    history = written(tmp_path, {1: {0: [3, 4], 1: [0, 5], 2: [9, 9]}})
    learner = AttackResult({-1: [6, 8], 0: [0, 1], 1: [0, 1], 2: [9, 9]})
    federation = Federation(learner, aggregator=AGGREGATORS["trust"]())
    clients = table(3, features=2, interactions=[4, 5, 6])
    FedEraser(steps=2)(Case(federation, clients, (2,), 1, np.zeros(2), np.zeros(2), 1, history))
    assert [asked[2] for asked in learner.asked] == [{0: 2, 1: 2}, {-1: 4}]


def test_adding_up_takes_attacked_updates_as_they_were(tmp_path):
    clients = replace(table(4), malicious=np.arange(4) == 3)
    case, models = recorded(tmp_path, Federation(attack=Opposite()), clients, 8, every=1)
    assert FedRemove()(case).weights.tobytes() == models[-1].weights.tobytes()


@pytest.mark.parametrize("method", [FedEraser(), FineTune(), GradientAscent()])
def test_unlearning_nobody_is_refused(tmp_path, method):
    case, _ = recorded(tmp_path, Federation(), table(3), 4, every=2)
    with pytest.raises(ValueError, match=r"no client leaves, so .* worse; name a client"):
        method(case)


def test_retraining_is_the_run_of_the_others(tmp_path):
    federation, clients = Federation(server=Momentum()), table(4)
    case, _ = recorded(tmp_path, federation, clients, 12, every=5)
    got = Retrain()(replace(case, leaving=(1,)))
    others = clients.rows(np.array([0, 2, 3]))
    *_, last = simulate(federation, others, 12, 1, start=case.first)
    assert got.weights.tobytes() == last.weights.tobytes()
    assert got.server.tobytes() == last.state.server.tobytes()
    assert got.interactions == 12 * 3 * 4 == retraining_interactions(replace(case, leaving=(1,)))
    alone = federation.learner(case.first, others, Chance(1, 1))
    stored = next(iter(case.history))
    assert alone.updates.tobytes() == stored.updates[[0, 2, 3]].tobytes()  # ids, and with them chance, are kept


def test_replay_draws_its_own_chance(tmp_path):
    """With as many steps as the run had, the first repeated round would otherwise be the first of the run."""
    clients = table(4)
    case, _ = recorded(tmp_path, Federation(), clients, 1, every=1)
    got = FedEraser(steps=4)(replace(case, leaving=(3,)))
    stored = next(iter(case.history)).updates[:3]
    repeated = case.first + stored.mean(axis=0, dtype=np.float64)
    assert np.abs(got.weights - repeated).max() > 1e-3
    again = FedEraser(steps=4)(replace(case, leaving=(3,)))
    assert again.weights.tobytes() == got.weights.tobytes()


@pytest.mark.parametrize("method", [Retrain(), FedEraser(2), FedRemove()])
def test_one_after_the_other_is_both_at_once(tmp_path, method):
    """These begin with the first weights, so the first request leaves no trace in the answer to the second."""
    case, _ = recorded(tmp_path, Federation(), table(5), 9, every=2)
    both = method(replace(case, leaving=(4, 1)))
    first = replace(case, leaving=(1,))
    after = method(first)
    second = replace(first, clients=first.remaining, leaving=(4,), final=after.state)
    assert method(second).weights.tobytes() == both.weights.tobytes()
    assert after.weights.tobytes() != both.weights.tobytes()
    case.history.forget((1, 4))
    purged = replace(case, history=History.open(tmp_path), leaving=(1, 4))
    assert method(purged).weights.tobytes() == both.weights.tobytes()


def test_leaving_again_is_refused(tmp_path):
    case, _ = recorded(tmp_path, Federation(), table(3), 4, every=2)
    gone = replace(case, leaving=(2,))
    with pytest.raises(ValueError, match=r"client 2 is not among the 2 clients \(ids 0 to 1\).*left already"):
        replace(gone, clients=gone.remaining)


@pytest.mark.parametrize(
    ("rounds", "every", "share"), [(100, 10, 3 / (5 * 10)), (50, 5, 3 / (5 * 5)), (95, 10, 10 * 3 / (95 * 5))]
)
def test_cost_is_counted(tmp_path, rounds, every, share):
    case, _ = recorded(tmp_path, Federation(), table(4, interactions=5), rounds, every)
    case = replace(case, leaving=(0,))
    eraser, retrained = FedEraser(3)(case), Retrain()(case)
    assert retrained.interactions == retraining_interactions(case) == rounds * 3 * 5
    assert eraser.interactions / retrained.interactions == pytest.approx(share)
    assert FineTune(7)(case).interactions == 7 * 3 * 5
    assert GradientAscent(steps=2, rounds=7)(case).interactions == 7 * 3 * 5 + 3 * 5 + 2 * 5


def test_fine_tuning_goes_on_where_the_run_ended(tmp_path):
    """Round 7 is the first; what the server remembers begins anew, what clients keep stays."""
    federation = Federation(local=Scaffold(), server=Momentum(1.0, 0.5))
    clients = table(4)
    *_, last = simulate(federation, clients, 6, 1)
    case = Case(federation, clients, (1,), 1, np.zeros(3), last.state, 6, memory=last.memory)
    got = FineTune(rounds=3)(case)
    others = np.array([0, 2, 3])
    kept = last.memory[others]
    start = State(6, last.weights, kept.mean(axis=0), np.zeros(3))
    *_, expected = simulate(federation, clients.rows(others), 9, 1, state=start, memory=kept)
    assert got.weights.tobytes() == expected.weights.tobytes()
    assert got.state.round == 9
    assert got.rounds == 3
    assert got.curve[-1] == (3, got.weights)
    second = replace(case, clients=case.remaining, leaving=(0,), final=got.state, memory=got.memory)
    again = FineTune(rounds=1)(second)
    assert again.state.round == 10
    kept = got.memory[1:]
    start = State(9, got.weights, kept.mean(axis=0), np.zeros(3))
    *_, expected = simulate(federation, clients.rows(np.array([2, 3])), 10, 1, state=start, memory=kept)
    assert again.weights.tobytes() == expected.weights.tobytes()


def test_gradient_ascent_by_hand():
    """Others stay at (10, 0), so the ball has radius 0.5 x 10; client 2 taught (0, -4), and takes it back twice."""
    learner = AttackResult({0: [0, 0], 1: [0, 0], 2: [0, -4]})
    case = Case(Federation(learner), table(3, features=2), (2,), 1, np.zeros(2), np.array([10.0, 0.0]), 6)
    got = GradientAscent(steps=2, radius=0.5, rounds=1)(case)
    np.testing.assert_allclose([asked[1] for asked in learner.asked], [[10, 0], [10, 0], [10, 4], [10, 5]])
    assert [list(asked[2]) for asked in learner.asked] == [[0, 1], [2], [2], [0, 1]]
    np.testing.assert_allclose(got.weights, [10, 5])
    assert len({asked[0] for asked in learner.asked}) == 4  # nobody's chance is used twice
    assert got.interactions == 8 + 2 * 4 + 8


def test_gradient_ascent_begins_within_the_ball():
    """The others' mean is (10, 0) + (0, 20): the final model lies outside of radius 0.1 x sqrt(500)."""
    learner = AttackResult({0: [0, 20], 1: [0, 20], 2: [0, 0]})
    case = Case(Federation(learner), table(3, features=2), (2,), 1, np.zeros(2), np.array([10.0, 0.0]), 6)
    GradientAscent(steps=1, radius=0.1, rounds=1)(case)
    np.testing.assert_allclose(learner.asked[1][1], [10, 20 - 0.1 * np.sqrt(500)])


def test_progress_and_curve(tmp_path):
    case, _ = recorded(tmp_path, Federation(), table(3), 40, every=2)
    case, told = replace(case, leaving=(0,), points=4), []
    got = FedEraser(1)(case, lambda done, rounds: told.append((done, rounds)))
    assert told == [(number, 20) for number in range(1, 21)]
    assert [number for number, _ in got.curve] == [5, 10, 15, 20]
    assert got.curve[-1][1].tobytes() == got.weights.tobytes()
    assert len({weights.tobytes() for _, weights in got.curve}) == 4
    assert [number for number, _ in FedRemove()(case).curve] == [10, 20, 30, 40]


def test_an_attack_goes_on_while_an_attacker_stays(tmp_path):
    clients = replace(table(5), malicious=np.arange(5) >= 3)
    case, _ = recorded(tmp_path, Federation(attack=Opposite()), clients, 6, every=1)
    both_gone, one_stays = replace(case, leaving=(3, 4)), replace(case, leaving=(4,))
    for method in (Retrain(), FedEraser(), FineTune(5)):
        method(both_gone)  # Opposite fails where it has nobody
    honest = replace(one_stays, federation=Federation())
    for method in (Retrain(), FedEraser(), FineTune(5)):
        assert np.abs(method(one_stays).weights - method(honest).weights).max() > 1e-3


def test_the_rule_of_the_run_is_used(tmp_path):
    """Equal weights instead of interactions give another model."""
    clients = table(4, interactions=[1, 20, 1, 1])
    case, _ = recorded(tmp_path, Federation(), clients, 5, every=1)
    case = replace(case, leaving=(3,))
    equal = replace(case, federation=Federation(aggregator=Mean(weighted=False)))
    for method in (FedEraser(), FedRemove()):
        assert np.abs(method(case).weights - method(equal).weights).max() > 1e-4


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    """The thesis' test: nine honest clients, and one whose presence shows."""
    train, test = synthetic("mq2007", 200, seed=1), synthetic("mq2007", 150, seed=2)
    clients = replace(make_clients(train, 10, click_model="perfect", interactions=5), malicious=np.arange(10) == 9)
    parameters = train.features.shape[1]
    with HistoryWriter(folder := tmp_path_factory.mktemp("history"), 10, parameters, 10) as writer:
        federation = Federation(attack=Opposite())
        *_, last = simulate(federation, clients, 600, 1, watch=noting(writer))
    case = Case(
        federation,
        clients,
        (9,),
        1,
        np.zeros(parameters),
        last.state,
        600,
        History.open(folder),
    )
    evaluator = Evaluator(test, ["ndcg@10"])
    return case, lambda weights: float(evaluator(weights[None], Linear())[0, 0])


@pytest.mark.long
def test_a_poisoned_client_is_forgotten(poisoned):
    case, quality = poisoned
    bad, good = quality(case.final.weights), quality(Retrain()(case).weights)
    assert good - bad > 0.03
    for method, share in (
        (FedEraser(), 0.8),
        (FedRemove(), 0.2),
        (FineTune(100), 0.6),
        (GradientAscent(steps=3, rounds=100), 0.6),
    ):
        got = quality(method(case).weights)
        assert got - bad > share * (good - bad), (method, bad, got, good)


def test_history_is_needed(tmp_path):
    case = Case(Federation(), table(3), (0,), 1, np.zeros(3), np.ones(3), 10)
    for method, name in ((FedEraser(), "fed-eraser"), (FedRemove(), "fed-remove")):
        with pytest.raises(ValueError, match=f'{name} needs the recorded history.*has none; run again.*"retrain"'):
            method(case)
    other, _ = recorded(tmp_path / "a", Federation(), table(3), 4, every=2)
    with pytest.raises(ValueError, match="ends with round 3, but that of 10 rounds with every = 2 ends with round 9"):
        FedEraser()(replace(case, history=other.history))
    with pytest.raises(ValueError, match="the history has 3 parameters, but the model has 2"):
        FedEraser()(replace(case, history=other.history, first=np.zeros(2)))


def test_impossible_requests_are_refused():
    case = Case(Federation(), table(3), (0,), 1, np.zeros(3), np.ones(3), 10)
    with pytest.raises(ValueError, match=r"client 7 is not among the 3 clients \(ids 0 to 2\).*name another"):
        replace(case, leaving=(0, 7))
    with pytest.raises(ValueError, match=r"all 3 clients leave.*delete the run"):
        replace(case, leaving=(0, 1, 2))
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        replace(case, rounds=0)
    with pytest.raises(ValueError, match="clients share no model"):
        replace(case, federation=Federation(aggregator=Apart()))
    assert replace(case, leaving=(2, 0, 2)).leaving == (0, 2)


def test_settings_that_do_nothing_are_refused():
    for wrong in (lambda: FedEraser(0), lambda: FineTune(0), lambda: GradientAscent(steps=0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            wrong()
    for radius in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="radius must be"):
            GradientAscent(radius=radius)


def test_what_clients_keep_is_in_no_history(tmp_path):
    case, _ = recorded(tmp_path, Federation(), table(3), 4, every=2)
    case = replace(case, federation=Federation(local=Scaffold()), leaving=(0,))
    for method in (FedEraser(), FedRemove(), GradientAscent()):
        with pytest.raises(ValueError, match=r'state between rounds.*use "retrain" or "fine-tune"'):
            method(case)


def test_messages_that_nobody_books_are_refused(tmp_path):
    case, _ = recorded(tmp_path, Federation(), table(3), 4, every=1)
    federation = Federation(mechanism=MECHANISMS["fpdgd-paper"](epsilon=1.0))
    case = replace(case, federation=federation, leaving=(0,))
    for method in (Retrain(), FedEraser(), FineTune(), GradientAscent()):
        with pytest.raises(ValueError, match='cannot charge; use "fed-remove"'):
            method(case)
    stored = [one.updates[1:].mean(axis=0, dtype=np.float64) for one in case.history]
    np.testing.assert_allclose(FedRemove()(case).weights, case.first + np.sum(stored, axis=0), rtol=1e-9)


def logged_case(leaving=(1,), learner=None, count=3, **changes):
    """Three clients with their own lists, of which one leaves."""
    data = made_up_data(queries=9, features=3)
    clients = make_clients(data, count, partition=Own())
    return Case(Federation(learner or LoggedClicks(), **changes), clients, leaving, 1, np.zeros(3), np.ones(3), 4)


def test_certified_trains_on_the_remaining_lists_from_any_start():
    """Its models before the noise are within the sensitivity of each other and of the only minimum, for any start."""
    method = Certified(l2=0.1, tolerance=1e-6, epsilon=1.0, delta=1e-6)
    case = logged_case()
    stays = case.remaining
    own = [stays.queries[stays.pools[pool] : stays.pools[pool + 1]] for pool in stays.pool]
    exact, _ = minimise(ListLoss(stays.data, np.sort(np.concatenate(own)), 0.1), np.zeros(3), 1e-12)
    for start in (np.zeros(3), np.array([5.0, -5.0, 5.0])):
        done = method(replace(case, final=start))
        assert done.certificate["sensitivity"] == pytest.approx(2e-5)
        assert done.certificate["lists"] == 6
        away = np.linalg.norm(done.weights - exact)
        assert 0 < away < 10 * done.certificate["noise"] * np.sqrt(3)
        assert done.curve == ((done.rounds, done.weights),)  # nothing without noise
        assert np.array_equal(done.state.weights, done.weights)
        assert done.interactions == done.rounds * 6
    assert not np.array_equal(method(case).weights, method(case).weights)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (logged_case(learner=Pdgd()), "needs a linear ranker and the learner logged-clicks"),
        (logged_case(learner=LoggedClicks(ranker=Mlp(hidden=2))), "needs a linear ranker"),
        (logged_case(mechanism=MECHANISMS["gaussian"](clip=1.0, noise=1.0)), "certified needs further messages"),
    ],
    ids=["pdgd", "neural", "private"],
)
def test_certified_refuses_what_no_theorem_covers(case, message):
    with pytest.raises(ValueError, match=message):
        Certified()(case)


def test_certified_refuses_lists_that_others_keep():
    clients = make_clients(made_up_data(queries=9, features=3), 3)  # all draw from all queries
    case = Case(Federation(LoggedClicks()), clients, (1,), 1, np.zeros(3), np.ones(3), 4)
    with pytest.raises(ValueError, match="clients share lists, so those of a leaving client remain with others"):
        Certified()(case)
    assert Certified()(replace(case, leaving=())).certificate["lists"] == 9


@pytest.mark.parametrize("changes", [{"l2": 0.0}, {"tolerance": -1.0}, {"epsilon": np.inf}, {"delta": 1.0}])
def test_settings_of_certified_are_checked(changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))} must be "):
        Certified(**changes)


def test_every_unlearner_has_defaults():
    assert list(UNLEARNERS) == ["retrain", "fed-eraser", "fed-remove", "fine-tune", "gradient-ascent", "certified"]
    for kind in UNLEARNERS.values():
        assert kind() == kind()
    assert first_state(Federation(), table(2), 1)[0].round == 0

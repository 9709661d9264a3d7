"""Rounds with malicious clients, with updates that are of no use, and with rules that remember or trust."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pytest

import fedrank.federated.backends as backends
from fedrank.attacks.poison import ATTACKS, Noise, PoisonedClicks, SignFlip
from fedrank.federated.aggregators import AGGREGATORS, Apart, Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedProx, Scaffold
from fedrank.federated.robust import Krum, Median, Reputation, TrimmedMean, Trust
from fedrank.federated.round import first_state
from fedrank.federated.server import RoundError, State
from fedrank.federated.simulation import federated_round, simulate
from fedrank.privacy.mechanisms import AtServer, Gaussian, OnClient, SecureAggregation
from fedrank.ranking.click_models import ClickModel, click_model_for
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear, Mlp
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION, has_trait
from fedrank.unlearning.history import History, HistoryWriter
from tests.made_up import made_up_data

DATA = made_up_data(queries=12, features=5)


def assuming(name, share):
    """A rule that assumes so many attackers, where it assumes any."""
    kind = AGGREGATORS[name]
    return kind(attackers=share) if "attackers" in kind.__dataclass_fields__ else kind()


def clients(count=10, malicious=2, **rest):
    return make_clients(DATA, count, interactions=3, malicious=malicious, **rest)


def sent(federation, some, rounds=1, seed=1, **rest):
    """What reached the server in every round."""
    seen = []
    last = list(simulate(federation, some, rounds, seed, watch=seen.append, **rest))[-1]
    return seen, last


def test_the_first_clients_are_malicious_and_click_with_a_user_of_their_own():
    own = ClickModel(click=(1.0, 0.5, 0.0), stop=(0.25, 0.25, 0.25))
    some = make_clients(
        DATA, 5, click_model=["perfect", "navigational"], interactions=3, malicious=2, malicious_click_model="poison"
    )
    assert some.malicious.tolist() == [True, True, False, False, False]
    assert some.click_model_names == ("perfect", "navigational", "poison")
    assert some.click_model.tolist() == [2, 2, 0, 1, 0]
    np.testing.assert_array_equal(some.click[2], click_model_for("poison", 2).click)
    np.testing.assert_array_equal(some.stop[2], click_model_for("poison", 2).stop)
    other = make_clients(DATA, 5, malicious=1, malicious_click_model=own)
    np.testing.assert_array_equal(other.click[other.click_model[0]], own.click)
    assert other.click_model[1:].tolist() == [0] * 4


def test_without_malicious_clients_everything_is_as_it_was_bit_by_bit():
    plain = make_clients(DATA, 5, click_model=["perfect", "informational"])
    none = make_clients(DATA, 5, click_model=["perfect", "informational"], malicious=0, malicious_click_model="poison")
    for name in ("click_model", "malicious", "click", "stop", "attention", "pool", "queries", "click_model_names"):
        np.testing.assert_array_equal(getattr(none, name), getattr(plain, name))
    [before] = simulate(Federation(), plain, 1)
    [after] = simulate(Federation(attack=Noise(5.0)), none, 1)
    np.testing.assert_array_equal(before.weights, after.weights)


@pytest.mark.parametrize("threads", [1, 2])
def test_honest_clients_send_the_same_bits_whoever_else_poisons_his_clicks(threads):
    honest, attacked = (
        clients(malicious=0, click_model="navigational"),
        clients(click_model="navigational", malicious_click_model="poison"),
    )
    [[before], _] = sent(Federation(), honest)
    [[after], _] = sent(Federation(attack=PoisonedClicks()), attacked, threads=threads)
    np.testing.assert_array_equal(after.updates[2:], before.updates[2:])
    assert (after.updates[:2] != before.updates[:2]).any(axis=1).all()


def test_a_user_of_malicious_clients_is_refused_where_all_users_are_drawn():
    with pytest.raises(ValueError, match='click_model_per = "interaction" draws from all click models'):
        make_clients(DATA, 4, click_model_per="interaction", malicious=1, malicious_click_model="poison")


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"poisoned-clicks"}))
def test_an_attack_changes_rows_of_malicious_clients_only(name):
    some = clients(malicious=3)
    [[before], _] = sent(Federation(), some)
    [[after], _] = sent(Federation(attack=ATTACKS[name]()), some)
    np.testing.assert_array_equal(after.updates[3:], before.updates[3:])
    assert (after.updates[:3] != before.updates[:3]).any()
    for column in ("sizes", "ids", "weights"):
        np.testing.assert_array_equal(getattr(after, column), getattr(before, column))


def test_sign_flip_by_hand():
    some = make_clients(DATA, 4, interactions=[1, 2, 3, 4], malicious=1)
    [[honest], _] = sent(Federation(), some)
    [outcome] = simulate(Federation(attack=SignFlip(2.0)), some, 1)
    rows = honest.updates.astype(np.float64)
    rows[0] *= -2.0
    assert outcome.weights == pytest.approx(np.array([1, 2, 3, 4]) @ rows / 10, abs=1e-12)


def test_the_chance_of_an_attack_is_keyed_by_seed_and_round_and_nothing_else():
    some, federation = clients(), Federation(attack=Noise(2.0), aggregator=Median())
    seen, whole = sent(federation, some, rounds=4)
    again, same = sent(federation, some, rounds=4, threads=2)
    np.testing.assert_array_equal(whole.weights, same.weights)
    half = list(simulate(federation, some, 2))[-1].state
    later, resumed = sent(federation, some, rounds=4, state=half)
    np.testing.assert_array_equal(whole.weights, resumed.weights)
    for one, other in zip([*seen, *seen[2:]], [*again, *later], strict=True):
        np.testing.assert_array_equal(one.updates, other.updates)
    # Nobody draws the same numbers again, in another round or with another seed.
    directions = [
        one.updates[0] / np.linalg.norm(one.updates[0]) for one in [*seen, *sent(federation, some, seed=2)[0]]
    ]
    assert (np.abs(np.triu(np.array(directions) @ np.array(directions).T, 1)) < 0.999).all()


def test_attacks_meet_only_those_who_take_part():
    some, federation = clients(malicious=4), Federation(attack=SignFlip(), participation=0.3)
    attacked, _ = sent(federation, some, rounds=1)
    honest, _ = sent(Federation(participation=0.3), some, rounds=1)
    [[one], [other]] = attacked, honest
    np.testing.assert_array_equal(one.updates, np.where((one.ids < 4)[:, None], -other.updates, other.updates))
    several, _ = sent(federation, some, rounds=30)
    counts = {int((one.ids < 4).sum()) for one in several}
    assert 0 in counts  # a round with nobody to attack goes on
    assert len(counts) > 1
    assert {len(one.ids) for one in several} == {3}


@dataclass(frozen=True)
class Breaks:
    """A learner whose listed clients send something that is no number."""

    which: tuple[int, ...]
    value: float = np.nan
    ranker: object = field(default_factory=Linear)

    def __call__(self, start, clients, chance, correction=NO_CORRECTION, threads=1):
        learned = Pdgd(ranker=self.ranker)(start, clients, chance, correction, threads)
        learned.updates[np.isin(clients.ids, self.which), -1] = self.value
        return learned


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_updates_that_are_not_finite_are_left_out_in_one_piece_or_in_chunks(monkeypatch, value, rows):
    some = clients(7, malicious=0)
    state, _ = first_state(Federation(), some, 1)
    without = federated_round(Federation(), state, some.rows([0, 1, 4, 6]), 1)
    monkeypatch.setattr(backends, "CHUNK_BYTES", rows * 4 * 5)
    outcome = federated_round(Federation(learner=Breaks((2, 3, 5), value)), state, some, 1)
    assert outcome.excluded == (2, 3, 5)
    assert outcome.weights == pytest.approx(without.weights, rel=1e-12)
    assert outcome.interactions == 7 * 3  # they did search
    assert len(federated_round(Federation(), state, some, 1).excluded) == 0


def test_infinities_of_both_signs_do_not_cancel():
    some = clients(5, malicious=0)

    @dataclass(frozen=True)
    class Both(Breaks):
        def __call__(self, start, simulated, chance, correction=NO_CORRECTION, threads=1):
            learned = super().__call__(start, simulated, chance, correction, threads)
            learned.updates[0, 0], learned.updates[1, 0] = np.inf, -np.inf
            return learned

    assert next(simulate(Federation(learner=Both(())), some, 1)).excluded == (0, 1)


def test_large_updates_are_of_use_even_if_their_sum_is_not():
    some = clients(3, malicious=0)
    largest = float(np.finfo(np.float32).max)
    outcome = next(simulate(Federation(learner=Breaks((0, 1), largest), aggregator=Median()), some, 1))
    assert outcome.excluded == ()
    assert outcome.weights[-1] == largest


@pytest.mark.parametrize("rows", [2, 100])
def test_a_round_in_which_no_update_is_finite_names_round_and_client(monkeypatch, rows):
    monkeypatch.setattr(backends, "CHUNK_BYTES", rows * 4 * 5)
    some = clients(5, malicious=0).rows([1, 2, 3, 4])
    with pytest.raises(RoundError, match="round 1, client 1: the update is not finite; reduce"):
        next(simulate(Federation(learner=Breaks((1, 2, 3, 4))), some, 1))


def test_a_client_alone_cannot_be_left_out_of_its_own_model():
    some = clients(4, malicious=0)
    with pytest.raises(RoundError, match="round 1, client 2: the update is not finite"):
        next(simulate(Federation(learner=Breaks((2,)), aggregator=Apart()), some, 1))


@pytest.mark.parametrize("name", [name for name, kind in AGGREGATORS.items() if not has_trait(kind, "apart")])
def test_every_rule_goes_on_without_a_client_whose_update_is_not_finite(name):
    some = clients(12, malicious=0)
    federation = Federation(learner=Breaks((4,)), aggregator=assuming(name, 0.1))
    outcomes = list(simulate(federation, some, 3))
    assert [outcome.excluded for outcome in outcomes] == [(4,)] * 3
    assert np.isfinite(outcomes[-1].weights).all()
    assert (outcomes[-1].weights != 0).any()


def test_left_out_clients_reach_neither_the_rule_nor_whoever_watches():
    [[seen], _] = sent(Federation(learner=Breaks((1,))), clients(4, malicious=0))
    assert seen.ids.tolist() == [0, 2, 3]
    assert len(seen.updates) == len(seen.sizes) == 3


def test_a_rule_that_has_too_few_clients_left_says_in_which_round():
    some = clients(4, malicious=0)
    with pytest.raises(RoundError, match=r"round 1: attackers = 0.2 means 1 of 3 clients.*use at least 4"):
        next(simulate(Federation(learner=Breaks((3,)), aggregator=Krum(0.2)), some, 1))


@dataclass(frozen=True)
class Shaped:
    """An attack that sends updates of a wrong shape."""

    rows: int
    columns: int

    def __call__(self, arrived, malicious, rng):
        return replace(arrived, updates=np.zeros((self.rows, self.columns), np.float32))


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (0, 5)])
@pytest.mark.parametrize("mechanism", [None, Gaussian(1.0, 1.0, OnClient())], ids=["plain", "noise"])
def test_wrongly_shaped_updates_are_refused_with_their_round(shape, mechanism):
    some = clients(4, malicious=1)
    rows, columns = shape
    said = rf"round 1: 4 clients sent updates of shape \({rows}, {columns}\); .*5 parameters"
    with pytest.raises(RoundError, match=said):
        next(simulate(Federation(attack=Shaped(rows, columns), mechanism=mechanism), some, 1))


def test_a_secure_sum_leaves_no_room_for_rules_that_look_at_single_updates():
    secure = Gaussian(1.0, 1.0, SecureAggregation(sum="ideal"))
    with pytest.raises(ValueError, match="Krum needs single updates"):
        Federation(aggregator=Krum(), mechanism=secure)
    with pytest.raises(ValueError, match="malicious clients have no effect"):
        Federation(aggregator=Apart(), attack=SignFlip())


def through_npz(state: State, folder) -> State:
    """As a checkpoint would keep it."""
    np.savez(folder / "state.npz", **state.rule)
    with np.load(folder / "state.npz", allow_pickle=False) as kept:
        return replace(state, rule=dict(kept))


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_a_rule_that_remembers_goes_on_from_a_checkpoint_bit_by_bit(tmp_path, participation):
    some = clients(10, malicious=1)
    federation = Federation(aggregator=Reputation(window=3), attack=Noise(20.0), participation=participation)
    whole = list(simulate(federation, some, 12))
    for at in (1, 5, 9):
        state = through_npz(whole[at - 1].state, tmp_path)
        resumed = list(simulate(federation, some, 12, state=state))
        np.testing.assert_array_equal(resumed[-1].weights, whole[-1].weights)
        for name, array in whole[-1].state.rule.items():
            np.testing.assert_array_equal(resumed[-1].state.rule[name], array)
    # Remembering matters: whoever forgets at round 5 goes another way.
    forgot = replace(whole[4].state, rule=federation.aggregator.first(10, 5))
    assert (list(simulate(federation, some, 12, state=forgot))[-1].state.rule["rounds"] == 7).all()
    assert whole[-1].state.rule["rounds"] == 12


class Spy:
    """Trust that notes what it was given, or a mean that asks for a trusted update and ignores it."""

    traits = frozenset({"trusted queries"})

    def __init__(self, queries=3, heed=False):
        self.queries, self.heed, self.roots = queries, heed, []

    def __call__(self, arrived):
        self.roots.append(arrived.root)
        return Trust(self.queries)(arrived) if self.heed else Mean()(arrived)


def test_a_trusted_update_is_keyed_and_disturbs_nobody():
    some = clients(6, malicious=2)
    plain = list(simulate(Federation(), some, 3))
    spy = Spy()
    asked = list(simulate(Federation(aggregator=spy), some, 3))
    np.testing.assert_array_equal(asked[-1].weights, plain[-1].weights)
    assert [one.online for one in asked] == [one.online for one in plain]
    again = Spy()
    list(simulate(Federation(aggregator=again), some, 3, state=asked[0].state, threads=2))
    for one, other in zip(spy.roots[1:], again.roots, strict=True):
        np.testing.assert_array_equal(one, other)
    for one in spy.roots:
        assert one.shape == (5,)
        assert np.isfinite(one).all()
    assert (spy.roots[0] != spy.roots[1]).any()
    other = Spy()
    list(simulate(Federation(aggregator=other), some, 1, seed=2))
    assert (other.roots[0] != spy.roots[0]).any()


def test_the_trusted_update_is_nobody_elses_and_comes_from_the_servers_own_queries():
    some = clients(6, malicious=2, malicious_click_model="poison")
    spy, seen = Spy(queries=1), []
    list(simulate(Federation(aggregator=spy), some, 1, watch=seen.append))
    assert not (seen[0].updates == spy.roots[0]).all(axis=1).any()
    # Malicious clients do not teach the server: with other clicks of theirs it learns the same.
    other = Spy(queries=1)
    list(simulate(Federation(aggregator=other), clients(6, malicious=2), 1))
    np.testing.assert_array_equal(spy.roots[0], other.roots[0])
    # Its queries stay the same from round to round, and are as many as it asks for.
    used = []

    @dataclass(frozen=True)
    class Notes:
        ranker: object = field(default_factory=Linear)

        def __call__(self, start, simulated, chance, correction=NO_CORRECTION, threads=1):
            if simulated.ids[0] == -1:
                used.append(simulated.queries[simulated.pools[0] : simulated.pools[1]].tolist())
                assert len(simulated) == 1
                assert simulated.click_model.tolist() == [0]
            return Pdgd()(start, simulated, chance, correction, threads)

    list(simulate(Federation(learner=Notes(), aggregator=Spy(queries=4)), some, 3))
    assert len(used) == 3
    assert len(set(used[0])) == 4
    assert used[0] == used[1] == used[2]
    list(simulate(Federation(learner=Notes(), aggregator=Spy(queries=1000)), some, 1))
    assert sorted(used[-1]) == list(range(12))


def test_trust_turns_against_liars():
    some = clients(9, malicious=4)
    mean = list(simulate(Federation(attack=SignFlip(5.0)), some, 20))[-1].weights
    trusting = list(simulate(Federation(attack=SignFlip(5.0), aggregator=Trust(12)), some, 20))[-1].weights
    assert mean[0] < 0 < trusting[0]  # the first feature is the one that tells something


@pytest.mark.parametrize("local", [None, FedProx(), Scaffold()])
def test_trust_works_with_other_rankers_and_local_methods(local):
    some = clients(5, malicious=1)
    last = list(simulate(Federation(Pdgd(ranker=Mlp(hidden=2)), aggregator=Trust(5), local=local), some, 3))[-1]
    assert np.isfinite(last.weights).all()


def test_watching_sees_what_the_rule_sees_and_changes_nothing():
    some, federation = clients(malicious=3), Federation(attack=SignFlip(), aggregator=TrimmedMean(0.3))
    seen, watched = sent(federation, some, rounds=3)
    plain = list(simulate(federation, some, 3))
    np.testing.assert_array_equal(watched.weights, plain[-1].weights)
    assert [one.round for one in seen] == [1, 2, 3]
    start = np.zeros(5)
    for arrived, outcome in zip(seen, plain, strict=True):
        np.testing.assert_array_equal(arrived.weights, start)
        start = start + TrimmedMean(0.3)(arrived)
        assert outcome.weights == pytest.approx(start, abs=1e-15)
    arrived = Pdgd()(np.zeros(5), some, Chance(1, 1))
    np.testing.assert_array_equal(seen[0].updates[:3], -arrived.updates[:3])


class Remembered:
    """A journal that still has the change of every round, as after a crash."""

    def __init__(self, count):
        self.count = count

    def kept(self, round):
        return JournalEntry(np.arange(self.count), np.full(5, float(round)))

    def cohort(self, round, draw):
        raise AssertionError("nobody is asked twice")

    def keep(self, round, change):
        raise AssertionError("nothing is paid twice")


class JournalEntry(NamedTuple):
    cohort: np.ndarray
    change: np.ndarray


def test_messages_that_a_crash_took_are_not_replaced_by_the_same_with_new_noise(tmp_path):
    some = clients(6, malicious=0)
    federation = Federation(aggregator=Reputation(), mechanism=Gaussian(1.0, 1.0, OnClient()))
    first, _ = first_state(federation, some, 1)
    seen = []
    again = federated_round(federation, first, some, 1, journal=Remembered(6), watch=seen.append)
    assert again.weights.tolist() == [1.0] * 5
    assert (len(seen), len(seen[0].ids), seen[0].updates.shape) == (1, 0, (0, 5))
    assert all((again.state.rule[name] == array)[array == array].all() for name, array in first.rule.items())
    # Such a round can be recorded, and read.
    with HistoryWriter(tmp_path, 6, 5, 1) as writer:
        writer.add(1, seen[0].ids, seen[0].updates, seen[0].weights)
    [stored] = History.open(tmp_path)
    assert (stored.round, len(stored.ids), stored.updates.shape) == (1, 0, (0, 5))
    # A server that is trusted with single updates gets them again: they are the same.
    central = Federation(mechanism=Gaussian(1.0, 1.0, AtServer()))
    twice = []
    for _ in range(2):
        federated_round(central, first_state(central, some, 1)[0], some, 1, journal=Remembered(6), watch=twice.append)
    assert twice[0].ids.tolist() == list(range(6))
    np.testing.assert_array_equal(twice[0].updates, twice[1].updates)


def test_watching_and_attacking_see_all_clients_together_however_many(monkeypatch):
    some = clients(6, malicious=2)
    [[whole], _] = sent(Federation(), some)
    [[attacked], _] = sent(Federation(attack=ATTACKS["inner-product"](1.0, "full")), some)
    monkeypatch.setattr(backends, "CHUNK_BYTES", 2 * 4 * 5)
    [[seen], _] = sent(Federation(), some)
    np.testing.assert_array_equal(seen.updates, whole.updates)
    expected = some.interactions @ attacked.updates.astype(np.float64) / some.interactions.sum()
    [outcome] = simulate(Federation(attack=ATTACKS["inner-product"](1.0, "full")), some, 1)
    assert outcome.weights == pytest.approx(expected, abs=1e-12)

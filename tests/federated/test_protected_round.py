"""Rounds with a mechanism: who takes part, what is noted when, and what is used again after a crash."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.federated.aggregators import Apart, Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, Scaffold
from fedrank.federated.round import first_state
from fedrank.federated.simulation import federated_round, simulate
from fedrank.privacy.clip import contributions
from fedrank.privacy.guarantees import Guarantee, Setting
from fedrank.privacy.ledger import Ledger
from fedrank.privacy.mechanisms import AtServer, FpdgdPaper, Gaussian, Laplace, OnClient, SecureAggregation
from fedrank.privacy.noise import GridNoise, SecureSource
from fedrank.privacy.secure_messages import message_bytes
from fedrank.privacy.spending import Spending
from fedrank.ranking.evolution import Evolution
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Mlp
from tests.made_up import made_up_data

DATA = made_up_data(queries=12, features=5)
IDEAL = SecureAggregation(sum="ideal")


def clients(count=10, interactions=3):
    return make_clients(DATA, count, interactions=interactions)


def source(key=0) -> SecureSource:
    return SecureSource(key=bytes([key]) * 32)


class Notes:
    """A journal in memory that also says in which order it was called."""

    def __init__(self, cohorts=None):
        self.calls, self.cohorts = [], cohorts or {}

    def kept(self, round):
        return None

    def cohort(self, round, draw):
        self.calls.append(("cohort", round))
        return self.cohorts[round] if round in self.cohorts else draw(round)

    def keep(self, round, change):
        self.calls.append(("keep", round))


@pytest.fixture
def silent(monkeypatch):
    monkeypatch.setattr(GridNoise, "draw", lambda self, shape, source: np.zeros(shape, np.int64))


@pytest.mark.parametrize("place", [OnClient(), AtServer(), IDEAL])
def test_without_noise_and_with_a_wide_clip_only_rounding_is_left(silent, place):
    some = clients()
    plain = federated_round(Federation(), first_state(Federation(), some, 1)[0], some, 1)
    federation = Federation(mechanism=Gaussian(64.0, 1.0, place))
    noised = federated_round(federation, first_state(federation, some, 1)[0], some, 1)
    assert noised.weights == pytest.approx(plain.weights, abs=64 * 2.0**-24)
    assert np.abs(plain.weights).max() > 0.01
    assert (noised.online, noised.interactions) == (plain.online, plain.interactions)


@pytest.mark.parametrize("place", [OnClient(), AtServer(), IDEAL])
@pytest.mark.parametrize("rows", [1, 3, 10])
def test_parts_add_up_to_the_same(silent, monkeypatch, place, rows):
    some = clients()
    federation = Federation(mechanism=Gaussian(0.1, 1.0, place))
    state, _ = first_state(federation, some, 1)
    whole = federated_round(federation, state, some, 1)
    monkeypatch.setattr("fedrank.federated.backends.CHUNK_BYTES", rows * 4 * 5)
    parts = federated_round(federation, state, some, 1)
    assert parts.weights == pytest.approx(whole.weights, abs=1e-15)
    assert parts.bytes_up == whole.bytes_up
    if place != OnClient():
        assert np.array_equal(parts.weights, whole.weights)


def test_in_parts_noise_at_the_server_is_drawn_once(monkeypatch):
    """Else a round of many parts would have many times the noise."""
    some = clients(50)
    federation = Federation(mechanism=Gaussian(0.1, 1.0, AtServer()))
    state, _ = first_state(federation, some, 1)
    whole = federated_round(federation, state, some, 1, noise=source())
    monkeypatch.setattr("fedrank.federated.backends.CHUNK_BYTES", 4 * 5)
    assert np.array_equal(federated_round(federation, state, some, 1, noise=source()).weights, whole.weights)


class Card:
    """Stands in for a graphics card, on which clients learn and a server shortens and adds up what they send."""

    def __init__(self, learner, clients):
        self.learner, self.clients = learner, clients

    def clipped(self, start, chance, present, clip):
        some = self.clients if present is None else self.clients.rows(present)
        learned = self.learner(start, some, chance)
        steps = contributions(learned.updates, clip.weights, clip.length, clip.norm, clip.step)
        return steps.sum(axis=0), learned.observed


@pytest.mark.parametrize("participation", [1.0, 0.7])
@pytest.mark.parametrize("rows", [2, 100])
def test_a_server_that_adds_up_on_a_card_adds_the_same_noise_here(monkeypatch, participation, rows):
    some = clients(interactions=[2, 5])
    federation = Federation(mechanism=Gaussian(0.1, 1.0, AtServer(), cap=4), participation=participation)
    here = list(simulate(federation, some, 3, noise=source()))
    monkeypatch.setattr("fedrank.federated.cuda_backend.DEVICE_BYTES", rows * 4 * 5)
    monkeypatch.setattr("fedrank.federated.simulation.find_device_learner", lambda _, *made_of: Card(*made_of))
    there = list(simulate(federation, some, 3, noise=source()))
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one.weights, other.weights)
        assert (one.online, one.interactions, one.bytes_up) == (other.online, other.interactions, other.bytes_up)


def test_the_protocol_never_opens_a_part(monkeypatch):
    pytest.importorskip("cryptography")
    from fedrank.privacy import secure_aggregation

    some, opened, real = clients(6), [], secure_aggregation.secure_sum

    def watched(values, *arguments, **options):
        opened.append(len(values))
        return real(values, *arguments, **options)

    monkeypatch.setattr(secure_aggregation, "secure_sum", watched)
    federation = Federation(mechanism=Gaussian(1.0, 1.0, SecureAggregation()))
    state, _ = first_state(federation, some, 1)
    whole = federated_round(federation, state, some, 1, noise=source())
    monkeypatch.setattr("fedrank.federated.backends.CHUNK_BYTES", 2 * 4 * 5)
    small = federated_round(federation, state, some, 1, noise=source())
    assert opened == [6, 6]
    assert np.array_equal(small.weights, whole.weights)


@pytest.mark.parametrize("kind", [Gaussian, Laplace])
def test_a_round_of_nobody_releases_noise(kind):
    some = clients()
    federation = Federation(mechanism=kind(1.0, 2.0, AtServer()), participation=0.5)
    notes = Notes(cohorts={1: np.zeros(0, dtype=np.int64)})
    state, _ = first_state(federation, some, 1)
    outcome = federated_round(federation, state, some, 1, noise=source(), journal=notes)
    assert (outcome.interactions, outcome.bytes_up) == (0, 0)
    assert np.isnan(outcome.online)
    assert np.abs(outcome.weights - state.weights).min() > 0
    assert notes.calls == [("cohort", 1), ("keep", 1)]


def test_everybody_decides_alone_whether_to_take_part_and_the_seed_has_no_say():
    some = clients(400)
    federation = Federation(mechanism=Gaussian(1.0, 1.0, AtServer()), participation=0.25)
    state, _ = first_state(federation, some, 1)
    sizes = []
    for key in range(40):
        outcome = federated_round(federation, state, some, 1, noise=source(key))
        sizes.append(outcome.interactions // 3)
    # Binomial(400, 0.25): 100 on average, with a deviation of √75 = 8.7.
    assert np.mean(sizes) == pytest.approx(100, abs=5 * 8.7 / np.sqrt(40))
    assert 5 < np.std(sizes) < 13
    again = federated_round(federation, state, some, 1)
    assert not np.array_equal(again.weights, federated_round(federation, state, some, 1).weights)


@pytest.mark.parametrize("place", [OnClient(), IDEAL])
def test_where_cohorts_are_known_they_have_a_fixed_size(place):
    some = clients(40)
    federation = Federation(mechanism=Gaussian(1.0, 1.0, place), participation=0.25)
    state, _ = first_state(federation, some, 1)
    assert {federated_round(federation, state, some, 1).interactions for _ in range(4)} == {30}


def test_no_noise_is_repeated():
    some = clients()
    federation = Federation(mechanism=Gaussian(1.0, 1.0, AtServer()))
    one, two = (federated_round(federation, first_state(federation, some, 1)[0], some, 1) for _ in range(2))
    assert not np.isclose(one.weights, two.weights).any()


def test_a_round_is_noted_before_it_is_learned_and_kept_before_it_is_used():
    order = []

    class Watching(Pdgd):
        def __call__(self, *arguments, **options):
            order.append("learn")
            return super().__call__(*arguments, **options)

    class Server:
        def first(self, size):
            return np.zeros(0)

        def __call__(self, weights, change, state):
            order.append("use")
            return weights + change, state

    notes = Notes()
    notes.calls = order
    some = clients()
    federation = Federation(Watching(), server=Server(), mechanism=Gaussian(1.0, 1.0, AtServer()))
    list(simulate(federation, some, 2, journal=notes))
    assert order == [("cohort", 1), "learn", ("keep", 1), "use", ("cohort", 2), "learn", ("keep", 2), "use"]


def test_the_journals_cohort_is_used():
    some = clients()
    federation = Federation(mechanism=Gaussian(1.0, 1.0), participation=0.3)
    notes = Notes(cohorts={1: np.array([2, 5, 7, 8])})
    outcome = federated_round(federation, first_state(federation, some, 1)[0], some, 1, journal=notes)
    assert outcome.interactions == 4 * 3


@pytest.mark.parametrize("place", [OnClient(), AtServer(), IDEAL])
def test_after_a_crash_kept_changes_are_replayed_bit_for_bit(tmp_path, place):
    some = clients()
    federation = Federation(mechanism=Gaussian(1.0, 1.0, place), participation=0.5)
    row = [Guarantee("public", None, "test")]
    with Ledger.open(tmp_path, len(some)) as ledger:
        journal = Spending(ledger, row, 8, 1e-5, None)
        first = [(out.weights, out.interactions) for out in simulate(federation, some, 5, journal=journal)]
        charged = ledger.participations()
    # The process ends here without a checkpoint; the next one begins anew.
    with Ledger.open(tmp_path, len(some)) as ledger:
        journal = Spending(ledger, row, 8, 1e-5, None)
        assert np.array_equal(ledger.participations(), charged)
        outcomes = list(simulate(federation, some, 8, journal=journal))
        for (weights, searches), outcome in zip(first, outcomes, strict=False):
            assert np.array_equal(outcome.weights, weights)
            assert outcome.interactions == searches
        assert (ledger.participations() >= charged).all()
        assert ledger.rounds() >= 8


def test_updates_that_are_no_numbers_count_as_zero():
    class Broken(Pdgd):
        def __call__(self, *arguments, **options):
            learned = super().__call__(*arguments, **options)
            learned.updates[0], learned.updates[1, 0] = np.nan, np.inf
            return learned

    some = clients()
    for place in (OnClient(), AtServer(), IDEAL):
        federation = Federation(Broken(), mechanism=Gaussian(1.0, 1.0, place))
        assert np.isfinite(federated_round(federation, first_state(federation, some, 1)[0], some, 1).weights).all()


def test_bytes_that_travel():
    some = clients()
    for learner in (Pdgd(), Evolution()):  # with noise on every weight a seed no longer says all
        federation = Federation(learner, mechanism=Gaussian(1.0, 1.0))
        assert federated_round(federation, first_state(federation, some, 1)[0], some, 1).bytes_up == 10 * 4 * 5
    federation = Federation(mechanism=Gaussian(1.0, 1.0, IDEAL))
    outcome = federated_round(federation, first_state(federation, some, 1)[0], some, 1)
    assert outcome.bytes_up == 10 * message_bytes(10, 5, 32)


@pytest.mark.parametrize("place", [OnClient(), AtServer(), IDEAL])
def test_no_client_moves_the_sum_by_more_than_is_claimed(silent, place):
    """The same round with one update replaced by zeros, or by anything else."""
    some = clients(6)
    mechanism = Gaussian(0.05, 1.0, place)
    changes = []
    for sign in (1.0, 0.0, -1e6, np.nan):

        class One(Pdgd):
            def __call__(self, *arguments, sign=sign, **options):
                learned = super().__call__(*arguments, **options)
                learned.updates[3] = sign * (1 + np.arange(5))
                return learned

        federation = Federation(One(), mechanism=mechanism)
        state, _ = first_state(federation, some, 1)
        changes.append((federated_round(federation, state, some, 1).weights - state.weights) * 6)
    given = Setting(6, 5, 1.0, (3,), Pdgd(), Mean())
    one, zero, opposite, broken = changes
    assert 0.9 * 0.05 < np.linalg.norm(one - zero) <= mechanism.reach(given) * (1 + 1e-9)
    assert np.linalg.norm(one - opposite) <= mechanism.furthest(given) * (1 + 1e-9)
    assert np.array_equal(zero, broken)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"aggregator": Apart()}, "clients send nothing"),
        ({"learner": Pdgd(ranker=Mlp(hidden=4)), "local": FedPer()}, "FedPer keeps personal weights at clients"),
        ({"local": Scaffold()}, "Scaffold reads every client's gradient"),
    ],
)
@pytest.mark.parametrize("mechanism", [Gaussian(1.0, 1.0), Gaussian(1.0, 1.0, AtServer()), FpdgdPaper(1.2)])
def test_what_no_mechanism_protects_is_refused(options, problem, mechanism):
    with pytest.raises(ValueError, match=problem):
        Federation(**options, mechanism=mechanism)


def test_rules_that_must_see_single_updates_need_noise_on_the_client():
    class Median:
        def __call__(self, arrived):
            return np.median(arrived.updates.astype(np.float64), axis=0)

    for place in (AtServer(), IDEAL):
        with pytest.raises(ValueError, match="Median needs single updates"):
            Federation(aggregator=Median(), mechanism=Gaussian(1.0, 1.0, place))
    some = clients()
    federation = Federation(aggregator=Median(), mechanism=Gaussian(1.0, 1.0))
    assert np.isfinite(federated_round(federation, first_state(federation, some, 1)[0], some, 1).weights).all()

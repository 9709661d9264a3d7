"""A trait from outside that does not hold is refused by name before the first round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from fedrank.federated.aggregators import Mean, part_of, whole_of
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.server_optimizers import Add, Momentum
from fedrank.federated.simulation import simulate
from fedrank.federated.traits import TraitError, from_outside
from fedrank.kernels.records import ADD, CompiledStep
from fedrank.privacy.mechanisms import Gaussian
from fedrank.ranking.learners import Pdgd
from fedrank.types import Learned, Messages, fast_path, has_trait
from tests.made_up import made_up_data

CLIENTS = make_clients(made_up_data(queries=30), 6, interactions=[1, 2, 3, 4, 5, 6])


@dataclass(frozen=True)
class OwnMean:
    """The mean by interactions, as somebody else writes it."""

    factor: float = 1.0
    traits: ClassVar = frozenset({"mean"})

    def client_weights(self, sizes):
        return sizes**self.factor

    def __call__(self, messages):
        return messages.sizes @ messages.updates.astype(np.float64) / messages.sizes.sum()


@dataclass(frozen=True)
class OwnSum:
    """The sum of updates; `wrong` forgets something in every part."""

    wrong: float = 0.0
    traits: ClassVar = frozenset({"sum"})

    def part(self, messages):
        return messages.updates.sum(axis=0, dtype=np.float64) + self.wrong

    def whole(self, total):
        return total

    def __call__(self, messages):
        return messages.updates.sum(axis=0, dtype=np.float64)


@dataclass(frozen=True)
class OwnStep:
    """Adds twice the change; `says` is what its compiled step does."""

    says: float = 2.0

    def first(self, size):
        return np.zeros(0)

    def __call__(self, weights, change, state):
        return weights + 2.0 * change, state

    def compiled_step(self):
        return CompiledStep(ADD, self.says, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Coupled(Pdgd):
    """A client's update depends on how many others learn in the same call."""

    def __call__(self, start, clients, *arguments, **options):
        learned = super().__call__(start, clients, *arguments, **options)
        return Learned(learned.updates * len(clients), learned.observed)


def last_model(federation, **options):
    return [*simulate(federation, CLIENTS, 3, **options)][-1].weights


def test_an_own_mean_gives_what_ours_gives():
    expected = last_model(Federation())
    assert np.allclose(last_model(Federation(aggregator=OwnMean())), expected, rtol=1e-12, atol=0)


def test_a_mean_with_other_weights_than_it_says_is_refused():
    with pytest.raises(TraitError, match=r'test_traits:OwnMean declares the trait "mean".*largest difference'):
        last_model(Federation(aggregator=OwnMean(factor=2.0)))


def test_a_sum_whose_parts_do_not_add_up_is_refused():
    assert np.isfinite(last_model(Federation(aggregator=OwnSum()))).all()
    with pytest.raises(TraitError, match=r'OwnSum declares the trait "sum".*or remove the trait'):
        last_model(Federation(aggregator=OwnSum(wrong=0.1)))


def test_a_compiled_step_that_moves_differently_is_refused():
    assert np.allclose(last_model(Federation(server=OwnStep())), last_model(Federation(server=Add(2.0))), atol=0)
    with pytest.raises(TraitError, match=r"compiled_step of the server optimizer .*OwnStep"):
        last_model(Federation(server=OwnStep(says=3.0)))


def test_a_learner_that_looks_at_other_clients_is_refused_where_they_learn_in_chunks(monkeypatch):
    last_model(Federation(Coupled()))
    monkeypatch.setattr("fedrank.federated.backends.CHUNK_BYTES", 2 * 4 * 5)
    with pytest.raises(TraitError, match=r"learner .*Coupled returns a different update"):
        last_model(Federation(Coupled()))


def test_nothing_is_checked_with_noise_and_nothing_of_ours():
    """Noise hides every difference, and the sum of a mechanism takes the place of the aggregator."""
    last_model(Federation(aggregator=OwnMean(factor=2.0), mechanism=Gaussian(1.0, 1.0)))
    assert from_outside(OwnMean())
    assert not from_outside(Mean())


def test_a_subclass_that_replaces_the_call_has_no_fast_path():
    class Slower(Momentum):
        def __call__(self, weights, change, state):
            return weights, state

    class Renamed(Momentum):
        pass

    assert fast_path(Momentum(), "compiled_step")() == fast_path(Renamed(), "compiled_step")()
    assert fast_path(Slower(), "compiled_step") is None
    assert fast_path(OwnMean(), "compiled_step") is None


def test_a_mean_is_a_sum_by_hand():
    updates = np.array([[1.0, 2.0], [3.0, 6.0]], dtype=np.float32)
    messages = Messages(updates, np.array([1, 3]), np.arange(2), np.zeros(2))
    assert has_trait(Mean(), "sum")
    assert part_of(Mean(), messages).tolist() == [10.0, 20.0, 4.0]
    assert whole_of(Mean(), part_of(Mean(), messages)).tolist() == [2.5, 5.0]
    assert whole_of(Mean(), np.zeros(3)).tolist() == [0.0, 0.0]

"""Robust rules on updates that stay in a machine's memory, against those of the processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedrank as fr
from fedrank.federated.server import RoundError
from fedrank.federated.simulation import simulate
from fedrank.ranking.cuda.robust import RobustOnDevice
from fedrank.types import Messages
from tests.cuda_on_cpu import Processor
from tests.ranking.cuda.test_twins import problem

pytestmark = pytest.mark.build

RULES = {
    "krum": fr.aggregators.Krum(),
    "krum squared": fr.aggregators.Krum(distance="squared", attackers=0.3),
    "multi-krum": fr.aggregators.MultiKrum(),
    "trimmed mean": fr.aggregators.TrimmedMean(attackers=0.25),
    "trimmed of nobody": fr.aggregators.TrimmedMean(attackers=0.0),
    "median": fr.aggregators.Median(),
}


def change_of(rule: Any, updates: Any) -> Any:
    count = len(updates)
    return rule(Messages(updates, np.ones(count, np.int64), np.arange(count), np.zeros(updates.shape[1]), 1))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("clients", [7, 32, 48, 49, 130, 700])
def test_a_rule_gives_the_same_there(machine: Processor, rule: Any, clients: int) -> None:
    updates = np.random.default_rng(clients).normal(size=(clients, 21)).astype(np.float32)
    updates[1] *= 50.0
    updates[2] = updates[3]  # ties
    expected, found = change_of(rule, updates), rule.on_device(RobustOnDevice(machine, updates))
    assert found is not None
    if clients <= 48 or "krum" in type(rule).__name__.lower() or isinstance(rule, fr.aggregators.Median):
        assert np.array_equal(expected, found)  # the same bits; of Krum's rules, the same choice
    else:
        assert np.abs(expected - found).max() < 1e-12


def test_a_median_by_hand(machine: Processor) -> None:
    updates = np.array([[3.0, 1.0], [1.0, 9.0], [2.0, 5.0], [10.0, 6.0]], dtype=np.float32)
    assert fr.aggregators.Median().on_device(RobustOnDevice(machine, updates)).tolist() == [2.5, 5.5]


def test_updates_that_are_not_finite_are_left_to_the_processor(machine: Processor) -> None:
    updates = np.ones((5, 3), dtype=np.float32)
    updates[4, 2] = np.inf
    assert not RobustOnDevice(machine, updates).sound()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_rounds_with_a_rule_there_are_those_of_the_processor(
    machine: Processor, rule: Any, participation: float
) -> None:
    clients = fr.make_clients(problem(3, 12, 40), count=20, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2), rule, participation=participation)
    here, there = (list(simulate(federation, clients, 4, seed=4, device=device)) for device in ("cpu", machine))
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one.weights, other.weights)
        assert (one.online, one.interactions, one.bytes_up) == (other.online, other.interactions, other.bytes_up)


def test_too_few_clients_are_refused_in_the_same_words(machine: Processor) -> None:
    clients = fr.make_clients(problem(3, 12, 40), count=2, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2), fr.aggregators.Krum(attackers=0.0))
    said = []
    for device in ("cpu", machine):
        with pytest.raises(RoundError, match="Krum has no neighbours") as problem_found:
            list(simulate(federation, clients, 1, device=device))
        said.append(str(problem_found.value))
    assert said[0] == said[1]

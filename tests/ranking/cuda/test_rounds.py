"""Many rounds in one call: the same bits as round by round on the processor."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import fedrank as fr
from fedrank.federated.multi_round import MultiRound
from fedrank.federated.round import Outcome
from fedrank.federated.simulation import simulate
from fedrank.kernels.devices import Processor
from fedrank.privacy.mechanisms import AtServer
from fedrank.privacy.noise import SecureSource
from tests.ranking.cuda.test_twins import LEARNERS, problem

pytestmark = pytest.mark.build

SERVERS = {
    "add": fr.server_optimizers.Add(rate=0.7),
    "momentum": fr.server_optimizers.Momentum(rate=0.5, momentum=0.8),
    "adam": fr.server_optimizers.Adam(rate=0.05),
}


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.round == other.round
    assert np.array_equal(one.weights, other.weights)
    assert np.array_equal(one.state.server, other.state.server)
    assert (one.online, one.interactions, one.excluded) == (other.online, other.interactions, other.excluded)
    assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


@pytest.mark.parametrize("server", SERVERS.values(), ids=SERVERS)
@pytest.mark.parametrize(("participation", "weighted"), [(1.0, True), (0.4, True), (0.4, False)])
def test_rounds_in_one_call_are_those_one_by_one(
    machine: Processor, server: Any, participation: float, weighted: bool
) -> None:
    clients = fr.make_clients(problem(3, 13, 40), count=9, click_model="informational", interactions=5)
    clients.interactions[[2, 5]] = (0, 9)  # they need not be alike
    rule = fr.aggregators.Mean(weighted=weighted)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2), rule, server, participation=participation)
    here, there = (list(simulate(federation, clients, 7, seed=4, device=device)) for device in ("cpu", machine))
    assert len(there) == 7
    for one, other in zip(here, there, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("settings", LEARNERS.values(), ids=LEARNERS)
@pytest.mark.parametrize("shape", [(5, 7), (46, 41), (136, 130)])
def test_teams_learn_as_single_warps_do(machine: Processor, settings: dict[str, float], shape: tuple[int, int]) -> None:
    learner = fr.learners.Pdgd(**{"rate": 0.1, **settings})  # type: ignore[arg-type]
    clients = fr.make_clients(problem(5, *shape), count=4, click_model="informational", interactions=4, seed=2)
    federation = fr.Federation(learner)
    with np.errstate(all="ignore"):
        here, there = (list(simulate(federation, clients, 3, seed=1, device=device)) for device in ("cpu", machine))
    for one, other in zip(here, there, strict=True):
        assert_same(one, other)


def test_a_round_of_which_one_update_is_not_finite_is_done_by_itself(machine: Processor) -> None:
    data = problem(3, 6, 20)
    data.features[data.offsets[4] : data.offsets[5]] = 3e38  # whoever is shown this query diverges
    clients = fr.make_clients(data, count=6, click_model="informational", interactions=2, seed=3)
    federation = fr.Federation(fr.learners.Pdgd(rate=10.0))
    with np.errstate(all="ignore"):
        here, there = (list(simulate(federation, clients, 25, seed=1, device=device)) for device in ("cpu", machine))
    assert any(outcome.excluded for outcome in here)
    assert any(not outcome.excluded for outcome in here)
    for one, other in zip(here, there, strict=True):
        assert_same(one, other)


def test_a_run_goes_on_from_any_round_of_a_call(machine: Processor) -> None:
    clients = fr.make_clients(problem(3, 12, 40), count=5, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2), server=fr.server_optimizers.Adam())
    *_, third = islice(simulate(federation, clients, 8, device=machine), 3)
    *_, last = simulate(federation, clients, 8, state=third.state)
    *_, expected = simulate(federation, clients, 8)
    assert_same(expected, last)


def test_who_needs_updates_or_another_step_gets_rounds_one_by_one(machine: Processor) -> None:
    from fedrank.ranking.cuda.pdgd import PdgdOnDevice

    class Own(fr.server_optimizers.Add):
        """A step from outside."""

        def __call__(self, weights, change, state):  # type: ignore[no-untyped-def]
            return super().__call__(weights, change, state)

    clients = fr.make_clients(problem(3, 12, 40), count=5, click_model="informational", interactions=5)
    learner = fr.learners.Pdgd(rate=0.2)
    there = PdgdOnDevice(machine, learner, clients)
    assert MultiRound.of(there, fr.Federation(learner), clients, 1, True) is not None
    assert MultiRound.of(there, fr.Federation(learner, server=Own()), clients, 1, True) is None
    assert MultiRound.of(None, fr.Federation(learner), clients, 1, True) is None


@pytest.mark.parametrize("mechanism", [None, fr.mechanisms.Gaussian(0.2, 1.0, AtServer())])
def test_a_dealt_schedule_is_that_of_the_processor(machine: Processor, mechanism: Any) -> None:
    """Groups of different sizes, which many rounds in one call cannot have."""
    clients = fr.make_clients(problem(3, 13, 40), count=10, click_model="informational", interactions=5)
    federation = fr.Federation(fr.learners.Pdgd(rate=0.2), mechanism=mechanism, dealt=4)
    here, there = (
        list(simulate(federation, clients, 4, seed=4, device=device, noise=SecureSource(bytes(32))))
        for device in ("cpu", machine)
    )
    assert [one.interactions for one in there] == [15, 15, 10, 10]
    for one, other in zip(here, there, strict=True):
        assert_same(one, other)

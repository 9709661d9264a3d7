"""Twins of neural PDGD and of FOLtR-ES, compiled as C++ for this processor: the same bits as the loops themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedrank as fr
from fedrank.federated.simulation import simulate
from fedrank.kernels.devices import FAST_MEMORY, Device, DeviceError
from fedrank.privacy.mechanisms import AtServer
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.cuda import neural
from fedrank.ranking.cuda.choice import find_device_learner, why_not
from fedrank.seeds import Chance
from fedrank.types import NO_CORRECTION, Learner, LocalCorrection
from tests.cuda_on_cpu import Processor
from tests.ranking.cuda.test_twins import problem

pytestmark = pytest.mark.build

RANKERS = {
    "sigmoid 16": fr.rankers.Mlp(hidden=16),
    "sigmoid 5": fr.rankers.Mlp(hidden=5),
    "sigmoid 70": fr.rankers.Mlp(hidden=70),
    "relu 10": fr.rankers.Relu(10, start="normal"),
    "relu 33": fr.rankers.Relu(33, start="normal"),
}
LEARNERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch": {"batch": True},
    "cold and kept": {"temperature": 0.3, "keep": 0.5},
    "far apart": {"temperature": 0.0001},
    "clipped weights": {"clip_weights": 0.5},
    "clipped gradients": {"batch": True, "clip_gradients": 0.01},
    "steps too large": {"rate": 1e6},
}


def alike(
    machine: Device,
    learner: Learner,
    clients: Any,
    start: Any,
    chance: Chance,
    correction: LocalCorrection = NO_CORRECTION,
) -> None:
    expected = learner(start, clients, chance, correction)
    found = learner.on_device(machine, clients).learned(start, chance, None, correction)
    assert np.array_equal(expected.observed.online, found.observed.online)
    assert np.array_equal(expected.updates, found.updates, equal_nan=True)
    if expected.sent is not None:
        assert found.sent is not None
        for name in ("seed", "plus", "minus"):
            assert np.array_equal(expected.sent[name], found.sent[name], equal_nan=name != "seed")
        assert np.array_equal(expected.observed.reward, found.observed.reward)


def start_of(ranker: Any, features: int, seed: int) -> Any:
    return ranker.first(features, np.random.default_rng(seed)) * 5


@pytest.mark.parametrize("settings", LEARNERS.values(), ids=LEARNERS)
@pytest.mark.parametrize("ranker", RANKERS.values(), ids=RANKERS)
def test_neural_twin_gives_the_same_bits(machine: Processor, ranker: Any, settings: dict[str, Any]) -> None:
    learner = fr.learners.Pdgd(ranker, **{"rate": 0.3, **settings})
    for seed, (features, longest) in enumerate([(5, 7), (46, 41), (9, 200)]):
        clients = fr.make_clients(
            problem(seed, features, longest), count=4, click_model="informational", interactions=4
        )
        alike(machine, learner, clients, start_of(ranker, features, seed), Chance(seed, 5))


def test_models_too_large_for_any_fast_memory(machine: Processor) -> None:
    ranker, features = fr.rankers.Mlp(hidden=40), 1500
    assert neural.group_shared_bytes(features, 40, 20) > FAST_MEMORY
    clients = fr.make_clients(problem(2, features, 20), count=2, click_model="informational", interactions=2)
    start = start_of(ranker, features, 1)
    for learner in (fr.learners.Pdgd(ranker), fr.learners.Evolution(ranker)):
        alike(machine, learner, clients, start, Chance(1, 1))


@pytest.mark.parametrize("rate", [1e-38, 1e-42, 1e-50])
def test_steps_from_zero_that_are_next_to_nothing(machine: Processor, rate: float) -> None:
    """The plain loop keeps numbers in two halves, of which the upper one has no room for these."""
    ranker, features = fr.rankers.Mlp(hidden=4), 6
    start = start_of(ranker, features, 1)
    start[: 4 * 3] = 0.0  # all weights of three features
    clients = fr.make_clients(problem(2, features, 40), count=20, click_model="informational", interactions=6)
    learner = fr.learners.Pdgd(ranker, rate=rate)
    expected = learner(start, clients, Chance(1, 1)).updates
    found = learner.on_device(machine, clients).learned(start, Chance(1, 1), None, NO_CORRECTION).updates
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-37)


def test_neural_twin_bends_as_the_loop_does(machine: Processor) -> None:
    ranker = fr.rankers.Mlp(hidden=6)
    clients = fr.make_clients(problem(1, 12, 40), count=5, click_model="informational", interactions=5)
    rng = np.random.default_rng(1)
    start = start_of(ranker, 12, 1)
    correction = LocalCorrection(pull=0.3, drifts=rng.normal(size=(5, len(start))))
    alike(machine, fr.learners.Pdgd(ranker, rate=0.2), clients, start, Chance(1, 1), correction)


@pytest.mark.parametrize("settings", [{}, {"reward": "dcg"}, {"truth": 0.6}, {"deviation": 1.0}])
@pytest.mark.parametrize("ranker", [fr.rankers.Linear(), fr.rankers.Relu(10), fr.rankers.Mlp(hidden=40)])
def test_evolution_twin_gives_the_same_bits(machine: Processor, ranker: Any, settings: dict[str, Any]) -> None:
    learner = fr.learners.Evolution(ranker, **settings)
    for seed, (features, longest) in enumerate([(5, 7), (8, 33), (46, 41), (13, 150)]):
        clients = fr.make_clients(
            problem(seed, features, longest), count=9, click_model="informational", interactions=5
        )
        alike(machine, learner, clients, ranker.first(features, np.random.default_rng(seed)), Chance(seed, 5))


@pytest.mark.parametrize("ranker", [fr.rankers.Linear(), fr.rankers.Relu(4)])
def test_lists_with_ties_and_with_no_numbers(machine: Processor, ranker: Any) -> None:
    data = problem(3, 6, 60)
    data.features[:] = np.round(data.features)  # few different scores
    data.features[5:9] = np.nan
    clients = fr.make_clients(data, count=20, click_model="navigational", interactions=4)
    start = np.zeros(ranker.size(6))
    alike(machine, fr.learners.Evolution(ranker, deviation=1e-30), clients, start, Chance(1, 1))
    alike(machine, fr.learners.Evolution(ranker, deviation=1e30), clients, start, Chance(1, 1))


@pytest.mark.parametrize("participation", [1.0, 0.4])
@pytest.mark.parametrize(
    "learner",
    [
        fr.learners.Evolution(),
        fr.learners.Evolution(fr.rankers.Relu(3)),
        fr.learners.Pdgd(fr.rankers.Mlp(hidden=7)),
    ],
)
@pytest.mark.parametrize("rule", [fr.aggregators.Mean(), fr.aggregators.Median()])
def test_rounds_on_a_machine_are_those_of_the_processor(
    machine: Processor,
    learner: Learner,
    rule: Any,
    participation: float,
) -> None:
    clients = fr.make_clients(problem(3, 12, 40), count=10, click_model="informational", interactions=4)
    federation = fr.Federation(learner, rule, participation=participation)
    far = list(simulate(federation, clients, 3, seed=4, device=machine))
    for one, other in zip(simulate(federation, clients, 3, seed=4), far, strict=True):
        assert np.array_equal(one.weights, other.weights)
        assert (one.online, one.reward, one.bytes_up) == (other.online, other.reward, other.bytes_up)


@pytest.mark.parametrize("mechanism", [fr.mechanisms.Gaussian, fr.mechanisms.Laplace])
@pytest.mark.parametrize("learner", [fr.learners.Pdgd(rate=3.0), fr.learners.Pdgd(fr.rankers.Mlp(hidden=7), rate=1e30)])
def test_a_trusted_server_clips_there_as_it_does_here(
    machine: Processor,
    monkeypatch: pytest.MonkeyPatch,
    learner: Learner,
    mechanism: Any,
) -> None:
    monkeypatch.setattr("fedrank.federated.cuda_backend.DEVICE_BYTES", 4 * 12 * 9)
    clients = fr.make_clients(problem(3, 12, 40), count=20, click_model="informational", interactions=[2, 5])
    trusted = mechanism(clip=0.5, noise=0.3, placement=AtServer(), cap=4)
    federation = fr.Federation(learner, mechanism=trusted, participation=0.7)
    assert learner(start_of(learner.ranker, 12, 1), clients, Chance(4, 1)).updates.max() > 0.5  # some are shortened
    here, far = (
        list(simulate(federation, clients, 4, seed=4, noise=SecureSource(bytes(32)), device=device))
        for device in ("cpu", machine)
    )
    for one, other in zip(here, far, strict=True):
        assert np.array_equal(one.weights, other.weights)
        assert (one.online, one.bytes_up, one.interactions) == (other.online, other.bytes_up, other.interactions)


def test_what_has_no_twin_is_named(machine: Processor) -> None:
    clients = fr.make_clients(problem(1, 12, 40), count=3, click_model="informational", interactions=5)
    shared = fr.learners.Evolution(chance="shared")
    assert "shared" in why_not(shared, clients)
    with pytest.raises(DeviceError, match='chance = "shared" is not available'):
        find_device_learner(machine, shared, clients)
    assert find_device_learner("auto", shared, clients) is None
    assert "LambdaRank" in why_not(fr.learners.LambdaRank(), clients)


def test_who_searches_once_is_refused_there_too(machine: Processor) -> None:
    clients = fr.make_clients(problem(1, 12, 40), count=3, click_model="informational", interactions=1)
    with pytest.raises(ValueError, match="has one search per round"):
        find_device_learner(machine, fr.learners.Evolution(), clients)


def test_crews_have_room_for_what_they_hold() -> None:
    # 136 features and 64 units, lists of 120: four crews on one multiprocessor of 228 KiB, which keeps 1 KiB of each
    assert 4 * (neural.group_shared_bytes(136, 64, 120) + 1024) <= 228 << 10

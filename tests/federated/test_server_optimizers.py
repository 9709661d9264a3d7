"""Server steps, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.server_optimizers import SERVER_OPTIMIZERS, Adam, Add, Momentum
from fedrank.federated.simulation import simulate
from tests.made_up import made_up_data


def walk(step, weights, changes):
    weights = np.asarray(weights, dtype=float)
    state = step.first(weights.size)
    for change in changes:
        weights, state = step(weights, np.asarray(change, dtype=float), state)
    return weights


def test_add_by_hand():
    assert walk(Add(rate=0.5), [1.0, 2.0], [[2.0, -4.0]]).tolist() == [1 + 0.5 * 2, 2 - 0.5 * 4]


def test_momentum_by_hand():
    after = walk(Momentum(rate=0.1, momentum=0.5), [1.0], [[4.0], [6.0], [-1.0]])
    first, second = 4.0, 0.5 * 4 + 6
    third = 0.5 * second - 1
    assert after == pytest.approx([1 + 0.1 * first + 0.1 * second + 0.1 * third])


def test_momentum_zero_is_add():
    changes = np.random.default_rng(1).standard_normal((5, 3))
    assert walk(Momentum(rate=0.3, momentum=0.0), np.zeros(3), changes) == pytest.approx(
        walk(Add(rate=0.3), np.zeros(3), changes)
    )


def test_adam_by_hand():
    first = walk(Adam(), [0.5], [[3.0]])
    assert first == pytest.approx([0.5 + 0.001 * 3 / (math.sqrt(3.0**2) + 1e-8)], rel=1e-12)
    two = walk(Adam(rate=0.1, beta1=0.8, beta2=0.5, epsilon=0.25), [0.0], [[3.0], [-1.0]])
    step_1 = 0.1 * 3 / (math.sqrt(9) + 0.25)
    mean = (0.8 * 0.2 * 3 + 0.2 * -1) / (1 - 0.8**2)
    square = (0.5 * 0.5 * 9 + 0.5 * 1) / (1 - 0.5**2)
    assert two == pytest.approx([step_1 + 0.1 * mean / (math.sqrt(square) + 0.25)], rel=1e-12)


def test_adam_climbs_and_ignores_the_scale_of_changes():
    changes = np.random.default_rng(1).standard_normal((40, 6)) + 1
    small, large = walk(Adam(), np.zeros(6), 1e-2 * changes), walk(Adam(), np.zeros(6), 1e4 * changes)
    assert small == pytest.approx(large, rel=1e-4)
    assert (small > 0).all()
    assert (np.abs(small) <= 40 * 0.001 * 1.5).all()


@pytest.mark.parametrize("name", sorted(SERVER_OPTIMIZERS))
def test_rows_of_weights_move_independently_and_arguments_are_left_alone(name):
    step = SERVER_OPTIMIZERS[name]()
    rng = np.random.default_rng(2)
    weights, changes = rng.standard_normal((3, 4)), rng.standard_normal((5, 3, 4))
    kept = weights.copy()
    together = walk(step, weights, changes)
    assert together.shape == (3, 4)
    for row in range(3):
        assert together[row] == pytest.approx(walk(step, weights[row], changes[:, row]), rel=1e-12)
    assert np.array_equal(weights, kept)
    state = step.first(4)
    before = state.copy()
    step(weights[0], changes[0, 0], state)
    assert np.array_equal(state, before)
    assert state.dtype == np.float64
    assert state.ndim == 1


@pytest.mark.parametrize("name", sorted(SERVER_OPTIMIZERS))
def test_a_run_resumes_with_what_the_server_remembers(name):
    clients = make_clients(made_up_data(), 4)
    federation = Federation(server=SERVER_OPTIMIZERS[name](), participation=0.5)
    whole = list(simulate(federation, clients, 6))
    resumed = list(simulate(federation, clients, 6, state=whole[2].state))
    assert np.array_equal(whole[-1].weights, resumed[-1].weights)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Momentum(rate=0.0), "rate must be positive"),
        (lambda: Momentum(momentum=1.0), "momentum must be at least 0"),
        (lambda: Adam(rate=-1.0), "rate must be positive"),
        (lambda: Adam(beta1=1.0), "beta1 must be at least 0"),
        (lambda: Adam(beta2=-0.1), "beta2 must be at least 0"),
        (lambda: Adam(epsilon=0.0), "epsilon must be positive"),
    ],
)
def test_useless_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()

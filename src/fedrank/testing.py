"""Contract checks for user-defined methods; call them in your tests.

Each check raises an AssertionError with what the method did and what it must do.

>>> import fedrank as fr
>>> fr.testing.check_aggregator(fr.aggregators.Median())
>>> fr.testing.check_click_model(lambda labels, draws: draws[::2] < labels / 4)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.round import first_state
from fedrank.federated.server import ServerTask, State, combine, method_name
from fedrank.federated.simulation import federated_round
from fedrank.federated.traits import check_rows, check_sum
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.impressions import learn_one_by_one
from fedrank.ranking.rankers import Linear
from fedrank.seeds import Chance, rng_for
from fedrank.types import Messages, Peers, SimulatedClients, has_trait

__all__ = [
    "check_aggregator",
    "check_attack",
    "check_click_model",
    "check_learner",
    "check_mechanism",
    "check_partition",
]

CLIENTS, PARAMETERS, SEED = 12, 7, 1


def check_aggregator(aggregator: Any) -> None:
    """Check that an aggregator returns a finite change, and is a sum if it declares that trait."""
    messages = _messages()
    task = ServerTask(Federation(aggregator=aggregator), CLIENTS)
    apart = has_trait(aggregator, "apart")
    state = replace(task.first(np.zeros((CLIENTS, PARAMETERS) if apart else PARAMETERS)), round=1)

    def change() -> Any:
        return combine(task, state, [(messages, np.arange(CLIENTS))], CLIENTS, streaming=False).change

    _check_pure(aggregator, change, messages)
    if has_trait(aggregator, "sum"):
        _assert_holds(lambda: check_sum(aggregator, messages))


def check_learner(learner: Any) -> None:
    """Check that a client's update depends only on this client, and is not zero."""
    clients = _clients()
    start = first_state(Federation(learner), clients, SEED)[0].weights

    def updates(some: SimulatedClients = clients) -> Any:
        return learner(start, some, Chance(SEED, 1)).updates

    found = _check_pure(learner, updates, (start, clients.data.features))
    _require(
        np.shape(found) == (len(clients), len(start)),
        f"{method_name(learner)} returned updates of shape {np.shape(found)}; return one row per client "
        f"({len(clients)}) with {len(start)} parameters",
    )
    _require(np.isfinite(found).all(), f"{method_name(learner)} returned updates that are not finite")
    _require(bool(np.any(found)), f"{method_name(learner)} returned only zeros for {len(clients)} clients")
    _assert_holds(lambda: check_rows(learner, found[:3], updates(clients.rows(slice(0, 3)))))
    if hasattr(learner, "from_impressions"):
        alone = learn_one_by_one(learner, start, clients, Chance(SEED, 1)).updates
        _require(
            np.allclose(found, alone, rtol=1e-5, atol=1e-7),
            f"{method_name(learner)} learns differently from impressions (from_impressions) than in a simulation "
            "(__call__); make both equal, since deployed clients use the former",
        )


def check_click_model(model: Any) -> None:
    """Check that a click model returns a Boolean per result that depends only on labels and draws."""
    with warnings.catch_warnings(action="ignore"):  # a warning that it is slow
        clients = make_clients(_data(), 4, click_model=model, interactions=10)
    outcome = federated_round(Federation(), State(0, np.zeros(clients.data.features.shape[1])), clients, SEED)
    _require(np.isfinite(outcome.weights).all(), f"{method_name(model)} led to a model that is not finite")
    rng, clicks = rng_for(SEED, "check"), 0
    for count in range(1, 11):
        labels, draws = rng.integers(0, 3, count).astype(np.int8), rng.random(2 * count)
        found = _check_pure(model, partial(model, labels, draws), (labels, draws))
        clicks += int(np.sum(found))
    _require(clicks > 0, f"{method_name(model)} never clicks, so nothing can be learned from it")


def check_attack(attack: Any) -> None:
    """Check that an attack changes only the updates of malicious clients."""
    messages, malicious = _messages(), np.arange(CLIENTS) < 3
    found = _check_pure(attack, lambda: attack(messages, malicious, rng_for(SEED, "attack")).updates, messages)
    _require(
        np.shape(found) == messages.updates.shape,
        f"{method_name(attack)} returned updates of shape {np.shape(found)} instead of {messages.updates.shape}",
    )
    _require(
        np.array_equal(found[~malicious], messages.updates[~malicious]),
        f"{method_name(attack)} changes the updates of honest clients; change rows where `malicious` is true",
    )
    nobody = np.zeros(CLIENTS, dtype=np.bool_)
    _require(
        np.array_equal(attack(messages, nobody, rng_for(SEED, "attack")).updates, messages.updates),
        f"{method_name(attack)} changes updates although no client is malicious",
    )


def check_mechanism(mechanism: Any) -> None:
    """Check that a mechanism treats each client separately, with randomness only from its source."""
    messages = _messages()

    def sent(key: bytes, rows: slice = slice(None)) -> Any:
        return mechanism.protect(messages.rows(rows), float(CLIENTS), SecureSource(key=key * 32)).updates

    found = _check_pure(mechanism, lambda: sent(b"a"), messages)
    _require(
        np.shape(found) == messages.updates.shape,
        f"{method_name(mechanism)} returned updates of shape {np.shape(found)} instead of {messages.updates.shape}",
    )
    if np.array_equal(found, sent(b"b")):  # without noise, rows can be compared
        _require(
            np.array_equal(found[:4], sent(b"a", slice(0, 4))),
            f"{method_name(mechanism)} makes a client's message depend on other clients; use only its own row",
        )
    _require(
        isinstance(getattr(mechanism, "sees", None), str),
        f"{method_name(mechanism)} must describe in `sees` which party sees what",
    )
    outcome = federated_round(Federation(mechanism=mechanism), State(0, np.zeros(5)), _clients(5), SEED)
    _require(np.isfinite(outcome.weights).all(), f"{method_name(mechanism)} made a model that is not finite")


def check_partition(partition: Any) -> None:
    """Check that a partition gives every client queries of the data, deterministically by seed."""
    data = _data()

    def pools() -> list[list[int]]:
        split = partition(data, 4, rng_for(SEED, "partition"))
        return [np.asarray(split.pools[pool]).tolist() for pool in split.pool]

    first, again = pools(), pools()
    _require(
        first == again, f"{method_name(partition)} returns different queries for the same seed; draw only from its rng"
    )
    _require(
        len(first) == 4 and all(first),
        f"{method_name(partition)} returned pools of {[len(pool) for pool in first]} queries for 4 clients; none may "
        "be empty",
    )
    clients = make_clients(data, 4, partition=partition)
    inside = (clients.queries >= 0) & (clients.queries < clients.data.queries)
    _require(bool(inside.all()), f"{method_name(partition)} returned queries that the data do not have")


def _data(features: int = 46) -> RankingData:
    data = synthetic("mq2007", queries=20)
    return data if features == 46 else replace(data, features=np.ascontiguousarray(data.features[:, :features]))


def _clients(features: int = 46) -> SimulatedClients:
    return make_clients(_data(features), 6, click_model="informational", interactions=[2, 4, 6])


def _messages() -> Messages:
    rng = rng_for(SEED, "check")
    updates = rng.standard_normal((CLIENTS, PARAMETERS)).astype(np.float32)
    shown, lists = np.full((CLIENTS, 4), 3), rng.standard_normal((CLIENTS, 4, 3, PARAMETERS)).astype(np.float32)
    peers = Peers(updates, lists, shown, rng.random((CLIENTS, 4, 3)) < 0.5, Linear())
    sizes, start = rng.integers(1, 9, CLIENTS), np.zeros(PARAMETERS)
    return Messages(updates, sizes, np.arange(CLIENTS), start, 1, root=updates[0], peers=peers)


def _check_pure(method: Any, call: Callable[[], Any], inputs: Any) -> Any:
    """Return the result of a call; a second call must return the same, and neither may change its inputs."""
    before = deepcopy(inputs)
    result, again = call(), call()
    _require(np.array_equal(result, again), f"{method_name(method)} returns a different result for the same input")
    _require(_same(before, inputs), f"{method_name(method)} changes its input; copy it first")
    return result


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple):
        return all(map(_same, one, other))
    if isinstance(one, Messages):
        return np.array_equal(one.updates, other.updates) and np.array_equal(one.sizes, other.sizes)
    return bool(np.array_equal(one, other))


def _assert_holds(check: Callable[[], None]) -> None:
    try:
        check()
    except ValueError as problem:
        raise AssertionError(str(problem)) from None


def _require(holds: bool | np.bool_, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)

"""Federated training in simulation: `simulate` yields an outcome after each round."""

from __future__ import annotations

from collections.abc import Iterator

from fedrank.federated.backends import Compiled, Reference
from fedrank.federated.cuda_backend import Cuda
from fedrank.federated.federation import Federation
from fedrank.federated.round import Backend, Journal, Outcome, RoundContext, Watch, check_fits, first_state, run_round
from fedrank.federated.server import State
from fedrank.kernels.devices import Device
from fedrank.ranking.cuda.choice import find_device_learner
from fedrank.types import Memory, SimulatedClients, Source, Weights


def federated_round(
    federation: Federation,
    state: State,
    clients: SimulatedClients,
    seed: int,
    memory: Memory = None,
    threads: int = 1,
    *,
    noise: Source | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """Run one round of federated learning. `noise` is for tests: a mechanism uses the system's secure source.

    `watch` is called with the messages that reached the server.
    """
    check_fits(state, federation, clients)
    context = RoundContext(federation, clients, seed, threads, noise, journal, watch)
    return run_round(context, Compiled(context), state, memory)


def simulate(
    federation: Federation,
    clients: SimulatedClients,
    rounds: int,
    seed: int = 1,
    *,
    start: Weights | None = None,
    state: State | None = None,
    memory: Memory = None,
    threads: int = 1,
    noise: Source | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
    device: str | Device = "cpu",
) -> Iterator[Outcome]:
    """Simulate federated training, and yield an outcome after each round.

    Training begins with the first weights of the ranker, or with `start`. To continue, pass `state` and `memory` of an
    outcome; `rounds` is the number of the last round. `watch` is called with the messages that reached the server.
    `noise` is for tests; without it, a mechanism uses the secure source of the system. device="cuda" trains on a
    GPU with the same results, and "auto" does so if it is faster. "cuda-float16" rounds features to two bytes.
    "reference" is slow: it runs each client with the function that a deployed client uses.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> clients = fr.make_clients(data, count=10, click_model="navigational", interactions=5)
    >>> for outcome in fr.simulate(fr.Federation(), clients, rounds=20, seed=1):
    ...     if outcome.round % 10 == 0:
    ...         print(outcome)
    <Outcome of round 10; online nDCG@10: 0.2627; interactions: 50; bytes up: 1,840; bytes down: 1,840>
    <Outcome of round 20; online nDCG@10: 0.3185; interactions: 50; bytes up: 1,840; bytes down: 1,840>
    """
    if federation.dealt and rounds > federation.dealt:
        raise ValueError(
            f"rounds must be at most {federation.dealt}, into which clients are dealt (got {rounds}); a further round "
            "would have no participants"
        )
    if state is None:
        state, memory = first_state(federation, clients, seed, start)
    else:
        check_fits(state, federation, clients)
    context = RoundContext(federation, clients, seed, threads, noise, journal, watch)
    yield from _backend(context, device).rounds(context, state, memory, rounds)


def _backend(context: RoundContext, device: str | Device) -> Backend:
    if device == "reference":
        return Reference(context)
    learner = find_device_learner(device, context.federation.learner, context.clients)
    return Compiled(context) if learner is None else Cuda(context, learner)

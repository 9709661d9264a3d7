"""Measure the cost of robust aggregators: CPU time of each rule next to the plain mean and to a round of FPDGD.

    python -m benchmarks.robust [--check]

Updates are those of real rounds on synthetic data, of clients x parameters, 5 interactions each. `of a round` is the
cost of the rule beyond the mean, as a share of a complete `federated_round` of that size with the mean.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
import warnings
from collections.abc import Callable

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.federated.aggregators import AGGREGATORS
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.round import first_state
from fedrank.federated.simulation import federated_round
from fedrank.ranking.learners import Pdgd
from fedrank.seeds import Chance
from fedrank.types import Messages, SimulatedClients, has_trait

SIZES = [(10, 46), (100, 136), (1000, 136)]  # clients, parameters
CHECKED = ["krum", "multi-krum", "trimmed-mean", "median"]
MAX_SHARE = 0.15  # of a round of 10 x 5
LONGEST = 0.020  # seconds for 1,000 x 136
REPEATS = 9


def made_up(features: int, documents: int = 41, queries: int = 500) -> RankingData:
    rng = np.random.default_rng(1)
    grades = rng.binomial(2, 0.2, queries * documents).astype(np.int8)
    table = rng.random((queries * documents, features), dtype=np.float32)
    table[:, 0] += grades / 2
    offsets = np.arange(queries + 1) * documents
    return RankingData(table, grades, offsets, np.arange(queries).astype(str), top_grade=2)


def some_rounds(clients: SimulatedClients, parameters: int, count: int = 12) -> list[Messages]:
    """Messages of training with the mean; the server's update is a mean, too."""
    weights, rounds = np.zeros(parameters), []
    for number in range(1, count + 1):
        updates = Pdgd()(weights, clients, Chance(1, number)).updates
        root = updates.mean(axis=0)
        rounds.append(Messages(updates, clients.interactions, clients.ids, weights, number, root=root))
        weights = weights + updates.mean(axis=0, dtype=np.float64)
    return rounds


def call_of(name: str, rounds: list[Messages]) -> Callable[[], object]:
    """One aggregation of the last of some rounds."""
    rule = AGGREGATORS[name]()
    last = rounds[-1]
    if not has_trait(rule, "remembers"):
        return lambda: rule(last)  # type: ignore[call-arg]
    state = rule.first(*last.updates.shape)  # type: ignore[union-attr]
    for messages in rounds[:-1]:
        _, state = rule(messages, state)  # type: ignore[call-arg]
    return lambda: rule(last, state)  # type: ignore[call-arg]


def seconds(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Minimum CPU time of each; in turns, so other load affects all alike."""
    times: dict[str, float] = {}
    loops: dict[str, int] = {}
    for name, call in calls.items():
        call()
        begin = time.process_time()
        call()
        loops[name] = max(1, min(200, int(0.01 / max(time.process_time() - begin, 1e-6))))
    for _ in range(REPEATS):
        for name, call in calls.items():
            begin = time.process_time()
            for _ in range(loops[name]):
                call()
            each = (time.process_time() - begin) / loops[name]
            times[name] = min(times.get(name, each), each)
    return times


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    check = arguments.parse_args().check
    warnings.simplefilter("ignore", UserWarning)  # Bulyan warns about two of ten attackers
    missed = []
    print(f"{'clients x parameters':22} {'rule':18} {'ms':>9} {'x mean':>9} {'of a round':>11}")
    for n, parameters in SIZES:
        clients = make_clients(made_up(parameters), n, click_model="navigational", interactions=5)
        rounds = some_rounds(clients, parameters)
        federation = Federation()
        state, _ = first_state(federation, clients, 1)
        calls = {name: call_of(name, rounds) for name, kind in AGGREGATORS.items() if not has_trait(kind, "apart")}
        calls["a round"] = lambda f=federation, s=state, c=clients: federated_round(f, s, c, 1)
        times = seconds(calls)
        for name, took in times.items():
            share = (took - times["mean"]) / times["a round"]
            of_round = "" if name in ("mean", "a round") else f"{share:11.1%}"
            print(f"{f'{n:,} x {parameters}':22} {name:18} {took * 1e3:9.3f} {took / times['mean']:9.1f} {of_round}")
            if name in CHECKED and n == 10 and share > MAX_SHARE:
                missed.append(f"{name} {n} x {parameters}: {share:.0%} of a round, target {MAX_SHARE:.0%}")
            if name in CHECKED and n == 1000 and took > LONGEST:
                missed.append(f"{name} {n} x {parameters}: {took * 1e3:.1f} ms, target {LONGEST * 1e3:.0f} ms")
    for line in missed:
        print("missed:", line)
    return 1 if check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

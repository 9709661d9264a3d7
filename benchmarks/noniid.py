"""Measure the cost of FedProx, FedPer and SCAFFOLD over plain FPDGD, in one run.

    python -m benchmarks.noniid [--check]

CPU time of complete rounds without evaluation, 10 clients x 5 interactions. Plain rounds and those of a method take
turns, and the median of the ratios is reported, so other load affects both.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.fpdgd import CLIENTS, INTERACTIONS, made_up
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.local import FedPer, FedProx, Scaffold
from fedrank.federated.round import first_state
from fedrank.federated.simulation import federated_round
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.rankers import Linear, Mlp

CASES = {  # shape, learner, local step, rounds per turn, maximum ratio
    "FedProx, linear": ("46 x 41", Pdgd(ranker=Linear()), FedProx(0.1), 100, 1.15),
    "FedProx, mlp": ("136 x 120", Pdgd(ranker=Mlp()), FedProx(0.1), 6, 1.15),
    "FedPer, mlp": ("136 x 120", Pdgd(ranker=Mlp()), FedPer(), 6, 1.15),
    "SCAFFOLD, linear": ("46 x 41", Pdgd(ranker=Linear()), Scaffold(), 100, None),
    "SCAFFOLD, mlp": ("136 x 120", Pdgd(ranker=Mlp()), Scaffold(), 6, None),
}
TURNS = 41


def rounds_of(federation: Federation, data: RankingData, rounds: int) -> Callable[[], float]:
    """Return a function that runs these rounds and returns its CPU seconds."""
    clients = make_clients(data, CLIENTS, click_model="navigational", interactions=INTERACTIONS)
    first = first_state(federation, clients, 1)

    def run() -> float:
        state, memory = first  # always the same rounds, since later ones have other lists and clicks
        begin = time.process_time()
        for _ in range(rounds):
            outcome = federated_round(federation, state, clients, 1, memory)
            state, memory = outcome.state, outcome.memory
        return time.process_time() - begin

    run()
    return run


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    check = arguments.parse_args().check
    missed = []
    print(f"{'method':18} {'features x documents':22} {'plain, interactions/s':>22} {'x plain':>8}")
    for name, (shape, learner, local, rounds, target) in CASES.items():
        data = made_up(shape)
        one = rounds_of(Federation(learner), data, rounds)
        other = rounds_of(Federation(learner, local=local), data, rounds)
        pairs = [(one(), other()) if turn % 2 else (other(), one())[::-1] for turn in range(TURNS)]
        ratio = statistics.median(after / before for before, after in pairs)
        rate = rounds * CLIENTS * INTERACTIONS / min(before for before, _ in pairs)
        print(f"{name:18} {shape:22} {rate:22,.0f} {ratio:8.3f}")
        if target is not None and ratio > target:
            missed.append(f"{name}: {ratio:.3f} times plain FPDGD, at most {target} allowed")
    for line in missed:
        print("missed:", line)
    return 1 if check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

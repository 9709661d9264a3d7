"""What do FedProx, FedPer and SCAFFOLD cost over plain FPDGD? Measured side by side in one run.

    python benchmarks/noniid.py [--check]

CPU time of whole rounds, evaluation excluded, 10 clients x 5 interactions. Plain rounds and those of a method take
turns, and the median of the ratios is reported, so that a noisy neighbour disturbs both.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import time
from collections.abc import Callable

from fpdgd import CLIENTS, INTERACTIONS, made_up

from fedrank.data.ranking import RankingData
from fedrank.federate.clients import make_clients
from fedrank.federate.round import Federation, federated_round, first_state
from fedrank.rank.learners import Pdgd
from fedrank.rank.rankers import Linear, Mlp

CASES = {  # shape, plain learner, the same with a method, rounds a turn, largest ratio allowed
    "FedProx, linear": ("46 x 41", Pdgd(ranker=Linear()), Pdgd(ranker=Linear(), prox=0.1), 100, 1.15),
    "FedProx, mlp": ("136 x 120", Pdgd(ranker=Mlp()), Pdgd(ranker=Mlp(), prox=0.1), 6, 1.15),
    "FedPer, mlp": ("136 x 120", Pdgd(ranker=Mlp()), Pdgd(ranker=Mlp(), personal="output"), 6, 1.15),
    "SCAFFOLD, linear": ("46 x 41", Pdgd(ranker=Linear()), Pdgd(ranker=Linear(), control=True), 100, None),
    "SCAFFOLD, mlp": ("136 x 120", Pdgd(ranker=Mlp()), Pdgd(ranker=Mlp(), control=True), 6, None),
}
TURNS = 41


def rounds_of(learner: Pdgd, data: RankingData, rounds: int) -> Callable[[], float]:
    """A function that goes on for so many rounds and returns its CPU seconds."""
    clients = make_clients(data, CLIENTS, user="navigational", interactions=INTERACTIONS)
    federation = Federation(learner=learner)
    first = first_state(federation, clients, 1)

    def run() -> float:
        state = first  # always the same rounds: later ones would rank, and so click, otherwise
        begin = time.process_time()
        for _ in range(rounds):
            state = federated_round(federation, state, clients, 1).state
        return time.process_time() - begin

    run()
    return run


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    check = arguments.parse_args().check
    missed = []
    print(f"{'method':18} {'features x documents':22} {'plain, interactions/s':>22} {'x plain':>8}")
    for name, (shape, plain, method, rounds, target) in CASES.items():
        data = made_up(shape)
        one, other = rounds_of(plain, data, rounds), rounds_of(method, data, rounds)
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

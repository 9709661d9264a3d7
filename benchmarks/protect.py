"""Measure the cost of privacy mechanisms over a plain round of FPDGD, in one run.

    python -m benchmarks.protect [--check]

CPU time of complete rounds, 1,000 clients x 4 interactions, without evaluation and without the ledger. Plain rounds and
protected ones take turns, and the median of the ratios is reported, so other load affects both. Every turn repeats the
first round, since noise moves the model, and another model shows other lists.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.fpdgd import made_up
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.round import first_state
from fedrank.federated.simulation import federated_round
from fedrank.privacy.mechanisms import AtServer, FpdgdPaper, Gaussian, Laplace, SecureAggregation
from fedrank.ranking.learners import Pdgd
from fedrank.types import Mechanism

CLIENTS, INTERACTIONS, TURNS = 1_000, 4, 21
CASES: dict[str, tuple[Mechanism, float | None]] = {  # mechanism, maximum ratio
    "gaussian, server": (Gaussian(clip=0.3, noise=2.0, placement=AtServer()), 1.05),
    "laplace, server": (Laplace(clip=0.3, noise=2.0, placement=AtServer()), 1.05),
    "gaussian, client": (Gaussian(clip=0.3, noise=2.0), None),
    "gaussian, ideal sum": (Gaussian(clip=0.3, noise=2.0, placement=SecureAggregation(sum="ideal")), None),
    "laplace, ideal sum": (Laplace(clip=0.3, noise=2.0, placement=SecureAggregation(sum="ideal")), None),
    "fpdgd-paper": (FpdgdPaper(epsilon=1.2), None),
}


def round_of(mechanism: Mechanism | None, data: RankingData) -> Callable[[], float]:
    """Return a function that runs the first round and returns its CPU seconds."""
    clients = make_clients(data, CLIENTS, click_model="navigational", interactions=INTERACTIONS)
    federation = Federation(learner=Pdgd(), mechanism=mechanism)
    first, _ = first_state(federation, clients, 1)
    noise = None if mechanism is None else mechanism.source()

    def run() -> float:
        begin = time.process_time()
        federated_round(federation, first, clients, 1, noise=noise)
        return time.process_time() - begin

    run()
    return run


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    check = arguments.parse_args().check
    missed = []
    print(f"{'mechanism':22} {'features x documents':22} {'plain round, ms':>16} {'x plain':>8}")
    for shape in ("46 x 41", "136 x 120"):
        data = made_up(shape)
        plain = round_of(None, data)
        for name, (mechanism, target) in CASES.items():
            protected = round_of(mechanism, data)
            pairs = [(plain(), protected()) if turn % 2 else (protected(), plain())[::-1] for turn in range(TURNS)]
            ratio = statistics.median(after / before for before, after in pairs)
            print(f"{name:22} {shape:22} {1e3 * min(before for before, _ in pairs):16.1f} {ratio:8.3f}")
            if target is not None and ratio > target:
                missed.append(f"{name}, {shape}: {ratio:.3f} times a plain round, at most {target} allowed")
    for line in missed:
        print("missed:", line)
    return 1 if check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

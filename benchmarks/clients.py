"""Measure how rounds scale: a million clients in one process, and two threads against one.

    python -m benchmarks.clients [--clients 1000000] [--check]

The memory is the peak of this process; time must be linear in interactions; threads must not change the result.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import resource
import time

import numpy as np

from fedrank.data.synthetic import synthetic
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.round import first_state
from fedrank.federated.simulation import federated_round

INTERACTIONS = 4


def a_round(clients: int, threads: int, data):
    """Wall-clock and CPU seconds of one round, and the weights after it."""
    table = make_clients(data, clients, click_model="navigational", interactions=INTERACTIONS)
    federation = Federation()
    state, _ = first_state(federation, table, 1)
    clock, cpu = time.perf_counter(), time.process_time()
    outcome = federated_round(federation, state, table, 1, threads=threads)
    return time.perf_counter() - clock, time.process_time() - cpu, outcome.weights


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--clients", type=int, default=1_000_000)
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    asked = arguments.parse_args()
    data = synthetic("mq2007")
    a_round(10, 1, data)  # compile
    missed = []

    rows = []
    for clients in (asked.clients // 100, asked.clients // 10, asked.clients):
        _, cpu, _ = a_round(clients, 1, data)
        rows.append(cpu / (clients * INTERACTIONS))
        print(f"{clients:>9,} clients x {INTERACTIONS}: {cpu:6.2f} s of CPU, {1e6 * rows[-1]:.2f} us per interaction")
    if rows[-1] > 1.3 * rows[0]:
        missed.append(f"an interaction costs {rows[-1] / rows[0]:.2f} times as much among all clients as among few")

    clock_one, _, one = a_round(asked.clients // 4, 1, data)
    clock_two, _, two = a_round(asked.clients // 4, 2, data)
    print(f"two threads: {clock_one / clock_two:.2f} times as fast (wall clock), identical: {np.array_equal(one, two)}")
    if not np.array_equal(one, two):
        missed.append("two threads give a different result than one")
    if clock_one / clock_two < 1.6:
        missed.append(f"two threads are only {clock_one / clock_two:.2f} times as fast (a busy machine?)")

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"peak memory: {peak:.2f} GiB (all updates together would take {4 * 46 * asked.clients / 2**30:.2f} GiB more)"
    )
    if peak > 4:
        missed.append(f"{peak:.2f} GiB, target 4")
    for line in missed:
        print("missed:", line)
    return 1 if asked.check and missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

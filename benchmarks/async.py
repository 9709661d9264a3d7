"""Compare asynchronous with synchronous training: interactions per second on one core, over the same batches.

    python -m benchmarks.async [--check]

CPU time without evaluation: lists of 20 documents x 103 features, 100 users, 4 searches per update. Users come in turn
(long windows), at random with a few very active users (short windows), or in bursts of 8 updates (windows of little
more than one). `ratio` is the time per interaction of asynchronous over synchronous training.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import statistics
import time

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.federated.asynchronous import FedAsync, FedBuff, Sync, schedule
from fedrank.federated.asynchronous_simulation import simulate_arrivals
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.partition import Users

DOCUMENTS, FEATURES, CLICK_MODELS, BATCH, ENTRIES = 20, 103, 100, 4, 60_000
TARGET = 30_000  # interactions per second
REPEATS = 5


def made_up(who: np.ndarray) -> RankingData:
    rng = np.random.default_rng(1)
    pairs = rng.random((5_000 * DOCUMENTS, FEATURES), dtype=np.float32)
    grades = np.zeros((5_000, DOCUMENTS), dtype=np.int8)
    grades[np.arange(5_000), rng.integers(DOCUMENTS, size=5_000)] = 1
    pairs[:, 0] += grades.ravel()
    data = RankingData(pairs, grades.ravel(), np.arange(5_001) * DOCUMENTS, np.arange(5_000).astype(str))
    return data.select(rng.integers(5_000, size=len(who))) if len(who) > 5_000 else data.select(np.arange(len(who)))


def arrivals() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    updates = ENTRIES // BATCH
    shares = 1 / np.arange(1, CLICK_MODELS + 1)
    some = {
        "in turn": np.arange(updates) % CLICK_MODELS,
        "power law": rng.choice(CLICK_MODELS, size=updates, p=shares / shares.sum()),
        "bursts of 8": np.repeat(rng.permutation(updates // 8) % CLICK_MODELS, 8),
    }
    return {name: np.repeat(who, BATCH) for name, who in some.items()}


def seconds(rule, clients) -> float:
    began = time.process_time()
    for _ in simulate_arrivals(Federation(), rule, clients, 10**9):
        pass
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail below the target")
    check = parser.parse_args().check
    slowest = float("inf")
    for name, who in arrivals().items():
        data = made_up(who)
        object.__setattr__(data, "who", who.astype(np.int32))
        object.__setattr__(data, "when", np.arange(len(who), dtype=np.int64))
        clients = make_clients(data, len(np.unique(who)), partition=Users(), interactions=BATCH)
        done = BATCH * len(schedule(clients, Sync()).rows)
        seconds(Sync(), clients)
        # In turns, so other load on the machine affects all alike.
        times = {rule: [] for rule in (Sync(), FedAsync(), FedBuff())}
        for _ in range(REPEATS):
            for rule, spent in times.items():
                spent.append(seconds(rule, clients))
        for rule, spent in times.items():
            speed = done / statistics.median(spent)
            ratio = statistics.median(a / b for a, b in zip(spent, times[Sync()], strict=True))
            if not rule.together:
                slowest = min(slowest, speed)
            print(f"{name:12} {type(rule).__name__:9} {speed:10,.0f} interactions/s   ratio {ratio:.2f}")
    if check and slowest < TARGET:
        raise SystemExit(f"{slowest:,.0f} interactions/s, fewer than {TARGET:,}")


if __name__ == "__main__":
    main()

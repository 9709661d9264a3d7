"""Compare the speed of user-defined and built-in methods: CPU time of the same rounds, in turns.

    python -m benchmarks.outside [--pairs 20] [--check]

A user-defined mean that declares the trait "mean" is combined in chunks and runs many rounds per call, like `Mean`; a
user-defined clipped mean is combined like `NormBound`. Prints the median ratio user-defined / built-in with its 95 %
confidence interval (order statistics). `--check` exits with 1 if a median is above 1.05.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

import fedrank as fr
from benchmarks.fpdgd import made_up
from fedrank import kernels

MAX_RATIO = 1.05
ROUNDS = {"10 clients, 46 x 41": 3000, "1,000 clients, 136 x 120": 20}


@dataclass(frozen=True)
class OwnMean:
    """The mean, weighted by interactions."""

    traits: ClassVar[frozenset[str]] = frozenset({"mean"})

    def client_weights(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        return sizes

    def __call__(self, messages: fr.Messages) -> NDArray[np.float64]:
        return messages.sizes @ messages.updates.astype(np.float64) / messages.sizes.sum()


@dataclass(frozen=True)
class OwnClip:
    """The mean of clipped updates."""

    bound: float

    def __call__(self, messages: fr.Messages) -> NDArray[np.float64]:
        updates = np.ascontiguousarray(messages.updates, dtype=np.float32)
        scales = self.bound / np.maximum(kernels.sums.lengths(updates), self.bound)
        return kernels.sums.weighted_sum(scales, updates) / len(updates)


def rounds(data: fr.RankingData, clients: int, count: int, aggregator: object) -> Callable[[], None]:
    simulated = fr.make_clients(data, clients, click_model="navigational", interactions=5)
    federation = fr.Federation(aggregator=aggregator)  # type: ignore[arg-type]

    def work() -> None:
        for _ in fr.simulate(federation, simulated, count):
            pass

    return work


def ratios(ours: Callable[[], None], theirs: Callable[[], None], pairs: int) -> list[float]:
    ours(), theirs()  # compiles
    found = []
    for pair in range(pairs):
        times = {}
        for work in (ours, theirs) if pair % 2 else (theirs, ours):
            begin = time.process_time()
            work()
            times[work] = time.process_time() - begin
        found.append(times[theirs] / times[ours])
    return sorted(found)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--check", action="store_true")
    chosen = options.parse_args()
    data = {"10 clients, 46 x 41": (made_up("46 x 41"), 10), "1,000 clients, 136 x 120": (made_up("136 x 120"), 1000)}
    missed = False
    print(f"{'CPU time, own / built-in':40} {'median':>7} {'95 % interval':>15}")
    for size, (table, clients) in data.items():
        for name, ours, theirs in (
            ("mean", fr.aggregators.Mean(), OwnMean()),
            ("clip", fr.aggregators.NormBound(0.5), OwnClip(0.5)),
        ):
            count = ROUNDS[size] if name == "mean" else ROUNDS[size] // 2
            found = ratios(rounds(table, clients, count, ours), rounds(table, clients, count, theirs), chosen.pairs)
            reach, middle = round(0.98 * chosen.pairs**0.5), statistics.median(found)
            low, high = (
                found[max(chosen.pairs // 2 - reach, 0)],
                found[min(chosen.pairs // 2 + reach, chosen.pairs - 1)],
            )
            missed |= middle > MAX_RATIO
            print(f"{name + ', ' + size:40} {middle:7.3f} {low:7.3f} {high:7.3f}", flush=True)
    return int(missed and chosen.check)


if __name__ == "__main__":
    raise SystemExit(main())

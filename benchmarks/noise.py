"""Measure the cost of secure noise: ours, the secure stream alone, and NumPy's normal variables, in one run.

python -m benchmarks.noise [VALUES] [--check]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.privacy.noise import (
    SecureSource,
    discrete_gaussian,
    polya_difference,
    rounded_gaussian,
    rounded_laplace,
)

MAX_NANOSECONDS = 150.0  # per value, including the stream
REPEATS = 7


def cpu_seconds(calls: list[Callable[[], Any]]) -> list[float]:
    """Minimum CPU times of several calls, in turns, so other load affects all alike."""
    best = [float("inf")] * len(calls)
    for _ in range(REPEATS):
        for i, call in enumerate(calls):
            start = time.process_time()
            call()
            best[i] = min(best[i], time.process_time() - start)
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("values", type=int, nargs="?", default=500_000, help="values per call")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    n = options.values

    source = SecureSource()
    rng = np.random.default_rng(1)
    laws = [
        *(rounded_gaussian(scale) for scale in (3.0, 1000.0, 2.0**20, 2.0**45)),
        *(rounded_laplace(scale) for scale in (3.0, 1000.0, 2.0**20, 2.0**45)),
        *(discrete_gaussian(scale) for scale in (3.0, 2.0**45)),
        *(polya_difference(scale, shares) for scale in (3.0, 2.0**20, 2.0**45) for shares in (1.0, 10.0, 1000.0)),
    ]
    for law in laws:
        law.draw(1, source)  # compiles
    calls: list[Callable[[], Any]] = [lambda: rng.standard_normal(n), lambda: source.words(n)]
    calls += [lambda law=law: law.draw(n, source) for law in laws]
    normal, stream, *ours = (1e9 * seconds / n for seconds in cpu_seconds(calls))

    table = Table(title=f"{n:,} values (CPU time)", box=None)
    table.add_column("what")
    for column in ("ns per value", "x NumPy", "words", "log error", "target"):
        table.add_column(column, justify="right")
    table.add_row("NumPy, standard_normal", f"{normal:.1f}", "1.0", "", "", "")
    table.add_row("the stream alone, one word", f"{stream:.1f}", f"{stream / normal:.1f}", "1", "", "")
    for law, cost in zip(laws, ours, strict=True):
        table.add_row(
            law.law,
            f"{cost:.1f}",
            f"{cost / normal:.1f}",
            f"{law.words_each * (2 if law.difference else 1):.2f}",
            f"2^{np.log2(law.log_error):.1f}",
            f"at most {MAX_NANOSECONDS:g}",
        )
    Console(width=120).print(table)
    return 1 if options.check and max(ours) > MAX_NANOSECONDS else 0


if __name__ == "__main__":
    sys.exit(main())

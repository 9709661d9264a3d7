"""Measure how fast LETOR files are read, compared with scikit-learn, on one generated file.

python -m benchmarks.letor [MB] [--check]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

LEAST_RATIO = 8.0  # times the speed of scikit-learn
MAX_OPENING = 0.5  # seconds for a cached set


def write_file(path: Path, megabytes: float) -> None:
    """Write lines like those of MSLR: 136 raw features, half of them counts, many zeros, six significant digits."""
    rng = np.random.default_rng(1)
    # A pool of lines is repeated under new query ids to speed up writing.
    pool = []
    for _ in range(1200):
        values = np.where(rng.random(136) < 0.5, rng.integers(0, 300, 136), np.exp(rng.normal(0, 4, 136)))
        values[rng.random(136) < 0.38] = 0
        values[rng.random(136) < 0.1] *= -1
        pool.append(" ".join(f"{index}:{value:.6g}" for index, value in enumerate(values, 1)))
    query = 0
    with open(path, "w", encoding="ascii") as file:
        while file.tell() < megabytes * 1e6:
            query += 1
            for line in rng.integers(0, len(pool), 120):
                file.write(f"{rng.integers(0, 5)} qid:{query} {pool[line]} \n")


def cpu_seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Smallest CPU time of some calls."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mb", type=float, nargs="?", default=50, help="size of the generated file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # An empty cache folder, so compilation is part of the measurement.
        os.environ["FEDRANK_CACHE"] = folder
        os.environ.pop("NUMBA_CACHE_DIR", None)
        missed = measure(Path(folder) / "train.txt", options.mb)
    return 1 if missed and options.check else 0


def measure(path: Path, megabytes: float) -> bool:
    """Print the table; True if a target was missed."""
    from sklearn.datasets import load_svmlight_file

    from fedrank.data.letor import read_letor

    first = path.with_name("first.txt")
    first.write_text("1 qid:1 1:0.5\n")
    compile_time = cpu_seconds(lambda: read_letor(first, cache=False))
    write_file(path, megabytes)
    size = path.stat().st_size / 1e6

    ours = cpu_seconds(lambda: read_letor(path, cache=False), repeats=3)
    theirs = cpu_seconds(lambda: load_svmlight_file(str(path), query_id=True))
    read_letor(path)
    start = time.perf_counter()
    read_letor(path)
    opening = time.perf_counter() - start

    ratio = theirs / ours
    table = Table(title=f"LETOR, {size:.0f} MB of text (CPU time)", box=None)
    table.add_column("what")
    table.add_column("seconds", justify="right")
    table.add_column("MB/s", justify="right")
    table.add_column("target", justify="right")
    table.add_row("fedrank, no cache", f"{ours:.3f}", f"{size / ours:.0f}", "")
    table.add_row("scikit-learn", f"{theirs:.3f}", f"{size / theirs:.0f}", "")
    table.add_row("ratio", f"{ratio:.1f} x", "", f"at least {LEAST_RATIO:g} x")
    table.add_row("open from cache", f"{opening:.4f}", "", f"at most {MAX_OPENING:g}")
    table.add_row("first compilation", f"{compile_time:.1f}", "", "")
    Console().print(table)
    return ratio < LEAST_RATIO or opening > MAX_OPENING


if __name__ == "__main__":
    sys.exit(main())

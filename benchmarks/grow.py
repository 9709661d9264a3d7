"""Compare fedrank's tree grower with LightGBM: one tree of 64 leaves, four clients in one process, SelGB, memory.

    python -m benchmarks.grow [--size 200 2800 220] [--repeats 5] [--no-memory] [--check]

Everything runs on one thread, in turns, in one process, except for memory, which is the peak of separate processes.
Times are median CPU times. `--check` exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.data.ranking import RankingData
from fedrank.trees.binning import Edges, quantile_edges
from fedrank.trees.boosters import Grower, Lambdamart, SelectiveGrower
from fedrank.trees.forest import lightgbm
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest

TREE, FOUR, FASTER, MEMORY, MILLISECONDS = 1.3, 1.2, 6.0, 1.3, 60.0


def example(queries: int, documents: int, features: int) -> RankingData:
    """Few relevant documents, which some of the features distinguish."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((queries * documents, features), dtype=np.float32)
    quality = rows[:, :10].sum(axis=1) + 2 * rng.standard_normal(len(rows), dtype=np.float32)
    grades = np.zeros((queries, documents), dtype=np.int8)
    best = np.argsort(-quality.reshape(queries, documents), axis=1)[:, :5]
    np.put_along_axis(grades, best, rng.integers(1, 5, (queries, 5)).astype(np.int8), axis=1)
    offsets = np.arange(queries + 1) * documents
    return RankingData(rows, grades.reshape(-1), offsets, np.arange(queries).astype(str))


def plain(data: RankingData) -> Iterator[None]:
    """LightGBM on all rows."""
    engine = lightgbm()
    settings = Lambdamart().engine(1, 1)
    grades, sizes = data.grades.astype(np.float32), np.diff(data.offsets)
    booster = engine.Booster(settings, engine.Dataset(data.features, grades, group=sizes, params=settings))
    while True:
        booster.update()
        yield


def together(data: RankingData, clients: int, edges: Edges | None = None) -> Iterator[None]:
    """fedrank's grower with clients whose histograms are added up."""
    rules = Grower()
    edges = quantile_edges(data) if edges is None else edges
    parts = (
        [data.select(np.arange(first, data.queries, clients)) for first in range(clients)] if clients > 1 else [data]
    )
    plan = GrowPlan(rules, edges, 1, tuple(range(len(parts))))
    for _ in grow_forest(LocalClients(plan, [plan.store(part) for part in parts])):
        yield


def selective(data: RankingData) -> Iterator[None]:
    """SelGB without copies, with the scores of all documents after every tree; the first tree is on all rows."""
    steps = SelectiveGrower().grow(data, None, 1)
    next(steps)
    for _ in steps:
        yield


def seconds(step: Iterator[None], count: int = 1) -> float:
    """Mean CPU time of a step."""
    start = time.process_time()
    for _ in range(count):
        next(step)
    return (time.process_time() - start) / count


def peak(what: str, size: list[int]) -> float:
    """Peak memory of a process that generates the data and grows ten trees, in MB."""
    code = (
        "import resource; from benchmarks.grow import example, plain, together; "
        f"data = example(*{size}); steps = {what}; [next(steps) for _ in range(10)]; "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options.add_argument("--repeats", type=int, default=5, help="repetitions of each side")
    options.add_argument("--size", type=int, nargs=3, default=[200, 2800, 220], help="queries, documents, features")
    options.add_argument("--no-memory", action="store_true", help="omit memory, which needs separate processes")
    chosen = options.parse_args()
    data = example(*chosen.size)
    edges = quantile_edges(data)

    steps = {
        "LightGBM": plain(data),
        "ours, pooled": together(data, 1, edges),
        "ours, four clients": together(data, 4, edges),
        "ours, SelGB 1 %": selective(data),
    }
    for step in steps.values():
        next(step)  # the first step creates bins and compiles
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(chosen.repeats):
        for name, step in steps.items():
            taken[name].append(seconds(step))
    times = {name: 1000 * float(np.median(values)) for name, values in taken.items()}
    theirs, ours = times["LightGBM"], times["ours, pooled"]
    checks = [
        ("one tree, ours / LightGBM", ours / theirs, TREE, ours / theirs <= TREE),
        ("four clients / pooled", times["ours, four clients"] / ours, FOUR, times["ours, four clients"] / ours <= FOUR),
        ("LightGBM on all rows / SelGB 1 %", theirs / times["ours, SelGB 1 %"], FASTER,
         theirs / times["ours, SelGB 1 %"] >= FASTER),
    ]  # fmt: skip
    if not chosen.no_memory:
        memory = {what: peak(what, chosen.size) for what in ("plain(data)", "together(data, 1)")}
        ratio = memory["together(data, 1)"] / memory["plain(data)"]
        checks.append(("memory, ours / LightGBM", ratio, MEMORY, ratio <= MEMORY))

    table = Table("what", "ms", title=f"{data.documents:,} rows, {data.features.shape[1]} features, 64 leaves")
    for name, value in times.items():
        table.add_row(name, f"{value:.0f}")
    console = Console(width=100)
    console.print(table)
    verdicts = Table("ratio", "is", "target", "")
    for name, value, target, kept in checks:
        verdicts.add_row(name, f"{value:.2f}", f"{target:g}", "ok" if kept else "MISSED")
    console.print(verdicts)
    selgb = times["ours, SelGB 1 %"]
    console.print(f"SelGB 1 %: {selgb:.0f} ms per iteration (on an idle core at most {MILLISECONDS:g})")
    if chosen.check and not all(kept for *_, kept in checks):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Compare SelGB with LightGBM's lambdarank on all rows: speed, memory, the cost of nDCG@10, and scoring by a forest.

    python -m benchmarks.trees [--size 200 2800 220] [--repeats 5] [--no-memory] [--check]

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
from fedrank.ranking.measures import Evaluator
from fedrank.trees.boosters import Lambdamart, Selgb
from fedrank.trees.forest import lightgbm

FASTER, MEMORY, NANOSECONDS, SCORING = 4.0, 1.3, 10.0, 1.0


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


def selective(data: RankingData, every: int) -> Iterator[None]:
    """SelGB, with the scores of all documents after every tree, after the first trees on all rows."""
    steps = Selgb(every=every).grow(data, None, 1)
    for _ in range(every):
        next(steps)
    for _ in steps:
        yield


def seconds(step: Iterator[None], count: int = 1) -> float:
    """Mean CPU time of a step."""
    start = time.process_time()
    for _ in range(count):
        next(step)
    return (time.process_time() - start) / count


def scoring(data: RankingData, repeats: int) -> tuple[float, float]:
    """CPU time of scoring all documents by 50 trees with fedrank and LightGBM, in milliseconds; scores are equal."""
    forest = Lambdamart(trees=50)(data, seed=1)
    booster = lightgbm().Booster(model_str=forest.text)
    forest.raw(data.features[:10])  # compiles
    taken: list[list[float]] = [[], []]
    for _ in range(repeats):
        found = []
        for times, score in zip(
            taken, (forest.raw, lambda rows: booster.predict(rows, raw_score=True, num_threads=1)), strict=True
        ):
            start = time.process_time()
            found.append(score(data.features))
            times.append(1000 * (time.process_time() - start))
        assert np.array_equal(*found)
    return float(np.median(taken[0])), float(np.median(taken[1]))


def peak(what: str, size: list[int]) -> float:
    """Peak memory of a process that generates the data and grows ten trees, in MB."""
    code = (
        "import resource; from benchmarks.trees import example, plain, selective; "
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

    steps = {"LightGBM, all rows": plain(data), "SelGB 1 %, n = 1": selective(data, 1), "n = 10": selective(data, 10)}
    for step in steps.values():
        next(step)  # the first step creates bins and compiles
    taken = {name: [] for name in steps}
    for _ in range(chosen.repeats):
        for name, step in steps.items():
            taken[name].append(seconds(step, 10 if name == "n = 10" else 1))
    times = {name: 1000 * float(np.median(values)) for name, values in taken.items()}
    whole = times["LightGBM, all rows"]

    scores = np.random.default_rng(2).standard_normal(data.documents)
    evaluator = Evaluator(data, ["ndcg@10"])
    evaluator.per_query_of_scores(scores)  # compiles
    cost = []
    for _ in range(chosen.repeats):
        start = time.process_time()
        evaluator.per_query_of_scores(scores)
        cost.append(1e9 * (time.process_time() - start) / data.documents)
    nanoseconds = float(np.median(cost))

    table = Table(title=f"{data.documents:,} x {data.features.shape[1]}, 64 leaves, LightGBM {lightgbm().__version__}")
    for heading in ("what", "measured", "against", "ratio", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    missed = whole / times["SelGB 1 %, n = 1"] < FASTER or nanoseconds > NANOSECONDS
    for name in ("SelGB 1 %, n = 1", "n = 10"):
        target = f"at least {FASTER:g}" if name != "n = 10" else ""
        table.add_row(
            f"{name}, per tree", f"{times[name]:.0f} ms", f"{whole:.0f} ms", f"{whole / times[name]:.1f} x", target
        )
    table.add_row("nDCG@10, per document", f"{nanoseconds:.1f} ns", "", "", f"at most {NANOSECONDS:g} ns")
    ours, theirs = scoring(data, chosen.repeats)
    missed |= theirs / ours < SCORING
    table.add_row(
        "scoring by 50 trees",
        f"{ours:.0f} ms",
        f"{theirs:.0f} ms",
        f"{theirs / ours:.1f} x",
        f"at least {SCORING:g}",
    )
    if not chosen.no_memory:
        ours, theirs = peak("selective(data, 1)", chosen.size), peak("plain(data)", chosen.size)
        missed |= ours / theirs > MEMORY
        table.add_row("memory", f"{ours:,.0f} MB", f"{theirs:,.0f} MB", f"{ours / theirs:.2f}", f"at most {MEMORY:g}")
    Console().print(table)
    sys.exit(1 if chosen.check and missed else 0)


if __name__ == "__main__":
    main()

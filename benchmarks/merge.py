"""Measure the search for weights of merged models: 101 weights of two models, and the search for four.

    python -m benchmarks.merge [--repeats 9] [--check]

The naive method, in the same run, evaluates one weighted sum after the other. Median CPU time. `--check` exits with 1
if the grid of two models takes longer than its target.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator, average
from fedrank.trees.mergers import best_weights

QUERIES, DOCUMENTS = 400, 100
TARGET = 50.0  # milliseconds, for 101 weights on 40,000 documents


def example(models: int) -> tuple[RankingData, np.ndarray]:
    """Queries without features, and the scores of models that are noisy relevance labels."""
    rng = np.random.default_rng(1)
    documents = QUERIES * DOCUMENTS
    grades = rng.choice(5, documents, p=[0.52, 0.32, 0.13, 0.02, 0.01]).astype(np.int8)
    data = RankingData(
        np.zeros((documents, 1), np.float32), grades, np.arange(QUERIES + 1) * DOCUMENTS, np.arange(QUERIES).astype(str)
    )
    return data, grades + rng.normal(0, 2, (models, documents))


def milliseconds(action: Callable[[], object], repeats: int) -> float:
    """Median CPU time of a call."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        action()
        taken.append(time.process_time() - start)
    return 1000 * float(np.median(taken))


def one_by_one(scores: np.ndarray, evaluator: Evaluator) -> int:
    """The best of 101 weights, each evaluated separately."""
    values = [
        average(evaluator.per_query_of_scores((1 - weight) * scores[0] + weight * scores[1]))[0]
        for weight in np.arange(101) / 100
    ]
    return int(np.argmax(values))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help=f"exit with 1 above {TARGET:.0f} ms")
    options.add_argument("--repeats", type=int, default=9, help="repetitions of each side")
    chosen = options.parse_args()
    table = Table(title=f"weights by ndcg@10 on {QUERIES * DOCUMENTS:,} documents of {QUERIES} queries, one thread")
    for heading in ("what", "ms", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    missed = False
    for models in (2, 4):
        data, scores = example(models)
        evaluator = Evaluator(data, ["ndcg@10"])
        best_weights(scores, evaluator)  # compiles
        taken = milliseconds(lambda s=scores, e=evaluator: best_weights(s, e), chosen.repeats)
        if models == 2:
            missed = taken > TARGET
            naive = milliseconds(lambda s=scores, e=evaluator: one_by_one(s, e), chosen.repeats)
            table.add_row("2 models, 101 weights at once", f"{taken:.0f}", f"at most {TARGET:.0f}")
            table.add_row("2 models, 101 weights one by one", f"{naive:.0f}", "")
        else:
            table.add_row("4 models, one weight after the other", f"{taken:.0f}", "")
    Console().print(table)
    sys.exit(1 if chosen.check and missed else 0)


if __name__ == "__main__":
    main()

"""Compare the cost of evaluating linear models with that of the matrix product alone.

    python -m benchmarks.evaluate [--repeats 7] [--check]

Both run on one thread, on the same data, in turns; the table shows the median of CPU time. `--check` exits with 1
if a ratio is above its target.
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
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear

QUERIES, DOCUMENTS, FEATURES = 2_000, 120, 136
TARGET = 2.5


def example() -> RankingData:
    """Random features, relevance labels 0 to 4."""
    rng = np.random.default_rng(1)
    documents = QUERIES * DOCUMENTS
    return RankingData(
        features=rng.random((documents, FEATURES), dtype=np.float32),
        grades=rng.choice(5, documents, p=[0.52, 0.32, 0.13, 0.02, 0.01]).astype(np.int8),
        offsets=np.arange(QUERIES + 1) * DOCUMENTS,
        query_ids=np.arange(QUERIES).astype(str),
    )


def seconds(action: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    action()
    return time.process_time() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help=f"exit with 1 if the ratio is above {TARGET}")
    options.add_argument("--repeats", type=int, default=7, help="repetitions of each side")
    chosen = options.parse_args()

    data = example()
    evaluator = Evaluator(data, ["ndcg@10"])
    ranker = Linear()
    table = Table(title=f"ndcg@10 on {QUERIES:,} queries x {DOCUMENTS} documents x {FEATURES} features, one thread")
    for heading in ("models", "product, ms", "evaluation, ms", "ratio", "target"):
        table.add_column(heading, justify="right")
    missed = False
    for models in (16, 100):
        weights = np.random.default_rng(2).standard_normal((models, FEATURES))
        narrow = weights.astype(np.float32)
        evaluator(weights, ranker)  # compiles
        product, evaluation = np.median(
            [
                (seconds(lambda w=narrow: w @ data.features.T), seconds(lambda w=weights: evaluator(w, ranker)))
                for _ in range(chosen.repeats)
            ],
            axis=0,
        )
        ratio = evaluation / product
        missed |= bool(ratio > TARGET)
        table.add_row(
            str(models), f"{1000 * product:.0f}", f"{1000 * evaluation:.0f}", f"{ratio:.2f}", f"at most {TARGET}"
        )
    Console().print(table)
    sys.exit(1 if chosen.check and missed else 0)


if __name__ == "__main__":
    main()

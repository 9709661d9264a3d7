"""An aggregator that fedrank does not know, in a federation where two of ten clients lie.

    python examples/own_aggregator.py [FOLDER] [ROUNDS]

A spec can name the same class: aggregator = { name = "own_aggregator:Median", shrink = 0.5 }.
"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fedrank


@dataclass(frozen=True)
class Median:
    """Median of each parameter, which limits the influence of a few clients."""

    shrink: float = 1.0  # 0 .. 1: the change is multiplied by it

    def __call__(self, messages: fedrank.Messages) -> np.ndarray:
        return self.shrink * np.median(messages.updates, axis=0)


def main(folder: Path, rounds: int) -> None:
    fold = fedrank.load("synthetic-mq2007", fold=1)
    evaluator = fedrank.Evaluator(fold.test, ["ndcg@10"])
    users = ["navigational"] * 8 + ["poison"] * 2
    rows = []
    for name, aggregator in {"mean": fedrank.aggregators.Mean(), "median": Median()}.items():
        federation = fedrank.Federation(aggregator=aggregator)
        for simulated, people in {"all honest": "navigational", "two lie": users}.items():
            clients = fedrank.make_clients(fold.train, 10, click_model=people)
            *_, last = fedrank.simulate(federation, clients, rounds)
            value = float(evaluator(last.weights, federation.learner.ranker)[0])
            rows.append(f"{name},{simulated},{value!r}")
            print(f"{name:6} {simulated:10} nDCG@10 {value:.4f}")
    (folder / "median.csv").write_text("\n".join(["aggregator,clients,ndcg@10", *rows]) + "\n")
    print(f"wrote {folder / 'median.csv'}")


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    target.mkdir(parents=True, exist_ok=True)
    main(target, rounds=int(sys.argv[2]) if len(sys.argv) > 2 else 300)

"""What does federation cost, and what does it bring? The built-in experiment, shortened, from Python.

python examples/compare.py [FOLDER] [ROUNDS]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import fedrank


def main(folder: Path, rounds: int) -> None:
    experiment = fedrank.read_experiment("quickstart", [f"rounds={rounds}", "data.folds=[1]", "seeds=[1, 2, 3]"])
    results = fedrank.run_experiment(experiment, "compare", folder)
    print(f"{len(results.finished)} runs done, {len(results.skipped)} were done before, {len(results.failed)} failed")

    runs = fedrank.load_runs(folder / "compare").finished
    for (variant,), repeats in runs.group("variant").items():
        finals = [run.final_value("ndcg@10") for run in repeats]
        print(f"{variant:12} nDCG@10 {np.mean(finals):.4f} ± {np.std(finals, ddof=1):.4f}")

    print(f"federation brings {difference(runs, 'federated', 'alone'):+.4f} over learning alone")
    print(f"federation costs {difference(runs, 'centralised', 'federated'):+.4f} against one server that sees all")
    print(f"report: {fedrank.write_report(runs, folder / 'compare.html')}")


def difference(runs, a: str, b: str) -> float:
    """Mean of a - b, paired by fold and seed."""
    first = {run.repeat: run.final_value("ndcg@10") for run in runs.filter(variant=a)}
    second = {run.repeat: run.final_value("ndcg@10") for run in runs.filter(variant=b)}
    return float(np.mean([first[repeat] - second[repeat] for repeat in first if repeat in second]))


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    main(target, rounds=int(sys.argv[2]) if len(sys.argv) > 2 else 300)

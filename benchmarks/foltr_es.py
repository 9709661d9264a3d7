"""Evaluate final models of FOLtR-ES by the measure of the original notebooks, expected MaxRR, next to their values.

    fedrank papers run thesis/mq2008-foltr-es
    python -m benchmarks.foltr_es runs/thesis/mq2008-foltr-es

Expected MaxRR is the mean over queries of the expected reciprocal rank of the first click in the top ten; the printed
values are those of notebooks/letor-2008.ipynb in github.com/facebookresearch/foltr-es (mean over five folds).
"""

from __future__ import annotations

import argparse
from collections import defaultdict

import numpy as np

from fedrank.data.catalog import load
from fedrank.experiments.runner.runs import load_runs
from fedrank.federated.clients import make_clients
from fedrank.ranking.evolution import Evolution, expected_rewards
from fedrank.ranking.model import load_weights

PRINTED = {  # (user, ranker): on training queries, on test queries
    ("perfect", "linear"): (0.4154, 0.4006),
    ("perfect", "relu"): (0.4305, 0.4136),
    ("navigational", "linear"): (0.4694, 0.4585),
    ("navigational", "relu"): (0.4810, 0.4649),
    ("informational", "linear"): (0.7199, 0.7153),
    ("informational", "relu"): (0.7344, 0.7308),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the runs of thesis/mq2008-foltr-es")
    folder = parser.parse_args().folder
    found: dict[tuple[str, ...], dict[int, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for run in load_runs(folder):
        click_model, ranker, chance = (setting.partition("=")[2] for setting in run.variant.split(","))
        model, fold = load_weights(run.path), load("mq2008", run.fold)
        learner = Evolution(ranker=model.ranker)
        rewards = [
            expected_rewards(learner, model.weights, make_clients(part, 1, click_model=click_model))
            for part in (fold.train, fold.test)
        ]
        found[click_model, ranker, chance][run.fold].append([float(np.mean(each)) for each in rewards])
    if not found:
        raise SystemExit(f"no runs in {folder}; run fedrank papers run thesis/mq2008-foltr-es first")
    print("user, ranker, streams: models; training and test queries, ± standard error of seeds; as printed")
    for (click_model, ranker, chance), folds in sorted(found.items()):
        train, test = np.mean([np.mean(values, axis=0) for values in folds.values()], axis=0)
        spread = [np.var(values, axis=0, ddof=1) / len(values) for values in folds.values() if len(values) > 1]
        errors = np.sqrt(np.sum(spread, axis=0)) / len(folds) if len(spread) == len(folds) else (np.nan, np.nan)
        models = sum(map(len, folds.values()))
        print(
            f"{click_model}, {ranker}, {chance}: {models}; {train:.4f} ±{errors[0]:.4f} {test:.4f} ±{errors[1]:.4f};",
            *PRINTED[click_model, ranker],
        )


if __name__ == "__main__":
    main()

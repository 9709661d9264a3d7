"""Compare aggregators under attack, by task: what three of ten malicious clients do to the final model.

    python -m benchmarks.poisoning --out runs [--data synthetic-mq2007 mq2008] [--seeds 1 2 3] [--rules krum median]

Ten clients with their own queries, navigational users, 5 searches per round, 1,000 rounds, linear PDGD at rate .1, five
folds and seeds 1 to 3. Rules that need the number of attackers get the true one (Bulyan gets 2, since it cannot bear
three of ten), all others their defaults. The tables show nDCG@10 on test queries; for `rankguard-style` it is the mean
over the models of honest clients. Its checks use further searches, 20 per client and round; a second row has only 5.
"Smallest difference" is what a two-sided test at 5 % between two rules shows with a probability of 80 %: the median
over all pairs.

An interrupted run resumes.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrank.experiments.bench.board import smallest_difference
from fedrank.experiments.report.contrast import contrast
from fedrank.experiments.report.run_values import VariantRuns, read_run
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import run_experiment
from fedrank.experiments.spec.grid import read_tables

MEASURE = "ndcg@10"
ATTACKERS = 3
REPEATS: dict[str, Any] = {"rounds": 1000, "evaluate_every": 50, "seeds": [1, 2, 3], "folds": [1, 2, 3, 4, 5]}
RULES: dict[str, dict[str, Any]] = {
    "mean": {"name": "mean"},
    "krum": {"name": "krum", "attackers": 0.3},
    "multi-krum": {"name": "multi-krum", "attackers": 0.3},
    "bulyan": {"name": "bulyan"},
    "trimmed-mean": {"name": "trimmed-mean", "attackers": 0.3},
    "median": {"name": "median"},
    "geometric-median": {"name": "geometric-median"},
    "norm-bound": {"name": "norm-bound"},
    "reputation (FLDetector)": {"name": "reputation", "attackers": 0.3},
    "trust (FLTrust)": {"name": "trust"},
    "rankguard-style": {"name": "rankguard-style"},
    "rankguard-style-5 (searches = 5)": {"name": "rankguard-style", "searches": 5},
}
ATTACKS: dict[str, dict[str, Any]] = {
    "no attack": {},
    "clicks": {"name": "poisoned-clicks"},
    "lie": {"name": "lie"},
    "ipm": {"name": "inner-product", "scale": 3.0},
    "adaptive": {"name": "adaptive"},
}
SKYLINE = {
    "learner": {"name": "lambdarank", "rate": 0.01},
    "clients.count": 1,
    "clients.partition": {"name": "iid"},
    "clients.click_model": "perfect",
    "clients.interactions": 50,
}


def tables(data: str, rules: Sequence[str] = tuple(RULES)) -> dict[str, Any]:
    """The experiment on one data set: a variant for each rule under each attack, and the skyline."""
    variants: dict[str, Any] = {"skyline": SKYLINE}
    for (attack, setting), rule in itertools.product(ATTACKS.items(), rules):
        under = {"attack": setting, "clients.malicious": ATTACKERS} if setting else {}
        variants[_name(attack, rule)] = {"aggregator": RULES[rule]} | under
    return {
        "title": f"Aggregators under attack, {data}",
        "rounds": REPEATS["rounds"],
        "evaluate_every": REPEATS["evaluate_every"],
        "measures": [MEASURE],
        "seeds": REPEATS["seeds"],
        "data": {"name": data, "folds": REPEATS["folds"]},
        "clients": {"count": 10, "partition": {"name": "own"}, "click_model": "navigational", "interactions": 5},
        "learner": {"name": "pdgd", "rate": 0.1},
        "variants": variants,
    }


def _name(attack: str, rule: str) -> str:
    return f"{attack.replace(' ', '-')}-{rule.partition(' ')[0]}"


def measured(folder: Path) -> dict[str, VariantRuns]:
    found: dict[str, dict[Any, Any]] = {}
    for run in load_runs(folder).finished:
        found.setdefault(run.variant, {})[run.repeat] = read_run(run, {})
    return {name: VariantRuns(name, name, {}, dict(sorted(values.items()))) for name, values in found.items()}


def show(data: str, folder: Path, rules: Sequence[str]) -> None:
    rows = measured(folder)
    some = rows["skyline"].repeats
    nothing = np.mean([one.without_model.values[MEASURE] for one in some.values()])
    mean = {name: row.summary(MEASURE).mean for name, row in rows.items()}
    print(f"\n| {data}, {len(some)} repeats | {' | '.join(ATTACKS)} |\n|---|{'---|' * len(ATTACKS)}")
    for title, value in (("do nothing", nothing), ("skyline", mean["skyline"])):
        print(f"| {title} | {' | '.join([_short(value)] * len(ATTACKS))} |")
    for rule in rules:
        print(f"| `{rule}` | {' | '.join(_short(mean[_name(attack, rule)]) for attack in ATTACKS)} |")
    least = []
    for attack in ATTACKS if len(rules) > 1 else ():
        pairs = itertools.combinations([rows[_name(attack, rule)] for rule in rules], 2)
        least.append(float(np.nanmedian([smallest_difference(contrast(one, other, MEASURE)) for one, other in pairs])))
    if least:
        print(f"| smallest difference | {' | '.join(map(_short, least))} |")
    print("\nCPU seconds per run: ", end="")
    print(", ".join(f"{name} {row.cost('cpu_seconds'):.1f}" for name, row in rows.items()), flush=True)


def _short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--data", nargs="+", default=["synthetic-mq2007", "mq2008"])
    parser.add_argument("--seeds", nargs="+", type=int, default=REPEATS["seeds"], help="of each fold")
    known = {rule.partition(" ")[0]: rule for rule in RULES}
    parser.add_argument("--rules", nargs="+", choices=known, default=list(known), help="rows of the tables")
    asked = parser.parse_args()
    rules = [known[rule] for rule in asked.rules]
    for data in asked.data:
        done = run_experiment(
            read_tables(tables(data, rules) | {"seeds": asked.seeds}), f"poisoning-{data}", asked.out, workers=1
        )
        if done.failed or done.interrupted:
            raise SystemExit(f"{data}: {done.failed[0][1] if done.failed else 'interrupted; the same command resumes'}")
        show(data, asked.out / f"poisoning-{data}", rules)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

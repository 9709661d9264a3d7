"""Find how many clients FPDGD needs for ε = 1 per person without a loss of quality, from ten clients to a million.

    python -m benchmarks.clients_for_privacy --out FOLDER --clip 2           # all on a GPU: two minutes
    python -m benchmarks.clients_for_privacy --out FOLDER --clip 8
    python -m benchmarks.clients_for_privacy --out FOLDER --device cpu --most 1000
    python -m benchmarks.clients_for_privacy --out FOLDER --picture clients-for-privacy.png

Every client is one person, participates in all rounds, and searches five times in each. Three runs per seed: the plain
mean; updates clipped to a fixed norm; and Gaussian noise on their sum, as with secure aggregation or a trusted server,
such that all rounds together cost a person ε = 1 at δ = 1e-7 (by fedrank's accountant). Randomness is keyed for
reproducibility; noise with a known key would not protect anything.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedrank as fr
from fedrank.data.catalog import load
from fedrank.federated.aggregators import Mean
from fedrank.privacy.guarantees import Setting
from fedrank.privacy.mechanisms import AtServer
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.measures import Evaluator

COUNTS = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
ARMS = ("plain", "shortened", "ε = 1")
EPSILON, DELTA = 1.0, 1e-7
SEARCHES, RATE, USER = 5, 1.0, "informational"
NEXT_TO_NOTHING = 1e-6  # noise of the runs without privacy, in multiples of the clip
T_OF_SEEDS = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # quantile 0.975 of Student's t, by seeds
COLUMNS = ("clients", "seed", "arm", "noise", "epsilon", "ndcg", "seconds")


def noise_for(clients: int, parameters: int, rounds: int, clip: float, learner: Any) -> tuple[float, float]:
    """(noise in multiples of the clip, ε): the smallest noise for which all rounds cost at most `EPSILON`."""
    setting = Setting(clients, parameters, 1.0, (SEARCHES,), learner, Mean())

    def cost(noise: float) -> float:
        promises = fr.mechanisms.Gaussian(clip=clip, noise=noise, placement=AtServer()).guarantees(setting)
        return next(p for p in promises if p.against == "public").epsilon(rounds, DELTA)

    low, high = 1.0, 1e5
    while high / low > 1.0001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if cost(middle) <= EPSILON else (middle, high)
    return high, cost(high)


def run(options: argparse.Namespace) -> None:
    fold = load(options.data, 1)
    learner = fr.learners.Pdgd(rate=RATE)
    evaluate = Evaluator(fold.test, ["ndcg@10"])
    parameters = fold.train.features.shape[1]
    path = options.out / f"clients-for-privacy-{options.clip:g}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for count in (each for each in COUNTS if each <= options.most):
            noise, epsilon = noise_for(count, parameters, options.rounds, options.clip, learner)
            clients = fr.make_clients(fold.train, count=count, click_model=USER, interactions=SEARCHES)
            trusted = fr.mechanisms.Gaussian(clip=options.clip, noise=noise, placement=AtServer())
            bare = replace(trusted, noise=NEXT_TO_NOTHING)
            for seed in range(1, options.seeds + 1):
                for arm, mechanism in zip(ARMS, (None, bare, trusted), strict=True):
                    begin = time.perf_counter()
                    source = SecureSource(hashlib.sha256(f"{count} {seed}".encode()).digest()) if mechanism else None
                    federation, last = fr.Federation(learner, mechanism=mechanism), None
                    for last in fr.simulate(  # noqa: B007 (only the last one is measured)
                        federation, clients, options.rounds, seed, noise=source, device=options.device
                    ):
                        pass
                    assert last is not None
                    value = float(evaluate(last.weights, learner.ranker)[0])
                    took = time.perf_counter() - begin
                    spent = (noise, epsilon) if arm == ARMS[2] else (0.0, float("inf"))
                    table.writerow([count, seed, arm, *(f"{each:.6g}" for each in (*spent, value, took))])
                    file.flush()
            print(f"{count:,} clients: noise {noise:.2f} x clip, ε = {epsilon:.4f}", flush=True)


def read(path: Path) -> dict[str, dict[int, list[float]]]:
    """nDCG by arm and clients, in the order of seeds."""
    found: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["arm"]][int(row["clients"])].append(float(row["ndcg"]))
    return found


def half_width(values: Any) -> float:
    """Half width of the 95 % confidence interval of a mean over seeds."""
    count = len(values)
    return float(T_OF_SEEDS[count] * np.std(values, ddof=1) / count**0.5) if count in T_OF_SEEDS else float("nan")


def report(path: Path) -> None:
    """Print a table: nDCG@10 of each arm, and the cost of noise and privacy, paired by seed."""
    found = read(path)
    print(f"\n{path.stem}\n\n| Clients | {' | '.join(ARMS)} | ε = 1 against clipped | against plain |")
    print("|---|" + "---|" * (len(ARMS) + 2))
    for count in found[ARMS[0]]:
        plain, shortened, private = (np.array(found[arm][count]) for arm in ARMS)
        means = " | ".join(f"{each.mean():.4f}" for each in (plain, shortened, private))
        costs = (f"{away.mean():+.4f} ± {half_width(away):.4f}" for away in (private - shortened, private - plain))
        print(f"| {count:,} | {means} | {' | '.join(costs)} |")


def draw(paths: list[Path], picture: Path) -> None:
    """nDCG against clients: without noise, and with ε = 1 for each clip."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), dpi=150)
    lines = [("no noise", read(paths[0])[ARMS[0]], "#1b6ca8", "o")]
    for path, colour, sign in zip(paths, ("#c8553d", "#e0a030"), ("D", "s"), strict=False):
        lines.append((f"ε = 1, updates clipped to {path.stem.rpartition('-')[2]}", read(path)[ARMS[2]], colour, sign))
    for name, found, colour, sign in lines:
        means, spread = zip(*((np.mean(values), half_width(values)) for values in found.values()), strict=True)
        axes.errorbar(list(found), means, yerr=spread, label=name, color=colour, marker=sign, markersize=4, capsize=3)
    axes.set_xscale("log")
    axes.set_xlabel("clients, each one person")
    axes.set_ylabel("nDCG@10 on test queries")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the numbers")
    parser.add_argument("--data", default="mq2007-85", help="a data set of the catalog; fold 1")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--most", type=int, default=COUNTS[-1], help="clients")
    parser.add_argument("--clip", type=float, default=2.0, help="L2 norm to which updates are clipped")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--picture", type=Path, help="plot the results in the folder without running anything")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.picture is None:
        run(options)
    paths = sorted(options.out.glob("clients-for-privacy-*.csv"))
    if options.picture is not None:
        draw(paths, options.picture)
    for path in paths:
        report(path)


if __name__ == "__main__":
    main()

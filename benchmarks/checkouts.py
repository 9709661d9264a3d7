"""Compare the speed of two checkouts: CPU time of the same work, in turns, on this machine.

    python -m benchmarks.checkouts OLD NEW [--pairs 20] [--most 1.05]

OLD and NEW are folders of checkouts; each works in a separate process that repeats the same rounds in turns. Prints the
median ratio new / old with its 95 % confidence interval (order statistics); `--most` exits with 1 if the median is
above.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = """
import inspect, sys, time
import numpy as np
import fedrank as fr
def made_up(features, documents, queries, top):
    rng = np.random.default_rng(1)
    labels = rng.binomial(top, 0.2, queries * documents).astype(np.int8)
    table = rng.random((queries * documents, features), dtype=np.float32)
    table[:, 0] += labels / top
    offsets = np.arange(queries + 1) * documents
    return fr.RankingData(table, labels, offsets, np.arange(queries).astype(str), top_grade=top)
CLICK_MODEL = "user" if "user" in inspect.signature(fr.make_clients).parameters else "click_model"  # until 0.1
small, large = made_up(46, 41, 1000, 2), made_up(136, 120, 2000, 4)
def rounds(data, learner, clients, interactions, count, mechanism=None):
    simulated = fr.make_clients(data, clients, **{CLICK_MODEL: "navigational"}, interactions=interactions)
    federation = fr.Federation(learner, mechanism=mechanism)
    def work():
        for _ in fr.simulate(federation, simulated, count): pass
    return work
flat = hasattr(fr, "Pdgd")  # methods had no families before
ranker, learner = (fr, fr) if flat else (fr.rankers, fr.learners)
noise, place = (fr, fr) if flat else (fr.mechanisms, getattr(fr, "placements", None) or fr.places)
models = np.random.default_rng(2).standard_normal((32, 136))
judge = fr.Evaluator(large, ["ndcg@10"])
jobs = {
    "linear 46 x 41": rounds(small, learner.Pdgd(), 10, 5, 1500),
    "linear 136 x 120": rounds(large, learner.Pdgd(), 10, 5, 600),
    "linear 136 x 120, 1000 clients": rounds(large, learner.Pdgd(), 1000, 4, 8),
    "linear 46 x 41, noise on 1000 clients": rounds(
        small, learner.Pdgd(), 1000, 4, 8, noise.Gaussian(1.0, 1.0, place.OnClient())
    ),
    "linear 46 x 41, noise at the server": rounds(
        small, learner.Pdgd(), 1000, 4, 16, noise.Gaussian(1.0, 1.0, place.AtServer())
    ),
    "neural 136 x 120": rounds(large, learner.Pdgd(ranker=ranker.Mlp()), 10, 5, 50),
    "evolution 46 x 41": rounds(small, learner.Evolution(), 100, 4, 60),
    "lambdarank 46 x 41": rounds(small, learner.LambdaRank(), 10, 5, 300),
    "32 models on 240,000 documents": lambda: judge(models, ranker.Linear()),
}
for job in jobs.values(): job()
print("|".join(jobs), flush=True)
for line in sys.stdin:
    begin = time.process_time()
    jobs[line.strip()]()
    print(time.process_time() - begin, flush=True)
"""


def worker(checkout: Path) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYTHONPATH": str(checkout.resolve() / "src"),
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(side: subprocess.Popen[str], job: str) -> float:
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write(job + "\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("old", type=Path)
    options.add_argument("new", type=Path)
    options.add_argument("--pairs", type=int, default=20)
    options.add_argument("--only", default="", help="jobs with this text in their name")
    options.add_argument("--most", type=float, help="largest median ratio")
    chosen = options.parse_args()
    sides = [worker(chosen.old), worker(chosen.new)]
    names = [side.stdout.readline().strip().split("|") for side in sides if side.stdout is not None]
    missed = False
    print(f"{'CPU time, new / old':34} {'median':>7} {'95 % interval':>15} {'old, ms':>9}")
    for job in (job for job in names[0] if job in names[1] and chosen.only in job):
        ratios, old = [], []
        for pair in range(chosen.pairs):
            order = sides if pair % 2 == 0 else sides[::-1]
            times = {id(side): ask(side, job) for side in order}
            old.append(times[id(sides[0])])
            ratios.append(times[id(sides[1])] / old[-1])
        ratios.sort()
        # The interval of a median from order statistics: about n/2 -+ 0.98 sqrt(n) of n sorted values.
        reach = round(0.98 * chosen.pairs**0.5)
        low, high = ratios[max(chosen.pairs // 2 - reach, 0)], ratios[min(chosen.pairs // 2 + reach, chosen.pairs - 1)]
        middle = statistics.median(ratios)
        missed |= chosen.most is not None and middle > chosen.most
        print(f"{job:34} {middle:7.3f} {low:7.3f} {high:7.3f} {1000 * statistics.median(old):9.1f}", flush=True)
    for side in sides:
        side.kill()
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())

"""Compare with methods from outside: quality and CPU time of the same tasks, in one run.

    pip install xgboost-cpu                             # the extra `xgboost`
    git clone https://github.com/ielab/fpdgd-ictir2021  # published code of FPDGD, which is not part of fedrank
    python -m benchmarks.rivals --fpdgd fpdgd-ictir2021 [--seeds 10] [--data mq2008] [--tune]

Logged clicks: 20,000 searches of 50 users with position bias (eta 1), as in `benchmarks.offpolicy`. The federation
learns from each user's clicks, XGBoost from all pooled on one machine. Quality is nDCG@10 of 500 other queries by their
true relevance, which is a linear function of the features: trees have to approximate it. Settings of all methods were
chosen on the logs of three other seeds (`--tune`).

Live clicks: 10 clients, 4 searches each in 1,000 rounds, navigational users, five folds; fedrank has the settings of
the published code. Its script of experiments fails with its own client class (one argument too many), so its classes
are called directly. Time is that of training, without reading data and without evaluation.

A row whose package or folder is missing is left out, with the reason. ptranking 0.0.5 and its repository have no
federated or online learner, so there is no such row.
"""

from __future__ import annotations

import argparse
import importlib.util
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fedrank as fr
from benchmarks.offpolicy import JUDGED, PEOPLE, QUERIES, SEARCHES, as_lists, corrected, interval, learned, results
from fedrank.data.letor import letor_lines
from fedrank.data.ranking import RankingData
from fedrank.data.synthetic_shown import Browsing, made_up_queries, simulate_shown
from fedrank.ranking.baseline_ranking import baseline_weights
from fedrank.ranking.learners import LambdaRank, LoggedClicks, Pdgd
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.propensity import propensities_of
from fedrank.ranking.rankers import Linear

ROUNDS, CLIENTS, INTERACTIONS, RATE = 1000, 10, 4, 0.1
TUNED_ON = (101, 102, 103)  # seeds of logs that no result uses
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
TREES: tuple[dict[str, Any], ...] = tuple(
    {"max_depth": depth, "num_boost_round": trees} for depth in (2, 4) for trees in (100, 300, 1000)
)
CHOSEN: dict[str, Any] = {
    "clicks as logged": 0.003,
    "corrected, softmax": 0.003,
    "corrected, hinge (FedIPS-style)": 0.001,
    "XGBoost, clicks as logged": {"max_depth": 4, "num_boost_round": 300},
    "XGBoost, lambdarank_unbiased": {"max_depth": 4, "num_boost_round": 300},
}
# Runs the published classes as their training loop does; arguments: folder, data, features, rounds, clients, searches,
# seed, file for the weights. It prints the CPU seconds of training.
DRIVER = """
import sys, time
import numpy as np
folder, train, features, rounds, count, searches, seed, out = sys.argv[1:]
sys.path.insert(0, folder)
features, rounds, count, searches, seed = map(int, (features, rounds, count, searches, seed))
from client.client import RankingClient
from clickModel.click_simulate import CcmClickModel
from data.LetorDataset import LetorDataset
from ranker.PDGDLinearRanker import PDGDLinearRanker
data, user = LetorDataset(train, features), CcmClickModel(CLICK, STOP, "navigational", 10)
np.random.seed(seed)
ranker = PDGDLinearRanker(features, RATE)
clients = [RankingClient(data, ranker, seed * count + c, user, 0, 0, False, count) for c in range(count)]
begin = time.process_time()
for _ in range(rounds):
    ranker.federated_averaging_weights([one.client_ranker_update(searches)[0] for one in clients])
    for one in clients:
        one.update_model(ranker)
print("seconds", time.process_time() - begin)
np.save(out, ranker.get_current_weights())
"""

Found = dict[str, tuple[float, float]]  # method -> (quality, CPU seconds)


def timed(work: Callable[[], float]) -> tuple[float, float]:
    begin = time.process_time()
    return work(), time.process_time() - begin


def logged_methods(seed: int, settings: dict[str, Iterable[Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """Quality and CPU time of all methods with these settings, on one log."""
    truth = made_up_queries(QUERIES + JUDGED, seed=seed)
    judged = truth.some(slice(QUERIES, None)).judged()
    judge = Evaluator(judged, ["ndcg@10"])
    log = simulate_shown(truth.some(slice(QUERIES)), SEARCHES, seed, browsing=Browsing(1.0), people=PEOPLE)
    data = as_lists(log)
    begin = time.process_time()
    data_corrected = corrected(data, log, propensities_of(results(log), truth.features))
    estimating = time.process_time() - begin
    found = {}
    for name, choices in settings.items():
        for choice in choices:
            if name.startswith("XGBoost"):
                quality, seconds = timed(lambda: boosted(data, judged, judge, "unbiased" in name, choice))  # noqa: B023
            else:
                learner = LoggedClicks(rate=choice, loss="hinge" if "hinge" in name else "softmax")
                by = data_corrected if name.startswith("corrected") else data
                quality, seconds = timed(lambda: learned(by, judge, seed, learner))  # noqa: B023
                seconds += estimating if name.startswith("corrected") else 0.0
            found[name, str(choice)] = quality, seconds
    found["do nothing", ""] = float(judge(log.rankers[0], Linear())[0]), math.nan
    found["skyline (true weights)", ""] = float(judge(truth.best, Linear())[0]), math.nan
    return found


def boosted(data: RankingData, judged: RankingData, judge: Evaluator, unbiased: bool, setting: dict[str, Any]) -> float:
    """XGBoost on pooled clicks; rows of a list are in the order in which it was shown, as debiasing needs."""
    import xgboost

    rows = xgboost.DMatrix(
        data.features, label=data.grades, qid=np.repeat(np.arange(data.queries), np.diff(data.offsets))
    )
    options = {"objective": "rank:ndcg", "lambdarank_unbiased": unbiased, "eta": 0.1, "nthread": 1, "seed": 1}
    trees = setting["num_boost_round"]
    model = xgboost.train(options | {"max_depth": setting["max_depth"]}, rows, trees)
    scores = model.predict(xgboost.DMatrix(judged.features))
    return float(np.nanmean(judge.per_query_of_scores(scores)[0]))


def live_methods(name: str, fold: int, seed: int, folder: Path | None) -> Found:
    """Quality and CPU time of learning from live clicks, on one fold."""
    data, found = fr.load(name, fold), {}
    judge = Evaluator(data.test, ["ndcg@10"])

    def quality(weights: Any) -> float:
        return float(judge(weights, Linear())[0])

    def federation(learner: Any, count: int, searches: int) -> Any:
        clients = fr.make_clients(data.train, count, click_model="navigational", interactions=searches, seed=seed)
        *_, last = fr.simulate(fr.Federation(learner), clients, ROUNDS, seed)
        return last.weights

    found["do nothing"] = quality(baseline_weights(data.train)), math.nan
    start = Linear(start_norm=0.01)  # as the published code
    for title, learner, count in (
        ("fedrank, pdgd", Pdgd(start, RATE), CLIENTS),
        ("skyline (lambdarank, true labels)", LambdaRank(), 1),
    ):
        begin = time.process_time()
        weights = federation(learner, count, INTERACTIONS * CLIENTS // count)
        seconds = time.process_time() - begin
        found[title] = quality(weights), seconds
    if folder is not None:
        found["published code of FPDGD"] = published(data.train, folder, seed, quality)
    return found


def published(data: RankingData, folder: Path, seed: int, quality: Callable[[Any], float]) -> tuple[float, float]:
    users = "CLICK, STOP = {0: 0.05, 1: 0.5, 2: 0.95}, {0: 0.2, 1: 0.5, 2: 0.9}\n" + f"RATE = {RATE}\n"
    with tempfile.TemporaryDirectory() as here:
        train, out = Path(here, "train.txt"), Path(here, "weights.npy")
        train.write_text("".join(letor_lines(data)))
        numbers = data.features.shape[1], ROUNDS, CLIENTS, INTERACTIONS, seed
        command = [sys.executable, "-c", users + DRIVER, str(folder), str(train), *map(str, numbers), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the published code in {folder} failed: {done.stderr.strip()[-500:]}")
        seconds = float(done.stdout.rpartition("seconds ")[2])
        return quality(np.load(out, allow_pickle=False).astype(np.float64)), seconds


def table(title: str, rows: Sequence[dict[str, tuple[float, float]]], unit: str) -> None:
    print(f"\n{title}, {len(rows)} {unit}\n  {'nDCG@10, 95 % interval, CPU seconds':36}")
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        mean, low, high = interval([quality for quality, _ in values])
        seconds = float(np.mean([seconds for _, seconds in values]))
        cost = "" if math.isnan(seconds) else f"{seconds:8.2f}"
        print(f"  {name:36} {mean:.4f}  {low:.4f} to {high:.4f} {cost}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--fpdgd", type=Path, help="folder with the published code of FPDGD")
    parser.add_argument("--data", default="synthetic-mq2007")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--tune", action="store_true", help="compare settings on other logs, and stop")
    asked = parser.parse_args()
    here = importlib.util.find_spec("xgboost") is not None
    names = [name for name in CHOSEN if here or not name.startswith("XGBoost")]
    if not here:
        print("XGBoost is left out: the package xgboost is missing; pip install xgboost-cpu")
    if asked.fpdgd is None:
        print("the published code of FPDGD is left out: --fpdgd names no folder")
    elif not (asked.fpdgd / "client" / "client.py").is_file():
        raise SystemExit(f"{asked.fpdgd} is not a copy of github.com/ielab/fpdgd-ictir2021")
    if asked.tune:
        settings = {name: TREES if name.startswith("XGBoost") else RATES for name in names}
        logs = [logged_methods(seed, settings) for seed in TUNED_ON]
        table("Settings", [{": ".join(key): value for key, value in log.items()} for log in logs], "other logs")
        return 0
    logged_methods(100, {name: [CHOSEN[name]] for name in names})  # compiles
    logs = [logged_methods(seed, {name: [CHOSEN[name]] for name in names}) for seed in range(1, asked.seeds + 1)]
    table("Logged clicks", [{name: value for (name, _), value in log.items()} for log in logs], "logs")
    live_methods("synthetic-mq2007", 1, 100, None)  # compiles
    runs = [live_methods(asked.data, fold, fold, asked.fpdgd) for fold in range(1, asked.folds + 1)]
    table(f"Live clicks, {asked.data}", runs, "folds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

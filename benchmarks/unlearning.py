"""Measure under- and over-unlearning of every strategy: what stays of the clients that leave, and what the others lose.

    python -m benchmarks.unlearning [--data mq2008] [--sets 5] [--seeds 5] [--rounds 1000]

Ten clients with their own queries, five interactions a round, navigational clicks; three leave. In "alike" they search
like the others. In "contrary" the labels of their queries go to the documents with the smallest features, so what they
taught is distinct and the others do not teach it. For each model, relative to the model that was retrained without
them from the same seed:

    under   nDCG@10 on the queries and labels of the leaving clients, above that of the retrained model: what was kept
    over    nDCG@10 on test queries, below that of the retrained model: what the remaining clients lost
    tau     Kendall's tau-b with the retrained model's rankings of the leaving clients' queries
    steps   local interactions, as a share of retraining

0 is ideal for the first two, 1 for tau. "another seed" is retrained with another seed: two models between which nothing
is to be forgotten differ as much. The mean and 95 % interval are over sets (folds, or generated sets), each the mean of
its seeds; the last column is the smallest true difference in `under` and `over` that five sets show with 80 % power.

"as released" are the two strategies as the public code of the reproducibility study executes them (SIGIR 2025,
arXiv:2505.12791): its FedRemove averages the last local models of the remaining clients, because clients send models,
and its gradient ascent lets the leaving clients negate their steps in ordinary rounds with all others, without a bound.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.attacks.poison import SignFlip
from fedrank.data.catalog import load
from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic
from fedrank.experiments.report.statistics import half_width, power_of
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.partition import Own
from fedrank.federated.quality import quality_by_client
from fedrank.federated.simulation import simulate
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.measures import Evaluator
from fedrank.types import SimulatedClients, Weights
from fedrank.unlearning.history import History, HistoryWriter
from fedrank.unlearning.methods import Case, FedEraser, FedRemove, FineTune, GradientAscent, Retrain, Unlearner
from fedrank.unlearning.verify import rank_correlations

CLIENTS, INTERACTIONS, LEAVING, EVERY = 10, 5, (0, 1, 2), 10
SCENARIOS = ("alike", "contrary")
MEASURE = "ndcg@10"
Row = tuple[float, float, float, float]  # under, over, tau, share of retraining


def sets_of(name: str, count: int) -> Iterator[tuple[RankingData, RankingData]]:
    """(training, test) queries of folds, or of generated sets."""
    for number in range(1, count + 1):
        if name == "generated":
            data = synthetic("mq2007", queries=600, seed=number)
            yield data.select(np.arange(450)), data.select(np.arange(450, 600))
        else:
            fold = load(name, number)
            yield fold.train, fold.test


def with_contrary_labels(clients: SimulatedClients) -> RankingData:
    """The data, in which those who leave want the documents with the smallest features; labels are as frequent."""
    data, grades = clients.data, clients.data.grades.copy()
    for query in np.concatenate([_queries(clients, client) for client in LEAVING]):
        rows = np.arange(data.offsets[query], data.offsets[query + 1])
        smallest_first = rows[np.argsort(data.features[rows].sum(axis=1), kind="stable")]
        grades[smallest_first] = np.sort(data.grades[rows])[::-1]
    return replace(data, grades=grades)


def as_released(case: Case, rounds: int) -> Iterator[tuple[str, Weights, int]]:
    """The two strategies that the public code executes in another way: name, model, interactions."""
    history = case.recorded("fed-remove")
    *_, last = history
    assert last.weights is not None
    stays = ~np.isin(last.ids, case.leaving)
    yield "fed-remove, as released", last.weights + last.updates[stays].mean(axis=0, dtype=np.float64), 0
    negating = replace(case.clients, malicious=np.isin(case.clients.ids, case.leaving))
    start = case.final if isinstance(case.final, np.ndarray) else case.final.weights
    federation = replace(case.federation, attack=SignFlip())
    *_, end = simulate(federation, negating, rounds, case.unlearn_seed, start=start)
    yield "gradient-ascent, as released", end.weights, rounds * int(case.clients.interactions.sum())


def clients_of(data: RankingData, seed: int) -> SimulatedClients:
    users = "navigational"
    return make_clients(data, CLIENTS, partition=Own(), click_model=users, interactions=INTERACTIONS, seed=seed)


def compare(scenario: str, data: RankingData, test: RankingData, seed: int, rounds: int) -> dict[str, Row]:
    """One run, unlearned by all strategies."""
    clients = clients_of(data, seed)
    if scenario == "contrary":
        clients = clients_of(with_contrary_labels(clients), seed)  # with the same queries
    federation, parameters = Federation(Pdgd()), data.features.shape[1]
    first = np.zeros(parameters)
    with tempfile.TemporaryDirectory() as folder:
        with HistoryWriter(Path(folder), CLIENTS, parameters, EVERY) as writer:
            *_, trained = simulate(federation, clients, rounds, seed, start=first, watch=writer.watch)
        case = Case(federation, clients, LEAVING, seed, first, trained.state, rounds, History.open(folder), points=1)
        models: dict[str, tuple[Weights, float]] = {"nothing": (trained.weights, 0.0)}
        strategies: dict[str, Unlearner] = {
            "fed-eraser": FedEraser(), "fed-remove": FedRemove(), "fine-tune": FineTune(rounds),
            "fine-tune, a tenth": FineTune(max(1, rounds // 10)), "gradient-ascent": GradientAscent(rounds=rounds),
        }  # fmt: skip
        retrained, again = Retrain()(case), Retrain()(replace(case, seed=seed + 1000))
        full = retrained.interactions
        models["retrain, another seed"] = again.weights, 1.0
        for name, strategy in strategies.items():
            done = strategy(case)
            models[name] = done.weights, done.interactions / full
        models |= {name: (model, spent / full) for name, model, spent in as_released(case, rounds)}
    evaluator, ranker = Evaluator(test, [MEASURE]), federation.learner.ranker
    leaving = clients.rows(np.isin(clients.ids, LEAVING))
    theirs = clients.data.select(np.concatenate([_queries(leaving, row) for row in range(len(leaving))]))
    stack = np.stack([retrained.weights, *(model for model, _ in models.values())])
    own = [np.nanmean(quality_by_client([MEASURE], model, ranker, leaving)) for model in stack]
    general = evaluator(stack, ranker)[0]
    taus = rank_correlations(ranker.score(stack, theirs.features), theirs.offsets)[0]
    return {
        name: (float(own[i] - own[0]), float(general[0] - general[i]), float(taus[i]), share)
        for i, (name, (_, share)) in enumerate(models.items(), start=1)
    }


def _queries(clients: SimulatedClients, row: int) -> NDArray[np.int32]:
    pool = clients.pool[row]
    return clients.queries[clients.pools[pool] : clients.pools[pool + 1]]


def smallest(values: NDArray[np.float64]) -> float:
    """The smallest true mean that a t-test over these sets shows with a probability of 80 %."""
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    return next((d for d in np.arange(1, 1001) / 1000 if power_of(d, error, len(values) - 1) >= 0.8), 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["generated", "mq2008"], help="generated, or names of the catalog")
    parser.add_argument("--sets", type=int, default=5, help="folds, or generated sets")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000)
    asked = parser.parse_args()
    for name in asked.data:
        for scenario in SCENARIOS:
            found: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
            for data, test in sets_of(name, asked.sets):
                rows = [compare(scenario, data, test, seed, asked.rounds) for seed in range(1, asked.seeds + 1)]
                for strategy in rows[0]:
                    found[strategy].append(np.mean([row[strategy] for row in rows], axis=0))
            print(f"\n{name}, {scenario}: {asked.sets} sets x {asked.seeds} seeds, {asked.rounds:,} rounds")
            print(f"{'strategy':30} {'under':>17} {'over':>17} {'tau':>7} {'steps':>7} {'smallest':>15}")
            for strategy, by_set in found.items():
                table = np.stack(by_set)
                wide, mean = half_width(table), table.mean(axis=0)
                under, over = (f"{mean[i]:+.4f} ±{wide[i]:.4f}" for i in (0, 1))
                power = f"{smallest(table[:, 0]):.3f}, {smallest(table[:, 1]):.3f}"
                print(f"{strategy:30} {under:>17} {over:>17} {mean[2]:7.3f} {mean[3]:7.1%} {power:>15}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

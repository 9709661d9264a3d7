"""Measure certified unlearning: what it costs in quality and time, and whether an attack finds more than ε allows.

    python -m benchmarks.certified [--data mq2008] [--sets 5] [--seeds 5] [--deletions 1000]

People (ten lists each) click on lists of ten in the order of BM25 with noise, with P(examined) = 1 / position; clicks
are weighted by these fixed propensities. One person is removed at a time.

quality  nDCG@10 on test queries of a certified model after one deletion, against the same loss with hardly any l2 and
         no noise. The mean and 95 % interval are over sets (folds, or generated sets), each the mean of its seeds, with
         the smallest true difference that they show with 80 % power.
cost     CPU time of a deletion with its noise, as a share of training the remaining lists from zero: by the same
         method (Newton), by L-BFGS (SciPy) until the same gradient, and by 1,000 rounds of ten clients with five lists
         each. Each includes the preparation of its data, except for the rounds.
attack   An attacker with all data and both models before noise decides whether a release was unlearned or retrained.
         Three statistics are tried, and the best with its threshold is chosen on 250 other deletions. The errors have
         Clopper-Pearson bounds that all hold together, over both data sets and values of ε, with a probability of
         95 %; "shown" is the largest ε that they contradict. Controls show what the attack finds where it should: a
         model that was not unlearned, and a fifth of the noise.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.unlearning import MEASURE, sets_of, smallest
from fedrank.attacks.membership import Seen, look_for
from fedrank.data.ranking import RankingData
from fedrank.experiments.report.statistics import half_width
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.simulation import simulate
from fedrank.privacy.accounting import GaussianEvent, trade_off
from fedrank.ranking.learners import LoggedClicks
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.types import Weights
from fedrank.unlearning.certificate import ListLoss, ReleaseNoise, minimise
from fedrank.unlearning.methods import Certified

PEOPLE, LISTS, SHOWN, BM25 = (
    400,
    10,
    10,
    24,
)  # people, lists of each, documents of each, and the feature that orders them
CLICKED = np.array([0.05, 0.5, 0.95])  # navigational, by label
STRENGTHS = (1e-2, 1e-3, 1e-4)  # l2
LEVEL = 0.05 / 16  # of one attack: 5 % that any bound is wrong, with four attacks, two data sets and two ε
NO_L2 = 1e-6
Reals = NDArray[np.float64]


def click_log(data: RankingData, seed: int) -> RankingData:
    """Lists of people with weighted clicks; `who` has the person of each."""
    rng = np.random.default_rng(seed)
    rows, clicks, ends = [], [], [0]
    for query in rng.integers(0, data.queries, PEOPLE * LISTS):
        documents = np.arange(data.offsets[query], data.offsets[query + 1])
        order = data.features[documents, BM25] + 0.3 * rng.normal(size=len(documents))
        shown = documents[np.argsort(-order)[:SHOWN]]
        examined = 1 / np.arange(1, len(shown) + 1)
        clicks.append((rng.random(len(shown)) < CLICKED[data.grades[shown]] * examined) / examined)
        rows.append(shown)
        ends.append(ends[-1] + len(shown))
    weights = np.concatenate(clicks).astype(np.float32)
    who = np.repeat(np.arange(PEOPLE, dtype=np.int32), LISTS)
    return RankingData(
        data.features[np.concatenate(rows)], (weights > 0).astype(np.int8), np.array(ends),
        np.arange(len(who)).astype(str), who=who, when=np.arange(len(who)), relevance=weights,
    )  # fmt: skip


def loss_of(log: RankingData, l2: float, without: int = -1) -> ListLoss:
    return ListLoss(log, np.flatnonzero(log.who != without), l2)


def seconds_of(call: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.process_time()
    found = call()
    return found, time.process_time() - begin


def quality(log: RankingData, test: RankingData, given: Certified, person: int) -> dict[str, float]:
    evaluator, size = Evaluator(test, [MEASURE]), log.features.shape[1]
    models = {"nothing (BM25)": np.eye(size)[BM25]}
    models["no l2, no noise"], _ = minimise(loss_of(log, NO_L2, person), np.zeros(size), 1e-7)
    for l2 in STRENGTHS:
        noise = ReleaseNoise(2 * given.tolerance / l2, size, given.epsilon, given.delta)
        before = noise.release(minimise(loss_of(log, l2), np.zeros(size), given.tolerance)[0])
        after, _ = minimise(loss_of(log, l2, person), before, given.tolerance)
        models[f"l2 = {l2:g}, no noise"] = after
        models[f"l2 = {l2:g}, certified"] = noise.release(after)
    found = evaluator(np.stack(list(models.values())), Linear())[0]
    return dict(zip(models, found.tolist(), strict=True))


def cost(log: RankingData, given: Certified, person: int) -> dict[str, float]:
    """CPU seconds, and passes over the data."""
    from scipy.optimize import minimize

    size, l2, tolerance = log.features.shape[1], given.l2, given.tolerance
    noise = ReleaseNoise(2 * tolerance / l2, size, given.epsilon, given.delta)
    before = noise.release(minimise(loss_of(log, l2), np.zeros(size), tolerance)[0])

    def forget() -> int:
        model, passes = minimise(loss_of(log, l2, person), before, tolerance)
        noise.release(model)
        return passes

    def first_order() -> Any:
        remaining = loss_of(log, l2, person)
        return minimize(
            lambda model: remaining.at(model)[:2], np.zeros(size), jac=True, method="L-BFGS-B", options=options
        )

    passes, unlearned = seconds_of(forget)
    (_, again), newton = seconds_of(lambda: minimise(loss_of(log, l2, person), np.zeros(size), tolerance))
    options = {"maxiter": 10**5, "maxfun": 10**5, "ftol": 0, "gtol": tolerance / np.sqrt(size), "maxcor": 20}
    found, lbfgs = seconds_of(first_order)
    stays = log.select(np.flatnonzero(log.who != person))
    clients = make_clients(stays, 10, interactions=5)
    _, rounds = seconds_of(lambda: [*simulate(Federation(LoggedClicks()), clients, 1000)][-1])
    return {
        "deletion, seconds": unlearned, "of Newton from zero": unlearned / newton,
        "of L-BFGS from zero": unlearned / lbfgs, "of 1,000 rounds": unlearned / rounds,
        "passes": passes, "passes of Newton": again,
        "passes of L-BFGS": found.nfev, "gradient of L-BFGS": float(np.linalg.norm(found.jac)),
    }  # fmt: skip


def statistics(
    released: Weights, centres: tuple[Weights, Weights], other: Weights, gone: ListLoss, width: float
) -> Reals:
    """Large where the release seems unlearned: by likelihood, towards the earlier model, by the loss of who is gone."""
    unlearned, retrained = centres

    def along(vector: Weights, origin: Weights) -> float:
        length = float(np.linalg.norm(vector))
        return float((released - origin) @ vector) / (length * width) if length else 0.0

    gradient = gone.at(retrained)[1]
    less = (gone.at(retrained)[0] - gone.at(released)[0]) / (np.linalg.norm(gradient) * width + 1e-300)
    return np.array([
        along(unlearned - retrained, (unlearned + retrained) / 2), along(other - retrained, retrained), float(less),
    ])  # fmt: skip


def attack(log: RankingData, given: Certified, deletions: int) -> None:
    size, rng = log.features.shape[1], np.random.default_rng(1)
    noise = ReleaseNoise(2 * given.tolerance / given.l2, size, given.epsilon, given.delta)
    full = minimise(loss_of(log, given.l2), np.zeros(size), given.tolerance)[0]
    names = ("unlearned", "as far apart as allowed", "control: not unlearned", "control: a fifth of the noise")
    seen: dict[tuple[str, bool], list[Reals]] = {(name, inside): [] for name in names for inside in (False, True)}
    apart = []
    for _ in range(deletions + deletions // 4):
        person = int(rng.integers(PEOPLE))
        remaining, gone = loss_of(log, given.l2, person), ListLoss(log, np.flatnonzero(log.who == person), NO_L2)
        retrained = minimise(remaining, np.zeros(size), given.tolerance)[0]
        unlearned = minimise(remaining, noise.release(full), given.tolerance)[0]
        apart.append(np.linalg.norm(unlearned - retrained) / noise.sensitivity)
        softest = np.linalg.eigh(remaining.at(retrained, curvature=True)[2])[1][:, 0] * noise.sensitivity / 2
        cases = {
            "unlearned": (unlearned, retrained, 1.0),
            "as far apart as allowed": (retrained + softest, retrained - softest, 1.0),
            "control: not unlearned": (full, retrained, 1.0),
            "control: a fifth of the noise": (retrained + softest, retrained - softest, 0.2),
        }
        for name, (one, two, share) in cases.items():
            for inside, centre in ((True, one), (False, two)):
                released = centre + share * (noise.release(centre) - centre)
                found = statistics(released, (one, two), full, gone, noise.deviation)
                seen[name, inside].append(found)
    print(f"models before noise are {max(apart):.1e} of the sensitivity apart, at most")
    for name in names:
        tables = {inside: np.stack(seen[name, inside]) for inside in (False, True)}
        places = iter((slice(deletions, None), slice(deletions, None), slice(0, deletions), slice(0, deletions)))

        def watch(
            index: int, inside: bool, count: int, tables: dict[bool, Reals] = tables, places: Any = places
        ) -> Seen:
            some = tables[inside][next(places)]
            assert len(some) == count
            return dict(zip(("likelihood", "the earlier model", "their loss"), some.T, strict=True))

        curve = partial(trade_off, GaussianEvent(noise.multiplier), 1)
        trial = look_for(watch, ["a deletion"], curve, deletions, LEVEL)
        print(
            f"{name:32} {trial.attack:30} false positives {trial.false_positives:4} (<= {trial.alpha:.3f}), false "
            f"negatives {trial.false_negatives:4} (<= {trial.beta:.3f}), shown {trial.epsilon(given.delta):.3f}, "
            f"claimed {given.epsilon:g}: {'VIOLATED' if trial.violated else 'not contradicted'}",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["generated", "mq2008"], help="generated, or names of the catalog")
    parser.add_argument("--sets", type=int, default=5, help="folds, or generated sets")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--deletions", type=int, default=1000, help="of each attack; 0: none")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[Certified().epsilon, 1.0], help="of attacks")
    asked = parser.parse_args()
    for name in asked.data:
        by_set, costs, log = [], [], None
        for data, test in sets_of(name, asked.sets):
            logs = [click_log(data, seed) for seed in range(1, asked.seeds + 1)]
            rows = [quality(log, test, Certified(), seed) for seed, log in enumerate(logs)]
            by_set.append({model: float(np.mean([row[model] for row in rows])) for model in rows[0]})
            costs += [cost(log, Certified(), seed) for seed, log in enumerate(logs)]
            log = logs[0] if log is None else log
        assert log is not None
        print(f"\n{name}: {asked.sets} sets x {asked.seeds} seeds, {PEOPLE} people with {LISTS} lists each")
        for model in by_set[0]:
            lost = np.array([one["no l2, no noise"] - one[model] for one in by_set])
            wide = half_width(lost[:, None])[0]
            mean = np.mean([one[model] for one in by_set])
            print(f"{model:24} {mean:.4f}, loss {lost.mean():+.4f} ±{wide:.4f}, smallest {smallest(lost):.3f}")
        for what in costs[0]:
            print(f"{what:24} median {np.median([one[what] for one in costs]):.4g}")
        for epsilon in asked.epsilons if asked.deletions else ():
            attack(log, Certified(epsilon=epsilon), asked.deletions)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

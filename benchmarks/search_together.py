"""Measure whether people who search their own documents gain from training together, compared with the start alone.

    python -m benchmarks.search_together [--clicks informational] [--choose] [--check]

Needs the text collections in FEDRANK_DATA; takes about four minutes on one core. Half of the queries of a collection
are searched, and quality is nDCG@10 on the other half, minus that of the start; four divisions and two seeds, 95 %
intervals over queries, mean over collections. The settings are those of `fedrank search aggregate`: every person takes
part once, with 30 searches, under secure aggregation at δ = 1e-5; half of the people are assumed to be honest and
online, so noise has twice the variance. They were chosen with `--choose`, which uses two other divisions.

mixed: a fifth of the people searches each collection. newcomer: people who search the four other collections. The
memory of clicks is the same with and without joining, and has no effect on queries that were not searched before.
"signal" is people / (σ √(T d)), the rule of `fedrank privacy plan`; a group whose signal is below `coordinator.SIGNAL`,
or with fewer than `FEWEST` people, is refused. --check: no accepted group loses.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from benchmarks.private_noise import noise_multiplier
from fedrank.data.live_features import LIVE_1
from fedrank.data.live_ranking import collection_fold
from fedrank.federated.clients import make_clients
from fedrank.federated.deal import Deal
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.ranking.click_models import ClickModel
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.search.coordinator import CLIP, FEWEST, LEARNING_RATE, SEARCHES, SIGNAL, STEP, rounds_for
from fedrank.search.impressions import ENGINE_FIRST, first_weights
from fedrank.search.impressions import LEARNER as DISPLAY
from fedrank.seeds import Chance, rng_for

COLLECTIONS = ("cranfield", "cisi", "msmarco-mini", "nfcorpus", "vaswani")
CHOICE, SPLITS, SEEDS = (1, 2), (3, 4, 5, 6), (1, 2)  # divisions for the choice of settings, and others for the result
PEOPLE, EPSILONS = (100, 300, 1000), (1.0, 4.0, math.inf)
TRIED = tuple(product((1, 2, 4), (0.3, 1.0, 2.0, 3.0)))  # rounds; norm of a round's change if all updates agree
LEARNER = replace(DISPLAY, rate=LEARNING_RATE)
FOUR_LABELS = {  # of cranfield; between the published models for three and five labels
    "navigational": ClickModel((0.05, 0.35, 0.65, 0.95), (0.2, 0.4, 0.65, 0.9)),
    "informational": ClickModel((0.4, 0.6, 0.75, 0.9), (0.1, 0.2, 0.35, 0.5)),
}
FIRST = 1e6  # weight that is larger than all scores
Values = NDArray[np.float64]


def start() -> Values:
    """The weights that every client begins with."""
    return first_weights(LIVE_1)


@cache
def fold_of(name: str, split: int):
    return collection_fold(name, 1, split)


@cache
def evaluator(name: str, split: int) -> Evaluator:
    """Test queries with one more feature: positive for the results of the engine that stay first."""
    test = fold_of(name, split).test
    place = np.arange(len(test.features)) - np.repeat(test.offsets[:-1], np.diff(test.offsets))
    first = np.maximum(ENGINE_FIRST - place, 0).astype(np.float32)[:, None]
    return Evaluator(replace(test, features=np.hstack([test.features, first]), feature_names=()), ["ndcg@10"])


def qualities(name: str, split: int, weights: Values) -> Values:
    """[queries]: nDCG@10 as the client displays the results of a model."""
    found: Values = evaluator(name, split).per_query(np.append(weights, FIRST), Linear())[0]
    return found


@cache
def people_of(name: str, split: int, count: int, clicks: str):
    data = fold_of(name, split).train
    model = FOUR_LABELS[clicks] if data.top_grade == 3 else clicks
    return make_clients(data, count, click_model=model, interactions=SEARCHES, seed=split)


@cache
def median_update(clicks: str) -> float:
    """The norm of a person's update, over all collections."""
    norms = []
    for name in COLLECTIONS:
        some = LEARNER(start().astype(np.float32), people_of(name, CHOICE[0], 100, clicks), Chance(1, 1)).updates
        norms.append(np.linalg.norm(some, axis=1))
    return float(np.median(np.concatenate(norms)))


def trained(
    names: Sequence[str], people: int, epsilon: float, rounds: int, step: float, split: int, seed: int, clicks: str
) -> Values:
    """The final model."""
    sigma = noise_multiplier(epsilon) / math.sqrt(SecureAggregation().honest)
    groups = [people_of(name, split, people // len(names), clicks) for name in names]
    deals = [Deal.of(len(each), rounds, seed, name) for name, each in zip(names, groups, strict=True)]
    weights, rng = start(), rng_for(seed, "noise", split, people)
    for number in range(1, rounds + 1):
        total = rng.normal(size=len(weights)) * sigma * CLIP
        for each, deal in zip(groups, deals, strict=True):
            some = each.rows(deal.rows(number))
            updates = LEARNER(weights.astype(np.float32), some, Chance(seed, number)).updates.astype(np.float64)
            norms = np.linalg.norm(updates, axis=1, keepdims=True)
            total += (updates * np.minimum(1.0, CLIP / np.maximum(norms, 1e-30))).sum(axis=0)
        weights = weights + step / CLIP / (people / rounds) * total
    return weights


class Gains:
    """Differences from the start, by collection and query."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, list[float]]] = {}

    def add(self, name: str, split: int, weights: Values) -> None:
        values = qualities(name, split, weights) - qualities(name, split, start())
        for query, value in zip(fold_of(name, split).test.query_ids, values, strict=True):
            self.found.setdefault(name, {}).setdefault(str(query), []).append(float(value))

    @property
    def means(self) -> list[Values]:
        return [np.array([np.mean(each) for each in some.values()]) for some in self.found.values()]

    def summary(self) -> tuple[float, float, float]:
        """The mean over collections, half of its 95 % interval over queries, and the worst collection."""
        means = [float(each.mean()) for each in self.means]
        errors = [float(each.var(ddof=1) / len(each)) for each in self.means]
        return float(np.mean(means)), 1.96 * math.sqrt(sum(errors)) / len(means), min(means)

    def __str__(self) -> str:
        return "{:+.4f} ± {:.4f} (worst {:+.4f})".format(*self.summary())


def mixed(people: int, epsilon: float, rounds: int, step: float, clicks: str, splits: Sequence[int]) -> Gains:
    """People of all collections; tested on each."""
    gains = Gains()
    for split, seed in product(splits, SEEDS):
        weights = trained(COLLECTIONS, people, epsilon, rounds, step, split, seed, clicks)
        for name in COLLECTIONS:
            gains.add(name, split, weights)
    return gains


def newcomer(people: int, epsilon: float, rounds: int, step: float, clicks: str) -> Gains:
    """People of the other collections; tested on one that none of them searches."""
    gains = Gains()
    for split, seed, name in product(SPLITS, SEEDS, COLLECTIONS):
        others = [other for other in COLLECTIONS if other != name]
        gains.add(name, split, trained(others, people, epsilon, rounds, step, split, seed, clicks))
    return gains


def signal(people: int, epsilon: float, rounds: int) -> float:
    sigma = noise_multiplier(epsilon) / math.sqrt(SecureAggregation().honest)
    return people / (sigma * math.sqrt(rounds * len(LIVE_1.names))) if sigma else math.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clicks", choices=tuple(FOUR_LABELS), default="navigational")
    parser.add_argument("--choose", action="store_true", help="all settings, on other divisions")
    parser.add_argument("--check", action="store_true", help="fail if an accepted group loses")
    given = parser.parse_args()
    print(f"half of the median update {median_update(given.clicks) / 2:.4f}; CLIP is {CLIP}", flush=True)
    if given.choose:
        for (rounds, step), people, epsilon in product(TRIED, (50, 100, 300), (1.0, 2.0, 4.0, 8.0)):
            gains = mixed(people, epsilon, rounds, step, given.clicks, CHOICE)
            about = f"{rounds} rounds, step {step:g}, {people} people, ε = {epsilon:g}"
            print(f"{about}: signal {signal(people, epsilon, rounds):.1f}: {gains}", flush=True)
        return
    for name in COLLECTIONS:
        engine, first = (
            np.mean([qualities(name, split, weights).mean() for split in SPLITS])
            for weights in (LIVE_1.start(), start())
        )
        print(f"{name}: engine {engine:.4f}, start {first:.4f}", flush=True)
    for people, epsilon in product(PEOPLE, EPSILONS):
        rounds = rounds_for(people)
        found = mixed(people, epsilon, rounds, STEP / rounds, given.clicks, SPLITS)
        enough = people >= FEWEST and signal(people, epsilon, rounds) >= SIGNAL
        print(
            f"{people:,} people, ε = {epsilon:g}, {rounds} rounds, signal {signal(people, epsilon, rounds):.1f} "
            f"({'accepted' if enough else 'refused'}): mixed {found}; "
            f"newcomer {newcomer(people, epsilon, rounds, STEP / rounds, given.clicks)}",
            flush=True,
        )
        mean, margin, worst = found.summary()
        if given.check and enough:
            assert mean > margin, "no gain"
            assert worst > -0.005, "a collection loses"


if __name__ == "__main__":
    main()

"""Measure whether people who search their own documents gain from a model that they train together.

    python -m benchmarks.search_together [--clicks informational] [--check]

The search client does not offer it, and this is why. Needs the text collections in FEDRANK_DATA; takes two minutes on
one core. Candidates and features are the client's, for at most 1,000 complete queries of a collection. Half of them are
searched, and quality is nDCG@10 on the other half (all judged documents count in the ideal), in the client's order
without memory, which has no effect on new queries. Differences are those to the start weights: four divisions, two
seeds, 95 % intervals over queries, mean over collections.

A fifth of the people searches each of five collections, and none searches `docstrings`. Every person takes part once,
with 30 searches in drawn lists and one clipped update, under secure aggregation at δ = 1e-5; half of the people are
assumed to be honest and online, so noise has twice the variance. `step` is the norm by which the model changes in all
rounds together if all updates agree. At the end, everyone searches the same collection. --check: no setting for people
of all collections gains beyond its interval.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.live_quality import COLLECTIONS, dcg, evenly, indexed
from benchmarks.private_noise import noise_multiplier
from fedrank.data.live_features import LIVE_1
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.deal import Deal
from fedrank.privacy.mechanisms import SecureAggregation
from fedrank.ranking.click_models import ClickModel
from fedrank.ranking.learners import Pdgd
from fedrank.search.client import SearchClient
from fedrank.search.impressions import best_order, engine_first, start_weights
from fedrank.search.lists import still_there
from fedrank.seeds import Chance, rng_for

SEARCHED, OTHER = COLLECTIONS[:5], COLLECTIONS[5]
QUERIES = 1_000  # of a collection, evenly spaced
SPLITS, SEEDS = (1, 2, 3, 4), (1, 2)
TRIED = (
    (300, math.inf, 2.0),
    (1_000, math.inf, 2.0),
    (1_000, 1.0, 2.0),
    (1_000, math.inf, 0.2),
    (5_000, math.inf, 0.5),
)
ALIKE = (1_000, math.inf, 10.0)  # the same, for people who all search one collection; with a small step, less changes
SEARCHES, CLIP, PEOPLE = 30, 0.23, 200  # of a person; half of the median update; in a round
LEARNER = Pdgd(rate=0.03, temperature=0.15, keep=0.9)  # lists are drawn, and the best result stays first in 9 of 10
FOUR_LABELS = {  # of cranfield; between the published models for three and five labels
    "navigational": ClickModel((0.05, 0.35, 0.65, 0.95), (0.2, 0.4, 0.65, 0.9)),
    "informational": ClickModel((0.4, 0.6, 0.75, 0.9), (0.1, 0.2, 0.35, 0.5)),
}
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Asked:
    """The queries of a collection with the client's candidates."""

    features: list[NDArray[np.float32]]  # per query, scaled
    labels: list[NDArray[np.int8]]
    ideal: list[float]
    top: int

    def halves(self, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first, second = np.array_split(rng_for(split, "halves", len(self.ideal)).permutation(len(self.ideal)), 2)
        return np.sort(first), np.sort(second)

    def quality(self, weights: Values, queries: NDArray[np.int64]) -> Values:
        """[queries]: nDCG@10 as the client orders the results."""
        found = []
        for query in queries.tolist():
            best = best_order(engine_first(self.features[query] @ weights))[:10]
            found.append(dcg(self.labels[query][best]) / self.ideal[query])
        return np.array(found)


@cache
def asked(name: str) -> Asked:
    with tempfile.TemporaryDirectory() as folder:
        one = indexed(name, Path(folder), Path())
        collection, rows = one.collection, one.rows
        judged = [query for query in range(len(collection.queries)) if collection.judgements(query)[1].any()]
        features, labels, ideal = [], [], []
        with SearchClient(one.store) as client:
            for query in evenly(judged, QUERIES):
                documents, grades = collection.judgements(query)
                grade_of = dict(zip(documents.tolist(), grades.tolist(), strict=True))
                found, _ = client.candidates(request := client.request(collection.queries[query]))
                found, rows_of_words = still_there(client.store, found)
                raw = client.features.raw(request.terms, rows_of_words, found.scores, client.store.statistics())
                features.append(client.rows.scaled(raw.astype(np.float16)))
                labels.append(np.array([grade_of.get(rows[id], 0) for id in found.documents.tolist()], np.int8))
                ideal.append(dcg(np.sort(grades)[::-1]))
    return Asked(features, labels, ideal, collection.top_grade)


@cache
def people_of(name: str, split: int, count: int, clicks: str):
    """Simulated people who search the first half of a collection's queries that have a relevant candidate."""
    one = asked(name)
    some = [query for query in one.halves(split)[0].tolist() if one.labels[query].any()]
    data = RankingData(
        np.concatenate([one.features[query] for query in some]),
        np.concatenate([one.labels[query] for query in some]),
        np.cumsum([0, *(len(one.labels[query]) for query in some)]),
        np.array([str(query) for query in some]),
        name=name,
        top_grade=one.top,
        feature_names=LIVE_1.names,
    )
    model = FOUR_LABELS[clicks] if one.top == 3 else clicks
    return make_clients(data, count, click_model=model, interactions=SEARCHES, seed=split)


def trained(
    names: Sequence[str], people: int, epsilon: float, step: float, split: int, seed: int, clicks: str
) -> Values:
    """The final model."""
    rounds = max(2, math.ceil(people / PEOPLE))
    sigma = noise_multiplier(epsilon) / math.sqrt(SecureAggregation().honest)
    groups = [people_of(name, split, people // len(names), clicks) for name in names]
    deals = [Deal.of(len(each), rounds, seed, name) for name, each in zip(names, groups, strict=True)]
    weights, rng = start_weights(LIVE_1).copy(), rng_for(seed, "noise", split, people)
    for number in range(1, rounds + 1):
        total = rng.normal(size=len(weights)) * sigma * CLIP
        for each, deal in zip(groups, deals, strict=True):
            some = each.rows(deal.rows(number))
            updates = LEARNER(weights.astype(np.float32), some, Chance(seed, number)).updates.astype(np.float64)
            norms = np.linalg.norm(updates, axis=1, keepdims=True)
            total += (updates * np.minimum(1.0, CLIP / np.maximum(norms, 1e-30))).sum(axis=0)
        weights = weights + step / rounds / CLIP / (people / rounds) * total
    return weights


def gains(searched: Sequence[str], measured: Sequence[str], setting: tuple[int, float, float], clicks: str):
    """By measured collection, [queries]: the mean difference from the start."""
    found: dict[str, dict[int, list[float]]] = {name: {} for name in measured}
    for split, seed in product(SPLITS, SEEDS):
        weights = trained(searched, *setting, split, seed, clicks)
        for name, of_queries in found.items():
            one = asked(name)
            queries = one.halves(split)[1]
            difference = one.quality(weights, queries) - one.quality(start_weights(LIVE_1), queries)
            for query, value in zip(queries.tolist(), difference.tolist(), strict=True):
                of_queries.setdefault(query, []).append(value)
    return {name: np.array([np.mean(each) for each in some.values()]) for name, some in found.items()}


def interval(means: list[Values]) -> tuple[float, float]:
    """The mean over collections, and half of its interval over queries."""
    error = math.sqrt(sum(float(each.var(ddof=1)) / len(each) for each in means)) / len(means)
    return float(np.mean([each.mean() for each in means])), 1.96 * error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clicks", choices=tuple(FOUR_LABELS), default="navigational")
    parser.add_argument("--check", action="store_true", help="fail if a setting gains")
    given = parser.parse_args()
    for setting in TRIED:
        people, epsilon, step = setting
        found = gains(SEARCHED, COLLECTIONS, setting, given.clicks)
        mean, margin = interval([found[name] for name in SEARCHED])
        lowest = min(SEARCHED, key=lambda name: float(found[name].mean()))
        print(
            f"{people:,} people, ε = {epsilon:g}, step {step:g}: members {mean:+.4f} ± {margin:.4f} (lowest: {lowest} "
            f"{found[lowest].mean():+.4f}), others {'{:+.4f} ± {:.4f}'.format(*interval([found[OTHER]]))}",
            flush=True,
        )
        assert mean <= margin or not given.check, "joining gains: the search client should offer it again"
    alike = {name: gains((name,), (name,), ALIKE, given.clicks)[name] for name in COLLECTIONS}
    for name, differences in alike.items():
        mean, margin = interval([differences])
        print(
            f"{ALIKE[0]:,} people who search {name}, without noise, step {ALIKE[2]:g}: {mean:+.4f} ± {margin:.4f}",
            flush=True,
        )
    mean, margin = interval([*alike.values()])
    print(f"mean over collections: {mean:+.4f} ± {margin:.4f}")


if __name__ == "__main__":
    main()

"""Measure what tenants gain by learning the weight of a signal together, at best.

    python -m benchmarks.rerank_join [--seeds 1]

Ten tenants, two per judged collection, with the simulated reader and the informative signal of `benchmarks/rerank.py`,
which means the same to all of them. After some requests, weights are fitted to a tenant's own feedback, or to that of
the other nine, pooled without noise, which is more than a federation can reach. As in `fedrank rerank join --model`,
weights of others are used only if they predict the tenant's own feedback significantly better than the start does.
nDCG@10 of new queries minus that of the start.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.rerank import COLLECTIONS, NEEDS, READERS, SEEN, fewer_words, gain, ndcg, prepared
from fedrank.search.rerank import Reranker
from fedrank.search.rerank.learning import SIGNIFICANT, Example, gain_of, refit, with_start
from fedrank.search.rerank.passages import OWN, START
from fedrank.search.rerank.reranker import _protected
from fedrank.seeds import rng_for

LOOKS = (25, 50, 100, 200)  # requests with feedback
CALLER, READER = "vector", READERS["signal"]
NAMES = [*OWN, "own"]
Weights = dict[str, float]


class Tenant(NamedTuple):
    examples: dict[int, list[Example]]  # by look
    unseen: list[tuple[np.ndarray, np.ndarray, dict[int, int]]]  # features, documents and their relevance labels

    def gains(self, weights: Weights | None) -> list[float]:
        """nDCG@10 of each new query minus that of the start."""
        start = np.array([*START, 0.0])
        learned = start if weights is None else np.array([weights[name] for name in NAMES])

        def of(table: np.ndarray, documents: np.ndarray, grades: dict[int, int], column: np.ndarray) -> float:
            return ndcg(documents[_protected(np.argsort(-(table @ column), kind="stable"))], grades)

        return [of(*one, learned) - of(*one, start) for one in self.unseen]


def tenant(name: str, seed: int, half: int) -> Tenant:
    collection, callers = prepared(name)
    rng = rng_for(seed, "rerank join benchmark", name, half)
    judged = [query for query in range(len(collection.queries)) if collection.judgements(query)[1].max(initial=0) > 0]
    chosen = rng_for(seed, "rerank join needs", name).permutation(judged)[: 2 * NEEDS]
    grades = {
        int(need): dict(zip(*(part.tolist() for part in collection.judgements(need)), strict=True)) for need in chosen
    }
    examples: dict[int, list[Example]] = {}
    with tempfile.TemporaryDirectory() as folder, Reranker(Path(folder, "t"), refits=False) as reranker:

        def asked(need: int, query: str) -> tuple[np.ndarray, dict[str, list[float]]]:
            documents = callers.first(CALLER, query)
            table = rng_for(seed, "rerank join signal", name, need).normal(size=len(collection.documents))
            return documents, {"own": [float(table[one] + (grades[need].get(int(one), 0) > 0)) for one in documents]}

        searched = chosen[half::2]
        for number in range(1, LOOKS[-1] + 1):
            need = int(rng.choice(searched))
            query = collection.queries[need] if rng.random() < 1 / 3 else fewer_words(collection.queries[need], rng)
            documents, signal = asked(need, query)
            answer = reranker.rerank(query, [callers.texts[one] for one in documents], SEEN, signals=signal)
            good = [grades[need].get(int(documents[index]), 0) > 0 for index in answer.indices]
            chance = np.where(good, READER.relevant, READER.other)
            used = [index for index, p in zip(answer.indices, chance, strict=True) if rng.random() < p]
            reranker.feedback(answer.id, dict.fromkeys(used, "cited") or {answer.indices[0]: "ignored"})
            if number in LOOKS:
                names, examples[number] = reranker._examples()
                assert names == NAMES
        unseen = []
        for need in map(int, chosen[1 - half :: 2]):
            documents, signal = asked(need, collection.queries[need])
            columns = {key: np.array(values) for key, values in signal.items()}
            texts = [callers.texts[one] for one in documents]
            unseen.append(
                (reranker._describe(collection.queries[need], texts, columns)[3].table, documents, grades[need])
            )
    return Tenant(examples, unseen)


def together(some: list[list[Example]]) -> Weights | None:
    """Weights fitted to the feedback of several tenants; their queries are different ones."""
    own = [replace(one, query=one.query * len(some) + place) for place, given in enumerate(some) for one in given]
    fitted = refit(NAMES, own)
    return None if fitted is None else with_start(fitted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    asked = parser.parse_args()
    for seed in asked.seeds:
        tenants = [tenant(name, seed, half) for name in COLLECTIONS for half in (0, 1)]
        for look in LOOKS:
            arms: dict[str, list[list[float]]] = {
                "own feedback": [],
                "of the others, if it passes": [],
                "of the others": [],
            }
            passed = fitted = 0
            for place, one in enumerate(tenants):
                own = refit(NAMES, one.examples[look])
                joined = together([other.examples[look] for other in tenants[:place] + tenants[place + 1 :]])
                passes = joined is not None and gain_of(joined, NAMES, one.examples[look]) > SIGNIFICANT
                fitted, passed = fitted + (own is not None), passed + passes
                for arm, weights in zip(arms, (own, joined if passes else None, joined), strict=True):
                    arms[arm].append(one.gains(weights))
            for arm, values in arms.items():
                mean, error = gain(values)
                count = {"own feedback": fitted, "of the others, if it passes": passed}.get(arm, len(tenants))
                print(f"seed {seed}, {look:3} requests: {arm:28} {mean:+.3f} ± {error:.3f}  {count} of {len(tenants)}")


if __name__ == "__main__":
    main()

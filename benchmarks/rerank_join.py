"""Measure what tenants gain by learning the weight of a signal together, at best.

    python -m benchmarks.rerank_join [--seeds 1]

Ten tenants, two per judged collection, with the simulated reader and the informative signal of `benchmarks/rerank.py`,
which means the same to all of them, and a worthless one. After some requests, weights are fitted to a tenant's own
feedback, or to that of the other nine, pooled without noise, which is more than a federation can reach; or the
worthless signal has a random weight from -1 to 1, as if all came from noise. As in `fedrank rerank join --model`, such
weights are tried if they predict the tenant's own feedback better than the start does, by some standard errors. nDCG@10
of new queries minus that of the start, while the weights are used, and how many tenants use them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.rerank import COLLECTIONS, NEEDS, READERS, SEEN, fewer_words, gain, ndcg, prepared
from fedrank.search.rerank import Reranker
from fedrank.search.rerank.learning import Example, gain_of, refit, with_start
from fedrank.search.rerank.passages import OWN, START
from fedrank.search.rerank.reranker import _protected
from fedrank.seeds import rng_for

LOOKS = (25, 50, 100, 200)  # requests with feedback
CALLER, READER = "vector", READERS["signal"]
NAMES = [*OWN, "own", "noise"]
ERRORS = (0.0, 1.0, 2.0)
Weights = dict[str, float]


class Tenant(NamedTuple):
    examples: dict[int, list[Example]]  # by look
    unseen: list[tuple[np.ndarray, np.ndarray, dict[int, int]]]  # features, documents and their relevance labels

    def gains(self, weights: Weights | None) -> list[float]:
        """nDCG@10 of each new query minus that of the start."""
        start = np.array([*START, 0.0, 0.0])
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
            known = np.array([grades[need].get(int(one), 0) > 0 for one in documents])
            noise = rng_for(seed, "rerank join noise", name, need).normal(size=len(table))
            return documents, {"own": (table[documents] + known).tolist(), "noise": noise[documents].tolist()}

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
            arms: defaultdict[str, list[list[float]]] = defaultdict(list)
            using: Counter[str] = Counter()
            for place, one in enumerate(tenants):
                given = one.examples[look]
                tried = {"own feedback": refit(NAMES, given)}
                random = rng_for(seed, "rerank join weight", place, look).uniform(-1, 1)
                others = together([other.examples[look] for other in tenants[:place] + tenants[place + 1 :]])
                for name, weights in (
                    ("others", others),
                    ("noise", dict(zip(NAMES, [*START, 0.0, random], strict=True))),
                ):
                    tried[f"{name}, always"] = weights
                    better = -np.inf if weights is None else gain_of(weights, NAMES, given)
                    tried |= {f"{name}, {errors:g} errors": weights if better > errors else None for errors in ERRORS}
                for name, weights in tried.items():
                    arms[name].append(one.gains(weights))
                    using[name] += weights is not None
            for name, values in arms.items():
                mean, error = gain(values)
                print(f"seed {seed}, {look:3} requests: {name:18} {mean:+.3f} ± {error:.3f}, used by {using[name]}")


if __name__ == "__main__":
    main()

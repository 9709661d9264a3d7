"""Measure what the reranker gains over the caller's order, on judged collections with simulated readers.

    python -m benchmarks.rerank --out results [--seeds 1 2] [--only cranfield/vector/usual ...] [--check]
    python -m benchmarks.rerank --out results --picture docs/rerank-gain.png

Needs the text collections in FEDRANK_DATA. The caller sends 100 passages in its order: of BM25, of a vector search
(latent semantic indexing with 150 dimensions), or of their reciprocal rank fusion. The reader sees 5, uses relevant
ones with probability 3/4 and others with 1/10. Needs are halved into searched and unseen ones; 1,000 requests follow a
Zipf law over the searched needs, two thirds of them with 70 % of the words. nDCG@10 minus the caller's order; intervals
are over queries. Other readers and signals are tried with the vector search. A cell that is in `--out` is not run
again. `--check` fails if a goal is missed.

Arms: the start; start and memory; the weights fitted last, whether adopted or not; the product, which is the mean of
both arms while weights are on trial, without the twentieth of requests that keeps the caller's order; a running average
of usefulness per document, as builders write it; static weights of rank, BM25 and the signal (7 : 3 : 3).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

from fedrank.data.collection import Collection, load_collection
from fedrank.data.text import stemmer, tokens
from fedrank.files import write_atomic
from fedrank.search.rerank import Reranker
from fedrank.search.rerank.passages import OWN, START
from fedrank.search.rerank.reranker import _protected, _weights
from fedrank.seeds import rng_for

COLLECTIONS = ("cranfield", "cisi", "msmarco-mini", "nfcorpus", "vaswani")
CALLERS = ("bm25", "vector", "hybrid")
SENT, SEEN, NEEDS = 100, 5, 60


class Reader(NamedTuple):
    """A simulated reader, and the signal that the caller sends."""

    relevant: float  # probability to use a relevant passage that is shown
    other: float  # and another one
    signal: str = ""  # "own": informative (AUC .76); "noise"; "score": the caller's similarity, which repeats its order
    answers: float = 1.0  # share of requests with feedback
    names: int = SEEN  # used passages that the feedback names
    injected: int = 0  # every passage with a number divisible by this is always cited; 0: none


READERS = {
    "usual": Reader(0.75, 0.1),
    "signal": Reader(0.75, 0.1, "own"),
    "worthless": Reader(0.75, 0.1, "noise"),
    "score": Reader(0.75, 0.1, "score"),
    "false": Reader(0.5, 0.35, "noise"),
    "random": Reader(0.3, 0.3, "noise"),
    "one": Reader(0.75, 0.1, "noise", names=1),
    "injected": Reader(0.75, 0.1, "noise", injected=50),
    "missing": Reader(0.75, 0.1, "own", answers=0.4),
}
LOOKS = (50, 200, 1_000)  # requests

Results = defaultdict[tuple[str, str, str, str, str], dict[str, list[float]]]  # by caller, reader, look, part and arm


class Callers:
    """Two first-stage rankers of a collection, and their fusion."""

    def __init__(self, collection: Collection) -> None:
        stem = stemmer("english")
        texts = [
            f"{title} {text}".strip()
            for title, text in zip(collection.documents.title, collection.documents.text, strict=True)
        ]
        words = [[stem(word) for word in tokens(text)] for text in texts]
        self.texts = texts
        self._place = {word: place for place, word in enumerate(sorted({word for some in words for word in some}))}
        row = np.repeat(np.arange(len(words)), [len(some) for some in words])
        column = np.fromiter((self._place[word] for some in words for word in some), np.int64)
        counts = sparse.coo_matrix((np.ones(len(row)), (row, column)), (len(words), len(self._place))).tocsr()
        counts.sum_duplicates()
        having = np.bincount(counts.indices, minlength=counts.shape[1])
        self._idf = np.log1p((len(words) - having + 0.5) / (having + 0.5))
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        norm = 0.9 * (0.6 + 0.4 * lengths / lengths.mean())
        bm25 = counts.copy()
        bm25.data = counts.data / (counts.data + np.repeat(norm, np.diff(counts.indptr))) * self._idf[counts.indices]
        self._bm25 = bm25
        heavy = counts.copy()
        heavy.data = np.log1p(counts.data) * self._idf[counts.indices]
        u, s, vt = svds(heavy, k=min(150, min(heavy.shape) - 1), random_state=1)
        self._terms, docs = vt.T, u * s
        self._docs = docs / np.maximum(np.linalg.norm(docs, axis=1, keepdims=True), 1e-12)

    @cache  # noqa: B019
    def first(self, caller: str, query: str) -> np.ndarray:
        """Documents from the best to the worst."""
        if caller == "hybrid":
            fused: defaultdict[int, float] = defaultdict(float)
            for one in ("bm25", "vector"):
                for rank, document in enumerate(self.first(one, query)):
                    fused[int(document)] += 1 / (60 + rank)
            return np.array(sorted(fused, key=lambda document: -fused[document])[:SENT])
        return np.argsort(-self.scores(caller, query), kind="stable")[:SENT]

    @lru_cache(maxsize=2_000)  # noqa: B019
    def scores(self, caller: str, query: str) -> np.ndarray:
        """Of all documents, by one of the two rankers."""
        stem = stemmer("english")
        counts = Counter(self._place[word] for word in map(stem, tokens(query)) if word in self._place)
        places, times = np.array(list(counts), np.int64), np.array(list(counts.values()), float)
        if caller == "bm25":
            return np.asarray(self._bm25[:, places] @ times).ravel()
        return self._docs @ ((np.log1p(times) * self._idf[places]) @ self._terms[places])


@cache
def prepared(name: str) -> tuple[Collection, Callers]:
    collection = load_collection(name)
    return collection, Callers(collection)


def ndcg(order: np.ndarray, grades: dict[int, int]) -> float:
    gains = [(2 ** grades.get(int(one), 0) - 1) / np.log2(place + 2) for place, one in enumerate(order[:10])]
    best = sorted(grades.values(), reverse=True)[:10]
    return sum(gains) / sum((2**grade - 1) / np.log2(place + 2) for place, grade in enumerate(best))


def fewer_words(query: str, rng: np.random.Generator) -> str:
    words = query.split()
    kept = np.sort(rng.permutation(len(words))[: max(1, round(0.7 * len(words)))])
    return " ".join(words[place] for place in kept)


def cell(name: str, caller: str, reader: str, seed: int, half: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """nDCG@10 minus the caller's, by look, part (unseen, repeated, similar) and arm: one value per query."""
    collection, callers = prepared(name)
    told = READERS[reader]
    rng = rng_for(seed, "rerank benchmark", name, half)
    judged = [query for query in range(len(collection.queries)) if collection.judgements(query)[1].max(initial=0) > 0]
    chosen = rng_for(seed, "rerank needs", name).permutation(judged)[: 2 * NEEDS]
    searched, unseen = chosen[half::2], chosen[1 - half :: 2]
    popularity = 1.0 / np.arange(1, len(searched) + 1)
    grades = {
        int(query): dict(zip(*(part.tolist() for part in collection.judgements(query)), strict=True))
        for query in chosen
    }

    def signal(need: int, query: str, documents: np.ndarray) -> dict[str, list[float]] | None:
        if not told.signal:
            return None
        if told.signal == "score":
            return {"own": callers.scores(caller, query)[documents].tolist()}
        own = rng_for(seed, "rerank signal", name, int(need))
        table = own.normal(size=len(collection.documents))
        known = told.signal == "own"
        return {"own": [float(table[one] + (known and grades[int(need)].get(int(one), 0) > 0)) for one in documents]}

    credit: Counter[str] = Counter()
    now, useful = [1_767_225_600.0], defaultdict(lambda: [0.0, 0.0])
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tempfile.TemporaryDirectory() as folder, Reranker(Path(folder, "t"), clock=lambda: now[0]) as reranker:

        def evaluate(need: int, query: str) -> dict[str, float]:
            documents = callers.first(caller, query)
            texts, own = [callers.texts[one] for one in documents], signal(need, query, documents)
            columns = {key: np.array(values) for key, values in (own or {}).items()}
            *_, features, memory = reranker._describe(query, texts, columns)
            fitted = ([*reranker._store.models()] or [None])[-1]
            by_hand = features.table[:, 0] + 3 * np.array(
                [useful[int(one)][0] / (useful[int(one)][1] + 1) for one in documents]
            )
            scores = {
                "start": features.table[:, : len(OWN)] @ START,
                "memory": features.table[:, : len(OWN)] @ START + memory,
                "refit": features.table @ _weights(fitted, features.names) + memory,
                "old": features.table @ _weights(reranker._model, features.names) + memory,
                "new": features.table @ _weights(reranker._trial or reranker._model, features.names) + memory,
                "by hand": by_hand,
                "static": features.table @ np.array([0.7, 0.3, 0.0, *[0.3] * (len(features.names) - len(OWN))]),
            }
            was, found = ndcg(documents, grades[int(need)]), {}
            for arm, values in scores.items():
                order = np.argsort(-values, kind="stable")
                order = order if arm in ("by hand", "static") else _protected(order)
                found[arm] = ndcg(documents[order], grades[int(need)]) - was
            both = (found.pop("old") + found.pop("new")) / 2
            return {**found, "product": 0.0 if reranker._off else both}

        for number in range(1, max(LOOKS) + 1):
            need = int(rng.choice(searched, p=popularity / popularity.sum()))
            query = collection.queries[need] if rng.random() < 1 / 3 else fewer_words(collection.queries[need], rng)
            documents = callers.first(caller, query)
            answer = reranker.rerank(
                query, [callers.texts[one] for one in documents], SEEN, signals=signal(need, query, documents)
            )
            good = [grades[need].get(int(documents[index]), 0) > 0 for index in answer.indices]
            chance = np.where(good, told.relevant, told.other)
            if told.injected:
                chance[documents[answer.indices] % told.injected == 0] = 1.0
            used = [index for index, p in zip(answer.indices, chance, strict=True) if rng.random() < p][: told.names]
            credit["given"] += len(used)
            credit["false"] += sum(not good[answer.indices.index(index)] for index in used)
            for index in answer.indices:
                useful[int(documents[index])][0] += index in used
                useful[int(documents[index])][1] += 1
            if rng.random() < told.answers:
                reranker.feedback(answer.id, dict.fromkeys(used, "cited") or {answer.indices[0]: "ignored"})
            now[0] += 600.0
            if number in LOOKS:
                table: dict[str, dict[str, list[float]]] = {}
                again = rng_for(seed, "rerank variants", name, half)
                for part, needs, exact in (
                    ("unseen", unseen, True),
                    ("repeated", searched, True),
                    ("similar", searched, False),
                ):
                    for one in needs:
                        text = collection.queries[int(one)]
                        values = evaluate(int(one), text if exact else fewer_words(text, again))
                        for arm, value in values.items():
                            table.setdefault(part, {}).setdefault(arm, []).append(value)
                found[str(number)] = table
        status = reranker.status()
        found["state"] = {
            "history": {f"{one.id} {one.state}": [float(one.feedbacks)] for one in status.history},
            "trust": {reader: [record.trust] for reader, record in status.readers.items()},
            "false credit": {"share": [credit["false"] / max(credit["given"], 1)]},
        }
    return found


def gain(values: list[list[float]]) -> tuple[float, float]:
    """The mean over collections of means over queries, and half the width of its 95 % interval."""
    error = 1.96 * np.sqrt(sum(np.var(some, ddof=1) / len(some) for some in values)) / len(values)
    return float(np.mean([np.mean(some) for some in values])), float(error)


def summary(values: list[list[float]]) -> str:
    mean, error = gain(values)
    return f"{mean:+.3f} [{mean - error:+.3f}, {mean + error:+.3f}] lowest {min(map(np.mean, values)):+.3f}"


def draw(results: Results, picture: Path) -> None:
    """The gain of each kind of query by requests with feedback, for every caller; 0 requests are the start."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(CALLERS), figsize=(10.0, 3.6), dpi=120, sharey=True)
    kinds = {
        "similar words": ("similar", "product", "-"),
        "the same query again": ("repeated", "product", "-"),
        "new queries": ("unseen", "product", "-"),
        "new queries, running average per document": ("unseen", "by hand", "--"),
    }
    names = {"bm25": "BM25", "vector": "vector search", "hybrid": "both fused"}
    for axis, caller in zip(axes, CALLERS, strict=True):
        for label, (part, arm, style) in kinds.items():
            first = (0.0, 0.0)
            if arm == "product":
                first = gain(list(results[caller, "usual", str(LOOKS[0]), part, "start"].values()))
            found = [gain(list(results[caller, "usual", str(look), part, arm].values())) for look in LOOKS]
            means, errors = (np.array(column) for column in zip(first, *found, strict=True))
            places = np.arange(len(means))
            axis.plot(places, means, style, marker="o", markersize=3, label=label)
            axis.fill_between(places, means - errors, means + errors, alpha=0.2)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_xticks(range(len(LOOKS) + 1), ["0", *(f"{look:,}" for look in LOOKS)])
        axis.set_xlabel("requests with feedback")
        axis.set_title(f"caller: {names[caller]}", fontsize=10)
    axes[0].set_ylabel("nDCG@10 minus the caller's order")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(picture, metadata={"Software": None})


def _goal(caller: str, reader: str, look: str, part: str) -> float | None:
    """What the product must gain over the caller's order."""
    if reader == "signal":
        return 0.05 if (look, part) == ("200", "unseen") else None
    if look != str(LOOKS[-1]) or reader != "usual":
        return None
    return {"bm25": 0.0, "vector": 0.03, "hybrid": 0.015}[caller] if part == "unseen" else 0.06


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    parser.add_argument("--only", nargs="*", help="collection/caller/reader")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--picture", type=Path, help="also draw the gain by requests")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    cells = [(name, caller, "usual") for name in COLLECTIONS for caller in CALLERS]
    cells += [(name, "vector", reader) for name in COLLECTIONS for reader in READERS if reader != "usual"]
    results: Results = defaultdict(lambda: defaultdict(list))
    for name, caller, reader in cells:
        if asked.only and f"{name}/{caller}/{reader}" not in asked.only:
            continue
        for seed in asked.seeds:
            for half in (0, 1):
                path = asked.out / f"{name}-{caller}-{reader}-{seed}-{half}.json"
                if not path.exists():
                    write_atomic(path, json.dumps(cell(name, caller, reader, seed, half)))
                    print(path.name, file=sys.stderr, flush=True)
                for look, table in json.loads(path.read_text()).items():
                    for part, arms in table.items() if look != "state" else ():
                        for arm, values in arms.items():
                            results[caller, reader, look, part, arm][name] += values
    if asked.picture is not None:
        draw(results, asked.picture)
    failures = []
    for (caller, reader, look, part, arm), by_name in results.items():
        print(f"{caller:7} {reader:9} {look:>5} {part:9} {arm:8} {summary(list(by_name.values()))}")
        goal = _goal(caller, reader, look, part)
        if arm == "product" and goal is not None:
            mean, lowest = (function([np.mean(values) for values in by_name.values()]) for function in (np.mean, min))
            if mean < goal or lowest < -0.005:
                failures.append(
                    f"{caller}, {reader}, {look}, {part}: {mean:+.3f} (goal {goal:+.3f}), lowest {lowest:+.3f}"
                )
    print(*failures, sep="\n")
    sys.exit(bool(failures) if asked.check else 0)


if __name__ == "__main__":
    main()

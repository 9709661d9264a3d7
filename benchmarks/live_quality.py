"""Measure the benefit of the search client's learning: ten searchers, a newcomer, and the first 100 searches.

    python -m benchmarks.live_quality [--splits 1 2 3 4 5] [--only clients newcomer confirm] [--rate 0.03]
        [--check]

Needs the text collections in FEDRANK_DATA; takes about three minutes on one core. nDCG@10 over all relevant documents
of a searcher: those outside the best 100 of BM25 count in the ideal, and a query that finds none counts 0. Differences
from BM25 have 95 % confidence intervals over queries, each the mean over splits; online over splits.

clients: each has one topic of the collection, its own idf and its own queries, half for training and half for testing;
300 searches each in ten rounds; as `fedrank run live/cranfield`, but "alone" is evaluated on own test queries.
newcomer: a model from ten clients of each of the four other collections, without clicks on this one.
confirm: a collection that was not used for any choice, made from the docstrings of NumPy and SciPy: the first sentence
is the query for the rest, with its name as title.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from fedrank.data.collection import Collection, load_collection
from fedrank.data.feature_sets import forward_rows
from fedrank.data.live_features import LIVE_1
from fedrank.data.live_ranking import collection_fold, live_ranking, owners, topics
from fedrank.data.ranking import RankingData
from fedrank.federated.aggregators import Apart, Mean
from fedrank.federated.clients import make_clients
from fedrank.federated.federation import Federation
from fedrank.federated.partition import Users
from fedrank.federated.simulation import simulate
from fedrank.ranking.click_models import ClickModel
from fedrank.ranking.learners import Pdgd
from fedrank.ranking.measures import Evaluator
from fedrank.ranking.rankers import Linear
from fedrank.types import Weights

COLLECTIONS = ("cranfield", "cisi", "msmarco-mini", "nfcorpus", "vaswani")
PARTS, ROUNDS, SEARCHES = 10, 10, 30
LEARNER = Pdgd(rate=0.03, temperature=0.3, keep=0.9)
NOTHING = Pdgd(rate=1e-12, temperature=1e-3, keep=1.0)  # BM25, on the same searches
START = LIVE_1.start()
fold_of = cache(collection_fold)
CLICKS = {  # by number of relevance labels, filled up to five
    "navigational": {
        2: ClickModel((0.05, 0.95, 0.95, 0.95, 0.95), (0.2, 0.9, 0.9, 0.9, 0.9)),
        4: ClickModel((0.05, 0.35, 0.65, 0.95, 0.95), (0.2, 0.4, 0.65, 0.9, 0.9)),
        5: ClickModel((0.05, 0.3, 0.5, 0.7, 0.95), (0.2, 0.3, 0.5, 0.7, 0.9)),
    },
    "informational": {
        2: ClickModel((0.3, 0.7, 0.7, 0.7, 0.7), (0.1, 0.5, 0.5, 0.5, 0.5)),
        4: ClickModel((0.4, 0.6, 0.75, 0.9, 0.9), (0.1, 0.2, 0.35, 0.5, 0.5)),
        5: ClickModel((0.4, 0.6, 0.7, 0.8, 0.9), (0.1, 0.2, 0.3, 0.4, 0.5)),
    },
}


@dataclass(frozen=True)
class Difference:
    """A mean over queries, with its confidence interval."""

    mean: float
    margin: float

    @staticmethod
    def over(by_query: dict[str, list[float]], scale: float = 1.0) -> Difference:
        values = scale * np.array([np.mean(some) for some in by_query.values()])
        return Difference(float(values.mean()), float(1.96 * values.std(ddof=1) / np.sqrt(len(values))))

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.margin:.4f}"


def dcg(grades: np.ndarray) -> float:
    best = np.sort(grades)[::-1][:10].astype(float)
    return float(((2.0**best - 1) / np.log2(np.arange(len(best)) + 2)).sum())


def shares(data: RankingData, collection: Collection, part_of: np.ndarray, part: np.ndarray) -> np.ndarray:
    """[queries]: the candidates' ideal DCG as a share of that over all documents of the searcher."""
    number = {query: row for row, query in enumerate(collection.query_ids)}
    found = []
    for query, first, last in zip(range(data.queries), data.offsets[:-1], data.offsets[1:], strict=True):
        judged, grades = collection.judgements(number[str(data.query_ids[query])])
        found.append(dcg(data.grades[first:last]) / dcg(grades[part_of[judged] == part[query]]))
    return np.array(found)


def simulated_clients_of(data: RankingData, tables: Sequence[ClickModel], seed: int):
    """One client per searcher, the most active first, with its click model; and the row of each searcher."""
    searchers, sizes = np.unique(data.who, return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    row_of = {int(searchers[s]): row for row, s in enumerate(order)}
    users = [tables[int(searchers[s])] for s in order]
    return make_clients(
        data, len(users), partition=Users(), click_model=users, interactions=SEARCHES, seed=seed
    ), row_of


def trained(clients, seed: int, learner: Pdgd, alone: bool = False) -> tuple[Weights, float]:
    """The model after all rounds, and the quality of the first hundred searches of a client."""
    online = []
    federation = Federation(learner, Apart() if alone else Mean())
    for outcome in simulate(federation, clients, ROUNDS, seed, start=START):
        online.append(outcome.online)
    hundred = (SEARCHES * sum(online[:3]) + 10 * online[3]) / 100
    return outcome.weights, hundred


def clients(name: str, kind: str, splits: Sequence[int], learner: Pdgd) -> dict[str, Difference | float]:
    """Ten searchers of one collection."""
    collection = load_collection(name)
    rows = forward_rows(collection.documents)
    table = CLICKS[kind][collection.top_grade + 1]
    differences: dict[str, dict[str, list[float]]] = {"federated": {}, "alone": {}, "federated - alone": {}}
    base, usable, online = [], [], []
    for split in splits:
        fold = fold_of(name, PARTS, split)
        part_of = topics(rows, PARTS, split)
        answerable = int((owners(collection, part_of, PARTS) >= 0).sum())
        usable.append((fold.train.queries + fold.test.queries) / answerable)
        share = shares(fold.test, collection, part_of, fold.test.who)
        simulated, row_of = simulated_clients_of(fold.train, [table] * PARTS, split)
        evaluator = Evaluator(fold.test, ["ndcg@10"])
        bm25 = evaluator.per_query(START, Linear())[0] * share
        together, first = trained(simulated, split, learner)
        apart, _ = trained(simulated, split, learner, alone=True)
        _, first_of_bm25 = trained(simulated, split, NOTHING)
        online.append(first - first_of_bm25)
        federated = evaluator.per_query(together, Linear())[0] * share
        own = np.array([row_of[int(who)] for who in fold.test.who])
        alone = evaluator.per_query(apart, Linear())[0][own, np.arange(len(own))] * share
        base.append(float(bm25.mean()) * usable[-1])
        for key, values in (
            ("federated", federated - bm25),
            ("alone", alone - bm25),
            ("federated - alone", federated - alone),
        ):
            for query, value in zip(fold.test.query_ids, values, strict=True):
                differences[key].setdefault(str(query), []).append(float(value))
    found: dict[str, Difference | float] = {"bm25": float(np.mean(base))}
    found |= {key: Difference.over(values, float(np.mean(usable))) for key, values in differences.items()}
    found["online"] = Difference.over({str(i): [value] for i, value in enumerate(online)})
    return found


def newcomer(name: str, splits: Sequence[int], learner: Pdgd) -> tuple[float, Difference]:
    """Evaluate a model of the other collections on all queries of a new one."""
    collection = load_collection(name)
    test = live_ranking(collection)
    everything = np.zeros(len(collection.documents), np.int64)
    share = shares(test, collection, everything, np.zeros(test.queries, np.int64))
    usable = test.queries / int((owners(collection, everything, 1) >= 0).sum())
    evaluator = Evaluator(test, ["ndcg@10"])
    bm25 = evaluator.per_query(START, Linear())[0] * share
    by_query: dict[str, list[float]] = {}
    for split in splits:
        parts, tables = [], []
        for other in COLLECTIONS:
            if other != name:
                data = fold_of(other, PARTS, split).train
                parts.append(replace(data, who=data.who + len(tables)))
                tables += [CLICKS["navigational"][data.top_grade + 1]] * PARTS
        who = np.concatenate([part.who for part in parts])
        joined = replace(RankingData.join(parts), who=who, when=np.arange(len(who)))
        clients, _ = simulated_clients_of(replace(joined, top_grade=4), tables, split)
        weights, _ = trained(clients, split, learner)
        for query, value in zip(test.query_ids, evaluator.per_query(weights, Linear())[0] * share - bm25, strict=True):
            by_query.setdefault(str(query), []).append(float(value))
    return float(bm25.mean()) * usable, Difference.over(by_query, usable)


def docstrings(folder: Path) -> Path:
    """Create a collection from another field: the docstrings of two packages."""
    import inspect
    from importlib import import_module

    import numpy

    seen: dict[str, tuple[str, str, str]] = {}
    some = ("linalg", "optimize", "signal", "stats", "special", "sparse", "spatial", "interpolate", "ndimage")
    modules = [numpy, numpy.linalg, numpy.fft, numpy.random, *(import_module(f"scipy.{name}") for name in some)]
    for module in modules:
        for name in sorted(dir(module)):
            text = inspect.getdoc(getattr(module, name, None)) or ""
            paragraphs = [one for one in text.split("\n\n") if "(" not in one.split("\n")[0]]
            if len(paragraphs) > 2 and len(text) > 400 and len(paragraphs[0].split()) > 3:
                seen.setdefault(text, (name, paragraphs[0], "\n".join(paragraphs[1:])))
    rows = list(seen.values())
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"d{i}", "title": one[0], "text": one[2]}) + "\n" for i, one in enumerate(rows))
    )
    (folder / "queries.jsonl").write_text(
        "".join(json.dumps({"_id": f"q{i}", "text": one[1]}) + "\n" for i, one in enumerate(rows))
    )
    (folder / "qrels.tsv").write_text("".join(f"q{i}\td{i}\t1\n" for i in range(len(rows))))
    return folder


def show_clients(name: str, kind: str, found: dict[str, Difference | float], shown: str = "") -> None:
    print(
        f"{shown or name:14} {kind:14} {found['bm25']:.4f}  {found['alone']}  {found['federated']}  "
        f"{found['federated - alone']}  {found['online']}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=["clients", "newcomer", "confirm"])
    parser.add_argument("--rate", type=float, default=LEARNER.rate, help="learning rate")
    parser.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    asked = parser.parse_args()
    learner = replace(LEARNER, rate=asked.rate)
    missed: list[str] = []

    def want(what: str, value: float, least: float) -> None:
        if not value >= least:
            missed.append(f"{what}: {value:+.4f}, wanted {least:+.4f}")

    columns = f"{'alone':16}  {'federated':16}  {'fed. - alone':16}  online, first 100"
    heading = f"{'collection':14} {'click model':14} {'BM25':6}  {columns}"
    if "clients" in asked.only:
        print(heading)
        for name, least in (("cranfield", 0.05), ("nfcorpus", 0.005)):
            for kind in CLICKS:
                found = clients(name, kind, asked.splits, learner)
                show_clients(name, kind, found)
                if kind == "navigational":
                    want(f"{name}, federated - BM25", found["federated"].mean, least)
                    want(f"{name}, online - BM25", found["online"].mean, -0.005)
                    if name == "cranfield":
                        want(f"{name}, federated - alone", found["federated - alone"].mean, 0.01)
    if "newcomer" in asked.only:
        print(f"\n{'newcomer':14} {'BM25':6}  with the model of the four others")
        gains = []
        for name in COLLECTIONS:
            base, gain = newcomer(name, asked.splits, learner)
            gains.append(gain.mean)
            print(f"{name:14} {base:.4f}  {gain}", flush=True)
        want("newcomer, the worst of five", min(gains), -0.015)
        want("newcomer, the fourth best of five", sorted(gains)[1], 0.01)
    if "confirm" in asked.only:
        print(f"\nnot used to choose anything:\n{heading}")
        with tempfile.TemporaryDirectory() as folder:
            for kind in CLICKS:
                show_clients(
                    "", kind, clients(str(docstrings(Path(folder))), kind, asked.splits, learner), "docstrings"
                )
    for line in missed:
        print(f"MISSED: {line}")
    return int(asked.check and bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())

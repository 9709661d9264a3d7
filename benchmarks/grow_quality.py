"""Quality and leakage of jointly grown forests: quality against ε, and relevance labels inferred from histograms.

    python -m benchmarks.grow_quality --data mq2007-85 mslr-sample --what epsilon labels

`epsilon`: quality against ε for both designs under noise; `labels`: relevant documents that a server infers from root
histograms, by the size of a client. `grow_table.py` compares with other methods, `grow_bytes.py` counts bytes. Data are
split among clients by topics (k-means), by labels, by amounts or at random.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.attacks.forests import read_root
from fedrank.data.catalog import Fold, load
from fedrank.ranking.measures import evaluate
from fedrank.seeds import rng_for
from fedrank.trees.binning import grid_edges
from fedrank.trees.boosters import Grower, usable_validation
from fedrank.trees.forest import make_forest
from fedrank.trees.growing import GrowPlan, LocalClients, grow_forest
from fedrank.trees.noise import TreeNoise
from fedrank.trees.splits import Dealt, Portion, Topics

CLIENTS, SEED = 4, 1


def portions_of(fold: Fold, how: str, seed: int = SEED) -> tuple[Portion, ...]:
    """Clients whose queries differ."""
    if how == "topics":
        return Topics(CLIENTS)(fold, rng_for(seed, "split"))
    parts = Dealt(CLIENTS)(fold, rng_for(seed, "split"))
    if how == "chance":
        return parts
    train = fold.train
    if how == "labels":  # by the share of relevant documents of a query
        share = np.add.reduceat(train.grades > 0, train.offsets[:-1]) / np.diff(train.offsets)
        dealt = np.array_split(np.argsort(share, kind="stable"), CLIENTS)
    else:  # amounts: each has half as much as the one before
        sizes = np.maximum(2, (train.queries * np.array([8, 4, 2, 1]) / 15).astype(int))
        dealt = np.split(rng_for(seed, "amounts").permutation(train.queries)[: sizes.sum()], np.cumsum(sizes)[:-1])
    return tuple(replace(part, train=train.select(np.sort(own))) for part, own in zip(parts, dealt, strict=True))


class XgboostForest:
    """XGBoost's rank:ndcg on pooled data, where it is installed."""

    def __init__(self, fold: Fold, trees: int, leaves: int = 31, rate: float = 0.05) -> None:
        import xgboost

        train, validation = fold.train, fold.validation
        rows = xgboost.DMatrix(
            train.features, train.grades, qid=np.repeat(np.arange(train.queries), np.diff(train.offsets))
        )
        settings = {
            "objective": "rank:ndcg", "lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 30,
            "eta": rate, "grow_policy": "lossguide", "max_leaves": leaves, "max_depth": 0, "tree_method": "hist",
            "nthread": 1, "eval_metric": "ndcg@10", "min_child_weight": 0.001,
        }  # fmt: skip
        watched = []
        if validation is not None:
            ids = np.repeat(np.arange(validation.queries), np.diff(validation.offsets))
            watched = [(xgboost.DMatrix(validation.features, validation.grades, qid=ids), "validation")]
        self._made = xgboost.train(
            settings, rows, trees, evals=watched, early_stopping_rounds=30 if watched else None, verbose_eval=False
        )
        self._matrix = xgboost.DMatrix

    def score(self, data) -> np.ndarray:
        return self._made.predict(self._matrix(data.features))


def private(names: list[str], trees: int, console: Console) -> None:
    for name in names:
        fold = load(name)
        parts = [usable_validation(part.train) for part in portions_of(fold, "chance")]
        features, bins = fold.train.features.shape[1], 31
        edges = grid_edges(features, bins)
        shown = Table("design", "noise", "ε of a query, δ = 1e-5", "nDCG@10", title=f"{name}, {trees} trees of depth 3")
        for design in ("random-splits", "histograms"):
            for noise in (1.0, 3.0, 10.0, 30.0, 100.0):
                how = TreeNoise(design, "query", noise)
                rules = Grower(trees=trees, rate=0.2, bins=bins)
                rows = [part for part in parts if part is not None]
                plan = GrowPlan(rules, edges, SEED, tuple(range(len(rows))), noise=how)
                clients = LocalClients(plan, [plan.store(part) for part in rows])
                texts = [text for text, _ in grow_forest(clients)]
                quality = evaluate(
                    ["ndcg@10"], make_forest(texts, fold.train, {}, with_ranges=False).score(fold.test), fold.test
                )[0]
                cost = how.epsilon(trees, features, bins, 1e-5)
                shown.add_row(design, f"{noise:g}", f"{cost:.2f}", f"{quality:.4f}")
        none = evaluate(["ndcg@10"], np.zeros(fold.test.documents), fold.test)[0]
        shown.add_row("no model", "", "0", f"{none:.4f}")
        console.print(shown)


def labels(names: list[str], console: Console) -> None:
    for name in names:
        train = load(name).train
        shown = Table("queries", "documents", "alone in a bin", "named", "right", "by chance", "relevant", title=name)
        sizes = [size for size in (1, 3, 10, 30, 100, 1000) if size <= train.queries]
        rng = np.random.default_rng(0)
        for size in sizes:
            drawn = train.select(np.sort(rng.choice(train.queries, size, replace=False)))
            found = read_root(drawn, grid_edges(train.features.shape[1]), Grower())
            counts = (found.documents, found.alone, found.named, found.right, found.by_chance, found.relevant)
            shown.add_row(str(size), *(f"{count:,}" for count in counts))
        console.print(shown)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", default=["synthetic-mq2007"], help="names of the catalog")
    options.add_argument("--what", nargs="+", default=["epsilon", "labels"])
    options.add_argument("--trees", type=int, default=150)
    chosen = options.parse_args()
    console = Console(width=120)
    for what in chosen.what:
        if what == "epsilon":
            private(chosen.data, min(chosen.trees, 30), console)
        elif what == "labels":
            labels(chosen.data, console)


if __name__ == "__main__":
    main()

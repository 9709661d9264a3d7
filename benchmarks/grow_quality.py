"""How good forests are that clients grow together, beside LightGBM, XGBoost and others; and what they send.

    python benchmarks/grow_quality.py --data mq2007-85 ohsumed mslr-sample --what table bytes

`table`: nDCG@10 of test queries; `bytes`: quality against what a tree costs to send, by bins; `epsilon`: quality
against ε for both designs under noise; `grades`: relevant documents that a server reads from root histograms, by the
size of a client. Data are split among clients by topics (k-means), by labels, by amounts or by chance.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrank.attack.histograms import by_size
from fedrank.data.catalog import Fold, load
from fedrank.rank.measures import evaluate
from fedrank.seeds import rng_for
from fedrank.trees.binning import grid_edges, quantile_edges
from fedrank.trees.boosters import Grower, Lambdamart
from fedrank.trees.forest import lightgbm, transplanted
from fedrank.trees.grow_halves import GrowPlan, TreeClient, TreeServer
from fedrank.trees.histograms import AskedHere, Histograms
from fedrank.trees.mergers import Pooled, WeightedSum
from fedrank.trees.private_growth import PrivateHolder, TreeNoise, grow_private
from fedrank.trees.splits import Dealt, Portion, Topics
from fedrank.trees.together import Bagged, Cyclic, useful
from fedrank.trees.training import train_locally

CLIENTS, SEED = 4, 1


def portions_of(fold: Fold, how: str) -> tuple[Portion, ...]:
    """Clients whose queries differ."""
    if how == "topics":
        return Topics(CLIENTS)(fold, rng_for(SEED, "split"))
    parts = Dealt(CLIENTS)(fold, rng_for(SEED, "split"))
    if how == "chance":
        return parts
    train = fold.train
    if how == "labels":  # by the share of relevant documents of a query
        share = np.add.reduceat(train.grades > 0, train.offsets[:-1]) / np.diff(train.offsets)
        dealt = np.array_split(np.argsort(share, kind="stable"), CLIENTS)
    else:  # amounts: each has a third of what the one before has
        sizes = np.maximum(2, (train.queries * np.array([27, 9, 3, 1]) / 40).astype(int))
        dealt = np.split(rng_for(SEED, "amounts").permutation(train.queries)[: sizes.sum()], np.cumsum(sizes)[:-1])
    return tuple(replace(part, train=train.select(np.sort(own))) for part, own in zip(parts, dealt, strict=True))


def ways(trees: int) -> dict[str, Callable[[Fold, tuple[Portion, ...]], object]]:
    """Ways to one model, or to one for each."""
    ours, theirs = Grower(trees=trees, leaves=31, patience=30), Lambdamart(trees=trees, leaves=31, patience=30)
    return {
        "LightGBM, pooled": lambda fold, parts: Pooled()(parts, (), theirs, SEED),
        "XGBoost, pooled": lambda fold, parts: (XgboostForest(fold, trees),),
        "ours, pooled edges": lambda fold, parts: Histograms(edges="pooled")(parts, (), ours, SEED),
        "ours, grid edges": lambda fold, parts: Histograms()(parts, (), ours, SEED),
        "bagged": lambda fold, parts: Bagged()(parts, (), theirs, SEED),
        "cyclic": lambda fold, parts: Cyclic()(parts, (), theirs, SEED),
        "merged (linear)": lambda fold, parts: WeightedSum()(parts, train_locally(parts, theirs, SEED), theirs, SEED),
        "alone, mean": lambda fold, parts: train_locally(parts, theirs, SEED),
    }


class XgboostForest:
    """XGBoost's rank:ndcg on pooled data, where it is installed."""

    def __init__(self, fold: Fold, trees: int) -> None:
        import xgboost

        train, validation = fold.train, fold.validation
        rows = xgboost.DMatrix(
            train.features, train.grades, qid=np.repeat(np.arange(train.queries), np.diff(train.offsets))
        )
        settings = {
            "objective": "rank:ndcg", "lambdarank_pair_method": "topk", "lambdarank_num_pair_per_sample": 30,
            "eta": 0.05, "grow_policy": "lossguide", "max_leaves": 31, "max_depth": 0, "tree_method": "hist",
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


def table(names: list[str], splits: list[str], trees: int, console: Console) -> None:
    for name in names:
        fold = load(name)
        shown = Table("way", *splits, title=f"nDCG@10 on {name}, {CLIENTS} clients, at most {trees} trees of 31 leaves")
        for way, make in ways(trees).items():
            cells = []
            for how in splits:
                began = time.process_time()
                try:
                    models = make(fold, portions_of(fold, how))
                except ImportError:
                    cells.append("not installed")
                    continue
                values = [evaluate(["ndcg@10"], model.score(fold.test), fold.test)[0] for model in models]
                cells.append(f"{np.mean(values):.4f} ({time.process_time() - began:.0f} s)")
            shown.add_row(way, *cells)
            console.print(f"[dim]{name}: {way}: {', '.join(cells)}[/dim]")
        console.print(shown)


def sent(names: list[str], trees: int, console: Console) -> None:
    for name in names:
        fold = load(name)
        parts = portions_of(fold, "topics")
        features = fold.train.features.shape[1]
        shown = Table("edges", "bins", "secure", "MB a tree and client", "nDCG@10", title=f"{name}, {trees} trees")
        for secure in (False, True):
            for bins in (15, 63, 255):
                rules = Grower(trees=trees, leaves=31, patience=0, bins=bins)
                edges = {"grid": grid_edges(features, bins), "quantiles": quantile_edges(fold.train, bins)}
                for kind, chosen in edges.items():
                    plan = GrowPlan(rules, chosen, SEED, tuple(range(len(parts))), secure)
                    clients = {i: TreeClient(i, plan, part.train) for i, part in enumerate(parts)}
                    server = TreeServer(plan, AskedHere(clients))
                    texts = [text for text, _ in server.forest()]
                    quality = evaluate(["ndcg@10"], transplanted(texts, fold.train, {}).score(fold.test), fold.test)[0]
                    up = server.bytes_up / len(texts) / len(parts) / 1e6
                    shown.add_row(kind, str(bins), "yes" if secure else "no", f"{up:.2f}", f"{quality:.4f}")
        console.print(shown)


def private(names: list[str], trees: int, console: Console) -> None:
    for name in names:
        fold = load(name)
        parts = [useful(part.train) for part in portions_of(fold, "chance")]
        features, bins = fold.train.features.shape[1], 31
        edges = grid_edges(features, bins)
        shown = Table("design", "noise", "ε of a query, δ = 1e-5", "nDCG@10", title=f"{name}, {trees} trees of depth 3")
        for design in ("random-splits", "histograms"):
            for noise in (1.0, 3.0, 10.0, 30.0, 100.0):
                how = TreeNoise(design, "query", noise)
                rules = Grower(trees=trees, rate=0.2, bins=bins)
                holders = [PrivateHolder(part, edges, rules, how) for part in parts if part is not None]
                texts = list(grow_private(holders, rules, edges, how, SEED))
                quality = evaluate(["ndcg@10"], transplanted(texts, fold.train, {}).score(fold.test), fold.test)[0]
                cost = how.epsilon(trees, features, bins, 1e-5)
                shown.add_row(design, f"{noise:g}", f"{cost:.2f}", f"{quality:.4f}")
        none = evaluate(["ndcg@10"], np.zeros(fold.test.documents), fold.test)[0]
        shown.add_row("no model", "", "0", f"{none:.4f}")
        console.print(shown)


def grades(names: list[str], console: Console) -> None:
    for name in names:
        train = load(name).train
        shown = Table("queries", "documents", "alone in a bin", "named", "right", "by chance", "relevant", title=name)
        sizes = [size for size in (1, 3, 10, 30, 100, 1000) if size <= train.queries]
        for size, found in by_size(train, sizes, grid_edges(train.features.shape[1]), Grower()).items():
            counts = (found.documents, found.alone, found.named, found.right, found.by_chance, found.relevant)
            shown.add_row(str(size), *(f"{count:,}" for count in counts))
        console.print(shown)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", default=["synthetic-mq2007"], help="names of the catalog")
    options.add_argument("--what", nargs="+", default=["table", "bytes", "epsilon", "grades"])
    options.add_argument("--splits", nargs="+", default=["topics", "labels", "amounts"])
    options.add_argument("--trees", type=int, default=150)
    chosen = options.parse_args()
    lightgbm()
    console = Console(width=120)
    for what in chosen.what:
        if what == "table":
            table(chosen.data, chosen.splits, chosen.trees, console)
        elif what == "bytes":
            sent(chosen.data, min(chosen.trees, 30), console)
        elif what == "epsilon":
            private(chosen.data, min(chosen.trees, 30), console)
        elif what == "grades":
            grades(chosen.data, console)


if __name__ == "__main__":
    main()

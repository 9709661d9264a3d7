"""Compare jointly grown forests with other methods on several data sets and skewed splits, with significance tests.

    python -m benchmarks.grow_table --keep /tmp/table.jsonl

Every repeat draws other training queries and splits them again; a method is compared with ours on the same test queries
of the same repeats, by bootstrap over queries and repeats (`experiments/report/contrast.py`), with Holm's correction
over all comparisons of a data set. With `--keep`, existing results are not computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.grow_quality import CLIENTS, XgboostForest, portions_of
from fedrank.data.catalog import Fold, load
from fedrank.data.ranking import RankingData
from fedrank.data.synthetic import synthetic
from fedrank.experiments.report.contrast import Contrast, by_queries
from fedrank.experiments.report.statistics import holm
from fedrank.ranking.measures import Evaluator, evaluate
from fedrank.seeds import rng_for
from fedrank.trees.boosters import Grower, Lambdamart, Shortlist, shortened
from fedrank.trees.histograms import Histograms
from fedrank.trees.mergers import Bagged, Cyclic, Pooled, Stacking, WeightedSum
from fedrank.trees.splits import Portion
from fedrank.trees.training import train_locally

MEASURE = "ndcg@10"
OURS = "grown together, grid edges"
ISTELLA = "istella-like"
SETS, SPLITS = ["mq2007-85", "mslr-sample", "ohsumed", ISTELLA], ["topics", "labels", "amounts"]
Models = Sequence[object]


def data_of(name: str) -> Fold:
    """The first fold; for the generated set, 90 queries with their relevant documents and the first 150 others."""
    if name != ISTELLA:
        return load(name)
    whole = synthetic("istella-x", 150)
    cut = shortened(whole, Shortlist(negatives=150).kept(whole))
    parts = [cut.select(np.arange(part, cut.queries, 5)) for part in range(5)]
    return Fold(RankingData.join(parts[:3]), parts[3], parts[4], name, 1)


def drawn(fold: Fold, seed: int, most: int) -> Fold:
    """The fold with four in five of the training queries that have different labels, at most `most`."""
    grades, starts = fold.train.grades, fold.train.offsets[:-1]
    mixed = np.flatnonzero(np.minimum.reduceat(grades, starts) < np.maximum.reduceat(grades, starts))
    kept = rng_for(seed, "repeat").choice(mixed, min(most, round(0.8 * len(mixed))), replace=False)
    return replace(fold, train=fold.train.select(np.sort(kept)))


def best_single(fold: Fold, local: Models) -> Models:
    """The model of one client that ranks all validation queries best."""
    assert fold.validation is not None
    return [max(local, key=lambda model: evaluate([MEASURE], model.score(fold.validation), fold.validation)[0])]


def settings(trees: int, leaves: int) -> dict[str, Any]:
    """Settings of all boosters; leaves are small enough for the smallest client."""
    return {"trees": trees, "leaves": leaves, "rate": 0.1, "patience": 20, "min_data_in_leaf": 5}


def ways(trees: int, leaves: int, seed: int) -> dict[str, Callable[[Fold, tuple[Portion, ...], Models], Models]]:
    """Methods for one model, or one per client; the last argument are the models of each client alone."""
    ours = Grower(**settings(trees, leaves))
    theirs = Lambdamart(**settings(trees, leaves))
    return {
        OURS: lambda fold, parts, local: Histograms()(parts, (), ours, seed)[:1],
        "grown together, 10 votes": lambda fold, parts, local: Histograms(vote=10)(parts, (), ours, seed)[:1],
        "LightGBM, pooled": lambda fold, parts, local: Pooled()(parts, (), theirs, seed)[:1],
        "XGBoost, pooled": lambda fold, parts, local: [
            XgboostForest(replace(fold, train=RankingData.join([part.train for part in parts])), trees, leaves, 0.1)
        ],
        "bagged": lambda fold, parts, local: Bagged()(parts, (), theirs, seed)[:1],
        "cyclic": lambda fold, parts, local: Cyclic()(parts, (), theirs, seed)[:1],
        "merged, linear": lambda fold, parts, local: WeightedSum()(parts, local, theirs, seed),
        "merged, stacking": lambda fold, parts, local: Stacking(booster=Lambdamart(**settings(trees, 7)))(
            parts, local, theirs, seed
        ),
        "alone, best single": lambda fold, parts, local: best_single(fold, local),
        "alone, mean": lambda fold, parts, local: local,
    }


def measured(chosen: argparse.Namespace, known: set[tuple[str, str, int, str]]) -> Iterator[dict]:
    """Yield one record per method, repeat, split and data set without a result."""
    for name in chosen.data:
        fold = data_of(name)
        judge = Evaluator(fold.test, [MEASURE])
        for seed in range(1, chosen.repeats + 1):
            for how in chosen.splits:
                made = ways(chosen.trees, chosen.leaves, seed)
                if all((name, how, seed, way) in known for way in made):
                    continue
                some = drawn(fold, seed, chosen.queries)
                parts = portions_of(some, how, seed)
                local = train_locally(parts, Lambdamart(**settings(chosen.trees, chosen.leaves)), seed)
                for way, make in made.items():
                    if (name, how, seed, way) in known:
                        continue
                    began = time.process_time()
                    models = make(some, parts, local)
                    each = [judge.per_query_of_scores(model.score(fold.test))[0] for model in models]
                    values = np.mean(each, axis=0)
                    yield {
                        "data": name, "split": how, "seed": seed, "way": way, "queries": some.train.queries,
                        "documents": some.train.documents, "values": [None if x != x else x for x in values.tolist()],
                        "seconds": time.process_time() - began,
                    }  # fmt: skip


def compared(records: list[dict], name: str, how: str, way: str) -> tuple[float, Contrast]:
    """The mean of a method, and its difference from ours."""

    def values(of: str) -> dict[int, np.ndarray]:
        wanted = [one for one in records if (one["data"], one["split"], one["way"]) == (name, how, of)]
        return {one["seed"]: np.array([np.nan if x is None else x for x in one["values"]]) for one in wanted}

    mine, others = values(OURS), values(way)
    seeds = sorted(set(mine) & set(others))
    counted = ~np.isnan(mine[seeds[0]])
    differences = [(others[seed] - mine[seed])[counted] for seed in seeds]
    ids = [np.flatnonzero(counted).astype(str)] * len(seeds)
    finals = np.array([one.mean() for one in differences])
    level = float(np.mean([others[seed][counted].mean() for seed in seeds]))
    return level, by_queries(finals, np.zeros(len(seeds), np.int64), ids, differences)


def show(records: list[dict], name: str, console: Console) -> None:
    """Print the table of a data set; a star marks significant differences from ours."""
    splits = [how for how in SPLITS if any((one["data"], one["split"]) == (name, how) for one in records)]
    listed = list(dict.fromkeys(one["way"] for one in records if one["data"] == name))
    found = {(way, how): compared(records, name, how, way) for way in listed for how in splits}
    tested = [key for key in found if key[0] != OURS]
    corrected = dict(zip(tested, holm([found[key][1].p for key in tested]), strict=True))
    first = next(one for one in records if one["data"] == name)
    shown = Table("way", *splits, title=f"{name}: {first['queries']} training queries, {first['documents']} documents")
    for way in listed:
        cells = []
        for how in splits:
            level, difference = found[way, how]
            low, high = difference.interval()
            star = " *" if way != OURS and corrected[way, how] < 0.05 else ""
            gap = "" if way == OURS else f" ({difference.difference:+.3f}, {low:+.3f} to {high:+.3f}){star}"
            cells.append(f"{level:.3f}{gap}")
        shown.add_row(way, *cells)
    console.print(shown)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", nargs="+", default=SETS)
    options.add_argument("--splits", nargs="+", default=SPLITS)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--queries", type=int, default=48, help="maximum number of training queries")
    options.add_argument("--trees", type=int, default=15)
    options.add_argument("--leaves", type=int, default=15)
    options.add_argument("--keep", type=Path, help="file of results, one per line; results in it are not repeated")
    chosen = options.parse_args()
    console = Console(width=170)
    records = []
    if chosen.keep is not None and chosen.keep.exists():
        records = [json.loads(line) for line in chosen.keep.read_text().splitlines()]
    known = {(one["data"], one["split"], one["seed"], one["way"]) for one in records}
    for one in measured(chosen, known):
        records.append(one)
        if chosen.keep is not None:
            with chosen.keep.open("a") as file:
                file.write(json.dumps(one) + "\n")
    console.print(
        f"{CLIENTS} clients, {chosen.repeats} repeats, at most {chosen.trees} trees of {chosen.leaves} leaves"
    )
    for name in chosen.data:
        show(records, name, console)


if __name__ == "__main__":
    main()

"""Quality of jointly grown forests against the bytes that clients send: bins, votes, and bits of gradients.

    python -m benchmarks.grow_bytes --keep /tmp/bytes.jsonl --out docs/grow-bytes.png

Every repeat draws other training queries and splits them by topics again; messages are those that would be sent.
Differences are tested by bootstrap over test queries and repeats, against all features in 255 bins.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.grow_table import MEASURE
from fedrank.data.catalog import Fold, load
from fedrank.data.ranking import RankingData
from fedrank.experiments.report.contrast import by_queries
from fedrank.ranking.measures import Evaluator
from fedrank.seeds import rng_for
from fedrank.trees.binning import grid_edges
from fedrank.trees.boosters import Grower
from fedrank.trees.forest import make_forest
from fedrank.trees.growing import GrowPlan
from fedrank.trees.growing_protocol import TreeClient, TreeServer, in_process
from fedrank.trees.splits import Topics

CLIENTS = 4


@dataclass(frozen=True)
class Way:
    """Settings that reduce what is sent."""

    bins: int
    vote: int = 0
    fraction: int = 20  # bits after the point of gradients
    bits: int = 0  # of secure aggregation; 0: plain histograms

    @property
    def name(self) -> str:
        votes = f"{self.vote} votes" if self.vote else "all features"
        secure = f", secure aggregation with {self.bits} bits" if self.bits else ""
        return f"{self.bins} bins, {votes}, {self.fraction} bits{secure}"


OPEN = [Way(255), Way(255, 10), *(Way(63, vote) for vote in (0, 20, 10, 5)), Way(63, 0, 12), Way(63, 10, 12)]
# Forests equal those without secure aggregation, so one tree suffices to measure bytes.
SECURE = [
    Way(bins, vote, fraction, bits)
    for bins, vote in ((255, 0), (63, 0), (63, 10))
    for fraction, bits in ((20, 62), (12, 32))
]


def grown(fold: Fold, way: Way, trees: int, seed: int) -> tuple[list[str], float]:
    """Trees, and bytes sent per tree and client."""
    features = fold.train.features.shape[1]
    parts = Topics(CLIENTS)(fold, rng_for(seed, "split"))
    rules = Grower(trees=trees, leaves=31, rate=0.1, patience=0, bins=way.bins, fraction=way.fraction)
    edges, ids = grid_edges(features, way.bins), tuple(range(CLIENTS))
    plan = GrowPlan(rules, edges, seed, ids, way.bits > 0, way.bits or 62, vote=way.vote)
    clients = {i: TreeClient(i, plan, part.train) for i, part in enumerate(parts)}
    server = TreeServer(plan, in_process(clients))
    texts = [text for text, _ in server.forest()]
    return texts, server.bytes_up / len(texts) / CLIENTS


def measured(fold: Fold, way: Way, trees: int, seed: int, most: int) -> dict:
    count = min(most, round(0.8 * fold.train.queries))
    kept = rng_for(seed, "repeat").choice(fold.train.queries, count, replace=False)
    some = replace(fold, train=fold.train.select(np.sort(kept)))
    texts, sent = grown(some, way, 1 if way.bits else trees, seed)
    values = Evaluator(fold.test, [MEASURE]).per_query_of_scores(
        make_forest(texts, fold.train, {}, with_ranges=False).score(fold.test)
    )[0]
    size = {"queries": some.train.queries, "documents": some.train.documents}
    return {"way": asdict(way), "seed": seed, "bytes": sent, "values": np.nan_to_num(values, nan=-1).tolist(), **size}


def summary(records: list[dict]) -> dict[Way, tuple[float, float, float, float]]:
    """By setting: bytes per tree and client, nDCG@10, and the confidence interval of its difference from the first."""
    values: dict[Way, dict[int, np.ndarray]] = {}
    sent: dict[Way, list[float]] = {}
    for one in records:
        way = Way(**one["way"])
        values.setdefault(way, {})[one["seed"]] = np.array(one["values"])
        sent.setdefault(way, []).append(one["bytes"])
    found = {}
    for way, mine in values.items():
        base, seeds = values[OPEN[0]], sorted(mine)
        counted = base[1] >= 0
        differences = [(mine[seed] - base[seed])[counted] for seed in seeds]
        level = float(np.mean([mine[seed][counted].mean() for seed in seeds]))
        low = high = 0.0
        if way != OPEN[0] and len(seeds) > 1:
            ids = [np.flatnonzero(counted).astype(str)] * len(seeds)
            finals = np.array([one.mean() for one in differences])
            low, high = by_queries(finals, np.zeros(len(seeds), np.int64), ids, differences).interval()
        found[way] = float(np.mean(sent[way])), level, low, high
    return found


def draw(found: dict[Way, tuple[float, float, float, float]], title: str, out: Path) -> None:
    """nDCG@10 against bytes; error bars are intervals of the difference from all features in 255 bins of 20 bits."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=150, layout="constrained")
    base = found[OPEN[0]][1]
    marks = {(255, 20): ("o-", "C0"), (63, 20): ("s-", "C1"), (63, 12): ("^--", "C2")}
    for (bins, fraction), (mark, colour) in marks.items():
        ways = [way for way in OPEN if (way.bins, way.fraction) == (bins, fraction) and way in found]
        rows = np.array([found[way] for way in ways])
        error = np.array([rows[:, 1] - base - rows[:, 2], rows[:, 3] - (rows[:, 1] - base)]).clip(0)
        label = f"{bins} bins, {fraction} bits"
        axes.errorbar(rows[:, 0] / 1e3, rows[:, 1], error, fmt=mark, color=colour, label=label, capsize=2, lw=1, ms=4)
        for way, row in zip(ways, rows, strict=True):
            axes.annotate(
                str(way.vote or "all"), (row[0] / 1e3, row[1]), (3, 4), textcoords="offset points", fontsize=7
            )
    axes.axhline(base, color="grey", lw=0.5)
    axes.set(xscale="log", xlabel="kB per tree and client", ylabel="nDCG@10", title=title)
    ticks = [50, 100, 200, 400]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(fontsize=7, title="numbers: votes", title_fontsize=7)
    figure.savefig(out, metadata={"Software": None})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", default="mslr-sample")
    options.add_argument("--repeats", type=int, default=6)
    options.add_argument("--queries", type=int, default=60, help="maximum number of training queries")
    options.add_argument("--trees", type=int, default=10)
    options.add_argument("--keep", type=Path, help="file of results, one per line; results in it are not repeated")
    options.add_argument("--out", type=Path, help="figure to write")
    chosen = options.parse_args()
    fold = load(chosen.data)
    if fold.validation is not None:  # nothing is chosen by it, so it can be used for testing
        fold = replace(fold, test=RankingData.join([fold.test, fold.validation]))
    records = []
    if chosen.keep is not None and chosen.keep.exists():
        records = [json.loads(line) for line in chosen.keep.read_text().splitlines()]
    known = {(Way(**one["way"]), one["seed"]) for one in records}
    wanted = [(way, seed) for seed in range(1, chosen.repeats + 1) for way in OPEN] + [(way, 1) for way in SECURE]
    for way, seed in wanted:
        if (way, seed) in known:
            continue
        records.append(measured(fold, way, chosen.trees, seed, chosen.queries))
        if chosen.keep is not None:
            with chosen.keep.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
    found = summary(records)
    title = f"{chosen.data}, {CLIENTS} clients, {chosen.trees} trees of 31 leaves, {chosen.repeats} repeats"
    shown = Table("way", "kB per tree and client", "nDCG@10", "difference, 95 % interval", title=title)
    base = found[OPEN[0]][1]
    for way, (sent, level, low, high) in found.items():
        quality = ["", ""] if way.bits else [f"{level:.4f}", f"{level - base:+.4f} ({low:+.4f} to {high:+.4f})"]
        shown.add_row(way.name, f"{sent / 1e3:,.0f}", *quality)
    console = Console(width=120)
    console.print(f"{records[0]['queries']} training queries with {records[0]['documents']:,} documents in repeat 1")
    console.print(shown)
    if chosen.out is not None:
        draw(found, title, chosen.out)


if __name__ == "__main__":
    main()

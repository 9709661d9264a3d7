"""Measure cost and recall of reverse top-K, compared with reading the sketches of all documents (NAIVE).

    python -m benchmarks.rtk [--check]                        speed, size and building at the paper's size
    python -m benchmarks.rtk --curves [--out FOLDER]          the same against n, K, alpha, w and z, around n / 4
    python -m benchmarks.rtk --cover [--out FOLDER]           cover rate against rule, alpha, beta, K, w, z and noise
    python -m benchmarks.rtk --cover --collection nfcorpus    the same for the words of real queries

Synthetic documents have 1,000 words drawn by Zipf's law from 50,000. 40 additional words are queried: each is the
subject of 300 documents, which contain it 1 + a geometric number of times (13 on average: --often), and occurs once or
twice in every twentieth of the others. Building is measured in CPU time of one core, a query in wall-clock time (median
of all), both in one process. --out writes the numbers (CSV), figures (PNG) and a page with both (HTML).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fedrank.silo.rtk import PUBLISHED, ReverseTopK, TopKRule, build, cover_rate, naive
from fedrank.silo.sketch import Sketcher
from fedrank.silo.terms import TermCounts
from tests.made_up import zipf_documents

DOCUMENTS, LENGTH, VOCABULARY, SUBJECTS, ABOUT = 36_400, 1_000, 50_000, 40, 300
SLOWEST_QUERY, LEAST_RATIO, MAX_BUILD, MAX_SHARE = 1.0, 5.0, 120.0, 0.2  # ms, times, s, of the sketches
KEY = bytes(range(32))
Row = dict[str, str | float]


def made_up(n: int, often: float = 13.0, seed: int = 1) -> tuple[TermCounts, list[str]]:
    """Documents, and the queried words."""
    offsets, terms, counts = zipf_documents(n, LENGTH, VOCABULARY, seed)
    rng = np.random.default_rng(seed)
    where, which, repeats = [], [], []
    for subject in range(SUBJECTS):
        order = rng.permutation(n)
        about, other = order[: min(ABOUT, n // 10)], order[ABOUT : ABOUT + n // 20]
        where += [about, other]
        which.append(np.full(len(about) + len(other), VOCABULARY + subject))
        repeats += [1 + rng.geometric(1 / (often - 1), len(about)), 1 + (rng.random(len(other)) < 0.3)]
    documents, new, times = np.concatenate(where), np.concatenate(which), np.concatenate(repeats)
    order = np.argsort(documents, kind="stable")
    at = offsets[documents[order] + 1]
    grown = offsets + np.concatenate([[0], np.cumsum(np.bincount(documents, minlength=n))])
    words = [f"w{i}" for i in range(VOCABULARY + SUBJECTS)]
    counted = TermCounts(
        grown,
        np.insert(terms, at, new[order].astype(np.int32)),
        np.insert(counts, at, times[order].astype(np.int32)),
        words,
    )
    return counted, words[VOCABULARY:]


def real(name: str) -> tuple[TermCounts, list[str]]:
    """Documents of a collection (titles and texts), and up to 200 words of its queries that occur in 10 documents."""
    from fedrank.data.collection import load_collection

    found = load_collection(name)
    sketcher = Sketcher()
    texts = [" ".join(parts) for parts in zip(found.documents.title, found.documents.text, strict=True)]
    counted = sketcher.term_counts(texts)
    held = dict(zip(counted.vocabulary, np.bincount(counted.terms), strict=True))
    words = sorted({word for text in found.queries for word in sketcher.tokeniser(text) if held.get(word, 0) >= 10})
    return counted, list(np.random.default_rng(1).permutation(words)[:200])


def in_blocks(sketches: np.ndarray) -> Iterator[np.ndarray]:
    for first in range(0, len(sketches), 512):
        yield sketches[first : first + 512]


def smaller(built: ReverseTopK, rule: TopKRule) -> ReverseTopK:
    """The result of building with a smaller rule, which is a subset."""
    size, slots = rule.capacity, built.documents.shape[3]
    lost = built.lost if size >= slots else np.where(built.sizes > size, built.values[..., size], built.lost)
    return replace(
        built,
        rule=rule,
        documents=built.documents[..., :size],
        values=built.values[..., :size],
        sizes=np.minimum(built.sizes, size),
        lost=lost,
    )


def milliseconds(ask: Callable[..., object], places: tuple[np.ndarray, np.ndarray], repeats: int = 3) -> float:
    ask(places[0][0], places[1][0])
    times = []
    for cells, signs in zip(*places, strict=True):
        for _ in range(repeats):
            began = time.perf_counter()
            ask(cells, signs)
            times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


def numpy_naive(columns: np.ndarray, cells: np.ndarray, signs: np.ndarray, k: int) -> np.ndarray:
    """NAIVE in NumPy over columns [z, w, documents]."""
    estimates = np.median(columns[np.arange(len(cells)), cells] * signs[:, None], axis=0)
    return np.argpartition(-estimates, k)[:k]


def measure(counts: TermCounts, words: list[str], sketcher: Sketcher, rule: TopKRule, with_numpy: bool = False) -> Row:
    """The cost of one setting: the structure, and NAIVE over two layouts of the sketches."""
    hashing = sketcher.hashing(KEY)
    first = TermCounts(counts.offsets[:3], counts.terms, counts.counts, counts.vocabulary)
    build(sketcher.blocks(first, hashing), rule, sketcher.kind, sketcher.depth, sketcher.width)  # compile
    tracemalloc.start()
    began = time.process_time()
    built = build(sketcher.blocks(counts, hashing), rule, sketcher.kind, sketcher.depth, sketcher.width)
    seconds = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    places = sketcher.locate(words, hashing)
    quick = milliseconds(built.query, places, 10)
    sketches = sketcher.sketch(counts, hashing)
    slow = milliseconds(lambda c, s: naive(sketches, c, s, rule.k), places)
    columns = np.ascontiguousarray(sketches.transpose(1, 2, 0))
    column = milliseconds(lambda c, s: naive(columns.transpose(2, 0, 1), c, s, rule.k), places)
    row: Row = {
        "documents": len(counts),
        "k": rule.k,
        "alpha": rule.alpha,
        "width": sketcher.width,
        "depth": sketcher.depth,
        "build_cpu_s": seconds,
        "build_peak_mb": peak / 1e6,
        "query_ms": quick,
        "naive_by_document_ms": slow,
        "naive_by_column_ms": column,
        "times_faster": min(slow, column) / quick,
        "rtk_mb": built.bytes / 1e6,
        "sketches_mb": sketches.nbytes / 1e6,
        "share": built.bytes / sketches.nbytes,
        "answer_bytes": 8 * rule.k,
        "naive_answer_bytes": 4 * len(counts),
    }
    if with_numpy:
        row["naive_numpy_ms"] = milliseconds(lambda c, s: numpy_naive(columns, c, s, rule.k), places, 1)
    return row


def curves(most: int) -> Iterator[Row]:
    """The cost against each setting, around 1/4 of the maximum number of documents, to limit the run time."""
    base = most // 4
    counts, words = made_up(base)
    middle = measure(counts, words, Sketcher(), TopKRule())
    yield {"against": "documents"} | middle
    for n in (base // 4, base // 2, 2 * base, most):
        yield {"against": "documents"} | measure(*made_up(n), Sketcher(), TopKRule())
    changes: dict[str, tuple[float, ...]] = {
        "k": (50, 100, 300),
        "alpha": (1, 2, 10),
        "width": (50, 100, 400),
        "depth": (10, 20, 50),
    }
    for against, values in changes.items():
        yield {"against": against} | middle
        for value in values:
            setting = {against: value}
            ruled = against in ("k", "alpha")
            sketcher, rule = Sketcher(**({} if ruled else setting)), TopKRule(**(setting if ruled else {}))  # type: ignore[arg-type]
            yield {"against": against} | measure(counts, words, sketcher, rule)


class Covers:
    """Cover rates of one sketching of all documents; the largest structure contains all smaller ones."""

    def __init__(self, counts: TermCounts, words: list[str], truth: list[np.ndarray], sketcher: Sketcher) -> None:
        hashing = sketcher.hashing(KEY)
        self.sketcher, self.truth = sketcher, truth
        self.cells = sketcher.locate(words, hashing)
        self.sketches = sketcher.sketch(counts, hashing)
        self.built: dict[str, ReverseTopK] = {}

    def mean(self, ask: Callable[..., tuple[np.ndarray, np.ndarray]], k: int) -> float:
        found = [ask(cells, signs)[0] for cells, signs in zip(*self.cells, strict=True)]
        return float(np.mean([cover_rate(rows, counts, k) for rows, counts in zip(found, self.truth, strict=True)]))

    def naive(self, k: int = 150) -> float:
        return self.mean(lambda c, s: naive(self.sketches, c, s, k, self.sketcher.kind), k)

    def rtk(self, rule: TopKRule, largest: int = 750) -> float:
        known = self.built.get(rule.keep)
        if known is None or known.rule.capacity < rule.capacity:
            whole = TopKRule(alpha=1, k=max(largest, rule.capacity), keep=rule.keep)
            s = self.sketcher
            known = self.built[rule.keep] = build(in_blocks(self.sketches), whole, s.kind, s.depth, s.width)
        return self.mean(smaller(known, rule).query, rule.k)


def covers(counts: TermCounts, words: list[str]) -> Iterator[Row]:
    """Rules, then figure 4: one setting at a time."""
    truth = list(counts.count_matrix(words).T)

    def row(against: str, value: object, cover: float) -> Row:
        return {"against": against, "value": str(value), "cover": cover}

    def sketched(**settings: float | str) -> Covers:
        return Covers(counts, words, truth, Sketcher(**settings, exact_lengths=False))  # type: ignore[arg-type]

    ends, threshold, absent = TopKRule(), TopKRule(missing="threshold"), TopKRule(missing="absent")
    plain = sketched()
    yield row("rule", "NAIVE", plain.naive())
    for name, rule in {
        "both ends, missing is 0": ends,
        "both ends, missing is the threshold": threshold,
        "both ends, missing is absent": absent,
        "largest magnitude, missing is 0": TopKRule(keep="magnitude"),
        "published": PUBLISHED,
    }.items():
        yield row("rule", name, plain.rtk(rule, 3000 if rule.keep == "ends" else 750))
    for alpha in (1, 2, 3, 5, 10, 20):
        yield row("alpha", alpha, plain.rtk(TopKRule(alpha=alpha)))
    for k in (20, 50, 100, 150, 300):
        yield row("k", k, plain.rtk(TopKRule(k=k)))
    for beta in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9):
        for name, rule in (("zero", ends), ("threshold", threshold), ("published", PUBLISHED)):
            yield row(f"beta, {name}", beta, plain.rtk(replace(rule, beta=beta)))
    del plain
    for noise in (0.25, 0.5, 1.0, 2.0, 4.0):
        noised = sketched(noise=noise)
        yield row("noise, NAIVE", noise, noised.naive())
        for alpha in (20, 5):
            yield row(f"noise, alpha = {alpha}", noise, noised.rtk(TopKRule(alpha=alpha)))
        del noised
    for width in (50, 100, 200, 400):
        some = sketched(width=width)
        yield row("width, NAIVE", width, some.naive())
        yield row("width", width, some.rtk(ends))
        del some
    for depth in (10, 20, 30, 50, 70):
        some = sketched(depth=depth)
        yield row("depth, NAIVE", depth, some.naive())
        yield row("depth", depth, some.rtk(ends))
        del some
    least = sketched(kind="count-min")
    yield row("count-min", "NAIVE", least.naive())
    for missing in ("zero", "threshold", "absent"):
        yield row("count-min", missing, least.rtk(TopKRule(keep="largest", missing=missing)))


def show(rows: Iterator[Row]) -> list[Row]:
    kept = []
    for row in rows:
        kept.append(row)
        print("  ".join(f"{name} {value if isinstance(value, str) else text(value)}" for name, value in row.items()))
        sys.stdout.flush()
    return kept


DRAWN = {  # plotted columns, by the title of a row of figures
    "milliseconds per query": ("query_ms", "naive_by_column_ms", "naive_by_document_ms"),
    "seconds of building": ("build_cpu_s",),
    "megabytes": ("rtk_mb", "sketches_mb"),
}


def draw_costs(rows: list[Row], groups: list[str]) -> Figure:
    figure = Figure(figsize=(3.2 * len(groups), 2.6 * len(DRAWN)), layout="constrained")
    axes = figure.subplots(len(DRAWN), len(groups), squeeze=False, sharey="row")
    for (title, names), line in zip(DRAWN.items(), axes, strict=True):
        for group, axis in zip(groups, line, strict=True):
            those = sorted((row for row in rows if row["against"] == group), key=lambda row: float(row[group]))
            for name in names:
                axis.loglog([row[group] for row in those], [row[name] for row in those], marker="o", label=name)
            axis.set(xlabel=group, ylabel=title if group == groups[0] else "")
            axis.minorticks_off()
            axis.set_xticks([row[group] for row in those], [text(row[group]) for row in those])
            axis.yaxis.set_major_formatter("{x:g}")
        line[0].legend(fontsize="small")
    return figure


def draw_covers(rows: list[Row], groups: list[str]) -> Figure:
    across = 4
    figure = Figure(figsize=(3.2 * across, 2.8 * -(-len(groups) // across)), layout="constrained")
    axes = figure.subplots(-(-len(groups) // across), across, squeeze=False).ravel()
    for axis in axes[len(groups) :]:
        axis.remove()
    for group, axis in zip(groups, axes, strict=False):
        those = [row for row in rows if row["against"] == group]
        axis.bar([str(row["value"]) for row in those], [float(row["cover"]) for row in those])
        axis.set(title=group, ylim=(0, 1))
        if group == "rule":
            axis.tick_params(axis="x", rotation=90, labelsize=6)
    return figure


def write(rows: list[Row], folder: Path, name: str) -> None:
    """The rows as a table (CSV), every curve as a figure (PNG), and a page with both (HTML)."""
    folder.mkdir(parents=True, exist_ok=True)
    names = list(dict.fromkeys(key for row in rows for key in row))
    with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)
    groups = list(dict.fromkeys(str(row["against"]) for row in rows if "against" in row))
    picture = ""
    if groups:
        (draw_covers if name == "cover" else draw_costs)(rows, groups).savefig(folder / f"{name}.png")
        picture = f'<p><img src="{name}.png" alt="curves"></p>'
    body = "".join("<tr>" + "".join(f"<td>{text(row.get(key, ''))}</td>" for key in names) + "</tr>" for row in rows)
    (folder / f"{name}.html").write_text(
        f"<!doctype html><meta charset='utf-8'><title>Reverse top-K: {name}</title>"
        "<style>body{font:14px sans-serif}td,th{padding:2px 8px;text-align:right}</style>"
        f"<h1>Reverse top-K: {name}</h1><pre>{escape(str(__doc__))}</pre>{picture}"
        f"<table><tr>{''.join(f'<th>{key}</th>' for key in names)}</tr>{body}</table>",
        encoding="utf-8",
    )


def text(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:.4g}"


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--documents", type=int, default=DOCUMENTS)
    arguments.add_argument(
        "--often", type=float, default=13.0, help="mean number of occurrences of a document's subject"
    )
    arguments.add_argument("--curves", action="store_true")
    arguments.add_argument("--cover", action="store_true")
    arguments.add_argument("--collection", help="a text collection instead of synthetic documents")
    arguments.add_argument("--out", type=Path, help="folder for CSV, PNG and HTML")
    arguments.add_argument("--check", action="store_true", help="exit 1 if a target is missed")
    asked = arguments.parse_args()
    if asked.curves:
        rows = show(curves(asked.documents))
    else:
        counts, words = real(asked.collection) if asked.collection else made_up(asked.documents, asked.often)
        if asked.cover:
            rows = show(covers(counts, words))
        else:
            rows = show(measure(counts, words, Sketcher(noise=n), TopKRule(), with_numpy=n == 0) for n in (0.0, 1.0))
    if asked.out:
        write(rows, asked.out, "cover" if asked.cover else "cost")
    if not asked.check or asked.cover or asked.curves:
        return 0
    missed = [
        f"{name} = {row[name]:.3g}; the target is {limit}"
        for row in rows
        for name, limit, good in (
            ("query_ms", SLOWEST_QUERY, row["query_ms"] < SLOWEST_QUERY),
            ("times_faster", LEAST_RATIO, row["times_faster"] >= LEAST_RATIO),
            ("build_cpu_s", MAX_BUILD, row["build_cpu_s"] < MAX_BUILD),
            ("share", MAX_SHARE, row["share"] <= MAX_SHARE),
        )
        if not good
    ]
    print(*missed, sep="\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())

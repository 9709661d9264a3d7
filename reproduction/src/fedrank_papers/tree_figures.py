"""Figures of the SelGB paper that need the data: truncated lists, gain by list length, chosen negatives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.experiments.report.analysis import Analysis
from fedrank.experiments.report.figures import COLOURS, LOOK, QUIET, as_svg
from fedrank.experiments.report.sections import Cell, Drawing, Table
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.runner.runs import Run
from fedrank.trees.boosters import Shortlist, shortened
from fedrank.trees.selection import Selected

STEP = 100  # documents per step of lengths, as in the paper
ENOUGH = 10  # number of choices with maximum brightness, as in the paper


def cut_lists(analysis: Analysis) -> Iterator[Table]:
    """Table 1: the data after truncating lists to some number of negatives."""
    rows = []
    for variant in analysis.variants:
        run = next(run for run in analysis.runs.finished if run.variant == variant.name)
        booster, fold = run.spec.booster, load_fold(run.spec.data, run.fold)  # type: ignore[attr-defined]
        if not isinstance(booster, Shortlist):
            continue
        parts = [
            shortened(part, booster.kept(part)) for part in (fold.train, fold.validation, fold.test) if part is not None
        ]
        lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        pairs, relevant = int(lengths.sum()), sum(int((part.grades > 0).sum()) for part in parts)
        counts = (len(lengths), fold.train.features.shape[1], pairs, int(lengths.max()), round(lengths.mean()))
        shares = [f"{count:,} ({100 * count / pairs:.2f} %)" for count in (relevant, pairs - relevant)]
        rows.append([*map(Cell, (variant.label, *(f"{count:,}" for count in counts), *shares))])
    header = ["lists", "queries", "features", "documents", "maximum per query", "mean per query", "relevant", "others"]
    if rows:
        yield Table(
            header,
            rows,
            1,
            [
                "All parts are truncated here; models are trained and stopped on truncated lists, and tested on "
                "whole ones."
            ],
        )


def gain_by_length(analysis: Analysis, better: str, other: str) -> Iterator[Drawing]:
    """Figure 6: the gain of one variant over another by list length, and the number of queries per length."""
    pairs = {variant.name: variant for variant in analysis.variants}
    if not {better, other} <= set(pairs):
        return
    lengths: list[float] = []
    gains: list[float] = []
    for run in analysis.runs.finished:
        if run.variant != better or run.repeat not in pairs[other].repeats:
            continue
        ours, theirs = (pairs[name].repeats[run.repeat] for name in (better, other))
        data = _test(run)
        long = dict(zip(data.query_ids.tolist(), np.diff(data.offsets).tolist(), strict=True))
        lengths += [long[query] for query in ours.query_ids.tolist()]
        gains += (ours.queries[analysis.main] - theirs.queries[analysis.main]).tolist()
    known = ~np.isnan(gains)
    if known.any():
        yield Drawing(
            partial(draw_gain, np.array(lengths)[known], np.array(gains)[known], f"{better} - {other}"),
            f"Difference in {analysis.main} by documents per query, in steps of {STEP}; below, the number of queries.",
        )


def by_step(lengths: NDArray[np.float64], gains: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Mean gain of the queries in each step of lengths (0 for an empty step), and their number.

    >>> [each.tolist() for each in by_step(np.array([20, 80, 250]), np.array([0.25, 0.75, -0.5]))]
    [[0.5, 0.0, -0.5], [2, 0, 1]]
    """
    place = (lengths // STEP).astype(np.int64)
    count = np.bincount(place)
    return np.bincount(place, weights=gains) / np.maximum(count, 1), count


@mpl.rc_context(LOOK)
def draw_gain(lengths: NDArray[np.float64], gains: NDArray[np.float64], label: str) -> str:
    """Mean gain in each step of lengths, above the number of queries."""
    mean, count = by_step(lengths, gains)
    at = (np.arange(len(count)) + 0.5) * STEP
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    above.bar(at, mean, width=0.9 * STEP, color=np.where(mean >= 0, COLOURS[0], COLOURS[1]))
    above.axhline(0, color=QUIET, lw=0.8)
    above.set_ylabel(label)
    below.bar(at, count, width=0.9 * STEP, color=QUIET)
    below.set_ylabel("queries")
    below.set_xlabel("documents per query")
    return as_svg(figure)


def chosen(analysis: Analysis) -> Iterator[Drawing]:
    """Figures 7 and 8: the chosen negatives, by query and by rank in the order of the data."""
    run = next((run for run in analysis.runs.finished if (run.path / "selected.npz").exists()), None)
    if run is None:
        return
    selected, data = Selected.load(run.path), _train(run)
    yield Drawing(
        partial(draw_map, selection_map(selected, data)),
        f"How often each document was chosen, up to {ENOUGH} times; a row is a query, with long lists at the bottom.",
    )
    share = by_rank(selected, data)
    yield Drawing(partial(draw_share, share), "Fraction of all choices among the first documents of a query.")


@mpl.rc_context(LOOK)
def draw_map(grid: NDArray[np.float64]) -> str:
    """A heatmap, thinned to limit the size of a page."""
    every = [max(1, size // 300) for size in grid.shape]
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes = figure.subplots()
    thin = np.minimum(grid[:: every[0], :: every[1]], ENOUGH)
    image = axes.imshow(thin, aspect="auto", cmap="viridis", extent=(0, grid.shape[1], len(grid), 0))
    figure.colorbar(image, label="times chosen")
    axes.grid(False)
    axes.set_xlabel("rank in the order of the data")
    axes.set_ylabel("query, by length of its list")
    return as_svg(figure)


@mpl.rc_context(LOOK)
def draw_share(share: NDArray[np.float64]) -> str:
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.plot(np.arange(1, len(share) + 1), share, color=COLOURS[0])
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("rank in the order of the data")
    axes.set_ylabel("fraction of choices")
    return as_svg(figure)


def _train(run: Run) -> RankingData:
    return load_fold(run.spec.data, run.fold).train


def _test(run: Run) -> RankingData:
    return load_fold(run.spec.data, run.fold).test


def by_rank(selected: Selected, data: RankingData, column: int | None = None) -> NDArray[np.float64]:
    """[ranks]: the fraction of all selections among the first r documents of their query (figure 8 of the paper).

    Documents are ranked by a feature, highest first, such as the score of the first stage; without one, in file order.
    """
    counts, place = _matching(selected, data), _places(data, column)
    total = np.bincount(place, weights=counts, minlength=data.longest).cumsum()
    if total[-1] == 0:
        raise ValueError("no non-relevant document was selected; use a booster that selects documents, such as selgb")
    return np.asarray(total / total[-1])


def selection_map(selected: Selected, data: RankingData, column: int | None = None) -> NDArray[np.float64]:
    """[queries, ranks]: how often each document was selected, shortest list first; NaN beyond its end (figure 7)."""
    lengths = np.diff(data.offsets)
    row = np.empty(data.queries, dtype=np.int64)
    row[np.argsort(lengths, kind="stable")] = np.arange(data.queries)
    grid = np.full((data.queries, data.longest), np.nan)
    grid[np.repeat(row, lengths), _places(data, column)] = _matching(selected, data)
    return grid


def _matching(selected: Selected, data: RankingData) -> NDArray[np.int32]:
    if len(selected.counts) != data.documents:
        raise ValueError(
            f"the selection has {len(selected.counts)} documents, but the data have {data.documents}; give the "
            "training queries of that run, with the same fold"
        )
    return selected.counts


def _places(data: RankingData, column: int | None) -> NDArray[np.int64]:
    """[documents]: the rank of each in its query, from 0."""
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    start = data.offsets[:-1][query]
    if column is None:
        return np.asarray(np.arange(data.documents) - start)
    place = np.empty(data.documents, dtype=np.int64)
    place[np.lexsort((-data.features[:, column], query))] = np.arange(data.documents) - start
    return place

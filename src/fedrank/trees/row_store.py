"""The half of growing that holds rows: gradients, histograms of leaves, and which row lies where.

It is told where to split and never decides it. What it gives away are histograms: for every bin of every feature the
sums of gradients and hessians and the number of rows. They are not private: see docs/how-to-grow-trees-together.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.ranking.measures import Evaluator
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, put_in_bins
from fedrank.trees.boosters import MEASURE, Grower, Rows
from fedrank.trees.cuts import LeafCut, walk_of
from fedrank.trees.drawing import drawn_features, drawn_queries, numbers_of

Packed = NDArray[np.int64]  # [words, 8 x 256, 2]: a histogram as kernels/grow.py counts it
PARTS = 2.0**42  # nDCG of a query is counted in whole parts, so that its sum does not depend on who adds up


class RowStore:
    """Rows on which trees grow, and the scores that they have so far."""

    def __init__(
        self, train: RankingData, edges: Edges, rules: Grower, seed: int, validation: RankingData | None = None
    ) -> None:
        if train.grades.min() < 0:
            raise ValueError(
                f"{train.name or 'the training set'} has grades below 0, which gain nothing; use 0 or more"
            )
        self.train, self.edges, self.rules, self.seed = train, edges, rules, seed
        self.binned = put_in_bins(train, edges)
        self.scores = np.zeros(train.documents)
        self._gradients, self._hessians = np.zeros(train.documents), np.zeros(train.documents)
        self._pairs = np.zeros((train.documents, 2), np.int64)
        self._rows, self._spare = np.empty(0, np.int32), np.empty(train.documents, np.int32)
        self._grades = np.ascontiguousarray(train.grades, np.int8)
        self._starts, self._counts = np.zeros(rules.leaves, np.int64), np.zeros(rules.leaves, np.int64)
        self._words = np.arange(self.binned.words.shape[1])  # those with features by which the tree may split
        self._cuts: list[LeafCut] = []
        self._whole = True  # whether the tree is grown on all rows
        self._judge = None if validation is None else Evaluator(validation, [MEASURE])
        self._judged = None if validation is None else put_in_bins(validation, edges).bytes
        self._seen = np.zeros(0 if validation is None else validation.documents)
        self._ids = numbers_of(train.query_ids)

    def begin(self, tree: int, shift: int, kept: Rows | None = None) -> Packed:
        """Gradients for one more tree, on all rows or those kept; the histogram of its root."""
        self._cuts, self._whole = [], kept is None and self.rules.query_share == 1.0
        if kept is not None and self.rules.query_share < 1.0:
            kept = kept & self._drawn(tree)
        self._rows = self._chosen(tree, kept)
        features = drawn_features(self.edges.features, self.rules.feature_share, self.seed, tree)
        self._words = np.unique(features // 8)
        self._starts[:], self._counts[:] = 0, 0
        self._counts[0] = len(self._rows)
        self._weigh(shift, kept)
        return self.histogram(0)

    def cut(self, cut: LeafCut) -> None:
        """Divide a leaf."""
        from fedrank.kernels.grow import divide_rows

        start, count = self._starts[cut.leaf], self._counts[cut.leaf]
        column = self.binned.columns[cut.feature]
        left = divide_rows(column, self._rows[start : start + count], cut.bin, self._spare)
        self._counts[cut.leaf] = left
        self._starts[cut.new], self._counts[cut.new] = start + left, count - left
        self._cuts.append(cut)

    def divided(self, cut: LeafCut) -> Packed:
        """Divide a leaf; the histogram that was asked for."""
        self.cut(cut)
        return self.histogram(cut.wanted)

    def rows_in(self, leaf: int) -> int:
        """How many lie in a leaf."""
        return int(self._counts[leaf])

    def end(self, values: NDArray[np.float64]) -> None:
        """Add what the leaves say to the scores of all rows."""
        from fedrank.kernels.grow import add_by_bins, add_leaves

        if self._whole:
            add_leaves(self._rows, self._starts, self._counts, values, self.scores)
        else:
            add_by_bins(self.binned.bytes, *walk_of(self._cuts), values, self.scores)
        if self._judge is not None:
            add_by_bins(self._judged, *walk_of(self._cuts), values, self._seen)

    def forget(self) -> None:
        """Begin with no trees at all."""
        self.scores[:], self._seen[:] = 0.0, 0.0

    def add(self, tree: Trees) -> None:
        """A tree that was grown before."""
        tree.add(self.train.features, self.scores)
        if self._judge is not None:
            tree.add(self._judge.data.features, self._seen)

    def quality(self) -> tuple[int, int]:
        """nDCG@10 of its validation queries in whole parts, summed up, and how many of them count."""
        if self._judge is None:
            return 0, 0
        values = self._judge.per_query_of_scores(self._seen)[0]
        counted = values[~np.isnan(values)]
        return int(np.rint(counted * PARTS).astype(np.int64).sum()), len(counted)

    def histogram(self, leaf: int) -> Packed:
        from fedrank.kernels.grow import BINS, add_histogram

        packed = np.zeros((self.binned.words.shape[1], 8 * BINS, 2), np.int64)
        start = self._starts[leaf]
        rows = self._rows[start : start + self._counts[leaf]]
        add_histogram(self.binned.words, self._words, rows, self._pairs, packed)
        return packed

    def _chosen(self, tree: int, kept: Rows | None) -> NDArray[np.int32]:
        if kept is not None:
            return np.flatnonzero(kept).astype(np.int32)
        if self._whole:
            return np.arange(self.train.documents, dtype=np.int32)
        return np.flatnonzero(self._drawn(tree)).astype(np.int32)

    def _drawn(self, tree: int) -> Rows:
        """[documents]: whether each is of a query that was drawn for this tree."""
        queries = drawn_queries(self._ids, self.rules.query_share, self.seed, tree)
        return np.asarray(np.repeat(queries, np.diff(self.train.offsets)))

    def _weigh(self, shift: int, kept: Rows | None) -> None:
        """Gradients and hessians of the chosen rows as whole numbers."""
        from fedrank.kernels.grow import lambda_gradients, pack_pairs

        rules, scale, rows = self.rules, 2.0**self.rules.fraction, self._rows
        if kept is None:
            # Queries are weighed whole, so that it does no harm to weigh those that are not in the sample, too.
            queries = np.arange(self.train.queries)
            if not self._whole:
                queries = np.unique(np.searchsorted(self.train.offsets, rows, side="right") - 1)
            lambda_gradients(
                self.scores, self.scores.astype(np.float32).view(np.int32), self._grades, self.train.offsets, queries,
                rules.lambda_norm, rules.lambda_truncation, self._gradients, self._hessians,
            )  # fmt: skip
        else:
            self._weigh_some(kept)
        size, weight = pack_pairs(self._gradients, self._hessians, rows, scale, shift, self._pairs)
        if max(size, weight << shift) >= 2**61 or len(rows) >> shift:
            raise ValueError(
                f"gradients of {len(rows):,} rows in steps of 2^-{rules.fraction} do not fit 64 bits; use a smaller "
                "fraction"
            )

    def _weigh_some(self, kept: Rows) -> None:
        """Gradients among the kept rows alone: pairs with others do not count."""
        from fedrank.kernels.grow import lambda_gradients

        rows = self._rows
        sizes = np.add.reduceat(kept, self.train.offsets[:-1], dtype=np.int64)
        offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0])])
        scores, grades = self.scores[rows], self._grades[rows]
        gradients, hessians = np.zeros(len(rows)), np.zeros(len(rows))
        lambda_gradients(
            scores, scores.astype(np.float32).view(np.int32), grades, offsets, np.arange(len(offsets) - 1),
            self.rules.lambda_norm, self.rules.lambda_truncation, gradients, hessians,
        )  # fmt: skip
        self._gradients[rows], self._hessians[rows] = gradients, hessians

"""The rows of one client while a forest grows: gradients, histograms of leaves, and the leaf of each row.

A server decides where leaves are split. A `RowStore` releases histograms: for every bin of every feature the sums of
gradients and hessians and the number of rows. They are not private: see attacks/forests.py. The
releases of a `PrivateRowStore` have noise, and no numbers of rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.privacy.noise import SecureSource
from fedrank.ranking.measures import Evaluator
from fedrank.seeds import key_for, rng_for
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, put_in_bins
from fedrank.trees.boosters import MEASURE, Grower, Rows
from fedrank.trees.noise import TreeNoise, Whole, clip_units, units_of
from fedrank.trees.split_finder import Features, LeafSplit, Packed, walk_of
from fedrank.types import Source

Ballots = NDArray[np.bool_]  # [leaves, features of the tree]: whether a client votes for each
Votes = NDArray[np.int64]  # the same, counted
PARTS = 2.0**42  # nDCG of a query as an integer: the order of addition does not change the sum


class RowStore:
    """Rows on which trees grow, and their current scores."""

    def __init__(
        self, train: RankingData, edges: Edges, rules: Grower, seed: int, validation: RankingData | None = None
    ) -> None:
        if train.grades.min() < 0:
            raise ValueError(
                f"{train.name or 'the training set'} has relevance labels below 0; use labels of 0 or more"
            )
        self.train, self.edges, self.rules, self.seed = train, edges, rules, seed
        self.binned = put_in_bins(train, edges)
        self.scores = np.zeros(train.documents)
        self._gradients, self._hessians = np.zeros(train.documents), np.zeros(train.documents)
        self._pairs = np.zeros((train.documents, 2), np.int64)
        self._rows, self._spare = np.empty(0, np.int32), np.empty(train.documents, np.int32)
        self._grades = np.ascontiguousarray(train.grades, np.int8)
        self._starts, self._counts = np.zeros(rules.leaves, np.int64), np.zeros(rules.leaves, np.int64)
        self.features, self.shift = np.arange(edges.features), 0  # of the current tree; bits of a row count
        self._words = np.unique(self.features // 8)  # that contain these features
        self._splits: list[LeafSplit] = []
        self._whole = True  # whether the tree is grown on all rows
        self._judge = None if validation is None else Evaluator(validation, [MEASURE])
        self._judged = None if validation is None else put_in_bins(validation, edges).bytes
        self._seen = np.zeros(0 if validation is None else validation.documents)
        self._ids = numbers_of(train.query_ids)

    def begin(self, tree: int, shift: int, kept: Rows | None = None) -> None:
        """Compute gradients for one more tree, on all rows or the kept ones, which are all in its root."""
        self._splits, self._whole = [], kept is None and self.rules.query_share == 1.0
        if kept is not None and self.rules.query_share < 1.0:
            kept = kept & self._drawn(tree)
        self._rows = self._chosen(tree, kept)
        self.features = drawn_features(self.edges.features, self.rules.feature_share, self.seed, tree)
        self._words, self.shift = np.unique(self.features // 8), shift
        self._starts[:], self._counts[:] = 0, 0
        self._counts[0] = len(self._rows)
        self._weigh(kept)

    def split(self, split: LeafSplit) -> None:
        """Split a leaf."""
        from fedrank.kernels.grow import divide_rows

        start, count = self._starts[split.leaf], self._counts[split.leaf]
        left = divide_rows(self.binned.columns[split.feature], self._rows_of(split.leaf), split.bin, self._spare)
        self._counts[split.leaf] = left
        self._starts[split.new], self._counts[split.new] = start + left, count - left
        self._splits.append(split)

    def rows_in(self, leaf: int) -> int:
        """Number of rows in a leaf."""
        return int(self._counts[leaf])

    def end(self, values: NDArray[np.float64]) -> None:
        """Add the values of leaves to the scores of all rows."""
        from fedrank.kernels.grow import add_by_bins, add_leaves

        if self._whole:
            add_leaves(self._rows, self._starts, self._counts, values, self.scores)
        else:
            add_by_bins(self.binned.bytes, *walk_of(self._splits), values, self.scores)
        if self._judge is not None:
            add_by_bins(self._judged, *walk_of(self._splits), values, self._seen)

    def forget(self) -> None:
        """Reset all scores, as if no tree had been grown."""
        self.scores[:], self._seen[:] = 0.0, 0.0

    def add(self, tree: Trees) -> None:
        """Add a tree that was grown before."""
        tree.add(self.train.features, self.scores)
        if self._judge is not None:
            tree.add(self._judge.data.features, self._seen)

    def quality(self) -> tuple[int, int]:
        """Sum of nDCG@10 over its validation queries as an integer, and the number of queries that count."""
        if self._judge is None:
            return 0, 0
        values = self._judge.per_query_of_scores(self._seen)[0]
        counted = values[~np.isnan(values)]
        return int(np.rint(counted * PARTS).astype(np.int64).sum()), len(counted)

    def histogram(self, leaf: int) -> Packed:
        """Gradients, hessians and numbers of rows by bin."""
        from fedrank.kernels.grow import BINS, add_histogram

        packed = np.zeros((self.binned.words.shape[1], 8 * BINS, 2), np.int64)
        add_histogram(self.binned.words, self._words, self._rows_of(leaf), self._pairs, packed)
        return packed

    def _rows_of(self, leaf: int) -> NDArray[np.int32]:
        start = self._starts[leaf]
        return self._rows[start : start + self._counts[leaf]]

    def _chosen(self, tree: int, kept: Rows | None) -> NDArray[np.int32]:
        if kept is not None:
            return np.flatnonzero(kept).astype(np.int32)
        if self._whole:
            return np.arange(self.train.documents, dtype=np.int32)
        return np.flatnonzero(self._drawn(tree)).astype(np.int32)

    def _drawn(self, tree: int) -> Rows:
        """[documents]: whether the query of each was drawn for this tree."""
        queries = drawn_queries(self._ids, self.rules.query_share, self.seed, tree)
        return np.asarray(np.repeat(queries, np.diff(self.train.offsets)))

    def _weigh(self, kept: Rows | None) -> None:
        """Gradients and hessians of the chosen rows as integers."""
        from fedrank.kernels.grow import pack_pairs

        scale, rows = 2.0**self.rules.fraction, self._rows
        if kept is None:
            self._weigh_queries()
        else:
            self._weigh_some(kept)
        size, weight = pack_pairs(self._gradients, self._hessians, rows, scale, self.shift, self._pairs)
        if max(size, weight << self.shift) >= 2**61 or len(rows) >> self.shift:
            raise ValueError(
                f"gradients of {len(rows):,} rows in steps of 2^-{self.rules.fraction} exceed 64 bits; use a "
                "smaller fraction"
            )

    def _weigh_queries(self) -> None:
        """Gradients of whole queries; those outside the sample are not used."""
        from fedrank.kernels.grow import lambda_gradients

        queries = np.arange(self.train.queries)
        if not self._whole:
            queries = np.unique(np.searchsorted(self.train.offsets, self._rows, side="right") - 1)
        lambda_gradients(
            self.scores, self.scores.astype(np.float32).view(np.int32), self._grades, self.train.offsets, queries,
            self.rules.lambda_norm, self.rules.lambda_truncation, self._gradients, self._hessians,
        )  # fmt: skip

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


class PrivateRowStore(RowStore):
    """Rows on which trees grow with noise, all of them in every tree: only noised sums are released."""

    def __init__(
        self, train: RankingData, edges: Edges, rules: Grower, noise: TreeNoise, source: Source | None = None
    ) -> None:
        if rules.fraction > 24:
            raise ValueError(f"fraction must be at most 24 with noise, so clipped gradients fit (got {rules.fraction})")
        every = replace(rules, leaves=2**noise.depth, query_share=1.0, feature_share=1.0)
        super().__init__(train, edges, every, seed=0)
        self.noise, self.unit = noise, 2.0**-rules.fraction
        self.source = SecureSource() if source is None else source
        self._units = units_of(train, noise.unit)

    def released(self, number: int) -> Whole:
        """A release of a tree, with noise: histograms of all its leaves, or finally only their sums [leaves, 2]."""
        leaves = range(self.noise.leaves(number))
        if self.noise.is_last(number):
            return self._noised(np.array([self._pairs[self._rows_of(leaf)].sum(axis=0) for leaf in leaves]), 1)
        features, bins = self.edges.features, self.edges.bins
        found = np.empty((len(leaves), features, bins, 2), np.int64)
        for leaf in leaves:
            packed = self.histogram(leaf)
            found[leaf] = packed.reshape(8 * len(packed), -1, 2)[:features, :bins]
        return self._noised(found, features)

    def _weigh(self, kept: Rows | None) -> None:
        """Gradients and hessians, clipped per unit."""
        self._weigh_queries()
        for column, values in enumerate((self._gradients, self._hessians)):
            # Trees come from a server, and sums of their leaves may overflow: NaN would pass the clipping.
            whole = np.rint(np.nan_to_num(values, posinf=0.0, neginf=0.0) / self.unit).astype(np.int64)
            self._pairs[:, column] = clip_units(whole, self._units, self.noise.bounds(self.unit)[column])

    def _noised(self, found: Whole, cells: int) -> Whole:
        for column, law in enumerate(self.noise.laws(cells, self.unit)):
            found[..., column] += law.draw(found.shape[:-1], self.source)
        return found


class Voter:
    """A client that votes for the features with the largest gain on its own rows, before histograms are added up.

    As in LightGBM's voting parallel (Meng et al., NIPS 2016). Each client votes for `vote` features of a leaf, and the
    2 x `vote` with the most votes are elected; of equals, the first. Votes are ones and zeros: all clients count
    equally, and votes also add up under secure aggregation. A client stores the histograms of its leaves until they
    are requested.
    """

    def __init__(self, store: RowStore, vote: int, clients: int) -> None:
        self.store, self.vote, self.clients = store, vote, clients
        self._own: dict[int, Packed] = {}  # by leaf

    def ballots(self, leaves: tuple[int, ...]) -> Ballots:
        """[leaves, features]: its votes for the root of a tree, or for both parts of a leaf that was split."""
        if leaves == (0,):
            self._own = {0: self.store.histogram(0)}
        else:
            whole = self._own.pop(leaves[0])
            smaller, larger = sorted(leaves, key=self.store.rows_in)
            self._own[smaller] = self.store.histogram(smaller)
            self._own[larger] = np.subtract(whole, self._own[smaller], out=whole)
        return np.stack([self._ballot(leaf) for leaf in leaves])

    def histogram(self, leaf: int) -> Packed:
        """Of a leaf that it has voted for."""
        return self._own[leaf]

    def _ballot(self, leaf: int) -> NDArray[np.bool_]:
        """The features with the largest positive gain; of equals, the first.

        The minimum sizes of a leaf are for all clients together; one client applies its part of them.
        """
        from fedrank.kernels.grow import split_gains

        rules = self.store.rules
        gains = split_gains(
            self._own[leaf], self.store.shift, self.store.features, self.store.edges.counts, 2.0**-rules.fraction,
            max(1, rules.min_data_in_leaf // self.clients), rules.min_sum_hessian / self.clients, rules.l2,
        )  # fmt: skip
        best = np.argsort(-gains, kind="stable")[: self.vote]
        ballot = np.zeros(len(gains), np.bool_)
        ballot[best[gains[best] > 0]] = True
        return ballot


def elected(votes: NDArray[np.int64], features: Features, vote: int) -> Features:
    """Of these features, the 2 x `vote` with the most votes; of equals, the first.

    >>> elected(np.array([1, 0, 3, 1, 1]), np.array([2, 4, 5, 7, 9]), 1).tolist()
    [2, 5]
    """
    return np.asarray(np.sort(features[np.argsort(-votes, kind="stable")[: 2 * vote]]))


def elected_for_root(stores: Sequence[RowStore], vote: int, shift: int, tree: int = 0) -> Features:
    """The features whose histograms the server sees first."""
    for store in stores:
        store.begin(tree, shift)
    ballots = [Voter(store, vote, len(stores)).ballots((0,))[0] for store in stores]
    return elected(np.sum(ballots, axis=0), stores[0].features, vote)


def drawn_queries(ids: NDArray[np.uint64], share: float, seed: int, tree: int) -> NDArray[np.bool_]:
    """Which queries a tree is grown on: each by its own hash, whichever client has it."""
    with np.errstate(over="ignore"):
        mixed = ids ^ key_for(seed, "queries of a tree", tree)
        # The finaliser of SplitMix64: every bit of the result depends on every bit of the number.
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed.astype(np.float64) < share * 2.0**64)


def drawn_features(features: int, share: float, seed: int, tree: int) -> NDArray[np.int64]:
    """The features by which a tree may split, in order: at least one."""
    if share == 1.0:
        return np.arange(features)
    count = max(1, round(share * features))
    return np.sort(rng_for(seed, "features of a tree", tree).choice(features, count, replace=False, shuffle=False))


def numbers_of(queries: Iterable[str]) -> NDArray[np.uint64]:
    """A number for every query that depends only on its id."""
    digests = [hashlib.blake2b(str(query).encode(), digest_size=8).digest() for query in queries]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)

"""Votes for features before histograms: everybody names the features that gain most on its own rows, and only the
histograms of those that most have named are added up.

As in LightGBM's voting parallel (Meng et al., NIPS 2016). Each votes for `vote` features of a leaf, and the 2 x `vote`
with most votes are elected; of equals, the first. Votes are ones and zeros, so that nobody has more of a say than
others, and so that they add up under a secure sum, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.boosters import Rows
from fedrank.trees.cuts import LeafCut
from fedrank.trees.drawing import drawn_features
from fedrank.trees.row_store import RowStore
from fedrank.trees.split_finder import Features, Packed
from fedrank.wire import Refused

Ballots = NDArray[np.bool_]  # [leaves, features by which a tree may split]: whether each is named
Votes = NDArray[np.int64]  # the same, counted


class Voter:
    """Who holds rows and votes: it keeps the histograms of its own leaves until they are asked for."""

    def __init__(self, holder: RowStore, vote: int, clients: int) -> None:
        self.holder, self.vote, self.clients = holder, vote, clients
        self._own: dict[int, Packed] = {}  # by leaf
        self._features: Features = np.empty(0, np.int64)
        self._shift = 0

    def begin(self, tree: int, shift: int, kept: Rows | None = None) -> Ballots:
        """[1, features]: its vote for the root of one more tree."""
        rules, edges = self.holder.rules, self.holder.edges
        self._features, self._shift = drawn_features(edges.features, rules.feature_share, self.holder.seed, tree), shift
        self._own = {0: self.holder.begin(tree, shift, kept)}
        return self._ballot(0)[None]

    def cut(self, cut: LeafCut) -> Ballots:
        """[2, features]: divide a leaf, and vote for both parts."""
        whole = self._own.pop(cut.leaf)
        self.holder.cut(cut)
        rows = self.holder.rows_in(cut.leaf), self.holder.rows_in(cut.new)
        smaller, larger = (cut.leaf, cut.new) if rows[0] <= rows[1] else (cut.new, cut.leaf)
        self._own[smaller] = self.holder.histogram(smaller)
        self._own[larger] = np.subtract(whole, self._own[smaller], out=whole)
        return np.stack([self._ballot(cut.leaf), self._ballot(cut.new)])

    def histogram(self, leaf: int) -> Packed:
        """Of a leaf that it has voted for."""
        return self._own[leaf]

    def _ballot(self, leaf: int) -> NDArray[np.bool_]:
        """Its features that gain most, where there is any gain; of equals the first.

        What a leaf must hold is for all clients together, so that one asks for its part of it.
        """
        from fedrank.kernels.grow import split_gains

        rules = self.holder.rules
        gains = split_gains(
            self._own[leaf], self._shift, self._features, self.holder.edges.counts, 2.0**-rules.fraction,
            max(1, rules.min_data_in_leaf // self.clients), rules.min_sum_hessian / self.clients, rules.l2,
        )  # fmt: skip
        best = np.argsort(-gains, kind="stable")[: self.vote]
        ballot = np.zeros(len(gains), np.bool_)
        ballot[best[gains[best] > 0]] = True
        return ballot


def elected(votes: NDArray[np.int64], features: Features, vote: int) -> Features:
    """Of these features, the 2 x `vote` with most votes; of equals the first.

    >>> elected(np.array([1, 0, 3, 1, 1]), np.array([2, 4, 5, 7, 9]), 1).tolist()
    [2, 5]
    """
    return np.asarray(np.sort(features[np.argsort(-votes, kind="stable")[: 2 * vote]]))


def elected_for_root(holders: Sequence[RowStore], vote: int, shift: int, tree: int = 0) -> Features:
    """The features of which a server sees histograms first."""
    rules, edges = holders[0].rules, holders[0].edges
    features = drawn_features(edges.features, rules.feature_share, holders[0].seed, tree)
    ballots = [Voter(holder, vote, len(holders)).begin(tree, shift)[0] for holder in holders]
    return elected(np.sum(ballots, axis=0), features, vote)


def encode_named(named: Ballots) -> bytes:
    """A bit for every feature, leaf after leaf."""
    return np.packbits(named, axis=1).tobytes()


def decode_named(content: bytes, leaves: int, features: int, most: int) -> Ballots:
    """What was named for each leaf, at most so many features in all; refused where it does not fit."""
    wide = -(-features // 8)
    if len(content) != leaves * wide:
        raise Refused(f"{leaves} leaves of {features} features take {leaves * wide} bytes, and {len(content)} came")
    named = np.unpackbits(np.frombuffer(content, np.uint8).reshape(leaves, wide), axis=1).astype(np.bool_)
    if named[:, features:].any():
        raise Refused(f"a feature is named beyond the {features} by which the tree may split")
    if named.sum() > most:
        raise Refused(f"{int(named.sum())} features are named, and {most} may be")
    return named[:, :features]


def check_votes(votes: Votes, vote: int, clients: int) -> None:
    """Refuse what so many clients cannot have voted together."""
    if np.any(votes < 0) or np.any(votes > clients) or np.any(votes.sum(axis=1) > vote * clients):
        raise Refused(f"{clients} clients with {vote} votes each for a leaf cannot have voted like that")

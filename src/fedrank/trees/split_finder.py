"""Split search: the best split of every leaf from summed histograms, and a tree as a list of its splits.

`SplitFinder` has no rows. It takes histograms that were summed over all clients, with or without secure
aggregation, and decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.binning import Edges
from fedrank.trees.boosters import Grower

Reals = NDArray[np.float64]
Packed = NDArray[np.int64]  # [words, 8 x 256, 2]: a histogram as kernels/grow.py counts it
Features = NDArray[np.int64]  # ascending
Wish = tuple[int, Features]  # a leaf, and the features whose histograms are requested


@dataclass(frozen=True)
class LeafSplit:
    """A split of a leaf: rows in bins up to `bin` stay in it, the others move to a new leaf."""

    leaf: int
    new: int  # number of the new leaf
    feature: int
    bin: int
    wanted: int = -1  # the leaf whose histogram is requested, the smaller of both; -1: none


@dataclass(frozen=True)
class Sums:
    """Sums of a leaf, in fixed-point units, and its number of rows."""

    gradient: int
    hessian: int
    rows: int

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.gradient - other.gradient, self.hessian - other.hessian, self.rows - other.rows)

    def value(self, unit: float, l2: float) -> float:
        """Newton step: the change of the scores of its rows."""
        return -self.gradient * unit / (self.hessian * unit + l2) if self.hessian * unit + l2 > 0 else 0.0


@dataclass(frozen=True)
class MadeSplit:
    """A split in a tree: its gain, and the sums of the leaf before."""

    split: LeafSplit
    gain: float
    before: Sums


def children_of(splits: Sequence[LeafSplit]) -> NDArray[np.int32]:
    """[splits, 2]: left and right; a child below 0 is the leaf ~child."""
    child = np.empty((len(splits), 2), np.int32)
    place: dict[int, tuple[int, int]] = {}  # position of a leaf in `child`
    for number, split in enumerate(splits):
        if split.leaf in place:
            child[place[split.leaf]] = number
        child[number] = ~split.leaf, ~split.new
        place[split.leaf], place[split.new] = (number, 0), (number, 1)
    return child


def walk_of(splits: Sequence[LeafSplit]) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]]:
    """Features, limits and children, by which a binned row finds its leaf."""
    features = np.array([split.feature for split in splits], dtype=np.int32)
    limits = np.array([split.bin for split in splits], dtype=np.uint8)
    return features, limits, children_of(splits)


@dataclass(frozen=True)
class GrownTree:
    """A tree as the list of its splits, in order."""

    splits: Sequence[MadeSplit]
    leaves: Sequence[Sums]
    values: Reals  # [leaves]: added to the scores of its rows
    # Its histograms are retained until the next tree is grown: returning memory to the system and allocating it again
    # takes a tenth of the time.
    finder: SplitFinder | None = None

    def text(self, edges: Edges, unit: float) -> str:
        """The tree in LightGBM's format."""
        if not self.splits:
            raise ValueError("a tree without splits has no text; stop growing before it")
        splits = [one.split for one in self.splits]
        child = children_of(splits)
        # 2: no value is marked as missing, as LightGBM writes it; NaN counts as 0.
        lines = {
            "num_leaves": [len(self.values)],
            "num_cat": [0],
            "split_feature": [split.feature for split in splits],
            "split_gain": [one.gain for one in self.splits],
            "threshold": [edges.values[split.feature][split.bin] for split in splits],
            "decision_type": [2] * len(splits),
            "left_child": child[:, 0].tolist(),
            "right_child": child[:, 1].tolist(),
            "leaf_value": self.values.tolist(),
            "leaf_weight": [sums.hessian * unit for sums in self.leaves],
            "leaf_count": [sums.rows for sums in self.leaves],
            "internal_value": [one.before.value(unit, 0.0) for one in self.splits],
            "internal_weight": [one.before.hessian * unit for one in self.splits],
            "internal_count": [one.before.rows for one in self.splits],
            "is_linear": [0],
            "shrinkage": [1],
        }
        return "\n".join(f"{key}={' '.join(map(repr, numbers))}" for key, numbers in lines.items())


@dataclass
class _Leaf:
    sums: Sums
    depth: int
    histogram: Packed | None = None  # None: it will not be split
    features: Features | None = None  # features in its histogram
    gain: float = 0.0  # of its best split; 0: none
    feature: int = -1
    bin: int = -1
    left: Sums | None = None  # sums that stay in it after the split


class SplitFinder:
    """Best-first growth of a tree: `next_split` chooses a leaf, `take` receives the histogram of a new leaf."""

    def __init__(self, rules: Grower, edges: Edges, features: Features, shift: int, root: Packed) -> None:
        from fedrank.kernels.grow import totals_of

        self.rules, self.edges, self.features, self.shift = rules, edges, features, shift
        self.unit = 2.0**-rules.fraction
        self.splits: list[MadeSplit] = []
        self._rest: Packed | None = None  # histogram of the leaf that was split last
        self.known = features  # features in that histogram
        self.leaves = [_Leaf(Sums(*map(int, totals_of(root, shift, features[0]))), 0)]
        self._consider(self.leaves[0], root, features)

    def next_split(self) -> LeafSplit | None:
        """The split with the largest gain over all leaves; None when the tree is complete."""
        gains = [leaf.gain for leaf in self.leaves]
        best = int(np.argmax(gains))
        if len(self.leaves) >= self.rules.leaves or not gains[best] > 0:
            return None
        leaf, new = self.leaves[best], len(self.leaves)
        assert leaf.left is not None
        right = leaf.sums - leaf.left
        parts = (_Leaf(leaf.left, leaf.depth + 1), _Leaf(right, leaf.depth + 1))
        wanted = -1
        if new + 1 < self.rules.leaves and any(map(self._may_split, parts)):
            wanted = best if leaf.left.rows <= right.rows else new
        split = LeafSplit(best, new, leaf.feature, leaf.bin, wanted)
        self.splits.append(MadeSplit(split, leaf.gain, leaf.sums))
        assert leaf.features is not None
        self._rest, self.known = leaf.histogram, leaf.features
        self.leaves[best] = parts[0]
        self.leaves.append(parts[1])
        return split

    def wishes(self, elected: Sequence[Features]) -> list[Wish]:
        """The histograms that the last split needs, given the features elected for the leaf and the new one.

        For features known from the parent, the smaller part is enough: the larger one is the difference.
        """
        split = self.splits[-1].split
        chosen = dict(zip((split.leaf, split.new), elected, strict=True))
        for leaf in chosen:
            if not self._may_split(self.leaves[leaf]):
                chosen[leaf] = chosen[leaf][:0]
        larger = chosen[_other(split)]
        smaller = np.union1d(chosen[split.wanted], np.intersect1d(larger, self.known))
        wishes = [(split.wanted, smaller), (_other(split), np.setdiff1d(larger, self.known))]
        return [(leaf, features) for leaf, features in wishes if len(features)]

    def take(self, wishes: Sequence[Wish], histograms: Sequence[Packed]) -> None:
        """Take the requested histograms of the last split; the larger leaf is the parent minus the smaller one."""
        from fedrank.kernels.grow import BINS

        split, known = self.splits[-1].split, self.known
        assert self._rest is not None
        larger, known_of_larger = self._rest, known[:0]
        self._rest = None
        for (leaf, features), histogram in zip(wishes, histograms, strict=True):
            if leaf == split.wanted:
                np.subtract(larger, histogram, out=larger)
                known_of_larger = known if features is known else np.intersect1d(known, features)
                self._consider(self.leaves[leaf], histogram, features)
            else:
                larger.reshape(-1, BINS, 2)[features] = histogram.reshape(-1, BINS, 2)[features]
                known_of_larger = np.union1d(known_of_larger, features)
        self._consider(self.leaves[_other(split)], larger, known_of_larger)

    def tree(self) -> GrownTree:
        """The current tree."""
        sums = [leaf.sums for leaf in self.leaves]
        values = [self.rules.rate * one.value(self.unit, self.rules.l2) for one in sums]
        return GrownTree(self.splits, sums, np.array(values), self)

    def _may_split(self, leaf: _Leaf) -> bool:
        deep = self.rules.depth and leaf.depth >= self.rules.depth
        return not deep and leaf.sums.rows >= 2 * self.rules.min_data_in_leaf

    def _consider(self, leaf: _Leaf, histogram: Packed, features: Features) -> None:
        from fedrank.kernels.grow import best_split

        if not self._may_split(leaf) or not len(features):
            return
        rules = self.rules
        gain, feature, place, *left = best_split(
            histogram, self.shift, features, self.edges.counts, self.unit, rules.min_data_in_leaf,
            rules.min_sum_hessian, rules.l2,
        )  # fmt: skip
        if gain > 0:
            leaf.histogram, leaf.gain, leaf.feature, leaf.bin = histogram, gain, int(feature), int(place)
            leaf.features, leaf.left = features, Sums(*map(int, left))


def _other(split: LeafSplit) -> int:
    """The larger part of a leaf that was split."""
    return split.new if split.wanted == split.leaf else split.leaf

"""The half of growing that decides: from histograms that add up, the best split of every leaf, one tree at a time.

It holds no rows. Whoever asks for histograms adds up those of all holders, in the open or under a secure sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.binning import Edges
from fedrank.trees.boosters import Grower
from fedrank.trees.cuts import LeafCut, Parted, Reals, Sums, text_of

Packed = NDArray[np.int64]  # [words, 8 x 256, 2]: a histogram as kernels/grow.py counts it
Features = NDArray[np.int64]  # in order
Wish = tuple[int, Features]  # a leaf, and the features whose histograms are asked for


@dataclass
class _Leaf:
    sums: Sums
    depth: int
    histogram: Packed | None = None  # None: it will not be split
    features: Features | None = None  # that its histogram knows
    gain: float = 0.0  # of its best split; 0: there is none
    feature: int = -1
    bin: int = -1
    left: Sums | None = None  # what the split leaves in it


class SplitFinder:
    """A tree that grows leaf by leaf: `cut` says where, `take` learns what is in the new leaves."""

    def __init__(self, rules: Grower, edges: Edges, features: Features, shift: int, root: Packed) -> None:
        from fedrank.kernels.grow import totals_of

        self.rules, self.edges, self.features, self.shift = rules, edges, features, shift
        self.unit = 2.0**-rules.fraction
        self.parted: list[Parted] = []
        self._rest: Packed | None = None  # histogram of the leaf that was cut last
        self._known = features  # that it knows
        self.leaves = [_Leaf(Sums(*map(int, totals_of(root, shift, features[0]))), 0)]
        self._consider(self.leaves[0], root, features)

    def cut(self) -> LeafCut | None:
        """The split that gains most, of all leaves; None when the tree is grown."""
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
        cut = LeafCut(best, new, leaf.feature, leaf.bin, wanted)
        self.parted.append(Parted(cut, leaf.gain, leaf.sums))
        assert leaf.features is not None
        self._rest, self._known = leaf.histogram, leaf.features
        self.leaves[best] = parts[0]
        self.leaves.append(parts[1])
        return cut

    def take(self, smaller: Packed | None) -> None:
        """What was asked for by the last cut; the larger leaf holds the rest of what was there before."""
        cut = self.parted[-1].cut
        if cut.wanted < 0:
            return
        assert smaller is not None
        assert self._rest is not None
        np.subtract(self._rest, smaller, out=self._rest)
        self._consider(self.leaves[cut.wanted], smaller, self._known)
        self._consider(self.leaves[_other(cut)], self._rest, self._known)
        self._rest = None

    def wishes(self, elected: Sequence[Features]) -> list[Wish]:
        """Which histograms the last cut needs, where these features were elected for the leaf and the new one.

        Of features that are known of the leaf before, the smaller part is enough: the larger one holds the rest.
        """
        cut = self.parted[-1].cut
        chosen = dict(zip((cut.leaf, cut.new), elected, strict=True))
        for leaf in chosen:
            if not self._may_split(self.leaves[leaf]):
                chosen[leaf] = chosen[leaf][:0]
        larger = chosen[_other(cut)]
        smaller = np.union1d(chosen[cut.wanted], np.intersect1d(larger, self._known))
        asked = [(cut.wanted, smaller), (_other(cut), np.setdiff1d(larger, self._known))]
        return [(leaf, features) for leaf, features in asked if len(features)]

    def take_some(self, wishes: Sequence[Wish], histograms: Sequence[Packed]) -> None:
        """What was wished for: histograms that know some of the features."""
        from fedrank.kernels.grow import BINS

        cut, known = self.parted[-1].cut, self._known
        assert self._rest is not None
        larger, known_of_larger = self._rest, known[:0]
        self._rest = None
        for (leaf, features), histogram in zip(wishes, histograms, strict=True):
            if leaf == cut.wanted:
                np.subtract(larger, histogram, out=larger)
                known_of_larger = np.intersect1d(known, features)
                self._consider(self.leaves[leaf], histogram, features)
            else:
                larger.reshape(-1, BINS, 2)[features] = histogram.reshape(-1, BINS, 2)[features]
                known_of_larger = np.union1d(known_of_larger, features)
        self._consider(self.leaves[_other(cut)], larger, known_of_larger)

    def recount(self, histograms: Sequence[Packed]) -> None:
        """Go on with what these hold, one for every leaf: somebody whose rows were counted is gone."""
        from fedrank.kernels.grow import totals_of

        self.leaves = [
            _Leaf(Sums(*map(int, totals_of(histogram, self.shift, self.features[0]))), leaf.depth)
            for leaf, histogram in zip(self.leaves, histograms, strict=True)
        ]
        for leaf, histogram in zip(self.leaves, histograms, strict=True):
            self._consider(leaf, histogram, self.features)

    def values(self) -> Reals:
        """[leaves]: what each adds to the scores of its rows."""
        return np.array([self.rules.rate * leaf.sums.value(self.unit, self.rules.l2) for leaf in self.leaves])

    def text(self) -> str:
        """As LightGBM writes it."""
        return text_of(self.parted, [leaf.sums for leaf in self.leaves], self.values(), self.edges, self.unit)

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


def _other(cut: LeafCut) -> int:
    """The larger part of a leaf that was cut."""
    return cut.new if cut.wanted == cut.leaf else cut.leaf

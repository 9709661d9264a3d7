"""A tree as the cuts that made it, one leaf after the other, and as the text that any LightGBM reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.binning import Edges

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class LeafCut:
    """Where a leaf is split: rows in bins up to `bin` stay in it, the others go to a new leaf."""

    leaf: int
    new: int  # number of the new leaf
    feature: int
    bin: int
    wanted: int = -1  # the leaf of which a histogram is asked for, the smaller of both; -1: of none


@dataclass(frozen=True)
class Sums:
    """What a leaf holds: in units of fixed point, and rows."""

    gradient: int
    hessian: int
    rows: int

    def __sub__(self, other: Sums) -> Sums:
        return Sums(self.gradient - other.gradient, self.hessian - other.hessian, self.rows - other.rows)

    def value(self, unit: float, l2: float) -> float:
        """Newton's step: by how much the scores of its rows should change."""
        return -self.gradient * unit / (self.hessian * unit + l2) if self.hessian * unit + l2 > 0 else 0.0


@dataclass(frozen=True)
class Parted:
    """A cut that was made: what it gained, and what the leaf held before."""

    cut: LeafCut
    gain: float
    before: Sums


def children_of(cuts: Sequence[LeafCut]) -> NDArray[np.int32]:
    """[cuts, 2]: left and right; a child below 0 is the leaf ~child."""
    child = np.empty((len(cuts), 2), np.int32)
    place: dict[int, tuple[int, int]] = {}  # where the number of a leaf stands
    for number, cut in enumerate(cuts):
        if cut.leaf in place:
            child[place[cut.leaf]] = number
        child[number] = ~cut.leaf, ~cut.new
        place[cut.leaf], place[cut.new] = (number, 0), (number, 1)
    return child


def walk_of(cuts: Sequence[LeafCut]) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]]:
    """Features, limits and children, by which a row in bins finds its leaf."""
    features = np.array([cut.feature for cut in cuts], dtype=np.int32)
    limits = np.array([cut.bin for cut in cuts], dtype=np.uint8)
    return features, limits, children_of(cuts)


def text_of(parted: Sequence[Parted], leaves: Sequence[Sums], values: Reals, edges: Edges, unit: float) -> str:
    """The tree in LightGBM's format; its leaves have these values."""
    if not parted:
        raise ValueError("a tree without a split has nothing to say; stop growing before it")
    cuts = [one.cut for one in parted]
    child = children_of(cuts)
    # 2: nothing is known to be missing, as LightGBM writes it; what is not a number counts as 0.
    lines = {
        "num_leaves": [len(values)],
        "num_cat": [0],
        "split_feature": [cut.feature for cut in cuts],
        "split_gain": [one.gain for one in parted],
        "threshold": [edges.values[cut.feature][cut.bin] for cut in cuts],
        "decision_type": [2] * len(cuts),
        "left_child": child[:, 0].tolist(),
        "right_child": child[:, 1].tolist(),
        "leaf_value": values.tolist(),
        "leaf_weight": [sums.hessian * unit for sums in leaves],
        "leaf_count": [sums.rows for sums in leaves],
        "internal_value": [one.before.value(unit, 0.0) for one in parted],
        "internal_weight": [one.before.hessian * unit for one in parted],
        "internal_count": [one.before.rows for one in parted],
        "is_linear": [0],
        "shrinkage": [1],
    }
    return "\n".join(f"{key}={' '.join(map(repr, numbers))}" for key, numbers in lines.items())

"""LightGBM's text models as plain trees, without LightGBM.

LightGBM sends a document to the left where its value is at most a threshold in double precision. Search engines store
values in single precision, so a threshold can be replaced by the largest float32 that does not exceed it: every
document reaches the same leaf.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrank.trees.arrays import NOTHING_IS_MISSING, UNDER_ZERO, ZERO, ZERO_IS_MISSING, Trees

LARGEST = float(np.finfo(np.float32).max)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Leaf:
    """A leaf, whose value is added to the score of its documents."""

    value: float


@dataclass(frozen=True)
class Branch:
    """A split: documents with a value of at most the threshold go left."""

    feature: int  # from 0
    threshold: np.float32
    left: Branch | Leaf
    right: Branch | Leaf
    missing_left: bool  # whether documents without a value (NaN) go left


Tree = Branch | Leaf


@dataclass(frozen=True)
class Scale:
    """Fixed (`global`) normalisation of every feature: from low .. low + width to 0 .. 1."""

    low: Doubles  # [features]
    width: Doubles  # [features]; 0 for a feature without a range, which is always 0

    @staticmethod
    def of(ranges: NDArray[np.floating] | None, features: int) -> Scale:
        """From smallest and largest values [2, features]; None leaves features unchanged."""
        if ranges is None:
            return Scale(np.zeros(features), np.ones(features))
        low, high = np.asarray(ranges, np.float64)
        return Scale(low, np.maximum(high - low, 0.0))


def read_trees(texts: Iterable[str], scale: Scale) -> list[Tree]:
    """The trees of a LightGBM text model, with thresholds for values before normalisation."""
    features = len(scale.low)
    zeros = [cuts(np.full(features, end), scale.low, scale.width) for end in (UNDER_ZERO, ZERO)]
    return [_tree(Trees.read([text]), scale, zeros) for text in texts]


def cuts(limits: Doubles, low: Doubles, width: Doubles) -> Floats:
    """[n]: the largest float32 whose normalised value is at most the limit; -inf where none exists.

    Found by bisection, because normalised values are rounded.
    """
    finite = int(np.float32(LARGEST).view(np.int32))
    fits = np.full(len(limits), -finite - 1)
    exceeds = np.full(len(limits), finite + 1)
    reach = np.where(width > 0, width, np.inf)
    with np.errstate(over="ignore"):
        while np.any(exceeds - fits > 1):
            middle = (fits + exceeds) // 2
            inside = ((_value(middle) - low) / reach).astype(np.float32) <= limits
            fits = np.where(inside, middle, fits)
            exceeds = np.where(inside, exceeds, middle)
    return np.where(fits < -finite, np.float32(-np.inf), _value(fits).astype(np.float32))


def _value(order: NDArray[np.int64]) -> Doubles:
    """The finite float32 at each position of their order, where 0 is zero."""
    size: Doubles = np.abs(order).clip(max=0x7F7FFFFF).astype(np.int32).view(np.float32).astype(np.float64)
    return np.where(order < 0, -size, size)


def _tree(tree: Trees, scale: Scale, zeros: list[Floats]) -> Tree:
    leaves = [Leaf(float(value)) for value in tree.value]
    thresholds = cuts(tree.threshold, scale.low[tree.feature], scale.width[tree.feature])
    nodes: list[Tree] = [leaves[0]] * max(1, len(thresholds))
    for i in reversed(range(len(thresholds))):  # children come after their parents
        left, right = (nodes[to] if to >= 0 else leaves[~to] for to in tree.child[i])
        feature, threshold, missing_left = int(tree.feature[i]), thresholds[i], bool(tree.missing_left[i])
        if tree.kind[i] == ZERO_IS_MISSING:
            below, above = (ends[feature] for ends in zeros)
            nodes[i] = _around_zero(feature, threshold, left, right, missing_left, below, above)
        else:
            if tree.kind[i] == NOTHING_IS_MISSING:
                # NaN counts as 0 before normalisation, like a feature that a LETOR file omits.
                missing_left = bool(threshold >= 0)
            nodes[i] = _split(feature, threshold, left, right, missing_left)
    return nodes[0]


def _split(feature: int, threshold: np.float32, left: Tree, right: Tree, missing_left: bool) -> Tree:
    """A split, or the only child that documents can reach.

    Where only missing values are separated, the largest finite float32 replaces infinity, which JSON lacks.
    """
    if threshold >= LARGEST and missing_left:
        return left
    if threshold < -LARGEST and not missing_left:
        return right
    return Branch(feature, np.float32(np.clip(threshold, -LARGEST, LARGEST)), left, right, missing_left)


def _around_zero(
    feature: int, threshold: np.float32, left: Tree, right: Tree, zero_left: bool, below: np.float32, above: np.float32
) -> Tree:
    """A split of a model with zero_as_missing: zero has a fixed direction, independent of the threshold.

    The largest value under zero is `below`, the largest that counts as zero `above`.
    """
    if zero_left and threshold < above:
        rest = _split(feature, above, left, right, True)
        if threshold >= below:
            return rest
        return _split(feature, threshold, left, _split(feature, below, right, rest, False), True)
    if not zero_left and threshold > below:
        rest = right
        if threshold > above:
            rest = _split(feature, above, right, _split(feature, threshold, left, right, False), True)
        return _split(feature, below, left, rest, False)
    return _split(feature, threshold, left, right, zero_left)

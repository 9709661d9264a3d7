"""LightGBM's text models as plain trees, without LightGBM.

LightGBM sends a document to the left where its value is at most a threshold in double precision. Search engines hold
values in single precision, so that a threshold can be replaced by the largest float32 that does not exceed it: no
document goes another way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ZERO = float(np.float32(1e-35))  # LightGBM takes values from -ZERO to ZERO for zero
UNDER_ZERO = float(np.nextafter(-ZERO, -np.inf))
LARGEST = float(np.finfo(np.float32).max)

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Leaf:
    """Where documents arrive, and what it adds to their score."""

    value: float


@dataclass(frozen=True)
class Split:
    """A question to a document: is its value at most the threshold?"""

    feature: int  # from 0
    threshold: np.float32
    left: Split | Leaf  # yes
    right: Split | Leaf  # no
    missing_left: bool  # where documents without a value (NaN) go


Tree = Split | Leaf


@dataclass(frozen=True)
class Scale:
    """Fixed (`global`) normalisation of every feature: from low .. low + width to 0 .. 1."""

    low: Doubles  # [features]
    width: Doubles  # [features]; 0 for a feature without a range, which is always 0

    @staticmethod
    def of(ranges: NDArray[np.floating] | None, features: int) -> Scale:
        """From smallest and largest values [2, features]; None leaves features as they are."""
        if ranges is None:
            return Scale(np.zeros(features), np.ones(features))
        low, high = np.asarray(ranges, np.float64)
        return Scale(low, np.maximum(high - low, 0.0))


def read_trees(text: str, scale: Scale) -> list[Tree]:
    """The trees of a LightGBM text model, with thresholds for values as they are before normalisation."""
    parts = re.split(r"^Tree=", text[: text.index("\nend of trees")], flags=re.MULTILINE)[1:]
    features = len(scale.low)
    zeros = [cuts(np.full(features, end), scale.low, scale.width) for end in (UNDER_ZERO, ZERO)]
    return [_tree(dict(re.findall(r"^(\w+)=(.*)$", part, re.MULTILINE)), scale, zeros) for part in parts]


def cuts(limits: Doubles, low: Doubles, width: Doubles) -> Floats:
    """[n]: the largest float32 whose normalised value is at most the limit; -inf where there is none.

    Found by bisection, because normalised values are rounded, and what matters is where they land.
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
    """The finite float32 of each place in their order, where 0 is zero."""
    size: Doubles = np.abs(order).clip(max=0x7F7FFFFF).astype(np.int32).view(np.float32).astype(np.float64)
    return np.where(order < 0, -size, size)


def _tree(block: dict[str, str], scale: Scale, zeros: list[Floats]) -> Tree:
    if block.get("is_linear", "0") != "0":
        raise ValueError("its leaves hold linear models, which engines cannot express; train without linear_tree")
    leaves = [Leaf(float(value)) for value in block["leaf_value"].split()]
    if len(leaves) == 1:
        return leaves[0]
    kinds = np.array(block["decision_type"].split(), np.int64)
    if np.any(kinds & 1):
        raise ValueError("it splits by categories, which engines cannot express; train with numbers alone")
    features = np.array(block["split_feature"].split(), np.int64)
    limits = np.array(block["threshold"].split(), np.float64)
    # LightGBM reads tiny values as 0, so that no threshold can come between them.
    limits = np.where(np.abs(limits) <= ZERO, np.where(limits >= 0, ZERO, UNDER_ZERO), limits)
    thresholds = cuts(limits, scale.low[features], scale.width[features])
    children = [np.array(block[side].split(), np.int64) for side in ("left_child", "right_child")]
    nodes: list[Tree] = [leaves[0]] * len(limits)
    for i in reversed(range(len(limits))):  # LightGBM numbers children after their parents
        left, right = (nodes[side[i]] if side[i] >= 0 else leaves[~side[i]] for side in children)
        feature, threshold, default_left = int(features[i]), thresholds[i], bool(kinds[i] & 2)
        missing = (kinds[i] >> 2) & 3
        if missing == 1:
            below, above = (ends[feature] for ends in zeros)
            nodes[i] = _around_zero(feature, threshold, left, right, default_left, below, above)
        else:
            # A model that never met a missing value takes it for 0, as a feature that a LETOR file leaves out.
            nodes[i] = _split(feature, threshold, left, right, default_left if missing == 2 else bool(threshold >= 0))
    return nodes[0]


def _split(feature: int, threshold: np.float32, left: Tree, right: Tree, missing_left: bool) -> Tree:
    """A split, or the only child that documents can reach.

    Where only missing values part from all others, the largest finite float32 stands for infinity, which JSON lacks.
    """
    if threshold >= LARGEST and missing_left:
        return left
    if threshold < -LARGEST and not missing_left:
        return right
    return Split(feature, np.float32(np.clip(threshold, -LARGEST, LARGEST)), left, right, missing_left)


def _around_zero(
    feature: int,
    threshold: np.float32,
    left: Tree,
    right: Tree,
    zero_left: bool,
    below: np.float32,
    above: np.float32,
) -> Tree:
    """A split of a model with zero_as_missing: zero goes its own way, whatever the threshold.

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

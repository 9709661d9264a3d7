"""Trees as flat arrays: parsed from LightGBM's text with every index checked, and scored by fedrank's compiled loop.

A text model may come from an untrusted source, and LightGBM's parser trusts its offsets, its sizes, and that a path
down a tree ends. Here everything is checked. The scores equal those of LightGBM to the last bit. Trees with linear
leaves or splits by category are refused: no booster of fedrank grows them, and search engines cannot express them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.wire import Refused

Reals = NDArray[np.float64]

ZERO = float(np.float32(1e-35))  # LightGBM treats values from -ZERO to ZERO as zero
UNDER_ZERO = float(np.nextafter(-ZERO, -np.inf))
NAN_IS_MISSING, NOTHING_IS_MISSING, ZERO_IS_MISSING = range(3)  # kinds of splits
MIN_SHARE = 50_000  # documents per thread; with fewer, a thread costs more than it saves

# Lines of a tree that do not affect scores, with one entry per split or per leaf.
_OF_SPLITS = ("split_gain", "internal_value", "internal_weight", "internal_count")
_OF_LEAVES = ("leaf_weight", "leaf_count", "leaf_parent")
_KNOWN = {
    *_OF_SPLITS, *_OF_LEAVES, "num_leaves", "num_cat", "split_feature", "threshold", "decision_type", "left_child",
    "right_child", "leaf_value", "cat_boundaries", "cat_threshold", "is_linear", "shrinkage", "has_categorical",
    "leaf_const", "num_features", "leaf_features", "leaf_coeff",
}  # fmt: skip
_NUMBERS = re.compile(r"[-+.0-9eE ]*")  # Python would also read 1_000, nan, and digits of other scripts


@dataclass(frozen=True)
class Trees:
    """Regression trees whose outputs add up, concatenated in flat arrays.

    A child of 0 or more is a split, one below 0 is the leaf ~child; likewise a root. Children come after their parents.
    """

    roots: NDArray[np.int32]  # [trees]
    feature: NDArray[np.int32]  # [splits]
    threshold: Reals  # [splits]: values up to it go left
    missing_left: NDArray[np.bool_]  # [splits]: whether missing values go left
    kind: NDArray[np.uint8]  # [splits]: which values are missing
    child: NDArray[np.int32]  # [splits, 2]: left and right
    value: Reals  # [leaves]

    @staticmethod
    def read(texts: Iterable[str]) -> Trees:
        """Parse the lines of each tree in a text model; ValueError where they are inconsistent."""
        return _joined([_read(text, number) for number, text in enumerate(texts)])

    @property
    def reaches(self) -> int:
        """Number of features that a document must have to be scored."""
        return 1 + int(self.feature.max(initial=-1))

    def add(self, features: NDArray[np.floating[Any]], scores: Reals, threads: int = 1) -> None:
        """Add the outputs for all documents [documents, features] to the scores [documents], in place."""
        from fedrank.kernels.trees import add_trees

        if features.shape[1] < self.reaches or len(features) != len(scores):
            raise ValueError(
                f"the trees need {self.reaches} features for {len(scores)} documents (got {features.shape[1]} for "
                f"{len(features)}); use data with the features that the trees were grown on"
            )

        zero_is_value = not np.any(self.kind == ZERO_IS_MISSING)
        arrays = [getattr(self, each.name) for each in fields(self)]

        def some(first: int, last: int) -> None:
            add_trees(features, first, last, scores, zero_is_value, *arrays)

        parts = max(1, min(threads, len(features) // MIN_SHARE))
        if parts == 1:
            return some(0, len(features))
        limits = np.linspace(0, len(features), parts + 1).astype(int)
        with ThreadPoolExecutor(parts) as pool:
            list(pool.map(some, limits[:-1], limits[1:]))
        return None


def _joined(trees: Sequence[Trees]) -> Trees:
    if len(trees) == 1:
        return trees[0]

    def begins(name: str) -> NDArray[np.int64]:
        """The number of entries before each tree."""
        sizes = np.array([0, *(len(getattr(tree, name)) for tree in trees)], dtype=np.int64)
        return np.asarray(np.cumsum(sizes)[:-1])

    splits, leaves = begins("feature"), begins("value")

    def every(name: str, parts: Sequence[NDArray[Any]] | None = None) -> NDArray[Any]:
        kind = _EMPTY[name]
        return np.concatenate([kind, *(parts or [getattr(tree, name) for tree in trees])]).astype(kind.dtype)

    def moved(nodes: NDArray[np.int32], number: int) -> NDArray[np.int64]:
        return np.asarray(np.where(nodes >= 0, nodes + splits[number], nodes - leaves[number]))

    values = {name: every(name) for name in _EMPTY}
    return Trees(**values | {
        "roots": every("roots", [moved(tree.roots, i) for i, tree in enumerate(trees)]),
        "child": every("child", [moved(tree.child, i) for i, tree in enumerate(trees)]),
    })  # fmt: skip


_EMPTY: dict[str, NDArray[Any]] = {
    "roots": np.empty(0, np.int32), "feature": np.empty(0, np.int32), "threshold": np.empty(0),
    "missing_left": np.empty(0, np.bool_), "kind": np.empty(0, np.uint8), "child": np.empty((0, 2), np.int32),
    "value": np.empty(0),
}  # fmt: skip


class _Unsupported(ValueError):
    """A valid tree of a kind that is not scored here."""


def _read(text: str, number: int) -> Trees:
    """One tree, with each index within bounds and each child reached once."""
    try:
        return _checked(_lines(text))
    except _Unsupported as problem:
        raise ValueError(f"tree {number}: {problem}") from None
    except ValueError as problem:
        raise ValueError(f"tree {number}: {problem}; the file is damaged, copy or train it again") from None


def _lines(text: str) -> dict[str, str]:
    lines: dict[str, str] = {}
    for line in text.split("\n"):
        key, equals, values = line.partition("=")
        if not equals or key not in _KNOWN or key in lines:
            why = "occurs twice" if key in lines else "is not a line of a tree"
            raise ValueError(f"its line {line[:40]!r} {why}")
        lines[key] = values
    return lines


def _checked(lines: dict[str, str]) -> Trees:
    leaves = _one(lines, "num_leaves", 1)
    splits = leaves - 1
    for keys, count in ((_OF_SPLITS, splits), (_OF_LEAVES, leaves)):
        for key in keys:
            if key in lines and len(lines[key].split()) not in (0, count):
                raise ValueError(f"it has {len(lines[key].split())} values of {key}, expected {count}")
    empty = _EMPTY | {"value": _column(lines, "leaf_value", leaves)}
    if "is_linear" in lines and _one(lines, "is_linear", 0, 1):
        raise _Unsupported("its leaves are linear models, which are not supported; train without linear_tree")
    if not splits:
        return Trees(**empty | {"roots": np.array([~0], np.int32)})
    # Bit 0: by category. Bit 1: missing values go left. Bits 2 and 3: which are missing (0 none, 1 zero, 2 NaN).
    flags = _column(lines, "decision_type", splits, 0, 11).astype(np.int64)
    if np.any(flags & 1) or _one(lines, "num_cat", 0):
        raise _Unsupported("it splits by categories, which are not supported; train with numeric features only")
    missing, threshold = flags >> 2, _column(lines, "threshold", splits)
    # LightGBM reads tiny values as 0, so no threshold may separate them.
    threshold = np.where(np.abs(threshold) <= ZERO, np.where(threshold >= 0, ZERO, UNDER_ZERO), threshold)
    # Where no value is marked as missing, NaN counts as 0.
    missing_left = np.where(missing > 0, (flags & 2) > 0, threshold >= 0)
    kinds = np.array([NOTHING_IS_MISSING, ZERO_IS_MISSING, NAN_IS_MISSING], np.uint8)
    sides = [_column(lines, f"{side}_child", splits, -leaves, splits - 1) for side in ("left", "right")]
    child = np.ascontiguousarray(np.stack(sides, axis=1).astype(np.int32))
    _check_walks_end(child, splits)
    return Trees(**empty | {
        "roots": np.zeros(1, np.int32),
        "feature": _column(lines, "split_feature", splits, 0, 2**31 - 2).astype(np.int32),
        "threshold": threshold,
        "missing_left": missing_left,
        "kind": kinds[missing],
        "child": child,
    })  # fmt: skip


def _check_walks_end(child: NDArray[np.int32], splits: int) -> None:
    """Every split but the first, and every leaf, is the child of exactly one earlier split, so paths have no cycles."""
    nodes = np.arange(-splits - 1, splits)
    if not np.array_equal(np.sort(child, axis=None), nodes[nodes != 0]):
        raise ValueError("its children must be every split and every leaf exactly once")
    if np.any((child >= 0) & (child <= np.arange(splits)[:, None])):
        raise ValueError("a split comes before its parent")


def _one(lines: dict[str, str], key: str, low: int, high: int = 2**31) -> int:
    return int(_column(lines, key, 1, low, high)[0])


def _column(lines: dict[str, str], key: str, count: int, low: int | None = None, high: int = 0) -> Reals:
    """The given number of finite numbers; with `low`, integers from low to high."""
    if key not in lines:
        raise ValueError(f"it has no line {key}=")
    words = lines[key].split()
    if len(words) != count:
        raise ValueError(f"it has {len(words)} values of {key}, expected {count}")
    try:
        if not _NUMBERS.fullmatch(lines[key]):
            raise ValueError
        values = np.array(list(map(float, words)), dtype=np.float64)
    except ValueError:
        raise ValueError(f"its {key} must contain only numbers") from None
    if not np.isfinite(values).all():
        raise ValueError(f"its {key} must contain only finite numbers")
    if low is not None and not np.all((values >= low) & (values <= high) & (values % 1 == 0)):
        raise ValueError(f"its {key} must contain only integers from {low} to {high}")
    return values


_LINE = re.compile(r"[a-z_]+=[-+.0-9eE ]*")  # of a tree: a name and numbers


def checked_trees(pieces: Sequence[bytes], features: int, leaves: int) -> tuple[str, ...]:
    """Trees from an untrusted source, as in text models; trees that no booster of fedrank grows are `Refused`."""
    trees = []
    for number, piece in enumerate(pieces):
        try:
            text = piece.decode("ascii")
            if not all(map(_LINE.fullmatch, text.split("\n"))):
                raise ValueError("a line of it is not a name with numbers")
            tree = Trees.read([text])
        except ValueError as problem:
            raise Refused(f"tree {number + 1} of its forest cannot be read: {problem}") from None
        if tree.reaches > features:
            raise Refused(f"tree {number + 1} of its forest uses feature {tree.reaches}, but there are only {features}")
        if len(tree.value) > leaves:
            raise Refused(f"tree {number + 1} of its forest has {len(tree.value)} leaves, the maximum is {leaves}")
        trees.append(text)
    if not trees:
        raise Refused("its forest has no tree")
    return tuple(trees)

"""Reverse top-K: the documents with the highest counts of a term, from the best documents of every cell of a sketch.

The paper's rule (CS-F-LTR, algorithms 4 and 5) is `PUBLISHED`; its recall is low, because half of the signs make
the largest values of a cell the worst ones, and because it takes the median over the rows in which a document survived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEEP = ("ends", "largest", "magnitude")
MISSING = ("zero", "threshold", "absent")
NONE = np.iinfo(np.int32).min  # in `lost`: no document of this cell was displaced

Rows = NDArray[np.int32]  # documents by their row numbers
Estimates = NDArray[np.float64]


@dataclass(frozen=True)
class TopKRule:
    """What is stored of every cell, and how a query reads it."""

    alpha: float = 5.0  # α k documents are kept at each end of a cell
    beta: float = 0.1  # an answer is found in this share of the rows; below 1/2 no limit where what is missing is 0
    k: int = 150  # documents that a query may ask for
    keep: str = "ends"  # largest and smallest values; or only the "largest"; or those of largest "magnitude"
    missing: str = "zero"  # what a row counts in which a document is missing; "absent": the row is left out

    def __post_init__(self) -> None:
        if not self.alpha >= 1:
            raise ValueError(f"alpha must be at least 1 (got {self.alpha})")
        if not 0 <= self.beta <= 1:
            raise ValueError(f"beta must be between 0 and 1 (got {self.beta}), such as 0.1")
        if self.k < 1:
            raise ValueError(f"k must be at least 1 (got {self.k})")
        for name, value, known in (("keep", self.keep, KEEP), ("missing", self.missing, MISSING)):
            if value not in known:
                raise ValueError(f"{name} must be {' or '.join(map(repr, known))} (got {value!r})")
        if self.keep == "magnitude" and self.missing == "threshold":
            raise ValueError("the sign of a missing value cannot be derived from a magnitude; choose missing = 'zero'")

    @property
    def capacity(self) -> int:
        """Maximum number of documents at one end of a cell."""
        return ceil(self.alpha * self.k)

    @property
    def ends(self) -> int:
        return 2 if self.keep == "ends" else 1


PUBLISHED = TopKRule(keep="largest", missing="absent")  # algorithms 4 and 5 as printed
# Without signs one end is enough, and a missing row does not count as 0.
COUNT_MIN = TopKRule(keep="largest", missing="threshold")


@dataclass(frozen=True, eq=False)
class ReverseTopK:
    """The best documents of every cell, instead of the sketches of all documents.

    An end of a cell holds its `sizes` best documents in order, equal values by their rows; no document that is missing
    is better than `lost`. A deletion leaves a hole: displaced documents cannot return, and a new document enters
    only if it is better than all displaced ones.
    """

    rule: TopKRule
    kind: str  # "count-sketch" or "count-min"
    documents: Rows  # [ends, z, w, slots]: rows, best first; -1 where nothing is kept; slots: what the fullest needs
    values: NDArray[np.int32]  # [ends, z, w, slots]: what the cell of that document's sketch holds
    sizes: NDArray[np.int32]  # [ends, z, w]: documents that are kept
    lost: NDArray[np.int32]  # [ends, z, w]: best displaced value; `NONE`: none
    present: NDArray[np.bool_]  # [rows]: False where a document was deleted; rows are never used again

    def __post_init__(self) -> None:
        ends, depth, width, slots = self.documents.shape
        if ends != self.rule.ends or slots > self.rule.capacity:
            raise ValueError(
                f"cells have {ends} ends of {slots} documents, but the rule keeps {self.rule.ends} of "
                f"{self.rule.capacity}; build it again"
            )
        if self.values.shape != self.documents.shape or not self.sizes.shape == self.lost.shape == (ends, depth, width):
            raise ValueError("values, sizes and thresholds do not match the documents; build it again")

    def __len__(self) -> int:
        """Documents that can be found."""
        return int(np.count_nonzero(self.present))

    @property
    def depth(self) -> int:
        return int(self.documents.shape[1])

    @property
    def width(self) -> int:
        return int(self.documents.shape[2])

    @property
    def bytes(self) -> int:
        """Total size of all arrays."""
        return sum(array.nbytes for array in (self.documents, self.values, self.sizes, self.lost, self.present))

    @property
    def fullest(self) -> int:
        """Largest number of documents at one end of a cell."""
        return int(self.sizes.max())

    @property
    def holes(self) -> int:
        """Positions left by deletions that displaced documents might have taken, over all cells."""
        return int(np.sum((self.rule.capacity - self.sizes) * (self.lost != NONE), dtype=np.int64))

    @property
    def short_cells(self) -> int:
        """Ends of cells with displaced documents and fewer than k left; from 1 on, rebuild the sketch."""
        return int(np.count_nonzero((self.sizes < self.rule.k) & (self.lost != NONE)))

    def insert(self, sketches: NDArray[np.int32]) -> ReverseTopK:
        """With more documents [new, z, w]; they get the rows from `len(present)` on, in their order."""
        grown = replace(
            _with_slots(self, min(self.rule.capacity, self.fullest + len(sketches))),
            present=np.concatenate([self.present, np.ones(len(sketches), dtype=np.bool_)]),
        )
        _merge(grown, sketches, len(self.present))
        return _trimmed(grown)

    def delete(self, rows: Sequence[int] | NDArray[Any]) -> ReverseTopK:
        """Without these documents, which must exist."""
        from fedrank.kernels.sketch import remove_rows

        gone = np.unique(np.asarray(rows, dtype=np.int64))
        inside = (gone >= 0) & (gone < len(self.present))
        inside[inside] = self.present[gone[inside]]
        if not inside.all():
            raise ValueError(f"document {gone[~inside][0]} does not exist; nothing was deleted; check its row")
        present = np.array(self.present)
        present[gone] = False
        left = replace(_with_slots(self, self.documents.shape[3]), present=present)
        remove_rows(left.documents, left.values, left.sizes, present)
        return _trimmed(left)

    def query(self, cells: NDArray[Any], signs: NDArray[Any], k: int | None = None) -> tuple[Rows, Estimates]:
        """The documents with the highest counts of a term and these counts, best first; ties in the order of rows.

        `cells` and `signs` [z] are those of the term (`Sketcher.locate`). At most k, and only those with an estimate
        above 0.
        """
        from fedrank.kernels.sketch import query_top

        k = self.rule.k if k is None else k
        if not 1 <= k <= self.rule.k:
            raise ValueError(f"k must be between 1 and {self.rule.k} (got {k}); build the sketch with a larger k")
        cells, signs = _place(cells, signs, self.depth, self.width)
        end = np.where(signs < 0, self.rule.ends - 1, 0)
        row = np.arange(self.depth)
        fill = np.zeros(self.depth, dtype=np.int32)
        if self.rule.missing == "threshold":
            lost = self.lost[end, row, cells].astype(np.int64)
            fill[:] = np.where(lost == NONE, 0, lost * signs)
        documents, values, sizes = (each[end, row, cells] for each in (self.documents, self.values, self.sizes))
        answer: tuple[Rows, Estimates] = query_top(
            documents, values, sizes, signs, fill, len(self.present), self.fewest(self.depth), k,
            self.rule.missing == "absent", self.kind == "count-min",
        )  # fmt: skip
        return answer

    def fewest(self, rows: int) -> int:
        """Minimum number of rows in which a document must be found."""
        fewest = max(1, ceil(self.rule.beta * rows))
        if self.rule.missing != "zero":
            return fewest
        # The median is 0 where more than half of the rows are 0, and the minimum where one row is 0.
        return rows if self.kind == "count-min" else max(fewest, ceil(rows / 2))


def build(blocks: Iterable[NDArray[np.int32]], rule: TopKRule, kind: str, depth: int, width: int) -> ReverseTopK:
    """The best documents of every cell; `blocks` are sketches [some, z, w] (`Sketcher.blocks`), in order of rows.

    Memory is that of the result, of the smaller one that it grows from, and of one block.
    """
    shape = (rule.ends, depth, width)
    made = ReverseTopK(
        rule,
        kind,
        documents=np.empty((*shape, 0), dtype=np.int32),
        values=np.empty((*shape, 0), dtype=np.int32),
        sizes=np.zeros(shape, dtype=np.int32),
        lost=np.full(shape, NONE, dtype=np.int32),
        present=np.empty(0, dtype=np.bool_),
    )
    rows = 0
    for block in blocks:
        slots, needed = made.documents.shape[3], min(rule.capacity, made.fullest + len(block))
        if needed > slots:
            made = _with_slots(made, min(rule.capacity, max(needed, 2 * slots)))
        _merge(made, block, rows)
        rows += len(block)
    return _trimmed(replace(made, present=np.ones(rows, dtype=np.bool_)))


def naive(
    sketches: NDArray[np.int32], cells: NDArray[Any], signs: NDArray[Any], k: int, kind: str = "count-sketch"
) -> tuple[Rows, Estimates]:
    """What `ReverseTopK.query` approximates: the best k by the estimates of all documents [documents, z, w]."""
    from fedrank.kernels.sketch import naive_top

    cells, signs = _place(cells, signs, *sketches.shape[1:])
    answer: tuple[Rows, Estimates] = naive_top(sketches, cells, signs, k, kind == "count-min")
    return answer


def cover_rate(found: NDArray[Any], counts: NDArray[Any], k: int) -> float:
    """Share of the k best positions that were found; `counts` [documents] are the true ones.

    Documents that tie with the last position count as found. Where fewer than k documents contain the term, there are
    as many positions, and 1 is returned where none does.
    """
    best = min(k, int(np.count_nonzero(counts > 0)))
    if best == 0:
        return 1.0
    last = np.partition(counts, -best)[-best]
    return float(np.count_nonzero(counts[found[:k]] >= last) / best)


def _place(cells: NDArray[Any], signs: NDArray[Any], depth: int, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    cells, signs = np.asarray(cells, dtype=np.int64), np.asarray(signs, dtype=np.int64)
    if cells.shape != (depth,) or signs.shape != (depth,):
        raise ValueError(f"a term must have {depth} cells and signs, one per row (got {cells.shape} and {signs.shape})")
    if cells.min() < 0 or cells.max() >= width or not np.all(np.abs(signs) == 1):
        raise ValueError(f"cells must be from 0 to {width - 1} and signs 1 or -1; use `Sketcher.locate`")
    return cells, signs


def _with_slots(top: ReverseTopK, slots: int) -> ReverseTopK:
    """A copy with this many positions at every end of a cell."""
    filled = min(slots, top.documents.shape[3])
    documents = np.full((*top.sizes.shape, slots), -1, dtype=np.int32)
    documents[..., :filled] = top.documents[..., :filled]
    values = np.zeros((*top.sizes.shape, slots), dtype=np.int32)
    values[..., :filled] = top.values[..., :filled]
    return replace(top, documents=documents, values=values, sizes=np.array(top.sizes), lost=np.array(top.lost))


def _trimmed(top: ReverseTopK) -> ReverseTopK:
    """Without positions that no cell needs, to keep small files small."""
    return top if top.documents.shape[3] == top.fullest else _with_slots(top, top.fullest)


def _merge(into: ReverseTopK, sketches: NDArray[np.int32], first: int) -> None:
    """Insert sketches into the cells, which have enough positions: `fullest` and the new ones, or those of the rule."""
    from fedrank.kernels.sketch import merge_block

    if sketches.shape[1:] != (into.depth, into.width):
        raise ValueError(f"sketches must have {into.depth} x {into.width} cells (got {sketches.shape[1:]})")
    if not len(sketches):
        return
    block, keep = np.ascontiguousarray(sketches, dtype=np.int32), KEEP.index(into.rule.keep)
    merge_block(block, first, keep, into.documents, into.values, into.sizes, into.lost)

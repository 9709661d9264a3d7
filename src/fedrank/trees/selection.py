"""Which documents a booster selected to grow its trees on, and how often: `selected.npz`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.files import opened


@dataclass
class Selected:
    """How often each non-relevant document was selected, and how many at each selection."""

    counts: NDArray[np.int32]  # [documents]: selections that kept it; 0 for relevant documents, which always stay
    trees: list[int] = field(default_factory=list)  # [selections]: the tree (from 1) before which rows were selected
    kept: list[int] = field(default_factory=list)  # [selections]: non-relevant documents that were kept
    new: list[int] = field(default_factory=list)  # [selections]: of these, documents never kept before

    def add(self, tree: int, rows: NDArray[np.bool_], data: RankingData) -> None:
        """Count one selection of rows."""
        chosen = np.flatnonzero(rows & (data.grades < 1))
        self.trees.append(tree)
        self.kept.append(len(chosen))
        self.new.append(int((self.counts[chosen] == 0).sum()))
        self.counts[chosen] += 1

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All fields as NumPy arrays."""
        listed = {name: np.array(getattr(self, name), dtype=np.int32) for name in ("trees", "kept", "new")}
        return {"counts": self.counts, **listed}

    @staticmethod
    def of(arrays: dict[str, NDArray[Any]]) -> Selected:
        """The inverse of `arrays`."""
        return Selected(arrays["counts"], *(arrays[name].tolist() for name in ("trees", "kept", "new")))

    @staticmethod
    def load(path: str | Path) -> Selected:
        """Read `selected.npz`, or that of a run folder."""
        path = Path(path)
        with (
            opened(path / "selected.npz" if path.is_dir() else path) as content,
            np.load(content, allow_pickle=False) as file,
        ):
            return Selected.of(dict(file))


def by_rank(selected: Selected, data: RankingData, column: int | None = None) -> NDArray[np.float64]:
    """[ranks]: the fraction of all selections among the first r documents of their query (figure 8 of the paper).

    Documents are ranked by a feature, highest first, such as the score of the first stage; without one, in file order.
    """
    counts, place = _matching(selected, data), _places(data, column)
    total = np.bincount(place, weights=counts, minlength=data.longest).cumsum()
    if total[-1] == 0:
        raise ValueError("no non-relevant document was selected; use a booster that selects documents, such as selgb")
    return np.asarray(total / total[-1])


def selection_map(selected: Selected, data: RankingData, column: int | None = None) -> NDArray[np.float64]:
    """[queries, ranks]: how often each document was selected, shortest list first; NaN beyond its end (figure 7)."""
    lengths = np.diff(data.offsets)
    row = np.empty(data.queries, dtype=np.int64)
    row[np.argsort(lengths, kind="stable")] = np.arange(data.queries)
    grid = np.full((data.queries, data.longest), np.nan)
    grid[np.repeat(row, lengths), _places(data, column)] = _matching(selected, data)
    return grid


def _matching(selected: Selected, data: RankingData) -> NDArray[np.int32]:
    if len(selected.counts) != data.documents:
        raise ValueError(
            f"the selection has {len(selected.counts)} documents, but the data have {data.documents}; give the "
            "training queries of that run, with the same fold"
        )
    return selected.counts


def _places(data: RankingData, column: int | None) -> NDArray[np.int64]:
    """[documents]: the rank of each in its query, from 0."""
    query = np.repeat(np.arange(data.queries), np.diff(data.offsets))
    start = data.offsets[:-1][query]
    if column is None:
        return np.asarray(np.arange(data.documents) - start)
    place = np.empty(data.documents, dtype=np.int64)
    place[np.lexsort((-data.features[:, column], query))] = np.arange(data.documents) - start
    return place

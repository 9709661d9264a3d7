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

"""LightGBM training tree by tree, on all rows or on some of them, into one ordinary model.

A booster on other rows than the previous one starts with the scores of the forest so far. A `Dataset.subset` uses the
bins of the whole data set, so a change of rows is cheap; every tree is then added to the scores of all documents by a
compiled loop. The scores of a resumed forest are the same sums in the same order, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.trees.forest import END, lightgbm

Reals = NDArray[np.float64]
MAX_DOCUMENTS = 10_000  # per query, in LightGBM's lambdarank
TOP_GRADE = 30  # highest relevance label for which it has a gain
FEW = 0.1  # fraction of the rows below which LightGBM's row-wise copy costs more time than it saves; trees are the same

# A tree that could not split its rows: a single leaf, which adds nothing.
STUMP = "\n".join(
    ["num_leaves=1", "num_cat=0"]
    + [f"{key}=" for key in ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")]
    + ["leaf_value=0", "leaf_weight=0", "leaf_count=0"]
    + ["internal_value=", "internal_weight=", "internal_count=", "is_linear=0", "shrinkage=1"]
)


@dataclass
class LightGbmTrainer:
    """Training data in LightGBM's format, on which trees are grown."""

    data: RankingData
    settings: dict[str, Any]  # LightGBM's parameters

    def __post_init__(self) -> None:
        check_trainable(self.data)
        self._engine = lightgbm()
        self._whole = self._engine.Dataset(
            self.data.features, np.asarray(self.data.grades, np.float32), params=self.settings
        ).construct()
        # Not as `group`: LightGBM would search it for every subset, although the sizes are known.
        self._whole.set_field("group", np.diff(self.data.offsets).astype(np.int32))

    def trees(self, scores: Reals, kept: NDArray[np.bool_] | None = None) -> Iterator[str | None]:
        """Tree after tree from these scores on, on all rows or the kept ones; None when no split is left."""
        rows = self._whole if kept is None else self._subset(kept)
        if scores.any():  # without a score, boosters start at 0
            rows.set_field("init_score", scores if kept is None else scores[kept])
        settings = self.settings
        if kept is not None and kept.mean() < FEW:
            settings = settings | {"force_row_wise": False, "force_col_wise": True}
        booster = self._engine.Booster(settings, rows)
        number = 0
        while not booster.update() and booster.num_trees() > number:
            text = booster.model_to_string(start_iteration=number, num_iteration=1)
            block = text[text.index("\nTree=") + 1 : text.index(f"\n{END}")]
            number += 1
            yield block.split("\n", 1)[1].strip("\n")
        yield None

    def _subset(self, kept: NDArray[np.bool_]) -> Any:
        part = self._whole.subset([0])
        part.used_indices = np.flatnonzero(kept).astype(np.int32)  # already sorted; LightGBM would sort in Python
        part.construct()
        sizes = np.add.reduceat(kept, self.data.offsets[:-1], dtype=np.int32)
        part.set_field("group", sizes[sizes > 0])
        return part


def check_trainable(data: RankingData) -> None:
    """Raise ValueError for data from which LightGBM cannot learn a ranking."""
    named = data.name or "the training set"
    if data.longest > MAX_DOCUMENTS:
        query = data.query_ids[int(np.diff(data.offsets).argmax())]
        raise ValueError(
            f"query {query} of {named} has {data.longest:,} documents, LightGBM supports at most {MAX_DOCUMENTS:,}; "
            "reduce it to its best candidates"
        )
    if data.grades.max() > TOP_GRADE or data.grades.min() < 0:
        raise ValueError(
            f"relevance labels of {named} must be from 0 to {TOP_GRADE}, for which LightGBM has gains (got "
            f"{data.grades.min()} to {data.grades.max()})"  # prose: ok
        )
    lowest = np.minimum.reduceat(data.grades, data.offsets[:-1])
    highest = np.maximum.reduceat(data.grades, data.offsets[:-1])
    if not np.any(lowest < highest):
        raise ValueError(
            f"no query of {named} has documents with different relevance labels, so all orders are equally good; "
            "train on queries with relevant and non-relevant documents"
        )

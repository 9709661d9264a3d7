"""Both halves of growing in one place: one who holds all rows grows what many would grow together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, quantile_edges
from fedrank.trees.boosters import Grower, NothingToSplit, Past, Step
from fedrank.trees.drawing import drawn_features
from fedrank.trees.growing import STUMP
from fedrank.trees.holder import PARTS, Holder
from fedrank.trees.sapling import Sapling


def grow_alone(
    rules: Grower,
    train: RankingData,
    validation: RankingData | None,
    seed: int,
    past: Past,
    edges: Edges | None = None,  # None: from the training data
) -> Iterator[Step]:
    """The forest tree by tree; a resumed one goes on with the tree after its past."""
    rules.check(train)
    curve = list(past.validation)
    if rules.is_over(curve):
        return
    edges = quantile_edges(train, rules.bins) if edges is None else edges
    holder = Holder(train, edges, rules, seed, validation)
    shift = shift_for(train.documents)
    known = rules.restart(len(past.trees))
    for text in past.trees[:known]:
        holder.add(Trees.read([text]))
    rows = None
    for number in range(known, rules.trees):
        choice = rules.choice(number, train, holder.scores, seed)
        rows = rows if choice is None else choice
        sapling = Sapling(
            rules, edges, drawn_features(edges.features, rules.feature_share, seed, number), shift,
            holder.begin(number, shift, rows),
        )  # fmt: skip
        while (cut := sapling.cut()) is not None:
            sapling.take(holder.cut(cut))
        if not sapling.parted and number == 0:
            raise NothingToSplit(nothing_to_split(rules, train.name))
        if not sapling.parted and not rules.is_random():
            return
        text = sapling.text() if sapling.parted else STUMP
        holder.end(sapling.values() if sapling.parted else np.zeros(1))
        if number < len(past.trees):
            continue  # grown again, from the last choice of rows on
        total, counted = holder.quality()
        curve.append(quality_of(total, counted))
        yield Step(text, Trees.read([text]), curve[-1], choice)
        if rules.is_over(curve):
            return


def shift_for(rows: int) -> int:
    """Bits that the number of rows takes in a histogram."""
    return rows.bit_length()


def quality_of(total: int, counted: int) -> float:
    """Mean nDCG@10 from parts; NaN without validation queries."""
    return total / PARTS / counted if counted else float("nan")


def nothing_to_split(rules: Grower, name: str) -> str:
    return (
        f"no split improves on giving all documents of {name or 'the training set'} the same score; lower "
        f"min_data_in_leaf = {rules.min_data_in_leaf} or min_sum_hessian = {rules.min_sum_hessian}, or look whether "
        "the features tell documents apart"
    )

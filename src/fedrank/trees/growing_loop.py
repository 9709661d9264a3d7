"""One forest from histograms that add up: the loop that both ends of growing have between them.

Whoever holds rows is a `Gathering`: holders in this process, or clients that are asked over a network. The forest is
the same to the last bit, whoever holds which queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

import numpy as np

from fedrank.data.ranking import RankingData
from fedrank.trees.arrays import Trees
from fedrank.trees.binning import Edges, quantile_edges
from fedrank.trees.boosters import Grower, NothingToSplit, Past, Rows, Step
from fedrank.trees.cuts import LeafCut, Reals
from fedrank.trees.drawing import drawn_features
from fedrank.trees.lightgbm_training import STUMP, check_trainable
from fedrank.trees.row_store import PARTS, RowStore
from fedrank.trees.split_finder import Features, Packed, SplitFinder, Wish
from fedrank.trees.voting import Voter, Votes, elected

MOST_ATTEMPTS = 10  # to grow one tree


class DroppedOut(Exception):
    """Somebody who took part in a tree is gone."""


class Gathering(Protocol):
    """All who hold rows, as one: what they answer is added up."""

    @property
    def rows(self) -> int:
        """How many they announced, together."""

    @property
    def dropouts(self) -> Literal["again", "continue"]:
        """What becomes of a tree in which somebody drops out."""

    @property
    def vote(self) -> int:
        """For how many features of a leaf each votes; 0: histograms have all features."""

    def begin(self, tree: int, shift: int) -> Packed: ...

    def cut(self, cut: LeafCut) -> Packed | None: ...

    def look(self, leaf: int) -> Packed: ...

    def end(self, values: Reals) -> tuple[int, int]: ...

    def begin_with_votes(self, tree: int, shift: int) -> Votes: ...

    def cut_with_votes(self, cut: LeafCut) -> Votes: ...

    def show(self, wishes: Sequence[Wish]) -> list[Packed]: ...


class Here:
    """Holders in this process, whose histograms are added up in the open."""

    dropouts: Literal["again"] = "again"

    def __init__(self, holders: Sequence[RowStore], vote: int = 0) -> None:
        self.holders, self.vote = holders, vote
        self.voters = [Voter(holder, vote, len(holders)) for holder in holders]
        self.chosen: list[Rows | None] = [None] * len(holders)  # rows on which trees are grown; None: all

    @property
    def rows(self) -> int:
        return sum(holder.train.documents for holder in self.holders)

    def begin(self, tree: int, shift: int) -> Packed:
        return _added(holder.begin(tree, shift, kept) for holder, kept in zip(self.holders, self.chosen, strict=True))

    def cut(self, cut: LeafCut) -> Packed | None:
        if cut.wanted >= 0:
            return _added(holder.divided(cut) for holder in self.holders)
        for holder in self.holders:
            holder.cut(cut)
        return None

    def look(self, leaf: int) -> Packed:
        return _added(holder.histogram(leaf) for holder in self.holders)

    def end(self, values: Reals) -> tuple[int, int]:
        for holder in self.holders:
            holder.end(values)
        found = [holder.quality() for holder in self.holders]
        return sum(total for total, _ in found), sum(counted for _, counted in found)

    def begin_with_votes(self, tree: int, shift: int) -> Votes:
        return np.asarray(np.sum([voter.begin(tree, shift) for voter in self.voters], axis=0))

    def cut_with_votes(self, cut: LeafCut) -> Votes:
        return np.asarray(np.sum([voter.cut(cut) for voter in self.voters], axis=0))

    def show(self, wishes: Sequence[Wish]) -> list[Packed]:
        return [_added(voter.histogram(leaf).copy() for voter in self.voters) for leaf, _ in wishes]


def grow_alone(
    rules: Grower,
    train: RankingData,
    validation: RankingData | None,
    seed: int,
    past: Past,
    edges: Edges | None = None,  # None: from the training data
) -> Iterator[Step]:
    """What one grows who holds all rows."""
    check_trainable(train)
    rules.check(train)
    if rules.is_over(list(past.validation)):
        return
    edges = quantile_edges(train, rules.bins) if edges is None else edges
    holder = RowStore(train, edges, rules, seed, validation)
    crowd = Here([holder])
    known = rules.restart(len(past.trees))
    for text in past.trees[:known]:
        holder.add(Trees.read([text]))
    choice = None

    def choose(number: int) -> None:
        nonlocal choice
        choice = rules.choice(number, train, holder.scores, seed)
        crowd.chosen = crowd.chosen if choice is None else [choice]

    for number, (text, quality) in enumerate(grow_forest(crowd, rules, edges, seed, past, choose), start=known):
        if number >= len(past.trees):
            yield Step(text, Trees.read([text]), quality, choice)


def grow_forest(
    crowd: Gathering,
    rules: Grower,
    edges: Edges,
    seed: int,
    past: Past = Past(),  # noqa: B008 (frozen); the crowd has its trees already
    before: Callable[[int], None] = lambda number: None,  # each tree
) -> Iterator[tuple[str, float]]:
    """Trees as they stand in a text model, each with nDCG@10 on the validation queries so far.

    It begins where rows were chosen last, which may be before the end of its past.
    """
    shift = crowd.rows.bit_length()  # bits that the number of rows takes in a histogram
    known = rules.restart(len(past.trees))
    curve = list(past.validation)
    if rules.is_over(curve):
        return
    for number in range(known, rules.trees):
        before(number)
        sapling = _grown(crowd, rules, edges, seed, number, shift)
        if not sapling.parted:
            if number == 0:
                raise NothingToSplit(
                    "no split improves on giving all documents the same score; lower min_data_in_leaf = "
                    f"{rules.min_data_in_leaf} or min_sum_hessian = {rules.min_sum_hessian}, or look whether the "
                    "features tell documents apart"
                )
            if not rules.is_random():
                return
        total, counted = crowd.end(sapling.values() if sapling.parted else np.zeros(1))
        quality = total / PARTS / counted if counted else float("nan")
        if number >= len(past.trees):
            curve.append(quality)
        yield sapling.text() if sapling.parted else STUMP, quality
        if rules.is_over(curve) and number >= len(past.trees):
            return


def _grown(crowd: Gathering, rules: Grower, edges: Edges, seed: int, number: int, shift: int) -> SplitFinder:
    """One tree, begun again where somebody dropped out, or continued with the rest."""
    features = drawn_features(edges.features, rules.feature_share, seed, number)
    for _ in range(MOST_ATTEMPTS):
        try:
            if 0 < crowd.vote < len(features):
                return _elected(crowd, rules, edges, number, shift, features)
            sapling = SplitFinder(rules, edges, features, shift, crowd.begin(number, shift))
            while (cut := sapling.cut()) is not None:
                try:
                    sapling.take(crowd.cut(cut))
                except DroppedOut:
                    if crowd.dropouts == "again":
                        raise
                    sapling.recount([crowd.look(leaf) for leaf in range(len(sapling.leaves))])
            return sapling
        except DroppedOut:
            continue
    raise ValueError(
        f"tree {number + 1} was begun {MOST_ATTEMPTS} times, and each time somebody dropped out; the forest so far "
        "stays, go on when all are there"
    )


def _elected(crowd: Gathering, rules: Grower, edges: Edges, number: int, shift: int, features: Features) -> SplitFinder:
    """One tree whose leaves are split by features for which most have voted."""
    [votes] = crowd.begin_with_votes(number, shift)
    chosen = elected(votes, features, crowd.vote)
    sapling = SplitFinder(rules, edges, chosen, shift, crowd.show([(0, chosen)])[0])
    while (cut := sapling.cut()) is not None:
        if cut.wanted < 0:
            crowd.cut(cut)
            continue
        wishes = sapling.wishes([elected(votes, features, crowd.vote) for votes in crowd.cut_with_votes(cut)])
        sapling.take_some(wishes, crowd.show(wishes))
    return sapling


def _added(parts: Iterator[Packed]) -> Packed:
    total = next(parts)
    for part in parts:
        total += part
    return total

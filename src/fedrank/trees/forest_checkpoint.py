"""The forests of one run, grown in sequence: training can stop after any tree, and continues from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import cast

from fedrank.data.ranking import RankingData
from fedrank.trees.boosters import Booster, BoosterState, Trainer, best_size, usable_validation
from fedrank.trees.forest import Forest, make_forest

Settings = Callable[[Booster, RankingData, RankingData | None, int, int], Booster]


@dataclass
class Grown:
    """An unfinished or finished forest."""

    trees: list[list[str]] = field(default_factory=list)  # [rounds]: one tree each, unless clients grow together
    validation: list[float] = field(default_factory=list)  # [rounds]: nDCG@10
    whole: bool = False  # whether it is finished

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(chain(*self.trees))

    @property
    def best(self) -> tuple[str, ...]:
        """The trees up to the size with the best validation quality."""
        return tuple(chain(*self.trees[: best_size(self.validation)]))


@dataclass
class ForestCheckpoint:
    """A booster that can be stopped and resumed: each call grows, or finishes, the next forest."""

    booster: Booster
    settings: Settings | None = None  # chooses the settings of a forest; None: those of the booster
    turn: Callable[[], None] = lambda: None  # called after every tree: saves `forests`, or raises to end the run
    forests: list[Grown] = field(default_factory=list)  # those of earlier processes, the last one unfinished
    _next: int = 0  # index of the next forest
    # Called before anything of a round leaves clients under noise: the number of clients, and the round, from 1.
    charge: Callable[[int, int], None] = lambda clients, round: None

    def __call__(
        self, train: RankingData, validation: RankingData | None = None, seed: int = 0, threads: int = 1
    ) -> Forest:
        booster, validation = self.booster, usable_validation(validation)
        if self.settings is not None:
            booster = self.settings(booster, train, validation, seed, threads)

        def rounds(past: Grown) -> Iterator[tuple[list[str], float]]:
            behind = BoosterState(past.all, tuple(past.validation))
            for step in booster.grow(train, validation, seed, threads, behind):
                yield [step.tree], step.validation

        return make_forest(self.take_up(rounds).best, train)

    def take_up(self, rounds: Callable[[Grown], Iterator[tuple[Sequence[str], float]]]) -> Grown:
        """Grow the next forest; `rounds` yields the rounds after the existing ones: new trees, and nDCG@10."""
        if self._next == len(self.forests):
            self.forests.append(Grown())
        grown = self.forests[self._next]
        self._next += 1
        if not grown.whole:
            for trees, quality in rounds(grown):
                grown.trees.append(list(trees))
                grown.validation.append(quality)
                self.turn()
            grown.whole = True
        return grown


def resumable(booster: Trainer) -> ForestCheckpoint:
    """The booster of a merger, which a run may have wrapped already."""
    return booster if isinstance(booster, ForestCheckpoint) else ForestCheckpoint(cast(Booster, booster))

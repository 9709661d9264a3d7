"""The forests of one run, one after the other: it can be stopped at any tree, and goes on there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from fedrank.data.ranking import RankingData
from fedrank.trees.boosters import Booster, Past, Step, best_size, usable_validation
from fedrank.trees.forest import Forest, make_forest

Settings = Callable[[Booster, RankingData, RankingData | None, int, int], Booster]


@dataclass
class Grown:
    """A forest so far."""

    trees: list[list[str]] = field(default_factory=list)  # [rounds]: one tree each, unless clients grow together
    validation: list[float] = field(default_factory=list)  # [rounds]: nDCG@10
    whole: bool = False  # nothing is left to grow
    edges: list[list[float]] | None = None  # of bins, where noise was spent to estimate them

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(chain(*self.trees))

    @property
    def best(self) -> tuple[str, ...]:
        """Those up to the size that the validation queries choose."""
        return tuple(chain(*self.trees[: best_size(self.validation)]))


@dataclass
class ForestCheckpoint:
    """A booster that can be stopped: the first call grows the first forest, or what is left of it, and so on."""

    booster: Booster
    settings: Settings | None = None  # finds those with which a forest is grown; None: as the booster has them
    turn: Callable[[], None] = lambda: None  # after every tree: raises what ends the run, keeps `forests` somewhere
    forests: list[Grown] = field(default_factory=list)  # those of earlier processes, the last of them unfinished
    _next: int = 0  # forest to be grown
    # Before anything of a round leaves clients under noise: how many there are, and the round, from 1.
    charge: Callable[[int, int], None] = lambda clients, round: None

    @property
    def trees(self) -> int:
        return self.booster.trees

    def grow(
        self,
        train: RankingData,
        validation: RankingData | None,
        seed: int,
        threads: int = 1,
        past: Past = Past(),  # noqa: B008 (frozen)
    ) -> Iterator[Step]:
        """With the settings that it was given."""
        return self.booster.grow(train, validation, seed, threads, past)

    def __call__(
        self, train: RankingData, validation: RankingData | None = None, seed: int = 0, threads: int = 1
    ) -> Forest:
        booster, validation = self.booster, usable_validation(validation)
        if self.settings is not None:
            booster = self.settings(booster, train, validation, seed, threads)

        def rounds(past: Grown) -> Iterator[tuple[list[str], float]]:
            behind = Past(past.all, tuple(past.validation))
            for step in booster.grow(train, validation, seed, threads, behind):
                yield [step.tree], step.validation

        return make_forest(self.take_up(rounds).best, train)

    def take_up(self, rounds: Callable[[Grown], Iterator[tuple[Sequence[str], float]]]) -> Grown:
        """Grow the next forest; `rounds` gives those after the ones there are: new trees, and nDCG@10 with them."""
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

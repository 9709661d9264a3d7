"""Partitions: which queries each client searches with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData


@dataclass(frozen=True)
class Split:
    """Pools of queries, and the pool each client draws from."""

    pools: tuple[NDArray[np.int32], ...]  # each: indices of queries
    pool: NDArray[np.int32]  # [clients]


class Partition(Protocol):
    """A rule that gives every client its queries."""

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split: ...


@dataclass(frozen=True)
class Iid:
    """Every client draws from all queries (the published setting)."""

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        return Split((np.arange(data.queries, dtype=np.int32),), np.zeros(count, dtype=np.int32))


@dataclass(frozen=True)
class Own:
    """Queries are dealt out at random, and every client draws from its own alone."""

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        if count > data.queries:
            raise ValueError(
                f"{count} clients cannot each own one of {data.queries} queries; "
                f'use at most {data.queries} clients, or partition = {{ name = "iid" }}'
            )
        dealt = rng.permutation(data.queries).astype(np.int32)
        return Split(tuple(np.sort(dealt[c::count]) for c in range(count)), np.arange(count, dtype=np.int32))


PARTITIONS: dict[str, type[Partition]] = {"iid": Iid, "own": Own}

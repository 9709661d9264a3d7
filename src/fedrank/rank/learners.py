"""Learners: what clients do in a round, all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedrank.rank.evolution import Evolution
from fedrank.rank.rankers import Linear
from fedrank.seeds import Chance
from fedrank.types import Arrivals, Clients, Learner, Memory, Ranker, Updates, Weights

SMALLEST_SHARE = 500  # interactions; a thread with less to do costs more than it saves


@dataclass(frozen=True)
class Pdgd:
    """Learns from clicks by comparing clicked with unclicked results (PDGD; Oosterhuis and de Rijke, CIKM 2018).

    With several clients and the mean this is FPDGD (Wang et al., ICTIR 2021); with one client it is PDGD itself.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.1  # η; constant, gradients are not normalised
    batch: bool = False  # one step with the summed gradients of all interactions, instead of one step after each

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def __call__(
        self, start: Weights, memory: Memory, clients: Clients, chance: Chance, threads: int = 1
    ) -> tuple[Arrivals, Memory]:
        from fedrank.kernels.pdgd import pdgd_clients

        data, starts = clients.data, _as_sent(start)
        key = chance.key("learn")

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            pdgd_clients(
                starts, key, self.rate, self.batch, self.ranker.hidden, data.features, data.offsets, data.longest,
                clients.ids, clients.pool, clients.view, clients.user, clients.interactions,
                clients.queries, clients.pools, clients.grades, clients.ideal,
                clients.click, clients.stop, clients.attention,
                first, last, updates, online,
            )  # fmt: skip

        return _all_clients(some, start, clients, chance.round, threads), memory


@dataclass(frozen=True)
class LambdaRank:
    """Learns from the true grades, which no server ever sees: the skyline for rankers that learn from clicks.

    LambdaRank (Burges, 2010) on nDCG@10; every interaction is a query with all its grades, and no clicks are drawn.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.01  # smaller than PDGD's: every query pulls on all its documents

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def __call__(
        self, start: Weights, memory: Memory, clients: Clients, chance: Chance, threads: int = 1
    ) -> tuple[Arrivals, Memory]:
        from fedrank.kernels.lambdarank import lambdarank_clients

        data, starts = clients.data, _as_sent(start)
        key = chance.key("learn")

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            lambdarank_clients(
                starts, key, self.rate, self.ranker.hidden, data.features, data.offsets, data.longest,
                clients.ids, clients.pool, clients.view, clients.interactions,
                clients.queries, clients.pools, clients.grades, clients.ideal,
                first, last, updates, online,
            )  # fmt: skip

        return _all_clients(some, start, clients, chance.round, threads), memory


LEARNERS: dict[str, type[Learner]] = {"pdgd": Pdgd, "evolution": Evolution, "lambdarank": LambdaRank}


def _check_rate(rate: float) -> None:
    if not 0 < rate < np.inf:
        raise ValueError(f"rate = {rate} learns nothing; use a positive number such as 0.1")


def _as_sent(start: Weights) -> NDArray[np.float32]:
    """[1 or clients, parameters]: the model as clients receive it, four bytes a parameter."""
    return np.ascontiguousarray(np.atleast_2d(start), dtype=np.float32)


def _all_clients(
    some: Callable[[int, int, Updates, NDArray[np.float64]], None],
    start: Weights,
    clients: Clients,
    round: int,
    threads: int,
) -> Arrivals:
    """Let a compiled loop fill its rows for ranges of clients, in threads if there is enough to do.

    Rows do not depend on each other, so neither does the result on how they are shared out.
    """
    count = len(clients)
    updates = np.empty((count, start.shape[-1]), dtype=np.float32)
    online = np.empty(count)
    sizes = clients.interactions
    shares = 1
    if threads > 1:
        shares = int(max(1, min(threads, count, sizes.sum() // SMALLEST_SHARE)))
    if shares == 1:
        some(0, count, updates, online)
    else:
        cuts = np.searchsorted(np.cumsum(sizes), np.linspace(0, sizes.sum(), shares + 1)[1:-1])
        edges = [0, *cuts.tolist(), count]
        with ThreadPoolExecutor(shares) as pool:
            list(pool.map(lambda i: some(edges[i], edges[i + 1], updates, online), range(shares)))
    return Arrivals(updates=updates, sizes=sizes, ids=clients.ids, weights=start, online=online, round=round)

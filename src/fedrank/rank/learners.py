"""Learners: what clients do in a round, all of them at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.rank.evolution import Evolution
from fedrank.rank.rankers import Linear
from fedrank.seeds import Chance, key_for
from fedrank.types import Arrivals, Clients, Learner, Memory, Ranker, Updates, Weights

SMALLEST_SHARE = 500  # interactions; a thread with less to do costs more than it saves
_NOTHING = np.empty((0, 0))


@dataclass(frozen=True)
class Pdgd:
    """Learns from clicks by comparing clicked with unclicked results (PDGD; Oosterhuis and de Rijke, CIKM 2018).

    With several clients and the mean this is FPDGD (Wang et al., ICTIR 2021); with one client it is PDGD itself. The
    settings `prox`, `personal` and `control` are answers to clients that differ: FedProx (Li et al., MLSys 2020),
    FedPer (Arivazhagan et al., 2019) and SCAFFOLD, option II (Karimireddy et al., ICML 2020). The two clips bound what
    noise must hide.

    With lists = "logged" it learns from what somebody was shown and clicked in a search log: all of a query's documents
    in their order. Pairs are weighed as if the model had shown that list. Another ranker did, so that what makes PDGD
    unbiased by positions does not hold.

    With FedPer the output weights of the global model are the mean of the clients' own, by interactions. No client
    sends them: that model exists only in simulation, to be evaluated next to the personal ones.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.1  # η; constant, gradients are not normalised
    batch: bool = False  # one step with the summed gradients of all interactions, instead of one step after each
    lists: Literal["drawn", "logged"] = "drawn"  # what is shown: ten that the model draws, or the list of a search log
    prox: float = 0.0  # FedProx: μ, how strongly every step pulls back to the global model; 0: not at all
    personal: Literal["none", "output"] = "none"  # FedPer: "output" keeps the output weights with the client
    control: bool = False  # SCAFFOLD: correct every step by how this client's gradients differ from everybody's
    clip_weights: float = 0.0  # largest L2 norm of the local model, kept after every step; 0: any (for fpdgd-paper)
    clip_gradients: float = 0.0  # largest L2 norm of what one interaction adds to the gradient; 0: any; needs batch

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)
        if self.lists not in ("drawn", "logged"):
            raise ValueError(f'no lists {self.lists!r}; use "drawn" or "logged"')
        if not 0 <= self.prox < np.inf:
            raise ValueError(f"prox = {self.prox} would not pull back to the global model; use 0 or a positive number")
        if self.rate * self.prox >= 2:
            raise ValueError(
                f"prox = {self.prox} with rate = {self.rate} overshoots the global model further at every step; "
                f"use a prox of at most 1 / rate = {1 / self.rate:g}"
            )
        if self.prox and self.batch:
            raise ValueError(
                f"prox = {self.prox} does nothing with batch = true, whose only step begins at the global model; "
                "use prox = 0 or batch = false"
            )
        if self.personal not in ("none", "output"):
            raise ValueError(f'no personal {self.personal!r}; use "none" or "output"')
        if self.personal == "output" and self.ranker.hidden == 0:
            raise ValueError(
                'personal = "output" needs a hidden layer to share, and a linear ranker has none; '
                'use ranker = { name = "mlp" }, or personal = "none"'
            )
        if self.control and (self.prox or self.personal != "none"):
            raise ValueError("control = true cannot tell drift from prox or personal weights; choose one of the three")
        self._check_clips()

    def __call__(
        self,
        start: Weights,
        memory: Memory,
        clients: Clients,
        chance: Chance,
        threads: int = 1,
        common: NDArray[np.float64] | None = None,
    ) -> tuple[Arrivals, Memory]:
        """`common` is what the server sends along (see there); without it, that of the clients given here."""
        from fedrank.kernels.pdgd import pdgd_clients

        data, starts = clients.data, _as_sent(start)
        if self.lists == "logged" and not len(data.who):
            raise ValueError(
                f"{data.name or 'this data set'} is no search log, so that nobody was shown its lists; use data.log, "
                'or lists = "drawn"'
            )
        key = chance.key("learn")
        if memory is None:
            memory = self.first_memory(start, len(clients))
        personal = drifts = _NOTHING
        if memory is not None and self.personal != "none":
            personal = memory.copy()
        elif memory is not None and self.control:
            drifts = (memory.mean(axis=0) if common is None else common) - memory

        def some(first: int, last: int, updates: Updates, online: NDArray[np.float64]) -> None:
            pdgd_clients(
                starts, key, self.rate, self.batch, self.lists == "logged", float(self.prox),
                float(self.clip_weights), float(self.clip_gradients), drifts,
                self.ranker.hidden, data.features, data.offsets, data.longest,
                clients.ids, clients.pool, clients.view, clients.user, clients.interactions,
                clients.queries, clients.pools, clients.at, clients.grades, clients.ideal,
                clients.click, clients.stop, clients.attention,
                first, last, updates, online, personal,
            )  # fmt: skip

        arrived = _all_clients(some, start, clients, chance.round, threads)
        if self.personal != "none":
            return replace(arrived, message_bytes=self.bytes_down(start.shape[-1])), personal
        if memory is not None and self.control:
            return arrived, self._controls(memory, drifts, arrived)
        return arrived, memory

    def first_memory(self, start: Weights, count: int) -> Memory:
        """[clients, m]: what clients keep before round 1. FedPer: output weights; SCAFFOLD: controls, all 0."""
        if self.personal != "none":
            return np.array(np.broadcast_to(start[..., self._shared(start) :], (count, abs(self.ranker.hidden))))
        return np.zeros((count, start.shape[-1])) if self.control else None

    def common(self, memory: Memory) -> NDArray[np.float64] | None:
        """[parameters]: what the server sends along with the model: SCAFFOLD's mean control of *all* clients.

        The server needs no control of anyone to keep it: a client's moves by update / (steps x rate) - common.
        """
        return memory.mean(axis=0) if self.control and memory is not None else None

    def averaged(self, weights: Weights, memory: Memory, sizes: NDArray[np.int64]) -> Weights:
        """[parameters]: the global model, with the mean of personal parts where there are any."""
        if self.personal == "none" or memory is None or sizes.sum() == 0:
            return weights
        return np.concatenate(
            [weights[: self._shared(weights)], kernels.sums.weighted_sum(sizes, memory) / sizes.sum()]
        )

    def personal_models(self, weights: Weights, memory: Memory, count: int) -> Weights:
        """[clients, parameters]: what every client ranks with."""
        models = np.array(np.broadcast_to(weights, (count, weights.shape[-1])))
        if self.personal != "none" and memory is not None:
            models[:, self._shared(weights) :] = memory
        return models

    def bytes_down(self, parameters: int) -> int:
        """What a client receives each round: four bytes a parameter that is shared, and as many for the control."""
        if self.personal != "none":
            return 4 * (parameters - abs(self.ranker.hidden))
        return 8 * parameters if self.control else 4 * parameters

    def _check_clips(self) -> None:
        for name in ("clip_weights", "clip_gradients"):
            value = getattr(self, name)
            if not 0 <= value < np.inf:
                raise ValueError(f"{name} = {value} is no length; use a positive number, or 0 to clip nothing")
            if value and self.control:
                raise ValueError(
                    f"{name} = {value} bends steps that control = true takes for plain ones; "
                    f"use {name} = 0 or control = false"
                )
        if self.clip_gradients and not self.batch:
            raise ValueError(
                f"clip_gradients = {self.clip_gradients} bounds no interaction with batch = false, where each also "
                "moves all later steps of its client; use batch = true, or clip_gradients = 0"
            )
        if self.clip_weights and self.personal != "none":
            raise ValueError(
                f'clip_weights = {self.clip_weights} with personal = "{self.personal}" would let weights that stay '
                'with the client shorten those it sends; use clip_weights = 0 or personal = "none"'
            )

    def _shared(self, weights: Weights) -> int:
        """Parameters before the output weights."""
        return int(weights.shape[-1]) - abs(self.ranker.hidden)

    def _controls(
        self, before: NDArray[np.float64], drifts: NDArray[np.float64], arrived: Arrivals
    ) -> NDArray[np.float64]:
        """Option II: a client's control becomes its mean gradient of this round. Who took no step keeps the old one."""
        steps = arrived.sizes[:, None]
        mean = arrived.updates / (np.maximum(steps, 1) * self.rate) - drifts
        return np.where(steps > 0, mean, before)


@dataclass(frozen=True)
class LambdaRank:
    """Learns from the true grades, which no server ever sees: the skyline for rankers that learn from clicks.

    LambdaRank (Burges, 2010) on nDCG@10; every interaction is a query with all its grades: no list is shown,
    no click is drawn, and there is no online quality.
    """

    ranker: Ranker = field(default_factory=Linear)
    rate: float = 0.01  # smaller than PDGD's: every query pulls on all its documents

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_start(self.ranker)

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
                clients.queries, clients.pools, clients.at, clients.grades, clients.ideal,
                first, last, updates, online,
            )  # fmt: skip

        return _all_clients(some, start, clients, chance.round, threads), memory


LEARNERS: dict[str, type[Learner]] = {"pdgd": Pdgd, "evolution": Evolution, "lambdarank": LambdaRank}


def fine_tune(
    learner: Learner, weights: Weights, clients: Clients, seed: int, interactions: int, threads: int = 1
) -> Weights:
    """[clients, parameters]: models after every client went on alone, from the global model or from its own.

    The baseline that every method against differing clients must beat. Steps are plain ones, of all parameters, on the
    client's own queries; their chance is none that a round ever used.
    """
    if interactions < 1:
        raise ValueError(f"interactions = {interactions} tunes nothing; use 1 or more")
    longer = replace(clients, interactions=np.full_like(clients.interactions, interactions))
    return weights + _plainly(learner, weights, longer, seed, "fine-tune", threads)


def warm_up(learner: Learner, weights: Weights, clients: Clients, seed: int, interactions: int) -> Weights:
    """The model that one client, with the shared queries alone, makes of `weights` before the federation begins.

    It clicks as the first client does.
    """
    if not len(clients.shared):
        raise ValueError('there are no shared queries to warm up on; use partition = { name = "shared", ... }')
    one = replace(
        clients.rows(slice(0, 1)),
        pool=np.zeros(1, dtype=np.int32),
        interactions=np.array([interactions], dtype=np.int64),
        queries=clients.shared,
        pools=np.array([0, len(clients.shared)], dtype=np.int64),
    )
    moved: Weights = weights + _plainly(learner, weights, one, seed, "warm-up", 1)[0]
    return moved


def _plainly(learner: Learner, weights: Weights, clients: Clients, seed: int, purpose: str, threads: int) -> Updates:
    """Updates of plain steps outside any round; their chance is none that a round ever used."""
    if isinstance(learner, Evolution):
        raise ValueError("evolution estimates a gradient from many clients; one alone cannot go on with it; use pdgd")
    if isinstance(learner, Pdgd):
        learner = replace(learner, prox=0.0, personal="none", control=False, clip_weights=0.0, clip_gradients=0.0)
    arrived, _ = learner(weights, None, clients, Chance(int(key_for(seed, purpose)), 0), threads)
    return arrived.updates


def _check_start(ranker: Ranker) -> None:
    if getattr(ranker, "start", "") == "zero":
        raise ValueError('a ranker with start = "zero" has no gradient and never learns here; use start = "normal"')


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

"""Array names with their shapes, the two records that flow through a round, and the protocols of its parts.

Protocols describe; nobody inherits from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedrank.data.ranking import RankingData
    from fedrank.seeds import Chance

Features = NDArray[np.float32]  # [documents, features]
Grades = NDArray[np.int8]  # [documents], relevance from 0 (not relevant) upwards
Offsets = NDArray[np.int64]  # [queries + 1]: query q holds documents offsets[q] .. offsets[q + 1] - 1
Scores = NDArray[np.float32]  # [documents] or [models, documents]
Weights = NDArray[np.float64]  # [parameters], or [clients, parameters] where every client has its own
Updates = NDArray[np.float32]  # [clients, parameters], as they travel: four bytes a parameter
Change = NDArray[np.float64]  # [parameters]: what the server adds
Memory = NDArray[np.float64] | None  # [clients, m]: what clients keep between rounds


@dataclass(frozen=True)
class Clients:
    """Everybody who takes part, as columns: row c is client c. Tables that clients share are stored once."""

    data: RankingData  # what they search; a partition may have rearranged it
    ids: NDArray[np.int64]  # [clients]: who; chance is keyed by it, so that it survives selections
    pool: NDArray[np.int32]  # [clients]: which pool of queries it searches with
    view: NDArray[np.int32]  # [clients]: which row of `grades` it sees
    judged: NDArray[np.int32]  # [clients]: by which row its own quality is judged; mostly the same
    user: NDArray[np.int32]  # [clients]: how it clicks (a row of `click`); -1 draws a row at every interaction
    interactions: NDArray[np.int64]  # [clients]: searches a round
    malicious: NDArray[np.bool_]  # [clients]

    queries: NDArray[np.int32]  # all pools, one after the other
    pools: NDArray[np.int64]  # [pools + 1]: pool p is queries[pools[p] : pools[p + 1]]
    grades: NDArray[np.int8]  # [views, documents]
    ideal: NDArray[np.float64]  # [views, queries]: DCG@10 of the best list, 0 without a relevant document
    click: NDArray[np.float64]  # [users, grades]: P(click | read, grade)
    stop: NDArray[np.float64]  # [users, grades]: P(leave | clicked, grade)
    attention: NDArray[np.float64]  # [users, 10]: P(read | rank)
    user_names: tuple[str, ...]  # [users]
    shared: NDArray[np.int32]  # queries that everybody holds because they were shared; mostly none
    # [clients] or empty: the place in its pool from which a client takes its queries in order; empty: it draws them.
    at: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, which: NDArray[Any] | slice) -> Clients:
        """Some of the clients; shared tables stay shared."""
        return replace(
            self,
            ids=self.ids[which],
            pool=self.pool[which],
            view=self.view[which],
            judged=self.judged[which],
            user=self.user[which],
            interactions=self.interactions[which],
            malicious=self.malicious[which],
            at=self.at[which] if len(self.at) else self.at,
        )


@dataclass(frozen=True)
class Arrivals:
    """What reached the server in one round."""

    updates: Updates  # relative to what each client started from
    sizes: NDArray[np.int64]  # [n]: interactions behind each update
    ids: NDArray[np.int64]  # [n]
    weights: Weights  # the global model before this round, or one row per client
    online: NDArray[np.float64]  # [n]: mean nDCG@10 of the lists that the client was shown (known only in simulation)
    round: int = 0
    reward: NDArray[np.float64] | None = None  # [n]: mean reward, where a learner has one (known only in simulation)
    message_bytes: int | None = None  # what a client sends; None: four bytes a parameter
    root: NDArray[np.float32] | None = None  # [parameters]: the server's own, from trusted queries, where a rule asks


class Ranker(Protocol):
    """A function from features to a score, with all its parameters in one flat vector."""

    @property
    def hidden(self) -> int:
        """How kernels read the vector: 0 linear, n hidden sigmoid units, -n hidden rectified units."""

    def size(self, features: int) -> int: ...
    def first(self, features: int, rng: np.random.Generator) -> Weights: ...
    def score(self, weights: Weights, features: Features) -> Scores:
        """[documents] for one model, [models, documents] for several."""


class Learner(Protocol):
    """What clients do in a round, all of them at once."""

    @property
    def ranker(self) -> Ranker: ...

    def __call__(
        self, start: Weights, memory: Memory, clients: Clients, chance: Chance, threads: int = 1
    ) -> tuple[Arrivals, Memory]: ...


class Attack(Protocol):
    """What malicious clients send instead of their honest updates."""

    def __call__(self, arrived: Arrivals, malicious: NDArray[np.bool_], rng: np.random.Generator) -> Arrivals: ...


class Source(Protocol):
    """Where noise that protects people comes from; `fedrank.protect.noise.SecureSource`, except in tests."""

    def words(self, count: int) -> NDArray[np.uint64]: ...
    def bernoulli(self, probability: float, count: int) -> NDArray[np.bool_]: ...
    def seed(self) -> int: ...


class Mechanism(Protocol):
    """What is done to updates before they leave, and to their sum before anybody sees it.

    `cohort` is how many clients a round has, or is expected to have: a public number.
    """

    @property
    def adds_up(self) -> bool:
        """Whether it takes the place of the aggregator: nobody, or only a trusted server, sees single updates."""

    @property
    def hides_cohort(self) -> bool:
        """Whether who takes part is drawn from the secure source, each client by itself, and stays secret."""

    @property
    def sees(self) -> str:
        """Who sees what, as a sentence."""

    def source(self) -> Source:
        """The operating system's secure source."""

    def protect(self, arrived: Arrivals, cohort: float, source: Source) -> Arrivals:
        """What leaves each client; rows do not depend on each other."""


class Aggregator(Protocol):
    """How the server combines updates into one change."""

    def __call__(self, arrived: Arrivals) -> Change: ...


class StreamingAggregator(Aggregator, Protocol):
    """A rule whose parts add up, so that a million clients never lie in memory together."""

    def part(self, arrived: Arrivals) -> NDArray[Any]: ...
    def whole(self, total: NDArray[Any]) -> Change: ...


class AddingMechanism(Mechanism, Protocol):
    """A mechanism that `adds_up`."""

    def rule(self, cohort: float, source: Source) -> Aggregator:
        """How what left the clients is added up."""


class ServerStep(Protocol):
    """How the server moves its model by a change; remembers what it needs in an array."""

    def first(self, size: int) -> NDArray[np.float64]: ...
    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]: ...

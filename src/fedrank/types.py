"""Array types with their shapes, the records of a round, and the protocols of its parts.

Protocols need no inheritance. A method declares what it can do, or needs, as `traits`; from these,
`fedrank.federated.compatibility` derives which methods can be combined, so user-defined methods are treated like
built-in ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedrank.display import DisplayMixin, listed

if TYPE_CHECKING:
    from fedrank.data.ranking import RankingData
    from fedrank.seeds import Chance

Features = NDArray[np.float32]  # [documents, features]
Grades = NDArray[np.int8]  # [documents], relevance labels from 0 (not relevant) upwards
Offsets = NDArray[np.int64]  # [queries + 1]: query q has documents offsets[q] .. offsets[q + 1] - 1
Scores = NDArray[np.float32]  # [documents] or [models, documents]
Weights = NDArray[np.float64]  # [parameters], or [clients, parameters] for personalised models
Updates = NDArray[np.float32]  # [clients, parameters], as they are sent: four bytes per parameter
Change = NDArray[np.float64]  # [parameters]: the change of the model
Memory = NDArray[np.float64] | None  # [clients, m]: memory of clients between rounds
Arrays = dict[str, NDArray[Any]]  # state of a rule: only arrays, since they are checkpointed

Trait = Literal[
    "sum",  # aggregator: a sum over clients, which does not need single updates; defines `part` and `whole`
    "mean",  # aggregator: a weighted mean, which is also a sum; defines `client_weights`
    "apart",  # aggregator: no aggregation, every client has its own model
    "trusted queries",  # aggregator: the server also learns from trusted queries
    "remembers",  # aggregator: has state across rounds
    "robust",  # aggregator: robust against malicious clients
    "steps",  # learner: takes local steps, which a local method can correct
    "rewards",  # learner: sends rewards instead of gradients, and needs many clients
    "grades",  # learner: needs true relevance labels, and shows no lists
    "logged",  # learner: learns from logged lists and clicks, and shows no lists
    "shared part",  # local method: a part of the model is personal
    "common",  # local method: the server sends additional values with the model
    "alike",  # local method: all clients have equal weight
    "plain messages",  # local method: reads gradients from messages, which must be unchanged
    "whole model",  # attack: uses the whole model, including personal parts
    "adds up",  # mechanism: protects only the sum
    "whole round",  # mechanism: needs all clients of a round together
    "adds nothing",  # mechanism: only accounts for a learner's own protection, and does not change messages
    "people",  # mechanism: protects each person of an organisation, which sends a sum
    "hides cohort",  # mechanism: participation is secret and drawn independently from the secure source
    "dealt",  # mechanism: one Gaussian release, whose price holds if each client participates once
    "history",  # unlearner: needs the recorded updates
    "asks nobody",  # unlearner: uses only recorded data  # prose: ok
    "exact",  # unlearner: gives the model of training without the leaving clients
    "certified",  # unlearner: gives a certificate, also for data that were removed before
]


def has_trait(method: Any, trait: Trait) -> bool:
    """Whether a method declares a trait; a mean is also a sum."""
    traits = getattr(method, "traits", ())
    return trait in traits or (trait == "sum" and "mean" in traits)


def fast_path(method: Any, name: str) -> Any:
    """Return an optional function of a method that equals calling it, such as `compiled_step`; None without one.

    A subclass that defines `__call__` does not inherit it, since the function would do what the parent does.
    """
    for kind in type(method).__mro__:
        if name in vars(kind):
            return getattr(method, name)
        if "__call__" in vars(kind):
            return None
    return None


@dataclass(frozen=True, kw_only=True, repr=False)
class ClientData(DisplayMixin):
    """The data of clients as columns: row c is client c. Shared tables are stored once."""

    data: RankingData  # the data that they search; a partition may have rearranged it
    ids: NDArray[np.int64]  # [clients]: identity; random keys use it, so it does not change in selections
    pool: NDArray[np.int32]  # [clients]: index of its pool of queries
    interactions: NDArray[np.int64]  # [clients]: searches per round
    queries: NDArray[np.int32]  # all pools, concatenated
    pools: NDArray[np.int64]  # [pools + 1]: pool p is queries[pools[p] : pools[p + 1]]
    # [clients] or empty: the index in its pool from which a client takes its queries in order; empty: random queries.
    at: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    _columns: ClassVar[tuple[str, ...]] = ("ids", "pool", "interactions", "at")

    def __len__(self) -> int:
        return len(self.ids)

    def _display(self) -> tuple[str, dict[str, str]]:
        sizes = np.diff(self.pools)[self.pool]
        return f"of {self.data.name}" if self.data.name else "", {
            "clients": f"{len(self):,}",
            "queries each": _span(sizes),
            "interactions per round": _span(self.interactions),
        }

    def rows(self, which: NDArray[Any] | slice) -> Self:
        """Return some of the clients; shared tables stay shared."""
        changed = {name: getattr(self, name) for name in self._columns}
        return replace(self, **{name: column[which] if len(column) else column for name, column in changed.items()})


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulatedClients(ClientData):
    """Simulated clients with queries, relevance labels and click models, one per row.

    `make_clients` creates them, and `rows` selects some of them.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> clients = fr.make_clients(data, count=4, click_model=["navigational", "informational"], malicious=1)
    >>> [clients.click_model_names[row] for row in clients.click_model]
    ['navigational', 'informational', 'navigational', 'informational']
    >>> clients.rows(~clients.malicious).ids.tolist()
    [1, 2, 3]
    """

    view: NDArray[np.int32]  # [clients]: index of its view of the labels
    judged: NDArray[np.int32]  # [clients]: index of the view for evaluating its quality; mostly the same
    click_model: NDArray[np.int32]  # [clients]: its click model (a row of `click`); -1 draws a row at each interaction
    malicious: NDArray[np.bool_]  # [clients]

    grades: NDArray[np.int8]  # [views, documents]: relevance labels
    ideal: NDArray[np.float64]  # [views, queries]: DCG@10 of the best list, 0 without a relevant document
    click: NDArray[np.float64]  # [users, labels]: P(click | examined, label)
    stop: NDArray[np.float64]  # [users, labels]: P(leave | clicked, label)
    attention: NDArray[np.float64]  # [users, 10]: P(examined | rank)
    click_model_names: tuple[str, ...]  # [users]
    shared: NDArray[np.int32]  # queries shared by all clients; mostly none
    # [users] or empty: user-defined click models, each a function of labels and draws; None for tables.
    own_click_models: tuple[Callable[..., Any] | None, ...] = ()
    people: SimulatedClients | None = None  # if clients are organisations: one row per person
    client: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, dtype=np.int64)
    )  # [people]: their organisation

    _columns: ClassVar[tuple[str, ...]] = (*ClientData._columns, "view", "judged", "click_model", "malicious", "client")

    def _display(self) -> tuple[str, dict[str, str]]:
        name, facts = super()._display()
        return name, facts | {
            "users": listed(dict.fromkeys(self.click_model_names)),
            "malicious": f"{int(self.malicious.sum()):,}",
            "people": "" if self.people is None else f"{len(self.people):,}",
        }

    def rows(self, which: NDArray[Any] | slice) -> Self:
        some = super().rows(which)
        if self.people is None:
            return some
        return replace(some, people=self.people.rows(np.isin(self.people.client, some.ids)))


def _span(values: NDArray[Any]) -> str:
    if not len(values):
        return ""
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


@dataclass(frozen=True)
class Messages:
    """What the server received in one round, one row per client.

    Aggregators and attacks are functions of messages; `simulate` passes those of each round to `watch`. If a mechanism
    protects the persons of an organisation, the organisation has one row per person, all with its id, until the
    mechanism adds them up.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> updates = np.array([[1, 2], [3, 2], [900, -900]], dtype=np.float32)
    >>> messages = fr.Messages(updates, sizes=np.array([5, 5, 5]), ids=np.arange(3), weights=np.zeros(2))
    >>> fr.aggregators.Mean()(messages).round(1).tolist()
    [301.3, -298.7]
    >>> fr.aggregators.Median()(messages).tolist()
    [3.0, 2.0]
    """

    updates: NDArray[Any]  # [n, parameters], relative to the starting model; float32, or integer steps of a sum
    sizes: NDArray[np.int64]  # [n]: number of interactions of each update
    ids: NDArray[np.int64]  # [n]
    weights: Weights  # the model before this round, or one row per client
    round: int = 0
    bytes_each: int | None = None  # bytes per client; None: four bytes per parameter
    root: NDArray[np.float32] | None = None  # [parameters]: the server's update from trusted queries, if needed

    def rows(self, which: NDArray[Any] | slice) -> Messages:
        return replace(self, updates=self.updates[which], sizes=self.sizes[which], ids=self.ids[which])


class Observed(NamedTuple):
    """Measurements that only a simulation can make."""

    online: NDArray[np.float64]  # [n]: mean nDCG@10 of the lists shown
    reward: NDArray[np.float64] | None = None  # [n]: mean reward, if the learner has rewards


class LocalCorrection(NamedTuple):
    """Corrections of local steps in addition to gradients; see `fedrank.federated.local`."""

    pull: float = 0.0  # at each step, moves back by rate x pull of the distance to the start
    drifts: NDArray[np.float64] | None = None  # [clients, parameters]: added to every gradient
    personal: NDArray[np.float64] | None = None  # [clients, units]: personal last parameters of the model


NO_CORRECTION = LocalCorrection()


class Learned(NamedTuple):
    """The result of local learning, before anything is sent."""

    updates: Updates  # [n, parameters]
    observed: Observed
    personal: NDArray[np.float64] | None = None  # [n, units]: the personal part of the model, if any
    sent: NDArray[Any] | None = None  # [n]: what is sent instead of updates, if they can be derived from less
    sizes: NDArray[np.int64] | None = None  # [n]: interactions of updates, if they differ from the client's


class Clip(NamedTuple):
    """How updates are clipped, weighted and rounded to a grid; see `fedrank.privacy.clip`."""

    length: float
    norm: int
    step: float
    weights: NDArray[np.float64]  # [n]


class Impression(NamedTuple):
    """One result list that was shown to a user, with the clicks on it.

    `features` and `scores` describe all candidates of the query. `shown` has the rows of the shown candidates, from the
    top of the list. `clicked` is whether each of them was clicked. Learners read impressions when clicks are not
    simulated.

    >>> import numpy as np
    >>> import fedrank as fr
    >>> impression = fr.Impression(
    ...     features=np.eye(4, dtype=np.float32),
    ...     scores=np.array([0.1, 0.9, 0.4, 0.2], dtype=np.float32),
    ...     shown=np.array([1, 2, 3]),
    ...     clicked=np.array([False, True, False]),
    ... )
    >>> impression.shown[impression.clicked].tolist()  # the candidate in the second position
    [2]
    """

    features: Features  # [candidates, features]: of all candidate documents
    scores: Scores  # [candidates]: from which the list was sampled
    shown: NDArray[np.int64]  # [positions]: candidates, from the top
    clicked: NDArray[np.bool_]  # [positions]


class Judged(NamedTuple):
    """A query's documents and their true relevance labels."""

    features: Features
    grades: Grades


class Logged(NamedTuple):
    """A logged list, and the clicks on each document, corrected or not."""

    features: Features
    relevance: NDArray[np.float32]  # [positions]; NaN: unknown
    drawn: tuple[NDArray[np.float32], float, float] | None = None  # sampling scores, temperature, keep


class Impressions(Protocol):
    """The source of a client's lists and clicks: simulated users, a log, or a live page.

    It is called with the current weights, since a simulation draws list k + 1 after step k.
    """

    def __len__(self) -> int:
        """The number of impressions in this round."""

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        """Return list number `number` of this round, sampled around the model's order."""

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        """Return list number `number` in the model's order."""

    def judged(self, number: int) -> Judged:
        """Return the query with its relevance labels, if known."""

    def logged(self, number: int) -> Logged:
        """Return the list of a search log, if there is one."""


class Ranker(Protocol):
    """A function from features to a score, with all its parameters in one flat vector."""

    @property
    def hidden(self) -> int:
        """The layout of the vector for kernels: 0 linear, n hidden sigmoid units, -n hidden rectified units."""

    def size(self, features: int) -> int: ...
    def first(self, features: int, rng: np.random.Generator) -> Weights: ...
    def score(self, weights: Weights, features: Features) -> Scores:
        """Return [documents] for one model, [models, documents] for several."""


class OwnChance(NamedTuple):
    """The randomness of one client."""

    chance: Chance  # of this round
    id: int
    source: Source | None = None  # source of randomness for privacy; None: simulated, from `chance`


class Learner(Protocol):
    """How clients learn in a round from result lists."""

    @property
    def ranker(self) -> Ranker: ...

    def __call__(
        self,
        start: Weights,
        clients: SimulatedClients,
        chance: Chance,
        correction: LocalCorrection = NO_CORRECTION,
        threads: int = 1,
    ) -> Learned:
        """Train all simulated clients; `start` is one model, or one per client."""

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        """Train one client from its impressions; `own` is the randomness of the learner."""


class LocalStep(Protocol):
    """A correction of the local steps of heterogeneous clients."""

    def first(self, ranker: Ranker, start: Weights, count: int) -> Memory:
        """Return the memory of clients before round 1, [clients, m]; None: no memory."""

    def correction(self, memory: Memory, common: NDArray[np.float32] | None) -> LocalCorrection:
        """Return the correction of these clients' steps; `common` was sent with the model."""

    def remember(
        self, memory: Memory, correction: LocalCorrection, learned: Learned, steps: NDArray[np.float64]
    ) -> Memory:
        """Return the new memory of these clients; `steps` [n] is the number of steps of each, times the rate."""


class Attack(Protocol):
    """What malicious clients send instead of their honest updates."""

    def __call__(self, messages: Messages, malicious: NDArray[np.bool_], rng: np.random.Generator) -> Messages: ...


class Source(Protocol):
    """The source of privacy noise: `fedrank.privacy.noise.SecureSource`, except in tests."""

    def words(self, count: int) -> NDArray[np.uint64]: ...
    def bernoulli(self, probability: float, count: int) -> NDArray[np.bool_]: ...
    def seed(self) -> int: ...


class Mechanism(Protocol):
    """A privacy mechanism: what is done to updates before they leave a client.

    `cohort` is the number of clients of a round, or its expected value; public.
    """

    @property
    def traits(self) -> frozenset[Trait]: ...

    @property
    def sees(self) -> str:
        """Which party sees what, as a sentence."""

    def source(self) -> Source:
        """The operating system's secure source."""

    def protect(
        self, messages: Messages, cohort: float, source: Source, counts: NDArray[np.float64] | None = None
    ) -> Messages:
        """Return what leaves each client, with all the noise that it must add; rows are independent.

        `counts` [n], 0 .. 1, is the weight of each update by its age, if a rule uses weights.
        """


class Aggregator(Protocol):
    """How the server combines updates into one change."""

    def __call__(self, messages: Messages) -> Change: ...


class StreamingAggregator(Aggregator, Protocol):
    """An aggregator with the trait "sum": parts add up, so not all updates are in memory together."""

    def part(self, messages: Messages) -> NDArray[Any]: ...
    def whole(self, total: NDArray[Any]) -> Change: ...


class MeanAggregator(Aggregator, Protocol):
    """An aggregator with the trait "mean": the mean of updates, with weights that depend only on sizes."""

    def client_weights(self, sizes: NDArray[np.int64]) -> NDArray[Any]:
        """Return the weights [n] of updates from their numbers of interactions; at least 0."""


class AddingMechanism(Mechanism, Protocol):
    """A mechanism with the trait "adds up"."""

    @property
    def sends(self) -> str:
        """The NumPy type of what a client sends."""

    def rule(self, cohort: float, source: Source) -> Aggregator:
        """Return how the messages of clients are added up."""


@runtime_checkable
class ClippingMechanism(Mechanism, Protocol):
    """A mechanism with the trait "adds up" that clips updates before the sum."""

    def clips(self, sizes: NDArray[np.int64], cohort: float) -> Clip | None:
        """Return how a trusted server clips updates before the sum; None if no server may see updates."""


class ServerOptimizer(Protocol):
    """How the server moves its model by a change; its state is an array."""

    def first(self, size: int) -> NDArray[np.float64]: ...
    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]: ...

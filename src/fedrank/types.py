"""Array names with their shapes, the records that flow through a round, and the protocols of its parts.

Protocols describe; nobody inherits from them. What a method can do, or needs, it declares as `traits`; what goes with
what follows from these (`fedrank.federated.compatibility`), so that a method from outside is treated like one of ours.
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
Grades = NDArray[np.int8]  # [documents], relevance from 0 (not relevant) upwards
Offsets = NDArray[np.int64]  # [queries + 1]: query q holds documents offsets[q] .. offsets[q + 1] - 1
Scores = NDArray[np.float32]  # [documents] or [models, documents]
Weights = NDArray[np.float64]  # [parameters], or [clients, parameters] where every client has its own
Updates = NDArray[np.float32]  # [clients, parameters], as they travel: four bytes a parameter
Change = NDArray[np.float64]  # [parameters]: what the server adds
Memory = NDArray[np.float64] | None  # [clients, m]: what clients keep between rounds
Arrays = dict[str, NDArray[Any]]  # what a rule remembers: arrays only, since they are checkpointed

Trait = Literal[
    "sum",  # aggregator: a sum over clients, so nothing needs to see single updates; defines `part` and `whole`
    "mean",  # aggregator: a weighted mean, which is a sum, too; defines `client_weights`
    "apart",  # aggregator: there is none, every client keeps its own model
    "trusted queries",  # aggregator: the server learns from queries of its own, too
    "remembers",  # aggregator: looks at more than one round
    "robust",  # aggregator: made for dishonest clients
    "steps",  # learner: takes local steps, which a local method can bend
    "rewards",  # learner: tells rewards, not gradients, and needs many clients
    "grades",  # learner: needs true grades, and shows nobody a list
    "logged",  # learner: learns from lists that were shown and clicked before, and shows nobody another
    "shared part",  # local method: a part of the model stays with its client
    "common",  # local method: the server sends something along with the model
    "alike",  # local method: the server counts every client the same, however much it did
    "plain messages",  # local method: reads gradients from messages, which must arrive as they were sent
    "whole model",  # attack: aims by all of the model, also by what a local method leaves with clients
    "adds up",  # mechanism: protects nothing but the sum
    "whole round",  # mechanism: needs all clients of a round at once
    "adds nothing",  # mechanism: only prices what a learner does itself, and lets messages through as they are
    "people",  # mechanism: protects each person of an organisation, whose contributions it adds up before they leave
    "hides cohort",  # mechanism: who takes part is drawn from the secure source, each client by itself, and secret
    "history",  # unlearner: needs what clients sent
    "asks nobody",  # unlearner: works with what is recorded, so that it costs nobody anything
    "exact",  # unlearner: gives the model that there would be if nobody of those who leave had ever been there
]


def has_trait(method: Any, trait: Trait) -> bool:
    """Whether a method declares a trait; a mean is also a sum."""
    traits = getattr(method, "traits", ())
    return trait in traits or (trait == "sum" and "mean" in traits)


def fast_path(method: Any, name: str) -> Any:
    """An optional function of a method that does the same as calling it, such as `compiled_step`; None without one.

    A subclass that defines `__call__` does not inherit it: the function would do what the parent does.
    """
    for kind in type(method).__mro__:
        if name in vars(kind):
            return getattr(method, name)
        if "__call__" in vars(kind):
            return None
    return None


@dataclass(frozen=True, kw_only=True, repr=False)
class ClientData(DisplayMixin):
    """What clients have, as columns: row c is client c. Tables that clients share are stored once."""

    data: RankingData  # what they search; a partition may have rearranged it
    ids: NDArray[np.int64]  # [clients]: who; chance is keyed by it, so that it survives selections
    pool: NDArray[np.int32]  # [clients]: which pool of queries it searches with
    interactions: NDArray[np.int64]  # [clients]: searches a round
    queries: NDArray[np.int32]  # all pools, one after the other
    pools: NDArray[np.int64]  # [pools + 1]: pool p is queries[pools[p] : pools[p + 1]]
    # [clients] or empty: the place in its pool from which a client takes its queries in order; empty: it draws them.
    at: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    _columns: ClassVar[tuple[str, ...]] = ("ids", "pool", "interactions", "at")

    def __len__(self) -> int:
        return len(self.ids)

    def _display(self) -> tuple[str, dict[str, str]]:
        sizes = np.diff(self.pools)[self.pool]
        return f"of {self.data.name}" if self.data.name else "", {
            "clients": f"{len(self):,}",
            "queries each": _span(sizes),
            "interactions a round": _span(self.interactions),
        }

    def rows(self, which: NDArray[Any] | slice) -> Self:
        """Some of the clients; shared tables stay shared."""
        changed = {name: getattr(self, name) for name in self._columns}
        return replace(self, **{name: column[which] if len(column) else column for name, column in changed.items()})


@dataclass(frozen=True, kw_only=True, repr=False)
class SimulatedClients(ClientData):
    """Simulated clients have queries, relevance labels and click models: a row for each client.

    `make_clients` creates them, and `rows` selects some of them.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=20)
    >>> clients = fr.make_clients(data, count=4, click_model=["navigational", "informational"], malicious=1)
    >>> [clients.click_model_names[row] for row in clients.click_model]
    ['navigational', 'informational', 'navigational', 'informational']
    >>> clients.rows(~clients.malicious).ids.tolist()
    [1, 2, 3]
    """

    view: NDArray[np.int32]  # [clients]: which row of `grades` it sees
    judged: NDArray[np.int32]  # [clients]: by which row its own quality is judged; mostly the same
    click_model: NDArray[np.int32]  # [clients]: how it clicks (a row of `click`); -1 draws a row at every interaction
    malicious: NDArray[np.bool_]  # [clients]

    grades: NDArray[np.int8]  # [views, documents]
    ideal: NDArray[np.float64]  # [views, queries]: DCG@10 of the best list, 0 without a relevant document
    click: NDArray[np.float64]  # [users, grades]: P(click | read, grade)
    stop: NDArray[np.float64]  # [users, grades]: P(leave | clicked, grade)
    attention: NDArray[np.float64]  # [users, 10]: P(read | rank)
    click_model_names: tuple[str, ...]  # [users]
    shared: NDArray[np.int32]  # queries that everybody holds because they were shared; mostly none
    # [users] or empty: click models from outside, each a function of labels and draws; None where the tables say it.
    own_click_models: tuple[Callable[..., Any] | None, ...] = ()
    people: SimulatedClients | None = None  # where clients are organisations: a row for each of their people
    client: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # [people]: whose they are

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
    """Messages are what the server received in one round: a row for each client.

    Aggregators and attacks are functions of messages; `simulate` passes those of each round to `watch`. If a mechanism
    protects the people of an organisation, the organisation has a row for each person, all with its id, until the
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

    updates: NDArray[Any]  # [n, parameters], relative to what each started from; float32, or whole steps of a sum
    sizes: NDArray[np.int64]  # [n]: interactions behind each update
    ids: NDArray[np.int64]  # [n]
    weights: Weights  # the model before this round, or one row for each client
    round: int = 0
    bytes_each: int | None = None  # what a client sends; None: four bytes a parameter
    root: NDArray[np.float32] | None = None  # [parameters]: the server's own, from trusted queries, where a rule asks

    def rows(self, which: NDArray[Any] | slice) -> Messages:
        return replace(self, updates=self.updates[which], sizes=self.sizes[which], ids=self.ids[which])


class Observed(NamedTuple):
    """What only a simulation sees."""

    online: NDArray[np.float64]  # [n]: mean nDCG@10 of the lists that the client was shown
    reward: NDArray[np.float64] | None = None  # [n]: mean reward, where a learner has one


class LocalCorrection(NamedTuple):
    """What bends the local steps of clients besides their gradients; see `fedrank.federated.local`."""

    pull: float = 0.0  # at every step, rate x pull of the way back to where the client started
    drifts: NDArray[np.float64] | None = None  # [clients, parameters]: added to every gradient
    personal: NDArray[np.float64] | None = None  # [clients, units]: last parameters of the model, each client's own


NO_CORRECTION = LocalCorrection()


class Learned(NamedTuple):
    """What local learning comes to, before anything leaves a client."""

    updates: Updates  # [n, parameters]
    observed: Observed
    personal: NDArray[np.float64] | None = None  # [n, units]: where a part of the model stays with its client
    sent: NDArray[Any] | None = None  # [n]: what travels in place of updates, where these follow from less
    sizes: NDArray[np.int64] | None = None  # [n]: interactions that updates stand for, where these are not the client's


class Clip(NamedTuple):
    """How updates are shortened and weighed, and the grid that they are put on; see `fedrank.privacy.clip`."""

    length: float
    norm: int
    step: float
    weights: NDArray[np.float64]  # [n]


class Impression(NamedTuple):
    """An impression is one result list that was shown to a user, with the clicks on it.

    `features` and `scores` describe all candidates of the query. `shown` has the rows of the shown candidates, from the
    top of the list. `clicked` says for each of them whether it was clicked. A learner reads impressions where clicks
    are not simulated.

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

    features: Features  # [candidates, features]: of all documents that could have been shown
    scores: Scores  # [candidates]: from which the list was drawn
    shown: NDArray[np.int64]  # [places]: candidates, from the top
    clicked: NDArray[np.bool_]  # [places]


class Judged(NamedTuple):
    """A query's documents and their true grades."""

    features: Features
    grades: Grades


class Logged(NamedTuple):
    """A list as somebody else showed it, and how much each document was clicked, corrected or not."""

    features: Features
    relevance: NDArray[np.float32]  # [places]; NaN: nothing is known of that place
    drawn: tuple[NDArray[np.float32], float, float] | None = None  # scores, temperature and keep of its draw, if known


class Impressions(Protocol):
    """Where a client's lists and clicks come from: simulated people, a log, or somebody in front of a page.

    It is asked with the present weights, since a simulation draws list k + 1 after step k.
    """

    def __len__(self) -> int:
        """How many there are in this round."""

    def drawn(self, weights: NDArray[np.float32], number: int) -> Impression:
        """List number `number` of this round, drawn around the model's order."""

    def best(self, weights: NDArray[np.float32], number: int) -> Impression:
        """The same in the model's order."""

    def judged(self, number: int) -> Judged:
        """The query with its grades, where these are known."""

    def logged(self, number: int) -> Logged:
        """The list of a search log, where there is one."""


class Ranker(Protocol):
    """A function from features to a score, with all its parameters in one flat vector."""

    @property
    def hidden(self) -> int:
        """How kernels read the vector: 0 linear, n hidden sigmoid units, -n hidden rectified units."""

    def size(self, features: int) -> int: ...
    def first(self, features: int, rng: np.random.Generator) -> Weights: ...
    def score(self, weights: Weights, features: Features) -> Scores:
        """[documents] for one model, [models, documents] for several."""


class OwnChance(NamedTuple):
    """A client's own chance: what it draws itself, whoever it is."""

    chance: Chance  # of this round
    id: int
    source: Source | None = None  # where answers come from that protect people; None: simulated, from `chance`


class Learner(Protocol):
    """What clients do in a round with what they are shown."""

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
        """Simulated clients, all of them at once; `start` is one model, or one for each."""

    def from_impressions(
        self,
        start: NDArray[np.float32],
        impressions: Impressions,
        own: OwnChance,
        correction: LocalCorrection = NO_CORRECTION,
    ) -> Learned:
        """One client, from whatever it was shown; `own` is for what a learner draws itself."""


class LocalStep(Protocol):
    """How clients that differ keep their local steps together."""

    def first(self, ranker: Ranker, start: Weights, count: int) -> Memory:
        """[clients, m]: what clients keep before round 1; None: nothing."""

    def correction(self, memory: Memory, common: NDArray[np.float32] | None) -> LocalCorrection:
        """What bends the steps of these clients; `common` is what the server sent along with the model."""

    def remember(
        self, memory: Memory, correction: LocalCorrection, learned: Learned, steps: NDArray[np.float64]
    ) -> Memory:
        """What these clients keep from now on; `steps` [n] are how many each took, times the rate."""


class Attack(Protocol):
    """What malicious clients send instead of their honest updates."""

    def __call__(self, messages: Messages, malicious: NDArray[np.bool_], rng: np.random.Generator) -> Messages: ...


class Source(Protocol):
    """Where noise that protects people comes from; `fedrank.privacy.noise.SecureSource`, except in tests."""

    def words(self, count: int) -> NDArray[np.uint64]: ...
    def bernoulli(self, probability: float, count: int) -> NDArray[np.bool_]: ...
    def seed(self) -> int: ...


class Mechanism(Protocol):
    """What is done to updates before they leave a client.

    `cohort` is how many clients a round has, or is expected to have: a public number.
    """

    @property
    def traits(self) -> frozenset[Trait]: ...

    @property
    def sees(self) -> str:
        """Who sees what, as a sentence."""

    def source(self) -> Source:
        """The operating system's secure source."""

    def protect(
        self, messages: Messages, cohort: float, source: Source, counts: NDArray[np.float64] | None = None
    ) -> Messages:
        """What leaves each client, with all the noise that it has to add; rows do not depend on each other.

        `counts` [n], 0 .. 1, is how much each update counts by its age, where a rule weighs them so.
        """


class Aggregator(Protocol):
    """How the server combines updates into one change."""

    def __call__(self, messages: Messages) -> Change: ...


class StreamingAggregator(Aggregator, Protocol):
    """An aggregator with the trait "sum": parts add up, so a million updates are never in memory together."""

    def part(self, messages: Messages) -> NDArray[Any]: ...
    def whole(self, total: NDArray[Any]) -> Change: ...


class MeanAggregator(Aggregator, Protocol):
    """An aggregator with the trait "mean": the mean of updates, weighted by something that depends on sizes alone."""

    def client_weights(self, sizes: NDArray[np.int64]) -> NDArray[Any]:
        """[n]: the weight of each update, from its number of interactions; at least 0."""


class AddingMechanism(Mechanism, Protocol):
    """A mechanism that "adds up"."""

    @property
    def sends(self) -> str:
        """The type of what a client sends, as NumPy writes it."""

    def rule(self, cohort: float, source: Source) -> Aggregator:
        """How what left the clients is added up."""


@runtime_checkable
class ClippingMechanism(Mechanism, Protocol):
    """A mechanism that "adds up", and says how updates are shortened before that."""

    def clips(self, sizes: NDArray[np.int64], cohort: float) -> Clip | None:
        """How a server that may see updates shortens them before it adds them up; None if no server may."""


class ServerOptimizer(Protocol):
    """How the server moves its model by a change; remembers what it needs in an array."""

    def first(self, size: int) -> NDArray[np.float64]: ...
    def __call__(
        self, weights: Weights, change: Change, state: NDArray[np.float64]
    ) -> tuple[Weights, NDArray[np.float64]]: ...

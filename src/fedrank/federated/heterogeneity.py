"""Measure heterogeneity: what each client has, its distance to all clients together, and what is due to chance.

Clients with the same pool and the same labels have the same data; each distinct combination is measured once, so the
cost depends on the pools, not on the number of clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrank.federated.partition import grade_counts
from fedrank.seeds import rng_for
from fedrank.types import SimulatedClients

SAMPLE = 2_000  # documents per client, and of all clients together, for comparing features
FEATURES_OF = 20  # number of clients whose features are compared, evenly spaced
PAIRS_OF = 40  # number of clients that are compared in pairs, evenly spaced
REPEATS = 20  # random splits

Counts = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class ClientDistance:
    """A measure of heterogeneity, with its value for a random split."""

    name: str
    mean: float  # over clients or pairs of clients; NaN if there is nothing to compare
    most: float
    mean_by_chance: float
    most_by_chance: float


@dataclass(frozen=True)
class Differences:
    """The data of clients. Rows are clients in their order."""

    queries: Counts  # [clients]
    documents: Counts  # [clients]
    grades: Counts  # [clients, levels]: number of documents with each relevance label
    without: Counts  # [clients]: queries without a relevant document
    interactions: Counts  # [clients]: searches per round
    users: tuple[str, ...]  # [clients]
    from_all: Values  # [clients]: total variation between its label distribution and that of all clients
    distances: tuple[ClientDistance, ...]
    compared: Counts  # clients in the three tables below
    grade_pairs: Values  # [compared, compared]: total variation between their label distributions
    query_pairs: Values  # [compared, compared]: shared queries as a share of the union
    judgement_pairs: Values  # [compared, compared]: `disagreements`

    @property
    def shares(self) -> Values:
        """[clients, levels]: label distributions."""
        return _shares(self.grades)


def differences(clients: SimulatedClients, seed: int = 1) -> Differences:
    """Measure how different clients are: the data of each client, and its distance to all clients together.

    The result also contains the value of each distance for a random split: each client gets as much as before, drawn
    at random from the data of all clients. Queries are drawn, or single documents if the partition divided queries.

    >>> import fedrank as fr
    >>> data = fr.synthetic("mq2007", queries=40)
    >>> for partition in (fr.partitions.Own(), fr.partitions.Dirichlet(concentration=0.1)):
    ...     found = fr.differences(fr.make_clients(data, count=4, partition=partition))
    ...     labels = found.distances[0]
    ...     print(f"distance of labels: {labels.mean:.2f}, by chance {labels.mean_by_chance:.2f}")
    distance of labels: 0.04, by chance 0.04
    distance of labels: 0.11, by chance 0.06
    """
    holdings = _Holdings(clients)
    of = holdings.of_client
    rng = rng_for(seed, "differences")
    rows = _some(len(clients), PAIRS_OF)
    grade_pairs = _total_variation(_shares(holdings.grades[of[rows]])[:, None], _shares(holdings.grades[of[rows]]))
    query_pairs = _overlaps([holdings.names(h) for h in of[rows]])
    judgement_pairs = _disagreements(clients, rows)
    grades, queries = _by_chance(holdings, rows, rng)
    from_all = holdings.from_all(holdings.grades)
    return Differences(
        queries=holdings.sizes[of],
        documents=holdings.grades.sum(axis=1)[of],
        grades=holdings.grades[of],
        without=holdings.without[of],
        interactions=clients.interactions,
        users=_users(clients),
        from_all=from_all[of],
        distances=(
            ClientDistance(
                "grades, from all",  # prose: ok
                float(from_all[of].mean()),
                float(from_all[of].max()),
                *grades,
            ),
            _feature_distance(holdings, rng),
            ClientDistance("queries in common", *_of_pairs(query_pairs), *queries),
            ClientDistance("judged differently", *_of_pairs(judgement_pairs), 0.0, 0.0),
        ),
        compared=rows,
        grade_pairs=grade_pairs,
        query_pairs=query_pairs,
        judgement_pairs=judgement_pairs,
    )


class _Holdings:
    """The distinct data of clients: a pool of queries with a view of their labels."""

    def __init__(self, clients: SimulatedClients) -> None:
        self.clients, data = clients, clients.data
        held, of_client = np.unique(np.stack([clients.pool, clients.view]), axis=1, return_inverse=True)
        self.pool, self.view = held
        self.of_client: NDArray[np.intp] = of_client.ravel()
        self.often = np.bincount(self.of_client)  # [holdings]: number of clients
        levels = max(data.top_grade, int(clients.grades.max(initial=0))) + 1
        # [views, queries, levels]
        self.per_query = np.stack([grade_counts(view, data.offsets, levels) for view in clients.grades])
        pools = [self.queries(h) for h in range(len(self.pool))]
        self.sizes = np.array([len(pool) for pool in pools])
        self.grades = np.stack([self.per_query[self.view[h], pool].sum(axis=0) for h, pool in enumerate(pools)])
        self.without = np.array([np.sum(clients.ideal[self.view[h], pool] == 0) for h, pool in enumerate(pools)])

    def queries(self, holding: int) -> NDArray[np.int32]:
        clients, pool = self.clients, self.pool[holding]
        return clients.queries[clients.pools[pool] : clients.pools[pool + 1]]

    def names(self, holding: int) -> NDArray[np.intp]:
        """The identities of these queries, even if a client has only a part of them."""
        return self.name_of[self.queries(holding)]

    @cached_property
    def name_of(self) -> NDArray[np.intp]:
        return np.unique(self.clients.data.query_ids, return_inverse=True)[1].ravel()

    @cached_property
    def divided(self) -> bool:
        """Whether documents of one query went to different clients."""
        return len(np.unique(self.name_of)) < len(self.name_of)

    def documents(self, holding: int) -> NDArray[np.int64]:
        return _rows_of(self.queries(holding), self.clients.data.offsets)

    def from_all(self, grades: Counts) -> Values:
        """[holdings]: total variation between its label distribution and that of all clients."""
        return _total_variation(_shares(grades), _shares((grades * self.often[:, None]).sum(axis=0)))


def _by_chance(
    holdings: _Holdings, rows: Counts, rng: np.random.Generator
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(mean, maximum) of the distance of labels and of shared queries for random splits."""
    units = _Units(holdings)
    of, wanted = holdings.of_client, holdings.of_client[rows]
    found = []
    for _ in range(REPEATS):
        drawn = units.draw(rng)
        apart = holdings.from_all(np.stack([units.grades(one, rng) for one in drawn]))[of]
        pairs = _of_pairs(_overlaps([units.name_of[drawn[h]] for h in wanted]))
        found.append((apart.mean(), apart.max(), *pairs))
    mean, most, pair_mean, pair_most = np.mean(found, axis=0).tolist()
    return (mean, most), (pair_mean, pair_most)


class _Units:
    """The units of a random split: queries, or single documents if queries were divided.

    If clients see different labels, the view of a unit is random, too.
    """

    def __init__(self, holdings: _Holdings) -> None:
        self.holdings = holdings
        offsets = holdings.clients.data.offsets
        each = [holdings.documents(h) if holdings.divided else holdings.queries(h) for h in range(len(holdings.pool))]
        self.sizes = [len(one) for one in each]
        self.all = np.unique(np.concatenate(each)).astype(np.int64)
        self.views = np.unique(holdings.view)
        self.once = sum(self.sizes) == len(self.all)
        self.name_of = np.repeat(holdings.name_of, np.diff(offsets)) if holdings.divided else holdings.name_of

    def draw(self, rng: np.random.Generator) -> list[NDArray[np.int64]]:
        """Draw as many units for each holding as it has, without repetition if there was none."""
        if self.once:
            return np.split(rng.permutation(self.all), np.cumsum(self.sizes)[:-1])
        return [rng.choice(self.all, size=size, replace=False) for size in self.sizes]

    def grades(self, units: NDArray[np.int64], rng: np.random.Generator) -> Counts:
        view = rng.choice(self.views, size=len(units)) if len(self.views) > 1 else self.views[0]
        per_query = self.holdings.per_query
        if self.holdings.divided:
            return np.bincount(self.holdings.clients.grades[view, units], minlength=per_query.shape[2])
        return np.asarray(per_query[view, units].sum(axis=0))

    def documents(self, units: NDArray[np.int64]) -> NDArray[np.int64]:
        return units if self.holdings.divided else _rows_of(units, self.holdings.clients.data.offsets)


def _feature_distance(holdings: _Holdings, rng: np.random.Generator) -> ClientDistance:
    """Wasserstein-1 distance of each feature between a client and all, in standard deviations, mean over features."""
    features = holdings.clients.data.features
    units = _Units(holdings)
    drawn = units.draw(rng)
    keys = rng.exponential(size=len(features))  # the documents with the lowest keys are the sample
    often = np.zeros(len(features))
    for h, clients in enumerate(holdings.often):
        often[holdings.documents(h)] += clients
    held = np.flatnonzero(often)
    held = held[_lowest(keys[held])]
    everything, weight = features[held].astype(np.float64), often[held]
    scale = np.sqrt(np.average((everything - np.average(everything, axis=0, weights=weight)) ** 2, 0, weight))
    rows = holdings.of_client[_some(len(holdings.of_client), FEATURES_OF)].tolist()
    known = {}
    for h in dict.fromkeys(rows):
        both = (holdings.documents(h), units.documents(drawn[h]))
        known[h] = [_wasserstein(features[one[_lowest(keys[one])]], everything, weight, scale) for one in both]
    own, chance = np.array([known[h] for h in rows]).T
    return ClientDistance(
        "features, from all", *(float(x) for x in (own.mean(), own.max(), chance.mean(), chance.max()))
    )


def _lowest(keys: Values) -> NDArray[np.intp]:
    """Indices of the SAMPLE lowest values, or all."""
    return np.arange(len(keys)) if len(keys) <= SAMPLE else np.argpartition(keys, SAMPLE)[:SAMPLE]


def _wasserstein(some: NDArray[np.float32], everything: Values, weight: Values, scale: Values) -> float:
    from scipy.stats import wasserstein_distance

    varied = np.flatnonzero(scale > 0)
    if not len(varied):
        return 0.0
    apart = [wasserstein_distance(some[:, f], everything[:, f], None, weight) / scale[f] for f in varied]
    return float(np.mean(apart))


def _disagreements(clients: SimulatedClients, rows: Counts) -> Values:
    """[rows, rows]: share of documents with different labels, among those of both clients that one finds relevant."""
    unlike = np.zeros((len(rows), len(rows)))
    if len(clients.grades) == 1:
        return unlike
    pools = [clients.queries[clients.pools[p] : clients.pools[p + 1]] for p in clients.pool[rows]]
    for a in range(len(rows)):
        for b in range(a):
            both = _rows_of(np.intersect1d(pools[a], pools[b]), clients.data.offsets)
            one, other = clients.grades[clients.view[rows[a]], both], clients.grades[clients.view[rows[b]], both]
            relevant = int(np.sum((one > 0) | (other > 0)))
            unlike[a, b] = unlike[b, a] = np.sum(one != other) / relevant if relevant else 0.0
    return unlike


def _overlaps(names: Sequence[NDArray[np.intp]]) -> Values:
    """The Jaccard similarity of each pair of sets."""
    from scipy.sparse import csr_array

    sets = [np.unique(one) for one in names]
    ends = np.cumsum([0, *map(len, sets)])
    has = csr_array((np.ones(ends[-1]), np.concatenate(sets), ends))
    both = (has @ has.T).toarray()
    sizes = np.diff(ends)
    return np.asarray(both / (sizes[:, None] + sizes - both))


def _of_pairs(table: Values) -> tuple[float, float]:
    """Mean and maximum over pairs of different clients; NaN for one client."""
    pairs = table[np.triu_indices(len(table), k=1)]
    return (float(pairs.mean()), float(pairs.max())) if len(pairs) else (float("nan"), float("nan"))


def _total_variation(some: Values, others: Values) -> Values:
    return np.asarray(0.5 * np.abs(some - others).sum(axis=-1))


def _shares(grades: Counts) -> Values:
    return np.asarray(grades / grades.sum(axis=-1, keepdims=True))


def _rows_of(queries: NDArray[np.integer], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Documents of some queries."""
    lengths = np.diff(offsets)[queries]
    starts = np.repeat(offsets[queries] - np.cumsum(lengths) + lengths, lengths)
    return np.asarray(starts + np.arange(lengths.sum()))


def _some(count: int, most: int) -> Counts:
    """At most `most` of the rows 0 .. count - 1, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _users(clients: SimulatedClients) -> tuple[str, ...]:
    drawn = " / ".join(clients.click_model_names)
    return tuple(clients.click_model_names[u] if u >= 0 else drawn for u in clients.click_model.tolist())

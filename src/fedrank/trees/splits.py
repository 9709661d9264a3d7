"""Splits: divide the queries of one data set among organisations with different kinds of queries.

Every client gets queries of its kind for training, early stopping and testing. It also gets a merge set:
labelled queries that are least like its own, by which it decides how much weight the models of others get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.catalog import Fold
from fedrank.data.ranking import RankingData
from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Split
from fedrank.trees.categories import Counts, Tally, place_of, query_categories, tallies
from fedrank.types import SimulatedClients

STARTS = 10  # of k-means; the best result is used
STEPS = 100  # of k-means, at most

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Portion:
    """The data of one client."""

    name: str
    train: RankingData
    validation: RankingData | None  # queries of its kind, for early stopping; None: there are none
    test: RankingData | None  # queries of its kind
    merge: RankingData  # labelled queries least like its own, to merge models by


class Splitter(Protocol):
    """A rule that divides one data set among several clients."""

    def __call__(self, fold: Fold, rng: np.random.Generator) -> tuple[Portion, ...]: ...


class Holding(NamedTuple):
    """The assignment of the queries of one set to clients, and how typical each query is of each client."""

    client: Counts  # [queries]; -1: no client
    likeness: Reals  # [queries, clients]: higher is more typical


@dataclass(frozen=True)
class Categories:
    """Divide queries by the category of their relevant documents, with one client per category.

    Unless rest = "none", a last client gets other queries. By rule, a query belongs to the category of most of its
    relevant documents (ties are broken by the sum of labels, then by the highest label, then at random); to the one
    with more of them than any other; or to the one with all of them. The last client gets every other query ("all"),
    or only those without a relevant document, or any document, of the categories. The rules are those of "Learning to
    Rank for Non Independent and Identically Distributed Datasets" (2024).
    """

    by: str = ""  # source of categories: a file, or "feature:" with a feature's name or number from 1
    categories: tuple[str, ...] = ()  # one client per category; empty: the most frequent ones
    clients: int = 2  # number of clients, if `categories` is empty
    rule: Literal["tie-breaking", "no-ties", "exclusive"] = "tie-breaking"  # which category a query belongs to
    rest: Literal["all", "no-relevant", "no-document", "none"] = "no-relevant"  # queries of the last client
    merge: Literal["remaining", "validation"] = "remaining"  # merge sets: from unassigned queries, or validation
    bins: int = 0  # number of equally frequent categories of a numeric feature; 0: one category per value
    merge_queries: int = 0  # maximum size of a merge set; 0: half as many queries as its client trains on

    def __post_init__(self) -> None:
        _check_merge_set(self.merge_queries)
        least = 1 if self.rest == "none" else 2
        if self.clients < least:
            raise ValueError(f"clients must be at least {least} with rest = {self.rest!r} (got {self.clients})")
        if self.bins == 1 or self.bins < 0:
            raise ValueError(f"bins must be at least 2, or 0 for one category per value (got {self.bins})")
        if len(set(self.categories)) < len(self.categories):
            raise ValueError(f"categories must be distinct (got {list(self.categories)})")

    def __call__(self, fold: Fold, rng: np.random.Generator) -> tuple[Portion, ...]:
        count = tallies(self.by, self.bins, parts_of(fold))
        counted = [count(part) for part in parts_of(fold)]
        category = [query_categories(tally, self.rule, rng) for tally in counted]
        chosen = [place_of(name, count.names, self.by) for name in self.categories]
        chosen = chosen or self._most_frequent(category[0], count.names)
        titles = [count.names[c] for c in chosen] + ([] if self.rest == "none" else ["rest"])
        held = [self._hold(tally, of_query, chosen) for tally, of_query in zip(counted, category, strict=True)]
        return make_portions(fold, titles, held, self.merge, self.merge_queries)

    def _most_frequent(self, category: Counts, names: Sequence[str]) -> list[int]:
        wanted = self.clients - (self.rest != "none")
        often = np.bincount(category[category >= 0], minlength=len(names))
        found = np.argsort(-often, kind="stable")[:wanted]
        if len(found) < wanted or not often[found].all():
            raise ValueError(
                f"only {int((often > 0).sum())} categories have queries under rule = {self.rule!r}, too few for "
                f"{self.clients} clients; use fewer clients, or another rule"
            )
        return [int(c) for c in found]

    def _hold(self, tally: Tally, category: Counts, chosen: list[int]) -> Holding:
        client = np.full(len(category), -1, dtype=np.int64)
        for number, c in enumerate(chosen):
            client[category == c] = number
        of_chosen = tally.relevant[:, chosen].astype(np.float64)
        if self.rest == "none":
            return Holding(client, of_chosen)
        others = of_chosen.sum(axis=1)
        barred = {"all": np.zeros(len(category)), "no-relevant": others}.get(
            self.rest, tally.any[:, chosen].sum(axis=1)
        )
        client[(client < 0) & (barred == 0)] = len(chosen)
        return Holding(client, np.column_stack([of_chosen, -others]))


@dataclass(frozen=True)
class Topics:
    """Divide queries by topics, found by k-means over queries: for data without categories.

    A query is represented by the means of its documents' features, each as its rank among the training queries: the
    scale of features and outliers have no influence. Merge sets come from the validation queries, or from training
    queries that are set apart.
    """

    clients: int = 2
    of: Literal["documents", "relevant"] = "documents"  # features of all documents, or of the relevant ones
    apart: float = 0.0  # fraction of training queries reserved for merge sets; 0: validation queries are used
    merge_queries: int = 0  # maximum size of a merge set; 0: half as many queries as its client trains on

    def __post_init__(self) -> None:
        _check_merge_set(self.merge_queries, self.apart, self.clients)

    def __call__(self, fold: Fold, rng: np.random.Generator) -> tuple[Portion, ...]:
        points = self._points(fold.train)
        known = ~np.isnan(points[:, 0])
        if known.sum() < self.clients:
            raise ValueError(
                f"{int(known.sum())} queries with documents are too few for {self.clients} topics; "
                "use fewer clients or more data"
            )
        ordered = np.sort(points[known], axis=0)
        centres = k_means(_ranks(points[known], ordered), self.clients, rng)
        held = []
        for part in parts_of(fold):
            points = self._points(part)
            apart = _distances(_ranks(points, ordered), centres)
            lost = np.isnan(points[:, 0])
            held.append(Holding(np.where(lost, -1, np.argmin(apart, axis=1)), -apart))
        names = [f"topic {c + 1}" for c in range(self.clients)]
        return make_portions(fold, names, held, _set_apart(self.apart, fold, rng), self.merge_queries)

    def _points(self, data: RankingData) -> Reals:
        """[queries, features]; NaN where a query has no relevant document."""
        counts = np.ones(data.documents) if self.of == "documents" else (data.grades > 0).astype(np.float64)
        total = np.add.reduceat(counts, data.offsets[:-1])
        summed = np.add.reduceat(data.features * counts[:, None], data.offsets[:-1], axis=0)
        return np.asarray(np.where(total[:, None] > 0, summed / np.maximum(total, 1)[:, None], np.nan))


@dataclass(frozen=True)
class Dealt:
    """Divide queries at random among the clients: the effect of merging without heterogeneity."""

    clients: int = 2
    apart: float = 0.0  # fraction of training queries reserved for merge sets; 0: validation queries are used
    merge_queries: int = 0  # maximum size of a merge set; 0: half as many queries as its client trains on

    def __post_init__(self) -> None:
        _check_merge_set(self.merge_queries, self.apart, self.clients)

    def __call__(self, fold: Fold, rng: np.random.Generator) -> tuple[Portion, ...]:
        held = [
            Holding(rng.permutation(part.queries) % self.clients, rng.random((part.queries, self.clients)))
            for part in parts_of(fold)
        ]
        names = [f"client {c + 1}" for c in range(self.clients)]
        return make_portions(fold, names, held, _set_apart(self.apart, fold, rng), self.merge_queries)


@dataclass(frozen=True)
class Sites:
    """Every site has its own queries, between organisations with `fedrank deploy run`; it is not for simulation."""

    def __call__(self, fold: Fold, rng: np.random.Generator) -> tuple[Portion, ...]:
        raise ValueError(
            'split = "sites" is for deployed sites with their own queries; use `fedrank deploy run`, or split by '
            '"topics" or "dealt"'
        )


SPLITS: dict[str, type[Splitter]] = {"categories": Categories, "topics": Topics, "dealt": Dealt, "sites": Sites}


def parts_of(fold: Fold) -> list[RankingData]:
    """Training, test and, where there are any, validation queries, in this order."""
    return [fold.train, fold.test] + ([] if fold.validation is None else [fold.validation])


def make_portions(
    fold: Fold, names: Sequence[str], held: Sequence[Holding], merge: str | NDArray[np.bool_], merge_queries: int = 0
) -> tuple[Portion, ...]:
    """The data of every client, given the assignment of queries for each of the `parts_of` the fold.

    A merge set has half as many queries as its client trains on, or at most `merge_queries`: those least like the
    client's own, out of the unassigned queries (merge = "remaining"), of other clients' validation queries
    ("validation"), or of other clients' training queries that are set apart (a flag for each, excluded from training).
    Queries without a relevant document carry no information for merging and are left out.
    """
    whole = held[0].client
    if not isinstance(merge, str):
        held = [held[0]._replace(client=np.where(merge, -1, whole)), *held[1:]]
    for client, name in enumerate(names):
        if not np.any(held[0].client == client):
            raise ValueError(
                f"client {client + 1} ({name}) would get none of {fold.train.queries} training queries; "
                "use fewer clients, other categories or another rule"
            )
    if not isinstance(merge, str):
        pool, place, free = fold.train, held[0]._replace(client=whole), merge
    elif merge == "remaining":
        pool, place, free = fold.train, held[0], held[0].client < 0
    elif fold.validation is not None:
        pool, place, free = fold.validation, held[2], np.ones(fold.validation.queries, dtype=np.bool_)
    else:
        raise ValueError(f"{fold.name} has no validation queries to merge by; name a file of them as validation")
    useful = np.maximum.reduceat(pool.grades, pool.offsets[:-1]) > 0
    portions = []
    for client, name in enumerate(names):
        train, test, validation = (_held(fold, held, part, client) for part in range(3))
        assert train is not None  # checked above
        candidates = np.flatnonzero(useful & free & (place.client != client))
        if not len(candidates):
            remedies = {"remaining": 'a stricter rule or merge = "validation"', "validation": "more validation queries"}
            remedy = remedies[merge] if isinstance(merge, str) else "a larger fraction that is set apart"
            raise ValueError(
                f"no query with a relevant document is left for the merge set of client {client + 1} ({name}); "
                f"use {remedy}"
            )
        order = candidates[np.argsort(place.likeness[candidates, client], kind="stable")]
        few = np.sort(order[: merge_queries or max(1, train.queries // 2)])
        portions.append(Portion(name, train, validation, test, pool.select(few)))
    return tuple(portions)


def _set_apart(share: float, fold: Fold, rng: np.random.Generator) -> str | NDArray[np.bool_]:
    """The source of merge sets, for `make_portions`."""
    if share == 0:
        return "validation"
    chosen: NDArray[np.bool_] = rng.permutation(fold.train.queries) < round(share * fold.train.queries)
    return chosen


def _check_merge_set(queries: int, apart: float = 0.0, clients: int = 2) -> None:
    if queries < 0:
        raise ValueError(f"merge_queries must be 0 or more (got {queries})")
    if not 0 <= apart < 1:
        raise ValueError(f"apart must be at least 0 and below 1 (got {apart})")
    if clients < 2:
        raise ValueError(f"clients must be at least 2 (got {clients})")


def _held(fold: Fold, held: Sequence[Holding], part: int, client: int) -> RankingData | None:
    if part >= len(held):
        return None
    queries = np.flatnonzero(held[part].client == client)
    return parts_of(fold)[part].select(queries) if len(queries) else None


def as_clients(portions: Sequence[Portion]) -> SimulatedClients:
    """The training data of the clients, as a table whose `differences` can be measured."""
    ends = np.cumsum([0, *(portion.train.queries for portion in portions)])
    pools = tuple(np.arange(*ends[c : c + 2], dtype=np.int32) for c in range(len(portions)))
    split = Split(pools, np.arange(len(portions), dtype=np.int32))
    joined = RankingData.join([portion.train for portion in portions])
    return make_clients(joined, len(portions), partition=lambda data, count, rng: split)


def k_means(points: Reals, clusters: int, rng: np.random.Generator) -> Reals:
    """Centres [clusters, columns] that minimise distances to the points [points, columns]; the largest cluster first.

    Lloyd's algorithm with k-means++ initialisation, the best of several starts.
    """
    best, least = np.empty(0), np.inf
    for _ in range(STARTS):
        centres = points[rng.integers(len(points), size=1)]
        for _ in range(clusters - 1):
            near = _distances(points, centres).min(axis=1)
            chances = near / near.sum() if near.sum() > 0 else None
            centres = np.vstack([centres, points[rng.choice(len(points), p=chances)]])
        for _ in range(STEPS):
            of_point = np.argmin(_distances(points, centres), axis=1)
            # A cluster without points stays where it is.
            moved = np.array(
                [points[of_point == c].mean(axis=0) if np.any(of_point == c) else centres[c] for c in range(clusters)]
            )
            if np.array_equal(moved, centres):
                break
            centres = moved
        cost = float(_distances(points, centres).min(axis=1).sum())
        if cost < least:
            best, least = centres, cost
    sizes = np.bincount(np.argmin(_distances(points, best), axis=1), minlength=clusters)
    return np.asarray(best[np.argsort(-sizes, kind="stable")])


def _ranks(points: Reals, ordered: Reals) -> Reals:
    """The rank of each value, from 0 to 1, among the ordered ones of its column; ties share their rank."""
    ranks = np.empty(points.shape)
    for column, values in enumerate(ordered.T):
        low = np.searchsorted(values, points[:, column], side="left")
        high = np.searchsorted(values, points[:, column], side="right")
        ranks[:, column] = (low + high) / (2 * len(values))
    return ranks


def _distances(points: Reals, centres: Reals) -> Reals:
    """[points, centres]: squared distances."""
    return np.stack([np.square(points - centre).sum(axis=1) for centre in centres], axis=1)

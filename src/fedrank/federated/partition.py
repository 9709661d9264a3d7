"""Partitions: which queries, documents and relevance labels each client has."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.data.ranking import RankingData
from fedrank.files import read_text
from fedrank.types import Offsets

REDRAWS = 100  # attempts at a Dirichlet split without empty clients


@dataclass(frozen=True)
class Split:
    """Pools of queries, the pool of each client, and changes to documents and labels."""

    pools: tuple[NDArray[np.int32], ...]  # each: indices of queries
    pool: NDArray[np.int32]  # [clients]
    data: RankingData | None = None  # rearranged data that pools refer to; None: unchanged
    grades: NDArray[np.int8] | None = None  # [views, documents]: labels; None: one view, those of the data
    view: NDArray[np.int32] | None = None  # [clients]: index of its view; None: all have the first
    judged: NDArray[np.int32] | None = None  # [clients]: index of the view for evaluation; None: its view
    shared: NDArray[np.int32] | None = None  # queries of all clients; None: none are shared


class Partition(Protocol):
    """A rule that assigns queries to clients."""

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split: ...


@dataclass(frozen=True)
class Iid:
    """Every client draws from all queries (the published setting)."""

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        return Split((np.arange(data.queries, dtype=np.int32),), np.zeros(count, dtype=np.int32))


@dataclass(frozen=True)
class Own:
    """Queries are divided at random, and every client draws from its own."""

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        _enough_queries(data, count)
        dealt = rng.permutation(data.queries).astype(np.int32)
        return _own_pools([np.sort(dealt[c::count]) for c in range(count)])


@dataclass(frozen=True)
class Intents:
    """Clients have different intents for the same query: each sees the labels of one intent (thesis 4.3, type 1).

    The intents of every query are shuffled over the clients, so no client has the easiest ones. If there are more
    clients than intents, each further group of clients gets a separate shuffle.
    """

    mixed: bool = False  # all clients see the union of the intents: the IID counterpart

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        judged = _intents_of(data)
        everything = np.arange(data.queries, dtype=np.int32)
        pool = np.zeros(count, dtype=np.int32)
        union = judged.max(axis=0, keepdims=True)
        if self.mixed and count < len(judged):
            return Split((everything,), pool, grades=union)
        if count < len(judged):
            raise ValueError(
                f"{count} clients are too few for {len(judged)} intents; use clients.count = "
                f"{len(judged)} or more, or mixed = true, which gives all clients the union of the intents"
            )
        shuffled = [shuffle_intents(judged, data.offsets, rng) for _ in range(math.ceil(count / len(judged)))]
        grades = np.concatenate(shuffled)[:count]
        own = np.arange(count, dtype=np.int32)
        if self.mixed:  # learn from the union, evaluate by intents, to compare both settings
            return Split((everything,), pool, grades=np.concatenate([grades, union]), view=pool + count, judged=own)
        return Split((everything,), pool, grades=grades, view=own)


def shuffle_intents(judged: NDArray[np.int8], offsets: Offsets, rng: np.random.Generator) -> NDArray[np.int8]:
    """Return labels [clients, documents] with every query's intents, rows of `judged`, in random order."""
    queries = len(offsets) - 1
    order = rng.permuted(np.tile(np.arange(len(judged)), (queries, 1)), axis=1)  # [queries, clients]: intent
    of_document = np.repeat(order, np.diff(offsets), axis=0).T
    return np.take_along_axis(judged, of_document, axis=0)


@dataclass(frozen=True)
class Labels:
    """Every client has documents of few relevance labels: label skew, #R = each (thesis 4.4, type 2).

    There is one client per combination of labels, in order: with five labels and each = 2, client 0 has labels 0 and
    1, client 1 labels 0 and 2, and so on; with twice as many clients, two per combination.
    """

    each: int = 1  # number of labels per client: #R
    overlap: bool = False  # all clients with a label have all its documents (published code); otherwise one has each
    normalise_after: bool = False  # scale features to 0 .. 1 within each client's data (published code)

    def __post_init__(self) -> None:
        if self.each < 1:
            raise ValueError(f"each must be at least 1 (got {self.each})")

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        owners = self._owners(data, count)
        query_of = np.repeat(np.arange(data.queries), np.diff(data.offsets))
        if self.overlap:
            client = np.concatenate([np.repeat(owners[g], np.sum(data.grades == g)) for g in range(len(owners))])
            row = np.concatenate([np.tile(np.flatnonzero(data.grades == g), len(o)) for g, o in enumerate(owners)])
        else:
            client = deal_grades(data.grades, query_of, owners, rng)
            row = np.arange(data.documents)
        order = np.lexsort((row, query_of[row], client))
        client, row = client[order], row[order]
        # A piece is a client's part of one query; it becomes a query of the new data.
        begins = np.flatnonzero(np.diff(client, prepend=-1) | np.diff(query_of[row], prepend=-1))
        pieces = replace(
            data,
            features=data.features[row],
            grades=data.grades[row],
            offsets=np.append(begins, len(row)).astype(np.int64),
            query_ids=data.query_ids[query_of[row[begins]]],
            who=data.who[query_of[row[begins]]] if len(data.who) else data.who,
            when=data.when[query_of[row[begins]]] if len(data.when) else data.when,
            position=data.position[row] if len(data.position) else data.position,
            intents=data.intents[:, row] if len(data.intents) else data.intents,
        )
        if self.normalise_after:
            from fedrank.data.normalise import normalise

            pieces = normalise(pieces, "query")
        edges = np.searchsorted(client[begins], np.arange(count + 1))
        pools = [np.arange(*edges[c : c + 2], dtype=np.int32) for c in range(count)]
        for c, pool in enumerate(pools):
            if not len(pool):
                held = " and ".join(str(g) for g, who in enumerate(owners) if c in who)
                raise ValueError(
                    f"client {c} of {count} gets no document with label {held}, because there are too few; "
                    "use fewer clients, or overlap = true"
                )
        return replace(_own_pools(pools), data=pieces)

    def _owners(self, data: RankingData, count: int) -> list[NDArray[np.int64]]:
        """For every label, the clients that may have it."""
        levels = data.top_grade + 1
        if self.each > levels:
            raise ValueError(
                f"each must be at most the number of relevance labels of the data, {levels} (got {self.each})"
            )
        missing = np.flatnonzero(np.bincount(data.grades, minlength=levels) == 0)
        if len(missing):
            raise ValueError(
                f"label {missing[0]} does not occur among {data.documents} documents, so some clients would be empty; "
                "use other data"
            )
        choices = list(itertools.combinations(range(levels), self.each))
        if count % len(choices):
            raise ValueError(
                f"{count} clients do not match the {len(choices)} combinations of {self.each} of {levels} relevance "
                f"labels; use clients.count = {len(choices)} or a multiple of it"
            )
        held = [choices[c % len(choices)] for c in range(count)]
        return [np.array([c for c in range(count) if grade in held[c]]) for grade in range(levels)]


def deal_grades(
    grades: NDArray[np.int8], query_of: NDArray[np.int64], owners: Sequence[NDArray[np.int64]], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the owner of every document. Owners of a label get equal numbers of documents, per query and in total."""
    client = np.empty(len(grades), dtype=np.int64)
    rank = rng.permutation(int(query_of.max()) + 1)
    for grade, who in enumerate(owners):
        rows = rng.permutation(np.flatnonzero(grades == grade))
        rows = rows[np.argsort(rank[query_of[rows]], kind="stable")]
        client[rows] = who[(np.arange(len(rows)) + rng.integers(len(who))) % len(who)]
    return client


@dataclass(frozen=True)
class Attribute:
    """Queries with the same attribute, such as an organisation or a person, go to the same client.

    With as many clients as values, client c has value c in alphabetical order. With fewer, values are assigned to
    clients in turn, largest first.
    """

    file: str = ""  # file with lines of: query id, tab, value

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        if not self.file:
            raise ValueError(
                'the partition "attribute" needs a file; write { name = "attribute", file = "organisations.tsv" }'
            )
        values, of_query = _classes(self.file, data)
        if count > len(values):
            raise ValueError(
                f"{count} clients, but the queries have {len(values)} values in {self.file}; "
                f"use at most {len(values)} clients"
            )
        sizes = np.bincount(of_query, minlength=len(values))
        turn = np.arange(len(values)) if count == len(values) else np.argsort(-sizes, kind="stable")
        client = np.empty(len(values), dtype=np.int64)
        client[turn] = np.arange(len(values)) % count
        return _own_pools(_pools_of(client[of_query], count))


@dataclass(frozen=True)
class Dirichlet:
    """Clients have different shares of each class of queries, drawn from a Dirichlet distribution (Hsu et al., 2019).

    The class of a query is its most frequent relevance label above 0 (the highest in a tie; 0 without relevant
    documents), or its topic.
    """

    concentration: float = 0.5  # small: a class belongs to few clients; large: all clients get equal shares
    over: str = "grade"  # classes: relevance labels (default), or a file with lines of: query id, tab, topic

    def __post_init__(self) -> None:
        if not (self.concentration > 0 and math.isfinite(self.concentration)):
            raise ValueError(f"concentration must be greater than 0, such as 0.5 (got {self.concentration})")

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        _enough_queries(data, count)
        kind = main_grades(data) if self.over == "grade" else _classes(self.over, data)[1]
        for _ in range(REDRAWS):
            client = self._draw(kind, count, rng)
            if np.all(np.bincount(client, minlength=count)):
                return _own_pools(_pools_of(client, count))
        raise ValueError(
            f"concentration = {self.concentration} left one of {count} clients without a query {REDRAWS} times in a "
            f"row, because {data.queries} queries are too few; use fewer clients or a larger concentration"
        )

    def _draw(self, kind: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        client = np.empty(len(kind), dtype=np.int64)
        for each in np.unique(kind):
            members = rng.permutation(np.flatnonzero(kind == each))
            ends = np.cumsum(rng.dirichlet(np.full(count, self.concentration)))
            cuts = np.round(ends[:-1] * len(members)).astype(np.int64)
            client[members] = np.searchsorted(cuts, np.arange(len(members)), side="right")
        return client


@dataclass(frozen=True)
class Users:
    """Every client is one user of a search log, with that user's queries in order of time; needs data.log.

    Client 0 is the user with the most training queries, and so on; with fewer clients than users, the other users are
    left out.
    """

    shuffled: bool = False  # assign the same queries at random, as many per client as before: the IID counterpart

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        if not len(data.who):
            raise ValueError(f"{data.name or 'this data set'} has no users of queries; use data.log")
        names, of_query, sizes = np.unique(data.who, return_inverse=True, return_counts=True)
        if count > len(names):
            raise ValueError(
                f"{count} clients, but the training queries are of {len(names)} users; "
                f"use at most clients.count = {len(names)}"
            )
        rank = np.empty(len(names), dtype=np.int64)
        rank[np.argsort(-sizes, kind="stable")] = np.arange(len(names))
        client = rank[of_query.ravel()]
        if self.shuffled:
            taken = np.flatnonzero(client < count)
            client[taken] = rng.permutation(client[taken])
        return _own_pools(_pools_of(client, count))


def main_grades(data: RankingData) -> NDArray[np.int64]:
    """[queries]: the most frequent label above 0, the highest in a tie; 0 without relevant documents."""
    counts = grade_counts(data.grades, data.offsets, data.top_grade + 1)[:, 1:]
    if not counts.shape[1]:
        return np.zeros(data.queries, dtype=np.int64)
    best = counts.shape[1] - np.argmax(counts[:, ::-1], axis=1)
    return np.where(counts.any(axis=1), best, 0)


def grade_counts(grades: NDArray[np.int8], offsets: Offsets, levels: int) -> NDArray[np.int64]:
    """[queries, levels]: number of documents with each label."""
    query_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    cells = np.bincount(query_of * levels + grades, minlength=(len(offsets) - 1) * levels)
    return cells.reshape(-1, levels)


@dataclass(frozen=True)
class Shared:
    """Some queries, with all their documents and labels, are given to every client of another partition.

    Data sharing (Zhao et al., 2018). If a client already has a part of a shared query, the complete query replaces it.
    """

    partition: Partition = field(default_factory=Iid)
    share: float = 0.1  # share of all queries, greater than 0 and less than 1
    warm_up: int = 0  # interactions on the shared queries to train the first model; 0: no warm-up

    def __post_init__(self) -> None:
        if self.warm_up < 0:
            raise ValueError(f"warm_up must be at least 0 (got {self.warm_up})")
        if not 0 < self.share < 1:
            raise ValueError(f"share must be between 0 and 1, such as 0.1 (got {self.share})")

    def __call__(self, data: RankingData, count: int, rng: np.random.Generator) -> Split:
        split = self.partition(data, count, rng)
        chosen = rng.choice(data.queries, size=max(1, round(self.share * data.queries)), replace=False)
        drawn = np.sort(chosen).astype(np.int32)
        if split.data is None and split.grades is None:
            return replace(split, pools=tuple(np.union1d(pool, drawn) for pool in split.pools), shared=drawn)
        from fedrank.data.normalise import normalise

        base, whole = data if split.data is None else split.data, data.select(drawn)
        if whole.normalised != base.normalised:
            whole = normalise(whole, base.normalised)
        added = np.arange(base.queries, base.queries + len(drawn), dtype=np.int32)
        replaced = np.isin(base.query_ids, whole.query_ids)
        grades = split.grades
        if grades is not None:
            grades = np.concatenate([grades, np.tile(whole.grades, (len(grades), 1))], axis=1)
        return replace(
            split,
            pools=tuple(np.concatenate([pool[~replaced[pool]], added]) for pool in split.pools),
            data=RankingData.join([base, whole]),
            grades=grades,
            shared=added,
        )


def _own_pools(pools: Iterable[NDArray[np.int32]]) -> Split:
    pools = tuple(pools)
    return Split(pools, np.arange(len(pools), dtype=np.int32))


def _pools_of(client: NDArray[np.int64], count: int) -> list[NDArray[np.int32]]:
    order = np.argsort(client, kind="stable").astype(np.int32)
    edges = np.searchsorted(client[order], np.arange(count + 1))
    return [order[edges[c] : edges[c + 1]] for c in range(count)]


def _enough_queries(data: RankingData, count: int) -> None:
    if count > data.queries:
        raise ValueError(
            f"{count} clients need at least as many queries, but the data have {data.queries}; "
            f'use at most {data.queries} clients, or partition = {{ name = "iid" }}'
        )


def _intents_of(data: RankingData) -> NDArray[np.int8]:
    """Relevance labels by intent, [intents, documents]."""
    from fedrank.data.catalog import CATALOG

    if not len(data.intents):
        raise ValueError(
            f"{data.name or 'this data set'} has no judgements by intent; use data.name = "
            + " or ".join(f'"{entry.name}"' for entry in CATALOG.values() if entry.intents)
        )
    return data.intents


def _classes(file: str, data: RankingData) -> tuple[list[str], NDArray[np.int64]]:
    """Return the sorted values of the queries in a file, and the index of each query's value."""
    known: dict[str, str] = {}
    for number, line in enumerate(read_text(file, "utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        query, _, value = (part.strip() for part in line.partition("\t"))
        if not query or not value:
            raise ValueError(f"{file}, line {number}: {line!r} is not valid; write 'query id<TAB>value'")
        if known.setdefault(query, value) != value:
            raise ValueError(
                f"{file}, line {number}: query {query} has values {known[query]!r} and {value!r}; remove one of them"
            )
    ids = [str(query) for query in data.query_ids]
    lacking = [query for query in ids if query not in known]
    if lacking:
        raise ValueError(
            f"{file} has no value for {len(lacking)} of {len(ids)} queries, such as {lacking[0]}; add a line for each"
        )
    values = sorted({known[query] for query in ids})
    place = {value: i for i, value in enumerate(values)}
    return values, np.array([place[known[query]] for query in ids], dtype=np.int64)


PARTITIONS: dict[str, type[Partition]] = {
    "iid": Iid,
    "own": Own,
    "intents": Intents,
    "labels": Labels,
    "attribute": Attribute,
    "dirichlet": Dirichlet,
    "shared": Shared,
    "users": Users,
}

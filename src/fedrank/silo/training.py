"""Four ways for silos to train a ranker: alone or together, on their own documents or on those of others too.

CS-F-LTR (Wang et al., ICDE 2021) is the last one: every silo adds documents of others, which it found by sketches, to
the training lists of its queries, and all train one linear point-wise model in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.collection import Collection
from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.federated.aggregators import Mean
from fedrank.seeds import rng_for
from fedrank.silo.features import (
    BM25_OF,
    FEATURE_NAMES,
    FIELDS,
    Background,
    Normalisation,
    Real,
    features,
    scaled,
    scaled_like,
)
from fedrank.silo.partners import Exact, Partner, Sketched, sketch_fields
from fedrank.silo.remote_counts import CountQuery, RemoteCounts
from fedrank.silo.rtk import PUBLISHED, TopKRule
from fedrank.silo.silos import Silo, SiloQuery, SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from fedrank.types import Features, Grades, Messages, Source, Weights

Guess = Literal["like-own", "one"]  # relevance labels of documents without judgements
Scaling = Literal["own", "together"]  # what a list is scaled by: its own documents, or found ones, too
PARAMETERS = len(FEATURE_NAMES) + 1  # and a bias, which does not change the order of a list
_PLACE_BYTES, _ROW_BYTES, _COUNT_BYTES = 5, 4, 4  # a cell with its sign; a document; a number about it


@dataclass(frozen=True)
class Lists:
    """Training and test lists of each silo, with scaled features."""

    train: tuple[RankingData, ...]  # [participating silos]
    test: tuple[RankingData, ...]  # [silos]: own queries and own documents, with the features that the method computes
    added: NDArray[np.int64]  # [participating silos]: documents of others in the training lists
    bytes: int = 0  # that silos sent each other to make them
    looked_up: int = 0  # terms that silos asked each other for, once per field
    answers: int = 0  # pairs of document and count that they sent each other

    def joined(self) -> RankingData:
        """All training lists as one data set with the silo of each list, for other learners of fedrank.

        `make_clients(lists.joined(), silos, partition=Users())` makes every silo a client.
        """
        parts = [replace(part, who=np.empty(0, np.int32), when=np.empty(0, np.int64)) for part in self.train]
        sizes = [part.queries for part in parts]
        return replace(
            RankingData.join(parts),
            who=np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
            when=np.arange(sum(sizes), dtype=np.int64),
        )


class SiloMethod(Protocol):
    """A way for silos to train a ranker."""

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        """The lists of all silos."""

    def first(self, silos: int) -> Weights:
        """The first weights: [parameters] for one shared model, [silos, parameters] for separate models."""

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        """One pass of every silo over its lists, or as many steps as the method says."""

    def trained_on(self, lists: Lists) -> int:
        """Documents used in a round, with repetitions."""


@dataclass(frozen=True)
class Local:
    """Every silo trains its own model on its own documents."""

    rate: float = (
        0.5  # of the SGD on the logistic loss; the target of a document is its relevance label / the highest label
    )
    batch: int = 32  # documents of a step
    steps: int | None = None  # of a model in a round; None: as many as one pass over the lists
    normalise: Normalisation = "query"  # by list, as in the paper; or "fixed", which search engines can do, too

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"steps must be at least 1 (got {self.steps}); leave it out for one pass")
        if not self.rate > 0 or self.batch < 1:
            raise ValueError(f"rate must be above 0 and batch at least 1 (got {self.rate} and {self.batch})")

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        top = _top_grade(silos)
        parts = [silo_lists(silo, (), 0, top, how=self.normalise) for silo in _taking_part(silos)]
        return _joined(parts, silos, top, self.normalise)

    def first(self, silos: int) -> Weights:
        return np.zeros((silos, PARAMETERS))

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        return np.stack(
            [self.train(weights[c], data, c, round, seed, self.steps) for c, data in enumerate(lists.train)]
        )

    def trained_on(self, lists: Lists) -> int:
        if self.steps is None:
            return sum(data.documents for data in lists.train)
        return self.steps * self.batch * len(lists.train)

    def train(
        self, weights: Weights, data: RankingData, silo: int, round: int, seed: int, steps: int | None = None
    ) -> Weights:
        """One pass of one silo over its lists in random order, or `steps` steps."""
        rng = rng_for(seed, "silo", round, silo)
        return sgd(weights, data.features, data.grades / max(data.top_grade, 1), self.rate, self.batch, rng, steps)


@dataclass(frozen=True)
class LocalPlus(Local):
    """Every silo trains its own model, on its own documents and on those that it found in other silos."""

    counts: Literal["sketch", "exact"] = "sketch"  # exact: without sketches, for comparison
    kind: Literal["count-sketch", "count-min"] = "count-sketch"  # count-min has no signs
    width: int = 200  # columns of a sketch, w
    depth: int = 30  # rows of a sketch, z
    noise: float = 1.0  # σ1 of the sketches; 0 protects nothing
    alpha: float = 5.0  # α k documents are kept at each end of a cell
    beta: float = 0.1  # a document must be found in this share of the rows
    k: int = 150  # documents that a term finds in a silo, and a query in all others together
    grades: Guess = "like-own"  # of found documents: in the shares of a silo's own best ones; or all 1, as in the paper
    k_share: float | None = None  # instead of k: a share of all others' documents; .00137 in the paper; 0: their words
    scaling: Scaling = "own"  # found documents are measured by a list's own, as test lists are; or all "together"
    noise_in: Literal["sketch", "lookup", "paper"] = (
        "sketch"  # where noise is added: once; to each answer; as published (no privacy)
    )
    epsilon: float = 0.5  # of an answer, where noise is not in the sketch
    true_rows: int | None = None  # z1: rows of a question that ask for its term, as published; None: all
    find: Literal["both-ends", "published"] = "both-ends"  # what cells keep; "published": algorithms 4 and 5 as printed

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sketcher, self.rule  # which validate settings
        if self.k_share is not None and not 0 <= self.k_share <= 1:
            raise ValueError(f"k_share must be between 0 and 1 (got {self.k_share}), such as 0.00137")
        if not (isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be above 0 (got {self.epsilon}), such as 0.5")
        if self.true_rows is not None and not 1 <= self.true_rows <= self.depth:
            raise ValueError(f"true_rows must be between 1 and {self.depth} (got {self.true_rows})")
        if self.true_rows is not None and self.noise_in == "lookup":
            raise ValueError(
                "true_rows needs answers for each row, and noise_in = 'lookup' gives one number for all rows; leave "
                "true_rows out, or use noise_in = 'paper' or 'sketch'"
            )
        if self.counts == "exact" and (self.noise_in != "sketch" or self.true_rows is not None):
            raise ValueError("counts = 'exact' does not use noise_in and true_rows; leave them out")

    @property
    def sketcher(self) -> Sketcher:
        return Sketcher(self.kind, self.width, self.depth, noise=self.noise if self.noise_in == "sketch" else 0.0)

    @property
    def rule(self) -> TopKRule:
        if self.find == "published":
            return replace(PUBLISHED, alpha=self.alpha, beta=self.beta, k=self.k)
        if self.kind == "count-min":
            return TopKRule(self.alpha, self.beta, self.k, keep="largest", missing="threshold")
        return TopKRule(self.alpha, self.beta, self.k)

    def most(self, silos: Sequence[Silo]) -> list[int]:
        """[silos]: documents that a query of each finds in all others together.

        None for a share of 0: then silos exchange document frequencies only.
        """
        if not self.k_share:
            return [self.k if self.k_share is None else 0] * len(silos)
        everybody = sum(silo.documents for silo in silos)
        return [max(1, round(self.k_share * (everybody - silo.documents))) for silo in silos]

    def partner(self, silo: Silo, key: bytes, k: int, seed: int, source: Source | None = None) -> Partner:
        """A silo as other silos see it; a term finds k documents."""
        if self.counts == "exact":
            return Exact(silo, k)
        if self.noise_in == "lookup":
            return RemoteCounts(silo.fields, self.sketcher, key, k, self.epsilon, source)
        sketch = sketch_fields(silo.fields, self.sketcher, replace(self.rule, k=k), key, source)
        if self.noise_in == "sketch" and self.true_rows is None:
            return Sketched(sketch, key)
        epsilon = self.epsilon if self.noise_in == "paper" else None
        return CountQuery(sketch, key, self.true_rows or self.depth, epsilon, seed, source)

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        key = rng_for(seed, "key of the silos").bytes(32)
        members = _taking_part(silos)
        k = max(1, *self.most(members))
        lists = self.lists_with(silos, [self.partner(silo, key, k, seed, source) for silo in members])
        if self.counts == "exact":
            return lists
        row_by_row = self.noise_in == "paper" or self.true_rows is not None
        numbers = self.depth if row_by_row else 1  # numbers sent for a document and a term
        asked = lists.looked_up * self.depth * _PLACE_BYTES + lists.answers * (_ROW_BYTES + numbers * _COUNT_BYTES)
        fields = sum(len(silo.fields) for silo in members)
        counted = 0 if self.noise_in == "lookup" else fields * self.depth * self.sketcher.wide.width * _COUNT_BYTES
        return replace(lists, bytes=asked + counted)

    def lists_with(self, silos: Sequence[Silo], partners: Sequence[Partner]) -> Lists:
        """The lists of all silos with these partners: partner s is the s-th participating silo."""
        top, members = _top_grade(silos), _taking_part(silos)
        parts = []
        for place, (silo, most) in enumerate(zip(members, self.most(members), strict=True)):
            others = [*partners[:place], *partners[place + 1 :]]
            parts.append(silo_lists(silo, others, most, top, self.grades, self.scaling, self.normalise))
        return _joined(parts, silos, top, self.normalise)


@dataclass(frozen=True)
class _Together(Local):
    """One model for all silos."""

    combine: Literal["round-robin", "mean"] = "round-robin"  # silos train in turns; or FedAvg

    def first(self, silos: int) -> Weights:
        return np.zeros(PARAMETERS)

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        silos = np.arange(len(lists.train))
        if self.combine == "round-robin":
            # The order changes every round, because the last silo has the strongest influence on the model.
            for turn, silo in enumerate(np.roll(silos, -round)):
                steps = None if self.steps is None else (self.steps + turn) // len(silos)
                weights = self.train(weights, lists.train[silo], int(silo), round, seed, steps)
            return weights
        updates = np.stack(
            [self.train(weights, data, c, round, seed, self.steps) - weights for c, data in enumerate(lists.train)]
        )
        sizes = np.array([data.documents for data in lists.train])
        arrived = Messages(updates.astype(np.float32), sizes, silos, weights, round)
        return weights + Mean()(arrived)

    def trained_on(self, lists: Lists) -> int:
        everybody = super().trained_on(lists)
        return everybody // len(lists.train) if self.steps and self.combine == "round-robin" else everybody


@dataclass(frozen=True)
class Global(_Together):
    """All silos train one model, each on its own documents: standard federated learning."""


@dataclass(frozen=True)
class CrossSilo(_Together, LocalPlus):
    """All silos train one model, each on its own documents and on those that it found in other silos (CS-F-LTR)."""


SILO_METHODS: dict[str, type[SiloMethod]] = {
    "local": Local,
    "local-plus": LocalPlus,
    "global": Global,
    "cross-silo": CrossSilo,
}


def sgd(
    weights: Weights,
    features: Features,
    targets: NDArray[np.float64],
    rate: float,
    batch: int,
    rng: np.random.Generator,
    steps: int | None = None,
) -> Weights:
    """One pass of logistic regression over all rows in random order, or `steps` steps; the last weight is the bias.

    Steps beyond a pass begin another one, in another order; 0 steps change nothing.
    """
    order = rng.permutation(len(features))
    if steps is not None:
        while len(order) < steps * batch:
            order = np.concatenate([order, rng.permutation(len(features))])
        order = order[: steps * batch]
    rows = np.column_stack([features, np.ones(len(features))])[order]
    targets = targets[order]
    weights = weights.copy()
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        scores = kernels.sums.products(part, weights[None])[:, 0]
        error = 1 / (1 + kernels.elementary.exp_each(-scores)) - targets[start : start + batch]
        weights -= rate / len(part) * kernels.sums.weighted_sum(error, part)
    return weights


@dataclass(frozen=True)
class Matches:
    """Documents of partners for one query."""

    features: Features  # [documents, 16]
    partners: NDArray[np.int64]  # [documents]: which of them holds it
    answers: int  # pairs of document and count that partners sent for it


def backgrounds(silo: Silo, partners: Sequence[Partner], terms: Sequence[str]) -> dict[str, Background]:
    """Statistics of all documents, by field: exact for own documents, as reported for those of partners."""
    own = {name: silo.fields[name].background(terms) for name in FIELDS}
    if not partners:
        return own
    answered = [partner.frequencies(terms) for partner in partners]
    return {
        name: Background(
            own[name].documents + sum(partner.documents for partner in partners),
            own[name].words + sum(partner.words[name] for partner in partners),
            own[name].frequencies + _estimate([each[name] for each in answered], partners[0].kind),
        )
        for name in FIELDS
    }


def _estimate(rows: Sequence[Real], kind: str) -> Real:
    """[terms]: from rows of several sketches, which are summed first."""
    total = sum(rows[1:], rows[0])
    found: Real = total.min(axis=-1) if kind == "count-min" else np.median(total, axis=-1)
    return found


def matches(partners: Sequence[Partner], terms: Sequence[str], about: Mapping[str, Background], most: int) -> Matches:
    """The best documents of partners for a query, at most `most`, by BM25 of body and title.

    A document that a term did not find counts as not holding it.
    """
    parts: list[Features] = [np.empty((0, len(FEATURE_NAMES)), np.float32)]
    whose, answers = [np.empty(0, np.int64)], 0
    for number, partner in enumerate(partners):
        answered = partner.counts(terms)
        parts.append(features(answered.counts, answered.lengths, about))
        whose.append(np.full(len(answered.documents), number))
        answers += answered.answers
    rows = np.concatenate(parts)
    scores = bm25(rows)
    best = np.argsort(-scores, kind="stable")[:most]
    best = best[scores[best] > 0]
    return Matches(rows[best], np.concatenate(whose)[best], answers)


def bm25(rows: Features) -> Features:
    """[documents]: of body and title together, from features that were not scaled."""
    scores: Features = rows[:, list(BM25_OF.values())].sum(axis=1)
    return scores


@dataclass(frozen=True)
class SiloLists:
    """Training and test lists of one silo."""

    train: RankingData
    test: RankingData  # own queries and own documents
    bm25: Features  # [test documents]: the baseline ranking
    added: int  # documents of partners in the training lists
    looked_up: int
    answers: int


def own_lists(collection: Collection, seed: int, top: int, how: Normalisation) -> SiloLists:
    """Lists of one organisation alone, with all documents and queries of a collection."""
    (silo,) = make_silos(collection, SilosRule(1), Tokeniser(), seed)
    return silo_lists(silo, (), 0, top, how=how)


def silo_lists(
    silo: Silo,
    partners: Sequence[Partner],
    most: int,
    top: int,
    guess: Guess = "like-own",
    scaling: Scaling = "own",
    how: Normalisation = "query",
) -> SiloLists:
    """Lists of one silo, with statistics of its partners and at most `most` of their documents per query.

    With fixed ranges, `scaling` makes no difference.
    """
    asked: list[tuple[SiloQuery, Features, Features]] = []  # own candidates, and what was found, best first
    looked_up = answers = 0
    for query in silo.train:
        about = backgrounds(silo, partners, query.terms)
        found = matches(partners, query.terms, about, most)
        asked.append((query, _own(silo, query, about), found.features))
        looked_up += len(query.terms) * len(FIELDS) * len(partners)
        answers += found.answers
    alike = np.ones(1, np.int8)
    if partners and guess == "like-own":
        alike = _grades_of_the_best(asked, -(-most // len(partners)))
    learnt = []
    for query, own, found_rows in asked:
        rows = np.concatenate([own, found_rows])
        grades = np.concatenate([query.grades, _in_shares(alike, len(found_rows))])
        if how == "query":
            rows = scaled_like(rows, own if scaling == "own" else rows)
        learnt.append((query, rows, grades))
    train, test = _data(learnt, top, silo), _raw_test(silo, partners, top)
    train = replace(train, normalised="query") if how == "query" else scaled(train, how)
    added = train.documents - sum(len(query.candidates) for query in silo.train)
    return SiloLists(train, scaled(test, how), bm25(test.features), added, looked_up, answers)


def _raw_test(silo: Silo, partners: Sequence[Partner], top: int) -> RankingData:
    """Own test queries and documents, before they are scaled."""
    judged = [(one, _own(silo, one, backgrounds(silo, partners, one.terms)), one.grades) for one in silo.test]
    return _data(judged, top, silo)


def _grades_of_the_best(asked: Sequence[tuple[SiloQuery, Features, Features]], first: int) -> Grades:
    """Relevance labels of a silo's own documents among the first of their list by BM25, all lists together, best first.

    They stand for documents of partners, which have no judgements. The paper gives these label 1, which suits its data:
    most of an engine's first hundred have it. With human judgements, one document in twenty may be relevant, and 150
    documents of label 1 teach the difference between found and own documents, not between good and bad ones.
    """
    best = [query.grades[np.argsort(-bm25(own), kind="stable")[:first]] for query, own, _ in asked]
    grades: Grades = -np.sort(-np.concatenate(best))
    return grades


def _in_shares(grades: Grades, documents: int) -> Grades:
    """[documents], best first: every label for the same share of them as among the given ones."""
    middles = (np.arange(documents) + 0.5) / max(documents, 1)
    return grades[(middles * len(grades)).astype(np.int64)]


def own_bm25(silos: Sequence[Silo]) -> Features:
    """[test documents of all silos]: the baseline ranking, by the statistics of every silo's own documents.

    It does not depend on the method.
    """
    queries = [(silo, query) for silo in silos for query in silo.test]
    return np.concatenate([bm25(_own(silo, query, backgrounds(silo, (), query.terms))) for silo, query in queries])


def _taking_part(silos: Sequence[Silo]) -> list[Silo]:
    """Silos that train; the others have test queries only."""
    return [silo for silo in silos if silo.train]


def _joined(parts: Sequence[SiloLists], silos: Sequence[Silo], top: int, how: Normalisation) -> Lists:
    """Lists of the participating silos, and test lists of the others from their own documents."""
    outside = [scaled(_raw_test(silo, (), top), how) for silo in silos if not silo.train]
    return Lists(
        tuple(part.train for part in parts),
        (*(part.test for part in parts), *outside),
        np.array([part.added for part in parts]),
        looked_up=sum(part.looked_up for part in parts),
        answers=sum(part.answers for part in parts),
    )


def _top_grade(silos: Sequence[Silo]) -> int:
    return max(int(query.grades.max()) for silo in silos for query in (*silo.train, *silo.test))


def _own(silo: Silo, query: SiloQuery, about: dict[str, Background]) -> Features:
    counts = {field: silo.fields[field].count_matrix(query.terms)[query.candidates] for field in FIELDS}
    lengths = {field: silo.fields[field].lengths[query.candidates] for field in FIELDS}
    return features(counts, lengths, about)


def _data(lists: list[tuple[SiloQuery, Features, Grades]], top: int, silo: Silo) -> RankingData:
    return RankingData(
        features=np.concatenate([rows for _, rows, _ in lists]),
        grades=np.concatenate([grades for _, _, grades in lists]),
        offsets=np.cumsum([0, *(len(grades) for _, _, grades in lists)], dtype=np.int64),
        query_ids=np.array([query.id for query, _, _ in lists]),
        name=f"silo {silo.number}",
        top_grade=top,
        feature_names=FEATURE_NAMES,
    )

"""Four ways for silos to train a ranker: alone or together, on their own documents or on those of others too.

CS-F-LTR (Wang et al., ICDE 2021) is the last one: every silo adds documents of others, which it found by sketches, to
the training lists of its queries, and all train one linear point-wise model in turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.ranking import RankingData
from fedrank.federate.aggregate import Mean
from fedrank.seeds import rng_for
from fedrank.silo.augment import backgrounds, bm25, matches
from fedrank.silo.features import FEATURE_NAMES, FIELDS, Background, Normalisation, features, scaled
from fedrank.silo.partners import Exact, Partner, Sketched, sketch_fields
from fedrank.silo.rtk import TopKRule
from fedrank.silo.silos import Silo, SiloQuery
from fedrank.silo.sketch import Sketcher
from fedrank.types import Features, Grades, Messages, Source, Weights

Guess = Literal["like-own", "one"]  # how documents that nobody judged are graded
PARAMETERS = len(FEATURE_NAMES) + 1  # and a bias, which moves no document in a list
_PLACE_BYTES, _ANSWER_BYTES = 5, 8  # a cell with its sign; a row with its count


@dataclass(frozen=True)
class Lists:
    """What a method trains on and is judged by: one set of lists for each silo, with scaled features."""

    train: tuple[RankingData, ...]  # [silos]
    test: tuple[RankingData, ...]  # [silos]: own queries and own documents, with the features that the method computes
    added: NDArray[np.int64]  # [silos]: documents of others in the training lists
    bytes: int = 0  # that silos sent each other to make them
    looked_up: int = 0  # terms that silos asked each other for, once a field
    answers: int = 0  # pairs of document and count that they told each other

    def joined(self) -> RankingData:
        """All training lists as one set that says whose each is, for other learners of fedrank.

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
    """How silos come to a ranker."""

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        """What every silo trains on."""

    def first(self, silos: int) -> Weights:
        """[parameters] for one model of all, [silos, parameters] where each has its own."""

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        """One pass of every silo over its lists."""


@dataclass(frozen=True)
class Local:
    """Every silo trains a model of its own on its own documents."""

    rate: float = 0.5  # of the SGD on the logistic loss; the target of a document is its grade / the highest grade
    batch: int = 32  # documents of a step
    normalise: Normalisation = "query"  # each list by itself, as in the paper; or "fixed", which an engine can do, too

    def __post_init__(self) -> None:
        if not self.rate > 0 or self.batch < 1:
            raise ValueError(
                f"rate = {self.rate}, batch = {self.batch} learn nothing; use a rate above 0 and 1 document or more"
            )

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        top = _top_grade(silos)
        return _joined([silo_lists(silo, (), 0, top, how=self.normalise) for silo in silos])

    def first(self, silos: int) -> Weights:
        return np.zeros((silos, PARAMETERS))

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        return np.stack([self.train(weights[c], data, c, round, seed) for c, data in enumerate(lists.train)])

    def train(self, weights: Weights, data: RankingData, silo: int, round: int, seed: int) -> Weights:
        """One pass of one silo over its lists, in random order."""
        rng = rng_for(seed, "silo", round, silo)
        return sgd(weights, data.features, data.grades / max(data.top_grade, 1), self.rate, self.batch, rng)


@dataclass(frozen=True)
class LocalPlus(Local):
    """Every silo trains a model of its own, on its own documents and on those that it found in other silos."""

    counts: Literal["sketch", "exact"] = "sketch"  # exact: as if everybody could look into every document
    kind: Literal["count-sketch", "count-min"] = "count-sketch"  # count-min has no signs
    width: int = 200  # columns of a sketch, w
    depth: int = 30  # rows of a sketch, z
    noise: float = 1.0  # σ1 of the sketches; 0 protects nothing
    alpha: float = 5.0  # α k documents are kept at each end of a cell
    beta: float = 0.1  # a document must be found in this share of the rows
    k: int = 150  # documents that a term finds in a silo, and a query in all others together
    grades: Guess = "like-own"  # of found documents: in the shares of a silo's own best ones; or all 1, as the paper

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sketcher, self.rule  # which refuse settings that make no sense

    @property
    def sketcher(self) -> Sketcher:
        return Sketcher(self.kind, self.width, self.depth, noise=self.noise)

    @property
    def rule(self) -> TopKRule:
        if self.kind == "count-min":
            return TopKRule(self.alpha, self.beta, self.k, keep="largest", missing="threshold")
        return TopKRule(self.alpha, self.beta, self.k)

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        key = rng_for(seed, "key of the silos").bytes(32)
        if self.counts == "exact":
            return self.lists_with(silos, [Exact(silo, self.k) for silo in silos])
        sketches = [sketch_fields(silo.fields, self.sketcher, self.rule, key, source) for silo in silos]
        lists = self.lists_with(silos, [Sketched(sketch, key) for sketch in sketches])
        counted = sum(wide.nbytes for sketch in sketches for wide in sketch.frequencies.values())
        asked = lists.looked_up * self.depth * _PLACE_BYTES + lists.answers * _ANSWER_BYTES
        return replace(lists, bytes=asked + counted)

    def lists_with(self, silos: Sequence[Silo], partners: Sequence[Partner]) -> Lists:
        """What every silo trains on, if the others answer it so: partner s stands for silo s."""
        top = _top_grade(silos)
        others = [[*partners[:place], *partners[place + 1 :]] for place in range(len(silos))]
        pairs = zip(silos, others, strict=True)
        return _joined([silo_lists(silo, them, self.k, top, self.grades, self.normalise) for silo, them in pairs])


@dataclass(frozen=True)
class _Together(Local):
    """One model for all silos."""

    combine: Literal["round-robin", "mean"] = "round-robin"  # the model goes from silo to silo; or FedAvg of all

    def first(self, silos: int) -> Weights:
        return np.zeros(PARAMETERS)

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        silos = np.arange(len(lists.train))
        if self.combine == "round-robin":
            for silo in np.roll(silos, -round):  # nobody is always the last, whose lists the model remembers best
                weights = self.train(weights, lists.train[silo], int(silo), round, seed)
            return weights
        updates = np.stack([self.train(weights, data, c, round, seed) - weights for c, data in enumerate(lists.train)])
        sizes = np.array([data.documents for data in lists.train])
        arrived = Messages(updates.astype(np.float32), sizes, silos, weights, round)
        return weights + Mean()(arrived)


@dataclass(frozen=True)
class Global(_Together):
    """All silos train one model, each on its own documents: federated learning as usual."""


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
) -> Weights:
    """One pass of logistic regression over all rows in random order; the last weight is the bias."""
    order = rng.permutation(len(features))
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
class SiloLists:
    """What one silo trains on and is judged by."""

    train: RankingData
    test: RankingData  # own queries and own documents
    bm25: Features  # [test documents]: what ranks them without learning
    added: int  # documents of partners in the training lists
    looked_up: int
    answers: int


def silo_lists(
    silo: Silo,
    partners: Sequence[Partner],
    most: int,
    top: int,
    guess: Guess = "like-own",
    how: Normalisation = "query",
) -> SiloLists:
    """Lists of one silo, with statistics of its partners and at most so many of their documents a query."""
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
    learnt = [
        (query, np.concatenate([own, found]), np.concatenate([query.grades, _in_shares(alike, len(found))]))
        for query, own, found in asked
    ]
    judged = [(one, _own(silo, one, backgrounds(silo, partners, one.terms)), one.grades) for one in silo.test]
    train, test = _data(learnt, top, silo), _data(judged, top, silo)
    added = train.documents - sum(len(query.candidates) for query in silo.train)
    return SiloLists(scaled(train, how), scaled(test, how), bm25(test.features), added, looked_up, answers)


def _grades_of_the_best(asked: Sequence[tuple[SiloQuery, Features, Features]], first: int) -> Grades:
    """Grades of a silo's own documents that are among the first of their list by BM25, all lists together, best first.

    They stand for documents that partners hold and nobody judged. The paper gives these grade 1, which fits its labels:
    most of an engine's first hundred have it. Where people judged, one document in twenty may be relevant, and 150 of
    grade 1 teach what tells found documents from own ones, not good documents from bad ones.
    """
    best = [query.grades[np.argsort(-bm25(own), kind="stable")[:first]] for query, own, _ in asked]
    grades: Grades = -np.sort(-np.concatenate(best))
    return grades


def _in_shares(grades: Grades, documents: int) -> Grades:
    """[documents], best first: every grade for the same share of them as among the given ones."""
    middles = (np.arange(documents) + 0.5) / max(documents, 1)
    return grades[(middles * len(grades)).astype(np.int64)]


def own_bm25(silos: Sequence[Silo]) -> Features:
    """[test documents of all silos]: what ranks them without learning, by what every silo knows of its own documents.

    Whatever a method tells silos of each other, this stays the same.
    """
    queries = [(silo, query) for silo in silos for query in silo.test]
    return np.concatenate([bm25(_own(silo, query, backgrounds(silo, (), query.terms))) for silo, query in queries])


def _joined(parts: Sequence[SiloLists]) -> Lists:
    return Lists(
        tuple(part.train for part in parts),
        tuple(part.test for part in parts),
        np.array([part.added for part in parts]),
        looked_up=sum(part.looked_up for part in parts),
        answers=sum(part.answers for part in parts),
    )


def _top_grade(silos: Sequence[Silo]) -> int:
    return max(int(query.grades.max()) for silo in silos for query in (*silo.train, *silo.test))


def _own(silo: Silo, query: SiloQuery, about: dict[str, Background]) -> Features:
    counts = {field: silo.fields[field].held(query.terms)[query.candidates] for field in FIELDS}
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

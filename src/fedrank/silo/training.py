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
from fedrank.data.normalise import normalise
from fedrank.data.ranking import RankingData
from fedrank.federate.aggregate import Mean
from fedrank.seeds import rng_for
from fedrank.silo.augment import Exact, Sketched, background, matches, sketch_silos
from fedrank.silo.features import FEATURE_NAMES, FIELDS, Background, features
from fedrank.silo.rtk import TopKRule
from fedrank.silo.silos import Question, Silo
from fedrank.silo.sketch import Sketcher
from fedrank.types import Arrivals, Features, Grades, Source, Weights

AUGMENTED = 1  # the grade of a document that was found in another silo
PARAMETERS = len(FEATURE_NAMES) + 1  # and a bias, which moves no document in a list


@dataclass(frozen=True)
class Lists:
    """What a method trains on and is judged by: one set of lists for each silo, features scaled within each list."""

    train: tuple[RankingData, ...]  # [silos]
    test: tuple[RankingData, ...]  # [silos]: own queries and own documents, with the features that the method computes
    added: NDArray[np.int64]  # [silos]: documents of others in the training lists
    bytes: int = 0  # that silos sent each other to make them

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

    def __post_init__(self) -> None:
        if not self.rate > 0 or self.batch < 1:
            raise ValueError(
                f"rate = {self.rate}, batch = {self.batch} learn nothing; use a rate above 0 and 1 document or more"
            )

    def lists(self, silos: Sequence[Silo], seed: int, source: Source | None = None) -> Lists:
        return _lists(silos, None, 0)

    def first(self, silos: int) -> Weights:
        return np.zeros((silos, PARAMETERS))

    def step(self, weights: Weights, lists: Lists, round: int, seed: int) -> Weights:
        return np.stack([self.train(weights[c], lists, c, round, seed) for c in range(len(lists.train))])

    def train(self, weights: Weights, lists: Lists, silo: int, round: int, seed: int) -> Weights:
        """One pass of one silo over its lists, in random order."""
        data = lists.train[silo]
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
        if self.counts == "exact":
            return _lists(silos, Exact(silos, self.k), self.k)
        key = rng_for(seed, "key of the silos").bytes(32)
        return _lists(silos, sketch_silos(silos, self.sketcher, self.rule, key, source), self.k)


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
                weights = self.train(weights, lists, int(silo), round, seed)
            return weights
        updates = np.stack([self.train(weights, lists, int(silo), round, seed) - weights for silo in silos])
        sizes = np.array([data.documents for data in lists.train])
        arrived = Arrivals(updates.astype(np.float32), sizes, silos, weights, np.full(len(silos), np.nan), round)
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


def _lists(silos: Sequence[Silo], knows: Exact | Sketched | None, most: int) -> Lists:
    """Lists of every silo; with statistics of the federation and documents of others where `knows` tells of them."""
    top = max(int(question.grades.max()) for silo in silos for question in (*silo.train, *silo.test))
    train, test, added = [], [], []
    terms = answers = 0
    for silo in silos:
        learnt: list[tuple[Question, Features, Grades]] = []
        for question in silo.train:
            backgrounds = _backgrounds(silos, knows, silo, question)
            rows, grades = _own(silo, question, backgrounds), question.grades
            if knows is not None:
                found = matches(silos, knows, silo.number, question, backgrounds, most)
                rows = np.concatenate([rows, found.features])
                grades = np.concatenate([grades, np.full(len(found.rows), AUGMENTED, np.int8)])
                terms += len(question.terms) * len(FIELDS) * (len(silos) - 1)
                answers += found.answers
            learnt.append((question, rows, grades))
        judged = [(one, _own(silo, one, _backgrounds(silos, knows, silo, one)), one.grades) for one in silo.test]
        train.append(_data(learnt, top, silo))
        test.append(_data(judged, top, silo))
        added.append(train[-1].documents - sum(len(question.candidates) for question in silo.train))
    sent = 0 if knows is None else knows.bytes(terms, answers)
    return Lists(tuple(train), tuple(test), np.array(added), sent)


def _backgrounds(
    silos: Sequence[Silo], knows: Exact | Sketched | None, silo: Silo, question: Question
) -> dict[str, Background]:
    if knows is None:
        return {field: silo.fields[field].background(question.terms) for field in FIELDS}
    return {field: background(silos, knows, silo.number, field, question.terms) for field in FIELDS}


def _own(silo: Silo, question: Question, backgrounds: dict[str, Background]) -> Features:
    counts = {field: silo.fields[field].counts(question.terms)[question.candidates] for field in FIELDS}
    lengths = {field: silo.fields[field].lengths[question.candidates] for field in FIELDS}
    return features(counts, lengths, backgrounds)


def _data(lists: list[tuple[Question, Features, Grades]], top: int, silo: Silo) -> RankingData:
    return normalise(
        RankingData(
            features=np.concatenate([rows for _, rows, _ in lists]),
            grades=np.concatenate([grades for _, _, grades in lists]),
            offsets=np.cumsum([0, *(len(grades) for _, _, grades in lists)], dtype=np.int64),
            query_ids=np.array([question.id for question, _, _ in lists]),
            name=f"silo {silo.number}",
            top_grade=top,
            feature_names=FEATURE_NAMES,
        ),
        "query",
    )

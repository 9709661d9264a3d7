"""What silos tell each other: documents for a query of one among the documents of the others, with their features.

Every silo sketches its documents once. A querier looks its terms up by reverse top-K and never sees a text: it gets
rows, estimated counts and lengths. How many documents of the federation hold a term comes from one more sketch of every
silo, noised alike; these are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.protect.accounting import GaussianEvent, epsilon
from fedrank.silo.features import BM25_OF, FEATURE_NAMES, FIELDS, Background, Real, features
from fedrank.silo.hashing import Hashing
from fedrank.silo.rtk import ReverseTopK, TopKRule, build
from fedrank.silo.silos import Index, Question, Rows, Silo
from fedrank.silo.sketch import Sketcher, TermCounts
from fedrank.types import Features, Source

WIDTH_OF_FREQUENCIES = 4096  # columns of a sketch that counts documents: one for a whole collection, so it may be wide

_PLACE_BYTES, _ANSWER_BYTES = 5, 8  # a cell with its sign; a row with its count

Found = tuple[NDArray[Any], Real]  # rows of documents and how often each holds the term, best first


@dataclass(frozen=True)
class Matches:
    """Documents of other silos for one query."""

    features: Features  # [documents, 16]
    owners: NDArray[np.int64]  # [documents]: number of the silo
    rows: Rows  # [documents]: row in it; to the querier a pseudonym
    answers: int = 0  # pairs of document and count that owners told for it


@dataclass(frozen=True)
class Exact:
    """True counts, as if everybody could look into every document: what sketches are compared with."""

    silos: Sequence[Silo]
    k: int  # documents that a term finds in a silo

    def find(self, owner: int, field: str, terms: Sequence[str]) -> list[Found]:
        found = []
        for held in self.silos[owner].fields[field].counts(terms).T:
            rows = np.argsort(-held, kind="stable")[: min(self.k, np.count_nonzero(held))]
            found.append((rows, held[rows]))
        return found

    def frequencies(self, querier: int, field: str, terms: Sequence[str]) -> Real:
        """[terms]: documents of the other silos that hold the term."""
        others = [silo.fields[field].background(terms).frequencies for silo in self.silos if silo.number != querier]
        total: Real = np.sum([np.zeros(len(terms)), *others], axis=0)
        return total

    def bytes(self, terms: int, answers: int) -> int:
        return 0


@dataclass(frozen=True)
class Sketched:
    """The sketches of all silos; make it by `sketch_silos`."""

    sketcher: Sketcher
    key: bytes
    owners: tuple[dict[str, ReverseTopK], ...]  # [silos]: by field
    counters: tuple[dict[str, NDArray[np.int32]], ...]  # [silos]: by field, a sketch [z, w] of document frequencies

    def find(self, owner: int, field: str, terms: Sequence[str]) -> list[Found]:
        cells, signs = self.sketcher.places(terms, self._hashing)
        tables = self.owners[owner][field]
        return [tables.query(cells[term], signs[term]) for term in range(len(terms))]

    def frequencies(self, querier: int, field: str, terms: Sequence[str]) -> Real:
        """[terms]: documents of the other silos that hold the term."""
        others = [one[field] for silo, one in enumerate(self.counters) if silo != querier]
        counter = _counter(self.sketcher)
        cells, signs = counter.places(terms, self._counter_hashing)
        rows = np.arange(counter.depth)
        total = np.zeros(cells.shape, np.int32)
        for sketch in others:  # only the cells that are asked for: adding whole sketches takes longer
            total += sketch[rows, cells]
        return counter.estimate(total, signs)

    @cached_property
    def _hashing(self) -> Hashing:
        return self.sketcher.hashing(self.key)

    @cached_property
    def _counter_hashing(self) -> Hashing:
        return _counter(self.sketcher).hashing(self.key)

    def bytes(self, terms: int, answers: int) -> int:
        """Sent for so many looked-up terms, so many answers of row and count to them, and all document frequencies."""
        counters = sum(sketch.nbytes for one in self.counters for sketch in one.values())
        return terms * self.sketcher.depth * _PLACE_BYTES + answers * _ANSWER_BYTES + counters


def sketch_silos(
    silos: Sequence[Silo], sketcher: Sketcher, rule: TopKRule, key: bytes, source: Source | None = None
) -> Sketched:
    """Sketch the documents of every silo, and how many of them hold each term.

    An occurrence of a term is in two sketches, that of its document and that of the frequencies: it pays twice.
    """
    owners, counters = [], []
    for silo in silos:
        tables, counts_of_documents = {}, {}
        for field in FIELDS:
            counts = _term_counts(silo.fields[field])
            blocks = sketcher.blocks(counts, sketcher.hashing(key), source)
            tables[field] = build(blocks, _fitting(rule, len(counts)), sketcher.kind, sketcher.depth, sketcher.width)
            counter = _counter(sketcher)
            counts_of_documents[field] = counter.sketch(_frequencies(counts), counter.hashing(key), source)[0]
        owners.append(tables)
        counters.append(counts_of_documents)
    return Sketched(sketcher, key, tuple(owners), tuple(counters))


def background(
    silos: Sequence[Silo], knows: Exact | Sketched, querier: int, field: str, terms: Sequence[str]
) -> Background:
    """What a silo knows of the whole federation: its own documents exactly, those of the others as they tell."""
    own = silos[querier].fields[field].background(terms)
    lengths = [silo.fields[field].lengths for silo in silos]
    return Background(
        sum(map(len, lengths)),
        float(sum(length.sum() for length in lengths)),
        own.frequencies + knows.frequencies(querier, field, terms),
    )


def matches(
    silos: Sequence[Silo],
    knows: Exact | Sketched,
    querier: int,
    question: Question,
    backgrounds: dict[str, Background],
    most: int,
) -> Matches:
    """The best documents of the other silos for a query, at most so many: by BM25 of body and title from what is known.

    A document that a term did not find counts as not holding it.
    """
    parts: list[Features] = [np.empty((0, len(FEATURE_NAMES)), np.float32)]
    owners, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    answers = 0
    for silo in silos:
        if silo.number == querier:
            continue
        found = {field: knows.find(silo.number, field, question.terms) for field in FIELDS}
        told = [documents.astype(np.int64) for field in FIELDS for documents, _ in found[field]]
        here = np.unique(np.concatenate([np.empty(0, np.int64), *told]))
        answers += sum(map(len, told))
        counts = {field: np.zeros((len(here), len(question.terms))) for field in FIELDS}
        for field in FIELDS:
            for term, (documents, held) in enumerate(found[field]):
                counts[field][np.searchsorted(here, documents), term] = held
        lengths = {field: silo.fields[field].lengths[here] for field in FIELDS}
        parts.append(features(counts, lengths, backgrounds))
        owners.append(np.full(len(here), silo.number))
        rows.append(here)
    everything = Matches(np.concatenate(parts), np.concatenate(owners), np.concatenate(rows))
    scores = everything.features[:, list(BM25_OF.values())].sum(axis=1)
    best = np.argsort(-scores, kind="stable")[:most]
    best = best[scores[best] > 0]
    return Matches(everything.features[best], everything.owners[best], everything.rows[best], answers)


def price(sketcher: Sketcher, delta: float) -> float:
    """ε of one occurrence of one term in one field of a document, in both sketches that hold it; inf without noise."""
    if not sketcher.noise:
        return inf
    event = GaussianEvent(sketcher.noise)
    rounding = sketcher.privacy(delta) - epsilon(event, 1, delta)
    return epsilon(event, 2, delta) + 2 * rounding


def _fitting(rule: TopKRule, documents: int) -> TopKRule:
    """The same rule without room for more documents than there are."""
    k = min(rule.k, max(documents, 1))
    return replace(rule, k=k, alpha=max(1.0, min(rule.alpha, documents / k)))


def _counter(sketcher: Sketcher) -> Sketcher:
    """How document frequencies are sketched: with the same noise, in more columns."""
    return replace(sketcher, width=WIDTH_OF_FREQUENCIES)


def _term_counts(index: Index) -> TermCounts:
    rows = index.columns.tocsr()
    rows.sort_indices()
    return TermCounts(
        rows.indptr.astype(np.int64), rows.indices.astype(np.int32), rows.data.astype(np.int32), list(index.terms)
    )


def _frequencies(counts: TermCounts) -> TermCounts:
    """One long document that holds every term as often as documents do."""
    held = np.bincount(counts.terms, minlength=len(counts.vocabulary)).astype(np.int32)
    terms = np.flatnonzero(held).astype(np.int32)
    return TermCounts(np.array([0, len(terms)], dtype=np.int64), terms, held[terms], counts.vocabulary)

"""Answers whose noise is drawn per query, not when documents are sketched: as published, and corrected.

The paper's querier sends z cells for a term, of which z1 are true (algorithm 1), and its owner adds one draw to all z
answers about a document (algorithm 2). Neither protects anything; they are included to reproduce the published numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import floor, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.seeds import rng_for
from fedrank.silo.features import FIELDS, Real
from fedrank.silo.partners import Counts, Found, Sketched
from fedrank.silo.rtk import NONE, ReverseTopK
from fedrank.silo.sketch import Sketcher
from fedrank.silo.terms import TermCounts
from fedrank.types import Source


def noised_counts(counts: Real, epsilon: float, exact_lengths: bool, source: Source) -> Real:
    """Counts of one term in all documents, with Laplace noise that costs ε per occurrence."""
    return counts + _laplace((2 if exact_lengths else 1) / epsilon, len(counts), source)


def published_answers(values: NDArray[Any], epsilon: float, source: Source) -> Real:
    """Algorithm 2 of the paper: one draw for all z answers [documents, z] about a document, which protects nothing."""
    return values + _laplace(1 / epsilon, len(values), source)[:, None]


def _laplace(scale: float, many: int, source: Source) -> Real:
    """Laplace noise on a grid of halves, so all answers are on the grid, too."""
    from fedrank.privacy.noise import rounded_laplace

    step = min(0.5, 2.0 ** floor(log2(scale / 64)))
    # A sampler does not match its distribution exactly; a millionth more noise covers the difference.
    return rounded_laplace(scale * (1 + 1e-6) / step).draw(many, source).astype(np.float64) * step


def _secure(source: Source | None) -> Source:
    from fedrank.privacy.noise import SecureSource

    return source or SecureSource()


def _middle(signed: Real, kind: str) -> Real:
    """[documents]: the median of each row, or its smallest value, of what is not NaN; every row has something."""
    ordered = np.sort(signed, axis=1)  # NaN comes last
    rows, known = np.arange(len(signed)), (~np.isnan(signed)).sum(axis=1)
    if kind == "count-min":
        smallest: Real = ordered[:, 0]
        return smallest
    middle: Real = (ordered[rows, (known - 1) // 2] + ordered[rows, known // 2]) / 2
    return middle


def true_rows(term: str, rows: int, depth: int, seed: int) -> NDArray[np.int64]:
    """Which z1 of z rows ask for the term itself, ascending; the others ask for random words.

    The rows of a term are fixed: if they were drawn for every question, repeated rows would be the true ones.
    """
    if rows == depth:
        return np.arange(depth)
    return np.sort(rng_for(seed, "rows that ask", term).permutation(depth)[:rows])


@dataclass(frozen=True, eq=False)
class CountQuery(Sketched):
    """A silo that answers with the documents in the cells of a term, row by row, as in the paper.

    Its cells may be noised already; with `epsilon` every document gets one draw more, in all rows the same.
    """

    rows: int  # z1: rows that ask for the term itself; the others are ignored
    epsilon: float | None = None  # of the published noise; None: none
    seed: int = 1  # of the rows
    source: Source | None = field(default=None, repr=False)  # of noise; for tests only

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        frequencies = self.sketch.frequency_rows(self._locate(terms))
        rows = np.array([self._rows(term) for term in terms], np.int64).reshape(len(terms), self.rows)
        nothing = {name: np.zeros((len(terms), self.rows)) for name in FIELDS}
        # The same rows for all silos, so rows can be summed over silos.
        return nothing | {name: np.take_along_axis(every, rows, axis=1) for name, every in frequencies.items()}

    def counts(self, terms: Sequence[str]) -> Counts:
        at = self._locate(terms)
        found = {
            name: [self._best(top, *each) for each in zip(terms, at.cells, at.signs, strict=True)]
            for name, top in self.sketch.fields.items()
        }
        return Counts.of(found, len(terms), self.sketch.lengths_of)

    def _best(self, top: ReverseTopK, term: str, cells: NDArray[Any], signs: NDArray[Any]) -> Found:
        """What `ReverseTopK.query` finds, from the true rows alone and with noise."""
        row = self._rows(term)
        cells, signs = cells[row], signs[row].astype(np.float64)
        end = np.where(signs < 0, top.rule.ends - 1, 0)
        documents, values = top.documents[end, row, cells], top.values[end, row, cells]  # [z1, slots]
        there = documents >= 0
        position = np.zeros(len(top.present), np.int64)
        position[documents[there]] = 1
        here = np.flatnonzero(position)
        position[here] = np.arange(len(here))
        frequencies, missing = np.zeros((len(here), len(row))), np.ones((len(here), len(row)), bool)
        at = position[documents[there]], np.nonzero(there)[0]
        frequencies[at], missing[at] = values[there], False
        if self.epsilon is not None:
            frequencies = published_answers(frequencies, self.epsilon, self._source)
        signed = frequencies * signs
        if top.rule.missing == "absent":
            signed[missing] = np.nan
        else:
            lost = top.lost[end, row, cells]
            unknown = (lost == NONE) | (top.rule.missing == "zero")
            signed = np.where(missing, np.where(unknown, 0.0, lost * signs), signed)
        counts = _middle(signed, top.kind)
        chosen = (counts > 0) & ((~missing).sum(axis=1) >= top.fewest(len(row)))
        best = np.flatnonzero(chosen)[np.argsort(-counts[chosen], kind="stable")[: top.rule.k]]
        return here[best], counts[best]

    @cached_property
    def _source(self) -> Source:
        return _secure(self.source)

    def _rows(self, term: str) -> NDArray[np.int64]:
        return true_rows(term, self.rows, self.sketch.sketcher.depth, self.seed)


@dataclass(frozen=True, eq=False)
class RemoteCounts:
    """A silo that answers with the highest counts of each term: medians of rows with Laplace noise.

    Noise is added for all documents and the best are chosen by noised counts, so the choice costs nothing more. A term
    costs ε for its counts, and again for its document frequency.
    """

    fields: Mapping[str, TermCounts]
    sketcher: Sketcher  # without noise
    key: bytes = field(repr=False)
    k: int  # documents that a term finds
    epsilon: float = 0.5  # of one number
    source: Source | None = field(default=None, repr=False)

    @property
    def kind(self) -> str:
        return self.sketcher.kind

    @property
    def documents(self) -> int:
        return len(self.fields["body"])

    @cached_property
    def words(self) -> Mapping[str, float]:
        return {name: float(self.fields[name].lengths.sum()) if name in self.fields else 0.0 for name in FIELDS}

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        cells, signs = self.sketcher.wide.locate(terms, self.sketcher.wide.hashing(self.key))
        found = {name: np.zeros((len(terms), 1)) for name in FIELDS}
        for name, wide in self._wide.items():
            frequencies = self.sketcher.estimate(wide[np.arange(self.sketcher.depth), cells], signs)
            found[name] = self._noised(frequencies)[:, None]
        return found

    def counts(self, terms: Sequence[str]) -> Counts:
        cells, signs = self.sketcher.locate(terms, self.sketcher.hashing(self.key))
        found = {name: [self._best(name, *each) for each in zip(cells, signs, strict=True)] for name in self.fields}
        return Counts.of(found, len(terms), self._lengths_of)

    def values(self, name: str, cells: NDArray[Any]) -> NDArray[np.int64]:
        """[documents, z]: values of these cells in the sketches of all documents, without making the sketches."""
        from scipy.sparse import csr_matrix

        of_terms, signs, matrix = self._counted[name]
        terms, rows = np.nonzero(of_terms == cells)
        shape = (len(of_terms), self.sketcher.depth)
        chosen = csr_matrix((signs[terms, rows].astype(np.int64), (terms, rows)), shape=shape)
        return np.asarray((matrix @ chosen).todense())

    def _best(self, name: str, cells: NDArray[Any], signs: NDArray[Any]) -> Found:
        frequencies = self._noised(self.sketcher.estimate(self.values(name, cells), signs))
        best = np.argsort(-frequencies, kind="stable")[: self.k]
        return best, frequencies[best]

    def _noised(self, counts: Real) -> Real:
        return noised_counts(counts, self.epsilon, self.sketcher.exact_lengths, self._source)

    @cached_property
    def _source(self) -> Source:
        return _secure(self.source)

    def _lengths_of(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        return self.fields[name].lengths[rows] if name in self.fields else np.zeros(len(rows), np.int64)

    @cached_property
    def _wide(self) -> Mapping[str, NDArray[np.int32]]:
        wide = self.sketcher.wide
        return {name: wide.sketch(one.as_document(), wide.hashing(self.key))[0] for name, one in self.fields.items()}

    @cached_property
    def _counted(self) -> Mapping[str, tuple[NDArray[Any], NDArray[Any], Any]]:
        """By field: cells and signs [vocabulary, z], and counts [documents, vocabulary]."""
        from scipy.sparse import csr_matrix

        made = {}
        for name, one in self.fields.items():
            shape = (len(one), len(one.vocabulary))
            matrix = csr_matrix((one.counts.astype(np.int64), one.terms, one.offsets), shape=shape)
            made[name] = (*self.sketcher.locate(one.vocabulary, self.sketcher.hashing(self.key)), matrix)
        return made

"""Term counts of documents: the input of sketches, and the statistics of a silo's own documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrank.data.text import Tokeniser
from fedrank.silo.features import Background, Real

Rows = NDArray[np.int64]  # of documents


@dataclass(frozen=True, eq=False)
class TermCounts:
    """The terms of one field of some documents. Document d has entries offsets[d] .. offsets[d + 1] - 1."""

    offsets: NDArray[np.int64]  # [documents + 1]
    terms: NDArray[np.int32]  # [entries]: positions in the vocabulary, each once per document
    counts: NDArray[np.int32]  # [entries], 1 or more
    vocabulary: list[str]

    @staticmethod
    def of(texts: Iterable[str], tokeniser: Tokeniser) -> TermCounts:
        """Count the terms of every text; one without terms has no entries."""
        known: dict[str, int] = {}
        offsets, terms, counts = [0], [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        for text in texts:
            held = Counter(tokeniser(text))
            terms.append(np.array([known.setdefault(term, len(known)) for term in held], dtype=np.int32))
            counts.append(np.fromiter(held.values(), dtype=np.int32, count=len(held)))
            offsets.append(offsets[-1] + len(held))
        return TermCounts(np.array(offsets, np.int64), np.concatenate(terms), np.concatenate(counts), list(known))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[documents]: terms of each, repeats included."""
        return self._sums(self.counts)

    @cached_property
    def squares(self) -> NDArray[np.int64]:
        """[documents]: sum of squared counts."""
        return self._sums(self.counts.astype(np.int64) ** 2)

    def _sums(self, values: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.int64]:
        ends = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        sums: NDArray[np.int64] = ends[self.offsets[1:]] - ends[self.offsets[:-1]]
        return sums

    @cached_property
    def columns(self) -> dict[str, int]:
        """Position of a term in the vocabulary."""
        return {term: column for column, term in enumerate(self.vocabulary)}

    @cached_property
    def holders(self) -> NDArray[np.int64]:
        """[vocabulary]: document frequency of each term."""
        return np.bincount(self.terms, minlength=len(self.vocabulary))

    @cached_property
    def _by_term(self) -> tuple[Rows, Rows, NDArray[np.int32]]:
        """The entries by term: where each begins, documents in order, counts."""
        order = np.argsort(self.terms, kind="stable")
        documents = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return np.concatenate([[0], np.cumsum(self.holders)]), documents[order], self.counts[order]

    def count_matrix(self, terms: Sequence[str]) -> Real:
        """[documents, terms]: counts of these terms in each document."""
        begins, documents, counts = self._by_term
        out = np.zeros((len(self), len(terms)))
        for column, term in enumerate(terms):
            if (index := self.columns.get(term)) is not None:
                here = slice(begins[index], begins[index + 1])
                out[documents[here], column] = counts[here]
        return out

    def background(self, terms: Sequence[str]) -> Background:
        """Statistics of these terms over all documents."""
        known = [self.holders[self.columns[term]] if term in self.columns else 0 for term in terms]
        return Background(len(self), float(self.lengths.sum()), np.array(known, dtype=np.float64))

    def rows(self, rows: Rows) -> TermCounts:
        """Some of the documents, with the same vocabulary."""
        sizes = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], sizes)
        return TermCounts(offsets, self.terms[entries], self.counts[entries], self.vocabulary)

    def as_document(self) -> TermCounts:
        """One document in which the count of every term is its document frequency."""
        terms = np.flatnonzero(self.holders).astype(np.int32)
        counts = self.holders[terms].astype(np.int32)
        return TermCounts(np.array([0, len(terms)], np.int64), terms, counts, self.vocabulary)

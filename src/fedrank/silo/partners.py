"""Other silos as training queries them: one interface for exact counts, sketches and letters.

A querier never sees a text. It gets documents under pseudonyms, with estimated counts and lengths, and the document
frequency of a term, from one more sketch with the same noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fedrank.silo.features import FIELDS, Real
from fedrank.silo.hashing import Cells, Hashing, Signs
from fedrank.silo.rtk import ReverseTopK, TopKRule, build
from fedrank.silo.silos import Silo
from fedrank.silo.sketch import Sketcher
from fedrank.silo.terms import TermCounts
from fedrank.types import Source

Found = tuple[NDArray[Any], Real]  # documents and their counts of a term, best first
Progress = Callable[[str, int, int], None]  # field, documents done, documents in total


@dataclass(frozen=True)
class Counts:
    """The documents of one silo with the highest counts of the terms of a query."""

    documents: NDArray[Any]  # [found]: rows or pseudonyms, ascending
    lengths: Mapping[str, NDArray[Any]]  # by field, [found]: words
    counts: Mapping[str, Real]  # by field, [found, terms]: how often; 0 where a term did not find the document
    answers: int  # pairs of document and count that were sent

    @staticmethod
    def of(
        found: Mapping[str, Sequence[Found]],  # by field, [terms]
        terms: int,
        lengths: Callable[[str, NDArray[Any]], NDArray[Any]],  # of a field of these documents
    ) -> Counts:
        found_documents = [documents for each in found.values() for documents, _ in each]
        here = np.unique(np.concatenate(found_documents)) if found_documents else np.empty(0, np.int64)
        by_field = {name: np.zeros((len(here), terms)) for name in FIELDS}
        for name, each in found.items():
            for term, (documents, counts) in enumerate(each):
                by_field[name][np.searchsorted(here, documents), term] = counts
        return Counts(here, {name: lengths(name, here) for name in FIELDS}, by_field, sum(map(len, found_documents)))


class Partner(Protocol):
    """Another silo, with all that training can ask it."""

    @property
    def kind(self) -> str:
        """How rows of frequencies are combined: their minimum ("count-min"), or their median."""

    @property
    def documents(self) -> int:
        """Number of documents."""

    @property
    def words(self) -> Mapping[str, float]:
        """Total number of words by field."""

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        """By field, [terms, rows]: document frequency of the term, in every row of a sketch or in one row."""

    def counts(self, terms: Sequence[str]) -> Counts:
        """The documents with the highest counts of these terms."""


@dataclass(frozen=True)
class Exact:
    """Exact counts, for comparison with sketches."""

    silo: Silo
    k: int  # documents that a term finds

    kind = "count-sketch"

    @property
    def documents(self) -> int:
        return self.silo.documents

    @property
    def words(self) -> Mapping[str, float]:
        return {name: float(self.silo.fields[name].lengths.sum()) for name in FIELDS}

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        return {name: self.silo.fields[name].background(terms).frequencies[:, None] for name in FIELDS}

    def counts(self, terms: Sequence[str]) -> Counts:
        found = {
            name: [self._best(by_field) for by_field in self.silo.fields[name].count_matrix(terms).T] for name in FIELDS
        }
        return Counts.of(found, len(terms), lambda name, documents: self.silo.fields[name].lengths[documents])

    def _best(self, by_field: Real) -> Found:
        rows = np.argsort(-by_field, kind="stable")[: min(self.k, int(np.count_nonzero(by_field)))]
        return rows, by_field[rows]


class TermCells(NamedTuple):
    """Cells of terms."""

    cells: Cells  # [terms, z], in the sketch of a document
    signs: Signs  # [terms, z]
    wide: Cells  # [terms, z], in the sketch of document frequencies; signs are the same


@dataclass(frozen=True, eq=False)
class SiloSketch:
    """The sketch of a silo's documents, by field: "body", and "title" where there is one."""

    sketcher: Sketcher
    fields: Mapping[str, ReverseTopK]  # rows are the same in all
    lengths: Mapping[str, NDArray[np.int64]]  # [rows]: words; noised unless the sketcher says exact
    frequencies: Mapping[str, NDArray[np.int32]]  # [z, columns of `Sketcher.wide`]: documents that hold a term

    def __len__(self) -> int:
        return len(self.lengths["body"])

    @property
    def words(self) -> dict[str, float]:
        return {name: float(self.lengths[name].sum()) if name in self.lengths else 0.0 for name in FIELDS}

    def look_up(self, at: TermCells, k: int | None = None) -> dict[str, list[Found]]:
        """By field, for each term: rows of the documents with the highest counts, and these counts."""
        return {
            name: [top.query(cells, signs, k) for cells, signs in zip(at.cells, at.signs, strict=True)]
            for name, top in self.fields.items()
        }

    def frequency_rows(self, at: TermCells) -> dict[str, Real]:
        """By field, [terms, z]: the values of every row of the sketch of document frequencies."""
        rows = np.arange(self.sketcher.depth)
        return {name: (wide[rows, at.wide] * at.signs).astype(np.float64) for name, wide in self.frequencies.items()}

    def lengths_of(self, name: str, rows: NDArray[Any]) -> NDArray[Any]:
        return self.lengths[name][rows] if name in self.lengths else np.zeros(len(rows), np.int64)


def sketch_fields(
    fields: Mapping[str, TermCounts],
    sketcher: Sketcher,
    rule: TopKRule,
    key: bytes,
    source: Source | None = None,  # of noise; for tests only
    progress: Progress | None = None,
    onto: SiloSketch | None = None,  # to which these documents are added
) -> SiloSketch:
    """Sketch documents and document frequencies.

    An occurrence of a term is in two sketches, that of its document and that of the frequencies, so it is charged
    twice. Where documents are added, the frequencies get additional noise: the sum reveals no more than both parts.
    """
    tops, lengths, frequencies = {}, {}, {}
    for name, counts in fields.items():
        blocks = sketcher.blocks(counts, sketcher.hashing(key), source)
        if progress is not None:
            blocks = _with_progress(blocks, name, len(counts), progress)
        if onto is None:
            tops[name] = build(blocks, rule, sketcher.kind, sketcher.depth, sketcher.width)
        else:
            tops[name] = onto.fields[name]
            for block in blocks:
                tops[name] = tops[name].insert(block)
        wide = sketcher.wide.sketch(counts.as_document(), sketcher.wide.hashing(key), source)[0]
        frequencies[name] = wide if onto is None else onto.frequencies[name] + wide
        found_documents = sketcher.published_lengths(counts, source)
        lengths[name] = found_documents if onto is None else np.concatenate([onto.lengths[name], found_documents])
    return SiloSketch(sketcher, tops, lengths, frequencies)


def _with_progress(blocks: Any, name: str, documents: int, progress: Progress) -> Any:
    done = 0
    for block in blocks:
        yield block
        done += len(block)
        progress(name, done, documents)


@dataclass(frozen=True, eq=False)
class Sketched:
    """A silo whose sketch is available."""

    sketch: SiloSketch
    key: bytes = field(repr=False)

    @property
    def kind(self) -> str:
        return self.sketch.sketcher.kind

    @property
    def documents(self) -> int:
        return len(self.sketch)

    @cached_property
    def words(self) -> Mapping[str, float]:
        return self.sketch.words

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        nothing = {name: np.zeros((len(terms), 1)) for name in FIELDS}
        return nothing | self.sketch.frequency_rows(self._locate(terms))

    def counts(self, terms: Sequence[str]) -> Counts:
        return Counts.of(self.sketch.look_up(self._locate(terms)), len(terms), self.sketch.lengths_of)

    def _locate(self, terms: Sequence[str]) -> TermCells:
        return locate(terms, self.sketch.sketcher, *self._hashings)

    @cached_property
    def _hashings(self) -> tuple[Hashing, Hashing]:
        return self.sketch.sketcher.hashing(self.key), self.sketch.sketcher.wide.hashing(self.key)


def locate(terms: Sequence[str], sketcher: Sketcher, hashing: Hashing, wide: Hashing) -> TermCells:
    """Cells of terms in both kinds of sketches."""
    return TermCells(*sketcher.locate(terms, hashing), sketcher.wide.locate(terms, wide)[0])

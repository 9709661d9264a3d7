"""Sketches of documents: term counts in a small hash table, with noise where others can query it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf, isfinite, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedrank.data.text import Tokeniser
from fedrank.privacy.accounting import GaussianEvent, epsilon
from fedrank.privacy.guarantees import Guarantee
from fedrank.silo.hashing import Cells, Hashing, Signs
from fedrank.silo.terms import TermCounts
from fedrank.types import Source

KINDS = ("count-sketch", "count-min")
LONGEST = 1 << 29  # terms of a document
LOUDEST = float(1 << 20)  # deviation of the noise of a cell
WIDE = 4096  # columns of the sketch of document frequencies: one per collection, so it can be wide
LENGTH_NOISE = 15  # ratio of the noise of lengths, where they are not exact, to the noise of a count
SLACK = 1e-8  # added to ε: a sampler does not match its distribution exactly, and errs by less (`GridNoise.log_error`)
BLOCK = 1 << 22  # cells that are made at a time, 16 MiB of counts and 32 MiB of noise

Sketches = NDArray[np.int32]  # [documents, z, w]


@dataclass(frozen=True)
class Sketcher:
    """How documents are sketched; silos that work together use the same settings.

    Noise is drawn once, when a document is sketched, and later answers about it cost nothing more (Pagh and Thorup
    2022). It is rounded to integers after sampling, so the guarantee of the Gaussian mechanism holds. A sketch without
    noise is as secret as its documents.
    """

    kind: str = "count-sketch"  # or "count-min", which has no signs and never estimates too little, unless noised
    width: int = 200  # w, columns
    depth: int = 30  # z, rows
    tokeniser: Tokeniser = field(default_factory=Tokeniser)
    noise: float = 0.0  # sigma_1: deviation by what one occurrence of a term can change; 0: none
    exact_lengths: bool = True  # published as they are; a neighbour replaces a term, which changes twice as much

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be {' or '.join(map(repr, KINDS))} (got {self.kind!r})")
        Hashing(bytes(32), self.width, self.depth)
        if not (isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"noise must be a finite number of at least 0 (got {self.noise}), such as 1")
        if self.noise and not 0.5 <= self.deviation <= LOUDEST:
            raise ValueError(
                f"noise = {self.noise} is a standard deviation of {self.deviation:.3g} in every cell, which holds an "
                f"integer; use one between {self.noise * 0.5 / self.deviation:.2g} and "
                f"{self.noise * LOUDEST / self.deviation:.3g}, or 0 for none"
            )

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise in one cell."""
        return self.noise * self.sensitivity

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of a sketch to one occurrence of one term."""
        return sqrt(self.depth) * (2 if self.exact_lengths else 1)

    @property
    def multiplier(self) -> float | None:
        """Noise multiplier (deviation / sensitivity) for one occurrence of a term; None without noise.

        The occurrence is in the sketch of its document and in that of the document frequencies, both with the same
        noise, and in the length, if that is noised. Gaussian releases compose by the squares of their shifts.
        """
        if not self.noise:
            return None
        return self.noise / sqrt(2 + (0 if self.exact_lengths else LENGTH_NOISE**-2))

    @property
    def wide(self) -> Sketcher:
        """How document frequencies are sketched: with the same noise, in more columns."""
        return replace(self, width=WIDE)

    def hashing(self, key: bytes) -> Hashing:
        return Hashing(key, self.width, self.depth)

    def locate(self, terms: Sequence[str], hashing: Hashing) -> tuple[Cells, Signs]:
        """Cells and signs [terms, z] under which terms are counted here; Count-Min has no signs but 1."""
        self._check(hashing)
        cells, signs = hashing.locate(terms)
        return cells, np.ones_like(signs) if self.kind == "count-min" else signs

    def term_counts(self, texts: Iterable[str]) -> TermCounts:
        return TermCounts.of(texts, self.tokeniser)

    def sketch(self, counts: TermCounts, hashing: Hashing, source: Source | None = None) -> Sketches:
        """Sketches of all documents at once: four bytes per cell, 24 kB per document at the default size."""
        out = np.empty((len(counts), self.depth, self.width), dtype=np.int32)
        first = 0
        for block in self.blocks(counts, hashing, source):
            out[first : first + len(block)] = block
            first += len(block)
        return out

    def blocks(self, counts: TermCounts, hashing: Hashing, source: Source | None = None) -> Iterator[Sketches]:
        """Sketches of the documents in their order, in blocks of bounded memory.

        `source` gives the noise and is the operating system's, except in tests.
        """
        from fedrank.kernels.sketch import add_counts
        from fedrank.privacy.noise import SecureSource, rounded_gaussian

        if len(counts) and counts.lengths.max() >= LONGEST:
            raise ValueError(f"a document has {counts.lengths.max()} terms (at most {LONGEST - 1}); split it")
        cells, signs = self.locate(counts.vocabulary, hashing)
        law = rounded_gaussian(self.deviation) if self.noise else None
        source = source or SecureSource()
        step = max(1, BLOCK // (self.depth * self.width))
        for first in range(0, len(counts), step):
            offsets = counts.offsets[first : first + step + 1]
            block = np.zeros((len(offsets) - 1, self.depth, self.width), dtype=np.int32)
            add_counts(offsets, counts.terms, counts.counts, cells, signs, block)
            if law:
                block += law.draw(block.shape, source).astype(np.int32)
            yield block

    def estimate(self, values: NDArray[Any], signs: Signs) -> NDArray[np.float64]:
        """Counts of a term [...] from its cells [..., z] and their signs: the signed median, or Count-Min's minimum."""
        signed = np.asarray(values, dtype=np.float64) * signs
        found: NDArray[np.float64] = signed.min(axis=-1) if self.kind == "count-min" else np.median(signed, axis=-1)
        return found

    def published_lengths(self, counts: TermCounts, source: Source | None = None) -> NDArray[np.int64]:
        """[documents]: published lengths, exact or noised."""
        if self.exact_lengths or not self.noise:
            return counts.lengths
        from fedrank.privacy.noise import SecureSource, rounded_gaussian

        return counts.lengths + rounded_gaussian(LENGTH_NOISE * self.noise).draw(len(counts), source or SecureSource())

    def privacy(self, delta: float, occurrences: int = 1) -> float:
        """ε for this many occurrences of a term in one field of one document; infinite without noise."""
        if occurrences < 1:
            raise ValueError(f"occurrences must be at least 1 (got {occurrences})")
        if self.multiplier is None:
            return inf
        return epsilon(GaussianEvent(self.multiplier / occurrences), 1, delta) + SLACK

    def guarantee(
        self, against: str, because: str, paid: Literal["participation", "round", "once"] = "participation"
    ) -> Guarantee:
        """The guarantee for one occurrence of a term in a sketch; none without noise."""
        event = None if self.multiplier is None else GaussianEvent(self.multiplier)
        return Guarantee(against, event, because, paid, "occurrence", slack=SLACK)

    def error_chance(self, error: float, length: float, squares: float) -> float:
        """Upper bound on the probability that an estimate is off by more than `error`.

        `length` is the number of terms of the document, `squares` the sum of its squared counts. It is a bound over
        keys for any document: by Cantelli (Count Sketch) or Markov (Count-Min) for the terms that share a cell, exact
        for the noise, and binomial for the rows, which are independent.
        """
        from scipy.stats import binom

        if error <= 0:
            return 1.0
        if self.kind == "count-sketch":
            variance = squares / self.width
            one = self._row_chance(error, lambda t: variance / (variance + t * t) if variance else 0.0 * t)
            return min(1.0, 2 * float(binom.sf(ceil(self.depth / 2) - 1, self.depth, one)))
        mean = length / self.width
        above = self._row_chance(error, lambda t: np.minimum(1.0, mean / t))
        below = self.depth * self._tail(np.array([error]))[0]
        return min(1.0, above**self.depth + float(below))

    def error_bound(self, chance: float, length: float, squares: float) -> float:
        """The error that an estimate exceeds with at most this probability."""
        if not 0 < chance < 1:
            raise ValueError(f"chance must be between 0 and 1 (got {chance}), such as 0.05")
        low, high = 0.0, 1.0
        exceeds = partial(self.error_chance, length=length, squares=squares)
        while exceeds(high) > chance:
            low, high = high, 2 * high
        for _ in range(30):
            middle = (low + high) / 2
            low, high = (middle, high) if exceeds(middle) > chance else (low, middle)
        return high

    def _row_chance(self, error: float, shared: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
        """Probability that one row exceeds `error`: other terms contribute t or more, or the noise the rest."""
        if not self.noise:
            return float(shared(np.array([error]))[0])
        t = error * np.linspace(0.001, 1, 1000)
        return min(1.0, float((shared(t) + self._tail(error - t)).min()))

    def _tail(self, error: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probability that the noise of a cell is this large, on one side; the 1/2 is its rounding."""
        from scipy.special import ndtr

        if not self.noise:
            return np.zeros_like(error)
        tail: NDArray[np.float64] = ndtr(-np.maximum(error - 0.5, 0) / self.deviation)
        return tail

    def _check(self, hashing: Hashing) -> None:
        if (hashing.width, hashing.depth) != (self.width, self.depth):
            raise ValueError(
                f"hashes are for {hashing.depth} x {hashing.width} cells, but sketches have {self.depth} x "
                f"{self.width}; use `Sketcher.hashing`"
            )

"""Features of a list of passages, from their texts and from numbers that the caller sends.

Words are stored as hashes with the secret key of the folder, never as text. Document frequencies are counted over all
passages that a tenant has sent, each once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet

BUCKETS = 1 << 18  # hash buckets in which passages are counted
CACHED = 4_000_000  # distinct words of passages that are held in memory, 8 bytes each
K1, B = 0.9, 0.4
FIRST = 10  # of the caller's passages, whose mean is the centroid
MIN_BACKGROUND = 200  # passages; with fewer, document frequencies of the list itself are added

OWN = ("rank", "bm25", "centroid")  # columns that are always there
START = np.array([1.0, 1.0, 0.5])  # their weights before anything was learned
Table = NDArray[np.float64]


class Words(NamedTuple):
    """A passage as its distinct hashed stems, ascending, and how often each occurs."""

    stems: NDArray[np.int32]
    counts: NDArray[np.int32]
    length: int  # words


class Hasher:
    """Hashes texts with a secret key, so stored words and digests mean nothing without it."""

    def __init__(self, key: bytes, language: str = "english") -> None:
        self._key, self._features = key, FeatureSet(language)
        self._keyed = lru_cache(maxsize=1 << 18)(self._hash_stem)
        self._passages: OrderedDict[bytes, Words] = OrderedDict()
        self._cached = 0  # distinct words of these passages

    def _hash_stem(self, stem: int) -> int:
        digest = blake2b(stem.to_bytes(4, "little"), digest_size=4, key=self._key).digest()
        return int.from_bytes(digest, "little") & 0x7FFF_FFFF

    def digest(self, *texts: str) -> bytes:
        """Eight bytes that identify some texts; lengths are part of it, so ("a", "b") differs from ("ab", "")."""
        made = blake2b(digest_size=8, key=self._key)
        for text in texts:
            content = text.encode(errors="replace")
            made.update(len(content).to_bytes(8, "little"))
            made.update(content)
        return made.digest()

    def query(self, text: str) -> NDArray[np.int32]:
        """The distinct stems of a query without function words, ascending; at most 32 count."""
        return np.array(sorted({self._keyed(stem) for stem in self._features.engine_terms(text)}), np.int32)

    def passage(self, text: str, digest: bytes) -> Words:
        """The words of a passage; those of recent passages are cached."""
        found = self._passages.get(digest)
        if found is None:
            row = self._features.row("", text)
            plain, counts = np.unique(row.words, return_counts=True)
            stems = np.fromiter(map(self._keyed, plain.tolist()), np.int32, len(plain))
            order = np.argsort(stems, kind="stable")
            found = self._passages[digest] = Words(stems[order], counts[order].astype(np.int32), row.length)
            self._cached += len(stems)
            while self._cached > CACHED:
                self._cached -= len(self._passages.popitem(last=False)[1].stems)
        else:
            self._passages.move_to_end(digest)
        return found


@dataclass
class PassageStatistics:
    """Word statistics of all passages of a tenant."""

    passages: int
    words: int
    frequencies: NDArray[np.int32]  # [BUCKETS]: passages with a word of this bucket

    @classmethod
    def empty(cls) -> PassageStatistics:
        return cls(0, 0, np.zeros(BUCKETS, np.int32))

    def add(self, passages: Sequence[Words]) -> None:
        """Count passages that were not counted before."""
        if passages:
            self.frequencies += _frequencies(passages)
            self.passages += len(passages)
            self.words += sum(one.length for one in passages)

    def idf(self, stems: NDArray[np.int32]) -> Table:
        """ln(1 + (N - n + 0.5) / (n + 0.5)) of each stem; a stem that no passage has is as rare as one can be."""
        n = np.minimum(self.frequencies[stems & np.int32(BUCKETS - 1)], self.passages)
        rarity: Table = np.log1p((self.passages - n + 0.5) / (n + 0.5))
        return rarity

    @property
    def mean_length(self) -> float:
        return self.words / self.passages if self.passages else 1.0


def _frequencies(passages: Sequence[Words]) -> NDArray[np.int32]:
    """[BUCKETS]: passages with a word of each bucket."""
    row = np.repeat(np.arange(len(passages)), [len(one.stems) for one in passages])
    bucket = np.concatenate([one.stems for one in passages]) & np.int32(BUCKETS - 1)
    return np.bincount(np.unique(row * BUCKETS + bucket) % BUCKETS, minlength=BUCKETS).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Features:
    """Standardised features of a list, and what they mean without the other passages of the list."""

    names: tuple[str, ...]
    table: Table  # [passages, features]
    absolute: Table  # [passages], 0 .. 1: BM25 / the largest BM25 that the query allows
    missing: dict[str, int]  # by signal: passages without it, which count as average


def standardised(values: Table) -> Table:
    """Mean 0 and standard deviation 1; all 0 if the values are equal. NaN counts as the mean."""
    known = np.isfinite(values)
    if not known.any():
        return np.zeros(len(values))
    centred = np.where(known, values - values[known].mean(), 0.0)
    spread = math.sqrt(float(np.mean(centred[known] ** 2)))
    scale = max(1.0, float(np.abs(values[known]).max()))
    return centred / spread if spread > 1e-9 * scale else np.zeros(len(values))


def describe(
    query: NDArray[np.int32],
    passages: Sequence[Words],
    background: PassageStatistics,
    signals: Mapping[str, Table] | None = None,
) -> Features:
    """Features of passages (at least one) in the caller's order; `signals` are its own numbers, NaN where missing."""
    sizes = np.array([len(one.stems) for one in passages])
    row = np.repeat(np.arange(len(passages)), sizes)
    stems = np.concatenate([one.stems for one in passages])
    counts = np.concatenate([one.counts for one in passages]).astype(np.float64)
    lengths = np.array([one.length for one in passages], np.float64)
    if background.passages < MIN_BACKGROUND:
        background = PassageStatistics(background.passages, background.words, background.frequencies.copy())
        background.add(passages)
    idf = background.idf(query)
    place = np.searchsorted(query, stems)
    asked = (place < len(query)) & (query[np.minimum(place, max(len(query) - 1, 0))] == stems if len(query) else False)
    there = np.flatnonzero(asked)
    tf, of = counts[there], row[there]
    norm = K1 * (1 - B + B * lengths / max(background.mean_length, 1.0))
    bm25 = np.bincount(of, idf[place[there]] * tf / (tf + norm[of]), minlength=len(passages))
    heavy = np.log1p(counts) * background.idf(stems)
    similar = _centroid(stems, heavy, row, len(passages))
    columns = [-np.log(np.arange(1.0, len(passages) + 1)), bm25, similar, *(signals or {}).values()]
    names = (*OWN, *(signals or {}))
    table = np.stack([standardised(column) for column in columns], axis=1)
    missing = {name: int(np.isnan(column).sum()) for name, column in (signals or {}).items()}
    most = float(idf.sum())
    absolute = np.clip(bm25 / most, 0.0, 1.0) if most > 0 else np.zeros(len(passages))
    return Features(names, table, absolute, {name: count for name, count in missing.items() if count})


def _centroid(stems: NDArray[np.int32], heavy: Table, row: NDArray[np.int64], passages: int) -> Table:
    """[passages]: cosine with the mean of the caller's first passages; a passage is not compared with itself."""
    norms = np.sqrt(np.bincount(row, heavy**2, minlength=passages))
    unit = heavy / np.maximum(norms, 1e-12)[row]
    words, column = np.unique(stems, return_inverse=True)
    first = row < FIRST
    total = np.bincount(column[first], unit[first], minlength=len(words))
    count = min(FIRST, passages)
    dot = np.bincount(row, unit * total[column], minlength=passages)
    squared = float(total @ total)
    inside = np.arange(passages) < count
    # Without its own unit vector u, the sum is t - u: u(t - u) = ut - 1, |t - u|² = |t|² - 2 ut + 1.
    dot_other = np.where(inside, dot - 1.0, dot)
    length = np.sqrt(np.maximum(np.where(inside, squared - 2 * dot + 1, squared), 1e-12))
    cosine: Table = np.where((norms > 0) & (length > 1e-6), dot_other / length, 0.0)
    return np.clip(cosine, 0.0, 1.0)


def likeness(one: NDArray[np.int32], other: NDArray[np.int32], idf: Callable[[NDArray[np.int32]], Table]) -> float:
    """Jaccard similarity of two queries as sets of stems, weighted by idf."""
    both = np.intersect1d(one, other, assume_unique=True)
    if not len(both):
        return 0.0
    shared = float(idf(both).sum())
    return shared / (float(idf(one).sum()) + float(idf(other).sum()) - shared)

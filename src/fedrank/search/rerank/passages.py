"""Features of a list of passages, from their texts and from numbers that the caller sends.

Words are stored as hashes with the secret key of the folder, never as text. Document frequencies are counted over all
passages that a tenant has sent, each once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import FeatureSet

BUCKETS = 1 << 18  # hash buckets in which passages are counted
CACHED = 4_000_000  # distinct words of passages that are held in memory, 8 bytes each
MAX_KNOWN = 1 << 17  # words whose hashes are held in memory
AT_ONCE = 100  # passages that are split together
RUN = 8  # words in a row by which a copy of an answer is recognised
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


class _Hashes(dict[str, int]):
    """Keyed hashes of the stems of words, computed when a word is first asked for."""

    def __init__(self, key: bytes, features: FeatureSet) -> None:
        self._key, self._features = key, features

    def __missing__(self, word: str) -> int:
        found = self[word] = self.keyed(self._features.hash_word(word))
        return found

    def keyed(self, stem: int) -> int:
        digest = blake2b(stem.to_bytes(4, "little"), digest_size=4, key=self._key).digest()
        return int.from_bytes(digest, "little") & 0x7FFF_FFFF


class Hasher:
    """Hashes texts with a secret key, so stored words and digests mean nothing without it."""

    def __init__(self, key: bytes, language: str = "english") -> None:
        self._key, self._features = key, FeatureSet(language)
        self._hashes = _Hashes(key, self._features)
        self._passages: OrderedDict[bytes, Words] = OrderedDict()
        self._cached = 0  # distinct words of these passages

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
        return np.array(sorted({self._hashes.keyed(stem) for stem in self._features.engine_terms(text)}), np.int32)

    def runs(self, text: str) -> NDArray[np.uint64]:
        """A hash of every 8 words in a row, ascending; at most 4,096."""
        stems = np.array(
            [self._hashes[word] for word in self._features.words(text)[: self._features.max_words]], np.uint64
        )
        runs = np.zeros(max(len(stems) - RUN + 1, 0), np.uint64)
        for place in range(RUN):
            runs = runs * np.uint64(0x9E37_79B9_7F4A_7C15) + stems[place : place + len(runs)]
        return np.unique(runs)

    def passages(self, texts: Sequence[str], digests: Sequence[bytes]) -> list[Words]:
        """The words of passages; those of recent passages are cached."""
        new = [(digest, text) for digest, text in zip(digests, texts, strict=True) if digest not in self._passages]
        for start in range(0, len(new), AT_ONCE):
            part = dict(new[start : start + AT_ONCE])
            for digest, words in zip(part, self._split([*part.values()]), strict=True):
                self._passages[digest] = words
                self._cached += len(words.stems)
            if len(self._hashes) > MAX_KNOWN:
                self._hashes.clear()
        found = []
        for digest in digests:
            self._passages.move_to_end(digest)
            found.append(self._passages[digest])
        while self._cached > CACHED:
            self._cached -= len(self._passages.popitem(last=False)[1].stems)
        return found

    def _split(self, texts: Sequence[str]) -> Iterator[Words]:
        """Texts as words, in one pass over all of them."""
        split = [self._features.words(text) for text in texts]
        sizes = [min(len(words), self._features.max_words) for words in split]
        kept = chain.from_iterable(words[: self._features.max_words] for words in split)
        stems = np.fromiter(map(self._hashes.__getitem__, kept), np.int64, sum(sizes))
        row = np.repeat(np.arange(len(texts)), sizes)
        distinct, counts = np.unique(row << 31 | stems, return_counts=True)
        ends = np.searchsorted(distinct, np.arange(len(texts) + 1) << 31).tolist()
        plain, counts = (distinct & 0x7FFF_FFFF).astype(np.int32), counts.astype(np.int32)
        for words, start, end in zip(split, ends, ends[1:], strict=False):
            yield Words(plain[start:end].copy(), counts[start:end].copy(), len(words))


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
            bucket, having = _frequencies(passages)
            self.frequencies[bucket] += having
            self.passages += len(passages)
            self.words += sum(one.length for one in passages)

    def idf(self, stems: NDArray[np.int32]) -> Table:
        """ln(1 + (N - n + 0.5) / (n + 0.5)) of each stem; a stem that no passage has is as rare as one can be."""
        n = np.minimum(self.frequencies[stems & np.int32(BUCKETS - 1)], self.passages)
        rarity: Table = np.log1p((self.passages - n + 0.5) / (n + 0.5))
        return rarity

    def rarest(self, stems: NDArray[np.int32]) -> int | None:
        """The stem that the fewest passages have, of those that any has."""
        having = self.frequencies[stems & np.int32(BUCKETS - 1)]
        known = np.flatnonzero(having)
        return int(stems[known[np.argmin(having[known])]]) if len(known) else None

    @property
    def mean_length(self) -> float:
        return self.words / self.passages if self.passages else 1.0


def _frequencies(passages: Sequence[Words]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Buckets of words, and passages with a word of each."""
    row = np.repeat(np.arange(len(passages)), [len(one.stems) for one in passages])
    bucket = np.concatenate([one.stems for one in passages]) & np.int32(BUCKETS - 1)
    pairs, _ = np.unique(row * BUCKETS + bucket, return_counts=True)  # with counts, numpy sorts, which is faster here
    buckets, having = np.unique(pairs % BUCKETS, return_counts=True)
    return buckets, having.astype(np.int32)


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
    first = int(np.searchsorted(row, FIRST))  # words of the first passages
    words, column = np.unique(stems[:first], return_inverse=True)
    total = np.bincount(column, unit[:first], minlength=len(words) + 1)  # the last is that of all other words
    place = np.searchsorted(words, stems)
    column = np.where(words[np.minimum(place, len(words) - 1)] == stems, place, len(words)) if len(words) else place
    count = min(FIRST, passages)
    dot = np.bincount(row, unit * total[column], minlength=passages)
    squared = float(total @ total)
    inside = np.arange(passages) < count
    # Without its own unit vector u, the sum is t - u: u(t - u) = ut - 1, |t - u|² = |t|² - 2 ut + 1.
    dot_other = np.where(inside, dot - 1.0, dot)
    length = np.sqrt(np.maximum(np.where(inside, squared - 2 * dot + 1, squared), 1e-12))
    cosine: Table = np.where((norms > 0) & (length > 1e-6), dot_other / length, 0.0)
    return np.clip(cosine, 0.0, 1.0)


def likeness(one: NDArray[np.int32], others: Sequence[NDArray[np.int32]], background: PassageStatistics) -> Table:
    """[others]: Jaccard similarity of a query to other queries (at least one) as sets of stems, weighted by idf."""
    row = np.repeat(np.arange(len(others)), [len(stems) for stems in others])
    stems = np.concatenate(others)
    idf = background.idf(stems)
    total = np.bincount(row, idf, minlength=len(others))
    shared = np.bincount(row, idf * np.isin(stems, one), minlength=len(others))
    likeness: Table = shared / np.maximum(float(background.idf(one).sum()) + total - shared, 1e-12)
    return likeness

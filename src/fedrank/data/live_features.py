"""The features `live-1` of a query and a document, for a client that searches its own documents.

Every feature is between 0 and 1 by definition, and none depends on a term, a folder or a sender that is meaningful on
one machine only, so a model can be used by other clients. Document frequencies are counted over the client's own
documents. `LIVE_1.raw` computes the features; `LIVE_1.scaled` divides them by constants that are part of the version,
so clients need not exchange ranges.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrank.data.text import content_words, stemmer, tokens
from fedrank.types import Features

BUCKETS = 1 << 20  # hash buckets in which documents are counted
MAX_WORDS = 4096  # stored words per document, the title first
MAX_TERMS = 32  # per query
HISTORY = 26  # first column that the client supplies
CONSTANTS = "live_constants.json"
LOG_103 = "aol-103"  # the feature set of AOL4FOLTR

_HEAD = struct.Struct("<III")  # stored words of the title, stored words in total, words in total
_HASH_BITS = (1 << 31) - 1


MEANINGS = {
    "bm25": "BM25 (k1 .9, b .4) of title and body, divided by the query's sum of idf",
    "bm25 of title": "the same of the title (k1 1.2, b .75)",
    "bm25 of body": "the same of the body (k1 1.2, b .75)",
    "engine": "the engine's score / the best score of the list",
    "rank": "1 / (r / 10 + 1), r the engine's rank from 0",
    "covered": "idf of the query's terms that occur / idf of all",
    "covered by title": "the same in the title",
    "covered by beginning": "the same in the first 50 words of the body",
    "all terms": "1 if every term of the query occurs",
    "all terms in title": "1 if every term of the query occurs in the title",
    "rarest term": "1 if the query's rarest term occurs",
    "rarest term in title": "1 if the query's rarest term occurs in the title",
    "adjacent pairs": "share of adjacent query terms that are adjacent in the same order",
    "near pairs": "share of adjacent query terms at most 8 words apart, in any order",
    "smallest window": "m / words of the shortest window with all m matched terms x m / terms",
    "first place": "1 / (1 + p / 20), p the position of the first match from 0, the title first",
    "title precision": "words of the title that are query terms / words of the title",
    "length": "ln(1 + words) / 11.5, at most 1",
    "title length": "ln(1 + words of the title) / 4, at most 1",
    "largest tf": "t / (t + 2), t how often the most frequent term of the query occurs",
    "bm25 of a term": "x / (x + 2), x BM25 / terms",
    "log tf": "y / (y + 1), y the mean of ln(1 + tf), weighted by idf",
    "feedback": "cosine (ln(1 + tf) x idf) with the sum of the 5 best other documents",
    "expanded bm25": "bm25 with the 30 heaviest terms of these documents at half the query's weight",
    "latent": "cosine of vectors of query and document, at least 0; 0 without vectors",
    "latent feedback": "the same with the sum of the 5 best other documents",
    "clicked for this query": "always 0: earlier clicks are a fixed rule of the search client",
    "clicked": "always 0",
    "opened lately": "always 0",
    "changed lately": "e^(-d / 7), d days since it changed; 0 if unknown",
    "changed this year": "e^(-d / 365)",
    "kind": "mail 1, page 1/2, file 0",
    "depth": "f / (f + 4), f the number of parent folders or slashes",
    "from somebody answered": "1 if it is a mail from a sender whom the user wrote to",  # prose: ok
}
NAMES = tuple(MEANINGS)
ENGINE = NAMES.index("engine")
KINDS = {"mail": 1.0, "page": 0.5, "file": 0.0}


def hash_stem(stem: str) -> int:
    """Hash a stem to 31 bits, identically on every machine."""
    return int.from_bytes(blake2b(stem.encode(errors="replace"), digest_size=4).digest(), "little") & _HASH_BITS


@dataclass(frozen=True, eq=False)
class ForwardRow:
    """A document as its stems in order: title, then body; at most 4,096."""

    words: NDArray[np.int32]
    title: int  # number of stems of the title
    length: int  # number of words of the document

    def pack(self) -> bytes:
        """Encode as bytes."""
        return _HEAD.pack(self.title, len(self.words), self.length) + self.words.astype("<i4").tobytes()

    @classmethod
    def unpack(cls, blob: bytes) -> ForwardRow:
        rows = ForwardRows.of([blob])
        return cls(rows.words, int(rows.titles[0]), int(rows.lengths[0]))

    @property
    def buckets(self) -> NDArray[np.int32]:
        """The distinct buckets of this document's words."""
        return np.unique(self.words & np.int32(BUCKETS - 1))


@dataclass(frozen=True, eq=False)
class ForwardRows:
    """Some documents: document d is words[offsets[d] : offsets[d + 1]]."""

    words: NDArray[np.int32]
    offsets: NDArray[np.int64]  # [documents + 1]
    titles: NDArray[np.int64]  # [documents]: number of words of the title
    lengths: NDArray[np.int64]  # [documents]: number of words of the document

    def __len__(self) -> int:
        return len(self.titles)

    @classmethod
    def of(cls, blobs: Sequence[bytes]) -> ForwardRows:
        """Decode the output of `ForwardRow.pack`."""
        heads = []
        for number, blob in enumerate(blobs):
            head = _HEAD.unpack_from(blob) if len(blob) >= _HEAD.size else (0, -1, 0)
            if len(blob) != _HEAD.size + 4 * head[1] or not head[0] <= head[1] <= min(head[2], MAX_WORDS):
                raise ValueError(
                    f"forward row {number} of {len(blobs)} has {len(blob)} bytes and begins with {blob[:12]!r}: it is "
                    "truncated or damaged; index the document again"
                )
            heads.append(head)
        about = np.array(heads, np.int64).reshape(-1, 3)
        words = np.frombuffer(b"".join(memoryview(blob)[_HEAD.size :] for blob in blobs), "<i4").astype(np.int32)
        return cls(words, _ends(about[:, 1]), about[:, 0].copy(), about[:, 2].copy())

    @classmethod
    def join(cls, rows: Sequence[ForwardRow]) -> ForwardRows:
        return cls(
            np.concatenate([row.words for row in rows]) if rows else np.empty(0, np.int32),
            _ends(np.array([len(row.words) for row in rows], np.int64)),
            np.array([row.title for row in rows], np.int64),
            np.array([row.length for row in rows], np.int64),
        )

    def select(self, which: NDArray[np.integer] | Sequence[int]) -> ForwardRows:
        """Some of the documents, in the given order."""
        which = np.asarray(which, np.int64)
        sizes = np.diff(self.offsets)[which]
        offsets = _ends(sizes)
        places = np.repeat(self.offsets[which] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return ForwardRows(self.words[places], offsets, self.titles[which], self.lengths[which])


@dataclass(frozen=True, eq=False)
class WordStatistics:
    """Word statistics over all documents of a client; additive, so they can be updated incrementally."""

    documents: int
    frequencies: NDArray[np.int32]  # [2^20]: documents with a word of this bucket
    words: int  # stored words of all documents
    title_words: int

    @classmethod
    def empty(cls) -> WordStatistics:
        """Return the statistics of an empty collection."""
        return cls(0, np.zeros(BUCKETS, np.int32), 0, 0)

    @classmethod
    def of(cls, rows: ForwardRows) -> WordStatistics:
        document = np.repeat(np.arange(len(rows)), np.diff(rows.offsets))
        pairs = np.unique(document * BUCKETS + (rows.words & np.int32(BUCKETS - 1)))
        frequencies = np.bincount(pairs % BUCKETS, minlength=BUCKETS).astype(np.int32)
        return cls(len(rows), frequencies, len(rows.words), int(rows.titles.sum()))

    @property
    def mean_lengths(self) -> NDArray[np.float64]:
        """[3]: mean words per document, title and body."""
        return np.array([self.words, self.title_words, self.words - self.title_words]) / max(self.documents, 1)

    def idf(self, stems: NDArray[np.int32]) -> NDArray[np.float64]:
        """[stems]: ln(1 + (N - n + 0.5) / (n + 0.5)); 0 if no document has it."""
        having = np.minimum(self.frequencies[stems & (BUCKETS - 1)], self.documents)
        return np.where(having > 0, np.log1p((self.documents - having + 0.5) / (having + 0.5)), 0.0)


@dataclass(frozen=True, eq=False)
class QueryTerms:
    """The distinct stems of a query in their order, at most 32."""

    stems: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.stems)

    @property
    def key(self) -> bytes:
        """Bytes that are equal for queries with the same stems."""
        return np.sort(self.stems).astype("<i4").tobytes()


@dataclass(frozen=True)
class Usage:
    """What a client knows about a candidate besides its words; days may be fractions, None: never or unknown."""

    changed_days_ago: float | None = None
    kind: str = "file"  # mail, page or file
    depth: int = 0
    answered: bool = False

    def columns(self) -> tuple[float, ...]:
        """Features 26 to 33."""
        return (
            0.0,  # what a model learned about earlier clicks lifted documents of other needs
            0.0,
            0.0,
            _fading(self.changed_days_ago, 7),
            _fading(self.changed_days_ago, 365),
            KINDS[self.kind],
            self.depth / (self.depth + 4),
            float(self.answered),
        )


def _fading(days: float | None, scale: float) -> float:
    # A clock may have been set back, which gives negative days.
    return 0.0 if days is None else float(np.exp(-max(days, 0.0) / scale))


@dataclass(frozen=True)
class FeatureSet:
    """A version of the feature set, including its stemmer, since other stems give other features."""

    stemmer: str = "english"  # a Snowball language, or "none"
    names: ClassVar[tuple[str, ...]] = NAMES
    meanings: ClassVar[dict[str, str]] = MEANINGS
    max_words: ClassVar[int] = MAX_WORDS

    @property
    def version(self) -> str:
        return "live-1" if self.stemmer == "english" else f"live-1-{self.stemmer}"

    @classmethod
    def named(cls, version: str) -> FeatureSet:
        """Return the set with this name; the stemmer is loaded on first use."""
        if version == LIVE_1.version:
            return LIVE_1
        language = version.removeprefix("live-1-")
        if language in ("", version, "english"):
            raise ValueError(f'unknown feature set {version!r}; use "live-1", or with another stemmer "live-1-german"')
        return cls(language)

    @cached_property
    def constants(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and standard deviation within a list of every feature; the same for every stemmer."""
        found = json.loads(files("fedrank.data").joinpath(CONSTANTS).read_text(encoding="utf-8"))["features"]
        table = np.array([(found[name]["mean"], found[name]["spread"]) for name in self.names], np.float32)
        return table[:, 0], table[:, 1]

    @staticmethod
    def words(text: str) -> list[str]:
        """Split a text into words, not stemmed."""
        return tokens(text)

    @cached_property
    def hash_word(self) -> Callable[[str], int]:
        """The hash of the stem of a word, not cached."""
        stem = (lambda word: word) if self.stemmer == "none" else stemmer(self.stemmer)
        return lambda word: hash_stem(stem(word))

    @cached_property
    def _hashed(self) -> Callable[[str], int]:
        return lru_cache(maxsize=1 << 18)(self.hash_word)  # texts repeat their words

    def stem(self, word: str) -> int:
        """Return the hash of the stem of a word; -1 if the text is not one word."""
        found = tokens(word)
        return self._hashed(found[0]) if len(found) == 1 else -1

    def query(self, text: str) -> QueryTerms:
        """Return the terms of a query; words after the 32nd distinct one are ignored."""
        distinct = dict.fromkeys(map(self._hashed, tokens(text)))
        return QueryTerms(np.fromiter(distinct, np.int32, len(distinct))[:MAX_TERMS])

    def engine_terms(self, text: str) -> dict[int, int]:
        """Return the stems that the engine searches for, with how often each occurs, without function words.

        The features are defined over all words of a query (`query`), so they and their version do not depend on this.
        """
        counted = Counter(map(self._hashed, content_words(text, self.stemmer)))
        return dict([*counted.items()][:MAX_TERMS])

    def row(self, title: str, body: str) -> ForwardRow:
        """Return a document in the form that features are computed from."""
        of_title, of_body = tokens(title), tokens(body)
        kept = of_title[:MAX_WORDS] + of_body[: max(MAX_WORDS - len(of_title), 0)]
        words = np.fromiter(map(self._hashed, kept), np.int32, len(kept))
        return ForwardRow(words, min(len(of_title), MAX_WORDS), len(of_title) + len(of_body))

    def stems_behind(self, row_title: int, body: str) -> Iterator[NDArray[np.int32]]:
        """Yield in pieces the stems of a body that did not fit into its forward row."""
        behind = tokens(body)[MAX_WORDS - row_title :]
        for start in range(0, len(behind), MAX_WORDS):
            yield self.row("", " ".join(behind[start : start + MAX_WORDS])).words

    def raw(
        self,
        query: QueryTerms,
        rows: ForwardRows,
        scores: ArrayLike,
        statistics: WordStatistics,
        usage: Iterable[Usage] | None = None,
        query_vector: ArrayLike | None = None,
        vectors: ArrayLike | None = None,
    ) -> Features:
        """Return features [candidates, 34] from 0 to 1 of candidates in the engine's order, best score first.

        `vectors` [candidates, any] and `query_vector` come from any model of semantic similarity. Examples are an
        encoder and a decomposition of the client's own documents.
        """
        from fedrank.kernels.live_features import live_features

        of_engine = np.array(scores, np.float64)
        if of_engine.shape != (len(rows),) or np.any(np.diff(of_engine) > 0):
            raise ValueError(
                f"scores of shape {of_engine.shape} were given for {len(rows)} candidates, or are not in descending "
                "order; give one score per candidate, the best first"
            )
        out = np.zeros((len(rows), len(self.names)), np.float32)
        if not len(rows):
            return out
        like: Any = np.zeros((len(rows), 0), np.float32) if vectors is None else np.array(vectors, np.float32)
        asked: Any = np.zeros(0, np.float32) if query_vector is None else np.array(query_vector, np.float32)
        if like.shape != (len(rows), len(asked)):
            raise ValueError(
                f"vectors {like.shape} for {len(rows)} candidates and {asked.shape} for the query do not match; give "
                "each candidate and the query a vector of the same length"
            )
        live_features(
            out, query.stems, rows.words, rows.offsets, rows.titles, rows.lengths, of_engine, statistics.frequencies,
            statistics.documents, statistics.mean_lengths, asked, like,
        )  # fmt: skip
        if usage is not None:
            out[:, HISTORY:] = [one.columns() for one in usage]
        return out

    def scaled(self, raw: Features) -> Features:
        """Standardise features by their spread within a list; models are trained on these values."""
        mean, spread = self.constants
        return (raw - mean) / spread

    def start(self) -> NDArray[np.float64]:
        """Weights that give the engine's order."""
        weights = np.zeros(len(self.names))
        weights[ENGINE] = 1.0
        return weights


LIVE_1 = FeatureSet()


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(sizes)))

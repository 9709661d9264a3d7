"""The features `engine-1`: what OpenSearch, Elasticsearch and Solr compute themselves, and the same from documents.

A model on these features can be learned before an engine logs anything, and goes into the engine as it is. An engine
computes BM25 as Lucene's BM25Similarity does since version 8: k1 1.2, b .75, no factor k1 + 1, lengths in one byte,
single precision. `EngineIndex` does the same, to one part in 100,000 (`TOLERANCE`), under these assumptions:

- fields are cut by the standard tokenizer and lower-cased, with Snowball's stemmer behind if the set's name says so.
  No stop words, no synonyms. Emoji, Hebrew quotes and the newest scripts may be cut differently.
- word statistics are those of the documents given here. An engine counts within a shard, and counts deleted documents
  until segments are merged: use one shard, or `dfs_query_then_fetch`, to compare.
- Elasticsearch, and OpenSearch before version 3, multiply by k1 + 1. The feature sets that `fedrank engine features`
  writes undo that.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents
from fedrank.data.json_lines import moment_of
from fedrank.data.text import stemmer
from fedrank.types import Features

K1, B = np.float32(1.2), np.float32(0.75)  # the defaults of all three engines
TOLERANCE = 1e-5  # of the engine's own value, at most
MOST_TERMS = 1024  # of a query: Lucene takes no more clauses
MOST_SHARE = 75  # per cent of a query's words, rounded down: what counts as most of them
LONGEST_WORD = 255  # letters; the standard tokenizer divides longer ones
DAY = 86_400.0  # seconds

TEXT_FIELDS = ("title", "body", "all")  # all: title and body, copied into one field
FIELDS = (*TEXT_FIELDS, "changed", "popularity")


@dataclass(frozen=True)
class EngineFeature:
    """One of the numbers: a query that an engine scores a document by."""

    name: str
    field: str  # one of FIELDS
    kind: str  # match, phrase, every, most, recency or popularity
    meaning: str
    top: float = 1.0  # what counts as 1 in a model: fixed, so that nobody has to exchange ranges
    half_life: float = 0.0  # of recency: days after which half of it is left


NAMED = (
    EngineFeature("title_match", "title", "match", "BM25 of the title", 10.0),
    EngineFeature("body_match", "body", "match", "BM25 of the body", 20.0),
    EngineFeature("all_match", "all", "match", "BM25 of title and body as one field", 20.0),
    EngineFeature("title_phrase", "title", "phrase", "BM25 of the whole query as a phrase in the title", 10.0),
    EngineFeature("body_phrase", "body", "phrase", "BM25 of the whole query as a phrase in the body", 20.0),
    EngineFeature("title_every", "title", "every", "1 if every word of the query stands in the title"),
    EngineFeature("all_every", "all", "every", "1 if every word of the query stands in title or body"),
    EngineFeature("title_most", "title", "most", "1 if at least 75 % of the words do, rounded down, in the title"),
    EngineFeature("all_most", "all", "most", "1 if at least 75 % of the words do, rounded down, in title or body"),
    EngineFeature("recent_month", "changed", "recency", "1/2 ^ (days between change and query / 30)", half_life=30.0),
    EngineFeature("recent_year", "changed", "recency", "1/2 ^ (days between change and query / 365)", half_life=365.0),
    EngineFeature("popularity", "popularity", "popularity", "ln(1 + popularity)", 10.0),
)
NAMES = tuple(feature.name for feature in NAMED)


# Lucene's SmallFloat.intToByte4: lengths below 24 as they are, longer ones as four significant bits and an exponent.


def length_to_byte(length: int) -> int:
    """A length as Lucene keeps it, in one byte.

    >>> [length_to_byte(n) for n in (0, 23, 40, 41, 42, 1000)]
    [0, 23, 40, 40, 41, 87]
    """
    if not 0 <= length < 2**31:
        raise ValueError(f"length = {length:,}: a field has 0 to {2**31 - 1:,} words; was it counted wrongly?")
    free = 24  # values for which nothing has to be encoded
    if length < free:
        return length
    rest = length - free
    if rest < 8:
        return free + rest
    shift = rest.bit_length() - 4
    return free + ((rest >> shift) & 7 | (shift + 1) << 3)


def byte_to_length(code: int) -> int:
    """The length that Lucene computes with: the smallest that has this byte.

    >>> byte_to_length(length_to_byte(41)), byte_to_length(length_to_byte(1000))
    (40, 984)
    """
    free = 24
    if code < free:
        return code
    shift, bits = (code - free >> 3) - 1, code - free & 7
    return free + (bits if shift == -1 else (bits | 8) << shift)


# Unicode's word boundaries (UAX 29) as far as Lucene's standard tokenizer uses them.
_ALONE = (
    "\u3005-\u3007\u3021-\u3029\u3041-\u3096\u309d-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
)
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_BETWEEN_LETTERS = "'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a"
_BETWEEN_DIGITS = (
    "'.,;\u037e\u0589\u060c\u060d\u066c\u07f8\u2018\u2019\u2024\u2044\ufe10\ufe14\ufe50\ufe52\ufe54\uff07"
    "\uff0c\uff0e\uff1b"
)
_ASCII = re.compile(r"(?=_*[0-9A-Za-z])(?:[0-9A-Za-z_]|(?<=[A-Za-z])['.:](?=[A-Za-z])|(?<=[0-9])['.,;](?=[0-9]))+")


@cache
def _any_script() -> re.Pattern[str]:
    marks = "".join(
        f"\\u{code:04x}"
        for code in range(0x300, 0x10000)
        if unicodedata.category(chr(code)) in ("Mn", "Mc", "Me", "Cf") and code != 0x200B
    )
    letter, kana = rf"[^\W\d_{_ALONE}{_KATAKANA}][{marks}]*", rf"[{_KATAKANA}][{marks}]*"
    digit = rf"\d[{marks}]*"
    letters = rf"{letter}(?:[{_BETWEEN_LETTERS}](?={letter}))?"
    digits = rf"{digit}(?:[{_BETWEEN_DIGITS}](?={digit}))?"
    return re.compile(rf"_*(?:{letters}|{digits})(?:{letters}|{digits}|_)*|_*{kana}(?:{kana}|_)*|[{_ALONE}][{marks}]*")


def standard_words(text: str) -> list[str]:
    """Words as the standard tokenizer cuts them, in small letters.

    >>> standard_words("Don't pay 3.14 or foo_bar-baz.")
    ["don't", 'pay', '3.14', 'or', 'foo_bar', 'baz']
    """
    if text.isascii():
        found = _ASCII.findall(text.lower())
    else:
        # Letter by letter, as Java does: no letter becomes two, and a sigma does not ask where it stands.
        found = ["".join(letter.lower()[:1] for letter in word) for word in _any_script().findall(text)]
    if all(len(word) <= LONGEST_WORD for word in found):
        return found
    return [word[at : at + LONGEST_WORD] for word in found for at in range(0, len(word), LONGEST_WORD)]


@dataclass(frozen=True)
class EngineFeatures:
    """A version of the features: the stemmer belongs to it, since other stems are other features."""

    stemmer: str = "none"  # or a language of Snowball's

    names: tuple[str, ...] = field(default=NAMES, init=False)

    @property
    def version(self) -> str:
        return "engine-1" if self.stemmer == "none" else f"engine-1-{self.stemmer}"

    @classmethod
    def named(cls, version: str) -> EngineFeatures:
        """The set of that name; its stemmer is looked for when it is used."""
        if version == ENGINE_1.version:
            return ENGINE_1
        language = version.removeprefix("engine-1-")
        if language in ("none", version) or not re.fullmatch("[a-z]+", language):
            raise ValueError(f'no features {version!r}; there is "engine-1", and with a stemmer "engine-1-english"')
        return cls(language)

    @cached_property
    def ranges(self) -> NDArray[np.float32]:
        """[2, features]: what counts as 0 and as 1 in a model."""
        return np.array([[0.0] * len(NAMED), [feature.top for feature in NAMED]], np.float32)

    @cached_property
    def words(self) -> Callable[[str], list[str]]:
        """How this set cuts texts."""
        if self.stemmer == "none":
            return standard_words
        stem = stemmer(self.stemmer)
        return lambda text: [stem(word) for word in standard_words(text)]

    def index(self, documents: Documents) -> EngineIndex:
        """Documents as an engine would index them."""
        return EngineIndex.of(documents, self)


ENGINE_1 = EngineFeatures()


def is_engine_set(version: str) -> bool:
    """Whether this names one of the sets of this module."""
    return version == ENGINE_1.version or version.startswith(f"{ENGINE_1.version}-")


@dataclass(frozen=True, eq=False)
class FieldPostings:
    """One field of all documents: which words occur where, and how long it is in each."""

    starts: NDArray[np.int64]  # [terms + 1]: term t occurs in documents[starts[t] : starts[t + 1]]
    documents: NDArray[np.int32]
    counts: NDArray[np.int32]  # how often, in each of these
    lengths: NDArray[np.uint8]  # [documents of the collection], as bytes
    having: int  # documents that have the field at all
    total: int  # words in all of them

    @classmethod
    def of(cls, words: NDArray[np.int32], lengths: NDArray[np.int64], terms: int) -> FieldPostings:
        """From the words of one document after the other."""
        document = np.repeat(np.arange(len(lengths)), lengths)
        pairs, counts = np.unique(words.astype(np.int64) * max(len(lengths), 1) + document, return_counts=True)
        starts = np.searchsorted(pairs, np.arange(terms + 1, dtype=np.int64) * max(len(lengths), 1))
        codes = np.fromiter(map(length_to_byte, lengths.tolist()), np.uint8, len(lengths))
        return cls(
            starts,
            (pairs % max(len(lengths), 1)).astype(np.int32),
            counts.astype(np.int32),
            codes,
            int(np.count_nonzero(lengths)),
            int(lengths.sum()),
        )

    @cached_property
    def weights_of_lengths(self) -> NDArray[np.float32]:
        """[256]: 1 / (k1 (1 - b + b length / mean length)), for every byte."""
        mean = np.float32(self.total / max(self.having, 1)) if self.total else np.float32(1)
        lengths = np.array([byte_to_length(code) for code in range(256)], np.float32)
        return np.float32(1) / (K1 * ((np.float32(1) - B) + B * lengths / mean))

    def idf(self, term: int) -> np.float32:
        """ln(1 + (N - n + .5) / (n + .5)), N the documents that have the field."""
        having = int(self.starts[term + 1] - self.starts[term])
        return np.float32(math.log(1 + (self.having - having + 0.5) / (having + 0.5)))

    def frequencies(self, term: int, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """[rows]: how often a term occurs in these documents."""
        here = self.documents[self.starts[term] : self.starts[term + 1]]
        if not len(here):
            return np.zeros(len(rows), np.int32)
        at = np.minimum(np.searchsorted(here, rows), len(here) - 1)
        found: NDArray[np.int32] = np.where(here[at] == rows, self.counts[self.starts[term] + at], 0)
        return found

    def scores(
        self, weight: np.float32, frequency: NDArray[np.floating | np.integer], rows: NDArray[np.int64]
    ) -> Features:
        """[rows]: BM25 of something that occurs so often, in the order of operations of Lucene."""
        inverse = self.weights_of_lengths[self.lengths[rows]]
        return weight - weight / (np.float32(1) + frequency.astype(np.float32) * inverse)


@dataclass(frozen=True, eq=False)
class EngineIndex:
    """Documents as an engine indexes them."""

    features: EngineFeatures
    terms: dict[str, int]
    fields: dict[str, FieldPostings]
    words: dict[str, NDArray[np.int32]]  # of title and body: those of one document after the other
    offsets: dict[str, NDArray[np.int64]]  # [documents + 1]
    changed: NDArray[np.float64]  # [documents]: seconds since 1970; NaN where it is not known
    popularity: NDArray[np.float64]  # [documents]: 0 where it is not known

    def __len__(self) -> int:
        return len(self.changed)

    @classmethod
    def of(cls, documents: Documents, features: EngineFeatures) -> EngineIndex:
        terms: dict[str, int] = {}
        words, offsets = {}, {}
        for name, texts in (("title", documents.title), ("body", documents.text)):
            parts = [[terms.setdefault(word, len(terms)) for word in features.words(text)] for text in texts]
            sizes = np.fromiter(map(len, parts), np.int64, len(parts))
            words[name] = np.fromiter((word for part in parts for word in part), np.int32, int(sizes.sum()))
            offsets[name] = np.concatenate(([0], np.cumsum(sizes)))
        lengths = {name: np.diff(ends) for name, ends in offsets.items()}
        fields = {name: FieldPostings.of(words[name], lengths[name], len(terms)) for name in words}
        both = np.concatenate([words["title"], words["body"]])
        owner = np.concatenate([np.repeat(np.arange(len(documents)), lengths[name]) for name in ("title", "body")])
        together = lengths["title"] + lengths["body"]
        fields["all"] = FieldPostings.of(both[np.argsort(owner, kind="stable")], together, len(terms))
        changed = [moment_of(text) for text in documents.changed] or [None] * len(documents)
        popularity = [_number(text) for text in documents.popularity] or [0.0] * len(documents)
        return cls(
            features,
            terms,
            fields,
            words,
            offsets,
            np.array([math.nan if moment is None else moment for moment in changed], np.float64),
            np.array(popularity, np.float64),
        )

    def describe(self, query: str, rows: Sequence[int] | NDArray[np.integer], time: float | None = None) -> Features:
        """[rows, features] of some documents; without a time nothing is recent."""
        which = np.asarray(rows, np.int64)
        asked = [self.terms.get(word, -1) for word in self.features.words(query)[:MOST_TERMS]]
        out = np.zeros((len(which), len(NAMED)), np.float32)
        if not len(which):
            return out
        found = {name: self._frequencies(name, asked, which) for name in TEXT_FIELDS}
        for column, feature in enumerate(NAMED):
            if feature.kind == "recency":
                out[:, column] = self._recency(which, time, feature.half_life)
            elif feature.kind == "popularity":
                out[:, column] = np.log1p(np.maximum(self.popularity[which], 0.0))
            elif not asked:
                continue
            elif feature.kind == "match":
                out[:, column] = self._match(feature.field, asked, found[feature.field], which)
            elif feature.kind == "phrase":
                out[:, column] = self._phrase(feature.field, asked, found[feature.field], which)
            else:
                needed = len(asked) if feature.kind == "every" else max(len(asked) * MOST_SHARE // 100, 1)
                out[:, column] = np.count_nonzero(found[feature.field], axis=1) >= needed
        return out

    def _frequencies(self, name: str, asked: list[int], rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """[rows, words of the query]: how often each occurs; a word that is asked for twice counts twice."""
        of_term = {term: self.fields[name].frequencies(term, rows) for term in set(asked) if term >= 0}
        nowhere = np.zeros(len(rows), np.int32)
        return np.stack([of_term.get(term, nowhere) for term in asked], axis=1) if asked else nowhere[:, None][:, :0]

    def _match(self, name: str, asked: list[int], found: NDArray[np.int32], rows: NDArray[np.int64]) -> Features:
        postings, total = self.fields[name], np.zeros(len(rows))
        for place, term in enumerate(asked):
            if term >= 0:
                total += postings.scores(postings.idf(term), found[:, place], rows)
        return total.astype(np.float32)

    def _phrase(self, name: str, asked: list[int], found: NDArray[np.int32], rows: NDArray[np.int64]) -> Features:
        if len(asked) == 1:
            return self._match(name, asked, found, rows)
        times = np.zeros(len(rows), np.int32)
        wanted = np.array(asked, np.int32)
        words, ends = self.words[name], self.offsets[name]
        for place in np.flatnonzero(found.all(axis=1)):
            text = words[ends[rows[place]] : ends[rows[place] + 1]]
            starts = np.flatnonzero(text[: len(text) - len(wanted) + 1] == wanted[0])
            if len(text) >= len(wanted):
                times[place] = sum(np.array_equal(text[at : at + len(wanted)], wanted) for at in starts)
        if not times.any():
            return np.zeros(len(rows), np.float32)
        postings = self.fields[name]
        weight = np.float32(sum(float(postings.idf(term)) for term in asked))
        return postings.scores(weight, times, rows)

    def _recency(self, rows: NDArray[np.int64], time: float | None, half_life: float) -> NDArray[np.float64]:
        if time is None:
            return np.zeros(len(rows))
        days = np.abs(time - self.changed[rows]) / DAY  # engines look in both directions
        return np.nan_to_num(np.exp(math.log(0.5) * days / half_life), nan=0.0)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0

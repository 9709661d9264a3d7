"""The features `engine-1`, which OpenSearch, Elasticsearch and Solr can compute, computed from documents.

A model on these features can be trained before an engine logs any features, and can be deployed to the engine without
changes. Engines compute BM25 like Lucene's BM25Similarity since version 8: k1 = 1.2, b = .75, no factor k1 + 1, lengths
in one byte, single precision. `EngineIndex` does the same, to one part in 100,000 (`TOLERANCE`), if:

- fields are split by the standard tokenizer and lower-cased, then stemmed with Snowball if the set's name says so,
  without stop words and synonyms. Characters newer than Unicode 12.1, and keycaps, may be split differently. Stemmer
  versions differ in a few words; features are then close but not equal.
- word statistics are those of the given documents. An engine counts within a shard, and counts deleted documents
  until segments are merged: to compare, use one shard or `dfs_query_then_fetch`.
- Elasticsearch, and OpenSearch before version 3, multiply by k1 + 1. The feature sets that `fedrank engine features`
  writes divide by it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrank import kernels
from fedrank.data.documents import Documents
from fedrank.data.text import stemmer
from fedrank.data.values import parse_number, parse_time
from fedrank.types import Features

K1, B = np.float32(1.2), np.float32(0.75)  # the defaults of all three engines
TOLERANCE = 1e-5  # relative to the engine's value
MAX_TERMS = 1024  # per query: Lucene's limit on clauses
MAX_SHARE = 75  # per cent of a query's words, rounded down, that count as most of them
MAX_WORD_LENGTH = 255  # characters; the standard tokenizer splits longer words
DAY = 86_400.0  # seconds
_LN2 = 0.6931471805599453

TEXT_FIELDS = ("title", "body", "all")  # all: title and body, copied into one field
FIELDS = (*TEXT_FIELDS, "changed", "popularity")


@dataclass(frozen=True)
class EngineFeature:
    """A feature: a query with which an engine scores a document."""

    name: str
    field: str  # one of FIELDS
    kind: str  # match, phrase, every, most, recency or popularity
    meaning: str
    top: float = 1.0  # value that is scaled to 1; fixed, so clients need not exchange ranges
    half_life: float = 0.0  # of recency, in days

    @property
    def half_life_seconds(self) -> float:
        return self.half_life * DAY


NAMED = (
    EngineFeature("title_match", "title", "match", "BM25 of the title", 10.0),
    EngineFeature("body_match", "body", "match", "BM25 of the body", 20.0),
    EngineFeature("all_match", "all", "match", "BM25 of title and body as one field", 20.0),
    EngineFeature("title_phrase", "title", "phrase", "BM25 of the whole query as a phrase in the title", 10.0),
    EngineFeature("body_phrase", "body", "phrase", "BM25 of the whole query as a phrase in the body", 20.0),
    EngineFeature("title_every", "title", "every", "1 if every word of the query occurs in the title"),
    EngineFeature("all_every", "all", "every", "1 if every word of the query occurs in the title or the body"),
    EngineFeature("title_most", "title", "most", "1 if at least 75 % of the words, rounded down, occur in the title"),
    EngineFeature("all_most", "all", "most", "1 if at least 75 % of the words, rounded down, occur in title or body"),
    EngineFeature("recent_month", "changed", "recency", "1/2 ^ (days between change and query / 30)", half_life=30.0),
    EngineFeature("recent_year", "changed", "recency", "1/2 ^ (days between change and query / 365)", half_life=365.0),
    EngineFeature("popularity", "popularity", "popularity", "ln(1 + popularity)", 10.0),
)
NAMES = tuple(feature.name for feature in NAMED)


# Lucene's SmallFloat.intToByte4: lengths below 24 are exact, longer ones have four significant bits and an exponent.


def length_to_byte(length: int) -> int:
    """Encode a length in one byte, as Lucene does.

    >>> [length_to_byte(n) for n in (0, 23, 40, 41, 42, 1000)]
    [0, 23, 40, 40, 41, 87]
    """
    if not 0 <= length < 2**31:
        raise ValueError(f"length must be from 0 to {2**31 - 1:,} (got {length:,})")
    free = 24  # values that are stored exactly
    if length < free:
        return length
    rest = length - free
    if rest < 8:
        return free + rest
    shift = rest.bit_length() - 4
    return free + ((rest >> shift) & 7 | (shift + 1) << 3)


def byte_to_length(code: int) -> int:
    """Decode a byte to the length that Lucene computes with, the smallest with this code.

    >>> byte_to_length(length_to_byte(41)), byte_to_length(length_to_byte(1000))
    (40, 984)
    """
    free = 24
    if code < free:
        return code
    shift, bits = (code - free >> 3) - 1, code - free & 7
    return free + (bits if shift == -1 else (bits | 8) << shift)


# Unicode's word boundaries (UAX 29) as in Lucene's standard tokenizer: every character is replaced by the letter of
# its class, and words are matched among these letters. A run of underscores alone is not a word and is skipped.
_ASCII = re.compile(r"(_*[0-9a-z](?:[0-9a-z_]|(?<=[a-z])['.:](?=[a-z])|(?<=[0-9])['.,;](?=[0-9]))*)|_+")
_EXPLICIT = {
    **dict.fromkeys("_\u202f\u203f\u2040\u2054\ufe33\ufe34\ufe4d\ufe4e\ufe4f\uff3f", "_"),
    **dict.fromkeys(":\u00b7\u0387\u05f4\u2027\ufe13\ufe55\uff1a", "m"),  # between letters
    **dict.fromkeys(".\u2018\u2019\u2024\ufe52\uff07\uff0e", "b"),  # between letters, or between digits
    **dict.fromkeys(",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b", "n"),  # digits
    **dict.fromkeys("'", "q"),
    **dict.fromkeys('"', "Q"),
    **dict.fromkeys("\u200b", "o"),
    **dict.fromkeys("\u200d", "z"),  # joins emoji
    **dict.fromkeys("\u066b", "D"),
    **dict.fromkeys("\u055b\u055c\u055e\u05f3", "L"),
}
_RANGES = (  # class, and ranges that override the Unicode category
    ("H", "5d0-5ea 5ef-5f2 fb1d-fb1d fb1f-fb28 fb2a-fb36 fb38-fb4f"),  # Hebrew
    ("C", "e01-e3a e40-e4e e81-ecd edc-edf 1000-103f 1050-108f 109a-109f 1780-17d3 17d7-17d7 17dc-17dd 1950-1974"),
    ("C", "1980-19c9 19da-19da 19de-19df 1a20-1a7c 1aa0-1aad a9e0-a9ef a9fa-a9fe aa60-aadf 11700-1172b 1173a-1173b"),
    ("K", "3031-3035 309b-309c 30a0-30fa 30fc-30ff 31f0-31ff 32d0-32fe 3300-3357 ff66-ff9d 1b000-1b000"),  # katakana
    ("S", "2e80-2fd5 3007-3007 3021-3029 3038-303a 3041-3096 309d-309f 3400-4dbf 4e00-9fff f900-fad9"),
    ("S", "1b001-1b11e 1b150-1b152 1f200-1f200 20000-323af"),  # Chinese characters and hiragana: words by themselves
    ("M", "ff9e-ff9f"),
    ("o", "3006-3006 17000-18d08 1b170-1b2ff"),
    ("L", "2c2-2c5 2d2-2d7 2de-2df 2ed-2ed 2ef-2ff 24b6-24e9 a720-a721 a789-a78a ab5b-ab5b 1f130-1f149 1f150-1f169"),
    ("L", "1f170-1f189"),
    ("t", "1f3fb-1f3ff"),  # skin tones of emoji
    ("r", "1f1e6-1f1ff"),  # regional indicators: two form a flag
    ("e", "a9-a9 ae-ae 203c-203c 2049-2049 2122-2122 2194-2199 21a9-21aa 231a-231b 2328-2328 2388-2388 23cf-23cf"),
    ("e", "23e9-23f3 23f8-23fa 25aa-25ab 25b6-25b6 25c0-25c0 25fb-25fe 2600-2605 2607-2612 2614-2685 2690-2705"),
    ("e", "2708-2712 2714-2714 2716-2716 271d-271d 2721-2721 2728-2728 2733-2734 2744-2744 2747-2747 274c-274c"),
    ("e", "274e-274e 2753-2755 2757-2757 2763-2767 2795-2797 27a1-27a1 27b0-27b0 27bf-27bf 2934-2935 2b05-2b07"),
    ("e", "2b1b-2b1c 2b50-2b50 2b55-2b55 3030-3030 303d-303d 3297-3297 3299-3299 1f000-1f0ff 1f10d-1f10f 1f12f-1f12f"),
    ("e", "1f16c-1f171 1f17e-1f17f 1f18e-1f18e 1f191-1f19a 1f1ad-1f1e5 1f201-1f20f 1f21a-1f21a 1f22f-1f22f"),
    ("e", "1f232-1f23a 1f23c-1f23f 1f249-1f3fa 1f400-1f53d 1f546-1f64f 1f680-1f6ff 1f774-1f77f 1f7d5-1f7ff"),
    ("e", "1f80c-1f80f 1f848-1f84f 1f85a-1f85f 1f888-1f88f 1f8ae-1f8ff 1f90c-1f93a 1f93c-1f945 1f947-1faff"),
)
_BY_CATEGORY = dict.fromkeys(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl"), "L") | {"Nd": "D"}
_BY_CATEGORY |= dict.fromkeys(("Mn", "Mc", "Me", "Cf"), "M")


class _CharacterClasses(dict[int, str]):
    """A cache of character classes for `str.translate`."""

    def __missing__(self, code: int) -> str:
        plain = _BY_CATEGORY.get(unicodedata.category(chr(code)), "o")
        found = _EXPLICIT.get(chr(code)) or next((one for one, a, b in _ranges() if a <= code <= b), plain)
        self[code] = "c" if (found, plain) == ("C", "M") else found
        return self[code]


@cache
def _ranges() -> tuple[tuple[str, int, int], ...]:
    return tuple(
        (kind, int(first, 16), int(last, 16))
        for kind, several in _RANGES
        for first, last in (one.split("-") for one in several.split())
    )


@cache
def _any_script() -> tuple[_CharacterClasses, re.Pattern[str]]:
    more = "[Mczt]*"  # combining marks belong to the preceding character
    low = f"_{more}"
    letter = f"(?:H{more}(?:q{more}|Q{more}(?=H))?|L{more})"  # in Hebrew, quotes mark abbreviations
    letters = f"{letter}(?:(?:(?:{low})*|[mbq]{more}){letter})*"
    digits = f"D{more}(?:(?:(?:{low})*|[nbq]{more})D{more})*"
    katakana = f"K{more}(?:(?:{low})*K{more})*"
    either = f"(?:{katakana}|(?:{letters}|{digits})+)"
    whole = f"(?:{low})*{either}(?:(?:{low})+{either})*(?:{low})*"
    emoji = "[et]t?[Mcz]*(?:(?<=z)[et]t?[Mcz]*)*"  # joined sequences
    return _CharacterClasses(), re.compile(f"({whole}|(?:[Cc]{more})+|S{more}|{emoji}|rr)|(?:{low})+")


def standard_words(text: str) -> list[str]:
    """Split text like the standard tokenizer, in lower case.

    >>> standard_words("Don't pay 3.14 or foo_bar-baz.")
    ["don't", 'pay', '3.14', 'or', 'foo_bar', 'baz']
    """
    if text.isascii():
        found = [word for word in _ASCII.findall(text.lower()) if word]
    else:
        classes, pattern = _any_script()
        spans = (match.span(1) for match in pattern.finditer(text.translate(classes)) if match[1])
        # Character by character, as in Java: each maps to one character, and sigma does not depend on its position.
        found = ["".join(letter.lower()[:1] for letter in text[first:end]) for first, end in spans]
    if all(len(word) <= MAX_WORD_LENGTH for word in found):
        return found
    return [word[at : at + MAX_WORD_LENGTH] for word in found for at in range(0, len(word), MAX_WORD_LENGTH)]


@dataclass(frozen=True)
class EngineFeatures:
    """A version of the feature set, including its stemmer, since other stems give other features."""

    stemmer: str = "none"  # or a Snowball language

    names: ClassVar[tuple[str, ...]] = NAMES
    features: ClassVar[tuple[EngineFeature, ...]] = NAMED

    @property
    def version(self) -> str:
        return "engine-1" if self.stemmer == "none" else f"engine-1-{self.stemmer}"

    @classmethod
    def named(cls, version: str) -> EngineFeatures:
        """Return the set with this name; the stemmer is loaded on first use."""
        if version == ENGINE_1.version:
            return ENGINE_1
        language = version.removeprefix("engine-1-")
        if language in ("none", version) or not re.fullmatch("[a-z]+", language):
            raise ValueError(f'unknown feature set {version!r}; use "engine-1", or with a stemmer "engine-1-english"')
        return cls(language)

    @cached_property
    def ranges(self) -> NDArray[np.float32]:
        """[2, features]: the values that are scaled to 0 and 1."""
        return np.array([[0.0] * len(NAMED), [feature.top for feature in NAMED]], np.float32)

    @cached_property
    def words(self) -> Callable[[str], list[str]]:
        """The tokenizer of this set."""
        if self.stemmer == "none":
            return standard_words
        stem = stemmer(self.stemmer)
        return lambda text: [stem(word) for word in standard_words(text)]

    def index(self, documents: Documents) -> EngineIndex:
        """Index documents as an engine would."""
        return EngineIndex.of(documents, self)


ENGINE_1 = EngineFeatures()


def is_engine_set(version: str) -> bool:
    """Whether this is the name of an engine-1 feature set."""
    return version == ENGINE_1.version or version.startswith(f"{ENGINE_1.version}-")


@dataclass(frozen=True, eq=False)
class FieldPostings:
    """The postings and lengths of one field in all documents."""

    starts: NDArray[np.int64]  # [terms + 1]: term t occurs in documents[starts[t] : starts[t + 1]]
    documents: NDArray[np.int32]
    counts: NDArray[np.int32]  # term frequencies in these documents
    lengths: NDArray[np.uint8]  # [documents of the collection], encoded as bytes
    having: int  # documents that have the field
    total: int  # words in all documents

    @classmethod
    def of(cls, words: NDArray[np.int32], lengths: NDArray[np.int64], terms: int) -> FieldPostings:
        """Build postings from the concatenated words of all documents."""
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
        """ln(1 + (N - n + .5) / (n + .5)), where N is the number of documents with the field."""
        having = int(self.starts[term + 1] - self.starts[term])
        return np.float32(kernels.elementary.log(1 + (self.having - having + 0.5) / (having + 0.5)))

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
        """[rows]: BM25 for these term frequencies, with Lucene's order of operations."""
        inverse = self.weights_of_lengths[self.lengths[rows]]
        return weight - weight / (np.float32(1) + frequency.astype(np.float32) * inverse)


@dataclass(frozen=True, eq=False)
class EngineIndex:
    """Documents as an engine indexes them."""

    features: EngineFeatures
    terms: dict[str, int]
    fields: dict[str, FieldPostings]
    words: dict[str, NDArray[np.int32]]  # of title and body, concatenated over documents
    offsets: dict[str, NDArray[np.int64]]  # [documents + 1]
    changed: NDArray[np.float64]  # [documents]: seconds since 1970; NaN if unknown
    popularity: NDArray[np.float64]  # [documents]: 0 if unknown

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
        changed = [parse_time(text) for text in documents.changed] or [None] * len(documents)
        popularity = [parse_number(text) or 0.0 for text in documents.popularity] or [0.0] * len(documents)
        return cls(
            features,
            terms,
            fields,
            words,
            offsets,
            np.array([np.nan if moment is None else moment for moment in changed], np.float64),
            np.array(popularity, np.float64),
        )

    def describe(self, query: str, rows: Sequence[int] | NDArray[np.integer], time: float | None = None) -> Features:
        """Return features [rows, features] of some documents; recency is 0 without a time."""
        which = np.asarray(rows, np.int64)
        asked = [self.terms.get(word, -1) for word in self.features.words(query)[:MAX_TERMS]]
        out = np.zeros((len(which), len(NAMED)), np.float32)
        if not len(which):
            return out
        found = {name: self._frequencies(name, asked, which) for name in TEXT_FIELDS}
        for column, feature in enumerate(NAMED):
            if feature.kind == "recency":
                out[:, column] = self._recency(which, time, feature.half_life)
            elif feature.kind == "popularity":
                out[:, column] = kernels.elementary.log1p_each(np.maximum(self.popularity[which], 0.0))
            elif not asked:
                continue
            elif feature.kind == "match":
                out[:, column] = self._match(feature.field, asked, found[feature.field], which)
            elif feature.kind == "phrase":
                out[:, column] = self._phrase(feature.field, asked, found[feature.field], which)
            else:
                needed = len(asked) if feature.kind == "every" else max(len(asked) * MAX_SHARE // 100, 1)
                out[:, column] = np.count_nonzero(found[feature.field], axis=1) >= needed
        return out

    def _frequencies(self, name: str, asked: list[int], rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """[rows, words of the query]: term frequencies; a repeated query word has several columns."""
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
        days = np.abs(time - self.changed[rows]) / DAY  # engines use the absolute distance
        return np.nan_to_num(kernels.elementary.exp_each(-_LN2 * days / half_life), nan=0.0)

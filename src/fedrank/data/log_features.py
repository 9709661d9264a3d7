"""The 103 features of a query and a document that AOL4FOLTR uses, over a whole collection or as published.

`Statistics.of(documents)` counts a collection once; a live search client then only needs `features_of`.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrank import kernels
from fedrank.data.text import tokens

if TYPE_CHECKING:
    from fedrank.data.documents import Documents

STREAMS = ("title", "body", "URL")
K1 = 1.5  # BM25: saturation of term frequency; the default of bm25s and rank_bm25
B = 0.75  # BM25: length normalisation, 0 to 1
FLOOR = 0.25  # published BM25 only: a term with negative idf gets this share of the list's mean idf
DOCUMENTS_AT_ONCE = 4096  # per batch; bounds the memory for tokens
PAIRS_AT_ONCE = 4096  # per batch of a thread


def _summaries(of: str) -> tuple[str, ...]:
    return tuple(f"{summary} of {of}" for summary in ("min", "max", "sum", "mean", "variance"))


# The features of every stream. "Published" is the definition with published=True, if it differs; a repeated word of the
# query then counts as often as it occurs.
_OF_STREAMS = (
    # Sum of idf x tf / (tf + k1 (1 - b + b length / mean length)). Published: times k1 + 1, with
    # idf = ln((N - n + 0.5) / (n + 0.5)) over the list's N documents that have this stream; a negative idf becomes
    # FLOOR x the list's mean idf.
    "BM25",
    # Over the query's terms: tf, how often a term occurs in the stream.
    *_summaries("TF"),
    # Over the query's terms: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), n of N documents having the term in this stream;
    # 0 if n = 0. Published: idf = ln((1 + N) / (1 + n)) + 1 over the N documents of the list, here and below.
    *_summaries("IDF"),
    *_summaries("TF-IDF"),  # over the query's terms: tf x idf
    # Over the stream's words: their length in characters. Published: the same, under the name "stream length".
    *_summaries("word length"),
    # Over the query's terms: tf / number of words in the stream. Published: always the sum, contrary to the name; the
    # variance is always 0.
    *_summaries("length-normalised TF"),
    "cosine",  # between query (idf) and stream (tf x idf)
    "covered query terms",  # number of query terms that occur in the stream
    "covered query term ratio",  # share of query terms that occur in the stream
    "characters",  # length of the stream in characters, without surrounding white space
    "terms",  # length of the stream in words
    "query terms",  # number of query terms. Published: 0 if no document of the list has the stream
    # 1 if every query term occurs in the stream, otherwise 0 (MSLR's boolean model). Published: 0 whenever a word of
    # the query is repeated.
    "exact match",
    # Share of the stream's distinct terms that are query terms. Published: distinct query terms that occur in the
    # stream / words of the query.
    "match ratio",
)
FEATURE_NAMES = (*(f"{name} of {stream}" for name in _OF_STREAMS for stream in STREAMS), "number of slashes in URL")


@dataclass(frozen=True, eq=False)
class Statistics:
    """Term statistics of a collection: counts for every title, body and URL, without texts.

    Documents are numbered 0, 1, ..., in the given order. A missing title, text or URL is an empty stream of length 0;
    its features are 0 except idf and the number of query terms, which depend only on the query.
    """

    vocabulary: dict[str, int]  # numbers of terms
    frequencies: NDArray[np.int32]  # [terms, 3]: how many documents have the term in this stream
    offsets: NDArray[np.int64]  # [3 documents + 1]: stream s of document d is row 3 d + s
    terms: NDArray[np.int32]  # distinct terms of each row, ascending
    counts: NDArray[np.uint16] | NDArray[np.int32]  # how often each occurs; int32 where 65,535 is not enough
    lengths: NDArray[np.int32]  # [documents, 3]: words
    mean_lengths: NDArray[np.float64]  # [3]: over all documents, those with an empty stream included
    characters: NDArray[np.int32]  # [documents, 3]
    words: NDArray[np.float32]  # [documents, 3, 5]: min, max, sum, mean, variance of word lengths
    norms: NDArray[np.float64]  # [documents, 3]: length of the vector of tf x idf
    slashes: NDArray[np.int32]  # [documents]: in the URL

    def __len__(self) -> int:
        return len(self.slashes)

    @classmethod
    def of(cls, documents: Documents) -> Statistics:
        """Compute the statistics of a collection; texts are read once and not stored."""
        from fedrank.kernels.log_features import describe_streams, document_norms

        ids, offsets, terms, counts, characters = _count(documents)
        number = len(documents.ids)
        frequencies = np.zeros((len(ids), 3), np.int32)
        lengths = np.zeros((number, 3), np.int32)
        words = np.zeros((number, 3, 5), np.float32)
        word_lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        describe_streams(offsets, terms, counts, word_lengths, frequencies, lengths, words)
        norms = np.empty((number, 3))
        document_norms(offsets, terms, counts, idf(frequencies, number), norms)
        return cls(
            vocabulary=ids,
            frequencies=frequencies,
            offsets=offsets,
            terms=terms,
            counts=counts,
            lengths=lengths,
            mean_lengths=lengths.mean(axis=0) if number else np.zeros(3),
            characters=characters,
            words=words,
            norms=norms,
            slashes=np.fromiter((url.count("/") for url in documents.url), np.int32, number),
        )


def idf(frequencies: NDArray[Any], documents: int) -> NDArray[np.float64]:
    """Inverse document frequency as in Lucene: ln(1 + (N - n + 0.5) / (n + 0.5)), n of N documents having the term.

    Never negative. A term that no document has gets 0 instead of the largest value, so a misspelt word does not
    outweigh the others.
    """
    n = np.asarray(frequencies, np.float64)
    return np.where(n > 0, kernels.elementary.log1p_each((documents - n + 0.5) / (n + 0.5)), 0.0)


def features_of(query: str, rows: ArrayLike, statistics: Statistics, published: bool = False) -> NDArray[np.float32]:
    """Return features [rows, 103] of one query and some documents of a collection; reads no files.

    The values equal those of `features_for` bit for bit.
    """
    rows = np.asarray(rows, np.int64)
    return features_for([query], np.zeros(len(rows), np.int64), rows, statistics, published=published)


def features_for(
    queries: Sequence[str],
    query_of_pair: ArrayLike,
    rows_of_pair: ArrayLike,
    statistics: Statistics,
    threads: int = 1,
    published: bool = False,
) -> NDArray[np.float32]:
    """Return features [pairs, 103] of many queries and documents.

    A repeated query word counts once, term features of a query without words are 0, and all values are finite. A pair
    depends only on its query, its document and the collection, so pairs can be computed in any portions.

    `published` uses the definitions of AOL4FOLTR's files (see above), in which a pair depends on its result list:
    all pairs with the same `query_of_pair` are one list, and statistics are those of the list. Give every list a
    separate entry in `queries`, and never divide a list between two calls. Words are split by the tokenizer of this
    package, and one published rule is omitted: that tf, idf and cosine are 0 where a stream of the whole list
    contains only English stop words.
    """
    from fedrank.kernels.log_features import collection_features, published_features

    # Copies, because kernels would be compiled again for read-only arrays.
    asking, rows = np.array(query_of_pair, np.int64), np.array(rows_of_pair, np.int64)
    _check(asking, rows, len(queries), len(statistics))
    used, position = np.unique(asking, return_inverse=True)
    asked = _asked([queries[i] for i in used], statistics)
    s = statistics
    collection = (s.offsets, s.terms, s.counts, s.lengths, s.mean_lengths, s.characters, s.words, s.norms, s.slashes)
    out = np.empty((len(rows), len(FEATURE_NAMES)), np.float32)
    steps = [*range(0, len(rows), PAIRS_AT_ONCE), len(rows)]
    ends = _ends(np.bincount(position, minlength=len(used))) if published else np.arange(len(rows) + 1)
    edges = np.unique(np.searchsorted(ends, steps))  # do not divide a list
    order = np.lexsort((rows, position)) if published else None

    def some(first: int, last: int) -> None:
        if order is not None:
            words = len(s.vocabulary)
            published_features(out, first, last, ends, order, rows, words, asked, collection, K1, B, FLOOR)
        else:
            collection_features(out, first, last, position, rows, asked, collection, K1, B)

    if threads > 1:
        with ThreadPoolExecutor(threads) as pool:  # portions are independent
            list(pool.map(some, edges[:-1], edges[1:]))
    else:
        for first, last in pairwise(edges):
            some(first, last)
    return out


def _check(asking: NDArray[np.int64], rows: NDArray[np.int64], queries: int, documents: int) -> None:
    if asking.shape != rows.shape or rows.ndim != 1:
        raise ValueError(
            f"{asking.shape} queries and {rows.shape} documents do not form pairs; give two lists of equal length"
        )
    for values, size, what in ((asking, queries, "queries"), (rows, documents, "documents")):
        wrong = values[(values < 0) | (values >= size)]
        if len(wrong):
            raise IndexError(f"index {wrong[0]} is out of range for {size:,} {what}; indices start at 0")


def _asked(queries: Sequence[str], statistics: Statistics) -> tuple[NDArray[Any], ...]:
    """Return the distinct terms of each query in order: (offsets, terms, repeats, idf [terms, 3])."""
    wanted, repeats, sizes = array("i"), array("q"), array("q")
    for query in queries:
        counted = Counter(tokens(query))
        wanted.extend(statistics.vocabulary.get(token, -1) for token in counted)
        repeats.extend(counted.values())
        sizes.append(len(counted))
    terms = np.array(wanted, np.int32)
    frequencies = np.zeros((len(terms), 3), np.int32)
    frequencies[terms >= 0] = statistics.frequencies[terms[terms >= 0]]
    return _ends(np.array(sizes, np.int64)), terms, np.array(repeats, np.int64), idf(frequencies, len(statistics))


def _count(
    documents: Documents,
) -> tuple[dict[str, int], NDArray[np.int64], NDArray[np.int32], NDArray[Any], NDArray[np.int32]]:
    """Number terms by first appearance and count them: (terms, offsets, terms of rows, counts, characters)."""
    from fedrank.kernels.log_features import count_terms

    number = len(documents.ids)
    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    characters = np.zeros((number, 3), np.int32)
    sizes = np.zeros(3 * number, np.int64)
    some_terms, some_counts = [np.empty(0, np.int32)], [np.empty(0, np.uint16)]
    for first in range(0, number, DOCUMENTS_AT_ONCE):
        last = min(first + DOCUMENTS_AT_ONCE, number)
        of_rows, ends = array("i"), array("q", [0])
        for document in range(first, last):
            streams = documents.title[document], documents.text[document], documents.url[document]
            for stream, text in enumerate(streams):
                characters[document, stream] = len(text.strip())
                of_rows.extend(map(ids.__getitem__, tokens(text)))
                ends.append(len(of_rows))
        terms, counts = np.empty(len(of_rows), np.int32), np.empty(len(of_rows), np.int32)
        end = count_terms(np.array(of_rows, np.int32), np.array(ends), terms, counts, sizes[3 * first : 3 * last])
        some_terms.append(terms[:end].copy())
        small = end == 0 or counts[:end].max() <= np.iinfo(np.uint16).max
        some_counts.append(counts[:end].astype(np.uint16 if small else np.int32))
    ids.default_factory = None  # unknown terms are not added any more
    return ids, _ends(sizes), np.concatenate(some_terms), np.concatenate(some_counts), characters


def _ends(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(sizes)))

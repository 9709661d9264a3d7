"""The 103 features in plain Python, from the words of every document: lists, loops, no index."""

from __future__ import annotations

import math
import re
import unicodedata


def words_of(text):
    return re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())


def five(values):
    if not values:
        return [0.0] * 5
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
    return [min(values), max(values), math.fsum(values), mean, variance]


def distinct(words):
    return list(dict.fromkeys(words))


def length_of(weights):
    return math.sqrt(math.fsum(weight**2 for weight in weights))


class Collection:
    """Documents as (title, text, url), cut into words; only the numbers of documents with a word are kept."""

    def __init__(self, documents):
        self.documents = documents
        self.streams = [[words_of(document[s]) for document in documents] for s in range(3)]
        self.mean_length = [sum(map(len, stream)) / max(len(stream), 1) for stream in self.streams]
        self.having = []
        for stream in self.streams:
            having = {}
            for words in stream:
                for word in set(words):
                    having[word] = having.get(word, 0) + 1
            self.having.append(having)

    def idf(self, word, s):
        n, total = self.having[s].get(word, 0), len(self.documents)
        return math.log(1 + (total - n + 0.5) / (n + 0.5)) if n else 0.0


def features(query, row, collection, k1=1.5, b=0.75):
    """All 103 of a query and document `row`, as fedrank defines them."""
    by_stream = [_of_stream(distinct(words_of(query)), row, s, collection, k1, b) for s in range(3)]
    return _feature_major(by_stream, collection.documents[row][2])


def _of_stream(asked, row, s, collection, k1, b):
    words = collection.streams[s][row]
    tf = [words.count(term) for term in asked]
    idf = [collection.idf(term, s) for term in asked]
    bm25 = 0.0
    for count, rarity in zip(tf, idf, strict=True):
        if count:
            bm25 += rarity * count / (count + k1 * (1 - b + b * len(words) / collection.mean_length[s]))
    dot = sum(rarity * count * rarity for count, rarity in zip(tf, idf, strict=True))
    lengths = length_of(idf) * length_of([words.count(word) * collection.idf(word, s) for word in distinct(words)])
    covered = sum(count > 0 for count in tf)
    return [
        bm25,
        *five(tf),
        *five(idf),
        *five([count * rarity for count, rarity in zip(tf, idf, strict=True)]),
        *five([len(word) for word in words]),
        *five([count / len(words) if words else 0.0 for count in tf]),
        dot / lengths if lengths else 0.0,
        covered,
        covered / len(asked) if asked else 0.0,
        len(collection.documents[row][s].strip()),
        len(words),
        len(asked),
        float(bool(asked) and covered == len(asked)),
        covered / len(set(words)) if words else 0.0,
    ]


def published(query, rows, documents):
    """All 103 of a query and each document of its list, as AOL4FOLTR published them: the list is the collection."""
    some = Collection([documents[row] for row in rows])
    table = []
    for place in range(len(rows)):
        by_stream = [_published_stream(words_of(query), place, s, some) for s in range(3)]
        table.append(_feature_major(by_stream, some.documents[place][2]))
    return table


def _published_stream(asked, place, s, some, k1=1.5, b=0.75, floor=0.25):
    words, having = some.streams[s][place], some.having[s]
    full = [other for other in some.streams[s] if other]
    if not full:
        return [0.0] * 34
    okapi = {word: math.log(len(full) - n + 0.5) - math.log(n + 0.5) for word, n in having.items()}
    mean_okapi = math.fsum(okapi.values()) / len(okapi)
    okapi = {word: value if value >= 0 else floor * mean_okapi for word, value in okapi.items()}
    smooth = {word: math.log((1 + len(some.documents)) / (1 + n)) + 1 for word, n in having.items()}
    mean_length = sum(map(len, full)) / len(full)
    tf = [words.count(term) for term in asked]
    idf = [smooth.get(term, 0.0) for term in asked]
    bm25 = 0.0
    for term, count in zip(asked, tf, strict=True):
        if count:
            bm25 += okapi[term] * count * (k1 + 1) / (count + k1 * (1 - b + b * len(words) / mean_length))
    in_query = [asked.count(term) * smooth.get(term, 0.0) for term in distinct(asked)]
    in_stream = [words.count(term) * smooth.get(term, 0.0) for term in distinct(asked)]
    lengths = length_of(in_query) * length_of([words.count(word) * smooth[word] for word in distinct(words)])
    share = sum(tf) / len(words) if words else 0.0
    matched = len(set(asked) & set(words))
    return [
        bm25,
        *five(tf),
        *five(idf),
        *five([count * rarity for count, rarity in zip(tf, idf, strict=True)]),
        *five([len(word) for word in words]),
        *[share] * 4,
        0.0,
        sum(q * d for q, d in zip(in_query, in_stream, strict=True)) / lengths if lengths else 0.0,
        sum(count > 0 for count in tf),
        sum(count > 0 for count in tf) / len(asked) if asked else 0.0,
        len(some.documents[place][s].strip()),
        len(words),
        len(asked),
        float(bool(asked) and matched == len(asked)),
        matched / len(asked) if asked else 0.0,
    ]


def _feature_major(by_stream, url):
    return [by_stream[s][feature] for feature in range(34) for s in range(3)] + [url.count("/")]

"""The features engine-1 in plain Python, from words: loops and double precision, no index.

Documents are dictionaries: title and body as lists of words, changed in seconds or None, popularity.
"""

from __future__ import annotations

import itertools
import math


def kept_length(length):
    """What is left of a length in one byte, by trying all bytes: four significant bits above 24."""
    possible = [*range(24), *(24 + n for n in range(8))]
    possible += [24 + (8 + bits) * 2**shift for shift in range(28) for bits in range(8)]
    return max(one for one in possible[:256] if one <= length)


def words_of(document, field):
    return document["title"] + document["body"] if field == "all" else document[field]


def idf(world, field, term):
    having = [words_of(document, field) for document in world if words_of(document, field)]
    n = sum(term in words for words in having)
    return math.log(1 + (len(having) - n + 0.5) / (n + 0.5))


def bm25(world, field, weight, frequency, document):
    having = [len(words_of(one, field)) for one in world if words_of(one, field)]
    if not frequency:
        return 0.0
    length = kept_length(len(words_of(document, field)))
    return weight * frequency / (frequency + 1.2 * (0.25 + 0.75 * length / (sum(having) / len(having))))


def match(world, field, query, document):
    words = words_of(document, field)
    return sum(bm25(world, field, idf(world, field, term), words.count(term), document) for term in query)


def phrase(world, field, query, document):
    words = words_of(document, field)
    times = sum(words[at : at + len(query)] == query for at in range(len(words)))
    return bm25(world, field, sum(idf(world, field, term) for term in query), times, document)


def share(field, query, document, percent):
    there = sum(term in words_of(document, field) for term in query)
    return float(bool(query) and there >= max(len(query) * percent // 100, 1))


def recency(document, time, half_life):
    if time is None or document["changed"] is None:
        return 0.0
    return 0.5 ** (abs(time - document["changed"]) / 86400 / half_life)


def features(world, query, document, time):
    scored = [match(world, field, query, document) for field in ("title", "body", "all")]
    scored += [phrase(world, field, query, document) if query else 0.0 for field in ("title", "body")]
    shares = [share(f, query, document, p) for p, f in itertools.product((100, 75), ("title", "all"))]
    ages = [recency(document, time, days) for days in (30, 365)]
    return [*scored, *shares, *ages, math.log(1 + document["popularity"])]

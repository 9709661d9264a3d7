"""The features of CS-F-LTR for one document and one query, term by term, as they stand in textbooks."""

from __future__ import annotations

from collections import Counter
from math import log


def slow_features(query: list[str], document: list[str], collection: list[list[str]]) -> list[float]:
    """Length, TF, IDF, TF-IDF, BM25, LMIR.ABS, LMIR.DIR and LMIR.JM of one field."""
    held, length, documents = Counter(document), len(document), len(collection)
    words = sum(len(other) for other in collection)
    values = [float(length), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    for term in query:
        having = sum(term in other for other in collection)
        idf = log(documents / max(having, 0.5))
        chance = max(having, 0.5) / words
        share = held[term] / length if length else 0.0
        values[1] += share
        values[2] += idf
        values[3] += share * idf
        values[4] += idf * held[term] * 2.2 / (held[term] + 1.2 * (0.25 + 0.75 * length / (words / documents)))
        values[5] += log(max(held[term] - 0.7, 0) / length + 0.7 * chance if length else chance)
        values[6] += log((held[term] + 2000 * chance) / (length + 2000))
        values[7] += log(0.9 * share + 0.1 * chance if length else chance)
    return values

"""The memory of clicks: documents that the user opened for the same or similar words move up.

This is a fixed rule next to the weights. A document's score rises by 6 c / (c + 1), where c sums the user's clicks on
it, each times the likeness of its query to the present one: the share of idf that the words of both queries have in
common (Jaccard), 0 if it is below LEAST: at one half, clicks for other needs displaced the right answer after 1,000
searches. Clicks for similar words alone do not put a document before the engine's first result if that one has nearly
all words of the query and the document no more of them: the words that are new in the query ask for something else.
Clicks are read from the store at every search, so a forgotten or bounced click has no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import QueryTerms, WordStatistics
from fedrank.search.store import Store, marks
from fedrank.types import Scores

LIFT = 6.0  # limit of the addition to a score, in standard deviations of the engine's score within a list
LEAST = 0.7  # likeness of queries below which a click says nothing
NEARLY_ALL = 0.95  # share of a query's idf that the engine's first result has
SAME = 1 - 1e-9  # likeness of queries with the same words
BEHIND = 1e-4  # difference of scores between the engine's first result and a document that stays behind it


@dataclass(frozen=True)
class EarlierClicks:
    """Clicks on one document in earlier searches for the same words."""

    document: int
    query: str  # as it was last written
    time: float  # of the last click
    clicks: int
    likeness: float  # of its words to those of the present query, LEAST .. 1


@dataclass(frozen=True, eq=False)
class Lifts:
    """What earlier clicks add to the scores of documents in the engine's order."""

    values: NDArray[np.float32]
    same: NDArray[np.bool_]  # whether a document was opened for exactly these words

    def or_more(self, other: Lifts) -> Lifts:
        """The larger of both for each document."""
        return Lifts(np.maximum(self.values, other.values), self.same | other.same)

    def limited(self, scores: Scores, covered: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """What is added to these scores; `covered`: the share of the query's idf that each document has."""
        if not len(scores) or covered[0] < NEARLY_ALL or self.values[0] > 0:
            return self.values
        behind = ~self.same & (covered <= covered[0])
        return np.where(behind, np.minimum(self.values, np.maximum(scores[0] - scores - BEHIND, 0)), self.values)


class ClickMemory:
    """What the clicks in a store say about the documents of a new search."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def lifts(self, terms: QueryTerms, documents: Sequence[int]) -> Lifts:
        """What earlier clicks add to these documents; 0 without clicks."""
        counts, same = dict.fromkeys(documents, 0.0), dict.fromkeys(documents, False)
        for one in self.reasons(terms, documents):
            counts[one.document] += one.clicks * one.likeness
            same[one.document] |= one.likeness >= SAME
        c = np.fromiter(counts.values(), np.float64, len(counts))
        return Lifts((LIFT * c / (c + 1)).astype(np.float32), np.fromiter(same.values(), np.bool_, len(same)))

    def reasons(
        self, terms: QueryTerms, documents: Sequence[int], before: int | None = None
    ) -> tuple[EarlierClicks, ...]:
        """The earlier clicks that lift these documents, the most similar queries first; `before`: an impression."""
        rows: list[Any] = self.store.rows(
            "SELECT document, terms, query, max(clicks.time), count(*) FROM clicks JOIN impressions ON id = impression "
            f"WHERE document IN ({marks(documents)}) AND NOT bounced AND impression > ? AND (? IS NULL OR impression < "
            "?) GROUP BY document, terms",
            *documents, self.store.setting("remember_after", 0), before, before,
        )  # fmt: skip
        like = likeness(terms, [row[1] for row in rows], self.store.statistics())
        found = [
            EarlierClicks(document, query, time, clicks, float(similar))
            for (document, _, query, time, clicks), similar in zip(rows, like, strict=True)
            if similar >= LEAST
        ]
        return tuple(sorted(found, key=lambda one: (-one.likeness, -one.clicks, one.document)))


def likeness(terms: QueryTerms, others: Sequence[bytes], statistics: WordStatistics) -> NDArray[np.float64]:
    """[others]: idf of the words that two queries share / idf of the words of either; `others` are keys of queries."""
    stems = np.frombuffer(b"".join(others), "<i4")
    query = np.repeat(np.arange(len(others)), [len(key) // 4 for key in others])
    idf = statistics.idf(stems)
    whole = np.bincount(query, idf, len(others))
    shared = np.bincount(query, idf * np.isin(stems, terms.stems), len(others))
    either = whole + statistics.idf(terms.stems).sum() - shared
    found: NDArray[np.float64] = np.divide(shared, either, out=np.zeros(len(others)), where=either > 0)
    return found

"""The memory of clicks: documents that the user opened for the same or similar words move up.

This is a fixed rule next to the weights. A document's score rises by 6 c / (c + u + 1), where c counts the user's
clicks on it, and u how often it was passed over, that is, shown above an opened result and not opened. Each counts with
the likeness of its query to the present one: the share of idf that the words of both queries have in common (Jaccard),
0 if it is below LEAST: at one half, clicks for other needs displaced the right answer after 1,000 searches. Clicks for
similar words alone do not put a document before the engine's first result if that one has nearly all words of the query
and the document no more of them: the words that are new in the query ask for something else.
Clicks are read from the store at every search, so a forgotten or bounced click has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import QueryTerms, WordStatistics
from fedrank.search.store import Store, in_parts, marks
from fedrank.types import Scores

LIFT = 6.0  # limit of the addition to a score, in standard deviations of the engine's score within a list
LISTS = 200  # latest lists for the same or similar words in which passed-over documents are counted
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
    passed_over: int  # times it was shown above an opened result and not opened
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
        found = {document: np.zeros(3) for document in documents}  # clicks, passed over, clicks for these words
        for one in self.reasons(terms, documents):
            same = one.clicks * (one.likeness >= SAME)
            found[one.document] += (one.clicks * one.likeness, one.passed_over * one.likeness, same)
        clicks, passed_over, same_words = np.array([*found.values()]).reshape(-1, 3).T
        return Lifts((LIFT * clicks / (clicks + passed_over + 1)).astype(np.float32), same_words > 0)

    def reasons(
        self, terms: QueryTerms, documents: Sequence[int], before: int | None = None
    ) -> tuple[EarlierClicks, ...]:
        """The earlier clicks that lift these documents, the most similar queries first; `before`: an impression."""
        counted = "NOT bounced AND impression > ? AND (? IS NULL OR impression < ?)"
        period = (self.store.setting("remember_after", 0), before, before)
        rows: list[Any] = self.store.rows(
            "SELECT document, terms, query, max(clicks.time), count(*) FROM clicks JOIN impressions ON id = impression "
            f"WHERE document IN ({marks(documents)}) AND {counted} GROUP BY document, terms",
            *documents, *period,
        )  # fmt: skip
        like = likeness(terms, [row[1] for row in rows], self.store.statistics())
        similar = [(*row, float(one)) for row, one in zip(rows, like, strict=True) if one >= LEAST]
        keys = sorted({row[1] for row in similar})
        passed_over: Counter[tuple[int, bytes]] = Counter()
        for some in in_parts(keys):
            passed_over += self._passed_over(some, counted, period)
        found = [
            EarlierClicks(document, query, time, clicks, passed_over[document, key], of_query)
            for document, key, query, time, clicks, of_query in similar
        ]
        return tuple(sorted(found, key=lambda one: (-one.likeness, -one.clicks, one.document)))

    def _passed_over(self, keys: Sequence[bytes], counted: str, period: tuple[Any, ...]) -> Counter[tuple[int, bytes]]:
        """How often documents were shown above an opened result of these queries and not opened."""
        rows: list[Any] = self.store.rows(
            "SELECT terms, candidates, shown, group_concat(place) FROM impressions JOIN clicks ON id = impression "
            f"WHERE terms IN ({marks(keys)}) AND sort = 'rank' AND {counted} GROUP BY id ORDER BY id DESC LIMIT ?",
            *keys, *period, LISTS,
        )  # fmt: skip
        found: Counter[tuple[int, bytes]] = Counter()
        for key, candidates, shown, places in rows:
            opened = [int(place) for place in places.split(",")]
            above = np.delete(np.frombuffer(shown, "u1")[: max(opened) + 1], opened)
            found.update((document, key) for document in np.frombuffer(candidates, "<i8")[above].tolist())
        return found


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

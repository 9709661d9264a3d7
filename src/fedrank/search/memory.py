"""The memory of clicks: documents that the user opened for the same or similar words move up.

This is a fixed rule next to the weights. A document's score rises by 6 c / (c + u + 1), where c counts the user's
clicks on it, and u how often it was passed over in searches for words for which it was opened, too: it was shown above
an opened result and not opened, or left at once. Each counts with the likeness of its query to the present one: the
share of idf that the words of both queries have in common (Jaccard), 0 if it is below LEAST: at one half, clicks for
other needs displaced the right answer after 1,000 searches.

Clicks for similar words alone do not put a document before the engine's first result if that one has nearly all words
of the query and the document no more of them: the words that are new in the query ask for something else. If the first
result was opened, too, clicks decide.
Clicks are read from the store at every search, so a forgotten or bounced click has no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.live_features import QueryTerms, WordStatistics
from fedrank.search.store import Store, marks
from fedrank.types import Scores

LIFT = 6.0  # limit of the addition to a score, in standard deviations of the engine's score within a list
LISTS = 200  # latest lists for the same words in which passed-over documents are counted
LEAST = 0.7  # likeness of queries below which a click says nothing
NEARLY_ALL = 0.95  # share of a query's idf that the engine's first result has
SAME = 1 - 1e-9  # likeness of queries with the same words, apart from words that no document has
BEHIND = 1e-4  # difference of scores between the engine's first result and documents that stay behind it
UNMOVED = 1e-30  # the addition to a score that changes nothing, and marks a document as opened before


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
    same: NDArray[np.bool_]  # whether a document was opened for the same words

    def limited(self, scores: Scores, covered: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """What is added to these scores; `covered`: the share of the query's idf that each document has."""
        if not len(scores) or covered[0] < NEARLY_ALL or self.values[0] > 0:
            return self.values
        lifted = scores + self.values
        passing = np.flatnonzero((self.values > 0) & ~self.same & (covered <= covered[0]) & (lifted >= scores[0]))
        passing = passing[np.argsort(-lifted[passing], kind="stable")]
        behind = scores[0] - BEHIND * np.arange(1, len(passing) + 1)
        values = self.values.copy()
        values[passing] = np.maximum(behind - scores[passing], UNMOVED)
        return values


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
        passed_over: Counter[tuple[int, bytes]] = Counter()
        for key in {row[1] for row in similar}:
            passed_over.update((document, key) for document in self._passed_over(key, counted, period))
        found = [
            EarlierClicks(document, query, time, clicks, passed_over[document, key], of_query)
            for document, key, query, time, clicks, of_query in similar
        ]
        return tuple(sorted(found, key=lambda one: (-one.likeness, -one.clicks, one.document)))

    def _passed_over(self, key: bytes, counted: str, period: tuple[Any, ...]) -> Iterator[int]:
        """Yield a document each time that it was shown above an opened result of this query and not opened."""
        rows: list[Any] = self.store.rows(
            "SELECT candidates, shown, group_concat(place) FROM impressions JOIN clicks ON id = impression "
            f"WHERE terms = ? AND sort = 'rank' AND {counted} GROUP BY id ORDER BY id DESC LIMIT ?",
            key, *period, LISTS,
        )  # fmt: skip
        for candidates, shown, places in rows:
            ids = np.frombuffer(candidates, "<i8")
            opened = {int(place) for place in places.split(",")}
            above = enumerate(np.frombuffer(shown, "u1")[: max(opened)].tolist())
            yield from (int(ids[candidate]) for place, candidate in above if place not in opened)


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

"""Result lists: what a user may have been shown besides what was clicked (AOL4FOLTR, CIKM 2025).

Logs keep the clicked document only. Documents that anybody clicked for the same query are natural candidates; the list
is filled with neighbours of the clicked document in a BM25 ranking.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.documents import Documents
from fedrank.extras import missing_extra
from fedrank.seeds import rng_for

WINDOWS = ("ranked", "shuffled")
SHORT = ("drop", "fill")
NOT_FOUND = "clicked document not among the best of BM25"
TOO_SHORT = "too few documents match the query"

K1, B = 0.9, 0.4  # of BM25: the defaults of pyserini, which made the published lists

Scores = NDArray[np.float32]  # [documents]
Rows = NDArray[np.int64]  # documents


@dataclass(frozen=True)
class ListRules:
    """How result lists are made up around a click."""

    length: int = 20  # documents of a list
    depth: int = 1000  # the clicked document must be among as many best of BM25
    window: str = "ranked"  # "shuffled" destroys the order of BM25 first, as the published code did by accident
    short: str = "drop"  # where too few documents match: drop the entry, or fill with documents drawn at random

    def __post_init__(self) -> None:
        if not 2 <= self.length <= 127:
            raise ValueError(f"length = {self.length}: a list needs 2 .. 127 documents; the paper has 20")
        if self.depth < self.length:
            raise ValueError(f"depth = {self.depth} cannot fill a list of {self.length}; the paper has 1000")
        for name, value, known in (("window", self.window, WINDOWS), ("short", self.short, SHORT)):
            if value not in known:
                raise ValueError(f"{name} = {value!r}; choose {' or '.join(map(repr, known))}")

    def list_for(
        self, target: int, natural: Rows, scores: Scores, rng: np.random.Generator, ranking: Rows | None = None
    ) -> Rows | str:
        """The documents around one click, best of BM25 first; or why there is no list.

        `natural` holds the documents clicked for this query, without repeats, with the target; `ranking` saves time
        where it is known from `ranked`. Documents with equal scores keep the order of the collection. A shuffled window
        gives a list in no order.
        """
        others = natural[natural != target]
        free = self.length - 1 - len(others)
        if free < 0:
            others, free = rng.choice(others, self.length - 1, replace=False), 0
        window = np.array([target])
        if free > 0:
            ranking = ranked(scores, self.depth) if ranking is None else ranking
            ranking = ranking[~np.isin(ranking, others)]
            if target not in ranking:
                return NOT_FOUND
            if self.window == "shuffled":
                ranking = rng.permutation(ranking)
            window = _around(ranking, target, free + 1, rng)
            missing = free + 1 - len(window)
            if missing and self.short == "fill":
                unmatched = np.setdiff1d(np.flatnonzero(scores <= 0), others)
                window = np.append(window, rng.choice(unmatched, min(missing, len(unmatched)), replace=False))
        shown = np.concatenate([others, window])
        if len(shown) < self.length:
            return TOO_SHORT
        if self.window == "shuffled":
            return rng.permutation(shown)
        shown.sort()
        return shown[np.argsort(-scores[shown], kind="stable")]


def ranked(scores: Scores, depth: int) -> Rows:
    """The documents that match at all, best first, at most `depth`; equal scores in the order of the collection."""
    matching = np.flatnonzero(scores > 0)
    if len(matching) > depth:
        worst = np.partition(scores[matching], -depth)[-depth]
        matching = matching[scores[matching] >= worst]
    return matching[np.argsort(-scores[matching], kind="stable")][:depth]


def _around(ranking: Rows, target: int, width: int, rng: np.random.Generator) -> Rows:
    """So many neighbours with the target at a random place among them, moved to stay inside the ranking."""
    place = int(np.flatnonzero(ranking == target)[0])
    start = place - int(rng.integers(width))
    start = max(0, min(start, len(ranking) - width))
    return ranking[start : start + width]


def bm25(documents: Documents, tokens: Callable[[str], list[str]]) -> Callable[[str], Scores]:
    """A function from a query to the BM25 scores of all documents, by bm25s.

    Title, text and url are joined to one text; Lucene's formula with k1 = 0.9 and b = 0.4.
    """
    try:
        import bm25s  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise missing_extra("result lists need the package bm25s", "logs") from None
    vocabulary: dict[str, int] = {}
    texts: list[array[int]] = []  # four bytes a word
    for parts in zip(documents.title, documents.text, documents.url, strict=True):
        words = [vocabulary.setdefault(word, len(vocabulary)) for word in tokens(" ".join(parts))]
        texts.append(array("i", words))
    if not vocabulary:
        raise ValueError("no document holds a single word, so that nothing can be found; check the names of its fields")
    engine: Any = bm25s.BM25(k1=K1, b=B, method="lucene")
    engine.index((texts, vocabulary), show_progress=False)
    vocabulary.pop("", None)  # which some versions add, without a row of scores
    nothing = np.zeros(len(documents), dtype=np.float32)

    def score(query: str) -> Scores:
        words = [vocabulary[word] for word in tokens(query) if word in vocabulary]
        return np.asarray(engine.get_scores_from_ids(words), dtype=np.float32) if words else nothing

    return score


def lists_for_query(
    rules: ListRules,
    entries: Sequence[int] | NDArray[np.integer],
    targets: NDArray[np.integer],
    scores: Scores,
    seed: int,
) -> list[Rows | str]:
    """The lists of all entries with one query; `entries` are their numbers, by which chance is keyed."""
    natural = np.unique(targets).astype(np.int64)
    ranking = ranked(scores, rules.depth)
    return [
        rules.list_for(int(target), natural, scores, rng_for(seed, "lists", int(entry)), ranking)
        for entry, target in zip(entries, targets, strict=True)
    ]

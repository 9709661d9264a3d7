"""Synthetic result lists around clicks: which documents a user may have been shown (AOL4FOLTR, CIKM 2025).

Such logs record only the clicked document. Documents that any user clicked for the same query are candidates; the list
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

K1, B = 0.9, 0.4  # BM25 defaults of pyserini, which produced the published lists

Scores = NDArray[np.float32]  # [documents]
Rows = NDArray[np.int64]  # documents


@dataclass(frozen=True)
class ListRules:
    """Settings for synthetic result lists around a click."""

    length: int = 20  # documents per list
    depth: int = 1000  # the clicked document must be among this many best of BM25
    window: str = "ranked"  # "shuffled" shuffles the BM25 ranking first, a bug of the published code
    short: str = "drop"  # if too few documents match: "drop" the entry or "fill" with random documents

    def __post_init__(self) -> None:
        if not 2 <= self.length <= 127:
            raise ValueError(f"length must be from 2 to 127 (got {self.length}; the paper uses 20)")
        if self.depth < self.length:
            raise ValueError(
                f"depth must be at least the list length {self.length} (got {self.depth}; the paper uses 1000)"
            )
        for name, value, known in (("window", self.window, WINDOWS), ("short", self.short, SHORT)):
            if value not in known:
                raise ValueError(f"{name} must be {' or '.join(map(repr, known))} (got {value!r})")

    def list_for(
        self,
        target: int,
        clicked_documents: Rows,
        scores: Scores,
        rng: np.random.Generator,
        ranking: Rows | None = None,
    ) -> Rows | str:
        """Return the documents around one click, ordered by BM25, or why there is none.

        `clicked_documents` are the distinct documents clicked for this query, including the target; `ranking` is the
        result of `ranked` if already known. Documents with equal scores keep the order of the collection. A shuffled
        window gives an unordered list.
        """
        others = clicked_documents[clicked_documents != target]
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
    """Return at most `depth` matching documents, best first; ties keep the order of the collection."""
    matching = np.flatnonzero(scores > 0)
    if len(matching) > depth:
        worst = np.partition(scores[matching], -depth)[-depth]
        matching = matching[scores[matching] >= worst]
    return matching[np.argsort(-scores[matching], kind="stable")][:depth]


def _around(ranking: Rows, target: int, width: int, rng: np.random.Generator) -> Rows:
    """A window of the ranking with the target at a random position."""
    place = int(np.flatnonzero(ranking == target)[0])
    start = place - int(rng.integers(width))
    start = max(0, min(start, len(ranking) - width))
    return ranking[start : start + width]


def bm25(documents: Documents, tokens: Callable[[str], list[str]]) -> Callable[[str], Scores]:
    """Return a function from a query to the BM25 scores of all documents, computed by bm25s.

    Title, text and url are concatenated; Lucene's formula with k1 = 0.9 and b = 0.4.
    """
    try:
        import bm25s  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError:
        raise missing_extra("building result lists needs the package bm25s", "logs") from None
    vocabulary: dict[str, int] = {}
    texts: list[array[int]] = []  # four bytes per word
    for parts in zip(documents.title, documents.text, documents.url, strict=True):
        words = [vocabulary.setdefault(word, len(vocabulary)) for word in tokens(" ".join(parts))]
        texts.append(array("i", words))
    if not vocabulary:
        raise ValueError("no document contains a word; check the names of the document fields")
    engine: Any = bm25s.BM25(k1=K1, b=B, method="lucene")
    engine.index((texts, vocabulary), show_progress=False)
    vocabulary.pop("", None)  # some versions add it without a row of scores
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
    """Return the lists of all entries with one query; randomness is keyed by the numbers in `entries`."""
    clicked_documents = np.unique(targets).astype(np.int64)
    ranking = ranked(scores, rules.depth)
    return [
        rules.list_for(int(target), clicked_documents, scores, rng_for(seed, "lists", int(entry)), ranking)
        for entry, target in zip(entries, targets, strict=True)
    ]

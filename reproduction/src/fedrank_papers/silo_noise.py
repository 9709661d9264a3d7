"""Whether answers of a silo reveal that a document contains a word.

A querier knows all of a document but one word, and wants to infer it from the owner's answers; differential privacy
bounds its success rate, and the noise as published does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.accounting import GaussianEvent, PureEvent, delta_of
from fedrank.privacy.noise import SecureSource, rounded_gaussian
from fedrank.seeds import rng_for
from fedrank.silo.hashing import Cells
from fedrank.silo.remote_counts import noised_counts, published_answers
from fedrank.silo.sketch import Sketcher, Sketches
from fedrank.types import Source

Rates = NDArray[np.float64]


@dataclass(frozen=True)
class AttackResult:
    """The success rate of one attacker."""

    setting: str
    questions: int  # queries that it saw or sent
    right: float  # success rate; ties are broken at random
    bound: float  # the largest success rate that the guarantee allows; 1 where there is none
    cases: int


@dataclass(frozen=True)
class Neighbours:
    """Pairs of documents that differ in one word, and the cells that a querier requests to distinguish them."""

    sketcher: Sketcher  # without noise
    first: Sketches  # [pairs, z, w]
    second: Sketches  # the same documents with one occurrence of a word replaced by another word
    truth: NDArray[np.bool_]  # [pairs]: whether the owner has the second
    cells: Cells  # [pairs, z]: of the word that was replaced
    signs: NDArray[np.int8]

    @property
    def owned(self) -> Sketches:
        return np.where(self.truth[:, None, None], self.second, self.first)

    def queried(self, sketches: Sketches) -> NDArray[np.int32]:
        """[pairs, z]: the cells of the word, in every row."""
        return np.take_along_axis(sketches, self.cells[:, :, None].astype(np.int64), axis=2)[:, :, 0]


def make_neighbours(pairs: int = 1000, length: int = 200, seed: int = 1) -> Neighbours:
    """Random documents with words by Zipf's law; in each, one random occurrence is replaced by another word."""
    rng = rng_for(seed, "neighbours")
    words = [f"word{i}" for i in range(5000)]
    chances = 1 / np.arange(1, len(words) + 1)
    chances /= chances.sum()
    sketcher = Sketcher()
    hashing = sketcher.hashing(rng.bytes(32))
    documents = rng.choice(len(words), (pairs, length), p=chances)
    changed = documents.copy()
    index = rng.integers(length, size=pairs)
    gone = documents[np.arange(pairs), index]
    changed[np.arange(pairs), index] = (gone + rng.integers(1, len(words), pairs)) % len(words)
    first, second = (
        sketcher.sketch(sketcher.term_counts(" ".join(words[i] for i in row) for row in rows), hashing)
        for rows in (documents, changed)
    )
    cells, signs = sketcher.locate([words[i] for i in gone], hashing)
    return Neighbours(sketcher, first, second, rng.random(pairs) < 0.5, cells, signs)


def distinguish(
    neighbours: Neighbours,
    noise: str,
    questions: Sequence[int],
    epsilon: float = 0.5,
    sigma: float = 1.0,
    source: Source | None = None,
) -> list[AttackResult]:
    """How often the best test identifies the right one of two neighbours after some answers, and the bound on it.

    `epsilon` is that of one answered term ("lookup", "paper"); `sigma` is σ1 of noised sketches, which are fully
    visible, so more queries add no information.
    """
    source = source or SecureSource()
    results = []
    seen = None if noise == "lookup" else _ONE_LOOK[noise](neighbours, sigma if noise == "sketch" else epsilon, source)
    for many in questions:
        evidence = _from_lookups(neighbours, many, epsilon, source) if seen is None else seen
        right = np.where(evidence == 0, 0.5, (evidence > 0) == neighbours.truth)
        bound = 1.0
        if noise == "lookup":
            bound = (1 + delta_of(PureEvent(epsilon), many, 0.0)) / 2
        elif noise == "sketch":
            bound = (1 + delta_of(GaussianEvent(sigma), 1, 0.0)) / 2
        results.append(AttackResult(noise, many, float(right.mean()), bound, len(right)))
    return results


def certain(neighbours: Neighbours, epsilon: float = 0.5, source: Source | None = None) -> int:
    """Number of pairs for which a single answer with the published noise is possible for only one document."""
    answers = published_answers(neighbours.queried(neighbours.owned), epsilon, source or SecureSource())
    fits = [_same_differences(answers, neighbours.queried(each)) for each in (neighbours.first, neighbours.second)]
    return int(np.count_nonzero(fits[0] != fits[1]))


def _same_differences(answers: NDArray[np.float64], values: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[pairs]: whether rows differ exactly as they would in this document; the shared noise cancels."""
    same: NDArray[np.bool_] = np.all(np.diff(answers, axis=1) == np.diff(values.astype(np.float64), axis=1), axis=1)
    return same


def _from_published(pairs: Neighbours, epsilon: float, source: Source) -> Rates:
    answers = published_answers(pairs.queried(pairs.owned), epsilon, source)
    fits = [_same_differences(answers, pairs.queried(each)) for each in (pairs.first, pairs.second)]
    return fits[1].astype(np.float64) - fits[0]


def _from_lookups(pairs: Neighbours, questions: int, epsilon: float, source: Source) -> Rates:
    counts = [pairs.sketcher.estimate(pairs.queried(each), pairs.signs) for each in (pairs.first, pairs.second)]
    true = np.where(pairs.truth, counts[1], counts[0])
    evidence = np.zeros(len(true))
    for _ in range(questions):
        answers = noised_counts(true, epsilon, pairs.sketcher.exact_lengths, source)
        evidence += np.abs(answers - counts[0]) - np.abs(answers - counts[1])
    return evidence


def _from_sketches(pairs: Neighbours, sigma: float, source: Source) -> Rates:
    deviation = replace(pairs.sketcher, noise=sigma).deviation
    away = (pairs.second - pairs.first).astype(np.float64)
    seen = pairs.owned + rounded_gaussian(deviation).draw(away.shape, source)
    evidence: Rates = np.einsum("pzw,pzw->p", seen - (pairs.first + pairs.second) / 2, away)
    return evidence


_ONE_LOOK = {"paper": _from_published, "sketch": _from_sketches}  # further queries add no information to these

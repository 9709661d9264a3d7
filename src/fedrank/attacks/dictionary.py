"""What messages between silos give away: the words of a question, and whether a document holds a word.

Two attackers. An owner holds the key and a dictionary, and wants to know which word it was asked about. A querier knows
all of a document but one word, and wants to know that one from the owner's answers; differential privacy bounds how
often it can be right, and the noise as published does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedrank.privacy.accounting import GaussianEvent, PureEvent, delta_of
from fedrank.privacy.noise import SecureSource
from fedrank.seeds import rng_for
from fedrank.silo.hashing import Cells, Hashing
from fedrank.silo.remote_counts import noised_counts, published_answers
from fedrank.silo.sketch import Sketcher, Sketches
from fedrank.types import Source

Rates = NDArray[np.float64]


def choose_decoys(terms: Sequence[str], many: int, dictionary: Sequence[str], secret: bytes) -> list[str]:
    """`many` decoys for each term, words of a dictionary that look like those one might ask for.

    They depend on the term and the querier's secret only: fresh ones would be gone the next time, and the term not.
    """
    chosen = []
    for term in terms:
        stream = hashlib.shake_128(b"fedrank decoys" + secret + term.encode("utf-8", "surrogatepass"))
        words = np.frombuffer(stream.digest(64 * (many + 16)), dtype="<u8")
        others = [other for word in words if (other := dictionary[int(word) % len(dictionary)]) != term]
        found = list(dict.fromkeys(others))[:many]
        if len(found) < many:
            raise ValueError(
                f"{len(found)} of {many} decoys for a term: the dictionary has too few words; use a larger one"
            )
        chosen += found
    return chosen


@dataclass(frozen=True)
class AttackResult:
    """How often one attacker was right."""

    setting: str
    questions: int  # that it could see or ask
    right: float  # share of cases; ties are broken by chance
    bound: float  # the largest share that is possible; 1 where nothing is promised
    cases: int


def made_up_words(many: int) -> list[str]:
    """A dictionary; the first word is the most frequent one (Zipf's law), as far as anything depends on that."""
    return [f"word{i}" for i in range(many)]


def identify_by_cells(seen: Cells, dictionary: Cells) -> Rates:
    """Chance [words] that each is the one asked about, to an owner who sees cells [z], some of them random.

    The words that fit most rows are equally likely: a random cell fits once in w times.
    """
    fits = np.count_nonzero(dictionary == seen, axis=1)
    best = fits == fits.max()
    chances: Rates = best / np.count_nonzero(best)
    return chances


def hidden_hashes(
    real_rows: Sequence[int], signed: bool = False, words: int = 50_000, cases: int = 300, seed: int = 1
) -> list[AttackResult]:
    """How often an owner names the word when only so many rows of a question are real, as the paper has it.

    Where questions hold signs, too (`signed`), a row says twice as much.
    """
    rng = rng_for(seed, "dictionary attack")
    hashing = Hashing(rng.bytes(32))
    dictionary, signs = hashing.locate(made_up_words(words))
    values = hashing.width
    if signed:
        dictionary, values = 2 * dictionary + (signs > 0), 2 * values
    results = []
    for real in real_rows:
        right = 0.0
        for queried in rng.integers(words, size=cases):
            seen = rng.integers(values, size=hashing.depth).astype(np.int32)
            rows = rng.choice(hashing.depth, real, replace=False)
            seen[rows] = dictionary[queried, rows]
            right += float(identify_by_cells(seen, dictionary)[queried])
        results.append(AttackResult(f"{real} of {hashing.depth} rows are real", 1, right / cases, 1.0, cases))
    return results


def hidden_terms(
    decoys: Sequence[int], questions: int = 1, words: int = 50_000, cases: int = 2000, seed: int = 1
) -> list[AttackResult]:
    """How often an owner picks the real word among whole decoys, where it sees the same word asked about so often.

    It reads all words (see `hidden_hashes`, all rows real) and takes the most frequent of those that came every time.
    Real words are drawn by Zipf's law. Three kinds of decoys: "alike" are drawn by the same law and kept for the word
    (`choose_decoys`); "rare" are kept, too, but drawn from the whole dictionary, so that the real word stands out;
    "fresh" are drawn by the law, but anew for each question, so that the real word alone comes again.
    """
    dictionary = made_up_words(words)
    chances = 1 / np.arange(1, words + 1)
    chances /= chances.sum()
    rng = rng_for(seed, "decoy terms")
    alike = [dictionary[i] for i in rng.choice(words, 20 * words, p=chances)]  # frequent words stand here more often
    rank = {word: index for index, word in enumerate(dictionary)}
    results = []
    for many in decoys:
        for kind in ("alike", "rare", "fresh"):
            right = 0.0
            for queried in rng.choice(words, cases, p=chances):
                word = dictionary[queried]
                source = dictionary if kind == "rare" else alike
                secret = rng.bytes(32)
                seen = {word, *choose_decoys([word], many, source, secret)}
                for _ in range(1, questions):
                    secret = rng.bytes(32) if kind == "fresh" else secret
                    seen &= {word, *choose_decoys([word], many, source, secret)}
                right += min(seen, key=rank.__getitem__) == word
            results.append(AttackResult(f"{many} decoys, {kind}", questions, right / cases, 1.0, cases))
    return results


@dataclass(frozen=True)
class Neighbours:
    """Pairs of documents that differ in one word of many, and what a querier asks to tell them apart."""

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
    """Random documents of words by Zipf's law; in each a random one is replaced by another."""
    rng = rng_for(seed, "neighbours")
    words = made_up_words(5000)
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
    """How often the best test names the right one of two neighbours after so many answers, and how often it could.

    `epsilon` is that of one answered term ("lookup", "paper"); `sigma` is σ1 of noised sketches, of which all cells are
    seen, so that more questions tell nothing more.
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
    """In how many pairs a single answer under the published noise is possible for one of the two documents only."""
    answers = published_answers(neighbours.queried(neighbours.owned), epsilon, source or SecureSource())
    fits = [_same_differences(answers, neighbours.queried(each)) for each in (neighbours.first, neighbours.second)]
    return int(np.count_nonzero(fits[0] != fits[1]))


def _same_differences(answers: NDArray[np.float64], values: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[pairs]: whether rows differ by just what they would differ by in this document; the shared draw cancels."""
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
    from fedrank.privacy.noise import rounded_gaussian

    deviation = replace(pairs.sketcher, noise=sigma).deviation
    away = (pairs.second - pairs.first).astype(np.float64)
    seen = pairs.owned + rounded_gaussian(deviation).draw(away.shape, source)
    evidence: Rates = np.einsum("pzw,pzw->p", seen - (pairs.first + pairs.second) / 2, away)
    return evidence


_ONE_LOOK = {"paper": _from_published, "sketch": _from_sketches}  # these tell all at the first question

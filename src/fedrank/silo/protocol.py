"""Questions of one silo about the documents of another: `ask`, `answer` and `read_answer`, in sealed letters.

A question names, for each term, a cell and a sign in every row of a sketch, and a cell of the sketch that counts
documents. An answer names the documents that contain the term most often, by pseudonyms that only this querier gets,
with their counts and lengths, and the number of documents that contain it.

The noise is in the owner's file. It is drawn once, when documents are sketched, so answers cost no further privacy
budget: they reveal at most what the noised sketch does. An owner also has the key, and can read every term of a
question.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.text import Tokeniser
from fedrank.silo.features import FIELDS, Real
from fedrank.silo.files import QuerierCopy, SketchFile
from fedrank.silo.letters import LONGEST, Party, seal, unseal
from fedrank.silo.partners import Counts, Found, TermCells, locate
from fedrank.silo.sketch import KINDS, Sketcher
from fedrank.wire import Refused

IN_SKETCH = 0  # where the noise of an answer is: in the sketch
MAX_TERMS = 4000  # of a question
QUESTION = struct.Struct("<16s16sBIHIH32s")  # id, fingerprint of the key, kind, width, rows, k, terms, tokeniser
ANSWER = struct.Struct("<16sBBHBIIB")  # id, status, noise, terms, fields, documents, of these named, with lengths
FIELD = struct.Struct("<dHH")  # words, rows of frequencies, numbers for each count
ANSWERED, REFUSED = 0, 1


class Declined(ValueError):
    """An owner refused a question."""


@dataclass(frozen=True)
class SentQuestion:
    """A question, and what its sender needs to read the answer."""

    letter: bytes = field(repr=False)
    id: bytes
    owner: str
    sketcher: Sketcher
    fingerprint: bytes  # of key, width and depth
    terms: Mapping[str, int]  # with their positions in the question
    signs: NDArray[np.int8]  # [all terms, z]


@dataclass(frozen=True, eq=False)
class Answered:
    """A partner for training that answered by letter, for the terms of the questions."""

    owner: str
    question: SentQuestion
    kind: str
    documents: int  # in total
    words: Mapping[str, float]
    # By field and term: documents best first; frequencies [rows].
    results: Mapping[str, Mapping[str, tuple[Found, Real]]]
    names: NDArray[np.uint64]  # pseudonyms, ascending
    lengths: Mapping[str, NDArray[np.int64]]  # by field, [names]: words

    def found(self, term: str, name: str = "body") -> Found:
        """Documents with the highest counts of a term, best first, and these counts."""
        return self._result(name, term)[0]

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        found = dict.fromkeys(FIELDS, np.zeros((len(terms), 1)))
        if terms:
            found |= {name: np.array([self._result(name, term)[1] for term in terms]) for name in self.results}
        return found

    def counts(self, terms: Sequence[str]) -> Counts:
        found = {name: [self.found(term, name) for term in terms] for name in self.results}
        return Counts.of(found, len(terms), self._lengths_of)

    def _result(self, name: str, term: str) -> tuple[Found, Real]:
        if term not in self.results[name]:
            raise ValueError(f"{self.owner} was not asked about {term!r}; ask again, with all queries")
        return self.results[name][term]

    def _lengths_of(self, name: str, documents: NDArray[Any]) -> NDArray[np.int64]:
        if name not in self.lengths:
            return np.zeros(len(documents), np.int64)
        return self.lengths[name][np.searchsorted(self.names, documents.astype(np.uint64))]


@dataclass(frozen=True, eq=False)
class Owner:
    """A silo that answers questions about its documents."""

    party: Party
    file: SketchFile
    _copies: dict[str, QuerierCopy] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.file.noised:
            raise ValueError(f"{self.file.path} has no noise: answers would reveal the documents; sketch with noise")

    def copy(self, querier: str) -> QuerierCopy:
        """What the querier may see: ties are broken in the order of pseudonyms, which reveals nothing of our order."""
        if querier not in self._copies:
            self._copies[querier] = self.file.copy_for(querier)
        return self._copies[querier]


def ask(terms: Sequence[str], owner: str, me: Party, sketcher: Sketcher, key: bytes, k: int = 0) -> SentQuestion:
    """A question to one owner, for the best `k` documents of each term; 0: as many as the owner stores."""
    asked = list(dict.fromkeys(terms))
    if not asked:
        raise ValueError("the query has no words; leave it out")
    if len(asked) > MAX_TERMS:
        raise ValueError(f"a question must have at most {MAX_TERMS} terms (got {len(asked)}); ask several questions")
    SystemRandom().shuffle(asked)
    hashing = sketcher.hashing(key)
    at = locate(asked, sketcher, hashing, sketcher.wide.hashing(key))
    name = os.urandom(16)
    tokeniser = sketcher.tokeniser.name.encode()
    settings = KINDS.index(sketcher.kind), sketcher.width, sketcher.depth, k, len(asked), tokeniser
    head = QUESTION.pack(name, hashing.fingerprint, *settings)
    bits = np.packbits(at.signs > 0)
    content = head + at.cells.astype("<u4").tobytes() + at.wide.astype("<u2").tobytes() + bits.tobytes()
    known = {term: index for index, term in enumerate(asked)}
    letter = seal(content, "question", me, owner)
    return SentQuestion(letter, name, owner, sketcher, hashing.fingerprint, known, at.signs)


def ask_all(queries: Sequence[str], owner: str, me: Party, sketcher: Sketcher, key: bytes) -> list[SentQuestion]:
    """Questions about all words of some queries, in as few letters as they fit into."""
    terms = words_of(queries, sketcher.tokeniser)
    if not terms:
        raise ValueError("the queries have no words; give others")
    room = LONGEST["question"] * 7 // 8 - QUESTION.size  # padding takes at most an eighth
    most = min(MAX_TERMS, room // (sketcher.depth * 6 + sketcher.depth // 8 + 1))
    return [ask(terms[at : at + most], owner, me, sketcher, key) for at in range(0, len(terms), most)]


def recall(letter: bytes, me: Party, key: bytes, queries: Sequence[str]) -> SentQuestion:
    """An own question, recovered from its letter and the queries that it may ask about."""
    owner, content = unseal(letter, "question", me, own=True)
    question = _read_question(content, "you")
    sketcher = question.sketcher
    hashing = sketcher.hashing(key)
    if hashing.fingerprint != question.fingerprint:
        raise ValueError("the question was asked with another key; give that key")
    terms = words_of(queries, sketcher.tokeniser)
    cells, _ = sketcher.locate(terms, hashing)
    index_of = {row.tobytes(): index for index, row in enumerate(question.at.cells)}
    found = {term: index_of.get(row.tobytes()) for term, row in zip(terms, cells, strict=True)}
    known = {term: index for term, index in found.items() if index is not None}
    return SentQuestion(letter, content[:16], owner, sketcher, question.fingerprint, known, question.at.signs)


def words_of(queries: Sequence[str], tokeniser: Tokeniser) -> list[str]:
    """The distinct terms of all queries, sorted."""
    return sorted({term for text in queries for term in tokeniser(text)})


def answer(letter: bytes, owner: Owner) -> bytes:
    """The owner's answer, or its refusal.

    A letter that cannot be opened, is too long or of another version raises ValueError, since its sender is unknown.
    """
    querier, content = unseal(letter, "question", owner.party)
    name = content[:16].ljust(16, b"\0")
    try:
        question = _read_question(content, "the querier")
        _check_question(question, owner)
    except ValueError as refusal:
        written = ANSWER.pack(name, REFUSED, IN_SKETCH, 0, 0, 0, 0, 0) + str(refusal).encode()
    else:
        written = _written(name, owner, querier, question)
    return seal(written, "answer", owner.party, querier)


def _written(name: bytes, owner: Owner, querier: str, question: _Question) -> bytes:
    """The content of an answer: the documents that it names, and for each field what its terms found."""
    at, seen = question.at, owner.copy(querier)
    names, results = seen.pseudonyms, seen.look_up(at, question.k or None)
    found = [rows for each in results.values() for rows, _ in each]
    chosen = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    chosen = chosen[np.argsort(names[chosen])]
    index = np.zeros(len(seen), np.int64)
    index[chosen] = np.arange(len(chosen))
    fields = sum(1 << FIELDS.index(each) for each in results)
    parts = [ANSWER.pack(name, ANSWERED, IN_SKETCH, len(at.cells), fields, len(seen), len(chosen), True)]
    parts.append(names[chosen].astype("<u8").tobytes())
    frequencies = owner.file.frequency_rows(at)
    for each, terms in results.items():
        rows = frequencies[each]
        parts += [FIELD.pack(seen.words[each], rows.shape[1], 1), rows.astype("<f8").tobytes()]
        parts.append(seen.lengths[each][chosen].astype("<i4").tobytes())
        parts.append(np.array([len(rows) for rows, _ in terms], dtype="<u4").tobytes())
        parts += [index[rows].astype("<u4").tobytes() for rows, _ in terms]
        parts += [values.astype("<f4").tobytes() for _, values in terms]
    return b"".join(parts)


def read_answer(letter: bytes, question: SentQuestion, me: Party) -> Answered:
    """The answer of an owner to our question; a refusal raises `Declined`."""
    owner, content = unseal(letter, "answer", me)
    if owner != question.owner or content[:16] != question.id:
        raise Refused(f"the answer of {owner!r} belongs to another question; ask again")
    reader = _Reader(content, owner)
    _, status, noise, terms, fields, documents, many, with_lengths = reader.take(ANSWER)
    if status == REFUSED:
        why = content[ANSWER.size :].decode(errors="replace")
        raise Declined(f"{owner} refuses: {''.join(char if char.isprintable() else ' ' for char in why)}")
    if (status, noise, with_lengths) != (ANSWERED, IN_SKETCH, 1) or not fields & 1 or fields >> len(FIELDS):
        raise Refused(f"the answer of {owner!r} has an unknown kind ({status}, {noise}); update fedrank")
    if terms != len(question.signs):
        raise Refused(f"the answer of {owner!r} must be about {len(question.signs)} terms (got {terms}); ask again")
    names = reader.array("<u8", many).astype(np.uint64)
    if many > documents or np.any(names[1:] <= names[:-1]):
        raise Refused(f"the answer of {owner!r} names a document twice, or more documents than exist; ask again")
    words, lengths = dict.fromkeys(FIELDS, 0.0), {}
    results: dict[str, dict[str, tuple[Found, Real]]] = {}
    for name in (each for index, each in enumerate(FIELDS) if fields >> index & 1):
        words[name], rows, numbers = reader.take(FIELD)
        if rows not in (1, question.sketcher.depth) or numbers != 1:
            raise Refused(f"the answer of {owner!r} must be for 1 row (got {rows} and {numbers}); ask again")
        frequencies = reader.array("<f8", terms * rows).reshape(terms, rows)
        lengths[name] = reader.array("<i4", many).astype(np.int64)
        sizes = reader.array("<u4", terms).astype(np.int64)
        index = reader.array("<u4", int(sizes.sum()))
        values = reader.array("<f4", len(index)).astype(np.float64)
        if not all(np.isfinite(each).all() for each in (words[name], frequencies, values)) or np.any(index >= many):
            raise Refused(f"the answer of {owner!r} has a count that is not finite, or without a document; ask again")
        ends = np.cumsum(sizes)
        results[name] = {}
        for term, at in question.terms.items():
            here = slice(ends[at] - sizes[at], ends[at])
            results[name][term] = (names[index[here]], values[here]), frequencies[at]
    return Answered(owner, question, question.sketcher.kind, documents, words, results, names, lengths)


def find_question(letter: bytes, question: Sequence[SentQuestion], me: Party) -> SentQuestion:
    """The own question that a letter answers."""
    owner, content = unseal(letter, "answer", me)
    for one in question:
        if (owner, content[:16]) == (one.owner, one.id):
            return one
    raise Refused(f"an answer of {owner} belongs to none of the {len(question)} given questions")


def joined(parts: Sequence[Answered]) -> Answered:
    """Several answers of one owner combined; they must be from the same sketch."""
    first = parts[0]
    for part in parts[1:]:
        if (part.owner, part.documents, part.words) != (first.owner, first.documents, first.words):
            raise ValueError(f"{first.owner} changed its documents between two answers; ask for all terms again")
    names, at = np.unique(np.concatenate([part.names for part in parts]), return_index=True)
    lengths = {name: np.concatenate([part.lengths[name] for part in parts])[at] for name in first.results}
    results = {
        name: {term: value for part in parts for term, value in part.results[name].items()} for name in first.results
    }
    return replace(first, results=results, names=names, lengths=lengths)


@dataclass(frozen=True)
class _Question:
    sketcher: Sketcher  # without noise
    fingerprint: bytes
    k: int
    at: TermCells


def _read_question(content: bytes, sender: str) -> _Question:
    """The content of a question; an invalid one raises ValueError."""
    reader = _Reader(content, sender)
    _, fingerprint, kind, width, depth, k, terms, tokeniser = reader.take(QUESTION)
    if kind >= len(KINDS) or terms > MAX_TERMS:
        raise Refused(
            f"a question must have a known kind and at most {MAX_TERMS} terms (got kind {kind}, {terms} terms)"
        )
    named = Tokeniser.named(tokeniser.rstrip(b"\0").decode(errors="replace"))
    sketcher = Sketcher(KINDS[kind], width, depth, named)
    cells = reader.array("<u4", terms * depth).astype(np.int64).reshape(terms, depth)
    wide = reader.array("<u2", terms * depth).astype(np.int64).reshape(terms, depth)
    bits = np.unpackbits(reader.array("|u1", -(-terms * depth // 8)), count=terms * depth)
    if np.any(cells >= width) or np.any(wide >= sketcher.wide.width):
        raise Refused(f"the question names a cell beyond the {width} or {sketcher.wide.width} of a row; ask again")
    signs = (2 * bits.astype(np.int8) - 1).reshape(terms, depth)
    return _Question(sketcher, fingerprint, k, TermCells(cells.astype(np.int32), signs, wide.astype(np.int32)))


def _check_question(question: _Question, owner: Owner) -> None:
    """Refuse what this owner cannot answer."""
    file = owner.file
    mine = replace(file.sketcher, noise=0.0, exact_lengths=True)
    for what, theirs, ours in (
        ("kind", question.sketcher.kind, mine.kind),
        ("width", question.sketcher.width, mine.width),
        ("depth", question.sketcher.depth, mine.depth),
        ("tokeniser", question.sketcher.tokeniser.name, mine.tokeniser.name),
        ("key (by its fingerprint)", question.fingerprint.hex(), file.fingerprint.hex()),
    ):
        if theirs != ours:
            raise ValueError(f"your {what} is {theirs}, but the owner has {ours}; use the same {what}")
    most = file.fields["body"].rule.k
    if question.k > most:
        raise ValueError(f"k must be at most {most}, for which the owner stores documents (got {question.k})")
    longest = len(question.at.cells) * min(question.k or most, len(file)) * len(file.fields) * (4 + 4)
    if longest > LONGEST["answer"] // 2:
        raise ValueError(f"an answer of {longest:,} bytes is too long; ask for fewer terms or documents at a time")


class _Reader:
    """Reads the content of a letter sequentially."""

    def __init__(self, content: bytes, sender: str) -> None:
        self.content, self.sender, self.at = content, sender, 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._next(layout.size))

    def array(self, dtype: str, many: int) -> NDArray[Any]:
        return np.frombuffer(self._next(many * np.dtype(dtype).itemsize), dtype=dtype)

    def _next(self, size: int) -> bytes:
        if self.at + size > len(self.content):
            raise Refused(f"a letter of {self.sender} is truncated; ask again")
        self.at += size
        return self.content[self.at - size : self.at]

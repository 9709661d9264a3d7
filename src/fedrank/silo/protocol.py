"""Questions of one silo about the documents of another: `ask`, `answer` and `read_answer`, over sealed letters.

A question names, for each term, a cell and a sign in every row of a sketch, and a cell of the sketch that counts
documents. An answer names the documents that hold the term most often, by pseudonyms that only this querier gets, with
their counts and lengths, and says how many documents hold it. Where noise comes from:

- "sketch": the owner's file has it, drawn once when documents were sketched; any number of answers costs nothing more,
  and tells what a copy of the sketch would.
- "lookup": on every number that leaves the owner; each term costs ε for its counts, and again for the number of
  documents unless the file is noised; the owner's ledger refuses in the end.
- "paper": as published, one draw for all rows of a document. It hides nothing (`fedrank.attacks.dictionary`), and the
  ledger says so.

An owner holds the key, too, and reads every term it is asked about. Whole decoy terms are what hides one among others;
who wants to tell nothing takes a copy of the sketch (`export_sketch`) and asks that.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.data.text import Tokeniser
from fedrank.silo.features import FIELDS, Real
from fedrank.silo.files import SketchFile
from fedrank.silo.letters import LONGEST, Party, seal, unseal
from fedrank.silo.partners import Counts, Found, TermCells, locate
from fedrank.silo.remote_counts import noised_counts, published_answers
from fedrank.silo.sketch import KINDS, Sketcher, Sketches
from fedrank.silo.spending import SiloLedger
from fedrank.types import Source
from fedrank.wire import Refused

NOISES = ("sketch", "lookup", "paper")
MAX_TERMS = 4000  # of a question, decoys included
QUESTION = struct.Struct("<16s16sBIHIH32s")  # id, fingerprint of the key, kind, width, rows, k, terms, tokeniser
ANSWER = struct.Struct("<16sBBHBIIB")  # id, status, noise, terms, fields, documents, of these told about, lengths told
FIELD = struct.Struct("<dHH")  # words, rows of frequencies, numbers for each count
ANSWERED, REFUSED = 0, 1


class Declined(ValueError):
    """An owner said why it tells nothing."""


@dataclass(frozen=True)
class SentQuestion:
    """A question on its way, and what its sender must know to read the answer."""

    letter: bytes = field(repr=False)
    id: bytes
    owner: str
    sketcher: Sketcher
    fingerprint: bytes  # of key, width and depth
    terms: Mapping[str, int]  # the real ones, and where they stand among all
    signs: NDArray[np.int8]  # [all terms, z]


@dataclass(frozen=True, eq=False)
class Answered:
    """A silo that answered by letter: a partner to train with, for the terms that it was asked about."""

    owner: str
    question: SentQuestion
    kind: str
    documents: int  # that it holds
    words: Mapping[str, float]
    results: Mapping[
        str, Mapping[str, tuple[Found, Real]]
    ]  # by field and term: documents best first; frequencies [rows]
    names: NDArray[np.uint64]  # pseudonyms, ascending
    lengths: Mapping[str, NDArray[np.int64]] | None  # by field, [names]: words; None: not published

    def found(self, term: str, name: str = "body") -> Found:
        """Documents that hold a term most often, best first, and how often."""
        return self._result(name, term)[0]

    def frequencies(self, terms: Sequence[str]) -> Mapping[str, Real]:
        nothing = np.zeros((len(terms), 1))
        return {
            name: np.array([self._result(name, term)[1] for term in terms])
            if name in self.results and terms
            else nothing
            for name in FIELDS
        }

    def counts(self, terms: Sequence[str]) -> Counts:
        return Counts.of(
            {name: [self.found(term, name) for term in terms] for name in self.results}, len(terms), self._lengths_of
        )

    def _result(self, name: str, term: str) -> tuple[Found, Real]:
        if term not in self.results[name]:
            raise ValueError(f"{self.owner} was not asked about {term!r}; ask again, with all queries")
        return self.results[name][term]

    def _lengths_of(self, name: str, documents: NDArray[Any]) -> NDArray[np.int64]:
        if self.lengths is None:
            raise ValueError(f"{self.owner} does not tell how long documents are, which features need; ask for a copy")
        if name not in self.lengths:
            return np.zeros(len(documents), np.int64)
        return self.lengths[name][np.searchsorted(self.names, documents.astype(np.uint64))]


@dataclass(frozen=True, eq=False)
class Owner:
    """A silo that answers questions about its documents."""

    party: Party
    file: SketchFile
    ledger: SiloLedger
    noise: str = "sketch"  # or "lookup", or "paper"
    epsilon: float = 0.5  # of one number; not for "sketch"
    sketches: Mapping[str, Sketches] | None = field(default=None, repr=False)  # by field, all documents, without noise
    source: Source | None = field(default=None, repr=False)  # of noise; another than the system's is for tests
    _copies: dict[str, SketchFile] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise ValueError(f"noise = {self.noise!r}; choose {' or '.join(map(repr, NOISES))}")
        if self.file.ids is None:
            raise ValueError(f"{self.file.path} is a copy for a querier; answer from the owner's file")
        if self.noise == "sketch" and not self.file.noised:
            raise ValueError(
                f"{self.file.path} has no noise, so that answers would give the documents away; make it with noise, or "
                "use noise = 'lookup'"
            )
        if self.noise != "sketch" and (self.sketches is None or set(self.sketches) != set(self.file.fields)):
            raise ValueError(
                f"noise = {self.noise!r} needs the sketches of all documents without noise, for every field"
            )
        for name, sketches in (self.sketches or {}).items():
            settings = self.file.sketcher
            if sketches.shape != (len(self.file), settings.depth, settings.width):
                raise ValueError(
                    f"sketches of the field {name!r} are {sketches.shape}, others than the file's documents"
                )
        if not (isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon = {self.epsilon} allows no answer; use a number above 0, such as 0.5")

    @property
    def price(self) -> float | None:
        """ε of a term: for its counts, and for how many documents hold it; None: nothing can be claimed."""
        if self.noise == "paper":
            return None
        return self.epsilon if self.file.noised else 2 * self.epsilon

    def copy(self, querier: str) -> SketchFile:
        """What the querier would hold if it had a copy: ties are broken alike, and tell nothing of our own order."""
        if querier not in self._copies:
            self._copies[querier] = self.file.copy_for(querier)
        return self._copies[querier]


def ask(
    terms: Sequence[str],
    owner: str,
    me: Party,
    sketcher: Sketcher,
    key: bytes,
    *,
    k: int = 0,  # documents for each term; 0: as many as the owner keeps
    decoys: Sequence[str] = (),
) -> SentQuestion:
    """A question about terms, hidden among decoys (`choose_decoys`), for one owner."""
    real = list(dict.fromkeys(terms))
    if not real:
        raise ValueError("a query without words: there is nothing to ask; leave it out")
    both = list(dict.fromkeys([*real, *decoys]))
    if len(both) > MAX_TERMS:
        raise ValueError(f"{len(both)} terms and decoys in one question; ask for at most {MAX_TERMS} at a time")
    SystemRandom().shuffle(both)
    hashing = sketcher.hashing(key)
    at = locate(both, sketcher, hashing, sketcher.wide.hashing(key))
    name = os.urandom(16)
    settings = (
        KINDS.index(sketcher.kind),
        sketcher.width,
        sketcher.depth,
        k,
        len(both),
        sketcher.tokeniser.name.encode(),
    )
    head = QUESTION.pack(name, hashing.fingerprint, *settings)
    bits = np.packbits(at.signs > 0)
    content = head + at.cells.astype("<u4").tobytes() + at.wide.astype("<u2").tobytes() + bits.tobytes()
    known = {term: index for index, term in enumerate(both) if term in set(real)}
    letter = seal(content, "question", me, owner)
    return SentQuestion(letter, name, owner, sketcher, hashing.fingerprint, known, at.signs)


def ask_all(queries: Sequence[str], owner: str, me: Party, sketcher: Sketcher, key: bytes) -> list[SentQuestion]:
    """Questions about all words of some queries, in as few letters as they fit into."""
    terms = words_of(queries, sketcher.tokeniser)
    if not terms:
        raise ValueError("queries without words: there is nothing to ask; give some")
    room = LONGEST["question"] * 7 // 8 - QUESTION.size  # padding takes at most an eighth
    most = min(MAX_TERMS, room // (sketcher.depth * 6 + sketcher.depth // 8 + 1))
    return [ask(terms[at : at + most], owner, me, sketcher, key) for at in range(0, len(terms), most)]


def recall(letter: bytes, me: Party, key: bytes, queries: Sequence[str]) -> SentQuestion:
    """A question that we sent, from its letter: which words of these queries it asked about."""
    owner, content = unseal(letter, "question", me, own=True)
    question = _read_question(content, "you")
    sketcher = question.sketcher
    hashing = sketcher.hashing(key)
    if hashing.fingerprint != question.fingerprint:
        raise ValueError("the question was asked with another key than the one you give; give that key")
    terms = words_of(queries, sketcher.tokeniser)
    cells, _ = sketcher.locate(terms, hashing)
    index_of = {row.tobytes(): index for index, row in enumerate(question.at.cells)}
    found = {term: index_of.get(row.tobytes()) for term, row in zip(terms, cells, strict=True)}
    known = {term: index for term, index in found.items() if index is not None}
    return SentQuestion(letter, content[:16], owner, sketcher, question.fingerprint, known, question.at.signs)


def words_of(queries: Sequence[str], tokeniser: Tokeniser) -> list[str]:
    """The terms of all queries, each once, in an order that tells nothing of them."""
    return sorted({term for text in queries for term in tokeniser(text)})


def answer(letter: bytes, owner: Owner) -> bytes:
    """The owner's letter back: what was found, or why nothing is told.

    A letter that does not open, is too long or of another version is a ValueError: there is nobody to answer.
    """
    querier, content = unseal(letter, "question", owner.party)
    name = content[:16].ljust(16, b"\0")
    try:
        question = _read_question(content, "the querier")
        _check_question(question, owner)
        refusal = None
    except ValueError as error:
        refusal = str(error)
    if refusal is None and owner.noise != "sketch" and len(question.at.cells):
        refusal = owner.ledger.charge_terms(querier, len(question.at.cells), owner.price, name.hex())
    if refusal is not None:
        refused = ANSWER.pack(name, REFUSED, NOISES.index(owner.noise), 0, 0, 0, 0, 0) + refusal.encode()
        return seal(refused, "answer", owner.party, querier)
    return seal(_written(name, owner, querier, question), "answer", owner.party, querier)


def _written(name: bytes, owner: Owner, querier: str, question: _Question) -> bytes:
    """The content of an answer: documents that are told about, and for each field what its terms found."""
    at, file, exact = question.at, owner.file, owner.noise != "sketch"
    results: Mapping[str, Sequence[tuple[NDArray[Any], NDArray[Any]]]]
    if exact:
        rows_of, names = file, file.pseudonyms_for(querier)
        signed_cells = list(zip(at.cells, at.signs, strict=True))
        results = {
            each: [_noised(owner, each, *term, names, question.k) for term in signed_cells] for each in file.fields
        }
    else:
        rows_of = owner.copy(querier)
        assert rows_of.pseudonyms is not None
        names = rows_of.pseudonyms
        results = {
            each: [(rows, counts[:, None]) for rows, counts in terms]
            for each, terms in rows_of.look_up(at, question.k or None).items()
        }
    found = [rows for each in results.values() for rows, _ in each]
    chosen = np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
    chosen = chosen[np.argsort(names[chosen])]
    index = np.zeros(len(file), np.int64)
    index[chosen] = np.arange(len(chosen))
    with_lengths = not exact or file.sketcher.exact_lengths
    fields = sum(1 << FIELDS.index(each) for each in results)
    status = ANSWERED, NOISES.index(owner.noise), len(at.cells)
    parts = [ANSWER.pack(name, *status, fields, len(file), len(chosen), with_lengths)]
    parts.append(names[chosen].astype("<u8").tobytes())
    for each, terms in results.items():
        rows = _frequencies(owner, each, at)
        words = rows_of.words[each] if with_lengths else 0.0
        numbers = file.sketcher.depth if owner.noise == "paper" else 1
        parts += [FIELD.pack(words, rows.shape[1], numbers), rows.astype("<f8").tobytes()]
        if with_lengths:
            parts.append(rows_of.lengths[each][chosen].astype("<i4").tobytes())
        parts.append(np.array([len(rows) for rows, _ in terms], dtype="<u4").tobytes())
        parts += [index[rows].astype("<u4").tobytes() for rows, _ in terms]
        parts += [values.astype("<f4").tobytes() for _, values in terms]
    return b"".join(parts)


def read_answer(letter: bytes, question: SentQuestion, me: Party) -> Answered:
    """What an owner said to our question; what it said about decoys is dropped. A refusal is an error, `Declined`."""
    owner, content = unseal(letter, "answer", me)
    if owner != question.owner or content[:16] != question.id:
        raise Refused(f"an answer of {owner!r} to another question; the relay mixed letters up, or repeats them")
    reader = _Reader(content, owner)
    _, status, noise, terms, fields, documents, many, with_lengths = reader.take(ANSWER)
    if status == REFUSED:
        why = content[ANSWER.size :].decode(errors="replace")
        raise Declined(f"{owner} refuses: {''.join(char if char.isprintable() else ' ' for char in why)}")
    if status != ANSWERED or noise >= len(NOISES) or not fields & 1 or fields >> len(FIELDS):
        raise Refused(f"an answer of {owner!r} of an unknown kind ({status}, {noise}); is its fedrank newer? update")
    if terms != len(question.signs):
        raise Refused(f"an answer of {owner!r} about {terms} terms, and {len(question.signs)} were asked about")
    names = reader.array("<u8", many).astype(np.uint64)
    if many > documents or np.any(names[1:] <= names[:-1]):
        raise Refused(f"an answer of {owner!r} that names a document twice, or more than it holds; ask again")
    numbers = question.sketcher.depth if NOISES[noise] == "paper" else 1
    words, lengths = dict.fromkeys(FIELDS, 0.0), {}
    results: dict[str, dict[str, tuple[Found, Real]]] = {}
    for name in (each for index, each in enumerate(FIELDS) if fields >> index & 1):
        words[name], rows, sent = reader.take(FIELD)
        if rows not in (1, question.sketcher.depth) or sent != numbers:
            raise Refused(f"an answer of {owner!r} for {rows} and {sent} rows, and {numbers} were asked for")
        frequencies = reader.array("<f8", terms * rows).reshape(terms, rows)
        if with_lengths:
            lengths[name] = reader.array("<i4", many).astype(np.int64)
        sizes = reader.array("<u4", terms).astype(np.int64)
        index = reader.array("<u4", int(sizes.sum()))
        values = reader.array("<f4", len(index) * numbers).astype(np.float64).reshape(-1, numbers)
        if not all(np.isfinite(each).all() for each in (words[name], frequencies, values)) or np.any(index >= many):
            raise Refused(f"an answer of {owner!r} with a count that is no number, or of no document; ask again")
        ends = np.cumsum(sizes)
        results[name] = {}
        for term, at in question.terms.items():
            here = slice(ends[at] - sizes[at], ends[at])
            signs = question.signs[at] if numbers > 1 else np.ones(1, np.int8)
            held = question.sketcher.estimate(values[here], signs)
            results[name][term] = (names[index[here]], held), frequencies[at]
    return Answered(
        owner, question, question.sketcher.kind, documents, words, results, names, lengths if with_lengths else None
    )


def find_question(letter: bytes, question: Sequence[SentQuestion], me: Party) -> SentQuestion:
    """Which of our questions a letter answers."""
    owner, content = unseal(letter, "answer", me)
    for one in question:
        if (owner, content[:16]) == (one.owner, one.id):
            return one
    raise Refused(f"an answer of {owner} to none of the {len(question)} questions that you give; give that one, too")


def joined(parts: Sequence[Answered]) -> Answered:
    """Several answers of one owner as one; those of different sketches are refused."""
    first = parts[0]
    for part in parts[1:]:
        if (part.owner, part.documents, part.words) != (first.owner, first.documents, first.words):
            raise ValueError(f"{first.owner} changed its documents between two answers; ask for all terms anew")
    names, at = np.unique(np.concatenate([part.names for part in parts]), return_index=True)
    lengths = None
    if all(part.lengths is not None for part in parts):
        tables = {name: [part.lengths[name] for part in parts if part.lengths] for name in first.results}
        lengths = {name: np.concatenate(table)[at] for name, table in tables.items()}
    results = {
        name: {term: value for part in parts for term, value in part.results[name].items()} for name in first.results
    }
    return replace(first, results=results, names=names, lengths=lengths)


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


def _noised(
    owner: Owner, name: str, cells: NDArray[Any], signs: NDArray[np.int8], names: NDArray[np.uint64], k: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Rows of the best documents by counts that get noise now, and what is told about each [documents, numbers]."""
    from fedrank.privacy.noise import SecureSource

    source = owner.source or SecureSource()
    assert owner.sketches is not None
    sketcher = owner.file.sketcher
    values = owner.sketches[name][:, np.arange(sketcher.depth), cells]
    results: Any
    if owner.noise == "lookup":
        counts = noised_counts(sketcher.estimate(values, signs), owner.epsilon, sketcher.exact_lengths, source)
        results = counts[:, None]
    else:
        results = published_answers(values, owner.epsilon, source)
        counts = sketcher.estimate(results, signs)
    # The order is that of noised counts, and then of pseudonyms: it tells nothing that they do not.
    rows = np.lexsort((names, -counts))[: k or owner.file.fields[name].rule.k]
    return rows, results[rows]


def _frequencies(owner: Owner, name: str, at: TermCells) -> Real:
    """[terms, rows]: as the file has them, or with noise where the file has none and we claim some."""
    rows = owner.file.frequency_rows(at)[name]
    if owner.noise != "lookup" or owner.file.noised:
        return rows
    from fedrank.privacy.noise import SecureSource

    sketcher = owner.file.sketcher
    counts = sketcher.estimate(rows, np.ones(sketcher.depth, np.int8))
    return noised_counts(counts, owner.epsilon, sketcher.exact_lengths, owner.source or SecureSource())[:, None]


@dataclass(frozen=True)
class _Question:
    sketcher: Sketcher  # without noise
    fingerprint: bytes
    k: int
    at: TermCells


def _read_question(content: bytes, sender: str) -> _Question:
    """What is asked; a question of nonsense is a ValueError that says why."""
    reader = _Reader(content, sender)
    _, fingerprint, kind, width, depth, k, terms, tokeniser = reader.take(QUESTION)
    if kind >= len(KINDS) or terms > MAX_TERMS:
        raise Refused(f"a question of kind {kind} about {terms} terms; ask for up to {MAX_TERMS}")
    named = Tokeniser.named(tokeniser.rstrip(b"\0").decode(errors="replace"))
    sketcher = Sketcher(KINDS[kind], width, depth, named)
    cells = reader.array("<u4", terms * depth).astype(np.int64).reshape(terms, depth)
    wide = reader.array("<u2", terms * depth).astype(np.int64).reshape(terms, depth)
    bits = np.unpackbits(reader.array("|u1", -(-terms * depth // 8)), count=terms * depth)
    if np.any(cells >= width) or np.any(wide >= sketcher.wide.width):
        raise Refused(f"a cell beyond the {width} or {sketcher.wide.width} of a row; ask again")
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
            raise ValueError(f"your {what} is {theirs}, and this owner's is {ours}: ask with the same")
    most = file.fields["body"].rule.k
    if owner.noise == "sketch" and question.k > most:
        raise ValueError(f"k = {question.k}, and this owner keeps documents for up to {most}")
    numbers = file.sketcher.depth if owner.noise == "paper" else 1
    longest = len(question.at.cells) * min(question.k or most, len(file)) * len(file.fields) * (4 + 4 * numbers)
    if longest > LONGEST["answer"] // 2:
        raise ValueError(f"an answer of {longest:,} bytes is too long; ask for fewer terms or documents at a time")


class _Reader:
    """Walks through the content of a letter and notices its end."""

    def __init__(self, content: bytes, sender: str, at: int = 0) -> None:
        self.content, self.sender, self.at = content, sender, at

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        return layout.unpack(self._next(layout.size))

    def array(self, dtype: str, many: int) -> NDArray[Any]:
        return np.frombuffer(self._next(many * np.dtype(dtype).itemsize), dtype=dtype)

    def _next(self, size: int) -> bytes:
        if self.at + size > len(self.content):
            raise Refused(f"a letter of {self.sender} ends too early; ask again")
        self.at += size
        return self.content[self.at - size : self.at]

"""Questions of one silo about the documents of another: `ask`, `answer` and `read_answer`, over sealed letters.

A question names, for each term, one cell and one sign in every row of a sketch. An answer names the documents that hold
the term most often, by pseudonyms that only this querier gets, with their counts and lengths. Where noise comes from:

- "sketch": the owner's file has it, drawn once when documents were sketched; any number of answers costs nothing more.
- "lookup": on every count that leaves the owner; each term costs ε again, and the owner's ledger refuses in the end.
- "paper": as published, one draw for all rows of a document. It hides nothing (`fedrank.attack.dictionary`), and the
  ledger says so.

An owner holds the key, too, and reads every term it is asked about. Whole decoy terms are what hides one among others;
who wants to tell nothing takes a copy of the sketch (`export_sketch`) and asks that.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, isfinite, log2
from random import SystemRandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrank.silo.files import SketchFile
from fedrank.silo.hashing import Hashing
from fedrank.silo.messages import LONGEST, Party, seal, unseal
from fedrank.silo.rtk import Estimates
from fedrank.silo.sketch import KINDS, Sketcher, Sketches
from fedrank.silo.spending import Spending
from fedrank.types import Source

NOISES = ("sketch", "lookup", "paper")
FIELDS = ("body", "title")  # their places are what is sent
MOST_TERMS = 1000  # of a question, decoys included
QUESTION = struct.Struct("<16s8sBBHIH32s")  # id, fingerprint of the key, kind, field, rows, k, terms, tokeniser
ANSWER = struct.Struct("<16sBBH")  # id, status, noise, terms
FOUND = struct.Struct("<IHB")  # documents, numbers for each count, whether lengths follow
ANSWERED, REFUSED = 0, 1


@dataclass(frozen=True)
class Asked:
    """A question on its way, and what its sender must remember to read the answer."""

    letter: bytes = field(repr=False)
    id: bytes
    owner: str
    terms: tuple[str, ...]  # the real ones
    places: tuple[int, ...]  # of the real ones among all
    sketcher: Sketcher
    signs: NDArray[np.int8]  # [real terms, z]


@dataclass(frozen=True)
class Found:
    """What an owner says about one term: documents, best first."""

    documents: NDArray[np.uint64]  # pseudonyms
    counts: Estimates
    lengths: NDArray[np.int64] | None  # words; None: not published


@dataclass(frozen=True)
class Answer:
    """What came back: something about every term, or the reason of a refusal."""

    found: Mapping[str, Found]
    refused: str | None = None


@dataclass(frozen=True, eq=False)
class Owner:
    """A silo that answers questions about its documents."""

    party: Party
    file: SketchFile
    spending: Spending
    noise: str = "sketch"  # or "lookup", or "paper"
    epsilon: float = 0.5  # of one answered term; not for "sketch"
    sketches: Mapping[str, Sketches] | None = field(default=None, repr=False)  # by field, all documents, without noise
    source: Source | None = field(default=None, repr=False)  # of noise; another than the system's is for tests

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


def ask(
    terms: Sequence[str],
    owner: str,
    me: Party,
    sketcher: Sketcher,
    hashing: Hashing,
    *,
    field: str = "body",
    k: int = 150,
    decoys: Sequence[str] = (),
) -> Asked:
    """A question about terms, hidden among decoys (`choose_decoys`), for one owner."""
    real = tuple(dict.fromkeys(terms))
    if not real:
        raise ValueError("a query without words: there is nothing to ask; leave it out")
    both = [*real, *(term for term in dict.fromkeys(decoys) if term not in real)]
    if len(both) > MOST_TERMS:
        raise ValueError(f"{len(both)} terms and decoys in one question; ask for at most {MOST_TERMS} at a time")
    SystemRandom().shuffle(both)
    cells, signs = sketcher.places(both, hashing)
    name = os.urandom(16)
    kind, tokeniser = KINDS.index(sketcher.kind), sketcher.tokeniser.name.encode()
    head = QUESTION.pack(
        name, hashing.fingerprint, kind, FIELDS.index(field), sketcher.depth, k, len(both), tokeniser
    )  # fmt: skip
    content = head + cells.astype("<u4").tobytes() + np.packbits(signs > 0).tobytes()
    places = tuple(both.index(term) for term in real)
    letter = seal(content, "question", me, owner)
    return Asked(letter, name, owner, real, places, sketcher, signs[list(places)])


def answer(letter: bytes, owner: Owner) -> bytes:
    """The owner's letter back: what was found, or why nothing is told.

    A letter that does not open, is too long or of another version is a ValueError: there is nobody to answer.
    """
    querier, content = unseal(letter, "question", owner.party)
    name = content[:16].ljust(16, b"\0")
    try:
        where, k, cells, signs = _read_question(content, owner.file)
        top = owner.file.fields[where]
        if owner.noise == "sketch" and k > top.rule.k:
            raise ValueError(f"k = {k}, and this owner keeps documents for up to {top.rule.k}")
        numbers = cells.shape[1] if owner.noise == "paper" else 1
        longest = len(cells) * min(k, len(owner.file)) * (8 + 4 * numbers + 4)
        if longest > LONGEST["answer"] // 2:
            raise ValueError(f"an answer of {longest:,} bytes is too long; ask for fewer terms or documents at a time")
        if owner.noise != "sketch" and len(cells):
            price = owner.epsilon if owner.noise == "lookup" else None
            refusal = owner.spending.charge_terms(querier, where, len(cells), price, name.hex())
            if refusal is not None:
                raise ValueError(refusal)
    except ValueError as error:
        refused = ANSWER.pack(name, REFUSED, NOISES.index(owner.noise), 0) + str(error).encode()
        return seal(refused, "answer", owner.party, querier)
    lengths = owner.file.lengths[where] if owner.noise == "sketch" or owner.file.sketcher.exact_lengths else None
    parts = [ANSWER.pack(name, ANSWERED, NOISES.index(owner.noise), len(cells))]
    for cell, sign in zip(cells, signs, strict=True):
        rows, told = _look_up(owner, where, cell, sign, k)
        parts.append(FOUND.pack(len(rows), told.shape[1], lengths is not None))
        parts += [owner.file.pseudonyms_for(querier, rows).astype("<u8").tobytes(), told.astype("<f4").tobytes()]
        if lengths is not None:
            parts.append(lengths[rows].astype("<i4").tobytes())
    return seal(b"".join(parts), "answer", owner.party, querier)


def read_answer(letter: bytes, asked: Asked, me: Party) -> Answer:
    """What an owner said to our question; what it said about decoys is dropped."""
    owner, content = unseal(letter, "answer", me)
    if owner != asked.owner or content[:16] != asked.id:
        raise ValueError(f"an answer of {owner!r} to another question; the relay mixed letters up, or repeats them")
    reader = _Reader(content, owner)
    _, status, noise, terms = reader.take(ANSWER)
    if status == REFUSED:
        return Answer({}, content[ANSWER.size :].decode(errors="replace"))
    if status != ANSWERED or noise >= len(NOISES):
        raise ValueError(f"an answer of {owner!r} of an unknown kind ({status}, {noise}); is its fedrank newer? update")
    rows = asked.signs.shape[1] if NOISES[noise] == "paper" else 1
    found = []
    for _ in range(terms):
        documents, numbers, with_lengths = reader.take(FOUND)
        if numbers != rows:
            raise ValueError(f"an answer of {owner!r} for {numbers} rows, and {rows} were asked for")
        pseudonyms = reader.array("<u8", documents).astype(np.uint64)
        told: Any = reader.array("<f4", documents * numbers).astype(np.float64).reshape(documents, numbers)
        found.append((pseudonyms, told, reader.array("<i4", documents).astype(np.int64) if with_lengths else None))
    if len(found) <= max(asked.places):
        raise ValueError(f"an answer of {owner!r} about {terms} terms, fewer than were asked about; ask again")
    out = {}
    for term, place, signs in zip(asked.terms, asked.places, asked.signs, strict=True):
        pseudonyms, told, lengths = found[place]
        if not np.isfinite(told).all():
            raise ValueError(f"an answer of {owner!r} with a count that is no number; ask again")
        counts = asked.sketcher.estimate(told, signs) if NOISES[noise] == "paper" else told[:, 0]
        out[term] = Found(pseudonyms, counts, lengths)
    return Answer(out)


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


def noised_counts(
    counts: Estimates, epsilon: float, exact_lengths: bool, source: Source
) -> Estimates:  # fmt: skip
    """Counts of one term in all documents, each with Laplace noise that costs ε for one occurrence."""
    return counts + _laplace((2 if exact_lengths else 1) / epsilon, len(counts), source)


def published_answers(values: NDArray[Any], epsilon: float, source: Source) -> Estimates:
    """Algorithm 2 of the paper: one draw for all z answers [documents, z] about a document, which hides nothing."""
    return values + _laplace(1 / epsilon, len(values), source)[:, None]


def _look_up(
    owner: Owner, where: str, cells: NDArray[np.int64], signs: NDArray[np.int8], k: int
) -> tuple[NDArray[np.int32], Estimates]:
    """Rows of the best documents, and what is told about each [documents, numbers]."""
    if owner.noise == "sketch":
        rows, counts = owner.file.fields[where].query(cells, signs, k)
        return rows, counts[:, None]
    from fedrank.protect.noise import SecureSource

    source = owner.source or SecureSource()
    assert owner.sketches is not None
    sketcher = owner.file.sketcher
    values = owner.sketches[where][:, np.arange(sketcher.depth), cells]
    told: Any
    if owner.noise == "lookup":
        counts = noised_counts(sketcher.estimate(values, signs), owner.epsilon, sketcher.exact_lengths, source)
        told = counts[:, None]
    else:
        told = published_answers(values, owner.epsilon, source)
        counts = sketcher.estimate(told, signs)
    # The order is that of noised counts: it tells nothing that they do not.
    rows = np.argsort(-counts, kind="stable")[:k].astype(np.int32)
    return rows, told[rows]


def _laplace(scale: float, many: int, source: Source) -> Estimates:
    """Laplace noise on a grid that halves fit, so that all that is told lies on the grid, too."""
    from fedrank.protect.noise import rounded_laplace

    step = min(0.5, 2.0 ** floor(log2(scale / 64)))
    # A sampler is not exactly its law; a millionth more noise pays for that.
    return rounded_laplace(scale * (1 + 1e-6) / step).draw(many, source).astype(np.float64) * step


def _read_question(content: bytes, file: SketchFile) -> tuple[str, int, NDArray[np.int64], NDArray[np.int8]]:
    """Field, k, cells and signs [terms, z]; a question that this file cannot answer is a ValueError that says why."""
    if len(content) < QUESTION.size:
        raise ValueError(f"a question of {len(content)} bytes was cut short; ask again")
    _, fingerprint, kind, where, depth, k, terms, tokeniser = QUESTION.unpack_from(content)
    sketcher = file.sketcher
    rule = tokeniser.rstrip(b"\0").decode(errors="replace")
    mine = f"{sketcher.kind} of {sketcher.depth} rows"
    theirs = f"{KINDS[kind] if kind < len(KINDS) else 'another kind'} of {depth} rows"
    if mine != theirs:
        raise ValueError(f"the question is for a {theirs}, and this owner has a {mine}; ask with its settings")
    if rule != sketcher.tokeniser.name:
        raise ValueError(f"your words are cut by the rule {rule!r}, this owner's by {sketcher.tokeniser.name!r}")
    if fingerprint != file.fingerprint:
        raise ValueError(
            "your key or width is another than this owner's, so that every word would be looked up in wrong cells; "
            "compare fingerprints"
        )
    if where >= len(FIELDS) or FIELDS[where] not in file.fields:
        raise ValueError(f"this owner has no such field; it has {', '.join(file.fields)}")
    if not 0 <= terms <= MOST_TERMS or k < 1:
        raise ValueError(f"{terms} terms and k = {k}; ask for up to {MOST_TERMS} terms and at least one document")
    reader = _Reader(content, "the querier", QUESTION.size)
    cells = reader.array("<u4", terms * depth).astype(np.int64).reshape(terms, depth)
    bits = np.unpackbits(reader.array("|u1", -(-terms * depth // 8)), count=terms * depth)
    if cells.size and cells.max() >= sketcher.width:
        raise ValueError(f"cell {cells.max()}, and rows have {sketcher.width}; ask with this owner's settings")
    return FIELDS[where], k, cells, (2 * bits.astype(np.int8) - 1).reshape(terms, depth)


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
            raise ValueError(f"a letter of {self.sender} ends too early; ask again")
        self.at += size
        return self.content[self.at - size : self.at]

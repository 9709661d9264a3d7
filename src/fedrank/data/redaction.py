"""Which queries of a log must not be stored as typed: rare ones, those with addresses, numbers or listed words.

Features are computed from what was typed, in memory. Stored is "redacted" and a number, so equal queries stay equal.
With `what = "drop"`, the lists of such a query are left out, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.files import read_text

PATTERNS: dict[str, re.Pattern[str]] = {
    "an e-mail address": re.compile(r"[^\s@]+\s?@\s?[^\s@]+\.[^\s@.]{2,}"),
    # Seven digits or more, with what people put between them; a year or a size has fewer.
    "a phone number": re.compile(r"(?<![\w.])\+?\(?\d(?:[\s()/.-]{0,2}\d){6,}(?!\w)"),
    "a long number": re.compile(r"\d{6,}"),
}
RARE, LISTED = "asked by too few", "a listed word"
WHAT = ("replace", "drop")
_PEOPLE = 5


@dataclass(frozen=True)
class Redaction:
    """Which queries are not stored as they were typed, and what happens to them."""

    people: int = _PEOPLE  # users that a query needs to be stored as it is; 1: all are stored
    patterns: bool = True  # queries with e-mail addresses, phone numbers or long numbers are not stored
    words: tuple[str, ...] = ()  # nor are queries with one of these
    what: str = "replace"  # the text alone; or "drop": the lists of such queries as well

    def __post_init__(self) -> None:
        if self.people < 1:
            raise ValueError(f"people = {self.people}: must be at least 1; with 1, rare queries are stored")
        if self.what not in WHAT:
            raise ValueError(f"what = {self.what!r}: redacted queries are one of {', '.join(WHAT)}")

    def reasons(self, queries: Sequence[str], people: NDArray[np.integer]) -> list[str]:
        """Why each query is not stored, "" where it is; `people` [queries] is how many users searched for it.

        >>> Redaction(people=2).reasons(["rain", "ann@b.org", "call 030 1234567", "top 100"], np.array([2, 9, 9, 1]))
        ['', 'an e-mail address', 'a phone number', 'asked by too few']
        """
        listed = {folded(word) for word in self.words}
        found = []
        for text, users in zip(queries, people.tolist(), strict=True):
            text = folded(text)  # there are wide forms of @, of full stops and of digits
            named = (name for name, pattern in PATTERNS.items() if self.patterns and pattern.search(text))
            has_listed = listed and not listed.isdisjoint(re.findall(r"\w+", text))
            found.append(next(named, "") or (LISTED if has_listed else "") or (RARE if users < self.people else ""))
        return found


def folded(text: str) -> str:
    """A text as words are compared: without case, and a letter with an accent in one form."""
    return unicodedata.normalize("NFKC", text).casefold()


def read_words(path: str | Path) -> tuple[str, ...]:
    """Words of a file, one a line; lines that begin with # are remarks."""
    try:
        lines = [line.strip() for line in read_text(path, "utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8, so its words would match nothing; convert the file") from None
    words = [line for line in lines if line and not line.startswith("#")]
    for word in words:
        if len(re.findall(r"\w+", word)) != 1 or not re.fullmatch(r"\w+", word):
            raise ValueError(f"{path}: {word!r} is not one word and would never be found; write one word a line")
    if not words:
        raise ValueError(f"{path} holds no word, so nothing would be redacted; write one word a line")
    return tuple(words)


def replaced(queries: Sequence[str], reasons: Sequence[str]) -> list[str]:
    """Texts as they are stored."""
    numbers = iter(range(1, len(queries) + 1))
    return [f"[redacted {next(numbers)}]" if why else text for text, why in zip(queries, reasons, strict=True)]

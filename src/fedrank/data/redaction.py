"""Redaction of queries that must not be stored: rare ones, and those with addresses, numbers or listed words.

Features are computed in memory from the original text. The stored text is "redacted" and a number, so equal queries
stay equal. With `what = "drop"`, the lists of such a query are left out, too.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrank.data.log_folder import working_on
from fedrank.data.logs import FACTS, SearchLog, load_log
from fedrank.files import read_text, write_atomic

PATTERNS: dict[str, re.Pattern[str]] = {
    "an e-mail address": re.compile(r"[^\s@]+\s?@\s?[^\s@]+\.[^\s@.]{2,}"),
    # Seven digits or more, with common separators; years and sizes have fewer.
    "a phone number": re.compile(r"(?<![\w.])\+?\(?\d(?:[\s()/.-]{0,2}\d){6,}(?!\w)"),
    "a long number": re.compile(r"\d{6,}"),
}
RARE, LISTED = "asked by too few", "a listed word"
WHAT = ("replace", "drop")
EARLIER = "for reasons that are not on record"  # by a process that was killed before it counted them
_REDACTED = re.compile(r"\[redacted ([0-9]+)\]")


@dataclass(frozen=True)
class Redaction:
    """Which query texts are redacted, and whether their lists are stored."""

    people: int = 5  # minimum number of users of a stored query; 1: store rare queries
    patterns: bool = True  # redact e-mail addresses, phone numbers and long numbers
    words: tuple[str, ...] = ()  # redact queries with one of these words
    what: str = "replace"  # replace the text; or "drop" the lists of such queries

    def __post_init__(self) -> None:
        if self.people < 1:
            raise ValueError(f"people must be at least 1 (got {self.people})")
        if self.what not in WHAT:
            raise ValueError(f"what must be one of {', '.join(WHAT)} (got {self.what!r})")

    def reasons(self, queries: Sequence[str], people: NDArray[np.integer]) -> list[str]:
        """Return why each query is redacted, "" if it is not; `people` [queries] is its number of users.

        >>> Redaction(people=2).reasons(["rain", "ann@b.org", "call 030 1234567", "top 100"], np.array([2, 9, 9, 1]))
        ['', 'an e-mail address', 'a phone number', 'asked by too few']
        """
        listed = {folded(word) for word in self.words}
        found = []
        for text, users in zip(queries, people.tolist(), strict=True):
            text = folded(text)  # normalises wide forms of @, full stops and digits
            named = (name for name, pattern in PATTERNS.items() if self.patterns and pattern.search(text))
            has_listed = listed and not listed.isdisjoint(re.findall(r"\w+", text))
            found.append(next(named, "") or (LISTED if has_listed else "") or (RARE if users < self.people else ""))
        return found


def folded(text: str) -> str:
    """Normalise a text for comparison: no case, and one form per accented letter."""
    return unicodedata.normalize("NFKC", text).casefold()


def read_words(path: str | Path) -> tuple[str, ...]:
    """Read words from a file, one per line; lines that start with # are comments."""
    try:
        lines = [line.strip() for line in read_text(path, "utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not valid UTF-8; convert the file") from None
    words = [line for line in lines if line and not line.startswith("#")]
    for word in words:
        if len(re.findall(r"\w+", word)) != 1 or not re.fullmatch(r"\w+", word):
            raise ValueError(f"{path}: {word!r} is not a single word; write one word per line")
    if not words:
        raise ValueError(f"{path} contains no words; write one word per line")
    return tuple(words)


def replaced(queries: Sequence[str], reasons: Sequence[str]) -> list[str]:
    """Replace the texts of redacted queries."""
    numbers = iter(range(1, len(queries) + 1))
    return [f"[redacted {next(numbers)}]" if why else text for text, why in zip(queries, reasons, strict=True)]


def redact_log(folder: str | os.PathLike[str], how: Redaction) -> SearchLog:
    """Permanently replace texts that must not be stored. Lists, clicks and features remain.

    A process that is killed between its two writes has replaced the texts but not counted them; another call counts
    them.
    """
    folder = Path(folder)
    if how.what != "replace":
        raise ValueError("lists cannot be dropped from an existing data set; build it again with --drop-redacted")
    with working_on(folder):
        log = load_log(folder)
        searched = np.unique(np.stack([log.query, log.user]), axis=1)[0]
        people = np.bincount(searched, minlength=len(log.queries))
        reasons = how.reasons(log.queries, people)
        before = [_REDACTED.fullmatch(text) for text in log.queries]
        next_number = 1 + max((int(found[1]) for found in before if found), default=0)
        texts, counts = [], dict(log.facts.get("redacted") or {})
        for text, why, was in zip(log.queries, reasons, before, strict=True):
            if why and not was:
                text, next_number = f"[redacted {next_number}]", next_number + 1
                counts[why] = counts.get(why, 0) + 1
            texts.append(text)
        uncounted = sum(bool(_REDACTED.fullmatch(text)) for text in texts) - sum(counts.values())
        if uncounted > 0:
            counts[EARLIER] = uncounted
        write_atomic(folder / "queries.txt", "".join(f"{text}\n" for text in texts), private=True)
        facts = log.facts | {"redacted": counts}
        write_atomic(folder / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n", private=True)
    return load_log(folder)

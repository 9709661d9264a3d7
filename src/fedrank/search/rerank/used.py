"""Which passages an answer used: numbered citations, and spans of words that it shares with a passage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SPAN = 6  # words in a row that an answer and a passage share
MAX_ANSWER = 20_000  # words
_WORD = re.compile(r"\w+")
_CITATION = re.compile(r"[\[【(](\d{1,3}(?:\s*[,;]\s*\d{1,3})*)[\]】)]")


@dataclass(frozen=True)
class Used:
    """A passage that an answer used, and why it counts."""

    index: int
    cited: bool  # by its number
    span: str  # the longest run of words that the answer shares with the passage; "" if none

    @property
    def supported(self) -> bool:
        """Whether a span of the passage supports the citation; many citations of language models have none."""
        return bool(self.span)


def used_passages(answer: str, passages: Sequence[str], first_number: int = 1, min_words: int = SPAN) -> list[Used]:
    """The passages that an answer cites by number ([2], [1, 3]) or quotes in at least `min_words` words.

    A run of words that several passages share counts for none of them, because the answer may have any of them from
    another one. Treat a citation that is not `supported` as a weak hint.
    """
    if min_words < 2:
        raise ValueError(f"min_words must be at least 2 (got {min_words})")
    numbers = {
        int(number) - first_number for found in _CITATION.findall(answer) for number in re.split(r"\s*[,;]\s*", found)
    }
    said = _words(answer)[:MAX_ANSWER]
    runs = list(_runs(said, min_words))
    holders: dict[tuple[str, ...], set[int]] = {
        run: set() for run in runs
    }  # only those of the answer: texts may be long
    for index, passage in enumerate(passages):
        for run in _runs(_words(passage), min_words):
            if run in holders:
                holders[run].add(index)
    longest: dict[int, tuple[int, int]] = {}  # by passage: (words, where the span begins in the answer)
    begin: dict[int, int] = {}  # passages of the run that ends here, and where their span began
    for place, run in enumerate(runs):
        owners = holders[run]
        owner = next(iter(owners)) if len(owners) == 1 else None
        begin = {} if owner is None else {owner: begin.get(owner, place)}
        for index, start in begin.items():
            longest[index] = max(longest.get(index, (0, 0)), (place - start + min_words, start))
    found = []
    for index in sorted({*longest, *(number for number in numbers if 0 <= number < len(passages))}):
        size, start = longest.get(index, (0, 0))
        found.append(Used(index, index in numbers, " ".join(said[start : start + size])))
    return found


def _runs(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    return (tuple(words[place : place + size]) for place in range(len(words) - size + 1))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())

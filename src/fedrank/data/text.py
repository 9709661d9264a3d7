"""Texts as words: one rule with a name, so that whoever compares two counts knows that they were counted alike."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from fedrank.extras import missing_extra
from fedrank.names import did_you_mean

VERSION = 1  # of the rule in `tokens`; counts that were made by another one cannot be compared with ours

_WORD = re.compile(r"\w+")


def tokens(text: str) -> list[str]:
    """Words of a text in small letters: runs of letters, digits and underscores; no stop words, no stemming.

    Text is brought to Unicode's NFKC first, so that one word written in two ways is one term.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.casefold())


@dataclass(frozen=True)
class Tokeniser:
    """How a text becomes terms: the words of `tokens`, and perhaps their stems."""

    stem: Literal["none", "english"] = "none"  # english: Snowball's, so that "tests" and "testing" are one term

    def __post_init__(self) -> None:
        if self.stem not in ("none", "english"):
            raise ValueError(f"stem = {self.stem!r}: there is none and english")

    @property
    def name(self) -> str:
        """What tells two rules apart, such as "words-1" or "words-1-english"."""
        return f"words-{VERSION}" if self.stem == "none" else f"words-{VERSION}-{self.stem}"

    @classmethod
    def named(cls, name: str) -> Tokeniser:
        """The tokeniser of that name; one of another version is refused."""
        for stem in ("none", "english"):
            if cls(stem).name == name:
                return cls(stem)
        raise ValueError(
            f"texts were cut into words by the rule {name!r}, and this fedrank has {cls().name!r} and "
            f"{cls('english').name!r}; count them again"
        )

    def __call__(self, text: str) -> list[str]:
        words = tokens(text)
        if self.stem == "none":
            return words
        stem = stemmer(self.stem)
        return [stem(word) for word in words]


@cache
def stemmer(language: str) -> Callable[[str], str]:
    """Snowball's stemmer of a language, from a word to its stem."""
    try:
        from Stemmer import Stemmer, algorithms  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise missing_extra(f"stem = {language!r} needs the package PyStemmer", "logs") from None
    if language not in algorithms():
        raise ValueError(
            f'no stemmer {language!r}{did_you_mean(language, algorithms())}; "none" takes words as they are'
        )
    # A stem is looked up far more often than it is made: texts repeat their words.
    return lru_cache(maxsize=1 << 18)(Stemmer(language).stemWord)

"""Tokenization: a named rule, so counts can be compared only if they were made by the same rule."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

from fedrank.extras import missing_extra
from fedrank.names import did_you_mean

VERSION = 1  # of the rule in `tokens`; counts of different versions are not comparable

STOP_WORDS = "stop_words.txt"
_WORD = re.compile(r"\w+")
_ASCII = "".join(chr(code) if _WORD.match(chr(code)) else " " for code in range(128))
_CONTRACTED = re.compile(r"\b\w+n['’]t\b|\b\w{1,2}['’](?=\w)|(?<=\w)['’]\w{1,2}\b")  # don't, l'eau, the dog's
_ACRONYM = re.compile(r"\b[A-Z]{2,}\b")


def tokens(text: str) -> list[str]:
    """Split a text into lower-case words: runs of letters, digits and underscores; no stop words, no stemming.

    Text is first normalised to Unicode NFKC, so different encodings of a word are one term.
    """
    if text.isascii():
        return text.lower().translate(_ASCII).split()  # the same, three times faster
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@dataclass(frozen=True)
class Tokeniser:
    """Splits a text into the words of `tokens`, optionally stemmed."""

    stem: Literal["none", "english"] = "none"  # english: the Snowball stemmer

    def __post_init__(self) -> None:
        if self.stem not in ("none", "english"):
            raise ValueError(f"stem must be 'none' or 'english' (got {self.stem!r})")

    @property
    def name(self) -> str:
        """The name of the rule, such as "words-1" or "words-1-english"."""
        return f"words-{VERSION}" if self.stem == "none" else f"words-{VERSION}-{self.stem}"

    @classmethod
    def named(cls, name: str) -> Tokeniser:
        """Return the tokeniser with this name; other versions are an error."""
        for stem in ("none", "english"):
            if cls(stem).name == name:
                return cls(stem)
        raise ValueError(
            f"texts were split by the rule {name!r}, but this version of fedrank has {cls().name!r} and "
            f"{cls('english').name!r}; count the words again"
        )

    def __call__(self, text: str) -> list[str]:
        words = tokens(text)
        if self.stem == "none":
            return words
        stem = stemmer(self.stem)
        return [stem(word) for word in words]


@cache
def stemmer(language: str) -> Callable[[str], str]:
    """Return Snowball's stemmer of a language."""
    try:
        from Stemmer import Stemmer, algorithms  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise missing_extra(f"stem = {language!r} needs the package PyStemmer", "logs") from None
    if language not in algorithms():
        raise ValueError(
            f'unknown stemmer {language!r}{did_you_mean(language, algorithms())}; use "none" for no stemming'
        )
    # Cached, since texts repeat their words.
    return lru_cache(maxsize=1 << 18)(Stemmer(language).stemWord)


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return the function words of a stemmer's language; empty if fedrank has no list for it."""
    text = files("fedrank.data").joinpath(STOP_WORDS).read_text(encoding="utf-8")
    lists = dict(section.split("]\n", 1) for section in text.split("\n[")[1:])
    return frozenset(lists.get({"porter": "english", "dutch_porter": "dutch"}.get(language, language), "").split())


def content_words(text: str, language: str) -> list[str]:
    """Split a query into words without function words and contractions; a query of only these keeps them all.

    An acronym such as US or IT stays in a query that is not all in capitals.

    >>> content_words("Who doesn't need an IT invoice?", "english")
    ['need', 'it', 'invoice']
    """
    stop = stop_words(language)
    if not stop:
        return tokens(text)
    kept = stop if text.isupper() else stop - {word.casefold() for word in _ACRONYM.findall(text)}
    return [word for word in tokens(_CONTRACTED.sub(" ", text)) if word not in kept] or tokens(text)

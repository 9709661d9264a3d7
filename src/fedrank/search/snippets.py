"""Snippets: the excerpt of a document that best matches the query."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from fedrank.data.live_features import FeatureSet, ForwardRow, QueryTerms
from fedrank.search.results import Snippet

WORDS = 32  # maximum length of a snippet
CHARACTERS = 400  # maximum length of a snippet; a word may be arbitrarily long
MAX_TITLE = 200  # characters of a title
FARTHEST = 60_000  # characters of the text that are searched
_WORD = re.compile(r"\w+")
_CUT = "… "


def snippet_of(text: str, row: ForwardRow, terms: QueryTerms, features: FeatureSet) -> Snippet:
    """The earliest excerpt with the most distinct query words, with these words marked."""
    body = row.words[row.title :]
    found = np.zeros(len(body), bool)
    for stem in terms.stems:
        found |= body == stem
    where = np.flatnonzero(found)
    first = max(_best_start(where, body) - 3, 0) if len(where) else 0
    start, end, number = 0, 0, -1
    spans = []
    for number, word in enumerate(_WORD.finditer(text, 0, FARTHEST)):
        if number < first:
            continue
        if number == first:
            start = word.start()
        if number >= first + WORDS or (number > first and word.end() - start > CHARACTERS):
            break
        end = word.end()
        spans.append(word.span())
    if number < first:  # the text was truncated, or its words are counted differently
        return Snippet(text[:200] + (_CUT[::-1] if len(text) > 200 else ""))
    wanted = set(terms.stems.tolist())
    end = min(end, start + CHARACTERS)
    before, behind = _CUT if first else "", _CUT[::-1] if _WORD.search(text, end) else ""
    shift = len(before) - start
    marked = tuple((a + shift, min(b, end) + shift) for a, b in spans if _stem(features, text[a:b]) in wanted)
    return Snippet(before + text[start:end].replace("\n", " ") + behind, marked)


def marked_title(title: str, terms: QueryTerms, features: FeatureSet) -> Snippet:
    """The beginning of a title, with the query's words marked."""
    text = title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…"
    wanted = set(terms.stems.tolist())
    spans = (word.span() for word in _WORD.finditer(text))
    return Snippet(text, tuple((a, b) for a, b in spans if _stem(features, text[a:b]) in wanted))


def _best_start(where: np.ndarray, body: np.ndarray) -> int:
    best, most = int(where[0]), 0
    for at in where[:200].tolist():
        inside = where[(where >= at) & (where < at + WORDS - 3)]
        different = len(set(body[inside].tolist()))
        if different > most:
            best, most = at, different
    return best


@lru_cache(maxsize=1 << 16)
def _stem(features: FeatureSet, word: str) -> int:
    stems = features.query(word).stems
    return int(stems[0]) if len(stems) == 1 else -1

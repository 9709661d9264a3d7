"""Generate synthetic documents and queries with Zipf-distributed words, topics, titles and relevance judgements.

As in a real collection, a few words occur everywhere and many in few documents, and relevant documents share the topic
of a query even if they share few of its words.
"""

from __future__ import annotations

import numpy as np

from fedrank import kernels
from fedrank.data.collection import Collection
from fedrank.data.documents import Documents
from fedrank.seeds import rng_for

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
_GENERAL, _ABOUT = 2000, 60  # numbers of general words, and of words per topic
_ON_TOPIC = 0.4  # share of a text's words that are about its topics


def synthetic_collection(
    documents: int = 1200, queries: int = 240, seed: int = 1, *, topics: int = 24, length: int = 60
) -> Collection:
    """Generate documents of one or two topics, and queries with relevance judgements.

    A document whose main topic is that of the query has label 2, one with it as second topic label 1; a document
    without any of the query's words has a label lower by 1.
    """
    for name, value in (("documents", documents), ("queries", queries), ("topics", topics), ("length", length)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1 (got {value})")
    rng = rng_for(seed, "synthetic silos")
    general, about = _words(topics, rng)
    main = rng.integers(topics, size=documents)
    side = rng.integers(topics, size=documents)
    titles, texts = [], []
    for first, second in zip(main, side, strict=True):
        titles.append(" ".join(draw_words(about[first], int(rng.integers(2, 5)), rng)))
        size = int(kernels.elementary.exp(kernels.elementary.log(float(length)) + 0.4 * rng.normal())) + 5
        own = int(rng.binomial(size, _ON_TOPIC))
        other = own // 4
        words = [
            *draw_words(about[first], own - other, rng),
            *draw_words(about[second], other, rng),
            *draw_words(general, size - own, rng),
        ]
        texts.append(" ".join(rng.permutation(words)))
    kept = [set(f"{title} {text}".split()) for title, text in zip(titles, texts, strict=True)]
    asked, grades = [], []
    for topic in rng.integers(topics, size=queries):
        words = [*draw_words(about[topic], int(rng.integers(1, 4)), rng), *draw_words(general, 1, rng)]
        asked.append(" ".join(words))
        found = {}
        on_topic = (main == topic).astype(int) + ((main == topic) | (side == topic))
        for row in np.flatnonzero(on_topic):
            grade = int(on_topic[row]) - (0 if kept[row] & set(words[:-1]) else 1)
            if grade > 0:
                found[int(row)] = grade
        grades.append(found)
    return Collection.of(
        "synthetic-silos",
        Documents([f"d{row}" for row in range(documents)], titles, texts, [""] * documents),
        [f"q{row}" for row in range(queries)],
        asked,
        grades,
    )


def _words(topics: int, rng: np.random.Generator) -> tuple[list[str], list[list[str]]]:
    """General words and the words of each topic, distinct, in order of frequency."""
    wanted = _GENERAL + topics * _ABOUT
    spelled: dict[str, None] = {}
    while len(spelled) < wanted:
        sizes, parts = rng.integers(2, 5, size=wanted), rng.integers(len(SYLLABLES), size=(wanted, 4))
        spelled |= {"".join(SYLLABLES[i] for i in row[:size]): None for row, size in zip(parts, sizes, strict=True)}
    words = list(spelled)
    return words[:_GENERAL], [words[start : start + _ABOUT] for start in range(_GENERAL, wanted, _ABOUT)]


def draw_words(words: list[str], count: int, rng: np.random.Generator) -> list[str]:
    """Draw words approximately by Zipf's law: frequency 1 / r for rank r."""
    ranks = kernels.elementary.exp_each(rng.random(count) * kernels.elementary.log(len(words))).astype(int) - 1
    return [words[rank] for rank in np.minimum(ranks, len(words) - 1)]

"""The one index of terms: against counting word by word."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.text import Tokeniser
from fedrank.silo.terms import TermCounts

TEXTS = st.lists(st.lists(st.sampled_from("abcde"), max_size=6), max_size=6)


@settings(deadline=None, max_examples=80)
@given(TEXTS, st.lists(st.sampled_from("abcdex"), max_size=4, unique=True), st.randoms(use_true_random=False))
def test_every_number_is_that_of_counting(texts: list[list[str]], terms: list[str], rng) -> None:
    chosen = rng.sample(range(len(texts)), rng.randint(0, len(texts)))
    whole = TermCounts.of(map(" ".join, texts), Tokeniser())
    for index, kept in (
        (whole, texts),
        (whole.rows(np.array(chosen, dtype=np.int64)), [texts[row] for row in chosen]),
    ):
        counted = [Counter(text) for text in kept]
        assert len(index) == len(kept)
        assert index.count_matrix(terms).tolist() == [[one[term] for term in terms] for one in counted]
        assert index.lengths.tolist() == [len(text) for text in kept]
        assert index.squares.tolist() == [sum(count**2 for count in one.values()) for one in counted]
        frequencies = [sum(term in one for one in counted) for term in terms]
        about = index.background(terms)
        assert (about.documents, about.words) == (len(kept), sum(map(len, kept)))
        assert about.frequencies.tolist() == frequencies
        assert index.as_document().count_matrix(terms).tolist() == [frequencies]


def test_terms_are_numbered_as_they_come() -> None:
    index = TermCounts.of(["b a b", "", "c"], Tokeniser())
    assert index.vocabulary == ["b", "a", "c"]
    assert index.columns == {"b": 0, "a": 1, "c": 2}
    assert index.rows(np.array([2, 0])).count_matrix(["b", "c"]).tolist() == [[0, 1], [2, 0]]

"""Made-up texts: Zipf's law holds, chance has a name, and relevant documents share a query's words or topic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import tokens
from tests.made_up import zipf_documents


def test_every_document_has_its_words_each_once_and_in_order() -> None:
    offsets, terms, counts = zipf_documents(1500, 40, 300, seed=3)  # more than one block
    assert len(offsets) == 1501
    assert offsets[0] == 0
    assert offsets[-1] == len(terms) == len(counts)
    assert np.add.reduceat(counts, offsets[:-1]).tolist() == [40] * 1500
    for first, last in itertools.pairwise(offsets):
        assert np.all(np.diff(terms[first:last]) > 0)
    assert terms.min() >= 0
    assert terms.max() < 300


def test_words_are_drawn_by_zipfs_law() -> None:
    _, terms, counts = zipf_documents(2000, 100, 50, seed=1)
    share = np.bincount(terms, weights=counts, minlength=50) / 200_000
    law = 1 / np.arange(1, 51)
    # The deviation of a share is at most sqrt(1/4 / 200,000) = 0.0011.
    np.testing.assert_allclose(share, law / law.sum(), atol=0.005)


def test_first_documents_do_not_depend_on_how_many_follow() -> None:
    few, many = zipf_documents(1024, 10, 50, seed=2), zipf_documents(1030, 10, 50, seed=2)
    assert np.array_equal(few[1], many[1][: len(few[1])])
    assert not np.array_equal(few[1][:50], zipf_documents(1024, 10, 50, seed=4)[1][:50])


@pytest.mark.parametrize("wrong", [{"n": 0}, {"terms": 0}, {"vocabulary": 0}])
def test_nothing_to_draw_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        zipf_documents(**({"n": 1, "terms": 1, "vocabulary": 1} | wrong), seed=1)


def test_a_collection_is_the_same_for_the_same_seed_only() -> None:
    one, same, other = (synthetic_collection(60, 10, seed) for seed in (1, 1, 2))
    assert one.documents == same.documents
    assert one.queries == same.queries
    assert np.array_equal(one.judged, same.judged)
    assert one.documents != other.documents


def test_what_has_grade_two_holds_a_word_of_the_query() -> None:
    made = synthetic_collection(200, 20, seed=1)
    seen = 0
    for query, text in enumerate(made.queries):
        rows, grades = made.judgements(query)
        for row in rows[grades == 2]:
            assert set(tokens(text)) & set(tokens(f"{made.documents.title[row]} {made.documents.text[row]}"))
            seen += 1
    assert seen > 20
    assert set(np.unique(made.grades)) == {1, 2}


def test_an_empty_collection_is_refused() -> None:
    with pytest.raises(ValueError, match="documents must be at least 1"):
        synthetic_collection(0)

"""Making organisations from a collection: who holds what, which candidates and grades a query gets."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.collection import Collection
from fedrank.data.documents import Documents
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.silo.silos import BEST, GOOD, OTHERS, SilosRule, make_silos

COLLECTION = synthetic_collection(120, 40, seed=1, topics=6, length=20)


def collection_of(texts: list[str], queries: list[str], grades: list[dict[int, int]]) -> Collection:
    documents = Documents([f"d{row}" for row in range(len(texts))], [""] * len(texts), texts, [""] * len(texts))
    return Collection.of("made up", documents, [f"q{row}" for row in range(len(queries))], queries, grades)


@pytest.mark.parametrize("split", ["random", "topics"])
def test_every_document_and_query_has_one_silo(split: str) -> None:
    silos = make_silos(COLLECTION, SilosRule(3, split), Tokeniser(), seed=1)  # type: ignore[arg-type]
    assert sum(silo.documents for silo in silos) == 120
    words = sum(silo.fields["body"].lengths.sum() for silo in silos)
    assert words == sum(len(text.split()) for text in COLLECTION.documents.text)
    asked = [question.id for silo in silos for question in (*silo.train, *silo.test)]
    assert len(asked) == len(set(asked))
    for silo in silos:
        assert silo.train
        assert silo.test
        for question in silo.train:
            assert question.grades.any()
            assert len(set(question.terms)) == len(question.terms)
            assert question.candidates.max() < silo.documents


def test_a_split_by_topics_keeps_answers_nearer_to_their_queries_than_chance() -> None:
    def at_home(split: str) -> float:
        silos = make_silos(COLLECTION, SilosRule(3, split), Tokeniser(), seed=1)  # type: ignore[arg-type]
        return sum(int(np.count_nonzero(one.grades)) for silo in silos for one in (*silo.train, *silo.test))

    assert at_home("topics") > 1.5 * at_home("random")


def test_no_more_queries_than_asked_for_and_the_test_stays() -> None:
    all_of_them = make_silos(COLLECTION, SilosRule(2), Tokeniser(), seed=1)
    for silo, whole in zip(
        make_silos(COLLECTION, SilosRule(2, queries=4), Tokeniser(), seed=1), all_of_them, strict=True
    ):
        assert [one.id for one in silo.train] == [one.id for one in whole.train[:4]]
        assert [one.id for one in silo.test] == [one.id for one in whole.test]
        assert 3 * len(whole.test) - 3 <= len(whole.train) <= 3 * len(whole.test) + 3


def test_ranks_become_grades_as_in_the_paper() -> None:
    """Documents 0 .. 129 hold the word 130 .. 1 times among as many others: their order is known."""
    texts = ["word " * (130 - row) + "other " * row for row in range(130)] + ["other " * 130] * 60
    made = collection_of(texts, ["word", "word nowhere"], [{0: 1}, {0: 1}])
    (silo,) = make_silos(made, SilosRule(1, labels="ranks"), Tokeniser(), seed=1)
    question = silo.train[0]
    assert len(question.candidates) == GOOD + OTHERS
    expected = [2 if row < BEST else 1 if row < GOOD else 0 for row in question.candidates]
    assert question.grades.tolist() == expected
    assert set(range(GOOD)) <= set(question.candidates.tolist())


def test_judgements_are_those_of_the_own_documents() -> None:
    made = collection_of(["cat", "dog", "cat dog", "bird"], ["cat", "dog"], [{0: 3, 3: 1}, {1: 2}])
    (silo,) = make_silos(made, SilosRule(1), Tokeniser(), seed=1)
    found = {
        one.id: dict(zip(one.candidates.tolist(), one.grades.tolist(), strict=True)) for one in silo.train + silo.test
    }
    assert found == {"q0": {0: 3, 1: 0, 2: 0, 3: 1}, "q1": {0: 0, 1: 2, 2: 0, 3: 0}}


def test_too_many_silos_are_refused() -> None:
    made = collection_of(["cat", "dog"], ["cat", "dog"], [{0: 1}, {1: 1}])
    with pytest.raises(ValueError, match="2 documents are too few for 3 silos"):
        make_silos(made, SilosRule(3), Tokeniser(), seed=1)
    with pytest.raises(ValueError, match="use fewer silos"):
        make_silos(made, SilosRule(2), Tokeniser(), seed=1)
    with pytest.raises(ValueError, match="queries must be at least 1"):
        SilosRule(queries=0)

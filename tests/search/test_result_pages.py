"""Pages, documents and explanations, read from a store."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrank.data.live_features import LIVE_1
from fedrank.search.impressions import Clicked
from fedrank.search.lists import ResultLists
from fedrank.search.result_pages import ResultPages, count_pages, explain
from fedrank.search.results import Gone, NotFound
from tests.search.made_up import Clock
from tests.search.stored import candidates, query, stored

TEXTS = [f"Row {n} of the orchard grows apple trees." for n in range(12)]


@pytest.fixture
def rows(tmp_path):
    made = stored(tmp_path, TEXTS)
    yield made
    made.store.close()


@pytest.fixture
def one(rows):
    clock = Clock()
    return ResultLists(rows).add(query("orchard apple", clock), *candidates(12))


@pytest.fixture
def pages(rows):
    return ResultPages(rows.store, LIVE_1)


def test_a_page_shows_its_places_with_what_was_clicked(pages, one):
    clicks = [Clicked(2, 5, 0.0, bounced=False), Clicked(4, 6, 0.0, bounced=True)]
    shown = pages.page(one, 1, clicks)
    assert count_pages(one) == shown.pages == 2
    assert [result.position for result in shown.results] == list(range(10))
    assert [result.position for result in shown.results if result.clicked] == [2]
    assert [result.id for result in shown.results] == one.candidates[one.shown].tolist()
    assert "orchard" in shown.results[0].snippet.text
    assert pages.page(one, 2, ()).results == ()  # nobody has drawn it yet


def test_a_document_that_was_removed_leaves_its_place(pages, one):
    gone = int(one.candidates[one.shown[3]])
    with pages.store.writing():
        pages.store.remove([gone])
    results = pages.page(one, 1, ()).results
    assert [result.position for result in results if result.gone] == [3]


def test_a_document_knows_its_original(pages):
    found = pages.document(2)
    assert (found.original, found.text) == ("/desk/2.txt", TEXTS[1])


@pytest.mark.parametrize("id", [0, -1, 13, 10**21])
def test_what_is_no_document_is_not_found(pages, id):
    with pytest.raises(NotFound, match="no document"):
        pages.document(id)


def test_causes_of_a_list_add_up_to_differences_of_scores(rows, pages, one):
    found = explain(rows, one, pages.results(one, range(len(one.shown)), ()))
    assert [each.result.position for each in found] == list(range(10))
    sums = np.array([sum(cause.share for cause in each.causes) for each in found])
    scores = np.array([each.score for each in found])
    np.testing.assert_allclose(sums - sums[0], scores - scores[0], atol=1e-5)
    sizes = [abs(cause.share) for cause in found[0].causes]
    assert sizes == sorted(sizes, reverse=True)


def test_the_rule_for_the_engines_two_best_results_is_a_cause(rows, pages, one, monkeypatch):
    monkeypatch.setattr(rows, "weights", lambda: -np.eye(len(LIVE_1.names))[0])
    found = explain(rows, one, pages.results(one, range(len(one.shown)), ()))
    kept = {e.engine_position for e in found for c in e.causes if c.feature == "best of the engine" and c.value}
    assert kept == {0, 1}
    assert [each.model_position for each in sorted(found, key=lambda each: each.engine_position)][:2] == [0, 1]


def test_a_list_whose_features_were_dropped_cannot_be_explained(rows, one):
    with pytest.raises(Gone, match="because it is old"):
        explain(rows, replace(one, raw=None), ())
    nothing = replace(one, candidates=one.candidates[:0], shown=one.shown[:0])
    assert explain(rows, nothing, ()) == ()

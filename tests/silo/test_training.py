"""Finding documents in other silos, and the four ways to train."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any

import numpy as np
import pytest

from fedrank.data.ranking import RankingData
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.federated.clients import make_clients
from fedrank.federated.partition import Users
from fedrank.ranking.measures import evaluate
from fedrank.silo.features import FIELDS, features
from fedrank.silo.partners import Exact, Partner, SiloSketch, Sketched, sketch_fields
from fedrank.silo.rtk import TopKRule
from fedrank.silo.silos import Silo, SiloQuery, SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from fedrank.silo.training import (
    PARAMETERS,
    SILO_METHODS,
    CrossSilo,
    Global,
    Local,
    LocalPlus,
    backgrounds,
    bm25,
    matches,
    sgd,
    silo_lists,
)

COLLECTION = synthetic_collection(120, 40, seed=1, topics=6, length=20)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def silos() -> list[Silo]:
    return make_silos(COLLECTION, SilosRule(3), Tokeniser(), seed=1)


def sketch(silo: Silo, sketcher: Sketcher, k: int) -> SiloSketch:
    return sketch_fields(silo.fields, sketcher, TopKRule(k=k), KEY)


@pytest.fixture(scope="module")
def sketched(silos: list[Silo]) -> list[Partner]:
    return [Sketched(sketch(silo, Sketcher(width=512, depth=11), 40), KEY) for silo in silos]


def exact(silos: list[Silo], k: int) -> list[Partner]:
    return [Exact(silo, k) for silo in silos]


def test_exact_answers_are_the_documents_that_hold_a_term_most_often(silos: list[Silo]) -> None:
    body = silos[1].fields["body"]
    term = max(body.vocabulary, key=lambda t: body.count_matrix([t]).sum())
    held = body.count_matrix([term])[:, 0]
    told = Exact(silos[1], 5).counts([term])
    found = told.counts["body"][:, 0] > 0
    assert sorted(told.counts["body"][found, 0]) == sorted(held)[-5:]
    assert told.counts["body"][found, 0].tolist() == held[told.documents[found]].tolist()
    assert told.lengths["body"].tolist() == body.lengths[told.documents].tolist()
    assert len(Exact(silos[1], 5).counts(["zebra"]).documents) == 0


def test_the_federation_knows_how_many_documents_hold_a_term(silos: list[Silo], sketched: list[Partner]) -> None:
    terms = silos[0].train[0].terms
    whole = sum(np.count_nonzero(silo.fields["body"].count_matrix(terms), axis=0) for silo in silos)
    for partners in (exact(silos, 5), sketched):
        found = backgrounds(silos[0], partners[1:], terms)["body"]
        assert found.frequencies.tolist() == whole.tolist()
        assert found.documents == 120
        assert found.words == sum(silo.fields["body"].lengths.sum() for silo in silos)


@pytest.mark.parametrize("kind", ["count-sketch", "count-min"])
def test_frequencies_of_several_partners_are_added_row_by_row(silos: list[Silo], kind: str) -> None:
    """Narrow sketches err; the median, or the smallest, is taken of sums over partners, as if there were one sketch."""
    narrow = Sketcher(kind, width=16, depth=5)
    partners = [Sketched(sketch(silo, narrow, 10), KEY) for silo in silos[1:]]
    terms = silos[0].train[0].terms
    rows = sum(partner.frequencies(terms)["body"] for partner in partners)
    middle = rows.min(axis=1) if kind == "count-min" else np.median(rows, axis=1)
    own = silos[0].fields["body"].background(terms).frequencies
    assert backgrounds(silos[0], partners, terms)["body"].frequencies.tolist() == (own + middle).tolist()


def test_matches_are_the_best_by_bm25_of_all_other_documents(silos: list[Silo]) -> None:
    """With k as large as a silo every document is found, so that a full scan tells the answer."""
    partners = exact(silos[:2], 120)
    for query in silos[2].train[:3]:
        about = backgrounds(silos[2], partners, query.terms)
        found = matches(partners, query.terms, about, 7)
        best: list[float] = []
        for silo in silos[:2]:
            counts = {field: silo.fields[field].count_matrix(query.terms) for field in FIELDS}
            best += bm25(features(counts, {field: silo.fields[field].lengths for field in FIELDS}, about)).tolist()
        expected = [score for score in sorted(best, reverse=True)[:7] if score > 0]
        assert bm25(found.features).tolist() == pytest.approx(expected)
        assert set(found.partners.tolist()) <= {0, 1}


def test_wide_sketches_without_noise_find_what_counting_finds(silos: list[Silo], sketched: list[Partner]) -> None:
    for query in silos[0].train:
        one, other = (
            matches(partners[1:], query.terms, backgrounds(silos[0], partners[1:], query.terms), 10)
            for partners in (exact(silos, 40), sketched)
        )
        np.testing.assert_array_equal(one.features, other.features)


def test_a_small_silo_takes_no_room_for_documents_that_it_does_not_have(silos: list[Silo]) -> None:
    made = sketch(silos[0], Sketcher(width=64, depth=5), 150)
    assert made.fields["body"].documents.shape[-1] == silos[0].documents
    body = silos[0].fields["body"]
    term = max(body.vocabulary, key=lambda t: body.count_matrix([t]).max())
    often = np.flatnonzero(body.count_matrix([term])[:, 0] >= 3)
    assert set(Sketched(made, KEY).counts([term]).documents.tolist()) >= set(often.tolist())
    assert len(often) > 0


@pytest.mark.parametrize("terms", [(), ("zebra",)])
def test_a_query_without_known_terms_finds_nothing(
    terms: tuple[str, ...], silos: list[Silo], sketched: list[Partner]
) -> None:
    for partners in (exact(silos, 5), sketched):
        about = backgrounds(silos[0], partners[1:], terms)
        assert matches(partners[1:], terms, about, 5).features.shape == (0, 16)
    query = replace(silos[0].train[0], terms=terms)
    alone = [replace(silos[0], train=(query,)), *silos[1:]]
    assert LocalPlus(counts="exact", k=5).lists(alone, 1).train[0].documents == len(query.candidates)


def test_a_silo_without_titles_is_asked_like_any_other(silos: list[Silo]) -> None:
    """What it does not have counts as empty."""
    bodies = {"body": silos[1].fields["body"]}
    partner = Sketched(sketch_fields(bodies, Sketcher(width=64, depth=5), TopKRule(k=40), KEY), KEY)
    terms = silos[0].train[0].terms
    told = partner.counts(terms)
    assert not told.lengths["title"].any()
    assert not told.counts["title"].any()
    assert partner.words["title"] == 0
    own = silos[0].fields["title"].background(terms).frequencies
    assert backgrounds(silos[0], [partner], terms)["title"].frequencies.tolist() == own.tolist()
    assert silo_lists(silos[0], [partner], 5, 2).added > 0


def test_documents_that_are_added_are_as_if_they_had_always_been_there(silos: list[Silo]) -> None:
    fields, sketcher = silos[0].fields, Sketcher(width=32, depth=5)
    first, rest = np.arange(10), np.arange(10, silos[0].documents)
    part = sketch_fields({name: one.rows(first) for name, one in fields.items()}, sketcher, TopKRule(k=5), KEY)
    more = {name: one.rows(rest) for name, one in fields.items()}
    grown, whole = (
        sketch_fields(more, sketcher, TopKRule(k=5), KEY, onto=part),
        sketch_fields(fields, sketcher, TopKRule(k=5), KEY),
    )
    for name in FIELDS:
        np.testing.assert_array_equal(grown.fields[name].documents, whole.fields[name].documents)
        np.testing.assert_array_equal(grown.lengths[name], whole.lengths[name])
        np.testing.assert_array_equal(grown.frequencies[name], whole.frequencies[name])


def test_noise_is_on_documents_and_on_frequencies(silos: list[Silo]) -> None:
    noised, plain = (sketch(silos[0], Sketcher(width=64, depth=5, noise=noise), 10) for noise in (2.0, 0.0))
    for field in FIELDS:
        off = noised.frequencies[field] - plain.frequencies[field].astype(float)
        # 2 x σ1 x sqrt(z); the estimate of a deviation from 5 x 4096 cells is within 3 %.
        assert off.std() == pytest.approx(2 * 2.0 * 5**0.5, rel=0.03)


def test_one_step_by_hand() -> None:
    """From weights 1 and bias 0: two rows in one batch, errors sigmoid(2) - 1 and sigmoid(0) - 0."""
    errors = 1 / (1 + exp(-2)) - 1, 1 / 2
    after = sgd(
        np.array([1.0, 0.0]),
        np.array([[2.0], [0.0]], np.float32),
        np.array([1.0, 0.0]),
        0.5,
        2,
        np.random.default_rng(1),
    )
    assert after.tolist() == pytest.approx([1 - 0.5 / 2 * 2 * errors[0], -0.5 / 2 * sum(errors)])


def test_sgd_survives_weights_that_are_far_off() -> None:
    rows = np.array([[1.0]], np.float32)
    assert np.isfinite(sgd(np.array([1e6, 1e6]), rows, np.array([0.0]), 0.1, 1, np.random.default_rng(1))).all()


def test_found_documents_are_graded_as_often_as_own_ones_of_the_same_standing(silos: list[Silo]) -> None:
    """All of grade 1, they teach where a document lies, which is no reason to rank it high."""
    own, more = Local().lists(silos, 1), LocalPlus(counts="exact", k=20).lists(silos, 1)
    for before, after, silo in zip(own.train, more.train, silos, strict=True):
        shares = []
        for query, question in enumerate(silo.train):
            start, kept = after.offsets[query], len(question.candidates)
            found = after.grades[start + kept : after.offsets[query + 1]]
            assert np.all(np.diff(found) <= 0), "the best by BM25 have the highest grades"
            shares.append(np.mean(found > 0))
        scores, best = bm25(before.features), []
        for start, end in zip(before.offsets[:-1], before.offsets[1:], strict=True):
            first = np.argsort(-scores[start:end], kind="stable")[:10]  # 20 of two partners
            best += (before.grades[start:end][first] > 0).tolist()
        assert np.mean(shares) == pytest.approx(np.mean(best), abs=0.1)
        assert np.mean(shares) < 0.9


@pytest.mark.long
def test_found_documents_do_not_outweigh_what_people_judged() -> None:
    """Of vaswani, cross-silo had .25 where every document's BM25 has .38: one relevant in thirty, 150 guessed."""
    made = synthetic_collection(600, 60, seed=1, topics=12, length=30)
    silos = make_silos(made, SilosRule(3), Tokeniser(), seed=1)
    sparse = [replace(silo, train=tuple(_with_one_relevant(query) for query in silo.train)) for silo in silos]
    quality = {}
    for grades in ("one", "like-own"):
        method = CrossSilo(counts="exact", k=120, grades=grades)
        lists, weights = method.lists(sparse, 1), method.first(3)
        for round in range(1, 21):
            weights = method.step(weights, lists, round, 1)
        test = RankingData.join(lists.test)
        quality[grades] = evaluate(["ndcg@10"], test.features @ weights[:-1].astype(np.float32), test)[0]
    assert quality["like-own"] > quality["one"] + 0.02


def _with_one_relevant(query: SiloQuery) -> SiloQuery:
    grades = np.zeros_like(query.grades)
    grades[query.grades.argmax()] = 1
    return replace(query, grades=grades)


def test_augmented_documents_may_have_grade_one_and_the_rest_stays(silos: list[Silo]) -> None:
    own, more = Local().lists(silos, 1), LocalPlus(counts="exact", k=6, grades="one").lists(silos, 1)
    assert own.added.tolist() == [0, 0, 0]
    assert own.bytes == 0
    assert more.added.min() > 0
    for before, after, silo in zip(own.train, more.train, silos, strict=True):
        for query, question in enumerate(silo.train):
            grades = after.grades[after.offsets[query] : after.offsets[query + 1]]
            kept = len(question.candidates)
            assert grades[:kept].tolist() == question.grades.tolist()
            assert grades[kept:].tolist() == [1] * (len(grades) - kept)
            assert len(grades) - kept <= 6
        assert after.documents - before.documents == more.added[silo.number]
        assert after.features.min() == 0
        assert after.features.max() == 1
    for before, after in zip(own.test, more.test, strict=True):
        assert np.array_equal(before.grades, after.grades)


def test_sketches_cost_bytes(silos: list[Silo]) -> None:
    method = LocalPlus(noise=0.0, width=128, depth=5, k=6)
    lists = method.lists(silos, 1)
    terms = 2 * 2 * sum(len(one.terms) for silo in silos for one in silo.train)  # two others, two fields
    counters = 3 * 2 * 5 * 4096 * 4
    assert 0 < lists.bytes - terms * 5 * 5 - counters <= terms * 6 * 8


def test_found_documents_are_measured_by_the_own_ones_of_a_list(silos: list[Silo]) -> None:
    """A document of a training list has the features that it would have in a test list: nobody else changes them."""
    partners = exact(silos, 20)[1:]
    own = replace(silos[0], test=silos[0].train)  # the same lists, once to train on and once to be tested on
    lists = silo_lists(own, partners, 20, 2)
    together = silo_lists(own, partners, 20, 2, scaling="together")
    assert lists.added > 0
    changed = 0
    for place, query in enumerate(own.train):
        kept = len(query.candidates)
        here = slice(lists.train.offsets[place], lists.train.offsets[place] + kept)
        there = slice(lists.test.offsets[place], lists.test.offsets[place + 1])
        np.testing.assert_array_equal(lists.train.features[here], lists.test.features[there])
        changed += not np.array_equal(together.train.features[here], lists.test.features[there])
    assert changed, "scaled together with found documents, own ones move"
    assert lists.train.features.min() == 0
    assert lists.train.features.max() == 1
    assert lists.train.normalised == lists.test.normalised == "query"


def test_the_share_of_others_documents_says_how_many_a_query_finds(silos: list[Silo]) -> None:
    """40 documents each: a tenth of the others' 80 are 8, and of the paper's 3 x 36,400 documents 150 are .00137."""
    method = LocalPlus(counts="exact", k_share=0.1)
    assert method.most(silos) == [8, 8, 8]
    lists = method.lists(silos, 1)
    same = LocalPlus(counts="exact", k=8).lists(silos, 1)
    assert lists.added.tolist() == same.added.tolist()
    assert LocalPlus(k_share=1e-9).most(silos) == [1, 1, 1], "never none"
    told = LocalPlus(counts="exact", k_share=0.0).lists(silos, 1)
    assert told.added.tolist() == [0, 0, 0], "but of 0 none: silos tell how many documents hold a word, no more"
    np.testing.assert_array_equal(told.test[0].features, same.test[0].features)
    assert not np.array_equal(told.train[0].features, Local().lists(silos, 1).train[0].features)
    assert round(0.00137 * 3 * 36_400) == 150


@pytest.mark.parametrize("name", ["local", "global"])
def test_steps_are_those_of_a_model_however_many_documents_there_are(name: str, silos: list[Silo]) -> None:
    method = SILO_METHODS[name](batch=8, steps=10)  # type: ignore[call-arg]
    lists, taken = method.lists(silos, 1), []

    def counted(*given: Any) -> Any:
        taken.append(given[-1])
        return sgd(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedrank.silo.training.sgd", counted)
        method.step(method.first(3), lists, 1, 1)
    assert taken == ([10, 10, 10] if name == "local" else [3, 3, 4])
    assert method.trained_on(lists) == (240 if name == "local" else 80)
    assert Local().trained_on(lists) == sum(data.documents for data in lists.train)


def test_steps_begin_another_pass_where_one_is_not_enough() -> None:
    """Two rows, batches of one, three steps: one pass, and the first row of another."""
    rows, targets = np.array([[1.0], [2.0]], np.float32), np.array([1.0, 0.0])
    rng = np.random.default_rng(3)
    order = [*rng.permutation(2), *rng.permutation(2)][:3]
    weights = [0.0, 0.0]
    for row in order:
        x = float(rows[row, 0])
        error = 1 / (1 + exp(-(weights[0] * x + weights[1]))) - targets[row]
        weights = [weights[0] - 0.5 * error * x, weights[1] - 0.5 * error]
    after = sgd(np.zeros(2), rows, targets, 0.5, 1, np.random.default_rng(3), 3)
    assert after.tolist() == pytest.approx(weights)
    assert sgd(np.ones(2), rows, targets, 0.5, 1, np.random.default_rng(3), 0).tolist() == [1, 1]


@pytest.mark.parametrize(
    "settings",
    [
        {"noise_in": "paper"},
        {"noise_in": "lookup"},
        {"true_rows": 3, "noise": 0.0},
        {"find": "published", "noise": 0.0},
    ],
)
def test_published_ways_to_ask_can_be_trained_with(settings: dict[str, Any], silos: list[Silo]) -> None:
    method = CrossSilo(width=128, depth=5, k=6, **settings)
    lists = method.lists(silos, 1)
    plain = CrossSilo(width=128, depth=5, k=6, noise=0.0).lists(silos, 1)
    assert lists.added.min() > 0
    assert lists.looked_up == plain.looked_up
    features = np.concatenate([data.features for data in lists.train])
    assert np.isfinite(features).all()
    assert not np.array_equal(features, np.concatenate([data.features for data in plain.train]))
    numbers = 1 if settings.get("noise_in") == "lookup" or "find" in settings else 5
    counters = 0 if settings.get("noise_in") == "lookup" else 3 * 2 * 5 * 4096 * 4
    assert lists.bytes == lists.looked_up * 5 * 5 + lists.answers * (4 + 4 * numbers) + counters


def test_those_who_take_no_part_are_tested_on_and_teach_nothing() -> None:
    some, all_of_them = (make_silos(COLLECTION, rule, Tokeniser(), 1) for rule in (SilosRule(2, of=3), SilosRule(3)))
    assert [len(silo.train) > 0 for silo in some] == [True, True, False]
    for one, other in zip(some, all_of_them, strict=True):
        assert [query.id for query in one.test] == [query.id for query in other.test]
        assert one.documents == other.documents
    for method in (Local(), CrossSilo(counts="exact", k=6)):
        lists = method.lists(some, 1)
        assert (len(lists.train), len(lists.test), len(lists.added)) == (2, 3, 2)
        outside = Local().lists(all_of_them, 1).test[2]
        np.testing.assert_array_equal(lists.test[2].features, outside.features)
    alone = make_silos(COLLECTION, SilosRule(1, of=3), Tokeniser(), 1)
    one, other = (method.lists(alone, 1).train[0] for method in (Local(), CrossSilo(counts="exact", k=6)))
    np.testing.assert_array_equal(one.features, other.features)


@pytest.mark.parametrize("name", SILO_METHODS)
def test_every_method_learns(name: str, silos: list[Silo]) -> None:
    method = SILO_METHODS[name]()
    if isinstance(method, LocalPlus):
        method = replace(method, counts="exact", k=6)
    lists = method.lists(silos, 1)
    weights = method.first(3)
    assert weights.shape == ((3, PARAMETERS) if name.startswith("local") else (PARAMETERS,))
    for round in range(1, 6):
        weights = method.step(weights, lists, round, 1)
    test = RankingData.join(lists.test)
    rows = np.atleast_2d(weights)[:, :-1].astype(np.float32) @ test.features.T
    nothing = evaluate(["ndcg@10"], np.zeros(test.documents), test)[0]
    assert evaluate(["ndcg@10"], rows, test).mean() > nothing + 0.2


def test_silos_alone_and_together(silos: list[Silo]) -> None:
    lists = Local().lists(silos, 1)
    alone = Local().step(Local().first(3), lists, 1, 1)
    for silo in range(3):
        assert np.array_equal(alone[silo], Local().train(np.zeros(PARAMETERS), lists.train[silo], silo, 1, 1))
    turns = np.zeros(PARAMETERS)
    for silo in (1, 2, 0):  # round 1 begins with silo 1
        turns = Local().train(turns, lists.train[silo], silo, 1, 1)
    assert np.array_equal(Global().step(np.zeros(PARAMETERS), lists, 1, 1), turns)
    sizes = [data.documents for data in lists.train]
    mean = Global(combine="mean").step(np.zeros(PARAMETERS), lists, 1, 1)
    np.testing.assert_allclose(mean, np.average(alone, axis=0, weights=sizes), rtol=1e-5, atol=1e-6)


def test_lists_feed_other_learners(silos: list[Silo]) -> None:
    lists = CrossSilo(counts="exact", k=6).lists(silos, 1)
    joined = lists.joined()
    clients = make_clients(joined, 3, partition=Users())
    held = sorted(np.diff(clients.pools).tolist())
    assert held == sorted(data.queries for data in lists.train)
    assert joined.queries == sum(held)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"batch": 0},
        {"steps": 0},
        {"k": 0},
        {"k_share": -0.1},
        {"k_share": 1.1},
        {"alpha": 0.5},
        {"width": 0},
        {"noise": -1.0},
        {"noise": 1e-9},
        {"epsilon": 0.0},
        {"true_rows": 0},
        {"true_rows": 31},
        {"true_rows": 3, "noise_in": "lookup"},
        {"counts": "exact", "noise_in": "paper"},
        {"counts": "exact", "true_rows": 3},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        CrossSilo(**wrong)

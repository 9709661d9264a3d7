"""Finding documents in other silos, and the four ways to train."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf

import numpy as np
import pytest

from fedrank.data.ranking import RankingData
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.federate.clients import make_clients
from fedrank.federate.partition import Users
from fedrank.protect.accounting import GaussianEvent, epsilon
from fedrank.rank.measures import evaluate
from fedrank.silo.augment import Exact, Sketched, background, matches, price, sketch_silos
from fedrank.silo.features import BM25_OF, FIELDS, features
from fedrank.silo.rtk import TopKRule
from fedrank.silo.silos import Silo, SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from fedrank.silo.training import PARAMETERS, SILO_METHODS, CrossSilo, Global, Local, LocalPlus, sgd

COLLECTION = synthetic_collection(120, 40, seed=1, topics=6, length=20)
KEY = bytes(range(32))


@pytest.fixture(scope="module")
def silos() -> list[Silo]:
    return make_silos(COLLECTION, SilosRule(3), Tokeniser(), seed=1)


@pytest.fixture(scope="module")
def sketched(silos: list[Silo]) -> Sketched:
    return sketch_silos(silos, Sketcher(width=512, depth=11), TopKRule(k=40), KEY)


def backgrounds(silos: list[Silo], knows: Exact | Sketched, querier: int, terms: tuple[str, ...]) -> dict:
    return {field: background(silos, knows, querier, field, terms) for field in FIELDS}


def test_exact_answers_are_the_documents_that_hold_a_term_most_often(silos: list[Silo]) -> None:
    term = max(silos[1].fields["body"].terms, key=lambda t: silos[1].fields["body"].counts([t]).sum())
    held = silos[1].fields["body"].counts([term])[:, 0]
    ((rows, counts),) = Exact(silos, 5).find(1, "body", [term])
    assert counts.tolist() == sorted(held, reverse=True)[:5]
    assert held[rows].tolist() == counts.tolist()
    ((nothing, _),) = Exact(silos, 5).find(1, "body", ["zebra"])
    assert len(nothing) == 0


def test_the_federation_knows_how_many_documents_hold_a_term(silos: list[Silo], sketched: Sketched) -> None:
    terms = silos[0].train[0].terms
    whole = sum(np.count_nonzero(silo.fields["body"].counts(terms), axis=0) for silo in silos)
    for knows in (Exact(silos, 5), sketched):
        found = background(silos, knows, 0, "body", terms)
        assert found.frequencies.tolist() == whole.tolist()
        assert found.documents == 120
        assert found.words == sum(silo.fields["body"].lengths.sum() for silo in silos)


def test_matches_are_the_best_by_bm25_of_all_other_documents(silos: list[Silo]) -> None:
    """With k as large as a silo every document is found, so that a full scan tells the answer."""
    knows = Exact(silos, 120)
    for question in silos[2].train[:3]:
        about = backgrounds(silos, knows, 2, question.terms)
        found = matches(silos, knows, 2, question, about, 7)
        best: list[float] = []
        for silo in silos[:2]:
            counts = {field: silo.fields[field].counts(question.terms) for field in FIELDS}
            scores = features(counts, {field: silo.fields[field].lengths for field in FIELDS}, about)
            best += scores[:, list(BM25_OF.values())].sum(axis=1).tolist()
        expected = [score for score in sorted(best, reverse=True)[:7] if score > 0]
        assert found.features[:, list(BM25_OF.values())].sum(axis=1).tolist() == pytest.approx(expected)
        assert 2 not in found.owners


def test_wide_sketches_without_noise_find_what_counting_finds(silos: list[Silo], sketched: Sketched) -> None:
    exact = Exact(silos, 40)
    for question in silos[0].train:
        one, other = (
            matches(silos, knows, 0, question, backgrounds(silos, knows, 0, question.terms), 10)
            for knows in (exact, sketched)
        )
        np.testing.assert_array_equal(one.features, other.features)


def test_a_small_silo_takes_no_room_for_documents_that_it_does_not_have(silos: list[Silo]) -> None:
    made = sketch_silos(silos, Sketcher(width=64, depth=5), TopKRule(k=150), KEY)
    assert made.owners[0]["body"].documents.shape[-1] == silos[0].documents
    body = silos[0].fields["body"]
    term = max(body.terms, key=lambda t: body.counts([t]).max())
    often = np.flatnonzero(body.counts([term])[:, 0] >= 3)
    assert set(made.find(0, "body", [term])[0][0].tolist()) >= set(often.tolist())
    assert len(often) > 0


@pytest.mark.parametrize("terms", [(), ("zebra",)])
def test_a_query_without_known_terms_finds_nothing(
    terms: tuple[str, ...], silos: list[Silo], sketched: Sketched
) -> None:
    question = replace(silos[0].train[0], terms=terms)
    for knows in (Exact(silos, 5), sketched):
        about = backgrounds(silos, knows, 0, terms)
        assert matches(silos, knows, 0, question, about, 5).features.shape == (0, 16)
    alone = [replace(silos[0], train=(question,)), *silos[1:]]
    assert LocalPlus(counts="exact", k=5).lists(alone, 1).train[0].documents == len(question.candidates)


def test_noise_comes_from_the_sketches_and_costs_two_gaussians(silos: list[Silo]) -> None:
    noised = sketch_silos(silos[:2], Sketcher(width=64, depth=5, noise=2.0), TopKRule(k=10), KEY)
    plain = sketch_silos(silos[:2], Sketcher(width=64, depth=5), TopKRule(k=10), KEY)
    for field in FIELDS:
        off = noised.counters[0][field] - plain.counters[0][field].astype(float)
        # 2 x σ1 x sqrt(z); the estimate of a deviation from 5 x 4096 cells is within 3 %.
        assert off.std() == pytest.approx(2 * 2.0 * 5**0.5, rel=0.03)
    event = GaussianEvent(2.0)
    cost = price(Sketcher(noise=2.0), 1e-5)
    assert epsilon(event, 2, 1e-5) <= cost < epsilon(event, 2, 1e-5) + 0.01
    assert price(Sketcher(), 1e-5) == inf


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


def test_augmented_documents_have_grade_one_and_the_rest_stays(silos: list[Silo]) -> None:
    own, more = Local().lists(silos, 1), LocalPlus(counts="exact", k=6).lists(silos, 1)
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
        assert np.array_equal(alone[silo], Local().train(np.zeros(PARAMETERS), lists, silo, 1, 1))
    turns = np.zeros(PARAMETERS)
    for silo in (1, 2, 0):  # round 1 begins with silo 1
        turns = Local().train(turns, lists, silo, 1, 1)
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
    "wrong", [{"rate": 0.0}, {"batch": 0}, {"k": 0}, {"alpha": 0.5}, {"width": 0}, {"noise": -1.0}, {"noise": 1e-9}]
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        CrossSilo(**wrong)  # type: ignore[arg-type]

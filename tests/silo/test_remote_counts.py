"""Silos that are asked row by row, as published: true rows among others, and noise that is drawn with each answer."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.synthetic_text import synthetic_collection
from fedrank.data.text import Tokeniser
from fedrank.privacy.noise import SecureSource
from fedrank.silo.features import FIELDS
from fedrank.silo.partners import SiloSketch, Sketched, sketch_fields
from fedrank.silo.remote_counts import CountQuery, RemoteCounts, noised_counts, published_answers, true_rows
from fedrank.silo.rtk import COUNT_MIN, PUBLISHED, TopKRule
from fedrank.silo.silos import Silo, SilosRule, make_silos
from fedrank.silo.sketch import Sketcher
from tests.oracles import sketch as oracle

KEY = bytes(range(32))
WIDTH, DEPTH = 16, 8  # narrow, so that estimates err


@pytest.fixture(scope="module")
def silo() -> Silo:
    made = synthetic_collection(90, 40, seed=1, topics=6, length=20)
    return make_silos(made, SilosRule(3), Tokeniser(), seed=1)[0]


def sketched(silo: Silo, rule: TopKRule, kind: str = "count-sketch", noise: float = 0.0) -> SiloSketch:
    return sketch_fields(silo.fields, Sketcher(kind, WIDTH, DEPTH, noise=noise), rule, KEY)


def some_terms(silo: Silo) -> list[str]:
    return [*dict.fromkeys(term for query in silo.train[:6] for term in query.terms), "zebra"]


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (TopKRule(2.0, k=4), "count-sketch"),
        (TopKRule(2.0, k=4, missing="threshold"), "count-sketch"),
        (TopKRule(2.0, 0.3, 4, PUBLISHED.keep, PUBLISHED.missing), "count-sketch"),
        (TopKRule(2.0, 0.1, 4, COUNT_MIN.keep, COUNT_MIN.missing), "count-min"),
    ],
)
def test_with_all_rows_and_no_noise_it_answers_as_a_sketch_does(silo: Silo, rule: TopKRule, kind: str) -> None:
    sketch = sketched(silo, rule, kind)
    plain, asked = Sketched(sketch, KEY), CountQuery(sketch, KEY, DEPTH)
    for term in some_terms(silo):
        one, other = plain.counts([term]), asked.counts([term])
        np.testing.assert_array_equal(one.documents, other.documents)
        assert one.answers == other.answers
        for name in FIELDS:
            np.testing.assert_array_equal(one.counts[name], other.counts[name])
            np.testing.assert_array_equal(plain.frequencies([term])[name], asked.frequencies([term])[name])


@pytest.mark.parametrize("missing", ["zero", "absent"])
def test_some_rows_answer_like_a_sketch_that_has_no_others(silo: Silo, missing: str) -> None:
    rule = TopKRule(2.0, 0.4, 4, missing=missing)
    asked, body = CountQuery(sketched(silo, rule), KEY, 3, seed=7), silo.fields["body"]
    words = [[body.vocabulary[t] for t, n in _entries(silo, d) for _ in range(n)] for d in range(silo.documents)]
    known = {word: oracle.locate(KEY, word, DEPTH, WIDTH) for word in body.vocabulary}
    tables = {d: oracle.sketch(each, known, DEPTH, WIDTH) for d, each in enumerate(words)}
    for term in some_terms(silo)[:-1]:
        rows = true_rows(term, 3, DEPTH, 7)
        cells, signs = oracle.locate(KEY, term, DEPTH, WIDTH)
        fewest = 2  # of three rows: .4 of them, and half of them where a missing row counts 0
        expected = oracle.query(
            {d: [table[row] for row in rows] for d, table in tables.items()},
            [cells[row] for row in rows],
            [signs[row] for row in rows],
            keep="ends",
            missing=missing,
            capacity=8,
            fewest=fewest,
            k=4,
        )
        told = asked.counts([term])
        found = {
            d: told.counts["body"][place, 0] for place, d in enumerate(told.documents) if told.counts["body"][place, 0]
        }
        assert found == dict(expected)


def _entries(silo: Silo, document: int) -> list[tuple[int, int]]:
    body = silo.fields["body"]
    here = slice(body.offsets[document], body.offsets[document + 1])
    return list(zip(body.terms[here].tolist(), body.counts[here].tolist(), strict=True))


def test_a_term_keeps_its_rows_and_others_have_others() -> None:
    assert true_rows("cat", 3, 30, 1).tolist() == true_rows("cat", 3, 30, 1).tolist()
    drawn = [tuple(true_rows(f"word {i}", 3, 30, 1)) for i in range(200)]
    assert len(set(drawn)) > 150
    assert sorted(np.bincount(np.concatenate(drawn), minlength=30))[0] > 5, "every row is some term's"


def test_published_noise_is_one_draw_for_all_rows_of_a_document(silo: Silo) -> None:
    """With one document in the cells, its count is sign times (value + draw), in the middle."""
    rule = TopKRule(2.0, k=4)
    asked = CountQuery(sketched(silo, rule), KEY, DEPTH, epsilon=0.5, source=SecureSource(bytes(32)))
    term = some_terms(silo)[0]
    told = asked.counts([term])
    # The same draws by hand: the kept documents of the body's cells come first, in the order of their rows.
    top = asked.sketch.fields["body"]
    cells, signs = asked.sketch.sketcher.locate([term], asked.sketch.sketcher.hashing(KEY))
    kept: dict[int, dict[int, int]] = {}
    for row, (cell, sign) in enumerate(zip(cells[0], signs[0], strict=True)):
        end = 1 if sign < 0 else 0
        for d, value in zip(top.documents[end, row, cell], top.values[end, row, cell], strict=True):
            if d >= 0:
                kept.setdefault(int(d), {})[row] = int(value)
    draws = published_answers(np.zeros((len(kept), 1)), 0.5, SecureSource(bytes(32)))[:, 0]
    expected = {}
    for draw, d in zip(draws, sorted(kept), strict=True):
        rows = [signs[0][row] * (kept[d][row] + draw) if row in kept[d] else 0.0 for row in range(DEPTH)]
        if len(kept[d]) >= DEPTH / 2 and np.median(rows) > 0:
            expected[d] = np.median(rows)
    best = dict(sorted(expected.items(), key=lambda item: (-item[1], item[0]))[:4])
    found = {
        d: told.counts["body"][place, 0] for place, d in enumerate(told.documents) if told.counts["body"][place, 0]
    }
    assert found == best
    assert best


def test_looked_up_cells_are_those_of_the_sketches(silo: Silo) -> None:
    sketcher = Sketcher(width=WIDTH, depth=DEPTH)
    partner = RemoteCounts(silo.fields, sketcher, KEY, 5)
    terms = some_terms(silo)
    cells, _ = sketcher.locate(terms, sketcher.hashing(KEY))
    for name in FIELDS:
        whole = sketcher.sketch(silo.fields[name], sketcher.hashing(KEY))
        for each in cells:
            np.testing.assert_array_equal(partner.values(name, each), whole[:, np.arange(DEPTH), each])


@pytest.mark.long
def test_looked_up_counts_are_medians_with_noise_of_the_promised_size(silo: Silo) -> None:
    sketcher = Sketcher(width=512, depth=DEPTH)
    term = max(silo.fields["body"].vocabulary, key=lambda t: silo.fields["body"].count_matrix([t]).sum())
    true = silo.fields["body"].count_matrix([term])[:, 0]
    quiet = RemoteCounts(silo.fields, sketcher, KEY, 5, epsilon=1e4).counts([term])
    held = quiet.counts["body"][:, 0]
    assert np.round(np.sort(held)[-5:]).tolist() == np.sort(true)[-5:].tolist()
    loud = RemoteCounts(silo.fields, sketcher, KEY, silo.documents, epsilon=0.5)
    off = np.concatenate([loud.counts([term]).counts["body"][:, 0] - true for _ in range(200)])
    assert np.abs(off).mean() == pytest.approx(4.0, rel=0.05), "Laplace noise of 2 / ε: lengths are published"
    often = np.concatenate([loud.frequencies([term])["body"][0] - np.count_nonzero(true) for _ in range(2000)])
    assert np.abs(often).mean() == pytest.approx(4.0, rel=0.1)
    assert quiet.lengths["body"].tolist() == silo.fields["body"].lengths[quiet.documents].tolist()


def test_a_silo_without_titles_has_empty_ones(silo: Silo) -> None:
    bodies = {"body": silo.fields["body"]}
    sketcher = Sketcher(width=WIDTH, depth=DEPTH)
    terms = some_terms(silo)
    made = sketch_fields(bodies, sketcher, TopKRule(k=4), KEY)
    for partner in (RemoteCounts(bodies, sketcher, KEY, 4), CountQuery(made, KEY, 3)):
        told = partner.counts(terms)
        assert not told.counts["title"].any()
        assert not told.lengths["title"].any()
        assert partner.words["title"] == 0
        assert not partner.frequencies(terms)["title"].any()
        assert partner.documents == silo.documents
        assert partner.kind == "count-sketch"
        assert partner.counts([]).counts["body"].shape[1] == 0
        assert len(partner.frequencies([])["body"]) == 0


@pytest.mark.parametrize(("exact", "sensitivity"), [(True, 2), (False, 1)])
def test_lookup_noise_has_the_scale_that_is_paid_for(exact, sensitivity):
    counts = np.arange(20_000) % 7 / 2
    told = noised_counts(counts, 0.5, exact, SecureSource(bytes(32)))
    away = np.abs(told - counts)
    scale = sensitivity / 0.5
    assert away.mean() == pytest.approx(scale, rel=4 / np.sqrt(20_000))  # mean of |Laplace| is its scale
    assert np.mean(away > 2 * scale) == pytest.approx(np.exp(-2), abs=4 * np.sqrt(np.exp(-2) / 20_000))


@pytest.mark.parametrize("epsilon", [10.0, 0.5, 0.01])
def test_whole_and_half_counts_give_answers_on_one_grid(epsilon):
    """A median of an even number of rows may end in a half; were all noise whole, the answer would tell."""
    noise = noised_counts(np.zeros(2000), epsilon, True, SecureSource(bytes(32)))
    assert np.any(noise % 1 == 0)
    assert np.any(noise % 1 == 0.5)


def test_published_noise_is_one_draw_for_all_rows():
    values = np.arange(24.0).reshape(4, 6)
    told = published_answers(values, 0.5, SecureSource(bytes(32)))
    assert np.ptp(told - values, axis=1).tolist() == [0] * 4
    assert len(set((told - values)[:, 0])) == 4

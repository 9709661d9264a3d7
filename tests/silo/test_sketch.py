from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedrank.data.text import Tokeniser
from fedrank.privacy.accounting import GaussianEvent, epsilon
from fedrank.privacy.noise import SecureSource, rounded_gaussian
from fedrank.silo.hashing import Hashing
from fedrank.silo.sketch import SLACK, Sketcher
from fedrank.silo.terms import TermCounts
from tests.oracles import sketch as oracle

KEY = bytes(range(32))


def counted(*documents: dict[str, int]) -> TermCounts:
    words = sorted({word for document in documents for word in document})
    return TermCounts(
        np.cumsum([0, *map(len, documents)]),
        np.array([words.index(word) for document in documents for word in document], dtype=np.int32),
        np.array([count for document in documents for count in document.values()], dtype=np.int32),
        words,
    )


def test_terms_are_counted_by_the_tokeniser():
    counts = Sketcher().term_counts(["Red red, BLUE", "", "blue"])
    assert counts.vocabulary == ["red", "blue"]
    assert counts.offsets.tolist() == [0, 2, 2, 3]
    assert counts.terms.tolist() == [0, 1, 1]
    assert counts.counts.tolist() == [2, 1, 1]
    assert counts.lengths.tolist() == [3, 0, 1]
    assert counts.count_matrix(["red", "blue", "green"]).T.tolist() == [[2, 0, 0], [1, 0, 1], [0, 0, 0]]
    stemmed = Sketcher(tokeniser=Tokeniser("english")).term_counts(["tests testing"])
    assert stemmed.vocabulary == ["test"]


def test_no_documents_are_no_sketches():
    sketcher = Sketcher(width=5, depth=3)
    assert sketcher.sketch(sketcher.term_counts([]), sketcher.hashing(KEY)).shape == (0, 3, 5)


WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=30)


@settings(deadline=None, max_examples=30)
@given(st.lists(WORDS, min_size=1, max_size=4), st.sampled_from(["count-sketch", "count-min"]))
def test_sketches_are_sums_over_words(documents, kind):
    sketcher = Sketcher(kind, width=4, depth=3)
    hashing = sketcher.hashing(KEY)
    cells, signs = sketcher.locate(list("abcdefgh"), hashing)
    places = {word: (cells[i].tolist(), signs[i].tolist()) for i, word in enumerate("abcdefgh")}
    made = sketcher.sketch(sketcher.term_counts(map(" ".join, documents)), hashing)
    assert made.tolist() == [oracle.sketch(words, places, 3, 4) for words in documents]


@settings(deadline=None, max_examples=20)
@given(WORDS, WORDS)
def test_merging_is_addition(one, other):
    sketcher = Sketcher(width=4, depth=3)
    hashing = sketcher.hashing(KEY)
    texts = [" ".join(one), " ".join(other), " ".join(one + other)]
    made = sketcher.sketch(sketcher.term_counts(texts), hashing)
    assert np.array_equal(made[0] + made[1], made[2])


def test_blocks_are_the_whole_in_parts_and_memory_stays_bounded(monkeypatch):
    block = 1 << 18
    monkeypatch.setattr("fedrank.silo.sketch.BLOCK", block)
    sketcher = Sketcher(width=200, depth=30, noise=1.0)
    step = block // 6000
    counts = counted(*({"a": d + 1} for d in range(step + 3)))
    hashing = sketcher.hashing(KEY)
    blocks = list(sketcher.blocks(counts, hashing, SecureSource(KEY)))
    assert [len(part) for part in blocks] == [step, 3]
    assert np.array_equal(np.concatenate(blocks), sketcher.sketch(counts, hashing, SecureSource(KEY)))
    del blocks
    many = counted(*({"a": 1} for _ in range(16 * step)))
    tracemalloc.start()
    for _ in sketcher.blocks(many, hashing):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A block and the one before it in four bytes a cell, noise in eight and in four; all blocks together take 64.
    assert peak < 24 * block + (1 << 20)


def test_estimates_by_hand():
    values, signs = np.array([[3, -5, 4, 100]]), np.array([1, -1, 1, -1])
    assert Sketcher(depth=4).estimate(values, signs).tolist() == [(3 + 4) / 2]  # of -100, 3, 4, 5
    assert Sketcher("count-min", depth=4).estimate(values, np.ones(4)).tolist() == [-5]


def test_count_min_has_no_signs_and_never_estimates_too_little():
    sketcher = Sketcher("count-min", width=10, depth=5)
    hashing = sketcher.hashing(KEY)
    documents = [{f"w{(7 * d + i) % 60}": i + 1 for i in range(20)} for d in range(30)]
    counts = counted(*documents)
    made = sketcher.sketch(counts, hashing)
    assert made.min() >= 0
    for word in counts.vocabulary:
        cells, signs = sketcher.locate([word], hashing)
        assert np.all(sketcher.estimate(made[:, np.arange(5), cells[0]], signs[0]) >= counts.count_matrix([word])[:, 0])


def test_a_document_of_a_million_terms_is_counted_right():
    sketcher = Sketcher()
    hashing = sketcher.hashing(KEY)
    counts = sketcher.term_counts(["many " * 1_000_000 + "few few few"])
    made = sketcher.sketch(counts, hashing)
    (cells, signs) = sketcher.locate(["many", "few"], hashing)
    found = [float(sketcher.estimate(made[0, np.arange(30), cells[i]], signs[i])) for i in (0, 1)]
    assert found == [1_000_000, 3]
    with pytest.raises(ValueError, match="split it"):
        list(sketcher.blocks(counted({"a": 1 << 29}), hashing))


def test_noise_has_its_deviation_and_is_drawn_for_every_document():
    for exact, factor in ((False, 1), (True, 2)):
        sketcher = Sketcher(noise=1.5, exact_lengths=exact, depth=9, width=100)
        assert sketcher.deviation == factor * 1.5 * 3
        noise = sketcher.sketch(counted({}, {}), sketcher.hashing(KEY), SecureSource(KEY))
        assert not np.array_equal(noise[0], noise[1])
        # The deviation of 1,800 draws is known to 1/60 of itself; rounding adds 1/12 to the variance.
        assert noise.std() == pytest.approx(math.sqrt(sketcher.deviation**2 + 1 / 12), rel=5 / 60)
        assert abs(noise.mean()) < 5 * sketcher.deviation / math.sqrt(1800)


def test_privacy_is_that_of_all_gaussian_releases_of_an_occurrence():
    """The sketch of the document, that of the frequencies, and the length where it is noised."""

    def delta(shift, epsilon):  # Balle and Wang 2018
        return norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)

    for sketcher, shift in (
        (Sketcher(noise=1.0), math.sqrt(2)),
        (Sketcher(noise=3.0), math.sqrt(2) / 3),
        (Sketcher(noise=2.0, exact_lengths=False, depth=7), math.sqrt(2 + 1 / 15**2) / 2),
    ):
        assert delta(shift, sketcher.privacy(1e-5)) == pytest.approx(1e-5, rel=1e-6)
        assert delta(3 * shift, sketcher.privacy(1e-5, occurrences=3)) == pytest.approx(1e-5, rel=1e-6)
    # The sampler is not exactly its law: 2 for each of at most 4 z cells that differ, in the deepest sketch of all.
    assert 2 * 4 * 1000 * rounded_gaussian(10.0).log_error < SLACK
    assert Sketcher(noise=1.0).privacy(1e-5) > epsilon(GaussianEvent(math.sqrt(0.5)), 1, 1e-5)
    assert Sketcher().privacy(1e-5) == math.inf
    with pytest.raises(ValueError, match="occurrences must be at least 1"):
        Sketcher(noise=1.0).privacy(1e-5, 0)


@settings(deadline=None, max_examples=40)
@given(WORDS.filter(bool), st.sampled_from("abcdefgh"), st.integers(1, 6))
def test_one_occurrence_moves_a_sketch_no_further_than_its_sensitivity(words, other, depth):
    changed = [other, *words[1:]]
    fewer = words[1:]
    for exact, neighbour in ((True, changed), (False, fewer)):
        sketcher = Sketcher(width=3, depth=depth, exact_lengths=exact)
        counts = sketcher.term_counts([" ".join(words), " ".join(neighbour)])
        made = sketcher.sketch(counts, sketcher.hashing(KEY)).astype(np.int64)
        assert np.sum((made[0] - made[1]) ** 2) <= sketcher.sensitivity**2 * (1 + 1e-12)


@pytest.mark.parametrize("kind", ["count-sketch", "count-min"])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_measured_errors_respect_the_bound(kind, noise):
    """One skewed document under 150 keys: errors above the bound are rarer than it says, and it says something."""
    document = {f"w{rank}": math.ceil(60 / rank) for rank in range(1, 201)}
    counts = counted(document)
    length, squares = sum(document.values()), sum(count**2 for count in document.values())
    sketcher = Sketcher(kind, width=40, depth=9, noise=noise, exact_lengths=False)
    asked = ["w1", "w10", "w150", "unknown"]
    errors = []
    for key in range(150):
        hashing = sketcher.hashing(key.to_bytes(32, "little"))
        made = sketcher.sketch(counts, hashing, SecureSource(key.to_bytes(32, "big")))
        cells, signs = sketcher.locate(asked, hashing)
        found = sketcher.estimate(made[0, np.arange(9), cells], signs)
        errors += list(np.abs(found - [document.get(word, 0) for word in asked]))
    for chance in (0.5, 0.1, 0.01):
        bound = sketcher.error_bound(chance, length, squares)
        assert np.mean(np.array(errors) > bound) <= chance
        assert sketcher.error_chance(bound, length, squares) <= chance
        assert bound < document["w1"]


def test_bounds_by_hand():
    # Count-Min: F1 / w = 1,000 / 200 = 5 by Markov, in all of 2 rows: (5 / 10)^2 = 1/4.
    assert Sketcher("count-min", depth=2).error_chance(10, 1000, 0) == pytest.approx(1 / 4)
    # Count Sketch: variance 1,800 / 200 = 9; one row by Cantelli 9 / (9 + 9) = 1/2 on either side, 9 / (9 + 27) = 1/4.
    assert Sketcher(depth=1).error_chance(3, 0, 1800) == pytest.approx(1.0)
    assert Sketcher(depth=1).error_chance(math.sqrt(27), 0, 1800) == pytest.approx(1 / 2)
    # Two of three rows: 3 x 1/16 x 3/4 + 1/64 = 10/64 on either side.
    assert Sketcher(depth=3).error_chance(math.sqrt(27), 0, 1800) == pytest.approx(20 / 64)
    assert Sketcher().error_chance(0, 10, 10) == 1
    assert Sketcher().error_bound(0.05, 0, 0) < 1e-5
    assert Sketcher(noise=2.0).error_bound(0.05, 1000, 4000) > Sketcher().error_bound(0.05, 1000, 4000)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "bloom"}, "count-sketch"),
        ({"width": 0}, "width must be"),
        ({"noise": -1.0}, "noise must be"),
        ({"noise": math.nan}, "noise must be"),
        ({"noise": 0.001}, "an integer"),
        ({"noise": 1e9}, "an integer"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Sketcher(**settings)


def test_hashes_of_another_size_are_refused():
    with pytest.raises(ValueError, match="30 x 100 cells, but sketches have 30 x 200"):
        Sketcher().locate(["a"], Hashing(KEY, 100))
    with pytest.raises(ValueError, match="chance must be between 0 and 1"):
        Sketcher().error_bound(0, 1, 1)

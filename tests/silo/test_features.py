"""The sixteen features: by hand, against textbook formulas, and from counts that are off."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.ranking import RankingData
from fedrank.data.text import Tokeniser
from fedrank.silo.features import FEATURE_NAMES, KINDS, RANGES, Background, features, field_features, scaled
from fedrank.silo.terms import TermCounts
from tests.oracles.silo_features import slow_features

texts = st.lists(st.lists(st.sampled_from("abcde"), max_size=6), min_size=1, max_size=6)


def test_one_document_by_hand() -> None:
    """Four documents of ten words together, two of them with the term; this one holds it twice among four words."""
    found = field_features(np.array([[2.0]]), np.array([4.0]), Background(4, 10.0, np.array([2.0])))[0]
    assert found.tolist() == pytest.approx(
        [
            4.0,
            2 / 4,
            log(4 / 2),
            2 / 4 * log(4 / 2),
            log(2) * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 2.5)),
            log((2 - 0.7) / 4 + 0.7 * 2 / 10),
            log((2 + 2000 * 2 / 10) / (4 + 2000)),
            log(0.9 * 2 / 4 + 0.1 * 2 / 10),
        ]
    )


@settings(deadline=None, max_examples=60)
@given(texts, st.lists(st.sampled_from("abcdx"), min_size=1, max_size=3, unique=True))
def test_counted_features_are_those_of_the_textbook(collection: list[list[str]], query: list[str]) -> None:
    if not any(collection):
        collection = [*collection, ["a"]]
    index = TermCounts.of([" ".join(words) for words in collection], Tokeniser())
    found = field_features(index.count_matrix(query), index.lengths, index.background(query))
    expected = [slow_features(query, document, collection) for document in collection]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=2),
    st.floats(0, 1e6),
    st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=2),
)
def test_noise_never_makes_a_feature_infinite(counts: list[float], length: float, frequencies: list[float]) -> None:
    background = Background(10, 100.0, np.array(frequencies))
    assert np.isfinite(field_features(np.array([counts]), np.array([length]), background)).all()


def test_a_count_beyond_the_length_or_below_nothing_is_brought_back() -> None:
    background = Background(4, 10.0, np.array([2.0]))
    found = field_features(np.array([[9.0], [3.0], [-5.0], [0.0]]), np.full(4, 3.0), background)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[2], found[3])


def test_body_comes_before_title_and_both_have_names() -> None:
    counts = {"body": np.array([[1.0]]), "title": np.array([[0.0]])}
    lengths = {"body": np.array([7.0]), "title": np.array([2.0])}
    background = Background(4, 10.0, np.array([2.0]))
    found = features(counts, lengths, {"body": background, "title": background})
    assert found.shape == (1, 16)
    assert found.dtype == np.float32
    assert found[0, FEATURE_NAMES.index("length of body")] == 7
    assert found[0, FEATURE_NAMES.index("length of title")] == 2


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"counts have shape \[1, 2\] for 1 documents and 1 terms"):
        field_features(np.zeros((1, 2)), np.ones(1), Background(1, 1.0, np.ones(1)))


def test_fixed_ranges_ask_no_other_document() -> None:
    """A document has the same features in any list, and they are from 0 to 1 where values are usual."""
    rng = np.random.default_rng(1)
    low, high = RANGES
    usual = (low + rng.random((6, 16)) * (high - low)).astype(np.float32)
    usual[0], usual[1] = low, high

    def lists(rows: np.ndarray) -> RankingData:
        return RankingData(rows, np.zeros(len(rows), np.int8), np.array([0, len(rows)]), np.array(["q"]))

    whole = scaled(lists(usual), "fixed")
    assert (whole.features.min(), whole.features.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(scaled(lists(usual[3:4]), "fixed").features, whole.features[3:4])
    beyond = scaled(lists((2 * high - low)[None]), "fixed").features
    assert beyond.tolist() == [[2.0] * 16]
    assert scaled(lists(usual), "query").normalised == "query"
    named = dict(zip(FEATURE_NAMES, RANGES.T.tolist(), strict=True))
    assert named["BM25 of title"] == [0.0, 10.0]
    assert named["LMIR.JM of body"] == [-100.0, 0.0]
    assert named["length of body"] == [0.0, 500.0]
    with pytest.raises(ValueError, match="read-only"):
        RANGES[0, 0] = 1.0


def test_the_page_for_engines_has_these_ranges_and_formulas() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "document-collections.md").read_text(encoding="utf-8")
    table = {row[0]: row for line in page.splitlines() if len(row := line.strip("| ").split(" | ")) == 4}
    reach = dict(zip(FEATURE_NAMES, RANGES.T.tolist(), strict=True))
    for kind in KINDS:
        for column, field in ((2, "body"), (3, "title")):
            assert [float(part) for part in table[kind][column].split(", ")] == reach[f"{kind} of {field}"]
    known = {"c": 2.0, "l": 8.0, "n": 3.0, "N": 10, "W": 50.0, "ln": log, "max": max}  # as the page calls them
    about = Background(known["N"], known["W"], np.array([known["n"]]))
    found = field_features(np.array([[known["c"]]]), np.array([known["l"]]), about)[0]
    for kind, value in zip(KINDS[1:], found[1:], strict=True):
        told = table[kind][1].partition(", with")[0].replace(" x ", " * ").replace("l N", "l * N")
        told = re.sub(r"(\d) (?=[ncl(])", r"\1 * ", told)
        assert eval(told, {"__builtins__": {}}, known) == pytest.approx(value), (kind, told)

"""The features of the search client are those of live-1."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.live_features import LIVE_1, NAMES, FeatureSet, ForwardRow, ForwardRows, QueryTerms, WordStatistics
from fedrank.search.features import WEIGHTED, weighted_features
from fedrank.search.impressions import start_weights

COLUMNS = [NAMES.index(name) for name in WEIGHTED]
PLAIN = FeatureSet("none")
WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=14).map(" ".join)


def same(query: QueryTerms, rows: ForwardRows, scores: np.ndarray, statistics: WordStatistics) -> None:
    found, expected = weighted_features(query, rows, scores, statistics), LIVE_1.raw(query, rows, scores, statistics)
    np.testing.assert_allclose(found[:, COLUMNS], expected[:, COLUMNS], rtol=1e-5, atol=1e-6)
    assert not np.delete(found, COLUMNS, axis=1).any()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=9), st.lists(st.sampled_from("abcdefghij"), max_size=6).map(" ".join))
def test_as_the_kernel_computes_them(documents, query):
    rows = ForwardRows.join([PLAIN.row(*one) for one in documents])
    same(PLAIN.query(query), rows, 10.0 / (np.arange(len(rows)) + 1), WordStatistics.of(rows))


def test_long_documents_and_no_scores():
    chance = np.random.default_rng(1)
    rows = ForwardRows.join(
        [ForwardRow(chance.zipf(1.3, size).astype(np.int32) & 0xFFFF, 3, size) for size in (4096, 2000, 3, 900, 50, 70)]
    )
    query = QueryTerms(np.array([7, 1, 3, 2, 9, 60_000], np.int32))
    for scores in (np.linspace(2, 1, len(rows)), np.zeros(len(rows))):
        same(query, rows, scores, WordStatistics.of(rows))


def test_every_feature_with_a_weight_is_computed():
    for weights in (start_weights(LIVE_1), LIVE_1.start()):
        assert {NAMES[column] for column in np.flatnonzero(weights)} <= {*WEIGHTED}

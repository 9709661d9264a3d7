"""The features live-1: by hand, against plain Python, and what every one of them promises."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from math import exp, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedrank.data.live_features import (
    BUCKETS,
    ENGINE,
    HISTORY,
    LIVE_1,
    MAX_WORDS,
    NAMES,
    FeatureSet,
    ForwardRow,
    ForwardRows,
    QueryTerms,
    Usage,
    WordStatistics,
    hash_stem,
)
from tests.oracles import live_features as oracle

PLAIN = FeatureSet("none")


def world_of(*documents: tuple[str, str]) -> tuple[ForwardRows, WordStatistics]:
    rows = ForwardRows.join([PLAIN.row(*one) for one in documents])
    return rows, WordStatistics.of(rows)


def features(query: str, documents: list[tuple[str, str]], scores: list[float], **more: object) -> np.ndarray:
    rows, statistics = world_of(*documents)
    return PLAIN.raw(PLAIN.query(query), rows, scores, statistics, **more)  # type: ignore[arg-type]


def value(name: str, query: str, documents: list[tuple[str, str]], place: int = 0) -> float:
    found = features(query, documents, [float(len(documents) - d) for d in range(len(documents))])
    return float(found[place, NAMES.index(name)])


# Two documents: "red" stands in both, "apple" and "pie" in the first alone. N = 2.
TWO = [("apple", "red apple pie"), ("", "red car")]
RED, APPLE = log(1 + 0.5 / 2.5), log(1 + 1.5 / 1.5)
QUERY = RED + APPLE  # weight of "red apple"


@pytest.mark.parametrize(
    ("name", "place", "expected"),
    [
        # lengths: 4 and 2, mean 3; of titles 1 and 0, mean 1/2; of bodies 3 and 2, mean 2.5
        ("bm25", 0, (RED / (1 + 0.9 * (0.6 + 0.4 * 4 / 3)) + APPLE * 2 / (2 + 0.9 * (0.6 + 0.4 * 4 / 3))) / QUERY),
        ("bm25 of title", 0, APPLE / (1 + 1.2 * (0.25 + 0.75 * 2)) / QUERY),
        ("bm25 of body", 1, RED / (1 + 1.2 * (0.25 + 0.75 * 2 / 2.5)) / QUERY),
        ("engine", 1, 0.5),
        ("rank", 1, 1 / 1.1),
        ("covered", 0, 1.0),
        ("covered", 1, RED / QUERY),
        ("covered by title", 0, APPLE / QUERY),
        ("covered by beginning", 1, RED / QUERY),
        ("all terms", 0, 1.0),
        ("all terms", 1, 0.0),
        ("all terms in title", 0, 0.0),
        ("rarest term", 0, 1.0),
        ("rarest term", 1, 0.0),
        ("rarest term in title", 0, 1.0),
        ("adjacent pairs", 0, 1.0),
        ("adjacent pairs", 1, 0.0),
        ("near pairs", 0, 1.0),
        ("smallest window", 0, 1.0),
        ("smallest window", 1, 1 / 2),
        ("first place", 0, 1.0),
        ("title precision", 0, 1.0),
        ("title precision", 1, 0.0),
        ("length", 1, log(3) / 11.5),
        ("title length", 0, log(2) / 4),
        ("largest tf", 0, 2 / 4),
        ("bm25 of a term", 1, (x := RED / (1 + 0.9 * (0.6 + 0.4 * 2 / 3)) / 2) / (x + 2)),
        ("log tf", 1, (y := RED * log(2) / QUERY) / (y + 1)),
        # The other document alone is "the best": apple twice, red and pie once.
        (
            "feedback",
            1,
            (RED * log(2)) ** 2
            / sqrt(((RED**2 + APPLE**2) * log(2) ** 2 + (APPLE * log(3)) ** 2) * ((RED**2 + APPLE**2) * log(2) ** 2)),
        ),
        # Expanded by the only term of the other document that is not in the query, which it does not have.
        ("expanded bm25", 1, RED / (1 + 0.9 * (0.6 + 0.4 * 2 / 3)) / (1.5 * QUERY)),
    ],
)
def test_by_hand(name, place, expected):
    assert value(name, "red apple", TWO, place) == pytest.approx(expected, rel=1e-6)


def test_a_first_match_twenty_words_in_is_worth_a_half():
    assert value("first place", "here", [("", "word " * 20 + "here")]) == pytest.approx(0.5)


def test_neighbours_in_the_wrong_order_are_near_but_not_adjacent():
    documents = [("", "apple red")]
    assert value("adjacent pairs", "red apple", documents) == 0
    assert value("near pairs", "red apple", documents) == 1


@pytest.mark.parametrize(("between", "expected"), [(7, 1.0), (8, 0.0)])
def test_near_means_eight_words(between, expected):
    assert value("near pairs", "red apple", [("", "red " + "x " * between + "apple")]) == expected


@pytest.mark.parametrize(("before", "expected"), [(49, 1.0), (50, 0.0)])
def test_the_beginning_is_fifty_words_of_the_body(before, expected):
    assert value("covered by beginning", "apple", [("a title of five words", "x " * before + "apple")]) == expected


def test_the_smallest_window_is_found_in_the_middle():
    text = "red x x x x apple x red apple x x"
    assert value("smallest window", "red apple", [("", text)]) == pytest.approx(1.0)
    assert value("smallest window", "red apple pie", [("", text)]) == pytest.approx(2 / 2 * 2 / 3)


def test_expansion_rewards_the_terms_of_the_other_good_documents():
    documents = [("", "red apple"), ("", "red cider"), ("", "red cider"), ("", "red car"), ("", "green")]
    found = features("red", documents, [5, 4, 3, 2, 1])
    expanded, bm25 = found[:, NAMES.index("expanded bm25")] * 1.5, found[:, NAMES.index("bm25")]
    assert expanded[1] - bm25[1] > expanded[3] - bm25[3]  # cider stands in another good one, car in none
    assert expanded[3] == pytest.approx(bm25[3])


def test_latent_features_are_cosines_from_zero_on():
    vectors = [[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]
    documents = [("", "a"), ("", "b"), ("", "c")]
    found = features("a", documents, [3, 2, 1], query_vector=[2.0, 0.0], vectors=vectors)
    assert_allclose(found[:, NAMES.index("latent")], [1, sqrt(0.5), 0], rtol=1e-6)
    # With the sum of the other two: (0, 1), (0, 0), (2, 1).
    assert_allclose(found[:, NAMES.index("latent feedback")], [0, 0, 0], atol=1e-6)
    found = features("a", documents[:2], [3, 2], query_vector=[2.0, 0.0], vectors=vectors[:2])
    assert_allclose(found[:, NAMES.index("latent feedback")], [sqrt(0.5)] * 2, rtol=1e-6)


def test_history_by_hand():
    usage = Usage(7, "mail", 4, True)
    found = features("a", [("", "a")], [1.0], usage=[usage])
    assert_allclose(found[0, HISTORY:], [0, 0, 0, exp(-1), exp(-7 / 365), 1, 0.5, 1], rtol=1e-6)
    assert_array_equal(features("a", [("", "a")], [1.0], usage=[Usage()])[0, HISTORY:], 0)
    assert Usage(changed_days_ago=-3).columns()[3] == 1.0  # a clock that was set back


WORDS = st.lists(st.sampled_from("abcdefgh"), max_size=14)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=9),
    st.lists(st.sampled_from("abcdefghij"), max_size=6),
    st.integers(0, 3),
)
def test_as_the_oracle_says(documents, query, left_out):
    candidates = documents[: max(len(documents) - left_out, 1)]
    scores = [10.0 / (d + 1) for d in range(len(candidates))]
    texts = [(" ".join(title), " ".join(body)) for title, body in documents]
    rows, statistics = world_of(*texts)
    vectors = [[len(title) - 3, len(body) - 2, 1] for title, body in candidates]
    found = PLAIN.raw(
        PLAIN.query(" ".join(query)), rows.select(range(len(candidates))), scores, statistics,
        query_vector=[1, -1, 2], vectors=vectors,
    )  # fmt: skip
    expected = oracle.features(query, candidates, scores, documents, hash_stem, [1, -1, 2], vectors)
    assert_allclose(found[:, :HISTORY], expected, rtol=1e-5, atol=1e-6)
    assert found.min() >= 0
    assert found.max() <= 1


@pytest.mark.long
def test_long_documents_as_the_oracle_says():
    rng = np.random.default_rng(3)
    words = [f"w{i}" for i in range(400)]
    documents = [(list(rng.choice(words, 8)), list(rng.choice(words, int(rng.integers(20, 200))))) for _ in range(30)]
    query = list(rng.choice(words, 40))  # more than count
    rows, statistics = world_of(*((" ".join(t), " ".join(b)) for t, b in documents))
    scores = np.linspace(9, 1, 30)
    found = PLAIN.raw(PLAIN.query(" ".join(query)), rows, scores, statistics)
    expected = oracle.features(query, documents, scores, documents, hash_stem)
    # 1 of about a million buckets is hardly ever shared by two of 400 words.
    assert_allclose(found[:, :HISTORY], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.process
def test_uncompiled_it_gives_the_same():
    code = (
        "import numpy as np; from fedrank.data.live_features import *;"
        "F = FeatureSet('none'); R = ForwardRows.join([F.row('red apple', 'an apple pie'), F.row('', 'red car x')]);"
        "print(F.raw(F.query('red apple pie'), R, [2, 1], WordStatistics.of(R)).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_without_compiling()
    )
    expected = features("red apple pie", [("red apple", "an apple pie"), ("", "red car x")], [2, 1])
    assert_allclose(json.loads(done.stdout), expected, rtol=1e-6)


def _without_compiling() -> dict[str, str]:
    import os

    return os.environ | {"NUMBA_DISABLE_JIT": "1"}


def test_odd_queries_and_documents_are_no_problem():
    documents = [("", ""), ("title", ""), ("", "body")]
    for query in ("", "unknown", "title", "?!"):
        found = features(query, documents, [0.0, 0.0, 0.0])
        assert np.isfinite(found).all()
    assert features("", documents, [3, 2, 1])[:, NAMES.index("all terms")].max() == 0
    rows, statistics = world_of(*documents)
    assert PLAIN.raw(PLAIN.query("a"), rows.select([]), [], statistics).shape == (0, len(NAMES))


def test_counts_that_lag_behind_do_not_leave_the_scale():
    """A document may be gone between counting and searching."""
    rows, statistics = world_of(("", "red apple"), ("", "red car"))
    fewer = WordStatistics(1, statistics.frequencies, 2, 0)
    found = PLAIN.raw(PLAIN.query("red car"), rows, [2, 1], fewer)
    assert np.isfinite(found).all()
    assert found.min() >= 0
    assert found.max() <= 1


def test_scores_that_rise_are_refused():
    with pytest.raises(ValueError, match="the best first"):
        features("a", [("", "a"), ("", "a")], [1, 2])
    with pytest.raises(ValueError, match="one score per candidate"):
        features("a", [("", "a")], [2, 1])
    with pytest.raises(ValueError, match="do not match"):
        features("a", [("", "a")], [1], query_vector=[1.0], vectors=[[1.0, 2.0]])


def test_a_row_is_one_blob_and_comes_back():
    row = LIVE_1.row("Running shoes", "They ran and run")
    again = ForwardRow.unpack(row.pack())
    assert_array_equal(row.words, again.words)
    assert (again.title, again.length) == (2, 6)
    assert row.words[0] == row.words[5] == hash_stem("run")  # stems, not words
    assert len(row.pack()) == 12 + 4 * 6
    assert row.words.dtype == np.int32
    assert (row.words >= 0).all()


@pytest.mark.parametrize("harm", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"", lambda b: b"\xff" * len(b)])
def test_a_damaged_blob_is_refused(harm):
    with pytest.raises(ValueError, match="index the document again"):
        ForwardRow.unpack(harm(LIVE_1.row("a", "b c").pack()))


def test_only_so_many_words_are_kept_and_all_are_counted():
    row = PLAIN.row("t " * 5000, "b " * 10)
    assert (len(row.words), row.title, row.length) == (MAX_WORDS, MAX_WORDS, 5010)
    row = PLAIN.row("t t", "b " * 5000)
    assert (len(row.words), row.title, row.length) == (MAX_WORDS, 2, 5002)
    ForwardRow.unpack(row.pack())


def test_statistics_add_up_over_documents():
    rows, statistics = world_of(("a b", "a c"), ("", "c"), ("", ""))
    counted = np.zeros(BUCKETS, np.int32)
    for one in (PLAIN.row("a b", "a c"), PLAIN.row("", "c"), PLAIN.row("", "")):
        counted[one.buckets] += 1
    assert_array_equal(statistics.frequencies, counted)
    assert statistics.documents == len(rows) == 3
    assert_allclose(statistics.mean_lengths, [5 / 3, 2 / 3, 1])


def test_a_query_has_at_most_32_distinct_stems_in_its_order():
    assert len(PLAIN.query(" ".join(f"w{i % 40}" for i in range(100)))) == 32
    terms: QueryTerms = LIVE_1.query("runs running Apple")
    assert_array_equal(terms.stems, [hash_stem("run"), hash_stem("appl")])


def test_hashes_are_the_same_everywhere():
    """Federations meet on weights, not on hashes; but a folder may be moved to another machine."""
    assert [hash_stem("run"), hash_stem("é")] == [1518968264, 1111770517]
    hash_stem("\udc80")  # half a surrogate is a stem like any other


def test_constants_are_there_for_every_feature_and_scale():
    mean, spread = LIVE_1.constants
    assert len(NAMES) == len(mean) == 34
    assert len(set(NAMES)) == 34
    assert (spread >= 0.05).all()
    assert ((mean >= 0) & (mean <= 1)).all()
    raw = np.tile(mean + spread, (2, 1)).astype(np.float32)
    assert_allclose(LIVE_1.scaled(raw), 1, rtol=1e-4)
    text = files("fedrank.data").joinpath("live_constants.json").read_text()
    assert json.loads(text)["version"] == LIVE_1.version


def test_the_first_weights_give_the_engines_order():
    found = features("red apple", TWO, [2.0, 1.0])
    weights = LIVE_1.start()
    assert weights[ENGINE] == 1
    scores = PLAIN.scaled(found) @ weights
    assert scores[0] > scores[1]


def test_the_stemmer_is_part_of_the_version():
    assert LIVE_1.version == "live-1"
    assert FeatureSet("german").version == "live-1-german"
    assert FeatureSet("german").query("Häuser").stems[0] == hash_stem("haus")
    with pytest.raises(ValueError, match='did you mean "german"'):
        FeatureSet("germann").query("Haus")


def test_stems_behind_a_forward_row_are_those_of_the_rest_of_the_body():
    body = " ".join(f"word{n}" for n in range(2 * MAX_WORDS + 10))
    row = LIVE_1.row("a title", body)
    behind = [*LIVE_1.stems_behind(row.title, body)]
    assert [len(piece) for piece in behind] == [MAX_WORDS, 12]
    whole = np.concatenate([row.words[row.title :], *behind])
    assert whole.tolist() == [LIVE_1.query(f"word{n}").stems[0] for n in range(2 * MAX_WORDS + 10)]


def test_statistics_of_no_documents():
    nothing = WordStatistics.empty()
    assert (nothing.documents, nothing.words, len(nothing.frequencies), nothing.frequencies.any()) == (0, 0, BUCKETS, 0)


def test_every_feature_has_a_meaning():
    assert list(LIVE_1.meanings) == list(LIVE_1.names)

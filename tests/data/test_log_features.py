"""The 103 features of queries and documents: by hand, against plain Python, bm25s and scikit-learn."""

from __future__ import annotations

import json
import lzma
import os
from math import log, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from fedrank.data import log_features
from fedrank.data.documents import Documents
from fedrank.data.log_features import (
    FEATURE_NAMES,
    Statistics,
    features_for,
    features_of,
    idf,
)
from fedrank.data.text import tokens
from fedrank.kernels import log_features as kernel
from tests import needs
from tests.oracles import log_features as oracle

DATA = os.environ.get("FEDRANK_DATA")

THREE = (
    ("Red apple", "an apple a day, an apple!", "http://fruit.example/red/apple"),
    ("", "pear tree", ""),
    (" Pear and apple ", "", "fruit.example/pear"),
)


def collection(documents: object) -> Documents:
    rows = [tuple(document) for document in documents]
    title, text, url = ([row[i] for row in rows] for i in range(3))
    return Documents([f"d{i}" for i in range(len(rows))], title, text, url)


def named(row: np.ndarray) -> dict[str, float]:
    return dict(zip(FEATURE_NAMES, row.tolist(), strict=True))


def matches(query: str, documents: object, rows: list[int]) -> None:
    """Compare all features of some documents with plain Python."""
    statistics, plain = Statistics.of(collection(documents)), oracle.Collection(list(documents))
    ours = features_of(query, rows, statistics)
    expected = [oracle.features(query, row, plain) for row in rows]
    assert_allclose(ours, np.array(expected).reshape(-1, 103), rtol=2e-6, atol=1e-7)
    assert ours.dtype == np.float32
    theirs = features_of(query, rows, statistics, published=True)
    expected = oracle.published(query, rows, list(documents))
    assert_allclose(theirs, np.array(expected).reshape(-1, 103), rtol=2e-6, atol=1e-6)


def test_names_are_103_feature_after_feature() -> None:
    assert len(FEATURE_NAMES) == len(set(FEATURE_NAMES)) == 34 * 3 + 1 == 103
    assert FEATURE_NAMES[:4] == ("BM25 of title", "BM25 of body", "BM25 of URL", "min of TF of title")
    at = {name: number for number, name in enumerate(FEATURE_NAMES, start=1)}
    # Numbers that methods and paper name, and the first of every block.
    assert at["min of length-normalised TF of title"] == 64
    assert at["mean of length-normalised TF of URL"] == 75
    assert at["variance of length-normalised TF of title"] == 76
    assert at["variance of length-normalised TF of URL"] == 78
    firsts = {"min of IDF": 19, "min of TF-IDF": 34, "min of word length": 49, "cosine": 79, "covered query terms": 82}
    firsts |= {"characters": 88, "terms": 91, "query terms": 94, "exact match": 97, "match ratio": 100}
    assert {name: at[f"{name} of title"] for name in firsts} == firsts
    assert at["number of slashes in URL"] == 103


def test_by_hand() -> None:
    """Query `apple pear` and the first of three documents."""
    one = named(features_of("apple pear", [0], Statistics.of(collection(THREE)))[0])
    two_of_three = log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    one_of_three = log(1 + (3 - 1 + 0.5) / (1 + 0.5))

    # Titles have 2, 0 and 3 words; apple is in two of them, pear in one.
    title = {
        "BM25": two_of_three * 1 / (1 + 1.5 * (1 - 0.75 + 0.75 * 2 / (5 / 3))),
        "min of TF": 0,
        "max of TF": 1,
        "sum of TF": 1,
        "mean of TF": 1 / 2,
        "variance of TF": ((1 - 1 / 2) ** 2 + (0 - 1 / 2) ** 2) / 2,
        "min of IDF": two_of_three,
        "max of IDF": one_of_three,
        "sum of IDF": two_of_three + one_of_three,
        "mean of IDF": (two_of_three + one_of_three) / 2,
        "variance of IDF": ((one_of_three - two_of_three) / 2) ** 2,
        "sum of TF-IDF": two_of_three,
        "variance of TF-IDF": (two_of_three / 2) ** 2,
        "min of word length": 3,
        "max of word length": 5,
        "sum of word length": 3 + 5,
        "mean of word length": (3 + 5) / 2,
        "variance of word length": 1,
        "max of length-normalised TF": 1 / 2,
        "mean of length-normalised TF": 1 / 4,
        "variance of length-normalised TF": (1 / 4) ** 2,
        "cosine": two_of_three**2 / (sqrt(two_of_three**2 + one_of_three**2) * sqrt(two_of_three**2 + one_of_three**2)),
        "covered query terms": 1,
        "covered query term ratio": 1 / 2,
        "characters": len("Red apple"),
        "terms": 2,
        "query terms": 2,
        "exact match": 0,
        "match ratio": 1 / 2,
    }
    # Bodies have 6, 2 and 0 words; apple (twice in the first) and pear are in one each.
    body = {
        "BM25": one_of_three * 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * 6 / (8 / 3))),
        "max of TF": 2,
        "variance of TF": 1,
        "max of TF-IDF": 2 * one_of_three,
        "mean of TF-IDF": one_of_three,
        "min of word length": 1,
        "mean of word length": (2 + 5 + 1 + 3 + 2 + 5) / 6,
        "sum of length-normalised TF": 2 / 6,
        # an x 2, apple x 2, a, day: all in one document of three
        "cosine": 2 / (sqrt(2) * sqrt(2**2 + 2**2 + 1 + 1)),
        "characters": 25,
        "terms": 6,
        "match ratio": 1 / 4,
    }
    # http fruit example red apple
    url = {"max of TF": 1, "terms": 5, "characters": 30, "exact match": 0, "sum of IDF": 2 * one_of_three}
    expected = {
        f"{name} of {stream}": value
        for stream, values in (("title", title), ("body", body), ("URL", url))
        for name, value in values.items()
    }
    expected["number of slashes in URL"] = 4
    assert {name: one[name] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_published_by_hand() -> None:
    """The same query and list, as AOL4FOLTR defined it; a second `apple` counts again."""
    one = named(features_of("apple pear apple", [0, 1, 2], Statistics.of(collection(THREE)), published=True)[0])
    apple, pear = log((1 + 3) / (1 + 2)) + 1, log((1 + 3) / (1 + 1)) + 1
    # Two documents have a title. Okapi's idf of apple (in 2 of 2) is negative, and becomes a quarter of the mean over
    # red, apple, pear, and; that of the other three (in 1 of 2) is log 1.5 - log 1.5 = 0.
    floor = 0.25 * (log(2 - 2 + 0.5) - log(2 + 0.5)) / 4
    expected = {
        "BM25": 2 * floor * 1 * 2.5 / (1 + 1.5 * (1 - 0.75 + 0.75 * 2 / (5 / 2))),
        "sum of TF": 2,
        "mean of TF": 2 / 3,
        "variance of TF": (2 * (1 - 2 / 3) ** 2 + (2 / 3) ** 2) / 3,
        "sum of IDF": 2 * apple + pear,
        "sum of TF-IDF": 2 * apple,
        "min of length-normalised TF": 2 / 2,
        "max of length-normalised TF": 2 / 2,
        "sum of length-normalised TF": 2 / 2,
        "mean of length-normalised TF": 2 / 2,
        "variance of length-normalised TF": 0,
        # red and pear are in one title each
        "cosine": 2 * apple * apple / (sqrt((2 * apple) ** 2 + pear**2) * sqrt(pear**2 + apple**2)),
        "covered query terms": 2,
        "covered query term ratio": 2 / 3,
        "query terms": 3,
        "exact match": 0,
        "match ratio": 1 / 3,
    }
    assert {name: one[f"{name} of title"] for name in expected} == pytest.approx(expected, rel=1e-6)


def test_published_repeats_one_value_and_keeps_to_the_list() -> None:
    documents = [*THREE, ("apple", "apple pie", "x/apple")]
    statistics = Statistics.of(collection(documents))
    whole = features_of("apple pear", [0, 1, 2, 3], statistics, published=True)
    for feature in range(66, 75):
        assert_array_equal(whole[:, feature], whole[:, feature - 3])
    assert whole[:, 63:75].any()
    assert not whole[:, 75:78].any()
    part = features_of("apple pear", [0, 1, 2], statistics, published=True)
    assert (part != whole[:3]).any()
    # The fourth document is nothing to the list of the first three: it may as well not exist.
    assert_array_equal(part, features_of("apple pear", [0, 1, 2], Statistics.of(collection(THREE)), published=True))
    # Ours ask the collection: a pair is the same in every list.
    ours = features_of("apple pear", [0, 1, 2, 3], statistics)
    assert_array_equal(features_of("apple pear", [2, 0], statistics), ours[[2, 0]])


def test_published_counts_a_document_once_and_in_any_order() -> None:
    statistics = Statistics.of(collection(THREE))
    once = features_of("apple pear", [0, 1, 2], statistics, published=True)
    twice = features_of("apple pear", [2, 0, 1, 0], statistics, published=True)
    assert_array_equal(twice, once[[2, 0, 1, 0]])


@pytest.mark.parametrize(
    "query",
    [
        "",
        "...",
        "apple",
        "APPLE pear",
        "apple apple",
        "nobody asked this",
        "apple unknown apple",
        "http fruit example pear",
        "pear and apple",
        "ÄPFEL \u30ea\u30f3\u30b4",
        "\ud800",
    ],
)
def test_like_plain_python(query: str) -> None:
    german = ("Äpfel und A\u0308pfel", "Straße STRASSE リンゴ", "https://obst.example/äpfel/")
    matches(query, [*THREE, ("", "", ""), german], [0, 1, 2, 3, 4])


WORDS = st.lists(st.sampled_from(["a", "bb", "ccc", "Bb", "é", "/", "-"]), max_size=7).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=6), WORDS)
@example([("", "", "")], "a")
@example([("a", "", "")] * 5, "a a bb")
def test_like_plain_python_on_anything(documents: list[tuple[str, str, str]], query: str) -> None:
    matches(query, documents, list(range(len(documents))))


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.text(), st.text(), st.text()), min_size=1, max_size=4), st.text())
def test_always_finite(documents: list[tuple[str, str, str]], query: str) -> None:
    statistics = Statistics.of(collection(documents))
    query = f"{query} {documents[0][1]}"
    for published in (False, True):
        table = features_of(query, range(len(documents)), statistics, published=published)
        assert np.isfinite(table).all()
        if not published:
            assert (table >= 0).all()


def test_repeated_words_count_once() -> None:
    statistics = Statistics.of(collection(THREE))
    assert_array_equal(
        features_of("pear apple apple Pear", [0, 1, 2], statistics), features_of("pear apple", [0, 1, 2], statistics)
    )


def test_what_is_missing_is_0() -> None:
    statistics = Statistics.of(collection(THREE))
    of_query = ("IDF", "query terms")
    for document, stream in ((1, "title"), (2, "body"), (1, "URL")):
        row = named(features_of("apple pear", [document], statistics)[0])
        asks = {name: value for name, value in row.items() if name.endswith(stream)}
        assert not any(
            value for name, value in asks.items() if "TF-IDF" in name or not any(x in name for x in of_query)
        )
        assert asks[f"query terms of {stream}"] == 2
    # Without a query only the document speaks.
    of_document = ("word length", "characters", "terms", "slashes")
    empty = named(features_of("?!", [0], statistics)[0])
    assert {name for name, value in empty.items() if value} == {
        name
        for name in FEATURE_NAMES
        if any(what in name for what in of_document) and "query" not in name and not name.startswith("covered")
    }
    # A word that no document has weighs nothing.
    unknown = named(features_of("unheard", [0], statistics)[0])
    assert unknown["max of IDF of title"] == 0
    assert unknown["query terms of title"] == 1


def test_idf_is_zero_only_for_unknown_terms() -> None:
    assert_allclose(idf(np.array([0, 1, 10]), 10), [0, log(1 + 9.5 / 1.5), log(1 + 0.5 / 10.5)])
    assert idf(np.array([10]), 10)[0] > 0


def test_terms_are_found() -> None:
    statistics = Statistics.of(collection([*THREE, ("zoë", "ärger", "")]))
    assert {"apple", "pear", "a", "zoë", "ärger", "http", "example"} <= statistics.vocabulary.keys()
    assert not {"app", "apples", "", "zz", "A", "\ud800"} & statistics.vocabulary.keys()
    assert sorted(statistics.vocabulary.values()) == list(range(len(statistics.frequencies)))
    assert statistics.frequencies[statistics.vocabulary["apple"]].tolist() == [2, 1, 1]
    assert statistics.lengths.tolist() == [[2, 6, 5], [0, 2, 0], [3, 0, 3], [1, 1, 0]]


def test_nothing_at_all() -> None:
    nothing = Statistics.of(collection([]))
    assert len(nothing) == 0
    assert features_of("a", [], nothing).shape == (0, 103)
    assert features_of("a", [], nothing, published=True).shape == (0, 103)
    blank = Statistics.of(collection([("", "", "")]))
    for published in (False, True):
        row = features_of("a b", [0], blank, published=published)[0]
        assert row[93:96].tolist() == ([0] * 3 if published else [2] * 3)
        assert not np.delete(row, [93, 94, 95]).any()


def many(documents: int, seed: int = 0) -> list[tuple[str, str, str]]:
    rng = np.random.default_rng(seed)

    def text(longest: int) -> str:
        return " ".join(f"w{int(i)}" for i in rng.zipf(1.5, rng.integers(0, longest)) if i < 500)

    return [(text(6), text(40), text(5).replace(" ", "/")) for _ in range(documents)]


@pytest.mark.parametrize("published", [False, True])
def test_all_ways_give_the_same_bits(published: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = many(50)
    rng = np.random.default_rng(1)
    statistics = Statistics.of(collection(documents))
    queries = [" ".join(f"w{int(i)}" for i in rng.integers(1, 30, rng.integers(0, 5))) for _ in range(12)]
    asking, rows = rng.integers(0, 12, 300), rng.integers(0, 50, 300)
    asking[asking == 5] = 6  # a query that nobody asks
    at_once = features_for(queries, asking, rows, statistics, published=published)
    for query in range(12):
        mine = asking == query
        assert_array_equal(features_of(queries[query], rows[mine], statistics, published=published), at_once[mine])

    monkeypatch.setattr(log_features, "PAIRS_AT_ONCE", 7)
    monkeypatch.setattr(log_features, "DOCUMENTS_AT_ONCE", 7)
    in_portions = features_for(queries, asking, rows, statistics, threads=3, published=published)
    assert_array_equal(in_portions, at_once)
    counted_in_portions = Statistics.of(collection(documents))
    assert_array_equal(features_for(queries, asking, rows, counted_in_portions, published=published), at_once)

    read_only = np.array(rows, np.int32)
    read_only.flags.writeable = False
    assert_array_equal(features_for(queries, asking.tolist(), read_only, statistics, published=published), at_once)


def test_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [*THREE, *many(6)]
    compiled = Statistics.of(collection(documents))
    asked = "apple w1 w2 w1"
    both = [features_of(asked, range(9), compiled, published=published) for published in (False, True)]
    for name, function in list(vars(kernel).items()):
        if hasattr(function, "py_func"):
            monkeypatch.setattr(kernel, name, function.py_func)
    plain = Statistics.of(collection(documents))
    for published in (False, True):
        table = features_of(asked, range(9), plain, published=published)
        assert_allclose(table, both[published], rtol=1e-6, atol=1e-7)


@pytest.mark.long
def test_a_word_that_fills_a_book() -> None:
    statistics = Statistics.of(collection([("", "buffalo " * 70_000, ""), ("", "bison", "")]))
    row = named(features_of("buffalo", [0], statistics)[0])
    assert row["max of TF of body"] == row["terms of body"] == 70_000
    assert statistics.counts.dtype == np.int32
    assert Statistics.of(collection(THREE)).counts.dtype == np.uint16


def test_pairs_that_cannot_be() -> None:
    statistics = Statistics.of(collection(THREE))
    with pytest.raises(IndexError, match="index 3 is out of range for 3 documents"):
        features_of("a", [0, 3], statistics)
    with pytest.raises(IndexError, match="index -1 is out of range for 3 documents"):
        features_of("a", [-1], statistics)
    with pytest.raises(IndexError, match="index 1 is out of range for 1 queries"):
        features_for(["a"], [1], [0], statistics)
    with pytest.raises(ValueError, match="do not form pairs"):
        features_for(["a"], [0, 0], [0], statistics)


def test_bm25_and_idf_like_bm25s() -> None:
    bm25s = pytest.importorskip("bm25s")
    documents = [(title or "w1", text or "w2", url) for title, text, url in many(200)]
    statistics = Statistics.of(collection(documents))
    queries = ["w1", "w2 w7 w9", "w3 w400", "w5 w1 w77"]
    for stream, name in enumerate(("title", "body", "URL")):
        words = [tokens(document[stream]) for document in documents]
        vocabulary = {word: i for i, word in enumerate(sorted({word for text in words for word in text}))}
        ids = [[vocabulary[word] for word in text] for text in words]
        engine = bm25s.BM25(method="lucene", k1=log_features.K1, b=log_features.B, dtype="float64")
        engine.index((ids, vocabulary), show_progress=False)
        for query in queries:
            known = [vocabulary[word] for word in tokens(query) if word in vocabulary]
            expected = engine.get_scores_from_ids(known)
            ours = features_of(query, range(200), statistics)[:, FEATURE_NAMES.index(f"BM25 of {name}")]
            assert expected.max() > 0
            assert_allclose(ours, expected, rtol=1e-5, atol=1e-7)


def test_published_tf_idf_and_cosine_like_scikit_learn() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    documents = many(20, seed=3)
    bodies = [body for _, body, _ in documents]
    model = text.TfidfVectorizer(norm=None, token_pattern=r"\w+")
    table = model.fit_transform(bodies).toarray()
    query = "w1 w3 w1 w11"
    asked = model.transform([query]).toarray()[0]
    ours = features_of(query, range(20), Statistics.of(collection(documents)), published=True)
    at = {name: i for i, name in enumerate(FEATURE_NAMES)}
    weights = [table[:, model.vocabulary_[word]] for word in query.split() if word in model.vocabulary_]
    assert_allclose(ours[:, at["sum of TF-IDF of body"]], sum(weights), rtol=1e-6)
    lengths = np.sqrt((table**2).sum(axis=1)) * np.sqrt((asked**2).sum())
    cosine = np.divide(table @ asked, lengths, out=np.zeros(20), where=lengths > 0)
    assert_allclose(ours[:, at["cosine of body"]], cosine, rtol=1e-6)


@pytest.mark.long
@needs.data
def test_nfcorpus_like_plain_python() -> None:
    folder = Path(DATA or "") / "text" / "nfcorpus"
    with lzma.open(folder / "corpus.jsonl.xz", "rt", encoding="utf-8") as lines:
        documents = [(line["title"], line["text"], line.get("url", "")) for line in map(json.loads, lines)]
    with open(folder / "queries.jsonl", encoding="utf-8") as lines:
        queries = [json.loads(line)["text"] for line in lines]
    statistics, plain = Statistics.of(collection(documents)), oracle.Collection(documents)
    rng = np.random.default_rng(5)
    asking, rows = rng.integers(0, len(queries), 50), rng.integers(0, len(documents), 50)
    # Half of the documents share a word with their query: random pairs have little in common.
    for i in range(0, 50, 2):
        some = [d for d in range(len(documents)) if set(tokens(queries[asking[i]])) & set(plain.streams[0][d])]
        rows[i] = rng.choice(some) if some else rows[i]
    table = features_for(queries, asking, rows, statistics, threads=2)
    expected = [oracle.features(queries[q], row, plain) for q, row in zip(asking, rows, strict=True)]
    assert (table[:, :2] > 0).any(axis=0).all()
    assert_allclose(table, expected, rtol=2e-6, atol=1e-7)

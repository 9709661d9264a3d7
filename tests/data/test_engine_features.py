"""engine-1: by hand, against the oracle, and against outsiders: what Lucene said, and tantivy's BM25."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedrank.data.documents import Documents, read_documents
from fedrank.data.engine_features import (
    ENGINE_1,
    NAMED,
    NAMES,
    TOLERANCE,
    EngineFeatures,
    EngineIndex,
    byte_to_length,
    is_engine_set,
    length_to_byte,
    standard_words,
)
from tests.oracles import engine_features as oracle

NOW = 1_700_000_000
LUCENE = json.loads((Path(__file__).parents[1] / "golden" / "lucene.json").read_text(encoding="utf-8"))


def made_up(count: int = 60, seed: int = 1) -> Documents:
    rng = np.random.default_rng(seed)
    vocabulary = np.array([f"w{i}" for i in range(30)])
    weights = 1 / np.arange(1, 31)
    weights /= weights.sum()

    def text(most: int) -> str:
        return " ".join(rng.choice(vocabulary, rng.integers(most), p=weights))

    titles = [text(6) for _ in range(count)]
    bodies = [text(300 if i % 7 == 0 else 40) for i in range(count)]
    changed = ["" if i % 5 == 0 else str(NOW - int(rng.integers(-5, 900)) * 86400) for i in range(count)]
    popularity = ["" if i % 3 == 0 else str(int(rng.integers(10_000))) for i in range(count)]
    ids = [f"d{i}" for i in range(count)]
    return Documents(ids, titles, bodies, [""] * count, (), changed, popularity)


def for_oracle(documents: Documents) -> list[dict]:
    columns = zip(documents.title, documents.text, documents.changed, documents.popularity, strict=True)
    return [
        {
            "title": title.split(),
            "body": body.split(),
            "changed": float(changed) if changed else None,
            "popularity": float(popularity or 0),
        }
        for title, body, changed, popularity in columns
    ]


def test_a_length_in_one_byte_by_hand():
    """1000 - 24 = 976 = 0b1111010000: the first bit goes without saying, then 111, and a shift of 6, kept as 7."""
    assert length_to_byte(1000) == 24 + 7 * 8 + 0b111
    assert byte_to_length(length_to_byte(1000)) == 24 + (0b1111 << 6) == 984
    assert [length_to_byte(n) for n in range(41)] == list(range(41))
    assert [byte_to_length(length_to_byte(n)) for n in (41, 42, 43, 55, 56, 57, 60)] == [40, 42, 42, 54, 56, 56, 60]
    assert length_to_byte(2**31 - 1) == 255


def test_bytes_keep_order_and_never_exceed_a_length():
    decoded = [byte_to_length(code) for code in range(256)]
    assert decoded == sorted(set(decoded))
    assert [length_to_byte(length) for length in decoded] == list(range(256))
    for length in (*range(3000), 10**5, 10**6, 2**31 - 1):
        assert byte_to_length(length_to_byte(length)) == oracle.kept_length(length)


def test_a_negative_length_is_refused():
    with pytest.raises(ValueError, match=r"length must be .*\(got -1\)"):
        length_to_byte(-1)


def test_one_score_by_hand():
    """Two documents, one with the word: ln(1 + 1.5 / 1.5) * 1 / (1 + 1.2 * (.25 + .75 * 2 / 3))."""
    index = ENGINE_1.index(Documents(["a", "b"], ["red fox", "blue dog here now"], ["", ""], ["", ""]))
    got = index.describe("fox", [0, 1])[:, NAMES.index("title_match")]
    assert got == pytest.approx([np.log(2) / (1 + 1.2 * (0.25 + 0.75 * 2 / 3)), 0.0], rel=1e-6)


@pytest.mark.parametrize("query", ["w0", "w1 w0", "w0 w0 w3", "w2 w9 w4 w1", "w1 unknown", "unknown", "", "w3 w3"])
@pytest.mark.parametrize("time", [NOW, None])
def test_features_are_the_oracle_s(query, time):
    documents = made_up()
    rows = np.arange(len(documents))[::-1]
    got = ENGINE_1.index(documents).describe(query, rows, time)
    world = for_oracle(documents)
    expected = [oracle.features(world, query.split(), world[row], time) for row in rows]
    np.testing.assert_allclose(got, np.array(expected), rtol=TOLERANCE, atol=1e-7)
    assert got.shape == (len(documents), len(NAMES))
    assert got.dtype == np.float32


def test_phrases_and_shares_occur_in_the_test_data():
    """Otherwise the comparison above would compare zeros."""
    found = ENGINE_1.index(made_up()).describe("w1 w0", np.arange(60), NOW)
    assert np.all(np.count_nonzero(found, axis=0) > 3)


@pytest.mark.parametrize("query", ["w0", "w1 w0", "w2 w9 w4 w1"])
def test_tantivy_agrees_with_bm25(query):
    """It has Lucene's bytes for lengths, but multiplies by k1 + 1, and counts documents without the field."""
    tantivy = pytest.importorskip("tantivy")
    documents = made_up()
    documents = Documents(documents.ids, [f"{title} end" for title in documents.title], documents.text, documents.url)
    builder = tantivy.SchemaBuilder()
    builder.add_integer_field("row", stored=True)
    builder.add_text_field("title", tokenizer_name="whitespace")
    index = tantivy.Index(builder.build())
    writer = index.writer(num_threads=1)
    for row, title in enumerate(documents.title):
        writer.add_document(tantivy.Document(row=row, title=title))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    ours = ENGINE_1.index(documents).describe(query, np.arange(len(documents)))
    for feature, asked in (("title_match", query), ("title_phrase", f'"{query}"')):
        found = searcher.search(index.parse_query(asked, ["title"]), len(documents)).hits
        scores = np.zeros(len(documents))
        for score, address in found:
            scores[searcher.doc(address)["row"][0]] = score / 2.2
        assert feature == "title_phrase" or np.count_nonzero(scores) > 5
        np.testing.assert_allclose(ours[:, NAMES.index(feature)], scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The 2 QUICK Brown-Foxes jumped over the lazy dog's bone.",
         ["the", "2", "quick", "brown", "foxes", "jumped", "over", "the", "lazy", "dog's", "bone"]),
        ("e.g. 3.14, 1,000 and 3. or .5 a:b a::b x'", ["e.g", "3.14", "1,000", "and", "3",
          "or", "5", "a:b", "a", "b", "x"]),
        ("foo_bar _x_ ___ a1b2 1a", ["foo_bar", "_x_", "a1b2", "1a"]),
        ("naïve CAFÉ cafe\u0301 don’t", ["naïve", "café", "cafe\u0301", "don’t"]),
        ("日本語 カタカナ です", ["日", "本", "語", "カタカナ", "で", "す"]),
        ("İstanbul ΟΔΟΣ straße", ["istanbul", "οδοσ", "straße"]),
        ("", []),
        ("x" * 600, ["x" * 255, "x" * 255, "x" * 90]),
    ],
)  # fmt: skip
def test_words_of_the_standard_tokenizer(text, words):
    assert standard_words(text) == words


def test_lucene_cuts_words_alike():
    """Scripts from everywhere, emoji, and 200 strings of letters and signs in no order."""
    for text, words in LUCENE["words"]:
        assert standard_words(text) == words, ascii(text)


@pytest.mark.parametrize("number", range(len(LUCENE["queries"])))
def test_lucene_scores_alike(number):
    documents = made_up()
    expected = np.zeros((len(documents), len(NAMES)))
    for query, feature, document, score in LUCENE["scores"]:
        if query == number:
            expected[document, NAMES.index(feature)] = score
    got = ENGINE_1.index(documents).describe(LUCENE["queries"][number], np.arange(len(documents)))
    np.testing.assert_allclose(got[:, :9], expected[:, :9], rtol=1e-6, atol=0)
    assert np.count_nonzero(expected[:, :9]) > 10


@pytest.mark.parametrize("part", ["_", "a_", "a'", "1,", "é_'", "\u0301", "ש'", "カ_", "\U0001f600\u200d", "a_1_", "ไ"])
def test_long_runs_of_the_same_letters_are_cut(part):
    for end in ("a", "é"):
        assert standard_words(f"{part * 100_000} {end}")[-1] == end  # a quadratic pattern would take minutes


def test_both_ways_to_cut_a_text_agree():
    text = "e.g. 3.14, 1,000 and 3. or .5 a:b a::b x' foo_bar _x_ ___ a1b2 1a dog's 1'000 a;b 1:2 a.1 1.a"
    assert standard_words(f"{text} é")[:-1] == standard_words(text)


def test_a_stemmer_is_part_of_the_name():
    pytest.importorskip("Stemmer")
    english = EngineFeatures.named("engine-1-english")
    assert english.words("running foxes") == ["run", "fox"]
    assert EngineFeatures.named(english.version) == english
    assert [is_engine_set(name) for name in (english.version, "engine-1", "live-1")] == [True, True, False]


@pytest.mark.parametrize("name", ["engine-2", "engine-1-", "engine-1-none", "engine-1-../x", "live-1"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="unknown feature set"):
        EngineFeatures.named(name)


def test_dates_in_all_forms_and_popularity_that_is_none(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text(
        '{"id": "a", "title": "x", "updated": "2023-11-14T22:13:20Z", "popularity": 7}\n'
        '{"id": "b", "title": "x", "updated": 1700000000, "popularity": "many"}\n'
        '{"id": "c", "title": "x", "updated": 1700000000000, "popularity": "nan"}\n'
        '{"id": "d", "title": "x", "updated": "lately"}\n'
    )
    index = EngineIndex.of(read_documents(path), ENGINE_1)
    found = index.describe("x", range(4), NOW + 30 * 86400)
    assert found[:, NAMES.index("recent_month")] == pytest.approx([0.5, 0.5, 0.5, 0.0])
    assert found[:, NAMES.index("popularity")] == pytest.approx([np.log(8), 0, 0, 0])


def test_a_collection_without_a_single_word():
    index = ENGINE_1.index(Documents(["a"], [""], ["--"], [""]))
    assert not index.describe("x y", [0], NOW).any()
    assert index.describe("x", []).shape == (0, len(NAMES))


def test_columns_of_another_length_are_refused():
    with pytest.raises(ValueError, match="2 values of changed were given for 1 documents"):
        Documents(["a"], ["t"], ["b"], ["u"], changed=["1", "2"])


def test_ranges_are_fixed_and_named_once():
    assert len(set(NAMES)) == len(NAMES) == 12
    assert ENGINE_1.ranges.tolist()[1] == [feature.top for feature in NAMED]

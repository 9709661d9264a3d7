"""Words: by hand."""

from __future__ import annotations

import re

import pytest

from fedrank.data.text import Tokeniser, content_words, stop_words, tokens


def test_tokens() -> None:
    assert tokens("Don't PANIC: 42, foo_bar.") == ["don", "t", "panic", "42", "foo_bar"]
    assert tokens("http://a-b.example/C?d=1") == ["http", "a", "b", "example", "c", "d", "1"]
    assert tokens("STRASSE Straße") == ["strasse", "strasse"]
    assert tokens("cafe\u0301 caf\u00e9 \uff21") == ["café", "café", "a"]  # accent apart or not; a wide A
    assert tokens("\ud800 ... \n") == []


def test_ascii_texts_are_split_as_all_others() -> None:
    text = "".join(map(chr, range(128))) + " A_b-C3.d\te\x1cF"
    assert tokens(text) == tokens(text + " é")[:-1] == re.findall(r"\w+", text.casefold())


def test_stems() -> None:
    assert Tokeniser()("Tests testing tested") == ["tests", "testing", "tested"]
    assert Tokeniser("english")("Tests testing tested, 42") == ["test", "test", "test", "42"]


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(ValueError, match="stem must be 'none' or 'english' \\(got 'german'\\)"):
        Tokeniser("german")


def test_a_tokeniser_is_known_by_its_name() -> None:
    for tokeniser in (Tokeniser(), Tokeniser("english")):
        assert Tokeniser.named(tokeniser.name) == tokeniser
    assert Tokeniser().name != Tokeniser("english").name
    with pytest.raises(ValueError, match=r"'words-0'.*count the words again"):
        Tokeniser.named("words-0")


@pytest.mark.parametrize(
    ("text", "language", "kept"),
    [
        ("What is the best way to dry the roof?", "english", ["best", "way", "dry", "roof"]),
        ("to be or not to be", "english", ["to", "be", "or", "not", "to", "be"]),  # nothing else is left
        ("the dog's bone isn't here, vitamin D", "english", ["dog", "bone", "vitamin", "d"]),
        ("US visa of us", "english", ["us", "visa", "us"]),
        ("HOW ARE YOU DOING ROOF", "english", ["roof"]),
        ("la fuite d'eau dans l\u2019abri", "french", ["fuite", "eau", "abri"]),
        ("die Rechnung für das Dach", "german", ["rechnung", "dach"]),
        ("the roof the roof", "porter", ["roof", "roof"]),
        ("the roof", "none", ["the", "roof"]),
        ("the roof", "tamil", ["the", "roof"]),
        ("", "english", []),
    ],
)
def test_function_words_are_dropped_from_queries(text, language, kept) -> None:
    assert content_words(text, language) == kept


def test_stop_words_are_words_as_they_are_cut_from_a_text() -> None:
    languages = "english german french spanish italian portuguese dutch swedish norwegian danish finnish hungarian"
    languages += " romanian russian turkish polish czech catalan indonesian"
    for language in languages.split():
        assert len(stop_words(language)) > 90
        assert all(tokens(word) == [word] for word in stop_words(language))
    assert stop_words("none") == stop_words("tamil") == frozenset()

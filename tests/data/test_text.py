"""Words: by hand."""

from __future__ import annotations

import pytest

from fedrank.data.text import Tokeniser, tokens


def test_tokens() -> None:
    assert tokens("Don't PANIC: 42, foo_bar.") == ["don", "t", "panic", "42", "foo_bar"]
    assert tokens("http://a-b.example/C?d=1") == ["http", "a", "b", "example", "c", "d", "1"]
    assert tokens("STRASSE Straße") == ["strasse", "strasse"]
    assert tokens("cafe\u0301 caf\u00e9 \uff21") == ["café", "café", "a"]  # accent apart or not; a wide A
    assert tokens("\ud800 ... \n") == []


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

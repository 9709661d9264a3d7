"""Queries whose text is not stored."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.data.redaction import LISTED, RARE, Redaction, read_words, replaced

MANY = 99


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("mail ann.b+c@post.example.org now", "an e-mail address"),
        ("mail ann\uff20example\uff0eorg", "an e-mail address"),
        ("ann @ example.org", "an e-mail address"),
        ("order \uff11\uff12\uff13\uff14\uff15\uff16", "a long number"),
        ("ann@localhost", ""),
        ("@home", ""),
        ("+49 (0)30 123-4567", "a phone number"),
        ("030/1234567", "a phone number"),
        ("iban de02120300000000202051", "a long number"),
        ("order 123456", "a long number"),
        ("windows 95 2000", ""),
        ("born 1.2.1984", ""),
        ("zip 10115", ""),
    ],
)
def test_patterns(query, why):
    assert Redaction().reasons([query], np.array([MANY])) == [why]
    assert Redaction(patterns=False).reasons([query], np.array([MANY])) == [""]


def test_rare_queries_and_listed_words():
    how = Redaction(people=3, words=("Müller", "STRASSE"))
    queries = ["müller", "mu\u0308ller berlin", "müllerin", "straße", "rain", "rare"]
    assert how.reasons(queries, np.array([MANY] * 4 + [3, 2])) == [LISTED, LISTED, "", LISTED, "", RARE]
    assert Redaction(people=1).reasons(["rare"], np.array([1])) == [""]


def test_what_is_stored():
    assert replaced(["a", "b", "c", "d"], ["", "x", "", "y"]) == ["a", "[redacted 1]", "c", "[redacted 2]"]


def test_words_of_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("\ufeff# names\nann\n\n  Bob \n", encoding="utf-8")
    assert read_words(path) == ("ann", "Bob")
    for content, problem in (
        (b"two words\n", "not a single word"),
        (b"# none\n", "no word"),
        (b"\xff\n", "not valid UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=problem):
            read_words(path)


@pytest.mark.parametrize("wrong", [{"people": 0}, {"what": "hide"}])
def test_what_cannot_be_asked_for(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be "):
        Redaction(**wrong)

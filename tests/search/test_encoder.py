"""Vectors of documents, by an encoder that is made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrank.search import encoder
from fedrank.search.encoder import DocumentVectors
from fedrank.search.results import SearchError
from tests.search.stored import add_documents, stored


class LengthEncoder:
    """Encodes a text by its length."""

    dimensions = 2

    def __init__(self, path) -> None:
        self.path = Path(path)
        if self.path.name == "moved.onnx":
            raise SearchError("no such file")
        self.digest = self.path.name

    def __call__(self, texts):
        return np.array([[len(text), 1] for text in texts], np.float32)


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder, "Encoder", LengthEncoder)
    monkeypatch.setattr(encoder, "AT_ONCE", 2)
    rows = stored(tmp_path, ["a", "bb", "ccc"])
    yield DocumentVectors(rows.store)
    rows.store.close()


def lengths(made):
    rows = made.store.rows("SELECT encoder, vector FROM vectors ORDER BY document")
    return [(encoder, int(np.frombuffer(vector, "<f2")[0])) for encoder, vector in rows]


def test_without_an_encoder_there_are_no_vectors(made):
    made.make_missing(lambda *_: pytest.fail("nothing to do"))
    assert (made.digest, lengths(made)) == ("", [])


def test_every_document_gets_one_vector_by_the_present_encoder(made):
    told = []
    made.use("first.onnx")
    made.make_missing(lambda what, done, of, text: told.append((what, done, of)))
    assert lengths(made) == [("first.onnx", len("1.txt. ") + n) for n in (1, 2, 3)]
    assert told == [("encode", 2, 3), ("encode", 3, 3)]
    add_documents(made.store, ["dddd"])
    made.make_missing(lambda *_: None)
    assert [encoder for encoder, _ in lengths(made)] == ["first.onnx"] * 4
    made.use("second.onnx")
    made.make_missing(lambda *_: None)
    assert [encoder for encoder, _ in lengths(made)] == ["second.onnx"] * 4


def test_the_encoder_is_remembered_until_it_is_no_longer_wanted(made):
    made.use("first.onnx")
    made.make_missing(lambda *_: None)
    assert DocumentVectors(made.store).digest == "first.onnx"
    made.use(None)
    assert (made.digest, lengths(made)) == ("", [])
    assert DocumentVectors(made.store).encoder is None


def test_an_encoder_that_was_moved_is_as_if_there_were_none(made):
    with made.store.writing():
        made.store.set(encoder="moved.onnx")
    assert DocumentVectors(made.store).encoder is None

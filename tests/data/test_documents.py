"""Collections of documents are read as they are, and what is wrong with them is named."""

from __future__ import annotations

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest

from fedrank.data.documents import Documents, read_documents
from tests import needs

ROWS = [
    {"id": "d1", "title": "One", "text": "first text", "url": "http://a.example/1"},
    {"id": "d2", "title": "", "text": "second\ttext".replace("\t", " "), "url": ""},
]
EXPECTED = Documents(["d1", "d2"], ["One", ""], ["first text", "second text"], ["http://a.example/1", ""])


def write(path: Path, text: str | bytes) -> Path:
    raw = text.encode() if isinstance(text, str) else text
    packed = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(raw)
    path.write_bytes(packed)
    return path


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
@pytest.mark.parametrize("key", ["id", "_id", "ID"])
@pytest.mark.parametrize("body", ["text", "body"])
def test_json_lines(tmp_path, packed, key, body):
    text = "".join(
        json.dumps({key: row["id"], "title": row["title"] or None, body: row["text"], "url": row["url"], "more": 1})
        + "\n\n"
        for row in ROWS
    )
    assert read_documents(write(tmp_path / f"corpus.jsonl{packed}", text)) == EXPECTED


@pytest.mark.parametrize("packed", ["", ".gz", ".xz"])
def test_tab_separated_columns_go_by_name(tmp_path, packed):
    text = "\ufeffurl\tother\tid\ttext\ttitle\r\nhttp://a.example/1\tx\td1\tfirst text\tOne\r\n\tx\td2\tsecond text\r\n"
    assert read_documents(write(tmp_path / f"corpus.tsv{packed}", text)) == EXPECTED


def test_missing_fields_are_empty_and_numbers_are_text(tmp_path):
    found = read_documents(write(tmp_path / "c.jsonl", '{"id": 7}\n{"id": "x", "text": ["a", "b"]}\n'))
    assert found == Documents(["7", "x"], ["", ""], ["", "a b"], ["", ""])


def test_an_archive_with_another_name_is_recognised(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(b'{"id": "d1"}\n'))
    assert read_documents(path).ids == ["d1"]


def test_broken_bytes_are_replaced_and_named(tmp_path):
    found = read_documents(write(tmp_path / "c.jsonl", b'{"id": "a"}\n{"id": "b", "text": "caf\xe9"}\n'))
    assert found.text[1] == "caf�"
    assert found.broken == (1,)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.jsonl", '{"id": "a"}\n{"id": "b"}\n{"id": "a"}\n', "line 3: the id 'a' already occurs in line 1"),
        ("c.tsv", "id\ttext\na\tx\na\ty\n", "line 3: the id 'a' already occurs in line 2"),
        ("c.jsonl", '{"id": "a"}\n{"text": "b"}\n', "line 2: no column 'id' or '_id'"),
        ("c.jsonl", '{"id": " "}\n', "line 1: the id '' is not valid"),
        ("c.jsonl", '{"id": "a\\nb"}\n', "is not valid"),
        ("c.jsonl", '{"id": "\\ud800"}\n', "is not valid"),
        ("c.jsonl", '{"id": "a"\n', "line 1: not a JSON object"),
        ("c.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("c.tsv", "number\ttext\na\tx\n", "the columns are 'number', 'text'"),
        ("c.tsv", "id\ttext\na\tx\ty\n", "line 2: 3 columns, but the header has 2"),
        ("c.tsv", "id\ttext\n", "contains no documents"),
        ("c.csv", "id,text\n", "must be in a .jsonl or .tsv file"),
        ("c.parquet", "x", "unknown file format"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        read_documents(write(tmp_path / name, text))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_an_archive_that_is_cut_short_is_refused(tmp_path, pack):
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(pack(b'{"id": "a", "text": "' + os.urandom(500).hex().encode() + b'"}\n')[:-20])
    path = path.rename(tmp_path / ("c.jsonl.gz" if pack is gzip.compress else "c.jsonl.xz"))
    with pytest.raises(ValueError, match="damaged or truncated"):
        read_documents(path)


def test_columns_must_agree():
    with pytest.raises(ValueError, match="2 ids, 1 titles"):
        Documents(["a", "b"], [""], ["", ""], ["", ""])


@needs.data
def test_a_real_collection():
    path = Path(os.environ["FEDRANK_DATA"]) / "text" / "nfcorpus" / "corpus.jsonl.xz"
    if not path.exists():
        needs.skip("data", "nfcorpus is not below FEDRANK_DATA")
    found = read_documents(path)
    assert len(found) == len(lzma.decompress(path.read_bytes()).splitlines()) == 3633
    assert found.ids[0] == "MED-10"
    assert found.title[0].startswith("Statin Use and Breast Cancer Survival")
    assert not found.broken

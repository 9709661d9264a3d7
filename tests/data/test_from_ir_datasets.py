"""Logs of ir_datasets, by a stand-in that offers what the package offers for AOL-IA."""

from __future__ import annotations

import sys
import types
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from fedrank.data.build_log import LogBuild, build_log
from fedrank.data.click_log import read_clicks
from fedrank.data.documents import read_documents
from fedrank.data.from_ir_datasets import documents_of
from fedrank.data.lists import ListRules

SOURCE = Path("ir_datasets:aol-ia")


class Doc(NamedTuple):
    doc_id: str
    title: str
    text: str
    url: str
    ia_url: str


class Item(NamedTuple):
    doc_id: str
    rank: str
    clicked: bool


class Search(NamedTuple):
    user_id: str
    query_id: str
    query: str
    query_orig: str
    time: datetime
    items: tuple[Item, ...]


DOCS = [Doc(f"d{i}", f"Fruit {i}", "apple " * (9 - i) + "pear " * i, f"http://fruit/{i}", "archived") for i in range(8)]
NOON = datetime(2006, 3, 1, 12)
SEARCHES = [
    Search("17", "a", "apple", "Apple!", NOON, (Item("d0", "1", True),)),
    Search("17", "a", "apple", "apple", NOON.replace(hour=11), (Item("d1", "2", True),)),
    Search("23", "p", "pear", "pear", NOON.replace(hour=13), ()),
    Search("23", "p", "pear", "pear", NOON.replace(hour=14), (Item("gone", "1", True), Item("d7", "2", True))),
    Search("23", "p", "pear", "pear", NOON.replace(hour=15), (Item("d6", "2", False),)),
]


class AolIa:
    """What ir_datasets.load("aol-ia") offers; the set "documents" has no log."""

    def __init__(self, docs, searches=None):
        self.docs, self.searches = docs, searches
        if searches is not None:
            self.qlogs_iter = lambda: iter(searches)
            self.qlogs_count = lambda: len(searches)

    def docs_iter(self):
        return iter(self.docs)

    def docs_count(self):
        return len(self.docs)


@pytest.fixture
def package(monkeypatch):
    sets = {"aol-ia": AolIa(DOCS, SEARCHES), "documents": AolIa(DOCS)}
    module = types.ModuleType("ir_datasets")
    module.load = sets.__getitem__
    monkeypatch.setitem(sys.modules, "ir_datasets", module)
    return sets


@pytest.mark.usefixtures("package")
def test_documents_and_clicks_are_those_of_the_package():
    documents = documents_of(SOURCE)
    assert documents.ids == [f"d{i}" for i in range(8)]
    assert (documents.title[3], documents.text[8 - 1][:5], documents.url[2]) == ("Fruit 3", "apple", "http://fruit/2")
    clicks = read_clicks(SOURCE, documents)
    assert [clicks.users[u] for u in clicks.user] == ["17", "17", "23"]
    assert [clicks.queries[q] for q in clicks.query] == ["apple", "apple", "pear"]
    assert [documents.ids[d] for d in clicks.document] == ["d1", "d0", "d7"]
    assert clicks.time.tolist() == [1_141_171_200 + 3600 * hour for hour in (11, 12, 14)]
    assert (clicks.rows, clicks.out_of_order) == (6, 1)
    assert {reason: str(one) for reason, one in clicks.left_out.items()} == {
        "no click": "2 (lines 3, 5)",
        "click on an unknown document": "1 (line 4)",
    }


def test_a_build_is_that_of_the_same_files(package, tmp_path):
    pytest.importorskip("bm25s")
    how = LogBuild(ListRules(length=4, depth=100))
    corpus, log = tmp_path / "corpus.tsv", tmp_path / "log.tsv"
    corpus.write_text(
        "id\ttitle\ttext\turl\n" + "".join("\t".join((doc.doc_id, doc.title, doc.text, doc.url)) + "\n" for doc in DOCS)
    )
    log.write_text(
        "user\ttime\tquery\tdocument\n"
        + "".join(f"{s.user_id}\t{s.time}\t{s.query}\t{i.doc_id}\n" for s in SEARCHES for i in s.items if i.clicked)
    )
    assert read_documents(corpus) == documents_of(SOURCE)
    one = build_log(log, corpus, tmp_path / "one", how)
    two = build_log("ir_datasets:aol-ia", "ir_datasets:aol-ia", tmp_path / "two", how)
    for name in ("features", "lists", "target", "user", "time", "query", "document"):
        assert (tmp_path / "one" / f"{name}.npy").read_bytes() == (tmp_path / "two" / f"{name}.npy").read_bytes()
    assert two.facts["files"] == {"log": "ir_datasets:aol-ia", "documents": "ir_datasets:aol-ia"}
    assert one.users == two.users
    package["aol-ia"].docs = DOCS[:-1]
    with pytest.raises(FileExistsError, match="another version of these files"):
        build_log("ir_datasets:aol-ia", "ir_datasets:aol-ia", tmp_path / "two", how)


def test_what_cannot_be(package, monkeypatch):
    with pytest.raises(ValueError, match=r"ir_datasets has no set 'aol'; see https"):
        documents_of(Path("ir_datasets:aol"))
    with pytest.raises(ValueError, match="ir_datasets:documents has no log"):
        read_clicks(Path("ir_datasets:documents"), documents_of(SOURCE))

    def not_downloaded():
        raise RuntimeError("you will need to run the download script")

    package["aol-ia"].docs_iter = not_downloaded
    with pytest.raises(ValueError, match=r"ir_datasets:aol-ia: .* download script"):
        documents_of(SOURCE)
    package["documents"].docs = [DOCS[0], DOCS[0]]
    with pytest.raises(ValueError, match="duplicate or empty document ids"):
        documents_of(Path("ir_datasets:documents"))
    package["documents"].docs = []
    with pytest.raises(ValueError, match="no document"):
        documents_of(Path("ir_datasets:documents"))
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'fedrank\[ir-datasets\]'"):
        documents_of(SOURCE)

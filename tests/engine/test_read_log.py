"""Logged features: the three engines' forms, clicks, and everything that can be wrong with them."""

from __future__ import annotations

import gzip
import json
import stat

import numpy as np
import pytest

from fedrank.data.engine_features import NAMES
from fedrank.data.letor import read_comments, read_letor
from fedrank.data.rows import BAD_BYTES, BAD_ROW
from fedrank.engine import read_log
from fedrank.engine.read_log import as_letor, read_joined_clicks, read_logged, write_logged

AB = ("a", "b")


def hit(name, values=((("a"), 1.0), ("b", 2.0)), entry="engine-1"):
    log = [{"name": feature} | ({} if value is None else {"value": value}) for feature, value in values]
    return {"_index": "x", "_id": name, "_score": 0.0, "fields": {"_ltrlog": [{entry: log}]}}


def answer(search, *hits, **more):
    return {"took": 1, "hits": {"total": {"value": 2}, "hits": list(hits)}, "query_id": search, **more}


def solr(search, *texts):
    docs = [{"id": f"d{i}", "score": 1.0, "[features]": text} for i, text in enumerate(texts)]
    return {"responseHeader": {"status": 0, "params": {"query_id": search}}, "response": {"docs": docs}}


@pytest.fixture
def written(tmp_path):
    def write(*rows, name="log.ndjson"):
        path = tmp_path / name
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path.write_bytes(b"\n".join(lines) + b"\n")
        return path

    return write


def test_answers_of_opensearch(written):
    logged = read_logged(
        written(
            answer("q1", hit("d1"), hit("d2", [("b", 3), ("a", None), ("extra_logging", {"x": 1})])),
            answer("q2", hit("d1")),
        ),
        AB,
    )
    assert logged.searches == ("q1", "q2")
    assert logged.documents == ("d1", "d2", "d1")
    assert logged.features.tolist() == [[1, 2], [0, 3], [1, 2]]
    assert logged.offsets.tolist() == [0, 2, 3]
    assert (logged.missing, logged.left_out) == (1, {})


@pytest.mark.parametrize(
    "row",
    [
        {"query_id": "q"},
        {"ext": {"ubi": {"query_id": "q"}}},
        {"ubi": {"query_id": "q"}},
        {"responseHeader": {"params": {"query_id": "q"}}},
    ],
)
def test_where_the_id_of_a_search_may_stand(written, row):
    assert read_logged(written({"hits": {"hits": [hit("d")]}, **row}), AB).searches == ("q",)


def test_answers_of_solr_dense_and_sparse(written):
    logged = read_logged(written(solr("q1", "a=1.5,b=-2.0", "b:3 a:0.25"), solr("q2", "b:7")), AB)
    assert logged.features.tolist() == [[1.5, -2], [0.25, 3], [0, 7]]
    assert not logged.left_out


def test_pages_of_one_search_are_joined(written):
    logged = read_logged(written(answer("q", hit("d1")), answer("p", hit("d1")), answer("q", hit("d2"), hit("d1"))), AB)
    assert logged.documents == ("d1", "d2", "d1")
    assert logged.searches == ("q", "p")
    assert logged.left_out["hit that was already logged for the same search"].lines == (3,)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"{", BAD_ROW),
        (b"[1]", BAD_ROW),
        (b"[" * 100_000, BAD_ROW),
        (b'{"query_id": "\xff"}', BAD_BYTES),
        (answer("", hit("d")), "answer without a query id"),
        (answer({"x": 1}, hit("d")), "answer without a query id"),
        (answer("a\nb", hit("d")), "answer without a query id"),
        ({"query_id": "q"}, "answer without hits"),
        ({"query_id": "q", "hits": {"hits": {}}}, "answer without hits"),
        (answer("q"), "answer without hits"),
        (answer("q", *[hit(f"d{i}") for i in range(4)]), "answer of more than 3 hits"),
        (answer("q", hit("")), "hit without an id"),
        (answer("q", 7), "hit without an id"),
        (answer("q", hit(["x"])), "hit without an id"),
        (answer("q", {"_id": "d"}), "hit without logged features"),
        (answer("q", {"_id": "d", "fields": {"_ltrlog": [7]}}), "hit without logged features"),
        (answer("q", {"_id": "d", "fields": {"_ltrlog": [{"e": [7]}]}}), "hit without logged features"),
        (
            answer("q", {"_id": "d", "fields": {"_ltrlog": [{"e": [], "f": []}]}}),
            "hit with several feature sets, none of which was selected",
        ),
        (answer("q", hit("d", [("c", 1)])), "hit with a feature that is not in the set"),
        (answer("q", hit("d", [("a", 1), ("a", 1)])), "hit with a duplicate feature"),
        (answer("q", hit("d", [("a", 1e39)])), "hit with a value that is not a finite number"),
        (answer("q", hit("d", [("a", True)])), "hit with a value that is not a finite number"),
        (answer("q", hit("d", [("a", [1])])), "hit with a value that is not a finite number"),
        (answer("q", hit("d", [("a", "NaN")])), "hit with a value that is not a finite number"),
        (answer("q", hit("d", [("a", 10**400)])), "hit with a value that is not a finite number"),
        (solr("q", "a=NaN,b=1"), "hit with a value that is not a finite number"),
        (solr("q", "nothing"), "hit without logged features"),
        (solr("q", ""), "hit without logged features"),
    ],
)
def test_what_cannot_be_used_is_counted(monkeypatch, written, bad, reason):
    monkeypatch.setattr(read_log, "MAX_HITS", 3)
    logged = read_logged(written(answer("good", hit("d")), bad), AB)
    assert logged.searches == ("good",)
    assert list(logged.left_out) == [reason]
    assert logged.left_out[reason].lines == (2,)


def test_one_of_several_sets_can_be_chosen(written):
    both = hit("d")
    both["fields"]["_ltrlog"][0]["other"] = [{"name": "a", "value": 9}]
    assert read_logged(written(answer("q", both)), AB, entry="other").features.tolist() == [[9, 0]]
    assert read_logged(written(answer("q", both)), AB, entry="none").left_out["hit without logged features"].count == 1


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a", "")])
def test_names_must_tell_features_apart(written, names):
    with pytest.raises(ValueError, match="must be unique"):
        read_logged(written(answer("q", hit("d"))), names)


def test_nothing_at_all(written):
    with pytest.raises(ValueError, match=r"no logged row can be used \(answer without hits: 1 \(line 1\)\)"):
        as_letor(read_logged(written(answer("q")), AB))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.tsv", "time\tquery_id\tdoc_id\n1\tq1\td2\n"),
        ("c.csv", 'query_id,document\nq1,"d2"\n'),
        ("c.jsonl", '{"query_id": "q1", "document": "d2"}\n'),
        (
            "c.ndjson",
            '{"action_name": "click", "query_id": "q1", "event_attributes": {"object": {"object_id": "d2"}}}\n',
        ),
    ],
)
def test_clicks_in_all_forms(written, tmp_path, name, content):
    logged = read_logged(written(answer("q1", hit("d1"), hit("d2")), answer("q2", hit("d2"))), AB)
    path = tmp_path / f"{name}.gz"
    path.write_bytes(gzip.compress(content.encode()))
    clicks = read_joined_clicks(path, logged)
    assert clicks.grades.tolist() == [0, 1, 0]
    assert clicks.left_out == {}


def test_clicks_that_cannot_be_used_are_counted(written):
    logged = read_logged(written(answer("q1", hit("d1"), hit("d2"))), AB)
    found = read_joined_clicks(
        written(
            {"query_id": "q1", "document": "d1"},
            {"query_id": "q1", "document": "d1"},
            {"query_id": "q9", "document": "d1"},
            {"query_id": "q1", "document": "d9"},
            {"query_id": "q1"},
            {"document": "d1"},
            {"query_id": "q1", "document": "d2", "action_name": "impression"},
            b"{",
            name="clicks.jsonl",
        ),
        logged,
    )
    assert found.grades.tolist() == [1, 0]
    assert {reason: left.lines for reason, left in found.left_out.items()} == {
        "repeated click on the same document": (2,),
        "click on a search that was not logged": (3,),
        "click on a document that was not logged for its search": (4,),
        "click without a document": (5,),
        "click without a query id": (6,),
        "an event that is not a click": (7,),
        BAD_ROW: (8,),
    }


def test_tables_with_broken_rows(tmp_path, written):
    logged = read_logged(written(answer("q1", hit("d1"))), AB)
    path = tmp_path / "c.csv"
    path.write_bytes(b'query_id,document\nq1\n"q1,d1\nq1,\xff\nq1,d1\n')
    found = read_joined_clicks(path, logged)
    assert found.grades.tolist() == [1]
    assert {reason: left.lines for reason, left in found.left_out.items()} == {
        BAD_ROW: (2, 3),
        BAD_BYTES: (4,),
    }
    path.write_text("who,what\n")
    with pytest.raises(ValueError, match="no column 'query_id'"):
        read_joined_clicks(path, logged)


def test_letor_reads_back_as_it_was_logged(written, tmp_path):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((6, len(NAMES))).astype(np.float32)
    hits = [hit(f"d{i}", list(zip(NAMES, row.tolist(), strict=True))) for i, row in enumerate(rows)]
    logged = read_logged(written(answer("q/1 x", *hits[:4]), answer("q2", *hits[4:])))
    write_logged(tmp_path / "train.txt", logged, np.array([0, 1, 0, 0, 1, 0], np.int8))
    data = read_letor(tmp_path / "train.txt")
    np.testing.assert_array_equal(data.features, rows)
    assert data.grades.tolist() == [0, 1, 0, 0, 1, 0]
    assert data.offsets.tolist() == [0, 4, 6]
    assert [text.strip() for text in read_comments(tmp_path / "train.txt")][:2] == ["q/1 x d0", "q/1 x d1"]
    assert stat.S_IMODE((tmp_path / "train.txt").stat().st_mode) == 0o600

"""Logs are read whatever they are written in; what cannot be used is counted, never guessed at."""

from __future__ import annotations

import gzip
import json
import lzma

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrank.data.click_log import CLICK_LOG, read_clicks
from fedrank.data.documents import Documents
from fedrank.data.logs import as_ranking, load_log, read_names, write_names
from fedrank.data.values import parse_query, parse_seconds

DOCUMENTS = Documents(
    ["a", "b", "c"],
    ["", "", ""],
    ["", "", ""],
    ["http://one.example", "https://Two.example/", "http://two.example"],
)
# (user, time, query, document): the second entry is later than the third
ENTRIES = [("ann", 100, "new york", "a"), ("bob", 300, "cats, dogs", "b"), ("ann", 200, "new york", "c")]


def tsv(rows, header="user\ttime\tquery\tdocument"):
    return "\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n"


def check(found):
    assert found.time.tolist() == [100, 200, 300]
    assert [found.users[i] for i in found.user] == ["ann", "ann", "bob"]
    assert [found.queries[i] for i in found.query] == ["new york", "new york", "cats, dogs"]
    assert found.document.tolist() == [0, 2, 1]
    assert found.rows == len(found) == 3
    assert found.left_out == {}
    assert found.out_of_order == 1


def test_tab_separated(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_text(tsv(ENTRIES))
    check(read_clicks(path, DOCUMENTS))


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed(tmp_path, ending, pack):
    path = tmp_path / f"log.tsv{ending}"
    path.write_bytes(pack(tsv(ENTRIES).encode()))
    check(read_clicks(path, DOCUMENTS))


def test_comma_separated_with_other_columns_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text(
        "\ufeffDocument,rank,Query,Time,User_ID\r\na,1,New  York,100,ann\r\n"
        'b,2,"cats, dogs",300,bob\r\nc,3, new york,200,ann\r\n'
    )
    check(read_clicks(path, DOCUMENTS))


def test_json_lines_with_dates(tmp_path):
    path = tmp_path / "log.jsonl"
    dates = ["1970-01-01T00:01:40Z", "1970-01-01 01:05:00+01:00", "1970-01-01 00:03:20"]  # 100, 300, 200 seconds
    path.write_text(
        "".join(
            json.dumps({"user": user, "time": date, "query": query, "doc_id": document}) + "\n"
            for (user, _, query, document), date in zip(ENTRIES, dates, strict=True)
        )
    )
    check(read_clicks(path, DOCUMENTS))


def test_chosen_columns(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_text(tsv(ENTRIES, "who\twhen\twhat\twhich"))
    columns = {"user": "who", "time": "when", "query": "what", "document": "which"}
    check(read_clicks(path, DOCUMENTS, columns))
    with pytest.raises(ValueError, match=r"no column 'document' or .* the columns are 'who', 'when', 'what', 'which'"):
        read_clicks(path, DOCUMENTS)
    with pytest.raises(ValueError, match="no column 'whom'"):
        read_clicks(path, DOCUMENTS, columns | {"user": "whom"})
    with pytest.raises(ValueError, match="unknown field 'person'"):
        read_clicks(path, DOCUMENTS, {"person": "who"})


def test_aol_names_documents_by_url(tmp_path):
    path = tmp_path / "user-ct-test-collection-01.txt.gz"
    text = (
        "AnonID\tQuery\tQueryTime\tItemRank\tClickURL\n"
        "142\trentdirect.com\t2006-03-01 07:17:12\t\t\n"
        "142\tone\t2006-03-01 07:17:13\t1\thttp://ONE.example/\n"
        "142\ttwo\t2006-03-01 07:17:14\t2\thttp://two.example\n"
        "142\tthree\t2006-03-01 07:17:15\t3\thttp://three.example\n"
        "142\tno click\t2006-03-01 07:17:16\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    found = read_clicks(path, DOCUMENTS)
    assert found.queries == ["one"]
    assert found.document.tolist() == [0]
    assert found.time.tolist() == [1141197433]  # 2006-03-01 07:17:13 in UTC
    assert {reason: (one.count, one.lines) for reason, one in found.left_out.items()} == {
        "no click": (2, (2, 6)),
        "click on a url of several documents": (1, (4,)),
        "click on an unknown document": (1, (5,)),
    }


def test_urls_can_be_asked_for_and_must_exist(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_text(tsv([("ann", 1, "x", "one.example")]))
    assert read_clicks(path, DOCUMENTS, match="url").document.tolist() == [0]
    assert len(read_clicks(path, DOCUMENTS)) == 0
    with pytest.raises(ValueError, match="no document has a url"):
        read_clicks(path, Documents(["a"], [""], [""], [""]), match="url")
    with pytest.raises(ValueError, match="match must be one of"):
        read_clicks(path, DOCUMENTS, match="title")


def test_every_bad_row_is_counted_with_its_reason(tmp_path):
    path = tmp_path / "log.tsv"
    rows = [
        b"user\ttime\tquery\tdocument",
        b"ann\tyesterday\tx\ta",  # 2
        b"ann\t5\t \ta",  # 3
        b"ann\t5\tx\tzzz",  # 4
        b"ann\t5\tcaf\xe9\ta",  # 5
        b"ann\t5\tx\t",  # 6
        b"\t5\tx\ta",  # 7
        b"ann\t5\tx\ta",  # 8, sound
        b"",  # 9 is no row
        b"ann\t5\tx\ta\ttoo many",  # 10
        *[b"ann\t\tx\ta"] * 6,  # 11 .. 16
    ]
    path.write_bytes(b"\n".join(rows))
    found = read_clicks(path, DOCUMENTS)
    assert len(found) == 1
    assert found.rows == 14
    assert {reason: (one.count, one.lines) for reason, one in found.left_out.items()} == {
        "unreadable time": (7, (2, 11, 12, 13, 14)),
        "empty query": (1, (3,)),
        "click on an unknown document": (1, (4,)),
        "not UTF-8": (1, (5,)),
        "no click": (1, (6,)),
        "no user": (1, (7,)),
        "not a row": (1, (10,)),
    }
    assert str(found.left_out["unreadable time"]) == "7 (lines 2, 11, 12, 13, 14, ...)"
    assert found.rows == len(found) + sum(one.count for one in found.left_out.values())


def test_broken_quotes_cost_one_row(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text('user,time,query,document\nann,1,"x,a\nann,2,y,a\nann,3,z,b\n')
    found = read_clicks(path, DOCUMENTS)
    assert found.time.tolist() == [2, 3]
    assert found.left_out["not a row"].lines == (2,)


def test_broken_json_costs_one_row(tmp_path):
    path = tmp_path / "log.jsonl"
    sound = '{"user": 1, "time": 2.5, "query": "x", "document": "a"}\n'
    path.write_text("{\n" + sound + '[1]\n{"user": 1}\n{"user": 1, "time": 2, "query": "\\ud800", "document": "a"}\n')
    found = read_clicks(path, DOCUMENTS)
    assert found.time.tolist() == [2]
    assert {reason: one.lines for reason, one in found.left_out.items()} == {
        "not a row": (1, 3),
        "no click": (4,),
        "empty query": (5,),
    }


def test_names_of_columns_must_be_readable(tmp_path):
    path = tmp_path / "log.tsv"
    path.write_bytes(b"us\xe9r\ttime\n")
    with pytest.raises(ValueError, match="line 1: the column names cannot be read: not UTF-8"):
        read_clicks(path, DOCUMENTS)


@settings(deadline=None, max_examples=50)
@given(times=st.lists(st.integers(0, 20), max_size=30))
def test_entries_are_sorted_by_time_and_ties_stay_in_order(times, tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.tsv"
    path.write_text(tsv([(f"u{i}", time, "x", "a") for i, time in enumerate(times)]))
    found = read_clicks(path, DOCUMENTS)
    expected = sorted((time, i) for i, time in enumerate(times))
    assert list(zip(found.time.tolist(), [int(found.users[u][1:]) for u in found.user], strict=True)) == expected
    late = [i for i, time in enumerate(times) if time < max(times[: i + 1])]
    assert found.out_of_order == len(late)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        (" 12.9 ", 12),
        ("-1.5", -2),
        ("1970-01-01", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("", None),
        ("1_000", None),
        ("nan", None),
        ("1e5", None),
        ("2006-13-01", None),
        ("1141197433000", None),  # milliseconds
    ],
)
def test_times(text, seconds):
    assert parse_seconds(text) == seconds


def test_normalised_queries():
    assert parse_query("\tNew\u00a0 York ") == "new york"


def test_every_field_has_a_column_of_its_own_name():
    assert all(name in column.names for name, column in CLICK_LOG.columns.items())


def test_names_survive_odd_characters(tmp_path):
    names = ("a\u2028b", "\x0b", " x ", "")
    write_names(tmp_path / "names.txt", names)
    assert read_names(tmp_path / "names.txt") == names


def test_a_folder_that_is_no_data_set(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"it has no facts\.json"):
        load_log(tmp_path)
    (tmp_path / "begun.json").write_text("{}")
    with pytest.raises(ValueError, match="incomplete; run the same command again"):
        load_log(tmp_path)
    (tmp_path / "facts.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="has format 99"):
        load_log(tmp_path)


def made_up_set(folder):
    """Two entries with lists of three documents, written by hand."""
    arrays = {
        "features": np.arange(10, dtype=np.float32).reshape(5, 2),
        "lists": np.array([[0, 1, 2], [4, 3, 0]]),
        "target": np.array([2, 0], dtype=np.int8),
        "user": np.array([0, 0], dtype=np.int32),
        "time": np.array([10, 20]),
        "query": np.array([0, 0], dtype=np.int32),
        "document": np.array([5, 6, 7, 8, 9], dtype=np.int32),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    write_names(folder / "users.txt", ["ann"])
    write_names(folder / "queries.txt", ["x"])
    write_names(folder / "documents.txt", list("0123456789"))
    facts = {
        "format": 1,
        "counts": {"users": 1, "queries": 1, "documents": 10},
        "shapes": {name: list(values.shape) for name, values in arrays.items()},
        "feature_names": ["f", "g"],
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    return folder


def test_a_data_set_as_ranking_data(tmp_path):
    log = load_log(made_up_set(tmp_path))
    assert log.clicked().tolist() == [2, 4]
    assert log.rows_of(0).tolist() == [0, 1]
    data = as_ranking(log, [1, 0])
    assert data.features[:, 0].tolist() == [8, 6, 0, 0, 2, 4]
    assert data.grades.tolist() == [1, 0, 0, 0, 0, 1]
    assert data.offsets.tolist() == [0, 3, 6]
    assert data.query_ids.tolist() == ["1", "0"]
    assert data.feature_names == ("f", "g")
    assert data.top_grade == 1


def test_writing_to_a_loaded_array_does_not_reach_the_disk(tmp_path):
    made_up_set(tmp_path)
    load_log(tmp_path).features[0, 0] = 7
    assert load_log(tmp_path).features[0, 0] == 0


@pytest.mark.parametrize("how", ["cut", "missing", "other type", "other shape", "names", "facts"])
def test_a_damaged_data_set_is_refused(tmp_path, how):
    path = made_up_set(tmp_path) / "lists.npy"
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    elif how == "missing":
        path.unlink()
    elif how == "other type":
        np.save(path, np.zeros((2, 3), dtype=np.int32))
    elif how == "other shape":
        np.save(path, np.zeros((3, 3), dtype=np.int64))
    elif how == "names":
        write_names(tmp_path / "users.txt", ["ann", "bob"])
    else:
        (tmp_path / "facts.json").write_text('["format", 1]')
    with pytest.raises(ValueError, match="the folder is damaged: delete it and build it again"):
        load_log(tmp_path)

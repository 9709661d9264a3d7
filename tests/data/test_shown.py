"""Tables of lists as they were shown."""

from __future__ import annotations

import gzip
import json
import math

import pytest

from fedrank.data import shown
from fedrank.data.click_log import BAD_TIME, NO_USER
from fedrank.data.documents import Documents
from fedrank.data.rows import BAD_BYTES, BAD_ROW
from fedrank.data.shown import is_shown_table, read_shown
from fedrank.data.values import parse_list, parse_time
from tests.data.test_ubi import lists_of, reasons

DOCUMENTS = Documents([f"d{i}" for i in range(1, 9)], ["t"] * 8, ["b"] * 8, [""] * 8)
HEADER = "user\ttime\tquery\tshown\tclicked\n"


def read(path, text, **others):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_shown(path, DOCUMENTS, **others)


def test_tab_separated(tmp_path):
    text = HEADER + 'ann\t2023-01-02\tA  b\td3 d1\td1 d3\nbob\t5\tx\t["d2"]\t[]\nbob\t9\tx\td4 d5\t\n'
    rows = read(tmp_path / "log.tsv", text)
    assert lists_of(rows) == [(0, [2], []), (0, [4, 5], []), (0, [3, 1], [3, 1])]
    assert rows.queries == ["a b", "x"]
    assert [rows.users[user] for user in rows.user] == ["bob", "bob", "ann"]
    assert rows.out_of_order == 2
    assert (rows.unit, rows.rows, rows.left_out) == ("person", 3, {})


def test_packed_comma_separated_with_other_names(tmp_path):
    text = 'client_id,when,query,results,clicked\nx,5,"a, b",d1 d2,d2\n'
    columns = {"time": "when", "shown": "results"}
    rows = read(tmp_path / "log.csv.gz", gzip.compress(text.encode()), columns=columns)
    assert lists_of(rows) == [(0, [1, 2], [2])]
    assert rows.unit == "browser", "that is what the column names"
    with pytest.raises(ValueError, match="unknown field 'place'"):
        read_shown(tmp_path / "log.csv.gz", DOCUMENTS, {"place": "x"})
    with pytest.raises(ValueError, match="no column 'shown' for the shown"):
        read_shown(tmp_path / "log.csv.gz", DOCUMENTS, {"time": "when"})


def test_json_lines_with_all_that_can_be_said(tmp_path):
    one = {"user": "ann", "time": 10, "query": "x", "shown": ["d1", "d2"], "scores": [1.5, 0]}
    more = {"user": 7, "time": 20_000_000_000_000, "clicked": ["d2", "d1"], "dwell": [60, None], "first": 10}
    text = "\n".join(map(json.dumps, [one, one | more | {"time": 20}]))
    rows = read(tmp_path / "log.jsonl", text, drawn=(0.5, 0.0))
    assert lists_of(rows) == [(0, [1, 2], []), (10, [1, 2], [1, 2])]
    assert rows.users == ["ann", "7"]
    assert rows.dwell[3] == 60
    assert math.isnan(rows.dwell[2])
    assert (rows.drawn, rows.scores.tolist()) == ((0.5, 0.0), [1.5, 0, 1.5, 0])
    assert reasons(rows) == {shown.BAD_DWELL: (1, (2,))}
    assert read(tmp_path / "log.jsonl", text).drawn is None, "scores tell nothing without a temperature"


def test_every_bad_row_is_counted_with_its_reason(tmp_path):
    lines = [
        "ann\t5\tx\td1 d2\td2 d2 d3",
        "\t5\tx\td1\t",
        "ann\tsoon\tx\td1\t",
        "ann\t5\tx\t\t",
        "ann\t5\tx\t[1\t",
        "ann\t5\tx\td1\t\tmore",
        "ann\t5\tx\td9 d1\t",
        "ann\t5\tx\td1 d9 d2\td2",
    ]
    rows = read(tmp_path / "log.tsv", (HEADER + "\n".join(lines)).encode() + b"\n\xff\t5\n")
    assert lists_of(rows) == [(0, [1, 2], [2]), (0, [1], [])]
    assert reasons(rows) == {
        shown.REPEATED: (1, (2,)),
        shown.NOT_SHOWN: (2, (2, 9)),
        NO_USER: (1, (3,)),
        BAD_TIME: (1, (4,)),
        shown.NO_LIST: (1, (5,)),
        BAD_ROW: (2, (6, 7)),
        shown.UNKNOWN_FIRST: (1, (8,)),
        BAD_BYTES: (1, (10,)),
    }


def test_broken_quotes_and_headers(tmp_path):
    rows = read(tmp_path / "log.csv", 'user,time,query,shown,clicked\na,5,"x,d1,\na,5,x,d1,d1\n')
    assert reasons(rows) == {BAD_ROW: (1, (2,))}
    for header in (b'"user,time\n', b"\xff\t\n"):
        with pytest.raises(ValueError, match="column names"):
            read(tmp_path / "log.csv", header)


@pytest.mark.parametrize(
    ("name", "text", "is_one"),
    [
        ("log.tsv", HEADER, True),
        ("log.tsv", "user\ttime\tquery\tdocument\n", False),
        ("log.csv", "User,Shown\n", True),
        ("log.jsonl", '{"user": 1, "shown": []}\n', True),
        ("log.jsonl", '{"user": 1, "document": "x"}\n', False),
        ("log.tsv", "", False),
    ],
)
def test_which_logs_have_lists(tmp_path, name, text, is_one):
    (tmp_path / name).write_text(text)
    assert is_shown_table(tmp_path / name) is is_one
    assert is_shown_table(tmp_path / name, {"shown": "hits"})
    assert not is_shown_table("ir_datasets:aol-ia")


@pytest.mark.parametrize(
    ("value", "moment"),
    [
        (5, 5),
        (1_700_000_000_123, 1_700_000_000.123),
        ("1700000000123", 1_700_000_000.123),
        ("2023-11-14T22:13:20+00:00", 1_700_000_000),
        ("2023-11-14T22:13:20.000+0100", 1_699_996_400),
        (True, None),
        (None, None),
        ([5], None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        ("9" * 400, None),
        ("²", None),
        (10**17, None),
    ],
)
def test_moments(value, moment):
    assert parse_time(value) == moment


@pytest.mark.parametrize(
    ("value", "values"),
    [
        (["a", 1], ["a", 1]),
        (' ["a", 1]', ["a", 1]),
        ("a  b", ["a", "b"]),
        ("", []),
        (None, []),
        ("[1", None),
        ("[" * 100_000, None),
        (7, None),
        ({}, None),
    ],
)
def test_values(value, values):
    assert parse_list(value) == values

"""Rows of tables and of JSON from outside, read by a table of columns."""

from __future__ import annotations

import json

import pytest

from fedrank.data.rows import BAD_BYTES, BAD_ROW, Column, RowFormat, RowReader, UnusableRow, column_names, list_reasons
from fedrank.data.values import parse_id, parse_name, parse_number, parse_seconds

CLICKS = RowFormat({"query": Column(("query", "q")), "document": Column(("document", "doc"))})


def read(path, layout=CLICKS, **others):
    reader = RowReader(path, layout, **others)
    rows = list(reader)
    return rows, {reason: (one.count, one.lines) for reason, one in reader.left_out.all().items()}


def test_a_new_format_is_a_table_of_columns(tmp_path):
    """A log of a shop that fedrank does not know: purchases, with prices, in a table or as JSON."""

    def price(value):
        amount = parse_number(value)
        if amount is not None and amount < 0:
            raise UnusableRow("refund")
        return amount

    purchases = RowFormat(
        {
            "customer": Column(("customer", "customer_id"), parse_name, "no customer"),
            "time": Column(("bought_at", "time"), parse_seconds, "unreadable time"),
            "product": Column(("product", "sku"), lambda value: parse_id(value) or None, "no product"),
            "price": Column(("price",), price, required=False),
        }
    )
    table = "Customer_ID,sku,bought_at,price\nann,p1,1970-01-02,2.5\n,p1,5,1\nbob,p2,soon,1\nbob,p2,7,-1\nbob,p2,8,\n"
    (tmp_path / "shop.csv").write_text(table)
    rows, left_out = read(tmp_path / "shop.csv", purchases)
    assert rows == [
        (2, {"customer": "ann", "time": 86_400, "product": "p1", "price": 2.5}),
        (6, {"customer": "bob", "time": 8, "product": "p2", "price": None}),
    ]
    assert left_out == {"no customer": (1, (3,)), "unreadable time": (1, (4,)), "refund": (1, (5,))}
    objects = [dict(zip(table.split("\n")[0].split(","), line.split(","), strict=True)) for line in table.split()[1:]]
    (tmp_path / "shop.json").write_text(json.dumps(objects))
    assert [row for _, row in read(tmp_path / "shop.json", purchases)[0]] == [row for _, row in rows]


@pytest.mark.parametrize(("suffix", "between"), [("tsv", "\t"), ("csv", ",")])
def test_columns_are_found_by_their_names_and_bad_rows_are_counted(tmp_path, suffix, between):
    path = tmp_path / f"clicks.{suffix}"
    lines = [["\ufeffDOC", "other", "Q"], ["d1", "", "apple"], ["d2"], ["d3", "x", "pear", "more"]]
    path.write_bytes("\n".join(map(between.join, lines)).encode() + b"\n\xff\n")
    rows, left_out = read(path)
    assert rows == [(2, {"query": "apple", "document": "d1"}), (3, {"query": "", "document": "d2"})]
    assert left_out == {BAD_ROW: (1, (4,)), BAD_BYTES: (1, (5,))}
    exact = RowFormat(CLICKS.columns, exact=True)
    assert read(path, exact)[1][BAD_ROW] == (2, (3, 4))


def test_names_of_columns_must_be_there_and_readable(tmp_path):
    path = tmp_path / "clicks.csv"
    for header, problem in (
        (b"doc,other\n", "no column 'query' or 'q' for the query; the columns are 'doc', 'other'"),
        (b"\xff,doc\n", "line 1: the column names cannot be read: not UTF-8"),
        (b'"doc,query\n', "column names cannot be read: unclosed quotes"),
    ):
        path.write_bytes(header)
        with pytest.raises(ValueError, match=problem):
            read(path)
    with pytest.raises(ValueError, match="unknown field 'user'; use query, document"):
        RowReader(path, CLICKS, {"user": "u"})


def test_objects_may_name_columns_differently_and_leave_out_what_is_not_required(tmp_path):
    path = tmp_path / "clicks.jsonl"
    path.write_text(
        '{"q": "x", "doc": 1}\n{"document": "d", "query": "y"}\n{"query": "z"}\n{\n{"_source": {"q": "w"}}\n'
    )
    rows, left_out = read(path)
    assert [row["query"] for _, row in rows] == ["x", "y", "z", "w"]
    assert [row["document"] for _, row in rows] == ["1", "d", "", ""]
    assert left_out == {BAD_ROW: (1, (4,))}
    with pytest.raises(ValueError, match="line 3: no column 'document'"):
        read(path, strict=True)


def test_many_sets_of_keys_do_not_fill_the_memory(tmp_path):
    path = tmp_path / "clicks.jsonl"
    path.write_text("".join(json.dumps({"q": number, "doc": "d", f"key {number}": 1}) + "\n" for number in range(200)))
    assert [row["query"] for _, row in read(path)[0]] == [str(number) for number in range(200)]


def test_nested_values_and_whole_rows(tmp_path):
    path = tmp_path / "events.log"  # whatever its name
    path.write_text('{"a": {"b": 1}}\n{"a.b": 2}\n{"c": 3}\n[1]\n{"hits": {"hits": []}}\n{\n')
    layout = RowFormat({"b": Column(("a.b", "c"), parse_id, ""), "keys": Column((), list)}, kind="json", nested=True)
    rows, left_out = read(path, layout)
    assert rows == [(1, {"b": "1", "keys": ["a"]}), (2, {"b": "2", "keys": ["a.b"]}), (3, {"b": "3", "keys": ["c"]})]
    assert left_out == {BAD_ROW: (2, (4, 6))}, "an answer without hits has no rows"
    whole = RowFormat(layout.columns, kind="json", nested=True, unwrap=False)
    assert read(path, whole)[0][-1] == (5, {"b": "", "keys": ["hits"]})


def test_lines_that_are_too_long_do_not_fill_the_memory(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_text("q\tdoc\nx\td\n" + "y" * 3000 + "\td\nz\td\n")
    rows, left_out = read(path, RowFormat(CLICKS.columns, longest=1 << 10))
    assert [row["query"] for _, row in rows] == ["x", "z"]
    assert left_out == {"a line longer than 0 MiB": (1, (3,))}


def test_a_strict_reader_replaces_bytes_and_refuses_rows(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_bytes(b"q\tdoc\nx\td\n\xff\td\n")
    reader = RowReader(path, CLICKS, strict=True)
    assert [row["query"] for _, row in reader] == ["x", "\ufffd"]
    assert reader.replaced == [1]
    path.write_bytes(b"q\tdoc\nx\td\tmore\n")
    with pytest.raises(ValueError, match="line 2: 3 columns, but the header has 2"):
        read(path, strict=True)


def test_what_takes_a_row_may_leave_it_out(tmp_path):
    path = tmp_path / "clicks.tsv"
    path.write_text("q\tdoc\nx\td\ny\td\n")
    reader = RowReader(path, CLICKS)

    def take(number, row):
        if row["query"] == "y":
            raise UnusableRow("not wanted")

    reader.each(take)
    assert list_reasons(reader.left_out.all()) == "not wanted: 1 (line 3)"
    assert reader.rows == 2


@pytest.mark.parametrize(
    ("name", "text", "names"),
    [("a.tsv", "a\tb\n", ("a", "b")), ("a.jsonl", '{\n{"a": 1}\n', ("a",)), ("a.csv", "", ())],
)
def test_names_of_columns(tmp_path, name, text, names):
    (tmp_path / name).write_text(text)
    assert column_names(tmp_path / name) == names

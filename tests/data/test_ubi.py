"""User Behavior Insights as it is exported, and as anybody can forge it."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest

from fedrank.data import rows as row_reader
from fedrank.data import shown, ubi
from fedrank.data.click_log import BAD_TIME, EMPTY_QUERY, NO_USER, UNKNOWN
from fedrank.data.documents import read_documents
from fedrank.data.lines import bounded_lines
from fedrank.data.rows import BAD_BYTES, BAD_ROW
from fedrank.data.ubi import UbiRules, read_ubi

TIME = 1_700_000_000


def asked(query_id="q1", hits=("d1", "d2", "d3"), **others):
    return {
        "application": "shop",
        "query_id": query_id,
        "client_id": "ann's browser",
        "user_query": "Red  Shoes",
        "timestamp": "2023-11-14T22:13:20.000+0000",  # as the plugin writes it
        "query_response_id": f"r-{query_id}",
        "query_response_hit_ids": list(hits),
        "query_attributes": {},
    } | others


def event(document="d1", query_id="q1", **others):
    made = {
        "action_name": "click",
        "query_id": query_id,
        "client_id": "ann's browser",
        "timestamp": "2023-11-14T22:13:30.000Z",
        "event_attributes": {"object": {"object_id": document, "object_id_field": "_id"}},
    }
    return made | others


def read(folder, queries, events, rules=None, documents=None):
    docs = folder / "docs.jsonl"
    made = documents or [{"_id": f"d{i}", "title": f"t{i}", "isbn": f"978-{i}"} for i in range(1, 31)]
    docs.write_text("".join(json.dumps(one) + "\n" for one in made))
    for name, rows in (("queries", queries), ("events", events)):
        text = "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in rows)
        (folder / f"{name}.ndjson").write_text(text)
    return read_ubi(folder / "queries.ndjson", folder / "events.ndjson", read_documents(docs), docs, rules)


def lists_of(rows):
    """Places before, documents from 1 and clicked ones of every list."""
    found = []
    for one in range(len(rows)):
        own = slice(rows.offsets[one], rows.offsets[one + 1])
        documents = (rows.document[own] + 1).tolist()
        clicked = [d for d, c in zip(documents, rows.clicks[own].tolist(), strict=True) if c]
        found.append((int(rows.first[one]), documents, clicked))
    return found


def reasons(rows):
    return {reason: (one.count, one.lines) for reason, one in rows.left_out.items()}


def test_a_list_as_it_was_returned_with_several_clicks(tmp_path):
    rows = read(tmp_path, [asked()], [event("d3"), event("d1")])
    assert lists_of(rows) == [(0, [1, 2, 3], [1, 3])]
    assert rows.time.tolist() == [TIME]
    assert rows.queries == ["red shoes"]
    assert rows.users == ["ann's browser"]
    assert rows.unit == "browser"
    assert rows.rows == 3
    assert not rows.left_out


def test_a_list_without_a_click_is_a_list(tmp_path):
    assert lists_of(read(tmp_path, [asked()], [event(query_id="q2")])) == [(0, [1, 2, 3], [])]


FLAT = {
    "action_name": "click",
    "query_id": "q1",
    "client_id": "ann's browser",
    "timestamp": TIME * 1000 + 5,
    "event_attributes.object.object_id": "d2",
    "event_attributes.position.ordinal": 2,
    "event_attributes.dwell_time": 12,
}


@pytest.mark.parametrize(
    ("queries", "events"),
    [
        ([asked()], [FLAT]),
        ([asked()], [{"_index": "ubi_events", "_id": "x", "_score": 1, "_source": event("d2")}]),
        ([{"_index": "ubi_queries", "_source": asked()}], [event("d2")]),
        ([{"took": 1, "hits": {"total": 1, "hits": [{"_source": asked()}]}}], [[event("d2")]]),
        ([{"index": {"_index": "ubi_queries"}}, asked()], [{"create": {}}, event("d2")]),
        ([asked(timestamp=TIME * 1000)], [event("d2", timestamp=str(TIME * 1000))]),
        ([asked(timestamp=TIME)], [event("d2", timestamp=TIME + 0.5)]),
        ([asked(query_response_hit_ids='["d1", "d2", "d3"]')], [event("d2")]),
        ([asked(client_id=17)], [event("d2", client_id="17")]),
    ],
)
def test_the_same_log_in_other_forms(tmp_path, queries, events):
    rows = read(tmp_path, queries, events)
    assert lists_of(rows) == [(0, [1, 2, 3], [2])]
    assert rows.time.tolist() == [TIME]
    assert not rows.left_out
    assert not rows.noticed


def test_packed_files(tmp_path):
    docs = tmp_path / "docs.jsonl"
    docs.write_text('{"_id": "d1"}\n{"_id": "d2"}\n')
    for name, row in (("q", asked(hits=["d2", "d1"])), ("e", event("d1"))):
        (tmp_path / f"{name}.ndjson.gz").write_bytes(gzip.compress(json.dumps(row).encode()))
    rows = read_ubi(tmp_path / "q.ndjson.gz", tmp_path / "e.ndjson.gz", read_documents(docs), docs)
    assert lists_of(rows) == [(0, [2, 1], [1])]
    (tmp_path / "e.ndjson.gz").write_bytes((tmp_path / "e.ndjson.gz").read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged or truncated"):
        read_ubi(tmp_path / "q.ndjson.gz", tmp_path / "e.ndjson.gz", read_documents(docs), docs)


def pages(**second):
    ten = [f"d{i}" for i in range(1, 11)], [f"d{i}" for i in range(11, 21)]
    return [asked(hits=ten[0]), asked(hits=ten[1], timestamp=TIME + 60, **second)]


def test_pages_that_share_a_query_id(tmp_path):
    rows = read(tmp_path, pages(), [event("d12", timestamp=TIME + 70), event("d4", timestamp=TIME + 80)])
    assert [(first, clicked) for first, _, clicked in lists_of(rows)] == [(0, [4]), (10, [12])]


@pytest.mark.parametrize(
    "said",
    [
        {"query": '{"from": 30, "size": 10, "query": {"match": {"title": "red"}}}'},
        {"query_attributes": {"from": "30"}},
        {"query_attributes.offset": 30},
        {"query": '{"from": 30', "query_attributes": {"start": 30}},
    ],
)
def test_a_query_may_say_where_its_page_begins(tmp_path, said):
    assert [first for first, _, _ in lists_of(read(tmp_path, pages(**said), [event()]))] == [0, 30]


@pytest.mark.parametrize("place", [-1, 2.5, "ten", 10**9, [1], True])
def test_a_page_that_begins_nowhere(tmp_path, place):
    rows = read(tmp_path, pages(query_attributes={"from": place}), [event()])
    assert reasons(rows) == {shown.BAD_FIRST: (1, (2,))}


@pytest.mark.parametrize("base", [0, 1])
def test_pages_that_are_numbered(tmp_path, base):
    """Many services make a new query id for every page."""
    numbered = [
        asked(f"q{page}", query_attributes={"page": str(page + base), "size": 10}, timestamp=TIME + page)
        for page in range(3)
    ]
    assert [first for first, _, _ in lists_of(read(tmp_path, numbered, [event()]))] == [0, 10, 20]
    unsized = asked("x", query_attributes={"page": 2})
    assert lists_of(read(tmp_path, [unsized], [event()]))[0][0] == 0, "a number alone does not say where"
    odd = [asked(query_attributes=said) for said in ({"page": 2, "size": 0}, {"page": "two", "rows": 10})]
    assert reasons(read(tmp_path, [asked("q0"), *odd], [event(query_id="q0")])) == {shown.BAD_FIRST: (2, (2, 3))}


def test_an_id_that_everybody_shares_names_no_query(tmp_path):
    many = [asked("undefined", client_id=f"c{i}") for i in range(201)]
    rows = read(tmp_path, [*many, asked()], [event(query_id="undefined", client_id="c3"), event()])
    assert lists_of(rows) == [(0, [1, 2, 3], [1])]
    assert reasons(rows) == {ubi.TOO_SHARED: (202, (1, 2, 3, 4, 5))}


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\nb", "a\x00", "\ud800", "x" * 257, True, 1.5, ["a"], {}, 1 << 70])
def test_ids_that_name_nobody(tmp_path, name):
    assert reasons(read(tmp_path, [asked(), asked("q2", client_id=name)], [event()])) == {NO_USER: (1, (2,))}


def test_the_same_lists_and_clicks_whatever_the_order_and_form(tmp_path):
    """What people saw and clicked is made up, written in all ways, and found again."""
    rng = np.random.default_rng(5)
    queries, events, truth = [], [], {}
    for number in range(60):
        order = rng.permutation(30)
        moment = TIME + 10_000 * number
        for page in range(rng.integers(1, 4)):
            hits = [f"d{d + 1}" for d in order[10 * page : 10 * page + 10]]
            clicked = [hit for hit in hits if rng.random() < 0.2]
            when = moment + 100 * page
            row = asked(f"q{number}", hits, client_id=f"c{number % 7}", user_query=f"words {number % 9}")
            truth[when] = (10 * page, [int(hit[1:]) for hit in hits], sorted(int(hit[1:]) for hit in clicked))
            queries.append(row | {"timestamp": [when, when * 1000, str(when * 1000)][rng.integers(3)]})
            for hit in clicked:
                flat = {"event_attributes.object.object_id": hit} if rng.random() < 0.5 else {}
                one = event(hit, f"q{number}", client_id=f"c{number % 7}", timestamp=when + 50) | flat
                if flat:
                    del one["event_attributes"]
                events.append({"_source": one} if rng.random() < 0.5 else one)
    for rows in (queries, events):
        rng.shuffle(rows)
    rows = read(tmp_path, queries, events)
    found = [(first, shown_, sorted(clicked)) for first, shown_, clicked in lists_of(rows)]
    assert found == [truth[when] for when in sorted(truth)]
    assert not rows.left_out


def test_files_of_several_days_with_duplicates_and_skewed_clocks_are_the_same_log(tmp_path):
    """Rows twice, clicks some minutes before their search, and clicks in a file of a later day."""
    queries = [
        asked(f"q{n}", [f"d{1 + (n + i) % 9}" for i in range(5)], client_id=f"c{n % 4}", timestamp=TIME + 5000 * n)
        for n in range(40)
    ]
    hits = [row["query_response_hit_ids"] for row in queries]
    events = [
        event(hits[n][n % 5], f"q{n}", client_id=f"c{n % 4}", timestamp=TIME + 5000 * n + 20) for n in range(0, 40, 2)
    ]
    clean = read(tmp_path, queries, events)
    assert clean.clicks.sum() == 20
    skewed = [row | {"timestamp": row["timestamp"] - (10, 300, 3600)[n % 3]} for n, row in enumerate(events)]
    for name, rows in (("queries", queries), ("events", skewed)):
        for day in range(3):  # each day repeats the end of the day before, and clicks come a day late
            some = (
                rows[max(0, 14 * day - 5) : 14 * day + 14]
                if name == "queries"
                else rows[max(0, 7 * day - 10) : 7 * day]
            )
            some = [*some, *(rows[14:] if day == 2 and name == "events" else [])]
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"2023-11-{15 + day}.ndjson").write_text("".join(json.dumps(one) + "\n" for one in some))
    (tmp_path / "queries" / "cursor.txt").write_text("not a log")
    documents = read_documents(tmp_path / "docs.jsonl")
    messy = read_ubi(tmp_path / "queries", tmp_path / "events", documents, tmp_path / "docs.jsonl")
    assert lists_of(messy) == lists_of(clean)
    assert messy.time.tolist() == clean.time.tolist()
    assert set(messy.left_out) == {ubi.RELOADED, shown.REPEATED}, "duplicates are counted, nothing else is left out"
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="contains no file"):
        read_ubi(tmp_path / "none", tmp_path / "events", documents, tmp_path / "docs.jsonl")


def test_the_same_page_again_is_one_list_and_another_order_is_another(tmp_path):
    again, other = asked(timestamp=TIME + 5), asked(hits=["d3", "d2", "d1"], timestamp=TIME + 50)
    clicks = [event(f"d{document}", timestamp=TIME + after) for document, after in ((1, 60), (2, 1), (3, 50))]
    rows = read(tmp_path, [asked(), again, other], clicks)
    assert lists_of(rows) == [(0, [1, 2, 3], [2]), (0, [3, 2, 1], [3, 1])], "a click is on the latest list before it"
    assert reasons(rows) == {ubi.RELOADED: (1, (2,))}


def test_another_client_with_the_same_query_id_has_a_list_of_its_own(tmp_path):
    rows = read(tmp_path, [asked(), asked(client_id="bob")], [event("d2", client_id="bob"), event("d3", client_id="")])
    assert lists_of(rows) == [(0, [1, 2, 3], []), (0, [1, 2, 3], [2])]
    assert reasons(rows) == {ubi.OTHER_CLIENT: (1, (2,))}, "nobody can tell whose click it is"


def test_clicks_of_no_client_are_noticed(tmp_path):
    """Whoever guesses ids of queries need not guess their clients; a service that does not log them is no forger."""
    rows = read(tmp_path, [asked()], [event("d2", client_id=""), event("d1")])
    assert lists_of(rows) == [(0, [1, 2, 3], [1, 2])]
    assert {reason: one.count for reason, one in rows.noticed.items()} == {ubi.NAMELESS: 1}


def test_ids_of_objects_that_are_not_those_of_documents(tmp_path):
    isbn = {"object_id_field": "isbn"}
    query = asked(hits=["978-4", "978-2"], **isbn)
    click = event("978-2")
    click["event_attributes"]["object"] |= isbn
    assert lists_of(read(tmp_path, [query], [click])) == [(0, [4, 2], [2])]
    assert lists_of(read(tmp_path, [query], [event("d2")])) == [(0, [4, 2], [2])], "_id names documents themselves"
    del query["object_id_field"], click["event_attributes"]["object"]["object_id_field"]
    rows = read(tmp_path, [query], [click], UbiRules(object_field="isbn"))
    assert lists_of(rows) == [(0, [4, 2], [2])]
    with pytest.raises(ValueError, match="object_field = 'sku': no document"):
        read(tmp_path, [query], [click], UbiRules(object_field="sku"))


def test_a_field_that_documents_do_not_have_is_a_kind_of_thing(tmp_path):
    rows = read(tmp_path, [asked(object_id_field="product")], [event()])
    assert lists_of(rows) == [(0, [1, 2, 3], [1])]
    assert rows.counts["rows with the field 'product', which no document has (matched by id)"] == 1


@pytest.mark.parametrize("field", ["ann@example.org", "what ann asked for", "\u202eproduct", "x" * 41])
def test_a_field_that_is_no_name_is_not_repeated(tmp_path, field):
    """Browsers write it, and it would be stored and shown."""
    click = event()
    click["event_attributes"]["object"]["object_id_field"] = field
    rows = read(tmp_path, [asked()], [click])
    assert lists_of(rows) == [(0, [1, 2, 3], [1])]
    assert rows.counts["rows with the field '(not a name)', which no document has (matched by id)"] == 1
    assert field not in str(rows.counts)


def test_an_id_that_several_documents_have(tmp_path):
    documents = [{"_id": "d1", "sku": "x"}, {"_id": "d2", "sku": "x"}, {"_id": "d3", "sku": "y"}]
    click = event("x")
    click["event_attributes"]["object"]["object_id_field"] = "sku"
    rows = read(tmp_path, [asked()], [click], documents=documents)
    assert reasons(rows) == {ubi.SHARED_ID: (1, (1,))}


def test_documents_in_a_table_have_other_columns_too(tmp_path):
    docs = tmp_path / "docs.tsv"
    docs.write_text("id\ttitle\tsku\nd1\tt\ta\nd2\tt\tb\nd3\tt\n")  # the last row has fewer cells
    (tmp_path / "q.ndjson").write_text(json.dumps(asked(hits=["b", "a"], object_id_field="sku")))
    (tmp_path / "e.ndjson").write_text(json.dumps(event("d1")))
    rows = read_ubi(tmp_path / "q.ndjson", tmp_path / "e.ndjson", read_documents(docs), docs)
    assert lists_of(rows) == [(0, [2, 1], [1])]


def test_everything_that_is_left_out_is_counted_with_its_first_lines(tmp_path):
    queries = [
        asked(),
        "{broken",
        '"text"',
        asked(query_id=None),
        event(),
        asked("q2", client_id=""),
        asked("q3", user_query=" "),
        asked("q4", timestamp="yesterday"),
        asked("q5", hits=[]),
        asked("q6", hits=["gone", "d1"]),
        asked("q7", hits=["d1", "d2", "d1"]),
        asked("q8", user_query="x" * 1001),
        asked("q9", query_response_hit_ids=7),
        asked("qa", hits=["d1", None, "d2"]),
        asked("qb", query_attributes={"scores": [1, 2], "temperature": 1, "keep": 0}),
    ]
    events = [
        event("d1"),
        event("d1", timestamp=TIME + 60),
        event("d9"),
        event("nothing"),
        event(None),
        event(query_id=""),
        event(query_id="q0"),
        event(client_id="eve"),
        event("d7", timestamp=""),
        event(timestamp=TIME + 90_000),
        event(action_name="purchase"),
        event(action_name="view", event_attributes={}),
        event("d2", action_name="impression"),
        asked("q1"),
    ]
    rows = read(tmp_path, queries, events)
    assert lists_of(rows) == [(0, [1, 2, 3], [1]), (0, [1], [])]
    assert rows.rows == 29
    assert reasons(rows) == {
        BAD_ROW: (3, (2, 3, 13)),
        ubi.NO_ID: (1, (4,)),
        ubi.IS_EVENT: (1, (5,)),
        NO_USER: (1, (6,)),
        EMPTY_QUERY: (1, (7,)),
        BAD_TIME: (2, (8, 9)),
        shown.NO_LIST: (1, (9,)),
        shown.UNKNOWN_FIRST: (1, (10,)),
        shown.TWICE: (1, (11,)),
        shown.LONG_QUERY: (1, (12,)),
        shown.BAD_SCORES: (1, (15,)),
        shown.REPEATED: (1, (2,)),
        shown.NOT_SHOWN: (1, (3,)),
        UNKNOWN: (1, (4,)),
        ubi.NO_OBJECT: (1, (5,)),
        ubi.NO_QUERY_ID: (1, (6,)),
        ubi.NO_QUERY: (1, (7,)),
        ubi.OTHER_CLIENT: (1, (8,)),
        ubi.FAR_AWAY: (1, (10,)),
    }
    assert {what: n for what, n in rows.counts.items() if n} == {
        "other action": 1,
        "events of pages, not of a document": 1,
        "views without a click": 1,
        "a query, not an event": 1,
        "lists truncated before a document that is not in the collection": 1,
    }


def test_a_list_whose_click_is_at_another_time_is_no_list_without_a_click(tmp_path):
    queries = [asked(), asked("q2"), asked("q3"), asked("q4")]
    events = [
        event("d2", timestamp=TIME + 5 * 86_400),
        event("d2", "q2", timestamp="never"),
        event("d2", "q3", timestamp=TIME + 5 * 86_400),
        event("d2", "q3"),
        event("d2", "q4", timestamp=TIME - 5 * 86_400, action_name="view"),
        event("d9", "q4", timestamp=0),
    ]
    rows = read(tmp_path, queries, events)
    assert lists_of(rows) == [(0, [1, 2, 3], [2]), (0, [1, 2, 3], [])]
    assert reasons(rows) == {ubi.DOUBTFUL: (2, (1, 2)), ubi.FAR_AWAY: (4, (1, 3, 5, 6)), BAD_TIME: (1, (2,))}


def test_broken_bytes_and_endless_lines_cost_one_row(tmp_path, monkeypatch):
    monkeypatch.setattr(row_reader, "bounded_lines", lambda path, longest: bounded_lines(path, 2000))
    docs = tmp_path / "docs.jsonl"
    docs.write_text('{"_id": "d1"}\n')
    good = json.dumps(asked(hits=["d1"])).encode()
    long = json.dumps(asked("q2", hits=["d1"] * 1000)).encode()
    (tmp_path / "q.ndjson").write_bytes(b"\xef\xbb\xbf" + good + b"\n\xff\n" + long + b"\n\n" + b"[" * 1500 + b"\n")
    (tmp_path / "e.ndjson").write_bytes(json.dumps(event()).encode())
    rows = read_ubi(tmp_path / "q.ndjson", tmp_path / "e.ndjson", read_documents(docs), docs)
    assert lists_of(rows) == [(0, [1], [1])]
    assert reasons(rows) == {BAD_BYTES: (1, (2,)), "a line longer than 16 MiB": (1, (3,)), BAD_ROW: (1, (5,))}


def test_actions_can_be_chosen(tmp_path):
    events = [event("d1"), event("d2", action_name="add_to_cart"), event("d3", action_name=["click"])]
    rows = read(tmp_path, [asked()], events, UbiRules(actions=("add_to_cart", "purchase")))
    assert lists_of(rows) == [(0, [1, 2, 3], [2])]
    assert rows.counts["other action"] == 2


@pytest.mark.parametrize(("ordinal", "odd"), [(1, False), (2, False), (11, False), (12, False), (3, True), ("x", True)])
def test_places_are_those_of_the_list_and_forged_ones_are_counted(tmp_path, ordinal, odd):
    click = event("d12", timestamp=TIME + 61)
    click["event_attributes"]["position"] = {"ordinal": ordinal}
    rows = read(tmp_path, pages(), [click])
    assert [clicked for _, _, clicked in lists_of(rows)] == [[], [12]], "whatever the event says"
    assert {reason: one.count for reason, one in rows.noticed.items()} == ({ubi.FORGED: 1} if odd else {})


def test_dwell_where_it_is_logged(tmp_path):
    def stayed(document, action="click", where="attributes", **spent):
        made = event(document, action_name=action)
        made["event_attributes"] |= spent if where == "attributes" else {}
        made["event_attributes"]["object"] |= spent if where == "object" else {}
        return made

    events = [
        stayed("d1", dwell_time=30),
        stayed("d2", "view", "object", dwell_ms="1500"),
        stayed("d3", dwell=-1),
        stayed("d3", "view", dwell="long"),
    ]
    rows = read(tmp_path, [asked()], events)
    assert rows.dwell.tolist()[:2] == [30, 1.5]
    assert math.isnan(rows.dwell[2])
    assert reasons(rows) == {shown.BAD_DWELL: (2, (3, 4))}
    assert read(tmp_path, [asked()], [event()]).dwell is None


def test_a_field_can_name_the_person(tmp_path):
    queries = [
        asked("q1", client_id="phone", user_id="ann"),
        asked("q2", client_id="laptop"),
        asked("q3", client_id="laptop"),
        asked("q4", client_id="library"),
        asked("q5", client_id="library"),
        asked("q6", client_id="kiosk"),
    ]
    events = [
        event(query_id="q2", client_id="laptop", user_id="ann"),
        event(query_id="q4", client_id="library", user_id="bob"),
        event(query_id="q5", client_id="library", user_id="eve"),
    ]
    rows = read(tmp_path, queries, events, UbiRules(person="user_id"))
    assert [rows.users[user] for user in rows.user] == ["ann", "ann", "ann", "bob", "eve"]
    assert rows.unit == "person"
    assert reasons(rows) == {ubi.ANONYMOUS: (1, (6,))}
    queries = [asked("q1", query_attributes={"account": "x"}), asked("q2", client_id="library")]
    nested = read(tmp_path, queries, events[1:2], UbiRules(person="query_attributes.account"))
    assert nested.users == ["x"], "events do not name people under this field"


def test_only_one_application(tmp_path):
    queries = [asked(), asked("q2", application="type-ahead"), asked("q3", application=None)]
    events = [event(), event(query_id="q2", application="type-ahead"), event("d2", application="shop")]
    rows = read(tmp_path, queries, events, UbiRules(application="shop"))
    assert lists_of(rows) == [(0, [1, 2, 3], [1, 2])]
    assert rows.counts["of another application"] == 3
    assert len(read(tmp_path, queries, events)) == 3


def solr(query_id, ids, **others):
    """As Solr's component writes a search: no client, ids in one text, attributes as text."""
    row = {"query_id": query_id, "timestamp": "2023-11-14T22:13:20.123Z", "application": "techproducts"}
    return row | {"user_query": "red shoes", "doc_ids": ids, "query_attributes": '{"page": 1}'} | others


def test_searches_of_solr(tmp_path):
    queries = [
        solr("q1", "d1,d2,d3"),
        solr("q2", "d4, d5", query_attributes='{"client_id": "bob", "from": "10"}'),
        solr("q3", "d6", query_attributes="{cut"),
        solr("q4", ""),
    ]
    events = [event("d2"), event("d3", client_id="eve"), event("d1"), event("d5", "q2", client_id="bob")]
    rows = read(tmp_path, queries, events)
    assert lists_of(rows) == [(0, [1, 2, 3], [1, 2]), (10, [4, 5], [5])]
    assert rows.users == ["ann's browser", "bob"], "whoever acts first is the one that asked"
    assert reasons(rows) == {ubi.OTHER_CLIENT: (1, (2,)), NO_USER: (1, (3,)), shown.NO_LIST: (1, (4,))}
    answer = {"responseHeader": {}, "response": {"docs": [solr("q1", ["d1,d2"], user_query=["red shoes"]), 7]}}
    rows = read(tmp_path, [answer], [event("d2")])
    assert lists_of(rows) == [(0, [1, 2], [2])]
    assert reasons(rows) == {ubi.NO_ID: (1, (1,))}


def test_persons_without_browsers(tmp_path):
    queries = [solr("q1", "d1"), solr("q2", "d2"), solr("q3", "d3")]
    events = [event("d1", client_id=None, user_id="ann"), event("d2", "q2", client_id=None, user_id="bob")]
    rows = read(tmp_path, queries, events, UbiRules(person="user_id"))
    assert [rows.users[user] for user in rows.user] == ["ann", "bob"]
    assert reasons(rows) == {ubi.ANONYMOUS: (1, (3,))}, "nobody's browser tells of nobody else"
    assert len(set(rows.client.tolist())) == 2


def test_known_draws(tmp_path):
    how = {"scores": [3, 2, 1], "temperature": 0.3, "keep": 0.5}
    rows = read(tmp_path, [asked(query_attributes=how), asked("q2", query_attributes=how)], [event()])
    assert rows.drawn == (0.3, 0.5)
    assert rows.scores.tolist() == [3, 2, 1] * 2
    rows = read(tmp_path, [asked(query_attributes=how), asked("q2")], [event()])
    assert rows.drawn is rows.scores is None, "of some lists it is not known"
    rows = read(tmp_path, [asked(query_attributes=how), asked("q2", query_attributes=how | {"keep": 1})], [event()])
    assert rows.drawn is rows.scores is None, "lists were drawn in different ways"


def test_long_lists_are_cut(tmp_path):
    rows = read(tmp_path, [asked()], [event("d3")], UbiRules(positions=2))
    assert lists_of(rows) == [(0, [1, 2], [])]
    assert rows.counts["lists truncated after position 2"] == 1
    assert reasons(rows) == {shown.NOT_SHOWN: (1, (1,))}


@pytest.mark.parametrize("wrong", [{"actions": ()}, {"positions": 0}, {"within_hours": 0}, {"within_hours": math.nan}])
def test_rules_that_leave_nothing(wrong):
    with pytest.raises(ValueError, match="must"):
        UbiRules(**wrong)


def test_random_swaps_are_read_and_what_is_not_one_is_ignored(tmp_path):
    stated = [
        {"position": 2, "swapped": True},
        {"position": 1, "swapped": False},
        {"position": 0, "swapped": True},
        {"position": True, "swapped": True},
        {"position": 1},
        "2",
        {"position": 10**9, "swapped": True},
        '{"position": 2, "swapped": true}',
        '{"position": 2, "swap',
    ]
    queries = [asked(f"q{n}", query_attributes={"swap": one}) for n, one in enumerate(stated)]
    queries.append(asked("flat", **{"query_attributes.swap.position": 1, "query_attributes.swap.swapped": True}))
    rows = read(tmp_path, [*queries, asked("none")], [event(query_id="q0")])
    found = dict(zip(rows.ids, rows.swap.tolist(), strict=True))
    assert found == {
        "q0": -2,
        "q1": 1,
        "q2": 0,
        "q3": 0,
        "q4": 0,
        "q5": 0,
        "q6": 0,
        "q7": -2,
        "q8": 0,
        "flat": -1,
        "none": 0,
    }
    assert rows.select(rows.swap < 0).swap.tolist() == [-2, -2, -1]
    assert read(tmp_path, [asked()], [event()]).swap is None

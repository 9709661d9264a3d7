"""Rows of OpenSearch become files: none is lost or stored twice, whatever happens in between, and nothing is trusted.

The server answers as OpenSearch's documentation of `_search` says, with rows of the documented UBI schema. No cluster
was used.
"""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedrank.cli import main
from fedrank.data import fetch_ubi as module
from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
from fedrank.data.fetch_ubi import DAY, FetchSettings, fetch_ubi, open_client
from fedrank.data.redaction import Redaction
from tests.data.test_build_shown import words_extractor

NOW = 1_767_225_600_000  # 2026-01-01
HOUR = 3_600_000


def row(number, time, **more):
    return {"_index": "ubi_queries", "_id": f"id{number}", "_score": None, "_source": more, "sort": [time]}


def a_query(number, time):
    about = {"query_id": f"q{number}", "client_id": f"c{number % 5}", "user_query": "red shoes", "application": "shop"}
    return row(number, time, **about, timestamp=module._iso(time), query_response_hit_ids=["d1", "d2", "d3"])


def an_event(number, time):
    clicked = {"object": {"object_id": f"d{1 + number % 3}", "object_id_field": "_id"}, "position": {"ordinal": 1}}
    about = {"action_name": "click", "query_id": f"q{number}", "client_id": f"c{number % 5}", "application": "shop"}
    return row(number, time, **about, timestamp=module._iso(time), event_attributes=clicked)


class Cluster:
    """A stand-in for `OpenSearch`: answers the one request that is used, over the rows it has."""

    def __init__(self, queries=(), events=()):
        self.rows = {"ubi_queries": list(queries), "ubi_events": list(events)}
        self.calls = []
        self.change = lambda answer: answer

    def search(self, *, index, body, params):
        self.calls.append((index, body))
        assert params == {"allow_partial_search_results": "false"}
        assert body["sort"][0]["timestamp"]["order"] == "asc"
        found = body["query"]["bool"]
        times = found["filter"][0]["range"]["timestamp"]
        without = {one for ids in found.get("must_not", []) for one in ids["ids"]["values"]}
        hits = [
            one
            for one in self.rows[index]
            if times["gte"] <= one["sort"][0] <= times["lte"] and one["_id"] not in without
        ]
        hits = sorted(hits, key=lambda one: one["sort"][0])[: body["size"]]
        shards = {"total": 1, "successful": 1, "skipped": 0, "failed": 0}
        return self.change(
            {"took": 1, "timed_out": False, "_shards": shards, "hits": {"max_score": None, "hits": hits}}
        )


def stored(folder, name="ubi_queries"):
    lines = [line for path in sorted((folder / name).glob("*.ndjson")) for line in path.read_text().splitlines()]
    return [json.loads(line)["_id"] for line in lines]


def fetch(cluster, folder, now=NOW, **settings):
    return fetch_ubi(cluster, folder, FetchSettings(**({"page": 7} | settings)), now=now / 1000)


TIMES = [NOW - 3 * DAY + 4 * HOUR * (number // 4) for number in range(60)]  # four rows of each time


def test_every_row_once_in_files_of_days(tmp_path):
    cluster = Cluster([a_query(n, time) for n, time in enumerate(TIMES)], [an_event(n, TIMES[n]) for n in range(30)])
    queries, events = fetch(cluster, tmp_path)
    assert (queries.rows, queries.known, events.rows) == (60, 0, 30)
    assert sorted(stored(tmp_path)) == sorted(f"id{n}" for n in range(60))
    assert queries.until == TIMES[-1]
    days = sorted(path.name for path in (tmp_path / "ubi_queries").iterdir())
    assert days == sorted({f"{module._iso(time)[:10]}.ndjson" for time in TIMES})
    assert oct((tmp_path / "ubi_queries" / days[0]).stat().st_mode & 0o777) == "0o600"
    assert max(body["size"] for _, body in cluster.calls) == 7, "memory is bounded by the page"


def test_any_number_of_rows_of_the_same_time(tmp_path, monkeypatch):
    cluster = Cluster([a_query(n, NOW - DAY) for n in range(100)])
    assert fetch(cluster, tmp_path)[0].rows == 100
    monkeypatch.setattr(module, "MAX_SAME_TIME", 50)
    with pytest.raises(ValueError, match="more than 50 rows have the time 2025-12-31"):
        fetch(cluster, tmp_path / "other")


def test_the_next_call_takes_new_rows_and_late_ones(tmp_path):
    cluster = Cluster([a_query(n, time) for n, time in enumerate(TIMES)])
    fetch(cluster, tmp_path)
    assert fetch(cluster, tmp_path)[0].rows == 0
    late = a_query(100, TIMES[-1] - 5 * HOUR)
    cluster.rows["ubi_queries"] += [late, a_query(101, NOW - 10), a_query(102, TIMES[-1] - 30 * HOUR)]
    found = fetch(cluster, tmp_path)[0]
    assert (found.rows, stored(tmp_path).count("id100")) == (2, 1)
    assert "id102" not in stored(tmp_path), "later than the overlap"
    assert found.known > 0
    assert fetch(cluster, tmp_path, overlap_hours=60)[0].rows == 1
    assert len(set(stored(tmp_path))) == len(stored(tmp_path)) == 63


def test_a_time_in_the_future_does_not_move_the_cursor_beyond_now(tmp_path):
    cluster = Cluster([a_query(1, NOW - HOUR), a_query(2, NOW + DAY - 1), a_query(3, NOW + 2 * DAY)])
    assert fetch(cluster, tmp_path)[0].until == NOW
    cluster.rows["ubi_queries"].append(a_query(4, NOW - 20 * HOUR))
    assert fetch(cluster, tmp_path)[0].rows == 1
    assert stored(tmp_path).count("id4") == 1
    assert "id3" not in stored(tmp_path)


def test_deleted_days_stay_deleted(tmp_path):
    cluster = Cluster([a_query(n, time) for n, time in enumerate(TIMES)])
    fetch(cluster, tmp_path)
    first = min((tmp_path / "ubi_queries").iterdir())
    first.unlink()
    assert fetch(cluster, tmp_path)[0].rows == 0
    assert not first.exists()


@pytest.mark.parametrize("where", ["search", "append", "cursor"])
def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path, monkeypatch, where):
    rows = [a_query(n, time) for n, time in enumerate(TIMES)]
    for moment in range(1, 12):
        cluster, folder = Cluster(rows, rows[:20]), tmp_path / str(moment)
        left = [moment]

        def dies(*args, original, left=left, after=False, **more):
            left[0] -= 1
            if left[0] == 0 and not after:
                raise KeyboardInterrupt
            found = original(*args, **more)
            if left[0] == 0:
                raise KeyboardInterrupt
            return found

        with monkeypatch.context() as patch:
            if where == "search":
                patch.setattr(cluster, "search", lambda o=cluster.search, d=dies, **m: d(original=o, **m))
            elif where == "append":
                patch.setattr(module.os, "fsync", lambda *a, o=module.os.fsync, d=dies: d(*a, original=o, after=True))
            else:
                original = module.write_atomic
                patch.setattr(module, "write_atomic", lambda *a, o=original, d=dies, **m: d(*a, original=o, **m))
            with contextlib.suppress(KeyboardInterrupt):
                fetch(cluster, folder)
        fetch(cluster, folder)
        assert sorted(stored(folder)) == sorted(f"id{n}" for n in range(60)), moment
        assert sorted(stored(folder, "ubi_events")) == sorted(f"id{n}" for n in range(20)), moment


def hits_of(answer, change):
    answer["hits"]["hits"] = change(answer["hits"]["hits"])
    return answer


@pytest.mark.parametrize(
    ("change", "because"),
    [
        (lambda answer: answer | {"timed_out": True}, "timed out"),
        (lambda answer: [answer], "not one of a search"),
        (lambda answer: answer | {"_shards": {"failed": 1}}, "1 shards failed"),
        (lambda answer: answer | {"hits": {"hits": "all"}}, "at most 7 hits"),
        (lambda answer: hits_of(answer, lambda hits: hits * 2), "at most 7 hits"),
        (lambda answer: hits_of(answer, lambda hits: hits[::-1]), "not sorted"),
        (lambda answer: hits_of(answer, lambda hits: [hits[0] | {"sort": [1.5]}]), "not sorted"),
        (lambda answer: hits_of(answer, lambda hits: [hits[0] | {"sort": [10**30]}]), "not sorted"),
        (lambda answer: hits_of(answer, lambda hits: [hits[0] | {"_id": 7}]), "lacks its _id"),
        (lambda answer: hits_of(answer, lambda hits: [hits[0] | {"_source": None}]), "lacks its _id"),
        (lambda answer: hits_of(answer, lambda hits: [None]), "lacks its _id"),
    ],
)
def test_a_wrong_response_stores_nothing_and_the_next_call_continues(tmp_path, change, because):
    cluster = Cluster([a_query(n, time) for n, time in enumerate(TIMES)])
    cluster.change = change
    with pytest.raises(ValueError, match=because):
        fetch(cluster, tmp_path)
    assert stored(tmp_path) == []
    cluster.change = lambda answer: answer
    assert fetch(cluster, tmp_path)[0].rows == 60


def test_a_damaged_cursor_or_file_is_named(tmp_path):
    cluster = Cluster([a_query(n, time) for n, time in enumerate(TIMES)])
    fetch(cluster, tmp_path)
    before = (tmp_path / "cursor.json").read_text()
    for damage in ("{", "[]", '{"format": "x"}', before.replace(".ndjson", ".txt")):
        (tmp_path / "cursor.json").write_text(damage)
        with pytest.raises(ValueError, match=r"cursor.json cannot be read"):
            fetch(cluster, tmp_path)
    (tmp_path / "cursor.json").write_text(before)
    last = max((tmp_path / "ubi_queries").iterdir())
    last.write_text(last.read_text()[:-5])
    with pytest.raises(ValueError, match="were written; restore it"):
        fetch(cluster, tmp_path)


def test_the_files_are_a_log(tmp_path):
    queries = [a_query(n, NOW - 3 * DAY + n * HOUR) for n in range(60)]
    events = [an_event(n, NOW - 3 * DAY + n * HOUR + 9000) for n in range(0, 60, 2)]
    fetch(Cluster(queries, events), tmp_path / "ubi")
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"id": f"d{n}", "title": "x"}) + "\n" for n in range(4)))
    source = UbiSource(tmp_path / "ubi" / "ubi_queries", tmp_path / "ubi" / "ubi_events")
    how = ShownBuild(redaction=Redaction(people=1))
    log = build_shown(source, tmp_path / "docs.jsonl", tmp_path / "data", how, extractor=words_extractor)
    assert (len(log), int(log.clicks.sum())) == (60, 30)


@pytest.fixture
def server():
    """The cluster behind HTTP on this machine, which wants a password."""
    cluster, seen = Cluster([a_query(n, time) for n, time in enumerate(TIMES)]), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(self.headers.get("Authorization"))
            length = int(self.headers["Content-Length"])
            body = json.loads(self.rfile.read(length))
            status, answer = (
                200,
                cluster.search(
                    index=self.path.split("/")[1], body=body, params={"allow_partial_search_results": "false"}
                ),
            )
            if seen[-1] is None:
                status, answer = 401, {"error": "Unauthorized", "status": 401}
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()
    thread.join()


def called(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["fedrank", "data", "fetch", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return end.value.code or 0, " ".join((out + err).split())


def test_the_command_over_http(tmp_path, server, monkeypatch, capsys):
    url, seen = server
    code, said = called(monkeypatch, capsys, url, "--out", tmp_path / "ubi")
    assert code != 0
    assert "did not answer" in said
    assert "401" in said
    secret = tmp_path / "secret"
    secret.write_text("reader:hunter2\n")
    secret.chmod(0o644)
    code, said = called(monkeypatch, capsys, url, "--out", tmp_path / "ubi", "--credentials", secret)
    assert code != 0
    assert "chmod 600" in said
    secret.chmod(0o600)
    code, said = called(monkeypatch, capsys, url, "--out", tmp_path / "ubi", "--credentials", secret)
    assert code == 0, said
    assert "60 new rows" in said
    assert seen[-1].startswith("Basic ")
    assert "hunter2" not in said
    monkeypatch.setenv("OPENSEARCH_USER", "reader")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "hunter2")
    code, said = called(monkeypatch, capsys, url, "--out", tmp_path / "ubi")
    assert "0 new rows" in said


def test_a_response_that_is_too_large_is_refused(tmp_path, server, monkeypatch):
    monkeypatch.setenv("OPENSEARCH_USER", "reader")
    monkeypatch.setenv("OPENSEARCH_PASSWORD", "hunter2")
    monkeypatch.setattr(module, "MAX_RESPONSE", 2000)
    from opensearchpy.exceptions import ConnectionError as NotConnected

    with pytest.raises(NotConnected, match="more than 2,000 bytes"):
        fetch(open_client(server[0]), tmp_path)
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "because"),
    [
        ("http://search.example.org:9200", "has no TLS"),
        ("https://ann:secret@search.example.org", "must not contain a password"),
        ("search.example.org", "is not the address of a cluster"),
    ],
)
def test_addresses_that_are_refused(url, because):
    with pytest.raises(ValueError, match=because) as found:
        open_client(url)
    assert "secret" not in str(found.value)


def test_certificates_are_verified():
    client = open_client("https://search.example.org:9200")
    pool = client.transport.get_connection().pool
    assert pool.cert_reqs == "CERT_REQUIRED"
    assert pool.assert_hostname is not False


def test_settings_that_cannot_be():
    for wrong in (
        {"page": 0},
        {"page": 10_001},
        {"queries": "a/b"},
        {"queries": "x", "events": "x"},
        {"overlap_hours": -1},
    ):
        with pytest.raises(ValueError, match=r"must be|is not the name"):
            FetchSettings(**wrong)

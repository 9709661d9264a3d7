"""`fedrank logs build` and `describe` with production logs, as they are called."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fedrank.cli import main
from fedrank.data.logs import load_log
from fedrank.experiments.runner.cards import read_card
from fedrank.experiments.runner.folder import Card

DOCS = ["--docs", "docs.jsonl", "--out", "data"]
UBI = ["--ubi-queries", "q.ndjson", "--ubi-events", "e.ndjson", *DOCS]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"d{i}", "sku": f"s{i}", "title": "red shoes", "text": "for rain " * i} for i in range(6)]
    Path("docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries, events = [], []
    for i in range(12):
        about = {"query_id": f"q{i}", "client_id": f"browser-{i % 3}", "timestamp": 1_700_000_000_000 + i * 60_000}
        queries.append(
            about
            | {"user_query": "red shoes" if i % 2 else f"x{i}@y.org", "query_response_hit_ids": ["d1", "d0", "d4"]}
        )
        place = {"object": {"object_id": "d4"}, "position": {"ordinal": 3}}
        events.append(about | {"action_name": "click", "user_id": "ann", "event_attributes": place})
    for name, made in (("q", queries), ("e", events)):
        Path(f"{name}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in made))
    Path("shown.tsv").write_text("user\ttime\tquery\tshown\tclicked\nann\t5\train\td1 d2\td2\n")
    Path("clicks.tsv").write_text("user\ttime\tquery\tdocument\nann\t5\train\td1\n")
    Path("words.txt").write_text("shoes\n")


@pytest.fixture
def logs(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "logs", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, " ".join((out + err).split())

    return call


@pytest.mark.long
def test_user_behavior_insights(logs):
    code, said = logs("build", *UBI)
    assert code == 0, said
    assert "24 rows, 12 of them valid; the data set contains 12 entries of 3 users" in said
    assert "redacted, an e-mail address: 6 queries, whose text is not stored" in said
    assert "redacted, asked by too few: 1 queries" in said
    assert "users are browsers, not persons" in said
    log = load_log("data")
    assert log.clicks.sum() == 12
    assert "a browser, not a person" in Path("data", Card.FILE).read_text()
    code, said = logs("describe", "data", "--out", "log.png", "--numbers", "log.json")
    assert code == 0
    assert "clicked by position 0.0%, 0.0%, 100.0%" in said
    assert "busiest browser 33.3% of all clicks, 33.3% after limits" in said
    assert json.loads(Path("log.json").read_text())["shown"]["unit"] == "browser"
    assert Path("log.png").stat().st_size > 10_000


def test_settings_of_production_logs(logs):
    code, said = logs(
        "build", *UBI, "--person", "user_id", "--rare", "1", "--keep-patterns", "--redact-words", "words.txt",
        "--drop-redacted", "--cap", "lists_hour=4", "--cap", "share=none", "--positions", "2", "--features", "engine-1",
    )  # fmt: skip
    assert code == 0, said
    log = load_log("data")
    assert (log.users, log.unit) == (("ann",), "person")
    assert log.facts["dropped"]["of redacted queries"] == 2
    assert log.facts["capped"]["above the hourly limit of a client"]["lists"] == 8
    assert log.lists.shape == (2, 2)
    assert log.facts["settings"]["caps"]["share"] is None
    assert log.facts["settings"]["features"] == "engine-1"


def test_a_table_with_shown_lists(logs):
    code, said = logs("build", "--log", "shown.tsv", *DOCS, "--rare", "1")
    assert code == 0, said
    assert load_log("data").is_shown
    assert load_log("data").queries == ("rain",)


def test_old_rows_are_not_kept(logs):
    code, said = logs("build", *UBI, "--keep-days", "30")
    assert code == 2
    assert "none of the 12 lists can be stored" in said
    assert "12 older than the retention period" in said
    assert not Path("data").exists()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([*DOCS], "give --log, or both --ubi-queries and --ubi-events"),
        ([*UBI[2:]], "give --log, or both"),
        ([*UBI, "--log", "shown.tsv"], "give --log, or both"),
        ([*UBI, "--window", "ranked"], "--window is for another kind of log, and would change nothing here"),
        ([*UBI, "--column", "user=x"], "--column is for another kind of log"),
        (["--log", "shown.tsv", *DOCS, "--person", "user_id"], "--person is for another kind of log"),
        (["--log", "clicks.tsv", *DOCS, "--keep-days", "3"], "--keep-days is for lists as they were shown"),
        (["--log", "clicks.tsv", *DOCS, "--drawn", "1,0"], "--drawn is for lists as they were shown"),
        (["--log", "shown.tsv", *DOCS, "--drawn", "1"], "--drawn '1': write TEMPERATURE,KEEP"),
        (["--log", "shown.tsv", *DOCS, "--drawn", "0,0"], "--drawn '0,0': no list can be drawn so"),
        ([*UBI, "--cap", "list_hour=3"], "--cap 'list_hour=3': no such rule; did you mean \"lists_hour\"?"),
        ([*UBI, "--cap", "lists_hour=many"], "--cap 'lists_hour=many': write a number"),
        ([*UBI, "--cap", "least=none"], "--cap 'least=none': write a number"),
        ([*UBI, "--cap", "share=2"], "share must be greater than 0 and at most 1"),
        ([*UBI, "--object-field", "ean"], "object_field = 'ean': no document of docs.jsonl has this field"),
        ([*UBI, "--redact-words", "nowhere.txt"], "nowhere.txt"),
        ([*UBI, "--features", "mine"], "features must be one of"),
    ],
)
def test_mistakes_cost_a_line(logs, arguments, problem):
    code, said = logs("build", *arguments)
    assert code != 0
    assert problem in said.replace("│", "").replace("  ", " ")
    assert "Traceback" not in said
    assert not Path("data").exists()


def test_texts_leave_a_data_set(logs):
    code, said = logs("build", *UBI, "--rare", "1", "--keep-patterns")
    assert code == 0, said
    assert "x2@y.org" in load_log("data").queries
    code, said = logs("redact", "data", "--rare", "1", "--redact-words", "words.txt")
    assert code == 0, said
    assert "7 of 7 queries are without their text" in said
    assert "redacted, an e-mail address: 6" in said
    assert read_card(Path("data")).files, "the card is that of the new facts"

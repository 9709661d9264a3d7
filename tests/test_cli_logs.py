"""`fedrank data build` and `check` with production logs, as they are called."""

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
        monkeypatch.setattr(sys, "argv", ["fedrank", "data", *arguments])
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
    code, said = logs("check", "data", "--out", "log.png")
    assert code == 0
    assert "clicked by position 0.0%, 0.0%, 100.0%" in said
    assert "busiest browser 33.3% of all clicks, 33.3% after limits" in said
    code, said = logs("check", "data", "--json")
    assert json.loads(said)["shown"]["unit"] == "browser"
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
        (["--log", "shown.tsv", "--out", "data"], "--docs is missing; give the documents"),
        (["--aol4foltr", "m.csv", *DOCS], "is now `fedrank papers convert METADATA LETOR --out OUT`"),
        ([*DOCS], "give --log, or both --ubi-queries and --ubi-events"),
        ([*UBI[2:]], "give --log, or both"),
        ([*UBI, "--log", "shown.tsv"], "give --log, or both"),
        ([*UBI, "--window", "ranked"], "--window is an option for another kind of log and has no effect here"),
        ([*UBI, "--column", "user=x"], "--column is an option for another kind of log"),
        (["--log", "shown.tsv", *DOCS, "--person", "user_id"], "--person is an option for another kind of log"),
        (["--log", "clicks.tsv", *DOCS, "--keep-days", "3"], "--keep-days is an option for a log of shown lists"),
        (["--log", "clicks.tsv", *DOCS, "--drawn", "1,0"], "--drawn is an option for a log of shown lists"),
        (["--log", "shown.tsv", *DOCS, "--drawn", "1"], "--drawn must be TEMPERATURE,KEEP, such as 0.3,0.5 (got '1')"),
        (["--log", "shown.tsv", *DOCS, "--drawn", "0,0"], "--drawn needs a temperature above 0"),
        ([*UBI, "--cap", "list_hour=3"], "--cap 'list_hour=3': unknown rule 'list_hour'; did you mean \"lists_hour\"?"),
        ([*UBI, "--cap", "lists_hour=many"], "--cap lists_hour must be a number"),
        ([*UBI, "--cap", "least=none"], "--cap least must be a number"),
        ([*UBI, "--cap", "share=2"], "share must be greater than 0 and at most 1 (got 2.0)"),
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
    assert "Deleted the text of 7 of 7 queries" in said
    assert "Redacted, an e-mail address: 6" in said
    assert read_card(Path("data")).files, "the card is that of the new facts"


@pytest.mark.long
def test_a_window_is_held_out_and_continued(logs):
    code, said = logs("build", *UBI, "--hold-out-users", "0.5", "--hold-out-key", "d")
    assert code == 0, said
    assert "entries are held out of training: all entries of 50 % of the users" in said
    held = load_log("data").held_out
    assert 0 < held.sum() < len(held)
    code, said = logs("build", *UBI[:-1], "next", "--previous", "data")
    assert code == 0, said
    assert load_log("next").held_out.tolist() == held.tolist(), "the same users; the first window was not used"
    for wrong, because in (
        (["--hold-out-key", "x"], "no effect without --hold-out-users"),
        (["--previous", "data", "--hold-out-key", "x"], "the key is that of the earlier data set"),
        (["--previous", "nowhere"], "is not a data set, or holds no entries out"),
        (["--hold-out-users", "2"], "hold_out_users must be between 0 and 1"),
    ):
        code, said = logs("build", *UBI[:-1], "other", *wrong)
        assert code != 0
        assert because in said
    code, said = logs("build", "--log", "clicks.tsv", *DOCS, "--hold-out-days", "2")
    assert "--hold-out-days is an option for a log of shown lists" in said

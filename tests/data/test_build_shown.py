"""From a log of shown lists to a data set."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedrank.data import build_log
from fedrank.data import build_shown as module
from fedrank.data.build_shown import ShownBuild, UbiSource, build_shown
from fedrank.data.click_caps import HOURLY, ClickCaps
from fedrank.data.describe_log import notes
from fedrank.data.feature_sets import Extractor
from fedrank.data.log_fold import log_fold
from fedrank.data.logs import FACTS
from fedrank.data.redaction import Redaction
from fedrank.data.ubi import UbiRules
from fedrank.deploy.data_sources import load_share
from fedrank.deploy.settings import SiteData
from fedrank.experiments.runner.data import load_fold
from fedrank.experiments.spec.grid import read_tables
from tests.made_up import made_up_shown

SPEC = {
    "rounds": 1,
    "clients": {"count": 2, "partition": {"name": "users"}},
    "learner": "pdgd",
}
DAY = 86_400
NOW = 20_000 * DAY + 3600
ALL_TEXTS = Redaction(people=1, patterns=False)


def documents(folder, count=12):
    words = ["red", "shoes", "blue", "hat", "rain"]
    path = folder / "docs.jsonl"
    rows = [
        {"id": f"d{i}", "title": words[i % 5], "text": " ".join(words[i % 5 :]), "date": "2024-10-01", "popularity": i}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(folder, rows, name="log.jsonl"):
    path = folder / name
    columns = ("user", "time", "query", "shown", "clicked")
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=False))) + "\n" for row in rows))
    return path


ROWS = [
    ("bob", NOW - 5, "red shoes", ["d1", "d0", "d5"], ["d0", "d5"]),
    ("ann", NOW - 9, "red shoes", ["d1", "d5"], []),
    ("bob", NOW - 7, "blue", ["d2"], ["d2"]),
    ("eve", NOW - 3, "hat ann@b.org", ["d3", "d4", "d5", "d6"], ["d3"]),
]


def words_extractor(collection):
    """Words of the query, its first letter, and the document: whatever is stored must come from what was typed."""

    def features(queries, query, rows):
        return np.array(
            [[len(queries[q].split()), ord(queries[q][0]), d] for q, d in zip(query, rows, strict=True)], np.float32
        )

    return Extractor(("words", "letter", "document"), features, str.split)


def built(folder, rows=ROWS, out="out", now=NOW, **how):
    how = {"redaction": ALL_TEXTS} | how
    made = ShownBuild(**how)
    return build_shown(table(folder, rows), documents(folder), folder / out, made, now=now, extractor=words_extractor)


def test_lists_clicks_and_features(tmp_path):
    log = built(tmp_path)
    assert log.users == ("bob", "ann", "eve"), "most active first"
    assert [log.users[user] for user in log.user] == ["ann", "bob", "bob", "eve"]
    assert [log.queries[query] for query in log.query] == ["red shoes", "blue", "red shoes", "hat ann@b.org"]
    names = [[log.documents[log.document[pair]] for pair in one if pair >= 0] for one in log.lists]
    assert names == [["d1", "d5"], ["d2"], ["d1", "d0", "d5"], ["d3", "d4", "d5", "d6"]]
    assert [one.sum() for one in log.clicks] == [0, 1, 2, 1]
    assert log.clicks[2].tolist() == [0, 1, 1, 0]
    assert len(log.features) == 3 + 1 + 4, "pairs of a query and a document are stored once"
    for entry in range(4):
        own = log.features[log.lists[entry][log.lists[entry] >= 0]]
        text = log.queries[log.query[entry]]
        assert own[:, 0].tolist() == [len(text.split())] * len(own)
        assert own[:, 1].tolist() == [ord(text[0])] * len(own)
        assert [f"d{int(d)}" for d in own[:, 2]] == names[entry]
    assert log.unit == "person"
    assert log.facts["counts"]["clicks"] == 4
    assert oct((tmp_path / "out").stat().st_mode & 0o777) == "0o700"
    assert log_fold(log.folder, test_share=0.5).train.queries == 2


@pytest.mark.long
def test_fedranks_own_features(tmp_path):
    for features, width in (("aol-103", 103), ("live-1", None), ("engine-1", None)):
        how = ShownBuild(features=features, redaction=ALL_TEXTS)
        log = build_shown(table(tmp_path, ROWS), documents(tmp_path), tmp_path / features, how)
        assert np.isfinite(log.features).all()
        assert log.features.shape == (8, width or len(log.feature_names))
        assert log.facts["settings"]["features"] == features
        assert len(log_fold(log.folder, test_share=0.5).train.position) == 3
    recency = [name for name in log.feature_names if "recen" in name]
    assert recency
    assert (log.features[:, [log.feature_names.index(name) for name in recency]] > 0).all(), "documents have dates"


def test_redacted_texts_are_nowhere_and_features_are_the_same(tmp_path):
    plain, hidden = built(tmp_path), built(tmp_path, out="hidden", redaction=Redaction(people=2, words=("shoes",)))
    assert hidden.facts["redacted"] == {"a listed word": 1, "an e-mail address": 1, "asked by too few": 1}
    assert set(hidden.queries) == {"[redacted 1]", "[redacted 2]", "[redacted 3]"}
    assert np.array_equal(plain.features, hidden.features)
    assert np.array_equal(plain.query, hidden.query), "the same query is still the same query"
    for path in hidden.folder.iterdir():
        for word in (b"shoes", b"ann@b.org", b"blue"):
            assert word not in path.read_bytes(), path
    assert hidden.facts["settings"]["redaction"]["words"] == 1, "how many, not which"
    assert "redacted, an e-mail address: 1 queries, whose text is not stored" in notes(hidden.facts)


def test_an_interrupted_build_has_no_redacted_text_on_disk_and_continues(tmp_path, monkeypatch):
    redaction = Redaction(people=9)
    whole = built(tmp_path, out="whole", redaction=redaction)
    monkeypatch.setattr(module, "PAIRS", 3)

    def stop(what, done, of, detail=""):
        if what == "features" and done >= 3:
            raise KeyboardInterrupt

    args = table(tmp_path, ROWS), documents(tmp_path), tmp_path / "out", ShownBuild(redaction=redaction)
    with pytest.raises(KeyboardInterrupt):
        build_shown(*args, progress=stop, extractor=words_extractor)
    assert not (tmp_path / "out" / FACTS).exists()
    assert all(b"shoes" not in path.read_bytes() for path in (tmp_path / "out").iterdir())
    log = build_shown(*args, extractor=words_extractor)
    for path in sorted(log.folder.iterdir()):
        if path.suffix in (".npy", ".txt"):
            assert path.read_bytes() == (whole.folder / path.name).read_bytes()


def test_lists_of_redacted_queries_can_be_dropped(tmp_path):
    log = built(tmp_path, redaction=Redaction(people=2, what="drop"))
    assert log.queries == ("red shoes",)
    assert log.facts["dropped"]["of redacted queries"] == 2
    assert log.documents == tuple(f"d{i}" for i in range(12))


def test_old_rows_are_never_stored(tmp_path):
    rows = [
        *ROWS,
        ("old", 19_999 * DAY - 1, "old words", ["d1"], []),
        ("late", NOW + 5 * DAY, "late words", ["d1"], []),
    ]
    edge = ("edge", 19_999 * DAY, "edge", ["d1"], [])  # yesterday, from its first second on
    log = built(tmp_path, [*rows, edge], keep_days=2)
    assert log.users == ("bob", "ann", "eve", "edge")
    assert {reason: n for reason, n in log.facts["dropped"].items() if n} == {module.TOO_OLD: 1, module.FUTURE: 1}
    assert all(b"old words" not in path.read_bytes() for path in log.folder.iterdir())
    again = built(tmp_path, [*rows, edge], keep_days=2, now=NOW + 1000)
    assert again.facts == log.facts, "days are whole"
    with pytest.raises(FileExistsError, match=r"different settings \(since\)"):
        built(tmp_path, [*rows, edge], keep_days=2, now=NOW + DAY)
    with pytest.raises(ValueError, match="keep_days must be at least 1"):
        ShownBuild(keep_days=0)


def test_floods_are_cut_and_counted(tmp_path):
    flood = [("eve", NOW + 20 * i, "red shoes", ["d1", "d0"], ["d0"]) for i in range(50)]
    log = built(tmp_path, [*ROWS, *flood], caps=ClickCaps(robot=40))
    assert log.users == ("bob", "ann")
    assert log.facts["capped"] == {"of clients that search like a robot": {"lists": 51, "clicks": 51, "clients": 1}}
    assert log.facts["largest"] == {"before": [0.9444, 0.0556, 0.0], "after": [1.0, 0.0, 0.0]}
    assert "dropped, of clients that search like a robot: 51" in notes(log.facts)
    few = built(tmp_path, [*ROWS, *flood], "few", caps=ClickCaps(robot=None, lists_hour=10))
    assert np.bincount(few.user)[few.users.index("eve")] == 11, "one before the hour, and ten in it"


def test_whoever_names_another_person_each_time_is_one_browser(tmp_path):
    queries, events = tmp_path / "q.ndjson", tmp_path / "e.ndjson"
    rows = [
        {"query_id": f"q{i}", "client_id": client, "user_id": f"u{i}", "user_query": "red", "timestamp": NOW + i}
        | {"query_response_hit_ids": ["d1", "d2"]}
        for i, client in enumerate(["eve"] * 20 + [f"c{i}" for i in range(10)] + [""] * 10)
    ]
    queries.write_text("".join(json.dumps(row) + "\n" for row in rows))
    events.write_text("")
    how = ShownBuild(ubi=UbiRules(person="user_id"), caps=ClickCaps(robot=None, lists_hour=5), redaction=ALL_TEXTS)
    source = UbiSource(queries, events)
    log = build_shown(source, documents(tmp_path), tmp_path / "out", how, extractor=words_extractor)
    assert log.facts["capped"][HOURLY] == {"lists": 15, "clicks": 0, "clients": 1}
    assert len(log.users) == 25, "where no browser is named, the person counts"


def test_users_are_chosen(tmp_path):
    assert built(tmp_path, users=1).users == ("bob",)
    assert built(tmp_path, out="b", min_interactions=2).facts["dropped"][module.NOT_CHOSEN] == 2
    without = built(tmp_path, out="c", exclude=("bob",))
    assert without.users == ("ann", "eve")
    assert all(b"bob" not in path.read_bytes() for path in without.folder.iterdir()), "who was left out is not named"
    with pytest.raises(FileExistsError, match=r"different settings \(exclude\)"):
        built(tmp_path, out="c", exclude=("eve",))
    with pytest.raises(ValueError, match="no user with a valid list has this name"):
        built(tmp_path, out="d", exclude=("zoe",))
    with pytest.raises(
        ValueError, match="none of the 4 lists can be stored: the most active user has 2, and min_interactions is 9"
    ):
        built(tmp_path, out="e", min_interactions=9)
    with pytest.raises(ValueError, match=r"no usable lists \(no user: 1 \(line 1\)\)"):
        built(tmp_path, [("", NOW, "x", ["d1"], [])], out="f")
    assert not (tmp_path / "f").exists(), "what makes no sense leaves no folder behind"


SEARCH = {"query_id": "q", "client_id": "c", "user_query": "red", "timestamp": NOW, "query_response_hit_ids": ["d1"]}
CLICK = {"action_name": "click", "query_id": "q", "client_id": "c", "timestamp": NOW + 1}


@pytest.mark.parametrize(
    ("queries", "remedy"),
    [
        (
            json.dumps(SEARCH | {"application": "suggestions"}),
            "--application must name an application that occurs in the log",
        ),
        (json.dumps(SEARCH | {"application": "shop"}), "--person must name a field"),
        (json.dumps({"hits": {"hits": [{"_source": SEARCH}]}}, indent=1), "write one per line with `jq -c . FILE`"),
        (json.dumps(CLICK), "pass events with --ubi-events and searches with --ubi-queries"),
        (json.dumps(SEARCH | {"query_response_hit_ids": ["sku-1"]}), "--object-field must name their id column"),
        (json.dumps(SEARCH | {"timestamp": "soon"}), "fix these rows, or export the log again"),
    ],
)
def test_a_log_without_a_list_says_what_helps(tmp_path, queries, remedy):
    files = UbiSource(tmp_path / "q.ndjson", tmp_path / "e.ndjson")
    files.queries.write_text(queries)
    application = "shop" if "application" in queries else None
    files.events.write_text(f"{json.dumps(CLICK)}\n" * 40)
    how = ShownBuild(ubi=UbiRules(person="ann" if "--person" in remedy else None, application=application))
    with pytest.raises(ValueError, match="no usable lists") as problem:
        build_shown(files, documents(tmp_path), tmp_path / "out", how, extractor=words_extractor)
    assert remedy in str(problem.value)


def test_both_files_of_ubi(tmp_path):
    queries, events = tmp_path / "q.ndjson", tmp_path / "e.ndjson"
    query = {
        "query_id": "q",
        "client_id": "c",
        "user_query": "red",
        "timestamp": NOW,
        "query_response_hit_ids": ["d1", "d2"],
    }
    queries.write_text(json.dumps(query) + "\n")
    click = {"action_name": "click", "query_id": "q", "client_id": "c", "timestamp": NOW + 1}
    click["event_attributes"] = {"object": {"object_id": "d2"}, "position": {"ordinal": 7}}
    events.write_text(f"{json.dumps(click)}\n")
    log = build_shown(UbiSource(queries, events), documents(tmp_path), tmp_path / "out", extractor=words_extractor)
    assert log.unit == "browser"
    assert log.clicks.tolist() == [[0, 1]]
    assert log.facts["files"] == {"queries": "q.ndjson", "events": "e.ndjson", "documents": "docs.jsonl"}
    said = notes(log.facts)
    assert "noticed, clicks with a position that differs from their list: 1 (lines 1)" in said
    assert "users are browsers, not persons: one person may have several, and several may share one" in said
    events.write_text("")
    source = UbiSource(queries, events)
    silent = build_shown(source, documents(tmp_path), tmp_path / "silent", extractor=words_extractor)
    assert any("no list has a click" in one for one in notes(silent.facts))
    assert not any("no list has a click" in one for one in said)
    with pytest.raises(FileExistsError, match="another version of these files"):
        build_shown(UbiSource(queries, events), documents(tmp_path), tmp_path / "out", extractor=words_extractor)


def test_dwell_and_draws_reach_the_folder(tmp_path):
    path = tmp_path / "log.jsonl"
    row = {
        "user": "a",
        "time": 5,
        "query": "x",
        "shown": ["d1", "d2"],
        "clicked": ["d2"],
        "dwell": [9],
        "scores": [2, 1],
    }
    shorter = {"user": "a", "time": 6, "query": "x", "shown": ["d1"], "scores": [2]}
    path.write_text(json.dumps(row) + "\n" + json.dumps(shorter) + "\n")
    how = ShownBuild(drawn=(0.5, 0.25))
    log = build_shown(path, documents(tmp_path), tmp_path / "out", how, extractor=words_extractor)
    assert log.drawn == (0.5, 0.25)
    assert log.scores.tolist() == [[2, 1], [2, 0]]
    assert np.isnan(log.dwell).tolist() == [[True, False], [True, True]]


def test_what_features_there_are():
    with pytest.raises(ValueError, match="must be one of 'aol-103', 'live-1', 'engine-1'"):
        ShownBuild(features="mine")
    assert build_log.LogBuild(features="engine-1-english").features == "engine-1-english"
    assert ShownBuild(ubi=UbiRules(positions=5)).ubi.positions == 5


def test_entries_beyond_the_retention_period_are_not_used(tmp_path):
    log = made_up_shown(tmp_path / "log", [0, 1, 0, 1])
    log.check_retention(now=1e12)  # no limit
    log.facts["settings"] = {"keep_days": 2}
    day = int(log.time[0]) // DAY * DAY
    log.check_retention(now=day + 2 * DAY - 1)
    with pytest.raises(ValueError, match="4 entries that are older than its retention period of 2 days"):
        log.check_retention(now=day + 2 * DAY)


def test_neither_a_run_nor_a_site_uses_expired_entries(tmp_path):
    folder = made_up_shown(tmp_path / "log", [0, 1, 0, 1]).folder
    facts = json.loads((folder / "facts.json").read_text())
    (folder / "facts.json").write_text(json.dumps(facts | {"settings": {"keep_days": 30}}))
    with pytest.raises(ValueError, match="older than its retention period"):
        load_fold(read_tables(SPEC | {"data": {"log": str(folder)}}).base.data, 1)
    with pytest.raises(ValueError, match="older than its retention period"):
        load_share(SiteData(log=str(folder)))

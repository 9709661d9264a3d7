"""Cards and receipts: what they say first, what they are bound to, and what they never say."""

from __future__ import annotations

import hashlib
import json
import re
import stat
import sys
from dataclasses import replace

import pytest

from fedrank import __version__
from fedrank.cli import main
from fedrank.data.build_log import LogBuild, build_log
from fedrank.data.describe_log import describe_log
from fedrank.data.letor import letor_lines
from fedrank.data.logs import load_log
from fedrank.data.synthetic_log import synthetic_log
from fedrank.data.synthetic_text import synthetic_collection
from fedrank.experiments.runner.cards import ISSUER, log_card, merged_card, read_card, sketch_card, write_card_for
from fedrank.experiments.runner.folder import Card, Receipt
from fedrank.experiments.runner.perform import perform
from fedrank.experiments.runner.runs import load_runs
from fedrank.experiments.runner.schedule import plan
from fedrank.experiments.runner.unlearning import unlearn_runs
from fedrank.experiments.spec.families import build
from fedrank.experiments.spec.grid import read_tables
from fedrank.unlearning.methods import Unlearner
from tests.made_up import made_up_data, made_up_shown

GAUSSIAN = {"name": "gaussian", "clip": 1.0, "noise": 3.0, "placement": "client"}
FEDERATED = {
    "rounds": 4,
    "data": {"name": "synthetic-mq2007"},
    "clients": {"count": 6, "interactions": 2},
    "learner": {"name": "pdgd"},
}
SILO = {"kind": "silo", "rounds": 2, "silos": {"count": 3}}


def done(folder, **tables):
    [task] = plan(read_tables(tables), "test", folder)
    assert perform(task) == "finished", (task.folder / "run.json").read_text()
    return task.folder


def read(folder, name="privacy.json"):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def forest_tables(folder, **more):
    file = folder / "data.txt"
    file.write_text("".join(letor_lines(made_up_data(40, longest=12, seed=2))))
    data = dict.fromkeys(("train", "validation", "test"), str(file))
    booster = {"name": "lambdamart", "trees": 3, "leaves": 4, "min_data_in_leaf": 2}
    return {"kind": "trees", "data": data, "booster": booster} | more


def collection_in(folder):
    """A small made-up collection as files."""
    made = synthetic_collection(120, 40, seed=1, topics=6, length=20)
    documents = zip(made.documents.ids, made.documents.title, made.documents.text, strict=True)
    rows = [json.dumps({"_id": key, "title": title, "text": text}) for key, title, text in documents]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    asked = zip(made.query_ids, made.queries, strict=True)
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": key, "text": text}) for key, text in asked))
    lines = ["query\tdocument\tgrade"]
    for query, key in enumerate(made.query_ids):
        lines += [f"{key}\td{row}\t{grade}" for row, grade in zip(*made.judgements(query), strict=True)]
    (folder / "qrels.tsv").write_text("\n".join(lines))
    return {"data": {"folder": str(folder)}}


def kinds(folder):
    """A run of every kind, with the number of clients that its card must name."""
    split = {"split": {"name": "topics", "clients": 2}, "merge": {"name": "linear"}}
    return {
        "bare": (FEDERATED, 6),
        "private": (FEDERATED | {"mechanism": GAUSSIAN}, 6),
        "recorded": (FEDERATED | {"record_every": 2}, 6),
        "silo": (SILO | collection_in(folder) | {"method": {"name": "local"}}, 3),
        "sketches": (
            SILO
            | collection_in(folder)
            | {"method": {"name": "cross-silo", "width": 128, "depth": 5, "k": 6, "noise": 1.0}},
            3,
        ),
        "forest": (forest_tables(folder), 1),
        "merged": (forest_tables(folder, **split), 2),
    }


@pytest.mark.parametrize("kind", ["bare", "private", "recorded", "silo", "sketches", "forest", "merged"])
def test_every_kind_of_run_has_a_card_that_says_it_is_simulated_first(tmp_path, kind, monkeypatch):
    monkeypatch.setenv(ISSUER, "Institute of Ranking")
    tables, clients = kinds(tmp_path)[kind]
    folder = done(tmp_path, **tables)
    card = read(folder)
    assert next(iter(card)) == "what"
    assert card["what"] == "simulated run"
    assert card["summary"].startswith("Simulated: one process had the data of all clients")
    assert card["clients"] == clients
    assert card["issuer"] == "Institute of Ranking"
    assert "issued" not in card, "run.json says when it ended, and a resumed run has the same card"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", read(folder, "run.json")["ended"])
    assert card["versions"]["fedrank"] == __version__
    assert {"python", "numpy", "numba"} <= set(card["versions"])
    assert card["data"]
    models = [path for path in folder.rglob("model*") if path.is_file()]
    hashes = {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in models}
    assert card["files"] == hashes
    for line in card["not_covered"]:
        assert line in card["summary"]
    assert "stayed with" not in json.dumps(card)


def test_somebody_without_a_name_is_said_to_have_none(tmp_path, monkeypatch):
    monkeypatch.delenv(ISSUER, raising=False)
    assert read(done(tmp_path, **FEDERATED))["issuer"] == "not named"


def test_a_card_of_another_model_claims_nothing(tmp_path):
    folder = done(tmp_path, **FEDERATED, mechanism=GAUSSIAN)
    assert read_card(folder).promises
    model = read(folder, "model.json")
    (folder / "model.json").write_text(json.dumps(model))  # the same weights, in other bytes
    card = load_runs(tmp_path)[0].card
    assert card.promises == ()
    assert "issued for another model.json" in card.summary
    (folder / "model.json").unlink()  # purged: the card still says what was spent
    assert read_card(folder).promises


def test_a_card_of_an_earlier_version_can_be_read(tmp_path):
    old = {"format": 1, "fedrank": "0.0.9", "mechanism": None, "who_sees_what": "all", "delta": 1e-5, "budget": None}
    (tmp_path / "privacy.json").write_text(json.dumps(old))
    assert read_card(tmp_path) == Card(version="0.0.9", mechanism=None, who_sees_what="all", delta=1e-5, budget=None)


def test_forests_that_came_as_files_are_merged_with_a_card(tmp_path):
    (tmp_path / "client-1").mkdir()
    (tmp_path / "client-1" / "model.json").write_text("{}")
    card = merged_card(tmp_path, 2)
    assert (card.what, card.clients, list(card.files)) == ("deployed run", 2, ["client-1/model.json"])
    assert "No privacy guarantee" in card.summary
    assert "leaf values" in card.summary


# Logs


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("log")
    clicks, documents = synthetic_log(folder, 30, 1, documents=150, topics=4, days=20)
    build_log(clicks, documents, folder / "data", LogBuild())
    return load_log(folder / "data")


def test_a_log_is_for_its_owner_only(log):
    assert stat.S_IMODE(log.folder.stat().st_mode) == 0o700
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in log.folder.iterdir()}
    assert {"users.txt", "queries.txt", "facts.json"} <= set(files)
    assert set(files.values()) == {0o600}


def test_a_log_has_a_card(log):
    card = log_card(log)
    assert card.what == "search log"
    assert card.clients == len(log.users)
    assert list(card.files) == ["facts.json"]
    assert "user ids" in card.summary
    assert "do not share it" in card.summary


def test_the_card_of_a_production_log_says_what_a_user_is_and_what_was_not_kept(tmp_path):
    browsers = made_up_shown(tmp_path / "b", [0, 1], unit="browser")
    assert "a user of the log is a browser, not a person" in log_card(browsers).summary
    assert "browser" not in log_card(made_up_shown(tmp_path / "p", [0, 1])).summary
    facts = {"settings": {"keep_days": 90}, "redacted": {"an e-mail address": 2, "asked by too few": 1000}}
    said = log_card(replace(browsers, facts=browsers.facts | facts)).summary
    assert (
        "Lists older than 90 days at build time are not stored. The data set is refused once it contains older ones;"
        in said
    )
    assert "The text of 1,002 queries is not stored (an e-mail address: 2, asked by too few: 1,000)." in said
    assert "lists, clicks and features of redacted queries" in said


@pytest.mark.long
def test_the_command_writes_the_card_of_a_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clicks, documents = synthetic_log(tmp_path, 30, 1, documents=150, topics=4, days=20)
    words = ["fedrank", "data", "build", "--log", clicks, "--docs", documents, "--out", "data"]
    monkeypatch.setattr(sys, "argv", list(map(str, words)))
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert read(tmp_path / "data")["what"] == "search log"
    assert load_log(tmp_path / "data")


@pytest.mark.long
def test_a_picture_shows_no_user_ids(log, tmp_path):
    from fedrank.experiments.report.charts import draw_log

    found = describe_log(log)
    ids = {*found.plotted_users, *found.compared}
    draw_log(found, tmp_path / "log.svg")
    text = (tmp_path / "log.svg").read_text()
    assert not any(f">{name}<" in text or f"<!-- {name} -->" in text for name in ids)


# Sketches


def test_a_sketch_has_a_card(tmp_path):
    from fedrank.data.documents import Documents
    from fedrank.silo.files import sketch_collection
    from fedrank.silo.keys import new_key
    from fedrank.silo.sketch import Sketcher

    documents = Documents(("a", "b"), ("cats", "dogs"), ("cats purr", "dogs bark"), ("", ""))
    file = tmp_path / "own.sketch"
    key = new_key(tmp_path / "key")
    sketch_collection(documents, key, Sketcher(width=32, depth=5, noise=1.0), file)
    beside = write_card_for(sketch_card(file), file)
    assert beside.name == "own.sketch.privacy.json"
    card = json.loads(beside.read_text())
    assert (next(iter(card)), card["what"]) == ("what", "sketch file")
    assert card["files"] == {"own.sketch": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert "ε = " in card["summary"]
    assert "Not covered: that a document exists" in card["summary"]
    sketch_collection(documents, key, Sketcher(width=32, depth=5), tmp_path / "secret.sketch")
    secret = sketch_card(tmp_path / "secret.sketch")
    assert secret.mechanism is None
    assert "as secret as the documents" in secret.summary


# Receipts


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("method", ["fed-eraser", "retrain"])
def test_a_receipt_says_in_a_sentence_what_is_not_shown(tmp_path, method, verify):
    parent = done(tmp_path, **FEDERATED, record_every=2)
    before = hashlib.sha256((parent / "model.json").read_bytes()).hexdigest()
    unlearner = build(Unlearner, {"name": method}, "method")
    [result] = unlearn_runs([parent], [2], unlearner, tmp_path / "out", verify=verify)
    paper = read(result.folder, "receipt.json")
    assert next(iter(paper)) == "summary"
    assert ("not shown to be forgotten" in paper["summary"].lower()) == (method != "retrain")
    assert paper["summary"].startswith("Client 2 is ")
    assert "history/" in paper["summary"]
    after = hashlib.sha256((result.folder / "model.json").read_bytes()).hexdigest()
    assert paper["files"] == {"model.json": after, "parent": before}
    assert paper["issued"]
    assert paper["versions"]["fedrank"] == __version__
    assert read(result.folder)["files"] == {"model.json": after}
    [again] = unlearn_runs([parent], [2], unlearner, tmp_path / "out", verify=verify, purge=True)
    purged = Receipt.read(again.folder)
    assert "model.json" not in purged.summary.partition("still holds")[2]
    assert purged.files["parent"] == before

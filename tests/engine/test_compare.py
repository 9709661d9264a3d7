"""An engine that was made up: what it answers is compared with documents and with a model."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.data.documents import Documents, read_documents
from fedrank.data.engine_features import ENGINE_1, NAMES
from fedrank.engine.compare import compare_features, compare_scores, documents_for, read_queries
from fedrank.engine.read_log import read_logged
from fedrank.engine.templates import EngineSetup
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from fedrank.trees.export import export
from fedrank.trees.export.engine_rules import engine_scores
from fedrank.trees.model_files import load_model

TIME = 1_700_000_000
QUERIES = {"q1": "red shoes", "q2": "blue", "q3": "shoes for a red fox"}


@pytest.fixture
def shop(tmp_path):
    """Documents, queries, a model, and answers as an engine gives them that computes as the export says."""
    rng = np.random.default_rng(1)
    words = np.array(["red", "blue", "shoes", "shoe", "fox", "a", "for", "run", "city"])
    rows = [
        {
            "id": f"d{i}",
            "title": " ".join(rng.choice(words, 4)),
            "text": " ".join(rng.choice(words, 30)),
            "changed": TIME - 86400 * i,
            "popularity": i,
        }
        for i in range(40)
    ]
    docs = tmp_path / "docs.jsonl"
    docs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    queries = tmp_path / "queries.tsv"
    queries.write_text("query_id\tquery\ttime\n" + "".join(f"{k}\t{v}\t{TIME}\n" for k, v in QUERIES.items()))
    model = tmp_path / "model.json"
    weights = rng.standard_normal(len(NAMES))
    save_model(Model(Linear(), weights, len(NAMES), "global", NAMES, ranges=ENGINE_1.ranges), model)
    exported = export(model, "opensearch", tmp_path / "exported.json").path.read_bytes()
    index = ENGINE_1.index(read_documents(docs))
    lines = []
    for key, text in QUERIES.items():
        features = index.describe(text, range(40), TIME)
        scores = engine_scores("opensearch", exported, features, NAMES)
        order = np.argsort(-scores, kind="stable")
        hits = [
            {
                "_id": f"d{row}",
                "_score": float(scores[row]),
                "fields": {
                    "_ltrlog": [
                        {
                            "engine-1": [
                                {"name": n, "value": float(v)} for n, v in zip(NAMES, features[row], strict=True)
                            ]
                        }
                    ]
                },
            }
            for row in order
        ]
        lines.append({"query_id": key, "hits": {"hits": hits}})
    log = tmp_path / "log.ndjson"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return docs, queries, model, log, lines


def test_an_engine_that_computes_the_same_agrees(shop):
    docs, queries, model, log, _ = shop
    logged = read_logged(log)
    found = compare_features(logged, read_documents(docs), read_queries(queries), ENGINE_1)
    assert [one.what for one in found] == list(NAMES)
    assert all(one.agrees and one.values == 120 for one in found)
    scores = compare_scores(logged, load_model(model))
    assert scores.agrees
    assert (scores.scores.values, scores.lists, scores.same_top) == (120, 3, 3)


def test_one_that_does_not_is_found(shop):
    docs, queries, model, log, lines = shop
    lines[0]["hits"]["hits"][0]["fields"]["_ltrlog"][0]["engine-1"][0]["value"] += 1e-3
    lines[1]["hits"]["hits"][12]["_score"] += 10
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    logged = read_logged(log)
    found = compare_features(logged, read_documents(docs), read_queries(queries), ENGINE_1)
    assert [one.beyond for one in found] == [1] + [0] * 11
    scores = compare_scores(logged, load_model(model))
    assert not scores.agrees
    assert scores.same_top == 2
    assert scores.scores.beyond == 2  # the feature changes the score as well


def test_what_cannot_be_compared(shop):
    docs, _, _, log, lines = shop
    logged = read_logged(log)
    with pytest.raises(ValueError, match="check that the files belong together"):
        compare_features(logged, read_documents(docs), {}, ENGINE_1)
    with pytest.raises(ValueError, match="the model has 3 features and the log 12"):
        compare_scores(logged, Model(Linear(), np.ones(3), 3))
    for line in lines:
        for hit in line["hits"]["hits"]:
            hit["_score"] = None
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match="no answer has a score"):
        compare_scores(read_logged(log), Model(Linear(), np.ones(12), 12))


@pytest.mark.parametrize("text", ["", "query_id\tquery\n", "query_id\tquery\nq1\t\n", "a\tb\n1\t2\n"])
def test_queries_that_are_none(tmp_path, text):
    path = tmp_path / "q.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"q\.tsv"):
        read_queries(path)


def test_queries_of_ubi(tmp_path):
    path = tmp_path / "q.ndjson"
    path.write_text('{"query_id": "q1", "user_query": "red", "timestamp": 1700000000000}\n')
    assert read_queries(path)["q1"].time == TIME


def test_documents_as_engines_take_them():
    documents = Documents(["a", "b"], ["t", "u"], ["x", "y"], ["", ""], changed=["2026-01-01", ""])
    lines = list(documents_for(EngineSetup("opensearch", changed="updated"), documents))
    assert [json.loads(line) for line in lines] == [
        {"index": {"_index": "documents", "_id": "a"}},
        {"title": "t", "body": "x", "updated": "2026-01-01T00:00:00.000Z"},
        {"index": {"_index": "documents", "_id": "b"}},
        {"title": "u", "body": "y"},
    ]
    assert json.loads(next(documents_for(EngineSetup("solr"), documents))) == {"id": "a", "title": "t", "body": "x"}


@pytest.mark.long
def test_the_command(shop, monkeypatch, capsys):
    docs, queries, model, log, _ = shop

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "engine", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, capsys.readouterr()

    code, said = call(log, "--model", model)
    assert code == 0
    assert "The ten best are the same in 3 of 3 lists" in said.out
    code, said = call(log, "--docs", docs, "--queries", queries)
    assert code == 0
    assert "all_match: 120 values" in said.out
    code, said = call(log, "--docs", docs, "--queries", queries, "--features", "engine-1-english")
    assert code == 1
    assert "They differ" in said.out
    code, said = call(log, "--model", model, "--json")
    assert (code, json.loads(said.out)["agrees"]) == (0, True)
    code, said = call(log)
    assert code == 2
    assert "give --model to compare scores" in said.err

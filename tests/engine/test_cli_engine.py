"""`fedrank engine`: what it prints and writes, and that mistakes cost one line."""

from __future__ import annotations

import json
import sys

import pytest

from fedrank.cli import main
from fedrank.data.engine_features import NAMES
from fedrank.data.letor import read_letor
from fedrank.experiments.runner.cards import read_card


@pytest.fixture
def fedrank(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "engine", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.mark.parametrize("to", ["opensearch", "elasticsearch", "solr"])
def test_features(fedrank, tmp_path, to):
    code, out, _ = fedrank("features", "engine-1", "--to", to, "--out", "e", "--index", "shop", "--changed", "updated")
    assert code == 0
    assert "curl -fsS" in out
    written = json.loads((tmp_path / "e" / "features.json").read_text())
    assert "updated" in json.dumps(written)
    assert "shop" in (tmp_path / "e" / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("features", "engine-2", "--to", "solr", "--out", "e"), "unknown feature set 'engine-2'"),
        (("features", "engine-1", "--to", "x", "--out", "e"), "unknown engine 'x'"),
        (("features", "engine-1", "--to", "solr", "--out", "e", "--title", "a'b"), 'title = "a\'b"'),
        (("read-log", "nowhere", "--out", "t.txt"), "nowhere"),
        (("read-log", "l", "--out", "data"), "needs --ubi-queries and --ubi-events"),
        (("read-log", "l", "--out", "t.txt", "--ubi-events", "e"), "UBI has two files"),
        (("read-log", "l", "--out", "t.txt", "--clicks", "c", "--ubi-queries", "q"), "remove one of them"),
    ],
)
def test_mistakes_cost_a_line(fedrank, tmp_path, arguments, says):
    code, out, err = fedrank(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_read_log(fedrank, files, tmp_path):
    log, queries, events, _ = files
    code, out, err = fedrank("read-log", log, "--clicks", events, "--out", "train.txt")
    assert code == 0
    assert "6 queries, 17 documents, 5 of them clicked" in " ".join(out.split())
    assert "omitted, click on a document that was not logged for its search: 1 (line 5)" in err
    assert read_letor(tmp_path / "train.txt").features.shape == (17, len(NAMES))
    code, out, _ = fedrank("read-log", log, "--ubi-queries", queries, "--ubi-events", events, "--out", "data")
    assert code == 0
    assert "5 lists of 2 users (browsers)" in out
    assert "do not share it" in read_card(tmp_path / "data").summary
    code, _, err = fedrank("read-log", log, "--out", "scored.txt")
    assert code == 0
    assert "all relevance labels are 0" in err

"""`fedrank engine trial` as a person meets it: one line for a mistake, nothing changed by it, and narrow terminals."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedrank.cli import main
from fedrank.ranking.model import Model, save_model
from fedrank.ranking.rankers import Linear
from tests.engine.test_trial import a_file, a_search


@pytest.fixture
def fedrank(tmp_path, monkeypatch, capsys):
    """Call the command as a shell does, in a folder with two models: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    for name, weights in (("old", [1.0, 0.5]), ("new", [0.5, 1.0])):
        save_model(Model(Linear(), np.array(weights), 2), f"{name}.json")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedrank", "engine", "trial", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


def plan(fedrank, *more):
    code, out, err = fedrank("plan", "new.json", "--against", "old.json", "--to", "own", "--out", "t", *more)
    assert (code, err) == (0, ""), err
    return out


def everything():
    return {path: path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file() and path.name[0] != "."}


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["adopt", "t"], "does not show that"),
        (["adopt", "t", "--anyway"], "give --because"),
        (["rollback", "t", "--because", " "], "give --because"),
        (["read", "t", "nothing.jsonl"], "nothing.jsonl"),
        (["read", "t", "old.json"], "none of its 1 lines can be used"),
        (["decide", "elsewhere"], "elsewhere is not a trial"),
        (["plan", "new.json", "--against", "old.json", "--to", "own", "--out", "t"], "another trial"),
        (["plan", "new.json", "--against", "new.json", "--to", "own", "--out", "u"], "same model"),
        (
            ["plan", "new.json", "--against", "old.json", "--to", "own", "--wins", "0.4", "--out", "u"],
            "between 0.51 and 0.94",
        ),
        (["plan", "new.json", "--against", "engine", "--to", "solr", "--out", "u"], "--index"),
        (["plan", "new.json", "--against", "engine", "--to", "bing", "--out", "u"], "opensearch, solr, own"),
        (["plan", "no.json", "--against", "engine", "--to", "own", "--out", "u"], "no.json"),
    ],
)
def test_a_mistake_is_told_in_a_line_and_changes_nothing(fedrank, arguments, says):
    plan(fedrank)
    before = everything()
    code, out, err = fedrank(*arguments)
    assert code != 0
    assert out == ""
    assert says in err
    assert err.count("\n") == 1, err
    assert everything() == before


@pytest.mark.long
def test_from_a_plan_to_a_model_in_use_on_a_narrow_terminal(fedrank, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    plan(fedrank, "--wait", 0, "--who", "ann")
    record = json.loads(Path("t/trial.json").read_text())
    assert record["who"] == "ann"

    class Plan:
        id, key = record["id"], record["key"]

    events = a_file(Path("events.jsonl"), [a_search(Plan, n, client=f"c{n}", wins=n % 4 > 0) for n in range(120)])
    code, out, err = fedrank("read", "t", events, "--complete")
    assert (code, err) == (0, "")
    assert "120 new searches, 120 new clicks" in out
    code, out, err = fedrank("decide", "t", "--out", "evidence.svg")
    assert (code, err) == (0, "")
    assert "Adopt it" in out
    told = out.partition("Picture: ")[0]
    assert max(map(len, told.splitlines())) <= 60
    assert Path("evidence.svg").read_text().lstrip().startswith("<?xml")
    code, out, err = fedrank("adopt", "t", "--who", "ann")
    assert code == 0
    assert "which model is in use" in err
    assert json.loads(Path("current.json").read_text())["now"]["path"] == "new.json"
    code, out, err = fedrank("rollback", "t", "--because", "complaints")
    assert code == 0
    assert json.loads(Path("current.json").read_text())["now"]["path"] == "old.json"
    code, out, err = fedrank("decide", "t")
    assert (code, err) == (0, "")
    assert "rolled back" in out
    assert "Use the new model" not in out
    shown = json.loads(fedrank("decide", "t", "--json")[1])
    assert (shown["ruling"], shown["count"]["searches"]) == ("adopt", 120)

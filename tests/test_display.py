"""What a prompt and a notebook show: short lines, small tables, names that can be completed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import fedrank as fr
from fedrank.display import as_rows, json_text, visible
from fedrank.experiments.runner.runs import Records
from fedrank.experiments.runner.schedule import Results
from tests.experiments.report.made_up_runs import write_run

LONGEST = 400  # letters of a line at a prompt


@pytest.fixture(scope="module")
def fold() -> fr.Fold:
    return fr.load("synthetic-mq2007")


def shown(thing: object) -> str:
    """The line at a prompt; what a notebook shows says the same."""
    line, page = repr(thing), thing._repr_html_()  # type: ignore[attr-defined]
    assert len(line) <= LONGEST
    assert page.startswith("<div>")
    assert page.count("<tr>") == page.count("</tr>") > 0
    return line


def test_folds_and_data(fold):
    train = fold.train
    assert shown(fold).startswith(f"<Fold synthetic-mq2007, fold 1; training: {train.queries:,} queries, ")
    assert f"test: {fold.test.queries:,} queries, {fold.test.documents:,} documents; features: 46" in repr(fold)
    assert shown(train) == (
        f"<RankingData synthetic-mq2007; queries: {train.queries:,}; documents: {train.documents:,}; features: 46; "
        "labels: 0 to 2; normalised: none>"
    )


def test_clients(fold):
    clients = fr.make_clients(fold.train, 7, click_model=["navigational", "perfect"], interactions=[3, 5], malicious=2)
    assert shown(clients) == (
        f"<SimulatedClients of synthetic-mq2007; clients: 7; queries each: {fold.train.queries:,}; "
        "interactions per round: 3 to 5; users: navigational, perfect; malicious: 2>"
    )
    assert "people: 14" in repr(fr.make_clients(fold.train, 7, people=2))
    assert "clients: 0" in repr(clients.rows(np.arange(0)))


def test_outcomes(fold):
    clients = fr.make_clients(fold.train, 3, interactions=4)
    *_, last = fr.simulate(fr.Federation(), clients, 2)
    assert shown(last) == (
        f"<Outcome of round 2; online nDCG@10: {last.online:.4f}; interactions: 12; bytes up: {3 * 46 * 4}; "
        f"bytes down: {3 * 46 * 4}>"
    )


def test_models():
    notes = {"experiment": "robust", "variant": "krum", "fold": 1, "seed": 2, "data": "mq2007"}
    model = fr.Model(fr.rankers.Linear(), np.zeros(46), 46, "query", notes=notes)
    assert shown(model) == (
        "<Model Linear; features: 46; weights: 46; normalised: query; "
        "origin: experiment robust, variant krum, fold 1, seed 2, data mq2007>"
    )
    assert "models: 3, one per client" in shown(fr.Model(fr.rankers.Linear(), np.zeros((3, 46)), 46))


def test_questions_and_what_became_of_them(tmp_path):
    grid = fr.read_spec("quickstart", ["rounds=7", "seeds=[1, 2]", "data.folds=[1]"])
    line = shown(grid)
    assert "variants: " + ", ".join(grid.names) in line
    assert f"repeats: 2 (fold, seed); runs: {2 * len(grid.variants)} of 7 rounds" in line
    results = fr.run_experiment(grid.only(["alone"]), "short", tmp_path)
    assert shown(results) == "<Results; finished: 2>"
    failed = Results(failed=[(results.finished[0], "no room")])
    assert repr(failed) == "<Results; failed: 1, first alone, fold 1, seed 1: no room>"


def test_runs(tmp_path):
    folder = write_run(tmp_path, variant="<b>krum</b>", seed=3)
    write_run(tmp_path, variant="mean", status="failed", error={"message": "no room", "round": 3, "client": None})
    runs = fr.load_runs(tmp_path)
    good, bad = runs
    column, value = good.latest_value
    assert shown(good).startswith(
        f"<Run robust, <b>krum</b>, fold 1, seed 3; status: finished; rounds: 40 of 40; {column}: {value:.4f}; folder: "
    )
    assert "status: failed" in shown(bad)
    assert "reason: no room (round 3)" in repr(bad)
    page = runs._repr_html_()
    assert "2 runs: 1 finished, 1 failed" in page
    assert f"{value:.4f}" in page
    assert "<b>krum</b>" not in page  # names come from files
    assert "&lt;b&gt;krum&lt;/b&gt;" in page
    (folder / "rounds.csv").unlink()
    assert "finished" in repr(good)  # looking at a damaged one raises nothing
    assert "<table>" in runs._repr_html_()
    assert fr.load_runs(tmp_path / "robust" / "mean").filter(status="finished")._repr_html_().count("<tr>") == 1


def test_many_rows_are_counted_not_shown():
    page = as_rows("rows", [{"n": n} for n in range(30)], most=20)
    assert page.count("<tr>") == 21
    assert "and 10 more" in page
    assert repr(Records([{"a": 1, "b": 2}] * 3)) == "<3 records: a, b>"
    assert repr(Records()) == "<0 records>"


def test_names_can_be_completed():
    assert {"simulate", "plot", "aggregators", "__version__", "__doc__"} <= set(dir(fr))
    assert not {"cache", "import_module", "Any"} & set(dir(fr))
    assert "Krum" in dir(fr.aggregators)
    assert repr(fr.server_optimizers) == "<fedrank.server_optimizers: Adam, Add, Momentum>"
    assert fr.server_optimizers.__doc__.startswith("Server optimizers move the model")
    assert fr.server_optimizers is fr.server_optimizers
    with pytest.raises(AttributeError) as error:
        fr.simulat  # noqa: B018
    assert (error.value.name, error.value.obj) == ("simulat", fr)  # from which Python suggests the right one


def test_json_shows_no_invisible_characters_and_loses_none():
    value = {"name": "invoice\u202efdp.exe", "path": "k\udcff \U000e0001\x9b\xad", "said": "Grüße, 你好 😀\n"}
    text = json_text(value)
    assert text.isascii() is False
    assert text.replace("\n", "").isprintable()
    assert "Grüße, 你好 😀\\n" in text
    assert json.loads(text) == value


def test_what_is_no_number_is_null_in_json():
    found = json.loads(json_text({"a": [math.inf, np.float32(1.5)], 2: (math.nan, np.arange(2))}))
    assert found == {"a": [None, 1.5], "2": [None, [0, 1]]}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("invoice\u202efdp.exe", "invoice\\u202efdp.exe"),
        ("\u2066a\u2069 \u200eb\u061c", "\\u2066a\\u2069 \\u200eb\\u061c"),
        ("pay\u200dpal \u200b\ufeff\xad", "pay\\u200dpal \\u200b\\ufeff\\xad"),
        ("\x1b[2J\x07\x9b\x00", "\\x1b[2J\\x07\\x9b\\x00"),
        ("\U000e0041\u2028\udc80", "\\U000e0041\\u2028\\udc80"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\u05e9\u05dc\u05d5\u05dd caf\u00e9\u00a0\u4e2d", "\u05e9\u05dc\u05d5\u05dd caf\u00e9\u00a0\u4e2d"),
        ("\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e", "\U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e"),
    ],
)
def test_invisible_characters_and_those_that_change_the_direction_are_escaped(text, shown):
    assert visible(text) == shown

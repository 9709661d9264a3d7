"""What run folders hold of clients that leave, and what is left after purging."""

from __future__ import annotations

import numpy as np
import pytest

from fedrank.experiments.runner.folder import Facts
from fedrank.experiments.runner.traces import ancestors_of, purge_traces, what_remains
from fedrank.unlearning.history import History, HistoryWriter


@pytest.fixture
def folder(tmp_path):
    """A run folder with all that a run may leave."""
    path = tmp_path / "run"
    path.mkdir()
    for name in ("model.json", "rounds.csv", "spec.toml", "privacy.json"):
        (path / name).write_text("{}")
    Facts(experiment="small", variant="only", fold=1, seed=1, status="finished").write(path)
    (path / "ledger").mkdir()
    (path / "ledger" / "participants.log").write_bytes(b"")
    with HistoryWriter(path / "history", 3, 5, 2) as writer:
        for number in (1, 3):
            writer.add(number, np.arange(3), np.ones((3, 5), np.float32), np.zeros(5))
    return path


def test_what_remains_is_named(folder):
    remains = what_remains(folder, (2,))
    assert [one["file"] for one in remains] == ["model.json", "rounds.csv", "privacy.json", "ledger/*", "history/"]
    assert "updates of clients 2 in the recorded rounds" in remains[-1]["holds"]


def test_purging_deletes_models_and_that_clients_history(folder):
    (folder / "checkpoint.npz").write_bytes(b"x")
    assert purge_traces(folder, (0, 2)) == [
        "history/: updates of clients 0, 2, and models",
        "checkpoint.npz",
        "model.json",
    ]
    assert {client for stored in History.open(folder / "history") for client in stored.ids.tolist()} == {1}
    kept = {path.name for path in folder.iterdir()} - {"lock"}
    assert kept == {"rounds.csv", "run.json", "spec.toml", "privacy.json", "ledger", "history"}
    remains = what_remains(folder, (0, 2))
    assert [one["file"] for one in remains] == ["rounds.csv", "privacy.json", "ledger/*", "history/"]
    assert "no updates of the leaving clients" in remains[-1]["holds"]
    assert len(purge_traces(folder, (0, 2))) == 1  # again: nothing but history, which is looked through


def test_runs_before_are_looked_at_too(folder):
    after = folder.parent / "after"
    after.mkdir()
    (after / "model.json").write_text("{}")
    unlearned = {"parent": "../run"}
    Facts(experiment="s", variant="v", fold=1, seed=1, status="finished", unlearned=unlearned).write(after)
    assert ancestors_of(after) == (after, folder)
    assert [one.get("run") for one in what_remains(after, (2,))] == [None, *["../run"] * 5]
    assert purge_traces(after, (2,)) == [
        "model.json",
        "../run/history/: updates of clients 2, and models",
        "../run/model.json",
    ]


def test_nothing_remains_of_nothing(tmp_path):
    assert what_remains(tmp_path, (1,)) == []
    assert purge_traces(tmp_path, (1,)) == []
